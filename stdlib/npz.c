/* .npz: a zip archive of .npy members. Reading goes by the central directory, as the format demands; members may be stored or
 * deflated, each is checked by its CRC-32. No member may claim more bytes than deflate can make of what it has, and together
 * they may not claim more compressed bytes than the file has, so that a small file cannot ask for much memory. Zip64 and
 * encryption are refused. Writing stores members in field order with a fixed date: the same value gives the same bytes.
 */
#include <string.h>
#include <zlib.h>

#include "lang/error.h"
#include "stdlib/builtins.h"
#include "stdlib/io.h"

enum {
  SIG_LOCAL = 0x04034b50,
  SIG_CENTRAL = 0x02014b50,
  SIG_END = 0x06054b50,
  LOCAL_LEN = 30,
  CENTRAL_LEN = 46,
  END_LEN = 22,
  COMMENT_MAX = 65535,
  DEFLATE_RATIO = 1032, /* the most bytes that deflate makes of one */
  FLAG_ENCRYPTED = 1,
  FLAG_UTF8 = 0x800,
  DOS_DATE = 0x21, /* 1 January 1980 */
  VERSION = 20
};

/* ---- reading ------------------------------------------------------------------------------------------------------------ */

typedef struct archive {
  qn_vm *vm;
  const char *path;
  const uint8_t *data;
  size_t len;
  size_t directory, end; /* the central directory */
  uint32_t entries;
  size_t claimed; /* compressed bytes of members so far */
} archive;

static bool find_directory(archive *z) {
  if (z->len < END_LEN) return file_refuse(z->vm, z->path, "the archive is truncated");
  size_t at = z->len - END_LEN, stop = at > COMMENT_MAX ? at - COMMENT_MAX : 0;
  while (get_u32(z->data + at) != SIG_END || get_u16(z->data + at + 20) != z->len - at - END_LEN) {
    if (at == stop) {
      if (z->len >= 4 && get_u32(z->data) == SIG_LOCAL)
        return file_refuse(z->vm, z->path, "the archive is truncated: its directory is missing");
      return file_refuse(z->vm, z->path, "this is no .npz file: it has no zip directory");
    }
    at--;
  }
  const uint8_t *e = z->data + at;
  z->entries = get_u16(e + 10);
  size_t size = get_u32(e + 12), offset = get_u32(e + 16);
  if (z->entries == 0xffff || offset == 0xffffffff)
    return file_refuse(z->vm, z->path, "the archive is of the zip64 kind, which is not supported");
  if (get_u16(e + 4) || get_u16(e + 6)) return file_refuse(z->vm, z->path, "the archive has several parts");
  if (offset > at || size > at - offset)
    return file_refuse(z->vm, z->path, "the archive is damaged: its directory is out of place");
  z->directory = offset;
  z->end = offset + size;
  return true;
}

typedef struct member {
  const char *name; /* not NUL-terminated */
  size_t name_len;
  uint32_t method, crc;
  size_t packed, size;
  const uint8_t *data;
} member;

