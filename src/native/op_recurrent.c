/* Recurrent layers: LSTM (also with projections), GRU and simple ones, several layers, both ways, padded or packed sequences; and
 * their cells, which are one time step.
 *
 * The inputs of all time steps are multiplied by their weights at once; then one step of the program goes through time. A
 * sequence is rows of data: time step t has the rows of all sequences that are so long, those of the longest first. Padded
 * sequences are all as long, packed ones say how many there are at each time. */
#include <math.h>
#include <string.h>

#include "native/moves.h"
#include "native/multiply.h"
#include "tensor/tensor.h"

enum { LSTM = 1, GRU, RNN_TANH, RNN_RELU, PACKED = 8 }; /* what: one of the first four */

typedef struct recurrent {
	uint32_t kind;
	uint8_t type; /* f32 or f64 */
	bool packed, cell, biases, both_ways, batch_first;
	int64_t layers, ways, steps, batch, rows, hidden, given; /* rows: of all time steps; given: to the next step */
	int64_t gates;                                           /* numbers that a cell has for each hidden one */
	slot sizes;                                              /* packed: how many rows each time step has */
	slot h0, c0;                                             /* layers * ways, batch, … */
	slot *params;
	uint32_t nparams, each; /* each: of a layer one way */
} recurrent;

/* ---- going through time ---------------------------------------------------------------------------------------------------- */

typedef struct walk {
	uint32_t kind;
	bool back, wide; /* wide: doubles */
	int64_t steps, batch, rows, hidden, given, gates;
	int64_t y_row, y_col; /* where results go: elements between rows, the first one */
	slot sizes, in, own, cell, state, y;
	slot raw, made; /* before and after the projection */
	const void *from_state,
		*project; /* products: own gates from the state, made from raw; project NULL: there is none */
} walk;

typedef struct moment {
	const walk *w;
	frame *f;
	int64_t row; /* the first of the time step */
} moment;

static void lstm_row(const native_kernels *k, float *g, const float *in, float *cell, float *out, int64_t n)
{
	for (int64_t i = 0; i < 4 * n; i++)
		g[i] += in[i];
	k->map(MAP_SIGMOID, g, g, 2 * n);
	k->map(MAP_TANH, g + 2 * n, g + 2 * n, n);
	k->map(MAP_SIGMOID, g + 3 * n, g + 3 * n, n);
	for (int64_t i = 0; i < n; i++)
		cell[i] = g[n + i] * cell[i] + g[i] * g[2 * n + i];
	k->map(MAP_TANH, cell, out, n);
	for (int64_t i = 0; i < n; i++)
		out[i] *= g[3 * n + i];
}

static void gru_row(const native_kernels *k, float *g, const float *in, float *state, int64_t n)
{
	for (int64_t i = 0; i < 2 * n; i++)
		g[i] += in[i];
	k->map(MAP_SIGMOID, g, g, 2 * n);
	for (int64_t i = 0; i < n; i++)
		g[2 * n + i] = in[2 * n + i] + g[i] * g[2 * n + i];
	k->map(MAP_TANH, g + 2 * n, g + 2 * n, n);
	for (int64_t i = 0; i < n; i++)
		state[i] = (state[i] - g[2 * n + i]) * g[n + i] + g[2 * n + i];
}

static void plain_row(const native_kernels *k, const float *g, const float *in, float *state, int64_t n, bool relu)
{
	for (int64_t i = 0; i < n; i++)
		state[i] = g[i] + in[i];
	if (!relu)
		k->map(MAP_TANH, state, state, n);
	for (int64_t i = 0; relu && i < n; i++)
		state[i] = state[i] < 0 ? 0 : state[i]; /* nan stays */
}

static float *floats(const frame *f, slot s)
{
	return (float *)f->t[s].data;
}

static double *doubles(const frame *f, slot s)
{
	return (double *)f->t[s].data;
}

