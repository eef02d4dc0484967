/* Recursion as loops, for recordings (resolve.h): of a function that calls itself once on each way through it, a second tree is made, in which the
 * calls are turns. `fn power(x, n) = if n == 0 { 1 } else { x * power(x, n - 1) }` becomes
 *
 *   fn power(x, n) {
 *     let .n = n                                  # what begins with a dot are variables that no program can name
 *     let .depth = 0
 *     while not (n == 0) { .depth = .depth + 1; n = n - 1 }              # down to the call that makes none
 *     let .result = 1
 *     for .turn in 0.. .depth {                                          # and back
 *       let .level = .depth - 1 - .turn
 *       n = .n - .level
 *       .result = x * .result
 *     }
 *     .result
 *   }
 *
 * A function that does nothing with what its calls return, and whose ways without a call are not told by conditions at its beginning, becomes
 *
 *   fn bisect(f, lo, hi) {
 *     while true {
 *       let mid = (lo + hi) / 2
 *       if hi - lo < 1e-6 { return mid } else { if f(mid) > 0 { hi = mid } else { lo = mid } }
 *     }
 *   }
 *
 * Parameters that change by the same number from call to call are computed for each level; others are found by going down once more to it. Where
 * nothing is done with what the calls return, there is only the way down. What stands before a call in the function is evaluated twice, and in
 * another order, so that in functions that come back nothing stands there but library functions without effect.
 *
 * Functions of the top level that only compute and call each other are treated likewise: a call of another one that calls this one is replaced by what that
 * function does, in variables of names that no program has, so that what is left are calls of the function itself. Derivatives do not know this form.
 *
 * Numbers are computed by the same operations in the same order. What differs is only how deep calls may nest (AST_depth). Where a recording ends on the
 * way, the interpreter goes on with the loops, and an error has the frames of the calls that turns have stood for: AST_level nodes, not shown above, tell
 * which these are.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interp/resolve.h"

enum {
  TESTS_MAX = 8,
  BRANCHES_MAX =
      64, /* made of statements, each of which lies in the one before: trees may not nest as deep as functions are long */
  NAME_MAX_BYTES = 64
};

typedef struct maker {
  resolver *r;
  const ast_node *fn;
  const qn_str *name;
  qn_str *depth, *result, *turn, *level, *path;
  uint32_t nparams;
  uint64_t varies, assigned; /* bits: parameters that some call changes; that are assigned */
  int64_t step[64];          /* by how much a parameter changes, if all calls change it by the same number */
  uint64_t steps;            /* these parameters */
  uint32_t calls, tail;      /* how many calls there are; how many of these give the result */
  uint32_t branches;         /* made so far */
  span *sites;               /* of calls at several places, where turns are to tell in `path` which they stand for */
  uint32_t nsites;
  span site; /* of the only call */
  bool failed, shrinks;
} maker;

/* ---- making nodes ---- */

static ast_node *make(maker *m, ast_kind kind, span at, uint32_t n, ast_node *const *kids) {
  ast_node *x = unit_alloc(m->r, sizeof *x);
  ast_node **own = x && n ? unit_alloc(m->r, n * sizeof *own) : NULL;
  if (!x || (n && !own)) {
    m->failed = true;
    return NULL;
  }
  *x = (ast_node){.kind = (uint8_t)kind, .n = n, .at = at, .mark_start = at.start, .mark_end = at.end, .kids = own};
  if (kids) memcpy(own, kids, n * sizeof *own);
  return x;
}

#define MAKE(m, kind, at, ...)                                                                                         \
  make(m, kind, at, sizeof((ast_node *[]){__VA_ARGS__}) / sizeof(ast_node *), (ast_node *[]){__VA_ARGS__})

static ast_node *make_name(maker *m, qn_str *name, span at) {
  ast_node *x = make(m, AST_name, at, 0, NULL);
  if (x) x->u.s = name;
  return x;
}

static ast_node *make_int(maker *m, int64_t i, span at) {
  ast_node *x = make(m, AST_int, at, 0, NULL);
  if (x) x->u.i = i;
  return x;
}

static ast_node *make_binary(maker *m, ast_op op, ast_node *a, ast_node *b, span at) {
  ast_node *x = MAKE(m, AST_binary, at, a, b);
  if (x) x->op = (uint8_t)op;
  return x;
}

static ast_node *make_assign(maker *m, ast_node *target, ast_node *value, span at) {
  ast_node *x = MAKE(m, AST_assign, at, target, value);
  if (x) x->op = AST_OP_none;
  return x;
}

static ast_node *make_let(maker *m, qn_str *name, ast_node *value, span at) {
  return MAKE(m, AST_let, at, make_name(m, name, at), value);
}

/* for item in 0..end { body } */
static ast_node *for_calls(maker *m, qn_str *item, qn_str *end, ast_node *body, span at) {
  ast_node *range = MAKE(m, AST_range, at, make_int(m, 0, at), make_name(m, end, at));
  ast_node *x = MAKE(m, AST_for, at, make_name(m, item, at), range, body);
  if (x) x->flags |= AST_CALLS;
  return x;
}

static ast_node *copy_of(maker *m, const ast_node *n) {
  ast_node *x = make(m, (ast_kind)n->kind, n->at, n->n, n->kids);
  if (!x) return NULL;
  ast_node **kids = x->kids;
  *x = *n;
  x->kids = kids;
  return x;
}

/* A name that no program has. */
static qn_str *own_name(maker *m, const char *name) {
  char text[NAME_MAX_BYTES];
  size_t n = strlen(name);
  if (n + 1 >= sizeof text) return m->failed = true, NULL;
  text[0] = '.';
  memcpy(text + 1, name, n);
  qn_str *s = str_intern(m->r->vm, text, n + 1);
  if (!s || !unit_keep(m->r, value_obj(TAG_STR, s))) return m->failed = true, NULL;
  return s;
}

/* ---- what the tree of a function says ---- */

static ast_node *param_of(const maker *m, uint32_t i) { return m->fn->kids[2 + i]; }

/* The number of a parameter; -1: it is none. */
static int param_number(const maker *m, const ast_node *n) {
  for (uint32_t i = 0; n->kind == AST_name && i < m->nparams; i++)
    if (param_of(m, i)->u.s == n->u.s) return (int)i;
  return -1;
}

