/* Batches across clients: see batch.c. */
#ifndef SERVE_BATCH_H
#define SERVE_BATCH_H

#include "serve/serve.h"

clv_status batch_prepare(server *s, served *m); /* fills m->batching; CLV_E_NOMEM */
void batch_free(batching *b);
uint32_t batch_size_above(const batching *b, uint32_t size); /* the next larger one that some shape has; 0: none */
uint32_t batch_largest(const batching *b);                   /* rows of any run; 0: none */
void batch_place(exchange *x);                               /* of a request that was read: x->point and x->rows */
/* How many of n requests that wait, from the first on, are best run together. */
uint32_t batch_choose(const batch_point *p, const int64_t *rows, uint32_t n);
/* How long it pays to wait for more rows where `have` are there and `rate` more come per nanosecond: by the measured times, what
   the run of a larger batch saves against two runs. 0: not at all. */
int64_t batch_patience(const batch_point *p, int64_t have, double rate);
int64_t batch_time(const batch_point *p, int64_t rows); /* of a run, in nanoseconds */
uint32_t batch_most(const batch_point *p);              /* rows of the largest */
/* Runs them as one; afterwards each has its own results. On failure none has any. */
clv_status batch_run(exchange *const *all, uint32_t n);

#endif
