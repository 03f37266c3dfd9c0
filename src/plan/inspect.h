/* Parts of the inspect page, shared with the JSON form and the report. */
#pragma once

#include "plan/plan.h"

#define INSPECT_LINES 20 /* of what may be long; the rest is counted */

clv_status inspect_facts(const plan *p, strbuf *b); /* model, inputs, … : lines with a heading */
clv_status inspect_lists(const plan *p, strbuf *b); /* operators, guards */
void inspect_heading(strbuf *b, const char *text);
void inspect_more(strbuf *b, uint32_t n); /* "and 3 more" where n lines are too many */

typedef struct tally {
	uint64_t count, trainable;
	int64_t bytes;
	bool too_large; /* the sum of bytes does not fit, or a size is not defined at these symbols */
} tally;

clv_status tally_kind(const plan *p, value_kind kind, const int64_t *syms, tally *t);

typedef struct op_count {
	str_id op;
	uint32_t n;
} op_count;

/* Counts per operator, most frequent first, those that occur first of equals. *out: caller frees. */
clv_status count_ops(const plan *p, op_count **out, uint32_t *n_out);
uint32_t count_nodes(const plan *p, uint32_t flag);

/* "%8 = true", "shape of %9 i64[3,2]": what a run compares, in the order of the nodes. */
typedef void guard_visitor(void *ctx, node_id n, const char *text, size_t length);
clv_status plan_each_guard(const plan *p, guard_visitor *visit, void *ctx);
