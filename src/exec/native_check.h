/* Compares the native engine with the tape. */
#pragma once

#include "exec/native_part.h"

/* Runs a program on its tape, and natively by `x`, whose outputs are left in r->outputs. Where an output is further from the tape's
   than `fast` allows: CLV_E_VERIFY, which names the first node that gives other numbers on the same inputs. */
clv_status native_check(const engine *e, native_part *x, const clv_program *g, const run_spec *r);
/* That error, after outputs that were found to differ by so much. */
clv_status native_blame(const engine *e, const clv_program *g, const run_spec *r, uint32_t output, double error,
                        double allowed);
/* Whether `got` is near enough to what the tape gave; the first output that is not, else NONE. */
clv_status native_compare(br_tensor *const *got, br_tensor *const *want, uint32_t n, uint32_t *output, double *error,
                          double *allowed);
