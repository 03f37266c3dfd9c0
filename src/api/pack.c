/* clv_artifact_pack: a file with the weights as kernels want them. */
#include <string.h>

#include "base/options.h"
#include "native/packed.h"
#include "native/team.h"
#include "runtime/runtime.h"

typedef VEC(int64_t) numbers;

/* Sizes of the symbols at point i; of a plan without points, the smallest. */
static clv_status sizes_at(const artifact_plan *e, uint32_t i, numbers *out)
{
	uint32_t k = 0, each = artifact_point_size(e->p);
	out->n = 0;
	for (symbol_id s = 0; s < e->p->symbols.n; s++) {
		const symbol *x = &e->p->symbols.at[s];
		int64_t size = x->data ? -1 : e->points.n ? e->points.at[i * each + k] : x->lo;
		k += !x->data;
		TRY(vec_push(out, size));
	}
	return CLV_OK;
}

static clv_status ask_at_points(const artifact_plan *e, native_program *g, numbers *sizes)
{
	uint32_t each = artifact_point_size(e->p), n = each ? e->points.n / each : 0;
	for (uint32_t i = 0; i < (n ? n : 1); i++) {
		TRY(sizes_at(e, i, sizes));
		TRY(shaped_pack(g, sizes->at));
	}
	return CLV_OK;
}

static clv_status ask_plans(const clv_runtime *r, const char *isa, packed_list *all)
{
	numbers sizes = {0};
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < r->plans.n && st == CLV_OK; i++) {
		native_program *g = r->plans.at[i].program;
		st = native_pack_for(g, isa);
		if (st == CLV_OK)
			st = ask_at_points(r->plans.at[i].e, g, &sizes);
		if (st == CLV_OK)
			st = packed_collect(g, all);
	}
	vec_free(&sizes);
	return st;
}

enum { PARTS_MOST = 3 };
typedef struct packer {
	clv_runtime *parts[PARTS_MOST]; /* all of the file, and its halves where it says how it is cut */
	packed_list all;
	team *team;
} packer;

static bool is_cut(const artifact *a)
{
	for (uint32_t i = 0; i < a->plans.n; i++)
		if (a->plans.at[i].cut == NONE)
			return false;
	return strcmp(a->part, "all") == 0;
}

static clv_status open_parts(packer *p, const artifact *a)
{
	static const char *const names[] = {NULL, "prefix", "suffix"};
	for (unsigned i = 0; i < (is_cut(a) ? PARTS_MOST : 1); i++) {
		clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
		o.engine = "native";
		o.part = names[i];
		o.sandbox = CLV_SANDBOX_OFF; /* clv_artifact_pack has asked */
		TRY(clv_runtime_create(a, &o, &p->parts[i]));
	}
	return CLV_OK;
}

static clv_status pack(const artifact *a, const char *isa, artifact *into)
{
	packer p = {0};
	clv_status st = open_parts(&p, a);
	for (unsigned i = 0; i < PARTS_MOST && st == CLV_OK && p.parts[i]; i++)
		st = ask_plans(p.parts[i], isa, &p.all);
	if (st == CLV_OK)
		st = team_get(0, &p.team);
	if (st == CLV_OK)
		st = packed_write(&p.all, p.team, isa, into);
	team_put(p.team);
	vec_free(&p.all);
	for (unsigned i = 0; i < PARTS_MOST; i++)
		clv_runtime_free(p.parts[i]);
	return st;
}

static clv_status pack_all(const artifact *a, const clv_packing_options *o, artifact *into)
{
	if (!o->nisas)
		return pack(a, native_isa_name(native_kernels_here()), into);
	for (uint32_t i = 0; i < o->nisas; i++)
		if (!packed_for(into, o->isas[i]))
			TRY(pack(a, o->isas[i], into));
	return CLV_OK;
}

clv_status clv_artifact_pack(const clv_artifact *a, const clv_packing_options *options, const char *path)
{
	clv_packing_options o = CLV_PACKING_OPTIONS_INIT;
	artifact *copy = NULL;
	if (!a || !path)
		return fail(CLV_E_INVALID, "clv_artifact_pack needs an artifact and a path");
	TRY(options_read(&o, sizeof o, options, "clv_packing_options"));
	for (uint32_t i = 0; i < o.nisas; i++)
		if (!o.isas || !o.isas[i])
			return fail(CLV_E_INVALID, "clv_packing_options.isas, or one of them, is NULL");
	if (!a->weights)
		return fail(CLV_E_INVALID, "the file has no weights that could be packed");
	if (o.sandbox == CLV_SANDBOX_ON || o.sandbox > CLV_SANDBOX_OFF)
		return fail(CLV_E_INVALID,
		            "nothing is packed in a sandbox; clv_packing_options.sandbox is CLV_SANDBOX_AUTO or _OFF");
	if (o.sandbox == CLV_SANDBOX_AUTO && artifact_unvouched(a))
		return fail_unvouched(a, fail(CLV_E_UNSUPPORTED, "and nothing is packed in a sandbox"));
	TRY(a->file ? artifact_check_data(a) : CLV_OK); /* what is damaged would get new digests */
	TRY(artifact_copy(a, &copy));
	clv_status st = pack_all(a, &o, copy);
	if (st == CLV_OK)
		st = artifact_save(copy, path);
	artifact_free(copy);
	return st;
}

bool clv_artifact_packed(const clv_artifact *a, uint32_t i, const char **isa, uint32_t *pieces, int64_t *bytes)
{
	if (!a || !isa || !pieces || !bytes || i >= a->packed.n)
		return false;
	*isa = a->packed.at[i].isa;
	*pieces = a->packed.at[i].pieces.n;
	*bytes = (int64_t)a->packed.at[i].n;
	return true;
}
