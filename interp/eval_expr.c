/* Evaluators of expressions other than operators and calls: lists, records, strings with values in them, fields, indices, function values.
 *
 * Items of something under construction wait on the value stack, so that leaving early, because of an error or signal, only takes one
 * vm_pop_to.
 */
#include <string.h>

#include "interp/node.h"
#include "lang/format.h"

/* ---- lists and records ------------------------------------------------------------------------------------------------ */

int64_t spread_length(qn_vm *vm, qn_value v) {
  if (!rec_length_seen(vm, v)) return -1;
  return value_is(v, TAG_LIST)                            ? value_list(v)->len
         : value_is(v, TAG_RANGE)                         ? range_length(value_range(v))
         : value_is(v, TAG_ARRAY) && value_array(v)->rank ? value_array(v)->shape[0]
                                                          : -1;
}

qn_value spread_item(qn_vm *vm, qn_value v, int64_t i) {
  return value_is(v, TAG_LIST)    ? value_retain(value_list(v)->items[i])
         : value_is(v, TAG_RANGE) ? value_int(range_item(value_range(v), i))
                                  : op_index_row(vm, v, i);
}

/* (Errors about kinds of values are raised by functions of their own, here and elsewhere: a phrase takes half a KiB, and evaluators that
 * call one another would have it on the C stack at each level.) */
__attribute__((noinline, cold)) bool fail_spread(qn_vm *vm, error_id id, span at, const char *what, qn_value v) {
  return raise_nothing(vm, id, at, "%s, not %s", what, phrase_kind(v).text);
}

/* Appends the values of `..v` (spread_length) to a list. Takes over `v`. False with an error raised at `at`. */
static bool append_spread(qn_vm *vm, qn_list *out, qn_value v, span at) {
  int64_t n = spread_length(vm, v);
  bool ok = n >= 0 && n <= INT32_MAX, polls = value_is(v, TAG_RANGE);
  if (n < 0)
    fail_spread(vm, E_not_iterable, at, "only lists, ranges and arrays spread here", v);
  else if (!ok)
    raise_error(vm, E_too_large, at, "%lld items are too many for a list", (long long)n);
  for (int64_t i = 0; ok && i < n; i++) {
    qn_value item = polls && vm_poll(vm) ? value_error() : spread_item(vm, v, i);
    ok = !value_is_error(item) && list_push(vm, out, item);
  }
  if (!ok) raise_at(vm, at);
  value_release(vm, v);
  return ok;
}

qn_value eval_list_spread(qn_vm *vm, node *h, qn_value *fp) {
  n_items *n = (n_items *)h;
  qn_value *mark = vm->sp;
  qn_list *l = vm_enter(vm, 1) ? list_new(vm, 0) : NULL;
  if (!l) return raise_at(vm, h->at);
  *vm->sp++ = value_obj(TAG_LIST, l);
  for (uint32_t i = 0; i < n->n; i++) {
    bool spread = n->items[i]->kind == N_SPREAD;
    qn_value v = eval(vm, spread ? ((n_one *)n->items[i])->a : n->items[i], fp);
    if (value_stops(v)) return vm_pop_with(vm, mark, v);
    if (!(spread ? append_spread(vm, l, v, n->items[i]->at) : list_push(vm, l, v)))
      return vm_pop_with(vm, mark, value_error());
  }
  vm->sp = mark;
  return value_obj(TAG_LIST, l);
}

qn_value eval_list(qn_vm *vm, node *h, qn_value *fp) {
  n_items *n = (n_items *)h;
  qn_value *mark = vm->sp;
  if (!vm_enter(vm, n->n)) return raise_at(vm, h->at);
  for (uint32_t i = 0; i < n->n; i++) {
    qn_value v = eval(vm, n->items[i], fp);
    if (value_stops(v)) return vm_pop_with(vm, mark, v);
    *vm->sp++ = v;
  }
  qn_list *l = list_new(vm, n->n);
  if (!l) return vm_pop_with(vm, mark, value_error());
  if (n->n) memcpy(l->items, mark, n->n * sizeof *mark);
  vm->sp = mark;
  return value_obj(TAG_LIST, l);
}

/* A record literal without spreads. Its first evaluation sets the fields by name and remembers the layout; later ones only copy the items. */
static qn_value record_fixed(qn_vm *vm, n_record *n, qn_value *fp) {
  qn_value *mark = vm->sp;
  if (!vm_enter(vm, n->n)) return raise_at(vm, n->h.at);
  for (uint32_t i = 0; i < n->n; i++) {
    qn_value v = eval(vm, n->fields[i].value, fp);
    if (value_stops(v)) return vm_pop_with(vm, mark, v);
    *vm->sp++ = v;
  }
  qn_record *r = n->layout ? record_of(vm, n->layout) : record_new(vm);
  if (!r) return vm_pop_with(vm, mark, value_error());
  if (n->layout) {
    memcpy(r->items, mark, n->n * sizeof *mark);
    vm->sp = mark;
    return value_obj(TAG_RECORD, r);
  }
  for (uint32_t i = 0; i < n->n; i++) {
    qn_value v = mark[i];
    mark[i] = value_nil();
    if (!record_set(vm, r, n->fields[i].name, v))
      return vm_pop_with(vm, mark, value_fail(vm, value_obj(TAG_RECORD, r)));
  }
  vm->sp = mark;
  if (r->len == n->n && r->layout->shared) n->layout = layout_retain(r->layout);
  return value_obj(TAG_RECORD, r);
}

