// Tensors, objects and modes: the parts of the bridge that carry no state of their own.
#include <ATen/CPUGeneratorImpl.h>

#include "bridge/impl.hpp"

extern "C" {
#include "plan/words.h"
}

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/quantized/Quantizer.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <set>

namespace bridge {

static thread_local bool exhausted;

// Allocators of devices throw a class of their own; the one for the CPU throws what every check does, and gives its name.
static bool lacks_memory(const c10::Error &e)
{
	return dynamic_cast<const c10::OutOfMemoryError *>(&e) ||
	       std::strstr(e.what_without_backtrace(), "DefaultCPUAllocator");
}

// What no input is to blame for.
static bool is_of_machine(const c10::Error &e)
{
	return lacks_memory(e) || dynamic_cast<const c10::AcceleratorError *>(&e) ||
	       std::strstr(e.what_without_backtrace(), "INTERNAL ASSERT FAILED");
}

clv_status fail_exception(const char *file, int line)
{
	exhausted = false;
	try {
		throw;
	} catch (const c10::Error &e) {
		exhausted = lacks_memory(e);
		return status_fail(is_of_machine(e) ? CLV_E_MACHINE : CLV_E_TORCH, file, line, "%s",
		                   e.what_without_backtrace());
	} catch (const Limit &) {
		return CLV_E_LIMIT;
	} catch (const std::bad_alloc &) {
		return status_fail(CLV_E_NOMEM, file, line, "out of memory");
	} catch (const std::exception &e) {
		return status_fail(CLV_E_MACHINE, file, line, "%s", e.what());
	} catch (...) {
		return status_fail(CLV_E_MACHINE, file, line, "an exception that is no std::exception");
	}
}

namespace {
struct Code {
	dtype ours;
	at::ScalarType theirs;
};
const Code codes[] = {
#define X(id, text, bits, number, torch) {DT_##id, static_cast<at::ScalarType>(number)},
	DTYPE_LIST(X)
#undef X
};
static_assert(static_cast<int>(at::ScalarType::BFloat16) == 15 && static_cast<int>(at::ScalarType::UInt16) == 27 &&
                  static_cast<int>(at::ScalarType::Float8_e8m0fnu) == 44,
              "DTYPE_LIST holds PyTorch's ScalarType numbers");

// Theirs to ours; DT_COUNT where we have no name.
struct Ours {
	uint8_t at[static_cast<size_t>(at::ScalarType::NumOptions)];
	Ours()
	{
		std::memset(at, DT_COUNT, sizeof at);
		for (const auto &c : codes)
			at[static_cast<size_t>(c.theirs)] = static_cast<uint8_t>(c.ours);
	}
};

// Asked of every tensor in every run: no call.
bool is_cpu(const char *device)
{
	return device[0] == 'c' && device[1] == 'p' && device[2] == 'u' && !device[3];
}
} // namespace

bool same_object(const c10::IValue &x, const c10::IValue &y)
{
	if (x.isGenerator() && y.isGenerator())
		return x.toGenerator() == y.toGenerator();
	return x.is(y);
}

uint8_t dtype_of(at::ScalarType t)
{
	static const Ours ours;
	return static_cast<size_t>(t) < sizeof ours.at ? ours.at[static_cast<size_t>(t)] : static_cast<uint8_t>(DT_COUNT);
}

at::ScalarType scalar_type_of(uint8_t d)
{
	return d < DT_COUNT ? codes[d].theirs : at::ScalarType::Undefined;
}

const char *device_name(c10::Device d)
{
	static std::mutex lock;
	static auto *names = new std::set<std::string>;
	if (d.is_cpu())
		return "cpu";
	std::lock_guard<std::mutex> guard(lock);
	return names->insert(d.str()).first->c_str();
}

} // namespace bridge

using namespace bridge;

br_tensor *br_ref(const br_tensor *t)
{
	return release(borrow(t));
}

void br_unref(br_tensor *t)
{
	take(t);
}

clv_status br_meta_get(const br_tensor *ct, br_meta *out)
{
	BRIDGE_CATCH({
		br_meta m;
		std::memset(&m, 0, sizeof m);
		at::Tensor t = borrow(ct);
		if (!t.defined())
			return fail(CLV_E_INVALID, "an undefined tensor has no metadata");
		m.dtype = dtype_of(t.scalar_type());
		m.strided = t.layout() == at::kStrided && !t.is_nested();
		if (!t.is_nested()) {
			m.ndim = static_cast<uint32_t>(t.dim());
			m.sizes = t.sizes().data();
		}
		if (m.strided) {
			m.strides = t.strides().data();
			m.offset = t.storage_offset();
		}
		std::strncpy(m.device, t.device().str().c_str(), sizeof m.device - 1);
		m.requires_grad = t.requires_grad();
		m.conj = t.is_conj();
		m.neg = t.is_neg();
		m.storage = t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
		*out = m;
		return CLV_OK;
	})
}

