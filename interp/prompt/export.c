/* `quern export FILE:NAME -o OUT.qnx [ARG...]`: a function of a script as one graph in a file.
 *
 * The file has run as a script does; NAME is looked up among its globals, its parameters get values, the call is recorded
 * (jit_export), and the builtin `save` writes what came of it. Values of parameters come from, in this order:
 *
 *   an ARG         an expression, evaluated where the file's globals are visible: `x=randn(8, 2)` for the parameter x, without a name
 *                  for the next one that has none
 *   its default    which stays one in the file: a call may leave it out
 *   its signature  where all sizes are known: numbers, sizes that other arguments have, expressions of these, or ARGs like `b=8`
 *
 * Values only tell what a call looks like: those from signatures are zeros. What is still missing is listed with a command line that
 * has an example of each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interp/prompt/cli.h"
#include "interp/signature.h"

/* ---- the command line ---------------------------------------------------------------------------------------------------- */

static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Length of the name that the text begins with. */
static size_t name_length(const char *s) {
  size_t n = 0;
  if (is_letter(*s))
    while (is_letter(s[n]) || is_digit(s[n])) n++;
  return n;
}

static bool is_path(const char *s) {
  for (;; s++) {
    size_t n = name_length(s);
    if (!n) return false;
    s += n;
    if (*s != '.') return !*s;
  }
}

static const char needs[] =
    "export needs a file, a function in it and a file to write: quern export model.qn:f -o f.qnx%s";

int export_parse(char **argv, int argc, export_line *line) {
  *line = (export_line){0};
  bool options = true;
  int kept = 0;
  for (int i = 0; i < argc; i++) {
    char *a = argv[i];
    if (options && strcmp(a, "--") == 0) {
      options = false;
    } else if (options && (strcmp(a, "-o") == 0 || strcmp(a, "--out") == 0)) {
      if (i + 1 == argc) return cli_misuse("export: %s needs a file to write", a);
      line->out = argv[++i];
    } else if (options && strncmp(a, "--out=", 6) == 0) {
      line->out = a + 6;
    } else if (options && a[0] == '-' && (is_letter(a[1]) || a[1] == '-')) {
      return cli_misuse("export has no option '%s'; other options stand before export", a);
    } else {
      argv[kept++] = a;
    }
  }
  if (!kept || !line->out) return cli_misuse(needs, "");
  line->target = argv[0];
  line->args = argv + 1;
  line->nargs = kept - 1;
  const char *colon = strrchr(line->target, ':');
  if (!colon || colon == line->target || !is_path(colon + 1))
    return cli_misuse("export: '%s' names no function in a file; it is written model.qn:f, or model.qn:module.f",
                      line->target);
  size_t n = strlen(line->out);
  if (n < 5 || strcmp(line->out + n - 4, ".qnx") != 0)
    return cli_misuse("export writes files whose names end in .qnx, not '%s'", line->out);
  line->name = colon + 1;
  line->file = strndup(line->target, (size_t)(colon - line->target));
  return line->file ? EXIT_FINE : cli_misuse("%s", "out of memory");
}

/* ---- what is exported --------------------------------------------------------------------------------------------------------- */

/* An export in progress. The frame lies on the value stack: the function that has the signature, then its slots, which are parameters
 * and sizes, as in a call. */
typedef struct export {
  qn_vm *vm;
  const export_line *line;
  qn_value fn;         /* owned */
  const fn_code *code; /* of what takes the arguments; NULL: no function of the program */
  qn_value *fp;        /* its frame */
  qn_list *rest;       /* further arguments; owned */
  bool shaped;         /* some argument was made from its signature */
  text_buf missing;    /* a line for each parameter without a value */
  text_buf hint;       /* words for the command line */
}
export;

/* The value of NAME, owned, or the error value. */
static qn_value find(qn_vm *vm, const char *name) {
  char *copy = strdup(name);
  if (!copy) return raise_memory(vm);
  char *next = strchr(copy, '.');
  if (next) *next++ = 0;
  qn_value v = interp_get_global(vm, copy);
  while (next && !value_is_error(v)) {
    char *field = next;
    next = strchr(field, '.');
    if (next) *next++ = 0;
    qn_str *s = str_intern(vm, field, strlen(field));
    qn_value inner = s ? field_of(vm, v, s, SPAN_NONE, NULL) : value_error();
    if (s) value_release(vm, value_obj(TAG_STR, s));
    value_release(vm, v);
    v = inner;
  }
  free(copy);
  return v;
}

