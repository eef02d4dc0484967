/* The node table, freeing, and the dump of trees. */
#include "parser/ast.h"

#include <string.h>

#include "lang/dtype.h"

const ast_kind_row ast_kinds[AST_KIND_COUNT] = {
#define NODE(kind, name, level, fixed, rest, meaning) {name, level, fixed, rest},
#define KID(kind, name, place, optional)
#define OPERATOR(op, spelling, arity)
#include "parser/ast.def"
};

/* Named children fill the fixed places from the first to the last. */
#define NODE(kind, name, level, fixed, rest, meaning) enum { kids_of_##kind = fixed };
#define KID(kind, name, place, optional) _Static_assert(place < kids_of_##kind, #kind " has no place for " #name);
#define OPERATOR(op, spelling, arity)
#include "parser/ast.def"

_Static_assert(AST_KIND_COUNT <= UINT8_MAX && AST_OP_COUNT <= UINT8_MAX, "kinds and operators fit a byte");
_Static_assert(AST_HEIGHT_MAX < UINT16_MAX, "heights fit their field");

const char *ast_op_spelling(ast_op op) {
  static const char *const spelling[AST_OP_COUNT] = {
#define NODE(kind, name, level, fixed, rest, meaning)
#define KID(kind, name, place, optional)
#define OPERATOR(op, spelling, arity) spelling,
#include "parser/ast.def"
  };
  return (unsigned)op < AST_OP_COUNT ? spelling[op] : "";
}

void ast_free(qn_vm *vm, ast_module *module) {
  if (!module) return;
  for (uint32_t i = 0; i < module->nstrings; i++) value_release(vm, value_obj(TAG_STR, module->strings[i]));
  mem_free(vm, module->strings, module->strings_cap * sizeof *module->strings);
  arena_free(&module->nodes);
  mem_free(vm, module, sizeof *module);
}

void ast_dump_node(const ast_node *n, text_buf *out) {
  if (!n) {
    text_adds(out, "-");
    return;
  }
  text_addf(out, "(%s", ast_kinds[n->kind].name);
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

void ast_dump(const ast_module *module, text_buf *out) { ast_dump_node(module->root, out); }
