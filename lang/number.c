/* Decimal text of floats and back, exact and independent of the locale.
 *
 * Shortest text (text_float). A double x = c * 2^q owns the interval of reals that round to it. With k chosen so that a
 * unit of 10^k fits once or a few times into that interval, at most two multiples of 10^(k+1) and of 10^k need testing.
 * The bounds, scaled by 4 * 10^-k, are computed as integers from a 128-bit power of ten, with the lost part folded into
 * the lowest bit, which suffices to compare them (R. Giulietti, "The Schubfach way to render doubles"). The narrower
 * dtypes use the same code with their own c and q.
 *
 * Reading (float_parse). The first 19 digits times a 128-bit power of ten give a lower and an upper bound of the value; if
 * both round to one double, that is it (nearly always). Otherwise the decimal is compared exactly, in big integers,
 * with the midpoint between the two doubles in question.
 *
 * Fixed precision (text_decimal). c * 2^q is written out exactly (c * 5^-q, shifted by decimal places) and rounded half
 * to even in decimal.
 */
#include <string.h>

#include "lang/internal.h"

typedef unsigned __int128 u128;

enum { POW10_MIN = -342, POW10_MAX = 324 };
static const struct power {
  uint64_t high, low;
} powers[] = {
#define POW10(e, high, low) [e - POW10_MIN] = {high, low},
#include "lang/pow10.def"
#undef POW10
};
_Static_assert(sizeof powers / sizeof *powers == POW10_MAX - POW10_MIN + 1, "pow10.def has a row for every exponent");

/* floor(log2(10^e)), exact for |e| <= 1,233 */
static int log2_pow10(int e) { return (e * 1741647) >> 19; }
/* floor(log10(2^q)), exact for |q| <= 1,500; with `closer` of 3/4 * 2^q */
static int log10_pow2(int q, bool closer) { return (q * 1262611 - (closer ? 524031 : 0)) >> 22; }

/* The parts of a finite positive double: x = c * 2^q. */
static uint64_t double_parts(double x, int *q) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  int e = (int)(bits >> 52 & 0x7ff);
  uint64_t c = bits & 0xfffffffffffff;
  if (e) c |= (uint64_t)1 << 52;
  *q = (e ? e : 1) - 1075;
  return c;
}

/* ---- shortest text ------------------------------------------------------------------------------------------- */

/* floor(g * x / 2^128), the lowest bit set if anything (beyond the error of g) was cut off. */
static uint64_t scale_odd(struct power g, uint64_t x) {
  uint64_t low = (uint64_t)((u128)g.low * x >> 64);
  u128 sum = (u128)g.high * x + low;
  return (uint64_t)(sum >> 64) | ((uint64_t)sum > 1);
}

/* The shortest digits of c * 2^q, as an integer; the value is digits * 10^*exponent. `least` says that c is the smallest
 * significand of its binade, whose lower neighbour is only half as far away. */
static uint64_t shortest(uint64_t c, int q, bool least, int *exponent) {
  int k = log10_pow2(q, least);
  struct power g = powers[-k - POW10_MIN];
  if (!++g.low) g.high++; /* the table rounds down, the comparison below wants an upper bound */
  int shift = q + log2_pow10(-k) + 1;
  bool even = !(c & 1); /* ties go to even: then the interval contains its ends */
  uint64_t lower = scale_odd(g, (4 * c - 2 + least) << shift) + !even;
  uint64_t value = scale_odd(g, 4 * c << shift);
  uint64_t upper = scale_odd(g, (4 * c + 2) << shift) - !even;
  uint64_t s = value / 4;
  if (s >= 10) {
    uint64_t tens = s / 10;
    bool below = lower <= 40 * tens, above = 40 * tens + 40 <= upper;
    if (below != above) {
      *exponent = k + 1;
      return tens + above;
    }
  }
  *exponent = k;
  bool below = lower <= 4 * s, above = 4 * s + 4 <= upper;
  if (below != above) return s + above;
  uint64_t middle = 4 * s + 2;
  return s + (value > middle || (value == middle && (s & 1)));
}

/* Writes digits * 10^exponent the way the language writes floats. */
static void text_digits(text_buf *t, uint64_t digits, int exponent) {
  while (digits && digits % 10 == 0) {
    digits /= 10;
    exponent++;
  }
  char d[20];
  int n = 0, start = sizeof d;
  while (digits) {
    d[--start] = (char)('0' + digits % 10);
    digits /= 10;
    n++;
  }
  const char *s = d + start;
  int point = n + exponent; /* digits before the decimal point */
  if (point > 16 || point < -3) {
    text_add(t, s, 1);
    if (n > 1) {
      text_add(t, ".", 1);
      text_add(t, s + 1, (size_t)n - 1);
    }
    text_add(t, "e", 1);
    text_int(t, point - 1);
  } else if (point <= 0) {
    text_add(t, "0.", 2);
    text_repeat(t, "0", -point);
    text_add(t, s, (size_t)n);
  } else if (point >= n) {
    text_add(t, s, (size_t)n);
    text_repeat(t, "0", point - n);
    text_add(t, ".0", 2);
  } else {
    text_add(t, s, (size_t)point);
    text_add(t, ".", 1);
    text_add(t, s + point, (size_t)(n - point));
  }
}

