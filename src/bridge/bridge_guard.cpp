// Checks calls of plans from files, which a stranger may have written.
//
// FILE_ALLOW in src/plan/ops.def says what such a plan may call. Here is what a call is held to: it writes no memory that is
// fixed, keeps the size of a caller's tensors, gives no memory that nobody wrote, and has the arguments that its kernel takes
// for granted (FILE_CHECK; bridge_guard_layers.cpp, bridge_guard_numbers.cpp). What kernels do not look at was found by
// tools/fuzz_operators.py.
#include "bridge/guard.hpp"

extern "C" {
#include "base/limits.h"
}

#include <list>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "plan/ops.h"

using namespace bridge;

namespace {

// By operator, or by overload.
const std::unordered_map<std::string, Check> listed = [] {
	std::unordered_map<std::string, Check> found;
#define FILE_CHECK(check, ...)                                                                                         \
	for (const char *name : {__VA_ARGS__})                                                                             \
		found.emplace(name, checks::check);
#include "plan/ops.def"
	return found;
}();

Check check_named(const std::string &name)
{
	auto found = listed.find(name);
	return found == listed.end() ? nullptr : found->second;
}

Check check_of(const c10::FunctionSchema &schema)
{
	Check found = check_named(schema.name() + "." + schema.overload_name());
	return found ? found : check_named(schema.name());
}

// ---- integers that are none

// Numbers for one of three ways: kernels do nothing for a fourth.
bool is_way(const c10::Argument &formal)
{
	const std::string &name = formal.name();
	return formal.type()->kind() == c10::TypeKind::IntType &&
	       (name == "reduction" || name == "interpolation_mode" || name == "padding_mode");
}

// Extents of a window: some kernels keep them in 32 bits.
bool is_window(const c10::Argument &formal)
{
	const std::string &name = formal.name();
	return name == "kernel_size" || name == "stride" || name == "padding" || name == "dilation" ||
	       name == "output_padding";
}

// Other layouts come from conversions; a constructor leaves their indices as they were in memory.
bool is_made_layout(const c10::FunctionSchema &schema, uint32_t i, const c10::IValue &v)
{
	auto optional = schema.arguments()[i].real_type()->cast<c10::OptionalType>();
	const c10::TypePtr type = optional ? optional->getElementType() : schema.arguments()[i].real_type();
	if (type->kind() != c10::TypeKind::LayoutType || !v.isInt() || schema.name().find("to_sparse") != std::string::npos)
		return true;
	auto layout = static_cast<at::Layout>(v.toInt());
	return layout == at::kStrided || layout == at::kSparse;
}

bool takes_symbols(const c10::TypePtr &type)
{
	if (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType)
		return takes_symbols(type->containedType(0));
	return type->kind() == c10::TypeKind::SymIntType;
}

// torch keeps pointers to symbolic sizes in integers below -2^62.
bool is_pointer(int64_t i)
{
	return i < -(INT64_C(1) << 62);
}

void check_integers(const c10::FunctionSchema &schema, uint32_t i, const c10::IValue &v)
{
	bool wrong = false, window = is_window(schema.arguments()[i]);
	auto is_wrong = [&](int64_t item) {
		return window ? item < INT32_MIN || item > INT32_MAX : is_pointer(item);
	};
	if (v.isInt())
		wrong = is_way(schema.arguments()[i]) ? v.toInt() < 0 || v.toInt() > 2 : is_wrong(v.toInt());
	else if (v.isIntList())
		for (int64_t item : v.toIntVector())
			wrong |= is_wrong(item);
	if (wrong)
		throw std::runtime_error(toString(schema.operator_name()) + ": " + schema.arguments()[i].name() +
		                         " is a number out of range");
}

// ---- memory

void check_memory(const c10::OperatorHandle &op, const at::Tensor &t)
{
	if (t.defined() && t.has_storage() && is_fixed(t.storage()))
		throw std::runtime_error(toString(op.operator_name()) + " would write into the file that the model came from");
}

// Two of its elements may be one: a dimension steps within the reach of smaller steps.
bool is_overlapping(const at::Tensor &t)
{
	if (!t.defined() || t.layout() != at::kStrided || t.is_nested() || t.is_non_overlapping_and_dense())
		return false;
	std::vector<std::pair<int64_t, int64_t>> steps; // stride, size
	for (int64_t d = 0; d < t.dim(); d++)
		if (t.size(d) > 1)
			steps.emplace_back(t.stride(d), t.size(d));
	std::sort(steps.begin(), steps.end());
	int64_t reach = 1;
	for (auto [stride, size] : steps) {
		if (stride < reach)
			return true;
		reach += stride * (size - 1);
	}
	return false;
}

// Public operators look themselves whether several elements that they write are one.
void check_apart(const c10::OperatorHandle &op, const at::Tensor &t)
{
	if (is_overlapping(t))
		throw std::runtime_error(toString(op.operator_name()) + " would write elements that share memory");
}

// Inner operators are called with whole tensors by the public ones, and many of their kernels take an expanded one for such.
// What gives a view of its argument reads no element.
void unfold(const c10::FunctionSchema &schema, torch::jit::Stack *stack)
{
	for (size_t i = 0; i < stack->size(); i++) {
		c10::IValue &v = (*stack)[i];
		if (!v.isTensor() || !v.toTensor().defined() || schema.arguments()[i].alias_info())
			continue;
		at::Tensor t = v.toTensor();
		if (is_overlapping(t))
			v = t.clone(at::MemoryFormat::Contiguous);
	}
}

// Kernels of gradients take the shape of one argument for that of all: none is empty where others are not.
void check_gradients(const c10::OperatorHandle &op, const torch::jit::Stack &stack)
{
	bool some = false, none = false;
	for (const c10::IValue &v : stack)
		if (v.isTensor() && v.toTensor().defined())
			(v.toTensor().numel() ? some : none) = true;
	if (some && none)
		throw std::runtime_error(toString(op.operator_name()) + " has empty tensors among others that are not");
}

// Kernels with an `out` argument look at its dtype and shape alone; what grows does so in one storage.
void check_plain(const c10::OperatorHandle &op, const at::Tensor &t)
{
	if (t.defined() && (t.layout() != at::kStrided || t.is_quantized() || t.is_nested()))
		throw std::runtime_error(toString(op.operator_name()) +
		                         " takes plain tensors here, none that is sparse or quantised");
}

template <class F> void each_tensor(const c10::IValue &v, F f)
{
	if (v.isTensor())
		f(v.toTensor());
	else if (v.isList())
		for (const c10::IValue &item : v.toListRef())
			if (item.isTensor())
				f(item.toTensor());
}

// Of a tensor that was given more memory: what lies behind what it had.
void clear_behind(const at::Tensor &t, size_t had)
{
	size_t now = t.has_storage() ? t.storage().nbytes() : 0;
	if (now <= had)
		return;
	at::Tensor bytes =
		at::empty({0}, t.options().dtype(at::kByte)).set_(t.storage(), 0, {static_cast<int64_t>(now)}, {1});
	bytes.narrow(0, static_cast<int64_t>(had), static_cast<int64_t>(now - had)).zero_();
}

// Elements that nobody wrote: they have what was in that memory before.
void clear(const c10::OperatorHandle &op, const at::Tensor &t)
{
	if (!t.defined())
		return;
	if (t.is_quantized())
		t.zero_();
	else if (t.layout() == at::kStrided)
		clear_behind(t, 0); // also between the elements, and once where many elements are one
	else if (t.layout() != at::kSparse || t._nnz())
		throw std::runtime_error(toString(op.operator_name()) + " gives memory that nobody wrote");
}

// Products of groups: rows, or columns, behind those of the last group.
class Groups {
public:
	explicit Groups(const Args &a)
	{
		std::vector<int64_t> ends = a.integers("offs");
		at::Tensor x = a.strided("self"), y = a.strided("mat2");
		if (ends.empty() || x.dim() == y.dim())
			return; // each matrix of the result is written
		a.require(x.dim() > 0 && y.dim() > 0, "self", "is no matrix");
		dim_ = x.dim() == 2 ? 0 : -1;
		a.require(std::is_sorted(ends.begin(), ends.end()) && ends[0] >= 0, "offs", "does not ascend");
		end_ = ends.back();
	}
	void clear_rest(const at::Tensor &t) const
	{
		if (end_ >= 0 && t.dim() == 2 && end_ < t.size(dim_))
			t.narrow(dim_, end_, t.size(dim_) - end_).zero_();
	}

private:
	int64_t dim_ = 0, end_ = -1;
};

// A caller's memory keeps the size it has while a call lasts; a tensor that is the caller's itself keeps its shape, too.
class Kept {
public:
	Kept(const at::Tensor &t, bool itself)
		: tensor_(t), itself_(itself), storage_(t.storage()), sizes_(t.sizes().vec()), strides_(t.strides().vec()),
		  offset_(t.storage_offset()), was_(t.storage().resizable())
	{
		storage_.unsafeGetStorageImpl()->set_resizable(false);
	}
	~Kept()
	{
		storage_.unsafeGetStorageImpl()->set_resizable(was_);
		if (!changed())
			return;
		tensor_.unsafeGetTensorImpl()->set_storage_keep_dtype(storage_);
		tensor_.unsafeGetTensorImpl()->set_sizes_and_strides(sizes_, strides_, offset_);
	}
	Kept(const Kept &) = delete;
	Kept &operator=(const Kept &) = delete;

