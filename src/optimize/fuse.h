/* Fuses convolutions and linears with the nodes after them, in one call of oneDNN or cuDNN.
 *
 * fuse.c finds what follows a node and keeps the books about memory; fuse_conv.c, fuse_linear.c and fuse_cudnn.c say which operator
 * does it all. Changes of one pass are put in place together, so facts of the edit are those from before; what fusing changes (last
 * reads, writes, shared memory) is kept up to date here. */
#pragma once

#include "optimize/rewrite.h"

typedef struct fuser {
	edit *e;
	const optimize_spec *s;
	bool *constant;      /* per value: the same in every run */
	bool *last_image;    /* per value: it is channels-last */
	bool *rows;          /* per value: it is row-major */
	node_id *last_use;   /* per owner of memory: the last node of the range that reads or writes it; NONE */
	node_id *last_write; /* likewise: that writes it */
	bool *shown;         /* per owner of memory: see edit_facts */
	int64_t *least;      /* per symbol: the smallest that it may be */
	uint32_t *changes;
} fuser;

/* A function of one number, as oneDNN has it. */
typedef struct activation {
	const char *name, *algorithm; /* name NULL: none */
	double scalars[2];
	uint32_t nscalars;
} activation;

bool read_activation(const edit *e, node_id n, activation *out); /* activations.c */

/* image_layouts.c: per value, in arrays of the edit */
clv_status find_image_layouts(edit *e, bool **last, bool **rows);

/* What follows a node. */
typedef struct tail {
	node_id at;       /* before it the joined node goes */
	node_id nodes[2]; /* that go */
	uint32_t n;
	value_id result;    /* of the last of them */
	const char *binary; /* "add", …, with `other`; NULL: none */
	value_id other;
	bool in_place;  /* the result may be on the memory of other */
	activation act; /* the last */
} tail;

enum tail_kind { TAIL_UNARY = 1, TAIL_BINARY = 2, TAIL_IN_PLACE = 4, TAIL_BINARY_RELU = 8, TAIL_RELU = 16 };

/* The longest tail of the kinds; n is 0 where there is none. */
void find_tail(const fuser *f, const weighted *w, unsigned kinds, tail *out);
/* Removes the node and its tail, and puts op(args) there. With in_place it writes `other`. */
clv_status join(fuser *f, const weighted *w, const tail *t, uint16_t op, const arg *args, uint32_t nargs);

/* The sizes of v are known before a run, and none is 0: they say how weights are best laid out for it. */
clv_status has_hints(const fuser *f, value_id v, bool *out);
/* The arguments that say which function it is: name, scalars, algorithm. */
clv_status activation_args(fuser *f, const activation *a, const char *none, arg out[3]);

/* A convolution's numbers, fixed and the same for all spellings. */
enum { MAX_DIMS = 3 };

typedef struct geometry {
	uint32_t dims; /* height, width, …: how many */
	int64_t stride[MAX_DIMS], padding[MAX_DIMS], dilation[MAX_DIMS], output_padding[MAX_DIMS];
} geometry;

bool read_geometry(const edit *e, const weighted *w, geometry *g); /* fuse_conv.c */

clv_status fuse_convolution(fuser *f, node_id n); /* fuse_conv.c: CPU */
clv_status fuse_cudnn(fuser *f, node_id n);       /* fuse_cudnn.c: convolutions on CUDA */
clv_status fuse_linear(fuser *f, node_id n);      /* fuse_linear.c */
/* fold_batch_norm.c: normalizations of channels-last images that no convolution took are one multiplication and addition,
   which takes half the time there. (It takes longer on row-major ones.) */
clv_status scale_last_images(edit *e, bool *constant, const bool *last, uint32_t *changes);
