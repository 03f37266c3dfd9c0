/* Stores weights only once: splits tensors of the artifact out of compiled members, and joins them again.
 *
 * A member "model.bin" that contains tensors of the artifact, byte for byte, becomes two: "model.bin.rest", its other
 * bytes, and "model.bin.pieces", JSON that says how to put it together, with a digest of the whole. Loading the segment
 * restores the whole. If tensors were changed since, the digest differs and the segment does not run.
 *
 * Tensors are found by a rolling hash of their first bytes. */
#include <string.h>

#include "base/digest.h"
#include "file/json.h"
#include "segment/compile.h"

enum { WINDOW = 64, LEAST = 256 };             /* bytes: that are hashed; of tensors that are looked for */
enum { MOST_MEMBERS = 32, LONGEST_NAME = 48 }; /* so that a file takes the members that they become */
static const uint64_t MOST_WASTED = UINT64_C(1) << 32;
#define REST ".rest"
#define PIECES ".pieces"
static const uint64_t FACTOR = 0x9E3779B97F4A7C15u;

/* ---- tensors ------------------------------------------------------------------------------------------------------ */

typedef struct source {
	const char *label;
	const uint8_t *at; /* NULL: its bytes are not there as they are */
	size_t n;
	uint64_t hash; /* of the first WINDOW bytes */
	bool used;     /* each once: readers expect no more than that */
} source;

static bool row_by_row(const payload_tensor *t)
{
	int64_t step = 1;
	for (uint32_t d = t->ndim; d-- > 0;) {
		if (t->sizes[d] != 1 && t->strides[d] != step)
			return false;
		step *= t->sizes[d];
	}
	return true;
}

static clv_status source_of(const payload *p, uint32_t i, source *out)
{
	const payload_tensor *t = &p->tensors.at[i];
	size_t extent = 0;
	*out = (source){.label = t->label};
	TRY(strided_extent(t->ndim, t->sizes, t->strides, &extent));
	out->n = extent * (dtype_bits(t->dtype) / 8);
	if (!row_by_row(t))
		return CLV_OK;
	if (t->data) {
		out->at = t->data;
	} else if (t->memory < p->memories.n) {
		const payload_memory *m = &p->memories.at[t->memory];
		if (m->encoding == ENC_PLAIN && m->data && t->offset <= m->data_n && out->n <= m->data_n - t->offset)
			out->at = (const uint8_t *)m->data + t->offset;
	}
	return CLV_OK;
}

/* ---- taking apart ------------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const uint8_t *at)
{
	uint64_t h = 0;
	for (uint32_t i = 0; i < WINDOW; i++)
		h = h * FACTOR + at[i] + 1;
	return h;
}

typedef struct finder {
	VEC(source) sources;
	uint32_t *table; /* the last source with this hash; NONE: none */
	uint32_t *next;  /* per source: the one before it with the same place in the table */
	uint32_t mask;
	uint64_t leaving; /* FACTOR to the power of WINDOW */
	uint64_t wasted;  /* bytes of tensors that were not there, though their start was */
} finder;

static void finder_free(finder *f)
{
	vec_free(&f->sources);
	mem_free(f->table);
	mem_free(f->next);
}

static uint32_t slot(const finder *f, uint64_t hash)
{
	return (uint32_t)(hash >> 32) & f->mask;
}

static clv_status finder_fill(finder *f, const artifact *a, const uint32_t *tensors, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		source s;
		TRY(source_of(a->tensors, tensors[i], &s));
		if (!s.at || s.n < LEAST)
			continue;
		s.hash = hash_of(s.at);
		TRY(vec_push(&f->sources, s));
	}
	for (f->mask = 1023; f->mask < 4 * f->sources.n;)
		f->mask = 2 * f->mask + 1;
	f->table = mem_ids(f->mask + 1);
	f->next = mem_ids(f->sources.n + 1);
	TRY_MEM(f->table && f->next);
	for (uint32_t i = 0; i < f->sources.n; i++) {
		uint32_t *head = &f->table[slot(f, f->sources.at[i].hash)];
		f->next[i] = *head;
		*head = i;
	}
	f->leaving = 1;
	for (uint32_t i = 0; i < WINDOW; i++)
		f->leaving *= FACTOR;
	return CLV_OK;
}

static bool differs(finder *f, const source *s, const uint8_t *at)
{
	if (memcmp(s->at, at, s->n) == 0)
		return false;
	f->wasted += s->n;
	return true;
}

/* The longest tensor that is at this place; NONE: none is. Runs of one byte look like the start of a tensor of them at each
   place: what is compared in vain is bounded, and what is not found is stored as it is. */
static uint32_t find_at(finder *f, uint64_t hash, const uint8_t *at, size_t n)
{
	uint32_t found = NONE;
	if (f->wasted > MOST_WASTED)
		return NONE;
	for (uint32_t i = f->table[slot(f, hash)]; i != NONE; i = f->next[i]) {
		const source *s = &f->sources.at[i];
		if (!s->used && s->hash == hash && s->n <= n && (found == NONE || s->n > f->sources.at[found].n) &&
		    !differs(f, s, at))
			found = i;
	}
	return found;
}

