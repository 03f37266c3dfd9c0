/* Writes compiled segments as header text, and reads them back; the text is hostile. */
#include <string.h>

#include "file/artifact_segments.h"
#include "file/json.h"

/* ---- writing ------------------------------------------------------------------------------------------------------ */

static clv_status put_pair(json_t *list, int64_t a, int64_t b)
{
	json_t *pair = json_array();
	TRY(json_push(list, pair));
	TRY(json_push(pair, json_integer(a)));
	return json_push(pair, json_integer(b));
}

static clv_status put_segment_nodes(json_t *o, const artifact_segment *s)
{
	return json_put_ids(o, "nodes", (const uint32_t[]){s->first, s->end}, 2);
}

static clv_status put_segment_notes(json_t *o, const char *key, const note_list *from)
{
	json_t *notes;
	TRY(json_put_object(o, key, &notes));
	for (uint32_t i = 0; i < from->n; i++)
		TRY(json_put_string(notes, from->at[i].key, from->at[i].text));
	return CLV_OK;
}

static clv_status put_segment(const artifact_segment *s, json_t *o)
{
	json_t *sizes, *members;
	TRY(json_put_list(o, "sizes", &sizes));
	TRY(put_segment_nodes(o, s));
	TRY(json_put_string(o, "backend", s->backend));
	for (uint32_t i = 0; i < s->sizes.n; i++)
		TRY(put_pair(sizes, s->sizes.at[i].low, s->sizes.at[i].high));
	TRY(json_put_ids(o, "in_order", s->in_order.at, s->in_order.n));
	TRY(json_put_ids(o, "out_order", s->out_order.at, s->out_order.n));
	TRY(put_segment_notes(o, "needs", &s->needs));
	TRY(put_segment_notes(o, "facts", &s->facts));
	if (s->seal)
		TRY(json_put_string(o, "seal", s->seal));
	TRY(json_put_list(o, "members", &members));
	for (uint32_t i = 0; i < s->members.n; i++)
		TRY(json_push_string(members, s->members.at[i].name));
	return CLV_OK;
}

static clv_status put_dropped(const artifact_plan *e, json_t *o)
{
	json_t *dropped, *one;
	TRY(json_put_list(o, "dropped", &dropped));
	for (uint32_t i = 0; i < e->dropped.n; i++) {
		const artifact_segment *s = &e->dropped.at[i];
		TRY(json_push_object(dropped, &one));
		TRY(put_segment_nodes(one, s));
		TRY(json_put_string(one, "backend", s->backend));
		TRY(put_segment_notes(one, "facts", &s->facts));
	}
	return CLV_OK;
}

static clv_status put_plan_segments(const artifact_plan *e, json_t *o)
{
	json_t *segments, *fallbacks, *one;
	TRY(json_put_list(o, "segments", &segments));
	for (uint32_t i = 0; i < e->segments.n; i++) {
		TRY(json_push_object(segments, &one));
		TRY(put_segment(&e->segments.at[i], one));
	}
	TRY(json_put_list(o, "fallbacks", &fallbacks));
	for (uint32_t i = 0; i < e->fallbacks.n; i++) {
		json_t *pair = json_array();
		TRY(json_push(fallbacks, pair));
		TRY(json_push(pair, json_integer(e->fallbacks.at[i].node)));
		TRY(json_push_string(pair, e->fallbacks.at[i].reason));
	}
	return e->dropped.n ? put_dropped(e, o) : CLV_OK;
}

static clv_status put_plans(const artifact *a, json_t *root)
{
	for (uint32_t i = 0; i < a->plans.n; i++) {
		json_t *o;
		TRY(json_push_object(root, &o));
		TRY(put_plan_segments(&a->plans.at[i], o));
	}
	return CLV_OK;
}

