/* Floats in 1 to 8 bits each: clipped, quantised per channel, packed, entropy-coded by zstd.
 * An element is low + k * step with a k of that many bits; low and step are those of its channel, both f32. The writer tries
 * ranges from the whole of a channel to a small part of it, and takes the one that leaves the least squares; steps have few
 * digits, so that those of many channels take little room.
 *
 * Before zstd the bytes are: first bytes of all lows, then the second ones and so on, the steps likewise, and the codes. A
 * byte holds as many codes as fit whole, so that zstd, which codes bytes, sees neighbours together and can spend less than
 * a bit on an element. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "file/narrow.h"

enum {
	BLOCK = 512,
	PIECE = 32,
	ENOUGH = 64 * 1024,
	CUTS = 8,
	PHASES = 2,
	TRIES = CUTS * PHASES,
	WAYS = 3,
	CODES = 256
};

static const double cuts[CUTS] = {1, 0.8, 0.65, 0.5, 0.4, 0.3, 0.22, 0.15};

unsigned encoding_bits(encoding e)
{
	return e >= ENC_Q1 && e <= ENC_Q8 ? (unsigned)(e - ENC_Q1) + 1 : 0;
}

static size_t item_size(dtype d)
{
	return dtype_bits(d) / 8;
}

clv_status quant_bytes(const quant_layout *q, size_t count, size_t *out)
{
	size_t each = 8 / q->bits, codes = count / each + (count % each != 0), numbers;
	if (__builtin_mul_overflow(q->channels, 2 * sizeof(float), &numbers) || __builtin_add_overflow(codes, numbers, out))
		return fail(CLV_E_OVERFLOW, "%zu channels are too many", q->channels);
	return CLV_OK;
}

/* ---- channels --------------------------------------------------------------------------------------------------- */

/* The channel of each of the elements i to i + n. */
static void channels_at(const quant_layout *q, size_t i, size_t n, size_t *out)
{
	size_t c = i / q->run % q->channels, left = q->run - i % q->run;
	for (size_t k = 0; k < n; k++) {
		out[k] = c;
		if (--left == 0) {
			left = q->run;
			c = c + 1 < q->channels ? c + 1 : 0;
		}
	}
}

typedef struct range {
	double low, step; /* both are f32; step 0: all of the channel is low */
} range;

/* Elements i and on as codes, and what these stand for. */
static void to_codes(const quant_layout *q, const range *of, size_t i, const double *v, size_t n, uint8_t *codes,
                     double *back)
{
	size_t channel[BLOCK];
	double most = (1u << q->bits) - 1;
	channels_at(q, i, n, channel);
	for (size_t k = 0; k < n; k++) {
		range r = of[channel[k]];
		double at = r.step > 0 ? (v[k] - r.low) / r.step : 0;
		at = at > most ? most : at;
		at = at < 0 ? 0 : at;
		at = at + 0x1.8p52 - 0x1.8p52; /* nearest, ties to even */
		codes[k] = (uint8_t)at;
		back[k] = r.low + at * r.step;
	}
}

static void from_codes(const quant_layout *q, const range *of, size_t i, const uint8_t *codes, size_t n, double *out)
{
	size_t channel[BLOCK];
	channels_at(q, i, n, channel);
	for (size_t k = 0; k < n; k++)
		out[k] = of[channel[k]].low + codes[k] * of[channel[k]].step;
}

static void pack_codes(unsigned bits, const uint8_t *codes, size_t n, uint8_t *to)
{
	size_t each = 8 / bits;
	for (size_t k = 0; k < n; k += each) {
		unsigned byte = 0;
		for (size_t j = 0; j < each && k + j < n; j++)
			byte |= (unsigned)codes[k + j] << j * bits;
		*to++ = (uint8_t)byte;
	}
}

static void unpack_codes(unsigned bits, const uint8_t *from, size_t n, uint8_t *codes)
{
	size_t each = 8 / bits;
	unsigned mask = (1u << bits) - 1;
	for (size_t k = 0; k < n; k++)
		codes[k] = (uint8_t)((unsigned)from[k / each] >> k % each * bits & mask);
}

/* Bytes of the same place in their numbers are side by side. */
static void put_number(uint8_t *to, size_t i, size_t n, double v)
{
	float f = (float)v;
	uint8_t bytes[sizeof f];
	memcpy(bytes, &f, sizeof f);
	for (size_t b = 0; b < sizeof f; b++)
		to[b * n + i] = bytes[b];
}

