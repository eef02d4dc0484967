/* The benchmark's streaming rows as a C programmer writes them by hand, with OpenMP and the vector functions of the C library:
 * loops ROW INPUTS CONTROL RESULT
 *
 * Built by run.py with -O3 -march=native -ffast-math -fopenmp; speaks its protocol (run.py). INPUTS are texts of rows.py. RESULT gets
 * of each array of the result how many numbers follow (8 bytes), and what `picked` of rows.qn picks (f32). "copy" copies 256 MiB, which
 * tells what the machine's memory gives. */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 96, PERIOD = 1048573, COPIED = 64 << 20 };

typedef struct {
  float *x;
  int64_t n, rows, columns; /* rows * columns = n; columns is the last axis */
} array;

typedef struct {
  array in[MOST], out[MOST];
  int ins, outs, threads;
} state;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static array room(int64_t rows, int64_t columns) {
  array a = {NULL, rows * columns, rows, columns};
  size_t huge = 1 << 21, bytes = ((size_t)a.n * sizeof *a.x + huge) & ~(huge - 1);
  a.x = aligned_alloc(huge, bytes);
  if (!a.x) exit(1);
  memset(a.x, 0, bytes);
  return a;
}

/* ---- rows ------------------------------------------------------------------------------------------------------------- */

static void chain(state *s) {
  const float *restrict x = s->in[0].x;
  float *restrict y = s->out[0].x;
  int64_t n = s->in[0].n;
#pragma omp parallel for simd schedule(static) num_threads(n < 16384 ? 1 : s->threads)
  for (int64_t i = 0; i < n; i++) {
    float t = tanhf(x[i] * 2.0f + 1.0f);
    y[i] = (t * t + x[i]) * 0.5f;
  }
}

static void axpy(state *s) {
  const float *restrict x = s->in[0].x, *restrict y = s->in[1].x;
  float *restrict z = s->out[0].x;
  int64_t n = s->in[0].n;
#pragma omp parallel for simd schedule(static) num_threads(s->threads)
  for (int64_t i = 0; i < n; i++) z[i] = 2.5f * x[i] + y[i];
}

static void softmax(state *s) {
  int64_t n = s->in[0].rows, m = s->in[0].columns;
#pragma omp parallel for schedule(static) num_threads(s->threads)
  for (int64_t r = 0; r < n; r++) {
    const float *restrict x = s->in[0].x + r * m;
    float *restrict y = s->out[0].x + r * m;
    float most = -3e38f, sum = 0;
#pragma omp simd reduction(max : most)
    for (int64_t c = 0; c < m; c++) most = x[c] > most ? x[c] : most;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < m; c++) sum += y[c] = expf(x[c] - most);
    float part = 1.0f / sum;
#pragma omp simd
    for (int64_t c = 0; c < m; c++) y[c] *= part;
  }
}

static inline void moments(const float *restrict x, int64_t m, float *mean, float *part) {
  float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < m; c++) sum += x[c];
  float at = *mean = sum / (float)m;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < m; c++) squares += (x[c] - at) * (x[c] - at);
  *part = 1.0f / sqrtf(squares / (float)m + 1e-5f);
}

static void norm(state *s) {
  int64_t n = s->in[0].rows, m = s->in[0].columns;
  const float *restrict g = s->in[1].x, *restrict b = s->in[2].x;
#pragma omp parallel for schedule(static) num_threads(s->threads)
  for (int64_t r = 0; r < n; r++) {
    const float *restrict x = s->in[0].x + r * m;
    float *restrict y = s->out[0].x + r * m, mean, part;
    moments(x, m, &mean, &part);
#pragma omp simd
    for (int64_t c = 0; c < m; c++) {
      float h = (x[c] - mean) * part * g[c] + b[c];
      y[c] = 0.5f * h * (1.0f + erff(h * 0.70710678f)) + x[c];
    }
  }
}

