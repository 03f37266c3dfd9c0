/* Matrix products of every instruction set beside plain loops in double; a row has the same bits wherever it is. */
#include "support.h"

#include <math.h>
#include <stdlib.h>

#include "file/narrow.h"
#include "native/product.h"
#include "native/team.h"

static const char *const sets[] = {"base", "avx2", "avx512", "neon"};
enum { SETS = sizeof sets / sizeof *sets };

static uint64_t seed = 1;

static uint32_t draw(uint32_t below)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % below;
}

static float number(void)
{
	return ((float)draw(2001) - 1000) / 1000;
}

static float *numbers(int64_t n)
{
	float *at = malloc((size_t)(n + 1) * sizeof *at);
	for (int64_t i = 0; i < n; i++)
		at[i] = number();
	return at;
}

static int64_t any_size(void)
{
	static const int64_t odd[] = {0, 1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 31, 32, 33, 48, 63, 65, 100, 129, 200};
	return odd[draw(sizeof odd / sizeof *odd)];
}

/* One product of random sizes and strides, with its operands. */
typedef struct trial {
	product p;
	float *a, *b, *c, *d, *want, *scale; /* scale: sum of absolute terms, of which the error is a small part */
	int64_t na, nb, nc, nd;
} trial;

/* Strides of a rows × cols matrix, batches around it, either way round and with gaps; gives the elements. */
static int64_t lay(product_side *s, const product *p, int64_t rows, int64_t cols, bool any_way, bool repeats)
{
	int64_t gap = draw(3), n;
	bool turned = any_way && draw(2);
	s->row = turned ? 1 : cols + gap;
	s->col = turned ? rows + gap : 1;
	n = turned ? cols * s->col : rows * s->row;
	for (int i = p->nbatch - 1; i >= 0; i--) {
		bool once = repeats && draw(3) == 0;
		s->batch[i] = once ? 0 : n;
		n = once ? n : n * p->batch[i];
	}
	return n + 1;
}

static void expect(trial *t)
{
	product *p = &t->p;
	int64_t batches = p->nbatch ? p->batch[0] * (p->nbatch > 1 ? p->batch[1] : 1) : 1;
	for (int64_t q = 0; q < batches; q++) {
		int64_t at[4] = {0};
		const product_side *side[] = {&p->a, &p->b, &p->c, &p->d};
		for (int i = 0; i < 4 && p->nbatch; i++)
			at[i] = p->nbatch == 1 ? q * side[i]->batch[0]
			                       : q / p->batch[1] * side[i]->batch[0] + q % p->batch[1] * side[i]->batch[1];
		for (int64_t i = 0; i < p->m; i++)
			for (int64_t j = 0; j < p->n; j++) {
				double sum = 0, scale = 0;
				for (int64_t k = 0; k < p->k; k++) {
					double x =
						(double)t->a[at[0] + i * p->a.row + k * p->a.col] * t->b[at[1] + k * p->b.row + j * p->b.col];
					sum += x;
					scale += fabs(x);
				}
				double d = p->beta != 0 ? p->beta * t->d[at[3] + i * p->d.row + j * p->d.col] : 0;
				t->want[at[2] + i * p->c.row + j] = (float)(p->alpha * sum + d);
				t->scale[at[2] + i * p->c.row + j] = (float)(fabs(p->alpha) * scale + fabs(d));
			}
	}
}

