/* The passes one after another. */
#include "optimize/optimize.h"

#include <string.h>

const pass passes[] = {
	{"identity", OPTIMIZE_SAFE, pass_identity},
	{"common", OPTIMIZE_SAFE, pass_common},
	{"dead", OPTIMIZE_SAFE, pass_dead},
	{"fold_batch_norm", OPTIMIZE_FAST, pass_fold_batch_norm},
	{"channels_last", OPTIMIZE_FAST, pass_channels_last},
	{"fuse", OPTIMIZE_FAST, pass_fuse},
	{"prelude", OPTIMIZE_SAFE, NULL}, /* last, by itself */
	{"memory", OPTIMIZE_SAFE, NULL},  /* of runs: memory/pool.h */
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
	return c.changes ? vec_push(&out->counts, c) : CLV_OK;
}

static clv_status run_prelude(edit *e, const optimize_spec *s, optimized_plan *out)
{
	optimize_count c = {"prelude", 0};
	out->main = e->first;
	if (pass_is_off(s->off, c.pass))
		return CLV_OK;
	TRY(find_prelude(e, s, &out->main, &c.changes));
	return c.changes ? vec_push(&out->counts, c) : CLV_OK;
}

static clv_status run_all(edit *e, const optimize_spec *s, optimized_plan *out)
{
	for (const pass *x = passes; x->run; x++)
		if (x->level <= s->level && !pass_is_off(s->off, x->name))
			TRY(run_pass(e, s, x, out));
	TRY(run_prelude(e, s, out));
	out->first = e->first;
	out->end = e->end;
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
		st = run_all(&e, s, out);
	edit_free(&e);
	return st;
}

void optimized_plan_free(optimized_plan *o)
{
	plan_free(o->p);
	vec_free(&o->counts);
	*o = (optimized_plan){0};
}
