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

/* Inside of the image, unless padding is zeros. As in torch nan becomes the first pixel of an image, the last of a volume. */
static REAL SAMPLING(padded)(REAL at, const sampling *s, int64_t size)
{
	if (s->padding == PAD_ZEROS)
		return at;
	if (s->padding == PAD_REFLECTION)
		at = s->corners ? SAMPLING(reflected)(at, 0, 2 * (size - 1)) : SAMPLING(reflected)(at, -1, 2 * size - 1);
	at = at > 0 || (s->volume && at != at) ? at : 0;
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
		at = SAMPLING(padded)(at, s, size);
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
		index[k] = SAMPLING(index)(SAMPLING(padded)(first + (REAL)(k - 1), s, size), size);
	}
	return 4;
}

/* from NULL: outside. A coordinate that is no number shows in an image alone. */
static void SAMPLING(add)(const sampling *s, const REAL *from, REAL weight, REAL *out)
{
	for (int64_t c = 0; from && c < s->channels; c++)
		out[c] += weight * from[c];
	for (int64_t c = 0; !from && !s->volume && weight != weight && c < s->channels; c++)
		out[c] = weight;
}

static void SAMPLING(pixel)(const sampling *s, const REAL *in, const REAL at[3], REAL *out)
{
	int64_t index[3][4] = {{0}};
	REAL weight[3][4] = {{1}};
	int taps[3] = {1};
	for (int d = s->volume ? 0 : 1; d < 3; d++)
		taps[d] = SAMPLING(taps)(s, at[d], s->in_size[d], index[d], weight[d]);
	for (int64_t c = 0; c < s->channels; c++)
		out[c] = 0;
	for (int k = 0; k < taps[0]; k++)
		for (int j = 0; j < taps[1]; j++)
			for (int i = 0; i < taps[2]; i++) {
				int64_t z = index[0][k], y = index[1][j], x = index[2][i];
				bool inside = z >= 0 && y >= 0 && x >= 0;
				const int64_t *step = s->in_stride;
				const REAL *from = inside ? in + z * step[0] + y * step[1] + x * step[2] : NULL;
				SAMPLING(add)(s, from, weight[0][k] * weight[1][j] * weight[2][i], out);
			}
}

static void SAMPLING(rows)(void *ctx, int64_t first, int64_t end, int thread)
{
	const sampling_run *r = ctx;
	const sampling *s = r->s;
	int64_t coordinate = s->grid_coordinate;
	(void)thread;
	for (int64_t i = first; i < end; i++) {
		int64_t row = i % s->out_size[1], plane = i / s->out_size[1] % s->out_size[0];
		int64_t number = i / s->out_size[1] / s->out_size[0];
		const REAL *in = (const REAL *)r->in + number * s->in_image;
		const REAL *grid =
			(const REAL *)r->grid + number * s->grid_image + plane * s->grid_stride[0] + row * s->grid_stride[1];
		REAL *out = (REAL *)r->out + number * s->out_image + plane * s->out_stride[0] + row * s->out_stride[1];
		for (int64_t x = 0; x < s->out_size[2]; x++, grid += s->grid_stride[2], out += s->out_stride[2]) {
			const REAL at[3] = {s->volume ? grid[2 * coordinate] : 0, grid[coordinate], grid[0]};
			SAMPLING(pixel)(s, in, at, out);
		}
	}
}

#undef REAL
#undef REAL_FN
#undef SAMPLING
