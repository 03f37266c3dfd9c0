/* Finds out which images are channels-last and which are row-major.
 * Channels-last are those that were converted, and what operators with IMAGE in ops.def make of them; row-major is what
 * the table says. */
#include "optimize/fuse.h"
#include "optimize/layouts.h"

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

static bool gives_last(follower *x, const layouts *l, node_id n)
{
	const op_row *row = l->rows[n];
	if (makes_channels_last(x->e, n))
		return true;
	if (!row || row->image.kind == IMAGE_ROWS)
		return false;
	x->where = row->image.where;
	x->some = false;
	x->all = true;
	layout_each_image(l, n, see_image, x);
	return x->some && x->all;
}

clv_status find_image_layouts(edit *e, bool **last, bool **rows)
{
	layouts l;
	follower x = {.e = e, .last = edit_array(e, e->p->values.n, sizeof *x.last)};
	*rows = edit_array(e, e->p->values.n, sizeof **rows);
	TRY_MEM(x.last && *rows);
	TRY(layouts_new(e, &l));
	for (node_id n = e->first; n < e->end; n++)
		if (gives_last(&x, &l, n))
			node_each_result(e->p, n, mark_image, &x);
	for (value_id v = 0; v < e->p->values.n; v++)
		(*rows)[v] = l.order[v] == ORDER_ROWS;
	*last = x.last;
	return CLV_OK;
}
