/* Leaving the library as an exception of a host does: a forced unwind runs the cleanups of the frames on its way.
 *
 * Whoever is to be returned to sets `leave_to` to its frame and calls setjmp(left); _Unwind_ForcedUnwind(&exception, stop, NULL) leaves. */
#ifndef TESTS_UNIT_UNWIND_H
#define TESTS_UNIT_UNWIND_H

#include <setjmp.h>
#include <unwind.h>

static jmp_buf left;
static struct _Unwind_Exception exception;
static char *leave_to;

static _Unwind_Reason_Code stop(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                struct _Unwind_Exception *e, struct _Unwind_Context *context, void *param) {
  (void)version, (void)kind, (void)e, (void)param;
  if ((char *)_Unwind_GetCFA(context) > leave_to || (actions & _UA_END_OF_STACK)) longjmp(left, 1);
  return _URC_NO_REASON;
}

#endif
