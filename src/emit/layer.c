/* Finds layers: nodes that together are one call of a layer of torch.nn.
 *
 * `rules` says how a layer appears in a plan. A rule fits a node of a module of that class when every argument is what the
 * layer passes: its own tensors under their names, constants that its constructor takes, its mode. Then calling the layer
 * is the same computation. A node that fits no rule stays a function call.
 *
 * args, in the operator's order:
 *   x            an argument of the call            name        a constant that the constructor takes
 *   @t           the module's tensor t              @t?         likewise, or none
 *   @t&u         there exactly when u is            @t<u        may be there when u is
 *   =text        the argument reads `text`          mode        the module's training flag, in either mode
 *   mode@t       likewise where it has t, else true
 * All but the mode must be the same in the model's other mode, as far as that is known.
 * init, in the constructor's order:
 *   t.0          a size of tensor t (x: of the call's argument); t.1*name: times a constant
 *   name         a constant, a list of equal numbers as one; #name: a list as it is
 *   k:item       by keyword k                       name=text   by keyword, left out when it reads `text`
 *   name~other   by keyword, left out when it is empty or reads as `other`
 *   k?t=text     by keyword: whether t is there, left out when that reads `text`; k?t~u=text: left out without u too
 *   !text        as it is */
#include <stdio.h>
#include <string.h>

#include "emit/emit.h"
#include "plan/ops.h"

typedef struct rule {
	const char *cls;
	uint16_t op;
	const char *args, *init;
} rule;

#define CONV_ARGS "x, @weight, @bias?, stride, padding, dilation, groups"
#define CONV_INIT                                                                                                      \
	"weight.1*groups, weight.0, kernel_size:weight.2+, stride=1, padding=0, dilation=1, groups=1, bias?bias=True"
#define CONV_BACK_ARGS "x, @weight, @bias?, stride, padding, output_padding, groups, dilation"
#define CONV_BACK_INIT                                                                                                 \
	"weight.0, weight.1*groups, kernel_size:weight.2+, stride=1, padding=0, output_padding=0, groups=1, "              \
	"bias?bias=True, dilation=1"
#define NORM_ARGS                                                                                                      \
	"x, @weight?, @bias&weight, @running_mean?, @running_var&running_mean, mode@running_mean, momentum, eps, =True"
#define BATCH_INIT "x.1, eps=1e-05, momentum=0.1, affine?weight=True, track_running_stats?running_mean=True"
#define INSTANCE_INIT "x.1, eps=1e-05, momentum=0.1, affine?weight=False, track_running_stats?running_mean=False"
#define MAX_ARGS "x, kernel_size, stride, padding, dilation, ceil_mode"
#define MAX_INIT "kernel_size, stride~kernel_size, padding=0, dilation=1, ceil_mode=False"
#define AVG_ARGS "x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override"
#define AVG_INIT                                                                                                       \
	"kernel_size, stride~kernel_size, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None"

