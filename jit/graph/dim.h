/* Sizes that may be symbolic. A qn_dim >= 0 is a size; ~k (negative) is expression k of a table of dimensions: a symbol
 * (the size of an input's axis, a host int, or the result size of a node with data-dependent shape) or an expression
 * over dims with + - * // % min max. Expressions are hash-consed and kept in a normal form (dim.c), so expressions that are
 * equal by the laws of + - * are equal numbers, and constants fold. Every symbol has a hint: its value in the recorded call.
 *
 * A negative constant (it can only be an intermediate result) is the expression 0 - c.
 *
 * Rules of shape are written once against these functions; with table NULL all dims are plain numbers and the functions are
 * ordinary arithmetic. Arithmetic saturates instead of overflowing; division and remainder by 0 give 0.
 *
 * When memory is short the functions return the value in the recorded call, and the arena's `failed` flag is set: whoever
 * owns the table looks at it before using what was built.
 */
#ifndef JIT_GRAPH_DIM_H
#define JIT_GRAPH_DIM_H

#include "jit/graph/intern.h"
#include "lang/op.h"

typedef enum dim_op { DIM_SYMBOL, DIM_ADD, DIM_SUB, DIM_MUL, DIM_FLOORDIV, DIM_MOD, DIM_MIN, DIM_MAX } dim_op;

/* Where a symbol's value comes from when a plan runs. */
typedef enum dim_source {
  DIM_FROM_INPUT,
  DIM_FROM_SCALAR,
  DIM_FROM_NODE,
  DIM_FROM_NUMBER /* the value of a node, a host int that the graph computes */
} dim_source;
/* Is the symbol of such a source one of a node (dim_expr.ref)? */
static inline bool dim_of_node(uint8_t source) { return source == DIM_FROM_NODE || source == DIM_FROM_NUMBER; }

typedef struct dim_expr {
  uint8_t op;     /* dim_op */
  uint8_t source; /* of a symbol: dim_source */
  uint16_t axis;  /* of a symbol from an input or node: which axis */
  /* of a symbol: input number (of an array, or of a weak int), or node index (0: the node is gone) */
  uint32_t ref;
  uint16_t size;    /* operations and symbols in it, written out; at most DIM_MAX_SIZE, so walks are bounded */
  qn_dim a, b;      /* operands: sizes or expressions with a smaller index */
  int64_t hint;     /* value in the recorded call */
  const char *name; /* of a named dimension, or NULL; lives in the table's arena */
} dim_expr;
enum { DIM_MAX_SIZE = 256, DIM_TERMS = 16 /* of a sum in normal form */ };

/* A product in a sum, with its coefficient. */
typedef struct dim_term {
  qn_dim of;
  int64_t coef;
} dim_term;

typedef enum dim_relation { DIM_EQ, DIM_NE, DIM_LT, DIM_LE } dim_relation;

/* A fact that was relied on: `a relation b` held in the recorded call. */
typedef struct dim_fact {
  qn_dim a, b;
  uint8_t relation; /* dim_relation */
} dim_fact;

typedef struct dim_table {
  arena *arena;
  dim_expr *exprs;
  uint32_t n, cap;
  intern_table numbers; /* of expressions by content */
  /* Facts assumed while recording, which guards check before a plan runs: pairs that compared equal (==) or different, and
   * sizes compared with constants. */
  dim_fact *facts;
  uint32_t nfacts, facts_cap;
  /* Are there sizes that are numbers of a program, as in a loop's body? Nobody has seen their values, so hints say nothing about them: two of
   * them are equal only where that follows from what they are made of, and whoever relies on more notes a fact of order. */
  bool strict;
  bool numbers_of_data; /* are there symbols that are DIM_FROM_NUMBER? */
  uint8_t cut;          /* dim_cut */
} dim_table;

/* Have sizes that got too long become those of the recorded call? Facts say so; but where they depend on numbers (dim_is_number) guards cannot ask for
 * that, only a recording's own checks can, and nothing can where they are late in other ways. What is computed with such sizes must not be run. */
typedef enum dim_cut { DIM_CUT = 1, DIM_CUT_NUMBER = 2, DIM_CUT_LATE = 4 } dim_cut;

void dim_table_init(dim_table *t, arena *a);
/* Makes `to` a copy of a table, with memory from `a`; expressions keep their numbers. False when memory is short. */
QN_MUST_CHECK bool dim_table_copy(dim_table *to, const dim_table *from, arena *a);
/* The symbol for a source, which is made at the first call with this source, ref and axis; later calls give the same one, with its first
 * hint and name. */
qn_dim dim_symbol(dim_table *t, dim_source source, uint32_t ref, uint16_t axis, int64_t hint, const char *name);
qn_dim dim_make(dim_table *t, dim_op op, qn_dim a, qn_dim b); /* t may be NULL for plain numbers */
/* The dim for a number, which may be negative. */
qn_dim dim_const(dim_table *t, int64_t value);
/* Is `d` a constant? Then *value is its number. */
bool dim_is_const(const dim_table *t, qn_dim d, int64_t *value);

