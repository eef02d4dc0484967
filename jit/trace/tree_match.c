/* Trees that must look like another one. The cotangent of a result, the tangent of an argument, and the gradients that the backward
 * function of a custom_grad returns all have, at every float leaf, the dtype and shape of what they belong to.
 *
 * nil means zeros, wherever it stands. A number may stand for an array of rank 0, and an int for a float. Leaves that are not floats do not
 * matter, since nothing is differentiated there.
 */
#include <string.h>

#include "jit/trace/gradients.h"
#include "jit/trace/recording.h"

bool is_float_leaf(qn_value v) {
  return value_is(v, TAG_FLOAT) || (value_is(v, TAG_ARRAY) && dtype_is_float((qn_dtype)value_array(v)->dtype));
}

bool leaf_list_add(void *ctx, qn_value v) {
  leaf_list *l = ctx;
  if (!mem_grow(l->vm, (void **)&l->items, &l->cap, l->n + 1, sizeof *l->items)) return false;
  l->items[l->n++] = v;
  return true;
}

bool leaf_list_float(void *ctx, qn_value v) { return !is_float_leaf(v) || leaf_list_add(ctx, v); }

void leaf_list_drop(qn_vm *vm, void *list) {
  const leaf_list *l = list;
  mem_free(vm, l->items, l->cap * sizeof *l->items);
}

typedef struct tree_match {
  qn_vm *vm;
  const char *what, *of;
  bool (*leaf)(void *ctx, qn_value like, qn_value given);
  void *ctx;
  int lanes;      /* how many leading axes of `given` are lanes of vmaps */
  qn_value whole; /* the whole tree of which `like` is a part; `seen`: how many of its places were walked */
  uint64_t seen;
  text_buf path; /* ".w[1]" */
} tree_match;

/* Appends what a value is; of an array the dtype, and the shape as one lane sees it. */
static void text_lane(const tree_match *c, text_buf *t, qn_value v) {
  const qn_array *a = value_is(v, TAG_ARRAY) ? value_array(v) : NULL;
  if (a && a->rank >= c->lanes)
    text_shape(t, (qn_dtype)a->dtype, a->rank - c->lanes, a->shape + c->lanes);
  else
    text_kind(t, v);
}

/* Raises "jvp: the tangent is f32[3] at .w where the argument is f32[4]", with `detail` behind it. False. */
static bool differs(tree_match *c, qn_value like, qn_value given, const char *detail) {
  text_buf t = {.vm = c->vm};
  text_addf(&t, "%s is ", c->what);
  text_lane(c, &t, given);
  if (c->path.len) {
    text_adds(&t, " at ");
    text_add(&t, c->path.text, c->path.len);
  }
  text_addf(&t, " where %s is ", c->of);
  text_lane(c, &t, like);
  text_adds(&t, detail);
  raise_text(c->vm, E_argument, SPAN_NONE, &t);
  return false;
}

/* The sum of what the lanes give for a host float that they share, as a host float. Owned, or the error value. */
static qn_value sum_of_lanes(qn_vm *vm, qn_value given) {
  qn_value wide = op_apply(vm, OP_cast, &given, 1, &(op_attr){.dtype = WEAK_FLOAT});
  if (value_is_error(wide)) return wide;
  qn_value sum = op_reduce(vm, OP_sum, wide, (uint8_t)((1u << value_array(given)->rank) - 1), false);
  value_release(vm, wide);
  if (value_is_error(sum)) return sum;
  qn_value number = rec_host_number(vm, sum, WEAK_FLOAT);
  value_release(vm, sum);
  return number;
}

