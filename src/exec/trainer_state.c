/* What training changes, as bytes (docs/training.md): tensors by label in the form that boundaries have. And the weights, in
 * a file for inference. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "exec/trainer.h"
#include "file/tensors.h"

static const char STATE[] = "cleave.trainer", STEPS[] = "steps", DUE[] = "due", RANDOM[] = "random";

/* ---- labels --------------------------------------------------------------------------------------------------------- */

/* Whether a place in the state of the suffix is part of the trainer's: trained, or changed by the forward. */
static bool *find_changing(const trainer *t)
{
	const runtime *r = t->suffix;
	bool *changing = mem_alloc(r->nstate + 1);
	for (uint32_t i = 0; changing && i < r->a->tensors->tensors.n; i++)
		changing[i] = r->changes[i] && r->state[i];
	for (uint32_t i = 0; changing && i < t->params.n; i++)
		changing[t->params.at[i].slot] = true;
	return changing;
}

static clv_status make_label(const char *kind, const char *name, const char *what, char **out)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "%s.%s", kind, name);
	if (what)
		strbuf_printf(&b, ".%s", what);
	return strbuf_take(&b, out);
}

/* ---- written -------------------------------------------------------------------------------------------------------- */

static clv_status put(clv_boundary *b, const char *kind, const char *name, const char *what, clv_tensor *t /* taken */)
{
	char *label = NULL;
	clv_status st = make_label(kind, name, what, &label);
	if (st == CLV_OK)
		st = boundary_add(b, label, t);
	else
		clv_tensor_free(t);
	mem_free(label);
	return st;
}

static clv_status put_torch(clv_boundary *b, const char *kind, const char *name, const char *what, br_tensor *t)
{
	clv_tensor *given;
	if (!t)
		return CLV_OK;
	TRY(br_give(br_ref(t), &given));
	return put(b, kind, name, what, given);
}

static clv_status put_model(const trainer *t, clv_boundary *b)
{
	const runtime *r = t->suffix;
	bool *changing = find_changing(t);
	clv_status st = changing ? CLV_OK : fail_nomem();
	for (uint32_t i = 0; i < r->nstate && st == CLV_OK; i++)
		if (changing[i])
			st = put(b, "model", r->a->tensors->tensors.at[i].label, NULL, tensor_ref(r->state[i]));
	mem_free(changing);
	return st;
}

static clv_status put_optimizer(const trained *x, clv_boundary *b)
{
	const char *const *names = update_kept_names(x->group);
	clv_tensor *steps;
	for (int i = 0; i < KEPT_COUNT && names[i]; i++)
		TRY(put_torch(b, "optimizer", x->name, names[i], x->kept[i]));
	if (x->steps == 0)
		return CLV_OK;
	TRY(clv_tensor_from_data(&x->steps, "f32", 0, NULL, &steps));
	return put(b, "optimizer", x->name, "step", steps);
}

static clv_status put_all(const trainer *t, clv_boundary *b)
{
	TRY(boundary_add_number(b, STEPS, (int64_t)t->steps));
	TRY(boundary_add_number(b, DUE, t->due));
	TRY(put_model(t, b));
	for (uint32_t i = 0; i < t->params.n; i++) {
		TRY(put_optimizer(&t->params.at[i], b));
		TRY(put_torch(b, "gradient", t->params.at[i].name, NULL, t->params.at[i].grad));
	}
	return t->random ? put_torch(b, "generator", RANDOM, NULL, t->random) : CLV_OK;
}

clv_status trainer_pack(const trainer *t, void **out, size_t *size)
{
	char id[DIGEST_TEXT];
	clv_boundary *b;
	digest_print(t->id, id);
	TRY(boundary_named(STATE, id, &b));
	clv_status st = put_all(t, b);
	if (st == CLV_OK)
		st = clv_boundary_pack(b, NULL, out, size);
	clv_boundary_free(b);
	return st;
}

/* ---- read ----------------------------------------------------------------------------------------------------------- */

/* What a state has for one parameter, as copies of its own. */
typedef struct staged {
	br_tensor *grad, *kept[KEPT_COUNT];
	float steps;
} staged;

typedef struct reader {
	trainer *t;
	const clv_boundary *b;
	uint32_t found;           /* labels that were asked for and are there */
	const clv_tensor **model; /* per place in the state of the suffix; borrowed from b */
	staged *params;
	br_tensor *random;
} reader;

/* *out: borrowed; NULL: there is none. */
static clv_status find(reader *r, const char *kind, const char *name, const char *what, const clv_tensor **out)
{
	char *label;
	TRY(make_label(kind, name, what, &label));
	*out = NULL;
	for (uint32_t i = 0; i < clv_boundary_count(r->b) && !*out; i++)
		if (strcmp(clv_boundary_label(r->b, i), label) == 0)
			*out = clv_boundary_tensor(r->b, i);
	r->found += *out != NULL;
	mem_free(label);
	return CLV_OK;
}

