// Tensors as memory, for files: where the bytes of one are, and new ones over given bytes. No operator runs, so nothing
// is recorded and no mode changes what comes out.
#include <dlfcn.h>

#include "bridge/impl.hpp"

using bridge::borrow;
using bridge::release;

clv_status br_memory_get(const clv_tensor *ct, br_memory *out)
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

clv_status br_bytes_new(size_t n, clv_tensor **out, void **data)
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

// As views that operators make, all of them count writes together: autograd notices a write through another one.
clv_status br_view_bytes(const clv_tensor *bytes, const br_view *v, clv_tensor **out)
{
	BRIDGE_CATCH({
		at::Tensor base = borrow(bytes);
		at::ScalarType type = bridge::scalar_type_of(v->dtype);
		int64_t item = static_cast<int64_t>(c10::elementSize(type));
		at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(base.storage()), base.key_set(),
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

clv_status br_bytes_wrap(void *data, size_t n, void (*free_it)(void *), void *ctx, clv_tensor **out)
{
	bool given = false; // to a tensor, which then calls it
	try {
		auto options = at::TensorOptions().dtype(at::kByte);
		at::Tensor t =
			at::for_blob(data, {static_cast<int64_t>(n)}).options(options).context(ctx, free_it).make_tensor();
		given = true;
		*out = release(std::move(t));
		return CLV_OK;
	} catch (...) {
		if (!given && free_it)
			free_it(ctx);
		return bridge::fail_exception(__FILE__, __LINE__);
	}
}

// A program that links libtorch_cpu alone has no CUDA until its library is loaded; Python's torch has done so.
static clv_status load_device(const c10::Device &to)
{
	if (!to.is_cuda() || c10::impl::hasDeviceGuardImpl(to.type()) || dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL))
		return CLV_OK;
	return fail(CLV_E_UNSUPPORTED, "this torch has no CUDA: %s", dlerror());
}

clv_status br_to_device(const clv_tensor *t, const char *device, clv_tensor **out)
{
	BRIDGE_CATCH({
		at::NoGradGuard no_grad;
		at::Tensor from = borrow(t);
		c10::Device to(device);
		if (to.is_cuda() && !to.has_index())
			to.set_index(0);
		TRY(load_device(to));
		*out = release(from.device() == to ? std::move(from) : from.to(to));
		return CLV_OK;
	})
}
