/* Kernels through the system's compiler (jit/cpu/compile.c) and their cache on disk (jit/kernel/cache.c): hits without a compiler,
 * damaged files, folders that cannot be used, compilers that are missing, fail, hang or change, and engines that compile
 * the same source at once.
 *
 * Each test has a folder of its own, with an empty cache, and a PATH whose only compiler is a script that notes its runs. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "jit/kernel/cache.h"
#include "jit/cpu/compile.h"
#include "jit/cpu/cpu.h"
#include "tests/unit/lang.h"

static int64_t tune[] = {
#define TUNABLE(symbol, name, def, min, max, meaning) def,
#include "lang/tunables.def"
#undef TUNABLE
};

/* ---- a place for a test --------------------------------------------------------------------------------------------- */

static char place[64], real_cc[400];

static const char *in_place(const char *name) {
  static char paths[8][700];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", place, name);
  return path;
}

static void put_file(const char *path, const void *data, size_t n, mode_t mode) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
  ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
  ck_assert(cache_write_all(fd, data, n));
  ck_assert_int_eq(close(fd), 0);
}

/* The compiler: a script, whose last argument ("$object") is the file to write. */
static void put_compiler(const char *body) {
  char text[1200];
  snprintf(text, sizeof text, "#!/bin/sh\necho $$ >> %s/runs\nfor object; do :; done\n%s\n", place, body);
  put_file(in_place("bin/cc"), text, strlen(text), 0700);
}

/* One that compiles, and keeps what it made for later runs, which take it. */
static void put_good_compiler(void) {
  char body[900];
  snprintf(body, sizeof body,
           "[ -e %s/made ] || { %s \"$@\" && /bin/cp \"$object\" %s/made; }\nexec /bin/cp %s/made \"$object\"", place,
           real_cc, place, place);
  put_compiler(body);
}

static void setup(void) {
  char maker[CACHE_MAKER];
  static const char *const names[] = {"cc", "gcc", "clang"};
  ck_assert_msg(cache_maker(names, 3, real_cc, sizeof real_cc, maker), "no C compiler on PATH");
  snprintf(place, sizeof place, "/tmp/quern-compile-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(place));
  ck_assert_int_eq(mkdir(in_place("bin"), 0700) | mkdir(in_place("empty"), 0700) | mkdir(in_place("tmp"), 0700), 0);
  char body[500]; /* what the compiler itself looks for on PATH */
  snprintf(body, sizeof body, "%s:/usr/bin:/bin", in_place("bin"));
  setenv("QUERN_CACHE", in_place("cache"), 1);
  setenv("TMPDIR", in_place("tmp"), 1);
  setenv("PATH", body, 1);
  put_good_compiler();
}

static void teardown(void) {
  char command[100];
  snprintf(command, sizeof command, "/bin/chmod -R u+rwX %s; /bin/rm -rf %s", place, place);
  ck_assert_int_eq(system(command), 0);
}

static int lines(const char *path) {
  FILE *f = fopen(path, "r");
  int n = 0;
  for (int c; f && (c = fgetc(f)) != EOF;) n += c == '\n';
  if (f) fclose(f);
  return n;
}
static int runs(void) { return lines(in_place("runs")); }

/* The files of a folder; the name of the last one. */
static int files(const char *folder, char name[300]) {
  DIR *d = opendir(folder);
  int n = 0;
  for (struct dirent *e; d && (e = readdir(d));)
    if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
      n++;
      if (name) snprintf(name, 300, "%s", e->d_name);
    }
  if (d) closedir(d);
  return n;
}

