/* Compiles printed CUDA C with NVRTC, on any machine: no GPU is needed.
 *
 *   compile LIBNVRTC [--keep FOLDER] [--random FIRST N] FILE.l...
 *
 * Prints every program of the files (and random programs) as CUDA C, one unit a file, and compiles the unit to a cubin for sm_90
 * with the options that bits depend on. Status 1 and the compiler's messages if one fails. --keep writes the texts there.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/kernel/emit.h"
#include "tests/unit/l_random.h"

enum { PROGRAMS_MAX = 64 };

typedef struct nvrtc {
  int (*create)(void **, const char *, const char *, int, const char *const *, const char *const *);
  int (*compile)(void *, int, const char *const *);
  int (*log_size)(void *, size_t *);
  int (*log)(void *, char *);
  int (*cubin_size)(void *, size_t *);
  int (*destroy)(void **);
} nvrtc;

static bool find(void *library, const char *name, void *to) {
  void *f = dlsym(library, name);
  if (!f) fprintf(stderr, "no %s\n", name);
  memcpy(to, &f, sizeof f);
  return f != NULL;
}

static bool compile(const nvrtc *n, const char *name, const char *text) {
  static const char *const options[] = {"-arch=sm_90",     "-fmad=false", "-prec-div=true",
                                        "-prec-sqrt=true", "-ftz=false",  "-w"};
  void *program = NULL;
  size_t size = 0;
  int rc = n->create(&program, text, name, 0, NULL, NULL);
  if (rc == 0) rc = n->compile(program, sizeof options / sizeof *options, options);
  if (rc != 0 && program && n->log_size(program, &size) == 0 && size > 1) {
    char *log = calloc(1, size + 1);
    if (log && n->log(program, log) == 0) fprintf(stderr, "%.4000s\n", log);
    free(log);
  }
  size = 0;
  if (rc == 0) rc = n->cubin_size(program, &size);
  if (program) n->destroy(&program);
  printf("%s: %s, %zu bytes\n", name, rc == 0 ? "ok" : "FAILED", size);
  fflush(stdout);
  return rc == 0 && size > 0;
}

static bool unit(const nvrtc *n, const char *name, const char *keep, l_program **programs, uint32_t count) {
  char texts[PROGRAMS_MAX][16];
  const char *names[PROGRAMS_MAX];
  text_buf out;
  text_init(&out, NULL);
  for (uint32_t i = 0; i < count; i++) {
    snprintf(texts[i], sizeof texts[i], "k%u", i);
    names[i] = texts[i];
  }
  emit_cuda((const l_program *const *)programs, names, count, &out);
  text_add(&out, "", 1);
  bool ok = !out.failed;
  if (ok && keep) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s.cu", keep, name);
    FILE *f = fopen(path, "w");
    if (f) fputs(out.text, f);
    if (f) fclose(f);
  }
  ok = ok && compile(n, name, out.text);
  text_free(&out);
  for (uint32_t i = 0; i < count; i++) l_free(programs[i]);
  return ok;
}

/* The programs of a golden text: one behind the other. */
static bool file_unit(const nvrtc *n, const char *path, const char *keep) {
  static char text[1 << 20];
  l_program *programs[PROGRAMS_MAX];
  uint32_t count = 0;
  char why[300] = "";
  FILE *f = fopen(path, "rb");
  size_t len = f ? fread(text, 1, sizeof text - 1, f) : 0;
  if (f) fclose(f);
  text[len] = 0;
  for (char *at = text; at && *at && count < PROGRAMS_MAX;) {
    char *end = strstr(at, "\n}\n");
    if (!end) break;
    char after = end[3];
    end[3] = 0;
    programs[count] = l_parse(at, why, sizeof why);
    if (!programs[count]) {
      fprintf(stderr, "%s: %s\n", path, why);
      return false;
    }
    count++;
    end[3] = after;
    at = end + 3;
    while (*at == '\n') at++;
  }
  const char *slash = strrchr(path, '/');
  if (!count) fprintf(stderr, "%s: no program\n", path);
  return count && unit(n, slash ? slash + 1 : path, keep, programs, count);
}

int main(int argc, char **argv) {
  const char *keep = NULL;
  nvrtc n;
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) {
    fprintf(stderr, "%s\n",
            argc > 1 ? dlerror() : "usage: compile LIBNVRTC [--keep FOLDER] [--random FIRST N] FILE.l...");
    return 2;
  }
  if (!find(library, "nvrtcCreateProgram", &n.create) || !find(library, "nvrtcCompileProgram", &n.compile) ||
      !find(library, "nvrtcGetProgramLogSize", &n.log_size) || !find(library, "nvrtcGetProgramLog", &n.log) ||
      !find(library, "nvrtcGetCUBINSize", &n.cubin_size) || !find(library, "nvrtcDestroyProgram", &n.destroy))
    return 2;
  bool ok = true;
  for (int i = 2; i < argc; i++) {
    if (strcmp(argv[i], "--keep") == 0 && i + 1 < argc) {
      keep = argv[++i];
    } else if (strcmp(argv[i], "--random") == 0 && i + 2 < argc) {
      uint64_t first = strtoull(argv[i + 1], NULL, 10), count = strtoull(argv[i + 2], NULL, 10);
      i += 2;
      for (uint64_t s = first; s < first + count; s += 8) {
        l_program *programs[8];
        uint32_t m = 0;
        rnd_info info;
        for (; m < 8 && s + m < first + count; m++) programs[m] = rnd_program(s + m, &info);
        char name[40];
        snprintf(name, sizeof name, "random_%llu", (unsigned long long)s);
        ok &= unit(&n, name, keep, programs, m);
      }
    } else {
      ok &= file_unit(&n, argv[i], keep);
    }
  }
  return ok ? 0 : 1;
}
