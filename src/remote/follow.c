/* Calls that follow the link: each runs all here, all on a server, or in part here and in part there, whichever is fastest now.
 *
 * The first call runs here and measures (follow_ways.c); the link then learns from every call (choose_link.c). A call that goes to
 * the server is given up when the model here would have been done long before, and runs here: a server that is away, slow or has
 * become another one costs time, never an answer. Two things are never believed: that a model of the same name has the same
 * weights - a boundary, which says which weights made it, is sent first and again every now and then - and that the server is as
 * it was when it was last asked. */
#include "remote/follow.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/options.h"
#include "runtime/runtime.h"

/* Seconds: a call there may take LEAST, or PATIENCE times what it takes here; the first at a cut FIRST, as the server makes that
   suffix then. */
static const double LEAST = 1, PATIENCE = 3, FIRST = 10;
enum { CUTS = 8, CUTS_MOST = 16 }; /* a server keeps 16 of a model */

/* ---- made ------------------------------------------------------------------------------------------------------------- */

static clv_status keep_remote(clv_follower *f)
{
	clv_remote_options o = CLV_REMOTE_OPTIONS_INIT;
	TRY(options_read(&o, sizeof o, f->o.remote, "clv_remote_options"));
	o.lazy = true;
	o.retries = o.retries ? o.retries : -1; /* the model here is the second try */
	TRY(arena_keep(&f->arena, o.ca, &o.ca));
	TRY(arena_keep(&f->arena, o.cert, &o.cert));
	TRY(arena_keep(&f->arena, o.key, &o.key));
	if (o.token) {
		f->token = mem_strdup(o.token, strlen(o.token));
		TRY_MEM(f->token);
		o.token = f->token;
	}
	f->remote = o;
	return CLV_OK;
}

static clv_status keep_runtime(clv_follower *f)
{
	TRY(runtime_options_keep(&f->arena, f->o.runtime, &f->runtime));
	return f->runtime.part ? fail(CLV_E_INVALID, "a follower runs the whole model and its prefixes; name no part")
	                       : CLV_OK;
}

static clv_status keep_methods(clv_follower *f)
{
	static const char *const exact[] = {"zstd"};
	bool given = f->o.compress != NULL;
	const char *const *from = given ? f->o.compress : f->o.max_error > 0 ? encoding_names : exact;
	uint32_t n = given ? f->o.ncompress : f->o.max_error > 0 ? ENC_COUNT : 1;
	const char **kept = arena_alloc(&f->arena, (n + 1) * sizeof *kept);
	TRY_MEM(kept);
	for (uint32_t i = 0; i < n; i++) {
		encoding e;
		if (!from[i] || !encoding_parse(from[i], &e))
			return fail(CLV_E_INVALID, "compression is one of " ENCODINGS ", not \"%.32s\"", from[i] ? from[i] : "");
		kept[i] = encoding_names[e];
	}
	f->o.compress = kept;
	f->o.ncompress = n;
	return CLV_OK;
}

static clv_status keep_options(clv_follower *f, const clv_follow_options *options)
{
	clv_follow_options o = CLV_FOLLOW_OPTIONS_INIT;
	TRY(options_read(&o, sizeof o, options, "clv_follow_options"));
	o.max_cuts = o.max_cuts ? o.max_cuts : CUTS;
	o.check = o.check != 0 ? o.check : 60;
	if (o.max_cuts < 1 || o.max_cuts > CUTS_MOST || !(o.max_error >= 0) || !(o.check > 0))
		return fail(CLV_E_INVALID, "a follower has 1 to %d cuts, an error of 0 or more, and checks after more than 0 s",
		            CUTS_MOST);
	f->o = o;
	TRY(keep_remote(f));
	TRY(keep_runtime(f));
	TRY(keep_methods(f));
	f->link_options = (clv_link_options)CLV_LINK_OPTIONS_INIT;
	TRY(options_read(&f->link_options, sizeof f->link_options, o.link, "clv_link_options"));
	f->o.remote = NULL, f->o.runtime = NULL, f->o.link = NULL; /* the caller's */
	return CLV_OK;
}

static clv_status set_up(clv_follower *f, const clv_artifact *a, const char *url, const clv_follow_options *options)
{
	TRY(keep_options(f, options));
	TRY(arena_keep(&f->arena, url, &f->url));
	TRY(clv_remote_connect(url, &f->remote, &f->there)); /* it is lazy: this reads the URL and the certificates */
	TRY(clv_runtime_create(a, &f->runtime, &f->whole));
	if (f->whole->part != PART_ALL || strcmp(clv_artifact_part(a), "all") != 0)
		return fail(CLV_E_INVALID, "this file holds the %s of a model; only a whole one can be cut",
		            clv_artifact_part(a));
	if (f->whole->stateful)
		return fail(CLV_E_UNSUPPORTED,
		            "this model changes its own tensors in a run, which a call that is divided would do in two places");
	return CLV_OK;
}

