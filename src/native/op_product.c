/* Matrix products: linear, matmul and their kin, with what follows them in the store. All are one product of views
 * A[…, M, K], B[…, K, N] and C[…, M, N]; dimensions that only A and C have become rows where strides allow it. */
#include "native/multiply.h"

#include <ctype.h>
#include <string.h>

/* ---- which nodes -------------------------------------------------------------------------------------------------------- */

typedef struct types {
	const plan *p;
	uint8_t dtype;
	const char *why;
} types;

static void look(void *ctx, value_id v)
{
	types *t = ctx;
	const value *x = &t->p->values.at[v];
	if (x->type != TYPE_TENSOR)
		return;
	if (t->dtype != DT_COUNT && x->dtype != t->dtype)
		t->why = "its tensors are of several types";
	if (x->dtype == DT_BOOL)
		t->why = "there is no product of flags";
	t->dtype = x->dtype;
}

static const char *takes_product(const plan *p, node_id n)
{
	types t = {.p = p, .dtype = DT_COUNT};
	node_each_arg(p, n, look, &t);
	node_each_result(p, n, look, &t);
	return t.why;
}

/* ---- lowering ------------------------------------------------------------------------------------------------------------ */

/* C of sizes […, M, N] is result 0, which has no M or no N where `row` or `col` says that a vector was given. */
static clv_status product_into(lowering *l, node_id n, multiply *m, bool row, bool col)
{
	nt form;
	TRY(low_form(l, n, 0, &form));
	if (form.dtype == DT_F32 && !col)
		TRY(low_epilogue(l, n, &form, form.ndim - 1u, &m->e));
	TRY(low_result(l, n, 0, &form, false, &m->c));
	if (col)
		TRY(mul_with_one(l, m->c, low_at(l, m->c)->ndim, &m->c));
	if (row)
		TRY(mul_with_one(l, m->c, (uint8_t)(low_at(l, m->c)->ndim - 1), &m->c));
	return mul_lower(l, m);
}

static clv_status lower_linear(lowering *l, node_id n)
{
	multiply m = {.alpha = 1, .beta = 1};
	TRY(low_tensor(l, n, 0, &m.a));
	TRY(low_tensor(l, n, 1, &m.b));
	TRY(low_tensor_or_none(l, n, 2, &m.d));
	bool row = low_at(l, m.a)->ndim == 1, col = low_at(l, m.b)->ndim == 1;
	if (row)
		TRY(mul_with_one(l, m.a, 0, &m.a));
	TRY(col ? mul_with_one(l, m.b, 1, &m.b) : mul_turned(l, m.b, &m.b));
	return product_into(l, n, &m, row, col);
}

static clv_status matrices(lowering *l, multiply *m, bool *row, bool *col)
{
	*row = low_at(l, m->a)->ndim == 1;
	*col = low_at(l, m->b)->ndim == 1;
	if (*row)
		TRY(mul_with_one(l, m->a, 0, &m->a));
	if (*col)
		TRY(mul_with_one(l, m->b, 1, &m->b));
	return CLV_OK;
}

static clv_status lower_matmul(lowering *l, node_id n)
{
	multiply m = {.d = NONE, .alpha = 1};
	bool row, col;
	TRY(low_tensor(l, n, 0, &m.a));
	TRY(low_tensor(l, n, 1, &m.b));
	TRY(matrices(l, &m, &row, &col));
	return product_into(l, n, &m, row, col);
}

static clv_status lower_outer(lowering *l, node_id n)
{
	multiply m = {.d = NONE, .alpha = 1};
	TRY(low_tensor(l, n, 0, &m.a));
	TRY(low_tensor(l, n, 1, &m.b));
	TRY(mul_with_one(l, m.a, 1, &m.a));
	TRY(mul_with_one(l, m.b, 0, &m.b));
	return product_into(l, n, &m, false, false);
}

