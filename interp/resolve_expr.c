/* The resolver's expressions: makes their nodes, and chooses evaluators by what the operands are. */
#include <string.h>

#include "interp/resolve.h"

static node *const_node(resolver *r, const ast_node *n, qn_value v) {
  n_const *out = node_new(r, sizeof *out, eval_const, n);
  if (!out) return NULL;
  out->h.kind = N_CONST;
  out->v = v;
  return &out->h;
}

/* ---- operators ---------------------------------------------------------------------------------------------------------- */

node *binary_node(resolver *r, const ast_node *at, ast_op op, node *a, node *b, bool left_rebound) {
  n_binary *out = node_new(r, sizeof *out, NULL, at);
  if (!out) return NULL;
  out->h.kind = N_BINARY;
  out->mark = ast_mark(at);
  out->a = a;
  out->b = b;
  out->sa = a->slot;
  out->sb = b->slot;
  out->op = (uint8_t)op;
  out->row = (uint8_t)op_of_ast(op);
  out->k = b->kind == N_CONST ? ((n_const *)b)->v : value_nil();
  out->h.eval = binary_eval(op, left_rebound ? N_OTHER : (node_kind)a->kind, (node_kind)b->kind, out->k);
  return &out->h;
}

static node *binary_expression(resolver *r, const ast_node *n) {
  node *a = expression(r, n->kids[AST_binary_left]);
  if (!a) return NULL;
  uint32_t mark = r->fn->uses.nevents;
  node *b = expression(r, n->kids[AST_binary_right]);
  if (!b) return NULL;
  if (n->op == AST_OP_add) note_stackable(r, a), note_stackable(r, b);
  return binary_node(r, n, (ast_op)n->op, a, b, a->kind == N_LOCAL && rebound_since(r, a->slot, mark));
}

static node *unary_expression(resolver *r, const ast_node *n) {
  node *a = expression(r, n->kids[0]);
  if (!a) return NULL;
  if (n->kind == AST_unary && n->op == AST_OP_neg && a->kind == N_CONST) {
    qn_value v = ((n_const *)a)->v;
    if (v.head == TAG_INT && v.u.i != INT64_MIN) return const_node(r, n, value_int(-v.u.i));
    if (v.head == TAG_FLOAT) return const_node(r, n, value_float(-v.u.f));
  }
  n_one *out = node_new(r, sizeof *out, n->kind == AST_not ? eval_not : eval_unary, n);
  if (!out) return NULL;
  out->h.flag = n->op;
  out->mark = ast_mark(n);
  out->a = a;
  return &out->h;
}

static node *logic_expression(resolver *r, const ast_node *n) {
  n_logic *logic = node_new(r, sizeof *logic, eval_logic, n);
  if (!logic) return NULL;
  n_binary *out = &logic->h;
  out->mark = ast_mark(n);
  out->h.flag = n->kind == AST_or ? LOGIC_OR : 0;
  out->a = expression(r, n->kids[0]);
  site_mark mark = site_here(r);
  out->b = out->a ? expression(r, n->kids[1]) : NULL;
  if (out->b && r->fn->uses.nevents != mark.events &&
      (!(logic->site = unit_alloc(r, sizeof *logic->site)) || !site_end(r, logic->site, &mark)))
    return NULL;
  return out->b ? &out->h : NULL;
}

node *condition_node(resolver *r, const ast_node *n) {
  node *out = expression(r, n);
  node *few[8] = {out}; /* parts of longer conditions are as in any expression */
  uint32_t count = out != NULL;
  while (count) {
    node *x = few[--count];
    if (x->eval == eval_not) few[count++] = ((n_one *)x)->a;
    if (x->eval != eval_logic) continue;
    x->flag |= LOGIC_TEST;
    if (count + 2 > sizeof few / sizeof *few) break;
    few[count++] = ((n_binary *)x)->a;
    few[count++] = ((n_binary *)x)->b;
  }
  return out;
}

/* ---- items -------------------------------------------------------------------------------------------------------------------- */

static node *spread_node(resolver *r, const ast_node *n) {
  n_one *out = node_new(r, sizeof *out, NULL, n);
  if (!out) return NULL;
  out->h.kind = N_SPREAD;
  out->a = expression(r, n->kids[AST_spread_value]);
  return out->a ? &out->h : NULL;
}

bool is_append(const ast_node *n) {
  const qn_str *name = n->kind == AST_method                                 ? n->u.s
                       : n->kind == AST_call && n->kids[0]->kind == AST_name ? n->kids[0]->u.s
                                                                             : NULL;
  return name && strcmp(name->text, "append") == 0;
}

