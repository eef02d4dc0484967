/* What the files of jit/gpu share: the engine's part (libraries, devices, compiled code) and a VM's part of one device (stream,
 * memory, staging).
 *
 * Contexts. A device's primary context is used, as by CUDA's own libraries. It is pushed for a call (gpu_enter) and popped again
 * (gpu_leave), so that a host's own use of CUDA is not disturbed. */
#ifndef JIT_GPU_STATE_H
#define JIT_GPU_STATE_H

#include <pthread.h>
#include <sys/types.h>
#include <stdatomic.h>

#include "jit/gpu/libraries.h"
#include "jit/kernel/emit.h"
#include "jit/run/code.h"
#include "jit/run/device.h"

enum { GPU_DEVICES = 16 };

typedef struct gpu_gemms gpu_gemms; /* gemm.c */

typedef struct gpu_device {
  bool tried;    /* to open it */
  char why[240]; /* why it cannot be used; empty: it can */
  CUdevice handle;
  CUcontext context;
  int arch;            /* 90 for sm_90 */
  int units;           /* multiprocessors */
  gpu_gemms *products; /* gemm.c's; NULL until then */
  hash_table codes;    /* gpu_code by the hash of its program */
  hash_table modules;  /* CUmodule, by their number */
} gpu_device;

typedef enum gpu_code_state { CODE_QUEUED, CODE_READY, CODE_FAILED } gpu_code_state;
/* Compiled code of one program for one device. It stays in the device's table until the engine closes. */
typedef struct gpu_code {
  uint64_t hash;
  int device;       /* number, from 0 */
  atomic_int state; /* gpu_code_state */
  uint32_t nfunctions;
  CUfunction *functions; /* k<hash>_<i> */
  bool shares;           /* a launch may ask for GPU_SHARED bytes of shared memory beyond what the code has itself */
} gpu_code;
enum { GPU_SHARED = 48 << 10 };

typedef struct gpu_job gpu_job;
enum { GPU_WORKERS = 4 };

typedef struct gpu_engine {
  qn_engine *engine;    /* that this is a part of */
  pthread_mutex_t lock; /* over all that follows, but for code that is ready */
  bool opened;          /* the driver, or that was tried */
  libraries libraries;
  gpu_device devices[GPU_DEVICES];
  gpu_job *queue, **tail;
  pthread_cond_t work, done;
  pthread_t workers[GPU_WORKERS];
  int nworkers, idle;
  int seconds;                /* workers at a job that is `second`: at most one */
  pid_t process;              /* that opened the driver */
  atomic_bool closing;        /* written under the lock */
  troubles troubles;          /* by gpu_trouble_id */
  _Atomic int64_t cache_room; /* cache_write */
} gpu_engine;

typedef enum gpu_trouble_id {
  GPU_TROUBLE_NVRTC,
  GPU_TROUBLE_COMPILER,
  GPU_TROUBLE_CACHE,
  GPU_TROUBLE_LOAD,
  GPU_TROUBLE_LT
} gpu_trouble_id;

/* ---- a VM's part (memory.c) ---- */

enum { GPU_CHUNKS = 4, GPU_CHUNK = 4 << 20, GPU_ANSWERS = 64 << 10 };
typedef struct gpu_chunk { /* of pinned host memory */
  char *data;
  CUevent last; /* behind its last copy: recorded when the next chunk is taken, or after a copy to it */
  size_t used;
} gpu_chunk;

enum { GPU_CLASSES = 8 * 40 };
typedef struct gpu_list {
  CUdeviceptr *items;
  uint32_t n, cap;
} gpu_list;

/* A program's answer about its scratch, kept because asking means waiting (launch.c). */
enum { GPU_MEMOS = 256, GPU_MEMO_INTS = 24 };
typedef struct gpu_memo {
  const gpu_code *code;
  int64_t ints[GPU_MEMO_INTS]; /* those that it depends on, else 0 */
  size_t scratch;
} gpu_memo;
typedef struct gpu_rule { /* what a program's answer depends on (scratch_from) */
  const gpu_code *code;
  uint64_t of;
} gpu_rule;

/* Pinned memory of the host that kernels write to and read from. */
typedef struct gpu_mapped {
  uint64_t reported; /* 1 once `error` has been written */
  uint64_t error;    /* what the error cell held */
  int64_t scratch;   /* a program's answer */
  int32_t stop;      /* 1: kernels that look at it end, leaving their results unfinished */
} gpu_mapped;

