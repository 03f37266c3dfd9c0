/* The step of an optimizer: SGD, Adam and AdamW by the operators that torch.optim calls on the CPU (its single-tensor path,
 * as of torch 2.13), in the same order and with the same numbers, so that the bits are the same. */
#include <math.h>

#include "base/mem.h"
#include "exec/trainer.h"

/* ---- operators ------------------------------------------------------------------------------------------------------ */

/* Every one takes up to three tensors and then at most one number: a factor ("S", by its name), or what is a tensor for the
   operator ("W"). Those that end in _ write the first tensor. */
#define OPERATORS(X)                                                                                                   \
	X(NEG, "aten::neg", 1, 0, false)                                                                                   \
	X(SQRT, "aten::sqrt", 1, 0, false)                                                                                 \
	X(ZEROS, "aten::zeros_like", 1, 0, false)                                                                          \
	X(MAXIMUM, "aten::maximum", 2, 0, false)                                                                           \
	X(ADD, "aten::add.Tensor", 2, 'S', false)                                                                          \
	X(ADD_, "aten::add_.Tensor", 2, 'S', true)                                                                         \
	X(SHIFT_, "aten::add_.Tensor", 1, 'W', true)                                                                       \
	X(MUL_, "aten::mul_.Tensor", 1, 'W', true)                                                                         \
	X(DIV, "aten::div.Tensor", 1, 'W', false)                                                                          \
	X(LERP_, "aten::lerp_.Scalar", 2, 'S', true)                                                                       \
	X(ADDCMUL_, "aten::addcmul_", 3, 'S', true)                                                                        \
	X(ADDCDIV_, "aten::addcdiv_", 3, 'S', true)

enum {
#define X(id, op, tensors, number, writes) OP_##id,
	OPERATORS(X)
#undef X
		OP_COUNT
};

struct update_sites {
	br_site *at[OP_COUNT];
};

static const struct row {
	const char *op;
	uint32_t tensors;
	char number;
	bool writes;
} rows[] = {
#define X(id, op, tensors, number, writes) {op, tensors, number, writes},
	OPERATORS(X)
#undef X
};

enum { MOST_TENSORS = 3, RESULT = MOST_TENSORS };

static clv_status bind(const struct row *r, br_site **out)
{
	br_arg args[MOST_TENSORS + 1] = {0}, result = {.kind = BR_TENSOR, .u.id = RESULT};
	uint32_t n = r->tensors;
	for (uint32_t i = 0; i < n; i++)
		args[i] = (br_arg){.kind = BR_TENSOR, .written = r->writes && i == 0, .u.id = i};
	if (r->number)
		args[n++] = (br_arg){.kind = BR_REALVAR, .wrapped = r->number == 'W'};
	return br_site_new(r->op, args, n, &result, 1, NULL, false, out);
}

clv_status update_sites_new(update_sites **out)
{
	update_sites *s = mem_alloc(sizeof *s);
	clv_status st = s ? CLV_OK : fail_nomem();
	for (uint32_t i = 0; i < OP_COUNT && st == CLV_OK; i++)
		st = bind(&rows[i], &s->at[i]);
	if (st == CLV_OK)
		*out = s;
	else
		update_sites_free(s);
	return st;
}

void update_sites_free(update_sites *s)
{
	for (uint32_t i = 0; s && i < OP_COUNT; i++)
		br_site_free(s->at[i]);
	mem_free(s);
}

/* *out, which may be the first tensor's place, is a new reference; NULL: nobody wants the result. */
static clv_status call(const update_sites *s, uint32_t op, br_tensor *a, br_tensor *b, br_tensor *c, double number,
                       br_tensor **out)
{
	br_tensor *slots[MOST_TENSORS + 1] = {a, b, c, NULL};
	br_arg numbers = {.kind = BR_FLOAT, .u.f = number};
	TRY(br_call(s->at[op], slots, &numbers, NULL));
	if (out)
		*out = slots[RESULT];
	else
		br_unref(slots[RESULT]);
	return CLV_OK;
}

/* A result in the place of what it was made of. */
static clv_status replace(br_tensor **at, br_tensor *with)
{
	br_unref(*at);
	*at = with;
	return CLV_OK;
}

clv_status update_add(const update_sites *s, br_tensor *a, br_tensor *b, br_tensor **out)
{
	return call(s, OP_ADD, a, b, NULL, 1, out);
}

/* ---- what both begin with ------------------------------------------------------------------------------------------- */

/* *grad is owned. */
static clv_status decay(const update_sites *s, const training_group *g, br_tensor *p, br_tensor **grad)
{
	br_tensor *made;
	if (g->weight_decay == 0)
		return CLV_OK;
	TRY(call(s, OP_ADD, *grad, p, NULL, g->weight_decay, &made));
	return replace(grad, made);
}

static clv_status begin(const update_sites *s, const training_group *g, br_tensor *given, br_tensor **grad)
{
	if (g->maximize)
		return call(s, OP_NEG, given, NULL, NULL, 0, grad);
	*grad = br_ref(given);
	return CLV_OK;
}

/* ---- SGD -------------------------------------------------------------------------------------------------------------- */

