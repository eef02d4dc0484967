/* Builtins on texts. Positions and widths count code points. Case mapping covers Latin, Greek and Cyrillic letters with a
 * one-to-one counterpart; other characters stay as they are. */
#include <string.h>

#include "stdlib/builtins.h"

static bool push_text(qn_vm *vm, qn_value list, const char *text, size_t len) {
  if (vm_poll_item(vm, value_list(list)->len)) return false;
  qn_value s = new_str(vm, text, len);
  return !value_is_error(s) && list_push(vm, value_list(list), s);
}

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'; }

/* ---- taking apart and joining ---------------------------------------------------------------------------------------- */

static qn_value split_text(qn_vm *vm, const qn_str *s, qn_value by) {
  const char *p = s->text, *end = p + s->len;
  qn_value out = list_value(list_new(vm, 0));
  if (value_is_error(out)) return out;
  bool good = true;
  if (value_is(by, TAG_NIL)) {
    while (good) {
      while (p < end && blank(*p)) p++;
      if (p == end) break;
      const char *word = p;
      while (p < end && !blank(*p)) p++;
      good = push_text(vm, out, word, (size_t)(p - word));
    }
  } else {
    qn_str *separator = NULL;
    good = arg_str(vm, "split", "a text as separator", by, &separator);
    if (good && separator->len == 0)
      good = raise_false(vm, E_argument, "split: the separator is empty; chars(text) gives the characters");
    while (good) {
      const char *q;
      good = text_search(vm, p, (size_t)(end - p), separator->text, separator->len, &q) &&
             push_text(vm, out, p, (size_t)((q ? q : end) - p));
      if (!good || !q) break;
      p = q + separator->len;
    }
  }
  return good ? out : value_fail(vm, out);
}

qn_value builtin_split(qn_vm *vm, const qn_value *args) {
  if (value_is(args[0], TAG_STR)) return split_text(vm, value_str(args[0]), args[1]);
  if (!is_array(args[0])) return arg_refuse(vm, "split", "a text or a random key", args[0]);
  const qn_array *a = value_array(args[0]);
  if (a->dtype != DTYPE_INDEX || a->rank != 1 || a->shape[0] != 2)
    return raise_error(vm, E_type, SPAN_NONE, "split: takes a text or a random key, i64[2]; chunk(x, n) cuts arrays");
  int64_t n = 2;
  if (!value_is(args[1], TAG_NIL) && !arg_int(vm, "split", "a number of keys", args[1], &n)) return value_error();
  return random_split(vm, args[0], n);
}

qn_value builtin_lines(qn_vm *vm, const qn_value *args) {
  qn_str *s;
  if (!arg_str(vm, "lines", "a text", args[0], &s)) return value_error();
  qn_value out = list_value(list_new(vm, 0));
  const char *p = s->text, *end = p + s->len;
  while (p < end && !value_is_error(out)) {
    const char *q = memchr(p, '\n', (size_t)(end - p));
    const char *stop = q ? q : end;
    size_t len = (size_t)(stop - p);
    if (len && p[len - 1] == '\r') len--;
    if (!push_text(vm, out, p, len)) return value_fail(vm, out);
    p = q ? q + 1 : end;
  }
  return out;
}

qn_value builtin_chars(qn_vm *vm, const qn_value *args) {
  qn_str *s;
  if (!arg_str(vm, "chars", "a text", args[0], &s)) return value_error();
  return builtin_list(vm, args);
}

qn_value builtin_join(qn_vm *vm, const qn_value *args) {
  qn_str *separator;
  if (value_is(args[0], TAG_STR) && value_is(args[1], TAG_LIST))
    return raise_error(vm, E_type, SPAN_NONE, "join: the list comes first: join(list, separator)");
  if (!value_is(args[0], TAG_LIST)) return arg_refuse(vm, "join", "a list of texts", args[0]);
  if (!arg_str(vm, "join", "a text as separator", args[1], &separator)) return value_error();
  const qn_list *l = value_list(args[0]);
  text_buf t = {.vm = vm};
  for (uint32_t i = 0; i < l->len; i++) {
    if (!value_is(l->items[i], TAG_STR)) {
      text_free(&t);
      return arg_refuse(vm, "join", "texts in the list (str(x) makes one)", l->items[i]);
    }
    if (vm_poll_item(vm, i)) return text_fail(&t);
    if (i) text_add(&t, separator->text, separator->len);
    text_add(&t, value_str(l->items[i])->text, value_str(l->items[i])->len);
  }
  return text_take(&t);
}

