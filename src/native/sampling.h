/* Where grid sampling reads an image, in one type: REAL, with SAMPLING(name) for its functions. No guard: op_sample.c includes it
 * for f32 and for f64, because a coordinate must round as torch's does, in the type of the grid. */

static REAL SAMPLING(to_pixels)(REAL at, int64_t size, bool corners)
{
	return corners ? (at + 1) / 2 * (REAL)(size - 1) : ((at + 1) * (REAL)size - 1) / 2;
}

/* Mirrored at both ends of low/2 … high/2, as often as it takes. */
static REAL SAMPLING(reflected)(REAL at, int64_t low, int64_t high)
{
	if (low == high)
		return 0;
	REAL first = (REAL)low / 2, there_and_back = (REAL)(high - low);
	at = REAL_FN(fabs)(at - first);
	REAL rest = at - REAL_FN(trunc)(at / there_and_back) * there_and_back;
	return (rest < there_and_back - rest ? rest : there_and_back - rest) + first;
}

/* Inside of the image, unless padding is zeros. nan becomes 0, as in torch. */
static REAL SAMPLING(padded)(REAL at, int64_t size, sample_padding padding, bool corners)
{
	if (padding == PAD_ZEROS)
		return at;
	if (padding == PAD_REFLECTION)
		at = corners ? SAMPLING(reflected)(at, 0, 2 * (size - 1)) : SAMPLING(reflected)(at, -1, 2 * size - 1);
	at = at > 0 ? at : 0;
	return at < (REAL)(size - 1) ? at : (REAL)(size - 1);
}

/* An index, or -1: outside, or no number. */
static int64_t SAMPLING(index)(REAL at, int64_t size)
{
	return at >= 0 && at < (REAL)size ? (int64_t)at : -1;
}

static REAL SAMPLING(cubic)(REAL x)
{
	const REAL a = (REAL)-0.75;
	x = REAL_FN(fabs)(x);
	return x <= 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}

/* The pixels that one coordinate reads along an axis, with their weights; gives how many. */
static int SAMPLING(taps)(const sampling *s, REAL at, int64_t size, int64_t *index, REAL *weight)
{
	at = SAMPLING(to_pixels)(at, size, s->corners);
	if (s->way != SAMPLE_CUBIC)
		at = SAMPLING(padded)(at, size, s->padding, s->corners);
	if (s->way == SAMPLE_NEAREST) {
		index[0] = SAMPLING(index)(REAL_FN(nearbyint)(at), size);
		weight[0] = 1;
		return 1;
	}
	REAL first = REAL_FN(floor)(at), part = at - first;
	if (s->way == SAMPLE_LINEAR) {
		weight[0] = first + 1 - at, weight[1] = part;
		index[0] = SAMPLING(index)(first, size), index[1] = SAMPLING(index)(first + 1, size);
		return 2;
	}
	for (int k = 0; k < 4; k++) {
		weight[k] = SAMPLING(cubic)((REAL)(k - 1) - part);
		index[k] = SAMPLING(index)(SAMPLING(padded)(first + (REAL)(k - 1), size, s->padding, s->corners), size);
	}
	return 4;
}

static void SAMPLING(pixel)(const sampling *s, const REAL *in, REAL y, REAL x, REAL *out)
{
	int64_t row[4], col[4];
	REAL down[4], across[4];
	int rows = SAMPLING(taps)(s, y, s->in_size[0], row, down), cols = SAMPLING(taps)(s, x, s->in_size[1], col, across);
	for (int64_t c = 0; c < s->channels; c++)
		out[c] = 0;
	for (int j = 0; j < rows; j++)
		for (int i = 0; i < cols; i++) {
			REAL weight = down[j] * across[i];
			bool inside = row[j] >= 0 && col[i] >= 0;
			const REAL *from = inside ? in + row[j] * s->in_stride[0] + col[i] * s->in_stride[1] : NULL;
			for (int64_t c = 0; inside && c < s->channels; c++)
				out[c] += weight * from[c];
			for (int64_t c = 0; !inside && weight != weight && c < s->channels; c++)
				out[c] = weight; /* a coordinate that is no number */
		}
}

static void SAMPLING(rows)(void *ctx, int64_t first, int64_t end, int thread)
{
	const sampling_run *r = ctx;
	const sampling *s = r->s;
	(void)thread;
	for (int64_t i = first; i < end; i++) {
		int64_t number = i / s->out_size[0], row = i % s->out_size[0];
		const REAL *in = (const REAL *)r->in + number * s->in_image;
		const REAL *grid = (const REAL *)r->grid + number * s->grid_stride[0] + row * s->grid_stride[1];
		REAL *out = (REAL *)r->out + number * s->out_image + row * s->out_stride[0];
		for (int64_t x = 0; x < s->out_size[1]; x++, grid += s->grid_stride[2], out += s->out_stride[1])
			SAMPLING(pixel)(s, in, grid[s->grid_stride[3]], grid[0], out);
	}
}

#undef REAL
#undef REAL_FN
#undef SAMPLING
