/* Memory of a VM: small-object free lists, large objects, array buffers over the engine's pool, arenas.
 *
 * Small objects. The VM takes regions of 4 MiB from the system and cuts them into chunks of 64 KiB, aligned to their size.
 * A block comes from the free list of its class (16-byte steps to 512 bytes; cells have 64-byte steps and 64-byte
 * alignment) or is bumped off the current chunk. Nothing is searched and nothing is locked. When a limit is met or on
 * trim, the free lists are counted chunk by chunk and chunks that hold no live block go back.
 *
 * Buffers. Size classes have 8 steps per doubling, so at most an eighth is wasted. Below 2 MiB they are aligned heap
 * blocks, from there on mappings aligned to 2 MiB with huge pages advised. Idle buffers wait in a lane of the VM (small
 * ones, up to LANE_BYTES) and in the engine's pool (behind a mutex), linked through their first word.
 *
 * Two sums are kept: `stats.live`, what the program holds, and `held`, what the VM has from the system (chunks, large
 * objects, live buffers). The memory limit bounds `held`, so that fragmentation cannot get around it.
 *
 * Under AddressSanitizer every block is a malloc of its own, so that use after free and overruns are seen.
 */
#include "lang/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lang/internal.h"

enum {
  BUFFER_CELL_MAX = 512, /* buffers up to this size are cells */
  CHUNK = 64 << 10,
  REGION = 4 << 20,
  TAIL = ARRAY_TAIL,    /* readable bytes behind a buffer */
  MAPPED_MIN = 2 << 20, /* buffers of this size and more are mappings of their own */
  MAPPED_TAIL = 4096,   /* one more page, for the readable bytes */
  LANE_MAX = 256 << 10, /* largest buffer kept in a VM's lane */
  LANE_BYTES = 2 << 20, /* the most bytes of idle buffers in the lane */
  BUFFER_CLASSES = 64 * 8
};

/* The head of a chunk; blocks follow at offset CELL_STEP. */
typedef struct chunk {
  struct chunk *next;
  uint32_t used; /* bytes that were given out, once the chunk is no longer the current one */
  uint32_t pad;  /* those of them that were lost to alignment */
  uint32_t idle; /* bytes on free lists; valid while chunks are being reclaimed */
  bool dead;
} chunk;
_Static_assert(sizeof(chunk) <= CELL_STEP, "blocks begin one cell into the chunk");

typedef struct region {
  struct region *next;
  void *map;
  size_t len;
} region;

struct mem_state {
  mem_lists lists; /* must be first, for lists_of */
  char *at, *end;  /* the unused part of the current chunk, whose last TAIL bytes are never given out */
  size_t held;
  chunk *chunks; /* the first is the current one */
  chunk *spare;
  region *regions;
  char *region_at, *region_end;
  size_t lane_bytes;
  free_block *lane[BUFFER_CLASSES];
};

struct pool {
  pthread_mutex_t lock;
  _Atomic size_t idle; /* bytes */
  free_block *classes[BUFFER_CLASSES];
};

/* ---- from the system ----------------------------------------------------------------------------------------- */

/* `len` bytes (whole pages) aligned to `align`, a power of two of at least a page; NULL when the system refuses. */
static void *map_aligned(size_t len, size_t align) {
  size_t span = len + align - 4096;
  char *p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  size_t head = -(uintptr_t)p & (align - 1);
  if (head) munmap(p, head);
  if (span - head - len) munmap(p + head + len, span - head - len);
  return p + head;
}

/* Counts an allocation. True if it is the one that a test wants to fail. */
static inline bool count_fails(struct mem_state *m) {
  if (__builtin_expect(++m->lists.stats.allocations != m->lists.fail_at, 1)) return false;
  m->lists.fail_at = 0;
  return true;
}

static void reclaim_chunks(struct mem_state *m);

/* Counts `bytes` more as held, if the limit allows it; gives idle memory back to the system first if need be. False, with nothing raised, if
 * the limit would be exceeded. */
