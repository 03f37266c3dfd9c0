/* What a path asks for: the REST form of the Open Inference Protocol, health, metrics. */
#include <string.h>

#include "base/member.h"
#include "serve/oip.h"
#include "serve/session.h"

/* A path in pieces: what is between its slashes, unescaped. */
typedef struct path {
	char *at[8];
	uint32_t n;
} path;

static bool read_path(exchange *x, path *out)
{
	const char *at = x->head.path;
	*out = (path){0};
	while (*at == '/') {
		size_t n = strcspn(++at, "/");
		char *part = arena_alloc(&x->arena, n + 1);
		if (!part || out->n == 8 || !http_unescape(at, n, part))
			return false;
		if (n || at[n])
			out->at[out->n++] = part; /* a slash at the end says nothing */
		at += n;
	}
	return !*at;
}

static bool is(const path *p, uint32_t i, const char *word)
{
	return i < p->n && strcmp(p->at[i], word) == 0;
}

static bool has_method(exchange *x, const char *methods)
{
	if (http_has_word(methods, "get") && (!strcmp(x->head.method, "GET") || !strcmp(x->head.method, "HEAD")))
		return true;
	if (http_has_word(methods, "post") && !strcmp(x->head.method, "POST"))
		return true;
	if (http_has_word(methods, "delete") && !strcmp(x->head.method, "DELETE"))
		return true;
	answer_error(x, 405, "this path takes %s", methods);
	x->out.allow = strcmp(methods, "get") == 0    ? "GET, HEAD"
	               : strcmp(methods, "post") == 0 ? "POST"
	                                              : "GET, HEAD, DELETE";
	return false;
}

static void answer_body(exchange *x, clv_status st, const char *type, strbuf *b)
{
	if (answer_status(x, st == CLV_OK && b->failed ? fail_nomem() : st))
		answer_text(x, 200, type, b);
	strbuf_free(b);
}

static void answer_json(exchange *x, clv_status st, strbuf *b)
{
	answer_body(x, st, "application/json", b);
}

/* ---- about the server ------------------------------------------------------------------------------------------------------ */

static void about_server(exchange *x)
{
	strbuf b = STRBUF_INIT;
	member_open(&b, NULL, '{');
	member_text(&b, "name", "cleave");
	member_text(&b, "version", CLV_VERSION);
	member_open(&b, "extensions", '[');
	for (uint32_t i = 0; oip_extensions[i]; i++)
		member_text(&b, NULL, oip_extensions[i]);
	strbuf_puts(&b, "]}");
	answer_json(x, CLV_OK, &b);
}

static void health(exchange *x, const path *p)
{
	if (is(p, 2, "live"))
		answer_empty(x, 200);
	else if (is(p, 2, "ready"))
		answer_empty(x, server_is_ready(x->s) ? 200 : 400);
	else
		answer_error(x, 404, "there is no such path");
}

/* ---- about models ------------------------------------------------------------------------------------------------------------ */

static void describe_metadata(exchange *x)
{
	strbuf b = STRBUF_INIT;
	answer_json(x, oip_describe(x, oip_metadata, &b), &b);
}

static void describe_config(exchange *x)
{
	strbuf b = STRBUF_INIT;
	answer_json(x, oip_describe(x, oip_config, &b), &b);
}

static void describe_ready(exchange *x)
{
	served *m = NULL;
	if (models_find(x->s, x->model, x->version, &m) == CLV_OK)
		answer_empty(x, 200);
	else
		answer_error(x, 400, "Model version not ready");
	served_free(m);
}

static clv_status put_statistics(void *ctx, served *m)
{
	return oip_statistics(m, ctx);
}

static void statistics(exchange *x)
{
	strbuf b = STRBUF_INIT;
	member_open(&b, NULL, '{');
	member_open(&b, "model_stats", '[');
	clv_status st = models_each(x->s, x->model, x->version, put_statistics, &b);
	strbuf_puts(&b, "]}");
	answer_json(x, st, &b);
}

/* Finding a model may mean to cut it, which takes time that the loop has not. */
static void ask(exchange *x, work_fn work)
{
	if (models_is_quick(x->model)) {
		work(x);
		return;
	}
	x->work = work;
	queue_add_desk(x);
}

