// Checks on calls made by plans from files (bridge_guard.cpp).
#pragma once

#include <ATen/core/stack.h>

#include <memory>
#include <vector>

#include "bridge/impl.hpp"

namespace bridge {

// The arguments of a call, by name.
class Args {
public:
	Args(const c10::FunctionSchema &schema, const torch::jit::Stack &stack) : schema_(schema), stack_(stack) {}

	const c10::IValue &operator[](const char *name) const
	{
		static const c10::IValue none;
		for (size_t i = 0; i < schema_.arguments().size(); i++)
			if (schema_.arguments()[i].name() == name)
				return stack_[i];
		return none;
	}
	// Undefined where there is none.
	at::Tensor tensor(const char *name) const
	{
		const c10::IValue &v = (*this)[name];
		return v.isTensor() ? v.toTensor() : at::Tensor();
	}
	at::Tensor strided(const char *name) const
	{
		at::Tensor t = tensor(name);
		require(t.defined() && t.layout() == at::kStrided && !t.is_nested(), name, "is no plain tensor");
		return t;
	}
	int64_t integer(const char *name, int64_t otherwise) const
	{
		const c10::IValue &v = (*this)[name];
		return v.isInt() ? v.toInt() : otherwise;
	}
	// A list of integers, or a tensor of them.
	std::vector<int64_t> integers(const char *name) const
	{
		const c10::IValue &v = (*this)[name];
		if (v.isInt())
			return {v.toInt()};
		if (v.isIntList())
			return v.toIntVector();
		if (!v.isTensor() || !v.toTensor().defined())
			return {};
		at::Tensor t = strided(name);
		require(at::isIntegralType(t.scalar_type(), false), name, "has no integers");
		t = t.to(at::kCPU, at::kLong).contiguous();
		return {t.data_ptr<int64_t>(), t.data_ptr<int64_t>() + t.numel()};
	}
	void require(bool holds, const char *name, const char *what) const
	{
		if (!holds)
			throw std::runtime_error(toString(schema_.operator_name()) + ": " + name + " " + what);
	}
	const c10::FunctionSchema &schema() const { return schema_; }

private:
	const c10::FunctionSchema &schema_;
	const torch::jit::Stack &stack_;
};

using Check = void (*)(const Args &); // throws

// What is looked at before a call: FILE_CHECK in plan/ops.def says of which operators.
namespace checks {
#define FILE_CHECK(check, ...) void check(const Args &a);
#include "plan/ops.def"
} // namespace checks

inline bool all_in(const std::vector<int64_t> &v, int64_t first, int64_t end)
{
	return std::all_of(v.begin(), v.end(), [&](int64_t i) { return i >= first && i < end; });
}

struct Guard {
	Check check = nullptr;          // what the kernel does not look at itself
	bool lists = false;             // it makes many tensors
	std::vector<uint32_t> integers; // arguments that vary, with integers that may be none
	std::vector<uint32_t> written;  // arguments that the operator writes
	bool clears = false;            // its results have elements that nobody wrote
	bool grows = false;             // likewise, behind those of its argument
	bool outs = false;              // it writes into tensors that are there, of any kind
	bool resizes = false;           // it may change the shape of an argument, or how much memory it has
	bool views = false;             // it changes the shape, and no element
	bool inner = false;             // PyTorch calls it through public operators
	bool gradients = false;         // it is a backward operator
	bool graphs = false;            // it changes what autograd knows of its argument, and no element
	bool groups = false;            // it writes the rows of its groups, which may not be all
};

// *out is empty where nothing has to be looked at. training: of a normalisation; stack: its constants, None where a call
// fills in what varies.
clv_status guard_make(const c10::OperatorHandle &op, bool training, const torch::jit::Stack &stack,
                      std::unique_ptr<const Guard> *out);

// Memory for the tensor objects that a call makes, without their elements (bridge_guard_lists.cpp).
// Throws Limit where a run may not have that many.
bool makes_lists(const c10::FunctionSchema &schema);
void check_lists(const Args &a);

// As op.callBoxed.
void guard_call(const Guard &g, const c10::OperatorHandle &op, torch::jit::Stack *stack);

} // namespace bridge
