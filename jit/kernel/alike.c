/* A request as words: the nodes that lower() meets, in the order in which it meets them, each as what lower() looks at: of nodes that are computed
 * their op, attributes, type and operands (by their places in that order), of others the type or, of constants of one element, the value. Two
 * requests with equal words become equal kernels, since lower() depends on numbers of nodes in no other way. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "jit/kernel/alike.h"

static uint64_t mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

static bool same_type(const void *owner, uint32_t i, const void *x) {
  const alike *t = owner;
  return graph_type_same(&t->g->nodes[t->type_list[i]].type, &((const graph_node *)x)->type);
}

static bool same_op(const void *owner, uint32_t i, const void *x) {
  const alike *t = owner;
  const graph_node *a = &t->g->nodes[t->op_list[i]], *b = x;
  if (a->kind != b->kind || a->op != b->op || a->nin != b->nin || !graph_type_same(&a->type, &b->type)) return false;
  if (a->kind == NODE_CONST) return memcmp(a->payload.data, b->payload.data, graph_const_bytes(&a->type)) == 0;
  if (!a->attr || !b->attr) return a->attr == b->attr;
  return memcmp(a->attr, b->attr, offsetof(op_attr, d)) == 0 &&
         memcmp(a->attr->d, b->attr->d, a->attr->n * sizeof(qn_dim)) == 0;
}

static uint32_t number_of(alike *t, intern_table *table, uint32_t **list, uint32_t *n, uint32_t *cap, uint64_t hash,
                          intern_same *same, uint32_t node) {
  uint32_t *number = intern_find(&t->arena, table, hash, same, t, &t->g->nodes[node]);
  if (!number || (!*number && !arena_room(&t->arena, (void **)list, cap, *n + 1, sizeof **list))) return 0;
  if (!*number) {
    (*list)[*n] = node;
    *number = ++*n;
  }
  return *number;
}

/* The number of a node's type; 0 when memory is short. */
static uint32_t type_number(alike *t, uint32_t node) {
  if (t->types[node]) return t->types[node];
  const graph_type *x = &t->g->nodes[node].type;
  uint64_t h = mix(7, (uint64_t)x->dtype << 16 | (uint64_t)x->rank << 8 | x->weak);
  for (int a = 0; a < x->rank; a++) h = mix(h, (uint64_t)x->shape[a]);
  return t->types[node] = number_of(t, &t->type_table, &t->type_list, &t->ntypes, &t->types_cap,
                                    h * 0x9e3779b97f4a7c15u, same_type, node);
}

/* The number of what a node does to its operands, and of its type; 0 when memory is short. */
static uint32_t op_number(alike *t, uint32_t node) {
  if (t->ops[node]) return t->ops[node];
  const graph_node *n = &t->g->nodes[node];
  uint64_t h = mix(type_number(t, node), (uint64_t)n->kind << 32 | (uint64_t)n->op << 16 | n->nin);
  if (n->kind == NODE_CONST) {
    uint64_t bits = 0;
    size_t size = graph_const_bytes(&n->type);
    memcpy(&bits, n->payload.data, size < sizeof bits ? size : sizeof bits);
    h = mix(h, bits);
  } else if (n->attr) {
    const op_attr *a = n->attr;
    h = mix(h, (uint64_t)a->dtype << 40 | (uint64_t)a->axes << 32 | (uint64_t)a->keepdims << 24 |
                   (uint64_t)a->mode << 16 | (uint64_t)a->flags << 8 | a->n);
    for (int i = 0; i < a->n; i++) h = mix(h, (uint64_t)a->d[i]);
  }
  return t->ops[node] =
             number_of(t, &t->op_table, &t->op_list, &t->nops, &t->ops_cap, h * 0x9e3779b97f4a7c15u, same_op, node);
}

/* The number of a node among those of the request, counted from 1; 0 when memory is short. */
static uint32_t meet(alike *t, uint32_t node) {
  if (t->number[node]) return t->number[node];
  if (t->n == t->nodes_cap &&
      !arena_room_unset(&t->arena, (void **)&t->nodes, &t->nodes_cap, t->n + 1, sizeof *t->nodes))
    return 0;
  t->nodes[t->n] = node;
  return t->number[node] = ++t->n;
}

