/* Launch-time values (launch.h): the instructions outside PARs, evaluated from parameters and host scalars. Sizes of buffers and numbers of
 * instances are such values. A typed value can be used for them only if it is a host scalar, a constant, or a conversion of one of
 * these between integers. */
#include "jit/kernel/launch.h"

#include <string.h>

/* Sets *out to typed value v as an index. False if it cannot be evaluated here. */
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

/* The first instruction from v on that is outside PARs; p->n if there is none. */
static l_val before_pars(const l_program *p, l_val v) {
  for (int depth = 0; v < p->n; v++) {
    if (l_opens(p->code[v].code))
      depth++;
    else if (p->code[v].code == L_END)
      depth--;
    else if (!depth)
      break;
  }
  return v;
}

bool l_launch_values(const l_program *p, const int64_t *ints, const qk_scalar *scalars, int64_t *values) {
  memset(values, 0, p->n * sizeof *values);
  for (l_val v = before_pars(p, 1); v < p->n; v = before_pars(p, v + 1)) {
    const l_instr *i = &p->code[v];
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
  for (l_val v = before_pars(p, 1); v < p->n; v = before_pars(p, v + 1)) {
    if (p->code[v].code != L_IVALUE) continue;
    const l_instr *x = &p->code[p->code[v].a];
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
  for (l_val v = before_pars(p, 1); v < p->n; v = before_pars(p, v + 1))
    if (p->code[v].code == L_IVALUE && p->code[p->code[v].a].code == L_SCALAR) return true;
  return false;
}

bool l_scalars_steer(const l_program *p, uint8_t *from_values) {
  bool steer = false;
  for (l_val v = 0; v < p->n && p->nscalars; v++) {
    const l_instr *i = &p->code[v];
    from_values[v] = i->code == L_IVALUE || (l_is_index_op(i->code) && (from_values[i->a] | from_values[i->b]));
    if (l_opens(i->code) ? i->code == L_FOR || i->code == L_VEC || i->code == L_PAR
                         : i->code == L_LOCAL || i->code == L_ACC)
      steer |= from_values[i->a] | from_values[i->b] | (i->code == L_FOR && from_values[i->c]);
  }
  for (uint32_t b = 0; b < p->nbuffers && p->nscalars; b++)
    steer |= p->buffers[b].mode == BUF_SCRATCH && from_values[p->buffers[b].size];
  for (uint32_t t = 0; t < p->ntiles && p->nscalars; t++)
    steer |= from_values[p->tiles[t].rows] | from_values[p->tiles[t].cols] | from_values[p->tiles[t].depth];
  return steer;
}

bool l_unbounded(const l_program *p) {
  for (l_val v = 1; v < p->n; v++)
    if (p->code[v].code == L_WHILE) return true;
  return false;
}