/* The only cached file. */
static const char *cached(void) {
  char name[300], path[400];
  ck_assert_int_eq(files(in_place("cache/objects"), name), 1);
  snprintf(path, sizeof path, "cache/objects/%s", name);
  return in_place(path);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void nap(void) { nanosleep(&(struct timespec){0, 5000000}, NULL); }

/* ---- plans ------------------------------------------------------------------------------------------------------------ */

static plan *plan_of(const char *body) {
  char text[300], why[300] = "";
  snprintf(text, sizeof text, "graph(%%1: f32[10]) {\n  %s\n  return %%2\n}\n", body);
  graph *g = graph_parse(text, why, sizeof why);
  ck_assert_msg(g != NULL, "%s", why);
  plan *p = plan_make(g, TARGET_CPU, tune, NULL, why, sizeof why);
  ck_assert_msg(p != NULL, "%s", why);
  ck_assert_uint_eq(p->nkernels, 1);
  return p;
}

/* Does a plan's kernel get code? */
static bool compiles_plan(qn_engine *engine, const char *body, bool spawn, const atomic_bool *abandon) {
  atomic_bool never = false;
  plan *p = plan_of(body);
  compile_plan(engine, p, &(compile_options){.tune = tune, .spawn = spawn, .abandon = abandon ? abandon : &never});
  bool ok = p->kernels[0].code != NULL;
  plan_free(p);
  return ok;
}

#define SQUARE "%2 = mul %1, %1 : f32[10]"
static bool compiles(qn_engine *engine) { return compiles_plan(engine, SQUARE, true, NULL); }

static qn_engine *engine_new(void) {
  qn_engine *e = qn_engine_open();
  ck_assert_ptr_nonnull(e);
  return e;
}

/* Closes the engine; fails unless it has told exactly these, each a word of a sentence, or nothing. */
static void engine_told(qn_engine *e, const char *word) {
  char text[300] = "", more[300] = "";
  bool told = compile_trouble(e, text, sizeof text);
  ck_assert_msg(told == (word != NULL), "told: %s", text);
  if (word) ck_assert_msg(strstr(text, word) != NULL, "%s is not in: %s", word, text);
  ck_assert_msg(!compile_trouble(e, more, sizeof more), "told, too: %s", more);
  devices_engine_close(e);
  qn_engine_close(e);
}

/* As a new process would: does it get code, and what does it say? */
static bool compiles_anew(const char *word) {
  qn_engine *e = engine_new();
  bool ok = compiles(e);
  engine_told(e, word);
  ck_assert_int_eq(files(in_place("tmp"), NULL), 0);
  return ok;
}

/* ---- hits --------------------------------------------------------------------------------------------------------------- */

START_TEST(objects_are_kept) {
  qn_engine *e = engine_new();
  ck_assert(compiles(e) && runs() == 1);
  ck_assert(compiles(e) && runs() == 1); /* in memory */
  engine_told(e, NULL);
  ck_assert(compiles_anew(NULL) && runs() == 1); /* on disk */
  struct stat st;
  ck_assert_int_eq(stat(cached(), &st), 0);
  ck_assert_uint_eq(st.st_mode & 0777, 0600);
}
END_TEST

START_TEST(compiled_code_runs) {
  qn_engine *e = engine_new();
  plan *p = plan_of(SQUARE);
  atomic_bool never = false;
  compile_plan(e, p, &(compile_options){.tune = tune, .spawn = true, .abandon = &never});
  const qk_phase *code = p->kernels[0].code;
  ck_assert_ptr_nonnull(code);
  float x[10], y[10];
  for (int i = 0; i < 10; i++) x[i] = (float)i - 4.5f;
  void *buffers[] = {x, y}, *bvm_code = NULL;
  int64_t ints[8] = {0};
  kernel_failure failure;
  for (uint32_t i = 0; i < p->steps[0].nints; i++) ints[i] = 10;
  qn_vm *vm = vm_make();
  ck_assert(cpu_open(vm));
  ck_assert(kernel_launch(vm, p->kernels[0].program, &bvm_code, code, buffers, ints, NULL, &failure));
  for (int i = 0; i < 10; i++) ck_assert(y[i] == x[i] * x[i]);
  if (bvm_code) bvm_code_free(bvm_code);
  cpu_close(vm);
  vm_close(vm);
  plan_free(p);
  engine_told(e, NULL);
}
END_TEST

START_TEST(hits_need_no_compiler) {
  ck_assert(compiles_anew(NULL));
  qn_engine *e = engine_new(); /* not allowed to start one */
  ck_assert(compiles_plan(e, SQUARE, false, NULL));
  ck_assert(!compiles_plan(e, "%2 = neg %1 : f32[10]", false, NULL));
  engine_told(e, NULL);
  setenv("PATH", in_place("empty"), 1);
  ck_assert(compiles_anew(NULL) && runs() == 1);
}
END_TEST

START_TEST(no_compiler) {
  setenv("PATH", in_place("empty"), 1);
  qn_engine *e = engine_new();
  ck_assert(!compiles(e) && !compiles(e));
  engine_told(e, "no C compiler");
  unsetenv("PATH");
  ck_assert(!compiles_anew("no C compiler"));
}
END_TEST

START_TEST(switched_off) {
  tune[TUNE_cache_bytes] = 0;
  ck_assert(compiles_anew(NULL) && compiles_anew(NULL) && runs() == 2);
  ck_assert_int_eq(files(in_place("cache"), NULL), 0);
}
END_TEST

/* ---- damage --------------------------------------------------------------------------------------------------------------- */

/* Puts these bytes in place of the cached file: they are noticed, dropped and made anew. */
static void damage(const char *path, const char *good, size_t n, const char *bad, size_t m) {
  put_file(path, bad, m, 0600);
  int before = runs();
  ck_assert(compiles_anew("damaged"));
  ck_assert_int_eq(runs(), before + 1);
  size_t size = 0;
  char *again = cache_read_file(path, &size);
  ck_assert(again && size == n && memcmp(again, good, n) == 0);
  free(again);
}

START_TEST(damaged_bytes) {
  ck_assert(compiles_anew(NULL));
  size_t n;
  char path[700];
  snprintf(path, sizeof path, "%s", cached());
  char *good = cache_read_file(path, &n), *bad = malloc(n + 1);
  ck_assert(good && bad && n > 1000);
  for (size_t k = 0; k < 80; k++) { /* magic, size, hash and the first bytes of the body; then some of the rest */
    size_t at = k < 64 ? k : k < 79 ? 64 + (n - 64) / 15 * (k - 64) : n - 1;
    memcpy(bad, good, n);
    bad[at] ^= (char)(k % 2 ? 1 : 0x80);
    damage(path, good, n, bad, n);
  }
  free(good);
  free(bad);
}
END_TEST

START_TEST(damaged_lengths) {
  ck_assert(compiles_anew(NULL));
  size_t n;
  char path[700];
  snprintf(path, sizeof path, "%s", cached());
  char *good = cache_read_file(path, &n), *bad = calloc(1, n + 100);
  ck_assert(good && bad);
  memcpy(bad, good, n);
  const size_t lengths[] = {0, 1, 7, 47, 48, 49, n / 2, n - 1, n + 1, n + 100};
  for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) damage(path, good, n, bad, lengths[k]);
  memset(bad, 0, n);
  damage(path, good, n, bad, n);
  free(good);
  free(bad);
}
END_TEST

