/* Reductions: sums, maxima, norms, variances and running sums along dimensions. Floats go through the kernels of the set, the
 * rest through rows of doubles or 64-bit integers. */
#include <math.h>
#include <string.h>

#include "native/elementwise.h"
#include "native/grid.h"

typedef enum reducing {
	RED_SUM,
	RED_MEAN,
	RED_PROD,
	RED_MAX, /* with indices as result 1 where the operator gives them */
	RED_MIN,
	RED_ARGMAX,
	RED_ARGMIN,
	RED_ALL,
	RED_ANY,
	RED_COUNT,
	RED_LOGSUMEXP,
	RED_NORM,
	RED_VAR,
	RED_STD,
	RED_NONE_AT = 15
} reducing;

/* `what`: the reduction, and at which arguments are the dimensions, and a number of its own. */
#define RED(op, dims, own) (RED_##op | (uint32_t)(dims) << 8 | (uint32_t)(own) << 16)

enum { CHUNK = 512 };

typedef struct reduce_params {
	grid g;
	reducing op;
	number_type type, out_type;
	bool fast; /* by the kernels */
	reduce_op kernel;
	double number;   /* order of a norm; correction of a variance */
	chain_loop cast; /* to doubles or integers; NULL: it is that */
	bool integers;
	slot out, second; /* indices, means; NONE */
} reduce_params;

/* ---- one row ------------------------------------------------------------------------------------------------------------------ */

typedef struct row_state {
	double f, mean;
	int64_t i, at;
} row_state;

static void start_row(const reduce_params *p, row_state *s)
{
	double start = p->op == RED_PROD || p->op == RED_ALL ? 1 : 0;
	*s = (row_state){.f = start, .i = (int64_t)start, .at = -1};
}

static void take_double(const reduce_params *p, row_state *s, double x, int64_t at)
{
	switch (p->op) {
	case RED_SUM:
	case RED_MEAN: s->f += x; break;
	case RED_PROD: s->f *= x; break;
	case RED_ALL: s->f = s->f != 0 && x != 0; break;
	case RED_ANY: s->f = s->f != 0 || x != 0; break;
	case RED_COUNT: s->i += x != 0; break;
	case RED_VAR:
	case RED_STD: s->f += (x - s->mean) * (x - s->mean); break;
	case RED_LOGSUMEXP: s->f += exp(x - s->mean); break;
	case RED_NORM: {
		double a = fabs(x);
		if (isinf(p->number))
			s->f = at == 0 || a != a || (p->number > 0 ? a > s->f : a < s->f) ? (s->f != s->f ? s->f : a) : s->f;
		else
			s->f += p->number == 2 ? a * a : p->number == 1 ? a : p->number == 0 ? (a != 0) : pow(a, p->number);
		break;
	}
	default: {
		bool less = p->op == RED_MIN || p->op == RED_ARGMIN;
		if (s->at < 0 || (s->f == s->f && (x != x || (less ? x < s->f : x > s->f)))) {
			s->f = x;
			s->at = at;
		}
	}
	}
}

static void take_integer(const reduce_params *p, row_state *s, int64_t x, int64_t at)
{
	switch (p->op) {
	case RED_SUM: s->i = (int64_t)((uint64_t)s->i + (uint64_t)x); break;
	case RED_PROD: s->i = (int64_t)((uint64_t)s->i * (uint64_t)x); break;
	case RED_ALL: s->i = s->i && x; break;
	case RED_ANY: s->i = s->i || x; break;
	case RED_COUNT: s->i += x != 0; break;
	default:
		if (s->at < 0 || (p->op == RED_MIN || p->op == RED_ARGMIN ? x < s->i : x > s->i)) {
			s->i = x;
			s->at = at;
		}
	}
}

