/* Specializations: what a recorded call leaves, with the pattern and guards that later calls must fit, and the plan that makes them. */
#ifndef JIT_TRACE_SPECIALIZATION_H
#define JIT_TRACE_SPECIALIZATION_H

#include "jit/kernel/plan.h"
#include "jit/run/plan_run.h"
#include "jit/trace/pattern.h"
#include "jit/trace/recording.h"
#include "jit/trace/taps.h"

/* A plan, which a VM and the compiler threads may share (counted). */
typedef struct shared_plan {
  atomic_int refs;
  atomic_bool abandoned;  /* nobody will run it any more: compiling it can stop */
  atomic_long compile_us; /* the microseconds that compiling its kernels took; 0: not done yet */
  plan *plan;
  struct specialization *tries; /* the one that tries it (trials.h), or NULL. Only for the VM's thread */
} shared_plan;
void shared_plan_release(shared_plan *s);
/* Has it the best code that it will get: compiled kernels, or none since compiling them has failed or is switched off? */
static inline bool plan_has_best_code(const qn_vm *vm, const shared_plan *s) {
  const plan *p = s->plan;
  /* all kernels get their code at once */
  return p->nkernels == 0 || atomic_load_explicit(&p->kernels[0].code, memory_order_relaxed) != NULL ||
         !vm->tune[TUNE_jit_cc] || atomic_load_explicit(&s->compile_us, memory_order_relaxed);
}

typedef enum specialization_state {
  SPEC_COMPILING, /* the plan is being made; calls are eager meanwhile */
  SPEC_READY,
  SPEC_BROKEN /* the recording broke off: calls that fit stay eager */
} specialization_state;

/* A guard on host numbers: an expression of the weak inputs, and, if `compare`, the value that it must have. The guards of a specialization
 * are evaluated in order; each may use those before it. */
typedef struct scalar_guard {
  uint8_t op; /* an op_id, or GUARD_INPUT or GUARD_CONST */
  uint8_t nin;
  uint8_t dtype; /* of the value of the expression */
  bool compare;  /* whether the expression must have the value `value` */
  uint32_t sets; /* 1 + the graph input that gets the value: a size that is computed; 0: none does */
  /* the numbers of the guards that are the operands; for an input, in[0] is the number of the graph input */
  uint32_t in[3];
  qn_value value; /* what to compare with, or the constant; a plain number */
} scalar_guard;

/* Computes the sizes of a call that are made of host numbers by other operations than sizes are, before guards on sizes are looked at. False: one
 * cannot be computed. */
bool specialization_sizes_made(qn_vm *vm, const specialization *e, qn_array **inputs, qn_value *scalars);

enum { GUARD_INPUT = OP_COUNT, GUARD_CONST = OP_COUNT + 1, GUARDS_MAX = 256 };
_Static_assert(OP_COUNT + 1 <= UINT8_MAX, "scalar_guard.op");

/* Which way of making the call is faster, the plan or the interpreter? Found out in rounds (calls.c). */
typedef struct race {
  uint8_t calls;    /* how many calls of this round have been timed, in the two ways in turn */
  uint8_t rounds;   /* how many rounds have ended */
  bool code;        /* the present round is of the best code; before that the block VM ran what is being compiled */
  bool eager;       /* the last round has found eager calls faster */
  int64_t least[2]; /* the fastest call of this round in nanoseconds, by the plan and by the interpreter */
  uint64_t again;   /* the next round begins when the specialization has so many hits */
} race;

/* Have both ways been timed, so that `least` holds? */
static inline bool race_timed(const race *r) { return r->rounds || r->calls >= 2; }

/* A place where calls have left a plan for the interpreter. */
typedef struct exit_count {
  span at;
  int id; /* the error_id of what failed there; 0: it was no error, but a way that is not compiled */
  uint64_t hits;
} exit_count;
enum { EXITS_KEPT = 32 };

/* Sizes of calls, by their hash (pattern_sizes_hash), and how often they came. */
typedef struct hot_sizes {
  uint64_t hash;
  uint32_t calls;
} hot_sizes;
enum { HOT_SIZES = 4 };