static void norm_back(state *s) {
  int64_t n = s->in[0].rows, m = s->in[0].columns;
  const float *restrict g = s->in[1].x, *restrict b = s->in[2].x;
  float *restrict dg = s->out[2].x, *restrict db = s->out[3].x;
  memset(dg, 0, (size_t)m * sizeof *dg);
  memset(db, 0, (size_t)m * sizeof *db);
#pragma omp parallel num_threads(s->threads)
  {
    float *restrict own = calloc((size_t)m * 3, sizeof *own), *restrict dh = own + m, *restrict dn = dh + m;
    float *restrict owned = calloc((size_t)m, sizeof *owned);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < n; r++) {
      const float *restrict x = s->in[0].x + r * m, *restrict dy = s->in[3].x + r * m;
      float *restrict y = s->out[0].x + r * m, *restrict dx = s->out[1].x + r * m, mean, part, sum = 0, dots = 0;
      moments(x, m, &mean, &part);
#pragma omp simd reduction(+ : sum, dots)
      for (int64_t c = 0; c < m; c++) {
        float k = (x[c] - mean) * part, h = k * g[c] + b[c], p = 0.5f * (1.0f + erff(h * 0.70710678f));
        float d = dy[c] * (p + h * expf(-0.5f * h * h) * 0.39894228f);
        y[c] = h * p + x[c];
        own[c] += d * k;
        owned[c] += d;
        dn[c] = d * g[c];
        sum += dn[c];
        dots += dn[c] * k;
      }
      sum /= (float)m;
      dots /= (float)m;
#pragma omp simd
      for (int64_t c = 0; c < m; c++) dx[c] = part * (dn[c] - sum - (x[c] - mean) * part * dots) + dy[c];
    }
#pragma omp critical
    for (int64_t c = 0; c < m; c++) {
      dg[c] += own[c];
      db[c] += owned[c];
    }
    free(own);
    free(owned);
  }
}

static void columns(state *s) {
  int64_t n = s->in[0].rows, m = s->in[0].columns;
  float *restrict sums = s->out[0].x, total = 0;
  memset(sums, 0, (size_t)m * sizeof *sums);
#pragma omp parallel num_threads(s->threads) reduction(+ : total)
  {
    float *restrict own = calloc((size_t)m, sizeof *own);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < n; r++) {
      const float *restrict x = s->in[0].x + r * m;
      float squares = 0;
#pragma omp simd reduction(+ : squares)
      for (int64_t c = 0; c < m; c++) {
        own[c] += x[c];
        squares += x[c] * x[c];
      }
      total += squares;
    }
#pragma omp critical
    for (int64_t c = 0; c < m; c++) sums[c] += own[c];
    free(own);
  }
  s->out[1].x[0] = total;
}

static void black_scholes(state *s) {
  const float *restrict price = s->in[0].x, *restrict strike = s->in[1].x, *restrict years = s->in[2].x;
  float *restrict call = s->out[0].x, *restrict put = s->out[1].x;
#pragma omp parallel for simd schedule(static) num_threads(s->threads)
  for (int64_t i = 0; i < s->in[0].n; i++) {
    float spread = 0.3f * sqrtf(years[i]), d = (logf(price[i] / strike[i]) + 0.065f * years[i]) / spread;
    float discounted = strike[i] * expf(-0.02f * years[i]);
    float first = 0.5f * (1.0f + erff(d * 0.70710678f)), second = 0.5f * (1.0f + erff((d - spread) * 0.70710678f));
    call[i] = price[i] * first - discounted * second;
    put[i] = call[i] - price[i] + discounted;
  }
}

static void jacobi(state *s) {
  int64_t n = s->in[0].rows, m = s->in[0].columns;
  float *from = s->in[0].x, *to = s->out[0].x, *other = s->out[1].x;
  for (int64_t r = 0; r < n; r += n - 1) {
    memcpy(to + r * m, from + r * m, (size_t)m * sizeof *to);
    memcpy(other + r * m, from + r * m, (size_t)m * sizeof *to);
  }
#pragma omp parallel num_threads(s->threads)
  for (int turn = 0; turn < 20; turn++) {
    const float *restrict u = turn == 0 ? from : turn % 2 ? other : to;
    float *restrict v = turn % 2 ? to : other;
#pragma omp for schedule(static)
    for (int64_t r = 1; r < n - 1; r++) {
      v[r * m] = u[r * m];
      v[r * m + m - 1] = u[r * m + m - 1];
#pragma omp simd
      for (int64_t c = r * m + 1; c < r * m + m - 1; c++) v[c] = 0.25f * (u[c - m] + u[c + m] + u[c - 1] + u[c + 1]);
    }
  }
}

static void newton(state *s) {
  const float *restrict a = s->in[0].x;
  float *restrict x = s->out[0].x, off = 3e38f;
  int64_t n = s->in[0].n;
  for (int turn = 0; off > 1e-3f; turn++) {
    off = 0;
#pragma omp parallel for simd schedule(static) num_threads(s->threads) reduction(max : off)
    for (int64_t i = 0; i < n; i++) {
      float v = turn ? x[i] : a[i];
      x[i] = v = 0.5f * (v + a[i] / v);
      float d = fabsf(v * v - a[i]);
      off = d > off ? d : off;
    }
  }
}