/* Good hash, but nothing that can be loaded: such a file is replaced. */
START_TEST(objects_that_do_not_load) {
  ck_assert(compiles_anew(NULL));
  char path[700], folder[700];
  snprintf(path, sizeof path, "%s", cached());
  snprintf(folder, sizeof folder, "%s", in_place("cache/objects"));
  ck_assert(cache_write(folder, path, "not an object", 13, 1 << 20, &(_Atomic int64_t){0}));
  ck_assert(compiles_anew("cannot be loaded") && runs() == 2);
  ck_assert(compiles_anew(NULL) && runs() == 2);
}
END_TEST

START_TEST(what_is_no_file) {
  ck_assert(compiles_anew(NULL));
  char path[700];
  snprintf(path, sizeof path, "%s", cached());
  ck_assert(unlink(path) == 0 && mkfifo(path, 0600) == 0);
  ck_assert(compiles_anew("damaged") && runs() == 2);
  ck_assert(unlink(path) == 0 && symlink("nowhere", path) == 0);
  ck_assert(compiles_anew(NULL) && runs() == 3);
  ck_assert(compiles_anew(NULL) && runs() == 3);
}
END_TEST

/* ---- folders ------------------------------------------------------------------------------------------------------------ */

START_TEST(missing_folder) {
  setenv("QUERN_CACHE", in_place("a/b//c/d"), 1);
  ck_assert(compiles_anew(NULL) && compiles_anew(NULL) && runs() == 1);
  ck_assert_int_eq(files(in_place("a/b/c/d/objects"), NULL), 1);
}
END_TEST

