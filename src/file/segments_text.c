/* Compiled segments as the text of a header, and back; what is read is hostile. */
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

static clv_status put_nodes(json_t *o, const artifact_segment *s)
{
	json_t *nodes = json_array();
	TRY(json_put(o, "nodes", nodes));
	TRY(json_push(nodes, json_integer(s->first)));
	return json_push(nodes, json_integer(s->end));
}

static clv_status put_numbers(json_t *o, const char *key, const uint32_t *at, uint32_t n)
{
	json_t *list = json_array();
	TRY(json_put(o, key, list));
	for (uint32_t i = 0; i < n; i++)
		TRY(json_push(list, json_integer(at[i])));
	return CLV_OK;
}

static clv_status put_notes(json_t *o, const char *key, const artifact_note *at, uint32_t n)
{
	json_t *notes = json_object();
	TRY(json_put(o, key, notes));
	for (uint32_t i = 0; i < n; i++)
		TRY(json_put_string(notes, at[i].key, at[i].text));
	return CLV_OK;
}

static clv_status push_string(json_t *list, const char *s)
{
	json_t *text;
	TRY(json_text(s, strlen(s), &text));
	return json_push(list, text);
}

static clv_status put_segment(const artifact_segment *s, json_t *o)
{
	json_t *sizes = json_array(), *members;
	TRY(json_put(o, "sizes", sizes));
	TRY(put_nodes(o, s));
	TRY(json_put_string(o, "backend", s->backend));
	for (uint32_t i = 0; i < s->sizes.n; i++)
		TRY(put_pair(sizes, s->sizes.at[i].low, s->sizes.at[i].high));
	TRY(put_numbers(o, "in_order", s->in_order.at, s->in_order.n));
	TRY(put_numbers(o, "out_order", s->out_order.at, s->out_order.n));
	TRY(put_notes(o, "needs", s->needs.at, s->needs.n));
	TRY(put_notes(o, "facts", s->facts.at, s->facts.n));
	if (s->seal)
		TRY(json_put_string(o, "seal", s->seal));
	members = json_array();
	TRY(json_put(o, "members", members));
	for (uint32_t i = 0; i < s->members.n; i++)
		TRY(push_string(members, s->members.at[i].name));
	return CLV_OK;
}

static clv_status put_dropped(const artifact_plan *e, json_t *o)
{
	json_t *dropped = json_array();
	TRY(json_put(o, "dropped", dropped));
	for (uint32_t i = 0; i < e->dropped.n; i++) {
		const artifact_segment *s = &e->dropped.at[i];
		json_t *one = json_object();
		TRY(json_push(dropped, one));
		TRY(put_nodes(one, s));
		TRY(json_put_string(one, "backend", s->backend));
		TRY(put_notes(one, "facts", s->facts.at, s->facts.n));
	}
	return CLV_OK;
}

static clv_status put_plan(const artifact_plan *e, json_t *o)
{
	json_t *segments = json_array(), *fallbacks;
	TRY(json_put(o, "segments", segments));
	for (uint32_t i = 0; i < e->segments.n; i++) {
		json_t *one = json_object();
		TRY(json_push(segments, one));
		TRY(put_segment(&e->segments.at[i], one));
	}
	fallbacks = json_array();
	TRY(json_put(o, "fallbacks", fallbacks));
	for (uint32_t i = 0; i < e->fallbacks.n; i++) {
		json_t *pair = json_array();
		TRY(json_push(fallbacks, pair));
		TRY(json_push(pair, json_integer(e->fallbacks.at[i].node)));
		TRY(push_string(pair, e->fallbacks.at[i].reason));
	}
	return e->dropped.n ? put_dropped(e, o) : CLV_OK;
}

static clv_status put_plans(const artifact *a, json_t *root)
{
	for (uint32_t i = 0; i < a->plans.n; i++) {
		json_t *o = json_object();
		TRY(json_push(root, o));
		TRY(put_plan(&a->plans.at[i], o));
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
	if (!json_is_integer(from) || json_integer_value(from) < 0 || json_integer_value(from) >= NONE)
		return fail(CLV_E_PARSE, "\"%s\" has something that is no number of a node or dimension", what);
	*out = (uint32_t)json_integer_value(from);
	return CLV_OK;
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

static clv_status read_orders(const json_t *from, artifact_segment *s)
{
	const json_t *in, *out;
	uint32_t k;
	TRY(json_get_array(from, "in_order", &in));
	TRY(json_get_array(from, "out_order", &out));
	for (size_t i = 0; i < json_array_size(in); i++) {
		TRY(get_number(json_array_get(in, i), "in_order", &k));
		TRY(vec_push(&s->in_order, k));
	}
	for (size_t i = 0; i < json_array_size(out); i++) {
		TRY(get_number(json_array_get(out, i), "out_order", &k));
		TRY(vec_push(&s->out_order, k));
	}
	return CLV_OK;
}

static clv_status read_notes(reader *r, const json_t *from, const char *key, artifact_segment *s, bool facts)
{
	json_t *notes = json_object_get(from, key), *text;
	const char *name;
	if (!json_is_object(notes))
		return fail(CLV_E_PARSE, "\"%s\" is missing or no object", key);
	json_object_foreach(notes, name, text)
	{
		artifact_note n;
		TRY(json_get_string(notes, name, &n.text));
		TRY(artifact_text(r->a, name, &n.key));
		TRY(artifact_text(r->a, n.text, &n.text));
		TRY(facts ? vec_push(&s->facts, n) : vec_push(&s->needs, n));
	}
	return CLV_OK;
}

/* The entry that has the member. */
static clv_status read_member(reader *r, uint32_t number, const char *name, artifact_segment *s)
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
		const json_t *name = json_array_get(members, i);
		if (!json_is_string(name) || strlen(json_string_value(name)) != json_string_length(name))
			return fail(CLV_E_PARSE, "the name of a member is no plain string");
		TRY(read_member(r, number, json_string_value(name), s));
	}
	return CLV_OK;
}

static clv_status read_facts(reader *r, const json_t *from, artifact_segment *s)
{
	const char *backend;
	TRY(read_nodes(from, s));
	TRY(json_get_string(from, "backend", &backend));
	TRY(artifact_text(r->a, backend, &s->backend));
	return read_notes(r, from, "facts", s, true);
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
	TRY(read_orders(from, s));
	TRY(read_notes(r, from, "needs", s, false));
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
	const json_t *reason = json_array_get(from, 1);
	if (json_array_size(from) != 2 || !json_is_string(reason) ||
	    strlen(json_string_value(reason)) != json_string_length(reason))
		return fail(CLV_E_PARSE, "a fallback is no node with a reason");
	TRY(get_number(json_array_get(from, 0), "fallbacks", &f.node));
	TRY(artifact_text(r->a, json_string_value(reason), &f.reason));
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
		clv_status st = read_plan(r, i, json_array_get(root, i));
		if (st != CLV_OK)
			return st == CLV_E_NOMEM ? st : fail_more(st, "plan %u", i);
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

static clv_status read_all(reader *r)
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
	clv_status st = r.claimed ? read_all(&r) : fail_nomem();
	mem_free(r.claimed);
	return st;
}