static double get_number(const uint8_t *from, size_t i, size_t n)
{
	float f;
	uint8_t bytes[sizeof f];
	for (size_t b = 0; b < sizeof f; b++)
		bytes[b] = from[b * n + i];
	memcpy(&f, bytes, sizeof f);
	return (double)f;
}

/* ---- ranges that are chosen ------------------------------------------------------------------------------------- */

typedef struct extent {
	double low, high, sum;
} extent;

/* One way to have channels, and what is known of it. */
typedef struct fitting {
	dtype from;
	const void *src;
	size_t count;
	quant_layout q;
	extent *of;   /* per channel, as are the others */
	range *tries; /* TRIES each */
	double *lost; /* likewise: squares */
	range *best;
} fitting;

static void fitting_free(fitting *f)
{
	mem_free(f->of);
	mem_free(f->tries);
	mem_free(f->lost);
	mem_free(f->best);
}

static size_t load_block(const fitting *f, size_t i, size_t most, double *v)
{
	size_t n = f->count - i < most ? f->count - i : most;
	elements_load(f->from, (const char *)f->src + i * item_size(f->from), n, v);
	return n;
}

static clv_status refuse_number(const fitting *f, double v, size_t i)
{
	if (isfinite(v))
		return fail(CLV_E_INVALID, "element %zu is %g; q%u holds numbers up to %g", i, v, f->q.bits, (double)FLT_MAX);
	return fail(CLV_E_INVALID, "element %zu is %s; q%u holds finite values only", i, isnan(v) ? "nan" : "infinite",
	            f->q.bits);
}

static clv_status find_extents(fitting *f)
{
	double v[BLOCK];
	size_t channel[BLOCK];
	for (size_t c = 0; c < f->q.channels; c++)
		f->of[c] = (extent){INFINITY, -INFINITY, 0};
	for (size_t i = 0, n; i < f->count; i += n) {
		n = load_block(f, i, BLOCK, v);
		channels_at(&f->q, i, n, channel);
		for (size_t k = 0; k < n; k++) {
			extent *e = &f->of[channel[k]];
			if (!(fabs(v[k]) <= (double)FLT_MAX))
				return refuse_number(f, v[k], i + k);
			e->low = v[k] < e->low ? v[k] : e->low;
			e->high = v[k] > e->high ? v[k] : e->high;
			e->sum += v[k];
		}
	}
	return CLV_OK;
}

/* The next number above that has five binary digits. */
static double few_digits(double v)
{
	int exponent;
	double part = ceil(frexp(v, &exponent) * 32) / 32, rounded = ldexp(part, exponent);
	return rounded < (double)FLT_MIN ? (double)FLT_MIN : rounded;
}

/* A part of what the channel spans: next to its smallest magnitude, or around its mean where it has both signs. In phase 0
   a whole number of steps from 0, so that a channel with many zeros has them exactly; in phase 1 half a step more. */
static range range_of(const fitting *f, size_t c, size_t try)
{
	const extent *e = &f->of[c];
	double middle = e->low >= 0 ? e->low : e->high <= 0 ? e->high : e->sum * (double)f->q.channels / (double)f->count;
	double cut = cuts[try / PHASES], half = try % PHASES ? 0.5 : 0, levels = 1u << f->q.bits;
	double low = middle + cut * (e->low - middle), high = middle + cut * (e->high - middle);
	if (high == low)
		return (range){(double)(float)low, 0};
	double step = few_digits((high - low) / (levels - 1));
	return (range){(double)(float)((floor(low / step - half + 0.5) + half) * step), step};
}

/* Whether piece i of the data is looked at, of which one in `every` is: no pattern that channels could be in step with. */
static bool sampled(size_t i, size_t every)
{
	return every < 2 || (uint32_t)(i * UINT32_C(2654435761)) % every == 0;
}

/* One piece in how many is looked at: of each channel there are enough elements still to see how far it reaches. */
static size_t sampling(const fitting *f)
{
	size_t each = f->count / f->q.channels / 1024, all = f->count / ENOUGH;
	return each < all ? each : all;
}

/* Squares that a range leaves of n elements, at most PIECE. */
static double squares_left(range r, double most, const double *v, size_t n)
{
	double times = r.step > 0 ? 1 / r.step : 0, sum[TALLY_LANES] = {0}, all = 0, off[PIECE];
	for (size_t k = 0; k < n; k++) {
		double at = (v[k] - r.low) * times;
		at = at > most ? most : at;
		at = at < 0 ? 0 : at;
		off[k] = r.low + (at + 0x1.8p52 - 0x1.8p52) * r.step - v[k];
	}
	for (size_t k = 0; k < n; k++)
		sum[k % TALLY_LANES] += off[k] * off[k];
	for (size_t lane = 0; lane < TALLY_LANES; lane++)
		all += sum[lane];
	return all;
}

