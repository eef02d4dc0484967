/* A recording: the graph that a call's ops are appended to, what its values are, where they came from, and why a capture broke off.
 *
 * rec.h is what the interpreter sees of it; this is the view of jit/trace. */
#ifndef JIT_TRACE_RECORDING_H
#define JIT_TRACE_RECORDING_H

#include "jit/graph/graph.h"
#include "jit/run/dispatch.h"
#include "jit/trace/anchors.h"
#include "jit/trace/breaks.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/rewrite_notes.h"
#include "jit/trace/taps.h"
#include "jit/trace/vmap.h"

/* Regions, in the order of their ends. The args and outs of each are one block of memory, args first. */
typedef struct region_list {
  graph_region *list;
  uint32_t n, cap;
} region_list;
/* A hash table from keys, which are not 0, to numbers, which are at least 1. */
typedef struct key_index {
  struct key_number {
    uint64_t key;
    uint32_t number;
  } * slots;
  uint32_t n, cap; /* a power of two, or 0 */
} key_index;

/* The nodes that a gradient in progress differentiates by; `outer`: the gradient around it, or NULL. */
typedef struct derived_by {
  const struct derived_by *outer;
  const uint32_t *nodes;
  uint32_t n;
  bool pushes; /* the gradient is transposed, to push tangents forward */
} derived_by;

typedef struct rec_way rec_way; /* ways.h */

/* The state of the random numbers: the number of the next draw, and the two words of the key. */
enum { RANDOM_DRAW, RANDOM_KEY, RANDOM_INPUTS = RANDOM_KEY + 2 };

