/* .png: images. Every kind of PNG is read; the array is height x width, or height x width x channels:
 *
 *   grey                 [h, w]        u8 (1, 2, 4 and 8 bits; fewer than 8 are scaled to 0..255)
 *   grey and alpha       [h, w, 2]     i32 in 0..65535 where the file has 16 bits
 *   colour or palette    [h, w, 3]
 *   ... with alpha       [h, w, 4]     also where a palette or one colour is transparent
 *
 * Written are bool (0, 255), u8, floats in 0..1 (as 8 bits) and i32 in 0..65535 (as 16 bits, which is what reading gives).
 *
 * Reading goes through the chunks twice. The first pass checks their order, lengths and CRCs and adds up the compressed bytes:
 * no size may be claimed that deflate cannot make of them, so a small file cannot ask for much memory. The second one inflates
 * rows, undoes their filters, and spreads the samples. Interlaced images are seven images of every so many rows and columns.
 */
#include <string.h>
#include <zlib.h>

#include "lang/error.h"
#include "stdlib/builtins.h"
#include "stdlib/io.h"

enum {
  DEFLATE_RATIO = 1032, /* the most bytes that deflate makes of one */
  CHUNK_EXTRA = 12,     /* length, name and CRC */
  COLOR_GREY = 0,
  COLOR_RGB = 2,
  COLOR_PALETTE = 3,
  COLOR_GREY_ALPHA = 4,
  COLOR_RGBA = 6
};

static const uint8_t magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

