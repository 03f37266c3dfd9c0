/* The description of a file that trains: read as hostile, and held against the tensors and plans of the file. */
#include "file/training.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "file/artifact_segments.h"
#include "file/json.h"
#include "plan/view.h"

/* ---- the text ------------------------------------------------------------------------------------------------------- */

static const char *const kinds[] = {"sgd", "adam", "adamw"};

static clv_status get_number(const json_t *from, const char *what, double *out)
{
	*out = json_number_value(from);
	return json_is_number(from) && isfinite(*out) ? CLV_OK : fail(CLV_E_PARSE, "\"%s\" is no finite number", what);
}

static clv_status get_real(const json_t *o, const char *key, double *out)
{
	return get_number(json_object_get(o, key), key, out);
}

static clv_status read_betas(const json_t *o, training_group *g)
{
	const json_t *betas = json_object_get(o, "betas");
	if (json_array_size(betas) != 2)
		return fail(CLV_E_PARSE, "\"betas\" is no pair of numbers");
	TRY(get_number(json_array_get(betas, 0), "betas", &g->beta1));
	TRY(get_number(json_array_get(betas, 1), "betas", &g->beta2));
	TRY(get_real(o, "eps", &g->eps));
	return json_get_bool(o, "amsgrad", &g->amsgrad);
}

static clv_status read_momentum(const json_t *o, training_group *g)
{
	TRY(get_real(o, "momentum", &g->momentum));
	TRY(get_real(o, "dampening", &g->dampening));
	return json_get_bool(o, "nesterov", &g->nesterov);
}

static clv_status read_names(const json_t *o, const char *key, name_list *names)
{
	const json_t *from;
	TRY(json_get_array(o, key, &from));
	for (size_t i = 0; i < json_array_size(from); i++) {
		const char *name = json_plain_string(json_array_get(from, i));
		if (!name)
			return fail(CLV_E_PARSE, "\"%s\" has something that is no name", key);
		TRY(vec_push(names, name));
	}
	return CLV_OK;
}

