/* sort and argsort (sort.h).
 *
 * A line is what lies along the axis. How it is sorted depends on its length, the result does not:
 *
 *   few       elements of a common dtype are inserted into the result as they are, behind those that are to stay before them
 *   ranked    an element's place is the number of those that come before it (sort_loops.rank)
 *   long      items with keys are made, sorted by radix in the memory of a thread, and become elements again
 *   huge      items are placed by the highest bits in which keys differ, and what is equal in these sorted as above
 *
 * Where the first few indices of a line are wanted (sort_first), its elements are looked at once, and those whose keys are below the
 * last of the best so far are kept: inserted among at most 16 that are wanted (a third less time in lines of 1,000), else collected until
 * there are several times as many as are wanted, then sorted and cut.
 *
 * Threads share lines, or the parts of a huge line. Keys do not tell -0 from 0 and NaNs from each other: where a line has such, they are
 * stored once more, in the order in which they are there. Where elements of a line lie apart and neighbouring lines side by side (columns),
 * lines are copied into memory of the thread, 16 at a time.
 */
#include "jit/cpu/sort.h"

#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/cpu/pieces.h"
#include "jit/cpu/sortloops.h"

enum {
  FEW = 16,            /* most elements of a line that is sorted by insertion, if it is the only line */
  FEW_OF_MANY = 4,     /* the same if there are many: from 6 elements on ranking takes half the time of insertion */
  HUGE_LINE = 1 << 18, /* more elements: a line is always sorted in parts */
  SHARED = 1 << 15,    /* more elements: threads may share a line */
  TILE = 16,           /* lines that are copied together (columns) */
  PART = 1 << 16,      /* least elements of a piece of work */
  PART_MOST = 1 << 22, /* most elements of a part of a huge line */
  WORTH = 4,           /* sorting an element takes as long as a pointwise op on so many */
};

/* What is sorted: lines along `axis`, which follow each other along the axis `inner`. Steps are in bytes; out_ is the result's. */
typedef struct sorting {
  qn_vm *vm;
  const sort_loops *loops;
  const qn_array *x, *out;
  qn_dtype dtype;
  bool descending, indices;
  int axis, inner;
  int64_t size, out_size; /* of an element */
  int64_t n, step, out_step;
  int64_t lines, next, out_next; /* lines along the inner axis, or 1 */
  /* for long lines: */
  sort_kind kind;
  unsigned low;        /* bits of items that are below the keys */
  int64_t total, each; /* lines of the array, and of a piece of work */
  bool tiles;
  char *rooms;
  size_t room; /* bytes of a thread's */
} sorting;

/* Insertion sort of lines of at most FEW elements: each element goes behind those that stay before it, a nan behind all. */
#define FEW_OF(T)                                                                                                      \
  static inline __attribute__((always_inline)) void insert_##T(const sorting *s, const char *in, char *out, bool down, \
                                                               bool indices) {                                         \
    int64_t step = s->step, out_step = s->out_step, each = indices ? (int64_t)sizeof(int64_t) : (int64_t)sizeof(T);    \
    const char *p = in;                                                                                                \
    char *end = out;                                                                                                   \
    for (int64_t i = 0, n = s->n; i < n; i++, p += step, end += out_step) {                                            \
      T x, before;                                                                                                     \
      char *to = end;                                                                                                  \
      memcpy(&x, p, sizeof x);                                                                                         \
      for (; to != out && x == x; to -= out_step) {                                                                    \
        int64_t at;                                                                                                    \
        memcpy(&at, to - out_step, indices ? sizeof at : 0);                                                           \
        memcpy(&before, indices ? in + at *step : to - out_step, sizeof before);                                       \
        if (down ? before >= x : before <= x) break;                                                                   \
        memcpy(to, to - out_step, (size_t)each);                                                                       \
      }                                                                                                                \
      memcpy(to, indices ? (const void *)&i : &x, (size_t)each);                                                       \
    }                                                                                                                  \
  }                                                                                                                    \
  static __attribute__((noinline)) void sort_few_##T(const sorting *s, const char *in, char *out, int64_t lines) {     \
    for (int64_t line = 0; line < lines; line++, in += s->next, out += s->out_next) {                                  \
      if (s->indices)                                                                                                  \
        s->descending ? insert_##T(s, in, out, true, true) : insert_##T(s, in, out, false, true);                      \
      else                                                                                                             \
        s->descending ? insert_##T(s, in, out, true, false) : insert_##T(s, in, out, false, false);                    \
    }                                                                                                                  \
  }
