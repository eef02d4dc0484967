/* Random numbers: the RANDOM ops with their key and draw number, and what is made of their bits.
 *
 *   without a key   key words from the VM's seed, draw number from its counter, which moves on by one a call
 *   with a key      key words from the key, an i64[2] array; draw number 0, so the counter stays
 *   split           the key's bits of draw number 2^64 - 1: the low 32 bits are the first word, the next 32 the second
 *   randint         63 bits of each element, modulo the number of values (a bias below 2^-31 up to 2^32 values)
 *   bernoulli       uniform < p
 *   permutation     stable argsort of 64 bits an element
 */
#include "stdlib/builtins.h"

/* Reads an argument that is a key, or nil for the VM's own counter, into *d. False with an error raised. */
static inline __attribute__((always_inline)) bool key_arg(qn_vm *vm, const char *fn, qn_value key, op_drawing *d) {
  const qn_array *a = is_array(key) ? value_array(key) : NULL;
  d->key = key;
  d->number = 0;
  if (key.head == TAG_NIL || (a && a->dtype == DTYPE_INDEX && a->rank == 1 && a->shape[0] == 2)) return true;
  return arg_wrong(vm, fn, "a random key as key(n) makes it, i64[2]", key);
}

static __attribute__((noinline)) bool float_dtype(qn_vm *vm, const char *fn, qn_value v, qn_dtype *out) {
  if (!arg_dtype(vm, fn, v, DTYPE_FLOAT, out)) return false;
  if (dtype_is_float(*out)) return true;
  return raise_false(vm, E_dtype, "%s: numbers of %s; randint draws integers and bernoulli bools", fn,
                     dtype_rows[*out].name);
}

static inline __attribute__((always_inline)) qn_value draw_floats(qn_vm *vm, const char *fn, op_id op,
                                                                  const qn_value *args) {
  op_drawing d;
  d.dtype = DTYPE_FLOAT;
  if (!arg_shape(vm, fn, args[0], d.shape, &d.rank)) return value_error();
  if (args[1].head != TAG_NIL && !float_dtype(vm, fn, args[1], &d.dtype)) return value_error();
  return key_arg(vm, fn, args[2], &d) ? op_draw(vm, op, &d) : value_error();
}

qn_value builtin_rand(qn_vm *vm, const qn_value *args) { return draw_floats(vm, "rand", OP_random_uniform, args); }
qn_value builtin_randn(qn_vm *vm, const qn_value *args) { return draw_floats(vm, "randn", OP_random_normal, args); }

/* The integer dtype that a dtype argument names, which must hold the integers from low to high - 1. -1 with an error raised. */
static __attribute__((noinline)) int int_dtype(qn_vm *vm, qn_value v, int64_t low, int64_t high) {
  qn_dtype dtype;
  if (!arg_dtype(vm, "randint", v, DTYPE_INT, &dtype)) return -1;
  if (high <= low || /* an empty range is reported by the caller */
      (dtype_is_int(dtype) && dtype_holds(dtype, value_int(low)) && dtype_holds(dtype, value_int(high - 1))))
    return (int)dtype;
  raise_error(vm, E_dtype, SPAN_NONE, "randint: %s does not hold the integers from %lld to %lld",
              dtype_rows[dtype].name, (long long)low, (long long)high - 1);
  return -1;
}

/* Is `a op b` true of host ints? If one is traced the recorder notes the answer as a guard. 1, 0, or -1 with an error raised. */
static int holds(qn_vm *vm, op_id op, qn_value a, qn_value b) {
  if (!value_node(a) && !value_node(b)) return op == OP_lt ? a.u.i < b.u.i : a.u.i <= b.u.i;
  qn_value answer = op2(vm, op, a, b, NULL);
  if (!value_is_error(answer)) answer = rec_observe(vm, answer);
  return value_is_error(answer) ? -1 : answer.u.i != 0;
}

/* May integers between bounds that are traced be drawn whatever these are? That there are some, and how far apart they lie, becomes a guard. 1, 0, or
 * -1 with an error raised. */
static int may_vary(qn_vm *vm, qn_value low, qn_value high) {
  const int64_t far = (int64_t)1 << 62;
  int good = holds(vm, OP_lt, low, high);
  if (good == 1) good = holds(vm, OP_le, value_int(-far), low);
  return good == 1 ? holds(vm, OP_lt, high, value_int(far)) : good;
}

/* randint between known bounds, of the shape in *d. */
static inline __attribute__((always_inline)) qn_value randint_between(qn_vm *vm, const qn_value *args, op_drawing *d,
                                                                      int64_t low, int64_t high) {
  const uint64_t most = (uint64_t)1 << 63;
  int dtype = DTYPE_INT;
  if (args[3].head != TAG_NIL && (dtype = int_dtype(vm, args[3], low, high)) < 0) return value_error();
  uint64_t values = (uint64_t)high - (uint64_t)low;
  if (high <= low || values > most)
    return raise_error(vm, E_argument, SPAN_NONE, "randint: from %lld to %lld - 1 there are %s", (long long)low,
                       (long long)high, high <= low ? "no integers" : "more than 2**63 integers");
  d->dtype = (qn_dtype)dtype;
  return key_arg(vm, "randint", args[4], d) ? op_draw_ints(vm, d, low, values) : value_error();
}

