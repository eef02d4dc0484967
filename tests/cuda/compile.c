/* Compiles printed CUDA C with NVRTC, on any machine: no GPU is needed.
 *
 *   compile LIBNVRTC [--keep FOLDER] SOURCE...
 *
 *   files PATH...      L programs in texts: the goldens, and what QUERN_LOG=kernels writes
 *   random FIRST N     random L programs (l_random.h), which use every construct
 *   blocks FIRST N     random programs over blocks (l_blocks_random.h)
 *   graphs FIRST N     the kernels of the plans of random graphs (graph_random.h)
 *   sort, compress, recurrence   the kernels of these files of jit/gpu
 *   vm CLASS           the block VM's interpreter for a class of dtypes, by number
 *   ops CLASS          the one-op kernels of the ops of a class (POINTWISE, REDUCE ..) over dtypes, layouts and attributes
 *
 * Equal programs are compiled once; some go into one unit, which is compiled to a cubin for sm_90. Status 1, with the compiler's
 * messages, if a unit fails, and if a source has no programs. --keep writes the texts there. All but `files` is compiled the quick
 * way: whether a text is right CUDA C does not depend on how hard the compiler optimizes, and the goldens are compiled as for users.
 *
 * In the folder that the environment's NVRTC_TAKEN names lies an empty file for each text that the compiler took with the same options:
 * it is not asked again (but with --keep). */
#include "tests/cuda/nvrtc.h"

#include <time.h>

#include "jit/gpu/block_vm.h"
#include "jit/gpu/state.h"
#include "jit/kernel/emit.h"
#include "jit/kernel/plan.h"
#include "tests/unit/graph_random.h"
#include "tests/unit/kernel_text.h"
#include "tests/unit/l_blocks_random.h"
#include "tests/unit/l_random.h"

enum { UNIT = 16 };

/* ---- the programs to compile ---------------------------------------------------------------------------------------- */

typedef struct programs {
  l_program **all;
  uint64_t *hashes;
  uint32_t n, cap;
  uint32_t left_out; /* CPUs' own */
} programs;

static void fatal(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(2);
}

/* Products that a TILE stores by itself are CPUs' (l.h): a plan for a GPU has none, but a log of a script that ran on the CPU has. */
static bool is_for_cpus(const l_program *p) {
  for (uint32_t i = 0; i < p->ntiles; i++)
    if (!p->tiles[i].out) return true;
  return false;
}

/* Takes over a program; one that is there already is dropped. */
static void take(programs *s, l_program *p) {
  if (p->nblocks) { /* executors get programs without blocks */
    l_program *without = l_without_blocks(p);
    if (!without) fatal("no memory");
    l_free(p);
    p = without;
  }
  uint64_t hash = l_hash(p);
  if (is_for_cpus(p)) {
    s->left_out++;
    l_free(p);
    return;
  }
  for (uint32_t i = 0; i < s->n; i++)
    if (s->hashes[i] == hash) {
      l_free(p);
      return;
    }
  if (s->n == s->cap) {
    s->cap = s->cap ? 2 * s->cap : 64;
    s->all = realloc(s->all, s->cap * sizeof *s->all);
    s->hashes = realloc(s->hashes, s->cap * sizeof *s->hashes);
    if (!s->all || !s->hashes) fatal("no memory");
  }
  s->hashes[s->n] = hash;
  s->all[s->n++] = p;
}

/* ---- texts ------------------------------------------------------------------------------------------------------------ */

