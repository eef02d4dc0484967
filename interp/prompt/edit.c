/* The editor: a text, a cursor, and what keys do to them.
 *
 * Every key changes the state, then the whole picture is built anew: prompt and text with their highlights, and below them the
 * panel, which is a hint, a menu of completions, or the search in the history. screen.c draws what is new in it. While more keys
 * wait to be read nothing is drawn, so that what is typed ahead or pasted costs one drawing.
 *
 * The text is UTF-8 without control characters other than newline and tab. Positions are bytes; the cursor stands before a
 * character that takes columns, never inside one.
 */
#include "interp/prompt/edit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interp/prompt/screen.h"
#include "lang/highlight.h"

enum {
  TEXT_LONGEST = PASTE_MOST,
  TAB_STOP = 4,
  INDENT = 2,
  KILLS = 8,
  UNDOS = 200,
  UNDO_BYTES = 16 << 20, /* the most bytes of all snapshots together */
  MENU_ROWS = 8
};

static const char STYLE_PROMPT[] = "\033[1;32m", STYLE_MORE[] = "\033[32m", STYLE_DIM[] = "\033[2m",
                  STYLE_CHOSEN[] = "\033[7m", STYLE_FOUND[] = "\033[7m", STYLE_BRACKET[] = "\033[1;4m";

/* ---- choices ------------------------------------------------------------------------------------------------------------ */

void choices_add(choices *c, const char *text, size_t len, const char *end) {
  if (c->n == c->cap) {
    int cap = c->cap ? c->cap * 2 : 16;
    char **more = realloc(c->items, (size_t)cap * sizeof *more);
    if (!more) return;
    c->items = more;
    c->cap = cap;
  }
  char *copy = malloc(len + strlen(end) + 1);
  if (!copy) return;
  strcpy(stpncpy(copy, text, len), end);
  for (int i = 0; i < c->n; i++) {
    if (strcmp(c->items[i], copy) != 0) continue;
    free(copy);
    return;
  }
  c->items[c->n++] = copy;
}

static int choice_order(const void *a, const void *b) {
  const char *x = *(char *const *)a, *y = *(char *const *)b;
  int hidden = (*x == '_') - (*y == '_');
  return hidden ? hidden : strcmp(x, y);
}

void choices_sort(choices *c) {
  if (c->first) qsort(c->items, (size_t)c->first, sizeof *c->items, choice_order);
  if (c->n > c->first) qsort(c->items + c->first, (size_t)(c->n - c->first), sizeof *c->items, choice_order);
}

void choices_clear(choices *c) {
  for (int i = 0; i < c->n; i++) free(c->items[i]);
  free(c->items);
  *c = (choices){0};
}

/* ---- the editor --------------------------------------------------------------------------------------------------------- */

typedef struct snapshot {
  char *text;
  size_t len, cursor;
} snapshot;

/* What the last key did, if a key of the same kind continues it. */
typedef enum run { RUN_NONE, RUN_TYPED, RUN_KILL, RUN_YANK, RUN_HISTORY, RUN_UNDO } run;

struct editor {
  edit_host host;
  history *history;
  terminal term;
  screen screen;
  char *text; /* NUL-terminated */
  size_t len, cap, cursor;
  uint8_t *highlights;
  size_t highlights_cap;
  int goal; /* column that up and down aim at; -1: the cursor's own */
  run run, ran;
  bool failed; /* memory was short for this key */
  bool done, at_end;
  edit_end end;

  snapshot undo[UNDOS];
  int nundo;
  size_t undo_bytes;
  char *kills[KILLS]; /* newest first */
  size_t yanked;      /* where what was yanked last begins */
  int yank;           /* index in `kills` of what was yanked */

  int recalled; /* history entry that is shown; history->n: none */
  char *draft;  /* the text before the history was walked */
  size_t prefix;

  choices menu; /* shown while it has items */
  int chosen;   /* -1: none yet */
  size_t menu_end;
  char *typed; /* the bytes that the chosen entry has replaced */
  bool hinting;

  bool searching;
  text_buf query;
  int found;      /* history entry, or -1 */
  char *searched; /* the text before the search */
};

editor *edit_open(const edit_host *host, history *h, int in, int out) {
  editor *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  e->host = *host;
  e->history = h;
  terminal_init(&e->term, in, out);
  e->text = calloc(1, 64);
  if (!e->text) {
    edit_close(e);
    return NULL;
  }
  e->cap = 64;
  return e;
}

static void forget_undo(editor *e) {
  for (int i = 0; i < e->nundo; i++) free(e->undo[i].text);
  e->nundo = 0;
  e->undo_bytes = 0;
}

static void close_menu(editor *e) {
  choices_clear(&e->menu);
  free(e->typed);
  e->typed = NULL;
}

