/* Convolutions as kernels see them: three axes (depth, height, width), each with the outputs it makes and the inputs that these
 * read. A transposed convolution is one of these per remainder of the output index by the stride ("phase").
 *
 * Weights are packed into panels of two vectors of output channels: [group][panel][tap][input channel][lane]. The last panel of
 * a group has one vector if that is enough. A sum runs over taps, then input channels, whatever the blocks are. */
#ifndef NATIVE_CONV_H
#define NATIVE_CONV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Elements of packed weights: 16-bit ones are widened as they are loaded, which is exact, so bits are those of wide ones. */
typedef enum panel_type { PANEL_F32, PANEL_F16, PANEL_BF16 } panel_type;

typedef struct conv_axis {
	int64_t in;                 /* inputs along it; what is read outside of them is 0 */
	int64_t count, start, jump; /* outputs: start, start + jump, … */
	int64_t step;               /* output number j reads, with tap t, input j * step + tap0 + t * tap_step */
	int64_t taps, tap0, tap_step;
	int64_t k0, k_step; /* tap t has weight k0 + t * k_step */
} conv_axis;

enum { CONV_N, CONV_C, CONV_D, CONV_H, CONV_W, CONV_DIMS }; /* strides, in elements */

/* How it is computed: by panels of channels; with the lanes of a vector being the channels of few or one a group; or by tiles of
   4×4 outputs in Winograd's way (winograd.c). The shape of an image decides, never how many there are. */
typedef enum conv_way { CONV_PANELS, CONV_LANES, CONV_TILES } conv_way;

typedef struct conv {
	conv_way way;
	conv_axis axis[3];                                   /* depth, height, width */
	int64_t images, groups, ic, oc;                      /* channels: of one group */
	int64_t in_stride[CONV_DIMS], out_stride[CONV_DIMS]; /* out_stride[CONV_C] is 1 */
	/* How the work is divided; conv_divide fills this in. */
	bool copied;                /* input is copied, with its padding, before it is read */
	int64_t pitch;              /* not 0: it is copied so that pixels are so far apart, those alone that are read */
	bool cut;                   /* no item has outputs with other taps inside of the input than its first has */
	int64_t rows, cols, panels; /* of an item: output rows, columns, panels */
	int64_t items;
	int64_t copy, scratch;         /* floats: of the copy, and of all scratch memory of a thread */
	int64_t nrows, ncols, npanels; /* blocks along the height, the width and the channels */
} conv;

/* Called when rows × cols outputs are complete: rows are pixels, counted over all images; ldc is from one to the next. */
typedef void conv_done(void *ctx, float *block, int64_t ldc, int64_t row, int64_t rows, int64_t col, int64_t cols);

/* [out channels][in channels of a group][depth][height][width]; transposed: the first two swapped. */
typedef struct conv_weights {
	const void *data;
	panel_type type;
	int64_t stride[5];
	bool transposed;
} conv_weights;

typedef struct conv_call {
	const conv *c;
	const float *in, *bias; /* bias NULL: none */
	const void *weights;    /* as conv_pack left them */
	float *out, *scratch;   /* scratch: 64-byte aligned, c->scratch floats for each thread */
	conv_done *done;        /* NULL: none */
	void *ctx;
	const conv_weights *plain; /* as they were before that: PANELS needs their type, TILES all of it */
} conv_call;

/* A convolution as an operator says it: sizes are depth, height, width; pad is the one before the first input. */
typedef struct conv_shape {
	int64_t images, groups, ic, oc; /* channels: of one group */
	int64_t in[3], kernel[3], stride[3], pad[3], dilation[3], out[3];
	bool transposed;
} conv_shape;

int64_t conv_phases(const conv_shape *s); /* 1 if it is not transposed */
/* Phase p of it. The strides of the tensors and the division are left to the caller. */
conv conv_phase(const conv_shape *s, int64_t p);

conv_way conv_best_way(const conv *c, int vector);
/* These three go by c->way. */
void conv_divide(conv *c, int vector, int threads);
int64_t conv_size(const conv *c,
                  int vector); /* elements of the packed weights: for PANELS of the type that they have, else floats */
void conv_pack(const conv *c, int vector, const conv_weights *w, void *out);
float conv_weight(const conv_weights *w, int64_t at);

int64_t conv_taps(const conv *c);
/* Blocks of at most so many outputs along an axis, and block i of them; cut: at the outputs where a tap enters or leaves. */
int64_t conv_blocks(const conv_axis *a, bool cut, int64_t size);
void conv_block_at(const conv_axis *a, bool cut, int64_t size, int64_t i, int64_t *first, int64_t *count);
bool conv_inside(const conv_axis *a, int64_t output, int64_t tap);
int64_t conv_panels(const conv *c, int vector); /* of a group */
int64_t conv_panel_width(const conv *c, int vector, int64_t p);
/* Elements of the packed weights of one group in all panels before panel p; PANELS. */
int64_t conv_panel_at(const conv *c, int vector, int64_t p);

/* Convolutions of few channels a group, lanes of a vector being output channels: depthwise, and groups whose input channels are
   spread to the lanes that read them. Weights: [tap][input channel of the group][output channel], padded to whole vectors. */

/* Winograd's F(4×4, 3×3): 6×6 inputs and 3×3 weights become 36 numbers each, which are multiplied and summed over the input
   channels as 36 matrix products; 36 sums become 4×4 outputs. A dilation is as many phases, each a convolution without one.
   Weights: [group][panel][36][input channel][lane]. `rows` of the conv is the number of tiles
   of an item, `nrows` that of such blocks in an image. */
enum { TILE_OUT = 4, TILE_IN = 6, TILE_PLACES = TILE_IN * TILE_IN };
bool tiles_fit(const conv *c, int vector);
void tiles_divide(conv *c, int vector, int threads);
int64_t tiles_size(const conv *c, int vector);
void tiles_pack(const conv *c, int vector, const conv_weights *w, float *out);
/* How scratch memory is laid out: transformed inputs [36][tile][channel], sums [36][tile][lane]. */
typedef struct tiles_room {
	int64_t pixel, plane;             /* floats from one tile to the next, from one of the 36 to the next */
	int64_t panels, lanes, sum_plane; /* panels of sums that are made at a time */
} tiles_room;
tiles_room tiles_room_of(const conv *c, int vector);
/* Phases of an axis, its tiles in each, and all tiles of an image: phase by phase, row by row. */
int64_t tiles_phases(const conv_axis *a);
int64_t tiles_along(const conv_axis *a);
int64_t tiles_of(const conv *c);

#endif
