/* What the executor adds to a call of an operator: a plan of many tiny additions run by program_run, against br_call in
 * a plain loop over the same sites. Both take turns, so that what else the machine does hits both; medians count.
 *
 *   overhead [nodes] [rounds] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "exec/program.h"

#define MUST(call)                                                                                                     \
	do {                                                                                                               \
		if ((call) != CLV_OK) {                                                                                        \
			fprintf(stderr, "%s\n", clv_last_error());                                                                 \
			exit(1);                                                                                                   \
		}                                                                                                              \
	} while (0)

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *must_alloc(size_t n, size_t size)
{
	void *at = calloc(n, size);
	if (!at)
		exit(1);
	return at;
}

/* ---- the two ways ---------------------------------------------------------------------------------------------------- */

static clv_program *make_program(uint32_t nodes, clv_plan **p)
{
	strbuf b = STRBUF_INIT;
	char *text;
	clv_program *g;
	strbuf_puts(&b, "cleave-plan 1\nmodel \"Adds\"\ninput %0 f32[1]\n");
	for (uint32_t i = 1; i <= nodes; i++)
		strbuf_printf(&b, "%%%u = aten::add.Tensor(%%%u, %%0, 1) -> f32[1]\n", i, i - 1);
	strbuf_printf(&b, "output %%%u\n", nodes);
	MUST(strbuf_take(&b, &text));
	MUST(clv_plan_parse(text, strlen(text), p));
	MUST(clv_program_create(*p, NULL, &g));
	mem_free(text);
	return g;
}

/* As the executor binds them: a sum is handed over to the next call. */
static br_site **make_sites(uint32_t nodes)
{
	br_site **sites = must_alloc(nodes, sizeof *sites);
	for (uint32_t i = 0; i < nodes; i++) {
		br_arg args[] = {
			{.kind = BR_TENSOR, .take = i > 0, .u.id = i}, {.kind = BR_TENSOR}, {.kind = BR_INT, .u.i = 1}};
		br_arg result = {.kind = BR_TENSOR, .u.id = i + 1};
		MUST(br_site_new("aten::add.Tensor", args, 3, &result, 1, NULL, false, &sites[i]));
	}
	return sites;
}

static double time_program(const clv_program *g, clv_tensor *x)
{
	clv_tensor *y;
	double start = now_ns();
	MUST(clv_program_run(g, (const clv_tensor *const *)&x, 1, &y, 1));
	double ns = now_ns() - start;
	clv_tensor_free(y);
	return ns;
}

static double time_sites(br_site *const *sites, uint32_t nodes, br_tensor **slots, br_tensor *x)
{
	slots[0] = x;
	double start = now_ns();
	for (uint32_t i = 0; i < nodes; i++)
		MUST(br_call(sites[i], slots, NULL, NULL));
	double ns = now_ns() - start;
	br_unref(slots[nodes]);
	slots[nodes] = NULL;
	return ns;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* The median, and on the way a line with it and the middle half. */
static double report(const char *what, double *ns, uint32_t rounds)
{
	qsort(ns, rounds, sizeof *ns, by_size);
	printf("%-28s %8.1f ns   (middle half %.1f to %.1f)\n", what, ns[rounds / 2], ns[rounds / 4],
	       ns[rounds - 1 - rounds / 4]);
	return ns[rounds / 2];
}

int main(int argc, char **argv)
{
	uint32_t nodes = argc > 1 ? (uint32_t)atoi(argv[1]) : 1000, rounds = argc > 2 ? (uint32_t)atoi(argv[2]) : 1000;
	if (!nodes || !rounds) {
		fprintf(stderr, "usage: overhead [nodes] [rounds]\n");
		return 2;
	}
	clv_plan *adds, *nothing;
	clv_program *g = make_program(nodes, &adds), *empty = make_program(0, &nothing);
	br_site **sites = make_sites(nodes);
	br_tensor **slots = must_alloc(nodes + 1, sizeof *slots), *here;
	clv_tensor *x;
	double *in_program = must_alloc(rounds, sizeof *in_program), *in_loop = must_alloc(rounds, sizeof *in_loop),
		   *around = must_alloc(rounds, sizeof *around);
	br_modes modes;
	MUST(clv_tensor_from_data(&(float){1}, "f32", 1, (int64_t[]){1}, &x));
	MUST(br_of(x, &here));
	br_modes_get(&modes);
	modes.grad = false; /* as in the program */
	br_modes_set(&modes, 0);

	for (uint32_t i = 0; i < rounds + rounds / 10; i++) { /* the first tenth warms up, and is overwritten */
		in_program[i % rounds] = time_program(g, x) / nodes;
		in_loop[i % rounds] = time_sites(sites, nodes, slots, here) / nodes;
		around[i % rounds] = time_program(empty, x);
	}
	printf("%u additions of one number, %u rounds; ns per node\n", nodes, rounds);
	double program = report("program_run", in_program, rounds), loop = report("br_call in a loop", in_loop, rounds);
	printf("%-28s %8.1f ns   (to stay below 300)\n", "the executor adds", program - loop);
	report("a run of no nodes", around, rounds);

	for (uint32_t i = 0; i < nodes; i++)
		br_site_free(sites[i]);
	clv_tensor_free(x);
	clv_program_free(g);
	clv_program_free(empty);
	clv_plan_free(adds);
	clv_plan_free(nothing);
	free(sites);
	free(slots);
	free(in_program);
	free(in_loop);
	free(around);
	return 0;
}
