/* Compiling CUDA C for a device, on threads beside execution.
 *
 *   unit: a text with the code of some programs ─ queue ─ thread: cubin in the cache folder? ─ yes: load
 *                                                                                        └ no: NVRTC, load, store
 *
 * Code is found by the hash of its program (l_hash) and the device, and stays until the engine closes: VMs share it. The name of a cubin
 * in the cache is made of the text, the options, the architecture and the version of NVRTC (cache.h); without NVRTC any version's cubin
 * will do. Only what the driver could load is stored. The threads run at SCHED_IDLE.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "jit/gpu/state.h"
#include "jit/kernel/cache.h"
#include "lang/trace_events.h"

struct gpu_job {
  gpu_job *next;
  int device;
  char *text; /* behind the codes */
  size_t len;
  int64_t cache_bytes;
  bool quick, second;
  uint32_t n;
  gpu_code *codes[];
};

/* ---- tables of code (under the lock) ---------------------------------------------------------------------------------- */

gpu_code *gpu_code_find(gpu_engine *e, int device, uint64_t hash) {
  pthread_mutex_lock(&e->lock);
  gpu_code *found = hash_find(&e->devices[device].codes, hash);
  pthread_mutex_unlock(&e->lock);
  return found;
}

static void code_free(gpu_code *c) {
  if (c) free(c->functions);
  free(c);
}

static gpu_code *code_add(gpu_engine *e, int device, uint64_t hash, uint32_t nfunctions) {
  gpu_code *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  *c = (gpu_code){.hash = hash, .device = device, .nfunctions = nfunctions};
  atomic_init(&c->state, CODE_QUEUED);
  c->functions = calloc(nfunctions, sizeof *c->functions);
  if (c->functions && hash_add(&e->devices[device].codes, hash, c)) return c;
  code_free(c);
  return NULL;
}

/* ---- NVRTC ------------------------------------------------------------------------------------------------------------- */

/* Fills in NVRTC's options; results have their bits only with the four from -fmad on. Returns how many there are. */
static int options_of(const gpu_device *d, bool quick, char arch[32], const char *options[7]) {
  static const char *const fixed[] = {"-fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false", "-w"};
  snprintf(arch, 32, "-arch=sm_%d", d->arch);
  options[0] = arch;
  memcpy(options + 1, fixed, sizeof fixed);
  options[6] = "--Ofast-compile=mid";
  return quick ? 7 : 6;
}
enum { NOPTIONS = 7 };

/* NVRTC asks it now and then: compiling ends when the engine closes. */
static int is_closing(void *engine, void *unused) {
  (void)unused;
  return atomic_load(&((gpu_engine *)engine)->closing);
}

/* Compiles the job's text: the cubin (malloc'ed), or NULL, and the user is told why. */
static char *compile_text(gpu_engine *e, const gpu_job *j, const char *const *options, int noptions, size_t *size) {
  const cuda_nvrtc *n = &e->libraries.nvrtc;
  nvrtcProgram program = NULL;
  char *cubin = NULL;
  *size = 0;
  nvrtcResult rc = n->nvrtcCreateProgram(&program, j->text, "kernels.cu", 0, NULL, NULL);
  if (rc == 0 && n->nvrtcSetFlowCallback) (void)n->nvrtcSetFlowCallback(program, is_closing, e);
  if (rc == 0) rc = n->nvrtcCompileProgram(program, noptions, options);
  if (rc == 0) rc = n->nvrtcGetCUBINSize(program, size);
  if (rc == 0 && *size > 0 && (cubin = malloc(*size)) && n->nvrtcGetCUBIN(program, cubin) != 0) {
    free(cubin);
    cubin = NULL;
  }
  if (!cubin && !atomic_load(&e->closing)) {
    size_t bytes = 0;
    char *log = NULL;
    if (program && n->nvrtcGetProgramLogSize(program, &bytes) == 0 && bytes > 1) log = calloc(1, bytes + 1);
    if (log && n->nvrtcGetProgramLog(program, log) != 0) log[0] = 0;
    troubles_tell(&e->troubles, GPU_TROUBLE_COMPILER,
                  "quern: NVRTC failed (%d); kernels run on the CPU, with copies: %.150s", (int)rc,
                  log && log[0] ? log : "no message");
    free(log);
  }
  if (program) n->nvrtcDestroyProgram(&program);
  return cubin;
}

/* ---- loading ------------------------------------------------------------------------------------------------------------- */

static bool keep_module(gpu_engine *e, CUmodule module, int device) {
  hash_table *modules = &e->devices[device].modules;
  pthread_mutex_lock(&e->lock);
  bool ok = hash_add(modules, modules->n, module);
  pthread_mutex_unlock(&e->lock);
  return ok;
}

