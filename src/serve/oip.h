/* The Open Inference Protocol, inside: what its REST and gRPC forms share. */
#ifndef SERVE_OIP_H
#define SERVE_OIP_H

#include "file/safetensors.h"
#include "serve/serve.h"

extern const char *const oip_extensions[]; /* NULL at the end */
typedef clv_status (*describe_fn)(exchange *x, const served *m, strbuf *out);
clv_status oip_describe(exchange *x, describe_fn fn, strbuf *out); /* of the model that the request names */
uint32_t served_port_count(const served *m, bool output);
clv_status served_port(const served *m, bool output, uint32_t i, clv_port *out);

/* Whether a request has as many inputs as the model, before there is memory for them. */
clv_status infer_count(const exchange *x, size_t inputs, size_t outputs);
/* One input that a request has: its type and shape, then its bytes. */
clv_status infer_type(infer_input *in, const char *datatype);
clv_status infer_shape(infer_input *in, const int64_t *dims, size_t n);
clv_status infer_bytes(const infer_input *in, size_t *out);
/* A tensor on n bytes at `at`, which are part of the body; copied where they are not aligned. */
clv_status infer_place(exchange *x, infer_input *in, const uint8_t *at, size_t n);
clv_status infer_boundary(exchange *x, const void *at, size_t n); /* into the call, once its header fits the suffix */
void infer_deadline(exchange *x, int64_t microseconds);           /* 0: none */

const char *infer_result_name(const exchange *x, uint32_t i);
uint32_t infer_find_result(const exchange *x, const char *name); /* NONE: there is none */
clv_status infer_to_devices(const served *m, clv_tensor *const *from, clv_tensor **to, uint32_t n); /* new references */
clv_status infer_send(exchange *x, uint32_t i); /* the bytes of a result, from where they are */

#endif
