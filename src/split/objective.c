/* Objectives: the cost of a frontier, and which frontiers are allowed.
 *
 * A measure is a number of a frontier; what is minimised is one, and every constraint bounds one. */
#include "split/frontier.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/human.h"
#include "base/options.h"

typedef double (*measure_fn)(const frontier *c, const clv_objective *o);

/* INT64_MAX stands for "too much to say". */
static double amount(int64_t n)
{
	return n == INT64_MAX ? INFINITY : (double)n;
}

static encoding compression(const clv_objective *o)
{
	encoding e = ENC_PLAIN;
	if (o->compress)
		encoding_parse(o->compress, &e);
	return e;
}

static double boundary_bytes(const frontier *c, const clv_objective *o)
{
	return amount(c->sent[compression(o)]);
}

/* Tensors are compressed and restored at compress_bytes_per_s before and after they travel. */
static double latency(const frontier *c, const clv_objective *o)
{
	double codec = compression(o) == ENC_PLAIN ? 0 : amount(c->bytes) / o->compress_bytes_per_s;
	return c->flops[PREFIX] / o->prefix_flops_per_s + codec + boundary_bytes(c, o) / o->bandwidth_bytes_per_s +
	       c->flops[SUFFIX] / o->suffix_flops_per_s;
}

/* Those that the frontier has as they are. */
#define MEASURE(name, value)                                                                                           \
	static double name(const frontier *c, const clv_objective *o)                                                      \
	{                                                                                                                  \
		(void)o;                                                                                                       \
		return value;                                                                                                  \
	}

MEASURE(prefix_memory, amount(c->memory[PREFIX]))
MEASURE(suffix_memory, amount(c->memory[SUFFIX]))
MEASURE(prefix_flops, c->flops[PREFIX])
MEASURE(suffix_flops, c->flops[SUFFIX])
MEASURE(balance, fabs(c->flops[PREFIX] - c->flops[SUFFIX]))
MEASURE(prefix_params, amount(c->params[PREFIX]))
MEASURE(suffix_params, amount(c->params[SUFFIX]))
MEASURE(flops_fraction, c->cost)
MEASURE(trainable, c->trainable)

static const struct goal {
	const char *name;
	measure_fn measure;
} goals[] = {{"boundary_bytes", boundary_bytes},
             {"latency", latency},
             {"prefix_memory", prefix_memory},
             {"suffix_memory", suffix_memory},
             {"prefix_flops", prefix_flops},
             {"suffix_flops", suffix_flops},
             {"balance", balance}};

#define GOALS (sizeof goals / sizeof *goals)

static measure_fn goal_named(const char *name)
{
	for (size_t i = 0; i < GOALS; i++)
		if (!strcmp(goals[i].name, name))
			return goals[i].measure;
	return NULL;
}

double objective_value(const frontier *c, const clv_objective *o)
{
	return (o->minimize ? goal_named(o->minimize) : boundary_bytes)(c, o);
}

typedef struct constraint {
	const char *name;    /* as the user gives it */
	const char *measure; /* what it bounds */
	measure_fn value;
	bool is_least; /* a lower bound; otherwise an upper one */
	double bound;  /* NAN: not asked for */
} constraint;

enum { CONSTRAINTS = 9 };

static double asked(int64_t limit)
{
	return limit < 0 ? NAN : (double)limit;
}

