/* Patterns: what the values of a call must look like to be served by a specialization. Templates: how its result is made.
 *
 * A pattern has a root for each value that the recorded call could see. When a later call is matched against it, the inputs of the graph
 * are collected on the way. A template says how the value that the call returned is put together from the graph's outputs.
 */
#ifndef JIT_TRACE_PATTERN_H
#define JIT_TRACE_PATTERN_H

#include "jit/graph/graph.h"
#include "jit/trace/breaks.h"
#include "jit/trace/rec.h"

/* Something of a graph could not be made: raises that memory is short, unless an error that says why is pending already. False. */
bool fail_memory(qn_vm *vm);
/* A list of nodes of a graph. */
typedef struct node_list {
  uint32_t *nodes, n, cap;
} node_list;
QN_MUST_CHECK bool nodes_add(qn_vm *vm, node_list *l, uint32_t node); /* false with an error raised */
void nodes_free(qn_vm *vm, node_list *l);

/* ---- patterns ---- */

/* A pattern is a sequence of parts (pat) of these kinds, in preorder: each describes one value, and containers are followed by their items'
 * parts. */
typedef enum pat_kind {
  PAT_ARRAY,  /* an array of this dtype, rank and sizes; it becomes graph input `input` */
  PAT_SCALAR, /* an int or a float (`tag`); it becomes the weak graph input `input` */
  PAT_EXACT,  /* a value equal to `value`: nil, bool, text, dtype, device, range, module, builtin function */
  PAT_LIST,   /* a list of n items; if `tag` is TAG_SIGNAL, a stacked one (stacked.c) */
  PAT_RECORD, /* a record of n fields with the names of `value`, a record of nils */
  PAT_FN      /* a function with this code and n captures */
} pat_kind;
enum { PAT_ANY_DEVICE = UINT32_MAX };
typedef struct pat {
  uint8_t kind, tag, dtype, rank;
  /* For a container: how many items; for an array: the code of its device, or PAT_ANY_DEVICE; for a text: 1 if any text fits. */
  uint32_t n;
  uint32_t input; /* the number of the graph input */
  uint32_t
      dims; /* where its `rank` sizes begin in pattern.dims; for a function: where the names of its captures do in pattern.names, + 1 */
  /* For an array: the layout that it must have in memory (layout_code), 0 if any will do. For a graph its hash, for a function of the
   * program the id of its code (code_id). */
  uint64_t layout;
  qn_value value; /* owned; for PAT_FN: the address of the code in u.p, not owned */
} pat;

enum { PATTERN_DEPTH = 100 /* how deep containers may nest */ };

typedef enum root_kind { ROOT_ARG, ROOT_FN, ROOT_GLOBAL } root_kind;
typedef struct root {
  uint8_t kind;  /* root_kind */
  bool by_value; /* a global that holds no arrays or numbers: compared only if the epoch has moved */
  bool library;  /* a global that the standard library reads: explain does not mention it */
  uint32_t arg;
  uint32_t first; /* where its parts begin in pattern.pats */
  qn_value *slot; /* for a global: where its value is */
  rec_cell *cell;
  qn_str *
      name; /* of a global or an argument, borrowed (from pattern.names, or a body's `params`, or names that live long); or NULL */
  qn_value tracer; /* while recording: the tracer, which rec_global returns whenever the global is read again; owned */
  qn_value given;  /* while recording: what an argument was, unless it is an array, whose tracer has the data; owned */
} root;

/* What a pattern asks of sizes that are symbolic. A symbol stands for the size of an axis of an input; all axes with the same symbol have the
 * same size, which is 2 or more. */
