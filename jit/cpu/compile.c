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
 * process with an OpenMP pool and gigabytes of arrays is slow and hangs in its next parallel region. A shell stands in between (`watched`): it
 * ends the compiler and removes the folder when this process is gone, however that ended.
 *
 * Kernels that are longer than jit.cc_longest have no code: loops with hundreds of branches and loops inside. With gcc 12, -O2, kernels of
 * 690, 2,700, 3,500 and 8,500 instructions (1,700 to 19,000 lines) took 0.7, 4, 14 and 52 s, all other kernels of the plan waiting with them. Most of
 * it goes into the values that live at each of a function's blocks, so it grows with instructions times loops (length_of): of 200 kernels of 400
 * to 3,000 instructions, those of 20 loops took 0.4 to 1 s and those of 90 to 200 loops 2 to 7 s. Tried for these: -O1 takes 20 to 30 % less, and -Og
 * and -O0, which are quick, make code that is slower than the block VM.
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

typedef enum trouble { TROUBLE_NO_COMPILER, TROUBLE_FOLDER, TROUBLE_DAMAGED, TROUBLE_COMPILER, TROUBLE_OBJECT } trouble;

typedef struct code_table {
  troubles troubles;
  _Atomic int64_t cache_room; /* cache_write */
  pthread_mutex_t lock;       /* over what follows */
  hash_table codes;           /* phases by l_hash */
  hash_table objects;         /* dlopen handles, by their number */
} code_table;

static void init(void *part, qn_engine *engine) {
  code_table *t = part;
  (void)engine;
  troubles_init(&t->troubles);
  atomic_init(&t->cache_room, 0);
  pthread_mutex_init(&t->lock, NULL);
}

static code_table *table_of(qn_engine *engine) {
  cpu_engine *c = cpu_engine_of(engine);
  return c ? engine_part(engine, &c->code, sizeof(code_table), init) : NULL;
}

void compile_close(cpu_engine *c) {
  code_table *t = c->code;
  if (!t) return;
  for (uint32_t i = 0; i < t->codes.cap; i++) free(t->codes.slots[i].what);
  for (uint32_t i = 0; i < t->objects.cap; i++)
    if (t->objects.slots[i].what) dlclose(t->objects.slots[i].what);
  hash_free(&t->codes);
  hash_free(&t->objects);
  free(t);
  c->code = NULL;
}

void compile_forked(cpu_engine *c) {
  code_table *t = c->code;
  if (t) init(t, NULL);
}

bool compile_trouble(qn_engine *engine, char *text, size_t size) {
  cpu_engine *c = __atomic_load_n((cpu_engine **)&engine->devices[FAMILY_cpu], __ATOMIC_ACQUIRE);
  code_table *t = c ? __atomic_load_n((code_table **)&c->code, __ATOMIC_ACQUIRE) : NULL;
  return t && troubles_next(&t->troubles, text, size);
}

static const qk_phase *code_find(code_table *t, uint64_t hash) {
  pthread_mutex_lock(&t->lock);
  const qk_phase *found = hash_find(&t->codes, hash);
  pthread_mutex_unlock(&t->lock);
  return found;
}

/* Takes `phases` over, unless there are some already. */
static void code_add(code_table *t, uint64_t hash, qk_phase *phases) {
  pthread_mutex_lock(&t->lock);
  if (hash_find(&t->codes, hash) || !hash_add(&t->codes, hash, phases)) free(phases);
  pthread_mutex_unlock(&t->lock);
}

/* ---- the compiler -------------------------------------------------------------------------------------------------------------------- */

static const char *const compilers[] = {"cc", "gcc", "clang"};
/* Results have their bits only with contraction off; -fno-trapping-math lets selects become code without branches. The last options are left
 * out where wide_vectors() is false. A compiler that is older than the processor tunes for none in particular, and then gathers nothing: x[i] took
 * two to three times as long. */
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
                                    "-mprefer-vector-width=512",
                                    "-mtune=icelake-server"};
enum { NFLAGS = sizeof flags / sizeof *flags, WIDE_FLAGS = 2, OPTIMIZE = 1 };

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

static int flag_count(void) { return wide_vectors() ? NFLAGS : NFLAGS - WIDE_FLAGS; }

const char *const *compile_flags(int *n) {
  *n = flag_count();
  return flags;
}

/* Sets `to` to the options for a plan, and returns how many there are. Where kernels know their sizes (TUNE_fuse_static) the compiler is to unroll and
 * to keep rows in registers, which takes it no longer than -O2 does where it must care for all sizes: layer norm of rows of 64 takes a
 * fifth of the time with both, and as long as ever with one of the two. */
