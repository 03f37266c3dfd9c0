/* `cleave run`: a model, or a half of it, on inputs from files. */
#include "feed.h"

/* A server that runs the rest. */
typedef struct remote_options {
	const char *url, *token_file, *ca, *cert, *key;
	double timeout;
	int64_t follow; /* calls; 0: the call is not divided anew */
	bool insecure;
} remote_options;

typedef struct request {
	const char *path, *output, *boundary, *compress, *compare;
	bool print, no_checksum;
	remote_options remote;
	feeding feeding;
	loading loading;
	sizes sizes;
	opening opening;
	listing_view view;
} request;

static const column columns[] = {
	{"name", "name", COLUMN_TEXT},
	{"dtype", "dtype", COLUMN_TEXT},
	{"shape", "shape", COLUMN_TEXT},
	{"bytes", "bytes", COLUMN_BYTES},
	{"min", "min", COLUMN_NUMBER},
	{"max", "max", COLUMN_NUMBER},
	{"mean", "mean", COLUMN_NUMBER},
	{"nans", "nans", COLUMN_INT},
	/* of a boundary that was compressed */
	{"method", "written as", COLUMN_TEXT},
	{"file_bytes", "in file", COLUMN_BYTES},
	{"max_error", "max error", COLUMN_NUMBER},
	{"error", "error", COLUMN_NUMBER},
	{"l2_error", "l2 error", COLUMN_NUMBER},
	COLUMNS_END,
};

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "element.h"

typedef struct result {
	const char *name; /* borrowed */
	const char *dtype;
	uint32_t ndim;
	int64_t *shape;
	char *data; /* row-major */
	size_t bytes;
	uint64_t count;
	clv_loss loss; /* bytes < 0: it was not compressed */
} result;

typedef struct results {
	result *at;
	uint32_t n;
} results;

static bool read_result(result *x, const char *name, const clv_tensor *t)
{
	int64_t bytes = clv_tensor_bytes(t);
	*x = (result){.name = name, .dtype = clv_tensor_dtype(t), .ndim = clv_tensor_ndim(t), .count = 1, .loss.bytes = -1};
	if (bytes < 0) {
		complain("%s has no plain elements, and cannot be written", name);
		return false;
	}
	x->shape = grab((x->ndim + 1) * sizeof *x->shape);
	for (uint32_t d = 0; d < x->ndim; d++)
		x->count *= (uint64_t)(x->shape[d] = clv_tensor_dim(t, d));
	x->bytes = (size_t)bytes;
	x->data = grab(x->bytes);
	return clv_tensor_copy_to(t, x->data, x->bytes) == CLV_OK || fail_with(name) == EXIT_OK;
}

static void results_free(results *r)
{
	for (uint32_t i = 0; i < r->n; i++) {
		free(r->at[i].shape);
		free(r->at[i].data);
	}
	free(r->at);
}

typedef struct summary {
	double min, max, mean;
	int64_t nans;
} summary;

static summary summarize(const result *x)
{
	summary s = {NAN, NAN, NAN, 0};
	const element *e = element_of(x->dtype);
	double sum = 0;
	if (e->kind == ELEMENT_OTHER || e->kind == ELEMENT_COMPLEX)
		return s;
	for (uint64_t k = 0; k < x->count; k++) {
		double v = element_get(e, x->data + k * e->bytes);
		s.nans += isnan(v) != 0;
		if (isnan(v))
			continue;
		s.min = isnan(s.min) || v < s.min ? v : s.min;
		s.max = isnan(s.max) || v > s.max ? v : s.max;
		sum += v;
	}
	s.mean = sum / (double)(x->count - (uint64_t)s.nans); /* of what is a number; NaN where nothing is */
	return s;
}

static char *result_shape(const result *x)
{
	char *text = grab(x->ndim * 21 + 3), *to = text;
	*to++ = '[';
	for (uint32_t d = 0; d < x->ndim; d++)
		to += sprintf(to, "%s%lld", d ? "," : "", (long long)x->shape[d]);
	*to = ']';
	return text;
}

