/* Compiler threads (worker.c): planning and compiling what was recorded, and the mailbox that a VM finds the results in. */
#ifndef JIT_TRACE_JOBS_H
#define JIT_TRACE_JOBS_H

#include "jit/run/compile.h"
#include "jit/trace/specialization.h"

/* A place in the queue of what is to be planned or compiled. */
typedef struct waiting {
  struct waiting *next, **link; /* link: what points to it; NULL: it is in no queue */
  double since;                 /* milliseconds */
  size_t size;                  /* smaller ones are taken first */
} waiting;
/* A VM's mailbox: compiler threads put into it what they have made. They hardly run on a busy machine, so there is no lock that its VM could
 * have to wait for. It is freed, with what is in it, by the last who holds it, which may be a thread whose VM has closed. */
typedef struct mailbox {
  atomic_int refs; /* the VM, and the jobs and tasks that are not in it */
  atomic_int mail; /* something is in it, or waits to be sent */
  atomic_bool closed;
  _Atomic(struct job *) jobs;
  _Atomic(struct compile_task *) reports; /* of compiled plans */
} mailbox;
typedef struct job {
  waiting line;        /* among what is to be planned; first */
  struct job *next;    /* in the VM's mailbox */
  struct mailbox *box; /* where the plan goes; NULL: it is there */
  atomic_bool cancelled;
  specialization *entry; /* of the VM's thread alone; NULL: nobody wants the plan any more */
  graph *graph;          /* owned until the plan takes it over */
  int64_t tune[TUNABLE_COUNT];
  bool spawn;                /* the VM may start a compiler */
  uint8_t device;            /* code; kernels are compiled here for the CPU only */
  const char *name;          /* of the function, for the log; lives as long as the specialization */
  char shown[48];            /* the same, cut, for other threads */
  shared_plan *plan;         /* result, or NULL with `why` (empty: memory was short) */
  struct compile_task *task; /* what is to be compiled of it, on its way from the planner; NULL: nothing */
  char why[256];
  double ms;
} job;
/* The kernels of a finished plan, to be compiled; afterwards the report about it. */
typedef struct compile_task {
  waiting line;              /* among what is to be compiled; first */
  struct compile_task *next; /* among the VM's reports */
  struct mailbox *box;       /* where the report goes; NULL: it is there */
  shared_plan *plan;         /* holds a reference */
  int64_t tune[TUNABLE_COUNT];
  bool spawn;
  char shown[48]; /* the name of the function, cut */
  compile_report report;
} compile_task;
/* Hands a graph (taken over) to the compiler threads, or compiles it here when `sync`. False: memory was short. */
bool job_submit(qn_vm *vm, specialization *e, graph *g, const char *name, bool sync);
/* Frees what has been forgotten and is the VM's own again: jit_drain does, too. */
void jobs_drop(qn_vm *vm);
/* The VM's finished jobs and reports, as lists; the caller frees them. */
job *job_take_mail(qn_vm *vm, compile_task **reports);
void job_free(job *j);
void compile_task_free(compile_task *t);
QN_MUST_CHECK bool engine_jit_open(qn_vm *vm);
void engine_jit_forget(qn_vm *vm); /* the VM closes */

#endif
