/* Random numbers: the RANDOM ops with their key and draw number, and what is made of their bits.
 *
 *   without a key   key words from the VM's seed, draw number from its counter, which moves on by one a call
 *   with a key      key words from the key, an i64[2] array; draw number 0, so the counter stays
 *   split           the key's bits of draw number 2^64 - 1: the low 32 bits are the first word, the next 32 the second
 *   randint         63 bits of each element, modulo the number of values (a bias below 2^-31 up to 2^32 values)
 *   bernoulli       uniform < p
 *   permutation     stable argsort of 64 bits an element
 */
#include <string.h>

#include "jit/cpu/eager_random.h"
#include "stdlib/builtins.h"

static qn_value key_word(qn_vm *vm, qn_value key, int i) {
  const qn_array *a = value_array(key);
  if (!vm->rec && !array_pending(a) && a->device == vm->device) {
    qn_value word;
    return array_item(vm, value_array(key), i, &word) ? word : value_error();
  }
  return use_shape(vm, to_slice(vm, key, 0, i, 1, 1), 0, NULL);
}

/* The operands of a RANDOM op (owned): key words and draw number. */
static bool operands(qn_vm *vm, const char *fn, qn_value key, int64_t draw, qn_value in[3]) {
  if (value_is(key, TAG_NIL)) {
    rec_key(vm, &in[0], &in[1]);
    in[2] = rec_draw(vm);
    return !value_is_error(in[2]);
  }
  const qn_array *a = is_array(key) ? value_array(key) : NULL;
  if (!a || a->dtype != QN_i64 || a->rank != 1 || a->shape[0] != 2) {
    arg_refuse(vm, fn, "a random key as key(n) makes it, i64[2]", key);
    return false;
  }
  in[2] = value_int(draw);
  in[0] = key_word(vm, key, 0);
  if (value_is_error(in[0])) return false;
  in[1] = key_word(vm, key, 1);
  if (!value_is_error(in[1])) return true;
  value_release(vm, in[0]);
  return false;
}

/* array_form of a key that can be read here. */
static inline uint32_t key_form(void) {
  static const uint8_t bytes[4] = {QN_i64, 1, 0, true};
  uint32_t form;
  memcpy(&form, bytes, sizeof form);
  return form;
}

/* Numbers at once, while nothing is recorded: fills the words in. Unset: not so, nothing is drawn. */
static inline __attribute__((always_inline)) qn_value draw_few(qn_vm *vm, op_id op, eager_drawing *d, qn_value key,
                                                               int64_t number, bool below) {
  bool counted = key.head == TAG_NIL;
  const qn_array *a = value_array(key);
  if (vm->rec) return value_unset();
  if (counted) {
    d->words[0] = vm->seed, d->words[1] = vm->seed >> 32, d->words[2] = vm->draw;
  } else if (key.head == TAG_ARRAY && array_form(a) == key_form() && a->size == 2 && a->storage) {
    memcpy(d->words, a->storage->data + a->offset * (int64_t)sizeof *d->words, 2 * sizeof *d->words);
    d->words[2] = (uint64_t)number;
  } else {
    return value_unset();
  }
  qn_value out = eager_draw(vm, op, d, below);
  if (counted) vm->draw += out.head != TAG_UNSET;
  return out;
}

static __attribute__((noinline)) bool other_sizes(qn_vm *vm, const char *fn, qn_value rest, eager_drawing *d) {
  if (!arg_shape(vm, fn, rest, d->shape, &d->rank)) return false;
  d->n = drawing_size(d);
  return true;
}

/* Sizes as arg_shape has them, most of which are plain. */
static inline __attribute__((always_inline)) bool sizes_of(qn_vm *vm, const char *fn, qn_value rest, eager_drawing *d) {
  const qn_list *l = value_list(rest);
  if (rest.head != TAG_LIST || l->len - 1 >= 4) return other_sizes(vm, fn, rest, d);
  const qn_value *item = l->items;
  uint64_t n = 1;
  int rank = (int)l->len;
  int i = 0;
  do {
    if (__builtin_expect(item->head != TAG_INT || (uint64_t)item->u.i > 1 << 12, 0)) /* less than 2**48 elements */
      return other_sizes(vm, fn, rest, d);
    d->shape[i] = item->u.i;
    n *= (uint64_t)item++->u.i;
  } while (++i < rank);
  d->rank = rank;
  d->n = n;
  return true;
}

static __attribute__((noinline)) qn_value draw_op(qn_vm *vm, const char *fn, op_id op, const eager_drawing *d,
                                                  qn_value key, int64_t number) {
  op_attr attr = {
      .dtype = (uint8_t)d->dtype, .mode = value_is(key, TAG_NIL) ? DRAW_COUNTED : DRAW_KEYED, .n = (uint8_t)d->rank};
  for (int i = 0; i < d->rank; i++) attr.d[i] = d->shape[i];
  qn_value in[3];
  if (!operands(vm, fn, key, number, in)) return value_error();
  return use3(vm, op, in[0], in[1], in[2], &attr);
}

