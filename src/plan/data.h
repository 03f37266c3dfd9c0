/* Symbols whose value a run reads from its data (data.c). */
#pragma once

#include "plan/plan.h"

symbol_id first_data_symbol(const plan *p); /* NONE: there is none */
bool expr_depends(const plan *p, expr_id e, symbol_id s);
bool expr_is_data(const plan *p, expr_id e, symbol_id *s); /* it is a data symbol and nothing else */
/* Calls f for each place of a symbol in the numbers of an argument, or of all arguments of a node. */
typedef void (*each_symbol_fn)(void *ctx, symbol_id s);
void arg_each_symbol(const plan *p, const arg *a, each_symbol_fn f, void *ctx);
void node_each_symbol(const plan *p, node_id n, each_symbol_fn f, void *ctx);
bool node_takes(const plan *p, node_id n, symbol_id s); /* one of these is s; NONE: is read from data */
bool shape_takes_data(const plan *p, const value *x);   /* a size of it is read from data */

/* Calls f for each data symbol that `v`, a result, can define: by its value (dim NONE) or by a size. */
typedef void (*data_fn)(void *ctx, symbol_id s, value_id v, uint32_t dim);
void value_each_data(const plan *p, value_id v, data_fn f, void *ctx);

/* Something but the host result that defines it needs the symbol: an argument, a size, a number of the output. */
bool data_used(const plan *p, symbol_id s);

/* bad[k]: after node k a number that was read from data is still needed, and no tensor that crosses has it as a size.
   `last`: from liveness. bad has p->nodes.n elements, which are only set. */
clv_status data_cuts(const plan *p, const node_id *last, bool *bad);

bool node_guards(const plan *p, node_id n); /* a run may end here, for what it reads from its data */
