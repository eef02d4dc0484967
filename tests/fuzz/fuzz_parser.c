/* Feeds arbitrary bytes to the parser (libFuzzer: `./dev fuzz`) and checks what must hold for any text:
 *
 * - the outcome is a tree or an error, never both and never neither; errors are those of texts and syntax, and have a
 *   place inside the text;
 * - every node's place lies in its source, named children are there unless they are optional, and the height stays
 *   within its bound;
 * - a file parses exactly if the prompt takes the same text as complete; what the prompt calls incomplete is an error in
 *   a file;
 * - dumping the tree never fails for lack of anything but memory.
 *
 * A VM serves many inputs, since texts live as long as their VM; it is opened anew before it grows large. */
#include <stdio.h>
#include <stdlib.h>

#include "lang/error.h"
#include "lang/vm.h"
#include "parser/parser.h"
#include "tests/unit/ast_dump.h"

enum { INPUTS_PER_VM = 200 };

static void fail(const char *what) {
  fprintf(stderr, "fuzz_parser: %s\n", what);
  abort();
}

/* The optional children of a kind, as bits. */
static unsigned optional_of(ast_kind kind) {
  unsigned bits = 0;
#define NODE(kind, name, level, fixed, rest, meaning)
#define KID(k, name, place, optional)                                                                                  \
  if (kind == AST_##k && (optional)) bits |= 1u << (place);
#define OPERATOR(op, spelling, arity)
#include "parser/ast.def"
  return bits;
}

/* May a kind have children behind those that have a place of their own? */
static const bool has_rest[AST_KIND_COUNT] = {
#define NODE(kind, name, level, fixed, rest, meaning) rest,
#define KID(kind, name, place, optional)
#define OPERATOR(op, spelling, arity)
#include "parser/ast.def"
};

/* Plain recursion: the height of a tree is bounded, which is one of the things that are checked. */
static void check_node(const ast_node *node, uint32_t source, size_t len, unsigned depth) {
  if (depth > 2 * AST_HEIGHT_MAX + 2) fail("a tree is higher than its bound");
  if (node->kind >= AST_KIND_COUNT) fail("a node of no kind");
  if (node->at.source != source || node->at.start > node->at.end || node->at.end > len) fail("a node without a place");
  if (node->mark_start > node->mark_end || node->mark_end > len) fail("a mark outside of the text");
  uint32_t fixed = ast_kinds[node->kind].fixed;
  if (node->n < fixed || (node->n > fixed && !has_rest[node->kind])) fail("a wrong number of children");
  unsigned optional = optional_of((ast_kind)node->kind);
  for (uint32_t i = 0; i < node->n; i++) {
    if (node->kids[i])
      check_node(node->kids[i], source, len, depth + 1);
    else if (i >= fixed || !(optional & (1u << i)))
      fail("a child is missing");
  }
}

static parse_outcome parse_once(qn_vm *vm, const uint8_t *data, size_t size, parse_mode mode) {
  uint32_t source = source_add(vm, "fuzz", (const char *)data, size);
  if (!source) {
    if (!error_pending(vm)) fail("a text is refused without an error");
    error_clear(vm);
    return PARSE_ERROR;
  }
  parse_outcome outcome = PARSE_OK;
  ast_module *tree = parse_text(vm, source, mode, &outcome);
  if ((tree != NULL) != (outcome == PARSE_OK)) fail("the outcome does not fit the tree");
  if (error_pending(vm) != (outcome == PARSE_ERROR)) fail("the outcome does not fit the error");
  if (tree) {
    check_node(tree->root, source, size, 0);
    text_buf text = {.vm = vm};
    ast_dump_node(tree->root, &text);
    text_free(&text);
    ast_free(vm, tree);
  } else if (outcome == PARSE_ERROR) {
    qn_error_object *e = error_take(vm);
    if (e->id != E_memory && (e->id < E_text || e->id > 199)) fail("an error that is not one of syntax");
    if (e->id != E_memory && (e->at.source != source || e->at.start > e->at.end || e->at.end > size))
      fail("an error without a place");
    error_free(vm, e);
  }
  return outcome;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static qn_vm *vm;
  static int inputs;
  if (vm && ++inputs >= INPUTS_PER_VM) {
    vm_close(vm);
    vm = NULL;
  }
  if (!vm) {
    inputs = 0;
    vm = vm_open(NULL);
    if (!vm) return 0;
  }
  parse_outcome file = parse_once(vm, data, size, PARSE_FILE);
  parse_outcome prompt = parse_once(vm, data, size, PARSE_PROMPT);
  if (file == PARSE_INCOMPLETE) fail("a file cannot be incomplete");
  if ((file == PARSE_OK) != (prompt == PARSE_OK)) fail("file and prompt disagree");
  return 0;
}
