/* The resolver's state, shared by its files:
 *
 *   resolve.c       a unit from beginning to end: variables, captures, lvalues, functions
 *   resolve_stmt.c  statements and blocks
 *   resolve_expr.c  expressions
 *
 * One walk over the tree finds every name's slot, reports the errors that can be known before anything runs, and makes the nodes. They lie
 * in the unit's arena. Functions that make nodes return NULL with an error raised. Internal to this room.
 */
#ifndef INTERP_RESOLVE_H
#define INTERP_RESOLVE_H

#include "interp/signature.h"

typedef struct variable {
  qn_str *name;
  uint32_t slot;
  span decl;
  span value; /* of a `let f = fn(...) ...`: the text of that function */
  uint32_t reads;
  bool expects_use; /* made by let or fn: never reading it is worth a warning */
  bool captured;    /* by a function value */
  bool warned;      /* that it was rebound after that */
  bool function;    /* it is bound to a function by the statement that made it */
} variable;

typedef struct captured {
  qn_str *name;
  capture_source source;
} captured;

/* An assignment that the walk has met: a site collects those within it. */
typedef struct event {
  global_cell *cell; /* NULL: a local */
  uint32_t slot;
} event;

/* The condition of a while loop whose body is being resolved. */
typedef struct loop_test {
  const struct loop_test *outer;
  const ast_node *cond;
} loop_test;

/* A variable that a let of the top level has made. */
typedef struct made_global {
  const global_cell *cell;
  span at;
} made_global;

/* The function whose body is being resolved. */
typedef struct function {
  struct function *outer;
  qn_str *self; /* a local fn's own name, or NULL */
  span at;      /* its text; SPAN_NONE at the top level */
  variable *vars;
  uint32_t nvars, vars_cap;
  captured *captures;
  uint32_t ncaptures, captures_cap;
  event *events;
  uint32_t nevents, events_cap;
  global_cell **data;
  uint32_t ndata, data_cap;
  uint32_t top, most;            /* slots in use now, and the most so far */
  uint32_t blocks;               /* open blocks: a `let` at the top level outside any block is a global */
  uint32_t loops, tries;         /* open ones */
  uint32_t loop_vars;            /* how many variables there were when the innermost loop began */
  const struct loop_test *tests; /* of the while loops around, innermost first */
  uint32_t early;                /* early returns around that were made branches, one inside the other */
} function;

/* A read of a global, which must be defined by the end of the text. */
typedef struct pending_name {
  global_cell *cell;
  const char *const *near; /* as undefined_name has it */
  span at;
  bool size; /* as undefined_name has it */
} pending_name;

/* A variable whose block has ended, for messages about names that nothing defines. */
typedef struct ended_name {
  qn_str *name;
  span decl;     /* where it was made */
  span value;    /* as variable has it */
  span function; /* the text of the function that it belonged to */
} ended_name;

typedef struct resolver {
  qn_vm *vm;
  interp *ip;
  scope *scope;
  unit *unit;
  bool prompt;
  function *fn;
  pending_name *pending;
  uint32_t npending, pending_cap;
  ended_name *ended; /* for messages: the names of blocks that have ended */
  uint32_t nended, ended_cap;
  made_global *made; /* for messages */
  uint32_t nmade, made_cap;
  uint32_t nasked;      /* how many undefined names were compared with variables so far */
  const qn_str *hiding; /* the name that the last let was warned to hide, or NULL */
  text_buf *warnings;
  bool sizes; /* in an expression among the sizes of a signature */
} resolver;

/* A pattern that takes a value apart, or a field of one? */
static inline bool is_pattern(const ast_node *n) {
  return n->kind == AST_pat_list || n->kind == AST_pat_record || n->kind == AST_pat_field;
}
static inline bool at_top(const resolver *r) { return !r->fn->outer; }
static inline bool defines_global(const resolver *r) { return at_top(r) && r->fn->blocks == 0; }

/* Zeroed memory of the unit; NULL with an error raised. */
QN_MUST_CHECK void *unit_alloc(resolver *r, size_t bytes);
/* A zeroed node with its evaluator and source place. */
QN_MUST_CHECK void *node_new(resolver *r, size_t bytes, eval_fn eval, const ast_node *at);
/* The unit takes over a reference. False with an error raised; the reference is gone then, too. */
QN_MUST_CHECK bool unit_keep(resolver *r, qn_value v);
/* The unit will release the layout that a node keeps in this slot. */
QN_MUST_CHECK bool unit_layout(resolver *r, record_layout **slot);