/* …/train, …/sessions, …/sessions/ID, …/sessions/ID/state, …/sessions/ID/tied */
static void training_path(exchange *x, const path *p, uint32_t at)
{
	bool step = is(p, at, "train"), one = !step && at + 2 == p->n;
	const char *methods = "post";
	x->session = step ? http_field_of(&x->head, "cleave-session") : at + 1 < p->n ? p->at[at + 1] : NULL;
	if (at + 1 == p->n) {
		x->work = step ? train_step : train_open;
	} else if (one) {
		methods = "get,delete";
		x->work = strcmp(x->head.method, "DELETE") == 0 ? train_end : train_about;
	} else if (!step && at + 3 == p->n && is(p, at + 2, "state")) {
		methods = "get";
		x->work = train_state;
	} else if (!step && at + 3 == p->n && is(p, at + 2, "tied")) {
		x->work = train_tied;
	} else {
		answer_error(x, 404, "there is no such path");
		return;
	}
	if (!has_method(x, methods))
		return;
	if (!x->s->sessions) {
		answer_error(x, 501, "this server trains nothing: it has no folder for sessions (--state)");
		return;
	}
	if (!models_is_quick(x->model)) {
		answer_error(x, 400, "a cut does not train: name a file that does");
		return;
	}
	tokens_owner(x);
	if (answer_status(x, x->owner ? CLV_OK : CLV_E_NOMEM))
		queue_add(x);
}

static void about_model(exchange *x, const path *p, uint32_t at)
{
	if (!tokens_allow(x, x->model, false))
		return;
	if (at == p->n && has_method(x, "get")) {
		ask(x, describe_metadata);
	} else if (at + 1 == p->n && is(p, at, "infer") && has_method(x, "post")) {
		x->work = infer_work;
		queue_add(x);
	} else if (at + 1 == p->n && is(p, at, "ready") && has_method(x, "get")) {
		ask(x, describe_ready);
	} else if (at + 1 == p->n && is(p, at, "config") && has_method(x, "get")) {
		ask(x, describe_config);
	} else if (at + 1 == p->n && is(p, at, "stats") && has_method(x, "get")) {
		statistics(x);
	} else if (is(p, at, "train") || is(p, at, "sessions")) {
		training_path(x, p, at);
	} else if (!x->out.status) {
		answer_error(x, 404, "there is no such path");
	}
}

static void models_path(exchange *x, const path *p)
{
	uint32_t at = 3;
	if (p->n == 3 && is(p, 2, "stats")) {
		if (has_method(x, "get") && tokens_allow(x, NULL, false))
			statistics(x);
		return;
	}
	if (p->n < 3) {
		answer_error(x, 404, "there is no such path");
		return;
	}
	x->model = p->at[2];
	if (is(p, 3, "versions") && p->n > 4) {
		int64_t n;
		x->version = p->at[4];
		at = 5;
		if (!http_number(x->version, &n)) {
			answer_error(x, 400, "failed to get model version from specified version string '%.24s'", x->version);
			return;
		}
	}
	about_model(x, p, at);
}

/* ---- the repository ------------------------------------------------------------------------------------------------------------ */

static clv_status put_model(void *ctx, const char *name, const char *version, bool ready, const char *reason)
{
	strbuf *b = ctx;
	member_open(b, NULL, '{');
	member_text(b, "name", name);
	if (version[0])
		member_text(b, "version", version);
	member_text(b, "state", ready ? "READY" : "UNAVAILABLE");
	member_text(b, "reason", reason);
	strbuf_putc(b, '}');
	return CLV_OK;
}

static void repository_index(exchange *x)
{
	strbuf b = STRBUF_INIT;
	json_t *root = NULL;
	clv_status st = CLV_OK;
	if (x->body.n)
		st = body_json(x, &root);
	bool ready = json_is_true(json_object_get(root, "ready"));
	json_decref(root);
	member_open(&b, NULL, '[');
	if (st == CLV_OK)
		st = models_index(x->s, ready, put_model, &b);
	strbuf_putc(&b, ']');
	answer_json(x, st, &b);
}

