/* What a nest takes on a machine, at the recorded sizes.
 *
 * Each phase of a nest is priced by itself. A value is computed as often as the loops turn that the jobs which need it lie in: at each element
 * of a VEC if it varies along it, else once before. To that come the beginnings of VECs and instances, and the ends of reductions. Memory is
 * priced by the traffic between it and the caches: an access fetches what it touches once, and again for each turn of a loop that it does not vary
 * along, if what one turn touches is more than the cache holds. A phase takes the longer of both, since processors load ahead, and as many
 * processors share it as there are instances for.
 *
 * Numbers are nanoseconds of a current core with 512-bit vectors, and of an H200. What matters is how they relate. Those of the CPU were fitted to
 * 345 candidates of 126 kernels (`./dev bench model`, one thread) by which of two candidates takes longer: the choice is within 1.15 of the best for
 * 91 % of 148, where it was for 83 %, and ranks of a kernel's candidates correlate by .63 (.43). What changed most are the elements left over at a
 * VEC's end, which cost ten each, and instances, which begin at once. */
#include "jit/kernel/layout.h"
#include "jit/kernel/sched_impl.h"

#include <math.h>
#include <stdlib.h>

/* What a division of 64-bit integers costs in simple operations: there is no vector instruction for it. */
enum { DIVISION_WEIGHT = 50 };

double nest_weight(const k_kernel *k, const k_node *n, cost_target target) {
  double simple = kop_cost(KOP_add, QN_f32, target);
  uint8_t of = k->nodes[n->code == K_OP && n->sub == KOP_select ? n->b : n->a].dtype;
  switch (n->code) {
  case K_CONST:
  case K_SCALAR: return 0;
  case K_MATH: return math_cost(n->sub, of, target) / simple;
  case K_OP:
    if (n->sub == KOP_idiv || n->sub == KOP_imod || n->sub == KOP_ipow)
      return dtype_size((qn_dtype)n->dtype) == 8 ? DIVISION_WEIGHT : 8;
    return (n->sub == KOP_cast ? cast_cost(of, n->dtype, target) : kop_cost(n->sub, of, target)) / simple;
  case K_SCAN: return 100;
  default: return dtype_size((qn_dtype)n->dtype) > 4 ? 2 : 1;
  }
}

typedef struct pricer {
  const nest *s;
  const k_kernel *k;
  const loop_list *l;
  int c;
  double trip[SCHED_LOOPS];
  double vec_cost; /* elements that a VEC costs as much as, with those left over at its end */
  k_mask *inside;  /* by node: the axes of the loops that it is computed in */
  bool *now;       /* by node: does the phase at hand need it? */
} pricer;

static double min_of(double a, double b) { return a < b ? a : b; }
static double max_of(double a, double b) { return a > b ? a : b; }

/* How often each loop turns. */
static void find_trips(pricer *p, const loop_list *l) {
  p->l = l;
  p->c = vec_axis(l);
  for (int i = 0; i < l->n; i++) {
    const sched_loop *x = &l->at[i], *par = loop_of(l, LOOP_PAR, x->axis);
    int64_t all = axis_hint(p->k, x->axis);
    double tiles = par ? (double)tiles_hint(p->k, x->axis, par->size) : 1; /* of what is left, the mean */
    p->trip[i] = x->role == LOOP_PAR ? tiles : (double)all / tiles;
  }
}

static bool is_access(const k_node *n) { return n->code == K_LOAD || n->code == K_STORE || n->code == K_STOREF; }

/* How many elements a VEC of the phase at hand costs as much as. Compilers make vectors of as many elements as the narrowest values fill one with,
 * then one of half as many, and what is left by itself. */
static double vec_cost(const pricer *p) {
  double n = p->c < 0 ? 1 : p->trip[p->l->n - 1], narrowest = 8;
  const price_numbers *by = &p->s->by->price;
  if (by->vector_bytes == 0) return n;
  for (k_val v = 1; v < p->k->n; v++) {
    const k_node *x = &p->k->nodes[v];
    double size = (double)dtype_size((qn_dtype)x->dtype);
    if (p->now[v] && is_access(x) && axis_in(x->axes, p->c) && size < narrowest) narrowest = size;
  }
  double lanes = by->vector_bytes / narrowest, full = floor(n / lanes) * lanes, half = n - full >= lanes / 2;
  return full + half * lanes + (n - full - half * lanes / 2) * by->left_over;
}

