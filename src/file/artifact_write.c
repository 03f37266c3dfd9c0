/* Writes an artifact as a file: entries in mappable order, description, check of the header. */
#include <string.h>

#include "file/artifact.h"
#include "file/artifact_keys.h"
#include "file/artifact_packed.h"
#include "file/artifact_segments.h"
#include "file/json.h"
#include "file/training.h"

/* Torch's kernels take other ways for data that is not aligned to 64 bytes, and add up in another order. A tensor whose
   size is no multiple of that leaves its neighbour askew: such ones come last. Small ones are copied when they are bound;
   large ones have their neighbour moved by an entry of its own. */
enum { SMALL = 4096 };

typedef struct layout {
	VEC(st_entry) entries; /* as they stand in the file */
	VEC(int64_t) shapes;   /* of entries that are no tensors; reserved before the first is used */
	uint32_t names;        /* numbers that were tried for them */
	arena arena;
} layout;

typedef enum group { WHOLE_LINES, LARGE, LITTLE } group;

static group group_of(const st_entry *e)
{
	if (e->nbytes % ST_MAPPED_ALIGN == 0)
		return WHOLE_LINES;
	return e->nbytes >= SMALL ? LARGE : LITTLE;
}

/* A name that no tensor has. */
static clv_status pad_name(layout *l, const payload *p, const char **out)
{
	for (*out = NULL; !*out;) {
		strbuf name = STRBUF_INIT;
		char *text;
		strbuf_printf(&name, "%s%u", PAYLOAD_PAD, l->names++);
		TRY(strbuf_take(&name, &text));
		bool is_free = payload_find(p, text) == NONE;
		*out = is_free ? arena_str(&l->arena, text) : NULL;
		mem_free(text);
		if (is_free && !*out)
			return fail_nomem();
	}
	return CLV_OK;
}

static clv_status add_pad(layout *l, const payload *p, size_t n)
{
	static const uint8_t zeros[ST_MAPPED_ALIGN];
	st_entry e = {.dtype = DT_U8, .ndim = 1, .data = zeros, .nbytes = n};
	TRY(pad_name(l, p, &e.name));
	TRY(vec_push(&l->shapes, (int64_t)n));
	e.shape = &l->shapes.at[l->shapes.n - 1];
	return vec_push(&l->entries, e);
}

/* Up to where the next entry may start. */
static clv_status align_next(layout *l, const payload *p, size_t nbytes)
{
	size_t over = nbytes % ST_MAPPED_ALIGN;
	return over ? add_pad(l, p, ST_MAPPED_ALIGN - over) : CLV_OK;
}

static clv_status add_group(layout *l, const payload *p, group g)
{
	static const uint32_t widths[] = {64, 32, 16, 8};
	for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
		for (uint32_t i = 0; i < p->entries.n; i++) {
			const st_entry *e = &p->entries.at[i];
			if (group_of(e) != g || dtype_bits(e->dtype) != widths[w])
				continue;
			TRY(vec_push(&l->entries, *e));
			if (g == LARGE)
				TRY(align_next(l, p, e->nbytes));
		}
	return CLV_OK;
}

/* An entry that is no tensor, and what has to be behind it. */
static clv_status add_bytes(layout *l, const artifact *a, st_entry *e)
{
	TRY(vec_push(&l->shapes, (int64_t)e->nbytes));
	e->shape = &l->shapes.at[l->shapes.n - 1];
	TRY(vec_push(&l->entries, *e));
	return align_next(l, a->tensors, e->nbytes);
}

static clv_status add_member_entry(layout *l, const artifact *a, uint32_t plan_number, uint32_t segment,
                                   const artifact_member *m)
{
	st_entry e = {.dtype = DT_U8, .ndim = 1, .data = m->data, .nbytes = m->n};
	TRY(segment_entry(plan_number, segment, m->name, &l->arena, &e.name));
	if (payload_find(a->tensors, e.name) != NONE)
		return fail(CLV_E_INVALID, "a tensor has the name \"%s\", which is that of a compiled segment", e.name);
	return add_bytes(l, a, &e);
}

static clv_status add_members(layout *l, const artifact *a)
{
	for (uint32_t i = 0; i < a->plans.n; i++)
		for (uint32_t k = 0; k < a->plans.at[i].segments.n; k++) {
			const artifact_segment *s = &a->plans.at[i].segments.at[k];
			for (uint32_t m = 0; m < s->members.n; m++)
				TRY(add_member_entry(l, a, i, k, &s->members.at[m]));
		}
	return CLV_OK;
}

