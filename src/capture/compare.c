/* Compares two streams of the same forward on other data, operator by operator.
 *
 * Whatever is not a tensor must be equal: numbers, sizes, dtypes, flags. Tensors must correspond: the n-th input to the
 * n-th input, results to results of the same place. A tensor that no recorded operator made must be the same tensor in
 * both (it lives outside the forward), lie on memory of a corresponding tensor, or hold equal bits; else it depends on
 * data in a way that the record does not show, and a plan made of it would be silently wrong. */
#include "capture/capture.h"

#include <string.h>

typedef struct cmp {
	const stream *a, *b;
	uint32_t *to_b, *to_a; /* corresponding tensors */
	uint32_t *storage_b;   /* corresponding storages, by storage of a */
	uint8_t *classes;
	strbuf why;
	uint32_t op;
	bool diverged; /* what differs was read from data */
} cmp;

static bool differ(cmp *c, const char *what)
{
	const stream_op *o = c->op < c->a->ops.n ? &c->a->ops.at[c->op] : NULL;
	if (o) {
		strbuf_printf(&c->why, "%s", o->op);
		if (o->scope && c->a->scopes.at[o->scope].path[0])
			strbuf_printf(&c->why, " in %s", c->a->scopes.at[o->scope].path);
		if (o->at)
			strbuf_printf(&c->why, " at %s", o->at);
		strbuf_puts(&c->why, ": ");
	}
	strbuf_puts(&c->why, what);
	return false;
}

static bool same_geometry(const stream_tensor *x, const stream_tensor *y)
{
	if (x->dtype != y->dtype || x->ndim != y->ndim || x->strided != y->strided || strcmp(x->device, y->device) != 0)
		return false;
	return x->ndim == 0 || memcmp(x->sizes, y->sizes, x->ndim * sizeof *x->sizes) == 0;
}

static void pair(cmp *c, uint32_t x, uint32_t y)
{
	c->to_b[x] = y;
	c->to_a[y] = x;
	uint32_t s = c->a->tensors.at[x].storage;
	if (s != NONE && c->storage_b[s] == NONE)
		c->storage_b[s] = c->b->tensors.at[y].storage;
}

/* The storage was known before this tensor was seen. */
static bool is_alias(const cmp *c, uint32_t x, uint32_t y)
{
	uint32_t s = c->a->tensors.at[x].storage;
	return s != NONE && c->storage_b[s] != NONE && c->storage_b[s] == c->b->tensors.at[y].storage;
}

static bool match_external(cmp *c, uint32_t x, uint32_t y)
{
	const stream_tensor *ta = &c->a->tensors.at[x], *tb = &c->b->tensors.at[y];
	bool equal = false;
	if (ta->origin == ORIGIN_EXTERNAL && ta->data == tb->data) {
		c->classes[x] = EXTERNAL_PERSISTENT;
	} else if (ta->origin == ORIGIN_EXTERNAL && is_alias(c, x, y)) {
		if (!same_geometry(ta, tb) || ta->offset != tb->offset)
			return differ(c, "an argument is a view whose shape depends on the data");
		c->classes[x] = EXTERNAL_ALIAS;
	} else {
		if (br_bits_equal(ta->data, tb->data, &equal) != CLV_OK)
			equal = false;
		if (!equal && c->op < c->a->ops.n && c->a->ops.at[c->op].op_id == OP_cleave_guard_equal) {
			const br_arg *how = &c->a->ops.at[c->op].args[2];
			c->diverged = true;
			strbuf_printf(&c->why, "%s: ", how->u.s);
			return differ(c, "the forward reads data on the host that follows its inputs");
		}
		if (!equal)
			return differ(c,
			              "an argument holds other data each time, but no recorded operator computes it (it may come "
			              "from another thread, NumPy, a host read, or another random generator)");
		c->classes[x] = EXTERNAL_FRESH;
	}
	pair(c, x, y);
	return true;
}

static bool match_tensor(cmp *c, uint32_t x, uint32_t y)
{
	const stream_tensor *ta = &c->a->tensors.at[x], *tb = &c->b->tensors.at[y];
	if (c->to_b[x] != NONE || c->to_a[y] != NONE)
		return c->to_b[x] == y ? true
		                       : differ(c, "an argument is another tensor than before: the path depends on the data");
	if (ta->origin != tb->origin)
		return differ(c, "an argument comes from elsewhere than before: the path depends on the data");
	switch (ta->origin) {
	case ORIGIN_INPUT:
	case ORIGIN_STATE:
		if (ta->index != tb->index)
			return differ(c, "an argument is another tensor than before: the path depends on the data");
		pair(c, x, y);
		return true;
	case ORIGIN_RESULT: return differ(c, "an argument is the result of another operator than before");
	default: return match_external(c, x, y);
	}
}

static bool match_arg(cmp *c, const br_arg *x, const br_arg *y);

static bool match_list(cmp *c, const br_arg *x, const br_arg *y)
{
	if (x->u.list.n != y->u.list.n)
		return differ(c, "the length of a list depends on the data");
	for (uint32_t i = 0; i < x->u.list.n; i++)
		if (!match_arg(c, &x->u.list.at[i], &y->u.list.at[i]))
			return false;
	return true;
}