/* The same of doubles. */
static void row_of_doubles(const moment *m, int64_t i)
{
	const walk *w = m->w;
	int64_t n = w->hidden, all = w->gates * n;
	double *g = doubles(m->f, w->own) + i * all, *state = doubles(m->f, w->state) + i * w->given;
	double *cell = w->kind == LSTM ? doubles(m->f, w->cell) + i * n : NULL;
	double *out = w->project ? doubles(m->f, w->raw) + i * n : state;
	const double *in = doubles(m->f, w->in) + (m->row + i) * all;
	for (int64_t k = 0; k < n; k++) {
		double a = g[k] + in[k], b = w->gates > 1 ? g[n + k] + in[n + k] : 0;
		if (w->kind == LSTM) {
			double c = tanh(g[2 * n + k] + in[2 * n + k]), d = g[3 * n + k] + in[3 * n + k];
			cell[k] = cell[k] / (1 + exp(-b)) + c / (1 + exp(-a));
			out[k] = tanh(cell[k]) / (1 + exp(-d));
		} else if (w->kind == GRU) {
			double c = tanh(in[2 * n + k] + g[2 * n + k] / (1 + exp(-a)));
			state[k] = (state[k] - c) / (1 + exp(-b)) + c;
		} else {
			state[k] = w->kind == RNN_TANH ? tanh(a) : a < 0 ? 0 : a; /* nan stays */
		}
	}
}

static void cell_rows(void *ctx, int64_t first, int64_t end, int thread)
{
	const moment *m = ctx;
	const walk *w = m->w;
	const native_kernels *k = m->f->k;
	int64_t n = w->hidden, all = w->gates * n;
	(void)thread;
	for (int64_t i = first; i < end; i++) {
		if (w->wide) {
			row_of_doubles(m, i);
			continue;
		}
		float *g = floats(m->f, w->own) + i * all, *state = floats(m->f, w->state) + i * w->given;
		const float *in = floats(m->f, w->in) + (m->row + i) * all;
		if (w->kind == LSTM)
			lstm_row(k, g, in, floats(m->f, w->cell) + i * n, w->project ? floats(m->f, w->raw) + i * n : state, n);
		else if (w->kind == GRU)
			gru_row(k, g, in, state, n);
		else
			plain_row(k, g, in, state, n, w->kind == RNN_RELU);
	}
}

/* Rows of n elements; to_row and from_row are elements between them. */
static void copy_rows(const walk *w, char *to, int64_t to_row, const char *from, int64_t from_row, int64_t rows,
                      int64_t n)
{
	int64_t each = w->wide ? 8 : 4;
	for (int64_t i = 0; i < rows; i++)
		memcpy(to + i * to_row * each, from + i * from_row * each, (size_t)(n * each));
}

/* Products are of all rows; of sequences that have ended, or not begun on the way back, the state stays. */
static void do_moment(const walk *w, frame *f, int64_t row, int64_t count)
{
	moment m = {w, f, row};
	char *state = f->t[w->state].data, *y = f->t[w->y].data + (row * w->y_row + w->y_col) * (w->wide ? 8 : 4);
	mul_run(w->from_state, f);
	team_run(f->team, count, 4096 / (w->gates * w->hidden + 1) + 1, cell_rows, &m);
	if (w->project) {
		mul_run(w->project, f);
		copy_rows(w, state, w->given, f->t[w->made].data, w->given, count, w->given);
	}
	copy_rows(w, y, w->y_row, state, w->given, count, w->given);
}

/* Packed sequences: how many go on at each time step. */
static clv_status check_sizes(const int64_t *sizes, int64_t steps, int64_t batch, int64_t rows)
{
	int64_t sum = 0, before = batch;
	for (int64_t t = 0; t < steps; t++) {
		if (sizes[t] < 0 || sizes[t] > before || sizes[t] > rows - sum)
			return fail(CLV_E_INPUT, "batch_sizes of packed sequences do not fit their data at time step %lld",
			            (long long)t);
		before = sizes[t];
		sum += sizes[t];
	}
	return sum == rows ? CLV_OK
	                   : fail(CLV_E_INPUT, "batch_sizes of packed sequences add up to %lld, there are %lld rows",
	                          (long long)sum, (long long)rows);
}

static clv_status run_walk(const void *params, frame *f)
{
	const walk *w = params;
	const int64_t *sizes = w->sizes == NONE ? NULL : (const int64_t *)f->t[w->sizes].data;
	int64_t row = w->back ? w->rows : 0;
	if (sizes)
		TRY(check_sizes(sizes, w->steps, w->batch, w->rows));
	for (int64_t i = 0; i < w->steps; i++) {
		int64_t count = sizes ? sizes[w->back ? w->steps - 1 - i : i] : w->batch;
		row -= w->back ? count : 0;
		do_moment(w, f, row, count);
		row += w->back ? 0 : count;
	}
	return CLV_OK;
}

