/* Values as text: what `print` shows, what `repr` writes, and format specs of interpolation. */
#ifndef LANG_FORMAT_H
#define LANG_FORMAT_H

#include "lang/vm.h"

/* The number of columns that values are laid out for. Print uses fewer if the terminal is narrower, but never more: so the text of a value,
 * which may go anywhere, is mostly what print shows. */
enum { FORMAT_COLUMNS = 100 };

typedef struct format_options {
  int width;         /* columns to fit into; 0: FORMAT_COLUMNS */
  int64_t max_items; /* elements above which arrays are shortened; 0: the tunable print.items */
} format_options;

/* The text of print, without a final newline: numbers and rank-0 arrays as the shortest text that reads back, strings as they
 * are, arrays with a header line and an aligned body, records as trees. Forces arrays; false with an error raised.
 * `options` may be NULL. */
QN_MUST_CHECK bool format_print(qn_vm *vm, qn_value v, const format_options *options, text_buf *out);
/* The text of print for a value that stands among other text: behind what `out` ends with, before what the caller adds. An array is its
 * elements alone where these fit the rest of the line. Else it gets lines of its own, with its header, and *own is set: what follows must
 * begin a new line. */
QN_MUST_CHECK bool format_among(qn_vm *vm, qn_value v, const format_options *options, text_buf *out, bool *own);
/* Text that parses back to an equal value; what cannot, prints in ‹...›. */
QN_MUST_CHECK bool format_repr(qn_vm *vm, qn_value v, text_buf *out);
/* Appends a text as a literal that spans as many lines as the text has, between """ and """. */
void format_lines(const char *text, size_t len, text_buf *out);
/* "{x:spec}": [[fill]align][sign][0][width][,][.precision][type] with type one of d f e g % x b s; rank-0 arrays as
 * numbers, larger arrays elementwise, laid out as without one. E317 for a spec that does not fit the value. */
QN_MUST_CHECK bool format_spec(qn_vm *vm, qn_value v, const char *spec, size_t len, text_buf *out);
/* format_spec for a value that stands among other text; *own as format_among sets it. */
QN_MUST_CHECK bool format_spec_among(qn_vm *vm, qn_value v, const char *spec, size_t len, text_buf *out, bool *own);
/* Appends a part of an interpolated text. `how`: true: v is the text between values; nil: a value; a text: a value with this spec. *own is
 * false at first, and is handed from part to part. */
QN_MUST_CHECK bool format_part(qn_vm *vm, qn_value v, qn_value how, text_buf *out, bool *own);

/* Is this one of the words of the language, which cannot be names? */
bool name_is_word(const char *name);
/* May a record's field of this name be written without quotes, as r.name and {name: v}? Words of the language may not. */
bool name_is_plain(const qn_str *name);

#endif