void edit_close(editor *e) {
  if (!e) return;
  forget_undo(e);
  close_menu(e);
  for (int i = 0; i < KILLS; i++) free(e->kills[i]);
  free(e->draft);
  free(e->searched);
  free(e->text);
  free(e->highlights);
  text_free(&e->query);
  screen_free(&e->screen);
  terminal_free(&e->term);
  free(e);
}

int edit_columns(editor *e) {
  terminal_measure(&e->term);
  return e->term.columns;
}

terminal *edit_terminal(editor *e) { return &e->term; }

/* ---- positions ---------------------------------------------------------------------------------------------------------- */

static uint32_t code_at(const editor *e, size_t at) {
  uint32_t code = 0;
  if (at < e->len) utf8_decode(e->text + at, &code);
  return code;
}

/* The columns of a code point; tabs and line ends count as one, since the cursor stops at them. */
static int width_of(uint32_t code) { return code < 32 ? 1 : utf8_width(code); }

/* Is this the code point that joins its neighbours into one character? */
static bool is_joiner(uint32_t code) { return code == 0x200d; }

static size_t after(const editor *e, size_t at) {
  if (at >= e->len) return e->len;
  uint32_t code;
  at += (size_t)utf8_decode(e->text + at, &code);
  bool joined = is_joiner(code);
  while (at < e->len) {
    int n = utf8_decode(e->text + at, &code);
    if (width_of(code) > 0 && !(joined && code >= 0x80)) break;
    joined = is_joiner(code);
    at += (size_t)n;
  }
  return at;
}

/* The beginning of the line that `at` lies on. */
static size_t line_begin(const editor *e, size_t at) {
  while (at > 0 && e->text[at - 1] != '\n') at--;
  return at;
}

static size_t line_end(const editor *e, size_t at) {
  while (at < e->len && e->text[at] != '\n') at++;
  return at;
}

static size_t before(const editor *e, size_t at) {
  if (at == 0) return 0;
  size_t from = line_begin(e, at);
  if (from == at) return at - 1;
  size_t last = from;
  while (from < at) {
    last = from;
    from = after(e, from);
  }
  return last;
}

static bool in_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80);
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n'; }

static size_t word_left(const editor *e, size_t at) {
  while (at > 0 && !in_word(e->text[at - 1])) at--;
  while (at > 0 && in_word(e->text[at - 1])) at--;
  return at;
}

static size_t word_right(const editor *e, size_t at) {
  while (at < e->len && !in_word(e->text[at])) at++;
  while (at < e->len && in_word(e->text[at])) at++;
  return at;
}

/* Where the last word before `at` begins, if words are all that stands between blanks. */
static size_t between_blanks(const editor *e, size_t at) {
  while (at > 0 && is_blank(e->text[at - 1])) at--;
  while (at > 0 && !is_blank(e->text[at - 1])) at--;
  return at;
}

/* Where Ctrl-K stops cutting: at the end of the line or, if the cursor is there already, behind it, which joins the next line. */
static size_t line_rest(const editor *e, size_t at) {
  return at < e->len && e->text[at] == '\n' ? at + 1 : line_end(e, at);
}

static size_t text_begin(const editor *e, size_t at) { return (void)e, (void)at, 0; }
static size_t text_end(const editor *e, size_t at) { return (void)at, e->len; }

static int column_after(int column, uint32_t code) {
  return code == '\t' ? column + TAB_STOP - column % TAB_STOP : column + utf8_width(code);
}

static int column_of(const editor *e, size_t at) {
  int column = 0;
  for (size_t i = line_begin(e, at); i < at;) {
    uint32_t code;
    i += (size_t)utf8_decode(e->text + i, &code);
    column = column_after(column, code);
  }
  return column;
}

/* The last position on the line that begins at `at` whose column is not beyond `column`. */
static size_t at_column(const editor *e, size_t at, int column) {
  int now = 0;
  while (at < e->len && e->text[at] != '\n') {
    int next = column_after(now, code_at(e, at));
    if (next > column) break;
    now = next;
    at = after(e, at);
  }
  return at;
}

/* ---- changes ------------------------------------------------------------------------------------------------------------ */

/* Keeps a snapshot for undo before a key of this kind changes the text. Keys that continue each other share one snapshot. */
static void remember(editor *e, run kind) {
  e->run = kind;
  if (kind == RUN_TYPED && e->ran == RUN_TYPED) return;
  if (e->nundo && e->undo[e->nundo - 1].len == e->len && memcmp(e->undo[e->nundo - 1].text, e->text, e->len) == 0)
    return;
  while (e->nundo == UNDOS || (e->nundo && e->undo_bytes + e->len > UNDO_BYTES)) {
    e->undo_bytes -= e->undo[0].len;
    free(e->undo[0].text);
    memmove(e->undo, e->undo + 1, (size_t)(--e->nundo) * sizeof *e->undo);
  }
  char *copy = strndup(e->text, e->len);
  if (!copy) return;
  e->undo[e->nundo++] = (snapshot){copy, e->len, e->cursor};
  e->undo_bytes += e->len;
}