START_TEST(other_folders) {
  unsetenv("QUERN_CACHE");
  setenv("XDG_CACHE_HOME", in_place("xdg"), 1);
  setenv("HOME", in_place("home"), 1);
  ck_assert(compiles_anew(NULL) && files(in_place("xdg/quern/objects"), NULL) == 1);
  unsetenv("XDG_CACHE_HOME");
  ck_assert(compiles_anew(NULL) && files(in_place("home/.cache/quern/objects"), NULL) == 1);
  unsetenv("HOME");
  ck_assert(compiles_anew(NULL) && compiles_anew(NULL) && runs() == 4);
}
END_TEST

START_TEST(unusable_folder) {
  put_file(in_place("file"), "x", 1, 0700);
  const char *const folders[] = {"/proc/nowhere", in_place("file"), in_place("file/below")};
  for (int i = 0; i < 3; i++) {
    setenv("QUERN_CACHE", folders[i], 1);
    ck_assert(compiles_anew("cannot be written") && runs() == i + 1);
  }
  ck_assert_int_eq(mkdir(in_place("wrong"), 0700), 0);
  put_file(in_place("wrong/objects"), "x", 1, 0700);
  setenv("QUERN_CACHE", in_place("wrong"), 1);
  ck_assert(compiles_anew("cannot be written"));
  char longest[1500];
  memset(longest, 'x', sizeof longest);
  longest[0] = '/';
  longest[sizeof longest - 1] = 0;
  setenv("QUERN_CACHE", longest, 1);
  ck_assert(compiles_anew("cannot be written"));
}
END_TEST

/* What others wrote is still of use. Root writes everywhere, so it sees a folder like any other. */
START_TEST(read_only_folder) {
  ck_assert(compiles_anew(NULL));
  ck_assert_int_eq(chmod(in_place("cache/objects"), 0500), 0);
  bool root = geteuid() == 0;
  ck_assert(compiles_anew(root ? NULL : "cannot be written") && runs() == 1);
  setenv("PATH", in_place("empty"), 1);
  ck_assert(compiles_anew(root ? NULL : "cannot be written"));
}
END_TEST

START_TEST(no_temporary_folder) {
  setenv("TMPDIR", in_place("nowhere"), 1);
  qn_engine *e = engine_new();
  ck_assert(!compiles(e));
  engine_told(e, "no temporary folder");
}
END_TEST

/* ---- compilers ---------------------------------------------------------------------------------------------------------- */

START_TEST(compiler_fails) {
  put_compiler("echo bad weather >&2; exit 1");
  qn_engine *e = engine_new();
  ck_assert(!compiles(e) && !compiles(e));
  engine_told(e, "bad weather");
  put_compiler("kill -9 $$");
  ck_assert(!compiles_anew("failed"));
  put_compiler("exit 0");
  ck_assert(!compiles_anew("failed"));
  put_compiler("echo nonsense > \"$object\"");
  ck_assert(!compiles_anew("cannot be loaded"));
  put_file(in_place("bin/cc"), "\1\2\3", 3, 0700);
  ck_assert(!compiles_anew("cannot be started"));
  ck_assert_int_eq(files(in_place("cache/objects"), NULL), 0);
  ck_assert_int_eq(unlink(in_place("bin/cc")), 0); /* the script for root, who runs what nobody may */
  put_good_compiler();
  ck_assert(compiles_anew(NULL));
  e = engine_new(); /* it makes this always the same object */
  ck_assert(!compiles_plan(e, "%2 = neg %1 : f32[10]", true, NULL));
  engine_told(e, "lack");
  ck_assert_int_eq(files(in_place("cache/objects"), NULL), 1);
}
END_TEST

