/* Windows along axes, and what is made of them: convolution and pooling.
 *
 * OP_window is a view: windows of x[n, c, h, w] along its last two axes are [n, c, oh, ow, kh, kw], without a copy. Everything here
 * is that view with ops around it, so it is recorded, differentiated and compiled like them:
 *
 *   pooling      the windows' axes brought before [oh, ow] and reduced
 *   convolution  the same axes taken together as one, [n, groups, channels / groups * kh * kw, oh * ow], and the product of the weights
 *                [groups, out / groups, channels / groups * kh * kw] with that. Each element is one chain of fma over channels, rows and
 *                columns of its window, in this order, whatever the device, the batch or the layout
 *   depthwise    (one channel in each group) a product of matrices would have one row; windows are multiplied and summed instead
 *
 * A window of one element is no window: a convolution of 1 x 1 is a product of matrices alone.
 *
 * Where images have more places than there are output channels, the weights of an ungrouped convolution get a batch axis of size 1:
 * their gradient is then a sum over the batch of products that read the windows as they lie. Otherwise it is one product over batch
 * and places, which moves the windows, but makes no matrix for each image. */
#include <stdio.h>
#include <string.h>

#include "stdlib/builtins.h"

enum {
  SPATIAL = 2,
  LEAD = 2
}; /* SPATIAL: the most axes that windows go along. LEAD: the axes before them, batch and channels */

/* The windows along one axis. Padding and count are sizes, which may be symbolic. */
typedef struct sweep {
  int64_t size, step, apart; /* elements of a window, steps to the next window, steps between its elements */
  int64_t low, high;         /* padding */
  int64_t count;             /* windows */
} sweep;

typedef struct sweeps {
  const char *fn;
  int n; /* windows go along the last n axes of x */
  sweep s[SPATIAL];
} sweeps;

static const char *axis_name(const sweeps *w, int i) { return w->n == 1 ? "length" : i ? "width" : "height"; }

/* ---- arguments ------------------------------------------------------------------------------------------------ */

/* Reads an int for all axes, or a list with one for each, into `out`. All are at least 1. `what` names the argument in messages. */
static bool each_axis(qn_vm *vm, const sweeps *w, const char *what, qn_value v, int64_t out[SPATIAL]) {
  bool list = value_is(v, TAG_LIST);
  if (list && value_list(v)->len != (uint32_t)w->n)
    return raise_false(vm, E_argument, "%s: %s is an int or a list of %d, not of %u", w->fn, what, w->n,
                       value_list(v)->len);
  for (int i = 0; i < w->n; i++) {
    char words[64];
    snprintf(words, sizeof words, "an int or a list of ints as %s", what);
    if (!arg_int(vm, w->fn, words, list ? value_list(v)->items[i] : v, &out[i])) return false;
    if (out[i] < 1 || out[i] > ARRAY_MAX_ELEMENTS)
      return raise_false(vm, out[i] < 1 ? E_argument : E_too_large, "%s: %s %lld along the %s; %s", w->fn, what,
                         (long long)out[i], axis_name(w, i), out[i] < 1 ? "it is at least 1" : "at most 2**48");
  }
  return true;
}

static bool text_is(qn_value v, const char *text) {
  return value_is(v, TAG_STR) && strcmp(value_str(v)->text, text) == 0;
}

/* Reads padding: "valid" is none, and "same" is so much that there are as many windows as steps along the axis. Otherwise it is an int, or a
 * list with an int or (before, after) for each axis. */
