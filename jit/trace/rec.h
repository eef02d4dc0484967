/* The recorder's interface: how the interpreter and the builtins talk to the compiler. Recording is deferred execution:
 * while vm->rec is set, ops on arrays append nodes to a graph instead of running; shapes and dtypes are known, data is not.
 *
 * What the interpreter does
 *   calls        rec_call around every call of a user function whose anchor asks for it (anchor_wants)
 *   branches     rec_if for a traced condition, else rec_truth for the test of if, while, and, or, not; rec_tail before a statement
 *                that may return, where the function ends with what follows
 *   loops        rec_loop before the first turns, then rec_unroll if something breaks or continues; else they run as usual and their ops are
 *                appended
 *   gradients    rec_part_turn, rec_part_arm around turns and arms that are not captured
 *   lanes        while rec_in_vmap(vm): rec_frame_enter .. rec_call_leave around the body of every user function, rec_frame_enter,
 *                rec_loop_test, rec_loop_next .. rec_loop_leave around loops; rec_try_lanes in place of a try
 *   try          rec_try_begin / rec_try_end around a body
 *   globals      rec_global when it reads a global while recording; captured values are inputs from the beginning
 *   places       rec_at before it evaluates an operation, so that nodes know where they come from
 *   host scalars an operation on traced bools, ints, floats (value_node != 0) goes through op_apply
 *   builtins     rec_builtin before one runs, rec_told after it: effects wait for what is pending, taps become steps of the recording
 *                (taps.c), and host numbers among the arguments are observed unless the parameter is data (`~x` in the signature: the
 *                builtin passes it to op_apply as an operand)
 *   literals     rec_const, rec_literal for arrays built from untraced host numbers
 * Everything else follows from array_force: who needs data, gets it.
 *
 * Node ids. A traced value's node id is recording base + graph node index; ids below vm->rec->base are stale: "not traced".
 */
#ifndef JIT_TRACE_REC_H
#define JIT_TRACE_REC_H

#include "jit/graph/graph.h"
#include "jit/run/door.h"
#include "lang/builtin.h"
#include "lang/vm.h"

/* ---- ops ------------------------------------------------------------------------------------------------------------------- */

/* Are ops on arrays deferred, because a call is being recorded? Then a view must be an op, too, and nothing may be written to an array in
 * place. */
static inline bool op_deferred(const qn_vm *vm) { return __builtin_expect(vm->rec != NULL, 0); }
/* Does the array have its data, and are ops not deferred? Then a view of it can be made, and its elements read, without an op. */
static inline bool op_at_hand(const qn_vm *vm, const qn_array *a) { return !op_deferred(vm) && !array_pending(a); }

/* While sizes are at hand that may be symbols of the recording in progress, no limit ends it: they are looked at when it is let go. rec_let_go
 * gives `ok`, or false with an error raised if ending the recording has failed. NULL: none is on. */
struct recording *rec_begin_hold(qn_vm *vm);
static inline struct recording *rec_hold(qn_vm *vm) {
  return __builtin_expect(vm->rec != NULL, 0) ? rec_begin_hold(vm) : NULL;
}
QN_MUST_CHECK bool rec_let_go(qn_vm *vm, struct recording *held, bool ok);

/* ---- anchors --------------------------------------------------------------------------------------------------------------- */

/* What the signature of a function says of the sizes of an argument, or of a part of one: of an array's axes, of a list's items, or of a record's
 * items with the names `fields`. */
typedef struct size_names {
  uint32_t n;           /* how many axes or items */
  uint32_t rest;        /* axes: which of them stands for any number of axes; n: none */
  const uint32_t *axes; /* numbers of names + 1, SIZE_COMPUTED, or 0: a plain size, or one that is not told */
  const struct size_names *const *items; /* NULL where nothing of one is named */
  qn_str *const *fields;
} size_names;
enum { SIZE_COMPUTED = INT32_MAX /* an expression of named sizes */ };
/* The named sizes of a function's signature, int parameters that are sizes among them. These may vary, and are symbolic from the first recording on. */
typedef struct named_sizes {
  const size_names *const *args; /* by parameter; NULL where nothing is named */
  const char *const *names;
  uint32_t nargs, nnames;
} named_sizes;

/* What counts how hot a function is, and where its specializations hang. One lies in the code object of each function of the program,
 * zeroed at first and freed by anchor_close; transforms and graphs have theirs (anchors.h). */
typedef enum anchor_state {
  ANCHOR_COLD,
  ANCHOR_ACTIVE,
  ANCHOR_EAGER /* given up: all calls are eager from now on */,
  ANCHOR_RESTING /* calls are short and stay eager: the next `countdown` of them are not looked at */,
  /* never compiled: during a call that --jit verify makes in the interpreter, and once the anchor is closed */
  ANCHOR_NEVER
} anchor_state;
enum { ANCHOR_STATES = ANCHOR_NEVER + 1 };
typedef struct jit_anchor {
  int32_t countdown; /* how many more calls with arrays pass before rec_call is asked; 0 at first: not set up yet */
  uint8_t state;     /* anchor_state */
  bool
      composite; /* in graphs its calls are seen as one: it is a function of the library that has a name, or marked (composite) */
  bool loop;    /* its calls are turns of a loop */
  int64_t most; /* while it rests: a call on more elements than this is looked at all the same */
  /* A bit for each of the first parameters that the body only goes over, counts, takes items of, stores items in or adds items to (STACKABLE_MAX). */
  uint32_t stackable;
  bool trees; /* lists in records among the arguments may be stacked, too */
  uint8_t
      rest; /* the number of the parameter that collects further arguments + 1, if it is one of these; 0: there is none */
  const named_sizes *sizes;       /* NULL: its signature names none */
  const char *name;               /* the function's, for messages */
  span at;                        /* where the function is defined */
  void *entries;                  /* an anchor_specializations of jit/trace, or NULL */
  uint64_t passed[ANCHOR_STATES]; /* how many calls were made without rec_call, by the state that they met */
} jit_anchor;
void anchor_close(qn_vm *vm, jit_anchor *a);
/* Closes the anchors of transforms of the function code with this id (fn_shared); no function has that code any more. */
void anchors_forget(qn_vm *vm, uint64_t code);

/* Is rec_call to make this call? The one test on the interpreter's fast path, made if an argument is an array or a container. If it says no
 * and the anchor rests, anchor_wakes is asked, too, with the number of elements in the arguments. */
static inline bool anchor_wants(qn_vm *vm, jit_anchor *a) {
  return vm->rec == NULL && a->state != ANCHOR_NEVER && (a->state == ANCHOR_ACTIVE || --a->countdown <= 0);
}
/* Does explain ask for this call, which has no arrays, and makes none that are known of? Then rec_call is to make it all the same. */
static inline bool rec_asked_for(qn_vm *vm, const jit_anchor *a) {
  if (__builtin_expect(vm->asked.about != a, 1) || vm->rec != NULL || a->state != ANCHOR_ACTIVE) return false;
  vm->asked.numbers = true;
  return true;
}
/* A call is made without rec_call, outside recordings: counts it. */
static inline void anchor_passed(jit_anchor *a) { a->passed[a->state]++; }
/* A call without arrays is made, outside recordings: counts it. Needed only if vm->counting. */
void anchor_passed_idle(qn_vm *vm, jit_anchor *a);

static inline bool anchor_wakes(const jit_anchor *a, int64_t elements) { return elements > a->most; }

/* Variables of the interpreter; for a branch or loop those outside of it that it may rebind. */
typedef struct rec_slots {
  qn_value **slots;
  int n;
} rec_slots;

/* When sizes of a call's arguments become symbolic: after their first change, at the first recording, or never. */
typedef enum rec_when { REC_CHANGED, REC_AT_ONCE, REC_NEVER } rec_when;

/* What the option `mode` of jit asks for: plans that have to earn their place; that are used as soon as they have their code, whatever eager
 * calls take; or of which the fastest of several is looked for (calls.c). */
typedef enum rec_mode { REC_EARN, REC_AT_HAND, REC_TUNED } rec_mode;

