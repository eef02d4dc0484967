/* Exceptions of a host leave the library from every place where one of its callbacks may run, thousands of times: what the frames held
 * that are left is given back, so memory stays what it was, the VM's and the process's.
 *
 * An exception is a forced unwind: it runs the cleanups on its way, as one of C++ does. */
#define _GNU_SOURCE
#include <check.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "interp/state.h"
#include "jit/trace/vmap.h"
#include "tests/unit/unwind.h"

/* ---- memory of the process ------------------------------------------------------------------------------------------------ */

#if defined(__SANITIZE_ADDRESS__) || !defined(__GLIBC__)
static long process_bytes(void) { return 0; } /* the allocator is another's */
#else
static atomic_long allocated;
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);
static void *count(void *p) {
  if (p) atomic_fetch_add(&allocated, (long)malloc_usable_size(p));
  return p;
}
static void uncount(void *p) {
  if (p) atomic_fetch_sub(&allocated, (long)malloc_usable_size(p));
}
void *malloc(size_t n) { return count(__libc_malloc(n)); }
void *calloc(size_t n, size_t size) { return count(__libc_calloc(n, size)); }
void *realloc(void *p, size_t n) {
  long before = p ? (long)malloc_usable_size(p) : 0;
  void *to = __libc_realloc(p, n);
  if (to || !n) atomic_fetch_sub(&allocated, before);
  return count(to);
}
int posix_memalign(void **p, size_t align, size_t n) {
  *p = count(__libc_memalign(align, n));
  return *p ? 0 : 12;
}
void free(void *p) {
  uncount(p);
  __libc_free(p);
}
static long process_bytes(void) { return atomic_load(&allocated); }
#endif

/* What the cleanups of files without any would free goes with the VM's pools. Under AddressSanitizer there are none. */
static void leaks_count(bool they_do) {
#ifdef __SANITIZE_ADDRESS__
  they_do ? __lsan_enable() : __lsan_disable();
#else
  (void)they_do;
#endif
}

/* ---- leaving --------------------------------------------------------------------------------------------------------------- */

static void leave(void) { _Unwind_ForcedUnwind(&exception, stop, NULL); }

typedef struct leaver {
  qn_vm *vm;
  int warnings; /* the first so many lines to stderr pass */
  int round;
  bool armed; /* "armed" was printed: the next "tap" leaves */
} leaver;

static void on_write(void *user, int stream, const char *text, size_t len) {
  leaver *l = user;
  if (stream == 1 && memmem(text, len, "leave", 5)) leave();
  if (stream == 1 && memmem(text, len, "armed", 5)) l->armed = true;
  if (stream == 1 && l->armed && memmem(text, len, "tap", 3)) {
    l->armed = false;
    leave();
  }
  if (stream == 2 && l->warnings >= 0 && !l->warnings--) leave();
}

/* Modules whose names say how they are left. */
static void on_free(void *user, qn_source *source) {
  (void)user;
  if (strcmp(source->own, "freed") == 0) leave();
}

static bool on_resolve(void *user, const char *from, const char *name, qn_source *out) {
  (void)user, (void)from;
  static const struct {
    const char *name, *text;
  } modules[] = {{"asked", ""},
                 {"freed", "let x = 1\nlet xs = (1, 2, 3)"},
                 {"runs", "let xs = (1, 2, 3)\nfn f(x) = x * 2\nprint(\"leave\")"},
                 {"inner", "let xs = [1.0, 2.0]\nimport \"runs\" as r\nlet y = 2"},
                 {"warns", "fn f(x) {\n  let list = (1, 2)\n  x == list }\nlet xs = (1, 2)"},
                 {"good", "fn f(x, g) { let y = x * 2\n g(y)\n y }\nlet log = fn(x) x"}};
  for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
    if (strcmp(modules[i].name, name) != 0) continue;
    if (i == 0) leave();
    *out = (qn_source){.key = modules[i].name,
                       .text = modules[i].text,
                       .len = strlen(modules[i].text),
                       .free = on_free,
                       .own = (void *)(uintptr_t)modules[i].name};
    return true;
  }
  return false;
}

