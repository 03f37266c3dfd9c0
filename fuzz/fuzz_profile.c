/* Fuzz target: any bytes as a file of a profile. They must be refused with a message, or be a profile that is written and
 * read again the same. */
#include <stdlib.h>
#include <string.h>

#include "pipe/profile.h"
#include "must.h"

static char *printed(const profile *f)
{
	strbuf b = STRBUF_INIT;
	char *text;
	MUST(profile_print(f, &b) == CLV_OK && strbuf_take(&b, &text) == CLV_OK);
	return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	profile f, again;
	if (profile_parse((const char *)data, size, &f) != CLV_OK) {
		MUST(clv_last_error()[0] != '\0');
		return 0;
	}
	char *text = printed(&f);
	MUST(profile_parse(text, strlen(text), &again) == CLV_OK);
	char *second = printed(&again);
	MUST(!strcmp(text, second));
	mem_free(text);
	mem_free(second);
	profile_free(&f);
	profile_free(&again);
	return 0;
}
