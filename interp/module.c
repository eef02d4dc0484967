/* Scopes, modules, and how texts are run.
 *
 * A module runs once per VM. It is known by its key: the canonical path of its file, "<std>/name" for a module of the library, or what the
 * host's resolver says. `import name` looks for a file beside the importing one, then in the library; if the host has a resolver, that is
 * asked instead of files. A module that fails is forgotten, so that the next import tries again.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interp/node.h"
#include "lang/format.h"

/* ---- scopes ------------------------------------------------------------------------------------------------------------- */

static char *copy_text(qn_vm *vm, const char *text, size_t len) {
  char *p = mem_alloc(vm, len + 1);
  if (!p) return NULL;
  memcpy(p, text, len);
  p[len] = 0;
  return p;
}

static void free_text(qn_vm *vm, char *p) {
  if (p) mem_free(vm, p, strlen(p) + 1);
}

scope *scope_new(qn_vm *vm, scope *outer, const char *name) {
  scope *s = mem_zalloc(vm, sizeof *s);
  if (!s) return NULL;
  s->outer = outer;
  s->module = mem_zalloc(vm, sizeof *s->module);
  /* The name of a module is that of its file, without folder and ending. */
  const char *slash = strrchr(name, '/');
  if (slash) name = slash + 1;
  size_t len = strlen(name);
  if (len > 3 && strcmp(name + len - 3, ".qn") == 0) len -= 3;
  qn_str *n = s->module ? str_intern(vm, name, len) : NULL;
  if (!n) {
    mem_free(vm, s->module, sizeof *s->module);
    mem_free(vm, s, sizeof *s);
    return NULL;
  }
  s->module->head = (obj_head){.refs = 1, .tag = TAG_MODULE};
  s->module->name = n;
  s->module->scope = s;
  interp *ip = interp_of(vm);
  s->next = ip->scopes;
  ip->scopes = s;
  return s;
}

void scope_drop_values(qn_vm *vm, scope *s) {
  for (uint32_t i = 0; i < s->n; i++) cell_set(vm, s->cells[i], value_unset());
}

void scope_free(qn_vm *vm, scope *s) {
  scope_drop_values(vm, s);
  for (uint32_t i = 0; i < s->n; i++) {
    value_release(vm, value_obj(TAG_STR, s->cells[i]->name));
    source_let_go(vm, s->cells[i]->decl.source);
    mem_free(vm, s->cells[i], sizeof *s->cells[i]);
  }
  mem_free(vm, s->cells, s->cap * sizeof *s->cells);
  mem_free(vm, s->index, s->index_cap * sizeof *s->index);
  free_text(vm, s->key);
  free_text(vm, s->dir);
  free_text(vm, s->text);
  for (uint32_t i = 0; i < s->nimports; i++) value_release(vm, value_obj(TAG_MODULE, s->imports[i]));
  mem_free(vm, s->imports, s->imports_cap * sizeof *s->imports);
  s->module->scope = NULL;
  value_release(vm, value_obj(TAG_MODULE, s->module));
  mem_free(vm, s, sizeof *s);
}

global_cell *scope_find(const scope *s, const qn_str *name) {
  if (!s || !s->index_cap) return NULL;
  for (uint32_t i = name->hash & (s->index_cap - 1);; i = (i + 1) & (s->index_cap - 1)) {
    uint32_t k = s->index[i];
    if (!k) return NULL;
    if (s->cells[k - 1]->name == name) return s->cells[k - 1];
  }
}

static void index_insert(uint32_t *index, uint32_t cap, uint32_t hash, uint32_t number) {
  uint32_t i = hash & (cap - 1);
  while (index[i]) i = (i + 1) & (cap - 1);
  index[i] = number;
}

global_cell *scope_cell(qn_vm *vm, scope *s, qn_str *name) {
  global_cell *c = scope_find(s, name);
  if (c) return c;
  if ((s->n + 1) * 2 > s->index_cap) {
    uint32_t cap = s->index_cap ? s->index_cap * 2 : 32;
    uint32_t *index = mem_zalloc(vm, cap * sizeof *index);
    if (!index) return NULL;
    for (uint32_t i = 0; i < s->n; i++) index_insert(index, cap, s->cells[i]->name->hash, i + 1);
    mem_free(vm, s->index, s->index_cap * sizeof *s->index);
    s->index = index;
    s->index_cap = cap;
  }
  global_cell *shadow = NULL;
  if (s->outer && !(shadow = scope_cell(vm, s->outer, name))) return NULL;
  if (!mem_grow(vm, (void **)&s->cells, &s->cap, (size_t)s->n + 1, sizeof *s->cells)) return NULL;
  c = mem_zalloc(vm, sizeof *c);
  if (!c) return NULL;
  c->value = value_unset();
  c->shadow = shadow;
  c->name = name;
  name->head.refs++;
  s->cells[s->n++] = c;
  index_insert(s->index, s->index_cap, name->hash, s->n);
  return c;
}

