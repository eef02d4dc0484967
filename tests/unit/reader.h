/* A small reader for the line-oriented text forms of L and K: blanks separate, a line is a unit, words are [A-Za-z0-9_]+.
 * Failing is sticky: the first message wins, and every function returns false from then on. */
#ifndef TESTS_UNIT_READER_H
#define TESTS_UNIT_READER_H

#include "jit/kernel/l.h"

typedef struct reader {
  const char *at;
  int line;
  char *why; /* where the message goes */
  size_t size;
  bool failed;
} reader;

void reader_init(reader *r, const char *text, char *why, size_t size);
/* Always false. */
bool reader_fail(reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void reader_blanks(reader *r);
bool reader_at_line_end(reader *r);
void reader_next_line(reader *r); /* to the first line that is not empty */
/* Takes `s` if it stands here; a word only as a whole. */
bool reader_take(reader *r, const char *s);
bool reader_take_label(reader *r, const char *name); /* "name=" */
bool reader_need(reader *r, const char *s);
bool reader_need_label(reader *r, const char *name);
bool reader_word(reader *r, char *to, size_t size);
bool reader_number(reader *r, int64_t *to);                 /* decimal with sign, or 0x.. */
bool reader_small(reader *r, uint32_t *to);                 /* 0 .. 2**31 - 1 */
bool reader_prefixed(reader *r, char prefix, uint32_t *to); /* %12, b3, c0 */
/* Number of a primitive or of a function of mathfns.h, or -1. */
int kop_find(const char *name);
int math_find(const char *name);
/* Number of a dtype, also of those that only kernels use, or -1. */
int find_dtype(const char *name);
bool reader_dtype(reader *r, uint8_t *to);
/* 0x3fc00000 (1.5); the parenthesis is a comment */
bool reader_constant(reader *r, uint64_t *bits);
/* "check c0 E303 site=4 node=9 detail=0" after its first word */
bool reader_check(reader *r, uint32_t number, l_check *to);
/* Index of a word among names, or -1 with a message. */
int reader_choice(reader *r, const char *const *names, int n, const char *what);

#endif
