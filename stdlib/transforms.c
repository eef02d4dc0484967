/* Builtins that bind the compiler's transforms and its inspection (jit/trace/rec.h). */
#include <string.h>

#include "jit/run/device.h"
#include "stdlib/builtins.h"

/* Checks that an argument of builtin `fn` is a function, else E311. `gives` says that the builtin returns a function that takes the
 * arguments; the message explains this if a result was passed in place of the function. */
static bool arg_fn(qn_vm *vm, const char *fn, qn_value v, bool gives) {
  if (value_is(v, TAG_FN)) return true;
#define EXPECTED "%s: expected a function, not %s"
  if (value_is(v, TAG_DTYPE))
    return raise_false(vm, E_not_callable, EXPECTED "; write fn(x) %s(x)", fn, phrase_kind(v).text,
                       dtype_rows[v.u.i].name);
  if (gives && (value_is(v, TAG_ARRAY) || value_is(v, TAG_FLOAT) || value_is(v, TAG_RECORD)))
    return raise_false(vm, E_not_callable,
                       EXPECTED "; it takes the function itself, what it gives the arguments: %s(f)(x), not %s(f(x))",
                       fn, phrase_kind(v).text, fn, fn);
  return raise_false(vm, E_not_callable, EXPECTED, fn, phrase_kind(v).text);
}

/* The end of messages about a call that passes the arguments of f to the transform: %s is the transform's name. */
#define GIVES "; %s gives a function, which takes the arguments: %s(f)(x)"

/* All gradient transforms: args are the function, wrt (an int or a list of ints) and, but for jacobian and hessian, aux. */
static qn_value gradient(qn_vm *vm, transform_kind kind, const char *fn, const qn_value *args) {
  bool plain = kind == TRANSFORM_JACOBIAN || kind == TRANSFORM_HESSIAN;
  if (!arg_fn(vm, fn, args[0], true)) return value_error();
  uint32_t n;
  const qn_value *wrt = one_or_many(&args[1], &n);
  if (n == 0) return raise_error(vm, E_argument, SPAN_NONE, "%s: wrt names no argument", fn);
  for (uint32_t i = 0; i < n; i++) {
    int64_t at;
    if (i == 0 && (value_is(wrt[i], TAG_FLOAT) || value_is(wrt[i], TAG_ARRAY)))
      return raise_error(vm, E_type, SPAN_NONE, "%s: expected an int or a list of ints as wrt, not %s" GIVES, fn,
                         phrase_kind(wrt[i]).text, fn, fn);
    if (!arg_int(vm, fn, "an int or a list of ints as wrt", wrt[i], &at)) return value_error();
    if (at < 0) return raise_error(vm, E_argument, SPAN_NONE, "%s: wrt counts arguments from 0", fn);
  }
  if (!plain && !value_is(args[2], TAG_BOOL))
    return raise_error(vm, E_type, SPAN_NONE, "%s: expected true or false as aux, not %s" GIVES, fn,
                       phrase_kind(args[2]).text, fn, fn);
  if (kind != TRANSFORM_HESSIAN) return transform_new(vm, kind, args, plain ? 2 : 3);
  qn_value captures[4] = {args[0], args[1], value_bool(false),
                          value_bool(true)}; /* f, wrt, aux, and that this is the inner gradient of a hessian */
  qn_value slope = transform_new(vm, TRANSFORM_GRAD, captures, 4);
  if (value_is_error(slope)) return slope;
  captures[0] = slope;
  qn_value hessian = transform_new(vm, kind, captures, 2);
  value_release(vm, slope);
  return hessian;
}

qn_value builtin_jacobian(qn_vm *vm, const qn_value *args) {
  return gradient(vm, TRANSFORM_JACOBIAN, "jacobian", args);
}
qn_value builtin_hessian(qn_vm *vm, const qn_value *args) { return gradient(vm, TRANSFORM_HESSIAN, "hessian", args); }
qn_value builtin_grad(qn_vm *vm, const qn_value *args) { return gradient(vm, TRANSFORM_GRAD, "grad", args); }
qn_value builtin_value_and_grad(qn_vm *vm, const qn_value *args) {
  return gradient(vm, TRANSFORM_VALUE_AND_GRAD, "value_and_grad", args);
}

static bool one_of(qn_value v, const char *const *names, int n) {
  for (int i = 0; i < n && value_is(v, TAG_STR); i++)
    if (strcmp(value_str(v)->text, names[i]) == 0) return true;
  return false;
}

