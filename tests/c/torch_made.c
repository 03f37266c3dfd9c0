/* Artifacts that were made and never written run like those from a file: reordered, and as nodes of their own. */
#include "artifacts.h"
#include "torch.h"

#include "exec/tape.h"

static clv_tensor *input(void)
{
	float data[8];
	clv_tensor *t = NULL;
	for (int i = 0; i < 8; i++)
		data[i] = (float)i - 3;
	OK(clv_tensor_from_data(data, "f32", 2, (int64_t[]){2, 4}, &t));
	return t;
}

/* Of an artifact with one input and one output; takes the input. */
static clv_tensor *run(const artifact *a, clv_tensor *in)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r = NULL;
	clv_tensor *out = NULL;
	o.unproven = true;
	o.sandbox = CLV_SANDBOX_OFF; /* tests have no key for seals */
	if (clv_runtime_create(a, &o, &r) != CLV_OK ||
	    clv_runtime_run(r, (const clv_tensor *const[]){in}, 1, &out, 1) != CLV_OK)
		fail_msg("%s", status_message());
	clv_runtime_free(r);
	clv_tensor_free(in);
	return out;
}

/* Takes both. */
static void check_same(clv_tensor *a, clv_tensor *b)
{
	assert_memory_equal(clv_tensor_data(a), clv_tensor_data(b), 8 * sizeof(float));
	clv_tensor_free(a);
	clv_tensor_free(b);
}

static void what_was_made_runs_without_a_file(void **state)
{
	(void)state;
	artifact *made = sample(), *order = NULL;
	image i = written(sample());
	artifact *file = opened(i);
	plan *none = NULL;
	clv_runtime *r = NULL;
	FAILS(clv_runtime_create(made, NULL, &r), CLV_E_INVALID, "not ready");
	OK(artifact_ready(made));
	check_same(run(made, input()), run(file, input()));
	OK(artifact_reordered(file, &none, &order));
	OK(artifact_ready(order));
	check_same(run(order, input()), run(file, input()));
	artifact_free(order);
	artifact_free(made);
	artifact_free(file);
	image_free(&i);
}

static void nodes_one_after_another_are_the_whole(void **state)
{
	(void)state;
	artifact *made = sample(), *parts[2] = {NULL, NULL};
	OK(artifact_ready(made));
	OK(artifact_take_nodes(made, 0, 0, 2, &parts[0]));
	OK(artifact_take_nodes(made, 0, 2, 5, &parts[1]));
	OK(artifact_ready(parts[0]));
	OK(artifact_ready(parts[1]));
	check_same(run(parts[1], run(parts[0], input())), run(made, input()));
	artifact_free(parts[0]);
	artifact_free(parts[1]);
	artifact_free(made);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_made_runs_without_a_file),
		cmocka_unit_test(nodes_one_after_another_are_the_whole),
	};
	return cmocka_run_group_tests_name("made", tests, NULL, NULL);
}
