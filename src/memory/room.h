/* Rooms: memory for pieces that live long, one behind the other, on huge pages where the system gives them. Weights are read from
 * end to end in every run: on small pages their addresses cost as much as their numbers. */
#pragma once

#include <stddef.h>

typedef struct room room; /* counted: by its pieces, and by whoever takes more of it */

/* n bytes, aligned to MEMORY_ALIGN, of the room at *now, or of a new one that takes its place; *of is released with room_give.
   NULL: there is no memory. Not two calls on the same *now at a time. */
void *room_take(room **now, size_t n, room **of);
void room_give(room *r); /* from any thread; NULL is allowed */
