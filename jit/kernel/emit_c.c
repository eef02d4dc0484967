/* The C printer: L programs as one header-free translation unit (emit.h).
 *
 * A typed value %7 becomes `const f32 v7 = add_f32(v5, v6);`, an index value `const i64 v7 = ...`; scalar code throughout, whose
 * innermost loops the compiler turns into vector code (#pragma omp simd also promises that their iterations are independent).
 *
 * VECs. A straight body is one loop over j, cut into pieces where the ranges of guards begin and end and where comparisons of the
 * element's number change; a piece in which all of several guards hold has a loop without them (the inside of a stencil: 20 sweeps of Jacobi
 * on 1024^2 took 7.6 ms by masks, and take 3.8). Other bodies run in strips of 64 elements, L's own rule with VL = 64: the body is cut into segments, each
 * segment is one loop over the strip, and values that cross segments wait in arrays g7[64]. Segments end
 *   - at nested FOR and WHILE, which run around the strip. Carries live in arrays; in a WHILE elements whose condition has
 *     become false are masked (on7) and keep their carries;
 *   - at SCANs with one result, which work on the array of a strip;
 *   - behind functions with a slow form for rare arguments (sin of huge ones): the segment computes the fast form, the rare
 *     elements are repaired behind it;
 *   - around instructions that must run in ascending order (scatters, updates, chains), when the rest is worth a loop of its own.
 *
 * emit_text.h describes accumulators. A VEC that pushes to 64 lanes and does little else runs in strips, whose vectors of lanes stay in
 * registers (GROUPS); element l of a strip is pushed to lane l. One that computes more makes 1,024 elements in one loop like a straight body,
 * which leaves the values of its pushes in arrays, and then pushes these (LANES).
 *
 * Bools are bytes. Tried: bools as ints in registers and bytes in memory, so that masks have the width of the elements. With gcc 12 and
 * vectors of 512 bits, for ten kernels with comparisons, logical ops and selects (least times of four interleaved runs), none was faster
 * beyond the noise. At 64k elements f32 took 1 to 11 % more (where((x > 0) & (x < y), x * y, 0): 3.5 and 3.8 us), f64 -3 to +3 %; at 1M
 * elements f32 -3 to +4 %, f64 -13 to +6 % where memory is the limit, and the derivative of gelu in f64 more. gcc refuses to vectorise
 * loops with bools that are the same in the whole loop, so those are ints (emit_is_switch, e->even).
 *
 * Tried for the lanes of f32 reductions, one thread, AVX-512, gcc 12: with one body of 64 elements in a strip, as a loop of four vectors around lanes in
 * memory, the backward of layer norm and gelu took 27.5 ms (8192 x 1024), softmax 11.7 (4096 x 2048); with all such bodies as four vectors one after
 * the other 21.6 and 9.6, but then they took 20 % longer to compile; with -fpeel-loops 32 and 9.7; in blocks 22 to 24 and 9.4, and they compile quicker,
 * since a body is there once and not twice. Without gcc's jump threading a maximum is 5 instructions a vector and not 21, exp 31 and not 34,
 * log 32 and not 39; without its PRE gelu is 65 and not 74.
 *
 * Outputs of 32 MB and more, which no cache keeps for what comes next, are stored past the caches by VECs that memory is the limit of; so memory
 * need not be read before it is written. One thread, 10M f32, times of the processor: axpy 7.8 ms and 6.0 so, Adam 20.4 and 13.3, softmax 4096 x 2048 9.6
 * and 7.8. Reading the output afterwards took the same time from 8 MB on. Tried: a block of 1,024 elements in L1, then copied past the caches (half of the gain).
 *
 * A check in a loop collects the smallest failing element, which is reported after the loop.
 *
 * Scratch. Locals and the arrays of accumulators have fixed places in args->scratch, computed where a phase begins. The same
 * lines make the function that tells how much a program takes.
 */
#include "jit/kernel/emit_text.h"

#include <stdio.h>
#include <string.h>

#define line emit_line
#define at emit_at

/* ---- what happens to one element ------------------------------------------------------------------------------------ */

/* The store by which a VEC leaves the value of a push in a local, one element behind the other and nothing else in it; 0: there is none. */
static l_val kept_by(const emitter *e, l_val v, const l_instr *push) {
  l_val found = 0;
  for (l_val k = v + 1; k < e->end[v]; k++) {
    const l_instr *i = at(e, k);
    if (i->code != L_STORE || i->h != push->b || i->imm >= 0) continue;
    if (i->c || i->e || i->f || i->g || !i->b || at(e, i->b)->code != L_INT || at(e, i->b)->imm != 1) continue;
    bool alone = emit_buffer_type(e, i->imm) == at(e, push->a)->dtype;
    for (l_val s = v + 1; s < e->end[v]; s++)
      alone &= s == k || (at(e, s)->code != L_STORE && at(e, s)->code != L_RMW) || at(e, s)->imm != i->imm;
    if (alone) found = k;
  }
  return found;
}

/* The push of the VEC before `push` that has its value in an array, or `push` itself. */
static l_val first_with_value(const emitter *e, l_val v, l_val push) {
  l_val k = v + 1;
  while (at(e, k)->code != L_PUSH || !acc_lanes(e, at(e, k)->a) || at(e, k)->b != at(e, push)->b) k++;
  return k;
}

/* Prints one instruction of a VEC for element j. */
static void print_element(emitter *e, l_val v) {
  const l_instr *i = at(e, v);
  char where[EMIT_TEXT], cond[EMIT_TEXT], buffer[24];
  switch ((l_code)i->code) {
  case L_STORE:
    if (e->streaming) {
      line(e, "t%u[l] = v%u;", v, i->h);
      break;
    }
    emit_address(e, i, where);
    emit_guard(e, i, cond);
    emit_buffer(i->imm, buffer);
    if (cond[0])
      line(e, "if (%s) %s[%s] = v%u;", cond, buffer, where, i->h);
    else
      line(e, "%s[%s] = v%u;", buffer, where, i->h);
    break;
  case L_RMW:
    emit_address(e, i, where);
    emit_guard(e, i, cond);
    emit_buffer(i->imm, buffer);
    line(e, "%s%s%s{", cond[0] ? "if (" : "", cond, cond[0] ? ") " : "");
    line(e, "%s *const q = &%s[%s];", emit_type(emit_buffer_type(e, i->imm)), buffer, where);
    emit_rmw(e, i);
    line(e, "}");
    break;
  case L_CHECK: {
    l_instr place = {.a = i->b, .b = i->c};
    emit_address(e, &place, where);
    line(e, "{ const i64 q = v%u%s%s ? I64_MAX : %s; e%u = q < e%u ? q : e%u; }", i->a, e->active[0] ? " | !" : "",
         e->active, where, v, v, v);
    break;
  }
  case L_PUSH:
    if (!e->arrays || !acc_lanes(e, i->a))
      emit_acc_push(e, i);
    else if (first_with_value(e, e->vec, v) == v && !kept_by(e, e->vec, i))
      line(e, "g%u[j - j1] = v%u;", v, i->b);
    break;
  case L_CARRY: line(e, "const %s v%u = v%u;", emit_type(i->dtype), v, i->a); break;
  case L_SCAN:
    emit_acc_scan(e, v);
    emit_acc_scan_push(e, i);
    break;
  case L_FINISH:
    line(e, "const %s v%u = v%u%s[j + v%u];", emit_type(i->dtype), v, i->a, acc_field(at(e, i->a)), at(e, e->vec)->a);
    break;
  default: emit_instr(e, v); break;
  }
}

