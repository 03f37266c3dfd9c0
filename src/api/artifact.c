/* The public functions about artifacts that need no torch: thin covers over src/file, and cutting a file in two. */
#include "file/artifact.h"

#include <string.h>

#include "base/options.h"
#include "file/signature.h"
#include "plan/view.h"
#include "split/early.h"
#include "split/frontier.h"

static clv_status read_options(const clv_open_options *given, clv_open_options *out)
{
	TRY(options_read(out, sizeof *out, given, "clv_open_options"));
	if (out->nallow_operators && !out->allow_operators)
		return fail(CLV_E_INVALID, "clv_open_options.allow_operators is NULL");
	if (!out->trusted_keys != !out->ntrusted_keys)
		return fail(CLV_E_INVALID, "clv_open_options.trusted_keys %s", out->trusted_keys ? "has no key" : "is NULL");
	for (uint32_t i = 0; i < out->ntrusted_keys; i++)
		if (!out->trusted_keys[i])
			return fail(CLV_E_INVALID, "clv_open_options.trusted_keys[%u] is NULL", i);
	return CLV_OK;
}

clv_status clv_artifact_open(const char *path, const clv_open_options *options, clv_artifact **out)
{
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	if (!path || !out)
		return fail(CLV_E_INVALID, "clv_artifact_open needs a path and a place for the artifact");
	TRY(read_options(options, &o));
	return artifact_open(path, &o, out);
}

clv_status clv_artifact_parse(const void *data, size_t size, const clv_open_options *options, clv_artifact **out)
{
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	if (!data || !out)
		return fail(CLV_E_INVALID, "clv_artifact_parse needs bytes and a place for the artifact");
	if ((uintptr_t)data % ST_MAPPED_ALIGN)
		return fail(CLV_E_INVALID, "the bytes do not start at a multiple of %d", ST_MAPPED_ALIGN);
	TRY(read_options(options, &o));
	return artifact_parse(data, size, &o, out);
}

void clv_artifact_free(clv_artifact *a)
{
	artifact_free(a);
}

clv_status clv_artifact_sign(const char *path, const char *key, const clv_open_options *options, const char *output)
{
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	if (!path || !key)
		return fail(CLV_E_INVALID, "clv_artifact_sign needs a path and a key");
	TRY(read_options(options, &o));
	return artifact_sign(path, key, &o, output);
}

const char *clv_artifact_signer(const clv_artifact *a)
{
	return a ? a->signer : NULL;
}

bool clv_artifact_signature_verified(const clv_artifact *a)
{
	return a && artifact_signature_verified(a);
}

bool clv_artifact_vouched(const clv_artifact *a, const char **why)
{
	const char *reason = a ? artifact_unvouched(a) : NULL;
	if (why)
		*why = reason;
	return a && !reason;
}

clv_status clv_key_new(const char *path)
{
	return path ? signature_new_key(path) : fail(CLV_E_INVALID, "clv_key_new needs a path");
}

clv_status clv_key_fingerprint(const char *key, char **out)
{
	char text[FINGERPRINT_TEXT];
	if (!key || !out)
		return fail(CLV_E_INVALID, "clv_key_fingerprint needs a key and a place for the text");
	TRY(signature_fingerprint(key, text));
	*out = mem_strdup(text, FINGERPRINT_TEXT - 1);
	return *out ? CLV_OK : fail_nomem();
}

/* The artifact stays as it is; writing it looks up where its tensors lie. */
clv_status clv_artifact_save(const clv_artifact *a, const char *path)
{
	if (!a || !path)
		return fail(CLV_E_INVALID, "clv_artifact_save needs an artifact and a path");
	return artifact_save((artifact *)a, path);
}

uint32_t clv_artifact_entry_count(const clv_artifact *a)
{
	return a ? a->digests.n : 0;
}