qn_value eval_record(qn_vm *vm, node *h, qn_value *fp) {
  n_record *n = (n_record *)h;
  if (!h->flag && n->n) return record_fixed(vm, n, fp);
  qn_record *r = record_new(vm);
  if (!r) return value_error();
  qn_value out = value_obj(TAG_RECORD, r), v = value_nil();
  for (uint32_t i = 0; i < n->n; i++) {
    v = eval_beside(vm, n->fields[i].value, fp, out);
    if (value_stops(v)) goto stop;
    if (n->fields[i].name) {
      if (record_set(vm, r, n->fields[i].name, v)) continue;
      v = value_error();
      goto stop;
    }
    bool ok = value_is(v, TAG_RECORD);
    if (!ok) {
      fail_spread(vm, E_type, n->fields[i].value->at, "only records spread into a record", v);
    } else if (r->len == 0) { /* the common {..r, a: 1} begins as a copy of r */
      qn_record *copy = value_unique(v) ? value_record(value_retain(v)) : record_copy(vm, value_record(v));
      ok = copy != NULL;
      if (ok) {
        value_release(vm, out);
        r = copy;
        out = value_obj(TAG_RECORD, r);
      }
    } else {
      const qn_record *from = value_record(v);
      for (uint32_t k = 0; ok && k < from->len; k++)
        ok = record_set(vm, r, record_name(from, k), value_retain(from->items[k]));
    }
    value_release(vm, v);
    if (ok) continue;
    v = value_error();
    goto stop;
  }
  return out;
stop:
  value_release(vm, out);
  return v;
}

/* ---- strings ------------------------------------------------------------------------------------------------------------ */

/* eval_template while ops are deferred: a part of which a text is to wait is not observed, and then the text waits, too. */
static qn_value eval_template_deferred(qn_vm *vm, n_template *n, qn_value *fp) {
  bool own = false, any = false;
  qn_value *mark = vm->sp, v;
  if (!vm_enter(vm, 2 * (size_t)n->n)) return value_error();
  text_buf t = {.vm = vm};
  vm_owned held;
  vm_own(vm, &held, vm_drop_text, &t);
  for (uint32_t i = 0; i < n->n; i++) {
    const n_part *p = &n->parts[i];
    qn_value how = p->text ? value_obj(TAG_STR, p->text) : value_nil(), shown;
    int waits = 0;
    if (!p->value) {
      shown = value_retain(how);
      v = value_retain(how);
      how = value_bool(true);
    } else {
      v = eval(vm, p->value, fp);
      if (value_stops(v)) goto stop;
      rec_at(vm, p->value->at);
      if (!rec_plain(vm, &v)) {
        v = value_fail(vm, v);
        goto stop;
      }
      waits = rec_text_waits(vm, v);
      any |= waits > 0;
      if (!waits)
        v = rec_observe_take(vm, v); /* the text depends on the value, so traced numbers in it become guards */
      if (value_is_error(v)) goto stop;
      shown = waits < 0 ? value_error() : waits ? rec_text_data(vm, v) : value_retain(v);
      if (value_is_error(shown)) {
        v = value_fail(vm, v);
        goto stop;
      }
    }
    *vm->sp++ = v;
    *vm->sp++ = value_retain(how);
    bool ok = value_is(shown, TAG_UNSET) ? rec_text_fits(vm, v, how) : format_part(vm, shown, how, &t, &own);
    value_release(vm, shown);
    if (ok) continue;
    if (waits) rec_text_failed(vm);
    v = p->value ? raise_at(vm, p->value->at) : value_error();
    goto stop;
  }
  vm_disown(vm, &held);
  v = text_take(&t);
  if (any && !value_is_error(v)) {
    qn_list *parts = list_from(vm, mark, (size_t)(vm->sp - mark));
    if (!parts || !rec_text_made(vm, &v, NULL, value_obj(TAG_LIST, parts))) v = value_fail(vm, v);
    if (parts) value_release(vm, value_obj(TAG_LIST, parts));
  }
  return vm_pop_with(vm, mark, v);
stop:
  vm_disown(vm, &held);
  text_free(&t);
  return vm_pop_with(vm, mark, v);
}

