/* Accumulators as text (emit_text.h): places, pushes, trees, roots, and scans with many results. */
#include "jit/kernel/emit_text.h"

#include <stdio.h>

#define line emit_line
#define at emit_at

/* ---- ranges of results ------------------------------------------------------------------------------------------- */

typedef struct range {
  char from[64], width[64];
  bool opened; /* a loop has been opened around the lines that follow */
} range;

/* The range of an accumulator's results that lines work on, as texts. `from` NULL: all results. In CUDA the threads share these: a loop
 * is opened whose r is one of the thread's. range_close in any case. */
static range range_open(emitter *e, l_val v, const char *from, const char *width) {
  range r = {.opened = !from && e->cuda && acc_many(at(e, v)) && !acc_own(e, v)};
  if (r.opened) {
    line(e, "EACH(r, v%u) {", at(e, v)->a);
    snprintf(r.from, sizeof r.from, "r");
    snprintf(r.width, sizeof r.width, "1");
  } else if (from) {
    snprintf(r.from, sizeof r.from, "%s", from);
    snprintf(r.width, sizeof r.width, "%s", width);
  } else {
    snprintf(r.from, sizeof r.from, "0");
    acc_width(e, v, r.width);
  }
  return r;
}

static void range_close(emitter *e, const range *r) {
  if (!r->opened) return;
  line(e, "}");
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

void emit_acc_places(emitter *e, l_val v, const char *macro) {
  const l_instr *a = at(e, v);
  const char *T = emit_type(a->dtype);
  char width[24], levels[64];
  acc_width(e, v, width);
  acc_levels(e, v, levels);
  if (acc_own(e, v)) return;
  if (acc_tree(a) && (acc_many(a) || (acc_lanes(e, v) && !e->cuda)))
    line(e, "%s(%s, v%u_t, (%s) * (i64)%s)", macro, T, v, levels, width);
  if (!acc_many(a)) return;
  line(e, "%s(%s, v%u, %s * (i64)%d)", macro, T, v, width, acc_rows(a) ? ORDER_LANES : 1);
  if (acc_arg(a)) line(e, "%s(i64, v%u_i, %s)", macro, v, width);
  if (!(e->acc[v] & ACC_SCANNED)) return;
  l_order order = acc_scan_order(a);
  if (order == ORDER_INNER) line(e, "%s(%s, v%u_h, 384 * (i64)%s)", macro, T, v, width);
  if (order != ORDER_INNER) line(e, "%s(%s, v%u_c, %s)", macro, T, v, width);
  if (order != ORDER_FREE) line(e, "%s(%s, v%u_g, %s)", macro, T, v, width);
  if (order == ORDER_INNER) line(e, "%s(%s, v%u_b, %s)", macro, T, v, width);
  if (e->acc[v] & ACC_EXCLUSIVE) line(e, "%s(%s, v%u_p, %s)", macro, T, v, width);
}

void emit_places(emitter *e, l_val par) {
  static const char *const macros[] = {"PLACE", "PLACED"};
  if (e->cuda && emit_cuda_kept(e, par)) return;
  for (int pass = 0; pass < (e->cuda ? 2 : 1); pass++) {
    if (pass && e->layout.groups > 1)
      line(e,
           "DYNAMIC_SHARED char *const base = a->scratch ? (char *)a->scratch + ((u64)blockIdx.x * %d + g_) * o : "
           "dynamic_ + g_ * o;",
           e->layout.groups);
    else if (pass)
      line(e, "DYNAMIC_SHARED char *const base = a->scratch ? (char *)a->scratch + blockIdx.x * o : dynamic_;");
    bool tiles = false; /* has the place for packed operands been printed, which all TILEs share? */
    for (l_val v = par + 1; v < e->end[par]; v++) {
      const l_instr *i = at(e, v);
      if (i->code == L_TILE && !e->cuda && !tiles) {
        line(e, "PLACE(char, work, %d)", QK_TILE_WORK);
        tiles = true;
      }
      if (i->code == L_LOCAL && !emit_is_shared(e, v))
        line(e, "%s(%s, v%u, v%u)", macros[pass], emit_type(i->dtype), v, i->a);
      if (i->code == L_ACC) emit_acc_places(e, v, macros[pass]);
    }
  }
}

bool emit_cuda_sizes(const l_program *p, uint8_t *sizes) {
  emitter e = {.cuda = true};
  bool ok = emit_facts(&e, p);
  for (l_val v = 1; v < p->n && ok; v++) {
    const l_instr *i = at(&e, v);
    if (i->code == L_LOCAL && !emit_is_shared(&e, v)) sizes[i->a] = 1;
    if (i->code != L_ACC || !acc_many(i) || acc_own(&e, v)) continue;
    sizes[i->a] = 1;
    if (acc_tree(i) && i->b) sizes[i->b] = 1;
  }
  for (l_val v = p->n; v-- > 1 && ok;)
    if (sizes[v] && l_is_index_op(at(&e, v)->code)) sizes[at(&e, v)->a] = sizes[at(&e, v)->b] = 1;
  sizes[0] = 0;
  emit_facts_free(&e);
  return ok;
}

void emit_acc_begin(emitter *e, l_val v) {
  const l_instr *a = at(e, v);
  const char *T = emit_type(a->dtype);
  char id[80], zero[80], width[24];
  acc_identity(a, id);
  acc_zero(a, zero);
  acc_width(e, v, width);
  line(e, "i64 v%u_k = 0, v%u_s = 0; u64 v%u_n = 0; int v%u_open = 0, v%u_done = 0;", v, v, v, v, v);
  if (acc_many(a) && !acc_own(e, v)) {
    if (!acc_rows(a)) line(e, "FILLS(v%u, %s, %s)", v, width, id);
    if (acc_arg(a)) line(e, "FILLS(v%u_i, %s, -1)", v, width);
    if (!(e->acc[v] & ACC_SCANNED)) return;
    if (acc_scan_order(a) != ORDER_INNER) line(e, "FILLS(v%u_c, %s, %s)", v, width, id);
    if (e->acc[v] & ACC_EXCLUSIVE) line(e, "FILLS(v%u_p, %s, %s)", v, width, zero);
    return;
  }
  line(e, "%s v%u[%s]; FILL(v%u, %s, %s)", T, v, width, v, width, id);
  if (acc_arg(a)) line(e, "i64 v%u_i[%s]; FILL(v%u_i, %s, -1)", v, width, v, width);
  if (acc_tree(a) && (e->cuda || !acc_lanes(e, v))) line(e, "%s v%u_t[64];", T, v);
  if (e->acc[v] & ACC_SCANNED)
    line(e, "%s v%u_c = %s, v%u_g = %s, v%u_b = %s, v%u_p = %s;", T, v, id, v, id, v, id, v, zero);
}

/* ---- trees ------------------------------------------------------------------------------------------------------- */

/* In C, are the steps of trees, and those of scans in strips, calls of functions? Each is some loops, and what gcc takes grows with the loops of a
 * function times the values that live across them: 21 trees in a kernel of 850 instructions took it 7.5 s in place and 1.4 s as calls; 28 scans, 14
 * loops each, in a kernel of some 120 took 7.5 s and take 0.3. Where they are few, compilers see that a width is constant. (All such scans are of
 * accumulators that would be trees.) */
static bool has_calls(const emitter *e) {
  enum { IN_PLACE = 4 };
  return !e->cuda && e->trees > IN_PLACE;
}

void emit_acc_functions(emitter *e) {
  if (!has_calls(e)) return;
  for (l_val v = 1; v < e->p->n; v++) {
    const l_instr *a = at(e, v);
    if (a->code != L_ACC || !acc_tree(a)) continue;
    const char *T = emit_type(a->dtype);
    char f[48];
    acc_prim(e, a, f);
    line(e, "#ifndef TREES_%s", f);
    line(e, "#define TREES_%s", f);
    line(e, "static __attribute__((noinline)) void %s_leaf(%s *tree, i64 stride, u64 count, %s *leaf, i64 width) {", f,
         T, T);
    line(e, "TREE_ADD(%s, %s, tree, stride, count, leaf, width)", T, f);
    line(e, "}");
    line(e,
         "static __attribute__((noinline)) void %s_root(%s *tree, i64 stride, u64 count, %s *out, i64 width, %s id) {",
         f, T, T, T);
    line(e, "TREE_END(%s, %s, tree, stride, count, out, width, id)", T, f);
    line(e, "}");
    line(e, "#endif");
    if (acc_many(a) || !(e->acc[v] & ACC_SCANNED) || acc_scan_order(a) != ORDER_INNER) continue;
    line(e, "#ifndef SCANS_%s", f);
    line(e, "#define SCANS_%s", f);
    line(e, "static __attribute__((noinline)) void %s_scan(%s *strip, int m, i64 *s, %s *group, %s *block) {", f, T, T,
         T);
    line(e, "i64 v_s = *s; %s v_g = *group, v_b = *block;", T);
    line(e, "SCAN_INNER(%s, %s, strip, m, v)", T, f);
    line(e, "*s = v_s; *group = v_g; *block = v_b;");
    line(e, "}");
    line(e, "#endif");
  }
}

static void add_leaf(emitter *e, l_val v, const char *leaf, const char *from, const char *width) {
  const l_instr *a = at(e, v);
  char f[48], stride[24];
  acc_width(e, v, stride);
  if (has_calls(e)) {
    line(e, "%s_leaf(v%u_t + %s, %s, v%u_n, %s, %s);", acc_prim(e, a, f), v, from, stride, v, leaf, width);
    return;
  }
  line(e, "TREE_ADD(%s, %s, v%u_t + %s, %s, v%u_n, %s, %s)", emit_type(a->dtype), acc_prim(e, a, f), v, from, stride, v,
       leaf, width);
}

void emit_acc_leaf(emitter *e, l_val v, const char *leaf, const char *from, const char *width) {
  add_leaf(e, v, leaf, from, width);
  line(e, "v%u_n++;", v);
}

void emit_acc_counted(emitter *e, l_val v, const char *from, const char *width) {
  const l_instr *a = at(e, v);
  char leaf[80], id[80];
  acc_identity(a, id);
  line(e, "v%u_k++;", v);
  if (!acc_tree(a)) return;
  line(e, "if (v%u_k %% %d == 0) {", v, acc_chain(a));
  range r = range_open(e, v, from, width);
  snprintf(leaf, sizeof leaf, "(v%u + %s)", v, r.from);
  add_leaf(e, v, leaf, r.from, r.width);
  line(e, "FILL(%s, %s, %s)", leaf, r.width, id);
  range_close(e, &r);
  line(e, "v%u_n++;", v);
  line(e, "}");
}

void emit_acc_pushed(emitter *e, const l_instr *push, const char *from, const char *width) {
  if (push->code == L_SCAN) line(e, "v%u_s++;", push->a);
  if (push->code == L_PUSH || (e->acc[push->a] & ACC_FINISHED)) emit_acc_counted(e, push->a, from, width);
}

void emit_acc_counters(emitter *e, l_val vec, l_val k, bool restore) {
  uint32_t a = at(e, k)->a;
  if (!emit_is_nested_push(e, at(e, k)) || !emit_is_first(e, vec, k)) return;
  if (restore)
    line(e, "v%u_k = k%u; v%u_s = s%u; v%u_n = n%u;", a, a, a, a, a, a);
  else
    line(e, "const i64 k%u = v%u_k, s%u = v%u_s; const u64 n%u = v%u_n;", a, a, a, a, a, a);
}

void emit_acc_root(emitter *e, l_val v, const char *from, const char *width, bool whole) {
  const l_instr *a = at(e, v);
  char f[48], id[80], stride[24], leaf[80];
  if (!acc_rows(a) && !acc_tree(a)) return;
  acc_nothing(a, id);
  acc_width(e, v, stride);
  acc_prim(e, a, f);
  line(e, "if (!v%u_done) {", v);
  if (acc_tree(a) && acc_lanes(e, v))
    line(e, "const int rest = v%u_open;", v);
  else if (acc_tree(a))
    line(e, "const int rest = v%u_k %% %d != 0;", v, acc_chain(a));
  range r = range_open(e, v, from, width);
  snprintf(leaf, sizeof leaf, "(v%u + %s)", v, r.from);
  if (acc_rows(a)) {
    line(e, "ROWS_END(%s, %s, %s, %s, v%u_k, %s)", f, leaf, stride, r.width, v, id);
  } else {
    line(e, "if (rest)");
    add_leaf(e, v, leaf, r.from, r.width);
    if (has_calls(e))
      line(e, "%s_root(v%u_t + %s, %s, v%u_n + rest, %s, %s, %s);", f, v, r.from, stride, v, leaf, r.width, id);
    else
      line(e, "TREE_END(%s, %s, v%u_t + %s, %s, v%u_n + rest, %s, %s, %s)", emit_type(a->dtype), f, v, r.from, stride,
           v, leaf, r.width, id);
  }
  range_close(e, &r);
  if (whole) line(e, "v%u_done = 1;", v);
  line(e, "}");
}

void emit_acc_result(emitter *e, l_val v, bool fold) {
  const l_instr *a = at(e, v);
  char f[48], type[24] = "";
  emit_acc_root(e, v, NULL, NULL, true);
  if (!fold || !acc_lanes(e, v)) return;
  if (e->cuda) snprintf(type, sizeof type, "%s, ", emit_type(a->dtype));
  line(e, "if (v%u_done < 2) {", v);
  if (acc_arg(a))
    line(e, "ARG_FOLD(%s, %sv%u, v%u_i)", acc_than(a), type, v, v);
  else
    line(e, "FOLD(%s%s, v%u)", type, acc_prim(e, a, f), v);
  line(e, "v%u_done = 2;", v);
  line(e, "}");
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

void emit_acc_step(emitter *e, const l_instr *push, const char *cell, const char *k) {
  const l_instr *a = at(e, push->a);
  char where[96], step[EMIT_TEXT];
  uint32_t v = push->a;
  if (acc_arg(a)) {
    line(e, "{ const b8 q = ARG_BETTER(%s, v%u, v%u[%s], v%u_i[%s]);", acc_than(a), push->b, v, cell, v, cell);
    line(e, "v%u[%s] = q ? v%u : v%u[%s]; v%u_i[%s] = q ? %s : v%u_i[%s]; }", v, cell, push->b, v, cell, v, cell, k, v,
         cell);
    return;
  }
  if (acc_rows(a))
    snprintf(where, sizeof where, "v%u[v%u_k * v%u + %s]", v, v, a->a, cell);
  else
    snprintf(where, sizeof where, "v%u[%s]", v, cell);
  acc_step(e, push, where, step);
  if (acc_rows(a))
    line(e, "%s = v%u;", where, push->b);
  else
    line(e, "%s = %s;", where, step);
}

/* In CUDA: pushes a strip's values to a chain, in order. All threads do so, each for itself, since each has a copy of the chain. */
static void push_chain(emitter *e, const l_instr *push) {
  const l_instr *a = at(e, push->a);
  const char *T = emit_type(a->dtype);
  char k[48];
  line(e, "{");
  line(e, "SYNC on_[t] = %s; ((%s *)x_)[t] = v%u;", e->active, T, push->b);
  if (push->d) line(e, "((%s *)y_)[t] = v%u;", T, push->d);
  line(e, "SYNC for (int l = 0; l < m; l++) if (on_[l]) {");
  line(e, "const i64 j = j0 + l; const %s v%u = ((%s *)x_)[l];", T, push->b, T);
  if (push->d && push->d != push->b) line(e, "const %s v%u = ((%s *)y_)[l];", T, push->d, T);
  if (push->c)
    snprintf(k, sizeof k, "v%u + j", push->c);
  else
    snprintf(k, sizeof k, "v%u_k", push->a);
  emit_acc_step(e, push, "0", k);
  emit_acc_counted(e, push->a, "0", "1");
  line(e, "}");
  line(e, "}");
}

void emit_acc_push(emitter *e, const l_instr *push) {
  const l_instr *a = at(e, push->a);
  const char *lane = e->cuda ? "0" : "l";
  bool lanes = acc_lanes(e, push->a), block = e->cuda || e->active[0];
  char cell[64], k[64], step[EMIT_TEXT];
  if (e->cuda && !lanes && !acc_many(a)) {
    push_chain(e, push);
    return;
  }
  if (block) line(e, "%s%s%s{", e->active[0] ? "if (" : "", e->active, e->active[0] ? ") " : "");
  if (push->c)
    snprintf(k, sizeof k, "v%u%s", push->c, acc_many(a) ? "" : " + j");
  else
    snprintf(k, sizeof k, "v%u_k%s", push->a, lanes ? " + j" : "");
  if (acc_many(a)) {
    snprintf(cell, sizeof cell, "j + v%u", at(e, e->vec)->a);
    emit_acc_step(e, push, acc_own(e, push->a) ? "0" : cell, k);
  } else if (lanes && acc_tree(a)) {
    snprintf(cell, sizeof cell, "a%u[%s]", push->a, lane);
    acc_step(e, push, cell, step);
    line(e, "%s = %s;", cell, step);
  } else if (lanes) {
    emit_acc_step(e, push, lane, k);
  } else {
    emit_acc_step(e, push, "0", k);
    emit_acc_counted(e, push->a, "0", "1");
  }
  if (block) line(e, "}");
}

void emit_acc_scan_push(emitter *e, const l_instr *scan) {
  if (e->acc[scan->a] & ACC_FINISHED) emit_acc_push(e, &(l_instr){.code = L_PUSH, .a = scan->a, .b = scan->b});
}

void emit_acc_push_one(emitter *e, const l_instr *push) {
  const l_instr *a = at(e, push->a);
  uint32_t v = push->a;
  char k[32], cell[32] = "0", leaf[24], id[80];
  snprintf(k, sizeof k, push->c ? "v%u" : "v%u_k", push->c ? push->c : v);
  if (!acc_lanes(e, v)) {
    emit_acc_step(e, push, "0", k);
    emit_acc_counted(e, v, "0", "1");
    return;
  }
  if (e->cuda)
    line(e, "if ((v%u_k & 63) == t) {", v);
  else
    snprintf(cell, sizeof cell, "v%u_k & 63", v);
  emit_acc_step(e, push, cell, k);
  if (e->cuda) line(e, "}");
  line(e, "v%u_k++;", v);
  if (!acc_tree(a)) return;
  line(e, "v%u_open = v%u_k %% %d != 0;", v, v, ORDER_BLOCK);
  line(e, "if (!v%u_open) {", v);
  acc_identity(a, id);
  snprintf(leaf, sizeof leaf, "v%u", v);
  emit_acc_leaf(e, v, leaf, "0", e->cuda ? "1" : "64");
  if (e->cuda)
    line(e, "v%u[0] = %s;", v, id);
  else
    line(e, "FILL(%s, 64, %s)", leaf, id);
  line(e, "}");
}

void emit_acc_strip_scan(emitter *e, const l_instr *scan, const char *strip) {
  static const char *const names[] = {"INNER", "OUTER", NULL, NULL, "FREE"};
  const l_instr *a = at(e, scan->a);
  const char *T = emit_type(scan->dtype);
  char f[48];
  l_order order = acc_scan_order(a);
  uint32_t v = scan->a;
  acc_prim(e, a, f);
  if (order == ORDER_INNER && has_calls(e))
    line(e, "%s_scan(%s, &v%u_s, &v%u_g, &v%u_b);", f, strip, v, v, v);
  else
    line(e, "SCAN_%s(%s, %s, %s, v%u)", names[order], T, f, strip, v);
  if (scan->flags & L_EXCLUSIVE) line(e, "SCAN_SHIFT(%s, %s, v%u)", T, strip, scan->a);
}

void emit_scan_switches(emitter *e, l_val v) {
  const l_instr *i = at(e, v), *a = at(e, i->a);
  uint32_t n = i->a;
  l_order order = acc_scan_order(a);
  if (order == ORDER_FREE) return;
  bool inner = order == ORDER_INNER;
  line(e, "int in%u = v%u_s %% %d >= %d, up%u = v%u_s >= %d, end%u = v%u_s %% 64 == 63;", v, n, inner ? 4096 : 64,
       inner ? 64 : 1, v, n, inner ? 4096 : 64, v, n);
  line(e, "OPAQUE(in%u) OPAQUE(up%u) OPAQUE(end%u)", v, v, v);
  if (inner)
    line(e, "int last%u = v%u_s %% 4096 == 4095, at%u = v%u_s %% 64; OPAQUE(last%u) OPAQUE(at%u)", v, n, v, n, v, v);
}

void emit_acc_scan(emitter *e, l_val v) {
  const l_instr *i = at(e, v), *a = at(e, i->a);
  const char *T = emit_type(i->dtype);
  char f[48];
  uint32_t n = i->a;
  acc_prim(e, a, f);
  line(e, "%s v%u = 0; %s%s%s{ const i64 r = j + v%u; %s y = v%u;", T, v, e->active[0] ? "if (" : "", e->active,
       e->active[0] ? ") " : "", at(e, e->vec)->a, T, i->b);
  switch (acc_scan_order(a)) {
  case ORDER_INNER:
    if (e->cuda) {
      line(e, "SCAN_STEP(%s, v%u_h, v%u, v%u_s, y)", f, n, a->a, n);
      line(e, "if (v%u_s %% 4096 >= 64) y = %s(v%u_g[r], y);", n, f, n);
      line(e, "const %s z = y; if (v%u_s >= 4096) y = %s(v%u_b[r], y);", T, n, f, n);
      line(e, "if (v%u_s %% 64 == 63) v%u_g[r] = z;", n, n);
      line(e, "if (v%u_s %% 4096 == 4095) v%u_b[r] = y;", n, n);
    } else {
      for (int d = 0; d < 6; d++) line(e, "SCAN_SELECT(%s, v%u_h, v%u, %d, at%u, y)", f, n, a->a, d, v);
      line(e, "y = in%u ? %s(v%u_g[r], y) : y;", v, f, n);
      line(e, "const %s z = y; y = up%u ? %s(v%u_b[r], y) : y;", T, v, f, n);
      line(e, "v%u_g[r] = end%u ? z : v%u_g[r];", n, v, n);
      line(e, "v%u_b[r] = last%u ? y : v%u_b[r];", n, v, n);
    }
    break;
  case ORDER_OUTER:
    if (e->cuda) {
      line(e, "y = v%u_s %% 64 ? %s(v%u_c[r], y) : y; v%u_c[r] = y;", n, f, n, n);
      line(e, "if (v%u_s >= 64) y = %s(v%u_g[r], y);", n, f, n);
      line(e, "if (v%u_s %% 64 == 63) v%u_g[r] = y;", n, n);
    } else {
      /* selects instead of branches, so that it becomes vector code; emit_scan_switches has made the conditions */
      line(e, "y = in%u ? %s(v%u_c[r], y) : y; v%u_c[r] = y;", v, f, n, n);
      line(e, "y = up%u ? %s(v%u_g[r], y) : y;", v, f, n);
      line(e, "v%u_g[r] = end%u ? y : v%u_g[r];", n, v, n);
    }
    break;
  default: line(e, "y = %s(v%u_c[r], y); v%u_c[r] = y;", f, n, n); break;
  }
  if (i->flags & L_EXCLUSIVE)
    line(e, "v%u = v%u_p[r]; v%u_p[r] = y; }", v, n, n);
  else
    line(e, "v%u = y; }", v);
}
