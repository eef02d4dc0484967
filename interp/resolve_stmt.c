/* The resolver's statements: blocks and their scopes, assignments, branches, loops, try. Errors that are known before anything runs are
 * raised here: values that are lost; break, continue, return and import where they do not belong.
 *
 * A return at the end of a function becomes a plain value. An early `if c { return a }` becomes a branch whose other arm is the rest of the
 * function: so returning costs nothing, and the recorder sees an ordinary branch. Such branches are nested; beyond EARLY_MAX of them in one
 * function, returns stay signals.
 */
#include <string.h>

#include "interp/resolve.h"

enum { EARLY_MAX = 32 };

node *nil_node(resolver *r, const ast_node *n) {
  node *out = node_new(r, sizeof *out, eval_nil, n);
  if (out) out->kind = N_NIL;
  return out;
}

/* ---- lost values ------------------------------------------------------------------------------------------------------- */

/* The cell of the builtin that a name means here; NULL if a variable or the module defines the name, or if there is no such builtin. */
static const global_cell *builtin_cell(resolver *r, qn_str *name) {
  for (function *f = r->fn; f; f = f->outer)
    if (find_variable(f, name) || is_self(f, name)) return NULL;
  const scope *builtins = r->scope->outer;
  const global_cell *own = scope_find(r->scope, name);
  if (!builtins || (own && module_defines(r, own))) return NULL;
  return own && own->shadow ? own->shadow : scope_find(builtins, name);
}

/* Does anything define a name, as far as the text has been read? (If nothing does, that is the error to raise.) */
static bool is_known(resolver *r, qn_str *name) {
  for (function *f = r->fn; f; f = f->outer)
    if (find_variable(f, name) || is_self(f, name)) return true;
  const global_cell *own = scope_find(r->scope, name), *builtin = builtin_cell(r, name);
  return (own && module_defines(r, own)) || (builtin && builtin->value.head != TAG_UNSET);
}

/* Does the cell hold a library function without effect? *def: its row in the table of builtins; NULL for functions of the prelude, which
 * only call such builtins. */
static bool is_pure_cell(const global_cell *c, const builtin_def **def) {
  *def = NULL;
  if (!c || !value_is(c->value, TAG_FN)) return false;
  if (value_fn(c->value)->head.flags != FN_BUILTIN) return value_fn(c->value)->head.flags == FN_USER;
  *def = value_fn(c->value)->code;
  return (*def)->effect == BUILTIN_PURE || (*def)->effect == BUILTIN_CHOICE;
}

/* Does a name mean such a function here? *def as for is_pure_cell. */
static bool is_pure(resolver *r, qn_str *name, const builtin_def **def) {
  return is_pure_cell(builtin_cell(r, name), def);
}

const builtin_def *builtin_named(resolver *r, qn_str *name) {
  const builtin_def *def;
  return is_pure(r, name, &def) ? def : NULL;
}

const builtin_def *builtin_meant(resolver *r, qn_str *name) {
  const builtin_def *def;
  (void)is_pure_cell(builtin_cell(r, name), &def);
  return def;
}

/* Is this a function defined at the prompt? It may run after later inputs, which may redefine names that mean builtins now. */
static bool is_late(const resolver *r) { return r->prompt && r->fn->outer; }

/* The message about an expression whose value nobody uses. In a loop it was probably meant to be collected, as in other languages. */
static const char *lost_in(const resolver *r) {
  return r->fn->loops ? "the value of this expression is lost, since a loop has none: xs = append(xs, v) collects, "
                        "map(xs, f) gives a list"
                      : "the value of this expression is lost; assign it or remove it";
}

/* Appends the message about a call of `name`, a function without effect, whose value nobody uses. `def`: its row in the table, or NULL. */
static void text_lost_call(resolver *r, const ast_node *n, const char *name, const builtin_def *def, text_buf *t) {
  const ast_node *first = !def ? NULL : n->kind == AST_method ? n->kids[0] : n->n > 1 ? n->kids[1] : NULL;
  if (!first || first->kind != AST_name || !(strchr(def->signature, '@') || def->effect == BUILTIN_CHOICE)) {
    text_addf(t, "the result of %s is lost: it has no other effect; assign it or remove it", name);
    return;
  }
  text_addf(t, "values do not change: %s gives a new one, which is lost here; write %s = %s(%s", def->name,
            first->u.s->text, def->name, first->u.s->text);
  for (uint32_t i = n->kind == AST_method ? 1 : 2; i < n->n; i++) {
    text_adds(t, ", ");
    text_span(r->vm, t, n->kids[i]->at);
  }
  text_adds(t, ")");
}

/* Raises that a value is lost: that of a call of the function `name` (as for text_lost_call), or, with name NULL, that of another
 * expression. False. */
static bool fail_lost(resolver *r, const ast_node *n, const char *name, const builtin_def *def) {
  if (!name) return raise_nothing(r->vm, E_lost_value, n->at, "%s", lost_in(r));
  text_buf t = {.vm = r->vm};
  text_lost_call(r, n, name, def, &t);
  raise_text(r->vm, E_lost_value, n->at, &t);
  return false;
}

/* May the value of an expression be a record or module, so that `.f()` can call a function in it that has an effect? */
static bool is_container(const ast_node *n) {
  switch ((ast_kind)n->kind) {
  case AST_name:
  case AST_field:
  case AST_index:
  case AST_call:
  case AST_method:
  case AST_record:
  case AST_if:
  case AST_block:
  case AST_try: return true;
  default: return false;
  }
}