qn_value eval_template(qn_vm *vm, node *h, qn_value *fp) {
  n_template *n = (n_template *)h;
  if (op_deferred(vm)) return eval_template_deferred(vm, n, fp);
  bool own = false; /* the part before takes lines of its own, so a new line begins behind it */
  qn_value v;
  text_buf t = {.vm = vm};
  vm_owned held;
  vm_own(vm, &held, vm_drop_text, &t);
  for (uint32_t i = 0; i < n->n; i++) {
    const n_part *p = &n->parts[i];
    if (own && (p->value || p->text->text[0] != '\n')) text_adds(&t, "\n");
    own = false;
    if (!p->value) {
      text_add(&t, p->text->text, p->text->len);
      continue;
    }
    v = eval(vm, p->value, fp);
    if (value_stops(v)) goto stop;
    rec_at(vm, p->value->at);
    if (!rec_plain(vm, &v)) { /* variables keep stacked lists when the recording that made them has ended */
      v = value_fail(vm, v);
      goto stop;
    }
    v = rec_observe_take(vm, v); /* the text depends on the value, so traced numbers in it become guards */
    if (value_is_error(v)) goto stop;
    bool ok =
        p->text ? format_spec_among(vm, v, p->text->text, p->text->len, &t, &own) : format_among(vm, v, NULL, &t, &own);
    value_release(vm, v);
    if (ok) continue;
    v = raise_at(vm, p->value->at);
    goto stop;
  }
  vm_disown(vm, &held);
  return text_take(&t);
stop:
  vm_disown(vm, &held);
  text_free(&t);
  return v;
}

/* ---- ranges, fields ------------------------------------------------------------------------------------------------------ */

bool range_bound(qn_vm *vm, node *n, qn_value *fp, const char *what, int64_t *out, qn_value *stopped) {
  qn_value v = *stopped = eval(vm, n, fp);
  if (value_stops(v)) return false;
  bool ok = index_int(vm, v, what, out);
  value_release(vm, v);
  if (!ok) *stopped = raise_at(vm, n->at);
  return ok;
}

/* Is a range the first argument of a call of map or fold, while something is recorded? */
static bool goes_over(qn_vm *vm, const n_range *n, qn_value *fp) {
  if (!n->over || vm->asked.stacked) return false;
  qn_value f = eval(vm, n->over->callee, fp);
  if (value_stops(f)) { /* told when the call itself looks */
    error_clear(vm);
    return false;
  }
  bool known = value_is(f, TAG_FN) && value_fn(f)->code == n->by;
  value_release(vm, f);
  return known;
}

/* start..b while something is recorded, for a reader that knows of ranges that end at a traced number. */
static __attribute__((noinline)) qn_value range_traced(qn_vm *vm, const n_range *n, qn_value *fp, int64_t start) {
  qn_value v = eval(vm, n->b, fp);
  if (value_stops(v)) return v;
  bool traced = value_is(v, TAG_INT) && value_node(v) && rec_ends_range(vm, start, v);
  int64_t stop = v.u.i;
  bool ok = traced || index_int(vm, v, RANGE_END, &stop);
  value_release(vm, v);
  if (!ok) return raise_at(vm, n->b->at);
  qn_range *r = range_new(vm, start, stop, 1);
  return r ? value_traced(value_obj(TAG_RANGE, r), traced ? value_node(v) : 0) : value_error();
}

qn_value eval_range(qn_vm *vm, node *h, qn_value *fp) {
  n_range *n = (n_range *)h;
  int64_t start, stop;
  qn_value stopped;
  if (!range_bound(vm, n->a, fp, RANGE_START, &start, &stopped)) return stopped;
  if (__builtin_expect(op_deferred(vm), 0) && goes_over(vm, n, fp)) return range_traced(vm, n, fp, start);
  if (!range_bound(vm, n->b, fp, RANGE_END, &stop, &stopped)) return stopped;
  qn_range *r = range_new(vm, start, stop, 1);
  return r ? value_obj(TAG_RANGE, r) : value_error();
}

/* Appends which of n names a failed look-up of `wanted` may have meant: those spelled much like it, else all of them if they are few. */
static void add_names(text_buf *t, const char *wanted, const char **names, int n) {
  if (text_nearest(t, "; nearest: ", wanted, names, n) || n == 0 || n > 12) return;
  for (int i = 0; i < n; i++) text_addf(t, i ? ", %s" : "; it has: %s", names[i]);
}

/* Is there a builtin of this name, so that `x.mean` only lacks its parentheses? */
static bool names_function(qn_vm *vm, const qn_str *name) {
  const global_cell *c = scope_find(interp_of(vm)->builtin, name);
  return c && value_is(c->value, TAG_FN);
}

