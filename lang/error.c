/* Error objects: raising, catching, and their form as records. Rendering is in report.c.
 *
 * The out-of-memory error exists since the VM opened. It is one object: `refs` counts those who hold it (the VM as the
 * pending error, whoever took it), and it is emptied rather than freed when nobody does.
 */
#include "lang/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lang/internal.h"
#include "lang/op.h"

const error_row error_rows[] = {
#define PAGE(example, hint) example, hint, NULL
#define WHEN(sentence) NULL, NULL, sentence
#define ERR(id, symbol, title, help, page) {id, #symbol, title, help, page},
#include "lang/errors.def"
#undef ERR
#undef PAGE
#undef WHEN
};
const int error_row_count = sizeof error_rows / sizeof *error_rows;

const error_row *error_find(int id) {
  int lo = 0, hi = error_row_count;
  while (lo < hi) {
    int mid = (lo + hi) / 2;
    if (error_rows[mid].id < id)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo < error_row_count && error_rows[lo].id == id ? &error_rows[lo] : NULL;
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

static void release_str(qn_vm *vm, qn_str *s) {
  if (s) value_release(vm, value_obj(TAG_STR, s));
}

/* Releases what an error refers to, except for its message. */
static void error_empty(qn_vm *vm, qn_error_object *e) {
  for (int i = 0; i < e->nnotes; i++) release_str(vm, e->notes[i].text);
  for (int i = 0; i < e->nframes; i++) release_str(vm, e->frames[i].function);
  e->nnotes = e->nframes = e->frames_dropped = 0;
  e->at = e->outer = SPAN_NONE;
  e->later = 0;
  e->settled = e->rethrown = false;
  qn_value payload = e->payload;
  e->payload = value_nil();
  value_release(vm, payload);
}

bool error_open(qn_vm *vm) {
  qn_error_object *e = mem_try_alloc(vm, sizeof *e);
  if (!e) return false;
  memset(e, 0, sizeof *e);
  e->id = E_memory;
  e->payload = value_nil();
  const char *text = error_find(E_memory)->title;
  vm->memory_error = e;
  e->message = str_new(vm, text, strlen(text));
  return e->message != NULL;
}

void error_close(qn_vm *vm) {
  qn_error_object *e = vm->memory_error;
  if (!e) return;
  release_str(vm, e->message);
  mem_free(vm, e, sizeof *e);
  vm->memory_error = NULL;
}

void error_free(qn_vm *vm, qn_error_object *e) {
  if (!e || --e->refs) return;
  error_empty(vm, e);
  if (e == vm->memory_error) return;
  release_str(vm, e->message);
  mem_free(vm, e, sizeof *e);
}

qn_error_object *error_copy(qn_vm *vm, const qn_error_object *e) {
  qn_error_object *own = mem_alloc(vm, sizeof *own);
  if (!own) return NULL;
  *own = *e;
  own->refs = 1;
  (void)value_retain(value_obj(TAG_STR, own->message));
  for (int i = 0; i < own->nnotes; i++)
    if (own->notes[i].text) (void)value_retain(value_obj(TAG_STR, own->notes[i].text));
  for (int i = 0; i < own->nframes; i++)
    if (own->frames[i].function) (void)value_retain(value_obj(TAG_STR, own->frames[i].function));
  (void)value_retain(own->payload);
  return own;
}

/* ---- raising ------------------------------------------------------------------------------------------------- */

qn_value raise_memory(qn_vm *vm) {
  if (!vm->error && vm->memory_error) {
    vm->error = vm->memory_error;
    vm->error->refs++;
  }
  return value_error();
}

qn_value raise_text(qn_vm *vm, error_id id, span at, text_buf *message) {
  if (vm->error) return text_fail(message);
  /* Bytes that are not UTF-8 come from names of files, and from messages that were cut within a character. */
  if (!message->failed) utf8_clean(message->text, message->len);
  qn_value text = text_take(message);
  if (value_is_error(text)) return text;
  qn_error_object *e = mem_alloc(vm, sizeof *e);
  if (!e) return value_fail(vm, text);
  memset(e, 0, sizeof *e);
  e->refs = 1;
  e->id = id;
  e->message = value_str(text);
  e->at = at;
  e->payload = value_nil();
  vm->error = e;
  return value_error();
}

static void raise_formatted(qn_vm *vm, error_id id, span at, const char *format, va_list args) {
  if (vm->error) return;
  text_buf t = {.vm = vm};
  text_addv(&t, format, args);
  raise_text(vm, id, at, &t);
}

qn_value raise_error(qn_vm *vm, error_id id, span at, const char *format, ...) {
  va_list args;
  va_start(args, format);
  raise_formatted(vm, id, at, format, args);
  va_end(args);
  return value_error();
}

bool raise_false(qn_vm *vm, error_id id, const char *format, ...) {
  va_list args;
  va_start(args, format);
  raise_formatted(vm, id, SPAN_NONE, format, args);
  va_end(args);
  return false;
}

void *raise_nothing(qn_vm *vm, error_id id, span at, const char *format, ...) {
  va_list args;
  va_start(args, format);
  raise_formatted(vm, id, at, format, args);
  va_end(args);
  return NULL;
}

void raise_note(qn_vm *vm, span at, const char *format, ...) {
  qn_error_object *e = vm->error;
  if (!e || e->nnotes == ERROR_NOTES || e->refs > 1) return;
  text_buf t = {.vm = vm};
  va_list args;
  va_start(args, format);
  text_addv(&t, format, args);
  va_end(args);
  /* A note that finds no memory is left out. */
  qn_str *s = t.failed ? NULL : str_new(vm, t.text ? t.text : "", t.len);
  text_free(&t);
  if (s) e->notes[e->nnotes++] = (error_note){at, s};
}

qn_value raise_at(qn_vm *vm, span at) {
  qn_error_object *e = vm->error;
  if (e && !e->at.source && e->refs == 1) e->at = at;
  return value_error();
}

static bool is_builtin(const qn_vm *vm, const char *name, size_t n) {
  for (int i = 0; i < OP_COUNT; i++)
    if (strlen(op_rows[i].name) == n && memcmp(op_rows[i].name, name, n) == 0) return true;
  for (int i = 0; vm->builtins && i < vm->builtins->nbuiltins; i++)
    if (strlen(vm->builtins->builtins[i].name) == n && memcmp(vm->builtins->builtins[i].name, name, n) == 0)
      return true;
  return false;
}

/* Gives the error the message `text`. If the library function that the program called is known (`function`, of n bytes) the message begins
 * with its name: "softmax: expected ..." instead of "max: expected ...". `named`: length of the function name that `text` begins with already,
 * or 0. False if memory ran out, which is the pending error then. */
static bool set_message(qn_vm *vm, qn_error_object *e, const char *function, size_t n, const char *text, size_t named) {
  if (n && !named) {
    const char *colon = strstr(text, ": ");
    size_t word = colon ? (size_t)(colon - text) : 0;
    if (word && ((word == n && memcmp(text, function, n) == 0) || is_builtin(vm, text, word))) named = word;
  }
  if (n && named) text += named + strlen(": ");
  text_buf t = {.vm = vm};
  text_add(&t, function, n);
  text_addf(&t, "%s%s", n ? ": " : "", text);
  qn_str *s = t.failed ? NULL : str_new(vm, t.text, t.len);
  text_free(&t);
  if (!s) {
    span at = e->at;
    error_clear(vm);
    raise_memory(vm);
    raise_at(vm, at);
    return false;
  }
  release_str(vm, e->message);
  e->message = s;
  e->named = (uint32_t)n;
  return true;
}

void raise_retell(qn_vm *vm, const char *text) {
  qn_error_object *e = vm->error;
  if (e && e->refs == 1) (void)set_message(vm, e, e->message->text, e->named, text, 0);
}

bool raise_through(qn_vm *vm, span call, const char *function) {
  qn_error_object *e = vm->error;
  if (!e || e->refs > 1) return false;
  const source_text *inner = source_get(vm, e->at.source), *outer = source_get(vm, call.source);
  if (!inner || !inner->library) return false;
  if (function && (e->id < E_memory || e->id > E_limit)) { /* interrupts and limits concern the session, not a call */
    if ((e->id == E_user || e->id == E_assertion) && value_is(e->payload, TAG_NIL)) e->id = E_argument;
    if (!set_message(vm, e, function, strlen(function), e->message->text, e->named)) e = vm->error;
    if (!e || e->refs > 1) return false;
  }
  if (!outer || outer->library) return false;
  e->at = call;
  int kept = 0; /* notes that do not point into the library */
  for (int i = 0; i < e->nnotes; i++) {
    if (e->notes[i].at.source)
      release_str(vm, e->notes[i].text);
    else
      e->notes[kept++] = e->notes[i];
  }
  e->nnotes = kept;
  return true;
}

void raise_frame(qn_vm *vm, span at, qn_str *function) {
  qn_error_object *e = vm->error;
  if (!e || e->refs > 1) return;
  if (e->nframes == ERROR_FRAMES) {
    /* The innermost half of the frames stays. In the outer half the oldest frame is dropped. */
    release_str(vm, e->frames[ERROR_FRAMES / 2].function);
    memmove(&e->frames[ERROR_FRAMES / 2], &e->frames[ERROR_FRAMES / 2 + 1],
            (ERROR_FRAMES - ERROR_FRAMES / 2 - 1) * sizeof e->frames[0]);
    e->nframes--;
    e->frames_dropped++;
  }
  if (function) function->head.refs++;
  e->frames[e->nframes++] = (error_frame){at, function};
}

void raise_outside(qn_vm *vm, span call) {
  qn_error_object *e = vm->error;
  if (e && e->refs == 1 && e->nframes && !e->settled) e->outer = call;
}

void raise_from(qn_vm *vm, uint32_t shared, span place, uint32_t later) {
  qn_error_object *e = vm->error;
  if (!e || e->refs > 1) return;
  for (; shared && e->nframes; shared--) release_str(vm, e->frames[--e->nframes].function);
  e->outer = place;
  e->later = later;
  e->settled = true;
}

bool error_pending(const qn_vm *vm) { return vm->error != NULL; }

bool error_catchable(const qn_vm *vm) {
  return vm->error && vm->error->id != E_interrupted && vm->error->id != E_limit;
}

qn_error_object *error_take(qn_vm *vm) {
  qn_error_object *e = vm->error;
  vm->error = NULL;
  return e;
}

void error_put_back(qn_vm *vm, qn_error_object *e) {
  if (vm->error)
    error_free(vm, e);
  else
    vm->error = e;
}

void error_clear(qn_vm *vm) { error_free(vm, error_take(vm)); }

/* ---- records ------------------------------------------------------------------------------------------------- */

static qn_value new_str(qn_vm *vm, const char *text) { return value_new(TAG_STR, str_new(vm, text, strlen(text))); }

/* The number of code points in bytes [start, end) of a text. */
static int64_t code_points(const source_text *s, uint32_t start, uint32_t end) {
  int64_t n = 0;
  for (uint32_t i = start; i < end && i < s->len; i++) n += (s->text[i] & 0xc0) != 0x80;
  return n;
}

static qn_value frame_record(qn_vm *vm, const error_frame *f) {
  qn_value out = value_new(TAG_RECORD, record_new(vm));
  if (value_is_error(out)) return out;
  qn_record *r = value_record(out);
  const source_text *s = source_get(vm, f->at.source);
  int line = 0, column = 0;
  if (s) source_position(s, f->at.start, &line, &column);
  qn_value function = f->function ? value_retain(value_obj(TAG_STR, f->function)) : value_nil();
  if (record_set_named(vm, r, "function", function) &&
      record_set_named(vm, r, "source", new_str(vm, s ? s->name : "")) &&
      record_set_named(vm, r, "line", value_int(line)) && record_set_named(vm, r, "column", value_int(column)) &&
      record_set_named(vm, r, "length", value_int(s ? code_points(s, f->at.start, f->at.end) : 0)))
    return out;
  return value_fail(vm, out);
}

/* The list for the field `trace` of an error's record; owned. It has the error's frames or, if there are none, its place. */
static qn_value trace_list(qn_vm *vm, const qn_error_object *e) {
  error_frame alone = {e->at, NULL};
  const error_frame *frames = e->nframes ? e->frames : &alone;
  int n = e->nframes ? e->nframes : e->at.source ? 1 : 0;
  qn_list *l = list_new(vm, (size_t)n);
  if (!l) return value_error();
  for (int i = 0; i < n; i++) {
    qn_value f = frame_record(vm, &frames[i]);
    if (value_is_error(f)) return value_fail(vm, value_obj(TAG_LIST, l));
    l->items[i] = f;
  }
  return value_obj(TAG_LIST, l);
}

static bool record_fill(qn_vm *vm, qn_record *r, const qn_error_object *e) {
  char id[16];
  error_id_text(e->id, id);
  const source_text *s = source_get(vm, e->at.source);
  int line = 0, column;
  if (s) source_position(s, e->at.start, &line, &column);
  if (!record_set_named(vm, r, "id", new_str(vm, id)) ||
      !record_set_named(vm, r, "message", value_retain(value_obj(TAG_STR, e->message))) ||
      !record_set_named(vm, r, "line", value_int(line)) || !record_set_named(vm, r, "trace", trace_list(vm, e)))
    return false;
  if (!value_is(e->payload, TAG_RECORD)) return true;
  qn_record *extra = value_record(e->payload);
  for (uint32_t i = 0; i < extra->len; i++)
    if (record_find(r, record_name(extra, i)) < 0 &&
        !record_set(vm, r, record_name(extra, i), value_retain(extra->items[i])))
      return false;
  return true;
}

qn_value error_to_record(qn_vm *vm, const qn_error_object *e) {
  qn_record *r = record_new(vm);
  if (!r) return value_error();
  if (record_fill(vm, r, e)) return value_obj(TAG_RECORD, r);
  return value_fail(vm, value_obj(TAG_RECORD, r));
}

void error_id_text(int id, char out[16]) { snprintf(out, 16, "E%d", id); }

/* A field of a record by its name as a C string, borrowed; unset if there is no such field. */
static qn_value get_field(const qn_record *r, const char *name) {
  int i = record_find_text(r, name, strlen(name));
  return i < 0 ? value_unset() : r->items[i];
}

static int64_t int_field(const qn_record *r, const char *name) {
  qn_value v = get_field(r, name);
  return value_is(v, TAG_INT) ? v.u.i : 0;
}

/* The byte offset `count` code points after `offset`, but at most the end of the text. */
static uint32_t skip_code_points(const source_text *s, uint32_t offset, int64_t count) {
  while (offset < s->len && count > 0) {
    offset++;
    while (offset < s->len && (s->text[offset] & 0xc0) == 0x80) offset++;
    count--;
  }
  return offset;
}

/* The span that an entry of a trace describes; SPAN_NONE if the text is not known. */
static span entry_span(qn_vm *vm, const qn_record *r) {
  qn_value name = get_field(r, "source");
  if (!value_is(name, TAG_STR)) return SPAN_NONE;
  uint32_t source = source_find(vm, value_str(name)->text);
  const source_text *s = source_get(vm, source);
  int64_t line = int_field(r, "line"), column = int_field(r, "column");
  if (!s || line < 1 || line > s->nlines || column < 1) return SPAN_NONE;
  uint32_t start = skip_code_points(s, s->lines[line - 1], column - 1);
  return (span){source, start, skip_code_points(s, start, int_field(r, "length"))};
}

qn_value raise_record(qn_vm *vm, span at, qn_value record) {
  if (vm->error) return value_error();
  const qn_record *r = value_record(record);
  int id = E_user;
  qn_value v = get_field(r, "id");
  int64_t number;
  if (value_is(v, TAG_STR) && value_str(v)->text[0] == 'E' &&
      int_parse(value_str(v)->text + 1, value_str(v)->len - 1, &number) && number > 0 && number < 1000 &&
      error_find((int)number) && number != E_interrupted && number != E_limit)
    id = (int)number;
  v = get_field(r, "message");
  text_buf t = {.vm = vm};
  if (value_is(v, TAG_STR))
    text_add(&t, value_str(v)->text, value_str(v)->len);
  else
    text_adds(&t, error_find(id)->title);
  raise_text(vm, (error_id)id, SPAN_NONE, &t);
  qn_error_object *e = vm->error;
  if (e->refs > 1 || e == vm->memory_error) return value_error();
  e->payload = value_retain(record);
  v = get_field(r, "trace");
  if (value_is(v, TAG_LIST)) {
    const qn_list *l = value_list(v);
    for (uint32_t i = 0; i < l->len && i < ERROR_FRAMES; i++) {
      if (!value_is(l->items[i], TAG_RECORD)) continue;
      const qn_record *entry = value_record(l->items[i]);
      qn_value function = get_field(entry, "function");
      span place = entry_span(vm, entry);
      if (!e->at.source) e->at = place;
      raise_frame(vm, place, value_is(function, TAG_STR) ? value_str(function) : NULL);
    }
  }
  if (!e->at.source) e->at = at;
  e->rethrown = e->nframes > 0;
  return value_error();
}
