/* The engine, the VM and the thread that runs it: opening and closing, stacks and their limits, interrupts and limits,
 * output, logs, tunables, capabilities.
 *
 * The default engine is the one object of the library that is not owned by the host: made when the first VM without an
 * engine of its own opens, closed with the last one.
 */
#define _GNU_SOURCE /* pthread_getattr_np */
#include "lang/vm.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "lang/internal.h"
#include "lang/timeline.h"

enum {
  VALUE_STACK = 1 << 20,    /* slots; address space, touched as it is used */
  STACK_DEFAULT = 6 << 20,  /* bytes of C stack that recursion may use, at most, unless the host says more */
  STACK_RESERVE = 48 << 10, /* bytes of C stack kept for what runs at the limit: error reports, callbacks */
  CHECK_MOST = 1024,        /* polls between two looks at the clock, at most */
};

const tunable_row tunable_rows[TUNABLE_COUNT] = {
#define TUNABLE(symbol, name, def, min, max, meaning) {name, def, min, max, meaning},
#include "lang/tunables.def"
#undef TUNABLE
};
#define TUNABLE(symbol, name, def, min, max, meaning)                                                                  \
  _Static_assert((min) <= (def) && (def) <= (max), "default of " name " lies in its range");
#include "lang/tunables.def"
#undef TUNABLE

/* ---- engines ------------------------------------------------------------------------------------------------- */

static qn_engine *engine_open(void) {
  qn_engine *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  e->pool = pool_open();
  if (!e->pool) {
    free(e);
    return NULL;
  }
  return e;
}

static void engine_close(qn_engine *e) {
  if (!e) return;
  if (e->jit_close) e->jit_close(e);
  timeline_close(e);
  pool_close(e->pool);
  free(e);
}

qn_engine *qn_engine_open(void) {
  qn_engine *e = engine_open();
  if (e) atomic_store(&e->refs, 1);
  return e;
}

/* Gives back one reference. */
static void engine_release(qn_engine *e) {
  if (e && atomic_fetch_sub(&e->refs, 1) == 1) engine_close(e);
}

void qn_engine_close(qn_engine *engine) { engine_release(engine); }

static pthread_mutex_t default_engine_lock = PTHREAD_MUTEX_INITIALIZER;
static qn_engine *default_engine; /* guarded by the lock; it has no host's reference */

/* An engine for a VM: the host's, or the default one. */
static qn_engine *engine_join(qn_engine *engine) {
  if (engine) {
    atomic_fetch_add(&engine->refs, 1);
    return engine;
  }
  pthread_mutex_lock(&default_engine_lock);
  if (!default_engine) default_engine = engine_open();
  engine = default_engine;
  if (engine) atomic_fetch_add(&engine->refs, 1);
  pthread_mutex_unlock(&default_engine_lock);
  return engine;
}

static void engine_leave(qn_engine *engine, bool is_default) {
  if (!is_default) {
    engine_release(engine);
    return;
  }
  pthread_mutex_lock(&default_engine_lock);
  bool last = atomic_fetch_sub(&engine->refs, 1) == 1;
  if (last) default_engine = NULL;
  pthread_mutex_unlock(&default_engine_lock);
  if (last) engine_close(engine);
}

/* ---- opening and closing ------------------------------------------------------------------------------------- */

static size_t stack_map_bytes(void) { return (size_t)VALUE_STACK * sizeof(qn_value); }

