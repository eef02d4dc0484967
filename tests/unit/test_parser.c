/* The parser from outside: what every form becomes (as a dump shows it), what mistakes are told and where, which texts the
 * prompt takes for incomplete, how deep things nest, and that no text whatever, and no failing allocation, does harm. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lang/dtype.h"
#include "lang/error.h"
#include "lang/vm.h"
#include "parser/parser.h"
#include "tests/unit/ast_dump.h"

static qn_vm *vm;

static void open_vm(void) {
  vm = vm_open(NULL);
  ck_assert_ptr_nonnull(vm);
}

static void close_vm(void) {
  vm_close(vm);
  vm = NULL;
}

/* ---- helpers ---- */

static uint32_t count_nodes(const ast_node *n) {
  uint32_t count = 1;
  for (uint32_t i = 0; i < n->n; i++) count += n->kids[i] ? count_nodes(n->kids[i]) : 0;
  return count;
}

/* The dump of a text, or "E102 at 3..5: message", or "incomplete"; to be freed. */
static char *outcome_of(const char *text, parse_mode mode) {
  parse_outcome outcome;
  uint32_t source = source_add(vm, "test", text, strlen(text));
  ck_assert_uint_ne(source, 0);
  ast_module *tree = parse_text(vm, source, mode, &outcome);
  ck_assert_int_eq(tree != NULL, outcome == PARSE_OK);
  ck_assert_int_eq(error_pending(vm), outcome == PARSE_ERROR);
  text_buf out = {.vm = vm};
  if (outcome == PARSE_OK) {
    ast_dump_node(tree->root, &out);
    ast_free(vm, tree);
  } else if (outcome == PARSE_INCOMPLETE) {
    text_adds(&out, "incomplete");
  } else {
    qn_error_object *e = error_take(vm);
    ck_assert_uint_eq(e->at.source, source);
    ck_assert_uint_le(e->at.start, e->at.end);
    ck_assert_uint_le(e->at.end, strlen(text));
    text_addf(&out, "E%d at %u..%u: %s", (int)e->id, e->at.start, e->at.end, e->message->text);
    error_free(vm, e);
  }
  text_add(&out, "", 1);
  ck_assert(!out.failed);
  char *copy = strdup(out.text);
  text_free(&out);
  return copy;
}

typedef struct example {
  const char *text, *want;
} example;

static void check_dumps(const example *examples, size_t n) {
  for (size_t i = 0; i < n; i++) {
    char want[2000];
    snprintf(want, sizeof want, "(block%s%s)", *examples[i].want ? " " : "", examples[i].want);
    char *got = outcome_of(examples[i].text, PARSE_FILE);
    if (strcmp(got, want)) ck_abort_msg("%s\n  gives  %s\n  want   %s", examples[i].text, got, want);
    free(got);
    got = outcome_of(examples[i].text, PARSE_PROMPT);
    ck_assert_str_eq(got, want);
    free(got);
  }
}
#define CHECK_DUMPS(examples) check_dumps(examples, sizeof examples / sizeof *examples)

/* `want` begins "E102 at 3..5: " and is the beginning of what is reported. */
static void check_errors(const example *examples, size_t n) {
  for (size_t i = 0; i < n; i++) {
    char *got = outcome_of(examples[i].text, PARSE_FILE);
    if (strncmp(got, examples[i].want, strlen(examples[i].want)))
      ck_abort_msg("%s\n  gives  %s\n  want   %s", examples[i].text, got, examples[i].want);
    free(got);
  }
}
#define CHECK_ERRORS(examples) check_errors(examples, sizeof examples / sizeof *examples)

/* ---- what forms become ---- */

START_TEST(statements) {
  static const example examples[] = {
      {"", ""},
      {"# nothing", ""},
      {"\n\n ; ;\n", ""},
      {"let x = 1", "(let (name x) (int 1))"},
      {"let (q, r,) = f()", "(let (pat-list (name q) (name r)) (call (name f)))"},
      {"let (a,) = f()", "(let (pat-list (name a)) (call (name f)))"},
      {"let {w, b: (c, {d})} = p",
       "(let (pat-record (pat-field w (name w)) (pat-field b (pat-list (name c) (pat-record (pat-field d (name d)))))) "
       "(name p))"},
      {"let {w: a, b} = p", "(let (pat-record (pat-field w (name a)) (pat-field b (name b))) (name p))"},
      {"let _ = f()", "(let (name _) (call (name f)))"},
      {"a = a + 1", "(assign = (name a) (binary + (name a) (int 1)))"},
      {"a += 1; b -= 1; c *= 1",
       "(assign += (name a) (int 1)) (assign -= (name b) (int 1)) (assign *= (name c) (int 1))"},
      {"a /= 1; b //= 1; c %= 1; d **= 1", "(assign /= (name a) (int 1)) (assign //= (name b) (int 1)) (assign %= "
                                           "(name c) (int 1)) (assign **= (name d) (int 1))"},
      {"x[2, 1:] = 0", "(assign = (index (name x) (int 2) (slice (int 1))) (int 0))"},
      {"p.layers[0].w = v", "(assign = (field w (index (field layers (name p)) (int 0))) (name v))"},
      {"(a, b) = (b, a)", "(assign = (pat-list (name a) (name b)) (list (name b) (name a)))"},
      {"(x[i], (y.z,)) = v", "(assign = (pat-list (index (name x) (name i)) (pat-list (field z (name y)))) (name v))"},
      {"{a, b: x[0]} = r",
       "(assign = (pat-record (pat-field a (name a)) (pat-field b (index (name x) (int 0)))) (name r))"},
      {"{a: x, b: (y, z)} = r",
       "(assign = (pat-record (pat-field a (name x)) (pat-field b (pat-list (name y) (name z)))) (name r))"},
      {"if c { 1 }", "(if (name c) (block (int 1)))"},
      {"if a { 1 } else if b { 2 } else { 3 }",
       "(if (name a) (block (int 1)) (if (name b) (block (int 2)) (block (int 3))))"},
      {"if a { 1 }\n\n# comment\nelse { 2 }", "(if (name a) (block (int 1)) (block (int 2)))"},
      {"if c {a: 1} else {}", "(if (name c) (block (record (field-value a (int 1)))) (block))"},
      {"for i in 0..10 { f(i) }", "(for (name i) (range (int 0) (int 10)) (block (call (name f) (name i))))"},
      {"for (k, v) in items(r) {}", "(for (pat-list (name k) (name v)) (call (name items) (name r)) (block))"},
      {"while c { break; continue }", "(while (name c) (block (break) (continue)))"},
      {"return", "(return)"},
      {"return\n-1", "(return) (unary - (int 1))"},
      {"return (1, 2)", "(return (list (int 1) (int 2)))"},
      {"try { f() } catch e { g(e) }", "(try (block (call (name f))) (name e) (block (call (name g) (name e))))"},
      {"try { f() }\ncatch _ {}", "(try (block (call (name f))) (name _) (block))"},
      {"import nn", "(import nn (name nn))"},
      {"import nn as n", "(import nn (name n))"},
      {"import \"lib/u.qn\" as u", "(import \"lib/u.qn\" (name u))"},
  };
  CHECK_DUMPS(examples);
}
END_TEST