/* May the call be one of another function when it runs than its name means now? */
static bool may_change(const resolver *r, const ast_node *n) {
  return is_late(r) || (n->kind == AST_method && is_container(n->kids[0]));
}

/* For a call whose value nobody uses. If its name means a function without effect now, but may mean another one when it runs, gives a node
 * that finds out then and raises the error; else gives `call`. `let`: the variable to which a let at the end of a function binds the value,
 * or NULL. NULL with an error raised. */
static node *lost_call(resolver *r, const ast_node *n, node *call, const char *let) {
  qn_str *name = n->kind == AST_method ? n->u.s : n->kids[0]->kind == AST_name ? n->kids[0]->u.s : NULL;
  bool method = call->eval == eval_method;
  const scope *builtins = r->scope->outer;
  const builtin_def *def;
  if (!name || !may_change(r, n) || !builtins) return call;
  if (!(method ? is_pure_cell(scope_find(builtins, name), &def) : is_pure(r, name, &def))) return call;
  text_buf t = {.vm = r->vm};
  if (let)
    text_addf(&t, LOST_LET, let);
  else
    text_lost_call(r, n, name->text, def, &t);
  qn_value message = text_take(&t);
  if (value_is_error(message) || !unit_keep(r, message)) return NULL;
  if (method) {
    ((n_call *)call)->lost = value_str(message);
    return call;
  }
  n_lost *out = node_new(r, sizeof *out, eval_lost_builtin, n);
  if (!out || !(out->cell = scope_cell(r->vm, r->scope, name))) return NULL;
  out->call = call;
  out->lost = value_str(message);
  return &out->h;
}

bool has_no_effect(resolver *r, const ast_node *n) {
  const builtin_def *def;
  switch ((ast_kind)n->kind) {
  case AST_call:
  case AST_method: {
    const ast_node *callee = n->kids[0];
    if (may_change(r, n) || (n->kind == AST_call && callee->kind != AST_name)) return false; /* lost_call sees to it */
    return is_pure(r, n->kind == AST_call ? callee->u.s : n->u.s, &def);
  }
  case AST_if:
  case AST_block:
  case AST_try: return false;
  default: return true;
  }
}

/* Warns about grad(f)(x) and the like as a statement: nothing could come of it but what f prints or draws. Inside try, or if f is a
 * function literal, that may be what it is for. */
static void warn_lost_derivative(resolver *r, const ast_node *n) {
  const ast_node *callee = n->kids[0];
  if (r->fn->tries > 0 || callee->kind != AST_call || callee->kids[0]->kind != AST_name) return;
  if (callee->n < 2 || callee->kids[1]->kind == AST_fn) return;
  const builtin_def *def;
  if (is_pure(r, callee->kids[0]->u.s, &def) && def && def->work == WORK_DERIVE)
    warn(r, n->at, "what %s(f)(x) gives is lost: nothing is changed by it; write let g = %s(f)(x)", def->name,
         def->name);
}

static bool check_lost(resolver *r, const ast_node *n) {
  switch ((ast_kind)n->kind) {
  case AST_binary:
    if (n->op == AST_OP_eq) return raise_nothing(r->vm, E_lost_value, n->at, "the result of == is lost; = assigns");
    return fail_lost(r, n, NULL, NULL);
  case AST_unary:
  case AST_not:
  case AST_and:
  case AST_or:
  case AST_index:
  case AST_range: return fail_lost(r, n, NULL, NULL);
  case AST_name:
  case AST_field:
    if (n->kind == AST_name && !is_known(r, n->u.s)) return true;
    if (r->fn->loops) return fail_lost(r, n, NULL, NULL);
    return raise_nothing(r->vm, E_lost_value, n->at,
                         "the value of this expression is lost; assign it or remove it; a call is written %s()",
                         n->u.s->text);
  case AST_call:
  case AST_method: {
    const ast_node *callee = n->kids[0];
    if (n->kind == AST_call) warn_lost_derivative(r, n);
    if (n->kind == AST_call && callee->kind != AST_name) return true;
    if (may_change(r, n)) return true; /* lost_call sees to it */
    qn_str *name = n->kind == AST_call ? callee->u.s : n->u.s;
    const builtin_def *def;
    return !is_pure(r, name, &def) || fail_lost(r, n, name->text, def);
  }
  default: return true;
  }
}

/* ---- assignments ----------------------------------------------------------------------------------------------------------- */

/* Does the path consist of fields only? */
static bool only_names(const lvalue *p) {
  for (uint32_t i = 0; i < p->n; i++)
    if (!p->steps[i].name) return false;
  return p->kind == LVALUE_PATH;
}

/* Does the node read exactly what the lvalue holds? Two indices count as the same if both are one constant; or one local, if `settled`:
 * nothing is assigned between evaluating the target and storing. */
static bool reads_lvalue(const node *a, const lvalue *p, bool settled) {
  if (p->kind != LVALUE_LOCAL && p->kind != LVALUE_GLOBAL && p->kind != LVALUE_PATH) return false;
  for (uint32_t i = p->kind == LVALUE_PATH ? p->n : 0; i > 0; i--) {
    const path_step *step = &p->steps[i - 1];
    if (step->name) {
      if (a->kind != N_FIELD || ((const n_field *)a)->name != step->name) return false;
      a = ((const n_field *)a)->object;
    } else {
      if (a->kind != N_INDEX || step->n != 1) return false;
      const node *x = ((const n_index *)a)->items[0], *y = step->items[0];
      bool same = x->kind == N_LOCAL
                      ? settled && y->kind == N_LOCAL && x->slot == y->slot
                      : x->kind == N_CONST && y->kind == N_CONST && ((const n_const *)x)->v.head == TAG_INT &&
                            ((const n_const *)y)->v.head == TAG_INT &&
                            ((const n_const *)x)->v.u.i == ((const n_const *)y)->v.u.i;
      if (!same) return false;
      a = ((const n_index *)a)->object;
    }
  }
  return p->cell ? a->kind == N_GLOBAL && ((const n_global *)a)->cell == p->cell
                 : a->kind == N_LOCAL && a->slot == p->slot;
}

