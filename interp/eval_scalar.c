/* Evaluators of variables, constants and operators.
 *
 * A binary operator has one evaluator for each way in which its operands are found (local slot, constant, any node). The macros below make
 * these from one inline function per operator, fast_NAME, which computes on plain ints and floats. (It compares the whole header word, so
 * traced numbers never match.) Everything else is done out of line: arrays by op_apply, the rest by binary_values. `x = x op e` has
 * evaluators of its own, which change a number in x's slot and let texts and lists grow in place.
 *
 * Host arithmetic is exact for ints (an overflow is an error) and IEEE for floats. What is not a single machine operation (pow, and // and
 * % of floats) is computed by the scalar code of the op table, so that compiled code gives the same bits.
 */
#include <string.h>

#include "interp/node.h"

/* ---- labels for errors ---------------------------------------------------------------------------------------------- */

void text_span(qn_vm *vm, text_buf *t, span at) {
  const source_text *s = source_get(vm, at.source);
  if (!s || at.start >= at.end || at.end > s->len) return;
  enum { LONGEST = 40 };
  size_t len = at.end - at.start;
  const char *text = s->text + at.start, *line = memchr(text, '\n', len);
  size_t show = line ? (size_t)(line - text) : len;
  if (show > LONGEST) show = LONGEST;
  while (show > 0 && ((unsigned char)text[show] & 0xc0) == 0x80 && show < len) show--;
  for (size_t i = 0; i < show; i++) { /* tabs would move what stands below; a carriage return would break the line */
    bool blank = text[i] == '\t' || text[i] == '\r';
    if (!blank)
      text_add(t, text + i, 1);
    else if (i + 1 < show)
      text_adds(t, " ");
  }
  if (show < len) text_adds(t, " ...");
}

void text_warning(qn_vm *vm, text_buf *t, span at, const char *message) {
  const source_text *s = source_get(vm, at.source);
  int row = 0, column = 0;
  if (s) source_position(s, at.start, &row, &column);
  text_addf(t, "warning: %s\n  --> %s:%d:%d\n", message, s ? s->name : "", row, column);
}

/* Where the variable that a node reads was defined. */
static span node_decl(const node *n) {
  if (n->kind == N_LOCAL) return ((const n_local *)n)->decl;
  if (n->kind == N_GLOBAL) return ((const n_global *)n)->cell->decl;
  return SPAN_NONE;
}

void note_operand(qn_vm *vm, span at, qn_value v, const node *n) {
  if (!vm->error || (!value_is(v, TAG_ARRAY) && !value_is_scalar(v)) || (n && n->kind == N_CONST)) return;
  text_buf t = {.vm = vm};
  text_addf(&t, "%s  ", phrase_kind((qn_value){.head = v.head & 0xff, .u = v.u}).text);
  text_span(vm, &t, at);
  span decl = n ? node_decl(n) : SPAN_NONE;
  const source_text *s = source_get(vm, decl.source);
  if (s) {
    int line, column, here;
    source_position(s, decl.start, &line, &column);
    source_position(source_get(vm, at.source), at.start, &here, &column);
    if (line != here || decl.source != at.source) text_addf(&t, ", from %s:%d", s->name, line);
  }
  if (!t.failed && t.text) raise_note(vm, at, "%s", t.text);
  text_free(&t);
}

/* ---- variables and constants ------------------------------------------------------------------------------------------ */

qn_value eval_holding(qn_vm *vm, node *n, qn_value *fp, qn_value v) {
  if (n->kind == N_LOCAL || n->kind == N_CONST) return eval(vm, n, fp);
  if (!vm_enter(vm, 1)) return raise_at(vm, n->at);
  qn_value *held = vm->sp++;
  *held = v;
  qn_value r = eval(vm, n, fp);
  vm_pop_to(vm, held + 1);
  vm->sp = held;
  return r;
}

qn_value eval_const(qn_vm *vm, node *n, qn_value *fp) {
  (void)vm, (void)fp;
  return value_retain(((n_const *)n)->v);
}

qn_value eval_nil(qn_vm *vm, node *n, qn_value *fp) {
  (void)vm, (void)n, (void)fp;
  return value_nil();
}

qn_value eval_local(qn_vm *vm, node *n, qn_value *fp) {
  (void)vm;
  return value_retain(fp[n->slot]);
}

static __attribute__((noinline, cold)) qn_value global_unset(qn_vm *vm, node *n, global_cell *c) {
  if (c->declared) return raise_error(vm, E_unset, n->at, "'%s' is used before it has a value", c->name->text);
  undefined_name u = {c->name, ((n_global *)n)->near, n->at, 0, ((n_global *)n)->size};
  return raise_undefined(vm, interp_of(vm)->main, &u);
}

qn_value eval_global(qn_vm *vm, node *n, qn_value *fp) {
  (void)fp;
  global_cell *c = ((n_global *)n)->cell;
  if (c->value.head == TAG_UNSET) {
    if (!c->shadow || c->shadow->value.head == TAG_UNSET) return global_unset(vm, n, c);
    if (value_is_error(rec_global(vm, &c->rec, &c->value, c->name))) return value_error();
    return value_retain(c->shadow->value);
  }
  return rec_global(vm, &c->rec, &c->value, c->name);
}

/* The function value stands below the frame. While recording, it may be a tracer with traced captures (rec_call). */
qn_value eval_capture(qn_vm *vm, node *n, qn_value *fp) {
  (void)vm;
  return value_retain(value_fn(fp[-1])->captures[n->slot]);
}

qn_value eval_self(qn_vm *vm, node *n, qn_value *fp) {
  (void)vm, (void)n;
  return value_retain(fp[-1]);
}

/* ---- operators on values ------------------------------------------------------------------------------------------------ */

op_id op_of_ast(ast_op op) {
  enum { OP_none = OP_COUNT, OP_matmul = OP_dot }; /* operators whose names in ast.def and ops.def differ */
  static const uint8_t ops[AST_OP_COUNT] = {
#define NODE(...)
#define KID(...)
#define OPERATOR(name, spelling, arity) [AST_OP_##name] = OP_##name,
#include "parser/ast.def"
  };
  return (op_id)ops[op];
}

/* ---- operators on plain numbers ---------------------------------------------------------------------------------------- */

/* Values of `known`: what the right operand is known to be when the evaluator is chosen. */
enum { ANY, KNOWN_INT, KNOWN_FLOAT };
#define INLINE static inline __attribute__((always_inline))

/* Two floats, or an int and a float. In arithmetic an int counts as a float; comparisons are exact. If the int, rounded to a float, differs
 * from the other operand, rounding has not changed their order; if it does not differ, the int must be one that was not changed by rounding
 * (up to 2^53). */
#define FLOATS(make, operator)                                                                                         \
  if (known != KNOWN_INT && a.head == TAG_FLOAT && (known == KNOWN_FLOAT || b.head == TAG_FLOAT)) {                    \
    *r = make(a.u.f operator b.u.f);                                                                                   \
    return true;                                                                                                       \
  }
#define MIXED(make, operator)                                                                                          \
  if (known != KNOWN_INT && a.head == TAG_INT && (known == KNOWN_FLOAT || b.head == TAG_FLOAT)) {                      \
    *r = make((double)a.u.i operator b.u.f);                                                                           \
    return true;                                                                                                       \
  }                                                                                                                    \
  if (known != KNOWN_FLOAT && a.head == TAG_FLOAT && (known == KNOWN_INT || b.head == TAG_INT)) {                      \
    *r = make(a.u.f operator(double) b.u.i);                                                                           \
    return true;                                                                                                       \
  }
