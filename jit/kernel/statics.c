/* Which kernels are made with static extents (statics.h).
 *
 * Measured with gcc 12, one thread, code with literals and -O3 against code with parameters and -O2: softmax of 64 x 128 takes 0.78 of the time, of
 * 4096 x 2048 0.87, layer norm of 1024 x 64 0.2, sums of rows of 12 0.5, argmax of rows of 48 0.28, maximum pooling 0.27, concat of rows of
 * 20 and 12 0.57, cumsum of rows of 48 0.88. Nothing: pointwise code of 4096 elements without guards, and products, whose tiles are functions that
 * take their sizes as arguments.
 */
#include "jit/kernel/statics.h"

enum {
  ROW_MOST = 16384,     /* elements of a row that is short: in longer ones what is done once a row does not matter */
  POINTS_FEW = 1024,    /* elements of pointwise work beyond which the ends of its loops do not matter */
  PRODUCT_FEW = 1 << 16 /* multiplications of a product beyond which what is around it does not matter */
};

static bool is_large(const k_kernel *k, qn_dim d) {
  int64_t c;
  return dim_is_const(k->dims, d, &c) && (c > K_LITERAL_MAX || c < -K_LITERAL_MAX);
}

/* Does a form have a quotient or remainder by a large number? */
static bool divides(const k_kernel *k, k_form f) {
  const k_linear *l = &k->forms[f];
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &k->atoms[l->terms[i].atom];
    if ((a->kind == ATOM_DIV || a->kind == ATOM_MOD) && (is_large(k, a->by) || divides(k, a->of))) return true;
  }
  return false;
}

/* The multiplications of a product in the recorded call. */
static int64_t product_points(const k_kernel *k, const k_node *n) {
  return k_points(k, k->nodes[n->a].axes | k->nodes[n->b].axes);
}

bool statics_pay(const k_kernel *k) {
  bool large = false, pays = false;
  k_mask all = 0;
  for (uint32_t a = 0; a < k->naxes; a++) large |= is_large(k, k->axes[a].extent);
  for (k_val v = 1; v < k->n && large; v++) {
    const k_node *n = &k->nodes[v];
    all |= n->axes;
    switch ((k_code)n->code) {
    case K_DOT:
      if (product_points(k, n) > PRODUCT_FEW) return false;
      pays = true;
      break;
    case K_REDUCE:
    case K_SCAN: {
      int64_t row;
      pays |= dim_is_const(k->dims, k->axes[n->axis].extent, &row) && row <= ROW_MOST;
      break;
    }
    case K_LOAD:
    case K_STORE:
    case K_STOREF:
    case K_IOTA:
    case K_CHECK: pays |= k->guards[n->guard].n != 0 || divides(k, n->at); break;
    default: break;
    }
  }
  return large && (pays || k_points(k, all) <= POINTS_FEW);
}
