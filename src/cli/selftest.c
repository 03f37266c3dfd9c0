/* `cleave selftest`: whether plans run here. A first answer to "does my installation work?". */
#include "cli.h"

#ifdef CLEAVE_CLI_TORCH
#include <string.h>

static const char plan_text[] = "cleave-plan 1\n"
								"model \"selftest\"\n"
								"input %0 f32[2,3] name=\"x\"\n"
								"%1 = aten::add.Tensor(%0, %0, 1) -> f32[2,3]\n"
								"output %1\n";

/* 2x in *y; the caller frees it. */
static clv_status run_plan(const float *data, clv_tensor **y)
{
	clv_plan *p = NULL;
	clv_program *g = NULL;
	clv_tensor *x = NULL;
	clv_status st = clv_plan_parse(plan_text, strlen(plan_text), &p);
	if (st == CLV_OK)
		st = clv_program_create(p, NULL, &g);
	if (st == CLV_OK)
		st = clv_tensor_from_data(data, "f32", 2, (const int64_t[]){2, 3}, &x);
	if (st == CLV_OK)
		st = clv_program_run(g, (const clv_tensor *const[]){x}, 1, y, 1);
	clv_tensor_free(x);
	clv_program_free(g);
	clv_plan_free(p);
	return st;
}

static int run_selftest(void *given)
{
	(void)given;
	const float data[6] = {0, 1, 2, 3, 4, 5};
	clv_tensor *y = NULL;
	if (run_plan(data, &y) != CLV_OK)
		return fail_with(NULL);
	const float *sum = clv_tensor_data(y);
	bool right = sum != NULL;
	for (int i = 0; right && i < 6; i++)
		right = sum[i] == 2 * data[i];
	clv_tensor_free(y);
	if (!right) {
		complain("a plan ran, and its result is wrong");
		return EXIT_FAILED;
	}
	puts("ok: plans run here");
	return written() ? EXIT_OK : EXIT_FAILED;
}
#endif

const command command_selftest = {
	.name = "selftest",
	.summary = "check that plans run here",
	.description = "Runs a plan of one node with libtorch and looks at the result.",
	.run = TORCH_RUN(run_selftest),
	.torch = true,
	.hidden = true,
};