/* A call that the interpreter is about to make. `run` executes the body on the arguments, which may have been replaced by then. */
typedef struct rec_call_site {
  jit_anchor *anchor;
  /* the function value, borrowed. While recording, rec_call puts a tracer with traced captures here: `run` must take the function from
   * the site */
  qn_value fn;
  /* the arguments, on the value stack, which owns them; while recording, rec_call replaces them by tracers */
  qn_value *args;
  int nargs;
  /* What messages call argument i (borrowed, kept by the anchor's owner; NULL: nothing), given `ctx`. NULL: as the parameters of `fn`. */
  qn_str *(*name)(const void *ctx, int i);
  /* Globals that the call finds and leaves among its arguments and results: no reads of the recording. */
  rec_slots cells;
  const void *home; /* if `fn` is no function: the unit that the code belongs to (fn_shared.home) */
  uint8_t symbolic; /* rec_when */
  uint8_t mode;     /* rec_mode */
  /* So many globals stand behind `cells` to whose lists the call adds items, which are a part of its result; it does nothing else with them, and a
   * recording that meets one elsewhere ends. */
  uint8_t ngrown;
  bool rests;                 /* whoever makes the call asks anchor_wakes, so the anchor may rest */
  span at;                    /* the place of the call */
  qn_value (*run)(void *ctx); /* gives an owned result or the error value */
  void *ctx;
  struct stacked_args *stacked; /* while rec_call makes the call: what it has put in place of lists; else NULL */
} rec_call_site;
/* Makes the call: by a compiled specialization, or with the recorder on, or simply in the interpreter. Owned result, or the error value. */
QN_MUST_CHECK qn_value rec_call(qn_vm *vm, rec_call_site *site);

/* ---- what the interpreter tells a recording ------------------------------------------------------------------------------------
 * These may be called at any time: each looks for itself whether a recording is on. Without one it does only its ordinary work (rec_global
 * reads the variable). */

/* The place of what is evaluated next, for the nodes that it makes. Calls of functions of the program are pushed and popped, so that nodes
 * know their callers, too. */
void rec_set_place(qn_vm *vm, span at);
static inline void rec_at(qn_vm *vm, span at) {
  if (__builtin_expect(vm->rec != NULL, 0)) rec_set_place(vm, at);
}
/* The place noted last. */
span rec_here(const qn_vm *vm);
void rec_push_call(qn_vm *vm, span call, jit_anchor *callee);
/* A function of the program is about to run. False if no recording is on: then there is nothing to pop afterwards. */
static inline bool rec_enter(qn_vm *vm, span call, jit_anchor *callee) {
  if (!vm->rec) return false;
  rec_push_call(vm, call, callee);
  return true;
}
void rec_pop_call(qn_vm *vm);
static inline void rec_leave(qn_vm *vm) {
  if (vm->rec) rec_pop_call(vm);
}
/* `what` is about to happen for the one time that it does. False with an error raised where the program may not come to it: in an arm of a branch or a
 * loop, of which no more is captured then, and where pending work fails, which is done first. */
QN_MUST_CHECK bool rec_once(qn_vm *vm, const char *what);
/* `what` must happen in order and cannot be in a graph: ends a capture in progress. False with an error raised if pending work has failed. */
QN_MUST_CHECK bool rec_effect(qn_vm *vm, const char *what);
/* Must every call of a function of the program be announced by rec_enter, also if it has nothing to do with arrays? */
static inline bool rec_hears_calls(const qn_vm *vm) { return vm->rec != NULL; }

/* A global was read: gives what to use in place of its value (owned), so that arrays and numbers reached through it become inputs of the
 * graph. A global without a value lets a builtin be seen; this is guarded, too, and unset comes back. `cell` identifies the global: if it
 * is guarded by value, rebinding it later moves the epoch on. */
typedef struct rec_cell {
  uint32_t watched; /* nonzero: some specialization guards the cell by value */
  uint32_t roots;   /* how many pattern roots point to it: the cell must not be freed */
} rec_cell;
QN_MUST_CHECK qn_value rec_root(qn_vm *vm, rec_cell *cell, qn_value *slot, qn_str *name);
static inline qn_value rec_global(qn_vm *vm, rec_cell *cell, qn_value *slot, qn_str *name) {
  return __builtin_expect(vm->rec != NULL, 0) ? rec_root(vm, cell, slot, name) : value_retain(*slot);
}
/* Must globals be read by rec_global? If not, they may be read, and updated, directly. */
static inline bool rec_hears_globals(const qn_vm *vm) { return vm->rec != NULL; }
/* To be called when a global with cell->watched is rebound, also outside recordings. */
void rec_global_changed(qn_vm *vm, rec_cell *cell, qn_value old, qn_value now);

/* ---- sizes --------------------------------------------------------------------------------------------------------------------
 *
 * In a recording the sizes of an array may be symbolic: they may differ in later calls (jit/trace/sizes.c). The array's header has those of
 * this call, so code that may run in a recording reads sizes in one of these ways. Symbolic sizes are negative numbers (qn_dim), which ops
 * take in place of sizes; rec_dims has the table for computing with them (jit/graph/dim.h), NULL if all sizes are plain numbers. */

/* Are there symbolic sizes in the recording in progress? */
bool rec_symbolic(const qn_vm *vm);
struct dim_table *rec_dims(qn_vm *vm);
/* The sizes of an array as ops take them. */
void rec_read_sizes(qn_vm *vm, qn_value x, int64_t *shape);
static inline void rec_sizes(qn_vm *vm, qn_value x, int64_t *shape) {
  const qn_array *a = value_array(x);
  if (__builtin_expect(vm->rec != NULL, 0))
    rec_read_sizes(vm, x, shape);
  else
    for (int k = 0; k < a->rank; k++) shape[k] = a->shape[k];
}
/* Two shapes of `rank` axes are not written alike: are they different in all turns? Inside gradients that must be known. False with an error raised. */
QN_MUST_CHECK bool rec_shape_differs(qn_vm *vm, int rank, const int64_t *a, const int64_t *b);
/* As rec_sizes, for code that cannot deal with sizes that are numbers of a captured loop's turn: an arm in which the array has such a size is
 * given up. All symbolic sizes are 2 or more then. False with an error raised. */
QN_MUST_CHECK bool rec_sizes_of_call(qn_vm *vm, qn_value x, int64_t *shape);
/* A size that is about to decide what the host does becomes a guard; of a list or record those of all arrays in it. False with an error
 * raised. */
QN_MUST_CHECK bool rec_look_at_sizes(qn_vm *vm, qn_value v);
static inline QN_MUST_CHECK bool rec_sizes_seen(qn_vm *vm, qn_value v) {
  return __builtin_expect(vm->rec == NULL, 1) || !value_is_data(v) || !rec_symbolic(vm) || rec_look_at_sizes(vm, v);
}
/* As rec_sizes_seen, where only the number of items decides: of an array the size of axis 0; nothing is asked of a list's items. */
QN_MUST_CHECK bool rec_look_at_length(qn_vm *vm, qn_value v);
static inline QN_MUST_CHECK bool rec_length_seen(qn_vm *vm, qn_value v) {
  return __builtin_expect(vm->rec == NULL, 1) || !value_is(v, TAG_ARRAY) || !rec_symbolic(vm) ||
         rec_look_at_length(vm, v);
}
/* A size as a host number for the program, traced if it is symbolic. The error value if memory is short. */
QN_MUST_CHECK qn_value rec_size_number_of(qn_vm *vm, int64_t size);
static inline qn_value rec_size_number(qn_vm *vm, int64_t size) {
  return __builtin_expect(size < 0, 0) ? rec_size_number_of(vm, size) : value_int(size);
}
/* The size of axis 0 of an array as such a number. */
qn_value rec_length(qn_vm *vm, qn_value x);
/* A host int as a size for ops: symbolic if it is computed from sizes, else it is observed. No size is a number below 0, so that *size is
 * symbolic where it is not `v`. False with an error raised. */
QN_MUST_CHECK bool rec_size_of(qn_vm *vm, qn_value v, int64_t *size);
static inline QN_MUST_CHECK bool rec_size(qn_vm *vm, qn_value v, int64_t *size) {
  *size = v.u.i;
  return !value_node(v) || rec_size_of(vm, v, size);
}
/* As rec_size of *v, a traced float that is a whole number, or infinite, or none: whatever is below 1 is 0. Where *size is no symbol *v is observed. */
QN_MUST_CHECK bool rec_whole_size(qn_vm *vm, qn_value *v, int64_t *size);
/* A host int as a bound of a slice of an array: *symbolic if it is made of sizes, or of numbers of a captured loop's turn; then *bound is a
 * size, else the number, which is observed. False with an error raised. */
