/* NVRTC without CUDA, for tests: the texts of kernels become objects for fake_driver.c, by a C compiler of the system. Tests
 * compile the same kernels many times over, on purpose, in fresh caches of Quern's. In the folder that FAKE_CACHE names, the
 * fake keeps what the compiler made of each text, so that only the first of them takes its time; unset, nothing is kept.
 *
 * Programs' kernels are thousands and each runs a few times, so what counts is how long their compilation takes: they go to tcc, which
 * takes 3 ms for one where gcc takes 50. What it refuses, and everything where it is not installed, goes to cc. So do products by
 * tiles, which run long, and kernels of our own (the block VM, sorting), which are few and run often. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/fake.h"

extern char **environ;

#define EXPORT __attribute__((visibility("default")))
#define TEXT_(...) #__VA_ARGS__
#define TEXT(...) TEXT_(__VA_ARGS__)

struct _nvrtcProgram {
  char *text, *image;
  size_t bytes;
};

/* One kernel runs at a time, so its place may be a plain variable: leak checks do not survive thread-local ones of closed modules. */
static const char words[] = TEXT(
    FAKE_PLACE) "\nstatic fake_place *fake_;\n"
                "#define threadIdx fake_->thread\n#define blockIdx fake_->block\n#define gridDim fake_->grid\n#define "
                "blockDim fake_->width\n"
                "#define __syncthreads() fake_->barrier()\n#define __syncthreads_or(x) fake_->any(x)\n"
                "#define __global__\n#define __device__\n#define __forceinline__ inline "
                "__attribute__((always_inline))\n"
                "#define __noinline__ __attribute__((noinline))\n#define __grid_constant__\n#define "
                "__threadfence_system()\n#define __launch_bounds__(...)\n#define __shared__ "
                "static\n#define asm(...)\n#define DYNAMIC_SHARED static char dynamic_[65536] "
                "__attribute__((aligned(64)));\n"
                "#define __syncwarp() fake_->barrier()\n#define atomicAdd(p, x) ({ __typeof__(*(p)) y_ = *(p); *(p) += "
                "(x); "
                "y_; })\n#define __popc __builtin_popcount\nstatic unsigned matched_[256];\n"
                "#define __match_any_sync(m, v) ({ unsigned y_ = (v), same_ = 0, first_ = threadIdx.x & ~31u; "
                "matched_[threadIdx.x] = y_; __syncthreads(); for (unsigned l_ = 0; l_ < 32; l_++) same_ |= "
                "(unsigned)(matched_[first_ + l_] == y_) << l_; __syncthreads(); same_; })\n"
                "#define atomicMin(p, x) (*(p) = *(p) < (x) ? *(p) : (x))\n"
                "static unsigned char shuffled_[256][8];\n"
                "#define SHUFFLED(v_, from) ({ __typeof__(v_) y_ = (v_); __builtin_memcpy(shuffled_[threadIdx.x], &y_, "
                "sizeof y_); "
                "__syncthreads(); __builtin_memcpy(&y_, shuffled_[from], sizeof y_); __syncthreads(); y_; })\n"
                "#define __shfl_down_sync(m, v_, h) SHUFFLED(v_, (threadIdx.x & 31) + (h) < 32 ? threadIdx.x + (h) : "
                "threadIdx.x)\n"
                "#define __shfl_xor_sync(m, v_, h) SHUFFLED(v_, threadIdx.x ^ (h))\n"
                "#define __ballot_sync(m, v_) ({ unsigned voted_ = 0, from_ = threadIdx.x & ~31u; "
                "matched_[threadIdx.x] = (v_) != 0; "
                "__syncthreads(); for (unsigned l_ = 0; l_ < 32; l_++) voted_ |= matched_[from_ + l_] << l_; "
                "__syncthreads(); "
                "voted_; })\n"
                "#define __shfl_sync(m, v_, lane) SHUFFLED(v_, (threadIdx.x & ~31u) + (lane))\n"
                "#define __align__(n) __attribute__((aligned(n)))\n"
                "#define TOGETHER(T, G) fake_->group(threadIdx.x / (T) * (T), T);\n"
                "#define AMONG(v_, n, from) ({ __typeof__(v_) y_ = (v_); const unsigned first_ = threadIdx.x / (n) * "
                "(n); "
                "__builtin_memcpy(shuffled_[threadIdx.x], &y_, sizeof y_); fake_->group(first_, n); "
                "__builtin_memcpy(&y_, shuffled_[first_ + (from)], sizeof y_); fake_->group(first_, n); y_; })\n"
                "#define PUT_16(p, s) __builtin_memcpy(p, &s, 16);\n#define PUT_8(p, s) __builtin_memcpy(p, &s, 8);\n"
                "#define PUT_32(p, s) __builtin_memcpy(p, &s, 32);\n#define PUT_64(p, s) __builtin_memcpy(p, &s, 64);\n"
                "#define PUT_LOCAL_8 PUT_8\n#define PUT_LOCAL_16 PUT_16\n#define PUT_LOCAL_32 PUT_32\n#define "
                "PUT_LOCAL_64 PUT_64\n"
                "#define GLOBAL(p)\n"
                "#define DOWN(T, v_, h, n) AMONG(v_, n, threadIdx.x % (n) + (h) < (n) ? threadIdx.x % (n) + (h) : "
                "threadIdx.x % (n))\n"
                "#define FIRST(T, v_, n) AMONG(v_, n, 0)\n"
                "#define fabsf(x) ((x) < 0 ? -(x) : (x))\n#define __fmaf_rn fmaf\n#define __fma_rn fma\n#define "
                "__fsqrt_rn sqrtf\n#define __dsqrt_rn sqrt\n"
                "#define __int_as_float(x) (((union { int i; float f; }){x}).f)\n"
                "#define __longlong_as_double(x) (((union { long long i; double f; }){x}).f)\n";

