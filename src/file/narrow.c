/* Compresses floats to f16, bf16 and int8.
 * Everything goes through f32, which holds f16 and bf16 exactly; a double is rounded to f32 towards odd, which keeps
 * what the second rounding needs to know, so that no value is rounded twice. */
#include "file/narrow.h"

#include <float.h>
#include <math.h>
#include <string.h>

const char *const encoding_names[ENC_COUNT] = {"plain", "fp16", "bf16", "int8", "zstd", "q1", "q2",
                                               "q3",    "q4",   "q5",   "q6",   "q7",   "q8"};

bool encoding_parse(const char *s, encoding *out)
{
	for (int e = 0; e < ENC_COUNT; e++) {
		if (strcmp(encoding_names[e], s) == 0) {
			*out = (encoding)e;
			return true;
		}
	}
	return false;
}

dtype encoding_dtype(encoding e, dtype from)
{
	switch (e) {
	case ENC_FP16: return DT_F16;
	case ENC_BF16: return DT_BF16;
	case ENC_INT8: return DT_I8;
	case ENC_PLAIN: return from;
	default: return DT_U8;
	}
}

bool encoding_applies(encoding e, dtype from)
{
	bool floating = from == DT_F16 || from == DT_BF16 || from == DT_F32 || from == DT_F64;
	if (e == ENC_ZSTD)
		return true;
	return floating && dtype_bits(from) > dtype_bits(encoding_dtype(e, from));
}

bool encoding_packed(encoding e)
{
	return e >= ENC_ZSTD;
}

unsigned encoded_bits(encoding e, dtype from)
{
	if (e == ENC_ZSTD || !encoding_applies(e, from))
		return dtype_bits(from);
	return encoding_bits(e) ? encoding_bits(e) : dtype_bits(encoding_dtype(e, from));
}

/* ---- bits ------------------------------------------------------------------------------------------------------- */

static uint32_t bits_of(float f)
{
	uint32_t b;
	memcpy(&b, &f, sizeof b);
	return b;
}

static float float_of(uint32_t b)
{
	float f;
	memcpy(&f, &b, sizeof f);
	return f;
}

/* The f32 next to v on the side of zero, its last bit set when v lies between two of them. */
static uint32_t odd_bits(double v)
{
	float f = (float)v;
	uint32_t b = bits_of(f);
	if (isnan(v) || (double)f == v)
		return b;
	if (fabs((double)f) > fabs(v))
		b--;
	return b | 1;
}

/* b without its lowest `drop` bits, to nearest, ties to even. */
static uint32_t round_off(uint32_t b, unsigned drop)
{
	uint32_t half = UINT32_C(1) << (drop - 1);
	return (b + half - 1 + (b >> drop & 1)) >> drop;
}

static uint16_t to_bf16(uint32_t b)
{
	if ((b & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(b >> 16 | 0x40); /* stays a nan when all its low bits go */
	return (uint16_t)round_off(b, 16);
}

static uint16_t to_f16(uint32_t b)
{
	uint32_t sign = b >> 16 & 0x8000, a = b & 0x7fffffff, exponent = a >> 23;
	if (a > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x1ff));
	if (a >= 0x477ff000) /* halfway between the largest f16 and the next, which there is not */
		return (uint16_t)(sign | 0x7c00);
	if (exponent >= 113)
		return (uint16_t)(sign | round_off(a - (UINT32_C(112) << 23), 13));
	if (exponent < 102) /* below half of the smallest */
		return (uint16_t)sign;
	return (uint16_t)(sign | round_off((a & 0x7fffff) | 0x800000, 126 - exponent));
}

static float from_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, a = h & 0x7fff;
	if (a >= 0x7c00)
		return float_of(sign | 0x7f800000 | (a & 0x3ff) << 13);
	if (a >= 0x400)
		return float_of(sign | ((a << 13) + (UINT32_C(112) << 23)));
	float tiny = (float)a * 0x1p-24f;
	return sign ? -tiny : tiny;
}

uint16_t narrow_to_f16(float x)
{
	return to_f16(bits_of(x));
}

uint16_t narrow_to_bf16(float x)
{
	return to_bf16(bits_of(x));
}

float narrow_from_f16(uint16_t x)
{
	return from_f16(x);
}

float narrow_from_bf16(uint16_t x)
{
	return float_of((uint32_t)x << 16);
}