static bool binds_name(const ast_node *n) {
  return n->kind == AST_name || n->kind == AST_define || n->kind == AST_param || n->kind == AST_method;
}

/* How often a tree (may be NULL) has a name. */
static uint32_t names(const ast_node *n, const qn_str *name) {
  if (!n) return 0;
  uint32_t count = binds_name(n) && n->u.s == name;
  for (uint32_t i = 0; i < n->n; i++) count += names(n->kids[i], name);
  return count;
}

/* How often a tree (may be NULL) has the function's name. */
static uint32_t mentions(const maker *m, const ast_node *n) { return names(n, m->name); }

static bool has_kind(const ast_node *n, ast_kind kind) {
  bool has = n && n->kind == kind;
  for (uint32_t i = 0; n && i < n->n && !has; i++) has = has_kind(n->kids[i], kind);
  return has;
}

static bool has_op(const ast_node *n, ast_op op) {
  bool has = n && n->kind == AST_binary && n->op == op;
  for (uint32_t i = 0; n && i < n->n && !has; i++) has = has_op(n->kids[i], op);
  return has;
}

/* What a call of the function gives a parameter: an argument, or a default that is a number or a text; NULL: neither. */
static ast_node *argument(const maker *m, const ast_node *call, uint32_t i) {
  static const uint8_t literals[] = {AST_int, AST_float, AST_str, AST_bool, AST_nil};
  uint32_t k = 1;
  for (; k < call->n && call->kids[k]->kind != AST_keyword; k++)
    if (k == 1 + i) return call->kids[k];
  for (; k < call->n; k++)
    if (call->kids[k]->kind == AST_keyword && call->kids[k]->u.s == param_of(m, i)->u.s)
      return call->kids[k]->kids[AST_keyword_value];
  ast_node *initial = param_of(m, i)->kids[AST_param_initial];
  return initial && memchr(literals, initial->kind, sizeof literals) ? initial : NULL;
}

static bool is_call(const maker *m, const ast_node *n) {
  if (n->kind != AST_call) return false;
  const ast_node *callee = n->kids[AST_call_callee];
  if (callee->kind != AST_name || callee->u.s != m->name) return false;
  uint32_t given = 0, before = 0; /* each argument is for some parameter; they are evaluated in the order of these */
  for (uint32_t i = 0; i < m->nparams; i++) {
    const ast_node *arg = argument(m, n, i);
    if (!arg || mentions(m, arg)) return false;
    for (uint32_t k = 1; k < n->n; k++) {
      const ast_node *kid = n->kids[k];
      if (kid->kind == AST_spread) return false;
      if (kid != arg && !(kid->kind == AST_keyword && kid->kids[AST_keyword_value] == arg)) continue;
      if (k < before) return false;
      before = k;
      given++;
    }
  }
  return given + 1 == n->n;
}

/* The call in an expression that always makes it; NULL: there is none, or it is made only perhaps. */
static const ast_node *call_in(const maker *m, const ast_node *n) {
  static const uint8_t kinds[] = {AST_unary, AST_binary, AST_not,    AST_call,        AST_index, AST_field,  AST_list,
                                  AST_array, AST_record, AST_spread, AST_field_value, AST_slice, AST_keyword};
  if (is_call(m, n)) return n;
  if (!memchr(kinds, n->kind, sizeof kinds)) return NULL;
  const ast_node *call = NULL;
  for (uint32_t i = 0; i < n->n && !call; i++)
    if (n->kids[i]) call = call_in(m, n->kids[i]);
  return call;
}

/* The expression with `in` in place of the call. */
static ast_node *with_result(maker *m, const ast_node *n, const ast_node *call, ast_node *in) {
  if (n == call) return in;
  ast_node *x = copy_of(m, n);
  for (uint32_t i = 0; x && i < x->n; i++)
    if (x->kids[i] && mentions(m, x->kids[i])) x->kids[i] = with_result(m, x->kids[i], call, in);
  return x;
}

/* Notes which parameters a tree assigns. */
static void note_assignments(maker *m, const ast_node *n) {
  if (!n) return;
  if (n->kind == AST_assign) {
    const ast_node *target = n->kids[AST_assign_target];
    for (uint32_t i = 0; i < target->n; i++) /* of a list of targets any may be a parameter */
      if (is_pattern(target)) m->assigned = ~(uint64_t)0;
    while (target->kind == AST_index || target->kind == AST_field) target = target->kids[0];
    int p = param_number(m, target);
    if (p >= 0) m->assigned |= (uint64_t)1 << p;
  }
  for (uint32_t i = 0; i < n->n; i++) note_assignments(m, n->kids[i]);
}

/* Does a tree make a variable that has a parameter's name? */
static bool hides_param(const maker *m, const ast_node *n, bool pattern) {
  if (!n) return false;
  if (pattern && param_number(m, n) >= 0) return true;
  if (n->kind == AST_define || n->kind == AST_import) return true; /* (these are rare) */
  for (uint32_t i = 0; i < n->n; i++) {
    bool binds =
        pattern || ((n->kind == AST_let || n->kind == AST_for) && i == 0) || (n->kind == AST_try && i == AST_try_name);
    if (hides_param(m, n->kids[i], binds)) return true;
  }
  return false;
}

/* Does a function of the library only compute? `raises`: or raise errors. */
static bool library_computes(const maker *m, qn_str *name, bool raises) {
  const builtin_def *def = builtin_named(m->r, name);
  if (def) return !strstr(def->signature, "key = nil"); /* (or it draws numbers) */
  def = raises ? builtin_meant(m->r, name) : NULL;
  return def && (def->effect == BUILTIN_RAISES || def->work == WORK_CHECK);
}

/* Does a tree, up to the function's calls of itself, only compute? `raises`: or raise errors. */
static bool computes(const maker *m, const ast_node *n, bool raises) {
  if (!n) return true;
  if (n->kind == AST_method || n->kind == AST_try || n->kind == AST_fn || n->kind == AST_define) return false;
  if (n->kind == AST_call) {
    const ast_node *callee = n->kids[AST_call_callee];
    if (callee->kind != AST_name || (callee->u.s != m->name && !library_computes(m, callee->u.s, raises))) return false;
  }
  for (uint32_t i = 0; i < n->n; i++)
    if (!computes(m, n->kids[i], raises)) return false;
  return true;
}

