/* Sizes that may be symbolic. A qn_dim >= 0 is a size; ~k (negative) is expression k of a table of dimensions: a symbol
 * (the size of an input's axis, a host int, or the result size of a node with data-dependent shape) or an expression
 * over dims with + - * // % min max. Expressions are hash-consed, so equal expressions are equal numbers, and constants
 * fold. Every symbol has a hint: its value in the recorded call.
 *
 * Rules of shape are written once against these functions; with table NULL all dims are plain numbers and the functions are
 * ordinary arithmetic.
 */
#ifndef JIT_GRAPH_DIM_H
#define JIT_GRAPH_DIM_H

#include "lang/op.h"

typedef enum dim_op { DIM_SYMBOL, DIM_ADD, DIM_SUB, DIM_MUL, DIM_FLOORDIV, DIM_MOD, DIM_MIN, DIM_MAX } dim_op;

/* Where a symbol's value comes from when a plan runs. */
typedef enum dim_source { DIM_FROM_INPUT, DIM_FROM_SCALAR, DIM_FROM_NODE } dim_source;

typedef struct dim_expr {
  uint8_t op;        /* dim_op */
  uint8_t source;    /* of a symbol: dim_source */
  uint16_t axis;     /* of a symbol from an input or node: which axis */
  uint32_t ref;      /* of a symbol: input number, scalar input number, or node index */
  qn_dim a, b;       /* operands */
  int64_t hint;      /* value in the recorded call */
  const char *name;  /* of a named dimension, or NULL; lives in the table's arena */
} dim_expr;

typedef struct dim_table {
  arena *arena;
  dim_expr *exprs;
  uint32_t n, cap;
  uint32_t *hash; /* open addressing, size hash_cap */
  uint32_t hash_cap;
  /* Facts assumed while recording, which entries check before a plan runs: pairs that compared equal (==) or different, and
   * sizes compared with constants. Each is (a relation b). */
  struct dim_fact { qn_dim a, b; uint8_t relation; /* 0 ==, 1 !=, 2 <, 3 <= */ } *facts;
  uint32_t nfacts, facts_cap;
} dim_table;

void dim_table_init(dim_table *t, arena *a);
qn_dim dim_symbol(dim_table *t, dim_source source, uint32_t ref, uint16_t axis, int64_t hint, const char *name);
qn_dim dim_make(dim_table *t, dim_op op, qn_dim a, qn_dim b); /* t may be NULL for plain numbers */
static inline qn_dim dim_add(dim_table *t, qn_dim a, qn_dim b) { return (a | b) >= 0 ? a + b : dim_make(t, DIM_ADD, a, b); }
static inline qn_dim dim_mul(dim_table *t, qn_dim a, qn_dim b) { return (a | b) >= 0 ? a * b : dim_make(t, DIM_MUL, a, b); }
/* The value in the recorded call. */
int64_t dim_hint(const dim_table *t, qn_dim d);
/* Questions that steer a rule: answered by the hint, and remembered as a fact when a symbol is involved. */
bool dim_equal(dim_table *t, qn_dim a, qn_dim b);
bool dim_is(dim_table *t, qn_dim a, int64_t value);
/* Value of a dim for other symbol values (indexed like exprs; only symbols are read). */
int64_t dim_eval(const dim_table *t, qn_dim d, const int64_t *symbols);
void dim_print(const dim_table *t, qn_dim d, text_buf *out);

#endif
