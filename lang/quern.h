/* quern.h: the one public header of Quern, the Lua of tensors.
 *
 * The model
 * ---------
 * A `qn_engine` owns what several interpreters may share: compiler threads, the thread pool, devices and
 * generated code. A `qn_vm` is one interpreter: globals, modules, memory limits, an error. Engines may be
 * used from any thread; a VM belongs to one thread at a time. `qn_interrupt` is the only call that any
 * thread (or a signal handler) may make on a VM that is in use.
 *
 * A `qn_value` is 16 bytes and is passed by value. Rule of ownership, without exception: arguments are
 * borrowed, results are owned. An owned value is given back with `qn_release`; `qn_retain` makes another
 * owner. Releasing a value that is no heap object is allowed and does nothing.
 *
 * Values belong to the VM that made them (numbers, bools and nil to all): another one must neither be given them nor release
 * them. Checked builds raise an error where they notice; others crash. What should go from one VM to another is copied
 * (qn_array_read, qn_array_from).
 *
 * Callbacks (`write`, `resolve`) may call the API with the VM that called them, nested as deep as they like: errors of such calls are
 * the callback's, the evaluation around it goes on without them. They should return. An exception of C++ may pass
 * through a callback and the calls around it: the evaluation ends there, and the VM works on; longjmp may not.
 *
 * A function that can fail returns QN_OK or the kind of failure, and the VM then holds an error object
 * (see "Errors") until the next call that can fail; the result is then nil. Nothing here exits, prints, or jumps
 * out of your frames.
 */
#ifndef QUERN_H
#define QUERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define QN_API __attribute__((visibility("default")))
#define QN_MUST_CHECK __attribute__((warn_unused_result))
#else
#define QN_API
#define QN_MUST_CHECK
#endif

#define QN_VERSION "0.1.0"

typedef struct qn_engine qn_engine;
typedef struct qn_vm qn_vm;

/* A value. `head` is a tag word, `u` the payload; read them through the functions below. */
typedef struct qn_value {
  uint64_t head;
  union {
    int64_t i;
    double f;
    void *p;
  } u;
} qn_value;

typedef enum qn_status {
  QN_OK = 0,
  QN_ERROR = 1,      /* a language error: the VM holds it */
  QN_INCOMPLETE = 2, /* qn_eval at a prompt: the text is a valid beginning and needs more input */
  QN_INTERRUPTED = 3 /* qn_interrupt or a step or time limit; cannot be caught by scripts */
} qn_status;

typedef enum qn_kind {
  QN_NIL,
  QN_BOOL,
  QN_INT,
  QN_FLOAT,
  QN_STR,
  QN_LIST,
  QN_RECORD,
  QN_ARRAY,
  QN_FN,
  QN_RANGE,
  QN_DTYPE,
  QN_DEVICE,
  QN_MODULE
} qn_kind;

/* Element types of arrays, in the order of the table lang/dtypes.def (checked there). */
typedef enum qn_dtype {
  /* clang-format off */
  QN_bool, QN_u8, QN_i8, QN_i16, QN_i32, QN_i64, QN_f16, QN_bf16, QN_f32, QN_f64,
  QN_u16, QN_u32, QN_u64, QN_c64, QN_c128, /* reserved */
  /* clang-format on */
  QN_DTYPE_COUNT
} qn_dtype;

/* ---- engines and interpreters --------------------------------------------------------------------- */

typedef enum qn_jit_mode { QN_JIT_ON, QN_JIT_OFF, QN_JIT_SYNC, QN_JIT_VERIFY } qn_jit_mode;

/* What a VM may do to the world outside; all by default. */
enum { QN_CAP_READ = 1, QN_CAP_WRITE = 2, QN_CAP_ENV = 4, QN_CAP_SPAWN = 8, QN_CAP_CLOCK = 16, QN_CAP_ALL = 31 };

