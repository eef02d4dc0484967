/* Nodes: what the resolver makes of the tree and the evaluator runs. Every node begins with the function that evaluates it, so
 * evaluation is one indirect call; the resolver picks the function by what the operands are (a local's slot, a constant,
 * anything), so that common cases have no call at all. Internal to this room.
 *
 * Contract of eval: the result is owned by the caller; an error (the VM holds it) or a signal comes back as such and every
 * temporary below the caller's mark has been released. A node changes nothing visible before all its operands have values.
 */
#ifndef INTERP_NODE_H
#define INTERP_NODE_H

#include "interp/index.h"
#include "interp/state.h"
#include "lang/op.h"
#include "parser/parser.h"

/* The fields that every array has. */
enum { ARRAY_FIELDS = 6 };
extern const char *const array_fields[ARRAY_FIELDS];
extern const char nil_origin[]; /* where a nil comes from, as the end of a message */
bool is_array_field(const qn_str *name);
/* The rows of foreign.def that tell of a member of `v` which there is not. */
static inline foreign_place foreign_member(qn_value v) {
  return value_is(v, TAG_ARRAY) ? FOREIGN_MEMBER | FOREIGN_ARRAY : FOREIGN_MEMBER;
}

typedef enum node_kind {
  N_OTHER,
  N_LOCAL,  /* n_local: slot */
  N_CONST,  /* n_const */
  N_GLOBAL, /* n_global */
  N_FIELD,  /* n_field */
  N_INDEX,  /* n_index: one item that is a value */
  N_BINARY, /* n_binary */
  N_SPREAD, /* n_one: ..value, evaluated by whoever owns the items */
  N_SLICE,  /* n_slice, in an index only */
  N_ELLIPSIS,
  N_NEW,
  N_ARRAY, /* n_items: an array literal */
  N_NIL    /* does nothing and gives nil */
} node_kind;

struct node {
  eval_fn eval;
  span at;
  uint8_t kind; /* node_kind */
  uint8_t flag; /* by node */
  uint32_t slot;
};

static inline qn_value eval(qn_vm *vm, node *n, qn_value *fp) { return n->eval(vm, n, fp); }

/* Where a site last found a field: items[index] of any record with the layout. The unit owns the reference (unit.layouts). */
typedef struct field_cache {
  record_layout *layout; /* NULL: nowhere yet */
  uint32_t index;
} field_cache;
/* Remembers where `r`, which has it, keeps field `i`. */
void field_cache_set(qn_vm *vm, field_cache *c, const qn_record *r, uint32_t i);

/* What a branch or loop may change outside itself: the recorder's business. */
typedef struct site {
  uint32_t nlocals, nglobals;
  uint32_t *locals;
  global_cell **globals;
} site;

typedef struct n_const {
  node h;
  qn_value v;
} n_const;

typedef struct n_local {
  node h;
  qn_str *name;
  span decl;
} n_local;

typedef struct n_global {
  node h;
  global_cell *cell;
  const char *const
      *near; /* of a name that nothing defines: variables around it with names much like it, up to NULL; or NULL */
  bool size; /* it stands in an expression among the sizes of a signature */
} n_global;

typedef struct n_one {
  node h;
  span mark;
  node *a;
} n_one;

typedef struct n_binary {
  node h;
  span mark;
  node *a, *b;
  uint32_t sa, sb; /* slots, where an operand is a local */
  qn_value k;      /* right operand, where it is a constant number */
  uint8_t op;      /* ast_op */
  uint8_t row;     /* op_id */
  bool warned;     /* that these kinds are never equal */
} n_binary;

typedef struct n_range {
  node h;
  node *a, *b;
} n_range;

/* Lists, array literals, templates, blocks. */
typedef struct n_items {
  node h;
  uint32_t n;
  bool spreads;
  node *items[];
} n_items;

typedef struct n_part {
  node *value;
  qn_str *text; /* literal text, or the format of `value` (may be NULL) */
} n_part;
typedef struct n_template {
  node h;
  uint32_t n;
  n_part parts[];
} n_template;