static void take_row(const reduce_params *p, const char *x, row_state *s)
{
	union {
		double f[CHUNK];
		int64_t i[CHUNK];
	} wide;
	int64_t bytes = (int64_t)number_bytes(p->type);
	for (int64_t at = 0; at < p->g.n; at += CHUNK) {
		int64_t m = p->g.n - at < CHUNK ? p->g.n - at : CHUNK;
		const void *from = x + at * bytes;
		if (p->cast) {
			p->cast(&wide, from, NULL, NULL, m, NULL);
			from = &wide;
		}
		for (int64_t k = 0; k < m; k++) {
			if (p->integers)
				take_integer(p, s, ((const int64_t *)from)[k], at + k);
			else
				take_double(p, s, ((const double *)from)[k], at + k);
		}
	}
}

/* The mean of a variance, the largest of logsumexp. */
static double first_pass(const reduce_params *p, const char *x)
{
	reduce_params before = *p;
	row_state s;
	before.op = p->op == RED_LOGSUMEXP ? RED_MAX : RED_SUM;
	start_row(&before, &s);
	take_row(&before, x, &s);
	if (p->op == RED_LOGSUMEXP)
		return p->g.n == 0 || isinf(s.f) ? 0 : s.f;
	return s.f / (double)p->g.n;
}

static double finish_row(const reduce_params *p, const row_state *s)
{
	double n = (double)p->g.n, left = n - p->number;
	switch (p->op) {
	case RED_MEAN: return s->f / n;
	case RED_LOGSUMEXP: return log(s->f) + s->mean;
	case RED_VAR: return s->f / (left > 0 ? left : 0);
	case RED_STD: return sqrt(s->f / (left > 0 ? left : 0));
	case RED_NORM:
		if (p->number == 2)
			return sqrt(s->f);
		return isinf(p->number) || p->number == 0 || p->number == 1 ? s->f : pow(s->f, 1 / p->number);
	default: return s->f;
	}
}

static void store(char *out, number_type type, int64_t at, double f, int64_t i, bool integer)
{
	switch (type) {
	case NUM_F32: ((float *)out)[at] = integer ? (float)i : (float)f; break;
	case NUM_F64: ((double *)out)[at] = integer ? (double)i : f; break;
	case NUM_I64: ((int64_t *)out)[at] = i; break;
	case NUM_I32: ((int32_t *)out)[at] = (int32_t)i; break;
	case NUM_I16: ((int16_t *)out)[at] = (int16_t)i; break;
	case NUM_I8: ((int8_t *)out)[at] = (int8_t)i; break;
	case NUM_U8: ((uint8_t *)out)[at] = (uint8_t)i; break;
	default: ((uint8_t *)out)[at] = integer ? i != 0 : f != 0;
	}
}

static void reduce_one(const reduce_params *p, const char *x, char *out, char *second, int64_t r)
{
	row_state s;
	double mean = 0;
	if (p->op == RED_VAR || p->op == RED_STD || p->op == RED_LOGSUMEXP)
		mean = first_pass(p, x);
	start_row(p, &s);
	s.mean = mean;
	take_row(p, x, &s);
	bool index = p->op == RED_ARGMAX || p->op == RED_ARGMIN;
	bool whole = p->integers || index || p->op == RED_COUNT;
	store(out, p->out_type, r, finish_row(p, &s), index ? s.at : s.i, whole);
	if (second && (p->op == RED_VAR || p->op == RED_STD))
		store(second, p->out_type, r, s.mean, 0, false);
	else if (second)
		((int64_t *)second)[r] = s.at;
}

/* ---- the step ----------------------------------------------------------------------------------------------------------------- */

typedef struct reduce_job {
	const reduce_params *p;
	const native_kernels *k;
	char *x, *out, *second;
	int64_t blocks; /* of columns, in one of outer */
} reduce_job;

enum { COLUMNS = 256 };

static void finish_fast(const reduce_params *p, float *out, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		if (p->op == RED_MEAN)
			out[i] = out[i] / (float)p->g.n;
		else if (p->op == RED_NORM && p->number == 2)
			out[i] = sqrtf(out[i]);
	}
}