/* If the field was read by a key, r["name"] or r[k] (`mark` is the bracket): appends how to read a field that may be missing. */
static void text_by_key(qn_vm *vm, text_buf *t, span mark) {
  enum { KEY_MOST = 32 };
  const source_text *s = source_get(vm, mark.source);
  if (!s || mark.end > s->len || mark.end < mark.start + 3 || s->text[mark.start] != '[') return;
  uint32_t len = mark.end - mark.start - 2;
  bool whole = len <= KEY_MOST && s->text[mark.end - 1] == ']' && !memchr(s->text + mark.start + 1, '\n', len);
  text_addf(t, "; get(r, %.*s, 0) is 0 where there is none", whole ? (int)len : 3,
            whole ? s->text + mark.start + 1 : "key");
}

static __attribute__((noinline, cold)) qn_value no_field(qn_vm *vm, qn_value v, const qn_str *name, span mark) {
  enum { MOST = 256 };
  const char *names[MOST];
  int n = 0;
  text_buf t = {.vm = vm};
  if (value_is(v, TAG_RECORD)) {
    const qn_record *r = value_record(v);
    for (uint32_t i = 0; i < r->len && n < MOST; i++) names[n++] = record_name(r, i)->text;
    text_addf(&t, "the record has no field '%s'", name->text);
    if (n == 0) text_adds(&t, "; it is empty");
  } else if (value_is(v, TAG_MODULE)) {
    const qn_module *m = (const qn_module *)v.u.p;
    const scope *s = m->scope;
    for (uint32_t i = 0; i < s->n && n < MOST; i++)
      if (s->cells[i]->declared && s->cells[i]->value.head != TAG_UNSET) names[n++] = s->cells[i]->name->text;
    text_addf(&t, "module %s has no name '%s'", m->name->text, name->text);
  } else if (value_is(v, TAG_ARRAY)) {
    for (int i = 0; i < ARRAY_FIELDS; i++) names[n++] = array_fields[i];
    text_addf(&t, "arrays have no field '%s'", name->text);
  } else if (value_is_graph(v)) {
    for (int i = 0; i < GRAPH_FIELDS; i++) names[n++] = jit_graph_fields[i];
    text_addf(&t, "graphs have no field '%s'", name->text);
  } else {
    text_addf(&t, "%s has no fields; '%s' needs a record, module or array", phrase_kind(v).text, name->text);
    if (value_is(v, TAG_NIL)) text_adds(&t, nil_origin);
  }
  if (value_is(v, TAG_LIST) && value_list(v)->len > 0 && value_is(value_list(v)->items[0], TAG_RECORD)) {
    const qn_record *first = value_record(value_list(v)->items[0]);
    for (uint32_t i = 0; i < first->len; i++)
      if (record_name(first, i) == name || strcmp(record_name(first, i)->text, name->text) == 0)
        text_addf(&t, "; its first item has it: xs[0].%s", name->text);
    const qn_list *l = value_list(v); /* perhaps the list of new parameters and state that a step of optim gives */
    bool step = l->len == 2 && (value_is(l->items[1], TAG_NIL) || (value_is(l->items[1], TAG_RECORD) &&
                                                                   record_find(value_record(l->items[1]), name) < 0));
    if (step)
      text_adds(&t, "; the steps of optim give a list, (p, state) = optim.adam(p, g, state)");
    else if (record_find(first, name) >= 0)
      text_addf(&t, ", and map(xs, fn(r) r.%s) those of all", name->text);
  }
  bool record = value_is(v, TAG_RECORD), module = value_is(v, TAG_MODULE);
  bool foreign = !record && !module && !is_array_field(name);
  const char *hint = foreign ? foreign_hint(foreign_member(v), name->text, name->len) : NULL;
  if (hint) text_addf(&t, ": %s", hint);
  bool function = !hint && !module && names_function(vm, name);
  if (!hint && (record || !function)) add_names(&t, name->text, names, n);
  if (function) text_addf(&t, "; a function is called with parentheses: x.%s()", name->text);
  if (record && !function) text_by_key(vm, &t, mark);
  return raise_text(vm,
                    value_is(v, TAG_RECORD) || value_is(v, TAG_MODULE) || value_is(v, TAG_ARRAY) || value_is_graph(v)
                        ? E_key
                        : E_type,
                    mark, &t);
}