enum { SITES_FOUND = 64, GLOBAL_CARRIED = INT32_MAX, GLOBAL_GROWN = INT32_MAX - 1 };
struct recording {
  qn_vm *vm;
  struct recording *outer; /* the recording that waits until this one has ended; its values are inputs here */
  struct borrowed {
    qn_array *array;
    uint32_t node; /* its node in the outer recording */
  } * borrowed;    /* arrays of the outer recording that are nodes of this one meanwhile */
  uint32_t nborrowed, borrowed_cap;
  graph *g;
  uint32_t base;  /* the node id of graph node i, as values carry it, is base + i */
  qn_value *vals; /* for each node its value, owned: an array (perhaps pending), a host number, or unset */
  uint32_t vals_cap;
  /* For each node, owned or NULL: a header without data, which the program has in place of the value in `vals`, so that it cannot look at
   * the data unnoticed. Inputs have one, and results that were computed early while capturing. */
  qn_array **tracers;
  uint32_t tracers_cap;
  struct fn_place {
    qn_value tracer; /* owned */
    uint32_t root;   /* the number of the pattern's root that it was reached from */
    /* where its path from there lies in fn_paths, and how long it is; the last step comes first */
    uint32_t path, steps;
  } * fns; /* the functions that were among the values of the call, but for builtins */
  uint32_t nfns, fns_cap;
  uint32_t *fn_paths, nfn_paths, fn_paths_cap;
  /* the last function number of the VM when the recording began: functions with higher ones were made meanwhile */
  uint64_t last_fn;
  uint32_t done;    /* nodes before this one have been executed, as far as anybody needed them */
  bool reopened;    /* something needs one of those that were not */
  node_list parted; /* nodes that variables of loops in progress hold (rec_part_turn) */
  uint32_t
      rest; /* the next node's id at the last branch of the turn in progress that may leave it (rec_part_rest); 0: none */
  uint64_t controls; /* how many loops, branches and try bodies have been run inside gradients */
  int grads;         /* how many gradients are in progress: meanwhile values of executed nodes are kept */
  int bodies; /* how many calls of graph values are in progress: they hold its nodes, so meanwhile it does not end */
  const derived_by *wrt; /* what these differentiate by, the innermost first; NULL if nobody asks */
  bool
      handing_out; /* results of a gradient, or of an arm, are handed out: host floats among them do not break the capture */
  int tries;       /* how many try bodies are in progress */
  int held;        /* how many times it is held (rec_hold) */
  /* The size of all pending results. When it passes jit.pending_bytes, those that nobody holds any more are subtracted. */
  size_t pending_bytes;
  uint8_t device; /* code of the device where its arrays are */
  bool placed;    /* set by the first array; until then `device` is where the VM makes new ones */
  bool arm; /* of an arm of a branch, which is looked at without data (branches.c): what is around it is `outer` */
  uint32_t *captures, captures_cap; /* of an arm, by input: the node of `outer` */
  /* Of the body of a loop that counts: 1 + the carry that is its number, which lies from the first of two ends up to the second. `count_tested`: the
   * loop does not count by itself, but its test and what a turn makes of the carry say so. */
  uint32_t count;
  bool count_tested;
  struct count_end {
    const struct recording *in;
    uint32_t node; /* of `in`; 0: none */
    int64_t more;  /* is added to it */
  } count_ends[2];
  uint32_t
      when; /* of an arm: the condition, a node of `outer`, that has this truth wherever it is run; 0: none is known */
  bool when_truth;
  uint32_t
      sized; /* facts of the graph's dims before this one are settled (sizes_hold), or the last one is about to be; */
  uint32_t settled;  /* before this one they are settled */
  node_list counted; /* numbers of it that count the items of lists, so that none is below 0 */
  uint32_t searched; /* of the recording around all arms: steps of proofs that sizes are not negative (size_proofs.c) */
  uint32_t carries;  /* how many first inputs are carries of a loop, whose values change from turn to turn */
  rec_way *way;      /* of the recording around all arms: the innermost one in progress */
  int timid;         /* of the recording around all arms: no arm may expect that a loop in it has a turn */
  int whole_turns; /* of the recording around all arms: loops in progress whose turns are not split at the ends of tries */
  double unrolled; /* how many nodes the loops captured so far would have made if unrolled */
  bool arm_sizes;  /* of an arm: it has symbolic sizes of arrays (sizes.c) */
  bool rooms; /* of the recording around all arms: items are stored in lists that may have no room for them (grown.c) */
  bool exits; /* of the recording around all arms: some check in it makes the call leave the graph (branches.c) */
  span *exit_places; /* where they were made, each place once, if somebody asks (fullgraph) */
  uint32_t nexit_places, exit_places_cap;
  uint32_t effects; /* of the recording around all arms: rec_effects */
  uint32_t trying;  /* of the recording around all arms: how many bodies of try that are captured are in progress */
  uint32_t untried; /* of the recording around all arms: how many have been tried as ways in vain (tries.c) */
  bool tried;       /* there have been some: where the graph fails, the call need not */
  bool
      again; /* pending work has failed before the program has seen anything of the call: it is made again without a recording */
  bool
      unseen; /* the capture has ended, but since then, too, the program has seen nothing: what was recorded until then has not been run yet */
  bool
      whole; /* a loop is being appended that must be captured to its end: else the call is made again without a recording */
  /* Of the recording around all arms (forks.c): the innermost block of the program in progress; how often ways did not agree, and in which variable
   * the last time (NULL: in none); is the call to be recorded once more, since it is known now where they do not, or the next one; is its result a list
   * of the number of one of the results behind it? */
  struct rec_block *block;
  uint32_t unlike;
  const qn_value *unlike_in;
  int ways_in;      /* how many parts are being captured in several ways, one in another (ways.c) */
  uint64_t in_vain; /* where there is no anchor: as anchor_specializations.in_vain */
  bool restart, retry, choice;
  bool
      limits_turns, /* of the recording around all arms: how many turns loops make at most is a guard or a check of it (kept_turns.c); */
      expects_turns, /* loops in it have turns that are counted first; */
      guesses_turns, /* some of these in lanes: how many they are is not known while it is recorded; */
      expects_end, /* a loop in it is captured for calls in which it ends with one of several kinds of values (states.c); */
      expects_apart; /* one in a gradient or in lanes is, where that cannot be left open */
  node_list
      some; /* of an arm, which is the function of a vmap: bools of which some lane has a true one, or the call leaves the graph */
  bool counts_turns; /* of an arm: turns of loops in it may be counted before, inside two gradients (turns_counted) */
  bool joins;        /* of an arm: its nodes will be nodes of the recording around it (rec_tail) */
  bool lenient;      /* of an arm: what cannot be in a region does not matter (rewrite) */
  bool symbolic;   /* its inputs have symbolic sizes, of which somebody else knows where they come from (rewrites.c) */
  bool sized_maps; /* linear maps have been made of it in whose loops sizes are numbers of turns (data_sizes_stay) */
  bool hollow;     /* its inputs have no data: nothing is run, and who looks at data gets an error */
  /* places */
  span at;         /* the place of what is evaluated next */
  uint32_t parent; /* the site of the innermost call */
  uint32_t cut;    /* how many innermost calls have no entry in `calls`, since memory was short */
  uint32_t sites_found
      [SITES_FOUND]; /* the sites of places that came last, by a hash of place and call (rec_site); 0: none */
  uint32_t *calls;
  /* entries of `calls`: the parents to return to, and a marker where the function changes */
  uint32_t ncalls, calls_cap;
  jit_anchor **callees; /* the anchors of the functions called, one for each entry of `calls` */
  uint32_t callees_cap;
  /* While fewer than `handling` of these calls are in progress, the handler of a try runs, in this function (as rec_function has it), and calls
   * that it has left are over for it, though other arms go on in them. */
  const char *handler;
  uint32_t handling;
  /* capture: the part that becomes a specialization */
  bool capturing;
  bool ending; /* nothing more is recorded, and results get their data */
  bool ended;  /* vm->rec does not point here any more */
  break_reason why;
  span why_at;
  char why_text[64]; /* more about `why`, such as the name of a function */
  rec_reason
      refused; /* of the recording around all arms: why the region that was tried last is none; number 0: unknown */
  /* Of the recording around all arms: the function of the call in progress, made within it, that must be one graph (fullgraph.c), or NULL; and what this
   * was when the capture ended, and when `refused` came to be. */
  const jit_anchor *asking, *why_asking, *refused_asking;
  pattern pattern;
  /* The number of a global's root in the pattern, by the address of its value. GLOBAL_CARRIED: it is an argument of the call; GLOBAL_GROWN:
   * rec_call_site.ngrown. */
  key_index globals;
  key_index output_numbers; /* the number of an output of the graph, by its node */
  key_index observed_nodes; /* the number of a guard in `observed`, by its node */
  struct observed {
    uint32_t node;
    qn_value value;
  } * observed; /* host numbers that steered the program: they become guards */
  uint32_t nobserved, observed_cap;
  /* symbolic sizes */
  struct size_wish *wish; /* which sizes are to be symbolic (owned by whoever records), or NULL */
  bool all_sizes;         /* and all others of arguments are, too */
  /* and those that the signature names: the names, those of the value that is being traced, and the symbols made so far (0: none) */
  const named_sizes *sizes;
  const size_names *names;
  qn_dim *name_symbols;
  bool stacks;       /* stacked lists may be among its values: counted in vm.asked.stacked */
  bool in_stack;     /* inputs that are made now are arrays of a stacked list, */
  qn_dim stack_size; /* which has so many items; 0: that is no symbol yet */
  uint32_t nstacks;
  struct size_place *size_places;
  uint32_t nsize_places, size_places_cap;
  node_list size_ints; /* inputs that are host ints and symbolic where they are sizes */
  struct size_made {   /* inputs that are numbers which are computed of host numbers as no size is, and symbolic */
    uint32_t input, node;
  } * made;
  uint32_t nmade, made_cap;
  struct size_input *size_inputs; /* inputs that are sizes as host numbers, made on demand */
  uint32_t nsize_inputs, size_inputs_cap;
  /* vmap */
  struct vmap_level *lanes; /* the innermost vmap in progress, or NULL */
  uint32_t vmap_seen;       /* nodes before this one have their counterparts, if they differ between lanes */
  vmap_pause vmap_held;     /* what vmap_hold has stopped */
  bool had_lanes;           /* a vmap has been recorded */
  struct vmap_level
      *aside;        /* the level whose function is being recorded in an arm of this one (vmap_lanes.c), or NULL */
  bool unsure;       /* nodes that can fail have been recorded since vmap_catches was asked */
  bool vmap_failed;  /* the pending error is one of some lanes only */
  uint32_t arm_from; /* the first node of the innermost arm that is run for some lanes */
  qn_value active;   /* the lanes at work: nil: all; unset: none; or a bool that differs between lanes */
  struct rec_frame *frames; /* the functions and loops in progress inside a vmap, the innermost first */
  int arms;                 /* how many arms of branches are in progress */
  uint32_t *vmap_kept;      /* nodes of single lanes that the program held when pending work was executed last */
  uint32_t nvmap_kept, vmap_kept_cap, vmap_looked; /* nodes before vmap_looked have been looked through for these */
  struct lane_check *checks;                       /* ops of lanes that can fail: what their errors are worded from */
  uint32_t nchecks, checks_cap;
  /* Of the recording around all arms: random numbers (draws.c). */
  uint32_t random[RANDOM_INPUTS]; /* nodes of inputs, made on demand; 0: not made yet */
  /* Numbers that the state is now, of the recording in progress; unset: as when the call began. */
  qn_value drawn[RANDOM_INPUTS];
  uint64_t ahead; /* how many numbers have been drawn since drawn[RANDOM_DRAW] was set */
  /* how many of these are variables of the regions that are captured; and how many are to be */
  uint8_t drawn_slots, drawn_wanted;
  uint32_t drawn_open; /* how many regions are being captured in it, one in the other */
  const void *home;    /* of a call without a function: the unit of its code */
  /* Effects that its nodes, or those of its arms, stand for, and how many were made. While one is made by the interpreter vm->rec is NULL, and
   * this is vm_jit.tapping; `tapping` is what was that before. */
  /* Of the recording around all arms: texts that wait, and their numbers by their addresses. */
  struct waiting_text {
    qn_value text, parts; /* owned; see rec_text_made */
    const builtin_def *def;
    struct recording *in; /* NULL: an arm that is gone */
  } * texts;
  size_t text_bytes; /* how long they are together */
  uint32_t ntexts, texts_cap;
  key_index text_numbers;
  /* Of the recording around all arms: what is appended to lists that grow in loops (grown.c). */
  struct grown_items *grown;
  uint32_t ngrown, grown_cap;
  rec_added *added; /* borrowed: the lists to which the turn that is recorded adds items (rec_turn) */
  uint32_t nadded;
  uint32_t turns;     /* of the recording around all arms: bodies of loops that are being recorded, one in another */
  uint32_t row_nodes; /* how many of its nodes are items of such lists, which cost nothing unless they are read */
  tap_list taps;
  tap_run tap_run;
  struct recording *tapping;
  qn_value text_parts;     /* owned: what a text is made of that the interpreter is making, or nil */
  region_list regions;     /* parts of the graph with derivatives of their own */
  rewrite_notes rewritten; /* what patterns have replaced in what was differentiated */
  /* The calls made inside of it. When the recording is freed they are counted for the function that it records (`of`), or for no function. */
  part_list parts;
  struct anchor_specializations *of; /* or NULL */
};