static bool only_computes(const maker *m, const ast_node *n) { return computes(m, n, false); }

/* Does an expression that makes the call only compute before that? */
static bool computes_before(const maker *m, const ast_node *n) {
  bool last = is_call(m, n);
  for (uint32_t i = 0; i < n->n; i++) {
    const ast_node *kid = n->kids[i];
    if (!kid) continue;
    if (!last && mentions(m, kid)) return computes_before(m, kid);
    if (!only_computes(m, kid)) return false;
  }
  return true;
}

/* Notes what a call changes. */
static void note_call(maker *m, const ast_node *call, bool tail) {
  for (uint32_t i = 0; i < m->nparams; i++) {
    const ast_node *arg = argument(m, call, i);
    uint64_t bit = (uint64_t)1 << i;
    if (param_number(m, arg) == (int)i) {
      m->steps &= ~bit; /* another call may change it */
      continue;
    }
    int64_t step = 0;
    bool steps = arg->kind == AST_binary && (arg->op == AST_OP_sub || arg->op == AST_OP_add) &&
                 param_number(m, arg->kids[0]) == (int)i && arg->kids[1]->kind == AST_int;
    if (steps) step = arg->kids[1]->u.i;
    if (step <= 0 || step > INT32_MAX) steps = false;
    if (arg->kind == AST_binary && arg->op == AST_OP_sub) step = -step;
    if (!steps || (m->calls && m->step[i] != step)) m->steps &= ~bit;
    m->step[i] = step;
    m->varies |= bit;
    m->shrinks |= has_op(arg, AST_OP_floordiv);
  }
  m->site = m->calls ? SPAN_NONE : call->at;
  m->calls++;
  m->tail += tail;
}

/* ---- statements ---- */

/* Statements of a block. */
typedef struct statements {
  ast_node *const *list;
  uint32_t n;
} statements;

static statements of_block(ast_node *const *at) {
  return (*at)->kind == AST_block ? (statements){(*at)->kids, (*at)->n} : (statements){at, 1};
}

/* A block of some statements, and then those of another block (may be NULL: none, or memory is short). */
static ast_node *block_with(maker *m, statements x, const ast_node *then) {
  ast_node *b = make(m, AST_block, x.n ? x.list[0]->at : m->fn->at, x.n + (then ? then->n : 0), NULL);
  if (!b) return NULL;
  if (x.n) memcpy(b->kids, x.list, x.n * sizeof *b->kids);
  if (then && then->n) memcpy(b->kids + x.n, then->kids, then->n * sizeof *b->kids);
  return b;
}

/* A block, at most, of one statement. */
static ast_node *one(maker *m, ast_node *statement) {
  return statement ? MAKE(m, AST_block, statement->at, statement) : NULL;
}

static ast_node *refused(maker *m) {
  m->failed = true;
  return NULL;
}

/* Where the statement with the call stands, and what that is; NULL: no way, or not every way, goes there as it has to. */
static const ast_node *calling(maker *m, statements x, uint32_t *at) {
  uint32_t k = 0;
  while (k < x.n && !mentions(m, x.list[k])) k++;
  if (k == x.n) return refused(m);
  for (uint32_t i = 0; i < x.n; i++)
    if ((i < k && has_kind(x.list[i], AST_return)) || (i > k && mentions(m, x.list[i]))) return refused(m);
  const ast_node *s = x.list[k];
  *at = k;
  if (s->kind != AST_if) return s;
  bool both = s->kids[AST_if_otherwise] && k + 1 == x.n && !mentions(m, s->kids[AST_if_cond]);
  return both ? s : refused(m);
}

/* The expression that makes the call in a statement which is no branch. */
static const ast_node *value_of(const ast_node *s) {
  switch ((ast_kind)s->kind) {
  case AST_return: return s->kids[AST_return_value];
  case AST_let: return s->kids[AST_let_pattern]->kind == AST_name ? s->kids[AST_let_value] : NULL;
  default: return s;
  }
}

/* The branch `s` with other arms. */
static ast_node *branch_of(maker *m, const ast_node *s, ast_node *then, ast_node *otherwise) {
  if (!then || !otherwise) return refused(m);
  ast_node *x = copy_of(m, s);
  if (x) x->kids[AST_if_then] = then, x->kids[AST_if_otherwise] = otherwise;
  return x;
}

/* Puts assignments that are made at once in an order in which they can be made one by one: a list that grows is seen as such where it stands alone. False:
 * there is no such order, or no need. */
static bool in_order(const maker *m, uint32_t n, ast_node **targets, ast_node **values) {
  bool grows = false;
  for (uint32_t i = 0; i < n; i++) {
    const ast_node *v = values[i], *callee = v->kind == AST_call ? v->kids[AST_call_callee] : NULL;
    grows |= callee && callee->kind == AST_name && strcmp(callee->u.s->text, "append") == 0;
    grows |=
        v->kind == AST_binary && v->op == AST_OP_add && (v->kids[0]->kind == AST_list || v->kids[1]->kind == AST_list);
    if (!only_computes(m, v)) return false;
  }
  for (uint32_t done = 0; grows && done < n; done++) {
    uint32_t next = done, others = 1;
    for (; next < n && others; next += others != 0) {
      others = 0;
      for (uint32_t k = done; k < n; k++)
        if (k != next) others += names(values[k], targets[next]->u.s);
    }
    if (next == n) return false;
    ast_node *target = targets[next], *value = values[next];
    targets[next] = targets[done], values[next] = values[done];
    targets[done] = target, values[done] = value;
  }
  return grows;
}

static ast_node *assignments(maker *m, const ast_node *call) {
  ast_node *targets[64], *values[64];
  uint32_t n = 0;
  for (uint32_t i = 0; i < m->nparams; i++) {
    if (!(m->varies >> i & 1)) continue;
    targets[n] = make_name(m, param_of(m, i)->u.s, call->at);
    values[n++] = argument(m, call, i);
  }
  if (!n || m->failed) return refused(m);
  if (n == 1) return one(m, make_assign(m, targets[0], values[0], call->at));
  if (!in_order(m, n, targets, values))
    return one(m, make_assign(m, make(m, AST_pat_list, call->at, n, targets), make(m, AST_list, call->at, n, values),
                              call->at));
  for (uint32_t i = 0; i < n; i++) targets[i] = make_assign(m, targets[i], values[i], call->at);
  return m->failed ? NULL : make(m, AST_block, call->at, n, targets);
}

