/* Batches across clients: rows of several requests run as one batch, where the plan proves that rows stay apart (plan/rows.h).
 *
 * When a model is loaded, each size that it serves is run once, timed, and some of its rows are compared with the same rows alone.
 * `exact` uses the sizes at which they are the same bits, `fast` all of them. Where other sizes than the batch may change too, each
 * of their values that the file is proven for is a *point* with sizes and times of its own. A worker that comes free takes what
 * waits at one point (queue.c), and of that as much as the measured times say is best for each row; what is missing to a size is
 * filled up with copies of the last row. A batch that fails is run again request by request, so that nobody pays for another's
 * request. */
#include "serve/batch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "plan/data.h"
#include "plan/rows.h"
#include "serve/oip.h"

enum { SIZES_MOST = 64, POINTS_MOST = 64, CHECKED_ROWS = 3 };

/* ---- what is known of a model ------------------------------------------------------------------------------------------------------ */

typedef struct trial {
	const served *m;
	const batch_point *at;
	clv_tensor **inputs; /* of the largest size */
	uint32_t n;
	double max_error;
} trial;

static clv_status run_moved(const served *m, clv_tensor *const *inputs, uint32_t n, clv_tensor **outputs,
                            uint32_t noutputs)
{
	clv_boundary *b;
	if (m->kind != SERVES_SUFFIX)
		return clv_runtime_run(m->runtime, (const clv_tensor *const *)inputs, n, outputs, noutputs);
	TRY(runtime_boundary_of(m->runtime, inputs, n, &b));
	clv_status st = clv_runtime_run_suffix(m->runtime, b, outputs, noutputs);
	clv_boundary_free(b);
	return st;
}

static void free_all(clv_tensor **at, uint32_t n)
{
	for (uint32_t i = 0; at && i < n; i++)
		clv_tensor_free(at[i]);
	mem_free(at);
}

static clv_status run_tensors(const served *m, clv_tensor *const *inputs, uint32_t n, clv_tensor **outputs,
                              uint32_t noutputs)
{
	clv_tensor **moved = mem_alloc((n + 1) * sizeof *moved);
	clv_status st = moved ? infer_to_devices(m, inputs, moved, n) : fail_nomem();
	if (st == CLV_OK)
		st = run_moved(m, moved, n, outputs, noutputs);
	free_all(moved, n);
	return st;
}

static size_t row_bytes(const clv_tensor *t)
{
	return t->m.sizes[0] ? (size_t)(clv_tensor_bytes(t) / t->m.sizes[0]) : 0;
}

/* `count` rows of a tensor from row `first` on, on its memory. */
static clv_status some_rows(clv_tensor *t, int64_t first, int64_t count, clv_tensor **out)
{
	int64_t sizes[RANK_MOST];
	memcpy(sizes, t->m.sizes, t->m.ndim * sizeof *sizes);
	sizes[0] = count;
	tensor_form form = {.dtype = t->m.dtype, .ndim = t->m.ndim, .sizes = sizes};
	return tensor_view(t, (size_t)first * row_bytes(t), &form, out);
}

/* Runs rows first … first+count-1 of the trial. *outputs: settled; caller frees. */
static clv_status run_rows(const trial *t, int64_t first, int64_t count, clv_tensor ***outputs, int64_t *ns)
{
	uint32_t n = t->n, noutputs = clv_runtime_output_count(t->m->runtime);
	clv_tensor **in = mem_alloc((n + 1) * sizeof *in), **out = mem_alloc((noutputs + 1) * sizeof *out);
	clv_status st = in && out ? CLV_OK : fail_nomem();
	for (uint32_t i = 0; i < n && st == CLV_OK; i++) {
		clv_tensor *rows;
		st = some_rows(t->inputs[i], first, count, &rows);
		if (st == CLV_OK) { /* on memory of its own: the run may write it */
			st = tensor_clone(rows, &in[i]);
			clv_tensor_free(rows);
		}
	}
	int64_t start = clock_nanoseconds();
	if (st == CLV_OK)
		st = run_tensors(t->m, in, n, out, noutputs);
	*ns = clock_nanoseconds() - start;
	free_all(in, n);
	for (uint32_t i = 0; i < noutputs && st == CLV_OK; i++)
		st = infer_settle(t->m, &out[i]);
	if (st == CLV_OK)
		*outputs = out;
	else
		free_all(out, noutputs);
	return st;
}

