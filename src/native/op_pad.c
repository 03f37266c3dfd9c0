/* Padding with a number or with elements of the tensor itself. */
#include <string.h>

#include "native/place.h"

typedef enum pad_mode { PAD_CONSTANT, PAD_REFLECT, PAD_REPLICATE, PAD_CIRCULAR, PAD_BY_NAME } pad_mode;

/* The index of the input for index i of it, which may lie outside; -1: none. What negative padding cuts off at a side is below `low`
   or from `high` on: elements that go round do not see it. */
static int64_t inside(pad_mode mode, int64_t i, int64_t n, int64_t low, int64_t high)
{
	if (mode == PAD_CIRCULAR)
		return i < low ? i + (high - low) : i >= high ? i - (high - low) : i;
	if (i >= 0 && i < n)
		return i;
	if (mode == PAD_REFLECT)
		i = i < 0 ? -i : 2 * (n - 1) - i;
	else if (mode == PAD_REPLICATE)
		i = i < 0 ? 0 : n - 1;
	else
		return -1;
	return i;
}

static clv_status map_of(lowering *l, pad_mode mode, int64_t n, int64_t before, int64_t out, const int64_t **map)
{
	int64_t *m = low_array(l, out, sizeof *m);
	if (before < INT64_MIN / 2 || before > INT64_MAX / 2)
		return fail(CLV_E_OVERFLOW, "padding by more than 2^62 elements");
	if (!m)
		return fail_nomem();
	int64_t after = out - before - n, low = 0, high = n;
	if (mode == PAD_CIRCULAR) {
		low = before < 0 ? -before : 0;
		high = after < 0 ? n + after : n;
	}
	for (int64_t i = 0; i < out; i++) {
		m[i] = inside(mode, i - before, n, low, high);
		if (mode != PAD_CONSTANT && (m[i] < low || m[i] >= high))
			return fail(CLV_E_UNSUPPORTED, "padding of %lld elements by more than they allow", (long long)n);
	}
	*map = m;
	return CLV_OK;
}

static clv_status mode_named(const char *name, pad_mode *out)
{
	static const char *const names[] = {"constant", "reflect", "replicate", "circular"};
	for (uint32_t i = 0; i < 4; i++)
		if (strcmp(*name ? name : "constant", names[i]) == 0) {
			*out = (pad_mode)i;
			return CLV_OK;
		}
	return fail(CLV_E_UNSUPPORTED, "padding of mode \"%s\"", name);
}

static clv_status lower_pad(lowering *l, node_id n)
{
	pad_mode mode = (pad_mode)low_what(l, n);
	int64_t pad[2 * NT_DIMS];
	uint32_t count;
	double fill = 0;
	nt form;
	slot in;
	const int64_t *map[NT_DIMS] = {0};
	bool any = false;
	TRY(low_tensor(l, n, 0, &in));
	TRY(low_ints(l, n, 1, 2 * NT_DIMS, pad, &count));
	if (mode == PAD_CONSTANT)
		TRY(low_real(l, n, 2, 0, &fill));
	if (mode == PAD_BY_NAME) {
		TRY(mode_named(low_str(l, n, 2), &mode));
		TRY(low_real(l, n, 3, 0, &fill));
	}
	TRY(low_form(l, n, 0, &form));
	const nt x = *low_at(l, in);
	if (count % 2 || count / 2 > x.ndim || form.ndim != x.ndim)
		return fail(CLV_E_UNSUPPORTED, "%u numbers to pad %u dimensions with", count, x.ndim);
	for (uint32_t d = 0; d < x.ndim; d++) { /* pairs begin with the last dimension */
		uint32_t pair = x.ndim - 1 - d;
		int64_t before = pair < count / 2 ? pad[2 * pair] : 0, after = pair < count / 2 ? pad[2 * pair + 1] : 0, out;
		if (__builtin_add_overflow(x.size[d], before, &out) || __builtin_add_overflow(out, after, &out) ||
		    out != form.size[d])
			return fail(CLV_E_UNSUPPORTED, "dimension %u of the result does not have the size that the padding gives",
			            d);
		any |= before || after;
		if (before || after)
			TRY(map_of(l, mode, x.size[d], before, out, &map[d]));
	}
	return any ? low_place(l, n, in, map, fill) : low_same(l, n, 0, in);
}

#define PAD(op, mode)                                                                                                  \
	{                                                                                                                  \
		.id = OP_##op, .lower = lower_pad, .what = mode                                                                \
	}
const native_op native_ops_pad[] = {
	PAD(_pad_circular, PAD_CIRCULAR),
	PAD(constant_pad_nd, PAD_CONSTANT),
	PAD(pad, PAD_BY_NAME),
	PAD(reflection_pad1d, PAD_REFLECT),
	PAD(reflection_pad2d, PAD_REFLECT),
	PAD(reflection_pad3d, PAD_REFLECT),
	PAD(replication_pad1d, PAD_REPLICATE),
	PAD(replication_pad2d, PAD_REPLICATE),
	PAD(replication_pad3d, PAD_REPLICATE),
	{.id = OP_UNKNOWN},
};