FEW_OF(float)
FEW_OF(double)
FEW_OF(int32_t)
FEW_OF(int64_t)

/* ---- lines of one thread ------------------------------------------------------------------------------------------- */

/* Sorts a line by the ranks of its elements. */
static void sort_ranked(const sorting *s, const char *in, char *out) {
  int32_t rank[SORT_RANKED_32];
  sort_elements e = {.in = in, .step = s->step, .n = s->n, .descending = s->descending};
  s->loops->rank[s->dtype](&e, rank);
  int64_t n = s->n, step = s->step, out_step = s->out_step;
  if (s->indices)
    for (int64_t i = 0; i < n; i++) memcpy(out + rank[i] * out_step, &i, 8);
  else if (s->size == 4)
    for (int64_t i = 0; i < n; i++, in += step) memcpy(out + rank[i] * out_step, in, 4);
  else if (s->size == 8)
    for (int64_t i = 0; i < n; i++, in += step) memcpy(out + rank[i] * out_step, in, 8);
  else
    for (int64_t i = 0; i < n; i++, in += step) memcpy(out + rank[i] * out_step, in, (size_t)s->size);
}

/* Where the zeros (0 and -0) begin among n sorted elements, of which at least one is zero. */
static int64_t first_zero(const sorting *s, const char *out, int64_t out_step, int64_t n) {
  int64_t from = 0;
  while (n > 0) {
    int64_t half = n / 2;
    double x = dtype_load(s->dtype, out + (from + half) * out_step).u.f;
    if (s->descending ? x > 0 : x < 0)
      from += half + 1, n -= half + 1;
    else
      n = half;
  }
  return from;
}

/* Stores a sorted line's zeros and NaNs once more: keys do not tell them apart, and their order is that of the line. */
static void mend(const sorting *s, const sort_seen *seen, const char *in, int64_t step, char *out, int64_t out_step) {
  if (s->indices || !(seen->nans | seen->negative_zeros)) return;
  int64_t numbers = s->n - seen->nans;
  char *zeros = seen->negative_zeros ? out + first_zero(s, out, out_step, numbers) * out_step : NULL;
  s->loops->specials[s->dtype](in, step, s->n, zeros, seen->nans ? out + numbers * out_step : NULL, out_step);
}

/* Stores the elements, or indices, of n sorted items. */
static void store(const sorting *s, const void *items, int64_t n, char *out, int64_t out_step) {
  if (s->indices)
    s->loops->indices[s->kind](items, n, out, out_step);
  else
    s->loops->elements[s->dtype](items, n, s->descending, out, out_step);
}

/* The memory of a thread: a sort_room, the items of a line twice, then copies of lines and of their results. */
static sort_room *room_of(const sorting *s, int thread) {
  return (sort_room *)(void *)(s->rooms + (size_t)thread * s->room);
}
static size_t rounded(size_t bytes) { return (bytes + 63) & ~(size_t)63; }
static size_t room_head(void) { return rounded(sizeof(sort_room)); }
static size_t room_items(const sorting *s) { return rounded((size_t)s->n * sort_item_size(s->kind)); }

/* Sorts a line by radix, in the memory of a thread. */
static void sort_long(const sorting *s, sort_room *r, const char *in, int64_t step, char *out, int64_t out_step) {
  char *a = (char *)r + room_head(), *b = a + room_items(s);
  sort_elements e = {.in = in, .step = step, .n = s->n, .descending = s->descending};
  sort_seen seen = {0};
  s->loops->items[s->dtype](&e, in, s->kind, a, &seen);
  const void *sorted = s->loops->sort[s->kind](r, a, b, s->n, s->low);
  if (r->stopped) return;
  store(s, sorted, s->n, out, out_step);
  mend(s, &seen, in, step, out, out_step);
}