/* ---- blocks of elements as doubles ------------------------------------------------------------------------------ */

enum { BLOCK = 512, LANES = TALLY_LANES };

/* Data in files and in users' memory need not be aligned: elements are copied. */
#define LOAD(T, expression)                                                                                            \
	for (size_t i = 0; i < n; i++) {                                                                                   \
		T x;                                                                                                           \
		memcpy(&x, (const char *)at + i * sizeof x, sizeof x);                                                         \
		out[i] = (double)(expression);                                                                                 \
	}                                                                                                                  \
	break

void elements_load(dtype d, const void *at, size_t n, double *out)
{
	switch (d) {
	case DT_F64: LOAD(double, x);
	case DT_F32: LOAD(float, x);
	case DT_F16: LOAD(uint16_t, from_f16(x));
	case DT_BF16: LOAD(uint16_t, float_of((uint32_t)x << 16));
	case DT_U8: LOAD(uint8_t, x);
	case DT_I16: LOAD(int16_t, x);
	case DT_U16: LOAD(uint16_t, x);
	case DT_I32: LOAD(int32_t, x);
	case DT_U32: LOAD(uint32_t, x);
	case DT_I64: LOAD(int64_t, x);
	case DT_U64: LOAD(uint64_t, x);
	default: LOAD(int8_t, x);
	}
}

bool elements_loadable(dtype d)
{
	bool floating = d == DT_F64 || d == DT_F32 || d == DT_F16 || d == DT_BF16;
	bool wide = d == DT_I16 || d == DT_U16 || d == DT_I32 || d == DT_U32 || d == DT_I64 || d == DT_U64;
	return floating || wide || d == DT_I8 || d == DT_U8;
}

#define STORE(T, expression)                                                                                           \
	for (size_t i = 0; i < n; i++) {                                                                                   \
		double v = from[i];                                                                                            \
		T x = (T)(expression);                                                                                         \
		memcpy((char *)at + i * sizeof x, &x, sizeof x);                                                               \
	}                                                                                                                  \
	break

void elements_store(dtype d, void *at, size_t n, const double *from)
{
	switch (d) {
	case DT_F64: STORE(double, v);
	case DT_F32: STORE(float, v);
	case DT_F16: STORE(uint16_t, to_f16(odd_bits(v)));
	case DT_BF16: STORE(uint16_t, to_bf16(odd_bits(v)));
	default: STORE(int8_t, v);
	}
}

static size_t block_at(size_t count, size_t i)
{
	return count - i < BLOCK ? count - i : BLOCK;
}

static const void *element(dtype d, const void *at, size_t i)
{
	return (const char *)at + i * (dtype_bits(d) / 8);
}

/* ---- what was lost ---------------------------------------------------------------------------------------------- */

/* A nan stays one, and infinity what it was: nothing is lost, and they count as no magnitude. */
static void tally_one(narrow_tally *t, size_t lane, double before, double after)
{
	double lost = fabs(before - after), size = fabs(before);
	lost = before == after || before != before ? 0 : lost;
	size = size <= DBL_MAX ? size : 0;
	t->most[lane] = size > t->most[lane] ? size : t->most[lane];
	t->worst[lane] = lost > t->worst[lane] ? lost : t->worst[lane];
	t->lost[lane] += lost * lost;
	t->all[lane] += size * size;
	t->shares[lane] += lost / (size > 0 ? size : 1);
	t->counted[lane] += size > 0 ? 1 : 0;
}

void narrow_tally_add(narrow_tally *t, const double *before, const double *after, size_t n)
{
	size_t i = 0;
	for (; i + LANES <= n; i += LANES)
		for (size_t lane = 0; lane < LANES; lane++)
			tally_one(t, lane, before[i + lane], after[i + lane]);
	for (; i < n; i++)
		tally_one(t, 0, before[i], after[i]);
}

narrow_loss narrow_tally_end(const narrow_tally *t)
{
	double most = 0, worst = 0, lost = 0, all = 0, shares = 0, counted = 0;
	for (size_t lane = 0; lane < LANES; lane++) {
		most = fmax(most, t->most[lane]);
		worst = fmax(worst, t->worst[lane]);
		lost += t->lost[lane];
		all += t->all[lane];
		shares += t->shares[lane];
		counted += t->counted[lane];
	}
	narrow_loss loss = {.absolute = worst};
	if (worst == 0)
		return loss;
	loss.relative = shares / counted;
	loss.l2 = isfinite(worst) && (!isfinite(all) || lost == 0) ? worst / most : sqrt(lost / all); /* beyond doubles */
	return loss;
}