uint32_t path_digits(uint32_t places) {
  uint32_t digits = 0;
  for (int64_t most = INT64_MAX / places; most >= places; most /= places) digits++;
  return digits;
}

/* `.path = .path % most * calls + number`: one digit more, of the call's place among those where calls stand; the last digits are kept. */
static ast_node *assign_path(maker *m, uint32_t number, span at) {
  int64_t most = 1;
  for (uint32_t digits = path_digits(m->calls); digits > 1; digits--) most *= m->calls;
  ast_node *kept = make_binary(m, AST_OP_mod, make_name(m, m->path, at), make_int(m, most, at), at);
  ast_node *moved = make_binary(m, AST_OP_mul, kept, make_int(m, m->calls, at), at);
  return make_assign(m, make_name(m, m->path, at), make_binary(m, AST_OP_add, moved, make_int(m, number, at), at), at);
}

/* The parameters become the arguments of a call. */
static ast_node *assign_params(maker *m, const ast_node *call) {
  ast_node *all = assignments(m, call), *made = NULL;
  if (!m->path) {
    made = MAKE(m, AST_level, call->at, NULL);
  } else if (m->sites && m->nsites < m->calls) {
    m->sites[m->nsites] = call->at;
    made = assign_path(m, m->nsites++, call->at);
  }
  return all && made ? block_with(m, (statements){all->kids, all->n}, one(m, made)) : NULL;
}

/* Turns are to tell which calls they stand for: adds to statements those that make the variable for that. */
static bool tells_path(maker *m, recursion *out, ast_node **all, uint32_t *n) {
  span at = m->fn->at;
  m->sites = unit_alloc(m->r, m->calls * sizeof *m->sites);
  if (!m->sites || !(m->path = own_name(m, "path"))) return false;
  out->sites = m->sites;
  out->nsites = m->calls;
  ast_node *told = MAKE(m, AST_level, at, make_name(m, m->path, at));
  if (told) told->flags |= AST_CALLS;
  all[(*n)++] = make_let(m, m->path, make_int(m, 1, at), at);
  all[(*n)++] = told;
  return !m->failed;
}

/* Notes the calls in statements that always come to one (`last`: the function ends with them). */
static void note_calls(maker *m, statements x) {
  uint32_t k;
  const ast_node *s = calling(m, x, &k);
  if (!s) return;
  if (s->kind == AST_if) {
    note_calls(m, of_block(&s->kids[AST_if_then]));
    note_calls(m, of_block(&s->kids[AST_if_otherwise]));
    return;
  }
  const ast_node *e = value_of(s), *call = e ? call_in(m, e) : NULL;
  if (!call || mentions(m, e) != 1 || (s->kind == AST_return && k + 1 != x.n))
    m->failed = true;
  else
    note_call(m, call, e == call && s->kind != AST_let && k + 1 == x.n);
}

/* As statements that always come to a call, up to its arguments, which become the parameters. NULL if that cannot be. */
static ast_node *down(maker *m, statements x) {
  uint32_t k;
  const ast_node *s = calling(m, x, &k);
  if (!s) return NULL;
  ast_node *end = s->kind == AST_if ? one(m, branch_of(m, s, down(m, of_block(&s->kids[AST_if_then])),
                                                       down(m, of_block(&s->kids[AST_if_otherwise]))))
                                    : assign_params(m, call_in(m, value_of(s)));
  return end ? block_with(m, (statements){x.list, k}, end) : NULL;
}

static bool returns_last(const ast_node *block) { return block->n && block->kids[block->n - 1]->kind == AST_return; }

/* Is the value of a statement always nil? */
static bool is_worthless(const ast_node *s) {
  static const uint8_t kinds[] = {AST_let,   AST_assign, AST_define,   AST_for,
                                  AST_while, AST_break,  AST_continue, AST_import};
  return memchr(kinds, s->kind, sizeof kinds) != NULL;
}

/* Statements that make the variable the value of a block that ends with these. NULL if that cannot be. */
static ast_node *give(maker *m, statements x) {
  span at = x.n ? x.list[x.n - 1]->at : m->fn->at;
  for (uint32_t i = 0; i + 1 < x.n; i++) {
    const ast_node *s = x.list[i];
    if (!has_kind(s, AST_return)) continue;
    if (s->kind != AST_if || s->kids[AST_if_otherwise] || !returns_last(s->kids[AST_if_then])) return refused(m);
    if (++m->branches > BRANCHES_MAX) return refused(m);
    ast_node *all =
        branch_of(m, s, give(m, of_block(&s->kids[AST_if_then])), give(m, (statements){x.list + i + 1, x.n - i - 1}));
    return all ? block_with(m, (statements){x.list, i}, one(m, all)) : NULL;
  }
  ast_node *last = x.n ? x.list[x.n - 1] : NULL, *value = last;
  if (last && last->kind == AST_if) {
    ast_node *none = NULL, *const *other = last->kids[AST_if_otherwise] ? &last->kids[AST_if_otherwise] : &none;
    ast_node *all = branch_of(m, last, give(m, of_block(&last->kids[AST_if_then])),
                              give(m, *other ? of_block(other) : (statements){NULL, 0}));
    return all ? block_with(m, (statements){x.list, x.n - 1}, one(m, all)) : NULL;
  }
  bool returns = last && last->kind == AST_return;
  if (returns) value = last->kids[AST_return_value];
  if (value && has_kind(value, AST_return)) return refused(m);
  bool none = !value || is_worthless(value);
  if (none) value = make(m, AST_nil, at, 0, NULL);
  ast_node *set = make_assign(m, make_name(m, m->result, at), value, at);
  return set ? block_with(m, (statements){x.list, x.n - (last && (returns || !none))}, one(m, set)) : NULL;
}

