/* The text of schedules (schedule.h): written into programs, where `--log kernels` and golden tests show it, and read to force one. */
#include <string.h>

#include "jit/kernel/sched_impl.h"

static const char *const role_names[LOOP_ROLES] = {
    [LOOP_PAR] = "par", [LOOP_FOR] = "for", [LOOP_VEC] = "vec", [LOOP_TILE] = "tile"};

static void print_list(const k_kernel *k, const loop_list *l, text_buf *out) {
  for (int i = 0; i < l->n; i++) {
    const sched_loop *x = &l->at[i];
    bool same = i && x->role == x[-1].role;
    text_addf(out, "%s%s %s", same ? "," : i ? "; " : "", same ? "" : role_names[x->role], k->axes[x->axis].name);
    if (x->size > 1) text_addf(out, "/%lld", (long long)x->size);
  }
  if (!l->n) text_adds(out, "once");
}

void nest_print(const k_kernel *k, const sched_nest *n, text_buf *out) {
  print_list(k, &n->main, out);
  if (n->turn) text_adds(out, "; turn");
  if (!n->after.n) return;
  text_adds(out, " | ");
  print_list(k, &n->after, out);
  if (n->group) text_addf(out, "; group %lld", (long long)n->group);
}

static void blanks(const char **at) { *at += strspn(*at, " \t"); }

static bool take(const char **at, const char *word) {
  size_t n = strlen(word);
  blanks(at);
  if (strncmp(*at, word, n) != 0 || (n > 1 && strchr("abcdefghijklmnopqrstuvwxyz0123456789_", (*at)[n]) && (*at)[n]))
    return false;
  *at += n;
  return true;
}

static bool take_number(const char **at, int64_t *n) {
  blanks(at);
  size_t digits = strspn(*at, "0123456789");
  *n = 0;
  for (size_t i = 0; i < digits; i++) *n = *n < INT64_MAX / 16 ? 10 * *n + ((*at)[i] - '0') : *n;
  *at += digits;
  return digits > 0;
}

static int take_axis(const char **at, const k_kernel *k) {
  blanks(at);
  for (int a = 0; a < (int)k->naxes; a++) {
    size_t n = strlen(k->axes[a].name);
    if (strncmp(*at, k->axes[a].name, n) != 0 || !strchr(" ,;/|", (*at)[n])) continue;
    *at += n;
    return a;
  }
  return -1;
}

bool nest_parse(const k_kernel *k, const char **at, sched_nest *n) {
  loop_list *l = &n->main;
  *n = (sched_nest){.effects = n->effects};
  do {
    int role = -1;
    for (int r = 0; r < LOOP_ROLES && role < 0; r++)
      if (take(at, role_names[r])) role = r;
    if (role < 0) {
      if (take(at, "turn"))
        n->turn = true;
      else if (take(at, "group") ? !take_number(at, &n->group) : !take(at, "once"))
        return false;
    }
    do {
      if (role < 0) break;
      sched_loop x = {.role = (uint8_t)role, .axis = (int8_t)take_axis(at, k), .size = role == LOOP_PAR};
      if (x.axis < 0 || l->n == SCHED_LOOPS || (take(at, "/") && (role != LOOP_PAR || !take_number(at, &x.size))))
        return false;
      l->at[l->n++] = x;
    } while (take(at, ","));
    if (take(at, ";")) continue;
    blanks(at);
    if (l == &n->after || **at != '|' || (*at)[1] == '|') return true;
    (*at)++;
    l = &n->after;
  } while (true);
}
