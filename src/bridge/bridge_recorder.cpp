// The recorder as C uses it: made, started and stopped, asked for numbers, told to put back what a forward wrote.
#include "bridge/recorder.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/class_type.h>

using namespace bridge;

static uint64_t digest(const void *at, size_t n, uint64_t h = 1469598103934665603ull)
{
	const auto *p = static_cast<const unsigned char *>(at);
	for (size_t i = 0; i < n; i++)
		h = (h ^ p[i]) * 1099511628211ull;
	return h;
}

uint64_t bridge::generator_digest(at::Generator g)
{
	at::DisableRecordFunctionGuard quiet;
	at::Tensor s = g.get_state();
	return digest(s.const_data_ptr(), s.nbytes());
}

// State of the default generators, the ones an operator without explicit generator draws from.
RandomState bridge::default_random_state()
{
	at::Generator cpu = at::detail::getDefaultCPUGenerator();
	RandomState s{generator_digest(cpu), cpu.current_seed()};
	auto &context = at::globalContext();
	if (context.hasCUDA() && context.getAcceleratorHooksInterface(at::kCUDA).hasPrimaryContext(0)) {
		at::Generator cuda = context.defaultGenerator(at::Device(at::kCUDA, 0));
		s.digest ^= generator_digest(cuda);
		s.seed ^= cuda.current_seed();
	}
	return s;
}

bool bridge::was_reseeded(const br_recorder *r)
{
	RandomState now = default_random_state();
	return now.seed != r->random_state.seed || (r->alone && now.digest != r->random_state.digest);
}

void bridge::keep_old_data(br_recorder *r, const at::Tensor &t)
{
	for (const auto &b : r->backups)
		if (b.tensor.is_same(t))
			return;
	at::DisableRecordFunctionGuard quiet;
	at::NoGradGuard no_grad;
	Backup b{t, t.detach(), {}, {}, {}, 0};
	if (t.layout() == at::kStrided && !t.is_nested()) {
		b.sizes = t.sizes().vec();
		b.strides = t.strides().vec();
		b.offset = t.storage_offset();
		int64_t span = t.numel() ? 1 : 0; // elements may overlap (expand) or leave gaps
		for (size_t i = 0; i < b.sizes.size() && span; i++)
			span += (b.sizes[i] - 1) * b.strides[i];
		b.region = b.region.as_strided({span}, {1}, b.offset);
	}
	b.data = b.region.clone();
	r->backups.push_back(std::move(b));
}

uint32_t br_recorder::object(const c10::IValue &v)
{
	for (uint32_t i = 0; i < objects.size(); i++)
		if (same_object(unwrap(objects[i])->value, v))
			return i;
	std::string type = v.isObject() ? v.toObject()->type()->str() : v.isGenerator() ? "torch.Generator" : v.tagKind();
	auto o = std::make_unique<Object>();
	o->value = v;
	o->type = std::move(type);
	generators.emplace_back();
	objects.push_back(wrap(o.get()));
	o.release();
	return static_cast<uint32_t>(objects.size() - 1);
}

static void end_recording(br_recorder *r)
{
	if (r->on_its_thread())
		at::removeCallback(r->handle);
	r->guard.reset();
	r->recording = false;
}

clv_status br_recorder_new(const br_record_fns *fns, void *ctx, br_recorder **out)
{
	BRIDGE_CATCH({
		auto r = std::make_shared<br_recorder>();
		r->fns = *fns;
		r->ctx = ctx;
		r->self = r;
		*out = r.get();
		return CLV_OK;
	})
}

void br_recorder_free(br_recorder *r)
{
	if (!r)
		return;
	std::shared_ptr<br_recorder> last = std::move(r->self);
	std::lock_guard<std::recursive_mutex> lock(r->mutex);
	if (r->recording)
		end_recording(r);
}

clv_status br_recorder_define(br_recorder *r, const br_tensor *t, uint32_t *id_out)
{
	BRIDGE_CATCH({
		*id_out = r->number(borrow(t), BR_DEFINED);
		return r->status();
	})
}

clv_status br_recorder_start(br_recorder *r, bool alone)
{
	BRIDGE_CATCH({
		if (c10::ThreadLocalDebugInfo::get(slot_kind()))
			return fail(CLV_E_INVALID, "a capture is already running on this thread");
		auto slot = std::make_shared<Slot>();
		slot->recorder = r->self;
		r->guard = std::make_unique<c10::DebugInfoGuard>(slot_kind(), slot);
		forget_open_operators();
		r->thread = std::this_thread::get_id();
		r->alone = alone;
		r->random_state = default_random_state();
		r->first_node = at::sequence_number::peek();
		r->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
		                                           .needsInputs(true)
		                                           .needsOutputs(true)
		                                           .scopes({at::RecordScope::FUNCTION}));
		r->recording = true;
		return CLV_OK;
	})
}

