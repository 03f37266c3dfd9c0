/* What a file that trains has besides its plans: an optimizer, a seed, and its loss, which is an artifact of its own
 * (docs/artifact.md, "Training"). The description is JSON, as its writer gave it; this is the one place that reads it. */
#pragma once

#include "file/artifact.h"

#define ARTIFACT_TRAINING_KEY "cleave.training"
#define PAYLOAD_LOSS "cleave.loss" /* the entry with the loss */

typedef enum optimizer_kind { OPTIMIZER_SGD, OPTIMIZER_ADAM, OPTIMIZER_ADAMW } optimizer_kind;

typedef VEC(const char *) name_list;

/* Parameters that are stepped with the same numbers, which are all finite. */
typedef struct training_group {
	optimizer_kind kind;
	bool maximize, nesterov, amsgrad;
	double lr, weight_decay;
	double momentum, dampening; /* SGD */
	double beta1, beta2, eps;   /* Adam, AdamW */
	name_list names;            /* borrowed from the training */
} training_group;

typedef struct training {
	VEC(training_group) groups;
	name_list tied; /* that the prefix trains too */
	uint64_t seed;
	struct json_t *root;
} training;

/* A description that may be hostile. training_free in any case. */
clv_status training_read(const char *text, training *out);
void training_free(training *x);
bool training_is_tied(const training *x, const char *name);

/* Copies both. artifact_check looks at them. */
clv_status artifact_add_training(artifact *a, const char *text, const void *loss, size_t n);
/* From the file, if it has some. */
clv_status training_find(artifact *a);
/* The loss as an artifact, which keeps `a`. */
clv_status training_loss(const artifact *a, artifact **out);
/* What is said fits the tensors and the plans. */
clv_status training_check(const artifact *a);
