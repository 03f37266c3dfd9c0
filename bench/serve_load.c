/* Load for a server: the same request over HTTP/1.1 again and again, and how long each answer took. bench/serve.py runs it.
 *
 *     serve_load PORT CLIENTS SECONDS RATE REQUEST TAIL
 *
 * REQUEST is a file with the bytes of a request, head and body. RATE 0: each client asks again once it has its answer. Otherwise
 * so many requests begin per second, at random times that are the same in each run, over at most CLIENTS connections; one that
 * finds none free waits, and its time counts from when it should have begun. Written are, as JSON: how many failed, of how many the
 * last TAIL bytes differ from those of the first answer, seconds until the last answer, and the microseconds of each that did not
 * fail. A connection that ends is opened again; its request has failed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 1 << 20, EVENTS = 64, PATIENT_S = 30 };

typedef struct client {
	int fd;
	bool busy;
	size_t sent, got, want; /* want: of the answer with its head; 0: not known yet */
	unsigned status;
	int64_t begun;
	char *in;
} client;

typedef struct load {
	uint16_t port;
	uint32_t nclients;
	double rate;
	char *request;
	size_t n, tail;
	client *clients;
	int epoll, timer;
	int64_t end, next; /* when no request begins any more; when the next one should */
	int64_t *waiting;  /* times of those that found no connection free: a ring that only grows */
	size_t first_waiting, nwaiting, waiting_cap;
	uint64_t seed;
	char *tail_bytes; /* of the first answer */
	uint64_t failed, different;
	uint32_t open;
	float *us;
	size_t ntimes, cap;
} load;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void *more(void *at, size_t n)
{
	at = realloc(at, n);
	if (!at)
		die("memory");
	return at;
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void watch(load *l, client *c, int how, uint32_t events)
{
	struct epoll_event e = {.events = events, .data.ptr = c};
	if (epoll_ctl(l->epoll, how, c->fd, &e) != 0)
		die("epoll_ctl");
}

static void connect_client(load *l, client *c)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(l->port)};
	int on = 1;
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to) != 0)
		die("connect");
	setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	watch(l, c, EPOLL_CTL_ADD, EPOLLIN);
}

/* ---- one request --------------------------------------------------------------------------------------------------------- */

static void finish(load *l, client *c, bool good)
{
	if (good) {
		if (l->ntimes == l->cap)
			l->us = more(l->us, (l->cap = l->cap ? 2 * l->cap : 1 << 16) * sizeof *l->us);
		l->us[l->ntimes++] = (float)((double)(now() - c->begun) / 1e3);
	}
	l->failed += !good;
	l->open--;
	c->busy = false;
}

static void broken(load *l, client *c)
{
	close(c->fd);
	if (c->busy)
		finish(l, c, false);
	connect_client(l, c);
}

static void send_more(load *l, client *c)
{
	while (c->sent < l->n) {
		ssize_t n = send(c->fd, l->request + c->sent, l->n - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EAGAIN) {
			watch(l, c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
			return;
		}
		if (n <= 0) {
			broken(l, c);
			return;
		}
		c->sent += (size_t)n;
	}
	watch(l, c, EPOLL_CTL_MOD, EPOLLIN);
}

static void begin(load *l, client *c, int64_t when)
{
	c->busy = true;
	c->begun = when;
	c->sent = c->got = c->want = 0;
	l->open++;
	send_more(l, c);
}

static void read_head(client *c)
{
	c->in[c->got] = '\0';
	const char *end = strstr(c->in, "\r\n\r\n"), *length = strcasestr(c->in, "\r\ncontent-length:");
	if (!end)
		return;
	c->status = (unsigned)atoi(c->in + strcspn(c->in, " "));
	c->want = (size_t)(end - c->in) + 4 + (length && length < end ? strtoul(length + 17, NULL, 10) : 0);
	if (c->want >= ROOM) {
		fprintf(stderr, "an answer is too large\n");
		exit(1);
	}
}

static void check(load *l, client *c)
{
	size_t n = l->tail < c->want ? l->tail : c->want;
	if (c->status != 200) {
		if (!l->failed)
			fprintf(stderr, "%.*s\n", (int)c->want, c->in);
		finish(l, c, false);
		return;
	}
	finish(l, c, true);
	if (!l->tail_bytes)
		l->tail_bytes = memcpy(more(NULL, l->tail + 1), c->in + c->want - n, n);
	l->different += memcmp(l->tail_bytes, c->in + c->want - n, n) != 0;
}

static void receive(load *l, client *c)
{
	ssize_t n = recv(c->fd, c->in + c->got, ROOM - 1 - c->got, MSG_DONTWAIT);
	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0 || !c->busy) {
		broken(l, c);
		return;
	}
	c->got += (size_t)n;
	if (!c->want)
		read_head(c);
	if (c->want && c->got >= c->want)
		check(l, c);
}

