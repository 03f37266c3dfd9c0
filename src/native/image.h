/* Images: tensors N, C, then one to three spatial dimensions, or the same without N, seen as N, C, D, H, W by convolutions,
 * pooling and resizing. Those write channels last. */
#ifndef NATIVE_IMAGE_H
#define NATIVE_IMAGE_H

#include "native/native.h"

typedef struct image {
	char *data;
	int64_t size[5], stride[5]; /* N, C, D, H, W; of dimensions that are not there: 1 and 0 */
} image;

enum { IMAGE_AT_MOST = INT32_MAX }; /* of strides, paddings and the like, so that sums of products fit in 64 bits */

/* False: it has neither spatial + 1 nor spatial + 2 dimensions. */
bool image_of(const nt *t, uint32_t spatial, image *out);
/* Channels-last strides for a form that image_of takes. */
void image_channels_last(nt *form, uint32_t spatial);
/* Argument i: a number for each spatial dimension, or one for all of them; none there: `absent`. Dimensions that are not there
   get `other`. Numbers outside low … IMAGE_AT_MOST are an error. */
clv_status image_numbers(lowering *l, node_id n, uint32_t i, uint32_t spatial, int64_t absent, int64_t other,
                         int64_t low, int64_t out[3]);
/* Result i of the node has this type and shape, or fails. */
clv_status image_expect(lowering *l, node_id n, uint32_t i, uint8_t type, uint32_t spatial, int64_t channels,
                        const int64_t size[3], const image *in, nt *form);
/* A tensor with channels next to each other: itself, or a channels-last copy for the steps of this node. */
clv_status image_input(lowering *l, slot s, uint32_t spatial, slot *out);
/* The result, or where its channels are not next to each other a tensor that low_copy then copies into it. */
clv_status image_output(lowering *l, node_id n, uint32_t i, nt *form, uint32_t spatial, slot *result, slot *out);

#endif
