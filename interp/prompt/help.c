/* `quern help`: functions, modules, dtypes, parts of the language, error ids and tunables, from the tables and texts that
 * define them. */
#include <stdio.h>
#include <string.h>

#include "interp/node.h"
#include "interp/prompt/help.h"
#include "lang/format.h"

/* Appends a script, indented, below a title. */
static void help_script(const char *title, const char *script, text_buf *out) {
  text_addf(out, "\n%s\n\n", title);
  for (const char *line = script; *line;) {
    size_t len = strcspn(line, "\n");
    if (len) text_adds(out, "    ");
    text_add(out, line, len);
    text_adds(out, "\n");
    line += len + (line[len] == '\n');
  }
}

static void help_error(const error_row *e, text_buf *out) {
  text_addf(out, "E%d: %s\n\n%s\n", e->id, e->title, e->help);
  if (e->when) {
    text_addf(out, "\nIt happens so: %s\n", e->when);
    return;
  }
  help_script("Example, which ends with this error:", e->example, out);
  help_script("Hint:", e->hint, out);
}

/* Appends what `quern help errors` prints: the list of errors. */
static void help_errors(text_buf *out) {
  for (int i = 0; i < error_row_count; i++) text_addf(out, "E%d  %s\n", error_rows[i].id, error_rows[i].title);
  text_adds(out, "\n`quern help E203` explains one of them.\n");
}

/* The rows of topics.def. */
static const struct {
  const char *name, *text, *example; /* for another name of a topic `text` is the topic, and `example` is NULL */
} topics[] = {
#define TOPIC(name, text, example) {name, text, example},
#define ALSO(name, topic) {name, topic, NULL},
#include "interp/prompt/topics.def"
};
enum { TOPICS = sizeof topics / sizeof *topics };

/* Is a name one of the language's operators? */
static bool is_operator(const char *name) {
  static const char all[] = " == != < <= > >= | & + - * / // % @ ~ ** += -= *= /= //= %= **= ";
  size_t n = strlen(name);
  for (const char *s = strstr(all, name); n && s; s = strstr(s + 1, name))
    if (s > all && s[-1] == ' ' && s[n] == ' ') return true;
  return false;
}

static bool help_topic(const char *name, text_buf *out) {
  if (is_operator(name)) name = "operators";
  for (int i = 0; i < TOPICS; i++) {
    if (strcmp(topics[i].name, name) != 0) continue;
    if (!topics[i].example) return help_topic(topics[i].text, out);
    text_addf(out, "%s\n", topics[i].text);
    help_script("Example:", topics[i].example, out);
    return true;
  }
  return false;
}

/* A list of names that is written in lines of so many columns. */
typedef struct name_lines {
  text_buf *out;
  int columns, used; /* 0: nothing is there yet */
} name_lines;

static void name_add(name_lines *l, const char *name) {
  int len = (int)utf8_columns(name, strlen(name));
  if (!l->used || l->used + 2 + len > l->columns) {
    text_adds(l->out, l->used ? "\n" : "");
    l->used = 0;
  }
  text_addf(l->out, "  %s", name);
  l->used += 2 + len;
}

static void help_topics(int columns, text_buf *out) {
  text_adds(out, "quern help NAME explains\n\n");
  name_lines l = {.out = out, .columns = columns};
  for (int i = 0; i < TOPICS; i++) name_add(&l, topics[i].name);
  text_adds(out, "\n  functions, and each by its name (softmax); dtypes (f32) and modules (nn, optim.adam)\n"
                 "  errors, and each by its id (E203)\n  tunables\n");
}

/* Appends all tunables, or the one of this name; false if there is none. */
static bool help_tunables(const char *name, text_buf *out) {
  bool found = false;
  for (int i = 0; i < TUNABLE_COUNT; i++) {
    const tunable_row *t = &tunable_rows[i];
    if (name && strcmp(name, t->name) != 0) continue;
    text_addf(out, "%-20s %s\n%-20s default %lld, from %lld to %lld\n", t->name, t->meaning, "", (long long)t->def,
              (long long)t->min, (long long)t->max);
    found = true;
  }
  if (found) text_adds(out, "\nSet with --set NAME=VALUE or QUERN_SET=\"a=1,b=2\".\n");
  return found;
}

