/* `quern help`: functions, modules, dtypes, error ids and tunables, from the tables and texts that define them. */
#include <string.h>

#include "interp/node.h"

static void help_error(const error_row *e, text_buf *out) {
  text_addf(out, "E%d: %s\n\n%s\n", e->id, e->title, e->help);
}

static void help_tunables(text_buf *out) {
  for (int i = 0; i < TUNABLE_COUNT; i++) {
    const tunable_row *t = &tunable_rows[i];
    text_addf(out, "%-20s %s\n%-20s default %lld, from %lld to %lld\n", t->name, t->meaning, "", (long long)t->def,
              (long long)t->min, (long long)t->max);
  }
  text_adds(out, "\nSet with --set NAME=VALUE or QUERN_SET=\"a=1,b=2\".\n");
}

/* The comment lines directly above a definition. */
static void comment_above(qn_vm *vm, span at, text_buf *out) {
  const source_text *s = source_get(vm, at.source);
  if (!s) return;
  int line, column;
  source_position(s, at.start, &line, &column);
  int first = line - 1;
  while (first > 0 && s->text[s->lines[first - 1]] == '#') first--;
  for (int i = first; i < line - 1; i++) {
    const char *from = s->text + s->lines[i] + 1;
    if (*from == ' ') from++;
    text_add(out, from, strcspn(from, "\n"));
    text_adds(out, "\n");
  }
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
  text_buf t;
  text_init(&t, vm);
  text_addf(out, "there is no help on '%s'", topic);
  if (text_nearest(&t, topic, l->names, l->n) && !t.failed) text_addf(out, "; nearest: %s", t.text);
  text_adds(out, "\n");
  text_free(&t);
  mem_free(vm, l, sizeof *l);
  return false;
}

bool interp_help(qn_vm *vm, const char *topic, text_buf *out) {
  int64_t id;
  if ((topic[0] == 'E' || topic[0] == 'e') && int_parse(topic + 1, strlen(topic + 1), &id) && id > 0 && id < 1000) {
    const error_row *e = error_find((int)id);
    if (e) {
      help_error(e, out);
      return true;
    }
  }
  if (strcmp(topic, "tunables") == 0) {
    help_tunables(out);
    return true;
  }
  vm_run run;
  vm_run_begin(vm, &run);
  bool found = true;
  const interp *ip = interp_of(vm);
  qn_str *name = str_intern(vm, topic, strlen(topic));
  const global_cell *c = name ? scope_find(ip->builtin, name) : NULL;
  if (name) value_release(vm, value_obj(TAG_STR, name));
  if (c && (value_is(c->value, TAG_FN) || value_is(c->value, TAG_DTYPE))) {
    help_function(vm, c->value, out);
  } else {
    bool module = false;
    for (int i = 0; i < vm->builtins->nmodules; i++) module |= strcmp(vm->builtins->modules[i].name, topic) == 0;
    qn_value m =
        module && strcmp(topic, "prelude") != 0 ? import_module(vm, ip->main, topic, false, SPAN_NONE) : value_nil();
    if (value_is(m, TAG_MODULE))
      help_module(vm, ((const qn_module *)m.u.p)->scope, out);
    else
      found = help_unknown(vm, topic, out);
    value_release(vm, m);
  }
  vm_run_end(vm, &run);
  return found;
}
