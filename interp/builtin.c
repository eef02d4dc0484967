/* The builtin scope: the rows of the standard library's table, the functions made from the op table, dtypes and devices.
 *
 * Each op of class POINTWISE, REDUCE or SCAN is a function with the op's name, unless the library's table has a row of that name. A
 * builtin's C function gets nothing but the arguments, so each op has a C function of its own, made from ops.def. Signatures are parsed at
 * the first call.
 */
#include <string.h>

#include "interp/node.h"

/* ---- ops as functions -------------------------------------------------------------------------------------------------- */

static __attribute__((noinline, cold)) qn_value fail_operand(qn_vm *vm, op_id op, qn_value v) {
  return raise_error(vm, E_type, SPAN_NONE, "%s takes numbers and arrays, not %s%s", op_rows[op].name,
                     phrase_kind(v).text,
                     value_is(v, TAG_LIST) ? "; array(xs) makes an array of a list of numbers" : "");
}

static int rank_of(qn_value v) { return value_is(v, TAG_ARRAY) ? value_array(v)->rank : 0; }

static bool axis_of(qn_vm *vm, op_id op, qn_value v, int rank, int *out) {
  int64_t i;
  if (!value_is(v, TAG_INT))
    return raise_false(vm, E_type, "%s: an axis is an int, not %s", op_rows[op].name, phrase_kind(v).text);
  if (!index_int(vm, v, "axis", &i)) return false;
  if (i < -rank || i >= rank)
    return raise_false(vm, E_axis, "%s: axis %lld of an array of rank %d", op_rows[op].name, (long long)i, rank);
  *out = (int)(i < 0 ? i + rank : i);
  return true;
}

static bool axes_of(qn_vm *vm, op_id op, qn_value v, int rank, uint8_t *mask) {
  *mask = (uint8_t)((1u << rank) - 1);
  if (value_is(v, TAG_NIL)) return true;
  if (v.head == TAG_INT && v.u.i >= 0 && v.u.i < rank) {
    *mask = (uint8_t)(1u << v.u.i);
    return true;
  }
  *mask = 0;
  const qn_list *l = value_is(v, TAG_LIST) ? value_list(v) : NULL;
  for (uint32_t i = 0; i < (l ? l->len : 1); i++) {
    int axis;
    if (!axis_of(vm, op, l ? l->items[i] : v, rank, &axis)) return false;
    if (*mask & 1u << axis) return raise_false(vm, E_axis, "%s: axis %d is named twice", op_rows[op].name, axis);
    *mask |= (uint8_t)(1u << axis);
  }
  return true;
}

static __attribute__((noinline)) qn_value call_along(qn_vm *vm, op_id op, const qn_value *args) {
  if (!value_is_operand(args[0])) return fail_operand(vm, op, args[0]);
  int rank = rank_of(args[0]);
  if (op_rows[op].klass == CLASS_REDUCE) {
    uint8_t axes;
    if (!axes_of(vm, op, args[1], rank, &axes)) return value_error();
    if (!value_is(args[2], TAG_BOOL))
      return raise_error(vm, E_type, SPAN_NONE, "%s: keepdims is a bool", op_rows[op].name);
    return op_reduce(vm, op, args[0], axes, args[2].u.i != 0);
  }
  int axis = 0;
  if (value_is(args[1], TAG_NIL)) {
    if (rank > 1)
      return raise_error(vm, E_axis, SPAN_NONE, "%s of an array of rank %d needs axis: the axis it runs along",
                         op_rows[op].name, rank);
  } else if (!axis_of(vm, op, args[1], rank, &axis)) {
    return value_error();
  }
  if (rank == 0) return raise_error(vm, E_rank, SPAN_NONE, "%s needs an array of rank 1 or more", op_rows[op].name);
  return op_scan(vm, op, args[0], axis);
}

static __attribute__((noinline)) qn_value call_unary(qn_vm *vm, op_id op, const qn_value *args) {
  return value_is_operand(args[0]) ? op_unary(vm, op, args[0]) : fail_operand(vm, op, args[0]);
}

static __attribute__((noinline)) qn_value call_binary(qn_vm *vm, op_id op, const qn_value *args) {
  if (value_is_operand(args[0]) && value_is_operand(args[1])) return op_binary(vm, op, args[0], args[1]);
  return fail_operand(vm, op, args[value_is_operand(args[0])]);
}

static __attribute__((noinline)) qn_value call_ternary(qn_vm *vm, op_id op, const qn_value *args) {
  for (int i = 0; i < 3; i++)
    if (!value_is_operand(args[i])) return fail_operand(vm, op, args[i]);
  return op_ternary(vm, op, args);
}

