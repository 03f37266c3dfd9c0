/* Writes pack_outputs, which builds the model's output from the values that the last stage returns. */
#include <string.h>

#include "emit/emit.h"

clv_status output_values(const plan *p, value_list *out)
{
	bool *seen = mem_alloc(p->values.n + 1);
	clv_status st = seen ? CLV_OK : fail_nomem();
	for (uint32_t i = 0; st == CLV_OK && i < p->out_tree.n; i++) {
		const tree *t = &p->out_tree.at[i];
		if (t->kind != TREE_VALUE || seen[t->u.v])
			continue;
		seen[t->u.v] = true;
		st = vec_push(&out->at, t->u.v);
	}
	mem_free(seen);
	return st;
}

/* A tensor of the model itself may be an output too, and has no name as a value. */
void write_output_name(const writer *w, value_id v, strbuf *b)
{
	uint8_t kind = w->p->values.at[v].kind;
	if (kind == VALUE_RESULT || kind == VALUE_INPUT)
		strbuf_puts(b, ident_value(&w->ids, v));
	else
		strbuf_printf(b, "tensor_%u", v);
}

typedef struct packing {
	writer *w;
	uint32_t at; /* next entry of the tree */
	bool object;
	strbuf *b;
} packing;

static void put_leaf(packing *k, const tree *t)
{
	const plan *p = k->w->p;
	strbuf *b = k->b;
	switch ((tree_kind)t->kind) {
	case TREE_BOOL: strbuf_puts(b, t->u.b ? "True" : "False"); break;
	case TREE_INT: write_int(k->w, t->u.e, b); break;
	case TREE_FLOAT: write_float(t->u.f, b); break;
	case TREE_COMPLEX: write_complex(t->u.c.re, t->u.c.im, b); break;
	case TREE_STR: write_string(plan_s(p, t->u.s), p->strs.at[t->u.s].n, b); break;
	case TREE_BYTES:
		strbuf_putc(b, 'b');
		strbuf_quoted_ascii(b, plan_s(p, t->u.s), p->strs.at[t->u.s].n);
		break;
	case TREE_VALUE: write_output_name(k->w, t->u.v, b); break;
	case TREE_REAL: write_real(k->w, t->u.r, b); break;
	default: strbuf_puts(b, "None"); break;
	}
}

static const char *opening(uint8_t kind)
{
	return kind == TREE_LIST ? "[" : kind == TREE_TUPLE ? "(" : kind == TREE_DICT ? "{" : "Output({";
}

static void put_tree(packing *k)
{
	const tree *t = &k->w->p->out_tree.at[k->at++];
	bool pairs = t->kind == TREE_DICT || t->kind == TREE_OBJECT;
	if (!tree_has_children(t->kind)) {
		put_leaf(k, t);
		return;
	}
	k->object |= t->kind == TREE_OBJECT;
	strbuf_puts(k->b, opening(t->kind));
	for (uint32_t i = 0; i < t->n; i++) {
		strbuf_puts(k->b, i == 0 ? "" : pairs && i % 2 ? ": " : ", ");
		put_tree(k);
	}
	if (t->kind == TREE_TUPLE)
		strbuf_puts(k->b, t->n == 1 ? ",)" : ")");
	else
		strbuf_puts(k->b, t->kind == TREE_LIST ? "]" : t->kind == TREE_DICT ? "}" : "})");
}

static const tree *find_opaque(const plan *p)
{
	for (uint32_t i = 0; i < p->out_tree.n; i++)
		if (p->out_tree.at[i].kind == TREE_OPAQUE)
			return &p->out_tree.at[i];
	return NULL;
}

static void put_refusal(const plan *p, const tree *t, strbuf *b)
{
	strbuf text = STRBUF_INIT, line = STRBUF_INIT;
	strbuf_printf(&text, "the output holds %s, which has no source text", plan_s(p, t->u.s));
	strbuf_puts(&line, "raise NotImplementedError(");
	write_string_of(&text, &line);
	strbuf_putc(&line, ')');
	layout_line(b, INDENT, &line);
}

static clv_status put_unpacked(writer *w, strbuf *b)
{
	value_list all = {0};
	strbuf line = STRBUF_INIT;
	clv_status st = output_values(w->p, &all);
	strbuf_puts(&line, all.at.n == 1 ? "(" : "");
	for (uint32_t i = 0; st == CLV_OK && i < all.at.n; i++) {
		strbuf_puts(&line, i ? ", " : "");
		write_output_name(w, all.at.at[i], &line);
	}
	strbuf_puts(&line, all.at.n == 1 ? ",) = values" : " = values");
	if (!all.at.n)
		line.n = 0;
	vec_free(&all.at);
	layout_line(b, INDENT, &line);
	return st;
}

static void put_head(const writer *w, const bool *sizes, strbuf *b)
{
	strbuf line = STRBUF_INIT;
	strbuf_puts(&line, "def pack_outputs(values");
	for (symbol_id s = 0; s < w->p->symbols.n; s++)
		if (sizes[s])
			strbuf_printf(&line, ", %s", ident_symbol(&w->ids, s));
	strbuf_puts(&line, "):");
	strbuf_puts(b, "\n\n");
	layout_line(b, 0, &line);
	strbuf_puts(b, "    \"\"\"The model's output, built from what the last stage returns.\"\"\"\n");
}

clv_status write_pack(writer *w, bool *sizes, bool *object, bool *whole, strbuf *b)
{
	const plan *p = w->p;
	const tree *opaque = find_opaque(p);
	strbuf line = STRBUF_INIT;
	bool *kept = w->symbol_used;
	packing k = {.w = w, .b = &line};
	*whole = !opaque && p->out_tree.n > 0;
	w->symbol_used = sizes;
	strbuf_puts(&line, "return ");
	if (*whole)
		put_tree(&k);
	w->symbol_used = kept;
	*object = k.object;
	put_head(w, sizes, b);
	if (*whole) {
		clv_status st = put_unpacked(w, b);
		layout_line(b, INDENT, &line);
		return st;
	}
	strbuf_free(&line);
	if (opaque)
		put_refusal(p, opaque, b);
	else
		strbuf_puts(b, "    return None\n");
	return CLV_OK;
}