static void show_table(const results *r, const listing_view *v)
{
	listing *t = listing_new(columns);
	for (uint32_t i = 0; i < r->n; i++) {
		const result *x = &r->at[i];
		summary s = summarize(x);
		char *shape = result_shape(x);
		bool lost = x->loss.bytes >= 0;
		const cell cells[] = {{.s = x->name},
		                      {.s = x->dtype},
		                      {.s = shape},
		                      {.n = (int64_t)x->bytes},
		                      {.x = s.min},
		                      {.x = s.max},
		                      {.x = s.mean},
		                      {.n = s.nans},
		                      {.s = !lost            ? NULL
		                            : x->loss.method ? x->loss.method
		                                             : "plain"},
		                      {.n = lost ? x->loss.bytes : INT64_MIN},
		                      {.x = lost ? x->loss.max_abs : NAN},
		                      {.x = lost ? x->loss.relative : NAN},
		                      {.x = lost ? x->loss.l2 : NAN}};
		listing_add(t, s.nans ? '!' : 0, cells);
		free(shape);
	}
	listing_show(t, v);
}

/* Brackets that open before element k, or close after it: one for each row that starts or ends there. */
static uint32_t rows_at(const result *x, uint64_t k)
{
	uint32_t n = 0;
	uint64_t row = 1;
	for (uint32_t d = x->ndim; d-- > 0;) {
		row *= (uint64_t)x->shape[d];
		n += k % row == 0;
	}
	return n;
}

static void print_values(const result *x)
{
	enum { MOST = 1000 };
	const element *e = element_of(x->dtype);
	char text[ELEMENT_TEXT];
	put_plain(stdout, x->name);
	if (x->count > MOST || e->kind == ELEMENT_OTHER) {
		printf(": %llu elements, too many to print; -o writes them\n", (unsigned long long)x->count);
		return;
	}
	fputs(x->count ? ": " : ": []", stdout);
	for (uint64_t k = 0; k < x->count; k++) {
		fputs(k ? ", " : "", stdout);
		for (uint32_t n = rows_at(x, k); n > 0; n--)
			putchar('[');
		fputs(element_text(e, x->data + k * e->bytes, text), stdout);
		for (uint32_t n = rows_at(x, k + 1); n > 0; n--)
			putchar(']');
	}
	putchar('\n');
}

static bool save_results(const results *r, const char *path)
{
	clv_array *arrays = grab((r->n + 1) * sizeof *arrays);
	for (uint32_t i = 0; i < r->n; i++) {
		const result *x = &r->at[i];
		arrays[i] = (clv_array){sizeof *arrays, x->name, x->dtype, x->ndim, x->shape, x->data, x->bytes};
	}
	clv_status st = clv_arrays_save(arrays, r->n, path);
	free(arrays);
	if (st == CLV_OK)
		note("wrote %s", path);
	return st == CLV_OK || fail_with(NULL) == EXIT_OK;
}

static bool complain_element(const result *x, const clv_array *want, const char *path)
{
	char got[ELEMENT_TEXT], expected[ELEMENT_TEXT], place[256] = "[";
	const element *e = element_of(x->dtype);
	size_t item = x->bytes / x->count, k = 0, at = 1;
	while (!memcmp(x->data + k * item, (const char *)want->data + k * item, item))
		k++;
	size_t rest = k, row = x->count;
	for (uint32_t d = 0; d < x->ndim && at < sizeof place; d++) {
		row /= (size_t)x->shape[d];
		at += (size_t)snprintf(place + at, sizeof place - at, "%s%zu", d ? "," : "", rest / row);
		rest %= row;
	}
	if (e->kind == ELEMENT_OTHER)
		complain("%s%s] differs from %s", x->name, place, path);
	else
		complain("%s%s] is %s, in %s it is %s", x->name, place, element_text(e, x->data + k * item, got), path,
		         element_text(e, (const char *)want->data + k * item, expected));
	return false;
}

