/* Signatures of builtins, parsed from their text: `name(a, @b, ~c, ..rest, *, d = 1.5)`.
 *
 *   signature  name "(" [item {"," item}] ")"
 *   item       "*" | [".." | "@"] ["~"] name ["=" literal]
 *   literal    nil true false inf nan number "text" () or a dtype's name
 *
 * What follows a rest parameter is keyword-only, too. A signature that does not parse is a defect of the table: E802.
 */
#include "lang/builtin.h"

#include <string.h>

#include "lang/internal.h"

typedef struct sig_reader {
  qn_vm *vm;
  const char *text, *at;
} sig_reader;

static bool sig_fail(sig_reader *r, const char *what) {
  return raise_false(r->vm, E_internal, "signature %s: %s at \"%s\"", r->text, what, r->at);
}

static void skip_blanks(sig_reader *r) { r->at += strspn(r->at, " \t\n"); }

static bool accept(sig_reader *r, const char *token) {
  skip_blanks(r);
  size_t n = strlen(token);
  if (strncmp(r->at, token, n) != 0) return false;
  r->at += n;
  return true;
}

static size_t word_length(const char *s) {
  size_t n = 0;
  while ((s[n] | 32) == '_' || ((s[n] | 32) >= 'a' && (s[n] | 32) <= 'z') || (n && s[n] >= '0' && s[n] <= '9') ||
         s[n] == '_')
    n++;
  return n;
}

static qn_str *read_name(sig_reader *r) {
  skip_blanks(r);
  size_t n = word_length(r->at);
  if (!n) {
    sig_fail(r, "a name is expected");
    return NULL;
  }
  qn_str *s = str_intern(r->vm, r->at, n);
  if (s) r->at += n;
  return s;
}

/* The value of a literal that is a word (nil, true, a dtype); unset if the word is none. */
static qn_value word_value(const char *word, size_t n) {
  static const struct {
    const char *word;
    qn_value value;
  } words[] = {{"nil", {TAG_NIL, {.i = 0}}},
               {"true", {TAG_BOOL, {.i = 1}}},
               {"false", {TAG_BOOL, {.i = 0}}},
               {"inf", {TAG_FLOAT, {.f = __builtin_inf()}}},
               {"nan", {TAG_FLOAT, {.f = __builtin_nan("")}}}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strlen(words[i].word) == n && memcmp(words[i].word, word, n) == 0) return words[i].value;
  qn_dtype d = dtype_find(word, n);
  return d == QN_DTYPE_COUNT ? value_unset() : value_dtype(d);
}

static bool read_literal(sig_reader *r, qn_value *out) {
  skip_blanks(r);
  const char *s = r->at;
  if (*s == '"') {
    const char *end = strchr(s + 1, '"');
    if (!end) return sig_fail(r, "a text is not closed");
    qn_str *str = str_intern(r->vm, s + 1, (size_t)(end - s - 1));
    if (!str) return false;
    *out = value_obj(TAG_STR, str);
    r->at = end + 1;
    return true;
  }
  if (s[0] == '(' && s[1] == ')') {
    qn_list *l = list_new(r->vm, 0);
    if (!l) return false;
    *out = value_obj(TAG_LIST, l);
    r->at = s + 2;
    return true;
  }
  size_t n = strcspn(s, ",) ");
  *out = word_value(s, n);
  if (value_is(*out, TAG_UNSET)) {
    int64_t i;
    double f;
    if (int_parse(s, n, &i))
      *out = value_int(i);
    else if (float_parse(s, n, &f))
      *out = value_float(f);
    else
      return sig_fail(r, "not a literal");
  }
  r->at = s + n;
  return true;
}

/* Reads one parameter into `p`, whose members are owned from then on, also on failure. */
static bool read_param(sig_reader *r, param_def *p) {
  *p = (param_def){.def = value_unset()};
  p->rest = accept(r, "..");
  p->move = !p->rest && accept(r, "@");
  p->stacks = accept(r, "&");
  p->counted = p->stacks && accept(r, "&");
  p->data = p->stacks || accept(r, "^");
  p->sized = p->data || accept(r, "%");
  p->data = p->data || accept(r, "~");
  p->name = read_name(r);
  if (!p->name) return false;
  return !accept(r, "=") || read_literal(r, &p->def);
}

static bool add_param(sig_reader *r, signature *out, uint32_t *cap, bool keyword_only) {
  if (!mem_grow(r->vm, (void **)&out->params, cap, (size_t)out->nparams + 1, sizeof *out->params)) return false;
  param_def *p = &out->params[out->nparams++];
  if (!read_param(r, p)) return false;
  p->keyword_only = keyword_only && !p->rest;
  for (int i = 0; i + 1 < out->nparams; i++)
    if (out->params[i].name == p->name) return sig_fail(r, "a parameter is named twice before");
  return true;
}

static bool read_params(sig_reader *r, signature *out, uint32_t *cap) {
  qn_str *name = read_name(r);
  if (!name) return false;
  value_release(r->vm, value_obj(TAG_STR, name));
  if (!accept(r, "(")) return sig_fail(r, "( is expected");
  if (accept(r, ")")) return true;
  bool keyword_only = false;
  for (;;) {
    if (accept(r, "*")) {
      if (keyword_only) return sig_fail(r, "* twice, or behind a rest parameter,");
      keyword_only = true;
    } else {
      if (!add_param(r, out, cap, keyword_only)) return false;
      if (out->params[out->nparams - 1].rest) {
        if (keyword_only) return sig_fail(r, "a rest parameter behind * or another one");
        keyword_only = true;
      }
    }
    if (accept(r, ")")) return true;
    if (!accept(r, ",")) return sig_fail(r, ", or ) is expected");
  }
}

bool signature_parse(qn_vm *vm, const char *text, signature *out) {
  *out = (signature){0};
  sig_reader r = {vm, text, text};
  uint32_t cap = 0;
  bool ok = read_params(&r, out, &cap);
  skip_blanks(&r);
  if (ok && *r.at) ok = sig_fail(&r, "text behind the signature");
  /* The block is cut to the number of parameters, from which signature_free computes its size. */
  size_t size = sizeof *out->params;
  if (ok && out->nparams) {
    param_def *params = mem_realloc(vm, out->params, cap * size, (size_t)out->nparams * size);
    if (params) {
      out->params = params;
      return true;
    }
    ok = false;
  }
  if (ok) return true;
  for (int i = 0; i < out->nparams; i++) {
    if (out->params[i].name) value_release(vm, value_obj(TAG_STR, out->params[i].name));
    value_release(vm, out->params[i].def);
  }
  mem_free(vm, out->params, cap * size);
  *out = (signature){0};
  return false;
}

void signature_free(qn_vm *vm, signature *s) {
  for (int i = 0; i < s->nparams; i++) {
    value_release(vm, value_obj(TAG_STR, s->params[i].name));
    value_release(vm, s->params[i].def);
  }
  mem_free(vm, s->params, (size_t)s->nparams * sizeof *s->params);
  *s = (signature){0};
}