/* Statements that always come to a call, with the variable in place of what that returns, which becomes what they return. */
static ast_node *up(maker *m, statements x) {
  uint32_t k;
  const ast_node *s = calling(m, x, &k);
  if (!s) return NULL;
  const statements before = {x.list, k};
  if (s->kind == AST_if) {
    ast_node *end =
        branch_of(m, s, up(m, of_block(&s->kids[AST_if_then])), up(m, of_block(&s->kids[AST_if_otherwise])));
    return end ? block_with(m, before, one(m, end)) : NULL;
  }
  const ast_node *e = value_of(s), *call = call_in(m, e);
  ast_node *with = with_result(m, s, call, make_name(m, m->result, call->at));
  if (!with || m->failed) return NULL;
  if (e == call && s->kind != AST_let && k + 1 == x.n) return block_with(m, before, NULL);
  ast_node *const *rest = x.list + k + 1;
  statements after = {rest, x.n - k - 1};
  ast_node *all = after.n || s->kind == AST_let ? NULL : give(m, (statements){&with, 1});
  if (!all) {
    ast_node *given = give(m, after);
    all = given ? block_with(m, (statements){&with, 1}, given) : NULL;
  }
  return all ? block_with(m, before, all) : NULL;
}

/* ---- the function ---- */

/* A way through the function without a call: what is asked, what the answer is there, and what the function then does. */
typedef struct base {
  ast_node *test;
  bool truth;
  statements then;
} base;

/* Statements that a function ends with, as one branch where one of them is `if c { ... return a }`: what follows is its other arm. */
static ast_node *as_branches(maker *m, statements x) {
  for (uint32_t i = 0; i < x.n; i++) {
    ast_node *s = x.list[i], *then = s->kind == AST_if ? s->kids[AST_if_then] : NULL;
    bool last = i + 1 == x.n;
    ast_node *const *other = s->kind == AST_if ? &s->kids[AST_if_otherwise] : NULL;
    if (!then || (last ? !*other : *other || !returns_last(then))) continue;
    if (++m->branches > BRANCHES_MAX) return refused(m);
    ast_node *all = branch_of(m, s, as_branches(m, of_block(&s->kids[AST_if_then])),
                              as_branches(m, last ? of_block(other) : (statements){x.list + i + 1, x.n - i - 1}));
    return all ? block_with(m, (statements){x.list, i}, one(m, all)) : NULL;
  }
  return block_with(m, x, NULL);
}

/* Takes the ways without a call from the front of the statements. */
static uint32_t bases_of(maker *m, statements *x, base *out) {
  uint32_t n = 0;
  while (n < TESTS_MAX && x->n == 1 && x->list[0]->kind == AST_if && x->list[0]->kids[AST_if_otherwise]) {
    ast_node *s = x->list[0];
    bool in_then = mentions(m, s->kids[AST_if_then]), in_other = mentions(m, s->kids[AST_if_otherwise]);
    if (in_then == in_other || mentions(m, s->kids[AST_if_cond]) || has_kind(s->kids[AST_if_cond], AST_return)) break;
    out[n++] = (base){s->kids[AST_if_cond], in_other, of_block(&s->kids[in_other ? AST_if_then : AST_if_otherwise])};
    *x = of_block(&s->kids[in_other ? AST_if_otherwise : AST_if_then]);
  }
  return n;
}

/* Do statements that always come to a call only compute before they make it? */
static bool statements_compute(maker *m, statements x) {
  uint32_t k;
  const ast_node *s = calling(m, x, &k);
  for (uint32_t i = 0; i < k && s; i++)
    if (!only_computes(m, x.list[i])) return false;
  if (!s || s->kind != AST_if) return s && computes_before(m, value_of(s));
  return only_computes(m, s->kids[AST_if_cond]) && statements_compute(m, of_block(&s->kids[AST_if_then])) &&
         statements_compute(m, of_block(&s->kids[AST_if_otherwise]));
}

/* May what stands before the calls be evaluated twice, and in another order? */
static bool can_repeat(maker *m, const base *bases, uint32_t nbases, statements x) {
  for (uint32_t i = 0; i < nbases; i++)
    if (!only_computes(m, bases[i].test)) return false;
  return statements_compute(m, x);
}

/* A loop of which each turn is a call within that of the turn before. */
static ast_node *descending(maker *m, ast_node *goes, const ast_node *turn) {
  span at = m->fn->at;
  ast_node *first[2] = {MAKE(m, AST_depth, at, make_name(m, m->depth, at)),
                        make_assign(m, make_name(m, m->depth, at),
                                    make_binary(m, AST_OP_add, make_name(m, m->depth, at), make_int(m, 1, at), at),
                                    at)};
  ast_node *body = m->failed ? NULL : block_with(m, (statements){first, 2}, turn);
  return body ? MAKE(m, AST_while, at, goes, body) : NULL;
}

/* `while` the function would call itself, it goes down. */
static ast_node *way_down(maker *m, const base *bases, uint32_t nbases, ast_node *turn) {
  ast_node *goes = NULL;
  for (uint32_t i = 0; i < nbases; i++) {
    ast_node *test = bases[i].truth ? MAKE(m, AST_not, bases[i].test->at, bases[i].test) : bases[i].test;
    goes = goes ? MAKE(m, AST_and, bases[i].test->at, goes, test) : test;
  }
  return m->failed || !turn ? NULL : descending(m, goes, turn);
}

/* What the last call does; `kept`: its result becomes the variable's value. */
static ast_node *result_of(maker *m, const base *bases, uint32_t n, bool kept) {
  ast_node *last = kept ? give(m, bases->then) : block_with(m, bases->then, NULL);
  if (n == 1 || !last) return last;
  ast_node *test = bases->truth ? bases->test : MAKE(m, AST_not, bases->test->at, bases->test);
  ast_node *other = result_of(m, bases + 1, n - 1, kept);
  return other && test ? one(m, MAKE(m, AST_if, test->at, test, last, other)) : NULL;
}

