/* Inside jit/trace: the recording, patterns and templates of values, entries, and the VM's and engine's compiler state.
 *
 *   rec.c       deferred execution: op_apply while recording, running what is pending, places, observations, breaks
 *   pattern.c   patterns (what a call's values must look like), tracers, result templates, reasons of misses
 *   specialization.c     anchors and entries: record, look up, replay
 *   worker.c    compiler threads and the mailbox
 *   transform.c calls of transforms; jit, nojit
 *   differentiate.c  grad, value_and_grad, vjp, jvp, jacobian, hessian, checkpoint, custom_grad
 *   tree_match.c trees that must look like another one: cotangents, tangents, gradients
 *   body.c      graphs as function values: cut out of a recording, called
 *   vmap.c     vmap
 *   vmap_control.c      control flow that differs between the lanes of a vmap
 *   backend.c   jit(f, backend: ...): another device, or a function that takes graphs
 *   graphs.c    graph(...): made from a recorded call or from text, walked, rewritten
 *   serialize.c      graphs as bytes; deserialize.c reads them back
 *   explain.c   explain, code
 *   report.c    what became of a program's functions, as text; summary.c, in two screens
 */
#ifndef JIT_TRACE_TRACE_H
#define JIT_TRACE_TRACE_H

#include <pthread.h>

#include "jit/cpu/compile.h"
#include "jit/cpu/eager.h"
#include "jit/cpu/run.h"
#include "jit/graph/batch.h"
#include "jit/trace/rec.h"

typedef enum break_reason {
#define BREAK(symbol, reason, hint) BREAK_##symbol,
#include "jit/trace/breaks.def"
#undef BREAK
  BREAK_COUNT
} break_reason;
extern const char *const break_reasons[BREAK_COUNT], *const break_hints[BREAK_COUNT];

/* ---- patterns -------------------------------------------------------------------------------------------------------------- */

/* A pattern is a preorder sequence of these: one value each, containers followed by their items' patterns. */
typedef enum pat_kind {
  PAT_ARRAY,  /* dtype, rank, sizes; becomes graph input `input` */
  PAT_SCALAR, /* int or float (`tag`); becomes weak graph input `input` */
  PAT_EXACT,  /* equal to `value`: nil, bool, string, dtype, device, range, module, builtin function */
  PAT_LIST,   /* n items */
  PAT_RECORD, /* n fields named as in `value` (a record of nils) */
  PAT_FN      /* function with this code and n captures */
} pat_kind;
enum { PAT_ANY_DEVICE = UINT32_MAX };
typedef struct pat {
  uint8_t kind, tag, dtype, rank;
  /* Of a container: items; of an array: the code of its device, or PAT_ANY_DEVICE; of a text: 1 if any does. */
  uint32_t n;
  uint32_t input; /* graph input number */
  uint32_t dims;  /* first of `rank` sizes in pattern.dims */
  /* Of an array: how it must lie in memory; 0: in any way. Of a graph: its hash; of a function of the program: its code's id. */
  uint64_t layout;
  qn_value value; /* owned; of PAT_FN: the code pointer in u.p, not owned */
} pat;

enum { PATTERN_DEPTH = 100 /* of containers in one another */ };

typedef enum root_kind { ROOT_ARG, ROOT_FN, ROOT_GLOBAL } root_kind;
typedef struct root {
  uint8_t kind;  /* root_kind */
  bool by_value; /* a global without arrays and numbers: looked at only when the epoch has moved */
  bool library;  /* a global that the library reads: not worth telling */
  uint32_t arg;
  uint32_t first; /* of its pattern */
  qn_value *slot; /* of a global */
  rec_cell *cell;
  /* Of a global, borrowed (names live as long as the VM); of a graph's argument, in its body's `params`; or NULL. */
  qn_str *name;
  qn_value tracer; /* while recording: what rec_global returns again; owned */
} root;

/* Everything a call's values must fulfil, built while recording. */
typedef struct pattern {
  pat *pats;
  uint32_t n, cap;
  int64_t *dims;
  uint32_t ndims, dims_cap;
  root *roots;
  uint32_t nroots, roots_cap;
  uint32_t nargs;
  uint32_t ninputs; /* graph inputs so far, weak ones included */
  uint32_t leaves;
} pattern;

/* Regions in the order of their ends. Their lists of nodes are one block each, args before outs. */
typedef struct region_list {
  graph_region *list;
  uint32_t n, cap;
} region_list;
/* Which vmap's lanes get no counterparts for now (vmap_hold). */
typedef struct vmap_pause {
  bool on;          /* that of `at` and those around it; those inside it go on */
  struct lanes *at; /* NULL: none was in progress */
  uint32_t seen;    /* vmap_seen when it began */
} vmap_pause;
/* Functions whose calls are parts of a recording or graph, and how many. */
typedef struct part_list {
  struct part {
    uint32_t id; /* of the function's anchor_specializations */
    uint64_t calls;
  } * list;
  uint32_t n, cap;
} part_list;
/* A vmap in progress. */
struct lanes {
  struct lanes *outer;
  uint32_t depth;    /* 1: the outermost */
  uint32_t nregions; /* regions before it */
  graph_batch batch;
};

/* Numbers (from 1 on) by keys that are not 0. */
typedef struct key_index {
  struct key_number {
    uint64_t key;
    uint32_t number;
  } * slots;
  uint32_t n, cap; /* a power of two, or 0 */
} key_index;

/* The nodes that a gradient in progress differentiates by. */
typedef struct derived_by {
  const struct derived_by *outer;
  const uint32_t *nodes;
  uint32_t n;
} derived_by;

