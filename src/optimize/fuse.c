/* Finds what follows a node, and fuses it: see fuse.h. */
#include "optimize/fuse.h"

#include <string.h>

#include "plan/data.h"

/* ---- finding ------------------------------------------------------------------------------------------------------- */

static bool is_before(node_id a, node_id b)
{
	return a == NONE || a < b;
}

static void take_node(tail *t, node_id u, value_id result)
{
	t->nodes[t->n++] = u;
	t->result = result;
}

static bool add_activation(const fuser *f, tail *t, node_id maker, const char *only)
{
	activation a;
	node_id u = only_reader(f->e, t->result, maker);
	if (u == NONE || !read_activation(f->e, u, &a) || edit_value(f->e, u, 0) != t->result)
		return false;
	value_id r = result_on(f->e, u, t->result, t->result);
	if (r == NONE || (only && strcmp(a.name, only)))
		return false;
	t->act = a;
	take_node(t, u, r);
	return true;
}

/* (a, b[, alpha]): a function of both that oneDNN has, in place or not. */
static const struct binary_form {
	const char *name;
	bool commutes, alpha;
} binaries[OP_COUNT] = {
	[OP_add_Tensor] = {"add", true, true},  [OP_add__Tensor] = {"add", true, true},
	[OP_sub_Tensor] = {"sub", false, true}, [OP_sub__Tensor] = {"sub", false, true},
	[OP_mul_Tensor] = {"mul", true, false}, [OP_mul__Tensor] = {"mul", true, false},
};

static const struct binary_form *find_binary(const edit *e, node_id u)
{
	const struct binary_form *b = &binaries[e->p->nodes.at[u].op_id];
	return b->name && !edit_pinned(e, u) ? b : NULL;
}

/* All elements of its memory, in order of that memory: it was not made by looking at another part of it. */
static bool fills_memory(const fuser *f, value_id v)
{
	const plan *p = f->e->p;
	value_id root = alias_root(p, v);
	node_id def = p->values.at[v].def;
	bool written = def != NONE && p->nodes.at[def].nwrites == 1 && edit_result(f->e, def) == v;
	return v == root || (written && same_shape(p, v, root));
}

static bool is_own(const fuser *f, value_id root)
{
	const value *x = &f->e->p->values.at[root];
	return x->kind == VALUE_RESULT && x->def != NONE && x->def >= f->e->first && !f->shown[root];
}

/* A result on the memory of the other would be laid out as it was by itself. */
static bool same_layout(const fuser *f, value_id a, value_id b)
{
	return (f->last_image[a] && f->last_image[b]) || (f->rows[a] && f->rows[b]);
}

/* The memory of `other` is free after node u, where it is read; and the node does not read it as its input. */
static bool is_free_after(const fuser *f, const weighted *w, value_id other, node_id u)
{
	value_id root = alias_root(f->e->p, other);
	bool apart = root != alias_root(f->e->p, w->x) && !f->constant[root] && same_layout(f, w->result, other);
	return apart && is_own(f, root) && fills_memory(f, other) && f->last_use[root] == u;
}

/* other += result: the node itself may write there, as long as it does not read from there. */
static bool add_into(const fuser *f, const weighted *w, tail *t, node_id u)
{
	const edit *e = f->e;
	value_id other = edit_value(e, u, 0), root = alias_root(e->p, other);
	value_id r = result_on(f->e, u, w->result, other);
	const value *x = &e->p->values.at[root];
	bool here = x->kind == VALUE_RESULT && x->def != NONE && x->def >= e->first;
	if (r == NONE || e->p->values.at[r].alias == NONE || !here || root == alias_root(e->p, w->x))
		return false;
	if (!fills_memory(f, other))
		return false;
	t->other = other;
	t->in_place = true;
	take_node(t, u, r);
	return true;
}

