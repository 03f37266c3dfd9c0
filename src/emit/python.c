/* Writes the generated module: its head, and forward with one assignment per node. (__init__ is in declare.c.) */
#include <math.h>
#include <string.h>

#include "emit/emit.h"
#include "plan/data.h"

/* Text that somebody else chose, for a comment: nothing in it ends the line. */
void write_harmless(const char *s, strbuf *b)
{
	for (; *s; s++)
		strbuf_putc(b, (unsigned char)*s < 0x20 || (unsigned char)*s >= 0x7F ? '?' : *s);
}

/* ---- contexts --------------------------------------------------------------------------------------------------- */

/* How Python reads and sets each global flag, in the order of CTX_FLAG_LIST. */
static const char *const flag_calls[CTX_FLAG_COUNT] = {
	"torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp",
	"torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp",
	"torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp",
	"torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp",
	"torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled",
	"torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled",
	"torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms",
};

static void open_with(strbuf *b, bool *open)
{
	strbuf_puts(b, *open ? ", " : "");
	*open = true;
}

/* "cuda" for a model that ran on cuda:0: a stage may stand on a device of another type. */
static bool is_stage_device(const writer *w, const char *type)
{
	const char *device = w->stage ? plan_s(w->p, w->stage->device) : "";
	size_t n = strlen(type);
	return w->stage && !strncmp(device, type, n) && (device[n] == '\0' || device[n] == ':');
}

/* All that a context sets, with commas between; nothing for the default. */
static void put_context(writer *w, const context *c, strbuf *b)
{
	const plan *p = w->p;
	bool open = false;
	if (c->nograd && !c->inference) {
		open_with(b, &open);
		strbuf_puts(b, "torch.no_grad()");
	}
	if (c->inference) {
		open_with(b, &open);
		strbuf_puts(b, "torch.inference_mode()");
	}
	for (uint32_t i = 0; i < c->nautocast; i++) {
		const autocast *a = &p->autocasts.at[c->autocast + i];
		open_with(b, &open);
		strbuf_puts(b, "torch.autocast(");
		if (is_stage_device(w, plan_s(p, a->device)))
			strbuf_printf(b, "self.%s.type", w->stage->device_name);
		else
			write_string(plan_s(p, a->device), strlen(plan_s(p, a->device)), b);
		strbuf_printf(b, ", dtype=torch.%s%s)", torch_dtype(a->dtype), a->cache ? "" : ", cache_enabled=False");
	}
	for (unsigned i = 0; i < CTX_FLAG_COUNT; i++) {
		if (!(c->flags_mask >> i & 1))
			continue;
		open_with(b, &open);
		w->flag = true;
		strbuf_printf(b, "flag(%s, %s)", flag_calls[i], c->flags >> i & 1 ? "True" : "False");
	}
}

/* One `with` line; false: the context sets nothing. */
static bool write_context(writer *w, const context *c, strbuf *b)
{
	strbuf items = STRBUF_INIT, line = STRBUF_INIT;
	put_context(w, c, &items);
	bool open = items.n > 0, fits = layout_fits(BODY + (unsigned)strlen("with :"), &items);
	if (open)
		strbuf_puts(&line, fits ? "with " : "with (");
	strbuf_move(&line, &items);
	if (open)
		strbuf_puts(&line, fits ? ":" : "):");
	layout_line(b, BODY, &line);
	return open;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

static bool is_guarded(const writer *w, value_id v)
{
	return twins_guarded(w->stage ? w->stage->twins : NULL, w->p, v);
}

bool is_used(const writer *w, value_id v)
{
	return w->last[v] != NONE || is_guarded(w, v) || w->p->values.at[v].expect != NONE;
}

void write_target(writer *w, const arg *a, strbuf *b)
{
	strbuf_puts(b, a->kind == ARG_VALUE && is_used(w, a->u.v) ? ident_value(&w->ids, a->u.v) : "_");
}

/* a, b or (a, b) */
static void put_targets(writer *w, uint32_t first, uint32_t n, bool inner, strbuf *b)
{
	for (uint32_t i = 0; i < n; i++) {
		const arg *a = &w->p->args.at[first + i];
		strbuf_puts(b, i ? ", " : "");
		if (a->kind != ARG_LIST || inner) {
			write_target(w, a, b);
			continue;
		}
		strbuf_putc(b, '[');
		put_targets(w, a->u.list.first, a->u.list.n, true, b);
		strbuf_putc(b, ']');
	}
}

static bool any_used(const writer *w, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const arg *a = &w->p->args.at[first + i];
		if (a->kind == ARG_LIST || (a->kind == ARG_VALUE && is_used(w, a->u.v)))
			return true;
	}
	return false;
}

