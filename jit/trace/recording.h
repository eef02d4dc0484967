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
#include "jit/trace/vmap.h"

/* Regions in the order of their ends. Their lists of nodes are one block each, args before outs. */
typedef struct region_list {
  graph_region *list;
  uint32_t n, cap;
} region_list;
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

/* A turn of a loop that is captured: the body in progress. */
typedef struct rec_turn {
  struct rec_turn *outer;
  struct recording *r;      /* where what stands directly in the body is recorded now */
  rec_slots slots;          /* what the body may rebind */
  int inner;                /* loops in it that the interpreter runs as usual */
  bool leaves, parts;       /* an arm leaves the loop; one leaves the turn */
  struct open_branch *open; /* branches one of whose arms has left the turn, the innermost first (branches.c) */
} rec_turn;

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
  bool arm; /* of an arm of a branch, which is looked at without data (branches.c): what is around it is `outer` */
  uint32_t *captures, captures_cap; /* of an arm, by input: the node of `outer` */
  uint32_t carries; /* so many first inputs are carries of a loop: in it they are not what they begin as */
  rec_turn *turn;   /* of the recording around all arms: the innermost one in progress */
  double unrolled;  /* nodes that loops captured so far would have made, unrolled */
  bool lenient;     /* of an arm: what cannot be in a region does not matter (rewrite) */
  bool hollow;      /* its inputs have no data: nothing is run, and who looks at data gets an error */
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
  /* capture: the part that becomes a specialization */
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
  struct vmap_level *lanes; /* the innermost one in progress */
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

/* ---- what a recording can do ---- */

/* The type of an array or a host scalar. */
static inline graph_type type_of_value(qn_value v) {
  graph_type t = {0};
  (void)value_graph_type(v, &t);
  return t;
}
/* What a value is, for the text of an error: "f32[4, 3]", "int 3". Lives until the end of the expression that asks. */
typedef struct said {
  char text[400];
} said;
said kind_said(qn_value v);
/* A host scalar without its node. */
static inline qn_value value_plain(qn_value v) { return (qn_value){.head = v.head & 0xff, .u = v.u}; }

/* Begins a recording on the VM: the one that is on, if any, waits until it has ended. NULL with an error raised. */
QN_MUST_CHECK struct recording *rec_begin(qn_vm *vm, bool capture);
/* A function with this anchor (NULL: none) is called and has not been asked about: is rec_call to make the call? Else the call is counted,
 * as a part of the recording that is on, or as one that passes the anchor. */
bool rec_callee(qn_vm *vm, jit_anchor *callee);
/* `what` must happen in order, and is not for a graph: ends a capture that is on. False if pending work raised. */
QN_MUST_CHECK bool rec_effect(qn_vm *vm, const char *what);
/* The function with this id (part_list) is no part of any recording of the VM any more. */
void recs_forget_part(qn_vm *vm, uint32_t id);
/* An arm of a branch begins: a hollow recording inside `outer`, whose values become inputs where they are used. The second arm of two begins
 * with the inputs of the first, which may be read until it is freed. NULL with an error raised. */
QN_MUST_CHECK struct recording *rec_arm_begin(struct recording *outer, const struct recording *first);
/* Two arms, whose graphs have their outputs, become the regions of a node of `r`; its operands are the predicate (0: there is none) and what
 * the second one has captured. 0 with an error raised. */
uint32_t arms_close(struct recording *r, graph_kind kind, uint32_t predicate, struct recording *const arms[2],
                    const op_attr *attr, uint32_t site);
/* Arm input for node `outer` of the recording around, which is not looked for among those that are there. 0 with an error raised. */
uint32_t arm_operand(struct recording *r, uint32_t outer);
/* The recording around all arms. */
struct recording *rec_base(struct recording *r);
/* An arm is over, and kept: arrays that it has borrowed get their nodes back, and the recording around it is on. */
void rec_arm_end(struct recording *r);
/* An arm does what cannot be in a region: raises an error that nobody catches but who looks at the arm. False. */
bool rec_give_up(struct recording *r, break_reason why);
/* Runs what is pending and leaves the recording: the outer one, or none, is on then. The struct stays for its owner (rec_free). */
QN_MUST_CHECK bool rec_end(struct recording *r);
/* As rec_end, where the call has failed: pending work that fails has failed before, so that its error takes the place of the call's. */
void rec_end_failed(struct recording *r);
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
/* As rec_break, but runs nothing: for where a pattern is still being made. */
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
/* `owned` is the value of a node that was just appended: gives the node, or 0 where there was none or memory is short. */
uint32_t rec_keep(struct recording *r, uint32_t node, qn_value owned);
/* *v, owned, is a result that becomes the value of a node. An op may give back its operand, which keeps its own node: then *v becomes a
 * header of its own. False with an error raised. */
QN_MUST_CHECK bool rec_name(struct recording *r, qn_value *v, uint32_t node);
/* vm_hooks.force: somebody needs the data of a pending array. */
QN_MUST_CHECK bool rec_force(qn_vm *vm, qn_array *a);
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
/* Runs `work` inside the recording that is on, or in one of its own. */
QN_MUST_CHECK qn_value rec_within(qn_vm *vm, const rec_call_site *site,
                                  qn_value (*work)(struct recording *r, const rec_call_site *site));

/* Does a value come from an array's element, or from a region? Then no guard can be asked for it. */
bool rec_is_data(const struct recording *r, qn_value v);
/* The body has come to its end in t->r: joins it with the arms that have left before, so that the turn ends where it began, and its variables
 * hold what they do in whichever way it went. *leaves: does the loop end here? False: there is no such end, or an error is raised. */
QN_MUST_CHECK bool turn_close(qn_vm *vm, rec_turn *t, qn_value *leaves);
void turn_drop(qn_vm *vm, rec_turn *t);
/* A branch on data becomes a node with regions (branches.c): as rec_if. */
QN_MUST_CHECK rec_answer branch_capture(struct recording *r, span at, qn_value predicate, rec_arm then,
                                        rec_arm otherwise, rec_slots assigned, qn_value *result);

/* ---- regions, index ---- */

/* Adds a region. Gives its nodes, args before outs, which are copies and may be changed; NULL with an error raised. */
QN_MUST_CHECK uint32_t *regions_add(qn_vm *vm, region_list *l, const graph_region *region);
void regions_cut(qn_vm *vm, region_list *l, uint32_t n);
/* Drops those that have no nodes. */
void regions_drop_empty(qn_vm *vm, region_list *l);

#endif
