/* Makes a layout, a place for each block of memory, from the trace of a run. */
#include "memory/layout.h"

#include <string.h>

void layout_free(layout *l)
{
	if (!l)
		return;
	mem_free(l->first);
	mem_free(l->blocks);
	vec_free(&l->before);
	mem_free(l);
}

/* Places are counted in lines of MEMORY_ALIGN bytes: a header in front, for the release, then the data. */
static uint64_t lines_of(uint64_t size)
{
	return size / MEMORY_ALIGN + (size % MEMORY_ALIGN != 0) + 1;
}

static void find_first(layout *l, const traced_block *at)
{
	uint32_t i = 0;
	for (uint32_t s = 0; s < l->nsteps; s++) {
		l->first[s] = i;
		while (i < l->n && at[i].step == s)
			i++;
	}
	l->first[l->nsteps] = i;
}

static clv_status place_all(layout *l, const traced_block *at)
{
	place_block *blocks = mem_alloc((l->n + 1) * sizeof *blocks);
	uint32_t n = 0;
	TRY_MEM(blocks);
	for (uint32_t i = 0; i < l->n; i++) {
		l->blocks[i] = (planned_block){.size = at[i].size, .offset = PLACE_NONE};
		if (at[i].died != UINT32_MAX)
			blocks[n++] = (place_block){.size = lines_of(at[i].size), .born = at[i].born, .died = at[i].died};
	}
	uint64_t lines, least;
	clv_status st = place_blocks(blocks, n, &lines, &least);
	if (st == CLV_OK && lines > INT64_MAX / MEMORY_ALIGN)
		st = fail(CLV_E_OVERFLOW, "results of a run take more than 2^63 bytes");
	for (uint32_t i = 0, k = 0; st == CLV_OK && lines && i < l->n; i++) {
		if (at[i].died == UINT32_MAX)
			continue;
		l->blocks[i].offset = (blocks[k].offset + 1) * MEMORY_ALIGN;
		l->blocks[i].size = (blocks[k++].size - 1) * MEMORY_ALIGN;
		l->placed++;
	}
	if (st == CLV_OK) {
		l->bytes = lines * MEMORY_ALIGN;
		l->bound = least * MEMORY_ALIGN;
	}
	mem_free(blocks);
	return st;
}

/* ---- the blocks that had the bytes before ---------------------------------------------------------------------------------- */

/* Bytes up to `end` were had last by a block; parts are in order and leave nothing out. */
typedef struct part {
	uint64_t end;
	uint32_t owner; /* NONE: nobody yet */
} part;

typedef VEC(part) part_list;

typedef struct parts {
	part_list at, next;
} parts;

static clv_status add_part(parts *p, uint64_t from, uint64_t end, uint32_t owner)
{
	part x = {end, owner};
	return from < end ? vec_push(&p->next, x) : CLV_OK;
}

static clv_status add_before(layout *l, uint32_t i, uint32_t owner)
{
	planned_block *b = &l->blocks[i];
	if (owner == UINT32_MAX)
		return CLV_OK;
	for (uint32_t k = 0; k < b->nbefore; k++)
		if (l->before.at[b->before + k] == owner)
			return CLV_OK;
	b->nbefore++;
	return vec_push(&l->before, owner);
}

/* Block i takes its bytes from their last owners. */
static clv_status take_bytes(layout *l, parts *p, uint32_t i)
{
	planned_block *b = &l->blocks[i];
	uint64_t low = b->offset - MEMORY_ALIGN, high = b->offset + b->size, from = 0;
	bool done = false;
	b->before = l->before.n;
	p->next.n = 0;
	for (uint32_t k = 0; k < p->at.n; from = p->at.at[k++].end) {
		part x = p->at.at[k];
		if (x.end <= low || from >= high) {
			TRY(add_part(p, from, x.end, x.owner));
			continue;
		}
		TRY(add_before(l, i, x.owner));
		TRY(add_part(p, from, low, x.owner));
		if (!done)
			TRY(add_part(p, low, high, i));
		done = true;
		TRY(add_part(p, high, x.end, x.owner));
	}
	part_list old = p->at;
	p->at = p->next;
	p->next = old;
	return CLV_OK;
}

static clv_status find_before(layout *l)
{
	parts p = {0};
	clv_status st = add_part(&p, 0, l->bytes, UINT32_MAX);
	if (st == CLV_OK && p.next.n)
		st = vec_push(&p.at, p.next.at[0]);
	for (uint32_t i = 0; i < l->n && st == CLV_OK; i++)
		if (l->blocks[i].offset != PLACE_NONE)
			st = take_bytes(l, &p, i);
	vec_free(&p.at);
	vec_free(&p.next);
	return st == CLV_OK ? CLV_OK : fail_nomem();
}

static clv_status check_trace(const traced_block *at, uint32_t n, uint32_t nsteps)
{
	for (uint32_t i = 0; i < n; i++)
		if (at[i].step >= nsteps || (i && (at[i].step < at[i - 1].step || at[i].born <= at[i - 1].born)))
			return fail(CLV_E_INVALID, "block %u of a trace is not in the order of steps and of birth", i);
	return CLV_OK;
}

clv_status layout_new(const traced_block *at, uint32_t n, uint32_t nsteps, layout **out)
{
	TRY(check_trace(at, n, nsteps));
	layout *l = mem_alloc(sizeof *l);
	TRY_MEM(l);
	l->refs = 1;
	l->n = n;
	l->nsteps = nsteps;
	l->first = mem_alloc(((size_t)nsteps + 1) * sizeof *l->first);
	l->blocks = mem_alloc(((size_t)n + 1) * sizeof *l->blocks);
	clv_status st = l->first && l->blocks ? CLV_OK : fail_nomem();
	if (st == CLV_OK) {
		find_first(l, at);
		st = place_all(l, at);
	}
	if (st == CLV_OK)
		st = find_before(l);
	if (st != CLV_OK) {
		layout_free(l);
		return st;
	}
	*out = l;
	return CLV_OK;
}
