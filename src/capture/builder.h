/* Private to the files that turn a stream into a plan: scan.c looks at the whole stream, build.c makes the plan, table.c
   makes constants that follow the sizes. */
#pragma once

#include "base/arena.h"
#include "capture/capture.h"
#include "plan/fit.h"

typedef struct host_number {
	value_id v;
	uint32_t first; /* of builder->read */
	bool used;      /* as an argument */
	bool open;      /* nothing but arguments is made of it: any number will do */
} host_number;

typedef struct builder {
	const stream *s, *with_grad;
	const uint8_t *classes;   /* may be NULL */
	const size_probes *sizes; /* may be NULL */
	plan *p;
	plan_data *data;
	bool *drop;            /* per op */
	bool *moving;          /* per tensor: a constant that follows the sizes; nodes make it where it is used */
	bool *literal;         /* per tensor: comes from torch.tensor and nothing happened to it yet */
	value_id *value;       /* per tensor: its newest value; NONE: not met yet */
	value_id *state_value; /* per state of the stream: the value of the module tensor itself */
	value_id *root;        /* per storage: first value on it */
	bool *touched;         /* per storage: written, or given to the caller */
	bool *unwritten;       /* per storage: made by empty(), not written yet */
	scope_id *scope;       /* per scope of the stream */
	value_id *object;      /* per object number of the recorder */
	value_id *python;      /* per op: what a cleave::python node calls */
	uint32_t nstorages;
	arena arrays;           /* of all that is per op, tensor, … */
	VEC(arg) args;          /* scratch for the node in hand */
	VEC(value_id) writes;   /* likewise */
	VEC(expr_id) dims;      /* scratch */
	VEC(int64_t) seen;      /* scratch: one number in every stream */
	VEC(double) floats;     /* likewise */
	VEC(uint32_t) path;     /* where in the arguments of the operator in hand we are: the same place in all streams */
	bool in_results;        /* it is in the results */
	VEC(host_number) hosts; /* numbers read from data so far that are not the same in all streams */
	VEC(double) read;       /* their values: one for each stream */
} builder;

typedef void (*tensor_fn)(builder *b, uint32_t t, void *ctx);

void each_tensor(builder *b, const br_arg *args, uint32_t n, tensor_fn f, void *ctx); /* lists included */
clv_status fail_at(const stream *s, const stream_op *o, const char *what);            /* refuses an operator by place */
clv_status more_at(const stream *s, const stream_op *o, clv_status st); /* adds the place to an error on its way */

clv_status drop_residue(builder *b);    /* fills b->drop */
void find_touched(builder *b);          /* fills b->touched */
clv_status check_unwritten(builder *b); /* refuses reads of memory that no operator wrote */

/* build.c: the formula of b->seen or b->floats (one number per stream), or an error that says what was seen. */
clv_status number_formula(builder *b, expr_id *out);
clv_status float_formula(builder *b, fit_rounding rounding, arg *out); /* FLOAT when all are the same, else REAL */
clv_status shape_list(builder *b, uint32_t t, arg *out);               /* the sizes of a tensor as an argument */
/* A node that is not in the stream but belongs before operator `op` (ops.n: at the end). Its result is a new value of
   tensor t, or a value of the plan that is not defined yet. */
clv_status insert_tensor(builder *b, uint32_t op, uint16_t id, const arg *args, uint32_t nargs, uint32_t t);
clv_status insert_value(builder *b, uint32_t op, uint16_t id, const arg *args, uint32_t nargs, value_id result);

/* table.c */
clv_status table_moves(const builder *b, uint32_t t, bool *out); /* a constant differs from size to size */
clv_status insert_table(builder *b, uint32_t op, uint32_t t);    /* nodes that make it; they define the value of t */