static void run_columns(const reduce_job *j, int64_t item)
{
	const grid *g = &j->p->g;
	int64_t o = item / j->blocks, c = item % j->blocks * COLUMNS;
	int64_t cols = g->inner - c < COLUMNS ? g->inner - c : COLUMNS;
	float *out = (float *)j->out + o * g->inner + c;
	j->k->reduce_columns(j->p->kernel, (const float *)j->x + o * g->n * g->inner + c, g->n, g->inner, cols, out);
	finish_fast(j->p, out, cols);
}

static void reduce_part(void *ctx, int64_t first, int64_t end, int thread)
{
	reduce_job *j = ctx;
	const reduce_params *p = j->p;
	(void)thread;
	if (p->fast && p->g.inner == 1) {
		float *out = (float *)j->out + first;
		j->k->reduce_rows(p->kernel, (const float *)j->x + first * p->g.n, end - first, p->g.n, out);
		finish_fast(p, out, end - first);
		return;
	}
	for (int64_t i = first; i < end; i++) {
		if (p->fast)
			run_columns(j, i);
		else
			reduce_one(p, j->x + i * p->g.n * (int64_t)number_bytes(p->type), j->out, j->second, i);
	}
}

static clv_status run_reduce(const void *params, frame *f)
{
	reduce_job j = {.p = params, .k = f->k};
	const grid *g = &j.p->g;
	j.x = f->t[g->x].data;
	j.out = f->t[j.p->out].data;
	j.second = j.p->second == NONE ? NULL : f->t[j.p->second].data;
	j.blocks = (g->inner + COLUMNS - 1) / COLUMNS;
	int64_t each = g->n * (g->inner < COLUMNS ? g->inner : COLUMNS);
	team_run(f->team, g->inner == 1 ? g->outer : g->outer * j.blocks, 32768 / (each + 1) + 1, reduce_part, &j);
	return CLV_OK;
}

/* ---- lowering ------------------------------------------------------------------------------------------------------------------ */

static bool kernel_of(reducing op, double number, reduce_op *out)
{
	switch (op) {
	case RED_SUM:
	case RED_MEAN: *out = REDUCE_SUM; return true;
	case RED_MAX: *out = REDUCE_MAX; return true;
	case RED_MIN: *out = REDUCE_MIN; return true;
	case RED_NORM: *out = number == 2 ? REDUCE_SQUARES : REDUCE_MAGNITUDES; return number == 2 || number == 1;
	default: return false;
	}
}

static clv_status choose_way(lowering *l, reduce_params *p, bool indices)
{
	bool floats = p->type == NUM_F32 || p->type == NUM_F64 || p->out_type == NUM_F32 || p->out_type == NUM_F64;
	number_type wide = floats ? NUM_F64 : NUM_I64;
	p->fast = p->type == NUM_F32 && p->out_type == NUM_F32 && !indices && kernel_of(p->op, p->number, &p->kernel);
	p->integers = !floats;
	p->cast = p->type == wide ? NULL : chain_find(low_kernels(l), CHAIN_CAST, p->type, wide);
	return CLV_OK;
}

static clv_status read_number(lowering *l, node_id n, uint32_t own, reduce_params *p)
{
	bool unbiased;
	if (p->op == RED_NORM)
		return own == RED_NONE_AT ? CLV_OK : low_real(l, n, own, 2, &p->number);
	if (p->op != RED_VAR && p->op != RED_STD)
		return CLV_OK;
	/* unbiased, a flag, or correction, a number. */
	const node *x = &low_plan(l)->nodes.at[n];
	if (own < x->nargs && low_plan(l)->args.at[x->args + own].kind == ARG_BOOL) {
		TRY(low_bool(l, n, own, true, &unbiased));
		p->number = unbiased;
		return CLV_OK;
	}
	return low_real(l, n, own, 1, &p->number);
}

