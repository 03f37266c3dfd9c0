/* Images: see image.h. */
#include "native/image.h"

bool image_of(const nt *t, uint32_t spatial, image *out)
{
	bool batched = t->ndim == spatial + 2;
	*out = (image){.data = t->data, .size = {1, 1, 1, 1, 1}};
	if (!batched && t->ndim != spatial + 1)
		return false;
	for (uint32_t d = 0; d < t->ndim; d++) {
		uint32_t at = d + !batched;
		at += at >= 2 ? 3 - spatial : 0;
		out->size[at] = t->size[d];
		out->stride[at] = t->stride[d];
	}
	return true;
}

void image_channels_last(nt *form, uint32_t spatial)
{
	nt whole = *form;
	uint32_t skip = form->ndim == spatial + 1;
	if (skip) {
		whole.ndim++;
		whole.size[0] = 1;
		for (uint32_t d = 0; d < form->ndim; d++)
			whole.size[d + 1] = form->size[d];
	}
	nt_channels_last(&whole);
	for (uint32_t d = 0; d < form->ndim; d++)
		form->stride[d] = whole.stride[d + skip];
}

clv_status image_numbers(lowering *l, node_id n, uint32_t i, uint32_t spatial, int64_t absent, int64_t other,
                         int64_t low, int64_t out[3])
{
	int64_t given[3] = {absent, absent, absent};
	uint32_t count;
	TRY(low_ints(l, n, i, spatial, given, &count));
	if (count > 1 && count != spatial)
		return fail(CLV_E_UNSUPPORTED, "argument %u has %u numbers, expected 1 or %u", i, count, spatial);
	for (uint32_t d = 0; d < 3; d++) {
		uint32_t at = d - (3 - spatial);
		out[d] = d < 3 - spatial ? other : count == 1 ? given[0] : given[at];
		if (d >= 3 - spatial && (out[d] < low || out[d] > IMAGE_AT_MOST))
			return fail(CLV_E_UNSUPPORTED, "argument %u has %lld, outside %lld … %d", i, (long long)out[d],
			            (long long)low, IMAGE_AT_MOST);
	}
	return CLV_OK;
}

clv_status image_expect(lowering *l, node_id n, uint32_t i, uint8_t type, uint32_t spatial, int64_t channels,
                        const int64_t size[3], const image *in, nt *form)
{
	image y;
	TRY(low_form_of_type(l, n, i, type, form));
	if (!image_of(form, spatial, &y) || y.size[0] != in->size[0] || y.size[1] != channels || y.size[2] != size[0] ||
	    y.size[3] != size[1] || y.size[4] != size[2])
		return fail(CLV_E_UNSUPPORTED, "the plan has other sizes for the result than %lld, %lld, %lld, %lld, %lld",
		            (long long)in->size[0], (long long)channels, (long long)size[0], (long long)size[1],
		            (long long)size[2]);
	return CLV_OK;
}

static bool channels_are_next(const nt *t, uint32_t spatial)
{
	uint32_t c = t->ndim - spatial - 1;
	return t->stride[c] == 1 || t->size[c] == 1;
}

clv_status image_input(lowering *l, slot s, uint32_t spatial, slot *out)
{
	nt form = *low_at(l, s);
	*out = s;
	if (channels_are_next(&form, spatial))
		return CLV_OK;
	image_channels_last(&form, spatial);
	TRY(low_temp(l, &form, out));
	return low_copy(l, s, *out);
}

clv_status image_output(lowering *l, node_id n, uint32_t i, nt *form, uint32_t spatial, slot *result, slot *out)
{
	image_channels_last(form, spatial);
	TRY(low_result(l, n, i, form, false, result));
	*out = *result;
	return channels_are_next(low_at(l, *result), spatial) ? CLV_OK : low_temp(l, form, out);
}
