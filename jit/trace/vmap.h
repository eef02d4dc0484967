/* vmap: what is recorded of one lane gets counterparts for all lanes (vmap.c); where lanes part at a branch or loop (vmap_control.c). */
#ifndef JIT_TRACE_VMAP_H
#define JIT_TRACE_VMAP_H

#include "jit/graph/batch.h"
#include "jit/trace/rec.h"

struct recording;

/* Which vmap's lanes get no counterparts for now (vmap_hold). */
typedef struct vmap_pause {
  bool on;               /* that of `at` and those around it; those inside it go on */
  struct vmap_level *at; /* NULL: none was in progress */
  uint32_t seen;         /* vmap_seen when it began */
} vmap_pause;
/* A vmap in progress. */
struct vmap_level {
  struct vmap_level *outer;
  uint32_t depth;    /* 1: the outermost */
  uint32_t nregions; /* regions before it */
  graph_batch batch;
};

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

/* ---- control flow that differs from lane to lane ---- */

enum { LANES_GUARDED = ARRAY_MAX_RANK + 3 }; /* operands that a fallible op has at most */
/* Gives an op that may fail operands that cannot fail in lanes that are not at work. Their number; then safe[0..nin) are all
 * operands, owned. -1 with an error raised. */
QN_MUST_CHECK int vmap_guard(struct recording *r, op_id op, const qn_value *in, int nin, const op_attr *attr,
                             qn_value *safe);
/* Before an effect: its arguments become those of all lanes. False with an error raised, which nobody sees if no lane is at work. */
QN_MUST_CHECK bool vmap_effect(struct recording *r, const builtin_def *def, qn_value *args, int nargs);

#endif
