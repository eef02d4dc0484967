/* The engine and the VM, and how higher floors hang their state on them. Nothing in Quern is global: what is not in one of
 * these two structs (or an object they own) does not exist between calls. */
#ifndef LANG_VM_H
#define LANG_VM_H

#include <pthread.h>
#include <stdatomic.h>

#include "lang/array.h"
#include "lang/builtin.h"
#include "lang/device.h"
#include "lang/error.h"
#include "lang/mem.h"

enum tunable_id {
#define TUNABLE(symbol, name, def, min, max, meaning) TUNE_##symbol,
#include "lang/tunables.def"
#undef TUNABLE
  TUNABLE_COUNT
};
typedef struct tunable_row {
  const char *name;
  int64_t def, min, max;
  const char *meaning;
} tunable_row;
extern const tunable_row tunable_rows[TUNABLE_COUNT];

/* What log lines belong to; QUERN_LOG and --log name them. Each is a bit, LOG_breaks and so on. */
#define LOG_CHANNELS(X) X(breaks) X(recompiles) X(guards) X(fusion) X(kernels) X(code) X(copies) X(graph) X(cache)
enum {
#define X(name) LOG_INDEX_##name,
  LOG_CHANNELS(X)
#undef X
};
typedef enum log_channel {
#define X(name) LOG_##name = 1 << LOG_INDEX_##name,
  LOG_CHANNELS(X)
#undef X
} log_channel;

struct qn_engine {
  atomic_int refs;                   /* open VMs, and the host that made it */
  struct pool *pool;                 /* array buffers (mem.c) */
  void *devices[DEVICE_FAMILIES];    /* for each family of devices, what VMs share (jit/run/device.h) */
  void *jit;                         /* jit/trace's: workers and their queue */
  struct trace_events *trace_events; /* spans of time for --trace (trace_events.h); NULL: none are collected */
  void (*jit_close)(qn_engine *engine);
  void (*jit_forked)(qn_engine *engine); /* makes the jit usable in a forked child; does nothing the second time */
};

/* Calls from below into floors above, filled in when the VM opens. */
typedef struct vm_hooks {
  /* Runs pending work until `a` has storage (jit/trace). */
  bool (*force)(qn_vm *vm, qn_array *a);
  /* Are two functions the same? For value_equal while a call is recorded: 1, 0, or -1 with an error raised (jit/trace). */
  int (*same_fn)(qn_vm *vm, qn_value a, qn_value b);
  /* Calls any function value (interp): borrowed arguments, owned result. */
  qn_value (*call)(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs /* record or nil */);
  /* Name of a function that is no builtin, for printing (interp); NULL: it has none. */
  const char *(*fn_name)(qn_value fn);
  /* The parameters of a function that can be given by name; `position` is where they can be given without it (INT32_MAX: nowhere)
   * (interp). */
  void (*parameters)(qn_vm *vm, qn_value fn, void (*each)(void *ctx, const char *name, int position), void *ctx);
  /* What the code of a function that is neither a transform nor a graph calls its parameter i (the one that collects the rest included), or,
   * `captured`, what stands i-th among its captures; borrowed, and NULL if that has no name (interp). */
  qn_str *(*name_of)(qn_vm *vm, qn_value fn, bool captured, uint32_t i);
  /* The anchor in the code of an FN_USER value (jit/trace/rec.h's jit_anchor), NULL for others (interp). */
  void *(*anchor)(qn_value fn);
  /* Tells `each`, in the order of the text, of the parts into which blocks of an FN_USER value's code are cut, and of the cuts (a block_step of
   * jit/trace/rec.h, lent); ends when that gives false, and gives what it gave last (interp). */
  bool (*steps)(qn_vm *vm, qn_value fn, bool (*each)(void *ctx, const void *step), void *ctx);
  /* The highlight (lang/highlight.h) of every byte of a source text (parser); keeps a pending error. */
  void (*highlights)(qn_vm *vm, const char *text, size_t len, uint8_t *highlights);
  /* Memory of devices, by family (jit/run); NULL: the VM has none of that family, or its memory is the host's. */
  const device_memory *devices[DEVICE_FAMILIES];
  /* Shows how far a `for` over a list or range marked OBJ_PROGRESS is: before each item, and at the end (done == total) (stdlib). */
  void (*progress)(qn_vm *vm, int64_t done, int64_t total);
  /* Is told that a figure, this object, has been drawn on the VM's output (interp/prompt). May be NULL. */
  void (*drawn)(qn_vm *vm, const void *figure);
  /* Keeps the text of a reproduction of a defect (jit/trace/repro.c), and tells under which name (interp/prompt). False: it was not kept. NULL:
   * nobody wants them. */
  bool (*repro)(qn_vm *vm, const char *text, size_t len, char *name, size_t size);
  /* The text of an FN_GRAPH value (jit/trace). */
  void (*graph_text)(qn_value graph, text_buf *out);
  /* Frees the code of FN_GRAPH values (jit/trace). */
  void (*free_graph)(qn_vm *vm, void *code);
  /* An evaluation has ended without anybody being told: a host's callback unwound it. Whatever it began is dropped: the recording,
   * modules that were loading (interp). */
  void (*unwound)(qn_vm *vm);
  /* Each frees what its floor keeps behind the VM's slot of that name, interp also what it keeps behind fn->code and modules' scopes; may
   * be NULL. They run in this order. */
  void (*close_stdlib)(qn_vm *vm);
  void (*close_interp)(qn_vm *vm);
  void (*close_jit)(qn_vm *vm);
} vm_hooks;

