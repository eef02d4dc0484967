/* Checking values against shape signatures, and binding dimensions.
 *
 * A bare name in a shape is a local of the frame: the first size that it meets (parameters from left to right) binds it, and later ones are
 * compared with that. A name that is an int parameter is compared with that argument. Sizes that are expressions are checked in a second
 * pass, when all names are bound. A mismatch is E208, which says which part of the argument does not fit, and which sizes were bound so far
 * by which axes.
 */
#include "interp/signature.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The path from an argument to a part of it, the last step first, on the C stack: a field of a record (`field`), or a number in a list. */
typedef struct step {
  const struct step *outer; /* the step before; NULL: the argument itself */
  const qn_str *field;
  uint32_t number;
} step;

typedef struct matcher {
  qn_vm *vm;
  const fn_code *code;
  qn_value *fp;
  const char *what; /* "argument" or "the result" */
  qn_str *name;     /* the parameter's; NULL for the result */
  bool exprs;       /* this is the second pass, which checks expressions only */
  const step *at;   /* the part that is matched; NULL: the whole value */
} matcher;

static void describe_steps(const step *s, text_buf *t) {
  if (!s) return;
  describe_steps(s->outer, t);
  if (s->field)
    text_addf(t, ".%s", s->field->text);
  else
    text_addf(t, "[%u]", s->number);
}

/* Appends where the size in a slot was bound: at the first array in `sig` whose shape has its name. False if there is none. */
static bool describe_origin(const type_sig *sig, uint32_t slot, const step *at, const char *name, text_buf *t) {
  if (sig->kind == SIG_ARRAY) {
    int rest = 0;
    for (uint32_t i = 0; i < sig->n; i++) {
      if (sig->dims[i].kind == DIM_REST) rest = (int)sig->n;
      if (sig->dims[i].kind != DIM_NAME || sig->dims[i].slot != slot) continue;
      text_addf(t, " from %s", name);
      describe_steps(at, t);
      text_addf(t, ".shape[%d]", (int)i - rest);
      return true;
    }
  }
  if (sig->kind != SIG_LIST && sig->kind != SIG_RECORD) return false;
  for (uint32_t i = 0; i < sig->n; i++) {
    step s = {at, sig->kind == SIG_RECORD ? sig->fields[i] : NULL, i};
    if (describe_origin(sig->items[i], slot, &s, name, t)) return true;
  }
  return false;
}

/* Does a type compare some size with the int parameter in this slot? */
static bool names_size(const type_sig *sig, uint32_t slot) {
  if (!sig) return false;
  for (uint32_t i = 0; sig->kind == SIG_ARRAY && i < sig->n; i++)
    if (sig->dims[i].kind == DIM_PARAM && sig->dims[i].slot == slot) return true;
  for (uint32_t i = 0; (sig->kind == SIG_LIST || sig->kind == SIG_RECORD) && i < sig->n; i++)
    if (names_size(sig->items[i], slot)) return true;
  return false;
}

static void describe_parameters(const matcher *m, text_buf *t, bool *first) {
  const fn_code *code = m->code;
  for (uint32_t i = 0; i < code->nparams; i++) {
    bool used = names_size(code->result, i);
    for (uint32_t k = 0; k < code->nparams && !used; k++) used = names_size(code->params[k].type, i);
    if (!used || !value_is(m->fp[i], TAG_INT)) continue;
    text_addf(t, "%s%s = %lld, a parameter", *first ? " (bound: " : ", ", code->params[i].name->text,
              (long long)m->fp[i].u.i);
    *first = false;
  }
}

static void describe_bound(const matcher *m, text_buf *t) {
  bool first = true;
  describe_parameters(m, t, &first);
  for (uint32_t i = 0; i < m->code->ndims; i++) {
    qn_value v = m->fp[m->code->dims[i].slot];
    if (!value_is(v, TAG_INT)) continue;
    text_addf(t, "%s%s = %lld", first ? " (bound: " : ", ", m->code->dims[i].name->text, (long long)v.u.i);
    first = false;
    for (uint32_t k = 0; k < m->code->nparams; k++)
      if (m->code->params[k].type &&
          describe_origin(m->code->params[k].type, m->code->dims[i].slot, NULL, m->code->params[k].name->text, t))
        break;
  }
  if (!first) text_adds(t, ")");
}

