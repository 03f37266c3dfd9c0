/* A matrix product as a step: dimensions become rows and batches, constant weights become panels. */
#include "native/multiply.h"

#include <math.h>
#include <string.h>

#include "tensor/tensor.h"

/* ---- views ---------------------------------------------------------------------------------------------------------------- */

clv_status mul_view(lowering *l, slot s, uint8_t ndim, const uint8_t *dims, slot *out)
{
	const nt *t = low_at(l, s);
	nt form = {.dtype = t->dtype, .ndim = ndim};
	if (ndim > NT_DIMS)
		return fail(CLV_E_UNSUPPORTED, "a product of tensors of more than %d dimensions", NT_DIMS);
	for (uint8_t d = 0; d < ndim; d++) {
		form.size[d] = t->size[dims[d]];
		form.stride[d] = t->stride[dims[d]];
	}
	return low_part(l, s, 0, &form, out);
}

clv_status mul_turned(lowering *l, slot s, slot *out)
{
	if (low_at(l, s)->ndim != 2)
		return fail(CLV_E_VERIFY, "a weight is no matrix");
	return mul_view(l, s, 2, (uint8_t[]){1, 0}, out);
}

clv_status mul_with_one(lowering *l, slot s, uint32_t at, slot *out)
{
	nt form = *low_at(l, s);
	if (form.ndim == NT_DIMS || at > form.ndim)
		return fail(CLV_E_UNSUPPORTED, "a product of tensors of more than %d dimensions", NT_DIMS);
	memmove(form.size + at + 1, form.size + at, (form.ndim - at) * sizeof *form.size);
	memmove(form.stride + at + 1, form.stride + at, (form.ndim - at) * sizeof *form.stride);
	form.size[at] = 1;
	form.stride[at] = 0;
	form.ndim++;
	return low_part(l, s, 0, &form, out);
}

bool mul_merges(const nt *t, uint8_t d)
{
	return t->size[d] == 1 || t->size[d + 1] == 1 || t->stride[d] == t->stride[d + 1] * t->size[d + 1];
}

clv_status mul_merge(lowering *l, slot s, uint8_t d, slot *out)
{
	nt form = *low_at(l, s);
	if (d + 1 >= form.ndim || !mul_merges(&form, d))
		return fail(CLV_E_UNSUPPORTED, "the strides of a factor do not fit");
	if (form.size[d + 1] != 1)
		form.stride[d] = form.stride[d + 1];
	form.size[d] *= form.size[d + 1];
	for (uint8_t i = (uint8_t)(d + 1); i + 1 < form.ndim; i++) {
		form.size[i] = form.size[i + 1];
		form.stride[i] = form.stride[i + 1];
	}
	form.ndim--;
	return low_part(l, s, 0, &form, out);
}

clv_status mul_fold_middle(lowering *l, slot s, uint32_t first, slot *out)
{
	uint8_t n = low_at(l, s)->ndim;
	*out = s;
	if (n == first + 1)
		return mul_with_one(l, s, first, out);
	while (low_at(l, *out)->ndim > first + 2) {
		if (!mul_merges(low_at(l, *out), (uint8_t)first))
			TRY(low_as_rows(l, *out, out));
		TRY(mul_merge(l, *out, (uint8_t)first, out));
	}
	return CLV_OK;
}

/* ---- panels of constants --------------------------------------------------------------------------------------------------- */

typedef struct panel_spec {
	int32_t cols;
} panel_spec;

static int64_t matrices_of(const nt *t)
{
	int64_t n = 1;
	for (uint8_t d = 0; d + 2 < t->ndim; d++)
		n *= t->size[d];
	return n;
}

static size_t panel_bytes(const nt *t, const void *spec)
{
	int64_t each = product_packed(((const panel_spec *)spec)->cols, t->size[t->ndim - 2], t->size[t->ndim - 1]), all;
	if (each < 0 || __builtin_mul_overflow(each, matrices_of(t), &all) || all > INT64_MAX / 8)
		return SIZE_MAX;
	return (size_t)all * dtype_bytes(t->dtype);
}