/* Writes nan, inf or the sign of *x, which are the same in all forms, and makes *x positive. True if nothing is left to write. */
static bool text_special(text_buf *t, double *x) {
  if (*x != *x) {
    text_adds(t, "nan");
    return true;
  }
  if (__builtin_signbit(*x)) {
    text_add(t, "-", 1);
    *x = -*x;
  }
  if (*x > 1.7976931348623157e308) {
    text_adds(t, "inf");
    return true;
  }
  return false;
}

void text_float(text_buf *t, double x, qn_dtype dtype) {
  x = dtype_round(dtype, x);
  if (text_special(t, &x)) return;
  if (x == 0) {
    text_adds(t, "0.0");
    return;
  }
  const dtype_row *p = &dtype_rows[dtype];
  int wide, exponent;
  uint64_t c = double_parts(x, &wide);
  int q = wide + 53 - p->digits > p->least ? wide + 53 - p->digits : p->least;
  c >>= q - wide;
  bool least = c == (uint64_t)1 << (p->digits - 1) && q > p->least;
  uint64_t digits = shortest(c, q, least, &exponent);
  text_digits(t, digits, exponent);
}

/* ---- big integers -------------------------------------------------------------------------------------------- */

/* Little-endian words. 5,120 bits hold every product that occurs: 773 decimal digits (2,568 bits) times 2^1075, and
 * 10^1118 (3,715 bits) times a significand. */
enum { BIG_WORDS = 160 };
typedef struct big {
  int n;
  uint32_t w[BIG_WORDS];
} big;

static void big_mul_add(big *b, uint32_t m, uint32_t add) {
  uint64_t carry = add;
  for (int i = 0; i < b->n; i++) {
    carry += (uint64_t)b->w[i] * m;
    b->w[i] = (uint32_t)carry;
    carry >>= 32;
  }
  if (carry) b->w[b->n++] = (uint32_t)carry;
}

static void big_mul_pow5(big *b, int e) {
  for (; e >= 13; e -= 13) big_mul_add(b, 1220703125, 0);
  uint32_t m = 1;
  while (e-- > 0) m *= 5;
  big_mul_add(b, m, 0);
}

static void big_shift(big *b, int bits) {
  if (!b->n) return;
  int words = bits / 32;
  memmove(b->w + words, b->w, (size_t)b->n * 4);
  memset(b->w, 0, (size_t)words * 4);
  b->n += words;
  big_mul_add(b, (uint32_t)1 << bits % 32, 0);
}

static void big_set(big *b, uint64_t x) {
  b->n = 0;
  for (; x; x >>= 32) b->w[b->n++] = (uint32_t)x;
}

static int big_compare(const big *a, const big *b) {
  if (a->n != b->n) return a->n < b->n ? -1 : 1;
  for (int i = a->n - 1; i >= 0; i--)
    if (a->w[i] != b->w[i]) return a->w[i] < b->w[i] ? -1 : 1;
  return 0;
}

/* Divides by 10^9 and returns the remainder. */
static uint32_t big_div_1e9(big *b) {
  uint64_t rem = 0;
  for (int i = b->n - 1; i >= 0; i--) {
    rem = rem << 32 | b->w[i];
    b->w[i] = (uint32_t)(rem / 1000000000);
    rem %= 1000000000;
  }
  while (b->n && !b->w[b->n - 1]) b->n--;
  return (uint32_t)rem;
}

/* ---- fixed precision ----------------------------------------------------------------------------------------- */

enum { EXACT_MAX = 1088 }; /* digits of an exact double: at most 767 significant ones, 309 before the point */

/* The exact decimal digits of x > 0, without leading zeros; x = 0.d0d1d2... * 10^point. */
static int exact_digits(double x, char digits[EXACT_MAX], int *point) {
  int q;
  uint64_t c = double_parts(x, &q);
  int zeros = __builtin_ctzll(c);
  c >>= zeros;
  q += zeros;
  big b;
  big_set(&b, c);
  if (q >= 0)
    big_shift(&b, q);
  else
    big_mul_pow5(&b, -q);
  char reversed[EXACT_MAX];
  int n = 0;
  while (b.n) {
    uint32_t part = big_div_1e9(&b);
    for (int i = 0; i < 9; i++, part /= 10) reversed[n++] = (char)('0' + part % 10);
  }
  while (n && reversed[n - 1] == '0') n--;
  for (int i = 0; i < n; i++) digits[i] = reversed[n - 1 - i];
  *point = q >= 0 ? n : n + q;
  return n;
}