/* Loads a cubin, which stays until the engine closes, and finds the functions of the job's codes in it. False: the user is told why. */
static bool load(gpu_engine *e, const gpu_job *j, const char *cubin) {
  const cuda_driver *d = &e->libraries.driver;
  CUmodule module = NULL;
  CUcontext old;
  CUresult rc = d->cuCtxPushCurrent_v2(e->devices[j->device].context);
  if (rc != GPU_OK) return false;
  rc = d->cuModuleLoadData(&module, cubin);
  for (uint32_t i = 0; i < j->n && rc == GPU_OK; i++)
    for (uint32_t k = 0; k < j->codes[i]->nfunctions && rc == GPU_OK; k++) {
      char name[48];
      snprintf(name, sizeof name, "k%016llx_%u", (unsigned long long)j->codes[i]->hash, k);
      rc = d->cuModuleGetFunction(&j->codes[i]->functions[k], module, name);
      if (rc == GPU_OK)
        j->codes[i]->shares = (k == 0 || j->codes[i]->shares) &&
                              d->cuFuncSetAttribute(j->codes[i]->functions[k], GPU_MOST_SHARED, GPU_SHARED) == GPU_OK;
    }
  if (module && (rc != GPU_OK || !keep_module(e, module, j->device))) {
    d->cuModuleUnload(module);
    if (rc == GPU_OK) rc = GPU_OUT_OF_MEMORY;
  }
  d->cuCtxPopCurrent_v2(&old);
  if (rc != GPU_OK)
    troubles_tell(&e->troubles, GPU_TROUBLE_LOAD,
                  "quern: compiled kernels cannot be loaded on gpu(%d), and run on the CPU: %s", j->device,
                  gpu_error_text(d, rc));
  return rc == GPU_OK;
}

/* ---- a job ---------------------------------------------------------------------------------------------------------------- */

/* Makes the job's code, from the cache or by NVRTC. False: the user is told why. */
static bool make(gpu_engine *e, const gpu_job *j) {
  const char *options[NOPTIONS];
  char arch[32], machine[32], key[CACHE_KEY], maker[CACHE_MAKER] = "", folder[1024] = "", path[CACHE_PATH],
                                              *cubin = NULL;
  size_t size = 0;
  int noptions = options_of(&e->devices[j->device], j->quick, arch, options);
  snprintf(machine, sizeof machine, "sm_%d", e->devices[j->device].arch);
  cache_key(key, j->text, j->len, options, (size_t)noptions, machine);
  cache_access access = j->cache_bytes > 0 ? cache_folder(folder, sizeof folder) : CACHE_NONE;
  pthread_mutex_lock(&e->lock);
  bool compiler = libraries_open(&e->libraries, LIBRARY_NVRTC);
  pthread_mutex_unlock(&e->lock);
  if (compiler) snprintf(maker, sizeof maker, "%016x", (unsigned)e->libraries.of[LIBRARY_NVRTC].version);
  if (access != CACHE_NONE && cache_find(folder, key, maker, path)) {
    if (cache_read(path, &cubin, &size) == CACHE_DAMAGED)
      troubles_tell(&e->troubles, GPU_TROUBLE_CACHE, "quern: a damaged file in the kernel cache was removed (%.200s)",
                    path);
    bool done = cubin && load(e, j, cubin);
    free(cubin);
    if (done) return true;
  }
  if (!compiler) {
    troubles_tell(&e->troubles, GPU_TROUBLE_NVRTC,
                  "quern: no NVRTC (%.150s): kernels for the GPU run on the CPU, with copies",
                  e->libraries.of[LIBRARY_NVRTC].why);
    return false;
  }
  cubin = compile_text(e, j, options, noptions, &size);
  bool done = cubin && load(e, j, cubin);
  if (done && access == CACHE_WRITES && !cache_write(folder, path, cubin, size, j->cache_bytes, &e->cache_room))
    troubles_tell(&e->troubles, GPU_TROUBLE_CACHE, "quern: the kernel cache cannot be written (%.200s)", folder);
  free(cubin);
  return done;
}

/* Does a job and frees it. Called under the lock, which it gives up while it works. */
static void run_job(gpu_engine *e, gpu_job *j) {
  pthread_mutex_unlock(&e->lock);
  int64_t begin = trace_events_begin(e->engine);
  bool ok = make(e, j);
  trace_events_end(e->engine, TRACE_EVENTS_compile, "for the GPU", begin, "kernels", j->n);
  pthread_mutex_lock(&e->lock);
  for (uint32_t i = 0; i < j->n; i++)
    atomic_store_explicit(&j->codes[i]->state, ok ? CODE_READY : CODE_FAILED, memory_order_release);
  pthread_cond_broadcast(&e->done);
  free(j);
}

