/* Makes inputs for models, from files or random numbers.
 * A file is held against what the model takes before anything runs, so that the message names the file and the input.
 * Random numbers depend on the seed and the place alone: the same on every machine. */
#include "feed.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "element.h"

/* ---- what only torch has: devices that work on their own, and random numbers in models ------------------------------- */

#ifdef CLEAVE_CLI_TORCH
clv_status wait_for(const char *device)
{
	return clv_synchronize(device);
}

clv_status seed_models(uint64_t seed)
{
	return clv_set_seed(seed);
}
#else
clv_status wait_for(const char *device)
{
	(void)device;
	return CLV_OK;
}

clv_status seed_models(uint64_t seed)
{
	(void)seed;
	return CLV_OK;
}
#endif

/* ---- the runtime --------------------------------------------------------------------------------------------------- */

bool is_part(const model *m, const loading *o, const char *part)
{
	return !strcmp(o->part ? o->part : clv_artifact_part(m->artifact), part);
}

static bool bind_array(clv_runtime *r, const char *path, const clv_array *a)
{
	clv_tensor *t;
	clv_status st = clv_tensor_from_data(a->data, a->dtype, a->ndim, a->shape, &t);
	if (st == CLV_OK) {
		st = clv_runtime_bind(r, a->name, t);
		clv_tensor_free(t);
	}
	if (st == CLV_OK || st == CLV_E_NOT_FOUND) /* a checkpoint may have more than a part of the model reads */
		return true;
	complain("%s: tensor \"%s\": %s", path, a->name, clv_last_error());
	return false;
}

/* The values that nodes of this part of plan i take; caller frees. */
static bool *mark_read(const model *m, const loading *o, uint32_t i, const clv_graph *g)
{
	bool *read = grab(clv_graph_value_count(g) + 1);
	clv_plan_info info = {.size = sizeof info};
	clv_node n = {.size = sizeof n};
	if (clv_artifact_plan_info(m->artifact, i, &info) != CLV_OK)
		return read;
	uint32_t first = info.cut >= 0 && is_part(m, o, "suffix") ? (uint32_t)info.cut : info.first;
	uint32_t end = info.cut >= 0 && is_part(m, o, "prefix") ? (uint32_t)info.cut : info.end;
	for (uint32_t k = first; k < end && clv_graph_node(g, k, &n) == CLV_OK; k++)
		for (uint32_t j = 0; j < n.ninputs; j++)
			read[n.inputs[j]] = true;
	return read;
}

static bool has_array(const clv_arrays *arrays, const clv_value *v)
{
	bool has = clv_arrays_find(arrays, v->name) != UINT32_MAX;
	for (uint32_t i = 0; !has && i < v->ntied; i++)
		has = clv_arrays_find(arrays, v->tied[i]) != UINT32_MAX;
	return has;
}

static bool complain_missing(const char *path, const clv_value *v, uint32_t n)
{
	char more[32] = "";
	if (n > 1)
		snprintf(more, sizeof more, " and %u more", n - 1);
	complain("%s: the model reads %s%s, which %s not there", path, v->name, more, n > 1 ? "are" : "is");
	if (v->kind == CLV_VALUE_BUFFER)
		hint("a buffer that is not persistent is in no state_dict; it has to be in this file");
	return false;
}

/* Some of these weights and some of the model's own would be neither model. */
static bool plan_has_weights(const model *m, const loading *o, uint32_t i, const clv_arrays *arrays)
{
	clv_graph *g = NULL;
	clv_value v = {.size = sizeof v}, missing = v;
	uint32_t n = 0;
	if (clv_graph_create(clv_artifact_plan(m->artifact, i), &g) != CLV_OK)
		return fail_with(m->path) == EXIT_OK;
	bool *read = mark_read(m, o, i, g);
	for (uint32_t k = 0; k < clv_graph_value_count(g); k++)
		if (read[k] && clv_graph_value(g, k, &v) == CLV_OK &&
		    (v.kind == CLV_VALUE_PARAM || v.kind == CLV_VALUE_BUFFER) && !has_array(arrays, &v) && n++ == 0)
			missing = v;
	bool ok = n == 0 || complain_missing(o->weights, &missing, n);
	free(read);
	clv_graph_free(g);
	return ok;
}

