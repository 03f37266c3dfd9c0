/* The ways of a follower: cuts that could be the fastest over some link, each with every way to compress that is allowed.
 *
 * A server that is worth asking is faster than what runs here. Then an earlier cut wins unless a later one sends less: so cuts are
 * candidates that send less than all before them, the inputs included. The time of a prefix is its share of a profile of the whole
 * model; what a boundary becomes in bytes is measured by packing one. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "file/artifact.h"
#include "remote/follow.h"
#include "runtime/runtime.h"
#include "split/frontier.h"

/* How much faster the server is thought to be before it has answered: so it is asked once, and then it is known. */
static const double HOPE = 0.25;
enum { HEAD_BYTES = 400 }; /* of a request or an answer without its tensors, about */

typedef struct candidate {
	const char *where;
	double share; /* of the work, in the prefix */
	int64_t bytes;
} candidate;

typedef struct measuring {
	clv_follower *f;
	const clv_tensor *const *inputs;
	uint32_t n;
	double seconds;    /* of the whole model here */
	int64_t in, out;   /* bytes of inputs and outputs */
	double *before;    /* per node of the first plan: the share of the work up to it; NULL: not known */
	VEC(candidate) at; /* in the order of the plan */
	VEC(clv_way) told; /* for the link, as f->ways */
} measuring;

/* ---- the whole model here ------------------------------------------------------------------------------------------------- */

static int64_t bytes_of(const clv_tensor *const *t, uint32_t n)
{
	int64_t sum = 0;
	for (uint32_t i = 0; i < n; i++)
		sum += clv_tensor_bytes(t[i]) > 0 ? clv_tensor_bytes(t[i]) : 0;
	return sum;
}

static void free_all(clv_tensor **t, uint32_t n)
{
	for (uint32_t i = 0; t && i < n; i++) {
		clv_tensor_free(t[i]);
		t[i] = NULL;
	}
}

/* Of a run whose outputs nobody wants. */
static clv_status time_run(const measuring *m, double *seconds)
{
	uint32_t n = clv_runtime_output_count(m->f->whole);
	clv_tensor **outputs = mem_alloc((n + 1) * sizeof *outputs);
	TRY_MEM(outputs);
	double start = clock_seconds();
	clv_status st = clv_runtime_run(m->f->whole, m->inputs, m->n, outputs, n);
	*seconds = clock_seconds() - start;
	if (st == CLV_OK)
		free_all(outputs, n);
	mem_free(outputs);
	return st;
}

static clv_status read_profile(measuring *m)
{
	const clv_runtime *r = m->f->whole;
	uint32_t nodes = r->plans.at[0].of.p->nodes.n;
	double sum = 0;
	double *before = mem_alloc((nodes + 1) * sizeof *before);
	TRY_MEM(before);
	for (uint32_t i = 0; i < clv_runtime_profile_count(r); i++) {
		clv_profile_node x = {.size = sizeof x};
		if (clv_runtime_profile_get(r, i, &x) == CLV_OK && x.plan == 0 && x.node < nodes)
			before[x.node] += (double)x.median_ns;
	}
	for (uint32_t i = 0; i < nodes; i++)
		before[i] = sum += before[i];
	for (uint32_t i = 0; i < nodes && sum > 0; i++)
		before[i] /= sum;
	if (sum > 0)
		m->before = before;
	else
		mem_free(before);
	return CLV_OK;
}

/* Node by node. Where that is not possible (a sandbox, another plan), the estimated work has to do. */
static clv_status profile_whole(measuring *m)
{
	double seconds;
	clv_runtime *r = m->f->whole;
	clv_status st = clv_runtime_profile(r, true);
	if (st == CLV_E_UNSUPPORTED)
		return CLV_OK;
	TRY(st);
	st = time_run(m, &seconds);
	if (st == CLV_OK)
		st = read_profile(m);
	clv_status off = clv_runtime_profile(r, false);
	return st == CLV_OK ? off : st;
}

static clv_status run_whole(measuring *m, clv_tensor **outputs, uint32_t noutputs)
{
	TRY(clv_runtime_run(m->f->whole, m->inputs, m->n, outputs, noutputs)); /* makes what the first run makes */
	m->in = bytes_of(m->inputs, m->n);
	m->out = bytes_of((const clv_tensor *const *)outputs, noutputs);
	clv_status st = time_run(m, &m->seconds);
	if (st == CLV_OK)
		st = profile_whole(m);
	if (st != CLV_OK)
		free_all(outputs, noutputs);
	return st;
}

