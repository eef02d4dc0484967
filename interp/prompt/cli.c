/* The command line: options, running files and texts, help, doctor.
 *
 * Part of the binary, not of the library: it is the only code that installs a signal handler (Ctrl-C calls qn_interrupt),
 * reads QUERN_LOG and QUERN_SET, and ends with an exit status: 0, 1 for an error in the script, 2 for misuse.
 */
#include "interp/prompt/cli.h"
#include "interp/prompt/help.h"
#include "interp/prompt/terminal.h"
#include "jit/run/device.h"
#include "jit/trace/rec.h"
#include "lang/trace_events.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- Ctrl-C --------------------------------------------------------------------------------------------------------- */

static qn_vm *volatile interrupt_vm;
static volatile sig_atomic_t interrupts;

enum { INTERRUPTS_SCRIPT = 3, INTERRUPTS_PROMPT = 8 };
static volatile sig_atomic_t interrupts_most = INTERRUPTS_SCRIPT;

/* Handles Ctrl-C. The first one asks the computation to stop. If it does not, pressing Ctrl-C several times more ends the process: three
 * times in all for a script, and eight times for a session, which has more to lose, with a warning at the third. */
static void on_interrupt(int signal) {
  static const char warning[] = "\nit is to stop; the session itself ends when Ctrl-C is pressed 5 times more\n";
  (void)signal;
  if (++interrupts >= interrupts_most) _exit(130);
  if (interrupts == 3 && write(2, warning, sizeof warning - 1) < 0) {}
  qn_vm *vm = interrupt_vm;
  if (vm) qn_interrupt(vm);
  terminal_wake();
}

static void catch_interrupts(qn_vm *vm) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  interrupt_vm = vm;
  interrupts = 0;
  sigaction(SIGINT, &action, NULL);
}

bool cli_interrupted(void) {
  bool was = interrupts > 0;
  interrupts = 0;
  return was;
}

/* ---- reports ---------------------------------------------------------------------------------------------------------- */

bool cli_colors(int fd) {
  const char *off = getenv("NO_COLOR"), *term = getenv("TERM");
  return isatty(fd) && !(off && *off) && term && *term && strcmp(term, "dumb") != 0;
}

