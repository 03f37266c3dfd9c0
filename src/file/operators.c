/* Checks the operators of a plan against the list of those that a file may hold.
 *
 * A plan names its operators, and a name is all that it takes to call one: to read a file, to write through an index that
 * nobody checks, to talk to another process. So a file from elsewhere may hold only what is on a list (FILE_ALLOW in
 * plan/ops.def) and what the caller allows by name. What is not known is refused; FILE_REFUSE says why, where we know. */
#include "file/operators.h"

#include <string.h>

#include "plan/ops.h"

static bool is_identifier(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!(s[i] == '_' || (s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'z') ||
		      (s[i] >= 'A' && s[i] <= 'Z')))
			return false;
	return n > 0;
}

static clv_status check_entry(const char *text)
{
	op_name e = op_split(text ? text : "");
	const char *overload = e.base + e.n;
	bool right = is_identifier(e.text, e.space) && (!strcmp(e.base, "*") || is_identifier(e.base, e.n)) &&
	             (!*overload || is_identifier(overload + 1, strlen(overload + 1)));
	if (right)
		return CLV_OK;
	return fail(
		CLV_E_INVALID,
		"\"%.200s\" does not say which operators to allow; \"aten::from_file\" names one, \"aten::from_file.out\" one "
		"overload of it, \"mylib::*\" a namespace",
		text ? text : "");
}

/* By its name; most of those that are refused are inner ones (see ops.def). */
static bool is_inner(const op_name *op)
{
	const char *backward = strstr(op->base, "backward");
	return op_in(op, "aten") &&
	       ((op->base[0] == '_' && op->base[1] != '_') || (backward && backward < op->base + op->n));
}

static const char *reason_of(const op_name *op)
{
	const char *why = op_listed(FILE_REFUSE, op);
	if (why)
		return why;
	return is_inner(op) ? "is an inner operator that leaves checks to its callers"
	                    : "is not on the list of operators known to be safe";
}

/* By the caller. */
static bool is_named(const op_name *op, const char *const *allow, uint32_t nallow)
{
	for (uint32_t i = 0; i < nallow; i++)
		if (op_covers(allow[i], op))
			return true;
	return false;
}

/* What a call reads and gives, as the plan says it; a run holds every result to that. */
typedef struct call_kinds {
	const plan *p;
	bool sparse;         /* it reads a sparse or nested tensor */
	bool data, dataless; /* it has to do with tensors, and with tensors without data */
} call_kinds;

static void note_result(void *ctx, value_id v)
{
	call_kinds *k = ctx;
	const value *x = &k->p->values.at[v];
	if (x->type == TYPE_TENSOR)
		*(strncmp(plan_s(k->p, x->device), "meta", 4) ? &k->data : &k->dataless) = true;
}

static void note_argument(void *ctx, value_id v)
{
	call_kinds *k = ctx;
	k->sparse |= (k->p->values.at[v].flags & VALUE_ODD) != 0;
	note_result(ctx, v);
}

/* Why a call of an operator on the list may not be in a file; NULL: it may. */
static const char *refuses_tensors(const plan *p, node_id n, const op_name *op)
{
	call_kinds k = {.p = p};
	node_each_arg(p, n, note_argument, &k);
	node_each_result(p, n, note_result, &k);
	if (k.data && k.dataless) /* it runs without data, and what it returns is memory that nobody wrote */
		return "mixes tensors with and without data (device meta)";
	return k.sparse && !op_listed(FILE_SPARSE, op) ? "does not check sparse or nested tensors" : NULL;
}

/* `op` is NULL where the name is none that could be allowed; why NULL: by the lists. */
static clv_status refuse_operator(const plan *p, node_id n, const op_name *op, const char *why)
{
	node_names *names;
	strbuf b = STRBUF_INIT;
	char *place = NULL;
	TRY(node_names_new(p, &names));
	place_print(p, n, &b);
	clv_status st = strbuf_take(&b, &place);
	const char *text = plan_s(p, p->nodes.at[n].op), *name = node_name(names, n);
	size_t base = op ? (size_t)(op->base - text) + op->n : 0;
	if (st == CLV_OK && op)
		st = fail(CLV_E_UNSUPPORTED,
		          "node %.200s%.400s: %.200s %s, so a file may not hold it; if you trust the file, allow it by name: "
		          "\"%.*s\"",
		          name, place, text, why ? why : reason_of(op), base < 200 ? (int)base : 200, text);
	else if (st == CLV_OK)
		st =
			fail(CLV_E_UNSUPPORTED, "node %.200s%.400s: \"%.200s\" is no operator with a namespace", name, place, text);
	if (st == CLV_E_UNSUPPORTED && op)
		detail(op, "%s", text);
	mem_free(place);
	node_names_free(names);
	return st;
}

clv_status operators_check(const plan *p, const char *const *allow, uint32_t nallow)
{
	for (uint32_t i = 0; i < nallow; i++)
		TRY(check_entry(allow[i]));
	for (node_id n = 0; n < p->nodes.n; n++) {
		op_name op = op_split(plan_s(p, p->nodes.at[n].op));
		if (!op.space || !op.n)
			return refuse_operator(p, n, NULL, NULL);
		if (is_named(&op, allow, nallow))
			continue;
		const char *why = refuses_tensors(p, n, &op);
		if (why || !op_listed(FILE_ALLOW, &op))
			return refuse_operator(p, n, &op, why);
	}
	return CLV_OK;
}
