// Tensors as memory, for files: where the bytes of one are, and new ones over given bytes. No operator runs, so nothing
// is recorded and no mode changes what comes out.
#include <dlfcn.h>

#include "bridge/impl.hpp"

extern "C" {
#include "base/digest.h"
}

#include <ATen/quantized/QTensorImpl.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>

using bridge::borrow;
using bridge::is_fixed;
using bridge::release;

clv_status br_memory_get(const br_tensor *ct, br_memory *out)
{
	br_meta m;
	if (!ct)
		return fail(CLV_E_INVALID, "the tensor is undefined");
	TRY(br_meta_get(ct, &m));
	if (!m.strided || !m.storage)
		return fail(CLV_E_UNSUPPORTED, "its layout is %s, only strided tensors have memory that can be written",
		            layout_names[m.layout]);
	if (std::strcmp(m.device, "cpu") != 0 || m.conj || m.neg)
		return fail(CLV_E_INVALID, "its data is on %s%s, not plain memory", m.device,
		            m.conj || m.neg ? ", lazily changed" : "");
	BRIDGE_CATCH({
		const auto *impl = reinterpret_cast<const c10::TensorImpl *>(ct);
		out->base = impl->storage().data();
		out->data = out->base ? static_cast<const char *>(out->base) + m.offset * impl->itemsize() : nullptr;
		return CLV_OK;
	})
}

clv_status br_bytes_new(size_t n, br_tensor **out, void **data)
{
	if (n > INT64_MAX)
		return fail(CLV_E_OVERFLOW, "a memory has more than 2^63 bytes");
	try {
		// The allocator itself: a tensor's own memory, aligned as kernels like it.
		c10::Allocator *allocator = c10::GetAllocator(c10::DeviceType::CPU);
		c10::Storage storage(c10::Storage::use_byte_size_t(), n, allocator, /*resizable=*/true);
		*data = storage.mutable_data();
		at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
			std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<uint8_t>());
		t.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(n)});
		*out = release(std::move(t));
		return CLV_OK;
	} catch (...) {
		return fail(CLV_E_NOMEM, "there is no memory for %zu bytes", n);
	}
}

// ---- quantised tensors

static at::Tensor doubles(const double *at, uint32_t n)
{
	at::Tensor t = at::empty({static_cast<int64_t>(n)}, at::kDouble);
	if (n)
		std::memcpy(t.mutable_data_ptr(), at, n * sizeof *at);
	return t;
}

static at::QuantizerPtr make_quantiser(const quantiser &q, at::ScalarType type, c10::Device device)
{
	if (q.scheme == QUANT_TENSOR)
		return at::make_per_tensor_affine_quantizer(q.scales[0], static_cast<int64_t>(q.zero_points[0]), type);
	// torch makes the kind of quantiser that the type of the zero points says
	bool floating = q.scheme == QUANT_CHANNEL_FLOAT;
	at::Tensor scales = doubles(q.scales, q.n).to(floating ? at::kFloat : at::kDouble);
	at::Tensor zero_points = doubles(q.zero_points, q.n).to(floating ? at::kFloat : at::kLong);
	return at::make_per_channel_affine_quantizer(scales.to(device), zero_points.to(device), q.axis, type);
}

static at::Tensor quantised_view(const at::Tensor &base, at::ScalarType type, const quantiser &q)
{
	at::DisableRecordFunctionGuard quiet;
	at::NoGradGuard no_grad;
	c10::DispatchKey key = at::TensorOptions().dtype(type).device(base.device()).computeDispatchKey();
	return at::detail::make_tensor<at::QTensorImpl>(c10::Storage(base.storage()), c10::DispatchKeySet(key),
	                                                c10::scalarTypeToTypeMeta(type),
	                                                make_quantiser(q, type, base.device()));
}

static clv_status quant_scheme_of(const at::Tensor &t, quant_scheme *out)
{
	switch (t.qscheme()) {
	case at::kPerTensorAffine: *out = QUANT_TENSOR; return CLV_OK;
	case at::kPerChannelAffine: *out = QUANT_CHANNEL; return CLV_OK;
	case at::kPerChannelAffineFloatQParams: *out = QUANT_CHANNEL_FLOAT; return CLV_OK;
	default: return fail(CLV_E_UNSUPPORTED, "it is quantised as %s", at::toString(t.qscheme()).c_str());
	}
}

static void copy_doubles(const at::Tensor &from, double *to)
{
	at::Tensor t = from.to(at::kCPU).to(at::kDouble).contiguous();
	if (t.numel())
		std::memcpy(to, t.const_data_ptr(), static_cast<size_t>(t.numel()) * sizeof *to);
}

