/* What the interpreter keeps between evaluations: scopes and their cells, units of code, function code. Internal to this room.
 *
 * A unit is one text after resolution: its nodes, function code and constants. It lives while it runs, and as long as a function value
 * refers to code of it. Then sweep.c frees it, with its source text, its specializations and what was compiled for these.
 *
 * A scope is the top level of a module: a table of cells, one for each name. It lives as long as the module can be imported, or a value
 * refers to the module or to a function of it. A name that is no local resolves to a cell of its module's scope, whether or not it is
 * defined yet: globals are late bound. A cell without a value reads its `shadow`, the cell of the builtin with the same name; so a module
 * may define names that the standard library has, too.
 */
#ifndef INTERP_STATE_H
#define INTERP_STATE_H

#include "interp/interp.h"
#include "jit/trace/rec.h"
#include "lang/vm.h"

typedef struct node node;

/* Evaluates a node on a frame. The caller owns the result; error and signal values (value_stops) are handed up. */
typedef qn_value evaluator(qn_vm *vm, node *n, qn_value *fp);
typedef evaluator *eval_fn;

/* ---- scopes ------------------------------------------------------------------------------------------------------- */

typedef struct global_cell {
  rec_cell rec;
  /* the number of the unit that defines it; while that unit is being resolved, `declared` is not set yet */
  uint32_t unit;
  bool declared;              /* the module defines it, so it is visible from outside */
  bool read;                  /* some code reads it */
  qn_value value;             /* unset until the definition has run */
  struct global_cell *shadow; /* the builtin of this name, or NULL */
  qn_str *name;               /* interned, owned */
  span decl;                  /* where it was last defined, for notes; keeps that source text */
} global_cell;

/* Notes where the global was defined last, and keeps that source text. */
static inline void cell_defined(qn_vm *vm, global_cell *c, span at) {
  if (c->decl.source != at.source) {
    source_hold(vm, at.source);
    source_let_go(vm, c->decl.source);
  }
  c->decl = at;
}

typedef enum scope_state { SCOPE_LOADING, SCOPE_READY } scope_state;

typedef struct scope {
  struct scope *outer; /* the builtin scope; NULL for that scope itself */
  global_cell **cells; /* in order of appearance */
  uint32_t n, cap;
  uint32_t *index; /* hash table of cell numbers + 1 */
  uint32_t index_cap;
  scope_state state;
  char *key; /* what a module is known by: a canonical path, "<std>/nn", or a name that the host gave */
  char *dir; /* the folder to which imports are relative; NULL: none */
  /* For the main scope: the name of the text that runs, which hosts are told as the importer; for a file: how it was named when it was
   * imported. NULL: none. */
  char *text;
  qn_module *module;      /* the object of the module value; the scope owns one reference */
  struct scope *importer; /* while it is loaded: the scope that imports it, for messages about cycles */
  int depth;              /* while it is loaded: vm->depth of the evaluation that loads it */
  struct scope *next;     /* the VM's list */
  bool library;           /* its text is one of the library, which gets no warnings */
  uint64_t written;       /* a hash of the file's text, to tell whether it has changed since */
  qn_module **imports;    /* for a file: the modules of the files that it imported, as they were then; owned */
  uint32_t nimports, imports_cap;
  uint32_t looked; /* the number of the last search for changed files that has visited it (interp.searches) */
} scope;

