/* Builtins: functions written in C, as one table that the standard library defines and a VM receives when it opens.
 *
 * A row is declared with its signature in the language's own notation, its documentation and its effect on the same
 * spot; argument binding, arity errors, `help`, completion and the reference come from it:
 *
 *   BUILTIN(reshape, "reshape(x, ..shape)", PURE, "x with another shape; one size may be -1")
 *   BUILTIN_WORK(range, COUNT, "range(start, stop = nil, step = 1)", PURE, "start, start + step, ... before stop")
 *
 * The signature is parsed once per VM. Defaults are literals (nil, numbers, strings, true, false, dtype names). A C
 * function receives exactly one value per parameter in order (defaults filled in, a rest parameter as a list value,
 * unset optional ones as given by their default) and returns an owned value or the error value. Arguments are borrowed,
 * except that a parameter marked `@x` is moved in when the caller can give its variable's last reference (builtins that
 * update in O(1): append, the index updates); such a builtin checks everything before it changes anything. A parameter
 * marked `~x` is data: while a call is recorded, a traced host number passes through to it (it ends up as an operand of
 * op_apply); numbers given to any other parameter are observed first (a guard on their value, rec.h). So are the sizes of arrays, which may be symbolic
 * then, unless the parameter is marked `^x`: that is data whose sizes the builtin reads by rec_sizes only, or leaves to ops; or `%x`: only its
 * sizes are read so, and numbers are observed. One marked `&x` is as `^x`, and may be a stacked list or have some in it (rec.h). What a builtin makes of
 * floats that it observes, or of what a READ one gets otherwise than as data, has no derivative: inside a gradient by them a result
 * with floats is an error (E405).
 */
#ifndef LANG_BUILTIN_H
#define LANG_BUILTIN_H

#include "lang/value.h"

typedef enum builtin_effect {
  BUILTIN_PURE, /* only its arguments: may be recorded (ops inside append nodes), repeated, dropped if unused */
  BUILTIN_READ, /* reads the outside or data of arrays: ends a segment when recorded */
  BUILTIN_TAP,  /* returns nil and only writes out (print, save): in a recorded call it becomes a step, kept in order */
  BUILTIN_DRAWS,  /* as TAP, but gives what it has written: it is one where nobody uses that */
  BUILTIN_STATE,  /* changes the VM (seed) or the outside */
  BUILTIN_RAISES, /* ends with an error: an effect, but an arm that does it can be captured (branches.c) */
  BUILTIN_HIGHER, /* calls functions it is given (tree_map, grad): pure if they are */
  BUILTIN_CHOICE /* as HIGHER, but the function, its last parameter, only tells how to order or choose: called for its value alone */
} builtin_effect;

/* What else is known of a builtin, so that a call of it is understood where it is resolved and made. */
typedef enum builtin_work {
  WORK_ANY,    /* nothing */
  WORK_DERIVE, /* gives the function that computes derivatives of its first parameter */
  WORK_COUNT,  /* gives the numbers that a loop counts through */
  WORK_CHECK, /* does nothing if its first parameter is true, and fails, with the text that is the second one, if it is false */
  WORK_TEXT,  /* a PURE one that gives a text and fails for no data: of values of a recorded call the text may wait */
  WORK_HOLDS, /* a PURE one that only takes apart, puts together or counts what its marked parameters hold: it looks at no text in these, nor at one
                 * that is such a parameter, but the first */
  WORK_READING, /* a READ one without parameters that gives a float: a recorded call reads it as a step */
  WORK_RANDOM   /* changes nothing but the random numbers to come, whose state is known to a recording (rec_seed) */
} builtin_work;

typedef qn_value (*builtin_fn)(qn_vm *vm, const qn_value *args);

typedef struct builtin_def {
  const char *name;
  const char *signature;
  builtin_effect effect;
  const char *doc;
  builtin_fn call;
  builtin_work work;
} builtin_def;

/* A heading in help and the reference, over the rows of a table from `first` on to the next heading. */
typedef struct topic_row {
  const char *title;
  int first;
} topic_row;

/* A module of the standard library written in Quern, embedded as text. */
typedef struct embedded_module {
  const char *name; /* "nn"; "prelude" is run into every VM's global scope */
  const char *text;
  size_t len;
} embedded_module;

/* A script that shows what a function does, for help. */
typedef struct builtin_example {
  const char *name, *script;
} builtin_example;

typedef struct builtin_table {
  const builtin_def *builtins;
  int nbuiltins;
  const topic_row *topics; /* headings over the builtins */
  int ntopics;
  const builtin_example *examples; /* for builtins, ops and what the prelude defines */
  int nexamples;
  const embedded_module *modules;
  int nmodules;
} builtin_table;

/* One parameter of a parsed signature. */
typedef struct param_def {
  qn_str *name;      /* interned */
  qn_value def;      /* unset: required */
  bool rest;         /* ..name */
  bool move;         /* @name */
  bool data;         /* ~name, ^name or &name */
  bool sized;        /* ^name, %name or &name */
  bool stacks;       /* &name */
  bool counted;      /* &&name: the length of such a list may be data, too */
  bool keyword_only; /* after a bare `*` in the signature */
} param_def;

typedef struct signature {
  param_def *params;
  int nparams;
} signature;
/* Parses a builtin's signature text into memory of the VM. Used once per builtin by interp. */
QN_MUST_CHECK bool signature_parse(qn_vm *vm, const char *text, signature *out);
void signature_free(qn_vm *vm, signature *s);

#endif