static bool say(alike *t, uint32_t word) {
  if (t->nwords == t->words_cap &&
      !arena_room_unset(&t->arena, (void **)&t->words, &t->words_cap, t->nwords + 1, sizeof *t->words))
    return false;
  t->words[t->nwords++] = word;
  return true;
}

/* Where node n stores into the memory of an operand. */
static bool say_update(alike *t, const lower_request *r, uint32_t n) {
  uint32_t over = r->over[n], whole = r->whole ? r->whole[n] : 0, at = meet(t, over), all = whole ? meet(t, whole) : 0;
  bool nothing = r->whole && r->whole[over] == n;
  if (!at || (whole && !all) || !say(t, at) || !say(t, 2 * all + nothing)) return false;
  for (uint32_t x = t->g->nodes[n].in[0]; whole && x != over && t->g->nodes[x].nin; x = t->g->nodes[x].in[0])
    if (!say(t, op_number(t, x))) return false; /* the views between */
  return true;
}

static bool describe(alike *t, const lower_request *r) {
  const graph *g = t->g;
  if (!say(t, r->n)) return false;
  for (uint32_t i = 0; i < r->n; i++)
    if (!meet(t, r->nodes[i])) return false;
  for (uint32_t i = 0; i < t->n; i++) {
    uint32_t n = t->nodes[i];
    const graph_node *node = &g->nodes[n];
    bool here = i < r->n || (r->place[n] == PLACE_INLINE && node->kind == NODE_OP && !node->type.weak);
    bool value = !here && node->kind == NODE_CONST && (node->type.weak || r->place[n] == PLACE_INLINE);
    uint32_t what = here || value ? op_number(t, n) : type_number(t, n);
    if (!what || !say(t, 4 * what + 2 * here + value)) return false;
    if (!here) continue;
    for (int k = 0; k < node->nin; k++) {
      uint32_t x = meet(t, node->in[k]);
      if (!x || !say(t, x)) return false;
    }
    if (i >= r->n) continue;
    bool over = r->over && r->over[n];
    if (!say(t, 4 * r->stored[n] + 2 * graph_fallible(g, n) + over) || (over && !say_update(t, r, n))) return false;
  }
  return true;
}

static bool same_words(const void *owner, uint32_t i, const void *x) {
  const struct alike_kernel *a = &((const alike *)owner)->kernels[i], *b = x;
  return a->n == b->n && memcmp(a->words, b->words, a->n * sizeof *a->words) == 0;
}

static bool begin(alike *t, const graph *g) {
  if (t->g) return true;
  arena_init(&t->arena, NULL);
  t->types = arena_alloc(&t->arena, g->n * sizeof *t->types);
  t->ops = arena_alloc(&t->arena, g->n * sizeof *t->ops);
  t->number = arena_alloc(&t->arena, g->n * sizeof *t->number);
  t->g = g;
  return !t->arena.failed;
}

int64_t alike_find(alike *t, const lower_request *r) {
  if (!begin(t, r->g) || t->arena.failed) return -1;
  t->n = t->nwords = 0;
  bool ok = describe(t, r);
  for (uint32_t i = 0; i < t->n; i++) t->number[t->nodes[i]] = 0;
  if (!ok) return -1;
  uint64_t hash = 1;
  for (uint32_t i = 0; i < t->nwords; i++) hash = mix(hash, t->words[i]);
  struct alike_kernel x = {.words = t->words, .n = t->nwords, .ns = NAN};
  uint32_t *number = intern_find(&t->arena, &t->table, hash * 0x9e3779b97f4a7c15u, same_words, t, &x);
  if (!number) return -1;
  if (*number) return *number - 1;
  uint32_t *words = arena_alloc(&t->arena, x.n * sizeof *words);
  if (!words || !arena_room(&t->arena, (void **)&t->kernels, &t->kernels_cap, t->nkernels + 1, sizeof *t->kernels))
    return -1;
  x.words = memcpy(words, t->words, x.n * sizeof *words);
  t->kernels[t->nkernels] = x;
  *number = ++t->nkernels;
  return *number - 1;
}

void alike_free(alike *t) {
  if (t->g) arena_free(&t->arena);
  *t = (alike){0};
}