static uint32_t get_be32(const uint8_t *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
static uint32_t get_be16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static void put_be32(uint8_t *p, uint32_t x) {
  for (int i = 0; i < 4; i++) p[i] = (uint8_t)(x >> (24 - 8 * i));
}

/* ---- chunks ------------------------------------------------------------------------------------------------------------- */

typedef struct png {
  qn_vm *vm;
  const char *path;
  const uint8_t *data;
  size_t len;
  uint32_t width, height;
  int bits, color, interlaced;
  int samples;  /* of a pixel in the file */
  int channels; /* of the array */
  const uint8_t *palette;
  uint32_t ncolors;
  const uint8_t *transparent;
  uint32_t ntransparent;
  size_t first; /* the first IDAT chunk */
  uint64_t packed;
} png;

static bool read_head(png *g, const uint8_t *p) {
  g->width = get_be32(p);
  g->height = get_be32(p + 4);
  g->bits = p[8];
  g->color = p[9];
  g->interlaced = p[12];
  static const uint8_t samples[7] = {1, 0, 3, 1, 2, 0, 4};
  /* Bit n is set if samples of this kind of image may have n bits. */
  static const uint32_t depths[7] = {1u << 1 | 1u << 2 | 1u << 4 | 1u << 8 | 1u << 16,
                                     0,
                                     1u << 8 | 1u << 16,
                                     1u << 1 | 1u << 2 | 1u << 4 | 1u << 8,
                                     1u << 8 | 1u << 16,
                                     0,
                                     1u << 8 | 1u << 16};
  if (!g->width || !g->height || g->width > INT32_MAX || g->height > INT32_MAX)
    return file_refuse(g->vm, g->path, "an image of %u x %u is not possible", g->width, g->height);
  if (g->color > 6 || g->bits > 16 || !(depths[g->color] & 1u << g->bits) || p[10] || p[11] || g->interlaced > 1)
    return file_refuse(g->vm, g->path, "the header is damaged: there is no such kind of image");
  g->samples = samples[g->color];
  return true;
}

static bool is_chunk(const uint8_t *p, const char *name) { return memcmp(p + 4, name, 4) == 0; }

static bool read_chunk(png *g, const uint8_t *p, uint32_t n, size_t at, bool *idat_over) {
  bool idat = is_chunk(p, "IDAT");
  if (!g->width != is_chunk(p, "IHDR") || (!g->width && n != 13))
    return file_refuse(g->vm, g->path, "the file is damaged: it has not one header, at its beginning");
  if (!g->width) return read_head(g, p + 8);
  if (idat && *idat_over) return file_refuse(g->vm, g->path, "the file is damaged: its data are in several places");
  if (idat) {
    if (!g->first) g->first = at;
    g->packed += n;
  } else if (g->first) {
    *idat_over = true;
  }
  if (is_chunk(p, "PLTE")) {
    if (g->palette || g->first || !n || n % 3 || n > 768 || (g->color == COLOR_PALETTE && n / 3 > 1u << g->bits))
      return file_refuse(g->vm, g->path, "the palette is damaged");
    g->palette = p + 8;
    g->ncolors = n / 3;
  } else if (is_chunk(p, "tRNS")) {
    uint32_t want = g->color == COLOR_GREY ? 2 : g->color == COLOR_RGB ? 6 : g->color == COLOR_PALETTE ? n : UINT32_MAX;
    if (g->transparent || g->first || n != want || (g->color == COLOR_PALETTE && (!n || n > g->ncolors)))
      return file_refuse(g->vm, g->path, "the transparency is damaged");
    g->transparent = p + 8;
    g->ntransparent = n;
  } else if (!(p[4] & 0x20) && !idat && !is_chunk(p, "IEND")) {
    return file_refuse(g->vm, g->path, "the file has a necessary part of an unknown kind");
  }
  return true;
}

/* The first pass over the file, which checks the chunks and adds up the compressed bytes. */
static bool read_chunks(png *g) {
  size_t at = sizeof magic;
  bool idat_over = false;
  for (;;) {
    if (g->len - at < CHUNK_EXTRA) return file_refuse(g->vm, g->path, "the file is truncated");
    const uint8_t *p = g->data + at;
    size_t n = get_be32(p);
    if (n > g->len - at - CHUNK_EXTRA) return file_refuse(g->vm, g->path, "the file is truncated");
    if (crc32_z(crc32_z(0, NULL, 0), p + 4, n + 4) != get_be32(p + 8 + n))
      return file_refuse(g->vm, g->path, "the file is damaged: the checksum at byte %zu is wrong", at + 8 + n);
    if (!read_chunk(g, p, (uint32_t)n, at, &idat_over)) return false;
    if (is_chunk(p, "IEND")) break;
    at += CHUNK_EXTRA + n;
  }
  if (!g->first || (g->color == COLOR_PALETTE && !g->palette))
    return file_refuse(g->vm, g->path, "the file has no %s", g->first ? "palette" : "data");
  int colors = g->color == COLOR_GREY || g->color == COLOR_GREY_ALPHA ? 1 : 3;
  g->channels = colors + (g->transparent || g->color == COLOR_GREY_ALPHA || g->color == COLOR_RGBA);
  return true;
}

/* ---- rows --------------------------------------------------------------------------------------------------------------- */

/* The pixels that one run of rows holds: the whole image, or one of the seven parts of an interlaced one, which has every dx-th column and
 * dy-th row from (x, y) on. */
typedef struct pass {
  uint8_t x, y, dx, dy;
} pass;
static const pass whole = {0, 0, 1, 1};
static const pass passes[7] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                               {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};

static uint32_t pass_size(uint32_t size, int from, int step) {
  return size > (uint32_t)from ? (size - (uint32_t)from + (uint32_t)step - 1) / (uint32_t)step : 0;
}
static uint64_t row_bytes(const png *g, uint32_t width) {
  return ((uint64_t)width * (uint64_t)(g->samples * g->bits) + 7) / 8;
}

static uint8_t paeth(int a, int b, int c) {
  int p = a + b - c, pa = p > a ? p - a : a - p, pb = p > b ? p - b : b - p, pc = p > c ? p - c : c - p;
  return (uint8_t)(pa <= pb && pa <= pc ? a : pb <= pc ? b : c);
}

/* The value that a filter predicts for byte i of a row. `up` is the row above, `step` the number of bytes of a pixel. */
static uint8_t expected(int filter, const uint8_t *row, const uint8_t *up, size_t i, size_t step) {
  int a = i >= step ? row[i - step] : 0, c = i >= step ? up[i - step] : 0;
  switch (filter) {
  case 1: return (uint8_t)a;
  case 2: return up[i];
  case 3: return (uint8_t)((a + up[i]) / 2);
  case 4: return paeth(a, up[i], c);
  default: return 0;
  }
}

/* Sample number k of a row whose samples have `bits` bits each. */
static uint32_t sample(const uint8_t *row, uint64_t k, int bits) {
  if (bits == 8) return row[k];
  if (bits == 16) return get_be16(row + 2 * k);
  return row[k * (uint64_t)bits / 8] >> (8 - bits - (int)(k * (uint64_t)bits % 8)) & ((1u << bits) - 1);
}

static void store_sample(char *data, int64_t at, uint32_t x, int bits) {
  if (bits == 16)
    ((int32_t *)(void *)data)[at] = (int32_t)x;
  else
    ((uint8_t *)data)[at] = (uint8_t)x;
}

/* Stores a row of pixels in the array's data. False if a pixel has a colour that the palette lacks. */
static bool spread_row(const png *g, const uint8_t *row, char *data, const pass *s, uint32_t y, uint32_t width) {
  uint32_t opaque = g->bits == 16 ? 65535 : 255, scale = g->bits < 8 ? 255 / ((1u << g->bits) - 1) : 1;
  for (uint32_t x = 0; x < width; x++) {
    int64_t at = ((int64_t)(s->y + (uint64_t)y * s->dy) * g->width + s->x + (int64_t)x * s->dx) * g->channels;
    if (g->color == COLOR_PALETTE) {
      uint32_t i = sample(row, x, g->bits);
      if (i >= g->ncolors) return false;
      for (int k = 0; k < 3; k++) store_sample(data, at + k, g->palette[3 * i + (uint32_t)k], 8);
      if (g->transparent) store_sample(data, at + 3, i < g->ntransparent ? g->transparent[i] : 255, 8);
      continue;
    }
    bool keyed = g->transparent != NULL;
    for (int k = 0; k < g->samples; k++) {
      uint32_t v = sample(row, (uint64_t)x * (uint64_t)g->samples + (uint64_t)k, g->bits);
      keyed = keyed && v == get_be16(g->transparent + 2 * k);
      store_sample(data, at + k, v * scale, g->bits);
    }
    if (g->transparent) store_sample(data, at + g->samples, keyed ? 0 : opaque, g->bits);
  }
  return true;
}

/* Inflates exactly n bytes from the IDAT chunks. */
typedef struct inflater {
  z_stream z;
  size_t next; /* the chunk after this one */
  bool over;
} inflater;

static bool inflate_bytes(png *g, inflater *f, uint8_t *to, size_t n) {
  f->z.next_out = to;
  f->z.avail_out = (uInt)n;
  while (f->z.avail_out) {
    const uint8_t *p = g->data + f->next;
    if (!f->z.avail_in && is_chunk(p, "IDAT")) {
      f->z.next_in = (Bytef *)p + 8;
      f->z.avail_in = get_be32(p);
      f->next += CHUNK_EXTRA + get_be32(p);
      continue;
    }
    int code = f->over ? Z_DATA_ERROR : inflate(&f->z, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR) return raise_memory_false(g->vm);
    f->over = code == Z_STREAM_END;
    if ((code != Z_OK && code != Z_STREAM_END) || (f->z.avail_out && f->over))
      return file_refuse(g->vm, g->path, "the image is damaged: its data do not decompress");
  }
  return true;
}

static bool read_pass(png *g, inflater *f, const pass *s, uint8_t *rows, size_t stride, char *data) {
  uint32_t width = pass_size(g->width, s->x, s->dx), height = pass_size(g->height, s->y, s->dy);
  size_t n = (size_t)row_bytes(g, width), step = (size_t)(g->samples * g->bits + 7) / 8;
  uint8_t *row = rows, *up = rows + stride;
  if (!width) return true;
  memset(rows, 0, 2 * stride);
  for (uint32_t y = 0; y < height; y++) {
    if (vm_poll(g->vm) || !inflate_bytes(g, f, row, n + 1)) return false;
    if (row[0] > 4) return file_refuse(g->vm, g->path, "the image is damaged: there is no such filter");
    for (size_t i = 1; i <= n && row[0]; i++)
      row[i] = (uint8_t)(row[i] + expected(row[0], row + 1, up + 1, i - 1, step));
    if (!spread_row(g, row + 1, data, s, y, width))
      return file_refuse(g->vm, g->path, "the image is damaged: it has a colour that its palette lacks");
    uint8_t *other = up;
    up = row;
    row = other;
  }
  return true;
}

static bool read_image(png *g, char *data) {
  size_t stride = (size_t)row_bytes(g, g->width) + 1;
  inflater f = {.next = g->first};
  uint8_t *rows = mem_alloc(g->vm, 2 * stride);
  if (!rows) return false;
  bool good = inflateInit(&f.z) == Z_OK;
  if (good) {
    for (int i = 0; i < (g->interlaced ? 7 : 1) && good; i++)
      good = read_pass(g, &f, g->interlaced ? &passes[i] : &whole, rows, stride, data);
    inflateEnd(&f.z);
  } else {
    raise_memory(g->vm);
  }
  mem_free(g->vm, rows, 2 * stride);
  return good;
}

qn_value png_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len) {
  if (len && len < sizeof magic) return file_error(vm, path, "the file is truncated");
  if (!len || memcmp(data, magic, sizeof magic) != 0)
    return file_error(vm, path, "this is no .png file: it begins otherwise");
  png g = {.vm = vm, .path = path, .data = data, .len = len};
  if (!read_chunks(&g)) return value_error();
  /* A row has at least one byte besides its filter, so this bounds the array, too. */
  uint64_t bytes = row_bytes(&g, g.width) + 1;
  if (bytes > UINT32_MAX || bytes * g.height / DEFLATE_RATIO > g.packed + 64)
    return file_error(vm, path, "the image is damaged: %u x %u pixels cannot be in so few bytes", g.width, g.height);
  int64_t shape[3] = {g.height, g.width, g.channels};
  qn_array *a = array_new(vm, g.bits == 16 ? DTYPE_DEEP : DTYPE_BYTE, g.channels == 1 ? 2 : 3, shape);
  if (!a) return value_error();
  if (!read_image(&g, array_data(a))) return value_fail(vm, value_obj(TAG_ARRAY, a));
  return value_new(TAG_ARRAY, array_settle(vm, a));
}