typedef struct n_record_field {
  qn_str *name; /* NULL: a spread */
  node *value;
} n_record_field;
typedef struct n_record {
  node h;
  uint32_t n;
  record_layout *layout; /* of a literal without spreads, after its first evaluation; owned through unit.layouts */
  n_record_field fields[];
} n_record;

typedef struct call_arg {
  node *value;
  qn_str *keyword; /* or NULL */
  bool spread;
  /* where the call is laid out: */
  uint8_t slot;       /* which parameter it is */
  const qn_value *at; /* where the value of a constant or a global lies, else NULL */
} call_arg;
enum { CALL_MOVES = 1, CALL_MIXED = 2 /* keywords or spreads among the arguments */ };
enum { BORROWS_NOT, BORROWS_VALUES, BORROWS_LIST };
typedef struct n_call {
  node h; /* flag: CALL_ bits */
  span args_at;
  node *callee;         /* of a method: the receiver */
  qn_str *method;       /* x.f(...), else NULL */
  uint32_t ncandidates; /* of a method: what f may be, nearest first */
  node **candidates;
  const qn_str *lost; /* of a method whose value nobody uses: what to say if it is the builtin; else NULL */
  /* `xs = append(xs, v)`, `r.a = append(r.a, v)`: what the result replaces, and which argument it is (a method's receiver is 0);
   * NULL if there is none. flag CALL_MOVES: also a user function may have the place's last reference. */
  node *moved;
  uint32_t moved_arg;
  global_cell *direct;             /* the callee, if it is a global and no argument is spread; else NULL */
  const struct builtin_info *laid; /* the builtin for whose parameters the arguments' slots hold; NULL: none yet */
  uint8_t
      borrows; /* of it: whether it is pure and its arguments are variables and constants, one list of such among them: BORROWS_ */
  uint8_t missing;   /* of it, if borrowed: a bit for each parameter that is not given */
  uint32_t n, nrest; /* arguments; of those laid out, how many the rest parameter takes */
  call_arg args[];
} n_call;

/* A call, whose value nobody uses, of what is a builtin without effect unless the program defines a function of its name meanwhile. */
typedef struct n_lost {
  node h;
  node *call;
  const global_cell *cell; /* of the name */
  const qn_str *lost;      /* what is to be said if it is the builtin still */
} n_lost;

typedef struct n_slice {
  node h;
  node *start, *stop, *step; /* each may be NULL */
} n_slice;

typedef struct n_index {
  node h;
  span mark;
  node *object;
  uint32_t n;
  node *items[];
} n_index;

/* The variable that has a field's name, too: `r.k` may have been meant as `r[k]`. */
typedef enum field_namesake { NAMESAKE_NONE, NAMESAKE_LOCAL, NAMESAKE_OUTER, NAMESAKE_GLOBAL } field_namesake;
typedef struct n_field {
  node h; /* flag: a field_namesake; slot: that of a local one */
  span mark;
  node *object;
  qn_str *name;
  field_cache cache;
  const global_cell *namesake; /* a global one */
} n_field;

typedef enum capture_from { FROM_LOCAL, FROM_CAPTURE, FROM_SELF } capture_from;
typedef struct capture_source {
  uint8_t from; /* capture_from */
  uint32_t number;
} capture_source;
typedef struct n_fn {
  node h;
  fn_code *code;
  capture_source *captures;
  node **initials;
} n_fn;

typedef struct n_if {
  node h;                        /* flag: somebody looks at the value */
  node *cond, *then, *otherwise; /* otherwise may be NULL */
  site *site;
} n_if;

typedef struct n_try {
  node h;
  node *body, *handler;
  int32_t error_slot; /* -1: `catch _` */
} n_try;

typedef struct n_block {
  node h;
  uint32_t n;
  uint32_t first, last; /* slots that the block declares: cleared when it ends */
  node *items[];
} n_block;

