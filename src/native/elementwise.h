/* From elementwise operators to the steps of a chain: type promotion as in torch, and what each operator is made of. */
#ifndef NATIVE_ELEMENTWISE_H
#define NATIVE_ELEMENTWISE_H

#include "native/chain.h"
#include "native/native.h"

enum { EW_STEPS = 96, EW_TERMS = 8, EW_MADE = 32 };

/* An argument of an operator. */
typedef enum term_kind { TERM_NONE, TERM_TENSOR, TERM_NUMBER, TERM_TEXT, TERM_DTYPE } term_kind;
typedef struct term {
	uint8_t kind;
	uint8_t type; /* number_type: of a tensor, of DTYPE; NUMBER: BOOL, I64 or F64 */
	bool flat;    /* TENSOR: it has dimensions, which count for more in type promotion */
	uint8_t reg;  /* TENSOR */
	double f;     /* NUMBER, both of them */
	int64_t i;
	const char *text;
} term;

/* A chain that is being made. */
typedef struct ew {
	lowering *l;
	chain c;
	nt form; /* sizes of the result */
	slot slots[CHAIN_REGS];
	chain_reg regs[CHAIN_REGS];
	chain_step steps[EW_STEPS];
	bool narrow; /* the operator at hand has a number per row of the form */
	struct ew_made {
		value_id v;
		term t;
	} made[EW_MADE]; /* results of nodes that the chain has */
	uint32_t nmade;
} ew;

bool ew_type(uint8_t d, number_type *out);                /* false: chains have no such type */
uint8_t ew_common_dtype(const term *x, unsigned n);       /* as torch promotes tensors and numbers */
clv_status ew_new(lowering *l, const nt *form, ew **out); /* caller frees with mem_free */
/* A tensor that is read; expanded to the sizes of the result. */
clv_status ew_input(ew *e, slot s, term *out);
clv_status ew_input_as(ew *e, slot s, const nt *expanded, bool flat, term *out);
/* An argument of a node: a result that the chain has, a tensor, a literal; kind NONE if it is none. */
clv_status ew_arg(ew *e, node_id n, uint32_t i, term *out);
/* What the elementwise node gives. */
clv_status ew_node(ew *e, node_id n, term *out);
/* Results that the chain has. */
clv_status ew_make(ew *e, value_id v, const term *x);
bool ew_made(const ew *e, value_id v, term *out);
/* The operator's steps; `what` is that of its row. */
clv_status ew_apply(ew *e, uint32_t what, const term *args, uint32_t n, term *out);
/* A step of registers of a type that makes one of type `to`; and a term as a register of that type. */
clv_status ew_step(ew *e, unsigned op, number_type type, number_type to, const uint8_t *operands, unsigned n,
                   term *out);
clv_status ew_reg(ew *e, const term *x, number_type type, uint8_t *out);
clv_status ew_cast(ew *e, const term *x, number_type to, term *out);
/* A step along rows (rows.h) of f32 registers, which gives `to`; narrow: a number per row. */
typedef struct row_step {
	unsigned op;
	number_type to;
	bool narrow;
	double number;
	const term *x, *weight, *bias; /* NULL: there is none */
} row_step;
clv_status ew_row_step(ew *e, const row_step *s, term *out);
/* The tensor that the result is written to, cast to its type. Steps that use x come before. */
clv_status ew_output(ew *e, const term *x, slot s);
clv_status ew_output_as(ew *e, const term *x, slot s, const nt *expanded, bool narrow);
/* The step. */
clv_status ew_finish(ew *e);
/* Where an input lies without gaps and has the sizes of the result, the result lies as it does. */
void ew_layout(const ew *e, nt *form);

/* The chain as an epilogue: a register for the block, whose strides are those of the form; then the result is written there. The
   columns of blocks are this dimension. */
clv_status ew_block(ew *e, term *out);
clv_status ew_finish_block(ew *e, const term *in, const term *result, unsigned columns, epilogue *out);

/* op_elementwise.c. The row of an operator whose results depend on elements alone; NULL: it is none. */
const native_op *ew_row(uint16_t id);
bool ew_is_cast(const native_op *o); /* to the dtype of the plan's result */

#endif
