/* What the files of the binary share: the command line (cli.c) and the prompt (repl.c). */
#ifndef INTERP_CLI_H
#define INTERP_CLI_H

#include "interp/interp.h"

/* Exit statuses of the binary. */
enum { EXIT_FINE = 0, EXIT_SCRIPT = 1, EXIT_MISUSE = 2 };

/* Writes the pending error's report to stderr, coloured on a terminal. */
void cli_report(qn_vm *vm);
/* May what goes to this descriptor be coloured? A terminal that can, and no NO_COLOR. */
bool cli_colors(int fd);
/* A whole file, "-" for stdin, from malloc; NULL with a message. */
char *cli_read(const char *path, size_t *len);
/* Was Ctrl-C pressed since the last question, or the last report? */
bool cli_interrupted(void);
/* Reads statements from stdin until its end; with editing and a greeting on a terminal. */
int repl_run(qn_vm *vm);

#endif