/* Where a value goes. */
typedef enum lvalue_kind {
  LVALUE_NONE,
  LVALUE_LOCAL,
  LVALUE_GLOBAL,
  LVALUE_PATH,
  LVALUE_LIST,
  LVALUE_RECORD
} lvalue_kind;
typedef struct path_step {
  qn_str *name; /* a field, or NULL: an index */
  span mark;
  field_cache cache;   /* of the field */
  uint32_t n, nvalues; /* index items, and the values they leave on the stack */
  node **items;
} path_step;
typedef struct lvalue lvalue;
struct lvalue {
  uint8_t kind;
  bool defines; /* let: a new binding (a global need not have a value yet) */
  span at;
  uint32_t slot;
  global_cell *cell;
  qn_str *name;     /* of the variable */
  uint32_t n;       /* steps of a path, items of a list or record */
  uint32_t nvalues; /* stack values that evaluating the indices leaves, nested places included */
  path_step *steps;
  lvalue **items;
  qn_str **fields; /* of LVALUE_RECORD */
};

typedef struct n_assign {
  node h;
  span mark;
  lvalue *target;
  node *value;
  uint8_t op;  /* ast_op of op=, or AST_OP_none */
  uint8_t row; /* op_id */
} n_assign;

typedef struct n_for {
  node h;
  lvalue *target; /* where each item goes */
  node *iterable;
  node *start, *stop;   /* instead of iterable: `a..b` in the header */
  uint32_t first, last; /* slots of the pattern's variables */
  node *body;
  site *site;
} n_for;

typedef struct n_while {
  node h;
  node *cond, *body;
  site *site;
} n_while;

typedef struct n_import {
  node h;
  qn_str *name;
  bool path;
  span mark;
  global_cell *cell; /* NULL: `as _` */
  scope *from;
} n_import;

/* ---- evaluators, by file -------------------------------------------------------------------------------------------- */

/* Evaluates `n` while the caller needs `v` (which stays its own) further on. A heap value waits on the value stack, where it is found
 * when an exception of a host passes. */
qn_value eval_holding(qn_vm *vm, node *n, qn_value *fp, qn_value v);
static inline qn_value eval_beside(qn_vm *vm, node *n, qn_value *fp, qn_value v) {
  return __builtin_expect(value_is_heap(v), 0) ? eval_holding(vm, n, fp, v) : eval(vm, n, fp);
}