/* The turns of the way back. `turn` goes down by one level. */
static ast_node *way_up(maker *m, qn_str *const *kept, ast_node *turn, ast_node *back) {
  span at = m->fn->at;
  ast_node *first[64 + 3];
  uint32_t n = 0;
  bool computed = (m->varies & ~m->steps) == 0;
  ast_node *level =
      make_binary(m, AST_OP_sub, make_binary(m, AST_OP_sub, make_name(m, m->depth, at), make_int(m, 1, at), at),
                  make_name(m, m->turn, at), at);
  first[n++] = make_let(m, m->level, level, at);
  first[n++] = MAKE(m, AST_level, at, make_name(m, m->level, at));
  for (uint32_t i = 0; i < m->nparams; i++) {
    if (!(m->varies >> i & 1)) continue;
    ast_node *value = make_name(m, kept[i], at);
    if (computed) {
      int64_t step = m->step[i];
      ast_node *by = make_name(m, m->level, at);
      if (step != 1 && step != -1) by = make_binary(m, AST_OP_mul, by, make_int(m, step < 0 ? -step : step, at), at);
      value = make_binary(m, step < 0 ? AST_OP_sub : AST_OP_add, value, by, at);
    }
    first[n++] = make_assign(m, make_name(m, param_of(m, i)->u.s, at), value, at);
  }
  if (!computed) {
    qn_str *unused = own_name(m, "unused");
    first[n++] = for_calls(m, unused, m->level, turn, at);
  }
  ast_node *body = m->failed ? NULL : block_with(m, (statements){first, n}, back);
  return body ? for_calls(m, m->turn, m->depth, body, at) : NULL;
}

/* The body of the function as loops; NULL if that cannot be. */
static ast_node *body_as_loops(maker *m, recursion *out) {
  span at = m->fn->at;
  base bases[TESTS_MAX];
  ast_node *const *body = &m->fn->kids[AST_fn_body], *all_branches = as_branches(m, of_block(body));
  if (!all_branches) return NULL;
  statements rest = of_block(&all_branches);
  uint32_t nbases = bases_of(m, &rest, bases);
  if (!nbases || hides_param(m, *body, false)) return NULL;
  m->steps = ~(uint64_t)0;
  note_calls(m, rest);
  if (m->failed || !m->calls) return NULL;
  note_assignments(m, *body);
  out->returns = m->calls > m->tail;
  bool repeats = out->returns || nbases > 1;
  if (repeats && (m->r->prompt || !can_repeat(m, bases, nbases, rest))) return NULL;
  if (out->returns) m->varies |= m->assigned, m->steps &= ~m->assigned;
  if (m->nparams < 64) m->varies &= ((uint64_t)1 << m->nparams) - 1;
  m->steps &= m->varies;
  m->depth = own_name(m, "depth"), m->result = own_name(m, "result");
  m->turn = own_name(m, "turn"), m->level = own_name(m, "level");
  if (m->failed) return NULL;
  ast_node *all[64 + 8], *silent = out->returns ? down(m, rest) : NULL; /* (what goes down once more tells nothing) */
  qn_str *kept[64];
  uint32_t n = 0;
  if (m->calls > 1 && !out->computes && !tells_path(m, out, all, &n)) return NULL;
  ast_node *turn = down(m, rest);
  for (uint32_t i = 0; i < m->nparams && out->returns; i++) {
    if (!(m->varies >> i & 1)) continue;
    kept[i] = own_name(m, param_of(m, i)->u.s->text);
    if (kept[i]) all[n++] = make_let(m, kept[i], make_name(m, param_of(m, i)->u.s, at), at);
  }
  if (m->failed) return NULL;
  all[n++] = make_let(m, m->depth, make_int(m, 0, at), at);
  all[n++] = way_down(m, bases, nbases, turn);
  all[n++] = MAKE(m, AST_level, at, make_name(m, m->depth, at));
  ast_node *given = m->failed ? NULL : result_of(m, bases, nbases, out->returns);
  out->computed = (m->varies & ~m->steps) == 0;
  out->varies = m->varies;
  out->shrinks = m->shrinks;
  if (!given || !out->returns) return given ? block_with(m, (statements){all, n}, given) : NULL;
  all[n++] = make_let(m, m->result, make(m, AST_nil, at, 0, NULL), at);
  uint32_t before = n;
  all[n++] = way_up(m, kept, silent, up(m, rest));
  all[n++] = make_name(m, m->result, at);
  if (m->failed) return NULL;
  ast_node *end = make(m, AST_block, at, n - before, all + before);
  ast_node *tail = end ? block_with(m, (statements){given->kids, given->n}, end) : NULL;
  return tail ? block_with(m, (statements){all, before}, tail) : NULL;
}

/* Of statements that a function ends with a turn, which returns what they give, or where that is what the function returns when it calls itself, makes the
 * arguments the parameters. `notes`: only notes these calls. NULL if that cannot be. */
static ast_node *tail_turn(maker *m, statements x, bool notes) {
  ast_node *last = x.n ? x.list[x.n - 1] : NULL;
  for (uint32_t i = 0; i + 1 < x.n; i++)
    if (mentions(m, x.list[i])) return refused(m);
  span at = last ? last->at : m->fn->at;
  if (last && last->kind == AST_if) {
    if (mentions(m, last->kids[AST_if_cond])) return refused(m);
    ast_node *none = NULL, *const *other = last->kids[AST_if_otherwise] ? &last->kids[AST_if_otherwise] : &none;
    ast_node *then = tail_turn(m, of_block(&last->kids[AST_if_then]), notes);
    ast_node *otherwise = tail_turn(m, *other ? of_block(other) : (statements){NULL, 0}, notes);
    ast_node *all = branch_of(m, last, then, otherwise);
    return all ? block_with(m, (statements){x.list, x.n - 1}, one(m, all)) : NULL;
  }
  ast_node *value = last && last->kind == AST_return ? last->kids[AST_return_value] : last;
  bool kept = value && is_worthless(value);
  if (!value || kept) value = make(m, AST_nil, at, 0, NULL);
  if (m->failed || (kept && mentions(m, last))) return refused(m);
  ast_node *end;
  if (!is_call(m, value)) {
    if (mentions(m, value)) return refused(m);
    end = one(m, MAKE(m, AST_return, at, value));
  } else if (notes) {
    note_call(m, value, true);
    end = make(m, AST_block, at, 0, NULL);
  } else {
    end = assign_params(m, value);
  }
  return end ? block_with(m, (statements){x.list, x.n - (last && !kept)}, end) : NULL;
}

