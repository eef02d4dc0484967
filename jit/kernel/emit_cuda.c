/* The CUDA printer: L programs as CUDA C for NVRTC (emit.h). Same orders, same bits as everywhere; plain rather than fast.
 *
 * A block of 64 threads runs one instance at a time. Index arithmetic and uniform values are computed by all threads alike;
 * what only one may do (a store outside VECs) thread 0 does. Thread t runs the elements t, t + 64, ... of a VEC, so it is lane
 * t of a reduction with one result: its chain and its tree are the thread's own, and only the last fold goes through shared
 * memory. Chains and scans that run in order are computed by all threads alike from a strip of 64 values in shared memory.
 * Accumulators with many results and large locals lie in the block's piece of args->scratch, or, where that is NULL, in shared
 * memory that the launch gives; small locals of constant size in shared memory. Between VECs there is a barrier where it is
 * needed.
 *
 * A VEC that reads only what each thread wrote itself stands between no barriers (emit_ahead.c). A VEC's loads are made for several
 * elements, those of a loop over rows for several rows, before anything is computed from them: a thread that waits for one load at
 * a time leaves the memory idle. Of at most 64 results (tiles of columns) a thread keeps its own in registers.
 *
 * Where a block has more than 64 threads, its phase only merges partial results and computes with what that gives (layout.h): the threads share the
 * leaves, and the first 64 do everything else that is done once for each element.
 *
 * VECs that need all threads at once (scans, ordered instructions, pushes in loops) run in strips of 64 elements, threads beyond
 * the end included; `in` says whether the thread's element exists. Others are plain loops.
 */
#include "jit/kernel/emit_text.h"

#include <stdio.h>
#include <string.h>

/* Tried on an H200 (softmax of 16384 x 4096 f32, layer_norm + gelu + residual of 65536 x 1024, six pointwise ops on 8192^2; ms):
 *   one load at a time, a barrier around every VEC        0.305  0.319  0.177
 *   8 loads ahead, behind a condition each                0.338  0.279  0.176
 *   the same without conditions where all 8 exist         0.247  0.390  0.158   16 blocks an SM: registers are spilt
 *                                                         0.207  0.240  0.159   12 blocks
 * A transposed copy of 8192^2 went from 0.79 to 0.15 when the rows of its tiles were read 16 at a time.
 *
 * Later, on kernels of a transformer layer in bf16 (8 x 1024 x 1024; us, counted by ncu; most were bound by instructions):
 *   leaving an unrolled tail at its first missing element, and dividing by precomputed numbers: heads of 64 elements turned 92 -> 60
 *   bf16 by cvt of a pair (of one number it goes through the slow unit), folds by shuffles: softmax of 131072 x 1024 605 -> 444, gelu
 *   137 -> 110; merges of 256 slabs whose leaves are read without conditions: 97 -> about 10. What remains there: an element of a
 *   softmax costs 80 instructions, and kernels with row and column sums side by side have as few blocks as slabs of 64 rows. */
#define line emit_line
#define at emit_at

enum { THREADS = 64, MANY = 16 /* partial results that are read at a time */ };

uint32_t emit_cuda_words(const l_program *p) { return EMIT_WORDS_HEAD + p->nbuffers + p->nints + p->nscalars; }

/* ---- what happens to one element ----------------------------------------------------------------------------------- */

static void print_strip_scan(emitter *e, l_val v) {
  const l_instr *i = at(e, v);
  char value[24];
  snprintf(value, sizeof value, "v%u", v);
  line(e, "%s %s = v%u;", emit_type(i->dtype), value, i->b);
  emit_acc_strip_scan(e, i, value);
  emit_acc_scan_push(e, i);
}

/* Prints a store whose elements may have the same address: of a strip's elements with one address only the last stores, and barriers
 * keep the strips in order. */
static void print_scatter(emitter *e, const l_instr *i, const char *where, const char *cond, const char *buffer) {
  line(e, "{");
  line(e, "const i64 w = %s; const b8 on = %s;", where, cond[0] ? cond : "1");
  line(e, "SYNC on_[t] = on; ((i64 *)x_)[t] = w;");
  line(e, "SYNC b8 last = on; for (int l = t + 1; l < 64; l++) last &= !(on_[l] & (((i64 *)x_)[l] == w));");
  line(e, "if (last) %s[w] = v%u;", buffer, i->h);
  line(e, "SYNC");
  line(e, "}");
}

/* Prints an update that must be made in order: thread 0 makes all updates of a strip. */
static void print_updates(emitter *e, const l_instr *i, const char *where, const char *cond, const char *buffer) {
  const char *T = emit_type(emit_buffer_type(e, i->imm));
  line(e, "{");
  line(e, "const i64 w = %s; const b8 on = %s;", where, cond[0] ? cond : "1");
  line(e, "SYNC on_[t] = on; ((i64 *)x_)[t] = w; ((%s *)y_)[t] = v%u;", T, i->h);
  line(e, "SYNC if (t == 0) for (int l = 0; l < m; l++) if (on_[l]) {");
  line(e, "const %s v%u = ((%s *)y_)[l]; %s *const q = &%s[((i64 *)x_)[l]];", T, i->h, T, T, buffer);
  emit_rmw(e, i);
  line(e, "}");
  line(e, "SYNC");
  line(e, "}");
}

static void print_store(emitter *e, const l_instr *i) {
  char where[EMIT_TEXT], cond[EMIT_TEXT], buffer[24];
  emit_address(e, i, where);
  emit_guard(e, i, cond);
  emit_buffer(i->imm, buffer);
  bool ordered = e->vec && emit_is_ordered(e, i);
  if (ordered && i->code == L_STORE) {
    print_scatter(e, i, where, cond, buffer);
  } else if (ordered) {
    print_updates(e, i, where, cond, buffer);
  } else {
    line(e, "%s%s%s{", cond[0] ? "if (" : "", cond, cond[0] ? ") " : "");
    line(e, "%s *const q = &%s[%s];", emit_type(emit_buffer_type(e, i->imm)), buffer, where);
    if (i->code == L_STORE)
      line(e, "*q = v%u;", i->h);
    else
      emit_rmw(e, i);
    line(e, "}");
  }
}

void emit_cuda_check(emitter *e, const l_instr *i) {
  char where[EMIT_TEXT];
  l_instr place = {.a = i->b, .b = i->c};
  emit_address(e, &place, where);
  line(e, "if (%s%s!v%u) fail(a, %d, %s);", e->active, e->active[0] ? " && " : "", i->a, (int)i->imm, where);
}

/* ---- VEC ----------------------------------------------------------------------------------------------------------- */