enum {
  PLACE_INT = UINT32_MAX,
  INT_SIZE_MOST =
      1 << 24 /* larger ints are no symbols: an array of so many elements need not exist for what is computed */
};
typedef struct pattern_sizes {
  arena arena;
  dim_table dims; /* the symbols, and as facts what the recording and the plan rely on */
  struct size_place {
    uint32_t input;
    uint32_t axis; /* PLACE_INT: the input is a host int, and that is the size */
    qn_dim symbol;
    uint32_t array; /* while recording, of an int: a node, an array without elements of that size; 0: none yet */
  } * places;       /* each symbolic axis, and each int */
  uint32_t nplaces;
  /* graph inputs that are host ints with the value of a size: the program reads sizes as numbers */
  struct size_input {
    uint32_t input;
    qn_dim size;
  } * inputs;
  uint32_t ninputs;
} pattern_sizes;

/* An argument that must be an array of plain sizes, as pattern_match_quick looks at it. */
typedef struct array_check {
  uint32_t arg, input;
  uint32_t type;        /* what the bytes of dtype, rank, device and contiguous must be, */
  uint32_t mask;        /* and those of them that must be so */
  const int64_t *sizes; /* the first of its sizes, of which there are `rank` */
  uint32_t rank;
} array_check;

/* Everything that the values of a call must fulfil; built while the call is recorded. */
typedef struct pattern {
  pat *pats;
  uint32_t n, cap;
  int64_t *dims; /* plain numbers, or negative: symbols (qn_dim) */
  uint32_t ndims, dims_cap;
  root *roots;
  uint32_t nroots, roots_cap;
  uint32_t nargs;
  uint32_t ninputs; /* how many graph inputs there are so far, weak ones included */
  uint32_t leaves;
  pattern_sizes *sizes; /* NULL: all sizes are plain numbers */
  node_list asked;      /* inputs that are host ints which were guarded since sizes are made of them */
  /* What pattern_settle makes: how the arguments that are arrays are looked at, and the roots that are something else. NULL: not made */
  array_check *checks;
  uint32_t *others, nchecks, nothers;
  bool flat;      /* are these arrays all inputs that there are? */
  qn_str **names; /* what the program calls arguments and what functions capture; each owned or NULL */
  uint32_t nnames, names_cap;
  /* The part of the function itself, if that has no captures, or is one within transforms whose options (owned; nil: there are none) are the same
   * value: then it is no other either. */
  const pat *own;
  qn_value options;
} pattern;

/* ---- result templates ---- */

/* Parts of a template. Functions keep their identity: one that the call was given comes back itself; one that the call made is a new
 * function in each call, and the same one at all its places in the result. */
typedef enum tpl_kind {
  TPL_OUTPUT,
  TPL_VALUE,
  TPL_LIST,
  TPL_RECORD,
  TPL_FN,    /* a function with the captures that follow; if it has a number, each call makes a new one */
  TPL_AGAIN, /* the new function with this number, at another place */
  TPL_GIVEN, /* a function that was among the values of the call */
  TPL_TEXT,  /* a text that `def` makes of the items of the list that follows; NULL: format_part does */
  TPL_CHOICE /* of the n items that follow the one whose number is an output */
} tpl_kind;
typedef struct tpl {
  uint8_t kind;
  uint32_t n; /* how many items follow; TPL_GIVEN: how many steps its path has */
  /* The number of a graph output, or of a new function (from 1 on); TPL_GIVEN: where its path begins in `paths`. */
  uint32_t output;
  /* owned: the value itself, or a record of nils with the names, or the function whose captures are replaced */
  qn_value value;
  const builtin_def *def; /* of TPL_TEXT */
} tpl;
typedef struct tpl_list {
  tpl *tpls;
  uint32_t n, cap;
  uint32_t made; /* how many new functions it makes */
  bool stacks;   /* stacked lists are in the result, which are ordinary ones for whoever has called (stacked_results) */
  /* For each TPL_GIVEN: a root_kind; the number of the argument, or of the root in the pattern; the steps from there down, the last one
   * first. */
  uint32_t *paths, npaths, paths_cap;
} tpl_list;

/* ---- making and matching ---- */