clv_status clv_artifact_check_entry(const clv_artifact *a, uint32_t i, int64_t *bytes)
{
	if (i >= clv_artifact_entry_count(a))
		return fail(CLV_E_INVALID, "clv_artifact_check_entry: there is no piece %u", i);
	TRY(artifact_check_entry(a, i));
	if (bytes)
		*bytes = (int64_t)st_at(a->file, i)->nbytes;
	return CLV_OK;
}

bool clv_is_artifact(const void *data, size_t size)
{
	return data && artifact_looks_like(data, size);
}

const char *clv_artifact_part(const clv_artifact *a)
{
	return a ? a->part : "";
}

const char *clv_artifact_split_id(const clv_artifact *a)
{
	return a ? a->split_id : "";
}

const char *clv_artifact_boundary(const clv_artifact *a)
{
	return a ? a->boundary : "";
}

const char *clv_artifact_batch(const clv_artifact *a)
{
	return a ? a->batch : "";
}

bool clv_artifact_has_weights(const clv_artifact *a)
{
	return a && a->weights;
}

bool clv_artifact_any_size(const clv_artifact *a)
{
	return a && a->any_size;
}

bool clv_artifact_about(const clv_artifact *a, uint32_t i, const char **key, const char **text)
{
	if (!a || !key || !text || i >= a->notes.n)
		return false;
	*key = a->notes.at[i].key;
	*text = a->notes.at[i].text;
	return true;
}

uint32_t clv_artifact_plan_count(const clv_artifact *a)
{
	return a ? a->plans.n : 0;
}

const clv_plan *clv_artifact_plan(const clv_artifact *a, uint32_t i)
{
	return a && i < a->plans.n ? a->plans.at[i].p : NULL;
}

clv_status clv_artifact_plan_info(const clv_artifact *a, uint32_t i, clv_plan_info *out)
{
	if (!a || !out || i >= a->plans.n)
		return fail(CLV_E_INVALID, "clv_artifact_plan_info: there is no such plan, or no place for it");
	const artifact_plan *e = &a->plans.at[i];
	uint32_t n = artifact_point_size(e->p);
	clv_plan_info info = {
		.signature = e->signature,
		.first = e->first,
		.end = e->end,
		.cut = e->cut == NONE ? -1 : (int64_t)e->cut,
		.npoints = n ? e->points.n / n : 0,
		.point_size = n,
		.points = e->points.at,
	};
	return options_write(out, &info, sizeof info, "clv_plan_info");
}

bool clv_artifact_fixed_size(const clv_artifact *a, uint32_t number, uint32_t i, const char **name, int64_t *size)
{
	if (!a || !name || !size || number >= a->plans.n || i >= a->plans.at[number].fixed.n)
		return false;
	*name = a->plans.at[number].fixed.at[i].name;
	*size = a->plans.at[number].fixed.at[i].value;
	return true;
}

static const artifact_segment *find_segment(const artifact *a, uint32_t number, uint32_t i)
{
	return i < clv_artifact_segment_count(a, number) ? &a->plans.at[number].segments.at[i] : NULL;
}

uint32_t clv_artifact_segment_count(const clv_artifact *a, uint32_t number)
{
	return a && number < a->plans.n ? a->plans.at[number].segments.n : 0;
}

clv_status clv_artifact_segment(const clv_artifact *a, uint32_t number, uint32_t i, clv_segment_info *out)
{
	const artifact_segment *s = find_segment(a, number, i);
	if (!s || !out)
		return fail(CLV_E_INVALID, "clv_artifact_segment: there is no such segment, or no place for it");
	clv_segment_info info = {
		.backend = s->backend,
		.first = s->first,
		.end = s->end,
		.nsymbols = s->sizes.n,
		.sizes = s->sizes.n ? &s->sizes.at[0].low : NULL, /* pairs */
	};
	for (uint32_t k = 0; k < s->members.n; k++)
		info.bytes += (int64_t)s->members.at[k].n;
	return options_write(out, &info, sizeof info, "clv_segment_info");
}