/* The same panels of 16-bit elements. */
static void pack_halves(int64_t cols, int64_t k, int64_t n, const uint16_t *b, int64_t b_k, int64_t b_n, uint16_t *out)
{
	for (int64_t col = 0; col < n; col += cols) {
		int64_t there = n - col < cols ? n - col : cols, width = there <= cols / 2 ? cols / 2 : cols;
		for (int64_t i = 0; i < k; i++, out += width) {
			for (int64_t j = 0; j < there; j++)
				out[j] = b[i * b_k + (col + j) * b_n];
			memset(out + there, 0, (size_t)(width - there) * sizeof *out);
		}
	}
}

static void pack_panels(const nt *t, const void *spec, void *out)
{
	const native_kernels *k = native_kernels_here();
	int cols = ((const panel_spec *)spec)->cols;
	int64_t rows = t->size[t->ndim - 2], n = t->size[t->ndim - 1], each = product_packed(cols, rows, n);
	for (int64_t i = 0; i < matrices_of(t); i++) {
		int64_t at = 0, rest = i;
		for (int d = t->ndim - 3; d >= 0; d--) {
			at += rest % t->size[d] * t->stride[d];
			rest /= t->size[d];
		}
		if (t->dtype == DT_F32)
			k->gemm_pack(cols, rows, n, (const float *)t->data + at, t->stride[t->ndim - 2], t->stride[t->ndim - 1],
			             (float *)out + i * each);
		else
			pack_halves(cols, rows, n, (const uint16_t *)t->data + at, t->stride[t->ndim - 2], t->stride[t->ndim - 1],
			            (uint16_t *)out + i * each);
	}
}

/* ---- sizes and strides ------------------------------------------------------------------------------------------------------ */

typedef struct step {
	product p;
	slot a, b, c, d, scratch;
	const void *panels; /* NULL: B is not constant */
	panel_type type;    /* of them */
	epilogue e;
} step;

/* One dimension that is no K and no N: strides in all operands. */
typedef struct dim {
	int64_t size, a, b, c, d;
} dim;

static bool join(dim *outer, const dim *inner)
{
	if (outer->a != inner->a * inner->size || outer->b != inner->b * inner->size ||
	    outer->c != inner->c * inner->size || outer->d != inner->d * inner->size)
		return false;
	int64_t size = outer->size * inner->size;
	*outer = *inner;
	outer->size = size;
	return true;
}

/* Rows are the innermost dimensions for which B is the same. */
static void set_dims(product *p, dim *dims, uint32_t n)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < n; i++)
		if (dims[i].size != 1 && !(kept && join(&dims[kept - 1], &dims[i])))
			dims[kept++] = dims[i];
	p->m = 1;
	if (kept && dims[kept - 1].b == 0) {
		const dim *rows = &dims[--kept];
		p->m = rows->size;
		p->a.row = rows->a, p->c.row = rows->c, p->d.row = rows->d;
	}
	p->nbatch = (uint8_t)kept;
	for (uint32_t i = 0; i < kept; i++) {
		p->batch[i] = dims[i].size;
		p->a.batch[i] = dims[i].a, p->b.batch[i] = dims[i].b, p->c.batch[i] = dims[i].c, p->d.batch[i] = dims[i].d;
	}
}

clv_status mul_spread(const nt *t, const nt *c, nt *out)
{
	int64_t size[NT_DIMS];
	memcpy(size, c->size, sizeof size);
	if (t->ndim < 2 || t->ndim > c->ndim)
		return fail(CLV_E_VERIFY, "a factor of %d dimensions does not fit a product of %d", t->ndim, c->ndim);
	size[c->ndim - 2] = t->size[t->ndim - 2];
	size[c->ndim - 1] = t->size[t->ndim - 1];
	return nt_expand(t, c->ndim, size, out)
	           ? CLV_OK
	           : fail(CLV_E_VERIFY, "the batches of a factor do not fit those of the product");
}