void narrow_rounded(dtype d, double *v, size_t n)
{
	double room[BLOCK]; /* elements of d are no wider */
	elements_store(d, room, n, v);
	elements_load(d, room, n, v);
}

/* ---- scales ----------------------------------------------------------------------------------------------------- */

/* Elements in a row that have one scale, or each its own. */
typedef struct piece {
	size_t at; /* the first scale */
	size_t n;
	double one;
	const double *each; /* NULL: one for all */
} piece;

typedef struct walk {
	const narrow_scales *s;
	size_t at, left; /* the next scale, and how many elements still have it */
} walk;

static walk walk_from(const narrow_scales *s, size_t i)
{
	return (walk){s, i / s->run % s->n, s->run - i % s->run};
}

static piece walk_on(walk *w, size_t most)
{
	const narrow_scales *s = w->s;
	bool each = s->run == 1 && s->n > 1;
	size_t rest = each ? s->n - w->at : w->left, n = rest < most ? rest : most;
	piece p = {w->at, n, s->n == 1 ? s->one : s->at[w->at], each ? s->at + w->at : NULL};
	if (each)
		w->at = n < rest ? w->at + n : 0;
	else if (n < rest)
		w->left -= n;
	else {
		w->at = w->at + 1 < s->n ? w->at + 1 : 0;
		w->left = s->run;
	}
	return p;
}

static void spread(const narrow_scales *s, size_t i, size_t n, double *out)
{
	walk w = walk_from(s, i);
	for (size_t k = 0; k < n;) {
		piece p = walk_on(&w, n - k);
		for (size_t j = 0; j < p.n; j++)
			out[k + j] = p.each ? p.each[j] : p.one;
		k += p.n;
	}
}

/* Adding and taking away 1.5 * 2^52 rounds to whole numbers, ties to even. */
static double nearest_step(double k)
{
	k = k > 127 ? 127 : k;
	k = k < -127 ? -127 : k;
	return k + 0x1.8p52 - 0x1.8p52;
}

/* Elements i and on: in scales, and back. */
static void to_steps(const narrow_scales *s, size_t i, double *v, size_t n)
{
	walk w = walk_from(s, i);
	for (size_t k = 0; k < n;) {
		piece p = walk_on(&w, n - k);
		double times = 1 / p.one;
		for (size_t j = 0; !p.each && j < p.n; j++)
			v[k + j] = nearest_step(v[k + j] * times);
		for (size_t j = 0; p.each && j < p.n; j++)
			v[k + j] = nearest_step(v[k + j] / p.each[j]);
		k += p.n;
	}
}

static void from_steps(const narrow_scales *s, size_t i, double *v, size_t n)
{
	walk w = walk_from(s, i);
	for (size_t k = 0; k < n;) {
		piece p = walk_on(&w, n - k);
		for (size_t j = 0; !p.each && j < p.n; j++)
			v[k + j] *= p.one;
		for (size_t j = 0; p.each && j < p.n; j++)
			v[k + j] *= p.each[j];
		k += p.n;
	}
}

/* Elements i to i + n of the whole, at most BLOCK. */
static void narrow_block(encoding e, dtype from, const void *src, size_t i, size_t n, const narrow_scales *s, void *dst,
                         narrow_tally *t)
{
	double before[BLOCK], v[BLOCK];
	elements_load(from, element(from, src, i), n, before);
	memcpy(v, before, n * sizeof *v);
	if (e == ENC_INT8)
		to_steps(s, i, v, n);
	elements_store(encoding_dtype(e, from), dst, n, v);
	if (e == ENC_INT8) {
		from_steps(s, i, v, n);
		narrow_rounded(from, v, n);
	} else {
		elements_load(encoding_dtype(e, from), dst, n, v); /* `from` holds it as it is */
	}
	narrow_tally_add(t, before, v, n);
}

