/* NVRTC, loaded at run time: CUDA C to a cubin for sm_90, with the options that bits depend on. */
#ifndef TESTS_CUDA_NVRTC_H
#define TESTS_CUDA_NVRTC_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvrtc {
  int (*create)(void **, const char *, const char *, int, const char *const *, const char *const *);
  int (*compile)(void *, int, const char *const *);
  int (*log_size)(void *, size_t *);
  int (*log)(void *, char *);
  int (*cubin_size)(void *, size_t *);
  int (*cubin)(void *, char *);
  int (*destroy)(void **);
} nvrtc;

/* Looks a function up; false with a message if it is missing. */
static bool symbol_of(void *library, const char *name, void *to) {
  void *f = dlsym(library, name);
  if (!f) fprintf(stderr, "no function %s\n", name);
  memcpy(to, &f, sizeof f);
  return f != NULL;
}

static bool nvrtc_open(nvrtc *n, const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror());
  return library && symbol_of(library, "nvrtcCreateProgram", &n->create) &&
         symbol_of(library, "nvrtcCompileProgram", &n->compile) &&
         symbol_of(library, "nvrtcGetProgramLogSize", &n->log_size) &&
         symbol_of(library, "nvrtcGetProgramLog", &n->log) && symbol_of(library, "nvrtcGetCUBINSize", &n->cubin_size) &&
         symbol_of(library, "nvrtcGetCUBIN", &n->cubin) && symbol_of(library, "nvrtcDestroyProgram", &n->destroy);
}

static const char *const nvrtc_options[] = {"-arch=sm_90", "-fmad=false", "-prec-div=true",     "-prec-sqrt=true",
                                            "-ftz=false",  "-w",          "--Ofast-compile=mid"};

/* The cubin, malloc'ed; NULL with the compiler's messages on stderr. `quick`: as gpu_unit's. */
static char *nvrtc_cubin(const nvrtc *n, const char *name, const char *text, bool quick, size_t *size) {
  void *program = NULL;
  char *cubin = NULL;
  int rc = n->create(&program, text, name, 0, NULL, NULL);
  if (rc == 0) rc = n->compile(program, quick ? 7 : 6, nvrtc_options);
  if (rc != 0 && program && n->log_size(program, size) == 0 && *size > 1) {
    char *log = calloc(1, *size + 1);
    if (log && n->log(program, log) == 0) fprintf(stderr, "%.4000s\n", log);
    free(log);
  }
  *size = 0;
  if (rc == 0) rc = n->cubin_size(program, size);
  if (rc == 0 && *size > 0) cubin = malloc(*size);
  if (cubin && n->cubin(program, cubin) != 0) {
    free(cubin);
    cubin = NULL;
  }
  if (program) n->destroy(&program);
  return cubin;
}

#endif
