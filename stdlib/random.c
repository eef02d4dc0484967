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

#include "jit/cpu/eager.h"
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

/* Few numbers, while nothing is recorded. Unset: not so, nothing is drawn. */
static inline qn_value draw_few(qn_vm *vm, op_id op, qn_dtype dtype, int rank, const int64_t *shape, qn_value key,
                                int64_t number) {
  bool counted = value_is(key, TAG_NIL);
  uint64_t words[3] = {vm->seed & 0xffffffffu, vm->seed >> 32, counted ? vm->draw : (uint64_t)number};
  if (!counted) {
    const qn_array *a = is_array(key) ? value_array(key) : NULL;
    if (!a || a->dtype != QN_i64 || a->rank != 1 || a->size != 2 || !a->contiguous || !a->storage || a->device)
      return value_unset();
    memcpy(words, array_data(a), 2 * sizeof *words);
  }
  qn_value out = eager_draw(vm, op, dtype, rank, shape, words);
  if (counted && !value_is(out, TAG_UNSET)) vm->draw++;
  return out;
}

/* Sizes as arg_shape has them, most of which are plain. */
static inline bool sizes_of(qn_vm *vm, const char *fn, qn_value rest, int64_t *shape, int *rank) {
  const qn_list *l = value_is(rest, TAG_LIST) ? value_list(rest) : NULL;
  bool plain = l && l->len - 1 < 4;
  for (uint32_t i = 0; plain && i < l->len; i++) {
    plain = l->items[i].head == TAG_INT && (uint64_t)l->items[i].u.i <= 1 << 12;
    shape[i] = l->items[i].u.i;
  }
  if (!plain) return arg_shape(vm, fn, rest, shape, rank);
  *rank = (int)l->len;
  return true;
}

static qn_value draw(qn_vm *vm, const char *fn, op_id op, qn_dtype dtype, int rank, const int64_t *shape, qn_value key,
                     int64_t number) {
  if (!vm->rec) {
    qn_value few = draw_few(vm, op, dtype, rank, shape, key, number);
    if (!value_is(few, TAG_UNSET)) return few;
  }
  op_attr attr = {
      .dtype = (uint8_t)dtype, .mode = value_is(key, TAG_NIL) ? DRAW_COUNTED : DRAW_KEYED, .n = (uint8_t)rank};
  for (int i = 0; i < rank; i++) attr.d[i] = shape[i];
  qn_value in[3];
  if (!operands(vm, fn, key, number, in)) return value_error();
  return use3(vm, op, in[0], in[1], in[2], &attr);
}

static qn_value draw_floats(qn_vm *vm, const char *fn, op_id op, const qn_value *args) {
  int64_t shape[ARRAY_MAX_RANK];
  int rank;
  qn_dtype dtype;
  if (!sizes_of(vm, fn, args[0], shape, &rank) || !arg_dtype(vm, fn, args[1], QN_f32, &dtype)) return value_error();
  if (!dtype_is_float(dtype))
    return raise(vm, E_dtype, SPAN_NONE, "%s: numbers of %s; randint draws integers and bernoulli bools", fn,
                 dtype_rows[dtype].name);
  return draw(vm, fn, op, dtype, rank, shape, args[2], 0);
}

/* An array that was drawn just now, of few numbers in the CPU's memory, that nobody else has: it may be written to. */
static bool is_few(const qn_vm *vm, qn_value x) {
  if (!is_array(x) || vm->rec) return false;
  const qn_array *a = value_array(x);
  return !array_pending(a) && !a->device && a->contiguous && a->size <= 1024 && a->head.refs == 1 &&
         a->storage->refs == 1;
}

qn_value builtin_rand(qn_vm *vm, const qn_value *args) { return draw_floats(vm, "rand", OP_random_uniform, args); }
qn_value builtin_randn(qn_vm *vm, const qn_value *args) { return draw_floats(vm, "randn", OP_random_normal, args); }