#define EXACT(i, f) ((double)(i) != (f) || (uint64_t)(i) + (1ULL << 53) <= 1ULL << 54)
#define ORDERED(make, operator)                                                                                        \
  if (known != KNOWN_INT && a.head == TAG_INT && (known == KNOWN_FLOAT || b.head == TAG_FLOAT) &&                      \
      EXACT(a.u.i, b.u.f)) {                                                                                           \
    *r = make((double)a.u.i operator b.u.f);                                                                           \
    return true;                                                                                                       \
  }                                                                                                                    \
  if (known != KNOWN_FLOAT && a.head == TAG_FLOAT && (known == KNOWN_INT || b.head == TAG_INT) &&                      \
      EXACT(b.u.i, a.u.f)) {                                                                                           \
    *r = make(a.u.f operator(double) b.u.i);                                                                           \
    return true;                                                                                                       \
  }
#define BOTH_INT (known != KNOWN_FLOAT && a.head == TAG_INT && (known == KNOWN_INT || b.head == TAG_INT))

#define ARITHMETIC(name, overflow, operator)                                                                           \
  INLINE bool fast_##name(qn_value a, qn_value b, int known, qn_value *r) {                                            \
    if (BOTH_INT) {                                                                                                    \
      int64_t i;                                                                                                       \
      if (__builtin_expect(overflow(a.u.i, b.u.i, &i), 0)) return false;                                               \
      *r = value_int(i);                                                                                               \
      return true;                                                                                                     \
    }                                                                                                                  \
    FLOATS(value_float, operator)                                                                                      \
    MIXED(value_float, operator)                                                                                       \
    return false;                                                                                                      \
  }
ARITHMETIC(add, __builtin_add_overflow, +)
ARITHMETIC(sub, __builtin_sub_overflow, -)
ARITHMETIC(mul, __builtin_mul_overflow, *)

#define COMPARISON(name, operator)                                                                                     \
  INLINE bool fast_##name(qn_value a, qn_value b, int known, qn_value *r) {                                            \
    if (BOTH_INT) {                                                                                                    \
      *r = value_bool(a.u.i operator b.u.i);                                                                           \
      return true;                                                                                                     \
    }                                                                                                                  \
    FLOATS(value_bool, operator)                                                                                       \
    ORDERED(value_bool, operator) return false;                                                                        \
  }
COMPARISON(eq, ==)
COMPARISON(ne, !=)
COMPARISON(lt, <)
COMPARISON(le, <=)
COMPARISON(gt, >)
COMPARISON(ge, >=)

INLINE bool fast_div(qn_value a, qn_value b, int known, qn_value *r) {
  FLOATS(value_float, /)
  MIXED(value_float, /)
  if (!BOTH_INT || b.u.i == 0) return false;
  *r = value_float((double)a.u.i / (double)b.u.i);
  return true;
}

INLINE bool fast_floordiv(qn_value a, qn_value b, int known, qn_value *r) {
  if (!BOTH_INT || b.u.i <= 0) return false;
  int64_t q = a.u.i / b.u.i;
  *r = value_int(q - (a.u.i % b.u.i < 0));
  return true;
}

INLINE bool fast_mod(qn_value a, qn_value b, int known, qn_value *r) {
  if (!BOTH_INT || b.u.i <= 0) return false;
  int64_t m = a.u.i % b.u.i;
  *r = value_int(m < 0 ? m + b.u.i : m);
  return true;
}

#define OPERATORS(X) X(add) X(sub) X(mul) X(div) X(floordiv) X(mod) X(eq) X(ne) X(lt) X(le) X(gt) X(ge)

/* The operator on two plain numbers, by its inline function. False if there is none, or if it does not handle these numbers. */
static bool fast_numbers(ast_op op, qn_value a, qn_value b, qn_value *r) {
  switch (op) {
#define CASE(name)                                                                                                     \
  case AST_OP_##name: return fast_##name(a, b, ANY, r);
    OPERATORS(CASE)
#undef CASE
  default: return false;
  }
}

static qn_value fail_overflow(qn_vm *vm, const n_binary *n, qn_value a, qn_value b) {
  return raise_error(vm, E_overflow, n->mark, "%lld %s %lld does not fit 64 bits", (long long)a.u.i,
                     ast_op_spelling((ast_op)n->op), (long long)b.u.i);
}

static qn_value int_pow(qn_vm *vm, const n_binary *n, qn_value a, qn_value b) {
  if (b.u.i < 0) {
    return raise_error(vm, E_neg_exponent, n->mark, "%lld ** %lld: a negative exponent needs a float, %lld.0 ** %lld",
                       (long long)a.u.i, (long long)b.u.i, (long long)a.u.i, (long long)b.u.i);
  }
  int64_t base = a.u.i, result = 1;
  for (uint64_t e = (uint64_t)b.u.i; e; e >>= 1) {
    if ((e & 1) && __builtin_mul_overflow(result, base, &result)) return fail_overflow(vm, n, a, b);
    if (e > 1 && __builtin_mul_overflow(base, base, &base)) return fail_overflow(vm, n, a, b);
  }
  return value_int(result);
}

static qn_value fail_kinds(qn_vm *vm, const n_binary *n, qn_value a, qn_value b);

/* Two plain ints that fast_numbers does not handle: an overflow, a divisor that is not positive, or an operator without an inline function. */
static qn_value int_binary(qn_vm *vm, const n_binary *n, qn_value a, qn_value b) {
  int64_t x = a.u.i, y = b.u.i, r;
  switch ((ast_op)n->op) {
  case AST_OP_add:
  case AST_OP_sub:
  case AST_OP_mul: return fail_overflow(vm, n, a, b);
  case AST_OP_div: return raise_error(vm, E_div_zero, n->mark, WORDS_DIV_ZERO, (long long)x, (long long)x);
  case AST_OP_floordiv:
    if (y == 0) return raise_error(vm, E_div_zero, n->mark, WORDS_FLOORDIV_ZERO, (long long)x);
    if (y == -1) return __builtin_sub_overflow((int64_t)0, x, &r) ? fail_overflow(vm, n, a, b) : value_int(r);
    return value_int(x / y - (x % y > 0));
  case AST_OP_mod:
    if (y == 0) return raise_error(vm, E_div_zero, n->mark, WORDS_MOD_ZERO, (long long)x);
    r = y == -1 ? 0 : x % y;
    return value_int(r > 0 ? r + y : r);
  case AST_OP_pow: return int_pow(vm, n, a, b);
  case AST_OP_bitor: return value_int(x | y);
  case AST_OP_bitand: return value_int(x & y);
  default: return fail_kinds(vm, n, a, b);
  }
}

/* Are these two values that `+` joins? */
static inline bool joins(const n_binary *n, qn_value a, qn_value b) {
  return a.head == b.head && (a.head == TAG_STR || a.head == TAG_LIST) && n->op == AST_OP_add;
}

/* Joins two texts one of which waits (rec.h), so that the whole does. As join. */
static __attribute__((noinline, cold)) bool join_waiting(qn_vm *vm, const n_binary *n, qn_value *a, qn_value b) {
  qn_value parts[] = {*a, value_nil(), b, value_nil()};
  qn_list *l = list_from(vm, parts, 4);
  qn_str *empty = l ? str_new(vm, "", 0) : NULL;
  qn_value both = empty ? value_obj(TAG_STR, empty) : value_error();
  bool ok = empty && str_append(vm, &both, value_str(*a)) && str_append(vm, &both, value_str(b)) &&
            rec_text_made(vm, &both, NULL, value_obj(TAG_LIST, l));
  if (l) value_release(vm, value_obj(TAG_LIST, l));
  value_release(vm, b);
  if (ok) {
    value_release(vm, *a);
    *a = both;
  } else {
    if (empty) value_release(vm, both);
    raise_at(vm, n->mark);
  }
  return ok;
}