	bool changed() const
	{
		return itself_ &&
		       (tensor_.sizes() != c10::IntArrayRef(sizes_) || tensor_.strides() != c10::IntArrayRef(strides_) ||
		        tensor_.storage_offset() != offset_ || !tensor_.storage().is_alias_of(storage_));
	}

private:
	at::Tensor tensor_;
	bool itself_;
	c10::Storage storage_;
	std::vector<int64_t> sizes_, strides_;
	int64_t offset_;
	bool was_;
};

thread_local br_tensor *const *given = nullptr;
thread_local uint32_t ngiven = 0;

// Or another tensor on its memory.
bool is_given(const at::Tensor &t)
{
	for (uint32_t i = 0; i < ngiven; i++)
		if (at::Tensor x = borrow(given[i]); x.defined() && x.has_storage() && x.is_alias_of(t))
			return true;
	return false;
}

bool is_given_itself(const at::Tensor &t)
{
	for (uint32_t i = 0; i < ngiven; i++)
		if (borrow(given[i]).is_same(t))
			return true;
	return false;
}

[[noreturn]] void refuse_shape(const c10::OperatorHandle &op)
{
	throw std::runtime_error(toString(op.operator_name()) +
	                         " would change the shape of an input, which a file may not do: the shape is the caller's");
}

// The tensor is the caller's, and so is what autograd knows of it: the operator changes a stand-in on the same memory.
void stand_in(torch::jit::Stack *stack)
{
	at::Tensor t = (*stack)[0].toTensor();
	if (!is_given_itself(t))
		return;
	at::Tensor mine = t.detach();
	mine.set_requires_grad(t.requires_grad());
	(*stack)[0] = mine;
}

} // namespace

