/* .qnx: a graph as a value (`graph(f, ...)`, `quern export`), with everything that a call of it needs.
 *
 *   bytes 0..7    magic
 *         8..11   version of the form, 1; a reader refuses later ones
 *         12..15  0
 *         16..23  length of the description
 *         24..31  length of the elements
 *         32..63  SHA-256 of all bytes but these
 *         64..    the description, and zeros up to a multiple of 64; then the elements to the end of the file
 *
 * Numbers are little-endian. The description is what jit/trace/serialize.c writes (jit/trace/README.md has its form); it names each run of
 * elements where it is used, and the runs lie in that order, each from a multiple of 64 on.
 *
 * The hash finds files that were cut or damaged; it is no signature, so the reader behind it trusts nothing either.
 */
#include <string.h>

#include "jit/kernel/sha256.h"
#include "jit/trace/rec.h"
#include "lang/error.h"
#include "stdlib/builtins.h"
#include "stdlib/io.h"

static const uint8_t magic[8] = {0x89, 'Q', 'N', 'X', '\r', '\n', 0x1a, '\n'};
enum { VERSION = 1, HASH_AT = 32, HASH = 32, HEADER = HASH_AT + HASH };

static void put_u64(uint8_t *p, uint64_t x) {
  put_u32(p, (uint32_t)x);
  put_u32(p + 4, (uint32_t)(x >> 32));
}

/* Appends zeros up to the next multiple of the alignment. */
static bool align(qn_vm *vm, bytes *b) {
  static const uint8_t zeros[GRAPH_RUN_ALIGN];
  size_t over = b->len % GRAPH_RUN_ALIGN;
  return !over || bytes_add(vm, b, zeros, GRAPH_RUN_ALIGN - over);
}

static void hash_file(const uint8_t *data, size_t len, uint8_t out[HASH]) {
  sha256 s;
  sha256_init(&s);
  sha256_add(&s, data, HASH_AT);
  sha256_add(&s, data + HEADER, len - HEADER);
  sha256_end(&s, out);
}

bool qnx_write(qn_vm *vm, qn_value v, bytes *out) {
  if (!value_is_graph(v)) return arg_wrong(vm, "save", "a graph for .qnx (graph(f, ...) makes one of a function)", v);
  graph_serialize p;
  bool ok = jit_graph_serialize(vm, v, &p) && bytes_add(vm, out, NULL, HEADER) &&
            bytes_add(vm, out, p.text.text, p.text.len) && align(vm, out);
  size_t start = out->len;
  for (uint32_t i = 0; i < p.n && ok; i++) ok = align(vm, out) && bytes_add(vm, out, p.runs[i].data, p.runs[i].bytes);
  if (ok) {
    memset(out->data, 0, HEADER);
    memcpy(out->data, magic, sizeof magic);
    put_u32(out->data + 8, VERSION);
    put_u64(out->data + 16, p.text.len);
    put_u64(out->data + 24, out->len - start);
    hash_file(out->data, out->len, out->data + HASH_AT);
  }
  graph_serialize_free(vm, &p);
  return ok;
}

/* Finds the two parts of a file and checks the hash. False, with the error raised, if this is no .qnx file or it is damaged. */
static bool read_header(qn_vm *vm, const char *path, const uint8_t *data, size_t len, graph_serialized *parts) {
  if (len < sizeof magic || memcmp(data, magic, sizeof magic) != 0)
    return file_refuse(vm, path, len ? "it is no .qnx file" : "the file is empty");
  if (len < HEADER) return file_refuse(vm, path, "the file is truncated");
  if (get_u32(data + 8) > VERSION)
    return file_refuse(vm, path, "it has version %u of the form, and this Quern (%s) reads versions up to %d",
                       (unsigned)get_u32(data + 8), QN_VERSION, VERSION);
  uint64_t text = get_u64(data + 16), elements = get_u64(data + 24), rest = len - HEADER;
  uint64_t start = text > rest ? rest + 1 : (text + GRAPH_RUN_ALIGN - 1) / GRAPH_RUN_ALIGN * GRAPH_RUN_ALIGN;
  if (start > rest || elements > rest - start) return file_refuse(vm, path, "the file is truncated");
  uint8_t hash[HASH];
  hash_file(data, len, hash);
  if (elements != rest - start || get_u32(data + 8) == 0 || get_u32(data + 12) != 0 ||
      memcmp(hash, data + HASH_AT, HASH) != 0)
    return file_refuse(vm, path, "the file is damaged: its contents do not have its hash");
  *parts = (graph_serialized){data + HEADER, data + HEADER + start, (size_t)text, (size_t)elements};
  return true;
}

qn_value qnx_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len) {
  graph_serialized parts;
  if (!read_header(vm, path, data, len, &parts)) return value_error();
  char why[400];
  qn_value g = jit_graph_deserialize(vm, &parts, why, sizeof why);
  if (value_is_error(g) && !error_pending(vm)) file_refuse(vm, path, "the file is damaged: %s", why);
  return g;
}
