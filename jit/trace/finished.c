/* What comes back from the compiler threads: plans for specializations, reports about code, and defects that they have met. */
#include <stdio.h>
#include <string.h>

#include "jit/run/device.h"
#include "jit/run/plan_run.h"
#include "jit/trace/anchors.h"
#include "jit/trace/breaks.h"
#include "jit/trace/jobs.h"
#include "jit/trace/report.h"
#include "jit/trace/repro.h"
#include "jit/trace/sizes.h"
#include "jit/trace/specialization.h"
#include "jit/trace/trials.h"

void jit_drain(qn_vm *vm) {
  parcel *reports, *jobs = job_take_mail(vm, &reports);
  text_buf log TEXT_OWNED = {0};
  for (parcel *p; (p = parcel_pop(&jobs));) {
    job *done = (job *)p;
    specialization *e = done->entry; /* NULL: nobody wants the plan any more */
    if (e) e->job = NULL;
    if (e && !done->trial) e->plan_ms = done->ms;
    if (e && done->trial) {
      trial_planned(vm, e, done->plan);
      done->plan = NULL;
    } else if (e && done->plan) {
      e->plan = done->plan;
      done->plan = NULL;
      e->state = SPEC_READY;
      if (!sizes_of_plan(vm, &e->pattern, &e->plan->plan->graph->dims)) {
        e->state = SPEC_BROKEN;
        e->why = BREAK_memory;
      }
      log_plan(vm, done->name, e, &log);
    } else if (e) {
      e->state = SPEC_BROKEN;
      e->why = done->why[0] ? BREAK_compile : BREAK_memory;
      snprintf(e->why_text, sizeof e->why_text, "%.60s", done->why);
      if (vm_logs(vm, LOG_breaks))
        log_line(&log, LOG_breaks, "%s stays eager for this call shape: %s%s%s", done->name ? done->name : "fn",
                 break_reasons[e->why], done->why[0] ? ": " : "", done->why);
      char kept[200] = "";
      if (e->why == BREAK_compile) repro_write(vm, e->graph, NULL, e->device, done->why, kept, sizeof kept);
      if (kept[0] && vm_logs(vm, LOG_breaks)) log_line(&log, LOG_breaks, "a reproduction of this is in %s", kept);
    }
    job_free(done);
  }
  for (parcel *p; (p = parcel_pop(&reports));) {
    trial_compiled(((compile_task *)p)->plan);
    log_compiled(vm, (compile_task *)p, &log);
    compile_task_free((compile_task *)p);
  }
  log_write(vm, &log);
  char text[256];
  while (devices_trouble(vm->engine, text, sizeof text)) {
    vm_write_later(vm, text, strlen(text));
    vm_write_later(vm, "\n", 1);
  }
}
