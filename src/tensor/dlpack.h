/* The part of DLPack (github.com/dmlc/dlpack, as of version 1.1) that tensors cross with: a stable binary interface. */
#pragma once

#include <stdint.h>

/* DLDeviceType */
enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3 };
/* DLDataTypeCode */
enum {
	DL_INT,
	DL_UINT,
	DL_FLOAT,
	DL_BFLOAT = 4,
	DL_COMPLEX,
	DL_BOOL,
	DL_F8E4M3FN = 10,
	DL_F8E4M3FNUZ,
	DL_F8E5M2,
	DL_F8E5M2FNUZ,
	DL_F8E8M0FNU
};

typedef struct DLTensor {
	void *data;
	struct {
		int32_t type, id;
	} device;
	int32_t ndim;
	struct {
		uint8_t code, bits;
		uint16_t lanes;
	} dtype;
	int64_t *shape, *strides; /* in elements; strides NULL: row-major */
	uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
	DLTensor dl_tensor;
	void *manager_ctx;
	void (*deleter)(struct DLManagedTensor *self); /* may be NULL */
} DLManagedTensor;