/* Can `backend:` of jit be this text: the name of a family of devices, or "eager"? */
static bool is_backend(qn_value v) {
  return value_is(v, TAG_STR) &&
         (strcmp(value_str(v)->text, "eager") == 0 || device_family_find(value_str(v)->text) >= 0);
}

static qn_value refuse_backend(qn_vm *vm) {
  text_buf t = {.vm = vm};
  text_adds(&t, "jit: backend is nil, ");
  for (int i = 0; i < FAMILY_COUNT; i++)
    if (device_shown(i)) text_addf(&t, "\"%s\", ", device_families[i]->name);
  text_adds(&t, "\"eager\" or a function");
  return raise_text(vm, E_argument, SPAN_NONE, &t);
}

#define MODES "jit: mode is \"default\", \"reduce-overhead\" or \"max-autotune\""

qn_value builtin_jit(qn_vm *vm, const qn_value *args) {
  static const char *const modes[] = {"default", "reduce-overhead", "max-autotune"};
  bool fullgraph;
  if (!arg_fn(vm, "jit", args[0], true) || !arg_bool(vm, "jit", "true or false as fullgraph", args[2], &fullgraph))
    return value_error();
  if (!one_of(args[1], modes, 3))
    return value_is(args[1], TAG_STR) ? raise_error(vm, E_argument, SPAN_NONE, MODES)
                                      : raise_error(vm, E_argument, SPAN_NONE, MODES GIVES, "jit", "jit");
  if (!value_is(args[3], TAG_NIL) && !value_is(args[3], TAG_BOOL))
    return raise_error(vm, E_argument, SPAN_NONE, "jit: dynamic is nil, true or false");
  if (!value_is(args[4], TAG_NIL) && !value_is(args[4], TAG_FN) && !is_backend(args[4])) return refuse_backend(vm);
  qn_record *r = record_new(vm);
  qn_value options = value_new(TAG_RECORD, r);
  if (!r) return options;
  static const char *const names[] = {"mode", "fullgraph", "dynamic", "backend"};
  bool good = true;
  for (int i = 0; i < 4 && good; i++) good = record_set_named(vm, r, names[i], value_retain(args[i + 1]));
  qn_value captures[2] = {args[0], options};
  return good ? used(vm, options, transform_new(vm, TRANSFORM_JIT, captures, 2)) : value_fail(vm, options);
}

/* For trees that hold ints and nil only, as in_axes and out_axes do: *ctx becomes false for any other value. */
static bool axes_leaf(void *ctx, qn_value v) {
  *(bool *)ctx &= value_is(v, TAG_INT) || value_is(v, TAG_NIL);
  return true;
}

static bool arg_lane_axes(qn_vm *vm, const char *name, qn_value v) {
  bool good = true;
  if (!tree_each_part(vm, v, axes_leaf, &good)) return false;
  if (good) return true;
#define AXES "vmap: %s is an int, nil, or a list or record of these, not %s"
  if (value_is(v, TAG_ARRAY) || value_is(v, TAG_FLOAT))
    return raise_false(vm, E_argument, AXES GIVES, name, phrase_kind(v).text, "vmap", "vmap");
  return raise_false(vm, E_argument, AXES, name, phrase_kind(v).text);
}

qn_value builtin_vmap(qn_vm *vm, const qn_value *args) {
  if (!arg_fn(vm, "vmap", args[0], true) || !arg_lane_axes(vm, "in_axes", args[1]) ||
      !arg_lane_axes(vm, "out_axes", args[2]))
    return value_error();
  return transform_new(vm, TRANSFORM_VMAP, args, 3);
}

qn_value builtin_nojit(qn_vm *vm, const qn_value *args) {
  return arg_fn(vm, "nojit", args[0], true) ? transform_new(vm, TRANSFORM_NOJIT, args, 1) : value_error();
}

qn_value builtin_composite(qn_vm *vm, const qn_value *args) {
  if (!arg_fn(vm, "composite", args[0], false)) return value_error();
  jit_anchor *a = value_fn(args[0])->head.flags == FN_USER ? vm->hooks.anchor(args[0]) : NULL;
  if (!a) return raise_error(vm, E_argument, SPAN_NONE, "composite takes a function that the program defines");
  a->composite = true;
  return value_retain(args[0]);
}