static void fill(clv_tensor *t, uint64_t *seed)
{
	size_t n = (size_t)tensor_numel(t), item = dtype_bytes(t->m.dtype);
	char *at = t->data;
	for (size_t i = 0; i < n; i++, at += item) {
		*seed = *seed * 6364136223846793005u + 1442695040888963407u;
		double x = (double)(*seed >> 11) / 9007199254740992.0 * 2 - 1;
		float f = (float)x;
		uint16_t half = (uint16_t)(0x3c00u | (*seed >> 54)), brain = (uint16_t)(0x3f80u | (*seed >> 57));
		uint64_t bit = *seed >> 63;
		const void *from = t->m.dtype == DT_F32    ? (void *)&f
		                   : t->m.dtype == DT_F64  ? (void *)&x
		                   : t->m.dtype == DT_F16  ? (void *)&half
		                   : t->m.dtype == DT_BF16 ? (void *)&brain
		                                           : (void *)&bit;
		memcpy(at, from, item);
	}
}

static clv_status make_inputs(trial *t, int64_t rows)
{
	uint64_t seed = 1;
	int64_t made = 0;
	const plan_part *of = &t->m->runtime->plans.at[t->at->plan].of;
	const int64_t *rest = t->at->dims;
	t->n = clv_runtime_input_count(t->m->runtime);
	t->inputs = mem_alloc((t->n + 1) * sizeof *t->inputs);
	TRY_MEM(t->inputs);
	for (uint32_t i = 0; i < t->n; i++) {
		clv_port p;
		dtype d;
		int64_t shape[RANK_MOST];
		TRY(served_port(t->m, false, i, &p));
		const char *name = oip_datatype(p.dtype);
		if (!name || !oip_dtype(name, &d) || !p.ndim || p.ndim > RANK_MOST)
			return fail(CLV_E_UNSUPPORTED, "input %s is %s", p.name, p.dtype);
		shape[0] = rows;
		for (uint32_t k = 1; k < p.ndim; k++)
			shape[k] = *rest++;
		tensor_form form = {.dtype = (uint8_t)d, .ndim = p.ndim, .sizes = shape};
		TRY(runtime_make(t->m->runtime, of->p, of->v.inputs.at[i], &form, &made, &t->inputs[i]));
		fill(t->inputs[i], &seed);
	}
	return CLV_OK;
}

static double difference(const clv_tensor *a, const clv_tensor *b)
{
	double most = 0;
	size_t n = (size_t)tensor_numel(a);
	if (a->m.dtype != DT_F32 && a->m.dtype != DT_F64)
		return INFINITY;
	for (size_t i = 0; i < n; i++) {
		double x = a->m.dtype == DT_F32 ? (double)((float *)a->data)[i] : ((double *)a->data)[i];
		double y = a->m.dtype == DT_F32 ? (double)((float *)b->data)[i] : ((double *)b->data)[i];
		double d = fabs(x - y);
		most = d > most || isnan(d) ? d : most;
	}
	return most;
}

/* One row alone against the same row of a batch. */
static clv_status compare_row(trial *t, clv_tensor **batch, int64_t row, bool *same)
{
	const batching *b = &t->m->batching;
	clv_tensor **alone;
	int64_t ns;
	uint32_t n = clv_runtime_output_count(t->m->runtime);
	TRY(run_rows(t, row, 1, &alone, &ns));
	for (uint32_t i = 0; i < n; i++) {
		clv_tensor *mine = NULL;
		clv_status st = CLV_OK;
		if (b->of_rows[i])
			st = some_rows(batch[i], row, 1, &mine);
		else
			mine = tensor_ref(batch[i]);
		if (st == CLV_OK && clv_tensor_bytes(mine) != clv_tensor_bytes(alone[i]))
			st = fail(CLV_E_UNSUPPORTED, "an output has not the rows that it should have");
		if (st != CLV_OK) {
			clv_tensor_free(mine);
			free_all(alone, n);
			return st;
		}
		size_t bytes = (size_t)clv_tensor_bytes(mine);
		if (bytes && memcmp(mine->data, alone[i]->data, bytes) != 0) {
			double d = difference(mine, alone[i]);
			*same = false;
			t->max_error = d > t->max_error ? d : t->max_error;
		}
		clv_tensor_free(mine);
	}
	free_all(alone, n);
	return CLV_OK;
}

