/* The resolver's state, shared by its files:
 *
 *   resolve.c       a unit from beginning to end: variables, captures, places, functions
 *   resolve_stmt.c  statements and blocks
 *   resolve_expr.c  expressions
 *
 * One walk over the tree finds every name's slot, reports what can be reported before anything runs, and makes the nodes.
 * Functions that make nodes return NULL with an error raised. Internal to this room.
 */
#ifndef INTERP_RESOLVE_H
#define INTERP_RESOLVE_H

#include "interp/signature.h"

typedef struct variable {
  qn_str *name;
  uint32_t slot;
  span decl;
  span value; /* of a let: the text of the function that it is bound to */
  uint32_t reads;
  bool expects_use; /* made by let or fn: never reading it is worth a warning */
  bool captured, warned;
  bool function; /* bound to a function that is written there */
} variable;

typedef struct captured {
  qn_str *name;
  capture_source source;
} captured;

/* An assignment seen so far: what sites collect. */
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
  span at;      /* of its text; none: the top level */
  variable *vars;
  uint32_t nvars, vars_cap;
  captured *captures;
  uint32_t ncaptures, captures_cap;
  event *events;
  uint32_t nevents, events_cap;
  global_cell **data;
  uint32_t ndata, data_cap;
  uint32_t top, most; /* slots in use, and at most */
  uint32_t blocks;    /* open blocks: a `let` at the top level outside any block is a global */
  uint32_t loops, tries;
  uint32_t loop_vars;            /* variables made before the innermost loop began */
  const struct loop_test *tests; /* of the while loops around, innermost first */
  uint32_t early;                /* early returns turned into branches, one inside the other */
} function;

typedef struct pending_name {
  global_cell *cell;
  const char *const *near; /* as n_global has it */
  span at;
  bool size; /* as n_global has it */
} pending_name;

/* A variable whose block has ended. */
typedef struct ended_name {
  qn_str *name;
  span decl;     /* where it was made */
  span value;    /* as variable has it */
  span function; /* the text of the one that it belonged to */
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
  uint32_t nasked;      /* names that nothing defines, so far */
  const qn_str *hiding; /* what the last let was told to hide, or NULL */
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
/* A node with its evaluator and place. */
QN_MUST_CHECK void *node_new(resolver *r, size_t bytes, eval_fn eval, const ast_node *at);
/* Lets the unit own a value. */
QN_MUST_CHECK bool unit_keep(resolver *r, qn_value v);
QN_MUST_CHECK bool unit_layout(resolver *r, record_layout **slot);

void warn(resolver *r, span at, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- variables ---------------------------------------------------------------------------------------------------------- */

/* A new local, visible from now on; NULL with an error raised. */
QN_MUST_CHECK variable *declare(resolver *r, qn_str *name, span at, bool expects_use);
variable *find_variable(function *f, const qn_str *name);
/* Number of a capture of the function for a name of the functions around it; -1 if none has it, -2 with an error raised. */
int find_capture(resolver *r, function *f, qn_str *name);
/* Ends the visibility of variables from number `first` on, with warnings. */
void forget(resolver *r, uint32_t first);
/* A let has made a variable of the top level: remembered for messages. */
void note_made(resolver *r, const qn_str *name, span at);
/* Where the variable was made that a let in a block hides; none: it hides none that was made by a let before it. The name of a variable of
 * the function, made before its number `before`. */
span hidden_by(const resolver *r, const qn_str *name, uint32_t before);
/* Says that a let at `at` hides the variable made at `hidden`, which an assignment would change. */
void warn_hidden(resolver *r, const qn_str *name, span at, span hidden);
/* Can a value be left out without a trace? As far as its outermost operation tells; false where only running it does. */
bool has_no_effect(resolver *r, const ast_node *n);
/* What is said of a let at a function's end, by the variable's name. */
#define LOST_LET "this variable is lost when the function returns, and let is worth nil; end with %s to return it"
bool is_self(const function *f, const qn_str *name);
/* An assignment to a global, or (cell NULL) to the local in a slot, is remembered for the sites around it. */
QN_MUST_CHECK bool note_assigned(resolver *r, global_cell *cell, uint32_t slot);
/* Was the local assigned since `mark` events? */
bool rebound_since(const resolver *r, uint32_t slot, uint32_t mark);
/* Does the module define the name (also further down in this text)? */
bool module_defines(const resolver *r, const global_cell *c);

/* A read of a name; `callee`: it is about to be called. */
QN_MUST_CHECK node *name_node(resolver *r, const ast_node *n, qn_str *name, bool callee);
QN_MUST_CHECK node *global_node(resolver *r, const ast_node *n, global_cell *cell);
/* What `.name(...)` may call, nearest first. */
QN_MUST_CHECK bool method_candidates(resolver *r, const ast_node *n, n_call *call);

/* Where a pattern's or target's values go. `lets`: new variables. */
QN_MUST_CHECK lvalue *lvalue_of(resolver *r, const ast_node *target, bool lets, bool expects_use);

/* Where the assignments within a site begin, and the locals that are its own. */
typedef struct site_mark {
  uint32_t events, top;
} site_mark;
QN_MUST_CHECK site *site_begin(resolver *r, site_mark *mark);
QN_MUST_CHECK bool site_end(resolver *r, site *s, const site_mark *mark);

/* ---- nodes ---------------------------------------------------------------------------------------------------------------- */

QN_MUST_CHECK node *expression(resolver *r, const ast_node *n);
/* An index item. */
QN_MUST_CHECK node *index_item_node(resolver *r, const ast_node *n);
QN_MUST_CHECK node *binary_node(resolver *r, const ast_node *at, ast_op op, node *a, node *b, bool left_rebound);
/* A function; `name` is what it is bound to (NULL: nothing), `local` whether it sees itself by that name. */
QN_MUST_CHECK node *function_node(resolver *r, const ast_node *n, qn_str *name, bool local);
/* A block with its own scope. `used`: something takes its value. `tail`: the function returns its value. */
QN_MUST_CHECK node *block_node(resolver *r, const ast_node *n, bool used, bool tail);
QN_MUST_CHECK node *if_node(resolver *r, const ast_node *n, bool used, bool tail);
QN_MUST_CHECK node *try_node(resolver *r, const ast_node *n, bool used);
QN_MUST_CHECK node *nil_node(resolver *r, const ast_node *n);
/* The top level of a text. */
QN_MUST_CHECK node *root_node(resolver *r, const ast_node *n);

#endif
