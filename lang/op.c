/* The op table's rows (op.h, ops.def) and look-up by name. */
#include "lang/op.h"

#include <string.h>

#define GRAD(fn) NULL
#define NO_GRAD(reason) reason
const op_row op_rows[OP_COUNT] = {
#define OP(klass, name, arity, dtype, shape, grad, batch, raises, body, doc)                                           \
  {#name, CLASS_##klass, arity, dtype, shape, batch, raises, grad, doc},
#include "lang/ops.def"
};
enum {
#define OP(klass, name, ...) ROW_##name,
#define OP_TOPIC(id, title)                                                                                            \
  FIRST_OF_##id, BEFORE_##id = FIRST_OF_##id - 1, /* BEFORE_ steps back, so that the next row gets this number */
#include "lang/ops.def"
};
const topic_row op_topics[] = {
#define OP_TOPIC(id, title) {title, FIRST_OF_##id},
#include "lang/ops.def"
};
const int op_topic_count = sizeof op_topics / sizeof *op_topics;
#undef GRAD
#undef NO_GRAD

/* What other code takes for granted. */
_Static_assert(OP_eq + 1 == OP_ne && OP_ne + 1 == OP_lt && OP_lt + 1 == OP_le && OP_le + 1 == OP_gt &&
                   OP_gt + 1 == OP_ge,
               "comparisons are consecutive");
_Static_assert(OP_COUNT < 256, "op ids fit a byte");

op_id op_find(const char *name, size_t len) {
  for (int i = 0; i < OP_COUNT; i++)
    if (strlen(op_rows[i].name) == len && memcmp(op_rows[i].name, name, len) == 0) return (op_id)i;
  return OP_COUNT;
}