QN_MUST_CHECK bool rec_bound(qn_vm *vm, qn_value v, bool *symbolic, int64_t *bound);
/* Is it an array that can be such a bound without being read now? */
bool rec_bound_waits(const qn_vm *vm, qn_value v);
/* Is a <= b, for two sizes or bounds? True: in each call like this one, by what is known or as a guard. False: perhaps not. */
bool rec_size_ordered(qn_vm *vm, int64_t a, int64_t b);
/* As rec_size_ordered, where there is another way if it is not so: no size is guarded by value to know it. */
bool rec_size_certain(qn_vm *vm, int64_t a, int64_t b);
/* As rec_size_ordered, where the answer decides what is done: it becomes a guard either way. 1, 0, -1 with an error raised. */
QN_MUST_CHECK int rec_size_at_most(qn_vm *vm, int64_t a, int64_t b);
/* Is a size made of numbers of a captured loop's turn? */
bool rec_is_number(const qn_vm *vm, int64_t size);
/* Is a size made of numbers that data decide, outside of arms? (They may be 0, where a size of arguments has a recording of its own for that.) */
bool rec_is_data_size(const qn_vm *vm, int64_t size);
/* The arm in progress depends on a size in a manner that cannot be captured: it is given up. Returns false with an error raised. */
bool rec_unknown_size(qn_vm *vm);
/* `v` is the result of an op of an array and a number that is a size: notes that this number fits any dtype that such a result has. */
void rec_size_fits(qn_vm *vm, qn_value v);
/* Are two lists of ints, some of them symbolic sizes, equal? What decides that becomes a guard. 1, 0, -1 with an error raised; -2: they are
 * something else. */
QN_MUST_CHECK int rec_lists_equal(qn_vm *vm, qn_value a, qn_value b);
/* Are two sizes equal? If that depends on the call, it becomes a guard. */
int rec_sizes_equal(qn_vm *vm, int64_t a, int64_t b);
/* A size in this call; rec_size_now makes it a guard. */
int64_t rec_size_now(qn_vm *vm, int64_t size);
int64_t rec_size_hint(const qn_vm *vm, int64_t size);

/* A graph leaves the recording in progress, or is looked at: the sizes that it has in this call are guarded. */
void rec_graph_seen(qn_vm *vm, qn_value graph);

/* The value of a traced host number decides what the program does: makes it a guard, and gives the plain number. Owned, or the error value. */
QN_MUST_CHECK qn_value rec_guard(qn_vm *vm, qn_value v);
static inline qn_value rec_observe(qn_vm *vm, qn_value v) { return value_node(v) ? rec_guard(vm, v) : v; }
/* A copy of a list or record in which every traced number is guarded and plain. Owned, or the error value; `_take` takes `v` over. */
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
/* ---- texts that wait ----
 * While a call is captured, a text that is made of its arrays and numbers is not looked at, but kept as what makes it: a tap or the result of
 * the call makes it anew in each replay. It has the bytes that it has in this call (in an arm none), and whoever looks at them must ask
 * rec_look first, since that guards what it is made of, or ends the capture. */

/* Are there values in v (borrowed) of which a text is to wait? 1, 0, or -1 with an error raised. */
int rec_text_waits(qn_vm *vm, qn_value v);
/* v (borrowed) with the data that it has in this call, owned, to make the text of; unset in an arm, where there is none; or the error
 * value. */
QN_MUST_CHECK qn_value rec_text_data(qn_vm *vm, qn_value v);
/* A text could not be made of what rec_text_data gave: the error is one of this call's data, so the capture ends. The pending error stays, unless there is
 * another that is not for a handler. */
void rec_text_failed(qn_vm *vm);
/* In an arm: a text is to wait for v, which format_part will be given with `how`. Can it be made of such a value? Else the arm is not captured; false with an
 * error raised. */
QN_MUST_CHECK bool rec_text_fits(qn_vm *vm, qn_value v, qn_value how);
/* *text (owned) was made by `def` of the items of this list (borrowed), or, if that is NULL, of these as format_part takes them, in pairs.
 * Notes that it waits; *text may become a copy. False with an error raised. */
QN_MUST_CHECK bool rec_text_made(qn_vm *vm, qn_value *text, const builtin_def *def, qn_value parts);
/* Does v wait in the recording in progress? */
bool rec_text_is(const qn_vm *vm, qn_value v);
static inline bool rec_waits(const qn_vm *vm, qn_value v) {
  return __builtin_expect(vm->rec != NULL, 0) && value_is(v, TAG_STR) && rec_text_is(vm, v);
}
/* The bytes of a text that waits are about to be looked at: if it was made of host numbers that a guard can be asked for, and of these alone, they
 * are guarded, and it waits no more; else the capture ends. False with an error raised. */
QN_MUST_CHECK bool rec_text_look(qn_vm *vm, qn_value v);
static inline bool rec_look(qn_vm *vm, qn_value v) { return !rec_waits(vm, v) || rec_text_look(vm, v); }

/* Is it a host number that an op has made in a recording? Then computing with it must go through op_apply. */
static inline bool rec_number(const qn_vm *vm, qn_value v) { return value_node(v) && vm->rec; }
/* Must an index that is such a number stay one? Not where a capture has ended that gave numbers of its call nodes: there it is as good as plain. */
bool rec_index_stays(const qn_vm *vm, qn_value v);
/* Is the value of an index, in a recording, known for all that may come of it? So it is within gradients once a capture has ended. */
bool rec_index_known(const qn_vm *vm, qn_value v);
/* Makes a host number of a weak dtype from an array of rank 0 (borrowed) of the recording in progress. The array is only read if the number
 * is observed. Owned, or the error value. */
QN_MUST_CHECK qn_value rec_host_number(qn_vm *vm, qn_value x, qn_dtype dtype);
/* Can branches and loops be captured as nodes with regions now? */
bool arms_possible(const struct recording *r);
/* Which of them: derivatives of derivatives are known of loops alone, and not of those within a loop's body. */
bool branches_possible(const struct recording *r);
bool loops_possible(const struct recording *r);
/* Can a function that calls itself be recorded with loops in place of these calls? */
bool rec_recursion(const qn_vm *vm);
/* Is an arm or a turn being recorded? */
bool rec_in_arm(const qn_vm *vm);
/* Is a derivative in progress? Then such functions are loops whether or not anything is captured, since that is the order of sums; but not where only
 * some lanes may fail. */
bool rec_derives(const qn_vm *vm);
/* Such a function has failed: the call that is recorded is made again, so that the error has the trace that it has. False: it is not, since nothing is
 * captured any more. */
bool rec_recursion_failed(qn_vm *vm);
/* Counts what cannot be done once more: effects, random numbers that were drawn. */
uint32_t rec_effects(const qn_vm *vm);
/* Such a function begins: what was recorded before is computed, so that an error of it is none of the function's. False with that raised. */
QN_MUST_CHECK bool rec_recursion_begins(qn_vm *vm);
/* Such a function has failed, when there had been so many effects. True: there were no more, and the error is forgotten, so that its calls can be made. */
QN_MUST_CHECK bool rec_recursion_again(qn_vm *vm, uint32_t effects);
/* Can the body of a try be captured? */
bool try_possible(const struct recording *r);
/* Need numbers that are made of arrays not be known until they are observed, since a call is being captured? */
bool rec_numbers_wait(const struct recording *r);
/* The truth of a condition: 1, 0, or -1 with an error raised. Accepts bools and bool arrays of one element, else E302. Works outside
 * recordings, too. */
QN_MUST_CHECK int rec_truth(qn_vm *vm, qn_value v, span at);

/* What the recorder answers about a branch or loop on a traced condition. */
typedef enum rec_answer {
  REC_NOT_YET,
  REC_DONE,
  /* done, too, but nothing goes on behind the branch: the interpreter leaves the function as by returning nil */
  REC_LEFT,
  REC_FAILED,
  /* the branch goes this way, which the interpreter takes as usual: where it goes the other way, the call is made again without a recording */
  REC_THEN,
  REC_OTHERWISE
} rec_answer;
/* Must rec_if be asked about this condition? */
static inline bool rec_may_branch(const qn_vm *vm, qn_value v) {
  return __builtin_expect(vm->rec != NULL, 0) && (value_is(v, TAG_ARRAY) || value_node(v));
}
/* How an arm or a loop's body has ended. */
typedef enum rec_exit { REC_VALUE, REC_BREAK, REC_CONTINUE, REC_RETURN, REC_ERROR } rec_exit;
typedef struct rec_arm {
  /* gives, owned, the value of the arm, or what it returns; nil for other ends */
  qn_value (*run)(void *ctx, rec_exit *how);
  void *ctx;
} rec_arm;
/* A branch as the recorder sees it. */
typedef struct rec_branch {
  span at;
  rec_arm then, otherwise;
  rec_slots assigned;
  bool used;   /* something uses its value */
  bool asks;   /* whoever offers it can be told which way it goes */
  bool leaves; /* something in it may break, continue or return */
  bool last;   /* the function ends with it: its value is that of the function, and nobody reads variables behind it */
} rec_branch;
/* Offers a branch to the recorder. REC_NOT_YET: the interpreter evaluates it as usual. REC_DONE: both arms have become part of the graph,
 * and the variables and *result are set. */
