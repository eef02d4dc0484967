/* Few elements that index arrays and masks name, in arrays in the CPU's memory: where they are, reading and storing them without a kernel
 * (jit/cpu/eager_index.c).
 *
 * A function here refuses what it is not made for: more than EAGER_PLACES elements, most empty results, and all that is wrong. It returns false or
 * unset then, has changed nothing, and the caller goes the general way, which also words the errors. */
#ifndef JIT_RUN_EAGER_INDEX_H
#define JIT_RUN_EAGER_INDEX_H

#include "jit/run/index.h"
#include "lang/op.h"
#include "lang/vm.h"

enum { EAGER_PLACES = 512 };
/* Where the elements of a result are in the storage of the array that they are taken from or stored in. */
typedef struct eager_places {
  int rank;
  const int64_t *shape; /* own_shape, or an index array's */
  int64_t n;            /* elements */
  const int64_t *at;    /* offsets, in row-major order: room, or the elements of an index array, which outlives this */
  int64_t own_shape[ARRAY_MAX_RANK], room[EAGER_PLACES];
} eager_places;

/* Does the array have its data, and in the CPU's memory? Arrays that are handed to the functions below must, unless they take values or ask
 * themselves (eager_take, eager_gather, eager_add_at). */
static inline bool eager_here(const qn_array *a) { return a->storage && !a->device; }
/* Copies the elements of a shape of this many axes between two layouts; steps are the distances along each axis, in elements of `size` bytes. For
 * few elements: it does not look at interrupts. */
void eager_copy_few(char *to, const int64_t *to_step, const char *from, const int64_t *from_step, const int64_t *shape,
                    int axes, int64_t size);
/* Where the elements of a pick are. False: refused, or an error is raised. */
QN_MUST_CHECK bool eager_find(qn_vm *vm, const index_pick *p, eager_places *to);
/* Where the elements are that one array names: an index array in x of rank 1, or a mask of x's shape. False: refused, or an error is raised. */
QN_MUST_CHECK bool eager_find_by(qn_vm *vm, const qn_array *x, const qn_array *by, eager_places *to);
/* The elements of a pick of x; unset: refused. */
QN_MUST_CHECK qn_value eager_pick_apply(qn_vm *vm, const qn_array *x, const index_pick *p);
/* Stores v at places of x, which is the only owner of its elements, as a scatter_mode says; eager_may_store holds for the two. False: refused
 * (v does not broadcast to the places, for one), or an error is raised. */
QN_MUST_CHECK bool eager_store(qn_vm *vm, const qn_array *x, const eager_places *p, qn_value v, int mode);

/* The kinds of dtypes in the order bool, int, float: arrays take values of their own kind and of earlier ones. */
static inline int eager_kind(qn_dtype d) { return dtype_is_bool(d) ? 0 : dtype_is_int(d) ? 1 : 2; }
/* Is v a number of such a kind that the dtype can represent? */
static inline bool eager_number_fits(qn_value v, qn_dtype d) {
  if (d == DTYPE_FLOAT && v.head == TAG_INT && (uint64_t)v.u.i <= 1 << 24) return true;
  if (d == DTYPE_FLOAT && v.head == TAG_FLOAT && v.u.f <= 1e38 && v.u.f >= -1e38) return true;
  int kind = value_is(v, TAG_BOOL) ? 0 : value_is(v, TAG_INT) ? 1 : 2;
  return value_is_scalar(v) && kind <= eager_kind(d) && dtype_holds(d, v);
}
/* May v be stored in x: is it such a number, or an array of such a kind on the same device? */
static inline bool eager_may_store(const qn_array *x, qn_value v) {
  qn_dtype d = (qn_dtype)x->dtype;
  if (!value_is(v, TAG_ARRAY)) return eager_number_fits(v, d);
  const qn_array *a = value_array(v);
  return a->device == x->device && (a->dtype == d || eager_kind((qn_dtype)a->dtype) <= eager_kind(d));
}

/* The elements of x that an index array names along an axis, or a mask of x's shape; unset: refused. */
QN_MUST_CHECK qn_value eager_take(qn_vm *vm, const qn_array *x, const qn_array *by, int axis);
/* A copy of x, of rank 1, with v added at the positions that an index array names, as often as it names them; unset: refused. */
QN_MUST_CHECK qn_value eager_add_at(qn_vm *vm, qn_array *x, const qn_array *by, qn_value v);
/* OP_gather along an axis; unset: refused. */
QN_MUST_CHECK qn_value eager_gather(qn_vm *vm, const qn_array *x, const qn_array *by, int axis);
/* The ops index, compress, gather, scatter, gather_add and nonzero; unset: refused, and for other ops. */
QN_MUST_CHECK qn_value eager_fast_index(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr);

/* scatter, gather_add and slice_put, in operand 0 itself instead of in a copy: nobody else owns it or its storage, it has no gaps, no other
 * operand is it, and it is in the CPU's memory. False: refused, and nothing has changed (unless an error is raised). */
QN_MUST_CHECK bool eager_update(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr);

#endif