/* ---- when requests begin --------------------------------------------------------------------------------------------------- */

static double random_gap(load *l)
{
	l->seed = l->seed * 6364136223846793005u + 1442695040888963407u;
	double x = ((double)(l->seed >> 11) + 1) / 9007199254740994.0;
	return -log(x) * 1e9 / l->rate;
}

static client *find_free(load *l)
{
	for (uint32_t i = 0; i < l->nclients; i++)
		if (!l->clients[i].busy)
			return &l->clients[i];
	return NULL;
}

static void note_waiting(load *l, int64_t when)
{
	if (l->nwaiting == l->waiting_cap)
		l->waiting = more(l->waiting, (l->waiting_cap = l->waiting_cap ? 2 * l->waiting_cap : 1024) * sizeof when);
	l->waiting[l->nwaiting++] = when;
}

static void begin_due(load *l)
{
	int64_t t = now();
	client *c;
	for (; l->rate > 0 && l->next <= t && l->next < l->end; l->next += (int64_t)random_gap(l))
		note_waiting(l, l->next);
	for (; l->rate > 0 && l->first_waiting < l->nwaiting && (c = find_free(l)); l->first_waiting++)
		begin(l, c, l->waiting[l->first_waiting]);
	while (!(l->rate > 0) && t < l->end && (c = find_free(l)))
		begin(l, c, now());
	if (l->rate > 0 && l->next < l->end) {
		struct itimerspec at = {.it_value = {l->next / 1000000000, l->next % 1000000000}};
		timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &at, NULL);
	}
}

static bool is_over(const load *l)
{
	int64_t t = now();
	return t >= l->end + PATIENT_S * 1000000000LL || (t >= l->end && !l->open && l->first_waiting == l->nwaiting);
}

static void run(load *l)
{
	struct epoll_event events[EVENTS];
	while (!is_over(l)) {
		begin_due(l);
		int n = epoll_wait(l->epoll, events, EVENTS, 20);
		for (int i = 0; i < n; i++) {
			client *c = events[i].data.ptr;
			uint64_t ticks;
			if (!c)
				(void)!read(l->timer, &ticks, sizeof ticks);
			else if (events[i].events & EPOLLOUT && c->busy && c->sent < l->n)
				send_more(l, c);
			if (c && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
				receive(l, c);
		}
	}
	l->failed += l->open + (l->nwaiting - l->first_waiting);
}

static void read_request(load *l, const char *path)
{
	FILE *f = fopen(path, "rb");
	if (!f || fseek(f, 0, SEEK_END) != 0)
		die(path);
	l->n = (size_t)ftell(f);
	rewind(f);
	l->request = more(NULL, l->n + 1);
	if (fread(l->request, 1, l->n, f) != l->n)
		die(path);
	fclose(f);
}

int main(int argc, char **argv)
{
	load l = {.seed = 1};
	if (argc != 7) {
		fprintf(stderr, "serve_load PORT CLIENTS SECONDS RATE REQUEST TAIL\n");
		return 2;
	}
	l.port = (uint16_t)atoi(argv[1]);
	l.nclients = (uint32_t)atoi(argv[2]);
	l.rate = atof(argv[4]);
	read_request(&l, argv[5]);
	l.tail = strtoul(argv[6], NULL, 10);
	l.epoll = epoll_create1(EPOLL_CLOEXEC);
	l.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	struct epoll_event e = {.events = EPOLLIN};
	epoll_ctl(l.epoll, EPOLL_CTL_ADD, l.timer, &e);
	l.clients = memset(more(NULL, l.nclients * sizeof *l.clients), 0, l.nclients * sizeof *l.clients);
	for (uint32_t i = 0; i < l.nclients; i++) {
		l.clients[i].in = more(NULL, ROOM);
		connect_client(&l, &l.clients[i]);
	}
	int64_t start = now();
	l.next = start;
	l.end = start + (int64_t)(atof(argv[3]) * 1e9);
	run(&l);
	printf("{\"failed\": %llu, \"different\": %llu, \"seconds\": %.6f, \"us\": [", (unsigned long long)l.failed,
	       (unsigned long long)l.different, (double)(now() - start) / 1e9);
	for (size_t i = 0; i < l.ntimes; i++)
		printf("%s%.0f", i ? "," : "", (double)l.us[i]);
	printf("]}\n");
	return 0;
}