static bool same_result(const result *x, const clv_arrays *expected, const char *path)
{
	clv_array want = {.size = sizeof want};
	uint32_t i = clv_arrays_count(expected) == 1 ? 0 : clv_arrays_find(expected, x->name);
	if (i == CLV_NONE || clv_arrays_get(expected, i, &want) != CLV_OK) {
		complain("%s has no tensor \"%s\"", path, x->name);
		return false;
	}
	if (strcmp(want.dtype, x->dtype) != 0 || want.ndim != x->ndim ||
	    (x->ndim && memcmp(want.shape, x->shape, x->ndim * sizeof *x->shape) != 0)) {
		char *shape = result_shape(x);
		complain("%s is %s%s, in %s it is of another type or shape", x->name, x->dtype, shape, path);
		free(shape);
		return false;
	}
	return !x->bytes || !memcmp(x->data, want.data, x->bytes) || complain_element(x, &want, path);
}

static bool compare_results(const results *r, const char *path)
{
	clv_arrays *expected;
	bool same = true;
	if (clv_arrays_load(path, &expected) != CLV_OK)
		return fail_with(NULL) == EXIT_OK;
	if (clv_arrays_count(expected) != r->n) {
		complain("%s has %u tensors, the run gave %u", path, clv_arrays_count(expected), r->n);
		same = false;
	}
	for (uint32_t i = 0; same && i < r->n; i++)
		same = same_result(&r->at[i], expected, path);
	clv_arrays_free(expected);
	if (same)
		note("equal to %s, bit for bit", path);
	return same;
}

static bool deliver(const request *r, const results *x)
{
	show_table(x, &r->view);
	for (uint32_t i = 0; r->print && i < x->n; i++)
		print_values(&x->at[i]);
	return written() && (!r->output || save_results(x, r->output)) && (!r->compare || compare_results(x, r->compare));
}

/* plan: the one that served, which names them. */
static int deliver_outputs(const request *r, const clv_runtime *rt, uint32_t plan, clv_tensor **outputs)
{
	uint32_t n = clv_runtime_plan_output_count(rt, plan);
	results x = {grab((n + 1) * sizeof *x.at), n};
	bool ok = true;
	for (uint32_t i = 0; ok && i < n; i++) {
		clv_port p = {.size = sizeof p};
		ok = clv_runtime_plan_output(rt, plan, i, &p) == CLV_OK && read_result(&x.at[i], p.name, outputs[i]);
	}
	ok = ok && deliver(r, &x);
	results_free(&x);
	return ok ? EXIT_OK : EXIT_FAILED;
}

static int run_whole(const request *r, const clv_runtime *rt, const feed *in, const clv_boundary *b)
{
	uint32_t n = clv_runtime_most_outputs(rt), plan;
	clv_tensor **outputs = grab((n + 1) * sizeof *outputs);
	clv_status st = b ? clv_runtime_run_suffix_any(rt, b, outputs, n, &plan)
	                  : clv_runtime_run_any(rt, (const clv_tensor *const *)in->at, in->n, outputs, n, &plan);
	int code = st == CLV_OK ? deliver_outputs(r, rt, plan, outputs) : fail_run(r->path, st);
	for (uint32_t i = 0; i < n; i++)
		clv_tensor_free(outputs[i]);
	free(outputs);
	return code;
}

static bool save_boundary(const request *r, const clv_boundary *b)
{
	clv_pack_options o = CLV_PACK_OPTIONS_INIT;
	o.compress = r->compress;
	o.no_checksum = r->no_checksum;
	return clv_boundary_save(b, &o, r->output) == CLV_OK || fail_with(NULL) == EXIT_OK;
}

/* As the written file says, which is what its readers get. */
static bool read_losses(const request *r, results *x)
{
	clv_boundary *b = NULL;
	if (!r->output || !r->compress)
		return true;
	if (clv_boundary_load(r->output, &b) != CLV_OK)
		return fail_with(NULL) == EXIT_OK;
	bool ok = clv_boundary_count(b) == x->n;
	for (uint32_t i = 0; ok && i < x->n; i++) {
		x->at[i].loss.size = sizeof x->at[i].loss;
		ok = clv_boundary_loss(b, i, &x->at[i].loss) == CLV_OK;
	}
	clv_boundary_free(b);
	return ok;
}

