/* NumPy's .npy files, versions 1 to 3: one tensor each. What is read is taken as hostile. */
#pragma once

#include "plan/plan.h"

enum { NPY_DIMS_MAX = 64 }; /* as many as NumPy itself has at most */

typedef struct npy {
	dtype dtype;
	bool fortran; /* the first index runs fastest */
	uint32_t ndim;
	int64_t shape[NPY_DIMS_MAX];
	const uint8_t *data; /* into the bytes given */
	size_t nbytes;
} npy;

bool npy_looks_like(const void *data, size_t n);
/* CLV_E_PARSE; CLV_E_UNSUPPORTED for types that tensors do not have. */
clv_status npy_parse(const void *data, size_t n, npy *out);
void npy_copy(const npy *a, void *to); /* a->nbytes, row-major */

/* arrays.c: clv_arrays_load() of bytes, which are borrowed. */
clv_status arrays_parse(const void *data, size_t n, clv_arrays **out);
