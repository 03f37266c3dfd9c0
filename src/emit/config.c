/* Writes create_pipeline_configuration: the inputs and outputs of every stage, as a dictionary. */
#include <string.h>

#include "emit/emit.h"

typedef struct config {
	const writer *w; /* of the stages */
	const plan *p;
	const stages_spec *spec;
	symbol_id batch; /* NONE: there is none */
	strbuf *b;
} config;

/* ---- one value --------------------------------------------------------------------------------------------------- */

static bool has_symbol(const plan *p, expr_id e, symbol_id s)
{
	const expr *x = &p->exprs.at[e];
	if (x->op == EXPR_SYM)
		return x->k == (int64_t)s;
	return x->op != EXPR_CONST && (has_symbol(p, x->a, s) || has_symbol(p, x->b, s));
}

static bool is_batched(const config *c, value_id v)
{
	const value *x = &c->p->values.at[v];
	for (uint32_t i = 0; c->batch != NONE && x->type == TYPE_TENSOR && i < x->ndim; i++)
		if (has_symbol(c->p, c->p->dims.at[x->shape + i], c->batch))
			return true;
	return false;
}

static int64_t size_of(const config *c, symbol_id s)
{
	return c->w->stage->sizes[s];
}

/* The batch stays open, other sizes are those that were asked for. */
static void name_size(void *ctx, symbol_id s, strbuf *b)
{
	const config *c = ctx;
	if (s == c->batch)
		strbuf_puts(b, "batch_size");
	else
		strbuf_int(b, size_of(c, s));
}

static clv_status put_dim(config *c, expr_id e)
{
	int64_t k;
	if (c->batch != NONE && has_symbol(c->p, e, c->batch)) {
		put_expr(c->p, e, name_size, c, c->b);
		return CLV_OK;
	}
	TRY(expr_eval(c->p, e, c->w->stage->sizes, &k));
	strbuf_int(c->b, k);
	return CLV_OK;
}

static clv_status put_shape(config *c, const value *x)
{
	if (x->type != TYPE_TENSOR || (x->flags & VALUE_ODD)) {
		strbuf_puts(c->b, "None");
		return CLV_OK;
	}
	strbuf_putc(c->b, '(');
	for (uint32_t i = 0; i < x->ndim; i++) {
		strbuf_puts(c->b, i ? ", " : "");
		TRY(put_dim(c, c->p->dims.at[x->shape + i]));
	}
	strbuf_puts(c->b, x->ndim == 1 ? ",)" : ")");
	return CLV_OK;
}

static void put_type(config *c, const value *x)
{
	static const char *const hosts[] = {[TYPE_BOOL] = "bool",
	                                    [TYPE_INT] = "int",
	                                    [TYPE_FLOAT] = "float",
	                                    [TYPE_COMPLEX] = "complex",
	                                    [TYPE_STR] = "str"};
	if (x->type == TYPE_TENSOR)
		strbuf_printf(c->b, "torch.%s", torch_dtype(x->dtype));
	else
		strbuf_puts(c->b, x->type == TYPE_OBJECT ? "object" : hosts[x->type]);
}

static const char *truth(bool yes)
{
	return yes ? "True" : "False";
}

/* "name": {"shape": …, "dtype": …, …; the brace stays open. */
static clv_status open_value(config *c, value_id v, bool grad)
{
	const value *x = &c->p->values.at[v];
	strbuf_putc(c->b, '"');
	write_output_name(c->w, v, c->b);
	strbuf_puts(c->b, "\": {\"shape\": ");
	TRY(put_shape(c, x));
	strbuf_puts(c->b, ", \"dtype\": ");
	put_type(c, x);
	if (grad)
		strbuf_printf(c->b, ", \"req_grad\": %s", truth((x->flags & (VALUE_GRAD | VALUE_TRAINABLE)) != 0));
	strbuf_printf(c->b, ", \"is_batched\": %s", truth(is_batched(c, v)));
	return CLV_OK;
}

/* ---- makers and readers of a value ---------------------------------------------------------------------------------- */

static int64_t created_by(const config *c, value_id v)
{
	const value *x = &c->p->values.at[v];
	if (x->kind == VALUE_INPUT)
		return -1;
	for (uint32_t i = 0; x->def != NONE && i < c->spec->nstages; i++)
		if (x->def < c->spec->ends[i])
			return i;
	return (int64_t)c->spec->nstages - 1;
}

