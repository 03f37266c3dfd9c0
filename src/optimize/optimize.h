/* Passes: a range of a plan rewritten so that it does the same in less time.
 *
 * A pass is one file and one function over an edit (plan/edit.h). Passes of level "safe" leave every number as it is, bit
 * for bit; those of level "fast" keep numbers within a tolerance, which the caller measures (exec/optimized.c).
 * After every pass the plan is verified.
 *
 * At the end nodes are put in order by what they depend on (parts.c): nothing but external tensors, the prelude; then sizes
 * as well. What these give is kept until one of those tensors changes, or for other sizes; folded and packed weights are nodes
 * of the prelude like any others. Safe passes put only what depends on small constants there: tensors can be written in ways
 * that leave no trace (`parameter.data`, memory shared with an array), and a run must see that. */
#pragma once

#include "plan/edit.h"

typedef enum optimize_level { OPTIMIZE_NONE, OPTIMIZE_SAFE, OPTIMIZE_FAST } optimize_level;

clv_status optimize_level_read(const char *text, optimize_level *out); /* "none", "safe", "fast"; NULL: safe */

/* Which products do without their bias. */
typedef enum bias_place {
	BIAS_STAYS,
	BIAS_IN_SUMS /* those whose result is added to something */,
	BIAS_APART
} bias_place;

/* What an engine that evaluates groups can do with a node in one. */
typedef enum group_role {
	GROUP_NEVER,
	GROUP_ELEMENTS, /* element by element, after broadcasting */
	GROUP_ROWS,     /* along the last dimension of its first argument; the result has that shape, or a number per row */
	GROUP_PRODUCT   /* a product or convolution that does elementwise nodes in its store */
} group_role;

typedef struct optimize_spec {
	optimize_level level;
	bool channels_last;               /* FAST: convolutions get inputs laid out so */
	bool conv_as_linear;              /* FAST: convolutions of single pixels are products of matrices */
	bias_place bias;                  /* FAST: what products add is added by a node of its own */
	bool guards_first;                /* what every run does is to have guards in a part of their own */
	const char *const *off;           /* names of passes that are left out; NULL ends; may be NULL */
	bool (*has_op)(const char *name); /* the operator exists here, with the backend it needs; NULL: none of ours does */
	group_role (*groups)(const plan *p, node_id n); /* NULL: groups are not formed */
	const node_span *pinned;                        /* compiled segments of the range: see edit_pin */
	uint32_t npinned;
	const char *gpu; /* the kind of device that passes for GPUs look for; NULL: cuda. Tests compute on another */
} optimize_spec;

static inline bool has_operator(const optimize_spec *s, uint16_t op)
{
	return s->has_op && s->has_op(op_rows[op].text);
}

/* What passes did. */
typedef struct optimize_count {
	const char *pass; /* of the table of passes */
	uint32_t changes; /* nodes that it removed, joined or moved */
} optimize_count;

/* Parts of the range, one after the other: nodes depend on their own part and earlier ones. */
typedef enum part_id {
	PART_ONCE,   /* the prelude: the same in every run */
	PART_SIZED,  /* the same in every run of the same sizes */
	PART_GUARDS, /* guards that read inputs, and what they need; empty unless guards_first */
	PART_MAIN,
	PARTS
} part_id;

typedef struct optimized_plan {
	plan *p;                 /* values have the ids of the plan it was made of */
	node_id part[PARTS + 1]; /* where each begins; at last where the range ends */
	node_span *pinned;       /* where they are now */
	VEC(optimize_count) counts;
} optimized_plan;

/* The nodes first … end-1 of p. Caller calls optimized_plan_free, also on failure. */
clv_status optimize(const plan *p, node_id first, node_id end, const optimize_spec *s, optimized_plan *out);
void optimized_plan_free(optimized_plan *o);

enum { SMALL_CONSTANT = 4096, SMALL_BUFFER = 1 << 16 }; /* bytes that a run can look at each time */

/* ---- passes: each adds to *changes --------------------------------------------------------------------------------- */

typedef clv_status (*pass_fn)(edit *e, const optimize_spec *s, uint32_t *changes);

typedef struct pass {
	const char *name;
	optimize_level level;
	pass_fn run;
} pass;

/* In their order, those that are no function of this kind last: which make parts, and the memory of runs. Then one without
   a name. */
extern const pass passes[];
bool pass_is_off(const char *const *off, const char *name); /* among names, NULL at the end; NULL: none is */