QN_MUST_CHECK rec_answer rec_if(qn_vm *vm, const rec_branch *branch, qn_value predicate, qn_value *result);
/* A condition (borrowed) must be true where the call that is captured goes on; where it is not, the call is made again without a recording.
 * False: this is not possible, and the condition is to be tested. True, perhaps with an error raised. */
bool rec_expect(qn_vm *vm, qn_value condition);
static inline bool rec_expected(qn_vm *vm, qn_value condition) {
  return rec_may_branch(vm, condition) && rec_expect(vm, condition);
}
/* Offers a and b (an arm of the branch gives b, the other one what `a` decides), or a or b. If finding out what b is costs little, both are
 * computed. Answers as rec_if. */
QN_MUST_CHECK rec_answer rec_logic(qn_vm *vm, const rec_branch *branch, qn_value a, bool is_or, qn_value *result);
/* Must rec_tail be asked? */
static inline bool rec_may_leave(const qn_vm *vm) { return vm->rec != NULL; }
/* Offers the rest of a function to the recorder, from a statement on that may return. `assigned`: what it may rebind. REC_NOT_YET: nothing has
 * happened, and the interpreter goes on as usual. REC_DONE: it has become part of the graph, and *result is what the function returns. */
QN_MUST_CHECK rec_answer rec_tail(qn_vm *vm, span at, rec_arm tail, rec_slots assigned, qn_value *result);
/* Behind each statement of a block: ends the recording in progress if it has more nodes than jit.nodes. False with an error raised. */
QN_MUST_CHECK bool rec_end_long(qn_vm *vm);
/* A block of several statements in progress, on the stack of whoever runs it, from rec_block_begin to rec_block_end. */
typedef struct rec_block {
  struct rec_block *outer;
  struct recording *base;
  uint8_t *fork; /* of the statement in progress: one of these: */
  /* May something behind the block read the variable? */
  bool (*keeps)(const struct rec_block *b, const qn_value *variable);
  const void *code;
  qn_value *variables;
  vm_owned held;
} rec_block;
enum {
  FORK_UNKNOWN,   /* nothing is known */
  FORK_TRY,       /* branches in it do not agree: it is to be offered to rec_fork, alone or with what follows */
  FORK_WITHIN,    /* that helps at most where it may be chosen what variables are behind it (rec_chooses) */
  FORK_NOT,       /* that does not help */
  FORK_PLACES = 2 /* what is known is so outside of gradients, or inside (rec_fork_place) */
};
/* Which of FORK_PLACES the recorder is in. */
int rec_fork_place(const qn_vm *vm);
/* Has what was recorded in ways come to so much that no further parts are captured so? Then it is not known of a part whether that helps. */
bool rec_forks_enough(const qn_vm *vm);
void rec_block_begin(qn_vm *vm, rec_block *b);
void rec_block_end(qn_vm *vm, rec_block *b);
/* May what follows differ in what variables are: since it stands in a part that is captured in several ways, each of which may take one of several kinds
 * of values, or in a call whose results may differ? */
bool rec_chooses(const qn_vm *vm);
/* Some statements of a block. */
typedef struct rec_section {
  span at;
  rec_arm run; /* makes it. At its end variables that nothing behind it reads hold nil */
  /* If it has several steps: `run` makes step `number`, which there is, from now on. Is that the last one? NULL: it is one step. If what variables are is
   * one again behind a step, the part may end there: behind REC_DONE the step that was asked for last is the one with which it has ended. */
  bool (*step)(void *ctx, uint32_t number);
  rec_slots assigned;
  bool used; /* something uses its value */
  bool last; /* the function ends with it: it may return, and nobody reads variables behind it */
} rec_section;
/* Offers a part in which branches on data do not agree. REC_NOT_YET: nothing has happened. REC_DONE: it has become part of the graph, in all its ways;
 * the variables and *result (what the function returns, if that ends) are set. REC_FAILED with an error raised. */
QN_MUST_CHECK rec_answer rec_fork(qn_vm *vm, const rec_section *part, qn_value *result);
/* How turns of a loop have ended that are captured by themselves, without what follows: as bools and a value that depend on data perhaps. */
typedef struct rec_ends {
  qn_value left;     /* has one broken the loop, or returned? */
  qn_value returns;  /* has one returned? */
  qn_value goes;     /* the condition of the next one (rec_turns.tests); true of a loop without one */
  qn_value returned; /* owned: what is returned. If nothing is, nil, or zeros in its structure */
} rec_ends;
/* What a turn that is captured by itself adds to a list: for each of the first items whether it has been added, and it. */
enum { ADDED_MOST = 8 };
typedef struct rec_added {
  qn_value *list;                                /* the variable, to which nothing else is done */
  qn_value flags[ADDED_MOST], items[ADDED_MOST]; /* owned; false and unset before the turn */
} rec_added;
/* A loop, of which the next turn is about to begin, as the recorder sees it. */
typedef struct rec_turns {
  qn_value (*test)(void *ctx, rec_exit *how); /* evaluates the condition (owned); unused in a loop that counts */
  /* makes a turn; `number` is that of the turn in a loop that counts, else unset */
  qn_value (*body)(void *ctx, qn_value number, rec_exit *how);
  void *ctx;
  bool counts;
  bool
      tests; /* it counts, and behind each turn the condition of the next one is evaluated, which is true before the first */
  rec_ends *ends;   /* to be set; or NULL: a return leaves what is around the loop */
  rec_added *added; /* for rec_turn: n lists; what they hold is replaced */
  uint32_t nadded;
  bool breaks; /* something in its body may break or continue it */
  bool whole;  /* it is captured as it is, or not at all: neither unrolled nor split by what variables are (states.c) */
  uint64_t grown;  /* a bit for each of the first variables: the turns only add items to it at the end, by rec_append */
  uint64_t stores; /* and for each of these, if it may hold a counted list: the turns store items in it */
  uint64_t stacks; /* and for each of these that may hold a stacked list behind the loop */
  /* of a loop that counts: host ints, which may be traced; the numbers run from `first` up, and end before `end`; of another one `first` is the
   * condition as it was evaluated for the next turn; unset: it is not known */
  qn_value first, end;
} rec_turns;
/* How often a loop is still to be asked about, and the captured way in which it runs. Every loop that has begun ends. */
typedef struct rec_tries {
  uint32_t left;
  bool apart; /* is it to be offered to rec_unroll, too? */
  struct rec_way *way;
  struct recording
      *parts; /* inside a gradient: the recording in which variables are parted (rec_part_turn); else NULL */
  uint32_t from,
      parted; /* for rec_part_turn: the next node's id when the turn began; where its nodes begin in recording.parted */
  uint32_t rest; /* recording.rest as the loop began */
  uint32_t taps; /* how many effects were noted before the condition was evaluated (rec_loop_tests) */
} rec_tries;
rec_tries rec_loop_tries(const qn_vm *vm);
/* To be called before the condition of a loop is evaluated that may be captured: such a loop evaluates it once more, and has none of its
 * effects. */
void rec_note_taps(const qn_vm *vm, rec_tries *tries);
static inline void rec_loop_tests(const qn_vm *vm, rec_tries *tries) {
  if (__builtin_expect(tries->left, 0)) rec_note_taps(vm, tries);
}
void rec_loop_over(const qn_vm *vm, const rec_tries *tries);
static inline rec_tries rec_loop_begins(const qn_vm *vm) {
  return __builtin_expect(vm->rec != NULL, 0) ? rec_loop_tries(vm) : (rec_tries){.left = 0};
}
static inline void rec_loop_ends(const qn_vm *vm, const rec_tries *tries) {
  if (__builtin_expect(tries->way != NULL || tries->parts != NULL, 0)) rec_loop_over(vm, tries);
}
/* To be called before the first turn of a loop and after each, if tries->parts is set, with the variables that it may rebind: gives copies to
 * those that share a value (parted.c). `grown`: as rec_turns has it. False with an error raised. */
