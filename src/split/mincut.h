/* Minimum cuts of a network: which vertices stay with the source when the cheapest edges are cut.
 *
 * Only numbers: what vertices and edges mean is the caller's. */
#pragma once

#include "base/mem.h"

enum { NETWORK_SOURCE, NETWORK_SINK, NETWORK_ENDS }; /* vertices 0 and 1; the caller's own come after */

/* An edge of this capacity is never cut. All others together must be less. */
#define NETWORK_NEVER (INT64_MAX / 4)

typedef struct network_edge {
	uint32_t to, next; /* next edge of the same vertex; NONE (0xffffffff): the last */
	int64_t room;      /* capacity that is left */
} network_edge;

typedef struct network {
	uint32_t n;              /* vertices */
	VEC(network_edge) edges; /* edge e and its opposite e^1 */
	uint32_t *first;         /* per vertex: its first edge */
	uint32_t *level, *queue; /* of the search: steps to the sink */
	uint32_t *next, *path;   /* per vertex: edge to try next; edges of the path in hand */
} network;

clv_status network_new(network *net,
                       uint32_t vertices); /* net: all zero bytes; release with network_free, also on failure */
void network_free(network *net);
clv_status network_edge_add(network *net, uint32_t from, uint32_t to, int64_t capacity);

/* Of all cheapest cuts the one with the fewest vertices on the source's side. *capacity of NETWORK_NEVER or more: there is
   a path that cannot be cut. The network is used up. */
void network_cut(network *net, bool *with_source /* by vertex */, int64_t *capacity);

/* A path from source to sink over edges that are never cut, as vertices, source and sink not among them; its length, 0 if
   there is none (or source and sink touch). Before network_cut. */
uint32_t network_uncuttable(network *net, uint32_t *path /* room for all vertices */);
