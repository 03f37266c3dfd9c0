/* Memory for long-lived pieces on huge pages. */
#include "memory/room.h"

#include <stdatomic.h>

#include "base/mem.h"
#include "memory/layout.h"

static const size_t LEAST = (size_t)256 << 10, MOST = (size_t)32 << 20;

struct room {
	atomic_uint users;
	size_t used, size;
	char *at;
};

static room *room_new(size_t size)
{
	room *r = mem_alloc(sizeof *r);
	char *at = r ? mem_pages(size) : NULL;
	if (!at) {
		mem_free(r);
		return NULL;
	}
	*r = (room){.size = size, .at = at};
	atomic_init(&r->users, 1);
	return r;
}

void room_give(room *r)
{
	if (!r || atomic_fetch_sub(&r->users, 1) != 1)
		return;
	mem_free(r->at);
	mem_free(r);
}

/* Each is twice as large as the one before: few pieces take little memory, many are on few pages. Sanitizers see the end of
   every piece. */
static size_t next_size(const room *now, size_t n)
{
	size_t size = !now ? LEAST : now->size < MOST / 2 ? 2 * now->size : MOST;
	return size < n || ADDRESS_SANITIZER ? n : size;
}

void *room_take(room **now, size_t n, room **of)
{
	room *r = *now;
	size_t need = (n + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
	if (need < n)
		return NULL;
	if (r && atomic_load(&r->users) == 1) /* its pieces are gone */
		r->used = 0;
	if (!r || r->size - r->used < need) {
		r = room_new(next_size(r, need));
		if (!r)
			return NULL;
		room_give(*now);
		*now = r;
	}
	atomic_fetch_add(&r->users, 1);
	*of = r;
	r->used += need;
	return r->at + r->used - need;
}
