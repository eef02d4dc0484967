/* Programs over blocks, golden and random, as cases for executors (l_case.h): what they must give is what the reference evaluator makes of
 * the blocks; what executors get is l_without_blocks. */
#ifndef TESTS_L_BLOCKS_CASE_H
#define TESTS_L_BLOCKS_CASE_H

#include "tests/unit/kernel_text.h"
#include "tests/unit/l_blocks_random.h"
#include "tests/unit/l_case.h"

/* Golden programs with sizes that they are for: whole tiles, tails, and almost nothing. */
typedef struct block_golden {
  const char *name;
  int64_t ints[3], elements;
} block_golden;
static const block_golden block_goldens[] = {
    {"row_softmax", {3, 200}, 1024},
    {"row_softmax", {9, 256}, 4096},
    {"row_softmax", {2, 1}, 16},
    {"packed_product", {13, 37, 21}, 1024},
    {"packed_product", {6, 16, 64}, 1024},
    {"packed_product", {1, 1, 1}, 16},
    {"norm_in_packing", {6, 40, 11}, 1024},
    {"norm_in_packing", {4, 64, 33}, 4096},
    {"norm_in_packing", {1, 8, 1}, 16},
    {"guarded_convolution", {29, 3}, 4096},
    {"guarded_convolution", {3, 1}, 64},
    {"fragments", {32}, 1024},
    {"fragments", {16}, 512},
    {"flash_attention", {21, 45}, 1024},
    {"flash_attention", {16, 16}, 512},
    {"flash_attention", {1, 1}, 64},
    {"column_sums", {70, 300}, 32768},
    {"column_sums", {1, 3}, 16},
};
enum { BLOCK_GOLDENS = sizeof block_goldens / sizeof *block_goldens };

/* Takes over the program. */
static void block_case(l_case *c, l_program *p, rnd_info info, uint64_t seed) {
  char why[256] = "no memory";
  case_of(c, p, info, seed);
  l_program *lowered = l_without_blocks(p);
  if (!lowered || !l_verify(lowered, why, sizeof why) || lowered->nblocks) {
    case_show(c);
    if (lowered) {
      c->p = lowered;
      case_show(c);
    }
    case_need(false, seed, why);
  }
  l_free(p);
  c->p = lowered;
}

static inline void block_golden_open(l_case *c, const block_golden *g, uint64_t seed) {
  char path[300], why[256], *text = calloc(1 << 16, 1);
  snprintf(path, sizeof path, "%s/golden/blocks/%s.l", TESTS_DIR, g->name);
  FILE *f = fopen(path, "rb");
  case_need(f && text && fread(text, 1, (1 << 16) - 1, f) > 0, seed, path);
  fclose(f);
  l_program *p = l_parse(text, why, sizeof why);
  case_need(p != NULL, seed, why);
  free(text);
  rnd_info info = {.elements = g->elements};
  memcpy(info.ints, g->ints, sizeof g->ints);
  block_case(c, p, info, seed);
}

static inline void block_random_open(l_case *c, uint64_t seed) {
  rnd_info info;
  l_program *p = block_random_program(seed, &info);
  block_case(c, p, info, seed);
}

#endif
