/* Images laid out channels last in regions around convolutions (regions.c), converted where they enter and leave.
 *
 * Nodes of a region are made anew, with new values for their images. What is read outside keeps its value, which is
 * now a row-major copy of the new one: strides are those it had. Copies are clones, not aten::contiguous, which gives
 * its own argument where both layouts are the same memory: with strides of the other layout, and shared. */
#include "optimize/layouts.h"
#include "optimize/rewrite.h"

enum memory_format { MEMORY_CONTIGUOUS = 0, MEMORY_CHANNELS_LAST = 2 }; /* of memfmt_names */

typedef VEC(arg) arg_list;

typedef struct converter {
	edit *e;
	const regions *r;
	uint32_t n;       /* values that the plan had */
	value_id *last;   /* per value: the same channels last; NONE */
	value_id *weight; /* likewise, of weights */
	node_id *maker;   /* per image of a region: its node; NONE: it is none */
	bool *leaving;    /* per image of a region */
	bool *constant;   /* per value: the same in every run */
	node_id now;
} converter;

/* ---- conversions -------------------------------------------------------------------------------------------------- */

/* With one channel, or one pixel, both layouts are the same. */
static bool is_converted_once(const converter *c, value_id w)
{
	return c->constant[w] && is_image(c->e, w) && !is_pixel(c->e, w) && !dim_is(c->e, w, 1, 1);
}

/* `to` is `from` in the format, made before node `before`, as a part of node `of`. */
static clv_status convert(converter *c, uint16_t op, value_id from, value_id to, enum memory_format format,
                          node_id before, node_id of)
{
	arg args[] = {arg_of(from), {.kind = ARG_MEMFMT, .u.code = format}};
	return put_node(&(spot){c->e, before, of}, op, args, 2, to);
}

static clv_status new_image(converter *c, value_id v, value_id *out)
{
	TRY(edit_like(c->e, v, out));
	c->e->p->values.at[*out].flags = c->e->p->values.at[v].flags & VALUE_GRAD;
	return CLV_OK;
}

static clv_status bring_in(converter *c, uint16_t op, value_id v, value_id *made)
{
	if (*made != NONE)
		return CLV_OK;
	TRY(new_image(c, v, made));
	return convert(c, op, v, *made, MEMORY_CHANNELS_LAST, c->now, c->now);
}

/* ---- nodes of regions --------------------------------------------------------------------------------------------- */

static clv_status image_arg(converter *c, arg *a)
{
	if (a->kind != ARG_VALUE || !is_image(c->e, a->u.v))
		return CLV_OK;
	value_id v = a->u.v;
	if (c->maker[v] == NONE && is_pixel(c->e, v))
		return CLV_OK;
	TRY(bring_in(c, OP_clone, v, &c->last[v]));
	a->u.v = c->last[v];
	return CLV_OK;
}

static clv_status copy_args(const edit *e, uint32_t first, uint32_t n, arg_list *out)
{
	for (uint32_t i = 0; i < n; i++)
		TRY(vec_push(out, e->p->args.at[first + i]));
	return CLV_OK;
}

typedef clv_status (*arg_fn)(converter *c, arg *a);

/* The arguments of a list, changed, as a new list. */
static clv_status change_list(converter *c, arg *a, arg_fn f)
{
	arg_list parts = {0};
	clv_status st = copy_args(c->e, a->u.list.first, a->u.list.n, &parts);
	for (uint32_t i = 0; st == CLV_OK && i < parts.n; i++)
		st = f(c, &parts.at[i]);
	if (st == CLV_OK)
		st = plan_list(c->e->p, parts.at, parts.n, a);
	vec_free(&parts);
	return st;
}

static clv_status weight_arg(converter *c, arg *a)
{
	if (a->kind != ARG_VALUE || !is_converted_once(c, a->u.v))
		return CLV_OK;
	TRY(bring_in(c, OP_contiguous, a->u.v, &c->weight[a->u.v]));
	a->u.v = c->weight[a->u.v];
	return CLV_OK;
}

static clv_status change_args(converter *c, arg_list *args)
{
	uint8_t kind = c->r->l.rows[c->now]->image.kind;
	TRY(kind == IMAGE_CAT ? change_list(c, &args->at[0], image_arg) : image_arg(c, &args->at[0]));
	if (kind == IMAGE_MIX)
		TRY(image_arg(c, &args->at[1]));
	return kind == IMAGE_CONV ? weight_arg(c, &args->at[1]) : CLV_OK;
}

/* On the memory of the new images where it was on the memory of the old ones. */
static clv_status image_result(converter *c, arg *a)
{
	if (a->kind != ARG_VALUE || !is_image(c->e, a->u.v))
		return CLV_OK;
	value_id v = a->u.v, root = c->e->p->values.at[v].alias;
	TRY(new_image(c, v, &c->last[v]));
	c->e->p->values.at[c->last[v]].alias = root == NONE ? NONE : c->last[root];
	a->u.v = c->last[v];
	return CLV_OK;
}

