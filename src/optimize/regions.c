/* Which nodes are to work on channels-last images.
 *
 * First all that can. Then those go that would be noticed: memory of an image is channels-last for all that are on it or for
 * none, it is written by nodes of a region alone, and what is read outside is one value of it, once it is written for the last
 * time, so that a single copy does for all outside. Then those at the edges go without which less must be converted, and
 * last the regions that do not pay: a convolution saves about as much as it reads and writes, for it converts its
 * images itself where they are row-major. */
#include "optimize/layouts.h"

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
	if (r->l.rows[r->now]->kind == LAYOUT_CONV)
		see_weight(r);
}

static void start(regions *r)
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
	if (!leaves(r, v))
		return;
	r->leaving[root]++;
	r->leaving_at[root] = r->first_out[v];
	r->apart[root] |= r->l.order[v] != ORDER_ROWS;
}

static bool copy_is_stale(const regions *r, value_id root)
{
	return r->leaving[root] > 1 ||
	       (r->leaving[root] && r->inner_write[root] != NONE && r->inner_write[root] >= r->leaving_at[root]);
}

static void look(regions *r)
{
	start(r);
	for (r->now = r->e->first; r->now < r->e->end; r->now++)
		see_node(r);
	for (value_id v = 0; v < r->e->p->values.n; v++)
		if (made_inside(r, v))
			see_leaving(r, v);
	for (value_id v = 0; v < r->e->p->values.n; v++)
		r->apart[v] |= copy_is_stale(r, v);
}

/* ---- nodes that would be noticed ---------------------------------------------------------------------------------- */

static void may_be_made(void *ctx, value_id v)
{
	regions *r = ctx;
	r->yes &= !is_image(r->e, v) || !r->apart[root_of(r, v)];
}

/* What comes in is converted once, before the first node of a region that reads it. */
static void may_be_read(void *ctx, value_id v)
{
	regions *r = ctx;
	node_id written = r->last_write[root_of(r, v)];
	r->yes &= !enters(r, v) || written == NONE || written < r->first_use[v];
}

static bool stays(regions *r, node_id n)
{
	const node *x = &r->e->p->nodes.at[n];
	r->yes = true;
	for (uint32_t i = 0; i < x->nwrites; i++)
		r->yes &= made_inside(r, r->e->p->ids.at[x->writes + i]);
	node_each_result(r->e->p, n, may_be_made, r);
	layout_each_image(&r->l, n, may_be_read, r);
	return r->yes;
}

/* Every node that goes may take others with it. */
static void settle(regions *r)
{
	for (bool again = true; again;) {
		again = false;
		look(r);
		for (node_id n = r->e->first; n < r->e->end; n++) {
			bool goes = r->in[n] && !stays(r, n);
			again |= goes;
			r->in[n] &= !goes;
		}
	}
}

/* ---- nodes at edges ----------------------------------------------------------------------------------------------- */

/* r->sum: bytes that more are converted when node r->now is outside; r->yes: it can be. */
static void weigh_arg(void *ctx, value_id v)
{
	regions *r = ctx;
	value_id root = root_of(r, v);
	if (!made_inside(r, v)) {
		r->sum -= enters(r, v) && r->inner[v] == 1 ? r->bytes[v] : 0;
		return;
	}
	r->yes &= r->inner_write[root] == NONE || r->inner_write[root] < r->now;
	if (leaves(r, v))
		return;
	r->yes &= r->leaving[root] == 0 && r->l.order[v] == ORDER_ROWS;
	r->sum += r->bytes[v];
}

static void weigh_result(void *ctx, value_id v)
{
	regions *r = ctx;
	r->yes &= r->e->p->values.at[v].alias == NONE && !r->e->facts.views[v] && !r->e->facts.written[v];
	r->sum -= leaves(r, v) ? r->bytes[v] : 0;
	r->sum += made_inside(r, v) && r->inner[v] && !is_pixel(r->e, v) ? r->bytes[v] : 0;
}

static bool better_outside(regions *r, node_id n)
{
	if (!r->in[n] || r->l.rows[n]->kind == LAYOUT_CONV || r->e->p->nodes.at[n].nwrites)
		return false;
	r->now = n;
	r->sum = 0;
	r->yes = true;
	layout_each_image(&r->l, n, weigh_arg, r);
	node_each_result(r->e->p, n, weigh_result, r);
	return r->yes && r->sum < 0;
}

static void leave_arg(void *ctx, value_id v)
{
	regions *r = ctx;
	bool before = leaves(r, v);
	r->inner[v]--;
	see_outer(r, v);
	if (before || !leaves(r, v))
		return;
	r->leaving[root_of(r, v)]++;
	r->leaving_at[root_of(r, v)] = r->now;
}

static void trim_node(regions *r, node_id n)
{
	if (!better_outside(r, n))
		return;
	layout_each_image(&r->l, n, leave_arg, r);
	r->in[n] = false;
}

/* From both sides: what goes at an edge may leave another edge behind. */
static void trim(regions *r)
{
	for (node_id n = r->e->end; n-- > r->e->first;)
		trim_node(r, n);
	for (node_id n = r->e->first; n < r->e->end; n++)
		trim_node(r, n);
}

/* ---- regions that pay --------------------------------------------------------------------------------------------- */

