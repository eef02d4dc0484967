/* What the files of the binary share: the command line (cli.c) and the prompt (repl.c). */
#ifndef INTERP_PROMPT_CLI_H
#define INTERP_PROMPT_CLI_H

#include "interp/interp.h"

/* Exit statuses of the binary. */
enum { EXIT_FINE = 0, EXIT_SCRIPT = 1, EXIT_MISUSE = 2 };

/* Writes the pending error's report to stderr, coloured on a terminal. */
void cli_report(qn_vm *vm);
/* May what goes to this descriptor be coloured? A terminal that can, and no NO_COLOR. */
bool cli_colors(int fd);
/* The width of the terminal that a file is; 0 if it is none. */
int cli_columns(int fd);
/* What is wrong with the command line, to stderr; EXIT_MISUSE. `what` takes the place of %s. */
int cli_misuse(const char *format, const char *what);
/* `quern export FILE:NAME -o OUT [ARG...]` (export.c): what stands behind `export`, and its parts. */
typedef struct export_line {
  const char *target; /* as it was given */
  char *file;         /* malloc'd */
  const char *name;   /* behind the colon */
  const char *out;
  char **args;
  int nargs;
} export_line;
/* Takes the parts apart; reorders argv. EXIT_FINE, or EXIT_MISUSE with a message. */
int export_parse(char **argv, int argc, export_line *line);
/* The file has run: finds the function, records it and writes it. An exit status; the error is reported. */
int export_run(qn_vm *vm, const export_line *line);
/* `quern explain FILE.qnx`: how the function in a file is called, and its graph. An exit status; an error is reported. */
int export_show(qn_vm *vm, const char *path);
/* A whole file, "-" for stdin, from malloc; NULL with a message. */
char *cli_read(const char *path, size_t *len);
/* Was Ctrl-C pressed since the last question, or the last report? */
bool cli_interrupted(void);
/* Reads statements from stdin until its end; with editing and a greeting on a terminal. */
int repl_run(qn_vm *vm);

#endif