static void put_node_targets(writer *w, const node *n, strbuf *b)
{
	const arg *only = n->nresults == 1 ? &w->p->args.at[n->results] : NULL;
	if (!any_used(w, n->results, n->nresults))
		return;
	if (only && only->kind == ARG_LIST) {
		bool short_list = only->u.list.n < 2;
		strbuf_puts(b, short_list ? "[" : "");
		put_targets(w, only->u.list.first, only->u.list.n, true, b);
		strbuf_puts(b, short_list ? "]" : "");
	} else {
		put_targets(w, n->results, n->nresults, false, b);
	}
	strbuf_puts(b, " = ");
}

/* A guard that failed says where. */
static void put_raise(writer *w, node_id id, unsigned indent, const char *what, strbuf *b)
{
	strbuf text = STRBUF_INIT, line = STRBUF_INIT;
	strbuf_printf(&text, "node %s", node_name(w->names, id));
	place_print(w->p, id, &text);
	strbuf_printf(&text, ": %s", what);
	w->guard = true;
	strbuf_puts(&line, "raise GuardError(");
	write_string_of(&text, &line);
	strbuf_putc(&line, ')');
	layout_line(b, indent + INDENT, &line);
}

static bool is_awkward(const arg *a)
{
	return a->kind == ARG_COMPLEX || (a->kind == ARG_FLOAT && (isnan(a->u.f) || a->u.f == 0));
}

static clv_status guard_host(writer *w, node_id id, value_id v, unsigned indent, strbuf *b)
{
	const arg *want = &w->p->args.at[w->p->values.at[v].expect];
	const char *name = ident_value(&w->ids, v);
	/* nan, both zeros and complex numbers: repr tells them apart, and equal ones alike */
	bool text = is_awkward(want);
	clv_status st = CLV_OK;
	strbuf line = STRBUF_INIT;
	if (want->kind == ARG_BOOL) {
		strbuf_printf(&line, "if %s%s:", want->u.b ? "not " : "", name);
	} else if (want->kind == ARG_LIST) { /* [low, high] */
		strbuf_puts(&line, "if not ");
		st = write_arg(w, &w->p->args.at[want->u.list.first], &line);
		strbuf_printf(&line, " <= %s <= ", name);
		if (st == CLV_OK)
			st = write_arg(w, &w->p->args.at[want->u.list.first + 1], &line);
		strbuf_putc(&line, ':');
	} else {
		strbuf_printf(&line, "if %s%s%s != %s", text ? "repr(" : "", name, text ? ")" : "", text ? "repr(" : "");
		st = write_arg(w, want, &line);
		strbuf_puts(&line, text ? "):" : ":");
	}
	layout_line(b, indent, &line);
	TRY(st);
	put_raise(w, id, indent, "the forward read another value from the data when it was captured", b);
	return CLV_OK;
}

static void guard_shape(writer *w, node_id id, value_id v, unsigned indent, strbuf *b)
{
	const value *x = &w->p->values.at[v];
	strbuf line = STRBUF_INIT;
	strbuf_printf(&line, "if tuple(%s.shape) != (", ident_value(&w->ids, v));
	write_dims(w, x->shape, x->ndim, &line);
	strbuf_puts(&line, x->ndim == 1 ? ",):" : "):");
	layout_line(b, indent, &line);
	put_raise(w, id, indent, "its shape depends on the data, and was another when it was captured", b);
}

typedef struct guards {
	writer *w;
	node_id n;
	unsigned indent;
	strbuf *b;
	clv_status st;
} guards;

static void add_guard(void *ctx, value_id v)
{
	guards *g = ctx;
	const value *x = &g->w->p->values.at[v];
	if (g->st != CLV_OK || !is_guarded(g->w, v))
		return;
	if (x->flags & VALUE_ODD)
		return; /* nested or sparse: it has no shape to compare */
	if (x->type == TYPE_TENSOR)
		guard_shape(g->w, g->n, v, g->indent, g->b);
	else if (x->expect != NONE)
		g->st = guard_host(g->w, g->n, v, g->indent, g->b);
}

