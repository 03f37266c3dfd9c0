/* Tensors of payloads and artifacts as tensors of the core. */
#pragma once

#include "file/payload.h"
#include "tensor/tensor.h"

/* An entry of a file as a tensor of its own. CLV_E_PARSE: a bool that is none. */
clv_status entry_tensor(const st_entry *e, clv_tensor **out);
/* Where the data of a tensor is and how it is laid out, for payload_add_tensor: `host` is the tensor, or its copy on the
   CPU; its memory stays in use. All but label and wishes are filled in. */
clv_status tensor_describe(payload *p, const clv_tensor *original, const clv_tensor *host, payload_tensor *out);
/* The bytes of one memory of a payload that was read, which start at its lead. */
clv_status memory_load(const payload *p, uint32_t memory, tensor_memory **out);
/* How tensor i lies on its memory. */
tensor_form stored_form(const payload_tensor *t, bool requires_grad);
/* Tensor i on what memory_load gave. */
clv_status memory_tensor(const payload *p, uint32_t i, tensor_memory *m, bool requires_grad, clv_tensor **out);
