// cleave::segment(Tensor code, Tensor[] inputs) -> Tensor[]: a segment of a traced model as an operator, for TorchScript.
//
// `code` is a file of its own, as bytes. What is made of it is kept while the storage of `code` lives: by storage, weakly,
// so that programs which come and go leave nothing behind. What it does with the bytes is in src/exec/operator.c.
#include "bridge/impl.hpp"

#include <torch/library.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace {

constexpr size_t ALIGN = 64;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

const br_segment_fns *fns; // set once, before the operator is there

[[noreturn]] void give_up()
{
	TORCH_CHECK(false, "cleave::segment: ", clv_last_error());
}

// Each reason once: a model can have many segments.
void tell(const char *reason)
{
	static std::mutex lock;
	static std::set<std::string> &told = *new std::set<std::string>;
	{
		std::lock_guard guard(lock);
		if (!told.insert(reason).second)
			return;
	}
	TORCH_WARN("a compiled segment runs operator by operator: ", reason);
}

// A segment that was opened. Calls that are under way share it with the cache.
struct Opened {
	const char *data;
	size_t size;
	bool may_run;   // whoever made it
	at::Tensor own; // a copy, where the bytes are not on the CPU or not aligned
	void *segment = nullptr;

	Opened(const at::Tensor &code, bool allowed) : may_run(allowed)
	{
		at::Tensor bytes = code;
		if (!bytes.is_cpu() || reinterpret_cast<uintptr_t>(bytes.const_data_ptr()) % ALIGN != 0)
			bytes = own = at::empty({code.numel()}, at::kByte).copy_(code);
		data = static_cast<const char *>(bytes.const_data_ptr());
		size = static_cast<size_t>(bytes.numel());
		const char *reason = nullptr;
		if (fns->open(data, size, may_run, &segment, &reason) != CLV_OK)
			give_up();
		if (reason)
			tell(reason);
	}
	~Opened() { fns->close(segment); }
	Opened(const Opened &) = delete;
	Opened &operator=(const Opened &) = delete;

	bool has(const at::Tensor &code) const
	{
		return own.defined() ? static_cast<size_t>(code.numel()) == size
		                     : code.const_data_ptr() == data && static_cast<size_t>(code.numel()) == size;
	}
	bool lies_inside(const at::Tensor &t) const
	{
		const char *at = t.is_cpu() && t.has_storage() ? static_cast<const char *>(t.storage().data()) : nullptr;
		return at && at >= data && at < data + size;
	}
};

// What is known of one storage.
struct Entry {
	WeakStorage storage;
	std::mutex lock;                                   // while one is opened
	std::map<int64_t, std::shared_ptr<Opened>> opened; // by the place in the storage

	explicit Entry(WeakStorage s) : storage(std::move(s)) {}
};

// Bytes that were made in this process.
struct Trusted {
	WeakStorage storage;
	const void *data;
	size_t size;
};

struct Cache {
	std::mutex lock;
	std::map<c10::StorageImpl *, std::shared_ptr<Entry>> entries;
	std::vector<Trusted> trusted;

	static Cache &get()
	{
		static Cache &only = *new Cache; // never destroyed: programs may run while the process ends
		return only;
	}

	// The entry of a storage. Its weak reference keeps the address from being used again.
	std::shared_ptr<Entry> entry(const at::Tensor &code)
	{
		c10::StorageImpl *key = code.storage().unsafeGetStorageImpl();
		std::vector<std::shared_ptr<Entry>> gone; // closed after the lock is released
		std::lock_guard guard(lock);
		auto found = entries.find(key);
		if (found != entries.end())
			return found->second;
		for (auto i = entries.begin(); i != entries.end();) {
			if (!i->second->storage.expired()) {
				++i;
				continue;
			}
			gone.push_back(std::move(i->second));
			i = entries.erase(i);
		}
		return entries[key] = std::make_shared<Entry>(code.storage().getWeakStorageImpl());
	}

