/* Patterns: what the values of a call must be like to be served by a specialization; templates: how its results are made.
 *
 * A pattern has a root for each value that the recorded call could see. A later call is matched against it, which collects the inputs of
 * the graph on the way. A template says how the graph's outputs are put together to the value that the call returned. */
#ifndef JIT_TRACE_PATTERN_H
#define JIT_TRACE_PATTERN_H

#include "jit/graph/graph.h"
#include "jit/trace/breaks.h"
#include "jit/trace/rec.h"

/* A graph, a node or a region could not be made: raises that memory is short, unless an error is pending, which says why. False. */
bool fail_memory(qn_vm *vm);
/* Nodes of a graph, in some order. */
typedef struct node_list {
  uint32_t *nodes, n, cap;
} node_list;
QN_MUST_CHECK bool nodes_add(qn_vm *vm, node_list *l, uint32_t node); /* false with an error raised */
void nodes_free(qn_vm *vm, node_list *l);

/* ---- patterns ---- */

/* A pattern is a preorder sequence of these: one value each, containers followed by their items' patterns. */
typedef enum pat_kind {
  PAT_ARRAY,  /* dtype, rank, sizes; becomes graph input `input` */
  PAT_SCALAR, /* int or float (`tag`); becomes weak graph input `input` */
  PAT_EXACT,  /* equal to `value`: nil, bool, string, dtype, device, range, module, builtin function */
  PAT_LIST,   /* n items */
  PAT_RECORD, /* n fields named as in `value` (a record of nils) */
  PAT_FN      /* function with this code and n captures */
} pat_kind;
enum { PAT_ANY_DEVICE = UINT32_MAX };
typedef struct pat {
  uint8_t kind, tag, dtype, rank;
  /* Of a container: items; of an array: the code of its device, or PAT_ANY_DEVICE; of a text: 1 if any does. */
  uint32_t n;
  uint32_t input; /* graph input number */
  uint32_t dims;  /* first of `rank` sizes in pattern.dims */
  /* Of an array: how it must lie in memory; 0: in any way. Of a graph: its hash; of a function of the program: its code's id. */
  uint64_t layout;
  qn_value value; /* owned; of PAT_FN: the code pointer in u.p, not owned */
} pat;

enum { PATTERN_DEPTH = 100 /* of containers in one another */ };

typedef enum root_kind { ROOT_ARG, ROOT_FN, ROOT_GLOBAL } root_kind;
typedef struct root {
  uint8_t kind;  /* root_kind */
  bool by_value; /* a global without arrays and numbers: looked at only when the epoch has moved */
  bool library;  /* a global that the library reads: not worth telling */
  uint32_t arg;
  uint32_t first; /* of its pattern */
  qn_value *slot; /* of a global */
  rec_cell *cell;
  /* Of a global, borrowed (names live as long as the VM); of a graph's argument, in its body's `params`; or NULL. */
  qn_str *name;
  qn_value tracer; /* while recording: what rec_global returns again; owned */
} root;

/* Everything a call's values must fulfil, built while recording. */
typedef struct pattern {
  pat *pats;
  uint32_t n, cap;
  int64_t *dims;
  uint32_t ndims, dims_cap;
  root *roots;
  uint32_t nroots, roots_cap;
  uint32_t nargs;
  uint32_t ninputs; /* graph inputs so far, weak ones included */
  uint32_t leaves;
} pattern;

/* ---- result templates ---- */

/* Functions keep their identity: one that the call was given comes back itself, one that it made is a new one in each call, and the same
 * at all its places in the result. */
typedef enum tpl_kind {
  TPL_OUTPUT,
  TPL_VALUE,
  TPL_LIST,
  TPL_RECORD,
  TPL_FN,    /* a function with the captures that follow; new in each call if it has a number */
  TPL_AGAIN, /* the new function with that number once more */
  TPL_GIVEN  /* a function among the call's values */
} tpl_kind;
typedef struct tpl {
  uint8_t kind;
  uint32_t n; /* items that follow; TPL_GIVEN: steps of its path */
  /* Number among the graph's outputs, or of a new function (from 1 on); TPL_GIVEN: where its path begins. */
  uint32_t output;
  qn_value value; /* owned: the value, a record of nils, the function whose captures are replaced */
} tpl;
typedef struct tpl_list {
  tpl *tpls;
  uint32_t n, cap;
  uint32_t made; /* new functions */
  /* Of TPL_GIVEN: a root_kind; the argument's number, or that of the root in the pattern; the steps, the last first. */
  uint32_t *paths, npaths, paths_cap;
} tpl_list;