static qn_value array_field(qn_vm *vm, qn_value v, const qn_str *name, span mark) {
  const qn_array *a = value_array(v);
  const char *s = name->text;
  if (s[0] == 'T' && s[1] == 0) {
    if (a->rank > 2)
      return raise_error(vm, E_rank, mark, "T is for arrays of rank 2 or less; permute or transpose names the axes");
    if (a->rank < 2) return value_retain(v);
    if (op_at_hand(vm, a)) {
      int64_t shape[2] = {a->shape[1], a->shape[0]}, strides[2] = {a->strides[1], a->strides[0]};
      qn_array *turned = array_view(vm, a, (qn_dtype)a->dtype, 2, shape, strides, a->offset);
      return turned ? value_obj(TAG_ARRAY, turned) : value_error();
    }
    op_attr attr = {.n = 2, .d = {1, 0}};
    rec_at(vm, mark);
    return op_apply(vm, OP_permute, &v, 1, &attr);
  }
  if (strcmp(s, "shape") == 0) {
    qn_list *l = list_new(vm, a->rank);
    if (!l) return value_error();
    int64_t shape[ARRAY_MAX_RANK];
    rec_sizes(vm, v, shape);
    for (int i = 0; i < a->rank; i++) {
      qn_value size = rec_size_number(vm, shape[i]);
      if (value_is_error(size)) return value_fail(vm, value_obj(TAG_LIST, l));
      l->items[i] = size;
    }
    return value_obj(TAG_LIST, l);
  }
  if (strcmp(s, "dtype") == 0) return value_dtype((qn_dtype)a->dtype);
  if (strcmp(s, "rank") == 0) return value_int(a->rank);
  if (strcmp(s, "size") == 0)
    return op_deferred(vm) ? rec_size_number(vm, op_count(vm, v, UINT8_MAX)) : value_int(a->size);
  if (strcmp(s, "device") == 0) return value_device(a->device);
  return no_field(vm, v, name, mark);
}

void field_cache_set(qn_vm *vm, field_cache *c, const qn_record *r, uint32_t i) {
  if (!r->layout->shared || r->layout == c->layout) return;
  record_layout *old = c->layout;
  *c = (field_cache){layout_retain(r->layout), i};
  if (old) layout_release(vm, old);
}

qn_value field_of(qn_vm *vm, qn_value v, qn_str *name, span mark, field_cache *cache) {
  if (value_is(v, TAG_RECORD)) {
    qn_record *r = value_record(v);
    int i = record_find(r, name);
    if (i < 0) return no_field(vm, v, name, mark);
    if (cache) field_cache_set(vm, cache, r, (uint32_t)i);
    return value_retain(r->items[i]);
  }
  if (value_is(v, TAG_MODULE)) {
    const qn_module *m = (const qn_module *)v.u.p;
    global_cell *c = scope_find(m->scope, name);
    if (!c || !c->declared) return no_field(vm, v, name, mark);
    if (c->value.head == TAG_UNSET)
      return raise_error(vm, E_unset, mark, "'%s' of module %s has no value yet", name->text, m->name->text);
    return rec_global(vm, &c->rec, &c->value, c->name);
  }
  if (value_is(v, TAG_ARRAY)) return array_field(vm, v, name, mark);
  if (value_is_graph(v)) {
    qn_value field = jit_graph_field(vm, v, name->text);
    if (field.head != TAG_UNSET) return field;
  }
  return no_field(vm, v, name, mark);
}

qn_value *peek_path(const qn_vm *vm, const node *n, qn_value *fp, bool own) {
  switch ((node_kind)n->kind) {
  case N_GLOBAL: {
    global_cell *c = ((const n_global *)n)->cell;
    return rec_hears_globals(vm) || c->value.head == TAG_UNSET ? NULL : &c->value;
  }
  case N_FIELD: {
    const n_field *f = (const n_field *)n;
    const qn_value *x = peek(vm, f->object, fp, own);
    if (!x || x->head != TAG_RECORD) return NULL;
    const qn_record *r = value_record(*x);
    return r->layout != f->cache.layout || (own && r->head.refs != 1) ? NULL : &r->items[f->cache.index];
  }
  case N_INDEX: {
    const n_index *f = (const n_index *)n;
    const node *item = f->items[0];
    const qn_value *i = item->kind == N_LOCAL   ? &fp[item->slot]
                        : item->kind == N_CONST ? &((const n_const *)item)->v
                                                : NULL;
    if (!i || i->head != TAG_INT) return NULL;
    const qn_value *x = peek(vm, f->object, fp, own);
    if (!x || x->head != TAG_LIST || value_is_stacked(*x)) return NULL;
    const qn_list *l = value_list(*x);
    uint64_t at = (uint64_t)(i->u.i < 0 ? i->u.i + (int64_t)l->len : i->u.i);
    return at >= l->len || (own && l->head.refs != 1) ? NULL : &l->items[at];
  }
  default: return NULL;
  }
}

/* Does the variable with the field's name hold the name of a field of `r`, so that r[k] was meant? (The value of an outer function's
 * variable is not known here; it is assumed to be one.) */
static bool named_by_variable(const n_field *n, const qn_record *r, const qn_value *fp) {
  if (n->h.flag == NAMESAKE_NONE || n->h.flag == NAMESAKE_OUTER) return n->h.flag == NAMESAKE_OUTER;
  qn_value v = n->h.flag == NAMESAKE_LOCAL ? fp[n->h.slot] : n->namesake->value;
  return value_is(v, TAG_STR) && record_find(r, value_str(v)) >= 0;
}

