/* What the compilers and translators of devices share: tables of code by hash, programs that are compiled as one text, values of VECs, and troubles
 * of which the user is told once. */
#ifndef JIT_RUN_CODE_H
#define JIT_RUN_CODE_H

#include <pthread.h>

#include "jit/kernel/l.h"

/* ---- tables by hash --------------------------------------------------------------------------------------------- */

/* A table of pointers, zeroed at first. Its owner frees what it holds, then calls hash_free. It has no lock. */
typedef struct hash_table {
  struct hash_slot {
    uint64_t hash;
    void *what; /* NULL: the slot is free */
  } * slots;    /* open addressing; cap is a power of two */
  uint32_t n, cap;
} hash_table;

/* The pointer that was added with this hash; NULL: none. */
void *hash_find(const hash_table *t, uint64_t hash);
/* Adds what is not there yet. False when memory is short. */
QN_MUST_CHECK bool hash_add(hash_table *t, uint64_t hash, void *what);
void hash_free(hash_table *t);

/* ---- programs that are compiled as one text ------------------------------------------------------------------------------ */

/* Programs, each of them once. A program's functions are called NAME_0 and so on: one for each phase, and a last one that answers how much
 * scratch it needs (emit.h). */
typedef struct code_unit {
  uint32_t n;
  const l_program **programs;
  const char **names; /* "k" and the hash in 16 digits */
  uint64_t *hashes;
  uint32_t *functions; /* how many each has */
  char (*texts)[24];   /* where the names stand */
  hash_table seen;
} code_unit;

/* Makes room for `most` programs. False when memory is short; code_unit_close is due in any case. */
QN_MUST_CHECK bool code_unit_open(code_unit *u, uint32_t most);
QN_MUST_CHECK bool code_unit_add(code_unit *u, const l_program *p, uint64_t hash);
void code_unit_close(code_unit *u);

/* ---- values of a VEC ----------------------------------------------------------------------------------------------------- */

/* Facts about a VEC's values, for executors that keep them in registers. Tables have an entry for each instruction. */

/* Is the value of instruction i, which stands in a VEC, the same for all elements? `uniform` tells it of the instructions before; uniform[0] is
 * true. */
bool vec_is_uniform(const l_instr *i, const uint8_t *uniform);
/* Finds the last instruction that needs each value made in the VEC: itself, if there is none; what a loop inside the VEC needs in every turn is
 * needed until the loop's END. Returns the VEC's END. */
l_val vec_last_uses(const l_program *p, l_val vec, l_val *last);

/* ---- troubles ------------------------------------------------------------------------------------------------------------ */

/* Sentences for the user, at most one of each kind, whose numbers are the owner's. Any thread may tell and ask. */
enum { TROUBLE_KINDS = 5 };
typedef struct troubles {
  pthread_mutex_t lock;
  char text[TROUBLE_KINDS][320];
  enum { TROUBLE_NONE, TROUBLE_NEW, TROUBLE_REPORTED } state[TROUBLE_KINDS];
} troubles;

void troubles_init(troubles *t);
/* Keeps the sentence, if it is the first of its kind. */
void troubles_tell(troubles *t, int kind, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Copies the next sentence that has not been reported; false: there is none. */
bool troubles_next(troubles *t, char *text, size_t size);

#endif
