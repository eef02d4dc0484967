/* Values: 16 bytes, a header word and a payload.
 *
 *   head  bits 0..7    tag (value_tag)
 *         bits 8..31   zero, except for TAG_DTYPE and TAG_DEVICE, which keep all in the payload too
 *         bits 32..63  graph node id; 0 when the value is not traced
 *   u     i (bool, int, dtype, device), f (float), p (heap object)
 *
 * While a call is recorded, a host int, float or bool carries the id of its graph node beside its concrete value.
 * So `v.head == TAG_INT` asks "a plain int?" in one comparison; whoever finds a node id goes the slow way through
 * the recorder. Node ids grow over the life of a VM and are never reused, so an id left over from an older recording
 * is below the current recording's first id and means "not traced" (rec.h). Arrays keep their node id in the object.
 *
 * Ownership: arguments are borrowed, results are owned. Reference counts are not atomic: a value belongs to its VM,
 * a VM to one thread at a time. Values cannot form cycles, so counts are all there is.
 */
#ifndef LANG_VALUE_H
#define LANG_VALUE_H

#include "lang/quern.h"

typedef enum value_tag {
  TAG_NIL = 0,
  TAG_BOOL = 1,
  TAG_INT = 2,
  TAG_FLOAT = 3,
  TAG_DTYPE = 4,  /* u.i is a qn_dtype */
  TAG_DEVICE = 5, /* u.i is the code of a device (device.h) */
  /* Signals: never visible to programs. */
  TAG_ERROR = 8,   /* the VM holds an error object (or an interrupt) */
  TAG_UNSET = 9,   /* a slot or argument without a value */
  TAG_SIGNAL = 10, /* break, continue, return on its way (interp) */
  /* Heap objects: u.p points to an obj_head. */
  TAG_HEAP = 16,
  TAG_STR = 16,
  TAG_LIST = 17,
  TAG_RECORD = 18,
  TAG_ARRAY = 19,
  TAG_FN = 20,
  TAG_RANGE = 21,
  TAG_MODULE = 22
} value_tag;

/* What every heap object begins with. */
typedef struct obj_head {
  uint32_t refs;
  uint8_t tag;   /* value_tag */
  uint8_t flags; /* by kind */
  uint16_t aux;  /* by kind */
} obj_head;

typedef struct qn_str qn_str;
typedef struct qn_list qn_list;
typedef struct qn_record qn_record;
typedef struct qn_array qn_array;
typedef struct qn_fn qn_fn;
typedef struct qn_range qn_range;
typedef struct qn_module qn_module;

static inline value_tag value_tag_of(qn_value v) { return (value_tag)(v.head & 0xff); }
static inline uint32_t value_node(qn_value v) { return (uint32_t)(v.head >> 32); }
static inline bool value_is(qn_value v, value_tag t) { return (v.head & 0xff) == (uint64_t)t; }
static inline bool value_is_heap(qn_value v) { return (v.head & TAG_HEAP) != 0; }
static inline bool value_is_error(qn_value v) { return v.head == TAG_ERROR; }
static inline bool value_is_number(qn_value v) { return value_is(v, TAG_INT) || value_is(v, TAG_FLOAT); }
/* Is it a bool, int or float? Those are weak beside an array. */
static inline bool value_is_scalar(qn_value v) { return (v.head & 0xff) - TAG_BOOL <= TAG_FLOAT - TAG_BOOL; }
/* Is it an array, bool, int or float, which ops compute with? */
static inline bool value_is_operand(qn_value v) { return value_is(v, TAG_ARRAY) || value_is_scalar(v); }
/* Is it an array, list or record: something that is or may hold arrays? */
static inline bool value_is_data(qn_value v) { return (v.head & 0xff) - TAG_LIST <= TAG_ARRAY - TAG_LIST; }

