/* Trainers: a suffix, its loss and its optimizer, over libtorch. trainer.c makes one and runs steps, trainer_update.c is the
 * optimizer's step, trainer_state.c has states as bytes and files of the weights. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "bridge/bridge.h"
#include "file/training.h"
#include "runtime/runtime.h"
#include "runtime/trainer.h"

/* What an optimizer keeps of a parameter, by the names that torch.optim has for it; NULL: it has not been stepped yet. */
enum { KEPT_MOMENTUM = 0, KEPT_FIRST = 0, KEPT_SECOND, KEPT_MOST, KEPT_COUNT };

typedef struct trained {
	const char *name; /* borrowed from the training */
	uint32_t slot;    /* in the state of the suffix */
	const training_group *group;
	bool tied;       /* the prefix trains it too: its gradient comes with clv_trainer_apply_tied() */
	br_tensor *grad; /* not applied yet; owned, never written. NULL: none */
	br_tensor *kept[KEPT_COUNT];
	float steps; /* of Adam, which counts in f32 */
} trained;

/* The operators of the optimizers, bound once. */
typedef struct update_sites update_sites;

struct clv_trainer {
	pthread_mutex_t lock;
	runtime *suffix, *loss;
	training about;
	VEC(trained) params;
	update_sites *sites;
	br_tensor *random; /* state of its generator; NULL: nothing draws */
	uint64_t steps;
	int threads;
	double timeout;         /* of a backward */
	_Atomic uint64_t stops; /* goes up when the step that runs is to end */
	bool owned;             /* it has copies of the weights of the file */
	bool due;               /* tied parameters wait for their step; the next one would be on old weights */
	bool broken;            /* a step of the optimizer ended in the middle: only a state helps */
	digest id;              /* of what its states belong to */
};

typedef struct clv_trainer trainer;

/* The parameter itself. Borrowed. */
clv_status trained_leaf(const trainer *t, const trained *x, br_tensor **out);

/* Before anything changes: until then the weights are those of the file, in its memory. */
clv_status trainer_own(trainer *t);

/* trainer_update.c */
clv_status update_sites_new(update_sites **out);
void update_sites_free(update_sites *s); /* NULL is allowed */
/* One step of a parameter with this gradient, as torch.optim does it for one tensor after the other. Grad mode is off. */
clv_status update_parameter(const update_sites *s, trained *x, br_tensor *leaf, br_tensor *grad);
clv_status update_add(const update_sites *s, br_tensor *a, br_tensor *b, br_tensor **out); /* the sum */
/* The names of what a group's optimizer keeps, NULL where a place is not used. */
const char *const *update_kept_names(const training_group *g);

/* trainer_state.c; with the lock held. */
clv_status trainer_pack(const trainer *t, void **out, size_t *size);
clv_status trainer_unpack(trainer *t, const void *data, size_t size);
clv_status trainer_save(const trainer *t, const artifact *suffix, const char *path);