static clv_status add_packed_entry(layout *l, const artifact *a, const artifact_packed *x)
{
	st_entry e = {.dtype = DT_U8, .ndim = 1, .data = x->data, .nbytes = x->n};
	TRY(packed_entry(x->isa, &l->arena, &e.name));
	if (payload_find(a->tensors, e.name) != NONE)
		return fail(CLV_E_INVALID, "a tensor has the name \"%s\", which is that of packed weights", e.name);
	return add_bytes(l, a, &e);
}

static clv_status add_packed(layout *l, const artifact *a)
{
	for (uint32_t i = 0; i < a->packed.n; i++)
		TRY(add_packed_entry(l, a, &a->packed.at[i]));
	return CLV_OK;
}

static clv_status add_loss(layout *l, const artifact *a)
{
	st_entry e = {.name = PAYLOAD_LOSS, .dtype = DT_U8, .ndim = 1, .data = a->loss, .nbytes = a->loss_n};
	if (!a->training)
		return CLV_OK;
	if (payload_find(a->tensors, e.name) != NONE)
		return fail(CLV_E_INVALID, "a tensor has the name \"%s\", which is that of the loss", e.name);
	return add_bytes(l, a, &e);
}

/* Members of segments, packed weights, a loss. */
static size_t count_members(const artifact *a)
{
	size_t n = a->packed.n + 1;
	for (uint32_t i = 0; i < a->plans.n; i++)
		for (uint32_t k = 0; k < a->plans.at[i].segments.n; k++)
			n += a->plans.at[i].segments.at[k].members.n;
	return n;
}

/* Each tensor and each member has at most one filler. */
static clv_status lay_out_entries(layout *l, const artifact *a)
{
	const payload *p = a->tensors;
	TRY(vec_reserve(&l->shapes, p->entries.n + 2 * count_members(a) + 1));
	TRY(add_group(l, p, WHOLE_LINES));
	TRY(add_group(l, p, LARGE));
	TRY(add_members(l, a));
	TRY(add_packed(l, a));
	TRY(add_loss(l, a));
	return add_group(l, p, LITTLE);
}

static void layout_free(layout *l)
{
	vec_free(&l->entries);
	vec_free(&l->shapes);
	arena_free(&l->arena);
}

/* ---- the description -------------------------------------------------------------------------------------------- */

static clv_status put_consts(const artifact *a, const artifact_plan *e, json_t *o)
{
	json_t *consts;
	TRY(json_put_object(o, "consts", &consts));
	for (uint32_t i = 0; i < e->consts.n; i++) {
		char *label;
		TRY(value_label_text(e->p, e->consts.at[i].value, &label));
		clv_status st = json_put_string(consts, label, a->tensors->tensors.at[e->consts.at[i].tensor].label);
		mem_free(label);
		TRY(st);
	}
	return CLV_OK;
}

static clv_status put_points(const artifact_plan *e, json_t *o)
{
	uint32_t n = artifact_point_size(e->p);
	json_t *points;
	TRY(json_put_list(o, "points", &points));
	for (uint32_t i = 0; n && i + n <= e->points.n; i += n) {
		json_t *point = json_array();
		TRY(json_push(points, point));
		for (uint32_t k = 0; k < n; k++)
			TRY(json_push(point, json_integer(e->points.at[i + k])));
	}
	return CLV_OK;
}

static clv_status put_fixed(const artifact_plan *e, json_t *o)
{
	if (e->fixed.n == 0)
		return CLV_OK;
	json_t *sizes;
	TRY(json_put_object(o, "sizes", &sizes));
	for (uint32_t i = 0; i < e->fixed.n; i++)
		TRY(json_put(sizes, e->fixed.at[i].name, json_integer(e->fixed.at[i].value)));
	return CLV_OK;
}

static clv_status put_asked(const artifact_plan *e, json_t *o)
{
	json_t *grads;
	if (e->same.n)
		TRY(json_put_ids(o, "same_inputs", e->same.at, e->same.n));
	if (e->grads.n == 0)
		return CLV_OK;
	TRY(json_put_list(o, "requires_grad", &grads));
	for (uint32_t i = 0; i < e->grads.n; i++)
		TRY(json_push(grads, e->grads.at[i] < 0 ? json_null() : json_boolean(e->grads.at[i])));
	return CLV_OK;
}

