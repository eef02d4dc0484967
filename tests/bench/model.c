/* What the price of a schedule is worth (jit/kernel/sched_price.c): kernels, all candidates of each, what they should take and what they take. One
 * line of JSON for each candidate; model.py makes tables of them.
 *
 *   model FOLDER [--kernel NAME] [--random N] [--from SEED] [--ms MILLISECONDS] [--gpu 1]
 *         [--graphs FILE]
 *
 * Kernels are those of the graphs in FOLDER (tests/golden) and in the file (model.py writes it), and of N random graphs. A candidate is compiled as kernels
 * are, and run by one thread on buffers of the recorded sizes: the least of many short runs, since others share the machine. On a GPU many
 * launches follow each other, which nobody waits for until the last one; kernels with checks, which are waited for, are left out. */
#include <dlfcn.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "jit/cpu/compile.h"
#include "jit/gpu/state.h"
#include "jit/kernel/emit.h"
#include "jit/kernel/launch.h"
#include "tests/unit/kernel_case.h"

static const int64_t tune[] = {
#define TUNABLE(symbol, name, def, min, max, meaning) def,
#include "lang/tunables.def"
#undef TUNABLE
};

enum { CANDIDATES_MOST = 48, TURNS = 5, GPU_0 = FAMILY_gpu * DEVICE_NUMBERS, FRESH = 1 << 16 };

typedef struct bench {
  qn_vm *vm;
  gpu_stream *gpu; /* NULL: on the CPU */
  const char *only, *place;
  double seconds; /* of a candidate */
  int kernels;
} bench;

typedef struct candidate {
  schedule_result s;
  uint64_t hash;
  int64_t *ints;
  qk_phase *code; /* on the CPU, */
  void *kept;
  device_program there; /* and on a GPU */
  double best;          /* nanoseconds */
} candidate;

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Compiles programs as jit/cpu/compile.c does. The object is kept under the hash of its text. NULL: that failed. */
static void *compiled(const bench *b, const l_program *const *programs, const char *const *names, uint32_t n) {
  text_buf text = {0};
  char path[400], source[420], command[4000];
  emit_c(programs, names, n, NULL, &text);
  if (text.failed) return NULL;
  uint64_t h = 1469598103934665603u;
  for (size_t i = 0; i < text.len; i++) h = (h ^ (unsigned char)text.text[i]) * 1099511628211u;
  snprintf(path, sizeof path, "%s/%016llx.so", b->place, (unsigned long long)h);
  snprintf(source, sizeof source, "%s/%016llx.c", b->place, (unsigned long long)h);
  void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!object) {
    FILE *f = fopen(source, "w");
    if (f) {
      fwrite(text.text, 1, text.len, f);
      fclose(f);
    }
    int flags, at = snprintf(command, sizeof command, "cc");
    const char *const *flag = compile_flags(&flags);
    for (int i = 0; i < flags; i++) at += snprintf(command + at, sizeof command - (size_t)at, " %s", flag[i]);
    snprintf(command + at, sizeof command - (size_t)at, " -w %s -o %s", source, path);
    if (f && system(command) == 0) object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) fprintf(stderr, "%s\n", command);
    remove(source);
  }
  text_free(&text);
  return object;
}

static bool compile_for_gpu(const bench *b, candidate *all, uint32_t n) {
  device_program *list[CANDIDATES_MOST];
  for (uint32_t i = 0; i < n; i++) {
    all[i].there = (device_program){.program = all[i].s.program, .hash = all[i].hash};
    list[i] = &all[i].there;
    if (!l_launches(all[i].s.program)) return false;
  }
  return gpu_kernels.ready(b->vm, GPU_0, list, n, true);
}

