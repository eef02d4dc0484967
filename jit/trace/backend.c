/* jit(f, backend: ...): who runs the calls of f.
 *
 * The name of a family of devices: the arrays among the call's arguments are moved to the family's first device, and arrays that the call
 * makes are made there. The result stays where it was computed. Arrays that f reaches in other ways, as globals and captures, are not
 * moved.
 *
 * A function: it is called with the graph of a call (graph(f, args...)) and returns the function that is called instead of f, now and in
 * all later calls that the graph fits. A graph that depends on more than the arguments (it reads global arrays, or numbers steered the
 * recording) serves one call only. The VM keeps what backends have made together with the function and the backend, which are recognised by
 * identity; when it keeps too many, the oldest is dropped.
 */
#include <string.h>

#include "jit/run/device.h"
#include "jit/trace/anchors.h"
#include "jit/trace/body.h"
#include "jit/trace/calls.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/specialization.h"
#include "jit/trace/transform.h"

typedef struct mover {
  qn_vm *vm;
  int device;
} mover;

static bool elsewhere(void *ctx, qn_value v) {
  return !value_is(v, TAG_ARRAY) || value_array(v)->device == ((mover *)ctx)->device;
}

static qn_value move_leaf(void *ctx, qn_value v) {
  const mover *m = ctx;
  if (!value_is(v, TAG_ARRAY)) return value_retain(v);
  qn_array *there = array_to_device(m->vm, value_array(v), m->device);
  return there ? value_obj(TAG_ARRAY, there) : value_error();
}

int backend_device(qn_value backend) {
  if (!value_is(backend, TAG_STR)) return -1;
  int family = device_family_find(value_str(backend)->text);
  return family < 0 ? -1 : device_code(family, 0);
}

bool backend_enter(qn_vm *vm, int device, qn_value *args, int nargs, int *before) {
  mover m = {vm, device};
  *before = vm->device;
  if (!vm_use_device(vm, device)) return false;
  for (int i = 0; i < nargs; i++) {
    if (tree_each_part(vm, args[i], elsewhere, &m)) continue;
    qn_value moved = error_pending(vm) ? value_error() : tree_rebuild_parts(vm, args[i], move_leaf, &m);
    if (value_is_error(moved)) {
      vm->device = (uint8_t)*before;
      return false;
    }
    value_release(vm, args[i]);
    args[i] = moved;
  }
  return true;
}

/* ---- a function as the backend --------------------------------------------------------------------------------------------- */

enum { MADE_MOST = 64 };

/* A function that a backend made from a graph of `fn`. The values are owned. */
typedef struct made {
  struct made *next;
  qn_value fn, graph, run;
  /* vm_jit.epoch when it was made: while it is the same, no global function that the graph calls has been rebound */
  uint64_t epoch;
} made;

static void made_free(qn_vm *vm, made *m) {
  value_release(vm, m->fn);
  value_release(vm, m->graph);
  value_release(vm, m->run);
  mem_free(vm, m, sizeof *m);
}

void backends_close(qn_vm *vm) {
  for (made *m = jit_of(vm)->made, *next; m; m = next) {
    next = m->next;
    made_free(vm, m);
  }
  jit_of(vm)->made = NULL;
}

/* Does a graph that was just made from a call of `fn` hold for all calls that it fits? */
static bool lasts(qn_vm *vm, qn_value graph) {
  const graph_body *b = body_of(graph);
  const specialization *e = vm->asked.served;
  if (b->rest || b->call.nguards || !e) return false;
  for (uint32_t i = 0; i < e->pattern.nroots; i++)
    if (e->pattern.roots[i].kind == ROOT_GLOBAL && !e->pattern.roots[i].by_value) return false;
  return true;
}

/* Remembers what a backend made of a graph; takes references of its own. If memory is short, it is simply made again next time. */
static void keep(qn_vm *vm, qn_value fn, qn_value graph, qn_value run) {
  made *m = mem_alloc(vm, sizeof *m);
  if (!m) {
    error_clear(vm);
    return;
  }
  *m = (made){jit_of(vm)->made, value_retain(fn), value_retain(graph), value_retain(run), jit_of(vm)->epoch};
  jit_of(vm)->made = m;
  int n = 1;
  while (m->next && n < MADE_MOST) m = m->next, n++;
  if (!m->next) return;
  made_free(vm, m->next); /* it is the last one of the list */
  m->next = NULL;
}

/* The function that makes a call: one that was made before, or one that the backend makes now. Owned, or the error value; unset if the call
 * has no graph. */
static qn_value function_for(qn_vm *vm, qn_value fn, qn_value backend, const qn_value *args, int nargs) {
  for (const made *m = jit_of(vm)->made; m; m = m->next) {
    if (m->fn.u.p != fn.u.p || m->epoch != jit_of(vm)->epoch) continue;
    int fit = call_fits(vm, &body_of(m->graph)->call, args, nargs);
    if (fit < 0) return value_error();
    if (fit) return value_retain(m->run);
  }
  qn_value graph = jit_graph(vm, value_fn(fn)->captures[0], args, nargs);
  if (value_is_error(graph)) {
    if (!vm->error || vm->error->id != E_no_graph) return graph;
    return value_unset();
  }
  bool last = lasts(vm, graph);
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &graph);
  qn_value run = vm->hooks.call(vm, backend, &graph, 1, value_nil());
  vm_disown(vm, &held);
  if (!value_is_error(run) && !value_is(run, TAG_FN)) {
    raise_error(vm, E_type, SPAN_NONE, "jit: the backend gives the function to call in the graph's place, not %s",
                value_kind_name(run));
    run = value_fail(vm, run);
  }
  if (!value_is_error(run) && last) keep(vm, fn, graph, run);
  value_release(vm, graph);
  return run;
}

qn_value backend_call(qn_vm *vm, qn_value fn, qn_value backend, bool fullgraph, const qn_value *args, int nargs,
                      qn_value kwargs) {
  qn_value inner = value_fn(fn)->captures[0];
  if (!value_is(kwargs, TAG_NIL))
    return raise_error(vm, E_argument, SPAN_NONE,
                       "jit: a graph has no keywords; give all arguments by position where a function is the backend");
  qn_value run = function_for(vm, fn, backend, args, nargs);
  if (value_is_error(run)) return run;
  if (run.head == TAG_UNSET) {
    if (fullgraph) return value_error();
    error_clear(vm);
    return vm->hooks.call(vm, inner, args, nargs, kwargs);
  }
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &run);
  qn_value result = vm->hooks.call(vm, run, args, nargs, value_nil());
  vm_disown(vm, &held);
  value_release(vm, run);
  return result;
}