/* The body of a function that does nothing with what its calls of itself return, as `while true` with returns. NULL if that cannot be. */
static ast_node *body_of_turns(maker *m, recursion *out) {
  span at = m->fn->at;
  ast_node *const *body = &m->fn->kids[AST_fn_body];
  ast_node *all_branches = hides_param(m, *body, false) ? NULL : as_branches(m, of_block(body));
  if (!all_branches || !tail_turn(m, of_block(&all_branches), true) || !m->calls) return NULL;
  if (m->nparams < 64) m->varies &= ((uint64_t)1 << m->nparams) - 1;
  if (!(m->depth = own_name(m, "depth"))) return NULL;
  ast_node *always = make(m, AST_bool, at, 0, NULL);
  if (always) always->u.i = 1;
  ast_node *all[4] = {make_let(m, m->depth, make_int(m, 0, at), at)};
  uint32_t n = 1;
  if (m->calls > 1 && !out->computes && !tells_path(m, out, all, &n)) return NULL;
  ast_node *turn = tail_turn(m, of_block(&all_branches), false);
  all[n++] = turn ? descending(m, always, turn) : NULL;
  out->varies = m->varies;
  return m->failed || !all[n - 1] ? NULL : make(m, AST_block, at, n, all);
}

/* ---- functions that call each other -------------------------------------------------------------------------------------------- */

/* Does a tree (may be NULL) make a variable of this name? */
static bool binds(const ast_node *n, const qn_str *name, bool pattern) {
  if (!n) return false;
  if ((pattern && n->kind == AST_name && n->u.s == name) || (n->kind == AST_param && n->u.s == name)) return true;
  for (uint32_t i = 0; i < n->n; i++) {
    bool in = pattern || ((n->kind == AST_let || n->kind == AST_for) && i == 0);
    if (binds(n->kids[i], name, in)) return true;
  }
  return false;
}

static int by_name(const void *a, const void *b) {
  const uintptr_t x = (uintptr_t)(*(const ast_node *const *)a)->u.s, y = (uintptr_t)(*(const ast_node *const *)b)->u.s;
  return (x > y) - (x < y);
}

/* Lists the functions of the unit's top level, those of one name beside each other. False: memory is short. */
static bool list_functions(resolver *r) {
  const ast_node *root = r->root;
  if (!(r->functions = mem_alloc(r->vm, (root->n + (size_t)1) * sizeof *r->functions))) return false;
  for (uint32_t i = 0; i < root->n; i++)
    if (root->kids[i]->kind == AST_define) r->functions[r->nfunctions++] = root->kids[i];
  qsort(r->functions, r->nfunctions, sizeof *r->functions, by_name);
  return true;
}

/* The only function of the unit's top level that has this name; NULL: there is none, or there are several, or memory is short. */
static const ast_node *root_function(const maker *m, const qn_str *name) {
  resolver *r = m->r;
  if (!r->functions && !list_functions(r)) return NULL;
  uint32_t low = 0, high = r->nfunctions;
  while (low < high) {
    const uint32_t mid = low + (high - low) / 2;
    if ((uintptr_t)r->functions[mid]->u.s < (uintptr_t)name)
      low = mid + 1;
    else
      high = mid;
  }
  const ast_node *const *found = r->functions + low;
  const uint32_t n = r->nfunctions - low;
  if (!n || found[0]->u.s != name || (n > 1 && found[1]->u.s == name)) return NULL;
  return found[0];
}

/* That function, if it calls this one; else NULL. */
static const ast_node *partner_named(const maker *m, const qn_str *name) {
  const ast_node *found = root_function(m, name);
  return found && found->n > 2 && mentions(m, found->kids[AST_fn_body]) ? found : NULL;
}

/* The first function that a tree (may be NULL) calls and that calls this one; NULL: there is none. */
static const ast_node *partner_in(const maker *m, const ast_node *n) {
  const ast_node *found = NULL;
  if (!n) return NULL;
  if (n->kind == AST_call && n->kids[AST_call_callee]->kind == AST_name && n->kids[AST_call_callee]->u.s != m->name)
    found = partner_named(m, n->kids[AST_call_callee]->u.s);
  for (uint32_t i = 0; i < n->n && !found; i++) found = partner_in(m, n->kids[i]);
  return found;
}

/* A copy in which the variables of the function of `o` have names of their own. NULL if the other names in it would mean variables of `m`. */
static ast_node *renamed(maker *m, const maker *o, const ast_node *n) {
  ast_node *x = copy_of(m, n);
  if (x && n->kind == AST_name && binds(o->fn, n->u.s, false)) {
    char text[NAME_MAX_BYTES];
    int len = snprintf(text, sizeof text, "%s.%s", o->name->text, n->u.s->text);
    if (len < 0 || len >= (int)sizeof text) return refused(m);
    x->u.s = own_name(m, text);
  } else if (x && n->kind == AST_name && binds(m->fn, n->u.s, false)) {
    return refused(m);
  }
  for (uint32_t i = 0; x && i < n->n && !m->failed; i++)
    if (n->kids[i]) x->kids[i] = renamed(m, o, n->kids[i]);
  return x;
}

/* A call of the function of `o` in a statement, with the statements behind that. */
typedef struct call_place {
  const ast_node *statement, *call;
  statements after;
} call_place;

/* The statements of that function, each way of which ends with the statement, with what the way gives in place of the call. NULL if that cannot be. */
static ast_node *put_in(maker *m, const maker *o, statements x, const call_place *c) {
  for (uint32_t i = 0; i + 1 < x.n; i++)
    if (has_kind(x.list[i], AST_return)) return refused(m);
  ast_node *last = x.n ? x.list[x.n - 1] : NULL, *none = NULL;
  if (last && last->kind == AST_if) {
    ast_node *const *other = last->kids[AST_if_otherwise] ? &last->kids[AST_if_otherwise] : &none;
    ast_node *all = branch_of(m, last, put_in(m, o, of_block(&last->kids[AST_if_then]), c),
                              put_in(m, o, *other ? of_block(other) : (statements){NULL, 0}, c));
    return all ? block_with(m, (statements){x.list, x.n - 1}, one(m, all)) : NULL;
  }
  ast_node *value = last && last->kind == AST_return ? last->kids[AST_return_value] : last;
  bool kept = value && is_worthless(value);
  if (!value || kept) value = make(m, AST_nil, m->fn->at, 0, NULL);
  if (++m->branches > BRANCHES_MAX || m->failed || has_kind(value, AST_return)) return refused(m);
  maker seen = *o; /* (by whose calls the place is found) */
  ast_node *with = with_result(&seen, c->statement, c->call, value);
  if (!with || seen.failed) return refused(m);
  ast_node *after = block_with(m, c->after, NULL), *end = block_with(m, (statements){&with, 1}, after);
  return end ? block_with(m, (statements){x.list, x.n - (last && !kept)}, end) : NULL;
}