static void constraints_of(const clv_objective *o, constraint out[CONSTRAINTS])
{
	double lo = o->min_prefix_flops_fraction, hi = o->max_prefix_flops_fraction;
	const constraint all[CONSTRAINTS] = {
		{"trainable_suffix", "trainable_suffix", trainable, true, o->trainable_suffix ? 1 : NAN},
		{"max_boundary_bytes", "boundary_bytes", boundary_bytes, false, asked(o->max_boundary_bytes)},
		{"max_prefix_memory", "prefix_memory", prefix_memory, false, asked(o->max_prefix_memory)},
		{"max_suffix_memory", "suffix_memory", suffix_memory, false, asked(o->max_suffix_memory)},
		{"max_prefix_params", "prefix_params", prefix_params, false, asked(o->max_prefix_params)},
		{"max_suffix_params", "suffix_params", suffix_params, false, asked(o->max_suffix_params)},
		{"min_prefix_flops_fraction", "prefix_flops_fraction", flops_fraction, true, lo > 0 ? lo : NAN},
		{"max_prefix_flops_fraction", "prefix_flops_fraction", flops_fraction, false, hi < 1 ? hi : NAN},
		{"max_latency_s", "latency", latency, false, o->max_latency_s > 0 ? o->max_latency_s : NAN},
	};
	memcpy(out, all, sizeof all);
}

static bool is_met(const constraint *q, const frontier *c, const clv_objective *o)
{
	double v = q->value(c, o);
	return isnan(q->bound) || (q->is_least ? v >= q->bound : v <= q->bound);
}

static bool meets_all(const constraint *q, const constraint *but, const frontier *c, const clv_objective *o)
{
	for (int i = 0; i < CONSTRAINTS; i++)
		if (&q[i] != but && !is_met(&q[i], c, o))
			return false;
	return true;
}

bool objective_allows(const frontier *c, const clv_objective *o)
{
	constraint q[CONSTRAINTS];
	constraints_of(o, q);
	return !c->unsafe && meets_all(q, NULL, c, o);
}

/* It asks about latency. */
static bool is_timed(const clv_objective *o)
{
	return o->max_latency_s > 0 || (o->minimize && !strcmp(o->minimize, "latency"));
}

static clv_status check_compression(const clv_objective *o)
{
	encoding e;
	if (!o->compress || (encoding_parse(o->compress, &e) && encoded_bits(e, DT_F32) < dtype_bits(DT_F32)))
		return CLV_OK;
	return fail(CLV_E_INVALID,
	            "compress is \"fp16\", \"bf16\", \"int8\" or \"q1\" to \"q8\", whose size is known ahead, not \"%s\"",
	            o->compress);
}

static clv_status check_goal(const clv_objective *o)
{
	strbuf b = STRBUF_INIT;
	char *list;
	if (is_timed(o) && o->bandwidth_bytes_per_s == 0)
		return fail(CLV_E_INVALID, "latency needs the constraint bandwidth_bytes_per_s: how fast the boundary travels");
	if (!o->minimize || goal_named(o->minimize))
		return CLV_OK;
	for (size_t i = 0; i < GOALS; i++)
		strbuf_printf(&b, "%s%s", i ? ", " : "", goals[i].name);
	TRY(strbuf_take(&b, &list));
	clv_status st = fail(CLV_E_INVALID, "\"%s\" cannot be minimised; choose one of %s", o->minimize, list);
	mem_free(list);
	return st;
}

static clv_status check_speed(const char *name, double speed)
{
	return isfinite(speed) && speed >= 0 ? CLV_OK
	                                     : fail(CLV_E_INVALID, "%s must be a number above 0, not %g", name, speed);
}

static clv_status check_numbers(const clv_objective *o)
{
	double lo = o->min_prefix_flops_fraction, hi = o->max_prefix_flops_fraction;
	if (!(lo >= 0 && lo <= hi && hi <= 1))
		return fail(CLV_E_INVALID,
		            "the prefix's fraction of the work must be bounded by 0 <= least <= most <= 1, not %g and %g", lo,
		            hi);
	TRY(check_speed("max_latency_s", o->max_latency_s));
	TRY(check_speed("bandwidth_bytes_per_s", o->bandwidth_bytes_per_s));
	TRY(check_speed("prefix_flops_per_s", o->prefix_flops_per_s));
	TRY(check_speed("suffix_flops_per_s", o->suffix_flops_per_s));
	return check_speed("compress_bytes_per_s", o->compress_bytes_per_s);
}