/* The cell of a name (interned) in a scope; it is made if need be. NULL with an error raised. */
QN_MUST_CHECK global_cell *scope_cell(qn_vm *vm, scope *s, qn_str *name);
/* The cell, or NULL if there is none. */
global_cell *scope_find(const scope *s, const qn_str *name);
/* Defines a name of the scope; borrows `v`. False with an error raised. */
QN_MUST_CHECK bool scope_bind(qn_vm *vm, scope *s, const char *name, qn_value v);
QN_MUST_CHECK scope *scope_new(qn_vm *vm, scope *outer, const char *name);
void scope_drop_values(qn_vm *vm, scope *s);
void scope_free(qn_vm *vm, scope *s);
/* A name that nothing defines, with what messages need. */
typedef struct undefined_name {
  const qn_str *name;
  /* names of variables that are visible there and spelled much like it, up to a NULL; or NULL */
  const char *const *near;
  span at;
  uint32_t unit; /* the number of the unit that is being resolved, whose definitions count, too; 0: none */
  bool size;     /* it is in an expression among the sizes of a signature */
} undefined_name;
/* Raises E401, with names that may have been meant: of the scope, and of variables. The error value. */
qn_value raise_undefined(qn_vm *vm, const scope *s, const undefined_name *u);
/* Raises one E401 for all n (at least one) undefined names of a text. */
void raise_undefined_all(qn_vm *vm, const scope *s, const undefined_name *list, uint32_t n);
/* Raises E401 for an assignment to a name that is no variable. Names of `s` are suggested, too, unless it is NULL. */
void raise_unknown_target(qn_vm *vm, const scope *s, const undefined_name *u);
/* The value of a cell, or else of the builtin that it shadows; unset if neither has one. Borrowed. */
static inline qn_value cell_get(const global_cell *c) {
  return c->value.head == TAG_UNSET && c->shadow ? c->shadow->value : c->value;
}
/* Rebinds a cell; takes over the value. */
static inline void cell_set(qn_vm *vm, global_cell *c, qn_value v) {
  qn_value old = c->value;
  c->value = v;
  if (__builtin_expect(c->rec.watched != 0, 0)) rec_global_changed(vm, &c->rec, old, v);
  value_release(vm, old);
}

/* ---- code --------------------------------------------------------------------------------------------------------------- */

typedef struct type_sig type_sig; /* signature.h */

typedef struct fn_param {
  qn_str *name;
  type_sig *type;  /* NULL: anything */
  int32_t initial; /* the number of its default among those behind the captures; -1: it has none */
  span at;
} fn_param;

/* A dimension that a shape signature binds: a local in the frame. */
typedef struct fn_dim {
  qn_str *name;
  uint32_t slot;
} fn_dim;

/* A function of the top level that calls another one, and is called by it (recursion.c). */
typedef struct recursion_partner {
  const global_cell *cell;
  span at; /* of the definition */
} recursion_partner;

enum { PARTNERS_MAX = 3 };

/* How a function that calls itself is run while a call is recorded: as a function in which these calls are turns of loops (recursion.c). */
typedef struct recursion {
  struct fn_code *code;    /* that function; its parameters and captures are the same */
  const global_cell *self; /* what must hold the function; NULL: it is a local, which sees itself */
  /* functions that are part of it in place of calls, which cells must hold: it calls these, and they call it */
  recursion_partner partners[PARTNERS_MAX];
  uint32_t npartners;
  uint64_t varies;   /* a bit for each parameter that changes from call to call */
  bool returns;      /* something is done with what the calls return */
  bool computed;     /* then all these parameters are computed for each level, and must be ints */
  bool shrinks;      /* else one of them becomes a fraction, so that there are few levels */
  bool off;          /* a recording has not been able to capture it */
  bool failed;       /* the calls are being made once more, since as loops they have failed */
  bool computes;     /* they only compute: made once more, they do the same */
  span site;         /* where they stand; unset: in several places */
  const span *sites; /* these, if turns tell which calls they stand for (recursion_calls.path); else NULL */
  uint32_t nsites;
} recursion;

/* How many calls, each at one of so many places in the function, a number tells (recursion_calls.path). */
uint32_t path_digits(uint32_t places);

