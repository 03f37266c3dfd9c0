/* Converts trees of values to JSON and back.
 * What JSON has stands for itself (null, true, texts, arrays, integers of 64 bits); everything else is an object with
 * one member that says what it is: {"tuple": […]}, {"float": "0.5"}, {"tensor": "label"}. */
#include <math.h>
#include <string.h>

#include "base/number.h"
#include "file/json.h"
#include "file/payload.h"

/* Objects that a tree may hold: the name of the member, the class, its fields; NULL: numbered, any number of them. */
typedef struct class {
	const char *member, *name;
	const char *const *fields;
	bool hashable, may_be_none; /* as a key; a field */
} class;

static const char *const slice_fields[] = {"start", "stop", "step"};
static const class classes[] = {
	{"slice", "builtins:slice", slice_fields, false, true},
	{"range", "builtins:range", slice_fields, true, false},
	{"size", "torch:Size", NULL, true, false},
};
enum { CLASSES = sizeof classes / sizeof *classes, FIELDS = 3 };

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

void float_print(double v, strbuf *b)
{
	uint64_t bits;
	memcpy(&bits, &v, sizeof bits);
	if (isnan(v))
		strbuf_printf(b, "nan:%016llx", (unsigned long long)bits);
	else
		strbuf_double(b, v);
}

static bool nan_parse(const char *hex, double *out)
{
	uint64_t bits = 0;
	for (int i = 0; i < 16; i++) {
		int digit = hex_digit(hex[i]);
		if (digit < 0)
			return false;
		bits = bits << 4 | (unsigned)digit;
	}
	memcpy(out, &bits, sizeof bits);
	return hex[16] == '\0' && isnan(*out);
}

clv_status float_parse(const char *s, double *out)
{
	bool ok;
	if (strncmp(s, "nan:", 4) == 0) {
		ok = nan_parse(s + 4, out);
	} else if (strcmp(s, "inf") == 0 || strcmp(s, "-inf") == 0) {
		*out = *s == '-' ? -INFINITY : INFINITY;
		ok = true;
	} else {
		ok = number_parse(s, out);
	}
	return ok ? CLV_OK : fail(CLV_E_PARSE, "\"%.40s\" is no number", s);
}

/* Decimal text of a number of 64 bits, as strbuf_int writes it. */
static bool small_int(const char *s, int64_t *out)
{
	char again[24];
	*out = 0;
	bool minus = *s == '-';
	for (const char *c = s + minus; *c; c++) {
		if (*c < '0' || *c > '9' || __builtin_mul_overflow(*out, 10, out) ||
		    __builtin_add_overflow(*out, minus ? '0' - *c : *c - '0', out))
			return false;
	}
	snprintf(again, sizeof again, "%lld", (long long)*out);
	return strcmp(s, again) == 0;
}

/* [-]0x and hexadecimal digits without a leading zero. */
static bool is_big_int(const char *s)
{
	s += *s == '-';
	if (s[0] != '0' || s[1] != 'x' || s[2] == '\0' || s[2] == '0')
		return false;
	for (s += 2; *s; s++)
		if (hex_digit(*s) < 0)
			return false;
	return true;
}

/* ---- to JSON ---------------------------------------------------------------------------------------------------- */

typedef struct writer {
	const payload *p;
	uint32_t at;
} writer;

static clv_status value_to_json(writer *w, bool key, unsigned depth, json_t **out);

/* {member: inner}; inner is taken. */
static clv_status wrap(const char *member, json_t *inner, json_t **out)
{
	json_t *object = json_object();
	if (!object) {
		json_decref(inner);
		return fail_nomem();
	}
	clv_status st = json_put(object, member, inner);
	if (st != CLV_OK)
		json_decref(object);
	*out = object;
	return st;
}

static clv_status put_wrapped_text(const char *member, strbuf *b, json_t **out)
{
	json_t *text = b->failed ? NULL : json_stringn(b->n ? b->at : "", b->n);
	strbuf_free(b);
	return text ? wrap(member, text, out) : fail_nomem();
}

static clv_status int_to_json(const str *s, json_t **out)
{
	int64_t small;
	if (!small_int(s->s, &small)) {
		if (!is_big_int(s->s))
			return fail(CLV_E_INVALID, "\"%.40s\" is no integer", s->s);
		return wrap("int", json_string(s->s), out);
	}
	*out = json_integer(small);
	return *out ? CLV_OK : fail_nomem();
}

