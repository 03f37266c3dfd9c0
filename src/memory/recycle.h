/* Recycling: while a model is captured, memory that it lets go of is handed out again.
 *
 * A recording keeps small objects next to every buffer, which leave holes that malloc cannot use: each operator would take
 * pages from the system, and give them back. An allocator asks recycle_take before it takes memory from elsewhere, and
 * recycle_keep before it gives any back. When the last capture is over, what is in use belongs to where it came from. */
#pragma once

#include "base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void recycle_free(void *at);

/* Requests of this thread, until as many ends; give_back frees what is left over. */
void recycle_begin(void);
void recycle_end(recycle_free *give_back);

bool recycle_entered(size_t size); /* this thread is between them, and so large a block is worth it */
/* A block of at least `size` bytes; NULL: take *room bytes from elsewhere, and tell recycle_note. */
void *recycle_take(size_t size, size_t *room);
void recycle_note(void *at, size_t room);
bool recycle_keep(void *at);                /* false: give it back to where it came from */
void recycle_drop(recycle_free *give_back); /* all that nobody has */

void memory_trim(void); /* what is free in the heap goes back to the system */

#ifdef __cplusplus
}
#endif
