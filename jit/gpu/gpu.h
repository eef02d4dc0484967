/* GPUs of NVIDIA through the driver: memory, copies, kernels. A VM that names no GPU opens nothing here. */
#ifndef JIT_GPU_GPU_H
#define JIT_GPU_GPU_H

#include "lang/vm.h"

/* Fills in hooks.device and hooks.kernels; libraries are opened when a device is first named. */
void gpu_attach(qn_vm *vm);
/* Gives back what the VM holds on devices, its arrays there included. */
void gpu_close(qn_vm *vm);
void gpu_engine_close(qn_engine *engine);

/* Something that the user should be told once: copies the next unreported sentence and returns true. */
bool gpu_trouble(qn_engine *engine, char *text, size_t size);

/* What was found of CUDA's libraries and devices, a line each (quern doctor). */
void gpu_report(text_buf *out);

#endif
