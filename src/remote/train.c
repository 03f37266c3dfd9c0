/* Training over the network: sessions on a server, and their steps (docs/training.md). A step has a number, so that it can be asked
 * for again whenever an answer was lost: the server makes it once. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/member.h"
#include "base/options.h"
#include "file/json.h"
#include "file/payload.h"
#include "file/session_name.h"
#include "remote/remote.h"
#include "runtime/runtime.h"

struct clv_remote_session {
	clv_remote *r;
	char *id;
	uint64_t last; /* the last step whose answer came */
	int64_t member;
	pthread_mutex_t lock; /* one step at a time */
};

#define JSON_FIELDS "Content-Type: application/json\r\nAccept: application/json\r\n"

/* ---- opening ---------------------------------------------------------------------------------------------------------- */

static clv_status check_name(const char *what, const char *s)
{
	return session_is_name(s) ? CLV_OK
	                          : fail(CLV_E_INVALID, "%s is 1 to %d letters, digits, - and _", what, SESSION_NAME_MOST);
}

static clv_status write_wish(const clv_remote_session_options *o, strbuf *b)
{
	char id[SESSION_NAME_MOST + 1]; /* chosen here, so that opening may be repeated */
	TRY(o->id ? check_name("the id of a session", o->id) : session_name_new(id));
	member_open(b, NULL, '{');
	member_text(b, "id", o->id ? o->id : id);
	if (o->member) {
		TRY(check_name("the name of a member", o->member));
		member_text(b, "member", o->member);
	}
	member_text(b, "mode", o->shared ? "shared" : "own");
	member_int(b, "accumulate", o->accumulate ? o->accumulate : 1);
	if (o->has_seed)
		member_int(b, "seed", (int64_t)o->seed);
	strbuf_putc(b, '}');
	return b->failed ? fail_nomem() : CLV_OK;
}

static clv_status read_session(clv_remote_session *s, const json_t *root)
{
	const char *id;
	int64_t expected;
	TRY(json_get_string(root, "id", &id));
	TRY(json_get_int(root, "expected", &expected));
	TRY(json_get_int(root, "member", &s->member));
	if (!session_is_name(id) || expected < 1 || s->member < 0)
		return fail(CLV_E_PARSE, "its session is none");
	s->last = (uint64_t)expected - 1;
	s->id = mem_strdup(id, strlen(id));
	return s->id ? CLV_OK : fail_nomem();
}

static clv_status read_opened(clv_remote_session *s, const remote_answer *a)
{
	json_t *root;
	TRY(json_read(a->body, a->n, "its answer", &root));
	clv_status st = read_session(s, root);
	json_decref(root);
	return st;
}

static clv_status open_session(clv_remote_session *s, const clv_remote_session_options *o)
{
	strbuf body = STRBUF_INIT;
	remote_answer a;
	clv_remote_times times = {0};
	clv_status st = write_wish(o, &body);
	remote_request q = {.method = "POST",
	                    .path = "/sessions",
	                    .fields = JSON_FIELDS,
	                    .body = &(remote_piece){body.at, body.n},
	                    .nbody = 1,
	                    .repeat = true};
	if (st == CLV_OK)
		st = remote_ask(s->r, &q, &a, &times);
	strbuf_free(&body);
	TRY(st);
	st = read_opened(s, &a);
	remote_answer_free(&a);
	return remote_failed(s->r, st);
}

clv_status clv_remote_session_open(clv_remote *r, const clv_remote_session_options *options, clv_remote_session **out)
{
	clv_remote_session_options o = CLV_REMOTE_SESSION_OPTIONS_INIT;
	if (!r || !out)
		return fail(CLV_E_INVALID, "clv_remote_session_open needs a client and a place for the session");
	TRY(options_read(&o, sizeof o, options, "clv_remote_session_options"));
	if (o.shared && !o.member)
		return fail(CLV_E_INVALID, "who shares a session has a name there (clv_remote_session_options.member)");
	clv_remote_session *s = mem_alloc(sizeof *s);
	TRY_MEM(s);
	s->r = r;
	pthread_mutex_init(&s->lock, NULL);
	clv_status st = open_session(s, &o);
	if (st == CLV_OK)
		*out = s;
	else
		clv_remote_session_free(s);
	return st;
}

