/* What the C builtins share: their prototypes (from builtins.def), reading of arguments, and ops on owned values.
 *
 * Reading of arguments. Each arg_ function takes the builtin's name for its message, returns false with an error raised if the
 * argument does not fit, and never looks at array data. Host numbers have been observed by the interpreter unless the
 * parameter is marked as data (lang/builtin.h).
 *
 * Ops on owned values. `use` functions release their operands and pass errors through, so that expressions nest:
 *   use2(vm, OP_div, op1(vm, OP_sum, x, &over), value_int(n), NULL)
 */
#ifndef STDLIB_BUILTINS_H
#define STDLIB_BUILTINS_H

#include "jit/trace/rec.h"
#include "lang/vm.h"

#define BUILTIN(name, signature, effect, doc) qn_value builtin_##name(qn_vm *vm, const qn_value *args);
#include "stdlib/builtins.def"

/* ---- arguments ------------------------------------------------------------------------------------------------ */

/* Raises E301: "reshape: expected <what>, not <kind of v>". */
qn_value arg_refuse(qn_vm *vm, const char *fn, const char *what, qn_value v);
/* Raises what arg_refuse raises and returns false, for functions that return whether the argument fits. */
static inline bool arg_wrong(qn_vm *vm, const char *fn, const char *what, qn_value v) {
  arg_refuse(vm, fn, what, v);
  return false;
}
QN_MUST_CHECK static inline bool arg_int(qn_vm *vm, const char *fn, const char *what, qn_value v, int64_t *out) {
  *out = v.u.i;
  return value_is(v, TAG_INT) || arg_wrong(vm, fn, what, v);
}
QN_MUST_CHECK bool arg_str(qn_vm *vm, const char *fn, const char *what, qn_value v, qn_str **out);
QN_MUST_CHECK bool arg_bool(qn_vm *vm, const char *fn, const char *what, qn_value v, bool *out);
/* Reads a dtype that arrays can have. For nil *out is `otherwise`. */
QN_MUST_CHECK bool arg_dtype(qn_vm *vm, const char *fn, qn_value v, qn_dtype otherwise, qn_dtype *out);
/* Reads one axis of an array of that rank; *out is 0 to rank - 1, and negative axes count from the end. E204 if there is no such axis. */
QN_MUST_CHECK bool arg_axis(qn_vm *vm, const char *fn, qn_value v, int rank, int *out);
/* Reads nil or one axis that exists, which most calls give, so that reductions of few elements need no call of arg_axes. False, without an
 * error: `v` is something else, and arg_axes has to read it. */
static inline bool axes_at_once(qn_value v, int rank, uint8_t *mask) {
  *mask = (uint8_t)((1u << rank) - 1);
  if (v.head == TAG_NIL) return true;
  int64_t one = v.u.i < 0 ? v.u.i + rank : v.u.i;
  if (v.head != TAG_INT || (uint64_t)one >= (uint64_t)rank) return false;
  *mask = (uint8_t)(1u << one);
  return true;
}
/* Are the arguments x, axis and keepdims of a reduction an array, what axes_at_once reads, and a bool? Then *axes is set and nothing is left
 * to check. */
static inline bool reduces_at_once(const qn_value *args, uint8_t *axes) {
  return args[0].head == TAG_ARRAY && args[2].head == TAG_BOOL &&
         axes_at_once(args[1], value_array(args[0])->rank, axes);
}
/* Reads an int, a list of ints, or nil for all axes: bit i of *mask is set for axis i. E204 for axes that do not exist or occur twice. */
QN_MUST_CHECK bool arg_axes(qn_vm *vm, const char *fn, qn_value v, int rank, uint8_t *mask);
/* Reads a rest parameter that holds ints, or one list of ints: *n of them, at most ARRAY_MAX_RANK (else E205). `what` says in messages
 * what is expected. */
QN_MUST_CHECK bool arg_ints(qn_vm *vm, const char *fn, const char *what, qn_value rest, int64_t *out, int *n);
/* As arg_ints, of ints that are sizes: in a recording they may be symbolic (rec_size). Bit i of *symbolic is set for those that are, since their
 * numbers are negative. */
