/* Devices: what serves all of them (eager dispatch, plans, the builtins and the command line) sees each family through one row.
 *
 * A family is a row of devices.def and a folder of its own beside this one, which defines `device_NAME`, a device_family. Nobody includes
 * a header of such a folder but its own files; nobody above or beside it knows its name.
 *
 * Code for a device is made beside execution. Until it is there, and wherever a device cannot do something, the caller takes the
 * operands to the CPU, runs there and brings the result back: the bits are the same. A failed check is treated so, too: the CPU
 * finds the same failure and has the words for it. */
#ifndef JIT_RUN_DEVICE_H
#define JIT_RUN_DEVICE_H

#include "jit/kernel/l.h"
#include "lang/vm.h"

enum {
#define DEVICE(name, shown, doc) FAMILY_##name,
#include "jit/run/devices.def"
#undef DEVICE
  FAMILY_COUNT
};

/* A program, with what a device keeps of it for one VM. At first all but program and hash is zero. */
typedef struct device_program {
  const l_program *program;
  uint64_t hash; /* l_hash */
  void *code;    /* the device's; it lives as long as the engine. Another device that runs the program replaces it */
  bool second;   /* of a plan that nobody waits for, since another one makes the calls until this one has its code */
} device_program;

typedef enum device_answer {
  DEVICE_DONE,    /* the work is in the VM's order of work */
  DEVICE_REFUSES, /* a check failed, or the device cannot run this: nothing raised */
  DEVICE_FAILS    /* with the error raised */
} device_answer;

/* A matrix product as a device's library makes it: `batch` products of an m by k and a k by n matrix, m by n results one after
 * the other. All matrices are row-major without gaps. The library's bits are those of its signature: of all that stands here, and
 * of nothing else. */
typedef struct device_gemm {
  uint8_t dtype; /* of all three: f16, bf16, f32, f64 */
  bool x_across; /* x is stored as k by m */
  bool y_across; /* y is stored as n by k */
  int64_t batch, m, n, k;
  int64_t x_step, y_step; /* elements from one matrix to the next; 0: one for all */
} device_gemm;

struct plan;

/* What a device keeps of a plan for one VM: code, constants, and what is known about sizes that have come before. */
typedef struct device_plan {
  const struct plan *plan;
  int device;
  bool compiled;    /* have all its kernels code of their own, so that no interpreter runs them? Set by plan_ready */
  void **constants; /* by plan buffer: the copy on the device; NULL of others */
  struct device_plan *
      *parts; /* the same of the plans of regions, two for each; NULL: not wanted yet. The device leaves it alone */
} device_plan;

/* A call of a plan: the values of what its steps refer to by number. Symbols and slots may change from step to step. */
typedef struct device_call device_call;
struct device_call {
  const int64_t *symbols; /* values of dim expressions */
  void *const *buffers;   /* addresses on the device */
  const qk_scalar *slots; /* host scalars */
  /* What a step that is a product asks for; its operands lie as the signature says, but maybe not at multiples of 16 bytes. An
   * empty result has batch, m or n 0. False: the device cannot make it so. */
  bool (*product)(const device_call *call, uint32_t step, device_gemm *p);
  const void *caller; /* for `product` */
};

/* How programs and plans run on a device. has_gemm, product, sort, compress, recurrence and plan_joins may be NULL: then the device refuses, and the
 * host does it. */
