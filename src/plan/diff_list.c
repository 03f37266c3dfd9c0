/* The list of differences: filled item by item, written as a page or as JSON. */
#include <math.h>
#include <string.h>

#include "base/member.h"
#include "plan/diff.h"

static const char *const section_names[] = {
#define X(id, text) text,
	DIFF_SECTIONS(X)
#undef X
};

static const char *const change_names[] = {"added", "removed", "changed", "same"};

/* ---- filling ---------------------------------------------------------------------------------------------------- */

static clv_status keep_bytes(diff *d, const char *s, size_t n, const char **out)
{
	char *copy = arena_alloc(&d->arena, n + 1);
	TRY_MEM(copy);
	if (n)
		memcpy(copy, s, n);
	*out = copy;
	return CLV_OK;
}

static clv_status keep_buffer(diff *d, const strbuf *b, const char **out)
{
	return b->failed ? fail_nomem() : keep_bytes(d, b->at, b->n, out);
}

clv_status diff_part_add(diff *d, const char *name)
{
	diff_part p = {0};
	TRY(keep_bytes(d, name, strlen(name), &p.name));
	return vec_push(&d->parts, p);
}

static uint64_t *counts(diff *d, diff_section s)
{
	return d->parts.at[d->parts.n - 1].count[s];
}

/* The section has all the items that are kept. */
static bool full(diff *d, diff_section s)
{
	const uint64_t *c = counts(d, s);
	return d->limit && c[DIFF_ADDED] + c[DIFF_REMOVED] + c[DIFF_CHANGED] >= d->limit;
}

void diff_start(diff *d)
{
	d->before.n = d->after.n = 0;
}

void diff_open(diff *d, diff_section s)
{
	d->section = s;
	d->first = d->facts.n;
	d->changed = false;
	d->name.n = 0;
	diff_start(d);
}

static clv_status add_fact(diff *d, const diff_fact *f)
{
	d->changed = true;
	return full(d, d->section) ? CLV_OK : vec_push(&d->facts, *f);
}

static clv_status compare_buffers(diff *d, const char *prefix, const char *what)
{
	diff_fact f = {0};
	TRY_MEM(!d->before.failed && !d->after.failed);
	if (d->before.n == d->after.n && (d->after.n == 0 || memcmp(d->before.at, d->after.at, d->after.n) == 0))
		return CLV_OK;
	if (full(d, d->section))
		return add_fact(d, &f);
	if (d->before.n)
		TRY(keep_buffer(d, &d->before, &f.before));
	if (d->after.n)
		TRY(keep_buffer(d, &d->after, &f.after));
	d->before.n = 0;
	strbuf_puts(&d->before, prefix);
	strbuf_puts(&d->before, what);
	TRY(keep_buffer(d, &d->before, &f.what));
	return add_fact(d, &f);
}

clv_status diff_compare(diff *d, const char *prefix, const char *what)
{
	TRY(compare_buffers(d, prefix, what));
	diff_start(d);
	return CLV_OK;
}

clv_status diff_fact_add(diff *d, const char *what, const char *before, const char *after, const diff_data *data)
{
	diff_fact f = {0};
	if (full(d, d->section))
		return add_fact(d, &f);
	TRY(keep_bytes(d, what, strlen(what), &f.what));
	if (before)
		TRY(keep_bytes(d, before, strlen(before), &f.before));
	if (after)
		TRY(keep_bytes(d, after, strlen(after), &f.after));
	if (data && !(f.data = arena_copy(&d->arena, data, sizeof *data)))
		return fail_nomem();
	return add_fact(d, &f);
}

bool diff_pending(const diff *d)
{
	return d->changed;
}

static clv_status add_item(diff *d, diff_section s, diff_change c)
{
	diff_item i = {d->parts.n - 1, (uint8_t)s, (uint8_t)c, "", d->first, d->facts.n - d->first};
	if (!full(d, s)) {
		TRY(keep_buffer(d, &d->name, &i.name));
		TRY(vec_push(&d->items, i));
	}
	counts(d, s)[c]++;
	return CLV_OK;
}

clv_status diff_close(diff *d)
{
	if (d->changed)
		return add_item(d, d->section, DIFF_CHANGED);
	counts(d, d->section)[DIFF_SAME]++;
	return CLV_OK;
}

