/* Tensors of the core as torch's, for tests of what is below the runtime. */
#ifndef TESTS_TORCH_H
#define TESTS_TORCH_H

#include "support.h"

#include "bridge/bridge.h"

static inline br_tensor *torch_of(const clv_tensor *t) /* borrowed */
{
	br_tensor *x = NULL;
	OK(br_of(t, &x));
	return x;
}

static inline clv_tensor *core_of(br_tensor *t) /* takes the reference */
{
	clv_tensor *x = NULL;
	OK(br_give(t, &x));
	return x;
}

#endif
