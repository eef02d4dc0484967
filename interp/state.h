/* What the interpreter keeps between evaluations: scopes and their cells, units of code, function code. Internal to this room.
 *
 * A unit is one text after resolution: its nodes, function code and constants. It lives while it runs and as long as a function value
 * refers to code of it. Then sweep.c frees it, with its source text, its specializations and what was compiled for them.
 *
 * A scope is the top level of a module: a table of cells, one for each name. It lives as long as the module can be imported, or a value
 * refers to the module or to a function of it. A name that is no local resolves to a cell of its module's scope, whether or not it is
 * defined yet: globals are late bound. A cell without a value reads its `shadow`, the cell of the builtin with the same name, so that a
 * module may define names that the standard library has, too.
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
  uint32_t unit;  /* the unit being compiled that declares it; counts once that unit is accepted (`declared`) */
  bool declared;  /* the module's own code defines it: visible from outside */
  bool read;      /* some code mentions it */
  qn_value value; /* unset until the definition has run */
  struct global_cell *shadow; /* the builtin of this name, or NULL */
  qn_str *name;               /* interned, owned */
  span decl;                  /* where it was last defined, for notes; holds that text */
} global_cell;

/* Remembers where the global was defined last, and keeps that source text. */
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
  char *key; /* what "once per VM" goes by: a canonical path, "<std>/nn", or a host's name */
  char *dir; /* folder that imports are relative to; NULL: none */
  /* Of the main scope: the name of the text that runs, which is what its imports come from; of a file: how it was called; NULL: none. */
  char *text;
  qn_module *module;      /* the module value's object; the scope owns one reference */
  struct scope *importer; /* while loading: the scope that imports it, for messages about cycles */
  int depth;              /* while loading: vm->depth of the evaluation that loads it */
  struct scope *next;     /* in the VM's list */
  bool library;           /* embedded text: no warnings */
  uint64_t written;       /* hash of a file's text, to tell whether it has changed since */
  qn_module **imports;    /* of a file: the modules of files that it imported, owned, as they were then */
  uint32_t nimports, imports_cap;
  uint32_t looked; /* number of the last search for changed files that visited this scope (interp.searches) */
} scope;

/* The cell of a name in a scope, made if need be; NULL with an error raised. `name` is interned. */
QN_MUST_CHECK global_cell *scope_cell(qn_vm *vm, scope *s, qn_str *name);
/* The cell, or NULL if there is none. */
global_cell *scope_find(const scope *s, const qn_str *name);
/* Defines a name of the scope; borrows `v`. False with an error raised. */
QN_MUST_CHECK bool scope_bind(qn_vm *vm, scope *s, const char *name, qn_value v);
QN_MUST_CHECK scope *scope_new(qn_vm *vm, scope *outer, const char *name);
void scope_drop_values(qn_vm *vm, scope *s);
void scope_free(qn_vm *vm, scope *s);
/* A name that nothing defines, as messages need it. */
typedef struct undefined_name {
  const qn_str *name;
  const char *const *near; /* names of variables around it that are spelled much like it, up to a NULL; or NULL */
  span at;
  uint32_t unit; /* number of the unit being resolved, whose definitions count as the scope's; 0: none */
  bool size;     /* it stands in an expression among the sizes of a signature */
} undefined_name;
/* Raises E401 with the nearest names: those of the scope, and the variables. */
qn_value raise_undefined(qn_vm *vm, const scope *s, const undefined_name *u);
/* Raises one E401 for all n (at least one) undefined names of a text. */
void raise_undefined_all(qn_vm *vm, const scope *s, const undefined_name *list, uint32_t n);
/* Raises E401 for an assignment to a name that is no variable. The message suggests names of `s`, too, unless it is NULL. */
void raise_unknown_target(qn_vm *vm, const scope *s, const undefined_name *u);
/* The value of a cell, or of the builtin that it shadows; unset if neither has one. Borrowed. */
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
  int32_t initial; /* number of its default among the captures' tail, or -1 */
  span at;
} fn_param;