/* ---- VEC: what kind of loop ------------------------------------------------------------------------------------------- */

typedef struct vec_facts {
  bool strips;  /* does it run in strips of 64? */
  bool split;   /* are ordered instructions segments of their own? */
  bool lanes;   /* does it push to accumulators of 64 lanes? */
  bool blocks;  /* have some of these trees, so that strips are grouped in blocks of 1,024? */
  bool ordered; /* must some instructions run in order? */
  bool pieces;  /* has it several segments? */
  bool rows;    /* do its pushes to lanes take their values from arrays, a block of elements at a time? */
} vec_facts;

static vec_facts look(const emitter *e, l_val v) {
  enum { SMALL = 4, ROWS_MOST = 4 };
  vec_facts f = {0};
  int work = 0, guards = 0, pushes = 0;
  bool args = false;
  emit_rare names;
  for (l_val k = v + 1; k < e->end[v]; k++) {
    const l_instr *i = at(e, k);
    if (i->code == L_PUSH && acc_lanes(e, i->a)) {
      f.lanes = true;
      f.blocks |= acc_tree(at(e, i->a));
      args |= acc_arg(at(e, i->a));
      pushes++;
    }
    if (i->code == L_SCAN && acc_lanes(e, i->a) && (e->acc[i->a] & ACC_FINISHED)) {
      f.lanes = true;
      f.blocks |= acc_tree(at(e, i->a));
    }
    f.ordered |= emit_is_ordered(e, i);
    f.pieces |= i->code == L_FOR || i->code == L_WHILE || emit_is_strip_scan(e, i) || emit_rare_names(e, k, &names) ||
                emit_is_inner_finish(e, v, i);
    work += i->code == L_MATH ? 8 : i->code == L_KOP;
    guards += (i->code == L_LOAD || i->code == L_STORE) && (i->e || i->f || i->g);
  }
  f.split = f.ordered && (f.pieces || work > 8);
  f.pieces |= f.split;
  f.strips = f.pieces || f.lanes;
  f.rows = f.lanes && !f.pieces && !f.ordered && !args && pushes <= ROWS_MOST && (work > SMALL || guards > 0);
  return f;
}

/* Numbers the segments of a VEC in strips (e->seg) and marks the values that are made in one and used in another (e->spill). Instructions
 * outside segments (index arithmetic, loops) get 0; an END gets the number of the segment in which its loop's carries are set. */
static void number_segments(emitter *e, l_val v, const vec_facts *f, uint32_t *last) {
  uint32_t seg = ++*last;
  bool was_ordered = false;
  emit_rare names;
  for (l_val k = v + 1; k < e->end[v]; k++) {
    const l_instr *i = at(e, k);
    e->seg[k] = e->spill[k] = 0;
    if (l_rows[i->code].result == 'I') continue;
    if (i->code == L_FOR || i->code == L_WHILE) {
      seg = ++*last;
      continue;
    }
    if (i->code == L_END) {
      e->seg[k] = seg;
      seg = ++*last;
      continue;
    }
    bool alone = emit_is_strip_scan(e, i) || emit_is_inner_finish(e, v, i);
    bool ordered = f->split && emit_is_ordered(e, i);
    if (alone || (ordered != was_ordered && k > v + 1)) seg = ++*last;
    was_ordered = ordered;
    e->seg[k] = seg;
    if (alone || emit_is_nested_push(e, i) || emit_rare_names(e, k, &names)) seg = ++*last;
    if (i->code == L_CARRY || emit_is_strip_scan(e, i) || emit_rare_names(e, k, &names)) e->spill[k] = 1;
  }
  for (l_val k = v + 1; k < e->end[v]; k++) {
    const l_instr *i = at(e, k);
    uint32_t use = e->seg[k];
    if (i->code == L_SET) { /* its operand is used at the END of the innermost loop */
      l_val end = k;
      for (int depth = 0; at(e, end)->code != L_END || depth > 0; end++) {
        if (at(e, end)->code == L_FOR || at(e, end)->code == L_WHILE) depth++;
        if (at(e, end)->code == L_END) depth--;
      }
      use = e->seg[end];
    }
    for (const l_operand *o = l_rows[i->code].operands; o->role; o++) {
      l_val d = l_operand_of(i, o);
      if (d > v && l_rows[at(e, d)->code].result == 'V' && !emit_again(at(e, d)) &&
          (e->seg[d] != use || emit_is_strip_scan(e, i)))
        e->spill[d] = 1;
    }
  }
}

/* ---- VEC in strips -------------------------------------------------------------------------------------------------- */

/* Prints what makes value d available in segment `seg`: it is read from its array or computed once more. */
static void print_need(emitter *e, l_val d, uint32_t seg) {
  if (d <= e->vec || l_rows[at(e, d)->code].result != 'V' || e->seg[d] == seg || e->seen[d] == seg) return;
  e->seen[d] = seg;
  if (emit_again(at(e, d)))
    print_element(e, d);
  else
    line(e, "const %s v%u = g%u[l];", emit_type(at(e, d)->dtype), d, d);
}

static void print_needs(emitter *e, const l_instr *i, uint32_t seg) {
  for (const l_operand *o = l_rows[i->code].operands; o->role; o++)
    if (o->role != 'C') print_need(e, l_operand_of(i, o), seg);
}

/* Prints the pragma before the loop of [from, to): iterations are independent, but that checks collect the smallest failing element and,
 * if `rare`, a bit collects whether there is a rare argument. */
static void print_simd(emitter *e, l_val from, l_val to, bool rare) {
  text_repeat(e->out, "  ", e->depth);
  text_adds(e->out, rare ? "#pragma omp simd reduction(|: rare)" : "#pragma omp simd");
  const char *separator = " reduction(min: ";
  for (l_val k = from; k < to; k++)
    if (at(e, k)->code == L_CHECK) {
      text_addf(e->out, "%se%u", separator, k);
      separator = ", ";
    }
  text_adds(e->out, *separator == ',' ? ")\n" : "\n");
}

/* Prints the conditions of scans with many results in [from, to), before the loop that uses them. */
static void print_switches(emitter *e, l_val from, l_val to) {
  for (l_val k = from; k < to; k++)
    if (at(e, k)->code == L_SCAN && acc_many(at(e, at(e, k)->a))) emit_scan_switches(e, k);
}

/* How many elements make 64 bytes, where all values of the VEC are of one size; else 64. */
static int lane_group(const emitter *e) {
  uint32_t size = 0;
  for (l_val k = e->vec + 1; k < e->end[e->vec]; k++) {
    const l_instr *i = at(e, k);
    uint32_t own = l_rows[i->code].result == 'V' ? dtype_rows[i->dtype].size
                   : i->code == L_PUSH           ? dtype_rows[at(e, i->a)->dtype].size
                                                 : size;
    if (size && own != size) return ORDER_LANES;
    size = own;
  }
  return size ? 64 / (int)size : ORDER_LANES;
}

/* Prints segment [from, to) for a strip of m elements (a text). `commit` other than 0: a loop whose carries are set at the end of the
 * segment. */
