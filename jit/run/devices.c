/* The table of devices (device.h). */
#include <stdlib.h>
#include <string.h>

#include "jit/run/eager.h"
#include "jit/run/device.h"

_Static_assert(FAMILY_cpu == 0, "code 0 is the CPU");
_Static_assert((int)FAMILY_COUNT <= (int)DEVICE_FAMILIES, "VMs and engines have a place for each family");

const device_family *const device_families[FAMILY_COUNT] = {
#define DEVICE(name, shown, doc) [FAMILY_##name] = &device_##name,
#include "jit/run/devices.def"
#undef DEVICE
};

static const bool is_shown[FAMILY_COUNT] = {
#define DEVICE(name, shown, doc) [FAMILY_##name] = shown,
#include "jit/run/devices.def"
#undef DEVICE
};

void *engine_part(qn_engine *engine, void **slot, size_t bytes, void (*init)(void *part, qn_engine *engine)) {
  void *part = __atomic_load_n(slot, __ATOMIC_ACQUIRE), *none = NULL;
  if (part || !(part = calloc(1, bytes))) return part;
  if (init) init(part, engine);
  if (__atomic_compare_exchange_n(slot, &none, part, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return part;
  free(part);
  return none;
}

bool devices_open(qn_vm *vm) {
  for (int i = 0; i < FAMILY_COUNT; i++) {
    const device_family *f = device_families[i];
    if (f->memory.open) vm->hooks.devices[i] = &f->memory;
    if (f->open && !f->open(vm)) return false;
  }
  return true;
}

/* The CPU closes last: the others use it. */
void devices_close(qn_vm *vm) {
  eager_close(vm);
  for (int i = FAMILY_COUNT; i-- > 0;)
    if (device_families[i]->close) device_families[i]->close(vm);
}

void devices_engine_close(qn_engine *engine) {
  for (int i = FAMILY_COUNT; i-- > 0;)
    if (device_families[i]->engine_close) device_families[i]->engine_close(engine);
}

void devices_engine_forked(qn_engine *engine) {
  for (int i = 0; i < FAMILY_COUNT; i++)
    if (device_families[i]->engine_forked) device_families[i]->engine_forked(engine);
}

bool devices_trouble(qn_engine *engine, char *text, size_t size) {
  for (int i = 0; i < FAMILY_COUNT; i++)
    if (device_families[i]->trouble && device_families[i]->trouble(engine, text, size)) return true;
  return false;
}

void devices_report(text_buf *out) {
  for (int i = 0; i < FAMILY_COUNT; i++)
    if (device_families[i]->report) device_families[i]->report(out);
}

static int find(const char *name, size_t n) {
  for (int i = 0; i < FAMILY_COUNT; i++)
    if (strncmp(device_families[i]->name, name, n) == 0 && !device_families[i]->name[n]) return i;
  return -1;
}

int device_family_find(const char *name) { return find(name, strlen(name)); }

int device_parse(const char *text) {
  size_t n = strcspn(text, ":");
  int family = find(text, n), number = 0;
  if (family < 0) return -1;
  if (text[n]) {
    const char *digit = text + n + 1;
    if (!*digit || family == FAMILY_cpu) return -1;
    for (; *digit; digit++) {
      if (*digit < '0' || *digit > '9' || number >= DEVICE_NUMBERS) return -1;
      number = 10 * number + (*digit - '0');
    }
  }
  return number < device_families[family]->devices ? device_code(family, number) : -1;
}

bool device_shown(int family) { return family >= 0 && is_shown[family]; }
