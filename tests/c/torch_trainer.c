/* Trainers: steps compared with sums made here, states, failures, several at once. That the bits are those of torch.optim is
 * tested in Python (test_trainer.py). */
#include "torch.h"
#include "trainers.h"

#include <math.h>
#include <pthread.h>

enum { ROWS = 2, WIDTH = 4 };

static const clv_trainer_options trusted = {.size = sizeof trusted, .sandbox = CLV_SANDBOX_OFF}; /* no key for seals */

static float crossing[ROWS * WIDTH] = {1, 0, 2, 0, 0, 0.5f, 0, 1}, wanted[ROWS * WIDTH] = {1, 2, 3, 4, 4, 3, 2, 1};

static image file; /* stays in use as long as there are trainers */

static clv_trainer *new_trainer(void)
{
	artifact *a = opened(file);
	clv_trainer *t = NULL;
	if (clv_trainer_create(a, &trusted, &t) != CLV_OK)
		fail_msg("%s", status_message());
	artifact_free(a);
	return t;
}

static clv_tensor *tensor(const float *data, int64_t rows)
{
	clv_tensor *t = NULL;
	OK(clv_tensor_from_data(data, "f32", 2, (int64_t[]){rows, WIDTH}, &t));
	return t;
}

/* What a training prefix would send. */
static clv_boundary *boundary_of(const char *signature, int64_t rows, bool trains)
{
	static const int64_t strides[] = {WIDTH, 1};
	int64_t sizes[] = {rows, WIDTH};
	payload *p;
	st_image image;
	clv_boundary *b = NULL;
	OK(payload_new(PAYLOAD_BOUNDARY, &p));
	p->split_id = "split";
	p->graph_signature = signature;
	p->has_batch_size = true;
	p->batch_size = rows;
	p->supports_prefix_backward = trains;
	OK(vec_push(&p->sizes, ((payload_number){"B", rows})));
	OK(vec_push(&p->requires_grad, ((payload_number){"%2", 1})));
	OK(vec_push(&p->values, ((tree){.kind = TREE_NONE})));
	payload_tensor t = tensor_on("%2", DT_F32, crossing, 0, 2, sizes, strides);
	t.boundary = true;
	OK(add(p, t));
	OK(payload_image(p, &image));
	uint8_t *bytes = malloc(image.total);
	st_copy(&image, (char *)bytes);
	OK(clv_boundary_unpack(bytes, image.total, &b));
	free(bytes);
	st_image_free(&image);
	payload_free(p);
	return b;
}

/* Loss, and gradients of the weight and of what crosses, by hand: y = scale * x W^T + c, mean of squares. */
static double by_hand(const float *w, double *dw, double *dx)
{
	double loss = 0, scale = weights[32];
	memset(dw, 0, WIDTH * WIDTH * sizeof *dw);
	memset(dx, 0, ROWS * WIDTH * sizeof *dx);
	for (int r = 0; r < ROWS; r++)
		for (int o = 0; o < WIDTH; o++) {
			double y = weights[48 + o];
			for (int i = 0; i < WIDTH; i++)
				y += scale * crossing[r * WIDTH + i] * w[o * WIDTH + i];
			double off = y - wanted[r * WIDTH + o], d = 2 * off / (ROWS * WIDTH) * scale;
			loss += off * off / (ROWS * WIDTH);
			for (int i = 0; i < WIDTH; i++) {
				dw[o * WIDTH + i] += d * crossing[r * WIDTH + i];
				dx[r * WIDTH + i] += d * w[o * WIDTH + i];
			}
		}
	return loss;
}

static bool close_to(double a, double b)
{
	return fabs(a - b) <= 1e-3 * (1 + fabs(b));
}

typedef struct given {
	clv_tensor *loss;
	clv_boundary *gradients;
} given;

static void given_free(given *g)
{
	clv_tensor_free(g->loss);
	clv_boundary_free(g->gradients);
}

static clv_status step(clv_trainer *t, bool apply, given *out)
{
	clv_boundary *b = boundary_of("sig-0", ROWS, true);
	clv_tensor *y = tensor(wanted, ROWS);
	const clv_tensor *const targets[] = {y};
	*out = (given){0};
	clv_status st = (apply ? clv_trainer_step : clv_trainer_accumulate)(t, b, targets, 1, &out->loss, &out->gradients);
	clv_boundary_free(b);
	clv_tensor_free(y);
	return st;
}

