/* Grid sampling: each pixel of the result reads an image, or a volume, at the place that a grid of coordinates says (see
 * sampling.h). Axes are depth, height, width; an image has no depth. */
#include <math.h>
#include <string.h>

#include "native/image.h"

typedef enum sample_way { SAMPLE_LINEAR, SAMPLE_NEAREST, SAMPLE_CUBIC } sample_way; /* as torch numbers them */
typedef enum sample_padding { PAD_ZEROS, PAD_BORDER, PAD_REFLECTION } sample_padding;

typedef struct sampling {
	sample_way way;
	sample_padding padding;
	bool corners, volume;
	int64_t images, channels, in_size[3], out_size[3];
	int64_t in_image, in_stride[3], out_image, out_stride[3]; /* channels lie beside each other */
	int64_t grid_image, grid_stride[3], grid_coordinate;
	slot in, grid, out;
} sampling;

typedef struct sampling_run {
	const sampling *s;
	const char *in, *grid;
	char *out;
} sampling_run;

#define REAL float
#define REAL_FN(name) name##f
#define SAMPLING(name) name##_f32
#include "native/sampling.h"

#define REAL double
#define REAL_FN(name) name
#define SAMPLING(name) name##_f64
#include "native/sampling.h"

static clv_status run_sampling(const void *params, frame *f)
{
	const sampling *s = params;
	sampling_run r = {s, f->t[s->in].data, f->t[s->grid].data, f->t[s->out].data};
	int64_t grain = (int64_t)(4096 / ((double)s->out_size[2] * (double)(s->channels + 8) + 1)) + 1;
	if (nt_numel(&f->t[s->out]) > 0)
		team_run(f->team, s->images * s->out_size[0] * s->out_size[1], grain,
		         f->t[s->in].dtype == DT_F32 ? rows_f32 : rows_f64, &r);
	return CLV_OK;
}

static bool is_int(const plan *p, const arg *a, int64_t want)
{
	int64_t k;
	return a->kind == ARG_INT && expr_is_const(p, a->u.e, &k) && k == want;
}

static const char *takes_sampling(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *a = &p->args.at[x->args];
	if (x->nargs < 2 || a[0].kind != ARG_VALUE || a[1].kind != ARG_VALUE)
		return "there is no image or no grid";
	uint8_t type = native_dtype(p, a[0].u.v);
	if (p->values.at[a[0].u.v].ndim == 5 && x->nargs > 2 && !is_int(p, &a[2], SAMPLE_LINEAR) &&
	    !is_int(p, &a[2], SAMPLE_NEAREST))
		return "a volume is sampled in a way that torch does not know";
	return (type == DT_F32 || type == DT_F64) && native_dtype(p, a[1].u.v) == type
	           ? NULL
	           : "image and grid are not both f32 or both f64";
}

static clv_status read_options(lowering *l, node_id n, sampling *s)
{
	int64_t way, padding;
	TRY(low_int(l, n, 2, 0, &way));
	TRY(low_int(l, n, 3, 0, &padding));
	TRY(low_bool(l, n, 4, false, &s->corners));
	if (way < SAMPLE_LINEAR || way > SAMPLE_CUBIC || padding < PAD_ZEROS || padding > PAD_REFLECTION)
		return fail(CLV_E_UNSUPPORTED, "a way to sample, or a padding, that is not known");
	s->way = (sample_way)way;
	s->padding = (sample_padding)padding;
	return CLV_OK;
}

static clv_status check_sizes(const image *x, const nt *grid, uint32_t spatial)
{
	if (grid->ndim != spatial + 2 || grid->size[0] != x->size[0] || grid->size[spatial + 1] != spatial)
		return fail(CLV_E_VERIFY, "a grid has the number of images, their sizes in the result, and %u coordinates",
		            spatial);
	for (int d = 2; d < 5; d++)
		if (x->size[d] < 1 || x->size[d] > IMAGE_AT_MOST)
			return fail(CLV_E_UNSUPPORTED, "an image to sample has no pixels, or more than 2^31 in a row");
	return CLV_OK;
}

static void set_grid(sampling *s, const nt *grid, uint32_t spatial)
{
	s->grid_image = grid->stride[0];
	s->grid_coordinate = grid->stride[spatial + 1];
	memcpy(s->grid_stride + 3 - spatial, grid->stride + 1, spatial * sizeof *s->grid_stride);
}

static clv_status lower_sampling(lowering *l, node_id n)
{
	sampling *s = low_alloc(l, sizeof *s);
	image x, y;
	nt form;
	slot result;
	TRY_MEM(s);
	TRY(low_tensor(l, n, 0, &s->in));
	TRY(low_tensor(l, n, 1, &s->grid));
	TRY(read_options(l, n, s));
	const nt *in = low_at(l, s->in), grid = *low_at(l, s->grid);
	uint8_t type = in->dtype;
	uint32_t spatial = in->ndim == 5 ? 3 : 2;
	s->volume = spatial == 3;
	if (in->ndim != spatial + 2 || !image_of(in, spatial, &x) || grid.dtype != type)
		return fail(CLV_E_VERIFY, "an image and its grid do not fit together");
	if (s->volume && s->way == SAMPLE_CUBIC)
		return fail(CLV_E_UNSUPPORTED, "cubic sampling is of images, not of volumes");
	TRY(check_sizes(&x, &grid, spatial));
	int64_t size[3] = {1, 1, 1};
	memcpy(size + 3 - spatial, grid.size + 1, spatial * sizeof *size);
	TRY(image_expect(l, n, 0, type, spatial, x.size[1], size, &x, &form));
	TRY(image_input(l, s->in, spatial, &s->in));
	TRY(image_output(l, n, 0, &form, spatial, &result, &s->out));
	image_of(low_at(l, s->in), spatial, &x);
	image_of(low_at(l, s->out), spatial, &y);
	s->images = x.size[0], s->channels = x.size[1];
	memcpy(s->in_size, x.size + 2, sizeof s->in_size);
	memcpy(s->out_size, y.size + 2, sizeof s->out_size);
	s->in_image = x.stride[0], s->out_image = y.stride[0];
	memcpy(s->in_stride, x.stride + 2, sizeof s->in_stride);
	memcpy(s->out_stride, y.stride + 2, sizeof s->out_stride);
	set_grid(s, &grid, spatial);
	TRY(low_step(l, run_sampling, s));
	return low_copy(l, s->out, result);
}

const native_op native_ops_sample[] = {
	{.id = OP_grid_sampler, .takes = takes_sampling, .widens = true, .lower = lower_sampling},
	{.id = OP_grid_sampler_2d, .takes = takes_sampling, .widens = true, .lower = lower_sampling},
	{.id = OP_grid_sampler_3d, .takes = takes_sampling, .widens = true, .lower = lower_sampling},
	{.id = OP_UNKNOWN},
};