static void describe(const matcher *m, text_buf *t) {
  if (m->name) {
    text_addf(t, "argument '%s", m->name->text);
    describe_steps(m->at, t);
    text_addf(t, "' of %s", m->code->name->text);
    return;
  }
  if (m->at) {
    text_adds(t, "result");
    describe_steps(m->at, t);
    text_addf(t, " of %s", m->code->name->text);
  } else {
    text_addf(t, "the result of %s", m->code->name->text);
  }
}

/* Raises E208: "argument 'x' of f is f32[3], its signature f32[b, 4]: rank is 1, not 2 (bound: b = 3)". False. */
static __attribute__((format(printf, 4, 5))) bool refuse(const matcher *m, const type_sig *sig, qn_value v,
                                                         const char *why, ...) {
  qn_vm *vm = m->vm;
  char line[256]; /* it may hold long names, so it is cut */
  va_list args;
  va_start(args, why);
  vsnprintf(line, sizeof line, why, args);
  va_end(args);
  text_buf t = {.vm = vm};
  describe(m, &t);
  text_addf(&t, " is %s, its signature ", phrase_kind(v).text);
  text_span(vm, &t, sig->at);
  if (*line) text_addf(&t, ": %s", line);
  describe_bound(m, &t);
  raise_text(vm, E_signature, SPAN_NONE, &t);
  return false;
}

static const struct {
  const char *name, *takes;
} sig_names[SIG_RECORD + 1] = {[SIG_ANY] = {"any", "anything"},
                               [SIG_NUMBER] = {"number", "an array or a number"},
                               [SIG_NUMBERS] = {"numbers", "an array, a number or a list of these"},
                               [SIG_INTS] = {"ints", "an int or a list of ints"},
                               [SIG_TREE] = {"tree", "an array, a number, or a list or record of these"}};

const char *sig_kind_name(sig_kind kind) { return sig_names[kind].name; }

/* Raises E208 for a value of another kind than the type takes. False. */
static bool refuse_value(const matcher *m, const type_sig *sig, qn_value v) {
  if (sig->kind == SIG_DTYPE && dtype_is_bool(sig->dtype)) return refuse(m, sig, v, "true or false is expected");
  bool array = !sig_names[sig->kind].takes || sig->kind == SIG_NUMBER;
  return refuse(m, sig, v, "%s is expected%s", sig_names[sig->kind].takes ? sig_names[sig->kind].takes : "an array",
                array && value_is(v, TAG_LIST) ? "; lists are written ( ), arrays [ ]" : "");
}

/* Is it an int, or a list of ints? */
static bool is_ints(qn_value v) {
  if (value_is(v, TAG_INT)) return true;
  if (!value_is(v, TAG_LIST)) return false;
  const qn_list *l = value_list(v);
  for (uint32_t i = 0; i < l->len; i++)
    if (!value_is(l->items[i], TAG_INT)) return false;
  return true;
}

/* Is a size (rec_size) what its place in a type computes from other ones? */
static bool match_expr(const matcher *m, const type_sig *sig, qn_value v, const sig_dim *d, int axis, int64_t any) {
  if (!m->exprs) return true;
  qn_value e = eval(m->vm, d->expr, m->fp);
  int64_t want, known = 0;
  bool ok = !value_stops(e);
  if (ok && value_is(e, TAG_INT) && value_node(e)) {
    ok = rec_size(m->vm, e, &known);
    bool number = known < 0 && known == e.u.i; /* no size */
    if (ok && !number && rec_sizes_equal(m->vm, known, any)) return true;
  }
  ok = ok && index_int(m->vm, e, "a size", &want);
  if (!value_stops(e)) value_release(m->vm, e);
  if (!ok) {
    raise_at(m->vm, d->at);
    return false;
  }
  int64_t size = rec_size_now(m->vm, any);
  if (want == size) return true;
  text_buf t = {.vm = m->vm};
  text_span(m->vm, &t, d->at);
  refuse(m, sig, v, "%s is %lld, axis %d is %lld", t.text ? t.text : "", (long long)want, axis, (long long)size);
  text_free(&t);
  return false;
}

/* Is a size that may be another one in other calls what an int parameter says? That becomes a guard, and the parameter the size. False with or
 * without an error raised. */
static bool match_varying(const matcher *m, const sig_dim *d, int64_t any) {
  qn_value *p = &m->fp[d->slot], size = rec_size_number(m->vm, any);
  if (value_is_error(size)) return false;
  if (value_node(*p) == value_node(size)) return true;
  const qn_value in[2] = {*p, size};
  qn_value same = op_apply(m->vm, OP_eq, in, 2, NULL);
  bool fits = !value_is_error(same) && rec_truth(m->vm, same, d->at) == 1;
  value_release(m->vm, same);
  if (fits) *p = size;
  return fits;
}

