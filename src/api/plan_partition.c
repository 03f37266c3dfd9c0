/* Plans partitioned: folded into blocks, each with what it costs, put into stages, and brought into their order. */
#include <math.h>
#include <string.h>

#include "base/options.h"
#include "pipe/blocks.h"
#include "pipe/partition_object.h"
#include "pipe/profile.h"

/* What is under way. */
typedef struct folded {
	blocks b;
	plan *p;       /* its nodes block by block */
	node_id *ends; /* per block: the node of p after its last one */
	block_cost *costs;
	bool training;
} folded;

static void folded_free(folded *f)
{
	blocks_free(&f->b);
	plan_free(f->p);
	mem_free(f->ends);
	mem_free(f->costs);
}

/* ---- costs ---------------------------------------------------------------------------------------------------------- */

static const char *profile_key(const profile *f, const char *name)
{
	for (uint32_t i = 0; i < f->key.n; i++)
		if (!strcmp(f->key.at[i].name, name))
			return f->key.at[i].text;
	return "";
}

/* The same blocks: the same number of them, with the same names, of the same nodes. */
static clv_status check_profile(const profile *f, const folded *x)
{
	if (f->rows.n != x->b.at.n)
		return fail(CLV_E_INVALID, "the profile has %u blocks, and the plan has %u at this depth", f->rows.n,
		            x->b.at.n);
	for (uint32_t i = 0; i < f->rows.n; i++) {
		const profile_row *r = &f->rows.at[i];
		if (strcmp(r->name, x->b.at.at[i].name) != 0 || r->end != x->ends[i])
			return fail(CLV_E_INVALID,
			            "the profile is of other blocks: block %u is %s up to node %u, in the plan %s up to %u", i,
			            r->name, r->end, x->b.at.at[i].name, x->ends[i]);
	}
	if (x->training && !strcmp(profile_key(f, "training"), "False"))
		return fail(CLV_E_INVALID, "the profile was made without a backward; it serves for inference alone");
	return CLV_OK;
}

/* Profiles have MB of 10^6 bytes. */
static int64_t whole_bytes(double mb)
{
	double bytes = round(1e6 * mb);
	return bytes < 0x1p62 ? (int64_t)bytes : INT64_MAX / 2;
}

static block_cost profile_cost(const block_profile *r)
{
	return (block_cost){.fwd_us = 1e3 * r->forward.median,
	                    .bwd_us = 1e3 * r->backward.median,
	                    .held_bytes = whole_bytes(r->held),
	                    .work_bytes = whole_bytes(fmax(r->forward_memory, r->backward_memory)),
	                    .param_bytes = whole_bytes(r->size)};
}

static clv_status read_costs(const char *text, size_t n, folded *x)
{
	profile f;
	clv_status st = profile_parse(text, n, &f);
	if (st != CLV_OK)
		return st == CLV_E_NOMEM ? st : fail_more(st, "the profile cannot be used");
	st = check_profile(&f, x);
	for (uint32_t i = 0; i < f.rows.n && st == CLV_OK; i++)
		x->costs[i] = profile_cost(&f.rows.at[i].at);
	profile_free(&f);
	return st;
}

static clv_status estimate_costs(const clv_plan_partition_options *o, folded *x)
{
	const estimate_spec s = {o->flops_per_s, o->bytes_per_s, o->node_us, x->training};
	return x->b.at.n ? estimate_blocks(x->p, x->ends, x->b.at.n, x->b.syms, &s, x->costs) : CLV_OK;
}

/* ---- there and back -------------------------------------------------------------------------------------------------- */

static clv_status fold_plan(const plan *p, const clv_plan_partition_options *o, folded *x)
{
	const blocks_spec s = {o->depth, o->whole, o->nwhole, o->ties_together, o->keep_order, &o->sizes};
	TRY(blocks_new(p, &s, &x->b));
	x->ends = mem_ids(x->b.at.n);
	x->costs = mem_alloc((x->b.at.n + 1) * sizeof *x->costs);
	TRY_MEM(x->ends && x->costs);
	TRY(blocks_plan(&x->b, &x->p, x->ends));
	return o->profile ? read_costs(o->profile, o->profile_size, x) : estimate_costs(o, x);
}

