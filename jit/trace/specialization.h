/* Specializations: what a call was recorded as, guarded by its pattern, with the plan that replays it. */
#ifndef JIT_TRACE_SPECIALIZATION_H
#define JIT_TRACE_SPECIALIZATION_H

#include "jit/kernel/plan.h"
#include "jit/run/plan_run.h"
#include "jit/trace/pattern.h"
#include "jit/trace/recording.h"

/* A plan that a VM and the compiler threads may share. */
typedef struct shared_plan {
  atomic_int refs;
  atomic_bool abandoned;  /* nobody will run it: no need to go on compiling */
  atomic_long compile_us; /* what compiling its kernels took, once that is known */
  plan *plan;
} shared_plan;
void shared_plan_release(shared_plan *s);

typedef enum specialization_state {
  SPEC_COMPILING, /* calls run eagerly meanwhile */
  SPEC_READY,
  SPEC_BROKEN /* the recording broke off: calls like this run eagerly */
} specialization_state;

/* A scalar guard: host scalar expressions over the weak inputs, evaluated in order, some compared. */
typedef struct scalar_guard {
  uint8_t op; /* op_id, or OP_COUNT for an input, OP_COUNT + 1 for a constant */
  uint8_t nin;
  uint8_t dtype;  /* of its value */
  bool compare;   /* the value must equal `value` */
  uint32_t in[3]; /* guard numbers; of an input: the graph input number */
  qn_value value; /* to compare with, or the constant; scalars only */
} scalar_guard;

enum { GUARD_INPUT = OP_COUNT, GUARD_CONST = OP_COUNT + 1, GUARDS_MAX = 256 };
_Static_assert(OP_COUNT + 1 <= UINT8_MAX, "scalar_guard.op");

/* Which way is faster, the plan or the eager call (calls.c)? */
typedef struct race {
  uint8_t calls;    /* of this round, timed in both ways in turn */
  uint8_t rounds;   /* that have ended */
  bool code;        /* the plan had its best code; else the block VM ran what is being compiled */
  bool eager;       /* how the last round ended: eager calls are faster */
  int64_t least[2]; /* nanoseconds of the fastest call: the plan, the eager call */
  uint64_t again;   /* hits of the specialization at which the next round begins */
} race;

enum { RANDOM_DRAW, RANDOM_KEY, RANDOM_INPUTS = RANDOM_KEY + 2 };

struct specialization {
  struct specialization *next;
  uint8_t state;  /* specialization_state */
  uint8_t device; /* code of the device where its plan runs */
  uint64_t hash;  /* pattern_hash of the recorded call; 0: it may be any */
  pattern pattern;
  uint64_t epoch; /* at which the by-value globals were last found unchanged */
  scalar_guard *guards;
  uint32_t nguards;
  tpl_list result;
  shared_plan *plan;  /* NULL until ready */
  device_plan *there; /* what the device keeps of the plan */
  graph *graph;       /* as recorded, for explain and --jit verify; owned */
  break_reason why;
  span why_at;
  char why_text[64];
  /* The inputs of random numbers: the number of the first draw, and the two words of the key. Graph input numbers + 1; 0: none. */
  uint32_t random[RANDOM_INPUTS];
  uint64_t ndraws;
  uint64_t hits, replays; /* calls that it served; of these, with its plan */
  /* Of the others: those to which plan or code came too late, were timed, were done both ways (--jit verify). */
  uint64_t waited, timed, verified;
  part_list parts; /* of each replay */
  race race;
  bool reported_copies; /* QUERN_LOG=copies has named the inputs that are copied */
  double plan_ms;
  struct job *job; /* being compiled, or NULL */
  /* calls that it serves and that have not ended, or that an exception has left: it is not recorded again */
  uint32_t running;
  region_list regions; /* of the graph as recorded */
};

/* An anchor is in another state for the time of a call. It is as it was when the block is left, by a host's exception too: in files
 * that are compiled with -fexceptions. */
typedef struct anchor_lent {
  jit_anchor *anchor; /* NULL: it has been given back */
  uint8_t state;
  int32_t countdown;
} anchor_lent;
static inline void anchor_give_back(anchor_lent *l) {
  if (!l->anchor) return;
  l->anchor->state = l->state;
  l->anchor->countdown = l->countdown;
  l->anchor = NULL;
}
#define ANCHOR_LENT(name, a)                                                                                           \
  anchor_lent name __attribute__((cleanup(anchor_give_back))) = {(a), (a)->state, (a)->countdown}

/* The calls that a specialization has served are the anchor's from now on: it goes. */
void anchor_keep_counts(qn_vm *vm, anchor_specializations *list, const specialization *e);
/* Takes over a new specialization, which is the first to be looked at next; one that stays eager the last of all, so that it serves
 * only what no plan does. Where numbers of many values lead to one break, one without guards on numbers serves all of them. Gives what
 * serves calls like the recorded one. */
specialization *anchor_add(qn_vm *vm, anchor_specializations *list, specialization *e);
/* Turns a recording that has ended, of a call of `fn` that gave `result`, into a specialization: it gives up its pattern, graph and
 * regions. NULL with an error raised. */
QN_MUST_CHECK specialization *specialization_make(struct recording *r, qn_value fn, qn_value result);
void specialization_free(qn_vm *vm, specialization *e);
/* Frees what says which calls one serves and what they give, but not how they are made: its pattern, guards, template and graph. */
void specialization_clear(qn_vm *vm, specialization *e);
/* Frees what hung on an anchor, which knows nothing of it any more. */
void anchor_specializations_free(qn_vm *vm, anchor_specializations *e);
/* Has its compiled code turned out slower than eager calls? */
bool specialization_stays_eager(const specialization *e);
/* What a call must fulfil to be served by the specialization, as text, one guard a line; one guard about numbers, on no line. */
void specialization_guards(const specialization *e, text_buf *out);
void specialization_number_guard(const specialization *e, uint32_t i, text_buf *out);
/* Do the numbers that steered the recording lead the same way? `why` (may be NULL) receives the first that does not. */
bool specialization_guards_hold(qn_vm *vm, const specialization *e, const qn_value *scalars, text_buf *why);
/* Forgets the job that makes its plan; however many there are, in constant time. */
void job_cancel(qn_vm *vm, specialization *e);
/* Takes finished jobs from the mailbox, and sends what could not be sent. Called at anchors; waits for nobody. */
void jit_drain(qn_vm *vm);

#endif