void clv_remote_session_free(clv_remote_session *s)
{
	if (!s)
		return;
	mem_free(s->id);
	pthread_mutex_destroy(&s->lock);
	mem_free(s);
}

const char *clv_remote_session_id(const clv_remote_session *s)
{
	return s ? s->id : NULL;
}

uint64_t clv_remote_session_steps(const clv_remote_session *s)
{
	return s ? s->last : 0;
}

/* ---- steps -------------------------------------------------------------------------------------------------------------- */

static clv_status row_major(const clv_tensor *t, st_entry *e, void **copy)
{
	int64_t n = clv_tensor_bytes(t);
	const char *type = clv_tensor_dtype(t);
	if (n < 0 || !dtype_parse(type, strlen(type), &e->dtype) || !st_dtype_name(e->dtype))
		return fail(CLV_E_UNSUPPORTED, "%s is %s, which cannot be sent", e->name, type);
	e->ndim = t->m.ndim;
	e->shape = t->m.sizes;
	e->nbytes = (size_t)n;
	e->data = clv_tensor_data(t);
	if (e->data || !n)
		return CLV_OK;
	e->data = *copy = mem_realloc(NULL, e->nbytes, 1);
	TRY_MEM(*copy);
	return clv_tensor_copy_to(t, *copy, e->nbytes);
}

static clv_status write_entries(const st_entry *entries, uint32_t n, strbuf *out)
{
	st_image image;
	TRY(st_layout(entries, n, NULL, 0, &image));
	clv_status st = st_append(&image, out);
	st_image_free(&image);
	return st;
}

/* Tensors by name as a safetensors file. */
static clv_status write_tensors(const char *const *names, const clv_tensor *const *tensors, uint32_t n, strbuf *out)
{
	st_entry *entries = mem_alloc((n + 1) * sizeof *entries);
	void **copies = mem_alloc((n + 1) * sizeof *copies);
	clv_status st = entries && copies ? CLV_OK : fail_nomem();
	for (uint32_t i = 0; st == CLV_OK && i < n; i++) {
		entries[i].name = names[i];
		st = tensors[i] ? row_major(tensors[i], &entries[i], &copies[i]) : fail(CLV_E_INVALID, "%s is NULL", names[i]);
	}
	if (st == CLV_OK)
		st = write_entries(entries, n, out);
	for (uint32_t i = 0; copies && i < n; i++)
		mem_free(copies[i]);
	mem_free(copies);
	mem_free(entries);
	return st;
}

static clv_status write_targets(const clv_tensor *const *targets, uint32_t n, strbuf *out)
{
	enum { NAME = 24 };
	const char **names = mem_alloc((n + 1) * sizeof *names);
	char *texts = mem_alloc(((size_t)n + 1) * NAME);
	clv_status st = names && texts ? CLV_OK : fail_nomem();
	for (uint32_t i = 0; st == CLV_OK && i < n; i++) {
		snprintf(texts + (size_t)i * NAME, NAME, "targets.%u", i);
		names[i] = texts + (size_t)i * NAME;
	}
	if (st == CLV_OK && n)
		st = write_tensors(names, targets, n, out);
	mem_free(texts);
	mem_free(names);
	return st;
}

static clv_status send_step(clv_remote_session *s, const void *data, size_t n, const strbuf *targets,
                            remote_answer *out, clv_remote_times *t)
{
	strbuf fields = STRBUF_INIT;
	remote_piece body[] = {{data, n}, {targets->at, targets->n}};
	strbuf_printf(&fields,
	              "Content-Type: " ST_MEDIA_TYPE "\r\nAccept: " ST_MEDIA_TYPE "\r\n"
	              "Cleave-Session: %s\r\nCleave-Member: %" PRId64 "\r\nCleave-Step: %" PRIu64
	              "\r\nCleave-Boundary-Length: %zu\r\n",
	              s->id, s->member, s->last + 1, n);
	remote_request q = {
		.method = "POST", .path = "/train", .fields = fields.at, .body = body, .nbody = 2, .repeat = true};
	clv_status st = fields.failed ? fail_nomem() : remote_ask(s->r, &q, out, t);
	strbuf_free(&fields);
	return st;
}