/* Rounds to the first `keep` digits, half to even; keep may be 0 or negative. Returns the number of digits left. */
static int round_digits(char *digits, int n, int keep, int *point) {
  if (keep >= n) return n;
  if (keep < 0) return 0;
  bool up = digits[keep] > '5';
  if (digits[keep] == '5') {
    for (int i = keep + 1; i < n && !up; i++) up = digits[i] != '0';
    if (!up) up = keep > 0 && (digits[keep - 1] - '0') % 2 == 1;
  }
  n = keep;
  if (!up) return n;
  while (n > 0 && digits[n - 1] == '9') n--;
  if (n == 0) {
    digits[0] = '1';
    ++*point;
    return 1;
  }
  digits[n - 1]++;
  return n;
}

/* Appends `count` digits from position `from` on, with zeros where there are no digits. */
static void text_places(text_buf *t, const char *digits, int n, int from, int count) {
  for (; count > 0 && from < 0; from++, count--) text_add(t, "0", 1);
  int have = n - from;
  if (have > count) have = count;
  if (have > 0)
    text_add(t, digits + from, (size_t)have);
  else
    have = 0;
  text_repeat(t, "0", count - have);
}

void text_decimal(text_buf *t, double x, char style, int precision) {
  if (text_special(t, &x)) return;
  char digits[EXACT_MAX];
  int point = 1, n = x == 0 ? 0 : exact_digits(x, digits, &point);
  if (precision < 0) precision = 6;
  bool trim = style == 'g';
  if (style == 'g') {
    if (precision == 0) precision = 1;
    n = round_digits(digits, n, precision, &point);
    style = point - 1 < -4 || point - 1 >= precision ? 'e' : 'f';
    while (n && digits[n - 1] == '0') n--;
    precision = style == 'e' ? n - 1 : n - point;
    if (precision < 0) precision = 0;
  }
  if (style == 'e') {
    n = round_digits(digits, n, precision + 1, &point);
    text_places(t, digits, n, 0, 1);
    if (precision) text_add(t, ".", 1);
    text_places(t, digits, n, 1, precision);
    int e = n ? point - 1 : 0;
    text_addf(t, "e%c%02d", e < 0 ? '-' : '+', e < 0 ? -e : e);
    return;
  }
  if (!trim) n = round_digits(digits, n, point + precision, &point);
  if (point <= 0 || n == 0)
    text_add(t, "0", 1);
  else
    text_places(t, digits, n, 0, point);
  if (precision) text_add(t, ".", 1);
  if (n)
    text_places(t, digits, n, point, precision);
  else
    text_repeat(t, "0", precision);
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

enum { READ_DIGITS = 772 }; /* the midpoint of two doubles has at most 768 significant digits */

/* A decimal: 0.d0d1... * 10^point; digits beyond READ_DIGITS are folded into one last digit. */
typedef struct decimal {
  int n;
  int64_t point;
  char digits[READ_DIGITS + 1];
} decimal;

/* (hi * 2^64 + mid) * 2^e, or a little more if `sticky`, rounded to the nearest double, ties to even; hi > 0. */
static double round_to_double(uint64_t hi, uint64_t mid, bool sticky, int e) {
  int lead = __builtin_clzll(hi);
  u128 m = ((u128)hi << 64 | mid) << lead; /* top bit set */
  e -= lead;
  int top = e + 127; /* exponent of the top bit */
  if (top > 1023) return __builtin_inf();
  int keep = top >= -1022 ? 53 : 53 - (-1022 - top); /* bits that the double has */
  if (keep < 0) return 0.0;
  int drop = 128 - keep;
  uint64_t kept = drop == 128 ? 0 : (uint64_t)(m >> drop);
  u128 rest = drop == 128 ? m : m & (((u128)1 << drop) - 1);
  u128 half = (u128)1 << (drop - 1);
  if (rest > half || (rest == half && (sticky || (kept & 1)))) kept++;
  /* `kept` may have carried into the next binade; adding it to the exponent field does the right thing. */
  uint64_t bits = top >= -1022 ? ((uint64_t)(top + 1023) << 52) + (kept - ((uint64_t)1 << 52)) : kept;
  double x;
  memcpy(&x, &bits, 8);
  return x;
}

/* The product of w > 0 and a 128-bit power of ten, rounded to a double. If not `exact`, a product that is a little larger is rounded. */
static double scaled(uint64_t w, struct power g, int e10, bool exact) {
  int lead = __builtin_clzll(w);
  w <<= lead;
  u128 low = (u128)w * g.low, high = (u128)w * g.high + (uint64_t)(low >> 64);
  return round_to_double((uint64_t)(high >> 64), (uint64_t)high, (uint64_t)low != 0 || !exact,
                         log2_pow10(e10) - 127 + 64 - lead);
}

/* The sign of the decimal minus the midpoint between x and the next double above. */
static int compare_midpoint(const decimal *d, double x) {
  int q;
  uint64_t c = double_parts(x, &q);
  big a, b;
  a.n = 0;
  for (int i = 0; i < d->n; i++) big_mul_add(&a, 10, (uint32_t)(d->digits[i] - '0'));
  int e10 = (int)(d->point - d->n);
  big_set(&b, 2 * c + 1);
  int e2 = q - 1; /* midpoint = b * 2^e2; decimal = a * 10^e10 */
  if (e10 >= 0)
    big_mul_pow5(&a, e10);
  else
    big_mul_pow5(&b, -e10);
  if (e10 > e2)
    big_shift(&a, e10 - e2);
  else
    big_shift(&b, e2 - e10);
  return big_compare(&a, &b);
}

static double next_up(double x) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  bits++;
  memcpy(&x, &bits, 8);
  return x;
}