/* A program begins with a line `program ...` and ends with a line `}`; what stands between programs is left out. */
static bool take_file(programs *s, const char *path) {
  FILE *f = fopen(path, "rb");
  char *text = NULL, why[300] = "";
  size_t len = 0, cap = 0;
  for (size_t k = 1; f && k > 0; len += k) {
    if (cap - len < 1 << 16) text = realloc(text, cap = 2 * cap + (1 << 17));
    if (!text) fatal("no memory");
    k = fread(text + len, 1, cap - len - 1, f);
  }
  if (!f || !text) {
    fprintf(stderr, "cannot read %s\n", path);
    return false;
  }
  fclose(f);
  text[len] = 0;
  bool ok = true;
  for (char *line = text, *start = NULL, *next; *line && ok; line = next) {
    next = line + strcspn(line, "\n");
    if (*next) next++;
    if (strncmp(line, "program ", 8) == 0) start = line;
    if (!start || strncmp(line, "}\n", 2) != 0) continue;
    char after = *next;
    *next = 0;
    l_program *p = l_parse(start, why, sizeof why);
    *next = after;
    start = NULL;
    ok = p != NULL;
    if (p) take(s, p);
  }
  if (!ok) fprintf(stderr, "%s: %s\n", path, why);
  free(text);
  return ok;
}

/* ---- plans ------------------------------------------------------------------------------------------------------------ */

static bool take_graph(programs *s, uint64_t seed) {
  static const int64_t tune[] = {
#define TUNABLE(symbol, name, def, min, max, meaning) def,
#include "lang/tunables.def"
#undef TUNABLE
  };
  char why[300] = "";
  random_options o = {.symbolic = seed % 2 != 0, .nodes = 24};
  graph *g = random_graph(seed, &o);
  plan *p = g ? plan_make(g, TARGET_GPU, tune, NULL, why, sizeof why) : NULL;
  if (!p) {
    fprintf(stderr, "graph %llu: %s\n", (unsigned long long)seed, why);
    return false;
  }
  for (uint32_t k = 0; k < p->nkernels; k++) {
    text_buf t = {0}; /* a copy through the text form: the plan owns its programs */
    l_print(p->kernels[k].program, &t);
    text_add(&t, "", 1);
    l_program *copy = t.failed ? NULL : l_parse(t.text, why, sizeof why);
    text_free(&t);
    if (!copy) fatal(why);
    take(s, copy);
  }
  plan_free(p);
  return true;
}

/* ---- one-op kernels ----------------------------------------------------------------------------------------------------- */

static const uint8_t dtypes[] = {QN_bool, QN_u8, QN_i8, QN_i16, QN_i32, QN_i64, QN_f16, QN_bf16, QN_f32, QN_f64};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/* An operand in memory order, or with its axes the other way round. */
static op_operand operand(uint8_t dtype, int rank, const int64_t *shape, bool transposed) {
  op_operand o = {.dtype = dtype, .rank = (uint8_t)rank};
  int64_t stride = 1;
  for (int j = 0; j < rank; j++) {
    int a = transposed ? j : rank - 1 - j;
    o.shape[a] = shape[a];
    o.strides[a] = stride;
    stride *= shape[a];
  }
  return o;
}

/* The kernel of a call, if the op takes these operands as they are. */
static void take_op(programs *s, op_id op, const op_attr *attr, const op_operand *in, int nin) {
  graph_type types[OP_CALL_OPERANDS] = {0};
  op_types inferred;
  op_refusal refusal;
  op_key key;
  int64_t ints[OP_CALL_INTS];
  for (int i = 0; i < nin; i++) {
    types[i] = (graph_type){.dtype = in[i].dtype, .rank = in[i].rank};
    memcpy(types[i].shape, in[i].shape, sizeof types[i].shape);
  }
  if (!op_infer(NULL, op, types, nin, attr, &inferred, &refusal)) return;
  if (op_rows[op].klass != CLASS_RANDOM && nin && inferred.compute != (qn_dtype)in[nin - 1].dtype &&
      inferred.compute != (qn_dtype)in[0].dtype)
    return;
  op_call call = {.op = op, .nin = nin, .attr = attr, .in = in};
  call.out = (op_operand){.dtype = inferred.result.dtype, .rank = inferred.result.rank};
  memcpy(call.out.shape, inferred.result.shape, sizeof call.out.shape);
  if (!op_call_key(&call, &key, ints)) return;
  const char *why;
  l_program *p = kernel_for_op(&key, TARGET_GPU, &why);
  if (!p) fatal(op_rows[op].name);
  take(s, p);
}