QN_MUST_CHECK bool arg_sizes(qn_vm *vm, const char *fn, const char *what, qn_value rest, int64_t *out, int *n,
                             uint32_t *symbolic);
/* Reads a rest parameter that holds the sizes of an array (rec_size), as ints or one list of ints. E201 for a negative size, E605 if there would be
 * too many elements. */
QN_MUST_CHECK bool arg_shape(qn_vm *vm, const char *fn, qn_value rest, int64_t *shape, int *rank);

/* The items of a list, or the value itself as the only one; *n: how many. Borrowed from *v. */
static inline const qn_value *one_or_many(const qn_value *v, uint32_t *n) {
  bool list = value_is(*v, TAG_LIST);
  *n = list ? value_list(*v)->len : 1;
  return list ? value_list(*v)->items : v;
}
/* Checks that `n` arguments can be operands of an op: arrays or numbers. */
QN_MUST_CHECK bool arg_operands(qn_vm *vm, const char *fn, const qn_value *args, int n);
/* Makes an array of an argument; owned. An array is itself, a host number becomes an array of rank 0, the items of a list are stacked. The
 * result has the given dtype or, for QN_DTYPE_COUNT, the one that the items promote to. */
QN_MUST_CHECK qn_value arg_array(qn_vm *vm, const char *fn, qn_value v, qn_dtype dtype);
/* The dtype of a new array that is made of a host number: f32, i64 or bool. */
static inline qn_dtype dtype_of_number(qn_value v) { return dtype_of_weak(value_operand_type(v).dtype); }
/* A new array i64[n]; n is at most ARRAY_MAX_RANK. */
QN_MUST_CHECK qn_value array_of_ints(qn_vm *vm, const int64_t *items, int n);

/* ---- ops ------------------------------------------------------------------------------------------------------- */

static inline qn_value op1(qn_vm *vm, op_id op, qn_value x, const op_attr *attr) {
  return op_apply(vm, op, &x, 1, attr);
}
static inline qn_value op2(qn_vm *vm, op_id op, qn_value x, qn_value y, const op_attr *attr) {
  qn_value in[2] = {x, y};
  return op_apply(vm, op, in, 2, attr);
}
/* Releases x, which was needed to make `out`, and returns `out`. */
static inline qn_value used(qn_vm *vm, qn_value x, qn_value out) {
  value_release(vm, x);
  return out;
}
/* Apply an op and release its operands, also on failure. If an operand is the error value nothing is applied, and the result is the error
 * value. */
QN_MUST_CHECK qn_value use1(qn_vm *vm, op_id op, qn_value x, const op_attr *attr);
QN_MUST_CHECK qn_value use2(qn_vm *vm, op_id op, qn_value x, qn_value y, const op_attr *attr);
QN_MUST_CHECK qn_value use3(qn_vm *vm, op_id op, qn_value x, qn_value y, qn_value z, const op_attr *attr);

/* An array or host number (borrowed) as a new array of this dtype; owned. An error is raised if a host number does not fit. */
QN_MUST_CHECK qn_value to_dtype(qn_vm *vm, qn_value x, qn_dtype dtype);
/* These do what op_cast, op_reshape, op_broadcast, op_permute and op_concat (jit/run/door.h) do, and release x, or all n parts, also on
 * failure. */
QN_MUST_CHECK qn_value use_dtype(qn_vm *vm, qn_value x, qn_dtype dtype);
QN_MUST_CHECK qn_value use_shape(qn_vm *vm, qn_value x, int rank, const int64_t *shape);
QN_MUST_CHECK qn_value use_broadcast(qn_vm *vm, qn_value x, int rank, const int64_t *shape);
QN_MUST_CHECK qn_value use_permute(qn_vm *vm, qn_value x, const int *order);
/* x (released) with axis `from` moved to place `to`; the other axes keep their order. */
QN_MUST_CHECK qn_value use_move_axis(qn_vm *vm, qn_value x, int from, int to);
QN_MUST_CHECK qn_value use_concat(qn_vm *vm, qn_value *parts, int n, int axis);
/* Stacks n arrays and numbers (borrowed) of one shape along a new axis, number `axis` of the result. `dtype` means what it means to
 * arg_array. */