/* Prints the body [from, to) of a VEC for the thread's element. `strips`: all threads run it together, also those without an element. */
static void print_body(emitter *e, l_val from, l_val to, bool strips) {
  char range[48];
  snprintf(range, sizeof range, "(j + v%u)", at(e, e->vec)->a);
  for (l_val k = from; k < to; k++) {
    const l_instr *i = at(e, k);
    switch ((l_code)i->code) {
    case L_STORE:
    case L_RMW: print_store(e, i); break;
    case L_CHECK: emit_cuda_check(e, i); break;
    case L_PUSH:
      emit_acc_push(e, i);
      if (emit_is_nested_push(e, i)) emit_acc_pushed(e, i, range, "in");
      break;
    case L_SCAN:
      if (emit_is_strip_scan(e, i)) {
        print_strip_scan(e, k);
        break;
      }
      emit_acc_scan(e, k);
      emit_acc_scan_push(e, i);
      if (emit_is_nested_push(e, i)) emit_acc_pushed(e, i, range, "in");
      break;
    case L_FINISH: {
      const char *field = acc_field(at(e, i->a)), *T = emit_type(i->dtype);
      if (emit_is_inner_finish(e, e->vec, i) && emit_is_first(e, e->vec, k)) emit_acc_root(e, i->a, range, "in", false);
      if (acc_own(e, i->a))
        line(e, "const %s v%u = v%u%s[0];", T, k, i->a, field);
      else if (e->active[0])
        line(e, "const %s v%u = %s ? v%u%s[j + v%u] : (%s)0;", T, k, e->active, i->a, field, at(e, e->vec)->a, T);
      else
        line(e, "const %s v%u = v%u%s[j + v%u];", T, k, i->a, field, at(e, e->vec)->a);
      break;
    }
    case L_CARRY: line(e, "%s v%u = v%u;", emit_type(i->dtype), k, i->a); break;
    case L_SET:
    case L_POLL: break;
    case L_LOAD:
      if (e->ahead[k] & AHEAD_LOAD)
        line(e, "const %s v%u = ahead%u[u];", emit_type(i->dtype), k, k);
      else
        emit_instr(e, k);
      break;
    case L_FOR:
      emit_loop(e, k);
      print_body(e, k + 1, e->end[k], strips);
      emit_sets(e, k, "");
      line(e, "}");
      k = e->end[k];
      break;
    case L_WHILE: {
      const char *outer = e->active;
      char on[24] = "";
      line(e, "unsigned polls%u = 0;", k);
      if (strips) {
        snprintf(on, sizeof on, "on%u", k);
        line(e, "for (;;) {");
        line(e, "const b8 %s = v%u & %s; if (!__syncthreads_or(%s)) break;", on, i->a, outer, on);
        line(e, "if (POLLED(polls%u) && __syncthreads_or(STOPPED)) return;", k);
        e->active = on;
      } else {
        line(e, "while (v%u) {", i->a);
        line(e, "if (POLLED(polls%u) && STOPPED) break;", k); /* not a return: other threads wait at barriers */
      }
      print_body(e, k + 1, e->end[k], strips);
      emit_sets(e, k, on);
      e->active = outer;
      line(e, "}");
      k = e->end[k];
      break;
    }
    default: emit_instr(e, k); break;
    }
  }
}

/* For every accumulator of 64 lanes with a tree that the VEC pushes to: begins the chain of the thread's lane, or adds the finished chain to
 * the lane's tree. */
static void print_lanes(emitter *e, l_val v, bool begin) {
  for (l_val k = v + 1; k < e->end[v]; k++) {
    if (!emit_is_lane_push(e, v, k) || !acc_tree(at(e, at(e, k)->a))) continue;
    l_val acc = at(e, k)->a;
    char id[80], leaf[24];
    acc_identity(at(e, acc), id);
    snprintf(leaf, sizeof leaf, "a%u", acc);
    if (begin)
      line(e, "a%u[0] = %s;", acc, id);
    else
      emit_acc_leaf(e, acc, leaf, "0", "1");
  }
}

/* Prints the loads that are made ahead, for element u. What they need is computed here, and once more with everything else. */
static void print_loads(emitter *e, l_val from, l_val to) {
  for (l_val k = from; k < to; k++) {
    if (!(e->ahead[k] & AHEAD_WANTED)) continue;
    emit_instr(e, k);
    if (e->ahead[k] & AHEAD_LOAD) line(e, "ahead%u[u] = v%u;", k, k);
  }
}

static void print_ahead_arrays(emitter *e, l_val from, l_val to, int many) {
  for (l_val k = from; k < to; k++)
    if (e->ahead[k] & AHEAD_LOAD) line(e, "%s ahead%u[%d];", emit_type(at(e, k)->dtype), k, many);
}

/* Prints the body of a VEC for `many` elements: their loads, then everything else. `full`: all of them exist, else only the first `left`
 * do. */
static void print_batch(emitter *e, l_val v, int many, bool full) {
  for (int pass = 0; pass < 2; pass++) {
    line(e, "_Pragma(\"unroll\") for (int u = 0; u < %d; u++) { const i64 j = j0 + 64 * u;%s", many,
         full ? "" : " if (64 * u >= left) break;");
    if (pass == 0)
      print_loads(e, v + 1, e->end[v]);
    else
      print_body(e, v + 1, e->end[v], false);
    line(e, "}");
  }
}

/* Prints the body for elements from, from + 64, ... below `end` (texts), with loads ahead where emit_ahead advises that. */
static void print_elements(emitter *e, l_val v, const char *from, const char *end, bool block) {
  int many = emit_ahead(e, v, v, e->ahead);
  if (!many) {
    line(e, "for (i64 j = %s; j < %s; j += 64) {", from, end);
    print_body(e, v + 1, e->end[v], false);
    line(e, "}");
    return;
  }
  if (block) line(e, "_Pragma(\"unroll 1\")");
  line(e, "for (i64 j0 = %s; j0 < %s; j0 += %d) {", from, end, 64 * many);
  print_ahead_arrays(e, v + 1, e->end[v], many);
  line(e, "const int left = %s - j0 < %d ? (int)(%s - j0) : %d;", end, 64 * many, end, 64 * many);
  if (many >= 4) { /* where all exist there are no conditions, so that the compiler interleaves the elements' work */
    line(e, "if (left > %d) {", 64 * (many - 1));
    print_batch(e, v, many, true);
    line(e, "} else {");
  }
  print_batch(e, v, many, false);
  if (many >= 4) line(e, "}");
  line(e, "}");
  memset(e->ahead, 0, e->p->n);
}

/* Prints a VEC of at most 64 elements, each of which one thread runs. */
static void print_short(emitter *e, l_val v) {
  line(e, "if (t < n) {");
  line(e, "const i64 j = t;");
  print_body(e, v + 1, e->end[v], false);
  line(e, "}");
}

static void print_strips(emitter *e, l_val v, bool blocks) {
  l_val end = e->end[v];
  line(e, "for (i64 j0 = 0; j0 < n; j0 += 64) {");
  line(e, "const int m = n - j0 < 64 ? (int)(n - j0) : 64; const b8 in = t < m; const i64 j = j0 + t;");
  if (blocks) {
    line(e, "if (j0 %% %d == 0) {", ORDER_BLOCK);
    print_lanes(e, v, true);
    line(e, "}");
  }
  for (l_val k = v + 1; k < end; k++) emit_acc_counters(e, v, k, true);
  e->active = "in";
  print_body(e, v + 1, end, true);
  e->active = "";
  if (blocks) {
    line(e, "if (j0 %% %d == %d || j0 + 64 >= n) {", ORDER_BLOCK, ORDER_BLOCK - 64);
    print_lanes(e, v, false);
    line(e, "}");
  }
  line(e, "}");
}