static bool make_locks(clv_follower *f)
{
	if (pthread_mutex_init(&f->lock, NULL) != 0)
		return false;
	if (pthread_mutex_init(&f->starting, NULL) == 0)
		return true;
	pthread_mutex_destroy(&f->lock);
	return false;
}

clv_status clv_follower_new(const clv_artifact *a, const char *url, const clv_follow_options *options,
                            clv_follower **out)
{
	if (!a || !url || !out)
		return fail(CLV_E_INVALID, "clv_follower_new needs an artifact, a URL and a place for the follower");
	clv_follower *f = mem_alloc(sizeof *f);
	TRY_MEM(f);
	if (!make_locks(f)) {
		mem_free(f);
		return fail_nomem();
	}
	clv_status st = set_up(f, a, url, options);
	if (st == CLV_OK)
		*out = f;
	else
		clv_follower_free(f);
	return st;
}

void clv_follower_free(clv_follower *f)
{
	if (!f)
		return;
	follow_forget(f);
	vec_free(&f->cuts);
	vec_free(&f->ways);
	clv_remote_free(f->there);
	clv_runtime_free(f->whole);
	if (f->token)
		explicit_bzero(f->token, strlen(f->token));
	mem_free(f->token);
	mem_free(f->reason);
	arena_free(&f->arena);
	pthread_mutex_destroy(&f->lock);
	pthread_mutex_destroy(&f->starting);
	mem_free(f);
}

const clv_runtime *clv_follower_runtime(const clv_follower *f)
{
	return f ? f->whole : NULL;
}

/* ---- a call -------------------------------------------------------------------------------------------------------------- */

typedef struct call {
	clv_follower *f;
	const clv_tensor *const *inputs;
	uint32_t n;
	clv_tensor **outputs;
	uint32_t noutputs;
	uint32_t way;
	clv_followed how;
} call;

static void free_outputs(call *c)
{
	for (uint32_t i = 0; i < c->noutputs; i++) {
		clv_tensor_free(c->outputs[i]);
		c->outputs[i] = NULL;
	}
}

/* Outputs of the server come to the CPU; the caller gets them where the model here would have put them. */
static clv_status bring_outputs(call *c)
{
	for (uint32_t i = 0; i < c->noutputs; i++) {
		clv_port p = {.size = sizeof p};
		clv_tensor *moved;
		TRY(clv_runtime_output(c->f->whole, i, &p));
		if (strcmp(clv_tensor_device(c->outputs[i]), p.device) == 0)
			continue;
		TRY(clv_tensor_to_device(c->outputs[i], p.device, &moved));
		clv_tensor_free(c->outputs[i]);
		c->outputs[i] = moved;
	}
	return CLV_OK;
}

static const clv_followed NOT_YET = {.here = NAN,
                                     .times = {.size = sizeof(clv_remote_times), .queue = NAN, .compute = NAN}};

static clv_status run_here(call *c)
{
	c->how = NOT_YET;
	double start = clock_seconds();
	TRY(clv_runtime_run(c->f->whole, c->inputs, c->n, c->outputs, c->noutputs));
	c->how.here = clock_seconds() - start;
	return clv_link_tell(c->f->link, FOLLOW_HERE, c->how.here, NULL);
}

static clv_status run_prefix(call *c, const clv_runtime *prefix, clv_boundary **out)
{
	double start = clock_seconds();
	TRY(clv_runtime_run_prefix(prefix, c->inputs, c->n, out));
	c->how.here = clock_seconds() - start;
	return CLV_OK;
}

static clv_status ask(call *c, clv_remote *there, const clv_boundary *b, double limit)
{
	clv_pack_options pack = CLV_PACK_OPTIONS_INIT;
	pack.compress = c->f->ways.at[c->way].compress;
	remote_call q = {
		.boundary = b, .pack = &pack, .inputs = c->inputs, .ninputs = c->n, .limit = limit, .know_limit = FIRST};
	TRY(remote_run(there, &q, c->outputs, c->noutputs, &c->how.times));
	clv_status st = bring_outputs(c);
	if (st != CLV_OK)
		free_outputs(c);
	return st;
}

static void trust(clv_follower *f)
{
	f->trusted_until = clock_seconds() + f->o.check;
	link_bar(f->link, FOLLOW_THERE, false);
}

