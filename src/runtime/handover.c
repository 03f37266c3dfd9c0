#include "runtime/handover.h"

static _Thread_local handover *now;

void handover_open(handover *h)
{
	h->outer = now;
	now = h;
}

void handover_close(handover *h)
{
	now = h->outer;
}

handover *handover_enter(void)
{
	handover *h = now;
	now = NULL;
	return h;
}

void handover_leave(handover *h)
{
	now = h;
}

clv_status handover_pass(handover *h)
{
	h->passed = true;
	clv_status st = fail(CLV_E_GUARD, "the plan differs from that of the run so far");
	status_details()->undone = true;
	return st;
}

clv_status handover_undo(handover *h, bool *whole)
{
	*whole = true;
	clv_status st = h->kind ? h->kind->undo(h, whole) : CLV_OK;
	handover_drop(h);
	return st;
}

void handover_drop(handover *h)
{
	if (h->kind)
		h->kind->drop(h);
	h->kind = NULL;
}
