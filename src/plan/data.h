/* Symbols whose value a run reads from its data (data.c). */
#pragma once

#include "plan/plan.h"

bool expr_depends(const plan *p, expr_id e, symbol_id s);
bool real_depends(const plan *p, real_id r, symbol_id s);
bool node_takes(const plan *p, node_id n, symbol_id s);    /* a number among its arguments depends on the symbol */
bool node_takes_data(const plan *p, node_id n);            /* … on any symbol that is read from data */
bool expr_is_data(const plan *p, expr_id e, symbol_id *s); /* it is a data symbol and nothing else */

/* Calls f for each data symbol that `v`, a result, can define: by its value (dim NONE) or by a size. */
typedef void (*data_fn)(void *ctx, symbol_id s, value_id v, uint32_t dim);
void value_each_data(const plan *p, value_id v, data_fn f, void *ctx);

/* Something but the host result that defines it needs the symbol: an argument, a size, a number of the output. */
bool data_used(const plan *p, symbol_id s);

/* bad[k]: after node k a number that was read from data is still needed, and no tensor that crosses has it as a size.
   `last`: from liveness. bad has p->nodes.n elements, which are only set. */
clv_status data_cuts(const plan *p, const node_id *last, bool *bad);

bool node_guards(const plan *p, node_id n); /* a run may end here, for what it reads from its data */
