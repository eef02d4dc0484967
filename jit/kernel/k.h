/* K: what a kernel computes, a DAG over named axes. Fusion, legality and the cost model work on it; schedule.c turns it into L.
 *
 * A value has a dtype and a set of axes (a bit mask); an axis has a name and an extent (a dim). An operand that lacks an axis
 * broadcasts along it. The node kinds are the rows of `k_code`: ten, with the structure markers of loops.
 *
 * Coordinates are linear forms over atoms: an axis, floor(form / d), form mod d, or an integer value of the kernel
 * (k_form). Coefficients are dims. Forms are hash-consed and kept in a normal form, so equal addresses are equal numbers.
 * The address of a load or store is one form, the element counted from the buffer's element 0: strides are multiplied in.
 *
 * A guard is a conjunction of ranges 0 <= form < extent and at most one bool value. A load whose guard is false gives its
 * `otherwise` operand and touches nothing; a store does nothing; a check passes.
 *
 * Effects are stores and checks. They run once for every point of their `axes`, which may be more than those of their operands. An element
 * is stored once; STOREF combines values into it in row-major order of its axes (in the order of k->axes). Effects stand in program
 * order, after the values that they use. Values are hash-consed.
 *
 * Loops (WHILE) have their carries before them. A carry without axes is one number for all elements; one with axes is a number of each
 * element. An array that a loop updates in place is a buffer that it loads from and stores to, in the order in which the nodes stand.
 *
 * Text form, written and read by tests alone (tests/unit/kernel_text.h):
 *   kernel softmax {
 *     dim n 4096
 *     axis r n
 *     axis c 64
 *     buffer b0 f32 in
 *     buffer b1 f32 out
 *     %1 = f32 load b0[64*r + c]
 *     %2 = f32 reduce.max inner c %1
 *     %3 = f32 sub %1 %2
 *     %4 = f32 exp %3
 *     %5 = f32 reduce.add inner c %4
 *     %6 = f32 div %4 %5
 *     store b1[64*r + c] %6 over r c
 *   }
 */
#ifndef JIT_KERNEL_K_H
#define JIT_KERNEL_K_H

#include "jit/graph/dim.h"
#include "jit/kernel/l.h"

typedef uint32_t k_val;   /* index of a node; 0: none */
typedef uint32_t k_form;  /* index of a linear form; 0: the number 0 */
typedef uint32_t k_guard; /* index of a guard; 0: none */
typedef uint32_t k_mask;  /* set of axes */
enum { K_AXES_MAX = 32 };

typedef enum k_code {
  K_NONE,
  K_CONST,  /* 1  the number whose bits are imm */
  K_SCALAR, /* 1  host scalar number imm; dtype bool, i64 or f64 */
  K_IOTA,   /* 1  the form `at` as a value of an integer dtype */
  K_LOAD,   /* 2  buffer[at] if guard else a */
  K_OP,     /* 3  kop sub of a, b, c */
  K_MATH,   /* 3  math function sub of a, b, c */
  K_REDUCE, /* 4  sub over `axis` of a, by order; argmin and argmax give the index */
  K_SCAN,   /* 5  running sub over `axis` of a, by order; flag K_EXCLUSIVE. Keeps the axis */
  K_DOT,    /* 6  sum over `axis` of a * b by fma, chains of order dot */
  K_WHILE,  /* 7  while carry a (bool): the nodes to END */
  /* 7  a value that starts as a and that SET changes; before its WHILE; read after END: the final value */
  K_CARRY,
  K_SET,   /* 7  carry a becomes b at the end of the iteration */
  K_END,   /* 7 */
  K_CHECK, /* 8  a (bool) false is failure of check imm at element `at`; b: the offending value, or none */
  K_STORE, /* 9  buffer[at] = a if guard */
  /* 10 buffer[at] = sub(buffer[at], a) if guard, in row-major order of the axes; sub may be copy: the last wins */
  K_STOREF,
  K_CODE_COUNT
} k_code;

/* K_CLOSED is the builder's: equal nodes that are asked for later are other nodes, since this one's region has ended, or what it loads may
 * have been stored to since. */
enum { K_EXCLUSIVE = 1, K_CLOSED = 2 };
/* larger numbers in forms become parameters of the program, so that it serves other sizes */
enum { K_LITERAL_MAX = 8 };

