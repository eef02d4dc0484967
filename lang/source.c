/* Source texts of a VM, with the offsets of their lines: numbered from 1, kept until they are dropped. Numbers are not used again, so a
 * place in a text that is gone is no place in another. */
#include "lang/source.h"

#include <string.h>

#include "lang/internal.h"

struct source_table {
  source_text **texts; /* by number; each has its own block, so that pointers stay valid */
  uint32_t count, cap, last;
};

/* The index in `texts` of the text with this number, or where it would be. */
static uint32_t place_of(const struct source_table *t, uint32_t number) {
  uint32_t lo = 0, hi = t->count;
  while (lo < hi) {
    uint32_t mid = lo + (hi - lo) / 2;
    if (t->texts[mid]->number < number)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

bool sources_open(qn_vm *vm) {
  vm->sources = mem_zalloc(vm, sizeof *vm->sources);
  return vm->sources != NULL;
}

static void source_free(qn_vm *vm, source_text *s) {
  if (!s) return;
  if (s->name) mem_free(vm, s->name, strlen(s->name) + 1);
  mem_free(vm, s->text, s->len + 1);
  mem_free(vm, s->lines, s->nlines * sizeof *s->lines);
  mem_free(vm, s, sizeof *s);
}

void sources_close(qn_vm *vm) {
  struct source_table *t = vm->sources;
  if (!t) return;
  for (uint32_t i = 0; i < t->count; i++) source_free(vm, t->texts[i]);
  mem_free(vm, t->texts, t->cap * sizeof *t->texts);
  mem_free(vm, t, sizeof *t);
  vm->sources = NULL;
}

static char *copy_text(qn_vm *vm, const char *text, size_t len) {
  char *p = mem_alloc(vm, len + 1);
  if (!p) return NULL;
  if (len) memcpy(p, text, len);
  p[len] = 0;
  return p;
}

/* Raises E101 with the line of the first bad byte. */
static void raise_invalid(qn_vm *vm, const char *name, const char *text, size_t len) {
  const char *nul = memchr(text, 0, len);
  size_t good = utf8_valid_prefix(text, nul ? (size_t)(nul - text) : len);
  int line = 1;
  for (size_t i = 0; i < good; i++) line += text[i] == '\n';
  bool marked = len > 1 && (!memcmp(text, "\xff\xfe", 2) || !memcmp(text, "\xfe\xff", 2));
  if (marked || (len > 3 && !text[1] && !text[3]))
    raise_error(vm, E_text, SPAN_NONE, "%s: the text is UTF-16; save it as UTF-8", name);
  else if (!text[good])
    raise_error(vm, E_text, SPAN_NONE, "%s, line %d: the text has a NUL byte", name, line);
  else
    raise_error(vm, E_text, SPAN_NONE, "%s, line %d: the byte 0x%02x is not UTF-8", name, line,
                (unsigned char)text[good]);
}

uint32_t source_add(qn_vm *vm, const char *name, const char *text, size_t len) {
  struct source_table *t = vm->sources;
  if (len >= UINT32_MAX / 2) {
    raise_error(vm, E_too_large, SPAN_NONE, "%s: a source text of %zu bytes is too large", name, len);
    return 0;
  }
  if ((len && memchr(text, 0, len)) || !utf8_valid(text, len)) {
    raise_invalid(vm, name, text, len);
    return 0;
  }
  if (!mem_grow(vm, (void **)&t->texts, &t->cap, (size_t)t->count + 1, sizeof *t->texts)) return 0;
  source_text *s = mem_zalloc(vm, sizeof *s);
  if (!s) return 0;
  uint32_t nlines = 1;
  for (size_t i = 0; i < len; i++) nlines += text[i] == '\n';
  s->name = copy_text(vm, name, strlen(name));
  if (s->name) utf8_clean(s->name, strlen(s->name));
  s->text = s->name ? copy_text(vm, text, len) : NULL;
  s->len = s->text ? len : 0;
  s->lines = s->text ? mem_alloc(vm, nlines * sizeof *s->lines) : NULL;
  if (!s->lines) {
    source_free(vm, s);
    return 0;
  }
  s->nlines = nlines;
  uint32_t n = 0;
  s->lines[n++] = 0;
  for (size_t i = 0; i < len; i++)
    if (text[i] == '\n') s->lines[n++] = (uint32_t)i + 1;
  t->texts[t->count++] = s;
  return s->number = ++t->last;
}

static source_text *get(const qn_vm *vm, uint32_t source) {
  const struct source_table *t = vm->sources;
  uint32_t at = place_of(t, source);
  return at < t->count && t->texts[at]->number == source ? t->texts[at] : NULL;
}

void source_set_library(qn_vm *vm, uint32_t source) { get(vm, source)->library = true; }

const source_text *source_get(const qn_vm *vm, uint32_t source) { return get(vm, source); }

static void forget(qn_vm *vm, source_text *s) {
  struct source_table *t = vm->sources;
  while (s) {
    uint32_t at = place_of(t, s->number), above = s->above;
    source_free(vm, s);
    memmove(&t->texts[at], &t->texts[at + 1], (--t->count - at) * sizeof *t->texts);
    s = get(vm, above);
    if (s && (--s->holders || !s->dropped)) s = NULL;
  }
}

void source_drop(qn_vm *vm, uint32_t source) {
  source_text *s = get(vm, source);
  if (!s) return;
  s->dropped = true;
  if (!s->holders) forget(vm, s);
}

void source_hold(qn_vm *vm, uint32_t source) {
  source_text *s = get(vm, source);
  if (s) s->holders++;
}

void source_let_go(qn_vm *vm, uint32_t source) {
  source_text *s = get(vm, source);
  if (s && --s->holders == 0 && s->dropped) forget(vm, s);
}

void source_set_above(qn_vm *vm, uint32_t source, uint32_t above) { get(vm, source)->above = above; }

uint32_t source_find(const qn_vm *vm, const char *name) {
  for (uint32_t i = vm->sources->count; i > 0; i--)
    if (strcmp(vm->sources->texts[i - 1]->name, name) == 0) return vm->sources->texts[i - 1]->number;
  return 0;
}

uint32_t source_line_of(const source_text *s, uint32_t offset) {
  uint32_t lo = 0, hi = s->nlines;
  while (hi - lo > 1) {
    uint32_t mid = lo + (hi - lo) / 2;
    if (s->lines[mid] <= offset)
      lo = mid;
    else
      hi = mid;
  }
  return lo;
}

void source_position(const source_text *s, uint32_t offset, int *line, int *column) {
  if (offset > s->len) offset = (uint32_t)s->len;
  uint32_t index = source_line_of(s, offset);
  int col = 1;
  for (uint32_t i = s->lines[index]; i < offset; i++) col += (s->text[i] & 0xc0) != 0x80;
  /* An offset within a code point has the column of that code point. */
  if (offset < s->len && (s->text[offset] & 0xc0) == 0x80) col--;
  *line = (int)index + 1;
  *column = col;
}