static void step_ok(clv_trainer *t, bool apply)
{
	given g;
	if (step(t, apply, &g) != CLV_OK)
		fail_msg("%s", status_message());
	given_free(&g);
}

static image state_of(const clv_trainer *t)
{
	void *data;
	size_t n;
	OK(clv_trainer_state(t, &data, &n));
	image i = image_of(data, n);
	clv_free(data);
	return i;
}

/* a.weight, from the state. */
static void read_weight(const clv_trainer *t, float *out)
{
	image i = state_of(t);
	clv_boundary *b;
	OK(clv_boundary_unpack(i.at, i.n, &b));
	for (uint32_t k = 0; k < clv_boundary_count(b); k++)
		if (strcmp(clv_boundary_label(b, k), "model.a.weight") == 0)
			OK(clv_tensor_copy_to(clv_boundary_tensor(b, k), out, WIDTH * WIDTH * sizeof *out));
	clv_boundary_free(b);
	image_free(&i);
}

static void a_step_gives_loss_and_gradients_and_moves_the_weight(void **state)
{
	(void)state;
	double dw[WIDTH * WIDTH], dx[ROWS * WIDTH], moved[WIDTH * WIDTH] = {0};
	float w[WIDTH * WIDTH], now[WIDTH * WIDTH], *loss, *grad;
	clv_trainer *t = new_trainer();
	assert_int_equal(clv_trainer_input_count(t), 1);
	assert_int_equal(clv_trainer_target_count(t), 1);
	memcpy(w, weights, sizeof w);
	for (int k = 1; k <= 3; k++) {
		given g;
		double want = by_hand(w, dw, dx);
		OK(step(t, true, &g));
		loss = (float *)clv_tensor_data(g.loss);
		assert_true(close_to(*loss, want));
		assert_int_equal(clv_boundary_count(g.gradients), 1);
		assert_string_equal(clv_boundary_label(g.gradients, 0), "%2");
		grad = (float *)clv_tensor_data(clv_boundary_tensor(g.gradients, 0));
		for (int i = 0; i < ROWS * WIDTH; i++)
			assert_true(close_to(grad[i], dx[i]));
		given_free(&g);
		read_weight(t, now);
		for (int i = 0; i < WIDTH * WIDTH; i++) {
			moved[i] = 0.9 * moved[i] + dw[i];
			assert_true(close_to(now[i], w[i] - 0.5 * moved[i]));
		}
		memcpy(w, now, sizeof w);
		assert_int_equal(clv_trainer_steps(t), k);
	}
	clv_trainer_free(t);
}

static void accumulated_gradients_wait_for_apply(void **state)
{
	(void)state;
	double dw[WIDTH * WIDTH], dx[ROWS * WIDTH];
	float w[WIDTH * WIDTH], now[WIDTH * WIDTH];
	clv_trainer *t = new_trainer();
	memcpy(w, weights, sizeof w);
	by_hand(w, dw, dx);
	step_ok(t, false);
	step_ok(t, false);
	read_weight(t, now);
	assert_memory_equal(now, w, sizeof w);
	assert_int_equal(clv_trainer_steps(t), 0);
	OK(clv_trainer_apply(t));
	read_weight(t, now);
	for (int i = 0; i < WIDTH * WIDTH; i++)
		assert_true(close_to(now[i], w[i] - 0.5 * 2 * dw[i]));
	OK(clv_trainer_apply(t)); /* nothing is left to step */
	memcpy(w, now, sizeof w);
	read_weight(t, now);
	assert_memory_equal(now, w, sizeof w);
	assert_int_equal(clv_trainer_steps(t), 2);
	clv_trainer_free(t);
}

static void a_state_goes_on_in_another_trainer(void **state)
{
	(void)state;
	clv_trainer *one = new_trainer(), *two = new_trainer();
	step_ok(one, true);
	step_ok(one, false);
	image i = state_of(one);
	OK(clv_trainer_restore(two, i.at, i.n));
	image j = state_of(two);
	assert_true(same_image(i, j));
	image_free(&j);
	step_ok(one, true);
	step_ok(two, true);
	image_free(&i);
	i = state_of(one);
	j = state_of(two);
	assert_true(same_image(i, j));
	image_free(&i);
	image_free(&j);
	clv_trainer_free(one);
	clv_trainer_free(two);
}