bool scope_bind(qn_vm *vm, scope *s, const char *name, qn_value v) {
  qn_str *interned = str_intern(vm, name, strlen(name));
  global_cell *c = interned ? scope_cell(vm, s, interned) : NULL;
  if (interned) value_release(vm, value_obj(TAG_STR, interned));
  if (c) {
    c->declared = true;
    cell_set(vm, c, value_retain(v));
  }
  return c != NULL;
}

/* ---- names for messages ---------------------------------------------------------------------------------------------------- */

typedef struct names {
  const char **list;
  uint32_t n, cap;
  qn_vm *vm;
} names;

/* Adds a name. False if memory is short (no error is raised): then messages suggest fewer names. */
static bool names_add(names *l, const char *name) {
  bool room = mem_grow(l->vm, (void **)&l->list, &l->cap, (size_t)l->n + 1, sizeof *l->list);
  if (room) l->list[l->n++] = name;
  if (!room) error_clear(l->vm);
  return room;
}

static void add_scope(names *l, const scope *s, uint32_t unit) {
  for (uint32_t i = 0; s && i < s->n; i++) {
    const global_cell *c = s->cells[i];
    if (c->value.head == TAG_UNSET && !c->declared && (!unit || c->unit != unit)) continue;
    if (!names_add(l, c->name->text)) return;
  }
}

/* Does a comment as other languages write it, with -- or //, begin on the line before `at`? */
static bool behind_comment(qn_vm *vm, span at) {
  const source_text *s = source_get(vm, at.source);
  if (!s || at.start > s->len) return false;
  const char *line = s->text + s->lines[source_line_of(s, at.start)], *word = s->text + at.start;
  const char *first = line + strspn(line, " \t");
  if (first[0] == '-' && first[1] == '-') return true;
  for (; line + 1 < word; line++)
    if (line[0] == '/' && line[1] == '/') return true;
  return false;
}

static void add_variables(names *l, const char *const *near) {
  while (near && *near && names_add(l, *near)) near++;
}

/* Appends `before` and the names of the list that are spelled much like `name`, if there are any; frees the list. */
static void add_nearest(names *l, const qn_str *name, const char *before, text_buf *t) {
  text_nearest(t, before, name->text, l->list, (int)l->n);
  mem_free(l->vm, l->list, l->cap * sizeof *l->list);
}

static const embedded_module *embedded(const builtin_table *table, const char *name) {
  for (int i = 0; i < table->nmodules; i++)
    if (strcmp(table->modules[i].name, name) == 0 && strcmp(name, "prelude") != 0) return &table->modules[i];
  return NULL;
}

/* The module of the library that defines a function of this name, or NULL. */
static const embedded_module *home_of(const builtin_table *table, const qn_str *name) {
  if (name->text[0] == '_') return NULL;
  for (int i = 0; i < table->nmodules; i++) {
    const embedded_module *m = &table->modules[i];
    if (strcmp(m->name, "prelude") == 0) continue;
    for (const char *line = m->text; line; line = (line = strchr(line, '\n')) ? line + 1 : NULL)
      if (strncmp(line, "fn ", 3) == 0 && strncmp(line + 3, name->text, name->len) == 0 && line[3 + name->len] == '(')
        return m;
  }
  return NULL;
}

/* Appends `before` and what an undefined name may have been meant to be, if there is a guess: what another language's name is here, a
 * module or a function of the library, or else names that are spelled much like it. Beside a guess of the first kinds, only names of the
 * program itself are suggested. */
static void suggest(qn_vm *vm, const scope *s, const undefined_name *u, const char *before, text_buf *t) {
  const char *hint = foreign_hint(FOREIGN_NAME, u->name->text, u->name->len);
  if (!hint && behind_comment(vm, u->at)) hint = "a comment begins with #";
  if (!hint && u->size) hint = "a size is a name that is an axis by itself, as n in f32[n]";
  bool module = !hint && vm->builtins && embedded(vm->builtins, u->name->text);
  if (module) text_addf(t, "%simport %s makes this module of the library known", before, u->name->text);
  const embedded_module *home = hint || module || !vm->builtins ? NULL : home_of(vm->builtins, u->name);
  if (home) text_addf(t, "%sit is %s.%s behind import %s", before, home->name, u->name->text, home->name);
  module |= home != NULL;
  if (hint) text_addf(t, "%s%s", before, hint);
  names l = {.vm = vm};
  add_variables(&l, u->near);
  add_scope(&l, s, u->unit);
  if (!hint && !module) add_scope(&l, s->outer, 0);
  add_nearest(&l, u->name, *before || hint || module ? "; nearest: " : "nearest: ", t);
}

qn_value raise_undefined(qn_vm *vm, const scope *s, const undefined_name *u) {
  text_buf t = {.vm = vm};
  text_addf(&t, "'%s' is not defined", u->name->text);
  suggest(vm, s, u, "; ", &t);
  return raise_text(vm, E_undefined, u->at, &t);
}

void raise_unknown_target(qn_vm *vm, const scope *s, const undefined_name *u) {
  text_buf t = {.vm = vm};
  text_addf(&t, "'%s' is not defined; let %s = ... makes it", u->name->text, u->name->text);
  names l = {.vm = vm};
  add_variables(&l, u->near);
  add_scope(&l, s, u->unit);
  add_nearest(&l, u->name, "; nearest: ", &t);
  (void)raise_text(vm, E_undefined, u->at, &t);
}