/* So a leak of 28 bytes a round is seen; with compiler threads, whose jobs are in use as long as they take, one of 220. */
enum { ROUNDS = 600, SLACK = 8 << 10, SLACK_THREADS = 64 << 10 };

typedef struct setting {
  qn_jit_mode jit;
  bool modules, prompt;
  bool may_stay;             /* perhaps it is not left in all modes */
  int warnings;              /* -1: all pass */
  const char *log;           /* channels, or NULL */
  void (*before)(leaver *l); /* each round */
} setting;

static bool __attribute__((noinline)) left_by(qn_vm *vm, const setting *s, const char *text) {
  leave_to = __builtin_frame_address(0);
  if (setjmp(left)) return true;
  qn_status status =
      s->prompt ? qn_eval_prompt(vm, text, strlen(text), NULL) : qn_eval(vm, "test.qn", text, strlen(text), NULL);
  if (status == QN_OK) return false;
  if (getenv("LEAVE_SHOW")) {
    fprintf(stderr, "FAILS %s\n", qn_error_report(vm));
    return false;
  }
  ck_abort_msg("%s\n%s", text, qn_error_report(vm));
}

/* On one line, for LEAVE_SHOW, which tells what each text leaves instead of failing. */
static const char *flat(const char *text) {
  static char line[200];
  snprintf(line, sizeof line, "%s", text);
  for (char *c = line; *c; c++)
    if (*c == '\n') *c = ';';
  return line;
}

static const char *const mode_names[] = {
    [QN_JIT_ON] = "on", [QN_JIT_OFF] = "off", [QN_JIT_SYNC] = "sync", [QN_JIT_VERIFY] = "verify"};

/* Leaves the text again and again: the most memory of each half of the rounds is the same, as texts and modules are swept now and then. */
static void leaves_nothing(const setting *s, const char *text) {
  leaver l = {.warnings = -1};
  qn_config config;
  qn_config_init(&config);
  config.write = on_write;
  config.resolve = s->modules ? on_resolve : NULL;
  config.jit = s->jit;
  config.user = &l;
  qn_vm *vm = l.vm = qn_vm_open(&config);
  ck_assert_ptr_nonnull(vm);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "1"), QN_OK);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.turns", "2"), QN_OK);
  if (s->log) ck_assert(log_parse(s->log, &vm->log));
  size_t most[2] = {0, 0};
  long process[2] = {0, 0};
  bool gone = false;
  const qn_value *bottom = vm->sp;
  for (l.round = 0; l.round < ROUNDS; l.round++) {
    if (s->before) s->before(&l);
    l.warnings = s->warnings;
    gone |= left_by(vm, s, text);
    l.warnings = -1;
    ck_assert_msg(vm->sp == bottom && !vm->owned && !vm->rec && !vm->run && !vm->host, "%s (%s)", text,
                  mode_names[s->jit]);
    int half = l.round >= ROUNDS / 2;
    if (mem_stats_of(vm)->live > most[half]) most[half] = mem_stats_of(vm)->live;
    if (process_bytes() > process[half]) process[half] = process_bytes();
  }
  const char *mode = mode_names[s->jit];
  if (getenv("LEAVE_SHOW"))
    fprintf(stderr, "%-6s %8zu %+8ld process %10ld %+8ld  %s\n", mode, most[0], (long)(most[1] - most[0]), process[0],
            process[1] - process[0], flat(text));
  if (!gone && !s->may_stay && getenv("LEAVE_SHOW")) fprintf(stderr, "NEVER LEFT: %s\n", flat(text));
  ck_assert_msg(gone || s->may_stay || getenv("LEAVE_SHOW"), "%s (%s): it was never left", text, mode);
  if (!getenv("LEAVE_SHOW")) {
    bool threads = s->jit == QN_JIT_ON; /* they come and go in their own time */
    ck_assert_msg(most[1] < most[0] + (threads ? SLACK_THREADS : SLACK), "%s (%s): %zu bytes, then %zu", text, mode,
                  most[0], most[1]);
    ck_assert_msg(threads || process[1] < process[0] + 4 * SLACK, "%s (%s): %ld bytes of the process, then %ld", text,
                  mode, process[0], process[1]);
  }
  l.warnings = -1;
  static const char after[] = "sum(grad(fn(x) sum(x * x))([1.0, 2.0]))";
  ck_assert_msg(qn_eval(vm, "after.qn", after, strlen(after), NULL) == QN_OK, "%s\n%s", text, qn_error_report(vm));
  qn_vm_close(vm);
}