/* Prints the counting of a VEC's pushes, after it. */
static void print_counts(emitter *e, l_val v) {
  for (l_val k = v + 1; k < e->end[v]; k++) {
    const l_instr *b = at(e, k);
    if (emit_is_lane_push(e, v, k)) line(e, "v%u_k += n;", b->a);
    if ((b->code == L_PUSH || b->code == L_SCAN) && acc_many(at(e, b->a)) && !emit_is_nested_push(e, b))
      emit_acc_pushed(e, b, NULL, NULL);
  }
}

static void print_vec(emitter *e, l_val v) {
  l_val end = e->end[v];
  bool strips = false, blocks = false, private = emit_is_private(e, v);
  emit_vec_begin(e, v);
  for (l_val k = v + 1; k < end; k++) {
    const l_instr *b = at(e, k);
    strips |= emit_is_ordered(e, b) || emit_is_strip_scan(e, b) || emit_is_nested_push(e, b);
    if (emit_is_lane_push(e, v, k) && acc_tree(at(e, b->a))) {
      blocks = true;
      line(e, "%s a%u[1];", emit_type(at(e, b->a)->dtype), b->a);
    }
    emit_acc_counters(e, v, k, false);
  }
  if (!private) line(e, "SYNC");
  e->vec = v;
  if (strips) {
    print_strips(e, v, blocks);
  } else if (emit_is_short(e, v) && !blocks) {
    print_short(e, v);
  } else if (blocks) {
    line(e, "for (i64 j1 = 0; j1 < n; j1 += %d) {", ORDER_BLOCK);
    line(e, "const i64 j2 = n < j1 + %d ? n : j1 + %d;", ORDER_BLOCK, ORDER_BLOCK);
    print_lanes(e, v, true);
    print_elements(e, v, "j1 + t", "j2", true);
    print_lanes(e, v, false);
    line(e, "}");
  } else {
    print_elements(e, v, "t", "n", false);
  }
  e->vec = 0;
  if (!private) line(e, "SYNC");
  print_counts(e, v);
  line(e, "}");
}

/* ---- rows ------------------------------------------------------------------------------------------------------------ */

/* Does a LOAD outside VECs read a buffer or local that the phase writes? */
static bool is_written(const emitter *e, l_val load) {
  const l_instr *i = at(e, load);
  return i->imm < 0 || emit_is_stored(e, load, i->imm);
}

/* The only VEC of a FOR, in which each thread has one element, if the FOR contains nothing else but indices, values for the VEC and polls;
 * else 0. */
static l_val row_loop(emitter *e, l_val loop) {
  l_val vec = 0;
  for (l_val k = loop + 1; k < e->end[loop]; k++) {
    const l_instr *i = at(e, k);
    if (i->code == L_VEC && !vec) {
      vec = k;
      k = e->end[k];
    } else if (i->code == L_VEC || i->code == L_PUSH || i->code == L_STORE || i->code == L_RMW || i->code == L_CHECK ||
               i->code == L_ACC || i->code == L_FINISH || i->code == L_SYNC || i->code == L_CARRY ||
               i->code == L_PARTIAL || i->code == L_MERGE || i->code == L_TILE || i->code == L_LOCAL ||
               l_opens(i->code) || (i->code == L_LOAD && is_written(e, k))) {
      return 0;
    }
  }
  if (!vec || !emit_is_short(e, vec) || !(emit_is_private(e, vec) || emit_is_parted(e, vec))) return 0;
  for (l_val k = vec + 1; k < e->end[vec];
       /* accumulators of 64 lanes need a loop over blocks, and results of others must be finished before the VEC */
       k++)
    if (emit_is_lane_push(e, vec, k) || at(e, k)->code == L_FINISH) return 0;
  return vec;
}

/* Prints `many` rows of such a loop: their loads, then everything else. `full`: all rows exist, and no chain ends before the last one. */
static void print_rows(emitter *e, l_val loop, l_val vec, int many, const char *step, bool full) {
  const l_instr *i = at(e, vec);
  for (int pass = 0; pass < 2; pass++) {
    line(e, "_Pragma(\"unroll\") for (int u = 0; u < %d; u++) {", many);
    line(e, "const i64 x%u = row%u + u * %s;", loop, loop, step);
    if (full)
      line(e, "{");
    else
      line(e, "if (x%u < v%u) {", loop, at(e, loop)->b);
    if (pass == 0)
      print_loads(e, loop + 1, vec);
    else
      print_body(e, loop + 1, vec, false);
    line(e, "const i64 n = v%u > v%u ? v%u - v%u : 0;", i->b, i->a, i->b, i->a);
    e->vec = vec;
    line(e, "if (t < n) {");
    line(e, "const i64 j = t;");
    if (pass == 0)
      print_loads(e, vec + 1, e->end[vec]);
    else
      print_body(e, vec + 1, e->end[vec], false);
    line(e, "}");
    e->vec = 0;
    if (pass && !full) print_counts(e, vec);
    for (l_val k = vec + 1; pass && full && k < e->end[vec]; k++)
      if (at(e, k)->code == L_PUSH) line(e, "if (u < %d) v%u_k++;", many - 1, at(e, k)->a);
    line(e, "}");
    line(e, "}");
  }
  if (full) print_counts(e, vec);
}

/* Prints such a loop several rows at a time, so that the memory works on their loads together. */
static void print_row_loop(emitter *e, l_val loop, l_val vec, int many) {
  const l_instr *i = at(e, loop);
  char step[24] = "1";
  bool private = emit_is_private(e, vec);
  if (i->c) snprintf(step, sizeof step, "v%u", i->c);
  if (!private) line(e, "SYNC");
  line(e, "for (i64 row%u = v%u; row%u < v%u; row%u += %d * %s) {", loop, i->a, loop, i->b, loop, many, step);
  line(e, "if (POLLED(polls) && __syncthreads_or(STOPPED)) return;");
  print_ahead_arrays(e, loop + 1, e->end[loop], many);
  line(e, "b8 full = row%u + %d * %s < v%u;", loop, many - 1, step, i->b);
  for (l_val k = vec + 1; k < e->end[vec]; k++) {
    const l_instr *push = at(e, k);
    if (push->code == L_PUSH && acc_tree(at(e, push->a)))
      line(e, "full &= v%u_k %% %d <= %d;", push->a, acc_chain(at(e, push->a)), acc_chain(at(e, push->a)) - many);
  }
  line(e, "if (full) {");
  print_rows(e, loop, vec, many, step, true);
  line(e, "} else {");
  print_rows(e, loop, vec, many, step, false);
  line(e, "}");
  line(e, "}");
  if (!private) line(e, "SYNC");
}

/* ---- loops over short rows --------------------------------------------------------------------------------------------- */

enum { FLAT_ROW = 512, FLAT_MOST = 1 << 20 };

/* May a loop's body load, with instruction v, what another turn stores, or what this one has stored before? */
static bool loads_stored(const emitter *e, l_val loop, l_val v) {
  for (l_val k = loop + 1; k < e->end[loop]; k++) {
    const l_instr *s = at(e, k), *i = at(e, v);
    if (s->code == L_STORE && s->imm == i->imm && (k < v || !i->b || s->a != i->a || s->b != i->b || i->c)) return true;
  }
  return false;
}

/* Does an index of a loop's body come from a value? */
static bool from_value(const emitter *e, l_val loop, l_val v) {
  const l_instr *i = at(e, v);
  if (v <= loop || l_rows[i->code].result != 'I') return false;
  if (i->code == L_IVALUE) return true;
  return i->code != L_VAR && (from_value(e, loop, i->a) || (i->b && from_value(e, loop, i->b)));
}

