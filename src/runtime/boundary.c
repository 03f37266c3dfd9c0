/* Boundaries: the values between a prefix and a suffix, also as bytes or a file (docs/payload.md). */
#include <string.h>

#include "base/options.h"
#include "file/tensors.h"
#include "runtime/runtime.h"

typedef struct crossing {
	const char *label;
	clv_tensor *tensor; /* owned */
	bool requires_grad; /* where it was made, for training; no graph came with it */
	clv_loss loss;      /* on its way here */
} crossing;

struct clv_boundary {
	const char *split_id, *signature, *batch;
	int64_t weight_version;
	bool has_batch_size;
	bool trains; /* its prefix waits for gradients */
	int64_t batch_size;
	VEC(crossing) tensors;
	VEC(payload_number) sizes;
	text_index by_size; /* once all are there */
	VEC(payload_schema) schema;
	VEC(const char *) passthrough;
	arena arena;
};

typedef struct clv_boundary boundary;

static clv_status boundary_new(boundary **out)
{
	*out = mem_alloc(sizeof **out);
	return *out ? CLV_OK : fail_nomem();
}

void clv_boundary_free(clv_boundary *b)
{
	if (!b)
		return;
	for (uint32_t i = 0; i < b->tensors.n; i++)
		clv_tensor_free(b->tensors.at[i].tensor);
	vec_free(&b->tensors);
	vec_free(&b->sizes);
	text_index_free(&b->by_size);
	vec_free(&b->schema);
	vec_free(&b->passthrough);
	arena_free(&b->arena);
	mem_free(b);
}

uint32_t clv_boundary_count(const clv_boundary *b)
{
	return b ? b->tensors.n : 0;
}

const char *clv_boundary_label(const clv_boundary *b, uint32_t i)
{
	return b && i < b->tensors.n ? b->tensors.at[i].label : NULL;
}

const clv_tensor *clv_boundary_tensor(const clv_boundary *b, uint32_t i)
{
	return b && i < b->tensors.n ? b->tensors.at[i].tensor : NULL;
}

int64_t clv_boundary_size(const clv_boundary *b, const char *name)
{
	uint32_t i = b && name ? text_index_find(&b->by_size, name) : TABLE_NONE;
	return i == TABLE_NONE ? -1 : b->sizes.at[i].value;
}

static clv_status index_sizes(boundary *b)
{
	text_index_free(&b->by_size);
	return text_index_new(b->sizes.at, b->sizes.n, sizeof *b->sizes.at, &b->by_size);
}

clv_status clv_boundary_loss(const clv_boundary *b, uint32_t i, clv_loss *out)
{
	if (!b || i >= b->tensors.n || !out)
		return fail(CLV_E_INVALID, "clv_boundary_loss: there is no tensor %u", i);
	clv_loss loss = b->tensors.at[i].loss;
	return options_write(out, &loss, sizeof loss, "clv_loss");
}

/* ---- the prefix ------------------------------------------------------------------------------------------------- */

static clv_status add_schema(boundary *b, const plan *p, value_id v, const char *label)
{
	const value *x = &p->values.at[v];
	payload_schema s = {.label = label, .dtype = (dtype)x->dtype, .ndim = x->ndim};
	const char **dims = arena_alloc(&b->arena, (x->ndim + 1) * sizeof *dims);
	TRY_MEM(dims);
	for (uint32_t i = 0; i < x->ndim; i++) {
		strbuf dim = STRBUF_INIT;
		expr_print(p, p->dims.at[x->shape + i], &dim);
		TRY(arena_take(&b->arena, &dim, &dims[i]));
	}
	s.dims = dims;
	TRY(arena_keep(&b->arena, plan_s(p, x->device), &s.device));
	return vec_push(&b->schema, s);
}

static clv_status add_size(boundary *b, const char *name, int64_t size)
{
	payload_number n = {.value = size};
	TRY(arena_keep(&b->arena, name, &n.name));
	if (strcmp(name, b->batch) == 0) {
		b->has_batch_size = true;
		b->batch_size = size;
	}
	return vec_push(&b->sizes, n);
}

static clv_status add_sizes(boundary *b, const runtime_plan *e, const run_call *call)
{
	const plan *p = e->of.p;
	int64_t *symbols = mem_alloc((p->symbols.n + 1) * sizeof *symbols);
	clv_status st = symbols ? call_symbols(&e->of.v, call->inputs, call->symbols, symbols) : fail_nomem();
	for (uint32_t i = 0; i < p->symbols.n && st == CLV_OK; i++)
		if (!p->symbols.at[i].data)
			st = add_size(b, plan_s(p, p->symbols.at[i].name), symbols[i]);
	for (uint32_t i = 0; i < e->e->fixed.n && st == CLV_OK; i++)
		st = add_size(b, e->e->fixed.at[i].name, e->e->fixed.at[i].value);
	mem_free(symbols);
	return st == CLV_OK ? index_sizes(b) : st;
}