/* randint between bounds of which one is traced, of the shape in *d: they stay so if that can be, else they are observed. */
static __attribute__((noinline)) qn_value traced_randint(qn_vm *vm, const qn_value *args, op_drawing *d) {
  int vary = args[3].head == TAG_NIL ? may_vary(vm, args[0], args[1]) : 0;
  d->dtype = DTYPE_INT;
  if (vary < 0 || (vary && !key_arg(vm, "randint", args[4], d))) return value_error();
  qn_value values = vary ? op2(vm, OP_sub, args[1], args[0], NULL) : value_nil();
  if (value_is_error(values)) return values;
  if (vary && op_deferred(vm)) return op_draw_ints_of(vm, d, args[0], values);
  qn_value low = rec_observe(vm, args[0]), high = value_is_error(low) ? low : rec_observe(vm, args[1]);
  return value_is_error(high) ? high : randint_between(vm, args, d, low.u.i, high.u.i);
}

qn_value builtin_randint(qn_vm *vm, const qn_value *args) {
  int64_t low, high;
  op_drawing d;
  if (!arg_int(vm, "randint", "an int as low", args[0], &low) ||
      !arg_int(vm, "randint", "an int as high", args[1], &high) || !arg_shape(vm, "randint", args[2], d.shape, &d.rank))
    return value_error();
  if (value_node(args[0]) | value_node(args[1])) return traced_randint(vm, args, &d);
  return randint_between(vm, args, &d, low, high);
}

/* Checks that a host number lies from 0 to 1. If it is traced the recorder notes the answer as a guard. */
static bool is_probability(qn_vm *vm, const char *fn, qn_value p) {
  if (p.head == TAG_FLOAT ? p.u.f >= 0 && p.u.f <= 1 : p.head == TAG_INT && (uint64_t)p.u.i <= 1) return true;
  for (int side = 0; side < 2; side++) {
    qn_value bound = value_float(side), holds = op2(vm, side ? OP_le : OP_ge, p, bound, NULL);
    if (!value_is_error(holds)) holds = rec_observe(vm, holds);
    if (value_is_error(holds)) return false;
    if (holds.u.i) continue;
    if (value_is(p, TAG_INT))
      return raise_false(vm, E_argument, "%s: a probability lies from 0 to 1, it is not %lld", fn, (long long)p.u.i);
    return raise_false(vm, E_argument, "%s: a probability lies from 0 to 1, it is not %s", fn,
                       phrase_float(p.u.f).text);
  }
  return true;
}

qn_value builtin_bernoulli(qn_vm *vm, const qn_value *args) {
  qn_value p = args[0];
  if (!is_array(p) && !value_is_number(p)) return arg_refuse(vm, "bernoulli", "a number or an array as p", p);
  if (!is_array(p) && !is_probability(vm, "bernoulli", p)) return value_error();
  op_drawing d;
  if (!arg_shape(vm, "bernoulli", args[1], d.shape, &d.rank) || !key_arg(vm, "bernoulli", args[2], &d))
    return value_error();
  if (value_list(args[1])->len == 0 && is_array(p)) {
    d.rank = value_array(p)->rank;
    rec_sizes(vm, p, d.shape);
  }
  d.dtype = is_array(p) && value_array(p)->dtype == DTYPE_WIDE ? DTYPE_WIDE : DTYPE_FLOAT;
  return use2(vm, OP_lt, op_draw(vm, OP_random_uniform, &d), value_retain(p), NULL);
}

qn_value builtin_permutation(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  int64_t n, sizes[ARRAY_MAX_RANK];
  bool rows = is_array(x) && value_array(x)->rank > 0;
  if (rows ? !rec_sizes_of_call(vm, x, sizes)
           : !arg_int(vm, "permutation", "an int or an array of rank 1 or more", x, &n))
    return value_error();
  if (!rows && n < 0) return raise_error(vm, E_shape, SPAN_NONE, "permutation: size %lld is negative", (long long)n);
  if (!rows && !rec_size(vm, x, &n)) return value_error();
  op_drawing d = {.dtype = DTYPE_INDEX, .rank = 1, .shape = {rows ? sizes[0] : n}};
  if (!key_arg(vm, "permutation", args[1], &d)) return value_error();
  qn_value bits = op_draw(vm, OP_random_bits, &d);
  if (value_is_error(bits)) return bits;
  qn_value order = used(vm, bits, op_sort(vm, OP_argsort, bits, 0, false));
  return !rows || value_is_error(order) ? order : used(vm, order, op_take(vm, x, order, 0));
}

qn_value builtin_seed(qn_vm *vm, const qn_value *args) {
  int64_t n;
  if (!value_is(args[0], TAG_INT) && !arg_int(vm, "seed", "an int", args[0], &n)) return value_error();
  return rec_seed(vm, value_is(args[0], TAG_INT) ? args[0] : value_int(n)) ? value_nil() : value_error();
}

qn_value builtin_key(qn_vm *vm, const qn_value *args) {
  int64_t n;
  if (!arg_int(vm, "key", "an int", args[0], &n)) return value_error();
  int64_t words[2] = {n & 0xffffffff, (int64_t)((uint64_t)n >> 32)};
  return array_of_ints(vm, words, 2);
}

qn_value random_split(qn_vm *vm, qn_value key, int64_t n) {
  if (n < 0) return raise_error(vm, E_shape, SPAN_NONE, "split: %lld keys", (long long)n);
  op_drawing d = {.dtype = DTYPE_INDEX, .rank = 2, .shape = {n, 1}};
  if (!key_arg(vm, "split", key, &d)) return value_error();
  d.number = -1;
  qn_value bits = op_draw(vm, OP_random_bits, &d);
  if (value_is_error(bits)) return bits;
  qn_value mask = value_int(0xffffffff);
  qn_value words[2] = {op2(vm, OP_bitand, bits, mask, NULL),
                       use2(vm, OP_bitand, op2(vm, OP_shr, bits, value_int(32), NULL), mask, NULL)};
  value_release(vm, bits);
  if (!value_is_error(words[0]) && !value_is_error(words[1])) return use_concat(vm, words, 2, 1);
  value_release(vm, words[0]);
  return value_fail(vm, words[1]);
}