static int deliver_boundary(const request *r, const clv_boundary *b)
{
	uint32_t n = clv_boundary_count(b);
	results x = {grab((n + 1) * sizeof *x.at), n};
	request shown = *r;
	bool ok = true;
	shown.output = NULL; /* a boundary is more than tensors: the library writes it */
	for (uint32_t i = 0; ok && i < n; i++)
		ok = read_result(&x.at[i], clv_boundary_label(b, i), clv_boundary_tensor(b, i));
	ok = ok && (!r->output || save_boundary(r, b)) && read_losses(r, &x) && deliver(&shown, &x);
	if (ok && r->output)
		note("wrote %s", r->output);
	results_free(&x);
	return ok ? EXIT_OK : EXIT_FAILED;
}

/* ---- the suffix on a server -------------------------------------------------------------------------------------------- */

static int deliver_remote(const request *r, const clv_remote *c, clv_tensor **outputs, uint32_t n)
{
	results x = {grab((n + 1) * sizeof *x.at), n};
	bool ok = true;
	for (uint32_t i = 0; ok && i < n; i++) {
		clv_port p = {.size = sizeof p};
		ok = clv_remote_output(c, i, &p) == CLV_OK && read_result(&x.at[i], p.name, outputs[i]);
	}
	ok = ok && deliver(r, &x);
	results_free(&x);
	return ok ? EXIT_OK : EXIT_FAILED;
}

static void note_times(const clv_remote_times *t)
{
	char sent[HUMAN_TEXT], encode[HUMAN_TEXT], send[HUMAN_TEXT], wait[HUMAN_TEXT], queue[HUMAN_TEXT],
		compute[HUMAN_TEXT], receive[HUMAN_TEXT];
	bool said = t->compute >= 0 && t->queue >= 0;
	note("sent %s: encode %s, send %s, wait %s%s%s%s%s%s, receive %s%s", human_bytes(t->sent_bytes, sent),
	     human_seconds(t->encode, encode), human_seconds(t->connect + t->send, send), human_seconds(t->wait, wait),
	     said ? " (queue " : "", said ? human_seconds(t->queue, queue) : "", said ? ", compute " : "",
	     said ? human_seconds(t->compute, compute) : "", said ? ")" : "",
	     human_seconds(t->receive + t->decode, receive), t->tries > 1 ? ", after more than one try" : "");
}

/* Its first line; NULL with what is wrong said. Caller frees. */
static char *read_token(const char *path)
{
	size_t n;
	char *text = load_text(path, &n), *token = NULL;
	if (text) {
		size_t k = 0;
		while (k < n && text[k] != '\r' && text[k] != '\n')
			k++;
		token = grab(k + 1);
		memcpy(token, text, k);
	}
	free(text);
	return token;
}

/* *token: the caller frees it, later. */
static bool read_remote(const request *r, clv_remote_options *o, char **token)
{
	*token = r->remote.token_file ? read_token(r->remote.token_file) : NULL;
	if (r->remote.token_file && !*token)
		return false;
	*o = (clv_remote_options)CLV_REMOTE_OPTIONS_INIT;
	o->token = *token;
	o->ca = r->remote.ca;
	o->cert = r->remote.cert;
	o->key = r->remote.key;
	o->timeout = r->remote.timeout;
	o->insecure = r->remote.insecure;
	return true;
}

static bool connect_remote(const request *r, clv_remote **out)
{
	clv_remote_options o;
	char *token;
	if (!read_remote(r, &o, &token))
		return false;
	clv_status st = clv_remote_connect(r->remote.url, &o, out);
	free(token);
	return st == CLV_OK || fail_with(NULL) == EXIT_OK;
}

static int run_remote(const request *r, const clv_boundary *b)
{
	clv_remote *c = NULL;
	clv_remote_times t = {.size = sizeof t};
	clv_pack_options pack = CLV_PACK_OPTIONS_INIT;
	pack.compress = r->compress;
	pack.no_checksum = r->no_checksum;
	if (!connect_remote(r, &c))
		return EXIT_FAILED;
	uint32_t n = clv_remote_output_count(c);
	clv_tensor **outputs = grab((n + 1) * sizeof *outputs);
	clv_status st = clv_remote_run_suffix(c, b, &pack, outputs, n, &t);
	if (st == CLV_OK)
		note_times(&t);
	int code = st == CLV_OK ? deliver_remote(r, c, outputs, n) : fail_with(NULL);
	for (uint32_t i = 0; i < n; i++)
		clv_tensor_free(outputs[i]);
	free(outputs);
	clv_remote_free(c);
	return code;
}