/* Statements with the function of `o` in place of the call of it that each way makes at most. NULL if that cannot be. */
static ast_node *with_partner(maker *m, const maker *o, statements x) {
  uint32_t k = 0;
  while (k < x.n && !mentions(o, x.list[k])) k++;
  if (k == x.n) return block_with(m, x, NULL);
  for (uint32_t i = k + 1; i < x.n; i++)
    if (mentions(o, x.list[i])) return refused(m);
  ast_node *s = x.list[k], *none = NULL;
  if (s->kind == AST_if) {
    if (mentions(o, s->kids[AST_if_cond]) || k + 1 < x.n) return refused(m);
    ast_node *const *other = s->kids[AST_if_otherwise] ? &s->kids[AST_if_otherwise] : &none;
    ast_node *all = branch_of(m, s, with_partner(m, o, of_block(&s->kids[AST_if_then])),
                              with_partner(m, o, *other ? of_block(other) : (statements){NULL, 0}));
    return all ? block_with(m, (statements){x.list, k}, one(m, all)) : NULL;
  }
  const ast_node *e = value_of(s), *call = e ? call_in(o, e) : NULL;
  if (!call || mentions(o, s) != 1) return refused(m);
  ast_node *made[64];
  for (uint32_t i = 0; i < o->nparams; i++) {
    ast_node *name = make_name(m, param_of(o, i)->u.s, call->at), *own = name ? renamed(m, o, name) : NULL;
    made[i] = own ? make_let(m, own->u.s, argument(o, call, i), call->at) : NULL;
  }
  const ast_node *body = o->fn->kids[AST_fn_body];
  ast_node *own = m->failed ? NULL : renamed(m, o, body);
  ast_node *branches = own && !m->failed ? as_branches(m, of_block(&own)) : NULL;
  const call_place place = {s, call, {x.list + k + 1, x.n - k - 1}};
  ast_node *put = branches ? put_in(m, o, of_block(&branches), &place) : NULL;
  ast_node *all = put ? block_with(m, (statements){made, o->nparams}, put) : NULL;
  return all && !m->failed ? block_with(m, (statements){x.list, k}, all) : NULL;
}

/* Are the parameters such as recursion as loops needs them? */
static bool plain_params(const maker *m) {
  if (m->nparams == 0 || m->nparams > 64 || m->fn->kids[AST_fn_result]) return false;
  for (uint32_t i = 0; i < m->nparams; i++) {
    const ast_node *p = param_of(m, i);
    if ((p->flags & AST_REST) || p->kids[AST_param_type] || p->u.s == m->name) return false;
  }
  return true;
}

/* The function with those in place of calls that call it, and do nothing but compute; `out` gets what these must be when it runs. NULL: there are none, or that
 * cannot be. */
static const ast_node *with_partners(maker *m, recursion *out) {
  if (m->r->scope->library || !m->r->root) return NULL;
  const ast_node *fn = m->fn;
  if (root_function(m, m->name) != fn) return NULL; /* in a function, or a block, names may mean variables of that */
  while (true) {
    m->fn = fn;
    const ast_node *body = fn->kids[AST_fn_body], *partner = partner_in(m, body);
    if (!partner) break;
    maker o = {.r = m->r, .fn = partner, .name = partner->u.s, .nparams = partner->n - 2};
    if (out->npartners == PARTNERS_MAX || !plain_params(&o) || mentions(&o, partner->kids[AST_fn_body])) return NULL;
    if (binds(fn, o.name, false) || binds(fn, m->name, false) || binds(partner, m->name, false)) return NULL;
    const ast_node *theirs = partner->kids[AST_fn_body];
    if (has_kind(theirs, AST_define) || has_kind(theirs, AST_fn) || has_kind(theirs, AST_try)) return NULL;
    out->partners[out->npartners++] = (recursion_partner){scope_find(m->r->scope, o.name), partner->at};
    ast_node *branches = as_branches(m, of_block(&fn->kids[AST_fn_body]));
    ast_node *with = branches ? with_partner(m, &o, of_block(&branches)) : NULL, *x = with ? copy_of(m, fn) : NULL;
    if (!x || m->failed || mentions(&o, with)) return NULL;
    x->kids[AST_fn_body] = with;
    fn = x;
  }
  return out->npartners && computes(m, fn->kids[AST_fn_body], true) ? fn : NULL;
}

ast_node *recursion_loop(resolver *r, const ast_node *fn, const qn_str *name, recursion *out) {
  maker m = {.r = r, .fn = fn, .name = name, .nparams = fn->n - 2};
  *out = (recursion){0};
  if (!plain_params(&m)) return NULL;
  recursion with = {0};
  const ast_node *own = mentions(&m, fn->kids[AST_fn_body]) ? NULL : with_partners(&m, &with);
  if (own)
    fn = own;
  else if (!mentions(&m, fn->kids[AST_fn_body]))
    return NULL;
  m = (maker){.r = r, .fn = fn, .name = name, .nparams = fn->n - 2};
  bool only = computes(&m, fn->kids[AST_fn_body], true); /* (what it assigns is its own) */
  with.computes = only;
  *out = with;
  ast_node *body = body_as_loops(&m, out);
  if (!body) {
    m = (maker){.r = r, .fn = fn, .name = name, .nparams = fn->n - 2, .steps = ~(uint64_t)0};
    *out = with;
    body = body_of_turns(&m, out);
  }
  out->site = m.site;
  ast_node *x = body ? copy_of(&m, fn) : NULL;
  if (!x || m.failed) return NULL;
  x->kids[AST_fn_body] = body;
  x->flags |= AST_SHORT; /* what it ends with needs no look */
  return x;
}
