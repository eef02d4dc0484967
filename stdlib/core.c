/* Builtins: printing, conversion of host values, containers, errors, clock and environment. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "interp/interp.h"
#include "lang/format.h"
#include "stdlib/builtins.h"

/* ---- printing --------------------------------------------------------------------------------------------------- */

/* Is a stream of the VM a terminal? A host's sink is none. */
static bool on_terminal(const qn_vm *vm, int stream) { return !vm->config.write && isatty(stream); }

/* Columns of the terminal that a stream goes to; 0 if it goes elsewhere or is too narrow to lay anything out for. */
static int terminal_width(const qn_vm *vm, int stream) {
  struct winsize size;
  if (!on_terminal(vm, stream) || ioctl(stream, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col >= 20 ? size.ws_col : 0;
}

output_looks output_look(const qn_vm *vm, int stream) {
  output_looks looks = {.columns = 80, .rows = 24};
  struct winsize size = {0};
  const char *off = getenv("NO_COLOR"), *term = getenv("TERM"), *depth = getenv("COLORTERM"),
             *columns = getenv("COLUMNS");
  int64_t asked;
  bool terminal = on_terminal(vm, stream);
  if (terminal && ioctl(stream, TIOCGWINSZ, &size) == 0 && size.ws_col && size.ws_row) {
    looks.columns = size.ws_col;
    looks.rows = size.ws_row;
  } else if (columns && int_parse(columns, strlen(columns), &asked) && asked > 0 && asked <= 10000) {
    looks.columns = (int)asked;
  }
  looks.colors = terminal && !(off && *off) && term && *term && strcmp(term, "dumb") != 0;
  looks.true_color = looks.colors && depth && (strcmp(depth, "truecolor") == 0 || strcmp(depth, "24bit") == 0);
  return looks;
}

/* The bar that progress() draws. It lies in the slot vm->stdlib from the first call of progress() until the VM is closed. */
typedef struct progress_bar {
  char label[64];
  double drawn; /* when it was drawn last */
  bool shown;   /* on the terminal now */
} progress_bar;

/* Takes the bar off the terminal, before other output or at the end of its loop. */
static void progress_clear(qn_vm *vm) {
  progress_bar *bar = vm->stdlib;
  if (!bar || !bar->shown) return;
  bar->shown = false;
  vm_write(vm, 2, "\r\x1b[K", 4);
}

void output_write(qn_vm *vm, int stream, text_buf *t) {
  vm_owned held;
  vm_own(vm, &held, vm_drop_text, t);
  progress_clear(vm);
  vm_write(vm, stream, t->text, t->len);
  vm_disown(vm, &held);
}

qn_value builtin_print(qn_vm *vm, const qn_value *args) {
  const qn_list *values = value_list(args[0]);
  int stream = 0;
  if (value_is(args[1], TAG_STR)) {
    const char *to = value_str(args[1])->text;
    stream = strcmp(to, "stdout") == 0 ? 1 : strcmp(to, "stderr") == 0 ? 2 : 0;
  }
  if (!stream) return raise_error(vm, E_argument, SPAN_NONE, "print: to is \"stdout\" or \"stderr\"");
  int columns = terminal_width(vm, stream);
  format_options options = {.width = columns < FORMAT_COLUMNS ? columns : FORMAT_COLUMNS};
  text_buf t = {.vm = vm};
  bool good = true, own = false;
  for (uint32_t i = 0; i < values->len && good; i++) {
    if (i) text_adds(&t, own ? "\n" : " ");
    good = values->len == 1 ? format_print(vm, values->items[i], &options, &t)
                            : format_among(vm, values->items[i], &options, &t, &own);
  }
  text_adds(&t, "\n");
  good = good && text_good(&t);
  if (good) output_write(vm, stream, &t);
  text_free(&t);
  return good ? value_nil() : value_error();
}

static qn_value text_of(qn_vm *vm, qn_value v, bool repr) {
  text_buf t = {.vm = vm};
  return (repr ? format_repr(vm, v, &t) : format_print(vm, v, NULL, &t)) ? text_take(&t) : text_fail(&t);
}

qn_value builtin_str(qn_vm *vm, const qn_value *args) {
  return value_is(args[0], TAG_STR) ? value_retain(args[0]) : text_of(vm, args[0], false);
}

qn_value builtin_repr(qn_vm *vm, const qn_value *args) { return text_of(vm, args[0], true); }

qn_value builtin_format(qn_vm *vm, const qn_value *args) {
  qn_str *spec;
  if (!arg_str(vm, "format", "a format like \".3f\"", args[1], &spec)) return value_error();
  text_buf t = {.vm = vm};
  return format_spec(vm, args[0], spec->text, spec->len, &t) ? text_take(&t) : text_fail(&t);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* The element of a one-element array, or a traced number, as a host number of this dtype. */
static qn_value weak_scalar(qn_vm *vm, const char *fn, qn_value x, qn_dtype dtype) {
  if (is_array(x) && value_array(x)->size != 1) return arg_refuse(vm, fn, "a number or an array of one element", x);
  return op_number(vm, x, dtype);
}

static qn_value not_number(qn_vm *vm, const char *fn, const qn_str *s) {
  text_buf t = {.vm = vm};
  text_addf(&t, "%s: ", fn);
  text_quoted(&t, s->text, s->len > 40 ? 0 : s->len);
  text_adds(&t, s->len > 40 ? " is no number (the text is long)" : " is no number");
  return raise_text(vm, E_parse_number, SPAN_NONE, &t);
}

/* The part of a text between the blanks at its ends. */
static void trimmed(const qn_str *s, const char **text, size_t *len) {
  const char *p = s->text, *end = p + s->len;
  while (p < end && strchr(" \t\n\r", *p)) p++;
  while (end > p && strchr(" \t\n\r", end[-1])) end--;
  *text = p;
  *len = (size_t)(end - p);
}

qn_value builtin_int(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  if (value_is(x, TAG_FLOAT) && !(x.u.f >= -0x1p63 && x.u.f < 0x1p63) && !rec_is_lane(vm, x))
    return raise_error(vm, E_to_int, SPAN_NONE, WORDS_NO_INT, phrase_float(x.u.f).text);
  if (!rec_try_int(vm, x)) return value_error();
  if (is_array(x) || (value_is_scalar(x) && value_node(x))) return weak_scalar(vm, "int", x, WEAK_INT);
  switch ((int)value_tag_of(x)) {
  case TAG_BOOL:
  case TAG_INT: return value_int(x.u.i);
  case TAG_FLOAT: return value_int((int64_t)x.u.f);
  case TAG_STR: {
    const char *text;
    size_t len;
    int64_t n;
    trimmed(value_str(x), &text, &len);
    if (int_parse(text, len, &n)) return value_int(n);
    if (len > (size_t)(*text == '-') && strspn(text + (*text == '-'), "0123456789_") == len - (size_t)(*text == '-') &&
        len < 1000)
      return raise_error(vm, E_parse_number, SPAN_NONE, "int: %.*s does not fit 64 bits; float(...) takes it", (int)len,
                         text);
    double f;
    if (len <= 40 && float_parse(text, len, &f))
      return raise_error(vm, E_parse_number, SPAN_NONE,
                         "int: \"%.*s\" is no integer; int(float(...)) cuts the fraction off", (int)len, text);
    return not_number(vm, "int", value_str(x));
  }
  default: return arg_refuse(vm, "int", "a number, an array of one element or a text", x);
  }
}

qn_value builtin_float(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  if (is_array(x) || (value_is_scalar(x) && value_node(x))) return weak_scalar(vm, "float", x, WEAK_FLOAT);
  switch ((int)value_tag_of(x)) {
  case TAG_BOOL:
  case TAG_INT: return value_float((double)x.u.i);
  case TAG_FLOAT: return value_float(x.u.f);
  case TAG_STR: {
    const char *text;
    size_t len;
    double f;
    trimmed(value_str(x), &text, &len);
    return float_parse(text, len, &f) ? value_float(f) : not_number(vm, "float", value_str(x));
  }
  default: return arg_refuse(vm, "float", "a number, an array of one element or a text", x);
  }
}

qn_value builtin_divmod(qn_vm *vm, const qn_value *args) {
  if (!arg_operands(vm, "divmod", args, 2)) return value_error();
  qn_value quotient = op2(vm, OP_floordiv, args[0], args[1], NULL);
  if (value_is_error(quotient)) return quotient;
  return use_pair(vm, quotient, op2(vm, OP_mod, args[0], args[1], NULL));
}

qn_value builtin_type(qn_vm *vm, const qn_value *args) {
  const char *name = value_kind_name(args[0]);
  return new_str(vm, name, strlen(name));
}

/* ---- containers ---------------------------------------------------------------------------------------------------- */

qn_value builtin_len(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  switch ((int)value_tag_of(x)) {
  case TAG_RECORD: return value_int(value_record(x)->len);
  case TAG_LIST:
    if (value_is_stacked(x)) return rec_stacked_length(vm, x);
    break;
  case TAG_STR:
  case TAG_RANGE: break;
  case TAG_ARRAY:
    if (value_array(x)->rank > 0) return rec_size_number(vm, op_count(vm, x, 1));
    return raise_error(vm, E_rank, SPAN_NONE, "len: an array of rank 0 has no axis to count");
  default: return arg_refuse(vm, "len", "a list, record, text, range or array", x);
  }
  sequence s;
  return sequence_of(vm, "len", x, &s) ? value_int(s.n) : value_error();
}

qn_value builtin_range(qn_vm *vm, const qn_value *args) {
  int64_t start, stop, step;
  const char *what = "an int";
  if (!arg_int(vm, "range", what, args[0], &start) || !arg_int(vm, "range", what, args[2], &step)) return value_error();
  if (value_is(args[1], TAG_NIL)) {
    stop = start;
    start = 0;
  } else if (!arg_int(vm, "range", what, args[1], &stop)) {
    return value_error();
  }
  if (step == 0) return raise_error(vm, E_argument, SPAN_NONE, "range: the step is 0");
  return value_new(TAG_RANGE, range_new(vm, start, stop, step));
}

/* A new list of `n` items that are nil. E605 if that is more than a list can hold. */
static qn_list *list_of(qn_vm *vm, const char *fn, int64_t n) {
  if (n < UINT32_MAX / 2) return list_new(vm, (size_t)n);
  return raise_nothing(vm, E_too_large, SPAN_NONE, "%s: %lld items are too many for a list", fn, (long long)n);
}

qn_value builtin_list(qn_vm *vm, const qn_value *args) {
  if (value_is(args[0], TAG_LIST)) return value_retain(args[0]);
  sequence s;
  if (!sequence_of(vm, "list", args[0], &s)) return value_error();
  qn_value out = list_value(list_of(vm, "list", s.n));
  for (int64_t i = 0; i < s.n && !value_is_error(out); i++) list_fill(vm, &out, i, sequence_item(vm, &s, i));
  return out;
}

qn_value builtin_enumerate(qn_vm *vm, const qn_value *args) {
  sequence s;
  int64_t start;
  if (!arg_int(vm, "enumerate", "an int as start", args[1], &start)) return value_error();
  qn_value rows = rec_stacked_enumerate(vm, args[0], start);
  if (!value_is(rows, TAG_UNSET)) return rows;
  if (!sequence_of(vm, "enumerate", args[0], &s)) return value_error();
  if (start > INT64_MAX - s.n) return raise_error(vm, E_overflow, SPAN_NONE, "enumerate: the numbers leave 64 bits");
  qn_value out = list_value(list_of(vm, "enumerate", s.n));
  for (int64_t i = 0; i < s.n && !value_is_error(out); i++)
    list_fill(vm, &out, i, use_pair(vm, value_int(start + i), sequence_item(vm, &s, i)));
  return out;
}

/* A record argument, or a record of the names of a module; owned. */
static qn_value arg_record(qn_vm *vm, const char *fn, qn_value v) {
  if (value_is(v, TAG_MODULE)) return interp_module_record(vm, v);
  return value_is(v, TAG_RECORD) ? value_retain(v) : arg_refuse(vm, fn, "a record or module", v);
}

typedef enum part { PART_ITEMS, PART_KEYS, PART_VALUES } part;

static qn_value parts_of(qn_vm *vm, const char *fn, qn_value v, part what) {
  qn_value from = arg_record(vm, fn, v);
  if (value_is_error(from)) return from;
  qn_record *r = value_record(from);
  qn_value out = list_value(list_new(vm, r->len));
  for (uint32_t i = 0; i < r->len && !value_is_error(out); i++) {
    qn_str *name = record_name(r, i);
    qn_value item = what == PART_VALUES ? r->items[i] : value_obj(TAG_STR, name);
    value_retain(item);
    if (what == PART_ITEMS) item = use_pair(vm, item, value_retain(r->items[i]));
    list_fill(vm, &out, i, item);
  }
  return used(vm, from, out);
}

qn_value builtin_items(qn_vm *vm, const qn_value *args) { return parts_of(vm, "items", args[0], PART_ITEMS); }
qn_value builtin_keys(qn_vm *vm, const qn_value *args) { return parts_of(vm, "keys", args[0], PART_KEYS); }
qn_value builtin_values(qn_vm *vm, const qn_value *args) { return parts_of(vm, "values", args[0], PART_VALUES); }

qn_value builtin_has(qn_vm *vm, const qn_value *args) {
  qn_str *name;
  if (!arg_str(vm, "has", "a field's name", args[1], &name)) return value_error();
  qn_value r = arg_record(vm, "has", args[0]);
  if (value_is_error(r)) return r;
  return used(vm, r, value_bool(record_find(value_record(r), name) >= 0));
}

/* The place of index i in a list of n items; negative indices count from the end. -1 if there is no such item. */
static int64_t position_in(int64_t i, int64_t n) {
  if (i < 0) i += n;
  return i >= 0 && i < n ? i : -1;
}

qn_value builtin_get(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  if (value_is(x, TAG_RECORD) || value_is(x, TAG_MODULE)) {
    qn_str *name;
    if (!arg_str(vm, "get", "a field's name", args[1], &name)) return value_error();
    qn_value r = arg_record(vm, "get", x);
    if (value_is_error(r)) return r;
    int i = record_find(value_record(r), name);
    return used(vm, r, value_retain(i >= 0 ? value_record(r)->items[i] : args[2]));
  }
  if (!value_is(x, TAG_LIST)) return arg_refuse(vm, "get", "a record, module or list", x);
  int64_t i;
  if (!arg_int(vm, "get", "an int as index", args[1], &i)) return value_error();
  i = position_in(i, value_list(x)->len);
  return value_retain(i >= 0 ? value_list(x)->items[i] : args[2]);
}

static qn_value no_position(qn_vm *vm, const char *fn, int64_t i, int64_t n) {
  return raise_error(vm, E_index, SPAN_NONE, "%s: index %lld is out of bounds for a list of %lld", fn, (long long)i,
                     (long long)n);
}

static qn_value no_field(qn_vm *vm, const char *fn, const qn_record *r, const qn_str *name) {
  text_buf t = {.vm = vm};
  text_addf(&t, "%s: no field ", fn);
  text_quoted(&t, name->text, name->len);
  text_adds(&t, r->len ? "; the fields are " : "; the record is empty");
  for (uint32_t i = 0; i < r->len && i < 20; i++) {
    if (i) text_adds(&t, ", ");
    text_adds(&t, record_name(r, i)->text);
  }
  if (r->len > 20) text_adds(&t, ", ...");
  return raise_text(vm, E_key, SPAN_NONE, &t);
}

/* A list that may be changed: the argument itself if this call holds its last reference, else a copy. Owned. */
static inline qn_value own_list(qn_vm *vm, qn_value v) {
  qn_list *l = value_list(v);
  if (l->head.refs == 1) return value_retain(v);
  qn_value copy = list_value(list_from(vm, l->items, l->len));
  if (value_is_error(copy)) return copy;
  mem_count_copy(vm, l->len * sizeof *l->items);
  value_list(copy)->head.flags = l->head.flags;
  return copy;
}

qn_value builtin_remove(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  if (value_is(x, TAG_RECORD)) {
    qn_str *name;
    if (!arg_str(vm, "remove", "a field's name", args[1], &name)) return value_error();
    int i = record_find(value_record(x), name);
    if (i < 0) return no_field(vm, "remove", value_record(x), name);
    return value_new(TAG_RECORD, record_without(vm, value_record(x), i));
  }
  if (!value_is(x, TAG_LIST)) return arg_refuse(vm, "remove", "a record or a list", x);
  int64_t index;
  if (!arg_int(vm, "remove", "an int as index", args[1], &index)) return value_error();
  int64_t i = position_in(index, value_list(x)->len);
  if (i < 0) return no_position(vm, "remove", index, value_list(x)->len);
  qn_value out = own_list(vm, x);
  if (value_is_error(out)) return out;
  qn_list *l = value_list(out);
  qn_value gone = l->items[i];
  memmove(l->items + i, l->items + i + 1, (size_t)(l->len - i - 1) * sizeof *l->items);
  l->len--;
  value_release(vm, gone);
  return out;
}

/* append to a list of any length. */
static qn_value append_stacked(qn_vm *vm, const qn_value *args) {
  if (value_is_counted(args[0])) return rec_counted_append(vm, args[0], args[1]);
  qn_value one = list_value(list_from(vm, &args[1], 1));
  if (value_is_error(one)) return one;
  qn_value out = rec_stacked_join(vm, args[0], one);
  value_release(vm, one);
  if (!value_is(out, TAG_UNSET)) return out;
  out = rec_unstacked(vm, args[0]);
  if (value_is_error(out) || list_push(vm, value_list(out), value_retain(args[1]))) return out;
  return value_fail(vm, out);
}

/* append where the list has no room, or somebody else holds it; and where it is no list. */
static __attribute__((noinline)) qn_value append_anew(qn_vm *vm, const qn_value *args) {
  if (!value_is(args[0], TAG_LIST)) {
    if (is_array(args[0]))
      return raise_error(vm, E_type, SPAN_NONE,
                         value_array(args[0])->size
                             ? "append: arrays have a fixed size; use concat((x, y)) or collect a list and stack it"
                             : "append: [] is an array, and arrays have a fixed size; an empty list is written ()");
    return arg_refuse(vm, "append", "a list", args[0]);
  }
  if (value_is_stacked(args[0])) return append_stacked(vm, args);
  qn_value out = own_list(vm, args[0]);
  if (value_is_error(out)) return out;
  if (list_push(vm, value_list(out), value_retain(args[1]))) return out;
  return value_fail(vm, out);
}

qn_value builtin_append(qn_vm *vm, const qn_value *args) {
  qn_list *l = value_is(args[0], TAG_LIST) ? value_list(args[0]) : NULL;
  if (!l || l->head.refs != 1 || l->len == l->cap || value_is_stacked(args[0])) return append_anew(vm, args);
  parts_note_item(&l->head, args[1]);
  l->items[l->len++] = value_retain(args[1]);
  return value_retain(args[0]);
}

qn_value builtin_insert(qn_vm *vm, const qn_value *args) {
  if (!value_is(args[0], TAG_LIST)) return arg_refuse(vm, "insert", "a list", args[0]);
  int64_t index, n = value_list(args[0])->len;
  if (!arg_int(vm, "insert", "an int as index", args[1], &index)) return value_error();
  int64_t i = index == n ? n : position_in(index, n);
  if (i < 0) return no_position(vm, "insert", index, n);
  qn_value out = own_list(vm, args[0]);
  if (value_is_error(out)) return out;
  qn_list *l = value_list(out);
  if (!list_push(vm, l, value_retain(args[2]))) return value_fail(vm, out);
  qn_value item = l->items[n];
  memmove(l->items + i + 1, l->items + i, (size_t)(n - i) * sizeof *l->items);
  l->items[i] = item;
  return out;
}

/* ---- errors ------------------------------------------------------------------------------------------------------------ */

typedef struct assertion {
  qn_vm *vm;
  const qn_str *message;
} assertion;

static qn_value raise_exactly(qn_vm *vm, error_id id, const qn_str *message) {
  text_buf t = {.vm = vm};
  text_add(&t, message->text, message->len);
  return raise_text(vm, id, SPAN_NONE, &t);
}

qn_value builtin_error(qn_vm *vm, const qn_value *args) {
  if (value_is(args[0], TAG_RECORD)) return raise_record(vm, SPAN_NONE, args[0]);
  qn_str *message;
  if (!arg_str(vm, "error", "a message, or a record like the one catch gives", args[0], &message)) return value_error();
  return raise_exactly(vm, E_user, message);
}

static qn_value raise_assertion(void *ctx, rec_exit *how) {
  const assertion *a = ctx;
  *how = REC_ERROR;
  return raise_exactly(a->vm, E_assertion, a->message);
}

qn_value builtin_assert(qn_vm *vm, const qn_value *args) {
  assertion a = {.vm = vm};
  qn_str *message;
  if (!arg_str(vm, "assert", "a message", args[1], &message)) return value_error();
  if (rec_may_branch(vm, args[0])) {
    a.message = message;
    rec_answer answer = rec_assert(vm, args[0], (rec_arm){raise_assertion, &a});
    if (answer != REC_NOT_YET) return answer == REC_DONE ? value_nil() : value_error();
  }
  if (rec_expected(vm, args[0])) return error_pending(vm) ? value_error() : value_nil();
  int good = rec_is_lane(vm, args[0]) ? rec_all_lanes(vm, args[0]) : rec_truth(vm, args[0], SPAN_NONE);
  if (good < 0) return value_error();
  if (good) return value_nil();
  raise_exactly(vm, E_assertion, message);
  rec_blame_lanes(vm);
  return value_error();
}

/* ---- progress ------------------------------------------------------------------------------------------------------------ */

/* Draws the bar, "training [######------] 12/30", at most ten times a second. This is hooks.progress. */
static void progress_draw(qn_vm *vm, int64_t done, int64_t total) {
  enum { BAR = 30 };
  progress_bar *bar = vm->stdlib;
  double now = vm_seconds();
  if (done == total) {
    progress_clear(vm);
    return;
  }
  if (now - bar->drawn < 0.1) return;
  bar->drawn = now;
  bar->shown = true;
  int full = (int)((double)done / (double)total * BAR);
  text_buf t = {.vm = vm};
  text_addf(&t, "\r\x1b[K%s%s[", bar->label, *bar->label ? " " : "");
  text_repeat(&t, "#", full);
  text_repeat(&t, "-", BAR - full);
  text_addf(&t, "] %lld/%lld", (long long)done, (long long)total);
  vm_owned held;
  vm_own(vm, &held, vm_drop_text, &t);
  if (!t.failed) vm_write(vm, 2, t.text, t.len);
  vm_disown(vm, &held);
  text_free(&t);
}

static void progress_close(qn_vm *vm) {
  mem_free(vm, vm->stdlib, sizeof(progress_bar));
  vm->stdlib = NULL;
}

/* If stderr is a terminal this returns a copy of the iterable that is marked OBJ_PROGRESS, so that the interpreter's `for` calls
 * hooks.progress. Otherwise the iterable itself. */
qn_value builtin_progress(qn_vm *vm, const qn_value *args) {
  qn_str *label;
  sequence s;
  if (!sequence_of(vm, "progress", args[0], &s) || !arg_str(vm, "progress", "a text as label", args[1], &label))
    return value_error();
  if (!on_terminal(vm, 2)) return value_retain(args[0]);
  if (!rec_effect(vm, "progress")) return value_error();
  qn_value out;
  if (value_is(args[0], TAG_RANGE)) {
    const qn_range *r = value_range(args[0]);
    out = value_new(TAG_RANGE, range_new(vm, r->start, r->stop, r->step));
  } else if (value_is(args[0], TAG_LIST)) {
    out = list_value(list_from(vm, value_list(args[0])->items, value_list(args[0])->len));
  } else {
    out = builtin_list(vm, args);
  }
  if (value_is_error(out)) return out;
  progress_bar *bar = vm->stdlib = vm->stdlib ? vm->stdlib : mem_zalloc(vm, sizeof *bar);
  if (!bar) return value_fail(vm, out);
  ((obj_head *)out.u.p)->aux = OBJ_PROGRESS;
  size_t n = utf8_valid_prefix(label->text, label->len < sizeof bar->label - 1 ? label->len : sizeof bar->label - 1);
  memcpy(bar->label, label->text, n);
  bar->label[n] = 0;
  bar->drawn = vm_seconds();
  vm->hooks.progress = progress_draw;
  vm->hooks.close_stdlib = progress_close;
  return out;
}

/* ---- clock and environment --------------------------------------------------------------------------------------------- */

qn_value builtin_time(qn_vm *vm, const qn_value *args) {
  (void)args;
  if (!vm_may(vm, QN_CAP_CLOCK, "reading the clock")) return value_error();
  if (!devices_wait(vm)) return value_error();
  double known;
  return value_float(rec_reading_known(vm, &known) ? known : vm_seconds() - vm->began);
}

qn_value builtin_env(qn_vm *vm, const qn_value *args) {
  qn_str *name;
  if (!arg_str(vm, "env", "a variable's name", args[0], &name)) return value_error();
  if (!vm_may(vm, QN_CAP_ENV, "reading environment variables")) return value_error();
  const char *text = memchr(name->text, 0, name->len) ? NULL : getenv(name->text);
  if (!text) return value_retain(args[1]);
  if (!utf8_valid(text, strlen(text)))
    return raise_error(vm, E_text, SPAN_NONE, "env: the value of %s is not UTF-8", name->text);
  return new_str(vm, text, strlen(text));
}
