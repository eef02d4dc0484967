/* What became of calls, for people to read: explain and the log (explain.c), and the reports at the end of a program (report.c, summary.c). */
#ifndef JIT_TRACE_REPORT_H
#define JIT_TRACE_REPORT_H

#include "jit/trace/jobs.h"
#include "jit/trace/specialization.h"

/* What serves a call: a specialization whose plan is ready (`why` is BREAK_none), or one that broke off, or none; then the reason. */
typedef struct served {
  qn_value fn; /* borrowed */
  jit_anchor *anchor;
  specialization *entry;
  break_reason why; /* BREAK_none if there is a plan */
  span at;
  char text[160]; /* the reason in words, with details */
} served;
/* Makes a call on behalf of `what` ("explain"), waits for its plan, and tells in *s what serves it. False with an error raised: that of the
 * call, or memory is short. */
QN_MUST_CHECK bool serve(qn_vm *vm, const char *what, qn_value fn, const qn_value *args, int nargs, served *s);
/* What calls take beyond the memory that the plan knows of, which is rows that loops keep: in the last run, or, until the plan has run, in the
 * recorded call. */
int64_t served_held_bytes(const specialization *e);
/* Why calls were recorded again: the reasons for those that asked jit for the same as the call that is served. How many, and number i. */
uint32_t misses_of(const served *s);
const struct miss *miss_of(const served *s, uint32_t i);
/* Waits until the plan of the specialization *served is made, but not until its kernels are compiled. *served may be NULL, or become NULL
 * meanwhile if it is freed. False with an error raised if it was interrupted. */
QN_MUST_CHECK bool plan_wait(qn_vm *vm, void *const *served);
/* Raises that there is no `what` ("graph", "code") of the call, and why. The error value. */
QN_MUST_CHECK qn_value raise_no_graph(qn_vm *vm, const served *s, const char *what);
/* A record with these fields, whose values are taken over. Owned; the error value if one of them is. */
typedef struct field {
  const char *name;
  qn_value v;
} field;
QN_MUST_CHECK qn_value fields_record(qn_vm *vm, const field *fields, size_t n);
#define FIELDS_RECORD(vm, ...)                                                                                         \
  fields_record(vm, (const field[]){__VA_ARGS__}, sizeof((const field[]){__VA_ARGS__}) / sizeof(field))
/* A list of what `item` makes (owned) of the numbers from 0 to n - 1; a list of n ints; a text as a value. Owned, or the error value. */
QN_MUST_CHECK qn_value list_of_items(qn_vm *vm, uint32_t n, qn_value (*item)(qn_vm *vm, const void *ctx, uint32_t i),
                                     const void *ctx);
QN_MUST_CHECK qn_value list_of_ints(qn_vm *vm, const int64_t *d, uint32_t n);
QN_MUST_CHECK qn_value text_value(qn_vm *vm, const char *s);

/* ---- what explain tells (steps.c) ---- */

/* The places where calls leave, or may leave, a plan: how many there are; `e` may be NULL. These, and the steps of a plan, as lists of records. And
 * all of it as a text that fits a screen; `compiled`: how many kernels are machine code. Owned, or the error value. */
enum { EXITS_SHOWN = 64 };
uint32_t exits_find(const specialization *e, exit_count out[EXITS_SHOWN]);
QN_MUST_CHECK qn_value step_records(qn_vm *vm, const served *s);
QN_MUST_CHECK qn_value exit_records(qn_vm *vm, const specialization *e);
QN_MUST_CHECK qn_value explain_report(qn_vm *vm, const served *s, uint32_t compiled);

/* ---- reports ---- */

/* Appends a place: "line 3" if it is in `file`, else "nn.qn:3". `file` NULL: the latter for all places. */
void report_place(qn_vm *vm, text_buf *t, const char *file, span at);
/* Appends what became of all calls of n functions, each function on its lines, those with most calls first, in at most `most` lines in all.
 * `file`: only functions of this script; NULL: those of the library, too. False with an error raised. */
QN_MUST_CHECK bool report_calls(qn_vm *vm, const char *file, const anchor_specializations *const *list, uint32_t n,
                                uint32_t most, text_buf *out);
/* Appends the name of a function for reports, with its transforms: "grad(loss)". */
void report_name(qn_vm *vm, text_buf *t, const jit_anchor *a);
/* Appends, one on each line, which limits the calls of a function have met, so that further ones stay with the interpreter. */
void report_limits(qn_vm *vm, text_buf *t, const anchor_specializations *a);
/* How many lines a text has. Each is ended by a newline. */
uint32_t report_lines(const text_buf *t);
/* The ending of a noun after the number n: "" or "s"; and the ending of an ordinal number: "st" for 1. */
const char *report_plural(uint64_t n);
const char *report_ordinal(int64_t n);
/* Shortens a line that begins at `from` to so many columns, "..." at its end. */
void report_cut(text_buf *t, size_t from, int columns);
/* Appends the most important of what became of n functions, in at most SUMMARY_LINES lines of SUMMARY_COLUMNS columns. `file`: the script,
 * whose name is left out before line numbers. `lines`: how many lines the whole report has. False with an error raised: memory was short. */
enum { SUMMARY_LINES = 48, SUMMARY_COLUMNS = 100 };
QN_MUST_CHECK bool report_summary(qn_vm *vm, const char *file, const anchor_specializations *const *list, uint32_t n,
                                  uint32_t lines, text_buf *out);

/* ---- the log ---- */

/* Is a place in the standard library, or no place at all? */
bool place_in_library(qn_vm *vm, span at);
/* The place that a node comes from, for people: of the calls through which it was reached, the innermost one that stands in the program
 * itself; if there is none, the place in the library. */
span node_place(qn_vm *vm, const graph *g, uint32_t node);
/* The name of a kernel, made of its ops: "dot_add_f32". */
const char *kernel_name(const plan_kernel *k);
/* Fills in the lines of the program that a kernel was made from, in ascending order. Returns how many they are. */
enum { KERNEL_LINES_MOST = 64 };
int kernel_lines(qn_vm *vm, const plan_kernel *k, int lines[KERNEL_LINES_MOST]);
/* Puts a line in its place among n ascending ones, unless it is there or is 0, which is no line. Gives how many there are then. */
int line_add(int lines[KERNEL_LINES_MOST], int n, int line);
/* The name of the text that a place is in, and its line; "?" and 0 if it is no place. */
const char *place_line(qn_vm *vm, span at, int *line);
/* Append what QUERN_LOG asks for, on the channels that are on: about a recorded call, about its plan, and about its compiled kernels. The
 * caller writes the text by log_write once nothing is left that must be done, since writing may leave by an exception. */
void log_specialization(qn_vm *vm, const jit_anchor *a, const specialization *e, text_buf *out);
void log_plan(qn_vm *vm, const char *name, const specialization *e, text_buf *out);
void log_compiled(qn_vm *vm, const compile_task *t, text_buf *out);
void log_write(qn_vm *vm, const text_buf *text);
/* Logs that this input is copied before each call, because it does not lie contiguously. */
void log_copy(qn_vm *vm, const char *name, const specialization *e, uint32_t input);

#endif