struct recording {
  qn_vm *vm;
  struct recording *outer; /* the one that waits until this one has ended (rewrite); its values are inputs here */
  struct borrowed {
    qn_array *array;
    uint32_t node; /* in the outer one */
  } * borrowed;    /* arrays that get their nodes back */
  uint32_t nborrowed, borrowed_cap;
  graph *g;
  uint32_t base;  /* the node id of graph node i is base + i */
  qn_value *vals; /* per node: an array (owned reference, perhaps pending), a host scalar, or unset */
  uint32_t vals_cap;
  /* Per node, owned or NULL: the header without data that the program has of a value in vals with data, so that every look at
   * it is noticed: of inputs, and of what was run early while capturing. */
  qn_array **tracers;
  uint32_t tracers_cap;
  struct fn_place {
    qn_value tracer;      /* owned */
    uint32_t root;        /* of the pattern */
    uint32_t path, steps; /* in fn_paths: how it is reached from there, the last step first */
  } * fns;                /* functions among the call's values, builtins aside */
  uint32_t nfns, fns_cap;
  uint32_t *fn_paths, nfn_paths, fn_paths_cap;
  uint64_t last_fn;      /* of the VM when it began: functions with higher numbers were made meanwhile */
  uint32_t done;         /* nodes below this one are executed, if anybody needed them */
  bool reopened;         /* somebody needs one of those that was not */
  int grads;             /* gradients in progress: then values of executed nodes are kept */
  const derived_by *wrt; /* by what, the innermost first; NULL: where nobody asks */
  bool handing_grads;    /* a gradient's results are being made: host floats among them break nothing */
  int tries;             /* try bodies in progress */
  /* Of pending results; those that nobody holds any more are taken off when it passes jit.pending_bytes. */
  size_t pending_bytes;
  uint8_t device; /* code of the device where its arrays are */
  bool placed;    /* an array has told so; else it is where the VM makes new ones */
  bool hollow;    /* its inputs have no data: nothing is run, and who looks at data gets an error */
  /* places */
  span at;            /* of what is evaluated next */
  uint32_t parent;    /* site of the innermost call */
  uint32_t cut;       /* innermost calls without a place in `calls`, because memory was short */
  uint32_t last_site; /* cache: the site of (last_at, parent) */
  span last_at;
  uint32_t *calls;
  uint32_t ncalls, calls_cap; /* parents to return to; a marker where the function changes */
  jit_anchor **callees;       /* the functions called, in step with `calls` */
  uint32_t callees_cap;
  /* capture: the part that becomes an entry */
  bool capturing;
  bool ending; /* no more is recorded: results get their data */
  bool ended;  /* vm->rec no longer points here */
  break_reason why;
  span why_at;
  char why_text[64]; /* what exactly: a function's name */
  pattern pattern;
  key_index globals;        /* roots of the pattern, by slot */
  key_index output_numbers; /* of the graph, by node */
  key_index observed_nodes; /* in `observed` */
  struct observed {
    uint32_t node;
    qn_value value;
  } * observed; /* guards on host scalars */
  uint32_t nobserved, observed_cap;
  /* vmap */
  struct lanes *lanes;      /* the innermost one in progress */
  uint32_t vmap_seen;       /* nodes below have their counterparts, where they differ from lane to lane */
  vmap_pause vmap_held;     /* vmap_hold */
  bool had_lanes;           /* a vmap has been recorded */
  bool vmap_failed;         /* the pending error is one of single lanes */
  qn_value active;          /* the lanes at work: nil all, unset none, or a bool that differs from lane to lane */
  struct rec_frame *frames; /* functions and loops in progress, the innermost first */
  int arms;                 /* arms of branches in progress */
  uint32_t *vmap_kept;      /* lanes' nodes that the program held when pending work ran last */
  uint32_t nvmap_kept, vmap_kept_cap, vmap_looked; /* nodes below the latter have been looked at for it */
  struct lane_check *checks;                       /* fallible ops of lanes, for their errors */
  uint32_t nchecks, checks_cap;
  /* random numbers: inputs made on demand */
  uint32_t draw_input, key_inputs[2]; /* nodes; 0: none yet */
  uint64_t draw_start, ndraws;
  region_list regions; /* parts with derivatives of their own */
  /* Calls that are parts of it. They are told of the function that is recorded, or of nobody, when the recording is freed. */
  part_list parts;
  struct anchor_specializations *of; /* or NULL */
};

/* ---- result templates -------------------------------------------------------------------------------------------------------- */

/* Functions keep their identity: one that the call was given comes back itself, one that it made is a new one in each call, and the same
 * at all its places in the result. */
typedef enum tpl_kind {
  TPL_OUTPUT,
  TPL_VALUE,
  TPL_LIST,
  TPL_RECORD,
  TPL_FN,    /* a function with the captures that follow; new in each call if it has a number */
  TPL_AGAIN, /* the new function with that number once more */
  TPL_GIVEN  /* a function among the call's values */
} tpl_kind;
typedef struct tpl {
  uint8_t kind;
  uint32_t n; /* items that follow; TPL_GIVEN: steps of its path */
  /* Number among the graph's outputs, or of a new function (from 1 on); TPL_GIVEN: where its path begins. */
  uint32_t output;
  qn_value value; /* owned: the value, a record of nils, the function whose captures are replaced */
} tpl;
typedef struct tpl_list {
  tpl *tpls;
  uint32_t n, cap;
  uint32_t made; /* new functions */
  /* Of TPL_GIVEN: a root_kind; the argument's number, or that of the root in the pattern; the steps, the last first. */
  uint32_t *paths, npaths, paths_cap;
} tpl_list;