QN_MUST_CHECK bool rec_part_turn(qn_vm *vm, rec_slots slots, uint64_t grown, rec_tries *tries);
/* To be asked about the condition (borrowed) of a branch at this place, of which the interpreter runs one arm: if a gradient is in progress,
 * what is not 0 is for rec_part_arm behind the arm, with the variables that the branch may rebind and its value (owned, replaced). */
uint32_t rec_part_from(qn_vm *vm, qn_value predicate, span at);
/* Such a branch may leave the turn that it stands in, so the rest of the turn is a part of its arms where it is captured. `from`: as rec_part_from gave. */
void rec_part_rest(qn_vm *vm, uint32_t from);
QN_MUST_CHECK bool rec_part_arm(qn_vm *vm, uint32_t from, rec_slots slots, qn_value *value);
/* Likewise for a part of a function that may be left early: rec_part_tail before it, which gives 0 where nothing is to be done. Behind it, or behind a
 * turn that returns, rec_part_returned is for what the function returns. */
uint32_t rec_part_tail(const qn_vm *vm);
QN_MUST_CHECK bool rec_part_returned(qn_vm *vm, uint32_t from, qn_value *value);
/* Is a gradient in progress? Then a slice with bounds or a step is a value of its own, also where it is all of the array. */
bool rec_is_derived(const qn_vm *vm);
/* As rec_part_turn, behind a turn that is left with the pending error, which stays. False with another one raised. */
QN_MUST_CHECK bool rec_part_raised(qn_vm *vm, rec_slots slots, uint64_t grown, rec_tries *tries);
/* Offers the turns that are left to the recorder; answers as rec_if. REC_DONE: they have been made, and the assigned variables are set. */
QN_MUST_CHECK rec_answer rec_loop(qn_vm *vm, span at, const rec_turns *turns, rec_slots assigned, rec_tries *tries);
/* Does something go on with what the function in progress gives: the function that has called it, or who asks for a whole graph? */
bool rec_uses_result(const qn_vm *vm);
/* A loop has been refused that is captured as a whole, or not at all: ends the capture. False with an error raised. */
QN_MUST_CHECK bool rec_loop_refused(qn_vm *vm);
/* Offers the turns of a loop that is left by break or continue in a branch, and that rec_loop has refused, one by one; `body` gets the numbers
 * that the interpreter counts by, untraced. There is a next turn: the condition of a loop that does not count has been found true. REC_NOT_YET: nothing has happened. REC_DONE and REC_LEFT as for rec_if: the loop is over. */
QN_MUST_CHECK rec_answer rec_unroll(qn_vm *vm, span at, const rec_turns *turns, rec_slots assigned, rec_tries *tries);
/* Captures one turn, that the recorded call consists of (turns.c), with the condition of the next one if it `tests`. Among the variables are
 * turns->ends->goes, which is false, and the flags and items of what is added. REC_DONE: it has been, and *turns->ends says how it has ended. REC_NOT_YET: nothing has been done, and it is made as usual. REC_FAILED with an error raised. */
QN_MUST_CHECK rec_answer rec_turn(qn_vm *vm, span at, const rec_turns *turns, rec_slots assigned);
/* May this value be a bound of a loop that is offered, without being known? It is a traced int, or an array that is one. */
bool rec_count_traced(const qn_vm *vm, qn_value v);
/* May a range from `start` to a traced int be given to map or fold as it is? Its head then has the node of the end; of others it has none. */
bool rec_ends_range(const qn_vm *vm, int64_t start, qn_value end);
static inline bool rec_offers_count(const qn_vm *vm, qn_value v) {
  return rec_may_branch(vm, v) && rec_count_traced(vm, v);
}
/* May a loop over range(start, stop, step), bounds[0] to bounds[2] (borrowed), be offered without these being known, as a loop over numbers from
 * *first up to *end, of which each stands for the item start + number * step? (bounds[0] may have been replaced then.) Checks that nothing
 * overflows, and that the step is not 0, become a part of the graph (as rec_expect). 1; 0; -1 with an error raised. */
QN_MUST_CHECK int rec_range(qn_vm *vm, qn_value *bounds, qn_value *first, qn_value *end);
/* Before a turn that the interpreter makes of a loop whose numbers run from `first` up to `end`: is there one? It becomes a guard, or, if it
 * depends on data, a check that there is (as rec_expect). 1; 0; -1 with an error raised. */
QN_MUST_CHECK int rec_turn_goes(qn_vm *vm, qn_value first, qn_value end);
/* Does a variable hold a list that grows in a loop which is being captured (grown.c)? Nothing but rec_append may look at it. */
static inline bool rec_grows(const qn_vm *vm, qn_value v) {
  if (__builtin_expect(vm->rec == NULL, 1) || !value_is(v, TAG_LIST)) return false;
  const qn_list *l = value_list(v);
  return l->len == 3 && value_is(l->items[0], TAG_SIGNAL) &&
         !value_is(l->items[2], TAG_SIGNAL); /* that is a stacked one */
}
/* Is this global, which holds a list, one of rec_call_site.ngrown of the recording in progress? */
bool rec_grows_unseen(const qn_vm *vm, const qn_value *slot);
/* Adds an item (taken over) to such a list. False with an error raised: it cannot be captured, as with an item that is unset. */
QN_MUST_CHECK bool rec_append(qn_vm *vm, qn_value *list, qn_value item);
/* If the recording in progress knows that of n values the first ones, `least` or more, are rows of one array, one behind the other: these rows of
 * it, owned, and how many they are; or the error value. Else unset. */
QN_MUST_CHECK qn_value rec_rows(qn_vm *vm, const qn_value *in, int n, int least, int *rows);
/* If a recording knows that the items of a list are rows of one array in order: puts this array in place of the list (*v, owned), since going
 * over either is the same. False with an error raised. */
QN_MUST_CHECK bool rec_list_as_array(qn_vm *vm, qn_value *v);
static inline bool rec_iterates(qn_vm *vm, qn_value *v) {
  return __builtin_expect(vm->rec == NULL, 1) || !value_is(*v, TAG_LIST) || rec_list_as_array(vm, v);
}
/* Lists whose items are rows of arrays (stacked.c). A parameter marked as `stackable` in its function's anchor may hold one in place of a list, and so
 * may a variable that a loop has marked in `stacks`; any other value of a program is none. */
enum { STACKABLE_MAX = 32 };
/* Its parts: an item, with unset in place of arrays, and signals with their dtypes in place of numbers; a list of arrays, one for each of these, in
 * order, whose axis 0 counts the items; a signal, which no value of a program is. */
enum { STACKED_SHAPE, STACKED_PARTS, STACKED_MARK, STACKED_N };
static inline bool value_is_stacked(qn_value v) {
  if (!value_is(v, TAG_LIST)) return false;
  const qn_list *l = value_list(v);
  return __builtin_expect(l->len == STACKED_N && value_is(l->items[STACKED_MARK], TAG_SIGNAL), 0);
}
/* The first of the arrays, which tells how many items there are; borrowed. */
static inline qn_value stacked_lead(qn_value v) { return value_list(value_list(v)->items[STACKED_PARTS])->items[0]; }
/* In place of a number in an item: the item's own number plus `start`, for which there is no array. */
#define STACKED_START_MAX ((int64_t)1 << 62)
static inline qn_value stacked_count(int64_t start) { return (qn_value){.head = TAG_SIGNAL, .u.i = -1 - start}; }
static inline bool stacked_is_count(qn_value leaf) { return value_is(leaf, TAG_SIGNAL) && leaf.u.i < 0; }
/* What the mark says: which lists are made of others in the recording, so that only loops and the like take them (stacked_ops.c). */
enum {
  STACKED_LOOPED = 1,
  STACKED_OF_ROWS = 2, /* of arrays: how many items there are has never been a list's length */
  /* How many items there are is a number of the graph, the last one of the parts, and not more than axis 0 of the arrays (counted.c). All other reads than
   * rec_stacked_length, rec_stacked_get, rec_counted_append and rec_unstacked need the ordinary list. */
  STACKED_COUNTED = 4
};
static inline int stacked_mark(qn_value v) { return (int)value_list(v)->items[STACKED_MARK].u.i; }
static inline bool value_is_counted(qn_value v) { return value_is_stacked(v) && (stacked_mark(v) & STACKED_COUNTED); }
/* How many items a stacked list has, as a host int. Owned, or the error value. */
QN_MUST_CHECK qn_value rec_stacked_length(qn_vm *vm, qn_value list);
/* list[i] of such a list, as rec_stacked_get. */
QN_MUST_CHECK qn_value rec_counted_get(qn_vm *vm, qn_value list, qn_value i);
/* A list of which STACKED_COUNTED is true, with one more item. Borrows both. Owned, or the error value. */
QN_MUST_CHECK qn_value rec_counted_append(qn_vm *vm, qn_value list, qn_value item);
/* Some items of a list of which STACKED_COUNTED is true, by a slice's start, stop and step (borrowed; nil: there is none). Owned; the error value; unset:
 * it is to be made of the ordinary list. */