/* What a field holds (taken over), as the node gives it. */
static inline qn_value field_read(qn_vm *vm, const n_field *n, qn_value v) {
  if (__builtin_expect(!vm->asked.stacked, 1) || n->stacks) return v;
  rec_at(vm, n->mark);
  return rec_plain_field(vm, &v) ? v : value_fail(vm, v);
}

qn_value eval_field(qn_vm *vm, node *h, qn_value *fp) {
  n_field *n = (n_field *)h;
  const qn_value *seen = peek(vm, n->object, fp, false);
  if (seen && seen->head == TAG_RECORD && value_record(*seen)->layout == n->cache.layout)
    return field_read(vm, n, value_retain(value_record(*seen)->items[n->cache.index]));
  qn_value v = eval(vm, n->object, fp);
  if (value_stops(v)) return v;
  qn_value r = v.head == TAG_RECORD && value_record(v)->layout == n->cache.layout
                   ? value_retain(value_record(v)->items[n->cache.index])
                   : field_of(vm, v, n->name, n->mark, &n->cache);
  if (value_is_error(r) && value_is(v, TAG_RECORD) && named_by_variable(n, value_record(v), fp))
    raise_note(vm, SPAN_NONE, "r[%s] is the field that the variable %s names", n->name->text, n->name->text);
  value_release(vm, v);
  return value_is_error(r) ? r : field_read(vm, n, r);
}

/* ---- indices ---------------------------------------------------------------------------------------------------------------- */

static qn_value key_get(qn_vm *vm, qn_value record, qn_value key, span at) {
  const qn_record *r = value_record(record);
  int i = record_find(r, value_str(key));
  if (i < 0) return no_field(vm, record, value_str(key), at);
  qn_value v = value_retain(r->items[i]);
  return rec_plain_field(vm, &v) ? v : value_fail(vm, v);
}

static __attribute__((noinline, cold)) qn_value fail_record_index(qn_vm *vm, qn_value x, qn_value key) {
  const char *how = !value_is(x, TAG_RECORD) ? "cannot be indexed by"
                    : value_is_number(key)   ? "is indexed by a field's name as a str, r[\"name\"] or r[str(i)], not by"
                                             : "is indexed by a field's name as a str, r[\"name\"], not by";
  return raise_error(vm, E_index_kind, SPAN_NONE, "%s %s %s", phrase_kind(x).text, how, phrase_kind(key).text);
}

/* x[i] for any two values, which are borrowed. Owned, or the error value. */
static qn_value get_one(qn_vm *vm, qn_value x, qn_value i, span at) {
  if (value_is(i, TAG_STR)) {
    if (!rec_look(vm, i)) return value_error();
    if (value_is(x, TAG_RECORD)) return key_get(vm, x, i, at);
    return fail_record_index(vm, x, i);
  }
  if (value_is(x, TAG_RECORD)) return fail_record_index(vm, x, i);
  index_item item;
  bool array = value_is(x, TAG_ARRAY);
  if (op_deferred(vm) && value_is(x, TAG_LIST)) {
    qn_value r = rec_item_by_data(vm, x, i);
    if (!value_is(r, TAG_UNSET)) return r;
  }
  if (!index_item_of(vm, i, !array, &item)) return value_error();
  if (array && !rec_try_index(vm, x, &item, 1)) return value_error();
  return array ? op_index(vm, x, &item, 1) : index_get(vm, x, &item, 1);
}

/* Is the node an array literal that stands as an item in another one? */
static bool is_row(qn_vm *vm, const node *n) {
  const source_text *source = n->kind == N_ARRAY ? source_get(vm, n->at.source) : NULL;
  if (!source) return false;
  const char *s = source->text + n->at.start;
  while (s > source->text && strchr(" \t\r\n", s[-1])) s--;
  return s > source->text && (s[-1] == '[' || s[-1] == ',');
}

/* A list that was an item of another one (owned): an ordinary one, unless the program text takes stacked ones there. Owned, or the error value. */
static __attribute__((noinline)) qn_value plain_item(qn_vm *vm, const n_index *n, qn_value r) {
  return n->stacks || rec_plain_field(vm, &r) ? r : value_fail(vm, r);
}

static qn_value finish_index(qn_vm *vm, n_index *n, qn_value x, qn_value r) {
  if (!value_is_error(r)) r = plain_item(vm, n, r);
  if (value_is_error(r)) {
    raise_at(vm, n->mark);
    note_operand(vm, n->object->at, x, n->object);
    if (is_row(vm, n->object) && vm->error && vm->error->refs == 1) /* [[1, 2] [3, 4]] */
      raise_note(vm, SPAN_NONE, "brackets behind an array index it; rows have a ',' between them");
  }
  value_release(vm, x);
  return r;
}

