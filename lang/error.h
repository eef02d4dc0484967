/* Errors: return values, never jumps. Whoever finds an error raises it (the VM then holds one error object) and returns
 * the error value, false or NULL up to whoever catches it. A raised error must be returned at once: raising twice
 * keeps the first. Interrupts and limits are errors that `catch` does not see (error_catchable). */
#ifndef LANG_ERROR_H
#define LANG_ERROR_H

#include "lang/source.h"
#include "lang/value.h"

typedef enum error_id {
#define ERR(id, symbol, title, help, page) E_##symbol = id,
#include "lang/errors.def"
#undef ERR
} error_id;

typedef struct error_row {
  int id;
  const char *symbol, *title, *help;
  const char *example, *hint; /* scripts: one that ends with this error, and one that does not; or NULL, and then */
  const char *when;           /* what makes it happen */
} error_row;
extern const error_row error_rows[];
extern const int error_row_count;
const error_row *error_find(int id);      /* NULL if there is none */
void error_id_text(int id, char out[16]); /* "E203" */

enum { ERROR_NOTES = 6, ERROR_FRAMES = 32 };

/* One frame of the trace: a place, and the function that it lies in (NULL at the top level). For an error in f, called
 * from the top level: {where it happened, f}, {the call, NULL}. */
typedef struct error_frame {
  span at;
  qn_str *function;
} error_frame;

/* A label under an operand in the excerpt: "f32[5]  b, from train.qn:8". What follows two blanks is set in a column of its
 * own. A note without a place is a line below the excerpt. */
typedef struct error_note {
  span at;
  qn_str *text;
} error_note;

typedef struct qn_error_object {
  uint32_t refs;
  error_id id;
  qn_str *message;
  /* length of the library function's name that the message begins with, if raise_through has put it there; else 0 */
  uint32_t named;
  span at; /* the innermost place */
  error_note notes[ERROR_NOTES];
  int nnotes;
  error_frame frames[ERROR_FRAMES]; /* innermost first; the middle of deep recursions is left out */
  int nframes, frames_dropped;
  /* While the error travels up through calls: the place of the next frame, where it is not `at` (the call that the error has left last); and
   * how many of the calls that it leaves next were begun after what failed, so that they get no frame. `settled`: raise_from has said the place,
   * and calls in between do not count. */
  span outer;
  uint32_t later;
  bool settled;
  bool rethrown; /* it brought a trace that has a frame of the function that it leaves next already */
  bool
      unseen; /* a handler that cannot be captured would have seen it: it is for none further out, either (rec_try_catches) */
  qn_value payload; /* error(record) keeps the value */
} qn_error_object;

/* Words of errors that more than one place raises; captured code fills them in when it runs (jit/trace/tries.c), in which each % stands before a
 * conversion of one number. */
#define WORDS_DIV_ZERO "%lld / 0; of floats, as in %lld.0 / 0, it is no error"
#define WORDS_FLOORDIV_ZERO "%lld // 0"
#define WORDS_MOD_ZERO "%lld %% 0"
#define WORDS_BOUNDS "index %lld is out of bounds for axis %d of size %lld"
#define WORDS_LIST "index %lld is out of bounds for a list of %lld"
#define WORDS_LIST_NEXT                                                                                                \
  WORDS_LIST ", whose items count from 0; xs = append(xs, v) adds one" /* of the first index that is too large */
#define WORDS_NO_INT "int: %s has no value as a 64-bit integer"
#define WORDS_NOT_INT "%s is not representable as int"

/* Raises and returns the error value, so that `return raise_error(...)` reads well. `at` may be SPAN_NONE: the interpreter fills
 * in the place of the expression that was being evaluated. */
