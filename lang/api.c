/* The part of quern.h that needs values only: configuration, values in and out, arrays in and out, errors. Running code
 * and globals are interp's, qn_vm_open is stdlib's. */
#include <string.h>

#include "lang/internal.h"

_Static_assert(sizeof(qn_value) == 16, "a value is 16 bytes");

void qn_config_init(qn_config *config) {
  *config = (qn_config){.size = sizeof *config, .capabilities = QN_CAP_ALL, .jit = QN_JIT_ON};
}

void qn_interrupt(qn_vm *vm) { atomic_store(&vm->interrupt, 1); }
void qn_interrupt_clear(qn_vm *vm) { atomic_store(&vm->interrupt, 0); }

/* The status of a call that raised. */
static qn_status failed(const qn_vm *vm) { return error_catchable(vm) ? QN_ERROR : QN_INTERRUPTED; }

/* The status of a call that worked, or else has raised an error. */
static qn_status outcome(const qn_vm *vm, bool good) { return good ? QN_OK : failed(vm); }

qn_status vm_status(const qn_vm *vm) { return vm->error ? failed(vm) : QN_OK; }

qn_status qn_set_tunable(qn_vm *vm, const char *name, const char *value) {
  error_clear(vm);
  return outcome(vm, tunable_set(vm, name, value));
}

/* ---- values -------------------------------------------------------------------------------------------------- */

qn_value qn_retain(qn_value v) { return value_retain(v); }
void qn_release(qn_vm *vm, qn_value v) { value_release(vm, v); }

qn_kind qn_kind_of(qn_value v) {
  static const uint8_t kinds[] = {
      [TAG_BOOL] = QN_BOOL,     [TAG_INT] = QN_INT, [TAG_FLOAT] = QN_FLOAT, [TAG_DTYPE] = QN_DTYPE,
      [TAG_DEVICE] = QN_DEVICE, [TAG_STR] = QN_STR, [TAG_LIST] = QN_LIST,   [TAG_RECORD] = QN_RECORD,
      [TAG_ARRAY] = QN_ARRAY,   [TAG_FN] = QN_FN,   [TAG_RANGE] = QN_RANGE, [TAG_MODULE] = QN_MODULE};
  value_tag t = value_tag_of(v);
  return t < sizeof kinds / sizeof *kinds ? (qn_kind)kinds[t] : QN_NIL; /* nil, and tags that programs never see */
}
_Static_assert(QN_NIL == 0, "tags without a kind are nil");

qn_value qn_nil(void) { return value_nil(); }
qn_value qn_bool(bool b) { return value_bool(b); }
qn_value qn_int(int64_t i) { return value_int(i); }
qn_value qn_float(double f) { return value_float(f); }

/* Gives an owned object to the host as *result. If it is NULL, since making it has failed, *result is nil and the status says why. */
static qn_status hand_out(qn_vm *vm, value_tag tag, void *object, qn_value *result) {
  *result = object ? value_obj(tag, object) : value_nil();
  return object ? QN_OK : failed(vm);
}

qn_status qn_string(qn_vm *vm, const char *utf8, size_t len, qn_value *result) {
  error_clear(vm);
  if (utf8_valid(utf8, len)) return hand_out(vm, TAG_STR, str_new(vm, utf8, len), result);
  return hand_out(
      vm, TAG_STR,
      raise_nothing(vm, E_text, SPAN_NONE, "the text is not UTF-8 at byte %zu", utf8_valid_prefix(utf8, len)), result);
}

/* The number in an array of rank 0 that is in the CPU's memory. Any other value is returned as it is. */
static qn_value number_in(qn_value v) {
  if (!value_is(v, TAG_ARRAY)) return v;
  const qn_array *a = value_array(v);
  return a->rank == 0 && !array_pending(a) && a->device == 0 ? array_get_flat(a, 0) : v;
}

bool qn_as_bool(qn_value v) {
  v = number_in(v);
  return value_is(v, TAG_BOOL) && v.u.i;
}

int64_t qn_as_int(qn_value v) {
  v = number_in(v);
  return value_is(v, TAG_INT) ? v.u.i : 0;
}

double qn_as_float(qn_value v) {
  v = number_in(v);
  if (value_is(v, TAG_FLOAT)) return v.u.f;
  return value_is(v, TAG_INT) ? (double)v.u.i : __builtin_nan("");
}

const char *qn_as_string(qn_value v, size_t *len) {
  if (!value_is(v, TAG_STR)) {
    if (len) *len = 0;
    return NULL;
  }
  if (len) *len = value_str(v)->len;
  return value_str(v)->text;
}

size_t qn_length(qn_value v) {
  if (value_is(v, TAG_LIST)) return value_list(v)->len;
  return value_is(v, TAG_RECORD) ? value_record(v)->len : 0;
}

/* Raises E301 for a value of the wrong kind. */
static qn_status wrong_kind(qn_vm *vm, const char *wanted, qn_value v) {
  return outcome(vm, raise_false(vm, E_type, "%s is needed, not %s", wanted, phrase_kind(v).text));
}

qn_status qn_item(qn_vm *vm, qn_value list, size_t index, qn_value *result) {
  error_clear(vm);
  *result = value_nil();
  if (!vm_takes(vm, &list, 1)) return failed(vm);
  if (!value_is(list, TAG_LIST) && !value_is(list, TAG_RECORD)) return wrong_kind(vm, "a list or record", list);
  size_t n = qn_length(list);
  if (index >= n) return outcome(vm, raise_false(vm, E_index, "index %zu is out of bounds for %zu items", index, n));
  *result = value_retain(value_is(list, TAG_LIST) ? value_list(list)->items[index] : value_record(list)->items[index]);
  return QN_OK;
}

