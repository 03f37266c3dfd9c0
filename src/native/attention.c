/* Attention in blocks of query rows: scores by a product with packed keys, softmax, a product with the values. */
#include "native/attention.h"

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t rounded(int64_t n)
{
	return (n + 15) / 16 * 16; /* floats of a cache line, and of the widest vector */
}

/* So many rows of scores fit into the second level of the cache. The number of keys decides alone. */
static int64_t rows_for(int64_t keys)
{
	return keys <= 256 ? 64 : keys <= 1024 ? 48 : keys <= 4096 ? 24 : 12;
}

clv_status attention_plan(attention *a, const native_kernels *k, int threads)
{
	int64_t keys = product_packed(k->gemm_cols, a->size, a->keys), values = 0, bytes;
	a->batches = 1;
	for (int d = 0; d < a->nbatch; d++)
		a->batches *= a->batch[d];
	a->rows = rows_for(a->keys);
	a->blocks = (a->queries + a->rows - 1) / a->rows;
	if (!a->causal && a->blocks) /* as even as can be */
		a->rows = (a->queries + a->blocks - 1) / a->blocks;
	a->direct = (a->v.col == 1 || a->values == 1) && a->values % k->vector == 0;
	if (!a->direct)
		values = product_packed(k->gemm_cols, a->keys, a->values);
	if (keys < 0 || values < 0 || a->keys > INT64_MAX / 4096 || keys > INT64_MAX / 64 || values > INT64_MAX / 64)
		return fail(CLV_E_OVERFLOW, "attention over %lld keys is too large", (long long)a->keys);
	a->scores = rounded(least(a->rows, a->queries) * rounded(a->keys));
	a->key_panels = rounded(keys);
	a->all = a->scores + a->key_panels + rounded(values);
	if (__builtin_mul_overflow(a->all, (int64_t)threads * (int64_t)sizeof(float), &bytes))
		return fail(CLV_E_OVERFLOW, "attention over %lld keys is too large", (long long)a->keys);
	a->scratch = (size_t)bytes;
	double each = (double)least(a->rows, a->queries) * (double)a->keys * (double)(a->size + a->values + 16) / 60;
	a->grain = (int64_t)(5000 / (each + 1)) + 1;
	return CLV_OK;
}

typedef struct job {
	const attention *a;
	const attention_run *r;
} job;

/* The keys and values of a batch, as one thread has them. */
typedef struct pair {
	const float *k, *v;
	float *scores, *key_panels, *value_panels;
} pair;

/* Query heads that share keys come one after the other: these are packed once. */
static void load_pair(const job *j, int64_t batch, pair *p)
{
	const attention *a = j->a;
	const native_kernels *k = j->r->kernels;
	const float *keys = j->r->k + attention_offset(a, a->k.batch, batch),
				*values = j->r->v + attention_offset(a, a->v.batch, batch);
	if (keys != p->k)
		k->gemm_pack(k->gemm_cols, a->size, a->keys, keys, a->k.col, a->k.row, p->key_panels);
	if (values != p->v && !a->direct)
		k->gemm_pack(k->gemm_cols, a->keys, a->values, values, a->v.row, a->v.col, p->value_panels);
	p->k = keys;
	p->v = values;
}

static void score(const job *j, const pair *p, const float *q, int64_t rows, int64_t keys)
{
	const attention *a = j->a;
	int cols = j->r->kernels->gemm_cols;
	gemm_block g = {.m = rows, .n = keys, .k = a->size, .a = q, .a_row = a->q.row, .a_k = a->q.col};
	int64_t last = a->keys - (keys - 1) / cols * cols; /* keys of the panel with the last one that is looked at */
	g.b = p->key_panels, g.b_k = cols, g.b_k_half = last <= cols / 2 ? cols / 2 : cols, g.b_panel = a->size * cols;
	g.c = p->scores, g.c_row = rounded(a->keys);
	j->r->kernels->gemm(&g);
}

static void weigh(const job *j, const pair *p, float *out, int64_t rows, int64_t keys)
{
	const attention *a = j->a;
	int cols = j->r->kernels->gemm_cols;
	gemm_block g = {.m = rows, .n = a->values, .k = keys, .a = p->scores, .a_row = rounded(a->keys), .a_k = 1};
	if (a->direct)
		g.b = p->v, g.b_k = g.b_k_half = a->v.row, g.b_panel = cols;
	else
		g.b = p->value_panels, g.b_k = cols, g.b_k_half = cols / 2, g.b_panel = a->keys * cols;
	g.c = out, g.c_row = a->out.row;
	j->r->kernels->gemm(&g);
}

/* A causal block looks as far as its last row would if there were all of them, so that a row has the same bits at any number
   of queries. */
static void do_block(const job *j, const pair *p, int64_t batch, int64_t first)
{
	const attention *a = j->a;
	const attention_run *r = j->r;
	int64_t rows = least(a->rows, a->queries - first), keys = a->causal ? least(a->keys, first + a->rows) : a->keys;
	int64_t flag = a->kind == MASK_FLAGS ? 1 : 4,
			mask = attention_offset(a, a->mask.batch, batch) + first * a->mask.row;
	float *out = r->out + attention_offset(a, a->out.batch, batch) + first * a->out.row, scales[64];
	score(j, p, r->q + attention_offset(a, a->q.batch, batch) + first * a->q.row, rows, keys);
	attention_rows x = {.rows = rows, .n = keys, .pitch = rounded(a->keys), .sees = keys, .scale = a->scale};
	if (a->causal)
		x.sees = first + 1, x.more = 1;
	if (a->kind != MASK_NONE)
		x.mask = (const char *)r->mask + mask * flag;
	x.kind = a->kind, x.mask_row = a->mask.row, x.mask_col = a->mask.col;
	r->kernels->attention_rows(p->scores, &x, scales);
	weigh(j, p, out, rows, keys);
	for (int64_t i = 0; i < rows; i++, out += a->out.row) {
		float scale = scales[i];
		for (int64_t c = 0; c < a->values; c++)
			out[c] = scale == 0 ? a->nothing : out[c] * scale;
	}
}

static void do_blocks(void *ctx, int64_t first, int64_t end, int thread)
{
	const job *j = ctx;
	const attention *a = j->a;
	pair p = {.scores = (float *)j->r->scratch + thread * a->all};
	p.key_panels = p.scores + a->scores;
	p.value_panels = p.key_panels + a->key_panels;
	for (int64_t i = first; i < end; i++) {
		load_pair(j, i / a->blocks, &p);
		do_block(j, &p, i / a->blocks, i % a->blocks * a->rows);
	}
}

void attention_do(const attention *a, const attention_run *r)
{
	job j = {a, r};
	if (a->batches && a->queries && a->values)
		team_run(r->team, a->batches * a->blocks, a->grain, do_blocks, &j);
}