/* Joins two lists, of which one is stacked: *a becomes *a + *b, which is taken over. 1; 0: both are ordinary ones now; -1 with an error raised. */
static __attribute__((noinline, cold)) int join_stacked(qn_vm *vm, const n_binary *n, qn_value *a, qn_value *b) {
  rec_at(vm, n->mark);
  qn_value both = n->stacks ? rec_stacked_join(vm, *a, *b) : value_unset();
  if (value_is(both, TAG_UNSET) && rec_make_plain(vm, a) && rec_make_plain(vm, b)) return 0;
  value_release(vm, *b);
  if (value_is(both, TAG_UNSET) || value_is_error(both)) return -1;
  value_release(vm, *a);
  *a = both;
  return 1;
}

/* Joins two texts or lists: *a becomes *a + b, in its own memory if it has one owner. Takes over `b`. False with an error raised. */
static bool join(qn_vm *vm, const n_binary *n, qn_value *a, qn_value b) {
  if (b.head == TAG_STR && (rec_waits(vm, *a) || rec_waits(vm, b))) return join_waiting(vm, n, a, b);
  if (__builtin_expect(vm->asked.stacked, 0) && (value_is_stacked(*a) || value_is_stacked(b))) {
    int joined = join_stacked(vm, n, a, &b);
    if (joined < 0) raise_at(vm, n->mark);
    if (joined) return joined > 0;
  }
  bool ok = b.head == TAG_STR ? str_append(vm, a, value_str(b)) : list_extend(vm, a, value_list(b));
  value_release(vm, b);
  if (!ok) raise_at(vm, n->mark);
  return ok;
}

const char nil_origin[] =
    "; nil comes of an if without else, of find where nothing is found, and of get and env without a default";

/* If `v` is nil: appends which function gave it, or where nil comes from in general. */
static void text_nil(text_buf *t, qn_value v, const node *n) {
  if (!value_is(v, TAG_NIL)) return;
  if (n && n->eval != eval_call && n->kind != N_CONST) {
    text_adds(t, nil_origin);
    return;
  }
  if (!n || n->eval != eval_call) return;
  const node *callee = ((const n_call *)n)->callee;
  qn_value f = callee->kind == N_GLOBAL ? cell_get(((const n_global *)callee)->cell) : value_unset();
  if (!value_is(f, TAG_FN)) return;
  int kind = value_fn(f)->head.flags;
  if (kind == FN_BUILTIN)
    text_addf(t, "; %s gives nil", ((const builtin_def *)value_fn(f)->code)->name);
  else if (kind == FN_USER)
    text_addf(t,
              "; %s gave nil: a function is worth its last statement, and a loop, an assignment, a print or an if "
              "without else is worth nil",
              ((const fn_code *)value_fn(f)->code)->name->text);
}

/* Appends how to compute with the numbers in records. */
static void text_trees(text_buf *t, ast_op op, qn_value a, qn_value b) {
  bool both = value_is(a, TAG_RECORD) && value_is(b, TAG_RECORD);
  const char *sign = ast_op_spelling(op);
  if (both && (op == AST_OP_add || op == AST_OP_bitor)) text_adds(t, "; fields of both are {..a, ..b}");
  if (both)
    text_addf(t, "; numbers in two trees are computed by tree_map(fn(a, b) a %s b, x, y)", sign);
  else if (value_is(a, TAG_RECORD))
    text_addf(t, "; the numbers in a tree are computed by tree_map(fn(a) a %s v, x)", sign);
  else
    text_addf(t, "; the numbers in a tree are computed by tree_map(fn(a) v %s a, x)", sign);
}

/* If `v` is a function: appends how to call it. */
static void text_uncalled(qn_vm *vm, text_buf *t, qn_value v) {
  if (!value_is(v, TAG_FN)) return;
  text_adds(t, "; a function's value is had by calling it: ");
  interp_signature(vm, v, t);
}

static __attribute__((noinline, cold)) qn_value fail_kinds(qn_vm *vm, const n_binary *n, qn_value a, qn_value b) {
  if (value_is(a, TAG_INT) && value_is(b, TAG_INT))
    return raise_error(vm, E_type, n->mark, "%s takes arrays, not two ints", ast_op_spelling((ast_op)n->op));
  text_buf t = {.vm = vm};
  text_addf(&t, "%s is not defined for %s and %s", ast_op_spelling((ast_op)n->op), phrase_kind(a).text,
            phrase_kind(b).text);
  bool text = value_is(a, TAG_STR) || value_is(b, TAG_STR), list = value_is(a, TAG_LIST) || value_is(b, TAG_LIST);
  if ((n->op == AST_OP_add || n->op == AST_OP_mod) && text)
    text_adds(&t, "; interpolation makes text of any value: \"{x}\"");
  else if (n->op == AST_OP_mul && (text || list) && (value_is(a, TAG_INT) || value_is(b, TAG_INT)))
    text_adds(&t, list ? "; repeat(xs, n) repeats, array(xs) * n multiplies each number" : "; write repeat(x, n)");
  else if (n->op == AST_OP_add && value_is(a, TAG_LIST) && value_tag_of(b) != TAG_ARRAY)
    text_adds(&t, value_is_number(b) ? "; one more item is append(xs, v), numbers are added by array(xs) + n"
                                     : "; one more item is append(xs, v)");
  else if (list)
    text_adds(&t, "; lists are written ( ), arrays [ ]");
  else if (value_is(a, TAG_FN) || value_is(b, TAG_FN))
    text_uncalled(vm, &t, value_is(a, TAG_FN) ? a : b);
  else if ((value_is(a, TAG_RECORD) && (value_is(b, TAG_RECORD) || value_is_number(b) || value_is(b, TAG_ARRAY))) ||
           (value_is(b, TAG_RECORD) && (value_is_number(a) || value_is(a, TAG_ARRAY))))
    text_trees(&t, (ast_op)n->op, a, b);
  text_nil(&t, a, n->a);
  text_nil(&t, b, n->b);
  return raise_text(vm, E_type, n->mark, &t);
}

static bool ast_op_compares(ast_op op) { return op >= AST_OP_eq && op <= AST_OP_ge; }
_Static_assert(AST_OP_eq + 5 == AST_OP_ge && AST_OP_eq + 1 == AST_OP_ne, "comparisons are consecutive");

/* x @ y, of borrowed arrays. Owned, or the error value. */
static inline qn_value matmul(qn_vm *vm, const n_binary *n, qn_array *x, qn_array *y) {
  if (x->rank == 0 || y->rank == 0)
    return raise_error(vm, E_matmul_shape, n->mark, "@ needs arrays of rank 1 or more; * multiplies by a number");
  int64_t k = x->shape[x->rank - 1], l = y->shape[y->rank == 1 ? 0 : y->rank - 2];
  if (k == l) return op_dot(vm, value_obj(TAG_ARRAY, x), value_obj(TAG_ARRAY, y));
  return raise_error(vm, E_matmul_shape, n->mark,
                     "matrix product: the last axis of the left operand is %lld, axis %d of the right one is %lld",
                     (long long)k, y->rank == 1 ? 0 : -2, (long long)l);
}

