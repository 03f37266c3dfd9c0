/* HTTP/1.1: heads of requests and bodies in chunks. */
#define _GNU_SOURCE /* memmem, memrchr */
#include "net/http.h"

#include <string.h>

#include "base/digest.h"

/* ---- characters ---------------------------------------------------------------------------------------------------- */

static bool is_token(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
	       (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool all_tokens(const char *at, size_t n)
{
	size_t i = 0;
	while (i < n && is_token(at[i]))
		i++;
	return n && i == n;
}

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + 'a' - 'A') : c;
}

bool http_number(const char *text, int64_t *out)
{
	int64_t n = 0;
	if (!*text)
		return false;
	for (const char *c = text; *c; c++)
		if (*c < '0' || *c > '9' || __builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *c - '0', &n))
			return false;
	*out = n;
	return true;
}

bool http_unescape(const char *at, size_t n, char *out)
{
	for (size_t i = 0; i < n; i++) {
		char c = at[i];
		if (c == '%') {
			int high = i + 1 < n ? hex_digit_any(at[i + 1]) : -1, low = i + 2 < n ? hex_digit_any(at[i + 2]) : -1;
			if (high >= 0 && low >= 0) {
				c = (char)(high * 16 + low);
				i += 2;
			}
		}
		if (!c)
			return false;
		*out++ = c;
	}
	*out = '\0';
	return true;
}

bool http_has_word(const char *list, const char *word)
{
	size_t n = strlen(word);
	while (list && *list) {
		list += strspn(list, " \t,");
		size_t k = strcspn(list, ",;");
		size_t end = k;
		while (end && (list[end - 1] == ' ' || list[end - 1] == '\t'))
			end--;
		bool same = end == n;
		for (size_t i = 0; same && i < n; i++)
			same = lower(list[i]) == word[i];
		if (same)
			return true;
		list += strcspn(list, ",");
	}
	return false;
}

/* ---- heads ----------------------------------------------------------------------------------------------------------- */

size_t http_head_end(const char *at, size_t n)
{
	const char *found = n >= 4 ? memmem(at, n, "\r\n\r\n", 4) : NULL;
	return found ? (size_t)(found - at) + 4 : 0;
}

void http_head_free(http_head *h)
{
	vec_free(&h->fields);
}

static clv_status keep_text(arena *a, const char *at, size_t n, const char **out)
{
	char *s = arena_alloc(a, n + 1);
	TRY_MEM(s);
	memcpy(s, at, n);
	*out = s;
	return CLV_OK;
}

clv_status http_field_add(http_head *h, arena *a, const char *name, size_t nname, const char *value, size_t nvalue)
{
	http_field f;
	if (!all_tokens(name, nname))
		return fail(CLV_E_PARSE, "the head is malformed: a field has a name that none may have");
	for (size_t i = 0; i < nvalue; i++)
		if ((unsigned char)value[i] < 0x20 ? value[i] != '\t' : value[i] == 0x7f)
			return fail(CLV_E_PARSE, "a field of the head has a control character in it");
	if (h->fields.n >= HTTP_FIELDS_MOST)
		return fail(CLV_E_LIMIT, "the head has more than %d fields", HTTP_FIELDS_MOST);
	TRY(keep_text(a, name, nname, &f.name));
	TRY(keep_text(a, value, nvalue, &f.value));
	for (char *c = (char *)f.name; *c; c++)
		*c = lower(*c);
	return vec_push(&h->fields, f);
}

const char *http_field_of(const http_head *h, const char *name)
{
	for (uint32_t i = 0; i < h->fields.n; i++)
		if (strcmp(h->fields.at[i].name, name) == 0)
			return h->fields.at[i].value;
	return NULL;
}

static uint32_t count_of(const http_head *h, const char *name)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < h->fields.n; i++)
		n += strcmp(h->fields.at[i].name, name) == 0;
	return n;
}

clv_status http_target(http_head *h, arena *a, const char *at, size_t n)
{
	const char *mark = n ? memchr(at, '?', n) : NULL;
	size_t path = mark ? (size_t)(mark - at) : n;
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)at[i] <= ' ' || (unsigned char)at[i] >= 0x7f || at[i] == '#')
			return fail(CLV_E_PARSE, "the target of the request has a character that none may have");
	if (!n || (at[0] != '/' && !(n == 1 && at[0] == '*')))
		return fail(CLV_E_PARSE, "the target of the request is no path");
	TRY(keep_text(a, at, path, &h->path));
	return keep_text(a, mark ? mark + 1 : "", mark ? n - path - 1 : 0, &h->query);
}