static void print_segment(emitter *e, l_val from, l_val to, l_val commit, const char *m) {
  uint32_t seg = commit ? e->seg[e->end[commit]] : e->seg[from];
  bool ordered = false, grouped = false;
  emit_rare rare;
  l_val fixed = 0; /* a function with a slow form, by which rare elements are repaired */
  for (l_val k = from; k < to; k++) {
    ordered |= emit_is_ordered(e, at(e, k));
    if (emit_rare_names(e, k, &rare)) fixed = k;
  }
  print_switches(e, from, to);
  if (fixed) {
    math_use(e->uses, rare.rare);
    math_use(e->uses, rare.slow);
    math_use(e->uses, rare.fast);
    const l_instr *i = at(e, fixed);
    line(e, "{");
    line(e, "int rare = 0; %s h0[64], h1[64];", emit_type(i->type2));
    if (!ordered) print_simd(e, from, to, true);
  } else if (!ordered) {
    /* a full strip without other segments: vectors of lanes one after the other, so that compilers keep them in registers */
    int group = strcmp(m, "64") == 0 ? lane_group(e) : 64;
    if (group < 64) {
      line(e, "GROUPS(%d)", group);
      print_simd(e, from, to, false);
      line(e, "for (int l = q; l < q + %d; l++) {", group);
    } else {
      print_simd(e, from, to, false);
    }
    grouped = group < 64;
  }
  if (!grouped) line(e, "for (int l = 0; l < %s; l++) {", m);
  line(e, "const i64 j = j0 + l;");
  const char *outer = e->active;
  char name[24];
  snprintf(name, sizeof name, "%s", outer);
  if (outer[0]) {
    line(e, "const b8 on = %s[l];", name);
    e->active = "on";
  }
  for (l_val k = from; k < to; k++)
    if (e->seg[k] == seg) print_needs(e, at(e, k), seg);
  for (l_val k = commit; commit && k < e->end[commit]; k++) {
    if (k > commit && (at(e, k)->code == L_FOR || at(e, k)->code == L_WHILE))
      k = e->end[k];
    else if (at(e, k)->code == L_SET) {
      print_need(e, at(e, k)->b, seg);
      if (outer[0]) print_need(e, at(e, k)->a, seg);
    }
  }
  char arguments[64];
  for (l_val k = from; k < to; k++) {
    const l_instr *i = at(e, k);
    if (e->seg[k] != seg) continue;
    if (i->code == L_SET) continue;
    if (k == fixed) {
      emit_arguments(i, arguments);
      line(e, "const %s v%u = %s(%s);", emit_type(i->dtype), k, rare.fast, arguments);
      line(e, "rare |= %s(%s)%s%s;", rare.rare, arguments, outer[0] ? " & " : "", e->active);
      line(e, "h0[l] = v%u;", i->a);
      if (i->b) line(e, "h1[l] = v%u;", i->b);
    } else {
      print_element(e, k);
    }
    if (e->spill[k] && l_rows[i->code].result == 'V' && !emit_again(i)) line(e, "g%u[l] = v%u;", k, k);
  }
  for (l_val k = commit; commit && k < e->end[commit]; k++) {
    const l_instr *i = at(e, k);
    if (k > commit && (i->code == L_FOR || i->code == L_WHILE))
      k = e->end[k];
    else if (i->code == L_SET && outer[0])
      line(e, "g%u[l] = on ? v%u : v%u;", i->a, i->b, i->a);
    else if (i->code == L_SET)
      line(e, "g%u[l] = v%u;", i->a, i->b);
  }
  e->active = outer;
  line(e, "}");
  if (!fixed) return;
  const char *both = at(e, fixed)->b ? "h0[l], h1[l]" : "h0[l]";
  line(e, "if (rare)");
  line(e, "  for (int l = 0; l < %s; l++) if (%s(%s)) g%u[l] = %s(%s);", m, rare.rare, both, fixed, rare.slow, both);
  line(e, "}");
}

static void print_strip_scan(emitter *e, l_val v, const char *m) {
  const l_instr *i = at(e, v);
  char strip[48];
  line(e, "for (int l = 0; l < %s; l++) {", m);
  line(e, "const i64 j = j0 + l;");
  print_need(e, i->b, e->seg[v]);
  line(e, "g%u[l] = v%u;", v, i->b);
  emit_acc_scan_push(e, i);
  line(e, "}");
  snprintf(strip, sizeof strip, "g%u, %s", v, m);
  emit_acc_strip_scan(e, i, strip);
}

/* Prints the body [from, to) of a strip of m elements, or of a loop in it, which begins at `loop` (0: the strip itself). */
static void print_strip_body(emitter *e, l_val from, l_val to, l_val loop, const char *m) {
  /* index arithmetic depends on loop variables alone, so it is printed before everything else in its block */
  for (l_val k = from; k < to; k++) {
    const l_instr *i = at(e, k);
    if (i->code == L_FOR || i->code == L_WHILE)
      k = e->end[k];
    else if (l_rows[i->code].result == 'I')
      emit_instr(e, k);
  }
  bool committed = loop == 0;
  char range[48], width[24];
  snprintf(range, sizeof range, "(v%u + j0)", at(e, e->vec)->a);
  snprintf(width, sizeof width, "%s", m);
  for (l_val k = from; k < to; k++) {
    const l_instr *i = at(e, k);
    if (l_rows[i->code].result == 'I') continue;
    if (i->code == L_FOR) {
      emit_loop(e, k);
      print_strip_body(e, k + 1, e->end[k], k, m);
      line(e, "}");
      k = e->end[k];
      continue;
    }
    if (i->code == L_WHILE) {
      char mask[24];
      const char *outer = e->active;
      snprintf(mask, sizeof mask, "on%u", k);
      line(e, "for (b8 on%u[64];;) {", k);
      line(e, "int any = 0;");
      if (outer[0])
        line(e, "for (int l = 0; l < %s; l++) { on%u[l] = g%u[l] & %s[l]; any |= on%u[l]; }", m, k, i->a, outer, k);
      else
        line(e, "for (int l = 0; l < %s; l++) { on%u[l] = g%u[l]; any |= on%u[l]; }", m, k, i->a, k);
      line(e, "if (!any) break;");
      line(e, "if (STOPPED) return;");
      e->active = mask;
      print_strip_body(e, k + 1, e->end[k], k, m);
      e->active = outer;
      line(e, "}");
      k = e->end[k];
      continue;
    }
    if (emit_is_strip_scan(e, i)) {
      print_strip_scan(e, k, m);
      continue;
    }
    if (emit_is_inner_finish(e, e->vec, i)) {
      if (emit_is_first(e, e->vec, k)) emit_acc_root(e, i->a, range, width, false);
      continue;
    }
    l_val q = k + 1; /* the end of the segment that k is in */
    for (l_val s = k + 1; s < to && (e->seg[s] == e->seg[k] || l_rows[at(e, s)->code].result == 'I'); s++)
      if (e->seg[s] == e->seg[k]) q = s + 1;
    bool commits = loop && e->seg[to] == e->seg[k];
    print_segment(e, k, q, commits ? loop : 0, m);
    committed |= commits;
    if (emit_is_nested_push(e, at(e, q - 1))) emit_acc_pushed(e, at(e, q - 1), range, width);
    k = q - 1;
  }
  if (!committed)
    for (l_val k = from; k < to; k++) {
      if (at(e, k)->code == L_FOR || at(e, k)->code == L_WHILE)
        k = e->end[k];
      else if (at(e, k)->code == L_SET) {
        print_segment(e, to, to, loop, m);
        break;
      }
    }
}