/* ---- writing ------------------------------------------------------------------------------------------------------------------ */

static bool add_chunk(qn_vm *vm, bytes *out, const char *name, const uint8_t *data, size_t n) {
  uint8_t lead[8], check[4];
  put_be32(lead, (uint32_t)n);
  memcpy(lead + 4, name, 4);
  uint32_t crc = (uint32_t)crc32_z(crc32_z(0, NULL, 0), lead + 4, 4);
  if (n) crc = (uint32_t)crc32_z(crc, data, n);
  put_be32(check, crc);
  return bytes_add(vm, out, lead, sizeof lead) && bytes_add(vm, out, data, n) &&
         bytes_add(vm, out, check, sizeof check);
}

/* Filters a row into `to`, which has room for n + 1 bytes: the number of the filter, then the row. Takes the filter with the smallest sum
 * of absolute values, which mostly compresses best. */
static void filter_row(const uint8_t *row, const uint8_t *up, size_t n, size_t step, uint8_t *to) {
  uint64_t least = UINT64_MAX;
  for (int filter = 0; filter < 5; filter++) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n && sum < least; i++) {
      int left = (int8_t)(row[i] - expected(filter, row, up, i, step));
      sum += (uint64_t)(left < 0 ? -left : left);
    }
    if (sum >= least) continue;
    least = sum;
    to[0] = (uint8_t)filter;
  }
  for (size_t i = 0; i < n; i++) to[i + 1] = (uint8_t)(row[i] - expected(to[0], row, up, i, step));
}