/* Replaces bytes [from, to) by `len` bytes of `text`, which must not lie in the editor's own text; the cursor stands behind them. False if
 * the text would be too long, or memory is short. */
static bool splice(editor *e, size_t from, size_t to, const char *text, size_t len) {
  size_t now = e->len - (to - from) + len;
  if (now > TEXT_LONGEST) return false;
  if (now + 1 > e->cap) {
    size_t cap = (now + 1) * 2;
    char *more = realloc(e->text, cap);
    if (!more) {
      e->failed = true;
      return false;
    }
    e->text = more;
    e->cap = cap;
  }
  memmove(e->text + from + len, e->text + to, e->len - to + 1);
  if (len) memcpy(e->text + from, text, len);
  e->len = now;
  e->cursor = from + len;
  return true;
}

static void set_text(editor *e, const char *text) {
  splice(e, 0, e->len, text, strlen(text));
  e->cursor = e->len;
}

static void push_kill(editor *e, char *kill) {
  if (!kill) return;
  free(e->kills[KILLS - 1]);
  memmove(e->kills + 1, e->kills, (KILLS - 1) * sizeof *e->kills);
  e->kills[0] = kill;
}

/* Removes [from, to) and keeps it as the newest kill, to be yanked. Several cuts in a row make one kill. */
static void cut(editor *e, size_t from, size_t to) {
  if (from >= to) return;
  remember(e, RUN_KILL);
  if (e->ran == RUN_KILL && e->kills[0]) {
    size_t old = strlen(e->kills[0]), more = to - from;
    char *joined = malloc(old + more + 1);
    if (joined) {
      bool forward = from == e->cursor;
      memcpy(joined + (forward ? 0 : more), e->kills[0], old);
      memcpy(joined + (forward ? old : 0), e->text + from, more);
      joined[old + more] = 0;
      free(e->kills[0]);
      e->kills[0] = joined;
    }
  } else {
    push_kill(e, strndup(e->text + from, to - from));
  }
  splice(e, from, to, "", 0);
}

static void erase(editor *e, size_t from, size_t to) {
  if (from >= to) return;
  remember(e, RUN_NONE);
  splice(e, from, to, "", 0);
}

/* Inserts kill number `number`; `replace`: instead of the one that was yanked by the key before. */
static void yank(editor *e, int number, bool replace) {
  if (!e->kills[number]) return;
  remember(e, RUN_YANK);
  size_t from = replace ? e->yanked : e->cursor;
  e->yanked = from;
  e->yank = number;
  splice(e, from, e->cursor, e->kills[number], strlen(e->kills[number]));
}

static void undo(editor *e) {
  /* Snapshots equal to the text are skipped, since going back to them would show nothing. */
  while (e->nundo) {
    snapshot s = e->undo[--e->nundo];
    e->undo_bytes -= s.len;
    bool differs = s.len != e->len || memcmp(s.text, e->text, s.len) != 0;
    if (differs) {
      splice(e, 0, e->len, s.text, s.len);
      e->cursor = s.cursor <= e->len ? s.cursor : e->len;
    }
    free(s.text);
    if (differs) break;
  }
  e->run = RUN_UNDO;
}

static void transpose(editor *e) {
  size_t at = e->cursor < line_end(e, e->cursor) ? e->cursor : before(e, e->cursor);
  size_t begin = line_begin(e, at);
  if (at <= begin || at >= e->len || e->text[at] == '\n') return;
  size_t first = before(e, at), stop = after(e, at);
  char *swapped = malloc(stop - first);
  if (!swapped) return;
  memcpy(swapped, e->text + at, stop - at);
  memcpy(swapped + (stop - at), e->text + first, at - first);
  remember(e, RUN_NONE);
  splice(e, first, stop, swapped, stop - first);
  free(swapped);
}

/* ---- highlights -------------------------------------------------------------------------------------------------------------- */

/* The highlights of the text, valid until the next call; NULL if memory is short. */
static const uint8_t *find_highlights(editor *e) {
  if (e->len + 1 > e->highlights_cap) {
    uint8_t *more = realloc(e->highlights, e->cap);
    if (!more) return NULL;
    e->highlights = more;
    e->highlights_cap = e->cap;
  }
  e->host.highlights(e->host.ctx, e->text, e->len, e->highlights);
  return e->highlights;
}

static bool is_bracket(char c) { return c && strchr("()[]{}", c); }

size_t edit_partner(const char *text, size_t len, const uint8_t *highlights, size_t at) {
  bool forward = strchr("([{", text[at]) != NULL;
  int depth = 0;
  for (size_t i = at; i < len; forward ? i++ : i--) { /* i wraps around below 0, which ends the loop */
    if (!is_bracket(text[i]) || highlights[i] != HIGHLIGHT_plain) continue;
    depth += strchr("([{", text[i]) ? 1 : -1;
    if (depth == 0) return i;
  }
  return SIZE_MAX;
}

