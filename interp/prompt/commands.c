/* The commands of the prompt: commands.def lists them, here they are carried out. Each prints what it has to say and returns; an
 * error is reported and the session goes on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interp/prompt/help.h"
#include "interp/prompt/pager.h"
#include "interp/prompt/prompt.h"
#include "interp/prompt/terminal.h"
#include "lang/highlight.h"
#include "parser/parser.h"

#define COMMAND(verb, shown, kind, meaning) static void command_##verb(session *s, const char *argument);
#include "interp/prompt/commands.def"

const command commands[] = {
#define COMMAND(verb, shown, kind, meaning) {#verb, shown, ARGUMENT_##kind, meaning, command_##verb},
#include "interp/prompt/commands.def"
};
const int command_count = sizeof commands / sizeof *commands;

static void put(text_buf *t) {
  if (t->text && !t->failed) fwrite(t->text, 1, t->len, stdout);
  text_free(t);
}

/* Writes a text that may be long: in pages if the session is on a terminal. */
static void put_pages(session *s, text_buf *t) {
  if (t->text && !t->failed && s->editor && !s->transcript)
    pager_show(edit_terminal(s->editor), t->text, t->len);
  else if (t->text && !t->failed)
    terminal_write_text(stdout, t->text, t->len);
  text_free(t);
}

static bool no_argument(const char *argument, const char *usage) {
  if (*argument) return false;
  fprintf(stderr, "it is used so: %s\n", usage);
  return true;
}

/* Appends a number of bytes as "1.5 MB". */
static void text_size(text_buf *t, double bytes) {
  static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
  int unit = 0;
  while (bytes >= 1000 && unit < 4) {
    bytes /= 1000;
    unit++;
  }
  text_decimal(t, bytes, 'f', unit && bytes < 100 ? 1 : 0);
  text_addf(t, " %s", units[unit]);
}

/* ---- help ---------------------------------------------------------------------------------------------------------------- */

static void command_doc(session *s, const char *argument) {
  if (no_argument(argument, ":doc NAME, or ?NAME")) return;
  bool source = *argument == '?';
  if (source) argument += 1 + strspn(argument + 1, " \t");
  text_buf t = {.vm = s->vm};
  size_t len = strlen(argument);
  uint8_t *highlights = malloc(len + 1);
  qn_value v;
  bool found = false;
  if (highlights) {
    parse_highlights(s->vm, argument, len, highlights);
    if (chain_begin(argument, highlights, len) == 0 && chain_value(s->vm, argument, highlights, 0, len, &v)) {
      if (!source || !help_source(s->vm, v, &t)) {
        help_value(s->vm, argument, v, &t);
        if (source) text_adds(&t, "There is no source: it is no function written in Quern.\n");
      }
      found = true;
    }
  }
  free(highlights);
  if (!found) found = help_about(s->vm, argument, s->editor ? edit_columns(s->editor) : cli_columns(1), &t);
  if (found) {
    put_pages(s, &t);
    return;
  }
  fflush(stdout);
  if (t.text && !t.failed) terminal_write_text(stderr, t.text, t.len);
  text_free(&t);
}

static void add_command(text_buf *t, const command *c) {
  text_addf(t, "  :%-8s %-9s %s\n", c->name, c->argument, c->doc);
}

static void command_help(session *s, const char *argument) {
  text_buf t = {0};
  if (*argument) {
    for (int i = 0; i < command_count; i++) {
      if (*argument != ':' || strcmp(argument + 1, commands[i].name) != 0) continue;
      add_command(&t, &commands[i]);
      put_pages(s, &t);
      return;
    }
    command_doc(s, argument);
    return;
  }
  static const char about[] =
      "A line that is complete is run and its value shown, unless it ends in `;`. `_` is the last value shown or "
      "kept.\n"
      "What needs more lines gets them: brackets that are open, `\"\"\"`, an operator at the end.\n\n";
  text_adds(&t, about);
  for (int i = 0; i < command_count; i++) add_command(&t, &commands[i]);
  static const char keys[] =
      "\n"
      "  Tab               completes names, fields, modules, files and parameters; again: the next choice\n"
      "  Up, Down          lines before, and inputs before that begin as this one does\n"
      "  Ctrl-R, Ctrl-S    searches the inputs before, older and newer\n"
      "  Ctrl-C            gives up what is typed, or stops what runs\n"
      "  Ctrl-D            ends the session, or deletes the character\n"
      "  Alt-Enter         a new line, also where the input is complete\n"
      "  Ctrl-W, -U, -K    cut the word before, the line before, the line behind; Ctrl-Y puts it back, Alt-Y an "
      "older one\n"
      "  Ctrl-A, -E, Alt-B, -F, Alt-<, ->   to the line's begin and end, by words, to the text's begin and end\n"
      "  Ctrl-_            takes the last change back; Ctrl-L clears the screen, Ctrl-Z stops the process\n"
      "\n"
      "Help that is longer than the screen comes in pages: Space goes on, q ends.\n";
  text_adds(&t, keys);
  put_pages(s, &t);
}