/* The code of the function that says what the arguments are called and what shapes they have: f itself, or what a transform was made of. */
static const fn_code *code_of(qn_value fn) {
  const qn_fn *f = value_fn(fn);
  while (f->head.flags == FN_TRANSFORM && ((const transform_def *)f->code)->kind != TRANSFORM_JVP)
    f = value_fn(f->captures[0]);
  return f->head.flags == FN_USER ? f->code : NULL;
}

/* Are the shapes of the arguments those in the signature? Not under vmap, where arguments have an axis more: then only ARGs can give them. */
static bool shapes_count(qn_value fn) {
  for (const qn_fn *f = value_fn(fn); f->head.flags == FN_TRANSFORM; f = value_fn(f->captures[0]))
    if (((const transform_def *)f->code)->kind == TRANSFORM_VMAP) return false;
  return true;
}

static qn_value *dim_slot(const export *x, const char *name, size_t len) {
  for (uint32_t i = 0; x->code && i < x->code->ndims; i++) {
    const qn_str *s = x->code->dims[i].name;
    if (s->len == len && memcmp(s->text, name, len) == 0) return &x->fp[x->code->dims[i].slot];
  }
  return NULL;
}

/* The number of the parameter of this name, or -1. */
static int param_number(const export *x, const char *name, size_t len) {
  for (uint32_t i = 0; x->code && i < x->code->nparams; i++) {
    const qn_str *s = x->code->params[i].name;
    if (s->len == len && memcmp(s->text, name, len) == 0) return (int)i;
  }
  return -1;
}

static bool is_rest(const export *x, uint32_t i) { return x->code->rest && i + 1 == x->code->nparams; }

/* ---- arguments from the command line -------------------------------------------------------------------------------------------------- */

static qn_value evaluate(export *x, const char *what, const char *text) {
  char label[64];
  snprintf(label, sizeof label, "<%s>", what);
  size_t len = strlen(text);
  if (!utf8_valid(text, len)) return raise_error(x->vm, E_text, SPAN_NONE, "%s is not UTF-8", what);
  return interp_eval(x->vm, label, text, len, false, NULL);
}

static int fail_name(const export *x, const char *name, size_t len) {
  fprintf(stderr, "quern: export: %s has no parameter and no size called '%.*s'", x->line->name, (int)len, name);
  for (uint32_t i = 0; x->code && i < x->code->nparams; i++)
    fprintf(stderr, "%s%s", i ? ", " : "; parameters: ", x->code->params[i].name->text);
  for (uint32_t i = 0; x->code && i < x->code->ndims; i++)
    fprintf(stderr, "%s%s", i ? ", " : "; sizes: ", x->code->dims[i].name->text);
  fprintf(stderr, "\n");
  return EXIT_MISUSE;
}

static int read_size(export *x, qn_value *slot, const char *arg, const char *text) {
  if (slot->head != TAG_UNSET) return cli_misuse("export: '%s': this size has a value already", arg);
  qn_value v = evaluate(x, "size", text);
  if (value_is_error(v)) return EXIT_SCRIPT;
  bool good = value_is(v, TAG_INT) && v.u.i >= 0;
  if (good) *slot = v;
  value_release(x->vm, v);
  return good ? EXIT_FINE : cli_misuse("export: '%s': a size is an int and not negative", arg);
}

static int read_value(export *x, int param, const char *arg, const char *text) {
  if (param >= 0 && x->fp[param].head != TAG_UNSET)
    return cli_misuse("export: '%s': this parameter has a value already", arg);
  char what[48];
  snprintf(what, sizeof what, "argument %.30s", param >= 0 ? x->code->params[param].name->text : "");
  qn_value v = evaluate(x, what, text);
  if (value_is_error(v)) return EXIT_SCRIPT;
  if (param < 0) return list_push(x->vm, x->rest, v) ? EXIT_FINE : EXIT_SCRIPT;
  x->fp[param] = v;
  return EXIT_FINE;
}