/* Nodes of the graph are blocks in some order; their ids are the numbers of the blocks. */
static clv_status stage_nodes(const blocks *b, clv_partition *p)
{
	uint32_t *of_block = mem_ids(b->at.n);
	p->node_stage = mem_ids(b->p->nodes.n);
	p->ends = mem_ids(p->p.nstages);
	if (!of_block || !p->node_stage || !p->ends) {
		mem_free(of_block);
		return fail_nomem();
	}
	for (uint32_t i = 0; i < p->g.nodes.n; i++)
		of_block[p->g.nodes.at[i].id] = p->p.stage_of[i];
	for (node_id k = 0; k < b->p->nodes.n; k++)
		p->node_stage[k] = of_block[b->of_node[k]];
	mem_free(of_block);
	return stages_plan(b->p, p->node_stage, p->p.nstages, &p->staged, p->ends);
}

static clv_status partition_blocks(const folded *x, const clv_partition_options *o, clv_partition **out)
{
	pipe_graph g;
	clv_partition *p = NULL;
	if (o->k > x->b.at.n)
		return fail(
			CLV_E_INVALID,
			"the plan has %u block%s that can be apart, fewer than %u devices: ask for fewer devices, a greater depth, "
			"or less that is whole",
			x->b.at.n, x->b.at.n == 1 ? "" : "s", o->k);
	TRY(blocks_graph(&x->b, x->costs, &g));
	TRY(partition_object_new(&g, o, &p));
	clv_status st = stage_nodes(&x->b, p);
	if (st == CLV_OK)
		*out = p;
	else
		clv_partition_free(p);
	return st;
}

static bool is_module(const plan *p, const char *name)
{
	for (scope_id i = 0; i < p->scopes.n; i++)
		if (!strcmp(name, plan_s(p, p->scopes.at[i].cls)) || !strcmp(name, plan_s(p, p->scopes.at[i].path)))
			return true;
	return false;
}

/* A name that is misspelt would leave open what was to stay whole. */
static clv_status check_whole(const plan *p, const clv_plan_partition_options *o)
{
	for (uint32_t i = 0; i < o->nwhole; i++)
		if (!o->whole[i] || !is_module(p, o->whole[i]))
			return fail(CLV_E_NOT_FOUND, "no module of the plan has the class or the path \"%s\"",
			            o->whole[i] ? o->whole[i] : "NULL");
	return CLV_OK;
}

static clv_status check_options(const clv_plan_partition_options *o)
{
	if (o->nwhole && !o->whole)
		return fail(CLV_E_INVALID, "clv_plan_partition_options.whole is NULL, nwhole is %u", o->nwhole);
	return sizes_check(&o->sizes);
}

clv_status clv_plan_partition(const clv_plan *p, const clv_plan_partition_options *options, clv_partition **out)
{
	clv_plan_partition_options o = CLV_PLAN_PARTITION_OPTIONS_INIT;
	clv_partition_options parts = CLV_PARTITION_OPTIONS_INIT;
	folded x = {0};
	if (!p || !out)
		return fail(CLV_E_INVALID, "clv_plan_partition needs a plan and a place for the partition");
	TRY(options_read(&o, sizeof o, options, "clv_plan_partition_options"));
	TRY(options_read(&parts, sizeof parts, o.partition, "clv_partition_options"));
	TRY(check_options(&o));
	TRY(check_whole(p, &o));
	x.training = !parts.inference;
	clv_status st = fold_plan(p, &o, &x);
	if (st == CLV_OK)
		st = partition_blocks(&x, &parts, out);
	folded_free(&x);
	return st;
}
