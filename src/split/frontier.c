/* Frontiers: where a plan can be cut in two, what crosses there, and which cut a user means.
 *
 * A frontier after node k puts nodes 0 … k into the prefix. What crosses is what was made (or came in) before the cut and
 * is needed after it. All frontiers are judged in one sweep, linear in the plan: every value is alive over an interval of
 * positions, so counts and bytes are sums over intervals. A frontier is unsafe when the suffix writes memory that crosses and that somebody
 * else holds too; memory that crosses once is copied by the suffix before it writes. */
#include "plan/data.h"
#include "plan/flops.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct frontier {
	uint32_t tensors, passthrough;
	int64_t bytes;
	double cost;        /* share of the work in the prefix */
	bool trainable;     /* the suffix reads a trainable parameter */
	const char *unsafe; /* static text or in `reasons` */
} frontier;

struct clv_frontiers {
	const plan *p;
	node_names *names;
	frontier *at; /* by position, p->nodes.n - 1 of them */
	uint32_t n;
	VEC(char *) reasons; /* owned texts */
};

typedef struct sweep {
	clv_frontiers *f;
	liveness live;
	int64_t *sizes; /* value of every expression */
	bool *defined;
} sweep;

/* ---- what crosses ------------------------------------------------------------------------------------------------ */

/* First position after which v exists: inputs are there before node 0. */
static node_id born(const plan *p, value_id v)
{
	return p->values.at[v].kind == VALUE_INPUT ? 0 : p->values.at[v].def;
}

static bool can_cross(const plan *p, value_id v)
{
	const value *x = &p->values.at[v];
	return x->type == TYPE_TENSOR && (x->kind == VALUE_INPUT || x->kind == VALUE_RESULT);
}

static int64_t bytes_of(const sweep *s, value_id v)
{
	const plan *p = s->f->p;
	const value *x = &p->values.at[v];
	int64_t n = dtype_bits((dtype)x->dtype) / 8;
	for (uint32_t d = 0; d < x->ndim; d++) {
		expr_id e = p->dims.at[x->shape + d];
		int64_t size = s->sizes[e] > 0 ? s->sizes[e] : 0;
		if (!s->defined[e] || __builtin_mul_overflow(n, size, &n))
			return INT64_MAX;
	}
	return n;
}

static node_id earlier(node_id a, node_id b)
{
	return a < b ? a : b;
}

/* How the sums change from one position to the next: a value costs the same however long it lives. */
typedef struct change {
	int64_t tensors, passthrough;
	__int128 bytes; /* exact also where the sum is more than 2^63 */
} change;

static void add_change(change *c, int64_t sign, bool input, int64_t bytes)
{
	c->tensors += sign;
	c->passthrough += input ? sign : 0;
	c->bytes += (__int128)sign * bytes;
}

/* A value crosses at positions k with born <= k < last. */
static clv_status count_crossing(const sweep *s)
{
	const plan *p = s->f->p;
	change *by = mem_alloc((s->f->n + 1) * sizeof *by), sum = {0};
	if (!by)
		return fail_nomem();
	for (value_id v = 0; v < p->values.n; v++) {
		if (!can_cross(p, v) || s->live.last[v] == NONE)
			continue;
		node_id first = born(p, v), end = earlier(s->live.last[v], s->f->n);
		if (first >= end)
			continue;
		bool input = p->values.at[v].kind == VALUE_INPUT;
		int64_t bytes = bytes_of(s, v);
		add_change(&by[first], 1, input, bytes);
		add_change(&by[end], -1, input, bytes);
	}
	for (node_id k = 0; k < s->f->n; k++) {
		frontier *c = &s->f->at[k];
		sum.tensors += by[k].tensors;
		sum.passthrough += by[k].passthrough;
		sum.bytes += by[k].bytes;
		c->tensors = (uint32_t)sum.tensors;
		c->passthrough = (uint32_t)sum.passthrough;
		c->bytes = sum.bytes < INT64_MAX ? (int64_t)sum.bytes : INT64_MAX;
	}
	mem_free(by);
	return CLV_OK;
}

/* A size may come out negative at the lowest symbols; such a node counts as no work. */
static double work_of(const sweep *s, node_id k)
{
	double work = node_flops(s->f->p, k, s->sizes);
	return work > 0 ? work : 0;
}