/* eval_scalar.c: variables, constants, operators */
qn_value eval_const(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_nil(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_local(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_global(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_capture(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_self(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_unary(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_not(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_logic(qn_vm *vm, node *n, qn_value *fp);
/* The evaluator of a binary operator for operands of these kinds. */
eval_fn binary_eval(ast_op op, node_kind left, node_kind right, qn_value k);
/* `a op b` on any values; takes over both. `n` says the operator and the places. */
qn_value binary_values(qn_vm *vm, const n_binary *n, qn_value a, qn_value b);
/* `*x = *x op b` for a value that its owner may change: texts and lists grow in place. Takes over `b`; on an error *x is as before. */
QN_MUST_CHECK bool binary_into(qn_vm *vm, const n_binary *n, qn_value *x, qn_value b);
/* The evaluator of `x = x op e` for a local x, or NULL: the general one will do. */
eval_fn accumulate_eval(const n_binary *n);
qn_value eval_add_global(qn_vm *vm, node *n, qn_value *fp); /* x = x + e for a global x */
op_id op_of_ast(ast_op op);

/* eval_expr.c: lists, records, strings, fields, functions */
qn_value eval_list(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_list_spread(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_record(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_template(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_range(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_field(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_fn_node(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_index(qn_vm *vm, node *n, qn_value *fp);

qn_value eval_index_one(qn_vm *vm, node *n, qn_value *fp);
/* A bound of a range, which messages call `what`; false: *stopped is what ended the evaluation, or the error value. */
#define RANGE_START "a range's start"
#define RANGE_END "a range's end"
QN_MUST_CHECK bool range_bound(qn_vm *vm, node *n, qn_value *fp, const char *what, int64_t *out, qn_value *stopped);
/* x.name for any value that has fields; borrowed value, owned result. `cache` may be NULL. */
qn_value field_of(qn_vm *vm, qn_value v, qn_str *name, span mark, field_cache *cache);
/* The value that a variable holds, or a field or item reached from it, without taking a reference; NULL: only evaluating the node
 * tells. Good until something is evaluated. `own`: NULL, too, if a container on the way has another owner, so that what is returned
 * may be changed. */
qn_value *peek_path(const qn_vm *vm, const node *n, qn_value *fp, bool own);
static inline qn_value *peek(const qn_vm *vm, const node *n, qn_value *fp, bool own) {
  return n->kind == N_LOCAL ? &fp[n->slot] : peek_path(vm, n, fp, own);
}

/* index.c. Items of plain ints and arrays that lie in variables and constants, the arrays borrowed, without evaluating anything: at most
 * INDEX_READ items. False: some are to be evaluated, or say what is wrong, or a recording runs. */
enum { INDEX_READ = 4 };
QN_MUST_CHECK bool index_items_here(const qn_vm *vm, node *const *items, uint32_t n, const qn_value *fp,
                                    index_item *out);
/* The values that items are made of, evaluated onto the value stack: a slice has three, nil for what is left out; ... and new have none.
 * False: `*stopped` says what ended it, and the stack is as before. */
QN_MUST_CHECK bool index_values_push(qn_vm *vm, node *const *items, uint32_t n, qn_value *fp, qn_value *stopped);
/* Items of these values; `host` as for index_item_of. */
QN_MUST_CHECK bool index_items_of(qn_vm *vm, node *const *items, uint32_t n, const qn_value *values, bool host,
                                  index_item *out);

/* literal.c: array literals; dtype -1: found from the items */
qn_value eval_array(qn_vm *vm, node *n, qn_value *fp);
qn_value array_literal(qn_vm *vm, const n_items *n, qn_value *fp, int dtype);
/* f32(x): a value converted to an array of the dtype. Borrowed. */
qn_value convert_dtype(qn_vm *vm, qn_dtype dtype, qn_value v);

/* eval_stmt.c */
qn_value eval_block(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_block_plain(qn_vm *vm, node *n, qn_value *fp); /* declares nothing, or the frame ends with it */
qn_value eval_if(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_try(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_for_range(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_for(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_while(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_signal(qn_vm *vm, node *n, qn_value *fp); /* flag: signal_kind */
qn_value eval_return(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_import(qn_vm *vm, node *n, qn_value *fp);
/* A condition's truth: 1, 0, or -1 with an error raised. Takes over the value. */
int condition(qn_vm *vm, qn_value v, node *n);

/* update.c: assignments */
qn_value eval_set_local(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_set_global(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_update(qn_vm *vm, node *n, qn_value *fp);     /* a path, plain or op= */
qn_value eval_update_one(qn_vm *vm, node *n, qn_value *fp); /* x[i] = v for a local x */
/* The evaluator for x.a.b = v, a path of fields. */
eval_fn fields_eval(const lvalue *p);
qn_value eval_add_fields(qn_vm *vm, node *n, qn_value *fp); /* x.a.b = x.a.b + e */
qn_value eval_destructure(qn_vm *vm, node *n, qn_value *fp);
/* Binds a value to a place without indices to evaluate (patterns). Takes over `v`. */
QN_MUST_CHECK bool lvalue_bind(qn_vm *vm, const lvalue *p, qn_value *fp, qn_value v);

/* call.c */
qn_value eval_call(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_method(qn_vm *vm, node *n, qn_value *fp);
/* A call as a statement: what a function of the library gives must not be lost. */
qn_value eval_lost(qn_vm *vm, node *n, qn_value *fp);
qn_value eval_lost_builtin(qn_vm *vm, node *n, qn_value *fp);
qn_value call_value(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs);

/* Adds the frame of the function `fn` (nil: the top level) to the pending error's trace. */
void trace_frame(qn_vm *vm, qn_value fn);
/* The pending error leaves a body: if it still has no place, it gets that of the last statement (the others give it theirs). */
void raise_last(qn_vm *vm, node *body);

/* Labels the operands of a failed operation with their shapes and source text. */
void note_operand(qn_vm *vm, span at, qn_value v, const node *n);
/* Source text of a span, shortened; appended to `t`. */
void text_span(qn_vm *vm, text_buf *t, span at);

#endif