static bool give_note(const artifact_note *at, uint32_t n, uint32_t k, const char **key, const char **text)
{
	if (k >= n || !key || !text)
		return false;
	*key = at[k].key;
	*text = at[k].text;
	return true;
}

bool clv_artifact_segment_need(const clv_artifact *a, uint32_t number, uint32_t i, uint32_t k, const char **key,
                               const char **text)
{
	const artifact_segment *s = find_segment(a, number, i);
	return s && give_note(s->needs.at, s->needs.n, k, key, text);
}

bool clv_artifact_segment_fact(const clv_artifact *a, uint32_t number, uint32_t i, uint32_t k, const char **key,
                               const char **text)
{
	const artifact_segment *s = find_segment(a, number, i);
	return s && give_note(s->facts.at, s->facts.n, k, key, text);
}

bool clv_artifact_fallback(const clv_artifact *a, uint32_t number, uint32_t i, uint32_t *n, const char **reason)
{
	if (!a || number >= a->plans.n || i >= a->plans.at[number].fallbacks.n || !n || !reason)
		return false;
	*n = a->plans.at[number].fallbacks.at[i].node;
	*reason = a->plans.at[number].fallbacks.at[i].reason;
	return true;
}

uint32_t clv_artifact_tensor_count(const clv_artifact *a)
{
	return a ? a->tensors->tensors.n : 0;
}

clv_status clv_artifact_tensor(const clv_artifact *a, uint32_t i, clv_tensor_info *out)
{
	if (!a || !out || i >= a->tensors->tensors.n)
		return fail(CLV_E_INVALID, "clv_artifact_tensor: there is no such tensor, or no place for it");
	const payload_tensor *t = &a->tensors->tensors.at[i];
	size_t bytes;
	TRY(shape_bytes(t->dtype, t->ndim, t->sizes, &bytes));
	clv_tensor_info info = {
		.name = t->label,
		.dtype = dtype_name(t->dtype),
		.ndim = t->ndim,
		.shape = t->sizes,
		.bytes = (int64_t)bytes,
		.trainable = t->requires_grad,
		.entry = a->tensors->memories.n ? a->tensors->memories.at[t->memory].entry : t->label,
	};
	if (a->file) /* what was only made has no digests yet */
		digest_print(a->digests.at[st_find(a->file, info.entry)], info.digest);
	return options_write(out, &info, sizeof info, "clv_tensor_info");
}

/* ---- cutting ---------------------------------------------------------------------------------------------------- */

/* The place that was chosen in the first plan, in another one; it has to be safe there too. */
static clv_status match_cut(const artifact *a, uint32_t i, node_id position, const clv_split_options *o, node_id *out)
{
	const plan *p = a->plans.at[i].p;
	clv_frontiers *f;
	node_id at;
	TRY(place_match(a->plans.at[0].p, position, p, &at));
	if (at == NONE)
		return fail(CLV_E_NOT_FOUND, "the plan for other sizes has no such place");
	TRY(clv_frontiers_create(p, NULL, &f));
	clv_status st = at < clv_frontiers_count(f) ? clv_frontiers_check(f, at, o->objective)
	                                            : fail(CLV_E_NOT_FOUND, "the plan for other sizes cannot be cut there");
	clv_frontiers_free(f);
	*out = at + 1;
	return st;
}

static clv_status choose_cut(const artifact *a, const clv_split_options *o, node_id *position)
{
	clv_frontiers *f;
	TRY(clv_frontiers_create(a->plans.at[0].p, &o->sizes, &f));
	clv_status st = clv_frontiers_choose(f, o->boundary, o->objective, position);
	clv_frontiers_free(f);
	return st;
}

typedef struct new_cuts {
	node_id *at;
	plan **plans; /* with guards of the suffix in the prefix; NULL: as it is */
	uint32_t n;
} new_cuts;