/* In x = f(x, ...) or x = x.f(...): marks the argument that the result replaces, so that the call may take the last reference to its value
 * (n_call.moved). `settled` as for reads_lvalue. */
static void mark_moved(resolver *r, node *value, const lvalue *p, bool settled) {
  if (value->eval != eval_call && value->eval != eval_method) return;
  n_call *c = (n_call *)value;
  bool method = value->eval == eval_method;
  node *found = NULL;
  uint32_t at = 0;
  if (method && reads_lvalue(c->callee, p, settled)) found = c->callee;
  for (uint32_t i = 0; i < c->n && !found; i++) {
    if (c->args[i].keyword || c->args[i].spread) return;
    if (!reads_lvalue(c->args[i].value, p, settled)) continue;
    found = c->args[i].value;
    at = i + method;
  }
  if (!found) return;
  c->moved = found;
  c->moved_arg = at;
  /* A function of the program may fail after it has changed the value: so nothing may be able to read the variable after an error. */
  if (!at_top(r) && r->fn->tries == 0 && !p->cell) c->h.flag |= CALL_MOVES;
}

/* x = x + e: chooses an evaluator that adds in place. `settled` as for reads_lvalue. */
static void mark_accumulation(n_assign *n, bool settled) {
  const lvalue *p = n->target;
  const n_binary *b = (const n_binary *)n->value;
  if (!settled || n->value->kind != N_BINARY || !reads_lvalue(b->a, p, settled)) return;
  eval_fn into = NULL;
  if (p->kind == LVALUE_LOCAL) into = accumulate_eval(b);
  if (p->kind == LVALUE_GLOBAL && b->op == AST_OP_add) into = eval_add_global;
  if (only_names(p) && b->op == AST_OP_add) into = eval_add_fields;
  if (into) n->h.eval = into;
}

static node *store_node(resolver *r, const ast_node *n, lvalue *p, node *value) {
  n_assign *out = node_new(r, sizeof *out, eval_destructure, n);
  if (!out) return NULL;
  out->mark = ast_mark(n);
  out->target = p;
  out->value = value;
  out->op = AST_OP_none;
  if (p->kind == LVALUE_LOCAL) {
    out->h.eval = eval_set_local;
    out->h.slot = p->slot;
  } else if (p->kind == LVALUE_GLOBAL) {
    out->h.eval = eval_set_global;
  } else if (p->kind == LVALUE_PATH) {
    bool one = p->n == 1 && !p->steps->name && p->steps->n == 1 && p->steps->nvalues == 1;
    out->h.eval = one ? eval_update_one : p->n > 1 ? eval_update_path : eval_update;
    if (only_names(p)) out->h.eval = fields_eval(p);
  }
  return &out->h;
}

enum { LOOKED_AT = 12 }; /* how many levels of an expression are searched */

/* Does a name occur in the first `depth` levels of an expression, outside of functions in it? */
static bool mentions(const ast_node *n, const qn_str *name, int depth) {
  if (!n || depth == 0 || n->kind == AST_fn) return false;
  if (n->kind == AST_name) return n->u.s == name;
  for (uint32_t i = 0; i < n->n; i++)
    if (mentions(n->kids[i], name, depth - 1)) return true;
  return false;
}

/* Warns about `let total = total + i` in a loop, and about a let of a variable that the condition of a loop around it reads: the variable
 * outside keeps its value, though it was meant to change. Hiding a variable of the loop itself, a parameter or an import is no mistake. */
static void check_hiding(resolver *r, const ast_node *pattern, const ast_node *value) {
  function *f = r->fn;
  if (f->loops == 0 || value->kind == AST_fn) return;
  if (is_pattern(pattern)) {
    for (uint32_t i = 0; i < pattern->n; i++) check_hiding(r, pattern->kids[i], value);
    return;
  }
  if (pattern->kind != AST_name || pattern->u.s->text[0] == '_') return;
  const qn_str *name = pattern->u.s;
  const variable *own = find_variable(f, name);
  if (own && (own >= f->vars + f->loop_vars || !own->expects_use)) return;
  bool asked = mentions(value, name, LOOKED_AT); /* its new value is made of the old one */
  for (const loop_test *t = f->tests; t && !asked; t = t->outer) asked = mentions(t->cond, name, LOOKED_AT);
  span hidden = asked ? hidden_by(r, name, f->loop_vars) : SPAN_NONE;
  if (hidden.source) warn_hidden(r, name, pattern->at, hidden);
  r->hiding = hidden.source ? name : r->hiding;
}

/* Notes the names that a let of the top level makes (note_made). */
static void note_pattern(resolver *r, const ast_node *pattern) {
  if (pattern->kind == AST_name) note_made(r, pattern->u.s, pattern->at);
  if (is_pattern(pattern))
    for (uint32_t i = 0; i < pattern->n; i++) note_pattern(r, pattern->kids[i]);
}

/* The node of a let. `tail`: it is the last statement of a function, so its variable is lost at once (lost_update raises what is known
 * before it runs). */
