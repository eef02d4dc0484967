/* The text form of L programs, which `--log kernels` shows. tests/unit/l_read.c reads it back, and tests take programs from it.
 *
 *   program softmax ints=2 scalars=0 {
 *     schedule par a; vec b
 *     buffer b0 f32 in
 *     buffer b1 f32 out
 *     check c0 E303 site=12 node=7 detail=0
 *     %1 = param 0
 *     phase
 *     %3 = par %1 grain=1 {
 *       %4 = var %3
 *       %5 = f32 acc.max free
 *       %6 = vec %7 %2 {
 *         %8 = f32 load b0 base=%4 stride=%9
 *         push %5 %8
 *       }
 *     }
 *   }
 *
 * One instruction a line, driven by the rows of lcodes.def: result, dtype when it has one, spelling with .sub and .flags,
 * imm, operands. A block's rows and columns, and how it is spread, stand in brackets behind its dtype. Instructions are numbered in order, so "%8 =" is redundant and checked; lines without a result count too.
 * `type2`, and the dtype of instructions without a typed result, follow from the operands and are not written. Constants are
 * written as bits, with the value in parentheses, which is a comment. */
#include "jit/kernel/l.h"

#include <string.h>

const char *const l_order_names[ORDER_NAMES] = {"inner", "outer", "dot", "tree", "free"};
const char *const l_buffer_mode_names[BUFFER_MODE_NAMES] = {"in", "out", "inout", "scratch"};
_Static_assert(ORDER_FREE + 1 == ORDER_NAMES && BUF_SCRATCH + 1 == BUFFER_MODE_NAMES,
               "every order and mode has a name");

const l_flag l_flags[L_FLAGS] = {{L_SHARED, "shared"}, {L_EXCLUSIVE, "exclusive"}, {L_DOWN, "down"}, {L_MMA, "mma"}};

void l_print_constant(text_buf *out, qn_dtype dtype, uint64_t bits) {
  text_addf(out, "0x%llx (", (unsigned long long)bits);
  qn_value v = dtype_load(dtype, &bits);
  if (dtype_is_float(dtype))
    text_float(out, v.u.f, dtype_compute(dtype));
  else if (dtype_is_signed(dtype))
    text_int(out, v.u.i);
  else
    text_addf(out, "%llu", (unsigned long long)bits);
  text_adds(out, ")");
}

void l_print_check(text_buf *out, uint32_t number, const l_check *c) {
  text_addf(out, "  check c%u E%d site=%u node=%u detail=%lld\n", number, c->id, c->site, c->node,
            (long long)c->detail);
}

static void print_buffer(text_buf *out, const char *label, int64_t b) {
  if (b >= 0)
    text_addf(out, " %sb%lld", label, (long long)b);
  else
    text_addf(out, " %s%%%lld", label, (long long)-b);
}

static void print_tile(text_buf *out, const l_tile *t) {
  print_buffer(out, "x=", t->x);
  text_addf(out, " xbase=%%%u xm=%%%u xk=%%%u", t->x_base, t->x_m, t->x_k);
  print_buffer(out, "y=", t->y);
  text_addf(out, " ybase=%%%u yk=%%%u yn=%%%u rows=%%%u cols=%%%u depth=%%%u tilerows=%d tilecols=%d", t->y_base,
            t->y_k, t->y_n, t->rows, t->cols, t->depth, t->tile_rows, t->tile_cols);
  if (t->out) {
    text_addf(out, " out=%%%u", t->out);
  } else {
    print_buffer(out, "to=", t->to);
    text_addf(out, " tobase=%%%u tom=%%%u", t->to_base, t->to_m);
  }
  if (t->ndigits) text_addf(out, " first=%%%u deep=%%%u", t->n_first, t->k_first);
  for (uint32_t i = 0; i < t->ndigits; i++) {
    const l_digit *d = &t->digits[i];
    text_addf(out, " %s=%%%u", d->deep ? "kdigit" : "ndigit", d->by);
    if (d->most) text_addf(out, " most=%%%u", d->most);
    text_addf(out, " step=%%%u", d->step);
  }
}