/* ---- a layer, one way ------------------------------------------------------------------------------------------------------- */

static clv_status rows_of(lowering *l, uint8_t type, int64_t rows, int64_t cols, slot *out)
{
	nt form = {.dtype = type, .ndim = 2, .size = {rows, cols}, .stride = {cols, 1}};
	return low_temp(l, &form, out);
}

/* A copy of what the layer begins with. */
static clv_status begin(lowering *l, const recurrent *r, slot from, int64_t at, int64_t cols, slot *out)
{
	nt form = *low_at(l, from);
	slot part;
	if (form.dtype != r->type || form.ndim != 3 || form.size[0] != r->layers * r->ways || form.size[1] != r->batch ||
	    form.size[2] != cols)
		return fail(CLV_E_VERIFY, "the state that a recurrent layer begins with does not fit it");
	int64_t offset = at * form.stride[0];
	form = (nt){
		.dtype = r->type, .ndim = 2, .size = {form.size[1], form.size[2]}, .stride = {form.stride[1], form.stride[2]}};
	TRY(low_part(l, from, nt_numel(&form) ? offset : 0, &form, &part));
	TRY(rows_of(l, r->type, r->batch, cols, out));
	return low_copy(l, part, *out);
}

/* x·Wᵀ + bias, into new rows. */
static clv_status times_weight(lowering *l, slot x, slot weight, slot bias, int64_t rows, int64_t cols, multiply *m)
{
	*m = (multiply){.a = x, .d = bias, .alpha = 1, .beta = bias != NONE};
	TRY(mul_turned(l, weight, &m->b));
	return rows_of(l, low_at(l, x)->dtype, rows, cols, &m->c);
}

static clv_status make_products(lowering *l, const recurrent *r, const slot *p, slot x, walk *w)
{
	int64_t cols;
	multiply m;
	if (__builtin_mul_overflow(r->gates, r->hidden, &cols))
		return fail(CLV_E_OVERFLOW, "a recurrent layer is too large");
	TRY(times_weight(l, x, p[0], r->biases ? p[2] : NONE, r->rows, cols, &m));
	TRY(mul_lower(l, &m));
	w->in = m.c;
	TRY(times_weight(l, w->state, p[1], r->biases ? p[3] : NONE, r->batch, cols, &m));
	TRY(mul_prepare(l, &m, &w->from_state));
	w->own = m.c;
	if (r->each != (r->biases ? 5u : 3u))
		return CLV_OK;
	TRY(rows_of(l, r->type, r->batch, r->hidden, &w->raw));
	TRY(low_zero(l, w->raw));
	TRY(times_weight(l, w->raw, p[r->each - 1], NONE, r->batch, r->given, &m));
	w->made = m.c;
	return mul_prepare(l, &m, &w->project);
}

/* What it ends with goes to its place in the results. */
static clv_status end(lowering *l, slot from, slot to, int64_t at, int64_t rows, int64_t cols)
{
	const nt *t = low_at(l, to);
	nt form = {.dtype = t->dtype, .ndim = 2, .size = {rows, cols}, .stride = {t->stride[1], t->stride[2]}};
	slot part;
	TRY(low_part(l, to, nt_numel(&form) ? at * t->stride[0] : 0, &form, &part));
	return low_copy(l, from, part);
}

static clv_status lower_way(lowering *l, const recurrent *r, int64_t at, slot x, slot y, const slot *ends)
{
	walk *w = low_alloc(l, sizeof *w);
	TRY_MEM(w);
	*w = (walk){.kind = r->kind,
	            .back = at % r->ways == 1,
	            .wide = r->type == DT_F64,
	            .steps = r->steps,
	            .batch = r->batch,
	            .rows = r->rows,
	            .hidden = r->hidden,
	            .given = r->given,
	            .gates = r->gates,
	            .y_row = r->ways * r->given,
	            .y_col = at % r->ways * r->given,
	            .sizes = r->sizes,
	            .y = y};
	TRY(begin(l, r, r->h0, at, r->given, &w->state));
	if (r->kind == LSTM)
		TRY(begin(l, r, r->c0, at, r->hidden, &w->cell));
	TRY(make_products(l, r, r->params + at * r->each, x, w));
	TRY(low_step(l, run_walk, w));
	TRY(end(l, w->state, ends[0], at, r->batch, r->given));
	return r->kind == LSTM ? end(l, w->cell, ends[1], at, r->batch, r->hidden) : CLV_OK;
}