static node *let_node(resolver *r, const ast_node *n, bool tail) {
  const ast_node *pattern = n->kids[AST_let_pattern], *value = n->kids[AST_let_value];
  node *v;
  uint32_t first = r->fn->nvars;
  bool global = defines_global(r);
  r->hiding = NULL;
  if (!global) check_hiding(r, pattern, value);
  bool warned = r->hiding != NULL;
  if (value->kind == AST_fn && pattern->kind == AST_name)
    v = function_node(r, value, pattern->u.s, false);
  else
    v = expression(r, value);
  if (v && tail && pattern->kind == AST_name && pattern->u.s->text[0] != '_' &&
      (value->kind == AST_call || value->kind == AST_method))
    v = lost_call(r, value, v, pattern->u.s->text);
  lvalue *p = v ? lvalue_of(r, pattern, true, true) : NULL;
  if (p && global) note_pattern(r, pattern);
  if (p && value->kind == AST_fn && r->fn->nvars > first) r->fn->vars[first].value = value->at;
  for (uint32_t i = first; p && value->kind == AST_fn && i < r->fn->nvars; i++) r->fn->vars[i].function = true;
  if (p && pattern->kind == AST_name && r->fn->nvars > first) r->fn->vars[first].initial = v;
  if (p && !global && is_pattern(pattern)) note_destructured(r, v);
  if (p && warned) /* one warning is enough: it counts as read, so that none says it is never used */
    for (uint32_t i = first; i < r->fn->nvars; i++) r->fn->vars[i].reads++;
  return p ? store_node(r, n, p, v) : NULL;
}

static node *define_node(resolver *r, const ast_node *n) {
  uint32_t first = r->fn->nvars;
  bool global = defines_global(r);
  node *f = function_node(r, n, n->u.s, !global);
  if (!f) return NULL;
  ast_node name = {
      .kind = AST_name, .at = ast_mark(n), .mark_start = n->mark_start, .mark_end = n->mark_end, .u.s = n->u.s};
  lvalue *p = lvalue_of(r, &name, true, true);
  for (uint32_t i = first; p && i < r->fn->nvars; i++) r->fn->vars[i].function = true;
  return p ? store_node(r, n, p, f) : NULL;
}

/* Is it x or x.a.b, which can be read without effect, so that `x.a op= e` may be resolved as `x.a = x.a op e`? */
static bool only_fields(const ast_node *target) {
  while (target->kind == AST_field) target = target->kids[AST_field_object];
  return target->kind == AST_name;
}

/* Does a call append one item to what the lvalue holds, and nothing else? *c: what `append` reads. */
static bool appends(resolver *r, const ast_node *value, const n_call *call, const lvalue *p, const global_cell **c,
                    const builtin_def **def) {
  bool method = value->kind == AST_method;
  if (method ? call->n != 1 || !reads_lvalue(call->callee, p, true)
             : call->n != 2 || value->kids[0]->kind != AST_name || !reads_lvalue(call->args[0].value, p, true))
    return false;
  for (uint32_t i = 0; i < call->n; i++)
    if (call->args[i].keyword || call->args[i].spread) return false;
  qn_str *name = method ? value->u.s : value->kids[0]->u.s;
  if (strcmp(name->text, "append") != 0 || !is_pure(r, name, def) || !*def) return false;
  return (*c = scope_cell(r->vm, r->scope, name)) != NULL;
}

/* An assignment to a local or global that does nothing but add items to its list becomes an n_grow; any other one stays as it is. `settled` as for
 * reads_lvalue. NULL with an error raised. */
static node *growing_node(resolver *r, const ast_node *n, node *plain, bool settled) {
  const n_assign *a = (const n_assign *)plain;
  const lvalue *p = a->target;
  const ast_node *value = n->kids[AST_assign_value];
  bool global = p->kind == LVALUE_GLOBAL && !p->defines;
  if ((p->kind != LVALUE_LOCAL && !global) || !settled || (global && r->fn->loops == 0)) return plain;
  n_grow g = {.n = 0};
  node *const *items = NULL;
  n_call *call = (n_call *)a->value;
  n_binary *b = (n_binary *)a->value;
  if (a->value->eval == eval_call || a->value->eval == eval_method) {
    if (!appends(r, value, call, p, &g.callee, &g.def)) return error_pending(r->vm) ? NULL : plain;
    items = (node *const *)&call->args[call->n - 1].value;
    g.n = 1;
  } else if (a->value->kind == N_BINARY && b->op == AST_OP_add && b->b->eval == eval_list &&
             reads_lvalue(b->a, p, true)) {
    items = ((const n_items *)b->b)->items;
    g.n = ((const n_items *)b->b)->n;
  }
  const n_items *spread = a->value->eval == eval_list_spread ? (const n_items *)a->value : NULL;
  if (spread && spread->items[0]->kind == N_SPREAD &&
      reads_lvalue(((const n_one *)spread->items[0])->a, p, true)) { /* xs = (..xs, v) */
    items = spread->items + 1;
    g.n = spread->n - 1;
    for (uint32_t i = 0; i < spread->n - 1; i++)
      if (items[i]->kind == N_SPREAD) g.n = 0;
  }
  if (!g.n) return plain;
  if (g.callee) call->stacks = STACKS_VALUE;
  if (a->value->kind == N_BINARY) b->stacks = true;
  bool sum = a->value->kind == N_BINARY &&
             n->op == AST_OP_none; /* it has been noted that the list is read (binary_expression) */
  if (r->fn->loops == 0)           /* nothing to be done at once; but a parameter may hold a stacked list */
    return spread || note_grown(r, NULL, p->slot, true) ? plain : NULL;
  n_grow *out = node_new(r, sizeof *out + g.n * sizeof *out->items, global ? eval_grow_global : eval_grow, n);
  if (!out || !note_grown(r, global ? p->cell : NULL, p->slot, g.callee || sum)) return NULL;
  out->h.slot = p->slot;
  out->cell = global ? p->cell : NULL;
  out->plain = plain;
  out->callee = g.callee;
  out->def = g.def;
  out->n = g.n;
  memcpy(out->items, items, g.n * sizeof *items);
  return &out->h;
}