/* ---- entries ------------------------------------------------------------------------------------------------------------------ */

/* A plan that a VM and the compiler threads may share. */
typedef struct shared_plan {
  atomic_int refs;
  atomic_bool abandoned;  /* nobody will run it: no need to go on compiling */
  atomic_long compile_us; /* what compiling its kernels took, once that is known */
  plan *plan;
} shared_plan;
void shared_plan_release(shared_plan *s);

typedef enum specialization_state {
  ENTRY_COMPILING, /* calls run eagerly meanwhile */
  ENTRY_READY,
  ENTRY_BROKEN /* the recording broke off: calls like this run eagerly */
} specialization_state;

/* A scalar guard: host scalar expressions over the weak inputs, evaluated in order, some compared. */
typedef struct scalar_guard {
  uint8_t op; /* op_id, or OP_COUNT for an input, OP_COUNT + 1 for a constant */
  uint8_t nin;
  uint8_t dtype;  /* of its value */
  bool compare;   /* the value must equal `value` */
  uint32_t in[3]; /* guard numbers; of an input: the graph input number */
  qn_value value; /* to compare with, or the constant; scalars only */
} scalar_guard;

enum { GUARD_INPUT = OP_COUNT, GUARD_CONST = OP_COUNT + 1, GUARDS_MAX = 256 };
_Static_assert(OP_COUNT + 1 <= UINT8_MAX, "scalar_guard.op");

/* Which way is faster, the plan or the eager call (specialization.c)? */
typedef struct race {
  uint8_t calls;    /* of this round, timed in both ways in turn */
  uint8_t rounds;   /* that have ended */
  bool code;        /* the plan had its best code; else the block VM ran what is being compiled */
  bool eager;       /* how the last round ended: eager calls are faster */
  int64_t least[2]; /* nanoseconds of the fastest call: the plan, the eager call */
  uint64_t again;   /* hits of the entry at which the next round begins */
} race;

typedef struct specialization {
  struct specialization *next;
  uint8_t state;  /* specialization_state */
  uint8_t device; /* code of the device where its plan runs */
  uint64_t hash;  /* pattern_hash of the recorded call; 0: it may be any */
  pattern pattern;
  uint64_t epoch; /* at which the by-value globals were last found unchanged */
  scalar_guard *guards;
  uint32_t nguards;
  tpl_list result;
  shared_plan *plan;  /* NULL until ready */
  device_plan *there; /* what the device keeps of the plan */
  graph *graph;       /* as recorded, for explain and --jit verify; owned */
  break_reason why;
  span why_at;
  char why_text[64];
  uint32_t draw_input, key_inputs[2]; /* graph input numbers + 1; 0: none */
  uint64_t ndraws;
  uint64_t hits, replays; /* calls that it served; of these, with its plan */
  /* Of the others: those to which plan or code came too late, were timed, were done both ways (--jit verify). */
  uint64_t waited, timed, verified;
  part_list parts; /* of each replay */
  race race;
  bool reported_copies; /* QUERN_LOG=copies has named the inputs that are copied */
  double plan_ms;
  struct job *job; /* being compiled, or NULL */
  /* calls that it serves and that have not ended, or that an exception has left: it is not recorded again */
  uint32_t running;
  region_list regions; /* of the graph as recorded */
} specialization;

/* What became of calls, for the report: each is counted once. */
typedef enum call_fate {
#define CALL_FATE(symbol, text) CALL_##symbol,
#include "jit/trace/fates.def"
#undef CALL_FATE
  CALL_FATES
} call_fate;
extern const char *const call_fates[CALL_FATES];

/* What hangs on an anchor. */
typedef struct anchor_specializations {
  jit_anchor *anchor;
  struct anchor_specializations *next; /* of the VM, to free them all */
  uint32_t id;                         /* for part_list */
  bool begun;                          /* the first call has come */
  bool part;                           /* its id has been in a part_list */
  uint8_t gave_up;                     /* of an anchor that is ANCHOR_EAGER: why, a break_reason */
  specialization *first;               /* most recently used first */
  /* Calls by what became of them, without those that its entries count; those that stayed eager for a reason that no entry has. */
  uint64_t calls[CALL_FATES], refused[BREAK_COUNT];
  part_list parts; /* of its recordings, and of the replays of entries that have gone */
  uint32_t count, misses;
  bool watched, computes; /* a call was watched before any was recorded; one of these had to do with arrays */
  /* Calls that were watched when the function was hot, and had not: while there are any it is not recorded. */
  uint8_t quiet;
  bool full;              /* too many: other call shapes stay eager */
  uint32_t streak, rests; /* short calls one after another that stayed eager; times that the anchor has rested since */
  struct miss {
    span at;
    char text[240];
  } * recompiles; /* reasons of re-recordings */
  uint32_t nrecompiles, recompiles_cap;
} anchor_specializations;

/* What a graph as a value is made of: FN_GRAPH's code. */
typedef struct graph_body {
  fn_shared shared;
  uint32_t nbound; /* captures of the function */
  uint32_t *bound; /* the inputs of the graph that they are; NULL: the first ones, in order */
  bool rest;       /* the last argument of the pattern is the list of all that are left */
  /* graph; pattern of the arguments (whose inputs follow), guards, result, random inputs; no plan */
  specialization call;
  qn_value params; /* a list of the names of the pattern's arguments (but the rest); nil: they have none */
  /* So many of these (but the rest) may be left out, from the last on: the captures behind the bound ones. */
  uint32_t ndefaults;
  bool chained;  /* entries of transformed functions hang on its hash */
  qn_value like; /* of a pullback: a tree of prototypes for its one argument, in place of the pattern; else unset */
  region_list regions;
  uint64_t hash; /* of everything above */
  jit_anchor anchor;
} graph_body;
static inline graph_body *body_of(qn_value fn) { return (graph_body *)value_fn(fn)->code; }

