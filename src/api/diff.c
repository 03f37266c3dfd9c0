/* The public functions that compare: thin covers over src/plan and src/file. */
#include "file/diff.h"

#include "base/options.h"

static clv_status read_options(const clv_diff_options *options, clv_diff_options *o)
{
	*o = (clv_diff_options)CLV_DIFF_OPTIONS_INIT;
	TRY(options_read(o, sizeof *o, options, "clv_diff_options"));
	if ((unsigned)o->weights > CLV_DIFF_NONE)
		return fail(CLV_E_INVALID, "clv_diff_options.weights is %d, which is no way to compare", (int)o->weights);
	return CLV_OK;
}

/* Writes the list and releases it. */
static clv_status give(clv_status st, diff *d, const clv_diff_options *o, char **out, bool *differ)
{
	strbuf b = STRBUF_INIT;
	bool any = diff_any(d);
	if (st == CLV_OK) {
		(o->json ? diff_print_json : diff_print)(d, &b);
		st = strbuf_take(&b, out);
	}
	diff_free(d);
	if (st == CLV_OK)
		*differ = any;
	return st;
}

clv_status clv_plan_diff(const clv_plan *a, const clv_plan *b, const clv_diff_options *options, char **out,
                         bool *differ)
{
	clv_diff_options o;
	if (!a || !b || !out || !differ)
		return fail(CLV_E_INVALID, "clv_plan_diff needs two plans and places for the answer");
	TRY(read_options(options, &o));
	diff d = {.limit = o.limit};
	clv_status st = diff_part_add(&d, "");
	if (st == CLV_OK)
		st = plan_diff(&d, a, b, NULL);
	return give(st, &d, &o, out, differ);
}

clv_status clv_artifact_diff(const clv_artifact *a, const clv_artifact *b, const clv_diff_options *options, char **out,
                             bool *differ)
{
	clv_diff_options o;
	if (!a || !b || !out || !differ)
		return fail(CLV_E_INVALID, "clv_artifact_diff needs two artifacts and places for the answer");
	TRY(read_options(options, &o));
	diff d = {.limit = o.limit};
	return give(artifact_diff(&d, a, b, o.weights), &d, &o, out, differ);
}