/* Copies lines of n elements between two layouts: elements are step or to_step bytes apart, lines `line` or to_line. */
#define MOVE(T)                                                                                                        \
  for (int64_t i = 0; i < n; i++)                                                                                      \
    for (int64_t l = 0; l < lines; l++) memcpy(to + i * to_step + l * to_line, from + i * step + l * line, sizeof(T));
static void move_tile(int64_t size, int64_t n, int64_t lines, char *to, int64_t to_step, int64_t to_line,
                      const char *from, int64_t step, int64_t line) {
  switch (size) {
  case 1: MOVE(uint8_t) break;
  case 2: MOVE(uint16_t) break;
  case 4: MOVE(uint32_t) break;
  default: MOVE(uint64_t) break;
  }
}

/* Sorts neighbouring columns: copies them to lines, sorts these, and copies the results. */
static void sort_tile(const sorting *s, sort_room *r, const char *in, char *out, int64_t lines) {
  char *tile = (char *)r + room_head() + 2 * room_items(s), *result = tile + rounded((size_t)(s->n * s->size * TILE));
  int64_t line = s->n * s->size, out_line = s->n * s->out_size;
  move_tile(s->size, s->n, lines, tile, s->size, line, in, s->step, s->next);
  for (int64_t l = 0; l < lines && !r->stopped; l++)
    sort_long(s, r, tile + l * line, s->size, result + l * out_line, s->out_size);
  if (!r->stopped) move_tile(s->out_size, s->n, lines, out, s->out_step, s->out_next, result, s->out_size, out_line);
}

/* Finds a line by its number. Returns how many lines follow along the inner axis, itself included. */
static int64_t locate(const sorting *s, int64_t line, const char **in, char **out) {
  int64_t at = line % s->lines, left = s->lines - at, others = line / s->lines;
  *in = (const char *)array_data(s->x) + at * s->next;
  *out = (char *)array_data(s->out) + at * s->out_next;
  for (int k = s->x->rank - 1; k >= 0 && others; k--) {
    if (k == s->axis || k == s->inner) continue;
    int64_t here = others % s->x->shape[k];
    others /= s->x->shape[k];
    *in += here * s->x->strides[k] * s->size;
    *out += here * s->out->strides[k] * s->out_size;
  }
  return left;
}

/* Are lines short enough for insertion, and of a dtype that has it? */
static inline bool inserts(const sorting *s) {
  return s->n <= (s->x->size == s->n ? FEW : FEW_OF_MANY) &&
         (s->dtype == QN_f32 || s->dtype == QN_f64 || s->dtype == QN_i32 || s->dtype == QN_i64);
}
static void insert_lines(const sorting *s, const char *in, char *out, int64_t lines) {
  switch ((int)s->dtype) {
  case QN_f32: sort_few_float(s, in, out, lines); break;
  case QN_f64: sort_few_double(s, in, out, lines); break;
  case QN_i32: sort_few_int32_t(s, in, out, lines); break;
  case QN_i64: sort_few_int64_t(s, in, out, lines); break;
  }
}

/* Are they short enough for ranking? */
static bool ranks(const sorting *s) { return s->n <= (s->size == 8 ? SORT_RANKED_64 : SORT_RANKED_32); }

static bool room_stops(sort_room *r) { return pieces_stop(r->ctx, r->thread); }

/* Prepares a thread's memory for a piece of work. */
static sort_room *room_begin(sort_room *r, cpu_pieces *p, int thread) {
  r->stops = room_stops, r->ctx = p, r->thread = thread, r->stopped = false;
  return r;
}

/* How many lines make a piece of work for so many threads. */
static int64_t lines_each(const sorting *s, int threads) {
  int64_t each = PART / s->n;
  if (threads > 1 && each > s->total / (4 * threads)) each = s->total / (4 * threads);
  if (each < 1) each = 1;
  return s->tiles ? (each + TILE - 1) / TILE * TILE : each;
}