static clv_status try_size(trial *t, uint32_t size, bool *same, int64_t *ns)
{
	clv_tensor **out;
	int64_t again;
	uint32_t n = clv_runtime_output_count(t->m->runtime);
	TRY(run_rows(t, 0, size, &out, ns));
	free_all(out, n);
	TRY(run_rows(t, 0, size, &out, &again));
	*ns = again < *ns ? again : *ns;
	*same = true;
	clv_status st = CLV_OK;
	for (uint32_t k = 0; k < CHECKED_ROWS && st == CLV_OK && size > 1; k++)
		st = compare_row(t, out, (int64_t)k * (size - 1) / (CHECKED_ROWS - 1), same);
	free_all(out, n);
	return st;
}

/* Keeps those of the point's sizes that may be used. */
static clv_status try_sizes(served *m, batch_point *p, bool exact)
{
	trial t = {.m = m, .at = p, .max_error = m->batching.max_error};
	uint32_t n = p->n;
	clv_status st = make_inputs(&t, p->sizes[n - 1]);
	p->n = 0;
	for (uint32_t i = 0; i < n && st == CLV_OK; i++) {
		bool same;
		int64_t ns;
		st = try_size(&t, p->sizes[i], &same, &ns);
		if (st == CLV_OK && (same || !exact)) {
			p->sizes[p->n] = p->sizes[i];
			p->times[p->n++] = ns > 0 ? ns : 1;
		}
	}
	m->batching.max_error = t.max_error;
	free_all(t.inputs, t.n);
	return st;
}

/* ---- the points of a file ---------------------------------------------------------------------------------------------------------- */

static int64_t most_rows(const server *s, const served *m)
{
	return m->max_batch >= 0 && m->max_batch < s->o.max_batch ? m->max_batch : s->o.max_batch;
}

static symbol_id batch_symbol(const plan_part *of)
{
	const plan *p = of->p;
	if (!of->v.inputs.n)
		return NONE;
	const value *x = &p->values.at[of->v.inputs.at[0]];
	for (uint32_t e = 0; x->ndim && e < p->exprs.n; e++)
		if (p->exprs.at[e].op == EXPR_SYM && p->dims.at[x->shape] == e)
			return (symbol_id)p->exprs.at[e].k;
	return NONE;
}

/* The sizes of all inputs but the first of each, at these values of the symbols; false: the first is not the batch. */
static bool eval_dims(const plan_part *of, const int64_t *symbols, int64_t rows, int64_t *out)
{
	const plan *p = of->p;
	for (uint32_t i = 0; i < of->v.inputs.n; i++) {
		const value *x = &p->values.at[of->v.inputs.at[i]];
		int64_t size;
		for (uint32_t d = 0; d < x->ndim; d++) {
			if (expr_eval(p, p->dims.at[x->shape + d], symbols, &size) != CLV_OK)
				return false;
			if (d)
				*out++ = size;
			else if (size != rows)
				return false;
		}
	}
	return true;
}

static clv_status new_point(batching *b, uint32_t which, const int64_t *dims)
{
	batch_point *p = mem_realloc(b->points, b->npoints + 1, sizeof *p);
	TRY_MEM(p);
	b->points = p;
	p += b->npoints;
	*p = (batch_point){.plan = which};
	p->dims = mem_alloc((b->ndims + 1) * sizeof *p->dims);
	p->sizes = mem_alloc(SIZES_MOST * sizeof *p->sizes);
	p->times = mem_alloc(SIZES_MOST * sizeof *p->times);
	b->npoints++;
	TRY_MEM(p->dims && p->sizes && p->times);
	memcpy(p->dims, dims, b->ndims * sizeof *dims);
	return CLV_OK;
}

