/* Which weights a runtime has: a version that follows every bit of the model's tensors, also of those that only another
 * part reads. A boundary says which weights made it, and a suffix that has others refuses it. */
#include <string.h>

#include "runtime/runtime.h"

typedef struct wanted {
	const runtime *r;
	const char *name;
} wanted;

static bool same_name(const void *ctx, uint32_t id)
{
	const wanted *w = ctx;
	return strcmp(w->r->weights.at[id].name, w->name) == 0;
}

static uint32_t find(const runtime *r, const char *name)
{
	return table_find(&r->weights_by_name, hash_text(name, r), same_name, &(wanted){r, name});
}

static clv_status add(runtime *r, const char *name /* borrowed from the artifact */, int64_t one)
{
	TRY(table_add(&r->weights_by_name, hash_text(name, r), r->weights.n));
	return vec_push(&r->weights, ((payload_number){name, one}));
}

/* A file of before digests knows the names that its plans read, which are those of the whole model. */
clv_status runtime_load_weights(runtime *r)
{
	const artifact *a = r->a;
	r->weight_version = a->weight_version;
	for (uint32_t i = 0; i < a->weight_digests.n; i++)
		TRY(add(r, a->weight_digests.at[i].name, a->weight_digests.at[i].value));
	for (uint32_t i = 0; i < a->plans.n; i++) {
		const plan *p = a->plans.at[i].p;
		for (value_id v = 0; v < p->values.n; v++) {
			uint8_t kind = p->values.at[v].kind;
			if (kind != VALUE_PARAM && kind != VALUE_BUFFER && kind != VALUE_ATTR)
				continue;
			const char *name = plan_s(p, p->values.at[v].name);
			if (find(r, name) == NONE)
				TRY(add(r, name, 0));
		}
	}
	return CLV_OK;
}

void runtime_free_weights(runtime *r)
{
	vec_free(&r->weights);
	table_free(&r->weights_by_name);
}

bool runtime_knows(const runtime *r, const char *name)
{
	if (find(r, name) != NONE)
		return true;
	for (uint32_t i = 0; i < r->a->plans.n; i++) {
		const plan *p = r->a->plans.at[i].p;
		for (uint32_t k = 0; k < p->ties.n; k++)
			if (strcmp(plan_s(p, p->ties.at[k].name), name) == 0)
				return true;
	}
	return false;
}

clv_status tensor_digest(const char *name, const clv_tensor *t, int64_t *out)
{
	const void *data = clv_tensor_data(t);
	int64_t n = clv_tensor_bytes(t);
	if (n < 0)
		return fail(CLV_E_UNSUPPORTED, "%.64s has no plain memory", name);
	if (data || n == 0) {
		*out = weight_digest(name, data, (size_t)n);
		return CLV_OK;
	}
	void *rows = mem_alloc((size_t)n);
	clv_status st = rows ? clv_tensor_copy_to(t, rows, (size_t)n) : fail_nomem();
	if (st == CLV_OK)
		*out = weight_digest(name, rows, (size_t)n);
	mem_free(rows);
	return st;
}

static clv_status note_one(runtime *r, const char *name, const clv_tensor *t)
{
	uint32_t i = find(r, name);
	int64_t now;
	if (i == NONE)
		return CLV_OK;
	TRY(tensor_digest(name, t, &now));
	r->weight_version = weight_sum(weight_difference(r->weight_version, r->weights.at[i].value), now);
	r->weights.at[i].value = now;
	return CLV_OK;
}

/* Of a tied tensor every name that the first plan has: all plans are of one model. */
clv_status runtime_note_weight(runtime *r, const char *name, const clv_tensor *t)
{
	const plan *p = r->a->plans.at[0].p;
	value_id v = NONE;
	for (uint32_t i = 0; i < p->ties.n && v == NONE; i++) {
		const tie *x = &p->ties.at[i];
		if (strcmp(plan_s(p, x->name), name) == 0 || strcmp(plan_s(p, p->values.at[x->value].name), name) == 0)
			v = x->value;
	}
	if (v == NONE)
		return note_one(r, name, t);
	TRY(note_one(r, plan_s(p, p->values.at[v].name), t));
	for (uint32_t i = 0; i < p->ties.n; i++)
		if (p->ties.at[i].value == v)
			TRY(note_one(r, plan_s(p, p->ties.at[i].name), t));
	return CLV_OK;
}

clv_status runtime_check_weights(const runtime *r, int64_t version)
{
	if (version == r->weight_version || r->any_weights)
		return CLV_OK;
	if (!r->bound)
		return fail(CLV_E_INPUT, "the boundary was made with weights %llx, this file has %llx",
		            (unsigned long long)version, (unsigned long long)r->weight_version);
	return fail(CLV_E_INPUT,
	            "the boundary was made with weights %llx, this half was given weights %llx: give the same, whole "
	            "state_dict on both sides, also what only the other half reads",
	            (unsigned long long)version, (unsigned long long)r->weight_version);
}
