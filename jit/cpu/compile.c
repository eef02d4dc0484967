/* Kernels through the system's C compiler (compile.h).
 *
 *   kernels without code ─ table by l_hash ─ C text ─ object in the cache folder? ─ yes: read, check, load
 *                                                                            └ no: cc, store, load
 *
 * The object's name is the SHA-256 of the text, the flags and the processor's features, so nothing else has to be compared. A
 * cache file is a header (magic, the object's size and SHA-256) and the object. It is read whole, checked, written to an
 * anonymous file in memory and loaded from there: what was checked is what runs, and nobody can change it in between.
 *
 * The compiler runs in a folder of its own under the temporary directory, at SCHED_IDLE and in a process group of its own
 * (Ctrl-C at the terminal does not reach it; abandoning a plan kills the whole group). posix_spawn, never fork: a fork of a
 * process with an OpenMP team and gigabytes of arrays is slow and hangs in its next parallel region.
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
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "jit/cpu/run.h"
#include "jit/cpu/sha256.h"
#include "jit/kernel/emit.h"

extern char **environ;

/* ---- the engine's part ------------------------------------------------------------------------------------------------------- */

typedef struct code_entry {
  uint64_t hash; /* l_hash; 0: free */
  const qk_phase *phases;
} code_entry;

typedef enum trouble { TROUBLE_NO_COMPILER, TROUBLE_FOLDER, TROUBLE_DAMAGED, TROUBLE_COMPILER, TROUBLE_COUNT } trouble;

typedef struct code_table {
  pthread_mutex_t lock;
  code_entry *entries;
  uint32_t n, cap; /* cap is a power of two */
  void **objects;  /* dlopen handles */
  uint32_t nobjects, objects_cap;
  bool no_compiler;
  char troubles[TROUBLE_COUNT][240];
  uint8_t told[TROUBLE_COUNT]; /* 0 nothing, 1 to be told, 2 told */
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
  if (!t->told[what]) {
    snprintf(t->troubles[what], sizeof t->troubles[what], format, detail);
    t->told[what] = 1;
  }
  pthread_mutex_unlock(&t->lock);
}

