/* A call of a plan: its inputs, its results that are no tensors, and whether the inputs are as at capture. */
#pragma once

#include "plan/view.h"
#include "tensor/tensor.h"

/* A number of the output tree that differs from run to run. */
typedef struct run_number {
	bool real;
	int64_t i;
	double f;
} run_number;

/* The node that a run is at, for observers. "": at none. */
typedef struct run_place {
	char name[128], op[128], module[256];
} run_place;

typedef struct run_call {
	clv_tensor *const *inputs; /* of the view, borrowed */
	const int64_t *symbols;    /* values of the plan's symbols; NULL: read off the inputs */
	run_number *numbers;       /* of the part; NULL: not wanted */
	run_place *place;          /* told before each node; NULL: nobody looks */
	int64_t *times;            /* per step: nanoseconds are added; NULL: nobody asks */
	int64_t made; /* bytes of inputs that were made up elsewhere, beside those of tensors that say so themselves */
	/* For the runtime: the version of the weights that the run read, NULL: not wanted; and the one that it has to be. */
	int64_t *version;
	const int64_t *wants_version;
} run_call;

/* place.c. The node that a run is at. */
void call_tell_place(const plan *p, const node_names *names, node_id id, run_place *to);
/* Puts the node in front of the message, and into the details. `undone` is then true of a guard: who has changed anything before
   it takes that back, or sets it to false. */
clv_status call_failed_at(const plan *p, const node_names *names, node_id id, clv_status st);
/* A guard on a number that was read from data does not hold; both as text. */
clv_status call_number_differs(const char *expected, const char *seen);

/* inputs.c. The values of the plan's symbols in a call (-1: read from data on the way), each in its range; `given`: known
   already, may be NULL. */
clv_status inputs_symbols(const view *v, const tensor_meta *inputs, const int64_t *given, int64_t *out);
/* The name of an input, or its label, as far as it goes into `scratch`. */
const char *input_name(const plan *p, value_id v, char *scratch, size_t n);
/* What is wrong with an input: of another dtype, device, layout or shape than the plan has at these sizes, one per expression.
   CLV_OK: nothing. */
clv_status input_check(const plan *p, value_id v, const tensor_meta *t, const int64_t *sizes);
/* The same of all inputs of a view, given as tensors. */
clv_status call_symbols(const view *v, clv_tensor *const *inputs, const int64_t *given, int64_t *out);
clv_status call_check(const view *v, const run_call *c); /* each of its inputs */
clv_status inputs_check(const view *v, clv_tensor *const *inputs, const int64_t *given);