static inline qn_dim dim_add(dim_table *t, qn_dim a, qn_dim b) {
  qn_dim r;
  return (a | b) >= 0 && !__builtin_add_overflow(a, b, &r) ? r : dim_make(t, DIM_ADD, a, b);
}
/* Sets *sum to a + b. False, and nothing is noted, where that would hold for the sizes of the recorded call alone. */
bool dim_add_any(dim_table *t, qn_dim a, qn_dim b, qn_dim *sum);
/* The same, of room for something of that size: nothing where it is below 0, as numbers may make it that a check has yet to look at. */
bool dim_add_room(dim_table *t, qn_dim a, qn_dim size, qn_dim *sum);
static inline qn_dim dim_sub(dim_table *t, qn_dim a, qn_dim b) {
  return b >= 0 && a >= b ? a - b : dim_make(t, DIM_SUB, a, b);
}
static inline qn_dim dim_mul(dim_table *t, qn_dim a, qn_dim b) {
  qn_dim r;
  return (a | b) >= 0 && !__builtin_mul_overflow(a, b, &r) ? r : dim_make(t, DIM_MUL, a, b);
}
/* a // b, if b is not 0 and known to divide a: then *q is the quotient; false if that is not known. For numbers, too. */
bool dim_quotient(dim_table *t, qn_dim a, qn_dim b, qn_dim *q);
/* A size as a sum: its products, in their order, and its constant. How many products there are; -1: more than DIM_TERMS, or numbers that are too
 * large. */
int dim_terms(const dim_table *t, qn_dim d, dim_term terms[DIM_TERMS], int64_t *constant);
/* The value in the recorded call. */
int64_t dim_hint(const dim_table *t, qn_dim d);
/* d, of a strict table, is known not to be negative: its hint, which is a guess there, becomes 0 where it says so. */
void dim_hint_agree(dim_table *t, qn_dim d);
/* Questions that steer a rule: answered by the hint, and remembered as a fact when a symbol is involved. */
bool dim_equal(dim_table *t, qn_dim a, qn_dim b);
bool dim_is(dim_table *t, qn_dim a, int64_t value);
/* Notes a fact, unless it has been noted already. */
void dim_assume(dim_table *t, qn_dim a, dim_relation relation, qn_dim b);
/* Has this fact been noted? */
bool dim_has_fact(const dim_table *t, qn_dim a, dim_relation relation, qn_dim b);
/* Notes that all symbols of inputs' sizes in d, and of host ints that are arguments, have the values that they had in the recorded call. */
void dim_pin(dim_table *t, qn_dim d);
/* Does d depend on a number of the program that no guard can ask for: of data (DIM_FROM_NUMBER) or, in a strict table, of a loop's turn? */
bool dim_is_number(const dim_table *t, qn_dim d);
/* Is a size of an axis 0, in all calls like this one? Of a number's that is not asked: it must not be, which is noted. */
bool dim_is_empty(dim_table *t, qn_dim d);
/* Is it 1, in all calls like this one? Of a number's that is not asked either: it must be more, which is noted. */
bool dim_is_one(dim_table *t, qn_dim d);
/* Does d depend on a symbol that is no size of an input, nor a host int that is an argument of the call (which a table that is not strict has)? */
bool dim_is_late(const dim_table *t, qn_dim d);
/* Sets *most to a size that is not late and that a late d never exceeds, as a fact says; to d where that is not late. False: no fact says so. */
bool dim_most(const dim_table *t, qn_dim d, qn_dim *most);
/* Is d >= 0 whatever the symbols' values? */
bool dim_nonnegative(const dim_table *t, qn_dim d);
/* The value of a dim for given values of symbols: symbols[i] is that of expression i, read where this is a symbol. */
int64_t dim_eval(const dim_table *t, qn_dim d, const int64_t *symbols);
/* As dim_eval, where many dims are asked for: computes the value of each expression once. values[i] is given for each symbol i; bit i % 64 of
 * known[i / 64] says whether it is set for an expression i. */
int64_t dim_eval_once(const dim_table *t, qn_dim d, int64_t *values, uint64_t *known);
/* Computes the values of all expressions: values[i] is given for each symbol i, and set for the others. */
void dim_eval_all(const dim_table *t, int64_t *values);
/* The value of a dim whose symbols have the values that a function gives. */
typedef int64_t dim_symbol_value(const void *ctx, const dim_expr *symbol);
int64_t dim_ask(const dim_table *t, qn_dim d, dim_symbol_value *value, const void *ctx);
/* Renumbers the nodes that symbols refer to: node i becomes map[i], where 0 means that it was removed; with `map` NULL it stays i. Nodes from
 * `n` on were removed. */
void dim_rename_nodes(dim_table *t, const uint32_t *map, uint32_t n);
/* Content hash: the same for equal expressions over the same sources in any table; names and hints do not count. */
uint64_t dim_hash(const dim_table *t, qn_dim d);
/* Prints a dim with as few parentheses as precedence allows: "n", "2*n + 1", "min(n, m) // 2". A symbol is printed as its name, or as
 * d<number> where it has none or shares it with an earlier one; symbols are numbered from 0. */
void dim_print(const dim_table *t, qn_dim d, text_buf *out);
/* Is the symbol that is expression `index` printed as its name? */
bool dim_prints_name(const dim_table *t, uint32_t index);

#endif