/* x[i] of a stacked list; takes over both. */
static __attribute__((noinline)) qn_value index_stacked(qn_vm *vm, n_index *n, qn_value x, qn_value i) {
  rec_at(vm, n->mark);
  qn_value r = rec_stacked_get(vm, &x, i);
  if (value_is(r, TAG_UNSET)) r = get_one(vm, x, i, n->mark);
  value_release(vm, i);
  return finish_index(vm, n, x, r);
}

/* x[i] with one expression in the brackets. The node's flag: evaluating that expression rebinds the variable x. */
qn_value eval_index_one(qn_vm *vm, node *h, qn_value *fp) {
  n_index *n = (n_index *)h;
  bool local = n->object->kind == N_LOCAL && !h->flag;
  qn_value x = local ? fp[n->object->slot] : eval(vm, n->object, fp);
  if (value_stops(x)) return x;
  qn_value i = local ? eval(vm, n->items[0], fp) : eval_beside(vm, n->items[0], fp, x);
  if (value_stops(i)) {
    if (!local) value_release(vm, x);
    return i;
  }
  if (x.head == TAG_LIST && value_is_stacked(x)) return index_stacked(vm, n, local ? value_retain(x) : x, i);
  if (i.head == TAG_INT) {
    if (x.head == TAG_LIST) { /* reading an item of a list is not recorded */
      const qn_list *l = value_list(x);
      uint64_t at = (uint64_t)(i.u.i < 0 ? i.u.i + (int64_t)l->len : i.u.i);
      if (at < l->len) {
        qn_value r = value_retain(l->items[at]);
        if (!local) value_release(vm, x);
        return __builtin_expect(r.head == TAG_LIST, 0) ? plain_item(vm, n, r) : r;
      }
    } else if (x.head == TAG_ARRAY && value_array(x)->rank > 0) {
      int64_t size = value_array(x)->shape[0], at = i.u.i < 0 ? i.u.i + size : i.u.i;
      if (at >= 0 && at < size && (i.u.i >= 0 || !op_deferred(vm))) {
        rec_at(vm, n->mark);
        qn_value r = op_index_row(vm, x, at);
        if (value_is_error(r)) raise_at(vm, n->mark);
        if (!local) value_release(vm, x);
        return r;
      }
    }
  }
  rec_at(vm, n->mark);
  if (local) value_retain(x);
  qn_value r = get_one(vm, x, i, n->mark);
  value_release(vm, i);
  return finish_index(vm, n, x, r);
}

/* len or stack of a stacked list. Owned; the error value; or unset: *list (owned) becomes the ordinary list, of which it is asked. */
static qn_value count_stacked(qn_vm *vm, const n_count *n, qn_value *list) {
  rec_at(vm, n->h.at);
  if (!n->stacks) return rec_stacked_length(vm, *list);
  qn_value cut = value_retain(*list);
  if (!rec_counted_cut(vm, &cut)) return value_fail(vm, cut);
  qn_value whole = value_is_counted(cut) ? value_unset() : rec_stacked_whole(vm, cut);
  value_release(vm, cut);
  if (!value_is(whole, TAG_UNSET)) return whole;
  return rec_make_plain(vm, list) ? value_unset() : value_error();
}

/* Of what a field or call gives, while something is recorded. */
static __attribute__((noinline)) qn_value count_evaluated(qn_vm *vm, n_count *n, qn_value *fp) {
  qn_value *mark = vm->sp;
  if (!vm_enter(vm, 2)) return value_error();
  qn_value f = *vm->sp++ = eval(vm, n->plain->callee, fp);
  if (value_stops(f)) return vm->sp = mark, f;
  qn_value v = eval(vm, n->plain->args[0].value, fp), r = value_unset();
  if (value_stops(v)) return vm_pop_with(vm, mark, v);
  *vm->sp++ = v;
  bool known = value_is(f, TAG_FN) && value_fn(f)->code == n->def;
  if (value_is_stacked(v) && known) r = count_stacked(vm, n, &mark[1]);
  if (value_is(r, TAG_UNSET)) r = vm->hooks.call(vm, f, &mark[1], 1, value_nil());
  if (value_is_error(r)) raise_at(vm, n->h.at);
  return vm_pop_with(vm, mark, r);
}

qn_value eval_count(qn_vm *vm, node *h, qn_value *fp) {
  n_count *n = (n_count *)h;
  qn_value *x = &fp[h->slot];
  if (!n->local)
    return __builtin_expect(vm->asked.stacked || op_deferred(vm), 0) ? count_evaluated(vm, n, fp)
                                                                     : eval(vm, &n->plain->h, fp);
  if (__builtin_expect(!value_is_stacked(*x), 1)) return eval(vm, &n->plain->h, fp);
  if (rec_in_arm(vm)) return count_evaluated(vm, n, fp); /* an ordinary list made there is none behind it */
  qn_value f = eval(vm, n->plain->callee, fp);
  if (value_stops(f)) return f;
  bool known = value_is(f, TAG_FN) && value_fn(f)->code == n->def;
  value_release(vm, f);
  qn_value r = known ? count_stacked(vm, n, x) : value_unset();
  return value_is(r, TAG_UNSET) ? eval(vm, &n->plain->h, fp) : r;
}

