// The recorder: sees every operator that a thread runs, above autograd and autocast, and tells its caller.
//
// A thread-local RecordFunction callback gets each operator with its boxed arguments. Only the outermost operator of a
// nest is told; inside function transforms and dispatch modes it is the first one whose tensors are plain. Tensors are
// numbered by identity. Weak references keep every TensorImpl and StorageImpl address from being used again, without
// keeping data alive. Arguments are numbered when an operator starts (it may change them), results when it ends.
#include "bridge/impl.hpp"

#include <ATen/Context.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/class_type.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

// Declared here because its header needs a JSON library that torch does not ship.
namespace at::functorch {
struct DynamicLayer;
TORCH_API const std::vector<DynamicLayer> &getDynamicLayerStack();
} // namespace at::functorch

using namespace bridge;

namespace {

// Where a thread finds its recorder; travels with the thread's state to the threads it forks.
auto slot_kind()
{
	return c10::DebugInfoKind::TEST_INFO;
}

// A thread that was forked during a recording may outlive it: the slot keeps the recorder.
struct Slot : c10::DebugInfoBase {
	std::shared_ptr<br_recorder> recorder;
};

thread_local int opaque = 0; // depth inside a call that is recorded as a whole; 0: not in one
thread_local int depth = 0; // operators open on this thread; the outermost has depth 0
thread_local struct Open *open_top = nullptr;

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
WeakTensor weak_tensor(const at::Tensor &t)
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

} // namespace

struct br_recorder {
	br_record_fns fns;
	void *ctx;
	std::shared_ptr<br_recorder> self; // until br_recorder_free
	std::recursive_mutex mutex;        // forked threads record too
	std::thread::id thread;
	at::CallbackHandle handle = 0;
	std::unique_ptr<c10::DebugInfoGuard> guard;
	bool recording = false;

	clv_status failed = CLV_OK;
	std::string message;

	std::unordered_map<const c10::TensorImpl *, uint32_t> ids;
	std::vector<Known> known;
	std::map<std::pair<const void *, uint32_t>, uint32_t> variables;
	std::vector<WeakTensor> aliases;
	std::unordered_map<const c10::StorageImpl *, uint32_t> storages;
	uint32_t next_storage = 0;
	std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> weak_storages;
	std::vector<br_object *> objects;
	std::vector<GeneratorUse> generators; // beside objects
	std::vector<Backup> backups;
	std::unordered_set<const c10::StorageImpl *> outside; // memory of tensors that were there before the forward
	RandomState random_state;
	bool alone = true; // no other thread may draw from the default generators meanwhile
	size_t bytes_made = 0;

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
		known.push_back({weak_tensor(t), t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr, origin,
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
		clv_tensor *handle_ = reinterpret_cast<clv_tensor *>(t.unsafeGetTensorImpl());
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
		aliases.push_back(weak_tensor(t));
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
		known[id].weak = weak_tensor(t);
		known[id].storage = t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
		if (t.has_storage()) { // views of the literal count as views of the copy
			storages.insert_or_assign(known[id].storage, storage_number(copy));
			weak_storages.emplace_back(t.storage().getWeakStorageImpl());
		}
		return id;
	}

	uint32_t object(const c10::IValue &v);
};

namespace {

uint64_t digest(const void *at, size_t n, uint64_t h = 1469598103934665603ull)
{
	const auto *p = static_cast<const unsigned char *>(at);
	for (size_t i = 0; i < n; i++)
		h = (h ^ p[i]) * 1099511628211ull;
	return h;
}

uint64_t generator_digest(at::Generator g)
{
	at::DisableRecordFunctionGuard quiet;
	at::Tensor s = g.get_state();
	return digest(s.const_data_ptr(), s.nbytes());
}

// State of the default generators, the ones an operator without explicit generator draws from.
RandomState default_random_state()
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

bool was_reseeded(const br_recorder *r)
{
	RandomState now = default_random_state();
	return now.seed != r->random_state.seed || (r->alone && now.digest != r->random_state.digest);
}

// An operator between its start and its end.
struct Open : at::ObserverContext {
	std::shared_ptr<br_recorder> recorder;
	std::string place;
	std::optional<at::Generator> drawn; // what a random operator draws from, when it is not the default
	bool counted = false, top = false, random = false;
	uint32_t flags = 0;
	int exceptions = 0;
	std::optional<c10::OperatorHandle> op;
	std::string name;
	br_modes modes{};
	std::vector<br_arg> args, results;
	std::vector<uint32_t> writes;
	std::vector<at::Tensor> written;
	std::deque<std::vector<br_arg>> lists;
	std::deque<std::string> strings;