/* ---- calls that follow the link ---------------------------------------------------------------------------------------- */

static void note_ways(clv_follower *f)
{
	double rtt, rate;
	char *reason = NULL, a[HUMAN_TEXT], b[HUMAN_TEXT];
	clv_follower_link(f, &rtt, &rate);
	note("round trip %s, %s/s", human_seconds(rtt, a), human_bytes((int64_t)rate, b));
	for (uint32_t i = 0; i < clv_follower_count(f); i++) {
		clv_follow_state s = {.size = sizeof s};
		if (clv_follower_way(f, i, &s) != CLV_OK)
			continue;
		bool open = isfinite(s.seconds);
		note("%-24s %s, sends %s, %llu calls", s.name, open ? human_seconds(s.seconds, a) : "not now",
		     human_bytes(s.remote ? s.sent : 0, b), (unsigned long long)s.calls);
	}
	if (clv_follower_reason(f, &reason) == CLV_OK && reason)
		note("the last call to the server failed: %s", reason);
	clv_free(reason);
}

static int call_and_deliver(const request *r, clv_follower *f, const feed *in)
{
	uint32_t n = clv_runtime_output_count(clv_follower_runtime(f));
	clv_tensor **outputs = grab((n + 1) * sizeof *outputs);
	clv_status st = CLV_OK;
	for (int64_t k = 0; k < r->remote.follow && st == CLV_OK; k++) {
		for (uint32_t i = 0; i < n; i++)
			clv_tensor_free(outputs[i]);
		memset(outputs, 0, n * sizeof *outputs);
		st = clv_follower_run(f, (const clv_tensor *const *)in->at, in->n, outputs, n, NULL);
	}
	if (st == CLV_OK)
		note_ways(f);
	int code = st == CLV_OK ? deliver_outputs(r, clv_follower_runtime(f), 0, outputs) : fail_run(r->path, st);
	for (uint32_t i = 0; i < n; i++)
		clv_tensor_free(outputs[i]);
	free(outputs);
	return code;
}

static int run_follow(const request *r, const model *m)
{
	clv_remote_options there;
	clv_runtime_options here = loading_options(&r->loading);
	clv_follow_options o = CLV_FOLLOW_OPTIONS_INIT;
	clv_follower *f = NULL;
	feed in = {0};
	char *token;
	int code = EXIT_FAILED;
	if (!read_remote(r, &there, &token))
		return EXIT_FAILED;
	here.part = NULL;
	o.remote = &there;
	o.runtime = &here;
	o.compress = r->compress ? &r->compress : NULL;
	o.ncompress = r->compress ? 1 : 0;
	if (clv_follower_new(m->artifact, r->remote.url, &o, &f) != CLV_OK)
		code = fail_with(NULL);
	else if (feed_make(m, clv_follower_runtime(f), &r->feeding, &r->sizes, &in))
		code = call_and_deliver(r, f, &in);
	feed_free(&in);
	clv_follower_free(f);
	free(token);
	return code;
}

static int run_prefix(const request *r, const clv_runtime *rt, const feed *in)
{
	clv_boundary *b = NULL;
	clv_status st = clv_runtime_run_prefix(rt, (const clv_tensor *const *)in->at, in->n, &b);
	int code = st != CLV_OK ? fail_run(r->path, st) : r->remote.url ? run_remote(r, b) : deliver_boundary(r, b);
	clv_boundary_free(b);
	return code;
}

static int run_on_inputs(const request *r, const model *m, const clv_runtime *rt)
{
	feed in = {0};
	int code = EXIT_FAILED;
	if (feed_make(m, rt, &r->feeding, &r->sizes, &in))
		code = is_part(m, &r->loading, "prefix") ? run_prefix(r, rt, &in) : run_whole(r, rt, &in, NULL);
	feed_free(&in);
	return code;
}

static int run_on_boundary(const request *r, const clv_runtime *rt)
{
	clv_boundary *b = NULL;
	if (clv_boundary_load(r->boundary, &b) != CLV_OK)
		return fail_with(NULL);
	int code = run_whole(r, rt, NULL, b);
	clv_boundary_free(b);
	return code;
}