/* Bits are compared, so that nan equals itself. */
static clv_status write_guard_equal(writer *w, node_id id, unsigned indent, strbuf *b)
{
	const node *n = &w->p->nodes.at[id];
	const arg *a = &w->p->args.at[n->args];
	if (n->nargs != 3 || a[0].kind != ARG_VALUE || a[1].kind != ARG_VALUE)
		return fail(CLV_E_VERIFY, "cleave::guard_equal takes two tensors and how the first is read");
	strbuf line = STRBUF_INIT;
	strbuf_puts(&line, "if not torch.equal(");
	clv_status st = write_arg(w, &a[0], &line);
	strbuf_puts(&line, ".reshape(-1).view(torch.uint8), ");
	if (st == CLV_OK)
		st = write_arg(w, &a[1], &line);
	strbuf_puts(&line, ".reshape(-1).view(torch.uint8)):");
	layout_line(b, indent, &line);
	TRY(st);
	put_raise(w, id, indent, "the forward read this tensor on the host, and its data is different now", b);
	return CLV_OK;
}

typedef struct deaths {
	writer *w;
	node_id n;
	value_id done[8]; /* against naming one twice in a line; a rare second `del` would raise */
	unsigned ndone;
} deaths;

/* Made inside the call of a layer: the source has no name for it. */
static bool is_hidden(const writer *w, value_id v)
{
	node_id def = w->p->values.at[v].def;
	return w->stage && def != NONE && w->stage->layers.hidden[def];
}

static void put_death(void *ctx, value_id v)
{
	deaths *d = ctx;
	writer *w = d->w;
	uint8_t kind = w->p->values.at[v].kind;
	if ((kind != VALUE_RESULT && kind != VALUE_INPUT) || w->last[v] != d->n || d->ndone == 8 || is_hidden(w, v))
		return;
	for (unsigned i = 0; i < d->ndone; i++)
		if (d->done[i] == v)
			return;
	d->done[d->ndone++] = v;
}

static void write_deaths(writer *w, node_id n, unsigned indent)
{
	deaths d = {.w = w, .n = n};
	strbuf line = STRBUF_INIT;
	node_each_arg(w->p, n, put_death, &d);
	for (unsigned i = 0; i < d.ndone; i++)
		strbuf_printf(&line, "%s%s", i ? ", " : "del ", ident_value(&w->ids, d.done[i]));
	bool fits = layout_fits(indent, &line);
	for (unsigned i = 0; !fits && i < d.ndone; i++)
		strbuf_printf(&w->body, "%*sdel %s\n", (int)indent, "", ident_value(&w->ids, d.done[i]));
	if (!fits)
		line.n = 0;
	layout_line(&w->body, indent, &line);
}

static clv_status write_statement(writer *w, node_id id, unsigned indent)
{
	strbuf *b = &w->body;
	const node *n = &w->p->nodes.at[id];
	if (n->op_id == OP_cleave_guard_equal)
		return write_guard_equal(w, id, indent, b);
	strbuf line = STRBUF_INIT;
	clv_status st;
	if (w->stage && block_is(w->p, id)) {
		st = write_block_call(w, id, &line);
	} else if (w->stage && w->stage->layers.of_node[id] != NONE) {
		st = write_layer_call(w, id, &line);
	} else if (!strncmp(plan_s(w->p, n->op), "cleave::", 8)) {
		st = fail(CLV_E_UNSUPPORTED, "it calls Python code of the model, which has no source text here");
	} else {
		put_node_targets(w, n, &line);
		st = write_call(w, id, indent, &line);
	}
	layout_line(b, indent, &line);
	TRY(st);
	guards g = {w, id, indent, b, CLV_OK};
	node_each_result(w->p, id, add_guard, &g);
	return g.st;
}

clv_status fail_node(const writer *w, node_id id, clv_status st)
{
	const node *n = &w->p->nodes.at[id];
	return fail_more(st, "node %s (%s)%s%s cannot be written as source: ", node_name(w->names, id), plan_s(w->p, n->op),
	                 n->at != NONE ? " at " : "", n->at != NONE ? plan_s(w->p, n->at) : "");
}

static clv_status write_node(writer *w, node_id id, unsigned indent)
{
	clv_status st = write_statement(w, id, indent);
	if (st != CLV_OK)
		return fail_node(w, id, st);
	if (w->s->del)
		write_deaths(w, id, indent);
	return CLV_OK;
}

static void write_scope(writer *w, scope_id s, unsigned indent)
{
	const scope *x = &w->p->scopes.at[s];
	const char *path = plan_s(w->p, x->path);
	strbuf_printf(&w->body, "\n%*s# ", (int)indent, "");
	write_harmless(path, &w->body);
	strbuf_puts(&w->body, path[0] ? ": " : "");
	write_harmless(plan_s(w->p, x->cls), &w->body);
	strbuf_putc(&w->body, '\n');
}