START_TEST(newlines) {
  static const example examples[] = {
      {"a\nb", "(name a) (name b)"},
      {"a\r\nb\r\n", "(name a) (name b)"},
      {"a +\nb", "(binary + (name a) (name b))"},
      {"a\n-b", "(name a) (unary - (name b))"},
      {"a - b", "(binary - (name a) (name b))"},
      {"a -b", "(binary - (name a) (name b))"},
      {"f\n(x)", "(name f) (name x)"},
      {"f(\n a\n,\n b\n)", "(call (name f) (name a) (name b))"},
      {"(a\n+ b)", "(binary + (name a) (name b))"},
      {"[\n1,\n2,\n]", "(array (int 1) (int 2))"},
      {"x\n  .f()\n  # why\n  .g", "(field g (method f (name x)))"},
      {"f(fn(x) {\n  let y = x\n  y\n}, 1)",
       "(call (name f) (fn (block (let (name y) (name x)) (name y)) - (param x)) (int 1))"},
      {"{\n  a: 1,\n  b: 2\n}", "(record (field-value a (int 1)) (field-value b (int 2)))"},
      {"let x =\n\n 1", "(let (name x) (int 1))"},
      {"else_ = 1\ncatcher", "(assign = (name else_) (int 1)) (name catcher)"},
  };
  CHECK_DUMPS(examples);
}
END_TEST

START_TEST(operators) {
  static const example examples[] = {
      {"a or b and not c == d", "(or (name a) (and (name b) (not (binary == (name c) (name d)))))"},
      {"a | b & 0..n + 1", "(binary | (name a) (binary & (name b) (range (int 0) (binary + (name n) (int 1)))))"},
      {"a - b - c", "(binary - (binary - (name a) (name b)) (name c))"},
      {"alpha * A @ x", "(binary @ (binary * (name alpha) (name A)) (name x))"},
      {"a / b // c % d", "(binary % (binary // (binary / (name a) (name b)) (name c)) (name d))"},
      {"-x ** 2", "(unary - (binary ** (name x) (int 2)))"},
      {"2 ** -x * y", "(binary * (binary ** (int 2) (unary - (name x))) (name y))"},
      {"a ** b ** c", "(binary ** (name a) (binary ** (name b) (name c)))"},
      {"-~x", "(unary - (unary ~ (name x)))"},
      {"a --b", "(binary - (name a) (unary - (name b)))"},
      {"a != b", "(binary != (name a) (name b))"},
      {"(a < b) == (c >= d)", "(binary == (binary < (name a) (name b)) (binary >= (name c) (name d)))"},
      {"a <= b or a > b", "(or (binary <= (name a) (name b)) (binary > (name a) (name b)))"},
      {"not not a", "(not (not (name a)))"},
      {"-1..3", "(range (unary - (int 1)) (int 3))"},
      {"1 + if c {1} else {2} * 3",
       "(binary + (int 1) (binary * (if (name c) (block (int 1)) (block (int 2))) (int 3)))"},
      {"let s = try { f() } catch e { 0 }", "(let (name s) (try (block (call (name f))) (name e) (block (int 0))))"},
  };
  CHECK_DUMPS(examples);
}
END_TEST

START_TEST(literals) {
  static const example examples[] = {
      {"nil; true; false", "(nil) (bool true) (bool false)"},
      {"0; 1_000_000; 0xff; 0xDEAD_beef", "(int 0) (int 1000000) (int 255) (int 3735928559)"},
      {"9223372036854775807", "(int 9223372036854775807)"},
      {"-9223372036854775808", "(int -9223372036854775808)"},
      {"x - -9223372036854775808", "(binary - (name x) (int -9223372036854775808))"},
      {"--9223372036854775808", "(unary - (int -9223372036854775808))"},
      {"1.5; 1e-3; 1_0.2_5e+2; 0.1", "(float 1.5) (float 0.001) (float 1025.0) (float 0.1)"},
      {"inf; nan; pi", "(float inf) (float nan) (float 3.141592653589793)"},
      {"0.1234567890123456789", "(float 0.12345678901234568)"},
      {"1e-400", "(float 0.0)"},
      {"()", "(list)"},
      {"(a,)", "(list (name a))"},
      {"(a, ..b, c,)", "(list (name a) (spread (name b)) (name c))"},
      {"(..b,)", "(list (spread (name b)))"},
      {"((a))", "(name a)"},
      {"[]", "(array)"},
      {"[1, [2, x], ..y]", "(array (int 1) (array (int 2) (name x)) (spread (name y)))"},
      {"f({})", "(call (name f) (record))"},
      {"{ }", "(record)"},
      {"{a: 1, \"b c\": 2, ..r,}", "(record (field-value a (int 1)) (field-value b c (int 2)) (spread (name r)))"},
      {"{..r}", "(record (spread (name r)))"},
      {"{ # first\n a: 1}", "(record (field-value a (int 1)))"},
      {"π_2 = naïve + 変数", "(assign = (name π_2) (binary + (name naïve) (name 変数)))"},
      {"\xef\xbb\xbf"
       "a",
       "(name a)"},
  };
  CHECK_DUMPS(examples);
}
END_TEST

START_TEST(strings) {
  static const example examples[] = {
      {"\"\"", "(str \"\")"},
      {"\"a\\n\\t\\\"\\\\\\{\\}\"", "(str \"a\\n\\t\\\"\\\\\\{\\}\")"},
      {"\"\\u{41}\\u{1F600}\"", "(str \"A\xf0\x9f\x98\x80\")"},
      {"\"a}b\"", "(str \"a\\}b\")"},
      {"\"{x}\"", "(template (part (name x)))"},
      {"\"loss {loss:.4f}, {n}!\"",
       "(template (str \"loss \") (part \".4f\" (name loss)) (str \", \") (part (name n)) (str \"!\"))"},
      {"\"{f(\"a{b}c\")}\"", "(template (part (call (name f) (template (str \"a\") (part (name b)) (str \"c\")))))"},
      {"\"{x[1:2]:>8}\"", "(template (part \">8\" (index (name x) (slice (int 1) (int 2)))))"},
      {"\"{{a: 1}.a}\"", "(template (part (field a (record (field-value a (int 1))))))"},
      {"\"{if c {1} else {2}}\"", "(template (part (if (name c) (block (int 1)) (block (int 2)))))"},
      {"\"\"\"a\n \"b\" {x}\n\"\"\"", "(template (str \"a\\n \\\"b\\\" \") (part (name x)) (str \"\\n\"))"},
      {"\"\"\"{\n x\n}\"\"\"", "(template (part (name x)))"},
      {"\"\"\"a\r\n\r\nb\r{x}\r\n\"\"\"", "(template (str \"a\\n\\nb\\u{d}\") (part (name x)) (str \"\\n\"))"},
      {"\"a\" + \"b\"", "(binary + (str \"a\") (str \"b\"))"},
      {"r[\"k\"]", "(index (name r) (str \"k\"))"},
  };
  CHECK_DUMPS(examples);
}
END_TEST