static clv_status float_to_json(double v, json_t **out)
{
	strbuf b = STRBUF_INIT;
	float_print(v, &b);
	return put_wrapped_text("float", &b, out);
}

static clv_status complex_to_json(double re, double im, json_t **out)
{
	strbuf b = STRBUF_INIT, c = STRBUF_INIT;
	float_print(re, &b);
	float_print(im, &c);
	json_t *pair = json_array();
	bool ok = pair && !b.failed && !c.failed && json_array_append_new(pair, json_stringn(b.at, b.n)) == 0 &&
	          json_array_append_new(pair, json_stringn(c.at, c.n)) == 0;
	strbuf_free(&b);
	strbuf_free(&c);
	if (ok)
		return wrap("complex", pair, out);
	json_decref(pair);
	return fail_nomem();
}

static clv_status bytes_to_json(const str *s, json_t **out)
{
	static const char hex[] = "0123456789abcdef";
	strbuf b = STRBUF_INIT;
	for (uint32_t i = 0; i < s->n; i++) {
		unsigned char c = (unsigned char)s->s[i];
		strbuf_putc(&b, hex[c >> 4]);
		strbuf_putc(&b, hex[c & 15]);
	}
	return put_wrapped_text("bytes", &b, out);
}

static bool field_ok(const tree *t)
{
	return t->kind == TREE_INT || t->kind == TREE_NONE;
}

/* n elements from here on as an array; of pairs the first is a key; `skip` leaves out the names of fields. */
static clv_status children_to_json(writer *w, const tree *t, bool key, bool skip, unsigned depth, json_t **out)
{
	json_t *array = json_array();
	clv_status st = array ? CLV_OK : fail_nomem();
	for (uint32_t i = 0; i < t->n && st == CLV_OK; i++) {
		json_t *child;
		bool name = i % 2 == 0 && (t->kind == TREE_DICT || t->kind == TREE_OBJECT);
		if (name && skip) {
			w->at++;
			continue;
		}
		if (skip && !field_ok(&w->p->values.at[w->at])) {
			st = fail(CLV_E_UNSUPPORTED, "a slice, range or size of something else than integers");
			break;
		}
		st = value_to_json(w, key || name, depth + 1, &child);
		if (st == CLV_OK)
			st = json_push(array, child);
	}
	if (st != CLV_OK)
		json_decref(array);
	*out = array;
	return st;
}

static const class *find_class(const char *name, uint32_t n)
{
	for (size_t i = 0; i < CLASSES; i++)
		if (strlen(classes[i].name) == n && memcmp(classes[i].name, name, n) == 0)
			return &classes[i];
	return NULL;
}

static clv_status container_to_json(writer *w, const tree *t, bool key, unsigned depth, json_t **out)
{
	json_t *children;
	const class *c = NULL;
	if (depth >= PAYLOAD_DEPTH)
		return fail(CLV_E_UNSUPPORTED, "values are nested over %d levels deep", PAYLOAD_DEPTH);
	if (t->kind == TREE_OBJECT) {
		c = find_class(w->p->strs.at[t->u.s].s, w->p->strs.at[t->u.s].n);
		if (!c || t->n % 2 || (c->fields && t->n != 2 * FIELDS))
			return fail(CLV_E_UNSUPPORTED, "a payload cannot hold a %.64s", w->p->strs.at[t->u.s].s);
	}
	if (key && t->kind != TREE_TUPLE && !(c && c->hashable))
		return fail(CLV_E_UNSUPPORTED, "a key of a dict is a list, a dict or a slice");
	TRY(children_to_json(w, t, key, c != NULL, depth, &children));
	*out = children;
	if (t->kind == TREE_LIST)
		return CLV_OK;
	return wrap(c ? c->member : t->kind == TREE_TUPLE ? "tuple" : "dict", children, out);
}

static clv_status tensor_to_json(const payload *p, const tree *t, bool key, json_t **out)
{
	if (key)
		return fail(CLV_E_UNSUPPORTED, "a key of a dict is a tensor");
	return wrap("tensor", json_string(p->tensors.at[t->u.v].label), out);
}

