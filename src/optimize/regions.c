/* Chooses the nodes that work on channels-last images.
 *
 * First all that can. Then those go that would be noticed: memory of an image is channels-last for all that are on it
 * or for none, it is written by nodes of a region alone, and what is read outside is one value of it, once it is
 * written for the last time, so that a single copy does for all outside. Of the others a minimum cut takes those that
 * pay: a convolution saves about as much as it reads and writes, for it converts its images itself where they are
 * row-major. */
#include "optimize/layouts.h"
#include "split/mincut.h"

bool made_inside(const regions *r, value_id v)
{
	const value *x = &r->e->p->values.at[v];
	return x->kind == VALUE_RESULT && x->def != NONE && r->in[x->def] && is_image(r->e, v);
}

bool leaves(const regions *r, value_id v)
{
	return made_inside(r, v) && (r->e->facts.kept[v] || r->e->facts.uses[v] > r->inner[v]);
}

/* An image from outside that has to be converted. */
static bool enters(const regions *r, value_id v)
{
	return r->inner[v] && !made_inside(r, v) && !is_pixel(r->e, v);
}

static value_id root_of(const regions *r, value_id v)
{
	return alias_root(r->e->p, v);
}

static bool is_slice(const regions *r, value_id v)
{
	return r->l.order[v] == ORDER_SLICE;
}

/* ---- what nodes read and write ------------------------------------------------------------------------------------ */

static void count_inner(void *ctx, value_id v)
{
	regions *r = ctx;
	r->inner[v]++;
	if (r->first_use[v] == NONE)
		r->first_use[v] = r->now;
}

static void see_outer(void *ctx, value_id v)
{
	regions *r = ctx;
	if (r->now < r->first_out[v])
		r->first_out[v] = r->now;
}

static void see_writes(regions *r)
{
	const node *x = &r->e->p->nodes.at[r->now];
	for (uint32_t i = 0; i < x->nwrites; i++) {
		value_id root = root_of(r, r->e->p->ids.at[x->writes + i]);
		r->last_write[root] = r->now;
		if (r->in[r->now])
			r->inner_write[root] = r->now;
		else
			r->apart[root] = true;
	}
}

/* A weight is read as it is. */
static void see_weight(regions *r)
{
	value_id w = edit_value(r->e, r->now, 1);
	if (w != NONE && made_inside(r, w))
		r->apart[root_of(r, w)] = true;
}

static void see_node(regions *r)
{
	see_writes(r);
	if (!r->in[r->now]) {
		node_each_arg(r->e->p, r->now, see_outer, r);
		return;
	}
	layout_each_image(&r->l, r->now, count_inner, r);
	if (r->l.rows[r->now]->image.kind == IMAGE_CONV)
		see_weight(r);
}

static void clear_counts(regions *r)
{
	for (value_id v = 0; v < r->e->p->values.n; v++) {
		r->inner[v] = r->leaving[v] = 0;
		r->first_out[v] = r->e->end;
		r->first_use[v] = r->leaving_at[v] = r->inner_write[v] = r->last_write[v] = NONE;
		r->apart[v] = false;
	}
}

static void see_leaving(regions *r, value_id v)
{
	value_id root = root_of(r, v);
	r->apart[root] |= !made_inside(r, root);
	if (!leaves(r, v) || is_slice(r, v))
		return;
	r->leaving[root]++;
	r->leaving_at[root] = r->first_out[v];
}

/* Nodes after the range write the copy, by the name of the first on its memory; other names are gone. */
static void see_later_writes(regions *r)
{
	const plan *p = r->e->p;
	for (node_id n = r->e->end; n < p->nodes.n; n++)
		for (uint32_t i = 0; i < p->nodes.at[n].nwrites; i++) {
			value_id v = p->ids.at[p->nodes.at[n].writes + i];
			r->apart[root_of(r, v)] |= v != root_of(r, v) && made_inside(r, v) && !leaves(r, v);
		}
}

static bool copy_is_stale(const regions *r, value_id root)
{
	return r->leaving[root] > 1 ||
	       (r->leaving[root] && r->inner_write[root] != NONE && r->inner_write[root] >= r->leaving_at[root]);
}

static void look(regions *r)
{
	clear_counts(r);
	for (r->now = r->e->first; r->now < r->e->end; r->now++)
		see_node(r);
	for (value_id v = 0; v < r->e->p->values.n; v++)
		if (made_inside(r, v))
			see_leaving(r, v);
	see_later_writes(r);
	for (value_id v = 0; v < r->e->p->values.n; v++)
		r->apart[v] |= copy_is_stale(r, v);
}