/* An assignment to a local that keeps some items of its list, as xs = xs[:-1]: what the variable may hold, its slice may be, too. Notes it like one that
 * stores an item. False with an error raised. */
static bool note_kept(resolver *r, const node *value, const lvalue *p, bool settled) {
  function *f = r->fn;
  n_index *x = (n_index *)(uintptr_t)value;
  if (p->kind != LVALUE_LOCAL || !settled || value->eval != eval_index || x->n != 1 || x->items[0]->kind != N_SLICE ||
      !reads_lvalue(x->object, p, true))
    return true;
  x->stacks = true;
  if (!mem_grow(r->vm, (void **)&f->stored, &f->stored_cap, (size_t)f->nstored + 1, sizeof *f->stored)) return false;
  f->stored[f->nstored++] = (event){NULL, p->slot, 0};
  return true;
}

static node *assign_node(resolver *r, const ast_node *n) {
  const ast_node *target = n->kids[AST_assign_target], *value = n->kids[AST_assign_value];
  ast_op op = (ast_op)n->op;
  if (op != AST_OP_none && only_fields(target)) {
    node *old = target->kind == AST_name ? name_node(r, target, target->u.s, false) : expression(r, target);
    uint32_t mark = r->fn->uses.nevents;
    node *v = old ? expression(r, value) : NULL;
    if (!v) return NULL;
    bool settled = r->fn->uses.nevents == mark;
    bool rebound = old->kind == N_LOCAL && rebound_since(r, old->slot, mark);
    node *sum = binary_node(r, n, op, old, v, rebound);
    lvalue *p = sum ? lvalue_of(r, target, false, false) : NULL;
    node *out = p ? store_node(r, n, p, sum) : NULL;
    if (out) mark_accumulation((n_assign *)out, settled);
    if (out && p->kind == LVALUE_PATH && op == AST_OP_add) note_stackable(r, sum);
    return out && op == AST_OP_add ? growing_node(r, n, out, settled) : out;
  }
  lvalue *p = lvalue_of(r, target, false, false);
  uint32_t mark = r->fn->uses.nevents;
  node *v = p ? expression(r, value) : NULL;
  node *out = v ? store_node(r, n, p, v) : NULL;
  if (!out) return NULL;
  bool settled = r->fn->uses.nevents == mark;
  if (op != AST_OP_none) {
    n_assign *a = (n_assign *)out;
    a->op = (uint8_t)op;
    a->row = (uint8_t)op_of_ast(op);
    a->h.eval = p->n > 1 ? eval_update_path : eval_update;
  } else {
    mark_moved(r, v, p, settled);
    mark_accumulation((n_assign *)out, settled);
    if (p->kind == LVALUE_PATH && is_append(value)) note_stackable(r, v);
    if (!note_kept(r, v, p, settled)) return NULL;
    return growing_node(r, n, out, settled);
  }
  return out;
}

static node *statements(resolver *r, const ast_node *n, uint32_t from, bool used, bool tail, bool turn);
static node *scoped_block(resolver *r, const ast_node *n, bool used, bool tail, bool turn);

/* ---- branches and loops ---------------------------------------------------------------------------------------------------------- */

/* The node of a branch. `rest`: if the branch has no else, the statements of this block from number `from` on are its other arm; or NULL. */
static node *branch_node(resolver *r, const ast_node *n, bool used, bool tail, const ast_node *rest, uint32_t from) {
  n_if *out = node_new(r, sizeof *out, eval_if, n);
  if (!out) return NULL;
  site_mark mark;
  uint32_t signals = r->fn->signals, breaks = r->fn->breaks, returns = r->fn->returns;
  out->h.flag = (uint8_t)((used ? IF_USED : 0) | (tail ? IF_LAST : 0));
  out->cond = condition_node(r, n->kids[AST_if_cond]);
  if (!out->cond || !(out->site = site_begin(r, &mark))) return NULL;
  out->then = block_node(r, n->kids[AST_if_then], used, tail);
  if (!out->then) return NULL;
  const ast_node *other = n->kids[AST_if_otherwise];
  r->fn->early += rest != NULL;
  if (rest)
    out->otherwise = statements(r, rest, from, used, tail, false);
  else if (other)
    out->otherwise = other->kind == AST_if ? if_node(r, other, used, tail) : block_node(r, other, used, tail);
  r->fn->early -= rest != NULL;
  if (r->fn->signals != signals) out->h.flag |= IF_LEAVES;
  if (r->fn->breaks != breaks || (r->fn->loops && r->fn->returns != returns)) out->h.flag |= IF_LEAVES_TURN;
  return (out->otherwise || !(rest || other)) && site_end(r, out->site, &mark) ? &out->h : NULL;
}

node *if_node(resolver *r, const ast_node *n, bool used, bool tail) { return branch_node(r, n, used, tail, NULL, 0); }

