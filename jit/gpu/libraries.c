/* Finding and opening the libraries of CUDA (libraries.h).
 *
 * Names are tried newest first, each in these places: the folder $QUERN_CUDA; wherever the system's loader looks; the toolkit's
 * folders below $CUDA_HOME, $CUDA_PATH and /usr/local/cuda; folders that pip installs wheels to, of an active virtual environment,
 * the user and the system. The driver is the system's own and is only looked for in the first two and beside its usual path.
 *
 * A library is of use if it has every function that is called and is not too old. A compiler that is newer than the driver by a
 * major version makes code that the driver cannot load, so it is passed over for an older one.
 */
#define _GNU_SOURCE
#include "jit/gpu/libraries.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLDEST = 12000 }; /* the oldest version that can be used: CUDA 12.0 */

typedef struct library_row {
  const char *what, *cost; /* its name; what it costs to be without it */
  const char *names[3];    /* newest first */
  const char *companion;   /* a library beside it that it opens by name, as a pattern; NULL: none */
} library_row;

static const library_row rows[LIBRARY_COUNT] = {
    [LIBRARY_DRIVER] = {"GPU driver", "arrays live on the CPU", {"libcuda.so.1"}, NULL},
    [LIBRARY_NVRTC] = {"NVRTC",
                       "kernels for the GPU cannot be compiled: those not in the cache run on the CPU, with copies",
                       {"libnvrtc.so.13", "libnvrtc.so.12"},
                       "libnvrtc-builtins.so.*"},
    [LIBRARY_LT] =
        {"cuBLASLt",
         "matrix products on the GPU are kernels of our own: the CPU's bits, but slower, most of all in f16 and bf16",
         {"libcublasLt.so.13", "libcublasLt.so.12"},
         NULL},
};

/* ---- functions --------------------------------------------------------------------------------------------------- */

static bool take(library *l, const char *name, void *to) {
  void *f = dlsym(l->handle, name);
  if (!f) snprintf(l->why, sizeof l->why, "it has no function %s", name);
  memcpy(to, &f, sizeof f);
  return f != NULL;
}

static bool take_functions(libraries *all, library_id id, library *l) {
#define TAKE_DRIVER(result, name, parameters) &&take(l, #name, &all->driver.name)
#define TAKE_NVRTC(result, name, parameters) &&take(l, #name, &all->nvrtc.name)
#define TAKE_LT(result, name, parameters) &&take(l, #name, &all->lt.name)
  switch (id) {
  case LIBRARY_DRIVER: return true CUDA_DRIVER(TAKE_DRIVER);
  case LIBRARY_NVRTC: {
    void *f = dlsym(l->handle, "nvrtcSetFlowCallback");
    memcpy(&all->nvrtc.nvrtcSetFlowCallback, &f, sizeof f);
    return true CUDA_NVRTC(TAKE_NVRTC);
  }
  default: return true CUDA_LT(TAKE_LT);
  }
#undef TAKE_DRIVER
#undef TAKE_NVRTC
#undef TAKE_LT
}

static int version_of(const libraries *all, library_id id) {
  int major = 0, minor = 0;
  switch (id) {
  case LIBRARY_DRIVER: return all->driver.cuDriverGetVersion(&major) == GPU_OK ? major : 0;
  case LIBRARY_NVRTC: return all->nvrtc.nvrtcVersion(&major, &minor) == 0 ? 1000 * major + 10 * minor : 0;
  default: { /* 130100 is 13.1.0, 120305 is 12.3.5 */
    size_t v = all->lt.cublasLtGetVersion();
    return (int)(1000 * (v / 10000) + 10 * (v / 100 % 100));
  }
  }
}

/* ---- one library --------------------------------------------------------------------------------------------------- */

static void drop(library *l) {
  if (l->handle && !l->stays) dlclose(l->handle);
  l->handle = NULL;
}

