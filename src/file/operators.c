/* Operators of a plan against the list of those that a file may hold.
 *
 * A plan names its operators, and a name is all that it takes to call one: to read a file, to write through an index that
 * nobody checks, to talk to another process. So a file from elsewhere may hold only what is on a list (operators.def) and
 * what the caller allows by name. What is not known is refused; the second half of the list says why, where we know. */
#include "file/operators.h"

#include <string.h>

#define ALLOW(space, ...) static const char *const allowed_##space[] = {__VA_ARGS__};
#define EXCEPT(reason, ...)
#define REFUSE(reason, ...)
#include "file/operators.def"

static const struct {
	const char *name;
	const char *const *ops; /* sorted as strcmp sorts */
	size_t n;
} spaces[] = {
#define ALLOW(space, ...) {#space, allowed_##space, sizeof allowed_##space / sizeof *allowed_##space},
#define EXCEPT(reason, ...)
#define REFUSE(reason, ...)
#include "file/operators.def"
};

static const struct {
	const char *reason;
	const char *const *entries; /* NULL ends */
} refusals[] = {
#define ALLOW(space, ...)
#define EXCEPT(reason, ...)
#define REFUSE(reason, ...) {reason, (const char *const[]){__VA_ARGS__, NULL}},
#include "file/operators.def"
};

/* "aten::add.Tensor", taken apart as the dispatcher does: at the first "::", then at the first dot. */
typedef struct op_name {
	const char *text;
	size_t space; /* length of "aten" */
	size_t base;  /* length of "aten::add" */
	size_t all;
} op_name;

static bool op_split(const char *text, op_name *out)
{
	const char *colons = strstr(text, "::");
	if (!colons || colons == text)
		return false;
	size_t all = strlen(text), start = (size_t)(colons - text) + 2;
	*out = (op_name){text, start - 2, start + strcspn(text + start, "."), all};
	return out->base > start;
}

/* ---- entries: "aten::add", "aten::add.Tensor", "aten::*" ------------------------------------------------------------- */

static bool is_word(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!(s[i] == '_' || (s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'z') ||
		      (s[i] >= 'A' && s[i] <= 'Z')))
			return false;
	return n > 0;
}

static bool is_whole_space(const op_name *e)
{
	return e->all == e->space + 3 && e->text[e->all - 1] == '*';
}

static clv_status check_entry(const char *text)
{
	op_name e;
	bool right = text && op_split(text, &e) && is_word(text, e.space);
	if (right && !is_whole_space(&e))
		right = is_word(text + e.space + 2, e.base - e.space - 2) &&
		        (e.base == e.all || is_word(text + e.base + 1, e.all - e.base - 1));
	if (right)
		return CLV_OK;
	return fail(
		CLV_E_INVALID,
		"\"%.200s\" does not say which operators to allow; \"aten::from_file\" names one, \"aten::from_file.out\" one "
		"overload of it, \"mylib::*\" a namespace",
		text ? text : "");
}

static bool same_text(const char *a, size_t na, const char *b, size_t nb)
{
	return na == nb && !memcmp(a, b, na);
}

static bool entry_covers(const char *entry, const op_name *op)
{
	op_name e;
	if (!op_split(entry, &e))
		return false;
	if (is_whole_space(&e))
		return same_text(entry, e.space, op->text, op->space);
	return same_text(entry, e.all, op->text, e.base == e.all ? op->base : op->all);
}

/* ---- the list -------------------------------------------------------------------------------------------------------- */

static int compare_base(const char *name, size_t n, const char *listed)
{
	int order = strncmp(name, listed, n);
	return order ? order : -(listed[n] != '\0');
}

static bool holds(const char *const *sorted, size_t n, const char *name, size_t len)
{
	size_t lo = 0, hi = n;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int order = compare_base(name, len, sorted[mid]);
		if (!order)
			return true;
		if (order < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return false;
}

static bool is_listed(const op_name *op)
{
	for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
		if (same_text(spaces[i].name, strlen(spaces[i].name), op->text, op->space))
			return holds(spaces[i].ops, spaces[i].n, op->text + op->space + 2, op->base - op->space - 2);
	return false;
}

/* By its name; most of those that are refused are inner ones (see operators.def). */
static bool is_inner(const op_name *op)
{
	const char *base = op->text + op->space + 2, *backward = strstr(base, "backward");
	return same_text("aten", 4, op->text, op->space) &&
	       ((base[0] == '_' && base[1] != '_') || (backward && backward < op->text + op->base));
}

static const char *reason_of(const op_name *op)
{
	for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
		for (const char *const *e = refusals[i].entries; *e; e++)
			if (entry_covers(*e, op))
				return refusals[i].reason;
	return is_inner(op) ? "is an inner operator that leaves checks to its callers"
	                    : "is not on the list of operators known to be safe";
}

/* ---- a plan ---------------------------------------------------------------------------------------------------------- */

static bool is_allowed(const op_name *op, const char *const *allow, uint32_t nallow)
{
	if (is_listed(op))
		return true;
	for (uint32_t i = 0; i < nallow; i++)
		if (entry_covers(allow[i], op))
			return true;
	return false;
}

/* `op` is NULL where the name is none that could be allowed. */
static clv_status refuse(const plan *p, node_id n, const op_name *op)
{
	node_names *names;
	strbuf b = STRBUF_INIT;
	char *place = NULL;
	TRY(node_names_new(p, &names));
	place_print(p, n, &b);
	clv_status st = strbuf_take(&b, &place);
	const char *text = plan_s(p, p->nodes.at[n].op), *name = node_name(names, n);
	if (st == CLV_OK && op)
		st = fail(
			CLV_E_UNSUPPORTED,
			"node %.200s%.400s: %.200s %s, so a file may not hold it; who trusts the file allows it by name: \"%.*s\"",
			name, place, text, reason_of(op), op->base < 200 ? (int)op->base : 200, text);
	else if (st == CLV_OK)
		st =
			fail(CLV_E_UNSUPPORTED, "node %.200s%.400s: \"%.200s\" is no operator with a namespace", name, place, text);
	mem_free(place);
	node_names_free(names);
	return st;
}

clv_status operators_check(const plan *p, const char *const *allow, uint32_t nallow)
{
	for (uint32_t i = 0; i < nallow; i++)
		TRY(check_entry(allow[i]));
	for (node_id n = 0; n < p->nodes.n; n++) {
		op_name op;
		if (!op_split(plan_s(p, p->nodes.at[n].op), &op))
			return refuse(p, n, NULL);
		if (!is_allowed(&op, allow, nallow))
			return refuse(p, n, &op);
	}
	return CLV_OK;
}
