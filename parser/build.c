/* What the actions of the grammar call: they build nodes with their places and heights, and check what is easier to check here than in
 * rules (lvalues, the order of arguments and parameters).
 *
 * Once anything has failed, every builder returns the poison node and leaves the stack of items alone. The driver stops after the present
 * token.
 */
#include <string.h>

#include "parser/state.h"

#define KIDS(...) ((ast_node *[]){__VA_ARGS__})

static ast_node *poisoned(parser *p) {
  p->failed = true;
  p->poison = (ast_node){.at = {p->source, 0, 0}};
  return &p->poison;
}

/* Raises an error at `at`, and returns the poison node. */
static ast_node *refuse(parser *p, error_id id, span at, const char *message) {
  if (!p->failed) parser_fail(p, id, at.start, at.end, "%s", message);
  return poisoned(p);
}

sequence build_item(parser *p, sequence list, ast_node *item, uint32_t start) {
  if (!list.n) list.start = start;
  if (p->failed) return list;
  if (!mem_grow(p->vm, (void **)&p->items, &p->items_cap, (size_t)p->nitems + 1, sizeof *p->items)) {
    p->failed = true;
    return list;
  }
  p->items[p->nitems++] = item;
  list.n++;
  return list;
}

/* Sets the height of a node, from those of its children. False if it is too great. */
static bool measure(parser *p, ast_node *n) {
  uint32_t height = 0;
  for (uint32_t i = 0; i < n->n; i++)
    if (n->kids[i] && n->kids[i]->height > height) height = n->kids[i]->height;
  height += ast_kinds[n->kind].level;
  n->height = (uint16_t)height;
  if (height <= AST_HEIGHT_MAX) return true;
  span at = ast_mark(n);
  parser_fail(p, E_nesting, at.start, at.end, "nested more than 1,000 deep");
  return false;
}

ast_node *build_node(parser *p, ast_kind kind, span at, span mark, ast_node *const *fixed, uint32_t items) {
  if (p->failed) return poisoned(p);
  uint32_t first = ast_kinds[kind].fixed, n = first + items;
  ast_node *node = arena_alloc(&p->module->nodes, sizeof *node);
  ast_node **kids = n ? arena_alloc(&p->module->nodes, n * sizeof *kids) : NULL;
  if (!node || (n && !kids)) return poisoned(p);
  if (first) memcpy(kids, fixed, first * sizeof *kids);
  if (items) {
    p->nitems -= items;
    memcpy(kids + first, p->items + p->nitems, items * sizeof *kids);
  }
  node->kind = (uint8_t)kind;
  node->n = n;
  node->kids = kids;
  node->at = at;
  node->mark_start = mark.start;
  node->mark_end = mark.end;
  return measure(p, node) ? node : poisoned(p);
}

ast_node *build_leaf(parser *p, ast_kind kind, token t) {
  ast_node *n = build_node(p, kind, token_span(p, t), token_span(p, t), NULL, 0);
  n->u.i = t.u.i;
  if (kind == AST_float) n->u.f = t.u.f;
  if (kind == AST_str || kind == AST_name || kind == AST_type_name) n->u.s = t.u.s;
  return n;
}

ast_node *build_named(parser *p, ast_kind kind, span at, token name, ast_node *const *fixed, uint32_t items) {
  /* A name in quotes ("a": 1) comes as a text that is not interned. */
  qn_str *s = name.u.s;
  if (!p->failed && !(s->head.flags & STR_INTERNED)) {
    s = str_intern(p->vm, s->text, s->len);
    if (!s || !parser_keep(p, s)) return poisoned(p);
  }
  ast_node *n = build_node(p, kind, at, token_span(p, name), fixed, items);
  n->u.s = s;
  return n;
}

/* ---- expressions ---- */

ast_node *build_unary(parser *p, token op, ast_node *operand) {
  span sign = token_span(p, op), at = span_join(sign, operand->at);
  /* The lexer has applied the sign to the digits of the most negative integer already. */
  if (op.u.i != AST_OP_invert && operand->kind == AST_int && operand->u.i == INT64_MIN &&
      !(operand->flags & AST_PAREN) && p->text->text[operand->at.start] != '-') {
    operand->at = at;
    operand->mark_start = at.start;
    return operand;
  }
  ast_node *n = build_node(p, AST_unary, at, sign, KIDS(operand), 0);
  n->op = op.u.i == AST_OP_invert ? AST_OP_invert : AST_OP_neg;
  return n;
}

