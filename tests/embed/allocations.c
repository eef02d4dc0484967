/* Every allocation of the process fails in turn, the library's own and libc's, in whatever thread: nothing crashes, nothing hangs, a
 * result is right or there is an error. Unlike mem_fail_at this reaches what compilers allocate without a VM.
 *
 * Each failure happens in a forked child. `allocations FIRST EVERY` runs every EVERY-th from FIRST on, here each fifth: all
 * of them take minutes. A third and fourth argument: in one mode, and without a child. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lang/quern.h"

#if defined(__SANITIZE_ADDRESS__) || !defined(__GLIBC__)
int main(void) { return 0; } /* the allocator is another's */
#else

static atomic_long count = 0, fail_at = 0; /* 0: none */

static int fails(void) { return atomic_fetch_add(&count, 1) + 1 == atomic_load(&fail_at); }

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void *malloc(size_t n) {
  if (!fails()) return __libc_malloc(n);
  errno = ENOMEM;
  return NULL;
}
void *calloc(size_t n, size_t size) {
  if (!fails()) return __libc_calloc(n, size);
  errno = ENOMEM;
  return NULL;
}
void *realloc(void *p, size_t n) {
  if (!fails()) return __libc_realloc(p, n);
  errno = ENOMEM;
  return NULL;
}
int posix_memalign(void **p, size_t align, size_t n) {
  if (fails()) return ENOMEM;
  *p = __libc_memalign(align, n);
  return *p ? 0 : ENOMEM;
}
void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t from) {
  if (!fails()) return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, from);
  errno = ENOMEM;
  return MAP_FAILED;
}

static const char program[] =
    "fn layer(p, x) = tanh(x @ p.w + p.b)\n"
    "fn loss(p, x, y) { let h = layer(p, x)\n mean((softmax(h) - y) * (h - y)) + 0.01 * sum(p.w * p.w) }\n"
    "let p = {w: full((4, 3), 0.5), b: zeros(3)}\n"
    "let x = reshape(f32(arange(20)), 5, 4) / 20\n"
    "let y = ones(5, 3)\n"
    "for i in 0..6 { let g = grad(loss)(p, x, y)\n p = tree_map(fn(a, b) a - 0.1 * b, p, g) }\n"
    "fn strange(a, i) { let b = concat((a[i:], cumsum(a)[1:]))\n b[0] = 2.0\n sum(sort(b)) + max(b) }\n"
    "let t = 0.0\n"
    "for i in 0..6 { t += float(strange(x[:, 1], 2)) }\n"
    "let s = map((\"a\", \"b\", \"c\"), fn(w) \"{w}{len(w)}\")\n"
    "let e = try { assert(false, \"no\") } catch e { e.message }\n"
    "float(sum(p.w) + sum(p.b)) + t + len(s)";

enum { FINE = 0, REFUSED = 1, WRONG = 2, ENTERED = 3 };
static double wanted;

static int run(qn_jit_mode jit, double *result) {
  qn_config config;
  qn_config_init(&config);
  config.jit = jit;
  config.threads = 2;
  config.capabilities = QN_CAP_ALL & ~(QN_CAP_SPAWN | QN_CAP_READ | QN_CAP_WRITE);
  qn_vm *vm = qn_vm_open(&config);
  if (!vm) return REFUSED;
  int status = REFUSED;
  qn_value r = qn_nil();
  if (qn_set_tunable(vm, "jit.hot", "1") == QN_OK &&
      qn_eval(vm, "program.qn", program, sizeof program - 1, &r) == QN_OK) {
    *result = qn_as_float(r);
    status = FINE;
  } else if (!*qn_error_id(vm) || !*qn_error_message(vm)) {
    status = ENTERED; /* an error without a name */
  } else if (getenv("SHOW")) {
    fputs(qn_error_report(vm), stderr);
  }
  qn_release(vm, r);
  qn_value again; /* the VM goes on */
  if (qn_eval(vm, "again.qn", "sum([1, 2, 3])", 14, &again) == QN_OK) {
    if (qn_as_int(again) != 6) status = WRONG;
    qn_release(vm, again);
  }
  qn_vm_close(vm);
  return status;
}

static int child(qn_jit_mode jit, long n) {
  alarm(20);
  double x = 0;
  atomic_store(&count, 0);
  atomic_store(&fail_at, n);
  int status = run(jit, &x);
  atomic_store(&fail_at, 0);
  return status == FINE && x != wanted ? WRONG : status;
}

int main(int argc, char **argv) {
  long first = argc > 1 ? atol(argv[1]) : 1, every = argc > 2 ? atol(argv[2]) : 5;
  int only = argc > 3 ? atoi(argv[3]) : -1;
  static const qn_jit_mode modes[] = {QN_JIT_OFF, QN_JIT_SYNC, QN_JIT_ON};
  if (argc > 4) return run(QN_JIT_OFF, &wanted) == FINE ? child(modes[only], first) : 2; /* for a debugger */
  int bad = 0;
  double x = 0;
  if (run(QN_JIT_OFF, &wanted) != FINE) return 2;
  for (int m = 0; m < 3; m++) {
    if (only >= 0 && only != m) continue;
    atomic_store(&count, 0);
    if (run(modes[m], &x) != FINE || x != wanted) return 2;
    long total = atomic_load(&count), refused = 0;
    for (long n = first; n <= total; n += every) {
      fflush(stdout);
      pid_t pid = fork();
      if (pid == 0) _exit(child(modes[m], n));
      int status;
      waitpid(pid, &status, 0);
      refused += WIFEXITED(status) && WEXITSTATUS(status) == REFUSED;
      if (WIFEXITED(status) && WEXITSTATUS(status) <= REFUSED) continue;
      bad++;
      printf("mode %d, allocation %ld of %ld: %s %d\n", (int)modes[m], n, total, WIFEXITED(status) ? "exit" : "signal",
             WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    }
    printf("mode %d: %ld allocations, %ld refused\n", (int)modes[m], total, refused);
  }
  return bad != 0;
}
#endif