static clv_status check_sizes(const nt *a, const nt *b, const nt *c)
{
	uint8_t n = c->ndim;
	if (a->size[n - 1] == b->size[n - 2] && a->size[n - 2] == c->size[n - 2] && b->size[n - 1] == c->size[n - 1])
		return CLV_OK;
	return fail(CLV_E_VERIFY, "a product of %lld×%lld and %lld×%lld is not %lld×%lld", (long long)a->size[n - 2],
	            (long long)a->size[n - 1], (long long)b->size[n - 2], (long long)b->size[n - 1],
	            (long long)c->size[n - 2], (long long)c->size[n - 1]);
}

/* A product has the batches of its factors, and no more: what is added to it, or done in its store, was sized by them. */
static clv_status check_batches(const nt *a, const nt *b, const nt *c)
{
	for (uint8_t n = c->ndim, i = 3; i <= n; i++)
		if (c->size[n - i] > 1 && (a->ndim < i || a->size[a->ndim - i] == 1) &&
		    (b->ndim < i || b->size[b->ndim - i] == 1))
			return fail(CLV_E_VERIFY, "a product has more batches than its factors");
	return CLV_OK;
}

/* Strides of B count matrices where it is panels: those of its own batches, one after the other. */
static void count_matrices(const nt *own, nt *b)
{
	int64_t at = 1;
	for (int d = own->ndim - 3, to = b->ndim - 3; d >= 0; d--, to--) {
		b->stride[to] = own->size[d] == 1 ? 0 : at;
		at *= own->size[d];
	}
}

