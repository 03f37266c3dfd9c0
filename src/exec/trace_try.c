/* Attempts: compiles ranges of a plan as jobs and compares them with the tape. A range of known content is not compiled
 * again. */
#include <stdio.h>
#include <string.h>

#include "exec/trace.h"
#include "plan/data.h"

static clv_status count_dims(const plan *p, const value_id *values, uint32_t n, uint32_t *out)
{
	for (uint32_t i = 0; i < n; i++) {
		const value *v = &p->values.at[values[i]];
		if (v->type != TYPE_TENSOR)
			return fail(CLV_E_UNSUPPORTED, "a number that is read from data goes in or out");
		*out += v->ndim;
	}
	return CLV_OK;
}

clv_status attempt_init(const trace_plan *p, node_id first, node_id end, attempt *out)
{
	artifact_segment *s = &out->segment;
	uint32_t in = 0, result = 0;
	view v;
	*out = (attempt){.segment = {.first = first, .end = end}, .made = NONE, .tape_ms = -1, .code_ms = -1};
	TRY(view_segment(p->p, &p->live, first, end, &v));
	clv_status st = count_dims(p->p, v.inputs.at, v.inputs.n, &in);
	if (st == CLV_OK)
		st = count_dims(p->p, v.outputs.at, v.outputs.n, &result);
	view_free(&v);
	for (uint32_t i = 0; i < in && st == CLV_OK; i++)
		st = vec_push(&s->in_order, 0);
	for (uint32_t i = 0; i < result && st == CLV_OK; i++)
		st = vec_push(&s->out_order, 0);
	return st == CLV_OK ? code_empty(first, end, &out->code) : st;
}

void attempt_free(attempt *a)
{
	code_unref(a->code);
	mem_free(a->why);
	vec_free(&a->blamed);
	vec_free(&a->segment.sizes);
	vec_free(&a->segment.in_order);
	vec_free(&a->segment.out_order);
	vec_free(&a->segment.needs);
	vec_free(&a->segment.facts);
	vec_free(&a->segment.members);
	*a = (attempt){.made = NONE};
}

/* Sizes that it is compiled for: all, or those of the call that it is compiled on. */
static clv_status set_sizes(const trace_plan *p, const int64_t *example, attempt *a)
{
	for (uint32_t i = 0; i < p->p->symbols.n; i++) {
		const symbol *s = &p->p->symbols.at[i];
		artifact_sizes sizes = {s->lo, s->hi};
		if (!p->t->o->dynamic && !s->data)
			sizes = (artifact_sizes){example[i], example[i]};
		TRY(vec_push(&a->segment.sizes, sizes));
	}
	return CLV_OK;
}

static clv_status set_why(attempt *a, const char *why)
{
	a->why = mem_strdup(why, strlen(why));
	return a->why ? CLV_OK : fail_nomem();
}

/* A size of what goes in tells the symbol. */
static bool is_shown(const plan *p, const view *v, const int64_t *example, symbol_id s)
{
	for (uint32_t i = 0; i < v->inputs.n; i++) {
		const value *x = &p->values.at[v->inputs.at[i]];
		for (uint32_t d = 0; d < x->ndim; d++) {
			expr_id e = p->dims.at[x->shape + d];
			int64_t n, solved;
			symbol_id found;
			if (expr_depends(p, e, s) && expr_eval(p, e, example, &n) == CLV_OK && expr_solve(p, e, n, &found, &solved))
				return true;
		}
	}
	return false;
}

/* Nodes that ask for a size which nothing shows. */
static clv_status foresee_sizes(const trace_plan *p, const view *v, const int64_t *example, attempt *a)
{
	for (symbol_id s = 0; s < p->p->symbols.n; s++) {
		const artifact_sizes *sizes = &a->segment.sizes.at[s];
		if (p->p->symbols.at[s].data || sizes->low == sizes->high || is_shown(p->p, v, example, s))
			continue;
		for (node_id n = a->segment.first; n < a->segment.end; n++)
			if (node_takes(p->p, n, s))
				TRY(vec_push(&a->blamed, n));
	}
	return a->blamed.n ? set_why(a, "its size changes from run to run, and nothing that goes into its segment shows it")
	                   : CLV_OK;
}

static clv_status refuse_early(const trace_plan *p, const int64_t *example, attempt *a)
{
	view v;
	TRY(view_segment(p->p, &p->live, a->segment.first, a->segment.end, &v));
	clv_status st = foresee_sizes(p, &v, example, a);
	bool idle = v.inputs.n == 0 && !a->why && !a->half && p->t->o->fallback;
	view_free(&v);
	TRY(st);
	for (node_id n = a->segment.first; n < a->segment.end && idle; n++)
		TRY(vec_push(&a->blamed, n));
	return idle ? set_why(a, "nothing goes into its segment: it is the same in every run") : CLV_OK;
}