/* A module as config.resolve gives it. Everything is zero before. */
typedef struct qn_source {
  /* what the module is known by: two imports with one key are one module, which is loaded once (`text` is only looked at
     the first time). NULL: "FROM > NAME", so that each importing module has its own */
  const char *key;
  const char *text;
  size_t len;
  void (*free)(void *user,
               struct qn_source *source); /* called when the text and the key have been copied; may be NULL */
  const char *error;                      /* where false is returned: why; NULL: there is no such module */
  void *own;                              /* the host's */
} qn_source;

/* Configuration of a VM. Start from qn_config_init; `size` lets the struct grow without breaking hosts. */
typedef struct qn_config {
  size_t size;
  qn_engine *engine;     /* NULL: the process's default engine, made at first use */
  size_t memory_limit;   /* bytes of values and arrays; 0: no limit */
  uint64_t step_limit;   /* loop iterations and calls; 0: no limit */
  double time_limit;     /* seconds of a qn_eval or qn_call; 0: no limit */
  size_t stack_bytes;    /* C stack that recursion may use; 0: 3/4 of the thread's limit, at most 6 MiB */
  uint32_t capabilities; /* QN_CAP_ bits */
  qn_jit_mode jit;
  int threads; /* of parallel kernels; 0: all processors */
  /* Where print, warnings, progress and logs go; NULL writes to stdout (stream 1) and stderr (stream 2). */
  void (*write)(void *user, int stream, const char *text, size_t len);
  /* Finds the module that `from` calls `name`, before the standard library is asked: false if there is none. `from` is the key of the
   * importing module, or the name of the text that qn_eval runs. NULL: files, then the standard library. */
  bool (*resolve)(void *user, const char *from, const char *name, qn_source *out);
  void *user;
} qn_config;

QN_API void qn_config_init(qn_config *config);

/* An engine, or NULL when memory is short. One that is closed before its VMs lives until the last of them is closed. */
QN_API qn_engine *qn_engine_open(void);
QN_API void qn_engine_close(qn_engine *engine);

/* A VM, or NULL when memory is short. `config` may be NULL. */
QN_API qn_vm *qn_vm_open(const qn_config *config);
QN_API void qn_vm_close(qn_vm *vm);

/* Sets a tunable by its table name ("jit.hot", "2"). */
QN_API QN_MUST_CHECK qn_status qn_set_tunable(qn_vm *vm, const char *name, const char *value);

/* Asks the evaluation that runs, or else the next one, to stop at its next check, soon: QN_INTERRUPTED, once. The request stands until
 * an evaluation has been stopped by it, or qn_interrupt_clear takes it back. Any thread, or a signal handler. */
QN_API void qn_interrupt(qn_vm *vm);
QN_API void qn_interrupt_clear(qn_vm *vm);

/* The thread that uses the VM goes on on another C stack, of `size` bytes from `low` on, which the host has made: a fiber or
 * coroutine. Said before the first call from there; again for the next stack; low NULL: there are none any more. A stack that nobody
 * has told of works, too, but recursion uses 64 KiB of it at most (or config.stack_bytes). It has to be told of where it is a piece of
 * the thread's own stack, which nobody can see. Evaluations that are in progress must end
 * in the order inverse to that in which they began, whatever stacks they are on. */
QN_API void qn_stack_changed(qn_vm *vm, void *low, size_t size);

/* In the child of a fork, before the engine (NULL: the default one) and its VMs are used there: the threads that compile and compute
 * did not come along, and are made anew when they are wanted. Only VMs that no other thread was using at the fork are of use. A
 * child of a process where one thread had everything may do without. */
QN_API void qn_after_fork(qn_engine *engine);

/* ---- running code ----------------------------------------------------------------------------------- */

/* Runs `text` as a module's top level in the VM's main scope; `name` appears in errors ("train.qn"). The
 * text is copied. `*result` is the value of the last statement; pass NULL to drop it. */
QN_API QN_MUST_CHECK qn_status qn_eval(qn_vm *vm, const char *name, const char *text, size_t len, qn_value *result);

/* As qn_eval, for a prompt: QN_INCOMPLETE instead of an error when the text only needs more input, and
 * `let` may rebind. */
QN_API QN_MUST_CHECK qn_status qn_eval_prompt(qn_vm *vm, const char *text, size_t len, qn_value *result);