static void take_pointwise(programs *s, op_id op) {
  static const int64_t shape[] = {5, 300};
  int arity = op_rows[op].arity;
  for (int d = 0; d < DTYPES; d++) /* the other layout is the same code for all dtypes: f32 shows it */
    for (int layout = 0; layout < (dtypes[d] == QN_f32 ? 2 : 1); layout++) {
      op_operand in[3];
      for (int i = 0; i < arity; i++) in[i] = operand(dtypes[d], 2, shape, layout && i == 0);
      if (layout && arity > 1) in[arity - 1] = operand(dtypes[d], 1, shape + 1, false);
      if (op == OP_where) in[0].dtype = QN_bool;
      op_attr attr = {0};
      for (int to = 0; to < (op == OP_cast ? DTYPES : 1); to++) {
        if (op == OP_cast) attr.dtype = dtypes[to];
        take_op(s, op, &attr, in, arity);
      }
    }
}

static void take_reduction(programs *s, op_id op) {
  static const int64_t shapes[][2] = {{300, 40}, {7, 5}, {20, 70000}};
  bool scan = op_rows[op].klass == CLASS_SCAN;
  for (int d = 0; d < DTYPES; d++)
    for (int k = 0; k < (dtypes[d] == QN_f32 ? 3 : 1); k++)
      for (int axes = 1; axes < (scan ? 3 : 4); axes++) {
        op_operand in = operand(dtypes[d], 2, shapes[k], false);
        op_attr attr = {.axes = (uint8_t)axes, .flags = (uint8_t)(scan ? (d + k) % 4 : 0)};
        take_op(s, op, &attr, &in, 1);
      }
}

static void take_index(programs *s, op_id op) {
  static const int64_t shape[] = {50, 30}, index[] = {7}, along[] = {7, 30}, value[] = {7, 30};
  for (int d = 0; d < DTYPES; d++)
    for (int wide = 0; wide < 2; wide++) {
      uint8_t type = wide ? QN_i64 : QN_i32;
      bool gathers = op == OP_gather || op == OP_gather_add;
      op_operand in[3] = {operand(dtypes[d], 2, shape, false),
                          gathers ? operand(type, 2, along, false) : operand(type, 1, index, false),
                          operand(dtypes[d], 2, value, false)};
      op_attr attr = {.dtype = dtypes[d], .n = 1, .d = {1}};
      if (gathers) attr = (op_attr){.axes = 1};
      if (op == OP_iota) attr = (op_attr){.dtype = dtypes[d], .axes = 2, .n = 2, .d = {50, 30}};
      int nin = op == OP_iota ? 0 : op == OP_index || op == OP_gather ? 2 : 3;
      for (int mode = SCATTER_SET; mode <= (op == OP_scatter ? SCATTER_MAX : SCATTER_SET); mode++) {
        attr.mode = (uint8_t)mode;
        take_op(s, op, &attr, in, nin);
      }
    }
}

static void take_product(programs *s, op_id op) {
  static const int64_t x[][3] = {{40, 70}, {3, 40, 70}, {70}, {4000}, {3, 5000}, {2000, 70}};
  static const int64_t y[][3] = {{70, 50}, {3, 70, 50}, {70}, {4000}, {5000, 2}, {70, 2000}};
  static const int ranks[][2] = {{2, 2}, {3, 3}, {1, 1}, {1, 1}, {2, 2}, {2, 2}};
  for (int d = 0; d < DTYPES; d++)
    for (int k = 0; k < 6; k++)
      for (int transposed = 0; transposed < 2; transposed++) {
        op_operand in[2] = {operand(dtypes[d], ranks[k][0], x[k], transposed),
                            operand(dtypes[d], ranks[k][1], y[k], false)};
        take_op(s, op, NULL, in, 2);
      }
}

