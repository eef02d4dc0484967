/* The recorder's interface: how the interpreter and the builtins talk to the compiler. Recording is deferred execution:
 * while vm->rec is set, ops on arrays append nodes to a graph instead of running; shapes and dtypes are known, data is not.
 *
 * What the interpreter does
 *   calls        rec_call around every call of a user function whose anchor asks for it (anchor_wants)
 *   branches     rec_if for a traced condition, else rec_truth for the test of if, while, and, or, not
 *   loops        rec_loop before the first turns; else they run as usual and their ops are appended
 *   lanes        while rec_in_vmap(vm): rec_frame_enter .. rec_call_leave around the body of every user function, rec_frame_enter,
 *                rec_loop_test, rec_loop_next .. rec_loop_leave around loops; rec_try_catches before a handler runs
 *   try          rec_try_begin / rec_try_end around a body
 *   globals      rec_global when it reads a global while recording; captured values are inputs from the beginning
 *   places       rec_at before it evaluates an operation, so that nodes know where they come from
 *   host scalars an operation on traced bools, ints, floats (value_node != 0) goes through op_apply
 *   builtins     rec_builtin before one runs, rec_carries after it: effects wait for what is pending, and host numbers among the
 *                arguments are observed unless the parameter is data (`~x` in the signature: the builtin passes it to op_apply
 *                as an operand)
 *   literals     rec_const, rec_literal for arrays built from untraced host numbers
 * Everything else follows from array_force: who needs data, gets it.
 *
 * Node ids. A traced value's node id is recording base + graph node index; ids below vm->rec->base are stale: "not traced".
 */
#ifndef JIT_TRACE_REC_H
#define JIT_TRACE_REC_H

#include "jit/graph/graph.h"
#include "jit/run/door.h"
#include "lang/vm.h"

/* ---- ops ------------------------------------------------------------------------------------------------------------------- */

/* Are ops on arrays deferred? Then views are ops, too, and nothing is made or stored to where it lies. */
static inline bool op_deferred(const qn_vm *vm) { return __builtin_expect(vm->rec != NULL, 0); }
/* Has the array its data, so that a view of it can be made, and its elements be read, without an op? */
static inline bool op_at_hand(const qn_vm *vm, const qn_array *a) { return !op_deferred(vm) && !array_pending(a); }

/* ---- anchors --------------------------------------------------------------------------------------------------------------- */

/* Where hotness is counted and compiled specializations hang: a function's code or a loop header, plus its chain of transforms.
 * Embedded in the interpreter's code objects; zero-initialised; freed with anchor_close. */
typedef enum anchor_state {
  ANCHOR_COLD,
  ANCHOR_ACTIVE,
  ANCHOR_EAGER /* gave up: too many shapes */,
  ANCHOR_RESTING /* its calls are short and stay eager: the next `countdown` of them are not looked at */,
  ANCHOR_NEVER /* of calls inside one that --jit verify makes in the interpreter; closed */
} anchor_state;
enum { ANCHOR_STATES = ANCHOR_NEVER + 1 };
typedef struct jit_anchor {
  int32_t countdown;              /* calls with arrays until rec_call is asked; starts at 0 = "not set up yet" */
  uint8_t state;                  /* anchor_state */
  int64_t most;                   /* resting: a call on more elements than this is looked at all the same */
  const char *name;               /* of the function, for messages */
  span at;                        /* of its definition */
  void *entries;                  /* trace's */
  uint64_t passed[ANCHOR_STATES]; /* calls that were made without rec_call, by the state they met */
} jit_anchor;
void anchor_close(qn_vm *vm, jit_anchor *a);
/* Closes the anchors of transforms of the function code with this id (fn_shared), of which there are no functions any more. */
void anchors_forget(qn_vm *vm, uint64_t code);

/* The one test on the interpreter's fast path, made when at least one argument is an array or a container. Where it says no to an
 * anchor that rests, anchor_wakes is asked with the number of elements in the arguments that are arrays. */