static void cuts_free(new_cuts *c)
{
	for (uint32_t i = 0; c->plans && i < c->n; i++)
		plan_free(c->plans[i]);
	mem_free(c->plans);
	mem_free(c->at);
}

/* Where each plan is cut: as asked for, or as the file says. */
static clv_status find_places(const artifact *a, const clv_split_options *o, node_id *cuts)
{
	node_id position = NONE;
	if (o->boundary)
		TRY(choose_cut(a, o, &position));
	for (uint32_t i = 0; i < a->plans.n; i++) {
		if (!o->boundary) {
			cuts[i] = a->plans.at[i].cut;
			if (cuts[i] == NONE)
				return fail(CLV_E_INVALID, "plan %u of the file is not cut yet; say where with a boundary", i);
		} else if (i == 0) {
			cuts[i] = position + 1;
		} else {
			clv_status st = match_cut(a, i, position, o, &cuts[i]);
			if (st != CLV_OK)
				return st == CLV_E_NOMEM ? st : fail_more(st, "plan %u", i);
		}
	}
	return CLV_OK;
}

/* As many in each plan as can move in all of them. */
static clv_status move_guards(const artifact *a, new_cuts *out)
{
	uint32_t most = NONE;
	for (uint32_t i = 0; i < a->plans.n; i++) {
		node_id cut = out->at[i];
		uint32_t n = most;
		TRY(guards_early(a->plans.at[i].p, &cut, &n, &out->plans[i]));
		plan_free(out->plans[i]);
		out->plans[i] = NULL;
		most = n < most ? n : most;
	}
	for (uint32_t i = 0; i < a->plans.n && most; i++) {
		uint32_t n = most;
		TRY(guards_early(a->plans.at[i].p, &out->at[i], &n, &out->plans[i]));
	}
	return CLV_OK;
}

/* cuts_free in any case. */
static clv_status find_cuts(const artifact *a, const clv_split_options *o, new_cuts *out)
{
	*out = (new_cuts){mem_ids(a->plans.n + 1), mem_alloc((a->plans.n + 1) * sizeof *out->plans), a->plans.n};
	TRY_MEM(out->at && out->plans);
	TRY(find_places(a, o, out->at));
	return o->boundary ? move_guards(a, out) : CLV_OK;
}

/* The name of a split, as the Python side makes it: the first plan and the place. */
static clv_status name_split(artifact *a, const char *boundary)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "%s-%u", a->plans.at[0].signature, a->plans.at[0].cut - 1);
	TRY(arena_take(&a->arena, &b, &a->split_id));
	return artifact_text(a, boundary, &a->boundary);
}

clv_status artifact_cut(artifact *a, const clv_split_options *o)
{
	new_cuts cuts;
	clv_status st = find_cuts(a, o, &cuts);
	for (uint32_t i = 0; st == CLV_OK && i < a->plans.n; i++) {
		artifact_plan *e = &a->plans.at[i];
		plan *old = e->p;
		e->cut = cuts.at[i];
		e->p = cuts.plans[i] ? cuts.plans[i] : old;
		cuts.plans[i] = e->p == old ? NULL : old;
	}
	cuts_free(&cuts);
	return st == CLV_OK && o->boundary ? name_split(a, o->boundary) : st;
}

enum { PREFIX_HAS = 1, SUFFIX_HAS = 2, CHANGED = 4 };

typedef struct holding {
	const char *name;
	uint8_t marks;
} holding;

typedef VEC(holding) holdings;

static clv_status hold(holdings *h, const plan *p, value_id v, uint8_t marks)
{
	str_id name = p->values.at[v].name;
	return name == NONE ? CLV_OK : vec_push(h, ((holding){plan_s(p, name), marks}));
}