clv_status br_recorder_stop(br_recorder *r)
{
	BRIDGE_CATCH({
		std::lock_guard<std::recursive_mutex> lock(r->mutex);
		if (!r->recording)
			return fail(CLV_E_INVALID, "this recorder does not record");
		end_recording(r);
		if (r->failed == CLV_OK && was_reseeded(r))
			r->refuse("the forward reseeds or advances the random generator outside PyTorch's operators "
			          "(manual_seed, set_rng_state or fork_rng)");
		return r->status();
	})
}

bool br_recording_here(void)
{
	return c10::ThreadLocalDebugInfo::get(slot_kind()) != nullptr;
}

void br_recorder_lock(br_recorder *r)
{
	r->mutex.lock();
}

void br_recorder_unlock(br_recorder *r)
{
	r->mutex.unlock();
}

clv_status br_recorder_keep(br_recorder *r, const br_tensor *ct)
{
	BRIDGE_CATCH({
		at::Tensor t = borrow(ct);
		if (t.has_storage() && r->outside.count(t.storage().unsafeGetStorageImpl()))
			keep_old_data(r, t);
		return CLV_OK;
	})
}

clv_status br_recorder_restore_generators(br_recorder *r)
{
	BRIDGE_CATCH({
		at::DisableRecordFunctionGuard quiet;
		for (size_t i = 0; i < r->generators.size(); i++)
			if (r->generators[i].used) {
				at::Generator g = unwrap(r->objects[i])->value.toGenerator();
				g.set_state(r->generators[i].saved);
			}
		return CLV_OK;
	})
}

static clv_status restore_one(const Backup &b)
{
	BRIDGE_CATCH({
		if (b.tensor.layout() == at::kStrided && !b.tensor.is_nested())
			b.tensor.unsafeGetTensorImpl()->set_sizes_and_strides(b.sizes, b.strides, b.offset);
		return br_tensor_copy_(reinterpret_cast<br_tensor *>(b.region.unsafeGetTensorImpl()),
		                       reinterpret_cast<br_tensor *>(b.data.unsafeGetTensorImpl()));
	})
}

clv_status br_recorder_restore(br_recorder *r)
{
	clv_status first = CLV_OK;
	for (auto it = r->backups.rbegin(); it != r->backups.rend(); ++it) {
		clv_status st = restore_one(*it);
		first = first == CLV_OK ? st : first;
	}
	r->backups.clear();
	return first;
}

clv_status br_recorder_see(br_recorder *r, const br_tensor *t, uint32_t *id_out)
{
	BRIDGE_CATCH({
		*id_out = r->number(borrow(t), BR_EXTERNAL);
		return r->status();
	})
}

clv_status br_recorder_fresh(br_recorder *r, const br_tensor *t, uint32_t *id_out)
{
	BRIDGE_CATCH({
		at::DisableRecordFunctionGuard quiet;
		at::NoGradGuard no_grad;
		*id_out = r->see(borrow(t).detach().clone(), BR_FRESH);
		return r->status();
	})
}

clv_status br_recorder_result(br_recorder *r, const br_tensor *t, uint32_t *id_out)
{
	BRIDGE_CATCH({
		*id_out = r->number(borrow(t), BR_RESULT);
		return r->status();
	})
}

br_object *br_recorder_object(const br_recorder *r, uint32_t number)
{
	return number < r->objects.size() ? r->objects[number] : nullptr;
}

void br_recorder_suspend(br_recorder *r)
{
	std::lock_guard<std::recursive_mutex> lock(r->mutex);
	r->suspended_at = at::sequence_number::peek();
	r->suspended = true;
	opaque = ++depth;
}
void br_recorder_resume(br_recorder *r)
{
	std::lock_guard<std::recursive_mutex> lock(r->mutex);
	r->suspended = false;
	depth--;
	opaque = 0;
}

void br_recorder_fail(br_recorder *r, clv_status code, const char *message)
{
	r->set_failed(code, message);
}

bool br_recorder_failed(const br_recorder *r)
{
	return r->failed != CLV_OK;
}

bool br_recorder_active(const br_recorder *r)
{
	return r->recording && depth == 0 && r->on_its_thread();
}

bool br_recorder_generator(const br_recorder *r, uint32_t number, uint64_t *first, uint64_t *last)
{
	if (number >= r->generators.size() || !r->generators[number].used)
		return false;
	*first = r->generators[number].first;
	*last = r->generators[number].last;
	return true;
}