/* What else kernels call, for gcc and clang, then for tcc: functions of the maths library, and what it has no word for. Nor does it know
 * a pragma that stands in a macro. */
static const char builtins[] =
    "#define fmaf __builtin_fmaf\n#define fma __builtin_fma\n#define sqrtf __builtin_sqrtf\n"
    "#define sqrt __builtin_sqrt\n#define floorf __builtin_floorf\n#define floor __builtin_floor\n"
    "#define ceilf __builtin_ceilf\n#define ceil __builtin_ceil\n#define rintf __builtin_rintf\n"
    "#define rint __builtin_rint\n#define truncf __builtin_truncf\n#define trunc __builtin_trunc\n"
    "#define __clz(x) __builtin_clz(x)\n"
    "#define __umul64hi(a, b) ((unsigned long long)((unsigned __int128)(a) * (b) >> 64))\n";
static const char functions[] =
    "float fmaf(float, float, float), sqrtf(float), floorf(float), ceilf(float), rintf(float), truncf(float);\n"
    "double fma(double, double, double), sqrt(double), floor(double), ceil(double), rint(double), trunc(double);\n"
    "static inline int __clz(unsigned x) { int n = 32; for (; x; x >>= 1) n--; return n; }\n"
    "static inline int __builtin_popcount(unsigned x) { int n = 0; for (; x; x &= x - 1) n++; return n; }\n"
    "static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {\n"
    "  unsigned long long a0 = (unsigned)a, a1 = a >> 32, b0 = (unsigned)b, b1 = b >> 32, low = a1 * b0 + (a0 * b0 >> "
    "32);\n"
    "  return a1 * b1 + (low >> 32) + (((unsigned)low + a0 * b1) >> 32); }\n"
    "#define _Pragma(x)\n";

static const char launch[] = "// launch ";  /* stands in programs' texts alone */
static const char tiles[] = "#define OWN("; /* stands in products by tiles alone, each of which runs long */