/* How many brackets are open before `at`. */
static int open_brackets(editor *e, size_t at) {
  const uint8_t *highlights = find_highlights(e);
  int depth = 0;
  for (size_t i = 0; highlights && i < at; i++) {
    if (highlights[i] != HIGHLIGHT_plain || !is_bracket(e->text[i])) continue;
    if (strchr("([{", e->text[i]))
      depth++;
    else if (depth)
      depth--;
  }
  return depth;
}

/* ---- typing ------------------------------------------------------------------------------------------------------------- */

static void type_bytes(editor *e, const char *text, size_t len) {
  remember(e, RUN_TYPED);
  splice(e, e->cursor, e->cursor, text, len);
}

static void type_code(editor *e, int code) {
  char bytes[4];
  size_t n = (size_t)utf8_encode((uint32_t)code, bytes);
  size_t begin = line_begin(e, e->cursor);
  bool blank = true;
  for (size_t i = begin; i < e->cursor; i++) blank &= e->text[i] == ' ';
  /* A closing bracket that begins a line is indented by the number of brackets that are open outside it. */
  if (code < 0x80 && strchr(")]}", code) && blank && e->cursor > begin && begin > 0) {
    int depth = open_brackets(e, begin);
    size_t want = depth > 0 ? (size_t)(depth - 1) * INDENT : 0;
    if (e->cursor - begin > want) {
      remember(e, RUN_TYPED);
      e->ran = RUN_TYPED;
      splice(e, begin + want, e->cursor, "", 0);
    }
  }
  type_bytes(e, bytes, n);
}

/* Begins a new line, indented by the number of brackets that are open. */
static void new_line(editor *e) {
  int depth = open_brackets(e, e->cursor);
  char next = e->cursor < e->len ? e->text[e->cursor] : 0;
  if (depth && next && strchr(")]}", next)) depth--;
  if (depth > 40) depth = 40;
  char line[1 + 40 * INDENT];
  memset(line, ' ', sizeof line);
  line[0] = '\n';
  remember(e, RUN_NONE);
  splice(e, e->cursor, e->cursor, line, 1 + (size_t)depth * INDENT);
}

/* Inserts a text that was pasted. Its line ends become newlines, other control characters are dropped. */
static void paste(editor *e) {
  text_buf *p = &e->term.paste;
  size_t n = 0;
  if (p->failed || !p->len) return;
  size_t valid = utf8_valid_prefix(p->text, p->len);
  if (valid < p->len) utf8_clean(p->text, p->len);
  for (size_t i = 0; i < p->len; i++) {
    char c = p->text[i];
    if (c == '\r' && i + 1 < p->len && p->text[i + 1] == '\n') continue;
    if (c == '\r') c = '\n';
    if (((unsigned char)c < 32 && c != '\n' && c != '\t') || c == 127) continue;
    if ((unsigned char)c == 0xc2 && i + 1 < p->len && (unsigned char)p->text[i + 1] < 0xa0) {
      i++;
      continue;
    }
    p->text[n++] = c;
  }
  p->text[n] = 0;
  e->host.pasted(e->host.ctx, p->text, &n);
  while (n && p->text[n - 1] == '\n') n--; /* the text is run by Enter, not by the end of the paste */
  remember(e, RUN_NONE);
  splice(e, e->cursor, e->cursor, p->text, n);
}

/* ---- lines and history -------------------------------------------------------------------------------------------------- */

static bool move_line(editor *e, bool up) {
  size_t begin = line_begin(e, e->cursor), end = line_end(e, e->cursor);
  if (up ? begin == 0 : end == e->len) return false;
  int column = e->goal >= 0 ? e->goal : column_of(e, e->cursor);
  e->cursor = at_column(e, up ? line_begin(e, begin - 1) : end + 1, column);
  e->goal = column;
  return true;
}

/* Shows the next older or newer entry of the history that begins with what stood before the cursor when the walk began. */
static void recall(editor *e, bool older) {
  history *h = e->history;
  if (e->ran != RUN_HISTORY || !e->draft) {
    free(e->draft);
    e->draft = strndup(e->text, e->len);
    e->recalled = h->n;
    e->prefix = e->cursor;
  }
  e->run = RUN_HISTORY;
  if (!e->draft) return;
  int i = e->recalled;
  for (i += older ? -1 : 1; i >= 0 && i < h->n; i += older ? -1 : 1)
    if (strncmp(h->entries[i], e->draft, e->prefix) == 0 && strcmp(h->entries[i], e->text) != 0) break;
  if (i < 0 || i > h->n) return;
  e->recalled = i;
  set_text(e, i == h->n ? e->draft : h->entries[i]);
}

static void up_or_down(editor *e, bool up) {
  if (e->ran == RUN_HISTORY && up && line_begin(e, e->cursor) == 0) {
    recall(e, true);
  } else if (!move_line(e, up)) {
    recall(e, up);
  } else if (e->ran == RUN_HISTORY) {
    e->run = RUN_HISTORY;
  }
}