clv_status diff_one(diff *d, diff_section s, diff_change c)
{
	diff_fact f = {.what = "is"};
	d->first = d->facts.n;
	if (!full(d, s)) {
		TRY(keep_buffer(d, &d->after, c == DIFF_ADDED ? &f.after : &f.before));
		TRY(vec_push(&d->facts, f));
	}
	return add_item(d, s, c);
}

bool diff_any(const diff *d)
{
	for (uint32_t i = 0; i < d->parts.n; i++)
		for (unsigned s = 0; s < DIFF_SECTION_COUNT; s++)
			for (unsigned c = 0; c < DIFF_SAME; c++)
				if (d->parts.at[i].count[s][c])
					return true;
	return false;
}

void diff_free(diff *d)
{
	vec_free(&d->items);
	vec_free(&d->facts);
	vec_free(&d->parts);
	strbuf_free(&d->before);
	strbuf_free(&d->after);
	strbuf_free(&d->name);
	arena_free(&d->arena);
}

/* ---- for people ------------------------------------------------------------------------------------------------- */

static uint64_t differences(const uint64_t *c)
{
	return c[DIFF_ADDED] + c[DIFF_REMOVED] + c[DIFF_CHANGED];
}

static bool part_differs(const diff_part *p)
{
	for (unsigned s = 0; s < DIFF_SECTION_COUNT; s++)
		if (differences(p->count[s]))
			return true;
	return false;
}

static void print_counts(const uint64_t *c, strbuf *b)
{
	const char *sep = "";
	for (unsigned i = 0; i < DIFF_CHANGE_COUNT; i++) {
		if (!c[i])
			continue;
		strbuf_printf(b, "%s%llu %s%s", sep, (unsigned long long)c[i], i == DIFF_SAME ? "the " : "", change_names[i]);
		sep = ", ";
	}
	strbuf_putc(b, '\n');
}

static void print_part_name(const diff_part *p, strbuf *b)
{
	if (p->name[0])
		strbuf_printf(b, "%s\n", p->name);
}

static void print_summary(const diff *d, strbuf *b)
{
	for (uint32_t i = 0; i < d->parts.n; i++) {
		const diff_part *p = &d->parts.at[i];
		if (!part_differs(p))
			continue;
		print_part_name(p, b);
		for (unsigned s = 0; s < DIFF_SECTION_COUNT; s++) {
			if (!differences(p->count[s]))
				continue;
			strbuf_printf(b, "  %-12s  ", section_names[s]);
			print_counts(p->count[s], b);
		}
	}
}

static void print_data(const diff_data *x, strbuf *b)
{
	if (!x->has_elements) {
		strbuf_puts(b, "differs");
		return;
	}
	strbuf_printf(b, "%llu of %llu elements differ", (unsigned long long)x->differ, (unsigned long long)x->elements);
	if (!x->has_numbers)
		return;
	strbuf_puts(b, ", by up to ");
	strbuf_double(b, x->largest);
	if (x->nans)
		strbuf_printf(b, "; %llu are nan on one side", (unsigned long long)x->nans);
}

static void print_fact(const diff_fact *f, strbuf *b)
{
	strbuf_printf(b, "      %s: ", f->what);
	if (f->data)
		print_data(f->data, b);
	else if (!f->before)
		strbuf_printf(b, "added %s", f->after);
	else if (!f->after)
		strbuf_printf(b, "removed %s", f->before);
	else
		strbuf_printf(b, "%s -> %s", f->before, f->after);
	strbuf_putc(b, '\n');
}

static void print_item(const diff *d, const diff_item *i, strbuf *b)
{
	const diff_fact *f = vec_from(&d->facts, i->first);
	strbuf_printf(b, "  %c %s", "+-~"[i->change], i -> name);
	if (i->change == DIFF_CHANGED) {
		strbuf_putc(b, '\n');
		for (uint32_t k = 0; k < i->n; k++)
			print_fact(&f[k], b);
		return;
	}
	const char *text = i->change == DIFF_ADDED ? f->after : f->before;
	strbuf_printf(b, "%s%s\n", text[0] ? ": " : "", text);
}

