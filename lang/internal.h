/* What the files of lang share among themselves; no other room includes this. */
#ifndef LANG_INTERNAL_H
#define LANG_INTERNAL_H

#include <stdarg.h>

#include "lang/vm.h"

/* Under AddressSanitizer every block is a malloc of its own (mem.c). */
#if defined(__SANITIZE_ADDRESS__)
#define MEM_DIRECT 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEM_DIRECT 1
#endif
#endif
#ifndef MEM_DIRECT
#define MEM_DIRECT 0
#endif

/* ---- the free lists of small blocks, as far as the hot paths of mem.c and array.c share them -------------------- */

enum {
  SMALL_MAX = 512,
  SMALL_STEP = 16,
  SMALL_CLASSES = SMALL_MAX / SMALL_STEP + 1,
  CELL_STEP = 64,
  CELL_CLASSES = MEM_CELL_MAX / CELL_STEP + 1
};

typedef struct free_block {
  struct free_block *next;
} free_block;

/* The first member of mem_state. small[k] has blocks of k * SMALL_STEP bytes, cells[k] of k * CELL_STEP, pairs[k] freed arrays with the
 * cell of class k that holds their storage still attached (array.c): they are taken and given as two blocks each. */
typedef struct mem_lists {
  mem_stats stats;
  uint64_t fail_at; /* number of the allocation to fail; 0: none */
  free_block *small[SMALL_CLASSES];
  free_block *cells[CELL_CLASSES];
  free_block *pairs[CELL_CLASSES];
} mem_lists;

static inline void count_live(mem_lists *m, size_t bytes) {
  m->stats.live += bytes;
  if (__builtin_expect(m->stats.live > m->stats.peak, 0)) m->stats.peak = m->stats.live;
}

/* Takes a block off a free list. NULL, without an error, if the list is empty or a test wants this allocation to fail: the caller then
 * allocates in the general way. */
static inline void *list_take(mem_lists *m, free_block **list, size_t bytes) {
  free_block *b = *list;
  if (MEM_DIRECT || __builtin_expect(!b || m->stats.allocations + 1 == m->fail_at, 0)) return NULL;
  m->stats.allocations++;
  *list = b->next;
  count_live(m, bytes);
  return b;
}

static inline void list_give(mem_lists *m, free_block **list, void *p, size_t bytes) {
  free_block *b = p;
  b->next = *list;
  *list = b;
  m->stats.live -= bytes;
}

static inline mem_lists *lists_of(qn_vm *vm) { return (mem_lists *)vm->mem; }

static inline size_t small_class(size_t bytes) { return bytes ? (bytes + SMALL_STEP - 1) / SMALL_STEP : 1; }
static inline size_t cell_class(size_t bytes) { return bytes ? (bytes + CELL_STEP - 1) / CELL_STEP : 1; }

/* ---- what one file offers the others --------------------------------------------------------------------------- */

/* Each frees an object whose last reference went away (value_free calls them). */
void str_free(qn_vm *vm, qn_str *s);
void array_free(qn_vm *vm, qn_array *a);

/* Takes the free arrays of mem_lists.pairs apart into their blocks. */
void array_pairs_part(mem_lists *m);
/* Takes apart a pair that has a block for this list, which was made of two blocks that may be reused singly. False if there is none. */
bool array_pair_part(mem_lists *m, free_block **list);

/* Open and close parts of a VM. Opening fails only if memory is short. Closing also works on a part that was not opened completely. */
bool intern_open(qn_vm *vm);
void intern_close(qn_vm *vm);
bool layouts_open(qn_vm *vm);
void layouts_close(qn_vm *vm);
bool sources_open(qn_vm *vm);
void sources_close(qn_vm *vm);
bool error_open(qn_vm *vm); /* the out-of-memory error */
void error_close(qn_vm *vm);

/* A set of objects that each know their hash, a uint32_t at `hash_at` of the object: open addressing, at most half full. It holds no
 * references: an object leaves it when it is freed. Whoever looks for one begins at slot hash & (size - 1) and goes on to the first empty
 * slot. The owner of the set frees the slots. */
typedef struct hash_set {
  void **slots;
  uint32_t size, count; /* size: a power of two, 0 at first */
  uint32_t hash_at;
} hash_set;
/* Makes room for one more; then hash_set_put cannot fail. The first table has `first` slots. */
QN_MUST_CHECK bool hash_set_room(qn_vm *vm, hash_set *t, uint32_t first);
void hash_set_put(hash_set *t, void *object);
void hash_set_remove(hash_set *t, const void *object);

void text_addv(text_buf *t, const char *format, va_list args);
uint32_t str_hash(const char *text, size_t len);

#endif