/* A transform's anchor: entries of transformed functions hang on the code plus the chain of transforms. */
typedef struct chain_anchor {
  struct chain_anchor *next;
  uint64_t hash;
  uint32_t depth;
  void *code;           /* of the innermost function: where it lies, or its id or hash where it may go */
  const void *chain[8]; /* transform_defs, outermost first */
  jit_anchor anchor;
  /* Of a graph's code: values with a graph of this hash that have been looked up. Where there are none it goes some time (jit.chains_left). */
  bool graph;
  uint32_t live;
} chain_anchor;

typedef struct vm_jit {
  uint64_t epoch; /* bumped when a watched global is rebound */
  anchor_specializations *anchors;
  chain_anchor *chains;
  uint32_t chains_left; /* those of graphs that have gone */
  struct made *made;    /* by functions that are backends (backend.c), the latest first */
  struct mailbox *box;  /* what has been made for this VM */
  struct job *unsent;   /* what the planners could not be given yet */
  uint64_t calls_compiled, calls_eager, recordings;
  uint32_t last_id; /* of anchor_specializations */
  uint64_t last_rule;
} vm_jit;
static inline vm_jit *jit_of(qn_vm *vm) { return (vm_jit *)vm->jit; }

/* An anchor is in another state for the time of a call. It is as it was when the block is left, by a host's exception too: in files
 * that are compiled with -fexceptions. */
typedef struct anchor_lent {
  jit_anchor *anchor; /* NULL: it has been given back */
  uint8_t state;
  int32_t countdown;
} anchor_lent;
static inline void anchor_give_back(anchor_lent *l) {
  if (!l->anchor) return;
  l->anchor->state = l->state;
  l->anchor->countdown = l->countdown;
  l->anchor = NULL;
}
#define ANCHOR_LENT(name, a)                                                                                           \
  anchor_lent name __attribute__((cleanup(anchor_give_back))) = {(a), (a)->state, (a)->countdown}

/* ---- rec.c ----------------------------------------------------------------------------------------------------------------------- */

/* Begins a recording on the VM (which has none). NULL with an error raised. */
QN_MUST_CHECK struct recording *rec_begin(qn_vm *vm, bool capture);
/* A call of this function is a part of the recording. */
void rec_part(struct recording *r, jit_anchor *callee);
/* Runs what is pending and leaves the recording: vm->rec becomes NULL. The struct stays for its owner (rec_free). */
QN_MUST_CHECK bool rec_end(struct recording *r);
void rec_free(struct recording *r);
void rec_drop(qn_vm *vm, void *recording); /* the same, for vm_own */
/* Executes pending nodes that something outside needs, and all fallible ones, in program order. */
QN_MUST_CHECK bool rec_run_pending(struct recording *r);
/* The capture fails for a reason; outside gradients this also ends the recording. False if pending work raised. */
QN_MUST_CHECK bool rec_break(struct recording *r, break_reason why, const char *text);
/* A graph lives in one place, which its first array tells. False: it lives on another device than this one. */
QN_MUST_CHECK bool rec_place(struct recording *r, int device);
/* Node of a value in this recording; 0 when memory is short. Scalars without a node become constants. */
uint32_t rec_node(struct recording *r, qn_value v);
/* Is the value traced in this recording? Then its node, else 0. */
uint32_t rec_traced(const struct recording *r, qn_value v);
/* The same without running anything: for where a pattern is still being made. */
void rec_stop_capture(struct recording *r, break_reason why, const char *text);
/* The tracer (owned) of an array that becomes input `node`: it has no data until the capture ends or breaks, so that every
 * look at it is noticed. Takes over `data`. NULL with an error raised. */
QN_MUST_CHECK qn_array *rec_input(struct recording *r, uint32_t node, qn_array *data);
uint32_t rec_site(struct recording *r);
/* After nodes were appended: runs them, or gives the capture up, where a limit or a try asks for it. */
QN_MUST_CHECK bool rec_appended(struct recording *r);
/* Nodes from `mark` on are not needed any more: they go if nothing knows them, else they stay and do nothing. `before` is what
 * rec_mark gave. */
typedef struct rec_marked {
  uint32_t n, ninputs, nobserved, nregions;
} rec_marked;
rec_marked rec_mark(const struct recording *r);
void rec_forget(struct recording *r, rec_marked before);
/* Room in `vals` for all nodes of the graph. */
QN_MUST_CHECK bool rec_room(struct recording *r);
/* The value for a node that was appended directly: a pending array, or a host scalar computed now. Owned. */
QN_MUST_CHECK qn_value rec_value_of(struct recording *r, uint32_t node);
/* 0: there is none. */
uint32_t key_number(const key_index *x, uint64_t key);
/* Adds one that is not there. False with an error raised. */
QN_MUST_CHECK bool key_add(qn_vm *vm, key_index *x, uint64_t key, uint32_t number);
/* Before gradients are handed on (`handing_grads`): what the numbers among these nodes (0: none) read of arrays is run, once for all. */
QN_MUST_CHECK bool rec_hand_numbers(struct recording *r, const uint32_t *nodes, uint32_t n);
qn_value rec_raise_refusal(struct recording *r, uint32_t node, const op_refusal *why);
/* vm_hooks.same_fn. No guard can tell whether two functions that the call was given are one, so such a call is not captured. */
QN_MUST_CHECK int rec_same_fn(qn_vm *vm, qn_value a, qn_value b);
/* The value of a node (owned), computed from the inputs if it has gone. Called where nothing is being recorded. */
QN_MUST_CHECK qn_value rec_computed(struct recording *r, uint32_t node);