typedef struct k_node {
  uint8_t code, sub, dtype;
  /* l_order of REDUCE and SCAN: INNER or OUTER; where every order gives the same bits it is only a hint */
  uint8_t order;
  uint8_t flags;
  uint8_t axis; /* of REDUCE, SCAN, DOT, FOLD */
  int32_t buffer;
  k_val a, b, c;
  k_mask axes; /* the axes along which the value varies; of an effect those that it runs over */
  k_form at;
  k_guard guard;
  uint64_t imm;
} k_node;

typedef enum k_atom_kind { ATOM_AXIS, ATOM_DIV, ATOM_MOD, ATOM_VALUE } k_atom_kind;
typedef struct k_atom {
  uint8_t kind;
  uint32_t ref; /* the axis, or the k_val */
  k_form of;    /* of a quotient or remainder: the dividend */
  qn_dim by;    /* and the divisor, > 0 */
  k_mask axes;
} k_atom;
typedef struct k_term {
  uint32_t atom;
  qn_dim coef;
} k_term;
typedef struct k_linear {
  qn_dim constant;
  uint32_t n;
  k_term *terms; /* by atom, ascending */
  k_mask axes;
} k_linear;

typedef struct k_range {
  k_form form; /* 0 <= form < extent */
  qn_dim extent;
} k_range;
typedef struct k_condition {
  uint32_t n;
  k_range *ranges; /* ascending by form */
  k_val where;     /* bool, or 0 */
  k_mask axes;
} k_condition;

typedef struct k_axis {
  const char *name;
  qn_dim extent;
} k_axis;

typedef struct k_buffer {
  uint8_t dtype;
  uint8_t mode; /* l_buffer_mode */
  uint32_t ref; /* the graph node that it holds */
  qn_dim elements;
} k_buffer;

typedef struct k_kernel {
  arena arena;
  dim_table *dims; /* the graph's, borrowed, or `own` */
  dim_table own;
  bool classed; /* sizes that are symbols stay near their hints: the kernel is one of a class of sizes */
  bool windows; /* can the tiles of products read windows (k_finish.c)? */
  bool statics; /* all sizes that are numbers are literals of the program (statics.h) */
  const char *name;
  k_axis axes[K_AXES_MAX];
  uint32_t naxes;
  k_node *nodes;
  uint32_t n, cap;
  k_buffer *buffers;
  uint32_t nbuffers, buffers_cap;
  l_check *checks;
  uint32_t nchecks, checks_cap;
  uint32_t nscalars;
  uint32_t *scalars; /* by host scalar: its graph node; scalars_cap entries, 0 where it is not known */
  uint32_t scalars_cap;
  k_atom *atoms;
  uint32_t natoms, atoms_cap;
  k_linear *forms;
  uint32_t nforms, forms_cap;
  k_condition *guards;
  uint32_t nguards, guards_cap;
  intern_table node_index, atom_index, form_index, guard_index; /* gone once the kernel is finished */
  bool failed;
} k_kernel;

/* ---- building (k.c). Builders return 0 when memory is short and set k->failed. -------------------------------------------------- */

/* An empty kernel, owned by the caller. With `dims` NULL it has a table of dims of its own. NULL when memory is short. */
QN_MUST_CHECK k_kernel *k_new(const char *name, dim_table *dims);
void k_free(k_kernel *k);
/* Adds an axis and returns its number; -1 when there are too many. The name is copied. */
int k_axis_add(k_kernel *k, const char *name, qn_dim extent);
int k_buffer_add(k_kernel *k, qn_dtype dtype, l_buffer_mode mode, uint32_t ref, qn_dim elements);
int k_check_add(k_kernel *k, l_check c);

k_form k_number(k_kernel *k, qn_dim c);
k_form k_axis_form(k_kernel *k, uint32_t axis);
k_form k_value_form(k_kernel *k, k_val v); /* an integer value as a coordinate */
k_form k_plus(k_kernel *k, k_form a, k_form b);
k_form k_times(k_kernel *k, k_form a, qn_dim d);
/* floor(a / d) and a mod d, for d > 0, simplified as far as the extents of axes allow. a must not be negative where the result is used. */
k_form k_div(k_kernel *k, k_form a, qn_dim d);
k_form k_mod(k_kernel *k, k_form a, qn_dim d);
/* A form in which every axis a with to[a] != 0 is replaced by to[a]. */
k_form k_substitute(k_kernel *k, k_form f, const k_form to[K_AXES_MAX]);
static inline const k_linear *k_linear_of(const k_kernel *k, k_form f) { return &k->forms[f]; }
/* Is 0 <= form < extent at every point of the axes? */
bool k_within(k_kernel *k, k_form f, qn_dim extent);
/* Does 0 <= form < extent hold at no point? */
bool k_outside(k_kernel *k, k_form f, qn_dim extent);
/* Sets *coef to the coefficient of an axis. False if the axis occurs in a quotient, remainder or value. */
bool k_coef(const k_kernel *k, k_form f, uint32_t axis, qn_dim *coef);

