/* Variants of a program that passes made faster (optimize/optimize.h), and the choice between them.
 *
 * A variant is the result of one setting of the passes: a program for each part of the plan that they made. Results that
 * are the same in every run are kept until one of their tensors changes; results that depend on sizes are kept for the last
 * sizes that were used. Inputs, outputs and external tensors are those of the original program.
 *
 * An optimizer holds the variants of a program. Those whose numbers may differ are not used before they were compared with
 * the tape, on the inputs of the first run, and timed: the fastest stays. */
#pragma once

#include "exec/program.h"
#include "optimize/optimize.h"

typedef struct variant variant;
struct native_way;

/* A number that changes when an external tensor of the plan is another one, or was written: br_mark, with what is known of the kind
   of tensor that it is. counter: see run_spec; may be NULL. False: nothing tells. */
bool external_mark(const plan *p, value_id v, const br_tensor *t, const br_tensor *counter, uint64_t *out);

clv_status variant_new(const clv_program *g, const program_spec *spec, const optimize_spec *s, variant **out);
/* One that the native engine runs (native_way.h), taken over in any case. It has no plan of its own. */
clv_status variant_of_native(struct native_way *native, variant **out);
struct native_way *variant_native(const variant *x); /* borrowed; NULL: it is none */
void variant_free(variant *x);
clv_status variant_run(variant *x, const clv_program *g, const run_spec *r);
/* For who repeats the main part alone, in a graph: sees to it that what is kept is of these externals and sizes (generation:
   another number whenever it was made anew), and runs the guards into r->outputs, which has room for r->nguards. */
clv_status variant_prepare(variant *x, const clv_program *g, const run_spec *r, uint64_t *generation);
uint32_t variant_guards(const variant *x); /* tensors that the main part takes from guards that run before it */
const optimized_plan *variant_plan(const variant *x); /* NULL: the native engine runs the plan as it was captured */
/* Bytes of what it makes once, on memory of its own: folded, packed and merged weights. */
clv_status variant_keeps(const variant *x, int64_t *bytes);
pool *variant_memory(const variant *x); /* borrowed; NULL: none */
/* What is kept is not used again: a run may have changed what it was made of without a trace. */
void variant_forget(variant *x);

typedef struct optimizer optimizer;

/* Variants for a program that was just made. */
clv_status optimizer_new(const clv_program *g, const program_spec *spec, optimizer **out);
void optimizer_free(optimizer *o);
/* Runs the program in the way that was chosen. The first run may choose. */
clv_status optimizer_run(optimizer *o, const clv_program *g, const run_spec *r);
/* Of the variant that runs; nothing where the program runs as captured. */
clv_status optimizer_prepare(optimizer *o, const clv_program *g, const run_spec *r, uint64_t *generation);
uint32_t optimizer_guards(optimizer *o);
void optimizer_forget(optimizer *o); /* variant_forget, of the variant that runs */
bool optimizer_ask(optimizer *o);    /* has the next run choose; false: there is nothing to choose any more */
/* What was done, in lines: passes and their counts, what was measured and chosen. */
clv_status optimizer_report(optimizer *o, strbuf *b);
const optimized_plan *optimizer_plan(optimizer *o); /* of the variant that runs, borrowed; NULL: as captured */

/* Has the next run choose what runs from then on; false: there is nothing to choose any more. */
bool program_ask(clv_program *g);
/* Of what runs, whatever passes made of it: what was done, in lines; the pool of its memory, borrowed, NULL for none. */
clv_status program_report(const clv_program *g, strbuf *b);
pool *program_memory(const clv_program *g);