static bool is_output(const config *c, value_id v)
{
	for (uint32_t i = 0; i < c->p->out_tree.n; i++)
		if (c->p->out_tree.at[i].kind == TREE_VALUE && c->p->out_tree.at[i].u.v == v)
			return true;
	return false;
}

/* Stages from `first` on that compute with it; -1: the model gives it out. */
static void put_users(config *c, value_id v, uint32_t first, bool outside)
{
	bool any = false;
	strbuf_puts(c->b, ", \"used_by\": [");
	for (uint32_t i = first; i < c->spec->nstages; i++)
		if (c->w[i].stage->used[v]) {
			strbuf_printf(c->b, "%s%u", any ? ", " : "", i);
			any = true;
		}
	if (outside && is_output(c, v))
		strbuf_puts(c->b, any ? ", -1" : "-1");
	strbuf_putc(c->b, ']');
}

/* ---- the parts --------------------------------------------------------------------------------------------------- */

static clv_status put_model(config *c, const value_list *outputs)
{
	strbuf_puts(c->b, ", \"model_inputs\": {");
	for (uint32_t i = 0; i < c->w->v.inputs.n; i++) {
		strbuf_puts(c->b, i ? ", " : "");
		TRY(open_value(c, c->w->v.inputs.at[i], false));
		put_users(c, c->w->v.inputs.at[i], 0, false);
		strbuf_putc(c->b, '}');
	}
	strbuf_puts(c->b, "}, \"model_outputs\": {");
	for (uint32_t i = 0; i < outputs->at.n; i++) {
		strbuf_puts(c->b, i ? ", " : "");
		TRY(open_value(c, outputs->at.at[i], false));
		strbuf_printf(c->b, ", \"created_by\": %lld}", (long long)created_by(c, outputs->at.at[i]));
	}
	strbuf_puts(c->b, "}");
	return CLV_OK;
}

static clv_status put_inputs(config *c, const writer *w)
{
	strbuf_puts(c->b, "\"inputs\": {");
	for (uint32_t i = 0; i < w->v.inputs.n; i++) {
		strbuf_puts(c->b, i ? ", " : "");
		TRY(open_value(c, w->v.inputs.at[i], true));
		strbuf_printf(c->b, ", \"created_by\": %lld}", (long long)created_by(c, w->v.inputs.at[i]));
	}
	strbuf_putc(c->b, '}');
	return CLV_OK;
}

static clv_status put_outputs(config *c, uint32_t stage, const value_id *at, uint32_t n)
{
	strbuf_puts(c->b, ", \"outputs\": {");
	for (uint32_t i = 0; i < n; i++) {
		strbuf_puts(c->b, i ? ", " : "");
		TRY(open_value(c, at[i], true));
		put_users(c, at[i], stage + 1, true);
		strbuf_putc(c->b, '}');
	}
	strbuf_putc(c->b, '}');
	return CLV_OK;
}

static void put_relayed(config *c, const writer *w)
{
	bool any = false;
	strbuf_puts(c->b, ", \"relayed\": [");
	for (uint32_t i = 0; i < w->v.inputs.n; i++) {
		value_id v = w->v.inputs.at[i];
		if (w->stage->used[v])
			continue;
		strbuf_printf(c->b, "%s\"%s\"", any ? ", " : "", ident_value(&w->ids, v));
		any = true;
	}
	strbuf_putc(c->b, ']');
}

static clv_status put_stage(config *c, uint32_t i, const value_list *outputs)
{
	const writer *w = &c->w[i];
	bool last = i + 1 == c->spec->nstages;
	const char *device = stage_device(w);
	strbuf_printf(c->b, "%s%u: {\"stage_cls\": Stage%u, ", i ? ", " : "", i, i);
	TRY(put_inputs(c, w));
	TRY(put_outputs(c, i, last ? outputs->at.at : w->v.outputs.at, last ? outputs->at.n : w->v.outputs.n));
	put_relayed(c, w);
	strbuf_puts(c->b, ", \"devices\": [");
	write_string(device, strlen(device), c->b);
	strbuf_printf(c->b, "], \"stage_depth\": %u}", c->spec->nstages - 1 - i);
	return CLV_OK;
}