/* What the random numbers of a VM were before a call that may be made again. */
typedef struct random_state {
  uint64_t seed, draw;
} random_state;
static inline random_state random_kept(const qn_vm *vm) { return (random_state){vm->seed, vm->draw}; }
static inline void random_restore(qn_vm *vm, random_state s) { vm->seed = s.seed, vm->draw = s.draw; }

/* ---- what a recording can do ---- */

/* The type of an array or a host number. */
static inline graph_type type_of_value(qn_value v) {
  graph_type t = {0};
  (void)value_graph_type(v, &t);
  return t;
}
/* What a value is, for an error message: "f32[4, 3]", "int 3". Lives until the end of the expression that asks for it. */
typedef struct said {
  char text[400];
} said;
said kind_said(qn_value v);
/* A host number without its node id. */
static inline qn_value value_plain(qn_value v) { return (qn_value){.head = v.head & 0xff, .u = v.u}; }

/* Begins a recording on the VM; one that is in progress waits until this one has ended. NULL with an error raised. */
QN_MUST_CHECK struct recording *rec_begin(qn_vm *vm, bool capture);
/* Called for a function whose anchor was not asked (NULL: it has none). True: make the call by rec_call. False: it has been counted, in the
 * recording in progress or at the anchor. */
bool rec_callee(qn_vm *vm, jit_anchor *callee);
/* Removes the function with this id from the part lists of all recordings of the VM. */
void recs_forget_part(qn_vm *vm, uint32_t id);
/* Begins an arm of a branch: a hollow recording inside `outer`, whose values become inputs where they are used. The second arm of two is
 * given the first one and begins with its inputs; the first may be read until the second is freed. NULL with an error raised. */