static const rule rules[] = {
	{"Conv1d", OP_conv1d, CONV_ARGS, CONV_INIT},
	{"Conv2d", OP_conv2d, CONV_ARGS, CONV_INIT},
	{"Conv3d", OP_conv3d, CONV_ARGS, CONV_INIT},
	{"Conv1d", OP_conv1d_padding, CONV_ARGS, CONV_INIT},
	{"Conv2d", OP_conv2d_padding, CONV_ARGS, CONV_INIT},
	{"Conv3d", OP_conv3d_padding, CONV_ARGS, CONV_INIT},
	{"ConvTranspose1d", OP_conv_transpose1d, CONV_BACK_ARGS, CONV_BACK_INIT},
	{"ConvTranspose2d", OP_conv_transpose2d_input, CONV_BACK_ARGS, CONV_BACK_INIT},
	{"ConvTranspose3d", OP_conv_transpose3d_input, CONV_BACK_ARGS, CONV_BACK_INIT},
	{"Linear", OP_linear, "x, @weight, @bias?", "weight.1, weight.0, bias?bias=True"},
	{"Bilinear", OP_bilinear, "x, x, @weight, @bias?", "weight.1, weight.2, weight.0, bias?bias=True"},
	{"Embedding", OP_embedding, "@weight, x, padding_idx, scale_grad_by_freq, sparse",
     "weight.0, weight.1, padding_idx=-1, scale_grad_by_freq=False, sparse=False"},
	{"BatchNorm1d", OP_batch_norm, NORM_ARGS, BATCH_INIT},
	{"BatchNorm2d", OP_batch_norm, NORM_ARGS, BATCH_INIT},
	{"BatchNorm3d", OP_batch_norm, NORM_ARGS, BATCH_INIT},
	{"InstanceNorm1d", OP_instance_norm, NORM_ARGS, INSTANCE_INIT},
	{"InstanceNorm2d", OP_instance_norm, NORM_ARGS, INSTANCE_INIT},
	{"InstanceNorm3d", OP_instance_norm, NORM_ARGS, INSTANCE_INIT},
	{"LayerNorm", OP_layer_norm, "x, normalized_shape, @weight?, @bias<weight, eps, =True",
     "#normalized_shape, eps=1e-05, elementwise_affine?weight=True, bias?bias~weight=True"},
	{"RMSNorm", OP_rms_norm, "x, normalized_shape, @weight?, eps",
     "#normalized_shape, eps=None, elementwise_affine?weight=True"},
	{"GroupNorm", OP_group_norm, "x, num_groups, @weight?, @bias&weight, eps, =True",
     "num_groups, x.1, eps=1e-05, affine?weight=True"},
	{"MaxPool1d", OP_max_pool1d, MAX_ARGS, MAX_INIT},
	{"MaxPool2d", OP_max_pool2d, MAX_ARGS, MAX_INIT},
	{"MaxPool3d", OP_max_pool3d, MAX_ARGS, MAX_INIT},
	{"AvgPool1d", OP_avg_pool1d, "x, kernel_size, stride, padding, ceil_mode, count_include_pad",
     "kernel_size, stride~kernel_size, padding=0, ceil_mode=False, count_include_pad=True"},
	{"AvgPool2d", OP_avg_pool2d, AVG_ARGS, AVG_INIT},
	{"AvgPool3d", OP_avg_pool3d, AVG_ARGS, AVG_INIT},
	{"AdaptiveAvgPool1d", OP_adaptive_avg_pool1d, "x, output_size", "output_size"},
	{"AdaptiveAvgPool2d", OP_adaptive_avg_pool2d, "x, output_size", "output_size"},
	{"AdaptiveAvgPool3d", OP_adaptive_avg_pool3d, "x, output_size", "output_size"},
	{"AdaptiveMaxPool1d", OP_adaptive_max_pool1d, "x, output_size", "output_size"},
	{"AdaptiveMaxPool2d", OP_adaptive_max_pool2d, "x, output_size", "output_size"},
	{"AdaptiveMaxPool3d", OP_adaptive_max_pool3d, "x, output_size", "output_size"},
	{"ReLU", OP_relu, "x", ""},
	{"ReLU", OP_relu_, "x", "!inplace=True"},
	{"ReLU6", OP_relu6, "x", ""},
	{"ReLU6", OP_relu6_, "x", "!inplace=True"},
	{"GELU", OP_gelu, "x, approximate", "approximate=\"none\""},
	{"SiLU", OP_silu, "x", ""},
	{"SiLU", OP_silu_, "x", "!inplace=True"},
	{"Mish", OP_mish, "x", ""},
	{"Mish", OP_mish_, "x", "!inplace=True"},
	{"Sigmoid", OP_sigmoid, "x", ""},
	{"Tanh", OP_tanh, "x", ""},
	{"Softmax", OP_softmax_int, "x, dim, =None", "dim:dim"},
	{"LogSoftmax", OP_log_softmax_int, "x, dim, =None", "dim:dim"},
	{"LeakyReLU", OP_leaky_relu, "x, negative_slope", "negative_slope=0.01"},
	{"LeakyReLU", OP_leaky_relu_, "x, negative_slope", "negative_slope=0.01, !inplace=True"},
	{"ELU", OP_elu, "x, alpha, =1, =1", "alpha=1.0"},
	{"ELU", OP_elu_, "x, alpha, =1, =1", "alpha=1.0, !inplace=True"},
	{"CELU", OP_celu, "x, alpha", "alpha=1.0"},
	{"SELU", OP_selu, "x", ""},
	{"Hardswish", OP_hardswish, "x", ""},
	{"Hardswish", OP_hardswish_, "x", "!inplace=True"},
	{"Hardsigmoid", OP_hardsigmoid, "x", ""},
	{"Hardsigmoid", OP_hardsigmoid_, "x", "!inplace=True"},
	{"Hardtanh", OP_hardtanh, "x, min_val, max_val", "min_val=-1.0, max_val=1.0"},
	{"Hardtanh", OP_hardtanh_, "x, min_val, max_val", "min_val=-1.0, max_val=1.0, !inplace=True"},
	{"Softplus", OP_softplus, "x, beta, threshold", "beta=1.0, threshold=20.0"},
	{"Softshrink", OP_softshrink, "x, lambd", "lambd=0.5"},
	{"Hardshrink", OP_hardshrink, "x, lambd", "lambd=0.5"},
	{"LogSigmoid", OP_log_sigmoid, "x", ""},
	{"Threshold", OP_threshold, "x, threshold, value", "threshold, value"},
	{"GLU", OP_glu, "x, dim", "dim=-1"},
	{"PReLU", OP_prelu, "x, @weight", "weight.0"},
	{"Dropout", OP_dropout, "x, p, mode", "p=0.5"},
	{"Dropout", OP_dropout_, "x, p, mode", "p=0.5, !inplace=True"},
	{"Dropout1d", OP_feature_dropout, "x, p, mode", "p=0.5"},
	{"Dropout2d", OP_feature_dropout, "x, p, mode", "p=0.5"},
	{"Dropout3d", OP_feature_dropout, "x, p, mode", "p=0.5"},
	{"AlphaDropout", OP_alpha_dropout, "x, p, mode", "p=0.5"},
	{"Flatten", OP_flatten_using_ints, "x, start_dim, end_dim", "start_dim=1, end_dim=-1"},
	{"PixelShuffle", OP_pixel_shuffle, "x, upscale_factor", "upscale_factor"},
	{"PixelUnshuffle", OP_pixel_unshuffle, "x, downscale_factor", "downscale_factor"},
	{"Upsample", OP_upsample_nearest1d_vec, "x, =None, scale_factor", "scale_factor:scale_factor"},
	{"Upsample", OP_upsample_nearest2d_vec, "x, =None, scale_factor", "scale_factor:scale_factor"},
	{"Upsample", OP_upsample_nearest3d_vec, "x, =None, scale_factor", "scale_factor:scale_factor"},
	{"Upsample", OP_upsample_bilinear2d_vec, "x, =None, align_corners, scale_factor",
     "scale_factor:scale_factor, !mode=\"bilinear\", align_corners:align_corners"},
};

/* ---- reading a rule ---------------------------------------------------------------------------------------------- */

enum { MOST = 12 }; /* arguments of an operator in the table */

typedef struct constant {
	const char *name;
	size_t n;
	const arg *a;
} constant;

typedef struct tensor {
	const char *name;
	size_t n;
	value_id v; /* NONE: it has none */
} tensor;

