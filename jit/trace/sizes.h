/* Sizes that may differ from call to call: which axes of a call's arrays become symbolic when it is recorded, what a specialization asks of
 * sizes (pattern_sizes), and what host code that runs in a recording learns of them. (rec.h has what the interpreter and the builtins call.)
 */
#ifndef JIT_TRACE_SIZES_H
#define JIT_TRACE_SIZES_H

#include "jit/trace/pattern.h"

struct recording;

/* Between which numbers a host int lies (INT64_MIN, INT64_MAX: not known), and one that stands for it in hints. */
struct number_range {
  int64_t low, high, about;
};

/* Which axes are to be symbolic in the recording of a call that fits a pattern but for sizes. The axes of each part of that pattern have a
 * class: 0 for a size that stays a plain number; axes of one class had equal sizes in both calls and get one symbol. */
typedef struct size_wish {
  struct wish_part {
    uint8_t kind, rank; /* pat_kind; an array's rank */
    bool sized;         /* a host int that is symbolic where it is a size */
    uint32_t at;        /* where the classes of its axes begin */
  } * parts;
  uint32_t nparts;
  uint32_t *classes, nclasses; /* by axis of all parts; how many axes there are */
  struct wish_root {
    uint8_t kind;
    const qn_value *slot;
    uint32_t first; /* where its parts begin */
  } * roots;
  uint32_t nroots;
  qn_dim *symbols; /* by class: the symbol in the recording's graph; 0: not made yet */
  uint32_t most;   /* the highest class */
} size_wish;

/* Does a call fit a pattern in everything but sizes, and are there sizes that can be symbolic? Then the wish for its recording, owned, and in
 * `why` which size differs. NULL otherwise, with or without an error raised. `scalars` (NULL: none): by input the numbers of this call,
 * which are others than those that were guarded as sizes: these are symbolic, too. */
size_wish *size_wish_of(qn_vm *vm, const pattern *p, bool check_by_value, qn_value fn, const qn_value *args, int nargs,
                        const qn_value *scalars, text_buf *why);
/* The wish for the recording of a call that differs from this pattern in more than sizes, by dtypes or structure: what is symbolic there varies here,
 * too. Owned; NULL if there is nothing symbolic, or memory is short. */
size_wish *size_wish_like(qn_vm *vm, const pattern *p);
void size_wish_free(qn_vm *vm, size_wish *w);

/* Puts symbols in place of the sizes of an array that becomes input `input` of the recording, where the wish says so. `part` is its number in
 * the pattern, of which the root being traced is the last. False with an error raised. */
QN_MUST_CHECK bool sizes_of_input(struct recording *r, uint32_t part, uint32_t input, graph_type *t);
/* A host int becomes input `input` of the recording: notes whether it is symbolic where it is a size. False with an error raised. */
QN_MUST_CHECK bool sizes_of_int(struct recording *r, uint32_t part, uint32_t input, int64_t value);
/* The recording has ended well or broken off: demands of all symbolic sizes of its nodes that they are 2 or more, and gives its pattern what
 * later calls must fulfil. False if memory is short (no error is raised). */
QN_MUST_CHECK bool sizes_settle(struct recording *r);
/* The plan of a recording with symbolic sizes relies on more facts than the recording: from now on the pattern asks for them, too. False if
 * memory is short. */
QN_MUST_CHECK bool sizes_of_plan(qn_vm *vm, pattern *p, const dim_table *t);

/* Guards all symbolic sizes of the call that is recorded. Were there any that were not guarded? */
bool sizes_pin_all(struct recording *r);
/* As rec_graph_seen, of a value that may be a graph. */
void sizes_of_graph(struct recording *r, qn_value v);

/* The size that a node of a host int stands for, if it is made of sizes alone; then *d is set. */
bool sizes_of_number(struct recording *r, uint32_t node, qn_dim *d);

/* A size of an arm, or of the recording around all arms, as a number of it, computed from those that it is made of. 0 with or without an error raised. */
uint32_t sizes_number(struct recording *r, qn_dim d);
/* Guards a number that is a size. Owned, or the error value. */
qn_value sizes_guard(qn_vm *vm, qn_value v);
/* The operation of sizes that an op of host ints is. */
bool sizes_op_of(op_id op, dim_op *to);

/* Makes a size of v, a number of the arm in progress or of one around it. False: it is none, or made of something else; or an error is raised. */
bool sizes_in_arm(qn_vm *vm, qn_value v, qn_dim *d);

/* The symbol of a number of an arm. False: it cannot be one. */
bool sizes_number_in_arm(struct recording *r, uint32_t node, qn_dim *d);

/* A number of the recording outside of all arms is about to be guarded, because it is a size: notes the inputs that it is made of, which may be
 * symbolic in a later recording. */
void sizes_asked(struct recording *r, uint32_t node);

/* What is known of a host int's node: where it lies, and a number that stands for it in hints. */
struct number_range sizes_range(struct recording *r, uint32_t node);
/* As sizes_range of a value in r. */
struct number_range sizes_range_of(struct recording *r, qn_value v);
/* The number of a loop that counts from `first` up to `end`, values of r, is this input of its body: notes it, for sizes that are made of it.
 * False with an error raised. */
QN_MUST_CHECK bool sizes_of_turns(struct recording *body, struct recording *r, uint32_t input, qn_value first,
                                  qn_value end);
/* Is size d of arm r never negative, in no turn, as numbers and sizes outside of all arms are guarded already? */
bool sizes_never_negative(struct recording *r, qn_dim d);
/* Is it a fact that size d is not negative? With `asks` it becomes one. */
bool sizes_demand(dim_table *t, qn_dim d, bool asks);
/* Does a type depend on numbers of a turn? */
bool sizes_are_numbers(const struct recording *r, const graph_type *t);
/* Do the facts that sizes of arm r's latest nodes rely on hold in all turns? If that is not known the arm is given up; but with `ask` a check is made of
 * those that data decide, before what is appended next. False with an error raised. */
QN_MUST_CHECK bool sizes_hold(struct recording *r, bool ask);

/* ---- what is certain of sizes that are numbers (size_proofs.c) ---- */

/* Is size d of r never negative, in no turn? What must hold of sizes outside of all arms, so that this is so, becomes facts. */
bool sizes_certain(struct recording *r, qn_dim d);
/* Can an array of this type be made in r, whatever numbers its sizes are made of? (What is known of one way need not hold in another.) */
bool sizes_can_be(struct recording *r, const graph_type *t);
/* The same as sizes_certain, if necessary with guards on the values of numbers and sizes. */
bool sizes_certain_guarded(struct recording *r, qn_dim d);
/* Where a size of an arm lies. */
struct number_range sizes_between(struct recording *r, qn_dim d);
/* Have all symbols in a size outside of all arms certain values, by facts? */
bool sizes_fixed(const dim_table *t, qn_dim d);

enum { SIZE_LEAST = 2 /* smaller sizes are never symbolic */ };

#endif