static void take_random(programs *s, op_id op) {
  for (int d = 0; d < DTYPES; d++) {
    op_operand keys[3] = {{.dtype = QN_i64}, {.dtype = QN_i64}, {.dtype = QN_i64}};
    op_attr attr = {.dtype = dtypes[d], .n = 2, .d = {30, 70}};
    take_op(s, op, &attr, keys, 3);
  }
}

static bool take_ops(programs *s, const char *klass) {
  static const char *const names[] = {
      [CLASS_POINTWISE] = "POINTWISE", [CLASS_REDUCE] = "REDUCE", [CLASS_SCAN] = "SCAN",
      [CLASS_INDEX] = "INDEX",         [CLASS_DOT] = "DOT",       [CLASS_RANDOM] = "RANDOM"};
  uint32_t before = s->n;
  for (int op = 0; op < OP_COUNT; op++) {
    uint8_t k = op_rows[op].klass;
    if (k >= sizeof names / sizeof *names || !names[k] || strcmp(names[k], klass) != 0) continue;
    switch ((op_class)k) {
    case CLASS_POINTWISE: take_pointwise(s, (op_id)op); break;
    case CLASS_REDUCE:
    case CLASS_SCAN: take_reduction(s, (op_id)op); break;
    case CLASS_DOT: take_product(s, (op_id)op); break;
    case CLASS_RANDOM: take_random(s, (op_id)op); break;
    default:
      if (op != OP_compress && op != OP_nonzero && op != OP_slice_put) take_index(s, (op_id)op);
      break;
    }
  }
  return s->n > before;
}

/* ---- units -------------------------------------------------------------------------------------------------------------- */

static uint64_t hash_text(uint64_t h, const char *text) {
  do h = (h ^ (unsigned char)*text) * 1099511628211u; /* FNV-1a, the end included */
  while (*text++);
  return h;
}

/* The file that says that this text was taken; false: nobody wants to know. */
static bool taken_path(const char *text, bool quick, char *path, size_t size) {
  const char *folder = getenv("NVRTC_TAKEN");
  uint64_t hash[2] = {14695981039346656037u, 7809847782465536322u};
  for (int k = 0; k < 2; k++) {
    for (size_t i = 0; i < sizeof nvrtc_options / sizeof *nvrtc_options - !quick; i++)
      hash[k] = hash_text(hash[k], nvrtc_options[i]);
    hash[k] = hash_text(hash[k], text);
  }
  if (folder)
    snprintf(path, size, "%s/%016llx%016llx", folder, (unsigned long long)hash[0], (unsigned long long)hash[1]);
  return folder && *folder;
}

static bool compiles(const nvrtc *n, const char *name, const char *keep, uint32_t from, bool quick, text_buf *out) {
  text_add(out, "", 1);
  if (out->failed) fatal("no text");
  if (keep) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s_%u.cu", keep, name, from);
    FILE *f = fopen(path, "w");
    if (f) fputs(out->text, f);
    if (f) fclose(f);
  }
  size_t size = 0;
  char taken[600];
  bool told = !keep && taken_path(out->text, quick, taken, sizeof taken);
  FILE *before = told ? fopen(taken, "r") : NULL;
  if (before) {
    fclose(before);
    printf("%s %u: ok before\n", name, from);
    return true;
  }
  char *cubin = nvrtc_cubin(n, name, out->text, quick, &size);
  printf("%s %u: %s, %zu bytes\n", name, from, cubin ? "ok" : "FAILED", size);
  fflush(stdout);
  FILE *now = told && cubin ? fopen(taken, "w") : NULL;
  if (now) fclose(now);
  if (cubin && keep) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s_%u.cubin", keep, name, from);
    FILE *f = fopen(path, "wb");
    if (f) fwrite(cubin, 1, size, f);
    if (f) fclose(f);
  }
  free(cubin);
  return cubin != NULL;
}