/* ---- making and matching ---- */

/* Do the call's values fit? Collects the inputs (arrays borrowed, weak ones NULL with their value in scalars). On a miss,
 * `why` (may be NULL) receives the first difference. */
bool pattern_match(const pattern *p, bool check_by_value, qn_value fn, const qn_value *args, int nargs,
                   qn_array **inputs, qn_value *scalars, text_buf *why);
void pattern_free(qn_vm *vm, pattern *p);
/* Of a call that computed nothing on arrays: where it has none either, texts do not matter, so that a function that looks up or splits
 * texts is not recorded for each. False: it has arrays. */
bool pattern_any_text(pattern *p);
/* What tells the code of a function from all other code: of graphs their hash, so that equal ones are one. */
uint64_t code_id(const qn_fn *f);
/* How an array's elements lie in memory, for arrays of one shape; never 0. */
uint64_t layout_code(const qn_array *a);
/* Hash of the static facts of a call: structure, dtypes, sizes, functions. Equal facts, equal hashes; never 0. */
uint64_t pattern_hash(qn_value fn, const qn_value *args, int nargs);
/* Guards as text, one a line. */
void pattern_print(const pattern *p, text_buf *out);
/* What argument `arg` must be, as text. */
void pattern_print_arg(const pattern *p, uint32_t arg, text_buf *out);
/* The result of a graph, as text. */
void template_print(const tpl_list *t, const graph *g, text_buf *out);
/* Where a graph input comes from: "argument 1.w", "global scale". */
void pattern_input_name(const pattern *p, uint32_t input, text_buf *out);

/* A value from a template; takes nothing, `outputs` stay the caller's. Owned or error value. `call`: the values that fit the pattern;
 * NULL for a template of nodes. */
typedef struct call_values {
  const pattern *p;
  qn_value fn;
  const qn_value *args;
} call_values;
QN_MUST_CHECK qn_value template_build(qn_vm *vm, const tpl_list *t, const qn_value *outputs, const call_values *call);
/* A template of results becomes one of a graph with the first `nargs` of the arguments: it holds what the call has reached otherwise. */
void template_bind(qn_vm *vm, tpl_list *t, uint32_t nargs, const call_values *call);
/* Adds a part, to be filled in. Good until the next one is added; NULL with an error raised. */
QN_MUST_CHECK tpl *template_add(qn_vm *vm, tpl_list *t, tpl_kind kind);
void template_free(qn_vm *vm, tpl_list *t);
/* The template belongs to a specialization of code at `home` (fn_shared) and goes with that: it does not keep functions of that code alive. */
void template_settle(tpl_list *t, const void *home);
/* A copy of a template, which belongs to nobody. */
QN_MUST_CHECK bool template_copy(qn_vm *vm, const tpl_list *from, tpl_list *to);
uint64_t template_hash(const tpl_list *t, uint64_t seed);

/* The values at the inputs of a call that fits the pattern, borrowed, by input number. */
void pattern_values(const pattern *p, qn_value fn, const qn_value *args, int nargs, qn_value *inputs);
/* A pattern of the first arguments alone, wherever arrays lie in memory. */
QN_MUST_CHECK bool pattern_copy_args(qn_vm *vm, const pattern *from, uint32_t nargs, pattern *to);
/* Adds a root, whose pattern is what is added next; a part, a pattern of its own until it is filled in. Good until the next one is added;
 * NULL with an error raised. */
QN_MUST_CHECK root *pattern_add_root(qn_vm *vm, pattern *p, root_kind kind);
QN_MUST_CHECK pat *pattern_add(qn_vm *vm, pattern *p);
/* Fills in a part: an array (on any device) or a number that becomes the graph's input of this type. False with an error raised. */
QN_MUST_CHECK bool pattern_set_input(qn_vm *vm, pattern *p, pat *x, const graph_type *t, uint32_t input);
/* Adds one more argument, which is the graph's input of this type. */
QN_MUST_CHECK bool pattern_add_input(qn_vm *vm, pattern *p, const graph_type *t, uint32_t input);
uint64_t pattern_own_hash(const pattern *p, uint64_t seed);
uint64_t hash_mix(uint64_t h, uint64_t x);
/* Kinds, names, dtypes and sizes of a tree. */
uint64_t value_structure_hash(qn_value v, uint64_t seed);

#endif