static void command_quit(session *s, const char *argument) {
  (void)argument;
  s->ended = true;
}

/* ---- the session --------------------------------------------------------------------------------------------------------- */

typedef struct listing {
  session *s;
  text_buf *out;
  const char *prefix;
  size_t total;
  int name_width, kind_width; /* columns */
  int n;
  bool measure;
} listing;

static void list_variable(void *ctx, const char *name, qn_value v) {
  listing *l = ctx;
  if (strncmp(name, l->prefix, strlen(l->prefix)) != 0 || strcmp(name, "_") == 0) return;
  text_buf kind = {0};
  if (value_is(v, TAG_FN))
    interp_signature(l->s->vm, v, &kind);
  else
    text_kind(&kind, v);
  if (kind.len > 48) {
    kind.len = 45;
    while (kind.len && ((unsigned char)kind.text[kind.len] & 0xc0) == 0x80) kind.len--;
    text_adds(&kind, "...");
  }
  int name_width = (int)utf8_columns(name, strlen(name));
  int kind_width = kind.len ? (int)utf8_columns(kind.text, kind.len) : 0;
  if (l->measure) {
    if (name_width > l->name_width) l->name_width = name_width;
    if (kind_width > l->kind_width) l->kind_width = kind_width;
  } else {
    size_t bytes = interp_bytes(v);
    text_addf(l->out, "%s%*s  %s%*s  ", name, l->name_width - name_width, "", kind.text ? kind.text : "",
              l->kind_width - kind_width, "");
    if (bytes) text_size(l->out, (double)bytes);
    while (l->out->len && l->out->text[l->out->len - 1] == ' ') l->out->len--;
    text_adds(l->out, "\n");
    l->total += bytes;
    l->n++;
  }
  text_free(&kind);
}

static void command_vars(session *s, const char *argument) {
  text_buf t = {0};
  listing l = {.s = s, .out = &t, .prefix = argument, .measure = true};
  interp_globals(s->vm, list_variable, &l);
  l.measure = false;
  interp_globals(s->vm, list_variable, &l);
  const mem_stats *m = mem_stats_of(s->vm);
  text_addf(&t, "%d variable%s, the session uses ", l.n, l.n == 1 ? "" : "s");
  text_size(&t, (double)m->live);
  text_adds(&t, ", at most it was ");
  text_size(&t, (double)m->peak);
  text_adds(&t, "\n");
  put_pages(s, &t);
}

static void command_reset(session *s, const char *argument) {
  if (*argument) {
    fprintf(stderr, "it is used so: :reset\n");
    return;
  }
  vm_run run;
  vm_run_begin(s->vm, &run);
  if (!interp_reset(s->vm)) cli_report(s->vm);
  vm_run_end(s->vm, &run);
  s->copied = (copy_count){0};
  s->ncopy_places = 0;
}

static void command_load(session *s, const char *argument) {
  if (no_argument(argument, ":load FILE")) return;
  size_t len = strlen(argument);
  bool quoted = len > 1 && argument[0] == '"' && argument[len - 1] == '"';
  char *path = strndup(argument + quoted, len - 2 * (size_t)quoted);
  bool file = path && strcmp(path, "-") != 0; /* the terminal itself is none */
  if (path && !file) fprintf(stderr, ":load takes a file\n");
  char *text = file ? cli_read(path, &len) : NULL;
  if (text) {
    copy_count before = copies_begin(s);
    if (qn_eval(s->vm, path, text, len, NULL) != QN_OK) cli_report(s->vm);
    copies_end(s, before);
  }
  free(text);
  free(path);
}