static void make(trial *t)
{
	product *p = &t->p;
	*t = (trial){.p = {.dtype = DT_F32, .alpha = 1}};
	p->nbatch = (uint8_t)draw(3);
	for (int i = 0; i < p->nbatch; i++)
		p->batch[i] = 1 + draw(3);
	p->m = any_size(), p->n = any_size(), p->k = draw(8) ? any_size() : draw(3) ? 300 + draw(700) : 1024;
	if (draw(3) == 0)
		p->alpha = 0.5;
	if (draw(2))
		p->beta = draw(2) ? 1 : -2;
	t->na = lay(&p->a, p, p->m, p->k, true, true);
	t->nb = lay(&p->b, p, p->k, p->n, true, true);
	t->nc = lay(&p->c, p, p->m, p->n, false, false);
	t->nd = lay(&p->d, p, p->m, p->n, true, true);
	if (draw(2))
		p->d.row = 0; /* a bias */
	t->a = numbers(t->na), t->b = numbers(t->nb), t->c = numbers(t->nc), t->d = numbers(t->nd);
	t->want = malloc((size_t)t->nc * sizeof *t->want);
	t->scale = calloc((size_t)t->nc, sizeof *t->scale);
	memcpy(t->want, t->c, (size_t)t->nc * sizeof *t->c);
	expect(t);
}

static void drop(trial *t)
{
	free(t->a), free(t->b), free(t->c), free(t->d), free(t->want), free(t->scale);
}

/* Exactly as many bytes as are asked for: sanitizers see who writes beyond. */
static void run(const product *plan_of, const trial *t, const native_kernels *k, team *team, float *c)
{
	product p = *plan_of;
	float *panels = NULL;
	OK(product_plan(&p, k, team_threads(team)));
	void *scratch = p.scratch ? aligned_alloc(64, (p.scratch + 63) / 64 * 64) : NULL;
	product_run r = {.kernels = k, .team = team, .a = t->a, .b = t->b, .d = t->d, .c = c, .scratch = scratch};
	if (p.packed) {
		panels = malloc((size_t)product_packed(k->gemm_cols, p.k, p.n) * sizeof *panels + 1);
		k->gemm_pack(k->gemm_cols, p.k, p.n, t->b, p.b.row, p.b.col, panels);
		r.b = panels;
	}
	product_do(&p, &r);
	free(scratch);
	free(panels);
}

static void check_close(const trial *t, const float *c, const char *set)
{
	for (int64_t i = 0; i < t->nc; i++) {
		bool same = c[i] == t->want[i] || (isnan(c[i]) && isnan(t->want[i]));
		if (!same && !(fabs((double)c[i] - t->want[i]) <= 1e-5 * t->scale[i] + 1e-30))
			fail_msg("%s, %lld × %lld × %lld, element %lld: %g instead of %g", set, (long long)t->p.m,
			         (long long)t->p.k, (long long)t->p.n, (long long)i, c[i], t->want[i]);
	}
}

static void every_set_agrees_with_a_plain_loop(void **state)
{
	team *two;
	(void)state;
	OK(team_get(2, &two));
	for (int i = 0; i < some_of(600); i++) {
		trial t;
		make(&t);
		for (int s = 0; s < SETS; s++) {
			const native_kernels *k = native_kernels_named(sets[s]);
			if (!k)
				continue;
			float *c = malloc((size_t)t.nc * sizeof *c);
			memcpy(c, t.c, (size_t)t.nc * sizeof *c);
			run(&t.p, &t, k, i % 2 ? two : NULL, c);
			check_close(&t, c, sets[s]);
			if (t.p.nbatch == 0) {
				product packed = t.p;
				packed.packed = true;
				memcpy(c, t.c, (size_t)t.nc * sizeof *c);
				run(&packed, &t, k, NULL, c);
				check_close(&t, c, sets[s]);
			}
			free(c);
		}
		drop(&t);
	}
	team_put(two);
}

/* Rows of C for m rows of A from `first` on, in one run. */
static void some_rows(const trial *t, const native_kernels *k, team *team, bool packed, int64_t first, int64_t m,
                      float *c)
{
	trial part = *t;
	part.p.m = m;
	part.p.packed = packed;
	part.a = t->a + first * t->p.a.row;
	part.d = t->d + first * t->p.d.row;
	run(&part.p, &part, k, team, c);
}