QN_MUST_CHECK qn_value stack_values(qn_vm *vm, const char *fn, const qn_value *items, uint32_t n, int64_t axis,
                                    qn_dtype dtype);

/* ---- iteration ---------------------------------------------------------------------------------------------------- */

/* A value that `for` goes over, while its items are taken one by one. */
typedef struct sequence {
  qn_value v; /* borrowed */
  int64_t n;
  int64_t at; /* of strings: byte offset of the next item */
} sequence;
QN_MUST_CHECK bool sequence_of(qn_vm *vm, const char *fn, qn_value v,
                               sequence *s); /* E312 if `for` does not go over it */
/* Item i, owned. Must be called for 0, 1, 2 and so on in order. */
QN_MUST_CHECK qn_value sequence_item(qn_vm *vm, sequence *s, int64_t i);

/* ---- shared by topics ------------------------------------------------------------------------------------------------- */

/* n random keys that are made from one, as i64[n, 2] (random.c). */
QN_MUST_CHECK qn_value random_split(qn_vm *vm, qn_value key, int64_t n);

/* Adds an item (taken over) to a list (owned), which has other owners while a recording looks at the loop (lists.c). */
QN_MUST_CHECK bool collect_item(qn_vm *vm, qn_value *list, qn_value item);

/* Walks k trees in step and builds a tree of the structure of the first one. Each leaf (an array or number) is replaced by what `visit`
 * returns for the values that stand there in the k trees: an owned value, or the error value, which ends the walk. With `all` set, every
 * value that is no container is a leaf. The result is owned, or the error value (trees.c). */
typedef struct trees_walk trees_walk;
typedef qn_value (*trees_visit)(void *ctx, const trees_walk *w, const qn_value *values);
QN_MUST_CHECK qn_value trees_map(qn_vm *vm, const char *fn, const qn_value *trees, uint32_t k, bool all,
                                 trees_visit visit, void *ctx);
/* Appends the path of the place that a walk is at: "layers[0].w", or "layers.0.w" when dotted. */
void text_path(const trees_walk *w, bool dotted, text_buf *t);

/* What can be shown on a stream (1: stdout, 2: stderr), and in how much room. Rows and columns are those of the terminal. If the stream is
 * none there are 24 rows, and 80 columns or what the environment variable COLUMNS says. Colours are for terminals that have them according
 * to TERM, unless NO_COLOR is set (core.c). */
typedef struct output_looks {
  int columns, rows;
  bool colors, true_color;
} output_looks;
output_looks output_look(const qn_vm *vm, int stream);
/* Takes a progress bar off the terminal, if there is one, and writes the text to a stream. */
void output_write(qn_vm *vm, int stream, text_buf *t);

/* Item i of the list *out, which is being filled in, becomes `item` (taken over). If that is the error value the list is given up, and
 * *out is the error. */
static inline void list_fill(qn_vm *vm, qn_value *out, int64_t i, qn_value item) {
  if (value_is_error(item))
    *out = value_fail(vm, *out);
  else
    value_list(*out)->items[i] = item;
}

/* ---- values ---------------------------------------------------------------------------------------------------------- */

/* A list of the items a and b, which are taken over, also on failure. The error value if one of them is it. */
QN_MUST_CHECK qn_value use_pair(qn_vm *vm, qn_value a, qn_value b);
/* Finds where `part` first occurs in `len` bytes of text: *found points there, or is NULL. Takes time in proportion to both lengths. False,
 * with an error raised, if the search was interrupted. */
QN_MUST_CHECK bool text_search(qn_vm *vm, const char *text, size_t len, const char *part, size_t part_len,
                               const char **found);
static inline qn_value new_str(qn_vm *vm, const char *text, size_t len) {
  return value_new(TAG_STR, str_new(vm, text, len));
}
static inline qn_value list_value(qn_list *l) { return value_new(TAG_LIST, l); }
static inline bool is_array(qn_value v) { return value_is(v, TAG_ARRAY); }

#endif
