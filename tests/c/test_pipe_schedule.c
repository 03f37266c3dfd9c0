/* Timelines: every action once, after what it needs, one at a time on a device, and no more in flight than was said. */
#include "pipes.h"

typedef struct facts {
	double *fwd_end, *bwd_end; /* per stage and micro-batch; negative: not seen */
} facts;

static void check_device(const pipe_problem *pr, const pipe_partition *p, const pipe_score *score,
                         const pipe_timeline *t, uint32_t d, facts *f)
{
	uint32_t *held = mem_alloc(p->nstages * sizeof *held);
	double before = 0;
	for (uint32_t i = t->first[d]; i < t->first[d + 1]; i++) {
		const pipe_action *a = &t->actions[i];
		double *end =
			(a->kind == ACTION_FORWARD ? f->fwd_end : f->bwd_end) + a->stage * pr->microbatches + a->microbatch;
		assert_int_equal(p->device_of[a->stage], d);
		assert_true(*end < 0 && a->start_us >= before && a->end_us >= a->start_us);
		*end = before = a->end_us;
		held[a->stage] += a->kind == ACTION_FORWARD ? 1 : -1u;
		assert_true(!pr->training || held[a->stage] <= score->stages[a->stage].in_flight);
	}
	mem_free(held);
}

static double start_of(const pipe_problem *pr, const pipe_timeline *t, uint32_t kind, uint32_t s, uint32_t m)
{
	for (uint32_t i = 0; i < t->first[pr->k]; i++)
		if (t->actions[i].kind == kind && t->actions[i].stage == s && t->actions[i].microbatch == m)
			return t->actions[i].start_us;
	fail_msg("no action for stage %u, micro-batch %u", s, m);
	return 0;
}

static void check_timeline(const pipe_problem *pr, const pipe_partition *p, const pipe_score *score,
                           const pipe_timeline *t)
{
	uint32_t cells = p->nstages * pr->microbatches, m = pr->microbatches;
	facts f = {mem_alloc(cells * sizeof(double)), mem_alloc(cells * sizeof(double))};
	for (uint32_t i = 0; i < cells; i++)
		f.fwd_end[i] = f.bwd_end[i] = -1;
	for (uint32_t d = 0; d < pr->k; d++)
		check_device(pr, p, score, t, d, &f);
	for (uint32_t s = 0; s < p->nstages; s++)
		for (uint32_t b = 0; b < m; b++) {
			uint32_t at = s * m + b;
			assert_true(f.fwd_end[at] >= 0 && (f.bwd_end[at] >= 0) == pr->training);
			assert_true(s == 0 || start_of(pr, t, ACTION_FORWARD, s, b) >= f.fwd_end[at - m]);
			if (!pr->training)
				continue;
			double needs = s + 1 < p->nstages ? f.bwd_end[at + m] : f.fwd_end[at];
			assert_true(start_of(pr, t, ACTION_BACKWARD, s, b) >= needs);
		}
	assert_true(t->bubble >= 0 && t->bubble <= 1);
	mem_free(f.fwd_end);
	mem_free(f.bwd_end);
}

/* The orders alone, run as devices would that know no times: somebody can always go on. */
static void check_orders(const pipe_problem *pr, const pipe_partition *p, const pipe_timeline *t)
{
	uint32_t m = pr->microbatches, left = t->first[pr->k];
	uint32_t *at = mem_alloc(pr->k * sizeof *at);
	bool *fwd = mem_alloc(p->nstages * m), *bwd = mem_alloc(p->nstages * m);
	for (bool moved = true; moved && left;) {
		moved = false;
		for (uint32_t d = 0; d < pr->k; d++) {
			if (t->first[d] + at[d] == t->first[d + 1])
				continue;
			const pipe_action *a = &t->actions[t->first[d] + at[d]];
			uint32_t cell = a->stage * m + a->microbatch;
			bool ready = a->kind == ACTION_FORWARD    ? a->stage == 0 || fwd[cell - m]
			             : a->stage + 1 == p->nstages ? fwd[cell]
			                                          : bwd[cell + m];
			if (!ready)
				continue;
			(a->kind == ACTION_FORWARD ? fwd : bwd)[cell] = true;
			moved = true;
			at[d]++;
			left--;
		}
	}
	assert_int_equal(left, 0);
	mem_free(at);
	mem_free(fwd);
	mem_free(bwd);
}