static bool stack_open(qn_vm *vm) {
  void *p = mmap(NULL, stack_map_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return false;
  vm->stack = vm->sp = p;
  vm->stack_limit = vm->stack + VALUE_STACK;
  return true;
}

qn_vm *vm_open(const qn_config *config) {
  qn_vm *vm = calloc(1, sizeof *vm);
  if (!vm) return NULL;
  qn_config_init(&vm->config);
  if (config) {
    /* A host compiled against a shorter struct leaves the newer members at their defaults. */
    size_t size = config->size && config->size < sizeof *config ? config->size : sizeof *config;
    memcpy(&vm->config, config, size);
    vm->config.size = sizeof *config;
  }
  for (int i = 0; i < TUNABLE_COUNT; i++) vm->tune[i] = tunable_rows[i].def;
  vm->next_node = 1;
  vm->next_check = UINT64_MAX;
  text_init(&vm->report, vm);
  vm->owns_engine = !vm->config.engine;
  vm->engine = engine_join(vm->config.engine);
  if (vm->engine && stack_open(vm) && mem_open(vm) && error_open(vm) && intern_open(vm) && layouts_open(vm) &&
      sources_open(vm)) {
    vm_bind_thread(vm);
    return vm;
  }
  vm_close(vm);
  return NULL;
}

void vm_close(qn_vm *vm) {
  if (!vm) return;
  if (vm->stack) vm_pop_to(vm, vm->stack);
  if (vm->hooks.close_interp) vm->hooks.close_interp(vm);
  if (vm->hooks.close_jit) vm->hooks.close_jit(vm);
  if (vm->mem) {
    error_clear(vm);
    text_free(&vm->report);
    sources_close(vm);
    layouts_close(vm);
    error_close(vm);
    intern_close(vm);
    mem_close(vm);
  }
  if (vm->stack) munmap(vm->stack, stack_map_bytes());
  if (vm->engine) engine_leave(vm->engine, vm->owns_engine);
  free(vm);
}

/* ---- the running thread -------------------------------------------------------------------------------------- */

void vm_bind_thread(qn_vm *vm) {
  pthread_t self = pthread_self();
  if (vm->bound && pthread_equal(self, vm->thread)) return;
  char *here = __builtin_frame_address(0);
  size_t room = 512 << 10; /* where the system does not say */
  pthread_attr_t attr;
  if (pthread_getattr_np(self, &attr) == 0) {
    void *low;
    size_t size;
    if (pthread_attr_getstack(&attr, &low, &size) == 0 && here > (char *)low) room = (size_t)(here - (char *)low);
    pthread_attr_destroy(&attr);
  }
  size_t use = vm->config.stack_bytes;
  if (!use) use = room / 4 * 3 < STACK_DEFAULT ? room / 4 * 3 : STACK_DEFAULT;
  size_t most = room > STACK_RESERVE * 2 ? room - STACK_RESERVE : room / 2;
  if (use > most) use = most;
  vm->c_stack_limit = here - use;
  vm->thread = self;
  vm->bound = true;
}

bool vm_stack_overflow(qn_vm *vm) {
  if ((char *)__builtin_frame_address(0) < vm->c_stack_limit)
    raise(vm, E_recursion, SPAN_NONE, "calls nest too deep for the C stack of this thread");
  else
    raise(vm, E_too_large, SPAN_NONE, "a call, or an array literal, of more than %d values",
          VALUE_STACK / 100000 * 100000);
  return false;
}

#if defined(__x86_64__)
/* MXCSR: all exceptions masked, round to nearest, no flushing to zero. */
uint64_t fp_mode_enter(void) {
  uint64_t old = _mm_getcsr();
  if ((old & ~(uint64_t)0x3f) != 0x1f80) _mm_setcsr(0x1f80);
  return old;
}
void fp_mode_leave(uint64_t mode) {
  if ((mode & ~(uint64_t)0x3f) != 0x1f80) _mm_setcsr((unsigned)mode);
}
#elif defined(__aarch64__)
uint64_t fp_mode_enter(void) {
  uint64_t old;
  __asm__ volatile("mrs %0, fpcr" : "=r"(old));
  if (old) __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)0));
  return old;
}
void fp_mode_leave(uint64_t mode) {
  if (mode) __asm__ volatile("msr fpcr, %0" ::"r"(mode));
}
#else
#include <fenv.h>
uint64_t fp_mode_enter(void) {
  int old = fegetround();
  fesetround(FE_TONEAREST);
  return (uint64_t)old;
}
void fp_mode_leave(uint64_t mode) { fesetround((int)mode); }
#endif

static double seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void plan_check(qn_vm *vm) {
  uint64_t next = vm->config.step_limit ? vm->step_end : UINT64_MAX;
  if (vm->config.time_limit > 0 && next - vm->steps > vm->check_interval) next = vm->steps + vm->check_interval;
  vm->next_check = next;
}

void vm_run_begin(qn_vm *vm, vm_run *run) {
  run->fp_mode = fp_mode_enter();
  vm_bind_thread(vm);
  if (vm->depth++) return;
  error_clear(vm);
  atomic_store(&vm->interrupt, 0);
  vm->step_end = vm->steps + vm->config.step_limit;
  vm->check_interval = 1;
  if (vm->config.time_limit > 0) {
    vm->last_check = seconds_now();
    vm->deadline = vm->last_check + vm->config.time_limit;
  }
  plan_check(vm);
}

void vm_run_end(qn_vm *vm, vm_run *run) {
  if (--vm->depth == 0) vm->next_check = UINT64_MAX;
  fp_mode_leave(run->fp_mode);
}

bool vm_poll_slow(qn_vm *vm) {
  if (atomic_exchange(&vm->interrupt, 0)) {
    raise(vm, E_interrupted, SPAN_NONE, "interrupted");
    return true;
  }
  if (vm->config.step_limit && vm->steps >= vm->step_end) {
    raise(vm, E_limit, SPAN_NONE, "the limit of %llu steps is reached", (unsigned long long)vm->config.step_limit);
    return true;
  }
  if (vm->config.time_limit > 0) {
    /* Steps may be short or long: the interval between looks at the clock follows the time that one took. */
    double now = seconds_now(), took = now - vm->last_check;
    vm->last_check = now;
    if (now >= vm->deadline) {
      text_buf t;
      text_init(&t, vm);
      text_adds(&t, "the time limit of ");
      text_float(&t, vm->config.time_limit, false);
      text_adds(&t, " seconds is reached");
      raise_text(vm, E_limit, SPAN_NONE, &t);
      return true;
    }
    if (took < 20e-6 && vm->check_interval < CHECK_MOST)
      vm->check_interval *= 2;
    else if (took > 1e-3)
      vm->check_interval = 1;
  }
  plan_check(vm);
  return false;
}

