/* Shaped programs of a program: one per sizes that runs had lately, each with the frames that wait for a run. */
#include <string.h>

#include "base/limits.h"
#include "native/packed.h"

enum { MOST_SHAPED = 16, MOST_FRAMES = 4 };

static uint64_t beside(const native_program *g)
{
	return g->kept_bytes + (g->once_frame ? g->once->bytes : 0);
}

static void drop_once(native_program *g)
{
	native_frame_free(g->once_frame);
	shaped_free(g->once);
	g->once_frame = NULL;
	g->once = NULL;
}

void shaped_drop_all(native_program *g)
{
	while (g->shaped) {
		shaped *s = g->shaped;
		g->shaped = s->next;
		shaped_free(s);
	}
	g->nshaped = 0;
	drop_once(g);
	while (g->packed) {
		packed *x = g->packed;
		g->packed = x->next;
		packed_free(x);
	}
	g->kept_bytes = 0;
	mem_free(g->sources);
	g->sources = NULL;
}

/* ---- made once ---------------------------------------------------------------------------------------------------------------- */

/* Lowers a part and runs it; its frame has what it gives. */
static clv_status make_part(native_program *g, part_id part, const int64_t *symbols, shaped **out, native_frame **f)
{
	shaped *s = NULL;
	TRY(shaped_lower(g, part, symbols, NULL, &s));
	clv_status st = limits_room((int64_t)(beside(g) + s->bytes));
	if (st == CLV_OK)
		st = native_frame_new(g, s, f);
	if (st == CLV_OK)
		st = native_frame_load(g, s, *f, NULL);
	if (st == CLV_OK)
		st = run_steps(g, s, &(*f)->f, NULL);
	if (st == CLV_OK) {
		*out = s;
		return CLV_OK;
	}
	native_frame_free(*f);
	*f = NULL;
	shaped_free(s);
	return st;
}

static clv_status make_once(native_program *g)
{
	if (g->part[PART_ONCE + 1] == g->part[PART_ONCE] || g->once)
		return CLV_OK;
	bool known = g->store || (g->origin && made_any(g->origin)); /* what is made of it, or some */
	g->once_waits = known && !g->once_wanted && !g->packs;
	return g->once_waits ? shaped_lower(g, PART_ONCE, NULL, NULL, &g->once)
	                     : make_part(g, PART_ONCE, NULL, &g->once, &g->once_frame);
}

static clv_status make_sized(native_program *g, const int64_t *symbols, shaped **out)
{
	native_frame *f = NULL;
	*out = NULL;
	if (g->part[PART_SIZED + 1] == g->part[PART_SIZED])
		return CLV_OK;
	TRY(make_part(g, PART_SIZED, symbols, out, &f));
	(*out)->spare = f;
	return CLV_OK;
}

static clv_status make_parts(native_program *g, const int64_t *symbols, shaped **out)
{
	shaped *sized;
	TRY(make_once(g));
	TRY(make_sized(g, symbols, &sized));
	clv_status st = shaped_lower(g, PART_GUARDS, symbols, sized, out);
	if (st != CLV_OK)
		shaped_free(sized);
	return st;
}

/* What is made once is computed only if neither the file nor another program on its tensors has all that is read of it. */
static clv_status make_shaped(native_program *g, const int64_t *symbols, shaped **out)
{
	clv_status st = make_parts(g, symbols, out);
	if (st == CLV_OK || !g->once_wanted || g->once_frame)
		return st;
	drop_once(g);
	return make_parts(g, symbols, out);
}

clv_status shaped_pack(native_program *g, const int64_t *symbols)
{
	shaped *s = NULL;
	pthread_mutex_lock(&g->lock);
	clv_status st = make_shaped(g, symbols, &s);
	pthread_mutex_unlock(&g->lock);
	shaped_free(s);
	return st;
}

void native_packing(const native_program *g, clv_packing_state *out)
{
	pthread_mutex_lock((pthread_mutex_t *)&g->lock);
	out->found += g->found;
	out->repacked += g->repacked;
	out->damaged += g->damaged;
	pthread_mutex_unlock((pthread_mutex_t *)&g->lock);
}

/* ---- the list ------------------------------------------------------------------------------------------------------------------ */

static shaped **find(native_program *g, const int64_t *symbols)
{
	shaped **at = &g->shaped;
	size_t n = g->p->symbols.n * sizeof *symbols;
	while (*at && n && memcmp((*at)->symbols, symbols, n) != 0)
		at = &(*at)->next;
	return at;
}

/* Those that no run uses, the longest unused first. */
static void drop_old(native_program *g)
{
	while (g->nshaped > MOST_SHAPED) {
		shaped **last = NULL;
		for (shaped **at = &g->shaped->next; *at; at = &(*at)->next)
			if ((*at)->refs == 0)
				last = at;
		if (!last)
			return;
		shaped *s = *last;
		*last = s->next;
		g->nshaped--;
		shaped_free(s);
	}
}

static clv_status look_up(native_program *g, const int64_t *symbols, const run_call *c, shaped **out)
{
	shaped **at = find(g, symbols), *s = *at;
	if (s)
		*at = s->next;
	else {
		TRY(inputs_check(&g->v, c->inputs, c->symbols));
		TRY(make_shaped(g, symbols, &s));
		s->beside = beside(g) + (s->sized ? s->sized->bytes : 0);
		g->nshaped++;
	}
	s->next = g->shaped;
	g->shaped = s;
	s->refs++;
	drop_old(g);
	*out = s;
	return CLV_OK;
}

clv_status shaped_take(native_program *g, const int64_t *symbols, const run_call *c, shaped **out, native_frame **f)
{
	*f = NULL;
	pthread_mutex_lock(&g->lock);
	clv_status st = look_up(g, symbols, c, out);
	if (st == CLV_OK && (*out)->spare) {
		*f = (*out)->spare;
		(*out)->spare = (*f)->next;
		(*out)->nspare--;
	}
	pthread_mutex_unlock(&g->lock);
	return st;
}

void shaped_give(native_program *g, shaped *s, native_frame *f)
{
	pthread_mutex_lock(&g->lock);
	if (f && s->nspare < MOST_FRAMES) {
		f->next = s->spare;
		s->spare = f;
		s->nspare++;
		f = NULL;
	}
	s->refs--;
	pthread_mutex_unlock(&g->lock);
	native_frame_free(f);
}
