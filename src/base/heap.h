/* A heap of numbers (nodes, stages, blocks), the smallest on top. */
#pragma once

#include <stdint.h>

/* at has room for all that are pushed; it belongs to the caller. */
typedef struct heap {
	uint32_t *at, n;
} heap;

static inline void heap_push(heap *h, uint32_t x)
{
	uint32_t i = h->n++;
	for (; i && h->at[(i - 1) / 2] > x; i = (i - 1) / 2)
		h->at[i] = h->at[(i - 1) / 2];
	h->at[i] = x;
}

static inline uint32_t heap_pop(heap *h)
{
	uint32_t top = h->at[0], x = h->at[--h->n], i = 0;
	for (;;) {
		uint32_t child = 2 * i + 1;
		if (child + 1 < h->n && h->at[child + 1] < h->at[child])
			child++;
		if (child >= h->n || h->at[child] >= x)
			break;
		h->at[i] = h->at[child];
		i = child;
	}
	h->at[i] = x;
	return top;
}