static bool compile_for_cpu(const bench *b, candidate *all, uint32_t n, void **object) {
  const l_program *programs[CANDIDATES_MOST];
  const char *names[CANDIDATES_MOST];
  char texts[CANDIDATES_MOST][8];
  for (uint32_t i = 0; i < n; i++) {
    snprintf(texts[i], sizeof texts[i], "k%u", i);
    programs[i] = all[i].s.program;
    names[i] = texts[i];
  }
  *object = compiled(b, programs, names, n);
  for (uint32_t i = 0; i < n && *object; i++) {
    uint32_t phases = emit_phases(programs[i]);
    all[i].code = calloc(phases + 1, sizeof *all[i].code);
    for (uint32_t j = 0; j <= phases; j++) {
      char symbol[32];
      snprintf(symbol, sizeof symbol, "%s_%u", names[i], j);
      void *f = dlsym(*object, symbol);
      memcpy(&all[i].code[j], &f, sizeof f);
    }
    all[i].kept = bvm_code_make(programs[i], bvm_loops_pick());
  }
  return *object != NULL;
}

/* Makes the buffers of a case; on a GPU they lie there. False: there is no room. */
static bool buffers_begin(const bench *b, const kernel_case *c, void *buffers[KERNEL_BUFFERS]) {
  void *host[KERNEL_BUFFERS];
  bool ok = true;
  kernel_case_begin(c, b->gpu ? host : buffers);
  if (!b->gpu) return true;
  if (!gpu_enter(b->gpu)) return false;
  for (uint32_t i = 0; i < c->n; i++) {
    CUdeviceptr at = ok ? gpu_alloc(b->vm, b->gpu, kernel_case_bytes(c, i) + 1) : 0;
    ok = at && gpu_write(b->vm, b->gpu, at, host[i], kernel_case_bytes(c, i));
    buffers[i] = (void *)(uintptr_t)at;
  }
  gpu_leave(b->gpu);
  kernel_case_end(c, host);
  return ok;
}

static void buffers_end(const bench *b, const kernel_case *c, void *buffers[KERNEL_BUFFERS]) {
  if (!b->gpu) {
    kernel_case_end(c, buffers);
    return;
  }
  if (!gpu_enter(b->gpu)) return;
  for (uint32_t i = 0; i < c->n; i++)
    if (buffers[i]) gpu_free(b->vm, b->gpu, (CUdeviceptr)(uintptr_t)buffers[i], kernel_case_bytes(c, i) + 1);
  gpu_leave(b->gpu);
}

/* Nanoseconds of one of `times` runs in a row. */
static double run(const bench *b, const kernel_case *c, candidate *x, void *const *buffers, int times) {
  kernel_failure f;
  double from = now_ns();
  for (int i = 0; i < times; i++)
    if (b->gpu ? gpu_kernels.launch(b->vm, GPU_0, &x->there, buffers, x->ints, c->scalars) != DEVICE_DONE
               : !kernel_launch(b->vm, x->s.program, &x->kept, x->code, buffers, x->ints, c->scalars, &f))
      error_clear(b->vm); /* a check: its time counts */
  if (b->gpu && gpu_enter(b->gpu)) {
    if (!gpu_wait(b->vm, b->gpu, "a kernel")) error_clear(b->vm);
    gpu_leave(b->gpu);
  }
  return (now_ns() - from) / times;
}

/* The shortest of some runs in a row, for `ns` nanoseconds. */
static void measure(const bench *b, const kernel_case *c, candidate *x, void *const *buffers, double ns) {
  double end = now_ns() + ns, once = run(b, c, x, buffers, 1);
  int times = b->gpu ? (int)(1e6 / once) + 4 : once < 2000 ? 16 : 1;
  do {
    double took = run(b, c, x, buffers, times);
    if (took < x->best) x->best = took;
  } while (now_ns() < end);
}