static clv_status addends(lowering *l, node_id n, multiply *m)
{
	TRY(low_tensor(l, n, 0, &m->d));
	TRY(low_tensor(l, n, 1, &m->a));
	TRY(low_tensor(l, n, 2, &m->b));
	TRY(low_real(l, n, 3, 1, &m->beta));
	return low_real(l, n, 4, 1, &m->alpha);
}

static clv_status lower_add_to(lowering *l, node_id n)
{
	multiply m = {0};
	bool row, col;
	TRY(addends(l, n, &m));
	TRY(matrices(l, &m, &row, &col));
	if (col && low_at(l, m.d)->ndim) /* addmv: one number a row */
		TRY(mul_with_one(l, m.d, low_at(l, m.d)->ndim, &m.d));
	return product_into(l, n, &m, row, col);
}

/* The sum over batches is a product whose K is all of their Ks, one behind the other. */
static clv_status lower_add_batches(lowering *l, node_id n)
{
	multiply m = {0};
	TRY(addends(l, n, &m));
	if (low_at(l, m.a)->ndim != 3 || low_at(l, m.b)->ndim != 3)
		return fail(CLV_E_INVALID, "addbmm takes batches of matrices");
	TRY(mul_view(l, m.a, 3, (uint8_t[]){1, 0, 2}, &m.a));
	TRY(low_as_rows(l, m.a, &m.a));
	TRY(low_as_rows(l, m.b, &m.b));
	TRY(mul_merge(l, m.a, 1, &m.a));
	TRY(mul_merge(l, m.b, 0, &m.b));
	return product_into(l, n, &m, false, false);
}

typedef struct activation {
	map_fn fn;
	bool relu;
	epilogue next;
} activation;

static void run_activation(const void *ctx, frame *f, float *block, int64_t ldc, int64_t row, int64_t rows, int64_t col,
                           int64_t cols)
{
	const activation *a = ctx;
	for (int64_t i = 0; i < rows; i++) {
		float *at = block + i * ldc;
		if (!a->relu)
			f->k->map(a->fn, at, at, cols);
		for (int64_t j = 0; a->relu && j < cols; j++)
			at[j] = at[j] < 0 ? 0 : at[j]; /* nan stays */
	}
	if (a->next.run)
		a->next.run(a->next.ctx, f, block, ldc, row, rows, col, cols);
}

clv_status mul_activation(lowering *l, bool gelu, const epilogue *next, epilogue *out)
{
	activation *a = low_alloc(l, sizeof *a);
	TRY_MEM(a);
	*a = (activation){.fn = MAP_GELU, .relu = !gelu, .next = *next};
	*out = (epilogue){run_activation, a};
	return CLV_OK;
}

static clv_status lower_add_activate(lowering *l, node_id n)
{
	multiply m = {0};
	nt form;
	bool gelu;
	TRY(addends(l, n, &m));
	TRY(low_bool(l, n, 5, false, &gelu));
	TRY(low_form(l, n, 0, &form));
	TRY(low_epilogue(l, n, &form, form.ndim - 1u, &m.e));
	TRY(mul_activation(l, gelu, &m.e, &m.e));
	TRY(low_result(l, n, 0, &form, false, &m.c));
	return mul_lower(l, &m);
}

static const char *takes_floats(const plan *p, node_id n)
{
	const char *why = takes_product(p, n);
	const arg *a = &p->args.at[p->nodes.at[n].args];
	if (why || p->nodes.at[n].nargs == 0 || a->kind != ARG_VALUE)
		return why;
	return p->values.at[a->u.v].dtype == DT_F32 ? NULL : "it is of f32 only";
}

/* ---- einsum -------------------------------------------------------------------------------------------------------------- */

/* An equation of two operands, "bij,bjk->bik": which letters each side has. Dimensions of "..." are digits, the last one 7. */
typedef struct equation {
	char side[3][NT_DIMS + 1]; /* A, B, the result */
} equation;

/* Letters of a side, spaces and dots left out. */
static uint32_t letters_of(const char *at)
{
	uint32_t n = 0;
	for (; *at && *at != ',' && *at != '-'; at++)
		n += isalpha((unsigned char)*at) != 0;
	return n;
}