clv_status bridge::guard_make(const c10::OperatorHandle &op, bool training, const torch::jit::Stack &stack,
                              std::unique_ptr<const Guard> *out)
{
	const c10::FunctionSchema &schema = op.schema();
	auto g = std::make_unique<Guard>();
	g->check = check_of(schema);
	g->views = op.hasTag(at::Tag::inplace_view);
	for (uint32_t i = 0; i < stack.size(); i++)
		if (!is_made_layout(schema, i, stack[i]))
			return fail(CLV_E_UNSUPPORTED,
			            "%s makes a tensor of a layout that only conversions give, so a file may not hold it",
			            toString(schema.operator_name()).c_str());
	for (uint32_t i = 0; i < stack.size(); i++)
		if (takes_symbols(schema.arguments()[i].real_type()) || is_way(schema.arguments()[i]) ||
		    is_window(schema.arguments()[i])) {
			check_integers(schema, i, stack[i]);
			if (stack[i].isNone())
				g->integers.push_back(i);
		}
	bool resize = schema.name().find("::resize") != std::string::npos;
	g->clears = op_rows[op_find(toString(schema.operator_name()).c_str())].memory == MEMORY_EMPTY;
	for (size_t i = 0; i < schema.arguments().size(); i++)
		if (writes_argument(schema, i, training)) {
			g->written.push_back(static_cast<uint32_t>(i));
			g->outs |= schema.arguments()[i].is_out();
		}
	if (resize && g->outs)
		return fail(CLV_E_UNSUPPORTED, "%s gives memory that nobody wrote, so a file may not hold it",
		            toString(schema.operator_name()).c_str());
	if (g->outs && schema.name().find("quantize") != std::string::npos)
		return fail(CLV_E_UNSUPPORTED, "%s does not check its output arguments, so files may not contain it",
		            toString(schema.operator_name()).c_str());
	g->grows = resize;
	g->lists = makes_lists(schema);
	g->groups = schema.name() == "aten::_grouped_mm" || schema.name() == "aten::_scaled_grouped_mm";
	bool in_place = schema.name().back() == '_' && !resize && !g->views; // changes elements of self alone
	g->resizes = g->outs || (!in_place && !g->written.empty());
	g->gradients = schema.name().find("backward") != std::string::npos;
	op_name name = op_split(schema.name().c_str());
	g->graphs =
		!strcmp(name.base, "requires_grad_") || !strcmp(name.base, "detach_") || !strcmp(name.base, "retain_grad");
	g->inner = g->gradients || (name.base[0] == '_' && name.base[1] != '_') || !strncmp(name.base, "native_", 7);
	if (g->check || g->lists || g->groups || g->graphs || g->clears || g->grows || g->inner || !g->written.empty() ||
	    !g->integers.empty())
		*out = std::move(g);
	return CLV_OK;
}

