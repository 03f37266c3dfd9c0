/* Choosing: which frontier a boundary text means, by name, by share of the work, or as the best of all. */
#include "split/frontier.h"

#include <math.h>
#include <string.h>

#include "base/number.h"

/* ---- names ----------------------------------------------------------------------------------------------------------- */

typedef struct near_name {
	const char *name;
	unsigned distance;
} near_name;

enum { NEAREST = 5 };

/* Levenshtein distance; names are short. */
static clv_status name_distance(const char *a, const char *b, unsigned *out)
{
	size_t n = strlen(b);
	unsigned *row = mem_alloc((n + 1) * sizeof *row);
	TRY_MEM(row);
	for (size_t j = 0; j <= n; j++)
		row[j] = (unsigned)j;
	for (size_t i = 1; a[i - 1]; i++) {
		unsigned diagonal = row[0];
		row[0] = (unsigned)i;
		for (size_t j = 1; j <= n; j++) {
			unsigned up = row[j], best = diagonal + (a[i - 1] != b[j - 1]);
			best = up + 1 < best ? up + 1 : best;
			best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
			diagonal = up;
			row[j] = best;
		}
	}
	*out = row[n];
	mem_free(row);
	return CLV_OK;
}

static clv_status offer_name(near_name *best, const char *want, const char *name)
{
	near_name c = {name, 0};
	if (!name[0])
		return CLV_OK;
	for (int i = 0; i < NEAREST; i++)
		if (best[i].name && !strcmp(best[i].name, name))
			return CLV_OK;
	TRY(name_distance(want, name, &c.distance));
	for (int i = 0; i < NEAREST; i++)
		if (!best[i].name || c.distance < best[i].distance) {
			near_name t = best[i];
			best[i] = c;
			c = t;
			if (!c.name)
				break;
		}
	return CLV_OK;
}

static clv_status no_such_name(const clv_frontiers *f, const char *want)
{
	near_name best[NEAREST] = {{NULL, 0}};
	strbuf b = STRBUF_INIT;
	char *list = NULL;
	for (uint32_t i = 0; i < f->p->scopes.n; i++)
		TRY(offer_name(best, want, plan_s(f->p, f->p->scopes.at[i].path)));
	for (uint32_t i = 0; i < f->n; i++)
		TRY(offer_name(best, want, node_name(f->names, i)));
	for (int i = 0; i < NEAREST && best[i].name; i++)
		strbuf_printf(&b, "%s%s", i ? ", " : "", best[i].name);
	TRY(strbuf_take(&b, &list));
	clv_status st = fail(CLV_E_NOT_FOUND, "no module or node is called \"%s\"; nearest: %s", want, list);
	mem_free(list);
	return st;
}

/* The last node inside a module, or the node of that name; NONE: there is neither. */
static node_id find_end(const clv_frontiers *f, const char *name)
{
	node_id at = NONE;
	for (node_id k = 0; name[0] && k < f->p->nodes.n; k++)
		if (is_inside(module_path(f->p, k), name))
			at = k;
	return at == NONE ? node_find(f->names, name) : at;
}

clv_status nodes_named(const clv_frontiers *f, const char *name, bool *marks)
{
	node_id end = find_end(f, name);
	if (end == NONE)
		return no_such_name(f, name);
	marks[end] = true;
	for (node_id k = 0; name[0] && k < end; k++)
		if (is_inside(module_path(f->p, k), name))
			marks[k] = true;
	return CLV_OK;
}

static clv_status choose_named(const clv_frontiers *f, const char *name, const clv_objective *o, uint32_t *out)
{
	node_id at = find_end(f, name);
	if (at == NONE)
		return no_such_name(f, name);
	if (at >= f->n)
		return fail(CLV_E_INVALID, "nothing is left to run after \"%s\": it is the end of the model", name);
	clv_status st = objective_explain(f, at, o);
	if (st != CLV_OK)
		return f->at[at].unsafe ? fail_more(st, "the model cannot be cut after \"%s\"", name)
		                        : fail_more(st, "after \"%s\" ", name);
	*out = at;
	return CLV_OK;
}

enum { NEAR_PERCENT = 5 }; /* a few percent of the work are worth less than fewer bytes */