static bool needs_elements(reducing op, double number)
{
	return op == RED_MAX || op == RED_MIN || op == RED_ARGMAX || op == RED_ARGMIN || (op == RED_NORM && isinf(number));
}

static bool is_float(number_type t)
{
	return t == NUM_F32 || t == NUM_F64;
}

/* Sums of floats are floats; means, norms and variances are, whatever they are of. */
static bool has_kernel(const reduce_params *p)
{
	switch (p->op) {
	case RED_ARGMAX:
	case RED_ARGMIN:
	case RED_COUNT: return p->out_type == NUM_I64;
	case RED_ALL:
	case RED_ANY: return p->out_type == NUM_BOOL || p->out_type == NUM_U8;
	case RED_SUM:
	case RED_PROD:
	case RED_MAX:
	case RED_MIN: return is_float(p->out_type) || !is_float(p->type);
	default: return is_float(p->out_type);
	}
}

static clv_status lower_reduce(lowering *l, node_id n)
{
	uint32_t what = low_what(l, n), dims = what >> 8 & 15, mask;
	reduce_params *p = low_alloc(l, sizeof *p);
	slot x;
	nt form;
	TRY_MEM(p);
	p->op = (reducing)(what & 15);
	p->number = 2;
	p->second = NONE;
	TRY(read_number(l, n, what >> 16 & 15, p));
	TRY(low_tensor(l, n, 0, &x));
	TRY(low_mask(l, n, dims == RED_NONE_AT ? 99 : dims, low_at(l, x)->ndim, &mask));
	TRY(low_form(l, n, 0, &form));
	if (!ew_type(low_at(l, x)->dtype, &p->type) || !ew_type(form.dtype, &p->out_type))
		return fail(CLV_E_UNSUPPORTED, "there is no kernel for these types");
	if (!has_kernel(p))
		return fail(CLV_E_UNSUPPORTED, "there is no kernel for these types");
	bool two = low_results(l, n) > 1;
	TRY(choose_way(l, p, two));
	TRY(low_grid(l, x, mask, !p->fast, &p->g));
	if (p->g.n == 0 && p->g.outer * p->g.inner > 0 && needs_elements(p->op, p->number))
		return fail(CLV_E_INPUT, "a dimension without elements has no largest or smallest one");
	if (p->g.n == 0)
		p->fast = false;
	TRY(grid_result_form(l, n, 0, &p->g, mask, &form));
	TRY(low_result(l, n, 0, &form, true, &p->out));
	if (two && low_wants(l, n, 1)) {
		bool typed = p->op == RED_VAR || p->op == RED_STD;
		uint8_t second = typed ? form.dtype : DT_I64;
		TRY(low_form_of_type(l, n, 1, second, &form));
		TRY(grid_result_form(l, n, 1, &p->g, mask, &form));
		TRY(low_result(l, n, 1, &form, true, &p->second));
	}
	return low_step(l, run_reduce, p);
}

/* ---- running sums --------------------------------------------------------------------------------------------------------------- */

typedef struct scan_params {
	grid g;
	number_type type;
	bool product;
	slot out;
} scan_params;

#define SCAN(type, wide)                                                                                               \
	{                                                                                                                  \
		const type *x = (const type *)f->t[p->g.x].data + o * p->g.n * p->g.inner + c;                                 \
		type *y = (type *)f->t[p->out].data + o * p->g.n * p->g.inner + c;                                             \
		wide acc = p->product;                                                                                         \
		for (int64_t i = 0; i < p->g.n; i++) {                                                                         \
			acc = p->product ? acc * (wide)x[i * p->g.inner] : acc + (wide)x[i * p->g.inner];                          \
			y[i * p->g.inner] = (type)acc;                                                                             \
		}                                                                                                              \
	}