/* Gradients come uncompressed: an answer needs no more memory than its own bytes. */
static clv_status check_plain(const remote_answer *a)
{
	payload *p;
	if (!a->head.tensors)
		return fail(CLV_E_PARSE, "its answer is no " ST_MEDIA_TYPE);
	TRY(payload_read(a->body, a->n, PAYLOAD_BOUNDARY, &p));
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < p->memories.n && st == CLV_OK; i++)
		if (p->memories.at[i].encoding != ENC_PLAIN)
			st = fail(CLV_E_PARSE, "its answer is compressed");
	payload_free(p);
	return st;
}

static clv_status check_answer(const clv_remote_session *s, remote_answer *a)
{
	clv_status st = check_plain(a);
	if (st == CLV_OK)
		return st;
	remote_answer_free(a);
	return remote_failed(s->r, st == CLV_E_NOMEM ? st : CLV_E_PARSE);
}

clv_status remote_train_bytes(clv_remote_session *s, const void *data, size_t n, const clv_tensor *const *targets,
                              uint32_t ntargets, remote_answer *out, clv_remote_times *t)
{
	strbuf body = STRBUF_INIT;
	double start = clock_seconds();
	clv_status st = write_targets(targets, ntargets, &body);
	t->encode += clock_seconds() - start;
	pthread_mutex_lock(&s->lock);
	if (st == CLV_OK)
		st = send_step(s, data, n, &body, out, t);
	if (st == CLV_OK)
		st = check_answer(s, out);
	s->last += st == CLV_OK;
	pthread_mutex_unlock(&s->lock);
	strbuf_free(&body);
	return st;
}

/* ---- what came back ------------------------------------------------------------------------------------------------------ */

static const clv_tensor *find_tensor(const clv_boundary *b, const char *label)
{
	for (uint32_t i = 0; i < clv_boundary_count(b); i++)
		if (strcmp(clv_boundary_label(b, i), label) == 0)
			return clv_boundary_tensor(b, i);
	return NULL;
}

static clv_status check_gradient(const clv_boundary *sent, const char *label, const clv_tensor *gradient)
{
	const clv_tensor *of = find_tensor(sent, label);
	if (!of)
		return *label == '@' ? CLV_OK : fail(CLV_E_PARSE, "it sent a gradient of %.64s, which it was not sent", label);
	clv_status st = tensor_check_like(of, gradient, label);
	return st == CLV_OK ? st : fail_more(CLV_E_PARSE, "its gradient");
}

static clv_status take_gradients(const clv_boundary *from, const clv_boundary *sent, clv_boundary *to)
{
	for (uint32_t i = 0; i < clv_boundary_count(from); i++) {
		const char *label = clv_boundary_label(from, i);
		const clv_tensor *t = clv_boundary_tensor(from, i);
		if (strcmp(label, "loss") == 0)
			continue;
		TRY(check_gradient(sent, label, t));
		TRY(boundary_add(to, label, tensor_ref(t)));
	}
	return CLV_OK;
}

static clv_status split_answer(const clv_boundary *from, const clv_boundary *sent, clv_tensor **loss,
                               clv_boundary **gradients)
{
	clv_boundary *to;
	const clv_tensor *found = find_tensor(from, "loss");
	if (!found || tensor_numel(found) != 1)
		return fail(CLV_E_PARSE, "its answer has no loss");
	TRY(boundary_empty(sent, &to));
	clv_status st = take_gradients(from, sent, to);
	if (st == CLV_OK && loss)
		*loss = tensor_ref(found);
	if (st == CLV_OK && gradients)
		*gradients = to;
	else
		clv_boundary_free(to);
	return st;
}

static clv_status read_step(const remote_answer *a, const clv_boundary *sent, clv_tensor **loss,
                            clv_boundary **gradients)
{
	clv_boundary *from;
	TRY(clv_boundary_unpack(a->body, a->n, &from));
	clv_status st = split_answer(from, sent, loss, gradients);
	clv_boundary_free(from);
	return st;
}

