/* Finds the longest common subsequence. */
#pragma once

#include "base/mem.h"

typedef struct aligner aligner;

clv_status aligner_new(uint32_t ntokens, aligner **out); /* for tokens 0 … ntokens-1; caller frees */
void aligner_free(aligner *w);

/* match[i] is set to the place in b that a[i] goes with, or to NONE (0xffffffff); places rise. A longest common
   subsequence where a and b differ in few hundred places, a common subsequence otherwise. Takes O((n + m) * d) steps for
   d differences, and d counts as some hundred at most. */
clv_status align(aligner *w, const uint32_t *a, uint32_t n, const uint32_t *b, uint32_t m, uint32_t *match);
