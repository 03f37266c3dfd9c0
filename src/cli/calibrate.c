/* `cleave calibrate`: the smallest way to send a boundary that the outputs bear. */
#include "feed.h"

typedef struct request {
	const char *path, *suffix;
	double max_error, min_top1;
	feeding feeding;
	loading loading;
	sizes sizes;
	opening opening;
	listing_view view;
} request;

static const column columns[] = {
	{"method", "way", COLUMN_TEXT},
	{"bytes", "bytes", COLUMN_BYTES},
	{"share", "of plain", COLUMN_SHARE},
	{"output_error", "output error", COLUMN_NUMBER},
	{"max_abs", "max difference", COLUMN_NUMBER},
	{"top1", "same top-1", COLUMN_SHARE},
	{"seconds", "time", COLUMN_SECONDS},
	{"reason", "reason", COLUMN_TEXT},
	COLUMNS_END,
};

#include <math.h>

static void show_ways(const request *r, const clv_calibration *c, uint32_t chosen)
{
	listing *t = listing_new(columns);
	clv_calibrated plain = {.size = sizeof plain}, w = plain;
	(void)clv_calibration_at(c, 0, &plain);
	for (uint32_t i = 0; i < clv_calibration_count(c) && clv_calibration_at(c, i, &w) == CLV_OK; i++) {
		bool done = !w.reason;
		const cell cells[] = {{.s = w.method},
		                      {.n = done ? w.bytes : INT64_MIN},
		                      {.x = done ? (double)w.bytes / (double)plain.bytes : NAN},
		                      {.x = done ? w.output_error : NAN},
		                      {.x = done ? w.max_abs : NAN},
		                      {.x = done ? w.top1 : NAN},
		                      {.x = done ? w.seconds : NAN},
		                      {.s = w.reason}};
		listing_add(t, i == chosen ? '*' : 0, cells);
	}
	listing_show(t, &r->view);
}

static int deliver(const request *r, const clv_calibration *c)
{
	uint32_t chosen = 0;
	clv_calibrated w = {.size = sizeof w};
	double most = r->max_error > 0 || r->min_top1 > 0 ? r->max_error : 0.01;
	if (r->max_error <= 0 && r->min_top1 > 0)
		most = INFINITY;
	if (clv_calibration_choose(c, most, r->min_top1, &chosen) != CLV_OK || clv_calibration_at(c, chosen, &w) != CLV_OK)
		return fail_with(NULL);
	show_ways(r, c, chosen);
	if (chosen)
		note("the smallest within the bound: --compress %s", w.method);
	else
		note("no compression is within the bound and makes it smaller: leave --compress out");
	return written() ? EXIT_OK : EXIT_FAILED;
}

static int calibrate(const request *r, const model *m, const clv_runtime *prefix, const clv_runtime *suffix)
{
	feed in = {0};
	clv_calibration *c = NULL;
	clv_status st = CLV_OK;
	int code = EXIT_FAILED;
	if (feed_make(m, prefix, &r->feeding, &r->sizes, &in)) {
		st = clv_calibration_new(prefix, suffix, &c);
		if (st == CLV_OK)
			st = clv_calibration_add(c, (const clv_tensor *const *)in.at, in.n);
		code = st == CLV_OK ? deliver(r, c) : fail_run(r->path, st);
	}
	clv_calibration_free(c);
	feed_free(&in);
	return code;
}

/* The part of m, or of the file with the suffix where there is one. */
static clv_runtime *load_suffix(const request *r, const model *m, model *other)
{
	loading o = r->loading;
	if (r->suffix && !model_open_artifact(r->suffix, &r->opening, other))
		return NULL;
	o.part = r->suffix ? NULL : "suffix";
	return load_runtime(r->suffix ? other : m, &o);
}

static int calibrate_model(void *given, const model *m)
{
	request *r = given;
	model other = {0};
	r->loading.part = r->suffix ? NULL : "prefix";
	r->feeding.timeout = r->loading.timeout;
	if (!resolve_batch(m, &r->sizes))
		return EXIT_FAILED;
	clv_runtime *prefix = load_runtime(m, &r->loading), *suffix = prefix ? load_suffix(r, m, &other) : NULL;
	int code = EXIT_FAILED;
	if (suffix)
		code = seed_models((uint64_t)r->feeding.seed) == CLV_OK ? calibrate(r, m, prefix, suffix) : fail_with(NULL);
	clv_runtime_free(prefix);
	clv_runtime_free(suffix);
	if (other.path)
		model_close(&other);
	return code;
}

static int check_usage(void *given)
{
	request *r = given;
	if (r->loading.part) {
		complain("--part does not go with calibrate: it needs both parts of a file, or a prefix and --suffix");
		return EXIT_USAGE;
	}
	if (!(r->max_error >= 0) || !(r->min_top1 >= 0 && r->min_top1 <= 1)) {
		complain("--max-error is 0 or more, --min-top1 from 0 to 1");
		return EXIT_USAGE;
	}
	int code = loading_check(&r->loading);
	return code == EXIT_OK ? feeding_check(&r->feeding) : code;
}

static const option arguments[] = {
	ARG_FILE("FILE", path, "a .clv file with a cut model, or a prefix; - is standard input"),
	OPTION_END,
};

static const option options[] = {
	OPT_FILE("suffix", 0, "FILE", suffix, "the suffix that belongs to a prefix"),
	OPT_FLOAT("max-error", 0, "X", max_error,
              "limit on the error of the outputs: the norm of the differences relative to that of the outputs "
              "(default: 0.01)"),
	OPT_FLOAT("min-top1", 0, "X", min_top1, "least share of rows that must keep their largest output: 0.99"),
	FEEDING_OPTIONS(feeding),
	RUN_SIZE_OPTIONS(sizes),
	LOADING_OPTIONS(loading),
	RUN_FILE_OPTIONS,
	OPTION_END,
};

const command command_calibrate = {
	.name = "calibrate",
	.summary = "find the smallest way to send a boundary",
	.description = "Runs the prefix on calibration inputs, compresses the boundary in every way, runs the suffix on "
				   "the result, and shows the bytes, the error of the outputs and how many rows keep their largest "
				   "output. A star marks the smallest boundary within the bound; pass that method to `cleave run "
				   "--compress`. Use realistic inputs: random numbers say little about a model.",
	.examples = "cleave calibrate model.clv --input x=images.npy --max-error 0.01\n"
				"cleave calibrate prefix.clv --suffix suffix.clv --input x=images.npy --min-top1 0.99\n"
				"cleave run prefix.clv --input x=image.npy -o boundary.safetensors --compress q4\n",
	.exits = "0 done, 1 it failed, 2 wrong usage.",
	.arguments = arguments,
	.options = options,
	.columns = columns,
	REQUEST(request),
	.check = check_usage,
	ON_MODEL(calibrate_model),
	.artifact = true,
	.torch = true,
	.engine_at = offsetof(request, loading.engine),
};