static clv_status run_scan(const void *params, frame *f)
{
	const scan_params *p = params;
	for (int64_t o = 0; o < p->g.outer; o++)
		for (int64_t c = 0; c < p->g.inner; c++) {
			if (p->type == NUM_F32)
				SCAN(float, double)
			else if (p->type == NUM_F64)
				SCAN(double, double)
			else
				SCAN(int64_t, uint64_t)
		}
	return CLV_OK;
}

static clv_status lower_scan(lowering *l, node_id n)
{
	scan_params *p = low_alloc(l, sizeof *p);
	slot x, y;
	uint32_t dim;
	nt form, lie;
	TRY_MEM(p);
	p->product = low_what(l, n);
	TRY(low_tensor(l, n, 0, &x));
	TRY(low_dim(l, n, 1, 0, low_at(l, x)->ndim, &dim));
	TRY(low_form(l, n, 0, &form));
	if (!ew_type(form.dtype, &p->type))
		return fail(CLV_E_UNSUPPORTED, "there is no kernel for %s", dtype_name((dtype)form.dtype));
	bool narrow = !is_float(p->type) && p->type != NUM_I64;
	uint8_t type = narrow ? DT_I64 : form.dtype;
	p->type = narrow ? NUM_I64 : p->type;
	lie = *low_at(l, x);
	if (lie.ndim != form.ndim || memcmp(lie.size, form.size, form.ndim * sizeof *form.size) != 0)
		return fail(CLV_E_VERIFY, "the result has another size than the argument");
	if (lie.dtype != type) {
		lie.dtype = type;
		nt_rows(&lie);
		TRY(low_temp(l, &lie, &y));
		TRY(low_copy(l, x, y));
		x = y;
	}
	TRY(low_grid(l, x, lie.ndim ? 1u << dim : 0, false, &p->g));
	for (uint32_t d = 0; d < form.ndim; d++)
		form.stride[d] = p->g.lie.stride[d];
	TRY(low_result(l, n, 0, &form, true, &y));
	p->out = y;
	form.dtype = DT_I64;
	if (narrow) /* in 64 bits, as torch does; then cut off */
		TRY(low_temp(l, &form, &p->out));
	TRY(low_step(l, run_scan, p));
	return low_copy(l, p->out, y);
}

/* ---- histograms ------------------------------------------------------------------------------------------------------------------ */

typedef struct bins_params {
	slot x, out;
	int64_t n, bins;
	double low, high; /* equal: the smallest and the largest element */
} bins_params;

#define COUNT(type)                                                                                                    \
	{                                                                                                                  \
		const type *x = (const type *)f->t[p->x].data;                                                                 \
		type *out = (type *)f->t[p->out].data, low = (type)p->low, high = (type)p->high;                               \
		memset(out, 0, (size_t)p->bins * sizeof *out);                                                                 \
		for (int64_t i = 0; p->low == p->high && i < p->n; i++) {                                                      \
			low = i == 0 || x[i] < low ? x[i] : low;                                                                   \
			high = i == 0 || x[i] > high ? x[i] : high;                                                                \
		}                                                                                                              \
		if (low == high)                                                                                               \
			low -= 1, high += 1;                                                                                       \
		if (!isfinite(high - low))                                                                                     \
			return fail(CLV_E_INPUT, "torch.histc: range of [%g, %g] is not finite", (double)low, (double)high);       \
		for (int64_t i = 0; i < p->n; i++) {                                                                           \
			if (!(x[i] >= low && x[i] <= high))                                                                        \
				continue;                                                                                              \
			int64_t at = (int64_t)((x[i] - low) * (type)p->bins / (high - low));                                       \
			out[at < 0 ? 0 : at < p->bins ? at : p->bins - 1] += 1;                                                    \
		}                                                                                                              \
		return CLV_OK;                                                                                                 \
	}

static clv_status run_bins(const void *params, frame *f)
{
	const bins_params *p = params;
	if (f->t[p->x].dtype == DT_F32)
		COUNT(float)
	COUNT(double)
}