void raise_undefined_all(qn_vm *vm, const scope *s, const undefined_name *list, uint32_t n) {
  if (n == 1) {
    raise_undefined(vm, s, list);
    return;
  }
  enum { SHOWN = 20 };
  /* Made before anything is raised, since a look-up that finds no memory clears its own error. */
  text_buf hints[ERROR_NOTES], t = {.vm = vm};
  uint32_t noted = n < ERROR_NOTES ? n : ERROR_NOTES;
  for (uint32_t i = 0; i < noted; i++) {
    hints[i] = (text_buf){.vm = vm};
    suggest(vm, s, &list[i], "", &hints[i]);
  }
  text_addf(&t, "%u names are not defined:", n);
  for (uint32_t i = 0; i < n && i < SHOWN; i++) text_addf(&t, "%s %s", i ? "," : "", list[i].name->text);
  if (n > SHOWN) text_adds(&t, ", ...");
  raise_text(vm, E_undefined, list[0].at, &t);
  for (uint32_t i = 0; i < noted; i++) {
    raise_note(vm, list[i].at, "%s", hints[i].text && !hints[i].failed ? hints[i].text : "not defined");
    text_free(&hints[i]);
  }
}

void interp_names(qn_vm *vm, const char *prefix, void (*each)(void *ctx, const char *name), void *ctx) {
  interp *ip = interp_of(vm);
  size_t len = strlen(prefix);
  for (const scope *s = ip->main; s; s = s->outer)
    for (uint32_t i = 0; i < s->n; i++) {
      const global_cell *c = s->cells[i];
      if (c->value.head == TAG_UNSET || strncmp(c->name->text, prefix, len) != 0) continue;
      const global_cell *over = s == ip->main ? NULL : scope_find(ip->main, c->name);
      if (!over || over->value.head == TAG_UNSET) each(ctx, c->name->text);
    }
}

qn_value interp_module_record(qn_vm *vm, qn_value module) {
  const scope *s = ((const qn_module *)module.u.p)->scope;
  qn_record *r = record_new(vm);
  if (!r) return value_error();
  for (uint32_t i = 0; i < s->n; i++) {
    const global_cell *c = s->cells[i];
    bool had = c->declared && c->value.head != TAG_UNSET;
    if (had && !record_set(vm, r, c->name, value_retain(c->value))) return value_fail(vm, value_obj(TAG_RECORD, r));
  }
  return value_obj(TAG_RECORD, r);
}

/* ---- running ------------------------------------------------------------------------------------------------------------------ */

/* A text got no unit. Its error may still be shown, so it is only dropped when LOOSE_TEXTS more such texts have come. */
static void source_loose(qn_vm *vm, uint32_t source) {
  interp *ip = interp_of(vm);
  uint32_t *place = &ip->loose[ip->nloose++ % LOOSE_TEXTS];
  source_drop(vm, *place);
  *place = source;
}

static qn_value run_unit(qn_vm *vm, const unit *u) {
  if (!vm_enter(vm, (size_t)u->nslots + 1)) return value_error();
  qn_value *base = vm->sp;
  for (uint32_t i = 0; i <= u->nslots; i++) *vm->sp++ = value_nil();
  qn_value r = eval(vm, u->body, base + 1);
  if (value_is_error(r)) {
    raise_last(vm, u->body);
    trace_frame(vm, value_nil());
  }
  vm_pop_to(vm, base);
  return r;
}

/* A comment that is typed at the prompt belongs to the next input: help shows it above a function's definition. */
static void prompt_comment(qn_vm *vm, const ast_module *tree, uint32_t source) {
  interp *ip = interp_of(vm);
  if (ip->comment) source_set_above(vm, source, ip->comment);
  ip->comment = 0;
  if (tree->root->n || source_get(vm, source)->text[0] != '#') return;
  source_hold(vm, source);
  ip->comment = source;
}

/* A run of a unit is over, also if an exception of a host has unwound it. */
static void unit_left(unit **u) {
  if (*u) (*u)->running--;
  *u = NULL;
}

qn_value run_text(qn_vm *vm, scope *s, uint32_t source, bool prompt, bool *incomplete) {
  if (prompt) {
    uint32_t *place = &interp_of(vm)->recent[source % RECENT_PROMPTS];
    source_hold(vm, source);
    source_let_go(vm, *place);
    *place = source;
  }
  parse_outcome outcome;
  ast_module *tree = parse_text(vm, source, prompt ? PARSE_PROMPT : PARSE_FILE, &outcome);
  if (!tree) {
    source_loose(vm, source);
    if (outcome != PARSE_INCOMPLETE) return value_error();
    *incomplete = true;
    return value_nil();
  }
  units_sweep(vm);
  if (prompt) prompt_comment(vm, tree, source);
  text_buf warnings TEXT_OWNED = {.vm = vm};
  unit *u = resolve_unit(vm, s, tree, source, prompt, &warnings);
  ast_free(vm, tree);
  if (!u) source_loose(vm, source);
  qn_value r = value_error();
  {
    unit *runs __attribute__((cleanup(unit_left))) = u;
    if (runs) runs->running++;
    if (!warnings.failed && warnings.text) vm_write(vm, 2, warnings.text, warnings.len);
    if (u) r = run_unit(vm, u);
  }
  /* after an error at the prompt, names whose definitions were not reached stay undefined */
  if (prompt && u && value_is_error(r))
    for (uint32_t i = 0; i < s->n; i++)
      if (s->cells[i]->unit == u->number && s->cells[i]->value.head == TAG_UNSET) s->cells[i]->declared = false;
  if (u) unit_done(vm, u);
  return r;
}

