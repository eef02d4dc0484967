/* Hash tables, programs that are compiled as one text, values of VECs, and troubles (code.h). */
#include "jit/run/code.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "jit/kernel/emit.h"

/* ---- things by their hash ------------------------------------------------------------------------------------------------ */

/* The slot that has this hash, or the free slot where it belongs. */
static struct hash_slot *slot_of(const hash_table *t, uint64_t hash) {
  uint32_t i = (uint32_t)(hash ^ hash >> 32) & (t->cap - 1);
  while (t->slots[i].what && t->slots[i].hash != hash) i = (i + 1) & (t->cap - 1);
  return &t->slots[i];
}

void *hash_find(const hash_table *t, uint64_t hash) { return t->cap ? slot_of(t, hash)->what : NULL; }

bool hash_add(hash_table *t, uint64_t hash, void *what) {
  if (2 * t->n >= t->cap) {
    hash_table more = {.n = t->n, .cap = t->cap ? 2 * t->cap : 64};
    if (!(more.slots = calloc(more.cap, sizeof *more.slots))) return false;
    for (uint32_t i = 0; i < t->cap; i++)
      if (t->slots[i].what) *slot_of(&more, t->slots[i].hash) = t->slots[i];
    free(t->slots);
    *t = more;
  }
  *slot_of(t, hash) = (struct hash_slot){hash, what};
  t->n++;
  return true;
}

void hash_free(hash_table *t) {
  free(t->slots);
  *t = (hash_table){0};
}

/* ---- programs that are compiled as one text ------------------------------------------------------------------------------ */

bool code_unit_open(code_unit *u, uint32_t most) {
  *u = (code_unit){.programs = calloc(most + 1u, sizeof *u->programs),
                   .names = calloc(most + 1u, sizeof *u->names),
                   .hashes = calloc(most + 1u, sizeof *u->hashes),
                   .functions = calloc(most + 1u, sizeof *u->functions),
                   .texts = calloc(most + 1u, sizeof *u->texts)};
  return u->programs && u->names && u->hashes && u->functions && u->texts;
}

bool code_unit_add(code_unit *u, const l_program *p, uint64_t hash) {
  if (hash_find(&u->seen, hash)) return true;
  uint32_t i = u->n++;
  u->programs[i] = p;
  u->hashes[i] = hash;
  u->functions[i] = emit_phases(p) + 1;
  snprintf(u->texts[i], sizeof *u->texts, "k%016llx", (unsigned long long)hash);
  u->names[i] = u->texts[i];
  return hash_add(&u->seen, hash, u->texts[i]);
}

void code_unit_close(code_unit *u) {
  free(u->programs);
  free(u->names);
  free(u->hashes);
  free(u->functions);
  free(u->texts);
  hash_free(&u->seen);
}

/* ---- values of a VEC ----------------------------------------------------------------------------------------------------- */

bool vec_is_uniform(const l_instr *i, const uint8_t *uniform) {
  switch (i->code) {
  case L_CONST:
  case L_SCALAR: return true;
  case L_IOTA: return !i->b;
  case L_LOAD: return !i->b && !i->c && !i->e && !i->f && !i->g;
  case L_KOP:
  case L_MATH: return uniform[i->a] && uniform[i->b] && uniform[i->c];
  default: return l_rows[i->code].result != 'V';
  }
}

static l_val end_of(const l_program *p, l_val opener) {
  l_val v = opener;
  for (int depth = 1; depth;) {
    v++;
    depth += l_opens(p->code[v].code) - (p->code[v].code == L_END);
  }
  return v;
}

l_val vec_last_uses(const l_program *p, l_val vec, l_val *last) {
  l_val loops[64], ends[64], end = end_of(p, vec);
  int n = 0; /* open loops */
  for (l_val v = vec + 1; v < end; v++) {
    const l_instr *i = &p->code[v];
    last[v] = v;
    while (n && v > ends[n - 1]) n--;
    if ((i->code == L_FOR || i->code == L_WHILE) && n < 64) {
      loops[n] = v;
      ends[n++] = end_of(p, v);
    }
    for (const l_operand *o = l_rows[i->code].operands; o->role; o++) {
      l_val used = l_operand_of(i, o), until = v;
      if (used <= vec || l_rows[p->code[used].code].result != 'V') continue;
      if (i->code == L_SET && n) until = ends[n - 1]; /* carries change at the loop's end */
      for (int k = 0; k < n; k++)
        if (used < loops[k] && ends[k] > until) until = ends[k];
      if (last[used] < until) last[used] = until;
    }
  }
  return end;
}

/* ---- troubles ------------------------------------------------------------------------------------------------------------ */

void troubles_init(troubles *t) { pthread_mutex_init(&t->lock, NULL); }

void troubles_tell(troubles *t, int kind, const char *format, ...) {
  va_list args;
  va_start(args, format);
  pthread_mutex_lock(&t->lock);
  if (t->state[kind] == TROUBLE_NONE) {
    vsnprintf(t->text[kind], sizeof t->text[kind], format, args);
    t->state[kind] = TROUBLE_NEW;
  }
  pthread_mutex_unlock(&t->lock);
  va_end(args);
}

bool troubles_next(troubles *t, char *text, size_t size) {
  int kind = 0;
  pthread_mutex_lock(&t->lock);
  while (kind < TROUBLE_KINDS && t->state[kind] != TROUBLE_NEW) kind++;
  bool found = kind < TROUBLE_KINDS;
  if (found) {
    snprintf(text, size, "%s", t->text[kind]);
    t->state[kind] = TROUBLE_REPORTED;
  }
  pthread_mutex_unlock(&t->lock);
  return found;
}