/* The operator as an op on arrays and numbers, which are borrowed. Owned, or the error value. */
static inline qn_value apply(qn_vm *vm, const n_binary *n, qn_value a, qn_value b) {
  rec_at(vm, n->mark);
  bool divides = n->op == AST_OP_div || n->op == AST_OP_floordiv || n->op == AST_OP_mod;
  if (divides && !rec_try_divide(vm, (op_id)n->row, a, b)) return value_error();
  return n->op == AST_OP_matmul ? matmul(vm, n, value_array(a), value_array(b)) : op_binary(vm, (op_id)n->row, a, b);
}

/* Does OP_eq give the same as the language's == for these? A host bool is no number; only beside an array it counts as one. */
static bool op_equals(qn_value a, qn_value b) {
  return value_is(a, TAG_ARRAY) || value_is(b, TAG_ARRAY) || value_tag_of(a) == value_tag_of(b) ||
         (value_is_number(a) && value_is_number(b));
}

/* Is the whole text a number? */
static bool is_number_text(const qn_str *s) {
  double f;
  return s->len <= 40 && float_parse(s->text, s->len, &f);
}

static bool is_kind_name(const char *name) {
  static const char *const kinds[] = {"int", "float", "str", "list", "range", "array"};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (strcmp(name, kinds[i]) == 0) return true;
  return false;
}

/* Does the operand always have values of one kind: is it a literal, or a global and what is reached from it? Parameters and loop variables
 * may well hold different kinds (`padding == "same"`). */
static bool is_known_kind(const node *n) {
  while (n && (n->kind == N_FIELD || n->kind == N_INDEX))
    n = n->kind == N_FIELD ? ((const n_field *)n)->object : ((const n_index *)n)->object;
  return n && (n->kind == N_GLOBAL || n->kind == N_ARRAY || n->eval == eval_list || n->eval == eval_record ||
               (n->kind == N_CONST && value_is(((const n_const *)n)->v, TAG_LIST)));
}

static bool has_text(qn_value list) {
  const qn_list *l = value_list(list);
  return l->len > 0 && value_is(l->items[0], TAG_STR);
}

static void swap_values(qn_value *a, qn_value *b) {
  qn_value t = *a;
  *a = *b;
  *b = t;
}

/* As never_equal, for a list, record or array beside a text, number or bool: probably one of its items was meant. */
static const char *never_equal_held(const n_binary *n, qn_value a, qn_value b) {
  const node *held = n->a;
  if (value_is(b, TAG_LIST) || value_is(b, TAG_RECORD) || value_is(b, TAG_ARRAY)) {
    swap_values(&a, &b);
    held = n->b;
  }
  bool text = value_is(b, TAG_STR);
  if (!text && !value_is_scalar(b)) return NULL;
  bool known = is_known_kind(held);
  if (value_is(a, TAG_LIST) && text && has_text(a) && (known || held->kind == N_FIELD)) /* as the column of a table */
    return "a list is never equal to a text; map(xs, fn(x) x == \"a\") compares each item, and contains(xs, \"a\") "
           "looks for one";
  if (!known) return NULL;
  if (value_is(a, TAG_LIST))
    return text ? "a list is never equal to a text; an item is xs[0], and contains(xs, x) looks for one"
                : "a list is never equal to a number or a bool; array(xs) == 1 compares each number, and xs[0] is an "
                  "item";
  if (value_is(a, TAG_RECORD))
    return text ? "a record is never equal to a text; compare a field: r.name == \"a\""
                : "a record is never equal to a number or a bool; compare a field: r.name == 1";
  if (value_is(a, TAG_ARRAY) && text)
    return "an array is never equal to a text: arrays hold numbers and bools; texts stand in lists";
  return NULL;
}

/* The warning for a comparison of two kinds of values that are never equal, if it looks like a mistake; else NULL. A text beside a number
 * or function may be a marker (`size == "same"`), unless it reads as a number, or is the name of that function. Anything may be compared
 * with nil. */
static const char *never_equal(qn_vm *vm, const n_binary *n, qn_value a, qn_value b) {
  const char *held = never_equal_held(n, a, b);
  if (held) return held;
  if (value_tag_of(a) > value_tag_of(b)) swap_values(&a, &b);
  value_tag ta = value_tag_of(a), tb = value_tag_of(b);
  if (ta == TAG_LIST && tb == TAG_ARRAY)
    return "a list is never equal to an array; lists are written ( ), as in x.shape == (3,), and array(list) is an "
           "array";
  if (ta == TAG_LIST && tb == TAG_RANGE) return "a list is never equal to a range; list(range) has its numbers";
  if (ta == TAG_ARRAY && tb == TAG_RANGE) return "an array is never equal to a range; arange(start, stop) is one";
  if (ta == TAG_BOOL && (tb == TAG_INT || tb == TAG_FLOAT))
    return "a bool is never equal to a number; x and not x test a bool, and int(x) is 0 or 1";
  if ((ta == TAG_INT || ta == TAG_FLOAT) && tb == TAG_STR && is_number_text(value_str(b)))
    return "a text is never equal to a number; int(text) or float(text) reads it";
  if (ta == TAG_BOOL && tb == TAG_STR &&
      (strcmp(value_str(b)->text, "true") == 0 || strcmp(value_str(b)->text, "false") == 0))
    return "a text is never equal to a bool; text == \"true\" makes one";
  if (ta == TAG_DTYPE && tb == TAG_STR)
    return "a dtype is never equal to a text; it is written without quotes, as in x.dtype == f32";
  if (ta == TAG_DEVICE && tb == TAG_STR)
    return "a device is never equal to a text; it is written without quotes, as in x.device == cpu or gpu(0)";
  if (ta == TAG_STR && tb == TAG_FN) {
    const qn_fn *f = value_fn(b);
    const char *name = f->head.flags == FN_BUILTIN ? ((const builtin_def *)f->code)->name
                       : vm->hooks.fn_name         ? vm->hooks.fn_name(b)
                                                   : NULL;
    if (name && (strcmp(value_str(a)->text, name) == 0 || (is_kind_name(name) && is_kind_name(value_str(a)->text))))
      return "a function is never equal to a text; the names of kinds and functions that are texts have quotes, as in "
             "type(x) == \"int\"";
  }
  if (tb == TAG_FN && (ta == TAG_BOOL || ta == TAG_INT || ta == TAG_FLOAT || ta == TAG_ARRAY))
    return "a function is never equal to a number or an array; f(...) calls it";
  return NULL;
}

/* Writes that warning, if there is one, but only once for each node. False with an error raised where nothing can be written, since the program is
 * recorded where it may not come to (rec_once). */
static bool warn_unequal(qn_vm *vm, n_binary *n, qn_value a, qn_value b) {
  const char *why = n->warned ? NULL : never_equal(vm, n, a, b);
  if (!why) return true;
  if (!rec_once(vm, "warning")) return false;
  n->warned = true;
  text_buf t = {0};
  text_warning(vm, &t, n->mark, why);
  if (!t.failed && t.text) vm_write_later(vm, t.text, t.len);
  text_free(&t);
  return true;
}

/* == and != by structure. Numbers and arrays in both values are observed by the recorder, since the answer depends on all of them; unless they are of
 * two kinds, as a list and nil. */
