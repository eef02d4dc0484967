/* The libraries of CUDA, opened at run time: where they are, which versions, what is missing and what that costs. */
#ifndef JIT_GPU_LIBRARIES_H
#define JIT_GPU_LIBRARIES_H

#include <stdbool.h>

#include "jit/gpu/cuda.h"
#include "lang/error.h"

typedef enum library_id { LIBRARY_DRIVER, LIBRARY_NVRTC, LIBRARY_LT, LIBRARY_COUNT } library_id;

typedef struct library {
  void *handle; /* NULL: it is not there, or cannot be used; `why` has the reason */
  bool stays;   /* it is never closed, since it has functions that run when the process ends */
  int version;  /* 1000 * major + 10 * minor */
  char path[512];
  char why[240];
} library;

typedef struct libraries {
  library of[LIBRARY_COUNT];
  cuda_driver driver;
  cuda_nvrtc nvrtc;
  cuda_lt lt;
  int devices; /* 0: there is no GPU to use; the driver's `why` has the reason */
} libraries;

/* Opens the driver and counts the devices. */
void libraries_open_driver(libraries *l);
/* Opens one of the others, in a version that the driver can work with. False: it cannot be used; `why` has the reason. */
bool libraries_open(libraries *l, library_id id);
void libraries_close(libraries *l);

/* Opens everything, writes a line about each library and GPU, and closes it again (quern doctor). */
void libraries_report(text_buf *out);

#endif
