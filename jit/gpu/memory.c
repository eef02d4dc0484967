/* Memory of a GPU and copies between it and the host.
 *
 * Allocation. Blocks have the sizes 512 * (8 + k) / 8 * 2**n (eight classes an octave). Small ones are cut from segments of 2 MiB,
 * others are allocations of their own. A block that is given back waits in the list of its class, and can be used again at once:
 * everything a VM does on a device goes through one stream, so its next user cannot come before the last one is done. The lowest address
 * is taken first. So which blocks a loop gets depends on which are idle, not on the order in which they became so, and repeats after a
 * turn or two: the graphs of plans (sequence.c), which hold addresses, can be launched again. When the driver has no more, idle blocks with an allocation of their own are given back
 * to it, and it is asked again; then it is the error E601. Blocks in use count in the VM's memory limit. In both cases scratch that no
 * launch is about to use is given up first.
 *
 * Copies go through pinned memory of the host, in chunks: data for the device is taken at once and travels while the program goes
 * on; data from the device is waited for, the next chunk on its way while one is read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/gpu/block_vm.h"

enum { SMALLEST = 512, SEGMENT = 2 << 20, SMALL = 128 << 10 };

/* ---- classes ----------------------------------------------------------------------------------------------------------- */

/* The class of a size, and its bytes. */
static int class_of(size_t bytes, size_t *size) {
  if (bytes <= SMALLEST) {
    *size = SMALLEST;
    return 0;
  }
  int octave = 63 - __builtin_clzll(bytes - 1); /* 2**octave < bytes <= 2**(octave + 1) */
  size_t step = ((size_t)1 << octave) / 8 < SMALLEST ? SMALLEST : ((size_t)1 << octave) / 8;
  *size = (bytes + step - 1) / step * step;
  return (octave - 8) * 8 + (int)((*size - ((size_t)1 << octave)) / (((size_t)1 << octave) / 8)) - 1;
}

static bool keep_pointer(gpu_list *l, CUdeviceptr p) {
  if (l->n == l->cap) {
    uint32_t cap = l->cap ? 2 * l->cap : 16;
    CUdeviceptr *more = realloc(l->items, cap * sizeof *more);
    if (!more) return false;
    l->items = more;
    l->cap = cap;
  }
  l->items[l->n++] = p;
  return true;
}

/* Idle blocks of a class are a heap, the lowest address first. */
static bool keep_idle(gpu_list *l, CUdeviceptr p) {
  if (!keep_pointer(l, p)) return false;
  uint32_t i = l->n - 1;
  for (; i && l->items[(i - 1) / 2] > p; i = (i - 1) / 2) l->items[i] = l->items[(i - 1) / 2];
  l->items[i] = p;
  return true;
}

static CUdeviceptr take_idle(gpu_list *l) {
  CUdeviceptr first = l->items[0], last = l->items[--l->n];
  uint32_t i = 0;
  for (uint32_t k; (k = 2 * i + 1) < l->n; i = k) {
    if (k + 1 < l->n && l->items[k + 1] < l->items[k]) k++;
    if (l->items[k] >= last) break;
    l->items[i] = l->items[k];
  }
  l->items[i] = last;
  return first;
}

/* ---- allocation ---------------------------------------------------------------------------------------------------------- */

/* Gives up the scratch, unless a launch that uses it is being made. */
static void drop_scratch(qn_vm *vm, gpu_stream *s) {
  if (s->scratch_stays) return;
  if (s->scratch) gpu_free(vm, s, s->scratch, s->scratch_bytes);
  s->scratch = 0;
  s->scratch_bytes = 0;
}

/* Waits for all work, and gives idle blocks that are allocations of their own back to the driver. False with an error raised when waiting was
 * ended. */
static bool trim(qn_vm *vm, gpu_stream *s) {
  size_t size;
  if (!gpu_wait(vm, s, "work on the device")) return false;
  drop_scratch(vm, s);
  for (int k = class_of(SMALL, &size) + 1; k < GPU_CLASSES; k++) {
    for (uint32_t i = 0; i < s->idle[k].n; i++) {
      CUdeviceptr p = s->idle[k].items[i];
      gpu_driver(s)->cuMemFree_v2(p);
      for (uint32_t j = 0; j < s->segments.n; j++)
        if (s->segments.items[j] == p) {
          s->segments.items[j] = s->segments.items[--s->segments.n];
          break;
        }
    }
    s->idle[k].n = 0;
  }
  return true;
}