/* A dimension bound by a shape signature: a local of the frame. */
typedef struct fn_dim {
  qn_str *name;
  uint32_t slot;
} fn_dim;

typedef struct fn_code {
  fn_shared shared;
  jit_anchor anchor;
  struct fn_code *next; /* of the unit */
  qn_str *name;         /* "fn" for a lambda without a name */
  span at;              /* the whole definition */
  uint32_t nparams;
  uint32_t nslots;    /* of the frame, parameters first */
  uint32_t ncaptures; /* captured locals; defaults follow them in the function value */
  uint32_t ninitial;  /* defaults */
  uint32_t ndims, ndata;
  uint8_t watched; /* a call must go through run_watched: there are types, or globals that may hold arrays */
  bool rest;       /* the last parameter collects further positional arguments */
  bool checks;     /* some size in a type is an expression: types are matched twice */
  bool typed;      /* some parameter has a type */
  fn_param *params;
  qn_str **capture_names;
  fn_dim *dims;
  global_cell *
      *data; /* globals that the body reads other than to call them: a call may be worth compiling for their arrays */
  type_sig *result;
  span result_at;
  node *body;
} fn_code;

/* A text after resolution. */
typedef struct unit {
  struct unit *next;
  arena nodes;
  uint32_t source; /* its text */
  uint32_t running;
  fn_code *codes; /* all of its functions */
  scope *scope;
  uint32_t number;
  qn_value *kept; /* owned constants and names */
  uint32_t nkept, kept_cap;
  void **layouts; /* addresses of all field_cache.layout and n_record.layout in nodes; each owns a reference */
  uint32_t nlayouts, layouts_cap;
  node *body;
  uint32_t nslots;
} unit;

/* A builtin: its row with what calls need of its signature. fn->code of an FN_BUILTIN value points to one (its first field). */
typedef struct builtin_info {
  builtin_def def;
  signature sig;
  qn_value *defaults; /* one for each parameter; unset where an argument must be given */
  bool parsed;        /* sig and defaults are there: they are made by the first call */
  bool named;         /* some parameter is given by keyword only */
  bool moves;         /* some parameter takes its value over, to change it in place */
  bool pure;          /* it calls no function and changes nothing, and has at most PURE_PARAMS parameters ... */
  uint8_t
      chooses; /* ... unless parameter number chooses - 1, a function that it then calls, is given; 0: there is no such one */
  uint8_t rest; /* 1 + the number of the rest parameter; 0: there is none */
} builtin_info;

/* What errors need to know of an evaluation in progress. Each call of the API has its own (api.c). */
typedef struct interp_place {
  span calling;     /* the call of the innermost builtin: calls that it makes have no text of their own */
  span error_place; /* the call that the pending error has left last: the next frame of its trace lies there */
  /* 1 + the number of the argument that the signature of the called function has just refused, or 0 */
  uint32_t refused;
  bool rethrown; /* the pending error came with a trace that has the current function's frame already */
} interp_place;

enum { LOOSE_TEXTS = 16, RECENT_PROMPTS = 64, UNITS_FEW = 16 };
enum { LIST_KEPT = 8, PURE_PARAMS = 8 };
typedef struct interp {
  scope *scopes; /* all */
  scope *builtin, *main;
  unit *units;
  uint32_t next_unit, prompts;
  uint64_t next_code;
  uint32_t recent[RECENT_PROMPTS]; /* the prompt's latest texts, held: notes, :copies and logs speak of them */
  bool prompting;                  /* an input of the prompt runs: imports of files that have changed load them again */
  uint32_t searches;               /* for changed files among the imports of modules, so far */
  uint32_t comment; /* the prompt's last text if it was nothing but a comment (held for the text below it), else 0 */
  uint32_t nunits, sweep_at;           /* units there are; from `sweep_at` on units_sweep looks for dead ones */
  uint32_t ndropped, drop_at;          /* scopes without a key; from `drop_at` on it looks for dead ones */
  uint32_t loose[LOOSE_TEXTS], nloose; /* the last texts that got no unit (their errors may still show them), a ring */
  builtin_info *builtins;              /* rows of the table, then the ops */
  uint32_t nbuiltins, builtins_cap;
  char (*signatures)[96]; /* of the op functions */
  qn_str *lambda;         /* what functions without a name are called in messages: "fn" */
  qn_value returned;      /* what `return` carries while its signal travels */
  qn_list *
      list; /* kept for calls that borrow a list of arguments: empty, with room for LIST_KEPT items; NULL while one uses it */
  interp_place place;
} interp;
static inline interp *interp_of(qn_vm *vm) { return (interp *)vm->interp; }