/* ---- the operator ----------------------------------------------------------------------------------------------------------- */

static clv_status read_state(lowering *l, node_id n, uint32_t i, recurrent *r)
{
	slot *both;
	uint32_t count;
	if (r->kind != LSTM) {
		TRY(low_tensor(l, n, i, &r->h0));
		r->c0 = r->h0;
	} else {
		TRY(low_tensors(l, n, i, &both, &count));
		if (count != 2)
			return fail(CLV_E_VERIFY, "an LSTM begins with two tensors, not %u", count);
		r->h0 = both[0];
		r->c0 = both[1];
	}
	for (int k = 0; r->cell && k < 2; k++) /* as that of one layer */
		TRY(mul_with_one(l, k ? r->c0 : r->h0, 0, k ? &r->c0 : &r->h0));
	if (r->h0 == NONE || r->c0 == NONE || low_at(l, r->h0)->ndim != 3 || low_at(l, r->c0)->ndim != 3)
		return fail(CLV_E_VERIFY, "the state that a recurrent layer begins with has three dimensions");
	r->batch = low_at(l, r->h0)->size[1];
	r->given = low_at(l, r->h0)->size[2];
	r->hidden = low_at(l, r->c0)->size[2];
	return CLV_OK;
}

static clv_status read_options(lowering *l, node_id n, uint32_t i, recurrent *r)
{
	TRY(low_tensors(l, n, i, &r->params, &r->nparams));
	TRY(low_bool(l, n, i + 1, false, &r->biases));
	TRY(low_int(l, n, i + 2, 1, &r->layers));
	TRY(low_bool(l, n, i + 5, false, &r->both_ways));
	if (!r->packed)
		TRY(low_bool(l, n, i + 6, false, &r->batch_first));
	r->ways = r->both_ways ? 2 : 1;
	r->gates = r->kind == LSTM ? 4 : r->kind == GRU ? 3 : 1;
	r->each = (r->biases ? 4u : 2u) + (r->hidden != r->given);
	if (r->layers < 1 || r->layers > r->nparams || (uint64_t)r->layers * (uint64_t)r->ways * r->each != r->nparams)
		return fail(CLV_E_VERIFY, "a recurrent layer has %u weights, which is not what its layers need", r->nparams);
	for (uint32_t k = 0; k < r->nparams; k++)
		if (r->params[k] == NONE || low_at(l, r->params[k])->dtype != r->type)
			return fail(CLV_E_UNSUPPORTED, "a weight of a recurrent layer has another type than its input");
	return CLV_OK;
}

/* The input as rows: time step after time step. */
static clv_status read_input(lowering *l, node_id n, recurrent *r, slot *x)
{
	TRY(low_tensor(l, n, 0, x));
	r->sizes = NONE;
	if (r->packed) {
		TRY(low_tensor(l, n, 1, &r->sizes));
		TRY(low_as_rows(l, r->sizes, &r->sizes));
		const nt *sizes = low_at(l, r->sizes);
		if (sizes->dtype != DT_I64 || sizes->ndim != 1 || low_at(l, *x)->ndim != 2)
			return fail(CLV_E_VERIFY, "batch_sizes of packed sequences are a vector of i64, their data are rows");
		r->steps = sizes->size[0];
		r->rows = low_at(l, *x)->size[0];
		return CLV_OK;
	}
	if (low_at(l, *x)->ndim != 3 || low_at(l, *x)->size[!r->batch_first] != r->batch)
		return fail(CLV_E_VERIFY,
		            "the sequences of a recurrent layer have three dimensions, and are as many as it has states");
	if (r->batch_first)
		TRY(mul_view(l, *x, 3, (uint8_t[]){1, 0, 2}, x));
	TRY(low_as_rows(l, *x, x));
	const nt *t = low_at(l, *x);
	nt rows = {.dtype = t->dtype, .ndim = 2, .size = {t->size[0] * t->size[1], t->size[2]}, .stride = {t->size[2], 1}};
	r->steps = t->size[0];
	r->rows = rows.size[0];
	return low_part(l, *x, 0, &rows, x);
}

