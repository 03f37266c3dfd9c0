/* Reads a hostile file as an artifact.
 * Opening it checks the header and everything that it says; the data of the tensors is not touched unless that is asked
 * for. Nothing in the file runs. */
#include <string.h>

#include "file/artifact.h"
#include "file/artifact_keys.h"
#include "file/artifact_packed.h"
#include "file/artifact_segments.h"
#include "file/json.h"
#include "file/operators.h"
#include "file/signature.h"
#include "file/training.h"

/* ---- the header ------------------------------------------------------------------------------------------------- */

static clv_status check_version(const json_t *root)
{
	const json_t *version = json_object_get(root, "version");
	const json_t *major = json_array_get(version, 0), *minor = json_array_get(version, 1);
	if (!json_is_integer(major) || !json_is_integer(minor) || json_array_size(version) != 2)
		return fail(CLV_E_PARSE, "\"version\" is no pair of numbers");
	if (json_integer_value(major) < ARTIFACT_PLAIN_MAJOR || json_integer_value(major) > ARTIFACT_MAJOR)
		return fail(CLV_E_PARSE,
		            "the file has version %lld.%lld, this library reads versions %d.x to %d.x: open it with the Cleave "
		            "that wrote it or a newer one, or save the model again with this one",
		            (long long)json_integer_value(major), (long long)json_integer_value(minor), ARTIFACT_PLAIN_MAJOR,
		            ARTIFACT_MAJOR);
	return CLV_OK;
}

static json_int_t minor_version(const json_t *root)
{
	return json_integer_value(json_array_get(json_object_get(root, "version"), 1));
}

static clv_status check_header(const uint8_t *data, const st_file *file)
{
	char text[DIGEST_TEXT];
	size_t n = st_header_size(file);
	const char *place = check_place((char *)data, n);
	if (!place)
		return fail(CLV_E_PARSE, "the header has no check: the file was not written by Cleave, or changed since");
	size_t at = (size_t)((const uint8_t *)place - data), digits = sizeof ARTIFACT_NO_CHECK - 1;
	digest_print(digest_of_three(data, at, ARTIFACT_NO_CHECK, digits, place + digits, n - at - digits), text);
	if (memcmp(text, place, digits) != 0)
		return fail(CLV_E_PARSE, "the header was changed or damaged: its check is %.32s, its content gives %s", place,
		            text);
	return CLV_OK;
}

static clv_status keep_member(artifact *a, const json_t *o, const char *key, const char **out)
{
	const char *s;
	TRY(json_get_string(o, key, &s));
	return artifact_text(a, s, out);
}

static clv_status read_about(artifact *a, const json_t *root)
{
	json_t *about, *text;
	const char *key;
	TRY(json_get_object(root, "about", &about));
	json_object_foreach(about, key, text)
	{
		const char *s;
		TRY(json_get_string(about, key, &s));
		if (minor_version(root) == 0 && !strcmp(key, "sizes")) /* any_size was a note until 1.1 */
			a->any_size = !strcmp(s, "any");
		else
			TRY(artifact_note_add(a, key, s));
	}
	return CLV_OK;
}

static clv_status read_any_size(artifact *a, const json_t *root)
{
	const json_t *any = json_object_get(root, "any_size");
	if (any && !json_is_boolean(any))
		return fail(CLV_E_PARSE, "\"any_size\" is neither true nor false");
	a->any_size = a->any_size || json_is_true(any);
	return CLV_OK;
}