static clv_status put_plan_entry(const artifact *a, const artifact_plan *e, json_t *list)
{
	json_t *o = json_object();
	TRY(json_push(list, o));
	TRY(json_put_string(o, "signature", e->signature));
	TRY(json_put_ids(o, "nodes", (const uint32_t[]){e->first, e->end}, 2));
	TRY(json_put(o, "cut", e->cut == NONE ? json_null() : json_integer(e->cut)));
	TRY(json_put(o, "stores", json_integer(e->nstores)));
	TRY(put_fixed(e, o));
	TRY(put_asked(e, o));
	TRY(put_points(e, o));
	return put_consts(a, e, o);
}

static clv_status put_about(const artifact *a, json_t *root)
{
	json_t *notes;
	TRY(json_put_object(root, "about", &notes));
	for (uint32_t i = 0; i < a->notes.n; i++) {
		const artifact_note *n = &a->notes.at[i];
		if (json_object_get(notes, n->key))
			return fail(CLV_E_INVALID, "there are two notes \"%.64s\"", n->key);
		TRY(json_put_string(notes, n->key, n->text));
	}
	return CLV_OK;
}

static clv_status put_weight_digests(const artifact *a, json_t *root)
{
	if (a->weight_digests.n == 0)
		return CLV_OK;
	json_t *digests;
	TRY(json_put_object(root, "weight_digests", &digests));
	for (uint32_t i = 0; i < a->weight_digests.n; i++) {
		const payload_number *n = &a->weight_digests.at[i];
		if (json_object_get(digests, n->name))
			return fail(CLV_E_INVALID, "the model has two tensors \"%.64s\"", n->name);
		TRY(json_put(digests, n->name, json_integer(n->value)));
	}
	return CLV_OK;
}

static clv_status put_digests(const layout *l, json_t *root)
{
	json_t *digests;
	TRY(json_put_object(root, "digests", &digests));
	for (uint32_t i = 0; i < l->entries.n; i++) {
		const st_entry *e = &l->entries.at[i];
		char text[DIGEST_TEXT];
		digest_print(digest_of(e->data, e->nbytes), text);
		TRY(json_put_string(digests, e->name, text));
	}
	return CLV_OK;
}

typedef struct description {
	const artifact *a;
	const layout *l;
} description;

/* Without any of these the file is what it always was. */
static uint32_t major_version(const artifact *a)
{
	if (a->training)
		return ARTIFACT_MAJOR;
	if (a->packed.n)
		return ARTIFACT_PACKED_MAJOR;
	return segments_any(a) ? ARTIFACT_COMPILED_MAJOR : ARTIFACT_PLAIN_MAJOR;
}