node *try_node(resolver *r, const ast_node *n, bool used) {
  n_try *out = node_new(r, sizeof *out, eval_try, n);
  if (!out) return NULL;
  function *f = r->fn;
  site_mark mark;
  if (!(out->site = site_begin(r, &mark))) return NULL;
  if (used) out->h.flag |= TRY_USED;
  uint32_t signals = f->signals;
  f->tries++;
  out->body = block_node(r, n->kids[AST_try_body], used, false);
  f->tries--;
  if (!out->body) return NULL;
  const ast_node *name = n->kids[AST_try_name];
  uint32_t first = f->nvars, top = f->top;
  out->error_slot = -1;
  /* Where the handler is captured it runs in the middle of the body, whose variables keep their slots. */
  f->top = f->most;
  f->blocks++;
  if (strcmp(name->u.s->text, "_") != 0) {
    variable *v = declare(r, name->u.s, name->at, false);
    if (!v) return NULL;
    out->error_slot = (int32_t)v->slot;
  }
  out->handler = block_node(r, n->kids[AST_try_handler], used, false);
  f->blocks--;
  if (!out->handler) return NULL;
  if (f->signals != signals) out->h.flag |= TRY_LEAVES;
  if (out->error_slot >= 0 && (f->vars[first].reads || f->vars[first].captured)) out->h.flag |= TRY_SEES;
  forget(r, first);
  f->top = top;
  return site_end(r, out->site, &mark) ? &out->h : NULL;
}

/* Does a pattern bind a name? */
static bool binds(const ast_node *pattern, const qn_str *name) {
  if (pattern->kind == AST_name) return pattern->u.s == name;
  bool any = false;
  for (uint32_t i = 0; i < pattern->n && !any; i++) any = pattern->kids[i] && binds(pattern->kids[i], name);
  return any;
}

/* Warns about an assignment to the loop's own variable at the end of a turn, since the next turn binds it anew. */
static void warn_lost_turn(resolver *r, const ast_node *loop, const ast_node *block) {
  const ast_node *last = block->n ? block->kids[block->n - 1] : NULL;
  for (uint32_t i = 0; i + 1 < block->n; i++)
    if (block->kids[i]->kind == AST_let) return; /* it may make another variable of that name */
  if (last && last->kind == AST_if) {
    warn_lost_turn(r, loop, last->kids[AST_if_then]);
    const ast_node *other = last->kids[AST_if_otherwise];
    if (other && other->kind == AST_block) warn_lost_turn(r, loop, other);
  }
  if (!last || last->kind != AST_assign) return;
  const ast_node *root = last->kids[AST_assign_target];
  while (root->kind == AST_index || root->kind == AST_field) root = root->kids[0];
  if (root->kind != AST_name || !binds(loop->kids[AST_for_pattern], root->u.s)) return;
  const char *name = root->u.s->text, *index = strcmp(name, "i") == 0 ? "k" : "i";
  const ast_node *over = loop->kids[AST_for_iterable];
  if (name[0] == '_') return; /* such names say that losing the value is meant */
  const builtin_def *def;
  bool counts = over->kind == AST_call && over->kids[0]->kind == AST_name && is_pure(r, over->kids[0]->u.s, &def) &&
                def && def->work == WORK_COUNT;
  if (counts || over->kind == AST_range)
    warn(r, last->at, "this '%s' is lost: each turn of the loop has the next number; while counts as it is told", name);
  else
    warn(r, last->at,
         "this '%s' is lost: each turn of the loop has a new one; for (%s, %s) in enumerate(xs) { xs[%s] = ... } "
         "changes xs",
         name, index, name, index);
}

/* The body of a loop, which recordings take as a block: *turn. Gives what is evaluated at other times: that of one statement as that statement. NULL with
 * an error raised. */
static node *body_node(resolver *r, const ast_node *n, node **turn) {
  node *body = *turn = scoped_block(r, n, false, false, true);
  if (!body || (body->eval != eval_block && body->eval != eval_block_plain)) return body;
  n_block *b = (n_block *)body;
  if (b->code) b->code->loop = true;
  return b->n == 1 && body->eval == eval_block_plain ? b->items[0] : body;
}

/* Notes whether the body of a loop breaks or continues it, or returns; `breaks` and `returns`: as counted before it. */
static void loop_leaves(function *f, node *loop, uint32_t breaks, uint32_t returns) {
  if (f->breaks != breaks) loop->flag |= LOOP_LEAVES;
  if (f->returns != returns) loop->flag |= LOOP_RETURNS;
  f->breaks = breaks;
}

static node *for_node(resolver *r, const ast_node *n) {
  n_for *out = node_new(r, sizeof *out, eval_for, n);
  if (!out) return NULL;
  const ast_node *over = n->kids[AST_for_iterable];
  if (over->kind == AST_range) {
    out->h.eval = eval_for_range;
    if (n->flags & AST_CALLS) out->h.flag |= LOOP_CALLS;
    out->start = expression(r, over->kids[AST_range_start]);
    out->stop = out->start ? expression(r, over->kids[AST_range_stop]) : NULL;
    if (!out->stop) return NULL;
  } else {
    out->iterable = expression(r, over);
    if (!out->iterable) return NULL;
    note_stackable(r, out->iterable);
    if (out->iterable->kind == N_LOCAL && out->iterable->slot < STACKABLE_MAX) out->anchor = r->fn->anchor;
  }
  function *f = r->fn;
  site_mark mark;
  if (!(out->site = site_begin(r, &mark))) return NULL;
  uint32_t vars = f->nvars, loop_vars = f->loop_vars, breaks = f->breaks, returns = f->returns, block = f->loop_block;
  out->first = f->top;
  f->blocks++;
  f->loops++;
  f->loop_vars = vars;
  f->loop_block = f->blocks + 1;
  out->target = lvalue_of(r, n->kids[AST_for_pattern], true, false);
  out->last = f->top;
  out->body = out->target ? body_node(r, n->kids[AST_for_body], &out->turn) : NULL;
  f->loops--;
  f->blocks--;
  f->loop_vars = loop_vars;
  f->loop_block = block;
  loop_leaves(f, &out->h, breaks, returns);
  if (!out->body) return NULL;
  warn_lost_turn(r, n, n->kids[AST_for_body]);
  const variable *item = out->last == out->first + 1 ? variable_in(f, out->first) : NULL;
  qn_str *name = item ? item->name : NULL;
  forget(r, vars);
  f->top = out->first;
  if (!loop_end(r, &out->h, out->site, &mark, &out->turns)) return NULL;
  if (out->turns) out->turns->item = name;
  return &out->h;
}