static void in_all_modes(setting s, const char *const *texts, size_t n) {
  leaks_count(false);
  for (qn_jit_mode jit = QN_JIT_ON; jit <= QN_JIT_VERIFY; jit++)
    for (size_t i = 0; i < n; i++) {
      s.jit = jit;
      leaves_nothing(&s, texts[i]);
    }
  leaks_count(true);
}
#define IN_ALL_MODES(setting, texts) in_all_modes(setting, texts, sizeof texts / sizeof *texts)

/* `out(v)` leaves and would give v; what is around it is in progress then. */
#define OUT "fn out(v) {\n  print(\"leave\")\n  v }\n"
#define F "fn f(x) {\n  let y = x * 2\n  print(\"leave\")\n  sum(y * y) }\n"

START_TEST(transforms_are_left) {
  static const char *const texts[] = {
      F "grad(f)(ones(4))",
      F "value_and_grad(f)(ones(4))",
      F "jvp(f, ones(4), ones(4))",
      F "vjp(f, ones(4))",
      F "vmap(f)(ones(3, 4))",
      F "jacobian(f)(ones(4))",
      F "hessian(f)(ones(4))",
      F "checkpoint(f)(ones(4))",
      F "jit(f)(ones(4))",
      F "nojit(f)(ones(4))",
      F "custom_grad(f, fn(ct, x) ct * x)(ones(4))",
      F "graph(f, ones(4))",
      F "code(f, ones(4))",
      F "explain(f, ones(4))",
      "rewrite(graph(fn(x) x * 2 + 1, ones(3)), fn(n, xs) {\n  print(\"leave\")\n  nil })",
      F "jit(fn(x) x * 2, backend: fn(g) {\n  print(\"leave\")\n  g })(ones(4))",
      "jit(fn(x) x * 2, backend: fn(g) fn(x) {\n  print(\"leave\")\n  g(x) })(ones(4))",
  };
  IN_ALL_MODES(((setting){.warnings = -1}), texts);
}
END_TEST

START_TEST(nested_transforms_are_left) {
  static const char *const texts[] = {
      F "grad(fn(x) grad(f)(x)[0])(ones(4))",
      F "vmap(grad(f))(ones(3, 4))",
      F "grad(fn(x) sum(vmap(f)(x)))(ones(3, 4))",
      F "jvp(grad(f), ones(4), ones(4))",
      F "grad(fn(x) jvp(f, x, ones(4))[1])(ones(4))",
      F "grad(checkpoint(f))(ones(4))",
      F "jit(grad(f))(ones(4))",
      F "vmap(vmap(f))(ones(2, 3, 4))",
      F "jacobian(fn(x) vjp(f, x)[0] * x)(ones(4))",
      F "grad(fn(x) sum(jacobian(f)(x)))(ones(4))",
      F "vmap(jit(f))(ones(3, 4))",
      F "explain(grad(f), ones(4))",
      F "graph(value_and_grad(f), ones(4))",
  /* within the backward pass */
#define RULE "let h = custom_grad(fn(x) x * 2, fn(ct, x) {\n  print(\"leave\")\n  ct * 2 })\n"
      RULE "grad(fn(x) sum(h(x * 3)))(ones(4))",
      RULE "hessian(fn(x) sum(h(x * x)))(ones(4))",
      RULE "vmap(grad(fn(x) sum(h(x * 3))))(ones(3, 4))",
      RULE "grad(checkpoint(fn(x) sum(h(x * 3))))(ones(4))",
      RULE "value_and_grad(fn(x) sum(checkpoint(h)(x) * x))(ones(4))",
  };
  IN_ALL_MODES(((setting){.warnings = -1}), texts);
}
END_TEST