/* ---- candidates ----------------------------------------------------------------------------------------------------------- */

static bool is_allowed(const clv_follower *f, encoding e)
{
	for (uint32_t i = 0; i < f->o.ncompress; i++)
		if (strcmp(f->o.compress[i], encoding_names[e]) == 0)
			return true;
	return e == ENC_PLAIN;
}

static bool sends_less(const clv_follower *f, const frontier *c, int64_t *least)
{
	bool less = false;
	for (int e = 0; e < ENC_COUNT; e++)
		less |= is_allowed(f, (encoding)e) && c->sent[e] < least[e];
	for (int e = 0; less && e < ENC_COUNT; e++)
		least[e] = c->sent[e] < least[e] ? c->sent[e] : least[e];
	return less;
}

/* A name by which the server finds the same place. */
static clv_status name_place(clv_follower *f, const clv_frontiers *all, uint32_t i, const char **out)
{
	clv_frontier c = {.size = sizeof c};
	strbuf b = STRBUF_INIT;
	const char *where;
	uint32_t found;
	*out = NULL;
	TRY(clv_frontiers_get(all, i, &c));
	strbuf_printf(&b, "after:%s", c.name);
	TRY(arena_take(&f->arena, &b, &where));
	if (clv_frontiers_choose(all, where, NULL, &found) == CLV_OK && found == i)
		*out = where;
	return CLV_OK;
}

/* As a candidate, if the server can find the place by its name. */
static clv_status add_candidate(measuring *m, const clv_frontiers *all, uint32_t i, bool *added)
{
	const frontier *c = &all->at[i];
	const char *where;
	TRY(name_place(m->f, all, i, &where));
	*added = where != NULL;
	return where ? vec_push(&m->at, ((candidate){where, m->before ? m->before[i] : c->cost, c->sent[ENC_PLAIN]}))
	             : CLV_OK;
}

static clv_status find_candidates(measuring *m, const clv_frontiers *all)
{
	int64_t least[ENC_COUNT];
	uint32_t smallest = NONE;
	bool added;
	for (int e = 0; e < ENC_COUNT; e++)
		least[e] = all->input_bytes;
	for (uint32_t i = 0; i < all->n; i++) {
		const frontier *c = &all->at[i];
		int64_t now[ENC_COUNT];
		memcpy(now, least, sizeof now);
		if (c->unsafe)
			continue;
		smallest = smallest == NONE || c->bytes < all->at[smallest].bytes ? i : smallest;
		if (!sends_less(m->f, c, now))
			continue;
		TRY(add_candidate(m, all, i, &added));
		if (added)
			memcpy(least, now, sizeof least);
	}
	/* one there has to be: its boundary shows which weights the server has */
	return m->at.n || smallest == NONE ? CLV_OK : add_candidate(m, all, smallest, &added);
}

/* Leaves out those that send nearly the same as the next one. */
static void thin_out(measuring *m)
{
	while (m->at.n > (uint32_t)m->f->o.max_cuts) {
		uint32_t worst = 0;
		double nearest = INFINITY;
		for (uint32_t i = 0; i + 1 < m->at.n; i++) {
			double ratio = (double)m->at.at[i].bytes / (double)(m->at.at[i + 1].bytes + 1);
			worst = ratio < nearest ? i : worst;
			nearest = ratio < nearest ? ratio : nearest;
		}
		m->at.n--;
		memmove(m->at.at + worst, m->at.at + worst + 1, (m->at.n - worst) * sizeof *m->at.at);
	}
}

/* The sizes of these inputs, as far as the first plan takes them. */
static clv_status sizes_of_call(const measuring *m, const char **names, int64_t *values, clv_sizes *out)
{
	const plan_part *of = &m->f->whole->plans.at[0].of;
	const plan *p = of->p;
	*out = (clv_sizes){names, values, 0};
	if (of->v.inputs.n != m->n || call_symbols(&of->v, (clv_tensor *const *)m->inputs, NULL, values) != CLV_OK)
		return CLV_OK;
	for (uint32_t i = 0; i < p->symbols.n; i++)
		if (values[i] > 0) {
			values[out->n] = values[i];
			names[out->n++] = plan_s(p, p->symbols.at[i].name);
		}
	return CLV_OK;
}

