/* Highlights of source texts (lang/highlight.h) and completeness, as the prompt asks for them: what has which highlight, that no text does
 * harm, and that a pending error survives. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lang/error.h"
#include "lang/highlight.h"
#include "lang/vm.h"
#include "parser/parser.h"

static qn_vm *vm;

static void open_vm(void) {
  vm = vm_open(NULL);
  ck_assert_ptr_nonnull(vm);
}

static void close_vm(void) {
  vm_close(vm);
  vm = NULL;
}

/* One letter a byte: blank plain, n name, k keyword, c constant, 1 number, s string, # comment, f call, o operator, ! wrong. */
static void check_looks(const char *text, const char *want) {
  static const char letters[] = " nkc1s#fo!";
  size_t len = strlen(text);
  uint8_t *highlights = malloc(len + 1);
  char *got = malloc(len + 1);
  parse_highlights(vm, text, len, highlights);
  for (size_t i = 0; i < len; i++) {
    ck_assert_uint_lt(highlights[i], HIGHLIGHT_COUNT);
    got[i] = letters[highlights[i]];
  }
  got[len] = 0;
  ck_assert_msg(strcmp(got, want) == 0, "%s\n%s instead of\n%s", text, got, want);
  ck_assert(!error_pending(vm));
  free(highlights);
  free(got);
}

START_TEST(highlights) {
  check_looks("let a = f(1.5, b) # c", "kkk n o f 111  n  ###");
  check_looks("if true { x.y }", "kk cccc   n n  ");
  check_looks("\"a{b:.2f}c\" + nil", "sssnsssssss o ccc");
  check_looks("\"\"\"a\nb\"\"\"", "sssssssss");
}
END_TEST

START_TEST(unfinished) {
  check_looks("f(\"abc", "f ssss");
  check_looks("\"abc\nlet x", "ssss kkk n");
  check_looks("\"\"\"abc\nlet", "ssssssssss");
  check_looks("\"a{b", "sssn");
  check_looks("\"a{b\nlet x", "sssn kkk n");
  check_looks("\"a{b:x\" + 1", "sssnsss o 1");
  check_looks("a ? b 'c' $ d", "n ! n !!! ! n");
  check_looks("1x + 0xzz", "!! o !!nn");
}
END_TEST

START_TEST(keywords) {
  for (const char *const *k = parse_keywords; *k; k++) {
    uint8_t highlights[16];
    parse_highlights(vm, *k, strlen(*k), highlights);
    ck_assert_msg(highlights[0] == HIGHLIGHT_keyword || highlights[0] == HIGHLIGHT_constant, "%s is no keyword", *k);
  }
}
END_TEST

static uint32_t state = 1;
static uint32_t next(uint32_t n) {
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state % n;
}

/* Pieces of texts in any order: highlights of every byte, and the same answer to "incomplete?" as the parser gives. */
START_TEST(random_texts) {
  static const char *const pieces[] = {
      "\"",       "{",    "}",  "(",  ")", "[", "]", "\\", "\"\"\"",   "\n",           " ",     "a",     "fn ",
      "let x = ", "1",    ".",  ":",  "#", "'", "?", "..", "\303\251", "\346\227\245", "if a ", "else ", "+",
      "- ",       "\\u{", "0x", "1e", "$"};
  for (int round = 0; round < 20000; round++) {
    char text[400];
    size_t len = 0;
    for (uint32_t n = next(24); n > 0; n--) {
      const char *piece = pieces[next(sizeof pieces / sizeof *pieces)];
      memcpy(text + len, piece, strlen(piece));
      len += strlen(piece);
    }
    text[len] = 0;
    uint8_t *highlights = malloc(len + 1);
    parse_highlights(vm, text, len, highlights);
    for (size_t i = 0; i < len; i++) ck_assert_uint_lt(highlights[i], HIGHLIGHT_COUNT);
    free(highlights);
    ck_assert(!error_pending(vm));
    bool more = parse_incomplete(vm, text, len);
    ck_assert(!error_pending(vm));
    if (round % 16) continue;
    parse_outcome outcome;
    uint32_t source = source_add(vm, "test", text, len);
    ck_assert_uint_ne(source, 0);
    ast_free(vm, parse_text(vm, source, PARSE_PROMPT, &outcome));
    error_clear(vm);
    ck_assert_msg(more == (outcome == PARSE_INCOMPLETE), "%s", text);
  }
}
END_TEST

START_TEST(pending_errors) {
  uint8_t highlights[8];
  (void)raise_error(vm, E_argument, SPAN_NONE, "mine");
  parse_highlights(vm, "a ? \"b", 6, highlights);
  ck_assert(error_pending(vm));
  ck_assert_str_eq(vm->error->message->text, "mine");
  error_clear(vm);
}
END_TEST

START_TEST(failing_allocations) {
  static const char text[] = "fn f(a, b) { let c = \"x{a}y\" ? 'b' }\n\"open";
  uint8_t highlights[sizeof text];
  for (uint64_t n = 1; n < 40; n++) {
    mem_fail_at(vm, n);
    parse_highlights(vm, text, sizeof text - 1, highlights);
    ck_assert(!error_pending(vm));
    (void)parse_incomplete(vm, text, sizeof text - 1);
    ck_assert(!error_pending(vm));
    mem_fail_at(vm, 0);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("highlights");
  TCase *c;
#define CASE(tcase, test)                                                                                              \
  c = tcase;                                                                                                           \
  tcase_add_checked_fixture(c, open_vm, close_vm);                                                                     \
  tcase_set_timeout(c, 120);                                                                                           \
  tcase_add_test(c, test);                                                                                             \
  suite_add_tcase(suite, c)
  CASE(tcase_create("highlights"), highlights);
  CASE(tcase_create("unfinished"), unfinished);
  CASE(tcase_create("keywords"), keywords);
  CASE(tcase_create("random texts"), random_texts);
  CASE(tcase_create("pending errors"), pending_errors);
  CASE(tcase_create("failing allocations"), failing_allocations);
#undef CASE
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