/* Does a size (rec_size) fit its place in a type? */
static bool match_dim(const matcher *m, const type_sig *sig, qn_value v, const sig_dim *d, int axis, int64_t any) {
  if (d->kind == DIM_ANY || d->kind == DIM_REST) return true;
  if (d->kind == DIM_EXPR) return match_expr(m, sig, v, d, axis, any);
  if (d->kind == DIM_NAME && (any < 0 || value_node(m->fp[d->slot]))) {
    qn_value *slot = &m->fp[d->slot];
    int64_t known;
    if (!value_is(*slot, TAG_INT)) {
      qn_value number = rec_size_number(m->vm, any);
      if (value_is_error(number)) return false;
      *slot = number;
      return true;
    }
    if (!rec_size(m->vm, *slot, &known)) return false;
    bool number = known < 0 && known == slot->u.i; /* no size, but what the program has given */
    if (!number && rec_sizes_equal(m->vm, known, any)) return true;
  }
  if (d->kind == DIM_PARAM && any < 0 && value_is(m->fp[d->slot], TAG_INT) && value_node(m->fp[d->slot])) {
    if (match_varying(m, d, any)) return true;
    if (error_pending(m->vm)) return false;
  }
  int64_t size = rec_size_now(m->vm, any);
  switch ((dim_kind)d->kind) {
  case DIM_ANY:
  case DIM_REST:
  case DIM_EXPR: return true;
  case DIM_SIZE:
    return size == d->size || refuse(m, sig, v, "axis %d is %lld, not %lld", axis, (long long)size, (long long)d->size);
  case DIM_NAME: {
    qn_value *slot = &m->fp[d->slot];
    if (!value_is(*slot, TAG_INT)) {
      *slot = value_int(size);
      return true;
    }
    return slot->u.i == size ||
           refuse(m, sig, v, "%s is %lld and %lld", d->name->text, (long long)slot->u.i, (long long)size);
  }
  case DIM_PARAM: {
    qn_value p = m->fp[d->slot];
    if (!value_is(p, TAG_INT)) return true; /* its own type refuses it */
    int64_t want;
    if (!index_int(m->vm, p, d->name->text, &want)) return false;
    return want == size ||
           refuse(m, sig, v, "%s is %lld, axis %d is %lld", d->name->text, (long long)want, axis, (long long)size);
  }
  }
  return true;
}

static bool match_array(const matcher *m, const type_sig *sig, qn_value v) {
  if (!value_is(v, TAG_ARRAY)) return refuse_value(m, sig, v);
  const qn_array *a = value_array(v);
  if (sig->dtype >= 0 && a->dtype != sig->dtype)
    return refuse(m, sig, v, "dtype is %s, not %s", dtype_rows[a->dtype].name, dtype_rows[sig->dtype].name);
  int rest = -1, n = (int)sig->n;
  for (int i = 0; i < n; i++)
    if (sig->dims[i].kind == DIM_REST) rest = i;
  if (rest < 0 ? a->rank != n : a->rank < n - 1)
    return refuse(m, sig, v, "rank is %d, not %s%d", a->rank, rest < 0 ? "" : "at least ", rest < 0 ? n : n - 1);
  int64_t few[ARRAY_MAX_RANK];
  const int64_t *shape = a->shape;
  if (op_deferred(m->vm)) {
    rec_sizes(m->vm, v, few);
    shape = few;
  }
  for (int i = 0; i < n; i++) {
    if (i == rest) continue;
    int axis = rest >= 0 && i > rest ? a->rank - n + i : i;
    if (!match_dim(m, sig, v, &sig->dims[i], axis, shape[axis])) return false;
  }
  return true;
}

static bool match(const matcher *m, const type_sig *sig, qn_value v);

static bool match_part(const matcher *m, const qn_str *field, uint32_t number, const type_sig *sig, qn_value v) {
  step s = {m->at, field, number};
  matcher inner = *m;
  inner.at = &s;
  return match(&inner, sig, v);
}

