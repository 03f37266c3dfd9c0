// Gradient hooks that a recorded forward sets, which replay would not set again.
//
// Hooks on tensors, on nodes of the graph and on modules (which become the former) all end up at nodes of autograd's graph.
// So the graph behind what a forward gave is walked, as far as this forward made it.
#include "bridge/recorder.hpp"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstdio>

using namespace bridge;
using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

static bool has_hooks(Node *n)
{
	if (!n->pre_hooks().empty() || !n->post_hooks().empty() || !n->tensor_pre_hooks().empty())
		return true;
	auto *leaf = dynamic_cast<AccumulateGrad *>(n);
	return leaf && leaf->tensor_post_acc_grad_hooks() != nullptr;
}

// The accumulator of a leaf that was there before the forward: its hooks live with the tensor, which replay uses too.
static bool is_outside(const br_recorder *r, Node *n, uint64_t since)
{
	auto *leaf = dynamic_cast<AccumulateGrad *>(n);
	if (!leaf)
		return n->sequence_nr() < since;
	auto it = r->ids.find(leaf->variable.unsafeGetTensorImpl());
	return it != r->ids.end() && r->known[it->second].origin != BR_RESULT;
}

// Nodes with hooks behind the tensors, made since then, to `see` until it says no.
template <typename See>
static void walk(const br_recorder *r, br_tensor *const *tensors, uint32_t n, uint64_t since, See see)
{
	std::unordered_set<Node *> seen;
	std::vector<Node *> open;
	auto reach = [&](Node *node) {
		if (node && !is_outside(r, node, since) && seen.insert(node).second)
			open.push_back(node);
	};
	for (uint32_t i = 0; i < n; i++) {
		at::Tensor t = borrow(tensors[i]);
		if (t.defined() && t.requires_grad())
			reach(t.grad_fn().get());
	}
	while (!open.empty()) {
		Node *node = open.back();
		open.pop_back();
		if (has_hooks(node) && !see(node))
			return;
		for (const auto &edge : node->next_edges())
			reach(edge.function.get());
	}
}

static uint32_t result_of(const br_recorder *r, const Node *n)
{
	auto it = r->variables.lower_bound({n, 0});
	return it != r->variables.end() && it->first.first == n ? it->second : NONE;
}

clv_status br_recorder_find_hook(br_recorder *r, br_tensor *const *tensors, uint32_t n, br_hook *out)
{
	BRIDGE_CATCH({
		at::DisableRecordFunctionGuard quiet;
		*out = {};
		for (uint32_t i = 0; i < n && !out->found; i++) {
			at::Tensor t = borrow(tensors[i]);
			if (t.defined() && !t.is_leaf() && t.retains_grad() && !is_outside(r, t.grad_fn().get(), r->first_node))
				*out = {true, true, r->number(t, BR_EXTERNAL), ""};
		}
		if (out->found)
			return CLV_OK;
		walk(r, tensors, n, r->first_node, [&](Node *node) {
			if (r->passed_hooks.count(node))
				return true;
			out->found = true;
			out->tensor = result_of(r, node);
			std::snprintf(out->node, sizeof out->node, "%s", node->name().c_str());
			return false;
		});
		return CLV_OK;
	})
}

clv_status br_recorder_pass_hooks(br_recorder *r, br_tensor *const *tensors, uint32_t n)
{
	BRIDGE_CATCH({
		at::DisableRecordFunctionGuard quiet;
		bool any = false;
		walk(r, tensors, n, r->suspended_at, [&](Node *node) {
			r->passed_hooks.insert(node);
			return any = true;
		});
		for (uint32_t i = 0; any && i < n; i++)
			r->passed.push_back(borrow(tensors[i]));
		return CLV_OK;
	})
}
