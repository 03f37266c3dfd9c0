/* The tensors of a runtime. A memory of the file is used where it lies, unless the plans write it, its elements stand
 * otherwise in the file, it is aligned otherwise than it was, or it goes to another device. */
#include <string.h>

#include "exec/runtime.h"
#include "exec/tensors.h"

static void drop_user(void *a)
{
	artifact_free(a);
}

/* Bools other than 0 and 1 would make kernels disagree. */
static clv_status check_bools(const payload_memory *m)
{
	const uint8_t *at = m->data;
	for (size_t i = 0; m->dtype == DT_BOOL && !m->mixed && i < m->data_n; i++)
		if (at[i] > 1)
			return fail(CLV_E_PARSE, "tensor \"%.64s\": byte %zu is no bool", m->entry, i);
	return CLV_OK;
}

/* A memory as a tensor of bytes; *lead: where in it the memory starts. */
static clv_status load_memory(const runtime *r, uint32_t memory, bool own, clv_tensor **out, size_t *lead)
{
	const payload *p = r->a->tensors;
	const payload_memory *m = &p->memories.at[memory];
	TRY(check_bools(m));
	*lead = 0;
	if (!own && m->nbytes && payload_as_is(p, memory) && (uintptr_t)m->data % MEMORY_ALIGN == m->lead)
		return br_bytes_wrap((void *)m->data, m->nbytes, drop_user, artifact_ref(r->a), out);
	*lead = m->lead;
	return memory_tensor(p, memory, out);
}

static clv_status place(const runtime *r, clv_tensor **bytes)
{
	clv_tensor *moved;
	if (!r->device[0])
		return CLV_OK;
	TRY(br_to_device(*bytes, r->device, &moved));
	br_unref(*bytes);
	*bytes = moved;
	return CLV_OK;
}

typedef struct loader {
	runtime *r;
	bool *used;         /* per tensor: a plan reads it */
	bool *written;      /* per memory: a plan writes it */
	clv_tensor **bytes; /* per memory */
	size_t *lead;       /* per memory */
} loader;

static clv_status load_tensor(loader *l, uint32_t i)
{
	const payload *p = l->r->a->tensors;
	const payload_tensor *t = &p->tensors.at[i];
	uint32_t m = t->memory;
	if (!l->bytes[m]) {
		TRY(load_memory(l->r, m, l->written[m], &l->bytes[m], &l->lead[m]));
		TRY(place(l->r, &l->bytes[m]));
	}
	return memory_view(p, i, l->bytes[m], l->lead[m], false, &l->r->state[i]);
}

static void mark_written(loader *l, const runtime_plan *e)
{
	const plan *p = e->g->p;
	for (uint32_t k = 0; k < e->g->v.nodes.n; k++) {
		const node *n = &p->nodes.at[e->g->v.nodes.at[k]];
		for (uint32_t w = 0; w < n->nwrites; w++) {
			uint32_t i =
				artifact_tensor_of(l->r->a, (uint32_t)(e - l->r->plans.at), alias_root(p, p->ids.at[n->writes + w]));
			if (i != NONE)
				l->written[l->r->a->tensors->tensors.at[i].memory] = true;
		}
	}
}

static clv_status find_tensors(loader *l, runtime_plan *e)
{
	uint32_t n = e->g->v.externals.n, number = (uint32_t)(e - l->r->plans.at);
	e->tensor = mem_ids(n + 1);
	e->externals = mem_alloc((n + 1) * sizeof *e->externals);
	if (!e->tensor || !e->externals)
		return fail_nomem();
	for (uint32_t k = 0; k < n; k++) {
		value_id v = e->g->v.externals.at[k];
		uint32_t t = artifact_tensor_of(l->r->a, number, v);
		e->tensor[k] = t;
		if (t != NONE)
			l->used[t] = true;
		else if (e->g->p->values.at[v].kind != VALUE_OBJECT)
			TRY(vec_push(&l->r->unbound, plan_s(e->g->p, e->g->p->values.at[v].name)));
	}
	mark_written(l, e);
	return CLV_OK;
}

static clv_status load(loader *l)
{
	runtime *r = l->r;
	for (uint32_t i = 0; i < r->plans.n; i++)
		TRY(find_tensors(l, &r->plans.at[i]));
	for (uint32_t i = 0; i < r->a->tensors->tensors.n; i++)
		if (l->used[i]) {
			clv_status st = load_tensor(l, i);
			if (st != CLV_OK)
				return fail_more(st, "tensor \"%.64s\"", r->a->tensors->tensors.at[i].label);
		}
	runtime_refresh(r);
	return CLV_OK;
}

clv_status runtime_load_state(runtime *r)
{
	uint32_t tensors = r->a->tensors->tensors.n, memories = r->a->tensors->memories.n;
	loader l = {r, mem_alloc(tensors + 1), mem_alloc(memories + 1), mem_alloc((memories + 1) * sizeof(clv_tensor *)),
	            mem_alloc((memories + 1) * sizeof(size_t))};
	r->state = mem_alloc((tensors + 1) * sizeof *r->state);
	clv_status st = r->state && l.used && l.written && l.bytes && l.lead ? load(&l) : fail_nomem();
	for (uint32_t i = 0; l.bytes && i < memories; i++)
		br_unref(l.bytes[i]);
	mem_free(l.used);
	mem_free(l.written);
	mem_free(l.bytes);
	mem_free(l.lead);
	return st;
}

void runtime_free_state(runtime *r)
{
	for (uint32_t i = 0; r->state && i < r->a->tensors->tensors.n; i++)
		br_unref(r->state[i]);
	mem_free(r->state);
}

void runtime_refresh(runtime *r)
{
	for (uint32_t i = 0; i < r->plans.n; i++) {
		runtime_plan *e = &r->plans.at[i];
		for (uint32_t k = 0; k < e->g->v.externals.n; k++)
			e->externals[k] = e->tensor[k] == NONE ? e->g->bound[k] : r->state[e->tensor[k]];
	}
}
