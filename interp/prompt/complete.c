/* Completion at the prompt: what could stand where the cursor is.
 *
 * The highlights of the text say whether the cursor is in a string (file names), a comment (nothing) or code. In code the characters
 * before the word tell the rest: a point (fields, modules' names, functions as methods), `import`, an open bracket of a call
 * (its keyword parameters, too). Values are looked up without running anything, so `f(x).` offers what any value has.
 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "interp/prompt/help.h"
#include "interp/prompt/prompt.h"
#include "lang/highlight.h"
#include "parser/parser.h"

typedef struct request {
  qn_vm *vm;
  const char *text;
  const uint8_t *highlights;
  size_t cursor, word; /* the word to be completed is [word, cursor) */
  choices *out;
} request;

static bool in_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80);
}

static size_t word_begin(const char *text, size_t at) {
  while (at > 0 && in_word(text[at - 1])) at--;
  return at;
}

static size_t skip_blanks_back(const char *text, size_t at) {
  while (at > 0 && (text[at - 1] == ' ' || text[at - 1] == '\t')) at--;
  return at;
}

/* Offers a name, followed by `end`, if it begins with what has been typed. */
static void offer_with(request *r, const char *name, size_t len, const char *end) {
  size_t typed = r->cursor - r->word;
  if (typed <= len && memcmp(name, r->text + r->word, typed) == 0) choices_add(r->out, name, len, end);
}

static void offer(request *r, const char *name) {
  if (*name != '_' || r->cursor > r->word) offer_with(r, name, strlen(name), "");
}

static void offer_name(void *ctx, const char *name) { offer(ctx, name); }

/* ---- chains -------------------------------------------------------------------------------------------------------------- */

size_t chain_begin(const char *text, const uint8_t *highlights, size_t end) {
  size_t at = end;
  for (;;) {
    if (at > 0 && text[at - 1] == ']') {
      size_t open = edit_partner(text, at, highlights, at - 1);
      if (open == SIZE_MAX || open == 0) return end;
      at = open;
      continue;
    }
    size_t begin = word_begin(text, at);
    if (begin == at) return end;
    at = begin;
    if (at < 2 || text[at - 1] != '.' || text[at - 2] == '.') return at;
    at--;
  }
}

/* Reads an index that is a literal, an int or a string. *out is that item or field of `in`, borrowed. False if there is none, or the index is
 * something else. */
static bool constant_index(const char *text, size_t len, qn_value in, qn_value *out) {
  int64_t i;
  if (value_is(in, TAG_RECORD) && len > 2 && text[0] == '"' && text[len - 1] == '"')
    return interp_field(in, text + 1, len - 2, out);
  if (!value_is(in, TAG_LIST) || !int_parse(text, len, &i)) return false;
  const qn_list *l = value_list(in);
  if (i < 0) i += l->len;
  if (i < 0 || i >= l->len) return false;
  *out = l->items[i];
  return true;
}

bool chain_value(qn_vm *vm, const char *text, const uint8_t *highlights, size_t begin, size_t end, qn_value *out) {
  size_t at = begin;
  while (at < end && in_word(text[at])) at++;
  if (at == begin || !interp_lookup(vm, text + begin, at - begin, out)) return false;
  while (at < end) {
    size_t from = at + 1;
    if (text[at] == '.') {
      for (at = from; at < end && in_word(text[at]);) at++;
      if (!interp_field(*out, text + from, at - from, out)) return false;
    } else {
      at = text[at] == '[' ? edit_partner(text, end, highlights, at) : SIZE_MAX;
      if (at == SIZE_MAX || !constant_index(text + from, at - from, *out, out)) return false;
      at++;
    }
  }
  return true;
}

/* ---- calls --------------------------------------------------------------------------------------------------------------- */

typedef struct call_place {
  qn_value fn;
  int given; /* arguments before the one at the cursor, a method's receiver included */
} call_place;

/* Finds the call that `at` lies in: the innermost bracket that is open there must be that of a call. With `outer` other open brackets are
 * skipped. */
static bool find_call(qn_vm *vm, const char *text, const uint8_t *highlights, size_t at, bool outer, call_place *out) {
  int commas = 0;
  for (size_t i = at; i-- > 0;) {
    char c = text[i];
    if (highlights[i] != HIGHLIGHT_plain) continue;
    if (strchr(")]}", c) && (i = edit_partner(text, at, highlights, i)) == SIZE_MAX) return false;
    commas += c == ',';
    if (!strchr("([{", c)) continue;
    size_t begin = c == '(' ? chain_begin(text, highlights, i) : i;
    if (begin < i) {
      out->given = commas;
      if (chain_value(vm, text, highlights, begin, i, &out->fn))
        return value_is(out->fn, TAG_FN) || value_is(out->fn, TAG_DTYPE);
    }
    size_t name = c == '(' ? word_begin(text, i) : i;
    if (name < i && name > 0 && text[name - 1] == '.') { /* x.f(...) */
      out->given = commas + 1;
      return interp_lookup(vm, text + name, i - name, &out->fn) && value_is(out->fn, TAG_FN);
    }
    if (!outer || name < i) return false;
    commas = 0;
  }
  return false;
}