START_TEST(calls_and_indices) {
  static const example examples[] = {
      {"f()", "(call (name f))"},
      {"f(x, y, axis: 0,)", "(call (name f) (name x) (name y) (keyword axis (int 0)))"},
      {"f(..a, ..b)", "(call (name f) (spread (name a)) (spread (name b)))"},
      {"f(k: 1, ..r)", "(call (name f) (keyword k (int 1)) (spread (name r)))"},
      {"f(..a..b)", "(call (name f) (spread (range (name a) (name b))))"},
      {"f(..x + 1)", "(call (name f) (spread (binary + (name x) (int 1))))"},
      {"x.reshape(2, -1).sum(axis: 0)",
       "(method sum (method reshape (name x) (int 2) (unary - (int 1))) (keyword axis (int 0)))"},
      {"(x.f)(1)", "(call (field f (name x)) (int 1))"},
      {"f(1)(2)", "(call (call (name f) (int 1)) (int 2))"},
      {"a.if.in.None", "(field None (field in (field if (name a))))"},
      {"2.sqrt()", "(method sqrt (int 2))"},
      {"x[i]", "(index (name x) (name i))"},
      {"x[1:5, ::2, :, ::-1, 1:, :5, 1:2:3,]", "(index (name x) (slice (int 1) (int 5)) (slice - - (int 2)) (slice) "
                                               "(slice - - (unary - (int 1))) (slice (int 1)) "
                                               "(slice - (int 5)) (slice (int 1) (int 2) (int 3)))"},
      {"x[..., 0]", "(index (name x) (...) (int 0))"},
      {"x[:, new]", "(index (name x) (slice) (new))"},
      {"x[(new)]; new(x)", "(index (name x) (name new)) (call (name new) (name x))"},
      {"x[a..b]", "(index (name x) (range (name a) (name b)))"},
      {"f64([0.1, x])", "(call (name f64) (array (float 0.1) (name x)))"},
  };
  CHECK_DUMPS(examples);
}
END_TEST

START_TEST(functions) {
  static const example examples[] = {
      {"fn f() {}", "(define f (block))"},
      {"fn sq(x) = x * x", "(define sq (block (binary * (name x) (name x))) - (param x))"},
      {"fn f(a, b: f32, c = 1, d: int = 2, ..rest) { a }",
       "(define f (block (name a)) - (param a) (param b (type f32)) (param c - (int 1)) (param d (type int) (int 2)) "
       "(param ..rest))"},
      {"fn f(x: f32[b, 2 * n, 64, _, ...]) -> [n] { x }",
       "(define f (block (name x)) (type-array (name n)) (param x (type-array f32 (name b) (binary * (int 2) (name n)) "
       "(int 64) (_) (...))))"},
      {"fn f(x: f32[], y: (f32, (int,)), z: {w: fn, b: [n, ..., d]}, e: (T)) = 1",
       "(define f (block (int 1)) - (param x (type-array f32)) (param y (type-list (type f32) (type-list (type int)))) "
       "(param z (type-record (type-field w (type fn)) (type-field b (type-array (name n) (...) (name d))))) "
       "(param e (type T)))"},
      {"fn f() -> (f32, f32) = g()", "(define f (block (call (name g))) (type-list (type f32) (type f32)))"},
      {"fn f(x) {a: x}", "(define f (block (record (field-value a (name x)))) - (param x))"},
      {"let g = fn(x) x + 1 | 2",
       "(let (name g) (fn (block (binary | (binary + (name x) (int 1)) (int 2))) - (param x)))"},
      {"fn(x) {}", "(fn (block) - (param x))"},
      {"fn(x) {a: x}", "(fn (block (record (field-value a (name x)))) - (param x))"},
      {"fn(x) -> f32 { x }", "(fn (block (name x)) (type f32) (param x))"},
      {"fn(x) fn(y) x", "(fn (block (fn (block (name x)) - (param y))) - (param x))"},
      {"f(fn(x) x, 1)", "(call (name f) (fn (block (name x)) - (param x)) (int 1))"},
      {"fn f(\n  x,\n  y,\n) {}", "(define f (block) - (param x) (param y))"},
  };
  CHECK_DUMPS(examples);
}
END_TEST

/* ---- places ---- */

/* The text that a node covers, and its mark, for the first node of a kind (in order of the dump). */
static const ast_node *find(const ast_node *n, ast_kind kind) {
  if (n->kind == kind) return n;
  for (uint32_t i = 0; i < n->n; i++) {
    const ast_node *found = n->kids[i] ? find(n->kids[i], kind) : NULL;
    if (found) return found;
  }
  return NULL;
}

