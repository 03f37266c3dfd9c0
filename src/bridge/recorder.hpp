// The recorder's state, shared by its two halves: bridge_record.cpp sees operators, bridge_recorder.cpp is what C calls.
#pragma once

#include "bridge/impl.hpp"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace bridge {

// Where a thread finds its recorder; travels with the thread's state to the threads it forks.
inline auto slot_kind()
{
	return c10::DebugInfoKind::TEST_INFO;
}

// A thread that was forked during a recording may outlive it: the slot keeps the recorder.
struct Slot : c10::DebugInfoBase {
	std::shared_ptr<br_recorder> recorder;
};

// Operators open on this thread (the outermost has depth 0), and the depth inside a call that is recorded as a whole (0: not
// in one).
extern thread_local int depth, opaque;

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
inline WeakTensor weak_tensor(const at::Tensor &t)
{
	return WeakTensor(t.getIntrusivePtr());
}

struct Known {
	WeakTensor weak;
	const c10::StorageImpl *storage;
	br_origin origin;
	std::vector<int64_t> sizes, strides;
	const void *grad_fn; // and which of its results: names the variable, whichever TensorImpl stands for it
	uint32_t grad_nr;
};

struct Backup {
	at::Tensor tensor;
	at::Tensor region, data;             // the memory it covers, as one row, and what was in it
	std::vector<int64_t> sizes, strides; // in-place operators may change these too
	int64_t offset = 0;
};

// Of the default generators. Other threads may draw from them (the digest moves), but only reseeding changes the seed.
struct RandomState {
	uint64_t digest = 0, seed = 0;
};

struct GeneratorUse {
	uint64_t first = 0, last = 0;
	bool used = false;
	at::Tensor saved; // state before the first use
};

} // namespace bridge

struct br_recorder {
	br_record_fns fns;
	void *ctx;
	std::shared_ptr<br_recorder> self; // until br_recorder_free
	std::recursive_mutex mutex;        // forked threads record too
	std::thread::id thread;
	at::CallbackHandle handle = 0;
	std::unique_ptr<c10::DebugInfoGuard> guard;
	bool recording = false;
	bool suspended = false; // an opaque call runs

	clv_status failed = CLV_OK;
	std::string message;

	std::unordered_map<const c10::TensorImpl *, uint32_t> ids;
	std::vector<bridge::Known> known;
	std::map<std::pair<const void *, uint32_t>, uint32_t> variables;
	std::vector<bridge::WeakTensor> aliases;
	std::unordered_map<const c10::StorageImpl *, uint32_t> storages;
	uint32_t next_storage = 0;
	std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> weak_storages;
	std::vector<br_object *> objects;
	std::vector<bridge::GeneratorUse> generators; // parallel to objects
	std::vector<bridge::Backup> backups;
	std::unordered_set<const c10::StorageImpl *> outside; // memory of tensors that were there before the forward
	bridge::RandomState random_state;
	bool alone = true; // no other thread may draw from the default generators meanwhile
	size_t bytes_made = 0;
	uint64_t first_node = 0, suspended_at = 0;     // autograd's count of nodes at the start, at br_recorder_suspend
	std::unordered_set<const void *> passed_hooks; // nodes whose hooks replay puts there again (bridge_hooks.cpp)
	std::vector<at::Tensor> passed;                // they keep these nodes

	~br_recorder()
	{
		for (br_object *o : objects)
			br_object_unref(o);
	}

	clv_status status() const { return failed == CLV_OK ? CLV_OK : fail(failed, "%s", message.c_str()); }

	bool on_its_thread() const { return thread == std::this_thread::get_id(); }

	void set_failed(clv_status code, const char *text)
	{
		if (failed != CLV_OK)
			return;
		failed = code;
		message = text;
	}
	void check(clv_status s)
	{
		if (s != CLV_OK)
			set_failed(s, clv_last_error());
	}
	void refuse(const std::string &text) { set_failed(CLV_E_UNSUPPORTED, text.c_str()); }

