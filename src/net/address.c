/* Listening. */
#define _GNU_SOURCE /* SOCK_NONBLOCK */
#include "net/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static clv_status find_address(const char *host, uint16_t port, struct addrinfo **out)
{
	char text[8];
	struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
	snprintf(text, sizeof text, "%u", port);
	int e = getaddrinfo(host, text, &want, out);
	return e ? fail(CLV_E_IO, "address %s: %s", host, gai_strerror(e)) : CLV_OK;
}

clv_status address_is_local(const char *host, bool *out)
{
	struct addrinfo *all;
	bool local = true;
	TRY(find_address(host, 0, &all));
	for (const struct addrinfo *a = all; a; a = a->ai_next) {
		if (a->ai_family == AF_INET)
			local &= ntohl(((const struct sockaddr_in *)(const void *)a->ai_addr)->sin_addr.s_addr) >> 24 == 127;
		else
			local &= a->ai_family == AF_INET6 &&
			         IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a->ai_addr)->sin6_addr);
	}
	freeaddrinfo(all);
	*out = local;
	return CLV_OK;
}

static int open_socket(const struct addrinfo *a)
{
	int on = 1, fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(fd, a->ai_addr, a->ai_addrlen) == 0)
		return fd;
	int e = errno;
	close(fd);
	errno = e;
	return -1;
}

static uint16_t port_of(int fd)
{
	struct sockaddr_storage at;
	socklen_t n = sizeof at;
	if (getsockname(fd, (struct sockaddr *)&at, &n) != 0)
		return 0;
	return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
	                                      : ((struct sockaddr_in *)&at)->sin_port);
}

clv_status address_bind(const char *host, uint16_t *port, int *out)
{
	struct addrinfo *all;
	int fd = -1;
	TRY(find_address(host, *port, &all));
	for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next)
		fd = open_socket(a);
	int e = errno;
	freeaddrinfo(all);
	if (fd < 0)
		return fail(CLV_E_IO, "cannot listen at %s port %u: %s", host, *port, strerror(e));
	*port = port_of(fd);
	*out = fd;
	return CLV_OK;
}