/* A call there went well. */
static clv_status note_answer(call *c)
{
	clv_follower *f = c->f;
	bool first = false;
	pthread_mutex_lock(&f->lock);
	follow_way *w = &f->ways.at[c->way];
	if (w->cut != NONE) {
		first = !f->cuts.at[w->cut].answered;
		f->cuts.at[w->cut].answered = true;
		trust(f);
	}
	mem_free(f->reason);
	f->reason = NULL;
	pthread_mutex_unlock(&f->lock);
	c->how.remote = true;
	return link_tell(f->link, c->way, isnan(c->how.here) ? 0 : c->how.here, &c->how.times, first);
}

/* It did not. The message stays in the slot of the thread. */
static void note_failure(call *c, bool late, double seconds)
{
	clv_follower *f = c->f;
	if (late)
		link_tell_late(f->link, c->way, seconds);
	else
		link_tell_away(f->link, seconds);
	pthread_mutex_lock(&f->lock);
	f->trusted_until = 0;
	link_bar(f->link, FOLLOW_THERE, true);
	mem_free(f->reason);
	f->reason = mem_strdup(status_message(), strlen(status_message()));
	pthread_mutex_unlock(&f->lock);
}

static clv_status open_way(call *c, follow_cut *out)
{
	clv_follower *f = c->f;
	uint32_t cut = f->ways.at[c->way].cut;
	pthread_mutex_lock(&f->lock);
	clv_status st = follow_open(f, c->way);
	*out = cut == NONE ? (follow_cut){.there = f->there, .answered = true} : f->cuts.at[cut];
	pthread_mutex_unlock(&f->lock);
	return st;
}

static clv_status ask_in_time(call *c, const follow_cut *cut, const clv_boundary *b)
{
	double start = clock_seconds(), here = PATIENCE * clv_link_expect(c->f->link, FOLLOW_HERE);
	double limit = !cut->answered ? FIRST : here > LEAST ? here : LEAST;
	clv_status st = ask(c, cut->there, b, limit);
	double seconds = clock_seconds() - start;
	if (st == CLV_OK)
		return note_answer(c);
	if (st != CLV_E_NOMEM)
		note_failure(c, st == CLV_E_IO && seconds >= 0.9 * limit, seconds + (isnan(c->how.here) ? 0 : c->how.here));
	return st;
}

static clv_status run_there(call *c)
{
	follow_cut cut;
	clv_boundary *b = NULL;
	TRY(open_way(c, &cut));
	if (cut.prefix)
		TRY(run_prefix(c, cut.prefix, &b));
	clv_status st = ask_in_time(c, &cut, b);
	clv_boundary_free(b);
	return st;
}

/* ---- which way ----------------------------------------------------------------------------------------------------------- */

/* All there, of a server that was not asked for its weights lately: a boundary goes first. */
static uint32_t choose(clv_follower *f)
{
	uint32_t way = clv_link_choose(f->link);
	pthread_mutex_lock(&f->lock);
	bool stale = way == FOLLOW_THERE && clock_seconds() >= f->trusted_until;
	pthread_mutex_unlock(&f->lock);
	if (!stale)
		return way;
	link_bar(f->link, FOLLOW_THERE, true);
	way = link_look(f->link);
	link_bar(f->link, FOLLOW_THERE, false);
	return way == NONE ? FOLLOW_HERE : way;
}

/* ---- the first call ------------------------------------------------------------------------------------------------------ */

/* A call whose outputs nobody wants. */
static clv_status try_there(const call *c, clv_tensor **room)
{
	call again = *c;
	again.outputs = room;
	again.how = NOT_YET;
	again.way = link_look(c->f->link);
	if (again.way == NONE)
		return CLV_OK;
	TRY(run_there(&again));
	free_outputs(&again);
	return CLV_OK;
}

/* The round trip, and two calls: the first makes the suffix there. */
static clv_status meet_server(const call *c, clv_tensor **room)
{
	double rtt;
	TRY(remote_know(c->f->there, FIRST));
	if (c->f->there->suffix)
		return fail(CLV_E_INPUT, "the server's model is a suffix; name a whole one, which is cut where it is best");
	TRY(remote_ping(c->f->there, FIRST, &rtt));
	TRY(clv_link_tell_rtt(c->f->link, rtt));
	TRY(try_there(c, room));
	return try_there(c, room);
}