START_TEST(places_and_marks) {
  static const struct {
    const char *text;
    ast_kind kind;
    const char *at, *mark;
  } rows[] = {
      {"let h = x @ w + b", AST_binary, "x @ w + b", "+"},
      {"(a + b) * c", AST_binary, "(a + b) * c", "*"},
      {"y = f(x, 1)[0]", AST_call, "f(x, 1)", "(x, 1)"},
      {"y = f(x)[0, :]", AST_index, "f(x)[0, :]", "[0, :]"},
      {"y = x.sum(1)", AST_method, "x.sum(1)", "sum"},
      {"y = x.w.b", AST_field, "x.w.b", "b"},
      {"f(axis: 1 + 2)", AST_keyword, "axis: 1 + 2", "axis"},
      {"f(..xs)", AST_spread, "..xs", ".."},
      {"a = not b", AST_not, "not b", "not"},
      {"a = -b", AST_unary, "-b", "-"},
      {"x[1:2:3]", AST_slice, "1:2:3", ":"},
      {"a //= 2", AST_assign, "a //= 2", "//="},
      {"if a {1} else if b {2} else {3}", AST_if, "if a {1} else if b {2} else {3}", "if"},
      {"fn f(x: f32[n] = 1) { x }", AST_define, "fn f(x: f32[n] = 1) { x }", "f"},
      {"fn f(x: f32[n] = 1) { x }", AST_param, "x: f32[n] = 1", "x"},
      {"fn f(x: f32[n] = 1) { x }", AST_type_array, "f32[n]", "f32"},
      {"fn f(..r) {}", AST_param, "..r", "r"},
      {"\"a{x + 1:.2f}\"", AST_part, "x + 1:.2f", ":.2f"},
      {"\"a{x}b\"", AST_template, "\"a{x}b\"", "\"a{x}b\""},
      {"import \"a.qn\" as b", AST_import, "import \"a.qn\" as b", "\"a.qn\""},
      {"r = {a: 1 + 2}", AST_field_value, "a: 1 + 2", "a"},
      {"x = -9223372036854775808", AST_int, "-9223372036854775808", "-9223372036854775808"},
      {"for i in x { i }", AST_block, "for i in x { i }", "for i in x { i }"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    parse_outcome outcome;
    uint32_t source = source_add(vm, "test", rows[i].text, strlen(rows[i].text));
    ast_module *tree = parse_text(vm, source, PARSE_FILE, &outcome);
    ck_assert_ptr_nonnull(tree);
    const ast_node *n = find(tree->root, rows[i].kind);
    ck_assert_msg(n != NULL, "%s", rows[i].text);
    char at[100], mark[100];
    span m = ast_mark(n);
    snprintf(at, sizeof at, "%.*s", (int)(n->at.end - n->at.start), rows[i].text + n->at.start);
    snprintf(mark, sizeof mark, "%.*s", (int)(m.end - m.start), rows[i].text + m.start);
    ck_assert_str_eq(at, rows[i].at);
    ck_assert_str_eq(mark, rows[i].mark);
    ck_assert_uint_eq(n->at.source, source);
    ast_free(vm, tree);
  }
}
END_TEST

START_TEST(flags_and_names) {
  static const char text[] = "fn f(x, ..r) = (x)\nimport \"m.qn\" as x\nlet g = fn(x) { x }";
  parse_outcome outcome;
  ast_module *tree = parse_text(vm, source_add(vm, "test", text, strlen(text)), PARSE_FILE, &outcome);
  ck_assert_ptr_nonnull(tree);
  const ast_node *define = tree->root->kids[0], *import = tree->root->kids[1],
                 *fn = tree->root->kids[2]->kids[AST_let_value];
  ck_assert_int_eq(define->flags, AST_SHORT);
  ck_assert_int_eq(fn->flags, 0);
  ck_assert_int_eq(import->flags, AST_PATH);
  const ast_node *x = define->kids[2], *rest = define->kids[3];
  ck_assert_int_eq(rest->flags, AST_REST);
  const ast_node *body = define->kids[AST_define_body]->kids[0];
  ck_assert_int_eq(body->flags, AST_PAREN);
  ck_assert_ptr_eq(body->u.s, x->u.s); /* interned */
  ck_assert_ptr_eq(import->kids[AST_import_name]->u.s, x->u.s);
  ck_assert_str_eq(ast_op_spelling(AST_OP_floordiv), "//");
  ast_free(vm, tree);
}
END_TEST

/* ---- mistakes ---- */

START_TEST(mistakes) {
  static const example examples[] = {
      {"f(1 2)", "E102 at 4..5: expected ',' or ')', found '2'"},
      {"f(a b)", "E102 at 4..5: expected ',' or ')', found 'b'"},
      {"f(1,", "E102 at 1..2: '(' is never closed"},
      {"if x {\n  y\n", "E102 at 5..6: '{' is never closed"},
      {"1 2", "E102 at 2..3: expected an operator or the end of the line, found '2'"},
      {"x = )", "E102 at 4..5: expected an expression, found ')'"},
      {"x =", "E102 at 3..3: expected an expression, found the end of the text"},
      {"x[1 2]", "E102 at 4..5: expected ',', ']' or ':', found '2'"},
      {"x[]", "E102 at 2..3: expected an expression, found ']'"},
      {")", "E102 at 0..1: this ')' closes nothing"},
      {"let 3 = x", "E102 at 4..5: expected a name or a pattern, found '3'"},
      {"let (a) = x", "E102 at 6..7: a pattern of one item is written (a,)"},
      {"let x 3", "E102 at 6..7: expected '=', found '3'"},
      {"let in = 3", "E102 at 4..6: 'in' is a keyword and cannot be a name"},
      {"let pi = 3", "E102 at 4..6: 'pi' is a number and cannot be a name"},
      {"f(in: 3)", "E102 at 2..4: 'in' is a keyword and cannot be a name"},
      {"fn f(x) x", "E105 at 8..9: a body stands in braces { }, a short one behind =: fn f(x) = x + 1"},
      {"fn 3(x) {}", "E102 at 3..4: expected a name or '(', found '3'"},
      {"fn f(x,, y) {}", "E102 at 7..8: expected a name or ')', found ','"},
      {"fn f(x: 3) {}", "E102 at 8..9: expected a type, found '3'"},
      {"fn(x) -> f32 x",
       "E105 at 13..14: behind the type of its result a function's body stands in braces: fn(x) -> int { ... }"},
      {"fn f(x)\n{ x }", "E102 at 7..8: '{' stands on the line of what it belongs to"},
      {"fn(x) return x", "E102 at 6..12: a statement is no value"},
      {"for x { }", "E102 at 6..7: expected 'in', found '{'"},
      {"try { }", "E102 at 7..7: expected 'catch', found the end of the text"},
      {"try { } catch { }", "E102 at 14..15: catch names the error: catch e { ... }, or catch _ { ... }"},
      {"else { }", "E102 at 0..4: else stands behind the '}' of an if"},
      {"break 3", "E102 at 6..7: expected the end of the line, found '3'"},
      {"let x = (1, 2\nprint(x)", "E102 at 14..19: expected ',' or ')', found 'print'"},
      {"let x = {a: 1, b: 2\nprint(x)", "E102 at 20..25: expected '}', found 'print'"},
      {"print(1))", "E102 at 8..9: this ')' closes nothing"},
      {"x = 1\n}", "E102 at 6..7: this '}' closes nothing"},
      {"x]", "E102 at 1..2: this ']' closes nothing"},
      {"print(len xs)", "E102 at 10..12: expected ',' or ')', found 'xs'; a call is written len(xs)"},
      {"{a: 1 b: 2}", "E102 at 6..7: fields are separated by ','; one is missing before this"},
      {"{ x = 3 }", "E102 at 4..5: a block stands only behind if"},
      {"{ let x = 3 }", "E102 at 2..5: a block stands only behind if"},
      {"let r = {a, b}", "E102 at 8..9: {a, b} is a pattern"},
      {"1 < 2 < 3", "E102 at 6..7: comparisons do not chain"},
      {"a..b..c", "E102 at 4..6: ranges do not chain"},
      {"f(a: 1, 2)", "E102 at 8..9: positional arguments stand before keyword arguments"},
      {"fn f(..a, b) {}", "E102 at 5..8: the parameter that takes the rest is the last one"},
      {"fn f(a = 1, b) {}", "E102 at 12..13: a parameter without a default"},
      {"x.5", "E102 at 1..3: a field is a name"},
      {"a.(b)", "E105 at 2..3: functions act on every element by themselves"},
      {"\"a{b]c}\"", "E102 at 4..5: expected '}', found ']'"},
      {"\"\\q\"", "E102 at 1..3: unknown escape '\\q'"},
      {"\"\\u{110000}\"", "E102 at 1..10: a code point is written"},
      {"\"\\u{d800}\"", "E102 at 1..8: a code point is written"},
      {"\"{x:{w}}\"", "E102 at 3..4: the format after ':' ends with '}'"},
      {"a \x01 b", "E102 at 2..3: a control character (U+0001)"},
      {"a € b", "E102 at 2..5: the character '€' (U+20AC)"},
      {"x = \"abc\ny", "E103 at 4..8: this string is not closed on its line"},
      {"\"\"\"abc\n", "E103 at 0..6: this string is never closed"},
      {"\"a{b", "E103 at 0..3: this string is never closed"},
      {"\"a{b\n}\"", "E103 at 0..4: this string is not closed on its line"},
      {"f(x) = 3", "E110 at 0..4: what a call returns cannot be assigned"},
      {"3 = x", "E110 at 0..1: only a variable"},
      {"a + b = x", "E110 at 0..5: only a variable"},
      {"(a) = x", "E110 at 0..3: a list of one place is written (a,)"},
      {"(a, 1) = x", "E110 at 4..5: only a variable"},
      {"() = x", "E110 at 0..2: an empty list"},
      {"(a, ..b) = x", "E110 at 4..7: a pattern has no '..'"},
      {"(a, b) += x", "E110 at 0..6: an assignment with an operator takes one place"},
      {"f(a)[0].b = x", "E110 at 0..4: items and fields are assigned through a variable"},
      {"{a: 3} = r", "E110 at 4..5: only a variable"},
  };
  CHECK_ERRORS(examples);
}
END_TEST

START_TEST(slips) {
  static const example examples[] = {
      {"a && b", "E105 at 2..4: write 'and'"},
      {"a || b", "E105 at 2..4: write 'or'"},
      {"!a", "E105 at 0..1: write 'not'"},
      {"a ? b : c", "E105 at 2..3: a choice is written if c { a } else { b }"},
      {"x = b if c else d", "E105 at 6..8: a choice is written if c { a } else { b }"},
      {"'x'", "E105 at 0..3: strings have double quotes: \"x\""},
      {"A'", "E105 at 1..2: a transposed matrix is written A.T"},
      {"if x = 3 { 1 }", "E105 at 5..6: a comparison is written =="},
      {"x = y = 3", "E105 at 6..7: an assignment is a statement"},
      {"f(x = 3)", "E105 at 4..5: a keyword argument is written name: value"},
      {"let r = {a = 1}", "E105 at 8..9: a field of a record is written name: value"},
      {"2 ^ 3", "E105 at 2..3: a power is written a ** b"},
      {"x++", "E105 at 1..3: there is no ++; write x += 1"},
      {"i--", "E105 at 1..3: there is no --; write i -= 1"},
      {"x =+ 1", "E105 at 3..4: write x += 1"},
      {"x = +1", "E105 at 4..5: there is no + in front of a value"},
      {"x @= y", "E105 at 2..4: write x = x @ y"},
      {"x === y", "E105 at 2..5: write =="},
      {"x <> y", "E105 at 2..4: write !="},
      {"x := 3", "E105 at 2..4: a new variable is written let x = 1"},
      {"1 << 3", "E105 at 2..4: a shift is written shl(a, n)"},
      {"x => x + 1", "E105 at 2..4: a comparison is written >=, a function fn(x) x + 1"},
      {"x -> x + 1", "E105 at 2..4: a function as a value is written fn(x) x + 1"},
      {"lambda x: x", "E105 at 7..8: a function as a value is written fn(x) x + 1"},
      {"def f(x): return x", "E105 at 4..5: a function is written fn f(x) { ... }"},
      {"function f(x) { }", "E105 at 9..10: a function is written fn f(x) { ... }"},
      {"fn f(x): int { }", "E105 at 7..8: a body stands in braces"},
      {"var x = 3", "E105 at 4..5: a new variable is written let x = 1"},
      {"const x = 3", "E105 at 6..7: a new variable is written let x = 1"},
      {"let x: int = 3", "E105 at 5..6: a variable has no declared type"},
      {"x == None", "E105 at 5..9: the value of nothing is written nil"},
      {"null", "E105 at 0..4: the value of nothing is written nil"},
      {"True", "E105 at 0..4: write true"},
      {"if a { } elif b { }", "E105 at 9..13: write else if c { ... }"},
      {"if a { }\nelif b { }", "E105 at 14..15: write else if c { ... }"},
      {"if a:\n  b", "E105 at 4..5: a body stands in braces { }"},
      {"for i in f(10):", "E105 at 14..15: a body stands in braces { }"},
      {"if x then", "E105 at 5..9: a body stands in braces"},
      {"throw x", "E105 at 6..7: an error is raised by error"},
      {"print x", "E105 at 6..7: a call has parentheses"},
      {"class A { }", "E105 at 6..7: there are no classes"},
      {"from x import y", "E105 at 5..6: write import nn"},
      {"import a.b", "E105 at 8..9: a file in a folder is imported by"},
      {"let a, b = c", "E105 at 5..6: a list stands in parentheses"},
      {"for k, v in x { }", "E105 at 5..6: a list stands in parentheses"},
      {"fn f() { return a, b }", "E105 at 17..18: a list stands in parentheses"},
      {"let (a, ..b) = c", "E105 at 8..10: a pattern names every item"},
      {"f(...args)", "E105 at 2..5: what is spread begins with two points"},
      {"f(**kw)", "E105 at 2..4: what is spread begins with two points"},
      {"[x for x in y]", "E105 at 3..6: a loop is no expression"},
      {"a in b", "E105 at 2..4: there is no operator in"},
      {"a not in b", "E105 at 2..5: there is no operator in"},
      {"x[2..]", "E105 at 5..6: a slice is written x[2:]"},
      {"x[..5]", "E105 at 2..4: a slice is written x[:5]"},
      {"a\n- b", "E105 at 2..3: a statement cannot begin with '-' and a blank"},
      {"a\n  + b", "E105 at 4..5: a statement cannot begin with '+' and a blank"},
      {"a\n* b", "E105 at 2..3: a statement cannot begin with an operator"},
      {"let z = 3 // a comment", "E105 at 15..22: a comment begins with #"},
      {"// comment", "E105 at 0..2: a comment begins with #"},
      {"/* comment */", "E105 at 0..2: a comment begins with #"},
      {"\"{}\"", "E105 at 2..3: a value stands between these braces"},
      {"$x", "E105 at 0..1: a value in a string"},
      {"a × b", "E105 at 2..4: the character U+00D7 has no meaning here; write *"},
      {"“a”", "E105 at 0..3: the character U+201C has no meaning here; write \""},
      {"import \"x.qn\"", "E105 at 13..13: a file is bound to a name"},
      {"int x = 3", "E105 at 4..5: a new variable is written let x = 1"},
      {"let mut x = 3", "E105 at 8..9: every variable can be rebound"},
      {"for (i = 0; i < 3; i++) { }", "E105 at 7..8: a loop over numbers is written for i in 0..n"},
      {"for (let i = 0; i < 3; i++) { }", "E105 at 5..8: a loop over numbers is written for i in 0..n"},
      {"for i = 1, 3 { }", "E105 at 6..7: a loop over numbers is written for i in 0..n"},
      {"for (i in x) { }", "E105 at 7..9: a loop has no parentheses"},
      {"for i in 0...3 { }", "E105 at 10..13: a range is written a..b, without b"},
      {"f\"a {b}\"", "E105 at 1..5: a string has no letter in front"},
      {"\"a\" ++ b", "E105 at 4..6: strings and lists are joined by +"},
      {"\"a\" . \"b\"", "E105 at 6..9: strings are joined by +"},
      {"@jit\nfn f() { }", "E105 at 0..1: there are no decorators"},
      {"|x| x + 1", "E105 at 0..1: a function as a value is written fn(x) x + 1"},
      {"fn f(x) -> x + 1", "E105 at 13..14: -> gives the type of the result"},
      {"let f = fn x { x }", "E105 at 11..12: parameters stand in parentheses"},
      {"assert a == b", "E105 at 7..8: a call has parentheses: assert"},
      {"5 mod 3", "E105 at 2..5: a remainder is written a % b"},
      {"global x", "E105 at 7..8: functions read globals and never assign them"},
      {"delete r.a", "E105 at 7..8: values do not change: a list without item i"},
      {"try { } catch (e) { }", "E105 at 14..15: the name of the error stands without parentheses"},
  };
  CHECK_ERRORS(examples);
}
END_TEST

START_TEST(numbers) {
  static const example examples[] = {
      {"2.", "E104 at 0..2: a number does not end with its point; write 2.0"},
      {"f(2., 3)", "E104 at 2..4: a number does not end with its point; write 2.0"},
      {"2.e5", "E104 at 0..4: a number does not end with its point; write 2.0e5"},
      {".5", "E104 at 0..2: a number does not begin with its point; write 0.5"},
      {"x = .5e3", "E104 at 4..8: a number does not begin with its point; write 0.5e3"},
      {"007", "E104 at 0..3: a decimal number does not begin with 0"},
      {"0b11", "E104 at 0..4: numbers are decimal or, like 0xff, hexadecimal"},
      {"0x", "E104 at 0..2: a hexadecimal number is written"},
      {"1__0", "E104 at 0..4: '_' stands between two digits"},
      {"1_", "E104 at 0..2: '_' stands between two digits"},
      {"0xff_", "E104 at 0..5: '_' stands between two digits"},
      {"2x", "E104 at 0..2: a number touches a name here; a product is written 2 * x"},
      {"10L", "E104 at 0..3: numbers have no suffix; write 10"},
      {"1.5f", "E104 at 0..4: numbers have no suffix; write 1.5"},
      {"1e", "E104 at 0..2: an exponent is written as in 1e-3"},
      {"9223372036854775808",
       "E104 at 0..19: integers have 64 bits, up to 9223372036854775807; as a float this is 9223372036854775808.0"},
      {"1 - 9223372036854775808", "E104 at 4..23: integers have 64 bits"},
      {"0xffffffffffffffff", "E104 at 0..18: integers have 64 bits"},
      {"1e999", "E104 at 0..5: too large for a float"},
  };
  CHECK_ERRORS(examples);
}
END_TEST

START_TEST(open_bracket_is_noted) {
  static const char text[] = "f(\n  1,\n  let x = 3\n";
  parse_outcome outcome;
  ast_module *tree = parse_text(vm, source_add(vm, "test", text, strlen(text)), PARSE_FILE, &outcome);
  ck_assert_ptr_null(tree);
  qn_error_object *e = error_take(vm);
  ck_assert_int_eq(e->nnotes, 1);
  ck_assert_uint_eq(e->notes[0].at.start, 1);
  ck_assert_str_eq(e->notes[0].text->text, "opened here");
  error_free(vm, e);
}
END_TEST

/* ---- the prompt ---- */

START_TEST(incomplete_at_the_prompt) {
  static const char *const incomplete[] = {
      "let x =",     "let",           "f(",        "f(x,\n",       "[1, 2",           "{",    "{a:",
      "if x {",      "if x {\n  y\n", "if",        "a +",          "a or\n",          "not",  "x.",
      "\"\"\"abc",   "\"\"\"a\n{b",   "fn f(x) {", "fn(x) ->",     "import",          "x[1:", "(a\n\n",
      "a + # b\n\n", "for",           "return (",  "\"\"\"{\"a\"", "while c { try {",
  };
  for (size_t i = 0; i < sizeof incomplete / sizeof *incomplete; i++) {
    char *got = outcome_of(incomplete[i], PARSE_PROMPT);
    if (strcmp(got, "incomplete")) ck_abort_msg("%s\n  gives  %s", incomplete[i], got);
    free(got);
    got = outcome_of(incomplete[i], PARSE_FILE);
    ck_assert_int_eq(got[0], 'E');
    free(got);
  }
  static const example wrong[] = {
      {"f(]", "E102 at 2..3"},    {"f(1 2", "E102 at 4..5"},   {"\"abc", "E103 at 0..4"},  {"f(\"abc", "E103 at 2..6"},
      {"\"{a", "E103 at 0..2"},   {"fn f(x)", "E102 at 7..7"}, {"try {}", "E102 at 6..6"}, {"fn(x)", "E102 at 5..5"},
      {"a && (", "E105 at 2..4"}, {"else", "E102 at 0..4"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    char *got = outcome_of(wrong[i].text, PARSE_PROMPT);
    if (strncmp(got, wrong[i].want, strlen(wrong[i].want))) ck_abort_msg("%s\n  gives  %s", wrong[i].text, got);
    free(got);
  }
}
END_TEST

/* ---- depth ---- */

static char *repeat(const char *head, int n, const char *middle, const char *tail, const char *end) {
  size_t lh = strlen(head), lt = strlen(tail);
  char *text = malloc((lh + lt) * (size_t)n + strlen(middle) + strlen(end) + 1), *at = text;
  for (int i = 0; i < n; i++) memcpy(at, head, lh), at += lh;
  at = stpcpy(at, middle);
  for (int i = 0; i < n; i++) memcpy(at, tail, lt), at += lt;
  strcpy(at, end);
  return text;
}

START_TEST(nesting) {
  static const struct {
    const char *head, *middle, *tail, *end;
  } forms[] = {
      {"(", "1", ")", ""},
      {"(", "1", ",)", ""},
      {"[", "1", "]", ""},
      {"{a: ", "1", "}", ""},
      {"f(", "1", ")", ""},
      {"f(a: ", "1", ")", ""},
      {"f(..", "a", ")", ""},
      {"x[", "1", "]", ""},
      {"f", "", "()", ""},
      {"", "f", "()", ""},
      {"", "f", "[0]", ""},
      {"", "f", ".a", ""},
      {"", "f", ".a()", ""},
      {"-", "x", "", ""},
      {"~", "x", "", ""},
      {"not ", "x", "", ""},
      {"x ** ", "x", "", ""},
      {"x + ", "x", "", ""},
      {"x and ", "x", "", ""},
      {"fn(x) ", "x", "", ""},
      {"fn(x) {", "x", "}", ""},
      {"fn(a: f32[b], c = ", "1", ") 1", ""},
      {"fn f() {", "", "}", ""},
      {"if x {", "", "}", ""},
      {"if x {} else {", "", "}", ""},
      {"if ", "x", "{}", ""},
      {"while x {", "", "}", ""},
      {"for (a, b) in x {", "", "}", ""},
      {"try {", "", "} catch e {}", ""},
      {"try {} catch e {", "", "}", ""},
      {"\"{", "x", "}\"", ""},
      {"\"\"\"{", "x", "}\"\"\"", ""},
      {"", "if x {1}", " else if x {1}", " else {2}"},
      {"(0..", "1", ")", ""},
      {"(", "a", ",)", " = x"},
  };
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    bool joins = !strcmp(forms[i].head, "f"); /* "fff...()()": names of that length, which is fine, too */
    for (int n = 1000; n <= 10000; n *= 10) {
      char *text = repeat(forms[i].head, n - 1, forms[i].middle, forms[i].tail, forms[i].end);
      char *got = outcome_of(text, PARSE_FILE);
      const char *want = n == 1000 ? "(block" : "E106";
      if (!joins && strncmp(got, want, strlen(want)))
        ck_abort_msg("%d times %s%s%s%s\n  gives  %.200s", n, forms[i].head, forms[i].middle, forms[i].tail,
                     forms[i].end, got);
      free(got);
      free(text);
    }
    char *text = repeat(forms[i].head, 10000, "", "", ""); /* nothing closed */
    char *got = outcome_of(text, PARSE_FILE);
    ck_assert(got[0] == 'E' || got[0] == '(');
    free(got);
    free(text);
  }
  /* Types and patterns, which need their surroundings. */
  static const struct {
    const char *begin, *head, *middle, *tail, *end;
  } inner[] = {
      {"let ", "(", "a", ",)", " = x"},         {"let ", "{a: ", "b", "}", " = x"},
      {"fn f(x: ", "(", "T", ",)", ") {}"},     {"fn f(x: ", "{a: ", "T", "}", ") {}"},
      {"fn f(x: f32[", "(", "n", ")", "]) {}"},
  };
  for (size_t i = 0; i < sizeof inner / sizeof *inner; i++) {
    for (int n = 1000; n <= 10000; n *= 10) {
      char *middle = repeat(inner[i].head, n - 1, inner[i].middle, inner[i].tail, inner[i].end);
      char *text = malloc(strlen(inner[i].begin) + strlen(middle) + 1);
      strcpy(stpcpy(text, inner[i].begin), middle);
      char *got = outcome_of(text, PARSE_FILE);
      const char *want = n == 1000 ? "(block" : "E106";
      if (strncmp(got, want, strlen(want)))
        ck_abort_msg("%d times %s%s gives %.200s", n, inner[i].begin, inner[i].head, got);
      free(got);
      free(text);
      free(middle);
    }
  }
}
END_TEST

/* Long is not deep: lists, statements and arguments have any length. */
START_TEST(long_lists) {
  static const char *const forms[][3] = {
      {"1,", "[", "]"},        {"1,", "(", ")"},  {"a\n", "", ""},      {"a,", "f(", ")"},        {"k: 1,", "{", "}"},
      {"a,", "fn f(", ") {}"}, {"0,", "x[", "]"}, {"a{x}", "\"", "\""}, {"a,", "let (", ") = x"},
  };
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    char *items = repeat(forms[i][0], 20000, "", "", "");
    char *text = malloc(strlen(items) + 32);
    strcpy(stpcpy(stpcpy(text, forms[i][1]), items), forms[i][2]);
    parse_outcome outcome;
    ast_module *tree = parse_text(vm, source_add(vm, "test", text, strlen(text)), PARSE_FILE, &outcome);
    ck_assert_msg(tree != NULL, "%s", forms[i][0]);
    ck_assert_uint_ge(count_nodes(tree->root), 20000);
    ck_assert_uint_le(tree->root->height, 4);
    ast_free(vm, tree);
    free(text);
    free(items);
  }
}
END_TEST