static int read_args(export *x) {
  uint32_t fixed = x->code ? x->code->nparams - x->code->rest : 0;
  for (int pass = 0; pass < 2; pass++) { /* ARGs with names first; the others then take the parameters that are left */
    uint32_t next = 0;
    for (int i = 0; i < x->line->nargs; i++) {
      const char *arg = x->line->args[i];
      size_t n = name_length(arg);
      bool named = n && arg[n] == '=' && arg[n + 1] != '=';
      if (named != (pass == 0)) continue;
      int param = named ? param_number(x, arg, n) : -1, status;
      qn_value *slot = named && param < 0 ? dim_slot(x, arg, n) : NULL;
      if (named && !slot && (param < 0 || is_rest(x, (uint32_t)param))) return fail_name(x, arg, n);
      while (!named && next < fixed && x->fp[next].head != TAG_UNSET) next++;
      if (!named && next < fixed) param = (int)next++;
      if (!named && param < 0 && x->code && !x->code->rest)
        return cli_misuse("export: '%s' is one argument more than the function has parameters", arg);
      status = slot ? read_size(x, slot, arg, arg + n + 1) : read_value(x, param, arg, named ? arg + n + 1 : arg);
      if (status != EXIT_FINE) return status;
    }
  }
  return EXIT_FINE;
}

/* ---- arguments from signatures ------------------------------------------------------------------------------------------------------------ */

/* Notes the sizes that a value gives to the names in its signature. If it does not fit, the call will say so. */
static void learn(export *x, const type_sig *sig, qn_value v) {
  if (sig->kind == SIG_LIST && value_is(v, TAG_LIST))
    for (uint32_t i = 0; i < sig->n && i < value_list(v)->len; i++) learn(x, sig->items[i], value_list(v)->items[i]);
  if (sig->kind == SIG_RECORD && value_is(v, TAG_RECORD))
    for (uint32_t i = 0; i < sig->n; i++) {
      int k = record_find(value_record(v), sig->fields[i]);
      if (k >= 0) learn(x, sig->items[i], value_record(v)->items[k]);
    }
  if (sig->kind != SIG_ARRAY || !value_is(v, TAG_ARRAY)) return;
  const qn_array *a = value_array(v);
  int rest = -1, n = (int)sig->n;
  for (int i = 0; i < n; i++)
    if (sig->dims[i].kind == DIM_REST) rest = i;
  if (rest < 0 ? a->rank != n : a->rank < n - 1) return;
  for (int i = 0; i < n; i++) {
    int axis = rest >= 0 && i > rest ? a->rank - n + i : i;
    if (sig->dims[i].kind == DIM_NAME && x->fp[sig->dims[i].slot].head == TAG_UNSET)
      x->fp[sig->dims[i].slot] = value_int(a->shape[axis]);
  }
}

/* The size that a signature gives for an axis. -1 if it is not known, -2 with an error raised. */
static int64_t size_of(export *x, const sig_dim *d) {
  int64_t n = -1;
  switch ((dim_kind)d->kind) {
  case DIM_SIZE: return d->size;
  case DIM_NAME:
  case DIM_PARAM: return value_is(x->fp[d->slot], TAG_INT) ? x->fp[d->slot].u.i : -1;
  case DIM_EXPR: {
    qn_value *mark = x->vm->sp;
    if (!vm_enter(x->vm, x->code->nslots + (size_t)1)) return -2;
    *x->vm->sp++ = value_retain(x->fp[-1]);
    for (uint32_t i = 0; i < x->code->nslots; i++) /* some of its names may not be known */
      *x->vm->sp++ = x->fp[i].head == TAG_UNSET ? value_nil() : value_retain(x->fp[i]);
    qn_value v = eval(x->vm, d->expr, mark + 1);
    vm_pop_to(x->vm, mark);
    if (value_stops(v)) {
      if (!error_catchable(x->vm)) return -2;
      error_clear(x->vm);
      return -1;
    }
    if (value_is(v, TAG_INT)) n = v.u.i;
    value_release(x->vm, v);
    return n;
  }
  default: return -1;
  }
}

static bool has_size(export *x, const sig_dim *d) { return size_of(x, d) >= 0; }
static bool has_name(export *x, const sig_dim *d) { return (void)x, d->kind != DIM_ANY && d->kind != DIM_REST; }

/* Is the signature enough to make an argument, provided that `asked` is true of all its sizes? With has_size it is enough as it is. With
 * has_name it would be enough if the sizes that have names were known, so the user is asked for these. */