	const char *keep(std::string s)
	{
		strings.push_back(std::move(s));
		return strings.back().c_str();
	}
	br_arg convert(const c10::IValue &v, const c10::TypePtr &type, br_origin if_new);
	br_arg convert_tensor(const at::Tensor &t, br_origin if_new);
	template <class L> br_arg convert_list(const L &items, const c10::TypePtr &type, br_origin if_new);
	void note_write(const br_arg &a, const c10::IValue &v);
};

bool read_wrapped(const at::Tensor &t, br_arg &a)
{
	if (!t.unsafeGetTensorImpl()->is_wrapped_number() || t.dim() != 0 || !t.device().is_cpu() || t.requires_grad())
		return false;
	a.wrapped = 1;
	switch (t.scalar_type()) {
	case at::kLong:
		a.kind = BR_INT;
		a.u.i = *t.const_data_ptr<int64_t>();
		return true;
	case at::kDouble:
		a.kind = BR_FLOAT;
		a.u.f = *t.const_data_ptr<double>();
		return true;
	case at::kBool:
		a.kind = BR_BOOL;
		a.u.b = *t.const_data_ptr<bool>();
		return true;
	case at::kComplexDouble: {
		auto c = *t.const_data_ptr<c10::complex<double>>();
		a.kind = BR_COMPLEX;
		a.u.c.re = c.real();
		a.u.c.im = c.imag();
		return true;
	}
	default: a.wrapped = 0; return false;
	}
}

br_arg Open::convert_tensor(const at::Tensor &t, br_origin if_new)
{
	br_arg a{};
	if (!t.defined())
		return a;
	if (if_new == BR_EXTERNAL && read_wrapped(t, a))
		return a;
	if (t._fw_grad(0).defined())
		recorder->refuse(name + " runs in forward-mode differentiation (jvp), which cannot be captured");
	a.kind = BR_TENSOR;
	a.u.id = recorder->number(t, if_new);
	return a;
}

template <class L> br_arg Open::convert_list(const L &items, const c10::TypePtr &type, br_origin if_new)
{
	c10::TypePtr elem = type && type->cast<c10::ListType>() ? type->cast<c10::ListType>()->getElementType() : nullptr;
	std::vector<br_arg> out;
	for (const auto &i : items)
		out.push_back(convert(c10::IValue(i), elem, if_new));
	lists.push_back(std::move(out));
	br_arg a{};
	a.kind = BR_LIST;
	a.u.list.at = lists.back().data();
	a.u.list.n = static_cast<uint32_t>(lists.back().size());
	return a;
}

// Integers stand for dtypes, layouts and memory formats where the schema says so.
br_arg convert_int(int64_t i, const c10::TypePtr &type)
{
	br_arg a{};
	a.kind = BR_INT;
	a.u.i = i;
	if (!type)
		return a;
	switch (type->kind()) {
	case c10::TypeKind::ScalarTypeType:
		a.kind = BR_DTYPE;
		a.u.code = dtype_of(static_cast<at::ScalarType>(i));
		break;
	case c10::TypeKind::LayoutType:
		a.kind = BR_LAYOUT;
		a.u.code = static_cast<uint32_t>(i);
		break;
	case c10::TypeKind::MemoryFormatType:
		a.kind = BR_MEMFMT;
		a.u.code = static_cast<uint32_t>(i);
		break;
	default: break;
	}
	return a;
}

br_arg Open::convert(const c10::IValue &v, const c10::TypePtr &declared, br_origin if_new)
{
	c10::TypePtr type = declared;
	if (type && type->cast<c10::OptionalType>())
		type = type->cast<c10::OptionalType>()->getElementType();
	br_arg a{};
	if (v.isNone())
		return a;
	if (v.isTensor())
		return convert_tensor(v.toTensor(), if_new);
	if (v.isInt())
		return convert_int(v.toInt(), type);
	if (v.isDouble()) {
		a.kind = BR_FLOAT;
		a.u.f = v.toDouble();
	} else if (v.isBool()) {
		a.kind = BR_BOOL;
		a.u.b = v.toBool();
	} else if (v.isComplexDouble()) {
		a.kind = BR_COMPLEX;
		a.u.c.re = v.toComplexDouble().real();
		a.u.c.im = v.toComplexDouble().imag();
	} else if (v.isString()) {
		a.kind = BR_STR;
		a.u.s = keep(v.toStringRef());
	} else if (v.isDevice()) {
		a.kind = BR_DEVICE;
		a.u.s = keep(v.toDevice().str());
	} else if (v.isIntList()) {
		return convert_list(v.toIntVector(), type, if_new);
	} else if (v.isDoubleList()) {
		return convert_list(v.toDoubleVector(), type, if_new);
	} else if (v.isBoolList()) {
		std::vector<c10::IValue> items;
		for (bool b : v.toBoolList())
			items.emplace_back(b);
		return convert_list(items, type, if_new);
	} else if (v.isList()) {
		return convert_list(v.toListRef(), type, if_new);
	} else if (v.isGenerator() || v.isObject() || v.isCapsule()) {
		a.kind = BR_OBJECT;
		a.u.id = recorder->object(v);
		if (if_new == BR_RESULT)
			recorder->refuse(name + " returns an object, not a tensor (" + v.tagKind() + ")");
	} else if (v.isStorage()) {
		recorder->refuse(name +
		                 " takes raw storage; memory that is shared behind PyTorch's operators cannot be captured");
	} else {
		recorder->refuse(name + " has an argument or result of kind " + v.tagKind() + ", which a plan cannot hold");
	}
	return a;
}

// A tensor from before the recording gets a copy of its data before it is written, so that restore can undo it.
void keep_old_data(br_recorder *r, const at::Tensor &t)
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

// After a refusal the forward runs on; what it writes must still be undone.
void keep_written(br_recorder *r, const c10::OperatorHandle &op, c10::ArrayRef<const c10::IValue> in)
{
	const auto &formal = op.schema().arguments();
	if (in.size() > formal.size())
		in = in.slice(in.size() - formal.size());
	for (size_t i = 0; i < in.size(); i++) {
		if (!formal[i].alias_info() || !formal[i].alias_info()->isWrite() || !in[i].isTensor() ||
		    !in[i].toTensor().defined())
			continue;
		const at::Tensor &t = in[i].toTensor();
		bool outside = t.has_storage() && r->outside.count(t.storage().unsafeGetStorageImpl());
		if (outside || r->ids.find(t.unsafeGetTensorImpl()) == r->ids.end())
			keep_old_data(r, in[i].toTensor());
	}
}

void Open::note_write(const br_arg &a, const c10::IValue &v)
{
	if (a.kind == BR_LIST && v.isList()) {
		auto items = v.toListRef();
		for (uint32_t i = 0; i < a.u.list.n && i < items.size(); i++)
			note_write(a.u.list.at[i], items[i]);
		return;
	}
	if (a.kind != BR_TENSOR || !v.isTensor())
		return;
	const at::Tensor &t = v.toTensor();
	writes.push_back(a.u.id);
	written.push_back(t);
	br_origin o = recorder->known[a.u.id].origin;
	bool outside = t.has_storage() && recorder->outside.count(t.storage().unsafeGetStorageImpl());
	if (outside)
		keep_old_data(recorder.get(), t);
	if (o == BR_DEFINED || o == BR_EXTERNAL) {
		if (op->schema().name().rfind("aten::set_", 0) == 0 || op->schema().name() == "aten::resize_")
			recorder->refuse(name + " changes the memory of a tensor that the forward did not make");
	}
}

bool is_wrapper(const c10::IValue &v)
{
	if (v.isTensor())
		return v.toTensor().defined() &&
		       v.toTensor().key_set().has_any(
				   c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
		                                c10::DispatchKey::Python, c10::DispatchKey::Functionalize}));
	if (v.isTensorList() || v.isOptionalTensorList())
		for (const auto &e : v.toListRef())
			if (is_wrapper(e))
				return true;
	return false;
}