/* ---- search ------------------------------------------------------------------------------------------------------------- */

static void search_end(editor *e, bool keep) {
  if (!keep && e->searched) set_text(e, e->searched);
  free(e->searched);
  e->searched = NULL;
  e->searching = false;
}

static void search_show(editor *e, int found) {
  if (found < 0) {
    e->found = -1;
    return;
  }
  e->found = found;
  set_text(e, e->history->entries[found]);
  const char *s = strstr(e->text, e->query.text ? e->query.text : "");
  if (s) e->cursor = (size_t)(s - e->text);
}

/* Shows the newest entry that contains the query, beginning with the one shown. With `further` it must be older and differ from that. */
static void search_older(editor *e, bool further) {
  if (!e->query.len) return;
  int from = e->found < 0 ? (further ? 0 : e->history->n) : further ? e->found : e->found + 1;
  int found = history_search(e->history, from, e->query.text);
  while (further && found >= 0 && strcmp(e->history->entries[found], e->text) == 0)
    found = history_search(e->history, found, e->query.text);
  if (found >= 0 || !further) search_show(e, found);
}

static void search_newer(editor *e) {
  if (!e->query.len || e->found < 0) return;
  for (int i = e->found + 1; i < e->history->n; i++)
    if (strstr(e->history->entries[i], e->query.text) && strcmp(e->history->entries[i], e->text) != 0) {
      search_show(e, i);
      return;
    }
}

static void search_begin(editor *e) {
  e->searched = strndup(e->text, e->len);
  if (!e->searched) return;
  remember(e, RUN_NONE);
  e->searching = true;
  e->query.len = 0;
  text_add(&e->query, "", 0);
  e->found = -1;
}

/* True if the search has used the key. Other keys end the search, and then do what they always do. */
static bool search_key(editor *e, int key) {
  switch (key) {
  case KEY_CTRL('R'): search_older(e, true); return true;
  case KEY_CTRL('S'): search_newer(e); return true;
  case KEY_ESCAPE:
  case KEY_CTRL('G'): search_end(e, false); return true;
  case KEY_ENTER:
  case '\n': search_end(e, true); return true;
  case KEY_CTRL('H'):
  case KEY_BACKSPACE:
    while (e->query.len > 0 && ((unsigned char)e->query.text[--e->query.len] & 0xc0) == 0x80) {}
    if (e->query.text) e->query.text[e->query.len] = 0;
    e->found = -1;
    if (e->query.len)
      search_older(e, false);
    else if (e->searched)
      set_text(e, e->searched);
    return true;
  case KEY_NONE:
  case KEY_RESUMED:
  case KEY_RESIZE: return false;
  default: break;
  }
  if (key >= 32 && key < KEY_NONE) {
    char bytes[4];
    text_add(&e->query, bytes, (size_t)utf8_encode((uint32_t)key, bytes));
    search_older(e, false);
    return true;
  }
  search_end(e, true);
  return false;
}

/* ---- completion --------------------------------------------------------------------------------------------------------- */

static void menu_apply(editor *e, int chosen) {
  const char *text = chosen < 0 ? e->typed : e->menu.items[chosen];
  if (splice(e, e->menu.start, e->menu_end, text, strlen(text))) {
    e->menu_end = e->cursor;
    e->chosen = chosen;
  }
}

static size_t common_beginning(const choices *c) {
  size_t n = strlen(c->items[0]);
  for (int i = 1; i < c->n; i++) {
    size_t k = 0;
    while (k < n && c->items[i][k] == c->items[0][k]) k++;
    n = k;
  }
  while (n && ((unsigned char)c->items[0][n] & 0xc0) == 0x80) n--;
  return n;
}

static void complete(editor *e) {
  size_t begin = line_begin(e, e->cursor);
  bool blank = true;
  for (size_t i = begin; i < e->cursor; i++) blank &= e->text[i] == ' ' || e->text[i] == '\t';
  if (blank) {
    char blanks[INDENT];
    memset(blanks, ' ', INDENT);
    type_bytes(e, blanks, INDENT - (e->cursor - begin) % INDENT);
    return;
  }
  e->hinting = true;
  e->host.complete(e->host.ctx, e->text, e->len, e->cursor, &e->menu);
  if (!e->menu.n) {
    close_menu(e);
    return;
  }
  e->menu_end = e->cursor;
  e->chosen = -1;
  size_t typed = e->cursor - e->menu.start, common = common_beginning(&e->menu);
  e->typed = common > typed ? strndup(e->menu.items[0], common)
                            : strndup(e->text + e->menu.start, e->menu.n == 1 ? common : typed);
  if (!e->typed) {
    close_menu(e);
    return;
  }
  remember(e, RUN_NONE);
  menu_apply(e, e->menu.n == 1 ? 0 : -1);
  if (e->menu.n == 1) close_menu(e);
}

