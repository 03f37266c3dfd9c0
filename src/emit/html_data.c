/* Writes a plan and its frontiers as JSON for the report: columns of numbers, and a table of strings they refer to. */
#include <string.h>

#include "base/member.h"
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

static void put_page_key(data *d, const char *key)
{
	member_line(d->b, 0);
	member_key(d->b, key);
}

/* NONE is -1. */
static void put_id(data *d, uint32_t id)
{
	member_int(d->b, NULL, id == NONE ? -1 : (int64_t)id);
}

/* A string of the plan, as its number in the page's table. */
static void put_string(data *d, str_id id)
{
	if (id != NONE && d->string[id] == NONE) {
		const str *s = &d->p->strs.at[id];
		member_key(&d->strings, NULL);
		strbuf_json(&d->strings, s->s, s->n);
		d->string[id] = d->nstrings++;
	}
	put_id(d, id == NONE ? NONE : d->string[id]);
}

/* A column: `put` is evaluated for each i below n. */
#define PUT_COLUMN(key, n, put)                                                                                        \
	do {                                                                                                               \
		put_page_key(d, key);                                                                                          \
		strbuf_putc(d->b, '[');                                                                                        \
		for (uint32_t i = 0; i < (n); i++)                                                                             \
			put;                                                                                                       \
		strbuf_putc(d->b, ']');                                                                                        \
	} while (0)

static void put_head(data *d)
{
	const plan *p = d->p;
	strbuf_puts(d->b, "{\"format\":1");
	put_page_key(d, "version");
	member_text(d->b, NULL, CLV_VERSION);
	put_page_key(d, "title");
	member_text(d->b, NULL, d->o->title);
	put_page_key(d, "model");
	put_string(d, p->model);
	put_page_key(d, "training");
	member_bool(d->b, NULL, p->training);
	put_page_key(d, "bandwidth");
	member_number(d->b, NULL, d->o->bandwidth_bytes_per_s);
	put_page_key(d, "prefixSpeed");
	member_number(d->b, NULL, d->o->prefix_flops_per_s);
	put_page_key(d, "suffixSpeed");
	member_number(d->b, NULL, d->o->suffix_flops_per_s);
	put_page_key(d, "chosen");
	put_id(d, d->o->frontier);
}

/* name, lowest, highest, read from data, size that the frontiers are counted at */
static void symbol_row(data *d, uint32_t i)
{
	const symbol *s = &d->p->symbols.at[i];
	member_open(d->b, NULL, '[');
	put_string(d, s->name);
	strbuf_printf(d->b, ",%lld,%lld,%u,%lld]", (long long)s->lo, (long long)s->hi, s->data, (long long)d->f->syms[i]);
}

/* operator, operands; a constant is [0, k], a symbol [1, number] */
static void expr_row(data *d, uint32_t i)
{
	const expr *e = &d->p->exprs.at[i];
	member_key(d->b, NULL);
	if (e->op == EXPR_CONST || e->op == EXPR_SYM)
		strbuf_printf(d->b, "[%d,%lld]", (int)e->op, (long long)e->k);
	else
		strbuf_printf(d->b, "[%d,%u,%u]", (int)e->op, e->a, e->b);
}

static void put_frame(data *d)
{
	const plan *p = d->p;
	PUT_COLUMN("symbols", p->symbols.n, symbol_row(d, i));
	PUT_COLUMN("exprs", p->exprs.n, expr_row(d, i));
	PUT_COLUMN("dims", p->dims.n, member_int(d->b, NULL, p->dims.at[i]));
	PUT_COLUMN("scopeParent", p->scopes.n, put_id(d, p->scopes.at[i].parent));
	PUT_COLUMN("scopePath", p->scopes.n, put_string(d, p->scopes.at[i].path));
	PUT_COLUMN("scopeClass", p->scopes.n, put_string(d, p->scopes.at[i].cls));
}

static void dtype_row(data *d, uint32_t i)
{
	member_open(d->b, NULL, '[');
	member_text(d->b, NULL, dtype_name((dtype)i));
	member_int(d->b, NULL, dtype_bits((dtype)i));
	strbuf_putc(d->b, ']');
}