/* ---- pattern.c --------------------------------------------------------------------------------------------------------------------- */

/* Appends the pattern of `v` as a root and returns its tracer: the same value whose arrays and numbers are graph inputs of
 * the recording. Owned; error value when memory is short. A value that cannot be guarded breaks the capture. */
QN_MUST_CHECK qn_value pattern_root(struct recording *r, root_kind kind, qn_value v, qn_value *slot, rec_cell *cell,
                                    qn_str *name);
/* Do the call's values fit? Collects the inputs (arrays borrowed, weak ones NULL with their value in scalars). On a miss,
 * `why` (may be NULL) receives the first difference. */
bool pattern_match(const pattern *p, bool check_by_value, qn_value fn, const qn_value *args, int nargs,
                   qn_array **inputs, qn_value *scalars, text_buf *why);
/* Products by a device's library depend on how the inputs lie that they see through views: says so of these. False when memory is
 * short. */
QN_MUST_CHECK bool pattern_fix_layouts(struct recording *r);
void pattern_free(qn_vm *vm, pattern *p);
/* Of a call that computed nothing on arrays: where it has none either, texts do not matter, so that a function that looks up or splits
 * texts is not recorded for each. False: it has arrays. */
bool pattern_any_text(pattern *p);
/* Hash of the static facts of a call: structure, dtypes, sizes, functions. Equal facts, equal hashes; never 0. */
uint64_t pattern_hash(qn_value fn, const qn_value *args, int nargs);
/* Guards as text, one a line. */
void pattern_print(const pattern *p, text_buf *out);
/* What argument `arg` must be, as text. */
void pattern_print_arg(const pattern *p, uint32_t arg, text_buf *out);
/* The result of a graph, as text. */
void template_print(const tpl_list *t, const graph *g, text_buf *out);
/* Where a graph input comes from: "argument 1.w", "global scale". */
void pattern_input_name(const pattern *p, uint32_t input, text_buf *out);

/* Template of a result; marks outputs in the graph. False: `*broken` says why (or an error is raised). */
QN_MUST_CHECK bool template_make(struct recording *r, qn_value v, tpl_list *out, break_reason *broken);
/* A value from a template; takes nothing, `outputs` stay the caller's. Owned or error value. `call`: the values that fit the pattern;
 * NULL for a template of nodes. */
typedef struct call_values {
  const pattern *p;
  qn_value fn;
  const qn_value *args;
} call_values;
QN_MUST_CHECK qn_value template_build(qn_vm *vm, const tpl_list *t, const qn_value *outputs, const call_values *call);
/* A template of results becomes one of a graph with the first `nargs` of the arguments: it holds what the call has reached otherwise. */
void template_bind(qn_vm *vm, tpl_list *t, uint32_t nargs, const call_values *call);
void template_free(qn_vm *vm, tpl_list *t);
/* As template_make, but outputs are numbers in a list of nodes, which grows: nothing is marked in the graph. */
typedef struct node_list {
  uint32_t *nodes, n, cap;
} node_list;
QN_MUST_CHECK bool template_of_nodes(struct recording *r, qn_value v, tpl_list *out, node_list *nodes);
/* The template belongs to an entry of code at `home` (fn_shared) and goes with that: it does not keep functions of that code alive. */
void template_settle(tpl_list *t, const void *home);
/* A copy of a template, which belongs to nobody. */
QN_MUST_CHECK bool template_copy(qn_vm *vm, const tpl_list *from, tpl_list *to);
uint64_t template_hash(const tpl_list *t, uint64_t seed);

/* The values at the inputs of a call that fits the pattern, borrowed, by input number. */
void pattern_values(const pattern *p, qn_value fn, const qn_value *args, int nargs, qn_value *inputs);
/* A pattern of the first arguments alone, wherever arrays lie in memory. */
QN_MUST_CHECK bool pattern_copy_args(qn_vm *vm, const pattern *from, uint32_t nargs, pattern *to);
/* One more argument: the graph's input of this type. */
QN_MUST_CHECK bool pattern_add_input(qn_vm *vm, pattern *p, const graph_type *t, uint32_t input);
uint64_t pattern_own_hash(const pattern *p, uint64_t seed);
uint64_t hash_mix(uint64_t h, uint64_t x);
/* Kinds, names, dtypes and sizes of a tree. */
uint64_t value_structure_hash(qn_value v, uint64_t seed);

/* ---- tree_match.c ----------------------------------------------------------------------------------------------------------------------- */

/* Is `given` a tree like `like`, with the same dtype and shape at every float leaf? nil stands for zeros, of a subtree too; a number
 * may stand for an array of rank 0; what is at other leaves does not matter. `lanes`: how many vmaps `given` was made in, where host floats that differ are f64 arrays, and each
 * lane has given something for those that do not. Calls `leaf` for the float leaves of `like` in order with
 * what is there: an array, a float, or nil. False with an error raised that says at which path: `what` names the tree ("vjp: the
 * cotangent"), `of` what it belongs to ("the result"). */