static clv_status put_description(const void *ctx, json_t *root)
{
	const artifact *a = ((const description *)ctx)->a;
	const uint32_t version[] = {major_version(a), ARTIFACT_MINOR};
	TRY(json_put_ids(root, "version", version, 2));
	TRY(json_put_string(root, "producer", "cleave " CLV_VERSION));
	TRY(json_put_string(root, "part", a->part));
	TRY(json_put_string(root, "split_id", a->split_id));
	TRY(json_put_string(root, "boundary", a->boundary));
	TRY(json_put_string(root, "batch", a->batch));
	TRY(json_put(root, "weight_version", json_integer(a->weight_version)));
	TRY(json_put(root, "weights", json_boolean(a->weights)));
	if (a->any_size)
		TRY(json_put(root, "any_size", json_true()));
	json_t *plans;
	TRY(json_put_list(root, "plans", &plans));
	for (uint32_t i = 0; i < a->plans.n; i++)
		TRY(put_plan_entry(a, &a->plans.at[i], plans));
	TRY(put_about(a, root));
	TRY(put_weight_digests(a, root));
	return put_digests(((const description *)ctx)->l, root);
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

/* The texts of the metadata, in order; the first two are the places for check and seal. */
typedef struct texts {
	VEC(st_text) at;
	VEC(strbuf) owned;
	arena keys;
} texts;

static void texts_free(texts *t)
{
	for (uint32_t i = 0; i < t->owned.n; i++)
		strbuf_free(&t->owned.at[i]);
	vec_free(&t->owned);
	vec_free(&t->at);
	arena_free(&t->keys);
}

/* An empty text under a key. *out is good until the next one is added. */
static clv_status new_text(texts *t, const char *key, strbuf **out)
{
	st_text text = {.key = arena_str(&t->keys, key)};
	TRY_MEM(text.key);
	TRY(vec_push(&t->at, text));
	TRY(vec_push(&t->owned, (strbuf)STRBUF_INIT));
	*out = &t->owned.at[t->owned.n - 1];
	return CLV_OK;
}

static clv_status make_texts(const artifact *a, const layout *l, texts *t)
{
	strbuf *b;
	TRY(new_text(t, ARTIFACT_CHECK_KEY, &b));
	strbuf_puts(b, ARTIFACT_NO_CHECK);
	TRY(new_text(t, ARTIFACT_SEAL_KEY, &b));
	strbuf_puts(b, ARTIFACT_NO_SEAL);
	TRY(new_text(t, ARTIFACT_KEY, &b));
	TRY(json_write(put_description, &(description){a, l}, b));
	for (uint32_t i = 0; i < a->plans.n; i++) {
		char key[PLAN_KEY];
		plan_key(i, key);
		TRY(new_text(t, key, &b));
		plan_print(a->plans.at[i].p, b);
	}
	if (segments_any(a) || fallbacks_any(a)) {
		TRY(new_text(t, ARTIFACT_SEGMENTS_KEY, &b));
		TRY(segments_print(a, b));
	}
	if (a->packed.n) {
		TRY(new_text(t, ARTIFACT_PACKED_KEY, &b));
		TRY(packed_print(a, b));
	}
	if (a->training) {
		TRY(new_text(t, ARTIFACT_TRAINING_KEY, &b));
		strbuf_puts(b, a->training);
	}
	TRY(new_text(t, PAYLOAD_KEY, &b));
	TRY(payload_header(a->tensors, b));
	for (uint32_t i = 0; i < t->at.n; i++) {
		TRY_MEM(!t->owned.at[i].failed);
		t->at.at[i].text = t->owned.at[i].at;
		t->at.at[i].n = t->owned.at[i].n;
	}
	return CLV_OK;
}

/* The header has zeros where its check goes: they are part of what is checked. */
clv_status artifact_put_check(char *head, size_t n)
{
	char text[DIGEST_TEXT];
	char *place = check_place(head, n);
	if (!place)
		return fail(CLV_E_INVALID, "the header has no place for its check");
	memcpy(place, ARTIFACT_NO_CHECK, DIGEST_TEXT - 1);
	digest_print(digest_of(head, n), text);
	memcpy(place, text, DIGEST_TEXT - 1);
	return CLV_OK;
}

static clv_status make_image(const artifact *a, const layout *l, st_image *out)
{
	texts t = {0};
	clv_status st = make_texts(a, l, &t);
	if (st == CLV_OK)
		st = st_layout_mapped(l->entries.at, l->entries.n, t.at.at, t.at.n, out);
	texts_free(&t);
	TRY(st);
	if (!artifact_unvouched(a))
		artifact_put_seal(out->head, out->head_n);
	st = artifact_put_check(out->head, out->head_n);
	if (st != CLV_OK)
		st_image_free(out);
	return st;
}

/* What to do with the image of a file. */
typedef struct destination {
	const char *path; /* a temporary file next to it; NULL: one of the other two */
	st_pending *file;
	strbuf *bytes;
	mapping *memory;
} destination;

static clv_status put_image(const st_image *image, const destination *to)
{
	if (to->path)
		return st_write(image, to->path, to->file);
	return to->memory ? image_map(image, to->memory) : st_append(image, to->bytes);
}

static clv_status write_to(artifact *a, const destination *to)
{
	layout l = {0};
	st_image image;
	if (a->file)
		return fail(CLV_E_INVALID, "an artifact that was opened is not written again; a copy of it is");
	TRY(artifact_ready(a));
	clv_status st = lay_out_entries(&l, a);
	if (st == CLV_OK)
		st = make_image(a, &l, &image);
	if (st == CLV_OK) {
		st = put_image(&image, to);
		st_image_free(&image);
	}
	layout_free(&l);
	return st;
}

clv_status artifact_save(artifact *a, const char *path)
{
	st_pending file;
	TRY(write_to(a, &(destination){.path = path, .file = &file}));
	return st_commit(&file);
}

clv_status artifact_write(artifact *a, const char *path, st_pending *out)
{
	return write_to(a, &(destination){.path = path, .file = out});
}

clv_status artifact_append(artifact *a, strbuf *out)
{
	return write_to(a, &(destination){.bytes = out});
}

clv_status artifact_snapshot(artifact *a, artifact **out)
{
	mapping map;
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	TRY(write_to(a, &(destination){.memory = &map}));
	clv_status st = artifact_parse(map.at, map.n, &o, out);
	if (st != CLV_OK) {
		file_unmap(&map);
		return st;
	}
	(*out)->map = map;
	(*out)->vouching = a->vouching;
	return CLV_OK;
}
