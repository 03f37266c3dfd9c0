/* Checks before a run that tensors from outside do not share memory that they did not share at capture.
 *
 * A plan says which inputs, parameters, buffers and constants were on the same memory when it was captured. A caller may
 * pass others: an input that lies on a buffer, a buffer that was tied to another one since. That matters if the program
 * writes one of them, because passes and compilers move reads of the others across the write; so before each such run the
 * memory of written tensors is compared with that of all others. A program that writes none of them compares nothing. */
#pragma once

#include "exec/program.h"

typedef struct apart apart;

/* Two tensors that share memory and did not at capture. */
typedef struct clash {
	value_id written, other;
	bool copied; /* the program writes a copy of the first, which the other would not see */
} clash;

clv_status apart_new(const clv_program *g, apart **out); /* *out: NULL where nothing has to be compared */
void apart_free(apart *a);
/* What is written is apart from all others in this run. False: *found says what is not. Any number of threads. */
bool apart_holds(apart *a, const clv_program *g, const run_spec *r, clash *found);