/* The product of the turns of PARs, and of other loops over axes of `in`. `from`: only of loops from there on. */
static double turns(const pricer *p, k_mask in, int from, bool vec) {
  double n = 1;
  for (int i = from; i < p->l->n; i++) {
    const sched_loop *x = &p->l->at[i];
    if (x->role == LOOP_VEC ? vec && axis_in(in, x->axis) : x->role == LOOP_PAR || axis_in(in, x->axis))
      n *= x->role == LOOP_VEC ? p->vec_cost : p->trip[i];
  }
  return n;
}

/* How many divisions a form's coordinates need for each element of the VEC. */
static int divisions(const pricer *p, k_form f) {
  const k_linear *l = &p->k->forms[f];
  int n = 0;
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &p->k->atoms[l->terms[i].atom];
    if (a->kind == ATOM_AXIS || a->kind == ATOM_VALUE || !axis_in(a->axes, p->c)) continue;
    n += 1 + divisions(p, a->of);
  }
  return n;
}

/* Simple operations an element for reaching memory: a vector at once with stride 1, else one by one. */
static double reach_cost(const pricer *p, const k_node *n) {
  qn_dim coef = 0;
  double cost = 1;
  if (n->guard) cost += p->s->by->price.guard + (p->k->guards[n->guard].where ? 1 : 0);
  if (!axis_in(n->axes, p->c)) return cost;
  cost += (double)DIVISION_WEIGHT * divisions(p, n->at);
  if (n->code == K_STOREF) return cost + p->s->by->price.scatter;
  if (!k_coef(p->k, n->at, (uint32_t)p->c, &coef)) return cost + p->s->by->price.gather;
  int64_t step = 0;
  if (p->s->s.turn && n->code == K_LOAD) return cost + p->s->by->price.turn;
  if (coef == 0 || (dim_is_const(p->k->dims, coef, &step) && (step == 1 || step == -1))) return cost;
  double apart = fabs((double)dim_hint(p->k->dims, coef)) * (double)dtype_size((qn_dtype)n->dtype);
  double alone = n->code == K_LOAD ? p->s->by->price.gather : p->s->by->price.scatter;
  return cost + alone * min_of(1, apart / p->s->by->price.apart);
}

typedef struct user {
  pricer *p;
  k_mask in;
} user;

static void use(void *ctx, k_val v) {
  user *u = ctx;
  u->p->inside[v] |= u->in;
  u->p->now[v] = true;
}

/* Bytes of a load or store that loops from `from` on touch. */
static double touched(const pricer *p, const k_node *n, int from) {
  double elements = 1;
  k_mask axes = p->k->forms[n->at].axes;
  for (int i = from; i < p->l->n; i++)
    if (axis_in(axes, p->l->at[i].axis)) elements *= p->trip[i];
  return elements * (double)dtype_size((qn_dtype)n->dtype);
}

static bool counts(const pricer *p, k_val v, int but) {
  return p->now[v] && is_access(&p->k->nodes[v]) && !axis_in(p->k->nodes[v].axes, but);
}

/* How many times the bytes of an access a cache fetches, since it fetches lines: where neighbours are touched by a loop so far outside that the line
 * is gone by then, a line for each element. */
static double lines(const pricer *p, const k_node *n, double cache) {
  enum { LINE = 64 };
  double size = (double)dtype_size((qn_dtype)n->dtype), all = touched(p, n, 0) / size;
  qn_dim coef = 0;
  for (int i = p->l->n; i-- > 0;) {
    int a = p->l->at[i].axis;
    if (!k_coef(p->k, n->at, (uint32_t)a, &coef) || coef != 1) continue;
    bool vec = p->l->at[i].role == LOOP_VEC, held = touched(p, n, i + 1) / size * LINE <= cache;
    return vec || held || p->s->s.turn ? 1 : LINE / size;
  }
  return all <= 1 || !axis_in(n->axes, p->c) ? 1 : 2;
}