static const char *takes_bins(const plan *p, node_id n)
{
	return native_floats(p, n, 1) ? NULL : "histograms of other types than f32 or f64";
}

static clv_status lower_bins(lowering *l, node_id n)
{
	bins_params *p = low_alloc(l, sizeof *p);
	nt form;
	TRY_MEM(p);
	TRY(low_tensor(l, n, 0, &p->x));
	TRY(low_int(l, n, 1, 100, &p->bins));
	TRY(low_real(l, n, 2, 0, &p->low));
	TRY(low_real(l, n, 3, 0, &p->high));
	TRY(low_form_of_type(l, n, 0, low_at(l, p->x)->dtype, &form));
	if (form.ndim != 1 || form.size[0] != p->bins || p->bins < 1 || !isfinite(p->high - p->low) || p->low > p->high)
		return fail(CLV_E_VERIFY, "a histogram has other bins than its result, or no range");
	p->n = nt_numel(low_at(l, p->x));
	TRY(low_as_rows(l, p->x, &p->x));
	TRY(low_result(l, n, 0, &form, true, &p->out));
	return low_step(l, run_bins, p);
}

#define ROW(name, op, dims, own)                                                                                       \
	{                                                                                                                  \
		.id = OP_##name, .lower = lower_reduce, .what = RED(op, dims, own)                                             \
	}

const native_op native_ops_reduce[] = {
	ROW(all, ALL, 15, 15),
	ROW(all_dim, ALL, 1, 15),
	ROW(all_dims, ALL, 1, 15),
	ROW(amax, MAX, 1, 15),
	ROW(amin, MIN, 1, 15),
	ROW(any, ANY, 15, 15),
	ROW(any_dim, ANY, 1, 15),
	ROW(any_dims, ANY, 1, 15),
	ROW(argmax, ARGMAX, 1, 15),
	ROW(argmin, ARGMIN, 1, 15),
	ROW(count_nonzero, COUNT, 1, 15),
	ROW(count_nonzero_dim_IntList, COUNT, 1, 15),
	{.id = OP_cumprod, .lower = lower_scan, .what = 1},
	{.id = OP_cumsum, .lower = lower_scan},
	ROW(frobenius_norm_dim, NORM, 1, 15),
	{.id = OP_histc, .takes = takes_bins, .widens = true, .lower = lower_bins, .checks = true},
	ROW(linalg_vector_norm, NORM, 2, 1),
	ROW(logsumexp, LOGSUMEXP, 1, 15),
	ROW(max, MAX, 15, 15),
	ROW(max_dim, MAX, 1, 15),
	ROW(mean, MEAN, 15, 15),
	ROW(mean_dim, MEAN, 1, 15),
	ROW(min, MIN, 15, 15),
	ROW(min_dim, MIN, 1, 15),
	ROW(norm_Scalar, NORM, 15, 1),
	ROW(norm_ScalarOpt_dim, NORM, 2, 1),
	ROW(norm_ScalarOpt_dim_dtype, NORM, 2, 1),
	ROW(prod, PROD, 15, 15),
	ROW(prod_dim_int, PROD, 1, 15),
	ROW(special_logsumexp, LOGSUMEXP, 1, 15),
	ROW(std, STD, 15, 1),
	ROW(std_correction, STD, 1, 2),
	ROW(std_dim, STD, 1, 2),
	ROW(std_mean_correction, STD, 1, 2),
	ROW(std_mean_dim, STD, 1, 2),
	ROW(sum, SUM, 15, 15),
	ROW(sum_dim_IntList, SUM, 1, 15),
	ROW(var, VAR, 15, 1),
	ROW(var_correction, VAR, 1, 2),
	ROW(var_dim, VAR, 1, 2),
	ROW(var_mean_correction, VAR, 1, 2),
	ROW(var_mean_dim, VAR, 1, 2),
	{.id = OP_UNKNOWN},
};