/* ---- nodes that would be noticed ---------------------------------------------------------------------------------- */

/* A copy of a slice would have no gaps. */
static void may_be_made(void *ctx, value_id v)
{
	regions *r = ctx;
	r->yes &= !is_image(r->e, v) || !(r->apart[root_of(r, v)] || (is_slice(r, v) && leaves(r, v)));
}

/* What comes in is converted once, before the first node of a region that reads it. */
static void may_be_read(void *ctx, value_id v)
{
	regions *r = ctx;
	node_id written = r->last_write[root_of(r, v)];
	r->yes &= !enters(r, v) || written == NONE || written < r->first_use[v];
}

static bool stays_inside(regions *r, node_id n)
{
	const node *x = &r->e->p->nodes.at[n];
	r->yes = true;
	for (uint32_t i = 0; i < x->nwrites; i++)
		r->yes &= made_inside(r, r->e->p->ids.at[x->writes + i]);
	node_each_result(r->e->p, n, may_be_made, r);
	layout_each_image(&r->l, n, may_be_read, r);
	return r->yes;
}

/* Every node that goes may take others with it. Whether any went. */
static bool settle(regions *r)
{
	bool any = false;
	for (bool again = true; again;) {
		again = false;
		look(r);
		for (node_id n = r->e->first; n < r->e->end; n++) {
			bool goes = r->in[n] && !stays_inside(r, n);
			again |= goes;
			r->in[n] &= !goes;
		}
		any |= again;
	}
	return any;
}

/* ---- regions that pay --------------------------------------------------------------------------------------------- */

/* The cheapest way to choose, as a cut: a node with the source stays row-major. What is cut are bytes: those that a
   convolution reads and writes, where it stays row-major; those of an image that leaves, and of one that enters. */
typedef struct chooser {
	regions *r;
	network net;
	double scale; /* of bytes, so that all together are less than what is never cut */
	node_id now;
	clv_status st;
} chooser;

static uint32_t node_vertex(const chooser *c, node_id n)
{
	return NETWORK_ENDS + n - c->r->e->first;
}

/* With the source: the image leaves, as a copy. */
static uint32_t leave_vertex(const chooser *c, value_id v)
{
	return NETWORK_ENDS + (c->r->e->end - c->r->e->first) + 2 * v;
}

/* With the sink: the image enters. */
static uint32_t enter_vertex(const chooser *c, value_id v)
{
	return leave_vertex(c, v) + 1;
}

static void link_to(chooser *c, uint32_t from, uint32_t to, int64_t capacity)
{
	if (c->st == CLV_OK && capacity > 0)
		c->st = network_edge_add(&c->net, from, to, capacity);
}

static int64_t capacity_of(const chooser *c, value_id v)
{
	return (int64_t)(c->r->bytes[v] * c->scale);
}

static void choose_reader(void *ctx, value_id v)
{
	chooser *c = ctx;
	uint32_t reader = node_vertex(c, c->now);
	if (!is_pixel(c->r->e, v) || made_inside(c->r, v))
		link_to(c, enter_vertex(c, v), reader, NETWORK_NEVER);
	if (made_inside(c->r, v))
		link_to(c, reader, leave_vertex(c, v), NETWORK_NEVER);
}

/* What a convolution gains; where it comes to the same, nothing is changed. */
static void choose_convolution(chooser *c)
{
	value_id x = edit_value(c->r->e, c->now, 0), y = edit_result(c->r->e, c->now);
	if (c->r->l.rows[c->now]->image.kind == IMAGE_CONV && y != NONE)
		link_to(c, node_vertex(c, c->now), NETWORK_SINK, capacity_of(c, x) + capacity_of(c, y) - 1);
}

static void choose_made(chooser *c, value_id v)
{
	const edit *e = c->r->e;
	uint32_t maker = node_vertex(c, e->p->values.at[v].def);
	value_id root = e->p->values.at[v].alias;
	link_to(c, leave_vertex(c, v), maker, is_slice(c->r, v) ? NETWORK_NEVER : capacity_of(c, v));
	link_to(c, maker, enter_vertex(c, v), is_pixel(e, v) ? 0 : capacity_of(c, v));
	if (leaves(c->r, v))
		link_to(c, NETWORK_SOURCE, leave_vertex(c, v), NETWORK_NEVER);
	if (root == NONE)
		return;
	link_to(c, maker, node_vertex(c, e->p->values.at[root].def), NETWORK_NEVER);
	link_to(c, node_vertex(c, e->p->values.at[root].def), maker, NETWORK_NEVER);
}