typedef struct judge {
	regions *r;
	node_id *up;  /* per node: another of its region; itself: it stands for the region */
	double *gain; /* per node that stands for a region: bytes */
	node_id now;
} judge;

static node_id region_of(judge *j, node_id n)
{
	while (j->up[n] != n)
		n = j->up[n] = j->up[j->up[n]];
	return n;
}

/* Nodes that read one image from outside belong together as well: it is converted once. */
static void join(void *ctx, value_id v)
{
	judge *j = ctx;
	const regions *r = j->r;
	if (!made_inside(r, v) && !enters(r, v))
		return;
	node_id other = made_inside(r, v) ? r->e->p->values.at[v].def : r->first_use[v];
	j->up[region_of(j, other)] = region_of(j, j->now);
}

static void earn(void *ctx, value_id v)
{
	judge *j = ctx;
	j->gain[region_of(j, j->now)] += j->r->bytes[v];
}

static void pay(judge *j, value_id v)
{
	const regions *r = j->r;
	if (leaves(r, v))
		j->gain[region_of(j, r->e->p->values.at[v].def)] -= r->bytes[v];
	else if (enters(r, v))
		j->gain[region_of(j, r->first_use[v])] -= r->bytes[v];
}

static void judge_all(judge *j)
{
	regions *r = j->r;
	const edit *e = r->e;
	for (node_id n = 0; n < e->end; n++)
		j->up[n] = n;
	for (j->now = e->first; j->now < e->end; j->now++)
		if (r->in[j->now])
			layout_each_image(&r->l, j->now, join, j);
	for (j->now = e->first; j->now < e->end; j->now++) {
		if (!r->in[j->now] || r->l.rows[j->now]->kind != LAYOUT_CONV)
			continue;
		layout_each_image(&r->l, j->now, earn, j);
		node_each_result(e->p, j->now, earn, j);
	}
	for (value_id v = 0; v < e->p->values.n; v++)
		pay(j, v);
	for (node_id n = e->first; n < e->end; n++)
		r->in[n] &= j->gain[region_of(j, n)] > 0;
}

static clv_status drop_small(regions *r)
{
	judge j = {.r = r};
	j.up = mem_ids((size_t)r->e->p->nodes.n + 1);
	j.gain = mem_alloc((r->e->p->nodes.n + 1) * sizeof *j.gain);
	clv_status st = j.up && j.gain ? CLV_OK : fail_nomem();
	if (st == CLV_OK)
		judge_all(&j);
	mem_free(j.up);
	mem_free(j.gain);
	return st;
}

/* ---- all of it ---------------------------------------------------------------------------------------------------- */

/* The least sizes where none are known. */
static clv_status find_sizes(regions *r, const int64_t *hint)
{
	const plan *p = r->e->p;
	int64_t *sizes = mem_alloc((p->symbols.n + 1) * sizeof *sizes);
	if (!sizes)
		return fail_nomem();
	for (symbol_id s = 0; s < p->symbols.n; s++)
		sizes[s] = hint && hint[s] > 0 ? hint[s] : p->symbols.at[s].lo > 1 ? p->symbols.at[s].lo : 1;
	clv_status st = CLV_OK;
	for (value_id v = 0; st != CLV_E_NOMEM && v < p->values.n; v++) {
		int64_t bytes = 0;
		st = is_image(r->e, v) ? value_bytes(p, v, sizes, &bytes) : CLV_OK;
		r->bytes[v] = st == CLV_OK ? (double)bytes : 0;
	}
	mem_free(sizes);
	return st == CLV_E_NOMEM ? st : CLV_OK;
}

static clv_status alloc_all(regions *r)
{
	size_t nodes = (size_t)r->e->p->nodes.n + 1, values = (size_t)r->e->p->values.n + 1;
	r->in = mem_alloc(nodes * sizeof *r->in);
	r->inner = mem_alloc(values * sizeof *r->inner);
	r->leaving = mem_alloc(values * sizeof *r->leaving);
	r->apart = mem_alloc(values * sizeof *r->apart);
	r->bytes = mem_alloc(values * sizeof *r->bytes);
	r->first_use = mem_ids(values);
	r->first_out = mem_ids(values);
	r->leaving_at = mem_ids(values);
	r->inner_write = mem_ids(values);
	r->last_write = mem_ids(values);
	bool all = r->in && r->inner && r->leaving && r->apart && r->bytes && r->first_use && r->first_out &&
	           r->leaving_at && r->inner_write && r->last_write;
	return all ? CLV_OK : fail_nomem();
}

clv_status regions_find(const edit *e, const optimize_spec *s, regions *out)
{
	*out = (regions){.e = e};
	TRY(layouts_new(e, &out->l));
	TRY(alloc_all(out));
	TRY(find_sizes(out, s->symbols));
	for (node_id n = e->first; n < e->end; n++)
		out->in[n] = layout_possible(&out->l, n);
	settle(out);
	trim(out);
	settle(out);
	TRY(drop_small(out));
	settle(out);
	return CLV_OK;
}

void regions_free(regions *r)
{
	layouts_free(&r->l);
	mem_free(r->in);
	mem_free(r->inner);
	mem_free(r->leaving);
	mem_free(r->apart);
	mem_free(r->bytes);
	mem_free(r->first_use);
	mem_free(r->first_out);
	mem_free(r->leaving_at);
	mem_free(r->inner_write);
	mem_free(r->last_write);
	*r = (regions){0};
}