/* hidden: the dimensions that "..." stands for. */
static const char *read_side(const char *at, uint32_t hidden, char *out, bool last)
{
	uint32_t n = 0;
	for (; *at && *at != ',' && strncmp(at, "->", 2) != 0; at++) {
		if (*at == ' ')
			continue;
		if (strncmp(at, "...", 3) == 0 && !strpbrk(out, "01234567") && hidden + n <= NT_DIMS) {
			for (uint32_t d = NT_DIMS - hidden; d < NT_DIMS; d++)
				out[n++] = (char)('0' + d);
			out[n] = 0;
			at += 2;
			continue;
		}
		if (!isalpha((unsigned char)*at) || n == NT_DIMS || memchr(out, *at, n))
			return NULL;
		out[n++] = *at;
		out[n] = 0;
	}
	return last == (*at == 0) ? at : NULL;
}

/* Letters in one operand alone that the result does not have would be sums, those of the result alone unknown. */
static bool fits(const equation *e)
{
	for (const char *c = e->side[0]; *c; c++)
		if (!strchr(e->side[1], *c) && !strchr(e->side[2], *c))
			return false;
	for (const char *c = e->side[1]; *c; c++)
		if (!strchr(e->side[0], *c) && !strchr(e->side[2], *c))
			return false;
	for (const char *c = e->side[2]; *c; c++)
		if (!strchr(e->side[0], *c) && !strchr(e->side[1], *c))
			return false;
	return true;
}

/* Without "->" the result has what "..." stands for, and the letters that come once, in the order of their codes. */
static void imply(equation *e)
{
	uint32_t n = 0;
	for (int c = '0'; c <= 'z' && n < NT_DIMS; c++) {
		bool first = strchr(e->side[0], c) != NULL, second = strchr(e->side[1], c) != NULL;
		if (isalpha(c) ? first != second : isdigit(c) && (first || second))
			e->side[2][n++] = (char)c;
	}
	e->side[2][n] = 0;
}

static uint32_t hidden_of(const char *text, uint32_t ndim)
{
	uint32_t n = letters_of(text);
	return ndim > n ? ndim - n : 0;
}

/* Of operands with so many dimensions. */
static bool read_equation(const char *text, uint32_t a, uint32_t b, equation *e)
{
	const char *comma = strchr(text, ',');
	uint32_t hidden[2] = {hidden_of(text, a), comma ? hidden_of(comma + 1, b) : 0};
	*e = (equation){0};
	text = read_side(text, hidden[0], e->side[0], false);
	if (!text || *text != ',')
		return false;
	bool arrow = strstr(text, "->") != NULL;
	text = read_side(text + 1, hidden[1], e->side[1], !arrow);
	if (!text || *text == ',')
		return false;
	if (arrow && !read_side(text + 2, hidden[0] > hidden[1] ? hidden[0] : hidden[1], e->side[2], true))
		return false;
	if (!arrow)
		imply(e);
	return fits(e);
}

static const char *takes_einsum(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *a = &p->args.at[x->args];
	equation e;
	uint32_t ndim[2] = {0};
	bool two = x->nargs >= 2 && a[0].kind == ARG_STR && a[1].kind == ARG_LIST && a[1].u.list.n == 2;
	for (uint32_t i = 0; two && i < 2; i++) {
		const arg *t = &p->args.at[a[1].u.list.first + i];
		ndim[i] = t->kind == ARG_VALUE ? p->values.at[t->u.v].ndim : 0;
	}
	if (!two || !read_equation(plan_s(p, a[0].u.s), ndim[0], ndim[1], &e))
		return "an equation is taken of two operands, without diagonals and sums over one of them";
	return takes_product(p, n);
}

/* The letters of the result and of both operands in the order batch, M, N, K; where each group ends. */
typedef struct order {
	char letters[2 * NT_DIMS + 1];
	uint32_t batch, m, n, k;
} order;

static void append(order *o, const char *from, const equation *e, bool a, bool b, bool c)
{
	for (; *from; from++)
		if ((strchr(e->side[0], *from) != NULL) == a && (strchr(e->side[1], *from) != NULL) == b &&
		    (strchr(e->side[2], *from) != NULL) == c)
			o->letters[o->k++] = *from;
}