typedef struct parameters {
  request *request;
  int given;
} parameters;

static void offer_parameter(void *ctx, const char *name, int position) {
  parameters *p = ctx;
  if (position < p->given) return;
  offer_with(p->request, name, strlen(name), ": ");
}

bool prompt_hint(void *ctx, const char *text, size_t len, size_t cursor, text_buf *out) {
  session *s = ctx;
  uint8_t *highlights = malloc(len + 1);
  if (!highlights) return false;
  parse_highlights(s->vm, text, len, highlights);
  vm_run run;
  vm_run_begin(s->vm, &run);
  call_place call;
  bool found = find_call(s->vm, text, highlights, cursor, true, &call);
  if (found) found = interp_signature(s->vm, call.fn, out);
  if (found && value_is(call.fn, TAG_FN) && value_fn(call.fn)->head.flags == FN_BUILTIN)
    text_addf(out, "  %s", ((const builtin_def *)value_fn(call.fn)->code)->doc);
  vm_run_end(s->vm, &run);
  free(highlights);
  return found;
}

/* ---- files and modules --------------------------------------------------------------------------------------------------- */

static bool is_folder(const char *folder, const char *name) {
  text_buf path = {0};
  text_addf(&path, "%s/%s", folder, name);
  struct stat s;
  bool is = !path.failed && stat(path.text, &s) == 0 && S_ISDIR(s.st_mode);
  text_free(&path);
  return is;
}

/* Can a file's name stand in a string without escapes? */
static bool plain_name(const char *name) {
  for (const char *c = name; *c; c++)
    if ((unsigned char)*c < 32 || strchr("\"\\{}", *c)) return false;
  return utf8_valid(name, strlen(name));
}

/* Offers the files in the folder of the path that is being typed in [from, cursor). */
static void offer_files(request *r, size_t from) {
  size_t slash = r->cursor;
  while (slash > from && r->text[slash - 1] != '/') slash--;
  r->out->start = r->word = slash;
  text_buf folder = {0};
  if (slash == from)
    text_adds(&folder, ".");
  else
    text_add(&folder, r->text + from, slash - from);
  DIR *d = folder.failed ? NULL : opendir(folder.text);
  for (struct dirent *entry; d && (entry = readdir(d));) {
    const char *name = entry->d_name;
    if ((*name == '.' && (r->cursor == slash || r->text[slash] != '.')) || !plain_name(name)) continue;
    offer_with(r, name, strlen(name), is_folder(folder.text, name) ? "/" : "");
  }
  if (d) closedir(d);
  text_free(&folder);
}

static void offer_modules(request *r) {
  for (int i = 0; i < r->vm->builtins->nmodules; i++)
    if (strcmp(r->vm->builtins->modules[i].name, "prelude") != 0) offer(r, r->vm->builtins->modules[i].name);
  DIR *d = opendir(".");
  for (struct dirent *entry; d && (entry = readdir(d));) {
    size_t n = strlen(entry->d_name);
    if (n <= 3 || strcmp(entry->d_name + n - 3, ".qn") != 0 || *entry->d_name == '.') continue;
    bool name = true;
    for (size_t i = 0; i < n - 3; i++) name &= in_word(entry->d_name[i]);
    if (name) offer_with(r, entry->d_name, n - 3, "");
  }
  if (d) closedir(d);
}

/* ---- names --------------------------------------------------------------------------------------------------------------- */

/* Offers the names that occur in the text itself, such as parameters and locals of a function that is being typed. */
static void offer_words(request *r, size_t len) {
  for (size_t i = 0; i < len;) {
    if (r->highlights[i] != HIGHLIGHT_name && r->highlights[i] != HIGHLIGHT_call) {
      i++;
      continue;
    }
    size_t end = i;
    while (end < len && in_word(r->text[end])) end++;
    if (end == i) end++;
    if (i != r->word && end - i > r->cursor - r->word) offer_with(r, r->text + i, end - i, "");
    i = end;
  }
}

static void offer_names(request *r, size_t len) {
  char word[256];
  size_t typed = r->cursor - r->word;
  if (typed >= sizeof word) return;
  memcpy(word, r->text + r->word, typed);
  word[typed] = 0;
  interp_names(r->vm, word, offer_name, r);
  for (const char *const *k = parse_keywords; *k; k++) offer(r, *k);
  offer_words(r, len);
}

static void offer_function(void *ctx, const char *name) {
  request *r = ctx;
  qn_value v;
  if (interp_lookup(r->vm, name, strlen(name), &v) && value_is(v, TAG_FN)) offer(r, name);
}