static void print_block(text_buf *out, const l_block *b) {
  text_addf(out, "[%ux%u", b->rows, b->cols);
  if (b->fragments)
    text_adds(out, " mma");
  else if (b->down > 1)
    text_addf(out, " t%ux%u.%u", b->down, b->across, b->each);
  else if (b->across > 1)
    text_addf(out, " t%u.%u", b->across, b->each);
  text_adds(out, "]");
}

static void print_instr(const l_program *p, l_val k, text_buf *out) {
  const l_instr *i = &p->code[k];
  const l_row *row = &l_rows[i->code];
  if (row->result != '-') text_addf(out, "%%%u = ", k);
  if (l_is_typed(i->code)) text_adds(out, dtype_rows[i->dtype].name);
  if (i->block) print_block(out, l_block_of(p, k));
  if (l_is_typed(i->code)) text_adds(out, " ");
  const char *name = i->code == L_KOP ? kop_rows[i->sub].name : i->code == L_MATH ? math_rows[i->sub].name : row->text;
  text_adds(out, name);
  if (l_has_sub(i->code)) text_addf(out, ".%s", kop_rows[i->sub].name);
  for (int f = 0; f < L_FLAGS; f++)
    if (i->flags & l_flags[f].bit) text_addf(out, ".%s", l_flags[f].name);
  switch (row->imm) {
  case 'n':
  case 'p':
  case 's': text_addf(out, " %lld", (long long)i->imm); break;
  case 'b': print_buffer(out, "", i->imm); break;
  case 'o': text_addf(out, " %s", l_order_names[i->imm]); break;
  case 'k': text_addf(out, " c%lld", (long long)i->imm); break;
  case 'c':
    text_adds(out, " ");
    l_print_constant(out, (qn_dtype)i->dtype, (uint64_t)i->imm);
    break;
  case 't': print_tile(out, &p->tiles[i->imm]); break;
  default: break;
  }
  for (const l_operand *o = row->operands; o->role; o++) {
    l_val v = l_operand_of(i, o);
    if (v) text_addf(out, " %s%s%%%u", o->name, *o->name ? "=" : "", v);
  }
  if (row->imm == 'g') text_addf(out, " grain=%lld", (long long)i->imm);
  if (i->code == L_PAR && i->imm2) {
    l_layout l = l_layout_of(i);
    text_addf(out, " threads=%d lanes=%d groups=%d", l.threads, l.lanes, l.groups);
  }
  if ((i->code == L_PARTIAL || i->code == L_MERGE) && i->d) print_buffer(out, "indices=", i->imm2);
  if (l_opens(i->code)) text_adds(out, " {");
}

void l_print(const l_program *p, text_buf *out) {
  text_addf(out, "program %s ints=%u scalars=%u {\n", p->name, p->nints, p->nscalars);
  if (p->schedule) text_addf(out, "  schedule %s\n", p->schedule);
  for (uint32_t k = 0; k < p->nbuffers; k++) {
    const l_buffer *b = &p->buffers[k];
    text_addf(out, "  buffer b%u %s %s", k, dtype_rows[b->dtype].name, l_buffer_mode_names[b->mode]);
    if (b->mode == BUF_SCRATCH) text_addf(out, " size=%%%u", b->size);
    text_adds(out, "\n");
  }
  for (uint32_t k = 0; k < p->nchecks; k++) l_print_check(out, k, &p->checks[k]);
  int depth = 1;
  for (l_val k = 1; k < p->n; k++) {
    uint8_t code = p->code[k].code;
    if ((code == L_END || code == L_ELSE) && depth > 1) depth--;
    text_repeat(out, "  ", depth);
    if (code == L_END)
      text_adds(out, "}");
    else if (code == L_ELSE)
      text_adds(out, "} else {");
    else
      print_instr(p, k, out);
    if (l_opens(code) || code == L_ELSE) depth++;
    text_adds(out, "\n");
  }
  text_adds(out, "}\n");
}