static void nbody(state *s) {
  int64_t n = s->in[0].rows;
  const float *restrict p = s->in[0].x, *restrict m = s->in[1].x;
  float *restrict xs = s->out[1].x, *restrict ys = xs + n, *restrict zs = ys + n;
  for (int64_t i = 0; i < n; i++) {
    xs[i] = p[3 * i];
    ys[i] = p[3 * i + 1];
    zs[i] = p[3 * i + 2];
  }
#pragma omp parallel for schedule(static) num_threads(s->threads)
  for (int64_t i = 0; i < n; i++) {
    float x = 0, y = 0, z = 0;
#pragma omp simd reduction(+ : x, y, z)
    for (int64_t j = 0; j < n; j++) {
      float dx = xs[j] - xs[i], dy = ys[j] - ys[i], dz = zs[j] - zs[i];
      float r = 1.0f / sqrtf(dx * dx + dy * dy + dz * dz + 1e-3f), w = m[j] * r * r * r;
      x += dx * w;
      y += dy * w;
      z += dz * w;
    }
    s->out[0].x[3 * i] = x;
    s->out[0].x[3 * i + 1] = y;
    s->out[0].x[3 * i + 2] = z;
  }
}

static void adam(state *s) {
  int count = s->ins / 4;
  float c1 = 1.0f / (1.0f - powf(0.9f, 10)), c2 = 1.0f / (1.0f - powf(0.999f, 10));
#pragma omp parallel num_threads(s->threads)
  for (int k = 0; k < count; k++) {
    const float *restrict p = s->in[k].x, *restrict g = s->in[count + k].x;
    const float *restrict m = s->in[2 * count + k].x, *restrict v = s->in[3 * count + k].x;
    float *restrict q = s->out[k].x, *restrict n = s->out[count + k].x, *restrict w = s->out[2 * count + k].x;
#pragma omp for simd schedule(static) nowait
    for (int64_t i = 0; i < s->in[k].n; i++) {
      n[i] = 0.9f * m[i] + 0.1f * g[i];
      w[i] = 0.999f * v[i] + 0.001f * (g[i] * g[i]);
      q[i] = p[i] - 0.001f * (n[i] * c1 / (sqrtf(w[i] * c2) + 1e-8f));
    }
  }
}

static void mandelbrot(state *s) {
  const float *restrict re = s->in[0].x, *restrict im = s->in[1].x;
  float *restrict count = s->out[0].x;
  int64_t n = s->in[0].n;
#pragma omp parallel for schedule(static) num_threads(s->threads)
  for (int64_t b = 0; b < n; b += 64) {
    float x[64] = {0}, y[64] = {0}, k[64] = {0};
    int64_t most = n - b < 64 ? n - b : 64;
    for (int turn = 0; turn < 50; turn++) {
#pragma omp simd
      for (int64_t i = 0; i < most; i++) {
        float xx = x[i] * x[i], yy = y[i] * y[i], t = 2 * x[i] * y[i] + im[b + i];
        int inside = xx + yy <= 4;
        x[i] = inside ? xx - yy + re[b + i] : x[i];
        y[i] = inside ? t : y[i];
        k[i] += inside ? 1.0f : 0.0f;
      }
    }
    memcpy(count + b, k, (size_t)most * sizeof *k);
  }
}

static void copy(state *s) {
  int64_t n = s->in[0].n, threads = s->threads;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t k = 0; k < threads; k++) {
    int64_t from = n * k / threads, to = n * (k + 1) / threads;
    memcpy(s->out[0].x + from, s->in[0].x + from, (size_t)(to - from) * sizeof(float));
  }
}

/* Each row's results: shaped like which inputs. `kept` are those that are compared: the others are room. */
enum { ONE = -1 };
static const struct {
  const char *name;
  void (*run)(state *);
  int outs, kept, like[4];
} ROWS[] = {
    {"chain", chain, 1, 1, {0}},
    {"axpy", axpy, 1, 1, {0}},
    {"softmax", softmax, 1, 1, {0}},
    {"norm", norm, 1, 1, {0}},
    {"norm_back", norm_back, 4, 4, {0, 0, 1, 1}},
    {"columns", columns, 2, 2, {0, ONE}},
    {"black_scholes", black_scholes, 2, 2, {0, 0}},
    {"jacobi", jacobi, 2, 1, {0, 0}},
    {"newton", newton, 1, 1, {0}},
    {"nbody", nbody, 2, 1, {0, 0}},
    {"adam", adam, 0, 0, {0}}, /* as many as the first three quarters of its inputs */
    {"mandelbrot", mandelbrot, 1, 1, {0}},
    {"copy", copy, 1, 0, {0}},
};
enum { COUNT = sizeof ROWS / sizeof *ROWS };

