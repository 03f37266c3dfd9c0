/* Over jansson: text to JSON with our errors, and objects built with one check per step.
 *
 * Functions that take a new json_t own it also when they fail; a NULL there is a failed allocation. */
#ifndef FILE_JSON_H
#define FILE_JSON_H

#include <jansson.h>

#include "base/strbuf.h"

/* A JSON object or array; no key twice. `what` names the text in errors. Caller frees with json_decref. */
clv_status json_read(const char *text, size_t n, const char *what, json_t **out);

/* Compact text, with spaces after it to a multiple of `align` bytes (0: none). */
clv_status json_print(const json_t *root, size_t align, strbuf *out);

clv_status json_put(json_t *object, const char *key /* UTF-8 */, json_t *value /* taken */);
clv_status json_push(json_t *array, json_t *value /* taken */);
clv_status json_put_text(json_t *object, const char *key, const char *s, size_t n); /* must be UTF-8 */
clv_status json_put_string(json_t *object, const char *key, const char *s);         /* likewise */
clv_status json_text(const char *s, size_t n, json_t **out);                        /* likewise; caller frees */

/* Members of an object, by type; CLV_E_PARSE names the key when it is missing or of another type. */
clv_status json_get_array(const json_t *object, const char *key, const json_t **out);
clv_status json_get_string(const json_t *object, const char *key, const char **out); /* without NUL inside */
clv_status json_get_int(const json_t *object, const char *key, int64_t *out);
clv_status json_get_bool(const json_t *object, const char *key, bool *out);

#endif