QN_MUST_CHECK struct recording *rec_arm_begin(struct recording *outer, const struct recording *first);
/* Makes two arms, whose graphs have their outputs, the regions of a new node of `r`. Its operands are the predicate (0: there is none) and
 * what the second arm has captured. Regions within the arms move there: the arms are only freed behind this. The node; 0 with an error raised. */
uint32_t arms_close(struct recording *r, graph_kind kind, uint32_t predicate, struct recording *const arms[2],
                    const op_attr *attr, uint32_t site);
/* Makes a new input of an arm for node `outer` of the recording around it, without looking whether it has one already. 0 with an error
 * raised. */
uint32_t arm_operand(struct recording *r, uint32_t outer);
/* The recording around all arms that r is in; r itself if it is no arm. */
struct recording *rec_base(struct recording *r);
/* Ends an arm, which is kept: arrays that it has borrowed get their nodes back, and the recording around it goes on. */
void rec_arm_end(struct recording *r);
/* An arm does what cannot be captured: raises an error that only whoever runs the arm catches. False. */
bool rec_give_up(struct recording *r, break_reason why);
/* Executes what is pending and leaves the recording: then the outer one goes on, or none. The struct stays for its owner, who calls
 * rec_free. False with an error raised. */
QN_MUST_CHECK bool rec_end(struct recording *r);
/* As rec_end for a call that has failed. If pending work fails now, it came before the call's error, and its error is the one that stands. */
void rec_end_failed(struct recording *r);
void rec_free(struct recording *r);
/* Frees what recordings that were interrupted have left. */
void left_over_free(qn_vm *vm);
/* There may be stacked lists among the values of the program from now on, until the recording in progress, if there is one, is freed. */
void rec_note_stacked(qn_vm *vm);
/* The function whose call the recording in progress is of; NULL: there is none. */
struct anchor_specializations *rec_call_of(const qn_vm *vm);
/* Is a recording on, and no gradient in progress in it? */
bool rec_no_gradient(const qn_vm *vm);
void rec_drop(qn_vm *vm, void *recording); /* rec_free in the form that vm_own needs */
/* Does anything besides the recording hold the array of a node? */
bool rec_held(const struct recording *r, uint32_t node);
/* Executes, in program order, the pending nodes that something outside needs and all that can fail. False with an error raised. */
QN_MUST_CHECK bool rec_run_pending(struct recording *r);
/* The capture fails for this reason. Unless a gradient is in progress, the recording ends, too. False with an error raised if pending work
 * has failed. */