/* Refused, or nothing that counts was damaged: the name of an entry that readers may do without. */
static void a_damaged_state_is_refused_and_changes_nothing(void **state)
{
	(void)state;
	clv_trainer *one = new_trainer(), *two = new_trainer();
	step_ok(one, true);
	image before = state_of(two), i = state_of(one);
	for (size_t n = 0; n < i.n; n += 13)
		assert_int_not_equal(clv_trainer_restore(two, i.at, n), CLV_OK);
	for (size_t at = 0; at < i.n; at += 5) {
		i.at[at] ^= 1;
		clv_status st = clv_trainer_restore(two, i.at, i.n);
		i.at[at] ^= 1;
		image after = state_of(two);
		if (!same_image(st == CLV_OK ? i : before, after))
			fail_msg("byte %zu of %zu: %s", at, i.n, clv_status_name(st));
		image_free(&after);
		if (st == CLV_OK)
			OK(clv_trainer_restore(two, before.at, before.n));
	}
	FAILS(clv_trainer_restore(two, "", 0), CLV_E_PARSE, "");
	image_free(&before);
	image_free(&i);
	clv_trainer_free(one);
	clv_trainer_free(two);
}

static void what_does_not_fit_is_refused_and_changes_nothing(void **state)
{
	(void)state;
	clv_trainer *t = new_trainer();
	image before = state_of(t);
	clv_tensor *y = tensor(wanted, ROWS), *one = tensor(wanted, 1);
	clv_boundary *good = boundary_of("sig-0", ROWS, true), *other = boundary_of("sig-9", ROWS, true),
				 *inference = boundary_of("sig-0", ROWS, false), *half = boundary_of("sig-0", 1, true);
	const clv_tensor *const fits[] = {y}, *const less[] = {one}, *const none[] = {NULL};
	FAILS(clv_trainer_step(t, inference, fits, 1, NULL, NULL), CLV_E_INPUT, "made for inference");
	FAILS(clv_trainer_step(t, other, fits, 1, NULL, NULL), CLV_E_INPUT, "");
	FAILS(clv_trainer_step(t, good, less, 1, NULL, NULL), CLV_E_INPUT, "the loss");
	FAILS(clv_trainer_step(t, good, fits, 0, NULL, NULL), CLV_E_INPUT, "takes 1 targets, the call has 0");
	FAILS(clv_trainer_step(t, good, none, 1, NULL, NULL), CLV_E_INVALID, "target 0 is NULL");
	FAILS(clv_trainer_step(t, NULL, fits, 1, NULL, NULL), CLV_E_INVALID, "NULL");
	FAILS(clv_trainer_apply_tied(t, (const char *const[]){"a.weight"}, fits, 1), CLV_E_NOT_FOUND, "both halves train");
	image after = state_of(t);
	assert_true(same_image(before, after));
	OK(clv_trainer_step(t, half, less, 1, NULL, NULL));
	OK(clv_trainer_step(t, good, fits, 1, NULL, NULL));
	image_free(&before);
	image_free(&after);
	clv_boundary_free(good);
	clv_boundary_free(other);
	clv_boundary_free(inference);
	clv_boundary_free(half);
	clv_tensor_free(y);
	clv_tensor_free(one);
	clv_trainer_free(t);
}

/* Memory runs out at every place of a step in turn: what was refused before the optimizer changed nothing, and after a state
   was restored the trainer goes on. */
