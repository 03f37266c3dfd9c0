/* `cleave trace`: compiles parts of a model file. */
#include "feed.h"

typedef struct request {
	const char *path, *output, *backend, *workdir, *cache;
	text_list args, ops, modules;
	double timeout, threshold, rtol, atol;
	int64_t minimum, most, parallel;
	bool no_fallback, keep_slower, dynamic, dry, json, verbose, no_sandbox;
	feeding feeding;
	sizes sizes;
	opening opening;
} request;

#ifdef CLEAVE_CLI_TORCH
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Further calls per plan; runs of the whole for the report, the first ones not timed, and no more of them after so long. */
enum { CALLS_MAX = 3, WARM_RUNS = 2, TIMED_RUNS = 10, TIMED_SECONDS = 2 };

typedef struct calls {
	feed *at;
	clv_trace_call *given; /* the same, as the library takes them */
	uint32_t n;
} calls;

static bool calls_add(calls *c, const model *m, const clv_runtime *rt, const feeding *f, const sizes *s)
{
	feed in = {0};
	bool ok = feed_make(m, rt, f, s, &in);
	if (!ok) {
		feed_free(&in);
		return false;
	}
	c->at = regrab(c->at, (c->n + 1) * sizeof *c->at);
	c->given = regrab(c->given, (c->n + 1) * sizeof *c->given);
	c->given[c->n] = (clv_trace_call){(const clv_tensor *const *)in.at, in.n};
	c->at[c->n++] = in;
	return true;
}

static void calls_free(calls *c)
{
	for (uint32_t i = 0; i < c->n; i++)
		feed_free(&c->at[i]);
	free(c->at);
	free(c->given);
}

/* One row, and numbers of rows that no vector is as long as, are where code for the sizes of an example goes wrong. */
static bool is_telling(const sizes *s)
{
	for (uint32_t i = 0; i < s->n; i++)
		if (s->values[i] == 1 || s->values[i] == 3 || s->values[i] == 7)
			return true;
	return false;
}

static bool same_sizes(const sizes *a, const sizes *b)
{
	for (uint32_t i = 0; i < a->n; i++)
		if (sizes_find(b, a->symbols[i]) != a->values[i])
			return false;
	return true;
}

/* Calls at other sizes that a plan is proven for: the telling ones, or others where it has none of them. */
static bool add_sizes_of(const request *r, const model *m, const clv_runtime *rt, uint32_t number, bool telling,
                         calls *c)
{
	feeding f = r->feeding;
	uint32_t before = c->n;
	bool ok = true;
	f.plan = number;
	f.resize = true;
	for (uint32_t k = 0; ok && c->n - before < CALLS_MAX; k++) {
		sizes s = {0};
		bool there = sizes_add_point(&s, m->artifact, number, k);
		if (there && s.n && is_telling(&s) == telling && !same_sizes(&s, &c->at[0].sizes))
			ok = calls_add(c, m, rt, &f, &s);
		sizes_free(&s);
		if (!there)
			break;
	}
	return ok;
}

static bool add_other_sizes(const request *r, const model *m, const clv_runtime *rt, calls *c)
{
	bool ok = true;
	for (uint32_t i = 0; ok && i < clv_artifact_plan_count(m->artifact); i++) {
		uint32_t before = c->n;
		ok = add_sizes_of(r, m, rt, i, true, c);
		if (ok && c->n == before)
			ok = add_sizes_of(r, m, rt, i, false, c);
	}
	return ok;
}

/* The user's inputs, and for code that has to serve all sizes further ones. */
static bool make_calls(request *r, const model *m, calls *c)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *rt = NULL;
	o.tape_only = true;
	o.sandbox = r->no_sandbox ? CLV_SANDBOX_OFF : CLV_SANDBOX_AUTO;
	if (clv_runtime_create(m->artifact, &o, &rt) != CLV_OK)
		return fail_with(r->path) == EXIT_OK;
	bool ok = resolve_batch(m, &r->sizes) && calls_add(c, m, rt, &r->feeding, &r->sizes);
	if (ok && r->dynamic)
		ok = add_other_sizes(r, m, rt, c);
	clv_runtime_free(rt);
	return ok;
}

static volatile sig_atomic_t interrupted; /* the signal that asks to stop */

static void on_signal(int number)
{
	interrupted = number;
}