/* The number of entries in a row of the menu; *width is the columns of each. */
static int menu_columns(const editor *e, int *width) {
  *width = 1;
  for (int i = 0; i < e->menu.n; i++) {
    int w = (int)utf8_columns(e->menu.items[i], strlen(e->menu.items[i])) + 2;
    if (w > *width) *width = w;
  }
  if (*width > e->term.columns - 1) *width = e->term.columns - 1;
  int n = *width > 0 ? (e->term.columns - 1) / *width : 1;
  return n > 0 ? n : 1;
}

static void menu_move(editor *e, int by) {
  int next = e->chosen < 0 ? (by > 0 ? 0 : e->menu.n - 1) : e->chosen + by;
  if (next < 0) next = by == -1 ? e->menu.n - 1 : e->chosen;
  if (next >= e->menu.n) next = by == 1 ? 0 : e->chosen;
  menu_apply(e, next);
}

/* True if the menu has used the key. Other keys close the menu, and then do what they always do. */
static bool menu_key(editor *e, int key) {
  int width, columns = menu_columns(e, &width);
  bool choosing = e->chosen >= 0;
  switch (key) {
  case KEY_TAB: menu_move(e, 1); return true;
  case KEY_BACKTAB: menu_move(e, -1); return true;
  case KEY_RIGHT:
  case KEY_LEFT:
  case KEY_DOWN:
  case KEY_UP:
    if (!choosing) break;
    menu_move(e, key == KEY_RIGHT ? 1 : key == KEY_LEFT ? -1 : key == KEY_DOWN ? columns : -columns);
    return true;
  case KEY_ESCAPE:
  case KEY_CTRL('G'):
    menu_apply(e, -1);
    close_menu(e);
    return true;
  case KEY_ENTER:
  case '\n': close_menu(e); return choosing;
  case KEY_NONE:
  case KEY_RESUMED:
  case KEY_RESIZE: return false;
  default: break;
  }
  close_menu(e);
  return false;
}

/* ---- the picture -------------------------------------------------------------------------------------------------------- */

static const char *styled(const editor *e, const char *style) { return e->host.color ? style : NULL; }

static void draw_text(editor *e, frame *f, bool last) {
  const uint8_t *highlights = find_highlights(e);
  size_t pair[2] = {SIZE_MAX, SIZE_MAX};
  if (highlights && e->host.color && !last) {
    size_t at = e->cursor < e->len && is_bracket(e->text[e->cursor])  ? e->cursor
                : e->cursor > 0 && is_bracket(e->text[e->cursor - 1]) ? e->cursor - 1
                                                                      : SIZE_MAX;
    if (at != SIZE_MAX && highlights[at] == HIGHLIGHT_plain) {
      pair[1] = edit_partner(e->text, e->len, highlights, at);
      if (pair[1] != SIZE_MAX) pair[0] = at;
    }
  }
  size_t found = SIZE_MAX, found_end = 0;
  if (e->searching && e->found >= 0) {
    found = e->cursor;
    found_end = found + e->query.len;
  }
  frame_text(f, styled(e, STYLE_PROMPT), e->host.prompt, strlen(e->host.prompt));
  int column = 0;
  for (size_t i = 0; i < e->len;) {
    if (i == e->cursor && !last) frame_cursor(f);
    uint32_t code;
    size_t n = (size_t)utf8_decode(e->text + i, &code);
    const char *style = highlights ? styled(e, highlight_style((highlight)highlights[i])) : NULL;
    if (i == pair[0] || i == pair[1]) style = STYLE_BRACKET;
    if (i >= found && i < found_end) style = styled(e, STYLE_FOUND);
    if (code == '\n') {
      frame_line(f);
      frame_text(f, styled(e, STYLE_MORE), e->host.more, strlen(e->host.more));
      column = 0;
    } else if (code == '\t') {
      for (int stop = column_after(column, code); column < stop; column++) frame_put(f, style, " ", 1, 1);
    } else {
      frame_put(f, style, e->text + i, n, utf8_width(code));
      column = column_after(column, code);
    }
    i += n;
  }
  if (e->cursor == e->len && !last) frame_cursor(f);
}

/* Writes a line of the panel, cut at the end of the row. */
static void panel_text(frame *f, const char *style, const char *text, size_t len) {
  for (size_t i = 0; i < len;) {
    uint32_t code;
    size_t n = (size_t)utf8_decode(text + i, &code);
    int width = utf8_width(code);
    if (width >= frame_left(f)) {
      frame_put(f, style, "~", 1, 1);
      return;
    }
    frame_put(f, style, text + i, n, width);
    i += n;
  }
}