static void lines_piece(cpu_pieces *p, int thread, int64_t piece) {
  const sorting *s = p->ctx;
  int64_t line = piece * s->each, end = s->total - line < s->each ? s->total : line + s->each;
  sort_room *r = s->rooms ? room_begin(room_of(s, thread), p, thread) : NULL;
  while (line < end) {
    const char *in;
    char *out;
    int64_t lines = locate(s, line, &in, &out);
    if (lines > end - line) lines = end - line;
    line += lines;
    if (inserts(s))
      insert_lines(s, in, out, lines);
    else if (ranks(s))
      for (; lines > 0; lines--, in += s->next, out += s->out_next) sort_ranked(s, in, out);
    else if (s->tiles)
      for (int64_t m; lines > 0 && !r->stopped; lines -= m, in += m * s->next, out += m * s->out_next) {
        m = lines < TILE ? lines : TILE;
        sort_tile(s, r, in, out, m);
      }
    else
      for (; lines > 0 && !r->stopped; lines--, in += s->next, out += s->out_next)
        sort_long(s, r, in, s->step, out, s->out_step);
  }
}

/* Sorts all lines, several in each piece of work. */
static bool sort_lines(sorting *s) {
  int threads = cpu_threads(s->vm, s->total * s->n > INT64_MAX / WORTH ? INT64_MAX : s->total * s->n * WORTH);
  s->each = lines_each(s, threads);
  int64_t pieces = (s->total + s->each - 1) / s->each;
  if (threads > pieces) threads = (int)pieces;
  if (!inserts(s) && !ranks(s)) {
    s->room = room_head() + 2 * room_items(s);
    if (s->tiles) s->room += rounded((size_t)(s->n * s->size * TILE)) + rounded((size_t)(s->n * s->out_size * TILE));
    /* together the threads' memory is not larger than what is sorted, about */
    int64_t most = 1 + s->total * s->n * s->size / (int64_t)s->room;
    if (threads > most) threads = (int)most;
    if (!(s->rooms = mem_buffer(s->vm, (size_t)threads * s->room))) return false;
  }
  bool ok = pieces_run(s->vm, threads, pieces, lines_piece, s);
  if (s->rooms) mem_buffer_free(s->vm, s->rooms, (size_t)threads * s->room);
  return ok;
}

/* ---- a huge line --------------------------------------------------------------------------------------------------- */

enum { PLACES = 1 << SORT_DIGIT };

typedef struct huge {
  const sorting *s;
  const char *in;
  char *out;
  char *a, *b; /* items, and items by their highest digit; b may be the result's memory */
  int64_t part, parts;
  unsigned shift;
  sort_seen *seen;          /* by part */
  int64_t (*at)[PLACES];    /* by part and digit: how many items, then where the next one goes */
  int64_t from[PLACES + 1]; /* by digit: where its items begin */
  sort_room *rooms;         /* by thread */
} huge;

static int64_t part_size(const huge *h, int64_t part) {
  int64_t left = h->s->n - part * h->part;
  return left < h->part ? left : h->part;
}
static void items_piece(cpu_pieces *p, int thread, int64_t part) {
  huge *h = p->ctx;
  const sorting *s = h->s;
  int64_t first = part * h->part;
  (void)thread;
  sort_elements e = {.in = h->in + first * s->step,
                     .step = s->step,
                     .n = part_size(h, part),
                     .first = first,
                     .descending = s->descending};
  h->seen[part] = (sort_seen){0};
  s->loops->items[s->dtype](&e, h->in, s->kind, h->a + (size_t)first * sort_item_size(s->kind), &h->seen[part]);
}
static void count_piece(cpu_pieces *p, int thread, int64_t part) {
  huge *h = p->ctx;
  (void)thread;
  memset(h->at[part], 0, sizeof h->at[part]);
  h->s->loops->count[h->s->kind](h->a + (size_t)(part * h->part) * sort_item_size(h->s->kind), part_size(h, part),
                                 h->shift, h->at[part]);
}
static void place_piece(cpu_pieces *p, int thread, int64_t part) {
  huge *h = p->ctx;
  (void)thread;
  h->s->loops->place[h->s->kind](h->a + (size_t)(part * h->part) * sort_item_size(h->s->kind), part_size(h, part),
                                 h->shift, h->at[part], h->b);
}
static void sort_piece(cpu_pieces *p, int thread, int64_t place) {
  huge *h = p->ctx;
  const sorting *s = h->s;
  int64_t from = h->from[place], n = h->from[place + 1] - from;
  if (n == 0) return;
  sort_room *r = room_begin(&h->rooms[thread], p, thread);
  size_t at = (size_t)from * sort_item_size(s->kind);
  const void *sorted = s->loops->sort[s->kind](r, h->b + at, h->a + at, n, s->low);
  if (!r->stopped) store(s, sorted, n, h->out + from * s->out_step, s->out_step);
}

