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
	void *block;
	struct cell *older, *newer; /* of those that wait */
	struct cell *under, *over;  /* likewise, of as many bytes */
	struct cell *beside;        /* the newest of other bytes in the same pile */
} cell;

enum { PILES = 64 };

struct memory_store {
	uint32_t refs;
	pthread_mutex_t lock;
	cell *piles[PILES]; /* by their bytes: for each number of bytes the newest */
	cell *oldest, *newest;
	size_t kept, most; /* bytes, as they cost */
	bool closed;
};

static void cells_free(cell *c)
{
	while (c) {
		cell *next = c->newer;
		mem_free(c->block);
		mem_free(c);
		c = next;
	}
}

size_t memory_store_cost(size_t n)
{
	return sizeof(cell) + BLOCK_ALIGN + n;
}

/* ---- those that wait, under the lock -------------------------------------------------------------------------------- */

/* The newest of so many bytes, or where it would be. Another number of bytes in the same pile is looked at once, however many
   cells have it. */
static cell **top_of(memory_store *s, size_t n)
{
	cell **at = &s->piles[(n * 0x9e3779b97f4a7c15u >> 32) % PILES];
	while (*at && (*at)->m.bytes != n)
		at = &(*at)->beside;
	return at;
}

static void forget(memory_store *s, cell *c)
{
	cell **top = c->over ? &c->over->under : top_of(s, c->m.bytes);
	if (!c->over && c->under)
		c->under->beside = c->beside;
	*top = c->under || c->over ? c->under : c->beside;
	if (c->under)
		c->under->over = c->over;
	*(c->older ? &c->older->newer : &s->oldest) = c->newer;
	*(c->newer ? &c->newer->older : &s->newest) = c->older;
	s->kept -= memory_store_cost(c->m.bytes);
}

static void remember(memory_store *s, cell *c)
{
	cell **top = top_of(s, c->m.bytes), *under = *top;
	c->under = under;
	c->over = NULL;
	c->beside = under ? under->beside : NULL;
	if (under)
		under->over = c;
	*top = c;
	c->newer = NULL;
	c->older = s->newest;
	*(s->newest ? &s->newest->newer : &s->oldest) = c;
	s->newest = c;
	s->kept += memory_store_cost(c->m.bytes);
}

/* Those beyond so many bytes, for cells_free. */
static cell *take_oldest(memory_store *s, size_t most)
{
	cell *gone = NULL;
	while (s->kept > most) {
		cell *c = s->oldest;
		forget(s, c);
		c->newer = gone;
		gone = c;
	}
	return gone;
}

/* ---- stores ---------------------------------------------------------------------------------------------------------- */

static void store_unref(memory_store *s)
{
	if (__atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL))
		return;
	cells_free(s->oldest);
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
		waiting = take_oldest(s, 0);
		pthread_mutex_unlock(&s->lock);
	}
	cells_free(waiting);
	store_unref(s);
}

void memory_store_keep(memory_store *s, size_t bytes)
{
	if (!ADDRESS_SANITIZER && bytes > __atomic_load_n(&s->most, __ATOMIC_RELAXED)) /* it sees who reads what is freed */
		__atomic_store_n(&s->most, bytes, __ATOMIC_RELAXED);
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
		c = *top_of(s, n);
		if (c)
			forget(s, c);
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
	c->newer = NULL;
	if (pthread_mutex_trylock(&s->lock) == 0) {
		bool closed = __atomic_load_n(&s->closed, __ATOMIC_ACQUIRE);
		remember(s, c);
		gone = take_oldest(s, closed ? 0 : __atomic_load_n(&s->most, __ATOMIC_RELAXED));
		pthread_mutex_unlock(&s->lock);
	}
	cells_free(gone);
	store_unref(s);
}