static clv_status give_rows(lowering *l, node_id n, const recurrent *r, slot y)
{
	int64_t cols = r->ways * r->given;
	nt form = {.dtype = r->type, .ndim = 3, .size = {r->steps, r->batch, cols}};
	slot out, from = y;
	if (r->packed)
		form = (nt){.dtype = r->type, .ndim = 2, .size = {r->rows, cols}};
	nt_rows(&form);
	TRY(low_part(l, y, 0, &form, &from));
	if (r->batch_first) {
		TRY(mul_view(l, from, 3, (uint8_t[]){1, 0, 2}, &from));
		form = *low_at(l, from);
		form.data = NULL;
		nt_rows(&form);
	}
	TRY(low_result(l, n, 0, &form, false, &out));
	return low_copy(l, from, out);
}

static clv_status lower_layers(lowering *l, node_id n, const recurrent *r, slot x)
{
	int64_t cols;
	slot y = x, ends[2];
	nt form = {.dtype = r->type, .ndim = 3, .size = {r->layers * r->ways, r->batch, r->given}};
	nt_rows(&form);
	TRY(low_result(l, n, 1, &form, false, &ends[0]));
	form.size[2] = r->hidden;
	nt_rows(&form);
	if (r->kind == LSTM)
		TRY(low_result(l, n, 2, &form, false, &ends[1]));
	if (__builtin_mul_overflow(r->ways, r->given, &cols))
		return fail(CLV_E_OVERFLOW, "a recurrent layer is too large");
	for (int64_t k = 0; k < r->layers; k++) {
		TRY(rows_of(l, r->type, r->rows, cols, &y));
		for (int64_t way = 0; way < r->ways; way++)
			TRY(lower_way(l, r, k * r->ways + way, x, y, ends));
		x = y;
	}
	return give_rows(l, n, r, y);
}

static clv_status lower_recurrent(lowering *l, node_id n)
{
	recurrent r = {.kind = low_what(l, n) & 7, .packed = low_what(l, n) & PACKED};
	uint32_t state = r.packed ? 2 : 1;
	slot x;
	TRY(low_tensor(l, n, 0, &x));
	r.type = low_at(l, x)->dtype;
	TRY(read_state(l, n, state, &r));
	TRY(read_options(l, n, state + 1, &r));
	TRY(read_input(l, n, &r, &x));
	return lower_layers(l, n, &r, x);
}

static clv_status read_weights(lowering *l, node_id n, recurrent *r)
{
	r->params = low_alloc(l, 4 * sizeof *r->params);
	TRY_MEM(r->params);
	for (uint32_t i = 0; i < 4; i++)
		TRY(low_tensor_or_none(l, n, 2 + i, &r->params[i]));
	r->biases = r->params[2] != NONE;
	for (uint32_t i = 0; i < 4; i++)
		if (i < 2 || r->biases ? r->params[i] == NONE || low_at(l, r->params[i])->dtype != r->type
		                       : r->params[i] != NONE)
			return fail(CLV_E_UNSUPPORTED,
			            "a weight of a recurrent cell is missing, or has another type than its input");
	r->each = r->biases ? 4 : 2;
	return CLV_OK;
}

static clv_status cell_result(lowering *l, node_id n, uint32_t i, const recurrent *r, slot *out)
{
	nt form = {.dtype = r->type, .ndim = 2, .size = {r->batch, r->given}, .stride = {r->given, 1}};
	TRY(low_result(l, n, i, &form, false, out));
	return mul_with_one(l, *out, 0, out);
}

static clv_status lower_cell(lowering *l, node_id n)
{
	recurrent r = {.kind = low_what(l, n) & 7, .cell = true, .layers = 1, .ways = 1, .steps = 1, .sizes = NONE};
	slot x, y, ends[2];
	TRY(low_tensor(l, n, 0, &x));
	r.type = low_at(l, x)->dtype;
	TRY(read_state(l, n, 1, &r));
	TRY(read_weights(l, n, &r));
	r.rows = r.batch;
	r.gates = r.kind == LSTM ? 4 : r.kind == GRU ? 3 : 1;
	if (low_at(l, x)->ndim != 2 || low_at(l, x)->size[0] != r.batch || r.hidden != r.given)
		return fail(CLV_E_VERIFY, "the input of a recurrent cell does not fit its state");
	TRY(cell_result(l, n, 0, &r, &ends[0]));
	if (r.kind == LSTM)
		TRY(cell_result(l, n, 1, &r, &ends[1]));
	TRY(rows_of(l, r.type, r.rows, r.given, &y));
	return lower_way(l, &r, 0, x, y, ends);
}

