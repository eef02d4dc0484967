/* Radix sort of items, a part of sortloops.c, which includes this once for each kind: ITEM is the type, KEY(x) its key of the type WORD, and
 * NAME(x) makes names.
 *
 * Only bits in which keys differ are looked at. As many of the highest as tell most keys of so long a line apart are sorted first, digit by
 * digit from the lowest up. Items that are equal in these bits then stand together in runs, mostly very short, which are sorted each by
 * itself: by insertion, or in the same way. */

static void NAME(insert)(ITEM *a, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    ITEM x = a[i];
    int64_t k = i;
    for (; k > 0 && KEY(a[k - 1]) > KEY(x); k--) a[k] = a[k - 1];
    a[k] = x;
  }
}

static void *NAME(sort)(sort_room *r, void *items, void *spare, int64_t n, unsigned low);

/* Sorts runs of items that are equal in the bits from `shift` on. */
static void NAME(runs)(sort_room *r, ITEM *a, ITEM *b, int64_t n, unsigned shift, unsigned low) {
  for (int64_t i = 0; i < n;) {
    WORD top = KEY(a[i]) >> shift;
    int64_t end = i + 1;
    while (end < n && KEY(a[end]) >> shift == top) end++;
    if (end - i <= INSERTED) {
      NAME(insert)(a + i, end - i);
    } else {
      ITEM *there = NAME(sort)(r, a + i, b + i, end - i, low);
      if (r->stopped) return;
      if (there != a + i) memcpy(a + i, there, (size_t)(end - i) * sizeof(ITEM));
    }
    i = end;
  }
}

/* Counts how often each digit is there, for 1 to 3 digits in one pass. */
static void NAME(digits)(uint32_t *counts, const ITEM *a, int64_t n, unsigned shift, unsigned bits, int digits) {
  const WORD mask = ((WORD)1 << bits) - 1;
  uint32_t *second = counts + ((size_t)1 << bits), *third = second + ((size_t)1 << bits);
  memset(counts, 0, ((size_t)digits << bits) * sizeof *counts);
  if (digits == 1) {
    for (int64_t i = 0; i < n; i++) counts[KEY(a[i]) >> shift & mask]++;
  } else if (digits == 2) {
    for (int64_t i = 0; i < n; i++) {
      WORD key = KEY(a[i]) >> shift;
      counts[key & mask]++;
      second[key >> bits & mask]++;
    }
  } else {
    for (int64_t i = 0; i < n; i++) {
      WORD key = KEY(a[i]) >> shift;
      counts[key & mask]++;
      second[key >> bits & mask]++;
      third[key >> 2 * bits & mask]++;
    }
  }
}

static void *NAME(sort)(sort_room *r, void *items, void *spare, int64_t n, unsigned low) {
  ITEM *a = items, *b = spare;
  if (n <= INSERTED) {
    NAME(insert)(a, n);
    return a;
  }
  if (n >= LOOK && (r->stopped = r->stopped || r->stops(r))) return a;
  const WORD like = KEY(a[0]);
  WORD vary = 0, unordered = 0;
  _Pragma("omp simd reduction(| : vary, unordered)") for (int64_t i = 1; i < n; i++) {
    vary |= KEY(a[i]) ^ like;
    unordered |= (WORD)(KEY(a[i - 1]) > KEY(a[i]));
  }
  vary = vary >> low << low;
  if (!vary || !unordered) return a;
  unsigned high = 64 - (unsigned)__builtin_clzll(vary), lowest = (unsigned)__builtin_ctzll(vary), bits = high - lowest;
  unsigned length = 64 - (unsigned)__builtin_clzll((uint64_t)n);
  unsigned most = n < SHORT ? 8 : SORT_DIGIT, useful = length + SPARE_BITS;
  int digits = 1;
  if (n <= CACHED) {
    digits = (int)(((bits < useful ? bits : useful) + most - 1) / most);
    if (digits > SORT_DIGITS) digits = SORT_DIGITS;
  }
  if (bits > (unsigned)digits * most) bits = (unsigned)digits * most;
  unsigned each = (bits + (unsigned)digits - 1) / (unsigned)digits,
           shift = high > (unsigned)digits * each ? high - (unsigned)digits * each : 0;
  if (shift < low) shift = low;
  if (n > UINT32_MAX) { /* more than counts can hold: split by the highest bit first */
    int64_t zeros = 0, ones = 0;
    for (int64_t i = 0; i < n; i++) zeros += !(KEY(a[i]) >> (high - 1) & 1);
    ones = zeros, zeros = 0;
    for (int64_t i = 0; i < n; i++) b[KEY(a[i]) >> (high - 1) & 1 ? ones++ : zeros++] = a[i];
    NAME(runs)(r, b, a, n, high - 1, low);
    return b;
  }
  NAME(digits)(r->counts, a, n, shift, each, digits);
  const WORD mask = ((WORD)1 << each) - 1;
  uint32_t *counts = r->counts;
  for (int d = 0; d < digits; d++, counts += (size_t)1 << each) {
    unsigned from = shift + (unsigned)d * each;
    if (counts[like >> from & mask] == (uint32_t)n) continue;
    if (n >= 16 * LOOK && (r->stopped = r->stopped || r->stops(r))) return a;
    uint32_t sum = 0;
    for (size_t k = 0; k <= mask; k++) {
      uint32_t c = counts[k];
      counts[k] = sum;
      sum += c;
    }
    for (int64_t i = 0; i < n; i++) {
      ITEM x = a[i];
      b[counts[KEY(x) >> from & mask]++] = x;
    }
    ITEM *t = a;
    a = b;
    b = t;
  }
  if (shift > lowest) NAME(runs)(r, a, b, n, shift, low);
  return a;
}

