/* Copies with strides, made ready: dimensions that can be one are joined, those that are close together in the result go
 * innermost, and the work is divided into items for threads. simd/move.c does them. */
#include <stdlib.h>

#include "native/kernels.h"

enum {
	ITEM_BYTES = 1 << 14,  /* of an item, where there is so much */
	GRAIN_BYTES = 1 << 17, /* less is not worth a thread */
	TURN_LEAST = 4         /* planes that are narrower are done element by element */
};

static bool is_before(const move_dim *a, const move_dim *b)
{
	return llabs(a->to) != llabs(b->to) ? llabs(a->to) > llabs(b->to) : llabs(a->from) > llabs(b->from);
}

/* Without dimensions of size 1, the largest strides of the result first. False: there are no elements. */
static bool sort_dims(move *m)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < m->ndim; i++) {
		move_dim x = m->d[i];
		uint32_t at = n;
		if (x.size == 0)
			return false;
		if (x.size == 1)
			continue;
		for (; at > 0 && is_before(&x, &m->d[at - 1]); at--)
			m->d[at] = m->d[at - 1];
		m->d[at] = x;
		n++;
	}
	m->ndim = n;
	return true;
}

static void join_dims(move *m)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < m->ndim; i++) {
		move_dim *outer = n ? &m->d[n - 1] : NULL, x = m->d[i];
		if (outer && outer->from == x.from * x.size && outer->to == x.to * x.size)
			*outer = (move_dim){outer->size * x.size, x.from, x.to};
		else
			m->d[n++] = x;
	}
	m->ndim = n;
}

/* The last two dimensions become a plane of the best kind. */
static move_kind pick_plane(move *m)
{
	const move_dim x = m->d[m->ndim - 1];
	if (x.to != m->bytes)
		return MOVE_EACH;
	if (x.from == m->bytes)
		return MOVE_ROWS;
	if (x.from == 0)
		return MOVE_SPREAD;
	for (uint32_t i = m->ndim - 1; i-- > 0;) {
		move_dim y = m->d[i];
		if (y.from != m->bytes || y.size < TURN_LEAST || x.size < TURN_LEAST)
			continue;
		for (; i + 2 < m->ndim; i++)
			m->d[i] = m->d[i + 1];
		m->d[i] = y;
		return MOVE_TURN;
	}
	return MOVE_EACH;
}

static void divide(move *m)
{
	const move_dim *x = &m->d[m->ndim - 1], *y = &m->d[m->ndim - 2];
	int64_t row = x->size * m->bytes, of = y->size > 1 ? y->size : x->size, each = y->size > 1 ? row : m->bytes;
	m->cut = each < ITEM_BYTES ? ITEM_BYTES / each : 1;
	if (m->kind == MOVE_TURN)
		m->cut = 64;
	if (m->cut > of)
		m->cut = of;
	m->cuts = (of + m->cut - 1) / m->cut;
	m->items = m->cuts;
	for (uint32_t i = 0; i + 2 < m->ndim; i++)
		m->items *= m->d[i].size;
	m->grain = GRAIN_BYTES / (m->cut * each) + 1;
}

void move_ready(move *m)
{
	if (!sort_dims(m)) {
		m->ndim = 0;
		m->items = 0;
		return;
	}
	join_dims(m);
	for (uint32_t lead = m->ndim < 2 ? 2 - m->ndim : 0; lead > 0; lead--) { /* at least a plane */
		for (uint32_t i = m->ndim; i > 0; i--)
			m->d[i] = m->d[i - 1];
		m->d[0] = (move_dim){1, m->bytes, m->bytes};
		m->ndim++;
	}
	m->kind = pick_plane(m);
	divide(m);
}