clv_status br_quantiser_get(const br_tensor *ct, quantiser *out)
{
	BRIDGE_CATCH({
		at::DisableRecordFunctionGuard quiet;
		at::NoGradGuard no_grad;
		at::Tensor t = borrow(ct);
		quantiser q = {};
		TRY(quant_scheme_of(t, &q.scheme));
		bool channels = q.scheme != QUANT_TENSOR;
		q.axis = channels ? static_cast<uint32_t>(t.q_per_channel_axis()) : 0;
		q.n = channels ? static_cast<uint32_t>(t.q_per_channel_scales().numel()) : 1;
		*out = q;
		return CLV_OK;
	})
}

clv_status br_quantiser_numbers(const br_tensor *ct, const quantiser *q, double *out)
{
	BRIDGE_CATCH({
		at::DisableRecordFunctionGuard quiet;
		at::NoGradGuard no_grad;
		at::Tensor t = borrow(ct);
		if (q->scheme == QUANT_TENSOR) {
			out[0] = t.q_scale();
			out[1] = static_cast<double>(t.q_zero_point());
			return CLV_OK;
		}
		copy_doubles(t.q_per_channel_scales(), out);
		copy_doubles(t.q_per_channel_zero_points(), out + q->n);
		return CLV_OK;
	})
}

// As views that operators make, all of them count writes together: autograd notices a write through another one.
clv_status br_view_bytes(const br_tensor *bytes, const br_view *v, br_tensor **out)
{
	BRIDGE_CATCH({
		at::Tensor base = borrow(bytes);
		at::ScalarType type = bridge::scalar_type_of(v->dtype);
		int64_t item = static_cast<int64_t>(c10::elementSize(type));
		at::Tensor t = v->quantiser
		                   ? quantised_view(base, type, *v->quantiser)
		                   : at::detail::make_tensor<c10::TensorImpl>(c10::Storage(base.storage()), base.key_set(),
		                                                              c10::scalarTypeToTypeMeta(type));
		t.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(v->sizes, v->ndim),
		                                               at::IntArrayRef(v->strides, v->ndim), v->offset / item);
		t.unsafeGetTensorImpl()->set_version_counter(base.unsafeGetTensorImpl()->version_counter());
		if (v->requires_grad)
			t.set_requires_grad(true);
		*out = release(std::move(t));
		return CLV_OK;
	})
}

// What is called when memory of somebody else's is no longer used. A maker of tensors that fails calls it too, and one
// without a context never does: so the context is this, and it says whether there is a tensor.
struct Owner {
	void (*free_it)(void *);
	void *ctx;
	bool taken; // there is a tensor
	bool fixed; // nobody may write the memory
};

static void owner_release(void *at)
{
	std::unique_ptr<Owner> owner(static_cast<Owner *>(at));
	if (owner->taken && owner->free_it)
		owner->free_it(owner->ctx);
}

bool bridge::is_fixed(const c10::Storage &s)
{
	return s.data_ptr().get_deleter() == owner_release && static_cast<const Owner *>(s.data_ptr().get_context())->fixed;
}

// torch computes the extent of foreign memory without a check, or where no exception may come out.
clv_status bridge::check_extent(const char *who, uint32_t ndim, const int64_t *sizes, const int64_t *strides,
                                size_t item)
{
	int64_t elements = static_cast<int64_t>(item), reach = 1, step;
	bool over = false;
	for (uint32_t i = 0; i < ndim; i++) {
		if (sizes[i] < 0 || (strides && strides[i] < 0))
			return fail(CLV_E_INVALID, "%s: dimension %u or its stride is negative", who, i);
		over |= __builtin_mul_overflow(elements, sizes[i] ? sizes[i] : 1, &elements);
		over |=
			strides && sizes[i] > 1 &&
			(__builtin_mul_overflow(sizes[i] - 1, strides[i], &step) || __builtin_add_overflow(reach, step, &reach));
	}
	if (over || __builtin_mul_overflow(reach, static_cast<int64_t>(item), &step))
		return fail(CLV_E_OVERFLOW, "%s: a tensor of this shape has more than 2^63 bytes", who);
	return CLV_OK;
}

clv_status br_wrap(void *data, const br_blob *b, void (*free_it)(void *), void *ctx, br_tensor **out)
{
	BRIDGE_CATCH({
		auto owner = std::make_unique<Owner>(Owner{free_it, ctx, false, b->fixed});
		Owner *kept = owner.get();
		auto maker = at::for_blob(data, at::IntArrayRef(b->sizes, b->ndim));
		maker.options(at::TensorOptions().dtype(bridge::scalar_type_of(b->dtype)));
		if (b->strides)
			maker.strides(at::IntArrayRef(b->strides, b->ndim));
		maker.context(owner.release(), owner_release);
		at::Tensor t = maker.make_tensor();
		kept->taken = true;
		*out = release(std::move(t));
		return CLV_OK;
	})
}