static clv_status list_candidates(measuring *m)
{
	const plan *p = clv_artifact_plan(m->f->whole->a, 0);
	clv_frontiers *all = NULL;
	clv_sizes sizes;
	const char **names = mem_alloc((p->symbols.n + 1) * sizeof *names);
	int64_t *values = mem_alloc((p->symbols.n + 1) * sizeof *values);
	clv_status st = names && values ? sizes_of_call(m, names, values, &sizes) : fail_nomem();
	if (st == CLV_OK)
		st = clv_frontiers_create(p, &sizes, &all);
	if (st == CLV_OK)
		st = find_candidates(m, all);
	thin_out(m);
	clv_frontiers_free(all);
	mem_free(names);
	mem_free(values);
	return st;
}

/* ---- one cut -------------------------------------------------------------------------------------------------------------- */

static clv_status make_half(const clv_follower *f, const char *where, bool prefix, clv_runtime **out)
{
	artifact *half;
	clv_split_options o = CLV_SPLIT_OPTIONS_INIT;
	o.boundary = where;
	TRY(artifact_half(f->whole->a, &o, prefix, &half));
	clv_status st = clv_runtime_create(half, &f->runtime, out);
	clv_artifact_free(half);
	return st;
}

static clv_status add_way(measuring *m, follow_way way, const candidate *at, double codec, int64_t bytes)
{
	strbuf name = STRBUF_INIT;
	clv_way told = {.size = sizeof told, .remote = way.remote, .codec = codec, .sent = bytes + HEAD_BYTES};
	double share = at ? at->share : way.remote ? 0 : 1;
	told.here = share * m->seconds;
	told.there = way.remote ? (1 - share) * m->seconds * HOPE : 0;
	told.received = way.remote ? m->out + HEAD_BYTES : 0;
	if (at)
		strbuf_printf(&name, "%s%s%s", at->where, way.compress ? " " : "", way.compress ? way.compress : "");
	else
		strbuf_puts(&name, way.remote ? "there" : "here");
	TRY(arena_take(&m->f->arena, &name, &told.name));
	TRY(vec_push(&m->f->ways, way));
	return vec_push(&m->told, told);
}

typedef struct tried {
	double seconds, error; /* to pack it and read it again; of the outputs */
	int64_t bytes;
	bool good;
} tried;

static clv_status try_exact(const clv_runtime *prefix, const measuring *m, tried *all)
{
	static const encoding exact[] = {ENC_PLAIN, ENC_ZSTD};
	clv_boundary *b;
	TRY(clv_runtime_run_prefix(prefix, m->inputs, m->n, &b));
	clv_status st = CLV_OK;
	for (unsigned i = 0; st == CLV_OK && i < sizeof exact / sizeof *exact; i++) {
		clv_pack_options o = CLV_PACK_OPTIONS_INIT;
		encoding e = exact[i];
		void *data = NULL;
		size_t n = 0;
		if (!is_allowed(m->f, e))
			continue;
		o.compress = e == ENC_PLAIN ? NULL : encoding_names[e];
		double start = clock_seconds();
		st = clv_boundary_pack(b, &o, &data, &n);
		all[e] = (tried){2 * (clock_seconds() - start), 0, (int64_t)n, true};
		clv_free(data);
	}
	clv_boundary_free(b);
	return st;
}

static clv_status try_all(const clv_runtime *prefix, const clv_runtime *suffix, const measuring *m, tried *all)
{
	clv_calibration *c;
	TRY(clv_calibration_new(prefix, suffix, &c));
	clv_status st = clv_calibration_add(c, m->inputs, m->n);
	for (uint32_t i = 0; st == CLV_OK && i < ENC_COUNT; i++) {
		clv_calibrated x = {.size = sizeof x};
		st = clv_calibration_at(c, i, &x);
		bool fits = m->f->o.max_error <= 0 || x.output_error <= m->f->o.max_error;
		all[i] = (tried){x.seconds, x.output_error, x.bytes, !x.reason && fits && is_allowed(m->f, (encoding)i)};
	}
	clv_calibration_free(c);
	return st;
}