/* ---- changing --------------------------------------------------------------------------------------------------------- */

/* Is the code point at `p` one of those in `set`? */
static bool one_of(const char *p, const qn_str *set) {
  uint32_t code, other;
  utf8_decode(p, &code);
  for (uint32_t i = 0; i < set->len;) {
    i += (uint32_t)utf8_decode(set->text + i, &other);
    if (other == code) return true;
  }
  return false;
}

qn_value builtin_trim(qn_vm *vm, const qn_value *args) {
  qn_str *s, *set = NULL;
  if (!arg_str(vm, "trim", "a text", args[0], &s)) return value_error();
  if (!value_is(args[1], TAG_NIL) && !arg_str(vm, "trim", "a text of characters", args[1], &set)) return value_error();
  const char *p = s->text, *end = p + s->len;
  uint32_t code;
  int64_t n = 0;
  while (p < end && (set ? one_of(p, set) : blank(*p))) {
    if (vm_poll_item(vm, n++)) return value_error();
    p += utf8_decode(p, &code);
  }
  while (end > p) {
    if (vm_poll_item(vm, n++)) return value_error();
    const char *last = end - 1;
    while (last > p && (*last & 0xc0) == 0x80) last--;
    if (!(set ? one_of(last, set) : blank(*last))) break;
    end = last;
  }
  return new_str(vm, p, (size_t)(end - p));
}

qn_value builtin_replace(qn_vm *vm, const qn_value *args) {
  qn_str *s, *old, *new;
  if (!arg_str(vm, "replace", "a text", args[0], &s) || !arg_str(vm, "replace", "a text to look for", args[1], &old) ||
      !arg_str(vm, "replace", "a text to put there", args[2], &new))
    return value_error();
  if (old->len == 0) return raise_error(vm, E_argument, SPAN_NONE, "replace: the text to look for is empty");
  text_buf t = {.vm = vm};
  const char *p = s->text, *end = p + s->len;
  int64_t found = 0;
  for (const char *q;; p = q + old->len) {
    if (!text_search(vm, p, (size_t)(end - p), old->text, old->len, &q) || (q && vm_poll_item(vm, found++)))
      return text_fail(&t);
    if (!q) break;
    text_add(&t, p, (size_t)(q - p));
    text_add(&t, new->text, new->len);
  }
  text_add(&t, p, (size_t)(end - p));
  return text_take(&t);
}

/* Blocks in which upper and lower case alternate: even (or odd) code points are upper case. */
static bool alternating(uint32_t c, bool *odd_upper) {
  *odd_upper = (c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e);
  if (*odd_upper) return true;
  return (c >= 0x100 && c <= 0x137 && c != 0x130 && c != 0x131) || (c >= 0x14a && c <= 0x177) ||
         (c >= 0x460 && c <= 0x481) || (c >= 0x48a && c <= 0x4bf) || (c >= 0x4d0 && c <= 0x52f) ||
         (c >= 0x1e00 && c <= 0x1e95) || (c >= 0x1ea0 && c <= 0x1eff);
}

static uint32_t to_upper(uint32_t c) {
  bool odd;
  if (c >= 'a' && c <= 'z') return c - 32;
  if (c < 0x80) return c;
  if ((c >= 0xe0 && c <= 0xfe && c != 0xf7) || (c >= 0x3b1 && c <= 0x3cb && c != 0x3c2) || (c >= 0x430 && c <= 0x44f))
    return c - 32;
  if (c >= 0x450 && c <= 0x45f) return c - 80;
  if (c == 0xff) return 0x178;
  if (c == 0x3ac) return 0x386;
  if (c >= 0x3ad && c <= 0x3af) return c - 37;
  if (c == 0x3c2) return 0x3a3;
  if (alternating(c, &odd) && (c & 1) != odd) return c - 1;
  return c;
}