ast_node *build_infix(parser *p, ast_kind kind, ast_node *left, token op, ast_node *right) {
  ast_node *n = build_node(p, kind, span_join(left->at, right->at), token_span(p, op), KIDS(left, right), 0);
  if (kind == AST_binary) n->op = (uint8_t)op.u.i;
  return n;
}

ast_node *build_paren(parser *p, token open, ast_node *inner, token close) {
  inner->flags |= AST_PAREN;
  inner->at = span_join(token_span(p, open), token_span(p, close));
  return inner;
}

ast_node *build_call(parser *p, ast_node *callee, token open, uint32_t items, token close) {
  if (p->failed) return poisoned(p);
  bool keywords = false;
  for (uint32_t i = p->nitems - items; i < p->nitems; i++) {
    ast_kind kind = (ast_kind)p->items[i]->kind;
    if (kind == AST_keyword)
      keywords = true;
    else if (keywords && kind != AST_spread)
      return refuse(p, E_syntax, p->items[i]->at, "positional arguments stand before keyword arguments");
  }
  span arguments = span_join(token_span(p, open), token_span(p, close)), at = span_join(callee->at, arguments);
  if (callee->kind != AST_field || (callee->flags & AST_PAREN))
    return build_node(p, AST_call, at, arguments, KIDS(callee), items);
  ast_node *n = build_node(p, AST_method, at, ast_mark(callee), KIDS(callee->kids[AST_field_object]), items);
  n->u.s = callee->u.s;
  return n;
}

ast_node *build_index(parser *p, ast_node *object, token open, uint32_t items, token close) {
  span bracket = span_join(token_span(p, open), token_span(p, close));
  return build_node(p, AST_index, span_join(object->at, bracket), bracket, KIDS(object), items);
}

static bool is_name(const ast_node *n, const char *name) {
  return n->kind == AST_name && !(n->flags & AST_PAREN) && n->u.s && !strcmp(n->u.s->text, name);
}

ast_node *build_index_item(parser *p, ast_node *expr) {
  if (!p->failed && is_name(expr, "new")) {
    expr->kind = AST_new_axis;
    expr->u.s = NULL;
  }
  return expr;
}

ast_node *build_slice(parser *p, token colon, ast_node *start, ast_node *stop, ast_node *step) {
  span at = token_span(p, colon);
  if (start) at = span_join(start->at, at);
  if (stop) at = span_join(at, stop->at);
  if (step) at = span_join(at, step->at);
  return build_node(p, AST_slice, at, token_span(p, colon), KIDS(start, stop, step), 0);
}

ast_node *build_part(parser *p, ast_node *value, const token *format) {
  span at = format ? span_join(value->at, token_span(p, *format)) : value->at;
  ast_node *n = build_node(p, AST_part, at, format ? token_span(p, *format) : at, KIDS(value), 0);
  n->u.s = format ? format->u.s : NULL;
  return n;
}

sequence build_text(parser *p, sequence list, token t, uint32_t start) {
  if (!list.n) list.start = start;
  return t.u.s ? build_item(p, list, build_leaf(p, AST_str, t), start) : list;
}

/* ---- if, bodies, functions ---- */

ast_node *build_arm(parser *p, token word, ast_node *cond, ast_node *then) {
  return build_node(p, AST_if, span_join(token_span(p, word), then->at), token_span(p, word), KIDS(cond, then, NULL),
                    0);
}

ast_node *build_if(parser *p, uint32_t arms, ast_node *otherwise) {
  if (p->failed) return poisoned(p);
  for (; arms > 0; arms--) {
    ast_node *arm = p->items[--p->nitems];
    arm->kids[AST_if_otherwise] = otherwise;
    if (otherwise) arm->at = span_join(arm->at, otherwise->at);
    if (!measure(p, arm)) return poisoned(p);
    otherwise = arm;
  }
  return otherwise;
}

ast_node *build_body(parser *p, ast_node *expr) {
  span at = expr->at;
  build_item(p, (sequence){0, 0}, expr, at.start);
  return build_node(p, AST_block, at, at, NULL, 1);
}

