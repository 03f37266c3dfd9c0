// Calls that make many tensors: each takes a few hundred bytes, even if its elements are another tensor's.
//
// Limits on memory see elements, when their memory is taken. How many tensors a call will make is worked out here before it
// begins, from its arguments.
#include "bridge/guard.hpp"

extern "C" {
#include "base/limits.h"
}

using namespace bridge;

namespace {

enum {
	TENSOR_BYTES = 500,
	DIMENSION_BYTES = 16,
	PAIR_BYTES = 16
}; // of a tensor; of a size and a stride; of a value and its place

bool is_recurrent(const std::string &name)
{
	for (const char *known :
	     {"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu", "aten::quantized_lstm", "aten::quantized_gru"})
		if (name == known)
			return true;
	return false;
}

bool is_tensor_list(const c10::TypePtr &type)
{
	auto list = type->cast<c10::ListType>();
	return list && list->getElementType()->kind() == c10::TypeKind::TensorType;
}

int64_t size_of(const at::Tensor &t, int64_t dim)
{
	if (!t.defined() || t.is_nested() || t.dim() == 0)
		return 1;
	return dim < -t.dim() || dim >= t.dim() ? 0 : t.size(dim); // an operator refuses what is no dimension
}

// Of a tensor that is cut: into how many parts.
int64_t count_parts(const Args &a, const at::Tensor &self)
{
	int64_t size = size_of(self, a.integer("dim", 0)), each = a.integer("split_size", 0);
	if (a.schema().name() == "aten::unbind" || a.schema().name() == "aten::unbind_copy")
		return size;
	if (each > 0)
		return size / each + 1;
	if (a["chunks"].isInt())
		return size ? std::min(a["chunks"].toInt(), size) : a["chunks"].toInt();
	if (a["sections"].isInt())
		return a["sections"].toInt();
	if (at::Tensor at = a.tensor("tensor_indices_or_sections"); at.defined())
		return at.dim() == 0 ? a.integers("tensor_indices_or_sections").at(0) : at.numel() + 1;
	return self.defined() && !self.is_nested() ? self.dim() : 0; // nonzero_numpy, where, gradient
}

// A tensor or a number for each item of a list that goes in.
int64_t count_items(const Args &a, int64_t *tensors)
{
	int64_t most = 0;
	for (const c10::Argument &formal : a.schema().arguments()) {
		const c10::IValue &v = a[formal.name().c_str()];
		if (!v.isList())
			continue;
		int64_t n = static_cast<int64_t>(v.toListRef().size());
		most = std::max(most, n + 1);
		if (is_tensor_list(formal.type()))
			*tensors = std::max(*tensors, n);
	}
	return most;
}

} // namespace

bool bridge::makes_lists(const c10::FunctionSchema &schema)
{
	for (const c10::Argument &result : schema.returns())
		if (is_tensor_list(result.type()))
			return true;
	return is_recurrent(schema.name()) || schema.name() == "aten::combinations" ||
	       schema.name() == "aten::cartesian_prod";
}

void bridge::check_lists(const Args &a)
{
	at::Tensor self = a.tensor("self");
	int64_t tensors = 0, n = std::max(count_parts(a, self), count_items(a, &tensors)), bytes;
	if (is_recurrent(a.schema().name())) { // an input and an output for each step
		at::Tensor x = a.tensor(a["input"].isNone() ? "data" : "input");
		n = 2 * std::max(size_of(x, 0), a["batch_first"].isBool() ? size_of(x, 1) : 0);
	}
	if (a.schema().name() == "aten::combinations")
		n = tensors = a.integer("r", 2);
	// A grid has a dimension for each of its tensors.
	int64_t dims = std::max(tensors, self.defined() && !self.is_nested() ? self.dim() : 0);
	if (__builtin_mul_overflow(n, TENSOR_BYTES + DIMENSION_BYTES * dims, &bytes))
		bytes = INT64_MAX;
	if (bytes > 0 && limits_room(bytes) != CLV_OK)
		throw Limit();
}

// Vectors of pairs, or of tensors, that kernels take from elsewhere than the allocator of tensors.
void bridge::checks::scratch(const Args &a)
{
	at::Tensor self = a.tensor(a["self"].isNone() ? "t" : "self");
	if (!limits_bytes() || !self.defined() || self.is_nested())
		return;
	bool rows = a["self"].isNone() || a.schema().name().find("unique_dim") != std::string::npos;
	int64_t n = rows ? size_of(self, a.integer("dim", 0)) : self.numel(), bytes;
	if (__builtin_mul_overflow(n, rows ? TENSOR_BYTES : PAIR_BYTES, &bytes))
		bytes = INT64_MAX;
	if (limits_room(bytes) != CLV_OK)
		throw Limit();
}