/* ---- devices --------------------------------------------------------------------------------------------------- */

bool vm_use_device(qn_vm *vm, int device) {
  if (device && !vm->hooks.device) {
    raise(vm, E_device, SPAN_NONE, "gpu(%d) is not there", device - 1);
    return false;
  }
  if (device && !vm->hooks.device->open(vm, device)) return false;
  vm->device = (uint8_t)device;
  return true;
}

/* ---- output and logs ----------------------------------------------------------------------------------------- */

void vm_write(qn_vm *vm, int stream, const char *text, size_t len) {
  if (!len) return;
  if (vm->config.write)
    vm->config.write(vm->config.user, stream, text, len);
  else
    fwrite(text, 1, len, stream == 2 ? stderr : stdout);
}

static const char *const log_names[] = {
#define X(name) #name,
    LOG_CHANNELS(X)
#undef X
};
enum { LOG_COUNT = sizeof log_names / sizeof *log_names };

void vm_logf(qn_vm *vm, log_channel c, const char *format, ...) {
  text_buf t;
  text_init(&t, vm);
  text_addf(&t, "[%s] ", log_names[__builtin_ctz((unsigned)c)]);
  va_list args;
  va_start(args, format);
  text_addv(&t, format, args);
  va_end(args);
  text_add(&t, "\n", 1);
  if (!t.failed) vm_write(vm, 2, t.text, t.len);
  text_free(&t);
}

bool log_parse(const char *text, uint32_t *bits) {
  uint32_t found = 0;
  while (*text) {
    size_t n = strcspn(text, ",");
    uint32_t bit = n == 0 ? 0 : n == 3 && memcmp(text, "all", 3) == 0 ? (1u << LOG_COUNT) - 1 : UINT32_MAX;
    for (int i = 0; i < LOG_COUNT; i++)
      if (strlen(log_names[i]) == n && memcmp(log_names[i], text, n) == 0) bit = 1u << i;
    if (bit == UINT32_MAX) return false;
    found |= bit;
    text += n;
    if (*text) text++;
  }
  *bits = found;
  return true;
}

/* ---- tunables and capabilities ------------------------------------------------------------------------------- */

static bool raise_tunable(qn_vm *vm, const char *name) {
  const char *names[TUNABLE_COUNT];
  for (int i = 0; i < TUNABLE_COUNT; i++) names[i] = tunable_rows[i].name;
  text_buf t;
  text_init(&t, vm);
  text_addf(&t, "there is no tunable %s", name);
  text_buf near;
  text_init(&near, vm);
  if (text_nearest(&near, name, names, TUNABLE_COUNT)) text_addf(&t, "; near: %s", near.text);
  text_free(&near);
  raise_text(vm, E_argument, SPAN_NONE, &t);
  return false;
}

bool tunable_set(qn_vm *vm, const char *name, const char *value) {
  for (int i = 0; i < TUNABLE_COUNT; i++) {
    const tunable_row *row = &tunable_rows[i];
    if (strcmp(row->name, name) != 0) continue;
    int64_t v;
    if (!int_parse(value, strlen(value), &v) || v < row->min || v > row->max) {
      raise(vm, E_argument, SPAN_NONE, "%s takes an integer from %lld to %lld, not %s", name, (long long)row->min,
            (long long)row->max, value);
      return false;
    }
    vm->tune[i] = v;
    return true;
  }
  return raise_tunable(vm, name);
}

bool tunable_set_list(qn_vm *vm, const char *text) {
  while (*text) {
    size_t n = strcspn(text, ",");
    const char *equals = memchr(text, '=', n);
    char name[64], value[64];
    size_t name_len = equals ? (size_t)(equals - text) : n, value_len = equals ? n - name_len - 1 : 0;
    if (n && (!equals || name_len >= sizeof name || value_len >= sizeof value)) {
      raise(vm, E_argument, SPAN_NONE, "tunables are set by name=value, not %.*s", (int)(n < 100 ? n : 100), text);
      return false;
    }
    if (n) {
      memcpy(name, text, name_len);
      name[name_len] = 0;
      memcpy(value, equals + 1, value_len);
      value[value_len] = 0;
      if (!tunable_set(vm, name, value)) return false;
    }
    text += n;
    if (*text) text++;
  }
  return true;
}

bool vm_may(qn_vm *vm, uint32_t capability, const char *what) {
  if (vm->config.capabilities & capability) return true;
  raise(vm, E_capability, SPAN_NONE, "%s is not permitted here", what);
  return false;
}