void narrow(encoding e, dtype from, const void *src, size_t count, const narrow_scales *s, void *dst, narrow_loss *loss)
{
	size_t width = dtype_bits(encoding_dtype(e, from)) / 8;
	narrow_tally t = {0};
	for (size_t i = 0; i < count; i += BLOCK)
		narrow_block(e, from, src, i, block_at(count, i), s, (char *)dst + i * width, &t);
	*loss = narrow_tally_end(&t);
}

/* Scales that are f32 make a product exact in doubles, so that one rounding is left: that of a product of floats. */
static void widen_f32(const int8_t *src, size_t count, const narrow_scales *s, char *dst)
{
	walk w = walk_from(s, 0);
	for (size_t i = 0; i < count;) {
		piece p = walk_on(&w, count - i);
		float one = (float)p.one;
		for (size_t j = 0; j < p.n; j++) {
			float x = (float)src[i + j] * (p.each ? (float)p.each[j] : one);
			memcpy(dst + (i + j) * sizeof x, &x, sizeof x);
		}
		i += p.n;
	}
}

void widen(encoding e, dtype to, const void *src, size_t count, const narrow_scales *s, void *dst)
{
	dtype from = encoding_dtype(e, to);
	double v[BLOCK];
	if (e == ENC_INT8 && to == DT_F32 && s->of_floats) {
		widen_f32(src, count, s, dst);
		return;
	}
	for (size_t i = 0; i < count; i += BLOCK) {
		size_t n = block_at(count, i);
		elements_load(from, element(from, src, i), n, v);
		if (e == ENC_INT8)
			from_steps(s, i, v, n);
		elements_store(to, (char *)dst + i * (dtype_bits(to) / 8), n, v);
	}
}

/* ---- scales that are chosen ------------------------------------------------------------------------------------- */

enum { RUN = 64, FINE = 16, SAMPLES = 32, WAYS = 5, CUTS = 3, LARGE = 1024 };

/* What is chosen from. `most` is the largest magnitude of each RUN elements. */
typedef struct chooser {
	dtype from;
	const void *src;
	size_t count;
	double *most;
} chooser;

static clv_status refuse_element(const double *v, size_t i)
{
	size_t k = 0;
	while (isfinite(v[k]))
		k++;
	return fail(CLV_E_INVALID, "element %zu is %s; int8 holds finite values only", i + k,
	            isnan(v[k]) ? "nan" : "infinite");
}

/* The largest magnitude; *odd is no longer 0 where a number is not finite. */
static double largest(const double *v, size_t n, double *odd)
{
	double most[LANES] = {0}, zero[LANES] = {0};
	size_t i = 0;
	for (; i + LANES <= n; i += LANES)
		for (size_t lane = 0; lane < LANES; lane++) {
			double size = fabs(v[i + lane]);
			most[lane] = size > most[lane] ? size : most[lane];
			zero[lane] += size * 0;
		}
	for (; i < n; i++) {
		most[0] = fmax(most[0], fabs(v[i]));
		zero[0] += v[i] * 0;
	}
	for (size_t lane = 0; lane < LANES; lane++) {
		most[0] = most[lane] > most[0] ? most[lane] : most[0];
		*odd += zero[lane];
	}
	return most[0];
}

static clv_status find_largest(chooser *c)
{
	double v[BLOCK];
	for (size_t i = 0; i < c->count; i += BLOCK) {
		size_t n = block_at(c->count, i);
		double odd = 0;
		elements_load(c->from, element(c->from, c->src, i), n, v);
		for (size_t k = 0; k < n; k += RUN)
			c->most[(i + k) / RUN] = largest(v + k, n - k < RUN ? n - k : RUN, &odd);
		if (odd != 0)
			return refuse_element(v, i);
	}
	return CLV_OK;
}

/* The largest magnitude of the elements of each scale, into its scales. */
static void gather(const chooser *c, narrow_scales *s, double *at)
{
	double v[BLOCK];
	memset(at, 0, s->n * sizeof *at);
	s->at = at;
	if (s->run % RUN == 0 || s->n == 1) {
		walk w = walk_from(s, 0);
		for (size_t r = 0; r * RUN < c->count; r++) {
			double *most = &at[walk_on(&w, RUN).at];
			*most = c->most[r] > *most ? c->most[r] : *most;
		}
		return;
	}
	walk w = walk_from(s, 0);
	for (size_t i = 0; i < c->count; i += BLOCK) {
		size_t n = block_at(c->count, i);
		elements_load(c->from, element(c->from, c->src, i), n, v);
		for (size_t k = 0; k < n;) {
			piece p = walk_on(&w, n - k);
			double *to = &at[p.at];
			for (size_t j = 0; p.each && j < p.n; j++)
				to[j] = fabs(v[k + j]) > to[j] ? fabs(v[k + j]) : to[j];
			for (size_t j = 0; !p.each && j < p.n; j++)
				*to = fabs(v[k + j]) > *to ? fabs(v[k + j]) : *to;
			k += p.n;
		}
	}
}