/* Do the values of a call fit? Collects the inputs by number: arrays (borrowed), or NULL and the number in scalars. `check_by_value`: the
 * epoch has moved, so that globals guarded by value are compared, too. If the call does not fit, `why` (may be NULL) gets the first
 * difference. */
bool pattern_match(const pattern *p, bool check_by_value, qn_value fn, const qn_value *args, int nargs,
                   qn_array **inputs, qn_value *scalars, text_buf *why);
/* The pattern of a call of `fn` is finished: prepares pattern_match_quick. Where memory is short that stays as it was, with nothing raised. */
void pattern_settle(qn_vm *vm, pattern *p, qn_value fn);
/* pattern_match for the most common calls, whose arrays lie contiguously. False: pattern_match has to find out. *flat: all inputs are arrays
 * without gaps. */
bool pattern_match_quick(const pattern *p, bool check_by_value, qn_value fn, const qn_value *args, int nargs,
                         qn_array **inputs, qn_value *scalars, bool *flat);
/* Does a call fit in all but the sizes of its arrays, which are on the CPU? These are put into `sizes`, where the pattern's are in `dims`. */
bool pattern_match_but_sizes(const pattern *p, bool check_by_value, qn_value fn, const qn_value *args, int nargs,
                             int64_t *sizes);
/* Appends what argument `arg` is called. */
void pattern_print_arg_name(const pattern *p, uint32_t arg, text_buf *out);
/* How long a list argument must be; -1 if it need be no list. */
int64_t pattern_list_length(const pattern *p, uint32_t arg, qn_str *const *names, uint32_t n);
/* Appends where a part of the pattern is, by the names that the program has for it: "p.w", "l[2]", "global scale"; "argument 1" where it has
 * none. */
void pattern_print_place(const pattern *p, uint32_t part, text_buf *out);
void pattern_free(qn_vm *vm, pattern *p);
/* A hash of the symbolic sizes of a call that pattern_match has found; not 0. */
uint64_t pattern_sizes_hash(const pattern *p, qn_array *const *inputs, const qn_value *scalars);
/* Appends one of these sizes: "axis 0 of x is 64". */
void pattern_print_size(const pattern *p, qn_array *const *inputs, const qn_value *scalars, text_buf *out);
/* Do the symbolic sizes of inputs that pattern_match has found fulfil what is asked of them? Fills in the inputs that are sizes. `why` as
 * there. To be called if p->sizes is set. */
bool pattern_sizes_hold(qn_vm *vm, const pattern *p, qn_array **inputs, qn_value *scalars, text_buf *why);
/* Fills in the inputs that are sizes, for symbols whose values the inputs say. False if memory is short (no error is raised). */
bool pattern_sizes_fill(qn_vm *vm, const pattern *p, qn_array **inputs, qn_value *scalars);
void pattern_sizes_free(qn_vm *vm, pattern_sizes *s);
/* Appends a fact about sizes: "n >= 2", "n * m == 64". */
void print_fact(const dim_table *t, const dim_fact *f, text_buf *out);
/* For a call that computed nothing on arrays: if it was given none either, any texts fit from now on, so that a function that looks up or
 * splits texts is not recorded for each of them. False if it was given arrays. */
bool pattern_any_text(pattern *p);
/* A number that identifies the code of a function, also against code that was at the same address before; equal graphs have the same one
 * (their hash). */
uint64_t code_id(const qn_fn *f);
/* How the elements of an array lie in memory, as a number to compare arrays of one shape by, or of shapes that differ in sizes of 2 or more: those
 * that permute the axes of an array without gaps are alike then. Never 0. */
uint64_t layout_code(const qn_array *a);
/* A hash of the static facts of a call: structure, dtypes, sizes, functions. Calls with equal facts have equal hashes. Never 0. */
uint64_t pattern_hash(qn_value fn, const qn_value *args, int nargs);
/* Appends the guards as text, one on each line. */
void pattern_print(const pattern *p, text_buf *out);
/* Appends what argument `arg` must look like. */
void pattern_print_arg(const pattern *p, uint32_t arg, text_buf *out);
/* Appends what the result of graph g looks like. */
void template_print(const tpl_list *t, const graph *g, text_buf *out);
/* Appends where a graph input comes from, in the same words. */
void pattern_input_name(const pattern *p, uint32_t input, text_buf *out);