/* The tensors of the model that a half reads or changes; those on one memory change together. */
static clv_status hold_half(const plan *p, const view *v, uint8_t half, holdings *h)
{
	bool *written;
	TRY(view_written(v, &written));
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < v->externals.n && st == CLV_OK; i++) {
		value_id root = alias_root(p, v->externals.at[i]);
		uint8_t marks = written[root] ? half | CHANGED : half;
		st = hold(h, p, v->externals.at[i], marks);
		if (st == CLV_OK)
			st = hold(h, p, root, marks);
	}
	for (uint32_t i = 0; i < v->rebinds.n && st == CLV_OK; i++)
		st = hold(h, p, p->rebinds.at[v->rebinds.at[i]].target, half | CHANGED);
	mem_free(written);
	return st;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const holding *)a)->name, ((const holding *)b)->name);
}

static clv_status judge_holdings(holdings *h)
{
	uint8_t marks = 0;
	if (h->n)
		qsort(h->at, h->n, sizeof *h->at, by_name);
	for (uint32_t i = 0; i < h->n; i++) {
		bool same = i && !strcmp(h->at[i].name, h->at[i - 1].name);
		marks = same ? marks | h->at[i].marks : h->at[i].marks;
		if (marks == (PREFIX_HAS | SUFFIX_HAS | CHANGED))
			return fail(CLV_E_UNSUPPORTED,
			            "both halves have %s and one of them changes it: each would have its own, cut elsewhere",
			            h->at[i].name);
	}
	return CLV_OK;
}

clv_status artifact_check_apart(const artifact *a, const node_id *cuts)
{
	holdings h = {0};
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < a->plans.n && st == CLV_OK; i++) {
		const plan *p = a->plans.at[i].p;
		node_id ends[] = {0, cuts ? cuts[i] : a->plans.at[i].cut, p->nodes.n};
		for (unsigned half = 0; half < 2 && st == CLV_OK; half++) {
			view v = {0};
			st = view_range(p, ends[half], ends[half + 1], &v);
			if (st == CLV_OK)
				st = hold_half(p, &v, half ? SUFFIX_HAS : PREFIX_HAS, &h);
			view_free(&v);
		}
	}
	if (st == CLV_OK)
		st = judge_holdings(&h);
	vec_free(&h);
	return st;
}

clv_status artifact_restrict(artifact *a, const char *part)
{
	bool apart = strcmp(part, "all") != 0;
	for (uint32_t i = 0; apart && i < a->plans.n; i++)
		if (a->plans.at[i].cut == NONE)
			return fail(CLV_E_INVALID, "the model is not cut: it has no %.32s", part);
	if (apart)
		TRY(artifact_check_apart(a, NULL));
	for (uint32_t i = 0; apart && i < a->plans.n; i++) {
		artifact_plan *e = &a->plans.at[i];
		if (strcmp(part, "prefix") == 0)
			e->end = e->cut;
		else if (strcmp(part, "suffix") == 0)
			e->first = e->cut;
		else
			return fail(CLV_E_INVALID, "there is no part \"%.32s\"; all, prefix and suffix are", part);
	}
	return artifact_text(a, part, &a->part);
}

static clv_status take_half(const artifact *a, const clv_split_options *o, const node_id *cuts, bool prefix,
                            artifact **out)
{
	artifact *part = NULL;
	artifact_range *ranges = mem_alloc(a->plans.n * sizeof *ranges);
	TRY_MEM(ranges);
	for (uint32_t i = 0; i < a->plans.n; i++)
		ranges[i] = prefix ? (artifact_range){0, cuts[i], cuts[i]}
		                   : (artifact_range){cuts[i], a->plans.at[i].p->nodes.n, cuts[i]};
	clv_status st = artifact_take(a, prefix ? "prefix" : "suffix", ranges, &part);
	if (st == CLV_OK && o->boundary)
		st = name_split(part, o->boundary);
	mem_free(ranges);
	if (st == CLV_OK)
		*out = part;
	else
		artifact_free(part);
	return st;
}

static clv_status write_half(const artifact *a, const clv_split_options *o, const node_id *cuts, bool prefix,
                             const char *path, st_pending *out)
{
	artifact *part;
	TRY(take_half(a, o, cuts, prefix, &part));
	clv_status st = artifact_write(part, path, out);
	artifact_free(part);
	return st;
}

