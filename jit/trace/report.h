/* What became of a program's calls, for people: explain and the log (explain.c), the report at the end (report.c, summary.c). */
#ifndef JIT_TRACE_REPORT_H
#define JIT_TRACE_REPORT_H

#include "jit/trace/jobs.h"
#include "jit/trace/specialization.h"

/* What serves a call: an entry, whose plan is ready unless it is broken; or none, and why. */
typedef struct served {
  jit_anchor *anchor;
  specialization *entry;
  break_reason why; /* BREAK_none: there is a plan */
  span at;
  char text[160]; /* the reason in words */
} served;
/* Makes the call and finds what serves it. False with an error raised: the call's, or no memory to compile it with. `what` asks. */
QN_MUST_CHECK bool serve(qn_vm *vm, const char *what, qn_value fn, const qn_value *args, int nargs, served *s);
QN_MUST_CHECK qn_value raise_no_graph(qn_vm *vm, const served *s, const char *what);
/* Fields of a record that is being made; takes over `v`. A failure sticks in *ok. */
void put_field(qn_vm *vm, qn_record *r, const char *name, qn_value v, bool *ok);
void push_item(qn_vm *vm, qn_list *l, qn_value v, bool *ok);
qn_value text_value(qn_vm *vm, const char *s);

/* ---- reports ---- */

/* "line 3", in another file than this one (NULL: in any) "nn.qn:3". */
void report_place(qn_vm *vm, text_buf *t, const char *file, span at);
/* What became of all calls of functions, a line for each function (of the script `file`; NULL: of the library, too), those with most
 * calls first, in at most `most` lines. Each call is told once. */
QN_MUST_CHECK bool report_calls(qn_vm *vm, const char *file, const anchor_specializations *const *list, uint32_t n,
                                uint32_t most, text_buf *out);
/* What a function is called in reports, with its transforms: "grad(loss)". */
void report_name(qn_vm *vm, text_buf *t, const jit_anchor *a);
const char *report_plural(uint64_t n); /* "" or "s" */
const char *report_ordinal(int64_t n); /* what stands behind the number: "st" of 1 */
/* The most important of what became of n functions, in at most SUMMARY_LINES lines of SUMMARY_COLUMNS columns. `file`: whose lines need no
 * name. `lines`: how long the whole report is. False: memory was short (raised). */
enum { SUMMARY_LINES = 48, SUMMARY_COLUMNS = 100 };
QN_MUST_CHECK bool report_summary(qn_vm *vm, const char *file, const anchor_specializations *const *list, uint32_t n,
                                  uint32_t lines, text_buf *out);

/* ---- the log ---- */

/* Is a place in the standard library, or nowhere? */
bool place_in_library(qn_vm *vm, span at);
/* Where a node was made: of the places that it was reached through the innermost that is the program's; in the library if none is. */
span node_place(qn_vm *vm, const graph *g, uint32_t node);
/* The lines of the program that a kernel was made from, ascending. */
enum { KERNEL_LINES_MOST = 64 };
int kernel_lines(qn_vm *vm, const plan *p, const plan_kernel *k, int lines[KERNEL_LINES_MOST]);
/* Puts a line in its place among n ascending ones, once; 0 is no line. Their number then. */
int line_add(int lines[KERNEL_LINES_MOST], int n, int line);
/* Source name and line of a place; "?" and 0 if it has none. */
const char *place_line(qn_vm *vm, span at, int *line);
/* Lines of QUERN_LOG, where their channels are on, for the caller to write when nothing is left that must be done: about a recorded
 * call, */
void log_entry(qn_vm *vm, const jit_anchor *a, const specialization *e, text_buf *out);
/* its plan, */
void log_plan(qn_vm *vm, const char *name, const specialization *e, text_buf *out);
/* the code of its kernels. */
void log_compiled(qn_vm *vm, const compile_task *t, text_buf *out);
void log_write(qn_vm *vm, const text_buf *text);
/* An input that is copied before each call since it does not lie contiguously. */
void log_copy(qn_vm *vm, const char *name, const specialization *e, uint32_t input);

#endif