static bool has_all_weights(const model *m, const loading *o, const clv_arrays *arrays)
{
	for (uint32_t i = 0; i < clv_artifact_plan_count(m->artifact); i++)
		if (!plan_has_weights(m, o, i, arrays))
			return false;
	return true;
}

static bool bind_weights(const model *m, const loading *o, clv_runtime *r)
{
	const char *path = o->weights;
	clv_arrays *arrays;
	clv_array a = {.size = sizeof a};
	if (clv_arrays_load(path, &arrays) != CLV_OK)
		return fail_with(NULL) == EXIT_OK;
	bool ok = has_all_weights(m, o, arrays);
	for (uint32_t i = 0; ok && i < clv_arrays_count(arrays); i++)
		ok = clv_arrays_get(arrays, i, &a) == CLV_OK && bind_array(r, path, &a);
	const char *name;
	for (uint32_t i = 0; ok && (name = clv_runtime_unbound(r, i)); i++)
		if (clv_arrays_find(arrays, name) == CLV_NONE) {
			complain("%s: the model reads %s, which is missing", path, name);
			ok = false;
		}
	clv_arrays_free(arrays);
	return ok;
}

static bool has_weights(const model *m, const loading *o, clv_runtime *r)
{
	const char *first = clv_runtime_unbound(r, 0);
	if (o->weights)
		return bind_weights(m, o, r);
	if (!first)
		return true;
	complain("%s: the weights are not in the file: %s is missing", name_of(m->path), first);
	hint("--weights FILE reads them from a safetensors file");
	return false;
}

/* Compiled parts that do not run as such: how many, and why the first one does not. */
static void say_segments(const model *m, const loading *o, const clv_runtime *r)
{
	clv_segment_state first = {.size = sizeof first};
	uint32_t left = 0, n = clv_runtime_segment_count(r);
	for (uint32_t i = 0; i < n; i++) {
		clv_segment_state s = {.size = sizeof s};
		if (clv_runtime_segment(r, i, &s) != CLV_OK || s.compiled)
			continue;
		if (left++ == 0)
			first = s;
	}
	if (left)
		note("%s: %u of %u compiled parts (%s) not used: %s", name_of(m->path), left, n, first.backend, first.reason);
	if (left && first.barred && o->allow_signed)
		hint("--allow-signed uses them in a file that a --trusted-key signed");
	else if (left && first.barred)
		hint("--allow-compiled uses them, if you trust the author of the file");
}

/* Nobody asked for it. */
static void say_sandbox(const model *m, const loading *o)
{
	const char *why;
	if (o->sandbox || clv_artifact_vouched(m->artifact, &why))
		return;
	note("%s: nobody vouches for this file (%s): it runs in a sandbox", name_of(m->path), why);
	hint("--no-sandbox runs it in this process, if you trust it");
}

int loading_check(const loading *o)
{
	if (!o->sandbox || !o->no_sandbox)
		return EXIT_OK;
	complain("--sandbox and --no-sandbox do not go together");
	return EXIT_USAGE;
}

clv_runtime_options loading_options(const loading *o)
{
	clv_runtime_options options = CLV_RUNTIME_OPTIONS_INIT;
	options.device = o->device;
	options.part = o->part;
	options.unproven = o->unproven;
	options.debug = o->debug;
	options.allow_compiled = o->allow_compiled;
	options.allow_signed = o->allow_signed;
	options.tape_only = o->tape_only;
	options.timeout = o->timeout;
	options.max_memory = o->max_memory;
	options.sandbox = o->sandbox ? CLV_SANDBOX_ON : o->no_sandbox ? CLV_SANDBOX_OFF : CLV_SANDBOX_AUTO;
	options.optimize = o->optimize;
	options.engine = o->engine;
	options.threads = (int)o->threads;
	return options;
}

clv_runtime *load_runtime(const model *m, const loading *o)
{
	clv_runtime_options options = loading_options(o);
	clv_runtime *r = NULL;
	if (clv_runtime_create(m->artifact, &options, &r) != CLV_OK) {
		fail_with(m->path);
		return NULL;
	}
	if (has_weights(m, o, r)) {
		if (clv_runtime_sandboxed(r))
			say_sandbox(m, o);
		else if (!o->tape_only && !o->debug)
			say_segments(m, o, r);
		return r;
	}
	clv_runtime_free(r);
	return NULL;
}

