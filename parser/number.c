/* Decimal text to double, correctly rounded.
 *
 * Up to 15 digits with a power of ten up to 10**22 are two exact doubles and one rounding operation. Everything else is
 * the quotient N / D of two big integers (digits times or over a power of ten), scaled so that it has at least 55 bits;
 * long division gives these bits and whether anything remains, which is all that rounding needs. Digits beyond the 800th can
 * decide nothing but "is there more?": a tie between two doubles has at most 767 digits.
 */
#include "parser/number.h"

#include <stdint.h>
#include <string.h>

enum { DIGITS_MAX = 800, LIMBS = 160 }; /* 10**1200 has 3,987 bits; 160 limbs are 5,120 */

typedef struct bignum {
  int n; /* limbs in use; the top one is not 0 */
  uint32_t limb[LIMBS];
} bignum;

static void big_muladd(bignum *b, uint32_t factor, uint32_t addend) {
  uint64_t carry = addend;
  for (int i = 0; i < b->n; i++) {
    carry += (uint64_t)b->limb[i] * factor;
    b->limb[i] = (uint32_t)carry;
    carry >>= 32;
  }
  if (carry) b->limb[b->n++] = (uint32_t)carry;
}

static void big_pow10(bignum *b, int exponent) {
  for (; exponent >= 9; exponent -= 9) big_muladd(b, 1000000000u, 0);
  for (; exponent > 0; exponent--) big_muladd(b, 10, 0);
}

static int big_bits(const bignum *b) { return b->n ? b->n * 32 - __builtin_clz(b->limb[b->n - 1]) : 0; }

static void big_shift(bignum *b, int bits) {
  int limbs = bits / 32, rest = bits % 32;
  if (!b->n) return;
  memmove(b->limb + limbs, b->limb, (size_t)b->n * sizeof *b->limb);
  memset(b->limb, 0, (size_t)limbs * sizeof *b->limb);
  b->n += limbs;
  if (rest) big_muladd(b, 1u << rest, 0);
}

static int big_compare(const bignum *a, const bignum *b) {
  if (a->n != b->n) return a->n < b->n ? -1 : 1;
  for (int i = a->n - 1; i >= 0; i--)
    if (a->limb[i] != b->limb[i]) return a->limb[i] < b->limb[i] ? -1 : 1;
  return 0;
}

/* a -= b, where a >= b */
static void big_subtract(bignum *a, const bignum *b) {
  uint64_t borrow = 0;
  for (int i = 0; i < a->n; i++) {
    uint64_t d = (uint64_t)a->limb[i] - (i < b->n ? b->limb[i] : 0) - borrow;
    a->limb[i] = (uint32_t)d;
    borrow = d >> 63;
  }
  while (a->n && !a->limb[a->n - 1]) a->n--;
}

/* q * 2**k, with more below if `sticky`, as a double; q has 54 to 63 bits. */
static double round_to_double(uint64_t q, int k, bool sticky) {
  int bits = 64 - __builtin_clzll(q);
  int drop = bits - 53;
  if (k + drop < -1074) drop = -1074 - k; /* subnormal: fewer bits */
  if (drop > bits + 1) return 0.0;
  uint64_t mantissa = drop >= 64 ? 0 : q >> drop, low = drop >= 64 ? q : q & (((uint64_t)1 << drop) - 1);
  uint64_t half = (uint64_t)1 << (drop - 1);
  if (low > half || (low == half && (sticky || (mantissa & 1)))) mantissa++;
  int exponent = k + drop; /* value = mantissa * 2**exponent */
  if (mantissa >> 53) mantissa >>= 1, exponent++;
  if (exponent > 971) return __builtin_inf();
  uint64_t word = mantissa;
  if (mantissa >> 52) word = (mantissa & (((uint64_t)1 << 52) - 1)) | (uint64_t)(exponent + 1075) << 52;
  double result;
  memcpy(&result, &word, sizeof result);
  return result;
}

/* digits * 10**exponent */
static double scale(const uint8_t *digits, int n, int exponent) {
  if (n + exponent > 310) return __builtin_inf();
  if (n + exponent < -326) return 0.0;
  bignum num = {0}, den = {0};
  for (int i = 0; i < n; i++) {
    if (num.n)
      big_muladd(&num, 10, digits[i]);
    else
      num.limb[0] = digits[i], num.n = digits[i] != 0;
  }
  den.limb[0] = den.n = 1;
  big_pow10(exponent > 0 ? &num : &den, exponent > 0 ? exponent : -exponent);
  int k = big_bits(&num) - big_bits(&den) - 57; /* the quotient of num / 2**k gets 57 or 58 bits */
  big_shift(k < 0 ? &num : &den, k < 0 ? -k : k);
  uint64_t q = 0;
  big_shift(&den, 58);
  for (int i = 0; i <= 58; i++) { /* restoring division: each step compares with half the previous divisor */
    q <<= 1;
    if (big_compare(&num, &den) >= 0) big_subtract(&num, &den), q |= 1;
    for (int j = 0; j < den.n; j++) den.limb[j] = den.limb[j] >> 1 | (j + 1 < den.n ? den.limb[j + 1] << 31 : 0);
    while (den.n && !den.limb[den.n - 1]) den.n--;
  }
  return round_to_double(q, k, num.n != 0);
}

static bool digit(char c) { return c >= '0' && c <= '9'; }

bool number_parse_float(const char *text, size_t len, double *out) {
  static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  const char *at = text, *end = text + len;
  bool negative = at < end && *at == '-';
  if (at < end && (*at == '-' || *at == '+')) at++;
  uint8_t digits[DIGITS_MAX + 1];
  int n = 0;
  int64_t exponent = 0;
  bool more = false, point = false;
  if (at == end || !digit(*at)) return false;
  for (; at < end; at++) {
    if (*at == '.' && !point) {
      point = true;
      if (at + 1 == end || !digit(at[1])) return false;
      continue;
    }
    if (!digit(*at)) break;
    if (point) exponent--;
    if (n == 0 && *at == '0') continue;
    if (n < DIGITS_MAX)
      digits[n++] = (uint8_t)(*at - '0');
    else
      exponent++, more |= *at != '0';
  }
  if (at < end) {
    if (*at != 'e' && *at != 'E') return false;
    at++;
    bool minus = at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) at++;
    if (at == end) return false;
    int64_t e = 0;
    for (; at < end; at++) {
      if (!digit(*at)) return false;
      if (e < INT64_C(1) << 40) e = e * 10 + (*at - '0');
    }
    exponent += minus ? -e : e;
  }
  if (more) digits[n++] = 1, exponent--;
  if (exponent > 100000) exponent = 100000;
  if (exponent < -100000) exponent = -100000;
  double value;
  if (n == 0) {
    value = 0.0;
  } else if (n <= 15 && exponent >= -22 && exponent <= 22) {
    int64_t m = 0;
    for (int i = 0; i < n; i++) m = m * 10 + digits[i];
    value = exponent < 0 ? (double)m / tens[-exponent] : (double)m * tens[exponent];
  } else {
    value = scale(digits, n, (int)exponent);
  }
  *out = negative ? -value : value;
  return true;
}
