/* Converts regions around convolutions (regions.c) to channels-last images.
 *
 * Nodes of a region are made anew, with new values for their images. What is read outside keeps its value, which is
 * now a row-major copy of the new one: strides are those it had. Copies are clones, not aten::contiguous, which gives
 * its own argument where both layouts are the same memory: with strides of the other layout, and shared. */
#include "optimize/layouts.h"
#include "optimize/rewrite.h"

#include <string.h>

enum memory_format { MEMORY_CONTIGUOUS = 0, MEMORY_CHANNELS_LAST = 2 }; /* of memfmt_names */

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

typedef clv_status (*arg_fn)(converter *c, arg *a);

/* A copy that may be changed, with room for one more. */
static arg *copy_node_args(edit *e, uint32_t first, uint32_t n)
{
	arg *copy = edit_array(e, n, sizeof *copy);
	if (copy && n)
		memcpy(copy, &e->p->args.at[first], n * sizeof *copy);
	return copy;
}

/* The arguments of a list, changed, as a new list. */
static clv_status change_list(converter *c, arg *a, arg_fn f)
{
	uint32_t n = a->u.list.n;
	arg *parts = copy_node_args(c->e, a->u.list.first, n);
	TRY_MEM(parts);
	for (uint32_t i = 0; i < n; i++)
		TRY(f(c, &parts[i]));
	return plan_list(c->e->p, parts, n, a);
}

static clv_status weight_arg(converter *c, arg *a)
{
	if (a->kind != ARG_VALUE || !is_converted_once(c, a->u.v))
		return CLV_OK;
	TRY(bring_in(c, OP_contiguous, a->u.v, &c->weight[a->u.v]));
	a->u.v = c->weight[a->u.v];
	return CLV_OK;
}

static clv_status change_args(converter *c, arg *args)
{
	uint8_t kind = c->r->l.rows[c->now]->image.kind;
	TRY(kind == IMAGE_CAT ? change_list(c, &args[0], image_arg) : image_arg(c, &args[0]));
	if (kind == IMAGE_MIX)
		TRY(image_arg(c, &args[1]));
	return kind == IMAGE_CONV ? weight_arg(c, &args[1]) : CLV_OK;
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

/* The node again, with new images. */
static clv_status change_node(converter *c)
{
	edit *e = c->e;
	const node n = e->p->nodes.at[c->now];
	arg *args = copy_node_args(e, n.args, n.nargs), *results = copy_node_args(e, n.results, n.nresults);
	value_id *writes = edit_array(e, n.nwrites, sizeof *writes);
	node_id made;
	TRY_MEM(args && results && writes);
	TRY(change_args(c, args));
	for (uint32_t i = 0; i < n.nresults; i++)
		TRY(results[i].kind == ARG_LIST ? change_list(c, &results[i], image_result) : image_result(c, &results[i]));
	for (uint32_t i = 0; i < n.nwrites; i++)
		writes[i] = c->last[e->p->ids.at[n.writes + i]];
	node_spec s = {.op = plan_s(e->p, n.op),
	               .args = args,
	               .nargs = n.nargs,
	               .results = results,
	               .nresults = n.nresults,
	               .writes = writes,
	               .nwrites = n.nwrites,
	               .scope = n.scope,
	               .context = n.context,
	               .at = n.at == NONE ? NULL : plan_s(e->p, n.at),
	               .flags = n.flags};
	TRY(edit_remove(e, c->now));
	return edit_insert(e, c->now, &s, &made);
}

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
	value_id *heirs = edit_ids(c->e, c->n);
	TRY_MEM(heirs);
	for (value_id v = 0; v < c->n; v++)
		if (c->leaving[v])
			TRY(take_out(c, v, heirs));
	edit_take_memories(c->e, heirs, c->n);
	return CLV_OK;
}

clv_status pass_channels_last(edit *e, const optimize_spec *s, uint32_t *changes)
{
	regions r;
	converter c = {.e = e, .r = &r, .n = e->p->values.n};
	if (!s->channels_last)
		return CLV_OK;
	c.last = edit_ids(e, c.n);
	c.weight = edit_ids(e, c.n);
	c.maker = edit_ids(e, c.n);
	c.leaving = edit_array(e, c.n, sizeof *c.leaving);
	TRY_MEM(c.last && c.weight && c.maker && c.leaving);
	TRY(regions_find(e, &r));
	TRY(constant_values(e, s, &c.constant));
	for (value_id v = 0; v < c.n; v++) {
		c.maker[v] = made_inside(&r, v) ? e->p->values.at[v].def : NONE;
		c.leaving[v] = leaves(&r, v);
	}
	for (c.now = e->first; c.now < e->end; c.now++) {
		if (!r.in[c.now])
			continue;
		TRY(change_node(&c));
		++*changes;
	}
	return *changes ? take_all_out(&c) : CLV_OK;
}