/* Makes a value from a template. `outputs` are the values of the outputs (borrowed); `call`: the values of the call, which fit the pattern;
 * NULL for a template without functions of a call. Owned, or the error value. */
typedef struct call_values {
  const pattern *p;
  qn_value fn;
  const qn_value *args;
} call_values;
QN_MUST_CHECK qn_value template_build(qn_vm *vm, const tpl_list *t, const qn_value *outputs, const call_values *call);
/* Is the result one of several, as data tells? */
static inline bool template_chooses(const tpl_list *t) { return t->n && t->tpls[0].kind == TPL_CHOICE; }
/* Is the result output 0, and nothing else? */
static inline bool template_is_output(const tpl_list *t) {
  return t->n == 1 && t->tpls[0].kind == TPL_OUTPUT && t->tpls[0].output == 0;
}
/* Makes a template fit for a graph that has only the first `nargs` of the call's arguments: functions that the call reached in other ways
 * are put into it. */
void template_bind(qn_vm *vm, tpl_list *t, uint32_t nargs, const call_values *call);
/* Adds a part, which the caller fills in. The pointer is good until the next one is added. NULL with an error raised. */
QN_MUST_CHECK tpl *template_add(qn_vm *vm, tpl_list *t, tpl_kind kind);
void template_free(qn_vm *vm, tpl_list *t);
/* The template now belongs to a specialization of the code at `home` (fn_shared) and is freed with it: functions of that code in the
 * template no longer keep the code alive. */
void template_settle(tpl_list *t, const void *home);
/* Fills in `to` with a copy that belongs to no specialization. False with an error raised. */
QN_MUST_CHECK bool template_copy(qn_vm *vm, const tpl_list *from, tpl_list *to);
uint64_t template_hash(const tpl_list *t, uint64_t seed);

/* Fills in inputs[i] with the value of input i in a call that fits the pattern; borrowed. */
void pattern_values(const pattern *p, qn_value fn, const qn_value *args, int nargs, qn_value *inputs);
/* Fills in `to` with a pattern of only the first `nargs` arguments, which may lie in memory in any way. False with an error raised. */
QN_MUST_CHECK bool pattern_copy_args(qn_vm *vm, const pattern *from, uint32_t nargs, pattern *to);
/* Add a root, to which the parts added next belong; and a part, which the caller fills in. The pointers are good until the next one is
 * added. NULL with an error raised. */
QN_MUST_CHECK root *pattern_add_root(qn_vm *vm, pattern *p, root_kind kind);
QN_MUST_CHECK pat *pattern_add(qn_vm *vm, pattern *p);
/* Adds a name (retained; may be NULL) to those that the pattern keeps. False with an error raised. */
QN_MUST_CHECK bool pattern_add_name(qn_vm *vm, pattern *p, qn_str *name);
/* Fills in a part as an array (on any device) or number that becomes the graph input of this number and type. False with an error raised. */
QN_MUST_CHECK bool pattern_set_input(qn_vm *vm, pattern *p, pat *x, const graph_type *t, uint32_t input);
/* Adds one more argument, which becomes the graph input of this number and type. False with an error raised. */
QN_MUST_CHECK bool pattern_add_input(qn_vm *vm, pattern *p, const graph_type *t, uint32_t input);
uint64_t pattern_own_hash(const pattern *p, uint64_t seed);
uint64_t hash_mix(uint64_t h, uint64_t x);
/* A hash of a tree: kinds, names, dtypes, sizes, numbers and texts. */
uint64_t value_structure_hash(qn_value v, uint64_t seed);

#endif
