/* Matrix products with batches and threads: blocks of C are handed to the kernels, B is packed first where that pays. */
#include "native/product.h"

#include <string.h>

enum {
	MOST_ROWS = 192,        /* of a block: as much of A as the second level of the cache holds beside a panel */
	BLOCK_FLOATS = 1 << 15, /* of C, which finish() finds in the cache */
	PIECE_NS = 4000,        /* work that is worth waking a thread */
	PACKED_FLOATS = 1 << 22 /* of B that are packed at a time */
};

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static int64_t pieces(int64_t n, int64_t each)
{
	return (n + each - 1) / each;
}

int64_t product_packed(int cols, int64_t k, int64_t n)
{
	int64_t left = n % cols, wide = n - left + (left == 0 ? 0 : left <= cols / 2 ? cols / 2 : cols), all;
	return wide < n || __builtin_mul_overflow(k, wide, &all) || all > INT64_MAX / 8 ? -1 : all;
}

static int64_t offset(const product *p, const int64_t *strides, int64_t batch)
{
	return batch_offset(p->nbatch, p->batch, strides, batch);
}

/* ---- plans ---------------------------------------------------------------------------------------------------------- */

/* Estimated time of a block of so many rows and one panel: sums, and a panel from memory. */
static double panel_ns(const product *p, int64_t rows, int cols)
{
	return (double)p->k * cols * ((double)rows / 60 + 0.2) + (double)rows * cols / 4 + 50;
}

static void plan_blocks(product *p, const native_kernels *k, int threads)
{
	int64_t panels = most(pieces(p->n, k->gemm_cols), 1), wanted = threads > 1 ? 4 * threads : 1;
	int64_t cuts = most(pieces(p->m, MOST_ROWS), 1), few = pieces(wanted, p->batches * panels);
	cuts = most(cuts, least(few, pieces(p->m, k->gemm_rows)));
	p->rows = most(pieces(pieces(p->m, cuts), k->gemm_rows) * k->gemm_rows, 1);
	if (cuts == 1)
		p->rows = most(p->m, 1);
	p->row_blocks = pieces(p->m, p->rows);
	double each = panel_ns(p, p->rows, k->gemm_cols);
	p->panels = most(BLOCK_FLOATS / (p->rows * k->gemm_cols), 1);
	p->panels = least(p->panels, most(p->batches * p->row_blocks * panels / wanted, 1));
	if (p->panels > 4)
		p->panels -= p->panels % 4; /* few rows go by four panels */
	p->panels = least(p->panels, panels);
	p->panel_blocks = p->n ? pieces(panels, p->panels) : 0;
	p->blocks = p->row_blocks * p->panel_blocks;
	p->grain = (int64_t)(PIECE_NS / (each * (double)p->panels)) + 1;
}

/* B that is row-major is not packed for a few rows, and not if it stays in the cache as it is. Its last vector may not reach
   beyond its columns; rows apart by a large power of two would fight for the same places in the cache. */
static bool is_direct(const product *p, const native_kernels *k)
{
	if (p->packed || (p->b.col != 1 && p->n > 1) || p->n % k->vector != 0)
		return false;
	return p->m <= 2 * k->gemm_rows || (p->k * p->n <= 1 << 14 && p->b.row % 512 != 0);
}

static clv_status plan_packing(product *p, const native_kernels *k)
{
	int64_t each = product_packed(k->gemm_cols, p->k, p->n), all;
	p->matrices = 1;
	if (each < 0)
		return fail(CLV_E_OVERFLOW, "a matrix of %lld × %lld is too large", (long long)p->k, (long long)p->n);
	for (int d = p->nbatch - 1; d >= 0; d--) {
		p->matrix[d] = p->packed ? p->b.batch[d] : p->b.batch[d] && p->batch[d] > 1 ? p->matrices : 0;
		p->matrices *= p->matrix[d] ? p->batch[d] : 1;
	}
	p->direct = is_direct(p, k);
	p->part = p->nbatch ? p->batch[0] : 1;
	if (p->packed || p->direct)
		return CLV_OK;
	int64_t at_once = p->matrices;
	if (p->nbatch && p->matrix[0]) {
		p->part = least(p->part, most(PACKED_FLOATS / most(each * p->matrix[0], 1), 1));
		at_once = p->part * p->matrix[0];
	}
	if (__builtin_mul_overflow(each, at_once, &all) || (uint64_t)all > SIZE_MAX / sizeof(float))
		return fail(CLV_E_OVERFLOW, "matrices of %lld × %lld are too large", (long long)p->k, (long long)p->n);
	p->scratch = (size_t)all * sizeof(float);
	return CLV_OK;
}

