/* Attention as steps of a node: what operators that have it share. */
#ifndef NATIVE_ATTENDING_H
#define NATIVE_ATTENDING_H

#include "native/native.h"

typedef struct attending {
	slot q, k, v, mask; /* f32 or f64: […, heads, rows, size]; the mask of that type or flags, NONE: there is none */
	bool causal, grouped;
	double scale;
	float nothing; /* what a row gives whose keys are all hidden */
} attending;
clv_status low_attention(lowering *l, const attending *x, slot out);

#endif
