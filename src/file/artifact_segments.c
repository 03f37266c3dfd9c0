/* Compiled segments of an artifact: added, released, and the rules they keep to. */
#include "file/artifact_segments.h"

#include <string.h>

#include "plan/view.h"

/* ---- as data ------------------------------------------------------------------------------------------------------ */

void segment_free(artifact_segment *s)
{
	vec_free(&s->sizes);
	vec_free(&s->in_order);
	vec_free(&s->out_order);
	vec_free(&s->needs);
	vec_free(&s->facts);
	vec_free(&s->members);
}

bool segments_any(const artifact *a)
{
	for (uint32_t i = 0; i < a->plans.n; i++)
		if (a->plans.at[i].segments.n)
			return true;
	return false;
}

bool fallbacks_any(const artifact *a)
{
	for (uint32_t i = 0; i < a->plans.n; i++)
		if (a->plans.at[i].fallbacks.n)
			return true;
	return false;
}

clv_status segment_entry(uint32_t plan_number, uint32_t segment, const char *member, arena *a, const char **out)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "%s%u.%u.%s", PAYLOAD_SEGMENT, plan_number, segment, member);
	return arena_take(a, &b, out);
}

static clv_status copy_notes(artifact *a, const note_list *from, note_list *to)
{
	for (uint32_t i = 0; i < from->n; i++) {
		artifact_note note;
		TRY(artifact_text(a, from->at[i].key, &note.key));
		TRY(artifact_text(a, from->at[i].text, &note.text));
		TRY(vec_push(to, note));
	}
	return CLV_OK;
}

static clv_status copy_ids(const order_list *from, order_list *to)
{
	for (uint32_t i = 0; i < from->n; i++)
		TRY(vec_push(to, from->at[i]));
	return CLV_OK;
}

/* What is said about a segment. */
static clv_status copy_facts(artifact *a, const artifact_segment *from, artifact_segment *to)
{
	to->first = from->first;
	to->end = from->end;
	TRY(artifact_text(a, from->backend, &to->backend));
	return copy_notes(a, &from->facts, &to->facts);
}

/* Numbers are copied, texts too; the data of members stays where it is. */
static clv_status copy_segment(artifact *a, const artifact_segment *from, artifact_segment *to)
{
	TRY(copy_facts(a, from, to));
	for (uint32_t i = 0; i < from->sizes.n; i++)
		TRY(vec_push(&to->sizes, from->sizes.at[i]));
	TRY(copy_ids(&from->in_order, &to->in_order));
	TRY(copy_ids(&from->out_order, &to->out_order));
	TRY(copy_notes(a, &from->needs, &to->needs));
	if (from->seal)
		TRY(artifact_text(a, from->seal, &to->seal));
	for (uint32_t i = 0; i < from->members.n; i++) {
		artifact_member m = from->members.at[i];
		TRY(artifact_text(a, m.name, &m.name));
		TRY(vec_push(&to->members, m));
	}
	return CLV_OK;
}

static clv_status add_copy(artifact *a, const artifact_segment *from,
                           clv_status (*copy)(artifact *a, const artifact_segment *from, artifact_segment *to),
                           segment_list *out)
{
	artifact_segment s = {0};
	clv_status st = copy(a, from, &s);
	if (st == CLV_OK)
		st = vec_push(out, s);
	if (st != CLV_OK)
		segment_free(&s);
	return st;
}

static clv_status check_number(const artifact *a, uint32_t i, const char *what)
{
	return i < a->plans.n ? CLV_OK : fail(CLV_E_INVALID, "there is no plan %u that a %s could be of", i, what);
}

clv_status artifact_add_segment(artifact *a, uint32_t i, const artifact_segment *from)
{
	TRY(check_number(a, i, "segment"));
	return add_copy(a, from, copy_segment, &a->plans.at[i].segments);
}

clv_status artifact_add_dropped(artifact *a, uint32_t i, const artifact_segment *from)
{
	TRY(check_number(a, i, "segment"));
	return add_copy(a, from, copy_facts, &a->plans.at[i].dropped);
}