QN_MUST_CHECK bool rec_break(struct recording *r, break_reason why, const char *text);
/* All arrays of a graph are on one device, which its first array decides. False: the graph is on another device than this one. */
QN_MUST_CHECK bool rec_place(struct recording *r, int device);
/* The node of a value in this recording: numbers without a node become constants, arrays inputs. 0 if memory is short. */
uint32_t rec_node(struct recording *r, qn_value v);
/* The node of a value that is traced in this recording; 0 if it is not. */
uint32_t rec_traced(const struct recording *r, qn_value v);
/* The VM's random numbers are in the state that r, the recording around all arms, has come to (draws.c). */
void draws_settle(struct recording *r);
/* As rec_break, but executes nothing: for when a pattern is still being made. False with an error raised. */
QN_MUST_CHECK bool rec_stop_capture(struct recording *r, break_reason why, const char *text);
/* The tracer (owned) of an array that becomes input `node`: a header that has no data until the capture ends or breaks, so that the program
 * cannot look at it unnoticed. Takes over `data`. NULL with an error raised. */
QN_MUST_CHECK qn_array *rec_input(struct recording *r, uint32_t node, qn_array *data);
uint32_t rec_site(struct recording *r);
/* The name of the function that is running; NULL if it has none, or is the one that is recorded. */
const char *rec_function(const struct recording *r);
/* To be called after nodes were appended: executes them, or gives up the capture, if a limit or a try body asks for that. False with an
 * error raised. */