/* Writes run_NAME and sizes_NAME for every kernel. */
static void write_runs(FILE *f, const char *text) {
  static const char printed[] = "(const u64 *block, i64 instances, const __grid_constant__ ";
  for (const char *at = text; (at = strstr(at, printed)); at++) {
    const char *from = at, *words = at + sizeof printed - 1;
    while (from > text && from[-1] != ' ') from--;
    fprintf(f,
            "void run_%.*s(fake_place *s, void **a) { fake_ = s; %.*s(*(const u64 **)a[0], *(i64 *)a[1], *(%.*s "
            "*)a[2]); }\n"
            "const unsigned sizes_%.*s[] = {8, 8, sizeof(%.*s), 0};\n",
            (int)(at - from), from, (int)(at - from), from, (int)strcspn(words, " "), words, (int)(at - from), from,
            (int)strcspn(words, " "), words);
  }
}

EXPORT nvrtcResult nvrtcVersion(int *major, int *minor) {
  *major = 13;
  *minor = 0;
  return 0;
}

EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *text, const char *name, int nheaders,
                                      const char *const *headers, const char *const *names) {
  (void)name, (void)nheaders, (void)headers, (void)names;
  *program = calloc(1, sizeof **program);
  if (*program) (*program)->text = strdup(text);
  return *program && (*program)->text ? 0 : 1;
}

/* Fills in the compiler's command, and gives what stands in front of the text. `quick`: with tcc. What is kept serves every machine that
 * the tests run on: one that has fma gets its usual companions, nothing of its own. */
static const char *compile_command(char *to, size_t n, const char *text, bool quick) {
  if (quick) {
    snprintf(to, n, "tcc -w -shared");
    return functions;
  }
  const char *effort = strstr(text, launch) ? "-Og" : "-O1";
  const char *machine = "";
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) machine = " -march=x86-64-v3";
#endif
  snprintf(to, n,
           "cc -std=gnu11 %s%s -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-strict-aliasing -w -fPIC "
           "-shared -nostdlib",
           effort, machine);
  return builtins;
}

/* Of the compiler's command and the text in two parts, by FNV-1a from different beginnings. */
static unsigned long long hash_of(const char *command, const char *front, const char *text, unsigned long long begin) {
  unsigned long long h = 14695981039346656037ull * begin;
  for (; *command; command++) h = (h ^ (unsigned char)*command) * 1099511628211ull;
  for (; *front; front++) h = (h ^ (unsigned char)*front) * 1099511628211ull;
  for (; *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211ull;
  return h;
}

/* One program is compiled at a time by those who ask for this. */
static int (*stop_)(void *, void *);
static void *stop_context;
EXPORT nvrtcResult nvrtcSetFlowCallback(nvrtcProgram p, int (*stop)(void *, void *), void *context) {
  (void)p;
  stop_context = context;
  stop_ = stop;
  return 0;
}

/* What is compiled, as one text: the words, the program, its entries. NULL without memory. */
static char *whole_text(char *program) {
  char *text = NULL;
  size_t bytes;
  for (char *at = program; (at = strstr(at, "extern \"C\"")); at++) memset(at, ' ', strlen("extern \"C\""));
  /* what a launch asks for of shared memory is as much as there can be */
  static const char dynamic[] = "extern __shared__", *const shared = "u64 shared_[6144];";
  bool asks = strstr(program, "extern __shared__ u64 shared_[]") != NULL;
  for (char *at = program; asks && (at = strstr(at, dynamic)); at++) memset(at + 7, ' ', strlen("__shared__"));
  FILE *f = open_memstream(&text, &bytes);
  if (!f) return NULL;
  fprintf(f, "%s%s\n%s\n", words, program, asks ? shared : "");
  write_runs(f, program);
  return fclose(f) == 0 ? text : NULL;
}

/* Reads an object into the program's image; false if there is none. */
static bool read_object(nvrtcProgram p, const char *path) {
  fake_image head;
  FILE *f = fopen(path, "rb");
  if (!f) return false;
  fseek(f, 0, SEEK_END);
  head.bytes = (size_t)ftell(f);
  rewind(f);
  memcpy(head.magic, fake_magic, sizeof head.magic);
  p->bytes = sizeof head + head.bytes;
  free(p->image);
  p->image = malloc(p->bytes);
  if (p->image) memcpy(p->image, &head, sizeof head);
  bool good = p->image && fread(p->image + sizeof head, 1, head.bytes, f) == head.bytes;
  fclose(f);
  return good;
}

static bool write_text(const char *path, const char *front, const char *text) {
  FILE *f = fopen(path, "w");
  bool good = f && fputs(front, f) >= 0 && fputs(text, f) >= 0;
  return f && fclose(f) == 0 && good;
}

/* Runs a command, to which the names of the object and of the text are added; true if it ended well. What it prints comes on stderr. */
static bool run_compiler(const char *command, char *object, char *path) {
  enum { MOST = 20 };
  char words[200], *argv[MOST + 4], *rest = NULL;
  int n = 0, status = 1;
  snprintf(words, sizeof words, "%s", command);
  for (char *w = strtok_r(words, " ", &rest); w && n < MOST; w = strtok_r(NULL, " ", &rest)) argv[n++] = w;
  argv[n++] = (char[]){"-o"}, argv[n++] = object, argv[n++] = path, argv[n] = NULL;
  pid_t pid;
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, 2, 1);
  bool good = posix_spawnp(&pid, argv[0], &files, NULL, argv, environ) == 0;
  posix_spawn_file_actions_destroy(&files);
  while (good && waitpid(pid, &status, 0) < 0) good = errno == EINTR;
  return good && status == 0;
}