void bridge::guard_call(const Guard &g, const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
	std::vector<std::pair<at::Tensor, size_t>> grown;
	std::list<Kept> kept;
	size_t had = 0;
	for (uint32_t i : g.integers)
		check_integers(op.schema(), i, (*stack)[i]);
	for (size_t i = 0; (g.outs || g.grows) && i < stack->size(); i++)
		each_tensor((*stack)[i], [&](const at::Tensor &t) { check_plain(op, t); });
	if (g.graphs && (*stack)[0].isTensor())
		stand_in(stack);
	if (g.inner)
		unfold(op.schema(), stack);
	if (g.gradients)
		check_gradients(op, *stack);
	if (g.check) {
		at::NoGradGuard quiet;
		g.check(Args(op.schema(), *stack));
	}
	if (g.lists && limits_bytes())
		check_lists(Args(op.schema(), *stack));
	for (uint32_t i : g.written)
		each_tensor((*stack)[i], [&](const at::Tensor &t) {
			check_memory(op, t);
			if (g.outs || g.inner)
				check_apart(op, t);
			if (!g.resizes || !t.defined() || !t.has_storage())
				return;
			bool itself = is_given_itself(t);
			if (itself && g.views && t.requires_grad() && at::GradMode::is_enabled())
				refuse_shape(op); // its graph would not come back with its shape
			if (itself || is_given(t))
				kept.emplace_back(t, itself);
			grown.emplace_back(t, t.storage().nbytes());
		});
	if (g.grows && g.written.empty() && (*stack)[0].isTensor())
		had = static_cast<size_t>((*stack)[0].toTensor().numel()) * (*stack)[0].toTensor().itemsize();
	std::optional<Groups> groups;
	if (g.groups)
		groups.emplace(Args(op.schema(), *stack));
	op.callBoxed(stack);
	for (const Kept &k : kept)
		if (k.changed())
			refuse_shape(op);
	for (size_t i = 0; g.grows && i < grown.size(); i++)
		clear_behind(grown[i].first, grown[i].second);
	for (size_t i = 0; i < stack->size(); i++)
		each_tensor((*stack)[i], [&](const at::Tensor &t) {
			if (g.clears)
				clear(op, t);
			else if (groups)
				groups->clear_rest(t);
			else if (g.grows && g.written.empty() && t.defined())
				clear_behind(t, had);
		});
}

void br_keep_sizes(br_tensor *const *tensors, uint32_t n, br_kept *before)
{
	*before = {given, ngiven};
	given = tensors;
	ngiven = n;
}

void br_keep_end(const br_kept *before)
{
	given = before->at;
	ngiven = before->n;
}