/* What a compiler said may be anything: a long text is cut, and what is no text is marked. */
static clv_status copy_reason(artifact *a, const char *reason, const char **out)
{
	size_t n = strlen(reason), i = 0;
	strbuf b = STRBUF_INIT;
	while (i < n && b.n < SEGMENT_TEXT - 16) {
		size_t length = utf8_length(reason + i, n - i);
		strbuf_add(&b, length ? reason + i : "?", length ? length : 1);
		i += length ? length : 1;
	}
	if (i < n)
		strbuf_puts(&b, " …");
	return arena_take(&a->arena, &b, out);
}

clv_status artifact_add_fallback(artifact *a, uint32_t i, node_id n, const char *reason)
{
	artifact_fallback f = {.node = n};
	TRY(check_number(a, i, "node"));
	TRY(copy_reason(a, reason, &f.reason));
	return vec_push(&a->plans.at[i].fallbacks, f);
}

/* ---- names and texts ---------------------------------------------------------------------------------------------- */

/* Fit to be the name of a file anywhere. */
static bool is_name(const char *s)
{
	static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-";
	size_t n = strlen(s);
	return n > 0 && n <= SEGMENT_NAME && s[0] != '.' && strspn(s, good) == n;
}

static clv_status check_notes(const artifact_note *at, uint32_t n, const char *what)
{
	if (n > SEGMENT_PARTS)
		return fail(CLV_E_PARSE, "it has %u %s, at most %d are possible", n, what, SEGMENT_PARTS);
	for (uint32_t i = 0; i < n; i++) {
		size_t length = strlen(at[i].text);
		if (!is_name(at[i].key))
			return fail(CLV_E_PARSE, "\"%.64s\" cannot be a name among its %s", at[i].key, what);
		if (length > SEGMENT_TEXT || !utf8_valid(at[i].text, length))
			return fail(CLV_E_PARSE, "\"%s\" of its %s is too long, or no text", at[i].key, what);
		for (uint32_t k = 0; k < i; k++)
			if (strcmp(at[k].key, at[i].key) == 0)
				return fail(CLV_E_PARSE, "\"%s\" is twice among its %s", at[i].key, what);
	}
	return CLV_OK;
}

static clv_status check_members(const artifact_segment *s)
{
	if (s->members.n > SEGMENT_PARTS)
		return fail(CLV_E_PARSE, "it has %u members, at most %d are possible", s->members.n, SEGMENT_PARTS);
	for (uint32_t i = 0; i < s->members.n; i++) {
		if (!is_name(s->members.at[i].name))
			return fail(CLV_E_PARSE, "\"%.64s\" cannot be the name of a member", s->members.at[i].name);
		for (uint32_t k = 0; k < i; k++)
			if (strcmp(s->members.at[k].name, s->members.at[i].name) == 0)
				return fail(CLV_E_PARSE, "there are two members \"%s\"", s->members.at[i].name);
	}
	return CLV_OK;
}

/* ---- numbers ------------------------------------------------------------------------------------------------------ */

static clv_status check_segment_sizes(const plan *p, const artifact_segment *s)
{
	if (s->sizes.n != p->symbols.n)
		return fail(CLV_E_PARSE, "it has sizes for %u symbols, the plan has %u", s->sizes.n, p->symbols.n);
	for (uint32_t i = 0; i < s->sizes.n; i++) {
		const artifact_sizes *z = &s->sizes.at[i];
		if (z->low < 0 || z->low > z->high)
			return fail(CLV_E_PARSE, "%lld to %lld are no sizes of %s", (long long)z->low, (long long)z->high,
			            plan_s(p, p->symbols.at[i].name));
	}
	return CLV_OK;
}

static bool is_permutation(const uint32_t *at, uint32_t n)
{
	uint64_t seen = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (at[i] >= n || seen >> at[i] & 1)
			return false;
		seen |= UINT64_C(1) << at[i];
	}
	return true;
}

/* The dimensions of each tensor, slowest first, one tensor after another. */
static clv_status check_dim_order(const plan *p, const value_id *values, uint32_t n, const uint32_t *order,
                                  uint32_t norder, const char *what)
{
	uint32_t at = 0;
	for (uint32_t i = 0; i < n; i++) {
		const value *v = &p->values.at[values[i]];
		uint32_t ndim = v->type == TYPE_TENSOR ? v->ndim : 0;
		if (ndim > PAYLOAD_NDIM)
			return fail(CLV_E_PARSE, "%s %u has %u dimensions, at most %d are possible", what, i, ndim, PAYLOAD_NDIM);
		if (ndim > norder - at || !is_permutation(order + at, ndim))
			return fail(CLV_E_PARSE, "the order of the dimensions of %s %u is none", what, i);
		at += ndim;
	}
	if (at != norder)
		return fail(CLV_E_PARSE, "there are orders of dimensions for more than its %u %ss", n, what);
	return CLV_OK;
}

