/* What became of registered patterns in a graph (rewrites.h), for explain and the log. */
#ifndef JIT_TRACE_REWRITE_NOTES_H
#define JIT_TRACE_REWRITE_NOTES_H

#include "lang/mem.h"
#include "lang/vm.h"

typedef struct rewrite_note {
  char name[64]; /* the pattern's */
  span at;       /* of what was replaced, or would have been */
  bool applied;
  char why[240]; /* why it was not */
} rewrite_note;
typedef struct rewrite_notes {
  rewrite_note *list;
  uint32_t n, cap;
  uint32_t applied; /* how many replacements there were, those included for which memory for a note was short */
} rewrite_notes;
static inline void rewrite_notes_free(qn_vm *vm, rewrite_notes *l) {
  mem_free(vm, l->list, l->cap * sizeof *l->list);
  *l = (rewrite_notes){0};
}

#endif