/* ---- any text at all ---- */

static const char program[] =
    "# attention\nimport nn\nimport \"lib/u.qn\" as u\n"
    "fn attention(x: f32[b, t, d], w, k: (int, {a: [n, ..., 2 * d]}) = (1, nil), ..rest) -> f32[b, t, d] {\n"
    "  let q = x @ w.q\n  let s = (q @ k.transpose(-2, -1)) / sqrt(d)\n  softmax(s, axis: -1) @ v\n}\n"
    "let w = {q: randn(64, 64), \"k k\": [1.5, 0xff, 1_000e-3], ..nn.base,}\n"
    "let {a, b: (c, _)} = f(..xs, key: k, ..r)\n"
    "w = tree_map(fn(p, d) p - 0.1 * d, w, g); x[2, 1:, ::-1, ..., new] **= ~y ** -2\n"
    "if not (a <= b) and c != d or e { print(\"loss {loss:.4f} {f(\"a{b}\")}\\n\\u{1F600}\") }\nelse if g {} else {a: "
    "1}\n"
    "for (i, row) in enumerate(x) { while true { break; continue } }\n"
    "let s = try { \"\"\"text\n \"q\" {x[0]:>3}\"\"\" } catch e { error(e) }\n"
    "(x[i], p.layers[0].w) = (x[j], if c {1} else {2})\n{m, n: z[1]} = r\n"
    "x\n  .reshape(2, -1) # on\n  .sum()\nfn sq(x) = x | 1 & 2 // 3 % 4..5\nreturn -9223372036854775808\n";