/* The calls that the turns of such a function have stood for so far, for the trace of an error. */
typedef struct recursion_calls {
  struct recursion_calls *outer; /* of the function around */
  const qn_value *level;         /* the variable that tells how many there are; NULL: n */
  const qn_value *path; /* the variable that tells which they are, as digits behind a 1; NULL: all stand at one place */
  const qn_value *depth; /* the variable that counts turns on the way down */
  uint32_t n;            /* as far as turns were made by the interpreter */
} recursion_calls;

typedef struct fn_code {
  fn_shared shared;
  jit_anchor anchor;
  struct fn_code *next; /* the unit's list */
  qn_str *name;         /* "fn" if it has no name */
  span at;              /* the whole definition */
  uint32_t nparams;
  uint32_t nslots;    /* how many slots its frame has, parameters first */
  uint32_t ncaptures; /* how many locals it captures; in a function value the defaults stand behind these */
  uint32_t ninitial;  /* defaults */
  uint32_t ndims, ndata;
  uint8_t
      watched; /* calls must go through run_watched, since it has types, reads globals that may hold arrays, or `computes` */
  bool computes; /* a loop in it that makes many turns computes with arrays: all calls may be worth compiling */
  bool rest;     /* the last parameter collects further positional arguments */
  bool checks;   /* some size is an expression, so types are matched in two passes */
  bool typed;    /* some parameter has a type */
  fn_param *params;
  qn_str **capture_names;
  fn_dim *dims;
  global_cell *
      /* globals that the body reads, but not only to call them: if they hold arrays, a call may be worth compiling */
      *data;
  type_sig *result;
  span result_at;
  node *body;
  struct unit *unit;
  const struct fn_uses *uses; /* NULL: it has neither blocks of several statements nor loops */
  recursion *loop;            /* or NULL */
} fn_code;

/* A variable outside of a loop's body, or of a part of a block, which that reads or may rebind. */
typedef struct turn_variable {
  global_cell *cell; /* NULL: it is the local in `slot` */
  uint32_t slot;
  bool kept;    /* something behind the body may read what it has made of the variable */
  bool rebound; /* by an assignment or a let in the body */
  bool made;    /* by a let, so that what the slot holds before means nothing */
  qn_str *name;
} turn_variable;

/* The turns of a loop that runs outside recordings, as calls, or a part of a block: what they begin with, and where they are counted
 * (turns.c). */
enum { TURN_VARIABLES = 64, TURN_GROWN = 4 /* further lists are like other variables */ };
typedef struct turn_code {
  jit_anchor anchor;
  struct turn_code *next; /* the unit's list */
  struct unit *unit;
  qn_str *item;             /* the name of the loop variable; NULL: there is none, or several */
  turn_variable *variables; /* those that are kept come first, then others that are rebound */
  uint32_t n;
  /* Variables whose lists a turn only adds items to (site.grown): these items are a part of its result, and the lists stay where they are. */
  turn_variable *grown;
  uint32_t ngrown;
  bool in_arms;          /* some of these items are added in arms, so perhaps where data say so */
  struct turn_code *run; /* many turns of the loop as one call; NULL: none was made yet, or this is one */
  bool computes;         /* a turn that was watched made or changed an array */
  int32_t
      quiet; /* how many turns pass unwatched after one that did not; of many turns: untried, where items cannot be stacked */
} turn_code;

/* What the statements of a function read, assign and declare, in the order of its text. Freed with the unit. */
typedef struct fn_uses {
  struct fn_uses *next; /* the unit's list */
  struct event {
    global_cell *cell; /* NULL: it is a local, in `slot` */
    uint32_t slot;
    uint32_t
        arm; /* of an item that is added to a list in a part of the innermost loop's body, as an arm: how many loops are open; else 0 */
  } * events;      /* assignments */
  uint32_t *reads; /* the slots of locals that are read */
  struct slot_name {
    uint32_t slot;
    qn_str *name;
  } * names; /* of all variables that were ever declared; slots are used again */
  uint32_t nevents, events_cap, nreads, reads_cap, nnames, names_cap;
} fn_uses;