/* A node under a rule. */
typedef struct fit {
	writer *w;
	const node *n;
	node_id id;
	const char *path; /* of the module */
	value_id x;       /* first argument of the call; NONE */
	constant constants[MOST];
	tensor tensors[MOST];
	uint32_t nconstants, ntensors;
} fit;

static const tensor *find_tensor(const fit *f, const char *s, size_t n)
{
	for (uint32_t i = 0; i < f->ntensors; i++)
		if (f->tensors[i].n == n && !memcmp(f->tensors[i].name, s, n))
			return &f->tensors[i];
	return NULL;
}

static bool has_tensor(const fit *f, const char *s, size_t n)
{
	const tensor *t = find_tensor(f, s, n);
	return t && t->v != NONE;
}

static const arg *find_constant(const fit *f, const char *s, size_t n)
{
	for (uint32_t i = 0; i < f->nconstants; i++)
		if (f->constants[i].n == n && !memcmp(f->constants[i].name, s, n))
			return f->constants[i].a;
	return NULL;
}

/* Value v is the module's tensor `s`, by its name or a second one. */
static bool is_own(const fit *f, value_id v, const char *s, size_t n)
{
	const plan *p = f->w->p;
	strbuf want = STRBUF_INIT;
	strbuf_printf(&want, "%s.%.*s", f->path, (int)n, s);
	strbuf_putc(&want, '\0');
	bool own = !want.failed && !strcmp(plan_s(p, p->values.at[v].name), want.at);
	for (uint32_t i = 0; !want.failed && !own && i < p->ties.n; i++)
		own = p->ties.at[i].value == v && !strcmp(plan_s(p, p->ties.at[i].name), want.at);
	f->w->stage->failed |= want.failed;
	strbuf_free(&want);
	return own;
}

static bool is_plain_tensor(const value *x)
{
	return (x->kind == VALUE_PARAM || x->kind == VALUE_BUFFER) && x->strides == NONE && !(x->flags & VALUE_ODD);
}

/* s … s+n-1 after the @: t, t?, t&u, t<u */
static bool fit_tensor(fit *f, const arg *a, const char *s, size_t n)
{
	size_t name = strcspn(s, "?&<,");
	char how = name < n ? s[name] : ' ';
	bool other = how == '&' || how == '<' ? has_tensor(f, s + name + 1, n - name - 1) : false;
	if (!a || a->kind == ARG_NONE) {
		f->tensors[f->ntensors++] = (tensor){s, name, NONE};
		return how == '?' || how == '<' || (how == '&' && !other);
	}
	if (a->kind != ARG_VALUE || !is_plain_tensor(&f->w->p->values.at[a->u.v]) || !is_own(f, a->u.v, s, name))
		return false;
	f->tensors[f->ntensors++] = (tensor){s, name, a->u.v};
	return how == ' ' || how == '?' || other;
}

static bool is_constant_arg(const plan *p, const arg *a)
{
	int64_t k;
	if (a->kind == ARG_INT)
		return expr_is_const(p, a->u.e, &k);
	if (a->kind != ARG_LIST)
		return a->kind == ARG_FLOAT || a->kind == ARG_BOOL || a->kind == ARG_STR || a->kind == ARG_NONE;
	for (uint32_t i = 0; i < a->u.list.n; i++)
		if (p->args.at[a->u.list.first + i].kind == ARG_LIST || !is_constant_arg(p, &p->args.at[a->u.list.first + i]))
			return false;
	return true;
}

static bool arg_reads(writer *w, const arg *a, const char *s, size_t n)
{
	strbuf b = STRBUF_INIT;
	bool same = write_arg(w, a, &b) == CLV_OK && !b.failed && b.n == n && !memcmp(b.at, s, n);
	w->stage->failed |= b.failed;
	strbuf_free(&b);
	return same;
}

/* Argument i is the flag of a module that has the mode of the model; always: it is true in both modes. */
static bool is_mode(const fit *f, uint32_t i, bool always)
{
	const arg *a = i < f->n->nargs ? &f->w->p->args.at[f->n->args + i] : NULL;
	const twins *t = f->w->stage->twins;
	if (!a || a->kind != ARG_BOOL || a->u.b != (always || f->w->p->training))
		return false;
	return !t || twins_alone(t, f->id) || (twins_arg(t, f->id, i) != NULL) == !always;
}

static bool fit_mode(const fit *f, uint32_t i, const char *s, size_t n)
{
	return is_mode(f, i, n > 5 && !has_tensor(f, s + 5, n - 5));
}

static bool fit_item(fit *f, uint32_t i, const char *s, size_t n)
{
	const plan *p = f->w->p;
	const arg *a = i < f->n->nargs ? &p->args.at[f->n->args + i] : NULL;
	if (n >= 4 && !memcmp(s, "mode", 4))
		return fit_mode(f, i, s, n);
	if (a && twins_arg(f->w->stage->twins, f->id, i))
		return false;
	if (n == 1 && s[0] == 'x') {
		if (!a || a->kind != ARG_VALUE || p->values.at[a->u.v].type != TYPE_TENSOR)
			return false;
		f->x = f->x == NONE ? a->u.v : f->x;
		return true;
	}
	if (s[0] == '@')
		return fit_tensor(f, a, s + 1, n - 1);
	if (s[0] == '=')
		return !a || arg_reads(f->w, a, s + 1, n - 1);
	if (!a)
		return true; /* the layer's default is the operator's */
	f->constants[f->nconstants++] = (constant){s, n, a};
	return is_constant_arg(p, a);
}

/* Other results than the first are not given by the layer. */
static bool gives_first_only(const fit *f)
{
	const plan *p = f->w->p;
	for (uint32_t i = 0; i < f->n->nresults; i++) {
		const arg *a = &p->args.at[f->n->results + i];
		if (a->kind == ARG_LIST || (i && a->kind == ARG_VALUE && is_used(f->w, a->u.v)))
			return false;
	}
	return f->n->nresults > 0;
}

