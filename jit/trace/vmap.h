/* vmap, as recordings and transforms see it. The mapped function runs once, on values that stand for one lane. Each node that depends on
 * such a value gets a counterpart that holds all lanes (vmap_lanes.c). If lanes go different ways at a branch or loop, both ways are
 * recorded (vmap_control.c). */
#ifndef JIT_TRACE_VMAP_H
#define JIT_TRACE_VMAP_H

#include "jit/graph/batch.h"
#include "jit/trace/rec.h"

struct recording;

/* What vmap_hold has stopped: nodes of the level `at` and of those around it get no counterparts for now; levels begun inside it do. */
typedef struct vmap_pause {
  bool on;
  struct vmap_level *at; /* NULL if no vmap was in progress */
  uint32_t seen;         /* the recording's vmap_seen when it began */
} vmap_pause;
/* A level: a call of a vmapped function in progress. */
struct vmap_level {
  struct vmap_level *outer;
  uint32_t depth;    /* 1 for the outermost level */
  uint32_t nregions; /* how many regions the recording had when the level began */
  graph_batch batch;
};

/* Calls a vmapped function inside a recording. site->args: the positional arguments, then the keywords (a record or nil). Owned, or the
 * error value. */
QN_MUST_CHECK qn_value vmap_call(struct recording *r, const rec_call_site *site);
/* Appends counterparts of the nodes that were recorded since the last time. False with an error raised: memory is short, or an op cannot be
 * done in all lanes at once. */
QN_MUST_CHECK bool vmap_advance(struct recording *r);
/* Until vmap_go_on, nodes of the levels in progress get no counterparts, so that they can be taken out of the graph again. Levels that are
 * begun meanwhile do make counterparts, and end before that. Nothing can be executed meanwhile. *before is for vmap_go_on. False with an
 * error raised. */
QN_MUST_CHECK bool vmap_hold(struct recording *r, vmap_pause *before);
/* To be called before a call whose derivative has a rule of its own, on `args`, whose float leaves have these nodes (but for host floats):
 * if any part of `args` differs between lanes, all of the nodes get lanes, so that the rule can be done in all lanes at once. False with an
 * error raised. */
QN_MUST_CHECK bool vmap_spread(struct recording *r, const uint32_t *nodes, uint32_t n, qn_value args);
/* Ends what vmap_hold began: counterparts are made again. */
void vmap_go_on(struct recording *r, const vmap_pause *before);
/* Do nodes from `from` on have counterparts, or checks for errors of lanes? Then they cannot be taken out of the graph. */
bool vmap_know(const struct recording *r, uint32_t from);
/* After vmap_advance: the counterpart of a node, at the innermost level where it has one; 0 if it is the same in all lanes. */
uint32_t vmap_whole(const struct recording *r, uint32_t node);
/* The node that gives the value of a node which all lanes share: `node`, unless that is a result of one lane's branch or loop. */
uint32_t vmap_shared(const struct recording *r, uint32_t node);
/* The counterpart of a node that holds the lanes of all levels; the node itself if it has none. */
uint32_t vmap_outermost(const struct recording *r, uint32_t node);
/* Raises that the data of v is read, which differs between lanes. The error value. */
qn_value vmap_raise_read(struct recording *r, qn_value v);
/* Is the function of a vmap being recorded in an arm, as if there were one lane, of which r is a part? */
bool vmap_aside(const struct recording *r);
/* Is anything that r records part of a lane? */
bool vmap_around(const struct recording *r);
/* If vmap_aside, is a node of r an array that may differ between the lanes? Then the program cannot have it as a host number. */
bool vmap_reads(const struct recording *r, uint32_t node);
/* If so, may an array or number differ between the lanes? Then the program cannot count by it. */
bool vmap_reads_value(const struct recording *r, qn_value v);
/* Frees what a recording keeps for vmap. */
void vmap_free(struct recording *r);
/* Frees what the frames of calls and loops in progress hold, when an exception of a host leaves these. */
void frames_drop(struct recording *r);
/* A node has failed. If it is the counterpart of an op of lanes, the pending error is made to name the first lane that fails. */
void vmap_blame(struct recording *r, uint32_t node);
/* Adds the first lane of a mask to the pending error: 1. 0: the mask is empty, and the error is cleared. -1: another error came before it. */
int vmap_name_first(struct recording *r, qn_value mask);

/* ---- control flow that differs from lane to lane ---- */

/* Is there a try in progress whose handler the lanes at work could leave to? */
bool vmap_catches(const struct recording *r);

enum { LANES_GUARDED = ARRAY_MAX_RANK + 3 }; /* how many operands an op that can fail has at most */
/* If an op can fail on data and not all lanes are at work: fills safe[0..nin) with operands (owned) with which it cannot fail in the other
 * lanes. Returns how many of these are not the op's own operands; 0 if those can stay (`safe` is not filled in then); -1 with an error
 * raised. */
QN_MUST_CHECK int vmap_guard(struct recording *r, op_id op, const qn_value *in, int nin, const op_attr *attr,
                             qn_value *safe);
/* To be called for an op on host numbers that all lanes share, which does not fail now: where only some lanes are at work, later calls are checked
 * for numbers with which it could fail, because none of them may be there. False with an error raised. */
QN_MUST_CHECK bool vmap_expect(struct recording *r, op_id op, const qn_value *in);
/* To be called before a builtin with an effect: arguments that differ between lanes are replaced by arrays of all lanes. False with an
 * error raised; if no lane is at work, the program never sees that error. */
QN_MUST_CHECK bool vmap_effect(struct recording *r, const builtin_def *def, qn_value *args, int nargs);
/* Is any lane at work? Reads data, which ends the capture. 1, 0, or -1 with an error raised. */
QN_MUST_CHECK int vmap_any(struct recording *r);
/* A branch that only some lanes come to, and which concerns all of them together, becomes one of the graph: its first arm is taken if any lane is at
 * work. The arguments are replaced as by vmap_effect. As branch_capture. */
QN_MUST_CHECK rec_answer vmap_where_any(struct recording *r, rec_branch *of, qn_value *args, int nargs,
                                        qn_value *result);

#endif
