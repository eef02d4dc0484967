/* A binary heap in an array of the caller's: the item with the smallest key is on top, among equal keys the one with the smallest `tie`. */
#ifndef JIT_KERNEL_HEAP_H
#define JIT_KERNEL_HEAP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct heap_item {
  int64_t key;
  uint64_t tie;
  uint32_t what; /* the caller's */
} heap_item;

static inline bool heap_before(const heap_item *x, const heap_item *y) {
  return x->key != y->key ? x->key < y->key : x->tie < y->tie;
}

/* Adds x to a heap of n items; the array has room for it. */
static inline void heap_add(heap_item *heap, uint32_t n, heap_item x) {
  for (; n && heap_before(&x, &heap[(n - 1) / 2]); n = (n - 1) / 2) heap[n] = heap[(n - 1) / 2];
  heap[n] = x;
}

/* Replaces the top of a heap of n items with x. */
static inline void heap_replace(heap_item *heap, uint32_t n, heap_item x) {
  uint32_t i = 0;
  for (uint32_t k; (k = 2 * i + 1) < n; i = k) {
    if (k + 1 < n && heap_before(&heap[k + 1], &heap[k])) k++;
    if (!heap_before(&heap[k], &x)) break;
    heap[i] = heap[k];
  }
  heap[i] = x;
}

/* Takes the top of a heap of *n items, at least one. */
static inline heap_item heap_take(heap_item *heap, uint32_t *n) {
  heap_item top = heap[0], last = heap[--*n];
  heap_replace(heap, *n, last);
  return top;
}

#endif