/* Reads and checks the directory entry at offset *at, and moves *at behind it. False with E502 raised. */
static bool next_member(archive *z, size_t *at, member *m) {
  const uint8_t *e = z->data + *at;
  if (z->end - *at < CENTRAL_LEN || get_u32(e) != SIG_CENTRAL)
    return file_refuse(z->vm, z->path, "the archive is damaged: its directory ends early");
  size_t name = get_u16(e + 28), extra = get_u16(e + 30), comment = get_u16(e + 32);
  if (z->end - *at - CENTRAL_LEN < name + extra + comment)
    return file_refuse(z->vm, z->path, "the archive is damaged: its directory ends early");
  *m = (member){.name = (const char *)e + CENTRAL_LEN,
                .name_len = name,
                .method = get_u16(e + 10),
                .crc = get_u32(e + 16),
                .packed = get_u32(e + 20),
                .size = get_u32(e + 24)};
  *at += CENTRAL_LEN + name + extra + comment;
  if (!utf8_valid(m->name, name) || memchr(m->name, 0, name))
    return file_refuse(z->vm, z->path, "a member's name is not UTF-8");
#define REFUSE(what) file_refuse(z->vm, z->path, "member %.*s %s", (int)name, m->name, what)
  if (get_u16(e + 8) & FLAG_ENCRYPTED) return REFUSE("is encrypted");
  size_t local = get_u32(e + 42);
  if (m->packed == 0xffffffff || m->size == 0xffffffff || local == 0xffffffff)
    return REFUSE("is of the zip64 kind, which is not supported");
  if (m->method != 0 && m->method != 8) return REFUSE("is compressed by a method other than deflate");
  if (local > z->directory || z->directory - local < LOCAL_LEN || get_u32(z->data + local) != SIG_LOCAL)
    return REFUSE("is not where the directory says");
  size_t start = local + LOCAL_LEN + get_u16(z->data + local + 26) + get_u16(z->data + local + 28);
  if (start > z->directory || m->packed > z->directory - start) return REFUSE("is truncated");
  z->claimed += m->packed;
  if (z->claimed > z->len) return REFUSE("overlaps another one");
  if (m->method == 0 ? m->size != m->packed : m->size / DEFLATE_RATIO > m->packed)
    return REFUSE("has an impossible size");
#undef REFUSE
  m->data = z->data + start;
  return true;
}

static bool inflate_member(archive *z, const member *m, uint8_t *out) {
  z_stream s = {.next_in = (Bytef *)m->data, .avail_in = (uInt)m->packed, .next_out = out, .avail_out = (uInt)m->size};
  if (inflateInit2(&s, -MAX_WBITS) != Z_OK) return raise_memory_false(z->vm);
  int code = inflate(&s, Z_FINISH);
  bool good = code == Z_STREAM_END && s.avail_out == 0 && s.avail_in == 0;
  inflateEnd(&s);
  if (code == Z_MEM_ERROR) return raise_memory_false(z->vm);
  return good ||
         file_refuse(z->vm, z->path, "member %.*s is damaged: it does not decompress", (int)m->name_len, m->name);
}

static qn_value read_member(archive *z, const member *m) {
  qn_vm *vm = z->vm;
  uint8_t *unpacked = NULL;
  const uint8_t *data = m->data;
  if (m->method == 8) {
    data = unpacked = mem_alloc(vm, m->size + 1);
    if (!unpacked) return value_error();
    if (!inflate_member(z, m, unpacked)) {
      mem_free(vm, unpacked, m->size + 1);
      return value_error();
    }
  }
  qn_value out;
  text_buf name = {.vm = vm};
  text_adds(&name, z->path);
  text_adds(&name, ": ");
  text_add(&name, m->name, m->name_len);
  text_add(&name, "", 1);
  if (!text_good(&name))
    out = value_error();
  else if (crc32_z(crc32_z(0, NULL, 0), data, m->size) != m->crc)
    out = file_error(vm, name.text, "damaged: its checksum is wrong");
  else
    out = npy_read(vm, name.text, data, m->size);
  text_free(&name);
  if (unpacked) mem_free(vm, unpacked, m->size + 1);
  return out;
}

static bool read_members(archive *z, qn_record *r) {
  qn_vm *vm = z->vm;
  size_t at = z->directory;
  for (uint32_t i = 0; i < z->entries; i++) {
    member m = {0};
    if (!next_member(z, &at, &m)) return false;
    if (m.name_len < 4 || memcmp(m.name + m.name_len - 4, ".npy", 4) != 0)
      return file_refuse(vm, z->path, "member %.*s is no .npy file", (int)m.name_len, m.name);
    qn_str *name = str_intern(vm, m.name, m.name_len - 4);
    if (!name) return false;
    bool good = record_find(r, name) < 0 || file_refuse(vm, z->path, "two members are called %s", name->text);
    qn_value v = good ? read_member(z, &m) : value_error();
    good = !value_is_error(v) && record_set(vm, r, name, v);
    value_release(vm, value_obj(TAG_STR, name));
    if (!good) return false;
  }
  return true;
}