#define SPAN_NONE ((span){0, 0, 0})
qn_value raise_error(qn_vm *vm, error_id id, span at, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Raises an error without a place, and is false: for functions that return whether they did what they are for. */
bool raise_false(qn_vm *vm, error_id id, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Raises an error, and is NULL, or false: for functions that return what they make, or whether they did it. */
void *raise_nothing(qn_vm *vm, error_id id, span at, const char *format, ...) __attribute__((format(printf, 4, 5)));
qn_value raise_text(qn_vm *vm, error_id id, span at, text_buf *message); /* takes over and frees the buffer */
/* Raises the out-of-memory error, which exists since the VM opened. Returns the error value, or false. */
qn_value raise_memory(qn_vm *vm);
static inline bool raise_memory_false(qn_vm *vm) { return !value_is_error(raise_memory(vm)); }
/* Adds a labelled operand to the pending error. */
void raise_note(qn_vm *vm, span at, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Gives the pending error a place if it has none yet; the error value. */
qn_value raise_at(qn_vm *vm, span at);
/* To be called as the pending error leaves `function` (NULL: a builtin or not known), which was called at `call`. If the error's place is
 * in the standard library it becomes an error of the function that the program called: its message begins with the name of the function left
 * last instead of the inner builtin's, error and assert become errors about the arguments (E317), and its place is the program's call. The
 * trace keeps the inner places. True if the error has just left the library. */
bool raise_through(qn_vm *vm, span call, const char *function);
/* Replaces the message of the pending error by `text`, which another run of the same code gave. The name of the library function that the
 * message begins with stays. */
void raise_retell(qn_vm *vm, const char *text);
/* Adds a frame of the trace while the error travels up. Borrows `function` (may be NULL). */
void raise_frame(qn_vm *vm, span at, qn_str *function);
/* Says of the pending error that it has left the call made at `call`, where the next frame lies. Nothing if it has no frames yet. */
void raise_outside(qn_vm *vm, span call);
/* For a pending error of something that was written earlier, whose trace is complete already up to the outermost call in progress. The `shared`
 * outermost frames are taken away: their calls are in progress, too, and add their frames as the error leaves them, the first one at `place`.
 * `later`: how many calls in progress, inside these, were begun after what failed. */
void raise_from(qn_vm *vm, uint32_t shared, span place, uint32_t later);

bool error_pending(const qn_vm *vm);
/* May `catch` see the pending error? */
bool error_catchable(const qn_vm *vm);
/* Takes the pending error from the VM; the caller owns it. */
qn_error_object *error_take(qn_vm *vm);
void error_put_back(qn_vm *vm, qn_error_object *e); /* makes it the pending error again; takes over */
void error_clear(qn_vm *vm);
/* The same error once more, for what changes it; NULL with an error raised. */
QN_MUST_CHECK qn_error_object *error_copy(qn_vm *vm, const qn_error_object *e);
void error_free(qn_vm *vm, qn_error_object *e);
/* What `catch e` binds, owned: {id: "E203", message, line (0: none), trace}, then the further fields of a record that the
 * program raised itself. `trace` is a list of {function (nil at the top level), source, line, column, length}, the
 * innermost first. */
QN_MUST_CHECK qn_value error_to_record(qn_vm *vm, const qn_error_object *e);
/* Raises the error that such a record describes and returns the error value. Its id, place and trace are those of the record, or E701 at
 * `at` if the record lacks them; its trace has a frame of the function that raises it. Borrows the record, which becomes the payload. */
qn_value raise_record(qn_vm *vm, span at, qn_value record);
/* Writes the whole report, as lang/REFERENCE.md shows it; `color` switches ANSI colours on; `columns` is the width
 * of a terminal, into which words and excerpts are fitted, 0 if there is none. */
void error_render(qn_vm *vm, const qn_error_object *e, text_buf *out, bool color, int columns);

/* Texts for messages, so that all messages describe values in the same way. */
void text_shape(text_buf *t, qn_dtype dtype, int rank, const int64_t *shape); /* f32[4, 3] */
void text_kind(text_buf *t, qn_value v); /* "f32[4, 3]", "int 3", "list of 2", "str \"abc\"" : for messages */
/* The words of text_kind and text_shape, and a number's, by value, to stand among the arguments of raise_error: phrase_kind(v).text. They
 * last until the end of that statement; texts that are longer than any message wants are cut. */
typedef struct phrase {
  char text[512];
} phrase;
phrase phrase_kind(qn_value v);
phrase phrase_shape(const qn_array *a); /* the dtype, too: f32[4, 3] */
phrase phrase_float(double x);          /* as print shows a host number */
/* Appends `lead` and those of n names that are spelled much like `name`, the nearest first, at most 3, with commas between them. False, and
 * nothing appended, if there are none. */
bool text_nearest(text_buf *t, const char *lead, const char *name, const char *const *names, int n);

#endif