static void draw_menu(editor *e, frame *f) {
  int width, columns = menu_columns(e, &width);
  int rows = (e->menu.n + columns - 1) / columns, most = e->term.rows - f->n - 1;
  if (most > MENU_ROWS) most = MENU_ROWS;
  if (most < 1) most = 1;
  int first = 0;
  if (rows > most && e->chosen >= 0) {
    first = e->chosen / columns - most / 2;
    if (first > rows - most) first = rows - most;
    if (first < 0) first = 0;
  }
  for (int r = first; r < rows && r < first + most; r++) {
    frame_line(f);
    for (int c = 0; c < columns; c++) {
      int i = r * columns + c;
      if (i >= e->menu.n) break;
      const char *item = e->menu.items[i];
      size_t len = strlen(item);
      const char *style = i == e->chosen ? styled(e, STYLE_CHOSEN) : NULL;
      frame_put(f, style, i == e->chosen ? ">" : " ", 1, 1);
      int used = 1;
      for (size_t k = 0; k < len;) {
        uint32_t code;
        size_t n = (size_t)utf8_decode(item + k, &code);
        if (used + utf8_width(code) > width - (columns > 1)) break;
        frame_put(f, style, item + k, n, utf8_width(code));
        used += utf8_width(code);
        k += n;
      }
      while (c + 1 < columns && used++ < width) frame_put(f, NULL, " ", 1, 1);
    }
  }
  if (rows > most) {
    char more[64];
    snprintf(more, sizeof more, " rows %d to %d of %d", first + 1, first + most, rows);
    frame_line(f);
    panel_text(f, styled(e, STYLE_DIM), more, strlen(more));
  }
}

static void draw_panel(editor *e, frame *f) {
  if (e->searching) {
    frame_line(f);
    const char *label = e->query.len && e->found < 0 ? "history, not found: " : "history: ";
    panel_text(f, styled(e, STYLE_DIM), label, strlen(label));
    if (e->query.len) panel_text(f, NULL, e->query.text, e->query.len);
    return;
  }
  if (e->hinting) {
    text_buf t = {0};
    e->hinting = e->host.hint(e->host.ctx, e->text, e->len, e->cursor, &t);
    if (e->hinting && !t.failed && t.len) {
      frame_line(f);
      panel_text(f, styled(e, STYLE_DIM), t.text, t.len);
    }
    text_free(&t);
  }
  if (e->menu.n) draw_menu(e, f);
}

static void draw(editor *e, bool last) {
  frame *f = screen_pen(&e->screen, &e->term);
  draw_text(e, f, last);
  if (!last) draw_panel(e, f);
  screen_draw(&e->screen, &e->term, last);
}

/* ---- keys --------------------------------------------------------------------------------------------------------------- */

static void finish(editor *e, edit_end end) {
  e->done = true;
  e->end = end;
}

static void enter(editor *e) {
  bool last_line = line_end(e, e->cursor) == e->len;
  if (terminal_pasting(&e->term)) {
    remember(e, RUN_TYPED);
    splice(e, e->cursor, e->cursor, "\n", 1);
  } else if (e->text[strspn(e->text, " \t\n")] && (!last_line || e->host.incomplete(e->host.ctx, e->text, e->len))) {
    new_line(e);
  } else {
    finish(e, EDIT_TEXT);
  }
}

static void clear_terminal(editor *e) {
  text_adds(&e->term.text, "\033[H\033[2J");
  screen_forget(&e->screen);
}

/* Keys that go to a place either move the cursor there, or remove the text up to there. It is cut, so that it can be yanked, or erased. */
enum { MOVES, CUTS, ERASES };
static const struct {
  int key;
  size_t (*place)(const editor *e, size_t at);
  int deed;
} place_keys[] = {
    {KEY_LEFT, before, MOVES},
    {KEY_CTRL('B'), before, MOVES},
    {KEY_RIGHT, after, MOVES},
    {KEY_CTRL('F'), after, MOVES},
    {KEY_LEFT | KEY_ALT, word_left, MOVES},
    {KEY_LEFT | KEY_CONTROL, word_left, MOVES},
    {'b' | KEY_ALT, word_left, MOVES},
    {KEY_RIGHT | KEY_ALT, word_right, MOVES},
    {KEY_RIGHT | KEY_CONTROL, word_right, MOVES},
    {'f' | KEY_ALT, word_right, MOVES},
    {KEY_HOME, line_begin, MOVES},
    {KEY_CTRL('A'), line_begin, MOVES},
    {KEY_END, line_end, MOVES},
    {KEY_CTRL('E'), line_end, MOVES},
    {KEY_HOME | KEY_CONTROL, text_begin, MOVES},
    {'<' | KEY_ALT, text_begin, MOVES},
    {KEY_END | KEY_CONTROL, text_end, MOVES},
    {'>' | KEY_ALT, text_end, MOVES},
    {KEY_BACKSPACE, before, ERASES},
    {KEY_CTRL('H'), before, ERASES},
    {KEY_DELETE, after, ERASES},
    {KEY_CTRL('D'), after, ERASES}, /* if the text is empty, the caller has ended the input instead */
    {KEY_CTRL('W'), between_blanks, CUTS},
    {KEY_BACKSPACE | KEY_ALT, word_left, CUTS},
    {KEY_CTRL('H') | KEY_ALT, word_left, CUTS},
    {'d' | KEY_ALT, word_right, CUTS},
    {KEY_DELETE | KEY_CONTROL, word_right, CUTS},
    {KEY_CTRL('U'), line_begin, CUTS},
    {KEY_CTRL('K'), line_rest, CUTS},
};