QN_MUST_CHECK bool rec_appended(struct recording *r);
/* Nodes that were appended since rec_mark gave `before` are not needed any more: they are removed if nothing else knows them, else they
 * stay and do nothing. */
typedef struct rec_marked {
  uint32_t n, ninputs, nobserved, nregions;
} rec_marked;
rec_marked rec_mark(const struct recording *r);
void rec_forget(struct recording *r, rec_marked before);
/* As rec_forget where no loop was made: the numbers that it would have begun with, which nobody else knows, leave the graph, too. */
void forget_operands(struct recording *r, rec_marked before);
/* Stores the value (taken over) of a node that was just appended. The node; 0 if there was none (node 0) or memory is short. */
uint32_t rec_keep(struct recording *r, uint32_t node, qn_value owned);
/* *v (owned) becomes the value of a node. If the op has given back its operand, which keeps its own node, *v becomes a header of its own.
 * False with an error raised. */
QN_MUST_CHECK bool rec_name(struct recording *r, qn_value *v, uint32_t node);
/* vm_hooks.force: something needs the data of a pending array. False with an error raised. */
QN_MUST_CHECK bool rec_force(qn_vm *vm, qn_array *a);
/* Guards that all symbols in a size have the values that they have in this call. */
void rec_pin(struct recording *r, qn_dim d);
/* A type in `outer`, the recording around arm r, as one of r, for the next input of r: sizes that are numbers of a turn are made of inputs of r,
 * other symbolic sizes are symbols of r. False with an error raised. */
QN_MUST_CHECK bool sizes_into_arm(struct recording *r, struct recording *outer, graph_type *t);
/* Can a size of arm r be one of the recording around it? Not if it depends on what changes in the arm. */
bool sizes_leave(const struct recording *r, qn_dim d);
/* A size of arm r in the recording around it, and those of a type; false if one depends on numbers or data of the arm. */
qn_dim sizes_outside(const struct recording *r, qn_dim d);
QN_MUST_CHECK bool sizes_type_outside(const struct recording *r, graph_type *t);
/* Has a node a size that depends on data, or on numbers of a turn? */
bool sizes_late(const struct recording *r, uint32_t node);
/* A size of arm r in `other`, an arm with the same inputs. It depends on no numbers or data of the arm. */
qn_dim sizes_beside(const struct recording *r, struct recording *other, qn_dim d);
/* Are two types of r one in this call? Then it becomes a fact that their sizes are equal. */
bool sizes_agree(struct recording *r, const graph_type *a, const graph_type *b);
/* The arm becomes a region: the recording around it relies on its facts, too. */
void sizes_lift(struct recording *r);
/* Is a host int data, and can it be a size of the call that is recorded? Then *d is that. False: it cannot, or an error is raised (data_sizes.c). */
bool data_size_of(qn_vm *vm, qn_value v, qn_dim *d);
/* May host ints that are data be sizes in an arm? */
bool data_sizes_in_arm(const struct recording *r);
/* The symbol of a host int of r that is data. */
qn_dim data_size_symbol(struct recording *r, uint32_t node, int64_t now);
/* Does a size of arm r depend on such a number? */
bool data_sizes_are_in(struct recording *r, qn_dim d);
/* A fact of order about such sizes of arm r is not known to hold: from here on the call goes on only if it does. False: that cannot be asked. */
bool data_sizes_ask(struct recording *r, const dim_fact *f);
/* May numbers of a loop's turns be sizes? Inside gradients only if these can follow them. */
bool turns_may_size(const struct recording *r);
/* Notes what the sizes of arm r that depend on numbers of turns are at most (dim_most), so that its values can be kept as rows. False: that is not known of
 * one of them. */