/* Forgets the module of this key (a file's canonical path, the resolver's key, "<std>/nn"): the next import loads it again. Who has
 * imported it keeps the old one. An error if there is none, or it is being loaded. */
QN_API QN_MUST_CHECK qn_status qn_module_drop(qn_vm *vm, const char *key);

/* Calls a function value with positional arguments. */
QN_API QN_MUST_CHECK qn_status qn_call(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value *result);

/* Globals of the main scope. Getting an undefined name is an error, and setting one that cannot be a name ("if", "a b"). */
QN_API QN_MUST_CHECK qn_status qn_get_global(qn_vm *vm, const char *name, qn_value *result);
QN_API QN_MUST_CHECK qn_status qn_set_global(qn_vm *vm, const char *name, qn_value value);

/* ---- values ------------------------------------------------------------------------------------------ */

QN_API qn_value qn_retain(qn_value v);
QN_API void qn_release(qn_vm *vm, qn_value v);
QN_API qn_kind qn_kind_of(qn_value v);

QN_API qn_value qn_nil(void);
QN_API qn_value qn_bool(bool b);
QN_API qn_value qn_int(int64_t i);
QN_API qn_value qn_float(double f);
QN_API QN_MUST_CHECK qn_status qn_string(qn_vm *vm, const char *utf8, size_t len, qn_value *result);

/* An array of rank 0 in the CPU's memory, such as sum(x), counts as the number that it holds. */
QN_API bool qn_as_bool(qn_value v);                       /* false unless QN_BOOL */
QN_API int64_t qn_as_int(qn_value v);                     /* 0 unless QN_INT */
QN_API double qn_as_float(qn_value v);                    /* of QN_FLOAT or QN_INT, else NaN */
QN_API const char *qn_as_string(qn_value v, size_t *len); /* borrowed from v; NULL unless QN_STR */

/* Lists and records: length, item, field (QN_ERROR if absent). `qn_list`/`qn_record` copy their items. */
QN_API size_t qn_length(qn_value v);
QN_API QN_MUST_CHECK qn_status qn_item(qn_vm *vm, qn_value list, size_t index, qn_value *result);
QN_API QN_MUST_CHECK qn_status qn_field(qn_vm *vm, qn_value record, const char *name, qn_value *result);
QN_API QN_MUST_CHECK qn_status qn_list_from(qn_vm *vm, const qn_value *items, size_t n, qn_value *result);
QN_API QN_MUST_CHECK qn_status qn_record_from(qn_vm *vm, const char *const *names, const qn_value *items, size_t n,
                                              qn_value *result);

/* Arrays. `shape` has `rank` (0..8) sizes; data is row-major and copied in and out. */
QN_API QN_MUST_CHECK qn_status qn_array_from(qn_vm *vm, qn_dtype dtype, int rank, const int64_t *shape,
                                             const void *data, qn_value *result);
QN_API QN_MUST_CHECK qn_status qn_array_read(qn_vm *vm, qn_value array, void *data, size_t bytes);
QN_API qn_dtype qn_array_dtype(qn_value array);
QN_API int qn_array_rank(qn_value array);
QN_API const int64_t *qn_array_shape(qn_value array); /* borrowed from the array */
QN_API size_t qn_dtype_size(qn_dtype dtype);

/* The text that `print` shows, as a string value. */
QN_API QN_MUST_CHECK qn_status qn_to_text(qn_vm *vm, qn_value v, qn_value *result);

/* ---- errors ------------------------------------------------------------------------------------------ */

/* Of the last failed call; all borrowed from the VM, valid until the next call that can fail. */
QN_API const char *qn_error_id(qn_vm *vm);      /* "E203" */
QN_API const char *qn_error_message(qn_vm *vm); /* one sentence */
QN_API const char *qn_error_source(qn_vm *vm);  /* name of the text, "" if none */
QN_API int qn_error_line(qn_vm *vm);            /* from 1; 0 if the error has no place */
QN_API const char *qn_error_report(qn_vm *vm);  /* everything, with the excerpt, ending in a newline */

#ifdef __cplusplus
}
#endif
#endif
