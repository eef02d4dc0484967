/* Nodes: what the resolver makes of the tree, and the evaluator runs. Internal to this room.
 *
 * Every node begins with the function that evaluates it, so that evaluating it is one indirect call. The resolver chooses this function by
 * what the operands are (a local, a constant, anything), so that common forms read their operands without further calls.
 *
 * Contract of evaluators: the caller owns the result. An error (which the VM holds) or a signal comes back as a value for which value_stops
 * is true; then the value stack is as it was before. A node changes nothing that a program can see before all its operands have values.
 */
#ifndef INTERP_NODE_H
#define INTERP_NODE_H

#include "interp/index.h"
#include "interp/state.h"
#include "lang/op.h"
#include "parser/parser.h"

/* How many fields arrays have (array_fields). */
enum { ARRAY_FIELDS = 6 };
extern const char *const array_fields[ARRAY_FIELDS];
extern const char nil_origin[]; /* says where nil comes from, as the end of a message */
bool is_array_field(const qn_str *name);
/* Which rows of foreign.def are for members that `v` lacks. */
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
  N_SPREAD, /* n_one: ..value. Whoever owns the items evaluates the value */
  N_SLICE,  /* n_slice; occurs in indices only */
  N_ELLIPSIS,
  N_NEW,
  N_ARRAY, /* n_items: an array literal */
  N_NIL    /* does nothing and gives nil */
} node_kind;

struct node {
  eval_fn eval;
  span at;
  uint8_t kind; /* node_kind */
  uint8_t flag; /* its meaning depends on the kind of node */
  uint32_t slot;
};

static inline qn_value eval(qn_vm *vm, node *n, qn_value *fp) { return n->eval(vm, n, fp); }

/* The inline cache of a node that reads or stores a field: in any record with this layout, the field is items[index]. The unit owns the
 * reference to the layout (unit.layouts). */
typedef struct field_cache {
  record_layout *layout; /* NULL: the field was not found yet */
  uint32_t index;
} field_cache;
/* Stores in the cache that the field is items[i] of `r`; layouts that only one record can have are not stored. */
void field_cache_set(qn_vm *vm, field_cache *c, const qn_record *r, uint32_t i);

/* The variables outside of a branch or loop that it may rebind; the recorder must know them. */
typedef struct site {
  /* Of a loop: a bit for each of the first locals, and globals behind these, to which its turns only add items at the end (n_grow), without looking at it. */
  uint64_t grown;
  /* And for each of these that is also only gone over, counted, stacked or has items taken elsewhere. */
  uint64_t stores; /* and for each of these: its turns store items in it, by an index */
  uint64_t stacks;
  uint64_t
      returned; /* and the function has early returns, and it is a result: so only where nothing goes on with that in a recording */
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
  const char *const *near; /* as undefined_name has it */
  bool size;               /* as undefined_name has it */
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
  uint32_t sa, sb; /* the slots of the operands, if these are locals */
  qn_value k;      /* the value of the right operand if it is a constant; else nil */
  uint8_t op;      /* ast_op */
  uint8_t row;     /* op_id */
  bool warned;     /* a warning about kinds that are never equal has been written */
  bool stacks;     /* whoever reads the value takes a stacked list (note_stackable) */
} n_binary;

/* a and b, a or b. */
typedef struct n_logic {
  n_binary h;
  site *site; /* the variables that b may rebind; NULL: none */
} n_logic;

typedef struct n_range {
  node h;
  node *a, *b;
  /* NULL, or the first argument of this call is the range, and `by` the builtin, map or fold, that its name means: it knows of ranges that end at a
   * number which is traced (rec_ends_range) */
  const struct n_call *over;
  const struct builtin_def *by;
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
  qn_str *text; /* a piece of text, or the format of `value` (may be NULL) */
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
  record_layout *layout; /* for a literal without spreads, after its first evaluation; owned through unit.layouts */
  n_record_field fields[];
} n_record;