static bool read_padding(qn_vm *vm, sweeps *w, qn_value v, const int64_t *lengths) {
  bool same = text_is(v, "same"), list = value_is(v, TAG_LIST);
  dim_table *t = rec_dims(vm);
  if (value_is(v, TAG_STR) && !same && !text_is(v, "valid"))
    return raise_false(vm, E_argument, "%s: padding \"%s\"; a text is \"same\" or \"valid\"", w->fn,
                       value_str(v)->text);
  if (list && value_list(v)->len != (uint32_t)w->n)
    return raise_false(vm, E_argument, "%s: padding of %u axes; there are %d", w->fn, value_list(v)->len, w->n);
  for (int i = 0; i < w->n; i++) {
    sweep *s = &w->s[i];
    qn_value own = list ? value_list(v)->items[i] : v;
    int64_t sides[2] = {0, 0};
    if (same) {
      if (lengths[i]) {
        qn_dim last = dim_make(t, DIM_FLOORDIV, dim_sub(t, lengths[i], 1), s->step); /* the last window's number */
        qn_dim reach = dim_add(t, dim_mul(t, last, s->step), (s->size - 1) * s->apart + 1);
        qn_dim need = dim_make(t, DIM_MAX, dim_sub(t, reach, lengths[i]), 0);
        sides[0] = dim_make(t, DIM_FLOORDIV, need, 2);
        sides[1] = dim_sub(t, need, sides[0]);
      }
    } else if (!value_is(v, TAG_STR)) {
      bool pair = value_is(own, TAG_LIST) && value_list(own)->len == 2;
      for (int k = 0; k < 2; k++)
        if (!arg_int(vm, w->fn, "an int, (before, after), \"same\" or \"valid\" as padding",
                     pair ? value_list(own)->items[k] : own, &sides[k]))
          return false;
    }
    for (int k = 0; k < 2 && !same; k++)
      if (sides[k] < 0 || sides[k] > ARRAY_MAX_ELEMENTS)
        return raise_false(vm, sides[k] < 0 ? E_shape : E_too_large, "%s: padding %lld along the %s%s", w->fn,
                           (long long)sides[k], axis_name(w, i),
                           sides[k] < 0 ? "; a slice cuts elements off" : "; at most 2**48");
    s->low = sides[0];
    s->high = sides[1];
  }
  return true;
}

/* Reads how windows of these sizes go along the last axes of x, which has this shape, and checks that at least one fits. */
static bool read_sweeps(qn_vm *vm, sweeps *w, const qn_array *x, const int64_t *shape, const int64_t *sizes,
                        qn_value stride, qn_value padding, qn_value dilation) {
  int64_t steps[SPATIAL], apart[SPATIAL];
  const int64_t *lengths = shape + x->rank - w->n;
  dim_table *dims = rec_dims(vm);
  if (!each_axis(vm, w, "stride", stride, steps)) return false;
  if (!each_axis(vm, w, "dilation", dilation, apart)) return false;
  for (int i = 0; i < w->n; i++) {
    w->s[i] = (sweep){.size = sizes[i], .step = steps[i], .apart = apart[i]};
    int64_t reach;
    if (__builtin_mul_overflow(sizes[i], apart[i], &reach) || reach > ARRAY_MAX_ELEMENTS)
      return raise_false(vm, E_too_large, "%s: a window of more than 2**48 elements", w->fn);
  }
  if (!read_padding(vm, w, padding, lengths)) return false;
  for (int i = 0; i < w->n; i++) {
    sweep *s = &w->s[i];
    int64_t reach = (s->size - 1) * s->apart + 1, length = dim_add(dims, dim_add(dims, lengths[i], s->low), s->high);
    if (!rec_size_ordered(vm, reach, length) || s->size < 1) {
      int64_t now = x->shape[x->rank - w->n + i], padded = rec_size_hint(vm, length);
      text_buf t = {.vm = vm};
      text_addf(&t, "%s: the window's %s is %lld", w->fn, axis_name(w, i), (long long)s->size);
      if (s->apart > 1) text_addf(&t, " (%lld with dilation %lld)", (long long)reach, (long long)s->apart);
      text_addf(&t, ", axis %d of %s is %lld", x->rank - w->n + i, phrase_shape(x).text, (long long)now);
      if (padded != now) text_addf(&t, " (%lld with padding)", (long long)padded);
      raise_text(vm, E_shape, SPAN_NONE, &t);
      return false;
    }
    length = dim_sub(dims, length, reach);
    s->count = dim_add(dims, length >= 0 ? length / s->step : dim_make(dims, DIM_FLOORDIV, length, s->step), 1);
  }
  return true;
}

/* ---- windows ---------------------------------------------------------------------------------------------------- */

static qn_value use_window(qn_vm *vm, qn_value x, int axis, int64_t size, int64_t step, int64_t apart) {
  if (value_is_error(x)) return x;
  op_attr attr = {.axes = (uint8_t)(1u << axis), .n = 3, .d = {size, step, apart}};
  return use1(vm, OP_window, x, &attr);
}

static qn_value use_padding(qn_vm *vm, qn_value x, const sweeps *w, qn_value fill) {
  bool any = false;
  if (value_is_error(x)) return x;
  op_attr attr = {.n = (uint8_t)(3 * value_array(x)->rank)};
  for (int i = 0; i < w->n; i++) {
    int axis = value_array(x)->rank - w->n + i;
    attr.d[3 * axis] = w->s[i].low;
    attr.d[3 * axis + 1] = w->s[i].high;
    any |= w->s[i].low || w->s[i].high;
  }
  return any ? use2(vm, OP_pad, x, fill, &attr) : x;
}