typedef struct device_kernels {
  /* ---- one program at a time ---- */

  /* Can all these programs run there now, by code of their own or an interpreter? Code that nobody has asked for yet is asked of the compiler, for all
   * of them together. `wait`: returns when the compiler is done. */
  bool (*ready)(qn_vm *vm, int device, device_program *const *programs, uint32_t n, bool wait);
  /* Runs one program whose code is ready: `buffers` are addresses on the device, in order, without scratch. A program with checks
   * is waited for: DONE says that none failed. */
  device_answer (*launch)(qn_vm *vm, int device, const device_program *p, void *const *buffers, const int64_t *ints,
                          const qk_scalar *scalars);
  /* Does the device's library make such a product? The answer for a signature stays the same as long as gpu.portable does; the
   * first one may take a while. Where it is no, products are kernels of our own. */
  bool (*has_gemm)(qn_vm *vm, int device, const device_gemm *p);
  /* Makes the product; buffers: x, y and the result, at multiples of 16 bytes. REFUSES: has_gemm is false for it. */
  device_answer (*product)(qn_vm *vm, int device, const device_gemm *p, void *const buffers[3]);

  /* Stores x sorted along an axis, or (`indices`) the i64 indices that sort it, to `out`, a contiguous array on the same device. Stable, nan
   * last. Nobody waits for it. REFUSES: there is no code for it, or not yet. */
  device_answer (*sort)(qn_vm *vm, qn_array *out, const qn_array *x, int axis, bool descending, bool indices);
  /* Stores the cells of x for which `mask` is true, in order; or, where x is NULL, the coordinates of these, i64[n, rank]. x and mask are
   * contiguous. The result goes to `to`, contiguous and with room for all cells, whose size is then set; where `to` is NULL, to a new array,
   * *made. Waits for their number. REFUSES: there is no code for it, or not yet. */
  device_answer (*compress)(qn_vm *vm, const qn_array *x, const qn_array *mask, qn_array *to, qn_array **made);
  /* Stores OP_recurrence of two contiguous arrays to the contiguous array `to`. Nobody waits for it. REFUSES: there is no code for it, or not
   * yet, or the CPU is quicker or has the dtype alone. */
  device_answer (*recurrence)(qn_vm *vm, qn_array *to, const qn_array *by, const qn_array *plus, int axis, bool reverse,
                              bool exclusive);

  /* ---- plans ---- */

  /* Is there code for all kernels of the plan? As `ready`. *there is NULL at first, and the same for one plan, VM and device from
   * then on. */
  bool (*plan_ready)(qn_vm *vm, int device, const struct plan *p, device_plan **there, bool wait);
  /* Begins a call: constants are there and no check has failed. */
  QN_MUST_CHECK bool (*plan_begin)(qn_vm *vm, device_plan *there);
  /* Runs the kernels among the steps first .. first + n - 1, without waiting for their checks. Once a check has failed, kernels
   * behind it do nothing. */
  device_answer (*plan_kernels)(qn_vm *vm, device_plan *there, const device_call *call, uint32_t first, uint32_t n);
  /* May products go along with kernels? Then plan_kernels is given stretches that have both, and what it refuses has not run: the
   * caller gives it the kernels between products instead, and makes these one by one. */
  bool (*plan_joins)(qn_vm *vm, device_plan *there);
  /* Waits for the checks of all kernels of this call so far, if they have any: REFUSES if one failed. With an error pending it does
   * not wait. Every call that has begun ends so. */
  device_answer (*plan_checks)(qn_vm *vm, device_plan *there);
  /* Frees it; NULL is ignored. */
  void (*plan_close)(qn_vm *vm, device_plan *there);
} device_kernels;

/* ---- families ---- */

typedef struct device_family {
  const char *name;               /* that of its row */
  int devices;                    /* its devices have numbers below this; at most DEVICE_NUMBERS */
  device_memory memory;           /* without functions: the host's (the CPU) */
  const device_kernels *kernels;  /* NULL: of the CPU */
  const struct device_host *host; /* of the CPU (host.h); NULL: of others */
  /* A VM opens (devices_open) and closes: vm->devices has what the family keeps of it, NULL before. `open` may be NULL: nothing is made until
   * a device is named. `close` gives back the VM's arrays there, too. */
  bool (*open)(qn_vm *vm);
  void (*close)(qn_vm *vm);
  /* An engine closes, once its VMs have: engine->devices has what they shared. After a fork, in the child, where no other thread is: what is
   * there can be used again. NULL: nothing. */
  void (*engine_close)(qn_engine *engine);
  void (*engine_forked)(qn_engine *engine);
  /* Something that the user should be told once: copies the next unreported sentence and returns true. Any thread. NULL: never. */
  bool (*trouble)(qn_engine *engine, char *text, size_t size);
  /* What was found of it on this machine, a line each (quern doctor). NULL: nothing to say. */
  void (*report)(text_buf *out);
} device_family;

#define DEVICE(name, shown, doc) extern const device_family device_##name;
#include "jit/run/devices.def"
#undef DEVICE
extern const device_family *const device_families[FAMILY_COUNT];

/* What runs kernels on the device with this code, which is not the CPU. */
static inline const device_kernels *device_kernels_of(int code) {
  return device_families[device_family_of(code)]->kernels;
}

/* *slot, a part of the engine that its VMs share: made of zeros and by `init` (may be NULL) where it is NULL yet, whoever comes first; freed
 * with free. NULL: memory is short. */
void *engine_part(qn_engine *engine, void **slot, size_t bytes, void (*init)(void *part, qn_engine *engine));

/* All families: when a VM opens (false with an error raised) and closes, when an engine closes, and in a forked child. */
QN_MUST_CHECK bool devices_open(qn_vm *vm);
void devices_close(qn_vm *vm);
void devices_engine_close(qn_engine *engine);
void devices_engine_forked(qn_engine *engine);
/* The next sentence of any of them that the user should be told once. */
bool devices_trouble(qn_engine *engine, char *text, size_t size);
/* Writes what was found on this machine, a line for each device and library. */
void devices_report(text_buf *out);

/* The family of this name; -1: there is none. */
int device_family_find(const char *name);
/* The code of a device by its name on the command line: "cpu", "gpu" (the first), "gpu:3"; -1: there is none. */
int device_parse(const char *text);
/* Are programs and users told of the family (or of -1: no)? */
bool device_shown(int family);

#endif