/* A block of several statements, for when it is cut into parts (parts.c); or the body of a loop, also one of one statement, which is never cut. */
typedef struct block_parts block_parts;
typedef struct block_code {
  struct block_code *next; /* the unit's list */
  struct unit *unit;
  struct n_block *block;
  const fn_uses *uses;
  struct block_code *outer; /* the block whose statement number outer_item it lies in, in the same function; or NULL */
  uint32_t outer_item;
  bool tail, loop; /* the function ends with it; it is the body of a loop */
  bool whole;      /* it is never cut: each of its statements is evaluated, as eval_level needs it */
  /* For each statement, and for the end: where `uses` stood before it, and how many slots were in use. */
  struct block_mark {
    uint32_t events, reads, names, top;
  } * marks;
  block_parts *parts; /* NULL: it is not cut */
  uint8_t *forks;     /* for each of FORK_PLACES and each statement: is it captured in several ways (FORK_...)? */
} block_code;

/* A text after resolution. */
typedef struct unit {
  struct unit *next;
  arena nodes;
  uint32_t source; /* the number of its source text */
  uint32_t running;
  fn_code *codes;   /* the code of all its functions */
  turn_code *loops; /* of all its loops, and of parts of blocks */
  block_code *blocks;
  fn_uses *uses;
  scope *scope;
  uint32_t number;
  qn_value *kept; /* constants and names that it owns */
  uint32_t nkept, kept_cap;
  void **layouts; /* the addresses of all field_cache.layout and n_record.layout in its nodes; each owns a reference */
  uint32_t nlayouts, layouts_cap;
  node *body;
  uint32_t nslots;
} unit;

/* A builtin: its row of the table, and what calls need of its signature. fn->code of an FN_BUILTIN value points to it; `def` is the first
 * member. */
typedef struct builtin_info {
  builtin_def def;
  signature sig;
  qn_value *defaults; /* one for each parameter; unset if the argument must be given */
  bool parsed;        /* sig and defaults have been made, which the first call does */
  bool named;         /* some parameter is given by keyword only */
  bool moves;         /* some parameter takes its value over, to change it in place */
  bool pure; /* it calls no function of the program, changes nothing, and has at most PURE_PARAMS parameters ... */
  uint8_t
      /* ... unless parameter number chooses - 1, a function that it then calls, is given; 0: it has none such */
      chooses;
  uint8_t rest; /* the number of the rest parameter + 1; 0: there is none */
} builtin_info;

/* What errors need to know about an evaluation in progress. Each call of the API has its own (api.c). */
typedef struct interp_place {
  span calling; /* the place of the call of the innermost builtin; calls that it makes have no place of their own */
  /* The number of the argument that the signature of the called function has just refused, + 1; or 0. */
  uint32_t refused;
} interp_place;

enum { LOOSE_TEXTS = 16, RECENT_PROMPTS = 64, UNITS_FEW = 16 };
enum { LIST_KEPT = 8, PURE_PARAMS = 8 };
typedef struct interp {
  scope *scopes; /* all */
  scope *builtin, *main;
  unit *units;
  uint32_t next_unit, prompts;
  uint64_t next_code;
  /* the latest texts of the prompt, which are kept, since notes, :copies and logs refer to them */
  uint32_t recent[RECENT_PROMPTS];
  bool prompting;    /* an input of the prompt runs, so imports load files again that have changed */
  uint32_t searches; /* how many searches for changed files among imports there were */
  /* the last text of the prompt, if it was nothing but a comment (kept for the input after it); else 0 */
  uint32_t comment;
  uint32_t nunits, sweep_at; /* how many units there are; when they are `sweep_at`, units_sweep looks for dead ones */
  /* how many scopes have no key; when they are `drop_at`, units_sweep looks for dead ones */
  uint32_t ndropped, drop_at;
  uint32_t loose[LOOSE_TEXTS], nloose; /* a ring of the last texts that got no unit (errors may still show them) */
  builtin_info *builtins;              /* the ops, then the rows of the table */
  uint32_t nbuiltins, builtins_cap;
  char (*signatures)[96]; /* the signatures of the op functions */
  qn_str *lambda;         /* "fn": what messages call functions without a name */
  qn_value returned;      /* the value of a return, while its signal travels up */
  qn_list *
      /* a list kept for calls that borrow their arguments: empty, with room for LIST_KEPT items; NULL while one uses it */
      list;
  interp_place place;
  recursion_calls *recursing; /* of the innermost function that runs as loops */
} interp;
static inline interp *interp_of(qn_vm *vm) { return (interp *)vm->interp; }