/* Copies that updates had to make since their value had another owner: `--log copies` tells each. */
typedef struct copy_count {
  uint64_t count, bytes;
  span at; /* the place of the last one */
} copy_count;
enum { COPY_PLACES = 8 };

/* The C stack that a VM runs on. `low` and `high` are NULL if its bounds are not known. */
typedef struct vm_stack {
  pthread_t thread;
  char *low, *high;
} vm_stack;

/* Something that a C frame of the library owns while it runs code of the program, which may call the host. If an exception of the host
 * passes through the frame it is dropped; of several, the latest first. The record lies in that frame. */
typedef struct vm_owned {
  struct vm_owned *outer;
  void (*drop)(qn_vm *vm, void *what);
  void *what;
} vm_owned;

/* What must be known of an evaluation after its frame, with its record, has been left without a cleanup. */
typedef struct vm_mark {
  struct vm_run *run;
  vm_owned *owned;
  struct vm_host *host; /* the callback that it began in, or NULL */
  qn_value *sp;
  char *frame; /* where the C stack ended */
} vm_mark;
enum { RUN_MARKS = 16 };

/* What the evaluation in progress asks of the recorder (jit/trace). Each begins with nothing, in callbacks of the host too, and what
 * it asked for ends with it, however it ends. */
typedef struct rec_asked {
  int nojit;         /* calls of nojit functions in progress */
  int alone;         /* eager calls of functions that have a graph: what they call is in it */
  bool sync_once;    /* explain: record, whatever --jit says, and plan on this thread */
  const void *about; /* explain: the anchor of the function that it asks for, while it calls it */
  bool numbers;      /* the call was recorded for that alone, since it has no arrays (rec_asked_for) */
  int whole;         /* calls in progress that must be one graph: all that keeps them from that is looked for at once */
  int stacked;       /* recorded calls in progress whose arguments hold stacked lists (jit/trace/stacked.c) */
  bool
      hands_on; /* what the function gives that is called next is the result of the recorded call, which may have such lists */
  int refused;  /* why there is no `served`: a break_reason */
  void *served; /* explain: the entry that belongs to the watched call that ended last, or NULL */
  /* graph: a jit_anchor, whose call's function and arguments (with defaults) are kept here, owned; unset: none yet. */
  void *watched;
  qn_value watched_fn, watched_args;
  /* calls in progress that the interpreter makes again or compares, the innermost first (jit/trace/taps.h) */
  struct tap_frame *taps;
} rec_asked;