static batch_point *find_point(const batching *b, const int64_t *dims)
{
	for (uint32_t i = 0; i < b->npoints; i++)
		if (!b->ndims || memcmp(b->points[i].dims, dims, b->ndims * sizeof *dims) == 0)
			return &b->points[i];
	return NULL;
}

/* *twice: plans differ in what they do at the same sizes, and only a run finds out which of them it is. */
static clv_status add_size(batching *b, uint32_t which, const int64_t *dims, int64_t rows, bool *twice)
{
	batch_point *p = find_point(b, dims);
	if (!p && b->npoints == POINTS_MOST)
		return CLV_OK; /* what is beyond runs alone */
	if (!p) {
		TRY(new_point(b, which, dims));
		p = &b->points[b->npoints - 1];
	}
	uint32_t at = 0;
	while (at < p->n && p->sizes[at] < rows)
		at++;
	*twice |= at < p->n && p->sizes[at] == rows && p->plan != which;
	if (p->plan != which || p->n == SIZES_MOST || (at < p->n && p->sizes[at] == rows))
		return CLV_OK;
	memmove(p->sizes + at + 1, p->sizes + at, (p->n++ - at) * sizeof *p->sizes);
	p->sizes[at] = (uint32_t)rows;
	return CLV_OK;
}

/* Values of the symbols at each point that the plan is proven for; or powers of two where it serves all sizes of its batch. */
static clv_status add_plan(const server *s, served *m, uint32_t which, symbol_id batch, bool *twice)
{
	const runtime *r = m->runtime;
	const plan_part *of = &r->plans.at[which].of;
	const artifact_plan *e = r->plans.at[which].e;
	const symbol *b = &of->p->symbols.at[batch];
	uint32_t n = of->p->symbols.n;
	int64_t *dims = mem_alloc((m->batching.ndims + 1) * sizeof *dims), size;
	clv_status st = dims ? CLV_OK : fail_nomem();
	for (uint32_t at = 0; st == CLV_OK && at + n <= e->points.n; at += n) {
		size = e->points.at[at + batch];
		if (size > 0 && size <= most_rows(s, m) && eval_dims(of, &e->points.at[at], size, dims))
			st = add_size(&m->batching, which, dims, size, twice);
	}
	for (size = 1; st == CLV_OK && r->unproven && n == 1 && size <= most_rows(s, m); size *= 2)
		if (size >= b->lo && size <= b->hi && eval_dims(of, &size, size, dims))
			st = add_size(&m->batching, which, dims, size, twice);
	mem_free(dims);
	return st;
}

/* Rows of outputs, the same for all plans; `why` says what speaks against it. */
static clv_status prove(served *m, uint32_t which, symbol_id batch, bool first, strbuf *why)
{
	const plan_part *of = &m->runtime->plans.at[which].of;
	uint32_t n = m->runtime->plans.at[which].noutputs;
	bool apart = false, *of_rows = mem_alloc(of->outputs.n + 1);
	value_ids outputs = {.at = of->outputs.at, .n = n};
	TRY_MEM(of_rows);
	clv_status st = rows_apart(&of->v, &outputs, batch, &apart, of_rows, why);
	if (st == CLV_OK && apart && first)
		memcpy(m->batching.of_rows, of_rows, n);
	else if (st == CLV_OK && apart && memcmp(m->batching.of_rows, of_rows, n) != 0)
		strbuf_puts(why, "plans of the file give other outputs a row for each row");
	mem_free(of_rows);
	return st;
}

/* A plan of which nothing is known but its own sizes is left out: what it serves runs alone. */
static bool has_batch(const served *m, uint32_t which, symbol_id *batch)
{
	const plan_part *of = &m->runtime->plans.at[which].of;
	uint32_t ndims = 0;
	for (uint32_t i = 0; i < of->v.inputs.n; i++)
		ndims += of->p->values.at[of->v.inputs.at[i]].ndim;
	*batch = batch_symbol(of);
	return *batch != NONE && first_data_symbol(of->p) == NONE &&
	       of->v.inputs.n == clv_runtime_input_count(m->runtime) && ndims == m->batching.ndims + of->v.inputs.n &&
	       m->runtime->plans.at[which].noutputs == m->runtime->plans.at[0].noutputs &&
	       !m->runtime->plans.at[which].asks;
}