/* The module to name above a node: a layer is named by its call. */
static scope_id scope_of(const writer *w, node_id id)
{
	scope_id s = w->p->nodes.at[id].scope;
	if (w->stage && w->stage->layers.of_node[id] != NONE && w->p->scopes.at[s].parent != NONE)
		return w->p->scopes.at[s].parent;
	return s;
}

typedef struct stands {
	writer *w;
	unsigned indent;
	bool any;
	clv_status st;
} stands;

/* A later stage takes it. */
static bool leaves(const writer *w, value_id v)
{
	for (uint32_t i = 0; i < w->v.outputs.n; i++)
		if (w->v.outputs.at[i] == v)
			return true;
	return false;
}

static void put_stand(void *ctx, value_id v)
{
	stands *s = ctx;
	value_id own = s->w->stage->twins->stand[v];
	arg a = {.kind = own == NONE ? ARG_NONE : ARG_VALUE, .u.v = own};
	strbuf line = STRBUF_INIT;
	if (s->st != CLV_OK || (own == NONE && !leaves(s->w, v)))
		return;
	if (own != NONE && is_hidden(s->w, own)) {
		s->st = fail(CLV_E_UNSUPPORTED, "in the other mode it is a value that has no name here");
		return;
	}
	if (!s->any)
		strbuf_printf(&s->w->body, "%*selse:\n", (int)s->indent, "");
	s->any = true;
	strbuf_printf(&line, "%s = ", ident_value(&s->w->ids, v));
	s->st = write_arg(s->w, &a, &line);
	layout_line(&s->w->body, s->indent + INDENT, &line);
}

/* if self.training: nodes first … end-1 were written, which are in one mode alone; else: what stands for them. */
static clv_status write_else(writer *w, node_id first, node_id end, unsigned indent)
{
	stands s = {w, indent, false, CLV_OK};
	for (node_id n = first; n < end; n++)
		node_each_result(w->p, n, put_stand, &s);
	return s.st;
}

static clv_status write_nodes(writer *w)
{
	context_id now = 0;
	scope_id module = NONE;
	unsigned indent = BODY;
	node_id alone = NONE; /* the first of the nodes in one mode alone that are being written */
	for (node_id id = w->s->first; id < w->s->end; id++) {
		const node *n = &w->p->nodes.at[id];
		scope_id here = scope_of(w, id);
		bool moved = here != module && here != NONE;
		if (w->stage && w->stage->layers.hidden[id])
			continue;
		bool one = w->stage && twins_alone(w->stage->twins, id);
		if (alone != NONE && (!one || n->context != now)) {
			TRY(write_else(w, alone, id, indent));
			alone = NONE;
		}
		if ((n->context != now || (one && alone == NONE)) && moved) {
			write_scope(w, here, n->context != now ? BODY : indent); /* above the block that it opens */
			module = here;
			moved = false;
		}
		if (n->context != now) {
			now = n->context;
			indent = write_context(w, &w->p->contexts.at[now], &w->body) ? BODY + INDENT : BODY;
		}
		if (one && alone == NONE) {
			strbuf_printf(&w->body, "%*sif %sself.training:\n", (int)indent, "", w->p->training ? "" : "not ");
			alone = id;
		}
		unsigned deep = indent + (one ? INDENT : 0);
		if (moved)
			write_scope(w, here, deep);
		module = here == NONE ? module : here;
		TRY(write_node(w, id, deep));
	}
	return alone == NONE ? CLV_OK : write_else(w, alone, w->s->end, indent);
}

/* ---- forward ---------------------------------------------------------------------------------------------------- */

/* "x // 2" for a size that is 2*s: what undoes each operation, from outside in; false: it cannot be undone. */
static bool put_undone(const plan *p, symbol_id s, expr_id e, strbuf *b /* or NULL */)
{
	const expr *x = &p->exprs.at[e];
	int64_t k;
	if (x->op == EXPR_SYM)
		return x->k == (int64_t)s;
	if (x->op == EXPR_MUL && expr_is_const(p, x->a, &k) && k > 0) {
		if (b)
			strbuf_printf(b, " // %lld", (long long)k);
		return put_undone(p, s, x->b, b);
	}
	bool sum = (x->op == EXPR_ADD || x->op == EXPR_SUB) && expr_is_const(p, x->b, &k);
	if (!sum || k < -INT32_MAX || k > INT32_MAX || p->exprs.at[x->a].op != EXPR_SYM)
		return false;
	k = x->op == EXPR_ADD ? k : -k;
	if (b)
		strbuf_printf(b, " %c %lld", k < 0 ? '+' : '-', (long long)(k < 0 ? -k : k));
	return put_undone(p, s, x->a, b);
}

