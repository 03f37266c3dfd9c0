/* A plan and its frontiers as JSON for the report: columns of numbers, and one table of strings that they point into. */
#include <math.h>
#include <string.h>

#include "base/options.h"
#include "emit/html.h"
#include "plan/flops.h"
#include "plan/intern.h"

enum { LINES_MAX = 20000 }; /* plans with more nodes go without the text of each: the page stays small */

typedef struct data {
	const clv_frontiers *f;
	const plan *p;
	const html_spec *o;
	strbuf *b;
	uint32_t *string; /* per string of the plan: its number in the page, NONE: not there */
	uint32_t nstrings;
	strbuf strings; /* the table, written at the end */
} data;

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void put_key(data *d, const char *key)
{
	strbuf_printf(d->b, ",\n\"%s\":", key);
}

static void put_text(data *d, const char *s)
{
	if (s)
		strbuf_json(d->b, s, strlen(s));
	else
		strbuf_puts(d->b, "null");
}

static void put_number(data *d, double v)
{
	if (!isfinite(v))
		strbuf_puts(d->b, "null");
	else if (v == rint(v) && fabs(v) < 1e15)
		strbuf_int(d->b, (int64_t)v);
	else
		strbuf_double(d->b, v);
}

/* Sums that are too large for 63 bits are counted as INT64_MAX. */
static void put_amount(data *d, int64_t n)
{
	if (n == INT64_MAX)
		strbuf_puts(d->b, "null");
	else
		strbuf_int(d->b, n);
}

/* NONE is -1. */
static void put_id(data *d, uint32_t id)
{
	strbuf_int(d->b, id == NONE ? -1 : (int64_t)id);
}

/* A string of the plan, as its number in the page's table. */
static void put_string(data *d, str_id id)
{
	if (id != NONE && d->string[id] == NONE) {
		const str *s = &d->p->strs.at[id];
		strbuf_puts(&d->strings, d->nstrings ? "," : "");
		strbuf_json(&d->strings, s->s, s->n);
		d->string[id] = d->nstrings++;
	}
	put_id(d, id == NONE ? NONE : d->string[id]);
}

typedef void (*column_fn)(data *d, uint32_t i);

static void put_column(data *d, const char *key, uint32_t n, column_fn put)
{
	put_key(d, key);
	strbuf_putc(d->b, '[');
	for (uint32_t i = 0; i < n; i++) {
		strbuf_puts(d->b, i ? "," : "");
		put(d, i);
	}
	strbuf_putc(d->b, ']');
}

/* ---- head, symbols, expressions, modules ------------------------------------------------------------------------- */

static void put_head(data *d)
{
	const plan *p = d->p;
	strbuf_puts(d->b, "{\"format\":1");
	put_key(d, "version");
	put_text(d, CLV_VERSION);
	put_key(d, "title");
	put_text(d, d->o->title);
	put_key(d, "model");
	put_string(d, p->model);
	put_key(d, "training");
	strbuf_puts(d->b, p->training ? "true" : "false");
	put_key(d, "bandwidth");
	put_number(d, d->o->bandwidth_bytes_per_s);
	put_key(d, "prefixSpeed");
	put_number(d, d->o->prefix_flops_per_s);
	put_key(d, "suffixSpeed");
	put_number(d, d->o->suffix_flops_per_s);
	put_key(d, "chosen");
	put_id(d, d->o->frontier);
}

/* name, lowest, highest, read from data, size that the frontiers are counted at */
static void symbol_row(data *d, uint32_t i)
{
	const symbol *s = &d->p->symbols.at[i];
	strbuf_puts(d->b, "[");
	put_string(d, s->name);
	strbuf_printf(d->b, ",%lld,%lld,%u,%lld]", (long long)s->lo, (long long)s->hi, s->data, (long long)d->f->syms[i]);
}