static void measure_kernel(bench *b, k_kernel *k, const char *name, uint64_t seed) {
  kernel_case c;
  char why[300], full[200];
  candidate all[CANDIDATES_MOST];
  schedule_target target = b->gpu ? TARGET_GPU : TARGET_CPU;
  uint32_t n = 0, most = 1;
  uint64_t chosen = 0;
  schedule_result s;
  const char *reason;
  snprintf(full, sizeof full, "%s/%s", name, k->name);
  const kernel_case_options data = {.most = (int64_t)1 << 30, .indices = 2, .fresh = FRESH};
  if ((b->gpu && k->nchecks) || (b->only && !strstr(full, b->only)) ||
      !kernel_case_of(&c, k, NULL, seed, &data, why, sizeof why)) {
    k_free(k);
    return;
  }
  for (uint32_t pick = 0; pick <= most && n < CANDIDATES_MOST; pick++) {
    if (!schedule(k, target, &(schedule_how){.grain = tune[TUNE_par_grain], .pick = pick, .processors = 1}, &s,
                  &reason))
      break;
    most = s.candidates;
    uint64_t hash = l_hash(s.program);
    bool known = false;
    for (uint32_t i = 0; i < n; i++) known |= all[i].hash == hash;
    if (!pick) chosen = hash;
    if (known || !s.program->schedule) {
      l_free(s.program);
      continue;
    }
    all[n] = (candidate){.s = s, .hash = hash, .ints = kernel_case_ints(&c, &s), .best = 1e18};
    n++;
  }
  void *object = NULL, *buffers[KERNEL_BUFFERS] = {0};
  bool ready = n > 1 && (b->gpu ? compile_for_gpu(b, all, n) : compile_for_cpu(b, all, n, &object));
  if (ready && buffers_begin(b, &c, buffers)) {
    for (int turn = 0; turn < TURNS; turn++)
      for (uint32_t i = 0; i < n; i++) measure(b, &c, &all[i], buffers, b->seconds * 1e9 / TURNS);
    b->kernels++;
    for (uint32_t i = 0; i < n; i++)
      printf("{\"kernel\": \"%s\", \"seed\": %llu, \"points\": %lld, \"schedule\": \"%s\", \"predicted\": %.0f, "
             "\"measured\": %.0f, \"chosen\": %s}\n",
             full, (unsigned long long)seed, (long long)k_points(k, ((k_mask)1 << k->naxes) - 1),
             all[i].s.program->schedule, all[i].s.price, all[i].best, all[i].hash == chosen ? "true" : "false");
    fflush(stdout);
  }
  if (ready) buffers_end(b, &c, buffers);
  for (uint32_t i = 0; i < n; i++) {
    bvm_code_free(all[i].kept);
    free(all[i].code);
    free(all[i].ints);
    l_free(all[i].s.program);
  }
  if (object) dlclose(object);
  kernel_case_free(&c);
}

static void measure_graph(bench *b, graph *made, const char *name, uint64_t seed) {
  graph *g = graph_simplify(made, NULL);
  const char *why = NULL;
  fusion f;
  alike memo = {0};
  uint8_t *awkward = g ? calloc(g->n, 1) : NULL;
  bool ok =
      awkward && fuse(g, b->gpu ? TARGET_GPU : TARGET_CPU, tune, FUSE_ALL, awkward, NULL, NULL, &memo, NULL, &f, &why);
  alike_free(&memo);
  for (uint32_t i = 0; ok && i < f.n; i++) {
    if (f.groups[i].kind != FUSE_KERNEL) continue;
    k_kernel *k = fuse_lower(&f, i, &why);
    if (k) measure_kernel(b, k, name, seed);
  }
  if (awkward) fusion_free(&f);
  free(awkward);
  graph_free(g);
  graph_free(made);
}

static void measure_text(bench *b, const char *text, const char *name) {
  char why[300];
  graph *g = graph_parse(text, why, sizeof why);
  if (!g)
    fprintf(stderr, "%s: %s\n", name, why);
  else
    measure_graph(b, g, name, 1);
}

static char *file_text(const char *path) {
  FILE *f = fopen(path, "rb");
  if (!f) return NULL;
  char *text = calloc(1, 1 << 20);
  if (text) text[fread(text, 1, (1 << 20) - 1, f)] = 0;
  fclose(f);
  return text;
}

