/* A store of memories: what runs give away comes back when its users let it go, and serves later runs, so that a steady run asks
 * the system for nothing.
 *
 * A cell is a memory with a tensor beside it. The store belongs to who made it and to every cell that is out. Nobody waits for its
 * lock: a call that finds it taken, also in a child of fork() that lost the thread which had it, goes by the heap. */
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/tensor.h"

typedef struct cell {
	tensor_memory m; /* the first member: a memory of a store is a cell */
	clv_tensor t;
	struct cell *next;
	void *block;
} cell;

struct memory_store {
	uint32_t refs;
	pthread_mutex_t lock;
	cell *waiting; /* the last one that came first */
	size_t most;   /* bytes */
	bool closed;
};

static void cells_free(cell *c)
{
	while (c) {
		cell *next = c->next;
		mem_free(c->block);
		mem_free(c);
		c = next;
	}
}

static void store_unref(memory_store *s)
{
	if (__atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL))
		return;
	cells_free(s->waiting);
	pthread_mutex_destroy(&s->lock);
	mem_free(s);
}

clv_status memory_store_new(memory_store **out)
{
	memory_store *s = mem_alloc(sizeof *s);
	TRY_MEM(s);
	s->refs = 1;
	pthread_mutex_init(&s->lock, NULL);
	*out = s;
	return CLV_OK;
}

void memory_store_close(memory_store *s)
{
	cell *waiting = NULL;
	if (!s)
		return;
	__atomic_store_n(&s->closed, true, __ATOMIC_RELEASE);
	if (pthread_mutex_trylock(&s->lock) == 0) { /* else it goes with the last cell that is out */
		waiting = s->waiting;
		s->waiting = NULL;
		pthread_mutex_unlock(&s->lock);
	}
	cells_free(waiting);
	store_unref(s);
}

size_t memory_store_cost(size_t n)
{
	return sizeof(cell) + BLOCK_ALIGN + n;
}

void memory_store_keep(memory_store *s, size_t bytes)
{
	if (!ADDRESS_SANITIZER && bytes > __atomic_load_n(&s->most, __ATOMIC_RELAXED)) /* it sees who reads what is freed */
		__atomic_store_n(&s->most, bytes, __ATOMIC_RELAXED);
}

/* Out of the list; NULL: none has so many bytes. */
static cell *find(memory_store *s, size_t n)
{
	for (cell **at = &s->waiting; *at; at = &(*at)->next) {
		cell *c = *at;
		if (c->m.bytes != n)
			continue;
		*at = c->next;
		return c;
	}
	return NULL;
}

/* The oldest that are too many, out of the list. */
static cell *too_many(memory_store *s)
{
	cell **at = &s->waiting;
	size_t most = __atomic_load_n(&s->closed, __ATOMIC_ACQUIRE) ? 0 : __atomic_load_n(&s->most, __ATOMIC_RELAXED);
	for (size_t kept = 0; *at; at = &(*at)->next) {
		kept += memory_store_cost((*at)->m.bytes);
		if (kept > most)
			break;
	}
	cell *rest = *at;
	*at = NULL;
	return rest;
}

static clv_status new_cell(size_t n, cell **out)
{
	cell *c = mem_alloc(sizeof *c);
	TRY_MEM(c);
	clv_status st = memory_block(n, &c->block, &c->m.base);
	c->m.bytes = n;
	if (st == CLV_OK)
		*out = c;
	else
		mem_free(c);
	return st;
}

clv_status memory_store_take(memory_store *s, size_t n, tensor_memory **out)
{
	cell *c = NULL;
	if (pthread_mutex_trylock(&s->lock) == 0) {
		c = find(s, n);
		pthread_mutex_unlock(&s->lock);
	}
	if (!c)
		TRY(new_cell(n, &c));
	__atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED);
	c->m = (tensor_memory){.refs = 1, .base = c->m.base, .bytes = n, .own = true, .store = s, .room = &c->t};
	*out = &c->m;
	return CLV_OK;
}

void memory_store_give(tensor_memory *m)
{
	cell *c = (cell *)m, *gone = c;
	memory_store *s = m->store;
	c->next = NULL;
	if (pthread_mutex_trylock(&s->lock) == 0) {
		c->next = s->waiting;
		s->waiting = c;
		gone = too_many(s);
		pthread_mutex_unlock(&s->lock);
	}
	cells_free(gone);
	store_unref(s);
}