/* A new allocation from the driver; the caller need not have entered. 0 with an error raised. */
static CUdeviceptr segment(qn_vm *vm, gpu_stream *s, size_t bytes) {
  CUdeviceptr p = 0;
  if (!gpu_enter(s)) {
    gpu_raise(vm, s, GPU_NO_DEVICE, "an allocation");
    return 0;
  }
  CUresult rc = gpu_driver(s)->cuMemAlloc_v2(&p, bytes);
  if (rc == GPU_OUT_OF_MEMORY && trim(vm, s)) rc = gpu_driver(s)->cuMemAlloc_v2(&p, bytes);
  if (rc != GPU_OK && error_pending(vm)) {
    p = 0;
  } else if (rc != GPU_OK) {
    char what[96];
    snprintf(what, sizeof what, "%zu bytes; the program's arrays there take %zu", bytes, s->live);
    gpu_raise(vm, s, rc, what);
    p = 0;
  } else if (!keep_pointer(&s->segments, p)) {
    gpu_driver(s)->cuMemFree_v2(p);
    raise_memory(vm);
    p = 0;
  }
  gpu_leave(s);
  if (p) s->allocations++;
  return p;
}

/* Counts a block in the VM's memory limit. False with an error raised: there is no room. */
static bool hold(qn_vm *vm, gpu_stream *s, size_t size) {
  if (mem_hold(vm, size)) return true;
  if (s->scratch && !s->scratch_stays) {
    drop_scratch(vm, s);
    if (mem_hold(vm, size)) return true;
  }
  raise_error(vm, E_memory, SPAN_NONE,
              "gpu(%d): %zu bytes are beyond the memory limit; the program's arrays there take %zu", s->number, size,
              s->live);
  return false;
}

CUdeviceptr gpu_alloc(qn_vm *vm, gpu_stream *s, size_t bytes) {
  size_t size;
  if (bytes > (size_t)1 << 47) {
    gpu_raise(vm, s, GPU_OUT_OF_MEMORY, "so large an array");
    return 0;
  }
  int k = class_of(bytes, &size);
  if (!hold(vm, s, size)) return 0;
  CUdeviceptr p = 0;
  if (s->idle[k].n) {
    p = take_idle(&s->idle[k]);
  } else if (size > SMALL) {
    p = segment(vm, s, size);
  } else {
    if (s->slab_end - s->slab < size) {
      CUdeviceptr fresh = segment(vm, s, SEGMENT);
      if (fresh) {
        s->slab = fresh;
        s->slab_end = fresh + SEGMENT;
      }
    }
    if (s->slab_end - s->slab >= size) {
      p = s->slab;
      s->slab += size;
    }
  }
  if (p)
    s->live += size;
  else
    mem_let_go(vm, size);
  return p;
}

void gpu_free(qn_vm *vm, gpu_stream *s, CUdeviceptr data, size_t bytes) {
  size_t size;
  int k = class_of(bytes, &size);
  s->live -= size;
  mem_let_go(vm, size);
  (void)keep_idle(&s->idle[k], data); /* if the host's memory is short, the block is freed when the VM closes */
}

bool gpu_scratch(qn_vm *vm, gpu_stream *s, size_t bytes) {
  if (bytes > s->scratch_bytes) {
    CUdeviceptr more = gpu_alloc(vm, s, bytes);
    if (!more) return false;
    drop_scratch(vm, s);
    s->scratch = more;
    s->scratch_bytes = bytes;
  }
  return s->scratch_stays = true;
}

void gpu_scratch_leave(gpu_stream *s) { s->scratch_stays = false; }

/* ---- staging ---------------------------------------------------------------------------------------------------------------- */

