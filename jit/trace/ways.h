/* Ways through a part of the program that is being captured: how it is left before its end, and how its ways come together again (ways.c). */
#ifndef JIT_TRACE_WAYS_H
#define JIT_TRACE_WAYS_H

#include "jit/trace/recording.h"

/* What the end of a way has, behind the values of the variables. */
enum {
  END_VALUE,    /* the value of the part; unset if it is left */
  END_RETURNED, /* what the function returns; unset if it does not return here */
  /* Bools, which may depend on data: is what follows skipped; and where there is a turn to leave: is its loop left; does the function return? */
  END_LEFT,
  END_LEAVES,
  END_RETURNS,
  /* An int, which may depend on data, too: the number of the error of rec_way.throws with which the try around is left; 0: it is not. */
  END_RAISES,
  END_WORDS, /* what its words, and the record that it was raised with, are made of (way_words); unset if it has none that wait */
  END_HANDLED, /* a bool, which may depend on data, too: is the try left because its handler has run? Its value is END_RETURNED then */
  END_MISSED, /* the turn goes another way than the one that is recorded (way_choices): nothing else of the end counts */
  END_PARTS
};

/* Where a way ends: the recording, what the variables hold there, and the parts of the end. */
typedef struct way_end {
  struct recording *r; /* owned */
  qn_value *held;      /* owned: of n variables, then END_PARTS parts */
  uint8_t *idle;       /* for each of these: nobody will read it */
  uint32_t *first;     /* for each of these: the number of its first leaf in `nodes` */
  uint32_t nheld;
  uint32_t *nodes, n, cap; /* of the leaves that are arrays or numbers; 0 of others (and NODE_LATER, see ways.c) */
  bool
      plain; /* where it meets another one is no place where the interpreter parts variables (parted.c): what they share stays shared */
} way_end;

typedef enum way_kind {
  WAY_TURN, /* a turn of a loop: left by break, continue and return */
  WAY_ARM,  /* an arm of a branch: left by what leaves the turn or the function around it */
  WAY_TAIL, /* the rest of a function: left by return */
  WAY_TRY   /* the body of a try: left by errors, behind whose handlers its value is what these give (tries.c) */
} way_kind;

/* What a loop of several kinds of values has left behind it in the first way of a part (states.c): other ways that come to it by the same choices
 * find it there, and make no such loop of their own. */
typedef struct way_loop {
  struct recording *r; /* where it stands; NULL: there is none */
  span at;
  uint32_t choice;  /* how many choices have been made when it was chosen how it ends */
  qn_value *values; /* owned */
  rec_slots slots;  /* their number counts */
  bool alone;       /* the way has computed no floats before it */
} way_loop;

/* One way through a turn where branches do not agree in what they make of variables (states.c): which part is taken at each of these, in the
 * order in which they are come to. Wherever the program takes another one, the turn is missed. */
enum { CHOICES_MAX = 16 };
typedef struct way_choices {
  uint8_t made[CHOICES_MAX], of[CHOICES_MAX]; /* which part, of how many */
  span places[CHOICES_MAX];                   /* where in the program */
  uint32_t n, at;                             /* how many are given, the others are 0; how many have been come to */
  bool closed; /* none may be made: the turn is that of a loop as a whole, or a try was left plain */
  bool wanted; /* one was to be made */
  bool tried;  /* at the end of a try, which could be recorded without it */
  bool many;   /* more than CHOICES_MAX were to be made */
  bool again;  /* they differ from others only in arms that they do not take */
  bool
      required; /* the turn is also missed where a condition is not what way_require wants, which no choice stands for */
  bool fork;    /* it is no turn, but a part of a block or a call (forks.c) */
  way_loop *loop;            /* borrowed: of such a part; else NULL */
  const struct recording *r; /* where the turn begins, and the number of its first node there */
  uint32_t from;
  int grads; /* how many gradients are in progress there */
} way_choices;

/* Choices that have been made in a part of it: from this number, up to that one. */
typedef struct way_made {
  uint32_t from, end;
} way_made;