QN_MUST_CHECK bool tree_match_walk(qn_vm *vm, const char *what, const char *of, qn_value like, qn_value given,
                                   int lanes, bool (*leaf)(void *ctx, qn_value like, qn_value given), void *ctx);
bool is_float_leaf(qn_value v);
/* The same tree with arrays without data for float arrays, 0.0 for floats, and nil for all other leaves. Owned. */
QN_MUST_CHECK qn_value tree_match_prototype(qn_vm *vm, qn_value v);
/* Zeros of a prototype's or leaf's dtype and shape. */
QN_MUST_CHECK qn_value tree_match_zeros(qn_vm *vm, qn_value like);

/* ---- body.c ---------------------------------------------------------------------------------------------------------------------------- */

/* An empty body with one reference. */
QN_MUST_CHECK graph_body *body_new(qn_vm *vm);
void body_release(qn_vm *vm, graph_body *b);
/* Fills in the hash, when all else is there. */
void body_finish(graph_body *b);
/* Cuts the nodes from `mark` on that make `outs` out of the recording, as the body's graph. Its inputs are first the nodes below
 * `mark` that they need (bound, listed in *bound), then `params`. False with an error raised. */
QN_MUST_CHECK bool body_cut(struct recording *r, graph_body *b, uint32_t mark, const uint32_t *params, uint32_t nparams,
                            const uint32_t *outs, uint32_t nouts, node_list *bound);
/* A body's graph once more at the end of the recording, on nodes for its inputs; out[i] is output i. */
QN_MUST_CHECK bool body_append(struct recording *r, const graph_body *b, const uint32_t *inputs, uint32_t *out);
/* The call of a graph. */
QN_MUST_CHECK qn_value body_call(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs, span at);
/* Runs `work` inside the recording that is on, or in one of its own. */
QN_MUST_CHECK qn_value rec_within(qn_vm *vm, const rec_call_site *site,
                                  qn_value (*work)(struct recording *r, const rec_call_site *site));
/* Adds a region; its lists are copied. False with an error raised. */
QN_MUST_CHECK bool regions_add(qn_vm *vm, region_list *l, const graph_region *region);
void regions_cut(qn_vm *vm, region_list *l, uint32_t n);
/* Drops those that have no nodes. */
void regions_drop_empty(qn_vm *vm, region_list *l);
void body_open(qn_vm *vm);

/* ---- backend.c ------------------------------------------------------------------------------------------------------------------------- */

/* The code of the device that jit's option names; -1: it names none. */
int backend_device(qn_value backend);
/* Moves the arguments' arrays there and makes it the place of new ones. False with an error raised and nothing to leave. */
QN_MUST_CHECK bool backend_enter(qn_vm *vm, int device, qn_value *args, int nargs, int *before);
void backend_leave(qn_vm *vm, int before);
/* A call of jit(f, backend: a function). */
QN_MUST_CHECK qn_value backend_call(qn_vm *vm, qn_value fn, qn_value backend, bool fullgraph, const qn_value *args,
                                    int nargs, qn_value kwargs);
void backends_close(qn_vm *vm);

/* ---- graphs.c -------------------------------------------------------------------------------------------------------------------------- */

void graphs_open(qn_vm *vm);
/* Can a graph from elsewhere be run like a recorded one? Else `why` says what is against it. */
QN_MUST_CHECK bool graph_runnable(const graph *g, char *why, size_t size);
/* What comes from elsewhere proves nothing: whatever can fail on data is checked, and no node has a place. False when memory is
 * short. */
QN_MUST_CHECK bool graph_distrust(graph *g);
/* The function value of a body that has all else; `values` are what it is bound to, then its defaults. Borrows. */
QN_MUST_CHECK qn_value body_value(qn_vm *vm, graph_body *b, const qn_value *values);
/* Gives the body's arguments these names, a list (retained). */
void body_name_params(graph_body *b, qn_value params);

/* ---- explain.c ------------------------------------------------------------------------------------------------------------------------- */

/* What serves a call: an entry, whose plan is ready unless it is broken; or none, and why. */
typedef struct served {
  jit_anchor *anchor;
  specialization *entry;
  break_reason why; /* BREAK_none: there is a plan */
  span at;
  char text[160]; /* the reason in words */
} served;
/* Makes the call and finds what serves it. False with an error raised: the call's, or no memory to compile it with. `what` asks. */
QN_MUST_CHECK bool serve(qn_vm *vm, const char *what, qn_value fn, const qn_value *args, int nargs, served *s);
QN_MUST_CHECK qn_value raise_no_graph(qn_vm *vm, const served *s, const char *what);
/* Fields of a record that is being made; takes over `v`. A failure sticks in *ok. */
void put_field(qn_vm *vm, qn_record *r, const char *name, qn_value v, bool *ok);
void push_item(qn_vm *vm, qn_list *l, qn_value v, bool *ok);
qn_value text_value(qn_vm *vm, const char *s);

/* ---- differentiate.c --------------------------------------------------------------------------------------------------------------------- */

/* How a region with a rule is differentiated: shared by the copies of the region. */
typedef struct region_rule {
  uint32_t refs;
  /* of the VM's rules; copies have it, too, so that equal graphs can be told (an address may come again) */
  uint64_t number;
  qn_value backward;  /* the function */
  tpl_list cts, args; /* its arguments: outputs are numbers in the region's outs and args */
  tpl_list like;      /* the float leaves of the arguments: numbers in args */
  uint32_t lanes;     /* depth of the vmap that backward has been made for last; 0: none */
  uint32_t levels;    /* how many vmaps it has been made for: leading axes of what it takes and returns */
  bool settled;       /* it is an entry's (regions_settle): not to be called */
} region_rule;
void region_rule_release(qn_vm *vm, region_rule *rule);
/* A rule that others have, too, stays as it is there: the region gets one of its own, which may be called. */
QN_MUST_CHECK bool region_own_rule(qn_vm *vm, graph_region *x);
/* The regions belong to an entry of code at `home` (as in template_settle). */
QN_MUST_CHECK bool regions_settle(qn_vm *vm, region_list *l, const void *home);
qn_value differentiate_call(struct recording *r, const rec_call_site *site);
qn_value region_call(struct recording *r, const rec_call_site *site);