/* By how much an index of a loop's body grows with the loop's variable. False: not known. */
static bool growth(const emitter *e, l_val loop, l_val v, int64_t *by) {
  const l_instr *i = at(e, v);
  int64_t a = 0, b = 0;
  *by = v > loop && i->code == L_VAR;
  if (v <= loop || i->code == L_INT || i->code == L_VAR) return true;
  if (i->code != L_IADD && i->code != L_ISUB && i->code != L_IMUL) return false;
  if (!growth(e, loop, i->a, &a) || !growth(e, loop, i->b, &b)) return false;
  *by = i->code == L_IADD ? a + b : a - b;
  if (i->code != L_IMUL || (!a && !b)) return true;
  const l_instr *times = at(e, a ? i->b : i->a);
  if (times->code != L_INT || (a && b) || times->imm > FLAT_MOST || times->imm < -FLAT_MOST) return false;
  *by = (a + b) * times->imm;
  return true;
}

/* Do two turns of a loop, whose VEC has `row` elements, store to the same place, so that they have an order? */
static bool stores_again(const emitter *e, l_val loop, const l_instr *i, int64_t turns, int64_t step, int64_t row) {
  int64_t by;
  if (!growth(e, loop, i->a, &by)) return false; /* strides that are not known keep rows apart */
  by *= by < 0 ? -step : step;
  if (by == 0) return turns > 1;
  if (i->b && at(e, i->b)->code != L_INT) return false;
  int64_t stride = i->b ? at(e, i->b)->imm : 0;
  if (stride < 0) stride = -stride;
  return by <= stride * (row - 1) && stride <= by * (turns - 1);
}

/* The only VEC of a FOR, if it ends the body, and turns and elements can be made in any order by any thread: the FOR computes, loads and stores, but
 * not where data say. How often both run must be known. Else 0. */
static l_val flat_loop(const emitter *e, l_val loop, int64_t *rows, int64_t *row) {
  const l_instr *l = at(e, loop), *from = at(e, l->a), *to = at(e, l->b);
  l_val vec = 0, end = e->end[loop];
  *rows = *row = 0;
  if (from->code != L_INT || to->code != L_INT || (l->c && at(e, l->c)->code != L_INT)) return 0;
  int64_t step = l->c ? at(e, l->c)->imm : 1;
  if (step < 1 || to->imm <= from->imm || from->imm < 0 || to->imm > FLAT_MOST) return 0;
  *rows = (to->imm - from->imm - 1) / step + 1;
  for (l_val k = loop + 1; k < end; k++) {
    const l_instr *i = at(e, k);
    if (vec && k == e->end[vec]) continue;
    if (vec && k > e->end[vec]) return 0;
    switch ((l_code)i->code) {
    case L_VEC:
      if (vec || at(e, i->a)->code != L_INT || at(e, i->b)->code != L_INT) return 0;
      vec = k;
      *row = at(e, i->b)->imm - at(e, i->a)->imm;
      break;
    case L_LOAD:
      if (loads_stored(e, loop, k)) return 0;
      break;
    case L_STORE:
      if (i->c || (vec && emit_is_ordered(e, i)) || from_value(e, loop, i->a)) return 0;
      break;
    case L_CONST:
    case L_SCALAR:
    case L_IOTA:
    case L_KOP:
    case L_MATH:
    case L_POLL: break;
    default:
      if (l_rows[i->code].result != 'I') return 0;
    }
  }
  for (l_val k = loop + 1; k < end; k++)
    if (at(e, k)->code == L_STORE && stores_again(e, loop, at(e, k), *rows, step, *row)) return 0;
  return vec && *row > 0 && *row <= FLAT_ROW && *rows * *row <= FLAT_MOST ? vec : 0;
}

/* Prints [from, to) of such a loop for one element; stores only note what is to be stored, and where. `once`: if this element is the one that
 * does what its whole turn does. */
static void print_flat_part(emitter *e, l_val from, l_val to, const char *once) {
  char where[EMIT_TEXT], cond[EMIT_TEXT];
  for (l_val k = from; k < to; k++) {
    const l_instr *i = at(e, k);
    if (i->code == L_POLL || i->code == L_VEC) continue;
    if (i->code != L_STORE) {
      emit_instr(e, k);
      continue;
    }
    emit_address(e, i, where);
    emit_guard(e, i, cond);
    line(e, "flat%u_at[u] = %s; flat%u_on[u] = %s%s%s; flat%u[u] = v%u;", k, where, k, once,
         once[0] && cond[0] ? " && " : "",
         cond[0]   ? cond
         : once[0] ? ""
                   : "1",
         k, i->h);
  }
}

/* Prints a loop over rows as one over all their elements, which the threads share: a row may be shorter than the threads are many, and no thread
 * waits for others between rows. Several elements' stores come after all that these load. */
static void print_flat(emitter *e, l_val loop, l_val vec, int64_t rows, int64_t row) {
  const l_instr *l = at(e, loop);
  l_val end = e->end[vec];
  int many = end - loop > 80 ? 1 : end - loop > 40 ? 2 : end - loop > 24 ? 4 : 8;
  char buffer[24], step[24] = "1";
  if (l->c) snprintf(step, sizeof step, "v%u", l->c);
  line(e, "SYNC for (int f0_ = t; f0_ < %d; f0_ += %d) {", (int)(rows * row), 64 * many);
  for (l_val k = loop + 1; k < end; k++)
    if (at(e, k)->code == L_STORE)
      line(e, "%s flat%u[%d]; i64 flat%u_at[%d]; b8 flat%u_on[%d];", emit_type(emit_buffer_type(e, at(e, k)->imm)), k,
           many, k, many, k, many);
  line(e, "_Pragma(\"unroll\") for (int u = 0; u < %d; u++) {", many);
  line(e, "const int f_ = f0_ + 64 * u; if (f_ >= %d) break;", (int)(rows * row));
  line(e, "const i64 x%u = v%u + (i64)(f_ / %d) * %s, j = f_ %% %d;", loop, l->a, (int)row, step, (int)row);
  print_flat_part(e, loop + 1, vec, "j == 0");
  e->vec = vec;
  print_flat_part(e, vec + 1, end, "");
  e->vec = 0;
  line(e, "}");
  line(e, "_Pragma(\"unroll\") for (int u = 0; u < %d; u++) {", many);
  line(e, "if (f0_ + 64 * u >= %d) break;", (int)(rows * row));
  for (l_val k = loop + 1; k < end; k++) {
    if (at(e, k)->code != L_STORE) continue;
    emit_buffer(at(e, k)->imm, buffer);
    line(e, "if (flat%u_on[u]) %s[flat%u_at[u]] = flat%u[u];", k, buffer, k, k);
  }
  line(e, "}");
  line(e, "}");
  line(e, "SYNC");
}

/* ---- blocks ---------------------------------------------------------------------------------------------------------- */