static clv_status value_to_json(writer *w, bool key, unsigned depth, json_t **out)
{
	const tree *t = &w->p->values.at[w->at++];
	switch ((tree_kind)t->kind) {
	case TREE_NONE: *out = json_null(); return CLV_OK;
	case TREE_BOOL: *out = json_boolean(t->u.b); return CLV_OK;
	case TREE_INT: return int_to_json(&w->p->strs.at[t->u.s], out);
	case TREE_FLOAT: return float_to_json(t->u.f, out);
	case TREE_COMPLEX: return complex_to_json(t->u.c.re, t->u.c.im, out);
	case TREE_STR: return json_text(w->p->strs.at[t->u.s].s, w->p->strs.at[t->u.s].n, out);
	case TREE_BYTES: return bytes_to_json(&w->p->strs.at[t->u.s], out);
	case TREE_VALUE: return tensor_to_json(w->p, t, key, out);
	case TREE_LIST:
	case TREE_TUPLE:
	case TREE_DICT:
	case TREE_OBJECT: return container_to_json(w, t, key, depth, out);
	case TREE_OPAQUE:
	case TREE_REAL: break; /* a payload has numbers, no formulas */
	}
	return fail(CLV_E_UNSUPPORTED, "a payload cannot hold an object that only Python knows");
}

clv_status tree_to_json(const payload *p, json_t **out)
{
	writer w = {p, 0};
	if (p->values.n == 0) {
		*out = json_null();
		return CLV_OK;
	}
	return value_to_json(&w, false, 0, out);
}

/* ---- from JSON -------------------------------------------------------------------------------------------------- */

static clv_status value_from_json(payload *p, const json_t *from, bool key, unsigned depth);

static clv_status push(payload *p, tree t)
{
	return vec_push(&p->values, t);
}

static clv_status push_str(payload *p, tree_kind kind, const char *s, size_t n)
{
	tree t = {.kind = (uint8_t)kind};
	TRY(payload_str(p, s, n, &t.u.s));
	return push(p, t);
}

static clv_status get_small_int(payload *p, const json_t *from)
{
	char text[24];
	int n = snprintf(text, sizeof text, "%lld", (long long)json_integer_value(from));
	return push_str(p, TREE_INT, text, (size_t)n);
}

static clv_status bytes_from_json(payload *p, const json_t *from)
{
	const char *hex = json_string_value(from);
	size_t n = hex ? json_string_length(from) : 0;
	strbuf b = STRBUF_INIT;
	for (size_t i = 0; i + 1 < n && n % 2 == 0; i += 2) {
		int high = hex_digit(hex[i]), low = hex_digit(hex[i + 1]);
		if (high < 0 || low < 0)
			break;
		strbuf_putc(&b, (char)(high << 4 | low));
	}
	clv_status st = CLV_OK;
	if (b.failed)
		st = fail_nomem();
	else if (!hex || b.n * 2 != n)
		st = fail(CLV_E_PARSE, "\"bytes\" are not in hexadecimal");
	else
		st = push_str(p, TREE_BYTES, b.n ? b.at : "", b.n);
	strbuf_free(&b);
	return st;
}

static clv_status get_float_text(const json_t *from, double *out)
{
	const char *s = json_string_value(from);
	return s ? float_parse(s, out) : fail(CLV_E_PARSE, "a float is no text");
}

static clv_status complex_from_json(payload *p, const json_t *from)
{
	tree t = {.kind = TREE_COMPLEX};
	if (json_array_size(from) != 2)
		return fail(CLV_E_PARSE, "\"complex\" is no pair");
	TRY(get_float_text(json_array_get(from, 0), &t.u.c.re));
	TRY(get_float_text(json_array_get(from, 1), &t.u.c.im));
	return push(p, t);
}

static clv_status tensor_from_json(payload *p, const json_t *from, bool key)
{
	tree t = {.kind = TREE_VALUE};
	const char *label = json_string_value(from);
	if (key)
		return fail(CLV_E_PARSE, "a key of a dict is a tensor");
	t.u.v = label ? payload_find(p, label) : NONE;
	if (t.u.v == NONE)
		return fail(CLV_E_PARSE, "there is no tensor \"%.64s\" for a value", label ? label : "?");
	return push(p, t);
}

static clv_status children_from_json(payload *p, const json_t *from, tree_kind kind, bool key, unsigned depth)
{
	size_t n = json_array_size(from);
	if (!json_is_array(from) || n >= UINT32_MAX || (kind == TREE_DICT && n % 2))
		return fail(CLV_E_PARSE, "the elements of a value are no array, or no pairs");
	if (depth >= PAYLOAD_DEPTH)
		return fail(CLV_E_PARSE, "values are nested over %d levels deep", PAYLOAD_DEPTH);
	if (key && kind != TREE_TUPLE)
		return fail(CLV_E_PARSE, "a key of a dict is a list or a dict");
	TRY(push(p, (tree){.kind = (uint8_t)kind, .n = (uint32_t)n}));
	for (size_t i = 0; i < n; i++)
		TRY(value_from_json(p, json_array_get(from, i), key || (kind == TREE_DICT && i % 2 == 0), depth + 1));
	return CLV_OK;
}