/* Adds a warning about a place in the text; none is given in the standard library. */
void warn(resolver *r, span at, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- variables ---------------------------------------------------------------------------------------------------------- */

/* A new local, visible from now on; NULL with an error raised. */
QN_MUST_CHECK variable *declare(resolver *r, qn_str *name, span at, bool expects_use);
variable *find_variable(function *f, const qn_str *name);
/* The number of the capture by which the function has a variable of the functions around it, made if need be; -1 if these have no such
 * variable, -2 with an error raised. */
int find_capture(resolver *r, function *f, qn_str *name);
/* Variables from number `first` on are no longer visible. Warns of those that were never used. */
void forget(resolver *r, uint32_t first);
/* Remembers, for hidden_by, that a let has made a variable of the top level. */
void note_made(resolver *r, const qn_str *name, span at);
/* Where the variable was made that a new one of this name hides: a local with a number below `before`, or a variable of the top level.
 * SPAN_NONE if it hides none. */
span hidden_by(const resolver *r, const qn_str *name, uint32_t before);
/* Warns that the let at `at` makes a new variable and leaves the one made at `hidden` as it is. */
void warn_hidden(resolver *r, const qn_str *name, span at, span hidden);
/* Does evaluating the expression do nothing but give a value? Judged by its outermost operation; false where only running it tells. */
bool has_no_effect(resolver *r, const ast_node *n);
/* The message for a let at a function's end, with the variable's name. */
#define LOST_LET "this variable is lost when the function returns, and let is worth nil; end with %s to return it"
bool is_self(const function *f, const qn_str *name);
/* An assignment to a global, or (cell NULL) to the local in a slot, is remembered for the sites around it. */
QN_MUST_CHECK bool note_assigned(resolver *r, global_cell *cell, uint32_t slot);
/* Was the local assigned since `mark` events? */
bool rebound_since(const resolver *r, uint32_t slot, uint32_t mark);
/* Does the module define the name, perhaps further down in this text? */
bool module_defines(const resolver *r, const global_cell *c);

/* The node that reads a name; `callee`: it stands where a function is called. */
QN_MUST_CHECK node *name_node(resolver *r, const ast_node *n, qn_str *name, bool callee);
QN_MUST_CHECK node *global_node(resolver *r, const ast_node *n, global_cell *cell);
/* Fills in what x.name(...) may call beside a field of x: the variables of that name, nearest first. */
QN_MUST_CHECK bool method_candidates(resolver *r, const ast_node *n, n_call *call);

/* The lvalue of a pattern, or of an assignment's target. `lets`: its names become new variables; `expects_use` as variable has it. */
QN_MUST_CHECK lvalue *lvalue_of(resolver *r, const ast_node *target, bool lets, bool expects_use);

/* The state at the beginning of a site: assignments before it, and slots of locals outside it. */
typedef struct site_mark {
  uint32_t events, top;
} site_mark;
QN_MUST_CHECK site *site_begin(resolver *r, site_mark *mark);
QN_MUST_CHECK bool site_end(resolver *r, site *s, const site_mark *mark);

/* ---- nodes ---------------------------------------------------------------------------------------------------------------- */

QN_MUST_CHECK node *expression(resolver *r, const ast_node *n);
/* The node of one item of an index: an expression, slice, ellipsis or new axis. */
QN_MUST_CHECK node *index_item_node(resolver *r, const ast_node *n);
QN_MUST_CHECK node *binary_node(resolver *r, const ast_node *at, ast_op op, node *a, node *b, bool left_rebound);
/* The node that makes a function value. `name`: what it is bound to, or NULL; `local`: its body means the function itself by that name. */
QN_MUST_CHECK node *function_node(resolver *r, const ast_node *n, qn_str *name, bool local);
/* A block with a scope of its own. `used`: something uses its value. `tail`: the function returns its value. */
QN_MUST_CHECK node *block_node(resolver *r, const ast_node *n, bool used, bool tail);
QN_MUST_CHECK node *if_node(resolver *r, const ast_node *n, bool used, bool tail);
QN_MUST_CHECK node *try_node(resolver *r, const ast_node *n, bool used);
QN_MUST_CHECK node *nil_node(resolver *r, const ast_node *n);
/* The top level of a text. */
QN_MUST_CHECK node *root_node(resolver *r, const ast_node *n);

#endif
