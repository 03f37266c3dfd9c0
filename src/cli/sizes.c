/* Handles --size and --batch: which symbol of a plan has which size. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* The symbol that --batch means: B, or the only one; NULL: it is not plain. */
static const char *batch_symbol(const clv_plan *p)
{
	uint32_t n = clv_plan_symbol_count(p);
	clv_symbol s = {.size = sizeof s};
	for (uint32_t i = 0; i < n; i++)
		if (clv_plan_symbol(p, i, &s) == CLV_OK && !strcmp(s.name, "B"))
			return s.name;
	return n == 1 && clv_plan_symbol(p, 0, &s) == CLV_OK ? s.name : NULL;
}

const char *batch_of(const model *m)
{
	const char *batch = clv_artifact_batch(m->artifact);
	return *batch ? batch : batch_symbol(m->plan);
}

bool sizes_resolve(sizes *s, const model *m)
{
	if (!s->batch)
		return true;
	const char *name = batch_of(m);
	if (!name && clv_plan_symbol_count(m->plan) == 0) {
		complain("--batch: the sizes of this plan are fixed");
		return false;
	}
	if (!name) {
		complain("--batch: the plan has several symbols, and none is called B");
		hint("--size SYMBOL=N names one");
		return false;
	}
	sizes_add(s, name, s->batch);
	s->batch = 0;
	return true;
}

void sizes_add(sizes *s, const char *symbol, int64_t value)
{
	s->symbols = regrab(s->symbols, (s->n + 1) * sizeof *s->symbols);
	s->values = regrab(s->values, (s->n + 1) * sizeof *s->values);
	s->symbols[s->n] = grab_text(symbol, strlen(symbol));
	s->values[s->n++] = value;
}

int64_t sizes_find(const sizes *s, const char *symbol)
{
	for (uint32_t i = 0; i < s->n; i++)
		if (!strcmp(s->symbols[i], symbol))
			return s->values[i];
	return -1;
}

void sizes_free(sizes *s)
{
	for (uint32_t i = 0; i < s->n; i++)
		free((char *)s->symbols[i]);
	free(s->symbols);
	free(s->values);
	*s = (sizes){0};
}

/* ---- proven sizes -------------------------------------------------------------------------------------------------- */

/* Names of the symbols that inputs give, in order: what the numbers of a point are. */
static const char *point_symbol(const clv_plan *p, uint32_t k)
{
	clv_symbol s = {.size = sizeof s};
	for (uint32_t i = 0; i < clv_plan_symbol_count(p); i++)
		if (clv_plan_symbol(p, i, &s) == CLV_OK && !s.data && k-- == 0)
			return s.name;
	return "?";
}

static bool agrees(const sizes *s, const clv_plan *p, const int64_t *point, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++) {
		int64_t given = sizes_find(s, point_symbol(p, k));
		if (given >= 0 && given != point[k])
			return false;
	}
	return true;
}

static bool complete_from(sizes *s, const clv_artifact *a, uint32_t i)
{
	const clv_plan *p = clv_artifact_plan(a, i);
	clv_plan_info info = {.size = sizeof info};
	if (clv_artifact_plan_info(a, i, &info) != CLV_OK)
		return false;
	for (uint32_t k = 0; k < info.npoints; k++) {
		const int64_t *point = &info.points[k * info.point_size];
		if (!agrees(s, p, point, info.point_size))
			continue;
		for (uint32_t j = 0; j < info.point_size; j++)
			if (sizes_find(s, point_symbol(p, j)) < 0)
				sizes_add(s, point_symbol(p, j), point[j]);
		return true;
	}
	return false;
}

bool sizes_add_point(sizes *s, const clv_artifact *a, uint32_t i, uint32_t k)
{
	const clv_plan *p = clv_artifact_plan(a, i);
	clv_plan_info info = {.size = sizeof info};
	if (clv_artifact_plan_info(a, i, &info) != CLV_OK || k >= info.npoints)
		return false;
	for (uint32_t j = 0; j < info.point_size; j++)
		sizes_add(s, point_symbol(p, j), info.points[k * info.point_size + j]);
	return true;
}

void sizes_complete(sizes *s, const clv_artifact *a)
{
	for (uint32_t i = 0; i < clv_artifact_plan_count(a); i++)
		if (complete_from(s, a, i))
			return;
}

/* All numbers from the first to the last are there. */
static bool is_run(const clv_plan_info *info)
{
	for (uint32_t i = 1; i < info->npoints; i++)
		if (info->point_size != 1 || info->points[i] != info->points[i - 1] + 1)
			return false;
	return info->npoints > 2;
}

void print_points(FILE *to, const clv_artifact *a, uint32_t i)
{
	enum { SHOWN = 8 };
	const clv_plan *p = clv_artifact_plan(a, i);
	clv_plan_info info = {.size = sizeof info};
	if (clv_artifact_plan_info(a, i, &info) != CLV_OK)
		return;
	if (is_run(&info)) {
		fprintf(to, "%s=%lld..%lld", point_symbol(p, 0), (long long)info.points[0],
		        (long long)info.points[info.npoints - 1]);
		return;
	}
	for (uint32_t k = 0; k < info.npoints && k < SHOWN; k++) {
		fputs(k ? ", " : "", to);
		for (uint32_t j = 0; j < info.point_size; j++)
			fprintf(to, "%s%s=%lld", j ? " " : "", point_symbol(p, j), (long long)info.points[k * info.point_size + j]);
	}
	if (info.npoints > SHOWN)
		fprintf(to, ", … (%u)", info.npoints);
}

void note_advice(const clv_frontiers *f, uint32_t i, const clv_objective *o)
{
	char *advice = NULL;
	if (clv_frontiers_advice(f, i, o, &advice) == CLV_OK && advice)
		note("%s", advice);
	clv_string_free(advice);
}

clv_sizes sizes_given(const sizes *s)
{
	return (clv_sizes){s->symbols, s->values, s->n};
}