/* The time is that of this thread's processor. */
static bool interpreter(const nvrtc *n, const char *keep, uint32_t number) {
  if (number >= BLOCK_VM_CLASSES) fatal("no such class");
  text_buf out = {0};
  block_vm_text((block_vm_class)number, &out);
  clock_t start = clock();
  bool ok = compiles(n, "vm", keep, number, true, &out);
  printf("  %zu bytes of text, %.2f s\n", out.len, (double)(clock() - start) / CLOCKS_PER_SEC);
  text_free(&out);
  return ok;
}

/* Kernels that are texts of their own, by name; -1: there is none. */
static int own_named(const char *what) {
  const char *name;
  for (int i = 0; i < TEXT_COUNT; i++)
    if (gpu_text_source((gpu_text)i, &name) && strcmp(what, name) == 0) return i;
  return -1;
}

static bool own(const nvrtc *n, int which, const char *keep) {
  const char *name;
  text_buf out = {0};
  text_adds(&out, gpu_text_source((gpu_text)which, &name));
  bool ok = compiles(n, name, keep, 0, false, &out);
  text_free(&out);
  return ok;
}

static bool unit(const nvrtc *n, const char *name, const char *keep, const programs *s, uint32_t from, uint32_t count) {
  char texts[UNIT][16];
  const char *names[UNIT];
  text_buf out = {0};
  for (uint32_t i = 0; i < count; i++) {
    snprintf(texts[i], sizeof texts[i], "k%u", from + i);
    names[i] = texts[i];
  }
  emit_cuda((const l_program *const *)s->all + from, names, count, &out);
  bool ok = compiles(n, name, keep, from, strcmp(name, "files") != 0, &out);
  text_free(&out);
  return ok;
}

int main(int argc, char **argv) {
  const char *keep = NULL, *what = "";
  nvrtc n;
  programs s = {0};
  if (argc < 3 || !nvrtc_open(&n, argv[1])) fatal("usage: compile LIBNVRTC [--keep FOLDER] SOURCE...");
  bool ok = true;
  for (int i = 2; i < argc; i++) {
    bool last = i + 1 == argc;
    if (strcmp(argv[i], "--keep") == 0 && !last) {
      keep = argv[++i];
    } else if (strcmp(argv[i], "files") == 0) {
      what = "files";
    } else if ((strcmp(argv[i], "random") == 0 || strcmp(argv[i], "blocks") == 0 || strcmp(argv[i], "graphs") == 0) &&
               i + 2 < argc) {
      what = argv[i];
      uint64_t first = strtoull(argv[i + 1], NULL, 10), count = strtoull(argv[i + 2], NULL, 10);
      rnd_info info;
      for (uint64_t seed = first; seed < first + count; seed++) {
        if (*what == 'r')
          take(&s, rnd_program(seed, &info));
        else if (*what == 'b')
          take(&s, block_random_program(seed, &info));
        else
          ok &= take_graph(&s, seed);
      }
      i += 2;
    } else if (strcmp(argv[i], "vm") == 0 && !last) {
      what = "vm";
      ok &= interpreter(&n, keep, (uint32_t)strtoul(argv[++i], NULL, 10));
    } else if (own_named(argv[i]) >= 0) {
      what = argv[i];
      ok &= own(&n, own_named(what), keep);
    } else if (strcmp(argv[i], "ops") == 0 && !last) {
      what = argv[++i];
      ok &= take_ops(&s, what);
    } else if (strcmp(what, "files") == 0) {
      ok &= take_file(&s, argv[i]);
    } else {
      fatal(argv[i]);
    }
  }
  if (!s.n && s.left_out) printf("%u programs for CPUs alone\n", s.left_out);
  if (!s.n && !s.left_out && strcmp(what, "vm") != 0 && own_named(what) < 0) fatal("no programs");
  for (uint32_t from = 0; from < s.n; from += UNIT)
    ok &= unit(&n, what, keep, &s, from, s.n - from < UNIT ? s.n - from : UNIT);
  for (uint32_t i = 0; i < s.n; i++) l_free(s.all[i]);
  free(s.all);
  free(s.hashes);
  return ok ? 0 : 1;
}
