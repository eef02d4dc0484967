/* The resolver's state, shared by its files:
 *
 *   resolve.c       a unit from beginning to end: variables, captures, lvalues, functions
 *   resolve_stmt.c  statements and blocks
 *   resolve_expr.c  expressions
 *
 * One walk over the tree finds the slot of every name, raises the errors that are known before anything runs, and makes the nodes, which
 * lie in the unit's arena. Functions that make nodes return NULL with an error raised. Internal to this room.
 */
#ifndef INTERP_RESOLVE_H
#define INTERP_RESOLVE_H

#include "interp/signature.h"

typedef struct variable {
  qn_str *name;
  uint32_t slot;
  span decl;
  span value; /* in `let f = fn(...) ...`: the text of that function */
  uint32_t reads;
  uint32_t stackable;    /* how many of these a stacked list may answer */
  uint32_t returned;     /* and how many of those are results of a function with early returns (note_returned) */
  const node *initial;   /* what a let binds it to; NULL: something else, or it is not known */
  struct lvalue *target; /* what binds it in a let or a loop; NULL: something else */
  uint32_t made;         /* how many assignments the walk had met by then */
  bool expects_use;      /* made by let or fn, so that never reading it is worth a warning */
  bool captured;         /* a function value has captured it */
  bool warned;           /* a warning has said that it was rebound after that */
  bool function;         /* the statement that made it bound it to a function */
} variable;

typedef struct captured {
  qn_str *name;
  capture_source source;
} captured;

typedef struct event event; /* an assignment that the walk has met; sites list those within them */

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
  qn_str *self; /* its own name if it is a local fn, or NULL */
  span at;      /* its text; SPAN_NONE for the top level */
  variable *vars;
  uint32_t nvars, vars_cap;
  captured *captures;
  uint32_t ncaptures, captures_cap;
  fn_uses uses;             /* what the walk has met so far */
  fn_uses *kept;            /* where `uses` goes when the function ends, since blocks refer to it; or NULL */
  struct block_code *block; /* the innermost block in progress that has one, or NULL */
  uint32_t item;            /* which of its statements */
  event *grown;             /* variables to which an n_grow that the walk has met adds items */
  uint32_t ngrown, grown_cap;
  event *stored; /* and of which one an assignment changes an item */
  uint32_t nstored, stored_cap;
  global_cell **data;
  uint32_t ndata, data_cap;
  uint32_t top, most;    /* how many slots are in use now, and the most there were */
  uint32_t blocks;       /* how many blocks are open; a let at the top level outside of any block makes a global */
  uint32_t loops, tries; /* how many loops and try bodies are open */
  uint32_t loop_vars;    /* how many variables there were when the innermost loop began */
  uint32_t loop_block;   /* `blocks` in the statements of its body themselves */
  const struct loop_test *tests; /* the conditions of the while loops around, the innermost first */
  uint32_t signals, returns;     /* how many nodes so far break, continue or return; how many return */
  uint32_t breaks;               /* how many nodes so far break or continue the innermost loop */
  struct growing {
    site *site;
    uint32_t slot, bit;
    uint32_t others; /* reads of the variable by then, but for results (variable.returned) */
  } * growing;       /* loops in which a list only grows that is in scope */
  uint32_t ngrowing, growing_cap;
  uint32_t early;           /* how many early returns around have become branches, one inside the other */
  const jit_anchor *anchor; /* the function's; NULL for the top level */
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
  span value;    /* as in `variable` */
  span function; /* the text of the function that it belonged to */
} ended_name;

typedef struct resolver {
  qn_vm *vm;
  interp *ip;
  scope *scope;
  unit *unit;
  bool prompt;
  const ast_node *root;       /* the unit's tree */
  const ast_node **functions; /* that its top level defines, by name; NULL: nobody has asked yet */
  uint32_t nfunctions;
  function *fn;
  pending_name *pending;
  uint32_t npending, pending_cap;
  ended_name *ended; /* names of blocks that have ended, for messages */
  uint32_t nended, ended_cap;
  made_global *made; /* for messages */
  uint32_t nmade, made_cap;
  uint32_t nasked;      /* how many undefined names have been compared with variables */
  const qn_str *hiding; /* the variable that the last let hides, about which a warning was written; or NULL */
  text_buf *warnings;
  bool looping;          /* a function is being resolved that recursion_loop has made */
  const fn_code *looped; /* it is about to be, and was made of this one; or NULL */
  bool sizes;            /* an expression among the sizes of a signature is being resolved */
} resolver;