/* ---- imports --------------------------------------------------------------------------------------------------------------------- */

static qn_value module_value(scope *s) { return value_retain(value_obj(TAG_MODULE, s->module)); }

static scope *loaded(qn_vm *vm, const char *key) {
  for (scope *s = interp_of(vm)->scopes; s; s = s->next)
    if (s->key && strcmp(s->key, key) == 0) return s;
  return NULL;
}

static qn_value fail_cycle(qn_vm *vm, const scope *from, const scope *target, span at) {
  text_buf t = {.vm = vm};
  text_addf(&t, "modules import each other: %s", target->module->name->text);
  /* The chain is known from its end only: it is collected first, then printed from the target on. */
  const scope *chain[64];
  int n = 0;
  for (const scope *s = from; s && n < 64; s = s->importer) {
    if (s == target) break;
    chain[n++] = s;
  }
  while (n > 0) text_addf(&t, " -> %s", chain[--n]->module->name->text);
  text_addf(&t, " -> %s", target->module->name->text);
  return raise_text(vm, E_import_cycle, at, &t);
}

/* Makes sure that no import finds the scope any more. It is freed when nothing else refers to it (sweep.c). */
static void forget_key(qn_vm *vm, scope *s) {
  free_text(vm, s->key);
  s->key = NULL;
  interp_of(vm)->ndropped++;
}

/* Runs the text of a module under its key. `name` is what messages call it. The module value, owned, or the error value. */
static qn_value load_module(qn_vm *vm, scope *from, const char *key, const char *name, const char *text, size_t len,
                            const char *dir, bool library) {
  interp *ip = interp_of(vm);
  uint32_t source = source_add(vm, name, text, len);
  scope *s = source ? scope_new(vm, ip->builtin, name) : NULL;
  if (!s) {
    source_drop(vm, source);
    return value_error();
  }
  s->library = library;
  if (library) source_set_library(vm, source);
  s->importer = from;
  s->depth = vm->depth;
  s->state = SCOPE_LOADING;
  s->key = copy_text(vm, key, strlen(key));
  s->dir = dir ? copy_text(vm, dir, strlen(dir)) : NULL;
  bool named = s->key && (s->dir || !dir);
  qn_value r = named ? run_text(vm, s, source, false, NULL) : value_error();
  if (!named) source_drop(vm, source);
  s->importer = NULL;
  s->state = SCOPE_READY;
  if (value_is_error(r)) {
    if (s->key) forget_key(vm, s);
    return r;
  }
  value_release(vm, r);
  return module_value(s);
}

static qn_value import_key(qn_vm *vm, scope *from, const char *key, span at, scope **found) {
  scope *s = *found = loaded(vm, key);
  if (!s) return value_nil();
  return s->state == SCOPE_LOADING ? fail_cycle(vm, from, s, at) : module_value(s);
}

/* The text of a whole file, owned; NULL with E501 raised, or if memory is short. */
static char *read_file(qn_vm *vm, const char *path, size_t *len) {
  FILE *f = fopen(path, "rb");
  if (!f) return raise_nothing(vm, E_file, SPAN_NONE, "cannot read %s: %s", path, strerror(errno));
  uint32_t cap = 0;
  char *text = NULL;
  *len = 0;
  for (;;) {
    if (!mem_grow(vm, (void **)&text, &cap, *len + 4096, 1)) break;
    size_t n = fread(text + *len, 1, cap - *len, f);
    *len += n;
    if (n) continue;
    if (ferror(f)) {
      raise_error(vm, E_file, SPAN_NONE, "cannot read %s: %s", path, strerror(errno));
      break;
    }
    fclose(f);
    char *exact = mem_realloc(vm, text, cap, *len + 1);
    if (!exact) {
      mem_free(vm, text, cap);
      return NULL;
    }
    exact[*len] = 0;
    return exact;
  }
  fclose(f);
  mem_free(vm, text, cap);
  return NULL;
}

/* The FNV-1a hash of a text, part by part; the first part begins with TEXT_HASH. */
#define TEXT_HASH 0xcbf29ce484222325u
static uint64_t hash_more(uint64_t h, const char *text, size_t len) {
  for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)text[i]) * 0x100000001b3;
  return h;
}
static uint64_t text_hash(const char *text, size_t len) { return hash_more(TEXT_HASH, text, len); }

