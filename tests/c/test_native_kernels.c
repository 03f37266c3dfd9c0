/* Kernels of every instruction set beside the portable ones, on random shapes: odd sizes, gaps, nothing at all. Memory is exactly
 * as large as it has to be, so that sanitizers see who goes beyond. */
#include "support.h"

#include <math.h>
#include <stdlib.h>

#include "native/attention.h"
#include "native/team.h"

static uint64_t seed = 1;

static int64_t draw(int64_t below)
{
	return (int64_t)random_below(&seed, (uint32_t)below);
}

static int64_t any_size(void)
{
	static const int64_t odd[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 300, 1100};
	return odd[draw(sizeof odd / sizeof *odd)];
}

static float *numbers(int64_t n)
{
	float *at = malloc((size_t)n * sizeof *at + 1);
	for (int64_t i = 0; i < n; i++)
		at[i] = (float)(draw(2001) - 1000) / 500;
	return at;
}

/* Sometimes with nan and infinities. */
static float *odd_numbers(int64_t n)
{
	float *at = numbers(n);
	if (n && draw(4) == 0)
		at[draw(n)] = draw(2) ? NAN : -INFINITY;
	return at;
}

static void *copy_of(const void *from, size_t n)
{
	void *to = malloc(n + 1);
	memcpy(to, from, n);
	return to;
}

/* near: of the largest number around, as sums have another order. */
static void check(const char *what, const float *want, const float *got, int64_t n, double near)
{
	double most = 1;
	for (int64_t i = 0; i < n; i++)
		most = isfinite(want[i]) ? fmax(most, fabs(want[i])) : most;
	for (int64_t i = 0; i < n; i++) {
		bool same = want[i] == got[i] || (isnan(want[i]) && isnan(got[i]));
		if (!same && !(fabs((double)want[i] - got[i]) <= near * most))
			fail_msg("%s: element %lld of %lld is %g instead of %g", what, (long long)i, (long long)n, got[i], want[i]);
	}
}

/* ---- rows and columns -------------------------------------------------------------------------------------------------- */

typedef struct pair {
	const native_kernels *base, *k;
} pair;

static pair sets_of(void **state)
{
	pair p = {native_kernels_named("base"), native_kernels_named(*state)};
	if (!p.k)
		skip();
	seed = 1;
	return p;
}

static void reductions(void **state)
{
	pair p = sets_of(state);
	for (int i = 0; i < some_of(400); i++) {
		reduce_op op = (reduce_op)draw(5);
		int64_t rows = draw(6), n = draw(9) || op >= REDUCE_MAX ? any_size() : 0, pitch = n + draw(3);
		float *x = odd_numbers(rows * n), *want = numbers(rows), *got = copy_of(want, (size_t)rows * 4);
		p.base->reduce_rows(op, x, rows, n, want);
		p.k->reduce_rows(op, x, rows, n, got);
		check("rows", want, got, rows, 1e-5 * (double)(n + 1));
		free(x), free(want), free(got);
		/* n columns of `rows + 1` rows */
		x = odd_numbers(rows * pitch + n), want = numbers(n), got = copy_of(want, (size_t)n * 4);
		p.base->reduce_columns(op, x, rows + 1, pitch, n, want);
		p.k->reduce_columns(op, x, rows + 1, pitch, n, got);
		check("columns", want, got, n, 1e-5);
		free(x), free(want), free(got);
	}
}

static void softmax(void **state)
{
	pair p = sets_of(state);
	for (int i = 0; i < some_of(300); i++) {
		int64_t rows = draw(4), n = any_size(), pitch = n + draw(3), all = rows * pitch + n;
		bool log = draw(2);
		float *x = odd_numbers(rows * n), *want = numbers(rows * n), *got = copy_of(x, (size_t)(rows * n) * 4);
		p.base->softmax_rows(x, want, rows, n, log);
		p.k->softmax_rows(got, got, rows, n, log); /* in place, too */
		check("softmax of rows", want, got, rows * n, 1e-5);
		free(x), free(want), free(got);
		x = odd_numbers(all), want = copy_of(x, (size_t)all * 4), got = copy_of(x, (size_t)all * 4);
		p.base->softmax_columns(x, want, rows + 1, pitch, n, log);
		p.k->softmax_columns(x, got, rows + 1, pitch, n, log);
		check("softmax of columns", want, got, all, 1e-5); /* gaps are as they were */
		free(x), free(want), free(got);
	}
}