static void count_cost(const sweep *s)
{
	const plan *p = s->f->p;
	double total = 0, sum = 0;
	for (node_id k = 0; k < p->nodes.n; k++)
		total += work_of(s, k);
	for (node_id k = 0; k < s->f->n; k++) {
		sum += work_of(s, k);
		s->f->at[k].cost = total > 0 && isfinite(total) ? sum / total : (double)(k + 1) / p->nodes.n;
	}
}

static void mark_trainable(const sweep *s)
{
	const plan *p = s->f->p;
	node_id last = 0;
	bool any = false;
	for (value_id v = 0; v < p->values.n; v++)
		if ((p->values.at[v].flags & VALUE_TRAINABLE) && s->live.last[v] != NONE) {
			any = true;
			last = s->live.last[v] > last ? s->live.last[v] : last;
		}
	for (node_id k = 0; any && k < s->f->n && k < last; k++)
		s->f->at[k].trainable = true;
}

/* ---- what makes a frontier unsafe --------------------------------------------------------------------------------- */

/* "relu__1 writes %3 in place after the cut, <because>"; owned by f. */
static clv_status reason(clv_frontiers *f, value_id v, node_id writer, const char *because, const char **out)
{
	strbuf b = STRBUF_INIT;
	char *text;
	strbuf_printf(&b, "%s writes ", node_name(f->names, writer));
	value_label(f->p, v, &b);
	if (f->p->values.at[v].kind == VALUE_INPUT && f->p->values.at[v].name != NONE)
		strbuf_printf(&b, " (%s)", plan_s(f->p, f->p->values.at[v].name));
	strbuf_printf(&b, " in place after the cut, %s", because);
	TRY(strbuf_take(&b, &text));
	clv_status st = vec_push(&f->reasons, text);
	if (st == CLV_OK)
		*out = text;
	else
		mem_free(text);
	return st;
}

/* What crosses of each storage that some node writes. */
typedef struct judgement {
	sweep *s;
	node_id *writer;   /* per root: last node that writes the storage; NONE: none does */
	value_id *oldest;  /* per root: first born of the values on it that can cross; NONE: none can */
	value_id *younger; /* per value: next born on the same storage; NONE: it is the last */
	node_id *open;     /* per position: leads to the first one from there on that has no reason yet */
} judgement;

static void add_older(void *ctx, value_id v)
{
	judgement *j = ctx;
	const plan *p = j->s->f->p;
	value_id root = alias_root(p, v);
	if (!can_cross(p, v) || j->s->live.last[v] == NONE || j->writer[root] == NONE)
		return;
	j->younger[v] = j->oldest[root];
	j->oldest[root] = v;
}

static void find_written(judgement *j)
{
	const plan *p = j->s->f->p;
	for (node_id k = 0; k < p->nodes.n; k++)
		for (uint32_t w = 0; w < p->nodes.at[k].nwrites; w++)
			j->writer[alias_root(p, p->ids.at[p->nodes.at[k].writes + w])] = k;
	for (node_id k = p->nodes.n; k-- > 0;)
		node_each_result(p, k, add_older, j);
	for (uint32_t i = 0; i < p->inputs.n; i++)
		add_older(j, p->inputs.at[i]);
}

/* Halves the way it goes, so that all searches together are as good as linear. */
static node_id next_open(node_id *open, node_id k)
{
	while (open[k] != k) {
		open[k] = open[open[k]];
		k = open[k];
	}
	return k;
}

static clv_status mark_unsafe(judgement *j, value_id root, node_id first, node_id end)
{
	clv_frontiers *f = j->s->f;
	uint8_t kind = f->p->values.at[root].kind;
	const char *because = kind == VALUE_INPUT    ? "and it is an input that belongs to the caller"
	                      : kind == VALUE_RESULT ? "and several tensors on that memory cross"
	                                             : "and it belongs to the model";
	const char *why = NULL;
	for (node_id k = next_open(j->open, first); k < end; k = next_open(j->open, k)) {
		if (!why)
			TRY(reason(f, root, j->writer[root], because, &why));
		f->at[k].unsafe = why;
		j->open[k] = k + 1;
	}
	return CLV_OK;
}