static qn_value equal_trees(qn_vm *vm, const n_binary *n, qn_value a, qn_value b) {
  if (value_tag_of(a) != value_tag_of(b) && !(value_is_operand(a) && value_is_operand(b)))
    return value_bool(n->op != AST_OP_eq);
  rec_at(vm, n->mark);
  int sizes = rec_symbolic(vm) ? rec_lists_equal(vm, a, b) : -2;
  if (sizes != -2) return sizes < 0 ? value_error() : value_bool((sizes == 1) == (n->op == AST_OP_eq));
  qn_value x = rec_observe_tree(vm, a), y = value_is_error(x) ? x : rec_observe_tree(vm, b);
  int equal = value_is_error(y) ? -1 : value_equal(vm, x, y);
  value_release(vm, x);
  value_release(vm, y);
  return equal < 0 ? value_error() : value_bool((equal == 1) == (n->op == AST_OP_eq));
}

/* a op b of any two values (borrowed), but for joining texts and lists. Owned, or the error value. */
static qn_value binary_borrowed(qn_vm *vm, const n_binary *n, qn_value a, qn_value b);

/* As binary_borrowed, while operands may hold stacked lists. */
static __attribute__((noinline, cold)) qn_value binary_plain(qn_vm *vm, const n_binary *n, qn_value a, qn_value b) {
  qn_value in[2] = {value_retain(a), value_retain(b)};
  int stacked = vm->asked.stacked;
  bool ok = rec_plain(vm, &in[0]) && rec_plain(vm, &in[1]);
  vm->asked.stacked = 0;
  qn_value r = ok ? binary_borrowed(vm, n, in[0], in[1]) : value_error();
  vm->asked.stacked = stacked;
  for (int k = 0; k < 2; k++) value_release(vm, in[k]);
  return r;
}

static qn_value binary_borrowed(qn_vm *vm, const n_binary *n, qn_value a, qn_value b) {
  ast_op op = (ast_op)n->op;
  if (__builtin_expect(vm->asked.stacked, 0) && (value_is(a, TAG_LIST) || value_is(a, TAG_RECORD)) &&
      (value_is(b, TAG_LIST) || value_is(b, TAG_RECORD)))
    return binary_plain(vm, n, a, b);
  bool traced = (value_node(a) | value_node(b)) != 0;
  if (!traced) {
    qn_value r;
    if (fast_numbers(op, a, b, &r)) return r;
    if (a.head == TAG_INT && b.head == TAG_INT) return int_binary(vm, n, a, b);
    if (a.head == TAG_BOOL && b.head == TAG_BOOL) {
      if (op == AST_OP_bitand) return value_bool(a.u.i & b.u.i);
      if (op == AST_OP_bitor) return value_bool(a.u.i | b.u.i);
    }
  }
  bool array = value_is(a, TAG_ARRAY) || value_is(b, TAG_ARRAY), numeric = value_is_operand(a) && value_is_operand(b);
  if (op == AST_OP_eq || op == AST_OP_ne) {
    if (numeric && (array || rec_number(vm, a) || rec_number(vm, b)) && op_equals(a, b)) return apply(vm, n, a, b);
    if (value_tag_of(a) != value_tag_of(b) && !warn_unequal(vm, (n_binary *)n, a, b)) return value_error();
    if (value_is_operand(a) != value_is_operand(b) && value_is_scalar(value_is_operand(a) ? a : b))
      return value_bool(op == AST_OP_ne); /* a number is none of the others, whichever it is */
    return equal_trees(vm, n, a, b);
  }
  if (op == AST_OP_matmul && !(value_is(a, TAG_ARRAY) && value_is(b, TAG_ARRAY))) return fail_kinds(vm, n, a, b);
  if (numeric) return apply(vm, n, a, b);
  if (value_is(a, TAG_STR) && value_is(b, TAG_STR) && ast_op_compares(op)) {
    if (!rec_look(vm, a) || !rec_look(vm, b)) return value_error();
    int c = str_compare(value_str(a), value_str(b));
    return value_bool(op == AST_OP_lt ? c < 0 : op == AST_OP_le ? c <= 0 : op == AST_OP_gt ? c > 0 : c >= 0);
  }
  return fail_kinds(vm, n, a, b);
}

/* The operation has failed: gives the error its place, and notes on the operands if one is an array. */
static __attribute__((noinline, cold)) void note_operands(qn_vm *vm, const n_binary *n, qn_value a, qn_value b) {
  raise_at(vm, n->mark);
  if (!value_is(a, TAG_ARRAY) && !value_is(b, TAG_ARRAY)) return;
  if (n->a) note_operand(vm, n->a->at, a, n->a);
  if (n->b) note_operand(vm, n->b->at, b, n->b);
}

qn_value binary_values(qn_vm *vm, const n_binary *n, qn_value a, qn_value b) {
  if (joins(n, a, b)) return join(vm, n, &a, b) ? a : value_fail(vm, a);
  qn_value r = binary_borrowed(vm, n, a, b);
  if (value_is_error(r)) note_operands(vm, n, a, b);
  value_release(vm, a);
  value_release(vm, b);
  return r;
}

/* ---- specialised evaluators ------------------------------------------------------------------------------------------------ */

enum { OWN_A = 1, OWN_B = 2 };

/* a op b if the inline function does not do it. Operands in `own` are taken over. If an operand is an error or signal, that is the result.
 * Arrays of few elements are tried first (op_binary_few). */
static inline __attribute__((always_inline)) qn_value on_values(qn_vm *vm, const n_binary *n, qn_value a, qn_value b,
                                                                int own) {
  qn_value r;
  if ((a.head == TAG_ARRAY || b.head == TAG_ARRAY) && n->op != AST_OP_matmul &&
      (r = op_binary_few(vm, (op_id)n->row, a, b)).head != TAG_UNSET) {
    if (__builtin_expect(value_is_error(r), 0)) note_operands(vm, n, a, b);
    if (own & OWN_A) value_release(vm, a);
    if (own & OWN_B) value_release(vm, b);
    return r;
  }
  if (value_stops(a)) return a;
  if (value_stops(b)) return b;
  return binary_values(vm, n, own & OWN_A ? a : value_retain(a), own & OWN_B ? b : value_retain(b));
}
#define ON_VALUES(name, own)                                                                                           \
  static __attribute__((noinline)) qn_value name(qn_vm *vm, const n_binary *n, qn_value a, qn_value b) {               \
    return on_values(vm, n, a, b, own);                                                                                \
  }
ON_VALUES(slow, 0)
ON_VALUES(slow_own_a, OWN_A)
ON_VALUES(slow_own_b, OWN_B)
ON_VALUES(slow_own_both, OWN_A | OWN_B)

bool binary_into(qn_vm *vm, const n_binary *n, qn_value *x, qn_value b) {
  if (joins(n, *x, b)) return join(vm, n, x, b);
  qn_value r = slow_own_b(vm, n, *x, b);
  if (value_is_error(r)) return false;
  slot_set(vm, x, r);
  return true;
}

/* The value of a node that is a global. */
#define VALUE_OF(node) ((const n_global *)(node))->cell->value

INLINE bool fast_other(qn_value a, qn_value b, int known, qn_value *r) {
  (void)a, (void)b, (void)known, (void)r;
  return false;
}