void br_look(const br_tensor *ct, tensor_meta *out)
{
	const auto *t = reinterpret_cast<const c10::TensorImpl *>(ct);
	*out = {};
	out->dtype = DT_COUNT;
	if (!t)
		return;
	const bool sized = !t->key_set().has(c10::DispatchKey::NestedTensor);
	out->there = true;
	out->strided = sized && t->layout() == at::kStrided;
	out->dtype = dtype_of(c10::typeMetaToScalarType(t->dtype()));
	out->device = device_name(t->device());
	out->ndim = sized ? static_cast<uint32_t>(t->dim()) : 0;
	out->sizes = sized ? t->sizes().data() : nullptr;
	out->strides = out->strided ? t->strides().data() : nullptr;
}

bool br_exhausted(void)
{
	return bridge::exhausted;
}

bool br_fits(const br_tensor *ct, uint8_t dtype, const char *device, uint32_t ndim, const uint32_t *dims,
             const int64_t *sizes)
{
	const auto *t = reinterpret_cast<const c10::TensorImpl *>(ct);
	if (t->layout() != at::kStrided || t->key_set().has(c10::DispatchKey::NestedTensor))
		return false; // the plan's values are strided; others are looked at by br_meta_get
	if (c10::typeMetaToScalarType(t->dtype()) != scalar_type_of(dtype))
		return false;
	bool cpu = is_cpu(device);
	if (cpu != t->device().is_cpu() || (!cpu && t->device().str() != device))
		return false;
	c10::IntArrayRef have = t->sizes();
	if (have.size() != ndim)
		return false;
	for (uint32_t i = 0; i < ndim; i++)
		if (have[i] != sizes[dims[i]])
			return false;
	return true;
}

bool br_requires_grad(const br_tensor *t)
{
	return t && reinterpret_cast<const c10::TensorImpl *>(t)->requires_grad();
}

bool br_has_graph(const br_tensor *t)
{
	return t && borrow(t).grad_fn() != nullptr;
}

// The same integers that stand for the same numbers.
static bool same_quantised(const at::Tensor &a, const at::Tensor &b)
{
	return a.quantizer()->equalTo(b.quantizer()) && at::equal(a.int_repr(), b.int_repr());
}

// Compares bytes, so that NaNs and signed zeros count; layouts without strides are compared by value.
clv_status br_bits_equal(const br_tensor *ca, const br_tensor *cb, bool *out)
{
	BRIDGE_CATCH({
		at::DisableRecordFunctionGuard quiet;
		at::NoGradGuard no_grad;
		at::Tensor a = borrow(ca), b = borrow(cb);
		*out = false;
		if (a.defined() != b.defined())
			return CLV_OK;
		if (!a.defined() || a.is_same(b)) {
			*out = true;
			return CLV_OK;
		}
		if (a.scalar_type() != b.scalar_type() || a.layout() != b.layout() || a.device() != b.device() ||
		    a.is_nested() != b.is_nested())
			return CLV_OK;
		if (a.is_nested() || a.layout() != at::kStrided || a.is_quantized()) {
			if (a.is_nested())
				return fail(CLV_E_UNSUPPORTED, "nested constant tensors cannot be compared");
			*out = a.sizes() == b.sizes() &&
			       (a.is_quantized() ? same_quantised(a, b) : at::equal(a.to_dense(), b.to_dense()));
			return CLV_OK;
		}
		if (a.sizes() != b.sizes() || a.is_meta()) {
			*out = a.sizes() == b.sizes(); // on the meta device there are no bits that could differ
			return CLV_OK;
		}
		a = a.detach().resolve_conj().resolve_neg().contiguous().cpu();
		b = b.detach().resolve_conj().resolve_neg().contiguous().cpu();
		*out = std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
		return CLV_OK;
	})
}

clv_status br_clone(const br_tensor *t, bool grad, br_tensor **out)
{
	BRIDGE_CATCH({
		at::DisableRecordFunctionGuard quiet;
		at::AutoGradMode mode(grad);
		at::Tensor from = grad ? borrow(t) : borrow(t).detach();
		bool exact = from.layout() == at::kStrided && !from.is_nested() && !from.is_quantized() &&
		             at::has_internal_overlap(from) != at::MemOverlap::Yes;
		*out =
			release(exact ? at::empty_strided(from.sizes(), from.strides(), from.options()).copy_(from) : from.clone());
		return CLV_OK;
	})
}