struct specialization {
  struct specialization *next;
  uint8_t state;  /* specialization_state */
  uint8_t device; /* the code of the device where its plan runs */
  uint8_t mode;   /* rec_mode of the recorded call */
  uint64_t hash;  /* pattern_hash of the recorded call; 0: calls with any hash may fit */
  uint64_t asked; /* jit_asked of the function that was called */
  pattern pattern;
  uint64_t epoch; /* vm_jit.epoch when the globals that are guarded by value were last found unchanged */
  scalar_guard *guards;
  uint32_t nguards;
  tpl_list result;
  tap_list
      taps; /* that its plan makes, by the numbers in the graph; of a broken one those up to the break, without arguments */
  shared_plan *plan;  /* NULL until it is ready */
  device_plan *there; /* what the device keeps for the plan */
  graph *
      graph; /* as recorded, for explain, graph(...) and --jit verify; owned, and shared with jobs: nobody changes it */
  break_reason why;
  span why_at;
  char why_text[64];
  /* The inputs for random numbers, as input numbers + 1 (0: none): the number of the first draw, and the two words of the key. */
  uint32_t random[RANDOM_INPUTS];
  uint64_t ndraws; /* how many are drawn, if that is the same in each call */
  /* The outputs that are the state behind the call, as output numbers + 1; 0: it is what it was, but for `ndraws`. */
  uint32_t drawn[RANDOM_INPUTS];
  bool rooms; /* an index out of bounds may be that of an item for which a list has no room (recording.rooms) */
  bool exits; /* some check in the graph fails where the interpreter need not fail in the same way (recording.exits) */
  bool retry; /* its recording broke off, but the next one may not (forks.c); or it is to be recorded once more */
  bool expects_end;       /* as recording.expects_end */
  bool expects_turns;     /* likewise */
  bool limits_turns;      /* likewise */
  bool tried;             /* it holds bodies of try, so a call that leaves it need not fail */
  uint64_t hits, replays; /* how many calls it has served; how many of these by its plan */
  uint64_t weighed;       /* `replays` when it was last weighed what plans gain (calls.c) */
  /* How many of the other calls came before the plan or its code was ready; were timed; were made in both ways (--jit verify). */
  uint64_t waited, timed, verified;
  /* How many calls, or rests of calls, the interpreter has made although the plan was there, or because there is none; but for those that were
   * timed. And where they have left the plan: at most EXITS_KEPT places. */
  uint64_t reentries;
  exit_count *left;
  uint32_t nleft;
  met_list met;    /* of a broken one of a call that must be one graph */
  part_list parts; /* the calls inside of the recorded one, which each replay makes again */
  race race;
  uint64_t quick_until; /* serve_quick may serve calls until it has so many hits; 0: none */
  uint64_t trial_at;    /* and trial_takes is asked before calls from then on */
  bool outdated;        /* the patterns have changed since it was recorded, while a call of it was in progress */
  bool reported_copies; /* QUERN_LOG=copies has told which inputs are copied */
  /* Sizes that come often to a specialization for which they are symbols; of one that was made for just these sizes, their hash, else 0. */
  hot_sizes hot[HOT_SIZES];
  uint64_t exact;
  uint64_t seen,
      seen_at; /* its hits, and those of all specializations of the function, when it was last found to have been called (trials.c) */
  double plan_ms;
  int64_t kept_bytes;    /* of rows that loops kept while it was recorded, at most at once */
  struct job *job;       /* the job that makes its plan, or one to be tried, or NULL */
  struct trials *trials; /* plans that are tried against its own (trials.h); NULL: none so far */
  /* how many calls that it serves have not ended, or were left by an exception: while there are any it is not dropped */
  uint32_t running;
  region_list regions;     /* the regions of the graph as recorded */
  rewrite_notes rewritten; /* what patterns have replaced in it */
};

/* Puts an anchor into another state while a block runs. The state is restored when the block is left, also by an exception of a host (in
 * files compiled with -fexceptions). */
typedef struct anchor_lent {
  jit_anchor *anchor; /* NULL once the state has been restored */
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

/* Takes the specialization at *at, none of whose calls is running, off the list and frees it. The calls that it has served stay counted. */
void anchor_drop(qn_vm *vm, anchor_specializations *list, specialization **at);
/* Counts a call of a specialization for which sizes are symbols, with sizes of this hash. Has it come so often, more or less,
 * since this was answered by yes? */
bool specialization_comes_often(specialization *e, uint64_t hash, int64_t often);
/* To be called before a specialization is freed: the calls that it has served are counted at the anchor from now on. */
void anchor_keep_counts(qn_vm *vm, anchor_specializations *list, const specialization *e);
/* What the plans of an anchor have gained, in ns, since this was asked for the last time. */
int64_t anchor_plans_gained(const anchor_specializations *list);
/* Adds the calls that a specialization has served to calls[], by what became of them, but for those that simply stayed eager: returns how many
 * these are. */
uint64_t specialization_calls(const specialization *e, uint64_t calls[CALL_FATES]);
/* Adds a new specialization (taken over) to the anchor's list: in front, or at the end if it has no plan, so that it only serves calls that
 * no plan does. If recordings break off at one place for many different numbers, one specialization without guards on numbers replaces
 * them. Returns the specialization that serves calls like the recorded one. */
specialization *anchor_add(qn_vm *vm, anchor_specializations *list, specialization *e);
/* Makes a specialization of a recording that has ended, of a call of `fn` that gave `result`; takes the pattern, graph and regions out of
 * the recording. NULL with an error raised. */
QN_MUST_CHECK specialization *specialization_make(struct recording *r, qn_value fn, qn_value result);
void specialization_free(qn_vm *vm, specialization *e);
void trials_free(qn_vm *vm, specialization *e);
/* Has the patterns of the VM changed what it computes? Then it is not compared with the interpreter, neither in time nor in bits. */
static inline bool specialization_rewritten(const specialization *e) { return e->rewritten.applied != 0; }
/* The patterns have changed: what was compiled before serves no calls any more. */
void specializations_outdated(qn_vm *vm);
/* Frees the pattern, guards, template and graph of a specialization, but nothing of the plan. */
void specialization_clear(qn_vm *vm, specialization *e);
/* Frees the record of an anchor, which does not point to it any more. */
void anchor_specializations_free(qn_vm *vm, anchor_specializations *e);
/* Has its compiled code turned out slower than eager calls? */
bool specialization_stays_eager(const specialization *e);
/* Appends what a call must fulfil to be served by the specialization, one guard on each line; and one guard about a number, without a line
 * end. */
void specialization_guards(const specialization *e, text_buf *out);
void specialization_number_guard(const specialization *e, uint32_t i, text_buf *out);
/* Do the guards hold for these values of the inputs? `why` (may be NULL) gets the first one that does not. */
bool specialization_guards_hold(qn_vm *vm, const specialization *e, const qn_value *scalars, text_buf *why);
/* Cancels the job that makes its plan. Takes constant time, however many jobs there are. */
void job_cancel(qn_vm *vm, specialization *e);
/* Takes finished jobs out of the mailbox, and queues those that could not be queued before. Called when anchors are asked; waits for
 * nobody. */
void jit_drain(qn_vm *vm);

#endif