static int plan_flags(const int64_t *tune, const char *to[NFLAGS]) {
  memcpy(to, flags, sizeof flags);
  if (tune[TUNE_fuse_static]) to[OPTIMIZE] = "-O3";
  return flag_count();
}

/* What the shell does with a folder and a command: it runs the command, and beside it reads file 3, a pipe whose other end only this process
 * has. That there is no more to read means that this process has ended: then the group ends, and the folder goes. (A signal for the death of
 * a parent would reach the compiler's driver alone, not the processes that it starts.) */
static const char watched[] = "d=$1; shift; \"$@\" 3<&- & c=$!\n"
                              "{ trap '' TERM; read -r x <&3; kill -TERM 0; rm -rf \"$d\"; kill -KILL 0; } & w=$!\n"
                              "exec 3<&-; wait $c; s=$?; exec 2>/dev/null; kill -KILL $w; wait $w; exit $s";
enum { WATCH = 5 };                         /* sh -c watched sh folder */
enum { NO_COMMAND = 126, NOT_FOUND = 127 }; /* of a shell: the command could not be started; the log says why */

/* Starts argv, whose first WATCH parts are the shell, with `pipe` as its file 3; or, without a pipe or where there is no shell, the command behind
 * them. Returns 0 or an error number. */
static int start_compiler(pid_t *pid, char **argv, char **environment, int pipe, const char *log) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attr;
  int rc = posix_spawn_file_actions_init(&files);
  if (rc != 0) return rc;
  rc = posix_spawnattr_init(&attr);
  if (rc != 0) {
    posix_spawn_file_actions_destroy(&files);
    return rc;
  }
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  if (pipe >= 0) posix_spawn_file_actions_adddup2(&files, pipe, 3);
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
  bool shell = pipe >= 0, asked = true; /* asked: for the class */
  for (;;) {
    posix_spawnattr_setflags(&attr, asked ? how | POSIX_SPAWN_SETSCHEDULER : how);
    char **command = shell ? argv : argv + WATCH;
    rc = posix_spawn(pid, command[0], &files, &attr, command, environment);
    if (rc == EPERM && asked) /* a sandbox that does not let us choose the class */
      asked = false;
    else if (rc != 0 && shell)
      shell = false;
    else
      break;
  }
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attr);
  return rc;
}

/* Waits until no process of a group that was killed is left: the shell was its parent, and they end on their own time. Not for long, since where
 * nobody collects the dead they stay. */
static void await_group(pid_t group) {
  enum { MOST = 100 };
  const struct timespec nap = {0, 1000000};
  for (int k = 0; k < MOST && kill(-group, 0) == 0; k++) nanosleep(&nap, NULL);
}

