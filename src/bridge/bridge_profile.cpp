// Measuring: copies to work on, memory as the allocators report it, time on the device's own clock, a backward that
// gives its gradients away instead of adding them to .grad, and generators put back.
#include "bridge/impl.hpp"

extern "C" {
#include "base/limits.h"
}

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Generator.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

using bridge::borrow;
using bridge::release;

// ---- copies

namespace {

bool plain(const at::Tensor &t)
{
	return t.defined() && t.layout() == at::kStrided && !t.is_nested() && !t.is_quantized() && t.has_storage();
}

// Memory, and the tensors of one type on it. Where there are several, all of it is copied.
struct Shared {
	uint32_t n = 0;
	bool grad = false;
	at::Tensor copy; // flat
};

using Places = std::map<std::pair<const c10::StorageImpl *, at::ScalarType>, Shared>;

Shared *place_of(Places &places, const at::Tensor &t)
{
	return plain(t) ? &places[{t.storage().unsafeGetStorageImpl(), t.scalar_type()}] : nullptr;
}

at::Tensor copy_storage(const at::Tensor &t, bool grad)
{
	int64_t n = static_cast<int64_t>(t.storage().nbytes() / t.itemsize());
	at::Tensor flat = t.detach().as_strided({n}, {1}, 0).clone();
	if (!grad)
		return flat;
	flat.set_requires_grad(true);
	at::AutoGradMode on(true);
	return flat.clone(); // no leaf: it may be written
}

at::Tensor on_shared(const at::Tensor &t, const at::Tensor &flat, bool grad)
{
	at::AutoGradMode mode(grad && flat.requires_grad());
	const at::Tensor &base = grad ? flat : flat.detach();
	return base.as_strided(t.sizes(), t.strides(), t.storage_offset());
}

clv_status copy_alone(const br_tensor *t, bool grad, bool leaf, br_tensor **out)
{
	br_tensor *copy = nullptr;
	TRY(br_clone(t, false, &copy));
	at::Tensor mine = bridge::take(copy);
	if (grad)
		mine.set_requires_grad(true);
	if (!grad || leaf) {
		*out = release(std::move(mine));
		return CLV_OK;
	}
	br_tensor *source = release(std::move(mine));
	clv_status st = br_clone(source, true, out);
	br_unref(source);
	return st;
}

} // namespace

clv_status br_copies(br_tensor *const *from, uint32_t n, const bool *grad, bool leaf, br_tensor **out)
{
	BRIDGE_CATCH({
		at::DisableRecordFunctionGuard quiet;
		Places places;
		for (uint32_t i = 0; i < n; i++)
			if (Shared *s = place_of(places, borrow(from[i]))) {
				s->n++;
				s->grad |= grad[i];
			}
		for (uint32_t i = 0; i < n; i++) {
			at::Tensor t = borrow(from[i]);
			Shared *s = place_of(places, t);
			bool alone = !s || (s->n == 1 && at::has_internal_overlap(t) != at::MemOverlap::Yes);
			if (alone) {
				TRY(copy_alone(from[i], grad[i], leaf, &out[i]));
				continue;
			}
			if (!s->copy.defined())
				s->copy = copy_storage(t, s->grad && !leaf);
			at::Tensor copy = on_shared(t, s->copy, grad[i] && !leaf);
			if (leaf && grad[i])
				copy.set_requires_grad(true);
			out[i] = release(std::move(copy));
		}
		return CLV_OK;
	})
}

// ---- memory

namespace {

// Allocators tell the thread that allocates, and autograd's threads inherit from the one that asked.
struct Counter : c10::MemoryReportingInfoBase {
	explicit Counter(bool of_device) : device(of_device) {}
	void reportMemoryUsage(void *, int64_t bytes, size_t, size_t, c10::Device where) override
	{
		if (where.is_cpu() == device)
			return;
		std::lock_guard<std::mutex> guard(lock);
		live += bytes;
		peak = std::max(peak, live);
	}
	bool memoryProfilingEnabled() const override { return true; }
	const bool device;
	std::mutex lock;
	int64_t live = 0, peak = 0;
};

} // namespace

// A profiler of the user's keeps its state where the counter is put, and its callbacks would take one for the other: they
// are not called meanwhile. Where there is none, all callbacks are, for what is metered may itself be a capture.
struct br_meter {
	std::shared_ptr<Counter> counter;
	std::optional<at::DisableRecordFunctionGuard> quiet;
};