int fail_boundary(const char *path)
{
	complain("%s is a suffix: it runs on the boundary that a prefix gave", name_of(path));
	hint("cleave run prefix.clv … -o boundary.safetensors, then --boundary boundary.safetensors here");
	return EXIT_FAILED;
}

int fail_run(const char *path, clv_status st)
{
	const clv_error_details *about = clv_last_error_details();
	bool unproven = st == CLV_E_INPUT && about->seen[0] && !about->input[0]; /* sizes, of no input in particular */
	bool guard = st == CLV_E_GUARD;
	fail_with(path);
	if (unproven)
		hint("`cleave inspect` says which sizes are proven; --unproven runs others too");
	else if (guard)
		hint("this data takes the model another way than it was captured for: capture it with such data");
	return EXIT_FAILED;
}

/* ---- what the user said, by input ------------------------------------------------------------------------------------ */

typedef struct source {
	const char *what; /* NULL: nothing was said */
	clv_arrays *file; /* NULL: made up */
	clv_array array;  /* of the file */
} source;

typedef struct feeder {
	const model *m;
	const clv_runtime *r;
	const feeding *f;
	clv_port *ports;
	source *sources;
	uint32_t n;
	double lo, hi; /* of random integers */
	double until;  /* when all have to be made, by now(); INFINITY: there is no limit */
	sizes *sizes;
} feeder;

static bool is_late(const feeder *e)
{
	return now() > e->until;
}

static bool is_made_up(const char *what)
{
	return !strcmp(what, "random") || !strcmp(what, "zeros") || !strcmp(what, "ones");
}

static void list_inputs(const feeder *e, char *out, size_t n)
{
	size_t at = 0;
	out[0] = '\0';
	for (uint32_t i = 0; i < e->n && at < n; i++)
		at += (size_t)snprintf(out + at, n - at, "%s%s", i ? ", " : "", e->ports[i].name);
}

/* The input that "x=…" names; e->n: none has that name. */
static uint32_t named_input(const feeder *e, const char *text, size_t length)
{
	uint32_t i = 0;
	while (i < e->n && (strlen(e->ports[i].name) != length || memcmp(e->ports[i].name, text, length) != 0))
		i++;
	return i;
}

static bool assign(feeder *e, const char *text, uint32_t *next)
{
	char list[512];
	const char *equals = strchr(text, '=');
	uint32_t i = equals ? named_input(e, text, (size_t)(equals - text)) : e->n;
	const char *what = equals && i < e->n ? equals + 1 : text;
	list_inputs(e, list, sizeof list);
	if (equals && i == e->n && access(text, F_OK) != 0) {
		complain("the model has no input %.*s; its inputs are %s", (int)(equals - text), text, list);
		return false;
	}
	if (i == e->n) {
		while (*next < e->n && e->sources[*next].what)
			++*next;
		i = *next;
	}
	if (i == e->n) {
		complain("--input %s is one too many: the inputs of the model are %s", text, e->n ? list : "none");
		return false;
	}
	if (e->sources[i].what) {
		complain("input %s is given twice", e->ports[i].name);
		return false;
	}
	e->sources[i].what = what;
	return true;
}

static bool assign_all(feeder *e)
{
	uint32_t next = 0;
	for (uint32_t i = 0; i < e->f->inputs.n; i++)
		if (!assign(e, e->f->inputs.at[i], &next))
			return false;
	for (uint32_t i = 0; i < e->n; i++) {
		if (!e->sources[i].what)
			e->sources[i].what = e->f->fill;
		if (e->sources[i].what)
			continue;
		complain("input %s is not given", e->ports[i].name);
		hint("--input %s=file.npy reads it, --input %s=random makes it up, --fill random does so for all",
		     e->ports[i].name, e->ports[i].name);
		return false;
	}
	return true;
}

static bool read_range(const char *text, double *lo, double *hi)
{
	char *end;
	errno = 0;
	long long a = strtoll(text, &end, 10), b = *end == ':' ? strtoll(end + 1, &end, 10) : a - 1;
	*lo = (double)a;
	*hi = (double)b;
	return !errno && !*end && a <= b && a > -(1LL << 52) && b < 1LL << 52;
}