/* Makes [.., kh, kw, oh, ow] of x[.., h, w] (taken over): windows of kh x kw elements, oh x ow of them. There is no axis kh or kw if windows
 * have one element along it; *more is the number of axes that the result has more than x. */
static qn_value use_windows(qn_vm *vm, qn_value x, const sweeps *w, qn_value fill, int *more) {
  x = use_padding(vm, x, w, fill);
  *more = 0;
  if (value_is_error(x)) return x;
  int rank = value_array(x)->rank, lead = rank - w->n;
  for (int i = 0; i < w->n && !value_is_error(x); i++) {
    const sweep *s = &w->s[i];
    int axis = lead + *more + i;
    if (s->size > 1) { /* the windows' axis moves before the axes of x, so that gradients work on long rows */
      x = use_move_axis(vm, use_window(vm, x, axis, s->size, s->step, s->apart), rank + *more, lead + *more);
      ++*more;
    } else if (s->step > 1) {
      x = used(vm, x, op_slice(vm, x, axis, 0, s->count, s->step));
    }
  }
  return x;
}

qn_value builtin_windows(qn_vm *vm, const qn_value *args) {
  static const char fn[] = "windows";
  qn_value x = args[0];
  int64_t numbers[3];
  int axis;
  if (!is_array(x)) return arg_refuse(vm, fn, "an array", x);
  for (int i = 0; i < 3; i++) {
    static const char *const what[] = {"an int as size", "an int as step", "an int as dilation"};
    if (!arg_int(vm, fn, what[i], args[i ? i + 2 : 1], &numbers[i])) return value_error();
  }
  if (!arg_axis(vm, fn, args[2], value_array(x)->rank, &axis)) return value_error();
  return use_window(vm, value_retain(x), axis, numbers[0], numbers[1], numbers[2]);
}

/* ---- pooling ---------------------------------------------------------------------------------------------------- */

/* The number that pads arrays of this dtype before a maximum is taken: no number of the dtype is smaller. */
static qn_value lowest(qn_dtype d) {
  if (dtype_is_float(d)) return value_float(-__builtin_inf());
  return dtype_scalar(d, 0, dtype_min(d));
}

static qn_value pool(qn_vm *vm, const char *fn, op_id op, const qn_value *args) {
  sweeps w = {.fn = fn, .n = 2};
  int64_t sizes[SPATIAL];
  int more;
  if (!is_array(args[0])) return arg_refuse(vm, fn, "an array", args[0]);
  qn_array *x = value_array(args[0]);
  if (x->rank < 2 || x->rank + SPATIAL > ARRAY_MAX_RANK)
    return raise_error(vm, E_rank, SPAN_NONE,
                       "%s: an array of rank 2 to %d whose last axes are height and width, not %d", fn,
                       ARRAY_MAX_RANK - SPATIAL, x->rank);
  qn_value stride = value_is(args[2], TAG_NIL) ? args[1] : args[2];
  int64_t shape[ARRAY_MAX_RANK];
  if (!rec_sizes_of_call(vm, args[0], shape) || !each_axis(vm, &w, "size", args[1], sizes) ||
      !read_sweeps(vm, &w, x, shape, sizes, stride, args[3], value_int(1)))
    return value_error();
  for (int i = 0; i < w.n; i++) {
    int64_t low = rec_size_hint(vm, w.s[i].low), high = rec_size_hint(vm, w.s[i].high), most = low > high ? low : high;
    int few = rec_size_at_most(vm, w.s[i].low, w.s[i].size - 1);
    if (few > 0) few = rec_size_at_most(vm, w.s[i].high, w.s[i].size - 1);
    if (few < 0) return value_error();
    if (!few)
      return raise_error(vm, E_argument, SPAN_NONE, "%s: padding %lld along the %s would make windows of padding alone",
                         fn, (long long)most, axis_name(&w, i));
  }
  qn_dtype d = (qn_dtype)x->dtype;
  bool sums = op == OP_sum;
  int lead = x->rank - w.n;
  qn_value v = value_retain(args[0]);
  if (sums && !dtype_is_float(d)) v = use_dtype(vm, v, DTYPE_FLOAT);
  v = use_windows(vm, v, &w, sums ? value_int(0) : lowest(d), &more);
  if (!more || value_is_error(v)) return v;
  op_attr over = {.axes = (uint8_t)(((1u << more) - 1) << lead)};
  v = use1(vm, op, v, &over);
  return sums ? use2(vm, OP_div, v, value_int(sizes[0] * sizes[1]), NULL) : v;
}