static void put_values(data *d)
{
	const plan *p = d->p;
	const value *x = p->values.at;
	uint32_t n = p->values.n;
	PUT_COLUMN("dtypes", DT_COUNT, dtype_row(d, i));
	PUT_COLUMN("valueKind", n, put_id(d, x[i].kind));
	PUT_COLUMN("valueType", n, put_id(d, x[i].type));
	PUT_COLUMN("valueDtype", n, put_id(d, x[i].dtype));
	PUT_COLUMN("valueFlags", n, put_id(d, x[i].flags));
	PUT_COLUMN("valueNdim", n, put_id(d, x[i].type == TYPE_TENSOR ? x[i].ndim : 0));
	PUT_COLUMN("valueShape", n, put_id(d, x[i].type == TYPE_TENSOR && x[i].ndim ? x[i].shape : 0));
	PUT_COLUMN("valueRoot", n, put_id(d, alias_root(p, i)));
	PUT_COLUMN("valueDef", n, put_id(d, x[i].def));
	PUT_COLUMN("valueLast", n, put_id(d, d->f->live.last[i]));
	PUT_COLUMN("valueNumber", n, put_id(d, value_number(p, i)));
	PUT_COLUMN("valueName", n, put_string(d, x[i].name));
	PUT_COLUMN("valueDevice", n, put_string(d, x[i].type == TYPE_TENSOR ? x[i].device : NONE));
}

enum { FLAG_NOGRAD = 8, FLAG_INFERENCE = 16, FLAG_AUTOCAST = 32 }; /* in addition to node_flags */

static void put_node_flags(data *d, uint32_t i)
{
	const context *c = &d->p->contexts.at[d->p->nodes.at[i].context];
	uint32_t flags = d->p->nodes.at[i].flags;
	flags |= c->nograd ? FLAG_NOGRAD : 0;
	flags |= c->inference ? FLAG_INFERENCE : 0;
	flags |= c->nautocast ? FLAG_AUTOCAST : 0;
	member_int(d->b, NULL, flags);
}

/* factor, value (-1: the results), slice of dims: node_work of flops.h */
static void put_node_work(data *d, uint32_t i)
{
	work_product w = node_work(d->p, i);
	member_open(d->b, NULL, '[');
	member_number(d->b, NULL, w.factor);
	put_id(d, w.of);
	strbuf_printf(d->b, ",%u,%u]", w.first, w.n);
}

static void put_member(void *ctx, value_id v)
{
	member_int(((data *)ctx)->b, NULL, v);
}

static void put_node_values(data *d, node_id n, void (*each)(const plan *, node_id, value_fn, void *))
{
	member_open(d->b, NULL, '[');
	each(d->p, n, put_member, d);
	strbuf_putc(d->b, ']');
}

static void put_node_writes(data *d, uint32_t i)
{
	const node *n = &d->p->nodes.at[i];
	if (!n->nwrites) {
		member_int(d->b, NULL, 0);
		return;
	}
	member_open(d->b, NULL, '[');
	for (uint32_t w = 0; w < n->nwrites; w++)
		put_member(d, d->p->ids.at[n->writes + w]);
	strbuf_putc(d->b, ']');
}

static void put_node_line(data *d, uint32_t i)
{
	strbuf line = STRBUF_INIT;
	node_print(d->p, i, &line);
	member_key(d->b, NULL);
	strbuf_json(d->b, line.at, line.n);
	d->b->failed |= line.failed;
	strbuf_free(&line);
}

static void put_node_columns(data *d)
{
	const node *x = d->p->nodes.at;
	uint32_t n = d->p->nodes.n;
	PUT_COLUMN("nodeName", n, member_text(d->b, NULL, node_name(d->f->names, i)));
	PUT_COLUMN("nodeOp", n, put_string(d, x[i].op));
	PUT_COLUMN("nodeScope", n, put_id(d, x[i].scope));
	PUT_COLUMN("nodeAt", n, put_string(d, x[i].at));
	PUT_COLUMN("nodeFlags", n, put_node_flags(d, i));
	PUT_COLUMN("nodeWork", n, put_node_work(d, i));
	PUT_COLUMN("nodeArgs", n, put_node_values(d, i, node_each_arg));
	PUT_COLUMN("nodeResults", n, put_node_values(d, i, node_each_result));
	PUT_COLUMN("nodeWrites", n, put_node_writes(d, i));
	PUT_COLUMN("nodeLine", n <= LINES_MAX ? n : 0, put_node_line(d, i));
}

static void put_outputs(data *d)
{
	put_page_key(d, "outputs");
	strbuf_putc(d->b, '[');
	for (uint32_t i = 0; i < d->p->out_tree.n; i++)
		if (d->p->out_tree.at[i].kind == TREE_VALUE)
			put_member(d, d->p->out_tree.at[i].u.v);
	strbuf_putc(d->b, ']');
}

static void rebind_row(data *d, uint32_t i)
{
	member_open(d->b, NULL, '[');
	put_member(d, d->p->rebinds.at[i].target);
	put_member(d, d->p->rebinds.at[i].value);
	strbuf_putc(d->b, ']');
}

static void put_ends(data *d)
{
	PUT_COLUMN("inputs", d->p->inputs.n, put_member(d, d->p->inputs.at[i]));
	put_outputs(d);
	PUT_COLUMN("rebinds", d->p->rebinds.n, rebind_row(d, i));
}

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
	member_int(r->d->b, NULL, i);
	member_text(r->d->b, NULL, text);
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
	put_page_key(d, key);
	strbuf_putc(d->b, '[');
	clv_status st = formulas ? frontiers_formulas(d->f, put_run, &r) : put_unsafe(&r);
	strbuf_putc(d->b, ']');
	strbuf_free(&r.last);
	return st;
}

