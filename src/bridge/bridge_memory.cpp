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
#include <mutex>
#include <optional>
#include <vector>

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
static at::Tensor make_view(const c10::Storage &storage, const c10::VariableVersion &version, int64_t offset,
                            const tensor_form &v)
{
	at::DisableRecordFunctionGuard quiet; // a quantiser is made of tensors
	at::NoGradGuard no_grad;
	at::ScalarType type = bridge::scalar_type_of(v.dtype);
	c10::DispatchKeySet keys(at::TensorOptions().dtype(type).device(storage.device()).computeDispatchKey());
	at::Tensor t =
		v.quantiser
			? at::detail::make_tensor<at::QTensorImpl>(c10::Storage(storage), keys, c10::scalarTypeToTypeMeta(type),
	                                                   make_quantiser(*v.quantiser, type, storage.device()))
			: at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, c10::scalarTypeToTypeMeta(type));
	t.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(v.sizes, v.ndim), at::IntArrayRef(v.strides, v.ndim),
	                                               offset / static_cast<int64_t>(c10::elementSize(type)));
	if (!t.is_inference()) // within torch.inference_mode() nothing counts writes
		t.unsafeGetTensorImpl()->set_version_counter(version);
	if (v.requires_grad)
		t.set_requires_grad(true);
	return t;
}