bool turns_note_most(struct recording *r);
/* What is made of the graph of r, as a gradient, cannot have them, or the capture is about to end within a gradient. True: the call is recorded once more without
 * such sizes, or made by the interpreter; an error is raised. False: r has none, or the capture has ended. */
bool turns_end(struct recording *r);
/* A captured call of r has given `result`: does data_sizes_hold, and does the result hold no linear map with sizes that are numbers of turns, which could be
 * differentiated where nothing can be recorded once more? False with an error raised: as data_sizes_end or turns_end. */
QN_MUST_CHECK bool data_sizes_stay(struct recording *r, qn_value result);
/* Turns of loops in arms are too many to be kept: the call is recorded once more, without those. An error is raised. */
void turns_uncounted(struct recording *r);
/* What was noted of such sizes since this was called the last time is asked for in later calls: to be called before an op that relies on it is
 * appended. False with an error raised. */
QN_MUST_CHECK bool data_sizes_hold(struct recording *r);
/* The call cannot have such sizes: it is recorded once more without them, or the interpreter makes it. Returns false with an error raised. */
bool data_sizes_end(struct recording *r);
/* The sizes of a node become plain numbers for whoever copies it to another graph: guards them, and writes the numbers to `t`. */
void rec_pin_type(struct recording *r, graph_type *t);
/* Makes room in `vals` for all nodes of the graph. False with an error raised. */
QN_MUST_CHECK bool rec_room(struct recording *r);
/* The value of a node: a pending array, or a host number, which is computed now. Owned, or the error value. */
QN_MUST_CHECK qn_value rec_value_of(struct recording *r, uint32_t node);
/* What a text waits for; NULL if it does not wait in this recording or around it. */
const struct waiting_text *rec_text_of(const struct recording *r, qn_value v);
/* For tree_each_part: is it no text that waits for data of recording `r`? */
bool rec_no_text_waits(void *r, qn_value v);
/* Is the value traced in one of the recordings around an arm? */
bool rec_traced_around(const struct recording *r, qn_value v);
/* The number of a key; 0 if it is not there. */
uint32_t key_number(const key_index *x, uint64_t key);
/* Adds a key that is not there. False with an error raised. */
QN_MUST_CHECK bool key_add(qn_vm *vm, key_index *x, uint64_t key, uint32_t number);
/* To be called before gradients become values (handing_out): executes, at once, the array work that the numbers among these nodes (0:
 * none) depend on. False with an error raised. */
QN_MUST_CHECK bool rec_hand_numbers(struct recording *r, const uint32_t *nodes, uint32_t n);
qn_value rec_raise_refusal(struct recording *r, uint32_t node, const op_refusal *why);
/* vm_hooks.same_fn: are two functions one? 1, 0, or -1 with an error raised. No guard can ask this of functions that the call was given, so
 * such a call is not captured. */
QN_MUST_CHECK int rec_same_fn(qn_vm *vm, qn_value a, qn_value b);
/* The value of a node (owned), computed again from the inputs if it was freed. To be called while nothing is being recorded. */
QN_MUST_CHECK qn_value rec_computed(struct recording *r, uint32_t node);
/* Runs `work` inside the recording in progress, or in one of its own. Owned, or the error value. */
QN_MUST_CHECK qn_value rec_within(qn_vm *vm, const rec_call_site *site,
                                  qn_value (*work)(struct recording *r, const rec_call_site *site));

/* Has a type no size that is a symbol? */
static inline bool type_is_fixed(const graph_type *t) {
  for (int i = 0; i < t->rank; i++)
    if (t->shape[i] < 0) return false;
  return true;
}
/* Sets variables to these values, which it borrows. */
void slots_set(qn_vm *vm, rec_slots s, const qn_value *to);
/* Arms do not become regions: forgets why, unless the program has to know. If memory was short that is why the capture ends. REC_NOT_YET, or
 * REC_FAILED with the error raised. */
