/* A range of a plan that the native engine runs on tensors of torch, as the tape does: the tensors of the model are looked at in
 * every run, and what was packed of them is made anew when they have changed. Its threads are those that operators use. Without
 * gradients, on the CPU. Many threads run a part at a time. */
#pragma once

#include "exec/code.h"
#include "exec/program.h"
#include "runtime/engine.h"

typedef struct native_part native_part;

extern const engine engine_native;

/* NULL: the engine runs node n for a live model. Else why not, static or in the plan. */
const char *native_refuses(const engine *e, const plan *p, node_id n);

/* optimize: a level, as text. CLV_E_UNSUPPORTED names a node that it does not take, and says why. `e` is the native engine; tests
   have others. */
clv_status native_part_new(const engine *e, const plan *p, node_id first, node_id end, const char *optimize,
                           native_part **out);
void native_part_free(native_part *x); /* NULL is allowed */
/* Of a run: inputs, externals, counters, outputs, numbers, symbols and place, which are as for the tape of these nodes. */
clv_status native_part_run(native_part *x, const run_spec *r);
/* The next run makes anew what was made of the tensors of the model. */
void native_part_forget(native_part *x);

/* The nodes as code, which runs instead of them in a program (program_spec.codes) and serves all sizes. */
clv_status native_code(const engine *e, const plan *p, const liveness *l, node_id first, node_id end, code **out);