/* The scale for magnitudes up to `most`: what is written of several scales is no wider than f32, but for f64. */
static double scale_for(double most, const narrow_scales *s, dtype from)
{
	double scale = most / 127, least = from == DT_F64 || s->n == 1 ? DBL_MIN : FLT_TRUE_MIN; /* 1 / least is finite */
	if (most == 0)
		return 1;
	if (s->n > 1 && from != DT_F64)
		scale = (double)(float)scale;
	return scale > least ? scale : least;
}

/* Number k of SAMPLES places that are spread over the data, not in step with its channels; where there is little, they
   are all of it. */
static size_t sample_at(const chooser *c, size_t k, size_t *n)
{
	size_t blocks = (c->count + BLOCK - 1) / BLOCK, each = blocks / SAMPLES,
		   at = blocks <= SAMPLES ? k : k * each + k * 7919 % each;
	if (at >= blocks)
		return *n = 0;
	*n = block_at(c->count, at * BLOCK);
	return at * BLOCK;
}

/* The relative loss with these scales. */
static double try_scales(const chooser *c, const narrow_scales *s)
{
	narrow_tally t = {0};
	int8_t small[BLOCK];
	for (size_t k = 0, n; k < SAMPLES; k++) {
		size_t i = sample_at(c, k, &n);
		narrow_block(ENC_INT8, c->from, c->src, i, n, s, small, &t);
	}
	return narrow_tally_end(&t).relative;
}

static const double cuts[CUTS] = {0.9, 0.75, 0.6};

/* Squares of what is lost below a cut, in units of the largest magnitude: by rounding, measured on samples. */
static void lose_below(const chooser *c, const narrow_scales *most, double at, double *lost)
{
	double v[BLOCK], unit[BLOCK], sum[LANES] = {0};
	size_t seen = 0;
	for (size_t k = 0, n; k < SAMPLES; k++) {
		size_t i = sample_at(c, k, &n);
		elements_load(c->from, element(c->from, c->src, i), n, v);
		spread(most, i, n, unit);
		for (size_t j = 0; j < n; j++) {
			double u = fabs(v[j]) / (unit[j] > 0 ? unit[j] : 1), step = at / 127,
				   off = u - nearest_step(u / step) * step;
			sum[j % LANES] += u > at ? 0 : off * off;
		}
		seen += n;
	}
	for (size_t lane = 0; lane < LANES; lane++)
		*lost += sum[lane] * ((double)c->count / (double)seen);
}

/* And above it, for each of the cuts: by cutting off, which few elements suffer and much; all of them are looked at. */
static void lose_above(const chooser *c, const narrow_scales *most, double *lost)
{
	double v[RUN], unit[RUN], sum[CUTS][LANES] = {{0}};
	for (size_t r = 0; r * RUN < c->count; r++) {
		size_t n = c->count - r * RUN < RUN ? c->count - r * RUN : RUN;
		spread(most, r * RUN, n, unit);
		double least = unit[0];
		for (size_t j = 1; j < n; j++)
			least = unit[j] < least ? unit[j] : least;
		if (c->most[r] <= cuts[CUTS - 1] * least)
			continue;
		elements_load(c->from, element(c->from, c->src, r * RUN), n, v);
		for (size_t j = n; j < RUN; j++)
			v[j] = 0, unit[j] = 1;
		for (size_t x = 0; x < CUTS; x++)
			for (size_t j = 0; j < RUN; j++) {
				double over = fabs(v[j]) / (unit[j] > 0 ? unit[j] : 1) - cuts[x];
				over = over > 0 ? over : 0;
				sum[x][j % LANES] += over * over;
			}
	}
	for (size_t x = 0; x < CUTS; x++)
		for (size_t lane = 0; lane < LANES; lane++)
			lost[x] += sum[x][lane];
}