struct qn_vm {
  /* The value stack: frames of user functions and every temporary. Unwinding is "release down to a mark". Memory above
   * `sp` is uninitialised. It never moves. */
  qn_value *stack, *sp, *stack_limit;
  atomic_int interrupt; /* set by qn_interrupt; looked at on loop back edges, calls, kernel launches */
  uint64_t next_check;  /* value of `steps` at which limits are looked at; UINT64_MAX without limits */
  char *c_stack_limit;  /* deepest address that recursion may reach (stacks grow downwards); bound.thread's */
  qn_engine *engine;
  struct qn_error_object *error;        /* pending, or NULL */
  struct qn_error_object *memory_error; /* allocated beforehand */
  uint64_t steps;                       /* loop iterations and calls, counted where interrupts are polled */
  struct mem_state *mem;                /* mem.c */
  struct source_table *sources;
  struct intern_table *interned;
  struct layout_table *layouts;
  int64_t tune[TUNABLE_COUNT];
  uint32_t log;  /* log_channel bits */
  span updating; /* place of the assignment or call that may have to copy: what copies.at becomes if it does */
  copy_count copies;
  /* The copies by the place of the update, in the order in which places came up; further places are not kept. Whoever reads them sets
   * ncopy_places to 0. */
  copy_count copy_places[COPY_PLACES];
  uint32_t ncopy_places;
  uint8_t device; /* code of the device where new arrays are made (vm_use_device) */
  bool closing;   /* the VM is being closed: code is freed while functions still have it */
  /* Calls of functions without arrays are counted, too, for jit_report; from before the code is resolved on. */
  bool counting;
  bool owns_engine; /* holds a reference to the default engine */
  qn_config config;
  const builtin_table *builtins;
  vm_hooks hooks;
  /* Recording (jit/trace/rec.h): non-NULL while a graph is being recorded or pending. Tested on every op. */
  struct recording *rec;
  rec_asked asked;
  uint32_t next_node;   /* first free graph node id of this VM */
  uint64_t last_fn;     /* qn_fn.id of the function that was made last */
  uint64_t arrays_made; /* how many arrays were made or written to */
  /* Randomness: the seed and the next draw number. */
  uint64_t seed, draw;
  void *devices[DEVICE_FAMILIES]; /* of each family: its state of this VM; NULL: none yet */
  void *dispatch;                 /* jit/run's: one-op kernels and what else eager ops keep (eager_close) */
  void *jit;                      /* jit/trace's state of this VM (jit_open) */
  void *interp;                   /* interp's state of this VM */
  void *prompt;                   /* the session of interp/prompt that runs this VM; NULL: none */
  void *stdlib;                   /* stdlib's state of this VM; NULL: none yet */
  /* The thread, stack and limits of the running evaluation (vm_run_begin). */
  vm_stack bound;
  char *host_low, *host_high; /* a stack that the host made: qn_stack_changed; NULL: none */
  int depth;                  /* evaluations in progress, one inside another through callbacks of the host */
  struct vm_run *run;         /* the innermost of them */
  struct vm_host *host;       /* the innermost callback in progress */
  vm_owned *owned;            /* by frames of the library, the latest first */
  vm_mark marks[RUN_MARKS];   /* of the outermost evaluations */
  uint64_t check_interval, step_end;
  double deadline, last_check;
  double began; /* when the VM was opened: what time() counts from */
  /* What the qn_error_ functions hand out. */
  char error_name[16];
  text_buf report;
  /* What vm_write_later was given and the host has not been; not of the VM's memory, which may be short. */
  text_buf later;
};

/* Opens a VM with lang's part only; the floors above add theirs (interp_open, then stdlib's qn_vm_open). */
QN_MUST_CHECK qn_vm *vm_open(const qn_config *config);
void vm_close(qn_vm *vm); /* calls the hooks first */

/* Every API call that runs code begins and ends an evaluation: it binds the VM to the calling thread's C stack, sets the
 * floating-point mode that results depend on and gives the host's back, and starts the step and time limits at the
 * outermost level. An error of an earlier call is dropped there.
 *
 * The record lies in the caller's frame. Where an exception may come through (calls of the API that can reach a callback), it is
 * declared VM_RUN, in a file compiled with -fexceptions: then it is ended by vm_run_unwound as the exception passes. What left by
 * longjmp is found out when the next evaluation begins higher up on the stack. */
