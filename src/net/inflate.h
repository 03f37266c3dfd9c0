/* Bodies that were compressed on their way: gzip and deflate (zlib), as HTTP and gRPC name them. */
#ifndef NET_INFLATE_H
#define NET_INFLATE_H

#include "base/strbuf.h"

typedef enum coding { CODING_NONE, CODING_GZIP, CODING_DEFLATE } coding;

/* NULL and "identity" are none. False: another one, or several of them. */
bool coding_of(const char *text, coding *out);
/* What an answer may have by a list such as "gzip;q=0.5, deflate, br". */
coding coding_accepted(const char *list);
const char *coding_name(coding c);

/* Room for inflated bytes: n > 0 bytes at `at`. `written` went into the room before this one; the last call has no `at`. */
typedef clv_status (*inflate_room)(void *ctx, size_t written, uint8_t **at, size_t *n);

/* Inflates n bytes into the rooms that it is given, which set the limit. CLV_E_PARSE: they are damaged, end too early, or have
   more behind their end. CLV_E_LIMIT: they become so many times larger that no tensor did that. */
clv_status inflate_bytes(coding c, const void *from, size_t n, inflate_room room, void *ctx);

typedef struct deflater deflater;
clv_status deflate_open(coding c, deflater **out);
clv_status deflate_add(deflater *d, const void *at, size_t n, bool last, strbuf *to);
void deflate_close(deflater *d); /* NULL is allowed */

#endif
