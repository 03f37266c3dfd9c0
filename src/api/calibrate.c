/* Which compression a boundary bears: batches go through a prefix, through bytes in each of the ways, and through the suffix;
 * outputs are compared with those of the boundary as it is. */
#include "cleave.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/options.h"
#include "file/narrow.h"

/* One way, and sums over batches. */
typedef struct way {
	int64_t bytes;
	uint64_t rows, same; /* whose largest element is compared, and is the same */
	double lost, all;    /* squares */
	double most, seconds;
	char *reason; /* owned; NULL: it can be done */
} way;

struct clv_calibration {
	const clv_runtime *prefix, *suffix; /* borrowed */
	way ways[ENC_COUNT];
	uint32_t batches;
};

/* What a suffix gives. */
typedef struct outputs {
	clv_tensor **at;
	uint32_t n;
} outputs;

clv_status clv_calibration_new(const clv_runtime *prefix, const clv_runtime *suffix, clv_calibration **out)
{
	if (!prefix || !suffix || !out)
		return fail(CLV_E_INVALID, "clv_calibration_new needs a prefix, a suffix and a place for the result");
	clv_calibration *c = mem_alloc(sizeof *c);
	TRY_MEM(c);
	c->prefix = prefix;
	c->suffix = suffix;
	*out = c;
	return CLV_OK;
}

void clv_calibration_free(clv_calibration *c)
{
	for (uint32_t i = 0; c && i < ENC_COUNT; i++)
		mem_free(c->ways[i].reason);
	mem_free(c);
}

static void outputs_free(outputs *o)
{
	for (uint32_t i = 0; o->at && i < o->n; i++)
		clv_tensor_free(o->at[i]);
	mem_free(o->at);
	*o = (outputs){0};
}

static clv_status run_suffix(const clv_calibration *c, const clv_boundary *b, outputs *out)
{
	out->n = clv_runtime_output_count(c->suffix);
	out->at = mem_alloc(out->n * sizeof *out->at);
	TRY_MEM(out->at);
	return clv_runtime_run_suffix(c->suffix, b, out->at, out->n);
}

/* ---- outputs as numbers ----------------------------------------------------------------------------------------- */

typedef struct numbers {
	double *at;
	size_t n, row; /* row: elements of the last dimension */
	bool floating;
} numbers;

static bool is_floating(const clv_tensor *t)
{
	dtype d;
	const char *name = clv_tensor_dtype(t);
	return dtype_parse(name, strlen(name), &d) && (d == DT_F16 || d == DT_BF16 || d == DT_F32 || d == DT_F64);
}

/* n 0: it has no plain numbers. */
static clv_status load_numbers(const clv_tensor *t, numbers *out)
{
	dtype d;
	const char *name = clv_tensor_dtype(t);
	int64_t bytes = clv_tensor_bytes(t);
	uint32_t ndim = clv_tensor_ndim(t);
	*out = (numbers){.row = 1, .floating = is_floating(t)};
	if (bytes <= 0 || !dtype_parse(name, strlen(name), &d) || !elements_loadable(d))
		return CLV_OK;
	void *data = mem_alloc((size_t)bytes);
	TRY_MEM(data);
	out->n = (size_t)bytes / (dtype_bits(d) / 8);
	out->row = ndim ? (size_t)clv_tensor_dim(t, ndim - 1) : 1;
	out->at = mem_realloc(NULL, out->n, sizeof *out->at);
	clv_status st = out->at ? clv_tensor_copy_to(t, data, (size_t)bytes) : fail_nomem();
	if (st == CLV_OK)
		elements_load(d, data, out->n, out->at);
	mem_free(data);
	return st;
}

/* Two nans are the same. */
static double distance(double a, double b)
{
	double off = fabs(a - b);
	return a == b || (isnan(a) && isnan(b)) ? 0 : isnan(off) ? INFINITY : off;
}

static void add_distance(way *w, const numbers *want, const numbers *got)
{
	for (size_t i = 0; i < want->n; i++) {
		double off = distance(want->at[i], got->at[i]);
		w->lost += off * off;
		w->all += isfinite(want->at[i]) ? want->at[i] * want->at[i] : 0;
		w->most = off > w->most ? off : w->most;
	}
}

static size_t largest_of(const double *at, size_t n)
{
	size_t best = 0;
	for (size_t i = 1; i < n; i++)
		best = at[i] > at[best] ? i : best;
	return best;
}

/* Rows of scores, or classes where outputs are whole numbers. False: neither. */
static bool add_agreement(way *w, const numbers *want, const numbers *got)
{
	size_t row = want->floating ? want->row : 1;
	if (want->n == 0 || (want->floating && row < 2))
		return false;
	for (size_t i = 0; i + row <= want->n; i += row) {
		bool same =
			want->floating ? largest_of(want->at + i, row) == largest_of(got->at + i, row) : want->at[i] == got->at[i];
		w->rows++;
		w->same += same;
	}
	return true;
}

static clv_status compare_one(way *w, const clv_tensor *want, const clv_tensor *got, bool *agreed)
{
	numbers a, b = {0};
	clv_status st = load_numbers(want, &a);
	if (st == CLV_OK)
		st = load_numbers(got, &b);
	if (st == CLV_OK && a.n != b.n)
		st = fail(CLV_E_INVALID, "an output changed its shape with the compression");
	if (st == CLV_OK) {
		add_distance(w, &a, &b);
		*agreed = *agreed || add_agreement(w, &a, &b);
	}
	mem_free(a.at);
	mem_free(b.at);
	return st;
}