/* Is it a pattern that takes a value apart, or a field of one? */
static inline bool is_pattern(const ast_node *n) {
  return n->kind == AST_pat_list || n->kind == AST_pat_record || n->kind == AST_pat_field;
}
static inline bool at_top(const resolver *r) { return !r->fn->outer; }
static inline bool defines_global(const resolver *r) { return at_top(r) && r->fn->blocks == 0; }

/* Zeroed memory of the unit; NULL with an error raised. */
QN_MUST_CHECK void *unit_alloc(resolver *r, size_t bytes);
/* A zeroed node with its evaluator and source place. */
QN_MUST_CHECK void *node_new(resolver *r, size_t bytes, eval_fn eval, const ast_node *at);
/* Makes the unit the owner of a reference (taken over, also on failure). False with an error raised. */
QN_MUST_CHECK bool unit_keep(resolver *r, qn_value v);
/* Makes the unit release the layout that a node will keep in this slot. False with an error raised. */
QN_MUST_CHECK bool unit_layout(resolver *r, record_layout **slot);

/* Adds a warning about a place in the text; but none in the standard library. */
void warn(resolver *r, span at, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- variables ---------------------------------------------------------------------------------------------------------- */

/* Makes a new local variable, visible from now on. NULL with an error raised. `expects_use`: never reading it is worth a warning. */
QN_MUST_CHECK variable *declare(resolver *r, qn_str *name, span at, bool expects_use);
variable *find_variable(function *f, const qn_str *name);
/* The number of the capture by which function f gets a variable of the functions around it; the capture is made if need be. -1 if these
 * have no such variable, -2 with an error raised. */
int find_capture(resolver *r, function *f, qn_str *name);
/* Makes the variables from number `first` on invisible, and warns about those that were never used. */
void forget(resolver *r, uint32_t first);
/* Notes, for hidden_by, that a let has made a variable of the top level. */
void note_made(resolver *r, const qn_str *name, span at);
/* Where the variable was made that a new one of this name hides: a local whose number is below `before`, or a variable of the top level.
 * SPAN_NONE if it hides none. */
span hidden_by(const resolver *r, const qn_str *name, uint32_t before);
/* Warns that the let at `at` makes a new variable, and leaves the one that was made at `hidden` as it is. */
void warn_hidden(resolver *r, const qn_str *name, span at, span hidden);
/* Does evaluating the expression do nothing but give a value? Judged by its outermost operation; false if that is only known when it runs. */
bool has_no_effect(resolver *r, const ast_node *n);
/* The message for a let at the end of a function; %s is the variable's name. */
#define LOST_LET "this variable is lost when the function returns, and let is worth nil; end with %s to return it"
bool is_self(const function *f, const qn_str *name);
/* Notes an assignment to a global, or, with cell NULL, to the local in a slot, for the sites around it. False with an error raised. */
QN_MUST_CHECK bool note_assigned(resolver *r, global_cell *cell, uint32_t slot);
/* Notes that the assignment to the local in a slot, which was noted last, only adds items to a list; `noted`: so is that its value reads the list
 * (note_stackable). False with an error raised. */
QN_MUST_CHECK bool note_grown(resolver *r, global_cell *cell, uint32_t slot, bool noted);
/* Has the local in this slot been assigned since there were `mark` events? */
bool rebound_since(const resolver *r, uint32_t slot, uint32_t mark);
/* Does the module define the name, perhaps further down in this text? */
bool module_defines(const resolver *r, const global_cell *c);

/* The node that reads a name. `callee`: it stands where a function is called. */
QN_MUST_CHECK node *name_node(resolver *r, const ast_node *n, qn_str *name, bool callee);
QN_MUST_CHECK node *global_node(resolver *r, const ast_node *n, global_cell *cell);
/* Fills in which variables x.name(...) may call, if x has no such field: the nearest one first. False with an error raised. */
QN_MUST_CHECK bool method_candidates(resolver *r, const ast_node *n, n_call *call);

/* The lvalue of a pattern, or of the target of an assignment. `lets`: its names become new variables; never reading these is worth a
 * warning if `expects_use`. */
QN_MUST_CHECK lvalue *lvalue_of(resolver *r, const ast_node *target, bool lets, bool expects_use);

/* What is noted at the beginning of a site: how many assignments came before it, and where slots of its own locals begin. */
typedef struct site_mark {
  uint32_t events, top, reads, grown, stored;
} site_mark;
site_mark site_here(const resolver *r);
QN_MUST_CHECK site *site_begin(resolver *r, site_mark *mark);
QN_MUST_CHECK bool site_end(resolver *r, site *s, const site_mark *mark);
/* As site_end, for a loop: also makes *out, what its turns are as calls. */
/* The variable in this slot, which is in use; NULL: there is none. */
variable *variable_in(const function *f, uint32_t slot);
QN_MUST_CHECK bool loop_end(resolver *r, const node *loop, site *s, const site_mark *mark, turn_code **out);
/* A node that has just been made reads a value only to go over its items, to count them or to take one: notes that, if it is a local. */
void note_stackable(resolver *r, const node *read);
/* Is it a call of what is named append? */
bool is_append(const ast_node *n);
/* Likewise of what a function is worth: a value, or one in a list or record that is made there; behind early returns as note_returned. */
void note_result(resolver *r, const node *value);
/* Likewise of what an early return gives, if it is a list that grows in loops, or has one in it. */
void note_returned(resolver *r, const node *value);
/* Likewise of a value that a pattern takes apart, whose variables say whether they may hold one (lvalue.stacks). */
void note_destructured(resolver *r, const node *value);
/* Notes that a variable of the function f is read. False with an error raised. */
QN_MUST_CHECK bool note_read(resolver *r, function *f, variable *v);

/* The tree of a function (an fn or a define) that is bound to `name`, as one that makes its calls of itself in loops; *out says how. NULL: there is none,
 * with or without an error raised. */
QN_MUST_CHECK ast_node *recursion_loop(resolver *r, const ast_node *fn, const qn_str *name, recursion *out);

/* ---- nodes ---------------------------------------------------------------------------------------------------------------- */

QN_MUST_CHECK node *expression(resolver *r, const ast_node *n);
/* The node of an expression that is only used as a condition. */
QN_MUST_CHECK node *condition_node(resolver *r, const ast_node *n);
/* The node of one item of an index, which may be an expression, a slice, an ellipsis or a new axis. */
QN_MUST_CHECK node *index_item_node(resolver *r, const ast_node *n);
/* The builtin without effect that a name means here; NULL if it means something else. */
const builtin_def *builtin_named(resolver *r, qn_str *name);
/* The builtin that a name means here, with or without effect; NULL if it means something else. */
const builtin_def *builtin_meant(resolver *r, qn_str *name);
QN_MUST_CHECK node *binary_node(resolver *r, const ast_node *at, ast_op op, node *a, node *b, bool left_rebound);
/* The node that makes a function value. `name`: what the function is bound to, or NULL; `local`: inside of its body, that name means the
 * function itself. */
QN_MUST_CHECK node *function_node(resolver *r, const ast_node *n, qn_str *name, bool local);
/* The node of a block with a scope of its own. `used`: something uses its value; `tail`: the function returns its value. */
QN_MUST_CHECK node *block_node(resolver *r, const ast_node *n, bool used, bool tail);
QN_MUST_CHECK node *if_node(resolver *r, const ast_node *n, bool used, bool tail);
QN_MUST_CHECK node *try_node(resolver *r, const ast_node *n, bool used);
QN_MUST_CHECK node *nil_node(resolver *r, const ast_node *n);
/* The top level of a text. */
QN_MUST_CHECK node *root_node(resolver *r, const ast_node *n);

#endif
