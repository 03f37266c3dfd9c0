/* Whether the rows of a batch stay apart: row i of every output depends on row i of the inputs and on nothing else of them. Then
   requests of several callers may run as one batch. Proven from the operators and their arguments, or not at all. */
#ifndef PLAN_ROWS_H
#define PLAN_ROWS_H

#include "plan/view.h"

/* The batch is the symbol `batch`, the first size of every input. *apart: they do; else `why` names the operator or the input.
   of_rows, per output, is false for one that is the same whatever the batch is. */
clv_status rows_apart(const view *v, const value_ids *outputs, symbol_id batch, bool *apart, bool *of_rows,
                      strbuf *why);

#endif
