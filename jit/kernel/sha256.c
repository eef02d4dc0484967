/* SHA-256 (FIPS 180-4). The round constants are the first 32 bits of the fractional parts of the cube roots of the first 64
 * primes; they are computed at the first use of a context rather than listed: exact integer cube roots, no table to mistype. */
#include "jit/kernel/sha256.h"

#include <stdbool.h>
#include <string.h>

static uint32_t ror(uint32_t x, int n) { return x >> n | x << (32 - n); }

/* floor(frac(p ** (1 / root)) * 2**32) for root 2 or 3, by bisection on 128-bit integers. */
static uint32_t root_fraction(uint32_t p, int root) {
  uint64_t lo = 0, hi = (uint64_t)1 << 37;
  /* the largest x with x**root <= p * 2**(32 * root) */
  while (hi - lo > 1) {
    uint64_t mid = lo + (hi - lo) / 2;
    unsigned __int128 square = (unsigned __int128)mid * mid;
    bool small;
    if (root == 2) {
      small = square <= (unsigned __int128)p << 64;
    } else { /* mid**3 <= p * 2**96, compared after dividing both by 2**32 exactly enough: split the product */
      unsigned __int128 high = (square >> 32) * mid, low = (square & 0xffffffffu) * mid;
      unsigned __int128 cube = high + (low >> 32); /* floor(mid**3 / 2**32) */
      small = cube < (unsigned __int128)p << 64;
    }
    if (small)
      lo = mid;
    else
      hi = mid;
  }
  return (uint32_t)lo;
}

static void constants(uint32_t k[64], uint32_t h[8]) {
  int n = 0;
  for (uint32_t p = 2; n < 64; p++) {
    bool prime = true;
    for (uint32_t d = 2; d * d <= p && prime; d++) prime = p % d != 0;
    if (!prime) continue;
    if (n < 8 && h) h[n] = root_fraction(p, 2);
    if (k) k[n] = root_fraction(p, 3);
    n++;
    if (!k && n == 8) return;
  }
}

static void rounds(sha256 *s, const uint32_t k[64], const uint8_t *block) {
  uint32_t w[64];
  for (int i = 0; i < 16; i++)
    w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
           block[4 * i + 3];
  for (int i = 16; i < 64; i++) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (ror(a, 7) ^ ror(a, 18) ^ a >> 3) + w[i - 7] + (ror(b, 17) ^ ror(b, 19) ^ b >> 10);
  }
  uint32_t v[8];
  memcpy(v, s->h, sizeof v);
  for (int i = 0; i < 64; i++) {
    uint32_t e = v[4], a = v[0];
    uint32_t t1 = v[7] + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
    uint32_t t2 = (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += t1;
    v[0] = t1 + t2;
  }
  for (int i = 0; i < 8; i++) s->h[i] += v[i];
}

void sha256_init(sha256 *s) {
  memset(s, 0, sizeof *s);
  constants(NULL, s->h);
}

void sha256_add(sha256 *s, const void *data, size_t n) {
  const uint8_t *p = data;
  uint32_t k[64];
  constants(k, NULL);
  while (n) {
    size_t at = s->bytes % 64, take = 64 - at < n ? 64 - at : n;
    memcpy(s->block + at, p, take);
    s->bytes += take;
    p += take;
    n -= take;
    if (s->bytes % 64 == 0) rounds(s, k, s->block);
  }
}

void sha256_end(sha256 *s, uint8_t out[32]) {
  uint64_t bits = s->bytes * 8;
  uint8_t pad[72] = {0x80};
  size_t n = (s->bytes % 64 < 56 ? 56 : 120) - s->bytes % 64;
  for (int i = 0; i < 8; i++) pad[n + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
  sha256_add(s, pad, n + 8);
  for (int i = 0; i < 8; i++)
    for (int b = 0; b < 4; b++) out[4 * i + b] = (uint8_t)(s->h[i] >> (24 - 8 * b));
}