static void a_row_has_the_same_bits_everywhere(void **state)
{
	static const int64_t ks[] = {0, 1, 17, 384, 385, 1000, 1024}, ns[] = {1, 16, 31, 64, 150};
	enum { ROWS = 66 };
	(void)state;
	for (int s = 0; s < SETS; s++)
		for (int i = 0; i < some_of(35); i++) {
			const native_kernels *k = native_kernels_named(sets[s]);
			trial t = {.p = {.dtype = DT_F32, .alpha = 1, .beta = 1, .m = ROWS, .k = ks[i % 7], .n = ns[i / 7]}};
			product *p = &t.p;
			if (!k)
				break;
			t.na = lay(&p->a, p, p->m, p->k, true, false), t.nb = lay(&p->b, p, p->k, p->n, true, false);
			if (p->k == 1024) /* rows that are a page apart */
				p->a.row = p->k, p->a.col = 1;
			p->c.row = p->n, p->c.col = 1, p->d.col = 1;
			t.a = numbers(t.na), t.b = numbers(t.nb), t.d = numbers(p->n);
			size_t row = (size_t)p->n * sizeof(float);
			float *all = malloc(ROWS * row), *c = malloc(ROWS * row);
			some_rows(&t, k, NULL, true, 0, ROWS, all);
			for (int64_t m = 1; m <= ROWS; m += m < 14 ? 1 : 5)
				for (int threads = 1; threads <= 3; threads++) {
					int64_t first = draw((uint32_t)(ROWS + 1 - m));
					team *team;
					OK(team_get(threads, &team));
					some_rows(&t, k, team, draw(2), first, m, c);
					assert_memory_equal(c, (char *)all + (size_t)first * row, (size_t)m * row);
					team_put(team);
				}
			free(t.a), free(t.b), free(t.d), free(all), free(c);
		}
}

/* One row of D has no stride, as a bias has none: that must not change the order in which it is added. */
static void a_row_with_an_addend_of_its_own_has_the_same_bits_alone(void **state)
{
	static const int64_t ks[] = {0, 17, 384, 385, 1000};
	(void)state;
	for (int s = 0; s < SETS; s++)
		for (int i = 0; i < some_of(20); i++) {
			const native_kernels *k = native_kernels_named(sets[s]);
			trial t = {.p = {.dtype = DT_F32, .alpha = 1, .beta = 1, .m = 9, .k = ks[i % 5], .n = i / 5 * 21 + 7}};
			product *p = &t.p;
			if (!k)
				break;
			t.na = lay(&p->a, p, p->m, p->k, true, false), t.nb = lay(&p->b, p, p->k, p->n, true, false);
			p->c.row = p->d.row = p->n, p->c.col = p->d.col = 1;
			t.a = numbers(t.na), t.b = numbers(t.nb), t.d = numbers(p->m * p->n);
			size_t row = (size_t)p->n * sizeof(float);
			float *all = malloc(9 * row), *c = malloc(row);
			some_rows(&t, k, NULL, true, 0, 9, all);
			for (int64_t m = 0; m < 9; m++) {
				trial one = t;
				one.p.d.row = 0;
				one.a += m * p->a.row;
				one.d += m * p->n;
				some_rows(&one, k, NULL, m % 2, 0, 1, c);
				assert_memory_equal(c, (char *)all + (size_t)m * row, row);
			}
			free(t.a), free(t.b), free(t.d), free(all), free(c);
		}
}

