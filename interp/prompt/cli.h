/* What the files of the binary share: the command line (cli.c) and the prompt (repl.c). */
#ifndef INTERP_PROMPT_CLI_H
#define INTERP_PROMPT_CLI_H

#include "interp/interp.h"

/* Exit statuses of the binary. */
enum { EXIT_FINE = 0, EXIT_SCRIPT = 1, EXIT_MISUSE = 2 };

/* Writes the pending error's report to stderr, coloured on a terminal. */
void cli_report(qn_vm *vm);
/* Is this descriptor a terminal that shows colours (by TERM), and is NO_COLOR not set? */
bool cli_colors(int fd);
/* The width of the terminal behind a descriptor; 0 if it is no terminal. */
int cli_columns(int fd);
/* Writes to stderr what is wrong with the command line, `what` in place of %s, and returns EXIT_MISUSE. */
int cli_misuse(const char *format, const char *what);
/* The arguments of `quern export FILE:NAME -o OUT [ARG...]` (export.c). */
typedef struct export_line {
  const char *target; /* as it was given */
  char *file;         /* malloc'd */
  const char *name;   /* the part of `target` after the colon */
  const char *out;
  char **args;
  int nargs;
} export_line;
/* Reads the arguments into *line; may reorder argv, which line->args points into. EXIT_FINE, or EXIT_MISUSE with a message. */
int export_parse(char **argv, int argc, export_line *line);
/* Finds the function in the file that has been run, records it and writes the graph. Returns an exit status; errors have been reported. */
int export_run(qn_vm *vm, const export_line *line);
/* `quern explain FILE.qnx`: prints how the function in the file is called, and its graph. Returns an exit status; errors have been
 * reported. */
int export_show(qn_vm *vm, const char *path);
/* Reads a whole file, or stdin for "-". The result is from malloc; NULL after a message. */
char *cli_read(const char *path, size_t *len);
/* Was Ctrl-C pressed since this was asked last, or since the last error report? */
bool cli_interrupted(void);
/* Reads statements from stdin until its end; with editing and a greeting on a terminal. */
int repl_run(qn_vm *vm);

#endif