qn_status qn_field(qn_vm *vm, qn_value record, const char *name, qn_value *result) {
  error_clear(vm);
  *result = value_nil();
  if (!vm_takes(vm, &record, 1)) return failed(vm);
  if (!value_is(record, TAG_RECORD)) return wrong_kind(vm, "a record", record);
  int i = record_find_text(value_record(record), name, strlen(name));
  if (i < 0) return outcome(vm, raise_false(vm, E_key, "the record has no field %s", name));
  *result = value_retain(value_record(record)->items[i]);
  return QN_OK;
}

qn_status qn_list_from(qn_vm *vm, const qn_value *items, size_t n, qn_value *result) {
  error_clear(vm);
  return hand_out(vm, TAG_LIST, vm_takes(vm, items, n) ? list_from(vm, items, n) : NULL, result);
}

qn_status qn_record_from(qn_vm *vm, const char *const *names, const qn_value *items, size_t n, qn_value *result) {
  error_clear(vm);
  *result = value_nil();
  qn_record *r = vm_takes(vm, items, n) ? record_new(vm) : NULL;
  bool ok = r != NULL;
  for (size_t i = 0; ok && i < n; i++) {
    size_t len = strlen(names[i]);
    ok = utf8_valid(names[i], len) || raise_false(vm, E_text, "the name of field %zu is not UTF-8", i);
    qn_str *name = ok ? str_intern(vm, names[i], len) : NULL;
    ok = name && record_set(vm, r, name, value_retain(items[i]));
    if (name) value_release(vm, value_obj(TAG_STR, name));
  }
  if (ok) return hand_out(vm, TAG_RECORD, r, result);
  if (r) value_release(vm, value_obj(TAG_RECORD, r));
  return failed(vm);
}

/* ---- arrays -------------------------------------------------------------------------------------------------- */

qn_status qn_array_from(qn_vm *vm, qn_dtype dtype, int rank, const int64_t *shape, const void *data, qn_value *result) {
  error_clear(vm);
  *result = value_nil();
  if (!dtype_public((int)dtype))
    return outcome(vm, raise_false(vm, E_dtype, "arrays cannot have dtype number %d", (int)dtype));
  qn_array *a = array_new(vm, dtype, rank, shape);
  if (!a) return failed(vm);
  if (dtype_is_bool(dtype)) {
    const uint8_t *from = data;
    uint8_t *to = (uint8_t *)array_data(a);
    for (int64_t i = 0; i < a->size; i++) to[i] = from[i] != 0;
  } else if (a->size) {
    memcpy(array_data(a), data, (size_t)a->size * dtype_size(dtype));
  }
  return hand_out(vm, TAG_ARRAY, a, result);
}

qn_status qn_array_read(qn_vm *vm, qn_value array, void *data, size_t bytes) {
  error_clear(vm);
  if (!vm_takes(vm, &array, 1)) return failed(vm);
  if (!value_is(array, TAG_ARRAY)) return wrong_kind(vm, "an array", array);
  qn_array *a = value_array(array);
  size_t need = (size_t)a->size * dtype_size((qn_dtype)a->dtype);
  if (bytes != need)
    return outcome(vm, raise_false(vm, E_argument, "the array has %zu bytes, the buffer %zu", need, bytes));
  qn_array *c = array_to_cpu(vm, a);
  if (!c) return failed(vm);
  if (need) memcpy(data, array_data(c), need);
  value_release(vm, value_obj(TAG_ARRAY, c));
  return QN_OK;
}

qn_dtype qn_array_dtype(qn_value array) {
  return value_is(array, TAG_ARRAY) ? (qn_dtype)value_array(array)->dtype : QN_DTYPE_COUNT;
}
int qn_array_rank(qn_value array) { return value_is(array, TAG_ARRAY) ? value_array(array)->rank : 0; }
const int64_t *qn_array_shape(qn_value array) { return value_is(array, TAG_ARRAY) ? value_array(array)->shape : NULL; }
size_t qn_dtype_size(qn_dtype dtype) { return (unsigned)dtype < QN_DTYPE_COUNT ? dtype_size(dtype) : 0; }

/* ---- errors -------------------------------------------------------------------------------------------------- */

const char *qn_error_id(qn_vm *vm) {
  if (!vm->error) return "";
  error_id_text((int)vm->error->id, vm->error_name);
  return vm->error_name;
}

const char *qn_error_message(qn_vm *vm) { return vm->error ? vm->error->message->text : ""; }

const char *qn_error_source(qn_vm *vm) {
  const source_text *s = vm->error ? source_get(vm, vm->error->at.source) : NULL;
  return s ? s->name : "";
}

int qn_error_line(qn_vm *vm) {
  const source_text *s = vm->error ? source_get(vm, vm->error->at.source) : NULL;
  int line = 0, column;
  if (s) source_position(s, vm->error->at.start, &line, &column);
  return line;
}

const char *qn_error_report(qn_vm *vm) {
  text_free(&vm->report);
  if (!vm->error) return "";
  error_render(vm, vm->error, &vm->report, false, 0);
  /* If there is no memory for the report, the message has to do. */
  return vm->report.failed || !vm->report.text ? vm->error->message->text : vm->report.text;
}