/* Where to cut off, by the largest magnitude: 1 where nothing is gained. Groups of few elements are not worth it. */
static double choose_cut(const chooser *c, const narrow_scales *most)
{
	double best = 1, least = 0, lost[CUTS] = {0};
	if (c->count / most->n < LARGE)
		return 1;
	lose_below(c, most, 1, &least);
	lose_above(c, most, lost);
	for (size_t x = 0; x < CUTS; x++) {
		lose_below(c, most, cuts[x], &lost[x]);
		if (lost[x] < 0.99 * least) {
			least = lost[x];
			best = cuts[x];
		}
	}
	return best;
}

static size_t scale_bytes(dtype from)
{
	return from == DT_F64 ? sizeof(double) : sizeof(float);
}

/* Scales that take more than a quarter of what the elements took are no way. */
static size_t add_way(const chooser *c, narrow_scales s, narrow_scales *ways, size_t n)
{
	size_t at = n;
	if (s.n < 2 || s.n > c->count * (dtype_bits(c->from) / 8) / 4 / scale_bytes(c->from))
		return n;
	for (; at > 1 && ways[at - 1].n > s.n; at--)
		ways[at] = ways[at - 1];
	ways[at] = s;
	return n + 1;
}

/* Ways to have scales, from few to many. */
static size_t list_ways(const chooser *c, uint32_t ndim, const int64_t *sizes, narrow_scales *ways)
{
	size_t n = 0, run = c->count;
	ways[n++] = (narrow_scales){.n = 1, .run = c->count};
	for (uint32_t d = 0; d < ndim && c->count; d++) {
		run /= (size_t)sizes[d];
		if (d == 1 || d + 1 == ndim)
			n = add_way(c, (narrow_scales){.n = (size_t)sizes[d], .run = run}, ways, n);
	}
	n = add_way(c, (narrow_scales){.n = (c->count + RUN - 1) / RUN, .run = RUN}, ways, n);
	return add_way(c, (narrow_scales){.n = (c->count + FINE - 1) / FINE, .run = FINE}, ways, n);
}

static void set_scales(const chooser *c, narrow_scales *s, double *most, double cut)
{
	for (size_t i = 0; i < s->n; i++)
		most[i] = scale_for(most[i] * cut, s, c->from);
	s->one = most[0];
	s->at = most;
}

/* Bytes that are written. */
static double bytes_of(const chooser *c, const narrow_scales *s)
{
	return (double)c->count + (double)(s->n * scale_bytes(c->from));
}

static const double ENOUGH = 0.07; /* numbers without outliers lose less than this, whatever they are */

/* More scales have to be worth their bytes: twice as many bytes must leave less than half of the loss. */
static void choose_scales(const chooser *c, const narrow_scales *ways, size_t n, double *room, narrow_scales *out)
{
	double least = INFINITY;
	size_t best = 0;
	for (size_t i = 0; i < n && n > 1; i++) {
		narrow_scales s = ways[i];
		if (s.run == FINE && least < ENOUGH)
			continue;
		gather(c, &s, room);
		set_scales(c, &s, room, 1);
		double lost = try_scales(c, &s), smaller = bytes_of(c, &ways[best]) / bytes_of(c, &s);
		if (lost < 0.9 * least * smaller) {
			least = lost;
			best = i;
		}
	}
	*out = ways[best];
	gather(c, out, room);
	out->one = room[0];
	set_scales(c, out, room, choose_cut(c, out));
}

clv_status int8_scales(dtype from, const void *src, size_t count, uint32_t ndim, const int64_t *sizes,
                       narrow_scales *out, double **at)
{
	narrow_scales ways[WAYS];
	chooser c = {from, src, count, mem_alloc((count / RUN + 1) * sizeof(double))};
	size_t n = list_ways(&c, ndim, sizes, ways);
	*out = (narrow_scales){.n = 1, .run = SIZE_MAX, .one = 1};
	*at = mem_alloc(ways[n - 1].n * sizeof **at); /* the last has most */
	clv_status st = c.most && *at ? find_largest(&c) : fail_nomem();
	if (st == CLV_OK && count)
		choose_scales(&c, ways, n, *at, out);
	mem_free(c.most);
	if (st == CLV_OK)
		return CLV_OK;
	mem_free(*at);
	*at = NULL;
	return st;
}
