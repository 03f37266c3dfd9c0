/* Layouts of images, which are tensors of four dimensions: batch, channels, height, width.
 *
 * A plan does not say how results are laid out. The column IMAGE of ops.def says which operators give channels-last images
 * for channels-last images, and row-major results for row-major arguments; from it follow the nodes that can work on
 * channels-last images without any other node noticing. */
#pragma once

#include "optimize/optimize.h"

/* How a value of the plan as it stands is laid out. */
typedef enum image_order {
	ORDER_UNKNOWN,
	ORDER_SLICE, /* of a row-major one: strides fall from dimension to dimension, but there are gaps */
	ORDER_ROWS   /* row-major */
} image_order;

/* layouts.c */
typedef struct layouts {
	const edit *e;
	const op_row **rows; /* per node: of the table, where its rule holds; NULL */
	uint8_t *order;      /* per value: image_order */
	bool yes;            /* while a node's arguments are looked at */
} layouts;

clv_status layouts_new(edit *e, layouts *out); /* in arrays of the edit */
bool is_image(const edit *e, value_id v);
bool is_pixel(const edit *e, value_id v); /* an image of fixed height and width 1: both layouts are the same memory */
uint32_t image_where(const edit *e, value_id v); /* image_where */
/* Calls f for each image among the arguments that the node works on. */
void layout_each_image(const layouts *l, node_id n, value_fn f, void *ctx);
/* The node can take and give channels-last images. */
bool layout_possible(layouts *l, node_id n);

/* regions.c: the nodes that are to work on channels-last images */
typedef struct regions {
	layouts l;
	const edit *e;
	bool *in;             /* per node: in a region */
	uint32_t *inner;      /* per value: image arguments of nodes of regions that it is */
	node_id *first_use;   /* per value: the first node of a region that has it as an image; NONE */
	node_id *first_out;   /* per value: the first node outside regions that reads it; the end of the range */
	uint32_t *leaving;    /* per owner of memory: images of regions on it that are read outside, or kept */
	node_id *leaving_at;  /* per owner of memory: where; NONE */
	node_id *inner_write; /* per owner of memory: the last node of a region that writes it; NONE */
	node_id *last_write;  /* per owner of memory: the last node of the range that writes it; NONE */
	bool *apart;          /* per owner of memory: no image on it may be channels-last */
	double *bytes;        /* per value, at the least sizes that may be */
	node_id now;          /* while values of a node are looked at */
	bool yes;
} regions;

clv_status regions_find(edit *e, regions *out); /* in arrays of the edit */
bool made_inside(const regions *r, value_id v);
/* An image of a region that is read outside, or kept. */
bool leaves(const regions *r, value_id v);