static node *while_node(resolver *r, const ast_node *n) {
  n_while *out = node_new(r, sizeof *out, eval_while, n);
  site_mark mark;
  if (!out || !(out->site = site_begin(r, &mark))) return NULL;
  out->cond = condition_node(r, n->kids[AST_while_cond]);
  if (!out->cond) return NULL;
  function *f = r->fn;
  uint32_t loop_vars = f->loop_vars, breaks = f->breaks, returns = f->returns, block = f->loop_block;
  loop_test test = {f->tests, n->kids[AST_while_cond]};
  f->loops++;
  f->loop_vars = f->nvars;
  f->loop_block = f->blocks + 1;
  f->tests = &test;
  out->body = body_node(r, n->kids[AST_while_body], &out->turn);
  f->tests = test.outer;
  f->loop_vars = loop_vars;
  f->loop_block = block;
  f->loops--;
  loop_leaves(f, &out->h, breaks, returns);
  if (!out->body) return NULL;
  return loop_end(r, &out->h, out->site, &mark, &out->turns) ? &out->h : NULL;
}

/* ---- the rest ---------------------------------------------------------------------------------------------------------------------- */

static node *misplaced(resolver *r, const ast_node *n, const char *what) {
  return raise_nothing(r->vm, E_misplaced, n->at, "%s", what);
}

static node *signal_node(resolver *r, const ast_node *n, signal_kind kind) {
  if (r->fn->loops == 0)
    return misplaced(r, n, kind == SIGNAL_BREAK ? "break belongs in a loop" : "continue belongs in a loop");
  node *out = node_new(r, sizeof *out, eval_signal, n);
  if (!out) return NULL;
  out->flag = (uint8_t)kind;
  r->fn->signals++;
  r->fn->breaks++;
  return out;
}

static node *return_node(resolver *r, const ast_node *n, bool tail) {
  if (at_top(r)) return misplaced(r, n, "return belongs in a function");
  const ast_node *value = n->kids[AST_return_value];
  if (tail) {
    node *result = value ? expression(r, value) : nil_node(r, n);
    if (result) note_result(r, result);
    return result;
  }
  n_one *out = node_new(r, sizeof *out, eval_return, n);
  if (!out || (value && !(out->a = expression(r, value)))) return NULL;
  if (value) note_returned(r, out->a);
  r->fn->signals++;
  r->fn->returns++;
  return &out->h;
}

static node *import_node(resolver *r, const ast_node *n) {
  if (!defines_global(r)) return misplaced(r, n, "import stands at the top level of a file, outside any block");
  n_import *out = node_new(r, sizeof *out, eval_import, n);
  if (!out) return NULL;
  out->name = n->u.s;
  out->path = (n->flags & AST_PATH) != 0;
  out->mark = ast_mark(n);
  out->from = r->scope;
  const ast_node *name = n->kids[AST_import_name];
  if (strcmp(name->u.s->text, "_") == 0) return &out->h;
  out->cell = scope_cell(r->vm, r->scope, name->u.s);
  return out->cell ? &out->h : NULL;
}

static node *statement(resolver *r, const ast_node *n, bool used, bool tail) {
  if (!used && !check_lost(r, n)) return NULL;
  switch ((ast_kind)n->kind) {
  case AST_let: return let_node(r, n, tail);
  case AST_assign: return assign_node(r, n);
  case AST_define: return define_node(r, n);
  case AST_for: return for_node(r, n);
  case AST_while: return while_node(r, n);
  case AST_break: return signal_node(r, n, SIGNAL_BREAK);
  case AST_continue: return signal_node(r, n, SIGNAL_CONTINUE);
  case AST_return: return return_node(r, n, tail);
  case AST_import: return import_node(r, n);
  case AST_if: return if_node(r, n, used, tail);
  case AST_try: return try_node(r, n, used);
  default: break;
  }
  node *out = expression(r, n);
  if (out && tail) note_result(r, out);
  bool call = n->kind == AST_call || n->kind == AST_method;
  if (!out || used || !call) return out;
  node *made = out;
  if (made->eval == eval_call || made->eval == eval_method) ((n_call *)made)->unused = true;
  out = lost_call(r, n, made, NULL);
  if (!out || r->scope->library || out != made) return out;
  n_one *lost = node_new(r, sizeof *lost, eval_lost, n);
  if (!lost) return NULL;
  lost->a = out;
  return &lost->h;
}

/* ---- blocks -------------------------------------------------------------------------------------------------------------------------- */

/* Is a block's last statement a return? */
static bool ends_in_return(const ast_node *block) {
  return block->n > 0 && block->kids[block->n - 1]->kind == AST_return;
}