static bool hold(qn_vm *vm, size_t bytes) {
  struct mem_state *m = vm->mem;
  size_t limit = vm->config.memory_limit;
  if (limit) {
    if (bytes > limit) return false;
    if (m->held > limit - bytes) reclaim_chunks(m);
    if (m->held > limit - bytes) return false;
  }
  m->held += bytes;
  return true;
}

/* ---- chunks -------------------------------------------------------------------------------------------------- */

static chunk *chunk_of(void *p) { return (chunk *)((uintptr_t)p & ~(uintptr_t)(CHUNK - 1)); }

static chunk *chunk_take(qn_vm *vm) {
  struct mem_state *m = vm->mem;
  if (!hold(vm, CHUNK)) return NULL;
  chunk *c = m->spare;
  if (c) {
    m->spare = c->next;
    return c;
  }
  if (m->region_at == m->region_end) {
    region *r = malloc(sizeof *r);
    char *map = r ? map_aligned(REGION, CHUNK) : NULL;
    if (!map) {
      free(r);
      m->held -= CHUNK;
      return NULL;
    }
    *r = (region){m->regions, map, REGION};
    m->regions = r;
    m->region_at = map;
    m->region_end = map + REGION;
  }
  c = (chunk *)m->region_at;
  m->region_at += CHUNK;
  return c;
}

/* Makes a new chunk current. */
static bool chunk_next(qn_vm *vm) {
  struct mem_state *m = vm->mem;
  chunk *c = chunk_take(vm);
  if (!c) return false;
  if (m->chunks) m->chunks->used = (uint32_t)(m->at - (char *)m->chunks - CELL_STEP);
  *c = (chunk){.next = m->chunks};
  m->chunks = c;
  m->at = (char *)c + CELL_STEP;
  m->end = (char *)c + CHUNK - TAIL;
  return true;
}

/* Takes a block of `size` bytes from the unused end of the current chunk. `align` is SMALL_STEP or CELL_STEP. */
static void *chunk_bump(qn_vm *vm, size_t size, size_t align) {
  struct mem_state *m = vm->mem;
  size_t pad = -(uintptr_t)m->at & (align - 1);
  if ((size_t)(m->end - m->at) < size + pad) {
    if (!chunk_next(vm)) return NULL;
    pad = 0;
  }
  char *p = m->at + pad;
  m->at = p + size;
  m->chunks->pad += (uint32_t)pad;
  return p;
}

static void lists_count_idle(free_block **lists, int n, size_t step) {
  for (int i = 0; i < n; i++)
    for (free_block *b = lists[i]; b; b = b->next) chunk_of(b)->idle += (uint32_t)(i * step);
}

static void lists_drop_dead(free_block **lists, int n) {
  for (int i = 0; i < n; i++)
    for (free_block **at = &lists[i]; *at;)
      if (chunk_of(*at)->dead)
        *at = (*at)->next;
      else
        at = &(*at)->next;
}

/* Gives chunks without live blocks back to the system (their address range waits in `spare`). */
static void reclaim_chunks(struct mem_state *m) {
  if (!m->chunks) return;
  array_pairs_part(&m->lists);
  for (chunk *c = m->chunks; c; c = c->next) c->idle = 0;
  lists_count_idle(m->lists.small, SMALL_CLASSES, SMALL_STEP);
  lists_count_idle(m->lists.cells, CELL_CLASSES, CELL_STEP);
  bool any = false;
  for (chunk *c = m->chunks->next; c; c = c->next) any |= c->dead = c->idle + c->pad == c->used;
  if (!any) return;
  lists_drop_dead(m->lists.small, SMALL_CLASSES);
  lists_drop_dead(m->lists.cells, CELL_CLASSES);
  for (chunk **at = &m->chunks->next; *at;) {
    chunk *c = *at;
    if (!c->dead) {
      at = &c->next;
      continue;
    }
    *at = c->next;
    madvise(c, CHUNK, MADV_DONTNEED);
    c->next = m->spare;
    m->spare = c;
    m->held -= CHUNK;
  }
}