int cli_columns(int fd) {
  struct winsize size;
  return isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void cli_report(qn_vm *vm) {
  interrupts = 0;
  if (!vm->error) return;
  fflush(stdout);
  text_buf t = {0};
  error_render(vm, vm->error, &t, cli_colors(2), cli_columns(2));
  if (t.text && !t.failed) fwrite(t.text, 1, t.len, stderr);
  text_free(&t);
}

int cli_misuse(const char *format, const char *what) {
  fprintf(stderr, "quern: ");
  fprintf(stderr, format, what);
  fprintf(stderr, "\nquern --help shows how it is used\n");
  return EXIT_MISUSE;
}

#define X(name) " " #name
#define LOG_NAMES "some of" LOG_CHANNELS(X)
static const char usage[] =
    "usage: quern [OPTIONS] FILE [ARGS]     run a script\n"
    "       quern [OPTIONS] -e CODE [ARGS]  run a line of code\n"
    "       quern [OPTIONS]                 the prompt\n"
    "       quern help NAME                 a function, module, keyword or error id; `topics` lists all\n"
    "       quern explain [--all] FILE [ARGS]\n"
    "                                       run a script and say what the compiler does with it, in short or all of "
    "it\n"
    "       quern explain FILE.qnx          how an exported function is called, and its graph\n"
    "       quern export FILE:NAME -o OUT.qnx [ARG...]\n"
    "                                       write a function as one graph; `quern help export`\n"
    "       quern doctor                    what this machine offers\n"
    "       quern repro FILE                run what --jit verify, or a defect of the compiler, has left in FILE\n"
    "\n"
    "  --jit on|off|sync|verify   compile beside execution (default), never, at once, or compare both ways\n"
    "  --device cpu|gpu|gpu:N     where new arrays are made\n"
    "  --threads N                threads of a kernel (default: all processors)\n"
    "  --log CHANNELS             " LOG_NAMES ", or all\n"
    "  --trace FILE               what ran when, for chrome://tracing or ui.perfetto.dev: calls, ops, compilations, "
    "kernels\n"
    "  --set NAME=VALUE           a tunable; `quern help tunables` lists them\n"
    "  --version, --help\n"
    "\n"
    "QUERN_LOG and QUERN_SET do what --log and --set do; QUERN_CACHE is the folder of the kernel cache.\n"
    "Exit status: 0, 1 for an error in the script, 2 for misuse.\n";

/* ---- options ------------------------------------------------------------------------------------------------------------ */

enum { SETS = 64 };
typedef struct options {
  qn_config config;
  uint32_t log;
  int device; /* code */
  const char *sets[SETS];
  int nsets;
  uint64_t fail_alloc; /* for tests: number of the allocation after start-up that fails; 0: none, they are counted */
  bool count_allocs;
  bool explain, all; /* explain: say at the end what the compiler did; all: in full */
  const char *code;  /* -e */
  const char *trace; /* the file for --trace, or NULL */
  int first;         /* of the remaining arguments */
} options;

static bool parse_count(const char *text, uint64_t *out) {
  char *end;
  errno = 0;
  unsigned long long n = strtoull(text, &end, 10);
  if (errno || end == text || *end || text[0] == '-') return false;
  *out = n;
  return true;
}

static bool parse_jit(const char *text, qn_jit_mode *mode) {
  static const char *const names[] = {
      [QN_JIT_ON] = "on", [QN_JIT_OFF] = "off", [QN_JIT_SYNC] = "sync", [QN_JIT_VERIFY] = "verify"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(text, names[i]) != 0) continue;
    *mode = (qn_jit_mode)i;
    return true;
  }
  return false;
}

/* Is `name` this option, and is there a value? *bare is set if it is this option and the value is missing. */
static bool is_option(const char *name, const char *option, const char *value, bool *bare) {
  bool same = strcmp(name, option) == 0;
  *bare |= same && !value;
  return same && value;
}

/* Takes an option that has a value; `value` is NULL if the command line ends before it. Returns 0, or an exit status after a message. */
static int set_option(options *o, const char *name, const char *value) {
  uint64_t n;
  uint32_t log;
  bool bare = false;
  if (is_option(name, "--jit", value, &bare)) {
    if (!parse_jit(value, &o->config.jit)) return cli_misuse("--jit takes on, off, sync or verify, not '%s'", value);
  } else if (is_option(name, "--threads", value, &bare)) {
    if (!parse_count(value, &n) || n > 4096) return cli_misuse("--threads takes a number, not '%s'", value);
    o->config.threads = (int)n;
  } else if (is_option(name, "--log", value, &bare)) {
    if (!log_parse(value, &log))
      return cli_misuse("--log: there is no such channel in '%s'; it takes " LOG_NAMES ", separated by commas, or all",
                        value);
    o->log |= log;
  } else if (is_option(name, "--set", value, &bare)) {
    if (o->nsets == SETS) return cli_misuse("--set: too many, at '%s'", value);
    o->sets[o->nsets++] = value;
  } else if (is_option(name, "--device", value, &bare)) {
    if ((o->device = device_parse(value)) < 0) return cli_misuse("--device takes cpu, gpu or gpu:N, not '%s'", value);
  } else if (is_option(name, "--fail-alloc", value, &bare)) {
    if (!parse_count(value, &o->fail_alloc)) return cli_misuse("--fail-alloc takes a number, not '%s'", value);
    o->count_allocs = o->fail_alloc == 0;
  } else if (is_option(name, "--trace", value, &bare)) {
    o->trace = value;
  } else if (is_option(name, "-e", value, &bare)) {
    o->code = value;
  } else {
    return cli_misuse(bare ? "'%s' needs a value" : "there is no option '%s'", name);
  }
  return 0;
}