static void norms(void **state)
{
	pair p = sets_of(state);
	for (int i = 0; i < some_of(300); i++) {
		int64_t n = any_size();
		bool rms = draw(2);
		float *x = odd_numbers(n), *w = numbers(n), *b = numbers(n), *want = numbers(n), *got = numbers(n), s[4];
		p.base->row_statistics(x, n, rms, 1e-5f, &s[0], &s[1]);
		p.k->row_statistics(x, n, rms, 1e-5f, &s[2], &s[3]);
		if (n > 2) /* of one or two numbers the deviation may be nothing but rounding */
			check("statistics", s, s + 2, 2, 1e-4);
		const float *weight = draw(2) ? w : NULL, *bias = draw(2) ? b : NULL;
		p.base->normalize(x, want, n, 0.25f, 1.5f, weight, bias);
		p.k->normalize(x, got, n, 0.25f, 1.5f, weight, bias);
		check("normalize", want, got, n, 1e-6);
		p.base->scale_shift(x, want, n, 0.25f, 1.5f, -2);
		p.k->scale_shift(x, got, n, 0.25f, 1.5f, -2);
		check("scale and shift", want, got, n, 1e-6);
		free(x), free(w), free(b), free(want), free(got);
	}
}

/* ---- images ------------------------------------------------------------------------------------------------------------ */

/* Strides of channels-last images with gaps; gives the elements. */
static int64_t lay_image(int64_t images, int64_t channels, const int64_t *size, int64_t *stride)
{
	stride[1] = 1;
	stride[4] = channels + draw(3);
	stride[3] = size[2] * stride[4] + draw(3);
	stride[2] = size[1] * stride[3];
	stride[0] = size[0] * stride[2];
	return images * stride[0];
}

static void pooling(void **state)
{
	pair p = sets_of(state);
	team *two;
	OK(team_get(2, &two));
	for (int i = 0; i < some_of(300); i++) {
		pool_window at[3][8] = {{{0}}};
		int64_t in[3];
		pool x = {
			.mean = draw(2), .divisor = draw(3) ? 0 : 3, .images = draw(4), .channels = draw(9) ? 1 + draw(70) : 0};
		for (int d = 0; d < 3; d++) {
			in[d] = 1 + draw(8), x.out[d] = draw(12) ? 1 + draw(7) : 0, x.step[d] = 1 + draw(2), x.at[d] = at[d];
			for (int64_t o = 0; o < x.out[d]; o++) {
				at[d][o].first = draw(in[d]);
				at[d][o].count = draw(1 + (in[d] - at[d][o].first + x.step[d] - 1) / x.step[d]);
				at[d][o].size = at[d][o].count + draw(2);
			}
		}
		int64_t nin = lay_image(x.images, x.channels, in, x.in_stride);
		int64_t nout = lay_image(x.images, x.channels, x.out, x.out_stride);
		float *a = odd_numbers(nin), *want = numbers(nout), *got = copy_of(want, (size_t)nout * 4);
		p.base->pool(NULL, &x, a, want);
		p.k->pool(i % 2 ? two : NULL, &x, a, got);
		check("pooling", want, got, nout, 1e-6);
		free(a), free(want), free(got);
	}
	team_put(two);
}

static void resizing(void **state)
{
	pair p = sets_of(state);
	for (int i = 0; i < some_of(300); i++) {
		int64_t at[3][32], count[3][8], in[3];
		float weight[3][32];
		resize x = {.images = draw(4), .channels = draw(9) ? 1 + draw(70) : 0};
		for (int d = 0; d < 3; d++) {
			in[d] = 1 + draw(8), x.out[d] = draw(12) ? 1 + draw(7) : 0, x.taps[d] = 1 + draw(4);
			x.at[d] = at[d], x.count[d] = count[d], x.weight[d] = weight[d];
			for (int64_t o = 0; o < 8; o++)
				count[d][o] = 1 + draw(x.taps[d]);
			for (int64_t o = 0; o < 32; o++)
				at[d][o] = draw(in[d]), weight[d][o] = (float)draw(100) / 50 - 1;
		}
		int64_t nin = lay_image(x.images, x.channels, in, x.in_stride);
		int64_t nout = lay_image(x.images, x.channels, x.out, x.out_stride);
		float *a = odd_numbers(nin), *want = numbers(nout), *got = copy_of(want, (size_t)nout * 4);
		p.base->resize(NULL, &x, a, want);
		p.k->resize(NULL, &x, a, got);
		check("resizing", want, got, nout, 1e-5);
		free(a), free(want), free(got);
	}
}

/* ---- attention --------------------------------------------------------------------------------------------------------- */

static int64_t lay(attention_side *s, const attention *a, int64_t rows, int64_t cols, bool any_way, bool repeats)
{
	bool turned = any_way && draw(3) == 0;
	int64_t gap = draw(3), n;
	s->row = turned ? 1 : cols + gap, s->col = turned ? rows + gap : 1;
	n = turned ? cols * s->col : rows * s->row;
	for (int i = a->nbatch - 1; i >= 0; i--) {
		bool once = repeats && draw(3) == 0;
		s->batch[i] = once ? 0 : n;
		n = once ? n : n * a->batch[i];
	}
	return n;
}