/* Effects that are steps of a call that has been recorded before, so that a plan makes them. */
START_TEST(taps_are_left) {
#define TAPS "for i in 0..3 { f(ones(4) * i) }\nprint(\"armed\")\nf(ones(4))"
  static const char *const texts[] = {
      "fn f(x) {\n  let y = x * 2\n  print(\"tap\", y, sum(y), x, y + 1, y + 2)\n  sum(y * y) }\n" TAPS,
      "fn f(x) {\n  let y = x.T * 2\n  let s = sum(y)\n  print(\"tap\", s)\n  (y * s, y @ x, s) }\n" TAPS,
      "fn f(x) {\n  let g = fn(x) {\n    print(\"tap\", x * 2)\n    sum(x * x) }\n  grad(g)(x) + vmap(fn(x) x)(x) "
      "}\n" TAPS,
  };
  /* Without --jit on, under which each round leaves a plan to be made, faster than they are made. */
  leaks_count(false);
  for (qn_jit_mode jit = QN_JIT_OFF; jit <= QN_JIT_VERIFY; jit++)
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
      leaves_nothing(&(setting){.warnings = -1, .jit = jit}, texts[i]);
  leaks_count(true);
}
END_TEST

START_TEST(vmap_are_left) {
  static const char *const texts[] = {
      "vmap(fn(x) {\n  let y = x * 2\n  if x > 1 {\n    print(\"leave\")\n    y = x * 3 }\n  y })([0.5, 1.5, 2.5])",
      "vmap(fn(x) if x > 1 { x } else {\n  print(\"leave\")\n  x * 2 })([0.5, 1.5, 2.5])",
      "vmap(fn(x) {\n  let n = 0\n  while x < 5 {\n    x = x * 2\n    n += 1\n    print(\"leave\") }\n  x })([0.5, "
      "1.5])",
      "vmap(fn(x) {\n  for i in 0..3 {\n    x = x * 2\n    if x > 2 { break }\n    print(\"leave\") }\n  x })([0.5, "
      "1.5])",
      "vmap(fn(x) {\n  for i in (1, 2, 3) {\n    x = x * i\n    if x > 2 { continue }\n    print(\"leave\") }\n  x "
      "})([0.5, 1.5])",
      OUT "vmap(fn(x) {\n  for r in [[1.0, 2.0], [3.0, 4.0]] {\n    if x > 2 { return x }\n    x = x + sum(out(r)) }\n "
          " x })([0.5, 1.5])",
      OUT "vmap(fn(x) x > 1 and out(x) > 2)([0.5, 1.5])",
      OUT "vmap(fn(x) x > 1 or out(x) > 2)([0.5, 1.5])",
      OUT "fn g(x) { if x > 1 { return x * 2 }\n  let y = x * 3\n  while y < 9 { y = y + out(1.0) }\n  y "
          "}\nvmap(g)([0.5, 1.5])",
      OUT "vmap(fn(x) { if x > 1 { if x > 2 { x = out(x) } else { x = x * 3 } }\n  x })([0.5, 1.5, 2.5])",
      OUT "vmap(fn(x) { try { if x > 1 { out(x) } } catch e { 0 }\n  x })([0.5, 1.5])",
      OUT "grad(fn(x) sum(vmap(fn(y) if y > 1 { out(y * y) } else { y })(x)))([0.5, 1.5])",
      OUT "vmap(fn(x) { while x < 9 { x = x + 1\n  while x < 5 { x = x + out(1.0) } }\n  x })([0.5, 1.5])",
  };
  IN_ALL_MODES(((setting){.warnings = -1}), texts);
}
END_TEST

