/* Reads "https://host:8000/model". */
#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>

#include "remote/remote.h"

void remote_url_free(remote_url *u)
{
	mem_free(u->host);
	mem_free(u->port);
	mem_free(u->base);
	mem_free(u->model);
	*u = (remote_url){0};
}

/* No spaces and nothing that could end a line: it goes into the head of a request. */
static bool is_plain_text(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s <= ' ' || (unsigned char)*s >= 127)
			return false;
	return true;
}

/* "example.org", "127.0.0.1", "::1". */
static bool is_host(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		bool letter = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= '0' && s[i] <= '9');
		if (!letter && !strchr("-._:", s[i]))
			return false;
	}
	return n > 0 && n < 256;
}

static bool is_port(const char *s, size_t n)
{
	unsigned number = 0;
	for (size_t i = 0; i < n; i++) {
		if (s[i] < '0' || s[i] > '9' || i > 4)
			return false;
		number = number * 10 + (unsigned)(s[i] - '0');
	}
	return number > 0 && number < 65536;
}

static clv_status keep(char **to, const char *s, size_t n)
{
	*to = mem_strdup(s, n);
	return *to ? CLV_OK : fail_nomem();
}

/* Host and port; *rest is after them. */
static clv_status read_authority(const char *s, remote_url *u, const char **rest)
{
	size_t n = strcspn(s, "/?#"), host_n = n;
	const char *host = s, *colon, *port = u->tls ? "443" : "80", *end = memchr(s, ']', n);
	size_t port_n = strlen(port);
	*rest = s + n;
	if (memchr(s, '@', n))
		return fail(CLV_E_INVALID, "a URL has no user name here: the token says who asks");
	if (*s == '[' && end) {
		host = s + 1;
		host_n = (size_t)(end - host);
		colon = end + 1 < s + n ? end + 1 : NULL;
		if (colon && *colon != ':')
			return fail(CLV_E_INVALID, "\"%.64s\" is no host and port", s);
	} else if ((colon = memchr(s, ':', n)))
		host_n = (size_t)(colon - s);
	if (colon) {
		port = colon + 1;
		port_n = (size_t)(s + n - port);
	}
	if (!is_host(host, host_n) || !is_port(port, port_n) || (*s != '[' && memchr(host, ':', host_n)))
		return fail(CLV_E_INVALID, "\"%.*s\" is no host and port", n < 256 ? (int)n : 256, s);
	TRY(keep(&u->host, host, host_n));
	return keep(&u->port, port, port_n);
}

static bool is_escape(const char *s, size_t n)
{
	return n > 2 && isxdigit((unsigned char)s[1]) && isxdigit((unsigned char)s[2]);
}

/* As tritonclient, with % for what a path cannot have; what is escaped already stays, and a % that escapes nothing is itself:
   net@50%. */
static clv_status escape(const char *s, size_t n, char **out)
{
	static const char hex[] = "0123456789ABCDEF";
	strbuf b = STRBUF_INIT;
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];
		bool plain = c == '%' ? is_escape(s + i, n - i) : c > ' ' && c < 127 && !strchr("\"<>\\^`{}|#?", c);
		if (plain) {
			strbuf_putc(&b, (char)c);
			continue;
		}
		strbuf_putc(&b, '%');
		strbuf_putc(&b, hex[c >> 4]);
		strbuf_putc(&b, hex[c & 15]);
	}
	return strbuf_take(&b, out);
}

clv_status remote_url_read(const char *text, remote_url *out)
{
	const char *rest;
	*out = (remote_url){0};
	out->tls = strncmp(text, "https://", 8) == 0;
	if (!out->tls && strncmp(text, "http://", 7) != 0)
		return fail(CLV_E_INVALID, "\"%.64s\" is no URL of a server: https://host:8000/model", text);
	TRY(read_authority(text + (out->tls ? 8 : 7), out, &rest));
	size_t n = strlen(rest);
	while (n && rest[n - 1] == '/')
		n--;
	const char *model = rest + n;
	while (model > rest && model[-1] != '/')
		model--;
	size_t base_n = model > rest ? (size_t)(model - rest) - 1 : 0;
	if (model == rest || model == rest + n)
		return fail(CLV_E_INVALID, "\"%.64s\" names no model: https://host:8000/model", text);
	TRY(keep(&out->base, rest, base_n));
	if (strpbrk(rest, "?#") || !is_plain_text(out->base))
		return fail(CLV_E_INVALID, "the path of \"%.64s\" has characters that it cannot have", text);
	return escape(model, (size_t)(rest + n - model), &out->model);
}

bool remote_is_loopback(const char *host)
{
	struct in_addr v4;
	struct in6_addr v6;
	if (inet_pton(AF_INET, host, &v4) == 1)
		return ntohl(v4.s_addr) >> 24 == 127;
	return strcmp(host, "localhost") == 0 || (inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
}