void put_symbol_from(const plan *p, symbol_id s, const char *name, value_id v, uint32_t dim, strbuf *b)
{
	strbuf_printf(b, "%s.shape[%u]", name, dim);
	put_undone(p, s, p->dims.at[p->values.at[v].shape + dim], b);
}

static bool shows(const writer *w, symbol_id s, value_id v, uint32_t dim, bool plain)
{
	const plan *p = w->p;
	expr_id e = p->dims.at[p->values.at[v].shape + dim];
	return plain ? p->exprs.at[e].op == EXPR_SYM && p->exprs.at[e].k == (int64_t)s : put_undone(p, s, e, NULL);
}

/* A size that is the symbol itself comes first; in a stage, which must do without keywords, others do too, and where the
   caller says so. */
bool symbol_shown(const writer *w, symbol_id s, value_id *input, uint32_t *dim)
{
	const view *v = &w->v;
	for (int plain = 1; plain >= (w->stage || w->s->solve ? 0 : 1); plain--)
		for (uint32_t i = 0; i < v->inputs.n; i++) {
			const value *x = &w->p->values.at[v->inputs.at[i]];
			bool plain_tensor = x->type == TYPE_TENSOR && !(x->flags & VALUE_ODD);
			if (w->stage && twins_absent(w->stage->twins, v->inputs.at[i]))
				continue;
			for (uint32_t d = 0; plain_tensor && d < x->ndim; d++) {
				if (!shows(w, s, v->inputs.at[i], d, plain))
					continue;
				*input = v->inputs.at[i];
				*dim = d;
				return true;
			}
		}
	return false;
}

static void write_signature(writer *w, strbuf *b)
{
	value_id input;
	uint32_t dim;
	const char *sep = ", *, ";
	strbuf line = STRBUF_INIT;
	strbuf_puts(&line, "def forward(self");
	for (uint32_t i = 0; i < w->v.inputs.n; i++)
		strbuf_printf(&line, ", %s", ident_value(&w->ids, w->v.inputs.at[i]));
	for (symbol_id s = 0; s < w->p->symbols.n; s++) {
		if (!w->symbol_used[s] || symbol_shown(w, s, &input, &dim))
			continue;
		strbuf_printf(&line, "%s%s", sep, ident_symbol(&w->ids, s));
		sep = ", ";
	}
	strbuf_puts(&line, "):");
	strbuf_putc(b, '\n');
	layout_line(b, INDENT, &line);
}

static void write_symbols(writer *w, strbuf *b)
{
	value_id input;
	uint32_t dim;
	for (symbol_id s = 0; s < w->p->symbols.n; s++) {
		if (!w->symbol_used[s] || !symbol_shown(w, s, &input, &dim))
			continue;
		strbuf line = STRBUF_INIT;
		strbuf_printf(&line, "%s = ", ident_symbol(&w->ids, s));
		put_symbol_from(w->p, s, ident_value(&w->ids, input), input, dim, &line);
		layout_line(b, BODY, &line);
	}
}

void write_forward(writer *w, strbuf *b)
{
	write_signature(w, b);
	size_t before = b->n;
	write_symbols(w, b);
	bool blank = b->n == before && w->body.n && w->body.at[0] == '\n'; /* no gap under the def line */
	strbuf_add(b, w->body.at + blank, w->body.n - blank);
}

/* An input from an earlier part that is written here is copied, so that its maker keeps it as it was. */
static clv_status write_copies(writer *w, strbuf *b)
{
	const plan *p = w->p;
	bool *written = arena_alloc(&w->arena, p->values.n);
	TRY(arena_status(&w->arena));
	for (node_id n = w->s->first; n < w->s->end; n++)
		for (uint32_t i = 0; i < p->nodes.at[n].nwrites; i++)
			written[alias_root(p, p->ids.at[p->nodes.at[n].writes + i])] = true;
	twins_spread(w->stage ? w->stage->twins : NULL, written);
	for (uint32_t i = 0; i < w->v.inputs.n; i++) {
		value_id v = w->v.inputs.at[i];
		const char *name = ident_value(&w->ids, v);
		if (p->values.at[v].kind == VALUE_INPUT || !written[alias_root(p, v)])
			continue;
		strbuf line = STRBUF_INIT;
		w->copy = true;
		strbuf_printf(&line, "%s = own_copy(%s)", name, name);
		layout_line(b, BODY, &line);
	}
	return CLV_OK;
}

