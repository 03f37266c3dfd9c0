/* Checks regions under torch.utils.checkpoint, which eager runs twice and a plan once.
 *
 * That makes no difference as long as the second run finds what the first one found and leaves nothing behind: what it
 * writes or binds, and what it reads of memory that is changed later, is refused. */
#include "capture/builder.h"

clv_status stream_region_begin(stream *s, bool keeps_random, bool reentrant)
{
	br_recorder_lock(s->recorder);
	clv_status st = vec_push(&s->regions, ((stream_region){s->ops.n, NONE, keeps_random, reentrant}));
	br_recorder_unlock(s->recorder);
	return st;
}

void stream_region_end(stream *s)
{
	br_recorder_lock(s->recorder);
	uint32_t i = s->regions.n;
	while (i > 0 && s->regions.at[i - 1].end != NONE)
		i--;
	if (i)
		s->regions.at[i - 1].end = s->ops.n;
	br_recorder_unlock(s->recorder);
}

uint32_t stream_storages(const stream *s)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->tensors.n; i++)
		if (s->tensors.at[i].storage != NONE && s->tensors.at[i].storage >= n)
			n = s->tensors.at[i].storage + 1;
	return n;
}

enum { MADE, OF_CALLER, OF_MODEL };

typedef struct region_check {
	const stream *s;
	const stream_region *r;
	uint32_t *born;    /* per storage: the operator that made it; NONE: it was there before */
	uint32_t *written; /* per storage: the last operator that writes it; NONE: none does */
	bool *kept;        /* per storage: of what the forward keeps for the next call, before or after */
	uint8_t *there;    /* per storage: of a tensor that is there before the forward */
	uint32_t *user;    /* per tensor: see check_shared */
	uint32_t now, here;
	clv_status st;
} region_check;

typedef void (*region_fn)(region_check *c, uint32_t tensor);

static void each(region_check *c, const br_arg *args, uint32_t n, region_fn f)
{
	for (uint32_t i = 0; i < n && c->st == CLV_OK; i++) {
		if (args[i].kind == BR_TENSOR)
			f(c, args[i].u.id);
		else if (args[i].kind == BR_LIST)
			each(c, args[i].u.list.at, args[i].u.list.n, f);
	}
}

static uint32_t storage_of(const region_check *c, uint32_t tensor)
{
	return c->s->tensors.at[tensor].storage;
}

static void note_region_result(region_check *c, uint32_t t)
{
	uint32_t m = storage_of(c, t);
	if (m != NONE && c->born[m] == NONE && c->there[m] == MADE)
		c->born[m] = c->now;
}

static void note_kept(region_check *c, uint32_t tensor)
{
	if (storage_of(c, tensor) != NONE)
		c->kept[storage_of(c, tensor)] = true;
}

static void look_at_all(region_check *c, uint32_t nstores)
{
	const stream *s = c->s;
	for (uint32_t i = 0; i < s->tensors.n; i++)
		if (s->tensors.at[i].origin != ORIGIN_RESULT && storage_of(c, i) != NONE)
			c->there[storage_of(c, i)] |= s->tensors.at[i].origin == ORIGIN_INPUT ? OF_CALLER : OF_MODEL;
	for (c->now = 0; c->now < s->ops.n; c->now++) {
		const stream_op *o = &s->ops.at[c->now];
		each(c, o->results, o->nresults, note_region_result);
		for (uint32_t k = 0; k < o->nwrites; k++)
			if (storage_of(c, o->writes[k]) != NONE)
				c->written[storage_of(c, o->writes[k])] = c->now;
	}
	for (uint32_t i = 0; i < s->rebinds.n; i++) {
		note_kept(c, s->rebinds.at[i].tensor);
		note_kept(c, s->states.at[s->rebinds.at[i].state].tensor);
	}
	for (uint32_t i = s->outputs.n - nstores; i < s->outputs.n; i++)
		note_kept(c, s->outputs.at[i]);
}

static void refuse_op(region_check *c, const char *what)
{
	c->st = fail_at(c->s, &c->s->ops.at[c->now], what);
}

static bool made_in_region(const region_check *c, uint32_t m)
{
	return c->born[m] != NONE && c->born[m] >= c->r->first && c->born[m] < c->r->end;
}

