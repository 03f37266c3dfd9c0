/* Convolutions on CUDA with a relu after them, or an addition and a relu: cuDNN does them in one kernel. */
#include "optimize/fuse.h"

#include <string.h>

static bool is_cuda_float(const edit *e, value_id v)
{
	const value *x = &e->p->values.at[v];
	bool known = x->dtype == DT_F32 || x->dtype == DT_F16 || x->dtype == DT_BF16;
	return x->type == TYPE_TENSOR && known && !(x->flags & VALUE_ODD) && !strncmp(plan_s(e->p, x->device), "cuda", 4);
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
	static const char relu[] = "aten::cudnn_convolution_relu", add_relu[] = "aten::cudnn_convolution_add_relu";
	weighted w;
	geometry g;
	tail t;
	if (!read_weighted(f->e, n, &w) || w.transposed || !read_geometry(f->e, &w, &g) || g.dims < 2)
		return CLV_OK;
	if (!is_cuda_float(f->e, w.x) || !is_cuda_float(f->e, w.weight) || !f->s->has_op(relu) || !f->s->has_op(add_relu))
		return CLV_OK;
	find_tail(f, &w, TAIL_RELU | TAIL_BINARY | TAIL_BINARY_RELU, &t);
	if (!t.act.name || (t.binary && strcmp(t.binary, "add") != 0))
		return CLV_OK;
	if (!t.binary) {
		arg args[7] = {arg_of(w.x), arg_of(w.weight), arg_of(w.bias)};
		TRY(geometry_args(f->e, &w, &g, &args[3]));
		return join(f, &w, &t, relu, args, 7);
	}
	arg args[9] = {arg_of(w.x), arg_of(w.weight), arg_of(t.other), arg_float(1), arg_of(w.bias)};
	TRY(geometry_args(f->e, &w, &g, &args[5]));
	return join(f, &w, &t, add_relu, args, 9);
}