typedef struct job_texts {
	VEC(job_size) sizes;
	VEC(job_tensor) inputs;
	arena arena;
} job_texts;

static void job_texts_free(job_texts *j)
{
	vec_free(&j->sizes);
	vec_free(&j->inputs);
	arena_free(&j->arena);
}

static clv_status describe_input(const plan *p, value_id id, const uint32_t *order, job_texts *j)
{
	const value *v = &p->values.at[id];
	const char **shape = arena_array(&j->arena, v->ndim, sizeof *shape);
	TRY(arena_status(&j->arena));
	for (uint32_t d = 0; d < v->ndim; d++) {
		strbuf b = STRBUF_INIT;
		expr_print(p, p->dims.at[v->shape + d], &b);
		TRY(arena_take(&j->arena, &b, &shape[d]));
	}
	job_tensor t = {.dtype = dtype_name((dtype)v->dtype),
	                .device = plan_s(p, v->device),
	                .ndim = v->ndim,
	                .shape = shape,
	                .order = order};
	return vec_push(&j->inputs, t);
}

static clv_status describe_job(const trace_plan *p, const attempt *a, const int64_t *example, job_texts *j)
{
	view v;
	for (uint32_t i = 0; i < p->p->symbols.n; i++) {
		const symbol *s = &p->p->symbols.at[i];
		const artifact_sizes *sizes = &a->segment.sizes.at[i];
		if (!s->data)
			TRY(vec_push(&j->sizes, ((job_size){plan_s(p->p, s->name), sizes->low, sizes->high, example[i]})));
	}
	TRY(view_segment(p->p, &p->live, a->segment.first, a->segment.end, &v));
	clv_status st = CLV_OK;
	for (uint32_t i = 0, at = 0; i < v.inputs.n && st == CLV_OK; i++) {
		st = describe_input(p->p, v.inputs.at[i], a->segment.in_order.at ? a->segment.in_order.at + at : NULL, j);
		at += p->p->values.at[v.inputs.at[i]].ndim;
	}
	view_free(&v);
	return st;
}

static job_spec spec_of(const tracer *t, const job_texts *j)
{
	return (job_spec){.backend = t->b->name,
	                  .args = t->o->args,
	                  .nargs = t->o->nargs,
	                  .sizes = j->sizes.at,
	                  .nsizes = j->sizes.n,
	                  .inputs = j->inputs.at,
	                  .ninputs = j->inputs.n};
}

typedef struct batch {
	trace_plan *p;
	attempt *at;
	uint32_t n;
	int64_t *example; /* per symbol: sizes of the call that is compiled on */
	VEC(job) jobs;
	VEC(uint32_t) made; /* per job: its place in tracer->made */
} batch;

static clv_status made_add(tracer *t, digest key, uint32_t *out)
{
	trace_made m = {.key = key};
	TRY(vec_push(&t->made, m));
	*out = t->made.n - 1;
	return CLV_OK;
}

static uint32_t made_find(const tracer *t, digest key)
{
	for (uint32_t i = 0; i < t->made.n; i++)
		if (t->made.at[i].key.high == key.high && t->made.at[i].key.low == key.low)
			return i;
	return NONE;
}

static bool on_cpu(const job_spec *spec)
{
	for (uint32_t i = 0; i < spec->ninputs; i++)
		if (strcmp(spec->inputs[i].device, "cpu") != 0)
			return false;
	return true;
}

static clv_status write_job(tracer *t, const job_spec *spec, artifact *alone, job *out)
{
	char name[32];
	char *dir = NULL, *path = NULL;
	strbuf b = STRBUF_INIT;
	snprintf(name, sizeof name, "segment-%u", t->jobs++);
	TRY(job_folder_make(t->folder, name, &dir));
	strbuf_printf(&b, "%s/segment.clv", dir);
	clv_status st = strbuf_take(&b, &path);
	if (st == CLV_OK)
		st = artifact_save(alone, path);
	if (st == CLV_OK)
		st = job_write(spec, dir);
	mem_free(path);
	*out = (job){.dir = dir, .name = strrchr(dir, '/') + 1, .warm = on_cpu(spec)};
	if (st != CLV_OK) {
		mem_free(dir);
		out->dir = NULL;
	}
	return st;
}

