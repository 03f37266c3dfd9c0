/* Fuzz target: bytes of a client of HTTP/2, as the loop gives them to the session. The first byte says in which pieces they come.
 *
 * They are understood or they end the connection, and nothing of it stays. */
#include "loopback.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char start[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
	if (!size || size > 1 << 16)
		return 0;
	connection *c = loopback_open(loopback_server());
	size_t step = data[0] ? data[0] : size;
	loopback_give(c, start, sizeof start - 1);
	for (size_t at = 1; at < size && !c->dead; at += step) {
		loopback_give(c, data + at, step < size - at ? step : size - at);
		loopback_take(c, NULL, NULL);
	}
	loopback_close(c);
	return 0;
}
