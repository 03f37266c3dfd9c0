/* Memory: checked allocation that tests can make fail, growable arrays, an arena for strings.
 *
 * Every allocation of the core goes through mem_alloc/mem_realloc, so that one test can let the n-th
 * allocation fail for every n (the fault sweep). All return NULL on failure; nothing aborts. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"

void *mem_alloc(size_t size);                           /* zeroed; caller frees with mem_free */
void *mem_realloc(void *at, size_t count, size_t elem); /* checks count*elem; new memory is not zeroed */
/* New memory for much that is read or written again and again: from the start of a page on, and on huge pages where it is large
   and the system gives them. It is not zeroed; mem_free. */
void *mem_pages(size_t size);
void mem_free(void *at);
uint32_t *mem_ids(size_t n);               /* n ids, all NONE (0xffffffff); caller frees */
char *mem_strdup(const char *s, size_t n); /* n bytes and a NUL; caller frees */

/* Built with AddressSanitizer, which keeps notes about all memory in memory of its own. */
#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#define ADDRESS_SANITIZER __has_feature(address_sanitizer)
#else
#define ADDRESS_SANITIZER 0
#endif

/* Test hook: the allocation number `n` from now fails (0: none does). Per thread. */
void mem_fail_after(uint64_t n);
bool mem_fail_waits(void); /* that allocation has not come yet */

/* A growable array. `VEC(node) nodes;` starts as all zero bytes; vec_free() releases it. */
#define VEC(T)                                                                                                         \
	struct {                                                                                                           \
		T *at;                                                                                                         \
		uint32_t n, cap;                                                                                               \
	}

clv_status vec_reserve_(void **at, uint32_t *cap, size_t need, size_t elem);

#define vec_reserve(v, more) vec_reserve_((void **)&(v)->at, &(v)->cap, (size_t)(v)->n + (more), sizeof *(v)->at)

/* Appends one element: TRY(vec_push(&p->nodes, n)). Evaluates to a status. */
#define vec_push(v, x) ((clv_status)(vec_reserve((v), 1) == CLV_OK ? ((v)->at[(v)->n++] = (x), CLV_OK) : CLV_E_NOMEM))

/* Pointer to element i, also of an array that was never made (where i is 0 and nothing may be read). */
#define vec_from(v, i) ((v)->at ? (v)->at + (i) : (v)->at)

#define vec_free(v)                                                                                                    \
	do {                                                                                                               \
		mem_free((v)->at);                                                                                             \
		(v)->at = NULL;                                                                                                \
		(v)->n = (v)->cap = 0;                                                                                         \
	} while (0)