/* Loads a module from the text of a file; `real` is its canonical path. The module value, owned, or the error value. */
static qn_value load_file(qn_vm *vm, scope *from, const char *path, const char *real, const char *text, size_t len) {
  const char *slash = strrchr(path, '/');
  text_buf dir TEXT_OWNED = {.vm = vm};
  text_add(&dir, path, slash ? (size_t)(slash - path) + 1 : 0);
  if (dir.failed) return raise_memory(vm);
  qn_value r = load_module(vm, from, real, path, text, len, dir.text ? dir.text : "", false);
  scope *s = value_is_error(r) ? NULL : loaded(vm, real);
  if (s) s->written = text_hash(text, len);
  /* without the path, messages call it by its name */
  if (s && !(s->text = copy_text(vm, path, strlen(path)))) error_clear(vm);
  return r;
}

/* Notes that the file of scope `from` has imported the file of `s`. False with an error raised. */
static bool note_import(qn_vm *vm, scope *from, scope *s) {
  if (!from->key || !s) return true;
  for (uint32_t i = 0; i < from->nimports; i++)
    if (from->imports[i] == s->module) return true;
  if (!mem_grow(vm, (void **)&from->imports, &from->imports_cap, (size_t)from->nimports + 1, sizeof *from->imports))
    return false;
  from->imports[from->nimports++] = s->module;
  s->module->head.refs++;
  return true;
}

static bool file_is(const char *path, uint64_t hash) {
  FILE *f = fopen(path, "rb");
  if (!f) return false;
  char part[4096];
  uint64_t h = TEXT_HASH;
  for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) h = hash_more(h, part, n);
  bool same = !ferror(f) && h == hash;
  fclose(f);
  return same;
}

/* A module that `s` imports, itself or through others, and that has changed since: its file has another text, or it was loaded again. NULL
 * if there is none. `search`: the number of this search, so that no scope is visited twice. */
static const scope *changed_import(scope *s, uint32_t search) {
  s->looked = search;
  for (uint32_t i = 0; i < s->nimports; i++) {
    scope *other = s->imports[i]->scope;
    if (other->looked == search) continue;
    if (!other->key || (other->state == SCOPE_READY && !file_is(other->key, other->written))) return other;
    const scope *changed = changed_import(other, search);
    if (changed) return changed;
  }
  return NULL;
}

/* A module that is being loaded again, and what must be put right if an exception of a host passes. */
typedef struct reload {
  scope *s;
  char *key; /* the key of s, which has none while it is loaded again; NULL once it has its key back */
  vm_memory text;
  qn_value was, now;
} reload;

static void reload_drop(qn_vm *vm, void *what) {
  reload *l = what;
  if (l->key) l->s->key = l->key;
  vm_drop_memory(vm, &l->text);
  value_release(vm, l->was);
  value_release(vm, l->now);
}

/* At the prompt: the module value of `s` (`was`, taken over); or that of a new scope, if its file, or one that it imports itself or through
 * others, has changed: then it is loaded again. Variables keep values that they have from the old module. If the new text has an error,
 * everything stays as it was. Owned, or the error value. */
static qn_value import_again(qn_vm *vm, scope *from, scope *s, const char *path, const char *real, qn_value was) {
  size_t len;
  char *text = read_file(vm, path, &len);
  bool own = text && text_hash(text, len) != s->written;
  const scope *changed = text && !own ? changed_import(s, ++interp_of(vm)->searches) : NULL;
  if (!own && !changed) {
    if (text) mem_free(vm, text, len + 1);
    return text ? was : value_fail(vm, was);
  }
  reload l = {s, s->key, {text, len + 1}, was, value_nil()};
  vm_owned held;
  vm_own(vm, &held, reload_drop, &l);
  s->key = NULL;
  qn_value r = load_file(vm, from, path, real, text, len);
  s->key = l.key;
  l.key = NULL;
  if (!value_is_error(r)) {
    l.now = r;
    const char *cause = own ? NULL : changed->text ? changed->text : changed->module->name->text;
    text_buf t TEXT_OWNED = {.vm = vm};
    if (own)
      text_addf(&t, "%s has changed: it is loaded again\n", path);
    else
      text_addf(&t, "%s is loaded again: %s, which it needs, has changed\n", path, cause);
    forget_key(vm, s);
    if (!t.failed) vm_write(vm, 2, t.text, t.len);
  }
  vm_disown(vm, &held);
  l.now = value_nil();
  reload_drop(vm, &l);
  return r;
}

static qn_value import_file(qn_vm *vm, scope *from, const char *path, span at) {
  char real[PATH_MAX];
  if (!realpath(path, real)) return raise_error(vm, E_file, SPAN_NONE, "cannot read %s: %s", path, strerror(errno));
  scope *s;
  qn_value r = import_key(vm, from, real, at, &s);
  if (s) {
    if (interp_of(vm)->prompting && !value_is_error(r)) r = import_again(vm, from, s, path, real, r);
  } else {
    size_t len;
    char *text = read_file(vm, path, &len);
    if (!text) return value_error();
    vm_memory all = {text, len + 1};
    vm_owned held;
    vm_own(vm, &held, vm_drop_memory, &all);
    r = load_file(vm, from, path, real, text, len);
    vm_disown(vm, &held);
    mem_free(vm, text, len + 1);
  }
  return value_is_error(r) || note_import(vm, from, loaded(vm, real)) ? r : value_fail(vm, r);
}