/* What catches the errors of arms in a try that is captured as a way (tries.c). */
typedef struct way_handler {
  const rec_handler *of;
  uint32_t trying;          /* recording.trying in it: more, while another try is in progress there */
  uint32_t calls;           /* how many calls are in progress around it, arms and all */
  const char *function;     /* in which it stands */
  bool caught;              /* it has run, or will run */
  struct thrown {           /* errors that leave loops and functions in it; their numbers count from 1 */
    qn_error_object *error; /* owned */
    qn_value
        said;     /* owned: its message and payload, as they were raised first, if these wait for something; else nil */
    bool pending; /* some way that is being recorded ends with it */
  } * thrown;
  uint32_t nthrown, thrown_cap;
} way_handler;

/* A part of the program that is being captured. While one of its branches goes on, the other one having left the part, what follows is
 * recorded in the arm that goes on. */
struct rec_way {
  rec_way *outer;      /* the one in progress when it began */
  struct recording *r; /* where what stands directly in it is recorded now */
  rec_slots slots;     /* the variables that matter behind it */
  int own;             /* of these the first ones, which it may rebind; others belong to what is around it */
  rec_way *
      whole; /* of a turn of a loop that is captured turn by turn: the way of the loop, which break leaves (unrolled.c) */
  const rec_way *turn; /* the turn that break and continue leave; NULL: there is none */
  /* Of the try that errors leave, where its handler can run at once; and of the one around that, or around the loop or the function that the way stands
   * in: that is left with the number of the error. NULL: there is none. */
  way_handler *catches, *throws;
  uint32_t calls;         /* how many calls are in progress in r; in other calls are other functions */
  const rec_block *block; /* the innermost block in progress when it began */
  way_kind kind;
  int grads; /* how many gradients were in progress: the function of one that begins in it must end where it has begun */
  qn_value *sp; /* of the value stack, when it began */
  int inner;    /* loops in it that the interpreter runs as usual */
  bool may_break, may_return;
  bool handled;      /* it ends with the value of a handler that has run, and leaves its try */
  bool parts;        /* some branch in it leaves it, or the part around it */
  qn_value returned; /* borrowed: what ways that do not return have in place of what is returned; unset: anything */
  bool gone;         /* all ways have left it: */
  qn_value parted[END_PARTS]; /* then the parts of the end, owned */
  way_choices *choices;       /* those of the turn that it stands in, or NULL */
  struct open_branch *open;   /* branches one of whose arms has left it, the innermost first */
  vm_owned held;              /* what it owns, should the host leave */
};

static inline bool is_bool(qn_value v, bool b) { return v.head == TAG_BOOL && (v.u.i != 0) == b; }
/* END_RAISES of an end with which no try is left. */
static inline bool raises_never(qn_value v) { return value_is(v, TAG_INT) && !value_node(v) && v.u.i == 0; }
void end_parts_free(qn_vm *vm, qn_value *parts);

/* The way that what is recorded next belongs to: it stands directly in that part, in the same function. NULL: none. */
rec_way *way_of(const struct recording *r);
/* Is what is recorded in r, which is w->r or an arm in it, in a function that is called in w? */
bool way_calls(const rec_way *w, const struct recording *r);
/* Begins a way in r. `around`: as way_of gives it for the recording around r, or NULL: nothing around it may be left. */
void way_begin(rec_way *w, way_kind kind, struct recording *r, const rec_way *around, rec_slots slots);
/* Ends it: the program has come to its end in the given manner, with value v (taken over). All ways are joined, in the recording where it
 * began. The variables are set, and the parts of the end (owned). False: it cannot be captured like this, or an error is raised. */
QN_MUST_CHECK bool way_close(qn_vm *vm, rec_way *w, rec_exit how, qn_value v, qn_value *parts);
/* Ends it when it cannot be captured. */
void way_drop(qn_vm *vm, rec_way *w);
/* One arm of a branch has left w (`gone`), the other one goes on (`on`, a recording). Takes over both. False with an error raised. */
QN_MUST_CHECK bool way_open(qn_vm *vm, rec_way *w, way_end *gone, struct recording *on, uint32_t predicate,
                            uint32_t site, bool turned);