/* x[items] of a stacked list, given the values of the items, which lie on the stack behind it. *x (owned) may become the ordinary list. */
static __attribute__((noinline, cold)) qn_value index_stacked_slice(qn_vm *vm, const n_index *n, qn_value *x,
                                                                    qn_value *values) {
  index_item items[INDEX_MAX];
  qn_value r = value_unset();
  if (n->stacks && n->n == 1 && n->items[0]->kind == N_SLICE && !rec_counted_cut(vm, x)) return value_error();
  if (n->stacks && n->n == 1 && n->items[0]->kind == N_SLICE && !value_is_counted(*x)) {
    if (!index_items_of(vm, n->items, n->n, values, false, items)) return value_error();
    r = rec_stacked_slice(vm, *x, items);
  } else if (n->stacks && n->n == 1 && n->items[0]->kind == N_SLICE) {
    r = rec_counted_slice(vm, *x, values);
  }
  if (!value_is(r, TAG_UNSET)) return r;
  if (!rec_make_plain(vm, x)) return value_error();
  values[-1] = *x;
  return index_items_of(vm, n->items, n->n, values, true, items) ? index_get(vm, *x, items, (int)n->n) : value_error();
}

static __attribute__((noinline)) qn_value index_evaluated(qn_vm *vm, n_index *n, qn_value *fp) {
  qn_value x = eval(vm, n->object, fp);
  if (value_stops(x)) return x;
  qn_value *mark = vm->sp + 1, stopped = value_error();
  bool room = vm_enter(vm, 1);
  if (room) *vm->sp++ = x;
  if (!room || !index_values_push(vm, n->items, n->n, fp, &stopped)) {
    if (value_is_error(stopped)) raise_at(vm, n->mark);
    if (room) vm->sp = mark - 1;
    value_release(vm, x);
    return stopped;
  }
  index_item items[INDEX_MAX];
  rec_at(vm, n->mark);
  qn_value r = value_error();
  if (value_is_stacked(x))
    r = index_stacked_slice(vm, n, &x, mark);
  else if (value_is(x, TAG_RECORD))
    r = fail_record_index(vm, x, vm->sp > mark ? *mark : value_nil());
  else if (value_is(x, TAG_ARRAY) ? index_items_tried(vm, x, n->items, n->n, mark, items)
                                  : index_items_of(vm, n->items, n->n, mark, true, items))
    r = index_get(vm, x, items, (int)n->n);
  vm_pop_to(vm, mark);
  vm->sp = mark - 1;
  return finish_index(vm, n, x, r);
}

/* x[items] in general. If x is a variable that holds an array, and all items are variables and constants, nothing is evaluated and no
 * reference taken. */
qn_value eval_index(qn_vm *vm, node *h, qn_value *fp) {
  n_index *n = (n_index *)h;
  index_item items[INDEX_READ];
  qn_value x;
  if (n->object->kind == N_LOCAL)
    x = fp[n->object->slot];
  else if (n->object->kind == N_GLOBAL)
    x = ((const n_global *)n->object)->cell->value;
  else
    return index_evaluated(vm, n, fp);
  if (x.head != TAG_ARRAY || !index_items_here(vm, n->items, n->n, fp, items)) return index_evaluated(vm, n, fp);
  qn_value r = op_index(vm, x, items, (int)n->n);
  return value_is_error(r) ? finish_index(vm, n, value_retain(x), r) : r;
}

/* ---- closures ------------------------------------------------------------------------------------------------------------------ */

qn_value eval_fn_node(qn_vm *vm, node *h, qn_value *fp) {
  n_fn *n = (n_fn *)h;
  const fn_code *code = n->code;
  qn_fn *f = fn_new(vm, FN_USER, n->code, code->ncaptures + code->ninitial);
  if (!f) return value_error();
  bool data = false;
  for (uint32_t i = 0; i < code->ncaptures; i++) {
    const capture_source *s = &n->captures[i];
    qn_value v = s->from == FROM_LOCAL  ? fp[s->number]
                 : s->from == FROM_SELF ? fp[-1]
                                        : value_fn(fp[-1])->captures[s->number];
    f->captures[i] = value_retain(v);
    data |= value_tag_of(v) >= TAG_LIST;
  }
  f->head.aux = data; /* a call may be worth recording even if no argument is an array */
  for (uint32_t i = 0; i < code->ninitial; i++) {
    qn_value v = eval_beside(vm, n->initials[i], fp, value_obj(TAG_FN, f));
    if (value_stops(v)) {
      value_release(vm, value_obj(TAG_FN, f));
      return v;
    }
    f->captures[code->ncaptures + i] = v;
  }
  return value_obj(TAG_FN, f);
}