/* ---- VEC ----------------------------------------------------------------------------------------------------------------- */

static void print_strip(emitter *e, l_val v, const char *m) {
  for (l_val k = v + 1; k < e->end[v]; k++) {
    e->seen[k] = 0;
    emit_acc_counters(e, v, k, true);
  }
  print_strip_body(e, v + 1, e->end[v], 0, m);
}

static void print_strips(emitter *e, l_val v, const vec_facts *f) {
  uint32_t last = 0;
  number_segments(e, v, f, &last);
  for (l_val k = v + 1; k < e->end[v]; k++) {
    if (e->spill[k]) line(e, "%s g%u[64];", emit_type(at(e, k)->dtype), k);
    emit_acc_counters(e, v, k, false);
  }
  if (f->blocks) {
    line(e, "for (i64 j1 = 0; j1 < n; j1 += %d) {", ORDER_BLOCK);
    line(e, "const i64 e1 = n - j1 < %d ? n : j1 + %d;", ORDER_BLOCK, ORDER_BLOCK);
    for (l_val k = v + 1; k < e->end[v]; k++) {
      const l_instr *a = at(e, at(e, k)->a);
      if (!emit_is_lane_push(e, v, k) || !acc_tree(a)) continue;
      char id[80];
      acc_identity(a, id);
      line(e, "%s a%u[64]; FILL(a%u, 64, %s)", emit_type(a->dtype), at(e, k)->a, at(e, k)->a, id);
    }
  } else {
    line(e, "{");
    line(e, "const i64 j1 = 0, e1 = n;");
  }
  line(e, "i64 j0 = j1;");
  if (f->pieces) {
    line(e, "for (; j0 < e1; j0 += 64) {");
    line(e, "const int m = e1 - j0 < 64 ? (int)(e1 - j0) : 64;");
    print_strip(e, v, "m");
    line(e, "}");
  } else {
    line(e, "for (; j0 + 64 <= e1; j0 += 64) {");
    print_strip(e, v, "64");
    line(e, "}");
    line(e, "if (j0 < e1) {");
    line(e, "const int m = (int)(e1 - j0);");
    print_strip(e, v, "m");
    line(e, "}");
  }
  for (l_val k = v + 1; f->blocks && k < e->end[v]; k++) {
    if (!emit_is_lane_push(e, v, k) || !acc_tree(at(e, at(e, k)->a))) continue;
    char leaf[24];
    snprintf(leaf, sizeof leaf, "a%u", at(e, k)->a);
    emit_acc_leaf(e, at(e, k)->a, leaf, "0", "64");
  }
  line(e, "}");
  for (l_val k = v + 1; k < e->end[v]; k++)
    if (emit_is_lane_push(e, v, k)) line(e, "v%u_k += n;", at(e, k)->a);
}

/* The number of memory accesses in a VEC whose guard has a range. */
static uint32_t count_ranges(const emitter *e, l_val v) {
  uint32_t n = 0;
  for (l_val k = v + 1; k < e->end[v]; k++) {
    const l_instr *i = at(e, k);
    n += (i->code == L_LOAD || i->code == L_STORE) && (i->e || i->f);
  }
  return n;
}

/* Does the instruction compare the element's number plus an offset (*place) with an index from outside the VEC (*other)? */
static bool compares_place(const emitter *e, l_val v, const l_instr *i, l_val *place, l_val *other) {
  if (i->code != L_KOP || i->sub < KOP_lt || i->sub > KOP_ge || i->type2 != DTYPE_INDEX) return false;
  bool swapped = i->a < v;
  *place = swapped ? i->b : i->a, *other = swapped ? i->a : i->b;
  const l_instr *p = at(e, *place);
  const l_instr *step = at(e, p->b);
  return *other < v && v < *place && p->code == L_IOTA && p->dtype == DTYPE_INDEX && step->code == L_INT &&
         step->imm == 1;
}

/* Marks in e->even the comparisons of the element's number in a VEC, and the logical ops on such. Returns how many there are. */
static uint32_t find_even(emitter *e, l_val v) {
  uint32_t n = 0;
  for (l_val k = v + 1; k < e->end[v]; k++) {
    const l_instr *i = at(e, k);
    l_val place, other;
    bool logic =
        i->code == L_KOP && dtype_is_bool(i->dtype) && (i->sub == KOP_and || i->sub == KOP_or || i->sub == KOP_not);
    e->even[k] = compares_place(e, v, i, &place, &other) ||
                 (logic && (i->a < v || e->even[i->a]) && (i->sub == KOP_not || i->b < v || e->even[i->b]));
    n += e->even[k];
  }
  return n;
}

/* Is a straight VEC cut into pieces? Not with very many guards (a concat of hundreds of arrays), since every piece tests all of them and
 * compilers take long for that. Sets e->even. */
static bool has_pieces(emitter *e, l_val v) {
  enum { GUARDS_MOST = 100 };
  uint32_t n = count_ranges(e, v) + find_even(e, v);
  if (n <= GUARDS_MOST) return n > 0;
  for (l_val k = v + 1; k < e->end[v]; k++) e->even[k] = 0;
  return false;
}

/* Prints how a loop over pieces [j0, e0) of a straight VEC begins. Within a piece every guard's range, and every comparison in e->even,
 * is true for all elements or false for all; the int w7 says which. So elements make no such test, and there is no comparison of 64-bit
 * numbers among elements of 32 bits. */
static void open_pieces(emitter *e, l_val v, const char *begin, const char *end) {
  l_val from = at(e, v)->a;
  line(e, "for (i64 j0 = %s; j0 < %s;) {", begin, end);
  line(e, "i64 e0 = %s;", end);
  for (int pass = 0; pass < 2; pass++)
    for (l_val k = v + 1; k < e->end[v]; k++) {
      const l_instr *i = at(e, k);
      if ((i->code != L_LOAD && i->code != L_STORE) || emit_piece_guard(e, i) != k) continue;
      char lower[48] = "1", upper[48] = "1", both[24] = "";
      if (i->e) snprintf(lower, sizeof lower, "(j0 + v%u >= v%u)", from, i->e);
      if (i->f) snprintf(upper, sizeof upper, "(j0 + v%u < v%u)", from, i->f);
      if (pass == 0 && i->e) line(e, "CUT(v%u - v%u)", i->e, from);
      if (pass == 0 && i->f) line(e, "CUT(v%u - v%u)", i->f, from);
      if (emit_is_switch(e, i)) snprintf(both, sizeof both, " & all%u", i->g);
      if (pass == 1) line(e, "int w%u = %s & %s%s; OPAQUE(w%u)", k, lower, upper, both, k);
    }
  for (int pass = 0; pass < 2; pass++)
    for (l_val k = v + 1; k < e->end[v]; k++) {
      const l_instr *i = at(e, k);
      l_val place, other;
      char f[48], in[2][64] = {"", ""};
      if (!e->even[k]) continue;
      bool compares = compares_place(e, v, i, &place, &other);
      if (pass == 0 && compares) { /* place < c and place >= c change at c, c < place and place <= c after it */
        bool swapped = other == i->a, behind = (i->sub == KOP_lt || i->sub == KOP_ge) == swapped;
        line(e, "CUT_AT(v%u, v%u, %d)", at(e, place)->a, other, behind);
      }
      if (pass == 0) continue;
      const l_val operands[] = {i->a, i->b};
      for (int o = 0; o < 2 && operands[o]; o++)
        if (compares && operands[o] == place)
          snprintf(in[o], sizeof in[o], "%sv%u + j0", o ? ", " : "", at(e, place)->a);
        else
          snprintf(in[o], sizeof in[o], "%s%c%u", o ? ", " : "", operands[o] > v ? 'w' : 'v', operands[o]);
      line(e, "int w%u = %s(%s%s); OPAQUE(w%u)", k, emit_prim(e, f, (kop_id)i->sub, DTYPE_TEST, i->type2), in[0], in[1],
           k);
    }
}

