/* The tensors of a runtime. A memory of the file is used where it lies, unless the plans write it, its elements stand
 * otherwise in the file, it is aligned otherwise than it was, or it goes to another device. */
#include <string.h>

#include "file/tensors.h"
#include "runtime/runtime.h"

static void drop_user(void *a)
{
	artifact_free(a);
}

static clv_status wrap_mapped(const runtime *r, const payload_memory *m, tensor_memory **out)
{
	artifact *user = artifact_ref(r->a);
	clv_status st = tensor_memory_wrap((void *)m->data, m->nbytes, true, drop_user, user, out);
	if (st != CLV_OK)
		artifact_free(user);
	return st;
}

/* A memory where the plans have it; *lead: where in it the bytes of the file start. */
static clv_status load_memory(const runtime *r, uint32_t memory, bool own, tensor_memory **out, size_t *lead)
{
	const payload *p = r->a->tensors;
	const payload_memory *m = &p->memories.at[memory];
	TRY(payload_check_bools(m));
	*lead = 0;
	if (!own && m->nbytes && payload_as_is(p, memory) && (uintptr_t)m->data % MEMORY_ALIGN == m->lead)
		return wrap_mapped(r, m, out);
	*lead = m->lead;
	return memory_load(p, memory, out);
}

/* All its bytes as a tensor, on the device. */
static clv_status place(tensor_memory *m, const char *device, clv_tensor **out)
{
	int64_t size = (int64_t)m->bytes;
	clv_tensor *bytes;
	TRY(tensor_over(m, m->base, &(tensor_form){.dtype = DT_U8, .ndim = 1, .sizes = &size}, &bytes));
	clv_status st = clv_tensor_to_device(bytes, device, out);
	clv_tensor_free(bytes);
	return st;
}

typedef struct loader {
	runtime *r;
	bool *used;          /* per tensor: a plan reads it */
	bool *written;       /* per memory: a plan writes it */
	const char **device; /* per memory: where the plans have it */
	clv_tensor **bytes;  /* per memory */
	size_t *lead;        /* per memory */
	table unbound;       /* of r->unbound, by name */
} loader;

static clv_status load_tensor(loader *l, uint32_t i)
{
	const payload *p = l->r->a->tensors;
	const payload_tensor *t = &p->tensors.at[i];
	uint32_t m = t->memory;
	if (!l->bytes[m]) {
		tensor_memory *memory;
		TRY(load_memory(l->r, m, l->written[m], &memory, &l->lead[m]));
		clv_status st = place(memory, l->device[m], &l->bytes[m]);
		tensor_memory_unref(memory);
		TRY(st);
	}
	/* Some operators take another way for what requires grad, whether gradients are wanted or not. */
	tensor_form form = stored_form(t, t->requires_grad);
	form.device = l->bytes[m]->device;
	return tensor_view(l->bytes[m], l->lead[m] + t->offset, &form, &l->r->state[i]);
}

static clv_status mark_written(loader *l, uint32_t number)
{
	const view *part = &l->r->plans.at[number].of.v;
	bool *written;
	TRY(view_written(part, &written));
	for (value_id v = 0; v < part->p->values.n; v++) {
		uint32_t i = written[v] ? artifact_tensor_of(l->r->a, number, v) : NONE;
		if (i != NONE)
			l->written[l->r->a->tensors->tensors.at[i].memory] = true;
	}
	mem_free(written);
	return CLV_OK;
}

typedef struct unbound_name {
	const runtime *r;
	const char *name;
} unbound_name;

static bool same_unbound(const void *ctx, uint32_t id)
{
	const unbound_name *x = ctx;
	return strcmp(x->r->unbound.at[id], x->name) == 0;
}