// Function transforms and dispatch modes: the operators they call in turn are the ones to record.
bool is_transformed(c10::ArrayRef<const c10::IValue> inputs)
{
	if (!at::functorch::getDynamicLayerStack().empty())
		return true;
	if (c10::impl::TorchDispatchModeTLS::any_modes_set() &&
	    !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python))
		return true;
	for (const auto &v : inputs)
		if (is_wrapper(v))
			return true;
	return false;
}

uint32_t tag_flags(const c10::OperatorHandle &op)
{
	uint32_t f = 0;
	if (op.hasTag(at::Tag::dynamic_output_shape))
		f |= BR_DYNAMIC;
	if (op.hasTag(at::Tag::data_dependent_output))
		f |= BR_DYNAMIC | BR_HOST_READ;
	if (op.hasTag(at::Tag::nondeterministic_seeded))
		f |= BR_RANDOM;
	return f;
}

void check_storage(br_recorder *r, const Open &o, const c10::IValue &v, const br_arg &a)
{
	if (a.kind == BR_LIST && v.isList()) {
		auto items = v.toListRef();
		for (uint32_t i = 0; i < a.u.list.n && i < items.size(); i++)
			check_storage(r, o, items[i], a.u.list.at[i]);
		return;
	}
	if (a.kind != BR_TENSOR || !v.isTensor())
		return;
	const at::Tensor &t = v.toTensor();
	const void *now = t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
	if (r->known[a.u.id].storage != now)
		r->refuse("an argument of " + o.name +
		          " had its memory exchanged behind PyTorch's operators (tensor.data = …)");
}