/* A server that is away is no error; one that refuses the caller, or has another model, is. */
static clv_status first_call(call *c)
{
	clv_follower *f = c->f;
	clv_tensor **room = mem_alloc((c->noutputs + 1) * sizeof *room);
	TRY_MEM(room);
	clv_status st = follow_measure(f, c->inputs, c->n, c->outputs, c->noutputs);
	if (st == CLV_OK) {
		st = meet_server(c, room);
		if (st == CLV_E_IO) {
			note_failure(c, false, 0);
			st = CLV_OK;
		}
		if (st != CLV_OK) {
			free_outputs(c);
			follow_forget(f);
		}
	}
	mem_free(room);
	return st;
}

/* *done: this was the first call. */
static clv_status start(call *c, bool *done)
{
	clv_follower *f = c->f;
	pthread_mutex_lock(&f->starting);
	*done = !f->ready;
	clv_status st = f->ready ? CLV_OK : first_call(c);
	f->ready = st == CLV_OK;
	pthread_mutex_unlock(&f->starting);
	return st;
}

/* ---- public -------------------------------------------------------------------------------------------------------------- */

static clv_status check_call(const clv_follower *f, const clv_tensor *const *inputs, uint32_t n, clv_tensor **outputs,
                             uint32_t noutputs)
{
	if (!f || (n && !inputs) || (noutputs && !outputs))
		return fail(CLV_E_INVALID, "clv_follower_run needs a follower, inputs and room for outputs");
	for (uint32_t i = 0; i < n; i++)
		if (!inputs[i])
			return fail(CLV_E_INVALID, "input %u is NULL", i);
	if (noutputs != clv_runtime_output_count(f->whole))
		return fail(CLV_E_INVALID, "the model gives %u outputs, the call has room for %u",
		            clv_runtime_output_count(f->whole), noutputs);
	return CLV_OK;
}

static clv_status run(call *c)
{
	bool done;
	TRY(start(c, &done));
	if (done) {
		c->how = NOT_YET;
		return CLV_OK;
	}
	c->way = choose(c->f);
	c->how = NOT_YET;
	if (c->way != FOLLOW_HERE && run_there(c) == CLV_OK)
		return CLV_OK;
	c->way = FOLLOW_HERE; /* also to say what is wrong with the inputs */
	return run_here(c);
}

clv_status clv_follower_run(clv_follower *f, const clv_tensor *const *inputs, uint32_t ninputs, clv_tensor **outputs,
                            uint32_t noutputs, clv_followed *how)
{
	TRY(check_call(f, inputs, ninputs, outputs, noutputs));
	double begun = clock_seconds();
	call c = {.f = f, .inputs = inputs, .n = ninputs, .outputs = outputs, .noutputs = noutputs};
	TRY(run(&c));
	pthread_mutex_lock(&f->lock);
	f->ways.at[c.way].calls++;
	pthread_mutex_unlock(&f->lock);
	c.how.way = c.way;
	c.how.total = clock_seconds() - begun;
	return how ? options_write(how, &c.how, sizeof c.how, "clv_followed") : CLV_OK;
}

uint32_t clv_follower_count(const clv_follower *f)
{
	return f && f->ready ? f->ways.n : 0;
}

clv_status clv_follower_way(clv_follower *f, uint32_t i, clv_follow_state *out)
{
	clv_way w;
	if (i >= clv_follower_count(f) || !out)
		return fail(CLV_E_INVALID, "clv_follower_way: there is no way %u, or no place for it", i);
	pthread_mutex_lock(&f->lock);
	const follow_way *way = &f->ways.at[i];
	clv_follow_state s = {.remote = way->remote,
	                      .cut = way->cut == NONE ? NULL : f->cuts.at[way->cut].where,
	                      .compress = way->compress,
	                      .error = way->error,
	                      .calls = way->calls};
	pthread_mutex_unlock(&f->lock);
	link_way(f->link, i, &w);
	s.name = w.name;
	s.here = w.here;
	s.there = w.there;
	s.codec = w.codec;
	s.sent = w.sent;
	s.received = w.received;
	s.seconds = clv_link_expect(f->link, i);
	return options_write(out, &s, sizeof s, "clv_follow_state");
}

clv_status clv_follower_reason(clv_follower *f, char **out)
{
	if (!f || !out)
		return fail(CLV_E_INVALID, "clv_follower_reason: an argument is NULL");
	pthread_mutex_lock(&f->lock);
	*out = f->reason ? mem_strdup(f->reason, strlen(f->reason)) : NULL;
	bool good = !f->reason || *out;
	pthread_mutex_unlock(&f->lock);
	return good ? CLV_OK : fail_nomem();
}

void clv_follower_link(clv_follower *f, double *rtt, double *rate)
{
	*rtt = *rate = NAN;
	if (f && f->ready)
		clv_link_state(f->link, rtt, rate);
}