/* Reads the options, up to the first argument that is none (o->first). Returns -1, or an exit status if the program is to end here. */
static int parse_options(int argc, char **argv, options *o) {
  int i = 1;
  for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
    const char *a = argv[i];
    if (strcmp(a, "--version") == 0) {
      printf("quern %s\n", QN_VERSION);
      return EXIT_FINE;
    }
    if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
      fputs(usage, stdout);
      return EXIT_FINE;
    }
    if (strcmp(a, "--") == 0) {
      i++;
      break;
    }
    char name[32];
    const char *equals = a[1] == '-' ? strchr(a, '=') : NULL, *value;
    size_t len = equals ? (size_t)(equals - a) : strlen(a);
    if (len >= sizeof name) return cli_misuse("there is no option '%s'", a);
    memcpy(name, a, len);
    name[len] = 0;
    if (equals)
      value = equals + 1;
    else
      value = i + 1 < argc ? argv[++i] : NULL;
    int status = set_option(o, name, value);
    if (status) return status;
    if (o->code) {
      i++;
      break;
    }
  }
  o->first = i;
  return -1;
}

/* ---- opening -------------------------------------------------------------------------------------------------------------- */

static bool set_args(qn_vm *vm, char **args, int n) {
  qn_list *l = list_new(vm, (size_t)n);
  if (!l) return false;
  qn_value list = value_obj(TAG_LIST, l);
  bool ok = true;
  for (int i = 0; i < n && ok; i++) {
    size_t len = strlen(args[i]);
    ok = utf8_valid(args[i], len) || raise_false(vm, E_text, "argument %d of the script is not UTF-8", i + 1);
    qn_str *s = ok ? str_new(vm, args[i], len) : NULL;
    ok = s != NULL;
    if (ok) l->items[i] = value_obj(TAG_STR, s);
  }
  ok = ok && interp_set_builtin(vm, "args", list);
  value_release(vm, list);
  return ok;
}

/* Keeps a reproduction in a file of the present folder, whose name follows from what it holds. */
static bool keep_repro(qn_vm *vm, const char *text, size_t len, char *name, size_t size) {
  (void)vm;
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < len; i++) hash = (hash ^ (uint8_t)text[i]) * 16777619u;
  snprintf(name, size, "quern-repro-%08x.txt", hash);
  FILE *f = fopen(name, "wb");
  bool ok = f && fwrite(text, 1, len, f) == len;
  return f && fclose(f) == 0 && ok;
}

/* Opens a VM with these options. NULL, with a message written and *status set, if that fails. */
static qn_vm *open_vm(const options *o, char **args, int nargs, int *status) {
  const char *log = getenv("QUERN_LOG"), *set = getenv("QUERN_SET");
  uint32_t bits = 0;
  *status = EXIT_MISUSE;
  if (log && *log && !log_parse(log, &bits)) {
    cli_misuse("QUERN_LOG: there is no such channel in '%s'; it takes " LOG_NAMES ", separated by commas, or all", log);
    return NULL;
  }
  qn_vm *vm = qn_vm_open(&o->config);
  if (!vm) {
    fprintf(stderr, "quern: out of memory, or the standard library is damaged\n");
    *status = EXIT_SCRIPT;
    return NULL;
  }
  vm->log |= bits | o->log;
  vm->hooks.repro = keep_repro;
  FILE *trace = o->trace
                    ? fopen(o->trace, "ab")
                    : NULL; /* opened now, so that a file that cannot be written is reported before the script runs */
  if (o->trace && (!trace || fclose(trace) != 0 || !trace_events_start(vm->engine))) {
    fprintf(stderr, "quern: --trace: cannot write %s: %s\n", o->trace, strerror(errno));
    qn_vm_close(vm);
    return NULL;
  }
  bool ok = !set || !*set || tunable_set_list(vm, set);
  for (int i = 0; i < o->nsets && ok; i++) ok = tunable_set_list(vm, o->sets[i]);
  if (ok) {
    *status = EXIT_SCRIPT;
    ok = vm_use_device(vm, o->device) && set_args(vm, args, nargs);
  }
  if (!ok) {
    cli_report(vm);
    qn_vm_close(vm);
    return NULL;
  }
  catch_interrupts(vm);
  mem_fail_at(vm, o->fail_alloc);
  if (o->count_allocs) mem_stats_of(vm)->allocations = 0;
  return vm;
}