static const char *takes_recurrent(const plan *p, node_id n)
{
	return native_floats(p, n, 1) ? NULL : "recurrent layers are of f32 or f64";
}

/* ---- packing ------------------------------------------------------------------------------------------------------------------ */

typedef struct pack_step {
	slot padded, packed, sizes, lengths;
	int64_t steps, all, batch, rows; /* all: time steps of the padded tensor */
	int64_t by_step, by_sequence;    /* bytes between them in the padded tensor */
	size_t bytes;                    /* of a row */
	uint32_t element;
	char fill[8];
} pack_step;

static clv_status run_pack(const void *params, frame *f)
{
	const pack_step *s = params;
	const int64_t *lengths = (const int64_t *)f->t[s->lengths].data;
	int64_t *sizes = (int64_t *)f->t[s->sizes].data, sum = 0, row = 0;
	for (int64_t b = 0; b < s->batch; b++) {
		if (lengths[b] < 1 || lengths[b] > s->steps || (b && lengths[b] > lengths[b - 1]))
			return fail(CLV_E_INPUT, "lengths of sequences are 1 to %lld here, the longest first; that of %lld is %lld",
			            (long long)s->steps, (long long)b, (long long)lengths[b]);
		sum += lengths[b];
	}
	if (sum != s->rows || !s->batch || lengths[0] != s->steps)
		return fail(CLV_E_INPUT, "sequences have other lengths than those that the plan was captured with");
	for (int64_t t = 0; t < s->steps; t++) {
		for (sizes[t] = 0; sizes[t] < s->batch && lengths[sizes[t]] > t; sizes[t]++, row++)
			memcpy(f->t[s->packed].data + (size_t)row * s->bytes,
			       f->t[s->padded].data + t * s->by_step + sizes[t] * s->by_sequence, s->bytes);
	}
	return CLV_OK;
}

static void fill_row(const pack_step *s, char *to)
{
	for (size_t at = 0; at < s->bytes; at += s->element)
		memcpy(to + at, s->fill, s->element);
}

static clv_status run_pad(const void *params, frame *f)
{
	const pack_step *s = params;
	const int64_t *sizes = (const int64_t *)f->t[s->sizes].data;
	int64_t *lengths = (int64_t *)f->t[s->lengths].data;
	const char *from = f->t[s->packed].data;
	TRY(check_sizes(sizes, s->steps, s->batch, s->rows));
	memset(lengths, 0, (size_t)s->batch * sizeof *lengths);
	for (int64_t t = 0; t < s->all; t++)
		for (int64_t b = 0; b < s->batch; b++) {
			char *to = f->t[s->padded].data + t * s->by_step + b * s->by_sequence;
			if (t >= s->steps || b >= sizes[t]) {
				fill_row(s, to);
				continue;
			}
			memcpy(to, from, s->bytes);
			from += s->bytes;
			lengths[b]++;
		}
	return CLV_OK;
}

/* Rows of a packed tensor, and where they are in the padded one, which is row-major. */
static clv_status set_places(pack_step *s, const nt *packed, const nt *padded, bool batch_first)
{
	if (packed->ndim < 1 || padded->ndim != packed->ndim + 1 || packed->dtype != padded->dtype ||
	    memcmp(packed->size + 1, padded->size + 2, (packed->ndim - 1u) * sizeof *packed->size) != 0)
		return fail(CLV_E_VERIFY, "packed and padded sequences have different rows");
	s->element = (uint32_t)dtype_bytes(packed->dtype);
	s->bytes = s->element;
	for (uint32_t d = 1; d < packed->ndim; d++)
		s->bytes *= (size_t)packed->size[d]; /* fits: the tensors do, or have no elements */
	s->rows = packed->size[0];
	s->all = padded->size[batch_first];
	s->batch = padded->size[!batch_first];
	s->by_step = (int64_t)s->bytes * (batch_first ? 1 : s->batch);
	s->by_sequence = (int64_t)s->bytes * (batch_first ? s->all : 1);
	return CLV_OK;
}

