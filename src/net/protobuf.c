/* Protocol buffers on the wire. */
#include "net/protobuf.h"

#include <string.h>

pb_reader pb_read(const void *at, size_t n)
{
	return (pb_reader){at, n ? (const uint8_t *)at + n : at};
}

static clv_status malformed(void)
{
	return fail(CLV_E_PARSE, "the message is no valid protocol buffer");
}

clv_status pb_varint(pb_reader *r, uint64_t *out)
{
	uint64_t value = 0;
	for (unsigned shift = 0; shift < 64 && r->at < r->end; shift += 7) {
		uint8_t byte = *r->at++;
		if (shift == 63 && byte > 1)
			break;
		value |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80)) {
			*out = value;
			return CLV_OK;
		}
	}
	return malformed();
}

static clv_status read_fixed(pb_reader *r, size_t n, uint64_t *out)
{
	if ((size_t)(r->end - r->at) < n)
		return malformed();
	*out = 0;
	memcpy(out, r->at, n); /* little endian */
	r->at += n;
	return CLV_OK;
}

static clv_status read_bytes(pb_reader *r, pb_field *out)
{
	uint64_t n;
	TRY(pb_varint(r, &n));
	if (n > (size_t)(r->end - r->at))
		return malformed();
	out->at = r->at;
	out->n = (size_t)n;
	r->at += n;
	return CLV_OK;
}

clv_status pb_next(pb_reader *r, pb_field *out, bool *there)
{
	uint64_t key;
	*there = r->at < r->end;
	if (!*there)
		return CLV_OK;
	TRY(pb_varint(r, &key));
	if (key >> 3 == 0 || key >> 3 > UINT32_MAX)
		return malformed();
	*out = (pb_field){.number = (uint32_t)(key >> 3), .wire = (uint8_t)(key & 7)};
	switch (out->wire) {
	case PB_NUMBER: return pb_varint(r, &out->value);
	case PB_FIXED64: return read_fixed(r, 8, &out->value);
	case PB_FIXED32: return read_fixed(r, 4, &out->value);
	case PB_BYTES: return read_bytes(r, out);
	default: return malformed();
	}
}

/* ---- writing --------------------------------------------------------------------------------------------------------------- */

static void put_varint(strbuf *b, uint64_t value)
{
	while (value >= 0x80) {
		strbuf_putc(b, (char)(value | 0x80));
		value >>= 7;
	}
	strbuf_putc(b, (char)value);
}

static void put_key(strbuf *b, uint32_t field, uint8_t wire)
{
	put_varint(b, (uint64_t)field << 3 | wire);
}

void pb_put_number(strbuf *b, uint32_t field, uint64_t value)
{
	if (!value)
		return;
	put_key(b, field, PB_NUMBER);
	put_varint(b, value);
}

void pb_put_head(strbuf *b, uint32_t field, size_t n)
{
	put_key(b, field, PB_BYTES);
	put_varint(b, n);
}

void pb_put_bytes(strbuf *b, uint32_t field, const void *at, size_t n)
{
	pb_put_head(b, field, n);
	if (n)
		strbuf_add(b, at, n);
}

void pb_put_text(strbuf *b, uint32_t field, const char *s)
{
	if (*s)
		pb_put_bytes(b, field, s, strlen(s));
}

void pb_put_message(strbuf *b, uint32_t field, strbuf *message)
{
	pb_put_head(b, field, message->n);
	strbuf_move(b, message);
}

void pb_put_packed(strbuf *b, uint32_t field, const int64_t *at, uint32_t n)
{
	strbuf list = STRBUF_INIT;
	for (uint32_t i = 0; i < n; i++)
		put_varint(&list, (uint64_t)at[i]);
	if (n)
		pb_put_message(b, field, &list);
	strbuf_free(&list);
}