/* Memory of a result may cross once, as the suffix then writes its own copy: only where two values on it cross is it
   shared. Taken by birth, a value crosses together with an older one until the last of the older ones has died. */
static clv_status judge_memory(judgement *j, value_id root)
{
	const clv_frontiers *f = j->s->f;
	bool may_cross_once = f->p->values.at[root].kind == VALUE_RESULT;
	node_id older_die = 0;
	for (value_id v = j->oldest[root]; v != NONE; v = j->younger[v]) {
		node_id first = born(f->p, v), end = earlier(earlier(j->s->live.last[v], j->writer[root]), f->n);
		if (first >= end)
			continue;
		TRY(mark_unsafe(j, root, first, may_cross_once ? earlier(end, older_die) : end));
		older_die = end > older_die ? end : older_die;
	}
	return CLV_OK;
}

/* A number that the prefix reads from data and the suffix needs does not cross. */
static clv_status judge_reads(judgement *j)
{
	clv_frontiers *f = j->s->f;
	bool *bad = mem_alloc(f->p->nodes.n + 1);
	clv_status st = bad ? data_cuts(f->p, j->s->live.last, bad) : fail_nomem();
	for (node_id k = 0; st == CLV_OK && k < f->n; k++)
		if (bad[k] && !f->at[k].unsafe)
			f->at[k].unsafe = "a number that is read from data before the cut is used after it";
	mem_free(bad);
	return st;
}

static clv_status judge_all(judgement *j)
{
	clv_frontiers *f = j->s->f;
	for (node_id k = 0; k <= f->n; k++)
		j->open[k] = k;
	find_written(j);
	for (value_id v = 0; v < f->p->values.n; v++)
		if (j->writer[v] != NONE)
			TRY(judge_memory(j, v));
	for (node_id k = 0; k < f->n; k++)
		if (!f->at[k].tensors && !f->at[k].unsafe)
			f->at[k].unsafe = "nothing crosses here";
	return judge_reads(j);
}

static clv_status judge(sweep *s)
{
	uint32_t n = s->f->p->values.n;
	judgement j = {s, mem_ids(n), mem_ids(n), mem_ids(n), mem_ids(s->f->n + 1)};
	bool memory = j.writer && j.oldest && j.younger && j.open;
	clv_status st = memory ? judge_all(&j) : fail_nomem();
	mem_free(j.writer);
	mem_free(j.oldest);
	mem_free(j.younger);
	mem_free(j.open);
	return st;
}

/* ---- making ---------------------------------------------------------------------------------------------------------- */

static clv_status eval_at_lowest(sweep *s)
{
	const plan *p = s->f->p;
	clv_status st = CLV_OK;
	int64_t *syms = mem_alloc((p->symbols.n + 1) * sizeof *syms);
	s->sizes = mem_alloc((p->exprs.n + 1) * sizeof *s->sizes);
	s->defined = mem_alloc((p->exprs.n + 1) * sizeof *s->defined);
	if (!syms || !s->sizes || !s->defined) {
		st = fail_nomem();
	} else {
		for (uint32_t i = 0; i < p->symbols.n; i++)
			syms[i] = p->symbols.at[i].lo > 0 ? p->symbols.at[i].lo : 1;
		st = expr_eval_all(p, syms, s->sizes, s->defined);
	}
	mem_free(syms);
	return st;
}

static clv_status fill(sweep *s)
{
	clv_frontiers *f = s->f;
	TRY(node_names_new(f->p, &f->names));
	f->n = f->p->nodes.n ? f->p->nodes.n - 1 : 0;
	f->at = mem_alloc((f->n + 1) * sizeof *f->at);
	if (!f->at)
		return fail_nomem();
	TRY(liveness_new(f->p, &s->live));
	TRY(eval_at_lowest(s));
	TRY(count_crossing(s));
	count_cost(s);
	mark_trainable(s);
	return judge(s);
}

