/* The methods by name, and a run of one: the problem is checked before it, the partition completed and scored after it. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/human.h"
#include "pipe/pipe.h"

static const struct {
	const char *name;
	pipe_method run;
} methods[] = {
	{"acyclic", pipe_acyclic}, {"multilevel", pipe_multilevel}, {"exact", pipe_exact}, {"pipedream", pipe_pipedream},
	{"metis", pipe_metis},     {"mpipe", pipe_mpipe},           {"auto", pipe_auto},
};

#define METHODS (sizeof methods / sizeof *methods)

pipe_method method_named(const char *name)
{
	for (size_t i = 0; i < METHODS; i++)
		if (strcmp(methods[i].name, name) == 0)
			return methods[i].run;
	return NULL;
}

const char *method_name(size_t i)
{
	return i < METHODS ? methods[i].name : NULL;
}

const char *const pipe_goal_names[GOAL_COUNT] = {"bottleneck", "throughput", "simple"};

clv_status pipe_goal_read(const char *name, pipe_goal *out)
{
	for (int i = 0; i < GOAL_COUNT; i++)
		if (strcmp(name, pipe_goal_names[i]) == 0) {
			*out = (pipe_goal)i;
			return CLV_OK;
		}
	return fail(CLV_E_INVALID, "there is no objective \"%s\"; there are bottleneck, throughput, simple", name);
}

/* ---- the problem ------------------------------------------------------------------------------------------------------ */

static clv_status check_devices(const pipe_problem *pr)
{
	for (uint32_t d = 0; d < pr->k; d++) {
		double speed = pr->devices[d].speed;
		if (!isfinite(speed) || speed < 1e-100 || speed > 1e100)
			return fail(CLV_E_INVALID, "the speed of device %" PRIu32 " is %g; it must be over 0", d, speed);
		if (pr->devices[d].memory_bytes < 0)
			return fail(CLV_E_INVALID, "the memory limit of device %" PRIu32 " is negative", d);
	}
	for (uint32_t d = 0; pr->bandwidth && d < pr->k * pr->k; d++)
		if (d / pr->k != d % pr->k && !(pr->bandwidth[d] >= 1e-100)) /* so that no transfer takes for ever */
			return fail(CLV_E_INVALID, "the bandwidth from device %" PRIu32 " to %" PRIu32 " is %g; it must be over 0",
			            d / pr->k, d % pr->k, pr->bandwidth[d]);
	return CLV_OK;
}

static clv_status check_numbers(const pipe_problem *pr)
{
	if (!(pr->latency_us >= 0 && pr->latency_us <= 1e200))
		return fail(CLV_E_INVALID, "the latency is %g us; it must be finite and not negative", pr->latency_us);
	if ((unsigned)pr->schedule >= SCHEDULE_COUNT)
		return fail(CLV_E_INVALID, "there is no schedule number %d", (int)pr->schedule);
	if (pr->microbatches == 0 || pr->microbatches > MOST_MICROBATCHES)
		return fail(CLV_E_INVALID, "%" PRIu32 " micro-batches; expected 1 to %d", pr->microbatches, MOST_MICROBATCHES);
	if (!(pr->param_copies >= 0 && pr->param_copies <= 1e6))
		return fail(CLV_E_INVALID, "%g copies of parameters; expected 0 to a million", pr->param_copies);
	if (pr->max_stages && pr->max_stages < pr->k)
		return fail(CLV_E_INVALID,
		            "max_stages is %" PRIu32 ", but there are %" PRIu32 " devices and each needs a stage",
		            pr->max_stages, pr->k);
	if (!(pr->seconds >= 0))
		return fail(CLV_E_INVALID, "the time limit is %g seconds; it must not be negative", pr->seconds);
	return CLV_OK;
}

static clv_status fail_memory(const char *part, double needs, const char *where, double has)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "the model does not fit: %s need ", part);
	strbuf_bytes(&b, needs < 9e18 ? (int64_t)needs : INT64_MAX);
	strbuf_printf(&b, ", and %s ", where);
	strbuf_bytes(&b, has < 9e18 ? (int64_t)has : INT64_MAX);
	strbuf_puts(&b, "; give more devices or memory, or fewer copies");
	return strbuf_fail(CLV_E_UNSUPPORTED, &b);
}

/* Fails if no partition can fit the memory limits: all parameters, or those of one node, are too large. */
static clv_status check_memory(const pipe_problem *pr)
{
	double all = 0, heaviest = 0, limits = 0, largest = 0;
	for (uint32_t d = 0; d < pr->k; d++) {
		double limit = pr->devices[d].memory_bytes ? (double)pr->devices[d].memory_bytes : INFINITY;
		limits += limit;
		largest = fmax(largest, limit);
	}
	for (uint32_t n = 0; n < pr->g->nodes.n; n++) {
		const pipe_node *x = &pr->g->nodes.at[n];
		all += (double)x->param_bytes * pr->param_copies;
		heaviest = fmax(heaviest, (double)x->param_bytes * pr->param_copies + (double)x->work_bytes);
	}
	if (all > limits)
		return fail_memory("all parameters with their copies", all, "all devices together have", limits);
	if (heaviest > largest)
		return fail_memory("parameters and work of one node", heaviest, "the largest device has", largest);
	return CLV_OK;
}