/* Makes places of the counts: the items of a digit lie together, in the order of the parts that they come from. */
static void add_up(huge *h) {
  int64_t sum = 0;
  for (int d = 0; d < PLACES; d++) {
    h->from[d] = sum;
    for (int64_t k = 0; k < h->parts; k++) {
      int64_t count = h->at[k][d];
      h->at[k][d] = sum;
      sum += count;
    }
  }
  h->from[PLACES] = sum;
}

static bool sort_parts(huge *h, int threads) {
  const sorting *s = h->s;
  qn_vm *vm = s->vm;
  if (!pieces_run(vm, threads, h->parts, items_piece, h)) return false;
  sort_seen all = {0};
  for (int64_t k = 0; k < h->parts; k++) {
    all.vary |= h->seen[k].vary;
    all.nans += h->seen[k].nans, all.negative_zeros += h->seen[k].negative_zeros;
  }
  if (all.vary) {
    unsigned high = 64 - (unsigned)__builtin_clzll(all.vary);
    h->shift = s->low + (high > SORT_DIGIT ? high - SORT_DIGIT : 0);
    if (!pieces_run(vm, threads, h->parts, count_piece, h)) return false;
    add_up(h);
    if (!pieces_run(vm, threads, h->parts, place_piece, h) || !pieces_run(vm, threads, PLACES, sort_piece, h))
      return false;
  } else {
    store(s, h->a, s->n, h->out, s->out_step);
  }
  mend(s, &all, h->in, s->step, h->out, s->out_step);
  return true;
}

static bool sort_huge(const sorting *s, const char *in, char *out, int threads) {
  qn_vm *vm = s->vm;
  huge h = {.s = s, .in = in, .out = out};
  h.part = s->n / (4 * (int64_t)threads);
  h.part = h.part < PART / 8 ? PART / 8 : h.part > PART_MOST ? PART_MOST : h.part;
  h.parts = (s->n + h.part - 1) / h.part;
  size_t item = sort_item_size(s->kind), items = rounded((size_t)s->n * item);
  bool in_result = s->out_step == s->out_size && s->out_size == (int64_t)item;
  size_t bytes[] = {items, in_result ? 0 : items, rounded((size_t)h.parts * sizeof *h.at),
                    rounded((size_t)h.parts * sizeof *h.seen), (size_t)threads * sizeof *h.rooms};
  size_t all = bytes[0] + bytes[1] + bytes[2] + bytes[3] + bytes[4];
  char *memory = mem_buffer(vm, all);
  if (!memory) return false;
  h.a = memory;
  h.b = in_result ? out : h.a + bytes[0];
  h.at = (void *)(h.a + bytes[0] + bytes[1]);
  h.seen = (void *)((char *)h.at + bytes[2]);
  h.rooms = (void *)((char *)h.seen + bytes[3]);
  bool ok = sort_parts(&h, threads);
  mem_buffer_free(vm, memory, all);
  return ok;
}

/* Sorts one line after the other, each with all threads. */
static bool sort_huge_lines(const sorting *s, int threads) {
  for (int64_t line = 0; line < s->total; line++) {
    const char *in;
    char *out;
    (void)locate(s, line, &in, &out);
    if (!sort_huge(s, in, out, threads)) return false;
  }
  return true;
}

/* ---- the first few of lines ------------------------------------------------------------------------------------------ */

