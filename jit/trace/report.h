/* What became of a program's calls, for people: explain and the log (explain.c), the report at the end (report.c, summary.c). */
#ifndef JIT_TRACE_REPORT_H
#define JIT_TRACE_REPORT_H

#include "jit/trace/jobs.h"
#include "jit/trace/specialization.h"

/* What serves a call: a specialization, whose plan is ready unless it is broken; or none, and why. */
typedef struct served {
  jit_anchor *anchor;
  specialization *entry;
  break_reason why; /* BREAK_none: there is a plan */
  span at;
  char text[160]; /* the reason in words */
} served;
/* Makes a call for `what` ("explain"), waits for its plan, and finds what serves it. False with an error raised: the call's own, or memory is
 * short. */
QN_MUST_CHECK bool serve(qn_vm *vm, const char *what, qn_value fn, const qn_value *args, int nargs, served *s);
/* Waits for the plan of the specialization in *served (NULL: none; it may go meanwhile), if it is being made; not for its kernels' compilers.
 * False: interrupted (raised). */
QN_MUST_CHECK bool plan_wait(qn_vm *vm, void *const *served);
/* Raises that the call has no `what` ("graph", "code"), and why. The error value. */
QN_MUST_CHECK qn_value raise_no_graph(qn_vm *vm, const served *s, const char *what);
/* A record of these fields, whose values are taken over: an error value among them is the result. Owned. */
typedef struct field {
  const char *name;
  qn_value v;
} field;
QN_MUST_CHECK qn_value fields_record(qn_vm *vm, const field *fields, size_t n);
#define FIELDS_RECORD(vm, ...)                                                                                         \
  fields_record(vm, (const field[]){__VA_ARGS__}, sizeof((const field[]){__VA_ARGS__}) / sizeof(field))
/* A list of what `item` makes (owned) of the numbers from 0 to n - 1; one of n ints; a text as a value. Owned, or the error value. */
QN_MUST_CHECK qn_value list_of_items(qn_vm *vm, uint32_t n, qn_value (*item)(qn_vm *vm, const void *ctx, uint32_t i),
                                     const void *ctx);
QN_MUST_CHECK qn_value list_of_ints(qn_vm *vm, const int64_t *d, uint32_t n);
QN_MUST_CHECK qn_value text_value(qn_vm *vm, const char *s);

/* ---- reports ---- */

/* Adds a place: "line 3" in `file`; "nn.qn:3" in others, or, where `file` is NULL, in all. */
void report_place(qn_vm *vm, text_buf *t, const char *file, span at);
/* What became of all calls of functions, a line for each function (of the script `file`; NULL: of the library, too), those with most
 * calls first, in at most `most` lines. Each call is told once. */
QN_MUST_CHECK bool report_calls(qn_vm *vm, const char *file, const anchor_specializations *const *list, uint32_t n,
                                uint32_t most, text_buf *out);
/* Adds what a function is called in reports, with its transforms: "grad(loss)". */
void report_name(qn_vm *vm, text_buf *t, const jit_anchor *a);
/* How many lines a text has, each ended by a newline. */
uint32_t report_lines(const text_buf *t);
/* What stands behind the name of n things, "" or "s"; and behind a number, "st" of 1. */
const char *report_plural(uint64_t n);
const char *report_ordinal(int64_t n);
/* The most important of what became of n functions, in at most SUMMARY_LINES lines of SUMMARY_COLUMNS columns. `file`: whose lines need no
 * name. `lines`: how long the whole report is. False: memory was short (raised). */
enum { SUMMARY_LINES = 48, SUMMARY_COLUMNS = 100 };
QN_MUST_CHECK bool report_summary(qn_vm *vm, const char *file, const anchor_specializations *const *list, uint32_t n,
                                  uint32_t lines, text_buf *out);

/* ---- the log ---- */

/* Is a place in the standard library, or nowhere? */
bool place_in_library(qn_vm *vm, span at);
/* The place that a node was made at, for people: of all places that it was reached through, the innermost in the program itself; where there
 * is none, the one in the library. */
span node_place(qn_vm *vm, const graph *g, uint32_t node);
/* What a kernel is called, by its ops: "dot_add_f32". */
const char *kernel_name(const plan_kernel *k);
/* Fills in the lines of the program that a kernel was made from, ascending, and gives how many they are. */
enum { KERNEL_LINES_MOST = 64 };
int kernel_lines(qn_vm *vm, const plan_kernel *k, int lines[KERNEL_LINES_MOST]);
/* Puts a line in its place among n ascending ones, unless it is there or is 0, which is no line. Gives how many there are then. */
int line_add(int lines[KERNEL_LINES_MOST], int n, int line);
/* Source name and line of a place; "?" and 0 if it has none. */
const char *place_line(qn_vm *vm, span at, int *line);
/* Each adds what QUERN_LOG wants to know, where its channels are on, of a recorded call, of its plan, and of its compiled kernels. The caller
 * writes it with log_write when nothing is left that must be done. */
void log_specialization(qn_vm *vm, const jit_anchor *a, const specialization *e, text_buf *out);
void log_plan(qn_vm *vm, const char *name, const specialization *e, text_buf *out);
void log_compiled(qn_vm *vm, const compile_task *t, text_buf *out);
void log_write(qn_vm *vm, const text_buf *text);
/* Logs that an input is copied before each call, since it does not lie contiguously. */
void log_copy(qn_vm *vm, const char *name, const specialization *e, uint32_t input);

#endif
