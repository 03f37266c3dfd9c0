// Recording: sees every operator that a thread runs, above autograd and autocast, and tells the recorder's caller.
//
// A thread-local RecordFunction callback gets each operator with its boxed arguments. Only the outermost operator of a
// nest is told; inside function transforms and dispatch modes it is the first one whose tensors are plain. Tensors are
// numbered by identity. Weak references keep every TensorImpl and StorageImpl address from being used again, without
// keeping data alive. Arguments are numbered when an operator starts (it may change them), results when it ends.
//
// Inside the TorchScript interpreter an operator is shown the whole stack: its arguments are the last values there, and after
// it ran its results are. What waits below them belongs to others.
#include "bridge/recorder.hpp"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <deque>
#include <unordered_set>

#include "memory/recycle.h"
#include "plan/ops.h"

// Declared here because its header needs a JSON library that torch does not ship.
namespace at::functorch {
struct DynamicLayer;
TORCH_API const std::vector<DynamicLayer> &getDynamicLayerStack();
} // namespace at::functorch

thread_local int bridge::depth = 0;
thread_local int bridge::opaque = 0;

using namespace bridge;

bool br_transforms(void)
{
	return !at::functorch::getDynamicLayerStack().empty() ||
	       (c10::impl::TorchDispatchModeTLS::any_modes_set() &&
	        !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python));
}

namespace {

thread_local struct Open *open_top = nullptr;

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
	if (v.isDouble() || v.isBool() || v.isComplexDouble())
		return host_value(v);
	if (v.isString()) {
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

using Values = c10::ArrayRef<const c10::IValue>;

Values last_of(Values stack, size_t n)
{
	return stack.size() > n ? stack.slice(stack.size() - n) : stack;
}

Values arguments_of(const c10::OperatorHandle &op, const at::RecordFunction &fn)
{
	return last_of(fn.inputs(), op.schema().arguments().size());
}

Values results_of(const c10::OperatorHandle &op, const at::RecordFunction &fn)
{
	return last_of(Values(fn.outputs().data(), fn.outputs().size()), op.schema().returns().size());
}

// After a refusal the forward runs on; what it writes must still be undone.
void keep_written(br_recorder *r, const c10::OperatorHandle &op, Values in)
{
	const auto &formal = op.schema().arguments();
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
		uint8_t memory = op_rows[op_find(name.c_str())].memory;
		if (memory == MEMORY_RESIZED || memory == MEMORY_JOINED)
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
bool is_transformed(Values inputs)
{
	if (br_transforms())
		return true;
	for (const auto &v : inputs)
		if (is_wrapper(v))
			return true;
	return false;
}

// Picks by numbers, not by a mask: as many as there are.
bool picks_by_number(const c10::OperatorHandle &op, Values in)
{
	const std::string &name = op.schema().name();
	if ((name != "aten::index" && name != "aten::_unsafe_index") || in.size() < 2 || !in[1].isList())
		return false;
	for (const c10::IValue &v : in[1].toListRef())
		if (v.isTensor() && v.toTensor().defined() &&
		    (v.toTensor().scalar_type() == at::kBool || v.toTensor().scalar_type() == at::kByte))
			return false;
	return true;
}

uint32_t tag_flags(const c10::OperatorHandle &op, Values in)
{
	uint32_t f = 0;
	if (op.hasTag(at::Tag::dynamic_output_shape) && !picks_by_number(op, in))
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

// Whether a normalisation runs in training, as far as its arguments tell.
bool in_training(const c10::FunctionSchema &schema, Values in)
{
	std::optional<size_t> at = training_argument(schema);
	return !at || (*at < in.size() && in[*at].isBool() && in[*at].toBool());
}

void start_top(br_recorder *r, Open &o, Values in)
{
	const auto &formal = o.op->schema().arguments();
	br_modes_get(&o.modes);
	if (o.op->schema().name() == "aten::_has_compatible_shallow_copy_type")
		return r->refuse("tensor.data is assigned inside the forward; the exchange leaves no operator to replay");
	bool literal = o.op->schema().name() == "aten::lift_fresh", training = in_training(o.op->schema(), in);
	for (size_t i = 0; i < in.size(); i++) {
		if (literal && in[i].isTensor() && in[i].toTensor().defined())
			r->fresh(in[i].toTensor());
		o.args.push_back(o.convert(in[i], formal[i].real_type(), BR_EXTERNAL));
		check_storage(r, o, in[i], o.args.back());
		if (writes_argument(o.op->schema(), i, training))
			o.note_write(o.args.back(), in[i]);
	}
}

void start_random(br_recorder *r, Open &o, Values inputs)
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
	if (!o.op)
		return;
	Values in = arguments_of(*o.op, fn);
	if (is_transformed(in))
		return;
	const bool elsewhere = r->suspended && !r->on_its_thread(); // forked inside an opaque call, and part of it
	if (r->failed != CLV_OK || elsewhere ? depth == 0 : opaque && depth == opaque)
		keep_written(r, *o.op, in);
	if (r->failed != CLV_OK)
		return;
	o.counted = true;
	o.top = depth++ == 0 && !elsewhere;
	o.name = toString(o.op->operator_name());
	o.exceptions = std::uncaught_exceptions();
	uint32_t flags = tag_flags(*o.op, in);
	if (o.top) {
		open_top = &o;
		o.flags = flags;
		if (o.op->schema().name().rfind("aten::", 0) != 0)
			o.flags |= BR_DYNAMIC;
		start_top(r, o, in);
	} else if (open_top) {
		open_top->flags |= flags;
	}
	if (flags & BR_RANDOM)
		start_random(r, o, in);
}

// Weak references keep the small objects next to each freed buffer, and glibc's aligned allocation cannot use a hole that
// fits exactly: without this a recording would grow by every temporary, though all of them are free. Blocks that are
// recycled leave no holes.
void release_freed(br_recorder *r, Values out)
{
	for (const auto &v : out) {
		bool has = v.isTensor() && v.toTensor().defined() && v.toTensor().has_storage();
		size_t bytes = has ? v.toTensor().storage().nbytes() : 0;
		r->bytes_made += recycles(bytes) ? 0 : bytes;
	}
	if (r->bytes_made < size_t{128} << 20)
		return;
	r->bytes_made = 0;
	memory_trim();
}

// A factory without dtype takes the process's default one: the node says which that was.
void name_dtype(Open &o, Values out)
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

void end_top(br_recorder *r, Open &o, Values out)
{
	const auto &returns = o.op->schema().returns();
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

} // namespace

void bridge::forget_open_operators()
{
	depth = opaque = 0;
	open_top = nullptr;
}

std::unique_ptr<at::ObserverContext> bridge::on_start(const at::RecordFunction &fn)
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

void bridge::on_end(const at::RecordFunction &fn, at::ObserverContext *context)
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
			end_top(r, o, results_of(*o.op, fn));
		if (o.top)
			release_freed(r, results_of(*o.op, fn));
	} catch (...) {
		r->check(fail_exception(__FILE__, __LINE__));
	}
}