static clv_status move_momentum(const update_sites *s, const training_group *g, br_tensor **kept, br_tensor *grad)
{
	if (!*kept)
		return br_clone(grad, false, kept);
	TRY(call(s, OP_MUL_, *kept, NULL, NULL, g->momentum, NULL));
	return call(s, OP_ADD_, *kept, grad, NULL, 1 - g->dampening, NULL);
}

static clv_status add_momentum(const update_sites *s, trained *x, br_tensor **grad)
{
	const training_group *g = x->group;
	br_tensor **kept = &x->kept[KEPT_MOMENTUM], *made;
	if (g->momentum == 0)
		return CLV_OK;
	TRY(move_momentum(s, g, kept, *grad));
	if (!g->nesterov)
		return replace(grad, br_ref(*kept));
	TRY(call(s, OP_ADD, *grad, *kept, NULL, g->momentum, &made));
	return replace(grad, made);
}

static clv_status update_sgd(const update_sites *s, trained *x, br_tensor *p, br_tensor **grad)
{
	TRY(decay(s, x->group, p, grad));
	TRY(add_momentum(s, x, grad));
	return call(s, OP_ADD_, p, *grad, NULL, -x->group->lr, NULL);
}

/* ---- Adam, AdamW -------------------------------------------------------------------------------------------------------- */

static clv_status need_kept(const update_sites *s, trained *x, br_tensor *p)
{
	for (int i = KEPT_FIRST; i <= (x->group->amsgrad ? KEPT_MOST : KEPT_SECOND); i++)
		if (!x->kept[i])
			TRY(call(s, OP_ZEROS, p, NULL, NULL, 0, &x->kept[i]));
	return CLV_OK;
}

static clv_status move_averages(const update_sites *s, trained *x, br_tensor *grad)
{
	const training_group *g = x->group;
	br_tensor *made;
	TRY(call(s, OP_LERP_, x->kept[KEPT_FIRST], grad, NULL, 1 - g->beta1, NULL));
	TRY(call(s, OP_MUL_, x->kept[KEPT_SECOND], NULL, NULL, g->beta2, NULL));
	TRY(call(s, OP_ADDCMUL_, x->kept[KEPT_SECOND], grad, grad, 1 - g->beta2, NULL));
	if (!g->amsgrad)
		return CLV_OK;
	TRY(call(s, OP_MAXIMUM, x->kept[KEPT_MOST], x->kept[KEPT_SECOND], NULL, 0, &made));
	return replace(&x->kept[KEPT_MOST], made);
}

/* sqrt(second) / correction + eps */
static clv_status denominator(const update_sites *s, const trained *x, double correction, br_tensor **out)
{
	br_tensor *root, *made = NULL;
	TRY(call(s, OP_SQRT, x->kept[x->group->amsgrad ? KEPT_MOST : KEPT_SECOND], NULL, NULL, 0, &root));
	clv_status st = call(s, OP_DIV, root, NULL, NULL, correction, &made);
	br_unref(root);
	if (st == CLV_OK)
		st = call(s, OP_SHIFT_, made, NULL, NULL, x->group->eps, NULL);
	if (st == CLV_OK)
		*out = made;
	else
		br_unref(made);
	return st;
}

/* Numbers are Python's: doubles, and powers by libm. */
static clv_status update_adam(const update_sites *s, trained *x, br_tensor *p, br_tensor **grad)
{
	const training_group *g = x->group;
	br_tensor *denom;
	TRY(need_kept(s, x, p));
	x->steps += 1;
	if (g->kind == OPTIMIZER_ADAM)
		TRY(decay(s, g, p, grad));
	else if (g->weight_decay != 0)
		TRY(call(s, OP_MUL_, p, NULL, NULL, 1 - g->lr * g->weight_decay, NULL));
	TRY(move_averages(s, x, *grad));
	double first = 1 - pow(g->beta1, x->steps), second = 1 - pow(g->beta2, x->steps);
	TRY(denominator(s, x, pow(second, 0.5), &denom));
	clv_status st = call(s, OP_ADDCDIV_, p, x->kept[KEPT_FIRST], denom, -(g->lr / first), NULL);
	br_unref(denom);
	return st;
}

clv_status update_parameter(const update_sites *s, trained *x, br_tensor *leaf, br_tensor *given)
{
	br_tensor *grad;
	TRY(begin(s, x->group, given, &grad));
	clv_status st = x->group->kind == OPTIMIZER_SGD ? update_sgd(s, x, leaf, &grad) : update_adam(s, x, leaf, &grad);
	br_unref(grad);
	return st;
}

const char *const *update_kept_names(const training_group *g)
{
	static const char *const none[KEPT_COUNT], *const sgd[KEPT_COUNT] = {"momentum_buffer"};
	static const char *const adam[KEPT_COUNT] = {"exp_avg", "exp_avg_sq"};
	static const char *const amsgrad[KEPT_COUNT] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
	if (g->kind == OPTIMIZER_SGD)
		return g->momentum == 0 ? none : sgd;
	return g->amsgrad ? amsgrad : adam;
}
