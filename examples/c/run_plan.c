/* Runs a plan from C, with no Python in the process.
 *
 * A network of two layers as plan text: its parameters are bound by name, it runs whole, and the result is compared
 * with loops over the same numbers. Then it is cut in two, and prefix and suffix together must give the same bits. */
#define CLV_EXPERIMENTAL
#include <cleave.h>

#include <stdio.h>
#include <string.h>

enum { BATCH = 2, IN = 3, HIDDEN = 4, OUT = 2 };

static const char text[] = "cleave-plan 1\n"
						   "model \"Mlp\"\n"
						   "scope \"\" \"Mlp\"\n"
						   "scope fc1 \"Linear\"\n"
						   "scope fc2 \"Linear\"\n"
						   "input %0 f32[2,3] name=\"x\"\n"
						   "param @fc1.weight f32[4,3]\n"
						   "param @fc1.bias f32[4]\n"
						   "param @fc2.weight f32[2,4]\n"
						   "param @fc2.bias f32[2]\n"
						   "%1 = aten::linear(%0, @fc1.weight, @fc1.bias) -> f32[2,4] in fc1\n"
						   "%2 = aten::relu(%1) -> f32[2,4]\n"
						   "%3 = aten::linear(%2, @fc2.weight, @fc2.bias) -> f32[2,2] in fc2\n"
						   "output %3\n";

static const float x[BATCH][IN] = {{1, 2, 3}, {-1, 0.5f, 4}};
static const float w1[HIDDEN][IN] = {{0.1f, 0.2f, -0.3f}, {0.4f, -0.5f, 0.6f}, {-0.7f, 0.8f, 0.9f}, {1, -1, 0.5f}};
static const float b1[HIDDEN] = {0.1f, -0.2f, 0.3f, -0.4f};
static const float w2[OUT][HIDDEN] = {{0.25f, -0.5f, 0.75f, 1}, {-1, 0.5f, 0.25f, -0.75f}};
static const float b2[OUT] = {0.5f, -0.5f};

static const struct {
	const char *name;
	const float *data;
	uint32_t ndim;
	int64_t shape[2];
} parameters[] = {{"fc1.weight", &w1[0][0], 2, {HIDDEN, IN}},
                  {"fc1.bias", b1, 1, {HIDDEN}},
                  {"fc2.weight", &w2[0][0], 2, {OUT, HIDDEN}},
                  {"fc2.bias", b2, 1, {OUT}}};

/* Nodes first … end-1 of the plan, with those parameters that they read. */
static clv_status make_program(const clv_plan *plan, uint32_t first, uint32_t end, clv_program **out)
{
	clv_program_options options = CLV_PROGRAM_OPTIONS_INIT;
	options.first = first;
	options.end = end;
	clv_status status = clv_program_create(plan, &options, out);
	for (size_t i = 0; status == CLV_OK && i < sizeof parameters / sizeof *parameters; i++) {
		clv_tensor *t = NULL;
		status = clv_tensor_from_data(parameters[i].data, "f32", parameters[i].ndim, parameters[i].shape, &t);
		if (status == CLV_OK)
			status = clv_program_bind(*out, parameters[i].name, t); /* the program keeps a reference */
		if (status == CLV_E_NOT_FOUND)
			status = CLV_OK; /* the other part reads it */
		clv_tensor_free(t);
	}
	return status;
}

static float by_hand(uint32_t row, uint32_t column)
{
	float sum = b2[column];
	for (uint32_t h = 0; h < HIDDEN; h++) {
		float hidden = b1[h];
		for (uint32_t i = 0; i < IN; i++)
			hidden += x[row][i] * w1[h][i];
		sum += w2[column][h] * (hidden > 0 ? hidden : 0);
	}
	return sum;
}

int main(void)
{
	clv_plan *plan = NULL;
	clv_frontiers *frontiers = NULL;
	clv_frontier cut = {.size = sizeof cut};
	clv_program *whole = NULL, *prefix = NULL, *suffix = NULL;
	clv_tensor *in = NULL, *y = NULL, *boundary = NULL, *z = NULL;
	const int64_t shape[] = {BATCH, IN};
	uint32_t at;
	int wrong = 0;

	if (clv_plan_parse(text, strlen(text), &plan) || clv_tensor_from_data(x, "f32", 2, shape, &in) ||
	    make_program(plan, 0, 0, &whole) ||
	    clv_program_run(whole, (const clv_tensor *const[]){in}, 1, &y, 1) || /* all of it */
	    clv_frontiers_create(plan, NULL, &frontiers) || clv_frontiers_choose(frontiers, "50%", NULL, &at) ||
	    clv_frontiers_get(frontiers, at, &cut) || /* where to cut */
	    make_program(plan, 0, cut.position + 1, &prefix) || make_program(plan, cut.position + 1, 0, &suffix) ||
	    clv_program_run(prefix, (const clv_tensor *const[]){in}, 1, &boundary, 1) ||
	    clv_program_run(suffix, (const clv_tensor *const[]){boundary}, 1, &z, 1)) {
		fprintf(stderr, "%s\n", clv_last_error());
		return 1;
	}
	const float *got = clv_tensor_data(y);
	for (uint32_t i = 0; i < BATCH * OUT; i++) {
		float want = by_hand(i / OUT, i % OUT);
		printf("y[%u][%u] = %9.6f, by hand %9.6f\n", i / OUT, i % OUT, (double)got[i], (double)want);
		wrong |= !(got[i] - want < 1e-5f && want - got[i] < 1e-5f);
	}
	wrong |= memcmp(got, clv_tensor_data(z), sizeof(float[BATCH][OUT])) != 0;
	printf("cut after %s: %lld bytes cross; %s\n", cut.name, (long long)cut.boundary_bytes,
	       wrong ? "something is wrong" : "both parts together give the same bits");

	for (clv_tensor **t = (clv_tensor *[]){in, y, boundary, z, NULL}; *t; t++)
		clv_tensor_free(*t);
	for (clv_program **g = (clv_program *[]){whole, prefix, suffix, NULL}; *g; g++)
		clv_program_free(*g);
	clv_frontiers_free(frontiers);
	clv_plan_free(plan);
	return wrong;
}