static inline bool anchor_wants(qn_vm *vm, jit_anchor *a) {
  return vm->rec == NULL && a->state != ANCHOR_NEVER && (a->state == ANCHOR_ACTIVE || --a->countdown <= 0);
}
/* A call is made without rec_call, outside recordings. */
static inline void anchor_passed(jit_anchor *a) { a->passed[a->state]++; }
/* A call without arrays is made outside recordings; told where vm->counting. */
void anchor_passed_idle(qn_vm *vm, jit_anchor *a);

static inline bool anchor_wakes(const jit_anchor *a, int64_t elements) { return elements > a->most; }

/* A call the interpreter is about to make. `run` executes the body on the (possibly replaced) arguments. */
typedef struct rec_call_site {
  jit_anchor *anchor;
  qn_value fn;    /* the function value, borrowed; its captures are inputs. While recording rec_call puts a tracer with
                           traced captures here: `run` must take the function from the site */
  qn_value *args; /* on the value stack; owned by it; rec_call may replace them by traced tracers while recording */
  int nargs;
  bool rests;                 /* anchor_wakes is asked, so the anchor may rest */
  span at;                    /* of the call */
  qn_value (*run)(void *ctx); /* owned result or error value */
  void *ctx;
} rec_call_site;
/* Makes the call: replays a compiled specialization, or runs the body under the recorder, or just runs it. Owned result. */
QN_MUST_CHECK qn_value rec_call(qn_vm *vm, rec_call_site *site);

/* ---- what the interpreter tells a recording ------------------------------------------------------------------------------------
 * Each of these looks for itself whether something is recorded, and does nothing, or only what is asked of it anyway, where not. The
 * others below are for recordings only. */

/* The place of what is evaluated next; nested user calls push and pop the chain. */
void rec_set_place(qn_vm *vm, span at);
static inline void rec_at(qn_vm *vm, span at) {
  if (__builtin_expect(vm->rec != NULL, 0)) rec_set_place(vm, at);
}
/* A user function is about to run; false: nobody needs to know. */
void rec_push_call(qn_vm *vm, span call, jit_anchor *callee);
static inline bool rec_enter(qn_vm *vm, span call, jit_anchor *callee) {
  if (!vm->rec) return false;
  rec_push_call(vm, call, callee);
  return true;
}
void rec_pop_call(qn_vm *vm);
static inline void rec_leave(qn_vm *vm) {
  if (vm->rec) rec_pop_call(vm);
}
/* Is every call of a user function told by rec_enter, also one that has nothing to do with arrays? */
static inline bool rec_hears_calls(const qn_vm *vm) { return vm->rec != NULL; }

/* A global or captured value was read: returns what to use in its place (owned), so that arrays and numbers reached through it
 * are inputs of the graph. A global without a value, which lets a builtin be seen, is guarded too: unset comes back then. `cell`
 * identifies the global; its later rebinding bumps the epoch if it was guarded by value. */
typedef struct rec_cell {
  uint32_t watched; /* nonzero: some specialization guards this cell by value */
  uint32_t roots;   /* of patterns, which look at it: it has to stay */
} rec_cell;
QN_MUST_CHECK qn_value rec_root(qn_vm *vm, rec_cell *cell, qn_value *slot, qn_str *name);
static inline qn_value rec_global(qn_vm *vm, rec_cell *cell, qn_value *slot, qn_str *name) {
  return __builtin_expect(vm->rec != NULL, 0) ? rec_root(vm, cell, slot, name) : value_retain(*slot);
}
/* Must globals be read by rec_global? Else they may be read, and updated, where they lie. */
static inline bool rec_hears_globals(const qn_vm *vm) { return vm->rec != NULL; }
/* To be called when a global cell with cell->watched is rebound, also outside recordings. */
void rec_global_changed(qn_vm *vm, rec_cell *cell, qn_value old, qn_value now);