START_TEST(statements_are_left) {
  static const char *const texts[] = {
      OUT "for x in (1, 2, 3) { out(x) }",
      OUT "for x in [[1.0, 2.0], [3.0, 4.0]] { out(x) }",
      OUT "for c in \"a{1}b\" { out(c) }",
      OUT "for x in 0..3 { out(x) }",
      OUT "for x in map(0..3, fn(i) (i, \"a{i}\")) { let (a, b) = x\n  out(b) }",
      OUT "let i = 0\nwhile i < 3 { i += 1\n  let s = \"a{i}\"\n  out(s) }",
      OUT "let s = \"x{1}\"\nif len(s) > 1 { let y = (s, s)\n  out(y) } else { out(s) }",
      OUT "try { let s = (\"x{1}\", 2)\n  out(s) } catch e { e.id }",
      OUT "try { assert(false, \"own {1}\") } catch e { out(e) }",
      OUT "fn g(xs) { for x in xs { if x > 1 { return out((x, x)) } } }\ng((1, 2, 3))",
      OUT "fn g(x) { for i in 0..4 { x = x * 2\n  if sum(x) > 4 { out(x) } }\n  x }\ng(ones(3))",
      OUT "fn g(x) { let i = 0\n  while i < 4 { x = x * 2\n  i += 1\n  if i == 3 { out(x) } }\n  x }\ng(ones(3))",
      OUT "let (x, l) = (ones(3), (\"a{1}\", 2))\nfor i in 0..9 { x = x * 2\n  l = (l[0], out(x)) }",
      OUT "let (x, i) = (ones(3), 0)\nwhile i < 9 { i += 1\n  x = x * 2\n  if i == 7 { out(x) } }",
      OUT "fn g(x) { let l = (x, \"a{1}\")\n  for r in (x, x, x, x, x) { l = (l[0] + r, \"b{out(1)}\") }\n  l "
          "}\ng(ones(3))",
      OUT "let xs = (1, 2)\nxs[out(0)] = (1, 2)",
      OUT "let xs = [1, 2]\nxs[out(0)] = out(2)",
      OUT "let xs = ((1, 2), (3, 4))\nxs[0][1] = out(\"a\")",
      OUT "let x = zeros(5)\nlet i = [0, 1]\nx[i] = out(ones(2))",
      OUT "let x = zeros(5)\nx[[0, 1]] += out(ones(2))",
      OUT "fn g() { let i = [0, 1]\n  let x = zeros(5)\n  x[i] = out(ones(2))\n  x }\ng()",
      OUT "let r = {a: (1, 2)}\nr.a[0] = out(\"b{1}\")",
      OUT "let r = {a: {b: \"x{1}\"}}\nr.a.b = r.a.b + out(\"y\")",
      OUT "let (a, b) = (\"a{1}\", out(2))",
      OUT "let r = {a: 1}\n(r[\"k{1}\"], r.a) = (1, out(2))",
      OUT "let s = \"a{1}\"\ns = s + out(\"b\")\ns += out(\"c\")",
      OUT "fn g() { let xs = (1, 2)\n  xs = append(xs, out(3))\n  xs }\ng()",
  };
  IN_ALL_MODES(((setting){.warnings = -1}), texts);
}
END_TEST