/* Appends the lines [from, to) of a text, all comments, without their comment marks. */
static void comment_lines(const source_text *s, int from, int to, text_buf *out) {
  for (int i = from; i < to; i++) {
    const char *line = s->text + s->lines[i] + 1;
    if (*line == ' ') line++;
    text_add(out, line, strcspn(line, "\n"));
    text_adds(out, "\n");
  }
}

/* Appends the comment directly above a definition. */
static void comment_above(qn_vm *vm, span at, text_buf *out) {
  const source_text *s = source_get(vm, at.source);
  if (!s) return;
  int line, column;
  source_position(s, at.start, &line, &column);
  int first = line - 1;
  /* At the prompt the comment may have been typed as a text of its own, before this one. */
  const source_text *above = first == 0 ? source_get(vm, s->above) : NULL;
  if (above) {
    uint32_t lines = 0;
    while (lines < above->nlines && above->text[above->lines[lines]] == '#') lines++;
    bool all = lines == above->nlines || above->lines[lines] == above->len;
    if (all) comment_lines(above, 0, (int)lines, out);
  }
  while (first > 0 && s->text[s->lines[first - 1]] == '#') first--;
  comment_lines(s, first, line - 1, out);
}

static void help_function(qn_vm *vm, qn_value f, text_buf *out) {
  interp_signature(vm, f, out);
  text_adds(out, "\n");
  if (value_is(f, TAG_DTYPE)) {
    text_addf(out, "\n%s; %s(x) converts a number or an array\n", dtype_rows[f.u.i].doc, dtype_rows[f.u.i].name);
    return;
  }
  const qn_fn *fn = value_fn(f);
  text_adds(out, "\n");
  if (fn->head.flags == FN_BUILTIN)
    text_addf(out, "%s\n", ((const builtin_def *)fn->code)->doc);
  else if (fn->head.flags == FN_USER)
    comment_above(vm, ((fn_code *)fn->code)->at, out);
}

static void help_example(qn_vm *vm, const char *name, text_buf *out) {
  const builtin_table *t = vm->builtins;
  for (int i = 0; i < t->nexamples; i++)
    if (strcmp(t->examples[i].name, name) == 0) help_script("Example:", t->examples[i].script, out);
}

/* The public function of this name in the builtin scope; NULL if there is none. */
static const qn_fn *public_function(qn_vm *vm, const char *name) {
  const scope *s = interp_of(vm)->builtin;
  for (uint32_t i = 0; i < s->n; i++)
    if (strcmp(s->cells[i]->name->text, name) == 0 && value_is(s->cells[i]->value, TAG_FN))
      return name[0] == '_' ? NULL : value_fn(s->cells[i]->value);
  return NULL;
}

/* Does the table of builtins have this name? */
static bool has_row(const builtin_table *t, const char *name) {
  int i = 0;
  while (i < t->nbuiltins && strcmp(t->builtins[i].name, name) != 0) i++;
  return i < t->nbuiltins;
}

/* Adds a name, with its heading before the first one. */
static void topic_add(name_lines *l, const char *title, size_t len, const char *name) {
  if (!l->used) text_addf(l->out, "%.*s\n", (int)len, title);
  name_add(l, name);
}

static void topic_end(name_lines *l) {
  if (l->used) text_adds(l->out, "\n\n");
  l->used = 0;
}

/* The heading, a comment like `# ---- Statistics ----`, that a place of a text lies below; "" if there is none. */
static const char *heading_above(const source_text *s, uint32_t place, size_t *len) {
  static const char mark[] = "# ---- ";
  const char *title = "";
  *len = 0;
  for (uint32_t i = 0; s && i < s->nlines && s->lines[i] < place; i++) {
    const char *line = s->text + s->lines[i], *end;
    if (strncmp(line, mark, strlen(mark)) != 0 || !(end = strstr(line + strlen(mark), " --"))) continue;
    title = line + strlen(mark);
    *len = (size_t)(end - title);
  }
  return title;
}

