/* Helpers of passes that insert nodes: nodes, tensors, and convolutions in all spellings. */
#pragma once

#include "optimize/optimize.h"

static inline arg arg_of(value_id v)
{
	return v == NONE ? (arg){.kind = ARG_NONE} : (arg){.kind = ARG_VALUE, .u.v = v};
}

static inline arg arg_float(double k)
{
	return (arg){.kind = ARG_FLOAT, .u.f = k};
}

static inline arg arg_bool(bool b)
{
	return (arg){.kind = ARG_BOOL, .u.b = b};
}

clv_status arg_int(edit *e, int64_t k, arg *out);
clv_status arg_text(edit *e, const char *s, arg *out);
enum { MAX_INTS = 8 }; /* of a list, of a tensor's dimensions */
clv_status arg_ints(edit *e, const int64_t *k, uint32_t n, arg *out);
clv_status arg_sizes(edit *e, const expr_id *k, uint32_t n, arg *out);

/* A new tensor on memory of its own, on the device of `like`. Sizes that are negative are an error. */
clv_status new_tensor(edit *e, value_id like, dtype type, const int64_t *shape, uint32_t ndim, value_id *out);

/* Likewise, of the type of `like` and of sizes that may depend on symbols. */
clv_status new_shaped(edit *e, value_id like, const expr_id *shape, uint32_t ndim, value_id *out);
/* A new tensor of that shape on the memory of v. */
clv_status new_view(edit *e, value_id v, const expr_id *shape, uint32_t ndim, value_id *out);
/* How many rows v has as a matrix of its last dimension. */
clv_status row_count(edit *e, value_id v, expr_id *out);

/* Where new nodes go, and whose module, place and context they have. */
typedef struct spot {
	edit *e;
	node_id before, like;
} spot;

/* op(args) makes `result`, a value that no node makes now. */
clv_status put_node(const spot *at, uint16_t op, const arg *args, uint32_t nargs, value_id result);
/* It also writes one. */
clv_status put_writer(const spot *at, uint16_t op, const arg *args, uint32_t nargs, value_id result, value_id written);

/* op(args) makes several views. */
clv_status put_views(const spot *at, uint16_t op, const arg *args, uint32_t nargs, const value_id *results, uint32_t n);

/* ---- questions ----------------------------------------------------------------------------------------------------- */

bool dim_is(const edit *e, value_id v, uint32_t d, int64_t k);
bool fixed_dim(const edit *e, value_id v, uint32_t d, int64_t *k);
/* Numbers as the operators convert them: ints and floats that do not change. */
bool arg_number(const edit *e, const arg *a, double *k);
bool runs_plainly(const edit *e, node_id n); /* outside autocast; neither mkldnn nor cudnn switched on or off */

/* The one node that reads v, and after which it is not needed; NONE. It has the modes of `maker` and is not removed. */
node_id only_reader(const edit *e, value_id v, node_id maker);
/* The result of u where it is one tensor like v, on memory of its own or, made by writing it, on that of `on`; NONE. */
value_id result_on(const edit *e, node_id u, value_id v, value_id on);
bool same_type(const edit *e, value_id a, value_id b); /* tensors of one dtype on one device */
bool alpha_is_one(const edit *e, node_id n);           /* of (a, b, alpha) */

/* A node of the form convolution(x, weight, bias, …), or a linear. */
typedef struct weighted {
	node_id node;
	value_id x, weight, bias, result; /* bias: NONE where there is none */
	bool transposed;
	int64_t groups;
	uint32_t dilation, output_padding; /* which arguments; NONE. Stride and padding are arguments 3 and 4 */
} weighted;

bool read_weighted(const edit *e, node_id n, weighted *out);

/* A product with a weight that is the same in every run, however it is spelt; the bias too, a vector. */
typedef struct linear {
	weighted w;
	bool transposed; /* the weight has its inputs first */
	int64_t ins, outs;
} linear;

bool read_linear(const edit *e, const bool *constant, node_id n, linear *out);
/* The weight with its other dimension first: a view. */
clv_status turn_weight(const spot *at, const linear *l, value_id *out);