static clv_status find_points(const server *s, served *m, strbuf *why)
{
	const runtime *r = m->runtime;
	bool twice = false, any = false;
	m->batching.of_rows = mem_alloc(r->plans.at[0].noutputs + 1);
	TRY_MEM(m->batching.of_rows);
	for (uint32_t i = 0; i < r->inputs.n; i++)
		m->batching.ndims += r->inputs.at[i].ndim ? r->inputs.at[i].ndim - 1 : 0;
	for (uint32_t i = 0; i < r->plans.n && !why->n; i++) {
		symbol_id batch;
		if (!has_batch(m, i, &batch))
			continue;
		TRY(prove(m, i, batch, !any, why));
		any = true;
		if (!why->n)
			TRY(add_plan(s, m, i, batch, &twice));
	}
	if (!any && !why->n)
		strbuf_puts(why, r->plans.at[0].asks ? "the forward asks whether its inputs are the same"
		                                     : "it has no batch that may change");
	if (twice && !why->n)
		strbuf_puts(why, "several plans of the file are for the same sizes");
	return CLV_OK;
}

/* Why the model is not batched; NULL: nothing speaks against it so far. */
static const char *refuse(const server *s, const served *m)
{
	if (strcmp(s->o.batching, "off") == 0)
		return "batching is off";
	if (!m->max_batch)
		return "its configuration says max_batch_size 0";
	if (m->kind == SERVES_PREFIX)
		return "a prefix gives each caller a boundary";
	return m->runtime->stateful ? "the model changes its own tensors" : NULL;
}

static void drop_point(batching *b, uint32_t i)
{
	mem_free(b->points[i].dims);
	mem_free(b->points[i].sizes);
	mem_free(b->points[i].times);
	b->points[i] = b->points[--b->npoints];
}

/* Points that have no batch, or where rows have other bits in one, go. */
static clv_status try_points(const server *s, served *m, strbuf *why)
{
	batching *b = &m->batching;
	bool exact = strcmp(s->o.batching, "exact") == 0, tried = false;
	for (uint32_t i = 0; i < b->npoints;) {
		batch_point *p = &b->points[i];
		bool fits = p->n > 1 && p->sizes[0] == 1;
		clv_status st = fits ? try_sizes(m, p, exact) : CLV_OK;
		tried |= fits;
		if (st == CLV_E_NOMEM)
			return st;
		if (st != CLV_OK) {
			strbuf_printf(why, "a trial failed: %s", clv_status_name(st));
			return CLV_OK;
		}
		if (fits && p->n > 1)
			i++;
		else
			drop_point(b, i);
	}
	for (uint32_t i = 0; i < b->npoints; i++)
		b->points[i].line.serves = &b->points[i];
	if (!b->npoints)
		strbuf_puts(why, tried ? "in a batch rows have other bits than alone"
		                       : "the file is not proven for single rows and for batches");
	return CLV_OK;
}

static clv_status set_up(const server *s, served *m, strbuf *why)
{
	const char *no = refuse(s, m);
	if (no) {
		strbuf_puts(why, no);
		return CLV_OK;
	}
	TRY(find_points(s, m, why));
	return why->n ? CLV_OK : try_points(s, m, why);
}

clv_status batch_prepare(server *s, served *m)
{
	strbuf why = STRBUF_INIT;
	clv_status st = set_up(s, m, &why);
	m->batching.on = st == CLV_OK && !why.n;
	if (st == CLV_OK && why.n)
		return strbuf_take(&why, &m->batching.why);
	strbuf_free(&why);
	return st;
}

void batch_free(batching *b)
{
	while (b->npoints)
		drop_point(b, b->npoints - 1);
	mem_free(b->points);
	mem_free(b->of_rows);
	mem_free(b->why);
}

