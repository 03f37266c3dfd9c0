/* How far two rows of numbers are apart, in one type: REAL, with DISTANCE(name) for its functions. No guard: op_distance.c includes
 * it for f32 and for f64. A sum has eight parts, which makes the same bits for whichever rows. */

#define PARTS_OF(step)                                                                                                 \
	for (; k + PARTS <= n; k += PARTS)                                                                                 \
		for (int i = 0; i < PARTS; i++) {                                                                              \
			REAL d = REAL_FN(fabs)(a[k + i] - b[k + i]), *to = &part[i];                                               \
			step;                                                                                                      \
		}                                                                                                              \
	for (; k < n; k++) {                                                                                               \
		REAL d = REAL_FN(fabs)(a[k] - b[k]), *to = &part[k % PARTS];                                                   \
		step;                                                                                                          \
	}                                                                                                                  \
	break

static REAL DISTANCE(of_rows)(const distances *x, const REAL *a, const REAL *b)
{
	REAL part[PARTS] = {0}, all = 0, p = (REAL)x->p;
	int64_t n = x->n, k = 0;
	switch (x->norm) {
	case NORM_COUNT: PARTS_OF(*to += d != d ? d : d != 0);
	case NORM_SUM: PARTS_OF(*to += d);
	case NORM_SQUARES: PARTS_OF(*to += d * d);
	case NORM_LARGEST: PARTS_OF(*to = d > *to ? d : *to); /* nan is passed over, as in torch */
	case NORM_POWER: PARTS_OF(*to += REAL_FN(pow)(d, p));
	}
	for (int i = 0; i < PARTS; i++)
		all = x->norm != NORM_LARGEST ? all + part[i] : part[i] > all ? part[i] : all;
	return x->norm == NORM_SQUARES ? REAL_FN(sqrt)(all) : x->norm == NORM_POWER ? REAL_FN(pow)(all, 1 / p) : all;
}

/* Items are rows of A, of all batches. */
static void DISTANCE(items)(void *ctx, int64_t first, int64_t end, int thread)
{
	const distances_run *r = ctx;
	const distances *x = r->x;
	(void)thread;
	for (int64_t i = first; i < end; i++) {
		const REAL *a = (const REAL *)r->a + row_at(x, &x->a, i / x->rows) + i % x->rows * x->n;
		const REAL *b = (const REAL *)r->b + row_at(x, &x->b, i / x->rows);
		REAL *out = (REAL *)r->out + i * x->cols;
		for (int64_t j = 0; j < x->cols; j++)
			out[j] = DISTANCE(of_rows)(x, a, b + j * x->n);
	}
}

#undef REAL
#undef REAL_FN
#undef DISTANCE
#undef PARTS_OF