clv_status br_view_bytes(const br_tensor *bytes, int64_t offset, const tensor_form *f, br_tensor **out)
{
	BRIDGE_CATCH({
		at::Tensor base = borrow(bytes);
		*out = release(make_view(base.storage(), base.unsafeGetTensorImpl()->version_counter(), offset, *f));
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
		at::Tensor there = from.device() == to ? std::move(from) : from.to(to);
		*out = release(to.is_cpu() && (there.is_conj() || there.is_neg()) ? there.resolve_conj().resolve_neg()
		                                                                  : std::move(there));
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

// ---- tensors of the core

// What all tensors on one memory of the core share here. The storage keeps the memory, so it is not kept in turn: it is made
// anew where no tensor is left on it.
struct Shared {
	std::mutex lock;
	std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
	c10::VariableVersion version{0};
};

static void drop_shared(void *ref)
{
	delete static_cast<Shared *>(ref);
}

static void drop_tensor(void *ref)
{
	br_unref(static_cast<br_tensor *>(ref));
}

static void memory_release(void *m)
{
	tensor_memory_unref(static_cast<tensor_memory *>(m));
}

bool bridge::is_fixed(const c10::Storage &s)
{
	return s.data_ptr().get_deleter() == memory_release &&
	       static_cast<const tensor_memory *>(s.data_ptr().get_context())->fixed;
}

static Shared &shared_of(tensor_memory *m)
{
	void *ref = slot_get(&m->slot, drop_shared);
	if (!ref)
		ref = slot_keep(&m->slot, drop_shared, new Shared);
	TORCH_CHECK(ref, "another engine has this memory");
	return *static_cast<Shared *>(ref);
}

static c10::Storage storage_of(tensor_memory *m, Shared &s, c10::Device device)
{
	std::lock_guard<std::mutex> guard(s.lock);
	if (s.storage)
		if (auto there = s.storage->lock())
			return c10::Storage(std::move(there));
	c10::DataPtr data(m->base, tensor_memory_ref(m), memory_release, device);
	c10::Storage made(c10::Storage::use_byte_size_t(), m->bytes, std::move(data), c10::GetAllocator(device.type()),
	                  /*resizable=*/m->own);
	s.storage.emplace(made.getWeakStorageImpl());
	return made;
}

clv_status br_of(const clv_tensor *ct, br_tensor **out)
{
	clv_tensor *t = const_cast<clv_tensor *>(ct);
	void *ref = t ? slot_get(&t->slot, drop_tensor) : nullptr;
	*out = static_cast<br_tensor *>(ref);
	if (!t || ref)
		return CLV_OK;
	BRIDGE_CATCH({
		c10::Device device(t->device);
		TRY(load_device(device));
		Shared &s = shared_of(t->memory);
		tensor_form f = {t->m.dtype, t->m.ndim, t->m.sizes, t->m.strides, nullptr, t->requires_grad, t->quantiser};
		int64_t offset = static_cast<char *>(t->data) - t->memory->base;
		br_tensor *made = release(make_view(storage_of(t->memory, s, device), s.version, offset, f));
		ref = slot_keep(&t->slot, drop_tensor, made);
		if (!ref)
			br_unref(made);
		*out = static_cast<br_tensor *>(ref);
		return ref ? CLV_OK : fail(CLV_E_UNSUPPORTED, "the tensor belongs to another engine");
	})
}

static char *data_of(const c10::TensorImpl *x)
{
	auto *base = x->has_storage() ? const_cast<void *>(x->unsafe_storage().unsafeGetStorageImpl()->data()) : nullptr;
	return base ? static_cast<char *>(base) + static_cast<size_t>(x->storage_offset()) * x->itemsize() : nullptr;
}

// The numbers are in `room`.
static clv_status describe_quantiser(const br_tensor *t, quantiser *q, std::vector<double> &room)
{
	TRY(br_quantiser_get(t, q));
	room.resize(2 * static_cast<size_t>(q->n));
	q->scales = room.data();
	q->zero_points = room.data() + q->n;
	return br_quantiser_numbers(t, q, room.data());
}

static clv_status give(br_tensor *from, clv_tensor **out)
{
	const auto *x = reinterpret_cast<const c10::TensorImpl *>(from);
	std::vector<double> numbers;
	quantiser q;
	tensor_meta m;
	br_look(from, &m);
	tensor_form s = {m.dtype, m.ndim, m.sizes, m.strides, m.device, x->requires_grad(), nullptr};
	if (m.strided && s.dtype < DT_COUNT && dtype_quantised(static_cast<dtype>(s.dtype))) {
		TRY(describe_quantiser(from, &q, numbers));
		s.quantiser = &q;
	}
	TRY(tensor_over(nullptr, m.strided ? data_of(x) : nullptr, &s, out));
	(*out)->m.strided = m.strided;
	(*out)->base = m.strided && x->has_storage() ? x->unsafe_storage().unsafeGetStorageImpl()->data() : nullptr;
	(*out)->lazy = x->is_conj() || x->is_neg();
	slot_keep(&(*out)->slot, drop_tensor, from);
	return CLV_OK;
}

clv_status br_give(br_tensor *t, clv_tensor **out)
{
	*out = nullptr;
	if (!t)
		return CLV_OK;
	clv_status st = CLV_E_TORCH;
	try {
		st = give(t, out);
	} catch (...) {
		st = bridge::fail_exception(__FILE__, __LINE__);
	}
	if (st != CLV_OK)
		br_unref(t);
	return st;
}

clv_status br_of_all(const clv_tensor *const *t, uint32_t n, br_tensor **out)
{
	for (uint32_t i = 0; i < n; i++)
		TRY(br_of(t[i], &out[i]));
	return CLV_OK;
}

clv_status br_take_all(clv_tensor *const *t, uint32_t n, br_tensor **out)
{
	clv_status st = br_of_all(t, n, out);
	for (uint32_t i = 0; i < n; i++) {
		out[i] = st == CLV_OK ? br_ref(out[i]) : nullptr;
		clv_tensor_free(t[i]);
	}
	return st;
}

clv_status br_give_all(br_tensor *const *t, uint32_t n, clv_tensor **out)
{
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < n; i++) {
		if (st == CLV_OK)
			st = br_give(t[i], &out[i]);
		else
			br_unref(t[i]);
		for (uint32_t k = 0; k < i && st != CLV_OK; k++) {
			clv_tensor_free(out[k]);
			out[k] = nullptr;
		}
	}
	return st;
}

clv_status br_refresh(clv_tensor *t)
{
	const auto *x = static_cast<const c10::TensorImpl *>(slot_get(&t->slot, drop_tensor));
	if (!x || !t->m.strided)
		return CLV_OK;
	BRIDGE_CATCH({
		t->data = data_of(x);
		return tensor_resize(t, static_cast<uint32_t>(x->dim()), x->sizes().data(), x->strides().data());
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

// As most inputs are: the whole memory, without gaps.
static bool fills_memory(const c10::TensorImpl *t)
{
	return t->has_storage() && t->layout() == at::kStrided && !t->key_set().has(c10::DispatchKey::NestedTensor) &&
	       t->is_contiguous() && t->storage_offset() == 0 &&
	       t->unsafe_storage().nbytes() == static_cast<size_t>(t->numel()) * t->itemsize();
}

bool br_needs_fence(const br_tensor *t)
{
	uintptr_t low, high, first, end;
	try {
		if (fills_memory(reinterpret_cast<const c10::TensorImpl *>(t)))
			return false;
	} catch (...) { // as in br_extent
	}
	br_extent(t, false, &low, &high);
	br_extent(t, true, &first, &end);
	return low != first || high != end;
}

clv_status br_fence(const br_tensor *t, br_tensor **out)
{
	BRIDGE_CATCH({
		at::Tensor x = borrow(t);
		if (!br_needs_fence(t) || x.is_quantized()) {
			*out = br_ref(t);
			return CLV_OK;
		}
		uintptr_t low, high;
		br_extent(t, false, &low, &high);
		auto *kept = new c10::Storage(x.storage());
		c10::DataPtr data(
			reinterpret_cast<void *>(low), kept, [](void *s) { delete static_cast<c10::Storage *>(s); }, x.device());
		c10::Storage storage(c10::Storage::use_byte_size_t(), high - low, std::move(data), nullptr, false);
		at::Tensor fenced = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), x.key_set(), x.dtype());
		fenced.unsafeGetTensorImpl()->set_sizes_and_strides(x.sizes(), x.strides(), 0);
		*out = release(std::move(fenced));
		return CLV_OK;
	})
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
