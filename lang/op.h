/* The op table as C sees it: ids, rows, the names of the rules, and the attributes an op can have.
 *
 * Sizes in attributes and shapes of graphs are `qn_dim`: a non-negative number is a size; a negative number ~k names
 * expression k in the graph's table of dimensions (jit/graph/dim.h). Eager code only ever sees non-negative ones.
 */
#ifndef LANG_OP_H
#define LANG_OP_H

#include "lang/array.h"
#include "lang/builtin.h"

typedef int64_t qn_dim;

/* clang-format off */
typedef enum op_class { CLASS_POINTWISE, CLASS_REDUCE, CLASS_SCAN, CLASS_VIEW, CLASS_INDEX, CLASS_DOT, CLASS_LIBRARY, CLASS_RANDOM } op_class;
/* clang-format on */

typedef enum op_id {
#define OP(klass, name, ...) OP_##name,
#include "lang/ops.def"
  OP_COUNT
} op_id;

/* Compute type C and result type R from the operands' types. All operands are cast (weak ones: fitted) to C first.
 *   arith       C = R = promotion; bools count as i64
 *   arith_keep  C = R = promotion; bools stay bool
 *   num         as arith (named apart for messages: // % ** and unary minus of bool arrays are i64 too)
 *   div         floats: promotion; ints and bools: f32 (weak with weak: f64)
 *   float       C = R = dtype_to_float of the promotion
 *   round       floats stay; ints and bools are returned as they are
 *   compare     C = promotion, R = bool
 *   bits        all bool or all integer, promotion; else E206
 *   ints        integers only
 *   test        C = the operand's type, R = bool (false / true for ints as the function says)
 *   select      first bool; the others promote: R (two weak: i64 or f32 array, or weak if all are weak)
 *   attr        R = attribute dtype, C = the operand's
 *   same        C = R = the operand's; of several (concat) their promotion, bools stay bool; pad: the first operand's
 *   first       C = R = the first operand's; further data operands are cast to it, index operands stay. E206 for a float
 *               stored into integers and for anything but a bool stored into bools
 *   sum         bools and ints: i64; floats stay
 *   arg, index  R = i64
 *   test_bool   C = R = bool (operand must be bool, E206 shows `x != 0`)
 *   dot         promotion; bool and ints allowed (i64 for bools). A product of two vectors is a sum (dot_is_sum)
 *
 * Weak operands stay weak only among themselves, in POINTWISE ops, and as keys of RANDOM ops. Elsewhere a weak operand becomes
 * an array of rank 0 first (`fit`): of the compute type, or where there is no array beside it bool, i64 or f32.
 *
 * Operands, in order: index (x, i1 .. ik); scatter (x, i1 .. ik, v); gather (x, i); gather_add (x, i, v); slice_put (x, v);
 * compress (x, mask); pad (x, value); where (condition, a, b). `v` broadcasts to the elements that it is stored to.
 */
/* clang-format off */
typedef enum op_dtype_rule {
  DT_arith, DT_arith_keep, DT_num, DT_div, DT_float, DT_round, DT_compare, DT_bits, DT_ints, DT_test, DT_select, DT_attr,
  DT_same, DT_first, DT_sum, DT_arg, DT_index, DT_test_bool, DT_dot
} op_dtype_rule;

typedef enum op_shape_rule {
  SH_broadcast, SH_reduce, SH_same, SH_attr, SH_broadcast_to, SH_permute, SH_slice, SH_window, SH_pad, SH_concat, SH_index,
  SH_gather, SH_data, SH_dot, SH_gemm
} op_shape_rule;
/* clang-format on */

/* How an op is batched, so that it is done for all lanes of a vmap at once (jit/graph/batch.c). In operands that differ from lane to lane
 * the lanes are axis 0. */
#define BATCH_RULES(RULE)                                                                                              \
  RULE(elementwise) /* operands of fewer axes get axes of 1 behind the lanes', and broadcast */                        \
  RULE(axes)        /* the attribute's axes + 1 */                                                                     \
  RULE(axes_of_all) /* the attribute's axes + 1; operands that all lanes share are repeated along the lanes */         \
  RULE(per_axis)    /* attributes by axis get an entry for the lanes' */                                               \
  RULE(pad)         /* as per_axis; by where, if the lanes are padded with different numbers */                        \
  RULE(index)       /* the lane is one more index */                                                                   \
  RULE(scatter)     /* the lane is one more index */                                                                   \
  RULE(dot)         /* the lanes are one more batch axis, or rows of one product */                                    \
  RULE(draw)        /* numbers of their own for the lanes: of one draw for all, or by the keys of the lanes */         \
  RULE(shared)      /* no operand: the same in every lane */                                                           \
  RULE(mask)        /* by a mask that all lanes share; another gives results that differ in size */                    \
  RULE(made_later)  /* none: simplification makes it, after batching */
typedef enum op_batch_rule {
#define RULE(name) BATCH_##name,
  BATCH_RULES(RULE)
#undef RULE
} op_batch_rule;

typedef enum op_raises {
  RAISES_never,
  RAISES_int_div,    /* E306 where an integer divisor is 0 (int dtypes only) */
  RAISES_int_pow,    /* E308 where an integer exponent is negative (int dtypes only) */
  RAISES_shift,      /* E307 */
  RAISES_to_int,     /* E309 when casting a float to an integer type */
  RAISES_weak_range, /* E207 */
  RAISES_bounds,     /* E303 with index and size */
  RAISES_empty       /* E315 when the reduced axes hold no element and the result has one (known from shapes) */
} op_raises;