static uint64_t state = 0x9e3779b97f4a7c15u;
static uint32_t pick(uint32_t n) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 33) % n;
}

/* Parses in both modes and compares; invalid UTF-8 is refused before. */
static void try_text(const char *text, size_t len) {
  uint32_t source = source_add(vm, "test", text, len);
  if (!source) {
    error_clear(vm);
    return;
  }
  bool ok[2];
  for (int mode = 0; mode < 2; mode++) {
    parse_outcome outcome;
    ast_module *tree = parse_text(vm, source, mode ? PARSE_PROMPT : PARSE_FILE, &outcome);
    ok[mode] = tree != NULL;
    ck_assert_int_eq(tree != NULL, outcome == PARSE_OK);
    ck_assert_int_eq(error_pending(vm), outcome == PARSE_ERROR);
    if (!mode) ck_assert_int_ne(outcome, PARSE_INCOMPLETE);
    ast_free(vm, tree);
    if (outcome == PARSE_ERROR) {
      qn_error_object *e = error_take(vm);
      ck_assert_uint_le(e->at.end, len);
      ck_assert_uint_gt(e->message->len, 0);
      error_free(vm, e);
    }
  }
  ck_assert_int_eq(ok[0], ok[1]);
}

START_TEST(truncations) {
  char *got = outcome_of(program, PARSE_FILE);
  ck_assert_msg(got[0] == '(', "%s", got);
  free(got);
  size_t len = strlen(program);
  for (size_t n = 0; n < len; n++) {
    try_text(program, n);
    try_text(program + n, len - n);
  }
}
END_TEST

