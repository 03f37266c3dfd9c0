/* A file for training that the tests build: the second half of the sample, with a squared error as its loss. */
#ifndef TESTS_TRAINERS_H
#define TESTS_TRAINERS_H

#include "artifacts.h"

#include "file/training.h"

static const char squared_error[] = "cleave-plan 1\n"
									"model \"loss\" training=no grad=yes\n"
									"symbol B 1..64\n"
									"scope \"\" \"loss\"\n"
									"input %0 f32[B,4] grad name=\"output\"\n"
									"input %1 f32[B,4] name=\"targets\"\n"
									"%2 = aten::mse_loss(%0, %1, 1) -> f32[] grad in \"\"\n"
									"output %2\n";

static const char sgd_text[] =
	"{\"groups\":[{\"kind\":\"sgd\",\"lr\":0.5,\"momentum\":0.9,\"dampening\":0,\"nesterov\":false,\"weight_decay\":0,"
	"\"maximize\":false,\"parameters\":[\"a.weight\"]}],\"tied\":[],\"seed\":\"7\"}";

static inline image loss_image(const char *text)
{
	artifact *a = new_artifact(text);
	for (int64_t i = 1; i <= 4; i *= 2)
		OK(vec_push(&a->plans.at[0].points, i));
	return written(a);
}

/* The suffix of the sample, which reads a.weight, b.scale and a constant. */
static inline artifact *suffix_sample(void)
{
	artifact *a = sample();
	OK(artifact_text(a, "split", &a->split_id));
	artifact *suffix = taken_from(a, "suffix", &(artifact_range){2, 5, 2});
	artifact_free(a);
	return suffix;
}

static inline artifact *training_sample(const char *text, image loss)
{
	artifact *a = suffix_sample();
	OK(artifact_add_training(a, text, loss.at, loss.n));
	return a;
}

/* The file, as bytes. */
static inline image training_image(void)
{
	image loss = loss_image(squared_error);
	image i = written(training_sample(sgd_text, loss));
	image_free(&loss);
	return i;
}

#endif
