/* gRPC over HTTP/2: messages in frames, and the services inference.GRPCInferenceService and grpc.health.v1.Health. */
#ifndef SERVE_GRPC_H
#define SERVE_GRPC_H

#include "serve/serve.h"

bool grpc_is(const http_head *h);         /* the request is one of gRPC */
grpc_code grpc_code_of(unsigned status);  /* of an HTTP status */
const char *grpc_message_of(exchange *x); /* of its error, percent-encoded; in the arena */
void grpc_begin(exchange *x);             /* its fields are there */
void grpc_route(exchange *x);             /* all of the request is there */

/* A call with messages in both directions: each is answered in turn. */
clv_status grpc_stream_data(exchange *x, const uint8_t *at, size_t n);
void grpc_stream_more(exchange *x);
void grpc_stream_answer(exchange *y); /* the exchange of a message has its answer; frees it */
bool grpc_watch(exchange *x);         /* of a call that watches: says what is new; false: nothing */
void grpc_stream_end(exchange *x);    /* nobody listens any more */

/* oip_grpc.c */
bool grpc_method_streams(const char *path);
void grpc_call(exchange *x);                                     /* x->message, to the method of x->head.path */
uint32_t grpc_health(server *s, const char *service);            /* as grpc.health.v1 counts them */
clv_status grpc_read(exchange *x);                               /* a ModelInferRequest into x->call */
clv_status grpc_write(exchange *x);                              /* the results as an answer */
clv_status grpc_write_stream(const exchange *y, piece_list *to); /* an answer as one message of a stream */
/* Of a body that starts so: the first raw tensor is aligned behind so many bytes. */
size_t grpc_body_lead(const exchange *x, const uint8_t *at, size_t n);
void grpc_put_frame(strbuf *b, size_t n);
clv_status grpc_deflate(exchange *x); /* the message of an answer, where the client takes it */

#endif