qn_value builtin_checkpoint(qn_vm *vm, const qn_value *args) {
  return arg_fn(vm, "checkpoint", args[0], true) ? transform_new(vm, TRANSFORM_CHECKPOINT, args, 1) : value_error();
}

/* Calls what a transform makes of f: args are f and the list of the arguments. The result is owned. */
static qn_value transformed(qn_vm *vm, transform_kind kind, const char *fn, const qn_value *args) {
  if (!arg_fn(vm, fn, args[0], false)) return value_error();
  qn_value f = transform_new(vm, kind, args, 1);
  if (value_is_error(f)) return f;
  const qn_list *rest = value_list(args[1]);
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &f);
  qn_value result = vm->hooks.call(vm, f, rest->items, (int)rest->len, value_nil());
  vm_disown(vm, &held);
  value_release(vm, f);
  return result;
}

qn_value builtin_vjp(qn_vm *vm, const qn_value *args) { return transformed(vm, TRANSFORM_VJP, "vjp", args); }
qn_value builtin_jvp(qn_vm *vm, const qn_value *args) { return transformed(vm, TRANSFORM_JVP, "jvp", args); }

qn_value builtin_custom_grad(qn_vm *vm, const qn_value *args) {
  if (!arg_fn(vm, "custom_grad", args[0], false) || !arg_fn(vm, "custom_grad", args[1], false)) return value_error();
  return transform_new(vm, TRANSFORM_CUSTOM_GRAD, args, 2);
}

static qn_value stop_leaf(void *ctx, qn_value v) {
  bool number = value_is(v, TAG_ARRAY) || value_is_number(v);
  return number ? op_apply(ctx, OP_stop_gradient, &v, 1, NULL) : value_retain(v);
}

qn_value builtin_stop_gradient(qn_vm *vm, const qn_value *args) {
  bool tree = value_is(args[0], TAG_LIST) || value_is(args[0], TAG_RECORD);
  return tree ? tree_rebuild_parts(vm, args[0], stop_leaf, vm) : op_apply(vm, OP_stop_gradient, args, 1, NULL);
}

static qn_value inspect(qn_vm *vm, const char *fn, const qn_value *args,
                        qn_value (*what)(qn_vm *, qn_value, const qn_value *, int)) {
  if (!arg_fn(vm, fn, args[0], false)) return value_error();
  return what(vm, args[0], value_list(args[1])->items, (int)value_list(args[1])->len);
}

qn_value builtin_explain(qn_vm *vm, const qn_value *args) { return inspect(vm, "explain", args, jit_explain); }
qn_value builtin_graph(qn_vm *vm, const qn_value *args) {
  if (value_is(args[0], TAG_STR) && value_list(args[1])->len == 0) return jit_graph_parse(vm, value_str(args[0]));
  return inspect(vm, "graph", args, jit_graph_shown);
}
qn_value builtin_rewrite(qn_vm *vm, const qn_value *args) {
  if (!value_is_graph(args[0])) return arg_refuse(vm, "rewrite", "a graph", args[0]);
  return arg_fn(vm, "rewrite", args[1], false) ? jit_graph_rewrite(vm, args[0], args[1]) : value_error();
}
qn_value builtin_pattern(qn_vm *vm, const qn_value *args) {
  jit_pattern_options o = {args[0], args[1], args[2], args[3], args[4], false};
  if (!arg_fn(vm, "pattern", o.find, false) || !arg_fn(vm, "pattern", o.replace, false)) return value_error();
  if (!value_is(o.name, TAG_NIL) && !value_is(o.name, TAG_STR))
    return arg_refuse(vm, "pattern", "a text as name", o.name);
  if (!value_is(o.check, TAG_NIL) && !arg_fn(vm, "pattern", o.check, false)) return value_error();
  if (!value_is(o.samples, TAG_NIL) && !value_is(o.samples, TAG_LIST))
    return arg_refuse(vm, "pattern", "a list of arrays and numbers as args", o.samples);
  if (!arg_bool(vm, "pattern", "true or false as verify", args[5], &o.verify)) return value_error();
  return jit_pattern(vm, &o);
}
qn_value builtin_unpattern(qn_vm *vm, const qn_value *args) {
  return value_is(args[0], TAG_STR) ? jit_unpattern(vm, args[0]) : arg_refuse(vm, "unpattern", "a text", args[0]);
}
qn_value builtin_code(qn_vm *vm, const qn_value *args) { return inspect(vm, "code", args, jit_code_text); }