static bool walk_leaf(tree_match *c, qn_value like, qn_value given) {
  qn_vm *vm = c->vm;
  if (value_is(given, TAG_NIL)) return c->leaf(c->ctx, like, given);
  if (value_is(like, TAG_FLOAT)) {
    if (value_is(given, TAG_FLOAT)) return c->leaf(c->ctx, like, given);
    if (c->lanes && value_is(given, TAG_ARRAY) && is_float_leaf(given)) {
      qn_value sum = sum_of_lanes(vm, given);
      bool ok = !value_is_error(sum) && c->leaf(c->ctx, like, sum);
      value_release(vm, sum);
      return ok;
    }
    if (!value_is(given, TAG_INT))
      return differs(c, like, given, value_is(given, TAG_ARRAY) ? "; float(x) converts" : "");
    qn_value as_float = op_apply(vm, OP_mul, (qn_value[]){given, value_float(1)}, 2, NULL);
    return !value_is_error(as_float) && c->leaf(c->ctx, like, as_float);
  }
  const qn_array *a = value_array(like);
  if (value_is_number(given) && a->rank == 0) {
    qn_value x = op_apply(vm, OP_fit, &given, 1, &(op_attr){.dtype = a->dtype});
    bool ok = !value_is_error(x) && c->leaf(c->ctx, like, x);
    value_release(vm, x);
    return ok;
  }
  if (!value_is(given, TAG_ARRAY)) return differs(c, like, given, "");
  const qn_array *b = value_array(given);
  if (c->lanes && b->dtype != a->dtype && a->dtype == WEAK_FLOAT && is_float_leaf(given) && shape_equal(a, b)) {
    qn_value wide = op_apply(vm, OP_cast, &given, 1, &(op_attr){.dtype = a->dtype});
    bool ok = !value_is_error(wide) && c->leaf(c->ctx, like, wide);
    value_release(vm, wide);
    return ok;
  }
  if (b->dtype != a->dtype || !shape_equal(a, b)) return differs(c, like, given, "");
  return c->leaf(c->ctx, like, given);
}

static bool walk(tree_match *c, qn_value like, qn_value given) {
  qn_vm *vm = c->vm;
  if (!vm_enter(vm, 0) || !tree_place(vm, c->whole, &c->seen)) return false;
  bool none = value_is(given, TAG_NIL), list = value_is(like, TAG_LIST);
  if (!list && !value_is(like, TAG_RECORD)) return !is_float_leaf(like) || walk_leaf(c, like, given);
  size_t len = c->path.len;
  uint32_t n, others = 0;
  const qn_value *parts = value_parts(like.u.p, &n), *from = NULL;
  if (!none && value_tag_of(given) == value_tag_of(like)) from = value_parts(given.u.p, &others);
  if (!none && (value_tag_of(given) != value_tag_of(like) || others != n)) return differs(c, like, given, "");
  for (uint32_t i = 0; i < n; i++) {
    int at = (int)i;
    if (!list && !none) at = record_find(value_record(given), record_name(value_record(like), i));
    if (at < 0) return differs(c, like, given, "");
    if (list)
      text_addf(&c->path, "[%u]", i);
    else
      text_addf(&c->path, ".%s", record_name(value_record(like), i)->text);
    if (!walk(c, parts[i], none ? given : from[at])) return false;
    c->path.len = len;
  }
  return true;
}

bool tree_match_walk(qn_vm *vm, const char *what, const char *of, qn_value like, qn_value given, int lanes,
                     bool (*leaf)(void *ctx, qn_value like, qn_value given), void *ctx) {
  tree_match c = {
      .vm = vm, .what = what, .of = of, .leaf = leaf, .ctx = ctx, .lanes = lanes, .whole = like, .path = {.vm = vm}};
  bool ok = walk(&c, like, given);
  text_free(&c.path);
  return ok;
}

static qn_value prototype_leaf(void *ctx, qn_value v) {
  if (value_is(v, TAG_FLOAT)) return value_float(0);
  if (!is_float_leaf(v)) return value_nil();
  qn_array *a = value_array(v), *p = array_new_header(ctx, (qn_dtype)a->dtype, a->rank, a->shape);
  if (!p) return value_error();
  p->device = a->device;
  return value_obj(TAG_ARRAY, p);
}

qn_value tree_match_prototype(qn_vm *vm, qn_value v) { return tree_rebuild(vm, v, prototype_leaf, vm); }

qn_value tree_match_zeros(qn_vm *vm, qn_value like) {
  if (value_is(like, TAG_FLOAT)) return value_float(0);
  const qn_array *a = value_array(like);
  int64_t shape[ARRAY_MAX_RANK];
  rec_sizes(vm, like, shape);
  return op_full(vm, value_float(0), (qn_dtype)a->dtype, a->rank, shape);
}