int feeding_check(const feeding *f)
{
	double lo, hi;
	if (read_range(f->int_range, &lo, &hi))
		return EXIT_OK;
	complain("--int-range takes two whole numbers, such as 0:999, not \"%s\"", f->int_range);
	return EXIT_USAGE;
}

/* ---- files ------------------------------------------------------------------------------------------------------------ */

/* "file.safetensors:name" in two; the whole, where there is such a file. Caller frees *path. */
static const char *split_name(const char *what, char **path)
{
	const char *colon = strrchr(what, ':');
	bool whole = !colon || access(what, F_OK) == 0;
	*path = grab_text(what, whole ? strlen(what) : (size_t)(colon - what));
	return whole ? NULL : colon + 1;
}

static bool pick_array(source *s, const char *path, const char *name, const char *input)
{
	uint32_t n = clv_arrays_count(s->file), i = name ? clv_arrays_find(s->file, name) : 0;
	if (!name && n != 1)
		i = clv_arrays_find(s->file, input);
	s->array.size = sizeof s->array;
	if (i != CLV_NONE && i < n && clv_arrays_get(s->file, i, &s->array) == CLV_OK)
		return true;
	if (name)
		complain("input %s: %s has no tensor \"%s\"", input, path, name);
	else
		complain("input %s: %s has %u tensors, and none is called %s", input, path, n, input);
	hint("--input %s=%s:NAME says which one", input, path);
	return false;
}

static bool open_source(source *s, const char *input)
{
	char *path;
	if (is_made_up(s->what))
		return true;
	const char *name = split_name(s->what, &path);
	bool ok = clv_arrays_load(path, &s->file) == CLV_OK;
	if (!ok)
		complain("input %s: %s", input, clv_last_error());
	else
		ok = pick_array(s, path, name, input);
	free(path);
	return ok;
}

/* "f32[B,4]" */
static void print_port(const clv_port *p, char *out, size_t n)
{
	size_t at = (size_t)snprintf(out, n, "%s[", p->dtype);
	for (uint32_t d = 0; d < p->ndim && at < n; d++)
		at += (size_t)snprintf(out + at, n - at, "%s%s", d ? "," : "", p->dims[d]);
	if (at < n)
		snprintf(out + at, n - at, "]");
}

static void print_array(const clv_array *a, char *out, size_t n)
{
	size_t at = (size_t)snprintf(out, n, "%s[", a->dtype);
	for (uint32_t d = 0; d < a->ndim && at < n; d++)
		at += (size_t)snprintf(out + at, n - at, "%s%lld", d ? "," : "", (long long)a->shape[d]);
	if (at < n)
		snprintf(out + at, n - at, "]");
}

static bool complain_type(const feeder *e, uint32_t i)
{
	char want[256], got[256];
	print_port(&e->ports[i], want, sizeof want);
	print_array(&e->sources[i].array, got, sizeof got);
	complain("input %s: %s has %s, the model takes %s", e->ports[i].name, e->sources[i].what, got, want);
	return false;
}

/* Symbols get their sizes from the files whose dimensions they are. */
static bool take_sizes(feeder *e, uint32_t i)
{
	const clv_port *p = &e->ports[i];
	const clv_array *a = &e->sources[i].array;
	clv_symbol s = {.size = sizeof s};
	if (strcmp(a->dtype, p->dtype) != 0 || a->ndim != p->ndim)
		return complain_type(e, i);
	for (uint32_t d = 0; d < p->ndim; d++)
		for (uint32_t k = 0; k < clv_plan_symbol_count(e->m->plan); k++) {
			if (clv_plan_symbol(e->m->plan, k, &s) != CLV_OK || strcmp(s.name, p->dims[d]) != 0)
				continue;
			int64_t have = sizes_find(e->sizes, s.name);
			if (have >= 0 && have != a->shape[d]) {
				complain("input %s: dimension %u of %s is %lld, but %s is %lld", p->name, d, e->sources[i].what,
				         (long long)a->shape[d], s.name, (long long)have);
				return false;
			}
			if (have < 0)
				sizes_add(e->sizes, s.name, a->shape[d]);
		}
	return true;
}

static bool open_sources(feeder *e)
{
	for (uint32_t i = 0; i < e->n; i++)
		if (!open_source(&e->sources[i], e->ports[i].name) ||
		    (e->sources[i].file && !e->f->resize && !take_sizes(e, i)))
			return false;
	sizes_complete(e->sizes, e->m->artifact);
	return true;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
	uint64_t z = (*state += 0x9E3779B97F4A7C15u);
	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
	z = (z ^ z >> 27) * 0x94D049BB133111EBu;
	return z ^ z >> 31;
}