static bool match_object(cmp *c, const br_arg *x, const br_arg *y)
{
	uint64_t first, last, ignored, again;
	if (c->a->ops.at[c->op].op_id == OP_cleave_python)
		return true; /* the Python skin compares what it calls */
	br_object *a = br_recorder_object(c->a->recorder, x->u.id), *b = br_recorder_object(c->b->recorder, y->u.id);
	if (!a || !b || !br_object_same(a, b))
		return differ(c, "an object it takes (a generator, packed weights) is made inside the forward");
	if (br_recorder_generator(c->a->recorder, x->u.id, &first, &last) &&
	    br_recorder_generator(c->b->recorder, y->u.id, &again, &ignored) && again != last)
		return differ(c, "its generator is reseeded inside the forward");
	return true;
}

static bool match_arg(cmp *c, const br_arg *x, const br_arg *y)
{
	if (x->kind != y->kind || x->wrapped != y->wrapped)
		return differ(c, "the kind of an argument depends on the data");
	bool same;
	switch ((br_kind)x->kind) {
	case BR_TENSOR: return match_tensor(c, x->u.id, y->u.id);
	case BR_LIST: return match_list(c, x, y);
	case BR_OBJECT: return match_object(c, x, y);
	default: same = br_arg_same(x, y);
	}
	return same ? true
	            : differ(c,
	                     "a number among its arguments depends on the data (or on a random generator outside PyTorch)");
}

static bool match_result(cmp *c, const br_arg *x, const br_arg *y)
{
	if (x->kind == BR_LIST && y->kind == BR_LIST) {
		if (x->u.list.n != y->u.list.n) {
			c->diverged = true;
			return differ(c, "the number of its results depends on the data");
		}
		for (uint32_t i = 0; i < x->u.list.n; i++)
			if (!match_result(c, &x->u.list.at[i], &y->u.list.at[i]))
				return false;
		return true;
	}
	if (x->kind != BR_TENSOR || y->kind != BR_TENSOR) {
		if (match_arg(c, x, y))
			return true;
		c->diverged = true;
		return false;
	}
	uint32_t p = x->u.id, q = y->u.id;
	if (c->to_b[p] != NONE || c->to_a[q] != NONE)
		return c->to_b[p] == q ? true : differ(c, "its result is another tensor than before");
	if (!same_geometry(&c->a->tensors.at[p], &c->b->tensors.at[q])) {
		c->diverged = (c->a->ops.at[c->op].flags & BR_DYNAMIC) != 0;
		return differ(c, "the shape or type of its result depends on the data");
	}
	pair(c, p, q);
	return true;
}

static bool match_op(cmp *c)
{
	const stream_op *x = &c->a->ops.at[c->op], *y = &c->b->ops.at[c->op];
	if (strcmp(x->op, y->op) != 0) {
		strbuf other = STRBUF_INIT;
		strbuf_printf(&other, "on other data %s runs here: the path depends on the data", y->op);
		strbuf_putc(&other, '\0');
		bool r = differ(c, other.failed ? "on other data another operator runs here" : other.at);
		strbuf_free(&other);
		return r;
	}
	if (x->nargs != y->nargs || x->nresults != y->nresults)
		return differ(c, "the number of arguments depends on the data");
	if (!br_modes_equal(&x->modes, &y->modes, false))
		return differ(c, "the modes around it (grad, autocast, flags) depend on the data");
	for (uint32_t i = 0; i < x->nargs; i++)
		if (!match_arg(c, &x->args[i], &y->args[i]))
			return false;
	for (uint32_t i = 0; i < x->nresults; i++)
		if (!match_result(c, &x->results[i], &y->results[i]))
			return false;
	return true;
}

static bool match_ends(cmp *c)
{
	const stream *a = c->a, *b = c->b;
	if (a->outputs.n != b->outputs.n || a->rebinds.n != b->rebinds.n)
		return differ(c, "the number of outputs depends on the data");
	for (uint32_t i = 0; i < a->outputs.n; i++)
		if (!match_tensor(c, a->outputs.at[i], b->outputs.at[i])) {
			strbuf_puts(&c->why, " (seen at the outputs)");
			return false;
		}
	for (uint32_t i = 0; i < a->rebinds.n; i++)
		if (a->rebinds.at[i].state != b->rebinds.at[i].state ||
		    !match_tensor(c, a->rebinds.at[i].tensor, b->rebinds.at[i].tensor))
			return differ(c, "a module tensor that the forward re-binds depends on the data");
	return true;
}

static bool match_streams(cmp *c)
{
	for (c->op = 0; c->op < c->a->ops.n && c->op < c->b->ops.n; c->op++)
		if (!match_op(c))
			return false;
	if (c->a->ops.n != c->b->ops.n) {
		const stream *longer = c->a->ops.n > c->b->ops.n ? c->a : c->b;
		strbuf_printf(&c->why, "%s runs on some data only: the path depends on the data", longer->ops.at[c->op].op);
		return false;
	}
	return match_ends(c);
}

