/* The prompt. On a terminal texts come from the line editor; elsewhere, and on a terminal that can do nothing, lines are gathered
 * until they are a whole (qn_eval_prompt says when). Values other than nil are shown unless the text ends in `;`. Errors are
 * shown and the session goes on.
 *
 * A transcript that is pasted (lines with the prompt's marks, what was printed between them) becomes the text that was typed:
 * a paste is a transcript if a line begins with the prompt, or if its first one begins with > or >>.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "interp/prompt/prompt.h"
#include "lang/format.h"
#include "lang/highlight.h"
#include "parser/parser.h"

static const char PROMPT[] = "qn> ", MORE[] = "... ";
enum { ECHO_LINES = 400, ECHO_BYTES = 64 << 10 /* the most of a value that is shown */ };

/* ---- transcripts ---------------------------------------------------------------------------------------------------------- */

/* The length of the prompt's mark, with its blank, that a line begins with; 0 if it does not. If there is nothing else on the line the
 * blank may be missing. */
static size_t mark_length(const char *line, size_t len, const char *mark) {
  size_t n = strlen(mark);
  if (len >= n && memcmp(line, mark, n) == 0) return n;
  return len == n - 1 && memcmp(line, mark, n - 1) == 0 ? n - 1 : 0;
}

static size_t prompt_mark(const char *line, size_t len) {
  static const char *const marks[] = {PROMPT, ">> ", "> "};
  for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
    size_t n = mark_length(line, len, marks[i]);
    if (n) return n;
  }
  return 0;
}

static size_t line_length(const char *text, size_t len) {
  const char *end = memchr(text, '\n', len);
  return end ? (size_t)(end - text) : len;
}

static bool is_transcript(const char *text, size_t len) {
  bool first = true;
  for (size_t at = 0; at < len;) {
    size_t n = line_length(text + at, len - at);
    if (mark_length(text + at, n, PROMPT)) return true;
    if (first && n && prompt_mark(text + at, n)) return true;
    first &= n == strspn(text + at, " \t");
    at += n + 1;
  }
  return false;
}

/* edit_host.pasted: keeps only what was typed of a transcript. If the first line has no mark, the mark was not copied with it. */
static void strip_transcript(void *ctx, char *text, size_t *len) {
  if (!is_transcript(text, *len)) return;
  ((session *)ctx)->transcript = true;
  bool code = true; /* the line before was typed, not printed */
  size_t to = 0;
  for (size_t at = 0; at < *len;) {
    size_t n = line_length(text + at, *len - at), mark = prompt_mark(text + at, n), next = at + n + 1;
    if (!mark && code && at) mark = mark_length(text + at, n, MORE);
    code = mark || at == 0;
    if (code) {
      memmove(text + to, text + at + mark, n - mark);
      to += n - mark;
      text[to++] = '\n';
    }
    at = next;
  }
  if (to) to--;
  *len = to;
  text[to] = 0;
}

/* ---- showing -------------------------------------------------------------------------------------------------------------- */

static int columns(const session *s) { return s->editor ? edit_columns(s->editor) : s->terminal ? cli_columns(1) : 0; }

/* Prints a text; of one that is too long only its beginning and its end. */
static void show_text(const char *text, size_t len) {
  size_t lines = 0, cut = len, at = 0;
  while (at < len && cut == len) {
    size_t n = line_length(text + at, len - at);
    if (++lines > ECHO_LINES || at > ECHO_BYTES) cut = at;
    if (n > ECHO_BYTES) {
      cut = at + ECHO_BYTES;
      while (cut > at && ((unsigned char)text[cut] & 0xc0) == 0x80) cut--;
    }
    at += n + 1;
  }
  fwrite(text, 1, cut, stdout);
  if (cut < len) {
    if (cut && text[cut - 1] != '\n') fputs("\n", stdout);
    printf("... %zu bytes more; print(_) shows all", len - cut);
  }
  fputs("\n", stdout);
}

/* Appends a string as a literal of the language: on one line if it fits, otherwise over as many lines as it has. */
static bool show_quoted(const session *s, qn_value v, text_buf *t) {
  const qn_str *x = value_str(v);
  int wide = columns(s) > 0 ? columns(s) : FORMAT_COLUMNS;
  bool lines = x->len >= (uint32_t)wide;
  if (!lines) {
    text_quoted(t, x->text, x->len);
    lines = !t->failed && utf8_columns(t->text, t->len) > wide;
  }
  if (!lines || !memchr(x->text, '\n', x->len)) return t->len || format_repr(s->vm, v, t);
  t->len = 0;
  format_lines(x->text, x->len, t);
  return true;
}

/* Generated C from its first kernel on. Each kernel begins with a comment. */
static const char *kernels_of(const char *text, size_t len) {
  size_t lines = 0;
  for (size_t at = 0; at < len; at += line_length(text + at, len - at) + 1, lines++) {
    if (len - at < 3 || memcmp(text + at, "/* ", 3) != 0) continue;
    if (lines) printf("(The %zu lines before this, of what kernels use, are in code(...) of the call.)\n", lines);
    return text + at;
  }
  return text;
}