enum {
  SEEN_AT_ONCE = 1024, /* most items that are made at a time */
  INSERTED_OF =
      16, /* up to so many wanted: the best are kept in order. Else items are collected, sorted and cut when there are */
  COLLECTED = 64,  /* at least so many, */
  KEPT = 4,        /* and so many times the number wanted */
  FEW_OF_LINE = 8, /* a line must have so many times the elements wanted, */
  FEW_OF_PART = 16 /* and a part of a line so many times */
};

/* Finding the first few indices of lines. */
typedef struct choosing {
  sorting s;           /* the result's lines have `first` elements */
  int64_t first;       /* how many are wanted */
  int64_t enough;      /* how many are collected before they are cut */
  int64_t parts, part; /* parts of a line that threads share; elements of one */
  /* Of such a line: where it is, the best of each part (`first` items apart), and how many these are. */
  const char *in;
  char *best;
  int64_t *found;
} choosing;

/* Sorts n items in `a`, with `b` as spare memory, and leaves the first ones wanted in `a`. Returns how many. */
static int64_t keep_first(const choosing *c, sort_room *r, char *a, char *b, int64_t n) {
  const sorting *s = &c->s;
  const void *sorted = s->loops->sort[s->kind](r, a, b, n, s->low);
  if (n > c->first) n = c->first;
  if (sorted != a) memcpy(a, sorted, (size_t)n * sort_item_size(s->kind));
  return n;
}

/* Leaves the items of the first ones wanted of n elements in the thread's memory, at *out, sorted. The elements have the indices from `index`
 * on. Returns how many there are. */
static int64_t choose(const choosing *c, sort_room *r, const char *in, int64_t step, int64_t index, int64_t n,
                      char **out) {
  const sorting *s = &c->s;
  size_t item = sort_item_size(s->kind), all = rounded((size_t)(c->enough + SEEN_AT_ONCE) * item);
  char *a = (char *)r + room_head(), *b = a + all, *seen = b + all;
  int64_t have = 0;
  bool limited = false;
  sort_seen unused = {0};
  *out = a;
  for (int64_t at = 0, m; at < n && !r->stopped; at += m) {
    if (c->first > INSERTED_OF && have >= c->enough) have = keep_first(c, r, a, b, have), limited = true;
    m = c->first <= INSERTED_OF ? SEEN_AT_ONCE
        : limited               ? 2 * at
                                : c->enough - have; /* a limit found among few elements would let too many pass */
    if (m > SEEN_AT_ONCE) m = SEEN_AT_ONCE;
    if (m > n - at) m = n - at;
    if (at / PART != (at + m) / PART && r->stops(r)) r->stopped = true;
    sort_elements e = {.in = in + at * step, .step = step, .n = m, .first = index + at, .descending = s->descending};
    if (c->first <= INSERTED_OF) {
      s->loops->items[s->dtype](&e, e.in, s->kind, seen, &unused);
      have = s->loops->keep[s->kind](a, have, c->first, seen, m);
      continue;
    }
    char *to = a + (size_t)have * item;
    s->loops->items[s->dtype](&e, e.in, s->kind, limited ? seen : to, &unused);
    have += limited ? s->loops->below[s->kind](seen, m, a + (size_t)(c->first - 1) * item, to) : m;
  }
  return c->first <= INSERTED_OF ? have : keep_first(c, r, a, b, have);
}

static void choose_line(const choosing *c, sort_room *r, const char *in, int64_t step, char *out, int64_t out_step) {
  char *items;
  int64_t n = choose(c, r, in, step, 0, c->s.n, &items);
  if (!r->stopped) c->s.loops->indices[c->s.kind](items, n, out, out_step);
}

static void choose_lines_piece(cpu_pieces *p, int thread, int64_t piece) {
  const choosing *c = p->ctx;
  const sorting *s = &c->s;
  int64_t line = piece * s->each, end = s->total - line < s->each ? s->total : line + s->each;
  sort_room *r = room_begin(room_of(s, thread), p, thread);
  char *tile = (char *)r + s->room - rounded((size_t)(s->n * s->size * TILE));
  while (line < end && !r->stopped) {
    const char *in;
    char *out;
    int64_t lines = locate(s, line, &in, &out);
    if (lines > end - line) lines = end - line;
    if (s->tiles && lines > TILE) lines = TILE;
    line += lines;
    if (s->tiles) move_tile(s->size, s->n, lines, tile, s->size, s->n * s->size, in, s->step, s->next);
    for (int64_t l = 0; l < lines && !r->stopped; l++, in += s->next, out += s->out_next)
      choose_line(c, r, s->tiles ? tile + l * s->n * s->size : in, s->tiles ? s->size : s->step, out, s->out_step);
  }
}