/* ---- time and copies ----------------------------------------------------------------------------------------------------- */

static void command_time(session *s, const char *argument) {
  if (no_argument(argument, ":time CODE")) return;
  bool more;
  size_t live = mem_stats_of(s->vm)->live;
  bool good = session_run(s, argument, strlen(argument), true, &more);
  double took = s->ran - s->began, grown = (double)mem_stats_of(s->vm)->live - (double)live;
  if (!good) return;
  text_buf t = {0};
  double scale = took >= 1 ? 1 : took >= 1e-3 ? 1e3 : 1e6;
  text_decimal(&t, took * scale, 'f', took * scale >= 100 ? 0 : took * scale >= 10 ? 1 : 2);
  text_addf(&t, " %s", scale == 1 ? "s" : scale == 1e3 ? "ms" : "\302\265s");
  if (grown > 0) {
    text_adds(&t, ", ");
    text_size(&t, grown);
    text_adds(&t, " more in use");
  }
  text_adds(&t, "\n");
  put(&t);
}

static void command_copies(session *s, const char *argument) {
  bool more;
  if (*argument && !session_run(s, argument, strlen(argument), true, &more)) return;
  text_buf t = {0};
  text_addf(&t, "%llu %s", (unsigned long long)s->copied.count, s->copied.count == 1 ? "copy" : "copies");
  if (s->copied.count) {
    text_adds(&t, ", ");
    text_size(&t, (double)s->copied.bytes);
  }
  text_adds(&t, "\n");
  uint64_t listed = 0;
  for (uint32_t i = 0; i < s->ncopy_places; i++) {
    const copy_count *c = &s->copy_places[i];
    const source_text *source = source_get(s->vm, c->at.source);
    listed += c->count;
    text_addf(&t, "  %6llu  ", (unsigned long long)c->count);
    text_size(&t, (double)c->bytes);
    if (source) {
      int line, column;
      source_position(source, c->at.start, &line, &column);
      const char *code = source->text + c->at.start;
      text_addf(&t, "  %s:%d:%d  ", source->name, line, column);
      text_add(&t, code, strcspn(code, "\n") < c->at.end - c->at.start ? strcspn(code, "\n") : c->at.end - c->at.start);
    }
    text_adds(&t, "\n");
  }
  if (listed < s->copied.count) text_addf(&t, "  %6llu  elsewhere\n", (unsigned long long)(s->copied.count - listed));
  put(&t);
}

/* ---- what the compiler does ---------------------------------------------------------------------------------------------- */

/* Is one of the arguments in a call given by name, or spread from a list? */
static bool has_keywords(const char *text, const uint8_t *highlights, size_t from, size_t to) {
  int depth = 0;
  for (size_t i = from; i < to; i++) {
    if (highlights[i] == HIGHLIGHT_operator && i + 1 < to && text[i] == '.' && text[i + 1] == '.') return true;
    if (highlights[i] != HIGHLIGHT_plain) continue;
    if (strchr("([{", text[i])) depth++;
    if (strchr(")]}", text[i])) depth--;
    if (depth == 0 && text[i] == ':') return true;
  }
  return false;
}

/* Code as the body of a function: what its header names, which are also the arguments; and what it ends with. */
typedef struct body_parts {
  text_buf names; /* the variables that the code assigns, which a function could not: "z, s" */
  text_buf ends;  /* these, and what a `let` at the end of the code defines, which would be lost: "z, s, q" */
} body_parts;

/* Appends an item to a list with commas, unless it is in there. */
static bool list_item(text_buf *t, const char *item, size_t len) {
  for (size_t i = 0; i < t->len; i += 2) { /* behind ", " */
    const char *end = memchr(t->text + i, ',', t->len - i);
    size_t n = end ? (size_t)(end - t->text) - i : t->len - i;
    if (n == len && memcmp(t->text + i, item, n) == 0) return false;
    i += n;
  }
  text_addf(t, "%s%.*s", t->len ? ", " : "", (int)len, item);
  return !t->failed;
}

/* The same for what stands between `let` and `=`, without its signature. */
static bool pattern_item(text_buf *t, const char *at, const char *end) {
  const char *stop = at;
  while (stop < end && *stop != '=' && *stop != ':') stop++;
  while (stop > at && stop[-1] == ' ') stop--;
  return list_item(t, at, (size_t)(stop - at));
}