qn_value builtin_max_pool2d(qn_vm *vm, const qn_value *args) { return pool(vm, "max_pool2d", OP_max, args); }
qn_value builtin_avg_pool2d(qn_vm *vm, const qn_value *args) { return pool(vm, "avg_pool2d", OP_sum, args); }

/* ---- convolution ------------------------------------------------------------------------------------------------- */

typedef struct convolution {
  sweeps w;
  int64_t x[ARRAY_MAX_RANK]; /* the shape of x */
  int64_t batch, channels, out,
      groups;  /* the first three are sizes, which may be symbolic; the channels are not where there are groups */
  bool single; /* x came without a batch axis */
} convolution;

static bool refuse_shapes(qn_vm *vm, const convolution *c, const qn_array *x, const qn_array *w, const char *why) {
  const char *axes = c->w.n == 1 ? "length" : "height, width";
  return raise_false(vm, E_shape, "%s: %s; x is %s, [batch, channels, %s]; w is %s, [out, channels / groups, %s]",
                     c->w.fn, why, phrase_shape(x).text, axes, phrase_shape(w).text, axes);
}

/* Reads and checks the arguments of a convolution. x may lack the batch axis. False with an error raised. */
static bool read_convolution(qn_vm *vm, convolution *c, const qn_value *args) {
  const qn_array *x = value_array(args[0]), *w = value_array(args[1]);
  int full = LEAD + c->w.n;
  char why[160];
  c->single = x->rank == full - 1;
  if ((x->rank != full && !c->single) || w->rank != full) {
    snprintf(why, sizeof why, "%s has rank %d, not %d", w->rank == full ? "x" : "w",
             w->rank == full ? x->rank : w->rank, full);
    return refuse_shapes(vm, c, x, w, why);
  }
  int64_t sizes[ARRAY_MAX_RANK];
  if (!rec_sizes_of_call(vm, args[0], c->x) || !rec_sizes_of_call(vm, args[1], sizes)) return false;
  if (!arg_int(vm, c->w.fn, "an int as groups", args[5], &c->groups)) return false;
  for (int i = LEAD; i < full; i++) sizes[i] = rec_size_now(vm, sizes[i]);
  c->batch = c->single ? 1 : c->x[0];
  c->channels = c->x[!c->single];
  c->out = sizes[0];
  if (c->groups > 1) {
    c->channels = rec_size_now(vm, c->channels);
    c->out = rec_size_now(vm, c->out);
  }
  if (c->groups < 1)
    return raise_false(vm, E_argument, "%s: %lld groups; there is at least 1", c->w.fn, (long long)c->groups);
  why[0] = 0;
  int64_t each = c->groups > 1 ? c->channels / c->groups : c->channels;
  if (c->groups > 1 && (c->channels % c->groups || c->out % c->groups))
    snprintf(why, sizeof why, "%lld groups do not divide %s", (long long)c->groups,
             c->channels % c->groups ? "the channels of x" : "the outputs of w");
  else if (!rec_sizes_equal(vm, each, sizes[1]) && c->groups == 1)
    snprintf(why, sizeof why, "axis %d of x, its channels, is %lld, and axis 1 of w is %lld", !c->single,
             (long long)x->shape[!c->single], (long long)w->shape[1]);
  else if (!rec_sizes_equal(vm, each, sizes[1]))
    snprintf(why, sizeof why,
             "axis %d of x, its channels, is %lld: %lld in each of %lld groups, and axis 1 of w is %lld", !c->single,
             (long long)c->channels, (long long)each, (long long)c->groups, (long long)w->shape[1]);
  if (*why) return refuse_shapes(vm, c, x, w, why);
  return read_sweeps(vm, &c->w, x, c->x, sizes + LEAD, args[2], args[3], args[4]);
}

/* The windows x, [batch, channels, k.., o..], times the weights w, [channels * m, k..], summed over k: [batch, channels, m, o..]. f16 and
 * bf16 are computed in f32. Takes x and w over. */
