/* Over jansson: text to JSON with our errors, and objects built with one check per step.
 *
 * Functions that take a new json_t own it also when they fail; a NULL there is a failed allocation. */
#pragma once

#include <jansson.h>

#include "base/strbuf.h"

/* A JSON object or array; no key twice. `what` names the text in errors. Caller frees with json_decref. */
clv_status json_read(const char *text, size_t n, const char *what, json_t **out);
/* What that takes, about, without strings; and what a text of n bytes may take. */
size_t json_memory(const char *text, size_t n);
size_t json_memory_most(size_t n);

/* Compact text, with spaces after it to a multiple of `align` bytes (0: none). */
clv_status json_print(const json_t *root, size_t align, strbuf *out);

/* The text of what `put` adds to a new object. */
typedef clv_status (*json_put_fn)(const void *ctx, json_t *root);
clv_status json_write(json_put_fn put, const void *ctx, strbuf *out);
/* A new list or object as a member. *out: borrowed */
clv_status json_put_list(json_t *object, const char *key, json_t **out);
clv_status json_put_object(json_t *object, const char *key, json_t **out);
clv_status json_push_object(json_t *array, json_t **out);
clv_status json_push_string(json_t *array, const char *s);
clv_status json_put_ids(json_t *object, const char *key, const uint32_t *at, uint32_t n); /* as a list */

clv_status json_put(json_t *object, const char *key /* UTF-8 */, json_t *value /* taken */);
clv_status json_push(json_t *array, json_t *value /* taken */);
clv_status json_put_text(json_t *object, const char *key, const char *s, size_t n); /* must be UTF-8 */
clv_status json_put_string(json_t *object, const char *key, const char *s);         /* likewise */
clv_status json_text(const char *s, size_t n, json_t **out);                        /* likewise; caller frees */

/* Members of an object, by type; CLV_E_PARSE names the key when it is missing or of another type. */
clv_status json_get_array(const json_t *object, const char *key, const json_t **out);
clv_status json_get_object(const json_t *object, const char *key, json_t **out);
clv_status json_get_string(const json_t *object, const char *key, const char **out); /* without NUL inside */
clv_status json_get_int(const json_t *object, const char *key, int64_t *out);
clv_status json_get_bool(const json_t *object, const char *key, bool *out);
const char *json_plain_string(const json_t *text); /* NULL: it is none, or has a NUL inside */
bool json_id(const json_t *number, uint32_t *out); /* a number of a node or the like, below NONE */