static void choose_part_piece(cpu_pieces *p, int thread, int64_t part) {
  const choosing *c = p->ctx;
  int64_t from = part * c->part, n = c->s.n - from < c->part ? c->s.n - from : c->part;
  sort_room *r = room_begin(room_of(&c->s, thread), p, thread);
  char *items;
  c->found[part] = choose(c, r, c->in + from * c->s.step, c->s.step, from, n, &items);
  size_t item = sort_item_size(c->s.kind);
  memcpy(c->best + (size_t)(part * c->first) * item, items, (size_t)c->found[part] * item);
}

/* One line after the other, each with all threads: the best of its parts, then the best of these. */
static bool choose_parts(choosing *c, int threads, sort_room *last) {
  const sorting *s = &c->s;
  size_t item = sort_item_size(s->kind);
  for (int64_t line = 0; line < s->total; line++) {
    char *out;
    (void)locate(s, line, &c->in, &out);
    if (!pieces_run(s->vm, threads, c->parts, choose_part_piece, c)) return false;
    int64_t n = 0;
    for (int64_t k = 0; k < c->parts; n += c->found[k++])
      memmove(c->best + (size_t)n * item, c->best + (size_t)(k * c->first) * item, (size_t)c->found[k] * item);
    last->stopped = false;
    n = keep_first(c, last, c->best, c->best + (size_t)(c->parts * c->first) * item, n);
    s->loops->indices[s->kind](c->best, n, out, s->out_step);
  }
  return true;
}

static bool never_stops(sort_room *r) { return (void)r, false; }

static bool choose_many(choosing *c) {
  sorting *s = &c->s;
  qn_vm *vm = s->vm;
  size_t item = sort_item_size(s->kind);
  int threads = cpu_threads(vm, s->total * s->n);
  c->enough = KEPT * c->first < COLLECTED ? COLLECTED : KEPT * c->first;
  bool parted = s->n > SHARED && threads > 1 && s->total < 4 * threads && c->first <= s->n / (threads * FEW_OF_PART);
  s->tiles = s->tiles && !parted;
  c->parts = parted ? 4 * (int64_t)threads : 1;
  while (c->parts > threads && s->n / c->parts < c->first * FEW_OF_PART) c->parts--;
  c->part = (s->n + c->parts - 1) / c->parts;
  c->parts = (s->n + c->part - 1) / c->part;
  s->each = lines_each(s, threads);
  int64_t pieces = parted ? c->parts : (s->total + s->each - 1) / s->each;
  if (threads > pieces) threads = (int)pieces;
  s->room = room_head() + 2 * rounded((size_t)(c->enough + SEEN_AT_ONCE) * item) + rounded(SEEN_AT_ONCE * item) +
            (s->tiles ? rounded((size_t)(s->n * s->size * TILE)) : 0);
  size_t rooms = (size_t)threads * s->room, best = parted ? rounded((size_t)(2 * c->parts * c->first) * item) : 0;
  size_t all = rooms + best + rounded((size_t)c->parts * sizeof *c->found) + (parted ? sizeof(sort_room) : 0);
  if (!(s->rooms = mem_buffer(vm, all))) return false;
  c->best = s->rooms + rooms;
  c->found = (int64_t *)(void *)(c->best + best);
  sort_room *last = (sort_room *)(void *)((char *)c->found + rounded((size_t)c->parts * sizeof *c->found));
  if (parted) last->stops = never_stops;
  bool ok = parted ? choose_parts(c, threads, last) : pieces_run(vm, threads, pieces, choose_lines_piece, c);
  mem_buffer_free(vm, s->rooms, all);
  return ok;
}

/* ---- arrays -------------------------------------------------------------------------------------------------------- */

