/* Messages between a runtime and the process of its sandbox, and tensors as payloads in memory files.
 *
 * The reader of payloads takes bytes as hostile, and what it lets through is copied into tensors of ours: no memory of ours is
 * also the other side's. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sandbox/sandbox.h"
#include "file/tensors.h"

static clv_status gone(void)
{
	return fail(CLV_E_IO, "the other side of the sandbox is gone");
}

/* After a call that gave -1: CLV_OK where it can be tried again. */
static clv_status try_again(const wire *w, short events)
{
	if (errno == EINTR)
		return CLV_OK;
	if ((errno == EAGAIN || errno == EWOULDBLOCK) && w->wait)
		return w->wait(w->ctx, events);
	return gone();
}

clv_status wire_write(const wire *w, const void *from, size_t n)
{
	for (const char *at = from; n;) {
		ssize_t put = send(w->fd, at, n, MSG_NOSIGNAL);
		if (put < 0) {
			TRY(try_again(w, POLLOUT));
			continue;
		}
		at += put;
		n -= (size_t)put;
	}
	return CLV_OK;
}

clv_status wire_read(const wire *w, void *to, size_t n)
{
	for (char *at = to; n;) {
		ssize_t got = recv(w->fd, at, n, 0);
		if (got == 0)
			return gone();
		if (got < 0) {
			TRY(try_again(w, POLLIN));
			continue;
		}
		at += got;
		n -= (size_t)got;
	}
	return CLV_OK;
}

clv_status memory_write(int file, uint64_t at, const void *from, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t put = pwrite(file, (const char *)from + done, n - done, (off_t)(at + done));
		if (put < 0 && errno != EINTR)
			return fail(CLV_E_NOMEM, "there is no memory for a sandbox: %s", strerror(errno));
		done += put > 0 ? (size_t)put : 0;
	}
	return CLV_OK;
}

clv_status memory_read(int file, uint64_t at, void *to, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t got = pread(file, (char *)to + done, n - done, (off_t)(at + done));
		if (got == 0 || (got < 0 && errno != EINTR))
			return fail(CLV_E_PARSE, "%zu bytes are not there", n - done);
		done += got > 0 ? (size_t)got : 0;
	}
	return CLV_OK;
}

static clv_status add_parcel_tensor(payload *p, clv_tensor *t, uint32_t i)
{
	char label[16];
	uint32_t number;
	payload_tensor x = {.label = label};
	snprintf(label, sizeof label, "%u", i);
	TRY(tensor_describe(p, t, t, &x));
	return payload_add_tensor(p, &x, &number);
}

clv_status parcel_make(clv_tensor *const *tensors, uint32_t n, parcel *out)
{
	*out = (parcel){0};
	TRY(payload_new(PAYLOAD_VALUES, &out->p));
	out->p->unchecked = true; /* nothing is damaged on the way */
	clv_status st = vec_push(&out->p->values, ((tree){.kind = TREE_NONE}));
	for (uint32_t i = 0; st == CLV_OK && i < n; i++) {
		st = tensors[i] ? add_parcel_tensor(out->p, tensors[i], i) : fail(CLV_E_INPUT, "it is missing");
		if (st != CLV_OK && st != CLV_E_NOMEM)
			fail_more(st, "tensor %u", i);
	}
	if (st == CLV_OK)
		st = payload_image(out->p, &out->image);
	if (st != CLV_OK)
		parcel_free(out);
	return st;
}

static clv_status put_at(int file, uint64_t *at, const void *from, size_t n)
{
	TRY(memory_write(file, *at, from, n));
	*at += n;
	return CLV_OK;
}

clv_status parcel_write(const parcel *x, int file, uint64_t at)
{
	TRY(put_at(file, &at, x->image.head, x->image.head_n));
	for (uint32_t i = 0; i < x->image.n; i++) {
		const st_entry *e = &x->image.entries[x->image.order[i]];
		TRY(put_at(file, &at, e->data, e->nbytes));
	}
	return CLV_OK;
}

void parcel_free(parcel *x)
{
	st_image_free(&x->image);
	if (x->p)
		payload_free(x->p);
	clv_tensor_free(x->keep);
	*x = (parcel){0};
}

/* Tensors on one memory are on one memory again. */
static clv_status make_tensors(const payload *p, tensor_memory **memories, clv_tensor **out, uint32_t n)
{
	for (uint32_t i = 0; i < p->memories.n; i++)
		TRY(memory_load(p, i, &memories[i]));
	for (uint32_t i = 0; i < n; i++) {
		char label[16];
		snprintf(label, sizeof label, "%u", i);
		uint32_t at = payload_find(p, label);
		if (at == NONE)
			return fail(CLV_E_PARSE, "there is no tensor %u", i);
		uint32_t m = p->tensors.at[at].memory;
		if (m >= p->memories.n)
			return fail(CLV_E_PARSE, "tensor %u is on no memory", i);
		TRY(memory_tensor(p, at, memories[m], p->tensors.at[at].requires_grad, &out[i]));
	}
	return CLV_OK;
}