bool br_is_fixed(const br_tensor *t)
{
	const auto *x = reinterpret_cast<const c10::TensorImpl *>(t);
	return x->has_storage() && is_fixed(x->storage());
}

int64_t br_numel(const br_tensor *t)
{
	return reinterpret_cast<const c10::TensorImpl *>(t)->numel();
}

int64_t br_itemsize(const br_tensor *t)
{
	return static_cast<int64_t>(reinterpret_cast<const c10::TensorImpl *>(t)->itemsize());
}

clv_status br_copy(const br_tensor *from, br_tensor *to)
{
	BRIDGE_CATCH({
		at::NoGradGuard off;
		borrow(to).copy_(borrow(from));
		return CLV_OK;
	})
}

clv_status br_check_like(const br_tensor *want, const br_tensor *got, const char *name)
{
	BRIDGE_CATCH({
		at::Tensor a = borrow(want), b = borrow(got);
		if (b.is_meta())
			return fail(CLV_E_INPUT, "%.64s has no data: it is on the device meta", name);
		if (a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes())
			return CLV_OK;
		std::ostringstream text;
		text << b.dtype() << ' ' << b.sizes() << ", the model has " << a.dtype() << ' ' << a.sizes();
		return fail(CLV_E_INPUT, "%.64s is %s", name, text.str().c_str());
	})
}

// ---- devices

// The device as tensors call it: "cuda" is "cuda:0", "cpu:0" is "cpu".
static clv_status read_device(const char *text, c10::Device *out)
{
	try {
		c10::Device d(text);
		*out = c10::Device(d.type(), d.is_cpu() || d.is_meta() ? -1 : d.has_index() ? d.index() : 0);
		return CLV_OK;
	} catch (...) {
		return fail(CLV_E_INVALID, "\"%.32s\" is no device; cpu and cuda:0 are", text);
	}
}

// A program that links libtorch_cpu alone has no CUDA until its library is loaded; Python's torch has done so.
static clv_status load_device(const c10::Device &to)
{
	if (!to.is_cuda() || c10::impl::hasDeviceGuardImpl(to.type()) || dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL))
		return CLV_OK;
	return fail(CLV_E_UNSUPPORTED, "this torch has no CUDA: %s", dlerror());
}

clv_status br_device(const char *text, char *out, size_t n)
{
	c10::Device d(c10::kCPU);
	TRY(read_device(text, &d));
	TRY(load_device(d));
	BRIDGE_CATCH({
		const std::string name = d.str();
		bool here = c10::impl::hasDeviceGuardImpl(d.type());
		int count = here ? c10::impl::getDeviceGuardImpl(d.type())->deviceCount() : 0;
		if (!here || (d.has_index() && d.index() >= count))
			return fail(CLV_E_INVALID, "there is no device %s here%s", name.c_str(),
			            here ? "" : ": this PyTorch was built without it");
		if (name.size() >= n)
			return fail(CLV_E_INVALID, "\"%.32s\" is no device; cpu and cuda:0 are", text);
		std::memcpy(out, name.c_str(), name.size() + 1);
		return CLV_OK;
	})
}

clv_status br_to_device(const br_tensor *t, const char *device, br_tensor **out)
{
	c10::Device to(c10::kCPU);
	TRY(read_device(device, &to));
	TRY(load_device(to));
	BRIDGE_CATCH({
		at::NoGradGuard no_grad;
		at::Tensor from = borrow(t);
		*out = release(from.device() == to ? std::move(from) : from.to(to));
		return CLV_OK;
	})
}

clv_status br_leaf(const br_tensor *t, bool requires_grad, br_tensor **out)
{
	BRIDGE_CATCH({
		at::Tensor leaf = borrow(t).detach();
		leaf.set_requires_grad(requires_grad);
		*out = release(std::move(leaf));
		return CLV_OK;
	})
}

// ---- marks

static uint64_t mix(uint64_t h, uint64_t x)
{
	h = (h ^ x) * 0x9e3779b97f4a7c15ull;
	return h ^ (h >> 29);
}

// Some bytes of memory without gaps, from its first to its last.
static uint64_t mix_samples(uint64_t h, const char *data, size_t n)
{
	const size_t width = n < sizeof(uint64_t) ? n : sizeof(uint64_t), samples = 4;
	for (size_t i = 0; i < samples && n; i++) {
		uint64_t x = 0;
		std::memcpy(&x, data + (n - width) * i / (samples - 1), width);
		h = mix(h, x);
	}
	return h;
}

static uint64_t mix_all(uint64_t h, const char *data, size_t n)
{
	const digest d = digest_of(data, n);
	return mix(mix(h, d.high), d.low);
}