/* Writes a function with this code as its body. */
static void body_function(const body_parts *b, const char *code, text_buf *t) {
  text_addf(t, "fn(%s) { %s", b->names.len ? b->names.text : "", code);
  if (b->ends.len) text_addf(t, "\n(%s)", b->ends.text);
  text_adds(t, " }");
}

static void write_nothing(void *user, int stream, const char *text, size_t len) {
  (void)user, (void)stream, (void)text, (void)len;
}

/* Finds the parts: makes the function, calls it never, and goes by what the language says against it. What is left to say is said when the
 * function is run. */
static void body_find(session *s, const char *code, body_parts *b) {
  qn_config *config = &s->vm->config;
  void (*write)(void *user, int stream, const char *text, size_t len) = config->write;
  config->write = write_nothing;    /* warnings come when it is run */
  bool one = !strpbrk(code, ";\n"); /* a `let` by itself: patterns are no lost values */
  const char *is = one && strncmp(code, "let ", 4) == 0 ? strchr(code, '=') : NULL;
  if (is && code[4] != '{') pattern_item(&b->ends, code + 4, is);
  for (bool more = true; more;) {
    text_buf t = {0};
    qn_value f = value_nil();
    body_function(b, code, &t);
    qn_status status = t.failed ? QN_OK : qn_eval_prompt(s->vm, t.text, t.len, &f);
    const qn_error_object *e = status == QN_OK ? NULL : s->vm->error;
    more = false;
    if (e && e->at.end <= t.len) {
      const char *at = t.text + e->at.start, *end = t.text + e->at.end;
      if (e->id == E_assign_outward)
        more = list_item(&b->names, at, (size_t)(end - at)) && list_item(&b->ends, at, (size_t)(end - at));
      if (e->id == E_lost_value && strncmp(at, "let ", 4) == 0) {
        more = pattern_item(&b->ends, at + 4, end);
      }
    }
    if (status == QN_OK)
      value_release(s->vm, f);
    else
      error_clear(s->vm);
    text_free(&t);
  }
  config->write = write;
}

/* Runs `verb(f, arguments)` for an argument f(arguments), and `verb(f)`, which is of its last call, for the name of a function. Any other code becomes the body of a function: `verb(fn() code)`. What it assigns are
 * parameters, `verb(fn(z) { z = z + 1; z }, z)`, so that the session's variables stay as they are. */
static void ask(session *s, const char *verb, const char *argument) {
  if (!*argument) {
    fprintf(stderr, "it is used so: :%s f(x)\n", verb);
    return;
  }
  size_t len = strlen(argument), open = 0;
  if (parse_incomplete(s->vm, argument,
                       len)) { /* run alone, so that the error does not show what would be put around it */
    fprintf(stderr, "this is not complete: %s\n", argument);
    return;
  }
  uint8_t *highlights = malloc(len + 1);
  if (!highlights) return;
  parse_highlights(s->vm, argument, len, highlights);
  int depth = 0;
  for (size_t i = 0; i < len && !open; i++) {
    if (highlights[i] != HIGHLIGHT_plain) continue;
    if (argument[i] == '(' && depth == 0 && i) open = i;
    if (strchr("([{", argument[i])) depth++;
    if (strchr(")]}", argument[i])) depth--;
  }
  bool call = open && argument[len - 1] == ')' && chain_begin(argument, highlights, open) == 0 &&
              edit_partner(argument, len, highlights, open) == len - 1; /* the call is the whole text */
  qn_value f;
  call = call && !has_keywords(argument, highlights, open + 1, len - 1) &&
         chain_value(s->vm, argument, highlights, 0, open, &f) && value_is(f, TAG_FN) &&
         value_fn(f)->head.flags != FN_BUILTIN;
  bool named = !open && chain_begin(argument, highlights, len) == 0 &&
               chain_value(s->vm, argument, highlights, 0, len, &f) && value_is(f, TAG_FN) &&
               value_fn(f)->head.flags != FN_BUILTIN;
  text_buf t = {0};
  if (named) {
    text_addf(&t, "%s(%s)", verb, argument);
  } else if (call) {
    bool any = strspn(argument + open + 1, " \t") < len - open - 2;
    text_addf(&t, "%s(%.*s%s%.*s)", verb, (int)open, argument, any ? ", " : "", (int)(len - open - 2),
              argument + open + 1);
  } else {
    body_parts b = {0};
    body_find(s, argument, &b);
    text_addf(&t, "%s(", verb);
    body_function(&b, argument, &t);
    text_addf(&t, "%s%s)", b.names.len ? ", " : "", b.names.len ? b.names.text : "");
    text_free(&b.names);
    text_free(&b.ends);
  }
  free(highlights);
  bool more;
  if (!t.failed) session_run(s, t.text, t.len, true, &more);
  text_free(&t);
}