clv_status br_meter_start(bool device, br_meter **out)
{
	BRIDGE_CATCH({
		std::unique_ptr<br_meter> meter(new br_meter{std::make_shared<Counter>(device), std::nullopt});
		if (c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE))
			meter->quiet.emplace();
		c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, meter->counter);
		*out = meter.release();
		return CLV_OK;
	})
}

int64_t br_meter_live(br_meter *m)
{
	std::lock_guard<std::mutex> guard(m->counter->lock);
	return m->counter->live;
}

int64_t br_meter_peak(br_meter *m)
{
	std::lock_guard<std::mutex> guard(m->counter->lock);
	int64_t peak = m->counter->peak;
	m->counter->peak = m->counter->live;
	return peak;
}

void br_meter_stop(br_meter *m)
{
	if (!m)
		return;
	c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
	delete m;
}

// ---- time

struct br_clock {
	c10::Device device;
	std::optional<c10::Event> start, end; // none on the CPU
	std::chrono::steady_clock::time_point since;
	at::Tensor load, product; // work to be behind of
	bool behind = false;
};

clv_status br_clock_new(const char *device, br_clock **out)
{
	BRIDGE_CATCH({
		c10::Device d{std::string(device)};
		auto clock = std::make_unique<br_clock>(br_clock{d, std::nullopt, std::nullopt, {}, {}, {}});
		if (!d.is_cpu()) {
			clock->start.emplace(d.type(), c10::EventFlag::BACKEND_DEFAULT);
			clock->end.emplace(d.type(), c10::EventFlag::BACKEND_DEFAULT);
		}
		*out = clock.release();
		return CLV_OK;
	})
}

void br_clock_free(br_clock *c)
{
	delete c;
}

clv_status br_clock_start(br_clock *c)
{
	BRIDGE_CATCH({
		if (!c->start) {
			c->since = std::chrono::steady_clock::now();
			return CLV_OK;
		}
		c10::impl::VirtualGuardImpl guard(c->device.type());
		guard.synchronizeDevice(c->device.index());
		c->start->record(guard.getStream(c->device));
		return CLV_OK;
	})
}

namespace {

constexpr int64_t LOAD = 2048; // a product of this size takes about as long as ten small kernels take the host

void make_busy(br_clock *c, uint32_t work)
{
	at::DisableRecordFunctionGuard quiet;
	at::NoGradGuard none;
	if (!c->load.defined()) {
		c->load = at::zeros({LOAD, LOAD}, at::TensorOptions().device(c->device).dtype(at::kFloat));
		c->product = at::empty_like(c->load);
	}
	for (uint32_t i = 0; i < work; i++)
		at::mm_out(c->product, c->load, c->load);
}

} // namespace

clv_status br_clock_start_behind(br_clock *c, uint32_t work)
{
	BRIDGE_CATCH({
		TRY(br_clock_start(c)); // waits until the device is idle
		if (!c->start)
			return CLV_OK;
		c10::impl::VirtualGuardImpl guard(c->device.type());
		make_busy(c, work);
		c->start->record(guard.getStream(c->device));
		return CLV_OK;
	})
}

bool br_clock_was_behind(const br_clock *c)
{
	return c->behind;
}

clv_status br_clock_stop(br_clock *c, double *ms)
{
	BRIDGE_CATCH({
		if (!c->start) {
			*ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - c->since).count();
			c->behind = true; // the host is the device
			return CLV_OK;
		}
		c10::impl::VirtualGuardImpl guard(c->device.type());
		c->behind = !c->start->query();
		c->end->record(guard.getStream(c->device));
		guard.synchronizeDevice(c->device.index());
		*ms = c->start->elapsedTime(*c->end);
		return CLV_OK;
	})
}

// ---- backward

struct br_backward {
	torch::autograd::variable_list roots, seeds, leaves, grads;
};