/* A guard with one more range, or one more bool value. Ranges that always hold are left out. */
k_guard k_guard_range(k_kernel *k, k_guard g, k_form f, qn_dim extent);
k_guard k_guard_where(k_kernel *k, k_guard g, k_val where);

k_val k_const(k_kernel *k, qn_dtype dtype, uint64_t bits);
k_val k_const_i(k_kernel *k, qn_dtype dtype, int64_t value);
k_val k_const_f(k_kernel *k, qn_dtype dtype, double value);
k_val k_scalar(k_kernel *k, qn_dtype dtype, uint32_t number);
/* The number of the host scalar for a graph node, which is added if it is new; -1 when memory is short. */
int k_scalar_of(k_kernel *k, uint32_t ref);
k_val k_iota(k_kernel *k, qn_dtype dtype, k_form at);
k_val k_load(k_kernel *k, int buffer, k_form at, k_guard guard, k_val otherwise);
k_val k_op(k_kernel *k, kop_id op, qn_dtype dtype, k_val a, k_val b, k_val c);
k_val k_math(k_kernel *k, math_id fn, qn_dtype dtype, k_val a, k_val b, k_val c);
k_val k_cast(k_kernel *k, k_val v, qn_dtype to); /* in two steps where f16 and bf16 need that */
k_val k_reduce(k_kernel *k, kop_id op, l_order order, uint32_t axis, k_val a);
k_val k_scan(k_kernel *k, kop_id op, l_order order, uint32_t axis, bool exclusive, k_val a);
k_val k_dot(k_kernel *k, uint32_t axis, k_val a, k_val b);
bool k_store(k_kernel *k, int buffer, k_form at, k_guard guard, k_val v, k_mask over);
bool k_storef(k_kernel *k, kop_id op, int buffer, k_form at, k_guard guard, k_val v, k_mask over);
bool k_check(k_kernel *k, int check, k_val ok, k_form element, k_val shows, k_mask over);

/* Loops. A carry has its first value before its loop and its last one behind it; `axes` are those along which it varies, at least those of
 * `first`. k_while opens a loop that goes on while carry `go` (a bool without axes) holds, k_set says what a carry of the innermost open
 * loop is in the next turn, and k_end ends that loop. What is made in a loop is not found again behind it. */
k_val k_carry(k_kernel *k, k_val first, k_mask axes);
bool k_while(k_kernel *k, k_val go);
bool k_set(k_kernel *k, k_val carry, k_val next);
bool k_end(k_kernel *k);

static inline bool k_is_effect(const k_node *n) {
  return n->code == K_CHECK || n->code == K_STORE || n->code == K_STOREF;
}
/* Is a node a value? */
static inline bool k_has_result(uint8_t code) { return code <= K_DOT || code == K_CARRY; }
/* The axes along which a node varies, from its operands, coordinates and guard. An effect may run over more. */
k_mask k_value_axes(const k_kernel *k, const k_node *n);
/* Does every order of combination give the same bits? */
static inline bool k_free_order(uint8_t op, uint8_t dtype) {
  return !(dtype_is_float((qn_dtype)dtype) && (op == KOP_add || op == KOP_mul));
}
/* The number of points of a set of axes in the recorded call. */
int64_t k_points(const k_kernel *k, k_mask axes);

/* Ends building (k_finish.c): removes nodes that no effect needs, merges axes that only occur together as one index
 * x * extent(y) + y, and removes unused axes. Nothing may be added afterwards. */
void k_finish(k_kernel *k);

/* Is an axis so short that it may be unrolled, and does something reduce over it? */
bool k_can_unroll(const k_kernel *k, uint32_t axis);
/* A finished kernel, owned by the caller, that does the same without such an axis (k_unroll.c). Buffers, checks and host scalars keep their
 * numbers. NULL when memory is short. */
QN_MUST_CHECK k_kernel *k_unroll(const k_kernel *k, uint32_t axis);

/* ---- checking ---------------------------------------------------------------------------------------------------------------------- */

/* Checks the rules above. False: `why` says which is broken (a defect of Quern). Checked builds verify every kernel. */
QN_MUST_CHECK bool k_verify(const k_kernel *k, char *why, size_t size);

#endif