/* Appends what `quern help functions` prints: the functions of the builtin scope, under the headings of the tables and texts that define
 * them. */
static void help_functions(qn_vm *vm, int columns, text_buf *out) {
  const builtin_table *t = vm->builtins;
  name_lines l = {.out = out, .columns = columns};
  for (int i = 0, row = 0; i < t->ntopics; i++) {
    const char *title = t->topics[i].title;
    for (int end = i + 1 < t->ntopics ? t->topics[i + 1].first : t->nbuiltins; row < end; row++)
      if (public_function(vm, t->builtins[row].name)) topic_add(&l, title, strlen(title), t->builtins[row].name);
    topic_end(&l);
  }
  for (int i = 0, op = 0; i < op_topic_count; i++) {
    const char *title = op_topics[i].title;
    for (int end = i + 1 < op_topic_count ? op_topics[i + 1].first : OP_COUNT; op < end; op++)
      if (public_function(vm, op_rows[op].name) && !has_row(t, op_rows[op].name))
        topic_add(&l, title, strlen(title), op_rows[op].name);
    topic_end(&l);
  }
  const scope *s = interp_of(vm)->builtin;
  const char *last = "";
  for (uint32_t i = 0; i < s->n; i++) {
    const global_cell *c = s->cells[i];
    const qn_fn *f = public_function(vm, c->name->text);
    if (!f || f->head.flags != FN_USER) continue;
    span at = ((const fn_code *)f->code)->at;
    size_t len;
    const char *title = heading_above(source_get(vm, at.source), at.start, &len);
    if (title != last) topic_end(&l);
    topic_add(&l, last = title, len, c->name->text);
  }
  topic_end(&l);
  text_adds(out, "`quern help softmax` explains one of them, at the prompt ?softmax.\n");
}

static void help_module(qn_vm *vm, const scope *s, text_buf *out) {
  text_addf(out, "module %s\n\n", s->module->name->text);
  for (uint32_t i = 0; i < s->n; i++) {
    const global_cell *c = s->cells[i];
    if (!c->declared || c->name->text[0] == '_' || c->value.head == TAG_UNSET) continue;
    if (!value_is(c->value, TAG_FN)) {
      text_addf(out, "  %s\n", c->name->text);
      continue;
    }
    text_adds(out, "  ");
    interp_signature(vm, c->value, out);
    text_adds(out, "\n");
  }
}

typedef struct near {
  const char *names[1024];
  int n;
} near;

static void add_name(void *ctx, const char *name) {
  near *l = ctx;
  if (l->n < (int)(sizeof l->names / sizeof *l->names)) l->names[l->n++] = name;
}

static bool help_unknown(qn_vm *vm, const char *topic, text_buf *out) {
  near *l = mem_zalloc(vm, sizeof *l);
  if (!l) return false;
  interp_names(vm, "", add_name, l);
  for (int i = 0; i < vm->builtins->nmodules; i++) add_name(l, vm->builtins->modules[i].name);
  for (int i = 0; i < TOPICS; i++) add_name(l, topics[i].name);
  text_addf(out, "there is no help on '%s'", topic);
  const char *hint = foreign_hint(FOREIGN_NAME, topic, strlen(topic));
  if (!hint) hint = foreign_hint(FOREIGN_MEMBER, topic, strlen(topic));
  if (hint)
    text_addf(out, "; %s", hint);
  else
    text_nearest(out, "; nearest: ", topic, l->names, l->n);
  text_adds(out, "\n");
  mem_free(vm, l, sizeof *l);
  return false;
}

/* ---- search ----
 *
 * A question is the list of its words, without words such as "the". Words are compared by their stems. Results are ordered by how many of
 * the words they have, then by how many are in their names, then in their first lines. */

enum { ASKED_MOST = 8, WORD_MOST = 32, SHOWN_MOST = 12, FOUND_MOST = 512, SUMMARY_MOST = 70 };

typedef struct asked_word {
  char stem[WORD_MOST];
  const char *also; /* another stem for the same thing, or NULL */
} asked_word;