/* Known already, in the cache, or a new job. */
static clv_status find_or_add(batch *b, attempt *a, const job_spec *spec, artifact *alone)
{
	tracer *t = b->p->t;
	digest key;
	bool found = false;
	TRY(job_key(spec, alone, t->context.at, &key));
	a->made = made_find(t, key);
	if (a->made != NONE)
		return CLV_OK;
	TRY(made_add(t, key, &a->made));
	trace_made *m = &t->made.at[a->made];
	clv_status st = cache_get(&t->kept, key, &m->made, &found);
	if (st == CLV_E_NOMEM)
		return st;
	m->cached = st == CLV_OK && found;
	if (m->cached)
		return CLV_OK;
	job j;
	TRY(write_job(t, spec, alone, &j));
	st = vec_push(&b->made, a->made);
	if (st == CLV_OK)
		st = vec_push(&b->jobs, j);
	if (st != CLV_OK)
		mem_free((char *)j.dir);
	return st;
}

static clv_status prepare_attempt(batch *b, attempt *a)
{
	artifact *alone;
	job_texts texts = {0};
	TRY(set_sizes(b->p, b->example, a));
	TRY(refuse_early(b->p, b->example, a));
	if (a->why)
		return CLV_OK;
	clv_status st = describe_job(b->p, a, b->example, &texts);
	if (st == CLV_OK)
		st = artifact_take_nodes(b->p->a, b->p->number, a->segment.first, a->segment.end, &alone);
	if (st == CLV_OK) {
		job_spec spec = spec_of(b->p->t, &texts);
		st = find_or_add(b, a, &spec, alone);
		artifact_free(alone);
	}
	job_texts_free(&texts);
	return st;
}

static bool report_progress(void *ctx, const job *jobs, uint32_t n)
{
	const tracer *t = ctx;
	uint32_t done = 0;
	const char *name = "";
	for (uint32_t i = 0; i < n; i++) {
		done += jobs[i].state > JOB_RUNS;
		if (jobs[i].state == JOB_RUNS)
			name = jobs[i].name;
	}
	return !t->o->progress || t->o->progress(t->o->ctx, name, done, n);
}

/* In this process, one after another. */
static clv_status compile_here(batch *b)
{
	const tracer *t = b->p->t;
	for (uint32_t i = 0; i < b->jobs.n; i++) {
		job *j = &b->jobs.at[i];
		j->state = JOB_RUNS;
		if (!report_progress((void *)t, b->jobs.at, b->jobs.n))
			return fail(CLV_E_CANCELLED, "tracing was stopped");
		clv_status st = t->b->compile(t->b->ctx, j->dir, &j->made);
		if (st != CLV_OK && !fault_of_code(st))
			return st;
		j->state = st == CLV_OK ? JOB_DONE : JOB_FAILED;
		if (st != CLV_OK && !(j->message = mem_strdup(status_message(), strlen(status_message()))))
			return fail_nomem();
	}
	return CLV_OK;
}

static clv_status compile_apart(batch *b)
{
	const tracer *t = b->p->t;
	const char *python = t->o->python ? t->o->python : getenv("CLEAVE_PYTHON");
	char module[64];
	snprintf(module, sizeof module, "cleave.compilers.%.32s", t->b->name);
	const char *argv[] = {python ? python : "python3", "-m", module, NULL};
	jobs_spec spec = {.argv = argv,
	                  .env = t->o->env,
	                  .timeout = t->o->timeout,
	                  .parallel = t->o->parallel,
	                  .tick = report_progress,
	                  .ctx = (void *)t};
	return jobs_run(b->jobs.at, b->jobs.n, &spec);
}

static clv_status note_blamed(const batch *b, const attempt *a, const job *j, trace_made *m)
{
	artifact *alone;
	node_names *names = NULL;
	if (j->nblamed == 0)
		return CLV_OK;
	TRY(artifact_take_nodes(b->p->a, b->p->number, a->segment.first, a->segment.end, &alone));
	clv_status st = node_names_new(alone->plans.at[0].p, &names);
	for (uint32_t i = 0; i < j->nblamed && st == CLV_OK; i++) {
		node_id n = node_find(names, j->blamed[i]);
		if (n != NONE)
			st = vec_push(&m->blamed, n);
	}
	node_names_free(names);
	artifact_free(alone);
	return st;
}