/* Flushes stdout. False if something that was printed could not be written; a message says so, unless the reader of a pipe has gone. */
static bool output_written(void) {
  bool failed = ferror(stdout) != 0;
  errno = 0;
  if (fflush(stdout) == 0 && !failed) return true;
  if (errno != EPIPE)
    fprintf(stderr, "quern: what was printed could not be written%s%s\n", errno ? ": " : "",
            errno ? strerror(errno) : "");
  return false;
}

/* Writes the trace events to the file that --trace names. */
static bool write_trace(const options *o, qn_vm *vm) {
  text_buf t = {0};
  trace_events_text(vm->engine, &t);
  errno = 0;
  FILE *f = t.failed ? NULL : fopen(o->trace, "wb");
  bool ok = f && fwrite(t.text, 1, t.len, f) == t.len;
  ok = f && fclose(f) == 0 && ok;
  if (!ok) fprintf(stderr, "quern: cannot write %s: %s\n", o->trace, t.failed ? "out of memory" : strerror(errno));
  text_free(&t);
  return ok;
}

static int close_vm(const options *o, qn_vm *vm, int status) {
  interrupt_vm = NULL;
  if (o->trace && !write_trace(o, vm)) status = EXIT_SCRIPT;
  if (o->count_allocs) fprintf(stderr, "allocations: %llu\n", (unsigned long long)mem_stats_of(vm)->allocations);
  qn_vm_close(vm);
  return output_written() ? status : EXIT_SCRIPT;
}

/* ---- running --------------------------------------------------------------------------------------------------------------- */

static int run(qn_vm *vm, const char *name, const char *text, size_t len) {
  int64_t begin = trace_events_begin(vm->engine);
  qn_status status = qn_eval(vm, name, text, len, NULL);
  trace_events_end(vm->engine, TRACE_EVENTS_script, name, begin, NULL, 0);
  if (status != QN_OK) cli_report(vm);
  return status == QN_OK ? EXIT_FINE : EXIT_SCRIPT;
}

static void explain(qn_vm *vm, const char *file, bool all) {
  text_buf t = {0};
  vm_run run;
  vm_run_begin(vm, &run);
  bool done = jit_report(vm, file, all, &t);
  vm_run_end(vm, &run);
  if (!done)
    cli_report(vm);
  else if (t.text && !t.failed)
    fwrite(t.text, 1, t.len, stdout);
  text_free(&t);
}

enum { SCRIPT_MOST = 256 << 20 }; /* bytes; the limit ends the reading of devices that have no end */

char *cli_read(const char *path, size_t *len) {
  FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
  size_t cap = 1 << 16, n;
  char *text = f ? malloc(cap) : NULL;
  *len = 0;
  while (text && (n = fread(text + *len, 1, cap - *len, f)) > 0) {
    *len += n;
    if (*len < cap) continue;
    char *more = cap < SCRIPT_MOST ? realloc(text, cap *= 2) : NULL;
    if (!more && cap >= SCRIPT_MOST) errno = EFBIG;
    if (!more) free(text);
    text = more;
  }
  if (f && text && ferror(f)) {
    free(text);
    text = NULL;
  }
  if (!text) fprintf(stderr, "quern: cannot read %s: %s\n", path, strerror(errno));
  if (f && f != stdin) fclose(f);
  return text;
}

static bool ends_with(const char *text, const char *end) {
  size_t n = strlen(text), e = strlen(end);
  return n >= e && strcmp(text + n - e, end) == 0;
}

