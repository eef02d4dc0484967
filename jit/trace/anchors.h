/* Anchors: what hangs on a function's code, and the VM's part of the compiler. */
#ifndef JIT_TRACE_ANCHORS_H
#define JIT_TRACE_ANCHORS_H

#include "jit/trace/breaks.h"
#include "jit/trace/rec.h"

typedef struct specialization specialization;

/* How the code of a graph begins (body.h). */
typedef struct graph_code {
  fn_shared shared;  /* id: a hash, so that equal graphs have one */
  jit_anchor anchor; /* of its calls */
  bool chained;      /* counted: anchors of transforms of it have been asked for */
} graph_code;

/* Functions whose calls are parts of a recording or graph, and how many. */
typedef struct part_list {
  struct part {
    uint32_t id; /* of the function's anchor_specializations */
    uint64_t calls;
  } * list;
  uint32_t n, cap;
} part_list;

/* What became of calls, for the report: each is counted once. */
typedef enum call_fate {
#define CALL_FATE(symbol, text) CALL_##symbol,
#include "jit/trace/fates.def"
#undef CALL_FATE
  CALL_FATES
} call_fate;
extern const char *const call_fates[CALL_FATES];

/* What the VM knows of the calls of an anchor's function: how many there were, what became of them, and the specializations that serve
 * them. */
typedef struct anchor_specializations {
  jit_anchor *anchor;
  struct anchor_specializations *next; /* of the VM, to free them all */
  uint32_t id;                         /* for part_list */
  bool begun;                          /* the first call has come */
  bool part;                           /* its id has been in a part_list */
  uint8_t gave_up;                     /* of an anchor that is ANCHOR_EAGER: why, a break_reason */
  specialization *first;               /* most recently used first */
  /* Calls by what became of them, without those that its specializations count; those that stayed eager for a reason that no specialization has. */
  uint64_t calls[CALL_FATES], refused[BREAK_COUNT];
  part_list parts; /* of its recordings, and of the replays of specializations that have gone */
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

typedef struct vm_jit {
  uint64_t epoch; /* bumped when a watched global is rebound */
  anchor_specializations *anchors;
  struct chain_anchor *chains;
  uint32_t chains_left;  /* those of graphs that have gone */
  struct made *made;     /* by functions that are backends (backend.c), the latest first */
  struct mailbox *box;   /* what has been made for this VM */
  struct parcel *unsent; /* jobs that could not be queued yet, since a planner held the lock */
  uint64_t recordings;
  uint32_t last_id; /* of anchor_specializations */
  uint64_t last_rule;
} vm_jit;
static inline vm_jit *jit_of(qn_vm *vm) { return (vm_jit *)vm->jit; }

QN_MUST_CHECK anchor_specializations *anchor_specializations_of(qn_vm *vm, jit_anchor *a);
/* Adds `calls` to those of the function with this id. False where memory is short; no error is raised. */
QN_MUST_CHECK bool parts_add(qn_vm *vm, part_list *l, uint32_t id, uint64_t calls);
/* As parts_add, for calls that must not be lost: where memory is short they count as calls in nobody's graphs. */
void parts_count(qn_vm *vm, part_list *l, uint32_t id, uint64_t calls);
void parts_forget(part_list *l, uint32_t id);
void parts_free(qn_vm *vm, part_list *l);

/* ---- anchors of functions within transforms ---- */

/* A transform's anchor: specializations of transformed functions hang on the code plus the chain of transforms. */
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

void chains_leave(qn_vm *vm, const graph_code *b); /* the graph goes */
/* The anchor where specializations of a function value hang, which lives as long as there may be such functions. NULL within more than eight
 * transforms; with an error raised where memory is short. */
jit_anchor *anchor_of_value(qn_vm *vm, qn_value fn);

#endif