static bool add_other(const fuser *f, const weighted *w, tail *t, node_id u, bool in_place)
{
	const edit *e = f->e;
	value_id a = edit_value(e, u, 0), b = edit_value(e, u, 1);
	t->other = a == w->result ? b : a;
	if (e->p->nodes.at[u].nwrites && a != w->result)
		return in_place && !strcmp(t->binary, "add") && add_into(f, w, t, u);
	value_id r = result_on(f->e, u, w->result, w->result);
	if (r == NONE)
		return false;
	t->in_place = in_place && !strcmp(t->binary, "add") && is_free_after(f, w, t->other, u);
	take_node(t, u, r);
	return true;
}

static bool add_binary(const fuser *f, const weighted *w, tail *t, bool in_place)
{
	const edit *e = f->e;
	node_id u = only_reader(f->e, w->result, w->node);
	const struct binary_form *form = u == NONE ? NULL : find_binary(e, u);
	if (!form || (form->alpha && !alpha_is_one(e, u)))
		return false;
	value_id a = edit_value(e, u, 0), b = edit_value(e, u, 1);
	value_id other = a == w->result ? b : a;
	if (a == NONE || b == NONE || other == w->result || (!form->commutes && a != w->result))
		return false;
	if (!same_type(e, other, w->result) || !same_shape(e->p, other, w->result))
		return false;
	/* It reads its input later than before. */
	if (!is_before(f->last_write[alias_root(e->p, w->x)], w->node))
		return false;
	t->binary = form->name;
	if (add_other(f, w, t, u, in_place)) {
		t->at = u;
		return true;
	}
	t->binary = NULL;
	t->other = NONE;
	t->in_place = false;
	return false;
}

/* The next node is the first to read the memory of the sum. */
static bool is_unseen(const fuser *f, const weighted *w, const tail *t)
{
	const edit *e = f->e;
	value_id root = alias_root(e->p, t->result);
	bool only_here = e->facts.uses[root] == 1 && !e->facts.kept[root] && e->facts.user[root] == t->at;
	return root == t->result || root == w->result || (root == t->other && only_here);
}

void find_tail(const fuser *f, const weighted *w, unsigned kinds, tail *out)
{
	*out = (tail){.at = w->node, .result = w->result, .other = NONE};
	if ((kinds & (TAIL_UNARY | TAIL_RELU)) && add_activation(f, out, w->node, kinds & TAIL_UNARY ? NULL : "relu"))
		return;
	if (!(kinds & TAIL_BINARY) || !add_binary(f, w, out, kinds & TAIL_IN_PLACE))
		return;
	if ((kinds & TAIL_BINARY_RELU) && !strcmp(out->binary, "add") && is_unseen(f, w, out))
		add_activation(f, out, out->at, "relu");
}

/* ---- joining ------------------------------------------------------------------------------------------------------- */

static void later(node_id *at, node_id n)
{
	if (is_before(*at, n))
		*at = n;
}

/* What was on the memory of `from` is on that of `to`. */
static void unite(fuser *f, value_id from, value_id to)
{
	if (f->last_use[from] != NONE)
		later(&f->last_use[to], f->last_use[from]);
	if (f->last_write[from] != NONE)
		later(&f->last_write[to], f->last_write[from]);
	f->shown[to] |= f->shown[from];
}

static void move_memory(fuser *f, value_id from, value_id to)
{
	plan *p = f->e->p;
	for (value_id v = 0; v < p->values.n; v++)
		if (p->values.at[v].alias == from || v == from)
			p->values.at[v].alias = to;
	unite(f, from, to);
}

/* The result is on memory of its own, or on that of other. */
static void place_result(fuser *f, const tail *t)
{
	plan *p = f->e->p;
	value_id root = alias_root(p, t->result);
	if (t->in_place && root != alias_root(p, t->other)) {
		move_memory(f, root, alias_root(p, t->other));
	} else if (!t->in_place && root != t->result) {
		edit_take_memory(f->e, t->result);
		unite(f, root, t->result);
	}
}

