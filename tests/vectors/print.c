/* Prints the C source of L programs as the product would compile it, for run.py.
 *
 *   vectors_print flags  the compiler's options, one a line
 *   vectors_print PATH.. one unit of all programs in these texts: the goldens, and what QUERN_LOG=kernels writes
 *
 * Equal programs are printed once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/cpu/compile.h"
#include "jit/kernel/emit.h"
#include "tests/unit/kernel_text.h"

enum { MOST = 4096 };
static const l_program *all[MOST];
static const char *names[MOST];
static uint64_t hashes[MOST];
static uint32_t n;

static void fatal(const char *path, const char *what) {
  fprintf(stderr, "%s: %s\n", path, what);
  exit(2);
}

static void take(const char *path, const char *text) {
  char why[300] = "";
  l_program *p = l_parse(text, why, sizeof why);
  if (!p) fatal(path, why);
  uint64_t hash = l_hash(p);
  for (uint32_t i = 0; i < n; i++)
    if (hashes[i] == hash) {
      l_free(p);
      return;
    }
  char *name = malloc(32);
  if (n == MOST || !name) fatal(path, "too many programs");
  snprintf(name, 32, "k%u", n);
  all[n] = p;
  names[n] = name;
  hashes[n++] = hash;
}

/* A program begins with a line `program ...` and ends with a line `}`; what stands between programs is left out. */
static void take_file(const char *path) {
  FILE *f = fopen(path, "rb");
  char *text = NULL;
  size_t len = 0, cap = 0;
  for (size_t k = 1; f && k > 0; len += k) {
    if (cap - len < 1 << 16 && !(text = realloc(text, cap = 2 * cap + (1 << 17)))) fatal(path, "no memory");
    k = fread(text + len, 1, cap - len - 1, f);
  }
  if (!f) fatal(path, "cannot be read");
  fclose(f);
  text[len] = 0;
  for (char *line = text, *start = NULL, *next; *line; line = next) {
    next = line + strcspn(line, "\n");
    if (*next) next++;
    if (strncmp(line, "program ", 8) == 0) start = line;
    if (!start || strncmp(line, "}\n", 2) != 0) continue;
    char after = *next;
    *next = 0;
    take(path, start);
    *next = after;
    start = NULL;
  }
  free(text);
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "flags") == 0) {
    int count;
    const char *const *flags = compile_flags(&count);
    for (int i = 0; i < count; i++) puts(flags[i]);
    return 0;
  }
  for (int i = 1; i < argc; i++) take_file(argv[i]);
  text_buf out = {0};
  emit_c(all, names, n, NULL, &out);
  if (!n || out.failed) fatal("programs", n ? "no memory" : "there are none");
  fwrite(out.text, 1, out.len, stdout);
  text_free(&out);
  for (uint32_t i = 0; i < n; i++) {
    l_free((l_program *)(uintptr_t)all[i]);
    free((char *)(uintptr_t)names[i]);
  }
  return 0;
}