static clv_status get_big_int(payload *p, const json_t *from)
{
	const char *s = json_string_value(from);
	if (!s || strlen(s) != json_string_length(from) || !is_big_int(s))
		return fail(CLV_E_PARSE, "\"int\" is not in hexadecimal");
	return push_str(p, TREE_INT, s, strlen(s));
}

static clv_status get_field(payload *p, const class *c, const json_t *from, size_t i)
{
	char number[24];
	snprintf(number, sizeof number, "%zu", i);
	const char *name = c->fields ? c->fields[i] : number;
	TRY(push_str(p, TREE_STR, name, strlen(name)));
	if (json_is_integer(from))
		return get_small_int(p, from);
	if (json_is_null(from) && c->may_be_none)
		return push(p, (tree){.kind = TREE_NONE});
	return get_big_int(p, json_object_get(from, "int"));
}

static clv_status object_from_json(payload *p, const class *c, const json_t *from, bool key)
{
	size_t n = json_array_size(from);
	tree t = {.kind = TREE_OBJECT, .n = (uint32_t)(2 * n)};
	if (!json_is_array(from) || n > UINT32_MAX / 2 || (c->fields && n != FIELDS))
		return fail(CLV_E_PARSE, "\"%s\" has not the elements it should have", c->member);
	if (key && !c->hashable)
		return fail(CLV_E_PARSE, "a key of a dict is a %s", c->member);
	TRY(payload_str(p, c->name, strlen(c->name), &t.u.s));
	TRY(push(p, t));
	for (size_t i = 0; i < n; i++)
		TRY(get_field(p, c, json_array_get(from, i), i));
	return CLV_OK;
}

static clv_status float_from_json(payload *p, const json_t *from)
{
	tree t = {.kind = TREE_FLOAT};
	TRY(get_float_text(from, &t.u.f));
	return push(p, t);
}

static clv_status get_wrapped(payload *p, const json_t *from, bool key, unsigned depth)
{
	void *only = json_object_iter((json_t *)from);
	if (json_object_size(from) != 1)
		return fail(CLV_E_PARSE, "a value is an object with %zu members instead of one", json_object_size(from));
	const char *what = json_object_iter_key(only);
	const json_t *inner = json_object_iter_value(only);
	if (strcmp(what, "int") == 0)
		return get_big_int(p, inner);
	if (strcmp(what, "float") == 0)
		return float_from_json(p, inner);
	if (strcmp(what, "complex") == 0)
		return complex_from_json(p, inner);
	if (strcmp(what, "bytes") == 0)
		return bytes_from_json(p, inner);
	if (strcmp(what, "tensor") == 0)
		return tensor_from_json(p, inner, key);
	if (strcmp(what, "tuple") == 0)
		return children_from_json(p, inner, TREE_TUPLE, key, depth);
	if (strcmp(what, "dict") == 0)
		return children_from_json(p, inner, TREE_DICT, key, depth);
	for (size_t i = 0; i < CLASSES; i++)
		if (strcmp(classes[i].member, what) == 0)
			return object_from_json(p, &classes[i], inner, key);
	return fail(CLV_E_PARSE, "there is no kind of value \"%.32s\"", what);
}

static clv_status value_from_json(payload *p, const json_t *from, bool key, unsigned depth)
{
	switch (json_typeof(from)) {
	case JSON_NULL: return push(p, (tree){.kind = TREE_NONE});
	case JSON_TRUE:
	case JSON_FALSE: return push(p, (tree){.kind = TREE_BOOL, .u.b = json_is_true(from)});
	case JSON_INTEGER: return get_small_int(p, from);
	case JSON_STRING: return push_str(p, TREE_STR, json_string_value(from), json_string_length(from));
	case JSON_ARRAY: return children_from_json(p, from, TREE_LIST, key, depth);
	case JSON_OBJECT: return get_wrapped(p, from, key, depth);
	case JSON_REAL: break;
	}
	return fail(CLV_E_PARSE, "a value is a JSON number with a point; floats are {\"float\": \"…\"}");
}

clv_status tree_from_json(payload *p, const json_t *from)
{
	return value_from_json(p, from, false, 0);
}
