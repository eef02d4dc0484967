/* Lists that grow in captured loops (grown.c). */
#ifndef JIT_TRACE_GROWN_H
#define JIT_TRACE_GROWN_H

#include "jit/trace/recording.h"

/* A list while it grows, as its variable holds it: a list of three parts. */
enum {
  GROWN_MARK, /* a signal, which no value of a program is: the number of its grown_items, and how many items the turn has added */
  GROWN_BASE,  /* a host int: where the first of these lies in the buffers; nil: it is not known yet */
  GROWN_PARTS, /* a list of buffers, one for each leaf of an item; nil: there are none yet */
  GROWN_N
};

/* What is known of the items of one list, from the first time that the loop's body has been recorded on. */
typedef struct grown_items {
  bool known;        /* an item has been added */
  qn_value shape;    /* owned: an item with unset in place of its arrays and numbers */
  bool looks;        /* a loop's body is recorded to find out what is added to a counted list */
  uint32_t turns;    /* recording.turns in that body */
  uint32_t adds;     /* how often it adds an item to such a list, on all its ways together */
  bool stores;       /* it stores an item in the place of another one */
  bool removes;      /* it takes items away, */
  bool fronts;       /* also from the front */
  bool within;       /* something is added in loops within the body, or by its condition: perhaps more often */
  bool data;         /* some of these are no numbers that the host would know, were the loop unrolled */
  graph_type *types; /* those of its arrays and numbers, in order */
  uint32_t n, cap;
} grown_items;

/* Does it stand for a list of rec_turns.added? */
bool grown_is_added(qn_value v);
/* Lists to which a turn adds items, in which their variables hold what stands for them. False with an error raised. */
QN_MUST_CHECK bool grown_added(struct recording *r, rec_added *added, uint32_t n);
/* A number for a new list. 0 with an error raised. */
QN_MUST_CHECK uint32_t grown_new(struct recording *r);
/* Its items. The pointer is good until the next list is added. */
grown_items *grown_of(const struct recording *r, uint32_t number);
/* The number of a list that grows, and how many items were added in the turn. */
uint32_t grown_number(qn_value v);
uint32_t grown_count(qn_value v);
/* A list that grows; takes over its base and buffers. Owned, or the error value. */
QN_MUST_CHECK qn_value grown_value(qn_vm *vm, uint32_t number, uint32_t count, qn_value base, qn_value parts);
/* The buffers (parts) in which a turn has stored `count` items, stored behind all other nodes: so an item gets the cotangent of what reads the list
 * behind the loop before those of the turn's nodes that read it, too, as from the interpreter. Item by item, in the order in which their leaves are
 * parted. Owned, or the error value. */
QN_MUST_CHECK qn_value grown_stored(struct recording *r, qn_value parts, uint32_t count);
/* A list of new buffers with room for n items. Owned, or the error value, perhaps without an error raised: then there can be none. */
QN_MUST_CHECK qn_value grown_buffers(struct recording *r, uint32_t number, int64_t n);
/* Do the items of an ordinary list look like those in the buffers? */
bool grown_fits(struct recording *r, uint32_t number, qn_value list);
/* The stacked list of the items of a list that fits, which may be none, and those that lie in the buffers. Owned, or the error value. */
QN_MUST_CHECK qn_value grown_stacked(struct recording *r, uint32_t number, qn_value parts, qn_value list);
/* Appends the items that lie in the buffers to a list (owned, with one owner). False with an error raised. */
QN_MUST_CHECK bool grown_list(struct recording *r, uint32_t number, int64_t n, qn_value parts, qn_value *list);

/* ---- counted lists: stacked ones whose number of items is a number of the graph (rec.h) ---- */

/* More of STACKED_MARK. From COUNTED_NUMBER on it holds the number of the list's grown_items. */
enum {
  COUNTED_INSIDE = 8, /* there is room for all items that may be added */
  COUNTED_LOOKS = 16, /* the items are not known yet; the count is the only part */
  COUNTED_FRONT =
      32, /* the part before the count is the row of the first item, a number of the graph; of other lists that is row 0 */
  COUNTED_NUMBER = 8 /* bits before it */
};
static inline uint32_t counted_number(qn_value v) { return (uint32_t)stacked_mark(v) >> COUNTED_NUMBER; }
/* Makes the items of an ordinary list, of which there may be none, or of a stacked one those that its counted list is to have. False: they are not alike,
 * or an error is raised. */
QN_MUST_CHECK bool counted_begin(struct recording *r, uint32_t number, qn_value list);
/* What stands for it while a body is recorded in which it is found out what is added. Owned, or the error value. */
QN_MUST_CHECK qn_value counted_looks(struct recording *r, uint32_t number, qn_value list);
/* How many items it has: the capture ends if that is data. -1 with an error raised. */
int64_t counted_length(qn_vm *vm, qn_value v);
/* The row of its first item, likewise. */
int64_t counted_first(qn_vm *vm, qn_value v);
/* May lists become counted ones? In lanes they may differ in length. In gradients cotangents of items would be added up in another order: the
 * interpreter has that of who reads the list behind the loop before those of the turn that has made the item, a loop has it where the item is
 * stored. */
bool counted_may(struct recording *r);
/* Room for how many items, where nothing is known of the number of turns. */
int64_t counted_room(const struct recording *r, uint32_t number);
/* Room for how many items at most, where turns may add fewer than they all could, `early`: since they may end: buffers are cleared, whatever part of them is
 * used. */
int64_t counted_room_most(const struct recording *r, uint32_t number, bool early);
/* Bytes of an item in the buffers. */
int64_t counted_bytes(const struct recording *r, uint32_t number);
/* The counted list of these items, with room for n, a size; INSIDE: it is known to be enough. Owned, or the error value, perhaps without an error raised. */
QN_MUST_CHECK qn_value counted_new(struct recording *r, uint32_t number, qn_value list, int64_t n, bool inside);
/* The counted list (borrowed) behind the loop: as it is if n is 0, else with n items, a size, which are all that there is room for. Owned, or the error value. */
QN_MUST_CHECK qn_value counted_end(struct recording *r, qn_value v, int64_t n);

#endif