/* Near enough to normal: twelve uniform numbers have variance one. Sums of integers are the same everywhere. */
static double next_normal(uint64_t *state)
{
	int64_t sum = 0;
	for (int i = 0; i < 6; i++) {
		uint64_t two = next_random(state);
		sum += (int64_t)(two >> 32) + (int64_t)(two & 0xffffffffu);
	}
	return (double)(sum - 12 * (1LL << 31)) * 0x1p-32;
}

static double next_number(const feeder *e, const element *x, uint64_t *state)
{
	if (x->kind == ELEMENT_FLOAT || x->kind == ELEMENT_COMPLEX)
		return next_normal(state);
	if (x->kind == ELEMENT_BOOL)
		return (double)(next_random(state) & 1);
	uint64_t count = (uint64_t)(e->hi - e->lo) + 1;
	return e->lo + (double)(next_random(state) % count);
}

static bool can_fill(const feeder *e, uint32_t i, const element *x)
{
	const char *name = e->ports[i].name;
	if (x->kind == ELEMENT_OTHER) {
		complain("input %s: numbers of dtype %s are not made up; give a file", name, e->ports[i].dtype);
		return false;
	}
	bool whole = x->kind == ELEMENT_INT || x->kind == ELEMENT_UINT;
	if (whole && !strcmp(e->sources[i].what, "random") && (e->lo < x->lo || e->hi > x->hi)) {
		complain("input %s: --int-range %s is more than dtype %s has", name, e->f->int_range, x->dtype);
		return false;
	}
	return true;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------------- */

static bool is_dense(uint32_t ndim, const int64_t *shape, const int64_t *strides)
{
	int64_t want = 1;
	for (uint32_t d = ndim; d-- > 0 && want;) {
		if (shape[d] != 1 && strides[d] != want)
			return false;
		want *= shape[d];
	}
	return true;
}

/* Writes the elements of an input: those of its file, or numbers. */
typedef struct filling {
	const feeder *e;
	const source *s;
	const element *x;
	size_t item;
	uint64_t count;
	const int64_t *shape, *strides;
	uint64_t state; /* of random numbers */
	bool random;
} filling;

/* Data of a file is repeated where it ends, and cut off where there is more of it than is wanted. */
static const char *element_in_file(const filling *f, const int64_t *index)
{
	const clv_array *a = &f->s->array;
	uint64_t at = 0;
	for (uint32_t d = 0; d < a->ndim; d++)
		at = at * (uint64_t)a->shape[d] + (uint64_t)(index[d] % a->shape[d]);
	return (const char *)a->data + at * f->item;
}

/* With `check` nothing is written; false is for an element that is not there: another, at the same place, has overwritten it. */
static bool fill_element(filling *f, const int64_t *index, char *to, bool check)
{
	if (check)
		return !memcmp(to, element_in_file(f, index), f->item);
	if (f->s->file)
		memcpy(to, element_in_file(f, index), f->item);
	else
		element_put(f->x, to, f->random ? next_number(f->e, f->x, &f->state) : 1);
	return true;
}

/* Elements in row-major order to where strides say, as long as there is time. */
static bool fill_elements(filling *f, uint32_t ndim, char *to, bool check)
{
	enum { BETWEEN = 1 << 20 }; /* elements from one look at the clock to the next */
	int64_t *index = grab((ndim + 1) * sizeof *index), at = 0;
	bool same = true;
	for (uint64_t k = 0; same && k < f->count && (k % BETWEEN || !is_late(f->e)); k++) {
		same = fill_element(f, index, to + (size_t)at * f->item, check);
		for (uint32_t d = ndim; d-- > 0;) {
			at += f->strides[d];
			if (++index[d] < f->shape[d])
				break;
			at -= f->strides[d] * f->shape[d];
			index[d] = 0;
		}
	}
	free(index);
	return same;
}

static bool fill_input(const feeder *e, uint32_t i, filling *f, char *to)
{
	const clv_port *p = &e->ports[i];
	if (!strcmp(f->s->what, "zeros")) /* they are */
		return true;
	fill_elements(f, p->ndim, to, false);
	bool fit = !f->s->file || fill_elements(f, p->ndim, to, true);
	if (!fit)
		complain("input %s was captured with elements that share memory, and here they differ", p->name);
	else if (is_late(e))
		complain("input %s: it takes longer to make it up than the %g s that a run may take", p->name, e->f->timeout);
	return fit && !is_late(e);
}

/* Made up, resized, or with strides of the model's: the size is what the model says, so that the library counts it. */
static bool make_tensor(const feeder *e, uint32_t i, filling *f, int64_t *made, clv_tensor **out)
{
	clv_sizes o = sizes_given(e->sizes);
	void *to;
	if (clv_runtime_make_input(e->r, (uint32_t)e->f->plan, i, &o, made, out, &to) == CLV_OK)
		return fill_input(e, i, f, to);
	complain("%s", clv_last_error());
	return false;
}

static bool copy_array(const feeder *e, uint32_t i, clv_tensor **out)
{
	const clv_array *a = &e->sources[i].array;
	if (clv_tensor_from_data(a->data, a->dtype, a->ndim, a->shape, out) == CLV_OK)
		return true;
	complain("input %s: %s", e->ports[i].name, clv_last_error());
	return false;
}

/* Of a file with several plans another one may serve the shape: that the library decides. */
static bool has_shape(const feeder *e, uint32_t i, const int64_t *shape, bool *other)
{
	const clv_array *a = &e->sources[i].array;
	*other = a->ndim && memcmp(a->shape, shape, a->ndim * sizeof *shape) != 0;
	return !*other || clv_artifact_plan_count(e->m->artifact) > 1 || complain_type(e, i);
}

static uint64_t count_elements(uint32_t ndim, const int64_t *shape)
{
	uint64_t count = 1;
	for (uint32_t d = 0; d < ndim; d++)
		count *= (uint64_t)shape[d];
	return count;
}

static bool can_resize(const feeder *e, uint32_t i, uint64_t have, uint64_t want)
{
	const clv_array *a = &e->sources[i].array;
	if (a->ndim != e->ports[i].ndim || strcmp(a->dtype, e->ports[i].dtype) != 0)
		return complain_type(e, i);
	if (have || !want)
		return true;
	complain("input %s: %s has no elements to repeat", e->ports[i].name, e->sources[i].what);
	return false;
}

static bool make_here(const feeder *e, uint32_t i, const int64_t *shape, const int64_t *strides, int64_t *made,
                      clv_tensor **out)
{
	const clv_port *p = &e->ports[i];
	const source *s = &e->sources[i];
	filling f = {.e = e, .s = s, .x = element_of(p->dtype), .shape = shape, .strides = strides};
	bool other = false;
	f.count = count_elements(p->ndim, shape); /* of what the library made */
	f.item = f.x->bytes;
	f.random = !strcmp(s->what, "random");
	f.state = (uint64_t)e->f->seed * 0x2545F4914F6CDD1Du + i;
	next_random(&f.state);
	if (!s->file)
		return can_fill(e, i, f.x) && make_tensor(e, i, &f, made, out);
	uint64_t have = count_elements(s->array.ndim, s->array.shape);
	f.item = have ? s->array.bytes / have : 1;
	if (e->f->resize)
		return can_resize(e, i, have, f.count) && make_tensor(e, i, &f, made, out);
	if (!has_shape(e, i, shape, &other))
		return false;
	return other || is_dense(p->ndim, shape, strides) ? copy_array(e, i, out) : make_tensor(e, i, &f, made, out);
}

static bool make_input(const feeder *e, uint32_t i, const int64_t *shape, const int64_t *strides, int64_t *made,
                       clv_tensor **out)
{
	clv_tensor *here = NULL;
	bool ok = make_here(e, i, shape, strides, made, &here);
	if (ok && clv_tensor_to_device(here, e->ports[i].device, out) != CLV_OK) {
		complain("input %s: %s", e->ports[i].name, clv_last_error());
		ok = false;
	}
	clv_tensor_free(here);
	return ok;
}

static bool make_inputs(const feeder *e, feed *out)
{
	clv_sizes o = sizes_given(e->sizes);
	int64_t made = 0;
	for (uint32_t i = 0; i < e->n; i++) {
		int64_t *shape = grab((e->ports[i].ndim + 1) * 2 * sizeof *shape), *strides = shape + e->ports[i].ndim + 1;
		bool ok = clv_runtime_input_shape(e->r, (uint32_t)e->f->plan, i, &o, shape, strides) == CLV_OK;
		if (!ok)
			complain("input %s: %s", e->ports[i].name, clv_last_error());
		ok = ok && make_input(e, i, shape, strides, &made, &out->at[i]);
		free(shape);
		if (!ok)
			return false;
	}
	return true;
}

bool resolve_batch(const model *m, sizes *s)
{
	if (sizes_resolve(s, m))
		return true;
	if (clv_artifact_plan_count(m->artifact) > 1)
		hint("the file has several plans, for single sizes: --plan N takes the sizes of another one");
	return false;
}

static bool has_symbol(const clv_artifact *a, const char *name)
{
	clv_symbol s = {.size = sizeof s};
	for (uint32_t i = 0; i < clv_artifact_plan_count(a); i++)
		for (uint32_t k = 0; k < clv_plan_symbol_count(clv_artifact_plan(a, i)); k++)
			if (clv_plan_symbol(clv_artifact_plan(a, i), k, &s) == CLV_OK && !strcmp(s.name, name))
				return true;
	return false;
}

static bool check_given_sizes(const model *m, const feeding *f, const sizes *given)
{
	uint32_t plans = clv_artifact_plan_count(m->artifact);
	if (f->plan >= plans) {
		complain("%s: there is no plan %lld; the file has %u", name_of(m->path), (long long)f->plan, plans);
		return false;
	}
	for (uint32_t i = 0; i < given->n; i++)
		if (!has_symbol(m->artifact, given->symbols[i])) {
			complain("%s: the model has no size %s that could change", name_of(m->path), given->symbols[i]);
			if (plans > 1)
				hint("it has a plan for each size: --plan N takes those of another one");
			return false;
		}
	return true;
}

bool feed_make(const model *m, const clv_runtime *r, const feeding *f, const sizes *given, feed *out)
{
	uint32_t n = clv_runtime_input_count(r);
	feeder e = {.m = m, .r = r, .f = f, .n = n, .sizes = &out->sizes};
	e.until = f->timeout > 0 ? now() + f->timeout : INFINITY;
	*out = (feed){.at = grab((n + 1) * sizeof *out->at), .n = n};
	e.ports = grab((n + 1) * sizeof *e.ports);
	e.sources = grab((n + 1) * sizeof *e.sources);
	for (uint32_t i = 0; i < given->n; i++)
		sizes_add(&out->sizes, given->symbols[i], given->values[i]);
	bool ok = read_range(f->int_range, &e.lo, &e.hi); /* feeding_check() said so already */
	ok = ok && check_given_sizes(m, f, given);
	for (uint32_t i = 0; i < n; i++) {
		e.ports[i].size = sizeof *e.ports;
		ok = ok && clv_runtime_input(r, i, &e.ports[i]) == CLV_OK;
	}
	ok = ok && assign_all(&e) && open_sources(&e) && make_inputs(&e, out);
	for (uint32_t i = 0; i < n; i++)
		clv_arrays_free(e.sources[i].file);
	free(e.ports);
	free(e.sources);
	return ok;
}

void feed_free(feed *f)
{
	for (uint32_t i = 0; i < f->n; i++)
		clv_tensor_free(f->at[i]);
	free(f->at);
	sizes_free(&f->sizes);
	*f = (feed){0};
}

#ifdef CLEAVE_CLI_TORCH
bool compare_engines(const clv_artifact *a, const char *path, bool no_sandbox, double *worst)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	o.sandbox = no_sandbox ? CLV_SANDBOX_OFF : CLV_SANDBOX_AUTO;
	clv_status st = clv_artifact_compare(a, &o, worst);
	if (st == CLV_E_GUARD) { /* it proves nothing */
		*worst = -1;
		note("%s: not compared as a whole: %s", path, clv_last_error());
		return true;
	}
	if (st != CLV_OK)
		fail_run(path, st);
	return st == CLV_OK;
}
#else
bool compare_engines(const clv_artifact *a, const char *path, bool no_sandbox, double *worst)
{
	(void)a, (void)no_sandbox, (void)worst;
	complain("%s: comparing with the tape needs libtorch, which this program goes without", path);
	return false;
}
#endif
