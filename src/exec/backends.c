/* The registry of back ends: some are built in, callers add others. */
#include "exec/backend.h"

#include <ctype.h>
#include <pthread.h>
#include <string.h>

#define ADDRESS(name) &backend_##name,
static const backend *const built_in[] = {CLV_BACKEND_LIST(ADDRESS)};
enum { BUILT_IN = sizeof built_in / sizeof *built_in };

/* Entries stay for ever: code that is loaded points to its back end. */
typedef struct entry {
	backend b;
	struct entry *next;
} entry;

static entry *added; /* the newest first */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static entry *added_first(void)
{
	pthread_mutex_lock(&lock);
	entry *first = added;
	pthread_mutex_unlock(&lock);
	return first;
}

static const backend *find_built_in(const char *name)
{
	for (uint32_t i = 0; i < BUILT_IN; i++)
		if (strcmp(built_in[i]->name, name) == 0)
			return built_in[i];
	return NULL;
}

static const backend *find_added(const entry *e, const char *name)
{
	for (; e; e = e->next)
		if (strcmp(e->b.name, name) == 0)
			return &e->b;
	return NULL;
}

const backend *backend_at(uint32_t i)
{
	if (i < BUILT_IN)
		return built_in[i];
	i -= BUILT_IN;
	const entry *first = added_first();
	for (const entry *e = first; e; e = e->next)
		if (find_added(first, e->b.name) == &e->b && i-- == 0) /* else it was replaced */
			return &e->b;
	return NULL;
}

static clv_status not_found(const char *name)
{
	strbuf b = STRBUF_INIT;
	const backend *x;
	strbuf_printf(&b, "there is no back end \"%.32s\" here; there are ", name);
	for (uint32_t i = 0; (x = backend_at(i)); i++)
		strbuf_printf(&b, "%s%s", i ? ", " : "", x->name);
	return strbuf_fail(CLV_E_NOT_FOUND, &b);
}

clv_status backend_find(const char *name, const backend **out)
{
	*out = find_built_in(name);
	if (!*out)
		*out = find_added(added_first(), name);
	return *out ? CLV_OK : not_found(name);
}

/* Names are in files and in commands. */
static bool name_is_good(const char *name)
{
	size_t n = name ? strlen(name) : 0;
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)name[i]) && name[i] != '_' && name[i] != '-')
			return false;
	return n > 0 && n <= 32;
}

clv_status backend_add(const backend *b)
{
	if (!name_is_good(b->name))
		return fail(CLV_E_INVALID, "a back end's name is 1 to 32 letters, digits, _ and -");
	if (find_built_in(b->name))
		return fail(CLV_E_INVALID, "the back end %s is built in and cannot be replaced", b->name);
	size_t n = strlen(b->name) + 1;
	entry *e = mem_alloc(sizeof *e + n);
	TRY_MEM(e);
	e->b = *b;
	e->b.name = memcpy(e + 1, b->name, n);
	pthread_mutex_lock(&lock);
	e->next = added;
	added = e;
	pthread_mutex_unlock(&lock);
	return CLV_OK;
}