clv_status objective_read(const clv_objective *given, clv_objective *out)
{
	clv_objective o = CLV_OBJECTIVE_INIT;
	TRY(options_read(&o, sizeof o, given, "clv_objective"));
	TRY(check_numbers(&o));
	TRY(check_compression(&o));
	TRY(check_goal(&o));
	if (o.compress_bytes_per_s == 0)
		o.compress_bytes_per_s = 5e8;
	if (o.prefix_flops_per_s == 0)
		o.prefix_flops_per_s = 1e12;
	if (o.suffix_flops_per_s == 0)
		o.suffix_flops_per_s = 1e12;
	*out = o;
	return CLV_OK;
}

/* The whole model on one side, as a frontier: nothing crosses, or the inputs do, as they are. */
static frontier uncut(const clv_frontiers *f, enum side where)
{
	frontier c = {.cost = where == PREFIX ? 1 : 0};
	c.flops[where] = f->flops;
	c.params[where] = f->params;
	c.param_bytes[where] = f->param_bytes;
	c.memory[where] = f->memory;
	c.bytes = where == PREFIX ? 0 : f->input_bytes;
	c.trainable = where == SUFFIX && f->p->values.n && f->n && f->at[0].trainable;
	return c;
}

/* Inputs travel as they are, whatever is done to boundaries. INFINITY: a constraint forbids it. */
static double uncut_latency(const clv_frontiers *f, enum side where, const clv_objective *o)
{
	clv_objective plain = *o;
	constraint q[CONSTRAINTS];
	frontier c = uncut(f, where);
	plain.compress = NULL;
	c.sent[ENC_PLAIN] = c.bytes;
	constraints_of(&plain, q);
	return meets_all(q, NULL, &c, &plain) ? latency(&c, &plain) : INFINITY;
}

clv_status clv_frontiers_latency(const clv_frontiers *f, uint32_t i, const clv_objective *objective, clv_latency *out)
{
	clv_objective o;
	if (!f || !out || i >= f->n)
		return fail(CLV_E_INVALID, "no frontier %u", i);
	TRY(objective_read(objective, &o));
	if (o.bandwidth_bytes_per_s == 0)
		return fail(CLV_E_INVALID, "latency needs bandwidth_bytes_per_s: how fast the boundary travels");
	clv_latency all = {.cut_s = latency(&f->at[i], &o),
	                   .here_s = uncut_latency(f, PREFIX, &o),
	                   .there_s = uncut_latency(f, SUFFIX, &o),
	                   .sent_bytes = f->at[i].sent[compression(&o)]};
	return options_write(out, &all, sizeof all, "clv_latency");
}

static void put_seconds(strbuf *b, double s)
{
	strbuf_printf(b, s < 1 ? "%.3g ms" : "%.3g s", s < 1 ? s * 1000 : s);
}

static void put_advice(strbuf *b, const clv_frontiers *f, const clv_latency *l)
{
	strbuf_puts(b, "not cutting is faster: ");
	if (l->there_s < l->here_s) {
		put_seconds(b, l->there_s);
		strbuf_puts(b, " with everything after the link (");
		strbuf_bytes(b, f->input_bytes);
		strbuf_puts(b, " of input are sent)");
	} else {
		put_seconds(b, l->here_s);
		strbuf_puts(b, " with everything before the link");
	}
	strbuf_puts(b, ", ");
	put_seconds(b, l->cut_s);
	strbuf_puts(b, " with the best cut");
}

clv_status clv_frontiers_advice(const clv_frontiers *f, uint32_t i, const clv_objective *objective, char **out)
{
	clv_latency l = {.size = sizeof l};
	strbuf b = STRBUF_INIT;
	if (!out)
		return fail(CLV_E_INVALID, "clv_frontiers_advice: an argument is NULL");
	*out = NULL;
	if (!objective || !objective->minimize || strcmp(objective->minimize, "latency") != 0)
		return CLV_OK;
	TRY(clv_frontiers_latency(f, i, objective, &l));
	if (l.cut_s <= l.here_s && l.cut_s <= l.there_s)
		return CLV_OK;
	put_advice(&b, f, &l);
	return strbuf_take(&b, out);
}