static inline qn_value value_nil(void) { return (qn_value){.head = TAG_NIL, .u.i = 0}; }
static inline qn_value value_bool(bool b) { return (qn_value){.head = TAG_BOOL, .u.i = b}; }
static inline qn_value value_int(int64_t i) { return (qn_value){.head = TAG_INT, .u.i = i}; }
static inline qn_value value_float(double f) { return (qn_value){.head = TAG_FLOAT, .u.f = f}; }
static inline qn_value value_dtype(qn_dtype d) { return (qn_value){.head = TAG_DTYPE, .u.i = (int64_t)d}; }
static inline qn_value value_device(int code) { return (qn_value){.head = TAG_DEVICE, .u.i = code}; }
static inline qn_value value_error(void) { return (qn_value){.head = TAG_ERROR, .u.i = 0}; }
static inline qn_value value_unset(void) { return (qn_value){.head = TAG_UNSET, .u.i = 0}; }
/* A heap object as a value; takes over the caller's reference. */
static inline qn_value value_obj(value_tag t, void *p) { return (qn_value){.head = (uint64_t)t, .u.p = p}; }
/* A new object as a value; takes over the reference. NULL, which means that making it has raised an error, becomes the error value. */
static inline qn_value value_new(value_tag t, void *p) { return p ? value_obj(t, p) : value_error(); }
static inline qn_value value_traced(qn_value v, uint32_t node) {
  v.head = (v.head & 0xffffffffu) | (uint64_t)node << 32;
  return v;
}

static inline qn_value value_retain(qn_value v) {
  if (value_is_heap(v)) ((obj_head *)v.u.p)->refs++;
  return v;
}
static inline bool value_is_container(qn_value v) { return value_is(v, TAG_LIST) || value_is(v, TAG_RECORD); }
/* In the flags of a list or record: nothing in it, at any depth, is a list that stands for another one while a call is recorded (jit/trace/stacked.c, which
 * sets this, so that a container is looked through once). Whoever stores a value in a container that has one owner tells it by parts_note_item; it need not
 * be told while there are no such lists (vm.asked.stacked is 0), or what the caller has found to hold none. */
enum { PARTS_PLAIN = 128 };
static inline bool parts_are_plain(qn_value v) {
  return !value_is_container(v) || (((obj_head *)v.u.p)->flags & PARTS_PLAIN);
}
static inline void parts_note_item(obj_head *o, qn_value item) {
  if (!parts_are_plain(item)) o->flags &= (uint8_t)~PARTS_PLAIN;
}
/* The values that a list, record or function holds (borrowed), and how many; NULL and 0 for objects of other kinds. */
qn_value *value_parts(obj_head *o, uint32_t *n);
/* A list, record or function like v, whose parts are all nil. Owned, or the error value. */
QN_MUST_CHECK qn_value parts_like(qn_vm *vm, qn_value v);
/* Frees the object whose last reference went away; iterative, so any depth is safe. */
void value_free(qn_vm *vm, qn_value v);
static inline void value_release(qn_vm *vm, qn_value v) {
  if (value_is_heap(v) && --((obj_head *)v.u.p)->refs == 0) value_free(vm, v);
}
/* Releases a value that an error keeps from being the result, and returns the error value. */
static inline qn_value value_fail(qn_vm *vm, qn_value v) {
  value_release(vm, v);
  return value_error();
}
/* Is there only one owner? Then the object may be updated in place. */
static inline bool value_unique(qn_value v) { return ((obj_head *)v.u.p)->refs == 1; }

static inline qn_str *value_str(qn_value v) { return (qn_str *)v.u.p; }
static inline qn_list *value_list(qn_value v) { return (qn_list *)v.u.p; }
static inline qn_record *value_record(qn_value v) { return (qn_record *)v.u.p; }
static inline qn_array *value_array(qn_value v) { return (qn_array *)v.u.p; }
static inline qn_fn *value_fn(qn_value v) { return (qn_fn *)v.u.p; }
static inline qn_range *value_range(qn_value v) { return (qn_range *)v.u.p; }

/* The language's word for a kind: "int", "list", "array", ... (a static string). */
const char *value_kind_name(qn_value v);

/* Structural equality, the `==` of the language where no operand makes it elementwise: kinds differ -> false; int and
 * float compare exactly; lists and records by structure (records by name), arrays by shape, dtype and elements,
 * functions by identity (while a call is recorded vm_hooks.same_fn answers). Iterative. Returns 1, 0, or -1 with an error (out of memory, or forcing an array failed). */
QN_MUST_CHECK int value_equal(qn_vm *vm, qn_value a, qn_value b);