static void a_step_without_memory_fails_and_can_be_repeated(void **state)
{
	(void)state;
	clv_trainer *t = new_trainer();
	step_ok(t, true);
	image before = state_of(t);
	for (uint64_t n = 1; n < 4000; n++) {
		given g = {0};
		clv_boundary *b = boundary_of("sig-0", ROWS, true);
		clv_tensor *y = tensor(wanted, ROWS);
		const clv_tensor *const targets[] = {y};
		mem_fail_after(n);
		clv_status st = clv_trainer_step(t, b, targets, 1, &g.loss, &g.gradients);
		mem_fail_after(0);
		clv_boundary_free(b);
		clv_tensor_free(y);
		given_free(&g);
		if (st == CLV_OK)
			break;
		void *data = NULL;
		size_t size = 0;
		bool whole = clv_trainer_state(t, &data, &size) == CLV_OK;
		if (whole && (size != before.n || memcmp(data, before.at, size) != 0))
			fail_msg("after %lu allocations", (unsigned long)n);
		clv_free(data);
		OK(clv_trainer_restore(t, before.at, before.n));
	}
	image_free(&before);
	clv_trainer_free(t);
}

static void every_allocation_may_fail_while_trainers_are_made_and_restored(void **state)
{
	(void)state;
	artifact *a = opened(file);
	clv_trainer *t = NULL, *one = new_trainer();
	clv_status st = CLV_E_NOMEM;
	step_ok(one, true);
	image i = state_of(one), before;
	for (uint64_t n = 1; st != CLV_OK && n < 20000; n++) {
		mem_fail_after(n);
		st = clv_trainer_create(a, &trusted, &t);
		mem_fail_after(0);
	}
	OK(st);
	before = state_of(t);
	st = CLV_E_NOMEM;
	for (uint64_t n = 1; st != CLV_OK && n < 4000; n++) {
		mem_fail_after(n);
		st = clv_trainer_restore(t, i.at, i.n);
		mem_fail_after(0);
		image now = state_of(t);
		assert_true(same_image(now, st == CLV_OK ? i : before));
		image_free(&now);
	}
	OK(st);
	image_free(&i);
	image_free(&before);
	artifact_free(a);
	clv_trainer_free(one);
	clv_trainer_free(t);
}

static void *train_alone(void *out)
{
	clv_trainer *t = new_trainer();
	for (int i = 0; i < 20; i++)
		step_ok(t, i % 2);
	*(image *)out = state_of(t);
	clv_trainer_free(t);
	return NULL;
}

static void trainers_in_two_threads_do_not_see_each_other(void **state)
{
	(void)state;
	image states[3];
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, train_alone, &states[i]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	train_alone(&states[2]);
	assert_true(same_image(states[0], states[2]));
	assert_true(same_image(states[1], states[2]));
	for (int i = 0; i < 3; i++)
		image_free(&states[i]);
}

static void trained_weights_go_into_a_file_for_inference(void **state)
{
	(void)state;
	char folder[] = "/tmp/cleave-trainer-XXXXXX", path[64];
	float w[WIDTH * WIDTH];
	clv_trainer *t = new_trainer();
	image i = written(suffix_sample());
	artifact *suffix = opened(i), *found;
	step_ok(t, true);
	read_weight(t, w);
	snprintf(path, sizeof path, "%s/trained.clv", new_folder(folder));
	OK(clv_trainer_weights(t, suffix, path));
	OK(clv_artifact_open(path, NULL, &found));
	uint32_t at = payload_find(found->tensors, "a.weight");
	assert_true(at != NONE);
	assert_memory_equal(found->tensors->memories.at[found->tensors->tensors.at[at].memory].data, w, sizeof w);
	assert_int_not_equal(found->weight_version, suffix->weight_version);
	assert_null(clv_artifact_training(found));
	artifact_free(found);
	artifact_free(suffix);
	clv_trainer_free(t);
	image_free(&i);
	assert_int_equal(count_files(folder, true), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_step_gives_loss_and_gradients_and_moves_the_weight),
		cmocka_unit_test(accumulated_gradients_wait_for_apply),
		cmocka_unit_test(a_state_goes_on_in_another_trainer),
		cmocka_unit_test(a_damaged_state_is_refused_and_changes_nothing),
		cmocka_unit_test(what_does_not_fit_is_refused_and_changes_nothing),
		cmocka_unit_test(a_step_without_memory_fails_and_can_be_repeated),
		cmocka_unit_test(every_allocation_may_fail_while_trainers_are_made_and_restored),
		cmocka_unit_test(trainers_in_two_threads_do_not_see_each_other),
		cmocka_unit_test(trained_weights_go_into_a_file_for_inference),
	};
	file = training_image();
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	image_free(&file);
	return failed;
}