static void print_partial(emitter *e, const l_instr *i) {
  const l_instr *a = at(e, i->a);
  char buffer[24], indices[24];
  emit_buffer(i->imm, buffer);
  emit_buffer(i->imm2, indices);
  if (acc_own(e, i->a)) {
    emit_acc_root(e, i->a, NULL, NULL, true);
    line(e, "if (t < v%u) %s[v%u + t] = v%u[0];", a->a, buffer, i->b, i->a);
    if (acc_arg(a)) line(e, "if (t < v%u) %s[v%u + t] = v%u_i[0];", a->a, indices, i->d, i->a);
    return;
  }
  if (acc_many(a)) {
    emit_acc_root(e, i->a, NULL, NULL, true);
    line(e, "SYNC EACH(r, v%u) %s[v%u + r] = v%u[r];", a->a, buffer, i->b, i->a);
    if (acc_arg(a)) line(e, "EACH(r, v%u) %s[v%u + r] = v%u_i[r];", a->a, indices, i->d, i->a);
  } else {
    emit_acc_result(e, i->a, a->imm != ORDER_INNER);
    if (a->imm == ORDER_INNER)
      line(e, "%s[v%u + t] = v%u[0];", buffer, i->b, i->a);
    else
      line(e, "if (t == 0) %s[v%u] = v%u[0];", buffer, i->b, i->a);
    if (acc_arg(a)) line(e, "if (t == 0) %s[v%u] = v%u_i[0];", indices, i->d, i->a);
  }
  line(e, "SYNC");
}

/* Is this a MERGE in which each thread merges into exactly one cell, its own? */
static bool is_own_merge(emitter *e, const l_instr *i) {
  const l_instr *a = at(e, i->a);
  return i->code == L_MERGE && !acc_arg(a) && acc_tree(a) && (acc_own(e, i->a) || acc_lanes(e, i->a));
}

static void print_merge(emitter *e, const l_instr *i) {
  const l_instr *a = at(e, i->a);
  char buffer[24], indices[24], f[48], leaf[32];
  const char *T = emit_type(a->dtype), *cell = acc_many(a) && !acc_own(e, i->a) ? "r" : "0";
  uint32_t v = i->a;
  emit_buffer(i->imm, buffer);
  emit_buffer(i->imm2, indices);
  if (acc_own(e, v))
    line(e, "if (t < v%u) { const int r = t;", a->a);
  else if (acc_many(a))
    line(e, "EACH(r, v%u) {", a->a);
  else
    line(e, "{ const int r = %s;", a->imm == ORDER_INNER ? "t" : "0");
  line(e, "const %s x = %s[v%u + r];", T, buffer, i->b);
  if (acc_arg(a)) {
    line(e, "const i64 ix = %s[v%u + r]; const b8 q = ARG_BEFORE(%s, x, ix, v%u[%s], v%u_i[%s]);", indices, i->d,
         acc_than(a), v, cell, v, cell);
    line(e, "v%u[%s] = q ? x : v%u[%s]; v%u_i[%s] = q ? ix : v%u_i[%s];", v, cell, v, cell, v, cell, v, cell);
  } else if (!acc_tree(a)) {
    line(e, "v%u[%s] = %s(v%u[%s], x);", v, cell, acc_prim(e, a, f), v, cell);
  } else {
    char stride[24];
    acc_width(e, v, stride);
    snprintf(leaf, sizeof leaf, "(v%u + %s)", v, cell);
    line(e, "v%u[%s] = x; TREE_ADD(%s, %s, v%u_t + %s, %s, v%u_n, %s, 1)", v, cell, T, acc_prim(e, a, f), v, cell,
         stride, v, leaf);
  }
  line(e, "}");
  if (acc_tree(a)) line(e, "v%u_n++;", v);
}

/* Does a FOR consist of nothing but indices, polls and MERGEs into cells of the threads' own (is_own_merge)? Its partial results can be
 * read many at a time. No other MERGE of the program goes to these accumulators, so the loop begins with their leaf 0 (unless a loop
 * around it runs it several times). */
static bool is_merge_loop(emitter *e, l_val loop) {
  bool any = false;
  for (l_val k = loop + 1; k < e->end[loop]; k++) {
    const l_instr *i = at(e, k);
    if (i->code == L_MERGE && !is_own_merge(e, i)) return false;
    for (l_val m = 1; m < e->p->n && i->code == L_MERGE; m++)
      if (m != k && at(e, m)->code == L_MERGE && at(e, m)->a == i->a) return false;
    any |= i->code == L_MERGE;
    if (i->code != L_MERGE && i->code != L_POLL && (i->code < L_INT || i->code > L_IVALUE)) return false;
  }
  return any;
}

/* Prints what a merge loop does with MANY elements row, row + step, ..: pass 0 reads their partial results, pass 1 adds them to the trees one
 * by one. `full`: all of them exist. */
static void print_merges(emitter *e, l_val loop, const char *step, int pass, bool full) {
  const l_instr *i = at(e, loop);
  char f[48];
  line(e, "_Pragma(\"unroll\") for (int u = 0; u < %d; u++) {", MANY);
  line(e, "const i64 x%u = row%u + u * %s;", loop, loop, step);
  if (!full) line(e, "if (x%u >= v%u) break;", loop, i->b);
  for (l_val k = loop + 1; k < e->end[loop]; k++) {
    const l_instr *m = at(e, k), *a = at(e, m->a);
    const char *T = emit_type(a->dtype);
    char buffer[24];
    if (m->code != L_MERGE) {
      if (pass == 0) emit_instr(e, k);
      continue;
    }
    emit_buffer(m->imm, buffer);
    if (pass == 0 &&
        acc_own(e, m->a)) /* threads without a result read one nevertheless, so that no load waits for a condition */
      line(e, "leaf%u[u] = %s[v%u + (t < v%u ? t : 0)];", k, buffer, m->b, a->a);
    else if (pass == 0)
      line(e, "leaf%u[u] = %s[v%u + %s];", k, buffer, m->b, a->imm == ORDER_INNER ? "t" : "0");
    else
      line(e, "v%u[0] = leaf%u[u]; TREE_ADD(%s, %s, v%u_t, 1, v%u_n, v%u, 1) v%u_n++;", m->a, k, T, acc_prim(e, a, f),
           m->a, m->a, m->a, m->a);
  }
  line(e, "}");
}

/* Prints what a block of several times 64 threads does with a merge loop: each 64 read a subtree of MANY leaves, as long as there are that many for
 * all, and the threads of a column put their roots together. */