static void load_model(exchange *x)
{
	if (answer_status(x, models_load(x->s, x->model)))
		answer_empty(x, 200);
}

static void unload_model(exchange *x)
{
	if (answer_status(x, models_unload(x->s, x->model)))
		answer_empty(x, 200);
}

/* Files and settings that come with the request are not taken: a model is what lies in the repository. */
static bool load_is_plain(exchange *x)
{
	json_t *root = NULL;
	clv_status st = CLV_OK;
	if (x->body.n)
		st = body_json(x, &root);
	const json_t *parameters = json_object_get(root, "parameters");
	const char *key;
	json_t *any;
	bool plain = true;
	json_object_foreach((json_t *)parameters, key, any) plain &=
		strcmp(key, "config") != 0 && strncmp(key, "file:", 5) != 0;
	json_decref(root);
	if (answer_status(x, st) && !plain)
		answer_error(x, 400, "files and configurations in a request are not taken: put the model into the repository");
	return !x->out.status;
}

static void repository_path(exchange *x, const path *p)
{
	bool index = p->n == 3 && is(p, 2, "index"), change = p->n == 5 && is(p, 2, "models");
	bool load = change && is(p, 4, "load"), unload = change && is(p, 4, "unload");
	if (!index && !load && !unload) {
		answer_error(x, 404, "there is no such path");
		return;
	}
	if (!has_method(x, "post"))
		return;
	x->model = index ? NULL : p->at[3];
	if (!tokens_allow(x, x->model, !index))
		return;
	if (index) {
		repository_index(x);
		return;
	}
	x->work = load ? load_model : unload_model;
	if (load_is_plain(x))
		queue_add_desk(x);
}

static void metrics(exchange *x)
{
	strbuf b = STRBUF_INIT;
	answer_body(x, metrics_write(x->s, &b), "text/plain; version=0.0.4; charset=utf-8", &b);
}

/* ---- all of it ---------------------------------------------------------------------------------------------------------------- */

/* Where ports have their own tasks: whether this one answers such a path. */
static bool port_has(exchange *x, const path *p)
{
	port_role role = x->c ? x->c->role : ROLE_ALL;
	bool figures = p->n == 1 && is(p, 0, "metrics");
	if (role == ROLE_ALL || role == (figures ? ROLE_METRICS : ROLE_REST))
		return true;
	answer_error(x, 404, "this port answers %s",
	             role == ROLE_GRPC      ? "gRPC alone"
	             : role == ROLE_METRICS ? "/metrics alone"
	                                    : "no /metrics, another one does");
	return false;
}

static void route_known(exchange *x, const path *p)
{
	if (p->n == 1 && is(p, 0, "metrics")) {
		if (has_method(x, "get") && tokens_allow(x, NULL, false))
			metrics(x);
	} else if (!is(p, 0, "v2")) {
		answer_error(x, 404, "there is no such path");
	} else if (p->n == 1) {
		if (has_method(x, "get"))
			about_server(x);
	} else if (is(p, 1, "models")) {
		models_path(x, p);
	} else if (is(p, 1, "repository")) {
		repository_path(x, p);
	} else {
		answer_error(x, 404, "there is no such path");
	}
}

static void route_plain(exchange *x)
{
	path p;
	if (!read_path(x, &p))
		answer_error(x, 400, "the path of the request is malformed");
	else if (!port_has(x, &p))
		return;
	else if (p.n == 3 && is(&p, 0, "v2") && is(&p, 1, "health") && has_method(x, "get"))
		health(x, &p); /* for those who watch over it, who have no token */
	else if (!x->out.status && tokens_know(x))
		route_known(x, &p);
}

void route(exchange *x)
{
	x->reply = coding_accepted(http_field_of(&x->head, "accept-encoding"));
	if (!coding_of(http_field_of(&x->head, "content-encoding"), &x->coding))
		answer_error(x, 415, "bodies are taken plain, as gzip or as deflate");
	else if (!x->coding || !x->body.n)
		route_plain(x);
	else if (tokens_know(x))
		body_inflate(x, route_plain);
}
