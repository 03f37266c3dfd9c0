/* Which images are channels-last: those that were converted, and what operators of the table (layouts.def) make of them. */
#include "optimize/fuse.h"
#include "optimize/layouts.h"

#include <string.h>

typedef struct follower {
	const edit *e;
	bool *last; /* per value */
	bool some, all;
} follower;

static void see_image(void *ctx, value_id v)
{
	follower *x = ctx;
	x->some |= x->last[v];
	x->all &= x->last[v] || is_pixel(x->e, v);
}

static void mark_image(void *ctx, value_id v)
{
	follower *x = ctx;
	x->last[v] = is_image(x->e, v);
}

static bool is_conversion(const edit *e, node_id n)
{
	const arg *format = edit_arg(e, n, 1);
	bool op = edit_is(e, n, "aten::contiguous") || edit_is(e, n, "aten::clone");
	return op && format->kind == ARG_MEMFMT && !strcmp(memfmt_names[format->u.code], "channels_last");
}

static bool gives_last(follower *x, const layouts *l, node_id n)
{
	const layout_row *row = l->rows[n];
	if (is_conversion(x->e, n))
		return true;
	if (!row || row->kind == LAYOUT_ROWS || !(row->where & WHERE_CPU))
		return false;
	x->some = false;
	x->all = true;
	layout_each_image(l, n, see_image, x);
	return x->some && x->all;
}

static void follow(follower *x, const layouts *l)
{
	for (node_id n = x->e->first; n < x->e->end; n++)
		if (gives_last(x, l, n))
			node_each_result(x->e->p, n, mark_image, x);
}

clv_status find_last_images(const edit *e, bool **out)
{
	layouts l;
	follower x = {.e = e, .last = mem_alloc((e->p->values.n + 1) * sizeof *x.last)};
	if (!x.last)
		return fail_nomem();
	clv_status st = layouts_new(e, &l);
	if (st == CLV_OK)
		follow(&x, &l);
	layouts_free(&l);
	if (st != CLV_OK)
		mem_free(x.last);
	else
		*out = x.last;
	return st;
}
