/* HTTP/1.1 as bytes: heads, bodies in chunks. Pure functions over memory, without sockets.
 *
 * What two readers could understand in two ways is refused: that is how requests are smuggled past a proxy. So there are no
 * lengths given twice, no length beside chunks, no folded lines, no bare line feeds, no spaces around names. */
#ifndef NET_HTTP_H
#define NET_HTTP_H

#include "base/arena.h"

enum { HTTP_HEAD_MOST = 32 * 1024, HTTP_FIELDS_MOST = 100 };

typedef struct http_field {
	const char *name; /* in small letters */
	const char *value;
} http_field;

/* A request without its body, of either version. Texts are in the arena that was given. */
typedef struct http_head {
	const char *method;
	const char *path;  /* as it was sent, without the query */
	const char *query; /* "" */
	VEC(http_field) fields;
	int64_t length;                    /* of the body; -1: not given */
	bool chunked, keep_alive, expects; /* expects: waits for "100 Continue" */
	bool old;                          /* HTTP/1.0 */
} http_head;

/* Where a head ends: the number of bytes up to and with the empty line; 0: not yet. */
size_t http_head_end(const char *at, size_t n);
/* Reads the n bytes of a head. CLV_E_PARSE: it is malformed. CLV_E_UNSUPPORTED: a version or a coding that we do not have.
   http_head_free in any case. */
clv_status http_head_read(const char *at, size_t n, arena *a, http_head *out);
void http_head_free(http_head *h);
/* Only its fields, which answers have too; the bytes of its first line are left to the caller. */
clv_status http_fields_read(const char *at, size_t n, arena *a, http_head *out, size_t *first);
/* One more field; used by HTTP/2 too. CLV_E_PARSE: characters that no field has. CLV_E_LIMIT: too many. */
clv_status http_field_add(http_head *h, arena *a, const char *name, size_t nname, const char *value, size_t nvalue);
/* A path with its query. CLV_E_PARSE. */
clv_status http_target(http_head *h, arena *a, const char *at, size_t n);
const char *http_field_of(const http_head *h, const char *name); /* the first of that name; NULL: none */
bool http_has_word(const char *list, const char *word);          /* "gzip, deflate;q=0.5" has "deflate" */
/* Digits alone; false: something else, or too large. */
bool http_number(const char *text, int64_t *out);
/* %2f and the like, in place of what they stand for; a % without two hexadecimal digits is itself. False: there is a NUL. `out`
   has room for n + 1. */
bool http_unescape(const char *at, size_t n, char *out);

/* A body in chunks. Starts as all zero bytes. */
typedef struct http_chunks {
	uint8_t state;
	uint64_t left;   /* of the chunk */
	uint32_t digits; /* of its size */
	uint32_t junk;   /* bytes of extensions and trailers, which are not looked at */
} http_chunks;

/* Takes framing off: *used bytes of n were read, of which the last *data bytes, if any, belong to the body. To be called again
   with the rest until *done or all is used. CLV_E_PARSE. */
clv_status http_chunks_read(http_chunks *c, const char *at, size_t n, size_t *used, size_t *data, bool *done);

const char *http_reason(unsigned status); /* "Not Found" */

#endif