clv_status stream_compare(const stream *a, const stream *b, comparison *out)
{
	cmp c = {.a = a, .b = b, .why = STRBUF_INIT};
	clv_status st = CLV_OK;
	c.to_b = mem_ids(a->tensors.n);
	c.to_a = mem_ids(b->tensors.n);
	c.storage_b = mem_ids(stream_storages(a));
	c.classes = mem_alloc(a->tensors.n + 1);
	*out = (comparison){.verdict = STREAMS_EQUAL};
	if (!c.to_b || !c.to_a || !c.storage_b || !c.classes) {
		st = fail_nomem();
	} else {
		/* Inputs and module tensors correspond by place; their storages are known from the start. */
		for (uint32_t i = 0; i < a->inputs.n && i < b->inputs.n; i++)
			pair(&c, a->inputs.at[i], b->inputs.at[i]);
		for (uint32_t i = 0; i < a->states.n && i < b->states.n; i++)
			pair(&c, a->states.at[i].tensor, b->states.at[i].tensor);
		if (!match_streams(&c)) {
			out->verdict = c.diverged ? STREAMS_PART : STREAMS_DIFFER;
			out->op = c.op;
			st = strbuf_take(&c.why, &out->reason);
		}
	}
	mem_free(c.to_b);
	mem_free(c.to_a);
	mem_free(c.storage_b);
	strbuf_free(&c.why);
	out->classes = c.classes;
	if (st != CLV_OK)
		comparison_free(out);
	return st;
}

void comparison_free(comparison *c)
{
	mem_free(c->classes);
	mem_free(c->reason);
	c->classes = NULL;
	c->reason = NULL;
}

/* ---- streams at other sizes ------------------------------------------------------------------------------------- */

static bool aligned_args(const br_arg *x, const br_arg *y, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (x[i].kind != y[i].kind || x[i].wrapped != y[i].wrapped)
			return false;
		if (x[i].kind == BR_TENSOR && x[i].u.id != y[i].u.id)
			return false;
		if (x[i].kind == BR_LIST &&
		    (x[i].u.list.n != y[i].u.list.n || !aligned_args(x[i].u.list.at, y[i].u.list.at, x[i].u.list.n)))
			return false;
	}
	return true;
}

static const char *misaligned_op(const stream_op *x, const stream_op *y, bool *lengths)
{
	if (strcmp(x->op, y->op) != 0)
		return "another operator runs here at another size";
	if (x->nargs != y->nargs || x->nresults != y->nresults || x->nwrites != y->nwrites)
		return "it has other arguments at another size";
	*lengths = true;
	if (!aligned_args(x->args, y->args, x->nargs))
		return "its arguments come from elsewhere, or a list of them has another length, at another size";
	if (!aligned_args(x->results, y->results, x->nresults))
		return "it has another number of results at another size";
	*lengths = false;
	if (!br_modes_equal(&x->modes, &y->modes, true))
		return "it runs in other modes at another size";
	return NULL;
}

static bool same_tensors(const stream *a, const stream *b)
{
	for (uint32_t i = 0; i < a->tensors.n; i++) {
		const stream_tensor *x = &a->tensors.at[i], *y = &b->tensors.at[i];
		if (x->origin != y->origin || x->index != y->index || x->dtype != y->dtype || x->ndim != y->ndim ||
		    x->strided != y->strided || x->storage != y->storage)
			return false;
	}
	return true;
}

static bool same_ends(const stream *a, const stream *b)
{
	if (a->outputs.n != b->outputs.n || a->rebinds.n != b->rebinds.n)
		return false;
	for (uint32_t i = 0; i < a->outputs.n; i++)
		if (a->outputs.at[i] != b->outputs.at[i])
			return false;
	for (uint32_t i = 0; i < a->rebinds.n; i++)
		if (a->rebinds.at[i].state != b->rebinds.at[i].state || a->rebinds.at[i].tensor != b->rebinds.at[i].tensor)
			return false;
	return true;
}

clv_status stream_align(const stream *a, const stream *b, bool *lengths, char **reason)
{
	cmp c = {.a = a, .b = b, .why = STRBUF_INIT};
	*reason = NULL;
	*lengths = false;
	for (c.op = 0; c.op < a->ops.n && c.op < b->ops.n; c.op++) {
		const char *what = misaligned_op(&a->ops.at[c.op], &b->ops.at[c.op], lengths);
		if (what) {
			differ(&c, what);
			return strbuf_take(&c.why, reason);
		}
	}
	const char *what = NULL;
	if (a->ops.n != b->ops.n)
		what = "it is the last operator at one size and not at another";
	else if (a->tensors.n != b->tensors.n || !same_tensors(a, b))
		what = "the forward has other tensors, or tensors on other memory, at another size";
	else if (!same_ends(a, b))
		what = "the forward returns or stores other tensors at another size";
	if (!what)
		return CLV_OK;
	if (a->ops.n != b->ops.n && c.op)
		c.op--; /* the last one that both have */
	else
		c.op = a->ops.n;
	differ(&c, what);
	return strbuf_take(&c.why, reason);
}