static void command_explain(session *s, const char *argument) { ask(s, "explain", argument); }
static void command_graph(session *s, const char *argument) { ask(s, "graph", argument); }

static void command_code(session *s, const char *argument) {
  s->code = true;
  ask(s, "code", argument);
  s->code = false;
}

/* ---- which text is a command --------------------------------------------------------------------------------------------- */

/* Splits a text into its first word and the rest; both without the blanks around them. */
static void split(const char *text, size_t len, const char **word, size_t *word_len, const char **rest,
                  size_t *rest_len) {
  static const char blank[] = " \t\r\n";
  while (len && strchr(blank, *text)) text++, len--;
  while (len && strchr(blank, text[len - 1])) len--;
  size_t n = 0;
  /* help(name), as in other languages */
  if (len > 6 && strncmp(text, "help(", 5) == 0 && text[len - 1] == ')') {
    *word = text;
    *word_len = 4;
    *rest = text + 5;
    *rest_len = len - 6;
    if (*rest_len > 2 && **rest == '"' && (*rest)[*rest_len - 1] == '"') {
      ++*rest;
      *rest_len -= 2;
    }
    return;
  }
  if (len && *text == '?')
    n = 1;
  else
    while (n < len && !strchr(blank, text[n])) n++;
  *word = text;
  *word_len = n;
  while (n < len && strchr(blank, text[n])) n++;
  *rest = text + n;
  *rest_len = len - n;
}

static bool is_word(const char *word, size_t len, const char *name) {
  return strlen(name) == len && memcmp(word, name, len) == 0;
}

/* Can the text after `help` be a topic, rather than code that goes on with a variable called help? */
static bool is_topic(const char *rest, size_t len) {
  for (size_t i = 0; i < len; i++)
    if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.", rest[i])) return false;
  return true;
}

bool command_is(session *s, const char *text, size_t len) {
  const char *word, *rest;
  size_t n, m;
  split(text, len, &word, &n, &rest, &m);
  if (!n) return false;
  if (*word == '?' || *word == ':') return !memchr(word, '\n', n) && !memchr(rest, '\n', m);
  bool ends = is_word(word, n, "exit") || is_word(word, n, "quit"), help = is_word(word, n, "help");
  if (is_word(word, n, "exit()") || is_word(word, n, "quit()")) {
    ends = true;
    n -= 2;
  }
  qn_value v;
  if (!(ends && !m) && !(help && is_topic(rest, m))) return false;
  return !interp_lookup(s->vm, word, n, &v);
}

void command_run(session *s, const char *text, size_t len) {
  const char *word, *rest;
  size_t n, m;
  split(text, len, &word, &n, &rest, &m);
  char *argument = strndup(rest, m);
  if (!argument) return;
  const char *name = *word == '?' ? (m ? "doc" : "help") : *word == ':' ? word + 1 : *word == 'h' ? "help" : "quit";
  size_t name_len = *word == ':' ? n - 1 : strlen(name);
  const char *names[64];
  int found = -1, listed = 0;
  for (int i = 0; i < command_count; i++) {
    if (is_word(name, name_len, commands[i].name)) found = i;
    if (listed < 64) names[listed++] = commands[i].name;
  }
  if (found >= 0) {
    commands[found].run(s, argument);
  } else {
    text_buf t = {0};
    char *wrong = strndup(name, name_len);
    fprintf(stderr, "there is no command :%.*s", (int)name_len, name);
    if (wrong && text_nearest(&t, "; nearest: :", wrong, names, listed) && !t.failed) fputs(t.text, stderr);
    fprintf(stderr, "; :help lists them\n");
    text_free(&t);
    free(wrong);
  }
  free(argument);
  fflush(stdout);
}