static void show(session *s, qn_value v) {
  text_buf t = {.vm = s->vm};
  int wide = columns(s);
  format_options options = {.width = wide < FORMAT_COLUMNS ? wide : FORMAT_COLUMNS};
  vm_run run;
  vm_run_begin(s->vm, &run);
  /* Texts are quoted, so that "5" and 5 differ, and what was printed and what is a value. */
  bool text = value_is(v, TAG_STR) && !s->code;
  if ((text ? show_quoted(s, v, &t) : format_print(s->vm, v, &options, &t)) && !t.failed) {
    const char *from = t.text ? t.text : "";
    if (s->code && value_is(v, TAG_STR)) from = kernels_of(from, t.len);
    show_text(from, t.len - (size_t)(t.text ? from - t.text : 0));
  } else if (error_pending(s->vm))
    cli_report(s->vm);
  else
    fprintf(stderr, "quern: no memory is left to show this value\n");
  text_free(&t);
  vm_run_end(s->vm, &run);
}

static bool is_silent(const char *text, size_t n) {
  while (n > 0 && strchr(" \t\r\n", text[n - 1])) n--;
  return n > 0 && text[n - 1] == ';';
}

/* The time in seconds, after all work that was asked of devices is done. */
static double seconds(session *s) {
  vm_run run;
  vm_run_begin(s->vm, &run);
  if (!devices_wait(s->vm)) error_clear(s->vm);
  vm_run_end(s->vm, &run);
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

copy_count copies_begin(session *s) {
  s->vm->ncopy_places = 0;
  return s->vm->copies;
}

void copies_end(session *s, copy_count before) {
  s->copied = (copy_count){s->vm->copies.count - before.count, s->vm->copies.bytes - before.bytes, s->vm->copies.at};
  s->ncopy_places = s->vm->ncopy_places;
  memcpy(s->copy_places, s->vm->copy_places, sizeof s->copy_places);
}

bool session_run(session *s, const char *text, size_t len, bool last, bool *more) {
  qn_value v = value_nil();
  copy_count before = copies_begin(s);
  s->drawn = NULL;
  s->began = s->ran = seconds(s);
  qn_interrupt_clear(s->vm); /* a Ctrl-C before now was meant for the line being typed */
  qn_status status = qn_eval_prompt(s->vm, text, len, &v);
  *more = status == QN_INCOMPLETE && !last;
  if (*more) return false;
  if (status == QN_INCOMPLETE)
    status = qn_eval(s->vm, "<prompt>", text, len, NULL); /* raises the error that says what is missing */
  if (status == QN_OK) s->ran = seconds(s);
  copies_end(s, before);
  s->interrupted = s->vm->error && s->vm->error->id == E_interrupted;
  if (s->interrupted && s->terminal) fputs("\n", stderr); /* ends the line on which the terminal has shown ^C */
  if (status != QN_OK)
    cli_report(s->vm);
  else if (!value_is(v, TAG_NIL) && !is_silent(text, len) && !(value_is_heap(v) && v.u.p == s->drawn))
    show(s, v);
  if (status == QN_OK) value_release(s->vm, v);
  fflush(stdout);
  return status == QN_OK;
}

/* Runs a text or a command. False if it needs more lines. */
static bool run_input(session *s, const char *text, size_t len, bool last) {
  bool more = false;
  if (command_is(s, text, len))
    command_run(s, text, len);
  else
    session_run(s, text, len, last, &more);
  return !more;
}

static bool incomplete(void *ctx, const char *text, size_t len) {
  session *s = ctx;
  return !command_is(s, text, len) && parse_incomplete(s->vm, text, len);
}

/* Does the line that begins here go on with the statement before it? */
static bool continues(const char *line) {
  line += strspn(line, " \t\n");
  return strncmp(line, "else", 4) == 0 || strncmp(line, "catch", 5) == 0 || *line == '.';
}

/* Runs the inputs of a transcript one by one: each is as many lines as make a whole. An interrupt ends all of them. */
static void run_transcript(session *s, const char *text, size_t len) {
  text_buf input = {0};
  for (size_t at = 0; at < len && !s->ended;) {
    size_t n = line_length(text + at, len - at);
    text_add(&input, text + at, n);
    at += n + 1;
    bool last = at >= len;
    if (input.failed) break;
    if (!last && (continues(text + at) || incomplete(s, input.text, input.len))) {
      text_adds(&input, "\n");
      continue;
    }
    if (input.len > strspn(input.text, " \t\n")) run_input(s, input.text, input.len, true);
    input.len = 0;
    if (s->interrupted) break;
  }
  text_free(&input);
}

/* ---- with the editor ------------------------------------------------------------------------------------------------------ */

static void highlights(void *ctx, const char *text, size_t len, uint8_t *out) {
  parse_highlights(((session *)ctx)->vm, text, len, out);
  /* A wrong token at the end may become right as more is typed, as `2.` becomes 2.5, and is not marked. */
  for (size_t i = len; i > 0 && out[i - 1] == HIGHLIGHT_wrong; i--) out[i - 1] = HIGHLIGHT_plain;
}

static void edit_loop(session *s, history *h) {
  const char *text;
  size_t len;
  while (!s->ended) {
    cli_interrupted();
    s->transcript = false;
    edit_end end = edit_read(s->editor, &text, &len);
    if (end == EDIT_CLOSED) break;
    if (end == EDIT_FAILED) {
      fprintf(stderr, "quern: the terminal cannot be read any longer, or memory is short\n");
      break;
    }
    if (end == EDIT_INTERRUPT || len == strspn(text, " \t\n")) continue;
    history_add(h, text, len);
    if (s->transcript)
      run_transcript(s, text, len);
    else
      run_input(s, text, len, true);
  }
}

/* ---- without it ----------------------------------------------------------------------------------------------------------- */

/* Chooses whether Ctrl-C ends a read from the terminal. */
static void interrupts_end_reads(bool end) {
  struct sigaction action;
  if (sigaction(SIGINT, NULL, &action) != 0) return;
  action.sa_flags = end ? action.sa_flags & ~SA_RESTART : action.sa_flags | SA_RESTART;
  sigaction(SIGINT, &action, NULL);
}

/* Reads a line, without its line end, from malloc. NULL at the end of the input, and if Ctrl-C ended the line (*interrupted). No Ctrl-C that
 * comes after the prompt is shown is lost: the handler writes to the terminal's pipe, which is waited for together with the input, and sets
 * a flag that is asked after the pipe has been emptied. */
static char *read_line(const session *s, const char *prompt, bool *interrupted) {
  cli_interrupted();
  *interrupted = false;
  if (s->terminal) {
    bool waits = terminal_line_begin();
    fputs(prompt, stdout);
    fflush(stdout);
    *interrupted = cli_interrupted() || (waits && !terminal_line_wait(0));
    if (*interrupted) return NULL;
    interrupts_end_reads(true);
  }
  char *line = NULL;
  size_t cap = 0;
  ssize_t n = getline(&line, &cap, stdin);
  if (s->terminal) interrupts_end_reads(false);
  if (n < 0) {
    clearerr(stdin);
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

/* Has more been typed or pasted than the line that was just read? */
static bool more_waits(const session *s) {
  struct pollfd in = {.fd = 0, .events = POLLIN};
  return s->terminal && poll(&in, 1, 0) > 0 && (in.revents & POLLIN);
}

/* The prompt without the editor: reads lines and runs them until the input ends. False if memory is short. */
static bool line_loop(session *s) {
  text_buf gathered = {0};
  while (!s->ended) {
    bool interrupted;
    char *line = read_line(s, gathered.len ? MORE : PROMPT, &interrupted);
    if (interrupted || (s->terminal && cli_interrupted())) {
      /* The lines gathered so far are dropped. */
      gathered.len = 0;
      if (!line) printf("\n");
      if (!line) continue;
    }
    if (!line) break;
    text_adds(&gathered, strip_prompt(line));
    text_adds(&gathered, "\n");
    free(line);
    if (gathered.failed) break;
    if (!more_waits(s) && run_input(s, gathered.text, gathered.len, false)) gathered.len = 0;
  }
  if (gathered.len && !gathered.failed && !s->ended) run_input(s, gathered.text, gathered.len, true);
  bool good = !gathered.failed;
  text_free(&gathered);
  if (!good) fprintf(stderr, "quern: out of memory\n");
  return good;
}

/* ---- the session ---------------------------------------------------------------------------------------------------------- */

static void note_drawn(qn_vm *vm, const void *figure) { ((session *)vm->prompt)->drawn = figure; }

int repl_run(qn_vm *vm) {
  session s = {.vm = vm, .terminal = isatty(0) && isatty(1)};
  vm->prompt = &s;
  vm->hooks.drawn = note_drawn;
  const char *term = getenv("TERM");
  history h = {0};
  if (s.terminal) printf("Quern %s. :help shows keys and commands, ?NAME explains a name, Ctrl-D ends.\n", QN_VERSION);
  if (s.terminal && term && *term && strcmp(term, "dumb") != 0) {
    history_open(&h);
    edit_host host = {.ctx = &s,
                      .color = cli_colors(1),
                      .prompt = PROMPT,
                      .more = MORE,
                      .highlights = highlights,
                      .incomplete = incomplete,
                      .complete = prompt_complete,
                      .hint = prompt_hint,
                      .pasted = strip_transcript};
    s.editor = edit_open(&host, &h, 0, 1);
  }
  bool good = true;
  fflush(stdout);
  if (s.editor)
    edit_loop(&s, &h);
  else
    good = line_loop(&s);
  if (s.terminal && !s.editor) printf("\n");
  edit_close(s.editor);
  history_close(&h);
  vm->hooks.drawn = NULL;
  vm->prompt = NULL;
  return good ? EXIT_FINE : EXIT_SCRIPT;
}
