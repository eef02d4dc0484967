/* Long texts at the prompt, a screen at a time. */
#ifndef INTERP_PROMPT_PAGER_H
#define INTERP_PROMPT_PAGER_H

#include "interp/prompt/terminal.h"

/* Shows a text of lines on a terminal that is not being edited on. One that is longer than the screen stops at the end of each: Space, Enter
 * and Page Down go on, q, Escape, Ctrl-C and Ctrl-D end it. All of it is shown at once if a line has been typed ahead. */
void pager_show(terminal *t, const char *text, size_t len);

#endif