/* The next chunk, once the copies that used it are done. NULL: there is no pinned memory to have, or an error was raised. */
static gpu_chunk *next_chunk(qn_vm *vm, gpu_stream *s) {
  const cuda_driver *d = gpu_driver(s);
  gpu_chunk *c = &s->chunks[s->chunk];
  if (c->data && c->used && d->cuEventRecord(c->last, s->stream) != GPU_OK) return NULL;
  c = &s->chunks[s->chunk = (s->chunk + 1) % GPU_CHUNKS];
  c->used = 0;
  if (c->data && gpu_wait_event(vm, s, c->last, "a copy")) return c;
  if (c->data) {
    c->used = GPU_CHUNK; /* copies still come from it */
    return NULL;
  }
  void *data = NULL;
  if (d->cuMemHostAlloc(&data, GPU_CHUNK, 0) != GPU_OK) return NULL;
  if (d->cuEventCreate(&c->last, GPU_EVENT_NO_TIMES) != GPU_OK) {
    d->cuMemFreeHost(data);
    return NULL;
  }
  c->data = data;
  return c;
}

bool gpu_write(qn_vm *vm, gpu_stream *s, CUdeviceptr to, const void *from, size_t bytes) {
  const cuda_driver *d = gpu_driver(s);
  const char *data = from;
  CUresult rc = GPU_OK;
  while (bytes && rc == GPU_OK) {
    gpu_chunk *c = &s->chunks[s->chunk];
    size_t most = bytes < GPU_CHUNK ? bytes : GPU_CHUNK;
    if (!c->data || GPU_CHUNK - c->used < most) c = next_chunk(vm, s);
    if (!c) { /* from ordinary memory: the driver has made a copy of its own when it returns */
      if (error_pending(vm)) return false;
      rc = d->cuMemcpyHtoDAsync_v2(to, data, bytes, s->stream);
      break;
    }
    memcpy(c->data + c->used, data, most);
    rc = d->cuMemcpyHtoDAsync_v2(to, c->data + c->used, most, s->stream);
    c->used += (most + 63) & ~(size_t)63;
    if (c->used > GPU_CHUNK) c->used = GPU_CHUNK;
    data += most;
    to += most;
    bytes -= most;
  }
  return rc == GPU_OK || gpu_raise(vm, s, rc, "a copy to the device");
}

static const char reading[] = "a copy from the device, or work before it,";

/* Reads a few bytes, by way of a place of their own. A read that was interrupted may still write to it, but only before this one does. */
static bool read_few(qn_vm *vm, gpu_stream *s, void *to, CUdeviceptr from, size_t bytes) {
  const cuda_driver *d = gpu_driver(s);
  void *data = s->answers;
  if (!data) {
    CUresult rc = d->cuMemHostAlloc(&data, GPU_ANSWERS, 0);
    if (rc != GPU_OK) return gpu_raise(vm, s, rc, "pinned memory of the host");
    s->answers = data;
  }
  CUresult rc = d->cuMemcpyDtoHAsync_v2(data, from, bytes, s->stream);
  if (rc != GPU_OK) return gpu_raise(vm, s, rc, reading);
  if (!gpu_wait(vm, s, reading)) return false;
  memcpy(to, data, bytes);
  return true;
}

bool gpu_read(qn_vm *vm, gpu_stream *s, void *to, CUdeviceptr from, size_t bytes) {
  const cuda_driver *d = gpu_driver(s);
  CUresult rc = GPU_OK;
  size_t asked = 0, got = 0;
  gpu_chunk *on_way[2] = {NULL, NULL};
  if (bytes <= GPU_ANSWERS) return read_few(vm, s, to, from, bytes);
  while (got < bytes && rc == GPU_OK) {
    while (asked < bytes && asked - got < 2 * (size_t)GPU_CHUNK && rc == GPU_OK) {
      size_t most = bytes - asked < GPU_CHUNK ? bytes - asked : GPU_CHUNK;
      gpu_chunk *c = next_chunk(vm, s);
      if (!c && error_pending(vm)) return false;
      if (!c) break;
      c->used = GPU_CHUNK;
      rc = d->cuMemcpyDtoHAsync_v2(c->data, from + asked, most, s->stream);
      if (rc == GPU_OK) rc = d->cuEventRecord(c->last, s->stream);
      on_way[asked / GPU_CHUNK % 2] = c;
      asked += most;
    }
    if (rc == GPU_OK && asked == got) { /* into ordinary memory: the driver waits */
      rc = d->cuMemcpyDtoHAsync_v2((char *)to + got, from + got, bytes - got, s->stream);
      if (rc == GPU_OK) rc = d->cuStreamSynchronize(s->stream);
      got = bytes;
    } else if (rc == GPU_OK) {
      gpu_chunk *c = on_way[got / GPU_CHUNK % 2];
      size_t most = bytes - got < GPU_CHUNK ? bytes - got : GPU_CHUNK;
      if (!gpu_wait_event(vm, s, c->last, reading)) return false;
      memcpy((char *)to + got, c->data, most);
      got += most;
    }
  }
  return rc == GPU_OK || gpu_raise(vm, s, rc, reading);
}