/* Both are written before either takes its place, which may be that of the whole. */
static clv_status write_halves(const artifact *a, const clv_split_options *o, const node_id *cuts,
                               const char *prefix_path, const char *suffix_path)
{
	st_pending prefix = {0}, suffix = {0};
	clv_status st = artifact_check_apart(a, cuts);
	if (st == CLV_OK && prefix_path)
		st = write_half(a, o, cuts, true, prefix_path, &prefix);
	if (st == CLV_OK && suffix_path)
		st = write_half(a, o, cuts, false, suffix_path, &suffix);
	if (st == CLV_OK && prefix.path && suffix.path && strcmp(prefix.path, suffix.path) == 0)
		st = fail(CLV_E_INVALID, "both halves would be the same file, %s", prefix.path); /* links */
	if (st == CLV_OK)
		st = st_commit(&prefix);
	if (st == CLV_OK)
		st = st_commit(&suffix);
	st_drop(&prefix);
	st_drop(&suffix);
	return st;
}

/* The artifact with its nodes in the order that the cuts want; *moved is NULL where that is the order they have. */
static clv_status reorder_for(const artifact *a, new_cuts *cuts, artifact **moved)
{
	bool any = false;
	for (uint32_t i = 0; i < a->plans.n; i++)
		any |= cuts->plans[i] != NULL;
	if (!any)
		return CLV_OK;
	clv_status st = artifact_reordered(a, cuts->plans, moved);
	memset(cuts->plans, 0, cuts->n * sizeof *cuts->plans); /* taken */
	return st;
}

static clv_status split(const artifact *a, const clv_split_options *o, const char *prefix_path, const char *suffix_path)
{
	new_cuts cuts;
	artifact *moved = NULL;
	clv_status st = find_cuts(a, o, &cuts);
	if (st == CLV_OK)
		st = reorder_for(a, &cuts, &moved);
	if (st == CLV_OK)
		st = write_halves(moved ? moved : a, o, cuts.at, prefix_path, suffix_path);
	artifact_free(moved);
	cuts_free(&cuts);
	return st;
}

clv_status artifact_half(const artifact *a, const clv_split_options *o, bool prefix, artifact **out)
{
	new_cuts cuts;
	artifact *moved = NULL, *half = NULL;
	if (strcmp(a->part, "all") != 0)
		return fail(CLV_E_INVALID, "this file holds the %s of a model; only a whole one can be cut", a->part);
	clv_status st = find_cuts(a, o, &cuts);
	if (st == CLV_OK)
		st = reorder_for(a, &cuts, &moved);
	if (st == CLV_OK)
		st = artifact_check_apart(moved ? moved : a, cuts.at);
	if (st == CLV_OK)
		st = take_half(moved ? moved : a, o, cuts.at, prefix, &half);
	artifact_free(moved);
	cuts_free(&cuts);
	if (st == CLV_OK)
		st = artifact_ready(half);
	if (st == CLV_OK)
		*out = half;
	else
		artifact_free(half);
	return st;
}

clv_status clv_artifact_split(const clv_artifact *a, const clv_split_options *options, const char *prefix_path,
                              const char *suffix_path)
{
	clv_split_options o = CLV_SPLIT_OPTIONS_INIT;
	if (!a)
		return fail(CLV_E_INVALID, "clv_artifact_split needs an artifact");
	TRY(options_read(&o, sizeof o, options, "clv_split_options"));
	if (strcmp(a->part, "all") != 0)
		return fail(CLV_E_INVALID, "this file holds the %s of a model; only a whole one can be cut", a->part);
	if (prefix_path && suffix_path && strcmp(prefix_path, suffix_path) == 0)
		return fail(CLV_E_INVALID, "both halves would be the same file, %s", prefix_path);
	return split(a, &o, prefix_path, suffix_path);
}