static bool fit_rule(fit *f, const rule *r)
{
	uint32_t i = 0;
	for (const char *s = r->args; *s; i++) {
		size_t n = strcspn(s, ",");
		if (!fit_item(f, i, s, n))
			return false;
		s += n + strspn(s + n, ", ");
	}
	return f->n->nargs <= i && gives_first_only(f);
}

/* ---- the constructor --------------------------------------------------------------------------------------------- */

static bool all_same(const plan *p, const arg *a)
{
	const arg *at = &p->args.at[a->u.list.first];
	for (uint32_t i = 1; i < a->u.list.n; i++)
		if (at[i].kind != at[0].kind ||
		    (at[0].kind == ARG_INT ? at[i].u.e != at[0].u.e : at[0].kind != ARG_FLOAT || at[i].u.f != at[0].u.f))
			return false;
	return a->u.list.n > 0;
}

static clv_status put_constant(writer *w, const arg *a, bool whole, strbuf *b)
{
	if (a->kind != ARG_LIST)
		return write_arg(w, a, b);
	if (whole ? a->u.list.n == 1 : all_same(w->p, a))
		return write_arg(w, &w->p->args.at[a->u.list.first], b);
	strbuf_putc(b, '(');
	for (uint32_t i = 0; i < a->u.list.n; i++) {
		strbuf_puts(b, i ? ", " : "");
		TRY(write_arg(w, &w->p->args.at[a->u.list.first + i], b));
	}
	strbuf_puts(b, a->u.list.n == 1 ? ",)" : ")");
	return CLV_OK;
}

/* Sizes d … of a tensor, one number where all are the same. */
static bool put_sizes_from(const plan *p, const value *x, uint32_t d, strbuf *b)
{
	int64_t first = 0, k;
	bool same = true;
	for (uint32_t i = d; i < x->ndim; i++) {
		if (!expr_is_const(p, p->dims.at[x->shape + i], &k))
			return false;
		first = i == d ? k : first;
		same &= k == first;
	}
	if (same) {
		strbuf_int(b, first);
		return x->ndim > d;
	}
	for (uint32_t i = d; i < x->ndim; i++) {
		expr_is_const(p, p->dims.at[x->shape + i], &k);
		strbuf_puts(b, i == d ? "(" : ", ");
		strbuf_int(b, k);
	}
	strbuf_putc(b, ')');
	return true;
}

/* t.0, t.2+, t.1*name */
static bool put_tensor_size(const fit *f, const char *s, size_t n, strbuf *b)
{
	const plan *p = f->w->p;
	size_t dot = (size_t)((const char *)memchr(s, '.', n) - s);
	const tensor *t = find_tensor(f, s, dot);
	value_id v = dot == 1 && s[0] == 'x' ? f->x : t ? t->v : NONE;
	uint32_t d = (uint32_t)(s[dot + 1] - '0');
	int64_t k, times = 1;
	if (v == NONE || p->values.at[v].ndim <= d)
		return false;
	if (dot + 2 < n && s[dot + 2] == '+')
		return put_sizes_from(p, &p->values.at[v], d, b);
	if (!expr_is_const(p, p->dims.at[p->values.at[v].shape + d], &k))
		return false;
	if (dot + 2 < n) {
		const arg *a = find_constant(f, s + dot + 3, n - dot - 3);
		if (a && (a->kind != ARG_INT || !expr_is_const(p, a->u.e, &times) || times < 1 || k > INT64_MAX / times))
			return false;
	}
	strbuf_int(b, k * times);
	return true;
}

static void put_part(strbuf *b, const char *key, size_t n, const char *text, size_t length)
{
	strbuf_puts(b, b->n && b->at[b->n - 1] != '(' ? ", " : "");
	strbuf_add(b, key, n);
	strbuf_puts(b, n ? "=" : "");
	strbuf_add(b, text, length);
}

/* The text of one item of init, without its keyword; *fits false: the rule is not for this node. */
static clv_status item_text(const fit *f, const char *s, size_t n, strbuf *b, bool *fits)
{
	bool whole = s[0] == '#';
	if (memchr(s, '.', n) && !memchr(s, '=', n)) {
		*fits = put_tensor_size(f, s, n, b);
		return CLV_OK;
	}
	const arg *a = find_constant(f, s + whole, n - whole);
	*fits = a != NULL;
	return a ? put_constant(f->w, a, whole, b) : CLV_OK;
}

/* k?t=text, k?t~u=text */
static void put_presence(const fit *f, const char *s, size_t n, strbuf *b)
{
	const char *ask = memchr(s, '?', n), *sign = memchr(s, '=', n), * or = memchr(s, '~', n);
	const char *end = or ? or : sign;
	bool has = has_tensor(f, ask + 1, (size_t)(end - ask - 1));
	bool usual = !strncmp(sign + 1, "True", 4);
	if (has == usual || (or &&!has_tensor(f, or +1, (size_t)(sign - or -1))))
		return;
	put_part(b, s, (size_t)(ask - s), has ? "True" : "False", has ? 4 : 5);
}

/* name=text, name~other */
static clv_status put_optional(const fit *f, const char *s, size_t name, size_t n, strbuf *b)
{
	const arg *a = find_constant(f, s, name);
	strbuf text = STRBUF_INIT, other = STRBUF_INIT;
	if (!a)
		return CLV_OK;
	clv_status st = put_constant(f->w, a, false, &text);
	const char *usual = s + name + 1;
	size_t length = n - name - 1;
	if (st == CLV_OK && s[name] == '~') {
		const arg *like = find_constant(f, usual, length);
		if (like)
			st = put_constant(f->w, like, false, &other);
		usual = other.at;
		length = other.n;
	}
	bool empty = a->kind == ARG_LIST && a->u.list.n == 0;
	b->failed |= text.failed || other.failed;
	if (st == CLV_OK && !b->failed && !empty && !(text.n == length && !memcmp(text.at, usual, length)))
		put_part(b, s, name, text.at, text.n);
	strbuf_free(&text);
	strbuf_free(&other);
	return st;
}

