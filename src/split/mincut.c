/* Minimum cuts by maximum flow (Dinic): as long as the sink can be reached, block all shortest paths.
 *
 * Levels count steps to the sink, so that a path only ever takes edges that lead one step nearer. No recursion: paths
 * are as long as plans. */
#include "split/mincut.h"

#include <string.h>

#define NO_EDGE UINT32_MAX

clv_status network_new(network *net, uint32_t vertices)
{
	net->n = vertices;
	net->first = mem_ids(vertices);
	net->level = mem_ids(vertices);
	net->queue = mem_ids(vertices);
	net->next = mem_ids(vertices);
	net->path = mem_ids(vertices);
	return net->first && net->level && net->queue && net->next && net->path ? CLV_OK : fail_nomem();
}

void network_free(network *net)
{
	vec_free(&net->edges);
	mem_free(net->first);
	mem_free(net->level);
	mem_free(net->queue);
	mem_free(net->next);
	mem_free(net->path);
	*net = (network){0};
}

static clv_status add_half(network *net, uint32_t from, uint32_t to, int64_t room)
{
	TRY(vec_push(&net->edges, ((network_edge){to, net->first[from], room})));
	net->first[from] = net->edges.n - 1;
	return CLV_OK;
}

clv_status network_edge_add(network *net, uint32_t from, uint32_t to, int64_t capacity)
{
	TRY(vec_reserve(&net->edges, 2));
	TRY(add_half(net, from, to, capacity));
	return add_half(net, to, from, 0);
}

/* Steps from each vertex to the sink over edges with room; true when the source is reached. */
static bool find_levels(network *net)
{
	uint32_t head = 0, tail = 0;
	memset(net->level, 0xFF, net->n * sizeof *net->level);
	net->level[NETWORK_SINK] = 0;
	net->queue[tail++] = NETWORK_SINK;
	while (head < tail && net->level[NETWORK_SOURCE] == UINT32_MAX) {
		uint32_t v = net->queue[head++];
		for (uint32_t e = net->first[v]; e != NO_EDGE; e = net->edges.at[e].next) {
			uint32_t from = net->edges.at[e].to;
			if (net->level[from] != UINT32_MAX || net->edges.at[e ^ 1].room == 0)
				continue;
			net->level[from] = net->level[v] + 1;
			net->queue[tail++] = from;
		}
	}
	return net->level[NETWORK_SOURCE] != UINT32_MAX;
}

/* Edge from v one step nearer to the sink that has room; those that have none are not tried again. */
static uint32_t next_edge(network *net, uint32_t v)
{
	uint32_t *e = &net->next[v];
	for (; *e != NO_EDGE; *e = net->edges.at[*e].next) {
		const network_edge *x = &net->edges.at[*e];
		if (x->room > 0 && net->level[x->to] != UINT32_MAX && net->level[x->to] + 1 == net->level[v])
			break;
	}
	return *e;
}

/* Sends as much as the path takes; gives the number of edges before the first that is full now. */
static uint32_t send(network *net, uint32_t length, int64_t *sent)
{
	int64_t room = INT64_MAX;
	uint32_t kept = length;
	for (uint32_t i = 0; i < length; i++)
		room = net->edges.at[net->path[i]].room < room ? net->edges.at[net->path[i]].room : room;
	for (uint32_t i = length; i-- > 0;) {
		net->edges.at[net->path[i]].room -= room;
		net->edges.at[net->path[i] ^ 1].room += room;
		if (net->edges.at[net->path[i]].room == 0)
			kept = i;
	}
	*sent += room;
	return kept;
}

/* Blocks all paths of the present length. Stops early once more was sent than can be cut. */
static void block(network *net, int64_t *sent)
{
	uint32_t length = 0, v = NETWORK_SOURCE;
	memcpy(net->next, net->first, net->n * sizeof *net->next);
	while (*sent < NETWORK_NEVER) {
		uint32_t e = v == NETWORK_SINK ? NO_EDGE : next_edge(net, v);
		if (e != NO_EDGE) {
			net->path[length++] = e;
			v = net->edges.at[e].to;
			continue;
		}
		if (v == NETWORK_SINK) {
			length = send(net, length, sent);
		} else {
			if (length == 0)
				return;
			net->level[v] = UINT32_MAX; /* leads nowhere */
			length--;
		}
		v = net->edges.at[net->path[length] ^ 1].to;
	}
}

static void mark_reached(network *net, bool *with_source)
{
	uint32_t head = 0, tail = 0;
	memset(with_source, 0, net->n * sizeof *with_source);
	with_source[NETWORK_SOURCE] = true;
	net->queue[tail++] = NETWORK_SOURCE;
	while (head < tail)
		for (uint32_t e = net->first[net->queue[head++]]; e != NO_EDGE; e = net->edges.at[e].next)
			if (net->edges.at[e].room > 0 && !with_source[net->edges.at[e].to]) {
				with_source[net->edges.at[e].to] = true;
				net->queue[tail++] = net->edges.at[e].to;
			}
}

void network_cut(network *net, bool *with_source, int64_t *capacity)
{
	int64_t sent = 0;
	while (sent < NETWORK_NEVER && find_levels(net))
		block(net, &sent);
	mark_reached(net, with_source);
	*capacity = sent;
}

uint32_t network_uncuttable(network *net, uint32_t *path)
{
	uint32_t head = 0, tail = 0, n = 0;
	memset(net->next, 0xFF, net->n * sizeof *net->next); /* the edge by which a vertex was reached */
	net->queue[tail++] = NETWORK_SOURCE;
	while (head < tail && net->next[NETWORK_SINK] == NO_EDGE) {
		uint32_t v = net->queue[head++];
		for (uint32_t e = net->first[v]; e != NO_EDGE; e = net->edges.at[e].next) {
			uint32_t to = net->edges.at[e].to;
			if (net->edges.at[e].room < NETWORK_NEVER || to == NETWORK_SOURCE || net->next[to] != NO_EDGE)
				continue;
			net->next[to] = e;
			net->queue[tail++] = to;
		}
	}
	if (net->next[NETWORK_SINK] == NO_EDGE)
		return 0;
	for (uint32_t v = net->edges.at[net->next[NETWORK_SINK] ^ 1].to; v != NETWORK_SOURCE;
	     v = net->edges.at[net->next[v] ^ 1].to)
		path[n++] = v;
	for (uint32_t i = 0; i < n / 2; i++) {
		uint32_t t = path[i];
		path[i] = path[n - 1 - i];
		path[n - 1 - i] = t;
	}
	return n;
}
