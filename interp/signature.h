/* Shape signatures: `x: f32[b, t, 64]`, `(T, T)`, `{w: T}`, host kinds, `-> f32[b]`. Internal to this room. */
#ifndef INTERP_SIGNATURE_H
#define INTERP_SIGNATURE_H

#include "interp/node.h"

typedef enum sig_kind {
  SIG_DTYPE, /* an array of this dtype, any shape (bool: a host bool, too) */
  SIG_ANY,
  SIG_NUMBER,  /* an array or a host number */
  SIG_NUMBERS, /* a list of anything, too */
  SIG_INTS,    /* an int or a list of ints */
  SIG_TREE,    /* an array, a number, or a list or record (of anything: leaves of other kinds are structure) */
  SIG_HOST,    /* a value of the host kind `tag` */
  SIG_ARRAY,   /* an array of this dtype (-1: any) and these sizes */
  SIG_LIST,    /* a list with items of these types */
  SIG_RECORD   /* a record with at least these fields, of these types */
} sig_kind;

/* The word for the kind in a signature; NULL for kinds that are written in another way. */
const char *sig_kind_name(sig_kind kind);

typedef enum dim_kind { DIM_ANY, DIM_REST, DIM_SIZE, DIM_NAME, DIM_PARAM, DIM_EXPR } dim_kind;
typedef struct sig_dim {
  uint8_t kind;  /* dim_kind */
  int64_t size;  /* DIM_SIZE */
  uint32_t slot; /* DIM_NAME: the frame slot it is bound to; DIM_PARAM: the int parameter it must equal */
  qn_str *name;
  node *expr; /* DIM_EXPR */
  span at;
} sig_dim;

struct type_sig {
  uint8_t kind; /* sig_kind */
  int8_t dtype; /* -1: any */
  uint8_t tag;  /* value_tag of SIG_HOST */
  span at;
  uint32_t n;
  sig_dim *dims;
  type_sig **items;
  qn_str **fields;
};

/* Checks the arguments in a frame against their types, and binds sizes. nil fits any type if it is the parameter's default. False with E208
 * raised; *refused is then the number of the argument. */
QN_MUST_CHECK bool signature_bind(qn_vm *vm, const fn_code *code, qn_value *fp, uint32_t *refused);
/* In a recording, of arguments that have been checked: binds the sizes again that types name, since they may be symbolic now. */
void signature_sizes(qn_vm *vm, const fn_code *code, qn_value *fp);
/* Checks a result (borrowed) against its type, and binds sizes that only this type names. False with E208 raised. */
QN_MUST_CHECK bool signature_result(qn_vm *vm, const fn_code *code, qn_value *fp, qn_value result);

#endif