/* Prints the condition that in the piece at hand all guards hold and all choices are for their first value, as inside of a stencil, unless there are
 * few. */
static bool open_inside(emitter *e, l_val v) {
  enum { LEAST = 3 };
  text_buf all = {0};
  int n = 0;
  for (l_val k = v + 1; k < e->end[v]; k++) {
    const l_instr *i = at(e, k);
    bool access = i->code == L_LOAD || i->code == L_STORE;
    if (access && emit_piece_guard(e, i) == k)
      text_addf(&all, "%sw%u", n++ ? " & " : "", k);
    else if (access && emit_is_switch(e, i) && !i->e && !i->f)
      text_addf(&all, "%sall%u", n++ ? " & " : "", i->g);
    else if (e->even[k] && emit_decides(e, v, k))
      text_addf(&all, "%sw%u", n++ ? " & " : "", k);
  }
  text_add(&all, "", 1);
  if (n >= LEAST && !all.failed) line(e, "if (%s) {", all.text);
  e->failed |= all.failed;
  text_free(&all);
  return n >= LEAST;
}

/* Is it known that the VEC has at most one element? Then its loop is not marked as vector code. */
static bool is_single(const emitter *e, l_val v) {
  const l_instr *from = at(e, at(e, v)->a), *to = at(e, at(e, v)->b);
  if (from->code != L_INT) return false;
  const l_instr *ends[] = {to, to->code == L_IMIN ? at(e, to->a) : to, to->code == L_IMIN ? at(e, to->b) : to};
  for (int k = 0; k < 3; k++)
    if (ends[k]->code == L_INT && ends[k]->imm <= from->imm + 1) return true;
  return false;
}

/* The largest value that index v can have, where that is known. */
static int64_t at_most(const emitter *e, l_val v) {
  const l_instr *i = at(e, v);
  if (i->code != L_IMIN) return i->code == L_INT ? i->imm : INT64_MAX;
  int64_t a = at_most(e, i->a), b = at_most(e, i->b);
  return a < b ? a : b;
}

/* Are the outputs of a VEC that stands directly in its PAR known to be too small for streams? */
static bool is_small(const emitter *e, l_val v) {
  enum { MOST = 1 << 22 }; /* elements, of 8 bytes at most */
  int64_t n = at_most(e, at(e, v)->b), instances = at_most(e, at(e, e->par)->a);
  return n <= 1 || instances <= 1 ? n < MOST && instances < MOST : n < MOST && instances < MOST / n;
}

/* Is the VEC one of few instructions, of values of one size, that stores to outputs alone, one element behind the other, and stands directly in
 * its PAR? Then memory is what takes its time, and where the outputs are larger than caches, its stores go past these (open_streams). */
static bool may_stream(const emitter *e, l_val v) {
  enum { WORK_MOST = 20 };
  if (lane_group(e) == ORDER_LANES || emit_is_short(e, v) || is_small(e, v)) return false;
  for (l_val k = e->par + 1; k < v; k++)
    if (l_opens(at(e, k)->code) && e->end[k] > v) return false;
  int work = 0, stores = 0;
  for (l_val k = v + 1; k < e->end[v]; k++) {
    const l_instr *i = at(e, k);
    switch ((l_code)i->code) {
    case L_STORE:
      stores++;
      if (i->imm < 0 || e->p->buffers[i->imm].mode != BUF_OUT || i->c || i->e || i->f || i->g) return false;
      if (!i->b || at(e, i->b)->code != L_INT || at(e, i->b)->imm != 1) return false;
      break;
    case L_KOP: work++; break;
    case L_LOAD:
    case L_CONST:
    case L_IOTA: break;
    default: return false;
    }
  }
  return stores > 0 && work <= WORK_MOST;
}

/* Prints prefetches of what the next instance begins with, where that is a row behind the one that store `to` makes: earlier VECs have loaded
 * from the same place on. While memory takes the stores, it brings that row. */
static void print_prefetch(emitter *e, l_val v, l_val to) {
  for (uint32_t b = 0; b < e->p->nbuffers; b++) {
    bool loads = false;
    for (l_val k = e->par + 1; k < v; k++) {
      const l_instr *i = at(e, k);
      bool unit = i->code == L_LOAD && i->b && at(e, i->b)->code == L_INT && at(e, i->b)->imm == 1 && !i->c;
      loads |= unit && i->imm == (int64_t)b && i->a == at(e, to)->a;
    }
    if (loads) line(e, "PREFETCH(p%u + v%u + n + j0)", b, at(e, to)->a);
  }
}

/* Prints how the loops of a VEC begin that may stream: `far` tells whether its outputs are large, start at the same place of a line of 64 bytes,
 * and are not the memory of an operand. Whole lines of these are computed at a time and stored past the caches; what is before the first line and
 * behind the last one is left to the loop that follows, over [j0, e0). */
static void open_streams(emitter *e, l_val v) {
  const int group = lane_group(e);
  l_val first = 0;
  uint32_t bytes = 0;
  line(e, "int far = 1;");
  for (l_val k = v + 1; k < e->end[v]; k++) {
    const l_instr *i = at(e, k);
    if (i->code != L_STORE) continue;
    if (first)
      line(e, "far &= ((u64)(p%d + v%u) - (u64)(p%d + v%u)) %% 64 == 0;", (int)i->imm, i->a, (int)at(e, first)->imm,
           at(e, first)->a);
    else
      first = k;
    bytes += (uint32_t)(64 / group);
    for (uint32_t b = 0; b < e->p->nbuffers; b++)
      if (e->p->buffers[b].mode == BUF_IN) line(e, "far &= (u64)p%d != (u64)p%u;", (int)i->imm, b);
  }
  line(e, "far &= (f64)v%u * n * %u >= FAR;", at(e, e->par)->a, bytes);
  line(e, "for (i64 j0 = 0; j0 < n;) {");
  line(e, "i64 e0 = n;");
  line(e, "if (far) {");
  line(e, "const i64 lead = (i64)(-((u64)(p%d + v%u + j0) / %d) %% %d);", (int)at(e, first)->imm, at(e, first)->a,
       64 / group, group);
  line(e, "if (lead == 0 && n - j0 >= %d) {", group);
  line(e, "for (; n - j0 >= %d; j0 += %d) {", group, group);
  for (l_val k = v + 1; k < e->end[v]; k++)
    if (at(e, k)->code == L_STORE) line(e, "%s t%u[%d];", emit_type(e->p->buffers[at(e, k)->imm].dtype), k, group);
  print_simd(e, v + 1, e->end[v], false);
  line(e, "for (int l = 0; l < %d; l++) {", group);
  line(e, "const i64 j = j0 + l;");
  e->streaming = e->streams = true;
  for (l_val k = v + 1; k < e->end[v]; k++) print_element(e, k);
  e->streaming = false;
  line(e, "}");
  for (l_val k = v + 1; k < e->end[v]; k++)
    if (at(e, k)->code == L_STORE) line(e, "STREAM(p%d + v%u + j0, t%u)", (int)at(e, k)->imm, at(e, k)->a, k);
  print_prefetch(e, v, first);
  line(e, "}");
  line(e, "continue;");
  line(e, "}");
  line(e, "if (lead && lead < n - j0) e0 = j0 + lead;");
  line(e, "}");
}