	void trust(const at::Tensor &code)
	{
		std::lock_guard guard(lock);
		std::erase_if(trusted, [](const Trusted &t) { return t.storage.expired(); });
		trusted.push_back({code.storage().getWeakStorageImpl(), code.const_data_ptr(), code.nbytes()});
	}

	// Equal to bytes that were made here. Compared, not digested: who crafts a file could craft its digest.
	bool is_trusted(const at::Tensor &code)
	{
		if (!code.is_cpu())
			return false;
		std::lock_guard guard(lock);
		for (const Trusted &t : trusted) {
			auto alive = t.storage.lock();
			if (alive && t.size == code.nbytes() && std::memcmp(t.data, code.const_data_ptr(), t.size) == 0)
				return true;
		}
		return false;
	}
};

void check_code(const at::Tensor &code)
{
	TORCH_CHECK(code.defined() && code.scalar_type() == at::kByte && code.dim() == 1 && code.is_contiguous() &&
	                code.has_storage(),
	            "cleave::segment: the code of a segment is a tensor of bytes, as TracedModule.to_torchscript makes it");
}

void check_inputs(at::TensorList inputs)
{
	for (const at::Tensor &t : inputs) {
		TORCH_CHECK(t.defined(), "cleave::segment: an input is undefined");
		TORCH_CHECK(!at::GradMode::is_enabled() || !t.requires_grad(),
		            "cleave::segment is for inference, and an input requires grad: call the module under "
		            "torch.no_grad()");
	}
}

// Opened once for each storage; and again, where code may run now and could not before.
std::shared_ptr<Opened> open(const at::Tensor &code)
{
	Cache &cache = Cache::get();
	std::shared_ptr<Entry> e = cache.entry(code);
	std::lock_guard guard(e->lock);
	std::shared_ptr<Opened> &there = e->opened[code.storage_offset()];
	if (there && there->has(code) && (there->may_run || !fns->allowed()))
		return there;
	there = std::make_shared<Opened>(code, fns->allowed() || cache.is_trusted(code));
	return there;
}

// Outputs that are weights of the segment: those bytes live as long as `code`, which the outputs may outlive.
at::Tensor owned(const Opened &o, at::Tensor t)
{
	return t.defined() && o.lies_inside(t) ? t.clone() : t;
}

std::vector<at::Tensor> run_segment(const at::Tensor &code, at::TensorList inputs)
{
	check_code(code);
	check_inputs(inputs);
	std::shared_ptr<Opened> o = open(code);
	std::vector<br_tensor *> in;
	for (const at::Tensor &t : inputs)
		in.push_back(reinterpret_cast<br_tensor *>(t.unsafeGetTensorImpl()));
	std::vector<br_tensor *> made(fns->noutputs(o->segment));
	if (fns->run(o->segment, in.data(), static_cast<uint32_t>(in.size()), made.data()) != CLV_OK)
		give_up();
	std::vector<at::Tensor> out;
	out.reserve(made.size());
	for (br_tensor *t : made)
		out.push_back(owned(*o, bridge::take(t)));
	return out;
}

} // namespace

clv_status br_segment_register(const br_segment_fns *given)
{
	BRIDGE_CATCH({
		if (c10::Dispatcher::singleton().findSchema({"cleave::segment", ""}))
			return CLV_OK;
		fns = given;
		// Never destroyed, as the operator is to stay; held, so that it is no leak. CONSERVATIVE: outputs may share memory
		// with inputs.
		static auto *const library = new torch::Library(torch::Library::FRAGMENT, "cleave", std::nullopt, "cleave", 0);
		library->def(
			torch::schema("segment(Tensor code, Tensor[] inputs) -> Tensor[]", c10::AliasAnalysisKind::CONSERVATIVE));
		library->impl("segment", torch::dispatch(c10::DispatchKey::CPU, run_segment));
		library->impl("segment", torch::dispatch(c10::DispatchKey::CUDA, run_segment));
		return CLV_OK;
	})
}

clv_status br_segment_trust(const br_tensor *t)
{
	BRIDGE_CATCH({
		at::Tensor code = bridge::borrow(t);
		check_code(code);
		Cache::get().trust(code);
		return CLV_OK;
	})
}