clv_status problem_check(const pipe_problem *pr)
{
	if (pr->k == 0)
		return fail(CLV_E_INVALID, "the number of devices is 0; it must be at least 1");
	if (pr->k > pr->g->nodes.n)
		return fail(CLV_E_INVALID, "%" PRIu32 " devices for a graph of %" PRIu32 " nodes: each needs at least one node",
		            pr->k, pr->g->nodes.n);
	if (pr->k > MOST_DEVICES)
		return fail(CLV_E_INVALID, "%" PRIu32 " devices; expected at most %d", pr->k, MOST_DEVICES);
	TRY(check_devices(pr));
	TRY(check_numbers(pr));
	return check_memory(pr);
}

/* ---- the best of several ------------------------------------------------------------------------------------------------ */

clv_status keeper_offer(const pipe_problem *pr, keeper *kept, pipe_partition *p)
{
	pipe_score score;
	clv_status st = partition_tidy(pr, p);
	if (st == CLV_OK)
		st = score_new(pr, p, &score);
	if (st != CLV_OK) {
		partition_free(p);
		return st;
	}
	if (!kept->has || score_better(&score, p->nstages, &kept->score, kept->best.nstages)) {
		pipe_partition worse = kept->best;
		pipe_score worse_score = kept->score;
		kept->best = *p;
		kept->score = score;
		kept->has = true;
		*p = worse;
		score = worse_score;
	}
	partition_free(p);
	score_free(&score);
	return CLV_OK;
}

clv_status keeper_end(keeper *kept, clv_status st, pipe_partition *out)
{
	score_free(&kept->score);
	if (st != CLV_OK)
		partition_free(&kept->best);
	else
		*out = kept->best;
	*kept = (keeper){0};
	return st;
}

/* ---- every device gets a stage ------------------------------------------------------------------------------------------ */

static uint32_t unused_device(const pipe_partition *p, uint32_t k, uint32_t *count)
{
	memset(count, 0, k * sizeof *count);
	for (uint32_t s = 0; s < p->nstages; s++)
		count[p->device_of[s]]++;
	for (uint32_t d = 0; d < k; d++)
		if (count[d] == 0)
			return d;
	return PIPE_NONE;
}

/* Nodes of stage s after the first `keep` become a stage of their own, on device d. */
static void split_stage(const pipe_graph *g, pipe_partition *p, uint32_t s, uint32_t keep, uint32_t d)
{
	for (uint32_t n = 0; n < g->nodes.n; n++) {
		uint32_t *at = &p->stage_of[n];
		if (*at > s)
			(*at)++;
		else if (*at == s && keep)
			keep--;
		else if (*at == s)
			*at = s + 1;
	}
	memmove(p->device_of + s + 2, p->device_of + s + 1, (p->nstages - s - 1) * sizeof *p->device_of);
	p->device_of[s + 1] = d;
	p->nstages++;
}

static double stage_us(const pipe_score *score, uint32_t s)
{
	return score->stages[s].fwd_us + score->stages[s].bwd_us;
}

/* The longest stage that can be split. */
static uint32_t longest_stage(const pipe_score *score, uint32_t nstages)
{
	uint32_t best = PIPE_NONE;
	for (uint32_t s = 0; s < nstages; s++)
		if (score->stages[s].nodes > 1 && (best == PIPE_NONE || stage_us(score, s) > stage_us(score, best)))
			best = s;
	return best;
}

/* The shortest stage on a device that has another one: there is one while stages are as many as devices. */
static uint32_t spare_stage(const pipe_score *score, uint32_t nstages, const uint32_t *count)
{
	uint32_t best = PIPE_NONE;
	for (uint32_t s = 0; s < nstages; s++)
		if (count[score->stages[s].device] > 1 && (best == PIPE_NONE || stage_us(score, s) < stage_us(score, best)))
			best = s;
	return best;
}

static clv_status fill_device(const pipe_problem *pr, pipe_partition *p, uint32_t d, const uint32_t *count)
{
	enum { TRIES = 8 };
	keeper kept = {0};
	pipe_score score;
	TRY(score_new(pr, p, &score));
	uint32_t s = longest_stage(&score, p->nstages), nodes = s == PIPE_NONE ? 0 : score.stages[s].nodes, last = 0;
	clv_status st = CLV_OK;
	if (s == PIPE_NONE || (pr->max_stages && p->nstages >= pr->max_stages)) {
		uint32_t spare = spare_stage(&score, p->nstages, count);
		if (spare != PIPE_NONE)
			p->device_of[spare] = d;
		score_free(&score);
		return spare != PIPE_NONE ? CLV_OK : fail(CLV_E_UNSUPPORTED, "no stage is left for device %" PRIu32, d);
	}
	score_free(&score);
	for (uint32_t i = 0; i <= TRIES && st == CLV_OK; i++) {
		uint32_t keep = i == 0 ? 1 : (uint32_t)((uint64_t)(nodes - 1) * i / TRIES);
		if (keep <= last)
			continue;
		last = keep;
		pipe_partition next;
		st = partition_copy(pr->g, p, &next);
		if (st != CLV_OK)
			break;
		split_stage(pr->g, &next, s, keep, d);
		st = keeper_offer(pr, &kept, &next);
	}
	pipe_partition best;
	TRY(keeper_end(&kept, st, &best));
	partition_free(p);
	*p = best;
	return CLV_OK;
}

