/* vmap, as a recording and the transforms see it. The function runs once, for one lane; each node that depends on a lane gets a counterpart
 * that holds all lanes (vmap_lanes.c). Where lanes go different ways at a branch or a loop, both ways are recorded (vmap_control.c). */
#ifndef JIT_TRACE_VMAP_H
#define JIT_TRACE_VMAP_H

#include "jit/graph/batch.h"
#include "jit/trace/rec.h"

struct recording;

/* Lanes that get no counterparts for now (vmap_hold): those of level `at` and of all around it; levels inside it get theirs. */
typedef struct vmap_pause {
  bool on;
  struct vmap_level *at; /* NULL: no vmap was in progress */
  uint32_t seen;         /* the recording's vmap_seen when it began */
} vmap_pause;
/* A call of a vmapped function in progress. */
struct vmap_level {
  struct vmap_level *outer;
  uint32_t depth;    /* 1: the outermost */
  uint32_t nregions; /* how many regions the recording had when it began */
  graph_batch batch;
};

/* The call of a vmap in a recording. site->args: the positional arguments, then the keywords (a record or nil). Owned, or the error
 * value. */
QN_MUST_CHECK qn_value vmap_call(struct recording *r, const rec_call_site *site);
/* Appends the counterparts of the nodes that were recorded since the last call. False with an error raised: memory is short, or an op
 * cannot be done in all lanes at once. */
QN_MUST_CHECK bool vmap_advance(struct recording *r);
/* From here on no counterparts are made of the lanes in progress until vmap_go_on: what is appended may be taken out again. Lanes
 * that are begun meanwhile get theirs, and end before it. Nothing can run. `before`: for vmap_go_on. */
QN_MUST_CHECK bool vmap_hold(struct recording *r, vmap_pause *before);
/* Before a call whose derivative has a rule of its own: where any part of `args` differs from lane to lane, all `nodes`, its float leaves but
 * for host floats, get lanes of their own, so that the rule can be done in all lanes. False with an error raised. */
QN_MUST_CHECK bool vmap_spread(struct recording *r, const uint32_t *nodes, uint32_t n, qn_value args);
/* Ends what vmap_hold began: counterparts are made again. */
void vmap_go_on(struct recording *r, const vmap_pause *before);
/* Have nodes from `from` on counterparts, or checks for the errors of lanes? Then they cannot be taken out of the graph. */
bool vmap_know(const struct recording *r, uint32_t from);
/* The counterpart of a node at the innermost level where it has one, after vmap_advance; 0: it is the same in all lanes. */
uint32_t vmap_whole(const struct recording *r, uint32_t node);
/* A node's counterpart for all lanes of all levels; the node itself if it has none. */
uint32_t vmap_outermost(const struct recording *r, uint32_t node);
/* Raises that somebody reads a value that differs from lane to lane. The error value. */
qn_value vmap_raise_read(struct recording *r, qn_value v);
/* Frees what a recording keeps for lanes. */
void vmap_free(struct recording *r);
/* Frees the frames of calls and loops in progress, which a host's exception leaves. */
void frames_drop(struct recording *r);
/* Node i has failed: if it is the counterpart of an op of lanes, the pending error names the first lane that fails. */
void vmap_blame(struct recording *r, uint32_t node);
/* Names the first lane of a mask in the pending error. 1; 0: there is none, and the error is gone; -1: another error came first. */
int vmap_name_first(struct recording *r, qn_value mask);

/* ---- control flow that differs from lane to lane ---- */

enum { LANES_GUARDED = ARRAY_MAX_RANK + 3 }; /* operands that a fallible op has at most */
/* Where an op may fail on data, and not all lanes are at work: fills safe[0..nin) with operands, owned, that cannot fail in the other lanes.
 * Gives how many of them are not the op's own; 0: the operands can stay, and `safe` is not filled in; -1 with an error raised. */
QN_MUST_CHECK int vmap_guard(struct recording *r, op_id op, const qn_value *in, int nin, const op_attr *attr,
                             qn_value *safe);
/* Before a builtin with an effect: arguments that differ from lane to lane become those of all lanes. False with an error raised; where no
 * lane is at work the program never sees it. */
QN_MUST_CHECK bool vmap_effect(struct recording *r, const builtin_def *def, qn_value *args, int nargs);

#endif
