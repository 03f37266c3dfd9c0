/* A plan for another device: where its values live and what its operators are told. */
#include <string.h>

#include "plan/plan.h"

static bool is_type(const char *device, const char *type, size_t n)
{
	return strncmp(device, type, n) == 0 && (device[n] == '\0' || device[n] == ':');
}

static size_t type_length(const char *device)
{
	return strcspn(device, ":");
}

/* The device that moves: the one that is not the CPU, if values of the model or its inputs are there; else the CPU. */
static clv_status main_device(const plan *p, const char **out)
{
	*out = "cpu";
	for (value_id v = 0; v < p->values.n; v++) {
		const value *x = &p->values.at[v];
		if (x->type != TYPE_TENSOR || x->device == NONE || is_type(plan_s(p, x->device), "cpu", 3))
			continue;
		const char *device = plan_s(p, x->device);
		if (strcmp(*out, "cpu") != 0 && strcmp(*out, device) != 0)
			return fail(CLV_E_UNSUPPORTED,
			            "the plan is spread over %s and %s; only one of a single device can be moved to another", *out,
			            device);
		*out = device;
	}
	return CLV_OK;
}

/* An operator may be told "cuda" where its values say "cuda:0". */
static bool moves(const char *device, const char *from)
{
	size_t n = type_length(from);
	return is_type(device, from, n);
}

static clv_status move_autocast(plan *p, const char *from, const char *to)
{
	str_id type;
	TRY(plan_str(p, to, type_length(to), &type));
	for (uint32_t i = 0; i < p->autocasts.n; i++)
		if (moves(plan_s(p, p->autocasts.at[i].device), from))
			p->autocasts.at[i].device = type;
	return CLV_OK;
}

static clv_status move_all(plan *p, const char *from, const char *to)
{
	str_id target;
	TRY(plan_cstr(p, to, &target));
	for (value_id v = 0; v < p->values.n; v++)
		if (p->values.at[v].device != NONE && moves(plan_s(p, p->values.at[v].device), from))
			p->values.at[v].device = target;
	for (uint32_t i = 0; i < p->args.n; i++)
		if (p->args.at[i].kind == ARG_DEVICE && moves(plan_s(p, p->args.at[i].u.s), from))
			p->args.at[i].u.s = target;
	return move_autocast(p, from, to);
}

static bool is_device(const char *text)
{
	size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz_");
	if (n == 0 || n > 16)
		return false;
	if (text[n] == '\0')
		return true;
	size_t digits = text[n] == ':' ? strspn(text + n + 1, "0123456789") : 0;
	return digits > 0 && digits < 4 && text[n + 1 + digits] == '\0';
}

clv_status plan_retarget(const plan *p, const char *device, plan **out)
{
	const char *from;
	plan *copy;
	char *kept;
	if (!is_device(device))
		return fail(CLV_E_INVALID, "\"%.32s\" is no device; cpu and cuda:0 are", device);
	TRY(main_device(p, &from));
	TRY(plan_copy(p, &copy));
	kept = mem_strdup(from, strlen(from));
	clv_status st = kept ? move_all(copy, kept, device) : fail_nomem();
	mem_free(kept);
	if (st == CLV_OK)
		*out = copy;
	else
		plan_free(copy);
	return st;
}