static node *items_expression(resolver *r, const ast_node *n) {
  n_items *out = node_new(r, sizeof *out + n->n * sizeof *out->items, n->kind == AST_list ? eval_list : eval_array, n);
  if (!out) return NULL;
  if (n->kind == AST_array) out->h.kind = N_ARRAY;
  for (uint32_t i = 0; i < n->n; i++) {
    const ast_node *kid = n->kids[i];
    node *item = kid->kind == AST_spread ? spread_node(r, kid) : expression(r, kid);
    if (!item) return NULL;
    out->items[out->n++] = item;
    if (n->kind == AST_list && is_append(kid)) note_stackable(r, item); /* whoever reads the item says what it takes */
    if (kid->kind == AST_spread && n->kind == AST_list) out->h.eval = eval_list_spread;
  }
  return &out->h;
}

/* Raises an error if a field stands twice in a record literal. Of large records, which are written by programs, only the first fields are
 * compared. False with an error raised. */
static bool check_fields(resolver *r, const ast_node *n) {
  enum { LOOKED_AT = 200 };
  for (uint32_t i = 1; i < n->n && i < LOOKED_AT; i++) {
    const ast_node *field = n->kids[i];
    for (uint32_t k = 0; k < i && field->kind != AST_spread; k++) {
      const ast_node *other = n->kids[k];
      if (other->kind == AST_spread || other->u.s->len != field->u.s->len ||
          memcmp(other->u.s->text, field->u.s->text, field->u.s->len) != 0)
        continue;
      return raise_nothing(r->vm, E_syntax, ast_mark(field), "the field '%s' stands twice in this record",
                           field->u.s->text);
    }
  }
  return true;
}

static node *record_expression(resolver *r, const ast_node *n) {
  if (!check_fields(r, n)) return NULL;
  n_record *out = node_new(r, sizeof *out + n->n * sizeof *out->fields, eval_record, n);
  if (!out || !unit_layout(r, &out->layout)) return NULL;
  for (uint32_t i = 0; i < n->n; i++) {
    const ast_node *kid = n->kids[i];
    n_record_field *f = &out->fields[out->n];
    if (kid->kind == AST_spread) {
      out->h.flag = 1;
      f->value = expression(r, kid->kids[AST_spread_value]);
    } else {
      const ast_node *value = kid->kids[AST_field_value_value];
      f->name = kid->u.s;
      f->value = value->kind == AST_fn ? function_node(r, value, kid->u.s, false) : expression(r, value);
    }
    if (!f->value) return NULL;
    if (f->name) note_stackable(r, f->value); /* whoever reads a field says what it takes */
    out->n++;
  }
  return &out->h;
}

static node *template_expression(resolver *r, const ast_node *n) {
  n_template *out = node_new(r, sizeof *out + n->n * sizeof *out->parts, eval_template, n);
  if (!out) return NULL;
  for (uint32_t i = 0; i < n->n; i++) {
    const ast_node *kid = n->kids[i];
    n_part *p = &out->parts[out->n++];
    p->text = kid->u.s;
    if (kid->kind == AST_part && !(p->value = expression(r, kid->kids[AST_part_value]))) return NULL;
  }
  return &out->h;
}

static node *range_expression(resolver *r, const ast_node *n) {
  n_range *out = node_new(r, sizeof *out, eval_range, n);
  if (!out) return NULL;
  out->a = expression(r, n->kids[AST_range_start]);
  out->b = out->a ? expression(r, n->kids[AST_range_stop]) : NULL;
  return out->b ? &out->h : NULL;
}

/* ---- calls, indices, fields ----------------------------------------------------------------------------------------------------- */

/* The node of an argument. A list of constant numbers is made only once, as a constant of the unit; whoever changes it makes a copy first. */
static node *argument_expression(resolver *r, const ast_node *n) {
  node *out = expression(r, n);
  if (!out || out->eval != eval_list) return out;
  const n_items *items = (const n_items *)out;
  for (uint32_t i = 0; i < items->n; i++)
    if (items->items[i]->kind != N_CONST || !value_is_scalar(((const n_const *)items->items[i])->v)) return out;
  qn_list *l = items->n ? list_new(r->vm, items->n) : NULL;
  if (!l) return items->n ? NULL : out;
  for (uint32_t i = 0; i < items->n; i++) l->items[i] = ((const n_const *)items->items[i])->v;
  return unit_keep(r, value_obj(TAG_LIST, l)) ? const_node(r, n, value_obj(TAG_LIST, l)) : NULL;
}

