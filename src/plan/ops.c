/* The table of operators, compiled from ops.def. */
#include "plan/ops.h"

#include <string.h>

#define ELEMENTWISE .strides = STRIDES_EVERY
#define WRITES .writes = true
#define VIEW(how) .view = VIEW_##how
#define NEW .fresh = true
#define STRIDES(from) .strides = STRIDES_##from
#define WRITER(id) .writer = OP_##id
#define IMAGE_IF(k, r, argument, w) .image = {IMAGE_##k, RULE_##r, argument, WHERE_##w}
#define IMAGE(k) IMAGE_IF(k, ANY, 0, BOTH)
#define FORMATS .formats = true
#define NORM .norm = true
#define GAPS(how) .gaps = GAPS_##how
#define BATCH_IF(n, r, argument, ...) .batch = {n, BATCH_##r, argument}
#define BATCH(...) BATCH_IF(__VA_ARGS__, ALONE, 0, )
#define SWITCH(...) .off = {__VA_ARGS__}
#define HOST .host = true
#define STATISTICS .statistics = true
#define MEMORY(what) .memory = MEMORY_##what
#define WORK(kind) .work = WORK_##kind
#define LAYERS(...) .layers = {__VA_ARGS__}
#define CALL(h, s) .head = h, .signature = s

const op_row op_rows[OP_COUNT] = {
	[OP_UNKNOWN] = {.text = ""},
	[OP_UNKNOWN + MEMORY_BEYOND] = {.text = "", MEMORY(BEYOND)},
	[OP_UNKNOWN + MEMORY_RESIZED] = {.text = "", MEMORY(RESIZED)},
	[OP_UNKNOWN + MEMORY_JOINED] = {.text = "", MEMORY(JOINED)},
	[OP_UNKNOWN + MEMORY_SHARED] = {.text = "", MEMORY(SHARED)},
	[OP_UNKNOWN + MEMORY_EMPTY] = {.text = "", MEMORY(EMPTY)},
#define OP(id, ...) {__VA_ARGS__},
#include "plan/ops.def"
};

static bool same_text(const char *a, size_t na, const char *b, size_t nb)
{
	return na == nb && !memcmp(a, b, na);
}

op_name op_split(const char *text)
{
	const char *colons = strstr(text, "::");
	op_name o = {.text = text, .base = colons ? colons + 2 : text, .space = colons ? (size_t)(colons - text) : 0};
	o.n = o.plain = strcspn(o.base, ".");
	if (o.n > 1 && o.base[o.n - 1] == '_' && o.base[o.n - 2] != '_')
		o.plain--;
	return o;
}

bool op_in(const op_name *o, const char *space)
{
	return same_text(space, strlen(space), o->text, o->space);
}

static int by_text(const void *key, const void *row)
{
	return strcmp(key, ((const op_row *)row)->text);
}

uint16_t op_find(const char *text)
{
	const op_row *known = op_rows + OP_UNKNOWN_LAST + 1, *end = op_rows + OP_COUNT;
	const op_row *r = bsearch(text, known, (size_t)(end - known), sizeof *known, by_text);
	if (r)
		return (uint16_t)(r - op_rows);
	op_name o = op_split(text);
	bool of_torch = op_in(&o, "aten") || op_in(&o, "prims");
	for (r = known; r < end; r++) {
		if (!r->memory || (r->memory == MEMORY_EMPTY && !of_torch))
			continue;
		op_name named = op_split(r->text);
		if (same_text(o.base, o.n, named.base, named.n))
			return (uint16_t)(OP_UNKNOWN + r->memory);
	}
	return OP_UNKNOWN;
}

bool op_known(const char *text)
{
	static const char *const spaces[] = {"aten", "mkl", "mkldnn", "onednn", "prims", "quantized", "torchvision"};
	op_name o = op_split(text);
	for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
		if (op_in(&o, spaces[i]))
			return true;
	return false;
}

bool op_makes_new(const op_row *r)
{
	bool known = r->fresh || r->formats || r->norm || r->strides == STRIDES_FRESH || r->strides == STRIDES_EVERY;
	return known && !r->writes;
}

bool op_covers(const char *entry, const op_name *o)
{
	op_name e = op_split(entry);
	bool inner = !e.space; /* of aten, in place or not */
	const char *overload = o->base[o->n] ? o->base + o->n + 1 : "default";
	if (inner ? !op_in(o, "aten") : !same_text(entry, e.space, o->text, o->space))
		return false;
	if (!inner && !strcmp(e.base, "*"))
		return true;
	return same_text(e.base, e.n, o->base, inner ? o->plain : o->n) &&
	       (!e.base[e.n] || !strcmp(e.base + e.n + 1, overload));
}

static const struct block {
	op_list list;
	const char *head;
	const char *const *names; /* sorted as strcmp sorts */
	size_t n;
} blocks[] = {
#define LIST(kind, head, ...)                                                                                          \
	{kind, head, (const char *const[]){__VA_ARGS__}, sizeof(const char *const[]){__VA_ARGS__} / sizeof(char *)},
#include "plan/ops.def"
};

static int compare_name(const char *name, size_t n, const char *listed)
{
	int order = strncmp(name, listed, n);
	return order ? order : -(listed[n] != '\0');
}

static bool holds(const struct block *b, const char *name, size_t n)
{
	size_t lo = 0, hi = b->n;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int order = compare_name(name, n, b->names[mid]);
		if (!order)
			return true;
		if (order < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return false;
}

/* One of the names that go with overloads or namespaces. */
static bool covers(const struct block *b, const op_name *o)
{
	for (size_t i = 0; i < b->n; i++)
		if (op_covers(b->names[i], o))
			return true;
	return false;
}

const char *op_listed(op_list list, const op_name *o)
{
	for (const struct block *b = blocks; b < blocks + sizeof blocks / sizeof *blocks; b++) {
		if (b->list != list)
			continue;
		bool found = list == FILE_ALLOW      ? op_in(o, b->head) && holds(b, o->base, o->n)
		             : list == FILE_SPARSE   ? holds(b, o->base, o->n)
		             : list >= OPENVINO_TAKE ? holds(b, o->base, o->plain)
		                                     : covers(b, o);
		if (found)
			return b->head;
	}
	return NULL;
}