/* Tensors of hostile bytes may share memory. */
static clv_status own(const clv_tensor *t, br_tensor **out)
{
	br_tensor *borrowed;
	TRY(br_of(t, &borrowed));
	return br_clone(borrowed, false, out);
}

static clv_status find_like(reader *r, const char *kind, const trained *x, const char *what, br_tensor **out)
{
	const clv_tensor *t;
	TRY(find(r, kind, x->name, what, &t));
	if (!t)
		return CLV_OK;
	TRY(tensor_check_like(r->t->suffix->state[x->slot], t, x->name));
	return own(t, out);
}

static clv_status find_steps(reader *r, const trained *x, float *out)
{
	const clv_tensor *t;
	TRY(find(r, "optimizer", x->name, "step", &t));
	if (!t)
		return CLV_OK;
	bool fits = strcmp(clv_tensor_dtype(t), "f32") == 0 && clv_tensor_ndim(t) == 0;
	if (fits)
		TRY(clv_tensor_copy_to(t, out, sizeof *out));
	return fits && *out >= 1 && isfinite(*out) && *out == floorf(*out)
	           ? CLV_OK
	           : fail(CLV_E_INPUT, "the number of steps of %.64s is none", x->name);
}

/* All of it or nothing: a parameter that was stepped has all that its optimizer keeps. */
static clv_status read_parameter(reader *r, const trained *x, staged *to)
{
	const char *const *names = update_kept_names(x->group);
	bool adam = x->group->kind != OPTIMIZER_SGD;
	for (int i = 0; i < KEPT_COUNT && names[i]; i++) {
		TRY(find_like(r, "optimizer", x, names[i], &to->kept[i]));
		if (i && !to->kept[i] != !to->kept[0])
			return fail(CLV_E_INPUT, "the state of the optimizer has a part of what it keeps of %.64s", x->name);
	}
	if (adam)
		TRY(find_steps(r, x, &to->steps));
	if (adam && (to->steps > 0) != (to->kept[0] != NULL))
		return fail(CLV_E_INPUT, "the state of the optimizer has a part of what it keeps of %.64s", x->name);
	return find_like(r, "gradient", x, NULL, &to->grad);
}

static clv_status read_random(reader *r)
{
	const clv_tensor *t;
	TRY(find(r, "generator", RANDOM, NULL, &t));
	if (!t != !r->t->random)
		return fail(CLV_E_INPUT, "the state has %s, and the model draws %s", t ? "a random generator" : "no generator",
		            t ? "nothing" : "from one");
	if (!t)
		return CLV_OK;
	TRY(own(t, &r->random));
	return br_random_check(r->random) == CLV_OK ? CLV_OK : fail(CLV_E_INPUT, "%s", status_message());
}

static clv_status check_model(reader *r, const bool *changing)
{
	const runtime *s = r->t->suffix;
	for (uint32_t i = 0; i < s->nstate; i++) {
		const clv_tensor *t;
		if (!changing[i])
			continue;
		const char *name = s->a->tensors->tensors.at[i].label;
		TRY(find(r, "model", name, NULL, &t));
		if (!t)
			return fail(CLV_E_INPUT, "the state lacks %.64s", name);
		TRY(tensor_check_like(s->state[i], t, name));
		r->model[i] = t;
	}
	return CLV_OK;
}

static clv_status check_all(reader *r, const bool *changing)
{
	char id[DIGEST_TEXT];
	digest_print(r->t->id, id);
	if (!boundary_is_named(r->b, STATE, id))
		return fail(CLV_E_INPUT, "this is no state of a trainer of this file");
	if (clv_boundary_size(r->b, STEPS) < 0 || clv_boundary_size(r->b, DUE) < 0)
		return fail(CLV_E_INPUT, "the state does not say how many steps were made, or whether one is due");
	TRY(check_model(r, changing));
	for (uint32_t i = 0; i < r->t->params.n; i++)
		TRY(read_parameter(r, &r->t->params.at[i], &r->params[i]));
	TRY(read_random(r));
	return r->found == clv_boundary_count(r->b)
	           ? CLV_OK
	           : fail(CLV_E_INPUT, "the state has %u tensors that the trainer does not have",
	                  clv_boundary_count(r->b) - r->found);
}

/* From here on there is no error but that of a copy between tensors of one kind. */
static clv_status take_model(const reader *r)
{
	const runtime *s = r->t->suffix;
	for (uint32_t i = 0; i < s->nstate; i++)
		if (r->model[i])
			TRY(engine_write(s->engine, r->model[i], s->state[i]));
	return CLV_OK;
}

static void swap(br_tensor **a, br_tensor **b)
{
	br_tensor *x = *a;
	*a = *b;
	*b = x;
}

