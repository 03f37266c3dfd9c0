/* Names of training sessions: which are allowed, and new ones. */
#include "file/session_name.h"

#include <string.h>
#include <sys/random.h>

#include "base/digest.h"

bool session_is_name(const char *s)
{
	size_t n = strlen(s);
	size_t plain = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_");
	return n && n <= SESSION_NAME_MOST && plain == n && *s != '-';
}

clv_status session_name_new(char out[SESSION_NAME_MOST + 1])
{
	uint8_t bits[16];
	if (getrandom(bits, sizeof bits, 0) != sizeof bits)
		return fail(CLV_E_IO, "the system has no random numbers now");
	hex_print(bits, sizeof bits, out);
	out[2 * sizeof bits] = '\0';
	return CLV_OK;
}