typedef struct vm_run {
  qn_vm *vm; /* NULL once it has ended */
  struct vm_run *outer;
  vm_owned *owned; /* before it */
  qn_value *sp;
  uint64_t fp_mode;
  int device;     /* where new arrays were made before it */
  vm_stack bound; /* of the outer evaluation */
  char *c_stack_limit;
} vm_run;
void vm_run_begin(qn_vm *vm, vm_run *run);
void vm_run_end(qn_vm *vm, vm_run *run);
void vm_run_unwound(vm_run *run); /* nothing if it has ended */
#define VM_RUN(name) vm_run name __attribute__((cleanup(vm_run_unwound))) = {.vm = NULL}

/* A callback of the host is about to run, and may call the API: it neither sees nor changes the error, the recording and what is asked
 * of the recorder in the evaluation that called it. Declared VM_HOST, in a file compiled with -fexceptions, and ended by vm_host_end. If an
 * exception leaves it, what the frames of its evaluation own is dropped (vm_owned). */
typedef struct vm_host {
  qn_vm *vm;
  struct vm_host *outer;
  struct vm_run *run;
  int depth;
  struct qn_error_object *error;
  struct recording *rec;
  rec_asked asked;
} vm_host;
void vm_host_begin(qn_vm *vm, vm_host *host);
void vm_host_end(vm_host *host);
void vm_host_unwound(vm_host *host); /* nothing if it has ended */
#define VM_HOST(name, vm)                                                                                              \
  vm_host name __attribute__((cleanup(vm_host_unwound)));                                                              \
  vm_host_begin(vm, &name)
static inline void vm_own(qn_vm *vm, vm_owned *o, void (*drop)(qn_vm *vm, void *what), void *what) {
  *o = (vm_owned){vm->owned, drop, what};
  vm->owned = o;
}
static inline void vm_disown(qn_vm *vm, const vm_owned *o) { vm->owned = o->outer; }
/* For vm_own: a qn_value, a text_buf, and memory of mem_alloc. */
typedef struct vm_memory {
  void *p; /* NULL: none */
  size_t bytes;
} vm_memory;
void vm_drop_value(qn_vm *vm, void *value);
void vm_drop_text(qn_vm *vm, void *text);
void vm_drop_memory(qn_vm *vm, void *memory);

/* What an API call returns after its work: QN_OK, or the kind of the error that is pending. */
qn_status vm_status(const qn_vm *vm);
/* Binds the VM to the C stack of the caller, if it is not yet: vm_run_begin does it, and vm_open. */
void vm_bind_thread(qn_vm *vm);
/* pthread_create for a thread of the library's own: it gets none of the host's signals. stack: its size, 0: as usual. */
QN_MUST_CHECK bool vm_thread(pthread_t *thread, size_t stack, void *(*run)(void *), void *arg);
/* Whether a value may be given to this VM: false, with E317 raised, for one of another VM. Only checked builds can tell, and of values
 * that are no large strings. */
#ifdef QN_CHECKED
QN_MUST_CHECK bool vm_takes(qn_vm *vm, const qn_value *values, size_t n);
#else
static inline bool vm_takes(qn_vm *vm, const qn_value *values, size_t n) {
  (void)vm, (void)values, (void)n;
  return true;
}
#endif
/* Sets the floating-point mode alone, for worker threads: round to nearest, nothing flushed to zero, no traps. Returns the old mode, for
 * fp_mode_leave. */
uint64_t fp_mode_enter(void);
void fp_mode_leave(uint64_t mode);

/* True if the running computation must stop: raises E603 or E604. Cheap; called on back edges and calls. */
bool vm_poll_slow(qn_vm *vm);
static inline bool vm_poll(qn_vm *vm) {
  vm->steps++;
  if (__builtin_expect(
          (atomic_load_explicit(&vm->interrupt, memory_order_relaxed) != 0) | (vm->steps >= vm->next_check), 0))
    return vm_poll_slow(vm);
  return false;
}
/* vm_poll for places between two steps of the program. There an exception of the host may pass through, because all that is owned has been
 * told to vm_own; so these also give waiting text (vm_write_later) to the host's sink. */