clv_status segments_print(const artifact *a, strbuf *out)
{
	json_t *root = json_array();
	TRY_MEM(root);
	clv_status st = put_plans(a, root);
	if (st == CLV_OK)
		st = json_print(root, 0, out);
	json_decref(root);
	return st;
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

typedef struct reader {
	artifact *a;
	bool *claimed; /* per entry of the file: a tensor or a member is there */
} reader;

static clv_status get_number(const json_t *from, const char *what, uint32_t *out)
{
	return json_id(from, out)
	           ? CLV_OK
	           : fail(CLV_E_PARSE, "\"%s\" has something that is no number of a node or dimension", what);
}

static clv_status read_nodes(const json_t *from, artifact_segment *s)
{
	const json_t *nodes;
	TRY(json_get_array(from, "nodes", &nodes));
	if (json_array_size(nodes) != 2)
		return fail(CLV_E_PARSE, "\"nodes\" is no pair of numbers");
	TRY(get_number(json_array_get(nodes, 0), "nodes", &s->first));
	return get_number(json_array_get(nodes, 1), "nodes", &s->end);
}

static clv_status read_sizes(const json_t *from, artifact_segment *s)
{
	const json_t *sizes;
	TRY(json_get_array(from, "sizes", &sizes));
	for (size_t i = 0; i < json_array_size(sizes); i++) {
		const json_t *pair = json_array_get(sizes, i);
		const json_t *low = json_array_get(pair, 0), *high = json_array_get(pair, 1);
		if (json_array_size(pair) != 2 || !json_is_integer(low) || !json_is_integer(high))
			return fail(CLV_E_PARSE, "\"sizes\" has something that is no pair of sizes");
		TRY(vec_push(&s->sizes, ((artifact_sizes){json_integer_value(low), json_integer_value(high)})));
	}
	return CLV_OK;
}

static clv_status read_ids(const json_t *from, const char *key, order_list *out)
{
	const json_t *list;
	uint32_t k;
	TRY(json_get_array(from, key, &list));
	for (size_t i = 0; i < json_array_size(list); i++) {
		TRY(get_number(json_array_get(list, i), key, &k));
		TRY(vec_push(out, k));
	}
	return CLV_OK;
}

static clv_status read_segment_notes(reader *r, const json_t *from, const char *key, note_list *out)
{
	json_t *notes, *text;
	const char *name;
	TRY(json_get_object(from, key, &notes));
	json_object_foreach(notes, name, text)
	{
		artifact_note n;
		TRY(json_get_string(notes, name, &n.text));
		TRY(artifact_text(r->a, name, &n.key));
		TRY(artifact_text(r->a, n.text, &n.text));
		TRY(vec_push(out, n));
	}
	return CLV_OK;
}

/* The entry that has the member. */
static clv_status read_segment_member(reader *r, uint32_t number, const char *name, artifact_segment *s)
{
	artifact_member m;
	const char *entry;
	TRY(artifact_text(r->a, name, &m.name));
	TRY(segment_entry(number, r->a->plans.at[number].segments.n, name, &r->a->arena, &entry));
	uint32_t i = st_find(r->a->file, entry);
	if (i == NONE || r->claimed[i])
		return fail(CLV_E_PARSE, "entry \"%.128s\" is %s", entry, i == NONE ? "not in the file" : "used twice");
	const st_entry *e = st_at(r->a->file, i);
	if (e->dtype != DT_U8 || e->ndim != 1)
		return fail(CLV_E_PARSE, "entry \"%.128s\" is no list of bytes", entry);
	r->claimed[i] = true;
	m.data = e->data;
	m.n = e->nbytes;
	return vec_push(&s->members, m);
}

static clv_status read_members(reader *r, uint32_t number, const json_t *from, artifact_segment *s)
{
	const json_t *members;
	TRY(json_get_array(from, "members", &members));
	for (size_t i = 0; i < json_array_size(members); i++) {
		const char *name = json_plain_string(json_array_get(members, i));
		if (!name)
			return fail(CLV_E_PARSE, "the name of a member is no plain string");
		TRY(read_segment_member(r, number, name, s));
	}
	return CLV_OK;
}

static clv_status read_facts(reader *r, const json_t *from, artifact_segment *s)
{
	const char *backend;
	TRY(read_nodes(from, s));
	TRY(json_get_string(from, "backend", &backend));
	TRY(artifact_text(r->a, backend, &s->backend));
	return read_segment_notes(r, from, "facts", &s->facts);
}

/* Files of before have none. */
static clv_status read_seal(reader *r, const json_t *from, artifact_segment *s)
{
	const char *seal;
	if (!json_object_get(from, "seal"))
		return CLV_OK;
	TRY(json_get_string(from, "seal", &seal));
	if (strlen(seal) != SEAL_TEXT - 1 || strspn(seal, "0123456789abcdef") != SEAL_TEXT - 1)
		return fail(CLV_E_PARSE, "its seal is not %d hexadecimal digits", SEAL_TEXT - 1);
	return artifact_text(r->a, seal, &s->seal);
}

static clv_status read_parts(reader *r, uint32_t number, const json_t *from, artifact_segment *s)
{
	TRY(read_facts(r, from, s));
	TRY(read_sizes(from, s));
	TRY(read_ids(from, "in_order", &s->in_order));
	TRY(read_ids(from, "out_order", &s->out_order));
	TRY(read_segment_notes(r, from, "needs", &s->needs));
	TRY(read_seal(r, from, s));
	return read_members(r, number, from, s);
}

static clv_status read_segment(reader *r, uint32_t number, const json_t *from)
{
	artifact_segment s = {0};
	artifact_plan *e = &r->a->plans.at[number];
	clv_status st = read_parts(r, number, from, &s);
	if (st == CLV_OK)
		st = vec_push(&e->segments, s);
	else if (st != CLV_E_NOMEM)
		fail_more(st, "segment %u", e->segments.n);
	if (st != CLV_OK)
		segment_free(&s);
	return st;
}

static clv_status read_dropped(reader *r, uint32_t number, const json_t *from)
{
	artifact_segment s = {0};
	clv_status st = read_facts(r, from, &s);
	if (st == CLV_OK)
		st = vec_push(&r->a->plans.at[number].dropped, s);
	if (st != CLV_OK)
		segment_free(&s);
	return st;
}

static clv_status read_fallback(reader *r, uint32_t number, const json_t *from)
{
	artifact_fallback f;
	const char *reason = json_plain_string(json_array_get(from, 1));
	if (json_array_size(from) != 2 || !reason)
		return fail(CLV_E_PARSE, "a fallback is no node with a reason");
	TRY(get_number(json_array_get(from, 0), "fallbacks", &f.node));
	TRY(artifact_text(r->a, reason, &f.reason));
	return vec_push(&r->a->plans.at[number].fallbacks, f);
}

static clv_status read_plan(reader *r, uint32_t number, const json_t *from)
{
	const json_t *segments, *fallbacks;
	TRY(json_get_array(from, "segments", &segments));
	TRY(json_get_array(from, "fallbacks", &fallbacks));
	for (size_t i = 0; i < json_array_size(segments); i++)
		TRY(read_segment(r, number, json_array_get(segments, i)));
	for (size_t i = 0; i < json_array_size(fallbacks); i++)
		TRY(read_fallback(r, number, json_array_get(fallbacks, i)));
	const json_t *dropped = json_object_get(from, "dropped");
	if (dropped && !json_is_array(dropped))
		return fail(CLV_E_PARSE, "\"dropped\" is no list");
	for (size_t i = 0; i < json_array_size(dropped); i++)
		TRY(read_dropped(r, number, json_array_get(dropped, i)));
	return CLV_OK;
}

static clv_status read_plans(reader *r, const json_t *root)
{
	if (!json_is_array(root) || json_array_size(root) != r->a->plans.n)
		return fail(CLV_E_PARSE, "\"%s\" does not have one part for each of %u plans", ARTIFACT_SEGMENTS_KEY,
		            r->a->plans.n);
	for (uint32_t i = 0; i < r->a->plans.n; i++) {
		TRY_MORE(read_plan(r, i, json_array_get(root, i)), "plan %u", i);
	}
	return CLV_OK;
}

static clv_status read_text(reader *r)
{
	size_t n;
	json_t *root;
	const char *text = st_metadata(r->a->file, ARTIFACT_SEGMENTS_KEY, &n);
	if (!text)
		return CLV_OK;
	TRY(json_read(text, n, "the text about segments", &root));
	clv_status st = read_plans(r, root);
	json_decref(root);
	return st;
}

static clv_status read_segments(reader *r)
{
	const payload *p = r->a->tensors;
	for (uint32_t i = 0; i < p->memories.n; i++)
		r->claimed[st_find(r->a->file, p->memories.at[i].entry)] = true;
	TRY(read_text(r));
	for (uint32_t i = 0; i < st_count(r->a->file); i++) {
		const char *name = st_at(r->a->file, i)->name;
		if (!r->claimed[i] && strncmp(name, PAYLOAD_SEGMENT, sizeof PAYLOAD_SEGMENT - 1) == 0)
			return fail(CLV_E_PARSE, "entry \"%.128s\" is of no segment", name);
	}
	return CLV_OK;
}

clv_status segments_read(artifact *a)
{
	reader r = {.a = a, .claimed = mem_alloc((size_t)st_count(a->file) + 1)};
	clv_status st = r.claimed ? read_segments(&r) : fail_nomem();
	mem_free(r.claimed);
	return st;
}
