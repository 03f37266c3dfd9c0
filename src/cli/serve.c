/* `cleave serve`: models over HTTP. */
#include "feed.h"

typedef struct request {
	clv_server_options o;
	text_list models;
	int64_t port, workers, max_connections, max_per_address, max_head, max_streams, max_queue, max_batch, max_sessions;
	loading loading;
	opening opening;
} request;

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static clv_server *running; /* for the handlers of signals */

static void on_stop(int signal_number)
{
	(void)signal_number;
	clv_server_stop(running);
}

static void on_reload(int signal_number)
{
	(void)signal_number;
	clv_server_reload(running);
}

static void handle_signals(clv_server *s)
{
	struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
	struct sigaction reload = {.sa_handler = on_reload, .sa_flags = SA_RESTART};
	running = s;
	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGINT, &stop, NULL);
	sigaction(SIGHUP, &reload, NULL);
	signal(SIGPIPE, SIG_IGN);
}

static clv_runtime_options runtime_options(const request *r)
{
	const loading *l = &r->loading;
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	o.device = l->device;
	o.unproven = l->unproven;
	o.allow_compiled = l->allow_compiled;
	o.allow_signed = l->allow_signed;
	o.tape_only = l->tape_only;
	o.sandbox = l->sandbox ? CLV_SANDBOX_ON : l->no_sandbox ? CLV_SANDBOX_OFF : CLV_SANDBOX_AUTO;
	o.threads = l->threads ? (int)l->threads : cores > r->workers ? (int)(cores / r->workers) : 1;
	o.optimize = l->optimize;
	o.timeout = l->timeout;
	o.max_memory = l->max_memory;
	o.engine = l->engine;
	return o;
}

/* Each connection is a descriptor; many systems give a process 1024 unless it asks. */
static void ask_for_descriptors(const request *r)
{
	enum { OTHERS = 256 };
	struct rlimit have;
	rlim_t want = (rlim_t)r->max_connections + OTHERS;
	if (getrlimit(RLIMIT_NOFILE, &have) != 0 || have.rlim_cur >= want)
		return;
	have.rlim_cur = want < have.rlim_max ? want : have.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &have) != 0 || have.rlim_cur < want)
		note("only %llu descriptors: fewer than --max-connections %lld can be open at once",
		     (unsigned long long)have.rlim_cur, (long long)r->max_connections);
}