qn_value builtin_randint(qn_vm *vm, const qn_value *args) {
  int64_t low, high, shape[ARRAY_MAX_RANK];
  int rank;
  qn_dtype dtype;
  if (!arg_int(vm, "randint", "an int as low", args[0], &low) ||
      !arg_int(vm, "randint", "an int as high", args[1], &high) || !sizes_of(vm, "randint", args[2], shape, &rank) ||
      !arg_dtype(vm, "randint", args[3], QN_i64, &dtype))
    return value_error();
  int64_t values;
  if (high <= low || __builtin_sub_overflow(high, low, &values))
    return raise(vm, E_argument, SPAN_NONE, "randint: from %lld to %lld - 1 there are %s", (long long)low,
                 (long long)high, high <= low ? "no integers" : "more than 2**63 integers");
  if (!dtype_is_int(dtype) || !dtype_holds(dtype, value_int(low)) || !dtype_holds(dtype, value_int(high - 1)))
    return raise(vm, E_dtype, SPAN_NONE, "randint: %s does not hold the integers from %lld to %lld",
                 dtype_rows[dtype].name, (long long)low, (long long)high - 1);
  qn_value x = draw(vm, "randint", OP_random_bits, QN_i64, rank, shape, args[4], 0);
  if (is_few(vm, x)) { /* the same, in place */
    int64_t *p = (int64_t *)(void *)array_data(value_array(x));
    for (int64_t i = 0; i < value_array(x)->size; i++) p[i] = (p[i] & INT64_MAX) % values + low;
    return use_dtype(vm, x, dtype);
  }
  x = use2(vm, OP_bitand, x, value_int(INT64_MAX), NULL);
  x = use2(vm, OP_mod, x, value_int(values), NULL);
  if (low) x = use2(vm, OP_add, x, value_int(low), NULL);
  return use_dtype(vm, x, dtype);
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
  int64_t shape[ARRAY_MAX_RANK];
  int rank;
  if (!sizes_of(vm, "bernoulli", args[1], shape, &rank)) return value_error();
  if (value_list(args[1])->len == 0 && is_array(p)) {
    rank = value_array(p)->rank;
    for (int i = 0; i < rank; i++) shape[i] = value_array(p)->shape[i];
  }
  qn_dtype dtype = is_array(p) && value_array(p)->dtype == QN_f64 ? QN_f64 : QN_f32;
  qn_value u = draw(vm, "bernoulli", OP_random_uniform, dtype, rank, shape, args[2], 0);
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
  if (n < 0) return raise(vm, E_shape, SPAN_NONE, "permutation: size %lld is negative", (long long)n);
  op_attr attr = {.axes = 1};
  qn_value order = use1(vm, OP_argsort, draw(vm, "permutation", OP_random_bits, QN_i64, 1, &n, args[1], 0), &attr);
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
  if (n < 0) return raise(vm, E_shape, SPAN_NONE, "split: %lld keys", (long long)n);
  int64_t shape[2] = {n, 1};
  qn_value bits = draw(vm, "split", OP_random_bits, QN_i64, 2, shape, key, -1);
  if (value_is_error(bits)) return bits;
  if (is_few(vm, bits)) {
    shape[1] = 2;
    qn_array *keys = array_new(vm, QN_i64, 2, shape);
    const uint64_t *from = (const uint64_t *)(const void *)array_data(value_array(bits));
    for (int64_t i = 0; keys && i < n; i++) {
      int64_t *to = (int64_t *)(void *)array_data(keys) + 2 * i;
      to[0] = (int64_t)(from[i] & 0xffffffff), to[1] = (int64_t)(from[i] >> 32);
    }
    value_release(vm, bits);
    return keys ? value_obj(TAG_ARRAY, keys) : value_error();
  }
  qn_value mask = value_int(0xffffffff);
  qn_value words[2] = {op2(vm, OP_bitand, bits, mask, NULL),
                       use2(vm, OP_bitand, op2(vm, OP_shr, bits, value_int(32), NULL), mask, NULL)};
  value_release(vm, bits);
  if (!value_is_error(words[0]) && !value_is_error(words[1])) return use_concat(vm, words, 2, 1);
  value_release(vm, words[0]);
  value_release(vm, words[1]);
  return value_error();
}
