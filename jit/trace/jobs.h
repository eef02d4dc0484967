/* Compiler threads (worker.c): planning and compiling what was recorded, and the mailbox that a VM finds the results in. */
#ifndef JIT_TRACE_JOBS_H
#define JIT_TRACE_JOBS_H

#include "jit/run/compile.h"
#include "jit/trace/specialization.h"

/* What compiler threads work on, a job or a compile_task, and where it is: first in the queue of a crew, and when it is done in the mailbox of
 * the VM that it was done for. */
typedef struct parcel {
  struct parcel *next, **link; /* in the queue; link: what points to it, or NULL while it is in no queue */
  double since;                /* when it was queued, in milliseconds */
  size_t size;                 /* smaller ones are taken from the queue first */
  bool second;                 /* it is for calls that have code already: taken when nothing else waits */
  struct mailbox *box;         /* where it goes; NULL once it is there */
  struct parcel *after;        /* the next one in the mailbox, or among those that could not be queued yet */
} parcel;
/* A VM's mailbox: compiler threads put into it what they have made. They hardly run on a busy machine, so there is no lock that its VM could
 * have to wait for. It is freed, with what is in it, by the last who holds it, which may be a thread whose VM has closed. */
typedef struct mailbox {
  atomic_int refs; /* one for the VM, and one for each job and task that is on its way to it */
  atomic_int mail; /* nonzero: something is in it, or could not be queued yet */
  atomic_bool closed;
  _Atomic(parcel *) jobs, reports; /* finished jobs; finished tasks, each with its report */
} mailbox;
/* A tunable that one plan is made with. */
typedef struct tune_change {
  int tunable;
  int64_t value;
} tune_change;
/* A graph that is to be planned; when it is finished, the plan. */
typedef struct job {
  parcel line; /* must be the first member */
  atomic_bool cancelled;
  specialization
      *entry;   /* what the plan is for; only the VM's thread looks at it. NULL: nobody wants the plan any more */
  graph *graph; /* which others may share; owned until there is a plan */
  int64_t tune[TUNABLE_COUNT];
  bool trial;                /* the plan is one to be tried against that which the specialization has (trials.h) */
  bool spawn;                /* the VM may start a compiler */
  uint8_t device;            /* code of the device that runs the plan; kernels are compiled here for the CPU only */
  const char *name;          /* the function's, for the log; lives as long as the specialization */
  char shown[48];            /* its beginning, for other threads */
  shared_plan *plan;         /* the result, or NULL with the reason in `why` (empty: memory was short) */
  struct compile_task *task; /* what is to be compiled, on its way from the planner; NULL: nothing */
  char why[256];
  double ms; /* what planning took */
} job;
/* The kernels of a finished plan that are to be compiled; when it is finished, the report about that. */
typedef struct compile_task {
  parcel line;       /* must be the first member */
  shared_plan *plan; /* holds a reference */
  int64_t tune[TUNABLE_COUNT];
  bool spawn;     /* as in the job */
  char shown[48]; /* as in the job */
  compile_report report;
} compile_task;
/* Takes the first parcel off a list that is linked by `after`; NULL when there are no more. */
static inline parcel *parcel_pop(parcel **list) {
  parcel *p = *list;
  if (p) *list = p->after;
  return p;
}
/* Hands a graph (taken over) to the compiler threads, or compiles it here when `sync`. `trial`: what is different in a plan that is to be tried,
 * `changes` of them; else NULL. False: memory was short. */
bool job_submit(qn_vm *vm, specialization *e, graph *g, const char *name, bool sync, const tune_change *trial,
                uint32_t changes);
/* Frees the jobs that nobody wants any more among those that have come back or were never queued. jit_drain does so, too. */
void jobs_drop(qn_vm *vm);
/* Empties the VM's mailbox: a list of finished jobs, and one of finished tasks, which the caller frees. */
parcel *job_take_mail(qn_vm *vm, parcel **reports);
void job_free(job *j);
void compile_task_free(compile_task *t);
QN_MUST_CHECK bool engine_jit_open(qn_vm *vm);
void engine_jit_forget(qn_vm *vm); /* the VM closes */

#endif
