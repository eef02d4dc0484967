/* jit(f, backend: "cpu" or "gpu"): the call's arrays are moved to the device, and new ones are made there while it runs. The
 * result stays where it was computed. Arrays that f reaches otherwise, as globals and captures, are the program's to move. */
#include <string.h>

#include "jit/trace/trace.h"

typedef struct mover {
  qn_vm *vm;
  int device;
} mover;

static bool elsewhere(void *ctx, const char *path, qn_value v) {
  (void)path;
  return !value_is(v, TAG_ARRAY) || value_array(v)->device == ((mover *)ctx)->device;
}

static qn_value move_leaf(void *ctx, const char *path, qn_value v) {
  const mover *m = ctx;
  (void)path;
  if (!value_is(v, TAG_ARRAY)) return value_retain(v);
  qn_array *there = array_to_device(m->vm, value_array(v), m->device);
  return there ? value_obj(TAG_ARRAY, there) : value_error();
}

int backend_device(qn_value backend) {
  if (!value_is(backend, TAG_STR)) return -1;
  const char *name = value_str(backend)->text;
  return strcmp(name, "cpu") == 0 ? 0 : strcmp(name, "gpu") == 0 ? 1 : -1;
}

bool backend_enter(qn_vm *vm, int device, qn_value *args, int nargs, int *before) {
  mover m = {vm, device};
  *before = vm->device;
  if (!vm_use_device(vm, device)) return false;
  for (int i = 0; i < nargs; i++) {
    if (tree_each(vm, args[i], elsewhere, &m)) continue;
    qn_value moved = error_pending(vm) ? value_error() : tree_rebuild(vm, args[i], move_leaf, &m);
    if (value_is_error(moved)) {
      backend_leave(vm, *before);
      return false;
    }
    value_release(vm, args[i]);
    args[i] = moved;
  }
  return true;
}

void backend_leave(qn_vm *vm, int before) { vm->device = (uint8_t)before; }
