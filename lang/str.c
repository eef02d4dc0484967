/* Strings, the intern table, and UTF-8.
 *
 * The intern table is a hash_set of the strings themselves, with linear probing; a string that is freed leaves it, by shifting later
 * entries of its run back. Record layouts (record.c) lie in another such set.
 */
#include <string.h>

#include "lang/internal.h"

enum { STR_MAX = INT32_MAX };

/* ---- hashing ------------------------------------------------------------------------------------------------- */

/* Multiplies and folds 8-byte words. The length is part of the hash, so that zero bytes at the end make a difference. */
uint32_t str_hash(const char *text, size_t len) {
  uint64_t h = 0x9e3779b97f4a7c15u ^ len * 0xff51afd7ed558ccdu;
  while (len >= 8) {
    uint64_t w;
    memcpy(&w, text, 8);
    h = (h ^ w) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 29;
    text += 8;
    len -= 8;
  }
  uint64_t w = 0;
  memcpy(&w, text, len);
  h = (h ^ w) * 0x94d049bb133111ebu;
  h ^= h >> 32;
  return (uint32_t)(h ^ h >> 16);
}

/* ---- UTF-8 --------------------------------------------------------------------------------------------------- */

/* How many bytes at the beginning are ASCII, counted in whole words; the caller looks at the rest byte by byte. */
static size_t ascii_words(const char *text, size_t len) {
  size_t i = 0;
  for (; i + 8 <= len; i += 8) {
    uint64_t w;
    memcpy(&w, text + i, 8);
    if (w & 0x8080808080808080u) break;
  }
  return i;
}

static bool ascii_only(const char *text, size_t len) {
  for (size_t i = ascii_words(text, len); i < len; i++)
    if (text[i] & 0x80) return false;
  return true;
}

size_t utf8_valid_prefix(const char *text, size_t len) {
  const unsigned char *s = (const unsigned char *)text;
  size_t i = 0;
  while (i < len) {
    i += ascii_words(text + i, len - i);
    if (i >= len) break;
    unsigned c = s[i];
    if (c < 0x80) {
      i++;
      continue;
    }
    size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || len - i < n) return i;
    for (size_t k = 1; k < n; k++)
      if ((s[i + k] & 0xc0) != 0x80) return i;
    /* The second byte tells overlong forms, surrogates, and code points beyond U+10FFFF. */
    unsigned second = s[i + 1];
    if ((c == 0xe0 && second < 0xa0) || (c == 0xed && second > 0x9f) || (c == 0xf0 && second < 0x90) ||
        (c == 0xf4 && second > 0x8f))
      return i;
    i += n;
  }
  return len;
}

void utf8_clean(char *text, size_t len) {
  for (size_t i = utf8_valid_prefix(text, len); i < len; i += utf8_valid_prefix(text + i, len - i)) text[i] = '?';
}

bool utf8_valid(const char *text, size_t len) { return utf8_valid_prefix(text, len) == len; }

int utf8_decode(const char *text, uint32_t *code) {
  const unsigned char *s = (const unsigned char *)text;
  if (s[0] < 0x80) {
    *code = s[0];
    return 1;
  }
  if (s[0] < 0xe0) {
    *code = (uint32_t)(s[0] & 0x1f) << 6 | (s[1] & 0x3f);
    return 2;
  }
  if (s[0] < 0xf0) {
    *code = (uint32_t)(s[0] & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f);
    return 3;
  }
  *code = (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3f) << 12 | (uint32_t)(s[2] & 0x3f) << 6 | (s[3] & 0x3f);
  return 4;
}

int utf8_encode(uint32_t code, char out[4]) {
  if (code < 0x80) {
    out[0] = (char)code;
    return 1;
  }
  if (code < 0x800) {
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
  }
  if (code < 0x10000) {
    out[0] = (char)(0xe0 | code >> 12);
    out[1] = (char)(0x80 | (code >> 6 & 0x3f));
    out[2] = (char)(0x80 | (code & 0x3f));
    return 3;
  }
  out[0] = (char)(0xf0 | code >> 18);
  out[1] = (char)(0x80 | (code >> 12 & 0x3f));
  out[2] = (char)(0x80 | (code >> 6 & 0x3f));
  out[3] = (char)(0x80 | (code & 0x3f));
  return 4;
}

typedef struct code_range {
  uint32_t first, last;
} code_range;
static const code_range wide_ranges[] = {
#define WIDE(a, b) {a, b},
#define ZERO(a, b)
#include "lang/unicode.def"
#undef WIDE
#undef ZERO
};
static const code_range zero_ranges[] = {
#define WIDE(a, b)
#define ZERO(a, b) {a, b},
#include "lang/unicode.def"
#undef WIDE
#undef ZERO
};