/* ---- signals ------------------------------------------------------------------------------------------------------------- */

typedef enum signal_kind { SIGNAL_BREAK, SIGNAL_CONTINUE, SIGNAL_RETURN } signal_kind;
static inline qn_value value_signal(signal_kind k) { return (qn_value){.head = TAG_SIGNAL, .u.i = k}; }
_Static_assert(TAG_ERROR == 8 && TAG_SIGNAL == 10, "value_stops tests both at once");
/* Is it an error or a signal, so that evaluation must not go on? */
static inline bool value_stops(qn_value v) { return __builtin_expect((v.head & ~(uint64_t)2) == TAG_ERROR, 0); }

/* Replaces the value that a slot owns by `v`, which is taken over. */
static inline void slot_set(qn_vm *vm, qn_value *slot, qn_value v) {
  qn_value old = *slot;
  *slot = v;
  value_release(vm, old);
}

/* ---- freeing (sweep.c) ------------------------------------------------------------------------------------------------------ */

/* Frees all units and scopes that nothing refers to, once there are twice as many as last time (so it is cheap on average). */
void units_sweep(qn_vm *vm);
/* To be called when a unit has been run: frees it, unless a function value or an error still refers to it. */
void unit_done(qn_vm *vm, unit *u);

/* ---- units and modules (module.c) ------------------------------------------------------------------------------------------ */

/* Parses, resolves and runs a source text in a scope. `prompt`: by the rules of qn_eval_prompt; a text that needs more lines then gives nil
 * with *incomplete set (which may be NULL if not `prompt`). Owned, or the error value. */
QN_MUST_CHECK qn_value run_text(qn_vm *vm, scope *s, uint32_t source, bool prompt, bool *incomplete);
/* The module value of what `import` names, which is loaded if need be. Owned, or the error value. */
QN_MUST_CHECK qn_value import_module(qn_vm *vm, scope *from, const char *name, bool path, span at);

/* ---- resolver (resolve.c) ---------------------------------------------------------------------------------------------------- */

typedef struct ast_module ast_module;
/* Makes a unit of a tree; the VM owns it. Appends warnings to `warnings`. NULL with an error raised. */
QN_MUST_CHECK unit *resolve_unit(qn_vm *vm, scope *s, const ast_module *tree, uint32_t source, bool prompt,
                                 text_buf *warnings);
void unit_free(qn_vm *vm, unit *u);

/* ---- builtins (builtin.c) -------------------------------------------------------------------------------------------------------- */

/* Binds the rows of the VM's table, the op functions, dtypes and devices in the builtin scope. False with an error raised. */
QN_MUST_CHECK bool builtins_bind(qn_vm *vm);
void builtins_free(qn_vm *vm);
/* The builtin that an FN_BUILTIN value is, with its signature parsed. NULL with an error raised. */
QN_MUST_CHECK builtin_info *builtin_row(qn_vm *vm, const qn_fn *fn);
static inline builtin_info *builtin_of(qn_vm *vm, const qn_fn *fn) {
  const interp *ip = interp_of(vm);
  builtin_info *info = fn->code;
  return info >= ip->builtins && info < ip->builtins + ip->nbuiltins && info->parsed ? info : builtin_row(vm, fn);
}

#endif
