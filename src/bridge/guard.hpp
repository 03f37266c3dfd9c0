// What calls of plans from files are held to (bridge_guard.cpp).
#pragma once

#include <ATen/core/stack.h>

#include <memory>
#include <vector>

#include "bridge/impl.hpp"

namespace bridge {

class Args;

struct Guard {
	void (*check)(const Args &) = nullptr; // what the kernel does not look at itself; throws
	std::vector<uint32_t> integers;        // arguments that vary, with integers that may be none
	std::vector<uint32_t> written;         // arguments that the operator writes
	bool clears = false;                   // its results have elements that nobody wrote
	bool grows = false;                    // likewise, behind those of its argument
	bool outs = false;                     // it writes into tensors that are there, of any kind
	bool resizes = false;                  // it may change how much memory an argument has
};

// *out is empty where nothing has to be looked at. training: of a normalisation; stack: its constants, None where a call
// fills in what varies.
clv_status guard_make(const c10::FunctionSchema &schema, bool training, const torch::jit::Stack &stack,
                      std::unique_ptr<const Guard> *out);

// As op.callBoxed.
void guard_call(const Guard &g, const c10::OperatorHandle &op, torch::jit::Stack *stack);

} // namespace bridge