/* Compresses the input of z and appends the result to `out` in IDAT chunks. */
static bool deflate_bytes(qn_vm *vm, z_stream *z, int flush, uint8_t *buffer, size_t size, bytes *out) {
  for (;;) {
    int code = deflate(z, flush);
    if (z->avail_out == 0 || (flush == Z_FINISH && z->avail_out < size)) {
      if (!add_chunk(vm, out, "IDAT", buffer, size - z->avail_out)) return false;
      z->next_out = buffer;
      z->avail_out = (uInt)size;
    }
    if (code == Z_STREAM_END || (flush == Z_NO_FLUSH && z->avail_in == 0)) return true;
  }
}

bool png_encode(qn_vm *vm, const png_pixels *image, bytes *out) {
  enum { CHUNK = 65536 };
  static const uint8_t colors[5] = {0, COLOR_GREY, COLOR_GREY_ALPHA, COLOR_RGB, COLOR_RGBA};
  uint8_t head[13] = {0};
  put_be32(head, image->width);
  put_be32(head + 4, image->height);
  head[8] = (uint8_t)image->bits;
  head[9] = colors[image->channels];
  size_t step = (size_t)(image->channels * image->bits / 8), n = image->width * step, room = CHUNK + 2 * n + 1;
  uint8_t *scratch = mem_zalloc(vm, room); /* for a chunk, an empty row and a filtered row */
  if (!scratch) return false;
  uint8_t *none = scratch + CHUNK, *row = none + n;
  z_stream z = {.next_out = scratch, .avail_out = CHUNK};
  bool good = bytes_add(vm, out, magic, sizeof magic) && add_chunk(vm, out, "IHDR", head, sizeof head);
  if (good && deflateInit(&z, Z_DEFAULT_COMPRESSION) != Z_OK) {
    good = raise_memory_false(vm);
  } else if (good) {
    for (uint32_t y = 0; y < image->height && good; y++) {
      const uint8_t *from = image->data + y * n;
      filter_row(from, y ? from - n : none, n, step, row);
      z.next_in = row;
      z.avail_in = (uInt)n + 1;
      good = !vm_poll(vm) && deflate_bytes(vm, &z, Z_NO_FLUSH, scratch, CHUNK, out);
    }
    good = good && deflate_bytes(vm, &z, Z_FINISH, scratch, CHUNK, out);
    deflateEnd(&z);
  }
  mem_free(vm, scratch, room);
  return good && add_chunk(vm, out, "IEND", NULL, 0);
}