/* Nanoseconds for moving data between memory and a cache of a processor. `but`: not for what varies along this axis (-1: none). */
static double traffic(const pricer *p, double cache, double byte_ns, int but) {
  double in_turn[SCHED_LOOPS + 1], bytes = 0;
  for (int i = 0; i <= p->l->n; i++) {
    in_turn[i] = 0;
    for (k_val v = 1; v < p->k->n; v++)
      if (counts(p, v, but)) in_turn[i] += touched(p, &p->k->nodes[v], i);
  }
  for (k_val v = 1; v < p->k->n; v++) {
    const k_node *n = &p->k->nodes[v];
    if (!counts(p, v, but)) continue;
    double mine = touched(p, n, 0);
    k_mask axes = p->k->forms[n->at].axes;
    for (k_val u = 1; u < v; u++) /* another access to the same elements */
      if (counts(p, u, but) && p->k->nodes[u].buffer == n->buffer && p->k->forms[p->k->nodes[u].at].axes == axes)
        mine = 0;
    for (int i = 0; i < p->l->n && mine > 0; i++)
      if (!axis_in(axes, p->l->at[i].axis) &&
          (p->l->at[i].role == LOOP_PAR || axis_in(p->inside[v], p->l->at[i].axis)) && in_turn[i + 1] > cache)
        mine *= p->trip[i];
    bytes += mine * lines(p, n, cache);
  }
  return bytes * byte_ns;
}

/* Finds out what a phase needs that makes `ends`, and the loops that each value is computed in. Returns the product of its TILE, or 0. */
static k_val find_inside(pricer *p, const bool *ends, int cut) {
  const k_kernel *k = p->k;
  k_val dot = 0;
  for (k_val v = 0; v < k->n; v++) {
    p->inside[v] = 0;
    p->now[v] = ends[v];
  }
  for (k_val v = k->n; v-- > 1;) {
    const k_node *n = &k->nodes[v];
    if (!p->now[v] || (k_reduces(n, cut) && !ends[v])) continue;
    if (n->code == K_DOT && loop_of(p->l, LOOP_TILE, n->axis)) dot = v;
    if (ends[v] || k_folds(n)) p->inside[v] = job_axes(k, v);
    k_each_operand(k, v, use, &(user){p, p->inside[v]});
  }
  return dot;
}

/* How many of the processors that a GPU's prices count an instance fills: those of 64 threads, twice as many where a thread has 16 elements of a row in
 * registers and so as many loads under way (layout.h). */
static double filled(const pricer *p) {
  int64_t row;
  if (!p->s->by->layouts || !p->k->statics || p->c < 0 || !dim_is_const(p->k->dims, p->k->axes[p->c].extent, &row))
    return 1;
  return layout_in_registers(row) ? 2 * (double)row / ORDER_BLOCK : 1;
}