/* ---- signals ------------------------------------------------------------------------------------------------------------- */

typedef enum signal_kind { SIGNAL_BREAK, SIGNAL_CONTINUE, SIGNAL_RETURN } signal_kind;
static inline qn_value value_signal(signal_kind k) { return (qn_value){.head = TAG_SIGNAL, .u.i = k}; }
_Static_assert(TAG_ERROR == 8 && TAG_SIGNAL == 10, "value_stops tests both at once");
/* An error or a signal: evaluation must not go on. */
static inline bool value_stops(qn_value v) { return __builtin_expect((v.head & ~(uint64_t)2) == TAG_ERROR, 0); }

/* Replaces the value of a slot, which owns it; takes over `v`. */
static inline void slot_set(qn_vm *vm, qn_value *slot, qn_value v) {
  qn_value old = *slot;
  *slot = v;
  value_release(vm, old);
}

/* ---- freeing (sweep.c) ------------------------------------------------------------------------------------------------------ */

/* Frees all units and scopes that nothing refers to, once there are twice as many as after the last time: cheap on average. */
void units_sweep(qn_vm *vm);
/* The unit has been run: frees it, unless a function value, or an error, still refers to it. */
void unit_done(qn_vm *vm, unit *u);

/* ---- units and modules (module.c) ------------------------------------------------------------------------------------------ */

/* Parses, resolves and runs a source text in a scope. Owned result. `prompt`: qn_eval_prompt's rules; a text that needs more lines is
 * nil with *incomplete set (else it may be NULL). */
QN_MUST_CHECK qn_value run_text(qn_vm *vm, scope *s, uint32_t source, bool prompt, bool *incomplete);
/* The module that `import` means; a module value (owned). */
QN_MUST_CHECK qn_value import_module(qn_vm *vm, scope *from, const char *name, bool path, span at);

/* ---- resolver (resolve.c) ---------------------------------------------------------------------------------------------------- */

typedef struct ast_module ast_module;
/* Turns a tree into a unit, which the VM owns; NULL with an error raised. Adds its warnings to `warnings`. */
QN_MUST_CHECK unit *resolve_unit(qn_vm *vm, scope *s, const ast_module *tree, uint32_t source, bool prompt,
                                 text_buf *warnings);
void unit_free(qn_vm *vm, unit *u);

/* ---- builtins (builtin.c) -------------------------------------------------------------------------------------------------------- */

/* Binds the rows of the VM's table, the op functions, dtypes and devices into the builtin scope. */
QN_MUST_CHECK bool builtins_bind(qn_vm *vm);
void builtins_free(qn_vm *vm);
/* The row behind a FN_BUILTIN value with its signature parsed; NULL with an error raised. */
QN_MUST_CHECK builtin_info *builtin_row(qn_vm *vm, const qn_fn *fn);
static inline builtin_info *builtin_of(qn_vm *vm, const qn_fn *fn) {
  const interp *ip = interp_of(vm);
  builtin_info *info = fn->code;
  return info >= ip->builtins && info < ip->builtins + ip->nbuiltins && info->parsed ? info : builtin_row(vm, fn);
}

#endif