/* ---- arrays (device_memory) -------------------------------------------------------------------------------------------------- */

bool gpu_open(qn_vm *vm, int device) { return gpu_stream_of(vm, device) != NULL; }

void *gpu_array_alloc(qn_vm *vm, int device, size_t bytes) {
  gpu_stream *s = gpu_stream_of(vm, device);
  return s ? (void *)(uintptr_t)gpu_alloc(vm, s, bytes) : NULL;
}

void gpu_array_free(qn_vm *vm, int device, void *data, size_t bytes) {
  gpu_vm *g = vm->devices[FAMILY_gpu]; /* none: the VM closes and all its memory is gone already */
  if (g && g->of[device_number(device)])
    gpu_free(vm, g->of[device_number(device)], (CUdeviceptr)(uintptr_t)data, bytes);
}

static size_t bytes_of(const qn_array *a) { return (size_t)a->size * dtype_size((qn_dtype)a->dtype); }
static CUdeviceptr data_of(const qn_array *a) { return (CUdeviceptr)(uintptr_t)array_data(a); }

bool gpu_array_read(qn_vm *vm, const qn_array *from, void *to) {
  if (from->size == 0) return true;
  gpu_stream *s = gpu_entered(vm, from->device, "reading an array");
  if (!s) return false;
  bool ok = gpu_read(vm, s, to, data_of(from), bytes_of(from));
  gpu_leave(s);
  return ok;
}

bool gpu_array_write(qn_vm *vm, qn_array *to, const void *from) {
  if (to->size == 0) return true;
  gpu_stream *s = gpu_entered(vm, to->device, "writing an array");
  if (!s) return false;
  bool ok = gpu_write(vm, s, data_of(to), from, bytes_of(to));
  gpu_leave(s);
  return ok;
}

bool gpu_wait_all(qn_vm *vm) {
  gpu_vm *g = vm->devices[FAMILY_gpu];
  for (int i = 0; g && i < GPU_DEVICES; i++) {
    gpu_stream *s = g->of[i];
    if (!s) continue;
    if (!gpu_enter(s)) return gpu_raise(vm, s, GPU_NO_DEVICE, "waiting for work on the device");
    bool ok = gpu_wait(vm, s, "waiting for work on the device");
    gpu_leave(s);
    if (!ok) return false;
  }
  return true;
}

void gpu_memory_close(qn_vm *vm) {
  gpu_vm *g = vm->devices[FAMILY_gpu];
  for (int i = 0; i < GPU_DEVICES; i++) {
    gpu_stream *s = g->of[i];
    if (!s) continue;
    const cuda_driver *d = gpu_driver(s);
    mem_let_go(vm, s->live);
    if (gpu_ours(s->engine) && gpu_enter(s)) {
      if (s->mapped) __atomic_store_n(&s->mapped->stop, 1, __ATOMIC_RELEASE); /* nobody needs the results */
      d->cuStreamSynchronize(s->stream);
      if (s->mapped) d->cuMemFreeHost(s->mapped);
      if (s->answers) d->cuMemFreeHost(s->answers);
      for (uint32_t k = 0; k < s->segments.n; k++) d->cuMemFree_v2(s->segments.items[k]);
      for (int k = 0; k < GPU_CHUNKS; k++) {
        if (!s->chunks[k].data) continue;
        d->cuEventDestroy_v2(s->chunks[k].last);
        d->cuMemFreeHost(s->chunks[k].data);
      }
      d->cuStreamDestroy_v2(s->stream);
      if (s->capture) d->cuStreamDestroy_v2(s->capture);
      gpu_leave(s);
    }
    block_vm_close(s);
    for (int k = 0; k < GPU_CLASSES; k++) free(s->idle[k].items);
    free(s->segments.items);
    mem_free(vm, s, sizeof *s);
    g->of[i] = NULL;
  }
}