static bool match(const matcher *m, const type_sig *sig, qn_value v) {
  switch ((sig_kind)sig->kind) {
  case SIG_DTYPE:
    if (dtype_is_bool(sig->dtype) && value_is(v, TAG_BOOL)) return true;
    if (!value_is(v, TAG_ARRAY)) return refuse_value(m, sig, v);
    return value_array(v)->dtype == sig->dtype || refuse(m, sig, v, "%s", "");
  case SIG_ANY: return true;
  case SIG_NUMBER: return value_is_operand(v) || refuse_value(m, sig, v);
  case SIG_NUMBERS: return value_is_operand(v) || value_is(v, TAG_LIST) || refuse_value(m, sig, v);
  case SIG_INTS: return is_ints(v) || refuse_value(m, sig, v);
  case SIG_TREE:
    return value_is(v, TAG_ARRAY) || value_is_number(v) || value_is(v, TAG_LIST) || value_is(v, TAG_RECORD) ||
           refuse_value(m, sig, v);
  case SIG_HOST:
    if (value_is(v, (value_tag)sig->tag) || (sig->tag == TAG_FLOAT && value_is(v, TAG_INT)) ||
        (sig->tag == TAG_FN && value_is(v, TAG_DTYPE)))
      return true;
    return refuse(m, sig, v, "%s",
                  sig->tag == TAG_LIST && value_is(v, TAG_ARRAY) && value_array(v)->rank == 1
                      ? "lists are written ( ), arrays [ ]"
                  : sig->tag == TAG_INT && value_is(v, TAG_FLOAT) ? "int(x) and a // b give ints"
                                                                  : "");
  case SIG_ARRAY: return match_array(m, sig, v);
  case SIG_LIST:
    if (!value_is(v, TAG_LIST)) return refuse(m, sig, v, "a list is expected");
    if (value_list(v)->len != sig->n) return refuse(m, sig, v, "%u items, not %u", value_list(v)->len, sig->n);
    for (uint32_t i = 0; i < sig->n; i++)
      if (!match_part(m, NULL, i, sig->items[i], value_list(v)->items[i])) return false;
    return true;
  case SIG_RECORD:
    if (!value_is(v, TAG_RECORD)) return refuse(m, sig, v, "a record is expected");
    for (uint32_t i = 0; i < sig->n; i++) {
      int k = record_find(value_record(v), sig->fields[i]);
      if (k < 0) return refuse(m, sig, v, "there is no field '%s'", sig->fields[i]->text);
      if (!match_part(m, sig->fields[i], i, sig->items[i], value_record(v)->items[k])) return false;
    }
    return true;
  }
  return true;
}

static bool left_out(const fn_code *code, const qn_value *fp, uint32_t i) {
  int32_t k = code->params[i].initial;
  return k >= 0 && value_is(value_fn(fp[-1])->captures[code->ncaptures + (uint32_t)k], TAG_NIL);
}

bool signature_bind(qn_vm *vm, const fn_code *code, qn_value *fp, uint32_t *refused) {
  matcher m = {.vm = vm, .code = code, .fp = fp};
  for (int pass = 0; pass < (code->checks ? 2 : 1); pass++) {
    m.exprs = pass == 1;
    for (uint32_t i = 0; i < code->nparams; i++) {
      if (!code->params[i].type || (value_is(fp[i], TAG_NIL) && left_out(code, fp, i))) continue;
      *refused = i;
      m.name = code->params[i].name;
      if (!match(&m, code->params[i].type, fp[i])) return false;
    }
  }
  return true;
}

/* Forgets the sizes that a type names. */
static void forget_sizes(const type_sig *sig, qn_value *fp) {
  if (sig->kind == SIG_ARRAY)
    for (uint32_t i = 0; i < sig->n; i++)
      if (sig->dims[i].kind == DIM_NAME) fp[sig->dims[i].slot] = value_nil();
  if (sig->kind == SIG_LIST || sig->kind == SIG_RECORD)
    for (uint32_t i = 0; i < sig->n; i++) forget_sizes(sig->items[i], fp);
}

void signature_sizes(qn_vm *vm, const fn_code *code, qn_value *fp) {
  uint32_t refused;
  for (uint32_t i = 0; i < code->nparams; i++)
    if (code->params[i].type) forget_sizes(code->params[i].type, fp);
  if (!signature_bind(vm, code, fp, &refused)) error_clear(vm); /* only memory can be short: they fitted before */
}

bool signature_result(qn_vm *vm, const fn_code *code, qn_value *fp, qn_value result) {
  matcher m = {.vm = vm, .code = code, .fp = fp, .exprs = false};
  if (!match(&m, code->result, result)) return false;
  m.exprs = true;
  return !code->checks || match(&m, code->result, result);
}