/* A traced host scalar steers the trace: remembers the guard and returns the plain concrete value. */
QN_MUST_CHECK qn_value rec_guard(qn_vm *vm, qn_value v);
static inline qn_value rec_observe(qn_vm *vm, qn_value v) { return value_node(v) ? rec_guard(vm, v) : v; }
/* A list or record with every traced number in it observed and plain. Owned; `_take` takes `v` over. */
QN_MUST_CHECK qn_value rec_guard_tree(qn_vm *vm, qn_value v);
static inline qn_value rec_observe_tree(qn_vm *vm, qn_value v) {
  return __builtin_expect(vm->rec != NULL, 0) ? rec_guard_tree(vm, v) : value_retain(v);
}
static inline qn_value rec_observe_take(qn_vm *vm, qn_value v) {
  if (__builtin_expect(vm->rec == NULL, 1)) return v;
  qn_value plain = rec_guard_tree(vm, v);
  value_release(vm, v);
  return plain;
}
/* Is it a host number that an op has made in a recording? What is computed with it goes through op_apply then. */
static inline bool rec_number(const qn_vm *vm, qn_value v) { return value_node(v) && vm->rec; }
/* A builtin has read such floats and gives `result`: false, with an error raised, if that holds floats which do not carry a derivative.
 * `reads`: it is declared to read data; then arrays that the recording made do carry one. */
QN_MUST_CHECK bool rec_carries(qn_vm *vm, const char *name, qn_value result, bool reads);
/* A host number of a weak dtype made of an array of rank 0 in the recording that is on: no look at the array, unless somebody observes the
 * number. Borrows; owned, or the error value. */
QN_MUST_CHECK qn_value rec_host_number(qn_vm *vm, qn_value x, qn_dtype dtype);
/* May branches and loops that are met now become nodes with regions? Then numbers made of arrays need not be known. */
bool arms_possible(const struct recording *r);
/* The test of a condition: 1, 0, or -1 with an error raised. Accepts bools and one-element bool arrays, raises E302 otherwise.
 * Also for use outside recordings. */
QN_MUST_CHECK int rec_truth(qn_vm *vm, qn_value v, span at);

/* A branch whose predicate is traced. Answers: the interpreter evaluates normally (after rec_truth), or both arms became a
 * region and the assigned slots and *result are set. */
typedef enum rec_answer {
  REC_NOT_YET,
  REC_DONE,
  REC_LEFT, /* the same, and nobody goes on behind the branch: the interpreter leaves as by a return of nil */
  REC_FAILED
} rec_answer;
/* Is it to be asked of this condition? */
static inline bool rec_may_branch(const qn_vm *vm, qn_value v) {
  return __builtin_expect(vm->rec != NULL, 0) && (value_is(v, TAG_ARRAY) || value_node(v));
}
/* How an arm or a body ends. */
typedef enum rec_exit { REC_VALUE, REC_BREAK, REC_CONTINUE, REC_RETURN, REC_ERROR } rec_exit;
typedef struct rec_arm {
  qn_value (*run)(void *ctx, rec_exit *how); /* owned: its value, or what it returns; nil for the others */
  void *ctx;
} rec_arm;
typedef struct rec_slots {
  qn_value **slots;
  int n;
} rec_slots; /* outer slots that the site may rebind */
/* `used`: somebody looks at the value. */
QN_MUST_CHECK rec_answer rec_if(qn_vm *vm, span at, qn_value predicate, rec_arm then, rec_arm otherwise,
                                rec_slots assigned, bool used, qn_value *result);