typedef struct gpu_stream {
  gpu_engine *engine;
  gpu_device *device;
  int number; /* of the device, from 0 */
  CUstream stream;
  CUstream capture;           /* where products are captured; NULL until then */
  gpu_list idle[GPU_CLASSES]; /* blocks that nothing uses, by size class */
  gpu_list segments;          /* everything that was allocated from the driver */
  CUdeviceptr slab, slab_end; /* what is left of the segment that small blocks are cut from */
  gpu_chunk chunks[GPU_CHUNKS];
  int chunk; /* being filled */
  gpu_memo memos[GPU_MEMOS];
  gpu_rule rules[GPU_MEMOS];
  hash_table programs;  /* the block VM's, by l_hash */
  uint64_t allocations; /* from the driver, for tests */
  size_t live;          /* bytes of blocks in use */
  CUdeviceptr scratch;  /* memory that all kernels share, since they run one after the other */
  size_t scratch_bytes;
  bool scratch_stays; /* a launch whose words name its address is being made */
  CUdeviceptr cell;   /* the error cell: ~0, but while kernels with checks run */
  gpu_mapped *mapped;
  CUdeviceptr mapped_there; /* its address on the device */
  bool abandoned;           /* something that writes to `mapped` was not waited for */
  char *answers;            /* pinned memory for small reads */
  const gpu_code *texts[4]; /* kernels of our own, by gpu_text, once they are compiled */
} gpu_stream;

typedef struct gpu_vm {
  gpu_stream *of[GPU_DEVICES];
} gpu_vm;

/* False in a forked child, which has neither the threads nor the devices of its parent and must give nothing back. */
bool gpu_ours(const gpu_engine *e);
/* The engine's part, made if need be; NULL when memory is short. */
gpu_engine *gpu_engine_of(qn_engine *engine);
/* A device by its number, opened if need be; NULL with the reason in *why (which lives as long as the engine). */
gpu_device *gpu_device_of(gpu_engine *e, int number, const char **why);
/* The VM's stream on the device with this code; NULL with an error raised. */
gpu_stream *gpu_stream_of(qn_vm *vm, int device);

static inline const cuda_driver *gpu_driver(const gpu_stream *s) { return &s->engine->libraries.driver; }

static inline bool gpu_enter(const gpu_stream *s) {
  return gpu_driver(s)->cuCtxPushCurrent_v2(s->device->context) == GPU_OK;
}
static inline void gpu_leave(const gpu_stream *s) {
  CUcontext old;
  gpu_driver(s)->cuCtxPopCurrent_v2(&old);
}
/* The VM's stream on the device, entered; NULL with an error raised, which names `what` was to be done. */
gpu_stream *gpu_entered(qn_vm *vm, int device, const char *what);
/* The driver's words for what it answered. */
const char *gpu_error_text(const cuda_driver *d, CUresult rc);
/* Raises what a call of the driver answered; always false. */
bool gpu_raise(qn_vm *vm, const gpu_stream *s, CUresult rc, const char *what);

/* A block of at least `bytes`, 512-byte aligned; 0 with the error raised. It may be given back while work that uses it is still running: its
 * next user comes later in the stream. */
CUdeviceptr gpu_alloc(qn_vm *vm, gpu_stream *s, size_t bytes);
void gpu_free(qn_vm *vm, gpu_stream *s, CUdeviceptr data, size_t bytes);
/* Copies between host and device, inside gpu_enter. Writing takes the data at once and does not wait; reading waits. */
QN_MUST_CHECK bool gpu_write(qn_vm *vm, gpu_stream *s, CUdeviceptr to, const void *from, size_t bytes);
QN_MUST_CHECK bool gpu_read(qn_vm *vm, gpu_stream *s, void *to, CUdeviceptr from, size_t bytes);

/* device_memory */
bool gpu_open(qn_vm *vm, int device);
void *gpu_array_alloc(qn_vm *vm, int device, size_t bytes);
void gpu_array_free(qn_vm *vm, int device, void *data, size_t bytes);
bool gpu_array_read(qn_vm *vm, const qn_array *from, void *to);
bool gpu_array_write(qn_vm *vm, qn_array *to, const void *from);
bool gpu_wait_all(qn_vm *vm);
void gpu_memory_close(qn_vm *vm);

/* ---- waiting (wait.c), inside gpu_enter ---- */

/* Waits until all work in the stream is done. False with an error raised; after an interrupt or a time limit (E603, E604) the work goes on by
 * itself. `what` is named in the error. */
QN_MUST_CHECK bool gpu_wait(qn_vm *vm, gpu_stream *s, const char *what);
/* Waits until the event is done, or (NULL) all work. */
QN_MUST_CHECK bool gpu_wait_event(qn_vm *vm, gpu_stream *s, CUevent event, const char *what);
/* Makes `mapped` and `cell` if they are not there, and waits for work that was abandoned. */
QN_MUST_CHECK bool gpu_cells(qn_vm *vm, gpu_stream *s);
/* Waits for the kernels so far and empties the error cell: *error is what it held. If waiting is interrupted, kernels that look at `stop` end
 * early, and their results are dropped. */