/* As way_open; but if w is a turn, and the arm has left its loop, it is that which the arm leaves (rec_way.whole). The arms have made choices from number
 * `from` on, and among these the one that has left `made`. */
QN_MUST_CHECK bool way_leave(qn_vm *vm, rec_way *w, way_end *gone, struct recording *on, uint32_t predicate,
                             uint32_t site, bool turned, uint32_t from, way_made made);
/* All ways have left w, with these parts (borrowed) of an end: nothing follows, and the interpreter goes to the end of the way. */
void way_all_left(rec_way *w, const qn_value *parts);
/* Behind a branch or loop that may have left w, as parts[END_LEFT] tells, which depends on data: what follows is recorded in the arm that
 * goes on. Borrows the parts. False with an error raised. (The branch gets a site of the recording that w is in, which each split makes another one.) */
QN_MUST_CHECK bool way_split(qn_vm *vm, rec_way *w, const qn_value *parts);

/* Parts that are captured in several ways (forks.c, states.c), one in another, could be recorded for seconds. So what is recorded in ways is counted, and
 * taken off again when the outermost part has been captured: what comes to nothing is bounded, for a function as a whole. */
uint64_t ways_begin(struct recording *r);              /* a part begins; gives the count */
void ways_end(struct recording *r);                    /* it ends */
void ways_worked(struct recording *r, uint32_t nodes); /* a way has been recorded, which has so many nodes */
void ways_used(struct recording *r,
               uint64_t before); /* the part that has ended, and which began at this count, has been captured */
bool ways_enough(const struct recording *r); /* no further way is to be recorded */

/* The choices that come behind these, in which a turn has been recorded. False: they were the last ones. */
bool way_next(way_choices *c);
/* The way in which one of several parts may be chosen in r: that of way_of, or where a part of a block is captured in several ways also the one around
 * the function in progress. NULL: none. */
rec_way *way_chooser(const struct recording *r);
/* The way in which it may be chosen what variables are behind a part in r, in this function or around it; or NULL. */
rec_way *way_chooser_here(const struct recording *r);
/* Behind the rest of a function in which way w around that function may have been missed, as data: what follows is recorded where it is not. False with
 * an error raised. */
QN_MUST_CHECK bool way_split_missed(qn_vm *vm, rec_way *w, qn_value missed);
/* Has y, a value of arm `to` in r, the structure, dtypes and shapes of x, a value of r? False, too, with an error raised. */
bool way_alike(struct recording *r, qn_value x, struct recording *to, qn_value y);
/* Chooses one of n parts that do not agree. -1: it cannot be chosen; perhaps it can once the turn is recorded again. */
int way_choose(const rec_way *w, int n);
/* As way_choose, one of two parts in which choices have been made: does one of these differ from 0, which comes first? A part where one does is taken at
 * once: all that has been made of the other one stands in the way where it is 0. So a chain of n branches has n + 1 ways, not 2^n. */
int way_choose_of_two(const rec_way *w, const bool differs[2]);
/* Is one of these choices not 0? */
bool way_differs(const way_choices *c, way_made made);
/* May parts be chosen here? */
static inline bool way_chooses(const rec_way *w) { return w && w->choices && !w->choices->closed; }
/* Has a turn written something out before this place in r, which stands in it? Then it cannot be missed any more. */
bool way_told(const way_choices *c, const struct recording *r);
/* Makes an end at which way w is missed of the end of an arm. False with an error raised. */
QN_MUST_CHECK bool end_miss(qn_vm *vm, way_end *end, const rec_way *w);
/* From here on way w, where parts may be chosen, is missed unless a condition has this truth. False with an error raised. */
QN_MUST_CHECK bool way_require(qn_vm *vm, rec_way *w, qn_value condition, bool truth);