/* METHOD target HTTP/1.x */
static clv_status read_first_line(http_head *h, arena *a, const char *at, size_t n)
{
	const char *space = memchr(at, ' ', n);
	const char *last = memrchr(at, ' ', n);
	if (!space || space == last || !all_tokens(at, (size_t)(space - at)))
		return fail(CLV_E_PARSE, "the first line of the request is malformed");
	size_t version = n - (size_t)(last + 1 - at);
	if (version != 8 || memcmp(last + 1, "HTTP/", 5) != 0)
		return fail(CLV_E_PARSE, "the first line of the request is malformed");
	if (memcmp(last + 1, "HTTP/1.", 7) != 0 || (last[8] != '0' && last[8] != '1'))
		return fail(CLV_E_UNSUPPORTED, "this version of HTTP is not supported");
	h->old = last[8] == '0';
	TRY(keep_text(a, at, (size_t)(space - at), &h->method));
	return http_target(h, a, space + 1, (size_t)(last - space - 1));
}

static clv_status read_field(http_head *h, arena *a, const char *at, size_t n)
{
	const char *colon = memchr(at, ':', n);
	if (!colon)
		return fail(CLV_E_PARSE, "the head is malformed: a field has no colon");
	const char *value = colon + 1, *end = at + n;
	while (value < end && (*value == ' ' || *value == '\t'))
		value++;
	while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
		end--;
	return http_field_add(h, a, at, (size_t)(colon - at), value, (size_t)(end - value));
}

/* How long the body is: said once, in one way. */
static clv_status read_framing(http_head *h)
{
	const char *length = http_field_of(h, "content-length"), *coding = http_field_of(h, "transfer-encoding");
	if (count_of(h, "content-length") > 1 || count_of(h, "transfer-encoding") > 1 || (length && coding))
		return fail(CLV_E_PARSE, "the request says more than once how long its body is");
	if (coding && h->old)
		return fail(CLV_E_PARSE, "HTTP/1.0 has no bodies in chunks");
	if (coding && strcasecmp(coding, "chunked") != 0)
		return fail(CLV_E_UNSUPPORTED, "this transfer coding is not supported; chunked is");
	if (length && !http_number(length, &h->length))
		return fail(CLV_E_PARSE, "the length of the body is no number");
	h->chunked = coding != NULL;
	return CLV_OK;
}

static clv_status read_connection(http_head *h)
{
	const char *connection = http_field_of(h, "connection"), *expect = http_field_of(h, "expect");
	uint32_t hosts = count_of(h, "host");
	if (hosts > 1 || (!hosts && !h->old))
		return fail(CLV_E_PARSE, "the request has %s host", hosts ? "more than one" : "no");
	h->keep_alive = h->old ? http_has_word(connection, "keep-alive") : !http_has_word(connection, "close");
	h->expects = expect && !h->old && strcasecmp(expect, "100-continue") == 0;
	return CLV_OK;
}

/* The line at `at`: its length without the end of the line. */
static clv_status line_length(const char *at, const char *end, size_t *out)
{
	const char *feed = memchr(at, '\n', (size_t)(end - at));
	if (!feed || feed == at || feed[-1] != '\r' || memchr(at, '\r', (size_t)(feed - 1 - at)))
		return fail(CLV_E_PARSE, "the head is malformed: a line does not end with CR and LF");
	*out = (size_t)(feed - 1 - at);
	return CLV_OK;
}

clv_status http_fields_read(const char *at, size_t n, arena *a, http_head *out, size_t *first)
{
	const char *end = at + n;
	size_t line;
	*out = (http_head){.length = -1};
	TRY(line_length(at, end, first));
	for (at += *first + 2; at < end; at += line + 2) {
		TRY(line_length(at, end, &line));
		if (!line)
			break;
		if (*at == ' ' || *at == '\t')
			return fail(CLV_E_PARSE, "the head is malformed: a field goes on in the next line");
		TRY(read_field(out, a, at, line));
	}
	return CLV_OK;
}

