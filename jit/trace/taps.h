/* Taps: the effects of a recorded call that only write out (print, save), which its plan makes in its turn. taps.c tells how. */
#ifndef JIT_TRACE_TAPS_H
#define JIT_TRACE_TAPS_H

#include "jit/graph/graph.h"
#include "jit/run/plan_taps.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "lang/builtin.h"

/* An effect of a recording: a node NODE_TAP of its graph, or of a graph inside that, has its number. */
typedef struct tap {
  const builtin_def *def;
  tpl_list args; /* a list with a value for each parameter; its outputs are numbers of the node's operands */
  span at;
} tap;
typedef struct tap_list {
  tap *list;
  uint32_t n, cap;
} tap_list;
/* Adds a tap, which takes over the template. Its number is l->n - 1. False with an error raised, and the template is freed. */
QN_MUST_CHECK bool taps_add(qn_vm *vm, tap_list *l, const builtin_def *def, span at, tpl_list *args);
void taps_free(qn_vm *vm, tap_list *l);
/* The graph is complete: removes the taps that no node of it, or of its regions, stands for, and numbers the others in the order of the graph.
 * False when memory is short, with an error raised; then they are as they were. */
QN_MUST_CHECK bool taps_settle(qn_vm *vm, tap_list *l, graph *g);

/* The taps of one call while it is made: by the recording that executes its graph, or by a plan. */
typedef struct tap_run {
  plan_taps plan; /* plan.made: how many have been made */
  qn_vm *vm;
  const tap_list *taps;
  qn_list *kept; /* NULL: taps are made. --jit verify: they are not, and their arguments are kept here, owned */
} tap_run;
/* `kept` (NULL: taps are made) is taken over, and belongs to whoever ends the run. */
void tap_run_begin(qn_vm *vm, tap_run *t, const tap_list *taps, qn_list *kept);
/* Frees the readings. */
void tap_run_end(tap_run *t);
/* Notes a number that was read. False with an error raised. */
QN_MUST_CHECK bool tap_run_read(tap_run *t, double number);

/* A call that the interpreter makes while some of its taps have been made already (`made`: these are passed over), or while they are compared
 * with those that its plan would make (`kept`). It lies in the frame of whoever makes the call, in vm->asked.taps. */
typedef struct tap_frame {
  struct tap_frame *outer;
  uint64_t made;
  const struct readings *read; /* borrowed: what the plan has read, which the call reads again; or NULL */
  uint32_t nread;              /* how much of it the call has read */
  const qn_list *kept;         /* borrowed, or NULL */
  uint64_t at;                 /* how many of these have been compared */
  bool differs;
  bool failed; /* a tap that was made has failed, which only the interpreter can tell */
} tap_frame;
static inline void tap_frame_enter(qn_vm *vm, tap_frame *f, uint64_t made, const struct readings *read,
                                   const qn_list *kept) {
  *f = (tap_frame){.outer = vm->asked.taps, .made = made, .read = read, .kept = kept};
  vm->asked.taps = f;
}
static inline void tap_frame_leave(qn_vm *vm, const tap_frame *f) { vm->asked.taps = f->outer; }

/* Are two values the same in every bit, all NaNs being one value? Of functions and the like only the kind is compared. same_leaf: for what is
 * no list or record; same_tree: *leaf (may be NULL) gets the number of the first leaf that differs, from 1 on. An error may be pending. */
bool same_leaf(qn_vm *vm, qn_value a, qn_value b);
bool same_tree(qn_vm *vm, qn_value a, qn_value b, uint32_t *leaf);

#endif
