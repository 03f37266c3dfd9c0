/* Options of callers built with this header, or an older one. */
#include "base/options.h"

#include <string.h>

clv_status options_read(void *out, size_t known, const void *given, const char *name)
{
	size_t size = known;
	if (!given)
		return CLV_OK;
	memcpy(&size, given, sizeof size);
	if (size < sizeof size || size > known)
		return fail(CLV_E_INVALID, "%s.size is %zu, this library knows up to %zu", name, size, known);
	memcpy(out, given, size);
	return CLV_OK;
}

clv_status options_write(void *out, void *all, size_t known, const char *name)
{
	size_t size;
	memcpy(&size, out, sizeof size);
	if (size < sizeof size || size > known)
		return fail(CLV_E_INVALID, "%s.size is %zu, this library knows up to %zu", name, size, known);
	memcpy(all, &size, sizeof size);
	memcpy(out, all, size);
	return CLV_OK;
}

clv_status sizes_check(const clv_sizes *s)
{
	for (uint32_t i = 0; s && i < s->n; i++)
		if (!s->symbols || !s->values || !s->symbols[i])
			return fail(CLV_E_INVALID, "clv_sizes: %u symbols without names or sizes", s->n);
	return CLV_OK;
}