/* The place of a value in the state: its tensor in the file, or its name among those that are not there. */
static uint32_t find_slot(const loader *l, uint32_t number, value_id v)
{
	const runtime *r = l->r;
	const plan *p = r->plans.at[number].of.p;
	uint32_t t = artifact_tensor_of(r->a, number, v);
	if (t != NONE || p->values.at[v].name == NONE)
		return t;
	unbound_name key = {r, plan_s(p, p->values.at[v].name)};
	uint32_t found = table_find(&l->unbound, hash_text(key.name, r), same_unbound, &key);
	return found == TABLE_NONE ? NONE : r->a->tensors->tensors.n + found;
}

static clv_status add_unbound(loader *l, const char *name)
{
	TRY(vec_push(&l->r->unbound, name));
	return table_add(&l->unbound, hash_text(name, l->r), l->r->unbound.n - 1);
}

static clv_status use_tensor(loader *l, const plan *p, value_id v, uint32_t t)
{
	const char *device = plan_s(p, p->values.at[v].device);
	uint32_t m = l->r->a->tensors->tensors.at[t].memory;
	l->used[t] = true;
	if (l->device[m] && strcmp(l->device[m], device) != 0)
		return fail(CLV_E_UNSUPPORTED, "tensor \"%.64s\": its memory is on %s and on %s",
		            l->r->a->tensors->tensors.at[t].label, l->device[m], device);
	l->device[m] = device;
	return CLV_OK;
}

static clv_status find_tensors(loader *l, uint32_t number)
{
	runtime *r = l->r;
	runtime_plan *e = &r->plans.at[number];
	const plan *p = e->of.p;
	uint32_t n = e->of.v.externals.n;
	e->slot = mem_ids(n + 1);
	e->externals = mem_alloc((n + 1) * sizeof *e->externals);
	TRY_MEM(e->slot && e->externals);
	for (uint32_t k = 0; k < n; k++) {
		value_id v = e->of.v.externals.at[k];
		if (p->values.at[v].kind == VALUE_OBJECT)
			continue;
		if (find_slot(l, number, v) == NONE)
			TRY(add_unbound(l, plan_s(p, p->values.at[v].name)));
		e->slot[k] = find_slot(l, number, v);
		if (e->slot[k] < r->a->tensors->tensors.n)
			TRY(use_tensor(l, p, v, e->slot[k]));
	}
	return mark_written(l, number);
}

/* What comes at the end of a run back into the state; what no plan reads is not kept. */
static clv_status find_rebinds(loader *l, uint32_t number)
{
	runtime *r = l->r;
	runtime_plan *e = &r->plans.at[number];
	const plan *p = e->of.p;
	for (uint32_t k = 0; k < e->of.v.rebinds.n; k++) {
		value_id target = p->rebinds.at[e->of.v.rebinds.at[k]].target;
		runtime_rebind b = {find_slot(l, number, target), e->of.outputs.n - e->of.v.rebinds.n + k};
		if (b.slot != NONE)
			TRY(vec_push(&e->rebinds, b));
	}
	r->stateful |= e->rebinds.n > 0;
	return CLV_OK;
}

static void find_changes(const loader *l)
{
	runtime *r = l->r;
	for (uint32_t i = 0; i < r->a->tensors->tensors.n; i++)
		r->changes[i] = l->written[r->a->tensors->tensors.at[i].memory];
	for (uint32_t i = 0; i < r->plans.n; i++)
		for (uint32_t k = 0; k < r->plans.at[i].rebinds.n; k++)
			r->changes[r->plans.at[i].rebinds.at[k].slot] = true;
}

/* Compiled code has tensors as they were. That its own plan leaves them alone was checked; another one may not. */
static void stop_stale_codes(runtime *r)
{
	for (uint32_t i = 0; i < r->plans.n; i++) {
		const runtime_plan *e = &r->plans.at[i];
		for (uint32_t k = 0; k < e->of.v.externals.n; k++)
			if (e->slot[k] != NONE && r->changes[e->slot[k]])
				runtime_changed(r, i, e->of.v.externals.at[k],
				                "another plan of the file changes a tensor that it was compiled with");
	}
}