static bool call_arguments(resolver *r, const ast_node *n, n_call *out) {
  bool keywords = false;
  for (uint32_t i = 1; i < n->n; i++) {
    const ast_node *kid = n->kids[i];
    call_arg *a = &out->args[out->n];
    if (kid->kind == AST_keyword) {
      a->keyword = kid->u.s;
      keywords = true;
      for (uint32_t k = 0; k < out->n; k++) {
        if (out->args[k].keyword != a->keyword) continue;
        return raise_nothing(r->vm, E_keyword, ast_mark(kid), "argument '%s' is given twice", a->keyword->text);
      }
      a->value = argument_expression(r, kid->kids[AST_keyword_value]);
    } else if (kid->kind == AST_spread) {
      a->spread = true;
      a->value = expression(r, kid->kids[AST_spread_value]);
    } else {
      if (keywords) return raise_nothing(r->vm, E_keyword, kid->at, "positional arguments stand before keywords");
      a->value = argument_expression(r, kid);
    }
    if (!a->value) return false;
    if (!a->spread) note_stackable(r, a->value); /* functions say what they take (plain_arguments) */
    if (a->keyword || a->spread) out->h.flag |= CALL_MIXED;
    out->n++;
  }
  return true;
}

/* Can the value of a node be a stacked list, if its reader knows of these (note_stackable)? */
static bool may_give_stacked(const node *n) {
  return n->kind == N_LOCAL || n->kind == N_FIELD || n->kind == N_BINARY || n->eval == eval_call ||
         n->eval == eval_method || n->eval == eval_index;
}

/* Notes of a range that is the first argument of a call of map or fold, by these names, which call it is. */
static void note_range(resolver *r, const ast_node *n, const n_call *call) {
  const char *name = n->kids[0]->u.s->text;
  const node *first = call->n ? call->args[0].value : NULL;
  if (!first || first->eval != eval_range || call->args[0].keyword) return;
  if (strcmp(name, "map") != 0 && strcmp(name, "fold") != 0) return;
  n_range *range = (n_range *)(uintptr_t)first;
  if ((range->by = builtin_meant(r, n->kids[0]->u.s))) range->over = call;
}

/* A call of a global by its name; as an n_count if it is len or stack of something that may be a stacked list. */
static node *count_node(resolver *r, const ast_node *n, n_call *call) {
  qn_str *name = n->kids[0]->u.s;
  const node *of = call->n ? call->args[0].value : NULL;
  bool one = call->n == 1 && !call->args[0].keyword && may_give_stacked(of);
  bool stacks = strcmp(name->text, "stack") == 0;
  const builtin_def *def = one && (stacks || strcmp(name->text, "len") == 0) ? builtin_named(r, name) : NULL;
  if (!def) return &call->h;
  n_count *out = node_new(r, sizeof *out, eval_count, n);
  if (!out) return NULL;
  out->h.slot = of->slot;
  out->local = of->kind == N_LOCAL;
  out->plain = call;
  out->def = def;
  out->stacks = stacks;
  return &out->h;
}

static node *call_expression(resolver *r, const ast_node *n) {
  bool method = n->kind == AST_method;
  n_call *out = node_new(r, sizeof *out + n->n * sizeof *out->args, method ? eval_method : eval_call, n);
  if (!out) return NULL;
  out->args_at = ast_mark(n);
  const ast_node *callee = n->kids[0];
  out->callee = !method && callee->kind == AST_name ? name_node(r, callee, callee->u.s, true) : expression(r, callee);
  if (!out->callee) return NULL;
  if (method) {
    out->method = n->u.s;
    note_stackable(r, out->callee);
    if (!method_candidates(r, n, out)) return NULL;
  }
  if (!call_arguments(r, n, out)) return NULL;
  bool spread = false;
  for (uint32_t i = 0; i < out->n; i++) spread |= out->args[i].spread;
  if (!method && out->callee->kind == N_GLOBAL && !spread) out->direct = ((n_global *)out->callee)->cell;
  if (!out->direct || callee->kind != AST_name) return &out->h;
  note_range(r, n, out);
  return count_node(r, n, out);
}

static node *slice_node(resolver *r, const ast_node *at, const ast_node *start, const ast_node *stop,
                        const ast_node *step) {
  n_slice *out = node_new(r, sizeof *out, NULL, at);
  if (!out) return NULL;
  out->h.kind = N_SLICE;
  if (start && !(out->start = expression(r, start))) return NULL;
  if (stop && !(out->stop = expression(r, stop))) return NULL;
  if (step && !(out->step = expression(r, step))) return NULL;
  return &out->h;
}

node *index_item_node(resolver *r, const ast_node *n) {
  node *out;
  switch ((ast_kind)n->kind) {
  case AST_slice: return slice_node(r, n, n->kids[AST_slice_start], n->kids[AST_slice_stop], n->kids[AST_slice_step]);
  case AST_range: return slice_node(r, n, n->kids[AST_range_start], n->kids[AST_range_stop], NULL);
  case AST_ellipsis:
  case AST_new_axis:
    out = node_new(r, sizeof *out, NULL, n);
    if (out) out->kind = n->kind == AST_ellipsis ? N_ELLIPSIS : N_NEW;
    return out;
  default: return expression(r, n);
  }
}