static clv_status describe(boundary *b, const runtime *r, uint32_t i, const run_call *call)
{
	const runtime_plan *e = &r->plans.at[i];
	TRY(arena_keep(&b->arena, r->a->split_id, &b->split_id));
	TRY(arena_keep(&b->arena, e->e->signature, &b->signature));
	TRY(arena_keep(&b->arena, r->a->batch, &b->batch));
	TRY(add_sizes(b, e, call));
	for (uint32_t k = 0; k < e->noutputs; k++) {
		value_id v = e->of.outputs.at[k];
		crossing c = {.loss.bytes = -1};
		strbuf label = STRBUF_INIT;
		value_label(e->of.p, v, &label);
		TRY(arena_take(&b->arena, &label, &c.label));
		TRY(add_schema(b, e->of.p, v, c.label));
		TRY(vec_push(&b->tensors, c));
		if (e->of.p->values.at[v].kind == VALUE_INPUT)
			TRY(vec_push(&b->passthrough, c.label));
	}
	return CLV_OK;
}

typedef struct prefix_call {
	const runtime *r;
	clv_tensor *const *inputs;
	boundary *b;
} prefix_call;

static clv_status run_into(boundary *b, const runtime *r, uint32_t i, const run_call *call)
{
	TRY(describe(b, r, i, call));
	clv_tensor **out = mem_alloc((b->tensors.n + 1) * sizeof *out);
	run_call noted = *call;
	noted.version = &b->weight_version;
	clv_status st = out ? runtime_run_plan(r, i, &noted, out) : fail_nomem();
	for (uint32_t k = 0; st == CLV_OK && k < b->tensors.n; k++)
		b->tensors.at[k].tensor = out[k];
	mem_free(out);
	return st;
}

static clv_status run_prefix(void *ctx, uint32_t i)
{
	prefix_call *c = ctx;
	boundary *b;
	TRY(boundary_new(&b));
	clv_status st = run_into(b, c->r, i, &(run_call){.inputs = c->inputs});
	if (st == CLV_OK)
		c->b = b;
	else
		clv_boundary_free(b);
	return st;
}

clv_status clv_runtime_run_prefix(const clv_runtime *r, const clv_tensor *const *inputs, uint32_t ninputs,
                                  clv_boundary **out)
{
	prefix_call c = {r, (clv_tensor *const *)inputs, NULL};
	if (!r || (ninputs && !inputs) || !out)
		return fail(CLV_E_INVALID, "clv_runtime_run_prefix: an argument is NULL");
	if (r->part != PART_PREFIX)
		return fail(CLV_E_INVALID, "this runtime is no prefix; clv_runtime_options.part makes one of a cut model");
	TRY(runtime_serve(r, c.inputs, ninputs, run_prefix, &c));
	*out = c.b;
	return CLV_OK;
}

/* ---- the suffix ------------------------------------------------------------------------------------------------- */

static clv_status check_origin(const runtime *r, const boundary_facts *got)
{
	const char **names = mem_alloc((r->plans.n + 1) * sizeof *names);
	for (uint32_t i = 0; names && i < r->plans.n; i++)
		names[i] = r->plans.at[i].e->signature;
	boundary_want want = {.split_id = r->a->split_id, .signatures = names, .nsignatures = r->plans.n};
	clv_status st = names ? boundary_check(&want, got) : fail_nomem();
	mem_free(names);
	return st;
}

static clv_status check_content(const runtime *r, const plan_part *g, const boundary_facts *got, arena *a)
{
	const plan *p = g->p;
	const char **labels = arena_alloc(a, (g->v.inputs.n + 1) * sizeof *labels);
	boundary_range *sizes = arena_alloc(a, (p->symbols.n + 1) * sizeof *sizes);
	boundary_want want = {.labels = labels, .nlabels = g->v.inputs.n, .sizes = sizes};
	TRY_MEM(labels && sizes);
	for (uint32_t i = 0; i < g->v.inputs.n; i++) {
		strbuf label = STRBUF_INIT;
		value_label(p, g->v.inputs.at[i], &label);
		TRY(arena_take(a, &label, &labels[i]));
	}
	for (uint32_t i = 0; i < p->symbols.n; i++) {
		const symbol *s = &p->symbols.at[i];
		const char *name = plan_s(p, s->name);
		if (!s->data)
			sizes[want.nsizes++] = (boundary_range){name, s->lo, s->hi, strcmp(name, r->a->batch) == 0};
	}
	return boundary_check(&want, got);
}