typedef struct found {
  char name[64];
  text_buf summary;
  int score;
} found;

typedef struct question {
  qn_vm *vm;
  asked_word words[ASKED_MOST];
  int n;
  found *list;
  int nfound;
} question;

static bool word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c & 0x80;
}

/* Reads the next word from *at on and writes its stem: in small letters, without the ending of a plural or a verb. False at the end. */
static bool next_stem(const char **at, const char *end, char stem[WORD_MOST]) {
  static const char *const endings[][2] = {{"ices", "ix"}, {"ies", "y"}, {"ches", "ch"}, {"shes", "sh"}, {"xes", "x"},
                                           {"sses", "ss"}, {"ing", ""},  {"ed", ""},     {"es", "e"},    {"s", ""}};
  const char *s = *at;
  while (s < end && !word_char(*s)) s++;
  if (s == end) return false;
  size_t n = 0;
  for (; s < end && word_char(*s); s++) {
    char c = *s >= 'A' && *s <= 'Z' ? (char)(*s + 32) : *s;
    if (n < WORD_MOST - 1) stem[n++] = c;
  }
  stem[n] = 0;
  *at = s;
  for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
    const char *from = endings[i][0], *to = endings[i][1];
    size_t len = strlen(from);
    if (n < len + 3 || strcmp(stem + n - len, from) != 0) continue;
    if (strcmp(from, "s") == 0 && strchr("su", stem[n - 2])) continue; /* less, plus */
    n = n - len + strlen(to);
    memmove(stem + n - strlen(to), to, strlen(to) + 1);
    break;
  }
  if (n > 3 && stem[n - 1] == stem[n - 2] && !strchr("aeiouls", stem[n - 1])) stem[--n] = 0; /* plotting */
  if (n > 3 && stem[n - 1] == 'e') stem[--n] = 0;
  return true;
}

static bool is_filler(const char *stem) {
  static const char *const fillers[] = {"a",     "an",   "the",  "how", "do",   "i",    "to",   "in",  "of",
                                        "on",    "my",   "is",   "are", "it",   "for",  "with", "and", "or",
                                        "can",   "what", "we",   "me",  "you",  "from", "by",   "at",  "get",
                                        "there", "that", "this", "use", "does", "be"};
  for (size_t i = 0; i < sizeof fillers / sizeof *fillers; i++)
    if (strcmp(stem, fillers[i]) == 0) return true;
  return false;
}

/* A stem that means the same as this one in the texts of help, or NULL. */
static const char *other_stem(const char *stem) {
  static const char *const same[][2] = {{"read", "load"},     {"invers", "inv"},        {"averag", "mean"},
                                        {"mov", "window"},    {"clos", "lambda"},       {"closur", "lambda"},
                                        {"dict", "record"},   {"dictionary", "record"}, {"tensor", "array"},
                                        {"loop", "for"},      {"deriv", "gradient"},    {"derivativ", "gradient"},
                                        {"autograd", "grad"}, {"delet", "remov"},       {"length", "len"},
                                        {"writ", "sav"},      {"text", "str"},          {"exception", "try"},
                                        {"regex", "match"},   {"plot", "line"},         {"roll", "window"}};
  for (size_t i = 0; i < sizeof same / sizeof *same; i++)
    if (strcmp(stem, same[i][0]) == 0) return same[i][1];
  return NULL;
}

static bool is_asked(const asked_word *w, const char *stem) {
  size_t n = strlen(w->stem);
  return strcmp(w->stem, stem) == 0 || (n >= 4 && strncmp(w->stem, stem, n) == 0) ||
         (w->also && strcmp(w->also, stem) == 0);
}

/* Bit i is set if word i of the question is in the text. */
static unsigned words_in(const question *q, const char *text, size_t len) {
  unsigned bits = 0;
  char stem[WORD_MOST];
  for (const char *at = text, *end = text + len; next_stem(&at, end, stem);)
    for (int i = 0; i < q->n; i++)
      if (is_asked(&q->words[i], stem)) bits |= 1u << i;
  return bits;
}