/* Nothing is made for tensors that take more than they may. */
static clv_status check_memories(const payload *p, int64_t most)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < p->memories.n; i++) {
		if (p->memories.at[i].encoding != ENC_PLAIN)
			return fail(CLV_E_PARSE, "tensors are compressed");
		if (__builtin_add_overflow(bytes, p->memories.at[i].nbytes, &bytes) || bytes > (uint64_t)most)
			return fail(CLV_E_PARSE, "tensors take more than %lld bytes", (long long)most);
	}
	return CLV_OK;
}

static clv_status open_payload(const payload *p, int64_t most, clv_tensor **out, uint32_t n)
{
	if (p->tensors.n != n)
		return fail(CLV_E_PARSE, "there are %u tensors, and %u are needed", p->tensors.n, n);
	TRY(check_memories(p, most));
	tensor_memory **memories = mem_alloc((p->memories.n + 1) * sizeof *memories);
	memset(out, 0, n * sizeof *out);
	clv_status st = memories ? make_tensors(p, memories, out, n) : fail_nomem();
	for (uint32_t i = 0; memories && i < p->memories.n; i++)
		tensor_memory_unref(memories[i]);
	mem_free(memories);
	for (uint32_t i = 0; i < n && st != CLV_OK; i++) {
		clv_tensor_free(out[i]);
		out[i] = NULL;
	}
	return st;
}

clv_status parcel_open(const void *bytes, size_t size, int64_t most, clv_tensor **out, uint32_t n)
{
	payload *p;
	TRY(payload_read(bytes, size, PAYLOAD_VALUES, &p));
	clv_status st = open_payload(p, most, out, n);
	payload_free(p);
	return st;
}

void sandbox_clean(char *to, const char *from, size_t n)
{
	size_t at = 0;
	for (; n > 1 && at < n - 1; at++) {
		char c = from[at];
		if (!c)
			break;
		to[at] = (c >= ' ' && c < 0x7f) || c == '\n' ? c : '?';
	}
	if (n)
		to[at] = '\0';
}

void reply_free(reply *x)
{
	for (uint32_t i = 0; i < x->ntensors; i++)
		clv_tensor_free(x->tensors[i]);
	mem_free(x->tensors);
	mem_free(x->numbers);
}

static clv_status read_answer_numbers(int file, uint64_t *at, reply *x, uint32_t n)
{
	x->numbers = mem_alloc((n + 1) * sizeof *x->numbers);
	TRY_MEM(x->numbers);
	for (uint32_t i = 0; i < n; i++, *at += sizeof(run_number)) {
		unsigned char raw[sizeof(run_number)];
		TRY(memory_read(file, *at, raw, sizeof raw));
		if (raw[offsetof(run_number, real)] > 1)
			return fail(CLV_E_PARSE, "a number is of kind %u", raw[offsetof(run_number, real)]);
		memcpy(&x->numbers[i], raw, sizeof raw);
	}
	x->nnumbers = n;
	return CLV_OK;
}

/* All bytes are ours before the first is looked at: the child could write them meanwhile. */
static clv_status read_answer_tensors(int file, uint64_t at, reply *x, uint32_t n, size_t bytes, int64_t most)
{
	void *data = mem_realloc(NULL, bytes, 1);
	x->tensors = mem_alloc((n + 1) * sizeof *x->tensors);
	clv_status st = data && x->tensors ? memory_read(file, at, data, bytes) : fail_nomem();
	if (st == CLV_OK)
		st = parcel_open(data, bytes, most, x->tensors, n);
	if (st == CLV_OK)
		x->ntensors = n;
	mem_free(data);
	return st;
}

static clv_status read_error(int file, const sandbox_answer *a)
{
	char raw[SANDBOX_MESSAGE] = {0}, text[SANDBOX_MESSAGE];
	TRY(memory_read(file, PLACE_ROOM, raw, a->message));
	sandbox_clean(text, raw, sizeof text);
	fail((clv_status)a->status, "%s", text);
	status_details()->undone = a->undone == 1;
	return CLV_OK;
}

clv_status reply_read(const wire *w, int file, int64_t most, uint32_t n, uint32_t m, reply *x)
{
	sandbox_answer a;
	uint64_t at = PLACE_ROOM;
	TRY(wire_read(w, &a, sizeof a));
	/* That a process crashed or was stopped, we say. */
	if (a.status < 0 || a.status > CLV_E_MACHINE || a.status == CLV_E_CRASHED || a.status == CLV_E_CANCELLED ||
	    a.message >= SANDBOX_MESSAGE)
		return fail(CLV_E_PARSE, "status %d with a message of %u bytes", a.status, a.message);
	x->status = (clv_status)a.status;
	if (a.status != CLV_OK)
		return read_error(file, &a);
	if (a.message || a.nnumbers != n || a.ntensors != m || a.tensors > (uint64_t)most)
		return fail(CLV_E_PARSE, "%u numbers and %u tensors of %llu bytes for a call that gives %u and %u", a.nnumbers,
		            a.ntensors, (unsigned long long)a.tensors, n, m);
	x->bytes = a.tensors;
	TRY(read_answer_numbers(file, &at, x, n));
	if (!m && !a.tensors)
		return CLV_OK;
	return read_answer_tensors(file, at, x, m, a.tensors, most);
}