/* An int and a float in order, by their exact values (no rounding of the int): -1, 0 or 1; ORDER_NONE where the float is nan. */
enum { ORDER_NONE = 2 };
int number_order(int64_t i, double f);

/* ---- strings ----------------------------------------------------------------------------------------- */

/* UTF-8, NUL-terminated for C's sake. Immutable, but for str_append to a string with one owner. Interned strings (all names) are
 * equal exactly if their pointers are. */
struct qn_str {
  obj_head head; /* flags: STR_INTERNED, STR_ASCII; aux: class of its block's size if it has room to grow, else 0 */
  uint32_t hash; /* of the bytes, if interned */
  uint32_t len;  /* bytes */
  char text[];
};
/* STR_WAITS: its bytes depend on values of a call that was recorded when it was made; the recorder knows which (jit/trace/rec.h). */
enum { STR_INTERNED = 1, STR_ASCII = 2, STR_WAITS = 4 };

/* NULL with an error raised (E601, E605). `text` must be valid UTF-8 (checked where text enters the VM: utf8_valid). */
QN_MUST_CHECK qn_str *str_new(qn_vm *vm, const char *text, size_t len);
/* The VM's unique string of these bytes; owned result. */
QN_MUST_CHECK qn_str *str_intern(qn_vm *vm, const char *text, size_t len);
/* Appends `tail` to *v (an owned TAG_STR value). If it has one owner this is done in place, in O(length of tail) on average. On failure *v
 * is as before. */
QN_MUST_CHECK bool str_append(qn_vm *vm, qn_value *v, const qn_str *tail);
uint32_t str_hash_of(const qn_str *s);
bool str_equal(const qn_str *a, const qn_str *b);
int str_compare(const qn_str *a, const qn_str *b); /* -1, 0 or 1, by code point */
int64_t str_length(const qn_str *s);               /* code points */
size_t str_offset(const qn_str *s, int64_t i);     /* byte offset of code point i; at most the length */
int64_t utf8_count(const char *text, size_t len);  /* code points */
bool utf8_valid(const char *text, size_t len);
size_t utf8_valid_prefix(const char *text, size_t len); /* bytes of the longest valid beginning */
/* Puts '?' in place of each byte that is not part of UTF-8: for names of files in messages. */
void utf8_clean(char *text, size_t len);
/* Decodes one code point at `s` (valid UTF-8) and returns its length in bytes. */
int utf8_decode(const char *s, uint32_t *code);
int utf8_encode(uint32_t code, char out[4]);
/* Terminal columns of a code point: 0, 1 or 2. */
int utf8_width(uint32_t code);
/* Terminal columns of a text without line breaks. */
int64_t utf8_columns(const char *text, size_t len);