/* Of before there were any, a file has the version alone. */
static clv_status read_weight_digests(artifact *a, const json_t *root)
{
	json_t *digests = json_object_get(root, "weight_digests"), *number;
	int64_t version;
	const char *name;
	TRY(json_get_int(root, "weight_version", &version));
	if (digests && !json_is_object(digests))
		return fail(CLV_E_PARSE, "\"weight_digests\" is no object");
	json_object_foreach(digests, name, number)
	{
		if (!json_is_integer(number) || json_integer_value(number) < 0)
			return fail(CLV_E_PARSE, "\"%.64s\" of \"weight_digests\" is no digest", name);
		TRY(artifact_add_weight(a, name, json_integer_value(number)));
	}
	if (digests && a->weight_version != version)
		return fail(CLV_E_PARSE, "\"weight_digests\" do not add up to the version of the weights");
	a->weight_version = version;
	return CLV_OK;
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

static clv_status get_node(const json_t *from, const char *what, node_id *out)
{
	return json_id(from, out) ? CLV_OK : fail(CLV_E_PARSE, "\"%s\" is no place in the plan", what);
}

static clv_status read_range(artifact_plan *e, const json_t *o)
{
	const json_t *nodes = json_object_get(o, "nodes"), *cut = json_object_get(o, "cut");
	if (json_array_size(nodes) != 2)
		return fail(CLV_E_PARSE, "\"nodes\" is no pair of numbers");
	TRY(get_node(json_array_get(nodes, 0), "nodes", &e->first));
	TRY(get_node(json_array_get(nodes, 1), "nodes", &e->end));
	TRY(get_node(json_object_get(o, "stores"), "stores", &e->nstores));
	return json_is_null(cut) ? CLV_OK : get_node(cut, "cut", &e->cut);
}

static clv_status read_points(artifact_plan *e, const json_t *o)
{
	const json_t *points;
	uint32_t n = artifact_point_size(e->p);
	TRY(json_get_array(o, "points", &points));
	for (size_t i = 0; i < json_array_size(points); i++) {
		const json_t *point = json_array_get(points, i);
		if (!json_is_array(point) || json_array_size(point) != n)
			return fail(CLV_E_PARSE, "a point does not have %u numbers", n);
		for (uint32_t k = 0; k < n; k++) {
			const json_t *x = json_array_get(point, k);
			if (!json_is_integer(x))
				return fail(CLV_E_PARSE, "a point has something that is no size");
			TRY(vec_push(&e->points, (int64_t)json_integer_value(x)));
		}
	}
	return CLV_OK;
}

/* Absent: there are none. */
static clv_status read_fixed(artifact *a, artifact_plan *e, const json_t *o)
{
	json_t *sizes = json_object_get(o, "sizes"), *x;
	const char *name;
	if (!sizes)
		return CLV_OK;
	if (!json_is_object(sizes))
		return fail(CLV_E_PARSE, "\"sizes\" is no object");
	json_object_foreach(sizes, name, x)
	{
		payload_number n = {.value = json_integer_value(x)};
		if (!json_is_integer(x) || n.value < 0)
			return fail(CLV_E_PARSE, "\"%.32s\" of its sizes is none", name);
		TRY(artifact_text(a, name, &n.name));
		TRY(vec_push(&e->fixed, n));
	}
	return CLV_OK;
}

/* Absent: the forward does not ask which of its inputs are the same tensor, or require grad. */
static clv_status read_asked(artifact_plan *e, const json_t *o)
{
	const json_t *same = json_object_get(o, "same_inputs"), *grads = json_object_get(o, "requires_grad");
	if ((same && !json_is_array(same)) || (grads && !json_is_array(grads)))
		return fail(CLV_E_PARSE, "\"same_inputs\" or \"requires_grad\" is no list");
	for (size_t i = 0; i < json_array_size(same); i++) {
		uint32_t first;
		if (!json_id(json_array_get(same, i), &first))
			return fail(CLV_E_PARSE, "\"same_inputs\" has something that is no input");
		TRY(vec_push(&e->same, first));
	}
	for (size_t i = 0; i < json_array_size(grads); i++) {
		const json_t *x = json_array_get(grads, i);
		if (!json_is_null(x) && !json_is_boolean(x))
			return fail(CLV_E_PARSE, "\"requires_grad\" has something that is neither true, false nor null");
		TRY(vec_push(&e->grads, (int8_t)(json_is_null(x) ? -1 : json_is_true(x))));
	}
	return CLV_OK;
}

static clv_status read_const(artifact *a, artifact_plan *e, value_id v, const json_t *consts)
{
	char *label;
	TRY(value_label_text(e->p, v, &label));
	const char *name = json_string_value(json_object_get(consts, label));
	mem_free(label);
	if (!name)
		return CLV_OK; /* the part may not need it; artifact_check knows */
	artifact_const c = {v, payload_find(a->tensors, name)};
	if (c.tensor == NONE)
		return fail(CLV_E_PARSE, "there is no tensor \"%.64s\"", name);
	return vec_push(&e->consts, c);
}

static clv_status read_consts(artifact *a, artifact_plan *e, const json_t *o)
{
	json_t *consts;
	TRY(json_get_object(o, "consts", &consts));
	for (value_id v = 0; v < e->p->values.n; v++)
		if (e->p->values.at[v].kind == VALUE_CONST)
			TRY(read_const(a, e, v, consts));
	return CLV_OK;
}

static clv_status parse_plan(const artifact *a, uint32_t number, plan **out)
{
	char key[PLAN_KEY];
	size_t n;
	plan_key(number, key);
	const char *text = st_metadata(a->file, key, &n);
	if (!text)
		return fail(CLV_E_PARSE, "its text is missing");
	return clv_plan_parse(text, n, out);
}

static clv_status read_plan(artifact *a, uint32_t number, const json_t *from, const clv_open_options *o)
{
	const char *signature;
	plan *p;
	TRY(json_get_string(from, "signature", &signature));
	TRY(parse_plan(a, number, &p));
	TRY(artifact_add_plan(a, p, signature));
	artifact_plan *e = &a->plans.at[a->plans.n - 1];
	TRY(operators_check(e->p, o->allow_operators, o->nallow_operators));
	TRY(read_range(e, from));
	TRY(read_fixed(a, e, from));
	TRY(read_asked(e, from));
	TRY(read_points(e, from));
	return read_consts(a, e, from);
}

static clv_status read_plans(artifact *a, const json_t *root, const clv_open_options *o)
{
	const json_t *plans;
	TRY(json_get_array(root, "plans", &plans));
	for (uint32_t i = 0; i < json_array_size(plans); i++) {
		TRY_MORE(read_plan(a, i, json_array_get(plans, i), o), "plan %u", i);
	}
	return CLV_OK;
}

/* ---- digests of the data ---------------------------------------------------------------------------------------- */

static clv_status read_digests(artifact *a, const json_t *root)
{
	const json_t *digests = json_object_get(root, "digests");
	for (uint32_t i = 0; i < st_count(a->file); i++) {
		digest d;
		const char *text = json_string_value(json_object_get(digests, st_at(a->file, i)->name));
		if (!text || !digest_parse(text, &d))
			return fail(CLV_E_PARSE, "tensor \"%.64s\" has no digest", st_at(a->file, i)->name);
		TRY(vec_push(&a->digests, d));
	}
	return CLV_OK;
}

clv_status artifact_check_entry(const artifact *a, uint32_t i)
{
	const st_entry *e = st_at(a->file, i);
	return digest_equal(digest_of(e->data, e->nbytes), a->digests.at[i]) ? CLV_OK : payload_damaged(e->name);
}

clv_status artifact_check_data(const artifact *a)
{
	for (uint32_t i = 0; i < a->digests.n; i++)
		TRY(artifact_check_entry(a, i));
	return CLV_OK;
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

static clv_status read_description(artifact *a, const json_t *root, const clv_open_options *o)
{
	TRY(keep_member(a, root, "part", &a->part));
	TRY(keep_member(a, root, "split_id", &a->split_id));
	TRY(keep_member(a, root, "boundary", &a->boundary));
	TRY(keep_member(a, root, "batch", &a->batch));
	TRY(read_weight_digests(a, root));
	TRY(json_get_bool(root, "weights", &a->weights));
	TRY(read_about(a, root));
	TRY(read_any_size(a, root));
	TRY(read_digests(a, root));
	payload_free(a->tensors);
	a->tensors = NULL;
	TRY(payload_from(a->file, PAYLOAD_WEIGHTS, &a->tensors));
	TRY(read_plans(a, root, o));
	TRY(segments_read(a));
	TRY(packed_read(a));
	TRY(training_find(a));
	TRY(artifact_check(a));
	return o->check_data ? artifact_check_data(a) : CLV_OK;
}

static clv_status not_an_artifact(const st_file *file)
{
	size_t n;
	if (st_metadata(file, PAYLOAD_KEY, &n))
		return fail(CLV_E_PARSE, "this is a payload (a boundary or values), not a model");
	return fail(CLV_E_PARSE, "this is a safetensors file, but Cleave did not write it: it has tensors and no plan");
}

/* Before anything is parsed: with trusted keys, the bytes of strangers get no further. */
static clv_status read_signature(artifact *a, const void *data, size_t n, const clv_open_options *o)
{
	char fingerprint[FINGERPRINT_TEXT];
	if (o->ntrusted_keys)
		TRY(signature_verify(data, n, o->trusted_keys, o->ntrusted_keys, fingerprint));
	else if (signature_is_there(data, n))
		TRY(signature_claimed(data, n, fingerprint));
	else
		return CLV_OK;
	if (o->ntrusted_keys)
		a->vouching = VOUCHED_SIGNED;
	return artifact_text(a, fingerprint, &a->signer);
}

/* A signature elsewhere in the header would neither be shown nor verified. */
static clv_status check_signature_place(const artifact *a)
{
	size_t n;
	return a->signer || !st_metadata(a->file, SIGNATURE_KEY, &n)
	           ? CLV_OK
	           : fail(CLV_E_PARSE, "the signature is not where signatures are: the header was changed");
}

/* For opening the same bytes in another process. */
static clv_status keep_allowed(artifact *a, const clv_open_options *o)
{
	for (uint32_t i = 0; i < o->nallow_operators; i++) {
		const char *name;
		TRY(artifact_text(a, o->allow_operators[i] ? o->allow_operators[i] : "", &name));
		TRY(vec_push(&a->allowed, name));
	}
	return CLV_OK;
}

static clv_status parse_into(artifact *a, const void *data, size_t n, const clv_open_options *o, bool inner)
{
	json_t *root;
	size_t text_n;
	TRY(read_signature(a, data, n, o));
	a->data = data;
	a->data_n = n;
	TRY(keep_allowed(a, o));
	TRY(st_parse(data, n, &a->file));
	TRY(check_signature_place(a));
	if (inner && st_metadata(a->file, ARTIFACT_TRAINING_KEY, &text_n))
		return fail(CLV_E_PARSE, "a file in a file cannot train");
	const char *text = st_metadata(a->file, ARTIFACT_KEY, &text_n);
	if (!text)
		return not_an_artifact(a->file);
	TRY(json_read(text, text_n, "the description", &root));
	clv_status st = check_version(root);
	if (st == CLV_OK)
		st = check_header(data, a->file);
	if (st == CLV_OK && a->vouching != VOUCHED_SIGNED)
		a->vouching = artifact_check_seal(data, st_header_size(a->file));
	if (st == CLV_OK)
		st = read_description(a, root, o);
	json_decref(root);
	return st;
}

static clv_status parse(const void *data, size_t n, const clv_open_options *o, bool inner, artifact **out)
{
	artifact *a;
	TRY(artifact_new("", &a));
	a->vouching = UNVOUCHED_NO_SEAL;
	clv_status st = parse_into(a, data, n, o, inner);
	if (st == CLV_OK)
		*out = a;
	else
		artifact_free(a);
	return st;
}

clv_status artifact_parse(const void *data, size_t n, const clv_open_options *o, artifact **out)
{
	return parse(data, n, o, false, out);
}

clv_status artifact_parse_inner(const void *data, size_t n, const clv_open_options *o, artifact **out)
{
	return parse(data, n, o, true, out);
}

/* Parses the bytes whose seal was checked, even if the file is written meanwhile. */
static clv_status own_header(mapping *m)
{
	uint64_t length = 0;
	if (m->n < sizeof length)
		return CLV_OK;
	TRY(mapping_own(m, sizeof length));
	for (int i = sizeof length - 1; i >= 0; i--)
		length = length << 8 | m->at[i];
	return length <= ST_HEADER_MAX && length <= m->n - sizeof length ? mapping_own(m, length + sizeof length) : CLV_OK;
}

clv_status artifact_open(const char *path, const clv_open_options *o, artifact **out)
{
	mapping map;
	artifact *a;
	bool copied = o->copy || o->check_data || o->ntrusted_keys; /* what was checked is what runs */
	TRY(file_map(path, copied, &map));
	clv_status st = copied ? CLV_OK : own_header(&map);
	if (st == CLV_OK)
		st = artifact_parse(map.at, map.n, o, &a);
	if (st != CLV_OK) {
		file_unmap(&map);
		return st == CLV_E_NOMEM ? st : fail_more(st, "%s", path);
	}
	a->map = map;
	a->changes = !copied;
	*out = a;
	return CLV_OK;
}

clv_status artifact_settle(artifact *a)
{
	if (a->changes)
		TRY(mapping_settle(&a->map));
	a->changes = false;
	return CLV_OK;
}

bool artifact_looks_like(const void *data, size_t n)
{
	const uint8_t *bytes = data;
	return n > 8 && bytes[8] == '{' && bytes[7] == 0 && bytes[6] == 0 && bytes[5] == 0;
}