/* Takes the next job out of the queue; NULL: there is none for this thread. One of a second tier comes behind all others, and one at a time. Under the lock. */
static gpu_job *take_job(gpu_engine *e) {
  gpu_job **at = &e->queue;
  while (*at && (*at)->second) at = &(*at)->next;
  if (!*at && !e->seconds) at = &e->queue;
  gpu_job *j = *at;
  if (!j) return NULL;
  *at = j->next;
  if (!*at) e->tail = at;
  return j;
}

static void *worker(void *arg) {
  gpu_engine *e = arg;
  struct sched_param idle = {0};
  pthread_setschedparam(pthread_self(), SCHED_IDLE, &idle);
  pthread_mutex_lock(&e->lock);
  for (;;) {
    gpu_job *j = NULL;
    e->idle++;
    while (!e->closing && !(j = take_job(e))) pthread_cond_wait(&e->work, &e->lock);
    e->idle--;
    if (!j) break;
    bool second = j->second;
    e->seconds += second;
    run_job(e, j);
    e->seconds -= second;
  }
  pthread_mutex_unlock(&e->lock);
  return NULL;
}

/* Starts another thread, if all are busy and there may be more. False: there is none. Under the lock. */
static bool have_worker(gpu_engine *e) {
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  /* at least two: an interpreter (block_vm.h) takes seconds to compile, and kernels must not wait for it */
  int most = processors < 3 ? 2 : processors - 1 < GPU_WORKERS ? (int)processors - 1 : GPU_WORKERS;
  if (!e->idle && e->nworkers < most && vm_thread(&e->workers[e->nworkers], 0, worker, e)) e->nworkers++;
  return e->nworkers > 0;
}

bool gpu_compile(gpu_engine *e, int device, const gpu_unit *u) {
  gpu_job *j = calloc(1, sizeof *j + u->n * sizeof *j->codes + u->len + 1);
  if (!j) return false;
  j->text = (char *)(j->codes + u->n);
  memcpy(j->text, u->text, u->len);
  j->device = device;
  j->len = u->len;
  j->cache_bytes = u->cache_bytes;
  j->quick = u->quick;
  j->second = u->second;
  pthread_mutex_lock(&e->lock);
  bool ok = true;
  for (uint32_t i = 0; i < u->n && ok; i++) {
    if (hash_find(&e->devices[device].codes, u->hashes[i])) continue; /* another VM was first */
    gpu_code *c = code_add(e, device, u->hashes[i], u->nfunctions[i]);
    ok = c != NULL;
    if (c) j->codes[j->n++] = c;
  }
  bool here = j->n > 0 && u->here, queued = j->n > 0 && !here && have_worker(e);
  if (here) {
    run_job(e, j);
  } else if (queued) {
    *e->tail = j;
    e->tail = &j->next;
    pthread_cond_signal(&e->work);
  } else {
    for (uint32_t i = 0; i < j->n; i++) atomic_store(&j->codes[i]->state, CODE_FAILED);
  }
  pthread_mutex_unlock(&e->lock);
  if (!queued && !here) free(j);
  return ok;
}

void gpu_code_wait(gpu_engine *e, gpu_code *code) {
  pthread_mutex_lock(&e->lock);
  while (atomic_load(&code->state) == CODE_QUEUED) pthread_cond_wait(&e->done, &e->lock);
  pthread_mutex_unlock(&e->lock);
}

void gpu_compile_close(gpu_engine *e) {
  pthread_mutex_lock(&e->lock);
  e->closing = true;
  pthread_cond_broadcast(&e->work);
  pthread_mutex_unlock(&e->lock);
  for (int i = 0; i < e->nworkers; i++) pthread_join(e->workers[i], NULL);
  for (gpu_job *j = e->queue, *next; j; j = next) {
    next = j->next;
    free(j);
  }
  const cuda_driver *driver = &e->libraries.driver;
  for (int d = 0; d < GPU_DEVICES; d++) {
    gpu_device *g = &e->devices[d];
    CUcontext old;
    bool entered = g->modules.n && driver->cuCtxPushCurrent_v2(g->context) == GPU_OK;
    for (uint32_t i = 0; i < g->modules.cap && entered; i++)
      if (g->modules.slots[i].what) driver->cuModuleUnload(g->modules.slots[i].what);
    if (entered) driver->cuCtxPopCurrent_v2(&old);
    for (uint32_t i = 0; i < g->codes.cap; i++) code_free(g->codes.slots[i].what);
    hash_free(&g->modules);
    hash_free(&g->codes);
  }
}