/* Items of one section of one part are not always neighbours; `from` is where its part starts. */
static uint64_t print_section(const diff *d, uint32_t from, uint32_t part, unsigned section, strbuf *b)
{
	uint64_t shown = 0;
	for (uint32_t i = from; i < d->items.n && d->items.at[i].part == part; i++) {
		if (d->items.at[i].section != section)
			continue;
		print_item(d, &d->items.at[i], b);
		shown++;
	}
	return shown;
}

static void print_part(const diff *d, uint32_t from, uint32_t part, strbuf *b)
{
	const diff_part *p = &d->parts.at[part];
	for (unsigned s = 0; s < DIFF_SECTION_COUNT; s++) {
		uint64_t all = differences(p->count[s]);
		if (!all)
			continue;
		strbuf_printf(b, "\n%s%s%s\n", p->name, p->name[0] ? ": " : "", section_names[s]);
		uint64_t shown = print_section(d, from, part, s, b);
		if (shown < all)
			strbuf_printf(b, "  and %llu more\n", (unsigned long long)(all - shown));
	}
}

static uint32_t part_end(const diff *d, uint32_t from, uint32_t part)
{
	while (from < d->items.n && d->items.at[from].part == part)
		from++;
	return from;
}

void diff_print(const diff *d, strbuf *b)
{
	uint32_t from = 0;
	print_summary(d, b);
	for (uint32_t part = 0; part < d->parts.n; part++) {
		print_part(d, from, part, b);
		from = part_end(d, from, part);
	}
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static void json_data(const diff_data *x, strbuf *b)
{
	if (!x->has_elements) {
		member_text(b, "elements", NULL);
		return;
	}
	member_int(b, "elements", (int64_t)x->elements);
	member_int(b, "differ", (int64_t)x->differ);
	if (!x->has_numbers)
		return;
	member_int(b, "nan_on_one_side", (int64_t)x->nans);
	if (isfinite(x->largest))
		member_number(b, "largest", x->largest);
	else
		member_text(b, "largest", "inf");
}

static void json_fact(const diff_fact *f, strbuf *b)
{
	member_open(b, NULL, '{');
	member_text(b, "what", f->what);
	member_text(b, "before", f->before);
	member_text(b, "after", f->after);
	if (f->data)
		json_data(f->data, b);
	strbuf_putc(b, '}');
}

static void json_item(const diff *d, const diff_item *i, strbuf *b)
{
	member_line(b, 6);
	member_open(b, NULL, '{');
	member_text(b, "change", change_names[i->change]);
	member_text(b, "name", i->name);
	member_open(b, "facts", '[');
	for (uint32_t k = 0; k < i->n; k++)
		json_fact(&d->facts.at[i->first + k], b);
	strbuf_puts(b, "]}");
}

static void json_section(const diff *d, uint32_t from, uint32_t part, unsigned section, strbuf *b)
{
	const uint64_t *c = d->parts.at[part].count[section];
	uint64_t shown = 0;
	member_line(b, 4);
	member_open(b, NULL, '{');
	member_text(b, "section", section_names[section]);
	for (unsigned i = 0; i < DIFF_CHANGE_COUNT; i++)
		member_int(b, change_names[i], (int64_t)c[i]);
	member_open(b, "items", '[');
	for (uint32_t i = from; i < d->items.n && d->items.at[i].part == part; i++)
		if (d->items.at[i].section == section) {
			json_item(d, &d->items.at[i], b);
			shown++;
		}
	strbuf_putc(b, ']');
	member_int(b, "left_out", (int64_t)(differences(c) - shown));
	strbuf_putc(b, '}');
}

void diff_print_json(const diff *d, strbuf *b)
{
	uint32_t from = 0;
	strbuf_putc(b, '{');
	member_bool(b, "differ", diff_any(d));
	member_open(b, "parts", '[');
	for (uint32_t part = 0; part < d->parts.n; part++) {
		const diff_part *p = &d->parts.at[part];
		member_line(b, 2);
		member_open(b, NULL, '{');
		member_text(b, "part", p->name);
		member_open(b, "sections", '[');
		for (unsigned s = 0; s < DIFF_SECTION_COUNT; s++)
			if (differences(p->count[s]) || p->count[s][DIFF_SAME])
				json_section(d, from, part, s, b);
		strbuf_puts(b, "]}");
		from = part_end(d, from, part);
	}
	strbuf_puts(b, "]}\n");
}