QN_MUST_CHECK rec_answer arms_refused(struct recording *r);
/* Can a host number become a guard, since it does not depend on data? 1; 0; -1 with an error raised. */
int may_guard(struct recording *r, qn_value v);
/* Does a value come from an array's element, or from a region? Then no guard can be asked for it. */
bool rec_is_data(const struct recording *r, qn_value v);
/* The same of a node, but not of what changes from turn to turn: that the host may know once the turns are apart. */
bool rec_number_of_data(const struct recording *r, uint32_t node);
/* How many gradients are in progress, one inside the other, here and around the arms that r lies in. Inside another one that pushes tangents counts
 * as two. */
int rec_derivatives(const struct recording *r);
/* Are variables that share a value parted where a loop or branch may be captured (parted.c)? */
bool parted_wanted(const struct recording *r);
/* May a gradient that will be differentiated itself keep all floats of arm r (graph_may_be_kept)? Says of the loops in it how many turns they make at
 * most. False with or without an error raised. */
bool turns_may_be_kept(struct recording *r);
/* If it may not: may it once the turns have been counted that the loops in r, the body of a loop outside of all arms, make? */
bool turns_may_be_counted(const struct recording *r);
/* Likewise of an arm r, but for the body of a loop outside of all arms: will they be counted when what is around it becomes a part of the graph? */
bool turns_are_counted_around(const struct recording *r);
/* Are turns of loops in arms and turns counted where a branch or loop is appended to r? Not in arms, but for one that is the function of a vmap. */
bool turns_settle(const struct recording *r);
/* Are turns of loops in arms of r counted, when the arm around them all becomes a part of the graph? */
bool turns_count_in_arms(const struct recording *r);
/* Behind loop or branch `node`, which nobody takes anything from yet, appends the same one, in which it is known how many turns the loops in it make at most.
 * It; 0 if that is too many, or with an error raised. */
uint32_t turns_counted(struct recording *r, uint32_t node);
/* A branch or loop has been appended to r with which an arm has become a part of it: turns_counted if need be. The node; 0 with an error raised. */
uint32_t turns_settled(struct recording *r, uint32_t node);
/* Does each turn of a loop begin with copies of all floats that are derived (parted.c)? */
bool parted_turns(const struct recording *r);
/* Is a gradient in progress in which this value, a leaf, is a float that may be derived, and older than what is recorded in r? */
bool parted_leaf(const struct recording *r, qn_value v);
/* The id of the next node of r: those that have been recorded so far, in it and around it, have smaller ones, and what is recorded from now on, in it
 * and in arms of it, has none. */
static inline uint32_t rec_next_id(const struct recording *r) { return r->base + r->g->n; }
/* Parts some variables, and *value, behind an arm in r, or in which r goes on, where nodes with ids below `from` are older. False with an error
 * raised. */
QN_MUST_CHECK bool parted_arm(struct recording *r, uint32_t from, rec_slots slots, qn_value *value);
/* Inside two gradients and more, behind a turn: tells the variables apart that share a value as behind an arm, if a branch might have left the
 * turn (rec_part_rest). False with an error raised. */
QN_MUST_CHECK bool parted_rest(struct recording *r, rec_slots slots);
/* Appends a node with the value of `node`, so that uses of the one can be told from uses of the other. 0 with an error raised. */
uint32_t alias_of_node(struct recording *r, uint32_t node);
/* A branch on data becomes a node with regions (branches.c): as rec_if. */
QN_MUST_CHECK rec_answer branch_capture(struct recording *r, const rec_branch *branch, qn_value predicate,
                                        qn_value *result);

/* Ways of a branch in r do not agree, in that variable or (NULL) in none. */
static inline void fork_unlike(struct recording *r, const qn_value *variable) {
  struct recording *base = rec_base(r);
  base->unlike++;
  base->unlike_in = variable;
}

/* Of a recording that is freed (grown.c). */
void grown_free(struct recording *r);

/* ---- regions ---- */

/* Adds a copy of a region. Gives its args and, behind them, outs, which are copies that may be changed; NULL with an error raised. */
QN_MUST_CHECK uint32_t *regions_add(qn_vm *vm, region_list *l, const graph_region *region);
void regions_cut(qn_vm *vm, region_list *l, uint32_t n);
/* Removes the regions that have no nodes. */
void regions_drop_empty(qn_vm *vm, region_list *l);

#endif