/* The file has graphs, each behind a line "# name". */
static void measure_file(bench *b, const char *path) {
  char *text = file_text(path);
  for (char *at = text; at && *at;) {
    char name[100] = "";
    char *next = strstr(at, "\n# ");
    if (next) *next = 0;
    sscanf(at, "# %99[^\n]", name);
    char *body = strchr(at, '\n');
    if (body) measure_text(b, body + 1, name);
    at = next ? next + 1 : NULL;
  }
  free(text);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

int main(int argc, char **argv) {
  bench b = {.seconds = 0.02, .place = "build/bench-model"};
  uint64_t random = 100, from = 1;
  bool gpu = false;
  const char *graphs = NULL;
  const char *folder = argc > 1 ? argv[1] : ".";
  for (int i = 2; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--kernel") == 0) b.only = argv[i + 1];
    if (strcmp(argv[i], "--random") == 0) random = strtoull(argv[i + 1], NULL, 10);
    if (strcmp(argv[i], "--from") == 0) from = strtoull(argv[i + 1], NULL, 10);
    if (strcmp(argv[i], "--graphs") == 0) graphs = argv[i + 1];
    if (strcmp(argv[i], "--gpu") == 0) gpu = atoi(argv[i + 1]) != 0;
    if (strcmp(argv[i], "--ms") == 0) b.seconds = atof(argv[i + 1]) / 1000;
  }
  mkdir(b.place, 0755);
  qn_config config;
  qn_config_init(&config);
  config.threads = 1;
  config.jit = QN_JIT_SYNC;
  b.vm = gpu ? qn_vm_open(&config) : vm_open(&config);
  if (!b.vm || (gpu ? !vm_use_device(b.vm, GPU_0) : !cpu_open(b.vm))) return 1;
  if (gpu) {
    b.vm->tune[TUNE_gpu_vm] = 0; /* no interpreter */
    b.gpu = gpu_stream_of(b.vm, GPU_0);
  }
  char path[500];
  if (graphs) measure_file(&b, graphs);
  struct dirent **files;
  int n = scandir(folder, &files, NULL, by_name);
  for (int i = 0; i < n; i++) {
    size_t len = strlen(files[i]->d_name);
    if (len > 6 && strcmp(files[i]->d_name + len - 6, ".graph") == 0) {
      snprintf(path, sizeof path, "%s/%s", folder, files[i]->d_name);
      char *text = file_text(path);
      files[i]->d_name[len - 6] = 0;
      if (text) measure_text(&b, text, files[i]->d_name);
      free(text);
    }
    free(files[i]);
  }
  if (n >= 0) free(files);
  int64_t most = 0;
  for (uint64_t seed = from; seed < from + random; seed++) {
    static const int64_t sizes[] = {4, 16, 50, 64, 100, 256, 300, 512, 768, 1000, 1024, 2000, 4096};
    rng r = {seed * 7 + 5};
    random_options o = {.nodes = 3 + rng_below(&r, 10), .floats_only = false, .most = gpu ? 60000000 : 3000000};
    most = 0;
    while (most < (gpu ? 50000 : 1000) || most > o.most) {
      for (int i = 0; i < 4; i++) o.shape[i] = i < 2 && rng_below(&r, 2) ? 1 : sizes[rng_below(&r, 13)];
      most = o.shape[0] * o.shape[1] * o.shape[2] * o.shape[3];
    }
    graph *g = random_graph(seed, &o);
    for (int i = 1 + rng_below(&r, 3); i > 0; i--) random_norm(&r, g);
    graph_output(g, g->n - 1);
    char name[40];
    snprintf(name, sizeof name, "random %llu", (unsigned long long)seed);
    measure_graph(&b, g, name, seed);
  }
  if (gpu) {
    qn_vm_close(b.vm);
  } else {
    cpu_close(b.vm);
    vm_close(b.vm);
  }
  return 0;
}