static clv_status put_item(const fit *f, const char *s, size_t n, strbuf *b, bool *fits)
{
	size_t name = strcspn(s, "=~,");
	const char *colon = memchr(s, ':', n);
	strbuf text = STRBUF_INIT;
	if (s[0] == '!') {
		put_part(b, "", 0, s + 1, n - 1);
		return CLV_OK;
	}
	if (memchr(s, '?', n)) {
		put_presence(f, s, n, b);
		return CLV_OK;
	}
	if (name < n)
		return put_optional(f, s, name, n, b);
	size_t key = colon ? (size_t)(colon - s) : 0, skip = colon ? key + 1 : 0;
	clv_status st = item_text(f, s + skip, n - skip, &text, fits);
	b->failed |= text.failed;
	if (st == CLV_OK && *fits && !text.failed)
		put_part(b, s, key, text.at, text.n);
	strbuf_free(&text);
	return st;
}

/* All tensors of a layer are made alike; integers count and are made as they are. */
static bool put_dtype(const fit *f, strbuf *b)
{
	uint8_t d = DT_COUNT;
	for (uint32_t i = 0; i < f->ntensors; i++) {
		if (f->tensors[i].v == NONE)
			continue;
		uint8_t own = f->w->p->values.at[f->tensors[i].v].dtype;
		if (d != DT_COUNT && own != d)
			return false;
		d = own;
	}
	if (d == DT_COUNT || d == DT_F32)
		return true;
	strbuf text = STRBUF_INIT;
	strbuf_printf(&text, "torch.%s", torch_dtype(d));
	if (!text.failed)
		put_part(b, "dtype", 5, text.at, text.n);
	b->failed |= text.failed;
	strbuf_free(&text);
	return true;
}

static clv_status put_init(const fit *f, const rule *r, strbuf *b, bool *fits)
{
	strbuf_printf(b, "nn.%s(", r->cls);
	for (const char *s = r->init; *s && *fits && !b->failed;) {
		size_t n = strcspn(s, ",");
		TRY(put_item(f, s, n, b, fits));
		s += n + strspn(s + n, ", ");
	}
	*fits = *fits && !b->failed && put_dtype(f, b);
	strbuf_putc(b, ')');
	return b->failed ? fail_nomem() : CLV_OK;
}

/* ---- what a layer does besides its operator ------------------------------------------------------------------------ */

typedef struct counter {
	value_id v;
	uint32_t uses;
} counter;

static void count_value_use(void *ctx, value_id v)
{
	counter *c = ctx;
	c->uses += v == c->v;
}

static uint32_t uses_of(const writer *w, value_id v)
{
	counter c = {v, 0};
	for (node_id n = 0; n < w->p->nodes.n; n++)
		node_each_arg(w->p, n, count_value_use, &c);
	return c.uses;
}

/* STATISTICS_COUNTER += 1, which a batch norm that trains does first; NONE: there is none, or it does more. */
static node_id find_count(const fit *f, node_id n)
{
	const plan *p = f->w->p;
	for (node_id m = n; m-- > f->w->s->first;) {
		const node *x = &p->nodes.at[m];
		if (x->scope != f->n->scope)
			continue;
		if (x->op_id != OP_add__Tensor || x->context != f->n->context || x->nargs < 2)
			return NONE;
		const arg *a = &p->args.at[x->args];
		bool own = a[0].kind == ARG_VALUE && p->values.at[a[0].u.v].kind == VALUE_BUFFER &&
		           is_own(f, a[0].u.v, STATISTICS_COUNTER, strlen(STATISTICS_COUNTER)) &&
		           arg_reads(f->w, &a[1], "1", 1) && (x->nargs < 3 || arg_reads(f->w, &a[2], "1", 1));
		const arg *r = x->nresults ? &p->args.at[x->results] : NULL;
		if (!own || (r && r->kind == ARG_VALUE && is_used(f->w, r->u.v)))
			return NONE;
		return m;
	}
	return NONE;
}

/* A batch norm's rank, mode and count; *count is the node that counts, or NONE. */
static bool fit_batch_norm(const fit *f, node_id n, const char *cls, node_id *count)
{
	const plan *p = f->w->p;
	uint32_t ndim = p->values.at[f->x].ndim, rank = (uint32_t)(cls[strlen(cls) - 2] - '0');
	bool tracked = has_tensor(f, "running_mean", 12);
	const arg *momentum = find_constant(f, "momentum", 8);
	*count = NONE;
	if (ndim != rank + 2 && !(rank == 1 && ndim == 2))
		return false;
	if (cls[0] != 'B')
		return ndim == rank + 2;
	const twins *t = f->w->stage->twins;
	if (!p->training) /* without a momentum the layer passes 0 then; in train mode it counts, which no node here does */
		return (!t || !tracked) && (!momentum || momentum->kind != ARG_FLOAT || momentum->u.f != 0);
	*count = tracked ? find_count(f, n) : NONE;
	return !tracked || (*count != NONE && (!t || twins_alone(t, *count) || twins_alone(t, n)));
}

/* ---- recurrent layers: their tensors are a list ------------------------------------------------------------------- */

typedef struct recurrent {
	const char *cls;
	uint16_t op;
	const char *extra;
	uint32_t gates, states;
} recurrent;