/* Adds the squares that each try leaves of a piece. */
static void weigh_piece(fitting *f, size_t i, const double *v, size_t n)
{
	size_t channel[PIECE];
	double most = (1u << f->q.bits) - 1;
	channels_at(&f->q, i, n, channel);
	for (size_t k = 0, end; k < n; k = end) {
		size_t c = channel[k];
		for (end = k + 1; end < n && channel[end] == c;)
			end++;
		for (size_t try = 0; try < TRIES; try++)
			f->lost[c * TRIES + try] += squares_left(f->tries[c * TRIES + try], most, v + k, end - k);
	}
}

static void weigh_ranges(fitting *f)
{
	double v[PIECE];
	size_t every = sampling(f);
	for (size_t c = 0; c < f->q.channels; c++)
		for (size_t try = 0; try < TRIES; try++)
			f->tries[c * TRIES + try] = range_of(f, c, try);
	for (size_t i = 0, n; i < f->count; i += PIECE) {
		if (sampled(i / PIECE, every)) {
			n = load_block(f, i, PIECE, v);
			weigh_piece(f, i, v, n);
		}
	}
}

static void choose_ranges(fitting *f)
{
	for (size_t c = 0; c < f->q.channels; c++) {
		const double *lost = &f->lost[c * TRIES];
		size_t best = 0;
		for (size_t try = 1; try < TRIES; try++)
			best = lost[try] < lost[best] ?
			try : best
				;
		f->best[c] = f->tries[c * TRIES + best];
	}
}

/* What an element loses of itself on average, and what the numbers of its channel cost: a bit more halves the loss, so that both
   can be added. Small channels count as much as large ones, as those that read them may. */
static double cost_of(const fitting *f)
{
	enum { CHANNEL_BITS = 12 }; /* of low and step, after zstd */
	double v[PIECE], back[PIECE];
	size_t every = sampling(f);
	uint8_t codes[PIECE];
	narrow_tally t = {0};
	for (size_t i = 0, n; i < f->count; i += PIECE) {
		if (!sampled(i / PIECE, every))
			continue;
		n = load_block(f, i, PIECE, v);
		to_codes(&f->q, f->best, i, v, n, codes, back);
		narrow_tally_add(&t, v, back, n);
	}
	return log2(narrow_tally_end(&t).relative + DBL_MIN) + (double)f->q.channels * CHANNEL_BITS / (double)f->count;
}

static clv_status fit(fitting *f)
{
	size_t n = f->q.channels;
	f->of = mem_realloc(NULL, n, sizeof *f->of);
	f->best = mem_realloc(NULL, n, sizeof *f->best);
	f->tries = mem_realloc(NULL, n, TRIES * sizeof *f->tries);
	f->lost = mem_realloc(NULL, n, TRIES * sizeof *f->lost);
	TRY_MEM(f->of && f->best && f->tries && f->lost);
	memset(f->lost, 0, n * TRIES * sizeof *f->lost);
	TRY(find_extents(f));
	weigh_ranges(f);
	choose_ranges(f);
	return CLV_OK;
}

/* One range for all, one for each index of the second dimension, one for each of the last. */
static size_t list_ways(const fitting *f, uint32_t ndim, const int64_t *sizes, quant_layout *ways)
{
	size_t n = 0, run = f->count;
	ways[n++] = (quant_layout){f->q.bits, 1, f->count};
	for (uint32_t d = 0; d < ndim && f->count; d++) {
		size_t channels = (size_t)sizes[d];
		run /= channels;
		if ((d == 1 || d + 1 == ndim) && channels > 1 && channels <= f->count / 8)
			ways[n++] = (quant_layout){f->q.bits, channels, run};
	}
	return n;
}