/* A loop whose next turn is about to begin. */
typedef struct rec_turns {
  qn_value (*test)(void *ctx, rec_exit *how);                  /* the condition, owned; not of a loop that counts */
  qn_value (*body)(void *ctx, qn_value number, rec_exit *how); /* a turn; `number` of a loop that counts, else unset */
  void *ctx;
  bool counts;
  qn_value first, end; /* of a loop that counts: host ints; the numbers run from `first` up, and end before `end` */
} rec_turns;
/* How often a loop is still to be asked about, and the captured turn in which it runs. Every loop that has begun ends. */
typedef struct rec_tries {
  uint32_t left;
  struct rec_turn *turn;
} rec_tries;
rec_tries rec_loop_tries(const qn_vm *vm);
void rec_loop_over(const qn_vm *vm, const rec_tries *tries);
static inline rec_tries rec_loop_begins(const qn_vm *vm) {
  return __builtin_expect(vm->rec != NULL, 0) ? rec_loop_tries(vm) : (rec_tries){0, NULL};
}
static inline void rec_loop_ends(const qn_vm *vm, const rec_tries *tries) {
  if (__builtin_expect(tries->turn != NULL, 0)) rec_loop_over(vm, tries);
}
/* The turns that are left, as rec_if: REC_DONE: they are taken, and the assigned slots are set. */
QN_MUST_CHECK rec_answer rec_loop(qn_vm *vm, span at, const rec_turns *turns, rec_slots assigned, rec_tries *tries);
/* Element i, a traced count that lies in it, of an array's first axis. Borrows; owned. */
QN_MUST_CHECK qn_value rec_row(qn_vm *vm, qn_value x, qn_value i);
/* An array built from untraced host numbers (an array literal): becomes a constant of the graph. */
QN_MUST_CHECK bool rec_constant(qn_vm *vm, qn_array *a);
static inline bool rec_const(qn_vm *vm, qn_array *a) { return vm->rec == NULL || rec_constant(vm, a); }
/* As rec_const, and gives the array, which is taken over, as a value. */
static inline qn_value rec_literal(qn_vm *vm, qn_array *a) {
  if (rec_const(vm, a)) return value_obj(TAG_ARRAY, a);
  value_release(vm, value_obj(TAG_ARRAY, a));
  return value_error();
}
/* Inside a try body ops run at once, so that errors appear where they belong. False: earlier pending work has failed; the error
 * is not the body's to catch. */
QN_MUST_CHECK bool rec_try_push(qn_vm *vm);
static inline bool rec_try_begin(qn_vm *vm) { return vm->rec == NULL || rec_try_push(vm); }
void rec_try_end(qn_vm *vm);
/* A builtin is about to run on these arguments, owned by the caller, one per parameter: traced numbers in them become plain unless the
 * parameter is data. Before an effect (a builtin that is no PURE, HIGHER or CHOICE one) pending fallible work finishes, and the
 * arguments become what the effect sees: all lanes of a vmap. *lossy: it reads floats that a gradient differentiates by; its result is
 * then asked rec_carries. */
QN_MUST_CHECK bool rec_builtin_call(qn_vm *vm, const builtin_def *def, const signature *sig, qn_value *args, span at,
                                    bool *lossy);
static inline bool rec_builtin(qn_vm *vm, const builtin_def *def, const signature *sig, qn_value *args, span at,
                               bool *lossy) {
  *lossy = false;
  return __builtin_expect(vm->rec == NULL, 1) || rec_builtin_call(vm, def, sig, args, at, lossy);
}

/* ---- lanes of a vmap in progress (vmap_control.c) ------------------------------------------------------------------------------------- */

bool rec_has_lanes(const qn_vm *vm);
static inline bool rec_in_vmap(const qn_vm *vm) { return __builtin_expect(vm->rec != NULL, 0) && rec_has_lanes(vm); }
/* Does this array or number differ from lane to lane? */
bool rec_is_lane(const qn_vm *vm, qn_value v);
/* A user function's body or a loop in progress, on the C stack of whoever runs it; lanes that leave early wait here. */
typedef struct rec_frame {
  struct recording *rec;
  struct rec_frame *outer;
  rec_slots slots; /* of a loop: what it may rebind */
  bool loop;
  bool parted;           /* lanes have left it for further out */
  qn_value entry;        /* the lanes at work when it began */
  qn_value gone, *left;  /* the lanes that have left it; the values they left with */
  qn_value again, *kept; /* of a loop: those that wait for the next turn */
} rec_frame;
void rec_frame_enter(qn_vm *vm, rec_frame *f, bool loop, rec_slots slots);
/* The function's result for all lanes, from that of those that came to its end. Takes over `v`, which may be the error value. */
QN_MUST_CHECK qn_value rec_call_leave(qn_vm *vm, rec_frame *f, qn_value v);
/* Does a loop with this condition go on? `truth`: of a condition that is the same in all lanes. 1; 0; -1 with an error raised; -2: it is
 * no condition. */
