/* Devices as arrays see them.
 *
 * An array's device is one byte, a code: the family of the device (a row of jit/run/devices.def) and its number in that family. Code 0 is
 * the CPU, whose memory is the host's. What arrays need of the others, their memory and copies, are functions that each family fills in;
 * which family is which, nobody knows down here. */
#ifndef LANG_DEVICE_H
#define LANG_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "lang/error.h"
#include "lang/value.h"

enum { DEVICE_FAMILIES = 8 /* at most */, DEVICE_NUMBERS = 16 /* of one family */, DEVICE_NAME = 24 };
static inline int device_code(int family, int number) { return family * DEVICE_NUMBERS + number; }
static inline int device_family_of(int code) { return (int)((unsigned)code / DEVICE_NUMBERS); }
static inline int device_number(int code) { return (int)((unsigned)code % DEVICE_NUMBERS); }

/* Memory of a family's devices. Failures are raised. Work of a VM on a device runs in the order in which it was asked for; only what reads
 * memory of the device to the host waits. */
typedef struct device_memory {
  const char *name; /* the family's, as programs write and print it */
  /* Makes the device usable for this VM; arrays can be there from then on. */
  bool (*open)(qn_vm *vm, int device);
  void *(*alloc)(qn_vm *vm, int device, size_t bytes);
  void (*free)(qn_vm *vm, int device, void *data, size_t bytes);
  /* Copies all elements between two layouts of one shape and dtype on the same device. */
  bool (*copy_elements)(qn_vm *vm, qn_array *to, const qn_array *from);
  /* Copy contiguous arrays to and from memory of the host. On return `to` has the data, and `from` may be overwritten. */
  bool (*read)(qn_vm *vm, const qn_array *from, void *to);
  bool (*write)(qn_vm *vm, qn_array *to, const void *from);
  /* Waits until everything that this VM asked the family's devices for is done. */
  bool (*wait)(qn_vm *vm);
} device_memory;

/* The memory functions of the device with this code, which is not the CPU. NULL if the VM has no devices of that family. */
const device_memory *device_memory_of(const qn_vm *vm, int code);
/* Makes a device usable for the VM; the CPU always is. False, with E210 or another error raised, if that fails. */
QN_MUST_CHECK bool device_open(qn_vm *vm, int code);
/* Waits until everything that the VM asked of devices is done. False with an error raised. */
QN_MUST_CHECK bool devices_wait(qn_vm *vm);
/* Writes the name of a device, "cpu" or "gpu(0)", to `name` and returns that. */
const char *device_name(const qn_vm *vm, int code, char name[DEVICE_NAME]);

#endif