static clv_status take_all(reader *r)
{
	trainer *t = r->t;
	t->broken = true;
	TRY(take_model(r));
	for (uint32_t i = 0; i < t->params.n; i++) {
		trained *x = &t->params.at[i];
		for (int k = 0; k < KEPT_COUNT; k++)
			swap(&x->kept[k], &r->params[i].kept[k]);
		swap(&x->grad, &r->params[i].grad);
		x->steps = r->params[i].steps;
	}
	swap(&t->random, &r->random);
	t->steps = (uint64_t)clv_boundary_size(r->b, STEPS);
	t->due = clv_boundary_size(r->b, DUE) > 0;
	t->broken = false;
	return CLV_OK;
}

static clv_status read_with(reader *r, const bool *changing)
{
	TRY(check_all(r, changing));
	TRY(trainer_own(r->t));
	return take_all(r);
}

static void reader_free(reader *r)
{
	for (uint32_t i = 0; r->params && i < r->t->params.n; i++) {
		br_unref(r->params[i].grad);
		for (int k = 0; k < KEPT_COUNT; k++)
			br_unref(r->params[i].kept[k]);
	}
	mem_free(r->params);
	mem_free(r->model);
	br_unref(r->random);
}

clv_status trainer_unpack(trainer *t, const void *data, size_t size)
{
	clv_boundary *b;
	TRY_MORE(clv_boundary_unpack(data, size, &b), "the state of the trainer");
	reader r = {.t = t, .b = b, .params = mem_alloc((t->params.n + 1) * sizeof *r.params)};
	r.model = mem_alloc((t->suffix->nstate + 1) * sizeof *r.model);
	bool *changing = find_changing(t);
	clv_status st = r.params && r.model && changing ? read_with(&r, changing) : fail_nomem();
	mem_free(changing);
	reader_free(&r);
	clv_boundary_free(b);
	return st;
}

/* ---- weights -------------------------------------------------------------------------------------------------------- */

/* All of it but compiled code and packed weights. */
static clv_status copy_file(const artifact *from, artifact **out)
{
	artifact_range *ranges = mem_alloc((from->plans.n + 1) * sizeof *ranges);
	TRY_MEM(ranges);
	for (uint32_t i = 0; i < from->plans.n; i++)
		ranges[i] = (artifact_range){from->plans.at[i].first, from->plans.at[i].end, from->plans.at[i].cut};
	clv_status st = artifact_take(from, from->part, ranges, out);
	mem_free(ranges);
	return st;
}

static bool same_form(const payload_tensor *have, const clv_tensor *t)
{
	return have->dtype == t->m.dtype && have->ndim == t->m.ndim &&
	       (have->ndim == 0 || memcmp(have->sizes, t->m.sizes, have->ndim * sizeof *have->sizes) == 0);
}

static clv_status put_weight(artifact *to, uint32_t i, const clv_tensor *t)
{
	payload_tensor *have = &to->tensors->tensors.at[i], now = *have;
	if (!same_form(have, t))
		return fail(CLV_E_INPUT, "%.64s has another type or shape than in the trainer", have->label);
	now.has_lead = false; /* it is where it is */
	TRY(tensor_describe(to->tensors, t, t, &now));
	now.requires_grad = have->requires_grad;
	*have = now;
	return CLV_OK;
}

/* The version of the weights, as if they had been bound. */
static clv_status note_weights(const trainer *t, const bool *changing, const artifact *suffix, artifact *to)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	const runtime *s = t->suffix;
	clv_runtime *r;
	o.sandbox = CLV_SANDBOX_OFF; /* nothing runs */
	o.tape_only = true;
	o.optimize = "none";
	TRY(clv_runtime_create(suffix, &o, &r));
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < s->nstate && st == CLV_OK; i++)
		if (changing[i] && runtime_knows(r, s->a->tensors->tensors.at[i].label))
			st = runtime_note_weight(r, s->a->tensors->tensors.at[i].label, s->state[i]);
	for (uint32_t i = 0; i < to->weight_digests.n && st == CLV_OK; i++)
		to->weight_digests.at[i].value = r->weights.at[i].value;
	to->weight_version = r->weight_version;
	clv_runtime_free(r);
	return st;
}

static clv_status put_weights(const trainer *t, const bool *changing, artifact *to)
{
	const runtime *s = t->suffix;
	uint32_t found = 0;
	for (uint32_t i = 0; i < s->nstate; i++) {
		uint32_t k = changing[i] ? payload_find(to->tensors, s->a->tensors->tensors.at[i].label) : NONE;
		found += k != NONE;
		if (k != NONE)
			TRY(put_weight(to, k, s->state[i]));
	}
	return found ? CLV_OK : fail(CLV_E_INPUT, "the file reads nothing that the trainer has: it is of another model");
}

clv_status trainer_save(const trainer *t, const artifact *suffix, const char *path)
{
	artifact *to;
	bool *changing = find_changing(t);
	TRY_MEM(changing);
	clv_status st = copy_file(suffix, &to);
	if (st == CLV_OK) {
		st = put_weights(t, changing, to);
		if (st == CLV_OK)
			st = note_weights(t, changing, suffix, to);
		if (st == CLV_OK)
			st = artifact_save(to, path);
		artifact_free(to);
	}
	mem_free(changing);
	return st;
}