static void find_extent(const c10::TensorImpl *t, bool whole, uintptr_t *low, uintptr_t *high)
{
	if (!t->has_storage() || t->layout() != at::kStrided)
		return;
	const auto *s = t->unsafe_storage().unsafeGetStorageImpl();
	*low = *high = reinterpret_cast<uintptr_t>(s->data());
	if (whole) {
		*high += *low ? s->nbytes() : 0;
		return;
	}
	if (!*low || !t->numel())
		return;
	uintptr_t span = 1;
	for (int64_t d = 0; d < t->dim(); d++)
		span += static_cast<uintptr_t>((t->size(d) - 1) * t->stride(d));
	*low += static_cast<uintptr_t>(t->storage_offset()) * t->itemsize();
	*high = *low + span * t->itemsize();
}

void br_extent(const br_tensor *t, bool whole, uintptr_t *low, uintptr_t *high)
{
	*low = *high = 0;
	try {
		find_extent(reinterpret_cast<const c10::TensorImpl *>(t), whole, low, high);
	} catch (...) { // a tensor without data (fake, of a transform)
	}
}

// Where a tensor lies and how.
static uint64_t mix_place(const at::Tensor &x)
{
	if (!x.has_storage() || x.layout() != at::kStrided)
		return mix(2, reinterpret_cast<uintptr_t>(x.unsafeGetTensorImpl()));
	uint64_t h = mix(1, reinterpret_cast<uintptr_t>(x.storage().data()));
	h = mix(mix(h, static_cast<uint64_t>(x.storage_offset())), static_cast<uint64_t>(x.scalar_type()));
	for (int64_t d = 0; d < x.dim(); d++)
		h = mix(mix(h, static_cast<uint64_t>(x.size(d))), static_cast<uint64_t>(x.stride(d)));
	return h;
}

uint64_t br_place(const br_tensor *t)
{
	try {
		return mix_place(borrow(t));
	} catch (...) {
		return 0; // nothing that could be looked at
	}
}

bool br_mark(const br_tensor *t, size_t whole, uint64_t *out)
{
	*out = 0;
	try {
		const at::Tensor &x = borrow(t);
		bool counted = !x.is_inference();
		*out = mix(mix_place(x), counted ? static_cast<uint64_t>(x._version()) : 0);
		if (!x.has_storage() || x.layout() != at::kStrided)
			return false;
		const char *data = static_cast<const char *>(x.storage().data());
		const bool all = x.device().is_cpu() && x.nbytes() <= whole;
		if (!data || !x.device().is_cpu() || !x.unsafeGetTensorImpl()->is_non_overlapping_and_dense())
			return counted && !all;
		data += static_cast<size_t>(x.storage_offset()) * x.itemsize();
		*out = all ? mix_all(*out, data, x.nbytes()) : mix_samples(*out, data, x.nbytes());
		return all || counted;
	} catch (...) {
		return false;
	}
}

// ---- layouts

// The strides of a dense tensor of this order; false: t has others, in a dimension where that matters.
static bool dense_strides(const at::Tensor &t, const uint32_t *order, c10::SmallVector<int64_t, 8> &strides)
{
	bool same = true;
	int64_t step = 1;
	strides.resize(static_cast<size_t>(t.dim()));
	for (size_t i = strides.size(); i-- > 0;) {
		int64_t size = t.size(order[i]);
		strides[order[i]] = step;
		same = same && (size == 1 || t.stride(order[i]) == step);
		step *= size > 1 ? size : 1;
	}
	return same || t.numel() == 0;
}

clv_status br_dense(const br_tensor *ct, const uint32_t *order, br_tensor **out)
{
	if (!ct)
		return fail(CLV_E_INVALID, "the tensor is undefined");
	BRIDGE_CATCH({
		at::Tensor t = borrow(ct);
		c10::SmallVector<int64_t, 8> strides;
		if (t.layout() != at::kStrided)
			return fail(CLV_E_UNSUPPORTED, "only strided tensors can be laid out anew");
		if (dense_strides(t, order, strides) && !t.is_conj() && !t.is_neg()) {
			*out = br_ref(ct);
			return CLV_OK;
		}
		at::NoGradGuard no_grad;
		at::Tensor copy = at::empty_strided(t.sizes(), strides, t.options().requires_grad(false));
		copy.copy_(t);
		*out = release(std::move(copy));
		return CLV_OK;
	})
}

bool br_shares_memory(const br_tensor *a, const br_tensor *b)
{
	const auto *x = reinterpret_cast<const c10::TensorImpl *>(a), *y = reinterpret_cast<const c10::TensorImpl *>(b);
	return x && y && x->has_storage() && y->has_storage() && x->storage().is_alias_of(y->storage());
}