static clv_status load(loader *l)
{
	runtime *r = l->r;
	uint32_t tensors = r->a->tensors->tensors.n;
	for (uint32_t i = 0; i < r->plans.n; i++)
		TRY(find_tensors(l, i));
	for (uint32_t i = 0; i < r->plans.n; i++)
		TRY(find_rebinds(l, i));
	r->state = mem_alloc(((size_t)tensors + r->unbound.n + 1) * sizeof *r->state);
	r->changes = mem_alloc((size_t)tensors + r->unbound.n + 1);
	TRY_MEM(r->state && r->changes);
	r->nstate = tensors + r->unbound.n;
	find_changes(l);
	stop_stale_codes(r);
	for (uint32_t i = 0; i < tensors; i++)
		if (l->used[i]) {
			clv_status st = load_tensor(l, i);
			if (st != CLV_OK)
				return fail_more(st, "tensor \"%.64s\"", r->a->tensors->tensors.at[i].label);
		}
	return runtime_refresh(r);
}

clv_status runtime_load_state(runtime *r)
{
	uint32_t tensors = r->a->tensors->tensors.n, memories = r->a->tensors->memories.n;
	loader l = {.r = r,
	            .used = mem_alloc(tensors + 1),
	            .written = mem_alloc(memories + 1),
	            .device = mem_alloc((memories + 1) * sizeof(char *)),
	            .bytes = mem_alloc((memories + 1) * sizeof(clv_tensor *)),
	            .lead = mem_alloc((memories + 1) * sizeof(size_t))};
	clv_status st = l.used && l.written && l.device && l.bytes && l.lead ? load(&l) : fail_nomem();
	for (uint32_t i = 0; l.bytes && i < memories; i++)
		clv_tensor_free(l.bytes[i]);
	mem_free(l.used);
	mem_free(l.written);
	mem_free(l.device);
	mem_free(l.bytes);
	mem_free(l.lead);
	table_free(&l.unbound);
	return st;
}

static clv_status own_tensor(runtime *r, uint32_t i, tensor_memory **memories)
{
	const payload *p = r->a->tensors;
	const payload_tensor *t = &p->tensors.at[i];
	clv_tensor *own;
	if (!memories[t->memory])
		TRY(memory_load(p, t->memory, &memories[t->memory]));
	TRY(memory_tensor(p, i, memories[t->memory], t->requires_grad, &own));
	clv_tensor_free(r->state[i]);
	r->state[i] = own;
	return CLV_OK;
}

clv_status runtime_own_state(runtime *r)
{
	const payload *p = r->a->tensors;
	tensor_memory **memories = mem_alloc((p->memories.n + 1) * sizeof *memories);
	clv_status st = memories ? CLV_OK : fail_nomem();
	for (uint32_t i = 0; i < p->tensors.n && st == CLV_OK; i++)
		if (r->state[i] && tensor_is_fixed(r->state[i]))
			st = own_tensor(r, i, memories);
	for (uint32_t i = 0; memories && i < p->memories.n; i++)
		tensor_memory_unref(memories[i]);
	mem_free(memories);
	clv_status bound = runtime_refresh(r);
	return st == CLV_OK ? bound : st;
}

void runtime_free_state(runtime *r)
{
	for (uint32_t i = 0; i < r->nstate; i++)
		clv_tensor_free(r->state[i]);
	mem_free(r->state);
	mem_free(r->changes);
}

clv_status runtime_refresh(runtime *r)
{
	for (uint32_t i = 0; i < r->plans.n; i++) {
		runtime_plan *e = &r->plans.at[i];
		for (uint32_t k = 0; k < e->of.v.externals.n; k++)
			e->externals[k] = e->slot[k] == NONE ? NULL : r->state[e->slot[k]];
		if (e->program)
			TRY(r->engine->bind(e->program, e->externals));
	}
	return CLV_OK;
}
