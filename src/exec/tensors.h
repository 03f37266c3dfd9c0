/* Tensors of payloads and artifacts as PyTorch tensors. */
#ifndef EXEC_TENSORS_H
#define EXEC_TENSORS_H

#include "bridge/bridge.h"
#include "file/payload.h"

/* Where the data of a tensor is and how it is laid out, for payload_add_tensor: `host` is the tensor, or its copy on the
   CPU, and stays in use. All but label and wishes are filled in. */
clv_status tensor_describe(payload *p, const br_tensor *original, const br_tensor *host, payload_tensor *out);
/* A new tensor of the bytes of one memory of a payload that was read, which start at its lead. */
clv_status memory_tensor(const payload *p, uint32_t memory, br_tensor **out);
/* Tensor i as a view of its memory's bytes, which start `lead` bytes into them. */
clv_status memory_view(const payload *p, uint32_t i, const br_tensor *bytes, size_t lead, bool requires_grad,
                       br_tensor **out);

#endif
