/* Compares two artifacts: what each says about itself, its plans, its tensors by name. */
#include "file/diff.h"

#include <stdio.h>
#include <string.h>

typedef struct files {
	diff *d;
	const artifact *a, *b;
	clv_diff_weights how;
} files;

static clv_status compare_quoted(diff *d, const char *what, const char *before, const char *after)
{
	if (before[0])
		strbuf_quoted(&d->before, before, strlen(before));
	if (after[0])
		strbuf_quoted(&d->after, after, strlen(after));
	return diff_compare(d, "", what);
}

static clv_status compare_ints(diff *d, const char *what, int64_t before, int64_t after)
{
	strbuf_int(&d->before, before);
	strbuf_int(&d->after, after);
	return diff_compare(d, "", what);
}

static clv_status compare_bools(diff *d, const char *what, bool before, bool after)
{
	strbuf_puts(&d->before, before ? "yes" : "no");
	strbuf_puts(&d->after, after ? "yes" : "no");
	return diff_compare(d, "", what);
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

static clv_status diff_file(files *f)
{
	const artifact *a = f->a, *b = f->b;
	diff_open(f->d, DIFF_FILE);
	TRY(compare_quoted(f->d, "part", a->part, b->part));
	TRY(compare_quoted(f->d, "split", a->split_id, b->split_id));
	TRY(compare_quoted(f->d, "boundary", a->boundary, b->boundary));
	TRY(compare_quoted(f->d, "batch", a->batch, b->batch));
	TRY(compare_bools(f->d, "has weights", a->weights, b->weights));
	TRY(compare_bools(f->d, "any size", a->any_size, b->any_size));
	TRY(compare_ints(f->d, "version of the weights", a->weight_version, b->weight_version));
	strbuf_puts(&f->d->name, "file");
	return diff_close(f->d);
}

static void name_quoted(diff *d, const char *name)
{
	strbuf_quoted(&d->name, name, strlen(name));
}

static clv_status lone_note(files *f, const artifact_note *n, diff_change change)
{
	diff_open(f->d, DIFF_ABOUT);
	name_quoted(f->d, n->key);
	strbuf_quoted(&f->d->after, n->text, strlen(n->text));
	return diff_one(f->d, DIFF_ABOUT, change);
}

static clv_status compare_notes(files *f, const text_index *in_a, const text_index *in_b)
{
	for (uint32_t i = 0; i < f->a->notes.n; i++) {
		const artifact_note *n = &f->a->notes.at[i];
		uint32_t to = text_index_find(in_b, n->key);
		if (to == TABLE_NONE) {
			TRY(lone_note(f, n, DIFF_REMOVED));
			continue;
		}
		diff_open(f->d, DIFF_ABOUT);
		TRY(compare_quoted(f->d, "text", n->text, f->b->notes.at[to].text));
		name_quoted(f->d, n->key);
		TRY(diff_close(f->d));
	}
	for (uint32_t i = 0; i < f->b->notes.n; i++)
		if (text_index_find(in_a, f->b->notes.at[i].key) == TABLE_NONE)
			TRY(lone_note(f, &f->b->notes.at[i], DIFF_ADDED));
	return CLV_OK;
}

static clv_status diff_notes(files *f)
{
	text_index a, b = {0};
	clv_status st = text_index_new(f->a->notes.at, f->a->notes.n, sizeof *f->a->notes.at, &a);
	if (st == CLV_OK)
		st = text_index_new(f->b->notes.at, f->b->notes.n, sizeof *f->b->notes.at, &b);
	if (st == CLV_OK)
		st = compare_notes(f, &a, &b);
	text_index_free(&a);
	text_index_free(&b);
	return st;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

static void dims_list_text(const payload_tensor *t, const int64_t *dims, strbuf *b)
{
	strbuf_putc(b, '[');
	for (uint32_t i = 0; i < t->ndim; i++) {
		strbuf_puts(b, i ? "," : "");
		strbuf_int(b, dims[i]);
	}
	strbuf_putc(b, ']');
}

/* Where its memory is: under whose name, how far from its start and from a round address. */
static void memory_text(const artifact *a, const payload_tensor *t, strbuf *b)
{
	const payload_memory *m = &a->tensors->memories.at[t->memory];
	strbuf_quoted(b, m->entry, strlen(m->entry));
	if (t->offset || m->lead)
		strbuf_printf(b, " at %zu, alignment %u", t->offset, m->lead);
}

static clv_status compare_dims(files *f, const char *what, const payload_tensor *x, const int64_t *a,
                               const payload_tensor *y, const int64_t *b)
{
	dims_list_text(x, a, &f->d->before);
	dims_list_text(y, b, &f->d->after);
	return diff_compare(f->d, "", what);
}

static clv_status tensor_facts(files *f, uint32_t a, uint32_t b)
{
	const payload_tensor *x = &f->a->tensors->tensors.at[a], *y = &f->b->tensors->tensors.at[b];
	diff *d = f->d;
	strbuf_puts(&d->before, dtype_name(x->dtype));
	strbuf_puts(&d->after, dtype_name(y->dtype));
	TRY(diff_compare(d, "", "dtype"));
	TRY(compare_dims(f, "shape", x, x->sizes, y, y->sizes));
	if (!diff_pending(d)) /* of another shape they say nothing more */
		TRY(compare_dims(f, "strides", x, x->strides, y, y->strides));
	TRY(compare_quoted(d, "device", x->device, y->device));
	TRY(compare_bools(d, "trainable", x->requires_grad, y->requires_grad));
	memory_text(f->a, x, &d->before);
	memory_text(f->b, y, &d->after);
	TRY(diff_compare(d, "", "memory"));
	return data_diff(d, f->a, a, f->b, b, f->how);
}

static clv_status lone_tensor(files *f, const payload_tensor *t, diff_change change)
{
	diff_open(f->d, DIFF_WEIGHTS);
	name_quoted(f->d, t->label);
	strbuf_puts(&f->d->after, dtype_name(t->dtype));
	dims_list_text(t, t->sizes, &f->d->after);
	return diff_one(f->d, DIFF_WEIGHTS, change);
}

/* Constants of plans have names that only count them; they are compared with their plans. */
static bool *constants_of(const artifact *a)
{
	bool *is = mem_alloc((size_t)a->tensors->tensors.n + 1);
	for (uint32_t i = 0; is && i < a->plans.n; i++)
		for (uint32_t k = 0; k < a->plans.at[i].consts.n; k++)
			is[a->plans.at[i].consts.at[k].tensor] = true;
	return is;
}

static uint32_t find_tensor(const artifact *a, const bool *constant, const char *label)
{
	uint32_t t = payload_find(a->tensors, label);
	return t == NONE || constant[t] ? NONE : t;
}

static clv_status compare_tensors(files *f, const bool *in_a, const bool *in_b)
{
	const payload *a = f->a->tensors, *b = f->b->tensors;
	for (uint32_t i = 0; i < a->tensors.n; i++) {
		uint32_t to = in_a[i] ? NONE : find_tensor(f->b, in_b, a->tensors.at[i].label);
		if (in_a[i])
			continue;
		if (to == NONE) {
			TRY(lone_tensor(f, &a->tensors.at[i], DIFF_REMOVED));
			continue;
		}
		diff_open(f->d, DIFF_WEIGHTS);
		TRY(tensor_facts(f, i, to));
		if (diff_pending(f->d))
			name_quoted(f->d, a->tensors.at[i].label);
		TRY(diff_close(f->d));
	}
	for (uint32_t i = 0; i < b->tensors.n; i++)
		if (!in_b[i] && find_tensor(f->a, in_a, b->tensors.at[i].label) == NONE)
			TRY(lone_tensor(f, &b->tensors.at[i], DIFF_ADDED));
	return CLV_OK;
}

static clv_status diff_tensors(files *f)
{
	bool *in_a = constants_of(f->a), *in_b = constants_of(f->b);
	clv_status st = in_a && in_b ? compare_tensors(f, in_a, in_b) : fail_nomem();
	mem_free(in_a);
	mem_free(in_b);
	return st;
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

static void points_text(const artifact_plan *e, strbuf *b)
{
	uint32_t n = artifact_point_size(e->p);
	for (uint32_t i = 0; i < e->points.n; i++) {
		strbuf_puts(b, i == 0 ? "" : i % n ? "," : " ");
		strbuf_int(b, e->points.at[i]);
	}
}

static void asked_text(const artifact_plan *e, strbuf *b)
{
	for (uint32_t i = 0; i < e->same.n; i++)
		if (e->same.at[i] != i)
			strbuf_printf(b, "%sinput %u is input %u", b->n ? ", " : "", i, e->same.at[i]);
	if (e->same.n && b->n == 0)
		strbuf_puts(b, "all are different tensors");
	for (uint32_t i = 0; i < e->grads.n; i++)
		if (e->grads.at[i] >= 0)
			strbuf_printf(b, "%sinput %u %s grad", b->n ? ", " : "", i, e->grads.at[i] ? "requires" : "needs no");
}

static void range_text(const artifact_plan *e, strbuf *b)
{
	strbuf_printf(b, "%u to %u", e->first, e->end);
}

/* The digest of an entry is taken for its data, as those of tensors are. */
static void member_text(const artifact *a, uint32_t number, uint32_t segment, const char *name, strbuf *b)
{
	strbuf entry = STRBUF_INIT;
	char text[DIGEST_TEXT];
	strbuf_printf(&entry, "%s%u.%u.%s", PAYLOAD_SEGMENT, number, segment, name);
	b->failed |= entry.failed;
	if (!entry.failed) {
		digest_print(a->digests.at[st_find(a->file, entry.at)], text);
		strbuf_printf(b, "%s %s\n", name, text);
	}
	strbuf_free(&entry);
}

/* What runs: everything but what was measured. */
static void code_text(const files *f, const artifact *a, uint32_t number, uint32_t segment, strbuf *b)
{
	const artifact_segment *s = &a->plans.at[number].segments.at[segment];
	for (uint32_t i = 0; i < s->members.n && f->how != CLV_DIFF_NONE; i++)
		member_text(a, number, segment, s->members.at[i].name, b);
	for (uint32_t i = 0; i < s->needs.n; i++)
		strbuf_printf(b, "%s=%s\n", s->needs.at[i].key, s->needs.at[i].text);
	for (uint32_t i = 0; i < s->sizes.n; i++)
		strbuf_printf(b, "%lld %lld\n", (long long)s->sizes.at[i].low, (long long)s->sizes.at[i].high);
	for (uint32_t i = 0; i < s->in_order.n; i++)
		strbuf_printf(b, "%u,", s->in_order.at[i]);
	for (uint32_t i = 0; i < s->out_order.n; i++)
		strbuf_printf(b, ";%u", s->out_order.at[i]);
}

/* Each with a few digits that stand for its code. */
static void segments_text(const files *f, const artifact *a, uint32_t number, strbuf *b)
{
	strbuf code = STRBUF_INIT;
	for (uint32_t i = 0; i < a->plans.at[number].segments.n; i++) {
		const artifact_segment *s = &a->plans.at[number].segments.at[i];
		char text[DIGEST_TEXT];
		code.n = 0;
		code_text(f, a, number, i, &code);
		digest_print(digest_of(code.at, code.n), text);
		strbuf_printf(b, "%s%s %u to %u %.8s", i ? ", " : "", s->backend, s->first, s->end, text);
	}
	b->failed |= code.failed;
	strbuf_free(&code);
}

static void fallbacks_text(const artifact_plan *e, strbuf *b)
{
	for (uint32_t i = 0; i < e->fallbacks.n; i++) {
		const artifact_fallback *f = &e->fallbacks.at[i];
		strbuf_printf(b, "%s%u ", i ? ", " : "", f->node);
		strbuf_quoted(b, f->reason, strlen(f->reason));
	}
}

static void cut_text(const artifact_plan *e, strbuf *b)
{
	if (e->cut != NONE)
		strbuf_printf(b, "before node %u", e->cut);
}

static clv_status compare_entries(files *f, const char *what, void (*text)(const artifact_plan *e, strbuf *b),
                                  const artifact_plan *x, const artifact_plan *y)
{
	text(x, &f->d->before);
	text(y, &f->d->after);
	return diff_compare(f->d, "", what);
}

static clv_status diff_entry(files *f, uint32_t a, uint32_t b)
{
	const artifact_plan *x = &f->a->plans.at[a], *y = &f->b->plans.at[b];
	diff_open(f->d, DIFF_PLANS);
	TRY(compare_ints(f->d, "number", a, b));
	TRY(compare_quoted(f->d, "signature", x->signature, y->signature));
	TRY(compare_entries(f, "nodes in this file", range_text, x, y));
	TRY(compare_entries(f, "cut", cut_text, x, y));
	TRY(compare_ints(f->d, "stored outputs", x->nstores, y->nstores));
	TRY(compare_entries(f, "points proven", points_text, x, y));
	TRY(compare_entries(f, "asked of inputs", asked_text, x, y));
	segments_text(f, f->a, a, &f->d->before);
	segments_text(f, f->b, b, &f->d->after);
	TRY(diff_compare(f->d, "", "compiled segments"));
	TRY(compare_entries(f, "nodes not compiled", fallbacks_text, x, y));
	strbuf_printf(&f->d->name, "plan %u", b);
	return diff_close(f->d);
}

static clv_status lone_entry(files *f, const artifact *a, uint32_t i, diff_change change)
{
	const artifact_plan *e = &a->plans.at[i];
	diff_open(f->d, DIFF_PLANS);
	strbuf_printf(&f->d->name, "plan %u", i);
	strbuf_quoted(&f->d->after, e->signature, strlen(e->signature));
	strbuf_printf(&f->d->after, " of %u nodes", e->p->nodes.n);
	return diff_one(f->d, DIFF_PLANS, change);
}

/* Plans with one signature are the same one; the others go by their order. */
static void pair_plans(const files *f, uint32_t *to_b, uint32_t *to_a)
{
	for (uint32_t i = 0; i < f->a->plans.n; i++)
		for (uint32_t k = 0; k < f->b->plans.n && to_b[i] == NONE; k++)
			if (to_a[k] == NONE && strcmp(f->a->plans.at[i].signature, f->b->plans.at[k].signature) == 0) {
				to_b[i] = k;
				to_a[k] = i;
			}
	for (uint32_t i = 0, k = 0; i < f->a->plans.n; i++) {
		while (k < f->b->plans.n && to_a[k] != NONE)
			k++;
		if (to_b[i] == NONE && k < f->b->plans.n) {
			to_b[i] = k;
			to_a[k] = i;
		}
	}
}

typedef struct plan_pair {
	const files *f;
	uint32_t a, b;
} plan_pair;

static clv_status constant_data(void *ctx, diff *d, value_id a, value_id b)
{
	const plan_pair *p = ctx;
	uint32_t x = artifact_tensor_of(p->f->a, p->a, a), y = artifact_tensor_of(p->f->b, p->b, b);
	if (x != NONE && y != NONE)
		return data_diff(d, p->f->a, x, p->f->b, y, p->f->how);
	return compare_bools(d, "data in this file", x != NONE, y != NONE);
}

static clv_status diff_plan_pair(files *f, uint32_t a, uint32_t b)
{
	char name[32] = "plan";
	plan_pair p = {f, a, b};
	diff_hooks hooks = {constant_data, &p};
	if (f->a->plans.n > 1 || f->b->plans.n > 1)
		snprintf(name, sizeof name, "plan %u", b);
	TRY(diff_part_add(f->d, name));
	return plan_diff(f->d, f->a->plans.at[a].p, f->b->plans.at[b].p, &hooks);
}

static clv_status diff_entries(files *f, const uint32_t *to_b, const uint32_t *to_a)
{
	for (uint32_t i = 0; i < f->a->plans.n; i++)
		TRY(to_b[i] == NONE ? lone_entry(f, f->a, i, DIFF_REMOVED) : diff_entry(f, i, to_b[i]));
	for (uint32_t i = 0; i < f->b->plans.n; i++)
		if (to_a[i] == NONE)
			TRY(lone_entry(f, f->b, i, DIFF_ADDED));
	return CLV_OK;
}

static clv_status diff_all(files *f, const uint32_t *to_b, const uint32_t *to_a)
{
	TRY(diff_part_add(f->d, "file"));
	TRY(diff_file(f));
	TRY(diff_notes(f));
	TRY(diff_entries(f, to_b, to_a));
	TRY(diff_tensors(f));
	for (uint32_t i = 0; i < f->a->plans.n; i++)
		if (to_b[i] != NONE)
			TRY(diff_plan_pair(f, i, to_b[i]));
	return CLV_OK;
}

clv_status artifact_diff(diff *d, const artifact *a, const artifact *b, clv_diff_weights how)
{
	files f = {d, a, b, how};
	uint32_t *to_b = mem_ids((size_t)a->plans.n + 1), *to_a = mem_ids((size_t)b->plans.n + 1);
	clv_status st = to_b && to_a ? CLV_OK : fail_nomem();
	if (st == CLV_OK) {
		pair_plans(&f, to_b, to_a);
		st = diff_all(&f, to_b, to_a);
	}
	mem_free(to_b);
	mem_free(to_a);
	return st;
}