START_TEST(expressions_are_left) {
  static const char *const texts[] = {
      OUT "(1, \"a{1}\", out(2))",
      OUT "(..(1, \"a{1}\"), out(2))",
      OUT "[ones(3), out(ones(3))]",
      OUT "[..(1, 2), out(2)]",
      OUT "[[1.0, 2.0], [3.0, out(4.0)]]",
      OUT "{a: \"a{1}\", b: out(2)}",
      OUT "{..{a: (1, \"a{1}\")}, b: out(2)}",
      OUT "let t = \"a{1} {out(2)} b\"",
      OUT "let t = (1, \"a{1}\") + (out(2), 3)",
      OUT "let t = ones(3) + out(ones(3))",
      OUT "let t = (ones(3) * 2) @ (ones(3) + out(1.0))",
      OUT "let t = ones(3) == out(ones(3))",
      OUT "let t = \"a{1}\" == out(\"a\")",
      OUT "let t = (1, (2, \"a{1}\"))[out(1)]",
      OUT "let t = zeros(3, 4)[1:out(3), 1]",
      OUT "let t = zeros(3, 4)[out(1), [0, 1]]",
      OUT "let t = {a: (1, 2)}[out(\"a\")]",
      OUT "let t = fn(a = out(\"a{1}\"), b = 2) a",
      OUT "let t = fn(z = (1, \"a{1}\"), a = out(2)) a",
      OUT "let t = (\"a{1}\", 2).map(fn(x) out(x))",
      OUT "let t = concat((ones(3), out(ones(3))))",
      OUT "let t = where(ones(3) > 0, ones(3) * 2, out(zeros(3)))",
      OUT "let t = maximum(ones(3) * 2, out(1.0))",
      OUT "let t = sum(ones(3, 3) * 2, axis: out(1))",
      OUT "let t = reshape(ones(4) * 2, 2, out(2))",
      OUT "let t = (ones(4) * 2).reshape(2, out(2))",
      OUT "let t = (ones(3) * 2).sum(axis: out(0))",
      OUT "let t = split(\"a {1} b\", out(\" \"))",
      OUT "let t = join(split(\"a {1} b\", \" \"), out(\" \"))",
      OUT "let t = print(\"a{1}\", out(2), to: \"std{1}out\")",
      OUT "fn g(a, ..rest) = rest\nlet t = g(\"a{1}\", (1, 2), out(2))",
      OUT "fn g(a, k = 1) = a\nlet t = g(..(\"a{1}\",), k: out(2))",
      OUT "fn g(a, k = 1) = a\nlet t = g(k: \"a{1}\", a: out(2))",
      OUT "let t = f32(out(ones(2)))",
      OUT "let t = f32([1, out(2)])",
      OUT "let t = -(ones(3) * out(2.0))",
      OUT "let t = not (ones(3) * out(2.0))[0] > 0",
      OUT "let t = ones(1) > 0 and out(true)",
      OUT "let t = (out(1)..4)",
      OUT "fn g(x: f32[n]) -> f32[n + out(0)] { x * 2 }\nlet t = g(ones(3))",
      OUT "let t = grad(fn(x) sum(x * 2) + 0 * out(1.0), wrt: 0)(ones(3))",
      OUT "let t = jit(fn(x, k = 1) out(x))(ones(3), k: \"a{1}\")",
      OUT "let t = range(out(3))",
  };
  IN_ALL_MODES(((setting){.warnings = -1}), texts);
}
END_TEST