/* Is the pending error one that the program raises whenever it comes here? (Not, for one, that an arm cannot be captured.) */
bool way_raises(const qn_vm *vm);
/* The way around the function in progress in r, if errors leave that; NULL: none. */
rec_way *way_catcher(const struct recording *r);
/* Does the try that w stands in catch the pending error, so that an arm that ends with it leaves the try? */
bool way_catches(const qn_vm *vm, const rec_way *w);
/* The pending error, with which w ends, leaves the try of w->throws: its number there, and it is pending no more. 0: it does not. *words (owned): as
 * END_WORDS has them. */
int64_t way_throw(qn_vm *vm, rec_way *w, qn_value *words);
/* Of a way that begins in w, or in a function called in it: the handler of the try that errors leave with a number. */
static inline way_handler *way_thrower(const rec_way *w) { return !w ? NULL : w->catches ? w->catches : w->throws; }
/* Behind a part that stands in w, or in a function called in it, whose END_RAISES is `raises` and whose END_WORDS is `words` (borrowed): where the one is
 * not 0, w is left, and what follows is recorded where it is. False with an error raised. */
QN_MUST_CHECK bool way_split_raised(qn_vm *vm, rec_way *w, qn_value raises, qn_value words);
/* Runs its handler on that error; w leaves the try, unless the handler ends otherwise (*how). Owned: its value. */
QN_MUST_CHECK qn_value way_catch(qn_vm *vm, rec_way *w, rec_exit *how);
/* Can the call that is captured be made again by the interpreter, if it does not go as captured? */
bool way_may_exit(const struct recording *r);
/* From here on the captured call goes on only if a condition has this truth: else 1 is divided by 0, whereupon the interpreter makes the call
 * again. False with an error raised. */
QN_MUST_CHECK bool way_expect(struct recording *r, qn_value condition, bool truth);

/* As way_expect, of a bool that is a host number outside of arms, and true now. The host int 1, which is there once that has been looked at; or the error
 * value. Of a bool that is an array without axes: such an array (owned). */
qn_value way_expect_number(struct recording *r, qn_value condition);

/* Notes what the variables hold and the parts (taken over) at the end of a way in end->r. `w`: the way around, or NULL. */
QN_MUST_CHECK bool end_note(way_end *end, rec_slots held, qn_value *parts, const rec_way *w);
void end_free(qn_vm *vm, way_end *end);
/* Two ways come together: a branch node is appended to r, whose results replace what differs. ends[k]: as they were recorded; `turned`: the
 * first one is that of the second arm. The first `own` variables are those that the ways may rebind. joined[i] gets the value of held value i,
 * owned. REC_DONE; REC_NOT_YET: they do not agree, or an error is raised that arms_refused looks at; REC_FAILED with an error raised. *differs
 * (may be NULL): the number of the value in which they do not agree. */
QN_MUST_CHECK rec_answer ends_join(struct recording *r, way_end *const ends[2], int own, bool turned,
                                   uint32_t predicate, uint32_t site, qn_value *joined, uint32_t *differs);

/* What variables hold, owned; NULL with an error raised. */
QN_MUST_CHECK qn_value *slots_keep(qn_vm *vm, rec_slots s);
void slots_free(qn_vm *vm, rec_slots s, qn_value *kept);
/* What the variables hold at the end of an arm, and n more values, as one list for arm_splice: *values, owned; nil where this gives false. False with
 * an error raised, or without one if a text among them waits for the arm, which would be lost. */
QN_MUST_CHECK bool arm_values(struct recording *arm, rec_slots s, const qn_value *more, int n, qn_value *values);
/* Can they join it? Not where its sizes depend on numbers that are none there. */
bool arm_may_join(const struct recording *arm);
/* The nodes of an arm join the recording around it. *v (owned), a value of the arm, becomes one of that; the error value, and false, with an
 * error raised. */
QN_MUST_CHECK bool arm_splice(struct recording *r, struct recording *arm, qn_value *v);

/* The test of a loop that does not count: a bool where it is one, also as an array of one element. */
QN_MUST_CHECK qn_value way_test(qn_vm *vm, const rec_turns *turns, rec_exit *how);
/* An arm of the value false. */
qn_value way_false(void *ctx, rec_exit *how);

#endif