/* Its temporary files are in the folder that is removed. */
START_TEST(compiler_leaves_files) {
  put_compiler("echo x > \"$TMPDIR/left\"; exit 1");
  ck_assert(!compiles_anew("failed"));
}
END_TEST

/* A number from a file that somebody is about to write. */
static int number_in(const char *path) {
  for (double end = now() + 60; now() < end; nap()) {
    FILE *f = fopen(path, "r");
    int n = 0, got = f ? fscanf(f, "%d\n", &n) : 0;
    if (f) fclose(f);
    if (got == 1) return n;
  }
  ck_abort_msg("%s is not written", path);
}

/* Gone, or dead and waiting for its new parent. */
static bool process_gone(int pid) {
  char path[64], state = 'Z';
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  for (double end = now() + 10; now() < end; nap()) {
    FILE *f = fopen(path, "r");
    if (!f) return true;
    int got = fscanf(f, "%*d (%*[^)]) %c", &state);
    fclose(f);
    if (got != 1 || state == 'Z' || state == 'X') return true;
  }
  return false;
}

static void *compile_and_wait(void *abandon) {
  qn_engine *e = engine_new();
  bool ok = compiles_plan(e, SQUARE, true, abandon);
  engine_told(e, NULL);
  return ok ? abandon : NULL;
}

START_TEST(abandoned_compiler) {
  put_compiler("/bin/sleep 1000 &\necho $! > \"${0%/bin/cc}/child\"\nwait");
  atomic_bool abandon = false;
  pthread_t thread;
  void *result;
  ck_assert_int_eq(pthread_create(&thread, NULL, compile_and_wait, &abandon), 0);
  int child = number_in(in_place("child"));
  double start = now();
  atomic_store(&abandon, true);
  ck_assert_int_eq(pthread_join(thread, &result), 0);
  ck_assert(result == NULL && now() - start < 10);
  ck_assert(process_gone(number_in(in_place("runs"))) && process_gone(child));
  ck_assert_int_eq(files(in_place("tmp"), NULL), 0);
}
END_TEST

static void silent(void *user, int stream, const char *text, size_t len) {
  (void)user, (void)stream, (void)text, (void)len;
}

START_TEST(hanging_compiler_ends_with_the_vm) {
  put_compiler("/bin/sleep 1000 &\necho $! > \"${0%/bin/cc}/child\"\nwait");
  qn_config config;
  qn_config_init(&config);
  config.engine = engine_new();
  config.write = silent;
  qn_vm *vm = qn_vm_open(&config);
  ck_assert_ptr_nonnull(vm);
  static const char text[] = "fn f(x) = x * x + 1\nlet s = 0.0\nfor _ in 0..200 { s += float(sum(f(arange(10)))) }\ns";
  qn_value v;
  ck_assert_int_eq(qn_eval(vm, "test", text, sizeof text - 1, &v), QN_OK);
  int child = number_in(in_place("child"));
  ck_assert_int_eq(qn_eval(vm, "test", text, sizeof text - 1, &v), QN_OK); /* calls go on beside it */
  double start = now();
  qn_vm_close(vm);
  qn_engine_close(config.engine);
  ck_assert(now() - start < 10);
  ck_assert(process_gone(number_in(in_place("runs"))) && process_gone(child));
  ck_assert_int_eq(files(in_place("tmp"), NULL), 0);
}
END_TEST

/* ---- at once -------------------------------------------------------------------------------------------------------------- */

enum { ENGINES = 4, ROUNDS = 12 };
static atomic_int busy;

static void *compile_once(void *ok) {
  qn_engine *e = engine_new();
  atomic_store((atomic_bool *)ok, compiles(e));
  engine_told(e, NULL);
  atomic_fetch_sub(&busy, 1);
  return NULL;
}