/* ---- objects ------------------------------------------------------------------------------------------------- */

static void *alloc_large(qn_vm *vm, size_t bytes) {
  struct mem_state *m = vm->mem;
  if (bytes > PTRDIFF_MAX || !hold(vm, bytes)) return NULL;
  void *p = malloc(bytes ? bytes : 1);
  if (!p) {
    m->held -= bytes;
    return NULL;
  }
  count_live(&m->lists, bytes);
  return p;
}

/* A block of a class whose free list is empty: taken from a free array that has one, or from the current chunk. */
static void *block_of(qn_vm *vm, free_block **list, size_t size, size_t align) {
  struct mem_state *m = vm->mem;
  free_block *b = NULL;
  if (array_pair_part(&m->lists, list)) {
    b = *list;
    *list = b->next;
  }
  void *p = b ? b : chunk_bump(vm, size, align);
  if (p) count_live(&m->lists, size);
  return p;
}

void *mem_try_alloc(qn_vm *vm, size_t bytes) {
  struct mem_state *m = vm->mem;
  size_t k = small_class(bytes);
  void *p = bytes <= SMALL_MAX ? list_take(&m->lists, &m->lists.small[k], k * SMALL_STEP) : NULL;
  if (__builtin_expect(p != NULL, 1)) return p;
  if (count_fails(m)) return NULL;
  if (MEM_DIRECT || bytes > SMALL_MAX) return alloc_large(vm, bytes);
  return block_of(vm, &m->lists.small[k], k * SMALL_STEP, SMALL_STEP);
}

void *mem_alloc(qn_vm *vm, size_t bytes) {
  void *p = mem_try_alloc(vm, bytes);
  if (__builtin_expect(!p, 0)) raise_memory(vm);
  return p;
}

void *mem_zalloc(qn_vm *vm, size_t bytes) {
  void *p = mem_alloc(vm, bytes);
  return p ? memset(p, 0, bytes) : NULL;
}

void mem_free(qn_vm *vm, void *p, size_t bytes) {
  if (!p) return;
  struct mem_state *m = vm->mem;
  if (MEM_DIRECT || bytes > SMALL_MAX) {
    m->lists.stats.live -= bytes;
    m->held -= bytes;
    free(p);
    return;
  }
  size_t k = small_class(bytes);
  list_give(&m->lists, &m->lists.small[k], p, k * SMALL_STEP);
}

void *mem_try_realloc(qn_vm *vm, void *p, size_t old, size_t bytes) {
  if (!p) return mem_try_alloc(vm, bytes);
  struct mem_state *m = vm->mem;
  if (bytes > PTRDIFF_MAX) return NULL;
  if (MEM_DIRECT || (old > SMALL_MAX && bytes > SMALL_MAX)) {
    if (count_fails(m)) return NULL;
    if (bytes > old && !hold(vm, bytes - old)) return NULL;
    void *q = realloc(p, bytes ? bytes : 1);
    if (!q) {
      if (bytes > old) m->held -= bytes - old;
      return NULL;
    }
    if (bytes < old) m->held -= old - bytes;
    m->lists.stats.live -= old;
    count_live(&m->lists, bytes);
    return q;
  }
  if (bytes && old && small_class(old) == small_class(bytes)) return p;
  void *q = mem_try_alloc(vm, bytes);
  if (!q) return NULL;
  memcpy(q, p, old < bytes ? old : bytes);
  mem_free(vm, p, old);
  return q;
}

void *mem_realloc(qn_vm *vm, void *p, size_t old, size_t bytes) {
  void *q = mem_try_realloc(vm, p, old, bytes);
  if (!q) raise_memory(vm);
  return q;
}