namespace {

template <class T> clv_status read_as(const br_tensor *t, at::ScalarType type, T *out)
{
	BRIDGE_CATCH({
		at::DisableRecordFunctionGuard quiet;
		at::NoGradGuard no_grad;
		at::Tensor copy = borrow(t).detach().to(at::kCPU).to(type).contiguous();
		if (copy.numel())
			memcpy(out, copy.const_data_ptr<T>(), static_cast<size_t>(copy.numel()) * sizeof(T));
		return CLV_OK;
	})
}

} // namespace

clv_status br_read_ints(const br_tensor *t, int64_t *out)
{
	return read_as<int64_t>(t, at::kLong, out);
}

clv_status br_read_floats(const br_tensor *t, double *out)
{
	return read_as<double>(t, at::kDouble, out);
}

clv_status br_tensor_copy_(br_tensor *dst, const br_tensor *src)
{
	BRIDGE_CATCH({
		at::DisableRecordFunctionGuard quiet;
		at::NoGradGuard no_grad;
		borrow(dst).variable_data().copy_(borrow(src));
		return CLV_OK;
	})
}

br_object *br_object_ref(br_object *o)
{
	if (o)
		unwrap(o)->refs.fetch_add(1);
	return o;
}

void br_object_unref(br_object *o)
{
	if (o && unwrap(o)->refs.fetch_sub(1) == 1)
		delete unwrap(o);
}

const char *br_object_type(const br_object *o)
{
	return unwrap(o)->type.c_str();
}

bool br_object_same(const br_object *a, const br_object *b)
{
	return same_object(unwrap(a)->value, unwrap(b)->value);
}

// ---- modes

const char *const br_autocast_device_names[BR_AUTOCAST_DEVICES] = {"cpu", "cuda", "xpu", "mps"};
static const at::DeviceType autocast_devices[BR_AUTOCAST_DEVICES] = {at::kCPU, at::kCUDA, at::kXPU, at::kMPS};

static uint32_t flags_get()
{
	const auto &c = at::globalContext();
	uint32_t f = 0;
	f |= static_cast<uint32_t>(c.userEnabledFlashSDP()) << CTX_BIT_SDP_FLASH;
	f |= static_cast<uint32_t>(c.userEnabledMemEfficientSDP()) << CTX_BIT_SDP_MEM_EFFICIENT;
	f |= static_cast<uint32_t>(c.userEnabledMathSDP()) << CTX_BIT_SDP_MATH;
	f |= static_cast<uint32_t>(c.userEnabledCuDNNSDP()) << CTX_BIT_SDP_CUDNN;
	f |= static_cast<uint32_t>(c.userEnabledCuDNN()) << CTX_BIT_CUDNN;
	f |= static_cast<uint32_t>(c.userEnabledMkldnn()) << CTX_BIT_MKLDNN;
	f |= static_cast<uint32_t>(c.deterministicAlgorithms()) << CTX_BIT_DETERMINISTIC;
	return f;
}

static void flags_set(uint32_t flags, uint32_t mask)
{
	auto &c = at::globalContext();
	auto on = [&](int bit) {
		return (flags >> bit & 1) != 0;
	};
	auto touches = [&](int bit) {
		return (mask >> bit & 1) != 0;
	};
	if (touches(CTX_BIT_SDP_FLASH))
		c.setSDPUseFlash(on(CTX_BIT_SDP_FLASH));
	if (touches(CTX_BIT_SDP_MEM_EFFICIENT))
		c.setSDPUseMemEfficient(on(CTX_BIT_SDP_MEM_EFFICIENT));
	if (touches(CTX_BIT_SDP_MATH))
		c.setSDPUseMath(on(CTX_BIT_SDP_MATH));
	if (touches(CTX_BIT_SDP_CUDNN))
		c.setSDPUseCuDNN(on(CTX_BIT_SDP_CUDNN));
	if (touches(CTX_BIT_CUDNN))
		c.setUserEnabledCuDNN(on(CTX_BIT_CUDNN));
	if (touches(CTX_BIT_MKLDNN))
		c.setUserEnabledMkldnn(on(CTX_BIT_MKLDNN));
	if (touches(CTX_BIT_DETERMINISTIC))
		c.setDeterministicAlgorithms(on(CTX_BIT_DETERMINISTIC), c.deterministicAlgorithmsWarnOnly());
}