/* Does what a key of the table does. False if the key is not in it. */
static bool place_key(editor *e, int key) {
  size_t i = 0, n = sizeof place_keys / sizeof *place_keys, at = e->cursor;
  while (i < n && place_keys[i].key != key) i++;
  if (i == n) return false;
  size_t to = place_keys[i].place(e, at);
  if (place_keys[i].deed == MOVES)
    e->cursor = to;
  else
    (place_keys[i].deed == CUTS ? cut : erase)(e, to < at ? to : at, to < at ? at : to);
  return true;
}

static void other_key(editor *e, int key) {
  switch (key) {
  case KEY_ENTER:
  case '\n': enter(e); break;
  case KEY_ENTER | KEY_ALT:
  case '\n' | KEY_ALT: new_line(e); break;
  case KEY_CLOSED: finish(e, EDIT_CLOSED); break;
  case KEY_INTERRUPT:
  case KEY_CTRL('C'): finish(e, EDIT_INTERRUPT); break;
  case KEY_CTRL('Z'):
    draw(e, true);
    terminal_suspend(&e->term);
    break;
  case KEY_PASTE: paste(e); break;
  case KEY_RESIZE:
    terminal_measure(&e->term);
    screen_resized(&e->screen, &e->term);
    e->run = e->ran;
    break;
  case KEY_RESUMED: /* the picture is drawn anew where the cursor is now */
    terminal_measure(&e->term);
    text_adds(&e->term.text, "\r");
    screen_forget(&e->screen);
    e->run = e->ran;
    break;
  case KEY_TAB: complete(e); break;
  case KEY_CTRL('R'): search_begin(e); break;
  case KEY_CTRL('L'): clear_terminal(e); break;
  case KEY_UP:
  case KEY_CTRL('P'): up_or_down(e, true); break;
  case KEY_DOWN:
  case KEY_CTRL('N'): up_or_down(e, false); break;
  case KEY_PAGE_UP:
  case KEY_UP | KEY_ALT: recall(e, true); break;
  case KEY_PAGE_DOWN:
  case KEY_DOWN | KEY_ALT: recall(e, false); break;
  case KEY_CTRL('Y'): yank(e, 0, false); break;
  case 'y' | KEY_ALT:
    if (e->ran == RUN_YANK) yank(e, e->yank + 1 < KILLS && e->kills[e->yank + 1] ? e->yank + 1 : 0, true);
    break;
  case KEY_CTRL('T'): transpose(e); break;
  case KEY_CTRL('_'): undo(e); break;
  case KEY_ESCAPE:
  case KEY_CTRL('G'): e->hinting = false; break;
  case KEY_NONE: e->run = e->ran; break;
  default:
    if (key == KEY_CTRL('D') && !e->len)
      finish(e, EDIT_CLOSED);
    else if (!place_key(e, key) && key >= 32 && key < KEY_NONE)
      type_code(e, key);
  }
}

static void take_key(editor *e, int key) {
  e->ran = e->run;
  e->run = RUN_NONE;
  int goal = e->goal;
  e->goal = -1;
  if (e->menu.n && menu_key(e, key)) return;
  if (e->searching && search_key(e, key)) return;
  if (key == KEY_UP || key == KEY_DOWN || key == KEY_CTRL('P') || key == KEY_CTRL('N') || key == KEY_RESIZE)
    e->goal = goal;
  other_key(e, key);
}

edit_end edit_read(editor *e, const char **text, size_t *len) {
  e->len = e->cursor = 0;
  e->text[0] = 0;
  e->goal = -1;
  e->run = RUN_NONE;
  e->done = e->searching = e->hinting = e->failed = false;
  screen_forget(&e->screen);
  if (!terminal_begin(&e->term)) return EDIT_FAILED;
  draw(e, false);
  while (!e->done) {
    take_key(e, terminal_key(&e->term));
    if (!e->done && !terminal_waits(&e->term)) draw(e, false);
    if (e->failed) finish(e, EDIT_FAILED);
  }
  close_menu(e);
  if (e->searching) search_end(e, true);
  if (e->end == EDIT_INTERRUPT || e->end == EDIT_TEXT) e->cursor = e->len;
  draw(e, true);
  terminal_end(&e->term);
  forget_undo(e);
  free(e->draft);
  e->draft = NULL;
  *text = e->text;
  *len = e->len;
  return e->end;
}