static void sort_letters(const equation *e, order *o)
{
	*o = (order){0};
	append(o, e->side[2], e, true, true, true);
	o->batch = o->k;
	append(o, e->side[2], e, true, false, true);
	o->m = o->k;
	append(o, e->side[2], e, false, true, true);
	o->n = o->k;
	append(o, e->side[0], e, true, true, false);
}

/* A side with its dimensions in the order of `want`; letters that it does not have are left out. */
static clv_status arrange(lowering *l, slot s, const char *side, const char *want, uint32_t n, slot *out)
{
	uint8_t dims[NT_DIMS] = {0}, count = 0; /* a side has each letter once, and at most so many */
	for (uint32_t i = 0; i < n && count < NT_DIMS; i++) {
		const char *at = strchr(side, want[i]);
		if (at)
			dims[count++] = (uint8_t)(at - side);
	}
	return mul_view(l, s, count, dims, out);
}

/* Dimensions from `first` on become one, and a new one of size 1 where there is none. */
static clv_status fold(lowering *l, slot s, uint32_t first, slot *out)
{
	*out = s;
	if (low_at(l, s)->ndim == first)
		return mul_with_one(l, s, (uint8_t)first, out);
	while (low_at(l, *out)->ndim > first + 1) {
		uint8_t last = (uint8_t)(low_at(l, *out)->ndim - 2);
		if (!mul_merges(low_at(l, *out), last))
			TRY(low_as_rows(l, *out, out));
		TRY(mul_merge(l, *out, last, out));
	}
	return CLV_OK;
}

static clv_status same_letters(lowering *l, const slot *s, const equation *e)
{
	for (int i = 0; i < 2; i++)
		if (low_at(l, s[i])->ndim != strlen(e->side[i]))
			return fail(CLV_E_INVALID, "operand %d of einsum has %d dimensions, its letters are \"%s\"", i,
			            low_at(l, s[i])->ndim, e->side[i]);
	for (const char *c = e->side[0]; *c; c++) {
		const char *d = strchr(e->side[1], *c);
		if (d && low_at(l, s[0])->size[c - e->side[0]] != low_at(l, s[1])->size[d - e->side[1]])
			return fail(CLV_E_UNSUPPORTED, "the operands of einsum have different sizes for \"%c\"", *c);
	}
	return CLV_OK;
}

/* C is made as batch, M, N and copied to where the result has its letters. */
static clv_status einsum_result(lowering *l, node_id n, const equation *e, const order *o, multiply *m, slot *result)
{
	nt form;
	slot to;
	TRY(low_form(l, n, 0, &form));
	if (form.ndim != strlen(e->side[2]))
		return fail(CLV_E_VERIFY, "einsum gives %zu dimensions, the plan has %d", strlen(e->side[2]), form.ndim);
	TRY(low_result(l, n, 0, &form, false, &to));
	TRY(arrange(l, to, e->side[2], o->letters, o->n, result));
	form = *low_at(l, *result);
	form.data = NULL;
	m->c = *result;
	if (nt_is_rows(&form))
		return CLV_OK;
	nt_rows(&form);
	return low_temp(l, &form, &m->c);
}