static const recurrent recurrents[] = {
	{"LSTM", OP_lstm_input, "", 4, 2},
	{"GRU", OP_gru_input, "", 3, 1},
	{"RNN", OP_rnn_tanh_input, "", 1, 1},
	{"RNN", OP_rnn_relu_input, ", nonlinearity=\"relu\"", 1, 1},
};

static const recurrent *find_recurrent(const plan *p, const node *n)
{
	const char *cls = n->scope == NONE ? "" : plan_s(p, p->scopes.at[n->scope].cls);
	for (size_t i = 0; i < sizeof recurrents / sizeof *recurrents; i++)
		if (!strcmp(recurrents[i].cls, cls) && n->op_id == recurrents[i].op)
			return &recurrents[i];
	return NULL;
}

/* (x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first) */
enum { REC_X, REC_STATE, REC_PARAMS, REC_BIAS, REC_LAYERS, REC_DROPOUT, REC_MODE, REC_BOTH, REC_FIRST, REC_NARGS };

clv_status layer_slot_add(layers *all, value_id v, const char *name, size_t n)
{
	char *copy = arena_alloc(&all->arena, n + 1);
	TRY(arena_status(&all->arena));
	memcpy(copy, name, n);
	return vec_push(&all->slots, ((layer_slot){v, copy}));
}

static clv_status fit_weight(fit *f, layers *all, const arg *a, const char *kind, uint32_t i, bool back, bool *fits)
{
	char name[48];
	int n = snprintf(name, sizeof name, "%s_l%u%s", kind, i, back ? "_reverse" : "");
	*fits = a->kind == ARG_VALUE && is_plain_tensor(&f->w->p->values.at[a->u.v]) && is_own(f, a->u.v, name, (size_t)n);
	return *fits ? layer_slot_add(all, a->u.v, name, (size_t)n) : CLV_OK;
}