static bool file_exists(const char *path) {
  FILE *f = fopen(path, "rb");
  if (f) fclose(f);
  return f != NULL;
}

static qn_value import_embedded(qn_vm *vm, scope *from, const embedded_module *m, span at) {
  char key[80], name[80]; /* longer than any name of a library module */
  snprintf(key, sizeof key, "<std>/%s", m->name);
  snprintf(name, sizeof name, "%s.qn", m->name);
  scope *s;
  qn_value r = import_key(vm, from, key, at, &s);
  return s ? r : load_module(vm, from, key, name, m->text, m->len, NULL, true);
}

/* Asks the host for a module. *source must be zeroed before; what it holds then is the host's, and must be freed by its `free`. */
static bool ask_host(qn_vm *vm, const char *from, const char *name, qn_source *source) {
  VM_HOST(host, vm);
  bool known = vm->config.resolve(vm->config.user, from, name, source);
  vm_host_end(&host);
  return known;
}

/* A source from the host, freed when its block is left, also by an exception. */
typedef struct lent_source {
  qn_source source;
  qn_vm *vm;
} lent_source;

static void free_source(lent_source *l) {
  VM_HOST(host, l->vm);
  if (l->source.free) l->source.free(l->vm->config.user, &l->source);
  vm_host_end(&host);
}

/* Loads a source from the host as a module, unless it is loaded. Its key is the host's, or else made of the importer's name and the
 * module's. */
static qn_value load_resolved(qn_vm *vm, scope *from, const char *importer, const char *name, const qn_source *source,
                              span at) {
  text_buf key TEXT_OWNED = {.vm = vm};
  if (source->key)
    text_adds(&key, source->key);
  else
    text_addf(&key, "%s > %s", importer, name);
  if (key.failed) return raise_memory(vm);
  scope *s;
  const char *called = source->key ? source->key : name;
  qn_value r = import_key(vm, from, key.text ? key.text : "", at, &s);
  if (!s) r = load_module(vm, from, key.text ? key.text : "", called, source->text, source->len, NULL, false);
  return r;
}

static qn_value import_resolved(qn_vm *vm, scope *from, const char *name, span at, bool *known) {
  lent_source lent __attribute__((cleanup(free_source))) = {.vm = vm};
  const qn_source *source = &lent.source;
  const char *importer = from->key ? from->key : from->text ? from->text : from->module->name->text;
  *known = ask_host(vm, importer, name, &lent.source);
  qn_value r = value_nil();
  if (*known)
    r = load_resolved(vm, from, importer, name, source, at);
  else if (source->error) {
    *known = true;
    r = raise_error(vm, E_import, at, "%s", source->error);
  }
  return r;
}

bool interp_module_drop(qn_vm *vm, const char *key) {
  scope *s = loaded(vm, key);
  if (!s || s->state == SCOPE_LOADING)
    return raise_false(vm, E_import, s ? "the module '%s' is being loaded" : "no module is known by '%s'", key);
  forget_key(vm, s);
  return true;
}

/* hooks.unwound */
static void interp_unwound(qn_vm *vm) {
  for (scope *s = interp_of(vm)->scopes; s; s = s->next)
    if (s->state == SCOPE_LOADING && s->depth >= vm->depth) {
      s->importer = NULL;
      s->state = SCOPE_READY;
      if (s->key) forget_key(vm, s);
    }
  rec_abandon(vm);
}

static qn_value fail_import(qn_vm *vm, const char *name, const char *tried, span at) {
  const builtin_table *table = vm->builtins;
  const char *list[64];
  int n = 0;
  for (int i = 0; i < table->nmodules && n < 64; i++)
    if (strcmp(table->modules[i].name, "prelude") != 0) list[n++] = table->modules[i].name;
  text_buf t = {.vm = vm};
  text_addf(&t, "there is no module '%s'", name);
  if (tried) text_addf(&t, ": neither the file %s nor one in the standard library", tried);
  const char *hint = foreign_hint(FOREIGN_IMPORT, name, strlen(name));
  size_t len = strlen(name);
  bool path = strchr(name, '/') != NULL, ending = len > 3 && strcmp(name + len - 3, ".qn") == 0;
  if (hint)
    text_addf(&t, "; %s", hint);
  else if (path && !ending)
    text_adds(&t, "; a path is given with its ending: \"./util.qn\"");
  else
    text_nearest(&t, "; nearest: ", name, list, n);
  return raise_text(vm, E_import, at, &t);
}

