/* Launch-time values of a program (launch.h): what stands before PARs, evaluated from parameters and host scalars. Sizes of
 * buffers and numbers of instances are such values; typed values beside them are only looked at where they are a host scalar,
 * a constant, or a conversion between integers of one of these. */
#include "jit/kernel/launch.h"

/* A typed value as an index. */
static bool typed(const l_program *p, l_val v, const qk_scalar *scalars, int64_t *out) {
  const l_instr *i = &p->code[v];
  switch (i->code) {
  case L_SCALAR: *out = scalars[i->imm].i; return i->dtype != WEAK_FLOAT;
  case L_CONST:
    if (dtype_is_float((qn_dtype)i->dtype)) return false;
    *out = dtype_load((qn_dtype)i->dtype, &i->imm).u.i;
    return true;
  default: return false;
  }
}

bool l_launch_values(const l_program *p, const int64_t *ints, const qk_scalar *scalars, int64_t *values) {
  int depth = 0;
  for (l_val v = 1; v < p->n; v++) {
    const l_instr *i = &p->code[v];
    if (i->code == L_END) depth--;
    if (i->code == L_PAR || i->code == L_FOR || i->code == L_VEC || i->code == L_IF || i->code == L_WHILE) depth++;
    values[v] = 0;
    if (depth) continue;
    switch ((l_code)i->code) {
    case L_INT: values[v] = i->imm; break;
    case L_PARAM: values[v] = ints[i->imm]; break;
    case L_IVALUE:
      if (!typed(p, i->a, scalars, &values[v])) return false;
      break;
    default:
      if (l_is_index_op(i->code)) values[v] = l_index_value((l_code)i->code, values[i->a], values[i->b]);
    }
  }
  return true;
}

bool l_launches(const l_program *p) {
  int depth = 0;
  for (l_val v = 1; v < p->n; v++) {
    const l_instr *i = &p->code[v];
    if (i->code == L_END) depth--;
    if (i->code == L_PAR || i->code == L_FOR || i->code == L_VEC || i->code == L_IF || i->code == L_WHILE) depth++;
    if (depth || i->code != L_IVALUE) continue;
    const l_instr *x = &p->code[i->a];
    if (x->code == L_SCALAR ? x->dtype == WEAK_FLOAT : x->code != L_CONST || dtype_is_float((qn_dtype)x->dtype))
      return false;
  }
  return true;
}

bool l_needs_scratch(const l_program *p) {
  for (l_val v = 1; v < p->n; v++)
    if (p->code[v].code == L_LOCAL || (p->code[v].code == L_ACC && p->code[v].a)) return true;
  return false;
}

bool l_launch_scalars(const l_program *p) {
  int depth = 0;
  for (l_val v = 1; v < p->n; v++) {
    uint8_t code = p->code[v].code;
    if (code == L_END) depth--;
    if (code == L_PAR || code == L_FOR || code == L_VEC || code == L_IF || code == L_WHILE) depth++;
    if (!depth && code == L_IVALUE && p->code[p->code[v].a].code == L_SCALAR) return true;
  }
  return false;
}

bool l_unbounded(const l_program *p) {
  for (l_val v = 1; v < p->n; v++)
    if (p->code[v].code == L_WHILE) return true;
  return false;
}