/* Says so where packed weights of the file were of no use: the next start takes as long. */
static void note_packing(const request *r, const model *m, const clv_runtime *rt)
{
	clv_packing_state x = {.size = sizeof x};
	const char *isa;
	uint32_t pieces;
	int64_t bytes;
	if (!clv_artifact_packed(m->artifact, 0, &isa, &pieces, &bytes) || clv_runtime_packing(rt, &x) != CLV_OK ||
	    !x.repacked)
		return;
	note("%s: %u of %u weights were packed in memory, because the packed ones of the file are %s; `cleave pack` makes "
	     "them "
	     "anew",
	     name_of(r->path), x.repacked, x.repacked + x.found,
	     x.damaged ? "damaged" : "for another machine or another version");
}

/* What is asked for fits the part that runs. */
static bool check_run(const request *r, const model *m)
{
	bool suffix = is_part(m, &r->loading, "suffix");
	if (suffix && !r->boundary) {
		fail_boundary(r->path);
	} else if (suffix && r->feeding.inputs.n) {
		complain("a suffix takes --boundary and no --input");
	} else if (!suffix && r->boundary) {
		complain("--boundary is for a suffix; this is the part \"%s\"",
		         r->loading.part ? r->loading.part : clv_artifact_part(m->artifact));
	} else if (r->remote.follow && (strcmp(clv_artifact_part(m->artifact), "all") != 0 ||
	                                (r->loading.part && strcmp(r->loading.part, "all") != 0))) {
		complain("--follow divides a whole model; this is a part of one");
	} else if (r->remote.url && !r->remote.follow && !is_part(m, &r->loading, "prefix")) {
		complain("--remote runs what comes after a prefix; this is the part \"%s\"",
		         r->loading.part ? r->loading.part : clv_artifact_part(m->artifact));
	} else if ((r->compress || r->no_checksum) && !r->remote.follow &&
	           !(is_part(m, &r->loading, "prefix") && (r->output || r->remote.url))) {
		complain("--%s is for the boundary that a prefix writes with -o or sends with --remote",
		         r->compress ? "compress" : "no-checksum");
	} else {
		return true;
	}
	return false;
}

static int run_model(void *given, const model *m)
{
	request *r = given;
	r->feeding.timeout = r->loading.timeout;
	if (!check_run(r, m) || !resolve_batch(m, &r->sizes))
		return EXIT_FAILED;
	if (r->remote.follow)
		return run_follow(r, m);
	clv_runtime *rt = load_runtime(m, &r->loading);
	if (!rt)
		return EXIT_FAILED;
	int code; /* the seed comes after the device that it is for */
	if (seed_models((uint64_t)r->feeding.seed) != CLV_OK)
		code = fail_with(NULL);
	else
		code = r->boundary ? run_on_boundary(r, rt) : run_on_inputs(r, m, rt);
	if (code == EXIT_OK)
		note_packing(r, m, rt);
	clv_runtime_free(rt);
	return code;
}

/* What can be said before the model is there. */
static int check_usage(void *given)
{
	request *r = given;
	if (r->print && r->view.json) {
		complain("--print and --json do not go together: values are no part of the JSON");
		return EXIT_USAGE;
	}
	if (!r->remote.url &&
	    (r->remote.token_file || r->remote.ca || r->remote.cert || r->remote.key || r->remote.insecure)) {
		complain("--token-file, --ca, --cert, --key and --insecure are for --remote");
		return EXIT_USAGE;
	}
	if (r->remote.follow && (!r->remote.url || r->loading.weights)) {
		complain(r->remote.url ? "--follow and --weights do not go together: save the model with them"
		                       : "--follow is for --remote");
		return EXIT_USAGE;
	}
	bool apart = check_output(r->output, r->path) && check_output(r->output, r->boundary) &&
	             check_output(r->output, r->loading.weights);
	int code = apart ? loading_check(&r->loading) : EXIT_USAGE;
	return code == EXIT_OK ? feeding_check(&r->feeding) : code;
}

static const option arguments[] = {
	ARG_FILE("FILE", path, "a .clv file; - is standard input"),
	OPTION_END,
};

