/* Writes calls of blocks: modules that a plan calls as a whole, cleave::python(#module, arguments…, its own tensors…).
 *
 * The constructor of the stage takes the module; its tensors are then the stage's under their own names. Only the recorder
 * knows how its arguments and results are nested, and passes that as text (block_call). */
#include <string.h>

#include "emit/emit.h"

static bool is_python(const plan *p, node_id n)
{
	return p->nodes.at[n].op_id == OP_cleave_python;
}

/* Autograd functions are called by the same operator, under a name that says so. */
static bool is_function(const plan *p, const node *n)
{
	const arg *a = n->nargs ? &p->args.at[n->args] : NULL;
	if (!a || a->kind != ARG_VALUE || p->values.at[a->u.v].kind != VALUE_OBJECT)
		return true;
	const char *name = plan_s(p, p->values.at[a->u.v].name);
	size_t k = strlen(name);
	return k >= 6 && !strcmp(name + k - 6, ".apply");
}

bool block_is(const plan *p, node_id n)
{
	return is_python(p, n) && !is_function(p, &p->nodes.at[n]);
}

static const block_call *find_call(const writer *w, node_id id)
{
	const stages_spec *s = w->stage->spec;
	uint32_t number = 0;
	for (node_id n = 0; n < id; n++)
		number += is_python(w->p, n);
	return number < s->ncalls ? &s->calls[number] : NULL;
}

static const char *path_of(const plan *p, const node *n)
{
	return n->scope == NONE ? "" : plan_s(p, p->scopes.at[n->scope].path);
}

/* Refuses calls that cannot be written, before anything is written. */
static clv_status check_call(const writer *w, node_id id, const block_call *c)
{
	const node *n = &w->p->nodes.at[id];
	if (!source_path_ok(path_of(w->p, n)))
		return fail(CLV_E_UNSUPPORTED, "it calls a module that has no name in the model");
	if (!c)
		return fail(CLV_E_UNSUPPORTED,
		            "it calls the module %s as a whole, and only Python knows how: write the source "
		            "from the partition that pipe_model gives",
		            path_of(w->p, n));
	if (c->reason)
		return fail(CLV_E_UNSUPPORTED, "%s", c->reason);
	if (!c->arguments || c->count >= n->nargs)
		return fail(CLV_E_INVALID, "it has %u arguments, and %u are wanted", n->nargs, c->count);
	return CLV_OK;
}

/* ---- its tensors -------------------------------------------------------------------------------------------------- */

/* The name of a tensor inside the module, by its name in the model or a second one; NULL: it has none there. */
static const char *own_name(const plan *p, value_id v, const char *path)
{
	const char *name = path_inside(plan_s(p, p->values.at[v].name), path);
	for (uint32_t i = 0; !name && i < p->ties.n; i++)
		if (p->ties.at[i].value == v)
			name = path_inside(plan_s(p, p->ties.at[i].name), path);
	return name;
}

static clv_status add_block_tensors(const writer *w, const node *n, uint32_t count, layers *all)
{
	const plan *p = w->p;
	const char *path = path_of(p, n);
	for (uint32_t i = count + 1; i < n->nargs; i++) {
		const arg *a = &p->args.at[n->args + i];
		const char *name = a->kind == ARG_VALUE ? own_name(p, a->u.v, path) : NULL;
		if (!name)
			return fail(CLV_E_UNSUPPORTED, "a tensor of the module %s has no name inside it", path);
		TRY(layer_slot_add(all, a->u.v, name, strlen(name)));
	}
	return CLV_OK;
}

static clv_status add_block(const writer *w, node_id id, layers *all)
{
	const node *n = &w->p->nodes.at[id];
	const block_call *c = find_call(w, id);
	uint32_t known = layer_of_scope(all, n->scope), first = all->slots.n;
	TRY(check_call(w, id, c));
	all->of_node[id] = known;
	if (known != NONE)
		return CLV_OK;
	strbuf text = STRBUF_INIT;
	TRY(add_block_tensors(w, n, c->count, all));
	strbuf_puts(&text, "given_block(blocks, ");
	write_string(path_of(w->p, n), strlen(path_of(w->p, n)), &text);
	strbuf_putc(&text, ')');
	TRY(layer_add(all, n->scope, first, &text, &all->of_node[id]));
	all->at.at[all->of_node[id]].block = true;
	return CLV_OK;
}

clv_status blocks_find(writer *w, layers *all)
{
	for (node_id n = w->s->first; n < w->s->end; n++) {
		if (!block_is(w->p, n))
			continue;
		clv_status st = add_block(w, n, all);
		if (st != CLV_OK)
			return fail_node(w, n, st);
		w->stage->blocks = true;
	}
	return CLV_OK;
}

/* ---- the call ----------------------------------------------------------------------------------------------------- */

/* The number of {12} at s, after which *s stands; false: there is none. */
static bool read_placeholder(const char **s, uint32_t *out)
{
	size_t n = strspn(*s + 1, "0123456789");
	*out = 0;
	if (**s != '{' || n == 0 || n > 6 || (*s)[n + 1] != '}')
		return false;
	for (size_t i = 1; i <= n; i++)
		*out = *out * 10 + (uint32_t)((*s)[i] - '0');
	*s += n + 2;
	return true;
}

/* The text with {0}, {1}, … replaced: by arguments, or by names to assign to. "{{" is one brace. */
static clv_status put_template(writer *w, const char *text, const arg *at, uint32_t n, bool targets, strbuf *b)
{
	uint32_t i;
	while (*text) {
		bool twice = (*text == '{' || *text == '}') && text[1] == *text;
		if (twice || (*text != '{' && *text != '}')) {
			strbuf_putc(b, *text);
			text += twice ? 2 : 1;
			continue;
		}
		if (!read_placeholder(&text, &i) || i >= n)
			return fail(CLV_E_INVALID, "the text of its call does not fit it");
		if (targets)
			write_target(w, &at[i], b);
		else
			TRY(write_arg(w, &at[i], b));
	}
	return CLV_OK;
}

/* a, (b, _) = */
static clv_status put_block_targets(writer *w, const node *n, const block_call *c, strbuf *b)
{
	const arg *at = &w->p->args.at[n->results];
	bool any = false;
	for (uint32_t i = 0; i < n->nresults; i++)
		any |= at[i].kind == ARG_VALUE && is_used(w, at[i].u.v);
	if (!any)
		return CLV_OK;
	if (c->results) {
		TRY(put_template(w, c->results, at, n->nresults, true, b));
	} else {
		strbuf_puts(b, n->nresults == 1 ? "(" : "");
		for (uint32_t i = 0; i < n->nresults; i++) {
			strbuf_puts(b, i ? ", " : "");
			write_target(w, &at[i], b);
		}
		strbuf_puts(b, n->nresults == 1 ? ",)" : "");
		w->stage->tensors = true;
	}
	strbuf_puts(b, c->results ? " = " : " = tensors_of(");
	return CLV_OK;
}

clv_status write_block_call(writer *w, node_id id, strbuf *b)
{
	const node *n = &w->p->nodes.at[id];
	const block_call *c = find_call(w, id);
	TRY(check_call(w, id, c));
	TRY(put_block_targets(w, n, c, b));
	bool wrapped = b->n && b->at[b->n - 1] == '(';
	write_path(w, path_of(w->p, n), b);
	strbuf_putc(b, '(');
	TRY(put_template(w, c->arguments, &w->p->args.at[n->args + 1], c->count, false, b));
	strbuf_puts(b, wrapped ? "))" : ")");
	return CLV_OK;
}