static clv_status check_orders(const plan *p, const liveness *l, const artifact_segment *s)
{
	view v;
	TRY(view_segment(p, l, s->first, s->end, &v));
	clv_status st = check_dim_order(p, v.inputs.at, v.inputs.n, s->in_order.at, s->in_order.n, "input");
	if (st == CLV_OK)
		st = check_dim_order(p, v.outputs.at, v.outputs.n, s->out_order.at, s->out_order.n, "output");
	view_free(&v);
	return st;
}

/* ---- all ---------------------------------------------------------------------------------------------------------- */

/* Segments are ascending and apart. */
static clv_status check_facts(const artifact_plan *e, const artifact_segment *all, uint32_t i)
{
	const artifact_segment *s = &all[i];
	node_id from = i ? all[i - 1].end : e->first;
	if (s->first >= s->end || s->end > e->end)
		return fail(CLV_E_PARSE, "nodes %u to %u are not in the part, which is %u to %u", s->first, s->end, e->first,
		            e->end);
	if (s->first < from)
		return fail(CLV_E_PARSE, "it begins at node %u, before node %u where it may", s->first, from);
	if (!is_name(s->backend))
		return fail(CLV_E_PARSE, "\"%.64s\" cannot be the name of a back end", s->backend);
	return check_notes(s->facts.at, s->facts.n, "facts");
}

static clv_status check_segment(const artifact_plan *e, const liveness *l, uint32_t i)
{
	const artifact_segment *s = &e->segments.at[i];
	TRY(check_facts(e, e->segments.at, i));
	TRY(check_segment_sizes(e->p, s));
	TRY(check_orders(e->p, l, s));
	TRY(check_notes(s->needs.at, s->needs.n, "needs"));
	return check_members(s);
}

static clv_status check_dropped(const artifact_plan *e)
{
	for (uint32_t i = 0; i < e->dropped.n; i++) {
		TRY_MORE(check_facts(e, e->dropped.at, i), "dropped segment %u", i);
	}
	return CLV_OK;
}

static clv_status check_all(const artifact_plan *e, const liveness *l)
{
	for (uint32_t i = 0; i < e->segments.n; i++) {
		TRY_MORE(check_segment(e, l, i), "segment %u", i);
	}
	return CLV_OK;
}

static clv_status check_fallbacks(const artifact_plan *e)
{
	uint32_t s = 0; /* the first segment that ends after the node */
	for (uint32_t i = 0; i < e->fallbacks.n; i++) {
		const artifact_fallback *f = &e->fallbacks.at[i];
		size_t n = strlen(f->reason);
		if (f->node < e->first || f->node >= e->end || (i && f->node <= e->fallbacks.at[i - 1].node))
			return fail(CLV_E_PARSE, "fallback %u, node %u, is not in the part, or not after the one before", i,
			            f->node);
		while (s < e->segments.n && e->segments.at[s].end <= f->node)
			s++;
		if (s < e->segments.n && f->node >= e->segments.at[s].first)
			return fail(CLV_E_PARSE, "node %u is a fallback and in segment %u", f->node, s);
		if (n == 0 || n > SEGMENT_TEXT || !utf8_valid(f->reason, n))
			return fail(CLV_E_PARSE, "the reason of fallback %u is empty, too long, or no text", i);
	}
	return CLV_OK;
}

static clv_status check_segments(const artifact_plan *e)
{
	liveness l;
	if (e->segments.n == 0)
		return CLV_OK;
	if (!plan_in_text_order(e->p)) /* a reader would number them otherwise, and give code its inputs in another order */
		return fail(CLV_E_INVALID, "its values are not numbered as in its text; artifact_reordered sees to that");
	TRY(liveness_new(e->p, &l));
	clv_status st = check_all(e, &l);
	liveness_free(&l);
	return st;
}

clv_status segments_check(const artifact *a, uint32_t i)
{
	TRY(check_segments(&a->plans.at[i]));
	TRY(check_dropped(&a->plans.at[i]));
	return check_fallbacks(&a->plans.at[i]);
}