static const option options[] = {
	FEEDING_OPTIONS(feeding),
	RUN_SIZE_OPTIONS(sizes),
	OPT_FILE("boundary", 0, "FILE", boundary, "of a suffix: the boundary written by the prefix"),
	OPT_GROUP("the rest on a server"),
	OPT_TEXT("remote", 0, "URL", remote.url,
             "send the boundary of a prefix to https://host:8000/model and show the outputs"),
	OPT_COUNT("follow", 0, "N", remote.follow,
              "call a whole model that the server has too N times, each time the fastest way (docs/remote.md)"),
	OPT_FILE("token-file", 0, "FILE", remote.token_file, "file whose first line is the token for the server"),
	OPT_FILE("ca", 0, "FILE", remote.ca, "certificates to trust instead of the system's (PEM)"),
	OPT_FILE("cert", 0, "FILE", remote.cert, "client certificate (PEM)"),
	OPT_FILE("key", 0, "FILE", remote.key, "its private key (PEM)"),
	OPT_SECONDS("remote-timeout", 0, "S", remote.timeout,
                "time limit of the call in seconds, retries included (default: 60)"),
	OPT_FLAG("insecure", 0, remote.insecure, "allow sending the token over http:// to another machine"),
	OPT_GROUP("results"),
	OPT_FILE("output", 'o', "FILE", output, "write the outputs, or the boundary of a prefix, as a safetensors file"),
	OPT_WORD("compress", 0, "HOW", compress, "fp16|bf16|int8|zstd|q1|q2|q3|q4|q5|q6|q7|q8",
             "compress the boundary and report size and error; zstd is lossless"),
	OPT_FLAG("no-checksum", 0, no_checksum, "leave out the digests that let readers detect damage"),
	OPT_FLAG("print", 0, print, "also print the values of outputs with up to 1000 elements"),
	OPT_FILE("compare", 0, "FILE", compare, "outputs must equal those in this file, bit for bit"),
	LOADING_OPTIONS(loading),
	RUN_FILE_OPTIONS,
	OPTION_END,
};

const command command_run = {
	.name = "run",
	.summary = "run a model file on inputs",
	.description =
		"Runs a model without Python and without its code, and shows its outputs. Inputs come from NumPy's .npy files "
		"or safetensors files, or are made up; their dtypes and shapes are checked.\n\n"
		"A prefix writes the boundary with -o, and a suffix reads it with --boundary, in another process or on another "
		"machine. For a file with a whole cut model, --part runs one half. With --remote a prefix sends the boundary "
		"to a server (`cleave serve`) and shows its answer. With --compress the table also shows the bytes of each "
		"tensor in the file and the error: the largest difference, the mean relative difference, and the norm of the "
		"differences relative to that of the tensor.\n\n"
		"Sizes that neither files nor --batch and --size give are the first for which the model is proven. Other sizes "
		"are refused unless --unproven is given. Random inputs depend only on --seed: floats are normal with variance "
		"one, integers are within --int-range, which must be valid where they are indices.",
	.examples = "cleave run model.clv --input x=image.npy -o out.safetensors\n"
				"cleave run model.clv --fill random --batch 8 --seed 1 --print\n"
				"# a file from a stranger\n"
				"cleave run model.clv --fill random --sandbox --timeout 10 --max-memory 2G\n"
				"# two halves in two processes\n"
				"cleave run prefix.clv --input x=image.npy -o boundary.safetensors\n"
				"cleave run suffix.clv --boundary boundary.safetensors -o out.safetensors\n"
				"# the suffix on a server\n"
				"cleave run prefix.clv --input x=image.npy --remote https://host:8000/suffix --token-file token "
				"--compress q4\n"
				"# here, there, or in part on both: whichever is fastest\n"
				"cleave run model.clv --input x=image.npy --remote https://host:8000/model --follow 20\n",
	.exits = "0 done, 1 it failed or --compare found a difference, 2 wrong usage.",
	.arguments = arguments,
	.options = options,
	.columns = columns,
	REQUEST(request),
	.check = check_usage,
	ON_MODEL(run_model),
	.artifact = true,
	.torch = true,
	.engine_at = offsetof(request, loading.engine),
};