static void put_facts(config *c)
{
	strbuf_printf(c->b, "return {\"batch_dim\": %u, \"depth\": %u, \"basic_blocks\": [", c->spec->batch_dim,
	              c->spec->depth);
	for (uint32_t i = 0; i < c->spec->nbasic_blocks; i++) {
		strbuf_puts(c->b, i ? ", " : "");
		write_string(c->spec->basic_blocks[i], strlen(c->spec->basic_blocks[i]), c->b);
	}
	strbuf_putc(c->b, ']');
}

static uint32_t count_users(const config *c, value_id v)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < c->spec->nstages; i++)
		n += c->w[i].stage->used[v];
	return n;
}

static void put_place(const writer *w, value_id v, strbuf *b)
{
	strbuf path = STRBUF_INIT;
	place_path(w, v, &path);
	write_string_of(&path, b);
}

bool any_shared(const plan *p, const writer *stages, uint32_t n)
{
	for (value_id v = 0; v < p->values.n; v++) {
		uint32_t users = 0;
		for (uint32_t i = 0; i < n && p->values.at[v].kind == VALUE_PARAM; i++)
			users += stages[i].stage->used[v];
		if (users > 1)
			return true;
	}
	return false;
}

/* Parameters that several stages hold, under the name that each has for it. */
static void put_shared(config *c)
{
	bool any = false;
	strbuf_puts(c->b, ", \"shared\": {");
	for (value_id v = 0; v < c->p->values.n; v++) {
		if (c->p->values.at[v].kind != VALUE_PARAM || count_users(c, v) < 2)
			continue;
		bool first = true;
		strbuf_puts(c->b, any ? ", " : "");
		write_string(plan_s(c->p, c->p->values.at[v].name), strlen(plan_s(c->p, c->p->values.at[v].name)), c->b);
		for (uint32_t i = 0; i < c->spec->nstages; i++) {
			if (!c->w[i].stage->used[v])
				continue;
			strbuf_printf(c->b, "%s%u: ", first ? ": {" : ", ", i);
			put_place(&c->w[i], v, c->b);
			first = false;
		}
		strbuf_putc(c->b, '}');
		any = true;
	}
	strbuf_putc(c->b, '}');
}

static clv_status put_configuration(config *c)
{
	value_list outputs = {0};
	clv_status st = output_values(c->p, &outputs);
	put_facts(c);
	if (st == CLV_OK)
		st = put_model(c, &outputs);
	put_shared(c);
	strbuf_puts(c->b, ", \"stages\": {");
	for (uint32_t i = 0; st == CLV_OK && i < c->spec->nstages; i++)
		st = put_stage(c, i, &outputs);
	strbuf_puts(c->b, "}}");
	vec_free(&outputs.at);
	return st;
}

clv_status write_config(const writer *w, strbuf *b)
{
	const stages_spec *spec = w->stage->spec;
	strbuf line = STRBUF_INIT;
	const char *batch = spec->batch_symbol ? spec->batch_symbol : "";
	config c = {.w = w, .p = w->p, .spec = spec, .batch = symbol_named(w->p, batch, strlen(batch)), .b = &line};
	if (c.batch != NONE)
		strbuf_printf(b, "\n\ndef create_pipeline_configuration(batch_size=%lld):\n", (long long)size_of(&c, c.batch));
	else
		strbuf_puts(b, "\n\ndef create_pipeline_configuration(batch_size=None):\n");
	strbuf_puts(b, "    \"\"\"What goes in and out of every stage.\n\n"
	               "    created_by is the stage that computes a value, -1 for an input of the model; used_by\n"
	               "    are the stages that compute with it, -1 where it is an output of the model. A stage\n"
	               "    passes on what it relayed for later ones. shared are parameters that several stages\n"
	               "    have, with their name in each: their gradients are to be summed.\n");
	strbuf_puts(b,
	            c.batch != NONE ? "    \"\"\"\n" : "    All sizes are fixed: batch_size has no effect.\n    \"\"\"\n");
	clv_status st = put_configuration(&c);
	layout_line(b, INDENT, &line);
	return st;
}
