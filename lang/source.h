/* Source texts and spans. A text (file, module, prompt line) is kept as long as its code, at least until the errors of its run have been
 * seen, and as long as a global is defined by it. So excerpts come from the text that ran, never from the file as it is now. Graphs and logs
 * do not keep texts; they do without a text that is gone. */
#ifndef LANG_SOURCE_H
#define LANG_SOURCE_H

#include "lang/quern.h"

/* A place: bytes [start, end) of text number `source`. source 0 means "no place". 12 bytes, copied freely. */
typedef struct span {
  uint32_t source;
  uint32_t start, end;
} span;

typedef struct source_text {
  uint32_t number;
  uint32_t holders; /* how often it is held (source_hold) */
  bool dropped;     /* is freed when nobody holds it any more */
  uint32_t above;   /* the comment that was typed before this text, which it holds; or 0 */
  char *name;       /* "train.qn", "<prompt 3>", "-e" */
  char *text;       /* NUL-terminated copy */
  size_t len;
  uint32_t *lines; /* offset of each line's first byte */
  uint32_t nlines;
  bool library; /* of the standard library: errors in it are shown where the program called it (raise_through) */
} source_text;

/* Adds a text (copied; must be valid UTF-8 without NUL bytes, else E101) and returns its number, or 0 with an error raised. */
QN_MUST_CHECK uint32_t source_add(qn_vm *vm, const char *name, const char *text, size_t len);
/* Frees a text as soon as nobody holds it. Places in it then count as no place. */
void source_drop(qn_vm *vm, uint32_t source);
/* Keeps a text beyond source_drop, until it has been let go as often as it was held. Numbers of no text are ignored. */
void source_hold(qn_vm *vm, uint32_t source);
void source_let_go(qn_vm *vm, uint32_t source);
/* `source` belongs below the text `above`, which has been held for it. */
void source_set_above(qn_vm *vm, uint32_t source, uint32_t above);
void source_set_library(qn_vm *vm, uint32_t source);
const source_text *source_get(const qn_vm *vm, uint32_t source); /* NULL for 0, and for one that was dropped */
/* The number of the latest text of that name, 0 if there is none. */
uint32_t source_find(const qn_vm *vm, const char *name);
/* Index (from 0) into `lines` of the line that a byte offset lies on. */
uint32_t source_line_of(const source_text *s, uint32_t offset);
/* Line (from 1) and column (from 1, in code points) of a byte offset. */
void source_position(const source_text *s, uint32_t offset, int *line, int *column);
/* Do two spans begin at one place of one text? */
static inline bool span_same_start(span a, span b) { return a.source == b.source && a.start == b.start; }
static inline span span_join(span a, span b) {
  if (!a.source) return b;
  if (!b.source) return a;
  return (span){a.source, a.start < b.start ? a.start : b.start, a.end > b.end ? a.end : b.end};
}

#endif
