/* Files for training: written, read, and read where somebody crafted them. Nothing is trained here (torch_trainer.c). */
#include "trainers.h"

static void a_file_for_training_says_what_its_writer_said(void **state)
{
	(void)state;
	image i = training_image();
	artifact *a = opened(i), *loss;
	assert_string_equal(clv_artifact_training(a), sgd_text);
	OK(training_loss(a, &loss));
	assert_int_equal(loss->plans.n, 1);
	artifact_free(a); /* the loss keeps the file */
	assert_int_equal(clv_plan_input_count(loss->plans.at[0].p), 2);
	artifact_free(loss);
	image_free(&i);
	i = written(suffix_sample());
	a = opened(i);
	assert_null(clv_artifact_training(a));
	artifact_free(a);
	image_free(&i);
}

static void nothing_but_a_trainer_takes_it(void **state)
{
	(void)state;
	image i = training_image();
	artifact *a = opened(i), *other;
	clv_runtime *r;
	clv_trainer *t;
	clv_trainer_options o = CLV_TRAINER_OPTIONS_INIT;
	FAILS(clv_runtime_create(a, NULL, &r), CLV_E_INVALID, "for training: clv_trainer_create() runs it");
	FAILS(artifact_copy(a, &other), CLV_E_UNSUPPORTED, "nothing else can be made of it");
	FAILS(clv_trainer_create(a, NULL, &t), CLV_E_UNSUPPORTED, "libtorch");
	o.sandbox = CLV_SANDBOX_ON;
	FAILS(clv_trainer_create(a, &o, &t), CLV_E_UNSUPPORTED, "");
	o.sandbox = 9;
	FAILS(clv_trainer_create(a, &o, &t), CLV_E_INVALID, "sandbox is 9");
	FAILS(clv_trainer_create(NULL, NULL, &t), CLV_E_INVALID, "needs an artifact");
	artifact_free(a);
	image_free(&i);
	i = written(suffix_sample());
	a = opened(i);
	FAILS(clv_trainer_create(a, NULL, &t), CLV_E_INVALID, "does not train: clv_runtime_create() runs it");
	artifact_free(a);
	image_free(&i);
}

/* The file with another description of its training; NULL: with none. */
static clv_status try_text(image i, const char *text)
{
	opened_up o = open_up(i);
	if (text)
		json_object_set_new(metadata_of(&o), ARTIFACT_TRAINING_KEY, json_string(text));
	else
		json_object_del(metadata_of(&o), ARTIFACT_TRAINING_KEY);
	image forged = closed_again(&o);
	clv_status st = try_image(forged);
	image_free(&forged);
	return st;
}

static void crafted_descriptions_are_refused(void **state)
{
	static const struct {
		const char *from, *to, *message;
		clv_status status;
	} cases[] = {
		{"\"sgd\"", "\"rprop\"", "no optimizer \"rprop\" here", CLV_E_UNSUPPORTED},
		{"\"sgd\"", "\"adam\"", "\"betas\" is no pair", CLV_E_PARSE},
		{"\"sgd\"", "7", "kind", CLV_E_PARSE},
		{"0.5", "\"0.5\"", "\"lr\" is no finite number", CLV_E_PARSE},
		{"0.5", "1e999", "", CLV_E_PARSE},
		{"\"nesterov\":false", "\"nesterov\":0", "nesterov", CLV_E_PARSE},
		{"\"a.weight\"", "\"a.weight\",\"a.weight\"", "holds \"a.weight\" twice", CLV_E_PARSE},
		{"\"a.weight\"", "\"b.scale\"", "no floating-point tensor that requires grad", CLV_E_PARSE},
		{"\"a.weight\"", "\"nothing\"", "no parameter \"nothing\"", CLV_E_PARSE},
		{"\"a.weight\"", "3", "no name", CLV_E_PARSE},
		{"\"a.weight\"", "", "no optimizer group holds \"a.weight\"", CLV_E_PARSE},
		{"\"tied\":[]", "\"tied\":[\"b.scale\"]", "\"b.scale\" is tied", CLV_E_PARSE},
		{"\"tied\":[]", "\"tied\":{}", "tied", CLV_E_PARSE},
		{"\"7\"", "7", "seed", CLV_E_PARSE},
		{"\"7\"", "\"-7\"", "no number of 64 bits", CLV_E_PARSE},
		{"\"7\"", "\"18446744073709551616\"", "no number of 64 bits", CLV_E_PARSE},
		{"{\"groups\"", "[{\"groups\"", "", CLV_E_PARSE},
	};
	(void)state;
	image i = training_image();
	OK(try_text(i, sgd_text));
	for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
		char text[1024];
		const char *at = strstr(sgd_text, cases[k].from);
		assert_non_null(at);
		snprintf(text, sizeof text, "%.*s%s%s", (int)(at - sgd_text), sgd_text, cases[k].to,
		         at + strlen(cases[k].from));
		FAILS(try_text(i, text), cases[k].status, cases[k].message);
	}
	FAILS(try_text(i, NULL), CLV_E_PARSE, "there is a loss in the file, and no training");
	image_free(&i);
}

static clv_status try_loss(image loss)
{
	artifact *a = training_sample(sgd_text, loss);
	clv_status st = artifact_ready(a);
	artifact_free(a);
	return st;
}

static void a_loss_is_read_as_any_hostile_file(void **state)
{
	static const char two[] = "cleave-plan 1\nmodel \"loss\" training=no grad=yes\nsymbol B 1..64\n"
							  "scope \"\" \"loss\"\ninput %0 f32[B,4] grad\ninput %1 f32[B,4]\n"
							  "%2 = aten::sub.Tensor(%0, %1, 1) -> f32[B,4] grad in \"\"\noutput (%2, %2)\n";
	(void)state;
	image good = loss_image(squared_error), pair = loss_image(two), inner = training_image();
	OK(try_loss(good));
	FAILS(try_loss(pair), CLV_E_PARSE, "something else than one tensor");
	FAILS(try_loss(inner), CLV_E_PARSE, "a file in a file cannot train");
	for (size_t n = 0; n < good.n; n += 7)
		assert_int_not_equal(try_loss((image){good.at, n}), CLV_OK);
	good.at[100] ^= 1;
	FAILS(try_loss(good), CLV_E_PARSE, "the loss");
	image_free(&good);
	image_free(&pair);
	image_free(&inner);
}

static void only_a_suffix_with_its_weights_trains(void **state)
{
	(void)state;
	image loss = loss_image(squared_error);
	artifact *a = sample();
	OK(artifact_add_training(a, sgd_text, loss.at, loss.n));
	FAILS(artifact_ready(a), CLV_E_PARSE, "only a suffix with its weights trains");
	artifact_free(a);
	image_free(&loss);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_for_training_says_what_its_writer_said),
		cmocka_unit_test(nothing_but_a_trainer_takes_it),
		cmocka_unit_test(crafted_descriptions_are_refused),
		cmocka_unit_test(a_loss_is_read_as_any_hostile_file),
		cmocka_unit_test(only_a_suffix_with_its_weights_trains),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
