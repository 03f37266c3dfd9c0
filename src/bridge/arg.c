/* Arguments as plans have them and as the bridge has them: compared, and turned into each other.
 *
 * What is plain (no tensor, integer, object or list) is the same on both sides but for where its text lives. */
#include "bridge/bridge.h"

#include <string.h>

static bool same_double(double x, double y)
{
	return memcmp(&x, &y, sizeof x) == 0;
}

bool br_arg_same(const br_arg *x, const br_arg *y)
{
	if (x->kind != y->kind || x->wrapped != y->wrapped)
		return false;
	switch ((br_kind)x->kind) {
	case BR_NONE: return true;
	case BR_TENSOR:
	case BR_OBJECT:
	case BR_INTVAR:
	case BR_REALVAR:
	case BR_BOOLVAR: return x->u.id == y->u.id;
	case BR_INT: return x->u.i == y->u.i;
	case BR_FLOAT: return same_double(x->u.f, y->u.f);
	case BR_BOOL: return x->u.b == y->u.b;
	case BR_COMPLEX: return same_double(x->u.c.re, y->u.c.re) && same_double(x->u.c.im, y->u.c.im);
	case BR_STR:
	case BR_DEVICE: return !strcmp(x->u.s, y->u.s);
	case BR_DTYPE:
	case BR_LAYOUT:
	case BR_MEMFMT: return x->u.code == y->u.code;
	case BR_LIST: break;
	}
	if (x->u.list.n != y->u.list.n)
		return false;
	for (uint32_t i = 0; i < x->u.list.n; i++)
		if (!br_arg_same(&x->u.list.at[i], &y->u.list.at[i]))
			return false;
	return true;
}

bool br_from_plain(const plan *p, const arg *from, br_arg *to)
{
	*to = (br_arg){.wrapped = from->wrapped};
	switch ((arg_kind)from->kind) {
	case ARG_NONE: to->kind = BR_NONE; return true;
	case ARG_FLOAT:
		to->kind = BR_FLOAT;
		to->u.f = from->u.f;
		return true;
	case ARG_BOOL:
		to->kind = BR_BOOL;
		to->u.b = from->u.b;
		return true;
	case ARG_COMPLEX:
		to->kind = BR_COMPLEX;
		to->u.c.re = from->u.c.re;
		to->u.c.im = from->u.c.im;
		return true;
	case ARG_STR:
	case ARG_DEVICE:
		to->kind = from->kind == ARG_STR ? BR_STR : BR_DEVICE;
		to->u.s = plan_s(p, from->u.s);
		return true;
	case ARG_DTYPE:
	case ARG_LAYOUT:
	case ARG_MEMFMT:
		to->kind = from->kind == ARG_DTYPE ? BR_DTYPE : from->kind == ARG_LAYOUT ? BR_LAYOUT : BR_MEMFMT;
		to->u.code = from->u.code;
		return true;
	default: return false;
	}
}

clv_status br_to_plain(plan *p, const br_arg *from, arg *to)
{
	*to = (arg){.wrapped = from->wrapped};
	switch ((br_kind)from->kind) {
	case BR_NONE: to->kind = ARG_NONE; return CLV_OK;
	case BR_FLOAT:
		to->kind = ARG_FLOAT;
		to->u.f = from->u.f;
		return CLV_OK;
	case BR_BOOL:
		to->kind = ARG_BOOL;
		to->u.b = from->u.b;
		return CLV_OK;
	case BR_COMPLEX:
		to->kind = ARG_COMPLEX;
		to->u.c.re = from->u.c.re;
		to->u.c.im = from->u.c.im;
		return CLV_OK;
	case BR_STR:
	case BR_DEVICE: to->kind = from->kind == BR_STR ? ARG_STR : ARG_DEVICE; return plan_cstr(p, from->u.s, &to->u.s);
	case BR_DTYPE:
	case BR_LAYOUT:
	case BR_MEMFMT:
		to->kind = from->kind == BR_DTYPE ? ARG_DTYPE : from->kind == BR_LAYOUT ? ARG_LAYOUT : ARG_MEMFMT;
		to->u.code = from->u.code;
		return CLV_OK;
	default: return fail(CLV_E_INVALID, "an argument of kind %d is not plain", from->kind);
	}
}