clv_status clv_frontiers_create(const clv_plan *p, clv_frontiers **out)
{
	if (!p || !out)
		return fail(CLV_E_INVALID, "clv_frontiers_create: an argument is NULL");
	clv_frontiers *f = mem_alloc(sizeof *f);
	if (!f)
		return fail_nomem();
	f->p = p;
	sweep s = {.f = f};
	clv_status st = fill(&s);
	liveness_free(&s.live);
	mem_free(s.sizes);
	mem_free(s.defined);
	if (st != CLV_OK) {
		clv_frontiers_free(f);
		return st;
	}
	*out = f;
	return CLV_OK;
}

void clv_frontiers_free(clv_frontiers *f)
{
	if (!f)
		return;
	for (uint32_t i = 0; i < f->reasons.n; i++)
		mem_free(f->reasons.at[i]);
	vec_free(&f->reasons);
	node_names_free(f->names);
	mem_free(f->at);
	mem_free(f);
}

uint32_t clv_frontiers_count(const clv_frontiers *f)
{
	return f ? f->n : 0;
}

static const char *module_path(const plan *p, node_id k)
{
	scope_id s = p->nodes.at[k].scope;
	return s == NONE ? "" : plan_s(p, p->scopes.at[s].path);
}

clv_status clv_frontiers_get(const clv_frontiers *f, uint32_t i, clv_frontier *out)
{
	if (!f || !out || i >= f->n)
		return fail(CLV_E_INVALID, "no frontier %u", i);
	if (out->size < sizeof out->size || out->size > sizeof *out)
		return fail(CLV_E_INVALID, "clv_frontier.size is %zu, this library knows up to %zu", out->size, sizeof *out);
	const frontier *c = &f->at[i];
	clv_frontier all = {.size = out->size,
	                    .position = i,
	                    .name = node_name(f->names, i),
	                    .module = module_path(f->p, i),
	                    .boundary_tensors = c->tensors,
	                    .passthrough_inputs = c->passthrough,
	                    .boundary_bytes = c->bytes,
	                    .prefix_cost = c->cost,
	                    .trainable_suffix = c->trainable,
	                    .unsafe = c->unsafe};
	memcpy(out, &all, out->size); /* a caller built with an older header has a shorter struct */
	return CLV_OK;
}

/* ---- choosing ---------------------------------------------------------------------------------------------------------- */

typedef struct near_name {
	const char *name;
	unsigned distance;
} near_name;

enum { NEAREST = 5 };