#define OP(class, name, arity, ...)                                                                                    \
  static __attribute__((unused)) qn_value call_##name(qn_vm *vm, const qn_value *args) {                               \
    return CLASS_##class != CLASS_POINTWISE ? call_along(vm, OP_##name, args)                                          \
           : (arity) == 1                   ? call_unary(vm, OP_##name, args)                                          \
           : (arity) == 2                   ? call_binary(vm, OP_##name, args)                                         \
                                            : call_ternary(vm, OP_##name, args);                                                         \
  }
#include "lang/ops.def"

static const builtin_fn op_functions[OP_COUNT] = {
#define OP(klass, name, ...) call_##name,
#include "lang/ops.def"
};

/* Can programs call the op as a function? */
static bool op_is_public(op_id op) {
  if (op == OP_smul || op == OP_gelu_slope || op == OP_cast || op == OP_fit) return false;
  op_class k = (op_class)op_rows[op].klass;
  return k == CLASS_POINTWISE || k == CLASS_REDUCE || k == CLASS_SCAN;
}

static const char *op_signature(op_id op, char out[96]) {
  static const char *const operands[] = {"", "^x", "^a, ^b", "^condition, ^a, ^b"};
  const op_row *row = &op_rows[op];
  const char *more = row->klass == CLASS_REDUCE ? ", axis = nil, keepdims = false"
                     : row->klass == CLASS_SCAN ? ", axis = nil"
                                                : "";
  stpcpy(stpcpy(stpcpy(stpcpy(stpcpy(out, row->name), "("), operands[row->arity & 3]), more), ")");
  return out;
}

/* ---- binding ----------------------------------------------------------------------------------------------------------------- */

static bool bind_function(qn_vm *vm, const builtin_def *def) {
  interp *ip = interp_of(vm);
  builtin_info *info = &ip->builtins[ip->nbuiltins];
  memset(info, 0, sizeof *info);
  info->def = *def;
  qn_fn *f = fn_new(vm, FN_BUILTIN, info, 0);
  if (!f) return false;
  ip->nbuiltins++;
  bool bound = scope_bind(vm, ip->builtin, def->name, value_obj(TAG_FN, f));
  value_release(vm, value_obj(TAG_FN, f));
  return bound;
}

bool builtins_bind(qn_vm *vm) {
  interp *ip = interp_of(vm);
  const builtin_table *table = vm->builtins;
  ip->builtins_cap = (uint32_t)table->nbuiltins + OP_COUNT;
  ip->builtins = mem_zalloc(vm, ip->builtins_cap * sizeof *ip->builtins);
  ip->signatures = mem_zalloc(vm, (size_t)OP_COUNT * sizeof *ip->signatures);
  if (!ip->builtins || !ip->signatures) return false;
  for (int op = 0; op < OP_COUNT; op++) {
    if (!op_is_public((op_id)op)) continue;
    builtin_def def = {op_rows[op].name, op_signature((op_id)op, ip->signatures[op]),
                       BUILTIN_PURE,     op_rows[op].doc,
                       op_functions[op], WORK_ANY};
    if (!bind_function(vm, &def)) return false;
  }
  for (int i = 0; i < table->nbuiltins; i++)
    if (!bind_function(vm, &table->builtins[i])) return false;
  for (int d = 0; dtype_public(d); d++)
    if (!scope_bind(vm, ip->builtin, dtype_rows[d].name, value_dtype((qn_dtype)d))) return false;
  return scope_bind(vm, ip->builtin, "cpu", value_device(0));
}

void builtins_free(qn_vm *vm) {
  interp *ip = interp_of(vm);
  for (uint32_t i = 0; i < ip->nbuiltins; i++) {
    builtin_info *info = &ip->builtins[i];
    if (info->defaults) mem_free(vm, info->defaults, (size_t)info->sig.nparams * sizeof *info->defaults);
    if (info->parsed) signature_free(vm, &info->sig);
  }
  mem_free(vm, ip->builtins, ip->builtins_cap * sizeof *ip->builtins);
  mem_free(vm, ip->signatures, (size_t)OP_COUNT * sizeof *ip->signatures);
}

static bool parse(qn_vm *vm, builtin_info *info) {
  if (!signature_parse(vm, info->def.signature, &info->sig)) return false;
  size_t nparams = (size_t)info->sig.nparams;
  if (nparams && !(info->defaults = mem_alloc(vm, nparams * sizeof *info->defaults))) {
    signature_free(vm, &info->sig); /* the next call parses it again */
    return false;
  }
  info->parsed = true;
  for (int i = 0; i < info->sig.nparams; i++) {
    const param_def *p = &info->sig.params[i];
    info->defaults[i] = p->def;
    info->named |= p->keyword_only;
    info->moves |= p->move;
    if (p->rest && i < UINT8_MAX) info->rest = (uint8_t)(i + 1);
  }
  info->pure = !info->moves && info->sig.nparams > 0 && info->sig.nparams <= PURE_PARAMS;
  if (info->def.effect == BUILTIN_CHOICE && info->pure)
    info->chooses = (uint8_t)info->sig.nparams;
  else
    info->pure = info->pure && info->def.effect == BUILTIN_PURE;
  return true;
}

builtin_info *builtin_row(qn_vm *vm, const qn_fn *fn) {
  interp *ip = interp_of(vm);
  builtin_info *info = fn->code;
  if (info < ip->builtins || info >= ip->builtins + ip->nbuiltins) {
    /* The function value was made from a row of the library's table directly. */
    const builtin_def *def = fn->code;
    uint32_t i = ip->nbuiltins;
    while (i > 0 && ip->builtins[i - 1].def.call != def->call) i--;
    if (i == 0) return raise_nothing(vm, E_internal, SPAN_NONE, "the builtin %s is not in the table", def->name);
    info = &ip->builtins[i - 1];
  }
  return info->parsed || parse(vm, info) ? info : NULL;
}
