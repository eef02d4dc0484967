/* Linear recurrences on the device: the launch of recurrence.cu.
 *
 * A chain goes one element after the other, as on the CPU, so that its bits are the same: a thread has one chain. Few long chains are refused,
 * since copying them to the CPU and back is faster than some 40 ns an element (a guess: eight loads are under way at a time). */
#include "jit/gpu/state.h"
#include "jit/gpu/words.h"

enum { FEW_CHAINS = 32, LONG_CHAIN = 1024 };

device_answer gpu_recurrence(qn_vm *vm, qn_array *to, const qn_array *by, const qn_array *plus, int axis, bool reverse,
                             bool exclusive) {
  if (plus->size == 0) return DEVICE_DONE;
  if (!dtype_is_float(plus->dtype) || dtype_is_narrow(plus->dtype)) return DEVICE_REFUSES;
  recurrence_words w = {.a = (uint64_t)(uintptr_t)array_data(by),
                        .b = (uint64_t)(uintptr_t)array_data(plus),
                        .to = (uint64_t)(uintptr_t)array_data(to),
                        .n = plus->shape[axis],
                        .inner = plus->strides[axis],
                        .chains = plus->size / plus->shape[axis],
                        .wide = dtype_size(plus->dtype) == 8,
                        .reverse = reverse,
                        .exclusive = exclusive};
  if (w.n > LONG_CHAIN && w.chains < FEW_CHAINS) return DEVICE_REFUSES;
  device_answer answer;
  gpu_stream *s = gpu_text_enter(vm, plus->device, TEXT_RECURRENCE, "a recurrence", &answer);
  if (!s) return answer;
  bool ok = gpu_text_launch(vm, s, TEXT_RECURRENCE, 0, (w.chains + THREADS - 1) / THREADS, &w);
  gpu_leave(s);
  return ok ? DEVICE_DONE : DEVICE_FAILS;
}