/* Writes element i as a sample of 8 or 16 bits. False if its value is out of range. */
static bool put_sample(uint8_t *to, const qn_array *a, int64_t i) {
  qn_value v = array_get_flat(a, i);
  if (a->dtype == DTYPE_DEEP) {
    if (v.u.i < 0 || v.u.i > 65535) return false;
    to[2 * i] = (uint8_t)(v.u.i >> 8);
    to[2 * i + 1] = (uint8_t)v.u.i;
    return true;
  }
  if (!value_is(v, TAG_FLOAT)) {
    to[i] = value_is(v, TAG_BOOL) ? (v.u.i ? 255 : 0) : (uint8_t)v.u.i;
    return true;
  }
  if (!(v.u.f >= 0 && v.u.f <= 1)) return false;
  to[i] = (uint8_t)(v.u.f * 255 + 0.5);
  return true;
}

static bool fill_samples(qn_vm *vm, const qn_array *a, uint8_t *to) {
  for (int64_t i = 0; i < a->size; i++) {
    if (vm_poll_item(vm, i)) return false;
    if (put_sample(to, a, i)) continue;
    text_buf t = {.vm = vm};
    text_addf(&t, "save: .png holds numbers from 0 to %s, not ",
              a->dtype == DTYPE_DEEP ? "65535 of i32" : "1 of a float array");
    qn_value v = array_get_flat(a, i);
    if (value_is(v, TAG_FLOAT))
      text_float(&t, v.u.f, dtype_compute(a->dtype));
    else
      text_int(&t, v.u.i);
    text_adds(&t, "; clip or scale it");
    raise_text(vm, E_argument, SPAN_NONE, &t);
    return false;
  }
  return true;
}

static bool refuse_image(qn_vm *vm, const qn_array *a) {
  bool rank = a->rank != 2 && (a->rank != 3 || a->shape[2] < 1 || a->shape[2] > 4);
  bool empty = a->size == 0, large = a->size > INT32_MAX;
  const char *why = rank    ? "an image is height x width, or height x width x channels (1 to 4), not "
                    : empty ? ".png cannot hold an image without pixels: "
                    : large ? "the image has too many pixels for .png: "
                            : ".png holds bool, u8 (0 to 255), i32 (16 bits) and floats (0 to 1); convert ";
  return raise_false(vm,
                     rank             ? E_rank
                     : empty || large ? E_argument
                                      : E_dtype,
                     "save: %s%s", why, phrase_shape(a).text);
}

bool png_write(qn_vm *vm, qn_value image, bytes *out) {
  if (!is_array(image)) return arg_wrong(vm, "save", "an image (an array) or a figure for .png", image);
  const qn_array *shape = value_array(image);
  qn_dtype dtype = (qn_dtype)shape->dtype;
  if ((shape->rank != 2 && (shape->rank != 3 || shape->shape[2] < 1 || shape->shape[2] > 4)) || shape->size == 0 ||
      shape->size > INT32_MAX ||
      (!dtype_is_bool(dtype) && dtype != DTYPE_BYTE && dtype != DTYPE_DEEP && !dtype_is_float(dtype)))
    return refuse_image(vm, shape);
  qn_array *a = array_to_cpu(vm, value_array(image));
  if (!a) return false;
  png_pixels p = {.width = (uint32_t)a->shape[1],
                  .height = (uint32_t)a->shape[0],
                  .channels = a->rank == 2 ? 1 : (int)a->shape[2],
                  .bits = dtype == DTYPE_DEEP ? 16 : 8};
  size_t n = (size_t)a->size * (size_t)p.bits / 8;
  uint8_t *samples = mem_alloc(vm, n);
  bool good = samples != NULL && fill_samples(vm, a, samples);
  p.data = samples;
  good = good && png_encode(vm, &p, out);
  mem_free(vm, samples, n);
  array_drop(vm, a);
  return good;
}