typedef struct splitting {
	json_t *pieces;
	strbuf rest;
	uint32_t found;
} splitting;

static clv_status add_piece(splitting *s, const char *label, size_t n)
{
	json_t *pair = json_array(), *name;
	TRY(json_push(s->pieces, pair));
	if (label)
		TRY(json_text(label, strlen(label), &name));
	else
		name = json_null();
	TRY(json_push(pair, name));
	return json_push(pair, json_integer((json_int_t)n));
}

static clv_status add_rest(splitting *s, const uint8_t *at, size_t n)
{
	if (n == 0)
		return CLV_OK;
	strbuf_add(&s->rest, (const char *)at, n);
	return s->rest.failed ? fail_nomem() : add_piece(s, NULL, n);
}

static clv_status split_bytes(finder *f, const uint8_t *at, size_t n, splitting *s)
{
	size_t since = 0;
	uint64_t hash = n >= WINDOW ? hash_of(at) : 0;
	for (size_t i = 0; i + WINDOW <= n;) {
		uint32_t k = find_at(f, hash, at + i, n - i);
		if (k == NONE) {
			if (i + WINDOW < n)
				hash = hash * FACTOR + at[i + WINDOW] + 1 - f->leaving * (at[i] + (uint64_t)1);
			i++;
			continue;
		}
		TRY(add_rest(s, at + since, i - since));
		TRY(add_piece(s, f->sources.at[k].label, f->sources.at[k].n));
		s->found++;
		f->sources.at[k].used = true;
		since = i += f->sources.at[k].n;
		if (i + WINDOW <= n)
			hash = hash_of(at + i);
	}
	return add_rest(s, at + since, n - since);
}

static clv_status add_artifact_member(artifact *a, artifact_segment *s, const char *name, const char *end,
                                      const void *data, size_t n)
{
	strbuf full = STRBUF_INIT;
	artifact_member m = {.n = n};
	char *text;
	strbuf_printf(&full, "%s%s", name, end);
	TRY(strbuf_take(&full, &text));
	clv_status st = artifact_text(a, text, &m.name);
	mem_free(text);
	TRY(st);
	void *copy = mem_alloc(n + 1);
	TRY_MEM(copy);
	memcpy(copy, data, n);
	m.data = copy;
	st = vec_push(&a->tensors->buffers, copy);
	if (st != CLV_OK) {
		mem_free(copy);
		return st;
	}
	return vec_push(&s->members, m);
}

static clv_status describe_pieces(const artifact_member *m, json_t *pieces /* taken */, strbuf *out)
{
	char text[DIGEST_TEXT];
	json_t *root = json_object();
	digest_print(digest_of(m->data, m->n), text);
	clv_status st = json_put(root, "pieces", pieces);
	if (st == CLV_OK)
		st = json_put_string(root, "digest", text);
	if (st == CLV_OK)
		st = json_print(root, 0, out);
	json_decref(root);
	return st;
}

static clv_status split_member(artifact *a, finder *f, const artifact_member *m, artifact_segment *s)
{
	splitting x = {json_array(), STRBUF_INIT, 0};
	strbuf text = STRBUF_INIT;
	clv_status st = x.pieces ? CLV_OK : fail_nomem();
	if (st == CLV_OK && strlen(m->name) <= LONGEST_NAME)
		st = split_bytes(f, m->data, m->n, &x);
	if (st == CLV_OK && x.found == 0) {
		st = add_artifact_member(a, s, m->name, "", m->data, m->n);
	} else if (st == CLV_OK) {
		st = describe_pieces(m, json_incref(x.pieces), &text);
		if (st == CLV_OK)
			st = add_artifact_member(a, s, m->name, REST, x.rest.at ? x.rest.at : "", x.rest.n);
		if (st == CLV_OK)
			st = add_artifact_member(a, s, m->name, PIECES, text.at, text.n);
	}
	json_decref(x.pieces);
	strbuf_free(&x.rest);
	strbuf_free(&text);
	return st;
}

clv_status pieces_split(artifact *a, const uint32_t *tensors, uint32_t n, artifact_segment *s)
{
	finder f = {0};
	artifact_segment made = {0};
	clv_status st = finder_fill(&f, a, tensors, s->members.n > MOST_MEMBERS ? 0 : n);
	for (uint32_t i = 0; i < s->members.n && st == CLV_OK; i++)
		st = split_member(a, &f, &s->members.at[i], &made);
	finder_free(&f);
	if (st == CLV_OK) {
		vec_free(&s->members);
		s->members.at = made.members.at;
		s->members.n = made.members.n;
		s->members.cap = made.members.cap;
	} else {
		vec_free(&made.members);
	}
	return st;
}

/* ---- putting together --------------------------------------------------------------------------------------------- */