void start_top(br_recorder *r, Open &o, const at::RecordFunction &fn)
{
	const auto &formal = o.op->schema().arguments();
	auto in = fn.inputs();
	if (in.size() > formal.size()) // inside the TorchScript interpreter the whole stack is given
		in = in.slice(in.size() - formal.size());
	br_modes_get(&o.modes);
	if (o.op->schema().name() == "aten::_has_compatible_shallow_copy_type")
		return r->refuse("tensor.data is assigned inside the forward; the exchange leaves no operator to replay");
	bool literal = o.op->schema().name() == "aten::lift_fresh";
	for (size_t i = 0; i < in.size(); i++) {
		if (literal && in[i].isTensor() && in[i].toTensor().defined())
			r->fresh(in[i].toTensor());
		o.args.push_back(o.convert(in[i], formal[i].real_type(), BR_EXTERNAL));
		check_storage(r, o, in[i], o.args.back());
		const auto *alias = formal[i].alias_info();
		if (alias && alias->isWrite())
			o.note_write(o.args.back(), in[i]);
	}
}

void start_random(br_recorder *r, Open &o, c10::ArrayRef<const c10::IValue> inputs)
{
	o.random = true;
	for (const auto &v : inputs)
		if (v.isGenerator()) {
			auto &use = r->generators[r->object(v)];
			o.drawn = v.toGenerator();
			uint64_t now = generator_digest(*o.drawn);
			if (!use.used) {
				use.first = now;
				use.saved = o.drawn->get_state();
			} else if (use.last != now) {
				r->refuse("a torch.Generator is reseeded inside the forward (seen at " + o.name + ")");
			}
			use.used = true;
			use.last = now; // operators inside this one draw from it too
			return;
		}
	if (was_reseeded(r))
		r->refuse("the random generator is reseeded or advanced outside PyTorch's operators before " + o.name +
		          " (manual_seed, set_rng_state or fork_rng inside the forward)");
}