static int bits_in(unsigned bits) {
  int n = 0;
  for (; bits; bits &= bits - 1) n++;
  return n;
}

/* Makes something of this name, which `text` describes, a result if it has a word of the question. `summary` is shown for it; NULL: the
 * first line of the text. */
static void consider(question *q, const char *name, const char *text, size_t len, const char *summary) {
  enum { WORD = 100, NAMED = 10, FIRST = 1, WHOLE = 5 };
  if (q->nfound == FOUND_MOST) return;
  size_t line = 0;
  while (line < len && text[line] != '\n') line++;
  unsigned named = words_in(q, name, strlen(name)), first = words_in(q, text, line), all = words_in(q, text, len);
  if (!(named | all)) return;
  found *f = &q->list[q->nfound++];
  snprintf(f->name, sizeof f->name, "%s", name);
  f->score = WORD * bits_in(named | all) + NAMED * bits_in(named) + FIRST * bits_in(first);
  for (int i = 0; i < q->n; i++) f->score += strcmp(q->words[i].stem, name) == 0 ? WHOLE : 0;
  f->summary = (text_buf){.vm = q->vm};
  text_add(&f->summary, summary ? summary : text, summary ? strlen(summary) : line);
}

/* Considers the functions of a module of the library, by the comments above them in its text. */
static void consider_module(question *q, const embedded_module *m) {
  text_buf doc TEXT_OWNED = {.vm = q->vm};
  for (const char *line = m->text, *next; line; line = next) {
    size_t len = strcspn(line, "\n");
    next = line[len] ? line + len + 1 : NULL;
    if (line[0] == '#') {
      text_add(&doc, line + 1 + (line[1] == ' '), len - 1 - (line[1] == ' '));
      text_adds(&doc, "\n");
      continue;
    }
    if (strncmp(line, "fn ", 3) == 0 && line[3] != '_' && !doc.failed && doc.text) {
      char name[64];
      snprintf(name, sizeof name, "%s.%.*s", m->name, (int)strcspn(line + 3, "("), line + 3);
      consider(q, name, doc.text, doc.len, NULL);
    }
    doc.len = 0;
  }
}

static void consider_all(question *q) {
  qn_vm *vm = q->vm;
  const scope *s = interp_of(vm)->builtin;
  for (uint32_t i = 0; i < s->n; i++) {
    const global_cell *c = s->cells[i];
    if (!value_is(c->value, TAG_FN) || c->name->text[0] == '_') continue;
    text_buf doc = {.vm = vm};
    const qn_fn *fn = value_fn(c->value);
    if (fn->head.flags == FN_BUILTIN)
      text_adds(&doc, ((const builtin_def *)fn->code)->doc);
    else if (fn->head.flags == FN_USER)
      comment_above(vm, ((fn_code *)fn->code)->at, &doc);
    if (!doc.failed) consider(q, c->name->text, doc.text ? doc.text : "", doc.len, NULL);
    text_free(&doc);
  }
  for (int i = 0; i < TOPICS; i++) {
    if (!topics[i].example) continue;
    /* A topic is also found by its other names, and by the functions in its example. */
    text_buf all TEXT_OWNED = {.vm = vm};
    text_addf(&all, "%s\n", topics[i].text);
    for (int k = 0; k < TOPICS; k++)
      if (!topics[k].example && strcmp(topics[k].text, topics[i].name) == 0) text_addf(&all, "%s\n", topics[k].name);
    for (const char *fn = strstr(topics[i].example, "fn "); fn; fn = strstr(fn + 3, "fn "))
      text_addf(&all, "%.*s\n", (int)strcspn(fn + 3, "("), fn + 3);
    char page[96];
    snprintf(page, sizeof page, "a page: help %s", topics[i].name);
    if (!all.failed) consider(q, topics[i].name, all.text, all.len, page);
  }
  for (int i = 0; i < vm->builtins->nmodules; i++)
    if (strcmp(vm->builtins->modules[i].name, "prelude") != 0) consider_module(q, &vm->builtins->modules[i]);
}