QN_MUST_CHECK int rec_loop_test(qn_vm *vm, rec_frame *f, qn_value condition, int truth);
/* After a body, which ended so; takes over what it returned. Does the loop go on? 1; 0: no lane does; -1: an error. */
QN_MUST_CHECK int rec_loop_next(qn_vm *vm, rec_frame *f, rec_exit how, qn_value v);
/* The loop is over; `ok`: without an error. As rec_if: REC_DONE, REC_LEFT or REC_FAILED. */
QN_MUST_CHECK rec_answer rec_loop_leave(qn_vm *vm, rec_frame *f, bool ok);
/* An exception of a host passes: the frame and those within it are no more. */
void rec_frame_drop(rec_frame *f);
/* May a handler see the pending error? Not if it is one of single lanes. */
bool rec_try_catches(const qn_vm *vm);
/* Is a condition that differs from lane to lane true in all that are at work? 1; 0, and from then on those where it is not are at
 * work: the caller raises; -1 with an error raised. */
QN_MUST_CHECK int rec_all_lanes(qn_vm *vm, qn_value condition);
/* The pending error is one of the lanes at work: names the first. */
void rec_blame_lanes(qn_vm *vm);

/* What became of all functions that were called with arrays, as text: compiled shapes with their kernels, what stays eager and why. All
 * of it, or what fits two screens; `file` is the script, whose lines are named without it there. Waits for plans that are being made;
 * false when that was interrupted (raised). */
QN_MUST_CHECK bool jit_report(qn_vm *vm, const char *file, bool all, text_buf *out);

/* ---- randomness (also outside recordings) ------------------------------------------------------------------------------------------ */

/* Takes the VM's next `n` draw numbers (at least 1) and gives the first; the key words made from the VM's seed. As operands for RANDOM ops:
 * while recording they are inputs of the graph, so that a replayed call takes new draw numbers. */
QN_MUST_CHECK qn_value rec_draws(qn_vm *vm, uint64_t n);
void rec_key(qn_vm *vm, qn_value *k0, qn_value *k1);

/* ---- life of a VM's compiler state ------------------------------------------------------------------------------------------------ */

QN_MUST_CHECK bool jit_open(qn_vm *vm);
/* Drops a recording in progress whose evaluation has been unwound. */
void rec_abandon(qn_vm *vm);
/* Cancels all that is being planned or compiled for the VM, which runs nothing: what needed it is recorded again, if it is called. */
void jit_cancel(qn_vm *vm);

/* ---- transforms and inspection, behind the builtins of the same names (stdlib binds arguments) ----------------------------------------- */

/* grad, value_and_grad ...: function values FN_TRANSFORM; captures[0] is the inner function, then the options below. Calling one
 * goes through transform_call (interp's call of an FN_TRANSFORM). */
typedef enum transform_kind {
  TRANSFORM_GRAD,
  TRANSFORM_VALUE_AND_GRAD,
  TRANSFORM_JIT,
  TRANSFORM_NOJIT,
  TRANSFORM_CHECKPOINT,
  TRANSFORM_VJP,
  TRANSFORM_JVP,
  TRANSFORM_CUSTOM_GRAD,
  TRANSFORM_VMAP,
  TRANSFORM_JACOBIAN,
  TRANSFORM_HESSIAN
} transform_kind;
typedef struct transform_def {
  transform_kind kind;
  const char *name;
  /* How a call is made where no plan serves it, and what of that is done in a recording (transform.c). */
  qn_value (*run)(void *ctx);
  qn_value (*work)(struct recording *r, const rec_call_site *site);
} transform_def;
extern const transform_def transform_defs[];
/* captures: GRAD, VALUE_AND_GRAD: fn, wrt (int or list of ints), aux (bool). JIT: fn, options record. NOJIT, CHECKPOINT: fn.
 * VJP: fn; its call gives (y, pullback). JVP: fn; called on the arguments and as many tangents. CUSTOM_GRAD: fn, backward.
 * VMAP: fn, in_axes, out_axes; and of those that jacobian makes the dtype that host floats come out in. JACOBIAN: fn, wrt. HESSIAN: the
 * function's gradient by wrt, wrt. */