void end_random(br_recorder *r, const Open &o)
{
	if (o.drawn)
		r->generators[r->object(*o.drawn)].last = generator_digest(*o.drawn);
	else
		r->random_state = default_random_state();
}

void start(Open &o, const at::RecordFunction &fn)
{
	br_recorder *r = o.recorder.get();
	if (!o.op || is_transformed(fn.inputs()))
		return;
	if (r->failed != CLV_OK ? depth == 0 : opaque && depth == opaque)
		keep_written(r, *o.op, fn.inputs());
	if (r->failed != CLV_OK)
		return;
	o.counted = true;
	o.top = depth++ == 0;
	o.name = toString(o.op->operator_name());
	o.exceptions = std::uncaught_exceptions();
	uint32_t flags = tag_flags(*o.op);
	if (o.top) {
		open_top = &o;
		o.flags = flags;
		if (o.op->schema().name().rfind("aten::", 0) != 0)
			o.flags |= BR_DYNAMIC;
		start_top(r, o, fn);
	} else if (open_top) {
		open_top->flags |= flags;
	}
	if (flags & BR_RANDOM)
		start_random(r, o, fn.inputs());
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction &fn)
{
	auto *slot = static_cast<Slot *>(c10::ThreadLocalDebugInfo::get(slot_kind()));
	auto name = fn.operator_name();
	if (!slot || !name)
		return nullptr;
	auto o = std::make_unique<Open>();
	o->recorder = slot->recorder;
	br_recorder *r = o->recorder.get();
	// Finding the place takes Python's lock, so it must not wait for ours.
	char place[256] = "";
	if (depth == 0 && r->fns.where && r->on_its_thread() && r->recording)
		r->fns.where(r->ctx, place, sizeof place);
	std::lock_guard<std::recursive_mutex> lock(r->mutex);
	if (!r->recording)
		return nullptr;
	try {
		o->place = place;
		o->op = c10::Dispatcher::singleton().findSchema(*name);
		start(*o, fn);
	} catch (...) {
		r->check(fail_exception(__FILE__, __LINE__));
	}
	if (!o->counted)
		return nullptr;
	return o;
}

// Weak references keep the small objects beside each freed buffer, and glibc's aligned allocation cannot use a hole that
// fits exactly: without this a recording would grow by every temporary, though all of them are free.
void release_freed(br_recorder *r, const at::RecordFunction &fn)
{
#if defined(__GLIBC__)
	for (const auto &v : fn.outputs())
		if (v.isTensor() && v.toTensor().defined() && v.toTensor().has_storage())
			r->bytes_made += v.toTensor().storage().nbytes();
	if (r->bytes_made < size_t{128} << 20)
		return;
	r->bytes_made = 0;
	malloc_trim(0);
#endif
}

// A factory without dtype takes the process's default one: the node says which that was.
void name_dtype(Open &o, const std::vector<c10::IValue> &out)
{
	const auto &formal = o.op->schema().arguments();
	if (out.size() != 1 || !out[0].isTensor() || !out[0].toTensor().defined())
		return;
	for (const br_arg &a : o.args)
		if (a.kind == BR_TENSOR || a.kind == BR_LIST)
			if (a.kind == BR_TENSOR || (a.u.list.n && a.u.list.at[0].kind == BR_TENSOR))
				return;
	for (size_t i = 0; i < o.args.size(); i++)
		if (formal[i].name() == "dtype" && o.args[i].kind == BR_NONE) {
			o.args[i].kind = BR_DTYPE;
			o.args[i].u.code = dtype_of(out[0].toTensor().scalar_type());
		}
}

