/* Describes a plan in a few lines, each a title and a text. */
#include <string.h>

#include "base/human.h"
#include "plan/intern.h"

#define MOST_VALUES 3 /* inputs or outputs that are named; the rest is counted */

static void print_rest(strbuf *b, uint32_t n)
{
	if (n > MOST_VALUES)
		strbuf_printf(b, " and %u more", n - MOST_VALUES);
}

static void brief_inputs(const plan *p, strbuf *b)
{
	strbuf_puts(b, "inputs\t");
	for (uint32_t i = 0; i < p->inputs.n && i < MOST_VALUES; i++) {
		value_id v = p->inputs.at[i];
		strbuf_puts(b, i ? ", " : "");
		if (p->values.at[v].name != NONE) {
			print_plain(p, p->values.at[v].name, b);
			strbuf_putc(b, ' ');
		}
		value_print_type(p, v, b);
	}
	strbuf_puts(b, p->inputs.n ? "" : "none");
	print_rest(b, p->inputs.n);
	strbuf_putc(b, '\n');
}

static void brief_outputs(const plan *p, strbuf *b)
{
	uint32_t n = 0;
	strbuf_puts(b, "outputs\t");
	for (uint32_t i = 0; i < p->out_tree.n; i++) {
		if (p->out_tree.at[i].kind != TREE_VALUE || n++ >= MOST_VALUES)
			continue;
		strbuf_puts(b, n > 1 ? ", " : "");
		value_print_type(p, p->out_tree.at[i].u.v, b);
	}
	strbuf_puts(b, n ? "" : "none");
	print_rest(b, n);
	strbuf_putc(b, '\n');
}

static void brief_symbols(const plan *p, strbuf *b)
{
	for (uint32_t i = 0; i < p->symbols.n; i++) {
		const symbol *s = &p->symbols.at[i];
		strbuf_printf(b, "%s%s %lld..%lld", i ? ", " : "symbols\t", plan_s(p, s->name), (long long)s->lo,
		              (long long)s->hi);
	}
	strbuf_puts(b, p->symbols.n ? "\n" : "");
}

typedef struct total {
	uint64_t tensors, trainable;
	int64_t elements, bytes;
	bool unknown; /* sizes that follow symbols or do not fit */
} total;

static clv_status add_parameter(const plan *p, value_id v, total *t)
{
	const value *x = &p->values.at[v];
	int64_t bytes = 0, width = dtype_bits(x->dtype) / 8;
	for (uint32_t i = 0; i < x->ndim; i++)
		t->unknown |= !expr_is_const(p, p->dims.at[x->shape + i], &bytes);
	t->tensors++;
	t->trainable += (x->flags & VALUE_TRAINABLE) != 0;
	if (t->unknown || width == 0) {
		t->unknown = true;
		return CLV_OK;
	}
	clv_status st = value_bytes(p, v, NULL, &bytes);
	if (st == CLV_E_NOMEM)
		return st;
	t->unknown |= st != CLV_OK || __builtin_add_overflow(t->bytes, bytes, &t->bytes) ||
	              __builtin_add_overflow(t->elements, bytes / width, &t->elements);
	return CLV_OK;
}

static clv_status brief_parameters(const plan *p, strbuf *b)
{
	total t = {0};
	for (value_id v = 0; v < p->values.n; v++)
		if (p->values.at[v].kind == VALUE_PARAM)
			TRY(add_parameter(p, v, &t));
	if (t.tensors == 0)
		return CLV_OK;
	strbuf_puts(b, "parameters\t");
	if (!t.unknown) {
		strbuf_count(b, t.elements);
		strbuf_puts(b, ", ");
		strbuf_bytes(b, t.bytes);
		strbuf_puts(b, ", ");
	}
	strbuf_printf(b, "%llu tensor%s, ", (unsigned long long)t.tensors, t.tensors == 1 ? "" : "s");
	if (t.trainable && t.trainable < t.tensors)
		strbuf_printf(b, "%llu trainable\n", (unsigned long long)t.trainable);
	else
		strbuf_puts(b, t.trainable ? "all trainable\n" : "none trainable\n");
	return CLV_OK;
}

clv_status plan_brief(const plan *p, strbuf *b)
{
	TRY(brief_parameters(p, b));
	brief_inputs(p, b);
	brief_outputs(p, b);
	brief_symbols(p, b);
	strbuf_puts(b, "mode\t");
	print_mode(p, b);
	strbuf_putc(b, '\n');
	return CLV_OK;
}