static double decimal_to_double(const decimal *d) {
  if (d->n == 0 || d->point < -330) return 0.0;
  if (d->point > 310) return __builtin_inf();
  uint64_t w = 0;
  int used = d->n < 19 ? d->n : 19;
  for (int i = 0; i < used; i++) w = w * 10 + (uint64_t)(d->digits[i] - '0');
  int e10 = (int)d->point - used;
  bool all = used == d->n;
  if (all && w < (uint64_t)1 << 53 && e10 >= -22 && e10 <= 22) {
    /* Both factors are exact, so one rounding is right. */
    static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                  1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    return e10 < 0 ? (double)w / tens[-e10] : (double)w * tens[e10];
  }
  if (e10 < POW10_MIN) return 0.0; /* below 10^19 * 10^-343, less than half the smallest double */
  struct power g = powers[e10 - POW10_MIN];
  bool exact = e10 >= 0 && e10 <= 55;
  /* Bounds: w or w + 1 (digits left out), g or g + 1 (the table rounds down). */
  double low = scaled(w, g, e10, exact && all);
  if (exact && all) return low;
  if (!exact && !++g.low) g.high++;
  double high = scaled(w + !all, g, e10, true);
  if (low == high) return low;
  /* The bounds are neighbours: two roundings of intervals far narrower than a double's. */
  int sign = compare_midpoint(d, low);
  if (sign > 0) return next_up(low);
  if (sign < 0) return low;
  uint64_t bits;
  memcpy(&bits, &low, 8);
  return bits & 1 ? next_up(low) : low;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Reads digits with single `_` between them into `d`; *places counts them. False if there is none. */
static bool read_digits(const char **at, const char *end, decimal *d, int64_t *places) {
  const char *s = *at;
  if (s == end || !is_digit(*s)) return false;
  for (; s < end; s++) {
    if (*s == '_' && end - s > 1 && is_digit(s[1])) continue;
    if (!is_digit(*s)) break;
    ++*places;
    if (d->n == 0 && *s == '0') {
      d->point--;
      continue;
    }
    if (d->n < READ_DIGITS)
      d->digits[d->n++] = *s;
    else if (*s != '0')
      d->digits[READ_DIGITS] = '1';
  }
  *at = s;
  return true;
}

bool float_parse(const char *text, size_t len, double *out) {
  const char *s = text, *end = text + len;
  bool negative = s < end && *s == '-';
  if (s < end && (*s == '-' || *s == '+')) s++;
  double x;
  if (end - s == 3 && memcmp(s, "inf", 3) == 0) {
    x = __builtin_inf();
  } else if (end - s == 3 && memcmp(s, "nan", 3) == 0) {
    x = __builtin_nan("");
  } else {
    decimal d = {.n = 0};
    int64_t before = 0, after = 0;
    if (!read_digits(&s, end, &d, &before)) return false;
    if (s < end && *s == '.') {
      s++;
      if (!read_digits(&s, end, &d, &after)) return false;
    }
    d.point += before;
    if (s < end && (*s | 32) == 'e') {
      s++;
      bool down = s < end && *s == '-';
      if (s < end && (*s == '-' || *s == '+')) s++;
      if (s == end) return false;
      int64_t e = 0;
      for (; s < end && is_digit(*s); s++)
        if (e < 1000000000000000) e = e * 10 + (*s - '0');
      d.point += down ? -e : e;
    }
    if (s != end) return false;
    if (d.digits[READ_DIGITS]) d.n = READ_DIGITS + 1;
    x = decimal_to_double(&d);
  }
  *out = negative ? -x : x;
  return true;
}
