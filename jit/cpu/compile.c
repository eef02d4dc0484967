/* Kernels through the system's C compiler (compile.h).
 *
 *   kernels without code ─ table by l_hash ─ C text ─ object in the cache folder? ─ yes: read, check, load
 *                                                                            └ no: cc, store, load
 *
 * The object's name tells the text, the flags, the processor and the compiler (cache.h), so nothing else has to be compared;
 * where no compiler may run, any compiler's object will do. What was read and checked is written to an anonymous file in memory and
 * loaded from there, so it is what runs, and nobody can change it in between. Only what could be loaded goes into the cache.
 *
 * The compiler runs in a folder of its own under the temporary directory, at SCHED_IDLE and in a process group of its own
 * (Ctrl-C at the terminal does not reach it; abandoning a plan kills the whole group). posix_spawn, never fork: a fork of a
 * process with an OpenMP pool and gigabytes of arrays is slow and hangs in its next parallel region.
 *
 * Loaded objects stay until the engine closes: plans of several VMs share them.
 */
#define _GNU_SOURCE
#include "jit/cpu/compile.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "jit/kernel/cache.h"
#include "jit/kernel/sha256.h"
#include "jit/kernel/emit.h"

extern char **environ;

/* ---- the engine's part ------------------------------------------------------------------------------------------------------- */

typedef struct code_entry {
  uint64_t hash; /* l_hash; 0: free */
  const qk_phase *phases;
} code_entry;

typedef enum trouble {
  TROUBLE_NO_COMPILER,
  TROUBLE_FOLDER,
  TROUBLE_DAMAGED,
  TROUBLE_COMPILER,
  TROUBLE_OBJECT,
  TROUBLE_COUNT
} trouble;

typedef struct code_table {
  pthread_mutex_t lock;
  code_entry *entries;
  uint32_t n, cap; /* cap is a power of two */
  void **objects;  /* dlopen handles */
  uint32_t nobjects, objects_cap;
  char troubles[TROUBLE_COUNT][240];
  uint8_t reported[TROUBLE_COUNT]; /* 0 nothing, 1 to be told, 2 told */
} code_table;

