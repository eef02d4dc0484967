/* Matrix products on a device by its library (device_gemm). The library's bits depend on how it is asked, so that is decided once, when a product is
 * executed eagerly: from the shapes, and from how the operands lie in memory, which the flags ATTR_X_ACROSS and ATTR_Y_ACROSS say. A recording
 * writes these flags on its node (graph_fix_gemm), so that a plan asks for the same product. */
#ifndef JIT_RUN_GEMM_H
#define JIT_RUN_GEMM_H

#include "jit/graph/graph.h"
#include "jit/run/device.h"

enum { GEMM_CHAIN = 512 /* longer sums are never our own kernel's */ };

/* The flags for x @ y, of strict operands: ATTR_LIBRARY and how they lie in memory, on a device; 0: our own kernel makes it. */
uint8_t gemm_flags(qn_vm *vm, const qn_array *x, const qn_array *y);

/* Is x @ y, of strict operands on a device, so small that our own kernel makes it, however they lie in memory? */
bool gemm_is_small(const qn_vm *vm, const qn_array *x, const qn_array *y);

/* x @ y by the library, with such flags; operands that do not lie as these say are copied. A new array; NULL: *refused by the device, or with an
 * error raised. */
QN_MUST_CHECK qn_array *gemm_apply(qn_vm *vm, qn_array *x, qn_array *y, uint8_t flags, bool *refused);

/* OP_gemm, whose operands are stored as the flags say, into `out`, an array of the result's type. False: *refused, or with an error raised. */
QN_MUST_CHECK bool gemm_stored(qn_vm *vm, qn_array *x, qn_array *y, uint8_t flags, qn_array *out, bool *refused);

/* The signature of gemm_stored. For an empty result its batch, m or n is 0. False: gemm_stored would be refused. */
QN_MUST_CHECK bool gemm_signature(const qn_array *x, const qn_array *y, uint8_t flags, device_gemm *p);

/* An operand of OP_gemm as OP_dot wants it: itself or, where it is stored across, a view of the transposed matrices. The caller owns the result. */
QN_MUST_CHECK qn_array *gemm_operand(qn_vm *vm, qn_array *a, bool across);

#endif