/* ---- specialization.c -------------------------------------------------------------------------------------------------------------------------- */

QN_MUST_CHECK anchor_specializations *anchor_entries_of(qn_vm *vm, jit_anchor *a);
/* Adds to the calls of a part. False: memory was short; no error is raised. */
QN_MUST_CHECK bool parts_add(qn_vm *vm, part_list *l, uint32_t id, uint64_t calls);
/* The same for calls that have been made: where memory is short nobody is told to have made them. */
void parts_count(qn_vm *vm, part_list *l, uint32_t id, uint64_t calls);
void parts_free(qn_vm *vm, part_list *l);
void specialization_free(qn_vm *vm, specialization *e);
/* Has its compiled code turned out slower than eager calls? */
bool specialization_stays_eager(const specialization *e);
/* What a call must fulfil to be served by the entry, as text, one guard a line; one guard about numbers, on no line. */
void specialization_guards(const specialization *e, text_buf *out);
void specialization_number_guard(const specialization *e, uint32_t i, text_buf *out);
/* Do the numbers that steered the recording lead the same way? `why` (may be NULL) receives the first that does not. */
bool specialization_guards_hold(qn_vm *vm, const specialization *e, const qn_value *scalars, text_buf *why);
/* Takes finished jobs from the mailbox, and sends what could not be sent. Called at anchors; waits for nobody. */
void jit_drain(qn_vm *vm);

/* ---- worker.c --------------------------------------------------------------------------------------------------------------------------- */

/* What waits in one of its queues. */
typedef struct waiting {
  struct waiting *next, **link; /* link: what points to it; NULL: it is in no queue */
  double since;                 /* milliseconds */
  size_t size;                  /* smaller ones are taken first */
} waiting;
/* A VM's mailbox. Compiler threads, which hardly run on a busy machine, put into it what they have made, without a lock for which its VM
 * could have to wait. What is put into one whose VM has closed goes with the last who knows it. */
typedef struct mailbox {
  atomic_int refs; /* the VM, and the jobs and tasks that are not in it */
  atomic_int mail; /* something is in it, or waits to be sent */
  atomic_bool closed;
  _Atomic(struct job *) jobs;
  _Atomic(struct compile_task *) reports; /* of compiled plans */
} mailbox;
typedef struct job {
  waiting line;        /* among what is to be planned; first */
  struct job *next;    /* in the VM's mailbox */
  struct mailbox *box; /* where the plan goes; NULL: it is there */
  atomic_bool cancelled;
  specialization *entry; /* of the VM's thread alone; NULL: nobody wants the plan any more */
  graph *graph;          /* owned until the plan takes it over */
  int64_t tune[TUNABLE_COUNT];
  bool spawn;        /* the VM may start a compiler */
  uint8_t device;    /* code; kernels are compiled here for the CPU only */
  const char *name;  /* of the function, for the log; lives as long as the entry */
  char shown[48];    /* the same, cut, for other threads */
  shared_plan *plan; /* result, or NULL with `why` (empty: memory was short) */
  char why[256];
  double ms;
} job;
/* The kernels of a finished plan, to be compiled; afterwards the report about it. */
typedef struct compile_task {
  waiting line;              /* among what is to be compiled; first */
  struct compile_task *next; /* among the VM's reports */
  struct mailbox *box;       /* where the report goes; NULL: it is there */
  shared_plan *plan;         /* holds a reference */
  int64_t tune[TUNABLE_COUNT];
  bool spawn;
  char shown[48]; /* the name of the function, cut */
  compile_report report;
} compile_task;
/* Hands a graph (taken over) to the compiler threads, or compiles it here when `sync`. False: memory was short. */
bool job_submit(qn_vm *vm, specialization *e, graph *g, const char *name, bool sync);
/* Forgets the entry's job; however many there are, in constant time. */
void job_cancel(qn_vm *vm, specialization *e);
/* Frees what has been forgotten and is the VM's own again: jit_drain does, too. */
void jobs_drop(qn_vm *vm);
/* The VM's finished jobs and reports, as lists; the caller frees them. */
job *job_take_mail(qn_vm *vm, compile_task **reports);
void job_free(job *j);
void compile_task_free(compile_task *t);
QN_MUST_CHECK bool engine_jit_open(qn_vm *vm);
void engine_jit_forget(qn_vm *vm); /* the VM closes */

/* ---- report.c, summary.c --------------------------------------------------------------------------------------------------------------- */

/* "line 3", in another file than this one (NULL: in any) "nn.qn:3". */
void report_place(qn_vm *vm, text_buf *t, const char *file, span at);
/* What became of all calls of functions, a line for each function (of the script `file`; NULL: of the library, too), those with most
 * calls first, in at most `most` lines. Each call is told once. */
QN_MUST_CHECK bool report_calls(qn_vm *vm, const char *file, const anchor_specializations *const *list, uint32_t n,
                                uint32_t most, text_buf *out);
