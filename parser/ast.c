/* The node table, and freeing. */
#include "parser/ast.h"

const ast_kind_row ast_kinds[AST_KIND_COUNT] = {
#define NODE(kind, name, level, fixed, rest, meaning) {level, fixed},
#define KID(kind, name, place, optional)
#define OPERATOR(op, spelling, arity)
#include "parser/ast.def"
};

/* Each named child has one of the fixed places, from the first to the last. */
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