clv_status runtime_find_boundary(const runtime *r, const boundary_facts *got, int64_t weight_version, uint32_t *out)
{
	TRY(check_origin(r, got));
	TRY(runtime_check_weights(r, weight_version)); /* the run asks again, when they can no longer change */
	uint32_t i = 0;
	while (strcmp(r->plans.at[i].e->signature, got->signature) != 0) /* one of them has it */
		i++;
	arena a = {0};
	clv_status st = check_content(r, &r->plans.at[i].of, got, &a);
	arena_free(&a);
	*out = i;
	return st;
}

/* New references, in the order of the program. */
static clv_status find_tensors(const plan_part *g, const boundary *b, const text_index *labels, clv_tensor **out)
{
	for (uint32_t i = 0; i < g->v.inputs.n; i++) {
		const value *x = &g->p->values.at[g->v.inputs.at[i]];
		char *label;
		TRY(value_label_text(g->p, g->v.inputs.at[i], &label));
		uint32_t at = text_index_find(labels, label);
		clv_status st = at != TABLE_NONE
		                    ? clv_tensor_to_device(b->tensors.at[at].tensor, plan_s(g->p, x->device), &out[i])
		                    : fail(CLV_E_INPUT, "the boundary lacks %s", label);
		mem_free(label);
		TRY(st);
	}
	return CLV_OK;
}

typedef struct suffix_call {
	const runtime *r;
	const boundary *b;
	const boundary_facts *got;
	clv_tensor **outputs;
	uint32_t noutputs;
	uint32_t *plan; /* NULL: of the same names as those of the first plan */
} suffix_call;

static clv_status run_tensors(const suffix_call *c, uint32_t i, clv_tensor **inputs, int64_t *symbols)
{
	const runtime *r = c->r;
	const boundary *b = c->b;
	const runtime_plan *e = &r->plans.at[i];
	text_index labels;
	(void)runtime_sizes(r, i, c->got, symbols);
	clv_status st = text_index_new(b->tensors.at, b->tensors.n, sizeof *b->tensors.at, &labels);
	if (st == CLV_OK)
		st = find_tensors(&e->of, b, &labels, inputs);
	text_index_free(&labels);
	TRY(st);
	run_call call = {
		.inputs = inputs, .symbols = e->of.p->symbols.n ? symbols : NULL, .wants_version = &b->weight_version};
	return runtime_run_named(r, i, &call, c->outputs, c->noutputs, c->plan);
}

static clv_status run_suffix(void *ctx, uint32_t i)
{
	const suffix_call *c = ctx;
	const runtime_plan *e = &c->r->plans.at[i];
	uint32_t n = e->of.v.inputs.n;
	clv_tensor **inputs = mem_alloc((n + 1) * sizeof *inputs);
	int64_t *symbols = mem_alloc((e->of.p->symbols.n + 1) * sizeof *symbols);
	clv_status st = inputs && symbols ? run_tensors(c, i, inputs, symbols) : fail_nomem();
	for (uint32_t k = 0; inputs && k < n; k++)
		clv_tensor_free(inputs[k]);
	mem_free(inputs);
	mem_free(symbols);
	return st;
}

static clv_status run_checked(suffix_call *c)
{
	const boundary *b = c->b;
	if (!c->r || !b || (c->noutputs && !c->outputs))
		return fail(CLV_E_INVALID, "clv_runtime_run_suffix: an argument is NULL");
	if (c->r->part != PART_SUFFIX)
		return fail(CLV_E_INVALID, "this runtime is no suffix; clv_runtime_options.part makes one of a cut model");
	const char **labels = mem_alloc((b->tensors.n + 1) * sizeof *labels);
	for (uint32_t i = 0; labels && i < b->tensors.n; i++)
		labels[i] = b->tensors.at[i].label;
	boundary_facts got = {.split_id = b->split_id,
	                      .signature = b->signature,
	                      .has_batch_size = b->has_batch_size,
	                      .batch_size = b->batch_size,
	                      .sizes = b->sizes.at,
	                      .nsizes = b->sizes.n,
	                      .labels = labels,
	                      .nlabels = b->tensors.n};
	c->got = &got;
	clv_status st = labels ? runtime_serve_suffix(c->r, &got, b->weight_version, run_suffix, c) : fail_nomem();
	mem_free(labels);
	return st;
}

clv_status clv_runtime_run_suffix(const clv_runtime *r, const clv_boundary *b, clv_tensor **outputs, uint32_t noutputs)
{
	return run_checked(&(suffix_call){.r = r, .b = b, .outputs = outputs, .noutputs = noutputs});
}