bool mem_grow(qn_vm *vm, void **p, uint32_t *cap, size_t need, size_t size) {
  if (need <= *cap) return true;
  uint64_t want = (uint64_t)*cap + *cap / 2 + 4;
#ifdef QN_CHECKED
  if (*cap < 256) want = 0; /* small arrays move whenever they grow, so that stale pointers into them are found */
#endif
  if (want < need) want = need;
  if (want > UINT32_MAX) want = UINT32_MAX;
  if (want < need || want > PTRDIFF_MAX / size) {
    raise_memory(vm);
    return false;
  }
  void *q = mem_realloc(vm, *p, *cap * size, want * size);
  if (!q) return false;
  *p = q;
  *cap = (uint32_t)want;
  return true;
}

/* ---- cells --------------------------------------------------------------------------------------------------- */

void *mem_cell(qn_vm *vm, size_t bytes) {
  struct mem_state *m = vm->mem;
  size_t k = cell_class(bytes);
  void *p = list_take(&m->lists, &m->lists.cells[k], k * CELL_STEP);
  if (__builtin_expect(p != NULL, 1)) return p;
  if (count_fails(m)) goto fail;
#if MEM_DIRECT
  if (!hold(vm, k * CELL_STEP)) goto fail;
  if (posix_memalign(&p, CELL_STEP, bytes + TAIL) != 0) {
    m->held -= k * CELL_STEP;
    goto fail;
  }
  count_live(&m->lists, k * CELL_STEP);
#else
  if (!(p = block_of(vm, &m->lists.cells[k], k * CELL_STEP, CELL_STEP))) goto fail;
#endif
  return p;
fail:
  raise_memory(vm);
  return NULL;
}

void mem_cell_free(qn_vm *vm, void *p, size_t bytes) {
  size_t k = cell_class(bytes);
#if MEM_DIRECT
  vm->mem->lists.stats.live -= k * CELL_STEP;
  vm->mem->held -= k * CELL_STEP;
  free(p);
#else
  list_give(lists_of(vm), &lists_of(vm)->cells[k], p, k * CELL_STEP);
#endif
}

/* ---- buffers ------------------------------------------------------------------------------------------------- */

/* Is a buffer of this size a mapping of its own, rather than a heap block? The answer is the same for all sizes of a class. */
static inline bool buffer_mapped(size_t bytes) { return bytes + TAIL > MAPPED_MIN; }

/* The class of a buffer; *size is the size of the class. There are 8 classes between powers of two. The readable bytes behind a mapping lie
 * on a page of their own beyond that size, so that buffers whose sizes are powers of two waste nothing. */
static inline int buffer_class(size_t bytes, size_t *size) {
  size_t n = !buffer_mapped(bytes) ? bytes + TAIL : bytes > MAPPED_MIN ? bytes : MAPPED_MIN + 1;
  if (n < BUFFER_CELL_MAX) n = BUFFER_CELL_MAX;
  int log = 63 - __builtin_clzll(n - 1);
  size_t step = (size_t)1 << (log - 3);
  *size = (n + step - 1) & ~(step - 1);
  return (log << 3) + (int)((n - 1) >> (log - 3) & 7);
}

static void *buffer_from_system(size_t bytes, size_t size) {
  if (MEM_DIRECT || !buffer_mapped(bytes)) {
    void *p;
    return posix_memalign(&p, 64, MEM_DIRECT ? bytes + TAIL : size) == 0 ? p : NULL;
  }
  void *p = map_aligned(size + MAPPED_TAIL, MAPPED_MIN);
#ifdef MADV_HUGEPAGE
  if (p) madvise(p, size, MADV_HUGEPAGE);
#endif
  return p;
}

static void buffer_to_system(void *p, size_t bytes, size_t size) {
  if (MEM_DIRECT || !buffer_mapped(bytes))
    free(p);
  else
    munmap(p, size + MAPPED_TAIL);
}

struct pool *pool_open(void) {
  struct pool *pool = calloc(1, sizeof *pool);
  if (pool && pthread_mutex_init(&pool->lock, NULL) != 0) {
    free(pool);
    return NULL;
  }
  return pool;
}

/* The size of a class from its number. */
static size_t class_size(int k) { return (size_t)(8 + (k & 7) + 1) << ((k >> 3) - 3); }
static bool class_mapped(int k) { return class_size(k) > MAPPED_MIN; }