/* Panels of f16 or bf16 give the bits of panels of the same numbers as f32. */
static void panels_of_halves_are_as_exact_as_wide_ones(void **state)
{
	(void)state;
	for (int s = 0; s < SETS; s++)
		for (int i = 0; i < some_of(120); i++) {
			const native_kernels *k = native_kernels_named(sets[s]);
			trial t = {
				.p = {.dtype = DT_F32, .alpha = 1, .beta = i % 2, .m = 1 + draw(i % 3 ? 6 : 60), .packed = true}};
			product *p = &t.p;
			if (!k)
				break;
			p->n = any_size() + 1, p->k = draw(4) ? any_size() : 385 + draw(500),
			p->type = i % 4 < 2 ? PANEL_F16 : PANEL_BF16;
			t.na = lay(&p->a, p, p->m, p->k, true, false), t.nb = lay(&p->b, p, p->k, p->n, false, false);
			p->c.row = p->n, p->c.col = 1, p->d.col = 1;
			t.a = numbers(t.na), t.b = numbers(t.nb), t.d = numbers(p->n);
			for (int64_t j = 0; j < t.nb; j++) {
				uint16_t x = p->type == PANEL_F16 ? narrow_to_f16(t.b[j]) : narrow_to_bf16(t.b[j]);
				if (j % 50 == 7)
					x = (uint16_t[]){0x8001, 0x7f80, 0x3ff, 0}[draw(4)]; /* denormals, huge, inf of bf16 */
				t.b[j] = p->type == PANEL_F16 ? narrow_from_f16(x) : narrow_from_bf16(x);
			}
			int64_t count = product_packed(k->gemm_cols, p->k, p->n);
			float *panels = numbers(count), *want = numbers(p->m * p->n), *got = numbers(p->m * p->n);
			uint16_t *halves = malloc((size_t)count * 2 + 1);
			k->gemm_pack(k->gemm_cols, p->k, p->n, t.b, p->b.row, p->b.col, panels);
			for (int64_t j = 0; j < count; j++)
				halves[j] = p->type == PANEL_F16 ? narrow_to_f16(panels[j]) : narrow_to_bf16(panels[j]);
			product wide = *p;
			wide.type = PANEL_F32;
			OK(product_plan(&wide, k, 1));
			OK(product_plan(p, k, 1));
			product_do(&wide, &(product_run){.kernels = k, .a = t.a, .b = panels, .d = t.d, .c = want});
			product_do(p, &(product_run){.kernels = k, .a = t.a, .b = halves, .d = t.d, .c = got});
			for (int64_t j = 0; j < p->m * p->n; j++)
				if (!(got[j] == want[j] || (isnan(got[j]) && isnan(want[j]))))
					fail_msg("%s, %lld × %lld × %lld, element %lld: %g instead of %g", sets[s], (long long)p->m,
					         (long long)p->k, (long long)p->n, (long long)j, got[j], want[j]);
			free(t.a), free(t.b), free(t.d), free(panels), free(halves), free(want), free(got);
		}
}

static void nan_and_inf_stay_in_their_rows_and_columns(void **state)
{
	(void)state;
	for (int s = 0; s < SETS; s++) {
		const native_kernels *k = native_kernels_named(sets[s]);
		trial t = {.p = {.dtype = DT_F32, .alpha = 1, .m = 15, .k = 20, .n = 37}};
		product *p = &t.p;
		float c[15 * 37];
		if (!k)
			continue;
		p->a.row = 20, p->a.col = 1, p->b.row = 37, p->b.col = 1, p->c.row = 37, p->c.col = 1;
		t.a = numbers(15 * 20), t.b = numbers(20 * 37);
		for (int j = 0; j < 37; j++) /* no other infinity meets a 0 */
			t.b[37 + j] = 1;
		for (int i = 0; i < 15; i++)
			t.a[i * 20 + 2] = 1;
		t.a[3 * 20 + 4] = NAN;
		t.a[5 * 20 + 1] = INFINITY;
		t.b[1 * 37 + 8] = 0;
		t.b[2 * 37 + 36] = -INFINITY;
		t.a[7 * 20 + 2] = 0;
		run(p, &t, k, NULL, c);
		for (int64_t i = 0; i < 15; i++)
			for (int64_t j = 0; j < 37; j++) {
				bool nan = i == 3 || (i == 5 && j == 8) || (i == 7 && j == 36);
				if (i == 5 && j == 36)
					continue; /* infinities of either sign */
				assert_int_equal(isnan(c[i * 37 + j]) != 0, nan);
				assert_int_equal(isinf(c[i * 37 + j]) != 0,
				                 !nan && ((i == 5 && t.b[37 + j] != 0) || (j == 36 && t.a[i * 20 + 2] != 0)));
			}
		free(t.a), free(t.b);
	}
}

