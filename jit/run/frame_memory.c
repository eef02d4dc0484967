/* Memory of a running plan (plan_frame.h), where the plan runs: the host's, or that of its device. On a device, copies come in the order of what
 * the VM asks of it, and only reading waits. */
#include <string.h>

#include "jit/run/plan_frame.h"

char *frame_take(plan_frame *f, size_t bytes) {
  char *at = f->device ? device_memory_of(f->vm, f->device)->alloc(f->vm, f->device, bytes) : mem_alloc(f->vm, bytes);
  if (at && (f->held->now += (int64_t)bytes) > f->held->most) f->held->most = f->held->now;
  return at;
}

void frame_give(plan_frame *f, void *at, size_t bytes) {
  f->held->now -= (int64_t)bytes;
  if (f->device)
    device_memory_of(f->vm, f->device)->free(f->vm, f->device, at, bytes);
  else
    mem_free(f->vm, at, bytes);
}

/* A header over `rows` rows of `bytes` bytes, which begin `step` bytes apart. */
static void bytes_over(const plan_frame *f, frame_view *v, const void *at, size_t rows, size_t bytes, size_t step) {
  const graph_type t = {.dtype = QN_u8, .rank = 2, .shape = {(qn_dim)rows, (qn_dim)bytes}};
  frame_array(f, v, f->device, (void *)(uintptr_t)at, &t);
  v->a.strides[0] = (int64_t)step;
  v->a.contiguous = rows < 2 || step == bytes;
}

bool frame_copy_rows(plan_frame *f, void *to, const void *from, size_t rows, size_t bytes, size_t step) {
  frame_view a, b;
  if (!bytes || !rows) return true;
  if (!f->device) {
    for (size_t i = 0; i < rows; i++) memcpy((char *)to + i * bytes, (const char *)from + i * step, bytes);
    return true;
  }
  bytes_over(f, &a, to, rows, bytes, bytes);
  bytes_over(f, &b, from, rows, bytes, step);
  return array_copy_on(f->vm, &a.a, &b.a);
}

bool frame_copy(plan_frame *f, void *to, const void *from, size_t bytes) {
  return frame_copy_rows(f, to, from, 1, bytes, bytes);
}

bool frame_read(plan_frame *f, void *to, const void *from, size_t bytes) {
  frame_view v;
  if (!f->device) return memcpy(to, from, bytes), true;
  bytes_over(f, &v, from, 1, bytes, bytes);
  return device_memory_of(f->vm, f->device)->read(f->vm, &v.a, to);
}

bool frame_write(plan_frame *f, void *to, const void *from, size_t bytes) {
  frame_view v;
  if (!f->device) return memcpy(to, from, bytes), true;
  bytes_over(f, &v, to, 1, bytes, bytes);
  return device_memory_of(f->vm, f->device)->write(f->vm, &v.a, from);
}