static inline __attribute__((always_inline)) qn_value draw(qn_vm *vm, const char *fn, op_id op, eager_drawing *d,
                                                           qn_value key, int64_t number) {
  qn_value few = draw_few(vm, op, d, key, number, false);
  return few.head == TAG_UNSET ? draw_op(vm, fn, op, d, key, number) : few;
}

static __attribute__((noinline)) bool float_dtype(qn_vm *vm, const char *fn, qn_value v, qn_dtype *out) {
  if (!arg_dtype(vm, fn, v, QN_f32, out)) return false;
  if (dtype_is_float(*out)) return true;
  raise_error(vm, E_dtype, SPAN_NONE, "%s: numbers of %s; randint draws integers and bernoulli bools", fn,
              dtype_rows[*out].name);
  return false;
}

static inline __attribute__((always_inline)) qn_value draw_floats(qn_vm *vm, const char *fn, op_id op,
                                                                  const qn_value *args) {
  eager_drawing d;
  if (!sizes_of(vm, fn, args[0], &d)) return value_error();
  d.dtype = QN_f32;
  if (args[1].head != TAG_NIL && !float_dtype(vm, fn, args[1], &d.dtype)) return value_error();
  return draw(vm, fn, op, &d, args[2], 0);
}

qn_value builtin_rand(qn_vm *vm, const qn_value *args) { return draw_floats(vm, "rand", OP_random_uniform, args); }
qn_value builtin_randn(qn_vm *vm, const qn_value *args) { return draw_floats(vm, "randn", OP_random_normal, args); }

static __attribute__((noinline)) bool is_int(qn_vm *vm, const char *fn, const char *what, qn_value v) {
  int64_t i;
  return arg_int(vm, fn, what, v, &i);
}

/* The integer dtype that was asked for and holds what is drawn; or -1 with an error raised. */
static __attribute__((noinline)) int int_dtype(qn_vm *vm, qn_value v, int64_t low, int64_t high) {
  qn_dtype dtype;
  if (!arg_dtype(vm, "randint", v, QN_i64, &dtype)) return -1;
  if (high <= low || /* which is told first */
      (dtype_is_int(dtype) && dtype_holds(dtype, value_int(low)) && dtype_holds(dtype, value_int(high - 1))))
    return (int)dtype;
  raise_error(vm, E_dtype, SPAN_NONE, "randint: %s does not hold the integers from %lld to %lld",
              dtype_rows[dtype].name, (long long)low, (long long)high - 1);
  return -1;
}

/* Integers from d->low on, below d->low + d->values. */
static __attribute__((noinline)) qn_value draw_ints(qn_vm *vm, eager_drawing *d, qn_value key) {
  qn_value x = draw_few(vm, OP_random_bits, d, key, 0, true);
  if (x.head != TAG_UNSET) return x;
  qn_dtype dtype = d->dtype;
  d->dtype = QN_i64;
  x = draw_op(vm, "randint", OP_random_bits, d, key, 0);
  x = use2(vm, OP_bitand, x, value_int(INT64_MAX), NULL);
  if (d->values >> 63 == 0) x = use2(vm, OP_mod, x, value_int((int64_t)d->values), NULL);
  if (d->low) x = use2(vm, OP_add, x, value_int(d->low), NULL);
  return use_dtype(vm, x, dtype);
}

qn_value builtin_randint(qn_vm *vm, const qn_value *args) {
  const uint64_t most = (uint64_t)1 << 63;
  int64_t low = args[0].u.i, high = args[1].u.i;
  int dtype = QN_i64;
  eager_drawing d;
  if ((args[0].head != TAG_INT && !is_int(vm, "randint", "an int as low", args[0])) ||
      (args[1].head != TAG_INT && !is_int(vm, "randint", "an int as high", args[1])) ||
      !sizes_of(vm, "randint", args[2], &d) ||
      (args[3].head != TAG_NIL && (dtype = int_dtype(vm, args[3], low, high)) < 0))
    return value_error();
  uint64_t values = (uint64_t)high - (uint64_t)low;
  if (__builtin_expect(high <= low || values > most, 0))
    return raise_error(vm, E_argument, SPAN_NONE, "randint: from %lld to %lld - 1 there are %s", (long long)low,
                       (long long)high, high <= low ? "no integers" : "more than 2**63 integers");
  if (d.n <= 8 && dtype == QN_i64) { /* fewer than bvm_loops.below is prepared for */
    d.dtype = QN_i64;
    qn_value x = draw_few(vm, OP_random_bits, &d, args[4], 0, false);
    if (__builtin_expect(x.head == TAG_ARRAY, 1)) {
      int64_t *p = (int64_t *)(void *)value_array(x)->storage->data, *end = p + d.n; /* there is one at least */
#pragma GCC unroll 2
      do {
        *p = (int64_t)((uint64_t)(*p & INT64_MAX) % values) + low;
      } while (++p != end);
    }
    if (x.head != TAG_UNSET) return x;
  }
  d.dtype = (qn_dtype)dtype, d.values = values, d.low = low;
  return draw_ints(vm, &d, args[4]);
}