static clv_status read_kind(const json_t *o, optimizer_kind *out)
{
	const char *kind;
	TRY(json_get_string(o, "kind", &kind));
	for (uint32_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (strcmp(kind, kinds[i]) == 0) {
			*out = (optimizer_kind)i;
			return CLV_OK;
		}
	return fail(CLV_E_UNSUPPORTED, "there is no optimizer \"%.32s\" here; sgd, adam and adamw are", kind);
}

static clv_status read_group(const json_t *o, training_group *g)
{
	TRY(read_kind(o, &g->kind));
	TRY(get_real(o, "lr", &g->lr));
	TRY(get_real(o, "weight_decay", &g->weight_decay));
	TRY(json_get_bool(o, "maximize", &g->maximize));
	TRY(g->kind == OPTIMIZER_SGD ? read_momentum(o, g) : read_betas(o, g));
	return read_names(o, "parameters", &g->names);
}

static clv_status read_seed(const json_t *o, uint64_t *out)
{
	const char *text;
	char *end;
	TRY(json_get_string(o, "seed", &text));
	errno = 0;
	*out = strtoull(text, &end, 10);
	bool digits = strspn(text, "0123456789") == strlen(text) && end != text && errno == 0;
	return digits ? CLV_OK : fail(CLV_E_PARSE, "\"seed\" is no number of 64 bits");
}

static clv_status read_all(training *x)
{
	const json_t *groups;
	TRY(json_get_array(x->root, "groups", &groups));
	for (size_t i = 0; i < json_array_size(groups); i++) {
		TRY(vec_push(&x->groups, (training_group){0}));
		TRY_MORE(read_group(json_array_get(groups, i), &x->groups.at[i]), "optimizer group %zu", i);
	}
	TRY(read_names(x->root, "tied", &x->tied));
	return read_seed(x->root, &x->seed);
}

clv_status training_read(const char *text, training *out)
{
	*out = (training){0};
	TRY(json_read(text, strlen(text), "the description of the training", &out->root));
	return read_all(out);
}

void training_free(training *x)
{
	for (uint32_t i = 0; i < x->groups.n; i++)
		vec_free(&x->groups.at[i].names);
	vec_free(&x->groups);
	vec_free(&x->tied);
	json_decref(x->root);
}

bool training_is_tied(const training *x, const char *name)
{
	for (uint32_t i = 0; i < x->tied.n; i++)
		if (strcmp(x->tied.at[i], name) == 0)
			return true;
	return false;
}

/* ---- in an artifact ------------------------------------------------------------------------------------------------- */

clv_status artifact_add_training(artifact *a, const char *text, const void *loss, size_t n)
{
	char *copy = arena_alloc(&a->arena, n + ST_MAPPED_ALIGN); /* artifacts start at a multiple of that */
	TRY_MEM(copy);
	copy += ST_MAPPED_ALIGN - 1 - ((uintptr_t)copy + ST_MAPPED_ALIGN - 1) % ST_MAPPED_ALIGN;
	memcpy(copy, loss, n);
	a->loss = copy;
	a->loss_n = n;
	return artifact_text(a, text, &a->training);
}

clv_status training_find(artifact *a)
{
	size_t n;
	const char *text = st_metadata(a->file, ARTIFACT_TRAINING_KEY, &n);
	uint32_t i = st_find(a->file, PAYLOAD_LOSS);
	bool tensor = payload_find(a->tensors, PAYLOAD_LOSS) != NONE;
	if (!text)
		return i == NONE || tensor ? CLV_OK : fail(CLV_E_PARSE, "there is a loss in the file, and no training");
	if (i == NONE || tensor)
		return fail(CLV_E_PARSE, "the file trains, and has no loss");
	const st_entry *e = st_at(a->file, i);
	if (e->dtype != DT_U8 || e->ndim != 1 || (uintptr_t)e->data % ST_MAPPED_ALIGN)
		return fail(CLV_E_PARSE, "the loss is no list of bytes that starts at a multiple of %d", ST_MAPPED_ALIGN);
	if (memchr(text, '\0', n) || strlen(text) != n)
		return fail(CLV_E_PARSE, "the description of the training has a NUL in it");
	return artifact_add_training(a, text, e->data, e->nbytes); /* bytes of our own: the loss decides what runs */
}

clv_status training_loss(const artifact *a, artifact **out)
{
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	o.allow_operators = a->allowed.at;
	o.nallow_operators = a->allowed.n;
	TRY_MORE(artifact_parse_inner(a->loss, a->loss_n, &o, out), "the loss");
	(*out)->base = artifact_ref(a);
	return CLV_OK;
}

/* ---- rules ---------------------------------------------------------------------------------------------------------- */

static bool is_real(dtype d)
{
	return d == DT_F32 || d == DT_F64 || d == DT_F16 || d == DT_BF16;
}

static clv_status check_parameter(const artifact *a, const char *name, bool *held)
{
	uint32_t i = payload_find(a->tensors, name);
	if (i == NONE)
		return fail(CLV_E_PARSE, "there is no parameter \"%.64s\" in the file", name);
	const payload_tensor *t = &a->tensors->tensors.at[i];
	if (!t->requires_grad || !is_real(t->dtype))
		return fail(CLV_E_PARSE, "\"%.64s\" is no floating-point tensor that requires grad", name);
	if (held[i])
		return fail(CLV_E_PARSE, "the optimizer holds \"%.64s\" twice", name);
	held[i] = true;
	return CLV_OK;
}

/* What a plan trains is stepped. */
static clv_status check_held(const artifact *a, uint32_t number, const bool *held)
{
	const artifact_plan *e = &a->plans.at[number];
	view v;
	TRY(view_range(e->p, e->first, e->end, &v));
	clv_status st = CLV_OK;
	for (uint32_t k = 0; k < v.externals.n && st == CLV_OK; k++) {
		uint32_t i = artifact_tensor_of(a, number, v.externals.at[k]);
		bool trains = i != NONE && e->p->values.at[v.externals.at[k]].flags & VALUE_TRAINABLE;
		if (trains && !held[i])
			st = fail(CLV_E_PARSE, "no optimizer group holds \"%.64s\", which plan %u trains",
			          a->tensors->tensors.at[i].label, number);
	}
	view_free(&v);
	return st;
}

static clv_status check_names(const artifact *a, const training *x, bool *held)
{
	for (uint32_t i = 0; i < x->groups.n; i++)
		for (uint32_t k = 0; k < x->groups.at[i].names.n; k++)
			TRY(check_parameter(a, x->groups.at[i].names.at[k], held));
	for (uint32_t i = 0; i < x->tied.n; i++) {
		uint32_t t = payload_find(a->tensors, x->tied.at[i]);
		if (t == NONE || !held[t])
			return fail(CLV_E_PARSE, "\"%.64s\" is tied, and no optimizer group holds it", x->tied.at[i]);
	}
	for (uint32_t i = 0; i < a->plans.n; i++)
		TRY(check_held(a, i, held));
	return CLV_OK;
}

/* The loss gives one number for outputs and targets. */
static clv_status check_loss(const artifact *a)
{
	artifact *loss;
	TRY(training_loss(a, &loss));
	clv_status st = CLV_OK;
	if (strcmp(loss->part, "all") != 0)
		st = fail(CLV_E_PARSE, "the loss is the %.32s of a model", loss->part);
	for (uint32_t i = 0; i < loss->plans.n && st == CLV_OK; i++) {
		const plan *p = loss->plans.at[i].p;
		if (p->out_tree.n != 1 || p->out_tree.at[0].kind != TREE_VALUE)
			st = fail(CLV_E_PARSE, "plan %u of the loss gives something else than one tensor", i);
	}
	artifact_free(loss);
	return st;
}

static clv_status check_description(const artifact *a)
{
	training x;
	bool *held = mem_alloc(a->tensors->tensors.n + 1);
	clv_status st = training_read(a->training, &x);
	if (st == CLV_OK)
		st = held ? check_names(a, &x, held) : fail_nomem();
	training_free(&x);
	mem_free(held);
	return st;
}

clv_status training_check(const artifact *a)
{
	if (!a->training)
		return CLV_OK;
	if (strcmp(a->part, "suffix") != 0 || !a->weights)
		return fail(CLV_E_PARSE, "only a suffix with its weights trains");
	if (a->packed.n || segments_any(a))
		return fail(CLV_E_PARSE, "a file that trains has neither packed weights nor compiled segments");
	TRY(check_description(a));
	return check_loss(a);
}