static void class_release(int k, free_block *list) {
  while (list) {
    free_block *next = list->next;
    if (class_mapped(k))
      munmap(list, class_size(k) + MAPPED_TAIL);
    else
      free(list);
    list = next;
  }
}

static void pool_trim(struct pool *pool) {
  for (int k = 0; k < BUFFER_CLASSES; k++) {
    pthread_mutex_lock(&pool->lock);
    free_block *list = pool->classes[k];
    pool->classes[k] = NULL;
    size_t bytes = 0;
    for (free_block *b = list; b; b = b->next) bytes += class_size(k);
    pool->idle -= bytes;
    pthread_mutex_unlock(&pool->lock);
    class_release(k, list);
  }
}

void pool_close(struct pool *pool) {
  if (!pool) return;
  pool_trim(pool);
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}

void pool_forked(struct pool *pool) { pthread_mutex_init(&pool->lock, NULL); }

static void *pool_take(struct pool *pool, int k, size_t size) {
  if (atomic_load_explicit(&pool->idle, memory_order_relaxed) < size) return NULL;
  pthread_mutex_lock(&pool->lock);
  free_block *b = pool->classes[k];
  if (b) {
    pool->classes[k] = b->next;
    pool->idle -= size;
  }
  pthread_mutex_unlock(&pool->lock);
  return b;
}

static void pool_put(struct pool *pool, int k, size_t size, void *p) {
  free_block *b = p;
  pthread_mutex_lock(&pool->lock);
  b->next = pool->classes[k];
  pool->classes[k] = b;
  pool->idle += size;
  pthread_mutex_unlock(&pool->lock);
}

/* Moves the idle buffers of the VM's lane into the pool. */
static void lane_flush(qn_vm *vm) {
  struct mem_state *m = vm->mem;
  for (int k = 0; k < BUFFER_CLASSES && m->lane_bytes; k++)
    while (m->lane[k]) {
      free_block *b = m->lane[k];
      m->lane[k] = b->next;
      m->lane_bytes -= class_size(k);
      pool_put(vm->engine->pool, k, class_size(k), b);
    }
}

void mem_trim(qn_vm *vm) {
  lane_flush(vm);
  pool_trim(vm->engine->pool);
  reclaim_chunks(vm->mem);
}

void *mem_buffer(qn_vm *vm, size_t bytes) {
  struct mem_state *m = vm->mem;
  if (!MEM_DIRECT && bytes <= BUFFER_CELL_MAX) {
    void *p = mem_cell(vm, bytes);
    if (p) m->lists.stats.buffers += cell_class(bytes) * CELL_STEP;
    return p;
  }
  size_t size;
  void *p = NULL;
  if (count_fails(m) || bytes > (size_t)1 << 56) goto fail;
  int k = buffer_class(bytes, &size);
  if (!hold(vm, size)) goto fail;
  if (m->lane[k]) {
    p = m->lane[k];
    m->lane[k] = m->lane[k]->next;
    m->lane_bytes -= size;
  }
  if (!p) p = pool_take(vm->engine->pool, k, size);
  if (!p) {
    /* If the VM has a limit, idle buffers of other sizes count as its own. */
    size_t limit = vm->config.memory_limit;
    if (limit && m->lane_bytes + vm->engine->pool->idle > limit - m->held) mem_trim(vm);
    p = buffer_from_system(bytes, size);
  }
  if (!p) {
    mem_trim(vm);
    p = buffer_from_system(bytes, size);
  }
  if (!p) {
    m->held -= size;
    goto fail;
  }
  count_live(&m->lists, size);
  m->lists.stats.buffers += size;
  return p;
fail:
  raise_memory(vm);
  return NULL;
}

bool mem_hold(qn_vm *vm, size_t bytes) {
  if (count_fails(vm->mem) || !hold(vm, bytes)) return false;
  count_live(&vm->mem->lists, bytes);
  return true;
}

