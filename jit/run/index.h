/* Array indexing behind the door (door.h): what stands in brackets, and the part of an array that it names.
 *
 *   x[1:5, 0, new, idx]   items: what is written, with its values
 *        │ op_part_of     checked against x, in one walk
 *      op_part            a slice of each axis, the axes that are kept or new, the index arrays and the axes they govern
 *        ├ op_part_get    x[...]
 *        ├ op_part_put    x[...] = v
 *        └ op_part_combine   x[...] op= v, where an element may be named more than once
 *
 * How it is read and stored to is decided behind these functions: as a view or a copy by strides, by a list of offsets where index arrays
 * name few places, or by ops, which are recorded while a recording is in progress. Operands are borrowed and results owned, as everywhere
 * at the door; errors carry no place.
 */
#ifndef JIT_RUN_INDEX_H
#define JIT_RUN_INDEX_H

#include "lang/op.h"
#include "lang/vm.h"

typedef enum index_kind {
  INDEX_INT,      /* one position along an axis: start, which may count from the end */
  INDEX_SLICE,    /* start:stop:step; start and stop if they are present, a step that is not 0 */
  INDEX_ELLIPSIS, /* all axes that the other items leave */
  INDEX_NEW,      /* a new axis of size 1 */
  INDEX_ARRAY     /* positions along an axis: an integer array, or a host int that is traced; or a mask: a bool array */
} index_kind;

typedef struct index_item {
  uint8_t kind; /* index_kind */
  bool has_start, has_stop;
  bool size_start, size_stop; /* of a slice: start and stop are sizes (jit/trace/rec.h); a negative one is symbolic */
  union {
    struct {
      int64_t start, stop, step;
    };
    qn_value array; /* borrowed */
  };
} index_item;

enum { INDEX_MAX = 2 * ARRAY_MAX_RANK + 1 }; /* items of an index */

/* The elements that a slice takes of an axis of this size: the first, and how many. */
void index_clip(const index_item *slice, int64_t size, int64_t *start, int64_t *count);

/* Where a part lies in an array that has its data, and its shape: axes that no index governs, in their order, and index arrays, which
 * broadcast together to the joint axes, and masks, whose true elements are one joint axis and which fit the axes that they govern. In the
 * result the joint axes stand behind the first `lead` of the others. */
typedef struct index_pick {
  int rank;
  int64_t shape[2 * ARRAY_MAX_RANK], strides[2 * ARRAY_MAX_RANK];
  int64_t offset; /* of the first element, in elements of the storage */
  int lead;
  int n;
  const qn_array *index[ARRAY_MAX_RANK]; /* of an integer dtype, or bool */
  int64_t size[ARRAY_MAX_RANK],
      stride[ARRAY_MAX_RANK]; /* of the axes that they govern: a mask one for each of its own */
} index_pick;

typedef struct op_part {
  index_pick pick; /* its layout in the array that it was made for */
  bool here;       /* all index arrays and masks have their data, in the CPU's memory */
  bool
      deferred; /* it was made in a recording: if that ends, the array's elements may lie otherwise than the pick says */
  /* For each axis of the array: the first element, how many, and how far apart they are. */
  int64_t start[ARRAY_MAX_RANK], size[ARRAY_MAX_RANK], step[ARRAY_MAX_RANK];
  int8_t from[2 * ARRAY_MAX_RANK];      /* the array's axis that each axis of the pick is, or -1: a new one */
  const index_item *by[ARRAY_MAX_RANK]; /* index arrays, masks and traced ints; borrowed */
  /* The array's axes that they govern; `before`: how many axes of the pick stand before each. */
  int governed;
  int8_t axis[ARRAY_MAX_RANK], before[ARRAY_MAX_RANK];
  /* In a recording start, size and the pick's shape may hold symbolic sizes (jit/trace/rec.h); then these are what they are in this call. */
  bool symbolic;
  bool apart;  /* it is a value of its own, also where it is all of the array */
  bool by_ops; /* it was made in a recording: its index arrays are for ops, whatever has become of the recording */
  int64_t start_now[ARRAY_MAX_RANK], size_now[ARRAY_MAX_RANK];
} op_part;

/* What items, which outlive the part, name in an array. Index arrays are checked where they are used; whatever else does not fit is an
 * error here. */
QN_MUST_CHECK bool op_part_of(qn_vm *vm, qn_value x, const index_item *items, int n, op_part *out);
/* May the part name an element more than once? */
bool op_part_repeats(const op_part *p);
/* The part of the array; a view where it can be one and is not small. */
QN_MUST_CHECK qn_value op_part_get(qn_vm *vm, qn_value x, op_part *p);
/* Stores v, a number or an array that broadcasts to the part and is of no later kind (bool, int, float) than x, in the part of *x, which
 * its owner holds. Everything is checked before anything changes; *x may become another array, and keeps its elements on an error. Also
 * what else v may be is an error here. */
QN_MUST_CHECK bool op_part_put(qn_vm *vm, qn_value *x, op_part *p, qn_value v);
/* x[...] op= v by a binary op, where the part has no index arrays and few elements, which lie in the CPU's memory, and nothing is wrong.
 * False: nothing is done and no error raised; a read, the op and a store do it, or say what is wrong. */
bool op_part_apply(qn_vm *vm, qn_value *x, op_part *p, op_id op, qn_value v);
/* Combines the elements of the part with those of v by a binary op, one position after the other in row-major order, so that an element
 * that is named twice is combined twice. The part has index arrays. */
QN_MUST_CHECK bool op_part_combine(qn_vm *vm, qn_value *x, op_part *p, op_id op, qn_value v);

/* x[items] at once. */
QN_MUST_CHECK qn_value op_index(qn_vm *vm, qn_value x, const index_item *items, int n);
/* x[i] of an array of rank 1 or more; i counts from the front and is in range. */
QN_MUST_CHECK qn_value op_index_row(qn_vm *vm, qn_value x, int64_t i);
/* x[i] = v for an array of rank 1, and x[items] = v for as many integers as x has axes, where v is a plain number or an array of rank 0 and of
 * x's dtype, the elements are x's own, in the CPU's memory, and all is well. False: nothing is done and no error raised; op_part_put does it,
 * or says what is wrong. */
bool op_put_item(qn_vm *vm, qn_value x, int64_t i, qn_value v);
bool op_put_element(qn_vm *vm, qn_value x, const index_item *items, int n, qn_value v);
/* Called after op_part_of has failed for x[items] = v. A value that x cannot hold is reported before a place that x does not have, which recorded
 * calls find out later: if both are wrong, the pending error becomes that of the value. */
void op_put_refused(qn_vm *vm, qn_value x, qn_value v);
/* x[by] = v (op: OP_COUNT) by an index array or mask, or x[by] += v or *= v by an index array, at few places in the CPU's memory. False: it is not
 * such a case, and nothing is stored (*x may be a copy of its own now); a part does it. Else *ok says whether it is stored or an error is raised. */
bool op_put_at(qn_vm *vm, qn_value *x, qn_value by, op_id op, qn_value v, bool *ok);
/* *v is about to be stored to x. If it is a view of x that nobody else has, it becomes a copy, so that x need not be copied. */
QN_MUST_CHECK bool op_detach(qn_vm *vm, const qn_array *x, qn_value *v);

#endif
