/* Places in small arrays that index arrays and masks name, and what is read from or stored at them: without a kernel. */
#ifndef JIT_RUN_EAGER_INDEX_H
#define JIT_RUN_EAGER_INDEX_H

#include "jit/run/index.h"
#include "lang/op.h"
#include "lang/vm.h"

/* Elements at most: more are left to the slow way. */
enum { EAGER_PLACES = 512 };
typedef struct eager_places {
  int rank;
  int64_t shape[ARRAY_MAX_RANK], n;
  int64_t at[EAGER_PLACES]; /* offsets, in row-major order */
} eager_places;

/* All of these take arrays that exist in the CPU's memory (eager_here), and say where they are not for the case: what is too large,
 * empty or wrong is left to the slow way. */
static inline bool eager_here(const qn_array *a) { return a->storage && !a->device; }
/* False, maybe with an error raised: they are not found here. */
QN_MUST_CHECK bool eager_find(qn_vm *vm, const index_pick *p, eager_places *to);
/* What x has at these places; unset: not here. */
QN_MUST_CHECK qn_value eager_pick_apply(qn_vm *vm, const qn_array *x, const index_pick *p);
/* Are there places, and does v, an array or a number, broadcast to them? */
bool eager_fits(const eager_places *p, qn_value v);
/* Stores v, which fits and is an array of x's dtype or a number that x's dtype holds, at the places of x, which has one owner, as a
 * scatter_mode says. False with an error raised. */
QN_MUST_CHECK bool eager_store(qn_vm *vm, const qn_array *x, const eager_places *p, qn_value v, int mode);

/* Order of kinds: bool < int < float. A value is stored in an array of its kind or of a later one. */
static inline int eager_kind(qn_dtype d) { return dtype_is_bool(d) ? 0 : dtype_is_int(d) ? 1 : 2; }
/* May v be stored in arrays of this dtype: is it a number of no later kind that the dtype holds? */
static inline bool eager_number_fits(qn_value v, qn_dtype d) {
  if (d == DTYPE_FLOAT && v.head == TAG_INT && (uint64_t)v.u.i <= 1 << 24) return true;
  if (d == DTYPE_FLOAT && v.head == TAG_FLOAT && v.u.f <= 1e38 && v.u.f >= -1e38) return true;
  int kind = value_is(v, TAG_BOOL) ? 0 : value_is(v, TAG_INT) ? 1 : 2;
  return value_is_scalar(v) && kind <= eager_kind(d) && dtype_holds(d, v);
}
/* May v be stored in x: such a number, or an array of no later kind on the device of x? */
static inline bool eager_may_store(const qn_array *x, qn_value v) {
  qn_dtype d = (qn_dtype)x->dtype;
  if (!value_is(v, TAG_ARRAY)) return eager_number_fits(v, d);
  const qn_array *a = value_array(v);
  return a->device == x->device && (a->dtype == d || eager_kind((qn_dtype)a->dtype) <= eager_kind(d));
}

/* What an index array takes along an axis, or a mask of all of x; unset: not here. */
QN_MUST_CHECK qn_value eager_take(qn_vm *vm, const qn_array *x, const qn_array *by, int axis);
/* x[by] = v, also by a mask, x[by] += v or x[by] *= v, of an array of rank 1 by an index array, where v is of x's dtype or a number that it holds;
 * *ok: false with an error raised. False: not here. */
QN_MUST_CHECK bool eager_put_named(qn_vm *vm, qn_value *x, const qn_array *by, qn_value v, int mode, bool *ok);
/* A copy of x with v, of its dtype, added to it at the places of an index array; unset: not here. */
QN_MUST_CHECK qn_value eager_add_at(qn_vm *vm, qn_array *x, const qn_array *by, qn_value v);
/* OP_gather along an axis; unset: not here. */
QN_MUST_CHECK qn_value eager_gather(qn_vm *vm, qn_value x, qn_value index, int axis);
/* INDEX ops; unset: not here. */
QN_MUST_CHECK qn_value eager_fast_index(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr);

#endif
