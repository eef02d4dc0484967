/* Devices by their codes (device.h). */
#include "lang/device.h"

#include <stdio.h>

#include "lang/vm.h"

const device_memory *device_memory_of(const qn_vm *vm, int code) {
  int family = device_family_of(code);
  return family < DEVICE_FAMILIES ? vm->hooks.devices[family] : NULL;
}

bool device_open(qn_vm *vm, int code) {
  if (!code) return true;
  const device_memory *d = device_memory_of(vm, code);
  if (d) return d->open(vm, code);
  return raise_false(vm, E_device, "this device is not there");
}

bool devices_wait(qn_vm *vm) {
  for (int i = 0; i < DEVICE_FAMILIES; i++)
    if (vm->hooks.devices[i] && vm->devices[i] && !vm->hooks.devices[i]->wait(vm)) return false;
  return true;
}

const char *device_name(const qn_vm *vm, int code, char name[DEVICE_NAME]) {
  const device_memory *d = code ? device_memory_of(vm, code) : NULL;
  if (!code)
    snprintf(name, DEVICE_NAME, "cpu");
  else
    snprintf(name, DEVICE_NAME, "%s(%d)", d ? d->name : "device", device_number(code));
  return name;
}