clv_status product_plan(product *p, const native_kernels *k, int threads)
{
	p->batches = 1;
	p->scratch = 0;
	for (int d = 0; d < p->nbatch; d++)
		p->batches *= p->batch[d];
	if (p->dtype != DT_F32 || p->batches == 0 || p->m == 0 || p->n == 0)
		return CLV_OK;
	plan_blocks(p, k, threads);
	return plan_packing(p, k);
}

/* ---- floats ----------------------------------------------------------------------------------------------------------- */

/* A part of a run: batches first … end-1, whose panels are at `panels`, beginning with matrix `base`. */
typedef struct job {
	const product *p;
	const product_run *r;
	const void *panels;
	int64_t first, base;
	int64_t panel_of; /* panels of a matrix */
} job;

static void pack_items(void *ctx, int64_t first, int64_t end, int thread)
{
	const job *j = ctx;
	const product *p = j->p;
	int cols = j->r->kernels->gemm_cols;
	int64_t each = product_packed(cols, p->k, p->n);
	(void)thread;
	for (int64_t i = first; i < end; i++) {
		int64_t matrix = j->base + i / j->panel_of, col = i % j->panel_of * cols, at = 0;
		for (int d = 0; d < p->nbatch; d++)
			if (p->matrix[d])
				at += matrix / p->matrix[d] % p->batch[d] * p->b.batch[d];
		j->r->kernels->gemm_pack(cols, p->k, least(cols, p->n - col), (const float *)j->r->b + at + col * p->b.col,
		                         p->b.row, p->b.col, (float *)j->r->scratch + i / j->panel_of * each + col * p->k);
	}
}

/* D is a row that the kernels add. */
static bool is_bias(const product *p)
{
	return p->beta == 1 && p->alpha == 1 && p->d.row == 0 && (p->d.col == 1 || p->n == 1);
}

static void add_rest(const product *p, const float *d, float *c, int64_t rows, int64_t cols)
{
	float alpha = (float)p->alpha, beta = (float)p->beta;
	for (int64_t i = 0; i < rows; i++, c += p->c.row)
		for (int64_t j = 0; j < cols; j++)
			c[j] = alpha * c[j] + (p->beta != 0 ? beta * d[i * p->d.row + j * p->d.col] : 0);
}

static void do_block(const job *j, int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
	const product *p = j->p;
	const product_run *r = j->r;
	int wide = r->kernels->gemm_cols;
	float *c = (float *)r->c + offset(p, p->c.batch, batch) + row * p->c.row + col;
	const float *d =
		p->beta != 0 ? (const float *)r->d + offset(p, p->d.batch, batch) + row * p->d.row + col * p->d.col : NULL;
	gemm_block g = {.m = rows, .n = cols, .k = p->k, .a_row = p->a.row, .a_k = p->a.col, .c = c, .c_row = p->c.row};
	g.a = (const float *)r->a + offset(p, p->a.batch, batch) + row * p->a.row;
	g.bias = is_bias(p) ? d : NULL;
	if (p->direct) {
		g.b = (const float *)r->b + offset(p, p->b.batch, batch) + col;
		g.b_k = g.b_k_half = p->b.row, g.b_panel = wide;
	} else {
		int64_t matrix = offset(p, p->matrix, batch) - j->base;
		int64_t at = matrix * product_packed(wide, p->k, p->n) + col * p->k;
		g.b = (const char *)j->panels + at * (p->type == PANEL_F32 ? 4 : 2);
		g.type = p->type;
		g.b_k = wide, g.b_k_half = wide / 2, g.b_panel = p->k * wide;
		g.fetch = p->packed;
	}
	r->kernels->gemm(&g);
	if (p->alpha != 1 || (p->beta != 0 && !g.bias))
		add_rest(p, d, c, rows, cols);
	if (r->finish)
		r->finish(r->ctx, c, p->c.row, batch, row, rows, col, cols);
}

/* Blocks of the same columns follow each other: their panels are in the cache. */
static void do_blocks(void *ctx, int64_t first, int64_t end, int thread)
{
	const job *j = ctx;
	const product *p = j->p;
	int64_t wide = p->panels * j->r->kernels->gemm_cols;
	(void)thread;
	for (int64_t i = first; i < end; i++) {
		int64_t block = i % p->blocks, row = block % p->row_blocks * p->rows, col = block / p->row_blocks * wide;
		do_block(j, j->first + i / p->blocks, row, least(p->rows, p->m - row), col, least(wide, p->n - col));
	}
}