static clv_status train(clv_remote_session *s, const clv_boundary *b, const clv_pack_options *pack,
                        const clv_tensor *const *targets, uint32_t ntargets, clv_tensor **loss,
                        clv_boundary **gradients, clv_remote_times *t)
{
	remote_answer a;
	void *data;
	size_t n;
	double start = clock_seconds();
	TRY(clv_boundary_pack(b, pack, &data, &n));
	t->encode = clock_seconds() - start;
	clv_status st = remote_train_bytes(s, data, n, targets, ntargets, &a, t);
	clv_free(data);
	TRY(st);
	start = clock_seconds();
	st = read_step(&a, b, loss, gradients);
	t->decode = clock_seconds() - start;
	remote_answer_free(&a);
	return remote_failed(s->r, st);
}

clv_status clv_remote_train_suffix(clv_remote_session *s, const clv_boundary *b, const clv_pack_options *pack,
                                   const clv_tensor *const *targets, uint32_t ntargets, clv_tensor **loss,
                                   clv_boundary **gradients, clv_remote_times *times)
{
	clv_remote_times t = {.queue = NAN, .compute = NAN};
	double start = clock_seconds();
	if (!s || !b || (ntargets && !targets))
		return fail(CLV_E_INVALID, "clv_remote_train_suffix: an argument is NULL");
	clv_status st = train(s, b, pack, targets, ntargets, loss, gradients, &t);
	t.total = clock_seconds() - start;
	if (times)
		TRY(options_write(times, &t, sizeof t, "clv_remote_times"));
	return st;
}

/* ---- the rest of a session ------------------------------------------------------------------------------------------------- */

static clv_status ask_about(clv_remote_session *s, const char *method, const char *what, const strbuf *body,
                            remote_answer *out)
{
	strbuf path = STRBUF_INIT, fields = STRBUF_INIT;
	clv_remote_times times = {0};
	strbuf_printf(&path, "/sessions/%s%s", s->id, what);
	strbuf_printf(&fields, "Cleave-Step: %" PRIu64 "\r\n", s->last);
	remote_piece piece = {body ? body->at : NULL, body ? body->n : 0};
	remote_request q = {
		.method = method, .path = path.at, .fields = fields.at, .body = &piece, .nbody = body != NULL, .repeat = true};
	clv_status st = path.failed || fields.failed ? fail_nomem() : remote_ask(s->r, &q, out, &times);
	strbuf_free(&path);
	strbuf_free(&fields);
	return st;
}

clv_status clv_remote_apply_tied(clv_remote_session *s, const char *const *names, const clv_tensor *const *gradients,
                                 uint32_t n)
{
	strbuf body = STRBUF_INIT;
	remote_answer a;
	if (!s || (n && (!names || !gradients)))
		return fail(CLV_E_INVALID, "clv_remote_apply_tied: an argument is NULL");
	clv_status st = write_tensors(names, gradients, n, &body);
	pthread_mutex_lock(&s->lock);
	if (st == CLV_OK)
		st = ask_about(s, "POST", "/tied", &body, &a);
	pthread_mutex_unlock(&s->lock);
	strbuf_free(&body);
	if (st == CLV_OK)
		remote_answer_free(&a);
	return st;
}

clv_status clv_remote_session_state(clv_remote_session *s, void **out, size_t *size)
{
	remote_answer a;
	if (!s || !out || !size)
		return fail(CLV_E_INVALID, "clv_remote_session_state: an argument is NULL");
	TRY(ask_about(s, "GET", "/state", NULL, &a));
	TRY(check_answer(s, &a));
	*out = a.body;
	*size = a.n;
	return CLV_OK;
}

clv_status clv_remote_session_end(clv_remote_session *s)
{
	remote_answer a;
	if (!s)
		return fail(CLV_E_INVALID, "clv_remote_session_end: there is no session");
	clv_status st = ask_about(s, "DELETE", "", NULL, &a);
	if (st == CLV_OK)
		remote_answer_free(&a);
	return st == CLV_E_NOT_FOUND ? CLV_OK : st; /* it ended before, or the answer that it did was lost */
}