START_TEST(mutations) {
  size_t len = strlen(program);
  char text[sizeof program + 64];
  for (int round = 0; round < 6000; round++) {
    size_t n = len;
    memcpy(text, program, n + 1);
    for (uint32_t edits = 1 + pick(4); edits > 0; edits--) {
      size_t at = pick((uint32_t)n), from = pick((uint32_t)n), run = 1 + pick(8);
      if (run > n - at) run = n - at;
      if (run > n - from) run = n - from;
      switch (pick(3)) {
      case 0: memmove(text + at, text + at + run, n - at - run + 1), n -= run; break;
      case 1: memmove(text + at, text + from, run); break;
      default: text[at] = (char)(1 + pick(127)); break;
      }
    }
    try_text(text, n);
  }
}
END_TEST

START_TEST(random_tokens) {
  static const char *const tokens[] = {
      "(",      ")",      "[",      "]",     "{",   "}",   ",",    ";",   ":",   ".",     "..",  "...",
      "->",     "=",      "+=",     "==",    "<",   "+",   "-",    "*",   "**",  "@",     "|",   "&",
      "~",      "\n",     "\n",     "a",     "b",   "_",   "new",  "1",   "2.5", "\"s\"", "\"{", "}\"",
      "\"",     "\"\"\"", "fn",     "fn f(", "let", "if",  "else", "for", "in",  "while", "try", "catch",
      "import", "as",     "return", "break", "not", "and", "or",   "nil", "inf", "# c\n", "{}",  "{a: ",
  };
  char text[1000];
  for (int round = 0; round < 20000; round++) {
    char *at = text;
    for (uint32_t n = 1 + pick(30); n > 0; n--) {
      at = stpcpy(at, tokens[pick(sizeof tokens / sizeof *tokens)]);
      if (pick(3)) *at++ = ' ';
    }
    *at = 0;
    try_text(text, (size_t)(at - text));
  }
}
END_TEST