/* Attributes. Unused members are zero. `d` by op:
 *   reduce     axes = mask of reduced axes; keepdims
 *   scan, recurrence, sort, argsort, gather, gather_add, concat, iota   axes = mask with the one axis; iota also d = shape
 *              scan: flags & ATTR_REVERSE runs from the end, & ATTR_EXCLUSIVE leaves the own element out;
 *              recurrence: & ATTR_EXCLUSIVE multiplies by the coefficient of the element before;
 *              sort, argsort: & ATTR_DESCENDING; argsort: d[0], if n is 1, says how many of each line are wanted, from the first
 *   reshape, broadcast, random_*  d[0..n) = shape
 *              reshape: flags & ATTR_ANEW: what is made from it is made once more (checkpoint), so it is not simplified away
 *   permute    d[i] = which input axis becomes axis i
 *   slice, slice_put   d[3i..3i+2] = start, size, step of axis i (start in elements; size already clipped; step != 0)
 *   window     axes = mask with the one axis; d[0..2] = size, step, dilation, all >= 1: element k of window i is element
 *              i * step + k * dilation of the axis
 *   pad        d[3i..3i+2] = low, high, interior: all >= 0 (cropping is a slice)
 *   index      d[0] = number of index operands k; they broadcast together and replace the k leading axes
 *              flags & ATTR_ROW: it takes a row that a loop has kept, and stands for the value that this was (grad.c); & ATTR_NUMBER: of a host
 *              number (grad_is_number; inputs of arms may have this flag, too)
 *   scatter    d[0] as for index; mode = how v is combined (scatter_mode)
 *   compress   mask covers the leading axes (its rank)
 *   random_*   mode = where the key is from: DRAW_COUNTED the VM's seed and counter, DRAW_KEYED the program. Lanes of a vmap get
 *              numbers of their own from the first, and from the second the same where they have the same key.
 *              flags & ATTR_ANEW: drawn once more for a gradient, by lanes that may share it (graph_batch.linear)
 *   cast, fit, iota, random_*  dtype
 *              cast: flags & ATTR_WEAK makes a weak host scalar (bool, i64 or f64) from a weak one or an array of rank 0
 *   dot        flags & ATTR_LIBRARY: on the device where it was recorded its library made it; & ATTR_X_ACROSS, & ATTR_Y_ACROSS: of an
 *              operand that then lay as the transposes of its matrices, without gaps
 *   product    flags & ATTR_X_ACROSS, & ATTR_Y_ACROSS: the operand is given so
 *   where      flags & ATTR_JOINS: the condition says which of two ways was taken; nothing came of the other one (lanes of a vmap, grad.c)
 *   any fallible op: flags & ATTR_PROVEN says that an earlier node has made the same check, so this one cannot fail
 * Steps of slices, interior counts, permutations, what a window has and how many argsort gives are plain integers; the other members of d are dims.
 */
enum { OP_ATTR_DIMS = 3 * ARRAY_MAX_RANK };
/* clang-format off */
enum { ATTR_REVERSE = 1, ATTR_EXCLUSIVE = 2, ATTR_DESCENDING = 4, ATTR_WEAK = 8, ATTR_PROVEN = 16, ATTR_LIBRARY = 32, ATTR_X_ACROSS = 64,
       ATTR_Y_ACROSS = 128, ATTR_ANEW = ATTR_REVERSE /* of a reshape, a draw */,
       ATTR_JOINS = ATTR_EXCLUSIVE /* of a where */, ATTR_ROW = ATTR_EXCLUSIVE /* of an index */,
       ATTR_NUMBER = ATTR_DESCENDING /* of an index, an input */ };
/* clang-format on */
/* Is the product of operands of these ranks the sum of the products of their elements, sum(x * y)? That of two vectors is: in a graph it is
 * made of these ops (graph_op), and its one-op kernel and its loop for few elements sum in their order. All others are fma chains. */
static inline bool dot_is_sum(int x_rank, int y_rank) { return x_rank == 1 && y_rank == 1; }
typedef enum scatter_mode { SCATTER_SET, SCATTER_ADD, SCATTER_MUL, SCATTER_MIN, SCATTER_MAX } scatter_mode;
typedef enum draw_mode { DRAW_COUNTED, DRAW_KEYED } draw_mode;
typedef struct op_attr {
  uint8_t dtype; /* qn_dtype */
  uint8_t axes;  /* bit i: axis i */
  uint8_t keepdims;
  uint8_t mode;  /* scatter_mode, draw_mode */
  uint8_t flags; /* ATTR_ bits */
  uint8_t n;     /* entries of d in use */
  qn_dim d[OP_ATTR_DIMS];
} op_attr;

typedef struct op_row {
  const char *name;
  uint8_t klass; /* op_class */
  int8_t arity;
  uint8_t dtype_rule, shape_rule, batch_rule, raises;
  const char *no_grad; /* reason, or NULL when there is a gradient rule */
  const char *doc;
} op_row;
extern const op_row op_rows[OP_COUNT];
extern const topic_row op_topics[]; /* headings over the ops that are functions */
extern const int op_topic_count;
/* id of a name, or OP_COUNT. */
op_id op_find(const char *name, size_t len);

#endif