/* Offers what can follow a point: fields, names of a module, functions as methods. */
static void offer_fields(request *r) {
  size_t end = r->word - 1, begin = chain_begin(r->text, r->highlights, end);
  qn_value v;
  bool known = begin < end && chain_value(r->vm, r->text, r->highlights, begin, end, &v);
  if (known) interp_fields(v, offer_name, r);
  r->out->first = r->out->n;
  if (!(known && value_is(v, TAG_MODULE)) && !(known && r->out->n && value_is(v, TAG_RECORD)))
    interp_names(r->vm, "", offer_function, r);
}

/* Where the string begins that the cursor is in; SIZE_MAX if it is in none. */
static size_t string_begin(const request *r) {
  if (!r->cursor || r->highlights[r->cursor - 1] != HIGHLIGHT_string) return SIZE_MAX;
  size_t s = r->cursor - 1;
  while (s > 0 && r->highlights[s - 1] == HIGHLIGHT_string) s--;
  if (r->text[s] != '"') return SIZE_MAX - 1;
  for (size_t i = s + 1; i < r->cursor; i++) {
    if (r->text[i] == '\\')
      i++;
    else if (r->text[i] == '"')
      return SIZE_MAX - 1;
  }
  return s + 1;
}

static void complete_code(request *r, size_t len) {
  size_t string = string_begin(r);
  if (string == SIZE_MAX - 1) return;
  if (string != SIZE_MAX) {
    offer_files(r, string);
    return;
  }
  if (r->cursor && r->highlights[r->cursor - 1] == HIGHLIGHT_comment) return;
  r->out->start = r->word = word_begin(r->text, r->cursor);
  size_t before = r->word;
  if (before && r->text[before - 1] == '.' && !(before > 1 && r->text[before - 2] == '.')) {
    offer_fields(r);
    return;
  }
  size_t blank = skip_blanks_back(r->text, before);
  if (blank < before && blank >= 6 && strncmp(r->text + blank - 6, "import", 6) == 0 &&
      r->highlights[blank - 1] == HIGHLIGHT_keyword) {
    offer_modules(r);
    return;
  }
  call_place call;
  parameters p = {.request = r};
  while (blank > 0 && (r->text[blank - 1] == '\n' || r->text[blank - 1] == ' ')) blank--;
  bool argument = blank && (r->text[blank - 1] == '(' || r->text[blank - 1] == ',');
  if (argument && find_call(r->vm, r->text, r->highlights, before, false, &call)) {
    p.given = call.given;
    interp_parameters(r->vm, call.fn, offer_parameter, &p);
    /* Before anything is typed of an argument only parameters are offered: among all names they would not be seen. */
    if (r->cursor == r->word && r->out->n) return;
  }
  offer_names(r, len);
}

/* ---- commands ------------------------------------------------------------------------------------------------------------ */

/* Where the argument of a command begins; *kind is what can stand there. 0 if the text is no command, or the cursor is in its name. */
static size_t argument_begin(const char *text, size_t cursor, command_argument *kind) {
  size_t at = strspn(text, " \t"), end;
  *kind = ARGUMENT_NAME;
  if (text[at] == '?') return at + 1;
  if (strncmp(text + at, "help ", 5) == 0) return at + 5;
  if (text[at] != ':') return 0;
  for (end = ++at; in_word(text[end]);) end++;
  if (cursor <= end) return 0;
  for (int i = 0; i < command_count; i++)
    if (strlen(commands[i].name) == end - at && strncmp(commands[i].name, text + at, end - at) == 0)
      *kind = commands[i].kind;
  return end;
}

void prompt_complete(void *ctx, const char *text, size_t len, size_t cursor, choices *out) {
  session *s = ctx;
  command_argument kind = ARGUMENT_EXPRESSION;
  size_t blank = strspn(text, " \t"), from = argument_begin(text, cursor, &kind);
  uint8_t *highlights = malloc(len + 1);
  if (!highlights) return;
  vm_run run;
  vm_run_begin(s->vm, &run);
  if (text[blank] == ':' && !from) {
    request r = {.text = text, .cursor = cursor, .word = blank + 1, .out = out};
    out->start = r.word;
    for (int i = 0; i < command_count && cursor >= r.word; i++)
      offer_with(&r, commands[i].name, strlen(commands[i].name), commands[i].kind == ARGUMENT_NOTHING ? "" : " ");
  } else {
    if (from > cursor) from = 0;
    from += strspn(text + from, " \t");
    if (from > cursor) from = cursor;
    request r = {.vm = s->vm, .text = text + from, .highlights = highlights, .cursor = cursor - from, .out = out};
    parse_highlights(s->vm, r.text, len - from, highlights);
    if (kind == ARGUMENT_FILE)
      offer_files(&r, 0);
    else if (kind != ARGUMENT_NOTHING)
      complete_code(&r, len - from);
    if (kind == ARGUMENT_NAME && r.word == 0) {
      offer_modules(&r);
      help_subjects(offer_name, &r);
    }
    out->start += from;
  }
  error_clear(s->vm);
  vm_run_end(s->vm, &run);
  free(highlights);
  choices_sort(out);
}