#define GET_A_LOCAL qn_value a = fp[n->sa];
#define GET_A_ANY qn_value a = eval(vm, n->a, fp);
#define GET_B_LOCAL qn_value b = fp[n->sb];
#define GET_B_CONST qn_value b = n->k;
#define EVALUATOR(name, suffix, get, known, own)                                                                       \
  static qn_value name##_##suffix(qn_vm *vm, node *h, qn_value *fp) {                                                  \
    n_binary *n = (n_binary *)h;                                                                                       \
    get;                                                                                                               \
    qn_value r;                                                                                                        \
    if (fast_##name(a, b, known, &r)) return r;                                                                        \
    return ((own) == 0       ? slow                                                                                    \
            : (own) == OWN_A ? slow_own_a                                                                              \
            : (own) == OWN_B ? slow_own_b                                                                              \
                             : slow_own_both)(vm, n, a, b);                                                            \
  }
/* Arrays in globals are borrowed: reading the other operand cannot rebind them. */
#define GET_VARIABLE_CONST                                                                                             \
  if (VALUE_OF(n->a).head == TAG_ARRAY && !rec_hears_globals(vm)) return slow(vm, n, VALUE_OF(n->a), n->k);            \
  GET_A_ANY GET_B_CONST
#define GET_VARIABLES                                                                                                  \
  if (VALUE_OF(n->a).head == TAG_ARRAY && VALUE_OF(n->b).head == TAG_ARRAY && !rec_hears_globals(vm))                  \
    return slow(vm, n, VALUE_OF(n->a), VALUE_OF(n->b));                                                                \
  GET_ANY_ANY
/* The left operand is a local that evaluating the right one does not rebind, so it can be read afterwards. */
#define GET_LOCAL_ANY                                                                                                  \
  qn_value b = eval(vm, n->b, fp);                                                                                     \
  qn_value a = fp[n->sa]
#define GET_ANY_ANY                                                                                                    \
  qn_value a = eval(vm, n->a, fp);                                                                                     \
  if (value_stops(a)) return a;                                                                                        \
  qn_value b = eval_beside(vm, n->b, fp, a);                                                                           \
  if (value_stops(b)) {                                                                                                \
    value_release(vm, a);                                                                                              \
    return b;                                                                                                          \
  }
#define EVALUATORS(name)                                                                                               \
  EVALUATOR(name, ll, GET_A_LOCAL GET_B_LOCAL, ANY, 0)                                                                 \
  EVALUATOR(name, li, GET_A_LOCAL GET_B_CONST, KNOWN_INT, 0)                                                           \
  EVALUATOR(name, lf, GET_A_LOCAL GET_B_CONST, KNOWN_FLOAT, 0)                                                         \
  EVALUATOR(name, lg, GET_LOCAL_ANY, ANY, OWN_B)                                                                       \
  EVALUATOR(name, gl, GET_A_ANY GET_B_LOCAL, ANY, OWN_A)                                                               \
  EVALUATOR(name, gi, GET_A_ANY GET_B_CONST, KNOWN_INT, OWN_A)                                                         \
  EVALUATOR(name, gf, GET_A_ANY GET_B_CONST, KNOWN_FLOAT, OWN_A)                                                       \
  EVALUATOR(name, gg, GET_ANY_ANY, ANY, OWN_A | OWN_B)                                                                 \
  EVALUATOR(name, vi, GET_VARIABLE_CONST, KNOWN_INT, OWN_A)                                                            \
  EVALUATOR(name, vf, GET_VARIABLE_CONST, KNOWN_FLOAT, OWN_A)                                                          \
  EVALUATOR(name, vv, GET_VARIABLES, ANY, OWN_A | OWN_B)
OPERATORS(EVALUATORS)
EVALUATORS(other)

/* The array that a node gives, if it can be found without evaluating the node; else NULL. For the transpose of such an array (x.T) it is
 * *turned, a view made here without a reference to the elements: it is only good for an op that runs at once, on the CPU. */
static inline qn_array *peek_matrix(const qn_vm *vm, const node *n, qn_value *fp, qn_array *turned) {
  const n_field *field = (const n_field *)n;
  bool turns = n->kind == N_FIELD && field->name->text[0] == 'T' && !field->name->text[1];
  if (turns) n = field->object;
  const qn_value *v = n->kind == N_GLOBAL ? &VALUE_OF(n) : peek(vm, n, fp, false);
  if (!v || v->head != TAG_ARRAY) return NULL;
  qn_array *a = value_array(*v);
  if (!turns || a->rank < 2) return a;
  if (a->rank > 2 || !a->storage || a->device) return NULL;
  turned->head = (obj_head){.refs = 1, .tag = TAG_ARRAY};
  turned->dtype = a->dtype;
  turned->rank = 2;
  turned->device = 0;
  turned->contiguous = false;
  turned->node = 0;
  turned->size = a->size;
  turned->offset = a->offset;
  turned->storage = a->storage;
  for (int i = 0; i < 2; i++) {
    turned->shape[i] = a->shape[1 - i];
    turned->strides[i] = a->strides[1 - i];
  }
  return turned;
}

/* x @ y, where the operands are variables, what is reached from them, or transposes of these: they are borrowed if possible. */
static qn_value eval_product(qn_vm *vm, node *h, qn_value *fp) {
  n_binary *n = (n_binary *)h;
  qn_array turned[2];
  qn_array *x = op_deferred(vm) ? NULL : peek_matrix(vm, n->a, fp, &turned[0]);
  qn_array *y = x ? peek_matrix(vm, n->b, fp, &turned[1]) : NULL;
  if (y) {
    qn_value r = matmul(vm, n, x, y);
    if (value_is_error(r)) note_operands(vm, n, value_obj(TAG_ARRAY, x), value_obj(TAG_ARRAY, y));
    return r;
  }
  GET_ANY_ANY
  return slow_own_both(vm, n, a, b);
}

static bool is_peeked(node_kind kind) {
  return kind == N_LOCAL || kind == N_GLOBAL || kind == N_FIELD || kind == N_INDEX;
}

eval_fn binary_eval(ast_op op, node_kind left, node_kind right, qn_value k) {
  if (op == AST_OP_matmul && is_peeked(left) && is_peeked(right)) return eval_product;
  enum { LL, LI, LF, LG, GL, GI, GF, GG, VI, VF, VV, SHAPES };
#define EVALUATORS_OF(name)                                                                                            \
  {                                                                                                                    \
    name##_ll, name##_li, name##_lf, name##_lg, name##_gl, name##_gi, name##_gf, name##_gg, name##_vi, name##_vf,      \
        name##_vv                                                                                                      \
  }
#define ROW(name) [AST_OP_##name] = EVALUATORS_OF(name),
  static const eval_fn table[AST_OP_COUNT][SHAPES] = {OPERATORS(ROW)}, others[SHAPES] = EVALUATORS_OF(other);
#undef ROW
  int shape = right == N_LOCAL                          ? LL
              : right == N_CONST && k.head == TAG_INT   ? LI
              : right == N_CONST && k.head == TAG_FLOAT ? LF
                                                        : LG;
  bool variable = left == N_GLOBAL && (shape != LG || right == N_GLOBAL) && shape != LL;
  const eval_fn *evaluators = table[op][LL] ? table[op] : others;
  return evaluators[left == N_LOCAL ? shape : variable ? shape + VI - LI : shape + GL];
}

/* ---- x = x op e ---------------------------------------------------------------------------------------------------------------- */

static __attribute__((noinline)) qn_value accumulate(qn_vm *vm, const n_binary *n, qn_value *x, qn_value b, int own) {
  if (value_stops(b)) return b;
  if (!(own & OWN_B)) value_retain(b);
  return binary_into(vm, n, x, b) ? value_nil() : value_error();
}