/* Compiles in a folder of its own, below `cache` if something is kept: what is made becomes `kept` at once or not at all. */
static bool compile(nvrtcProgram p, const char *command, const char *front, const char *text, const char *cache,
                    const char *kept) {
  char folder[PATH_MAX], path[PATH_MAX + 8], object[PATH_MAX + 8];
  snprintf(folder, sizeof folder, "%s/fake-XXXXXX", cache ? cache : "/tmp");
  if (!mkdtemp(folder)) return false;
  snprintf(path, sizeof path, "%s/a.c", folder);
  snprintf(object, sizeof object, "%s/a.so", folder);
  bool good = write_text(path, front, text) && run_compiler(command, object, path) && read_object(p, object);
  if (!good || !cache || rename(object, kept) != 0) unlink(object);
  unlink(path);
  rmdir(folder);
  return good;
}

/* Takes what was kept, or compiles. */
static bool make_image(nvrtcProgram p, const char *text, bool quick) {
  char kept[PATH_MAX], command[200];
  const char *front = compile_command(command, sizeof command, text, quick), *cache = getenv("FAKE_CACHE");
  if (cache && strlen(cache) > sizeof kept - 64) cache = NULL;
  if (cache) {
    mkdir(cache, 0777);
    snprintf(kept, sizeof kept, "%s/%016llx%016llx.so", cache, hash_of(command, front, text, 1),
             hash_of(command, front, text, 2));
    if (read_object(p, kept)) return true;
  }
  /* The caller may be of the lowest class, and get no processor where other tests are busy. Who may, leaves it. */
  sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0});
  return compile(p, command, front, text, cache, kept);
}

EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int noptions, const char *const *options) {
  (void)noptions, (void)options;
  for (int i = 0; i < 2000 && getenv("FAKE_SLOW"); i++, usleep(10000)) /* 20 s, or until it is stopped */
    if (stop_ && stop_(stop_context, NULL)) return 12;
  char *text = whole_text(p->text);
  if (!text) return 1;
  bool quick = strstr(text, launch) && !strstr(text, tiles);
  bool good = (quick && make_image(p, text, true)) || make_image(p, text, false);
  free(text);
  return good ? 0 : 6;
}

EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t *bytes) {
  (void)p;
  *bytes = 1;
  return 0;
}
EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char *text) {
  (void)p;
  *text = 0;
  return 0;
}
EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t *bytes) {
  *bytes = p->bytes;
  return 0;
}
EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char *cubin) {
  memcpy(cubin, p->image, p->bytes);
  return 0;
}
EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram *p) {
  free((*p)->text);
  free((*p)->image);
  free(*p);
  *p = NULL;
  return 0;
}