void mem_let_go(qn_vm *vm, size_t bytes) {
  vm->mem->held -= bytes;
  vm->mem->lists.stats.live -= bytes;
}

void mem_buffer_free(qn_vm *vm, void *p, size_t bytes) {
  if (!p) return;
  struct mem_state *m = vm->mem;
  if (!MEM_DIRECT && bytes <= BUFFER_CELL_MAX) {
    m->lists.stats.buffers -= cell_class(bytes) * CELL_STEP;
    mem_cell_free(vm, p, bytes);
    return;
  }
  size_t size;
  int k = buffer_class(bytes, &size);
  m->lists.stats.live -= size;
  m->lists.stats.buffers -= size;
  m->held -= size;
  if (MEM_DIRECT) {
    buffer_to_system(p, bytes, size);
    return;
  }
  if (size <= LANE_MAX && m->lane_bytes + size <= LANE_BYTES) {
    free_block *b = p;
    b->next = m->lane[k];
    m->lane[k] = b;
    m->lane_bytes += size;
  } else if (vm->engine->pool->idle + size <= (size_t)vm->tune[TUNE_pool_bytes]) {
    pool_put(vm->engine->pool, k, size, p);
  } else {
    buffer_to_system(p, bytes, size);
  }
}

bool mem_is_foreign(qn_vm *vm, const void *object) {
  const obj_head *o = object;
  size_t bytes = o->tag == TAG_STR  ? sizeof(qn_str) + ((const qn_str *)o)->len + 1
                 : o->tag == TAG_FN ? sizeof(qn_fn) + ((const qn_fn *)o)->ncaptures * sizeof(qn_value)
                                    : 0;
  if (MEM_DIRECT || bytes > SMALL_MAX || (o->tag == TAG_STR && o->aux)) return false; /* a block of its own */
  for (const region *r = vm->mem->regions; r; r = r->next)
    if ((const char *)object >= (char *)r->map && (const char *)object < (char *)r->map + r->len) return false;
  return true;
}

/* ---- the state of a VM ----------------------------------------------------------------------------------------- */

bool mem_open(qn_vm *vm) {
  vm->mem = calloc(1, sizeof *vm->mem);
  return vm->mem != NULL;
}

void mem_close(qn_vm *vm) {
  struct mem_state *m = vm->mem;
  if (!m) return;
  lane_flush(vm);
  while (m->regions) {
    region *r = m->regions;
    m->regions = r->next;
    munmap(r->map, r->len);
    free(r);
  }
  free(m);
  vm->mem = NULL;
}

mem_stats *mem_stats_of(qn_vm *vm) {
  vm->mem->lists.stats.pooled = vm->mem->lane_bytes + vm->engine->pool->idle;
  return &vm->mem->lists.stats;
}

void mem_count_copy(qn_vm *vm, size_t bytes) {
  vm->copies.count++;
  vm->copies.bytes += bytes;
  vm->copies.at = vm->updating;
  uint32_t place = 0;
  while (place < vm->ncopy_places && memcmp(&vm->copy_places[place].at, &vm->updating, sizeof vm->updating) != 0)
    place++;
  if (place < COPY_PLACES) {
    if (place == vm->ncopy_places) vm->copy_places[vm->ncopy_places++] = (copy_count){.at = vm->updating};
    vm->copy_places[place].count++;
    vm->copy_places[place].bytes += bytes;
  }
  if (!vm_logs(vm, LOG_copies)) return;
  const source_text *s = source_get(vm, vm->updating.source);
  int line, column;
  if (s) source_position(s, vm->updating.start, &line, &column);
  if (s)
    vm_logf(vm, LOG_copies, "%s:%d: %zu bytes copied, the value has another owner", s->name, line, bytes);
  else
    vm_logf(vm, LOG_copies, "%zu bytes copied, the value has another owner", bytes);
}

void mem_fail_at(qn_vm *vm, uint64_t n) { vm->mem->lists.fail_at = n ? vm->mem->lists.stats.allocations + n : 0; }

/* ---- arenas -------------------------------------------------------------------------------------------------- */