static code_table *table_of(qn_engine *engine) {
  code_table *t = __atomic_load_n((code_table **)&engine->code, __ATOMIC_ACQUIRE);
  if (t) return t;
  t = calloc(1, sizeof *t);
  if (!t) return NULL;
  pthread_mutex_init(&t->lock, NULL);
  void *none = NULL;
  if (__atomic_compare_exchange_n(&engine->code, &none, t, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return t;
  pthread_mutex_destroy(&t->lock);
  free(t);
  return none;
}

void compile_engine_close(qn_engine *engine) {
  code_table *t = engine->code;
  if (!t) return;
  for (uint32_t i = 0; i < t->cap; i++) free((void *)(uintptr_t)t->entries[i].phases);
  for (uint32_t i = 0; i < t->nobjects; i++) dlclose(t->objects[i]);
  free(t->entries);
  free(t->objects);
  pthread_mutex_destroy(&t->lock);
  free(t);
  engine->code = NULL;
}

static void tell(code_table *t, trouble what, const char *format, const char *detail) {
  pthread_mutex_lock(&t->lock);
  if (!t->reported[what]) {
    snprintf(t->troubles[what], sizeof t->troubles[what], format, detail);
    t->reported[what] = 1;
  }
  pthread_mutex_unlock(&t->lock);
}

bool compile_trouble(qn_engine *engine, char *text, size_t size) {
  code_table *t = __atomic_load_n((code_table **)&engine->code, __ATOMIC_ACQUIRE);
  if (!t) return false;
  bool found = false;
  pthread_mutex_lock(&t->lock);
  for (int i = 0; i < TROUBLE_COUNT && !found; i++)
    if (t->reported[i] == 1) {
      snprintf(text, size, "%s", t->troubles[i]);
      t->reported[i] = 2;
      found = true;
    }
  pthread_mutex_unlock(&t->lock);
  return found;
}

/* Under the lock. */
static code_entry *slot_of(code_table *t, uint64_t hash) {
  if (!t->cap) return NULL;
  uint32_t i = (uint32_t)hash & (t->cap - 1);
  while (t->entries[i].hash && t->entries[i].hash != hash) i = (i + 1) & (t->cap - 1);
  return &t->entries[i];
}

static const qk_phase *code_find(code_table *t, uint64_t hash) {
  pthread_mutex_lock(&t->lock);
  code_entry *e = slot_of(t, hash);
  const qk_phase *found = e && e->hash == hash ? e->phases : NULL;
  pthread_mutex_unlock(&t->lock);
  return found;
}

/* Takes over `phases`, or frees them when the hash is there already. Returns what the table has. */
static const qk_phase *code_add(code_table *t, uint64_t hash, qk_phase *phases) {
  pthread_mutex_lock(&t->lock);
  const qk_phase *result = NULL;
  if (t->n * 2 >= t->cap) {
    uint32_t cap = t->cap ? t->cap * 2 : 64;
    code_table grown = {.entries = calloc(cap, sizeof *grown.entries), .cap = cap};
    if (grown.entries) {
      for (uint32_t i = 0; i < t->cap; i++)
        if (t->entries[i].hash) *slot_of(&grown, t->entries[i].hash) = t->entries[i];
      free(t->entries);
      t->entries = grown.entries;
      t->cap = cap;
    }
  }
  code_entry *e = t->n + 1 < t->cap ? slot_of(t, hash) : NULL;
  if (e && e->hash) {
    result = e->phases;
    free(phases);
  } else if (e) {
    *e = (code_entry){hash, phases};
    t->n++;
    result = phases;
  } else {
    free(phases);
  }
  pthread_mutex_unlock(&t->lock);
  return result;
}

/* ---- the compiler -------------------------------------------------------------------------------------------------------------------- */

static const char *const compilers[] = {"cc", "gcc", "clang"};
/* The bits depend on contraction being off; -fno-trapping-math lets selects become branch-free code. The last one is left out where
 * wide_vectors is false. */
static const char *const flags[] = {"-std=gnu11",
                                    "-O2",
                                    "-march=native",
                                    "-fopenmp-simd",
                                    "-ffp-contract=off",
                                    "-fno-math-errno",
                                    "-fno-trapping-math",
                                    "-fno-strict-aliasing",
                                    "-fPIC",
                                    "-shared",
                                    "-nostdlib",
                                    "-w",
                                    "-x",
                                    "c",
                                    "-mprefer-vector-width=512"};
enum { NFLAGS = sizeof flags / sizeof *flags };

/* Compilers take vectors of 256 bits where the first processors with 512 bits lowered their clock for them. Intel's with AVX512_VBMI2
 * (from Ice Lake on) do not: softmax, layer norm and Black-Scholes take 20 to 27 % less with 512. Tried on Zen 4, which halves such
 * vectors: nothing gained, and softmax took 10 % more. */
static bool wide_vectors(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("intel") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi2");
#else
  return false;
#endif
}

static int flag_count(void) { return wide_vectors() ? NFLAGS : NFLAGS - 1; }

const char *const *compile_flags(int *n) {
  *n = flag_count();
  return flags;
}

/* Starts the compiler `cc` on `source`, waits, and returns success. */
static bool run_compiler(code_table *t, const char *cc, char **environment, const char *source, const char *object,
                         const char *log, const atomic_bool *abandon) {
  char *argv[NFLAGS + 5];
  int argc = 0;
  argv[argc++] = (char *)(uintptr_t)cc;
  for (int i = 0, n = flag_count(); i < n; i++) argv[argc++] = (char *)(uintptr_t)flags[i];
  argv[argc++] = (char *)(uintptr_t)source;
  argv[argc++] = (char *)(uintptr_t) "-o";
  argv[argc++] = (char *)(uintptr_t)object;
  argv[argc] = NULL;
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attr;
  if (posix_spawn_file_actions_init(&files) != 0) return false;
  if (posix_spawnattr_init(&attr) != 0) {
    posix_spawn_file_actions_destroy(&files);
    return false;
  }
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  sigset_t defaults, none;
  sigemptyset(&none);
  sigfillset(&defaults);
  struct sched_param idle = {0};
  short how = POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK;
  posix_spawnattr_setpgroup(&attr, 0);
  posix_spawnattr_setsigdefault(&attr, &defaults);
  posix_spawnattr_setsigmask(&attr, &none);
  posix_spawnattr_setschedpolicy(&attr, SCHED_IDLE);
  posix_spawnattr_setschedparam(&attr, &idle);
  pid_t pid = 0;
  posix_spawnattr_setflags(&attr, how | POSIX_SPAWN_SETSCHEDULER);
  int rc = posix_spawn(&pid, cc, &files, &attr, argv, environment);
  if (rc == EPERM) { /* a sandbox that does not let us choose the class */
    posix_spawnattr_setflags(&attr, how);
    rc = posix_spawn(&pid, cc, &files, &attr, argv, environment);
  }
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attr);
  if (rc != 0) {
    tell(t, TROUBLE_COMPILER, "quern: the C compiler cannot be started (%s); kernels run on the block VM",
         strerror(rc));
    return false;
  }
  int status = 0;
  for (struct timespec nap = {0, 1000000};;) {
    pid_t done = waitpid(pid, &status, WNOHANG);
    if (done == pid) break;
    if (done < 0 && errno != EINTR) { /* the host collects children itself: the object tells */
      status = 0;
      break;
    }
    if (atomic_load_explicit(abandon, memory_order_relaxed)) {
      struct sched_param plain = {0};
      (void)sched_setscheduler(pid, SCHED_OTHER,
                               &plain); /* where that is allowed: on a busy machine it would end late */
      kill(-pid, SIGKILL);
      while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
      return false;
    }
    nanosleep(&nap, NULL);
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* The environment with the compiler's own temporary files in `folder`, where nothing stays when it is killed. Freed by the
 * caller; its texts belong to environ and to `tmpdir`. */
static char **compiler_environment(const char *folder, char *tmpdir, size_t size) {
  size_t n = 0, k = 0;
  while (environ[n]) n++;
  char **all = calloc(n + 2, sizeof *all);
  if (!all) return NULL;
  for (size_t i = 0; i < n; i++)
    if (strncmp(environ[i], "TMPDIR=", 7) != 0) all[k++] = environ[i];
  snprintf(tmpdir, size, "TMPDIR=%s", folder);
  all[k] = tmpdir;
  return all;
}

static void remove_folder(const char *folder) {
  DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
  if (d) closedir(d);
  rmdir(folder);
}

/* Compiles a text: the object's bytes (malloc'ed), or NULL. */
static char *compile_text(code_table *t, const char *cc, const char *text, size_t len, const atomic_bool *abandon,
                          size_t *size) {
  const char *base = getenv("TMPDIR");
  char folder[512], source[560], object[560], log[560], tmpdir[560];
  snprintf(folder, sizeof folder, "%s/quern-XXXXXX", base && *base && strlen(base) < 400 ? base : "/tmp");
  if (!mkdtemp(folder)) {
    tell(t, TROUBLE_COMPILER, "quern: no temporary folder for the compiler (%s); kernels run on the block VM",
         strerror(errno));
    return NULL;
  }
  snprintf(source, sizeof source, "%s/kernels.c", folder);
  snprintf(object, sizeof object, "%s/kernels.so", folder);
  snprintf(log, sizeof log, "%s/log", folder);
  char *result = NULL, **environment = compiler_environment(folder, tmpdir, sizeof tmpdir);
  int fd = open(source, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool written = fd >= 0 && cache_write_all(fd, text, len);
  if (fd >= 0 && close(fd) != 0) written = false;
  if (written && environment && run_compiler(t, cc, environment, source, object, log, abandon))
    result = cache_read_file(object, size);
  if (!result && !atomic_load(abandon)) {
    size_t n = 0;
    char *words = cache_read_file(log, &n), first[160] = "no message";
    if (words && n) snprintf(first, sizeof first, "%.*s", (int)(n < 150 ? n : 150), words);
    free(words);
    tell(t, TROUBLE_COMPILER, "quern: the C compiler failed; kernels run on the block VM: %s", first);
  }
  free(environment);
  remove_folder(folder);
  return result;
}

/* ---- loading ---------------------------------------------------------------------------------------------------------------------------- */

/* A path to `fd` that no other object has: dlopen takes names that it knows for what it has loaded under them, and numbers of
 * files return. The bits of the object's hash are written as "/." and "//". */
static void object_path(int fd, const char *object, size_t size, char path[600]) {
  sha256 s;
  uint8_t sha[32];
  sha256_init(&s);
  sha256_add(&s, object, size);
  sha256_end(&s, sha);
  size_t n = (size_t)snprintf(path, 600, "/proc/self/fd");
  for (int bit = 0; bit < 256; bit++) {
    path[n++] = '/';
    path[n++] = sha[bit / 8] >> bit % 8 & 1 ? '.' : '/';
  }
  snprintf(path + n, 600 - n, "/%d", fd);
}

static void *load_object(code_table *t, const char *object, size_t size) {
  int fd = memfd_create("quern", MFD_CLOEXEC);
  void *handle = NULL;
  if (fd >= 0) {
    char path[600];
    object_path(fd, object, size, path);
    if (cache_write_all(fd, object, size)) handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    close(fd);
  }
  if (!handle) {
    const char *why = dlerror();
    tell(t, TROUBLE_OBJECT, "quern: compiled kernels cannot be loaded, and run on the block VM: %s",
         why ? why : "no memory");
    return NULL;
  }
  pthread_mutex_lock(&t->lock);
  if (t->nobjects == t->objects_cap) {
    uint32_t cap = t->objects_cap ? t->objects_cap * 2 : 32;
    void **more = realloc(t->objects, cap * sizeof *more);
    if (more) {
      t->objects = more;
      t->objects_cap = cap;
    }
  }
  bool kept = t->nobjects < t->objects_cap;
  if (kept) t->objects[t->nobjects++] = handle;
  pthread_mutex_unlock(&t->lock);
  if (kept) return handle;
  dlclose(handle);
  return NULL;
}

/* ---- a plan --------------------------------------------------------------------------------------------------------------------------------- */

typedef struct batch {
  const l_program **programs;
  const char **names;
  char (*texts)[24];
  uint32_t *which;
  uint32_t n;
  uint32_t *slots, cap; /* 1 + index in the others, by hash: open addressing, a power of two */
} batch;

static bool batch_alloc(batch *b, uint32_t n) {
  b->n = 0;
  b->programs = calloc(n + 1, sizeof *b->programs);
  b->names = calloc(n + 1, sizeof *b->names);
  b->texts = calloc(n + 1, sizeof *b->texts);
  b->which = calloc(n + 1, sizeof *b->which);
  for (b->cap = 16; b->cap / 2 < n; b->cap *= 2) {}
  b->slots = calloc(b->cap, sizeof *b->slots);
  return b->programs && b->names && b->texts && b->which && b->slots;
}

static void batch_free(batch *b) {
  free(b->programs);
  free(b->names);
  free(b->texts);
  free(b->which);
  free(b->slots);
}

static void batch_add(batch *b, const plan *p, uint32_t kernel) {
  uint32_t at = (uint32_t)p->kernels[kernel].hash & (b->cap - 1);
  for (; b->slots[at]; at = (at + 1) & (b->cap - 1))
    if (p->kernels[b->which[b->slots[at] - 1]].hash == p->kernels[kernel].hash) return;
  b->slots[at] = b->n + 1;
  b->programs[b->n] = p->kernels[kernel].program;
  snprintf(b->texts[b->n], sizeof *b->texts, "k%016llx", (unsigned long long)p->kernels[kernel].hash);
  b->names[b->n] = b->texts[b->n];
  b->which[b->n++] = kernel;
}

void cpu_source(const plan *p, text_buf *out) {
  batch b;
  if (batch_alloc(&b, p->nkernels)) {
    for (uint32_t i = 0; i < p->nkernels; i++) batch_add(&b, p, i);
    emit_c(b.programs, b.names, b.n, NULL, out);
  } else {
    out->failed = true;
  }
  batch_free(&b);
}

/* Kernels whose hash the table knows get their code. Returns how many still have none. */
static uint32_t use_table(code_table *t, plan *p) {
  uint32_t missing = 0;
  for (uint32_t i = 0; i < p->nkernels; i++) {
    if (atomic_load_explicit(&p->kernels[i].code, memory_order_relaxed)) continue;
    const qk_phase *code = code_find(t, p->kernels[i].hash);
    if (code)
      atomic_store_explicit(&p->kernels[i].code, code, memory_order_release);
    else
      missing++;
  }
  return missing;
}

/* Takes a batch's functions out of a loaded object. False, and told, if it lacks some. */
static bool use_object(code_table *t, const plan *p, const batch *b, void *handle) {
  bool all = true;
  for (uint32_t i = 0; i < b->n && all; i++) {
    const plan_kernel *k = &p->kernels[b->which[i]];
    qk_phase *phases = calloc(k->nphases + 1, sizeof *phases); /* and the one that tells its scratch (emit.h) */
    char symbol[48];
    bool ok = phases != NULL;
    for (uint32_t j = 0; j <= k->nphases && ok; j++) {
      snprintf(symbol, sizeof symbol, "%s_%u", b->names[i], j);
      void *f = dlsym(handle, symbol);
      memcpy(&phases[j], &f, sizeof f);
      ok = all = f != NULL;
    }
    if (!all) tell(t, TROUBLE_OBJECT, "quern: compiled kernels lack %s; they run on the block VM", symbol);
    if (ok)
      code_add(t, k->hash, phases);
    else
      free(phases);
  }
  return all;
}

/* Loads an object and takes the batch's functions out of it. */
static bool take_object(code_table *t, const plan *p, const batch *b, const char *object, size_t size) {
  void *handle = load_object(t, object, size);
  return handle && use_object(t, p, b, handle);
}

static bool given_up(const compile_options *o) { return atomic_load_explicit(o->abandon, memory_order_relaxed); }

/* Code for a batch, whose text this is, from the cache or the compiler. */
static void code_batch(code_table *t, const plan *p, const batch *b, const text_buf *text, const compile_options *o,
                       compile_report *report) {
  static const char no_folder[] =
      "quern: kernels are compiled anew in every process: the kernel cache cannot be written (%s)";
  char machine[256], *key = report->key, maker[CACHE_MAKER] = "", cc[1024], folder[1024] = "", path[CACHE_PATH],
                     *object = NULL;
  size_t size = 0;
  int64_t limit = o->tune[TUNE_cache_bytes];
  bool can = o->spawn && cache_maker(compilers, sizeof compilers / sizeof *compilers, cc, sizeof cc, maker);
  cache_machine(machine, sizeof machine);
  cache_key(key, text->text, text->len, flags, (uint32_t)flag_count(), machine);
  cache_access access = limit > 0 ? cache_folder(folder, sizeof folder) : CACHE_NONE;
  if (access != CACHE_WRITES && *folder) tell(t, TROUBLE_FOLDER, no_folder, folder);
  report->looked = access != CACHE_NONE;
  if (given_up(o)) return;
  if (access != CACHE_NONE && cache_find(folder, key, o->spawn ? maker : "", path)) {
    if (cache_read(path, &object, &size) == CACHE_DAMAGED)
      tell(t, TROUBLE_DAMAGED, "quern: a damaged file in the kernel cache was removed (%s)", path);
    bool done = object && !given_up(o) && take_object(t, p, b, object, size);
    free(object);
    report->bytes = size;
    if (done) {
      report->how = COMPILED_CACHED;
      return;
    }
  }
  if (!o->spawn || given_up(o)) return;
  if (!can) {
    tell(t, TROUBLE_NO_COMPILER, "quern: there is no C compiler (%s) on PATH; kernels run on the block VM",
         "cc, gcc, clang");
    return;
  }
  object = compile_text(t, cc, text->text, text->len, o->abandon, &size);
  if (object && !given_up(o) && take_object(t, p, b, object, size)) {
    report->how = COMPILED_NOW;
    report->bytes = size;
    report->stored = access == CACHE_WRITES && cache_write(folder, path, object, size, limit);
    if (access == CACHE_WRITES && !report->stored) tell(t, TROUBLE_FOLDER, no_folder, folder);
  }
  free(object);
}

void compile_engine_forked(qn_engine *engine) {
  code_table *t = engine->code;
  if (t) pthread_mutex_init(&t->lock, NULL);
}

void cpu_compile(qn_engine *engine, plan *p, const compile_options *o) {
  code_table *t = table_of(engine);
  compile_report ignored;
  compile_report *report = o->report ? o->report : &ignored;
  *report = (compile_report){.how = COMPILED_NOT};
  if (!t) return;
  if (!use_table(t, p)) {
    report->how = COMPILED_BEFORE;
    return;
  }
  batch b = {0};
  text_buf text;
  text_init(&text, NULL);
  if (!batch_alloc(&b, p->nkernels)) goto done;
  for (uint32_t i = 0; i < p->nkernels; i++)
    if (!atomic_load_explicit(&p->kernels[i].code, memory_order_relaxed)) batch_add(&b, p, i);
  emit_c(b.programs, b.names, b.n, o->abandon, &text);
  if (text.failed || atomic_load(o->abandon)) goto done;

  code_batch(t, p, &b, &text, o, report);
  use_table(t, p);
done:
  text_free(&text);
  batch_free(&b);
}