clv_status partition_fill(const pipe_problem *pr, pipe_partition *p)
{
	uint32_t *count = mem_ids(pr->k);
	clv_status st = count ? partition_tidy(pr, p) : fail_nomem();
	while (st == CLV_OK) {
		uint32_t d = unused_device(p, pr->k, count);
		if (d == PIPE_NONE)
			break;
		st = fill_device(pr, p, d, count);
	}
	mem_free(count);
	return st;
}

/* ---- a run ------------------------------------------------------------------------------------------------------------- */

static clv_status fail_over(const pipe_problem *pr, const pipe_score *score)
{
	for (uint32_t d = 0; d < pr->k; d++) {
		int64_t limit = pr->devices[d].memory_bytes, over = score->device_bytes[d] - limit;
		if (limit == 0 || over <= 0)
			continue;
		strbuf b = STRBUF_INIT;
		strbuf_puts(&b, "no partition within the memory limits was found: in the best one ");
		strbuf_printf(&b, "device %" PRIu32 " would need ", d);
		strbuf_bytes(&b, score->device_bytes[d]);
		strbuf_puts(&b, ", ");
		strbuf_bytes(&b, over);
		strbuf_puts(&b, " over its limit of ");
		strbuf_bytes(&b, limit);
		strbuf_printf(&b, "; give more devices or memory, %sor hold fewer micro-batches",
		              pr->training && !pr->recompute ? "recompute, " : "");
		return strbuf_fail(CLV_E_UNSUPPORTED, &b);
	}
	return CLV_OK;
}

static clv_status fail_method(const char *name)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "there is no method \"%s\"; there are ", name);
	for (size_t i = 0; i < METHODS; i++)
		strbuf_printf(&b, "%s%s", i ? ", " : "", methods[i].name);
	return strbuf_fail(CLV_E_NOT_FOUND, &b);
}

bool memory_limited(const pipe_problem *pr)
{
	for (uint32_t d = 0; d < pr->k; d++)
		if (pr->devices[d].memory_bytes)
			return true;
	return false;
}

bool devices_alike(const pipe_problem *pr)
{
	for (uint32_t d = 1; d < pr->k; d++)
		if (pr->devices[d].speed != pr->devices[0].speed || pr->devices[d].memory_bytes != pr->devices[0].memory_bytes)
			return false;
	for (uint32_t i = 0; pr->bandwidth && i < pr->k * pr->k; i++)
		if (i % (pr->k + 1) && pr->bandwidth[i] != pr->bandwidth[1]) /* the diagonal is no link */
			return false;
	return true;
}

/* Numbers devices that are alike in the order of their first stages, so that a schedule recognizes its placement. */
static clv_status number_devices(const pipe_problem *pr, pipe_partition *p)
{
	if (!devices_alike(pr))
		return CLV_OK;
	uint32_t *now = mem_ids(pr->k), next = 0;
	TRY_MEM(now);
	for (uint32_t s = 0; s < p->nstages; s++) {
		uint32_t d = p->device_of[s];
		if (now[d] == PIPE_NONE)
			now[d] = next++;
		p->device_of[s] = now[d];
	}
	mem_free(now);
	return CLV_OK;
}

static clv_status complete(const pipe_problem *pr, const char *method, pipe_partition *p, pipe_score *score)
{
	TRY(partition_fill(pr, p));
	TRY(number_devices(pr, p));
	if (!p->method)
		p->method = method;
	p->asked = method;
	if (pr->max_stages && p->nstages > pr->max_stages)
		return fail(CLV_E_UNSUPPORTED, "%s made %" PRIu32 " stages, and at most %" PRIu32 " are allowed", p->method,
		            p->nstages, pr->max_stages);
	TRY(score_new(pr, p, score));
	if (score->bottleneck_us <= score->lower_bound_us * (1 + 1e-12))
		p->optimal = true;
	clv_status st = fail_over(pr, score);
	if (st != CLV_OK)
		score_free(score);
	return st;
}

clv_status pipe_partition_run(const pipe_problem *pr, const char *method, pipe_partition *out, pipe_score *score)
{
	for (size_t i = 0; i < METHODS; i++) {
		if (strcmp(methods[i].name, method) != 0)
			continue;
		TRY(problem_check(pr));
		TRY(methods[i].run(pr, out));
		clv_status st = complete(pr, methods[i].name, out, score);
		if (st != CLV_OK)
			partition_free(out);
		return st;
	}
	return fail_method(method);
}