clv_status http_head_read(const char *at, size_t n, arena *a, http_head *out)
{
	size_t first;
	TRY(http_fields_read(at, n, a, out, &first));
	TRY(read_first_line(out, a, at, first));
	TRY(read_framing(out));
	return read_connection(out);
}

/* ---- chunks ------------------------------------------------------------------------------------------------------------ */

enum { SIZE, EXTENSION, SIZE_END, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_TEXT, TRAILER_LF, LAST_LF, DONE };
enum { JUNK_MOST = 8 * 1024, DIGITS_MOST = 15 };

static clv_status bad_chunk(void)
{
	return fail(CLV_E_PARSE, "the chunks of the body are malformed");
}

static clv_status read_size(http_chunks *c, char x)
{
	int digit = hex_digit_any(x);
	if (digit >= 0 && c->digits < DIGITS_MOST) {
		c->left = c->left * 16 + (unsigned)digit;
		c->digits++;
		return CLV_OK;
	}
	if (!c->digits || (x != ';' && x != '\r' && x != ' ' && x != '\t'))
		return bad_chunk();
	c->state = x == '\r' ? SIZE_END : EXTENSION;
	return CLV_OK;
}

static clv_status expect(http_chunks *c, char x, char want, uint8_t next)
{
	c->state = next;
	return x == want ? CLV_OK : bad_chunk();
}

/* One byte of what is between the data. */
static clv_status read_framing_byte(http_chunks *c, char x)
{
	switch (c->state) {
	case SIZE: return read_size(c, x);
	case EXTENSION:
		c->state = x == '\r' ? SIZE_END : EXTENSION;
		return x == '\n' || ++c->junk > JUNK_MOST ? bad_chunk() : CLV_OK;
	case SIZE_END: return expect(c, x, '\n', c->left ? DATA : TRAILER);
	case DATA_CR: return expect(c, x, '\r', DATA_LF);
	case DATA_LF: c->digits = 0; return expect(c, x, '\n', SIZE);
	case TRAILER:
		c->state = x == '\r' ? LAST_LF : TRAILER_TEXT;
		return x == '\n' || ++c->junk > JUNK_MOST ? bad_chunk() : CLV_OK;
	case TRAILER_TEXT:
		c->state = x == '\r' ? TRAILER_LF : TRAILER_TEXT;
		return x == '\n' || ++c->junk > JUNK_MOST ? bad_chunk() : CLV_OK;
	case TRAILER_LF: return expect(c, x, '\n', TRAILER);
	default: return expect(c, x, '\n', DONE);
	}
}

clv_status http_chunks_read(http_chunks *c, const char *at, size_t n, size_t *used, size_t *data, bool *done)
{
	size_t i = 0;
	*data = 0;
	while (i < n && c->state != DATA && c->state != DONE)
		TRY(read_framing_byte(c, at[i++]));
	if (c->state == DATA && i < n) {
		*data = n - i < c->left ? n - i : (size_t)c->left;
		c->left -= *data;
		i += *data;
		if (!c->left)
			c->state = DATA_CR;
	}
	*used = i;
	*done = c->state == DONE;
	return CLV_OK;
}

/* ---- answers ------------------------------------------------------------------------------------------------------------- */

const char *http_reason(unsigned status)
{
	static const struct {
		unsigned status;
		const char *text;
	} reasons[] = {
		{200, "OK"},
		{400, "Bad Request"},
		{401, "Unauthorized"},
		{403, "Forbidden"},
		{404, "Not Found"},
		{405, "Method Not Allowed"},
		{408, "Request Timeout"},
		{409, "Conflict"},
		{411, "Length Required"},
		{413, "Content Too Large"},
		{415, "Unsupported Media Type"},
		{417, "Expectation Failed"},
		{429, "Too Many Requests"},
		{431, "Request Header Fields Too Large"},
		{500, "Internal Server Error"},
		{501, "Not Implemented"},
		{503, "Service Unavailable"},
		{504, "Gateway Timeout"},
		{505, "HTTP Version Not Supported"},
	};
	for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
		if (reasons[i].status == status)
			return reasons[i].text;
	return "Unknown";
}