static void count_block(void *ctx, float *c, int64_t c_row, int64_t batch, int64_t row, int64_t rows, int64_t col,
                        int64_t cols)
{
	int64_t m = ((const product *)ctx)->m, n = ((const product *)ctx)->n;
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < cols; j++)
			c[i * c_row + j] += (float)((batch * m + row + i) * n + col + j) + 1; /* C was 0 */
}

static void finish_sees_every_element_once(void **state)
{
	(void)state;
	for (int i = 0; i < some_of(60); i++) {
		product p = {
			.dtype = DT_F32, .nbatch = 1, .batch = {3}, .m = 1 + draw(300), .n = 1 + draw(300), .k = 5, .alpha = 1};
		team *team;
		OK(team_get(1 + i % 3, &team));
		p.a.row = 5, p.a.col = 1, p.b.row = p.n, p.b.col = 1, p.c.row = p.n, p.c.col = 1, p.c.batch[0] = p.m * p.n;
		const native_kernels *k = native_kernels_here();
		OK(product_plan(&p, k, team_threads(team)));
		float *a = calloc((size_t)p.m * 5, 4), *b = calloc((size_t)p.n * 5, 4),
			  *c = malloc(3 * (size_t)p.m * (size_t)p.n * 4);
		void *scratch = malloc(p.scratch + 1);
		product_do(&p, &(product_run){k, team, a, b, NULL, c, scratch, count_block, &p});
		for (int64_t q = 0; q < 3 * p.m * p.n; q++)
			assert_true(c[q] == (float)q + 1);
		free(a), free(b), free(c), free(scratch);
		team_put(team);
	}
}

#define PLAIN_TYPE(type, id)                                                                                           \
	static void type##_products(void **state)                                                                          \
	{                                                                                                                  \
		type a[2 * 3] = {1, 2, 3, 4, 5, (type)100}, b[3 * 2] = {1, 2, 3, 4, (type)90, 6}, c[4], d[2] = {1, 2};         \
		product p = {.dtype = id, .m = 2, .n = 2, .k = 3, .alpha = 2, .beta = 3};                                      \
		product_run r = {.kernels = native_kernels_here(), .a = a, .b = b, .c = c, .d = d};                            \
		(void)state;                                                                                                   \
		p.a.row = 3, p.a.col = 1, p.b.row = 2, p.b.col = 1, p.c.row = 2, p.c.col = 1, p.d.col = 1;                     \
		OK(product_plan(&p, r.kernels, 1));                                                                            \
		product_do(&p, &r);                                                                                            \
		assert_true(c[0] == (type)(2 * 277 + 3) && c[1] == (type)(2 * 28 + 6));                                        \
		assert_true(c[2] == (type)(2 * 9019 + 3) && c[3] == (type)(2 * 628 + 6));                                      \
	}
PLAIN_TYPE(double, DT_F64)
PLAIN_TYPE(int64_t, DT_I64)
PLAIN_TYPE(int32_t, DT_I32)
PLAIN_TYPE(int16_t, DT_I16)
PLAIN_TYPE(int8_t, DT_I8)
PLAIN_TYPE(uint8_t, DT_U8)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_set_agrees_with_a_plain_loop),
		cmocka_unit_test(a_row_has_the_same_bits_everywhere),
		cmocka_unit_test(a_row_with_an_addend_of_its_own_has_the_same_bits_alone),
		cmocka_unit_test(panels_of_halves_are_as_exact_as_wide_ones),
		cmocka_unit_test(nan_and_inf_stay_in_their_rows_and_columns),
		cmocka_unit_test(finish_sees_every_element_once),
		cmocka_unit_test(double_products),
		cmocka_unit_test(int64_t_products),
		cmocka_unit_test(int32_t_products),
		cmocka_unit_test(int16_t_products),
		cmocka_unit_test(int8_t_products),
		cmocka_unit_test(uint8_t_products),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
