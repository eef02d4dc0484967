/* What the files of the prompt share: the session (repl.c), its commands (commands.c), completion (complete.c). */
#ifndef INTERP_PROMPT_PROMPT_H
#define INTERP_PROMPT_PROMPT_H

#include "interp/prompt/cli.h"
#include "interp/prompt/edit.h"

typedef struct session {
  qn_vm *vm;
  editor *editor; /* NULL: lines are read as they come */
  bool terminal;  /* stdin and stdout are terminals */
  bool ended;
  bool interrupted;  /* Ctrl-C ended the last input */
  bool code;         /* the result will be C code, which is shown unquoted, from its first kernel on */
  bool transcript;   /* the text being typed holds inputs that were pasted with their prompts */
  copy_count copied; /* copies that updates in the last input had to make */
  copy_count copy_places[COPY_PLACES];
  uint32_t ncopy_places;
  double began, ran; /* when the last text that was run began and was done (seconds) */
  const void
      *drawn; /* the figure that the last input drew last, whose record is not shown as well; not owned, NULL: none */
} session;

typedef enum command_argument { ARGUMENT_NOTHING, ARGUMENT_NAME, ARGUMENT_EXPRESSION, ARGUMENT_FILE } command_argument;
typedef struct command {
  const char *name, *argument;
  command_argument kind;
  const char *doc;
  void (*run)(session *s, const char *argument);
} command;
extern const command commands[];
extern const int command_count;

/* Is the text a command, or one of the words help, exit and quit that no variable has? Commands are one line and always
 * complete. */
bool command_is(session *s, const char *text, size_t len);
void command_run(session *s, const char *text, size_t len);

/* Stand around what runs, and count the copies that updates make, in s->copied and s->copy_places. */
copy_count copies_begin(session *s);
void copies_end(session *s, copy_count before);
/* Runs a text and shows its value unless it is nil or the text ends in `;`. False if there was an error, or if the text needs
 * more lines: that is an error if these are the `last` ones, else *more is set and nothing has happened. */
bool session_run(session *s, const char *text, size_t len, bool last, bool *more);

/* Completion and hints for edit_host. `ctx` is the session. */
void prompt_complete(void *ctx, const char *text, size_t len, size_t cursor, choices *out);
bool prompt_hint(void *ctx, const char *text, size_t len, size_t cursor, text_buf *out);

/* Where the chain of names, fields and indices that ends at `end`, such as `nn.linear` or `layers[0].w`, begins. `highlights` are those of
 * the text. */
size_t chain_begin(const char *text, const uint8_t *highlights, size_t end);
/* The value of such a chain, borrowed, if it can be had without running anything. */
bool chain_value(qn_vm *vm, const char *text, const uint8_t *highlights, size_t begin, size_t end, qn_value *out);

#endif