typedef struct call_arg {
  node *value;
  qn_str *keyword; /* or NULL */
  bool spread;
  /* Set when the call is laid out for a builtin (n_call.laid): */
  uint8_t slot;       /* the number of its parameter */
  const qn_value *at; /* where the value lies if it is a constant or global; else NULL */
} call_arg;
enum { CALL_MOVES = 1, CALL_MIXED = 2 /* keywords or spreads among the arguments */ };
enum { BORROWS_NOT, BORROWS_VALUES, BORROWS_LIST };
/* What does whatever reads the value of a call know of stacked lists: nothing; that it may be one; the function returns the value as it is, with those
 * that are in it. */
enum call_stacks { STACKS_NONE, STACKS_VALUE, STACKS_RESULT };
typedef struct n_call {
  node h; /* flag: CALL_ bits */
  span args_at;
  node *callee;         /* in a method call: the receiver */
  qn_str *method;       /* the name f in x.f(...); else NULL */
  uint32_t ncandidates; /* in a method call: what f may be beside a field, the nearest variable first */
  node **candidates;
  /* in a method call whose value nobody uses: the message of the error that it is if f turns out to be the builtin; else NULL */
  const qn_str *lost;
  /* In `xs = append(xs, v)` or `r.a = append(r.a, v)`: the argument that reads what the result will replace, and its number (the receiver
   * of a method has number 0); NULL if there is none. The call may take the last reference to that value away from the variable (lend in
   * call.c), so that the callee can change it in place: a builtin always may, a function of the program if the flag has CALL_MOVES. */
  node *moved;
  uint32_t moved_arg;
  global_cell *direct; /* the cell of the callee, if that is a global and no argument is spread; else NULL */
  /* the builtin for which the call is laid out, so that the slots of its arguments are set; NULL: none yet */
  const struct builtin_info *laid;
  /* If that builtin is pure, and all arguments are variables, constants, or one list of such: BORROWS_VALUES or BORROWS_LIST. Then the call
   * passes them without taking references. */
  uint8_t borrows;
  uint8_t stacks;    /* call_stacks */
  bool unused;       /* it is a statement whose value nobody uses */
  uint8_t missing;   /* if it borrows: a bit for each parameter that gets its default */
  uint32_t n, nrest; /* how many arguments there are; once laid out, how many of them the rest parameter takes */
  call_arg args[];
} n_call;

/* A call whose value nobody uses. When it was resolved, its name meant a builtin without effect; if it still does when the call runs, that
 * is an error. */
typedef struct n_lost {
  node h;
  node *call;
  const global_cell *cell; /* the global of that name */
  const qn_str *lost;      /* the message of the error */
} n_lost;

typedef struct n_slice {
  node h;
  node *start, *stop, *step; /* each may be NULL: left out */
} n_slice;

typedef struct n_index {
  node h;
  span mark;
  node *object;
  bool stacks; /* whoever reads the value takes a stacked list (note_stackable) */
  uint32_t n;
  node *items[];
} n_index;

