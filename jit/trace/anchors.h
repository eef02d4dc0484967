/* Anchors: what is known about the calls of a function's code; and the compiler's part of a VM (vm_jit). */
#ifndef JIT_TRACE_ANCHORS_H
#define JIT_TRACE_ANCHORS_H

#include "jit/trace/breaks.h"
#include "jit/trace/rec.h"

typedef struct specialization specialization;
typedef struct rewrite_rule rewrite_rule; /* rewrites.c */

/* What the code of every graph value begins with (body.h). */
typedef struct graph_code {
  fn_shared shared;  /* its id is a hash, so that equal graphs have the same one */
  jit_anchor anchor; /* where its calls are counted and its specializations hang */
  bool chained;      /* it counts in chain_anchor.live: a transform of it has been looked up */
  bool
      sized; /* it has the sizes of one call, to be guarded where anybody else than a call in the same recording gets it (rec_graph_seen) */
} graph_code;

/* The functions that were called inside a recording or graph, and how many times each. */
typedef struct part_list {
  struct part {
    uint32_t id; /* anchor_specializations.id of the function */
    uint64_t calls;
  } * list;
  uint32_t n, cap;
} part_list;

/* What can become of a call, for the report. Each call is counted under one of these, or under a break reason. */
typedef enum call_fate {
#define CALL_FATE(symbol, text) CALL_##symbol,
#include "jit/trace/fates.def"
#undef CALL_FATE
  CALL_FATES
} call_fate;
extern const char *const call_fates[CALL_FATES];

/* A list in a record among the arguments of a function that is stacked (stacked.c): argument `arg`, in it the field names[0], in that names[1], and so
 * on. */
enum { PLACE_DEPTH = 3, PLACES_MAX = 8 };
typedef struct stack_place {
  uint32_t arg, depth;
  qn_str *names[PLACE_DEPTH]; /* owned */
  bool apart;                 /* it never is again, since stacking has been in vain */
} stack_place;

/* What the VM knows about the calls of one function: how many there were, what became of them, and the specializations that serve them. */
typedef struct anchor_specializations {
  jit_anchor *anchor;
  struct anchor_specializations *next; /* the VM's list, to free them all */
  uint32_t id;                         /* names the function in part lists */
  bool begun;                          /* the first call has come */
  bool part;                           /* some part list has named it */
  uint8_t gave_up;                     /* if the anchor is ANCHOR_EAGER: why, a break_reason */
  uint8_t failed;                      /* how many recorded calls have failed since one was recorded to its end */
  bool forked;           /* results of its calls may differ in kind: these are recorded in several ways (forks.c) */
  bool ends_apart;       /* loops of its calls have ended with other kinds of values than was expected (states.c) */
  uint8_t missed;        /* how many recorded calls have failed, perhaps since they did so */
  bool many_ways;        /* some part of it has more ways than jit.ways */
  uint8_t restarts;      /* how often a recording was begun once more */
  uint64_t in_vain;      /* nodes recorded in ways that came to nothing (ways.c) */
  int64_t turns_counted; /* turns that are counted first are taken to be so many at least (kept_turns.c) */
  bool turns_uncounted;  /* they are too many: those in arms are not counted */
  bool sizes_apart;      /* numbers that are data are no sizes in its calls (data_sizes.c), */
  bool turns_apart;      /* and numbers of loops are none inside gradients */
  bool tries_apart;      /* calls often ended in handlers: bodies of try are not captured */
  specialization *first; /* most recently used first */
  /* Calls by what became of them. Those that a specialization has served are counted there as long as it exists. `refused`: calls that
   * stayed eager, by the reason, where no specialization has that reason. */
  uint64_t calls[CALL_FATES], refused[BREAK_COUNT];
  part_list parts; /* calls inside its recordings, and inside replays of specializations that were freed */
  uint32_t count, misses;
  /* a call was watched (run_watched) before any was recorded; a watched call made or changed arrays */
  bool watched, computes;
  bool stacks; /* lists among the arguments of its calls are stacked, or in records among these */
  /* How many calls were watched after the function had become hot and did nothing with arrays. While it is not 0 nothing is recorded. */
  uint8_t quiet;
  uint32_t stacked;    /* a bit for each of the first arguments: lists among them are stacked (stacked.c) */
  uint32_t apart;      /* likewise: they never are again, since stacking has been in vain */
  stack_place *places; /* PLACES_MAX of them, of which nplaces are used; or NULL */
  uint32_t nplaces;
  uint8_t exact; /* how many of the specializations are of code for just some sizes (calls.c) */
  bool numbers;  /* the last call that explain asked for was one that is not recorded otherwise (rec_asked_for) */
  bool full;     /* too many specializations or recordings: calls that none of them fits stay eager */
  /* short calls in a row that stayed eager; how many times the anchor has rested since a longer one */
  uint32_t streak, rests;
  int64_t most; /* how many elements the arrays among the arguments of one of these had at most */
  /* calls that stayed eager of which looking took a notable part, and how many ns that took, since such were weighed */
  uint32_t vain;
  int64_t looked;
  int64_t came; /* when the last call began that nothing serves (ns), 0 if nobody has looked at the clock */
  struct miss {
    span at;
    uint64_t asked; /* as specialization.asked */
    char text[240];
  } * recompiles; /* why calls were recorded again: what differed, and where */
  uint32_t nrecompiles, recompiles_cap;
} anchor_specializations;