void end_top(br_recorder *r, Open &o, const at::RecordFunction &fn)
{
	const auto &returns = o.op->schema().returns();
	const auto &out = fn.outputs();
	if (std::uncaught_exceptions() > o.exceptions || out.size() < returns.size())
		return; // it raised, and the forward may go on
	for (size_t i = 0; i < o.written.size(); i++) {
		const at::Tensor &t = o.written[i];
		r->known[o.writes[i]].storage = t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
		r->see_again_if_reshaped(t, o.writes[i]);
	}
	for (size_t i = 0; i < returns.size(); i++)
		o.results.push_back(o.convert(out[i], returns[i].real_type(), BR_RESULT));
	name_dtype(o, out);
	br_event e{};
	e.op = o.name.c_str();
	e.args = o.args.data();
	e.nargs = static_cast<uint32_t>(o.args.size());
	e.results = o.results.data();
	e.nresults = static_cast<uint32_t>(o.results.size());
	e.writes = o.writes.data();
	e.nwrites = static_cast<uint32_t>(o.writes.size());
	e.flags = o.flags;
	e.modes = o.modes;
	e.at = o.place.empty() ? nullptr : o.place.c_str();
	if (r->failed == CLV_OK)
		r->check(r->fns.event(r->ctx, &e));
}

void on_end(const at::RecordFunction &fn, at::ObserverContext *context)
{
	if (!context)
		return;
	auto &o = *static_cast<Open *>(context);
	br_recorder *r = o.recorder.get();
	std::lock_guard<std::recursive_mutex> lock(r->mutex);
	depth--;
	if (o.top)
		open_top = nullptr;
	if (!r->recording)
		return;
	try {
		if (o.random)
			end_random(r, o);
		if (o.top && r->failed == CLV_OK)
			end_top(r, o, fn);
		if (o.top)
			release_freed(r, fn);
	} catch (...) {
		r->check(fail_exception(__FILE__, __LINE__));
	}
}

} // namespace

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

clv_status br_recorder_define(br_recorder *r, const clv_tensor *t, uint32_t *id_out)
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
		depth = opaque = 0;
		open_top = nullptr;
		r->thread = std::this_thread::get_id();
		r->alone = alone;
		r->random_state = default_random_state();
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

clv_status br_recorder_keep(br_recorder *r, const clv_tensor *ct)
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
		return br_tensor_copy_(reinterpret_cast<clv_tensor *>(b.region.unsafeGetTensorImpl()),
		                       reinterpret_cast<clv_tensor *>(b.data.unsafeGetTensorImpl()));
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

clv_status br_recorder_see(br_recorder *r, const clv_tensor *t, uint32_t *id_out)
{
	BRIDGE_CATCH({
		*id_out = r->number(borrow(t), BR_EXTERNAL);
		return r->status();
	})
}

clv_status br_recorder_fresh(br_recorder *r, const clv_tensor *t, uint32_t *id_out)
{
	BRIDGE_CATCH({
		at::DisableRecordFunctionGuard quiet;
		at::NoGradGuard no_grad;
		*id_out = r->see(borrow(t).detach().clone(), BR_FRESH);
		return r->status();
	})
}

clv_status br_recorder_result(br_recorder *r, const clv_tensor *t, uint32_t *id_out)
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

void br_recorder_suspend(br_recorder *)
{
	opaque = ++depth;
}
void br_recorder_resume(br_recorder *)
{
	depth--;
	opaque = 0;
}

void br_recorder_fail(br_recorder *r, clv_status code, const char *message)
{
	r->set_failed(code, message);
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