clv_status join(fuser *f, const weighted *w, const tail *t, uint16_t op, const arg *args, uint32_t nargs)
{
	edit *e = f->e;
	spot at = {e, t->at, w->node};
	TRY(edit_remove(e, w->node));
	for (uint32_t i = 0; i < t->n; i++)
		TRY(edit_remove(e, t->nodes[i]));
	place_result(f, t);
	later(&f->last_use[alias_root(e->p, w->x)], t->at);
	if (t->in_place) {
		later(&f->last_use[alias_root(e->p, t->other)], t->at);
		later(&f->last_write[alias_root(e->p, t->other)], t->at);
	}
	*f->changes += t->n + 1;
	return put_writer(&at, op, args, nargs, t->result, t->in_place ? t->other : NONE);
}

/* ---- arguments ----------------------------------------------------------------------------------------------------- */

clv_status has_hints(const fuser *f, value_id v, bool *out)
{
	const plan *p = f->e->p;
	const value *x = &p->values.at[v];
	*out = !shape_takes_data(p, x);
	for (uint32_t d = 0; *out && d < x->ndim; d++) {
		int64_t k = 0;
		clv_status st = expr_eval(p, p->dims.at[x->shape + d], f->least, &k);
		if (st == CLV_E_NOMEM)
			return st;
		*out = st == CLV_OK && k > 0;
	}
	return CLV_OK;
}

clv_status activation_args(fuser *f, const activation *a, const char *none, arg out[3])
{
	arg scalars[2];
	out[0] = out[2] = arg_of(NONE);
	if (a->name || none)
		TRY(arg_text(f->e, a->name ? a->name : none, &out[0]));
	if (a->algorithm && *a->algorithm)
		TRY(arg_text(f->e, a->algorithm, &out[2]));
	for (uint32_t i = 0; i < a->nscalars; i++)
		scalars[i] = arg_float(a->scalars[i]);
	return plan_list(f->e->p, scalars, a->nscalars, &out[1]);
}

/* ---- the pass ------------------------------------------------------------------------------------------------------ */

typedef struct reader {
	fuser *f;
	node_id now;
} reader;

static void see_use(void *ctx, value_id v)
{
	reader *r = ctx;
	r->f->last_use[alias_root(r->f->e->p, v)] = r->now;
}

static void find_last(fuser *f)
{
	const plan *p = f->e->p;
	reader r = {f, f->e->first};
	for (; r.now < f->e->end; r.now++) {
		const node *x = &p->nodes.at[r.now];
		node_each_arg(p, r.now, see_use, &r);
		for (uint32_t i = 0; i < x->nwrites; i++) {
			value_id root = alias_root(p, p->ids.at[x->writes + i]);
			f->last_use[root] = f->last_write[root] = r.now;
		}
	}
	memcpy(f->shown, f->e->facts.shown, f->e->facts.n * sizeof *f->shown);
}

static clv_status fuser_new(edit *e, const optimize_spec *s, uint32_t *changes, fuser *f)
{
	size_t n = e->p->values.n;
	*f = (fuser){.e = e, .s = s, .changes = changes};
	TRY(constant_values(e, s, &f->constant));
	TRY(find_image_layouts(e, &f->last_image, &f->rows));
	f->last_use = edit_ids(e, n);
	f->last_write = edit_ids(e, n);
	f->shown = edit_array(e, n, sizeof *f->shown);
	f->least = edit_array(e, e->p->symbols.n, sizeof *f->least);
	TRY_MEM(f->last_use && f->last_write && f->shown && f->least);
	for (symbol_id i = 0; i < e->p->symbols.n; i++)
		f->least[i] = e->p->symbols.at[i].lo;
	find_last(f);
	return CLV_OK;
}

clv_status pass_fuse(edit *e, const optimize_spec *s, uint32_t *changes)
{
	fuser f;
	if (!s->has_op)
		return CLV_OK;
	TRY(fuser_new(e, s, changes, &f));
	for (node_id n = e->first; n < e->end; n++) {
		if (e->gone.at[n] || !node_pure(e, n) || !runs_plainly(e, n))
			continue;
		TRY(fuse_convolution(&f, n));
		if (!e->gone.at[n])
			TRY(fuse_cudnn(&f, n));
		if (!e->gone.at[n])
			TRY(fuse_linear(&f, n));
	}
	return scale_last_images(e, f.constant, f.last_image, changes);
}
