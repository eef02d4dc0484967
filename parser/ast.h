/* The abstract syntax tree: one node struct for everything, its kinds and their children described by ast.def.
 *
 * A tree belongs to an ast_module: nodes lie in its arena, strings (names and literals) are references that it owns. Both
 * live until ast_free; whoever keeps a name or literal longer retains it. All names (u.s of every kind but str, part
 * and import) are interned, so equal names are equal pointers.
 *
 * Every node has the same shape, so a generic walk is a loop over kids (NULL ones are absent optional parts):
 *
 *   for (uint32_t i = 0; i < node->n; i++)
 *     if (node->kids[i]) visit(node->kids[i]);
 *
 * Fixed children have names: node->kids[AST_if_cond]. Further children stand behind them: arguments of a call are
 * kids[1..n), parameters of a function are kids[2..n).
 *
 * Places. `at` covers the whole node, parentheses around it included; ast_mark(node) is the token that a message about the
 * node itself should underline (the operator, the field's name, the argument list), or `at` where there is none.
 *
 * Depth. The parser refuses trees higher than AST_HEIGHT_MAX (E106); with the connectives of level 0 no path has more than
 * twice as many nodes, so plain recursion over a tree is bounded.
 */
#ifndef PARSER_AST_H
#define PARSER_AST_H

#include "lang/mem.h"
#include "lang/source.h"
#include "lang/value.h"

typedef enum ast_kind {
#define NODE(kind, name, level, fixed, rest, meaning) AST_##kind,
#define KID(kind, name, place, optional)
#define OPERATOR(op, spelling, arity)
#include "parser/ast.def"
  AST_KIND_COUNT
} ast_kind;

/* The places of named children: AST_if_cond, AST_call_callee, ... */
enum ast_kid {
#define NODE(kind, name, level, fixed, rest, meaning)
#define KID(kind, name, place, optional) AST_##kind##_##name = place,
#define OPERATOR(op, spelling, arity)
#include "parser/ast.def"
};

typedef enum ast_op {
#define NODE(kind, name, level, fixed, rest, meaning)
#define KID(kind, name, place, optional)
#define OPERATOR(op, spelling, arity) AST_OP_##op,
#include "parser/ast.def"
  AST_OP_COUNT
} ast_op;

enum ast_flag {
  AST_PAREN = 1, /* stood in parentheses */
  AST_REST = 2,  /* param: ..name */
  AST_SHORT = 4, /* fn, define: the body is one expression without braces */
  AST_PATH = 8   /* import: a quoted path, not a module's name */
};

/* The height of a tree: a leaf is 1. The documented limit is 1,000 levels; the rest is room for the statements around. */
enum { AST_HEIGHT_MAX = 1024 };

typedef struct ast_node ast_node;
struct ast_node {
  uint8_t kind; /* ast_kind */
  uint8_t op;   /* ast_op: unary, binary, assign */
  uint16_t flags;
  uint16_t height;
  uint32_t n;                    /* children, absent ones included */
  span at;                       /* the whole node */
  uint32_t mark_start, mark_end; /* ast_mark */
  ast_node **kids;
  union {
    int64_t i;
    double f;
    qn_str *s;
  } u;
};

typedef struct ast_module {
  arena nodes;
  uint32_t source;
  ast_node *root;   /* a block */
  qn_str **strings; /* owned references */
  uint32_t nstrings, strings_cap;
} ast_module;

typedef struct ast_kind_row {
  uint8_t level, fixed;
} ast_kind_row;
extern const ast_kind_row ast_kinds[AST_KIND_COUNT];

static inline span ast_mark(const ast_node *n) { return (span){n->at.source, n->mark_start, n->mark_end}; }
/* "+", "==", ... */
const char *ast_op_spelling(ast_op op);

/* Frees the tree and gives its strings back. NULL is allowed. */
void ast_free(qn_vm *vm, ast_module *module);

#endif