static node *index_expression(resolver *r, const ast_node *n) {
  uint32_t count = n->n - 1;
  if (count > INDEX_MAX)
    return raise_nothing(r->vm, E_index_kind, ast_mark(n), "an index has at most %d items", INDEX_MAX);
  n_index *out = node_new(r, sizeof *out + count * sizeof *out->items, eval_index, n);
  if (!out) return NULL;
  out->mark = ast_mark(n);
  out->object = expression(r, n->kids[AST_index_object]);
  if (!out->object) return NULL;
  uint32_t mark = r->fn->uses.nevents;
  for (uint32_t i = 0; i < count; i++) {
    node *item = index_item_node(r, n->kids[i + 1]);
    if (!item) return NULL;
    out->items[out->n++] = item;
  }
  uint8_t kind = count == 1 ? out->items[0]->kind : N_SLICE;
  if (kind != N_SLICE && kind != N_ELLIPSIS && kind != N_NEW) {
    out->h.eval = eval_index_one;
    out->h.kind = N_INDEX;
    note_stackable(r, out->object);
  } else if (count == 1 && kind == N_SLICE) {
    note_stackable(r, out->object);
  }
  out->h.flag = out->object->kind == N_LOCAL && rebound_since(r, out->object->slot, mark);
  return &out->h;
}

static void field_namesake_of(resolver *r, n_field *out) {
  for (function *f = r->fn; f; f = f->outer) {
    const variable *v = find_variable(f, out->name);
    if (v && v->function) return;
    if (!v) continue;
    out->h.flag = f == r->fn ? NAMESAKE_LOCAL : NAMESAKE_OUTER;
    out->h.slot = v->slot;
    return;
  }
  const global_cell *c = scope_find(r->scope, out->name);
  if (!c || (!c->declared && c->unit != r->unit->number)) return;
  out->h.flag = NAMESAKE_GLOBAL;
  out->namesake = c;
}

static node *field_expression(resolver *r, const ast_node *n) {
  n_field *out = node_new(r, sizeof *out, eval_field, n);
  if (!out || !unit_layout(r, &out->cache.layout)) return NULL;
  out->h.kind = N_FIELD;
  out->mark = ast_mark(n);
  out->name = n->u.s;
  out->object = expression(r, n->kids[AST_field_object]);
  field_namesake_of(r, out);
  return out->object ? &out->h : NULL;
}

static node *depth_expression(resolver *r, const ast_node *n) {
  n_one *out = node_new(r, sizeof *out, eval_depth, n);
  if (!out || !(out->a = expression(r, n->kids[AST_depth_count]))) return NULL;
  return &out->h;
}

static node *level_expression(resolver *r, const ast_node *n) {
  n_one *out = node_new(r, sizeof *out, eval_level, n);
  const ast_node *count = n->kids[AST_level_count];
  if (!out || (count && !(out->a = expression(r, count)))) return NULL;
  out->h.flag = (n->flags & AST_CALLS) != 0;
  return &out->h;
}

/* ---- all ---------------------------------------------------------------------------------------------------------------------------- */

static node *expression_of_kind(resolver *r, const ast_node *n) {
  switch ((ast_kind)n->kind) {
  case AST_nil: return const_node(r, n, value_nil());
  case AST_bool: return const_node(r, n, value_bool(n->u.i != 0));
  case AST_int: return const_node(r, n, value_int(n->u.i));
  case AST_float: return const_node(r, n, value_float(n->u.f));
  case AST_str: return const_node(r, n, value_obj(TAG_STR, n->u.s)); /* the unit owns all strings of the tree */
  case AST_name: return name_node(r, n, n->u.s, false);
  case AST_template: return template_expression(r, n);
  case AST_list:
  case AST_array: return items_expression(r, n);
  case AST_record: return record_expression(r, n);
  case AST_unary:
  case AST_not: return unary_expression(r, n);
  case AST_binary: return binary_expression(r, n);
  case AST_and:
  case AST_or: return logic_expression(r, n);
  case AST_range: return range_expression(r, n);
  case AST_call:
  case AST_method: return call_expression(r, n);
  case AST_index: return index_expression(r, n);
  case AST_field: return field_expression(r, n);
  case AST_fn: return function_node(r, n, NULL, false);
  case AST_if: return if_node(r, n, true, false);
  case AST_try: return try_node(r, n, true);
  case AST_block: return block_node(r, n, true, false);
  case AST_depth: return depth_expression(r, n);
  case AST_level: return level_expression(r, n);
  default: raise_error(r->vm, E_misplaced, n->at, "this cannot be used as a value"); return NULL;
  }
}

node *expression(resolver *r, const ast_node *n) {
  node *out = vm_enter(r->vm, 0) ? expression_of_kind(r, n) : NULL;
  if (!out) raise_at(r->vm, n->at);
  return out;
}