static clv_status put_output(writer *w, value_id v, bool *any, strbuf *b)
{
	arg a = {.kind = ARG_VALUE, .u.v = v};
	strbuf_puts(b, *any ? ", " : "");
	*any = true;
	return write_arg(w, &a, b);
}

static clv_status write_rebinds(writer *w, strbuf *b)
{
	for (uint32_t i = 0; i < w->v.rebinds.n; i++) {
		const rebind *r = &w->p->rebinds.at[w->v.rebinds.at[i]];
		arg a = {.kind = ARG_VALUE, .u.v = r->value};
		TRY(write_store(w, r->target, &a, b));
	}
	return CLV_OK;
}

/* return (a, b); a stage returns one value bare, and each value once. */
static clv_status write_returned(writer *w, const value_id *at, uint32_t n, strbuf *b)
{
	strbuf line = STRBUF_INIT;
	clv_status st = CLV_OK;
	bool any = false, bare = w->stage && n == 1;
	strbuf_puts(&line, bare ? "return " : "return (");
	for (uint32_t i = 0; st == CLV_OK && i < n; i++)
		st = put_output(w, at[i], &any, &line);
	strbuf_puts(&line, bare ? "" : n == 1 ? ",)" : ")");
	layout_line(b, BODY, &line);
	return st;
}

/* All tensors of the output tree, or what goes on to the next part; and what module names are re-bound to if that is asked
   for. */
static clv_status find_returned(const writer *w, value_list *out)
{
	const plan *p = w->p;
	bool last = w->s->end == p->nodes.n;
	if (last && w->stage)
		return output_values(p, out);
	for (uint32_t i = 0; last && i < p->out_tree.n; i++)
		if (p->out_tree.at[i].kind == TREE_VALUE)
			TRY(vec_push(&out->at, p->out_tree.at[i].u.v));
	for (uint32_t i = 0; !last && i < w->v.outputs.n; i++)
		TRY(vec_push(&out->at, w->v.outputs.at[i]));
	for (uint32_t i = 0; w->s->return_rebinds && i < w->v.rebinds.n; i++)
		TRY(vec_push(&out->at, p->rebinds.at[w->v.rebinds.at[i]].value));
	return CLV_OK;
}

static clv_status write_return(writer *w, strbuf *b)
{
	value_list all = {0};
	strbuf_putc(b, '\n');
	if (!w->s->return_rebinds)
		TRY(write_rebinds(w, b));
	clv_status st = find_returned(w, &all);
	if (st == CLV_OK)
		st = write_returned(w, all.at.at, all.at.n, b);
	vec_free(&all.at);
	return st;
}

/* ---- what the forward asked of its inputs ------------------------------------------------------------------------ */

static void put_refusal(writer *w, strbuf *test, const char *what, strbuf *b)
{
	strbuf line = STRBUF_INIT;
	w->guard = true;
	layout_line(b, BODY, test);
	strbuf_puts(&line, "raise GuardError(\"");
	strbuf_puts(&line, what);
	strbuf_puts(&line, ", and the forward may ask: it was captured otherwise\")");
	layout_line(b, BODY + INDENT, &line);
}

static const char *input_ident(const writer *w, uint32_t i)
{
	return ident_value(&w->ids, w->p->inputs.at[i]);
}

static void write_asked_same(writer *w, const source_asked *a, uint32_t i, strbuf *b)
{
	strbuf apart = STRBUF_INIT;
	uint32_t n = 0;
	for (uint32_t k = 0; k < i && a->same[i] == i; k++)
		if (a->same[k] == k)
			strbuf_printf(&apart, "%s%s is %s", n++ ? " or " : "if ", input_ident(w, i), input_ident(w, k));
	if (n) {
		strbuf_putc(&apart, ':');
		put_refusal(w, &apart, "two inputs are one tensor", b);
		return;
	}
	strbuf_free(&apart);
	if (a->same[i] >= i)
		return;
	strbuf test = STRBUF_INIT;
	strbuf_printf(&test, "if %s is not %s:", input_ident(w, i), input_ident(w, a->same[i]));
	put_refusal(w, &test, "two inputs are two tensors", b);
}