/* A growing text, for everything that builds strings: it begins as {.vm = vm}. Errors stick: append freely, test once at the end. */
typedef struct text_buf {
  qn_vm *vm; /* accounting; NULL uses plain malloc (file tools, tests) */
  char *text;
  size_t len, cap;
  bool failed; /* out of memory or too long: the error is raised when the buffer is taken */
} text_buf;
enum { TEXT_MAX = INT32_MAX };
void text_add(text_buf *t, const char *s, size_t len);
void text_adds(text_buf *t, const char *s);
/* No %f, %e or %g: these depend on the locale (text_float, text_decimal). */
void text_addf(text_buf *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_repeat(text_buf *t, const char *s, int n);
void text_free(text_buf *t);
/* Has everything been written? If not, raises the out-of-memory error. The buffer stays. */
QN_MUST_CHECK bool text_good(text_buf *t);
/* Frees a text that an error keeps from being finished, and returns the error value. */
static inline qn_value text_fail(text_buf *t) {
  text_free(t);
  return value_error();
}
/* `text_buf t TEXT_OWNED;`: freed as its block is left. In files compiled with -fexceptions also when a host's exception passes. */
#define TEXT_OWNED __attribute__((cleanup(text_free)))
/* The buffer as a string value; frees the buffer. Error value when it failed. */
QN_MUST_CHECK qn_value text_take(text_buf *t);
/* The shortest text that, read as a double, rounds to `x` in the float dtype: "1.0", "1e-7", "inf", "nan". Of several
 * shortest ones it is the one nearest to `x`. Exponents appear below 1e-4 and from 1e16 on. */
void text_float(text_buf *t, double x, qn_dtype dtype);
/* Writes what printf does for %f, %e and %g (`style` is 'f', 'e' or 'g'), correctly rounded and independent of the locale. */
void text_decimal(text_buf *t, double x, char style, int precision);
void text_int(text_buf *t, int64_t i);
/* `text` as a string literal of the language, quotes included. */
void text_quoted(text_buf *t, const char *text, size_t len);

/* Reads a decimal number, correctly rounded, whatever the locale: sign, digits (`_` between them), `.digits`, `e` and an
 * exponent; also "inf" and "nan". The whole text must be the number. Too large is inf. */
bool float_parse(const char *text, size_t len, double *out);
/* Reads a decimal or 0x integer (sign and `_` allowed); false if the text is none or the value does not fit. */
bool int_parse(const char *text, size_t len, int64_t *out);

/* `aux` of a list or range that progress(...) made: loops over it are shown on the terminal (vm_hooks.progress). */
enum { OBJ_PROGRESS = 1 };

/* ---- lists ------------------------------------------------------------------------------------------- */

/* Copy-on-write: whoever wants to change a list with another owner copies it first (list_own). */
struct qn_list {
  obj_head head;
  uint32_t len, cap;
  qn_value *items;
};

/* A list of `n` items, all nil, to be filled in by the caller. */
QN_MUST_CHECK qn_list *list_new(qn_vm *vm, size_t n);
/* A list from borrowed items. */
QN_MUST_CHECK qn_list *list_from(qn_vm *vm, const qn_value *items, size_t n);
/* Makes `*v` (an owned TAG_LIST value) the only owner of its list, copying if need be. */
QN_MUST_CHECK bool list_own(qn_vm *vm, qn_value *v);
/* Appends to a list with one owner: amortised O(1). Takes over `item`, also on failure. */
QN_MUST_CHECK bool list_push(qn_vm *vm, qn_list *l, qn_value item);
/* Appends the items of `tail` to *v (an owned TAG_LIST value), in place if it has one owner. On failure *v is as before. */
QN_MUST_CHECK bool list_extend(qn_vm *vm, qn_value *v, const qn_list *tail);

/* ---- records ----------------------------------------------------------------------------------------- */

/* The ordered field names of a record, shared by all records built the same way (a "layout"). Up to LAYOUT_SHARED_MAX names
 * a layout is unique in the VM per sequence of names: equal layouts are equal pointers. Above that a record has a layout
 * of its own (`shared` false), which grows in place while one record uses it.
 *
 * A site (`r.w` in the program) may cache (layout, index) of a shared layout. It then owns a reference to the layout, so
 * that the address is not reused: if r->layout is the cached pointer, r->items[index] is the field. */
typedef struct record_layout {
  uint32_t refs;
  uint32_t len, cap;
  bool shared;
  uint32_t hash;   /* of the sequence of names, if shared */
  uint32_t nslots; /* hash index: a power of two, 0 while the names are few enough to look through */
  qn_str **names;  /* interned, in field order */
  uint32_t *slots; /* index + 1 of a name, 0: empty */
} record_layout;
enum { LAYOUT_SHARED_MAX = 64 };
record_layout *layout_retain(record_layout *l);
void layout_release(qn_vm *vm, record_layout *l);
/* The layout of a sequence of distinct interned names; owned. */
QN_MUST_CHECK record_layout *layout_of(qn_vm *vm, qn_str *const *names, uint32_t n);
int layout_find(const record_layout *l, const qn_str *name); /* index, or -1 */

struct qn_record {
  obj_head head; /* flags: RECORD_REPORT, PARTS_PLAIN; aux: what the items of a report were */
  uint32_t len, cap;
  record_layout *layout;
  qn_value *items; /* in field order */
};

enum { RECORD_REPORT = 1 };

QN_MUST_CHECK qn_record *record_new(qn_vm *vm);
/* A record of a known layout (borrowed) with nil items, to be filled in by the caller. */
QN_MUST_CHECK qn_record *record_of(qn_vm *vm, record_layout *layout);
/* Index of a field, or -1. `name` need not be interned. */
int record_find(const qn_record *r, const qn_str *name);
int record_find_text(const qn_record *r, const char *name, size_t len);
qn_str *record_name(const qn_record *r, uint32_t index); /* borrowed */
/* Sets or adds a field of a record with one owner. Takes over `item`, also on failure; borrows `name`. */
QN_MUST_CHECK bool record_set(qn_vm *vm, qn_record *r, qn_str *name, qn_value item);
/* record_set for a name that is given as a C string. Takes over `item`, also on failure. If `item` is the error value the result is false, so
 * that calls can be chained. */
QN_MUST_CHECK bool record_set_named(qn_vm *vm, qn_record *r, const char *name, qn_value item);
/* A new record of the same fields and values. */
QN_MUST_CHECK qn_record *record_copy(qn_vm *vm, const qn_record *r);
/* Makes `*v` (an owned TAG_RECORD value) the only owner of its record, copying if need be. */
QN_MUST_CHECK bool record_own(qn_vm *vm, qn_value *v);
/* A copy without the field (which must exist). */
QN_MUST_CHECK qn_record *record_without(qn_vm *vm, const qn_record *r, int index);
/* A record of the same names with nil items: what tree walks fill in. */
QN_MUST_CHECK qn_record *record_like(qn_vm *vm, const qn_record *r);
/* Makes a record a report: it prints as the text in its field `report`, until one of its fields is changed. Copies of it are plain. */
void record_make_report(qn_record *r);
/* The text as which a record prints; NULL if it is no report. Borrowed. */
const qn_str *record_report(const qn_record *r);
/* Whether two records have the same names in the same order. */
bool record_same_layout(const qn_record *a, const qn_record *b);

/* ---- ranges, functions, modules ------------------------------------------------------------------------ */

struct qn_range {
  obj_head head;
  int64_t start, stop, step; /* step is not 0 */
};
QN_MUST_CHECK qn_range *range_new(qn_vm *vm, int64_t start, int64_t stop, int64_t step);
int64_t range_length(const qn_range *r);
/* Item i of a range, which must have that many items. */
static inline int64_t range_item(const qn_range *r, int64_t i) {
  return (int64_t)((uint64_t)r->start + (uint64_t)i * (uint64_t)r->step);
}
/* The `n` items of `r` from `first` on, every `step`-th of them (backwards if negative). */
QN_MUST_CHECK qn_range *range_slice(qn_vm *vm, const qn_range *r, int64_t first, int64_t n, int64_t step);

/* A function value: code plus captured values. What `code` points to depends on `kind`; lang only frees captures.
 *   FN_USER       interp's function code; captures are its captured locals, by value
 *   FN_BUILTIN    a builtin_def (builtin.h)
 *   FN_TRANSFORM  a transform_def (jit/trace): captures[0] is the inner function, the rest its options
 *   FN_GRAPH      a graph_body (jit/trace), which begins with an fn_shared; captures are the values that it is bound to
 */
typedef enum fn_kind { FN_USER, FN_BUILTIN, FN_TRANSFORM, FN_GRAPH } fn_kind;
struct qn_fn {
  obj_head head; /* flags: fn_kind */
  uint32_t ncaptures;
  uint32_t stand; /* of a tracer: 1 + its number among those of its recording (jit/trace); FN_BARE: bare; else 0 */
  uint64_t id;    /* identifies the function: no other has this number, except for those that fn_like makes */
  /* of an FN_USER or FN_GRAPH shared by the functions that have it (fn_shared); else it lives as long as the VM */
  void *code;
  qn_value captures[];
};
/* How the code of an FN_USER or FN_GRAPH begins. The function that loses the last reference to an FN_GRAPH's hands it to
 * vm_hooks.free_graph; that of an FN_USER is freed by its owner, some time after there are no functions that have it. */
typedef struct fn_shared {
  uint32_t refs; /* functions that have the code, except for bare ones */
  uint64_t id;   /* of an FN_USER: identifies the code for ever, while its address may be used again */
  void *home;    /* of an FN_USER: what it belongs to, all of whose code is freed at once; else NULL */
} fn_shared;
/* A new function whose captures are nil, to be filled in by the caller. It shares the code of an FN_USER or FN_GRAPH with the functions that
 * have it already. */
QN_MUST_CHECK qn_fn *fn_new(qn_vm *vm, fn_kind kind, void *code, uint32_t ncaptures);
/* fn_make_bare: the function, an FN_USER with one owner, no longer keeps its code alive. For owners that are freed before the code is, and
 * need the function only for fn_like. */
enum { FN_BARE = UINT32_MAX };
void fn_make_bare(qn_fn *f);
/* A new function with the code and the id of `f`, so that fn_same holds for the two. Its captures are nil, to be filled in by the caller. */
QN_MUST_CHECK qn_fn *fn_like(qn_vm *vm, const qn_fn *f);
/* Gives the function an id of its own: from now on it is another function than those that it was the same as. */
void fn_renew(qn_vm *vm, qn_fn *f);
/* Are two function values the same function? A function and what fn_like makes of it are. */
static inline bool fn_same(qn_value a, qn_value b) { return value_fn(a)->id == value_fn(b)->id; }

/* A module: its top-level scope belongs to the interpreter; the VM owns modules, values only point to them. The object is
 * made with mem_alloc(vm, sizeof(qn_module)); with its last reference the name goes, too, never the scope. */
struct qn_module {
  obj_head head;
  qn_str *name;
  void *scope; /* interp's */
};

/* ---- trees --------------------------------------------------------------------------------------------- */

/* Lists and records nest into trees whose leaves are arrays and numbers. A walk visits the leaves in field order.
 * Iterative: any depth is safe. */
/* Calls `leaf(ctx, value)` for every value that is neither list nor record; stops when it returns false.
 * Returns false with an error raised when memory ran out, or what `leaf` left. */
QN_MUST_CHECK bool tree_each(qn_vm *vm, qn_value tree, bool (*leaf)(void *ctx, qn_value v), void *ctx);
/* A tree of the same structure with every non-container value replaced by what `leaf` returns (owned; an error value
 * stops the walk). */
QN_MUST_CHECK qn_value tree_rebuild(qn_vm *vm, qn_value tree, qn_value (*leaf)(void *ctx, qn_value v), void *ctx);
/* tree_each and tree_rebuild for a `leaf` that need not see every place. A part that the tree holds many times over is visited once or a
 * few times, and the rebuilt tree shares what was made of it. So these two also take trees with more places than tree_each and
 * tree_rebuild allow (E605). */
QN_MUST_CHECK bool tree_each_part(qn_vm *vm, qn_value tree, bool (*leaf)(void *ctx, qn_value v), void *ctx);
QN_MUST_CHECK qn_value tree_rebuild_parts(qn_vm *vm, qn_value tree, qn_value (*leaf)(void *ctx, qn_value v), void *ctx);

/* ---- parts that are shared (shared.c) -------------------------------------------------------------------------------------- */

/* Containers of a walk that have other owners: a tree that holds them many times over has more places than anyone can visit. Starts
 * as zeros. */
typedef struct shared_parts {
  struct shared_part *parts;
  uint32_t n, cap;
  uint32_t *slots; /* number + 1 of a part, 0: empty */
  uint32_t nslots;
} shared_parts;
void shared_free(qn_vm *vm, shared_parts *s);
/* Does it follow from what shared_join has been told that two containers are equal? */
bool shared_equal(shared_parts *s, qn_value a, qn_value b);
/* Notes that two containers are equal. It may be called before they have been compared if any difference ends the whole comparison. False
 * with E601 raised. */
QN_MUST_CHECK bool shared_join(qn_vm *vm, shared_parts *s, qn_value a, qn_value b);
/* Where a walk keeps what it makes of a part: nil at first, and not owned by `s`. *before is set if this is not the first call for the part.
 * The pointer is good until the next call. NULL with E601 raised. */
QN_MUST_CHECK qn_value *shared_made(qn_vm *vm, shared_parts *s, qn_value v, bool *before);
/* True, with an error raised, if a tree has more places than `tree.places` because it holds the same parts many times over.
 * `captures`: functions are walked through, too. For tree_place (vm.h). */
QN_MUST_CHECK bool tree_is_endless(qn_vm *vm, qn_value root, bool captures);
enum {
  PLACES_LOOK = 4096,   /* places that a walk visits before anything is remembered or counted */
  PLACES_PER_PART = 16, /* a tree may always have so many times more places than parts, whatever tree.places says */
};

#endif