static clv_status lower_einsum(lowering *l, node_id n)
{
	multiply m = {.d = NONE, .alpha = 1};
	equation e;
	order o;
	slot *s, b, result, whole;
	uint32_t count;
	char right[2 * NT_DIMS + 1] = {0};
	TRY(low_tensors(l, n, 1, &s, &count));
	if (count != 2)
		return fail(CLV_E_UNSUPPORTED, "einsum of %u operands", count);
	if (!read_equation(low_str(l, n, 0), low_at(l, s[0])->ndim, low_at(l, s[1])->ndim, &e))
		return fail(CLV_E_UNSUPPORTED, "an equation of einsum is not taken");
	TRY(same_letters(l, s, &e));
	sort_letters(&e, &o);
	TRY(einsum_result(l, n, &e, &o, &m, &result));
	whole = m.c;
	TRY(arrange(l, s[0], e.side[0], o.letters, o.k, &m.a));
	TRY(fold(l, m.a, o.m, &m.a));                /* batch, M…, K */
	TRY(mul_fold_middle(l, m.a, o.batch, &m.a)); /* batch, M, K */
	memcpy(right, o.letters, o.batch);
	memcpy(right + o.batch, o.letters + o.n, o.k - o.n);
	memcpy(right + o.batch + o.k - o.n, o.letters + o.m, o.n - o.m);
	TRY(arrange(l, s[1], e.side[1], right, o.batch + o.k - o.m, &b));
	TRY(fold(l, b, o.batch + o.k - o.n, &b));
	TRY(mul_fold_middle(l, b, o.batch, &m.b));
	TRY(fold(l, m.c, o.m, &m.c));
	TRY(mul_fold_middle(l, m.c, o.batch, &m.c));
	TRY(mul_lower(l, &m));
	return whole == result ? CLV_OK : low_copy(l, whole, result);
}

static const char *takes_grouped(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *a = &p->args.at[x->args], *r = &p->args.at[x->results];
	if (x->nargs < 3 || a[0].kind != ARG_VALUE || a[1].kind != ARG_VALUE || a[2].kind != ARG_VALUE ||
	    p->values.at[a[0].u.v].ndim != 2 || p->values.at[a[1].u.v].ndim != 3)
		return "groups are taken of rows, with a matrix for each";
	uint8_t type = p->values.at[a[0].u.v].dtype;
	if ((x->nargs > 3 && a[3].kind != ARG_NONE) || native_dtype(p, a[0].u.v) != DT_F32 ||
	    p->values.at[a[1].u.v].dtype != type || r->kind != ARG_VALUE || p->values.at[r->u.v].dtype != type)
		return "groups are taken of f32, f16 or bf16, all of one type and without a bias";
	return NULL;
}

static clv_status lower_grouped(lowering *l, node_id n)
{
	multiply m = {.d = NONE, .alpha = 1};
	slot ends;
	nt form;
	TRY(low_tensor(l, n, 0, &m.a));
	TRY(low_tensor(l, n, 1, &m.b));
	TRY(low_tensor(l, n, 2, &ends));
	TRY(low_form(l, n, 0, &form));
	TRY(low_result(l, n, 0, &form, false, &m.c));
	return mul_grouped(l, &m, ends);
}

const native_op native_ops_product[] = {
	{.id = OP__addmm_activation, .takes = takes_floats, .lower = lower_add_activate},
	{.id = OP__grouped_mm, .takes = takes_grouped, .lower = lower_grouped, .checks = true},
	{.id = OP_addbmm, .takes = takes_product, .lower = lower_add_batches},
	{.id = OP_addmm, .takes = takes_product, .lower = lower_add_to},
	{.id = OP_addmv, .takes = takes_product, .lower = lower_add_to},
	{.id = OP_baddbmm, .takes = takes_product, .lower = lower_add_to},
	{.id = OP_bmm, .takes = takes_product, .lower = lower_matmul},
	{.id = OP_dot, .takes = takes_product, .lower = lower_matmul},
	{.id = OP_einsum, .takes = takes_einsum, .lower = lower_einsum},
	{.id = OP_ger, .takes = takes_product, .lower = lower_outer},
	{.id = OP_linalg_matmul, .takes = takes_product, .lower = lower_matmul},
	{.id = OP_linear, .takes = takes_product, .lower = lower_linear},
	{.id = OP_matmul, .takes = takes_product, .lower = lower_matmul},
	{.id = OP_mm, .takes = takes_product, .lower = lower_matmul},
	{.id = OP_mv, .takes = takes_product, .lower = lower_matmul},
	{.id = OP_outer, .takes = takes_product, .lower = lower_outer},
	{.id = OP_vdot, .takes = takes_product, .lower = lower_matmul},
	{.id = OP_UNKNOWN},
};