START_TEST(builtins_that_call_are_left) {
  static const char *const texts[] = {
      OUT "map((1, 2, 3), fn(x) if x == 3 { out((x, x)) } else { (x, x) })",
      OUT "map(\"abc{1}\", fn(c) if c == \"c\" { out(c) } else { c })",
      OUT "map([[1.0], [2.0], [3.0]], fn(r) if sum(r) > 2 { out(r) } else { r })",
      OUT "filter(map(0..9, fn(i) (i, \"a{i}\")), fn(x) if x[0] == 3 { out(true) } else { true })",
      OUT "fold((1, 2, 3), fn(s, x) if x == 3 { out(s) } else { s + (x, \"a{x}\") }, ())",
      OUT "tree_map(fn(x) out(x * 2), {a: (ones(2), 1.0), b: {c: 2.0}})",
      OUT "tree_map(fn(x, y) if y == 2.0 { out(x) } else { x * 2 }, {a: (ones(2), 1.0), b: {c: 2.0}}, {a: (1.0, 1.0), "
          "b: {c: 2.0}})",
      OUT "sort((\"b{1}\", \"a{1}\", \"c\"), by: fn(s) if s == \"c\" { out(s) } else { s })",
      OUT "grad(fn(x) sum(array(map((1.0, 2.0), fn(k) out(k)))) * sum(x))(ones(3))",
      OUT "grad(fn(x) sum(fold((1.0, 2.0), fn(s, k) s + out(k) * x, x)))(ones(3))",
      OUT "grad(fn(p) sum(tree_map(fn(x) out(x) * 2, p).a))({a: ones(3), b: ones(2)})",
      OUT "vmap(fn(x) sum(array(map((1.0, 2.0), fn(k) out(k) * x))))(ones(3))",
      "assert(try { print(\"leave\") } catch _ { false }, \"a{1}\")",
      "plot([1.0, 2.0, 3.0], title: \"leave\")",
      "hist([1.0, 2.0, 3.0], title: \"leave\")",
      "show(ones(4, 4), title: \"leave\")",
      "for x in progress(map(0..3, fn(i) (i, \"a{i}\"))) { print(\"leave\", x) }",
      "print((1, \"a{1}\"), to: \"stdout\")\nprint(\"leave {(1, 2)}\")",
  };
  IN_ALL_MODES(((setting){.warnings = -1}), texts);
}
END_TEST

START_TEST(imports_are_left) {
  static const char *const texts[] = {
      "let x = (1, 2)\nimport \"asked\" as a",
      "import \"runs\" as a",
      "let t = (1, \"a{1}\")\nimport \"inner\" as a",
      "import \"good\" as g\ng.f(ones(3), fn(y) print(\"leave\"))",
      "import \"good\" as g\ngrad(fn(x) sum(g.f(x, fn(y) print(\"leave\"))))(ones(3))",
      "import nn\nlet t = nn.relu(ones(3))\nprint(\"leave\")",
  };
  IN_ALL_MODES(((setting){.modules = true, .warnings = -1}), texts);
  static const char *const once[] = {"import \"freed\" as a"};
  setting drops = {.modules = true, .warnings = -1};
  IN_ALL_MODES(drops, once);
}
END_TEST

/* ---- files that change ---- */

static char folder[64];

static void write_file(const char *name, const char *format, int i) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, "w");
  ck_assert_ptr_nonnull(f);
  fprintf(f, format, i);
  fclose(f);
}

static void change(leaver *l) {
  write_file("m.qn",
             l->round % 2 ? "let xs = (1, %d)\nfn f(x) = x\n" : "let xs = (1, %d)\nfn f(x) = x\nprint(\"leave\")\n",
             l->round);
}