	uint32_t storage_number(const at::Tensor &t)
	{
		if (!t.has_storage())
			return NONE;
		const c10::StorageImpl *s = t.storage().unsafeGetStorageImpl();
		auto [it, is_new] = storages.emplace(s, next_storage);
		if (is_new) {
			next_storage++;
			weak_storages.emplace_back(t.storage().getWeakStorageImpl());
		}
		return it->second;
	}

	uint32_t see(const at::Tensor &t, br_origin origin)
	{
		uint32_t id = static_cast<uint32_t>(known.size());
		ids.insert_or_assign(t.unsafeGetTensorImpl(), id);
		known.push_back({bridge::weak_tensor(t), t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr, origin,
		                 t.is_nested() ? std::vector<int64_t>() : t.sizes().vec(),
		                 t.layout() != at::kStrided || t.is_nested() ? std::vector<int64_t>() : t.strides().vec(),
		                 t.grad_fn().get(), static_cast<uint32_t>(t.output_nr())});
		if (origin == BR_DEFINED || origin == BR_EXTERNAL)
			if (known.back().storage && storages.find(known.back().storage) == storages.end())
				outside.insert(known.back().storage);
		if (known.back().grad_fn)
			variables.insert_or_assign({known.back().grad_fn, known.back().grad_nr}, id);
		br_seen s{};
		s.id = id;
		s.origin = origin;
		s.storage = storage_number(t);
		br_tensor *handle_ = reinterpret_cast<br_tensor *>(t.unsafeGetTensorImpl());
		check(br_meta_get(handle_, &s.meta));
		s.data = origin == BR_RESULT ? nullptr : handle_;
		if (failed == CLV_OK)
			check(fns.seen(ctx, &s));
		return id;
	}

	// Autograd unpacks what it saved as a new TensorImpl for the same variable.
	uint32_t unpacked(const at::Tensor &t)
	{
		if (!t.grad_fn() || !t.has_storage())
			return NONE;
		auto it = variables.find({t.grad_fn().get(), static_cast<uint32_t>(t.output_nr())});
		if (it == variables.end() || known[it->second].storage != t.storage().unsafeGetStorageImpl() ||
		    known[it->second].sizes != t.sizes())
			return NONE;
		ids.emplace(t.unsafeGetTensorImpl(), it->second);
		aliases.push_back(bridge::weak_tensor(t));
		return it->second;
	}

	// An operator changed its shape in place: from now on it counts as another tensor on the same memory.
	void see_again_if_reshaped(const at::Tensor &t, uint32_t id)
	{
		if (t.layout() == at::kStrided && !t.is_nested() &&
		    (known[id].sizes != t.sizes() || known[id].strides != t.strides()))
			see(t, BR_RESULT);
	}

	uint32_t number(const at::Tensor &t, br_origin if_new)
	{
		auto it = ids.find(t.unsafeGetTensorImpl());
		if (it != ids.end())
			return it->second;
		uint32_t same = if_new == BR_EXTERNAL ? unpacked(t) : NONE;
		return same != NONE ? same : see(t, if_new);
	}

	uint32_t fresh(const at::Tensor &t)
	{
		at::DisableRecordFunctionGuard quiet;
		at::NoGradGuard no_grad;
		at::Tensor copy = t.detach().clone();
		uint32_t id = see(copy, BR_FRESH);
		ids.erase(copy.unsafeGetTensorImpl());
		ids.insert_or_assign(t.unsafeGetTensorImpl(), id);
		known[id].weak = bridge::weak_tensor(t);
		known[id].storage = t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
		if (t.has_storage()) { // views of the literal count as views of the copy
			storages.insert_or_assign(known[id].storage, storage_number(copy));
			weak_storages.emplace_back(t.storage().getWeakStorageImpl());
		}
		return id;
	}

	uint32_t object(const c10::IValue &v);
};

namespace bridge {

uint64_t generator_digest(at::Generator g);
RandomState default_random_state();
bool was_reseeded(const br_recorder *r);

// A tensor from before the recording gets a copy of its data before it is written, so that restore can undo it.
void keep_old_data(br_recorder *r, const at::Tensor &t);

// The callbacks (bridge_record.cpp), and this thread as it is before the first of them.
void forget_open_operators();
std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction &fn);
void on_end(const at::RecordFunction &fn, at::ObserverContext *context);

} // namespace bridge
