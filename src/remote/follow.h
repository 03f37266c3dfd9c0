/* Shared by follow.c and follow_ways.c: a model that runs here, on a server, or in part here and in part there. */
#ifndef REMOTE_FOLLOW_H
#define REMOTE_FOLLOW_H

#include <stdatomic.h>

#include "remote/remote.h"

typedef struct follow_cut {
	const char *where; /* "after:relu_3" */
	clv_runtime *prefix;
	clv_remote *there; /* model@where; NULL: not made yet */
	bool answered;     /* the suffix there has run */
} follow_cut;

typedef struct follow_way {
	uint32_t cut; /* NONE: the model is not cut */
	bool remote;
	const char *compress; /* NULL: as it is */
	double error;         /* of the outputs; 0: nothing is lost, NaN: not measured */
	uint64_t calls;
} follow_way;

enum { FOLLOW_HERE, FOLLOW_THERE, FOLLOW_CUTS }; /* the first ways; those with a cut begin at the third */

struct clv_follower {
	clv_follow_options o; /* what it points to is below */
	const char *url;
	clv_remote_options remote;
	clv_runtime_options runtime;
	clv_link_options link_options;
	char *token; /* owned */
	clv_runtime *whole;
	clv_remote *there; /* of the whole model */

	pthread_mutex_t starting; /* the first call; the others wait for it */
	atomic_bool ready;        /* it is over, and what follows is there */
	clv_link *link;           /* over `ways` */
	VEC(follow_cut) cuts;
	VEC(follow_way) ways;

	pthread_mutex_t lock; /* of what follows, and of what changes in cuts and ways */
	double trusted_until; /* the server is known to have these weights; of clock_seconds() */
	char *reason;         /* why the last call there failed; NULL: it did not */
	arena arena;
};

/* follow_ways.c. Which ways there are, and what each takes: from runs on these inputs. Gives `outputs`, those of the whole model. */
clv_status follow_measure(clv_follower *f, const clv_tensor *const *inputs, uint32_t n, clv_tensor **outputs,
                          uint32_t noutputs);
void follow_forget(clv_follower *f); /* what it made */
/* The client that a way needs. Wants the lock. */
clv_status follow_open(clv_follower *f, uint32_t way);

#endif