QN_MUST_CHECK qn_value transform_new(qn_vm *vm, transform_kind kind, const qn_value *captures, int n);
QN_MUST_CHECK qn_value transform_call(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs,
                                      span at);

/* The function that takes the arguments of a transformed one: what is within all transforms that hand on what they are given, or the
 * function itself. */
const qn_fn *transform_within(qn_value fn);

/* The record of language.md: graphs, kernels, breaks, recompiles, guards, compile_ms, peak_bytes. Compiles if need be. */
QN_MUST_CHECK qn_value jit_explain(qn_vm *vm, qn_value fn, const qn_value *args, int nargs);
/* The graph of a call as a function value (FN_GRAPH); one from its text; one with nodes replaced: rule(node, operands) gives nil or
 * what takes the node's place. */
QN_MUST_CHECK qn_value jit_graph(qn_vm *vm, qn_value fn, const qn_value *args, int nargs);
/* As jit_graph, for a graph that is to be kept: of a call that gives all parameters. The last `ndefaults` arguments are those that a call of the graph may leave
 * out. An error says what ended the recording and how that is mended. */
QN_MUST_CHECK qn_value jit_export(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, int ndefaults);
/* A graph value as bytes: a description, and apart from it the elements of its arrays, each run from a multiple of GRAPH_RUN_ALIGN
 * on. The graph (and what else there is to own the runs) lives in `kept`. README.md says how the description is made. */
enum { GRAPH_RUN_ALIGN = 64 };
typedef struct graph_serialize {
  text_buf text;
  struct graph_run {
    const void *data;
    size_t bytes;
  } * runs;
  uint32_t n, cap;
  qn_value kept;
} graph_serialize;
/* False with an error raised: a part is a function of the program, memory is short. To be freed in any case. */
QN_MUST_CHECK bool jit_graph_serialize(qn_vm *vm, qn_value g, graph_serialize *out);
void graph_serialize_free(qn_vm *vm, graph_serialize *p);
/* And back; trusts nothing. The error value with `why` filled in: the bytes are damaged; else (`why` empty) with an error raised. */
typedef struct graph_serialized {
  const uint8_t *text, *data;
  size_t text_len, data_len;
} graph_serialized;
QN_MUST_CHECK qn_value jit_graph_deserialize(qn_vm *vm, const graph_serialized *from, char *why, size_t size);
QN_MUST_CHECK qn_value jit_graph_parse(qn_vm *vm, const qn_str *text);
QN_MUST_CHECK qn_value jit_graph_rewrite(qn_vm *vm, qn_value g, qn_value rule);
/* Fields of graphs; unset: there is none of that name. */
enum { GRAPH_FIELDS = 3 };
extern const char *const jit_graph_fields[GRAPH_FIELDS];
QN_MUST_CHECK qn_value jit_graph_field(qn_vm *vm, qn_value g, const char *name);
/* As hooks.parameters, of a graph. */
void jit_graph_parameters(const qn_fn *graph, void (*each)(void *ctx, const char *name, int position), void *ctx);
/* How a graph is called, as text: "(x: f32[8, 64], k: float = 2.0) -> f32[8]"; and, a line for each that steered it, what numbers among
 * its arguments must be. */
void jit_graph_signature(const qn_fn *graph, text_buf *out);
void jit_graph_conditions(const qn_fn *graph, text_buf *out);
static inline bool value_is_graph(qn_value v) { return value_is(v, TAG_FN) && value_fn(v)->head.flags == FN_GRAPH; }
QN_MUST_CHECK qn_value jit_code_text(qn_vm *vm, qn_value fn, const qn_value *args, int nargs); /* a string */

#endif
