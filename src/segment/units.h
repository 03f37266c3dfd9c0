/* Units and the graph of them, and the work and bytes of a plan at given sizes: shared by the files of this folder. */
#pragma once

#include "base/digraph.h"
#include "segment/segment.h"

/* How reasons of this folder begin. */
#define ALONE "alone: "
#define GIVEN_UP "given up: "
#define TIED "memory that is written in place ties it to "

/* Nodes that are in one segment or on the tape, in a topological order. */
typedef struct units {
	arena arena;
	uint32_t n;
	uint32_t *of_node; /* per node */
	uint32_t *first;   /* per unit, and one more: its nodes in `nodes` */
	node_id *nodes;    /* unit by unit, ascending within */
	digraph g;         /* between units: values and the order of effects */
	digraph uses;      /* from values to the units that read or write them; weights are left out */
	bool *kept;        /* per value: the output tree or a rebind has it */
} units;

/* `reason` (per node) says why nodes are not compiled; it grows by those that memory keeps from it. Texts are in
   `a`. */
clv_status units_find(const plan *p, const node_names *names, const char **reason, arena *a, units *out);
void units_free(units *u);

/* Work of every node and bytes of every value at given sizes. */
typedef struct amounts {
	arena arena;
	double *work;   /* per node */
	int64_t *bytes; /* per value: of tensors that come in or are made; 0 for weights */
} amounts;

clv_status amounts_of(const plan *p, const int64_t *syms /* NULL: the smallest */, amounts *out);
void amounts_free(amounts *m);

/* order.c. Fills s->order, and s->at with their slices, of u and s->of_node (segments numbered anyhow, `count` of
   them): they are numbered in order of running after. */
clv_status segments_order(segments *s, const units *u, uint32_t count);

static inline int64_t add_bytes(int64_t a, int64_t b)
{
	int64_t sum;
	return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}