clv_status clv_runtime_run_suffix_any(const clv_runtime *r, const clv_boundary *b, clv_tensor **outputs,
                                      uint32_t noutputs, uint32_t *which)
{
	suffix_call c = {.r = r, .b = b, .outputs = outputs, .noutputs = noutputs, .plan = which};
	return which ? run_checked(&c) : fail(CLV_E_INVALID, "clv_runtime_run_suffix_any needs a place for the plan");
}

/* ---- for training ------------------------------------------------------------------------------------------------- */

bool boundary_trains(const boundary *b)
{
	return b->trains;
}

clv_status boundary_add(boundary *b, const char *label, clv_tensor *t)
{
	crossing c = {.tensor = t, .loss.bytes = -1};
	clv_status st = arena_keep(&b->arena, label, &c.label);
	if (st == CLV_OK)
		st = vec_push(&b->tensors, c);
	if (st != CLV_OK)
		clv_tensor_free(t);
	return st;
}

static clv_status set_names(boundary *b, const char *split_id, const char *signature)
{
	b->batch = "";
	TRY(arena_keep(&b->arena, split_id, &b->split_id));
	return arena_keep(&b->arena, signature, &b->signature);
}

clv_status boundary_named(const char *split_id, const char *signature, boundary **out)
{
	boundary *b;
	TRY(boundary_new(&b));
	clv_status st = set_names(b, split_id, signature);
	if (st == CLV_OK)
		*out = b;
	else
		clv_boundary_free(b);
	return st;
}

bool boundary_is_named(const boundary *b, const char *split_id, const char *signature)
{
	return strcmp(b->split_id, split_id) == 0 && strcmp(b->signature, signature) == 0;
}

clv_status boundary_add_number(boundary *b, const char *name, int64_t number)
{
	TRY(add_size(b, name, number));
	return index_sizes(b);
}

static clv_status copy_facts(const boundary *from, boundary *b)
{
	TRY(arena_keep(&b->arena, from->batch, &b->batch));
	b->weight_version = from->weight_version;
	b->has_batch_size = from->has_batch_size;
	b->batch_size = from->batch_size;
	for (uint32_t i = 0; i < from->sizes.n; i++) {
		payload_number n = from->sizes.at[i];
		TRY(arena_keep(&b->arena, n.name, &n.name));
		TRY(vec_push(&b->sizes, n));
	}
	return index_sizes(b);
}

clv_status boundary_empty(const boundary *from, boundary **out)
{
	boundary *b;
	TRY(boundary_named(from->split_id, from->signature, &b));
	clv_status st = copy_facts(from, b);
	if (st == CLV_OK)
		*out = b;
	else
		clv_boundary_free(b);
	return st;
}

static clv_status add_leaves(const runtime *r, const boundary *from, boundary *b)
{
	for (uint32_t i = 0; i < from->tensors.n; i++) {
		const crossing *c = &from->tensors.at[i];
		clv_tensor *leaf;
		TRY(r->engine->tensors->leaf(c->tensor, c->requires_grad, &leaf));
		TRY(boundary_add(b, c->label, leaf));
	}
	return CLV_OK;
}

clv_status boundary_leaves(const runtime *r, const boundary *from, boundary **out)
{
	boundary *b;
	TRY(boundary_empty(from, &b));
	clv_status st = add_leaves(r, from, b);
	if (st == CLV_OK)
		*out = b;
	else
		clv_boundary_free(b);
	return st;
}

/* ---- a boundary of tensors that came alone ---------------------------------------------------------------------- */

/* Sizes that no tensor tells cannot be known: a boundary of the prefix says them. */
static clv_status check_told(const runtime_plan *e, const boundary *b)
{
	const plan *p = e->of.p;
	for (uint32_t i = 0; i < p->symbols.n; i++) {
		const char *name = plan_s(p, p->symbols.at[i].name);
		if (!p->symbols.at[i].data && clv_boundary_size(b, name) < 0)
			return fail(CLV_E_INPUT, "no tensor tells the size %s; send the boundary that the prefix gave", name);
	}
	return CLV_OK;
}