uint32_t batch_size_above(const batching *b, uint32_t size)
{
	uint32_t best = 0;
	for (uint32_t i = 0; i < b->npoints; i++)
		for (uint32_t k = 0; k < b->points[i].n; k++) {
			uint32_t n = b->points[i].sizes[k];
			best = n > size && (!best || n < best) ? n : best;
		}
	return best;
}

uint32_t batch_largest(const batching *b)
{
	uint32_t most = 0;
	for (uint32_t i = 0; i < b->npoints; i++)
		most = batch_most(&b->points[i]) > most ? batch_most(&b->points[i]) : most;
	return most;
}

/* ---- requests ----------------------------------------------------------------------------------------------------------------------------- */

/* The smallest size that has room for so many rows; NONE: there is none. */
static uint32_t size_for(const batch_point *p, int64_t rows)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->sizes[i] >= rows)
			return i;
	return NONE;
}

int64_t batch_time(const batch_point *p, int64_t rows)
{
	uint32_t i = size_for(p, rows);
	return p->times[i == NONE ? p->n - 1 : i];
}

uint32_t batch_most(const batch_point *p)
{
	return p->sizes[p->n - 1];
}

/* The sizes of its inputs but the first of each; 0: they do not make rows. */
static int64_t read_dims(const exchange *x, int64_t *dims)
{
	int64_t rows = 0;
	for (uint32_t i = 0; i < clv_runtime_input_count(x->served->runtime); i++) {
		const clv_tensor *t = x->inputs[i];
		clv_port p;
		if (!t->m.ndim || t->m.ndim > RANK_MOST || !tensor_is_contiguous(&t->m) ||
		    served_port(x->served, false, i, &p) != CLV_OK || p.ndim != t->m.ndim ||
		    strcmp(p.dtype, clv_tensor_dtype(t)) != 0 || (i && t->m.sizes[0] != rows))
			return 0;
		for (uint32_t d = 1; d < p.ndim; d++)
			*dims++ = t->m.sizes[d];
		rows = t->m.sizes[0];
	}
	return rows;
}

void batch_place(exchange *x)
{
	const batching *b = &x->served->batching;
	if (!b->on || !x->inputs)
		return;
	int64_t *dims = arena_alloc(&x->arena, (b->ndims + 1) * sizeof *dims);
	int64_t rows = dims ? read_dims(x, dims) : 0;
	batch_point *p = rows > 0 ? find_point(b, dims) : NULL;
	uint32_t i = p ? size_for(p, rows) : NONE;
	if (i == NONE || p->sizes[i] != rows)
		return; /* alone it would run at a size that was not compared */
	x->point = p;
	x->rows = rows;
}

uint32_t batch_choose(const batch_point *p, const int64_t *rows, uint32_t n)
{
	uint32_t best = 1;
	double cost = INFINITY;
	int64_t all = 0;
	for (uint32_t k = 0; k < n; k++) {
		all += rows[k];
		uint32_t i = size_for(p, all);
		if (i == NONE)
			break;
		double each = (double)p->times[i] / (double)all;
		if (each <= cost) {
			cost = each;
			best = k + 1;
		}
	}
	return best;
}

/* Of rows that may also run in several batches: between the times of two sizes. */
static double time_between(const batch_point *p, int64_t rows)
{
	uint32_t i = size_for(p, rows);
	if (i == NONE || i == 0)
		return (double)p->times[i ? p->n - 1 : 0];
	double part = (double)(rows - p->sizes[i - 1]) / (double)(p->sizes[i] - p->sizes[i - 1]);
	return (double)p->times[i - 1] + part * (double)(p->times[i] - p->times[i - 1]);
}

int64_t batch_patience(const batch_point *p, int64_t have, double rate)
{
	double best = 0, patience = 0;
	uint32_t enough = 0;
	/* A size that keeps up with what comes is large enough: at little load that is a single row. */
	while (enough + 1 < p->n && (double)p->sizes[enough] / (double)p->times[enough] < rate)
		enough++;
	for (uint32_t i = 0; i <= enough && rate > 0; i++) {
		int64_t more = p->sizes[i] - have;
		if (more <= 0)
			continue;
		double saves = (double)batch_time(p, have) + time_between(p, more) - (double)p->times[i];
		double takes = (double)more / rate;
		if (saves - takes > best) {
			best = saves - takes;
			patience = saves < 2 * takes ? saves : 2 * takes;
		}
	}
	return (int64_t)patience;
}