START_TEST(engines_at_once) {
  ck_assert(compiles_anew(NULL)); /* so that the compiler copies */
  char path[700];
  snprintf(path, sizeof path, "%s", cached());
  for (int round = 0; round < ROUNDS; round++) {
    pthread_t threads[ENGINES];
    atomic_bool ok[ENGINES];
    ck_assert_int_eq(unlink(path), 0);
    atomic_store(&busy, ENGINES);
    for (int i = 0; i < ENGINES; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, compile_once, &ok[i]), 0);
    while (atomic_load(&busy)) { /* whenever it is there, it is whole */
      char *object;
      size_t size;
      ck_assert_int_ne(cache_read(path, &object, &size), CACHE_DAMAGED);
      free(object);
    }
    for (int i = 0; i < ENGINES; i++) {
      ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
      ck_assert(atomic_load(&ok[i]));
    }
    ck_assert_str_eq(cached(), path);
  }
  ck_assert_int_eq(files(in_place("tmp"), NULL), 0);
}
END_TEST

/* ---- keys ---------------------------------------------------------------------------------------------------------------- */

static const char *key_of(const char *source, const char *flag1, const char *flag2, const char *machine) {
  static char keys[4][CACHE_KEY];
  static int next;
  char *key = keys[next++ % 4];
  const char *flags[] = {flag1, flag2};
  cache_key(key, source, strlen(source), flags, 2, machine);
  return key;
}

START_TEST(keys) {
  const char *key = key_of("text", "-a", "-b", "machine");
  ck_assert_uint_eq(strlen(key), 64);
  ck_assert_str_eq(key, key_of("text", "-a", "-b", "machine"));
  ck_assert_str_ne(key, key_of("texts", "-a", "-b", "machine"));
  ck_assert_str_ne(key, key_of("text", "-a", "-c", "machine"));
  key = key_of("text", "-a", "-b", "machine");
  ck_assert_str_ne(key, key_of("text", "-b", "-a", "machine"));
  ck_assert_str_ne(key, key_of("text", "-a-", "b", "machine"));
  ck_assert_str_ne(key, key_of("text", "-a", "-b", "machines"));
  char one[256], two[256];
  cache_machine(one, sizeof one);
  cache_machine(two, sizeof two);
  ck_assert_str_eq(one, two);
  ck_assert_uint_gt(strlen(one), 4);
}
END_TEST

/* A compiler that is another one does not get what the former one made; one that returns finds it. */
START_TEST(compilers_differ) {
  ck_assert(compiles_anew(NULL) && runs() == 1);
  struct timespec times[2] = {{1000, 0}, {1000, 5}};
  ck_assert_int_eq(utimensat(AT_FDCWD, in_place("bin/cc"), times, 0), 0);
  ck_assert(compiles_anew(NULL) && runs() == 2);
  ck_assert(compiles_anew(NULL) && runs() == 2);
  ck_assert_int_eq(files(in_place("cache/objects"), NULL), 2);
  char text[600];
  ck_assert_int_eq(mkdir(in_place("bin2"), 0700), 0);
  snprintf(text, sizeof text, "#!/bin/sh\nexec %s \"$@\"\n", in_place("bin/cc"));
  put_file(in_place("bin2/gcc"), text, strlen(text), 0700); /* cc comes before gcc, wherever they are */
  put_file(in_place("empty/cc"), "", 0, 0600);              /* no program */
  snprintf(text, sizeof text, "%s::%s:%s", in_place("empty"), in_place("bin2"), in_place("bin"));
  setenv("PATH", text, 1);
  ck_assert(compiles_anew(NULL) && runs() == 2);
  setenv("PATH", in_place("bin2"), 1);
  ck_assert(compiles_anew(NULL) && runs() == 3);
}
END_TEST

START_TEST(texts_differ) {
  qn_engine *e = engine_new();
  ck_assert_int_eq(unlink(in_place("bin/cc")), 0);
  char body[500];
  snprintf(body, sizeof body, "exec %s \"$@\"", real_cc);
  put_compiler(body);
  ck_assert(compiles(e));
  ck_assert(compiles_plan(e, "%2 = neg %1 : f32[10]", true, NULL));
  engine_told(e, NULL);
  ck_assert_int_eq(files(in_place("cache/objects"), NULL), 2);
}
END_TEST

