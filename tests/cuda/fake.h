/* What the fake driver and the fake compiler know of each other. */
#ifndef TESTS_CUDA_FAKE_H
#define TESTS_CUDA_FAKE_H

#include "jit/gpu/cuda.h"

/* Where a thread is, and how it waits for the others of its block. The compiled text has the same declaration. */
#define FAKE_PLACE                                                                                                     \
  typedef struct fake_index {                                                                                          \
    unsigned x;                                                                                                        \
  } fake_index;                                                                                                        \
  typedef struct fake_place {                                                                                          \
    fake_index thread, block, grid, width;                                                                             \
    void (*barrier)(void), (*group)(unsigned first, unsigned count);                                                   \
    int (*any)(int);                                                                                                   \
  } fake_place;
FAKE_PLACE

/* A "cubin": this, then a shared object with run_NAME(fake_place *, void **arguments) and sizes_NAME, the bytes of its arguments, 0
 * behind the last, for every kernel NAME. */
typedef struct fake_image {
  char magic[8];
  size_t bytes;
} fake_image;
static const char fake_magic[8] = {'s', 't', 'u', 'b', ' ', 'g', 'p', 'u'};

/* What the driver has been asked for: `fake_counts` is one of these. */
typedef struct fake_count {
  unsigned long to_device, to_host, launches, graphs, nodes, instantiations, allocations, questions, products, captures;
} fake_count;
/* The device's memory, for what works on it besides the driver: fake_memory_of() of the driver. */
typedef struct fake_memory {
  void *(*host)(CUdeviceptr p, size_t bytes); /* for a task: where the driver sees it; checked */
  /* Work in a stream's order, or for the graph that it captures: run(task), a copy of these bytes. */
  CUresult (*enqueue)(void (*run)(const void *task), const void *task, size_t bytes, CUstream stream);
} fake_memory;

#endif
