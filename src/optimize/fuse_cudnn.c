/* Convolutions on CUDA with a relu after them, or an addition and a relu: cuDNN does them in one kernel. */
#include "optimize/fuse.h"

#include <string.h>

/* Each channel by itself: cuDNN's joined kernels take many times as long for it as the plain ones. */
static bool is_depthwise(const edit *e, const weighted *w)
{
	return w->groups > 1 && dim_is(e, w->weight, 1, 1);
}

/* stride, padding, dilation, groups */
static clv_status geometry_args(edit *e, const weighted *w, const geometry *g, arg out[4])
{
	TRY(arg_ints(e, g->stride, g->dims, &out[0]));
	TRY(arg_ints(e, g->padding, g->dims, &out[1]));
	TRY(arg_ints(e, g->dilation, g->dims, &out[2]));
	return arg_int(e, w->groups, &out[3]);
}

clv_status fuse_cudnn(fuser *f, node_id n)
{
	weighted w;
	geometry g;
	tail t;
	if (!read_weighted(f->e, n, &w) || w.transposed || !read_geometry(f->e, &w, &g) || g.dims < 2)
		return CLV_OK;
	if (!is_gpu_float(f->e, f->s, w.x) || !is_gpu_float(f->e, f->s, w.weight) || is_depthwise(f->e, &w))
		return CLV_OK;
	if (!has_operator(f->s, OP_cudnn_convolution_relu) || !has_operator(f->s, OP_cudnn_convolution_add_relu))
		return CLV_OK;
	find_tail(f, &w, TAIL_RELU | TAIL_BINARY | TAIL_BINARY_RELU, &t);
	if (!t.act.name || (t.binary && strcmp(t.binary, "add") != 0))
		return CLV_OK;
	if (!t.binary) {
		arg args[7] = {arg_of(w.x), arg_of(w.weight), arg_of(w.bias)};
		TRY(geometry_args(f->e, &w, &g, &args[3]));
		return join(f, &w, &t, OP_cudnn_convolution_relu, args, 7);
	}
	arg args[9] = {arg_of(w.x), arg_of(w.weight), arg_of(t.other), arg_float(1), arg_of(w.bias)};
	TRY(geometry_args(f->e, &w, &g, &args[5]));
	return join(f, &w, &t, OP_cudnn_convolution_add_relu, args, 9);
}