qn_value import_module(qn_vm *vm, scope *from, const char *name, bool path, span at) {
  if (!vm_enter(vm, 1)) return value_error();
  const embedded_module *m = path ? NULL : embedded(vm->builtins, name);
  bool known;
  if (vm->config.resolve) {
    qn_value r = import_resolved(vm, from, name, at, &known);
    if (known) return r;
    return m ? import_embedded(vm, from, m, at) : fail_import(vm, name, NULL, at);
  }
  bool files = (vm->config.capabilities & QN_CAP_READ) && !from->library;
  if (!files) {
    if (m) return import_embedded(vm, from, m, at);
    if (!from->library && !vm_may(vm, QN_CAP_READ, "importing files")) return value_error();
    return fail_import(vm, name, NULL, at);
  }
  text_buf file TEXT_OWNED = {.vm = vm};
  if (!(path && name[0] == '/') && from->dir) text_adds(&file, from->dir);
  text_adds(&file, name);
  if (!path) text_adds(&file, ".qn");
  qn_value r;
  if (file.failed)
    r = raise_memory(vm);
  else if (file_exists(file.text))
    r = import_file(vm, from, file.text, at);
  else if (m)
    r = import_embedded(vm, from, m, at);
  else
    r = fail_import(vm, name, file.text, at);
  return r;
}

/* ---- the main module ----------------------------------------------------------------------------------------------------------- */

/* Sets the name of the text that the main scope runs, and the folder to which its imports are relative. False with an error raised. */
static bool set_text(qn_vm *vm, scope *s, const char *name) {
  const char *slash = strrchr(name, '/');
  if (s->dir && s->text && strcmp(s->text, name) == 0) return true;
  char *dir = copy_text(vm, name, slash ? (size_t)(slash - name) + 1 : 0);
  char *text = dir ? copy_text(vm, name, strlen(name)) : NULL;
  if (!text) {
    free_text(vm, dir);
    return false;
  }
  free_text(vm, s->dir);
  free_text(vm, s->text);
  s->dir = dir;
  s->text = text;
  return true;
}

/* What a nested evaluation (by a host function that the program has called) must restore of the main scope. */
typedef struct main_place {
  qn_vm *vm; /* NULL once it has been restored */
  bool nested, prompting;
  char *dir, *text;
} main_place;

static void main_enter(qn_vm *vm, bool prompt, main_place *was) {
  interp *ip = interp_of(vm);
  *was = (main_place){vm, vm->depth > 1, ip->prompting, ip->main->dir, ip->main->text};
  ip->prompting = prompt;
  if (was->nested) ip->main->dir = ip->main->text = NULL;
}

static void main_leave(main_place *was) {
  qn_vm *vm = was->vm;
  if (!vm) return;
  was->vm = NULL;
  interp *ip = interp_of(vm);
  ip->prompting = was->prompting;
  if (!was->nested) return;
  free_text(vm, ip->main->dir);
  free_text(vm, ip->main->text);
  ip->main->dir = was->dir;
  ip->main->text = was->text;
}

qn_value interp_eval(qn_vm *vm, const char *name, const char *text, size_t len, bool prompt, bool *incomplete) {
  interp *ip = interp_of(vm);
  char label[32];
  snprintf(label, sizeof label, "<prompt %u>", ip->prompts + 1);
  bool more = false;
  uint32_t source = source_add(vm, prompt ? label : name, text, len);
  qn_value r = value_error();
  scope *s = ip->main;
  main_place was __attribute__((cleanup(main_leave)));
  main_enter(vm, prompt, &was);
  if (source && set_text(vm, s, prompt ? "" : name))
    r = run_text(vm, s, source, prompt, &more);
  else
    source_drop(vm, source);
  main_leave(&was);
  if (incomplete) *incomplete = more;
  if (!prompt || more) return r;
  ip->prompts++;
  if (value_is_error(r) || value_is(r, TAG_NIL)) return r;
  return scope_bind(vm, s, "_", r) ? r : value_fail(vm, r);
}

static bool name_is_text(qn_vm *vm, const char *name) {
  size_t len = strlen(name);
  return utf8_valid(name, len) ||
         raise_false(vm, E_text, "the name of a global is not UTF-8 at byte %zu", utf8_valid_prefix(name, len));
}

qn_value interp_get_global(qn_vm *vm, const char *name) {
  qn_str *s = name_is_text(vm, name) ? str_intern(vm, name, strlen(name)) : NULL;
  if (!s) return value_error();
  const global_cell *c = scope_find(interp_of(vm)->main, s);
  if (!c) c = scope_find(interp_of(vm)->builtin, s);
  qn_value v = c ? cell_get(c) : value_unset();
  if (v.head == TAG_UNSET) raise_undefined(vm, interp_of(vm)->main, &(undefined_name){.name = s});
  value_release(vm, value_obj(TAG_STR, s));
  return v.head == TAG_UNSET ? value_error() : value_retain(v);
}