QN_MUST_CHECK qn_value rec_counted_slice(qn_vm *vm, qn_value list, const qn_value *slice);
/* list[i] = item of a stacked list (owned, replaced); borrows the other two. 1; 0: it is to be made of the ordinary list; -1 with an error raised. */
QN_MUST_CHECK int rec_counted_set(qn_vm *vm, qn_value *list, qn_value i, qn_value item);
/* *list (owned), of which STACKED_COUNTED may be true, becomes one with as many items as there are, if the count can be a size (data_sizes.c). False
 * with an error raised. */
QN_MUST_CHECK bool rec_counted_cut(qn_vm *vm, qn_value *list);
/* May a list be stacked, as far as its items go: two or more of one structure, with arrays of one dtype and shape? */
bool rec_stacks(qn_vm *vm, qn_value list);
/* A stacked list of these parts (owned; the error value: it is handed on). Owned, or the error value. */
QN_MUST_CHECK qn_value rec_stacked(qn_vm *vm, qn_value shape, qn_value parts);
QN_MUST_CHECK qn_value rec_stacked_marked(qn_vm *vm, qn_value shape, qn_value parts, int mark);
/* Such a list of n items of a list from one on, two or more: their elements are copied. Owned; unset: they cannot be stacked, or memory is
 * short. */
QN_MUST_CHECK qn_value rec_stack_items(qn_vm *vm, qn_value list, uint32_t from, uint32_t n);
/* Item `number` of such a list, an int from 0 on below its length, perhaps the traced number of a loop's turn. Owned, or the error value. */
QN_MUST_CHECK qn_value rec_stacked_item(qn_vm *vm, qn_value list, qn_value number);
/* list[i], for any value i; borrows both. Owned; the error value; or unset: the item is that of the ordinary list, which takes the place of *list
 * (owned). */
QN_MUST_CHECK qn_value rec_stacked_get(qn_vm *vm, qn_value *list, qn_value i);
/* Is a number made of data, in a captured call that may choose by it? Not in a try that is not captured itself; nor where lanes differ; nor in gradients, which give zeros, or zeros of another sign, to what is not chosen, where it would have none. */
bool rec_chosen_by_data(const qn_vm *vm, qn_value i);
/* list[i] of an ordinary list whose items are alike, for an i that is made of data: the items are stacked. Borrows both. Owned; the error value; or unset:
 * i must be known. */
QN_MUST_CHECK qn_value rec_item_by_data(qn_vm *vm, qn_value list, qn_value i);
/* What is made of stacked lists, and of arrays as lists of their rows (stacked_ops.c): some of their items; all from the last one on; with numbers, from
 * `start` on; k of them side by side; two lists, one of which is stacked, joined; the arrays of a list behind one another. Operands are borrowed. Owned, or the
 * error value; unset: it is to be made of ordinary lists. */
struct index_item;
QN_MUST_CHECK qn_value rec_stacked_slice(qn_vm *vm, qn_value list, const struct index_item *slice);
QN_MUST_CHECK qn_value rec_stacked_reversed(qn_vm *vm, qn_value list);
QN_MUST_CHECK qn_value rec_stacked_enumerate(qn_vm *vm, qn_value x, int64_t start);
QN_MUST_CHECK qn_value rec_stacked_zip(qn_vm *vm, const qn_value *lists, uint32_t k);
QN_MUST_CHECK qn_value rec_stacked_join(qn_vm *vm, qn_value a, qn_value b);
QN_MUST_CHECK qn_value rec_stacked_concat(qn_vm *vm, qn_value list);
/* What stack makes of a list. */
QN_MUST_CHECK qn_value rec_stacked_whole(qn_vm *vm, qn_value list);
/* The ordinary list with these items, whose number is guarded. Owned, or the error value. */
QN_MUST_CHECK qn_value rec_unstacked(qn_vm *vm, qn_value list);
/* Fields of records may hold stacked lists, too, in recordings of calls that have some (vm.asked.stacked): whoever reads one there, or hands a record
 * to what looks into it, and knows nothing of them, gets the ordinary list. *v is owned, and replaced. False with an error raised. */
QN_MUST_CHECK bool rec_make_plain(qn_vm *vm, qn_value *v);
static inline bool rec_plain(qn_vm *vm, qn_value *v) {
  return __builtin_expect(!vm->asked.stacked, 1) || rec_make_plain(vm, v);
}
/* Is there a stacked list in v? Where there is none, v is marked (PARTS_PLAIN). */
bool rec_holds_stacked(qn_value v);
/* As rec_plain, for a value read from a field: only if it is a stacked list itself. */
static inline bool rec_plain_field(qn_vm *vm, qn_value *v) {
  return __builtin_expect(!vm->asked.stacked, 1) || !value_is_stacked(*v) || rec_make_plain(vm, v);
}
/* Row i of x, where i is the traced number of a loop's turn, known to lie inside the first axis. Borrows both. Owned, or the error value. */
QN_MUST_CHECK qn_value rec_row(qn_vm *vm, qn_value x, qn_value i);
/* An array that was made of untraced host numbers, as by an array literal, becomes a constant of the graph. False with an error raised. */
QN_MUST_CHECK bool rec_constant(qn_vm *vm, qn_array *a);
static inline bool rec_const(qn_vm *vm, qn_array *a) { return vm->rec == NULL || rec_constant(vm, a); }
/* As rec_const; gives the array, which is taken over, as a value. */
static inline qn_value rec_literal(qn_vm *vm, qn_array *a) {
  if (rec_const(vm, a)) return value_obj(TAG_ARRAY, a);
  value_release(vm, value_obj(TAG_ARRAY, a));
  return value_error();
}
/* The innermost recording in progress, an arm's, say; NULL: there is none. Outside of the recorder it is only compared. */
static inline struct recording *rec_now(const qn_vm *vm) { return vm->rec; }
/* The recording in progress if it captures a call, and blocks that hold what cannot be captured are cut there (jit.segments); else NULL. A
 * statement behind which this has changed has ended the capture. */
const struct recording *rec_captures(const qn_vm *vm);
/* Why the last capture has ended: a reason of breaks.def, with the number that breaks.h gives it, more about it (such as a function's name),
 * and the place. */
typedef struct rec_reason {
  int number;
  char text[64];
  span at;
} rec_reason;
rec_reason rec_last_reason(qn_vm *vm);
/* A part of a block that is cut, or a statement between parts (vm_hooks.steps). */
typedef struct block_step {
  span at;            /* all of it */
  jit_anchor *anchor; /* a part's; NULL: the interpreter runs the statement, `runs` times so far, because of `why` */
  rec_reason why;
  uint64_t runs;
  int depth; /* in how many statements that are cuts themselves it lies */
} block_step;
/* A try body begins. If it can be captured, *in becomes the recording, and ops wait as elsewhere: where one fails, the call is made again by
 * the interpreter, handler and all. Else they run at once, so that errors appear where they belong. False if work that was pending before has
 * failed: that error is not for the body's handler. */
QN_MUST_CHECK bool rec_try_push(qn_vm *vm, struct recording **in);
static inline bool rec_try_begin(qn_vm *vm, struct recording **in) {
  *in = NULL;
  return __builtin_expect(vm->rec == NULL, 1) || rec_try_push(vm, in);
}
void rec_try_end(qn_vm *vm, struct recording *in);
/* May a handler see the pending error? Not if a capture is given up by it. */
bool rec_try_catches(const qn_vm *vm, const struct recording *in);
/* A builtin has failed on these arguments, and a handler may see the error: numbers that it has looked at without asking for them become guards.
 * The pending error stays, unless there is another that is not for the handler. */
void rec_builtin_failed(qn_vm *vm, const qn_value *args, int nargs);
/* The handler of a captured body is about to run; `seen`: it gets the error, whose words are made to be the same in all calls that meet the
 * guards. If such calls need not come here, the capture ends. False with an error raised, which is not for the handler. */