static void NAME(count)(const void *items, int64_t n, unsigned shift, int64_t *counts) {
  const ITEM *a = items;
  for (int64_t i = 0; i < n; i++) counts[KEY(a[i]) >> shift & (((WORD)1 << SORT_DIGIT) - 1)]++;
}

static void NAME(place)(const void *items, int64_t n, unsigned shift, int64_t *at, void *to) {
  const ITEM *a = items;
  ITEM *b = to;
  for (int64_t i = 0; i < n; i++) {
    ITEM x = a[i];
    b[at[KEY(x) >> shift & (((WORD)1 << SORT_DIGIT) - 1)]++] = x;
  }
}

/* Most items are not below the limit: so a block is looked at as a whole first. */
static int64_t NAME(below)(const void *items, int64_t n, const void *limit, void *to) {
  enum { BLOCK = 64 };
  const ITEM *a = items;
  ITEM *b = to;
  const WORD most = KEY(*(const ITEM *)limit);
  int64_t found = 0;
  for (int64_t i = 0; i < n; i += BLOCK) {
    int64_t end = n - i < BLOCK ? n : i + BLOCK;
    WORD any = 0;
    if (n - i >= BLOCK)
      _Pragma("omp simd reduction(| : any)") for (int64_t j = i; j < i + BLOCK; j++) any |= (WORD)(KEY(a[j]) < most);
    else
      any = 1;
    for (int64_t j = i; any && j < end; j++) {
      b[found] = a[j];
      found += KEY(a[j]) < most;
    }
  }
  return found;
}

static int64_t NAME(keep)(void *best, int64_t have, int64_t k, const void *items, int64_t n) {
  enum { BLOCK = 32 };
  const ITEM *a = items;
  ITEM *b = best;
  for (int64_t i = 0; i < n; i += BLOCK) {
    int64_t end = n - i < BLOCK ? n : i + BLOCK;
    if (have == k && n - i >= BLOCK) {
      const WORD most = KEY(b[k - 1]);
      WORD any = 0;
      _Pragma("omp simd reduction(| : any)") for (int64_t j = i; j < i + BLOCK; j++) any |= (WORD)(KEY(a[j]) < most);
      if (!any) continue;
    }
    for (int64_t j = i; j < end; j++) {
      const ITEM x = a[j];
      if (have == k && KEY(x) >= KEY(b[k - 1])) continue;
      int64_t at = have < k ? have++ : k - 1;
      for (; at > 0 && KEY(b[at - 1]) > KEY(x); at--) b[at] = b[at - 1];
      b[at] = x;
    }
  }
  return have;
}

#undef ITEM
#undef KEY
#undef WORD
#undef NAME