/* What a function is called in reports, with its transforms: "grad(loss)". */
void report_name(qn_vm *vm, text_buf *t, const jit_anchor *a);
const char *report_plural(uint64_t n); /* "" or "s" */
const char *report_ordinal(int64_t n); /* what stands behind the number: "st" of 1 */
/* The most important of what became of n functions, in at most SUMMARY_LINES lines of SUMMARY_COLUMNS columns. `file`: whose lines need no
 * name. `lines`: how long the whole report is. False: memory was short (raised). */
enum { SUMMARY_LINES = 48, SUMMARY_COLUMNS = 100 };
QN_MUST_CHECK bool report_summary(qn_vm *vm, const char *file, const anchor_specializations *const *list, uint32_t n,
                                  uint32_t lines, text_buf *out);

/* ---- explain.c: the log ---------------------------------------------------------------------------------------------------------------- */

/* Is a place in the standard library, or nowhere? */
bool place_in_library(qn_vm *vm, span at);
/* Where a node was made: of the places that it was reached through the innermost that is the program's; in the library if none is. */
span node_place(qn_vm *vm, const graph *g, uint32_t node);
/* The lines of the program that a kernel was made from, ascending. */
enum { KERNEL_LINES_MOST = 64 };
int kernel_lines(qn_vm *vm, const plan *p, const plan_kernel *k, int lines[KERNEL_LINES_MOST]);
/* Puts a line in its place among n ascending ones, once; 0 is no line. Their number then. */
int line_add(int lines[KERNEL_LINES_MOST], int n, int line);
/* Source name and line of a place; "?" and 0 if it has none. */
const char *place_line(qn_vm *vm, span at, int *line);
/* Lines of QUERN_LOG, where their channels are on, for the caller to write when nothing is left that must be done: about a recorded
 * call, */
void log_entry(qn_vm *vm, const jit_anchor *a, const specialization *e, text_buf *out);
/* its plan, */
void log_plan(qn_vm *vm, const char *name, const specialization *e, text_buf *out);
/* the code of its kernels. */
void log_compiled(qn_vm *vm, const compile_task *t, text_buf *out);
void log_write(qn_vm *vm, const text_buf *text);
/* An input that is copied before each call since it does not lie contiguously. */
void log_copy(qn_vm *vm, const char *name, const specialization *e, uint32_t input);

/* ---- transform.c ------------------------------------------------------------------------------------------------------------------------ */

/* ---- vmap.c --------------------------------------------------------------------------------------------------------------------------- */

/* The call of a vmap; site->args: the positional arguments, then the keywords (a record or nil). */
QN_MUST_CHECK qn_value vmap_call(qn_vm *vm, const rec_call_site *site);
/* Appends the counterparts of what was recorded since. False with an error raised: memory is short, or something cannot be done in
 * all lanes at once. */
QN_MUST_CHECK bool vmap_advance(struct recording *r);
/* From here on no counterparts are made of the lanes in progress until vmap_go_on: what is appended may be taken out again. Lanes
 * that are begun meanwhile get theirs, and end before it. Nothing can run. `before`: for vmap_go_on. */
QN_MUST_CHECK bool vmap_hold(struct recording *r, vmap_pause *before);
/* Before a call whose derivative has a rule of its own: where any of `args` differs from lane to lane, the nodes (its float leaves)
 * do so from now on, too, so that the rule can be done in all lanes; but for host floats. */
QN_MUST_CHECK bool vmap_spread(struct recording *r, const uint32_t *nodes, uint32_t n, qn_value args);
void vmap_go_on(struct recording *r, const vmap_pause *before);
/* Do lanes say anything of the nodes from `from` on? Then these stay. */
bool vmap_know(const struct recording *r, uint32_t from);
/* The counterpart of a node at the innermost level where it has one, after vmap_advance; 0: it is the same in all lanes. */
uint32_t vmap_whole(const struct recording *r, uint32_t node);
/* Its counterpart for all lanes of all levels; itself if it has none. */
uint32_t vmap_outermost(const struct recording *r, uint32_t node);
qn_value vmap_raise_read(struct recording *r, qn_value v);
void vmap_free(struct recording *r);   /* what a recording keeps for them */
void frames_drop(struct recording *r); /* those in progress, whose calls and loops are left by an exception */
/* Node i has failed: if it is the counterpart of an op of lanes, the pending error names the first lane that fails. */
void vmap_blame(struct recording *r, uint32_t node);
/* Names the first lane of a mask in the pending error. 1; 0: there is none, and the error is gone; -1: another error came first. */
int vmap_name_first(struct recording *r, qn_value mask);

/* ---- vmap_control.c ------------------------------------------------------------------------------------------------------------------------------ */

enum { LANES_GUARDED = ARRAY_MAX_RANK + 3 }; /* operands that a fallible op has at most */
/* Gives an op that may fail operands that cannot fail in lanes that are not at work. Their number; then safe[0..nin) are all
 * operands, owned. -1 with an error raised. */
QN_MUST_CHECK int vmap_guard(struct recording *r, op_id op, const qn_value *in, int nin, const op_attr *attr,
                             qn_value *safe);
/* Before an effect: its arguments become those of all lanes. False with an error raised, which nobody sees if no lane is at work. */
QN_MUST_CHECK bool vmap_effect(struct recording *r, const builtin_def *def, qn_value *args, int nargs);

void chains_leave(qn_vm *vm, const graph_body *b); /* the graph goes */
/* The anchor where entries of this function value hang; NULL for builtins and for chains of too many transforms, and with an
 * error raised when there is no memory for it. */
jit_anchor *anchor_of_value(qn_vm *vm, qn_value fn);

#endif