/* The first one lets compilers be stopped and files be removed, a second one ends the program as ever. */
static void watch_signals(void)
{
	struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
	sigaction(SIGINT, &a, NULL);
	sigaction(SIGTERM, &a, NULL);
}

static void clear_line(void)
{
	if (!global.quiet && isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
}

static bool show_progress(void *ctx, const char *what, uint32_t done, uint32_t total)
{
	const double *started = ctx;
	char took[HUMAN_TEXT];
	if (!global.quiet && isatty(STDERR_FILENO)) {
		fprintf(stderr, "\rcompiling %s: %u of %u done, %s \033[K", what, done, total,
		        human_seconds(floor(now() - *started), took));
		fflush(stderr);
	}
	return !interrupted;
}

static void show_line(void *ctx, const char *line)
{
	(void)ctx;
	clear_line();
	note("%s", line);
}

/* What a Python program prints, in as many bytes as there are; false: it cannot be started. */
static bool ask_python(const char *python, const char *program, char *out, size_t room)
{
	int ends[2], status = -1;
	if (pipe(ends) != 0)
		return false;
	pid_t child = fork();
	if (child == 0) {
		dup2(ends[1], STDOUT_FILENO);
		close(ends[0]);
		close(ends[1]);
		execlp(python, python, "-c", program, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	FILE *from = fdopen(ends[0], "r");
	out[from ? fread(out, 1, room - 1, from) : 0] = '\0';
	if (from)
		fclose(from);
	return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* Compilers are run by Python. OpenVINO is loaded by this process too, to compare what was compiled: its library lies where
   Python has it. */
static bool check_python(const request *r, const char *python)
{
	static const char program[] =
		"import importlib.util as u\n"
		"print('has' if u.find_spec('cleave') else 'lacks')\n"
		"s = u.find_spec('openvino')\n"
		"print(s.submodule_search_locations[0] if s and s.submodule_search_locations else '', end='')\n";
	char answer[8192];
	const char *name = python ? python : "python3", *given = getenv("CLEAVE_OPENVINO");
	if (!ask_python(name, program, answer, sizeof answer) || strncmp(answer, "has\n", 4) != 0) {
		complain("%s has no Cleave, which compilers are run by", name);
		hint("set CLEAVE_PYTHON to a Python that has Cleave and PyTorch, and OpenVINO for that back end, as in "
		     "CLEAVE_PYTHON=.venv/bin/python3");
		return false;
	}
	if (!strcmp(r->backend, "openvino") && answer[4] && !(given && *given))
		setenv("CLEAVE_OPENVINO", answer + 4, 1);
	return true;
}

/* The fastest of some runs in seconds; negative: it does not run. */
static double fastest_run(const clv_runtime *rt, const clv_trace_call *call)
{
	uint32_t n = clv_runtime_output_count(rt);
	clv_tensor **outputs = grab((n + 1) * sizeof *outputs);
	double best = -1, since = now();
	for (int i = 0; i < WARM_RUNS + TIMED_RUNS && (best < 0 || now() - since < TIMED_SECONDS); i++) {
		double start = now();
		clv_status st = clv_runtime_run(rt, call->inputs, call->ninputs, outputs, n);
		double took = now() - start;
		for (uint32_t k = 0; k < n; k++) {
			clv_tensor_free(outputs[k]);
			outputs[k] = NULL;
		}
		if (st != CLV_OK)
			break;
		if (i >= WARM_RUNS)
			best = best < 0 || took < best ? took : best;
	}
	free(outputs);
	return best;
}

/* A run with compiled parts, or without, in milliseconds; negative: it is not known. */
static double measure_file(const clv_artifact *a, bool tape_only, const clv_trace_call *call)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *rt = NULL;
	o.allow_compiled = !tape_only;
	o.tape_only = tape_only;
	o.sandbox = CLV_SANDBOX_OFF; /* it was traced here */
	double s = clv_runtime_create(a, &o, &rt) == CLV_OK ? fastest_run(rt, call) : -1;
	clv_runtime_free(rt);
	return s < 0 ? -1 : s * 1e3;
}

/* The plan that the first call is for; others have no times. */
static bool show_report(const request *r, const clv_artifact *a, const calls *c)
{
	clv_report_options o = CLV_REPORT_OPTIONS_INIT;
	char *text = NULL;
	o.json = r->json;
	o.plan = (uint32_t)r->feeding.plan;
	if (!is_traced(a, o.plan))
		o.plan = 0;
	if (clv_artifact_segment_count(a, o.plan)) {
		o.tape_ms = measure_file(a, true, &c->given[0]);
		o.traced_ms = measure_file(a, false, &c->given[0]);
	}
	if (clv_artifact_report(a, &o, NULL, &text) != CLV_OK)
		return fail_with(r->path) == EXIT_OK;
	return put_text(text);
}

static clv_trace_options trace_options(const request *r, const calls *c, const char *python, double *started)
{
	clv_trace_options o = CLV_TRACE_OPTIONS_INIT;
	o.backend = r->backend;
	o.args = r->args.at;
	o.nargs = r->args.n;
	o.timeout = r->timeout;
	o.workdir = r->workdir;
	o.cache = r->cache;
	o.parallel = (uint32_t)r->parallel;
	o.python = python;
	o.minimum_segment_size = (uint32_t)r->minimum;
	o.max_subgraph_count = (uint32_t)r->most;
	o.fallback = !r->no_fallback;
	o.keep_slower = r->keep_slower;
	o.support_threshold = r->threshold;
	o.dynamic = r->dynamic;
	o.dryrun = r->dry;
	o.ops = r->ops.at;
	o.nops = r->ops.n;
	o.modules = r->modules.at;
	o.nmodules = r->modules.n;
	o.rtol = r->rtol;
	o.atol = r->atol;
	o.calls = c->given;
	o.ncalls = c->n;
	o.sandbox = r->no_sandbox ? CLV_SANDBOX_OFF : CLV_SANDBOX_AUTO;
	o.progress = show_progress;
	o.log = r->verbose ? show_line : NULL;
	o.ctx = started;
	return o;
}

/* What is not compiled is a list, a line each. */
static int fail_lines(const char *path)
{
	const char *text = clv_last_error();
	size_t n = strcspn(text, "\n");
	char *rest = grab_text(text + n, strlen(text + n));
	complain("%s: %.*s", name_of(path), (int)n, text);
	for (char *save = NULL, *line = strtok_r(rest, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		put_plain(stderr, line);
		fputc('\n', stderr);
	}
	free(rest);
	return EXIT_FAILED;
}

static int fail_trace(const request *r, clv_status st)
{
	if (st == CLV_E_CANCELLED && interrupted) {
		complain("%s: stopped", name_of(r->path));
		signal(interrupted, SIG_DFL);
		raise(interrupted); /* as the sender of the signal expects */
	}
	int code = fail_lines(r->path);
	if (st == CLV_E_TIMEOUT)
		hint("--timeout S gives the compiler longer; --workdir D keeps what it wrote");
	return code;
}

static int deliver(const request *r, const clv_artifact *traced, const calls *c)
{
	if (!r->dry) {
		if (clv_artifact_save(traced, r->output) != CLV_OK)
			return fail_with(NULL);
		note("wrote %s", r->output);
	}
	return show_report(r, traced, c) ? EXIT_OK : EXIT_FAILED;
}

static int trace_model(void *given, const model *m)
{
	request *r = given;
	calls c = {0};
	clv_artifact *traced = NULL;
	double started = now();
	char *python = find_python();
	int code = EXIT_FAILED;
	if (clv_set_seed((uint64_t)r->feeding.seed) != CLV_OK) {
		code = fail_with(NULL);
	} else if ((r->dry || check_python(r, python)) && make_calls(r, m, &c)) {
		clv_trace_options o = trace_options(r, &c, python, &started);
		watch_signals();
		clv_status st = clv_trace(m->artifact, &o, &traced);
		clear_line();
		code = st == CLV_OK ? deliver(r, traced, &c) : fail_trace(r, st);
	}
	clv_artifact_free(traced);
	calls_free(&c);
	free(python);
	return code;
}

static int check_usage(void *given)
{
	const request *r = given;
	if (!r->output && !r->dry) {
		complain("trace needs -o OUT.clv, the file to write; --dry-run only lists what would be compiled");
		return EXIT_USAGE;
	}
	if (r->threshold > 1) {
		complain("--threshold is a share of the operators, 0.9 or 90%%, not %g", r->threshold);
		return EXIT_USAGE;
	}
	if (r->minimum > INT32_MAX || r->most > INT32_MAX || r->parallel > INT32_MAX) {
		complain("--minimum-segment-size, --max-segments and --parallel are below 2^31");
		return EXIT_USAGE;
	}
	return check_output(r->output, r->path) ? feeding_check(&r->feeding) : EXIT_USAGE;
}
#endif

static const option arguments[] = {
	ARG_FILE("FILE", path, "a .clv file with a whole model and its weights; - is standard input"),
	OPTION_END,
};

#define WORD(name) "|" #name
static const option options[] = {
	OPT_FILE("output", 'o', "FILE", output, "the file to write"),
	OPT_WORD("backend", 'b', "NAME", backend, &(CLV_BACKEND_LIST(WORD))[1], "what runs the compiled parts",
             .preset = "inductor"),
	OPT_FLAG("dynamic", 0, dynamic, "compile for all sizes of the model, not only those of the inputs"),
	OPT_FLAG("dry-run", 'n', dry, "list what would be compiled, without compiling or writing anything"),
	OPT_FLAG("json", 0, json, "the report as JSON"),
	OPT_FLAG("verbose", 'v', verbose, "report progress and findings"),
	OPT_GROUP("segments"),
	OPT_COUNT("minimum-segment-size", 0, "N", minimum, "leave segments with fewer operators uncompiled", .preset = "2"),
	OPT_INT("max-segments", 0, "N", most, "at most N segments (default: no limit)"),
	OPT_TEXTS("op", 0, "NAME", ops, "leave this operator uncompiled: aten::sort; may be repeated"),
	OPT_TEXTS("module", 0, "NAME", modules,
              "leave this module uncompiled, by path or class: encoder.0; may be repeated"),
	OPT_FLAG("keep-slower", 0, keep_slower, "keep segments that are slower than the tape"),
	OPT_FLAG("no-fallback", 0, no_fallback, "fail if anything is left uncompiled"),
	OPT_FLOAT("threshold", 0, "P", threshold, "fail if less than this share of the operators is compiled: 0.9, 90%"),
	OPT_GROUP("compilers"),
	OPT_TEXTS("compiler-arg", 0, "A", args,
              "an argument for the compiler: --compiler-arg=--hint=throughput; may be repeated"),
	OPT_SECONDS("timeout", 0, "S", timeout, "time limit for one segment in seconds (default: none)"),
	OPT_COUNT("parallel", 0, "N", parallel, "compilers at a time (default: one per core)"),
	OPT_FILE("workdir", 0, "FOLDER", workdir, "keep the compilers' inputs and outputs here, one folder per segment"),
	OPT_FILE("cache", 0, "FOLDER", cache, "cache of compiled code, or off (default: the user's cache)"),
	OPT_GROUP("inputs on which compiled parts are compared"),
	FEEDING_OPTIONS(feeding),
	SIZE_OPTIONS(sizes),
	OPT_FLOAT("rtol", 0, "X", rtol, "relative tolerance, as a share of the largest element (default: by dtype)"),
	OPT_FLOAT("atol", 0, "X", atol, "absolute tolerance (default: by dtype)"),
	OPT_GROUP("model files"),
	CHECK_OPTION(opening),
	TRUST_OPTIONS(opening),
	NO_SANDBOX_OPTION(no_sandbox),
	OPTION_END,
};

static const request initial = {.rtol = -1, .atol = -1, .feeding = {.fill = "random"}};

const command command_trace = {
	.name = "trace",
	.summary = "compile the parts of a model file that a back end takes",
	.description =
		"Writes a copy of the model with parts of it compiled. Whatever the back end does not support, or compiles to "
		"different results, still runs operator by operator; the report says what and why. Every compiled part is "
		"compared with the model, on inputs from files or made up, and with --dynamic at other proven sizes too. Parts "
		"that run slower than their operators are dropped, unless --keep-slower is given, for files that will run on "
		"another machine.\n\n"
		"Compilers run in separate processes of the Python named by CLEAVE_PYTHON, or of this program's environment, "
		"which must have Cleave and the back end. Code that was compiled before comes from a cache.\n\n"
		"The result runs wherever the file did. `cleave run --allow-compiled` uses the machine code in it; programs "
		"find OpenVINO's library through CLEAVE_OPENVINO.",
	.examples = "cleave trace model.clv -o traced.clv --backend openvino --dynamic\n"
				"cleave trace model.clv -o traced.clv --input x=image.npy --timeout 300 --threshold 90%\n"
				"# what would be compiled\n"
				"cleave trace model.clv --backend openvino --dry-run\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.initial = &initial,
	.check = TORCH_RUN(check_usage),
	ON_MODEL(TORCH_RUN(trace_model)),
	.artifact = true,
	.torch = true,
};
