/* Plain loops over f64: see doubles.h. */
#include "native/doubles.h"

#include <math.h>

/* ---- convolutions ---------------------------------------------------------------------------------------------------- */

typedef struct reading {
	const double *in, *weight; /* of a group and an output channel */
	int64_t in_channel, weight_channel;
	int64_t at[3]; /* the output, counted along each axis */
} reading;

/* The sum over one tap of each axis; taps outside of the input are 0. */
static double sum_taps(const doubles_conv *x, const reading *r)
{
	const conv *c = x->c;
	double sum = 0;
	for (int64_t t = 0; t < c->axis[0].taps * c->axis[1].taps * c->axis[2].taps; t++) {
		int64_t rest = t, in = 0, weight = 0;
		bool inside = true;
		for (int d = 2; d >= 0; d--) {
			const conv_axis *a = &c->axis[d];
			int64_t tap = rest % a->taps, from = r->at[d] * a->step + a->tap0 + tap * a->tap_step;
			rest /= a->taps;
			inside &= from >= 0 && from < a->in;
			in += from * c->in_stride[CONV_D + d];
			weight += (a->k0 + tap * a->k_step) * x->weight_stride[2 + d];
		}
		for (int64_t i = 0; inside && i < c->ic; i++)
			sum += r->in[in + i * r->in_channel] * r->weight[weight + i * r->weight_channel];
	}
	return sum;
}

/* Items are output channels of images. */
static void conv_items(void *ctx, int64_t first, int64_t end, int thread)
{
	const doubles_conv *x = ctx;
	const conv *c = x->c;
	const conv_axis *a = c->axis;
	int64_t channels = c->groups * c->oc, so = x->weight_stride[x->transposed], si = x->weight_stride[!x->transposed];
	(void)thread;
	for (int64_t item = first; item < end; item++) {
		int64_t image = item / channels, channel = item % channels, group = channel / c->oc, o = channel % c->oc;
		reading r = {.in_channel = c->in_stride[CONV_C], .weight_channel = si};
		r.in = x->in + image * c->in_stride[CONV_N] + group * c->ic * c->in_stride[CONV_C];
		r.weight = x->weight + group * (x->transposed ? c->ic * si : c->oc * so) + o * so;
		double *out = x->out + image * c->out_stride[CONV_N] + channel * c->out_stride[CONV_C];
		for (int64_t i = 0; i < a[0].count * a[1].count * a[2].count; i++) {
			r.at[0] = i / a[2].count / a[1].count, r.at[1] = i / a[2].count % a[1].count, r.at[2] = i % a[2].count;
			double *to = out;
			for (int d = 0; d < 3; d++)
				to += (a[d].start + r.at[d] * a[d].jump) * c->out_stride[CONV_D + d];
			*to = sum_taps(x, &r) + (x->bias ? x->bias[channel] : 0);
		}
	}
}

void doubles_convolve(team *t, const doubles_conv *x)
{
	team_run(t, x->c->images * x->c->groups * x->c->oc, 1, conv_items, (void *)x);
}

/* ---- pooling --------------------------------------------------------------------------------------------------------- */

typedef struct pooling {
	const pool *p;
	const double *in;
	double *out;
} pooling;

static double pool_window_of(const pool *p, const double *in, const pool_window *const w[3])
{
	double sum = p->mean ? 0 : -INFINITY;
	for (int64_t z = 0; z < w[0]->count; z++)
		for (int64_t y = 0; y < w[1]->count; y++)
			for (int64_t x = 0; x < w[2]->count; x++) {
				double one = in[(w[0]->first + z * p->step[0]) * p->in_stride[2] +
				                (w[1]->first + y * p->step[1]) * p->in_stride[3] +
				                (w[2]->first + x * p->step[2]) * p->in_stride[4]];
				if (p->mean)
					sum += one;
				else
					sum = one > sum || one != one ? one : sum; /* nan stays: no comparison with it holds */
			}
	uint64_t sizes = (uint64_t)w[0]->size * (uint64_t)w[1]->size * (uint64_t)w[2]->size;
	double by = p->divisor ? (double)p->divisor : (double)(int64_t)sizes;
	return p->mean ? sum / (by != 0 ? by : 1) : sum;
}