static clv_status build_network(chooser *c)
{
	regions *r = c->r;
	for (c->now = r->e->first; c->now < r->e->end; c->now++) {
		if (!r->in[c->now])
			continue;
		layout_each_image(&r->l, c->now, choose_reader, c);
		choose_convolution(c);
	}
	for (value_id v = 0; v < r->e->p->values.n; v++)
		if (made_inside(r, v))
			choose_made(c, v);
		else if (enters(r, v))
			link_to(c, NETWORK_SOURCE, enter_vertex(c, v), capacity_of(c, v));
	return c->st;
}

static double all_bytes(const regions *r)
{
	double sum = 1;
	for (value_id v = 0; v < r->e->p->values.n; v++)
		sum += r->bytes[v];
	return sum;
}

static clv_status choose_with(chooser *c, bool *row_major)
{
	regions *r = c->r;
	int64_t capacity;
	TRY(build_network(c));
	network_cut(&c->net, row_major, &capacity);
	for (node_id n = r->e->first; n < r->e->end; n++)
		r->in[n] &= !row_major[node_vertex(c, n)];
	return CLV_OK;
}

static clv_status choose_nodes(edit *e, regions *r)
{
	/* an image is cut where it enters and leaves, and for the convolutions that read and write it */
	double most = (double)(NETWORK_NEVER / 4) / ((double)r->e->p->nodes.n + 4);
	chooser c = {.r = r, .scale = all_bytes(r) > most ? most / all_bytes(r) : 1};
	uint64_t vertices = NETWORK_ENDS + (uint64_t)r->e->p->nodes.n + 2 * (uint64_t)r->e->p->values.n;
	if (vertices >= NONE)
		return fail(CLV_E_OVERFLOW, "the plan has too many values to choose layouts");
	bool *row_major = edit_array(e, vertices, sizeof *row_major);
	TRY_MEM(row_major);
	clv_status st = network_new(&c.net, (uint32_t)vertices);
	if (st == CLV_OK)
		st = choose_with(&c, row_major);
	network_free(&c.net);
	return st;
}

/* ---- all of it ---------------------------------------------------------------------------------------------------- */

/* At the least sizes that may be. */
static clv_status find_image_bytes(edit *e, regions *r)
{
	const plan *p = e->p;
	int64_t *sizes = edit_array(e, p->symbols.n, sizeof *sizes);
	TRY_MEM(sizes);
	for (symbol_id s = 0; s < p->symbols.n; s++)
		sizes[s] = p->symbols.at[s].lo > 1 ? p->symbols.at[s].lo : 1;
	for (value_id v = 0; v < p->values.n; v++) {
		int64_t bytes = 0;
		clv_status st = is_image(e, v) ? value_bytes(p, v, sizes, &bytes) : CLV_OK;
		if (st == CLV_E_NOMEM)
			return st;
		r->bytes[v] = st == CLV_OK ? (double)bytes : 0;
	}
	return CLV_OK;
}

static clv_status alloc_all(edit *e, regions *r)
{
	size_t values = e->p->values.n;
	r->in = edit_array(e, e->p->nodes.n, sizeof *r->in);
	r->inner = edit_array(e, values, sizeof *r->inner);
	r->leaving = edit_array(e, values, sizeof *r->leaving);
	r->apart = edit_array(e, values, sizeof *r->apart);
	r->bytes = edit_array(e, values, sizeof *r->bytes);
	r->first_use = edit_ids(e, values);
	r->first_out = edit_ids(e, values);
	r->leaving_at = edit_ids(e, values);
	r->inner_write = edit_ids(e, values);
	r->last_write = edit_ids(e, values);
	bool all = r->in && r->inner && r->leaving && r->apart && r->bytes && r->first_use && r->first_out &&
	           r->leaving_at && r->inner_write && r->last_write;
	return all ? CLV_OK : fail_nomem();
}

clv_status regions_find(edit *e, regions *out)
{
	*out = (regions){.e = e};
	TRY(layouts_new(e, &out->l));
	TRY(alloc_all(e, out));
	TRY(find_image_bytes(e, out));
	for (node_id n = e->first; n < e->end; n++)
		out->in[n] = layout_possible(&out->l, n);
	settle(out);
	do
		TRY(choose_nodes(e, out));
	while (settle(out));
	return CLV_OK;
}