/* How far a frontier is from what was asked for: all within NEAR_PERCENT are equally near, unless the nearest is wanted. */
static double percent_off(const frontier *c, double percent, bool nearest)
{
	double off = fabs(c->cost * 100 - percent);
	return !nearest && off <= NEAR_PERCENT ? 0 : off;
}

/* The frontier whose share of the work is near the percentage, with the fewest bytes; of equals the nearest. */
static clv_status choose_percent(const clv_frontiers *f, double percent, bool nearest, const clv_objective *o,
                                 uint32_t *out)
{
	uint32_t best = NONE;
	for (uint32_t i = 0; i < f->n; i++) {
		const frontier *c = &f->at[i], *b = best == NONE ? NULL : &f->at[best];
		if (!objective_allows(c, o))
			continue;
		double off = percent_off(c, percent, nearest), best_off = b ? percent_off(b, percent, nearest) : INFINITY;
		bool fewer = b && (c->bytes < b->bytes ||
		                   (c->bytes == b->bytes && percent_off(c, percent, true) < percent_off(b, percent, true)));
		if (off < best_off || (off == best_off && fewer))
			best = i;
	}
	if (best == NONE)
		return objective_unmet(f, o);
	*out = best;
	return CLV_OK;
}

static bool is_better(const frontier *a, const frontier *b, const clv_objective *o)
{
	double x = objective_value(a, o), y = objective_value(b, o);
	return x < y || (x == y && a->bytes < b->bytes);
}

/* Without a goal frontiers with 20 to 80 % of the work on each side come first. */
static clv_status choose_auto(const clv_frontiers *f, const clv_objective *o, uint32_t *out)
{
	uint32_t best = NONE;
	for (int middle = !o->minimize; middle >= 0 && best == NONE; middle--)
		for (uint32_t i = 0; i < f->n; i++) {
			const frontier *c = &f->at[i];
			if (!objective_allows(c, o) || (middle && (c->cost < 0.2 || c->cost > 0.8)))
				continue;
			if (best == NONE || is_better(c, &f->at[best], o))
				best = i;
		}
	if (best == NONE)
		return objective_unmet(f, o);
	*out = best;
	return CLV_OK;
}

/* "percent:50", "50%", "at:50%", "nearest:50%" */
static bool parse_percent(const char *s, double *out, bool *nearest)
{
	char number[NUMBER_TEXT];
	bool named = !strncmp(s, "percent:", 8);
	*nearest = !strncmp(s, "nearest:", 8);
	s += named || *nearest ? 8 : !strncmp(s, "at:", 3) ? 3 : 0;
	size_t n = strcspn(s, "%");
	if (n >= sizeof number || (s[n] ? s[n + 1] != '\0' : !named))
		return false;
	memcpy(number, s, n);
	number[n] = '\0';
	return number_parse(number, out);
}

clv_status clv_frontiers_choose(const clv_frontiers *f, const char *boundary, const clv_objective *objective,
                                uint32_t *out)
{
	double percent;
	bool nearest;
	clv_objective o;
	if (!f || !boundary || !out)
		return fail(CLV_E_INVALID, "clv_frontiers_choose: an argument is NULL");
	TRY(objective_read(objective, &o));
	if (!strcmp(boundary, "auto"))
		return choose_auto(f, &o, out);
	if (!strncmp(boundary, "after:", 6))
		return choose_named(f, boundary + 6, &o, out);
	if (!parse_percent(boundary, &percent, &nearest))
		return fail(CLV_E_INVALID,
		            "boundary \"%s\" is none of: \"auto\", \"after:<module path>\", \"after:<node name>\", \"50%%\", "
		            "\"percent:50\", \"at:50%%\", \"nearest:50%%\"",
		            boundary);
	if (!(percent > 0 && percent < 100))
		return fail(CLV_E_INVALID, "boundary \"%s\": the percentage must be above 0 and below 100", boundary);
	return choose_percent(f, percent, nearest, &o, out);
}

clv_status clv_frontiers_check(const clv_frontiers *f, uint32_t i, const clv_objective *objective)
{
	clv_objective o;
	if (!f || i >= f->n)
		return fail(CLV_E_INVALID, "no frontier %u", i);
	TRY(objective_read(objective, &o));
	return objective_explain(f, i, &o);
}