/* Reads the words of a question; false if none of them means anything. */
static bool question_read(question *q, const char *words) {
  char stem[WORD_MOST];
  for (const char *at = words, *end = words + strlen(words); q->n < ASKED_MOST;) {
    const char *from = at + strspn(at, " ");
    if (!next_stem(&at, end, stem)) break;
    char raw[WORD_MOST] = "";
    for (size_t i = 0; from + i < at && i < WORD_MOST - 1; i++) raw[i] = from[i];
    if (is_filler(raw) || is_filler(stem)) continue;
    memcpy(q->words[q->n].stem, stem, sizeof stem);
    q->words[q->n++].also = other_stem(stem);
  }
  return q->n > 0;
}

/* Appends what is written here for those words that are names in other languages. False if there are none. */
static bool search_foreign(const char *words, text_buf *out) {
  bool any = false;
  for (const char *s = words + strspn(words, " "); *s; s += strspn(s, " ")) {
    size_t n = strcspn(s, " ");
    char word[WORD_MOST] = "";
    memcpy(word, s, n < WORD_MOST ? n : 0);
    const char *hint = is_filler(word) ? NULL : foreign_hint(FOREIGN_NAME | FOREIGN_MEMBER, s, n);
    if (hint) text_addf(out, "  %-16.*s %s\n", (int)n, s, hint);
    any |= hint != NULL;
    s += n;
  }
  return any;
}

/* Appends a line for each function, module and page that fits some words best. False if none does. */
static bool help_search(qn_vm *vm, const char *words, text_buf *out) {
  question q = {.vm = vm};
  if (strchr(words, '_') || !question_read(&q, words))
    return false; /* a word with an underscore is a name, not a question */
  q.list = mem_zalloc(vm, FOUND_MOST * sizeof *q.list);
  if (!q.list) return false;
  size_t start = out->len;
  text_addf(out, "nothing is called '%s'; this mentions it:\n", words);
  bool any = search_foreign(words, out);
  consider_all(&q);
  for (int shown = 0; shown < SHOWN_MOST; shown++) {
    found *best = NULL;
    for (int i = 0; i < q.nfound; i++)
      if (q.list[i].score > (best ? best->score : 0)) best = &q.list[i];
    if (!best) break;
    const char *summary = best->summary.failed || !best->summary.text ? "" : best->summary.text;
    size_t len = strlen(summary);
    if (len > SUMMARY_MOST)
      for (len = SUMMARY_MOST; len > 0 && summary[len] != ' '; len--) {}
    text_addf(out, "  %-16s %.*s%s\n", best->name, (int)len, summary, summary[len] ? " ..." : "");
    best->score = 0;
    any = true;
  }
  for (int i = 0; i < q.nfound; i++) text_free(&q.list[i].summary);
  mem_free(vm, q.list, FOUND_MOST * sizeof *q.list);
  if (!any) out->len = start;
  return any;
}

/* Appends help on a builtin, a module, or a name in a module. False if it is none of these. */
static bool help_name(qn_vm *vm, const char *topic, text_buf *out) {
  const interp *ip = interp_of(vm);
  const char *dot = strchr(topic, '.');
  size_t len = dot ? (size_t)(dot - topic) : strlen(topic);
  bool module = false;
  for (int i = 0; i < vm->builtins->nmodules; i++) {
    const char *name = vm->builtins->modules[i].name;
    module |= strlen(name) == len && memcmp(name, topic, len) == 0 && strcmp(name, "prelude") != 0;
  }
  const char *inner = dot ? dot + 1 : topic;
  qn_str *outer = str_intern(vm, topic, len), *name = outer ? str_intern(vm, inner, strlen(inner)) : NULL;
  const global_cell *c = name && !dot ? scope_find(ip->builtin, name) : NULL;
  qn_value m = value_nil();
  bool found = false;
  if (c && (value_is(c->value, TAG_FN) || value_is(c->value, TAG_DTYPE))) {
    help_function(vm, c->value, out);
    help_example(vm, topic, out);
    found = true;
  } else if (name && module) {
    m = import_module(vm, ip->main, outer->text, false, SPAN_NONE);
    const scope *s = value_is(m, TAG_MODULE) ? ((const qn_module *)m.u.p)->scope : NULL;
    c = s && dot ? scope_find(s, name) : NULL;
    found = s && (!dot || (c && c->declared && value_is(c->value, TAG_FN)));
    if (found && dot)
      help_function(vm, c->value, out);
    else if (found)
      help_module(vm, s, out);
  }
  value_release(vm, m);
  if (name) value_release(vm, value_obj(TAG_STR, name));
  if (outer) value_release(vm, value_obj(TAG_STR, outer));
  return found;
}