/* Is there a variable with the name of a field? Then r.k may have been meant as r[k], and errors say so. */
typedef enum field_namesake { NAMESAKE_NONE, NAMESAKE_LOCAL, NAMESAKE_OUTER, NAMESAKE_GLOBAL } field_namesake;
typedef struct n_field {
  node h; /* flag: field_namesake; slot: the variable's, if that is NAMESAKE_LOCAL */
  span mark;
  node *object;
  qn_str *name;
  field_cache cache;
  const global_cell *namesake; /* the variable, if it is NAMESAKE_GLOBAL */
  bool stacks;                 /* whatever reads it knows of stacked lists */
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

/* Does anything use the value; may something in it break, continue or return; does the function end with it; may something in it leave the
 * turn of a loop that it stands in? */
enum { IF_USED = 1, IF_LEAVES = 2, IF_LAST = 4, IF_LEAVES_TURN = 8 };
/* Of a loop: something in its body breaks or continues it; returns; it counts calls (recursion.c), from 0 on. */
enum { LOOP_LEAVES = 1, LOOP_RETURNS = 2, LOOP_CALLS = 4 };
typedef struct n_if {
  node h;                        /* flag: IF_... */
  node *cond, *then, *otherwise; /* otherwise: NULL if there is no else */
  site *site;
} n_if;

/* Something uses its value; its handler reads the error; something in it breaks, continues or returns. */
enum { TRY_USED = 1, TRY_SEES = 2, TRY_LEAVES = 4 };

typedef struct n_try {
  node h;
  node *body, *handler;
  int32_t error_slot; /* -1 in `catch _` */
  site *site;
} n_try;

typedef struct n_block {
  node h;
  uint32_t n;
  uint32_t first, last;    /* the slots of the variables that the block declares; cleared when it ends */
  struct block_code *code; /* what cutting it into parts takes; NULL: it is not cut */
  node *items[];
} n_block;

/* A statement of the block that a function ends with, in which something may return. It stands in the block in place of the statement. */
typedef struct n_tail {
  node h;
  node *first;    /* the statement */
  n_block *block; /* what follows: the items of this block from number `next` on */
  uint32_t next;
  site *site; /* of all this */
  bool leads; /* it is the first one of its block */
} n_tail;

/* Where an assignment, let or loop stores a value. */
typedef enum lvalue_kind {
  LVALUE_NONE,
  LVALUE_LOCAL,
  LVALUE_GLOBAL,
  LVALUE_PATH,
  LVALUE_LIST,
  LVALUE_RECORD
} lvalue_kind;
typedef struct path_step {
  qn_str *name; /* the name of the field; NULL if the step is an index */
  span mark;
  field_cache cache;   /* for a field */
  uint32_t n, nvalues; /* for an index: how many items it has, and how many values these push when they are evaluated */
  node **items;
} path_step;
typedef struct lvalue lvalue;
struct lvalue {
  uint8_t kind;
  bool defines; /* it is a new binding, by let (a global need not have a value yet) */
  bool stacks;  /* of a variable: all that reads it takes a stacked list */
  span at;
  uint32_t slot;
  global_cell *cell;
  qn_str *name;     /* the variable's */
  uint32_t n;       /* how many steps a path has, or items a list or record pattern */
  uint32_t nvalues; /* how many values evaluating all its indices pushes, those of nested lvalues included */
  path_step *steps;
  lvalue **items;
  qn_str **fields; /* for LVALUE_RECORD */
};

typedef struct n_assign {
  node h;
  span mark;
  lvalue *target;
  node *value;
  uint8_t op;  /* the ast_op of op=, or AST_OP_none */
  uint8_t row; /* op_id */
} n_assign;

/* xs = append(xs, v), xs = xs.append(v), xs += (v, w) or xs = (..xs, v) for a local, in h.slot, or a global. While a loop is captured in which a list only grows,
 * the variable holds what the recorder puts there (rec_grows), and the items are handed to it. While a turn is recorded whose results are the
 * items that it adds to a global (turn_code.grown), they are added without a look at the list. */
typedef struct n_grow {
  node h;
  node *plain;                   /* the assignment */
  global_cell *cell;             /* of a global */
  const global_cell *callee;     /* the variable `append` means, or NULL for a sum */
  const struct builtin_def *def; /* what it must mean: the builtin */
  uint32_t n;
  node *items[];
} n_grow;

/* len(xs) or stack(xs) where xs may be a stacked list: a local, in h.slot, a field or what a call gives. */
typedef struct n_count {
  node h;
  bool local;
  n_call *plain;                 /* the call */
  const struct builtin_def *def; /* what its callee must mean: the builtin */
  bool stacks;                   /* it is stack */
} n_count;

typedef struct n_for {
  node h;
  lvalue *target; /* where each item is stored */
  node *iterable;
  node *start, *stop;   /* set instead of iterable if the header has a..b */
  uint32_t first, last; /* the slots of the variables in the pattern */
  node *body, *turn;    /* the turn, as it is evaluated where calls are recorded: a block, though of one statement */
  site *site;
  turn_code *turns;         /* NULL: there are too many variables */
  const jit_anchor *anchor; /* if a local is gone over: of the function that it is in; else NULL */
} n_for;

typedef struct n_while {
  node h;
  node *cond, *body, *turn; /* as in n_for */
  site *site;
  turn_code *turns; /* as in n_for */
} n_while;

typedef struct n_import {
  node h;
  qn_str *name;
  bool path;
  span mark;
  global_cell *cell; /* NULL: `as _` */
  scope *from;
} n_import;

/* ---- turns of loops as calls (turns.c) -------------------------------------------------------------------------------- */

/* What a turn of a loop consists of; or a part of a block. */
typedef struct turn_parts {
  lvalue *target; /* where the item is stored; NULL: there is none */
  node *body;
  node *cond; /* of a while loop, to be evaluated after the body; else NULL */
  span at;
  n_block
      *block; /* of a part of a block, instead of `body`: statements from number `from` on, before `to`; else NULL */
  uint32_t from, to;
  const site *run; /* of the loop, whose turns may be made many at once (turns_run); NULL: they are made one by one */
  bool leaves;     /* a turn may break, continue or return */
  bool returns;    /* a turn may return */
} turn_parts;
enum { COUNT_BOUNDS = 3, COUNT_FIRST = COUNT_BOUNDS, COUNT_END, COUNT_VALUES };
/* Evaluates a call (eval_call) in the header of a loop while something is recorded. *counts: it is one of range, with bounds that need not be
 * known (rec_range): then values[] are bounds, and the first number and the end of numbers that stand for the items, all host ints.
 * Else gives the call's value. */
QN_MUST_CHECK qn_value call_counting(qn_vm *vm, node *h, qn_value *fp, qn_value *values, bool *counts);
/* How many turns are to pass before the next one is made by turn_called; INT64_MAX: none is asked about. */
int64_t turns_pass(const qn_vm *vm, turn_code *t);
/* So many turns, at most turns_pass, were made without it. */
void turns_passed(turn_code *t, int64_t n);
/* Makes a turn as a call. Takes over the item. Does the loop go on? Then *next (if `next` is not NULL) is the condition, owned; else *r is the
 * value of the loop: nil, the error value, or the signal of a return. */
QN_MUST_CHECK bool turn_called(qn_vm *vm, turn_code *code, const turn_parts *parts, qn_value *fp, qn_value item,
                               qn_value *r, qn_value *next);
/* Makes many turns at once, as a call of which they are a loop, while a call that has left its plan is made again: turns from number `first`
 * on, before `end`, over `over` (borrowed: an array, a list or a range; nil: the numbers are the items; of a while loop they only count). How many were made, as many as
 * were asked for unless *next is false: the condition of the next one, as turn_called gives it. 0: none, the next one is to be asked about. -1:
 * the loop is over, with value *r. */
QN_MUST_CHECK int64_t turns_run(qn_vm *vm, turn_code *code, const turn_parts *parts, qn_value *fp, qn_value over,
                                int64_t first, int64_t end, qn_value *r, qn_value *next);
/* Can there be such runs: is a call made again? */
static inline bool turns_may_run(const qn_vm *vm) { return __builtin_expect(vm->asked.taps != NULL, 0); }
/* Makes them in the interpreter; bounds may be traced. False with an error raised; else *ends says how they have ended. */
QN_MUST_CHECK bool loop_turns(qn_vm *vm, const turn_parts *parts, qn_value *fp, qn_value over, qn_value first,
                              qn_value end, rec_ends *ends);
/* Is a part of a block to be made by part_called now? If not, that is counted. */
bool part_asks(qn_vm *vm, turn_code *code);
/* Makes part of a block as a call. Gives what evaluating its statements in turn gives. */
qn_value part_called(qn_vm *vm, turn_code *code, const turn_parts *parts, qn_value *fp);

/* ---- blocks that are cut into parts (parts.c) ---------------------------------------------------------------------------- */

/* The statements of a block from number `from` on, before `to`, while a call may be captured: cuts the block where that ends. */
qn_value block_run(qn_vm *vm, n_block *n, qn_value *fp, uint32_t from, uint32_t to);
/* vm_hooks.steps. */
bool block_steps(qn_vm *vm, qn_value fn, bool (*each)(void *ctx, const void *step), void *ctx);
evaluator eval_block_parts; /* takes the place of other evaluators of a block that is cut */

/* Fills in out[SITE_MAX] with the addresses of the outer variables that a site may rebind, and returns how many they are; -1 if there are too
 * many. */
enum { SITE_MAX = 64 };
int site_slots(const site *s, qn_value *fp, qn_value **out);

/* How an arm or body has ended that gave the value *v, which is then replaced by the value that the recorder gets (owned). */
rec_exit exit_of(qn_vm *vm, qn_value *v);

/* ---- evaluators, by file -------------------------------------------------------------------------------------------- */

/* Evaluates `n` while the caller still owns `v`. If `v` is a heap value, it lies on the value stack meanwhile, so that it is released if an
 * exception of a host unwinds the evaluation. */
qn_value eval_holding(qn_vm *vm, node *n, qn_value *fp, qn_value v);
static inline qn_value eval_beside(qn_vm *vm, node *n, qn_value *fp, qn_value v) {
  return __builtin_expect(value_is_heap(v), 0) ? eval_holding(vm, n, fp, v) : eval(vm, n, fp);
}

/* eval_scalar.c: variables, constants, operators. The flag of `and` and `or`: which one it is; is the value only used as a condition? */
enum { LOGIC_OR = 1, LOGIC_TEST = 2 };
evaluator eval_const, eval_nil, eval_local, eval_global, eval_capture, eval_self, eval_unary, eval_not, eval_logic;
evaluator eval_add_global; /* x = x + e for a global x */
/* The evaluator of a binary operator whose operands are of these kinds; `k` is the right one if it is a constant. */
eval_fn binary_eval(ast_op op, node_kind left, node_kind right, qn_value k);
/* a op b, of any two values, which are taken over. `n` has the operator, and where its operands stand for messages. Owned, or the error
 * value. */
qn_value binary_values(qn_vm *vm, const n_binary *n, qn_value a, qn_value b);
/* *x = *x op b. Texts and lists with one owner grow in place. Takes over `b`. False with an error raised; *x then keeps its value. */
QN_MUST_CHECK bool binary_into(qn_vm *vm, const n_binary *n, qn_value *x, qn_value b);
/* The evaluator of x = x op e for a local x; NULL if the operator has none. */
eval_fn accumulate_eval(const n_binary *n);
op_id op_of_ast(ast_op op);
/* Appends a warning about a place in the program, as it is shown on the terminal. */
void text_warning(qn_vm *vm, text_buf *t, span at, const char *message);

/* eval_expr.c: lists, records, strings, fields, functions */
evaluator eval_list, eval_list_spread, eval_record, eval_template, eval_range, eval_field, eval_fn_node;
evaluator eval_index, eval_index_one, eval_count;
/* How many values `..v` stands for: the items of a list or range, or the rows of an array; -1 for values that do not spread like this. */
int64_t spread_length(qn_vm *vm, qn_value v);
/* Value i of these. Owned, or the error value. */
qn_value spread_item(qn_vm *vm, qn_value v, int64_t i);
/* Raises that `v` does not spread: `what` says what does ("only records spread into a record"). False. */
bool fail_spread(qn_vm *vm, error_id id, span at, const char *what, qn_value v);
/* Evaluates a bound of a range, which messages call `what`. False: *stopped is what ended the evaluation, or the error value. */
#define RANGE_START "a range's start"
#define RANGE_END "a range's end"
QN_MUST_CHECK bool range_bound(qn_vm *vm, node *n, qn_value *fp, const char *what, int64_t *out, qn_value *stopped);
/* x.name, for any value (borrowed). `cache` may be NULL. Owned, or the error value. */
qn_value field_of(qn_vm *vm, qn_value v, qn_str *name, span mark, field_cache *cache);
/* Where the value of a node lies, if that is a variable, or a field or item that is reached from one: found without evaluating anything or
 * taking a reference. NULL if the node must be evaluated. Valid until something is evaluated. `own`: the caller wants to change the value,
 * so it is also NULL if a container on the way has another owner. */
qn_value *peek_path(const qn_vm *vm, const node *n, qn_value *fp, bool own);
static inline qn_value *peek(const qn_vm *vm, const node *n, qn_value *fp, bool own) {
  return n->kind == N_LOCAL ? &fp[n->slot] : peek_path(vm, n, fp, own);
}

/* index.c: reads at most INDEX_READ items of an index that are plain ints and arrays in variables and constants, without evaluating
 * anything; arrays are borrowed. False if some item must be evaluated, or is wrong, or a call is being recorded. */
enum { INDEX_READ = 4 };
QN_MUST_CHECK bool index_items_here(const qn_vm *vm, node *const *items, uint32_t n, const qn_value *fp,
                                    index_item *out);
/* Evaluates the values of which the items of an index are made, and pushes them. A slice has three, with nil for parts that are left out;
 * ... and new have none. False: *stopped is what ended the evaluation, and the stack is as before. */
QN_MUST_CHECK bool index_values_push(qn_vm *vm, node *const *items, uint32_t n, qn_value *fp, qn_value *stopped);
/* Makes items of such values. `host` as for index_item_of. False with an error raised. */
QN_MUST_CHECK bool index_items_of(qn_vm *vm, node *const *items, uint32_t n, const qn_value *values, bool host,
                                  index_item *out);
/* As index_items_of, for an index of array x: a captured try around, which may catch that an item is out of bounds, is offered them first. (Then
 * what follows may be recorded in another arm, of whose sizes the bounds are made once more.) */
QN_MUST_CHECK bool index_items_tried(qn_vm *vm, qn_value x, node *const *items, uint32_t n, const qn_value *values,
                                     index_item *out);

/* literal.c: array literals. `dtype` -1: the one that the items need. */
evaluator eval_array;
qn_value array_literal(qn_vm *vm, const n_items *n, qn_value *fp, int dtype);
/* f32(x): a value (borrowed) converted to an array of the dtype. Owned, or the error value. */
qn_value convert_dtype(qn_vm *vm, qn_dtype dtype, qn_value v);

/* eval_stmt.c */
/* eval_block_plain: for blocks whose variables need not be cleared at their end */
evaluator eval_block, eval_block_plain;
evaluator eval_if, eval_tail, eval_try, eval_for_range, eval_for, eval_while, eval_return, eval_import;
evaluator eval_depth;  /* of recursion as a loop */
evaluator eval_level;  /* of recursion as a loop */
evaluator eval_signal; /* break or continue, by the node's flag (signal_kind) */
/* The truth of the value of a condition, which is taken over: 1, 0, or -1 with an error raised. */
int condition(qn_vm *vm, qn_value v, node *n);

/* update.c: assignments */
evaluator eval_set_local, eval_set_global, eval_destructure, eval_grow, eval_grow_global;
evaluator eval_update;      /* of a path, by = or by an operator with = */
evaluator eval_update_path; /* the same of a path that is no variable with an index */
evaluator eval_update_one;  /* x[i] = v for a local x */
evaluator eval_add_fields;  /* x.a.b = x.a.b + e */
/* The evaluator of x.a.b = v, where the path has only fields. */
eval_fn fields_eval(const lvalue *p);
/* Stores a value (taken over) in the lvalue of a pattern, which has no indices to evaluate. False with an error raised. */
QN_MUST_CHECK bool lvalue_bind(qn_vm *vm, const lvalue *p, qn_value *fp, qn_value v);

/* call.c */
evaluator eval_call, eval_method;
/* A call as a statement (n_one, n_lost), whose value nothing uses: an error if the function is one of the library without effect. */
evaluator eval_lost, eval_lost_builtin;
qn_value call_value(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs);

/* The pending error leaves the function `fn` (nil: the top level): adds a frame to its trace. */
void trace_frame(qn_vm *vm, qn_value fn);
/* The pending error leaves a body: if it has no place yet, it gets that of the last statement. (The statements before that one give their
 * own.) */
void raise_last(qn_vm *vm, node *body);

/* Adds a note to the pending error about an operand: its shape, its source text at `at`, and, if it is a variable, where that got its
 * value. `n`: the operand's node, or NULL. */
void note_operand(qn_vm *vm, span at, qn_value v, const node *n);
/* Appends the source text of a span: its first line, at most 40 bytes. */
void text_span(qn_vm *vm, text_buf *t, span at);

#endif
