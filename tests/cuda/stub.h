/* What the stub driver and the stub compiler know of each other. */
#ifndef TESTS_CUDA_STUB_H
#define TESTS_CUDA_STUB_H

#include "jit/gpu/cuda.h"

/* Where a thread is, and how it waits for the others of its block. The compiled text has the same declaration. */
#define STUB_PLACE                                                                                                     \
  typedef struct stub_index {                                                                                          \
    unsigned x;                                                                                                        \
  } stub_index;                                                                                                        \
  typedef struct stub_place {                                                                                          \
    stub_index thread, block, grid, width;                                                                             \
    void (*barrier)(void);                                                                                             \
    int (*any)(int);                                                                                                   \
  } stub_place;
STUB_PLACE

/* A "cubin": this, then a shared object with run_NAME(stub_place *, void **arguments) and sizes_NAME, the bytes of its arguments, 0
 * behind the last, for every kernel NAME. */
typedef struct stub_image {
  char magic[8];
  size_t bytes;
} stub_image;
static const char stub_magic[8] = {'s', 't', 'u', 'b', ' ', 'g', 'p', 'u'};

/* What the driver has been asked for: `stub_counts` is one of these. */
typedef struct stub_count {
  unsigned long to_device, to_host, launches, graphs, nodes, instantiations, allocations, questions;
} stub_count;
/* The device's memory, for what works on it besides the driver: stub_memory_of() of the driver. */
typedef struct stub_memory {
  void (*open)(void); /* the host may touch it, until close */
  void (*close)(void);
  void *(*host)(CUdeviceptr p, size_t bytes); /* checked */
} stub_memory;

#endif