/* Prints the elements from `begin` to `end` of a VEC whose body is one loop. */
static void print_straight(emitter *e, l_val v, const vec_facts *f, const char *begin, const char *end) {
  e->pieces = !f->ordered && has_pieces(e, v);
  bool streams = !e->pieces && !e->arrays && !f->ordered && may_stream(e, v);
  if (e->pieces) open_pieces(e, v, begin, end);
  if (streams) open_streams(e, v);
  print_switches(e, v + 1, e->end[v]);
  bool inside = e->pieces && open_inside(e, v);
  for (int pass = !inside; pass < 2; pass++) {
    e->inside = pass == 0;
    if (!f->ordered && !is_single(e, v)) print_simd(e, v + 1, e->end[v], false);
    line(e, "for (i64 j = %s; j < %s; j++) {", e->pieces || streams ? "j0" : begin, e->pieces || streams ? "e0" : end);
    for (l_val k = v + 1; k < e->end[v]; k++) print_element(e, k);
    line(e, "}");
    if (inside) line(e, pass ? "}" : "} else {");
  }
  if (e->pieces || streams) {
    line(e, "j0 = e0;");
    line(e, "}");
  }
  e->pieces = false;
}

/* ---- VEC with lanes, whose values wait in arrays ------------------------------------------------------------------------------ */

/* A VEC that pushes to lanes, a block of 1,024 elements at a time: one loop computes the block's elements and leaves the values of pushes in
 * arrays, from which short loops add them to the lanes. So the first loop is long, which a strip's is not: compilers load its constants anew
 * wherever it begins. */
static void print_rows(emitter *e, l_val v, const vec_facts *f) {
  e->arrays = true;
  line(e, "for (i64 j1 = 0; j1 < n; j1 += %d) {", ORDER_BLOCK);
  line(e, "const i64 e1 = n - j1 < %d ? n : j1 + %d;", ORDER_BLOCK, ORDER_BLOCK);
  for (l_val k = v + 1; k < e->end[v]; k++)
    if (at(e, k)->code == L_PUSH && acc_lanes(e, at(e, k)->a) && first_with_value(e, v, k) == k &&
        !kept_by(e, v, at(e, k)))
      line(e, "%s g%u[%d];", emit_type(at(e, at(e, k)->a)->dtype), k, ORDER_BLOCK);
  print_straight(e, v, f, "j1", "e1");
  e->arrays = false;
  for (l_val k = v + 1; k < e->end[v]; k++) {
    const l_instr *push = at(e, k);
    if (push->code != L_PUSH || !acc_lanes(e, push->a)) continue;
    const l_instr *a = at(e, push->a);
    char id[80], F[48], from[64], leaf[24];
    const char *T = emit_type(a->dtype);
    l_val kept = kept_by(e, v, push);
    if (kept)
      snprintf(from, sizeof from, "(v%d + v%u + j1)", (int)-at(e, kept)->imm, at(e, kept)->a);
    else
      snprintf(from, sizeof from, "g%u", first_with_value(e, v, k));
    acc_identity(a, id);
    acc_prim(e, a, F);
    snprintf(leaf, sizeof leaf, "%c%u", acc_tree(a) ? 'a' : 'v', push->a);
    if (acc_tree(a)) line(e, "%s %s[64]; FILL(%s, 64, %s)", T, leaf, leaf, id);
    line(e, "LANES(%s, %s, %s, %s, (int)(e1 - j1))", T, F, leaf, from);
    if (acc_tree(a)) emit_acc_leaf(e, push->a, leaf, "0", "64");
  }
  line(e, "}");
  for (l_val k = v + 1; k < e->end[v]; k++)
    if (emit_is_lane_push(e, v, k)) line(e, "v%u_k += n;", at(e, k)->a);
}

/* Prints the mask of choice k of VEC v, if it needs one that no choice before it has. */
static void print_mask(emitter *e, l_val v, l_val k) {
  const l_instr *i = at(e, k);
  if (!emit_is_blend(e, i)) return;
  uint32_t size = dtype_rows[i->dtype].size;
  for (l_val s = v + 1; s < k; s++)
    if (emit_is_blend(e, at(e, s)) && at(e, s)->a == i->a && dtype_rows[at(e, s)->dtype].size == size) return;
  line(e, "u%u m%u_%u = -(u%u)v%u; OPAQUE(m%u_%u)", 8 * size, i->a, 8 * size, 8 * size, i->a, i->a, 8 * size);
}

static void print_vec(emitter *e, l_val v) {
  l_val end = e->end[v];
  vec_facts f = look(e, v);
  emit_vec_begin(e, v);
  for (l_val k = v + 1; k < end; k++)
    if (at(e, k)->code == L_CHECK) line(e, "i64 e%u = I64_MAX;", k);
  e->vec = v;
  bool masked = false, varied = false;
  for (l_val k = v + 1; k < end; k++) {
    masked |= emit_is_masked(e, at(e, k));
    varied |= emit_is_varied(e, at(e, k));
  }
  if (masked) line(e, "i64 bits = -1; OPAQUE(bits)");
  if (varied) line(e, "i64 none = 0; OPAQUE(none)");
  for (l_val k = v + 1; k < end; k++) {
    bool first = emit_is_switch(e, at(e, k));
    for (l_val s = v + 1; s < k && first; s++) first = !emit_is_switch(e, at(e, s)) || at(e, s)->g != at(e, k)->g;
    if (first) line(e, "int all%u = v%u; OPAQUE(all%u)", at(e, k)->g, at(e, k)->g, at(e, k)->g);
    print_mask(e, v, k);
  }
  if (f.rows) {
    print_rows(e, v, &f);
  } else if (f.strips) {
    print_strips(e, v, &f);
  } else {
    print_straight(e, v, &f, "0", "n");
  }
  for (l_val k = v + 1; k < end; k++) {
    const l_instr *push = at(e, k);
    if (push->code == L_CHECK) line(e, "if (e%u != I64_MAX) fail(a, %d, e%u);", k, (int)push->imm, k);
    if (push->code != L_PUSH && push->code != L_SCAN) continue;
    if (!acc_many(at(e, push->a)) || emit_is_nested_push(e, push)) continue;
    emit_acc_pushed(e, push, NULL, NULL);
  }
  e->vec = 0;
  line(e, "}");
}

/* ---- blocks ---------------------------------------------------------------------------------------------------------------- */

