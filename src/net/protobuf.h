/* The wire form of protocol buffers: fields of a message one after another, borrowed from its bytes, and messages into text
 * buffers. Which field means what is up to the caller; unknown ones are passed over. */
#ifndef NET_PROTOBUF_H
#define NET_PROTOBUF_H

#include "base/strbuf.h"

enum { PB_NUMBER = 0, PB_FIXED64 = 1, PB_BYTES = 2, PB_FIXED32 = 5 };

typedef struct pb_field {
	uint32_t number;
	uint8_t wire;
	uint64_t value; /* of a number, also of fixed width */
	const void *at; /* of bytes: borrowed */
	size_t n;
} pb_field;

typedef struct pb_reader {
	const uint8_t *at, *end;
} pb_reader;

pb_reader pb_read(const void *at, size_t n);
/* The next field; *there is false at the end. CLV_E_PARSE: no such form. */
clv_status pb_next(pb_reader *r, pb_field *out, bool *there);
/* The next number of a packed list. CLV_E_PARSE. */
clv_status pb_varint(pb_reader *r, uint64_t *out);

/* Numbers that are 0, texts and lists that are empty are left out, as the form says. */
void pb_put_number(strbuf *b, uint32_t field, uint64_t value);
void pb_put_bytes(strbuf *b, uint32_t field, const void *at, size_t n);
void pb_put_head(strbuf *b, uint32_t field, size_t n); /* of bytes that follow elsewhere */
void pb_put_text(strbuf *b, uint32_t field, const char *s);
void pb_put_message(strbuf *b, uint32_t field, strbuf *message); /* also an empty one; `message` is empty after */
void pb_put_packed(strbuf *b, uint32_t field, const int64_t *at, uint32_t n);

#endif
