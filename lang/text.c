/* text_buf: a growing text. Failure sticks: once an append fails the rest are ignored, and text_take raises the error. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lang/internal.h"

void text_free(text_buf *t) {
  if (t->vm)
    mem_free(t->vm, t->text, t->cap);
  else
    free(t->text);
  *t = (text_buf){.vm = t->vm};
}

/* Makes room for `more` bytes and a NUL. False if that fails, or has failed before. */
static bool text_room(text_buf *t, size_t more) {
  if (t->failed) return false;
  if (t->cap - t->len > more && t->cap) return true;
  size_t cap = t->cap + t->cap / 2 + 64;
  if (more > TEXT_MAX || t->len + more > TEXT_MAX) {
    t->failed = true;
    return false;
  }
  if (cap < t->len + more + 1) cap = t->len + more + 1;
  char *p = t->vm ? mem_try_realloc(t->vm, t->text, t->cap, cap) : realloc(t->text, cap);
  if (!p) {
    t->failed = true;
    return false;
  }
  t->text = p;
  t->cap = cap;
  return true;
}

void text_add(text_buf *t, const char *s, size_t len) {
  if (!text_room(t, len)) return;
  if (len) memcpy(t->text + t->len, s, len);
  t->len += len;
  t->text[t->len] = 0;
}

void text_adds(text_buf *t, const char *s) { text_add(t, s, strlen(s)); }

void text_addv(text_buf *t, const char *format, va_list args) {
  va_list again;
  va_copy(again, args);
  char small[256];
  int n = vsnprintf(small, sizeof small, format, args);
  if (n < 0) {
    t->failed = true;
  } else if ((size_t)n < sizeof small) {
    text_add(t, small, (size_t)n);
  } else if (text_room(t, (size_t)n)) {
    vsnprintf(t->text + t->len, (size_t)n + 1, format, again);
    t->len += (size_t)n;
  }
  va_end(again);
}

void text_addf(text_buf *t, const char *format, ...) {
  va_list args;
  va_start(args, format);
  text_addv(t, format, args);
  va_end(args);
}

void text_repeat(text_buf *t, const char *s, int n) {
  size_t len = strlen(s);
  if (n <= 0 || !len || !text_room(t, len * (size_t)n)) return;
  for (int i = 0; i < n; i++) text_add(t, s, len);
}

void text_int(text_buf *t, int64_t i) {
  char digits[20];
  int n = sizeof digits;
  uint64_t u = i < 0 ? -(uint64_t)i : (uint64_t)i;
  do {
    digits[--n] = (char)('0' + u % 10);
    u /= 10;
  } while (u);
  if (i < 0) text_add(t, "-", 1);
  text_add(t, digits + n, sizeof digits - (size_t)n);
}

/* Is this code point one that a terminal obeys, or one that is invisible and changes how the text around it is read? These are controls,
 * line separators, and marks of writing direction and byte order. */
static bool is_control(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x200e || code == 0x200f ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
}

void text_quoted(text_buf *t, const char *text, size_t len) {
  text_add(t, "\"", 1);
  size_t start = 0;
  for (size_t i = 0, bytes; i < len; i += bytes) {
    uint32_t c = (unsigned char)text[i];
    bool whole = c < 0x80 || len - i >= (c < 0xe0   ? 2
                                         : c < 0xf0 ? 3
                                                    : 4); /* a name that a host gives may end within a character */
    bytes = whole ? (size_t)utf8_decode(text + i, &c) : 1;
    bool control = is_control(c);
    if (!control && c != '"' && c != '\\' && c != '{' && c != '}') continue;
    text_add(t, text + start, i - start);
    start = i + bytes;
    if (c == '\n')
      text_add(t, "\\n", 2);
    else if (c == '\t')
      text_add(t, "\\t", 2);
    else if (control)
      text_addf(t, "\\u{%x}", (unsigned)c);
    else
      text_addf(t, "\\%c", (int)c);
  }
  text_add(t, text + start, len - start);
  text_add(t, "\"", 1);
}

bool text_good(text_buf *t) {
  if (t->failed) raise_memory(t->vm);
  return !t->failed;
}

qn_value text_take(text_buf *t) {
  qn_vm *vm = t->vm;
  qn_value v = value_error();
  if (t->failed) {
    if (t->len > TEXT_MAX / 2)
      raise_error(vm, E_too_large, SPAN_NONE, "the text is too large; strings have at most 2**31 - 1 bytes");
    else
      raise_memory(vm);
  } else {
    v = value_new(TAG_STR, str_new(vm, t->text ? t->text : "", t->len));
  }
  text_free(t);
  return v;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  c |= 32;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool int_parse(const char *text, size_t len, int64_t *out) {
  const char *s = text, *end = text + len;
  bool negative = s < end && *s == '-';
  if (s < end && (*s == '-' || *s == '+')) s++;
  unsigned base = 10;
  if (end - s > 2 && s[0] == '0' && (s[1] | 32) == 'x') {
    base = 16;
    s += 2;
  }
  uint64_t value = 0;
  bool digit_before = false;
  for (; s < end; s++) {
    if (*s == '_' && digit_before) {
      digit_before = false;
      continue;
    }
    int d = hex_digit(*s);
    if (d < 0 || (unsigned)d >= base) return false;
    if (__builtin_mul_overflow(value, (uint64_t)base, &value) || __builtin_add_overflow(value, (uint64_t)d, &value))
      return false;
    digit_before = true;
  }
  if (!digit_before || value > (uint64_t)INT64_MAX + negative) return false;
  *out = (int64_t)(negative ? -value : value);
  return true;
}