static uint32_t to_lower(uint32_t c) {
  bool odd;
  if (c >= 'A' && c <= 'Z') return c + 32;
  if (c < 0x80) return c;
  if ((c >= 0xc0 && c <= 0xde && c != 0xd7) || (c >= 0x391 && c <= 0x3ab && c != 0x3a2) || (c >= 0x410 && c <= 0x42f))
    return c + 32;
  if (c >= 0x400 && c <= 0x40f) return c + 80;
  if (c == 0x178) return 0xff;
  if (c == 0x386) return 0x3ac;
  if (c >= 0x388 && c <= 0x38a) return c + 37;
  if (alternating(c, &odd) && (c & 1) == odd) return c + 1;
  return c;
}

static qn_value mapped(qn_vm *vm, const char *fn, qn_value v, uint32_t (*map)(uint32_t)) {
  qn_str *s;
  if (!arg_str(vm, fn, "a text", v, &s)) return value_error();
  text_buf t = {.vm = vm};
  int64_t n = 0;
  for (uint32_t i = 0; i < s->len && !t.failed;) {
    uint32_t code;
    char bytes[4];
    if (vm_poll_item(vm, n++)) return text_fail(&t);
    i += (uint32_t)utf8_decode(s->text + i, &code);
    text_add(&t, bytes, (size_t)utf8_encode(map(code), bytes));
  }
  return text_take(&t);
}

qn_value builtin_upper(qn_vm *vm, const qn_value *args) { return mapped(vm, "upper", args[0], to_upper); }
qn_value builtin_lower(qn_vm *vm, const qn_value *args) { return mapped(vm, "lower", args[0], to_lower); }

static qn_value padded(qn_vm *vm, const char *fn, const qn_value *args, bool left) {
  qn_str *s, *fill;
  int64_t width;
  if (!arg_str(vm, fn, "a text", args[0], &s) || !arg_int(vm, fn, "an int as width", args[1], &width) ||
      !arg_str(vm, fn, "a character as fill", args[2], &fill))
    return value_error();
  if (str_length(fill) != 1) return raise_error(vm, E_argument, SPAN_NONE, "%s: fill is one character", fn);
  int64_t missing = width < 0 ? 0 : width - str_length(s);
  if (missing > TEXT_MAX) return raise_error(vm, E_too_large, SPAN_NONE, "%s: a text has at most 2**31 bytes", fn);
  text_buf t = {.vm = vm};
  if (!left) text_add(&t, s->text, s->len);
  for (int64_t i = 0; i < missing && !t.failed; i++) {
    if (vm_poll_item(vm, i)) return text_fail(&t);
    text_add(&t, fill->text, fill->len);
  }
  if (left) text_add(&t, s->text, s->len);
  return text_take(&t);
}

qn_value builtin_pad_left(qn_vm *vm, const qn_value *args) { return padded(vm, "pad_left", args, true); }
qn_value builtin_pad_right(qn_vm *vm, const qn_value *args) { return padded(vm, "pad_right", args, false); }

/* ---- questions and characters ----------------------------------------------------------------------------------------------- */

qn_value builtin_starts_with(qn_vm *vm, const qn_value *args) {
  qn_str *s, *part;
  if (!arg_str(vm, "starts_with", "a text", args[0], &s) || !arg_str(vm, "starts_with", "a text", args[1], &part))
    return value_error();
  return value_bool(part->len <= s->len && memcmp(s->text, part->text, part->len) == 0);
}

qn_value builtin_ends_with(qn_vm *vm, const qn_value *args) {
  qn_str *s, *part;
  if (!arg_str(vm, "ends_with", "a text", args[0], &s) || !arg_str(vm, "ends_with", "a text", args[1], &part))
    return value_error();
  return value_bool(part->len <= s->len && memcmp(s->text + s->len - part->len, part->text, part->len) == 0);
}

qn_value builtin_ord(qn_vm *vm, const qn_value *args) {
  qn_str *s;
  if (!arg_str(vm, "ord", "a character", args[0], &s)) return value_error();
  if (str_length(s) != 1)
    return raise_error(vm, E_argument, SPAN_NONE, "ord: takes one character, not %lld", (long long)str_length(s));
  uint32_t code;
  utf8_decode(s->text, &code);
  return value_int(code);
}

qn_value builtin_chr(qn_vm *vm, const qn_value *args) {
  int64_t code;
  if (!arg_int(vm, "chr", "a code point", args[0], &code)) return value_error();
  if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
    return raise_error(vm, E_argument, SPAN_NONE, "chr: %lld is no code point", (long long)code);
  char bytes[4];
  return new_str(vm, bytes, (size_t)utf8_encode((uint32_t)code, bytes));
}