/* Fits the ways one after the other, and keeps the cheapest in *f. */
static clv_status choose_way(fitting *f, uint32_t ndim, const int64_t *sizes)
{
	quant_layout ways[WAYS];
	size_t n = list_ways(f, ndim, sizes, ways);
	double least = INFINITY;
	for (size_t i = 0; i < n; i++) {
		fitting x = {.from = f->from, .src = f->src, .count = f->count, .q = ways[i]};
		clv_status st = fit(&x);
		double cost = st == CLV_OK ? cost_of(&x) : 0;
		bool better = st == CLV_OK && (i == 0 || cost < least);
		if (better) {
			fitting worse = *f;
			*f = x;
			x = worse;
			least = cost;
		}
		fitting_free(&x);
		TRY(st);
	}
	return CLV_OK;
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

static void write_packed(const fitting *f, uint8_t *to, narrow_tally *t)
{
	double v[BLOCK], back[BLOCK];
	uint8_t codes[BLOCK];
	size_t n = f->q.channels, each = 8 / f->q.bits;
	for (size_t c = 0; c < n; c++) {
		put_number(to, c, n, f->best[c].low);
		put_number(to + n * sizeof(float), c, n, f->best[c].step);
	}
	to += 2 * n * sizeof(float);
	for (size_t i = 0, k; i < f->count; i += k) { /* codes of a block fill whole bytes */
		k = load_block(f, i, BLOCK, v);
		to_codes(&f->q, f->best, i, v, k, codes, back);
		pack_codes(f->q.bits, codes, k, to + i / each);
		narrow_rounded(f->from, back, k);
		narrow_tally_add(t, v, back, k);
	}
}

/* As it is where zstd makes it no smaller, or is not there. */
static clv_status compress_packed(void *raw, size_t n, void **out, size_t *out_n)
{
	clv_status st = shuffle_pack(raw, n, 1, out, out_n);
	if (st != CLV_OK && st != CLV_E_UNSUPPORTED) {
		mem_free(raw);
		return st;
	}
	if (st == CLV_OK && *out_n) {
		mem_free(raw);
		return CLV_OK;
	}
	*out = raw;
	*out_n = n;
	return CLV_OK;
}

clv_status quantise(dtype from, const void *src, size_t count, uint32_t ndim, const int64_t *sizes, quant_layout *q,
                    void **out, size_t *n, narrow_loss *loss)
{
	fitting f = {.from = from, .src = src, .count = count, .q = *q};
	narrow_tally t = {0};
	size_t bytes = 0;
	clv_status st = choose_way(&f, ndim, sizes);
	if (st == CLV_OK)
		st = quant_bytes(&f.q, count, &bytes);
	uint8_t *raw = st == CLV_OK ? mem_alloc(bytes) : NULL;
	if (st == CLV_OK && !raw)
		st = fail_nomem();
	if (st == CLV_OK) {
		write_packed(&f, raw, &t);
		*loss = narrow_tally_end(&t);
		*q = f.q;
	}
	fitting_free(&f);
	return st == CLV_OK ? compress_packed(raw, bytes, out, n) : st;
}

clv_status quant_check(const quant_layout *q, const void *data, size_t n, size_t count)
{
	size_t want;
	TRY(quant_bytes(q, count, &want));
	if (q->channels > (count ? count : 1))
		return fail(CLV_E_PARSE, "it has %zu channels for %zu elements", q->channels, count);
	return n == want ? CLV_OK : shuffle_check(data, n, want);
}

static clv_status read_ranges(const quant_layout *q, const uint8_t *from, range **out)
{
	size_t n = q->channels;
	range *of = mem_realloc(NULL, n, sizeof *of);
	TRY_MEM(of);
	*out = of;
	for (size_t c = 0; c < n; c++) {
		of[c] = (range){get_number(from, c, n), get_number(from + n * sizeof(float), c, n)};
		if (!isfinite(of[c].low) || !isfinite(of[c].step) || of[c].step < 0)
			return fail(CLV_E_PARSE, "channel %zu has values %g + k * %g, which are impossible", c, of[c].low,
			            of[c].step);
	}
	return CLV_OK;
}

static clv_status read_packed(dtype to, const uint8_t *packed, const quant_layout *q, size_t count, char *dst)
{
	double v[BLOCK];
	uint8_t codes[BLOCK];
	range *of = NULL;
	clv_status st = read_ranges(q, packed, &of);
	packed += 2 * q->channels * sizeof(float);
	for (size_t i = 0; st == CLV_OK && i < count; i += BLOCK) {
		size_t n = count - i < BLOCK ? count - i : BLOCK;
		unpack_codes(q->bits, packed + i / (8 / q->bits), n, codes);
		from_codes(q, of, i, codes, n, v);
		elements_store(to, dst + i * item_size(to), n, v);
	}
	mem_free(of);
	return st;
}

clv_status dequantise(dtype to, const void *data, size_t n, const quant_layout *q, size_t count, void *dst)
{
	size_t want;
	TRY(quant_bytes(q, count, &want));
	if (n == want)
		return read_packed(to, data, q, count, dst);
	uint8_t *raw = mem_realloc(NULL, want, 1);
	TRY_MEM(raw);
	clv_status st = shuffle_unpack(data, n, want, 1, raw);
	if (st == CLV_OK)
		st = read_packed(to, raw, q, count, dst);
	mem_free(raw);
	return st;
}
