/* How images are laid out. Channels-last are those that were converted, and what operators with IMAGE in ops.def make
 * of them; row-major is what the table says. */
#include "optimize/fuse.h"
#include "optimize/layouts.h"

#include <string.h>

typedef struct follower {
	const edit *e;
	bool *last;     /* per value */
	uint32_t where; /* layout_where of the node that is looked at */
	bool some, all;
} follower;

static void see_image(void *ctx, value_id v)
{
	follower *x = ctx;
	x->some |= x->last[v];
	x->all &= (x->last[v] || is_pixel(x->e, v)) && (x->where & image_where(x->e, v));
}

static void mark_image(void *ctx, value_id v)
{
	follower *x = ctx;
	x->last[v] = is_image(x->e, v);
}

static bool is_conversion(const edit *e, node_id n)
{
	const arg *format = edit_arg(e, n, 1);
	bool op = edit_is(e, n, OP_contiguous) || edit_is(e, n, OP_clone);
	return op && format->kind == ARG_MEMFMT && !strcmp(memfmt_names[format->u.code], "channels_last");
}

static bool gives_last(follower *x, const layouts *l, node_id n)
{
	const op_row *row = l->rows[n];
	if (is_conversion(x->e, n))
		return true;
	if (!row || row->image.kind == IMAGE_ROWS)
		return false;
	x->where = row->image.where;
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

static void find_rows(const layouts *l, bool *rows)
{
	for (value_id v = 0; v < l->e->p->values.n; v++)
		rows[v] = l->order[v] == ORDER_ROWS;
}

clv_status find_image_layouts(const edit *e, bool *last, bool *rows)
{
	layouts l;
	follower x = {.e = e, .last = last};
	clv_status st = layouts_new(e, &l);
	if (st == CLV_OK) {
		follow(&x, &l);
		find_rows(&l, rows);
	}
	layouts_free(&l);
	return st;
}