static clv_status change_results(converter *c, arg_list *results)
{
	for (uint32_t i = 0; i < results->n; i++)
		TRY(results->at[i].kind == ARG_LIST ? change_list(c, &results->at[i], image_result)
		                                    : image_result(c, &results->at[i]));
	return CLV_OK;
}

typedef struct node_parts {
	arg_list args, results;
	VEC(value_id) writes;
} node_parts;

static clv_status collect(const converter *c, node_parts *x)
{
	const node *n = &c->e->p->nodes.at[c->now];
	TRY(copy_args(c->e, n->args, n->nargs, &x->args));
	TRY(copy_args(c->e, n->results, n->nresults, &x->results));
	for (uint32_t i = 0; i < n->nwrites; i++)
		TRY(vec_push(&x->writes, c->e->p->ids.at[n->writes + i]));
	return CLV_OK;
}

static clv_status remake(converter *c, node_parts *x)
{
	TRY(collect(c, x));
	TRY(change_args(c, &x->args));
	TRY(change_results(c, &x->results));
	for (uint32_t i = 0; i < x->writes.n; i++)
		x->writes.at[i] = c->last[x->writes.at[i]];
	const plan *p = c->e->p;
	const node *n = &p->nodes.at[c->now];
	node_spec s = {.op = plan_s(p, n->op),
	               .args = x->args.at,
	               .nargs = x->args.n,
	               .results = x->results.at,
	               .nresults = x->results.n,
	               .writes = x->writes.at,
	               .nwrites = x->writes.n,
	               .scope = n->scope,
	               .context = n->context,
	               .at = n->at == NONE ? NULL : plan_s(p, n->at),
	               .flags = n->flags};
	node_id made;
	TRY(edit_remove(c->e, c->now));
	return edit_insert(c->e, c->now, &s, &made);
}

static clv_status change_node(converter *c)
{
	node_parts x = {0};
	clv_status st = remake(c, &x);
	vec_free(&x.args);
	vec_free(&x.results);
	vec_free(&x.writes);
	return st;
}

/* ---- the pass ----------------------------------------------------------------------------------------------------- */

/* Only one value of its memory leaves: those outside that were on that memory are on the copy's. */
static clv_status take_out(converter *c, value_id v, value_id *heirs)
{
	value_id root = c->e->p->values.at[v].alias;
	if (root != NONE)
		heirs[root] = v;
	return convert(c, OP_clone, c->last[v], v, MEMORY_CONTIGUOUS, c->r->first_out[v], c->maker[v]);
}

static clv_status take_all_out(converter *c)
{
	value_id *heirs = mem_ids((size_t)c->n + 1);
	clv_status st = heirs ? CLV_OK : fail_nomem();
	for (value_id v = 0; st == CLV_OK && v < c->n; v++)
		if (c->leaving[v])
			st = take_out(c, v, heirs);
	if (st == CLV_OK)
		edit_take_memories(c->e, heirs, c->n);
	mem_free(heirs);
	return st;
}

static void find_makers(converter *c)
{
	for (value_id v = 0; v < c->n; v++) {
		c->maker[v] = made_inside(c->r, v) ? c->e->p->values.at[v].def : NONE;
		c->leaving[v] = leaves(c->r, v);
	}
}

static clv_status change_all(converter *c, uint32_t *changes)
{
	find_makers(c);
	for (c->now = c->e->first; c->now < c->e->end; c->now++) {
		if (!c->r->in[c->now])
			continue;
		TRY(change_node(c));
		++*changes;
	}
	return *changes ? take_all_out(c) : CLV_OK;
}

static clv_status convert_regions(edit *e, const optimize_spec *s, const regions *r, uint32_t *changes)
{
	converter c = {.e = e, .r = r, .n = e->p->values.n};
	c.last = mem_ids((size_t)c.n + 1);
	c.weight = mem_ids((size_t)c.n + 1);
	c.maker = mem_ids((size_t)c.n + 1);
	c.leaving = mem_alloc((c.n + 1) * sizeof *c.leaving);
	clv_status st = c.last && c.weight && c.maker && c.leaving ? constant_values(e, s, &c.constant) : fail_nomem();
	if (st == CLV_OK)
		st = change_all(&c, changes);
	mem_free(c.last);
	mem_free(c.weight);
	mem_free(c.maker);
	mem_free(c.leaving);
	mem_free(c.constant);
	return st;
}

clv_status pass_channels_last(edit *e, const optimize_spec *s, uint32_t *changes)
{
	regions r;
	if (!s->channels_last)
		return CLV_OK;
	clv_status st = regions_find(e, &r);
	if (st == CLV_OK)
		st = convert_regions(e, s, &r, changes);
	regions_free(&r);
	return st;
}