static clv_status put_frontiers(data *d)
{
	const frontier *c = d->f->at;
	uint32_t n = d->f->n;
	PUT_COLUMN("bytes", n, member_amount(d->b, NULL, c[i].bytes));
	PUT_COLUMN("tensors", n, put_id(d, c[i].tensors));
	PUT_COLUMN("passthrough", n, put_id(d, c[i].passthrough));
	PUT_COLUMN("cost", n, member_number(d->b, NULL, c[i].cost));
	PUT_COLUMN("prefixFlops", n, member_number(d->b, NULL, c[i].flops[PREFIX]));
	PUT_COLUMN("suffixFlops", n, member_number(d->b, NULL, c[i].flops[SUFFIX]));
	PUT_COLUMN("prefixParams", n, member_amount(d->b, NULL, c[i].params[PREFIX]));
	PUT_COLUMN("suffixParams", n, member_amount(d->b, NULL, c[i].params[SUFFIX]));
	PUT_COLUMN("prefixParamBytes", n, member_amount(d->b, NULL, c[i].param_bytes[PREFIX]));
	PUT_COLUMN("suffixParamBytes", n, member_amount(d->b, NULL, c[i].param_bytes[SUFFIX]));
	PUT_COLUMN("prefixMemory", n, member_amount(d->b, NULL, c[i].memory[PREFIX]));
	PUT_COLUMN("suffixMemory", n, member_amount(d->b, NULL, c[i].memory[SUFFIX]));
	PUT_COLUMN("trainable", n, put_id(d, c[i].trainable));
	TRY(put_runs(d, "unsafe", false));
	return d->p->symbols.n ? put_runs(d, "formulas", true) : CLV_OK; /* else the formula is the number */
}

static void stage_cost(data *d, uint32_t i)
{
	const stage_score *s = &d->o->stages[i];
	member_number(d->b, NULL, s->fwd_us + s->bwd_us + s->comm_us);
}

static void stage_fact(data *d, uint32_t i)
{
	const stage_score *s = &d->o->stages[i];
	const double times[] = {s->fwd_us, s->bwd_us, s->comm_us};
	const int64_t bytes[] = {s->in_bytes,    s->out_bytes,    s->relayed_bytes,
	                         s->param_bytes, s->memory_bytes, s->in_flight};
	member_open(d->b, NULL, '[');
	member_int(d->b, NULL, s->device);
	for (size_t k = 0; k < sizeof times / sizeof *times; k++)
		member_number(d->b, NULL, times[k]);
	for (size_t k = 0; k < sizeof bytes / sizeof *bytes; k++)
		member_amount(d->b, NULL, bytes[k]);
	strbuf_putc(d->b, ']');
}

/* compiled, reason */
static void segment_row(data *d, uint32_t i)
{
	bool compiled = !d->o->segment_compiled || d->o->segment_compiled[i];
	member_open(d->b, NULL, '[');
	member_int(d->b, NULL, compiled);
	member_text(d->b, NULL, d->o->segment_reason ? d->o->segment_reason[i] : NULL);
	strbuf_putc(d->b, ']');
}

static void put_groups(data *d)
{
	const html_spec *o = d->o;
	put_page_key(d, "stages");
	member_int(d->b, NULL, o->nstages);
	PUT_COLUMN("stageOf", o->nstages ? d->p->nodes.n : 0, member_int(d->b, NULL, o->stage_of_node[i]));
	PUT_COLUMN("stageCost", o->stages ? o->nstages : 0, stage_cost(d, i));
	PUT_COLUMN("stageFacts", o->stages ? o->nstages : 0, stage_fact(d, i));
	PUT_COLUMN("devices", o->ndevices, member_text(d->b, NULL, o->device_names[i]));
	put_page_key(d, "lowerBound");
	member_number(d->b, NULL, o->lower_bound_us);
	PUT_COLUMN("segments", o->nsegments, segment_row(d, i));
	PUT_COLUMN("segmentOf", o->nsegments ? d->p->nodes.n : 0, member_int(d->b, NULL, o->segment_of_node[i]));
}

static clv_status put_page_data(data *d)
{
	put_head(d);
	put_frame(d);
	put_values(d);
	put_node_columns(d);
	put_ends(d);
	TRY(put_frontiers(d));
	put_groups(d);
	put_page_key(d, "strings");
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
	clv_status st = d.string ? put_page_data(&d) : fail_nomem();
	mem_free(d.string);
	strbuf_free(&d.strings);
	return st;
}
