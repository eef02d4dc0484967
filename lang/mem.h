/* Memory of a VM: every byte of values, arrays and compiler data goes through here, so that a host can bound it and
 * tests can fail the n-th allocation. Small objects come from size-class free lists (16-byte steps to 512 bytes).
 *
 * Array data comes from the engine's buffer pool: 64-byte aligned, rounded to size classes, blocks of 2 MiB and more
 * mapped with huge pages where that helps, kept for reuse (a fresh page costs 0.2 to 1.7 microseconds per 4 KiB) until
 * trimmed, a limit is met or the engine closes.
 *
 * A failed allocation returns NULL and has raised E601 on the VM (the error object exists since the VM opened).
 */
#ifndef LANG_MEM_H
#define LANG_MEM_H

#include "lang/quern.h"

QN_MUST_CHECK void *mem_alloc(qn_vm *vm, size_t bytes);                        /* uninitialised */
QN_MUST_CHECK void *mem_zalloc(qn_vm *vm, size_t bytes);                       /* zeroed */
QN_MUST_CHECK void *mem_realloc(qn_vm *vm, void *p, size_t old, size_t bytes); /* p stays valid on failure */
void mem_free(qn_vm *vm, void *p, size_t bytes);                               /* p may be NULL; bytes as allocated */

/* Like mem_alloc and mem_realloc, but a failure raises nothing: for code that reports it later or not at all. */
QN_MUST_CHECK void *mem_try_alloc(qn_vm *vm, size_t bytes);
QN_MUST_CHECK void *mem_try_realloc(qn_vm *vm, void *p, size_t old, size_t bytes);

/* Grows `*p` (elements of `size` bytes, `*cap` of them) so that it holds `need` elements. */
QN_MUST_CHECK bool mem_grow(qn_vm *vm, void **p, uint32_t *cap, size_t need, size_t size);

/* Array data: at least `bytes`, aligned to 64, with ARRAY_TAIL readable bytes behind it. */
QN_MUST_CHECK void *mem_buffer(qn_vm *vm, size_t bytes);
void mem_buffer_free(qn_vm *vm, void *p, size_t bytes);
void mem_trim(qn_vm *vm); /* gives unused buffers and chunks back to the system */

/* Counts memory that the VM holds elsewhere (on a device) towards its limit. False, with nothing raised, if that would exceed it. */
QN_MUST_CHECK bool mem_hold(qn_vm *vm, size_t bytes);
void mem_let_go(qn_vm *vm, size_t bytes);

/* Cells: small blocks (at most MEM_CELL_MAX bytes) of this VM alone, aligned and padded like buffers, without a lock.
 * Arrays of few elements keep storage header and data in one cell. */
enum { MEM_CELL_MAX = 576 };
QN_MUST_CHECK void *mem_cell(qn_vm *vm, size_t bytes);
void mem_cell_free(qn_vm *vm, void *p, size_t bytes);

/* In checked builds: has another VM made this object? False if that is not known. */
bool mem_is_foreign(qn_vm *vm, const void *object);

/* The engine's buffer pool, and the memory state of a VM that is being opened or closed (vm.c). */
QN_MUST_CHECK struct pool *pool_open(void);
void pool_close(struct pool *pool);
void pool_forked(struct pool *pool);
QN_MUST_CHECK bool mem_open(qn_vm *vm); /* a failure raises nothing */
void mem_close(qn_vm *vm);

typedef struct mem_stats {
  size_t live, peak;      /* bytes in use, values and arrays */
  size_t buffers, pooled; /* bytes of live and of idle array buffers */
  uint64_t allocations;   /* count, for tests */
} mem_stats;
mem_stats *mem_stats_of(qn_vm *vm);

/* An update has copied `bytes` since its value had another owner: counts it in vm->copies and logs it. */
void mem_count_copy(qn_vm *vm, size_t bytes);

/* Fails the n-th allocation from now (1 is the next), once; 0 switches this off. Tests use it for every n. */
void mem_fail_at(qn_vm *vm, uint64_t n);

/* An arena: bump allocation, freed as a whole. For ASTs, graphs, kernels. Also usable without a VM (vm NULL: plain
 * malloc, no accounting), because graphs and kernels travel to compiler threads. */
typedef struct arena_block arena_block;
typedef struct arena {
  qn_vm *vm;
  arena_block *blocks;
  char *at, *end;
  bool failed; /* an allocation has failed: the owner checks before it uses what it built */
} arena;
void arena_init(arena *a, qn_vm *vm);
/* Zeroed, 16-byte aligned; NULL when memory is short. */
QN_MUST_CHECK void *arena_alloc(arena *a, size_t bytes);
/* As arena_alloc, but what is there is anything. */
QN_MUST_CHECK void *arena_take(arena *a, size_t bytes);
/* Does what mem_grow does for an array in the arena. If the array moves, the arena keeps the old copy until it is freed. False if memory is
 * short. */
QN_MUST_CHECK bool arena_room(arena *a, void **p, uint32_t *cap, size_t need, size_t size);
/* As arena_room, but the new elements are anything: for lists that may be long and are filled one by one. */
QN_MUST_CHECK bool arena_room_unset(arena *a, void **p, uint32_t *cap, size_t need, size_t size);
/* Makes what the next `parts` allocations take, if they are of `bytes` in all, one block of just that size: for arenas that live long. False,
 * and nothing is changed, when memory is short. */
QN_MUST_CHECK bool arena_reserve(arena *a, size_t bytes, size_t parts);
void arena_free(arena *a);

#endif
