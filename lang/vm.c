/* The engine, the VM and the thread that runs it: opening and closing, stacks and their limits, interrupts and limits,
 * output, logs, tunables, capabilities.
 *
 * The default engine is the one object of the library that is not owned by the host: made when the first VM without an
 * engine of its own opens, closed with the last one.
 */
#define _GNU_SOURCE /* pthread_getattr_np */
#include "lang/vm.h"

#include <errno.h>
#include <signal.h>
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
#include "lang/trace_events.h"

enum {
  VALUE_STACK = 1 << 20,    /* slots; only address space until they are used */
  STACK_DEFAULT = 6 << 20,  /* the most bytes of C stack that recursion uses unless the host allows more */
  STACK_RESERVE = 48 << 10, /* bytes of C stack kept for what runs at the limit: error reports, callbacks */
  STACK_UNKNOWN = 64 << 10, /* bytes that recursion may use of a stack that a host made and said nothing about */
  CHECK_MOST = 1024,        /* the most polls between two looks at the clock */
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
  trace_events_close(e);
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
static qn_engine *default_engine; /* guarded by the lock; only VMs have references to it */

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

void qn_after_fork(qn_engine *engine) {
  if (!engine) {
    pthread_mutex_init(&default_engine_lock, NULL);
    engine = default_engine;
  }
  if (!engine) return;
  pool_forked(engine->pool);
  trace_events_forked(engine);
  if (engine->jit_forked) engine->jit_forked(engine);
}

/* ---- opening and closing ------------------------------------------------------------------------------------- */

static void restrict_cache(qn_vm *vm);

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
  restrict_cache(vm);
  vm->next_node = 1;
  vm->next_check = UINT64_MAX;
  vm->report = (text_buf){.vm = vm};
  vm->later = (text_buf){0};
  vm->began = vm_seconds();
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
  vm_write_waiting(vm); /* if the host's sink throws an exception here the VM is still open */
  if (vm->stack) vm_pop_to(vm, vm->stack);
  vm->closing = true;
  if (vm->hooks.close_stdlib) vm->hooks.close_stdlib(vm);
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
  text_free(&vm->later);
  free(vm);
}

/* ---- the running thread -------------------------------------------------------------------------------------- */

/* The bounds of the calling thread's own stack. Asking the system takes up to 23 microseconds, so each thread keeps them. */
static const vm_stack *thread_stack(void) {
  static _Thread_local vm_stack stack;
  if (stack.high) return &stack;
  pthread_t self = pthread_self();
  pthread_attr_t attr;
  if (pthread_getattr_np(self, &attr) != 0) return NULL;
  void *low;
  size_t size;
  bool known = pthread_attr_getstack(&attr, &low, &size) == 0;
  pthread_attr_destroy(&attr);
  if (!known) return NULL;
  stack = (vm_stack){self, low, (char *)low + size};
  return &stack;
}

static bool stack_has(const char *low, const char *high, const char *here) { return here > low && here <= high; }

static bool bound_to_host(const qn_vm *vm) { return vm->bound.low == vm->host_low && vm->bound.high == vm->host_high; }

void vm_bind_thread(qn_vm *vm) {
  char *here = __builtin_frame_address(0);
  pthread_t self = pthread_self();
  /* The stack that the host made is tried first, since it may be a piece of the thread's own. */
  bool hosts = stack_has(vm->host_low, vm->host_high, here);
  if (stack_has(vm->bound.low, vm->bound.high, here) && pthread_equal(self, vm->bound.thread) &&
      hosts == bound_to_host(vm))
    return;
  const vm_stack *own = hosts ? NULL : thread_stack();
  vm->bound = (vm_stack){.thread = self};
  if (hosts)
    vm->bound = (vm_stack){self, vm->host_low, vm->host_high};
  else if (own && stack_has(own->low, own->high, here))
    vm->bound = *own;
  size_t use = vm->config.stack_bytes;
  if (vm->bound.low) {
    size_t room = (size_t)(here - vm->bound.low);
    if (!use) use = room / 4 * 3 < STACK_DEFAULT ? room / 4 * 3 : STACK_DEFAULT;
    size_t most = room > STACK_RESERVE * 2 ? room - STACK_RESERVE : room / 2;
    if (use > most) use = most;
  } else if (!use) {
    use = STACK_UNKNOWN;
  }
  vm->c_stack_limit = here - use;
}