START_TEST(random_bytes) {
  char text[64];
  for (int round = 0; round < 20000; round++) {
    size_t n = pick(sizeof text);
    for (size_t i = 0; i < n; i++) text[i] = (char)(pick(8) ? 1 + pick(127) : pick(256));
    try_text(text, n);
  }
}
END_TEST

START_TEST(no_such_source) {
  parse_outcome outcome;
  ck_assert_ptr_null(parse_text(vm, 0, PARSE_FILE, &outcome));
  ck_assert_int_eq(outcome, PARSE_ERROR);
  error_clear(vm);
}
END_TEST

/* ---- memory ---- */

/* Every allocation fails once: the error is E601, nothing leaks, and the next attempt succeeds. */
START_TEST(failing_allocations) {
  static const char *const texts[] = {program, "f(1 2)", "{a: \"b\", \"c\": 1}"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    uint32_t source = source_add(vm, "test", texts[i], strlen(texts[i]));
    size_t live = 0;
    for (uint64_t n = 1;; n++) {
      parse_outcome outcome;
      mem_fail_at(vm, n);
      ast_module *tree = parse_text(vm, source, PARSE_FILE, &outcome);
      bool failed = false;
      if (!tree) {
        qn_error_object *e = error_take(vm);
        failed = e->id == E_memory;
        error_free(vm, e);
      }
      ast_free(vm, tree);
      mem_fail_at(vm, 0);
      if (n == 1)
        live = mem_stats_of(vm)->live;
      else
        ck_assert_uint_le(mem_stats_of(vm)->live, live + 4096); /* interned names and pools may stay */
      if (!failed) {
        ck_assert_uint_gt(n, 3);
        break;
      }
    }
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("parser");
  TCase *c;
#define CASE(tcase, test)                                                                                              \
  c = tcase;                                                                                                           \
  tcase_add_checked_fixture(c, open_vm, close_vm);                                                                     \
  tcase_set_timeout(c, 120);                                                                                           \
  tcase_add_test(c, test);                                                                                             \
  suite_add_tcase(suite, c)
  CASE(tcase_create("statements"), statements);
  CASE(tcase_create("newlines"), newlines);
  CASE(tcase_create("operators"), operators);
  CASE(tcase_create("literals"), literals);
  CASE(tcase_create("strings"), strings);
  CASE(tcase_create("calls_and_indices"), calls_and_indices);
  CASE(tcase_create("functions"), functions);
  CASE(tcase_create("places_and_marks"), places_and_marks);
  CASE(tcase_create("flags_and_names"), flags_and_names);
  CASE(tcase_create("mistakes"), mistakes);
  CASE(tcase_create("slips"), slips);
  CASE(tcase_create("numbers"), numbers);
  CASE(tcase_create("open_bracket_is_noted"), open_bracket_is_noted);
  CASE(tcase_create("incomplete_at_the_prompt"), incomplete_at_the_prompt);
  CASE(tcase_create("nesting"), nesting);
  CASE(tcase_create("long_lists"), long_lists);
  CASE(tcase_create("truncations"), truncations);
  CASE(tcase_create("mutations"), mutations);
  CASE(tcase_create("random_tokens"), random_tokens);
  CASE(tcase_create("random_bytes"), random_bytes);
  CASE(tcase_create("no_such_source"), no_such_source);
  CASE(tcase_create("failing_allocations"), failing_allocations);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