START_TEST(files_that_change_are_left) {
  snprintf(folder, sizeof folder, "/tmp/quern-leave-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(folder));
  char import[160], told[160];
  snprintf(import, sizeof import, "import \"%s/m.qn\" as m", folder);
  leaks_count(false);
  for (qn_jit_mode jit = QN_JIT_ON; jit <= QN_JIT_VERIFY; jit++)
    for (int first = 0; first < 2; first++) { /* a first import, and one of a file that has changed */
      setting s = {.jit = jit, .prompt = true, .warnings = -1, .before = change};
      s.prompt = !first;
      s.warnings = -1;
      leaves_nothing(&s, import);
    }
  /* left while it is told of */
  snprintf(told, sizeof told, "import \"%s/m.qn\" as m\nprint(\"leave\")", folder);
  setting s = {.jit = QN_JIT_ON, .prompt = true, .warnings = 0, .before = change};
  leaves_nothing(&s, told);
  leaks_count(true);
  snprintf(told, sizeof told, "%s/m.qn", folder);
  unlink(told);
  rmdir(folder);
}
END_TEST

/* ---- logs and warnings ---- */

START_TEST(logs_are_left) {
  static const char *const texts[] = {
      "fn f(x) { let y = x * 2 + 1\n  sum(y) }\nfor i in 0..4 { f(ones(4)) }",
      "fn f(x) { if sum(x) > 3 { x * 2 } else { x } }\nfor i in 0..4 { f(ones(3 + i)) }",
      "grad(fn(x) sum(x * x))(ones(4))",
      "vmap(fn(x) x * 2 + 1)(ones(4))",
      "fn g() { let xs = [1.0, 2.0]\n  let ys = xs\n  xs[0] = 3.0\n  (xs, ys) }\ng()",
      "jit(fn(x) sum(x.T * 2))(ones(3, 4).T)",
      "fn f(x) { let y = x[1:]\n  y * 2 }\nfor i in 0..4 { let xs = (1, \"a{i}\")\n  f(ones(3, 4).T) }",
      "map((1, 2, 3), fn(i) { let xs = [1.0, 2.0]\n  let ys = xs\n  xs[0] = 3.0\n  (xs, ys) })",
  };
  for (int line = 0; line < 4; line++)
    IN_ALL_MODES(((setting){.may_stay = true, .warnings = line, .log = "all"}), texts);
}
END_TEST

START_TEST(warnings_are_left) {
  static const char *const texts[] = {
      "let t = ones(2).shape == [2]\nprint(\"leave\")",
      "fn g(x) = x == \"1\"\nlet t = map((1, 2), fn(x) (x, g(x)))\nprint(\"leave\")",
  /* within the backward passes of a Jacobian, where nothing is printed: of the function, and of its pullback */
#define WARNS                                                                                                          \
  "fn g(x) = x == \"1\"\nlet h = custom_grad(fn(x) x * 2, fn(ct, x) {\n  let _a = (g(1), g(2))\n  ct * 2 })\n"         \
  "let h2 = custom_grad(fn(x) x * 3, fn(ct, x) h(ct) * 1.5)\n"
      WARNS "jacobian(fn(x) concat((h(x), x)))(ones(4))",
      WARNS "jacobian(fn(x) concat((h2(x), x)))(ones(4))",
  };
  IN_ALL_MODES(((setting){.warnings = 0}), texts);
  /* While parts that depend on data are captured, some of which only a capture runs: an arm whose other one has left the turn or the
   * function, and the rest of a function. */
#define CALLS "fn g(n) = n == \"1\"\nfn w(x) { let _a = (g(1), g(2))\n x * 2 }\n"
  static const char *const parts[] = {
      CALLS "fn f(x) {\n if sum(x) > 1 { return x }\n let y = w(x) + 1\n y }\nf(ones(4))",
      CALLS "fn f(x) {\n if sum(x) > 9 { return x }\n if sum(x) > 1 { x = w(x) }\n x + 1 }\nf(ones(4))",
      CALLS "fn f(x) {\n for i in 0..40 {\n x = x * 2\n if sum(x) > 9 { break }\n x = w(x) + i }\n x }\nf(ones(4))",
      CALLS "fn f(x) = sum(x) > 1 and sum(w(x)) > 3\nf(ones(4))",
  };
  IN_ALL_MODES(((setting){.warnings = 0, .may_stay = true}), parts);
}
END_TEST

int main(void) {
  Suite *s = suite_create("leave");
  const struct {
    TCase *t;
    const TTest *f;
  } cases[] = {
      {tcase_create("transforms"), transforms_are_left},
      {tcase_create("nested_transforms"), nested_transforms_are_left},
      {tcase_create("taps"), taps_are_left},
      {tcase_create("lanes"), vmap_are_left},
      {tcase_create("statements"), statements_are_left},
      {tcase_create("expressions"), expressions_are_left},
      {tcase_create("builtins"), builtins_that_call_are_left},
      {tcase_create("imports"), imports_are_left},
      {tcase_create("files"), files_that_change_are_left},
      {tcase_create("logs"), logs_are_left},
      {tcase_create("warnings"), warnings_are_left},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tcase_set_timeout(cases[i].t, 120);
    tcase_add_test(cases[i].t, cases[i].f);
    suite_add_tcase(s, cases[i].t);
  }
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