QN_MUST_CHECK bool gpu_checked(qn_vm *vm, gpu_stream *s, uint64_t *error);

/* ---- code (compile.c) ---- */

/* The code with this hash for the device, which may still be compiling or have failed; NULL: nobody has asked for it. */
gpu_code *gpu_code_find(gpu_engine *e, int device, uint64_t hash);
/* What to compile: a text (which is copied) that defines, for each of n hashes, kernels k<hash>_0 .. k<hash>_<nfunctions - 1>. */
typedef struct gpu_unit {
  const char *text;
  size_t len;
  uint32_t n;
  const uint64_t *hashes;
  const uint32_t *nfunctions;
  int64_t cache_bytes; /* limit of the cache folder; 0: no cache */
  bool quick;          /* compile without the slow optimisations: for many functions without loops */
  bool second;         /* for calls that have code already (a second tier): compiled when nothing else waits */
  bool here;           /* compile on the calling thread, which waits: the compiler's threads have the lowest class */
} gpu_unit;
/* Hands it to the compiler's threads, or compiles it here. Codes that are known already are left out. False when memory is short. */
bool gpu_compile(gpu_engine *e, int device, const gpu_unit *unit);
/* Waits until the code is ready or has failed. */
void gpu_code_wait(gpu_engine *e, gpu_code *code);
void gpu_compile_close(gpu_engine *e);

/* ---- launching (launch.c) ---- */

extern const device_kernels gpu_kernels;
/* How these programs can run now. Asks for code and waits as device_kernels.ready does. */
typedef enum gpu_runs { RUNS_NOT, RUNS_INTERPRETED, RUNS_COMPILED } gpu_runs;
gpu_runs gpu_ready(qn_vm *vm, int device, device_program *const *programs, uint32_t n, bool wait);

/* ---- matrix products by the library (gemm.c) ---- */

bool gpu_has_gemm(qn_vm *vm, int device, const device_gemm *p);
device_answer gpu_gemm(qn_vm *vm, int device, const device_gemm *p, void *const buffers[3]);
void gpu_gemms_close(gpu_engine *e, gpu_device *d);

/* The parts of gpu_gemm, for plans; inside gpu_enter. `addresses` are those of x, y and the result; operands at addresses that are no multiples
 * of 16 are copied first. */
typedef struct gpu_made gpu_made; /* how the library makes the products of a signature; lives as long as the engine */
/* NULL: the library does not make such products. */
const gpu_made *gpu_gemm_made(qn_vm *vm, gpu_stream *s, const device_gemm *p);
/* Bytes of memory that it works in, copies of operands included. */
size_t gpu_gemm_scratch(const gpu_made *x, const uint64_t addresses[3]);
/* Makes the product, in the stream's order, with that memory at `scratch`. False with an error raised. */
QN_MUST_CHECK bool gpu_gemm_run(qn_vm *vm, gpu_stream *s, const gpu_made *x, const uint64_t addresses[3],
                                CUdeviceptr scratch);
/* A graph that makes the product, which the caller frees; NULL: it cannot be captured. Nothing is raised. */
CUgraph gpu_gemm_capture(gpu_stream *s, const gpu_made *x, const uint64_t addresses[3], CUdeviceptr scratch);

/* ---- functions of device_kernels for what no L program does (sort.c, compress.c, recurrence.c) ---- */

device_answer gpu_sort(qn_vm *vm, qn_array *out, const qn_array *x, int axis, bool descending, bool indices);
device_answer gpu_compress(qn_vm *vm, const qn_array *x, const qn_array *mask, qn_array *to, qn_array **made);
device_answer gpu_recurrence(qn_vm *vm, qn_array *to, const qn_array *by, const qn_array *plus, int axis, bool reverse,
                             bool exclusive);

/* ---- kernels of our own (texts.c) ---- */

typedef enum gpu_text { TEXT_OWN, TEXT_SORT, TEXT_COMPRESS, TEXT_RECURRENCE, TEXT_COUNT } gpu_text;
enum { OWN_COPY, OWN_REPORT, OWN_COUNT }; /* kernels of TEXT_OWN */
/* The code of a text. NULL while it is being compiled, which the first call begins, or if that failed. Under --jit sync and verify it is
 * waited for. */