/* Warns of a script that defines main, as programs of other languages do, and never calls it. */
static void warn_main(qn_vm *vm) {
  span at = interp_unread_function(vm, "main");
  const source_text *s = source_get(vm, at.source);
  if (!s || fflush(stdout) != 0) return;
  int row, column;
  source_position(s, at.start, &row, &column);
  fprintf(
      stderr,
      "warning: main is never called: a script runs its lines from the first on; end it with main()\n  --> %s:%d:%d\n",
      s->name, row, column);
}

static int run_file(const options *o, char **argv, int argc) {
  size_t len;
  if (ends_with(argv[0], ".qnx"))
    return cli_misuse(
        "%s is an exported function, no script: a script gets it with load(path), and `quern explain` shows it",
        argv[0]);
  char *text = cli_read(argv[0], &len);
  if (!text) return EXIT_MISUSE;
  int status;
  qn_vm *vm = open_vm(o, argv + 1, argc - 1, &status);
  if (vm) {
    vm->counting = o->explain;
    status = run(vm, argv[0], text, len);
    if (status == EXIT_FINE) warn_main(vm);
    if (o->explain) explain(vm, argv[0], o->all);
    status = close_vm(o, vm, status);
  }
  free(text);
  return status;
}

static int run_code(const options *o, char **argv, int argc) {
  int status;
  qn_vm *vm = open_vm(o, argv, argc, &status);
  return vm ? close_vm(o, vm, run(vm, "-e", o->code, strlen(o->code))) : status;
}

static int run_prompt(const options *o) {
  int status;
  qn_vm *vm = open_vm(o, NULL, 0, &status);
  if (!vm) return status;
  interrupts_most = INTERRUPTS_PROMPT;
  return close_vm(o, vm, repl_run(vm));
}

static int run_explain(options *o, char **argv, int argc) {
  if (argc > 0 && strcmp(argv[0], "--all") == 0) {
    o->all = true;
    argv++;
    argc--;
  }
  if (argc < 1) return cli_misuse("explain needs %s", "a file");
  if (argv[0][0] == '-' && argv[0][1])
    return cli_misuse("explain needs a file, not '%s'; options stand before explain, --all behind it", argv[0]);
  o->explain = true;
  if (!ends_with(argv[0], ".qnx")) return run_file(o, argv, argc);
  if (argc > 1) return cli_misuse("explain shows %s as it is, without arguments", argv[0]);
  int status;
  qn_vm *vm = open_vm(o, NULL, 0, &status);
  return vm ? close_vm(o, vm, export_show(vm, argv[0])) : status;
}

static int run_export(const options *o, char **argv, int argc) {
  export_line line;
  int status = export_parse(argv, argc, &line);
  size_t len = 0;
  char *text = status == EXIT_FINE ? cli_read(line.file, &len) : NULL;
  if (status == EXIT_FINE && !text) status = EXIT_MISUSE;
  qn_vm *vm = text ? open_vm(o, NULL, 0, &status) : NULL;
  if (vm) {
    status = run(vm, line.file, text, len);
    if (status == EXIT_FINE) status = export_run(vm, &line);
    status = close_vm(o, vm, status);
  }
  free(text);
  free(line.file);
  return status;
}

/* ---- help and doctor --------------------------------------------------------------------------------------------------------- */

static int run_help(const options *o, char **argv, int argc) {
  if (argc < 1) {
    fputs(usage, stdout);
    return EXIT_FINE;
  }
  int status;
  qn_vm *vm = open_vm(o, NULL, 0, &status);
  if (!vm) return status;
  text_buf t = {.vm = vm};
  bool found = help_about(vm, argv[0], cli_columns(1), &t);
  if (t.failed || (!t.text && !error_pending(vm))) raise_memory(vm);
  if (error_pending(vm)) {
    text_free(&t);
    cli_report(vm);
    return close_vm(o, vm, EXIT_SCRIPT);
  }
  terminal_write_text(found ? stdout : stderr, t.text, t.len);
  text_free(&t);
  return close_vm(o, vm, found ? EXIT_FINE : EXIT_MISUSE);
}