static clv_status fill_boundary(const runtime *r, uint32_t i, clv_tensor *const *inputs, boundary *b)
{
	const runtime_plan *e = &r->plans.at[i];
	TRY(arena_keep(&b->arena, r->a->split_id, &b->split_id));
	TRY(arena_keep(&b->arena, e->e->signature, &b->signature));
	TRY(arena_keep(&b->arena, r->a->batch, &b->batch));
	b->weight_version = r->weight_version;
	TRY(inputs_check(&e->of.v, inputs, NULL));
	TRY(add_sizes(b, e, &(run_call){.inputs = inputs}));
	for (uint32_t k = 0; k < e->of.v.inputs.n; k++) {
		crossing c = {.loss.bytes = -1};
		strbuf label = STRBUF_INIT;
		value_label(e->of.p, e->of.v.inputs.at[k], &label);
		TRY(arena_take(&b->arena, &label, &c.label));
		TRY(vec_push(&b->tensors, c));
		b->tensors.at[k].tensor = tensor_ref(inputs[k]);
	}
	return check_told(e, b);
}

clv_status runtime_boundary_of(const runtime *r, clv_tensor *const *inputs, uint32_t ninputs, boundary **out)
{
	clv_status st = CLV_OK;
	if (ninputs != r->inputs.n)
		return fail(CLV_E_INPUT, "%u tensors cross the cut, the call has %u", r->inputs.n, ninputs);
	for (uint32_t i = 0; i < r->plans.n; i++) {
		boundary *b;
		if (r->plans.at[i].of.v.inputs.n != ninputs)
			continue;
		TRY(boundary_new(&b));
		clv_status now = fill_boundary(r, i, inputs, b);
		if (now == CLV_OK) {
			*out = b;
			return CLV_OK;
		}
		clv_boundary_free(b);
		if (now == CLV_E_NOMEM)
			return now;
		st = now;
	}
	return st == CLV_OK ? fail(CLV_E_INPUT, "no plan of the file takes %u tensors", ninputs) : st;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

/* A tensor of the payload; a copy on the CPU, where one is needed, is kept in *host. */
static clv_status put_tensor(payload *p, const crossing *c, encoding wish, clv_tensor **host)
{
	uint32_t number;
	payload_tensor t = {.label = c->label, .boundary = true, .wish = wish};
	TRY(clv_tensor_to_device(c->tensor, "cpu", host));
	TRY(tensor_describe(p, c->tensor, *host, &t));
	t.requires_grad = false; /* no graph goes with it */
	return payload_add_tensor(p, &t, &number);
}

static clv_status fill_payload(payload *p, const boundary *b, encoding wish, clv_tensor **hosts)
{
	p->split_id = b->split_id;
	p->graph_signature = b->signature;
	p->weight_version = b->weight_version;
	p->has_batch_size = b->has_batch_size;
	p->batch_size = b->batch_size;
	p->supports_prefix_backward = b->trains;
	for (uint32_t i = 0; i < b->sizes.n; i++)
		TRY(vec_push(&p->sizes, b->sizes.at[i]));
	for (uint32_t i = 0; i < b->schema.n; i++)
		TRY(vec_push(&p->schema, b->schema.at[i]));
	for (uint32_t i = 0; i < b->passthrough.n; i++)
		TRY(vec_push(&p->passthrough, b->passthrough.at[i]));
	TRY(vec_push(&p->values, ((tree){.kind = TREE_NONE})));
	for (uint32_t i = 0; i < b->tensors.n; i++) {
		TRY(put_tensor(p, &b->tensors.at[i], wish, &hosts[i]));
		TRY(vec_push(&p->requires_grad, ((payload_number){b->tensors.at[i].label, b->tensors.at[i].requires_grad})));
	}
	return CLV_OK;
}

typedef clv_status (*image_fn)(const st_image *image, void *ctx);

struct boundary_image {
	payload *p;
	clv_tensor **hosts; /* the tensors, or copies on the CPU */
	uint32_t n;
	st_image image;
};

static clv_status image_open(boundary_image *i, const boundary *b, encoding wish, bool unchecked)
{
	*i = (boundary_image){.n = b->tensors.n};
	TRY(payload_new(PAYLOAD_BOUNDARY, &i->p));
	i->p->unchecked = unchecked;
	i->hosts = mem_alloc((i->n + 1) * sizeof *i->hosts);
	TRY_MEM(i->hosts);
	TRY(fill_payload(i->p, b, wish, i->hosts));
	return payload_image(i->p, &i->image);
}

static void image_close(boundary_image *i)
{
	st_image_free(&i->image);
	payload_free(i->p);
	for (uint32_t k = 0; i->hosts && k < i->n; k++)
		clv_tensor_free(i->hosts[k]);
	mem_free(i->hosts);
}

static clv_status with_image(const boundary *b, encoding wish, bool unchecked, image_fn use, void *ctx)
{
	boundary_image i;
	clv_status st = image_open(&i, b, wish, unchecked);
	if (st == CLV_OK)
		st = use(&i.image, ctx);
	image_close(&i);
	return st;
}

clv_status boundary_image_new(const boundary *b, boundary_image **out, const st_image **image)
{
	boundary_image *i = mem_alloc(sizeof *i);
	TRY_MEM(i);
	clv_status st = image_open(i, b, ENC_PLAIN, false);
	if (st != CLV_OK) {
		boundary_image_free(i);
		return st;
	}
	*out = i;
	*image = &i->image;
	return CLV_OK;
}

void boundary_image_free(void *image)
{
	image_close(image);
	mem_free(image);
}

typedef struct bytes {
	uint8_t *at;
	size_t n;
} bytes;

static clv_status to_bytes(const st_image *image, void *ctx)
{
	bytes *out = ctx;
	out->n = image->total;
	out->at = mem_realloc(NULL, image->total, 1);
	TRY_MEM(out->at);
	st_copy(image, out->at);
	return CLV_OK;
}

static clv_status to_file(const st_image *image, void *ctx)
{
	return st_save(image, ctx);
}

static clv_status read_wish(const char *compress, encoding *out)
{
	*out = ENC_PLAIN;
	if (!compress || (encoding_parse(compress, out) && *out != ENC_PLAIN))
		return CLV_OK;
	return fail(CLV_E_INVALID, "compression is one of " ENCODINGS ", not \"%.32s\"", compress);
}

static clv_status write_image(const clv_boundary *b, const clv_pack_options *options, image_fn use, void *ctx)
{
	clv_pack_options o = CLV_PACK_OPTIONS_INIT;
	encoding wish;
	TRY(options_read(&o, sizeof o, options, "clv_pack_options"));
	TRY(read_wish(o.compress, &wish));
	return with_image(b, wish, o.no_checksum, use, ctx);
}

clv_status clv_boundary_pack(const clv_boundary *b, const clv_pack_options *options, void **out, size_t *size)
{
	bytes made = {0};
	if (!b || !out || !size)
		return fail(CLV_E_INVALID, "clv_boundary_pack: an argument is NULL");
	TRY(write_image(b, options, to_bytes, &made));
	*out = made.at;
	*size = made.n;
	return CLV_OK;
}

clv_status clv_boundary_save(const clv_boundary *b, const clv_pack_options *options, const char *path)
{
	if (!b || !path)
		return fail(CLV_E_INVALID, "clv_boundary_save: an argument is NULL");
	return write_image(b, options, to_file, (void *)path);
}

static clv_loss loss_of(const payload_memory *m)
{
	return (clv_loss){.method = m->encoding == ENC_PLAIN ? NULL : encoding_names[m->encoding],
	                  .bytes = (int64_t)(m->data_n + m->scales_n),
	                  .max_abs = m->loss.absolute,
	                  .relative = m->loss.relative,
	                  .l2 = m->loss.l2};
}

static void unref_memory(void *m)
{
	tensor_memory_unref(m);
}

/* Memory m of the payload where it lies in `from`, if the bytes there are what tensors see and sums would add in the same order. */
static bool lies_there(const payload *p, uint32_t m, const tensor_memory *from)
{
	const payload_memory *of = &p->memories.at[m];
	const char *at = of->data;
	return from && of->nbytes && of->nbytes == of->data_n && payload_as_is(p, m) &&
	       (uintptr_t)at % MEMORY_ALIGN == of->lead && (size_t)(at - from->base) >= of->lead;
}

static clv_status find_memory(const payload *p, uint32_t m, tensor_memory *from, tensor_memory **out)
{
	const payload_memory *of = &p->memories.at[m];
	if (!lies_there(p, m, from))
		return memory_load(p, m, out);
	clv_status st = tensor_memory_wrap((char *)(uintptr_t)of->data - of->lead, of->nbytes + of->lead, false,
	                                   unref_memory, tensor_memory_ref(from), out);
	if (st != CLV_OK)
		tensor_memory_unref(from);
	return st;
}

/* Only memory that the boundary is on is made: values beside it may have more. */
static clv_status read_tensors(boundary *b, const payload *p, tensor_memory *from, const text_index *grads,
                               tensor_memory **memories)
{
	for (uint32_t i = 0; i < p->tensors.n; i++) {
		crossing c = {0};
		uint32_t m = p->tensors.at[i].memory;
		if (!p->tensors.at[i].boundary)
			continue;
		if (!memories[m])
			TRY(find_memory(p, m, from, &memories[m]));
		TRY(arena_keep(&b->arena, p->tensors.at[i].label, &c.label));
		c.loss = loss_of(&p->memories.at[m]);
		uint32_t grad = text_index_find(grads, c.label);
		c.requires_grad = grad != TABLE_NONE && p->requires_grad.at[grad].value;
		TRY(memory_tensor(p, i, memories[m], false, &c.tensor));
		clv_status st = vec_push(&b->tensors, c);
		if (st != CLV_OK) {
			clv_tensor_free(c.tensor);
			return st;
		}
	}
	return CLV_OK;
}

static clv_status copy_schema(boundary *b, const payload_schema *from)
{
	payload_schema s = *from;
	const char **dims = arena_alloc(&b->arena, (s.ndim + 1) * sizeof *dims);
	TRY_MEM(dims);
	for (uint32_t i = 0; i < s.ndim; i++)
		TRY(arena_keep(&b->arena, from->dims[i], &dims[i]));
	s.dims = dims;
	TRY(arena_keep(&b->arena, from->label, &s.label));
	TRY(arena_keep(&b->arena, from->device, &s.device));
	return vec_push(&b->schema, s);
}

static clv_status copy_fields(boundary *b, const payload *p)
{
	TRY(arena_keep(&b->arena, p->split_id, &b->split_id));
	TRY(arena_keep(&b->arena, p->graph_signature, &b->signature));
	b->batch = "";
	b->weight_version = p->weight_version;
	b->has_batch_size = p->has_batch_size;
	b->batch_size = p->batch_size;
	b->trains = p->supports_prefix_backward;
	for (uint32_t i = 0; i < p->sizes.n; i++) {
		payload_number n = p->sizes.at[i];
		TRY(arena_keep(&b->arena, n.name, &n.name));
		TRY(vec_push(&b->sizes, n));
	}
	TRY(index_sizes(b));
	for (uint32_t i = 0; i < p->schema.n; i++)
		TRY(copy_schema(b, &p->schema.at[i]));
	for (uint32_t i = 0; i < p->passthrough.n; i++) {
		const char *label;
		TRY(arena_keep(&b->arena, p->passthrough.at[i], &label));
		TRY(vec_push(&b->passthrough, label));
	}
	return CLV_OK;
}

static clv_status from_payload(const payload *p, tensor_memory *from, boundary **out)
{
	boundary *b;
	text_index grads = {0};
	TRY(boundary_new(&b));
	tensor_memory **memories = mem_alloc((p->memories.n + 1) * sizeof *memories);
	clv_status st = memories ? copy_fields(b, p) : fail_nomem();
	if (st == CLV_OK)
		st = text_index_new(p->requires_grad.at, p->requires_grad.n, sizeof *p->requires_grad.at, &grads);
	if (st == CLV_OK)
		st = read_tensors(b, p, from, &grads, memories);
	text_index_free(&grads);
	for (uint32_t i = 0; memories && i < p->memories.n; i++)
		tensor_memory_unref(memories[i]);
	mem_free(memories);
	if (st == CLV_OK)
		*out = b;
	else
		clv_boundary_free(b);
	return st;
}

clv_status clv_boundary_unpack(const void *data, size_t size, clv_boundary **out)
{
	payload *p;
	if (!data || !out)
		return fail(CLV_E_INVALID, "clv_boundary_unpack: an argument is NULL");
	TRY(payload_read(data, size, PAYLOAD_BOUNDARY, &p));
	clv_status st = from_payload(p, NULL, out);
	payload_free(p);
	return st;
}

clv_status clv_boundary_load(const char *path, clv_boundary **out)
{
	uint8_t *data;
	size_t n;
	if (!path || !out)
		return fail(CLV_E_INVALID, "clv_boundary_load: an argument is NULL");
	TRY(file_read(path, &data, &n));
	clv_status st = clv_boundary_unpack(data, n, out);
	mem_free(data);
	return st == CLV_OK || st == CLV_E_NOMEM ? st : fail_more(st, "%s", path);
}

/* ---- from strangers --------------------------------------------------------------------------------------------- */

/* The tensor as the run will see it, without its data. */
static clv_status stand_in(const plan *p, value_id v, const payload *from, clv_tensor *out)
{
	char *label;
	TRY(value_label_text(p, v, &label));
	uint32_t i = payload_find(from, label);
	clv_status st =
		i == NONE || !from->tensors.at[i].boundary ? fail(CLV_E_INPUT, "the boundary lacks %s", label) : CLV_OK;
	mem_free(label);
	TRY(st);
	const payload_tensor *t = &from->tensors.at[i];
	out->m = (tensor_meta){.there = true,
	                       .strided = true,
	                       .dtype = (uint8_t)t->dtype,
	                       .ndim = t->ndim,
	                       .sizes = t->sizes,
	                       .strides = t->strides,
	                       .device = plan_s(p, p->values.at[v].device)};
	return CLV_OK;
}

static clv_status check_tensors(const runtime *r, uint32_t i, const payload *from, const boundary_facts *got,
                                clv_tensor *stand, clv_tensor **at, int64_t *symbols)
{
	const plan_part *of = &r->plans.at[i].of;
	for (uint32_t k = 0; k < of->v.inputs.n; k++) {
		at[k] = &stand[k];
		TRY(stand_in(of->p, of->v.inputs.at[k], from, at[k]));
	}
	(void)runtime_sizes(r, i, got, symbols);
	const int64_t *given = of->p->symbols.n ? symbols : NULL;
	TRY(inputs_check(&of->v, at, given));
	/* Of several plans another one may be proven for these sizes. */
	return r->plans.n == 1 ? runtime_check_sizes(r, i, &(run_call){.inputs = at, .symbols = given}) : CLV_OK;
}

/* Types and shapes are those of the plan at the boundary's sizes, before anything has memory. */
static clv_status check_shapes(const runtime *r, uint32_t i, const payload *from, const boundary_facts *got)
{
	const plan_part *of = &r->plans.at[i].of;
	clv_tensor *stand = mem_alloc((of->v.inputs.n + 1) * sizeof *stand);
	clv_tensor **at = mem_alloc((of->v.inputs.n + 1) * sizeof *at);
	int64_t *symbols = mem_alloc((of->p->symbols.n + 1) * sizeof *symbols);
	clv_status st = stand && at && symbols ? check_tensors(r, i, from, got, stand, at, symbols) : fail_nomem();
	mem_free(stand);
	mem_free(at);
	mem_free(symbols);
	return st;
}

static clv_status check_header(const runtime *r, const payload *p, bool *elsewhere)
{
	uint32_t i;
	const char **labels = mem_alloc((p->tensors.n + 1) * sizeof *labels);
	boundary_facts got = {.split_id = p->split_id,
	                      .signature = p->graph_signature,
	                      .has_batch_size = p->has_batch_size,
	                      .batch_size = p->batch_size,
	                      .sizes = p->sizes.at,
	                      .nsizes = p->sizes.n,
	                      .labels = labels};
	for (uint32_t k = 0; labels && k < p->tensors.n; k++)
		if (p->tensors.at[k].boundary)
			labels[got.nlabels++] = p->tensors.at[k].label;
	clv_status st = labels ? check_origin(r, &got) : fail_nomem();
	if (st == CLV_OK)
		st = runtime_check_weights(r, p->weight_version);
	*elsewhere = st == CLV_E_INPUT;
	if (st == CLV_OK)
		st = runtime_find_boundary(r, &got, p->weight_version, &i);
	mem_free(labels);
	return st == CLV_OK ? check_shapes(r, i, p, &got) : st;
}

static clv_status add_memory(const payload_memory *m, size_t *all, size_t *twice)
{
	if (__builtin_add_overflow(*all, m->nbytes, all))
		return fail(CLV_E_OVERFLOW, "the boundary has more than 2^64 bytes");
	if (m->encoding != ENC_PLAIN && m->nbytes > *twice)
		*twice = m->nbytes;
	return CLV_OK;
}

/* What read_tensors will ask for beside `from`; compressed data passes through a second room of the same size. */
static clv_status memory_needed(const payload *p, const tensor_memory *from, size_t *out)
{
	size_t all = 0, twice = 0;
	bool *used = mem_alloc(p->memories.n + 1);
	clv_status st = used ? CLV_OK : fail_nomem();
	for (uint32_t k = 0; used && k < p->tensors.n; k++)
		used[p->tensors.at[k].memory] |= p->tensors.at[k].boundary;
	for (uint32_t i = 0; i < p->memories.n && st == CLV_OK; i++)
		if (used[i] && !lies_there(p, i, from))
			st = add_memory(&p->memories.at[i], &all, &twice);
	mem_free(used);
	TRY(st);
	return __builtin_add_overflow(all, twice, out) ? fail(CLV_E_OVERFLOW, "the boundary has more than 2^64 bytes")
	                                               : CLV_OK;
}

clv_status runtime_read_boundary(const runtime *r, const void *data, size_t n, boundary_gate *gate, boundary **out)
{
	payload *p;
	size_t need = 0;
	gate->elsewhere = false;
	TRY(payload_read(data, n, PAYLOAD_BOUNDARY, &p));
	clv_status st = check_header(r, p, &gate->elsewhere);
	if (st == CLV_OK)
		st = memory_needed(p, gate->memory, &need);
	if (st == CLV_OK)
		st = gate->room(gate->ctx, need);
	if (st == CLV_OK)
		st = from_payload(p, gate->memory, out);
	payload_free(p);
	return st;
}