bool compile_trouble(qn_engine *engine, char *text, size_t size) {
  code_table *t = __atomic_load_n((code_table **)&engine->code, __ATOMIC_ACQUIRE);
  if (!t) return false;
  bool found = false;
  pthread_mutex_lock(&t->lock);
  for (int i = 0; i < TROUBLE_COUNT && !found; i++)
    if (t->told[i] == 1) {
      snprintf(text, size, "%s", t->troubles[i]);
      t->told[i] = 2;
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

/* ---- files ------------------------------------------------------------------------------------------------------------------------- */

typedef struct cache_header {
  char magic[8]; /* "quern01\n" */
  uint64_t size;
  uint8_t sha[32];
} cache_header;
static const char cache_magic[8] = {'q', 'u', 'e', 'r', 'n', '0', '1', '\n'};

static bool make_folders(char *path) {
  for (char *p = path + 1;; p++) {
    if (*p != '/' && *p != 0) continue;
    char c = *p;
    *p = 0;
    bool ok = mkdir(path, 0700) == 0 || errno == EEXIST;
    *p = c;
    if (!ok) return false;
    if (!c) return true;
  }
}

/* The cache folder, made if need be; false if there is none to be had. */
static bool cache_folder(code_table *t, char *path, size_t size) {
  const char *quern = getenv("QUERN_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int n;
  if (quern && *quern) n = snprintf(path, size, "%s/objects", quern);
  else if (xdg && *xdg) n = snprintf(path, size, "%s/quern/objects", xdg);
  else if (home && *home) n = snprintf(path, size, "%s/.cache/quern/objects", home);
  else return false;
  if (n < 0 || (size_t)n >= size) return false;
  if (make_folders(path) && access(path, R_OK | W_OK | X_OK) == 0) return true;
  tell(t, TROUBLE_FOLDER, "quern: the kernel cache %s cannot be used; kernels are compiled anew in every process", path);
  return false;
}

static bool write_all(int fd, const void *data, size_t n) {
  const char *p = data;
  while (n) {
    ssize_t k = write(fd, p, n);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    p += k;
    n -= (size_t)k;
  }
  return true;
}

/* The whole file, malloc'ed; NULL if it cannot be read or is larger than 256 MiB. */
static char *read_file(const char *path, size_t *size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NULL;
  struct stat st;
  char *data = NULL;
  if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size <= 256 << 20 && (data = malloc((size_t)st.st_size))) {
    size_t n = 0;
    ssize_t k;
    while (n < (size_t)st.st_size && ((k = read(fd, data + n, (size_t)st.st_size - n)) > 0 || (k < 0 && errno == EINTR)))
      if (k > 0) n += (size_t)k;
    *size = n;
  }
  close(fd);
  return data;
}

static void sha_of(const void *data, size_t n, uint8_t out[32]) {
  sha256 s;
  sha256_init(&s);
  sha256_add(&s, data, n);
  sha256_end(&s, out);
}

/* Reads and checks a cache file: the object's bytes (malloc'ed), or NULL. A damaged file is removed. */
static char *cache_read(code_table *t, const char *path, size_t *size) {
  size_t n = 0;
  char *data = read_file(path, &n);
  if (!data) return NULL;
  cache_header h;
  uint8_t sha[32];
  if (n > sizeof h) {
    memcpy(&h, data, sizeof h);
    sha_of(data + sizeof h, n - sizeof h, sha);
    if (memcmp(h.magic, cache_magic, 8) == 0 && h.size == n - sizeof h && memcmp(h.sha, sha, 32) == 0) {
      memmove(data, data + sizeof h, (size_t)h.size);
      *size = (size_t)h.size;
      utimensat(AT_FDCWD, path, NULL, 0); /* recently used */
      return data;
    }
  }
  free(data);
  unlink(path);
  tell(t, TROUBLE_DAMAGED, "quern: a damaged file in the kernel cache was removed (%s)", path);
  return NULL;
}

/* Removes the files used longest ago until the folder holds at most `limit` bytes. */
static void cache_trim(const char *folder, int64_t limit) {
  for (int round = 0; round < 64; round++) {
    DIR *d = opendir(folder);
    if (!d) return;
    int64_t total = 0;
    time_t oldest = 0;
    char victim[256] = "";
    for (struct dirent *e; (e = readdir(d));) {
      struct stat st;
      if (e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) continue;
      total += st.st_size;
      if (!victim[0] || st.st_mtime < oldest) {
        oldest = st.st_mtime;
        snprintf(victim, sizeof victim, "%s", e->d_name);
      }
    }
    if (total > limit && victim[0]) unlinkat(dirfd(d), victim, 0);
    closedir(d);
    if (total <= limit) return;
  }
}

static void cache_write(const char *folder, const char *path, const char *object, size_t size, int64_t limit) {
  cache_header h = {.size = size};
  memcpy(h.magic, cache_magic, 8);
  sha_of(object, size, h.sha);
  char temporary[1200];
  snprintf(temporary, sizeof temporary, "%s/.new-XXXXXX", folder);
  int fd = mkostemp(temporary, O_CLOEXEC);
  if (fd < 0) return;
  bool ok = write_all(fd, &h, sizeof h) && write_all(fd, object, size);
  ok = close(fd) == 0 && ok;
  if (!ok || rename(temporary, path) != 0) {
    unlink(temporary);
    return;
  }
  cache_trim(folder, limit);
}

/* ---- the compiler -------------------------------------------------------------------------------------------------------------------- */

static const char *const compilers[] = {"cc", "gcc", "clang"};
/* The bits depend on contraction being off; -fno-trapping-math lets selects become branch-free code. */
static const char *const flags[] = {"-std=gnu11", "-O2", "-march=native", "-fopenmp-simd", "-ffp-contract=off", "-fno-math-errno",
                                    "-fno-trapping-math", "-fno-strict-aliasing", "-fPIC", "-shared", "-nostdlib", "-w", "-x", "c"};
enum { NFLAGS = sizeof flags / sizeof *flags };

/* Starts the compiler on `source`, waits, and returns success. */
static bool run_compiler(code_table *t, const char *source, const char *object, const char *log, const atomic_bool *abandon) {
  char *argv[NFLAGS + 5];
  int argc = 1;
  for (int i = 0; i < NFLAGS; i++) argv[argc++] = (char *)(uintptr_t)flags[i];
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
  posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSCHEDULER);
  posix_spawnattr_setpgroup(&attr, 0);
  posix_spawnattr_setsigdefault(&attr, &defaults);
  posix_spawnattr_setsigmask(&attr, &none);
  posix_spawnattr_setschedpolicy(&attr, SCHED_IDLE);
  posix_spawnattr_setschedparam(&attr, &idle);
  pid_t pid = 0;
  int rc = ENOENT;
  for (size_t i = 0; i < sizeof compilers / sizeof *compilers && rc != 0; i++) {
    argv[0] = (char *)(uintptr_t)compilers[i];
    rc = posix_spawnp(&pid, compilers[i], &files, &attr, argv, environ);
  }
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attr);
  if (rc != 0) {
    t->no_compiler = true;
    tell(t, TROUBLE_NO_COMPILER, "quern: no C compiler could be started (cc, gcc, clang: %s); kernels run on the block VM", strerror(rc));
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
      kill(-pid, SIGKILL);
      while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
      return false;
    }
    nanosleep(&nap, NULL);
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Compiles a text: the object's bytes (malloc'ed), or NULL. */
static char *compile_text(code_table *t, const char *text, size_t len, const atomic_bool *abandon, size_t *size) {
  const char *base = getenv("TMPDIR");
  char folder[512], source[560], object[560], log[560];
  snprintf(folder, sizeof folder, "%s/quern-XXXXXX", base && *base && strlen(base) < 400 ? base : "/tmp");
  if (!mkdtemp(folder)) {
    tell(t, TROUBLE_COMPILER, "quern: no temporary folder for the compiler (%s); kernels run on the block VM", strerror(errno));
    return NULL;
  }
  snprintf(source, sizeof source, "%s/kernels.c", folder);
  snprintf(object, sizeof object, "%s/kernels.so", folder);
  snprintf(log, sizeof log, "%s/log", folder);
  char *result = NULL;
  int fd = open(source, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool written = fd >= 0 && write_all(fd, text, len);
  if (fd >= 0 && close(fd) != 0) written = false;
  if (written && run_compiler(t, source, object, log, abandon)) {
    result = read_file(object, size);
  } else if (written && !t->no_compiler && !atomic_load(abandon)) {
    size_t n = 0;
    char *words = read_file(log, &n), first[160] = "no message";
    if (words && n) snprintf(first, sizeof first, "%.*s", (int)(n < 150 ? n : 150), words);
    free(words);
    tell(t, TROUBLE_COMPILER, "quern: the C compiler failed; kernels run on the block VM: %s", first);
  }
  unlink(source);
  unlink(object);
  unlink(log);
  rmdir(folder);
  return result;
}

/* ---- loading ---------------------------------------------------------------------------------------------------------------------------- */

static void *load_object(code_table *t, const char *object, size_t size) {
  int fd = memfd_create("quern", MFD_CLOEXEC);
  if (fd < 0) return NULL;
  void *handle = NULL;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (write_all(fd, object, size)) handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  close(fd);
  if (!handle) return NULL;
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
} batch;

static bool batch_alloc(batch *b, uint32_t n) {
  b->n = 0;
  b->programs = calloc(n + 1, sizeof *b->programs);
  b->names = calloc(n + 1, sizeof *b->names);
  b->texts = calloc(n + 1, sizeof *b->texts);
  b->which = calloc(n + 1, sizeof *b->which);
  return b->programs && b->names && b->texts && b->which;
}

static void batch_free(batch *b) {
  free(b->programs);
  free(b->names);
  free(b->texts);
  free(b->which);
}

static void batch_add(batch *b, const plan *p, uint32_t kernel) {
  for (uint32_t i = 0; i < b->n; i++)
    if (p->kernels[b->which[i]].hash == p->kernels[kernel].hash) return;
  b->programs[b->n] = p->kernels[kernel].program;
  snprintf(b->texts[b->n], sizeof *b->texts, "k%016llx", (unsigned long long)p->kernels[kernel].hash);
  b->names[b->n] = b->texts[b->n];
  b->which[b->n++] = kernel;
}

void plan_source(const plan *p, text_buf *out) {
  batch b;
  if (batch_alloc(&b, p->nkernels)) {
    for (uint32_t i = 0; i < p->nkernels; i++) batch_add(&b, p, i);
    emit_c(b.programs, b.names, b.n, out);
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
    if (code) atomic_store_explicit(&p->kernels[i].code, code, memory_order_release);
    else missing++;
  }
  return missing;
}

static void use_object(code_table *t, const plan *p, const batch *b, void *handle) {
  for (uint32_t i = 0; i < b->n; i++) {
    const plan_kernel *k = &p->kernels[b->which[i]];
    qk_phase *phases = calloc(k->nphases + 1, sizeof *phases); /* and the one that tells its scratch (emit.h) */
    bool ok = phases != NULL;
    for (uint32_t j = 0; j <= k->nphases && ok; j++) {
      char symbol[48];
      snprintf(symbol, sizeof symbol, "%s_%u", b->names[i], j);
      void *f = dlsym(handle, symbol);
      memcpy(&phases[j], &f, sizeof f);
      ok = f != NULL;
    }
    if (ok) code_add(t, k->hash, phases);
    else free(phases);
  }
}

void compile_plan(qn_engine *engine, plan *p, const compile_options *o) {
  code_table *t = table_of(engine);
  if (!t || !use_table(t, p)) return;
  batch b = {0};
  text_buf text;
  text_init(&text, NULL);
  if (!batch_alloc(&b, p->nkernels)) goto done;
  for (uint32_t i = 0; i < p->nkernels; i++)
    if (!atomic_load_explicit(&p->kernels[i].code, memory_order_relaxed)) batch_add(&b, p, i);
  emit_c(b.programs, b.names, b.n, &text);
  if (text.failed || atomic_load(o->abandon)) goto done;

  /* the object's name: text, flags, processor */
  sha256 s;
  uint8_t sha[32];
  char key[65], folder[1024], path[1200];
  sha256_init(&s);
  sha256_add(&s, text.text, text.len);
  for (int i = 0; i < NFLAGS; i++) sha256_add(&s, flags[i], strlen(flags[i]) + 1);
  sha256_add(&s, cpu_isa_name(), strlen(cpu_isa_name()));
  sha256_end(&s, sha);
  for (int i = 0; i < 32; i++) snprintf(key + 2 * i, 3, "%02x", sha[i]);
  bool cached = o->tune[TUNE_cache_bytes] > 0 && cache_folder(t, folder, sizeof folder);
  if (cached) snprintf(path, sizeof path, "%s/%s", folder, key);

  size_t size = 0;
  char *object = cached ? cache_read(t, path, &size) : NULL;
  if (!object && o->spawn && !t->no_compiler) {
    object = compile_text(t, text.text, text.len, o->abandon, &size);
    if (object && cached) cache_write(folder, path, object, size, o->tune[TUNE_cache_bytes]);
  }
  void *handle = object ? load_object(t, object, size) : NULL;
  free(object);
  if (handle) {
    use_object(t, p, &b, handle);
    use_table(t, p);
  }
done:
  text_free(&text);
  batch_free(&b);
}