/* Opens the library that another one from this folder opens by its bare name, so that it is found. */
static void open_companion(const char *folder, const char *pattern) {
  char path[600];
  glob_t found;
  snprintf(path, sizeof path, "%s/%s", folder, pattern);
  if (glob(path, 0, NULL, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; i++)
      if (dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL)) break;
    globfree(&found);
  }
}

/* Tries one name, in a folder or (NULL) where the loader looks. If nothing can be used, `why` tells of the first file that was there. */
static bool try_file(libraries *all, library_id id, const char *folder, const char *name) {
  char path[600];
  if (folder)
    snprintf(path, sizeof path, "%s/%s", folder, name);
  else
    snprintf(path, sizeof path, "%s", name);
  library l = {.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
  if (!l.handle) return false;
  struct link_map *map = NULL;
  if (dlinfo(l.handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name[0])
    snprintf(l.path, sizeof l.path, "%s", map->l_name);
  else
    snprintf(l.path, sizeof l.path, "%s", path);
  if (take_functions(all, id, &l)) {
    l.version = version_of(all, id);
    int driver = all->of[LIBRARY_DRIVER].version;
    if (l.version < OLDEST)
      snprintf(l.why, sizeof l.why, "version %d.%d is too old, CUDA %d is needed", l.version / 1000,
               l.version % 1000 / 10, OLDEST / 1000);
    else if (id != LIBRARY_DRIVER && driver && l.version / 1000 > driver / 1000)
      snprintf(l.why, sizeof l.why, "version %d.%d is newer than the driver, which is of CUDA %d.%d", l.version / 1000,
               l.version % 1000 / 10, driver / 1000, driver % 1000 / 10);
  }
  bool good = !l.why[0];
  if (good && rows[id].companion) {
    char place[512];
    snprintf(place, sizeof place, "%s", l.path);
    char *slash = strrchr(place, '/');
    if (slash) *slash = 0;
    if (slash) open_companion(place, rows[id].companion);
  }
  if (!good) drop(&l);
  if (good || !all->of[id].why[0]) all->of[id] = l;
  return good;
}

static bool try_names(libraries *all, library_id id, const char *folder) {
  for (int i = 0; i < 3 && rows[id].names[i]; i++)
    if (try_file(all, id, folder, rows[id].names[i])) return true;
  return false;
}

static bool try_pattern(libraries *all, library_id id, const char *pattern) {
  glob_t found;
  bool good = false;
  if (glob(pattern, 0, NULL, &found) != 0) return false;
  for (size_t i = 0; i < found.gl_pathc && !good; i++) good = try_names(all, id, found.gl_pathv[i]);
  globfree(&found);
  return good;
}

/* Tries `below`, a pattern, in the folder that an environment variable names. */
static bool try_below(libraries *all, library_id id, const char *variable, const char *below) {
  const char *folder = getenv(variable);
  char pattern[700];
  if (!folder || !*folder) return false;
  snprintf(pattern, sizeof pattern, "%s%s", folder, below);
  return try_pattern(all, id, pattern);
}

static bool find(libraries *all, library_id id) {
  static const char wheels[] = "/lib/python3*/site-packages/nvidia/*/lib";
  memset(&all->of[id], 0, sizeof all->of[id]);
  bool found = try_below(all, id, "QUERN_CUDA", "") || try_names(all, id, NULL);
  if (!found && id == LIBRARY_DRIVER)
    found = try_pattern(all, id, "/usr/lib/wsl/lib") || try_pattern(all, id, "/usr/local/nvidia/lib64");
  if (!found && id != LIBRARY_DRIVER)
    found = try_below(all, id, "CUDA_HOME", "/lib64") || try_below(all, id, "CUDA_HOME", "/targets/*/lib") ||
            try_below(all, id, "CUDA_PATH", "/lib64") || try_pattern(all, id, "/usr/local/cuda/lib64") ||
            try_pattern(all, id, "/usr/local/cuda-1[2-9]*/lib64") || try_below(all, id, "VIRTUAL_ENV", wheels) ||
            try_below(all, id, "CONDA_PREFIX", wheels) || try_below(all, id, "CONDA_PREFIX", "/lib") ||
            try_below(all, id, "HOME", "/.local/lib/python3*/site-packages/nvidia/*/lib") ||
            try_pattern(all, id, "/usr/lib/python3/dist-packages/nvidia/*/lib") ||
            try_pattern(all, id, "/usr/local/lib/python3*/*-packages/nvidia/*/lib");
  if (!found && !all->of[id].why[0])
    snprintf(all->of[id].why, sizeof all->of[id].why, "%s is not here", rows[id].names[0]);
  return found;
}

/* ---- the door ------------------------------------------------------------------------------------------------------ */

bool libraries_open(libraries *l, library_id id) { return l->of[id].handle || find(l, id); }

void libraries_open_driver(libraries *l) {
  library *d = &l->of[LIBRARY_DRIVER];
  l->devices = 0;
  if (!libraries_open(l, LIBRARY_DRIVER)) return;
  CUresult rc = l->driver.cuInit(0);
  if (rc == GPU_OK) rc = l->driver.cuDeviceGetCount(&l->devices);
  if (rc == GPU_OK && l->devices > 0) return;
  const char *text = NULL;
  l->devices = 0;
  if (rc == GPU_OK || rc == GPU_NO_DEVICE)
    snprintf(d->why, sizeof d->why, "the driver finds no GPU");
  else if (rc == GPU_LINK_LIBRARY)
    snprintf(d->why, sizeof d->why, "%.150s is only for linking: it is no driver", d->path);
  else if (l->driver.cuGetErrorString(rc, &text) == GPU_OK && text)
    snprintf(d->why, sizeof d->why, "the driver says: %s (%d)", text, (int)rc);
  else
    snprintf(d->why, sizeof d->why, "the driver fails with error %d", (int)rc);
}

void libraries_close(libraries *l) {
  for (int i = 0; i < LIBRARY_COUNT; i++) drop(&l->of[i]);
}

static void report_library(const libraries *l, library_id id, text_buf *out) {
  const library *x = &l->of[id];
  text_addf(out, "%-12s ", rows[id].what);
  if (x->handle && !x->why[0])
    text_addf(out, "CUDA %d.%d, %s\n", x->version / 1000, x->version % 1000 / 10, x->path);
  else
    text_addf(out, "none: %s; %s\n", x->why, rows[id].cost);
}

void libraries_report(text_buf *out) {
  libraries l = {.devices = 0};
  libraries_open_driver(&l);
  report_library(&l, LIBRARY_DRIVER, out);
  for (int i = 0; i < l.devices; i++) {
    CUdevice device;
    char name[128] = "?";
    int major = 0, minor = 0, units = 0;
    size_t bytes = 0;
    const cuda_driver *d = &l.driver;
    if (d->cuDeviceGet(&device, i) != GPU_OK || d->cuDeviceGetName(name, sizeof name, device) != GPU_OK ||
        d->cuDeviceTotalMem_v2(&bytes, device) != GPU_OK ||
        d->cuDeviceGetAttribute(&major, GPU_CAPABILITY_MAJOR, device) != GPU_OK ||
        d->cuDeviceGetAttribute(&minor, GPU_CAPABILITY_MINOR, device) != GPU_OK ||
        d->cuDeviceGetAttribute(&units, GPU_MULTIPROCESSORS, device) != GPU_OK) {
      text_addf(out, "gpu(%d)       cannot be asked\n", i);
      continue;
    }
    text_addf(out, "gpu(%d)       %s, sm_%d%d, %d multiprocessors, %.1f GiB\n", i, name, major, minor, units,
              (double)bytes / (1 << 30));
  }
  for (library_id id = LIBRARY_NVRTC; l.of[LIBRARY_DRIVER].handle && id < LIBRARY_COUNT; id++) {
    (void)libraries_open(&l, id);
    report_library(&l, id, out);
  }
  libraries_close(&l);
}
