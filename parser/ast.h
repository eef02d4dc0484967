/* The abstract syntax tree: one node struct for everything. ast.def describes the kinds of nodes and their children.
 *
 * A tree belongs to an ast_module: nodes lie in its arena, and it owns references to strings (names and literals). Both live until
 * ast_free; whoever keeps a name or literal longer retains it. All names (u.s of every kind but str, part and import) are interned, so
 * equal names are equal pointers.
 *
 * Every node has the same shape, so that a generic walk is a loop over kids (NULL stands for absent optional children):
 *
 *   for (uint32_t i = 0; i < node->n; i++)
 *     if (node->kids[i]) visit(node->kids[i]);
 *
 * Fixed children have names: node->kids[AST_if_cond]. Further children stand behind them: the arguments of a call are kids[1..n), the
 * parameters of a function kids[2..n).
 *
 * Places. `at` covers the whole node with the parentheses around it. ast_mark(node) is the token that a message about the node itself
 * should underline (the operator, the field's name, the argument list), or `at` if there is none.
 *
 * Depth. The parser refuses trees higher than AST_HEIGHT_MAX (E106). With connectives, which have level 0, no path has more than twice as
 * many nodes: so plain recursion over a tree is bounded.
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

/* The numbers of named children: AST_if_cond, AST_call_callee, ... */
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
  AST_PAREN = 1, /* it stood in parentheses */
  AST_REST = 2,  /* param: ..name */
  AST_SHORT = 4, /* fn, define: the body is one expression without braces */
  AST_PATH = 8,  /* import: a quoted path, not a module's name */
  AST_CALLS = 16 /* for: each turn stands for a call; level: tells which calls. No text of a program makes one */
};

/* The greatest height of a tree; a leaf has height 1. The documented limit is 1,000 levels, the rest is room for the statements around. */
enum { AST_HEIGHT_MAX = 1024 };

typedef struct ast_node ast_node;
struct ast_node {
  uint8_t kind; /* ast_kind */
  uint8_t op;   /* ast_op: unary, binary, assign */
  uint16_t flags;
  uint16_t height;
  uint32_t n;                    /* how many children, absent ones included */
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
/* How an operator is written: "+", "==", ... */
const char *ast_op_spelling(ast_op op);

/* Frees a tree and releases its strings. NULL is allowed. */
void ast_free(qn_vm *vm, ast_module *module);

#endif