static bool says_all(export *x, const type_sig *sig, bool (*asked)(export *, const sig_dim *)) {
  bool all = true;
  switch ((sig_kind)sig->kind) {
  case SIG_ANY:
  case SIG_NUMBER:
  case SIG_NUMBERS:
  case SIG_TREE:
  case SIG_INTS:
  case SIG_DTYPE: return false;
  case SIG_HOST: return sig->tag == TAG_FLOAT;
  case SIG_ARRAY:
    for (uint32_t i = 0; i < sig->n; i++) all &= asked(x, &sig->dims[i]);
    return all;
  case SIG_LIST:
  case SIG_RECORD:
    for (uint32_t i = 0; i < sig->n; i++) all &= says_all(x, sig->items[i], asked);
    return all;
  }
  return false;
}

/* A value that fits the signature, whose sizes are known: zeros. Owned, or the error value. */
static qn_value make_value(export *x, const type_sig *sig) {
  qn_vm *vm = x->vm;
  if (sig->kind == SIG_HOST) return value_float(1);
  if (sig->kind == SIG_ARRAY) {
    int64_t shape[ARRAY_MAX_RANK];
    if (sig->n > ARRAY_MAX_RANK)
      return raise_error(vm, E_rank, SPAN_NONE, "arrays have at most %d axes", ARRAY_MAX_RANK);
    for (uint32_t i = 0; i < sig->n; i++) shape[i] = size_of(x, &sig->dims[i]);
    qn_array *a = array_new(vm, sig->dtype < 0 ? DTYPE_FLOAT : (qn_dtype)sig->dtype, (int)sig->n, shape);
    if (!a) return value_error();
    memset(array_data(a), 0, (size_t)a->size * dtype_size((qn_dtype)a->dtype));
    a = array_settle(vm, a);
    return a ? value_obj(TAG_ARRAY, a) : value_error();
  }
  bool list = sig->kind == SIG_LIST, ok = true;
  qn_value v = value_error();
  if (list) {
    qn_list *l = list_new(vm, sig->n);
    if (l) v = value_obj(TAG_LIST, l);
  } else {
    qn_record *r = record_new(vm);
    if (r) v = value_obj(TAG_RECORD, r);
  }
  for (uint32_t i = 0; i < sig->n && ok && !value_is_error(v); i++) {
    qn_value item = make_value(x, sig->items[i]);
    ok = !value_is_error(item);
    if (ok && list)
      value_list(v)->items[i] = item;
    else if (ok)
      ok = record_set(vm, value_record(v), sig->fields[i], item);
  }
  if (ok || value_is_error(v)) return v;
  value_release(vm, v);
  return value_error();
}

/* ---- what is missing --------------------------------------------------------------------------------------------------------------------- */

/* Appends a word of a command line, quoted if a shell needs that. */
static void text_word(text_buf *t, const char *s) {
  bool plain = *s != 0;
  for (const char *c = s; *c; c++) plain &= is_letter(*c) || is_digit(*c) || strchr("=./:-+,%@", *c) != NULL;
  if (plain) {
    text_adds(t, s);
    return;
  }
  text_adds(t, "'");
  for (; *s; s++)
    if (*s == '\'')
      text_adds(t, "'\\''");
    else
      text_add(t, s, 1);
  text_adds(t, "'");
}

enum { SOME_SIZE = 8 };