void br_modes_get(br_modes *out)
{
	std::memset(out, 0, sizeof *out);
	out->grad = at::GradMode::is_enabled();
	out->inference = c10::InferenceMode::is_enabled();
	for (int i = 0; i < BR_AUTOCAST_DEVICES; i++) {
		if (!at::autocast::is_autocast_enabled(autocast_devices[i]))
			continue;
		out->autocast[i] = true;
		out->autocast_dtype[i] = dtype_of(at::autocast::get_autocast_dtype(autocast_devices[i]));
		out->autocast_cache = at::autocast::is_autocast_cache_enabled();
	}
	out->flags = flags_get();
	out->default_dtype = dtype_of(c10::get_default_dtype_as_scalartype());
}

uint8_t br_default_dtype(void)
{
	return dtype_of(c10::get_default_dtype_as_scalartype());
}

bool br_modes_equal(const br_modes *a, const br_modes *b, bool grad)
{
	if (grad && (a->grad != b->grad || a->inference != b->inference))
		return false;
	for (int i = 0; i < BR_AUTOCAST_DEVICES; i++)
		if (a->autocast[i] != b->autocast[i] || a->autocast_dtype[i] != b->autocast_dtype[i])
			return false;
	return a->autocast_cache == b->autocast_cache && a->flags == b->flags && a->default_dtype == b->default_dtype;
}

void br_modes_set(const br_modes *m, uint32_t flags_mask)
{
	at::GradMode::set_enabled(m->grad);
	bool any = false;
	for (int i = 0; i < BR_AUTOCAST_DEVICES; i++) {
		if (at::autocast::is_autocast_enabled(autocast_devices[i]) != m->autocast[i])
			at::autocast::set_autocast_enabled(autocast_devices[i], m->autocast[i]);
		if (m->autocast[i])
			at::autocast::set_autocast_dtype(autocast_devices[i], scalar_type_of(m->autocast_dtype[i]));
		any |= m->autocast[i];
	}
	if (any)
		at::autocast::set_autocast_cache_enabled(m->autocast_cache);
	if (flags_mask)
		flags_set(m->flags, flags_mask);
}

void br_autocast_enter(br_autocast *saved)
{
	for (int i = 0; i < BR_AUTOCAST_DEVICES; i++)
		saved->dtype[i] = dtype_of(at::autocast::get_autocast_dtype(autocast_devices[i]));
	saved->cache = at::autocast::is_autocast_cache_enabled();
	at::autocast::increment_nesting();
}

void br_autocast_exit(const br_autocast *saved)
{
	if (at::autocast::decrement_nesting() == 0)
		at::autocast::clear_cache();
	for (int i = 0; i < BR_AUTOCAST_DEVICES; i++)
		at::autocast::set_autocast_dtype(autocast_devices[i], scalar_type_of(saved->dtype[i]));
	at::autocast::set_autocast_cache_enabled(saved->cache);
}

clv_status br_synchronize(const char *device)
{
	if (!device[0] || is_cpu(device) || std::strcmp(device, "meta") == 0)
		return CLV_OK;
	BRIDGE_CATCH({
		c10::Device d{std::string(device)};
		c10::impl::getDeviceGuardImpl(d.type())->synchronizeDevice(d.has_index() ? d.index() : 0);
		return CLV_OK;
	})
}

int64_t br_stream(const char *device)
{
	try {
		c10::Device d{std::string(device)};
		if (d.is_cpu() || d.is_meta())
			return 0;
		return static_cast<int64_t>(c10::impl::VirtualGuardImpl(d.type()).getStream(d).id());
	} catch (...) {
		return 0;
	}
}

void br_used_on_stream(const br_tensor *t)
{
	try {
		at::Tensor tensor = borrow(t);
		if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta() || !tensor.has_storage())
			return;
		c10::impl::VirtualGuardImpl guard(tensor.device().type());
		guard.recordDataPtrOnStream(tensor.storage().data_ptr(), guard.getStream(tensor.device()));
	} catch (...) { // a device without streams has one order for everything
	}
}

bool br_allows_tf32(void)
{
	try {
		return at::globalContext().allowTF32CuDNN() || at::globalContext().allowTF32CuBLAS();
	} catch (...) {
		return true; // settings that say both
	}
}

clv_status clv_synchronize(const char *device)
{
	return device ? br_synchronize(device) : fail(CLV_E_INVALID, "clv_synchronize needs a device");
}

clv_status clv_set_seed(uint64_t seed)
{
	BRIDGE_CATCH({
		// Asking for CUDA before its library is there would settle that there is none.
		if (c10::impl::hasDeviceGuardImpl(c10::kCUDA)) {
			at::manual_seed(seed);
			return CLV_OK;
		}
		at::Generator cpu = at::detail::getDefaultCPUGenerator();
		std::lock_guard<std::mutex> lock(cpu.mutex());
		cpu.set_current_seed(seed);
		return CLV_OK;
	})
}