static void stages_in_turn(const pipe_graph *g, uint32_t k, uint32_t stages, pipe_random *r, pipe_partition *p)
{
	OK(partition_new(g, p));
	p->nstages = stages;
	for (uint32_t n = 0; n < g->nodes.n; n++)
		p->stage_of[n] = (uint32_t)((uint64_t)n * stages / g->nodes.n);
	for (uint32_t s = 0; s < stages; s++)
		p->device_of[s] = r ? pipe_random_below(r, k) : s % k;
}

static void timelines_keep_every_rule(void **state)
{
	(void)state;
	pipe_random r = {5};
	uint32_t fitting = 0;
	for (int round = 0; round < 600; round++) {
		uint32_t k = 1 + pipe_random_below(&r, 4), chunks = 1 + pipe_random_below(&r, 3), stages = k * chunks;
		bool loops = pipe_random_below(&r, 2);
		pipe_graph g = random_graph(&r, stages + pipe_random_below(&r, 20), 2, 4);
		pipe_device devices[4] = {{1, 0}, {2, 0}, {1, 0}, {3, 0}};
		double bandwidth[16];
		for (uint32_t i = 0; i < 16; i++)
			bandwidth[i] = 1e6 * (1 + pipe_random_below(&r, 50));
		pipe_problem pr = problem_of(&g, devices, k);
		pr.bandwidth = pipe_random_below(&r, 2) ? bandwidth : NULL;
		pr.schedule = (pipe_schedule)pipe_random_below(&r, SCHEDULE_COUNT);
		pr.microbatches = 1 + pipe_random_below(&r, 12);
		pr.training = pipe_random_below(&r, 4) > 0;
		pipe_partition p;
		pipe_score score;
		pipe_timeline t;
		stages_in_turn(&g, k, stages, loops ? NULL : &r, &p);
		OK(score_new(&pr, &p, &score));
		OK(timeline_new(&pr, &p, &score, &t));
		check_timeline(&pr, &p, &score, &t);
		check_orders(&pr, &p, &t);
		uint32_t per_round;
		if (loops && pr.schedule == SCHEDULE_INTERLEAVED && rounds_of(pr.microbatches, k, &per_round))
			assert_true(t.fits);
		if (loops && chunks == 1 && pr.schedule != SCHEDULE_INTERLEAVED)
			assert_true(t.fits);
		fitting += t.fits;
		timeline_free(&t);
		score_free(&score);
		partition_free(&p);
		graph_free(&g);
	}
	assert_true(fitting > 100);
}

/* k equal stages, forward 1, backward 2: the bubble is known, (k-1) / (m+k-1). */
static void bubbles_of_equal_stages_are_those_of_the_books(void **state)
{
	(void)state;
	for (uint32_t k = 1; k <= 4; k++)
		for (uint32_t m = k; m <= 3 * k; m += k)
			for (int schedule = 0; schedule < SCHEDULE_INTERLEAVED; schedule++) {
				pipe_random r = {1};
				pipe_graph g = random_graph(&r, k, 1, 1);
				for (uint32_t n = 0; n < k; n++) {
					g.nodes.at[n].fwd_us = 1;
					g.nodes.at[n].bwd_us = 2;
				}
				pipe_device devices[4] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}};
				pipe_problem pr = problem_of(&g, devices, k);
				pr.microbatches = m;
				pr.schedule = (pipe_schedule)schedule;
				pipe_partition p;
				pipe_score score;
				pipe_timeline t;
				stages_in_turn(&g, k, k, NULL, &p);
				OK(score_new(&pr, &p, &score));
				OK(timeline_new(&pr, &p, &score, &t));
				assert_float_equal(t.bubble, (double)(k - 1) / (m + k - 1), 1e-9);
				assert_float_equal(t.makespan_us, 3.0 * (m + k - 1), 1e-9);
				timeline_free(&t);
				score_free(&score);
				partition_free(&p);
				graph_free(&g);
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(timelines_keep_every_rule),
		cmocka_unit_test(bubbles_of_equal_stages_are_those_of_the_books),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