/* The price of a phase with loops l that makes `ends` (by node), and has `extra` nanoseconds of work besides. */
static double phase_price(pricer *p, const loop_list *l, const bool *ends, double extra) {
  const k_kernel *k = p->k;
  const price_numbers *by = &p->s->by->price;
  int cut = nest_cut(p->s);
  find_trips(p, l);
  k_val dot = find_inside(p, ends, cut);
  double work = extra, vectors = 0, steps = 0, passes = 0;
  p->vec_cost = vec_cost(p);
  for (k_val v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    if (!p->now[v] || (k_reduces(n, cut) && !ends[v])) continue;
    if (dot && n->code == K_LOAD && axis_in(n->axes, k->nodes[dot].axis)) continue;
    k_mask in = p->inside[v];
    bool along = axis_in(k_folds(n) ? in : n->axes, p->c) && axis_in(in, p->c);
    double times = turns(p, in, 0, along),
           weight = is_access(n) ? reach_cost(p, n) * (dtype_size((qn_dtype)n->dtype) > 4 ? 2 : 1)
                                 : nest_weight(k, n, by->costs);
    if (v == dot) {
      work += times * by->fma_ns;
      continue;
    }
    if (k_folds(n)) {
      bool many = n->axis != p->c && along;
      /* along a VEC a running value takes steps, and what has an order of its own there, or gives an index, goes one by one */
      bool chain =
          !many && n->axis == p->c && (nest_order(n) == ORDER_OUTER || kop_is_arg(n->sub)) && n->code == K_REDUCE;
      if (chain && p->l->n) steps = max_of(steps, p->trip[p->l->n - 1]);
      weight = n->code == K_SCAN ? (many ? by->running : by->scan) : many ? by->many : chain ? by->chain : 1;
      if (dtype_size((qn_dtype)n->dtype) > 4) weight *= 2;
      if (!many && n->code != K_SCAN) work += turns(p, in & ~axis_bit(n->axis), 0, false) * by->finish_ns;
    }
    /* what is computed by itself waits for what is before it, and a slow function does not take as many times longer */
    work += times * by->op_ns *
            (along        ? weight
             : weight < 1 ? weight * by->scalar
                          : by->scalar + by->scalar_more * (weight - 1));
    if (ends[v] || k_folds(n)) vectors = max_of(vectors, turns(p, in, 0, false));
    if (k_reduces(n, p->c)) passes += turns(p, in, 0, false);
  }
  double instances = turns(p, 0, 0, false);
  int pars = 0;
  while (pars < l->n && l->at[pars].role == LOOP_PAR) pars++;
  work +=
      vectors * by->vec_ns + passes * by->pass_ns + instances * (by->par_ns + (pars > 1 ? pars - 1 : 0) * by->place_ns);
  double memory = traffic(p, by->cache, by->byte_ns, -1);
  double near = traffic(p, by->near, by->near_ns, dot ? k->nodes[dot].axis : -1);
  bool pool = (double)k_points(k, p->s->axes) >= by->pool_points;
  double wide = filled(p);
  instances *= wide;
  double several = pool ? max_of(1, min_of(instances, p->s->processors)) : 1;
  double waves = several > 1 ? (double)(int64_t)((instances + several - 1) / several) * several / instances : 1;
  double all = max_of(max_of(work, near) * waves / several, steps * by->step_ns),
         moved = memory / max_of(1, min_of(several, by->saturated));
  return by->phase_ns + (pool ? by->pool_ns : 0) + max_of(all, moved) + 0.3 * min_of(all, moved);
}

double nest_price(const nest *s) {
  const k_kernel *k = s->k;
  const loop_list *l = &s->s.main;
  pricer p = {.s = s, .k = k, .inside = calloc(k->n, sizeof *p.inside), .now = calloc(k->n, 1)};
  bool *ends = calloc(k->n, sizeof *ends);
  int cut = nest_cut(s);
  double price = 0, partial = 0;
  if (!p.inside || !p.now || !ends) {
    free(p.inside);
    free(p.now);
    free(ends);
    return 0; /* whoever asks will be short of memory, too */
  }
  for (k_val v = 1; v < k->n; v++)
    ends[v] = s->needed[v] &&
              (k_is_effect(&k->nodes[v]) ? cut < 0 || axis_in(k->nodes[v].axes, cut) : k_reduces(&k->nodes[v], cut));
  price = phase_price(&p, l, ends, 0);
  if (cut >= 0) {
    double pieces = (double)tiles_hint(k, cut, loop_of(l, LOOP_PAR, cut)->size);
    for (k_val v = 1; v < k->n; v++) {
      const k_node *n = &k->nodes[v];
      ends[v] = s->needed[v] && k_is_effect(n) && !axis_in(n->axes, cut);
      if (!s->needed[v] || !k_reduces(n, cut)) continue;
      partial += pieces * (double)k_points(k, n->axes) * 4 * s->by->price.op_ns *
                 (axis_in(n->axes, vec_axis(l)) ? 1 : s->by->price.scalar);
    }
    price += phase_price(&p, &s->s.after, ends, partial);
  }
  if (s->alone) price += (double)s->by->grown * 15; /* so that it is fused with nothing that keeps it from being cut */
  free(p.inside);
  free(p.now);
  free(ends);
  return price;
}