static void check_arg(region_check *c, uint32_t t)
{
	uint32_t m = storage_of(c, t);
	if (m == NONE)
		return;
	bool changed = c->written[m] != NONE && (c->written[m] >= c->r->first || (c->there[m] & OF_MODEL));
	if (c->kept[m] || (changed && !made_in_region(c, m)))
		refuse_op(
			c, "it is inside torch.utils.checkpoint, which runs it again in the backward, and takes a tensor that the "
			   "forward changes or keeps for the next call: a plan, which runs it once, would differ from the model");
}

static void check_region_result(region_check *c, uint32_t t)
{
	if (storage_of(c, t) != NONE && c->kept[storage_of(c, t)])
		refuse_op(c,
		          "it is inside torch.utils.checkpoint, which runs it again in the backward, and the forward keeps its "
		          "result for the next call: a plan would keep it once");
}

static void check_op(region_check *c, const stream_op *o)
{
	for (uint32_t k = 0; k < o->nwrites && c->st == CLV_OK; k++) {
		uint32_t m = storage_of(c, o->writes[k]);
		if (m != NONE && !made_in_region(c, m))
			refuse_op(
				c, "it is inside torch.utils.checkpoint, which runs it again in the backward, and writes a tensor from "
				   "outside (statistics of a BatchNorm, for one): the model writes it twice, a plan would once");
	}
	if (c->st == CLV_OK && (o->flags & BR_RANDOM) && !c->r->keeps_random)
		refuse_op(
			c,
			"it draws random numbers inside torch.utils.checkpoint with preserve_rng_state=False, which draws others "
			"in the backward");
	if (c->st == CLV_OK)
		each(c, o->args, o->nargs, check_arg);
	if (c->st == CLV_OK)
		each(c, o->results, o->nresults, check_region_result);
}

/* ---- parameters that are used outside too ---------------------------------------------------------------------------- */

/* Per tensor: the reentrant region whose operators take it, ALONE for those outside of all. */
enum { UNUSED = 0, ALONE = 1, FIRST = 2 };

static void use_param(region_check *c, uint32_t t)
{
	const stream_tensor *x = &c->s->tensors.at[t];
	if (x->origin != ORIGIN_STATE || !x->requires_grad)
		return;
	if (c->user[t] == UNUSED)
		c->user[t] = c->here;
	else if (c->user[t] != c->here)
		refuse_op(
			c,
			"it trains a parameter that is used inside torch.utils.checkpoint(use_reentrant=True) and outside of it: "
			"such shares of a gradient are added one by one, and a plan would add them in another order; "
			"use_reentrant=False has one order");
}

/* A reentrant region adds to .grad by itself: sums are rounded in another order, and hooks see parts. */
static clv_status check_shared(region_check *c)
{
	const stream *s = c->s;
	uint32_t next = 0;
	c->here = ALONE;
	for (c->now = 0; c->now < s->ops.n && c->st == CLV_OK; c->now++) {
		if (c->here != ALONE && s->regions.at[c->here - FIRST].end <= c->now)
			c->here = ALONE;
		for (; next < s->regions.n && s->regions.at[next].first <= c->now; next++)
			if (c->here == ALONE && s->regions.at[next].reentrant && s->regions.at[next].end > c->now)
				c->here = next + FIRST;
		each(c, s->ops.at[c->now].args, s->ops.at[c->now].nargs, use_param);
	}
	return c->st;
}

static clv_status check_region(region_check *c)
{
	for (c->now = c->r->first; c->now < c->r->end && c->st == CLV_OK; c->now++)
		check_op(c, &c->s->ops.at[c->now]);
	return c->st;
}

clv_status stream_check_regions(const stream *s, uint32_t nstores)
{
	uint32_t n = stream_storages(s);
	if (!s->regions.n)
		return CLV_OK;
	arena a = {0};
	region_check c = {.s = s,
	                  .born = arena_ids(&a, n),
	                  .written = arena_ids(&a, n),
	                  .kept = arena_array(&a, n, sizeof *c.kept),
	                  .there = arena_array(&a, n, sizeof *c.there),
	                  .user = arena_array(&a, s->tensors.n, sizeof *c.user)};
	clv_status st = c.born && c.written && c.kept && c.there && c.user ? CLV_OK : fail_nomem();
	if (st == CLV_OK)
		look_at_all(&c, nstores < s->outputs.n ? nstores : s->outputs.n);
	for (uint32_t i = 0; i < s->regions.n && st == CLV_OK; i++) {
		c.r = &s->regions.at[i];
		if (c.r->end != NONE)
			st = check_region(&c);
	}
	if (st == CLV_OK)
		st = check_shared(&c);
	arena_free(&a);
	return st;
}