static clv_status vector_of(const lowering *l, slot s, int64_t size)
{
	const nt *t = s == NONE ? NULL : low_at(l, s);
	return t && t->dtype == DT_I64 && t->ndim == 1 && (size < 0 || t->size[0] == size)
	           ? CLV_OK
	           : fail(CLV_E_VERIFY, "lengths and batch_sizes of sequences are vectors of i64");
}

static clv_status lower_pack(lowering *l, node_id n)
{
	pack_step *s = low_alloc(l, sizeof *s);
	nt form, sizes;
	bool batch_first;
	TRY_MEM(s);
	TRY(low_tensor(l, n, 0, &s->padded));
	TRY(low_tensor(l, n, 1, &s->lengths));
	TRY(low_bool(l, n, 2, false, &batch_first));
	TRY(low_as_rows(l, s->padded, &s->padded));
	TRY(low_form(l, n, 0, &form));
	TRY(low_form(l, n, 1, &sizes));
	TRY(set_places(s, &form, low_at(l, s->padded), batch_first));
	TRY(vector_of(l, s->lengths, s->batch));
	TRY(low_as_rows(l, s->lengths, &s->lengths));
	TRY(low_result(l, n, 0, &form, true, &s->packed));
	TRY(low_result(l, n, 1, &sizes, true, &s->sizes));
	TRY(vector_of(l, s->sizes, -1));
	s->steps = sizes.size[0];
	if (s->steps > s->all)
		return fail(CLV_E_VERIFY, "packed sequences have more time steps than there are");
	return low_step(l, run_pack, s);
}

static clv_status lower_pad_packed(lowering *l, node_id n)
{
	pack_step *s = low_alloc(l, sizeof *s);
	nt form, lengths;
	bool batch_first;
	TRY_MEM(s);
	TRY(low_tensor(l, n, 0, &s->packed));
	TRY(low_tensor(l, n, 1, &s->sizes));
	TRY(low_bool(l, n, 2, false, &batch_first));
	TRY(low_as_rows(l, s->packed, &s->packed));
	TRY(vector_of(l, s->sizes, -1));
	TRY(low_as_rows(l, s->sizes, &s->sizes));
	TRY(low_form(l, n, 0, &form));
	TRY(low_form(l, n, 1, &lengths));
	TRY(set_places(s, low_at(l, s->packed), &form, batch_first));
	TRY(low_element(l, n, 3, form.dtype, s->fill));
	TRY(low_result(l, n, 0, &form, true, &s->padded));
	TRY(low_result(l, n, 1, &lengths, true, &s->lengths));
	TRY(vector_of(l, s->lengths, s->batch));
	s->steps = low_at(l, s->sizes)->size[0];
	if (s->steps > s->all)
		return fail(CLV_E_VERIFY, "packed sequences have more time steps than there is room for");
	return low_step(l, run_pad, s);
}

#define RECURRENT(op, kind)                                                                                            \
	{                                                                                                                  \
		.id = OP_##op, .takes = takes_recurrent, .widens = true, .lower = lower_recurrent, .what = (kind)              \
	}
#define A_CELL(op, kind)                                                                                               \
	{                                                                                                                  \
		.id = OP_##op, .takes = takes_recurrent, .widens = true, .lower = lower_cell, .what = (kind)                   \
	}
const native_op native_ops_recurrent[] = {
	{.id = OP__pack_padded_sequence, .takes = takes_any, .lower = lower_pack, .checks = true},
	{.id = OP__pad_packed_sequence, .takes = takes_any, .lower = lower_pad_packed, .checks = true},
	A_CELL(gru_cell, GRU),
	A_CELL(lstm_cell, LSTM),
	A_CELL(rnn_relu_cell, RNN_RELU),
	A_CELL(rnn_tanh_cell, RNN_TANH),
	RECURRENT(gru_data, GRU | PACKED),
	RECURRENT(gru_input, GRU),
	RECURRENT(lstm_data, LSTM | PACKED),
	RECURRENT(lstm_input, LSTM),
	RECURRENT(rnn_relu_data, RNN_RELU | PACKED),
	RECURRENT(rnn_relu_input, RNN_RELU),
	RECURRENT(rnn_tanh_data, RNN_TANH | PACKED),
	RECURRENT(rnn_tanh_input, RNN_TANH),
	{.id = OP_UNKNOWN},
};