/* Floating-point outputs, or all where there are none; top-1 of the first that has rows. */
static clv_status compare(way *w, const outputs *want, const outputs *got)
{
	bool floating = false, agreed = false;
	for (uint32_t i = 0; i < want->n; i++)
		floating |= is_floating(want->at[i]);
	for (uint32_t i = 0; i < want->n; i++)
		if (!floating || is_floating(want->at[i]))
			TRY(compare_one(w, want->at[i], got->at[i], &agreed));
	return CLV_OK;
}

/* ---- batches ---------------------------------------------------------------------------------------------------- */

/* The boundary as a receiver gets it. */
static clv_status send_as(way *w, encoding e, const clv_boundary *b, clv_boundary **out)
{
	clv_pack_options o = CLV_PACK_OPTIONS_INIT;
	void *data = NULL;
	size_t n = 0;
	o.compress = e == ENC_PLAIN ? NULL : encoding_names[e];
	double start = clock_seconds();
	TRY(clv_boundary_pack(b, &o, &data, &n));
	clv_status st = clv_boundary_unpack(data, n, out);
	w->seconds += clock_seconds() - start;
	w->bytes += (int64_t)n;
	clv_free(data);
	return st;
}

static clv_status try_way(clv_calibration *c, encoding e, const clv_boundary *b, const outputs *want)
{
	clv_boundary *received = NULL;
	outputs got = {0};
	clv_status st = send_as(&c->ways[e], e, b, &received);
	if (st == CLV_OK)
		st = run_suffix(c, received, &got);
	if (st == CLV_OK)
		st = compare(&c->ways[e], want, &got);
	outputs_free(&got);
	clv_boundary_free(received);
	return st;
}

static clv_status try_ways(clv_calibration *c, const clv_boundary *b, const outputs *want)
{
	for (int e = ENC_PLAIN; e < ENC_COUNT; e++) {
		way *w = &c->ways[e];
		clv_status st = w->reason ? CLV_OK : try_way(c, (encoding)e, b, want);
		if (st == CLV_E_NOMEM || (st != CLV_OK && e == ENC_PLAIN))
			return st;
		if (st != CLV_OK) {
			w->reason = mem_strdup(status_message(), strlen(status_message()));
			TRY_MEM(w->reason);
		}
	}
	return CLV_OK;
}

clv_status clv_calibration_add(clv_calibration *c, const clv_tensor *const *inputs, uint32_t ninputs)
{
	clv_boundary *b = NULL;
	outputs want = {0};
	if (!c)
		return fail(CLV_E_INVALID, "clv_calibration_add: there is no calibration");
	clv_status st = clv_runtime_run_prefix(c->prefix, inputs, ninputs, &b);
	if (st == CLV_OK)
		st = run_suffix(c, b, &want);
	if (st == CLV_OK)
		st = try_ways(c, b, &want);
	c->batches += st == CLV_OK;
	outputs_free(&want);
	clv_boundary_free(b);
	return st;
}

/* ---- what was found --------------------------------------------------------------------------------------------- */

uint32_t clv_calibration_count(const clv_calibration *c)
{
	return c ? ENC_COUNT : 0;
}

static double error_of(const way *w)
{
	return w->lost == 0 ? 0 : w->all == 0 ? INFINITY : sqrt(w->lost / w->all);
}

clv_status clv_calibration_at(const clv_calibration *c, uint32_t i, clv_calibrated *out)
{
	if (!c || i >= ENC_COUNT || !out || c->batches == 0)
		return fail(CLV_E_INVALID, "clv_calibration_at: there is no way %u, or no batch was added", i);
	const way *w = &c->ways[i];
	clv_calibrated found = {.size = out->size,
	                        .method = encoding_names[i],
	                        .bytes = w->bytes,
	                        .seconds = w->seconds / c->batches,
	                        .output_error = error_of(w),
	                        .max_abs = w->most,
	                        .top1 = w->rows ? (double)w->same / (double)w->rows : NAN,
	                        .reason = w->reason};
	return options_write(out, &found, sizeof found, "clv_calibrated");
}

static bool within(const clv_calibrated *w, double max_error, double min_top1)
{
	return !w->reason && !(w->output_error > max_error) && (min_top1 <= 0 || w->top1 >= min_top1);
}

clv_status clv_calibration_choose(const clv_calibration *c, double max_error, double min_top1, uint32_t *out)
{
	clv_calibrated best = {.size = sizeof best}, next = best;
	if (!(max_error >= 0) || !(min_top1 >= 0 && min_top1 <= 1) || !out)
		return fail(CLV_E_INVALID, "the bounds are an error of 0 or more and an agreement of 0 to 1, not %g and %g",
		            max_error, min_top1);
	TRY(clv_calibration_at(c, ENC_PLAIN, &best));
	if (min_top1 > 0 && isnan(best.top1))
		return fail(CLV_E_INVALID,
		            "no output has rows of scores, so that there is no top-1 to agree on; bound the error");
	*out = ENC_PLAIN;
	for (uint32_t i = 1; i < ENC_COUNT; i++) {
		TRY(clv_calibration_at(c, i, &next));
		if (!within(&next, max_error, min_top1) || next.bytes >= best.bytes)
			continue;
		best = next;
		*out = i;
	}
	return CLV_OK;
}
