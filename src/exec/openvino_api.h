/* OpenVINO's C library, opened when it is first needed: nothing links it. openvino_api.c. */
#pragma once

#include "base/strbuf.h"
#include "plan/plan.h"

/* Its types, as its headers say. Statuses and element types are enums there. */
typedef struct ov_core ov_core;
typedef struct ov_model ov_model;
typedef struct ov_compiled_model ov_compiled_model;
typedef struct ov_infer_request ov_infer_request;
typedef struct ov_tensor ov_tensor;
typedef struct ov_output_const_port ov_output_const_port;

typedef struct ov_version {
	const char *number; /* "2026.4.0-22959-…" */
	const char *description;
} ov_version;

typedef struct ov_shape {
	int64_t rank;
	int64_t *dims;
} ov_shape;

/* result, name, arguments */
#define OV_LIST(X)                                                                                                     \
	X(int, ov_get_openvino_version, (ov_version *))                                                                    \
	X(void, ov_version_free, (ov_version *))                                                                           \
	X(const char *, ov_get_last_err_msg, (void))                                                                       \
	X(void, ov_free, (const char *))                                                                                   \
	X(int, ov_core_create, (ov_core **))                                                                               \
	X(void, ov_core_free, (ov_core *))                                                                                 \
	X(int, ov_core_read_model_from_memory_buffer,                                                                      \
	  (const ov_core *, const char *xml, size_t n, const ov_tensor *, ov_model **))                                    \
	X(int, ov_core_compile_model,                                                                                      \
	  (const ov_core *, const ov_model *, const char *device, size_t nargs, ov_compiled_model **, ...))                \
	X(void, ov_model_free, (ov_model *))                                                                               \
	X(int, ov_model_const_input_by_index, (const ov_model *, size_t, ov_output_const_port **))                         \
	X(int, ov_port_get_element_type, (const ov_output_const_port *, int *))                                            \
	X(void, ov_output_const_port_free, (ov_output_const_port *))                                                       \
	X(int, ov_compiled_model_inputs_size, (const ov_compiled_model *, size_t *))                                       \
	X(int, ov_compiled_model_outputs_size, (const ov_compiled_model *, size_t *))                                      \
	X(int, ov_compiled_model_create_infer_request, (const ov_compiled_model *, ov_infer_request **))                   \
	X(void, ov_compiled_model_free, (ov_compiled_model *))                                                             \
	X(int, ov_infer_request_set_input_tensor_by_index, (ov_infer_request *, size_t, const ov_tensor *))                \
	X(int, ov_infer_request_set_output_tensor_by_index, (ov_infer_request *, size_t, const ov_tensor *))               \
	X(int, ov_infer_request_get_output_tensor_by_index, (const ov_infer_request *, size_t, ov_tensor **))              \
	X(int, ov_infer_request_start_async, (ov_infer_request *))                                                         \
	X(int, ov_infer_request_wait, (ov_infer_request *))                                                                \
	X(void, ov_infer_request_free, (ov_infer_request *))                                                               \
	X(int, ov_tensor_create, (int type, ov_shape, ov_tensor **))                                                       \
	X(int, ov_tensor_create_from_host_ptr, (int type, ov_shape, void *, ov_tensor **))                                 \
	X(int, ov_tensor_get_shape, (const ov_tensor *, ov_shape *))                                                       \
	X(int, ov_tensor_get_size, (const ov_tensor *, size_t *))                                                          \
	X(int, ov_tensor_get_element_type, (const ov_tensor *, int *))                                                     \
	X(int, ov_tensor_data, (const ov_tensor *, void **))                                                               \
	X(void, ov_tensor_free, (ov_tensor *))                                                                             \
	X(int, ov_shape_free, (ov_shape *))

typedef struct ov_api {
#define X(result, name, args) result(*name) args;
	OV_LIST(X)
#undef X
	ov_core *core;       /* one for the process */
	int types[DT_COUNT]; /* its number of each dtype; OV_NO_TYPE: it has none */
	char version[64];
} ov_api;

enum { OV_NO_TYPE = -1 };

/* Opened once, and kept until the process ends: its threads have no good end before. CLV_E_NOT_FOUND says how to get it. */
clv_status openvino_api(const ov_api **out);
/* Where Python has the package openvino; NULL: nowhere. Before the first use of it. */
clv_status openvino_set_folder(const char *folder);

/* Its last message as ours, when a call of it failed; "what" of ours comes first. */
clv_status openvino_fail(const ov_api *ov, const char *what);
#define OV_TRY(ov, what, call)                                                                                         \
	do {                                                                                                               \
		if ((call) != 0)                                                                                               \
			return openvino_fail((ov), (what));                                                                        \
	} while (0)
