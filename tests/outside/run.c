/* A program outside of Cleave that runs a plan, whole and in two parts. Written in what C11 and C++17 share. */
#define CLV_EXPERIMENTAL
#include <cleave.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char text[] = "cleave-plan 1\n"
						   "model \"Outside\"\n"
						   "input %0 f32[2,3] name=\"x\"\n"
						   "param @w f32[2,3]\n"
						   "%1 = aten::linear(%0, @w, none) -> f32[2,2]\n"
						   "%2 = aten::relu(%1) -> f32[2,2]\n"
						   "output %2\n";

static void must(clv_status status)
{
	if (status == CLV_OK)
		return;
	fprintf(stderr, "%s: %s\n", clv_status_name(status), clv_last_error());
	exit(1);
}

static clv_tensor *matrix(const float *data, int64_t rows, int64_t columns)
{
	clv_tensor *t = NULL;
	int64_t shape[2];
	shape[0] = rows;
	shape[1] = columns;
	must(clv_tensor_from_data(data, "f32", 2, shape, &t));
	return t;
}

/* Runs nodes first … end-1, binds `w` if they read it, and releases the input. */
static clv_tensor *run(const clv_plan *plan, uint32_t first, uint32_t end, const clv_tensor *w, clv_tensor *x)
{
	clv_program_options options = CLV_PROGRAM_OPTIONS_INIT;
	clv_program *program = NULL;
	clv_tensor *y = NULL;
	const clv_tensor *inputs[1];
	options.first = first;
	options.end = end;
	must(clv_program_create(plan, &options, &program));
	if (w)
		must(clv_program_bind(program, "w", w));
	inputs[0] = x;
	must(clv_program_run(program, inputs, 1, &y, 1));
	clv_program_free(program);
	clv_tensor_free(x);
	return y;
}

static void print(const char *what, clv_tensor *t)
{
	const float *data = (const float *)clv_tensor_data(t);
	printf("%s: %s", what, clv_tensor_dtype(t));
	for (int i = 0; i < 4; i++)
		printf(" %g", (double)data[i]);
	printf("\n");
	clv_tensor_free(t);
}

int main(void)
{
	const float x[] = {1, 2, 3, -4, 5, -6}, weight[] = {1, 0, -1, 2, 1, 0};
	clv_plan *plan = NULL;
	clv_tensor *w = matrix(weight, 2, 3);
	must(clv_plan_parse(text, strlen(text), &plan));
	print("whole", run(plan, 0, 0, w, matrix(x, 2, 3)));
	print("parts", run(plan, 1, 0, NULL, run(plan, 0, 1, w, matrix(x, 2, 3))));
	clv_tensor_free(w);
	clv_plan_free(plan);
	return 0;
}