/* Appends an expression whose value fits the signature. */
static void text_example(export *x, const type_sig *sig, text_buf *t) {
  static const char *const hosts[] = {[TAG_INT] = "8", [TAG_FLOAT] = "1.0", [TAG_BOOL] = "true", [TAG_DTYPE] = "f32"};
  bool dtyped = sig && sig->dtype >= 0 && sig->dtype != DTYPE_FLOAT;
  switch (sig ? (sig_kind)sig->kind : SIG_DTYPE) {
  case SIG_ANY:
  case SIG_NUMBER:
  case SIG_NUMBERS:
  case SIG_TREE:
  case SIG_DTYPE:
    text_adds(t, "zeros(8, 8");
    if (dtyped) text_addf(t, ", dtype: %s", dtype_rows[sig->dtype].name);
    text_adds(t, ")");
    break;
  case SIG_INTS: text_adds(t, "0"); break;
  case SIG_HOST:
    text_adds(t, sig->tag == TAG_STR                                          ? "\"text\""
                 : sig->tag == TAG_LIST                                       ? "(zeros(8, 8), zeros(8))"
                 : sig->tag == TAG_RECORD                                     ? "{w: zeros(8, 8), b: zeros(8)}"
                 : sig->tag == TAG_FN                                         ? "fn(x) x"
                 : sig->tag < sizeof hosts / sizeof *hosts && hosts[sig->tag] ? hosts[sig->tag]
                                                                              : "nil");
    break;
  case SIG_ARRAY: {
    uint32_t some = !shapes_count(x->fn); /* room for the axis of lanes, which mostly is the first */
    text_adds(t, !sig->n && !some ? "f32(0" : some ? "zeros(8" : "zeros(");
    for (uint32_t i = 0; i < sig->n; i++) {
      int64_t n = size_of(x, &sig->dims[i]);
      if (sig->dims[i].kind == DIM_REST) continue;
      text_addf(t, some++ ? ", %lld" : "%lld", (long long)(n >= 0 ? n : SOME_SIZE));
    }
    if (dtyped && some) text_addf(t, ", dtype: %s", dtype_rows[sig->dtype].name);
    text_adds(t, ")");
    break;
  }
  case SIG_LIST:
  case SIG_RECORD:
    text_adds(t, sig->kind == SIG_LIST ? "(" : "{");
    for (uint32_t i = 0; i < sig->n; i++) {
      if (i) text_adds(t, ", ");
      if (sig->kind == SIG_RECORD) text_addf(t, "%s: ", sig->fields[i]->text);
      text_example(x, sig->items[i], t);
    }
    text_adds(t, sig->kind == SIG_RECORD ? "}" : sig->n == 1 ? ",)" : ")");
  }
}

/* Adds a word to the hint, unless it has it already. */
static void add_hint(export *x, const text_buf *word) {
  char *s = word->failed || !word->text ? NULL : strndup(word->text, word->len);
  text_buf quoted = {0};
  text_adds(&quoted, " ");
  if (s) text_word(&quoted, s);
  text_add(&x->hint, "", 1); /* so that strstr can search it; taken off again below */
  if (s && !quoted.failed && !x->hint.failed) {
    x->hint.len--;
    text_add(&quoted, "", 1);
    const char *found = quoted.failed ? NULL : strstr(x->hint.text, quoted.text);
    size_t n = quoted.len - 1;
    if (!found || (found[n] && found[n] != ' ')) text_add(&x->hint, quoted.text, n);
  }
  text_free(&quoted);
  free(s);
}

static void ask_sizes(export *x, const type_sig *sig) {
  for (uint32_t i = 0; (sig->kind == SIG_LIST || sig->kind == SIG_RECORD) && i < sig->n; i++)
    ask_sizes(x, sig->items[i]);
  for (uint32_t i = 0; sig->kind == SIG_ARRAY && i < sig->n; i++) {
    const sig_dim *d = &sig->dims[i];
    if (d->kind != DIM_NAME || x->fp[d->slot].head != TAG_UNSET) continue;
    text_buf word = {0};
    text_addf(&word, "%s=%d", d->name->text, SOME_SIZE);
    add_hint(x, &word);
    text_free(&word);
  }
}

static void tell_missing(export *x, uint32_t i) {
  const fn_param *p = &x->code->params[i];
  bool shaped = p->type && shapes_count(x->fn);
  text_addf(&x->missing, "  %s", p->name->text);
  if (p->type) {
    text_adds(&x->missing, ": ");
    text_span(x->vm, &x->missing, p->type->at);
  } else {
    text_adds(&x->missing, " has no shape signature");
  }
  text_adds(&x->missing, "\n");
  if (shaped && says_all(x, p->type, has_name)) {
    ask_sizes(x, p->type);
    return;
  }
  text_buf word = {0};
  text_addf(&word, "%s=", p->name->text);
  text_example(x, p->type, &word);
  add_hint(x, &word);
  text_free(&word);
}

static int report_missing(const export *x) {
  if (!x->hint.len && !x->hint.failed && !x->missing.failed) {
    fprintf(stderr, "quern: export: with these ARGs the signature of %s asks for sizes that no array has:\n%.*s",
            x->line->name, (int)x->missing.len, x->missing.text);
    return EXIT_MISUSE;
  }
  text_buf line = {0};
  text_word(&line, x->line->target);
  text_adds(&line, " -o ");
  text_word(&line, x->line->out);
  for (int i = 0; i < x->line->nargs; i++) {
    text_adds(&line, " ");
    text_word(&line, x->line->args[i]);
  }
  if (!line.failed && !x->missing.failed && !x->hint.failed)
    fprintf(stderr,
            "quern: export: the signature of %s does not say what it is called with:\n%.*s"
            "a command line that does, with values of yours in place of these:\n  quern export %.*s%.*s\n",
            x->line->name, (int)x->missing.len, x->missing.text, (int)line.len, line.text, (int)x->hint.len,
            x->hint.text);
  text_free(&line);
  return EXIT_MISUSE;
}