/* Does a host number lie from 0 to 1? A recorded one is guarded by the answer. */
static bool is_probability(qn_vm *vm, const char *fn, qn_value p) {
  if (!vm->rec && (p.head == TAG_FLOAT ? p.u.f >= 0 && p.u.f <= 1 : p.head == TAG_INT && (uint64_t)p.u.i <= 1))
    return true;
  for (int side = 0; side < 2; side++) {
    qn_value bound = value_float(side), holds = op2(vm, side ? OP_le : OP_ge, p, bound, NULL);
    if (!value_is_error(holds)) holds = rec_observe(vm, holds);
    if (value_is_error(holds)) return false;
    if (holds.u.i) continue;
    text_buf t;
    text_init(&t, vm);
    text_addf(&t, "%s: a probability lies from 0 to 1, it is not ", fn);
    if (value_is(p, TAG_INT))
      text_int(&t, p.u.i);
    else
      text_float(&t, p.u.f, false);
    raise_text(vm, E_argument, SPAN_NONE, &t);
    return false;
  }
  return true;
}

qn_value builtin_bernoulli(qn_vm *vm, const qn_value *args) {
  qn_value p = args[0];
  if (!is_array(p) && !value_is_number(p)) return arg_refuse(vm, "bernoulli", "a number or an array as p", p);
  if (!is_array(p) && !is_probability(vm, "bernoulli", p)) return value_error();
  eager_drawing d;
  if (!sizes_of(vm, "bernoulli", args[1], &d)) return value_error();
  if (value_list(args[1])->len == 0 && is_array(p)) {
    d.rank = value_array(p)->rank;
    for (int i = 0; i < d.rank; i++) d.shape[i] = value_array(p)->shape[i];
    d.n = (uint64_t)value_array(p)->size;
  }
  d.dtype = is_array(p) && value_array(p)->dtype == QN_f64 ? QN_f64 : QN_f32;
  qn_value u = draw(vm, "bernoulli", OP_random_uniform, &d, args[2], 0);
  return use2(vm, OP_lt, u, value_retain(p), NULL);
}

qn_value builtin_permutation(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  int64_t n;
  bool rows = is_array(x) && value_array(x)->rank > 0;
  if (rows)
    n = value_array(x)->shape[0];
  else if (!arg_int(vm, "permutation", "an int or an array of rank 1 or more", x, &n))
    return value_error();
  if (n < 0) return raise_error(vm, E_shape, SPAN_NONE, "permutation: size %lld is negative", (long long)n);
  op_attr attr = {.axes = 1};
  eager_drawing d = {.dtype = QN_i64, .rank = 1, .n = (uint64_t)n, .shape = {n}};
  qn_value order = use1(vm, OP_argsort, draw(vm, "permutation", OP_random_bits, &d, args[1], 0), &attr);
  if (!rows || value_is_error(order)) return order;
  qn_value out = take_rows(vm, x, order, 0);
  value_release(vm, order);
  return out;
}

qn_value builtin_seed(qn_vm *vm, const qn_value *args) {
  int64_t n;
  if (!arg_int(vm, "seed", "an int", args[0], &n)) return value_error();
  vm->seed = (uint64_t)n;
  vm->draw = 0;
  return value_nil();
}

qn_value builtin_key(qn_vm *vm, const qn_value *args) {
  int64_t n;
  if (!arg_int(vm, "key", "an int", args[0], &n)) return value_error();
  int64_t words[2] = {n & 0xffffffff, (int64_t)((uint64_t)n >> 32)};
  return array_of_ints(vm, words, 2);
}

qn_value random_split(qn_vm *vm, qn_value key, int64_t n) {
  if (n < 0) return raise_error(vm, E_shape, SPAN_NONE, "split: %lld keys", (long long)n);
  eager_drawing d = {.dtype = QN_i64, .rank = 2, .n = (uint64_t)n, .shape = {n, 1}};
  qn_value bits = draw_few(vm, OP_random_bits, &d, key, -1, false);
  if (bits.head == TAG_ARRAY) {
    d.shape[1] = 2;
    qn_array *keys = array_new(vm, QN_i64, 2, d.shape);
    const uint64_t *from = (const uint64_t *)(const void *)array_data(value_array(bits));
    for (int64_t i = 0; keys && i < n; i++) {
      int64_t *to = (int64_t *)(void *)array_data(keys) + 2 * i;
      to[0] = (int64_t)(from[i] & 0xffffffff), to[1] = (int64_t)(from[i] >> 32);
    }
    value_release(vm, bits);
    return keys ? value_obj(TAG_ARRAY, keys) : value_error();
  }
  if (bits.head == TAG_UNSET) bits = draw_op(vm, "split", OP_random_bits, &d, key, -1);
  if (value_is_error(bits)) return bits;
  qn_value mask = value_int(0xffffffff);
  qn_value words[2] = {op2(vm, OP_bitand, bits, mask, NULL),
                       use2(vm, OP_bitand, op2(vm, OP_shr, bits, value_int(32), NULL), mask, NULL)};
  value_release(vm, bits);
  if (!value_is_error(words[0]) && !value_is_error(words[1])) return use_concat(vm, words, 2, 1);
  value_release(vm, words[0]);
  value_release(vm, words[1]);
  return value_error();
}