bool vm_poll_between_slow(qn_vm *vm);
static inline bool vm_poll_between(qn_vm *vm) {
  vm->steps++;
  if (__builtin_expect(
          (atomic_load_explicit(&vm->interrupt, memory_order_relaxed) != 0) | (vm->steps >= vm->next_check), 0))
    return vm_poll_between_slow(vm);
  return false;
}
/* vm_poll for loops of C code over items that cost little each: `i` counts the items, and every 4,096th polls. */
static inline bool vm_poll_item(qn_vm *vm, int64_t i) { return (i & 4095) == 4095 && vm_poll(vm); }
/* To be called for each place that a walk over a tree visits; *seen counts them. False with an error raised: those of vm_poll, or E605 if the
 * tree holds its parts so many times over that the walk would not end. */
QN_MUST_CHECK static inline bool tree_place(qn_vm *vm, qn_value root, uint64_t *seen) {
  if (__builtin_expect(++*seen == PLACES_LOOK, 0) && tree_is_endless(vm, root, false)) return false;
  return !vm_poll(vm);
}
/* False, with E602 raised, when the C stack or the value stack is used up; `slots` values are about to be pushed. */
bool vm_stack_overflow(qn_vm *vm);
static inline bool vm_enter(qn_vm *vm, size_t slots) {
  if (__builtin_expect(
          (char *)__builtin_frame_address(0) < vm->c_stack_limit || (size_t)(vm->stack_limit - vm->sp) < slots, 0))
    return vm_stack_overflow(vm);
  return true;
}
/* Releases temporaries down to `mark` (a former vm->sp). */
static inline void vm_pop_to(qn_vm *vm, qn_value *mark) {
  qn_value *p = vm->sp;
  vm->sp = mark; /* freeing values does not use the value stack */
  while (p > mark) value_release(vm, *--p);
}
/* Releases temporaries down to `mark` and returns `r`. */
static inline qn_value vm_pop_with(qn_vm *vm, qn_value *mark, qn_value r) {
  vm_pop_to(vm, mark);
  return r;
}

/* New arrays (of literals, files, creating ops) are made on this device from now on. False with E210 if it is not there. */
QN_MUST_CHECK bool vm_use_device(qn_vm *vm, int device);

/* Seconds of a clock that only goes forward. */
double vm_seconds(void);
/* Stream 1 is stdout, 2 stderr; goes to the host's sink if it has one. */
void vm_write(qn_vm *vm, int stream, const char *text, size_t len);
/* Writes to stderr from code that an exception of the host must not leave, as for log lines and warnings. A host's sink gets the text
 * later: before anything else is written, at the next vm_poll_between, or at the end of the evaluation. If an exception ends the evaluation,
 * or none is in progress, the sink gets it in the next one, or when the VM is closed. */
void vm_write_later(qn_vm *vm, const char *text, size_t len);
/* Writes the text that waits. */
void vm_write_waiting(qn_vm *vm);
/* Writes the text that waits at the end of an evaluation. *held, its result, is released if the host's sink throws an exception. */
void vm_write_last(qn_vm *vm, qn_value *held);
static inline bool vm_logs(const qn_vm *vm, log_channel c) { return (vm->log & (uint32_t)c) != 0; }
/* One line to the log (vm_write_later), prefixed with the channel's name. */
void vm_logf(qn_vm *vm, log_channel c, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Appends to `out` a line as vm_logf writes it, for a caller that writes it later. */
void log_line(text_buf *out, log_channel c, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Parses "breaks,recompiles" into channel bits; false on an unknown name. */
bool log_parse(const char *text, uint32_t *bits);
/* Sets tunables from "name=value,name=value" (--set, QUERN_SET). */
QN_MUST_CHECK bool tunable_set_list(qn_vm *vm, const char *text);
/* Sets a tunable; false with E317 raised for an unknown name or a value out of range. */
QN_MUST_CHECK bool tunable_set(qn_vm *vm, const char *name, const char *value);
/* Does the VM hold a capability? Raises E505 if not. */
QN_MUST_CHECK bool vm_may(qn_vm *vm, uint32_t capability, const char *what);

#endif
