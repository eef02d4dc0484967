/* Matrix products on a device by its library (device_gemm). What a product looks like to the library is fixed once, by whoever
 * makes it eagerly: from the shapes, and from how the operands lie in memory, which ATTR_X_ACROSS and ATTR_Y_ACROSS keep. A recording
 * writes these flags on its node (graph_fix_gemm), and so a plan asks for the same product. */
#ifndef JIT_RUN_GEMM_H
#define JIT_RUN_GEMM_H

#include "jit/graph/graph.h"
#include "jit/run/device.h"

/* The flags with which the library makes x @ y, for strict operands on a device: ATTR_LIBRARY and how they lie; 0: our own kernel
 * makes it. */
uint8_t gemm_flags(qn_vm *vm, const qn_array *x, const qn_array *y);

/* x @ y by the library, with such flags; operands that do not lie as these say are copied. A new array, or NULL: with an error
 * raised, or *refused: by the device. */
QN_MUST_CHECK qn_array *gemm_apply(qn_vm *vm, qn_array *x, qn_array *y, uint8_t flags, bool *refused);

/* OP_gemm, whose operands are stored as the flags say, into `out`, an array of the result's type. False: with an error raised, or *refused. */
QN_MUST_CHECK bool gemm_stored(qn_vm *vm, qn_array *x, qn_array *y, uint8_t flags, qn_array *out, bool *refused);

/* What gemm_stored asks the device for. An empty result has no matrices, rows or columns. False: it would be refused. */
QN_MUST_CHECK bool gemm_signature(const qn_array *x, const qn_array *y, uint8_t flags, device_gemm *p);

/* An operand of OP_gemm as one of OP_dot: where it is stored across, a view that turns its matrices. The caller owns the result. */
QN_MUST_CHECK qn_array *gemm_operand(qn_vm *vm, qn_array *a, bool across);

#endif