#define GET_B_ANY qn_value b = eval(vm, n->b, fp);
#define ACCUMULATOR(name, suffix, get, known, own)                                                                     \
  static qn_value into_##name##_##suffix(qn_vm *vm, node *h, qn_value *fp) {                                           \
    const n_binary *n = (const n_binary *)((n_assign *)h)->value;                                                      \
    get;                                                                                                               \
    qn_value *x = &fp[h->slot], r;                                                                                     \
    if (!fast_##name(*x, b, known, &r)) return accumulate(vm, n, x, b, own);                                           \
    *x = r; /* the slot held a number, so there is nothing to release */                                               \
    return value_nil();                                                                                                \
  }
#define ACCUMULATORS(name)                                                                                             \
  ACCUMULATOR(name, l, GET_B_LOCAL, ANY, 0)                                                                            \
  ACCUMULATOR(name, i, GET_B_CONST, KNOWN_INT, 0)                                                                      \
  ACCUMULATOR(name, f, GET_B_CONST, KNOWN_FLOAT, 0)                                                                    \
  ACCUMULATOR(name, g, GET_B_ANY, ANY, OWN_B)
ACCUMULATORS(add)
ACCUMULATORS(sub)
ACCUMULATORS(mul)

eval_fn accumulate_eval(const n_binary *n) {
  enum { L, I, F, G, SHAPES };
#define ROW(name) [AST_OP_##name] = { into_##name##_l, into_##name##_i, into_##name##_f, into_##name##_g }
  static const eval_fn table[AST_OP_COUNT][SHAPES] = {ROW(add), ROW(sub), ROW(mul)};
#undef ROW
  return table[n->op][n->b->kind == N_LOCAL ? L : n->k.head == TAG_INT ? I : n->k.head == TAG_FLOAT ? F : G];
}

qn_value eval_add_global(qn_vm *vm, node *h, qn_value *fp) {
  const n_assign *a = (const n_assign *)h;
  const n_binary *n = (const n_binary *)a->value;
  global_cell *c = a->target->cell;
  if (rec_hears_globals(vm) || c->value.head == TAG_UNSET) return eval_set_global(vm, h, fp);
  qn_value b = eval(vm, n->b, fp), r;
  if (value_stops(b)) return b;
  if (__builtin_expect(c->rec.watched != 0, 0)) {
    r = binary_values(vm, n, value_retain(c->value), b);
    if (value_is_error(r)) return r;
    cell_set(vm, c, r);
  } else if (fast_add(c->value, b, ANY, &r)) {
    c->value = r;
  } else if (!binary_into(vm, n, &c->value, b)) {
    return value_error();
  }
  cell_defined(vm, c, a->target->at);
  return value_nil();
}

/* ---- unary operators, logic --------------------------------------------------------------------------------------------------- */

static __attribute__((noinline, cold)) qn_value fail_unary(qn_vm *vm, const n_one *n, qn_value a) {
  const char *op = n->h.flag == AST_OP_neg ? "-" : "~";
  return raise_error(vm, E_type, n->mark, "%s is not defined for %s", op, phrase_kind(a).text);
}

qn_value eval_unary(qn_vm *vm, node *h, qn_value *fp) {
  n_one *n = (n_one *)h;
  qn_value a = eval(vm, n->a, fp);
  bool neg = h->flag == AST_OP_neg;
  if (a.head == TAG_INT) {
    if (!neg) return value_int(~a.u.i);
    if (a.u.i != INT64_MIN) return value_int(-a.u.i);
    return raise_error(vm, E_overflow, n->mark, "-(%lld) does not fit 64 bits", (long long)a.u.i);
  }
  if (a.head == TAG_FLOAT && neg) return value_float(-a.u.f);
  if (a.head == TAG_BOOL && !neg) return value_bool(!a.u.i);
  if (value_stops(a)) return a;
  qn_value r;
  if (value_is_operand(a)) {
    rec_at(vm, n->mark);
    r = op_unary(vm, neg ? OP_neg : OP_invert, a);
  } else {
    r = fail_unary(vm, n, a);
  }
  if (value_is_error(r)) {
    raise_at(vm, n->mark);
    note_operand(vm, n->a->at, a, n->a);
  }
  value_release(vm, a);
  return r;
}

static __attribute__((noinline, cold)) qn_value fail_condition(qn_vm *vm, qn_value v, const node *n) {
  text_buf t = {.vm = vm}, source = {.vm = vm};
  text_span(vm, &source, n->at);
  const char *x = source.text && !source.failed ? source.text : "x";
  text_addf(&t, "%s is not a condition; write ", phrase_kind(v).text);
  if (value_is_number(v))
    text_addf(&t, "%s != 0", x);
  else if (value_is(v, TAG_STR))
    text_addf(&t, "%s != \"\"", x);
  else if (value_is(v, TAG_LIST) || value_is(v, TAG_RECORD) || value_is(v, TAG_RANGE))
    text_addf(&t, "len(%s) > 0", x);
  else if (value_is(v, TAG_ARRAY))
    text_addf(&t,
              dtype_is_bool(value_array(v)->dtype) ? "any(%s) or all(%s); elementwise logic is & | ~"
                                                   : "any(%s != 0) or all(%s != 0)",
              x, x);
  else
    text_addf(&t, "%s != nil", x);
  text_free(&source);
  return raise_text(vm, E_condition, n->at, &t);
}

/* As fail_condition, for an operand of `and` or `or`, with which other languages choose a value. */
static __attribute__((noinline, cold)) qn_value fail_operand(qn_vm *vm, qn_value v, const node *n) {
  if (!value_is(v, TAG_NIL) && !value_is(v, TAG_STR)) return fail_condition(vm, v, n);
  const char *more = value_is(v, TAG_NIL) ? "; a default for nil is written if x == nil { d } else { x }, and "
                                            "get(r, \"name\", d), env(\"NAME\", d) take one"
                                          : ", and and, or give bools; a choice is written if c { a } else { b }, "
                                            "a test text != \"\"";
  return raise_error(vm, E_condition, n->at, "%s is not a condition%s", phrase_kind(v).text, more);
}

/* Is it a bool, or a bool array of one element, so that it can be a condition? */
static bool truth_kind(qn_value v) {
  if (value_is(v, TAG_BOOL)) return true;
  return value_is(v, TAG_ARRAY) && dtype_is_bool(value_array(v)->dtype) && value_array(v)->size == 1;
}

int condition(qn_vm *vm, qn_value v, node *n) {
  if (v.head == TAG_BOOL) return v.u.i != 0;
  int truth = -1;
  if (truth_kind(v)) {
    truth = rec_truth(vm, v, n->at);
    if (truth < 0) raise_at(vm, n->at);
  } else {
    fail_condition(vm, v, n);
  }
  value_release(vm, v);
  return truth;
}

/* A bool array of one element with rank 0; other values stay. Takes over `v`. Owned, or the error value. */
static qn_value as_rank0(qn_vm *vm, qn_value v) {
  if (!value_is(v, TAG_ARRAY) || value_array(v)->rank == 0) return v;
  qn_value r = op_reshape(vm, v, 0, NULL);
  value_release(vm, v);
  return r;
}

qn_value eval_not(qn_vm *vm, node *h, qn_value *fp) {
  n_one *n = (n_one *)h;
  qn_value a = eval(vm, n->a, fp);
  if (a.head == TAG_BOOL) return value_bool(!a.u.i);
  if (value_stops(a)) return a;
  qn_value r;
  if (truth_kind(a)) {
    rec_at(vm, n->mark);
    r = op_unary(vm, OP_invert, a);
    if (!value_is_error(r)) r = as_rank0(vm, r);
    if (value_is_error(r)) raise_at(vm, n->mark);
  } else {
    r = fail_condition(vm, a, n->a);
  }
  value_release(vm, a);
  return r;
}