clv_status pass_identity(edit *e, const optimize_spec *s, uint32_t *changes);        /* identity.c */
clv_status pass_common(edit *e, const optimize_spec *s, uint32_t *changes);          /* common.c */
clv_status pass_dead(edit *e, const optimize_spec *s, uint32_t *changes);            /* dead.c */
clv_status pass_fold_batch_norm(edit *e, const optimize_spec *s, uint32_t *changes); /* fold_batch_norm.c */
clv_status pass_functions(edit *e, const optimize_spec *s, uint32_t *changes);       /* functions.c */
clv_status pass_norms(edit *e, const optimize_spec *s, uint32_t *changes);           /* norms.c */
clv_status pass_attention(edit *e, const optimize_spec *s, uint32_t *changes);       /* attention.c */
clv_status pass_rotary(edit *e, const optimize_spec *s, uint32_t *changes);          /* rotary.c */
clv_status pass_views(edit *e, const optimize_spec *s, uint32_t *changes);           /* views.c */
clv_status pass_channels_last(edit *e, const optimize_spec *s, uint32_t *changes);   /* channels_last.c */
clv_status pass_merge_linears(edit *e, const optimize_spec *s, uint32_t *changes);   /* merge_linears.c */
clv_status pass_conv_as_linear(edit *e, const optimize_spec *s, uint32_t *changes);  /* conv_as_linear.c */
clv_status pass_bias_apart(edit *e, const optimize_spec *s, uint32_t *changes);      /* bias_apart.c */
clv_status pass_fuse(edit *e, const optimize_spec *s, uint32_t *changes);            /* fuse.c */
clv_status pass_in_place(edit *e, const optimize_spec *s, uint32_t *changes);        /* in_place.c */
clv_status pass_out_of_place(edit *e, const optimize_spec *s, uint32_t *changes);    /* out_of_place.c */

/* What these find in *out is an edit_array.
   parts.c. Per value: a tensor that is the same in every run, so that what is made of it alone gets into the prelude. */
clv_status constant_values(edit *e, const optimize_spec *s, bool **out);
/* Per value: a result of a node that order_parts will put before what every run does. What is written stays where it is. */
clv_status moved_values(edit *e, const optimize_spec *s, bool **out);
/* Nodes of earlier parts come first; wanted: bits of part_id. Fills out->part. */
clv_status order_parts(edit *e, const optimize_spec *s, unsigned wanted, optimized_plan *out);

/* group.c. After order_parts: nodes of one group come one behind the other, and the plan has groups. */
clv_status form_groups(edit *e, const optimize_spec *s, const node_id *part, uint32_t *changes);

/* ---- shared by passes: facts.c ------------------------------------------------------------------------------------- */

/* Has no effect but its results, which are the same in every run with the same arguments. */
bool node_pure(const edit *e, node_id n);
/* v is a result of the range on memory that no other value is on (`by`, unless NONE, may be a view of it), that nothing
   writes (`by` may be made by writing it), and that only one node of the range reads, once. So v can go. */
bool only_for(const edit *e, value_id v, node_id user, value_id by);
bool is_float(const value *x); /* of 16, 32 or 64 bits */
/* Tensors of one dtype, device and shape, neither of them odd. */
bool is_alike(const plan *p, value_id a, value_id b);
bool makes_channels_last(const edit *e, node_id n); /* clone or contiguous with that format */
bool is_f32_cpu(const edit *e, value_id v);
bool is_cuda(const edit *e, value_id v);
bool is_gpu_float(const edit *e, const optimize_spec *s, value_id v); /* f32 or half */
/* An argument that is this literal. */
bool arg_is_int(const edit *e, const arg *a, int64_t k);
bool arg_is_bool(const arg *a, bool b);

/* contiguous.c */
typedef enum known_layout {
	LAYOUT_ANY,
	LAYOUT_CONTIGUOUS, /* row by row; strides of dimensions of size 1 may be anything */
	LAYOUT_ROW_MAJOR   /* those too are what they are in new memory */
} known_layout;

/* Per value: known_layout, in every run. Nothing is known of what the range writes. */
clv_status find_layouts(edit *e, uint8_t **out);
int64_t dim_least(const plan *p, const value *x, uint32_t d); /* the least that a size can be; INT64_MIN: not known */
bool may_have_size_one(const plan *p, value_id v);            /* a dimension of it can have size 1 */
bool same_shape(const plan *p, value_id a, value_id b);