bool help_about(qn_vm *vm, const char *topic, int columns, text_buf *out) {
  int64_t id;
  if (columns <= 0 || columns > FORMAT_COLUMNS) columns = FORMAT_COLUMNS;
  if ((topic[0] == 'E' || topic[0] == 'e') && int_parse(topic + 1, strlen(topic + 1), &id) && id > 0 && id < 1000) {
    const error_row *e = error_find((int)id);
    if (e) {
      help_error(e, out);
      return true;
    }
    text_addf(out, "no error has the number %d; `quern help errors` lists them all\n", (int)id);
    return false;
  }
  if (help_tunables(strcmp(topic, "tunables") == 0 ? NULL : topic, out)) return true;
  if (strcmp(topic, "topics") == 0) {
    help_topics(columns, out);
    return true;
  }
  if (strcmp(topic, "functions") == 0) {
    help_functions(vm, columns, out);
    return true;
  }
  if (strcmp(topic, "errors") == 0) {
    help_errors(out);
    return true;
  }
  if (help_topic(topic, out)) return true;
  vm_run run;
  vm_run_begin(vm, &run);
  bool foreign = foreign_hint(FOREIGN_NAME, topic, strlen(topic)) || foreign_hint(FOREIGN_MEMBER, topic, strlen(topic));
  bool found = help_name(vm, topic, out) || (!foreign && help_search(vm, topic, out)) || help_unknown(vm, topic, out);
  vm_run_end(vm, &run);
  return found;
}

bool help_source(qn_vm *vm, qn_value v, text_buf *out) {
  if (!value_is(v, TAG_FN) || value_fn(v)->head.flags != FN_USER) return false;
  span at = ((const fn_code *)value_fn(v)->code)->at;
  const source_text *s = source_get(vm, at.source);
  if (!s || at.end > s->len) return false;
  text_add(out, s->text + at.start, at.end - at.start);
  text_adds(out, "\n");
  return true;
}

void help_value(qn_vm *vm, const char *name, qn_value v, text_buf *out) {
  if (value_is(v, TAG_FN) || value_is(v, TAG_DTYPE)) {
    size_t before = out->len;
    help_function(vm, v, out);
    qn_str *called = str_intern(vm, name, strlen(name));
    const global_cell *c = called ? scope_find(interp_of(vm)->builtin, called) : NULL;
    if (c && value_is(c->value, TAG_FN) && value_is(v, TAG_FN) && value_fn(c->value) == value_fn(v))
      help_example(vm, name, out);
    if (called)
      value_release(vm, value_obj(TAG_STR, called));
    else
      error_clear(vm); /* the help goes on without the example */
    if (out->len > before + 2) return;
    out->len = before; /* a transform, or a host's function */
  }
  if (value_is(v, TAG_MODULE)) {
    help_module(vm, ((const qn_module *)v.u.p)->scope, out);
    return;
  }
  text_addf(out, "%s: ", name);
  text_kind(out, v);
  char device[DEVICE_NAME];
  if (value_is(v, TAG_ARRAY) && value_array(v)->device)
    text_addf(out, " on %s", device_name(vm, value_array(v)->device, device));
  text_adds(out, "\n");
}

void help_subjects(void (*each)(void *ctx, const char *name), void *ctx) {
  for (int i = 0; i < TOPICS; i++) each(ctx, topics[i].name);
  static const char *const lists[] = {"errors", "functions", "topics", "tunables"};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) each(ctx, lists[i]);
}
