/* Which random programs or graphs a test makes: its own, or those that QN_TEST_FIRST and QN_TEST_COUNT ask for (tests/soak.py). */
#ifndef TESTS_SEEDS_H
#define TESTS_SEEDS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct seeds {
  uint64_t first, end;
  bool own; /* those of the test itself: what it says about how many were of use holds */
} seeds;

static inline seeds seeds_of(uint64_t first, uint64_t count) {
  const char *from = getenv("QN_TEST_FIRST"), *n = getenv("QN_TEST_COUNT");
  if (from) first = strtoull(from, NULL, 10);
  if (n) count = strtoull(n, NULL, 10);
  return (seeds){.first = first, .end = first + count, .own = !from && !n};
}

#endif