/* The statement `first` of a block that the function ends with, as what the recorder is asked about before it runs. */
static node *tail_node(resolver *r, const ast_node *n, node *first, n_block *block, site *s, bool leads) {
  n_tail *out = node_new(r, sizeof *out, eval_tail, n);
  if (!out) return NULL;
  out->first = first;
  out->block = block;
  out->next = block->n + 1;
  out->site = s;
  out->leads = leads;
  return &out->h;
}

/* Begins a block of `count` statements, which may be cut into parts when it runs. False with an error raised. */
static bool block_begin(resolver *r, n_block *block, uint32_t count, bool tail) {
  function *f = r->fn;
  block_code *c = unit_alloc(r, sizeof *c);
  if (!c) return false;
  *c = (block_code){.next = r->unit->blocks,
                    .unit = r->unit,
                    .block = block,
                    .outer = f->block,
                    .outer_item = f->item,
                    .tail = tail,
                    .whole = r->looping};
  if (!f->kept) {
    if (!(f->kept = unit_alloc(r, sizeof *f->kept))) return false;
    f->kept->next = r->unit->uses;
    r->unit->uses = f->kept;
  }
  c->uses = f->kept;
  c->marks = unit_alloc(r, (count + (size_t)1) * sizeof *c->marks);
  if ((c->forks = unit_alloc(r, FORK_PLACES * count))) memset(c->forks, FORK_UNKNOWN, FORK_PLACES * count);
  block->code = f->block = r->unit->blocks = c;
  return c->marks && c->forks;
}

static void block_mark(const resolver *r, const n_block *block) {
  const function *f = r->fn;
  block->code->marks[block->n] = (struct block_mark){f->uses.nevents, f->uses.nreads, f->uses.nnames, f->top};
}

/* The block ends. If it has one statement only, blocks in that belong to the statement around it. */
static void block_end(resolver *r, n_block *block) {
  block_code *c = block->code;
  block_mark(r, block);
  r->fn->block = c->outer;
  r->fn->item = c->outer_item;
  if (block->n > 1) return;
  block_code **at = &r->unit->blocks;
  for (; *at != c; at = &(*at)->next)
    if ((*at)->outer == c) {
      (*at)->outer = c->outer;
      (*at)->outer_item = c->outer_item;
    }
  *at = c->next;
}

/* The node of the statements of a block from number `from` on, without a scope of their own. `turn`: it is the body of a loop, and a block though it has one
 * statement only. */
static node *statements(resolver *r, const ast_node *n, uint32_t from, bool used, bool tail, bool turn) {
  uint32_t count = n->n - from;
  if (count == 0) return nil_node(r, n);
  n_block *out = node_new(r, sizeof *out + count * sizeof *out->items, eval_block_plain, n);
  if (!out) return NULL;
  site_mark mark = {r->fn->uses.nevents, r->fn->top, r->fn->uses.nreads, r->fn->ngrown, r->fn->nstored}, at;
  site *rebound = NULL; /* what the statements rebind, if one of them is a tail */
  bool parts = count > 1 || turn;
  if (parts && !block_begin(r, out, count, tail)) return NULL;
  for (uint32_t i = from; i < n->n; i++) {
    const ast_node *kid = n->kids[i];
    bool last = i + 1 == n->n;
    uint32_t returns = r->fn->returns;
    node *item;
    if (parts) {
      block_mark(r, out);
      r->fn->item = out->n;
    }
    if (tail && !last && kid->kind == AST_if && !kid->kids[AST_if_otherwise] &&
        ends_in_return(kid->kids[AST_if_then]) && r->fn->early < EARLY_MAX) {
      /* `if c { ... return a }` and all that follows becomes one branch */
      item = branch_node(r, kid, true, true, n, i + 1);
      last = true;
      i = n->n;
    } else {
      item = statement(r, kid, last && used, last && tail);
      bool may_return = tail && r->fn->returns != returns && kid->kind != AST_return && !(last && kid->kind == AST_if);
      bool leads = !rebound;
      if (item && may_return && leads) rebound = site_begin(r, &at);
      if (item && may_return) item = rebound ? tail_node(r, kid, item, out, rebound, leads) : NULL;
    }
    if (!item) {
      raise_at(r->vm, kid->at);
      return NULL;
    }
    out->items[out->n++] = item;
  }
  if (parts) block_end(r, out);
  mark.top = r->fn->top;
  if (rebound && !site_end(r, rebound, &mark)) return NULL;
  return out->n == 1 && !turn ? out->items[0] : &out->h;
}

static node *scoped_block(resolver *r, const ast_node *n, bool used, bool tail, bool turn) {
  function *f = r->fn;
  uint32_t vars = f->nvars, top = f->top;
  f->blocks++;
  node *out = statements(r, n, 0, used, tail, turn);
  f->blocks--;
  if (!out) return NULL;
  /* Only variables of this block itself are left to clear; at the tail of a function the whole frame ends anyway. */
  uint32_t last = f->top;
  forget(r, vars);
  f->top = top;
  if (last == top || tail) return out;
  if (out->eval != eval_block_plain) {
    n_block *wrap = node_new(r, sizeof *wrap + sizeof *wrap->items, eval_block, n);
    if (!wrap) return NULL;
    wrap->n = 1;
    wrap->items[0] = out;
    out = &wrap->h;
  }
  n_block *b = (n_block *)out;
  b->h.eval = eval_block;
  b->first = top;
  b->last = last;
  return out;
}

node *block_node(resolver *r, const ast_node *n, bool used, bool tail) { return scoped_block(r, n, used, tail, false); }

node *root_node(resolver *r, const ast_node *n) { return statements(r, n, 0, true, false, false); }