/* Waits for the compiler, and gives its exit status; -1: a signal has ended it, or `abandon` became true. */
static int await_compiler(pid_t pid, const atomic_bool *abandon) {
  int status = 0;
  for (struct timespec nap = {0, 1000000};;) {
    pid_t done = waitpid(pid, &status, WNOHANG);
    if (done == pid) break;
    if (done < 0 &&
        errno != EINTR) { /* the host waits for all children itself: whether it went well shows in the object */
      status = 0;
      break;
    }
    if (atomic_load_explicit(abandon, memory_order_relaxed)) {
      struct sched_param plain = {0};
      (void)sched_setscheduler(pid, SCHED_OTHER,
                               &plain); /* where that is allowed: on a busy machine it would end late */
      kill(-pid, SIGKILL);
      while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
      await_group(pid);
      return -1;
    }
    nanosleep(&nap, NULL);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A pipe of which no end is file 0, 1 or 2, which this process may have closed: these are others in what it starts. {-1, -1}: there is none. */
static void watch_pipe(int ends[2]) {
  if (pipe2(ends, O_CLOEXEC) != 0) ends[0] = ends[1] = -1;
  for (int i = 0; i < 2 && ends[i] >= 0; i++) {
    if (ends[i] > 2) continue;
    int moved = fcntl(ends[i], F_DUPFD_CLOEXEC, 3);
    close(ends[i]);
    ends[i] = moved;
  }
  if (ends[0] >= 0 && ends[1] >= 0) return;
  for (int i = 0; i < 2; i++) {
    if (ends[i] >= 0) close(ends[i]);
    ends[i] = -1;
  }
}

/* Runs the compiler `cc` on `source`, within `folder`, and waits for it. False: it failed, could not be started, or `o->abandon` became true. */
static bool run_compiler(code_table *t, const char *cc, char **environment, const char *folder, const char *source,
                         const char *object, const char *log, const compile_options *o) {
  const char *argv[WATCH + NFLAGS + 5] = {"/bin/sh", "-c", watched, "sh", folder, cc};
  int argc = WATCH + 1;
  argc += plan_flags(o->tune, argv + argc);
  argv[argc++] = source;
  argv[argc++] = "-o";
  argv[argc++] = object;
  int ends[2];
  watch_pipe(ends);
  pid_t pid = 0;
  int rc = start_compiler(&pid, (char **)(uintptr_t)argv, environment, ends[0], log);
  if (ends[0] >= 0) close(ends[0]);
  int status = rc == 0 ? await_compiler(pid, o->abandon) : -1;
  if (ends[1] >= 0) close(ends[1]);
  if (rc != 0 || status == NO_COMMAND || status == NOT_FOUND)
    troubles_tell(&t->troubles, TROUBLE_COMPILER,
                  "quern: the C compiler cannot be started (%s); kernels run on the block VM",
                  rc != 0               ? strerror(rc)
                  : status == NOT_FOUND ? "it is not found"
                                        : "it cannot be executed");
  return status == 0;
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

/* Compiles a text: the object's bytes (malloc'ed), or NULL, and the user is told why. */
static char *compile_text(code_table *t, const char *cc, const char *text, size_t len, const compile_options *o,
                          size_t *size) {
  const char *base = getenv("TMPDIR");
  char folder[512], source[560], object[560], log[560], tmpdir[560];
  snprintf(folder, sizeof folder, "%s/quern-XXXXXX", base && *base && strlen(base) < 400 ? base : "/tmp");
  if (!mkdtemp(folder)) {
    troubles_tell(&t->troubles, TROUBLE_COMPILER,
                  "quern: no temporary folder for the compiler (%s); kernels run on the block VM", strerror(errno));
    return NULL;
  }
  snprintf(source, sizeof source, "%s/kernels.c", folder);
  snprintf(object, sizeof object, "%s/kernels.so", folder);
  snprintf(log, sizeof log, "%s/log", folder);
  char *result = NULL, **environment = compiler_environment(folder, tmpdir, sizeof tmpdir);
  int fd = open(source, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool written = fd >= 0 && cache_write_all(fd, text, len);
  if (fd >= 0 && close(fd) != 0) written = false;
  if (written && environment && run_compiler(t, cc, environment, folder, source, object, log, o))
    result = cache_read_file(object, size);
  if (!result && !atomic_load(o->abandon)) {
    size_t n = 0;
    char *words = cache_read_file(log, &n), first[160] = "no message";
    if (words && n) snprintf(first, sizeof first, "%.*s", (int)(n < 150 ? n : 150), words);
    free(words);
    troubles_tell(&t->troubles, TROUBLE_COMPILER, "quern: the C compiler failed; kernels run on the block VM: %s",
                  first);
  }
  free(environment);
  remove_folder(folder);
  return result;
}

/* ---- loading ---------------------------------------------------------------------------------------------------------------------------- */

/* Writes a path to `fd` that no other object has. dlopen loads nothing for a path under which it has loaded something, and numbers of files
 * are used again; so the bits of the object's hash stand in the path, as "/." and "//". */
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

/* Loads an object from a file in memory. The table keeps the handle until the engine closes. NULL: the user is told why. */
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
    troubles_tell(&t->troubles, TROUBLE_OBJECT, "quern: compiled kernels cannot be loaded, and run on the block VM: %s",
                  why ? why : "no memory");
    return NULL;
  }
  pthread_mutex_lock(&t->lock);
  bool kept = hash_add(&t->objects, t->objects.n, handle);
  pthread_mutex_unlock(&t->lock);
  if (kept) return handle;
  dlclose(handle);
  return NULL;
}

/* ---- a plan --------------------------------------------------------------------------------------------------------------------------------- */

void cpu_source(const plan *p, text_buf *out) {
  code_unit u;
  bool ok = code_unit_open(&u, p->nkernels);
  for (uint32_t i = 0; i < p->nkernels && ok; i++) ok = code_unit_add(&u, p->kernels[i].program, p->kernels[i].hash);
  if (ok)
    emit_c(u.programs, u.names, u.n, NULL, out);
  else
    out->failed = true;
  code_unit_close(&u);
}

/* Gives the plan's kernels the code that the table has for them. Returns how many still have none. */
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

/* Puts the unit's functions into the table, from a loaded object. False: it lacks some, and the user is told. */
static bool use_object(code_table *t, const code_unit *u, void *handle) {
  bool all = true;
  for (uint32_t i = 0; i < u->n && all; i++) {
    qk_phase *phases = calloc(u->functions[i], sizeof *phases);
    char symbol[48];
    bool ok = phases != NULL;
    for (uint32_t j = 0; j < u->functions[i] && ok; j++) {
      snprintf(symbol, sizeof symbol, "%s_%u", u->names[i], j);
      void *f = dlsym(handle, symbol);
      memcpy(&phases[j], &f, sizeof f);
      ok = all = f != NULL;
    }
    if (!all)
      troubles_tell(&t->troubles, TROUBLE_OBJECT, "quern: compiled kernels lack %s; they run on the block VM", symbol);
    if (ok)
      code_add(t, u->hashes[i], phases);
    else
      free(phases);
  }
  return all;
}

static bool take_object(code_table *t, const code_unit *u, const char *object, size_t size) {
  void *handle = load_object(t, object, size);
  return handle && use_object(t, u, handle);
}

static bool given_up(const compile_options *o) { return atomic_load_explicit(o->abandon, memory_order_relaxed); }

/* Code for a unit, whose text this is, from the cache or the compiler. */
static void code_for(code_table *t, const code_unit *u, const text_buf *text, const compile_options *o,
                     compile_report *report) {
  static const char no_folder[] =
      "quern: kernels are compiled anew in every process: the kernel cache cannot be written (%s)";
  char machine[256], *key = report->key, maker[CACHE_MAKER] = "", cc[1024], folder[1024] = "", path[CACHE_PATH],
                     *object = NULL;
  size_t size = 0;
  int64_t limit = o->tune[TUNE_cache_bytes];
  bool can = o->spawn && cache_maker(compilers, sizeof compilers / sizeof *compilers, cc, sizeof cc, maker);
  cache_machine(machine, sizeof machine);
  const char *options[NFLAGS];
  int noptions = plan_flags(o->tune, options);
  cache_key(key, text->text, text->len, options, noptions, machine);
  cache_access access = limit > 0 ? cache_folder(folder, sizeof folder) : CACHE_NONE;
  if (access != CACHE_WRITES && *folder) troubles_tell(&t->troubles, TROUBLE_FOLDER, no_folder, folder);
  report->looked = access != CACHE_NONE;
  if (given_up(o)) return;
  if (access != CACHE_NONE && cache_find(folder, key, o->spawn ? maker : "", path)) {
    if (cache_read(path, &object, &size) == CACHE_DAMAGED)
      troubles_tell(&t->troubles, TROUBLE_DAMAGED, "quern: a damaged file in the kernel cache was removed (%s)", path);
    bool done = object && !given_up(o) && take_object(t, u, object, size);
    free(object);
    report->bytes = size;
    if (done) {
      report->how = COMPILED_CACHED;
      return;
    }
  }
  if (!o->spawn || given_up(o)) return;
  if (!can) {
    troubles_tell(&t->troubles, TROUBLE_NO_COMPILER,
                  "quern: there is no C compiler (%s) on PATH; kernels run on the block VM", "cc, gcc, clang");
    return;
  }
  object = compile_text(t, cc, text->text, text->len, o, &size);
  if (object && !given_up(o) && take_object(t, u, object, size)) {
    report->how = COMPILED_NOW;
    report->bytes = size;
    report->stored = access == CACHE_WRITES && cache_write(folder, path, object, size, limit, &t->cache_room);
    if (access == CACHE_WRITES && !report->stored) troubles_tell(&t->troubles, TROUBLE_FOLDER, no_folder, folder);
  }
  free(object);
}

/* What jit.cc_longest is compared with: a kernel's instructions, in proportion more where it has more than FEW loops. */
static int64_t length_of(const l_program *p) {
  enum { FEW = 40 };
  int64_t loops = 0;
  for (uint32_t i = 1; i < p->n; i++)
    loops += p->code[i].code == L_FOR || p->code[i].code == L_VEC || p->code[i].code == L_WHILE;
  return loops > FEW ? p->n * loops / FEW : p->n;
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
  const int64_t longest = o->tune[TUNE_jit_cc_longest];
  code_unit u;
  text_buf text = {0};
  bool ok = code_unit_open(&u, p->nkernels);
  for (uint32_t i = 0; i < p->nkernels && ok; i++)
    if (!atomic_load_explicit(&p->kernels[i].code, memory_order_relaxed) && length_of(p->kernels[i].program) <= longest)
      ok = code_unit_add(&u, p->kernels[i].program, p->kernels[i].hash);
  ok &= u.n > 0;
  if (ok) emit_c(u.programs, u.names, u.n, o->abandon, &text);
  if (ok && !text.failed && !given_up(o)) {
    code_for(t, &u, &text, o, report);
    use_table(t, p);
  }
  text_free(&text);
  code_unit_close(&u);
}