/* An operand of `and` or `or`, as an arm for rec_if. */
typedef struct logic_arm {
  qn_vm *vm;
  node *n; /* NULL: it has been evaluated, to `v` */
  qn_value *fp, v;
  bool to_array, to_bool; /* a bool becomes an array; an array becomes a bool */
} logic_arm;

static qn_value run_logic_arm(void *ctx, rec_exit *how) {
  logic_arm *a = ctx;
  qn_value v = a->n ? eval(a->vm, a->n, a->fp) : value_retain(a->v);
  if (value_stops(v)) {
    *how = REC_ERROR;
    return v;
  }
  if (!truth_kind(v)) {
    fail_condition(a->vm, v, a->n);
    *how = REC_ERROR;
    return value_fail(a->vm, v);
  }
  v = as_rank0(a->vm, v);
  qn_value made = value_unset();
  if (a->to_array && value_is(v, TAG_BOOL))
    made = op_apply(a->vm, OP_fit, &v, 1, &(op_attr){.dtype = DTYPE_TEST});
  else if (a->to_bool && value_is(v, TAG_ARRAY))
    made = rec_host_number(a->vm, v, WEAK_BOOL);
  if (!value_is(made, TAG_UNSET)) {
    value_release(a->vm, v);
    v = made;
  }
  if (value_is_error(v)) *how = REC_ERROR;
  return v;
}

/* The variables that b may rebind. -1: there are too many. */
static int assigned_slots(const n_binary *n, qn_value *fp, qn_value **slots) {
  const site *s = ((const n_logic *)n)->site;
  return s ? site_slots(s, fp, slots) : 0;
}

/* a and b, a or b, if `a` (taken over) differs between lanes of a vmap: `b` is evaluated for the lanes in which `a` does not decide. */
static qn_value logic_lanes(qn_vm *vm, n_binary *n, qn_value *fp, qn_value a, bool is_or) {
  qn_value *slots[SITE_MAX];
  int count = assigned_slots(n, fp, slots);
  if (count < 0) {
    value_release(vm, a);
    return raise_error(vm, E_not_batched, n->h.at, "vmap: a branch here rebinds at most %d variables", SITE_MAX - 1);
  }
  logic_arm keep = {.vm = vm, .fp = fp, .v = a}, other = {.vm = vm, .n = n->b, .fp = fp};
  rec_arm arms[2] = {{run_logic_arm, is_or ? &keep : &other}, {run_logic_arm, is_or ? &other : &keep}};
  qn_value result = value_nil();
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &a);
  const rec_branch branch = {
      .at = n->h.at, .then = arms[0], .otherwise = arms[1], .assigned = {slots, count}, .used = true};
  rec_answer answer = rec_if(vm, &branch, a, &result);
  vm_disown(vm, &held);
  value_release(vm, a);
  return answer == REC_DONE ? result : answer == REC_LEFT ? value_signal(SIGNAL_RETURN) : value_error();
}

/* Offers a and b, a or b to the recorder. Borrows `a`. REC_DONE: *result is set. */
static __attribute__((noinline)) rec_answer offer_logic(qn_vm *vm, n_binary *n, qn_value *fp, qn_value a, bool is_or,
                                                        qn_value *result) {
  bool array = value_is(a, TAG_ARRAY), test = n->h.flag & LOGIC_TEST;
  logic_arm keep = {.vm = vm, .fp = fp, .v = array ? a : value_bool(is_or)}, other = {.vm = vm, .n = n->b, .fp = fp};
  other.to_array = array;
  other.to_bool = !array && test;
  rec_arm arms[2] = {{run_logic_arm, is_or ? &keep : &other}, {run_logic_arm, is_or ? &other : &keep}};
  qn_value *slots[SITE_MAX];
  int count = assigned_slots(n, fp, slots);
  if (count < 0) return REC_NOT_YET;
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &a);
  const rec_branch branch = {
      .at = n->h.at, .then = arms[0], .otherwise = arms[1], .assigned = {slots, count}, .used = true};
  rec_answer answer = count ? rec_if(vm, &branch, a, result) : rec_logic(vm, &branch, a, is_or, result);
  vm_disown(vm, &held);
  return answer;
}

/* a and b, a or b, where the truth of `a` (taken over) is to be known. */
static inline qn_value decide(qn_vm *vm, n_binary *n, qn_value *fp, qn_value a, bool is_or) {
  bool array = value_is(a, TAG_ARRAY);
  int truth;
  if (array) {
    truth = condition(vm, value_retain(a), n->a);
    if (truth < 0) return value_fail(vm, a);
  } else if (value_is(a, TAG_NIL) || value_is(a, TAG_STR)) {
    fail_operand(vm, a, n->a);
    return value_fail(vm, a);
  } else {
    truth = condition(vm, a, n->a);
    if (truth < 0) return value_error();
  }
  if ((truth != 0) == is_or) return array ? as_rank0(vm, a) : value_bool(is_or);
  value_release(vm, a);
  qn_value b = eval(vm, n->b, fp);
  if (value_stops(b)) return b;
  if (!truth_kind(b)) {
    fail_operand(vm, b, n->b);
    return value_fail(vm, b);
  }
  if (value_is(b, TAG_ARRAY)) return as_rank0(vm, b);
  if (!array) return b;
  qn_array *r = array_settle(vm, array_from_scalar(vm, DTYPE_TEST, (qn_value){.head = TAG_BOOL, .u = b.u}));
  return r ? rec_literal(vm, r) : value_error();
}

/* Inside a gradient, behind the right side or in place of it: tells the variables that it may rebind apart (rec_part_arm). `v` is the value. */
static __attribute__((noinline)) qn_value part_assigned(qn_vm *vm, n_binary *n, qn_value *fp, uint32_t from,
                                                        qn_value v) {
  qn_value *slots[SITE_MAX];
  int count = value_stops(v) ? -1 : assigned_slots(n, fp, slots);
  return count < 0 || rec_part_arm(vm, from, (rec_slots){slots, count}, &v) ? v : value_fail(vm, v);
}

/* a and b; a or b if the flag has LOGIC_OR. The result is a bool, or a bool array of rank 0 if an evaluated operand was an array. */
qn_value eval_logic(qn_vm *vm, node *h, qn_value *fp) {
  n_binary *n = (n_binary *)h;
  qn_value a = eval(vm, n->a, fp);
  bool is_or = h->flag & LOGIC_OR;
  if (value_stops(a)) return a;
  if (truth_kind(a) && rec_is_lane(vm, a)) return logic_lanes(vm, n, fp, a, is_or);
  if (rec_may_branch(vm, a) && truth_kind(a)) {
    qn_value result = value_nil();
    rec_answer answer = offer_logic(vm, n, fp, a, is_or, &result);
    if (answer != REC_NOT_YET) {
      value_release(vm, a);
      return answer == REC_DONE ? result : value_error();
    }
  }
  uint32_t from = __builtin_expect(op_deferred(vm), 0) && ((n_logic *)n)->site ? rec_part_from(vm, a, h->at) : 0;
  qn_value r = decide(vm, n, fp, a, is_or);
  return __builtin_expect(from != 0, 0) ? part_assigned(vm, n, fp, from, r) : r;
}