static void print_partial(emitter *e, const l_instr *i) {
  const l_instr *a = at(e, i->a);
  char width[24], buffer[24];
  line(e, "{");
  if (acc_many(a)) {
    acc_width(e, i->a, width);
    emit_acc_root(e, i->a, NULL, NULL, true);
  } else {
    emit_acc_result(e, i->a, a->imm != ORDER_INNER);
    snprintf(width, sizeof width, "%d", a->imm == ORDER_INNER ? ORDER_LANES : 1);
  }
  emit_buffer(i->imm, buffer);
  line(e, "SIMD for (i64 r = 0; r < %s; r++) %s[v%u + r] = v%u[r];", width, buffer, i->b, i->a);
  if (acc_arg(a)) {
    emit_buffer(i->imm2, buffer);
    line(e, "SIMD for (i64 r = 0; r < %s; r++) %s[v%u + r] = v%u_i[r];", width, buffer, i->d, i->a);
  }
  line(e, "}");
}

static void print_merge(emitter *e, const l_instr *i) {
  const l_instr *a = at(e, i->a);
  char width[24], buffer[24], indices[24], f[48], v[24];
  acc_width(e, i->a, width);
  emit_buffer(i->imm, buffer);
  emit_buffer(i->imm2, indices);
  if (acc_arg(a)) {
    line(e, "for (i64 r = 0; r < %s; r++) {", width);
    line(e, "const b8 q = ARG_BEFORE(%s, %s[v%u + r], %s[v%u + r], v%u[r], v%u_i[r]);", acc_than(a), buffer, i->b,
         indices, i->d, i->a, i->a);
    line(e, "v%u[r] = q ? %s[v%u + r] : v%u[r]; v%u_i[r] = q ? %s[v%u + r] : v%u_i[r];", i->a, buffer, i->b, i->a, i->a,
         indices, i->d, i->a);
    line(e, "}");
  } else if (!acc_tree(a)) {
    line(e, "SIMD for (i64 r = 0; r < %s; r++) v%u[r] = %s(v%u[r], %s[v%u + r]);", width, i->a, acc_prim(e, a, f), i->a,
         buffer, i->b);
  } else {
    snprintf(v, sizeof v, "v%u", i->a);
    line(e, "SIMD for (i64 r = 0; r < %s; r++) v%u[r] = %s[v%u + r];", width, i->a, buffer, i->b);
    emit_acc_leaf(e, i->a, v, "0", width);
  }
}

static bool is_one(const emitter *e, l_val v) { return at(e, v)->code == L_INT && at(e, v)->imm == 1; }

/* Of a product with one result and operands of its own dtype: the chain itself if it is no longer than a chunk, since the call costs as much as
 * some twenty terms; then what comes next is the other case. */
static void print_chain(emitter *e, const l_tile *t, const char *x, const char *y, const char *to) {
  uint8_t d = l_tile_dtype(e->p, t);
  if (t->ndigits || !is_one(e, t->rows) || !is_one(e, t->cols) || emit_buffer_type(e, t->x) != d ||
      emit_buffer_type(e, t->y) != d)
    return;
  char mul[48], sum[48];
  const char *type = emit_type(d);
  emit_prim(e, mul, KOP_mul, d, d);
  line(e, "if (v%u <= %d) {", t->depth, ORDER_DOT_CHUNK);
  line(e, "const %s *x = %s + v%u, *y = %s + v%u;", type, x, t->x_base, y, t->y_base);
  line(e, "%s s = v%u > 0 ? %s(x[0], y[0]) : 0;", type, t->depth, mul);
  if (dtype_is_float((qn_dtype)d))
    line(e, "for (i64 k = 1; k < v%u; k++) s = %s(x[k * v%u], y[k * v%u], s);", t->depth,
         emit_prim(e, sum, KOP_fma, d, d), t->x_k, t->y_k);
  else
    line(e, "for (i64 k = 1; k < v%u; k++) s = %s(s, %s(x[k * v%u], y[k * v%u]));", t->depth,
         emit_prim(e, sum, KOP_add, d, d), mul, t->x_k, t->y_k);
  line(e, "(%s)[0] = s;", to);
  line(e, "} else");
}

static void print_tile(emitter *e, const l_tile *t) {
  char x[24], y[24], buffer[24], to[48], pitch[24];
  emit_buffer(t->x, x);
  emit_buffer(t->y, y);
  emit_buffer(l_tile_to(t), buffer);
  if (t->out) {
    snprintf(to, sizeof to, "%s", buffer);
    snprintf(pitch, sizeof pitch, "%d", t->tile_cols);
  } else {
    snprintf(to, sizeof to, "%s + v%u", buffer, t->to_base);
    snprintf(pitch, sizeof pitch, "v%u", t->to_m);
  }
  print_chain(e, t, x, y, to);
  char windows[64] = "";
  if (t->ndigits) {
    snprintf(windows, sizeof windows, ", %u, v%u, v%u, digits", t->ndigits, t->n_first, t->k_first);
    line(e, "{ const qk_digit digits[] = {");
    for (uint32_t i = 0; i < t->ndigits; i++) {
      const l_digit *d = &t->digits[i];
      char most[16] = "0";
      if (d->most) snprintf(most, sizeof most, "v%u", d->most);
      line(e, "{v%u, %s, v%u, %d},", d->by, most, d->step, d->deep);
    }
    line(e, "};");
  }
  line(e,
       "{ const qk_tile t = {%s + v%u, %s + v%u, %s, work, v%u, v%u, v%u, v%u, v%u, v%u, v%u, %s, %d, %d, %d%s}; "
       "a->tile(&t); "
       "}%s",
       x, t->x_base, y, t->y_base, to, t->x_m, t->x_k, t->y_k, t->y_n, t->rows, t->cols, t->depth, pitch,
       emit_buffer_type(e, t->x), emit_buffer_type(e, t->y), l_tile_dtype(e->p, t), windows, t->ndigits ? " }" : "");
}

static void print_block(emitter *e, l_val from, l_val to) {
  for (l_val v = from; v < to; v++) {
    const l_instr *i = at(e, v);
    switch ((l_code)i->code) {
    case L_PARTIAL: print_partial(e, i); break;
    case L_MERGE: print_merge(e, i); break;
    case L_TILE: print_tile(e, &e->p->tiles[i->imm]); break;
    case L_STORE:
    case L_RMW: print_element(e, v); break;
    case L_CHECK: line(e, "if (!v%u) fail(a, %d, v%u);", i->a, (int)i->imm, i->b); break;
    case L_POLL: line(e, "if (STOPPED) return;"); break;
    case L_VEC:
      print_vec(e, v);
      v = e->end[v];
      break;
    default: v = emit_structure(e, v, print_block); break;
    }
  }
}

/* ---- phases and units ------------------------------------------------------------------------------------------------------ */

static void print_head(emitter *e, const char *name, uint32_t number, bool phase) {
  line(e, "void %s_%u(const qk_args *a, i64 lo, i64 hi) {", name, number);
  if (!phase) line(e, "char *const base = 0;");
}

static void print_phase(emitter *e, l_val phase) {
  emit_buffers(e);
  line(e, "char *const base = (char *)a->scratch; u64 o = 0;");
  l_val par = emit_prelude(e, phase);
  emit_places(e, par);
  line(e, "for (i64 x%u = lo; x%u < hi; x%u++) {", par, par, par);
  e->streams = false;
  print_block(e, par + 1, e->end[par]);
  line(e, "}");
  if (e->streams) line(e, "FENCE");
}

