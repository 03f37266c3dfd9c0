/* A plan run by the native engine, as one of the ways that an optimizer chooses from: all of it, or segments of nodes that follow
 * one another, with the rest on the tape after its passes. Only f32 on the CPU. */
#pragma once

#include "exec/optimized.h"

typedef struct native_way native_way;

/* Where there is nothing to gain *out is NULL, and *why says what it does not take; caller frees it with mem_free. */
clv_status native_way_new(const clv_program *g, const program_spec *spec, const optimize_spec *s, native_way **out,
                          char **why);
clv_status native_way_tell(const native_way *x, char **out); /* what it runs, in words; caller frees with mem_free */
void native_way_free(native_way *x);                         /* NULL is allowed */
/* Where the engine fails, as at sizes that it cannot serve, the tape runs. */
clv_status native_way_run(native_way *x, const clv_program *g, const run_spec *r);
/* Packs weights, and gives up segments that take longer than the tape of their nodes, which may leave none: *left. r->outputs is empty, and is again. */
clv_status native_way_weigh(native_way *x, const clv_program *g, const run_spec *r, bool *left);
/* From now on outputs are laid out like these, which the tape gave. *why (in words, caller frees): they cannot be; else NULL. */
clv_status native_way_lay_out(native_way *x, br_tensor *const *want, uint32_t n, char **why);
void native_way_forget(native_way *x);