const gpu_code *gpu_text_code(qn_vm *vm, gpu_stream *s, gpu_text text);
/* The VM's stream on the device, entered, once the text's code is there. NULL: *answer says why; an error names `what` was to be done. */
gpu_stream *gpu_text_enter(qn_vm *vm, int device, gpu_text text, const char *what, device_answer *answer);
/* Launches a kernel of a text whose code is there, with its words (words.h), for so many instances; inside gpu_enter. */
QN_MUST_CHECK bool gpu_text_launch(qn_vm *vm, gpu_stream *s, gpu_text text, int kernel, int64_t instances, void *words);
/* The name of a text, and the text. */
const char *gpu_text_source(gpu_text text, const char **name);

/* Launches a kernel. Its words are its parameters or, where `block` is not 0, lie there on the device. Inside gpu_enter. */
QN_MUST_CHECK bool gpu_launch(qn_vm *vm, const gpu_stream *s, CUfunction f, unsigned blocks, unsigned threads,
                              unsigned shared, CUdeviceptr block, int64_t instances, void *words);
/* The words of a launch, and where its kernels find them: in their parameters, or in a block of the device. */
typedef struct gpu_words {
  uint64_t *all;
  uint32_t n;
  CUdeviceptr block; /* 0: they are parameters */
  uint64_t few[EMIT_WORDS_BY_VALUE];
} gpu_words;
/* Room for n words. False with an error raised; else gpu_words_close is due. */
QN_MUST_CHECK bool gpu_words_open(qn_vm *vm, gpu_words *w, uint32_t n);
/* Sends words that are too many for parameters. Inside gpu_enter; so is closing. */
QN_MUST_CHECK bool gpu_words_send(qn_vm *vm, gpu_stream *s, gpu_words *w);
void gpu_words_close(qn_vm *vm, gpu_stream *s, gpu_words *w);

/* Copies elements between two layouts on the device. */
QN_MUST_CHECK bool gpu_copy_elements(qn_vm *vm, qn_array *to, const qn_array *from);
/* What a launch of a program needs to know that depends on sizes. */
typedef struct gpu_setup {
  const l_program *p;
  const gpu_code *code;
  uint32_t words;   /* emit_cuda_words */
  bool by_value;    /* they may be parameters */
  size_t scratch;   /* bytes of stream->scratch: scratch buffers, then a piece for each block of threads */
  size_t piece;     /* bytes of a piece */
  unsigned shared;  /* bytes of shared memory that a block has instead of a piece, where these are few */
  size_t pieces_at; /* where in scratch the pieces begin */
} gpu_setup;
/* Lays the program's scratch buffers one after the other from `base` on and writes their addresses to addresses[b], unless that is NULL. Returns
 * their bytes in all. */
size_t gpu_scratch_buffers(const l_program *p, const int64_t *values, CUdeviceptr base, uint64_t *addresses);
/* Fills in *u for such ints, scalars and launch-time values (l_launch_values). False with an error raised. */
QN_MUST_CHECK bool gpu_set_up(qn_vm *vm, gpu_stream *s, gpu_setup *u, const l_program *p, const gpu_code *code,
                              const int64_t *ints, const qk_scalar *scalars, const int64_t *values);
/* Writes the addresses of scratch memory at `base` to the words. */
void gpu_place_scratch(const gpu_setup *u, const int64_t *values, CUdeviceptr base, uint64_t *words);
/* Threads of a block where no layout says otherwise. */
enum { GPU_THREADS = 64 };
/* How many blocks run a phase of compiled code with so many instances. */
unsigned gpu_blocks(const gpu_stream *s, const gpu_setup *u, l_layout l, int64_t instances);
/* As many blocks as keep the device busy, for kernels whose blocks are dear to begin or need `piece` bytes of scratch each. */
unsigned gpu_few_blocks(const gpu_stream *s, size_t piece, int64_t blocks);
/* Makes stream->scratch at least so many bytes large. Its address then stays the same until gpu_scratch_leave, which is due when all launches
 * that use it have been made. False with an error raised. */
QN_MUST_CHECK bool gpu_scratch(qn_vm *vm, gpu_stream *s, size_t bytes);
void gpu_scratch_leave(gpu_stream *s);

/* ---- plans (sequence.c) ---- */

bool gpu_plan_ready(qn_vm *vm, int device, const struct plan *p, device_plan **there, bool wait);
bool gpu_plan_begin(qn_vm *vm, device_plan *there);
device_answer gpu_plan_kernels(qn_vm *vm, device_plan *there, const device_call *call, uint32_t first, uint32_t n);
bool gpu_plan_joins(qn_vm *vm, device_plan *there);
device_answer gpu_plan_checks(qn_vm *vm, device_plan *there);
void gpu_plan_close(qn_vm *vm, device_plan *there);

#endif