/* operator, operands; a constant is [0, k], a symbol [1, number] */
static void expr_row(data *d, uint32_t i)
{
	const expr *e = &d->p->exprs.at[i];
	if (e->op == EXPR_CONST || e->op == EXPR_SYM)
		strbuf_printf(d->b, "[%d,%lld]", (int)e->op, (long long)e->k);
	else
		strbuf_printf(d->b, "[%d,%u,%u]", (int)e->op, e->a, e->b);
}

static void dim_at(data *d, uint32_t i)
{
	strbuf_int(d->b, d->p->dims.at[i]);
}

static void scope_parent(data *d, uint32_t i)
{
	put_id(d, d->p->scopes.at[i].parent);
}

static void scope_path(data *d, uint32_t i)
{
	put_string(d, d->p->scopes.at[i].path);
}

static void scope_class(data *d, uint32_t i)
{
	put_string(d, d->p->scopes.at[i].cls);
}

static void put_frame(data *d)
{
	const plan *p = d->p;
	put_column(d, "symbols", p->symbols.n, symbol_row);
	put_column(d, "exprs", p->exprs.n, expr_row);
	put_column(d, "dims", p->dims.n, dim_at);
	put_column(d, "scopeParent", p->scopes.n, scope_parent);
	put_column(d, "scopePath", p->scopes.n, scope_path);
	put_column(d, "scopeClass", p->scopes.n, scope_class);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void dtype_row(data *d, uint32_t i)
{
	strbuf_printf(d->b, "[\"%s\",%u]", dtype_name((dtype)i), dtype_bits((dtype)i));
}

/* One integer per value, from a field of it. */
#define VALUE_COLUMN(name, expression)                                                                                 \
	static void value_##name(data *d, uint32_t i)                                                                      \
	{                                                                                                                  \
		const value *x = &d->p->values.at[i];                                                                          \
		(void)x;                                                                                                       \
		put_id(d, (uint32_t)(expression));                                                                             \
	}

VALUE_COLUMN(kind_, x->kind)
VALUE_COLUMN(type_, x->type)
VALUE_COLUMN(dtype, x->dtype)
VALUE_COLUMN(flags_, x->flags)
VALUE_COLUMN(ndim, x->type == TYPE_TENSOR ? x->ndim : 0)
VALUE_COLUMN(shape, x->type == TYPE_TENSOR && x->ndim ? x->shape : 0)
VALUE_COLUMN(root, alias_root(d->p, i))
VALUE_COLUMN(def, x->def)
VALUE_COLUMN(last, d->f->live.last[i])
VALUE_COLUMN(number_, value_number(d->p, i))

static void value_name(data *d, uint32_t i)
{
	put_string(d, d->p->values.at[i].name);
}

static void value_device(data *d, uint32_t i)
{
	put_string(d, d->p->values.at[i].type == TYPE_TENSOR ? d->p->values.at[i].device : NONE);
}

static void put_values(data *d)
{
	uint32_t n = d->p->values.n;
	put_column(d, "dtypes", DT_COUNT, dtype_row);
	put_column(d, "valueKind", n, value_kind_);
	put_column(d, "valueType", n, value_type_);
	put_column(d, "valueDtype", n, value_dtype);
	put_column(d, "valueFlags", n, value_flags_);
	put_column(d, "valueNdim", n, value_ndim);
	put_column(d, "valueShape", n, value_shape);
	put_column(d, "valueRoot", n, value_root);
	put_column(d, "valueDef", n, value_def);
	put_column(d, "valueLast", n, value_last);
	put_column(d, "valueNumber", n, value_number_);
	put_column(d, "valueName", n, value_name);
	put_column(d, "valueDevice", n, value_device);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

enum { FLAG_NOGRAD = 8, FLAG_INFERENCE = 16, FLAG_AUTOCAST = 32 }; /* beside node_flags */

static void node_name_at(data *d, uint32_t i)
{
	put_text(d, node_name(d->f->names, i));
}

static void node_op(data *d, uint32_t i)
{
	put_string(d, d->p->nodes.at[i].op);
}

static void node_scope(data *d, uint32_t i)
{
	put_id(d, d->p->nodes.at[i].scope);
}

static void node_source(data *d, uint32_t i)
{
	put_string(d, d->p->nodes.at[i].at);
}

static void node_flags_at(data *d, uint32_t i)
{
	const context *c = &d->p->contexts.at[d->p->nodes.at[i].context];
	uint32_t flags = d->p->nodes.at[i].flags;
	flags |= c->nograd ? FLAG_NOGRAD : 0;
	flags |= c->inference ? FLAG_INFERENCE : 0;
	flags |= c->nautocast ? FLAG_AUTOCAST : 0;
	strbuf_int(d->b, flags);
}

/* factor, value (-1: the results), slice of dims: node_work of flops.h */
static void node_work_row(data *d, uint32_t i)
{
	work_product w = node_work(d->p, i);
	strbuf_putc(d->b, '[');
	put_number(d, w.factor);
	strbuf_putc(d->b, ',');
	put_id(d, w.of);
	strbuf_printf(d->b, ",%u,%u]", w.first, w.n);
}

typedef struct list {
	data *d;
	bool more;
} list;

static void put_member(void *ctx, value_id v)
{
	list *l = ctx;
	strbuf_puts(l->d->b, l->more ? "," : "");
	strbuf_int(l->d->b, v);
	l->more = true;
}

static void node_args(data *d, uint32_t i)
{
	list l = {d, false};
	strbuf_putc(d->b, '[');
	node_each_arg(d->p, i, put_member, &l);
	strbuf_putc(d->b, ']');
}

static void node_results(data *d, uint32_t i)
{
	list l = {d, false};
	strbuf_putc(d->b, '[');
	node_each_result(d->p, i, put_member, &l);
	strbuf_putc(d->b, ']');
}

static void node_writes(data *d, uint32_t i)
{
	const node *n = &d->p->nodes.at[i];
	list l = {d, false};
	if (!n->nwrites) {
		strbuf_putc(d->b, '0');
		return;
	}
	strbuf_putc(d->b, '[');
	for (uint32_t w = 0; w < n->nwrites; w++)
		put_member(&l, d->p->ids.at[n->writes + w]);
	strbuf_putc(d->b, ']');
}

static void node_line(data *d, uint32_t i)
{
	strbuf line = STRBUF_INIT;
	node_print(d->p, i, &line);
	strbuf_json(d->b, line.at, line.n);
	d->b->failed |= line.failed;
	strbuf_free(&line);
}

static void put_nodes(data *d)
{
	uint32_t n = d->p->nodes.n;
	put_column(d, "nodeName", n, node_name_at);
	put_column(d, "nodeOp", n, node_op);
	put_column(d, "nodeScope", n, node_scope);
	put_column(d, "nodeAt", n, node_source);
	put_column(d, "nodeFlags", n, node_flags_at);
	put_column(d, "nodeWork", n, node_work_row);
	put_column(d, "nodeArgs", n, node_args);
	put_column(d, "nodeResults", n, node_results);
	put_column(d, "nodeWrites", n, node_writes);
	put_column(d, "nodeLine", n <= LINES_MAX ? n : 0, node_line);
}

/* ---- what goes in and out ---------------------------------------------------------------------------------------- */

static void input_at(data *d, uint32_t i)
{
	strbuf_int(d->b, d->p->inputs.at[i]);
}

static void rebind_row(data *d, uint32_t i)
{
	strbuf_printf(d->b, "[%u,%u]", d->p->rebinds.at[i].target, d->p->rebinds.at[i].value);
}

static void put_outputs(data *d)
{
	list l = {d, false};
	put_key(d, "outputs");
	strbuf_putc(d->b, '[');
	for (uint32_t i = 0; i < d->p->out_tree.n; i++)
		if (d->p->out_tree.at[i].kind == TREE_VALUE)
			put_member(&l, d->p->out_tree.at[i].u.v);
	strbuf_putc(d->b, ']');
}

static void put_ends(data *d)
{
	put_column(d, "inputs", d->p->inputs.n, input_at);
	put_outputs(d);
	put_column(d, "rebinds", d->p->rebinds.n, rebind_row);
}

/* ---- frontiers --------------------------------------------------------------------------------------------------- */

#define FRONTIER_COLUMN(name, put, expression)                                                                         \
	static void frontier_##name(data *d, uint32_t i)                                                                   \
	{                                                                                                                  \
		const frontier *c = &d->f->at[i];                                                                              \
		put(d, (expression));                                                                                          \
	}

FRONTIER_COLUMN(bytes, put_amount, c->bytes)
FRONTIER_COLUMN(tensors, put_id, c->tensors)
FRONTIER_COLUMN(passthrough, put_id, c->passthrough)
FRONTIER_COLUMN(cost, put_number, c->cost)
FRONTIER_COLUMN(prefix_flops, put_number, c->flops[PREFIX])
FRONTIER_COLUMN(suffix_flops, put_number, c->flops[SUFFIX])
FRONTIER_COLUMN(prefix_params, put_amount, c->params[PREFIX])
FRONTIER_COLUMN(suffix_params, put_amount, c->params[SUFFIX])
FRONTIER_COLUMN(prefix_param_bytes, put_amount, c->param_bytes[PREFIX])
FRONTIER_COLUMN(suffix_param_bytes, put_amount, c->param_bytes[SUFFIX])
FRONTIER_COLUMN(prefix_memory, put_amount, c->memory[PREFIX])
FRONTIER_COLUMN(suffix_memory, put_amount, c->memory[SUFFIX])
FRONTIER_COLUMN(trainable, put_id, c->trainable)

/* Where the same text comes again and again, one copy with the positions at which it starts: [0, "…", 17, null, 20, "…"] */
typedef struct run {
	data *d;
	strbuf last;
	bool started, null;
} run;

static clv_status put_run(void *ctx, uint32_t i, const char *text)
{
	run *r = ctx;
	if (r->started && r->null == !text && (!text || !strcmp(r->last.at, text)))
		return CLV_OK;
	strbuf_printf(r->d->b, "%s%u,", r->started ? "," : "", i);
	put_text(r->d, text);
	r->started = true;
	r->null = !text;
	r->last.n = 0;
	strbuf_puts(&r->last, text ? text : "");
	strbuf_putc(&r->last, '\0');
	return r->last.failed ? fail_nomem() : CLV_OK;
}

static clv_status put_unsafe(run *r)
{
	for (uint32_t i = 0; i < r->d->f->n; i++)
		TRY(put_run(r, i, r->d->f->at[i].unsafe));
	return CLV_OK;
}

static clv_status put_runs(data *d, const char *key, bool formulas)
{
	run r = {.d = d, .last = STRBUF_INIT};
	put_key(d, key);
	strbuf_putc(d->b, '[');
	clv_status st = formulas ? frontiers_formulas(d->f, put_run, &r) : put_unsafe(&r);
	strbuf_putc(d->b, ']');
	strbuf_free(&r.last);
	return st;
}

static clv_status put_frontiers(data *d)
{
	uint32_t n = d->f->n;
	put_column(d, "bytes", n, frontier_bytes);
	put_column(d, "tensors", n, frontier_tensors);
	put_column(d, "passthrough", n, frontier_passthrough);
	put_column(d, "cost", n, frontier_cost);
	put_column(d, "prefixFlops", n, frontier_prefix_flops);
	put_column(d, "suffixFlops", n, frontier_suffix_flops);
	put_column(d, "prefixParams", n, frontier_prefix_params);
	put_column(d, "suffixParams", n, frontier_suffix_params);
	put_column(d, "prefixParamBytes", n, frontier_prefix_param_bytes);
	put_column(d, "suffixParamBytes", n, frontier_suffix_param_bytes);
	put_column(d, "prefixMemory", n, frontier_prefix_memory);
	put_column(d, "suffixMemory", n, frontier_suffix_memory);
	put_column(d, "trainable", n, frontier_trainable);
	TRY(put_runs(d, "unsafe", false));
	return d->p->symbols.n ? put_runs(d, "formulas", true) : CLV_OK; /* else the formula is the number */
}

/* ---- stages and segments ----------------------------------------------------------------------------------------- */

static void stage_of(data *d, uint32_t i)
{
	strbuf_int(d->b, d->o->stage_of_node[i]);
}

static void stage_cost(data *d, uint32_t i)
{
	const stage_score *s = &d->o->stages[i];
	put_number(d, s->fwd_us + s->bwd_us + s->comm_us);
}

static void stage_fact(data *d, uint32_t i)
{
	const stage_score *s = &d->o->stages[i];
	const double times[] = {s->fwd_us, s->bwd_us, s->comm_us};
	const int64_t bytes[] = {s->in_bytes,    s->out_bytes,    s->relayed_bytes,
	                         s->param_bytes, s->memory_bytes, s->in_flight};
	strbuf_printf(d->b, "[%u", s->device);
	for (size_t k = 0; k < sizeof times / sizeof *times; k++) {
		strbuf_putc(d->b, ',');
		put_number(d, times[k]);
	}
	for (size_t k = 0; k < sizeof bytes / sizeof *bytes; k++) {
		strbuf_putc(d->b, ',');
		put_amount(d, bytes[k]);
	}
	strbuf_putc(d->b, ']');
}

static void device_name(data *d, uint32_t i)
{
	put_text(d, d->o->device_names[i]);
}

static void segment_of(data *d, uint32_t i)
{
	strbuf_int(d->b, d->o->segment_of_node[i]);
}

/* compiled, reason */
static void segment_row(data *d, uint32_t i)
{
	bool compiled = !d->o->segment_compiled || d->o->segment_compiled[i];
	strbuf_printf(d->b, "[%d,", compiled);
	put_text(d, d->o->segment_reason ? d->o->segment_reason[i] : NULL);
	strbuf_putc(d->b, ']');
}

static void put_groups(data *d)
{
	const html_spec *o = d->o;
	put_key(d, "stages");
	strbuf_int(d->b, o->nstages);
	put_column(d, "stageOf", o->nstages ? d->p->nodes.n : 0, stage_of);
	put_column(d, "stageCost", o->stages ? o->nstages : 0, stage_cost);
	put_column(d, "stageFacts", o->stages ? o->nstages : 0, stage_fact);
	put_column(d, "devices", o->ndevices, device_name);
	put_key(d, "lowerBound");
	put_number(d, o->lower_bound_us);
	put_column(d, "segments", o->nsegments, segment_row);
	put_column(d, "segmentOf", o->nsegments ? d->p->nodes.n : 0, segment_of);
}

static clv_status put_all(data *d)
{
	put_head(d);
	put_frame(d);
	put_values(d);
	put_nodes(d);
	put_ends(d);
	TRY(put_frontiers(d));
	put_groups(d);
	put_key(d, "strings");
	strbuf_putc(d->b, '[');
	if (d->nstrings)
		strbuf_add(d->b, d->strings.at, d->strings.n);
	strbuf_puts(d->b, "]}");
	return d->strings.failed || d->b->failed ? fail_nomem() : CLV_OK;
}

clv_status html_data(const clv_frontiers *f, const html_spec *o, strbuf *b)
{
	data d = {.f = f, .p = f->p, .o = o, .b = b, .strings = STRBUF_INIT};
	d.string = mem_ids((size_t)f->p->strs.n + 1);
	clv_status st = d.string ? put_all(&d) : fail_nomem();
	mem_free(d.string);
	strbuf_free(&d.strings);
	return st;
}