static void do_floats(const product *p, const product_run *r)
{
	bool packs = !p->packed && !p->direct && p->k > 0;
	int64_t outer = p->nbatch ? p->batch[0] : 1, inner = p->batches / outer;
	job j = {.p = p, .r = r, .panels = packs ? r->scratch : r->b, .panel_of = pieces(p->n, r->kernels->gemm_cols)};
	for (int64_t first = 0; first < outer; first += p->part) {
		int64_t n = least(p->part, outer - first);
		if (packs && (first == 0 || p->part < outer)) {
			j.base = p->nbatch ? first * p->matrix[0] : 0;
			int64_t matrices = p->nbatch && p->matrix[0] ? n * p->matrix[0] : p->matrices;
			team_run(r->team, matrices * j.panel_of, pieces(1 << 15, p->k * r->kernels->gemm_cols + 1), pack_items, &j);
		}
		j.first = first * inner;
		team_run(r->team, n * inner * p->blocks, p->grain, do_blocks, &j);
	}
}

/* ---- other types ------------------------------------------------------------------------------------------------------- */

enum { STRIPE = 32 };

/* Rows first … end-1 of all batches. Sums of integers wrap, so they are made without signs. */
#define PLAIN(name, type, sum_type, scale)                                                                             \
	static void name(void *ctx, int64_t first, int64_t end, int thread)                                                \
	{                                                                                                                  \
		const job *j = ctx;                                                                                            \
		const product *p = j->p;                                                                                       \
		(void)thread;                                                                                                  \
		for (int64_t i = first; i < end; i++) {                                                                        \
			int64_t batch = i / p->m, row = i % p->m;                                                                  \
			const type *a = (const type *)j->r->a + offset(p, p->a.batch, batch) + row * p->a.row;                     \
			const type *b = (const type *)j->r->b + offset(p, p->b.batch, batch);                                      \
			const type *d = (const type *)j->r->d;                                                                     \
			type *c = (type *)j->r->c + offset(p, p->c.batch, batch) + row * p->c.row;                                 \
			d = p->beta != 0 ? d + offset(p, p->d.batch, batch) + row * p->d.row : NULL;                               \
			for (int64_t col = 0; col < p->n; col += STRIPE) {                                                         \
				sum_type sum[STRIPE] = {0};                                                                            \
				int64_t n = least(STRIPE, p->n - col);                                                                 \
				for (int64_t q = 0; q < p->k; q++)                                                                     \
					for (int64_t v = 0; v < n; v++)                                                                    \
						sum[v] += (sum_type)a[q * p->a.col] * (sum_type)b[q * p->b.row + (col + v) * p->b.col];        \
				for (int64_t v = 0; v < n; v++) {                                                                      \
					sum_type x = (sum_type)(scale)p->alpha * sum[v];                                                   \
					c[(col + v) * p->c.col] =                                                                          \
						(type)(d ? x + (sum_type)(scale)p->beta * (sum_type)d[(col + v) * p->d.col] : x);              \
				}                                                                                                      \
			}                                                                                                          \
		}                                                                                                              \
	}
PLAIN(rows_f64, double, double, double)
PLAIN(rows_i64, int64_t, uint64_t, int64_t)
PLAIN(rows_i32, int32_t, uint64_t, int64_t)
PLAIN(rows_i16, int16_t, uint64_t, int64_t)
PLAIN(rows_i8, int8_t, uint64_t, int64_t)
PLAIN(rows_u8, uint8_t, uint64_t, int64_t)

static team_fn plain(uint8_t type)
{
	switch (type) {
	case DT_F64: return rows_f64;
	case DT_I64: return rows_i64;
	case DT_I32: return rows_i32;
	case DT_I16: return rows_i16;
	case DT_I8: return rows_i8;
	default: return rows_u8;
	}
}

void product_do(const product *p, const product_run *r)
{
	job j = {.p = p, .r = r};
	if (p->batches == 0 || p->m == 0 || p->n == 0)
		return;
	if (p->dtype == DT_F32)
		do_floats(p, r);
	else
		team_run(r->team, p->batches * p->m, pieces(PIECE_NS, p->k * p->n + 1), plain(p->dtype), &j);
}