enum { CHAINS_FOUND = 16 /* a power of two */ };

/* What recordings of a call that must be one graph came by (fullgraph.c), each thing once. */
typedef enum met_kind { MET_BREAK, MET_EFFECT, MET_READ, MET_EXIT } met_kind;
typedef struct met {
  uint8_t kind;     /* met_kind */
  const char *name; /* of an EFFECT; static */
  rec_reason why;   /* the place; of a BREAK also the reason */
} met;
typedef struct met_list {
  met *all;
  uint32_t n, capacity;
} met_list;

typedef struct vm_jit {
  qn_str *keywords; /* what messages call the argument of a transform that has what is given by keywords; owned */
  uint64_t epoch;   /* goes up when a watched global is rebound */
  anchor_specializations *anchors;
  struct chain_anchor *chains;
  uint32_t chains_left; /* how many of these belong to graphs of which none is alive */
  /* the anchors of functions within transforms that were looked up last, by the functions' ids; cleared when any is freed */
  struct chain_found {
    uint64_t id;
    jit_anchor *anchor;
  } found[CHAINS_FOUND];
  struct made *made;     /* what functions used as backends have made, the latest first (backend.c) */
  struct mailbox *box;   /* where compiler threads put what they have made for this VM */
  struct parcel *unsent; /* jobs that could not be queued yet, since a planner held the lock */
  uint64_t recordings;
  struct left_over *left_over; /* of interrupted recordings (recording.c) */
  struct recording *tapping;   /* the one whose tap the interpreter is making, or NULL */
  uint32_t last_id;            /* the last anchor_specializations.id given out */
  uint64_t last_rule;
  rec_reason last_reason; /* why the last capture has ended */
  rewrite_rule *rules;    /* patterns, those that are tried first in front (rewrites.c) */
  /* bytes of rows that loops which are run node by node keep (nodes.c): now, and at most since `kept_most` was set to 0 */
  int64_t kept_now, kept_most;
  met_list met;        /* while calls that must be one graph are made */
  bool asks_for_whole; /* the program has made functions whose calls must be one graph */
  int applying;        /* how many times these are being applied: meanwhile the list stays as it is */
} vm_jit;
static inline vm_jit *jit_of(qn_vm *vm) { return (vm_jit *)vm->jit; }

QN_MUST_CHECK anchor_specializations *anchor_specializations_of(qn_vm *vm, jit_anchor *a);
/* Adds `calls` to the count of the function with this id. False if memory is short; no error is raised then. */
QN_MUST_CHECK bool parts_add(qn_vm *vm, part_list *l, uint32_t id, uint64_t calls);
/* Like parts_add, for calls that must not get lost: if memory is short they are counted at the function itself, as parts of an unknown
 * graph. */
void parts_count(qn_vm *vm, part_list *l, uint32_t id, uint64_t calls);
void parts_forget(part_list *l, uint32_t id);
void parts_free(qn_vm *vm, part_list *l);

/* ---- anchors of functions within transforms ---- */

/* The anchor of a function inside transforms. It belongs to the innermost function's code and the chain of transforms. */
typedef struct chain_anchor {
  struct chain_anchor *next;
  uint64_t hash;
  uint32_t depth;
  /* the innermost function's code: its address, or, for code that may be freed, its id (a function of the program) or hash (a graph) */
  void *code;
  const void *chain[8]; /* transform_defs, outermost first */
  jit_anchor anchor;
  /* For a graph (`graph`): how many values whose graph has this hash are alive and have been looked up. When there are none, the chain is
   * freed some time later (vm_jit.chains_left). */
  bool graph;
  uint32_t live;
} chain_anchor;

void chains_leave(qn_vm *vm, const graph_code *b); /* the graph is freed */
/* The anchor where the specializations of a function value hang; it lives as long as there can be such functions. NULL for a function
 * inside more than eight transforms; NULL with an error raised if memory is short. */
jit_anchor *anchor_of_value(qn_vm *vm, qn_value fn);

#endif