/* ---- all arguments ----------------------------------------------------------------------------------------------------------------------------- */

static bool no_code(void *ctx, qn_value v) {
  (void)ctx;
  return !value_is(v, TAG_FN) && !value_is(v, TAG_MODULE);
}

/* How many parameters are passed. A default that is a function cannot be passed, so that parameter and those after it are left out unless
 * they were given. */
static uint32_t params_passed(const export *x, const uint8_t *given) {
  const fn_code *code = x->code;
  uint32_t n = code->nparams - code->rest, passed = n;
  for (uint32_t i = n; i > 0; i--) {
    if (given[i - 1]) break;
    if (!tree_each(x->vm, x->fp[i - 1], no_code, NULL)) passed = i - 1;
  }
  return passed;
}

/* Gives each parameter of a function of the program a value, or notes what is missing. */
static int fill_params(export *x, const uint8_t *given) {
  const fn_code *code = x->code;
  const qn_value *defaults = value_fn(x->fp[-1])->captures + code->ncaptures;
  uint32_t fixed = code->nparams - code->rest;
  for (uint32_t i = 0; i < fixed; i++) {
    if (!given[i] && code->params[i].initial >= 0) x->fp[i] = value_retain(defaults[code->params[i].initial]);
    if (x->fp[i].head != TAG_UNSET && code->params[i].type && shapes_count(x->fn))
      learn(x, code->params[i].type, x->fp[i]);
  }
  for (int pass = 0; pass < 2; pass++) /* twice, since an expression of sizes may use sizes of later parameters */
    for (uint32_t i = 0; i < fixed; i++) {
      const type_sig *type = code->params[i].type;
      if (x->fp[i].head != TAG_UNSET) continue;
      bool known = type && shapes_count(x->fn) && says_all(x, type, has_size);
      if (error_pending(x->vm)) return EXIT_SCRIPT;
      if (known) {
        qn_value v = make_value(x, type);
        if (value_is_error(v)) return EXIT_SCRIPT;
        x->fp[i] = v;
        x->shaped = true;
      } else if (pass) {
        tell_missing(x, i);
      }
    }
  return x->missing.len ? report_missing(x) : EXIT_FINE;
}

static qn_value record_call(export *x, const uint8_t *given) {
  qn_vm *vm = x->vm;
  const fn_code *code = x->code;
  qn_value *args = x->rest->items;
  int nargs = (int)x->rest->len, ndefaults = 0;
  qn_list *all = NULL;
  if (code) {
    uint32_t n = params_passed(x, given);
    if (error_pending(vm)) return value_error();
    if (!code->rest)
      while (ndefaults < (int)n && code->params[n - 1 - (uint32_t)ndefaults].initial >= 0) ndefaults++;
    all = list_from(vm, x->fp, n);
    for (int i = 0; all && i < nargs; i++)
      if (!list_push(vm, all, value_retain(args[i]))) {
        value_release(vm, value_obj(TAG_LIST, all));
        all = NULL;
      }
    if (!all) return value_error();
    args = all->items;
    nargs = (int)all->len;
  }
  qn_value g = value_is_graph(x->fn) && !nargs ? value_retain(x->fn) : jit_export(vm, x->fn, args, nargs, ndefaults);
  if (value_is_error(g) && x->shaped && vm->error && vm->error->id != E_no_graph)
    raise_note(vm, SPAN_NONE,
               "export made arguments of zeros from the shape signature; an ARG, as in 'x=ones(3)', records the call "
               "with others");
  if (all) value_release(vm, value_obj(TAG_LIST, all));
  return g;
}

/* ---- writing ---------------------------------------------------------------------------------------------------------------------------------------- */

/* Calls the builtin of this name with a path and perhaps a second argument, also if the program uses the name for something else. Owned. */
static qn_value call_builtin(qn_vm *vm, const char *name, const char *path, const qn_value *second) {
  qn_str *s = str_intern(vm, name, strlen(name));
  const global_cell *cell = s ? scope_find(interp_of(vm)->builtin, s) : NULL;
  qn_str *text = cell ? str_new(vm, path, strlen(path)) : NULL;
  qn_value result = value_error();
  if (text) {
    qn_value args[2] = {value_obj(TAG_STR, text), second ? *second : value_nil()};
    result = vm->hooks.call(vm, cell->value, args, second ? 2 : 1, value_nil());
    value_release(vm, args[0]);
  }
  if (s) value_release(vm, value_obj(TAG_STR, s));
  return result;
}