/* Could a program define a global of this name? If not, E317 is raised. */
static bool name_is_good(qn_vm *vm, const char *name) {
  bool good = !(name[0] >= '0' && name[0] <= '9') && name[0];
  for (const char *p = name; *p && good; p++)
    good = *p == '_' || (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || *p & 0x80;
  if (good && !name_is_word(name) && strcmp(name, "_") != 0) return true;
  text_buf t = {.vm = vm};
  text_quoted(&t, name, strlen(name));
  text_adds(&t, " cannot be the name of a global: names are letters, digits and _, and no words of the language");
  raise_text(vm, E_argument, SPAN_NONE, &t);
  return false;
}

bool interp_set_global(qn_vm *vm, const char *name, qn_value v) {
  return name_is_text(vm, name) && name_is_good(vm, name) && scope_bind(vm, interp_of(vm)->main, name, v);
}

bool interp_set_builtin(qn_vm *vm, const char *name, qn_value v) {
  return scope_bind(vm, interp_of(vm)->builtin, name, v);
}

/* ---- signatures as text ------------------------------------------------------------------------------------------------------------ */

bool interp_signature(qn_vm *vm, qn_value fn, text_buf *out) {
  if (value_is(fn, TAG_DTYPE)) {
    text_addf(out, "%s(x)", dtype_rows[fn.u.i].name);
    return true;
  }
  if (!value_is(fn, TAG_FN)) return false;
  const qn_fn *f = value_fn(fn);
  if (f->head.flags == FN_BUILTIN) {
    for (const char *s = ((const builtin_def *)f->code)->signature; *s; s++)
      if (*s != '@' && *s != '~' && *s != '^' && *s != '%' && *s != '&')
        text_add(out, s, 1); /* these are marks for the interpreter */
    return true;
  }
  if (f->head.flags == FN_GRAPH) {
    text_adds(out, "graph");
    jit_graph_signature(f, out);
    return true;
  }
  if (f->head.flags != FN_USER) return false;
  const fn_code *code = f->code;
  text_addf(out, "%s(", code->name->text);
  for (uint32_t i = 0; i < code->nparams; i++) {
    const source_text *s = source_get(vm, code->params[i].at.source);
    if (i) text_adds(out, ", ");
    if (s) text_add(out, s->text + code->params[i].at.start, code->params[i].at.end - code->params[i].at.start);
  }
  text_adds(out, ")");
  return true;
}

/* ---- opening and closing -------------------------------------------------------------------------------------------------------------- */

static void interp_close(qn_vm *vm) {
  interp *ip = interp_of(vm);
  if (!ip) return;
  value_release(vm, ip->returned);
  for (scope *s = ip->scopes; s; s = s->next) scope_drop_values(vm, s);
  while (ip->units) {
    unit *u = ip->units;
    ip->units = u->next;
    unit_free(vm, u);
  }
  while (ip->scopes) {
    scope *s = ip->scopes;
    ip->scopes = s->next;
    scope_free(vm, s);
  }
  builtins_free(vm);
  if (ip->list) value_release(vm, value_obj(TAG_LIST, ip->list));
  if (ip->lambda) value_release(vm, value_obj(TAG_STR, ip->lambda));
  mem_free(vm, ip, sizeof *ip);
  vm->interp = NULL;
}

static void *anchor_of(qn_value fn) {
  if (!value_is(fn, TAG_FN) || value_fn(fn)->head.flags != FN_USER) return NULL;
  return &((fn_code *)value_fn(fn)->code)->anchor;
}

/* Runs the prelude, the part of the standard library that is written in Quern and visible everywhere. False with an error raised. */
static bool run_prelude(qn_vm *vm) {
  const builtin_table *table = vm->builtins;
  for (int i = 0; i < table->nmodules; i++) {
    const embedded_module *m = &table->modules[i];
    if (strcmp(m->name, "prelude") != 0) continue;
    uint32_t source = source_add(vm, "prelude.qn", m->text, m->len);
    if (!source) return false;
    source_set_library(vm, source);
    qn_value r = run_text(vm, interp_of(vm)->builtin, source, false, NULL);
    value_release(vm, r);
    return !value_is_error(r);
  }
  return true;
}

/* hooks.fn_name */
static const char *fn_name(qn_value fn) {
  const qn_fn *f = value_fn(fn);
  if (f->head.flags == FN_GRAPH) return NULL;
  if (f->head.flags == FN_TRANSFORM) return ((const transform_def *)f->code)->name;
  return f->head.flags == FN_USER ? ((const fn_code *)f->code)->name->text : NULL;
}

bool interp_open(qn_vm *vm, const builtin_table *table) {
  interp *ip = mem_zalloc(vm, sizeof *ip);
  if (!ip) return false;
  vm->interp = ip;
  vm->builtins = table;
  vm->hooks.close_interp = interp_close;
  vm->hooks.call = call_value;
  vm->hooks.anchor = anchor_of;
  vm->hooks.fn_name = fn_name;
  vm->hooks.steps = block_steps;
  vm->hooks.parameters = interp_parameters;
  vm->hooks.name_of = interp_name_of;
  vm->hooks.highlights = parse_highlights;
  vm->hooks.unwound = interp_unwound;
  ip->returned = value_nil();
  ip->drop_at = 1;
  ip->lambda = str_intern(vm, "fn", 2);
  ip->builtin = ip->lambda ? scope_new(vm, NULL, "builtins") : NULL;
  if (!ip->builtin) return false;
  ip->builtin->library = true;
  ip->builtin->state = SCOPE_READY;
  ip->main = scope_new(vm, ip->builtin, "main");
  qn_list *args = ip->main ? list_new(vm, 0) : NULL;
  if (!args) return false;
  ip->main->state = SCOPE_READY;
  bool ok = interp_set_builtin(vm, "args", value_obj(TAG_LIST, args));
  value_release(vm, value_obj(TAG_LIST, args));
  return ok && builtins_bind(vm) && run_prelude(vm);
}