static bool range_has(const code_range *ranges, size_t n, uint32_t code) {
  size_t lo = 0, hi = n;
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (code > ranges[mid].last)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo < n && code >= ranges[lo].first;
}

int utf8_width(uint32_t code) {
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return 0;
  if (code < 0x300) return 1;
  if (range_has(zero_ranges, sizeof zero_ranges / sizeof *zero_ranges, code)) return 0;
  return range_has(wide_ranges, sizeof wide_ranges / sizeof *wide_ranges, code) ? 2 : 1;
}

int64_t utf8_columns(const char *text, size_t len) {
  int64_t n = 0;
  for (size_t i = 0; i < len;) {
    uint32_t code;
    i += (size_t)utf8_decode(text + i, &code);
    n += utf8_width(code);
  }
  return n;
}

/* ---- strings ------------------------------------------------------------------------------------------------- */

static size_t bytes_for(size_t len) { return sizeof(qn_str) + len + 1; }

/* Classes of sizes for the blocks of strings that have grown: 8 per doubling. Class 0 means a block of exact size. */
enum { ROOM_STEPS = 8, ROOM_FIRST = 3 * ROOM_STEPS };
static size_t room_bytes(unsigned class) { return (size_t)(ROOM_STEPS + class % ROOM_STEPS) << class / ROOM_STEPS; }

static unsigned room_class(size_t bytes) {
  unsigned class = ROOM_FIRST;
  while (room_bytes(class + ROOM_STEPS) <= bytes) class += ROOM_STEPS;
  while (room_bytes(class) < bytes) class ++;
  return class;
}

static size_t str_bytes(const qn_str *s) { return s->head.aux ? room_bytes(s->head.aux) : bytes_for(s->len); }

static qn_str *fail_long(qn_vm *vm, size_t len) {
  return raise_nothing(vm, E_too_large, SPAN_NONE, "a string of %zu bytes is too large; strings have at most 2**31 - 1",
                       len);
}

static qn_str *str_make(qn_vm *vm, const char *text, size_t len) {
  if (len > STR_MAX) return fail_long(vm, len);
  qn_str *s = mem_alloc(vm, bytes_for(len));
  if (!s) return NULL;
  s->head = (obj_head){.refs = 1, .tag = TAG_STR, .flags = ascii_only(text, len) ? STR_ASCII : 0};
  s->hash = 0;
  s->len = (uint32_t)len;
  if (len) memcpy(s->text, text, len);
  s->text[len] = 0;
  return s;
}

qn_str *str_new(qn_vm *vm, const char *text, size_t len) { return str_make(vm, text, len); }

/* The text goes to the end of the first one's block if nobody else has that and there is room, otherwise both go to a new string. */
bool str_append(qn_vm *vm, qn_value *v, const qn_str *tail) {
  qn_str *s = value_str(*v);
  size_t len = (size_t)s->len + tail->len, need = bytes_for(len);
  if (len > STR_MAX) return fail_long(vm, len) != NULL;
  if (s->head.refs != 1 || (s->head.flags & STR_INTERNED) || s == tail) {
    qn_str *both = mem_alloc(vm, need);
    if (!both) return false;
    *both = (qn_str){.head = {.refs = 1, .tag = TAG_STR, .flags = s->head.flags & STR_ASCII}};
    memcpy(both->text, s->text, s->len);
    both->len = s->len;
    value_release(vm, *v);
    *v = value_obj(TAG_STR, both);
    s = both;
  } else if (need > str_bytes(s)) {
    unsigned class = room_class(need + need / 2);
    qn_str *moved = mem_realloc(vm, s, str_bytes(s), room_bytes(class));
    if (!moved) return false;
    s = moved;
    s->head.aux = (uint16_t) class;
    v->u.p = s;
  }
  memcpy(s->text + s->len, tail->text, tail->len);
  s->len = (uint32_t)len;
  s->text[len] = 0;
  if (!(tail->head.flags & STR_ASCII)) s->head.flags &= (uint8_t)~STR_ASCII;
  return true;
}

uint32_t str_hash_of(const qn_str *s) { return s->head.flags & STR_INTERNED ? s->hash : str_hash(s->text, s->len); }

bool str_equal(const qn_str *a, const qn_str *b) {
  if (a == b) return true;
  if (a->len != b->len || (a->head.flags & b->head.flags & STR_INTERNED)) return false;
  return memcmp(a->text, b->text, a->len) == 0;
}

/* The order of UTF-8's bytes is that of the code points. */
int str_compare(const qn_str *a, const qn_str *b) {
  int c = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
  return c ? (c > 0) - (c < 0) : (a->len > b->len) - (a->len < b->len);
}

