/* Seals of compiled segments: how a user's own compiled code in a file is recognized.
 *
 * A seal (file/seal.c) covers the code, the nodes it replaces and everything it is loaded with: it cannot be reused for other
 * code or other nodes. With CLEAVE_CACHE=off code is neither kept nor recognized. */
#include <stdlib.h>
#include <string.h>

#include "file/seal.h"
#include "segment/compile.h"

static void put_counted_text(strbuf *b, const char *s)
{
	strbuf_printf(b, "%zu ", strlen(s));
	strbuf_puts(b, s);
	strbuf_putc(b, '\n');
}

static void put_order(strbuf *b, const uint32_t *at, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		strbuf_printf(b, "%u ", at[i]);
	strbuf_putc(b, '\n');
}

static void put_size_ranges(const plan *p, const artifact_segment *s, const plan *part, strbuf *b)
{
	for (symbol_id i = 0; i < part->symbols.n; i++) {
		symbol_id old = plan_find_symbol(p, part, i);
		if (old < s->sizes.n)
			strbuf_printf(b, "%lld..%lld ", (long long)s->sizes.at[old].low, (long long)s->sizes.at[old].high);
	}
	strbuf_putc(b, '\n');
}

/* Everything but the bytes of the members. The nodes are those of the segment alone, so that it keeps its seal in a file of
   its own, and wherever it stands in a plan. */
static clv_status describe_sealed(const plan *p, const artifact_segment *s, const compiled *made, strbuf *b)
{
	plan *part;
	TRY(plan_extract(p, s->first, s->end, &part, NULL));
	for (node_id n = 0; n < part->nodes.n; n++)
		part->nodes.at[n].at = NONE;
	strbuf_puts(b, "cleave seal 1\n");
	put_counted_text(b, s->backend);
	put_size_ranges(p, s, part, b);
	put_order(b, s->in_order.at, s->in_order.n);
	put_order(b, s->out_order.at, s->out_order.n);
	strbuf_printf(b, "%u %u\n", s->needs.n, made->members.n);
	for (uint32_t i = 0; i < s->needs.n; i++) {
		put_counted_text(b, s->needs.at[i].key);
		put_counted_text(b, s->needs.at[i].text);
	}
	for (uint32_t i = 0; i < made->members.n; i++) {
		put_counted_text(b, made->members.at[i].name);
		strbuf_printf(b, "%zu\n", made->members.at[i].n);
	}
	plan_print(part, b);
	plan_free(part);
	return b->failed ? fail_nomem() : CLV_OK;
}

static clv_status seal_pieces(bool make, const strbuf *text, const compiled *made, char out[SEAL_TEXT])
{
	uint32_t n = made->members.n;
	seal_piece *pieces = mem_alloc((n + 1) * sizeof *pieces);
	TRY_MEM(pieces);
	pieces[0] = (seal_piece){text->at, text->n};
	for (uint32_t i = 0; i < n; i++)
		pieces[i + 1] = (seal_piece){made->members.at[i].data, made->members.at[i].n};
	seal_compute(make, pieces, n + 1, out);
	mem_free(pieces);
	return CLV_OK;
}

static bool keeps_code(void)
{
	const char *wish = getenv("CLEAVE_CACHE");
	return !wish || (*wish && strcmp(wish, "off") != 0);
}

/* A segment that cannot be sealed has no seal: that is no error. */
static clv_status seal_of(bool make, const plan *p, const artifact_segment *s, const compiled *made,
                          char out[SEAL_TEXT])
{
	strbuf text = STRBUF_INIT;
	out[0] = '\0';
	if (!keeps_code())
		return CLV_OK;
	clv_status st = describe_sealed(p, s, made, &text);
	if (st == CLV_OK)
		st = seal_pieces(make, &text, made, out);
	strbuf_free(&text);
	return st == CLV_E_NOMEM ? st : CLV_OK;
}

clv_status seal_make(const plan *p, const artifact_segment *s, const compiled *made, char out[SEAL_TEXT])
{
	return seal_of(true, p, s, made, out);
}

clv_status seal_check(const plan *p, const artifact_segment *s, const compiled *made, bool *ours)
{
	char want[SEAL_TEXT];
	*ours = false;
	if (!s->seal)
		return CLV_OK;
	TRY(seal_of(false, p, s, made, want));
	*ours = want[0] && seal_same(want, s->seal, SEAL_TEXT);
	return CLV_OK;
}