/* Tells a service manager that asks to be told. */
static void notify(const char *what)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	size_t n = path ? strlen(path) : 0;
	if (n < 2 || n >= sizeof to.sun_path)
		return;
	memcpy(to.sun_path, path, n);
	if (path[0] == '@')
		to.sun_path[0] = '\0'; /* a name that is in no file system */
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	(void)!sendto(fd, what, strlen(what), MSG_NOSIGNAL, (struct sockaddr *)&to,
	              (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
	close(fd);
}

static int serve(const request *r, clv_server *s)
{
	const char *host = r->o.host ? r->o.host : "127.0.0.1", *scheme = r->o.tls_cert ? "https" : "http";
	bool brackets = strchr(host, ':'); /* of an IPv6 address */
	const char *open = brackets ? "[" : "", *close = brackets ? "]" : "";
	uint16_t rest = clv_server_port(s), grpc = clv_server_grpc_port(s), metrics = clv_server_metrics_port(s);
	if (rest)
		note("serving at %s://%s%s%s:%u", scheme, open, host, close, rest);
	if (grpc && grpc != rest)
		note("serving gRPC at %s%s%s:%u", open, host, close, grpc);
	if (metrics && metrics != rest)
		note("serving metrics at %s://%s%s%s:%u/metrics", scheme, open, host, close, metrics);
	handle_signals(s);
	notify("READY=1");
	clv_status st = clv_server_run(s);
	notify("STOPPING=1");
	running = NULL;
	if (st == CLV_E_CANCELLED)
		_exit(fail_with(NULL)); /* a thread runs on, and would meet what exit() takes down */
	return st == CLV_OK ? EXIT_OK : fail_with(NULL);
}

static int run_serve(void *given)
{
	const request *r = given;
	clv_open_options open = open_options(&r->opening);
	clv_runtime_options runtime = runtime_options(r);
	clv_server_options o = r->o;
	clv_server *s;
	o.models = r->models.at;
	o.nmodels = r->models.n;
	o.port = (uint16_t)r->port;
	o.open = &open;
	o.runtime = &runtime;
	o.workers = (uint32_t)r->workers;
	o.max_connections = (uint32_t)r->max_connections;
	o.max_per_address = (uint32_t)r->max_per_address;
	o.max_head = (uint32_t)r->max_head;
	o.max_streams = (uint32_t)r->max_streams;
	o.max_queue = (uint32_t)r->max_queue;
	o.max_batch = (uint32_t)r->max_batch;
	o.max_sessions = (uint32_t)r->max_sessions;
	ask_for_descriptors(r);
	if (clv_server_create(&o, &s) != CLV_OK)
		return fail_with(NULL);
	int code = r->o.check ? EXIT_OK : serve(r, s);
	if (r->o.check)
		note("all models can be served");
	clv_server_free(s);
	return code;
}

static int run_checked(void *given)
{
	const request *r = given;
	if (!r->models.n && !r->o.repository) {
		complain("name a model file, or a --repository");
		return EXIT_USAGE;
	}
	int code = loading_check(&r->loading);
	return code == EXIT_OK ? run_serve(given) : code;
}

static const option arguments[] = {
	OPT("MODEL", 0, "MODEL", TYPE_FILES, text_list, models,
        "a .clv file, served under its name without the ending; NAME=FILE gives another name", .optional = true),
	OPTION_END,
};

static const option options[] = {
	OPT_FILE("repository", 0, "FOLDER", o.repository, "serve the models in it: MODEL/VERSION/FILE.clv or MODEL.clv"),
	OPT_FLAG("check", 0, o.check, "load everything, report whether it can be served, and exit"),
	OPT_GROUP("listening"),
	OPT_TEXT("host", 0, "HOST", o.host, "address to listen on (default: 127.0.0.1)"),
	OPT_INT("port", 0, "PORT", port, "port; 0 picks a free one and prints it", .preset = "8000", .most = UINT16_MAX),
	OPT_INT("http-port", 0, "PORT", o.http_port, "port for REST only, instead of --port; Triton uses 8000",
            .most = UINT16_MAX),
	OPT_INT("grpc-port", 0, "PORT", o.grpc_port, "port for gRPC only; Triton uses 8001", .most = UINT16_MAX),
	OPT_INT("metrics-port", 0, "PORT", o.metrics_port, "port for /metrics only; Triton uses 8002", .most = UINT16_MAX),
	OPT_FILE("tls-cert", 0, "FILE", o.tls_cert, "the server's certificate (PEM); turns on TLS 1.3"),
	OPT_FILE("tls-key", 0, "FILE", o.tls_key, "its private key, PEM"),
	OPT_FILE("tls-client-ca", 0, "FILE", o.tls_client_ca, "require client certificates signed by one of these (PEM)"),
	OPT_FILE("tokens", 0, "FILE", o.tokens, "bearer tokens as SHA-256, with the models and rates that they allow"),
	OPT_FLAG("insecure", 0, o.insecure, "allow listening beyond this machine without TLS and tokens"),
	OPT_GROUP("limits"),
	OPT_COUNT("workers", 0, "N", workers, "runs at a time", .preset = "1", .most = 1024),
	OPT_SIZE("max-body", 0, "BYTES", o.max_body, "of one request", .preset = "64Mi"),
	OPT_SIZE("max-json", 0, "BYTES", o.max_json, "limit on the JSON of one request, not counting binary tensors",
             .preset = "16Mi"),
	OPT_SIZE("max-held", 0, "BYTES", o.max_memory, "of all requests together", .preset = "1Gi"),
	OPT_COUNT("max-connections", 0, "N", max_connections, "limit on open connections; further ones are closed at once",
              .preset = "4096", .most = UINT32_MAX),
	OPT_COUNT("max-per-address", 0, "N", max_per_address, "the same for each client address (default: no limit)",
              .most = UINT32_MAX),
	OPT_SIZE("max-head", 0, "BYTES", max_head, "limit on the headers of a request, at most 32Ki", .preset = "32Ki",
             .most = 32 << 10),
	OPT_COUNT("max-streams", 0, "N", max_streams, "limit on concurrent requests over one HTTP/2 connection",
              .preset = "128", .most = UINT32_MAX),
	OPT_COUNT("max-queue", 0, "N", max_queue, "limit on waiting requests; further ones are answered with 429",
              .preset = "1024", .most = UINT32_MAX),
	OPT_SECONDS("header-timeout", 0, "S", o.header_timeout,
                "time limit for receiving a request, plus a second for each 16 KiB of its body", .preset = "10"),
	OPT_SECONDS("idle-timeout", 0, "S", o.idle_timeout, "time that a connection may stay idle", .preset = "75"),
	OPT_SECONDS("drain-delay", 0, "S", o.drain_delay,
                "time to go on serving after SIGTERM while no longer ready; a second signal ends it", .preset = "0"),
	OPT_SECONDS("drain-timeout", 0, "S", o.drain_timeout, "time for open requests to finish once told to stop",
                .preset = "30"),
	OPT_SECONDS("poll", 0, "S", o.poll, "seconds between looks for changed files; 0 turns it off", .preset = "0"),
	OPT_GROUP("running"),
	OPT_TEXT("device", 0, "DEVICE", loading.device, "where to run: cpu, cuda:0 (default: where it was captured)"),
	OPT_COUNT("threads", 0, "N", loading.threads,
              "threads per operator (default: all cores, divided among the workers)", .most = INT_MAX),
	OPT_WORD("optimize", 0, "LEVEL", loading.optimize, "safe|none|fast",
             "how far plans may be rewritten; fast keeps results within a tolerance"),
	OPT_TEXT("engine", 0, "NAME", loading.engine,
             "tape (libtorch) or native (without libtorch); default: the first that can run it"),
	OPT_WORD("batching", 0, "HOW", o.batching, "exact|fast|off",
             "run requests of several clients together where rows provably stay apart; exact only uses batch sizes "
             "that give the same bits as alone",
             .preset = "exact"),
	OPT_COUNT("max-batch", 0, "N", max_batch, "limit on the rows of one run", .preset = "32", .most = UINT16_MAX),
	OPT_FLAG("unproven", 0, loading.unproven, "also run sizes at which the model was never recorded"),
	OPT_FLAG("allow-compiled", 0, loading.allow_compiled, "run compiled parts made by others"),
	OPT_FLAG("allow-signed", 0, loading.allow_signed, "the same, but only for files signed by a --trusted-key"),
	OPT_FLAG("tape-only", 0, loading.tape_only, "do not use compiled parts"),
	OPT_SECONDS("timeout", 0, "S", loading.timeout, "time limit of a run in seconds (default: none)"),
	OPT_SIZE("max-memory", 0, "BYTES", loading.max_memory, "memory limit for the tensors of a run (default: none)"),
	OPT_FLAG("sandbox", 0, loading.sandbox,
             "run models in processes that can only compute (default: only files that nobody vouches for)"),
	NO_SANDBOX_OPTION(loading.no_sandbox),
	OPT_GROUP("training"),
	OPT_FILE("state", 0, "FOLDER", o.state, "where sessions of files that train are kept, safe from kill -9"),
	OPT_COUNT("max-sessions", 0, "N", max_sessions, "more are answered with 429", .preset = "64", .most = UINT16_MAX),
	OPT_SIZE("max-session", 0, "BYTES", o.max_session, "of one session on disk", .preset = "4Gi"),
	OPT_SIZE("session-memory", 0, "BYTES", o.session_memory,
             "memory for sessions; beyond it those unused longest wait on disk until they are asked for",
             .preset = "1Gi"),
	OPT_SECONDS("session-idle", 0, "S", o.session_idle, "after which a session that nobody uses ends; 0: never",
                .preset = "604800"),
	OPT_GROUP("log"),
	OPT_WORD("log", 0, "HOW", o.log, "text|json|off", "log a line per request to standard error", .preset = "text"),
	OPT_GROUP("model files"),
	TRUST_OPTIONS(opening),
	OPTION_END,
};

static const request initial = {.o = CLV_SERVER_OPTIONS_INIT};

const command command_serve = {
	.name = "serve",
	.summary = "serve models over HTTP",
	.description = "Serves models over the Open Inference Protocol, version 2. On SIGTERM or SIGINT it stops being "
				   "ready, answers open requests and ends. SIGHUP makes it reload its files.\n\n"
				   "A suffix takes the boundary of its prefix as it is (application/x-safetensors), or its tensors by "
				   "their labels. MODEL@CUT is the suffix of a whole model at that cut, using the same weights.\n\n"
				   "It listens on this machine only, unless TLS and tokens are given, or --insecure.",
	.examples =
		"cleave serve model.clv suffix.clv\n"
		"curl http://127.0.0.1:8000/v2/models/model\n"
		"# a folder of models for other machines, over TLS\n"
		"cleave serve --repository models --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --tokens tokens\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.initial = &initial,
	.run = run_checked,
	.torch = true,
	.engine_at = offsetof(request, loading.engine),
};