static clv_status take_result(batch *b, uint32_t i)
{
	job *j = &b->jobs.at[i];
	trace_made *m = &b->p->t->made.at[b->made.at[i]];
	const attempt *a = b->at;
	while (a->made != b->made.at[i])
		a++;
	m->seconds = j->seconds;
	switch (j->state) {
	case JOB_DONE:
		m->made = j->made;
		j->made = (compiled){0};
		return CLV_OK;
	case JOB_TIMEOUT:
		return fail(CLV_E_TIMEOUT, "the compiler took longer than %g s for %s: %s", b->p->t->o->timeout, j->name,
		            j->message ? j->message : "");
	case JOB_FAILED:
		if (j->argument)
			return fail(CLV_E_INVALID, "%s", j->message ? j->message : "a compiler argument is wrong");
		m->why = j->message;
		j->message = NULL;
		if (!m->why && !(m->why = mem_strdup("the compiler failed", 19)))
			return fail_nomem();
		return note_blamed(b, a, j, m);
	default: return fail(CLV_E_CANCELLED, "tracing was stopped");
	}
}

static clv_status compile_all(batch *b)
{
	if (b->jobs.n == 0)
		return CLV_OK;
	clv_status st = b->p->t->b->compile ? compile_here(b) : compile_apart(b);
	for (uint32_t i = 0; i < b->jobs.n && st == CLV_OK; i++)
		st = take_result(b, i);
	return st;
}

static void batch_free(batch *b)
{
	for (uint32_t i = 0; i < b->jobs.n; i++) {
		mem_free((char *)b->jobs.at[i].dir);
		job_free(&b->jobs.at[i]);
	}
	vec_free(&b->jobs);
	vec_free(&b->made);
	mem_free(b->example);
}

static clv_status fill_segment(const tracer *t, attempt *a)
{
	const compiled *c = &t->made.at[a->made].made;
	a->segment.backend = t->b->name;
	for (uint32_t i = 0; i < c->needs.n; i++)
		TRY(vec_push(&a->segment.needs, c->needs.at[i]));
	for (uint32_t i = 0; i < c->members.n; i++) {
		artifact_member m = {c->members.at[i].name, c->members.at[i].data, c->members.at[i].n};
		TRY(vec_push(&a->segment.members, m));
	}
	return CLV_OK;
}

static clv_status load_attempt(const trace_plan *p, attempt *a)
{
	const char *reason = NULL;
	arena texts = {0};
	code *loaded = NULL;
	if (a->why)
		return CLV_OK;
	const trace_made *m = &p->t->made.at[a->made];
	if (m->why) {
		for (uint32_t i = 0; i < m->blamed.n; i++)
			TRY(vec_push(&a->blamed, a->segment.first + m->blamed.at[i]));
		return set_why(a, m->why);
	}
	TRY(fill_segment(p->t, a));
	code_source source = {&a->segment, p->p, &p->live, true};
	clv_status st = code_new(&source, &texts, &loaded, &reason);
	if (st == CLV_OK && reason)
		st = set_why(a, reason);
	if (st == CLV_OK && loaded) {
		code_unref(a->code);
		a->code = loaded;
	}
	arena_free(&texts);
	return st;
}

/* What agrees is worth keeping. A cache that cannot be written costs time later, and nothing now. */
static void cache_attempt(const tracer *t, const attempt *a)
{
	if (a->why)
		return;
	trace_made *m = &t->made.at[a->made];
	if (m->cached || m->kept)
		return;
	m->kept = true;
	if (cache_put(&t->kept, m->key, &m->made) != CLV_OK && t->o->log)
		t->o->log(t->o->ctx, status_message());
}

clv_status trace_symbols(const trace_plan *p, int64_t *out)
{
	const clv_trace_call *c = &p->t->o->calls[p->calls.at[0]];
	return call_symbols(&p->t->r->plans.at[p->number].of.v, (clv_tensor *const *)c->inputs, NULL, out);
}

static clv_status symbols_of_example(const trace_plan *p, int64_t **out)
{
	*out = mem_alloc((p->p->symbols.n + 1) * sizeof **out);
	return *out ? trace_symbols(p, *out) : fail_nomem();
}

clv_status attempts_run(trace_plan *p, attempt *at, uint32_t n)
{
	batch b = {.p = p, .at = at, .n = n};
	clv_status st = symbols_of_example(p, &b.example);
	if (st == CLV_OK)
		st = attempts_look(p, at, n);
	for (uint32_t i = 0; i < n && st == CLV_OK; i++)
		st = prepare_attempt(&b, &at[i]);
	if (st == CLV_OK)
		st = compile_all(&b);
	batch_free(&b);
	for (uint32_t i = 0; i < n && st == CLV_OK; i++)
		st = load_attempt(p, &at[i]);
	if (st == CLV_OK)
		st = attempts_check(p, at, n);
	for (uint32_t i = 0; i < n && st == CLV_OK; i++)
		cache_attempt(p->t, &at[i]);
	return st;
}