static clv_status fit_weights(fit *f, layers *all, const arg *list, uint32_t nlayers, bool bias, bool both, bool *fits)
{
	static const char *const kinds[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
	uint32_t per = bias ? 4 : 2, dirs = both ? 2 : 1, k = 0;
	if (list->kind != ARG_LIST || nlayers > 1024 || list->u.list.n != per * dirs * nlayers) {
		*fits = false;
		return CLV_OK;
	}
	for (uint32_t i = 0; *fits && i < nlayers * dirs; i++)
		for (uint32_t j = 0; *fits && j < per; j++)
			TRY(fit_weight(f, all, &f->w->p->args.at[list->u.list.first + k++], kinds[j], i / dirs, i % dirs, fits));
	return CLV_OK;
}

/* The layer makes zeros itself where it is given no state: then these nodes are part of the call. */
static bool is_own_zeros(const fit *f, const arg *a, node_id before, node_id *made)
{
	const plan *p = f->w->p;
	if (a->kind != ARG_VALUE || p->values.at[a->u.v].kind != VALUE_RESULT)
		return false;
	node_id m = p->values.at[a->u.v].def;
	*made = m;
	return m >= f->w->s->first && m < before && p->nodes.at[m].op_id == OP_zeros &&
	       p->nodes.at[m].scope == f->n->scope && p->nodes.at[m].context == f->n->context &&
	       p->values.at[a->u.v].dtype == p->values.at[f->x].dtype && uses_of(f->w, a->u.v) == 1 &&
	       f->w->last[a->u.v] == before;
}

static void hide_zeros(const fit *f, layers *all, const recurrent *r, node_id n)
{
	const plan *p = f->w->p;
	const arg *state = &p->args.at[f->n->args + REC_STATE];
	const arg *at = state->kind == ARG_LIST ? &p->args.at[state->u.list.first] : state;
	node_id made[2] = {NONE, NONE};
	for (uint32_t i = 0; i < r->states; i++)
		if (!is_own_zeros(f, &at[i], n, &made[i]))
			return;
	for (uint32_t i = 0; i < r->states; i++)
		all->hidden[made[i]] = true;
}

static clv_status fit_recurrent(fit *f, layers *all, const recurrent *r, node_id id, strbuf *b, bool *fits)
{
	const plan *p = f->w->p;
	const arg *a = &p->args.at[f->n->args];
	int64_t nlayers = 0, input = 0, rows = 0;
	*fits = false;
	if (f->n->nargs != REC_NARGS || a[REC_X].kind != ARG_VALUE || p->values.at[a[REC_X].u.v].ndim != 3)
		return CLV_OK;
	for (uint32_t i = REC_BIAS; i < REC_NARGS; i++)
		if (a[i].kind != (i == REC_LAYERS ? ARG_INT : i == REC_DROPOUT ? ARG_FLOAT : ARG_BOOL))
			return CLV_OK;
	const arg *state = &a[REC_STATE];
	bool states = r->states == 1 ? state->kind == ARG_VALUE : state->kind == ARG_LIST && state->u.list.n == 2;
	if (!states || !expr_is_const(p, a[REC_LAYERS].u.e, &nlayers) || nlayers < 1 || !is_mode(f, REC_MODE, false))
		return CLV_OK;
	for (uint32_t i = REC_BIAS; i < REC_NARGS; i++)
		if (i != REC_MODE && twins_arg(f->w->stage->twins, id, i))
			return CLV_OK;
	f->x = a[REC_X].u.v;
	uint32_t first = all->slots.n;
	*fits = true;
	TRY(fit_weights(f, all, &a[REC_PARAMS], (uint32_t)nlayers, a[REC_BIAS].u.b, a[REC_BOTH].u.b, fits));
	if (!*fits)
		return CLV_OK;
	const value *w = &p->values.at[all->slots.at[first].v];
	*fits = w->ndim == 2 && w->dtype == DT_F32 && expr_is_const(p, p->dims.at[w->shape], &rows) &&
	        expr_is_const(p, p->dims.at[w->shape + 1], &input) && rows % r->gates == 0;
	strbuf_printf(b, "nn.%s(%lld, %lld", r->cls, (long long)input, (long long)(rows / r->gates));
	if (nlayers != 1)
		strbuf_printf(b, ", num_layers=%lld", (long long)nlayers);
	strbuf_puts(b, r->extra);
	strbuf_puts(b, a[REC_BIAS].u.b ? "" : ", bias=False");
	strbuf_puts(b, a[REC_FIRST].u.b ? ", batch_first=True" : "");
	if (a[REC_DROPOUT].u.f != 0) {
		strbuf_puts(b, ", dropout=");
		write_float(a[REC_DROPOUT].u.f, b);
	}
	strbuf_puts(b, a[REC_BOTH].u.b ? ", bidirectional=True)" : ")");
	if (*fits)
		hide_zeros(f, all, r, id);
	return CLV_OK;
}

static clv_status put_state(writer *w, layers *all, const arg *state, strbuf *b)
{
	const plan *p = w->p;
	const arg *one = state->kind == ARG_LIST ? &p->args.at[state->u.list.first] : state;
	node_id made = p->values.at[one->u.v].def;
	if (made != NONE && all->hidden[made])
		return CLV_OK;
	strbuf_puts(b, ", ");
	if (state->kind != ARG_LIST)
		return write_arg(w, state, b);
	strbuf_putc(b, '(');
	TRY(write_arg(w, &one[0], b));
	strbuf_puts(b, ", ");
	TRY(write_arg(w, &one[1], b));
	strbuf_putc(b, ')');
	return CLV_OK;
}

/* out, (h, c) = */
static void put_recurrent_targets(writer *w, const node *n, strbuf *b)
{
	const arg *r = &w->p->args.at[n->results];
	const char *names[3] = {"_", "_", "_"};
	bool any = false;
	for (uint32_t i = 0; i < 3 && i < n->nresults; i++) {
		bool used = r[i].kind == ARG_VALUE && is_used(w, r[i].u.v);
		names[i] = used ? ident_value(&w->ids, r[i].u.v) : "_";
		any |= i > 0 && used;
	}
	if (!any)
		strbuf_printf(b, "%s, _ = ", names[0]);
	else if (n->nresults == 3)
		strbuf_printf(b, "%s, (%s, %s) = ", names[0], names[1], names[2]);
	else
		strbuf_printf(b, "%s, %s = ", names[0], names[1]);
}

/* ---- finding them ------------------------------------------------------------------------------------------------- */

static const rule *find_rule(const plan *p, const node *n)
{
	const char *cls = n->scope == NONE ? "" : plan_s(p, p->scopes.at[n->scope].cls);
	for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
		if (!strcmp(rules[i].cls, cls) && n->op_id == rules[i].op)
			return &rules[i];
	return NULL;
}

const char *path_inside(const char *name, const char *path)
{
	size_t n = strlen(path);
	return !strncmp(name, path, n) && name[n] == '.' ? name + n + 1 : NULL;
}

/* A module that has parts or other tensors is more than the layer. */
static bool is_leaf(const plan *p, const char *path, const layers *all, uint32_t first)
{
	for (scope_id s = 0; s < p->scopes.n; s++)
		if (path_inside(plan_s(p, p->scopes.at[s].path), path))
			return false;
	for (value_id v = 0; v < p->values.n; v++) {
		const value *x = &p->values.at[v];
		bool module = x->kind == VALUE_PARAM || x->kind == VALUE_BUFFER || x->kind == VALUE_ATTR;
		const char *rest = module ? path_inside(plan_s(p, x->name), path) : NULL;
		if (!rest || !strcmp(rest, STATISTICS_COUNTER))
			continue;
		bool own = false;
		for (uint32_t i = first; i < all->slots.n; i++)
			own |= all->slots.at[i].v == v;
		if (!own)
			return false;
	}
	return true;
}

static clv_status take_slots(const fit *f, layers *all, node_id count)
{
	for (uint32_t i = 0; i < f->ntensors; i++)
		if (f->tensors[i].v != NONE)
			TRY(layer_slot_add(all, f->tensors[i].v, f->tensors[i].name, f->tensors[i].n));
	if (count == NONE)
		return CLV_OK;
	const plan *p = f->w->p;
	return layer_slot_add(all, p->args.at[p->nodes.at[count].args].u.v, STATISTICS_COUNTER, strlen(STATISTICS_COUNTER));
}

/* Text of the constructor, slots and hidden nodes of the call at n. */
static clv_status fit_node(fit *f, layers *all, node_id n, strbuf *b, bool *fits)
{
	const plan *p = f->w->p;
	const recurrent *rec = find_recurrent(p, f->n);
	const rule *r = find_rule(p, f->n);
	node_id count = NONE;
	if (rec)
		return fit_recurrent(f, all, rec, n, b, fits);
	*fits = r && fit_rule(f, r);
	if (*fits && strstr(r->args, "mode@"))
		*fits = fit_batch_norm(f, n, r->cls, &count);
	if (!*fits)
		return CLV_OK;
	TRY(put_init(f, r, b, fits));
	if (!*fits)
		return CLV_OK;
	TRY(take_slots(f, all, count));
	if (count != NONE)
		all->hidden[count] = true;
	return CLV_OK;
}

clv_status layer_add(layers *all, scope_id s, uint32_t first, strbuf *text, uint32_t *out)
{
	layer one = {.scope = s, .first = first, .nslots = all->slots.n - first};
	TRY(arena_take(&all->arena, text, &one.init));
	*out = all->at.n;
	return vec_push(&all->at, one);
}

uint32_t layer_of_scope(const layers *all, scope_id s)
{
	for (uint32_t i = 0; i < all->at.n; i++)
		if (all->at.at[i].scope == s)
			return i;
	return NONE;
}

bool is_in_block(const plan *p, const layers *all, const char *path)
{
	for (uint32_t i = 0; i < all->at.n; i++) {
		const char *block = plan_s(p, p->scopes.at[all->at.at[i].scope].path);
		if (all->at.at[i].block && (!strcmp(path, block) || path_inside(path, block)))
			return true;
	}
	return false;
}

static clv_status try_node(writer *w, layers *all, node_id n)
{
	const plan *p = w->p;
	const node *x = &p->nodes.at[n];
	const char *path = x->scope == NONE ? "" : plan_s(p, p->scopes.at[x->scope].path);
	if (!source_path_ok(path) || is_in_block(p, all, path))
		return CLV_OK;
	fit f = {.w = w, .n = x, .id = n, .path = path, .x = NONE};
	strbuf text = STRBUF_INIT;
	uint32_t first = all->slots.n, at = layer_of_scope(all, x->scope);
	bool fits = false;
	clv_status st = fit_node(&f, all, n, &text, &fits);
	if (st == CLV_OK && (text.failed || w->stage->failed))
		st = fail_nomem();
	if (st == CLV_OK && fits && at == NONE && is_leaf(p, f.path, all, first))
		st = layer_add(all, x->scope, first, &text, &all->of_node[n]);
	else if (st == CLV_OK && fits && at != NONE && strlen(all->at.at[at].init) == text.n &&
	         !memcmp(all->at.at[at].init, text.at, text.n))
		all->of_node[n] = at;
	if (all->of_node[n] == NONE || at != NONE)
		all->slots.n = first;
	strbuf_free(&text);
	return st;
}

/* A node is hidden only for a call that was taken. */
static clv_status try_all(writer *w, layers *all)
{
	bool *before = arena_alloc(&all->arena, w->p->nodes.n);
	TRY(arena_status(&all->arena));
	for (node_id n = w->s->first; n < w->s->end; n++) {
		memcpy(before, all->hidden, w->p->nodes.n);
		if (all->of_node[n] == NONE)
			TRY(try_node(w, all, n));
		if (all->of_node[n] == NONE)
			memcpy(all->hidden, before, w->p->nodes.n);
	}
	return CLV_OK;
}

/* Layer i may take its slot k in this pass: what is given has its tensors, then layers have those of their own name. */
static bool may_hold(const plan *p, const layers *all, uint32_t i, uint32_t k, int pass)
{
	const layer *l = &all->at.at[i];
	const layer_slot *s = &all->slots.at[l->first + k];
	const char *rest = path_inside(plan_s(p, p->values.at[s->v].name), plan_s(p, p->scopes.at[l->scope].path));
	return pass == 2 || l->block || (pass == 1 && rest && !strcmp(rest, s->name));
}

/* Each tensor is held by one layer. */
static void choose_holders(const plan *p, layers *all)
{
	for (int pass = 0; pass < 3; pass++)
		for (uint32_t i = 0; i < all->at.n; i++)
			for (uint32_t k = 0; k < all->at.at[i].nslots; k++) {
				uint32_t number = all->at.at[i].first + k;
				value_id v = all->slots.at[number].v;
				if (all->holder[v] != NONE || !may_hold(p, all, i, k, pass))
					continue;
				all->holder[v] = number;
				all->path[v] = plan_s(p, p->scopes.at[all->at.at[i].scope].path);
			}
}

clv_status layers_find(writer *w, layers *out)
{
	const plan *p = w->p;
	*out = (layers){0};
	out->of_node = arena_ids(&out->arena, p->nodes.n);
	out->holder = arena_ids(&out->arena, p->values.n);
	out->hidden = arena_alloc(&out->arena, p->nodes.n);
	out->path = arena_array(&out->arena, p->values.n, sizeof *out->path);
	TRY(arena_status(&out->arena));
	TRY(blocks_find(w, out));
	TRY(try_all(w, out));
	choose_holders(p, out);
	return CLV_OK;
}

void layers_free(layers *all)
{
	vec_free(&all->at);
	vec_free(&all->slots);
	arena_free(&all->arena);
}

/* ---- the call ----------------------------------------------------------------------------------------------------- */

static clv_status put_call_args(writer *w, const node *n, strbuf *b)
{
	const plan *p = w->p;
	uint32_t i = 0;
	bool any = false;
	const rule *r = find_rule(p, n);
	for (const char *s = r ? r->args : ""; *s && i < n->nargs; i++) {
		size_t k = strcspn(s, ",");
		if (k == 1 && s[0] == 'x') {
			strbuf_puts(b, any ? ", " : "");
			TRY(write_arg(w, &p->args.at[n->args + i], b));
			any = true;
		}
		s += k + strspn(s + k, ", ");
	}
	return CLV_OK;
}

clv_status write_layer_call(writer *w, node_id id, strbuf *b)
{
	const plan *p = w->p;
	layers *all = &w->stage->layers;
	const node *n = &p->nodes.at[id];
	const char *path = plan_s(p, p->scopes.at[n->scope].path);
	const arg *result = n->nresults ? &p->args.at[n->results] : NULL;
	bool rec = find_recurrent(p, n) != NULL;
	if (rec)
		put_recurrent_targets(w, n, b);
	else if (result && result->kind == ARG_VALUE && is_used(w, result->u.v))
		strbuf_printf(b, "%s = ", ident_value(&w->ids, result->u.v));
	write_path(w, path, b);
	strbuf_putc(b, '(');
	if (rec) {
		const arg *a = &p->args.at[n->args];
		TRY(write_arg(w, &a[REC_X], b));
		TRY(put_state(w, all, &a[REC_STATE], b));
	} else {
		TRY(put_call_args(w, n, b));
	}
	strbuf_putc(b, ')');
	return CLV_OK;
}
