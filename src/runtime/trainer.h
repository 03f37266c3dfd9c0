/* Trainers, for the public functions: made and stepped by libcleave's src/exec/trainer.c alone, since only libtorch has
 * gradients. Arguments are checked before they come here: pointers that are needed are there, ports exist. */
#pragma once

#include "file/artifact.h"

typedef struct trainer_fns {
	clv_status (*create)(const artifact *a, const clv_trainer_options *o, clv_trainer **out);
	void (*release)(clv_trainer *t);
	void (*cancel)(clv_trainer *t);
	/* What runs the suffix, and the loss on its outputs and the targets. Borrowed. */
	const clv_runtime *(*suffix)(const clv_trainer *t);
	const clv_runtime *(*loss)(const clv_trainer *t);
	clv_status (*step)(clv_trainer *t, const clv_boundary *b, const clv_tensor *const *targets, uint32_t n, bool apply,
	                   clv_tensor **loss, clv_boundary **gradients);
	clv_status (*apply)(clv_trainer *t);
	clv_status (*apply_tied)(clv_trainer *t, const char *const *names, const clv_tensor *const *gradients, uint32_t n);
	uint64_t (*steps)(const clv_trainer *t);
	clv_status (*state)(const clv_trainer *t, void **out, size_t *size);
	clv_status (*restore)(clv_trainer *t, const void *data, size_t size);
	clv_status (*weights)(const clv_trainer *t, const artifact *suffix, const char *path);
} trainer_fns;

const clv_runtime *trainer_suffix(const clv_trainer *t); /* borrowed; it reads boundaries */
bool trainer_draws(const clv_trainer *t);                /* some plan of suffix or loss draws random numbers */