void qn_stack_changed(qn_vm *vm, void *low, size_t size) {
  vm->host_low = low;
  vm->host_high = low ? (char *)low + size : NULL;
  vm->bound = (vm_stack){.low = NULL}; /* so that it is found anew: another stack may now be where the old one was */
}

bool vm_thread(pthread_t *thread, size_t stack, void *(*run)(void *), void *arg) {
  sigset_t all, old;
  pthread_attr_t attr;
  if (pthread_attr_init(&attr) != 0) return false;
  if (stack) pthread_attr_setstacksize(&attr, stack);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old); /* a new thread inherits the mask of signals */
  bool made = pthread_create(thread, &attr, run, arg) == 0;
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  pthread_attr_destroy(&attr);
  return made;
}

bool vm_stack_overflow(qn_vm *vm) {
  if ((char *)__builtin_frame_address(0) < vm->c_stack_limit)
    return raise_false(
        vm, E_recursion,
        "calls nest too deep for the C stack of this thread; does the recursion end? A loop needs no stack");
  return raise_false(vm, E_too_large, "a call, or an array literal, of more than %d values",
                     VALUE_STACK / 100000 * 100000);
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

double vm_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void plan_check(qn_vm *vm) {
  uint64_t next = vm->config.step_limit ? vm->step_end : UINT64_MAX;
  if (vm->config.time_limit > 0 && next - vm->steps > vm->check_interval) next = vm->steps + vm->check_interval;
  vm->next_check = vm->later.len ? 0 : next;
}

/* Ends the innermost evaluation, whose code was left by an exception or longjmp. */
static void run_abandon(qn_vm *vm, vm_run *run) {
  vm->run = run->outer;
  vm->owned = run->owned;
  vm->device = run->device;
  if (vm->hooks.unwound) vm->hooks.unwound(vm);
  vm_pop_to(vm, run->sp);
  error_clear(vm);
  if (--vm->depth == 0) vm->next_check = UINT64_MAX;
}

/* Drops the evaluations whose frames have been left without cleanups. A frame has been left if the stack, as far as it is the one
 * that the evaluation began on, ends above it now, or another's record lies in its place. What was recorded is lost. */
static __attribute__((noinline, cold)) void drop_left(qn_vm *vm, const vm_run *run, const char *here) {
  for (int i = 0; i < vm->depth && i < RUN_MARKS; i++) {
    const vm_mark m = vm->marks[i];
    bool same = stack_has(vm->bound.low, vm->bound.high, m.frame) &&
                stack_has(vm->host_low, vm->host_high, m.frame) == bound_to_host(vm);
    if (m.run != run && !(same && m.frame < here)) continue;
    vm->depth = i + 1;
    vm->rec = NULL;
    vm->host = m.host;
    vm->owned = m.owned;
    if (vm->hooks.unwound) vm->hooks.unwound(vm);
    vm_pop_to(vm, m.sp);
    error_clear(vm);
    vm->depth = i;
    vm->run = i ? vm->marks[i - 1].run : NULL;
    return;
  }
}

void vm_run_begin(qn_vm *vm, vm_run *run) {
  run->fp_mode = fp_mode_enter();
  char *here = __builtin_frame_address(0);
  if (__builtin_expect(vm->run != NULL, 0)) {
    run->bound = vm->bound;
    run->c_stack_limit = vm->c_stack_limit;
  }
  vm_bind_thread(vm);
  if (__builtin_expect(vm->run != NULL, 0)) drop_left(vm, run, here);
  run->vm = vm;
  run->outer = vm->run;
  run->owned = vm->owned;
  run->sp = vm->sp;
  run->device = vm->device;
  vm->run = run;
  if (vm->depth < RUN_MARKS) vm->marks[vm->depth] = (vm_mark){run, vm->owned, vm->host, vm->sp, here};
  bool nested = vm->depth++ > 0;
  if (!nested || vm->host) error_clear(vm);
  if (nested) return;
  vm->step_end = vm->steps + vm->config.step_limit;
  vm->check_interval = 1;
  if (vm->config.time_limit > 0) {
    vm->last_check = vm_seconds();
    vm->deadline = vm->last_check + vm->config.time_limit;
  }
  plan_check(vm);
}

void vm_run_end(qn_vm *vm, vm_run *run) {
  run->vm = NULL;
  vm->run = run->outer;
  if (--vm->depth == 0) {
    vm->next_check = UINT64_MAX;
  } else {
    vm->bound = run->bound;
    vm->c_stack_limit = run->c_stack_limit;
  }
  fp_mode_leave(run->fp_mode);
}

void vm_run_unwound(vm_run *run) {
  qn_vm *vm = run->vm;
  if (__builtin_expect(!vm, 1)) return;
  while (vm->run != run) run_abandon(vm, vm->run);
  run_abandon(vm, run);
  run->vm = NULL;
  if (vm->depth) {
    vm->bound = run->bound;
    vm->c_stack_limit = run->c_stack_limit;
  }
  fp_mode_leave(run->fp_mode);
}

void vm_host_begin(qn_vm *vm, vm_host *host) {
  *host = (vm_host){vm, vm->host, vm->run, vm->depth, vm->error, vm->rec, vm->asked};
  vm->host = host;
  vm->error = NULL;
  vm->rec = NULL;
  vm->asked = (rec_asked){.nojit = 0};
}

void vm_host_end(vm_host *host) {
  qn_vm *vm = host->vm;
  while (vm->run != host->run && vm->depth > host->depth)
    run_abandon(vm, vm->run); /* evaluations that an exception left, which the host then caught */
  error_clear(vm);
  vm->error = host->error;
  vm->rec = host->rec;
  vm->asked = host->asked;
  vm->host = host->outer;
  host->vm = NULL;
}

void vm_drop_value(qn_vm *vm, void *value) { value_release(vm, *(qn_value *)value); }

void vm_drop_text(qn_vm *vm, void *text) {
  (void)vm;
  text_free(text);
}

void vm_drop_memory(qn_vm *vm, void *memory) {
  const vm_memory *m = memory;
  if (m->p) mem_free(vm, m->p, m->bytes);
}

void vm_host_unwound(vm_host *host) {
  qn_vm *vm = host->vm;
  if (__builtin_expect(!vm, 1)) return;
  vm_host_end(host);
  const vm_owned *first = vm->run ? vm->run->owned : NULL;
  while (vm->owned != first) {
    vm_owned *o = vm->owned;
    vm->owned = o->outer;
    o->drop(vm, o->what);
  }
}

bool vm_poll_slow(qn_vm *vm) {
  if (atomic_exchange(&vm->interrupt, 0)) {
    raise_error(vm, E_interrupted, SPAN_NONE, "interrupted");
    return true;
  }
  if (vm->config.step_limit && vm->steps >= vm->step_end) {
    raise_error(vm, E_limit, SPAN_NONE, "the limit of %llu steps is reached",
                (unsigned long long)vm->config.step_limit);
    return true;
  }
  if (vm->config.time_limit > 0) {
    /* Steps may be short or long, so the number of steps until the next look at the clock follows from the time that the last ones took. */
    double now = vm_seconds(), took = now - vm->last_check;
    vm->last_check = now;
    if (now >= vm->deadline) {
      raise_error(vm, E_limit, SPAN_NONE, "the time limit of %s seconds is reached",
                  phrase_float(vm->config.time_limit).text);
      return true;
    }
    bool whole = vm->next_check != 0; /* if not, the interval was cut short because text waits to be written */
    if (whole && took < 20e-6 && vm->check_interval < CHECK_MOST)
      vm->check_interval *= 2;
    else if (took > 1e-3)
      vm->check_interval = 1;
  }
  plan_check(vm);
  return false;
}

bool vm_poll_between_slow(qn_vm *vm) {
  vm_write_waiting(vm);
  return vm_poll_slow(vm);
}

/* ---- devices --------------------------------------------------------------------------------------------------- */

bool vm_use_device(qn_vm *vm, int device) {
  if (!device_open(vm, device)) return false;
  vm->device = (uint8_t)device;
  return true;
}

/* ---- output and logs ----------------------------------------------------------------------------------------- */

void vm_write_later(qn_vm *vm, const char *text, size_t len) {
  if (!len) return;
  if (!vm->config.write) {
    vm_write(vm, 2, text, len);
    return;
  }
  text_add(&vm->later, text, len);
  vm->later.failed = false; /* there was no memory for this text, but there may be some for the next */
  vm->next_check = 0;
}

void vm_write_waiting(qn_vm *vm) {
  if (!vm->later.len) return;
  text_buf t TEXT_OWNED = vm->later;
  vm->later = (text_buf){0};
  vm_write(vm, 2, t.text, t.len);
}

void vm_write_last(qn_vm *vm, qn_value *held) {
  if (__builtin_expect(vm->later.len == 0, 1)) return;
  vm_owned owned;
  vm_own(vm, &owned, vm_drop_value, held);
  vm_write_waiting(vm);
  vm_disown(vm, &owned);
}

void vm_write(qn_vm *vm, int stream, const char *text, size_t len) {
  if (!len) return;
  if (!vm->config.write) {
    fwrite(text, 1, len, stream == 2 ? stderr : stdout);
    return;
  }
  vm_write_waiting(vm);
  VM_HOST(host, vm);
  vm->config.write(vm->config.user, stream, text, len);
  vm_host_end(&host);
}

static const char *const log_names[] = {
#define X(name) #name,
    LOG_CHANNELS(X)
#undef X
};
enum { LOG_COUNT = sizeof log_names / sizeof *log_names };

static void add_log(text_buf *out, log_channel c, const char *format, va_list args) {
  text_addf(out, "[%s] ", log_names[__builtin_ctz((unsigned)c)]);
  text_addv(out, format, args);
  text_add(out, "\n", 1);
}

void log_line(text_buf *out, log_channel c, const char *format, ...) {
  va_list args;
  va_start(args, format);
  add_log(out, c, format, args);
  va_end(args);
}

void vm_logf(qn_vm *vm, log_channel c, const char *format, ...) {
  text_buf t TEXT_OWNED = {0};
  va_list args;
  va_start(args, format);
  add_log(&t, c, format, args);
  va_end(args);
  if (!t.failed) vm_write_later(vm, t.text, t.len);
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
  text_buf t = {.vm = vm};
  text_addf(&t, "there is no tunable %s", name);
  text_nearest(&t, "; near: ", name, names, TUNABLE_COUNT);
  raise_text(vm, E_argument, SPAN_NONE, &t);
  return false;
}

/* Switches the cache on disk off for a VM that may not read or write files. */
static void restrict_cache(qn_vm *vm) {
  uint32_t both = QN_CAP_READ | QN_CAP_WRITE;
  if ((vm->config.capabilities & both) != both) vm->tune[TUNE_cache_bytes] = 0;
}

bool tunable_set(qn_vm *vm, const char *name, const char *value) {
  for (int i = 0; i < TUNABLE_COUNT; i++) {
    const tunable_row *row = &tunable_rows[i];
    if (strcmp(row->name, name) != 0) continue;
    int64_t v;
    if (!int_parse(value, strlen(value), &v) || v < row->min || v > row->max)
      return raise_false(vm, E_argument, "%s takes an integer from %lld to %lld, not %s", name, (long long)row->min,
                         (long long)row->max, value);
    vm->tune[i] = v;
    restrict_cache(vm);
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
    if (n && (!equals || name_len >= sizeof name || value_len >= sizeof value))
      return raise_false(vm, E_argument, "tunables are set by name=value, not %.*s", (int)(n < 100 ? n : 100), text);
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
  return raise_false(vm, E_capability, "%s is not permitted here", what);
}

#ifdef QN_CHECKED
bool vm_takes(qn_vm *vm, const qn_value *values, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (value_is_heap(values[i]) && mem_is_foreign(vm, values[i].u.p))
      return raise_false(vm, E_argument, "the value belongs to another VM");
  return true;
}
#endif
