/* Text to double: correctly rounded (to nearest, ties to even), independent of the locale and of libm. */
#ifndef PARSER_NUMBER_H
#define PARSER_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

/* Reads all of `text`: [+-] digits [. digits] [e [+-] digits], with at least one digit before and after a point.
 * False if it has another form. Values beyond the range become infinities, tiny ones zeros, with the sign kept. */
bool number_parse_float(const char *text, size_t len, double *out);

#endif
