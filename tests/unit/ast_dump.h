/* Trees as text, for the tests of the parser and its fuzzer. */
#ifndef TESTS_UNIT_AST_DUMP_H
#define TESTS_UNIT_AST_DUMP_H

#include "lang/dtype.h"
#include "parser/ast.h"

static const char *const kind_names[AST_KIND_COUNT] = {
#define NODE(kind, name, level, fixed, rest, meaning) name,
#define KID(kind, name, place, optional)
#define OPERATOR(op, spelling, arity)
#include "parser/ast.def"
};

/* A tree as an S-expression on one line: (let (name x) (binary + (int 1) (int 2))). */
static void ast_dump_node(const ast_node *n, text_buf *out) {
  if (!n) {
    text_adds(out, "-");
    return;
  }
  text_addf(out, "(%s", kind_names[n->kind]);
  switch ((ast_kind)n->kind) {
  case AST_bool: text_adds(out, n->u.i ? " true" : " false"); break;
  case AST_int: text_addf(out, " %lld", (long long)n->u.i); break;
  case AST_float:
    text_adds(out, " ");
    text_float(out, n->u.f, WEAK_FLOAT);
    break;
  case AST_str:
  case AST_part:
    if (n->u.s) {
      text_adds(out, " ");
      text_quoted(out, n->u.s->text, n->u.s->len);
    }
    break;
  case AST_import:
    text_adds(out, " ");
    if (n->flags & AST_PATH)
      text_quoted(out, n->u.s->text, n->u.s->len);
    else
      text_add(out, n->u.s->text, n->u.s->len);
    break;
  case AST_unary:
  case AST_binary: text_addf(out, " %s", ast_op_spelling((ast_op)n->op)); break;
  case AST_assign: text_addf(out, " %s=", ast_op_spelling((ast_op)n->op)); break;
  case AST_param: text_adds(out, n->flags & AST_REST ? " .." : " "); /* fall through */
  default:
    if (n->u.s) {
      if (n->kind != AST_param) text_adds(out, " ");
      text_add(out, n->u.s->text, n->u.s->len);
    }
  }
  uint32_t last = n->n; /* absent children at the end are left out */
  while (last > 0 && !n->kids[last - 1]) last--;
  for (uint32_t i = 0; i < last; i++) {
    text_adds(out, " ");
    ast_dump_node(n->kids[i], out);
  }
  text_adds(out, ")");
}

#endif