static void print_shared_merges(emitter *e, l_val loop, const char *step) {
  const l_instr *i = at(e, loop);
  int pieces = e->layout.threads / THREADS, all = MANY * pieces, level = 0;
  char f[48], buffer[24];
  while (1 << level < all) level++;
  line(e, "for (; row%u + %d * %s < v%u; row%u += %d * %s) {", loop, all - 1, step, i->b, loop, all, step);
  for (l_val k = loop + 1; k < e->end[loop]; k++)
    if (at(e, k)->code == L_MERGE) line(e, "%s leaf%u[%d];", emit_type(at(e, at(e, k)->a)->dtype), k, MANY);
  line(e, "_Pragma(\"unroll\") for (int u = 0; u < %d; u++) {", MANY);
  line(e, "const i64 x%u = row%u + (t / %d * %d + u) * %s;", loop, loop, THREADS, MANY, step);
  for (l_val k = loop + 1; k < e->end[loop]; k++) {
    const l_instr *m = at(e, k);
    if (m->code == L_POLL) continue;
    if (m->code != L_MERGE) {
      emit_instr(e, k);
      continue;
    }
    emit_buffer(m->imm, buffer);
    line(e, "leaf%u[u] = %s[v%u + (t %% %d < v%u ? t %% %d : 0)];", k, buffer, m->b, THREADS, at(e, m->a)->a, THREADS);
  }
  line(e, "}");
  for (l_val k = loop + 1; k < e->end[loop]; k++) {
    const l_instr *m = at(e, k), *a = at(e, m->a);
    const char *T = emit_type(a->dtype);
    if (m->code != L_MERGE) continue;
    acc_prim(e, a, f);
    line(e,
         "_Pragma(\"unroll\") for (int h = 1; h < %d; h *= 2) _Pragma(\"unroll\") for (int u = 0; u < %d; u += 2 * h) "
         "leaf%u[u] = %s(leaf%u[u], leaf%u[u + h]);",
         MANY, MANY, k, f, k, k);
    line(e, "{ %s *const s_ = (%s *)roots_; %s z[%d]; SYNC s_[t] = leaf%u[0]; SYNC", T, T, T, pieces, k);
    line(e, "_Pragma(\"unroll\") for (int u = 0; u < %d; u++) z[u] = s_[u * %d + t %% %d];", pieces, THREADS, THREADS);
    line(e,
         "_Pragma(\"unroll\") for (int h = 1; h < %d; h *= 2) _Pragma(\"unroll\") for (int u = 0; u < %d; u += 2 * h) "
         "z[u] = %s(z[u], z[u + h]);",
         pieces, pieces, f);
    line(e, "v%u[0] = z[0]; TREE_ADD(%s, %s, v%u_t + %d, 1, v%u_n >> %d, v%u, 1) v%u_n += %d;", m->a, T, f, m->a, level,
         m->a, level, m->a, m->a, all);
    line(e, "}");
  }
  line(e, "}");
}

static void print_merge_loop(emitter *e, l_val loop) {
  const l_instr *i = at(e, loop);
  char f[48], step[24] = "1";
  if (i->c) snprintf(step, sizeof step, "v%u", i->c);
  line(e, "i64 row%u = v%u;", loop, i->a);
  if (e->layout.threads > THREADS) print_shared_merges(e, loop, step);
  line(e, "for (; row%u < v%u; row%u += %d * %s) {", loop, i->b, loop, MANY, step);
  for (l_val k = loop + 1; k < e->end[loop]; k++)
    if (at(e, k)->code == L_MERGE) line(e, "%s leaf%u[%d];", emit_type(at(e, at(e, k)->a)->dtype), k, MANY);
  line(e, "b8 whole = row%u + %d * %s < v%u;", loop, MANY - 1, step, i->b);
  for (l_val k = loop + 1; k < e->end[loop]; k++)
    if (at(e, k)->code == L_MERGE) line(e, "whole &= v%u_n %% %d == 0;", at(e, k)->a, MANY);
  line(e, "if (whole) { /* a whole subtree of the tree: no leaf by leaf */");
  print_merges(e, loop, step, 0, true);
  for (l_val k = loop + 1; k < e->end[loop]; k++) {
    const l_instr *m = at(e, k), *a = at(e, m->a);
    if (m->code != L_MERGE) continue;
    line(e,
         "_Pragma(\"unroll\") for (int h = 1; h < %d; h *= 2) _Pragma(\"unroll\") for (int u = 0; u < %d; u += 2 * h) "
         "leaf%u[u] = %s(leaf%u[u], leaf%u[u + h]);",
         MANY, MANY, k, acc_prim(e, a, f), k, k);
    line(e, "v%u[0] = leaf%u[0]; TREE_ADD(%s, %s, v%u_t + 4, 1, v%u_n >> 4, v%u, 1) v%u_n += %d;", m->a, k,
         emit_type(a->dtype), acc_prim(e, a, f), m->a, m->a, m->a, m->a, MANY);
  }
  line(e, "} else {");
  print_merges(e, loop, step, 0, false);
  print_merges(e, loop, step, 1, false);
  line(e, "}");
  line(e, "}");
}

static void print_block(emitter *e, l_val from, l_val to) {
  for (l_val v = from; v < to; v++) {
    const l_instr *i = at(e, v);
    switch ((l_code)i->code) {
    case L_LOCAL:
      if (emit_is_shared(e, v))
        line(e, "__shared__ %s v%u[%lld];", emit_type(i->dtype), v, (long long)at(e, i->a)->imm);
      break;
    case L_PARTIAL: print_partial(e, i); break;
    case L_MERGE: print_merge(e, i); break;
    case L_TILE: emit_cuda_tile(e, &e->p->tiles[i->imm]); break;
    case L_STORE:
    case L_RMW:
      line(e, "SYNC if (t == 0) {");
      print_store(e, i);
      line(e, "}");
      line(e, "SYNC");
      break;
    case L_CHECK:
      line(e, "if (t == 0) {");
      emit_cuda_check(e, i);
      line(e, "}");
      break;
    case L_SYNC: line(e, "SYNC"); break;
    case L_POLL: line(e, "if (POLLED(polls) && __syncthreads_or(STOPPED)) return;"); break;
    case L_VEC:
      print_vec(e, v);
      v = e->end[v];
      break;
    case L_FOR: {
      if (is_merge_loop(e, v)) {
        print_merge_loop(e, v);
        v = e->end[v];
        break;
      }
      int64_t rows = 0, row = 0;
      l_val flat = flat_loop(e, v, &rows, &row);
      if (flat) {
        print_flat(e, v, flat, rows, row);
        v = e->end[v];
        break;
      }
      l_val vec = row_loop(e, v);
      int many = vec ? emit_ahead(e, v, vec, e->ahead) : 0;
      if (!many) {
        v = emit_structure(e, v, print_block);
        break;
      }
      print_row_loop(e, v, vec, many);
      memset(e->ahead, 0, e->p->n);
      v = e->end[v];
      break;
    }
    case L_LOAD:
      if (is_written(e, v)) line(e, "SYNC");
      emit_instr(e, v);
      if (is_written(e, v)) line(e, "SYNC"); /* so that no thread writes there before all have read */
      break;
    default: v = emit_structure(e, v, print_block); break;
    }
  }
}

/* ---- phases and units -------------------------------------------------------------------------------------------------- */

static void print_head(emitter *e, const char *name, uint32_t number, bool phase) {
  const l_program *p = e->p;
  l_val par = 1;
  for (uint32_t n = 0; phase && (p->code[par].code != L_PAR || n++ < number);) par++;
  l_layout l = phase ? l_layout_of(&p->code[par]) : (l_layout){1, 1, 1};
  int threads = l.threads * l.groups;
  char blocks[16] = "";
  if (phase)
    snprintf(blocks, sizeof blocks, ", %d",
             !p->code[par].imm2        ? emit_cuda_blocks(e, 12)
             : emit_has_merges(e, par) ? 1024 / threads
                                       : emit_cuda_wide_blocks(e, par));
  uint32_t words = emit_cuda_words(p), ints = EMIT_WORDS_HEAD + p->nbuffers;
  if (number == 0)
    line(e, "typedef struct %s_words { u64 w[%u]; } %s_words;", name, words <= EMIT_WORDS_BY_VALUE ? words : 1, name);
  line(e, "// launch %s_%u threads %d shared 0", name, number, threads);
  line(e,
       "extern \"C\" __global__ void __launch_bounds__(%d%s) %s_%u(const u64 *block, i64 instances, "
       "const __grid_constant__ %s_words words) {",
       threads, blocks, name, number, name);
  line(e, "const u64 *const w_ = block ? block : words.w;");
  line(e,
       "const qk_args args = {(void *const *)(w_ + %d), (const i64 *)(w_ + %u), (const qk_scalar *)(w_ + %u), "
       "(void *)w_[0], (u64 *)w_[1], (const int *)w_[2]};",
       EMIT_WORDS_HEAD, ints, ints + p->nints);
  line(e, "const qk_args *const a = &args; const u64 first_ = w_[3];");
}

