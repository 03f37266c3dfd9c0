/* Fuzz target: any bytes as a file of arrays, .npy or safetensors. They must be refused with a message, or be arrays whose
 * data can all be read and is as long as their shapes say.
 *
 * Bytes that do not start like either are the header of an .npy file of version 1, with as much data as there is left after
 * a newline: so the fuzzer need not learn lengths first. */
#include <stdlib.h>
#include <string.h>

#include "file/npy.h"
#include "must.h"

static void look(const void *data, size_t n)
{
	clv_arrays *a;
	if (arrays_parse(data, n, &a) != CLV_OK) {
		MUST(clv_last_error()[0] != '\0');
		return;
	}
	volatile uint8_t sum = 0; /* so that all bytes are really read */
	for (uint32_t i = 0; i < clv_arrays_count(a); i++) {
		clv_array x = {.size = sizeof x};
		MUST(clv_arrays_get(a, i, &x) == CLV_OK && clv_arrays_find(a, x.name) == i);
		for (size_t k = 0; k < x.bytes; k++)
			sum = (uint8_t)(sum + ((const uint8_t *)x.data)[k]);
	}
	clv_arrays_free(a);
}

static void look_at_header(const uint8_t *data, size_t n)
{
	const uint8_t *line = memchr(data, '\n', n);
	size_t header_n = line ? (size_t)(line - data) + 1 : n;
	uint8_t *file = malloc(n + 10);
	MUST(file);
	memcpy(file, "\x93NUMPY\x01\x00", 8);
	file[8] = (uint8_t)header_n;
	file[9] = (uint8_t)(header_n >> 8);
	if (n)
		memcpy(file + 10, data, n);
	look(file, n + 10);
	free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size && data[0] == '{' && size < 65536)
		look_at_header(data, size);
	else
		look(data, size);
	return 0;
}