static qn_value depthwise(qn_vm *vm, const convolution *c, qn_value x, qn_value w, qn_dtype d, int more) {
  int64_t xs[ARRAY_MAX_RANK], ws[ARRAY_MAX_RANK];
  int rank = LEAD + 1 + more + c->w.n;
  int64_t from[ARRAY_MAX_RANK];
  rec_sizes(vm, x, from);
  for (int i = 0; i < rank; i++) {
    xs[i] = i < LEAD ? from[i] : i == LEAD ? 1 : from[i - 1];
    ws[i] = i == 1 ? c->channels : i == LEAD ? c->out / c->groups : i > LEAD && i <= LEAD + more ? xs[i] : 1;
  }
  qn_dtype wide = dtype_compute(d);
  op_attr over = {.axes = (uint8_t)(((1u << more) - 1) << (LEAD + 1))};
  x = use_shape(vm, use_dtype(vm, x, wide), rank, xs);
  qn_value y = use2(vm, OP_mul, x, use_shape(vm, use_dtype(vm, w, wide), rank, ws), NULL);
  return use_dtype(vm, use1(vm, OP_sum, y, &over), d);
}

/* The product of the weights w with the windows x as columns of matrices. Takes x and w over. */
static qn_value by_product(qn_vm *vm, const convolution *c, qn_value x, qn_value w) {
  dim_table *t = rec_dims(vm);
  bool grouped = c->groups > 1;
  int64_t depth = grouped ? c->channels / c->groups : c->channels, places = 1;
  for (int i = 0; i < c->w.n; i++) {
    depth = dim_mul(t, depth, c->w.s[i].size);
    places = dim_mul(t, places, c->w.s[i].count);
  }
  int batched = grouped ? 1 : rec_size_at_most(vm, c->out, places);
  if (batched < 0) {
    value_release(vm, x);
    return value_fail(vm, w);
  }
  int64_t columns[4] = {c->batch, c->groups, depth, places}, plain[3] = {c->batch, depth, places};
  int64_t weights[3] = {c->groups, grouped ? c->out / c->groups : c->out, depth};
  x = use_shape(vm, x, grouped ? 4 : 3, grouped ? columns : plain);
  w = use_shape(vm, w, batched ? 3 : 2, batched ? weights : weights + 1);
  return use2(vm, OP_dot, w, x, NULL);
}

static qn_value convolve(qn_vm *vm, const char *fn, int spatial, const qn_value *args) {
  convolution c = {.w = {.fn = fn, .n = spatial}};
  for (int i = 0; i < 2; i++)
    if (!is_array(args[i])) return arg_refuse(vm, fn, i ? "an array as w" : "an array as x", args[i]);
  if (!read_convolution(vm, &c, args)) return value_error();
  const qn_array *a = value_array(args[0]), *b = value_array(args[1]);
  if (c.groups > 1) c.x[!c.single] = c.channels;
  operand_type t = dtype_promote((operand_type){(qn_dtype)a->dtype, false}, (operand_type){(qn_dtype)b->dtype, false});
  if (dtype_is_bool(t.dtype)) t.dtype = DTYPE_INT; /* as @ has it */
  int64_t shape[ARRAY_MAX_RANK] = {c.batch, c.channels};
  for (int i = 0; i < spatial; i++) shape[LEAD + i] = c.x[a->rank - spatial + i];
  int more;
  qn_value w = to_dtype(vm, args[1], t.dtype);
  qn_value x = value_is_error(w) ? w : use_shape(vm, to_dtype(vm, args[0], t.dtype), LEAD + spatial, shape);
  if (!value_is_error(w)) x = use_windows(vm, x, &c.w, value_int(0), &more);
  if (value_is_error(x)) {
    if (!value_is_error(w)) value_release(vm, w);
    return x;
  }
  bool each = c.groups == c.channels && c.groups > 1 && more && dtype_is_float(t.dtype);
  x = each ? depthwise(vm, &c, x, w, t.dtype, more) : by_product(vm, &c, x, w);
  shape[1] = c.out;
  for (int i = 0; i < spatial; i++) shape[LEAD + i] = c.w.s[i].count;
  return use_shape(vm, x, LEAD + spatial - c.single, shape + c.single);
}

qn_value builtin_conv1d(qn_vm *vm, const qn_value *args) { return convolve(vm, "conv1d", 1, args); }
qn_value builtin_conv2d(qn_vm *vm, const qn_value *args) { return convolve(vm, "conv2d", 2, args); }