/* Levenshtein distance; names are short. */
static clv_status distance(const char *a, const char *b, unsigned *out)
{
	size_t n = strlen(b);
	unsigned *row = mem_alloc((n + 1) * sizeof *row);
	if (!row)
		return fail_nomem();
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

static clv_status offer(near_name *best, const char *want, const char *name)
{
	near_name c = {name, 0};
	if (!name[0])
		return CLV_OK;
	for (int i = 0; i < NEAREST; i++)
		if (best[i].name && !strcmp(best[i].name, name))
			return CLV_OK;
	TRY(distance(want, name, &c.distance));
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
		TRY(offer(best, want, plan_s(f->p, f->p->scopes.at[i].path)));
	for (uint32_t i = 0; i < f->n; i++)
		TRY(offer(best, want, node_name(f->names, i)));
	for (int i = 0; i < NEAREST && best[i].name; i++)
		strbuf_printf(&b, "%s%s", i ? ", " : "", best[i].name);
	TRY(strbuf_take(&b, &list));
	clv_status st = fail(CLV_E_NOT_FOUND, "no module or node is called \"%s\"; nearest: %s", want, list);
	mem_free(list);
	return st;
}

static bool is_inside(const char *path, const char *module)
{
	size_t n = strlen(module);
	return !strncmp(path, module, n) && (path[n] == '\0' || path[n] == '.');
}

static clv_status choose_named(const clv_frontiers *f, const char *name, bool trainable, uint32_t *out)
{
	node_id at = NONE;
	for (node_id k = 0; name[0] && k < f->p->nodes.n; k++)
		if (is_inside(module_path(f->p, k), name))
			at = k;
	if (at == NONE)
		at = node_find(f->names, name);
	if (at == NONE)
		return no_such_name(f, name);
	if (at >= f->n)
		return fail(CLV_E_INVALID, "nothing is left to run after \"%s\": it is the end of the model", name);
	if (f->at[at].unsafe)
		return fail(CLV_E_UNSUPPORTED, "the model cannot be cut after \"%s\": %s", name, f->at[at].unsafe);
	if (trainable && !f->at[at].trainable)
		return fail(CLV_E_INVALID, "after \"%s\" no trainable parameters are left, and trainable=True asks for some",
		            name);
	*out = at;
	return CLV_OK;
}

static bool allowed(const frontier *c, bool trainable)
{
	return !c->unsafe && (!trainable || c->trainable);
}

static clv_status none_allowed(const clv_frontiers *f, bool trainable)
{
	bool any_safe = false;
	for (uint32_t i = 0; i < f->n; i++)
		any_safe |= !f->at[i].unsafe;
	for (uint32_t i = 0; i < f->n && !any_safe; i++)
		if (f->at[i].unsafe)
			return fail(CLV_E_UNSUPPORTED, "the model has no frontier that can be cut%s; for example after %s: %s",
			            trainable ? " and leaves trainable parameters in the suffix" : "", node_name(f->names, i),
			            f->at[i].unsafe);
	return fail(CLV_E_UNSUPPORTED,
	            f->n ? "no frontier leaves trainable parameters in the suffix, and trainable=True asks for some"
	                 : "the model has too few operators to be cut");
}

/* The frontier whose share of the work is nearest to the percentage; of equals the one with fewer bytes. */
static clv_status choose_percent(const clv_frontiers *f, double percent, bool trainable, uint32_t *out)
{
	uint32_t best = NONE;
	for (uint32_t i = 0; i < f->n; i++) {
		if (!allowed(&f->at[i], trainable))
			continue;
		double off = fabs(f->at[i].cost * 100 - percent);
		double best_off = best == NONE ? INFINITY : fabs(f->at[best].cost * 100 - percent);
		if (off < best_off || (off == best_off && f->at[i].bytes < f->at[best].bytes))
			best = i;
	}
	if (best == NONE)
		return none_allowed(f, trainable);
	*out = best;
	return CLV_OK;
}

/* The fewest bytes among frontiers with 20 to 80 % of the work on each side, or among all when none is there. */
static clv_status choose_auto(const clv_frontiers *f, bool trainable, uint32_t *out)
{
	uint32_t best = NONE;
	for (int strict = 1; strict >= 0 && best == NONE; strict--)
		for (uint32_t i = 0; i < f->n; i++) {
			const frontier *c = &f->at[i];
			if (!allowed(c, trainable) || (strict && (c->cost < 0.2 || c->cost > 0.8)))
				continue;
			if (best == NONE || c->bytes < f->at[best].bytes)
				best = i;
		}
	if (best == NONE)
		return none_allowed(f, trainable);
	*out = best;
	return CLV_OK;
}

/* "percent:50", "50%", "at:50%" */
static bool parse_percent(const char *s, double *out)
{
	bool sign = false;
	char *end;
	if (!strncmp(s, "percent:", 8))
		s += 8;
	else if (!strncmp(s, "at:", 3))
		s += 3, sign = true;
	else
		sign = true;
	if (!isdigit((unsigned char)*s) && *s != '-' && *s != '.' && *s != '+')
		return false;
	*out = strtod(s, &end);
	return sign ? !strcmp(end, "%") : end[0] == '\0' || !strcmp(end, "%");
}

clv_status clv_frontiers_choose(const clv_frontiers *f, const char *boundary, bool trainable, uint32_t *out)
{
	double percent;
	if (!f || !boundary || !out)
		return fail(CLV_E_INVALID, "clv_frontiers_choose: an argument is NULL");
	if (!strcmp(boundary, "auto"))
		return choose_auto(f, trainable, out);
	if (!strncmp(boundary, "after:", 6))
		return choose_named(f, boundary + 6, trainable, out);
	if (!parse_percent(boundary, &percent))
		return fail(CLV_E_INVALID,
		            "boundary \"%s\" is none of: \"auto\", \"after:<module path>\", \"after:<node name>\", \"50%%\", "
		            "\"percent:50\", \"at:50%%\"",
		            boundary);
	if (!(percent > 0 && percent < 100))
		return fail(CLV_E_INVALID, "boundary \"%s\": the percentage must be above 0 and below 100", boundary);
	return choose_percent(f, percent, trainable, out);
}
