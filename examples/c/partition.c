/* A model cut into four stages from C, with no Python in the process.
 *
 * Six layers as plan text are partitioned for four devices by an estimate of what they take. The plan comes back with its
 * nodes stage by stage; each stage is a program of its own, fed with what the one before it gives, and together they must
 * give the bits of the whole model. */
#define CLV_EXPERIMENTAL
#include <cleave.h>

#include <stdio.h>
#include <string.h>

enum { LAYERS = 6, BATCH = 4, WIDTH = 8, STAGES = 4, MOST = 8 };

static int failed(void)
{
	fprintf(stderr, "%s\n", clv_last_error());
	return 1;
}

/* Linear layers with a ReLU behind each, and a sum over the first and the last: that tensor jumps over stages. */
static void write_plan(char *text, size_t size)
{
	size_t n = (size_t)snprintf(text, size, "cleave-plan 1\nmodel \"Layers\"\nscope \"\" \"Layers\"\n");
	for (int i = 0; i < LAYERS; i++)
		n += (size_t)snprintf(text + n, size - n, "scope fc%d \"Linear\"\n", i);
	n += (size_t)snprintf(text + n, size - n, "input %%0 f32[%d,%d] name=\"x\"\n", BATCH, WIDTH);
	for (int i = 0; i < LAYERS; i++)
		n += (size_t)snprintf(text + n, size - n, "param @fc%d.weight f32[%d,%d]\n", i, WIDTH, WIDTH);
	for (int i = 0; i < LAYERS; i++)
		n += (size_t)snprintf(text + n, size - n,
		                      "%%%d = aten::linear(%%%d, @fc%d.weight, none) -> f32[%d,%d] in fc%d\n"
		                      "%%%d = aten::relu(%%%d) -> f32[%d,%d]\n",
		                      2 * i + 1, 2 * i, i, BATCH, WIDTH, i, 2 * i + 2, 2 * i + 1, BATCH, WIDTH);
	snprintf(text + n, size - n, "%%%d = aten::add.Tensor(%%2, %%%d, 1) -> f32[%d,%d]\noutput %%%d\n", 2 * LAYERS + 1,
	         2 * LAYERS, BATCH, WIDTH, 2 * LAYERS + 1);
}

/* Nodes first … end-1, with those weights that they read. */
static clv_status make_program(const clv_plan *plan, uint32_t first, uint32_t end, clv_program **out)
{
	clv_program_options options = CLV_PROGRAM_OPTIONS_INIT;
	options.first = first;
	options.end = end;
	clv_status status = clv_program_create(plan, &options, out);
	for (int i = 0; status == CLV_OK && i < LAYERS; i++) {
		float weight[WIDTH * WIDTH];
		char name[32];
		const int64_t shape[2] = {WIDTH, WIDTH};
		clv_tensor *t = NULL;
		snprintf(name, sizeof name, "fc%d.weight", i);
		for (int k = 0; k < WIDTH * WIDTH; k++)
			weight[k] = (float)((k * 7 + i * 3) % 11 - 4) / 8;
		status = clv_tensor_from_data(weight, "f32", 2, shape, &t);
		if (status == CLV_OK)
			status = clv_program_bind(*out, name, t);
		if (status == CLV_E_NOT_FOUND)
			status = CLV_OK; /* another stage reads it */
		clv_tensor_free(t);
	}
	return status;
}

/* Runs a program on what is in `at`, and leaves there what it gives. */
static clv_status run_stage(const clv_program *program, clv_tensor **at)
{
	clv_tensor *next[MOST] = {0};
	uint32_t in = clv_program_input_count(program), out = clv_program_output_count(program);
	clv_status status =
		out > MOST ? CLV_E_OVERFLOW : clv_program_run(program, (const clv_tensor *const *)at, in, next, out);
	for (uint32_t i = 0; i < MOST; i++)
		clv_tensor_free(at[i]);
	memcpy(at, next, sizeof next);
	return status;
}

/* The stages one after the other: what one gives is what the next one takes. */
static clv_status run_stages(const clv_partition *parts, const clv_tensor *x, clv_tensor **y)
{
	const uint32_t *ends;
	const clv_plan *plan = clv_partition_plan(parts, &ends);
	clv_tensor *at[MOST] = {0};
	clv_status status = clv_tensor_from_data(clv_tensor_data(x), "f32", 2, (const int64_t[]){BATCH, WIDTH}, &at[0]);
	for (uint32_t s = 0; s < clv_partition_stage_count(parts) && status == CLV_OK; s++) {
		clv_program *program = NULL;
		status = make_program(plan, s ? ends[s - 1] : 0, ends[s], &program);
		if (status == CLV_OK)
			status = run_stage(program, at);
		clv_program_free(program);
	}
	*y = at[0];
	return status;
}

int main(void)
{
	char text[4096], *table;
	float data[BATCH * WIDTH];
	clv_partition_options parts = CLV_PARTITION_OPTIONS_INIT;
	clv_plan_partition_options options = CLV_PLAN_PARTITION_OPTIONS_INIT;
	clv_plan *plan = NULL;
	clv_partition *partition = NULL;
	clv_program *whole = NULL;
	clv_tensor *x = NULL, *y = NULL, *z = NULL;

	write_plan(text, sizeof text);
	for (int i = 0; i < BATCH * WIDTH; i++)
		data[i] = (float)(i % 5) - 2;
	parts.k = STAGES;
	parts.method = "pipedream";
	options.partition = &parts;
	if (clv_plan_parse(text, strlen(text), &plan) || clv_plan_partition(plan, &options, &partition) ||
	    clv_partition_table(partition, &table))
		return failed();
	fputs(table, stdout);
	clv_free(table);

	if (clv_tensor_from_data(data, "f32", 2, (const int64_t[]){BATCH, WIDTH}, &x) || make_program(plan, 0, 0, &whole) ||
	    clv_program_run(whole, (const clv_tensor *const[]){x}, 1, &y, 1) || run_stages(partition, x, &z))
		return failed();
	int wrong = memcmp(clv_tensor_data(y), clv_tensor_data(z), sizeof data) != 0;
	printf("\n%u stages in sequence: %s\n", clv_partition_stage_count(partition),
	       wrong ? "something is wrong" : "the same bits as the whole model");

	clv_tensor_free(x);
	clv_tensor_free(y);
	clv_tensor_free(z);
	clv_program_free(whole);
	clv_partition_free(partition);
	clv_plan_free(plan);
	return wrong;
}
