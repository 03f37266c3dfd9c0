/* Moves a plan to another device: devices of its values, and device arguments of its operators. */
#include <string.h>

#include "plan/plan.h"

static size_t type_length(const char *device)
{
	return strcspn(device, ":");
}

/* The device that moves: the one that is not the CPU, if values of the model or its inputs are there; else the CPU. */
static clv_status device_to_move(const plan *p, const char **out)
{
	*out = "cpu";
	for (value_id v = 0; v < p->values.n; v++) {
		const value *x = &p->values.at[v];
		if (x->type != TYPE_TENSOR || x->device == NONE || device_is(plan_s(p, x->device), "cpu"))
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

/* One that moves may meet another that is there already: which of them counts is not known. */
static clv_status check_autocast(const plan *p, const context *c)
{
	const autocast *at = vec_from(&p->autocasts, c->autocast);
	for (uint32_t i = 0; i < c->nautocast; i++)
		for (uint32_t k = 0; k < i; k++)
			if (strcmp(plan_s(p, at[i].device), plan_s(p, at[k].device)) == 0)
				return fail(CLV_E_UNSUPPORTED,
				            "the plan has autocast for two devices at once, which would both be that of %s",
				            plan_s(p, at[i].device));
	return CLV_OK;
}

/* `from` is a type: an operator may be told "cuda" where its values say "cuda:0". */
static clv_status move_autocast(plan *p, const char *from, const char *to)
{
	str_id type;
	TRY(plan_str(p, to, type_length(to), &type));
	for (uint32_t i = 0; i < p->autocasts.n; i++)
		if (device_is(plan_s(p, p->autocasts.at[i].device), from))
			p->autocasts.at[i].device = type;
	for (uint32_t i = 0; i < p->contexts.n; i++)
		TRY(check_autocast(p, &p->contexts.at[i]));
	return CLV_OK;
}

static clv_status retarget_all(plan *p, const char *from, const char *to)
{
	str_id target;
	TRY(plan_cstr(p, to, &target));
	for (value_id v = 0; v < p->values.n; v++)
		if (p->values.at[v].device != NONE && device_is(plan_s(p, p->values.at[v].device), from))
			p->values.at[v].device = target;
	for (uint32_t i = 0; i < p->args.n; i++)
		if (p->args.at[i].kind == ARG_DEVICE && device_is(plan_s(p, p->args.at[i].u.s), from))
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
	TRY(device_to_move(p, &from));
	TRY(plan_copy(p, &copy));
	kept = mem_strdup(from, type_length(from));
	clv_status st = kept ? retarget_all(copy, kept, device) : fail_nomem();
	mem_free(kept);
	if (st == CLV_OK)
		*out = copy;
	else
		plan_free(copy);
	return st;
}