namespace {

// What a backward from the roots would add gradients to. Those inside of opaque Python are among them.
torch::autograd::variable_list leaves_of(const torch::autograd::variable_list &roots)
{
	torch::autograd::variable_list leaves;
	std::unordered_set<torch::autograd::Node *> seen;
	std::vector<torch::autograd::Node *> todo;
	auto visit = [&](torch::autograd::Node *f) {
		if (f && seen.insert(f).second)
			todo.push_back(f);
	};
	for (const auto &root : roots)
		visit(root.grad_fn().get());
	while (!todo.empty()) {
		torch::autograd::Node *f = todo.back();
		todo.pop_back();
		if (auto *end = dynamic_cast<torch::autograd::AccumulateGrad *>(f))
			leaves.push_back(end->variable);
		for (const auto &edge : f->next_edges())
			visit(edge.function.get());
	}
	return leaves;
}

} // namespace

clv_status br_backward_new(br_tensor *const *outputs, uint32_t n, br_backward **out)
{
	BRIDGE_CATCH({
		auto b = std::make_unique<br_backward>();
		std::unordered_set<const br_tensor *> seen;
		at::DisableRecordFunctionGuard quiet;
		at::NoGradGuard no_grad;
		for (uint32_t i = 0; i < n; i++) {
			at::Tensor t = borrow(outputs[i]);
			if (!t.defined() || !t.requires_grad() || t.is_leaf() || !seen.insert(outputs[i]).second)
				continue;
			b->seeds.push_back(at::ones_like(t));
			b->roots.push_back(std::move(t));
		}
		b->leaves = leaves_of(b->roots);
		*out = b->leaves.empty() ? nullptr : b.release();
		return CLV_OK;
	})
}

clv_status br_backward_run(br_backward *b)
{
	BRIDGE_CATCH({
		b->grads = torch::autograd::grad(b->roots, b->leaves, b->seeds, /*retain_graph=*/false, /*create_graph=*/false,
		                                 /*allow_unused=*/true);
		return CLV_OK;
	})
}

void br_backward_free(br_backward *b)
{
	delete b;
}

namespace {

// Before each node of a backward: whether the run may go on. CPU nodes run on the thread that asked for the gradients.
struct may_go_on : torch::autograd::FunctionPreHook {
	torch::autograd::variable_list operator()(const torch::autograd::variable_list &grads) override
	{
		TORCH_CHECK(!limits_here() || limits_check() == CLV_OK, "the backward was ended");
		return grads;
	}
};

// Accumulators of leaves, which outlive the graph, are left out.
void ask_in_each(torch::autograd::Node *first)
{
	std::unordered_set<torch::autograd::Node *> seen;
	std::vector<torch::autograd::Node *> open;
	auto reach = [&](torch::autograd::Node *node) {
		if (node && !dynamic_cast<torch::autograd::AccumulateGrad *>(node) && seen.insert(node).second)
			open.push_back(node);
	};
	reach(first);
	while (!open.empty()) {
		torch::autograd::Node *node = open.back();
		open.pop_back();
		node->add_pre_hook(std::make_unique<may_go_on>());
		for (const auto &edge : node->next_edges())
			reach(edge.function.get());
	}
}

} // namespace

clv_status br_gradients(const br_tensor *loss, br_tensor *const *leaves, uint32_t n, br_tensor **out)
{
	BRIDGE_CATCH({
		if (limits_here())
			ask_in_each(borrow(loss).grad_fn().get());
		torch::autograd::variable_list inputs;
		for (uint32_t i = 0; i < n; i++)
			inputs.push_back(borrow(leaves[i]));
		// As backward() without an argument: the gradient of the loss is one, in its layout.
		auto grads = torch::autograd::grad({borrow(loss)}, inputs, {}, /*retain_graph=*/false, /*create_graph=*/false,
		                                   /*allow_unused=*/true);
		for (uint32_t i = 0; i < n; i++)
			out[i] = grads[i].defined() ? release(std::move(grads[i])) : nullptr;
		return CLV_OK;
	})
}

// ---- generators

clv_status br_generator_state(const br_object *o, br_tensor **out)
{
	BRIDGE_CATCH({
		const c10::IValue &x = bridge::unwrap(o)->value;
		*out = x.isGenerator() ? release(x.toGenerator().get_state()) : nullptr;
		return CLV_OK;
	})
}

clv_status br_generator_restore(const br_object *o, const br_tensor *state)
{
	BRIDGE_CATCH({
		at::Generator g = bridge::unwrap(o)->value.toGenerator();
		g.set_state(borrow(state));
		return CLV_OK;
	})
}