enum { NUMBER = 40 };

/* Whole numbers as such, others with some digits. */
static const char *number_text(double v, char out[NUMBER])
{
	snprintf(out, NUMBER, v == floor(v) && fabs(v) < 1e18 ? "%.0f" : "%.4g", v);
	return out;
}

clv_status objective_explain(const clv_frontiers *f, uint32_t i, const clv_objective *o)
{
	constraint q[CONSTRAINTS];
	char is[NUMBER], bound[NUMBER];
	constraints_of(o, q);
	if (f->at[i].unsafe)
		return fail(CLV_E_UNSUPPORTED, "%s", f->at[i].unsafe);
	if (!is_met(&q[0], &f->at[i], o))
		return fail(CLV_E_INVALID, "no trainable parameters are left, and trainable=True asks for some");
	for (int k = 0; k < CONSTRAINTS; k++)
		if (!is_met(&q[k], &f->at[i], o))
			return fail(CLV_E_INVALID, "%s is %s, and %s is %s", q[k].measure,
			            number_text(q[k].value(&f->at[i], o), is), q[k].name, number_text(q[k].bound, bound));
	return CLV_OK;
}

static uint32_t count_excluded(const clv_frontiers *f, const constraint *q, const clv_objective *o)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < f->n; i++)
		n += !f->at[i].unsafe && !is_met(q, &f->at[i], o);
	return n;
}

/* The safe frontier that comes nearest to meeting q, of those that meet the others if there are any. */
static uint32_t nearest_to(const clv_frontiers *f, const constraint *all, const constraint *q, const clv_objective *o)
{
	uint32_t best = NONE;
	for (int others = 1; others >= 0 && best == NONE; others--)
		for (uint32_t i = 0; i < f->n; i++) {
			const frontier *c = &f->at[i];
			if (c->unsafe || (others && !meets_all(all, q, c, o)))
				continue;
			double v = q->value(c, o), w = best == NONE ? NAN : q->value(&f->at[best], o);
			if (best == NONE || (q->is_least ? v > w : v < w))
				best = i;
		}
	return best;
}

static clv_status none_is_safe(const clv_frontiers *f, const clv_objective *o)
{
	if (!f->n)
		return fail(CLV_E_UNSUPPORTED, "the model has too few operators to be cut");
	return fail(CLV_E_UNSUPPORTED, "the model has no frontier that can be cut%s; for example after %s: %s",
	            o->trainable_suffix ? " and leaves trainable parameters in the suffix" : "", node_name(f->names, 0),
	            f->at[0].unsafe);
}

clv_status objective_unmet(const clv_frontiers *f, const clv_objective *o)
{
	constraint q[CONSTRAINTS];
	uint32_t safe = 0, most = 0, worst = 0;
	constraints_of(o, q);
	for (uint32_t i = 0; i < f->n; i++)
		safe += !f->at[i].unsafe;
	if (!safe)
		return none_is_safe(f, o);
	for (uint32_t k = 0; k < CONSTRAINTS; k++) {
		uint32_t n = count_excluded(f, &q[k], o);
		if (n > most) {
			most = n;
			worst = k;
		}
	}
	if (worst == 0 && most == safe)
		return fail(CLV_E_UNSUPPORTED,
		            "no frontier leaves trainable parameters in the suffix, and trainable=True asks for some");
	char bound[NUMBER], in_reach[NUMBER];
	uint32_t near = nearest_to(f, q, &q[worst], o);
	return fail(CLV_E_UNSUPPORTED,
	            "no frontier meets all constraints: %s = %s excludes %u of the %u that can be cut; the %s %s in reach "
	            "is %s, after %s",
	            q[worst].name, number_text(q[worst].bound, bound), most, safe, q[worst].is_least ? "highest" : "lowest",
	            q[worst].measure, number_text(q[worst].value(&f->at[near], o), in_reach), node_name(f->names, near));
}