qn_value npz_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len) {
  archive z = {.vm = vm, .path = path, .data = data, .len = len};
  if (!find_directory(&z)) return value_error();
  qn_record *r = record_new(vm);
  if (!r) return value_error();
  qn_value out = value_obj(TAG_RECORD, r);
  return read_members(&z, r) ? out : value_fail(vm, out);
}

/* ---- writing --------------------------------------------------------------------------------------------------------------- */

typedef struct writer {
  qn_vm *vm;
  bytes *out;
  bytes directory;
  uint32_t entries;
} writer;

static bool too_large(qn_vm *vm) {
  return raise_false(vm, E_too_large, "save: .npz holds at most 4 GiB; .npy has no such limit");
}

/* Writes the fields that local and central headers have in common, from the version to the length of the name. */
static void put_common(uint8_t *p, uint32_t crc, size_t size, const text_buf *name) {
  bool ascii = true;
  for (size_t i = 0; i < name->len; i++) ascii &= (name->text[i] & 0x80) == 0;
  put_u16(p, VERSION);
  put_u16(p + 2, ascii ? 0 : FLAG_UTF8);
  put_u16(p + 8, DOS_DATE);
  put_u32(p + 10, crc);
  put_u32(p + 14, (uint32_t)size);
  put_u32(p + 18, (uint32_t)size);
  put_u16(p + 22, (uint32_t)name->len);
}

static bool write_member(writer *w, qn_value v, const text_buf *name) {
  qn_vm *vm = w->vm;
  size_t local = w->out->len;
  if (name->len > 0xffff) return raise_false(vm, E_argument, "save: a dotted name has more than 65,535 bytes");
  if (w->entries == 0xfffe || local >= UINT32_MAX) return too_large(vm);
  uint8_t head[LOCAL_LEN] = {0}, entry[CENTRAL_LEN] = {0};
  if (!bytes_add(vm, w->out, head, sizeof head) || !bytes_add(vm, w->out, name->text, name->len)) return false;
  size_t start = w->out->len;
  if (!npy_write(vm, v, w->out)) return false;
  size_t size = w->out->len - start;
  if (w->out->len >= UINT32_MAX) return too_large(vm);
  uint32_t crc = (uint32_t)crc32_z(crc32_z(0, NULL, 0), w->out->data + start, size);
  put_u32(head, SIG_LOCAL);
  put_common(head + 4, crc, size, name);
  memcpy(w->out->data + local, head, sizeof head);
  put_u32(entry, SIG_CENTRAL);
  put_u16(entry + 4, VERSION);
  put_common(entry + 6, crc, size, name);
  put_u32(entry + 42, (uint32_t)local);
  w->entries++;
  return bytes_add(vm, &w->directory, entry, sizeof entry) && bytes_add(vm, &w->directory, name->text, name->len);
}

static bool write_members(writer *w, const qn_record *flat) {
  bool good = true;
  for (uint32_t i = 0; i < flat->len && good; i++) {
    text_buf name = {.vm = w->vm};
    text_add(&name, record_name(flat, i)->text, record_name(flat, i)->len);
    text_adds(&name, ".npy");
    good = !vm_poll(w->vm) && text_good(&name) && write_member(w, flat->items[i], &name);
    text_free(&name);
  }
  return good;
}

bool npz_write(qn_vm *vm, qn_value tree, bytes *out) {
  qn_value flat = leaves_by_name(vm, ".npz", tree);
  if (value_is_error(flat)) return false;
  writer w = {.vm = vm, .out = out};
  bool good = write_members(&w, value_record(flat));
  value_release(vm, flat);
  if (good && (out->len >= UINT32_MAX || w.directory.len >= UINT32_MAX)) good = too_large(vm);
  if (good) {
    uint8_t end[END_LEN] = {0};
    put_u32(end, SIG_END);
    put_u16(end + 8, w.entries);
    put_u16(end + 10, w.entries);
    put_u32(end + 12, (uint32_t)w.directory.len);
    put_u32(end + 16, (uint32_t)out->len);
    good = bytes_add(vm, out, w.directory.data, w.directory.len) && bytes_add(vm, out, end, sizeof end);
  }
  bytes_free(vm, &w.directory);
  return good;
}