struct arena_block {
  arena_block *next;
  size_t bytes; /* size of the whole block */
};
_Static_assert(sizeof(arena_block) == 16, "what follows the block's head is 16-byte aligned");

enum { ARENA_FIRST = 2048, ARENA_LARGEST = 256 << 10 };

void arena_init(arena *a, qn_vm *vm) { *a = (arena){.vm = vm}; }

/* Gives the arena a new block of `want` bytes; the rest of the old block stays unused. */
static bool arena_add(arena *a, size_t want) {
  arena_block *b = a->vm ? mem_alloc(a->vm, want) : malloc(want);
  if (!b) return false;
  b->next = a->blocks;
  b->bytes = want;
  a->blocks = b;
  a->at = (char *)(b + 1);
  a->end = (char *)b + want;
  return true;
}

/* Gives the arena a new block with room for `bytes`. */
static bool arena_grow(arena *a, size_t bytes) {
  size_t want = a->blocks ? a->blocks->bytes * 2 : ARENA_FIRST;
  if (want > ARENA_LARGEST) want = ARENA_LARGEST;
#ifdef QN_CHECKED
  want = 176;
#endif
  if (bytes > PTRDIFF_MAX - sizeof(arena_block)) return false;
  if (want < bytes + sizeof(arena_block)) want = bytes + sizeof(arena_block);
  return arena_add(a, want);
}

bool arena_reserve(arena *a, size_t bytes, size_t parts) {
  bytes += parts * 16; /* each is rounded up */
  return (size_t)(a->end - a->at) >= bytes ||
         (bytes <= PTRDIFF_MAX - sizeof(arena_block) && arena_add(a, bytes + sizeof(arena_block)));
}

void *arena_take(arena *a, size_t bytes) {
  if (bytes > PTRDIFF_MAX) {
    a->failed = true;
    if (a->vm) raise_memory(a->vm);
    return NULL;
  }
  bytes = bytes ? (bytes + 15) & ~(size_t)15 : 16;
  if ((size_t)(a->end - a->at) < bytes && !arena_grow(a, bytes)) {
    a->failed = true;
    return NULL;
  }
  char *p = a->at;
  a->at += bytes;
  return p;
}

void *arena_alloc(arena *a, size_t bytes) {
  char *p = arena_take(a, bytes);
  return p ? memset(p, 0, bytes ? (bytes + 15) & ~(size_t)15 : 16) : NULL;
}

/* `zeroed`: what is behind the old elements is set to 0, which touches pages that may never be needed. If it is not, a long list grows four
 * times: what it does not fill costs addresses only, and old copies, which stay, are a third of it and not as much again. */
static bool arena_more(arena *a, void **p, uint32_t *cap, size_t need, size_t size, bool zeroed) {
  enum { LONG = 32 << 10 };
  if (need <= *cap) return true;
  uint32_t more = *cap ? *cap : 8;
  while (more < need && more <= UINT32_MAX / 2) more *= 2;
  if (!zeroed && more * size >= LONG && *cap && more <= UINT32_MAX / 2) more *= 2;
  char *to = more < need ? NULL : arena_take(a, more * size);
  if (!to) {
    a->failed = true;
    return false;
  }
  size_t old = *cap * size;
  if (old) memcpy(to, *p, old);
  if (zeroed) memset(to + old, 0, more * size - old);
  *p = to;
  *cap = more;
  return true;
}

bool arena_room(arena *a, void **p, uint32_t *cap, size_t need, size_t size) {
  return arena_more(a, p, cap, need, size, true);
}

bool arena_room_unset(arena *a, void **p, uint32_t *cap, size_t need, size_t size) {
  return arena_more(a, p, cap, need, size, false);
}

void arena_free(arena *a) {
  while (a->blocks) {
    arena_block *b = a->blocks;
    a->blocks = b->next;
    if (a->vm)
      mem_free(a->vm, b, b->bytes);
    else
      free(b);
  }
  *a = (arena){.vm = a->vm};
}