QN_MUST_CHECK bool rec_try_caught(qn_vm *vm, const struct recording *in, const qn_error_object *e, bool seen);
/* A builtin is about to run on these arguments, one for each parameter, which the caller owns. Traced numbers among them become plain,
 * unless the parameter is data. Before an effect (any builtin but PURE, HIGHER and CHOICE ones) pending work that can fail is done, and
 * inside a vmap arguments become those of all lanes. A TAP of a call that is captured, and a DRAWS if its result is `unused`, gets arguments with data.
 * REC_NOT_YET: the builtin is to be called, and then, unless *told is 0, rec_told with its result. REC_DONE: it is not to be called, and
 * *result (owned) is what it gives. REC_FAILED: with an error raised. */
QN_MUST_CHECK rec_answer rec_builtin_call(qn_vm *vm, const builtin_def *def, const signature *sig, qn_value *args,
                                          span at, bool unused, int *told, qn_value *result);
static inline rec_answer rec_builtin(qn_vm *vm, const builtin_def *def, const signature *sig, qn_value *args, span at,
                                     bool unused, int *told, qn_value *result) {
  *told = 0;
  return __builtin_expect(vm->rec == NULL, 1) ? REC_NOT_YET
                                              : rec_builtin_call(vm, def, sig, args, at, unused, told, result);
}
/* Takes over and gives a builtin's result (which may be the error value), or the error value with an error raised: inside a gradient floats
 * must not lose their derivative. */
QN_MUST_CHECK qn_value rec_told(qn_vm *vm, const builtin_def *def, int told, qn_value result);

/* Is a TAP, which is called on these arguments, to be made? Not if it was made before, by the same call (taps.h). And if it was made: it
 * has failed. All calls of taps ask and tell this (stdlib/builtins.c). */
bool taps_due(qn_vm *vm, const qn_value *args);
static inline bool rec_tap_due(qn_vm *vm, const qn_value *args) { return !vm->asked.taps || taps_due(vm, args); }
void taps_failed(qn_vm *vm);
/* Is the number that a READING is about to read known already, since the same call has read it before? Then it is *number. */
bool taps_reading(qn_vm *vm, double *number);
static inline bool rec_reading_known(qn_vm *vm, double *number) { return vm->asked.taps && taps_reading(vm, number); }

/* ---- lanes of a vmap in progress (vmap_control.c) ------------------------------------------------------------------------------------- */

bool rec_has_lanes(const qn_vm *vm);
static inline bool rec_in_vmap(const qn_vm *vm) { return __builtin_expect(vm->rec != NULL, 0) && rec_has_lanes(vm); }
/* Does this array or number differ between the lanes of a vmap? */
bool rec_is_lane(const qn_vm *vm, qn_value v);
typedef enum rec_frame_kind { FRAME_CALL, FRAME_LOOP, FRAME_TRY } rec_frame_kind;
/* A function body, loop or try in progress inside a vmap, on the stack of whoever runs it. Lanes that have left it early wait here with their
 * values. */
typedef struct rec_frame {
  struct recording *rec;
  struct rec_frame *outer;
  const struct vmap_level *level;
  rec_slots slots; /* for a loop or try: the variables that it may rebind */
  rec_frame_kind kind;
  bool parted; /* some lanes have left it and something further out as well */
  void (*failed)(
      void *ctx); /* for a call: tells the pending error that it leaves the call, if lanes leave it with that */
  void *ctx;
  qn_value entry;              /* the lanes that were at work when it began */
  qn_value gone, *left;        /* the lanes that have left it, and the values that they have left with */
  qn_value again, *kept;       /* for a loop: the lanes that wait for the next turn, and the values that they have */
  struct lanes_raised *raised; /* for a try: the lanes that wait for its handler */
  qn_value rest;               /* for a try: while assert raises an error: the lanes that go on */
} rec_frame;
void rec_frame_enter(qn_vm *vm, rec_frame *f, rec_frame_kind kind, rec_slots slots);
/* The result of a function for all lanes, made of `v` (taken over; may be the error value), that of the lanes that came to its end. Owned. */
QN_MUST_CHECK qn_value rec_call_leave(qn_vm *vm, rec_frame *f, qn_value v);
/* Does a loop inside a vmap go on? `truth` is the truth of the condition if that is the same in all lanes. 1; 0; -1 with an error raised;
 * -2 if the value is no condition. */
QN_MUST_CHECK int rec_loop_test(qn_vm *vm, rec_frame *f, qn_value condition, int truth);
/* To be called after the body of such a loop; `v` (taken over) is what it returned. Does the loop go on? 1; 0: no lane does; -1 with an
 * error raised. */
QN_MUST_CHECK int rec_loop_next(qn_vm *vm, rec_frame *f, rec_exit how, qn_value v);
/* Such a loop is over; `ok`: without an error. REC_DONE, REC_LEFT or REC_FAILED, as for rec_if. */
QN_MUST_CHECK rec_answer rec_loop_leave(qn_vm *vm, rec_frame *f, bool ok);
/* An exception of a host passes: frees what the frame and those inside it hold. */
void rec_frame_drop(rec_frame *f);
/* Is a condition that differs between lanes true in all lanes at work? 1; 0, and then only the lanes where it is false are at work, so that
 * the error that the caller raises names one of them; -1 with an error raised. */
QN_MUST_CHECK int rec_all_lanes(qn_vm *vm, qn_value condition);
/* The pending error is one of the lanes at work: adds the number of the first one, if it is for no handler. */
void rec_blame_lanes(qn_vm *vm);
/* A builtin has raised the pending error, whose place is known. REC_DONE: only in some lanes (rec_all_lanes), which wait for the handler of a try
 * now, and the builtin gives nil to the others; else the error stays: REC_NOT_YET, or REC_FAILED, which may be another error. */
QN_MUST_CHECK rec_answer rec_lanes_raise(qn_vm *vm);
/* A try inside a vmap. */
typedef struct rec_handler {
  rec_arm body;
  qn_value (*handle)(void *ctx, qn_error_object *e,
                     rec_exit *how); /* runs the handler on an error (taken over), as an arm */
  void *ctx;
  rec_slots assigned; /* what body and handler may rebind */
  bool used;          /* something uses its value */
  bool sees;          /* the handler reads the error */
  bool leaves;        /* something in it breaks, continues or returns */
} rec_handler;
/* Runs the body and, for lanes that raise an error in it, the handler. REC_NOT_YET: no lane has; *how and *result (owned) say how the body has
 * ended, perhaps with an error that is not for the handler. REC_DONE: *result is the value. REC_LEFT: no lane goes on. REC_FAILED with an
 * error raised. */
QN_MUST_CHECK rec_answer rec_try_lanes(qn_vm *vm, const rec_handler *h, rec_exit *how, qn_value *result);

/* Offers a try outside of vmap in whose body arms may raise errors of the program. REC_LEFT: what is around it has been left, as in rec_if.
 * REC_NOT_YET: the interpreter runs it (rec_try_begin). REC_DONE: the variables and *result (owned) are set. REC_FAILED with an error raised. */
QN_MUST_CHECK rec_answer rec_try_arms(qn_vm *vm, span at, const rec_handler *h, qn_value *result);
/* Offers an assertion to such a try; `raise` raises its error. REC_NOT_YET: the condition is to be looked at as elsewhere. REC_DONE: what follows is
 * recorded where it holds. Others as for rec_if. */
QN_MUST_CHECK rec_answer rec_assert(qn_vm *vm, qn_value condition, rec_arm raise);
/* Operations in the body of such a try fail on data like assertions: the interpreter offers them before it makes them. x[items] of an array; a op b of
 * host numbers; int(x) of a float. Nothing happens outside of such a try. False with an error raised. */
QN_MUST_CHECK bool rec_try_index_asked(qn_vm *vm, qn_value x, const struct index_item *items, int n);
/* Item *i of a list of this length; an array becomes the number that it is. */
QN_MUST_CHECK bool rec_try_item_asked(qn_vm *vm, int64_t len, qn_value *i);
QN_MUST_CHECK bool rec_try_divide_asked(qn_vm *vm, op_id op, qn_value a, qn_value b);
QN_MUST_CHECK bool rec_try_int_asked(qn_vm *vm, qn_value x);
static inline bool rec_try_index(qn_vm *vm, qn_value x, const struct index_item *items, int n) {
  return __builtin_expect(vm->rec == NULL, 1) || rec_try_index_asked(vm, x, items, n);
}
static inline bool rec_try_divide(qn_vm *vm, op_id op, qn_value a, qn_value b) {
  return __builtin_expect(vm->rec == NULL, 1) || !value_is_scalar(b) || rec_try_divide_asked(vm, op, a, b);
}
static inline bool rec_try_int(qn_vm *vm, qn_value x) {
  return __builtin_expect(vm->rec == NULL, 1) || rec_try_int_asked(vm, x);
}

