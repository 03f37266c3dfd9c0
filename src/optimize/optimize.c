/* Runs the passes in their order. */
#include "optimize/optimize.h"

#include <string.h>

const pass passes[] = {
	{"identity", OPTIMIZE_SAFE, pass_identity},
	{"common", OPTIMIZE_SAFE, pass_common},
	{"dead", OPTIMIZE_SAFE, pass_dead},
	{"functions", OPTIMIZE_FAST, pass_functions},
	{"norms", OPTIMIZE_FAST, pass_norms},
	{"attention", OPTIMIZE_FAST, pass_attention},
	{"rotary", OPTIMIZE_FAST, pass_rotary},
	{"views", OPTIMIZE_FAST, pass_views},
	{"fold_batch_norm", OPTIMIZE_FAST, pass_fold_batch_norm},
	{"channels_last", OPTIMIZE_FAST, pass_channels_last},
	{"merge_linears", OPTIMIZE_FAST, pass_merge_linears},
	{"conv_as_linear", OPTIMIZE_FAST, pass_conv_as_linear},
	{"bias_apart", OPTIMIZE_FAST, pass_bias_apart},
	{"fuse", OPTIMIZE_FAST, pass_fuse},
	{"in_place", OPTIMIZE_SAFE, pass_in_place},
	{"out_of_place", OPTIMIZE_SAFE, pass_out_of_place},
	{"prelude", OPTIMIZE_SAFE, NULL}, /* parts: in the order of part_id */
	{"sizes", OPTIMIZE_SAFE, NULL},
	{"guards", OPTIMIZE_SAFE, NULL},
	{"group", OPTIMIZE_SAFE, NULL},  /* form_groups */
	{"memory", OPTIMIZE_SAFE, NULL}, /* of runs: memory/pool.h */
	{"native", OPTIMIZE_FAST, NULL}, /* the native engine as a way to run: exec/native_way.h */
	{0},
};

clv_status optimize_level_read(const char *text, optimize_level *out)
{
	static const char *const names[] = {"none", "safe", "fast"};
	*out = OPTIMIZE_SAFE;
	for (unsigned i = 0; text && i <= OPTIMIZE_FAST; i++) {
		if (strcmp(text, names[i]) != 0)
			continue;
		*out = (optimize_level)i;
		return CLV_OK;
	}
	return text ? fail(CLV_E_INVALID, "optimize is none, safe or fast, not %s", text) : CLV_OK;
}

bool pass_is_off(const char *const *off, const char *name)
{
	for (; off && *off; off++)
		if (!strcmp(*off, name))
			return true;
	return false;
}

static clv_status run_pass(edit *e, const optimize_spec *s, const pass *x, optimized_plan *out)
{
	optimize_count c = {x->name, 0};
	TRY(x->run(e, s, &c.changes));
	TRY(edit_apply(e));
	edit_release(e);
	return c.changes ? vec_push(&out->counts, c) : CLV_OK;
}

/* What depends on sizes is made of what the prelude gives: there is none without it. Guards are moved only on request. */
static clv_status make_parts(edit *e, const optimize_spec *s, const pass *first, optimized_plan *out)
{
	unsigned wanted = 0;
	for (unsigned i = PART_ONCE; i < PART_MAIN; i++)
		if (!pass_is_off(s->off, first[i].name) && (i != PART_SIZED || wanted) && (i != PART_GUARDS || s->guards_first))
			wanted |= 1u << i;
	TRY(order_parts(e, s, wanted, out));
	for (unsigned i = PART_ONCE; i < PART_MAIN; i++)
		if (out->part[i + 1] > out->part[i])
			TRY(vec_push(&out->counts, ((optimize_count){first[i].name, out->part[i + 1] - out->part[i]})));
	return CLV_OK;
}

static clv_status make_groups(edit *e, const optimize_spec *s, optimized_plan *out)
{
	optimize_count c = {"group", 0};
	if (pass_is_off(s->off, c.pass))
		return CLV_OK;
	TRY(form_groups(e, s, out->part, &c.changes));
	edit_release(e);
	return c.changes ? vec_push(&out->counts, c) : CLV_OK;
}

static clv_status run_all(edit *e, const optimize_spec *s, optimized_plan *out)
{
	const pass *x = passes;
	for (; x->run; x++)
		if (x->level <= s->level && !pass_is_off(s->off, x->name))
			TRY(run_pass(e, s, x, out));
	TRY(make_parts(e, s, x, out));
	TRY(make_groups(e, s, out));
	edit_spans(e, out->pinned);
	out->p = e->p;
	e->p = NULL;
	return CLV_OK;
}

clv_status optimize(const plan *p, node_id first, node_id end, const optimize_spec *s, optimized_plan *out)
{
	edit e;
	*out = (optimized_plan){0};
	clv_status st = edit_new(p, first, end, &e);
	if (st == CLV_OK)
		st = edit_pin(&e, s->pinned, s->npinned);
	out->pinned = mem_alloc((s->npinned + 1) * sizeof *out->pinned);
	if (st == CLV_OK && !out->pinned)
		st = fail_nomem();
	if (st == CLV_OK)
		st = run_all(&e, s, out);
	edit_free(&e);
	return st;
}

void optimized_plan_free(optimized_plan *o)
{
	plan_free(o->p);
	mem_free(o->pinned);
	vec_free(&o->counts);
	*o = (optimized_plan){0};
}