/* ---- inputs, results ---------------------------------------------------------------------------------------------------- */

/* The numbers of rows.qn's function of this name. */
static void fill(array a, int64_t number, float scale, float offset) {
  const int64_t prime = 2147483647;
  for (int64_t i = 0; i < a.n; i++) {
    int64_t k = (i % PERIOD * 48271 + number * 69621) % prime;
    k = k * k % prime;
    a.x[i] = ((float)k / 2147483648.0f - 0.5f) * scale + offset;
  }
}

static int inputs(state *s, const char *texts) {
  for (const char *t = texts; *t; t += *t == ' ') {
    char name[32], kind[8];
    long number;
    double scale, offset;
    int read = 0;
    if (s->ins == MOST ||
        sscanf(t, "%31[^:]:%ld:%lf:%lf:%7[^:]:%n", name, &number, &scale, &offset, kind, &read) != 5 ||
        strcmp(kind, "f32"))
      return 0;
    int64_t rows = 1, columns = 1;
    char *end = (char *)t + read;
    for (;;) {
      columns = strtol(end, &end, 10);
      if (*end != 'x') break;
      rows *= columns;
      end++;
    }
    fill(s->in[s->ins++] = room(rows, columns), number, (float)scale, (float)offset);
    t = end;
  }
  return 1;
}

static int results(const state *s, int kept, const char *path) {
  FILE *f = fopen(path, "wb");
  if (!f) return 0;
  for (int k = 0; k < kept; k++) {
    array a = s->out[k];
    int64_t step = a.n / 65536, picked = 1;
    step += 1 - step % 2;
    picked += (a.n + step - 1) / step;
    fwrite(&picked, sizeof picked, 1, f);
    double sum = 0;
    for (int64_t i = 0; i < a.n; i++) sum += fabs((double)a.x[i]);
    for (int64_t i = 0; i < a.n; i += step) fwrite(a.x + i, sizeof *a.x, 1, f);
    float mean = (float)(sum / (double)a.n);
    fwrite(&mean, sizeof mean, 1, f);
  }
  return fclose(f) == 0;
}

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "list")) {
    for (int k = 0; k < COUNT; k++) printf("%s ", ROWS[k].name);
    return 0;
  }
  int row = 0;
  while (argc == 5 && row < COUNT && strcmp(ROWS[row].name, argv[1])) row++;
  if (argc != 5 || row == COUNT) return 2;
  state s = {0};
  s.threads = omp_get_max_threads();
  int kept = ROWS[row].kept;
  if (ROWS[row].run == copy) {
    s.in[0] = room(1, COPIED);
  } else if (!inputs(&s, argv[2])) {
    return 2;
  }
  for (int k = 0; k < ROWS[row].outs; k++) {
    int like = ROWS[row].like[k];
    /* a reduction over rows leaves one row */
    int reduced = ROWS[row].run == columns;
    s.out[s.outs++] = like == ONE ? room(1, 1) : room(reduced ? 1 : s.in[like].rows, s.in[like].columns);
  }
  if (ROWS[row].run == adam)
    for (kept = s.ins / 4 * 3; s.outs < kept; s.outs++) s.out[s.outs] = room(s.in[s.outs].rows, s.in[s.outs].columns);
  double start = now();
  ROWS[row].run(&s);
  double last = now() - start;
  if (kept && !results(&s, kept, argv[4])) return 1;
  printf("first %.9g\ndone\n", last);
  fflush(stdout);
  for (;;) {
    double seconds = 0, each = 0;
    FILE *f = fopen(argv[3], "r");
    if (!f) return 1;
    int got = fscanf(f, "%lf %lf", &seconds, &each);
    fclose(f);
    if (got != 2 || seconds < 0) return 0;
    double begin = now();
    int calls = 1 + (int)(each / (last + 1e-9)), samples = 0;
    while (samples == 0 || now() - begin < seconds) {
      start = now();
      for (int i = 0; i < calls; i++) ROWS[row].run(&s);
      last = (now() - start) / calls;
      printf("sample %.9g %d\n", last, calls);
      samples++;
    }
    printf("done\n");
    fflush(stdout);
  }
}