/* ---- size ---------------------------------------------------------------------------------------------------------------- */

static void object_name(char path[CACHE_PATH], int i) {
  char text[16];
  snprintf(text, sizeof text, "%d", i);
  snprintf(path, CACHE_PATH, "%s/%s.0123456789abcdef", in_place("cache/objects"), key_of(text, "", "", ""));
}

START_TEST(the_oldest_go) {
  char folder[700], paths[8][CACHE_PATH], object[1000] = {1};
  ck_assert_int_eq(cache_folder(folder, sizeof folder), CACHE_WRITES);
  put_file(in_place("cache/objects/foreign"), object, sizeof object, 0600);
  put_file(in_place("cache/objects/.new-abcdef"), object, sizeof object, 0600);
  put_file(in_place("cache/objects/.new-ghijkl"), object, sizeof object, 0600);
  struct timespec old[2] = {{1000, 0}, {1000, 0}};
  ck_assert_int_eq(utimensat(AT_FDCWD, in_place("cache/objects/.new-abcdef"), old, 0), 0);
  ck_assert_int_eq(utimensat(AT_FDCWD, in_place("cache/objects/foreign"), old, 0), 0);
  _Atomic int64_t room = 0;
  for (int i = 0; i < 8; i++) {
    object_name(paths[i], i);
    ck_assert(cache_write(folder, paths[i], object, sizeof object, 20000, &room));
    ck_assert_int_ge(room, 0);
    ck_assert_int_le(room, 20000 / 8);
    old[1].tv_sec = 2000 + i;
    ck_assert_int_eq(utimensat(AT_FDCWD, paths[i], old, 0), 0);
  }
  char *data;
  size_t size;
  ck_assert_int_eq(cache_read(paths[0], &data, &size), CACHE_GOOD); /* used now */
  free(data);
  room = 1000;
  ck_assert(cache_write(folder, paths[7], object, sizeof object, 3500, &room)); /* there is room: nobody looks */
  for (int i = 0; i < 8; i++) ck_assert_int_eq(access(paths[i], F_OK), 0);
  ck_assert_int_eq(room, 0);
  ck_assert(cache_write(folder, paths[7], object, sizeof object, 3500, &room));
  for (int i = 0; i < 8; i++) ck_assert_int_eq(access(paths[i], F_OK) == 0, i == 0 || i > 5);
  ck_assert_int_eq(access(in_place("cache/objects/foreign"), F_OK), 0);
  ck_assert_int_eq(access(in_place("cache/objects/.new-ghijkl"), F_OK), 0);
  ck_assert_int_ne(access(in_place("cache/objects/.new-abcdef"), F_OK), 0);
}
END_TEST

static TCase *placed(TCase *t) {
  tcase_add_checked_fixture(t, setup, teardown);
  return t;
}

int main(void) {
  Suite *s = suite_create("compile");
  CASE(placed(tcase_create("hits")), objects_are_kept, compiled_code_runs, hits_need_no_compiler, switched_off);
  CASE(placed(tcase_create("no_compiler")), no_compiler);
  CASE(placed(tcase_create("damaged_files")), damaged_bytes, damaged_lengths, objects_that_do_not_load,
       what_is_no_file);
  CASE(placed(tcase_create("folders")), missing_folder, other_folders, unusable_folder, read_only_folder,
       no_temporary_folder);
  CASE(placed(tcase_create("failing_compiler")), compiler_fails, compiler_leaves_files);
  CASE(placed(tcase_create("hanging_compiler")), abandoned_compiler, hanging_compiler_ends_with_the_vm);
  CASE(placed(tcase_create("engines_at_once")), engines_at_once);
  CASE(placed(tcase_create("keys")), keys, compilers_differ, texts_differ);
  CASE(placed(tcase_create("size")), the_oldest_go);
  return run_suite(s);
}
