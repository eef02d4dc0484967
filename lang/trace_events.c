/* Collecting spans of time and writing them in Chrome's trace event format: one "X" event a span, times in microseconds from
 * the start of the trace_events, a number for every thread, and a name made from what a thread did.
 *
 * One lock guards everything: spans are long beside it. They lie in blocks of a fixed size, so that adding one never moves those
 * before it.
 */
#include "lang/trace_events.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lang/internal.h"

enum { NAME_MOST = 56, BLOCK_SPANS = 1024, BLOCKS_MOST = 1024, THREADS_MOST = 256 };

typedef struct trace_span {
  int64_t begin, end, number;
  const char *label;
  uint16_t thread;
  uint8_t kind;
  char name[NAME_MOST];
} trace_span;

typedef struct span_block {
  struct span_block *next;
  uint32_t n;
  trace_span spans[BLOCK_SPANS];
} span_block;

struct trace_events {
  pthread_mutex_t lock;
  int64_t start;
  span_block *first, *newest;
  uint32_t nblocks;
  uint64_t lost;
  pthread_t threads[THREADS_MOST];
  uint32_t did[THREADS_MOST]; /* kinds of spans, as bits */
  uint32_t nthreads;
};

int64_t trace_events_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec + 1;
}

bool trace_events_start(qn_engine *engine) {
  struct trace_events *t = engine->trace_events ? NULL : calloc(1, sizeof *t);
  if (!t) return engine->trace_events != NULL;
  pthread_mutex_init(&t->lock, NULL);
  t->start = trace_events_now();
  engine->trace_events = t;
  return true;
}

void trace_events_forked(qn_engine *engine) {
  if (engine->trace_events) pthread_mutex_init(&engine->trace_events->lock, NULL);
}

void trace_events_close(qn_engine *engine) {
  struct trace_events *t = engine->trace_events;
  if (!t) return;
  engine->trace_events = NULL;
  while (t->first) {
    span_block *next = t->first->next;
    free(t->first);
    t->first = next;
  }
  pthread_mutex_destroy(&t->lock);
  free(t);
}

/* The number of the calling thread, which gets one if it has none. */
static uint16_t thread_number(struct trace_events *t) {
  uint32_t i = 0;
  while (i < t->nthreads && !pthread_equal(t->threads[i], pthread_self())) i++;
  if (i == THREADS_MOST) return THREADS_MOST - 1;
  if (i == t->nthreads) t->threads[t->nthreads++] = pthread_self();
  return (uint16_t)i;
}

static trace_span *room(struct trace_events *t) {
  if (t->newest && t->newest->n < BLOCK_SPANS) return &t->newest->spans[t->newest->n++];
  span_block *b = t->nblocks < BLOCKS_MOST ? malloc(sizeof *b) : NULL;
  if (!b) return NULL;
  b->next = NULL;
  b->n = 1;
  if (t->newest)
    t->newest->next = b;
  else
    t->first = b;
  t->newest = b;
  t->nblocks++;
  return b->spans;
}

void trace_events_add(qn_engine *engine, trace_events_kind kind, const char *name, int64_t begin, const char *label,
                      int64_t number) {
  struct trace_events *t = engine->trace_events;
  int64_t end = trace_events_now();
  pthread_mutex_lock(&t->lock);
  trace_span *s = room(t);
  if (s) {
    *s = (trace_span){.begin = begin, .end = end, .number = number, .label = label, .kind = (uint8_t)kind};
    s->thread = thread_number(t);
    t->did[s->thread] |= 1u << kind;
    size_t n = name ? strlen(name) : 0;
    if (n > NAME_MOST - 1) n = NAME_MOST - 1;
    memcpy(s->name, name ? name : "", n);
    while (n && !utf8_valid(s->name, n)) n--; /* the name was cut, perhaps within a character */
    s->name[n] = 0;
  } else {
    t->lost++;
  }
  pthread_mutex_unlock(&t->lock);
}

/* ---- writing ----------------------------------------------------------------------------------------------------------- */

static const char *const kind_names[] = {
#define X(name) #name,
    TRACE_EVENTS_KINDS(X)
#undef X
};

static void add_quoted(text_buf *out, const char *s) {
  text_add(out, "\"", 1);
  for (; *s; s++) {
    if (*s == '"' || *s == '\\')
      text_addf(out, "\\%c", *s);
    else if ((unsigned char)*s < ' ')
      text_addf(out, "\\u%04x", (unsigned)*s);
    else
      text_add(out, s, 1);
  }
  text_add(out, "\"", 1);
}

static void add_us(text_buf *out, int64_t ns) { text_addf(out, "%lld.%03d", (long long)(ns / 1000), (int)(ns % 1000)); }

/* The name of a thread, which tells what it is for, from the kinds of spans it had. */
static const char *thread_name(uint32_t did) {
  const uint32_t plan = 1u << TRACE_EVENTS_plan, compile = 1u << TRACE_EVENTS_compile;
  if (did & ~(plan | compile)) return "script";
  return did & compile ? "compiler" : "planner";
}

void trace_events_text(qn_engine *engine, text_buf *out) {
  struct trace_events *t = engine->trace_events;
  pthread_mutex_lock(&t->lock);
  text_adds(out, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
                 "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 1, \"args\": {\"name\": \"quern\"}}");
  for (uint32_t i = 0; i < t->nthreads; i++)
    text_addf(out,
              ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, \"tid\": %u, \"args\": {\"name\": \"%s\"}}",
              i + 1, thread_name(t->did[i]));
  for (const span_block *b = t->first; b; b = b->next)
    for (uint32_t i = 0; i < b->n; i++) {
      const trace_span *s = &b->spans[i];
      text_addf(out, ",\n{\"ph\": \"X\", \"pid\": 1, \"tid\": %u, \"cat\": \"%s\", \"name\": ", s->thread + 1u,
                kind_names[s->kind]);
      add_quoted(out, s->name[0] ? s->name : "fn");
      text_adds(out, ", \"ts\": ");
      add_us(out, s->begin > t->start ? s->begin - t->start : 0);
      text_adds(out, ", \"dur\": ");
      add_us(out, s->end - s->begin);
      if (s->label) text_addf(out, ", \"args\": {\"%s\": %lld}", s->label, (long long)s->number);
      text_add(out, "}", 1);
    }
  text_addf(out, "\n], \"otherData\": {\"spans left out\": %llu}}\n", (unsigned long long)t->lost);
  pthread_mutex_unlock(&t->lock);
}