static void pool_items(void *ctx, int64_t first, int64_t end, int thread)
{
	const pooling *j = ctx;
	const pool *p = j->p;
	(void)thread;
	for (int64_t item = first; item < end; item++) {
		int64_t image = item / p->channels, channel = item % p->channels;
		const double *in = j->in + image * p->in_stride[0] + channel * p->in_stride[1];
		double *out = j->out + image * p->out_stride[0] + channel * p->out_stride[1];
		for (int64_t i = 0; i < p->out[0] * p->out[1] * p->out[2]; i++) {
			int64_t z = i / p->out[2] / p->out[1], y = i / p->out[2] % p->out[1], x = i % p->out[2];
			const pool_window *const w[3] = {&p->at[0][z], &p->at[1][y], &p->at[2][x]};
			out[z * p->out_stride[2] + y * p->out_stride[3] + x * p->out_stride[4]] = pool_window_of(p, in, w);
		}
	}
}

void doubles_pool(team *t, const pool *p, const double *in, double *out)
{
	pooling j = {p, in, out};
	team_run(t, p->images * p->channels, 1, pool_items, &j);
}

/* ---- norms ----------------------------------------------------------------------------------------------------------- */

void doubles_statistics(const double *x, int64_t n, bool rms, double eps, double *mean, double *scale)
{
	double sum = 0, squares = 0;
	for (int64_t i = 0; i < n && !rms; i++)
		sum += x[i];
	*mean = rms ? 0 : sum / (double)n;
	for (int64_t i = 0; i < n; i++)
		squares += (x[i] - *mean) * (x[i] - *mean);
	*scale = 1 / sqrt(squares / (double)n + eps);
}

void doubles_normalize(const double *x, double *y, int64_t n, double mean, double scale, const double *weight,
                       const double *bias)
{
	for (int64_t i = 0; i < n; i++)
		y[i] = (x[i] - mean) * scale * (weight ? weight[i] : 1) + (bias ? bias[i] : 0);
}

/* ---- attention ------------------------------------------------------------------------------------------------------- */

typedef struct attending {
	const attention *a;
	const attention_run *r;
	double scale;
} attending;

/* -inf where a key is hidden. */
static double masked(const attention *a, const void *mask, int64_t at, double score)
{
	if (a->kind == MASK_FLAGS)
		return ((const uint8_t *)mask)[at] ? score : -INFINITY;
	return a->kind == MASK_FLOATS ? score + ((const double *)mask)[at] : score;
}

/* Scores become what keys weigh before they are divided by the sum, which it gives; 0: all are hidden. */
static double weigh(const attending *j, const double *q, const double *k, int64_t mask, int64_t sees, double *scores)
{
	const attention *a = j->a;
	double top = -INFINITY, sum = 0;
	for (int64_t i = 0; i < sees; i++) {
		double score = 0;
		for (int64_t c = 0; c < a->size; c++)
			score += q[c * a->q.col] * k[i * a->k.row + c * a->k.col];
		scores[i] = masked(a, j->r->mask, mask + i * a->mask.col, score * j->scale);
		top = scores[i] > top || scores[i] != scores[i] ? scores[i] : top;
	}
	for (int64_t i = 0; i < sees && top != -INFINITY; i++)
		sum += scores[i] = exp(scores[i] - top);
	return sum;
}

static void attend_items(void *ctx, int64_t first, int64_t end, int thread)
{
	const attending *j = ctx;
	const attention *a = j->a;
	double *scores = (double *)j->r->scratch + thread * a->keys;
	for (int64_t item = first; item < end; item++) {
		int64_t batch = item / a->queries, row = item % a->queries;
		int64_t sees = a->causal && row + 1 < a->keys ? row + 1 : a->keys;
		const double *q =
			(const double *)(const void *)j->r->q + attention_offset(a, a->q.batch, batch) + row * a->q.row;
		const double *k = (const double *)(const void *)j->r->k + attention_offset(a, a->k.batch, batch);
		const double *v = (const double *)(const void *)j->r->v + attention_offset(a, a->v.batch, batch);
		double *out = (double *)(void *)j->r->out + attention_offset(a, a->out.batch, batch) + row * a->out.row;
		double sum = weigh(j, q, k, attention_offset(a, a->mask.batch, batch) + row * a->mask.row, sees, scores);
		for (int64_t c = 0; c < a->values; c++) {
			double mean = 0;
			for (int64_t i = 0; i < sees && sum != 0; i++)
				mean += scores[i] * v[i * a->v.row + c * a->v.col];
			out[c] = sum != 0 ? mean / sum : (double)a->nothing;
		}
	}
}

size_t doubles_attention_scratch(const attention *a, int threads)
{
	size_t bytes;
	return __builtin_mul_overflow((size_t)a->keys + 1, (size_t)threads * sizeof(double), &bytes) ? 0 : bytes;
}

void doubles_attend(const attention *a, double scale, const attention_run *r)
{
	attending j = {a, r, scale};
	if (a->batches && a->queries && a->values)
		team_run(r->team, a->batches * a->queries, 1, attend_items, &j);
}