static void attend(const attention *of, const native_kernels *k, team *team, const float *const *x, const void *mask,
                   float *out)
{
	attention a = *of;
	OK(attention_plan(&a, k, team_threads(team)));
	void *scratch = aligned_alloc(64, (a.scratch + 64) / 64 * 64);
	attention_do(&a, &(attention_run){k, team, x[0], x[1], x[2], mask, out, scratch});
	free(scratch);
}

static void attentions(void **state)
{
	pair p = sets_of(state);
	team *two;
	OK(team_get(2, &two));
	for (int i = 0; i < some_of(200); i++) {
		attention a = {.nbatch = (uint8_t)draw(3), .kind = (mask_kind)draw(3), .causal = draw(3) == 0, .scale = 0.3f};
		for (int d = 0; d < a.nbatch; d++)
			a.batch[d] = 1 + draw(3);
		a.queries = draw(9) ? 1 + draw(70) : 0, a.keys = draw(9) ? 1 + draw(90) : 0, a.size = draw(40),
		a.values = draw(40);
		int64_t n[] = {lay(&a.q, &a, a.queries, a.size, true, true), lay(&a.k, &a, a.keys, a.size, true, true),
		               lay(&a.v, &a, a.keys, a.values, true, true), lay(&a.mask, &a, a.queries, a.keys, true, true),
		               lay(&a.out, &a, a.queries, a.values, false, false)};
		float *x[] = {odd_numbers(n[0]), numbers(n[1]), numbers(n[2])}, *mask = numbers(n[3]), *want = numbers(n[4]),
			  *got = copy_of(want, (size_t)n[4] * 4);
		if (a.kind == MASK_FLAGS)
			for (int64_t j = 0; j < n[3]; j++)
				((uint8_t *)mask)[j] = draw(3) > 0;
		attend(&a, p.base, NULL, (const float *const *)x, mask, want);
		attend(&a, p.k, i % 2 ? two : NULL, (const float *const *)x, mask, got);
		check("attention", want, got, n[4], 2e-5);
		free(x[0]), free(x[1]), free(x[2]), free(mask), free(want), free(got);
	}
	team_put(two);
}

/* ---- moves ------------------------------------------------------------------------------------------------------------- */

static void move_plainly(const move *m, uint32_t d, const char *from, char *to)
{
	if (d == m->ndim) {
		memcpy(to, from, m->bytes);
		return;
	}
	for (int64_t i = 0; i < m->d[d].size; i++)
		move_plainly(m, d + 1, from + i * m->d[d].from, to + i * m->d[d].to);
}

static void moves(void **state)
{
	pair p = sets_of(state);
	for (int i = 0; i < some_of(600); i++) {
		move m = {.ndim = (uint32_t)draw(5), .bytes = 1u << draw(4)};
		int64_t order[] = {0, 1, 2, 3}, step = m.bytes, reach = m.bytes, back = 0;
		for (uint32_t d = 0; d < m.ndim; d++) {
			int64_t other = draw(m.ndim), kept = order[d];
			order[d] = order[other], order[other] = kept;
			m.d[d].size = draw(15) ? 1 + draw(d ? 9 : 40) : 0;
		}
		for (uint32_t d = 0; d < m.ndim; d++) { /* in another order than in `to`; repeated, and backwards */
			move_dim *x = &m.d[order[d]];
			x->from = draw(5) ? reach : 0;
			reach = x->from ? reach + reach * (x->size ? x->size - 1 : 0) + m.bytes * draw(2) : reach;
			if (draw(5) == 0 && x->size) {
				back += x->from * (x->size - 1);
				x->from = -x->from;
			}
		}
		for (uint32_t d = m.ndim; d-- > 0; step += m.bytes * draw(2)) {
			m.d[d].to = step;
			step *= m.d[d].size ? m.d[d].size : 1;
		}
		char *from = (char *)numbers(reach / 4 + 1), *want = calloc((size_t)step + 1, 1),
			 *got = calloc((size_t)step + 1, 1);
		m.from = back;
		move_plainly(&m, 0, from + back, want);
		move ready = m;
		move_ready(&ready);
		for (int64_t at = 0, end; at < ready.items; at = end) {
			end = at + 1 + draw(ready.items - at);
			p.k->move(&ready, from, got, at, end);
		}
		assert_memory_equal(want, got, (size_t)step);
		free(from), free(want), free(got);
	}
}

/* A set that the machine has not got is skipped. */
#define EACH_SET(test)                                                                                                 \
	{#test " (base)", test, NULL, NULL, "base"}, {#test " (avx2)", test, NULL, NULL, "avx2"},                          \
		{#test " (avx512)", test, NULL, NULL, "avx512"},                                                               \
	{                                                                                                                  \
#test " (neon)", test, NULL, NULL, "neon"                                                                      \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		EACH_SET(reductions), EACH_SET(softmax),    EACH_SET(norms), EACH_SET(pooling),
		EACH_SET(resizing),   EACH_SET(attentions), EACH_SET(moves),
	};
	return cmocka_run_group_tests_name("agrees with the portable kernels", tests, NULL, NULL);
}
