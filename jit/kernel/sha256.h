/* SHA-256 (FIPS 180-4), for names and checks of cached objects. */
#ifndef JIT_KERNEL_SHA256_H
#define JIT_KERNEL_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct sha256 {
  uint32_t h[8];
  uint64_t bytes;
  uint8_t block[64];
} sha256;
void sha256_init(sha256 *s);
void sha256_add(sha256 *s, const void *data, size_t n);
void sha256_end(sha256 *s, uint8_t out[32]);

#endif