typedef struct joining {
	const artifact *a;
	const uint8_t *rest;
	size_t rest_n, rest_at;
	strbuf whole;
	size_t most; /* that a member can have: a file may say anything */
} joining;

static clv_status join_piece(joining *j, const json_t *pair)
{
	const json_t *label = json_array_get(pair, 0), *count = json_array_get(pair, 1);
	json_int_t n = json_is_integer(count) ? json_integer_value(count) : -1;
	const uint8_t *at;
	if (json_array_size(pair) != 2 || n < 0 || (uint64_t)n > j->most - j->whole.n)
		return fail(CLV_E_PARSE, "a piece of compiled code is no name and number of bytes");
	if (json_is_null(label)) {
		if ((uint64_t)n > j->rest_n - j->rest_at)
			return fail(CLV_E_PARSE, "compiled code has fewer bytes than its pieces say");
		at = j->rest + j->rest_at;
		j->rest_at += (size_t)n;
	} else {
		uint32_t i = json_is_string(label) ? payload_find(j->a->tensors, json_string_value(label)) : NONE;
		source s = {0};
		if (i != NONE)
			TRY(source_of(j->a->tensors, i, &s));
		if (!s.at || s.n != (size_t)n)
			return fail(CLV_E_PARSE, "compiled code has a tensor in it that is not in this file");
		at = s.at;
	}
	strbuf_add(&j->whole, (const char *)at, (size_t)n);
	return j->whole.failed ? fail_nomem() : CLV_OK;
}

static clv_status join_all(joining *j, const json_t *root)
{
	const json_t *pieces;
	const char *want;
	char got[DIGEST_TEXT];
	TRY(json_get_array(root, "pieces", &pieces));
	TRY(json_get_string(root, "digest", &want));
	for (size_t i = 0; i < json_array_size(pieces); i++)
		TRY(join_piece(j, json_array_get(pieces, i)));
	digest_print(digest_of(j->whole.at ? j->whole.at : "", j->whole.n), got);
	if (strcmp(got, want) != 0)
		return fail(CLV_E_UNSUPPORTED, "the weights that it shares with the file were changed, or the file is damaged");
	return CLV_OK;
}

/* All tensors once, and the rest. */
static clv_status limit_of(const artifact *a, size_t rest, size_t *out)
{
	*out = rest;
	for (uint32_t i = 0; i < a->tensors->tensors.n; i++) {
		source s;
		TRY(source_of(a->tensors, i, &s));
		if (s.at && __builtin_add_overflow(*out, s.n, out))
			return fail(CLV_E_OVERFLOW, "the tensors of the file have more than 2^64 bytes");
	}
	return CLV_OK;
}

static clv_status join_member(const artifact *a, const artifact_member *rest, const artifact_member *pieces,
                              const char *name, compiled *out)
{
	json_t *root = NULL;
	joining j = {.a = a, .rest = rest->data, .rest_n = rest->n, .whole = STRBUF_INIT};
	char *data;
	TRY(limit_of(a, rest->n, &j.most));
	TRY(json_read(pieces->data, pieces->n, pieces->name, &root));
	clv_status st = join_all(&j, root);
	json_decref(root);
	size_t n = j.whole.n;
	if (st != CLV_OK) {
		strbuf_free(&j.whole);
		return st;
	}
	TRY(strbuf_take(&j.whole, &data));
	return compiled_add(out, name, data, n);
}

static const artifact_member *member_with(const artifact_segment *s, const char *name, size_t n, const char *end)
{
	for (uint32_t i = 0; i < s->members.n; i++) {
		const char *it = s->members.at[i].name;
		if (strncmp(it, name, n) == 0 && strcmp(it + n, end) == 0)
			return &s->members.at[i];
	}
	return NULL;
}

/* The length of a name without this end; 0: it has another one. */
static size_t without(const char *name, const char *end)
{
	size_t n = strlen(name), k = strlen(end);
	return n > k && strcmp(name + n - k, end) == 0 ? n - k : 0;
}

static clv_status take_member(const artifact *a, const artifact_segment *s, const artifact_member *m, compiled *out)
{
	size_t rest = without(m->name, REST), pieces = without(m->name, PIECES);
	const artifact_member *other = rest ? member_with(s, m->name, rest, PIECES) : NULL;
	if (!a || (!other && !(pieces && member_with(s, m->name, pieces, REST))))
		return vec_push(&out->members, ((compiled_member){m->name, m->data, m->n}));
	if (!other)
		return CLV_OK; /* it goes with the rest */
	char *name = mem_strdup(m->name, rest);
	TRY_MEM(name);
	clv_status st = join_member(a, m, other, name, out);
	mem_free(name);
	return st;
}

clv_status pieces_join(const artifact *a, const artifact_segment *s, compiled *out)
{
	for (uint32_t i = 0; i < s->members.n; i++)
		TRY(take_member(a, s, &s->members.at[i], out));
	return CLV_OK;
}