/* Finds the file of a program on PATH and writes its path to `out`. */
static bool find_program(const char *name, char *out, size_t size) {
  const char *path = getenv("PATH");
  while (path && *path) {
    size_t n = strcspn(path, ":");
    int len = snprintf(out, size, "%.*s/%s", (int)n, path, name);
    if (len > 0 && (size_t)len < size && access(out, X_OK) == 0) return true;
    path += n + (path[n] == ':');
  }
  return false;
}

static const char *instruction_set(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) return "x86-64 with AVX-512";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "x86-64 with AVX2 and FMA";
  return "x86-64 without AVX2: kernels run with 128-bit vectors";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "unknown: portable code";
#endif
}

static int run_doctor(const options *o) {
  char program[4096];
  printf("quern        %s, built by %s\n", QN_VERSION,
#if defined(__clang__)
         "clang " __clang_version__
#else
         "gcc " __VERSION__
#endif
  );
  printf("processors   %ld (%s)\n", sysconf(_SC_NPROCESSORS_ONLN), instruction_set());
  printf("memory       %.1f GiB\n", (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1 << 30));
  printf("C compiler   %s\n",
         find_program("cc", program, sizeof program) ? program : "none: kernels run on the block VM");
  text_buf found = {0};
  devices_report(&found);
  if (found.text && !found.failed) fwrite(found.text, 1, found.len, stdout);
  text_free(&found);
  const char *cache = getenv("QUERN_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (cache && *cache)
    snprintf(program, sizeof program, "%s", cache);
  else if (xdg && *xdg)
    snprintf(program, sizeof program, "%s/quern", xdg);
  else
    snprintf(program, sizeof program, "%s/.cache/quern", home ? home : "");
  printf("kernel cache %s (%s)\n", program,
         access(program, W_OK) == 0   ? "writable"
         : access(program, F_OK) == 0 ? "not writable"
                                      : "not there yet");
  int status;
  qn_vm *vm = open_vm(o, NULL, 0, &status);
  if (!vm) return status;
  static const char check[] = "let x = arange(1000) / 8\nassert(abs(float(sum(x * x)) - 5_200_523.4375) < 64)\n";
  status = run(vm, "doctor", check, sizeof check - 1);
  printf("self-check   %s\n", status == EXIT_FINE ? "passed" : "failed");
  return close_vm(o, vm, status);
}

static int run_repro(const options *o, char **argv, int argc) {
  if (argc != 1) return cli_misuse("repro needs one file, quern-repro-....txt%s", "");
  size_t len;
  char *text = cli_read(argv[0], &len);
  if (!text) return EXIT_MISUSE;
  int status;
  qn_vm *vm = open_vm(o, NULL, 0, &status);
  if (vm) {
    text_buf out = {0};
    bool agrees = false, ran = jit_repro_run(vm, text, len, &agrees, &out);
    if (ran && !out.failed) fwrite(out.text, 1, out.len, stdout);
    if (!ran) cli_report(vm);
    text_free(&out);
    status = close_vm(o, vm, ran && agrees ? EXIT_FINE : EXIT_SCRIPT);
  }
  free(text);
  return status;
}

int main(int argc, char **argv) {
  options o = {.nsets = 0};
  qn_config_init(&o.config);
  int status = parse_options(argc, argv, &o);
  if (status >= 0) return status;
  char **rest = argv + o.first;
  int n = argc - o.first;
  if (o.code) return run_code(&o, rest, n);
  if (n == 0) return run_prompt(&o);
  if (strcmp(rest[0], "help") == 0) return run_help(&o, rest + 1, n - 1);
  if (strcmp(rest[0], "explain") == 0) return run_explain(&o, rest + 1, n - 1);
  if (strcmp(rest[0], "doctor") == 0) return run_doctor(&o);
  if (strcmp(rest[0], "export") == 0) return run_export(&o, rest + 1, n - 1);
  if (strcmp(rest[0], "repro") == 0) return run_repro(&o, rest + 1, n - 1);
  return run_file(&o, rest, n);
}
