/* The prompt. Lines are gathered until they are a whole (qn_eval_prompt says when), what is pasted at once is one text, and
 * prompts that were copied along are stripped. Values other than nil are shown unless the text ends in `;`. Errors are shown
 * and the session goes on; Ctrl-C gives up what was typed so far. Text from a pipe or file runs in the same way, without greeting and prompts.
 */
#include "interp/cli.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "lang/format.h"

#ifdef QN_LIBEDIT
#include <editline/readline.h>
#endif

static const char PROMPT[] = "qn> ", MORE[] = "... ";

typedef struct repl {
  qn_vm *vm;
  bool terminal;
  char *text; /* gathered so far */
  size_t len, cap;
} repl;

#ifdef QN_LIBEDIT
/* Names that begin as the word before the cursor does. readline's interface has no context argument, hence the statics, which
 * only the binary has. */
static qn_vm *completing;
enum { NAMES = 256 };
static char *found[NAMES];
static int nfound, given;

static void add_found(void *ctx, const char *name) {
  (void)ctx;
  if (nfound < NAMES && (found[nfound] = strdup(name))) nfound++;
}

static char *next_name(const char *prefix, int state) {
  if (state == 0) {
    while (given < nfound) free(found[given++]); /* what an earlier completion left */
    nfound = given = 0;
    interp_names(completing, prefix, add_found, NULL);
  }
  return given < nfound ? found[given++] : NULL;
}

static char **complete(const char *prefix, int start, int end) {
  (void)start, (void)end;
  return rl_completion_matches(prefix, next_name);
}
#endif

#ifdef QN_LIBEDIT
/* Ctrl-C ends a read from the terminal, or lets it go on. libedit has a handler of its own for that, which leaves ours in its
 * place when a signal comes before its read begins. */
static void interrupts_end_reads(bool end) {
  struct sigaction action;
  if (sigaction(SIGINT, NULL, &action) != 0) return;
  action.sa_flags = end ? action.sa_flags & ~SA_RESTART : action.sa_flags | SA_RESTART;
  sigaction(SIGINT, &action, NULL);
}
#endif

static bool gather(repl *r, const char *line, size_t len) {
  if (r->len + len + 2 > r->cap) {
    size_t cap = (r->len + len + 2) * 2;
    char *more = realloc(r->text, cap);
    if (!more) return false;
    r->text = more;
    r->cap = cap;
  }
  memcpy(r->text + r->len, line, len);
  r->len += len;
  r->text[r->len++] = '\n';
  r->text[r->len] = 0;
  return true;
}

/* A line without its break; NULL at the end of input, and where Ctrl-C ended the line. From malloc. */
static char *read_line(repl *r, const char *prompt) {
  cli_interrupted();
#ifdef QN_LIBEDIT
  if (r->terminal) {
    interrupts_end_reads(true);
    char *line = readline(prompt);
    interrupts_end_reads(false);
    if (line && *line) add_history(line);
    return line;
  }
#endif
  if (r->terminal) {
    fputs(prompt, stdout);
    fflush(stdout);
  }
  char *line = NULL;
  size_t cap = 0;
  ssize_t n = getline(&line, &cap, stdin);
  if (n < 0) {
    free(line);
    return NULL;
  }
  while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = 0;
  return line;
}

static const char *strip_prompt(const char *line) {
  if (strncmp(line, PROMPT, strlen(PROMPT)) == 0) return line + strlen(PROMPT);
  if (strncmp(line, MORE, strlen(MORE)) == 0) return line + strlen(MORE);
  return line;
}

/* More was typed, or pasted, than the line just read. */
static bool more_waits(const repl *r) {
  struct pollfd in = {.fd = 0, .events = POLLIN};
  return r->terminal && poll(&in, 1, 0) > 0 && (in.revents & POLLIN);
}

static bool is_silent(const repl *r) {
  size_t n = r->len;
  while (n > 0 && strchr(" \t\r\n", r->text[n - 1])) n--;
  return n > 0 && r->text[n - 1] == ';';
}

static int columns(const repl *r) {
  struct winsize size;
  return r->terminal && ioctl(1, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

static void show(repl *r, qn_value v) {
  text_buf t;
  text_init(&t, r->vm);
  format_options options = {.width = columns(r)};
  vm_run run;
  vm_run_begin(r->vm, &run);
  if (format_print(r->vm, v, &options, &t) && !t.failed && t.text)
    printf("%s\n", t.text);
  else if (error_pending(r->vm))
    cli_report(r->vm);
  else
    printf("\n");
  text_free(&t);
  vm_run_end(r->vm, &run);
}

/* Runs what was gathered; true if it is not complete yet. */
static bool run_gathered(repl *r, bool last) {
  qn_value v = value_nil();
  qn_status status = qn_eval_prompt(r->vm, r->text, r->len, &v);
  if (status == QN_INCOMPLETE && !last) return true;
  if (status == QN_INCOMPLETE) status = qn_eval(r->vm, "<prompt>", r->text, r->len, NULL); /* says what is missing */
  if (status != QN_OK)
    cli_report(r->vm);
  else if (!value_is(v, TAG_NIL) && !is_silent(r))
    show(r, v);
  if (status == QN_OK) value_release(r->vm, v);
  r->len = 0;
  fflush(stdout);
  return false;
}

int repl_run(qn_vm *vm) {
  repl r = {.vm = vm, .terminal = isatty(0) && isatty(1)};
  if (r.terminal) printf("Quern %s. Ctrl-D ends; `quern help NAME` explains a function or an error.\n", QN_VERSION);
#ifdef QN_LIBEDIT
  completing = vm;
  rl_attempted_completion_function = complete;
#endif
  bool more = false;
  for (;;) {
    char *line = read_line(&r, more ? MORE : PROMPT);
    if (r.terminal && cli_interrupted()) { /* what was gathered is given up; a line read whole was begun after that */
      r.len = 0;
      more = false;
      if (!line) printf("\n");
      if (!line) continue;
    }
    if (!line) break;
    const char *text = strip_prompt(line);
    bool ok = gather(&r, text, strlen(text));
    free(line);
    if (!ok) {
      fprintf(stderr, "quern: out of memory\n");
      free(r.text);
      return EXIT_SCRIPT;
    }
    if (more_waits(&r)) continue;
    more = run_gathered(&r, false);
  }
  if (r.len) run_gathered(&r, true);
  if (r.terminal) printf("\n");
  free(r.text);
  return EXIT_FINE;
}
