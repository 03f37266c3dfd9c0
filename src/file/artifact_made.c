/* Pieces that runtimes made of an open file, listed with it: parts of one model use the same packed weights. */
#include "base/limits.h"
#include "file/artifact_packed.h"
#include "memory/room.h"

struct made_piece {
	made_piece *next;
	artifact *of; /* counted */
	digest key;
	size_t n;
	uint32_t users; /* under the lock of the artifact */
	room *room;
	void *data;
};

static made_piece *find(const artifact *a, digest key, size_t n)
{
	made_piece *p = a->made;
	while (p && (p->n != n || !digest_equal(p->key, key)))
		p = p->next;
	return p;
}

static void piece_free(made_piece *p)
{
	if (p)
		room_give(p->room);
	mem_free(p);
}

static clv_status piece_new(artifact *a, digest key, size_t n, made_piece **out)
{
	TRY(limits_room((int64_t)n));
	made_piece *p = mem_alloc(sizeof *p);
	room *r = NULL;
	void *data = p ? room_take(&a->room, n, &r) : NULL;
	if (!data) {
		mem_free(p);
		return fail(CLV_E_NOMEM, "there is no memory for %zu bytes of packed weights", n);
	}
	*p = (made_piece){.key = key, .n = n, .room = r, .data = data};
	*out = p;
	return CLV_OK;
}

static clv_status add(artifact *a, digest key, size_t n, piece_fn make, const void *ctx, made_piece **out)
{
	TRY(piece_new(a, key, n, out));
	make(ctx, (*out)->data);
	(*out)->of = artifact_ref(a);
	(*out)->next = a->made;
	a->made = *out;
	return CLV_OK;
}

/* Under the lock while it is made: whoever else wants one now most likely wants this. */
clv_status made_take(const artifact *origin, digest key, size_t n, piece_fn make, const void *ctx, made_piece **out)
{
	artifact *a = (artifact *)origin;
	pthread_mutex_lock(&a->made_lock);
	*out = find(a, key, n);
	clv_status st = *out || !make ? CLV_OK : add(a, key, n, make, ctx, out);
	if (*out)
		(*out)->users++;
	pthread_mutex_unlock(&a->made_lock);
	return st;
}

void made_give(made_piece *p)
{
	artifact *a = p ? p->of : NULL;
	if (!p)
		return;
	pthread_mutex_lock(&a->made_lock);
	bool last = --p->users == 0;
	made_piece **at = &a->made;
	while (last && *at != p)
		at = &(*at)->next;
	if (last)
		*at = p->next;
	pthread_mutex_unlock(&a->made_lock);
	if (!last)
		return;
	piece_free(p);
	artifact_free(a);
}

const void *made_data(const made_piece *p)
{
	return p->data;
}

bool made_any(const artifact *origin)
{
	artifact *a = (artifact *)origin;
	pthread_mutex_lock(&a->made_lock);
	bool any = a->made;
	pthread_mutex_unlock(&a->made_lock);
	return any;
}