static bool write_graph(export *x, qn_value g) {
  qn_value done = call_builtin(x->vm, "save", x->line->out, &g);
  if (!value_is_error(done)) value_release(x->vm, done);
  return !value_is_error(done);
}

/* Prints "f.qnx: net(x: f32[8, 64]) -> f32[8, 2]", the conditions that a call has to meet, and perhaps the graph. */
static void report_graph(const char *file, const char *name, qn_value g,
                         void (*graph_text)(qn_value g, text_buf *out)) {
  text_buf t = {0};
  text_addf(&t, "%s: %s", file, name);
  jit_graph_signature(value_fn(g), &t);
  text_adds(&t, "\n");
  jit_graph_conditions(value_fn(g), &t);
  if (graph_text) {
    graph_text(g, &t);
    text_adds(&t, "\n");
  }
  if (!t.failed && t.text) fwrite(t.text, 1, t.len, stdout);
  text_free(&t);
}

int export_show(qn_vm *vm, const char *path) {
  vm_run run;
  vm_run_begin(vm, &run);
  qn_value g = utf8_valid(path, strlen(path)) ? call_builtin(vm, "load", path, NULL)
                                              : raise_error(vm, E_text, SPAN_NONE, "the name of the file is not UTF-8");
  bool good = !value_is_error(g);
  if (good) {
    report_graph(path, "", g, vm->hooks.graph_text);
    value_release(vm, g);
  }
  vm_run_end(vm, &run);
  if (!good) cli_report(vm);
  return good ? EXIT_FINE : EXIT_SCRIPT;
}

static int export_value(export *x) {
  qn_vm *vm = x->vm;
  uint32_t nslots = x->code ? x->code->nslots : 0, nparams = x->code ? x->code->nparams : 0;
  if (!vm_enter(vm, nslots + (size_t)1)) return EXIT_SCRIPT;
  qn_value inner = x->fn;
  while (x->code && value_fn(inner)->head.flags != FN_USER) inner = value_fn(inner)->captures[0];
  *vm->sp++ = value_retain(inner);
  x->fp = vm->sp;
  for (uint32_t i = 0; i < nslots; i++) *vm->sp++ = value_unset();
  uint8_t *given = calloc(nparams + (size_t)1, 1);
  if (!given) {
    raise_memory(vm);
    return EXIT_SCRIPT;
  }
  int status = read_args(x);
  for (uint32_t i = 0; i < nparams; i++) given[i] = x->fp[i].head != TAG_UNSET;
  if (status == EXIT_FINE && x->code) status = fill_params(x, given);
  if (status == EXIT_FINE) {
    qn_value g = record_call(x, given);
    status = !value_is_error(g) && write_graph(x, g) ? EXIT_FINE : EXIT_SCRIPT;
    if (status == EXIT_FINE) report_graph(x->line->out, x->line->name, g, NULL);
    if (!value_is_error(g)) value_release(vm, g);
  }
  free(given);
  return status;
}

int export_run(qn_vm *vm, const export_line *line) {
  vm_run run;
  vm_run_begin(vm, &run);
  export x = {.vm = vm, .line = line, .fn = find(vm, line->name)};
  qn_value *mark = vm->sp;
  int status = EXIT_SCRIPT;
  if (!value_is_error(x.fn) && !value_is(x.fn, TAG_FN)) {
    raise_error(vm, E_not_callable, SPAN_NONE, "export: %s is %s, no function", line->name, value_kind_name(x.fn));
  } else if (!value_is_error(x.fn) && (x.rest = list_new(vm, 0)) != NULL) {
    x.code = code_of(x.fn);
    status = export_value(&x);
  }
  vm_pop_to(vm, mark);
  if (x.rest) value_release(vm, value_obj(TAG_LIST, x.rest));
  if (!value_is_error(x.fn)) value_release(vm, x.fn);
  text_free(&x.missing);
  text_free(&x.hint);
  vm_run_end(vm, &run);
  if (error_pending(vm)) cli_report(vm);
  return status;
}