static bool loses_something(const clv_follower *f)
{
	for (int e = 0; e < ENC_COUNT; e++)
		if (e != ENC_PLAIN && e != ENC_ZSTD && is_allowed(f, (encoding)e))
			return true;
	return false;
}

static clv_status try_cut(const measuring *m, const follow_cut *cut, tried *all)
{
	clv_runtime *suffix = NULL;
	if (!loses_something(m->f))
		return try_exact(cut->prefix, m, all);
	TRY(make_half(m->f, cut->where, false, &suffix));
	clv_status st = try_all(cut->prefix, suffix, m, all);
	clv_runtime_free(suffix);
	return st;
}

/* Its ways: as it is, and those that are smaller. */
static clv_status add_cut(measuring *m, const candidate *at)
{
	tried all[ENC_COUNT] = {0};
	follow_cut cut = {.where = at->where};
	clv_status st = make_half(m->f, at->where, true, &cut.prefix);
	if (st == CLV_OK)
		st = try_cut(m, &cut, all);
	if (st == CLV_OK)
		st = vec_push(&m->f->cuts, cut);
	if (st != CLV_OK) { /* a place where it cannot be cut after all */
		clv_runtime_free(cut.prefix);
		return st == CLV_E_NOMEM ? st : CLV_OK;
	}
	for (int e = 0; e < ENC_COUNT; e++) {
		const char *compress = e == ENC_PLAIN ? NULL : encoding_names[e];
		if (all[e].good && (e == ENC_PLAIN || all[e].bytes < all[ENC_PLAIN].bytes))
			TRY(add_way(m, (follow_way){m->f->cuts.n - 1, true, compress, all[e].error, 0}, at, all[e].seconds,
			            all[e].bytes));
	}
	return CLV_OK;
}

/* ---- all ------------------------------------------------------------------------------------------------------------------ */

static clv_status make_ways(measuring *m)
{
	TRY(list_candidates(m));
	TRY(add_way(m, (follow_way){.cut = NONE}, NULL, 0, 0));
	TRY(add_way(m, (follow_way){.cut = NONE, .remote = true}, NULL, 0, m->in));
	for (uint32_t i = 0; i < m->at.n; i++)
		TRY(add_cut(m, &m->at.at[i]));
	clv_link *link;
	TRY(clv_link_new(m->told.at, m->told.n, &m->f->link_options, &link));
	link_bar(link, FOLLOW_THERE, true); /* until the server has shown that it has these weights */
	m->f->link = link;
	return CLV_OK;
}

void follow_forget(clv_follower *f)
{
	for (uint32_t i = 0; i < f->cuts.n; i++) {
		clv_runtime_free(f->cuts.at[i].prefix);
		clv_remote_free(f->cuts.at[i].there);
	}
	f->cuts.n = f->ways.n = 0;
	clv_link_free(f->link);
	f->link = NULL;
}

clv_status follow_measure(clv_follower *f, const clv_tensor *const *inputs, uint32_t n, clv_tensor **outputs,
                          uint32_t noutputs)
{
	measuring m = {.f = f, .inputs = inputs, .n = n};
	clv_status st = run_whole(&m, outputs, noutputs);
	if (st == CLV_OK) {
		st = make_ways(&m);
		if (st != CLV_OK) {
			free_all(outputs, noutputs);
			follow_forget(f);
		}
	}
	mem_free(m.before);
	vec_free(&m.at);
	vec_free(&m.told);
	return st;
}

static clv_status connect_cut(const clv_follower *f, follow_cut *cut)
{
	strbuf url = STRBUF_INIT;
	char *text;
	size_t n = strlen(f->url);
	while (n && f->url[n - 1] == '/')
		n--;
	strbuf_printf(&url, "%.*s@%s", (int)n, f->url, cut->where);
	TRY(strbuf_take(&url, &text));
	clv_status st = clv_remote_connect(text, &f->remote, &cut->there);
	mem_free(text);
	return st;
}

clv_status follow_open(clv_follower *f, uint32_t way)
{
	uint32_t i = f->ways.at[way].cut;
	if (i == NONE)
		return CLV_OK;
	follow_cut *cut = &f->cuts.at[i];
	return cut->there ? CLV_OK : connect_cut(f, cut);
}