ast_node *build_fn(parser *p, token word, const token *name, uint32_t params, ast_node *result, ast_node *body,
                   int flags) {
  if (p->failed) return poisoned(p);
  const ast_node *first_default = NULL;
  for (uint32_t i = 0; i < params; i++) {
    const ast_node *param = p->items[p->nitems - params + i];
    bool rest = param->flags & AST_REST;
    if (rest && i + 1 < params)
      return refuse(p, E_syntax, param->at, "the parameter that takes the rest is the last one");
    if (param->kids[AST_param_initial])
      first_default = param;
    else if (first_default && !rest)
      return refuse(p, E_syntax, param->at, "a parameter without a default stands before those that have one");
  }
  span at = span_join(token_span(p, word), body->at), mark = token_span(p, name ? *name : word);
  ast_node *n = build_node(p, name ? AST_define : AST_fn, at, mark, KIDS(body, result), params);
  n->flags |= (uint16_t)flags;
  n->u.s = name ? name->u.s : NULL;
  return n;
}

ast_node *build_param(parser *p, token name, ast_node *type, ast_node *initial) {
  span at = token_span(p, name);
  if (type) at = span_join(at, type->at);
  if (initial) at = span_join(at, initial->at);
  return build_named(p, AST_param, at, name, KIDS(type, initial), 0);
}

ast_node *build_dim(parser *p, ast_node *expr) {
  if (!p->failed && is_name(expr, "_")) {
    expr->kind = AST_any_dim;
    expr->u.s = NULL;
  }
  return expr;
}

ast_node *build_import(parser *p, token word, token from, bool path, token name) {
  ast_node *binding = build_leaf(p, AST_name, name);
  span at = span_join(token_span(p, word), span_join(token_span(p, from), binding->at));
  ast_node *n = build_node(p, AST_import, at, token_span(p, from), KIDS(binding), 0);
  n->u.s = from.u.s;
  if (path) n->flags |= AST_PATH;
  return n;
}

/* ---- lvalues ---- */

/* Turns the nodes of an expression into those of an lvalue. False with an error raised. Recursion is bounded by the height of the tree. */
static bool make_lvalue(parser *p, ast_node *n) {
  const char *why;
  switch ((ast_kind)n->kind) {
  case AST_name:
    if (!(n->flags & AST_PAREN)) return true;
    why = "a list of one place is written (a,)";
    break;
  case AST_index:
  case AST_field: {
    const ast_node *root = n;
    while (root->kind == AST_index || root->kind == AST_field) root = root->kids[0];
    if (root->kind == AST_name) return true;
    why = "items and fields are assigned through a variable; put this value into one first";
    n = (ast_node *)root;
    break;
  }
  case AST_list:
    for (uint32_t i = 0; i < n->n; i++)
      if (!make_lvalue(p, n->kids[i])) return false;
    if (n->n) {
      n->kind = AST_pat_list;
      return true;
    }
    why = "an empty list is not a place that can be assigned";
    break;
  case AST_record:
  case AST_pat_record:
    for (uint32_t i = 0; i < n->n; i++) {
      ast_node *field = n->kids[i];
      if (field->kind == AST_spread) return refuse(p, E_pattern, field->at, "a pattern has no '..'"), false;
      if (!make_lvalue(p, field->kids[0])) return false;
      field->kind = AST_pat_field;
    }
    if (n->n) {
      n->kind = AST_pat_record;
      return true;
    }
    why = "an empty record is not a place that can be assigned";
    break;
  case AST_spread: why = "a pattern has no '..'; the rest of a list is xs[1:]"; break;
  case AST_call:
  case AST_method: why = "what a call returns cannot be assigned; a function is defined by fn f(x) = ..."; break;
  case AST_array: why = "items are assigned through a list in parentheses: (a, b) = ..."; break;
  default: why = "only a variable, an item x[i], a field x.f, or a list of these can be assigned"; break;
  }
  refuse(p, E_pattern, n->at, why);
  return false;
}

ast_node *build_assign(parser *p, ast_node *target, token op, ast_node *value) {
  if (p->failed || !make_lvalue(p, target)) return poisoned(p);
  if (op.u.i != AST_OP_none && (target->kind == AST_pat_list || target->kind == AST_pat_record))
    return refuse(p, E_pattern, target->at, "an assignment with an operator takes one place, not a pattern");
  ast_node *n = build_node(p, AST_assign, span_join(target->at, value->at), token_span(p, op), KIDS(target, value), 0);
  n->op = (uint8_t)op.u.i;
  return n;
}

ast_node *build_pattern_field(parser *p, token name, ast_node *target) {
  if (!target) target = build_leaf(p, AST_name, name);
  return build_named(p, AST_pat_field, span_join(token_span(p, name), target->at), name, KIDS(target), 0);
}