static clv_status set_product(lowering *l, step *s, const multiply *m)
{
	const nt *c = low_at(l, s->c), *own = low_at(l, s->b);
	nt a, b, d = {0};
	uint8_t n = c->ndim;
	dim dims[NT_DIMS];
	if (n < 2)
		return fail(CLV_E_VERIFY, "a product is no matrix");
	TRY(mul_spread(low_at(l, s->a), c, &a));
	TRY(mul_spread(own, c, &b));
	TRY(check_sizes(&a, &b, c));
	TRY(check_batches(low_at(l, s->a), own, c));
	if (s->d != NONE && !nt_expand(low_at(l, s->d), n, c->size, &d))
		return fail(CLV_E_VERIFY, "what is added to a product does not fit it");
	s->p = (product){.dtype = c->dtype,
	                 .k = a.size[n - 1],
	                 .n = c->size[n - 1],
	                 .alpha = m->alpha,
	                 .packed = s->panels != NULL,
	                 .type = s->type};
	s->p.beta = s->d == NONE ? 0 : m->beta;
	s->p.a.col = a.stride[n - 1], s->p.c.col = c->stride[n - 1], s->p.d.col = d.stride[n - 1];
	s->p.b.row = b.stride[n - 2], s->p.b.col = b.stride[n - 1];
	if (s->panels)
		count_matrices(own, &b);
	for (uint8_t i = 0; i + 1 < n; i++)
		dims[i] = (dim){c->size[i], a.stride[i], i + 2 < n ? b.stride[i] : 0, c->stride[i], d.stride[i]};
	set_dims(&s->p, dims, n - 1u);
	return product_plan(&s->p, low_kernels(l), low_threads(l));
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------- */

typedef struct running {
	const step *s;
	frame *f;
} running;

static void run_epilogue(void *ctx, float *c, int64_t c_row, int64_t batch, int64_t row, int64_t rows, int64_t col,
                         int64_t cols)
{
	running *r = ctx;
	r->s->e.run(r->s->e.ctx, r->f, c, c_row, batch * r->s->p.m + row, rows, col, cols);
}

static clv_status run_step(const void *params, frame *f)
{
	const step *s = params;
	running r = {s, f};
	product_do(&s->p, &(product_run){.kernels = f->k,
	                                 .team = f->team,
	                                 .a = f->t[s->a].data,
	                                 .b = s->panels ? s->panels : f->t[s->b].data,
	                                 .d = s->d == NONE ? NULL : f->t[s->d].data,
	                                 .c = f->t[s->c].data,
	                                 .scratch = s->scratch == NONE ? NULL : f->t[s->scratch].data,
	                                 .finish = s->e.run ? run_epilogue : NULL,
	                                 .ctx = &r});
	return CLV_OK;
}

static clv_status as_floats(lowering *l, slot s, slot *out)
{
	*out = s;
	if (s == NONE || !is_half(low_at(l, s)->dtype))
		return CLV_OK;
	nt form = *low_at(l, s);
	form.dtype = DT_F32;
	nt_rows(&form);
	TRY(low_temp(l, &form, out));
	return low_copy(l, s, *out);
}

/* Kernels write rows of floats: other results are made beside and copied. */
static clv_status where_to_write(lowering *l, slot c, slot *out)
{
	nt form = *low_at(l, c);
	bool rows = form.ndim && (form.stride[form.ndim - 1] == 1 || form.size[form.ndim - 1] == 1);
	*out = c;
	if (form.dtype != DT_F32 && !is_half(form.dtype))
		return CLV_OK;
	if (form.dtype == DT_F32 && rows)
		return CLV_OK;
	form.dtype = DT_F32;
	nt_rows(&form);
	return low_temp(l, &form, out);
}

static clv_status panels_of(lowering *l, step *s)
{
	uint8_t type = low_at(l, s->b)->dtype;
	panel_spec spec = {low_kernels(l)->gemm_cols};
	packing k = {is_half(type) ? "gemm-halves/1" : "gemm-panels/1", &spec, sizeof spec, panel_bytes, pack_panels};
	if (!low_is_constant(l, s->b) || low_at(l, s->b)->ndim < 2 || (type != DT_F32 && !is_half(type)))
		return as_floats(l, s->b, &s->b);
	s->type = type == DT_F16 ? PANEL_F16 : type == DT_BF16 ? PANEL_BF16 : PANEL_F32;
	return low_packed(l, s->b, &k, &s->panels);
}

/* Factors of integers are integers. */
static clv_status check_factors(const lowering *l, const multiply *m)
{
	uint8_t type = low_at(l, m->c)->dtype;
	bool floats = type == DT_F32 || type == DT_F64 || type == DT_F16 || type == DT_BF16;
	double most = 0x1p53;
	if (floats ||
	    (fabs(m->alpha) <= most && fabs(m->beta) <= most && trunc(m->alpha) == m->alpha && trunc(m->beta) == m->beta))
		return CLV_OK;
	return fail(CLV_E_UNSUPPORTED, "a product of integers is scaled by a fraction, or by more than 2^53");
}

static clv_status make_step(lowering *l, const multiply *m, step **out)
{
	step *s = low_alloc(l, sizeof *s);
	TRY_MEM(s);
	TRY(check_factors(l, m));
	*s = (step){.b = m->b, .scratch = NONE, .e = m->e};
	TRY(as_floats(l, m->a, &s->a));
	TRY(as_floats(l, m->beta != 0 ? m->d : NONE, &s->d));
	TRY(where_to_write(l, m->c, &s->c));
	TRY(panels_of(l, s));
	TRY(set_product(l, s, m));
	if (s->p.scratch)
		TRY(low_scratch(l, s->p.scratch, &s->scratch));
	*out = s;
	return CLV_OK;
}

clv_status mul_lower(lowering *l, const multiply *m)
{
	step *s;
	TRY(make_step(l, m, &s));
	TRY(low_step(l, run_step, s));
	return s->c == m->c ? CLV_OK : low_copy(l, s->c, m->c);
}

clv_status mul_prepare(lowering *l, const multiply *m, const void **out)
{
	step *s;
	TRY(make_step(l, m, &s));
	*out = s;
	return s->a == m->a && s->c == m->c && (m->beta == 0 || s->d == m->d)
	           ? CLV_OK
	           : fail(CLV_E_UNSUPPORTED, "factors are no rows of floats");
}

void mul_run(const void *prepared, frame *f)
{
	run_step(prepared, f); /* a product cannot fail */
}

/* ---- a matrix for each group of rows ------------------------------------------------------------------------------------------- */

typedef struct grouped {
	step s;
	slot ends;
	int64_t groups, rows;
	int64_t matrix; /* bytes from one matrix to the next */
} grouped;

/* Groups are rows that follow each other; how many each has is known in the run alone. */
static clv_status run_grouped(const void *params, frame *f)
{
	const grouped *g = params;
	const int32_t *ends = (const int32_t *)f->t[g->ends].data;
	const char *a = f->t[g->s.a].data, *b = g->s.panels ? g->s.panels : f->t[g->s.b].data;
	char *c = f->t[g->s.c].data;
	product p = g->s.p;
	int64_t at = 0;
	for (int64_t i = 0; i < g->groups; at = ends[i++]) {
		if (ends[i] < at || ends[i] > g->rows)
			return fail(CLV_E_INPUT, "the groups of a grouped product do not fit its %lld rows", (long long)g->rows);
		p.m = ends[i] - at;
		TRY(product_plan(&p, f->k, team_threads(f->team)));
		if (p.m == 0)
			continue;
		product_do(&p, &(product_run){.kernels = f->k,
		                              .team = f->team,
		                              .a = (const float *)a + at * p.a.row,
		                              .b = b + i * g->matrix,
		                              .c = (float *)c + at * p.c.row,
		                              .scratch = g->s.scratch == NONE ? NULL : f->t[g->s.scratch].data});
	}
	for (; at < g->rows; at++) /* torch leaves them as they are */
		memset((float *)c + at * p.c.row, 0, (size_t)p.n * sizeof(float));
	return CLV_OK;
}

clv_status mul_grouped(lowering *l, const multiply *m, slot ends)
{
	grouped *g = low_alloc(l, sizeof *g);
	TRY_MEM(g);
	g->s = (step){.b = m->b, .d = NONE, .scratch = NONE};
	TRY(as_floats(l, m->a, &g->s.a));
	TRY(where_to_write(l, m->c, &g->s.c));
	TRY(panels_of(l, &g->s));
	const nt a = *low_at(l, g->s.a), b = *low_at(l, g->s.b), c = *low_at(l, g->s.c), at = *low_at(l, ends);
	if (a.ndim != 2 || b.ndim != 3 || c.ndim != 2 || at.ndim != 1 || at.dtype != DT_I32 || at.size[0] != b.size[0] ||
	    a.size[1] != b.size[1] || c.size[0] != a.size[0] || c.size[1] != b.size[2] || a.dtype != DT_F32 ||
	    c.dtype != DT_F32)
		return fail(CLV_E_VERIFY, "the factors of a grouped product do not fit together");
	g->groups = at.size[0], g->rows = a.size[0];
	g->s.p = (product){.dtype = DT_F32,
	                   .m = a.size[0],
	                   .n = b.size[2],
	                   .k = a.size[1],
	                   .alpha = 1,
	                   .packed = g->s.panels != NULL,
	                   .type = g->s.type,
	                   .a = {.row = a.stride[0], .col = a.stride[1]},
	                   .b = {.row = b.stride[1], .col = b.stride[2]},
	                   .c = {.row = c.stride[0], .col = c.stride[1]}};
	TRY(product_plan(&g->s.p, low_kernels(l), low_threads(l)));
	int64_t each = g->s.panels ? product_packed(low_kernels(l)->gemm_cols, g->s.p.k, g->s.p.n) : b.stride[0];
	g->matrix = each * (int64_t)dtype_bytes(b.dtype);
	if (g->s.p.scratch)
		TRY(low_scratch(l, g->s.p.scratch, &g->s.scratch));
	TRY(low_as_rows(l, ends, &g->ends));
	TRY(low_step(l, run_grouped, g));
	return g->s.c == m->c ? CLV_OK : low_copy(l, g->s.c, m->c);
}
