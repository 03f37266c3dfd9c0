// Shared by the C++ files of the bridge: references, exceptions to status, dtype codes.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <exception>
#include <optional>
#include <string>

#include "bridge/bridge.h"

namespace bridge {

using TensorPtr = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// A new at::Tensor on the same TensorImpl.
inline at::Tensor borrow(const br_tensor *t)
{
	if (!t)
		return at::Tensor();
	return at::Tensor(TensorPtr::reclaim_copy(reinterpret_cast<c10::TensorImpl *>(const_cast<br_tensor *>(t))));
}

// Takes over the reference.
inline at::Tensor take(br_tensor *t)
{
	if (!t)
		return at::Tensor();
	return at::Tensor(TensorPtr::reclaim(reinterpret_cast<c10::TensorImpl *>(t)));
}

// Gives the reference away; NULL for an undefined tensor.
inline br_tensor *release(at::Tensor &&t)
{
	if (!t.defined())
		return nullptr;
	return reinterpret_cast<br_tensor *>(t.unsafeReleaseTensorImpl());
}

// A run wanted more than it may have; the status and its message are set.
struct Limit : std::exception {
	const char *what() const noexcept override { return "the run takes more than it may"; }
};

clv_status fail_exception(const char *file, int line);

// Runs f, turning any C++ exception into a status.
#define BRIDGE_CATCH(...)                                                                                              \
	try {                                                                                                              \
		__VA_ARGS__                                                                                                    \
	} catch (...) {                                                                                                    \
		return bridge::fail_exception(__FILE__, __LINE__);                                                             \
	}

uint8_t dtype_of(at::ScalarType t);       // DT_COUNT: no name for it
at::ScalarType scalar_type_of(uint8_t d); // Undefined for DT_COUNT

const char *device_name(c10::Device d); // "cpu", "cuda:0": a text that stays

bool is_fixed(const c10::Storage &s); // memory of the core that nobody may write

// Whether an operator writes its argument i: by its schema, or though the schema has no word of it.
bool writes_argument(const c10::FunctionSchema &schema, size_t i, bool training);
// Where a normalisation says whether it is in training; nothing: it always is, or is no normalisation.
std::optional<size_t> training_argument(const c10::FunctionSchema &schema);

br_arg host_value(const c10::IValue &v); // a number or bool; BR_NONE: it is neither

struct Object {
	c10::IValue value;
	std::string type;
	std::atomic<int> refs{1};
};

bool recycles(size_t bytes); // this thread's blocks of that size are handed out again (bridge_pool.cpp)
bool same_object(const c10::IValue &x, const c10::IValue &y);

inline br_object *wrap(Object *o)
{
	return reinterpret_cast<br_object *>(o);
}
inline Object *unwrap(const br_object *o)
{
	return reinterpret_cast<Object *>(const_cast<br_object *>(o));
}

} // namespace bridge
