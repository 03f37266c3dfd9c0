/* The engines that are here, and which of them runs a file; tensors where an engine is needed for them. */
#include "runtime/engine.h"

#include <string.h>

#include "base/mem.h"

/* All engines, in the order in which "auto" asks them. An engine that is not linked into a library (the tape is not in
   libcleave-core) is NULL there. */
extern const engine engine_tape __attribute__((weak));
extern const engine engine_native;
static const engine *const engines[] = {&engine_tape, &engine_native};

const engine *engine_at(uint32_t i)
{
	for (uint32_t k = 0; k < sizeof engines / sizeof *engines; k++)
		if (engines[k] && i-- == 0)
			return engines[k];
	return NULL;
}

/* "auto, tape": what an engine can be called here. */
static void list_engines(strbuf *b)
{
	const engine *e;
	strbuf_puts(b, "auto");
	for (uint32_t i = 0; (e = engine_at(i)); i++)
		strbuf_printf(b, ", %s", e->name);
}

static clv_status fail_with(clv_status code, const char *what, strbuf *b)
{
	char *text;
	TRY(strbuf_take(b, &text));
	clv_status st = fail(code, "%s%s", what, text);
	mem_free(text);
	return st;
}

clv_status engine_named(const char *name, const engine **out)
{
	strbuf b = STRBUF_INIT;
	for (uint32_t i = 0; (*out = engine_at(i)); i++)
		if (strcmp((*out)->name, name) == 0)
			return CLV_OK;
	strbuf_printf(&b, "there is no engine \"%.32s\" here; there are ", name);
	list_engines(&b);
	return fail_with(CLV_E_NOT_FOUND, "", &b);
}

/* The first node that an engine does not take, and why. */
static const char *refusal(const engine *e, const artifact *a, const plan **p, node_id *n)
{
	for (uint32_t i = 0; i < a->plans.n; i++) {
		*p = a->plans.at[i].p;
		for (*n = a->plans.at[i].first; *n < a->plans.at[i].end; ++*n) {
			const char *why = e->takes(*p, *n);
			if (why)
				return why;
		}
	}
	return NULL;
}

static void print_refusal(const engine *e, const plan *p, node_id n, const char *why, strbuf *b)
{
	strbuf_printf(b, "; %s does not take %s", e->name, plan_s(p, p->nodes.at[n].op));
	if (p->nodes.at[n].at != NONE)
		strbuf_printf(b, " (%s)", plan_s(p, p->nodes.at[n].at));
	strbuf_printf(b, ": %s", why);
}

static clv_status check_takes(const engine *e, const artifact *a)
{
	strbuf b = STRBUF_INIT;
	const plan *p;
	node_id n;
	const char *why = refusal(e, a, &p, &n);
	if (!why)
		return CLV_OK;
	print_refusal(e, p, n, why, &b);
	return fail_with(CLV_E_UNSUPPORTED, "the engine that was asked for cannot run this file", &b);
}

clv_status engine_choose(const char *name, const artifact *a, const engine **out)
{
	strbuf b = STRBUF_INIT;
	if (name && strcmp(name, "auto") != 0) {
		TRY(engine_named(name, out));
		return check_takes(*out, a);
	}
	for (uint32_t i = 0; (*out = engine_at(i)); i++) {
		const plan *p;
		node_id n;
		const char *why = refusal(*out, a, &p, &n);
		if (!why) {
			strbuf_free(&b);
			return CLV_OK;
		}
		print_refusal(*out, p, n, why, &b);
	}
	if (!&engine_tape)
		strbuf_puts(&b, "; libcleave has another, tape, that runs on libtorch");
	return fail_with(CLV_E_UNSUPPORTED, "no engine here runs this file", &b);
}

clv_status clv_plan_takes(const clv_plan *p, const char *name, uint32_t i, const char **why)
{
	const engine *e;
	if (!p || !name || !why || i >= p->nodes.n)
		return fail(CLV_E_INVALID, "clv_plan_takes: there is no node %u, or an argument is NULL", i);
	TRY(engine_named(name, &e));
	*why = e->takes(p, i);
	return CLV_OK;
}

static bool is_live_number(const plan *p, const tree *t)
{
	int64_t k;
	return t->kind == TREE_REAL || (t->kind == TREE_INT && !expr_is_const(p, t->u.e, &k));
}

clv_status plan_part_new(const plan *p, node_id first, node_id end, plan_part *out)
{
	uint32_t leaves = 0;
	*out = (plan_part){.p = p, .whole = end == p->nodes.n};
	if (first > end || end > p->nodes.n)
		return fail(CLV_E_INVALID, "nodes %u to %u are not a part of a plan of %u nodes", first, end, p->nodes.n);
	TRY(view_range(p, first, end, &out->v));
	TRY(view_gives(&out->v, out->whole, &out->outputs));
	for (uint32_t i = 0; out->whole && i < p->out_tree.n; i++) {
		const tree *t = &p->out_tree.at[i];
		if (is_live_number(p, t))
			TRY(vec_push(&out->numbers, leaves++));
		else
			leaves += t->kind == TREE_VALUE;
	}
	return CLV_OK;
}

void plan_part_free(plan_part *x)
{
	view_free(&x->v);
	vec_free(&x->outputs);
	vec_free(&x->numbers);
}

clv_status engine_clone(const engine *e, const clv_tensor *t, clv_tensor **out)
{
	return e->tensors ? e->tensors->clone(t, out) : tensor_clone(t, out);
}

clv_status engine_write(const engine *e, const clv_tensor *from, clv_tensor *to)
{
	if (e->tensors)
		return e->tensors->write(from, to);
	tensor_copy(from, to);
	return CLV_OK;
}

static const engine_tensors *somebody(void)
{
	const engine *e;
	for (uint32_t i = 0; (e = engine_at(i)); i++)
		if (e->tensors)
			return e->tensors;
	return NULL;
}

clv_status clv_tensor_to_device(const clv_tensor *t, const char *device, clv_tensor **out)
{
	if (!t || !device || !out)
		return fail(CLV_E_INVALID, "clv_tensor_to_device: an argument is NULL");
	if (strcmp(t->device, device) == 0 && (!t->lazy || strcmp(device, "cpu") != 0)) {
		*out = tensor_ref(t);
		return CLV_OK;
	}
	const engine_tensors *x = somebody();
	return x ? x->to_device(t, device, out)
	         : fail(CLV_E_UNSUPPORTED, "a tensor on %s cannot go to %.32s: no engine here has other devices than cpu",
	                t->device, device);
}

clv_status clv_tensor_copy_to(const clv_tensor *t, void *to, size_t size)
{
	clv_tensor *here;
	if (!t || (size && !to))
		return fail(CLV_E_INVALID, "clv_tensor_copy_to: an argument is NULL");
	int64_t want = clv_tensor_bytes(t);
	if (want < 0)
		return fail(CLV_E_UNSUPPORTED, "the tensor is sparse or nested, or of a type without a name: it has no rows");
	if (size != (size_t)want)
		return fail(CLV_E_INVALID, "the tensor has %lld bytes, the buffer %zu", (long long)want, size);
	TRY(clv_tensor_to_device(t, "cpu", &here));
	clv_status st = tensor_read_rows(here, to);
	clv_tensor_free(here);
	return st;
}