int64_t str_length(const qn_str *s) {
  if (s->head.flags & STR_ASCII) return s->len;
  return utf8_count(s->text, s->len);
}

/* How many of a word's bytes begin a code point: those whose two highest bits are not 10. */
static int word_count(uint64_t w) { return 8 - __builtin_popcountll(w >> 7 & ~(w >> 6) & 0x0101010101010101u); }

int64_t utf8_count(const char *text, size_t len) {
  int64_t n = 0;
  size_t i = 0;
  for (; i + 8 <= len; i += 8) {
    uint64_t w;
    memcpy(&w, text + i, 8);
    n += word_count(w);
  }
  for (; i < len; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
  return n;
}

size_t str_offset(const qn_str *s, int64_t i) {
  if (s->head.flags & STR_ASCII) return (size_t)i;
  size_t at = 0;
  for (; at + 8 <= s->len; at += 8) { /* words that end before code point i begins */
    uint64_t w;
    memcpy(&w, s->text + at, 8);
    int n = word_count(w);
    if (i < n) break;
    i -= n;
  }
  for (; at < s->len; at++)
    if (((unsigned char)s->text[at] & 0xc0) != 0x80 && i-- == 0) break;
  return at;
}

/* ---- interning ----------------------------------------------------------------------------------------------- */

struct intern_table {
  hash_set set;
};

#ifdef QN_CHECKED
enum { INTERN_FIRST = 2 };
#else
enum { INTERN_FIRST = 256 };
#endif

bool intern_open(qn_vm *vm) {
  vm->interned = mem_zalloc(vm, sizeof *vm->interned);
  if (vm->interned) vm->interned->set.hash_at = offsetof(qn_str, hash);
  return vm->interned != NULL;
}

void intern_close(qn_vm *vm) {
  struct intern_table *t = vm->interned;
  if (!t) return;
  mem_free(vm, t->set.slots, t->set.size * sizeof *t->set.slots);
  mem_free(vm, t, sizeof *t);
  vm->interned = NULL;
}

static uint32_t hash_of(const hash_set *t, const void *object) {
  uint32_t hash;
  memcpy(&hash, (const char *)object + t->hash_at, sizeof hash);
  return hash;
}

void hash_set_put(hash_set *t, void *object) {
  uint32_t i = hash_of(t, object) & (t->size - 1);
  while (t->slots[i]) i = (i + 1) & (t->size - 1);
  t->slots[i] = object;
  t->count++;
}

bool hash_set_room(qn_vm *vm, hash_set *t, uint32_t first) {
  if ((t->count + 1) * 2 <= t->size) return true;
  if (t->size > UINT32_MAX / 4) return raise_memory_false(vm);
  hash_set old = *t;
  t->size = old.size ? old.size * 2 : first;
  t->slots = mem_zalloc(vm, t->size * sizeof *t->slots);
  if (!t->slots) {
    *t = old;
    return false;
  }
  t->count = 0;
  for (uint32_t i = 0; i < old.size; i++)
    if (old.slots[i]) hash_set_put(t, old.slots[i]);
  mem_free(vm, old.slots, old.size * sizeof *old.slots);
  return true;
}

void hash_set_remove(hash_set *t, const void *object) {
  uint32_t mask = t->size - 1, i = hash_of(t, object) & mask;
  while (t->slots[i] != object) i = (i + 1) & mask;
  for (uint32_t j = (i + 1) & mask; t->slots[j]; j = (j + 1) & mask) {
    if (((j - hash_of(t, t->slots[j])) & mask) < ((j - i) & mask))
      continue; /* the probes for this entry begin behind the hole, so it can stay */
    t->slots[i] = t->slots[j];
    i = j;
  }
  t->slots[i] = NULL;
  t->count--;
}

qn_str *str_intern(qn_vm *vm, const char *text, size_t len) {
  hash_set *t = &vm->interned->set;
  uint32_t hash = len <= STR_MAX ? str_hash(text, len) : 0;
  if (t->size)
    for (uint32_t i = hash & (t->size - 1); t->slots[i]; i = (i + 1) & (t->size - 1)) {
      qn_str *s = t->slots[i];
      if (s->hash == hash && s->len == len && memcmp(s->text, text, len) == 0) {
        s->head.refs++;
        return s;
      }
    }
  if (!hash_set_room(vm, t, INTERN_FIRST)) return NULL;
  qn_str *s = str_make(vm, text, len);
  if (!s) return NULL;
  s->hash = hash;
  s->head.flags |= STR_INTERNED;
  hash_set_put(t, s);
  return s;
}

void str_free(qn_vm *vm, qn_str *s) {
  if (s->head.flags & STR_INTERNED) hash_set_remove(&vm->interned->set, s);
  mem_free(vm, s, str_bytes(s));
}
