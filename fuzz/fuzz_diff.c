/* Fuzz target: two texts with a NUL between them as plans. What differs is what plan_equal says, in both directions, and
 * the answer is text that a terminal and a reader of JSON can take. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "must.h"

static void check_page(const char *text)
{
	for (; *text; text++)
		MUST(*text == '\n' || ((unsigned char)*text >= 0x20 && *text != 0x7F));
}

static void check_json(const char *text, bool differ)
{
	json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	MUST(root && json_is_true(json_object_get(root, "differ")) == differ);
	json_decref(root);
}

static void compare(const plan *a, const plan *b)
{
	for (int json = 0; json < 2; json++) {
		clv_diff_options o = CLV_DIFF_OPTIONS_INIT;
		char *text;
		bool differ;
		o.json = json;
		o.limit = json ? 2 : 0;
		MUST(clv_plan_diff(a, b, &o, &text, &differ) == CLV_OK);
		MUST(differ == !plan_equal(a, b));
		if (json)
			check_json(text, differ);
		else
			check_page(text);
		clv_free(text);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
	size_t first = nul ? (size_t)(nul - data) : size;
	plan *a = NULL, *b = NULL;
	if (clv_plan_parse((const char *)data, first, &a) == CLV_OK) {
		compare(a, a);
		if (nul && clv_plan_parse((const char *)nul + 1, size - first - 1, &b) == CLV_OK) {
			compare(a, b);
			compare(b, a);
		}
	}
	clv_plan_free(a);
	clv_plan_free(b);
	return 0;
}
