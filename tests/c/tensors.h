/* Tensors for files, as the tests make them: on memory of the test. */
#ifndef TESTS_TENSORS_H
#define TESTS_TENSORS_H

#include "support.h"

#include "file/payload.h"

static inline payload_tensor tensor_on(const char *label, dtype d, const void *storage, size_t offset, uint32_t ndim,
                                       const int64_t *sizes, const int64_t *strides)
{
	static const double scale = 0.1, zero = 3;
	static const quantiser one = {.scheme = QUANT_TENSOR, .n = 1, .scales = &scale, .zero_points = &zero};
	return (payload_tensor){.label = label,
	                        .dtype = d,
	                        .quantiser = dtype_quantised(d) ? &one : NULL,
	                        .device = "cpu",
	                        .ndim = ndim,
	                        .sizes = sizes,
	                        .strides = strides,
	                        .storage = storage,
	                        .data = (const uint8_t *)storage + offset};
}

static inline clv_status add(payload *p, payload_tensor t)
{
	uint32_t number;
	return payload_add_tensor(p, &t, &number);
}

#endif