/* Describes the lines of x and of the result. */
static sorting sorting_of(qn_vm *vm, const qn_array *x, const qn_array *out, int axis, bool descending, bool indices) {
  int rank = x->rank;
  sorting s;
  s.vm = vm, s.x = x, s.out = out, s.dtype = (qn_dtype)x->dtype, s.descending = descending, s.indices = indices;
  s.size = (int64_t)dtype_size((qn_dtype)x->dtype), s.out_size = indices ? (int64_t)sizeof(int64_t) : s.size;
  s.axis = axis, s.inner = -1, s.rooms = NULL;
  s.n = 1, s.step = s.out_step = 0;
  if (rank > 0) s.n = x->shape[axis], s.step = x->strides[axis] * s.size, s.out_step = out->strides[axis] * s.out_size;
  s.lines = 1, s.next = s.out_next = 0;
  if (rank > 1) {
    s.inner = rank - 1 == axis ? rank - 2 : rank - 1;
    s.lines = x->shape[s.inner], s.next = x->strides[s.inner] * s.size, s.out_next = out->strides[s.inner] * s.out_size;
  }
  return s;
}

/* Completes it for an array that is not empty: loops, number of lines, kind of items. */
static void sorting_begin(sorting *s) {
  s->loops = cpu_loops(s->vm)->sorts;
  s->total = s->x->size / s->n;
  bool narrow = s->size <= 4;
  s->kind = s->indices ? narrow && s->n <= UINT32_MAX ? SORT_64 : SORT_PAIR : narrow ? SORT_32 : SORT_64;
  s->low = s->indices && s->kind == SORT_64 ? 32 : 0;
  int64_t apart = s->step < 0 ? -s->step : s->step;
  s->tiles = s->lines > 1 && apart > s->size && s->next == s->size && !inserts(s) && !ranks(s);
}

static __attribute__((noinline)) bool sort_many(sorting *s) {
  sorting_begin(s);
  s->tiles = s->tiles && s->out_next == s->out_size;
  if (s->n > SHARED) {
    int threads = cpu_threads(s->vm, s->n);
    if (s->n > HUGE_LINE || (threads > 1 && s->total < 4 * threads)) return sort_huge_lines(s, threads);
  }
  return sort_lines(s);
}

qn_array *sort_along(qn_vm *vm, const qn_array *x, int axis, bool descending, bool indices) {
  qn_array *out = array_new(vm, indices ? DTYPE_INDEX : (qn_dtype)x->dtype, x->rank, x->shape);
  if (!out || x->size == 0) return out;
  sorting s = sorting_of(vm, x, out, axis, descending, indices);
  if (x->rank < 3 && x->size <= PART / 8 && inserts(&s)) {
    insert_lines(&s, array_data(x), array_data(out), s.lines);
    return out;
  }
  if (sort_many(&s)) return out;
  value_release(vm, value_obj(TAG_ARRAY, out));
  return NULL;
}

qn_array *sort_first(qn_vm *vm, const qn_array *x, int axis, bool descending, int64_t k) {
  int64_t shape[ARRAY_MAX_RANK];
  memcpy(shape, x->shape, x->rank * sizeof *shape);
  shape[axis] = k;
  qn_array *out = array_new(vm, DTYPE_INDEX, x->rank, shape);
  if (!out || out->size == 0) return out;
  choosing c = {.s = sorting_of(vm, x, out, axis, descending, true), .first = k};
  bool ok = false;
  if (k <= c.s.n / FEW_OF_LINE && !inserts(&c.s) && !ranks(&c.s)) {
    sorting_begin(&c.s);
    ok = choose_many(&c);
  } else {
    qn_array *all = sort_along(vm, x, axis, descending, true);
    qn_array *part = all ? array_view(vm, all, DTYPE_INDEX, all->rank, shape, all->strides, 0) : NULL;
    ok = part && array_copy_watched(vm, out, part);
    if (part) value_release(vm, value_obj(TAG_ARRAY, part));
    if (all) value_release(vm, value_obj(TAG_ARRAY, all));
  }
  if (ok) return out;
  value_release(vm, value_obj(TAG_ARRAY, out));
  return NULL;
}
