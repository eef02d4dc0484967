/* How source text is coloured: every byte has a highlight, which the parser gives (hooks.highlights) and whoever shows text on a
 * terminal turns into colours: the excerpts of error reports, and the prompt. */
#ifndef LANG_HIGHLIGHT_H
#define LANG_HIGHLIGHT_H

#include <stddef.h>
#include <stdint.h>

/* Name, and the terminal's code that begins it. */
#define HIGHLIGHTS(X)                                                                                                  \
  X(plain, "") /* blanks, brackets, commas */                                                                          \
  X(name, "")  /* of a variable or field */                                                                            \
  X(keyword, "\033[1;35m")                                                                                             \
  X(constant, "\033[36m") /* true, false, nil */                                                                       \
  X(number, "\033[36m")                                                                                                \
  X(string, "\033[32m")                                                                                                \
  X(comment, "\033[2m")                                                                                                \
  X(call, "\033[34m") /* a name that is called */                                                                      \
  X(operator, "\033[33m")                                                                                              \
  X(wrong, "\033[4;31m") /* no token of the language */
typedef enum highlight {
#define X(name, style) HIGHLIGHT_##name,
  HIGHLIGHTS(X)
#undef X
      HIGHLIGHT_COUNT
} highlight;

/* The code that begins a highlight on a terminal ("" for none); HIGHLIGHT_OFF ends it. */
const char *highlight_style(highlight l);
#define HIGHLIGHT_OFF "\033[0m"

#endif