/* Appends what became of all functions that were called with arrays: compiled call shapes with their kernels, and what stays eager and why.
 * All of it (`all`), or what fits two screens. `file` is the script, whose name is left out before line numbers. Waits for plans that are
 * being made; false if that was interrupted (raised). */
QN_MUST_CHECK bool jit_report(qn_vm *vm, const char *file, bool all, text_buf *out);

/* ---- randomness (also outside recordings) ------------------------------------------------------------------------------------------ */

/* Take the VM's next n draw numbers and give the first one; and give the words of the key, which is made of the VM's
 * seed. Both are operands of RANDOM ops: while recording they are inputs of the graph, so that a replayed call takes new draw numbers.
 * Owned, or the error value. */
QN_MUST_CHECK qn_value rec_draws(qn_vm *vm, uint64_t n);
void rec_key(qn_vm *vm, qn_value *k0, qn_value *k1);
/* Starts the VM's random numbers anew, with a host int that may be traced. False with an error raised. */
QN_MUST_CHECK bool rec_seed(qn_vm *vm, qn_value n);

/* ---- life of a VM's compiler state ------------------------------------------------------------------------------------------------ */

QN_MUST_CHECK bool jit_open(qn_vm *vm);
/* Drops recordings in progress whose evaluation has been unwound by an exception. */
void rec_abandon(qn_vm *vm);
/* Cancels everything that is being planned or compiled for the VM, which runs nothing now. Calls that needed it are recorded again. */
void jit_cancel(qn_vm *vm);

/* ---- transforms and inspection, behind the builtins of the same names (stdlib binds arguments) ----------------------------------------- */

/* Transforms: function values of the kind FN_TRANSFORM; captures[0] is the inner function, then come the options. They are called by
 * transform_call, from the interpreter's call. */
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
  const char *
      captures[4]; /* what they are called where guards on them are told; NULL: the function that it is of, or unused */
  /* How a call is made if no plan serves it; and, if that is in a recording, what is done there (transform.c). */
  qn_value (*run)(void *ctx);
  qn_value (*work)(struct recording *r, const rec_call_site *site);
} transform_def;
extern const transform_def transform_defs[];
/* captures: GRAD, VALUE_AND_GRAD: fn, wrt (int or list of ints), aux (bool). JIT: fn, options record. NOJIT, CHECKPOINT: fn.
 * VJP: fn; its call gives (y, pullback). JVP: fn; called on the arguments and as many tangents. CUSTOM_GRAD: fn, backward.
 * VMAP: fn, in_axes, out_axes; and of those that jacobian makes the dtype that host floats come out in. JACOBIAN: fn, wrt. HESSIAN: the
 * function's gradient by wrt, wrt. */
QN_MUST_CHECK qn_value transform_new(qn_vm *vm, transform_kind kind, const qn_value *captures, int n);
/* Calls a transform or graph, which stays alive meanwhile. The arguments lie on the value stack, which owns them; others may be there afterwards. */
QN_MUST_CHECK qn_value transform_call(qn_vm *vm, qn_value fn, qn_value *args, int nargs, qn_value kwargs, span at);

/* The function that takes the arguments of a call of `fn`: what is inside all transforms that pass their arguments on; or `fn` itself. */
const qn_fn *transform_within(qn_value fn);
/* What the transforms of a function value ask for by options of jit, as one number. */
uint64_t jit_asked(qn_value fn);
/* What argument i of a call with `nargs` (0: they do not say what was given by keywords) is called in the code of the function, through transforms and graphs; borrowed, NULL: it has no name.
 * And the same for messages: "argument x", or "argument 2". */
qn_str *argument_name(qn_vm *vm, qn_value fn, int i, int nargs);
typedef struct argument_text {
  char text[64];
} argument_text;
argument_text argument_said(qn_vm *vm, qn_value fn, int i, int nargs);

/* Runs the text of a reproduction (vm_hooks.repro) again, with the settings that it has: appends what was wrong then and what comes out now.
 * *agrees: nothing is wrong any more. False with an error raised if it cannot be run. */
QN_MUST_CHECK bool jit_repro_run(qn_vm *vm, const char *text, size_t len, bool *agrees, text_buf *out);

/* The record that explain(...) gives (lang/REFERENCE.md). Makes the call, and its plan if need be. Owned, or the error value. */
QN_MUST_CHECK qn_value jit_explain(qn_vm *vm, qn_value fn, const qn_value *args, int nargs);
/* The graph of a call as a graph value (FN_GRAPH). Owned, or the error value. */
QN_MUST_CHECK qn_value jit_graph(qn_vm *vm, qn_value fn, const qn_value *args, int nargs);
/* As jit_graph, also of a call that has effects: its graph shows them, but does not make them. */
QN_MUST_CHECK qn_value jit_graph_shown(qn_vm *vm, qn_value fn, const qn_value *args, int nargs);
/* As jit_graph, for a graph that is written to a file: of a call that gives all parameters. Calls of the graph may leave out the last
 * `ndefaults` arguments, and then have those of this call. If the recording broke off, the error says why and what to do about it. */
QN_MUST_CHECK qn_value jit_export(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, int ndefaults);
/* A graph value as bytes: a description (README.md says what it consists of), and apart from it the elements of its arrays, in runs that
 * each begin at a multiple of GRAPH_RUN_ALIGN. `kept` owns the graph, and all else that owns the runs. */
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
/* False with an error raised: a part of it is a function of the program, or memory is short. graph_serialize_free must be called in either
 * case. */
QN_MUST_CHECK bool jit_graph_serialize(qn_vm *vm, qn_value g, graph_serialize *out);
void graph_serialize_free(qn_vm *vm, graph_serialize *p);
/* The graph value that bytes describe, which may be damaged in any way. The error value with `why` filled in if they are; with an error
 * raised else. */
typedef struct graph_serialized {
  const uint8_t *text, *data;
  size_t text_len, data_len;
} graph_serialized;
QN_MUST_CHECK qn_value jit_graph_deserialize(qn_vm *vm, const graph_serialized *from, char *why, size_t size);
/* A graph value from its text; and from another one with nodes replaced: rule(node, operands) gives nil, or what takes the node's place. Owned,
 * or the error value. */
QN_MUST_CHECK qn_value jit_graph_parse(qn_vm *vm, const qn_str *text);
QN_MUST_CHECK qn_value jit_graph_rewrite(qn_vm *vm, qn_value g, qn_value rule);
/* Registers a pattern: where `find` is recognised in what is recorded from now on, `replace` takes its place. name: a text or nil; check: a
 * function or nil; samples: a list of arguments or nil. Gives its name, owned, or the error value. And removes the one with a name. */
typedef struct jit_pattern_options {
  qn_value find, replace, name, check, samples;
  bool verify;
} jit_pattern_options;
QN_MUST_CHECK qn_value jit_pattern(qn_vm *vm, const jit_pattern_options *o);
QN_MUST_CHECK qn_value jit_unpattern(qn_vm *vm, qn_value name);
/* The fields of graph values. jit_graph_field gives unset if there is none of that name. */
enum { GRAPH_FIELDS = 3 };
extern const char *const jit_graph_fields[GRAPH_FIELDS];
QN_MUST_CHECK qn_value jit_graph_field(qn_vm *vm, qn_value g, const char *name);
/* As hooks.parameters, for a graph. */
void jit_graph_parameters(const qn_fn *graph, void (*each)(void *ctx, const char *name, int position), void *ctx);
/* Append how a graph is called: "(x: f32[8, 64], k: float = 2.0) -> f32[8]"; and, one on each line, what numbers among its arguments must
 * be, because they steered the recording. */
void jit_graph_signature(const qn_fn *graph, text_buf *out);
void jit_graph_conditions(const qn_fn *graph, text_buf *out);
static inline bool value_is_graph(qn_value v) { return value_is(v, TAG_FN) && value_fn(v)->head.flags == FN_GRAPH; }
QN_MUST_CHECK qn_value jit_code_text(qn_vm *vm, qn_value fn, const qn_value *args, int nargs); /* a text, owned */

#endif