static const char preamble[] =
    /* gcc's jump threading makes one choice of two that follow each other, as in a clamp or a maximum, which is more instructions of vector
     * code; and its PRE keeps values across loops that cost less to compute */
    "#if defined __GNUC__ && !defined __clang__\n"
    "#pragma GCC optimize (\"no-thread-jumps,no-tree-pre\")\n"
    "#endif\n"
    "#define HELP static inline\n"
    "#define CLZ32 __builtin_clz\n"
    "#define I64_MAX 9223372036854775807ll\n"
    "#define STOPPED __atomic_load_n(a->interrupt, __ATOMIC_RELAXED)\n"
    "#define FAILED (__atomic_load_n(a->error, __ATOMIC_RELAXED) != ~(u64)0)\n"
    "#define SIMD _Pragma(\"omp simd\")\n"
    "#define FILLS FILL\n"
    "#define CUT(at) if ((at) > j0 && (at) < e0) e0 = (at);\n"
    "#define CUT_AT(x, c, plus) { i64 at_; if (!__builtin_sub_overflow(c, x, &at_) && at_ < I64_MAX) CUT(at_ + plus) "
    "}\n"
    "#define OPAQUE(x) __asm__(\"\" : \"+r\"(x));\n"
    "HELP f32 vary_f32(f32 x, i64 bits) { union { f32 x; u32 u; } y; y.x = x; y.u |= (u32)bits; return y.x; }\n"
    "HELP f64 vary_f64(f64 x, i64 bits) { union { f64 x; u64 u; } y; y.x = x; y.u |= (u64)bits; return y.x; }\n"
    "static __attribute__((noinline, cold)) void fail(const qk_args *a, int check, i64 element) {\n"
    "  u64 now = (u64)check << 48 | (u64)element, old = __atomic_load_n(a->error, __ATOMIC_RELAXED);\n"
    "  while (now < old && !__atomic_compare_exchange_n(a->error, &old, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) "
    "{}\n"
    "}\n"
    "#define PLACE(T, name, count) T *const name = (T *)(base + o); o += SPACE(T, count);\n"
    "#define HALF(F, v, h) SIMD for (int l_ = 0; l_ < h; l_++) (v)[l_] = F((v)[l_], (v)[l_ + h]);\n"
    "#define FOLD(F, v) HALF(F, v, 32) HALF(F, v, 16) HALF(F, v, 8) HALF(F, v, 4) (v)[0] = F((v)[0], (v)[2]); \\\n"
    "  (v)[1] = F((v)[1], (v)[3]); (v)[0] = F((v)[0], (v)[1]);\n"
    /* 64 bytes from t to p past the caches, for outputs of FAR bytes and more; what is stored so is seen by others after a FENCE */
    "typedef f32 line64 __attribute__((vector_size(64), aligned(4), may_alias));\n"
    "typedef f32 line32 __attribute__((vector_size(32), aligned(4), may_alias));\n"
    "#ifndef FAR\n"
    "#define FAR 0x1p25\n"
    "#endif\n"
    "#if defined __clang__ || !defined __AVX__\n"
    "#define STREAM(p, t) *(line64 *)(p) = *(const line64 *)(t);\n#define PREFETCH(p)\n"
    "#define FENCE\n"
    "#else\n"
    "#ifdef __AVX512F__\n"
    "#define STREAM(p, t) __builtin_ia32_movntps512((f32 *)(p), *(const line64 *)(t));\n"
    "#else\n"
    "#define STREAM(p, t) __builtin_ia32_movntps256((f32 *)(p), *(const line32 *)(t)); \\\n"
    "  __builtin_ia32_movntps256((f32 *)(p) + 8, *(const line32 *)(t + sizeof(t) / sizeof *(t) / 2));\n"
    "#endif\n"
    "#define FENCE __builtin_ia32_sfence();\n#define PREFETCH(p) __builtin_prefetch(p);\n"
    "#endif\n"
    "#define GROUPS(n) _Pragma(\"GCC unroll 8\") for (int q = 0; q < 64; q += n)\n"
    "#define LANES(T, F, a, g, m) { int k_ = 0; for (; k_ + 64 <= m; k_ += 64) GROUPS((int)(64 / sizeof(T))) \\\n"
    "  SIMD for (int l_ = q; l_ < q + (int)(64 / sizeof(T)); l_++) (a)[l_] = F((a)[l_], (g)[k_ + l_]); \\\n"
    "  SIMD for (int l_ = 0; l_ < m - k_; l_++) (a)[l_] = F((a)[l_], (g)[k_ + l_]); }\n"
    "#define ARG_FOLD(OP, v, i) for (int h_ = 32; h_ > 0; h_ >>= 1) for (int l_ = 0; l_ < h_; l_++) \\\n"
    "  if (ARG_BEFORE(OP, (v)[l_ + h_], (i)[l_ + h_], (v)[l_], (i)[l_])) { (v)[l_] = (v)[l_ + h_]; (i)[l_] = (i)[l_ + "
    "h_]; }\n"
    "#define SCAN_FREE(T, F, g, m, v) for (int l = 0; l < m; l++) g[l] = v##_c = F(v##_c, g[l]); v##_s += m;\n"
    "#define SCAN_OUTER(T, F, g, m, v) for (int l = 0; l < m; l++, v##_s++) { \\\n"
    "  v##_c = v##_s % 64 ? F(v##_c, g[l]) : g[l]; g[l] = v##_s >= 64 ? F(v##_g, v##_c) : v##_c; \\\n"
    "  if (v##_s % 64 == 63) v##_g = g[l]; }\n"
    "#define SCAN_LOG(F, x, y, h, m) for (int l = 0; l < h && l < m; l++) y[l] = x[l]; \\\n"
    "  SIMD for (int l = h; l < m; l++) y[l] = F(x[l - h], x[l]);\n"
    "#define SCAN_INNER(T, F, g, m, v) { T t_[64]; \\\n"
    "  SCAN_LOG(F, g, t_, 1, m) SCAN_LOG(F, t_, g, 2, m) SCAN_LOG(F, g, t_, 4, m) SCAN_LOG(F, t_, g, 8, m) \\\n"
    "  SCAN_LOG(F, g, t_, 16, m) SCAN_LOG(F, t_, g, 32, m) \\\n"
    "  if (v##_s % 4096 >= 64) for (int l = 0; l < m; l++) g[l] = F(v##_g, g[l]); \\\n"
    "  v##_g = g[m - 1]; \\\n"
    "  if (v##_s >= 4096) for (int l = 0; l < m; l++) g[l] = F(v##_b, g[l]); \\\n"
    "  v##_s += m; if (v##_s % 4096 == 0) v##_b = g[m - 1]; }\n"
    /* SCAN_STEP for one distance, without a branch: where there is no element at that distance, what is read is not used */
    "#define SCAN_SELECT(F, h, W, d, i, y) { h[(i64)(d * 64 + i) * W + r] = y; \\\n"
    "  const i64 q_ = d * 64 + (i - (1 << d) & 63); y = i >= 1 << d ? F(h[q_ * W + r], y) : y; }\n"
    "#define SCAN_SHIFT(T, g, m, v) { const T y_ = g[m - 1]; for (int l = m - 1; l > 0; l--) g[l] = g[l - 1]; \\\n"
    "  g[0] = v##_p; v##_p = y_; }\n";

void emit_c(const l_program *const *programs, const char *const *names, uint32_t n, cancel_flag cancel, text_buf *out) {
  static const emit_target target = {MATH_TARGET_C, preamble, print_head, print_phase};
  emit_unit(&target, programs, names, n, cancel, out);
}