static clv_status join(exchange *const *all, uint32_t n, uint32_t input, int64_t size, clv_tensor **out)
{
	const clv_tensor *like = all[0]->inputs[input];
	int64_t shape[RANK_MOST];
	memcpy(shape, like->m.sizes, like->m.ndim * sizeof *shape);
	shape[0] = size;
	tensor_form form = {.dtype = like->m.dtype, .ndim = like->m.ndim, .sizes = shape};
	TRY(tensor_new(&form, out));
	char *to = (*out)->data, *end = to + clv_tensor_bytes(*out);
	size_t row = row_bytes(like);
	for (uint32_t k = 0; k < n; k++) {
		size_t bytes = (size_t)clv_tensor_bytes(all[k]->inputs[input]);
		memcpy(to, all[k]->inputs[input]->data, bytes);
		to += bytes;
	}
	for (; row && to < end; to += row)
		memcpy(to, to - row, row);
	return CLV_OK;
}

static clv_status hand_out(exchange *const *all, uint32_t n, clv_tensor **outputs, uint32_t noutputs)
{
	const batching *b = &all[0]->served->batching;
	int64_t first = 0;
	for (uint32_t k = 0; k < n; k++) {
		infer *c = &all[k]->call;
		int64_t rows = all[k]->inputs[0]->m.sizes[0];
		c->results = mem_alloc((noutputs + 1) * sizeof *c->results);
		TRY_MEM(c->results);
		for (uint32_t i = 0; i < noutputs; i++) {
			if (b->of_rows[i])
				TRY(some_rows(outputs[i], first, rows, &c->results[i]));
			else
				c->results[i] = tensor_ref(outputs[i]);
			c->nresults = i + 1;
		}
		first += rows;
	}
	return CLV_OK;
}

static clv_status run_joined(exchange *const *all, uint32_t n, int64_t rows, int64_t size, clv_tensor **in,
                             uint32_t nin, clv_tensor **out, uint32_t nout)
{
	const served *m = all[0]->served;
	for (uint32_t i = 0; i < nin; i++)
		TRY(join(all, n, i, size, &in[i]));
	int64_t start = clock_nanoseconds();
	TRY(run_tensors(m, in, nin, out, nout));
	for (uint32_t k = 0; k < n; k++) {
		all[k]->at.ready = start;
		all[k]->at.ran = clock_nanoseconds();
		all[k]->run_rows = (uint32_t)rows;
	}
	for (uint32_t i = 0; i < nout; i++) {
		TRY(infer_settle(m, &out[i]));
		if (m->batching.of_rows[i] && (!out[i]->m.ndim || out[i]->m.sizes[0] != size))
			return fail(CLV_E_UNSUPPORTED, "an output has not the rows of the batch");
	}
	return hand_out(all, n, out, nout);
}

clv_status batch_run(exchange *const *all, uint32_t n)
{
	const served *m = all[0]->served;
	uint32_t nin = clv_runtime_input_count(m->runtime), nout = clv_runtime_output_count(m->runtime);
	int64_t rows = 0;
	for (uint32_t k = 0; k < n; k++)
		rows += all[k]->inputs[0]->m.sizes[0];
	const batch_point *p = all[0]->point;
	uint32_t size = size_for(p, rows);
	clv_tensor **in = mem_alloc((nin + 1) * sizeof *in), **out = mem_alloc((nout + 1) * sizeof *out);
	clv_status st = !in || !out    ? fail_nomem()
	                : size == NONE ? fail(CLV_E_LIMIT, "no size has room for %lld rows", (long long)rows)
	                               : run_joined(all, n, rows, p->sizes[size], in, nin, out, nout);
	free_all(in, nin);
	free_all(out, nout);
	for (uint32_t k = 0; k < n && st != CLV_OK; k++) { /* each is run alone, then */
		infer *c = &all[k]->call;
		free_all(c->results, c->nresults);
		c->results = NULL;
		c->nresults = 0;
		all[k]->run_rows = 0;
	}
	return st;
}
