/* The reader of the text forms of K and L (reader.h). */
#include "tests/unit/reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void reader_init(reader *r, const char *text, char *why, size_t size) {
  *r = (reader){.at = text, .line = 1, .why = why, .size = size};
}

bool reader_fail(reader *r, const char *format, ...) {
  if (r->failed) return false;
  r->failed = true;
  int n = snprintf(r->why, r->size, "line %d: ", r->line);
  va_list args;
  va_start(args, format);
  if (n >= 0 && (size_t)n < r->size) vsnprintf(r->why + n, r->size - (size_t)n, format, args);
  va_end(args);
  return false;
}

void reader_blanks(reader *r) {
  while (*r->at == ' ' || *r->at == '\t' || *r->at == '\r') r->at++;
}

bool reader_at_line_end(reader *r) {
  reader_blanks(r);
  return *r->at == '\n' || *r->at == 0;
}

void reader_next_line(reader *r) {
  for (;;) {
    reader_blanks(r);
    if (*r->at != '\n') return;
    r->at++;
    r->line++;
  }
}

static bool word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool reader_take(reader *r, const char *s) {
  reader_blanks(r);
  size_t n = strlen(s);
  if (r->failed || strncmp(r->at, s, n) != 0) return false;
  if (word_char(s[n - 1]) && word_char(r->at[n])) return false;
  r->at += n;
  return true;
}

bool reader_take_label(reader *r, const char *name) {
  reader_blanks(r);
  size_t n = strlen(name);
  if (r->failed || strncmp(r->at, name, n) != 0 || r->at[n] != '=') return false;
  r->at += n + 1;
  return true;
}

bool reader_need(reader *r, const char *s) { return reader_take(r, s) || reader_fail(r, "expected '%s'", s); }

bool reader_need_label(reader *r, const char *name) {
  return reader_take_label(r, name) || reader_fail(r, "expected '%s='", name);
}

bool reader_word(reader *r, char *to, size_t size) {
  reader_blanks(r);
  size_t n = 0;
  while (word_char(r->at[n])) n++;
  if (r->failed || !n || n >= size) return reader_fail(r, "expected a word");
  memcpy(to, r->at, n);
  to[n] = 0;
  r->at += n;
  return true;
}

bool reader_number(reader *r, int64_t *to) {
  *to = 0;
  reader_blanks(r);
  bool negative = *r->at == '-';
  const char *s = r->at + negative;
  uint64_t x = 0;
  int base = 10, digits = 0;
  if (s[0] == '0' && s[1] == 'x') {
    base = 16;
    s += 2;
  }
  for (;; s++, digits++) {
    int d = *s >= '0' && *s <= '9' ? *s - '0' : *s >= 'a' && *s <= 'f' ? *s - 'a' + 10 : 99;
    if (d >= base) break;
    x = x * (uint64_t)base + (uint64_t)d;
  }
  if (r->failed || !digits) return reader_fail(r, "expected a number");
  r->at = s;
  *to = (int64_t)(negative ? 0 - x : x);
  return true;
}

bool reader_small(reader *r, uint32_t *to) {
  *to = 0;
  int64_t x;
  if (!reader_number(r, &x)) return false;
  if (x < 0 || x > 0x7fffffff) return reader_fail(r, "number out of range");
  *to = (uint32_t)x;
  return true;
}

bool reader_prefixed(reader *r, char prefix, uint32_t *to) {
  *to = 0;
  reader_blanks(r);
  if (r->failed || *r->at != prefix) return reader_fail(r, "expected %cnumber", prefix);
  r->at++;
  return reader_small(r, to);
}

int kop_find(const char *name) {
  for (int i = 0; i < KOP_COUNT; i++)
    if (strcmp(kop_rows[i].name, name) == 0) return i;
  return -1;
}

int math_find(const char *name) {
  for (int i = 0; i < MATH_COUNT; i++)
    if (strcmp(math_rows[i].name, name) == 0) return i;
  return -1;
}

int find_dtype(const char *name) {
  for (int d = 0; d < QN_DTYPE_COUNT; d++)
    if (strcmp(dtype_rows[d].name, name) == 0) return d;
  return -1;
}

bool reader_dtype(reader *r, uint8_t *to) {
  *to = 0;
  char text[32];
  if (!reader_word(r, text, sizeof text)) return false;
  int d = find_dtype(text);
  if (d < 0) return reader_fail(r, "unknown dtype '%s'", text);
  *to = (uint8_t)d;
  return true;
}

int reader_choice(reader *r, const char *const *names, int n, const char *what) {
  char text[32];
  if (!reader_word(r, text, sizeof text)) return -1;
  for (int i = 0; i < n; i++)
    if (strcmp(names[i], text) == 0) return i;
  (void)reader_fail(r, "unknown %s '%s'", what, text);
  return -1;
}

bool reader_constant(reader *r, uint64_t *bits) {
  *bits = 0;
  int64_t x;
  if (!reader_number(r, &x)) return false;
  *bits = (uint64_t)x;
  if (!reader_take(r, "(")) return true;
  while (*r->at && *r->at != ')' && *r->at != '\n') r->at++;
  return reader_need(r, ")");
}

bool reader_check(reader *r, uint32_t number, l_check *to) {
  *to = (l_check){0};
  uint32_t n, id;
  if (!reader_prefixed(r, 'c', &n) || !reader_prefixed(r, 'E', &id)) return false;
  if (n != number) return reader_fail(r, "checks are numbered in order");
  to->id = (int)id;
  return reader_need_label(r, "site") && reader_small(r, &to->site) && reader_need_label(r, "node") &&
         reader_small(r, &to->node) && reader_need_label(r, "detail") && reader_number(r, &to->detail);
}