static void print_phase(emitter *e, l_val phase) {
  l_val at_par = phase;
  while (at(e, at_par)->code != L_PAR) at_par++;
  bool merges = emit_has_merges(e, at_par);
  if (at(e, at_par)->imm2 && !merges) {
    emit_cuda_wide(e, phase);
    return;
  }
  e->layout = l_layout_of(at(e, at_par));
  line(e, "const int t = threadIdx.x; u64 o = 0; unsigned polls = 0;");
  line(e, "BEGIN");
  line(e, "__shared__ u64 x_[64], y_[64]; __shared__ b8 on_[64];");
  if (e->layout.threads > THREADS) line(e, "__shared__ u64 roots_[%d];", e->layout.threads);
  emit_buffers(e);
  l_val par = emit_prelude(e, phase);
  emit_places(e, par);
  line(e, "for (i64 x%u = blockIdx.x; x%u < instances; x%u += gridDim.x) {", par, par, par);
  print_block(e, par + 1, e->end[par]);
  line(e, "SYNC");
  line(e, "}");
}

static const char preamble[] =
    "#define HELP static __device__ __forceinline__\n"
    "#define CLZ32 __clz\n"
    "HELP float OPAQUE_f32(float x) { asm(\"\" : \"+f\"(x)); return x; }\n"
    "HELP double OPAQUE_f64(double x) { asm(\"\" : \"+d\"(x)); return x; }\n"
    "#define SYNC __syncthreads();\n"
    /* a phase that is interrupted leaves its results unfinished, so later phases must not run */
    "HELP int stopped_(u64 *cell) { if (cell) atomicMin(cell, (u64)0); return 1; }\n"
    /* all threads of a block must agree: one of them may have failed in the next turn already */
    "#define FAILED (__syncthreads_or(*(const volatile u64 *)a->error != ~(u64)0) != 0)\n"
    "#define STOPPED (*(const volatile int *)a->interrupt && stopped_(a->error))\n"
    "#define POLLED(n) (a->interrupt && ++n % 256 == 0)\n"
    /* and neither must phases after a failed check */
    "#define BEGIN if (a->error && __syncthreads_or(*(const volatile u64 *)a->error < first_ << 48)) return;\n"
    "#define SIMD\n"
    "#define EACH(r, n) for (i64 r = threadIdx.x; r < (n); r += 64)\n"
    "#define FILLS(p, n, x) EACH(r_, n) (p)[r_] = x;\n"
    "#ifndef DYNAMIC_SHARED\n#define DYNAMIC_SHARED extern __shared__ __align__(64) char dynamic_[];\n#endif\n"
    "#define PLACE(T, name, count) const u64 name##_at = o; o += SPACE(T, count);\n"
    "#define PLACED(T, name, count) T *const name = (T *)(base + name##_at);\n"
    /* how far behind a number b lies, where that is less than 2^30 in either direction */
    "static __device__ __forceinline__ int limit_(i64 b, i64 a) {\n"
    "  i64 x = (i64)((u64)b - (u64)a);\n"
    "  if (((b ^ a) & (b ^ x)) < 0) x = b < 0 ? -(1 << 30) : 1 << 30;\n"
    "  return x < -(1 << 30) ? -(1 << 30) : x > 1 << 30 ? 1 << 30 : (int)x;\n"
    "}\n"
    /* Division by a number that many are divided by. With its reciprocal y, rounded to nearest, and what that leaves, a quotient is within one unit
     * in its last place; then one step with an exact remainder rounds it to nearest (P. Markstein, Computation of elementary functions on the IBM
     * RISC System/6000 processor, 1990). Numbers so large or small that a step might not be exact are divided. */
    "typedef struct { f32 b, y, rest; b8 fits; } over_f32;\n"
    "static __device__ __forceinline__ over_f32 over_of(f32 b) {\n"
    "  over_f32 d = {b, 1.0f / b, 0.0f, fabsf(b) >= 0x1p-40f && fabsf(b) <= 0x1p40f};\n"
    "  d.rest = __fmaf_rn(-b, d.y, 1.0f) * d.y;\n"
    "  return d;\n"
    "}\n"
    "static __device__ __forceinline__ f32 over(f32 a, over_f32 d) {\n"
    "  if (!(d.fits && fabsf(a) >= 0x1p-60f && fabsf(a) <= 0x1p60f)) return a / d.b;\n"
    "  const f32 q = __fmaf_rn(a, d.y, a * d.rest);\n"
    "  return __fmaf_rn(__fmaf_rn(-q, d.b, a), d.y, q);\n"
    "}\n"
    "static __device__ __noinline__ void failed_(u64 *cell, u64 check, i64 element) {\n"
    "  atomicMin(cell, check << 48 | (u64)element);\n"
    "}\n"
    "#define fail(a, check, element) failed_((a)->error, first_ + (check), element)\n"
    /* FOLD combines lanes 0..31 with 32..63 through shared memory; then both warps compute the rest of the tree by shuffles */
    "#define SHUFFLE(T) HELP T down_##T(T x, int h) { return __shfl_down_sync(~0u, x, h); } \\\n"
    "  HELP T first_##T(T x) { return __shfl_sync(~0u, x, 0); }\n"
    "SHUFFLE(f32) SHUFFLE(f64) SHUFFLE(i64) SHUFFLE(u64) SHUFFLE(i32) SHUFFLE(u32)\n"
    "#define SHUFFLE_AS_i32(T) HELP T down_##T(T x, int h) { return (T)down_i32(x, h); } \\\n"
    "  HELP T first_##T(T x) { return (T)first_i32(x); }\n"
    "SHUFFLE_AS_i32(i16) SHUFFLE_AS_i32(i8) SHUFFLE_AS_i32(u8) SHUFFLE_AS_i32(b8) SHUFFLE_AS_i32(f16) "
    "SHUFFLE_AS_i32(bf16)\n"
    "#define FOLD(T, F, v) { T *const s_ = (T *)x_; SYNC s_[t] = v[0]; SYNC T f_ = F(s_[t & 31], s_[(t & 31) + 32]); "
    "\\\n"
    "  _Pragma(\"unroll\") for (int h_ = 16; h_ > 0; h_ >>= 1) { const T g_ = down_##T(f_, h_); f_ = F(f_, g_); } \\\n"
    "  v[0] = first_##T(f_); }\n"
    "#define ARG_FOLD(OP, T, v, i) { T *const s_ = (T *)x_; i64 *const n_ = (i64 *)y_; SYNC s_[t] = v[0]; n_[t] = "
    "i[0]; SYNC \\\n"
    "  for (int h_ = 32; h_ > 0; h_ >>= 1) { \\\n"
    "    if (t < h_ && ARG_BEFORE(OP, s_[t + h_], n_[t + h_], s_[t], n_[t])) { s_[t] = s_[t + h_]; n_[t] = n_[t + h_]; "
    "} SYNC } \\\n"
    "  v[0] = s_[0]; i[0] = n_[0]; SYNC }\n"
    /* scans: y is the thread's value and becomes its running value; every thread keeps a copy of the scan's state */
    "#define SCAN_FREE(T, F, y, v) { T *const s_ = (T *)x_; SYNC s_[t] = y; SYNC \\\n"
    "  for (int l = 0; l < m; l++) { v##_c = F(v##_c, s_[l]); if (l == t) y = v##_c; } v##_s += m; }\n"
    "#define SCAN_OUTER(T, F, y, v) { T *const s_ = (T *)x_; SYNC s_[t] = y; SYNC for (int l = 0; l < m; l++, v##_s++) "
    "{ \\\n"
    "  v##_c = v##_s % 64 ? F(v##_c, s_[l]) : s_[l]; const T z_ = v##_s >= 64 ? F(v##_g, v##_c) : v##_c; \\\n"
    "  if (v##_s % 64 == 63) v##_g = z_; if (l == t) y = z_; } }\n"
    "#define SCAN_INNER(T, F, y, v) { T *const s_ = (T *)x_; SYNC s_[t] = y; SYNC for (int h_ = 1; h_ < 64; h_ <<= 1) "
    "{ \\\n"
    "  const T z_ = t >= h_ ? F(s_[t - h_], y) : y; SYNC s_[t] = y = z_; SYNC } \\\n"
    "  if (v##_s % 4096 >= 64) y = F(v##_g, y); \\\n"
    "  s_[t] = y; SYNC v##_g = s_[m - 1]; \\\n"
    "  if (v##_s >= 4096) y = F(v##_b, y); \\\n"
    "  const b8 b_ = v##_s >= 4096; v##_s += m; if (v##_s % 4096 == 0) v##_b = b_ ? F(v##_b, v##_g) : v##_g; }\n"
    /* for phases with layouts of their own: the threads of an instance meet; values of neighbours, and of the first thread, among `width` */
    "#ifndef TOGETHER\n"
    "HELP void meet_(int g, int n) { switch (g) { case 0: asm volatile(\"bar.sync 1, %0;\" :: \"r\"(n) : \"memory\"); "
    "break; "
    "case 1: asm volatile(\"bar.sync 2, %0;\" :: \"r\"(n) : \"memory\"); break; case 2: asm volatile(\"bar.sync 3, "
    "%0;\" :: "
    "\"r\"(n) : \"memory\"); break; default: asm volatile(\"bar.sync 4, %0;\" :: \"r\"(n) : \"memory\"); } }\n"
    "#define TOGETHER(T, G) { if (T <= 32) __syncwarp(mask_); else if (G == 1) __syncthreads(); else meet_(g_, T); }\n"
    "#define DOWN(T, x, h, width) wdown_##T(mask_, x, h, width)\n"
    "#define FIRST(T, x, width) wfirst_##T(mask_, x, width)\n"
    "#define AMONG(T, A) HELP T wdown_##T(u32 m, T x, int h, int n) { return (T)__shfl_down_sync(m, (A)x, h, n); } \\\n"
    "  HELP T wfirst_##T(u32 m, T x, int n) { return (T)__shfl_sync(m, (A)x, 0, n); }\n"
    "AMONG(f32, f32) AMONG(f64, f64) AMONG(i64, i64) AMONG(u64, u64) AMONG(i32, i32) AMONG(u32, u32) AMONG(i16, i32) "
    "AMONG(i8, i32) AMONG(u8, i32) AMONG(b8, i32) AMONG(u16, i32) AMONG(f16, i32) AMONG(bf16, i32)\n"
    "#endif\n"
    "#ifndef PUT_16\n"
    "#define PUT_8(p, s) { const u32 *const w_ = (const u32 *)&s; asm volatile(\"st.global.v2.b32 [%0], {%1, %2};\" :: "
    "\"l\"(p), "
    "\"r\"(w_[0]), \"r\"(w_[1])); }\n"
    "#define PUT4_(p, w, space, ...) asm volatile(\"st\" space \".v4.b32 [%0], {%1, %2, %3, %4};\" :: \"l\"(p), "
    "\"r\"((w)[0]), "
    "\"r\"((w)[1]), \"r\"((w)[2]), \"r\"((w)[3]) __VA_ARGS__);\n"
    "#define PUT_16(p, s) { const u32 *const w_ = (const u32 *)&s; PUT4_(p, w_, \".global\") }\n"
    "#define PUT_32(p, s) { const u32 *const w_ = (const u32 *)&s; PUT4_(p, w_, \".global\") PUT4_((char *)(p) + 16, "
    "w_ + 4, "
    "\".global\") }\n"
    "#define PUT_64(p, s) { const u32 *const w_ = (const u32 *)&s; PUT4_(p, w_, \".global\") PUT4_((char *)(p) + 16, "
    "w_ + 4, "
    "\".global\") PUT4_((char *)(p) + 32, w_ + 8, \".global\") PUT4_((char *)(p) + 48, w_ + 12, \".global\") }\n"
    "#define PUT_LOCAL_8(p, s) *(unsigned long long *)(p) = *(const unsigned long long *)&s;\n"
    "#define PUT_LOCAL_16(p, s) { const u32 *const w_ = (const u32 *)&s; PUT4_(p, w_, \"\", : \"memory\") }\n"
    "#define PUT_LOCAL_32(p, s) { const u32 *const w_ = (const u32 *)&s; PUT4_(p, w_, \"\", : \"memory\") PUT4_((char "
    "*)(p) + 16, "
    "w_ + 4, \"\", : \"memory\") }\n"
    "#define PUT_LOCAL_64(p, s) { const u32 *const w_ = (const u32 *)&s; for (int i_ = 0; i_ < 4; i_++) PUT4_((char "
    "*)(p) + 16 * i_, w_ + "
    "4 * i_, \"\", : \"memory\") }\n"
    "#define GLOBAL(p) __builtin_assume(__isGlobal(p));\n"
    "#endif\n"
    "#define WORD(T, n) typedef struct __align__(sizeof(T) * n < 16 ? sizeof(T) * n : 16) T##x##n { T v[n]; } "
    "T##x##n;\n"
    "#define WORDS(T) WORD(T, 1) WORD(T, 2) WORD(T, 4) WORD(T, 8)\n"
    "WORDS(f32) WORDS(f64) WORDS(i64) WORDS(u64) WORDS(i32) WORDS(u32) WORDS(i16) WORDS(u16) WORDS(i8) WORDS(u8) "
    "WORDS(b8) WORDS(f16) WORDS(bf16)\n"
    "#define SCAN_SHIFT(T, y, v) { T *const s_ = (T *)x_; SYNC s_[t] = y; SYNC y = t ? s_[t - 1] : v##_p; v##_p = s_[m "
    "- 1]; }\n";

static const emit_target target = {MATH_TARGET_CUDA, preamble, print_head, print_phase};

void emit_cuda(const l_program *const *programs, const char *const *names, uint32_t n, text_buf *out) {
  emit_unit(&target, programs, names, n, NULL, out);
}

void emit_cuda_begin(const math_uses *uses, text_buf *out) { emit_words(&target, uses, out); }
