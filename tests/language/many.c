/* Runs scripts one after another in one process, each as the binary runs it: by the binary's own main, with a VM of its own. run.py asks
 * for them; what a process and its GPU cost to start is paid once.
 *
 * A request on stdin is a number of words, a newline, and the words, each with a NUL behind it: the files for stdout, stderr and stdin,
 * the folder for QUERN_TEST_TMP, then the command line. The answer on stdout is "STATUS ARRAYS\n": the exit status, and how many arrays
 * were made. With the argument `share` all VMs have one engine, and so one GPU. */
#include <fcntl.h>
#include <stdio.h>

#include "lang/quern.h"

static qn_vm *many_open(const qn_config *config);
static void many_close(qn_vm *vm);
#define main binary_main
#define qn_vm_open many_open
#define qn_vm_close many_close
#include "interp/prompt/cli.c"
#undef main
#undef qn_vm_open
#undef qn_vm_close

static qn_engine *shared; /* or NULL */
static unsigned long long arrays;

static qn_vm *many_open(const qn_config *config) {
  qn_config own = *config;
  own.engine = shared;
  return qn_vm_open(&own);
}

static void many_close(qn_vm *vm) {
  arrays += vm->arrays_made;
  qn_vm_close(vm);
}

enum { WORDS = 64, WORD = 4096 };

static bool redirect(int fd, const char *path, int flags) {
  int opened = open(path, flags | O_CLOEXEC, 0600);
  bool ok = opened >= 0 && dup2(opened, fd) == fd;
  if (opened >= 0) close(opened);
  return ok;
}

/* The words of a request; their number, 0 at the end of all. */
static int request(FILE *from, char (*words)[WORD]) {
  int n = 0;
  if (fscanf(from, "%d", &n) != 1 || getc(from) != '\n' || n < 5 || n >= WORDS) return 0;
  for (int i = 0; i < n; i++)
    for (int k = 0, c = 1; c != 0; k++) {
      if (k == WORD || (c = getc(from)) == EOF) return 0;
      words[i][k] = (char)c;
    }
  return n;
}

int main(int argc, char **argv) {
  static char words[WORDS][WORD];
  FILE *from = fdopen(fcntl(0, F_DUPFD_CLOEXEC, 10), "r"), *to = fdopen(fcntl(1, F_DUPFD_CLOEXEC, 10), "w");
  if (!from || !to) return 1;
  if (argc > 1 && strcmp(argv[1], "share") == 0 && !(shared = qn_engine_open())) return 1;
  int n;
  while ((n = request(from, words)) > 0) {
    char *line[WORDS + 1] = {argv[0]};
    for (int i = 4; i < n; i++) line[i - 3] = words[i];
    if (!redirect(1, words[0], O_WRONLY | O_CREAT | O_TRUNC) || !redirect(2, words[1], O_WRONLY | O_CREAT | O_TRUNC) ||
        !redirect(0, words[2], O_RDONLY) || setenv("QUERN_TEST_TMP", words[3], 1) != 0)
      return 1;
    rewind(stdin);
    arrays = 0;
    int status = binary_main(n - 3, line);
    fflush(stdout);
    fprintf(to, "%d %llu\n", status, arrays);
    fflush(to);
  }
  if (shared) qn_engine_close(shared);
  fclose(from);
  fclose(to);
  return 0;
}