static clv_status write_asked(writer *w, strbuf *b)
{
	enum { MOST_COMPARED = 256 }; /* each with each */
	const source_asked *a = &w->s->asked;
	uint32_t n = w->s->first == 0 ? w->p->inputs.n : 0;
	if (n > MOST_COMPARED && a->nsame)
		return fail(CLV_E_UNSUPPORTED,
		            "the forward asks which of its %u inputs are one tensor; source compares %d at most", n,
		            MOST_COMPARED);
	for (uint32_t i = 0; i < n && i < a->nsame; i++)
		write_asked_same(w, a, i, b);
	for (uint32_t i = 0; i < n && i < a->ngrads; i++) {
		strbuf test = STRBUF_INIT;
		if (a->grads[i] < 0)
			continue;
		strbuf_printf(&test, "if %s%s.requires_grad:", a->grads[i] ? "not " : "", input_ident(w, i));
		put_refusal(w, &test, a->grads[i] ? "an input does not require grad" : "an input requires grad", b);
	}
	return CLV_OK;
}

clv_status write_body(writer *w)
{
	TRY(write_asked(w, &w->body));
	TRY(write_copies(w, &w->body));
	TRY(write_nodes(w));
	TRY(write_return(w, &w->body));
	return w->body.failed ? fail_nomem() : CLV_OK;
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

static void write_head(const writer *w, strbuf *b)
{
	const plan *p = w->p;
	strbuf_puts(b, "# Written by Cleave: ");
	if (w->s->first == w->s->end)
		strbuf_puts(b, "no node");
	else
		strbuf_printf(b, "nodes %u to %u", w->s->first, w->s->end - 1);
	strbuf_printf(b, " of the %u of ", p->nodes.n);
	write_harmless(plan_s(p, p->model), b);
	strbuf_puts(b, ".\n# load_state_dict(model.state_dict(), strict=False) gives it the model's tensors.\n");
	strbuf_puts(b, w->flag ? "import contextlib\n" : "");
	strbuf_puts(b, w->math ? "import math\n" : "");
	strbuf_puts(b, w->flag || w->math ? "\n" : "");
	strbuf_puts(b, "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n");
	strbuf_puts(b, w->torchvision ? "import torchvision  # its operators\n" : "");
	write_helpers(w, b);
}

void write_helpers(const writer *w, strbuf *b)
{
	if (w->guard)
		strbuf_puts(b, "\n\nclass GuardError(RuntimeError):\n"
		               "    \"\"\"A value that the forward reads from its data is not the one of the capture.\"\"\"\n");
	if (w->flag)
		strbuf_puts(b, "\n\n@contextlib.contextmanager\n"
		               "def flag(get, set, value):\n"
		               "    \"\"\"A global switch, for a block.\"\"\"\n"
		               "    before = get()\n"
		               "    set(value)\n"
		               "    try:\n"
		               "        yield\n"
		               "    finally:\n"
		               "        set(before)\n");
	if (w->call)
		strbuf_puts(b, "\n\ndef call(op, *args):\n"
		               "    \"\"\"An operator with all arguments in order; some of them it takes by name alone.\"\"\"\n"
		               "    formal = op._schema.arguments[: len(args)]\n"
		               "    named = {f.name: a for f, a in zip(formal, args) if f.kwarg_only}\n"
		               "    return op(*args[: len(args) - len(named)], **named)\n");
	if (w->copy)
		strbuf_puts(b, "\n\ndef own_copy(x):\n"
		               "    \"\"\"The same tensor in memory of its own, laid out the same way.\"\"\"\n"
		               "    return x.new_empty_strided(x.size(), x.stride()).copy_(x)\n");
	if (w->part)
		strbuf_puts(b, "\n\nclass Part(nn.Module):\n"
		               "    \"\"\"Holds tensors under the names that the model gives them.\"\"\"\n\n"
		               "    def __getitem__(self, number):\n"
		               "        return getattr(self, str(number))\n");
}

static clv_status write_module(writer *w, strbuf *b)
{
	strbuf init = STRBUF_INIT;
	clv_status st = write_body(w);
	if (st == CLV_OK)
		st = write_init(w, &init);
	if (st == CLV_OK && init.failed)
		st = fail_nomem();
	if (st == CLV_OK) {
		const char *name = w->s->class_name ? w->s->class_name : "Segment";
		write_head(w, b);
		strbuf_printf(b, "\n\nclass %s(%s):\n", name, w->root_part ? "Part" : "nn.Module");
		strbuf_add(b, init.at, init.n);
		write_forward(w, b);
	}
	strbuf_free(&init);
	return st;
}

typedef struct use_walk {
	writer *w;
	node_id n;
} use_walk;

static void note_last_use(void *ctx, value_id v)
{
	use_walk *u = ctx;
	u->w->last[v] = u->n;
}

static void note_stand(void *ctx, value_id v)
{
	use_walk *u = ctx;
	value_id own = u->w->stage->twins->stand[v];
	if (own != NONE)
		note_last_use(ctx, own);
}

static void find_last_uses(writer *w)
{
	const plan *p = w->p;
	for (node_id n = w->s->first; n < w->s->end; n++) {
		node_each_arg(p, n, note_last_use, &(use_walk){w, n});
		if (w->stage && w->stage->twins)
			node_each_result(p, n, note_stand, &(use_walk){w, n});
	}
	for (uint32_t i = 0; i < w->v.outputs.n; i++)
		w->last[w->v.outputs.at[i]] = p->nodes.n;
	for (uint32_t i = 0; i < w->v.rebinds.n; i++)
		w->last[p->rebinds.at[w->v.rebinds.at[i]].value] = p->nodes.n;
}

clv_status writer_init(writer *w)
{
	const plan *p = w->p;
	TRY(view_range(p, w->s->first, w->s->end, &w->v));
	TRY(node_names_new(p, &w->names));
	TRY(idents_new(p, w->names, &w->ids));
	w->marks = source_marks(p);
	w->symbol_used = arena_alloc(&w->arena, p->symbols.n);
	w->last = arena_ids(&w->arena, p->values.n);
	TRY(arena_status(&w->arena));
	find_last_uses(w);
	return CLV_OK;
}

void writer_free(writer *w)
{
	view_free(&w->v);
	node_names_free(w->names);
	idents_free(&w->ids);
	arena_free(&w->arena);
	strbuf_free(&w->body);
}

static clv_status check_spec(const plan *p, const source_spec *s)
{
	if (s->first > s->end || s->end > p->nodes.n)
		return fail(CLV_E_INVALID, "there are no nodes %u to %u in a plan of %u nodes", s->first, s->end, p->nodes.n);
	if (s->class_name && !ident_free(s->class_name, strlen(s->class_name)))
		return fail(CLV_E_INVALID, "\"%s\" cannot be the name of the class", s->class_name);
	return CLV_OK;
}

/* Numbers that each run reads from data have no source text yet. */
clv_status check_symbols(const plan *p)
{
	symbol_id s = first_data_symbol(p);
	return s == NONE ? CLV_OK
	                 : fail(CLV_E_UNSUPPORTED, "the plan reads %s from its data, which has no source text yet",
	                        plan_s(p, p->symbols.at[s].name));
}

clv_status plan_source(const plan *p, const source_spec *s, strbuf *b)
{
	TRY(check_symbols(p));
	TRY(check_spec(p, s));
	writer w = {.p = p, .s = s};
	clv_status st = writer_init(&w);
	if (st == CLV_OK)
		st = write_module(&w, b);
	writer_free(&w);
	return st;
}

static clv_status find_keywords(writer *w, source_keywords *k)
{
	const plan *p = w->p;
	value_id input;
	uint32_t dim;
	TRY(writer_init(w));
	TRY(write_body(w));
	k->names = mem_alloc((p->symbols.n + 1) * sizeof *k->names);
	TRY_MEM(k->names);
	strbuf_add(&k->text, w->ids.text.at, w->ids.text.n);
	TRY_MEM(!k->text.failed);
	for (symbol_id i = 0; i < p->symbols.n; i++)
		if (w->symbol_used[i] && !symbol_shown(w, i, &input, &dim))
			k->names[i] = k->text.at + (ident_symbol(&w->ids, i) - w->ids.text.at);
	return CLV_OK;
}

clv_status source_keywords_new(const plan *p, node_id first, node_id end, source_keywords *out)
{
	source_spec s = {.first = first, .end = end};
	source_keywords k = {0};
	TRY(check_spec(p, &s));
	writer w = {.p = p, .s = &s};
	clv_status st = find_keywords(&w, &k);
	writer_free(&w);
	if (st == CLV_OK)
		*out = k;
	else
		source_keywords_free(&k);
	return st;
}

void source_keywords_free(source_keywords *k)
{
	mem_free(k->names);
	strbuf_free(&k->text);
}
