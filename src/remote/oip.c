/* The Open Inference Protocol, as a client has it: metadata, inputs with binary data, outputs. Answers are read as hostile. */
#include <stdio.h>
#include <string.h>

#include "base/member.h"
#include "file/json.h"
#include "file/oip_types.h"
#include "remote/remote.h"

enum { INPUTS, OUTPUTS, PORTS_MOST = 65536, RANK_MOST = 64 };

/* "FP32", or "c64": types that the protocol has no name for are called as in plans. */
static bool read_datatype(const char *s, dtype *out)
{
	return oip_dtype(s, out) || dtype_parse(s, strlen(s), out);
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

static clv_status keep_text(clv_remote *r, const char *s, const char **out)
{
	*out = arena_copy(&r->arena, s, strlen(s) + 1);
	return *out ? CLV_OK : fail_nomem();
}

static clv_status read_port_dims(clv_remote *r, const json_t *shape, clv_port *p)
{
	if (json_array_size(shape) > RANK_MOST)
		return fail(CLV_E_PARSE, "a tensor has %zu dimensions", json_array_size(shape));
	p->ndim = (uint32_t)json_array_size(shape);
	const char **dims = arena_alloc(&r->arena, (p->ndim + 1) * sizeof *dims);
	TRY_MEM(dims);
	for (uint32_t d = 0; d < p->ndim; d++) {
		char text[32];
		const json_t *n = json_array_get(shape, d);
		if (!json_is_integer(n) || json_integer_value(n) < -1)
			return fail(CLV_E_PARSE, "dimension %u of a tensor is no size", d);
		snprintf(text, sizeof text, "%lld", (long long)json_integer_value(n));
		TRY(keep_text(r, text, &dims[d]));
	}
	p->dims = dims;
	return CLV_OK;
}

static clv_status read_port(clv_remote *r, const json_t *from, clv_port *p)
{
	const char *name, *type;
	const json_t *shape;
	dtype d;
	*p = (clv_port){.size = sizeof *p, .device = "cpu"};
	TRY(json_get_string(from, "name", &name));
	TRY(json_get_string(from, "datatype", &type));
	TRY(json_get_array(from, "shape", &shape));
	if (!read_datatype(type, &d))
		return fail(CLV_E_UNSUPPORTED, "tensor \"%.64s\" is of type %.32s, which is not known here", name, type);
	p->dtype = dtype_name(d);
	TRY(keep_text(r, name, &p->name));
	return read_port_dims(r, shape, p);
}

static clv_status read_ports(clv_remote *r, const json_t *root, int which)
{
	const json_t *list;
	TRY(json_get_array(root, which == INPUTS ? "inputs" : "outputs", &list));
	if (json_array_size(list) > PORTS_MOST)
		return fail(CLV_E_PARSE, "it has %zu inputs or outputs", json_array_size(list));
	uint32_t n = (uint32_t)json_array_size(list);
	r->ports[which] = arena_alloc(&r->arena, (n + 1) * sizeof(clv_port));
	TRY_MEM(r->ports[which]);
	for (uint32_t i = 0; i < n; i++)
		TRY(read_port(r, json_array_get(list, i), &r->ports[which][i]));
	r->nports[which] = n;
	return CLV_OK;
}

static clv_status read_model(clv_remote *r, const json_t *root)
{
	TRY(read_ports(r, root, INPUTS));
	TRY(read_ports(r, root, OUTPUTS));
	const char *part = json_plain_string(json_object_get(json_object_get(root, "parameters"), "part"));
	r->suffix = part && strcmp(part, "suffix") == 0;
	return CLV_OK;
}

clv_status remote_read_metadata(clv_remote *r, const char *text, size_t n)
{
	json_t *root;
	TRY(json_read(text ? text : "", n, "the metadata of the model", &root));
	clv_status st = read_model(r, root);
	json_decref(root);
	if (st != CLV_OK)
		r->nports[INPUTS] = r->nports[OUTPUTS] = 0;
	return st;
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static clv_status put_input(const clv_port *p, const clv_tensor *t, strbuf *b)
{
	const char *type = clv_tensor_dtype(t), *name;
	if (clv_tensor_bytes(t) < 0 || !(name = oip_datatype(type)))
		return fail(CLV_E_UNSUPPORTED, "input %.64s is %s, which cannot be sent", p->name, type);
	if (strcmp(type, p->dtype) != 0)
		return fail(CLV_E_INPUT, "input %.64s is %s, expected %s", p->name, type, p->dtype);
	member_open(b, NULL, '{');
	member_text(b, "name", p->name);
	member_text(b, "datatype", name);
	member_open(b, "shape", '[');
	for (uint32_t i = 0; i < clv_tensor_ndim(t); i++)
		member_int(b, NULL, clv_tensor_dim(t, i));
	strbuf_putc(b, ']');
	member_open(b, "parameters", '{');
	member_int(b, "binary_data_size", clv_tensor_bytes(t));
	strbuf_puts(b, "}}");
	return CLV_OK;
}

clv_status remote_write_inputs(const clv_remote *r, const clv_tensor *const *inputs, strbuf *b)
{
	member_open(b, NULL, '{');
	member_open(b, "parameters", '{');
	member_bool(b, "binary_data_output", true);
	strbuf_putc(b, '}');
	member_open(b, "inputs", '[');
	for (uint32_t i = 0; i < r->nports[INPUTS]; i++)
		TRY(put_input(&r->ports[INPUTS][i], inputs[i], b));
	strbuf_puts(b, "]}");
	return b->failed ? fail_nomem() : CLV_OK;
}

/* ---- outputs ----------------------------------------------------------------------------------------------------- */

static clv_status fail_count(const clv_remote *r, size_t n)
{
	return fail(
		CLV_E_PARSE,
		"it sent %zu outputs instead of %u: a model that gives others for other data than its metadata lists can be "
		"asked by clients of the protocol alone",
		n, r->nports[OUTPUTS]);
}

/* An output as it came: it is what the metadata announced. */
static clv_status take_output(const clv_port *p, dtype d, uint32_t ndim, const int64_t *shape, const void *data,
                              size_t n, clv_tensor **out)
{
	size_t want;
	if (strcmp(dtype_name(d), p->dtype) != 0 || ndim != p->ndim)
		return fail(CLV_E_PARSE, "output \"%.64s\" is %s with %u dimensions, not %s with %u as its metadata says",
		            p->name, dtype_name(d), ndim, p->dtype, p->ndim);
	TRY(shape_bytes(d, ndim, shape, &want));
	if (want != n)
		return fail(CLV_E_PARSE, "output \"%.64s\" has %zu bytes instead of %zu", p->name, n, want);
	TRY_MORE(bools_check(d, data, n), "output \"%.64s\"", p->name);
	return clv_tensor_from_data(data, dtype_name(d), ndim, shape, out);
}

clv_status remote_read_tensors(const clv_remote *r, const remote_answer *a, clv_tensor **outputs)
{
	st_file *f;
	clv_status st = CLV_OK;
	TRY(st_parse(a->body, a->n, &f));
	if (st_count(f) != r->nports[OUTPUTS])
		st = fail_count(r, st_count(f));
	for (uint32_t i = 0; st == CLV_OK && i < r->nports[OUTPUTS]; i++) {
		const clv_port *p = &r->ports[OUTPUTS][i];
		uint32_t k = st_find(f, p->name);
		const st_entry *e = k == NONE ? NULL : st_at(f, k);
		st = e ? take_output(p, e->dtype, e->ndim, e->shape, e->data, e->nbytes, &outputs[i])
		       : fail(CLV_E_PARSE, "output \"%.64s\" is missing", p->name);
	}
	st_free(f);
	return st;
}

static uint32_t find_output(const clv_remote *r, const char *name)
{
	for (uint32_t i = 0; i < r->nports[OUTPUTS]; i++)
		if (strcmp(r->ports[OUTPUTS][i].name, name) == 0)
			return i;
	return NONE;
}

static clv_status read_binary_output(const clv_remote *r, const json_t *from, const char **at, size_t *left,
                                     clv_tensor **outputs)
{
	const char *name, *type;
	const json_t *shape, *parameters;
	int64_t sizes[RANK_MOST], bytes;
	dtype d;
	TRY(json_get_string(from, "name", &name));
	TRY(json_get_string(from, "datatype", &type));
	TRY(json_get_array(from, "shape", &shape));
	TRY(json_get_object(from, "parameters", (json_t **)&parameters));
	TRY(json_get_int(parameters, "binary_data_size", &bytes));
	uint32_t i = find_output(r, name), ndim = (uint32_t)json_array_size(shape);
	if (i == NONE || outputs[i])
		return fail(CLV_E_PARSE, "output \"%.64s\" is %s", name, i == NONE ? "none of the model's" : "there twice");
	if (!read_datatype(type, &d) || json_array_size(shape) > RANK_MOST || bytes < 0 || (uint64_t)bytes > *left)
		return fail(CLV_E_PARSE, "output \"%.64s\" has an impossible type, shape or size", name);
	for (uint32_t k = 0; k < ndim; k++) {
		const json_t *size = json_array_get(shape, k);
		sizes[k] = json_integer_value(size);
		if (!json_is_integer(size) || sizes[k] < 0)
			return fail(CLV_E_PARSE, "dimension %u of output \"%.64s\" is no size", k, name);
	}
	TRY(take_output(&r->ports[OUTPUTS][i], d, ndim, sizes, *at, (size_t)bytes, &outputs[i]));
	*at += bytes;
	*left -= (size_t)bytes;
	return CLV_OK;
}

static clv_status read_outputs(const clv_remote *r, const json_t *root, const char *at, size_t left,
                               clv_tensor **outputs)
{
	const json_t *list;
	TRY(json_get_array(root, "outputs", &list));
	if (json_array_size(list) != r->nports[OUTPUTS])
		return fail_count(r, json_array_size(list));
	for (size_t i = 0; i < json_array_size(list); i++)
		TRY(read_binary_output(r, json_array_get(list, i), &at, &left, outputs));
	return left ? fail(CLV_E_PARSE, "%zu bytes after its outputs belong to none", left) : CLV_OK;
}

clv_status remote_read_binary(const clv_remote *r, const remote_answer *a, clv_tensor **outputs)
{
	json_t *root;
	if (a->head.json < 0 || (uint64_t)a->head.json > a->n)
		return fail(CLV_E_PARSE, "its outputs did not come as binary data, which the request asks for");
	size_t n = (size_t)a->head.json;
	TRY(json_read(a->n ? a->body : "", n, "its answer", &root));
	clv_status st = read_outputs(r, root, a->body + n, a->n - n, outputs);
	json_decref(root);
	return st;
}
