/* Checks before a run that tensors which were on separate memory at capture still are: see apart.h. */
#include "exec/apart.h"

#include <string.h>

#include "split/frontier.h"

/* Inputs of the program come first, then its external tensors. */
typedef struct watched {
	value_id value, root;
	bool written, copied;
} watched;

typedef struct extent {
	uintptr_t low, high; /* the same: it has no memory */
} extent;

struct apart {
	VEC(watched) all;
	uint32_t inputs;         /* of them */
	bool whole;              /* operators read beyond elements: all of a storage counts */
	_Atomic(extent *) known; /* of the external tensors, which are apart from each other; NULL: not known */
};

static clv_status watch_value(apart *a, const clv_program *g, value_id v, const bool *written, bool *any)
{
	const value *x = &g->p->values.at[v];
	watched w = {.value = v, .root = alias_root(g->p, v)};
	w.written = x->type == TYPE_TENSOR && written[w.root];
	for (uint32_t i = 0; i < g->cloned.n; i++)
		w.copied |= g->cloned.at[i] == v;
	*any |= w.written;
	return vec_push(&a->all, w);
}

static clv_status watch_all(apart *a, const clv_program *g, const bool *written, bool *any)
{
	for (uint32_t i = 0; i < g->v.inputs.n; i++)
		TRY(watch_value(a, g, g->v.inputs.at[i], written, any));
	for (uint32_t i = 0; i < g->v.externals.n; i++)
		TRY(watch_value(a, g, g->v.externals.at[i], written, any));
	a->inputs = g->v.inputs.n;
	return CLV_OK;
}

static clv_status apart_fill(apart *a, const clv_program *g, bool *any)
{
	bool *written;
	reach_list reaches = {0};
	TRY(view_written(&g->v, &written));
	if (g->v.nodes.n)
		written_through(g->p, g->v.nodes.at[0], g->v.nodes.at[g->v.nodes.n - 1] + 1, written);
	clv_status st = watch_all(a, g, written, any);
	mem_free(written);
	if (st == CLV_OK && *any)
		st = find_reaches(g->p, &reaches);
	a->whole = reaches.n != 0;
	vec_free(&reaches);
	return st;
}

clv_status apart_new(const clv_program *g, apart **out)
{
	bool any = false;
	apart *a = mem_alloc(sizeof *a);
	TRY_MEM(a);
	clv_status st = apart_fill(a, g, &any);
	*out = st == CLV_OK && any ? a : NULL;
	if (!*out)
		apart_free(a);
	return st;
}

void apart_free(apart *a)
{
	if (!a)
		return;
	vec_free(&a->all);
	mem_free(atomic_load(&a->known));
	mem_free(a);
}

static bool overlap(extent a, extent b)
{
	return a.low < b.high && b.low < a.high;
}

static bool clashes(const apart *a, const extent *at, uint32_t i, uint32_t k, clash *found)
{
	const watched *x = &a->all.at[i], *y = &a->all.at[k];
	if (x->root == y->root || !(x->written || y->written) || !overlap(at[i], at[k]))
		return false;
	const watched *w = x->written ? x : y;
	*found = (clash){w->value, w == x ? y->value : x->value, x->copied || y->copied};
	return true;
}

static bool inputs_are_apart(const apart *a, const extent *at, clash *found)
{
	for (uint32_t i = 0; i < a->inputs; i++)
		for (uint32_t k = i + 1; k < a->all.n; k++)
			if (clashes(a, at, i, k, found))
				return false;
	return true;
}

static bool externals_are_apart(const apart *a, const extent *at, clash *found)
{
	for (uint32_t i = a->inputs; i < a->all.n; i++)
		for (uint32_t k = a->inputs; a->all.at[i].written && k < a->all.n; k++)
			if (clashes(a, at, i, k, found))
				return false;
	return true;
}

/* External tensors are where they were in nearly every run: then only inputs are compared with them. */
static bool compare_extents(apart *a, const extent *at, clash *found)
{
	size_t bytes = (a->all.n - a->inputs) * sizeof *at;
	extent *known = atomic_exchange(&a->known, NULL);
	bool holds = known && !memcmp(known, at + a->inputs, bytes);
	if (!holds) {
		mem_free(known);
		known = NULL;
		holds = externals_are_apart(a, at, found);
		if (holds && (known = mem_alloc(bytes + 1)))
			memcpy(known, at + a->inputs, bytes);
	}
	if (known)
		mem_free(atomic_exchange(&a->known, known));
	return holds && inputs_are_apart(a, at, found);
}

enum { FEW = 64 };

bool apart_holds(apart *a, const clv_program *g, const run_spec *r, clash *found)
{
	extent few[FEW], *at = few;
	*found = (clash){NONE, NONE, false};
	if (a->all.n > FEW && !(at = mem_alloc(a->all.n * sizeof *at)))
		return false;
	for (uint32_t i = 0; i < a->all.n; i++) {
		const br_tensor *t = i < a->inputs ? r->inputs[i] : r->externals[i - a->inputs];
		at[i] = (extent){0, 0};
		if (t && g->p->values.at[a->all.at[i].value].type == TYPE_TENSOR)
			br_extent(t, a->whole, &at[i].low, &at[i].high);
	}
	bool holds = compare_extents(a, at, found);
	if (at != few)
		mem_free(at);
	return holds;
}
