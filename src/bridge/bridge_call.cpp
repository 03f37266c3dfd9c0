// Call sites: one operator with its arguments, bound once and called many times.
//
// What is constant is converted to a stack of IValues when the site is made; a call copies that stack, fills the few
// places that change (tensors, symbolic integers) and hands it to the operator's boxed kernel.
#include "bridge/guard.hpp"

#include "plan/ops.h"

#include <ATen/ScalarOps.h>

#include <memory>
#include <vector>

using namespace bridge;

std::optional<size_t> bridge::training_argument(const c10::FunctionSchema &schema)
{
	const auto &formal = schema.arguments();
	for (size_t i = 0; i < formal.size(); i++)
		if (formal[i].name() == "training" || formal[i].name() == "use_input_stats")
			return i;
	return std::nullopt;
}

bool bridge::writes_argument(const c10::FunctionSchema &schema, size_t i, bool training)
{
	const c10::Argument &a = schema.arguments()[i];
	if (a.alias_info() && a.alias_info()->isWrite())
		return true;
	// Normalisations update their running statistics without a word of it in their schemas.
	bool statistic = a.name() == "running_mean" || a.name() == "running_var";
	return statistic && training && op_rows[op_find(schema.name().c_str())].statistics;
}

br_arg bridge::host_value(const c10::IValue &v)
{
	br_arg a{};
	if (v.isInt()) {
		a.kind = BR_INT;
		a.u.i = v.toInt();
	} else if (v.isDouble()) {
		a.kind = BR_FLOAT;
		a.u.f = v.toDouble();
	} else if (v.isBool()) {
		a.kind = BR_BOOL;
		a.u.b = v.toBool();
	} else if (v.isComplexDouble()) {
		a.kind = BR_COMPLEX;
		a.u.c.re = v.toComplexDouble().real();
		a.u.c.im = v.toComplexDouble().imag();
	}
	return a;
}

namespace {

struct Fill { // one place of the stack to fill before each call
	uint32_t at;
	enum { TENSOR, TENSORS, OPTIONAL_TENSORS, NUMBER, WRAPPED_NUMBER, INTS, REALS } how;
	uint32_t id = 0;
	bool take = false;
	std::vector<br_arg> items = {}; // for lists
};

struct Result {
	enum { DROP, TENSOR, TENSORS, HOST } how = DROP;
	uint32_t slot = 0;
	std::vector<br_arg> items = {};
};

} // namespace

struct br_site {
	c10::OperatorHandle op;
	std::vector<c10::IValue> stack; // constants in place, None where a Fill goes
	std::vector<Fill> fills;
	std::vector<Result> results;
	std::unique_ptr<const Guard> guard = {}; // of a plan that a stranger may have written, where it needs one
};

namespace {

at::Tensor wrapped(const at::Scalar &s)
{
	at::Tensor t = c10::scalar_to_tensor(s);
	t.unsafeGetTensorImpl()->set_wrapped_number(true);
	return t;
}

c10::IValue scalar_value(const br_arg &a)
{
	at::Scalar s;
	switch (a.kind) {
	case BR_INT: s = at::Scalar(a.u.i); break;
	case BR_FLOAT: s = at::Scalar(a.u.f); break;
	case BR_BOOL: s = at::Scalar(a.u.b); break;
	default: s = at::Scalar(c10::complex<double>(a.u.c.re, a.u.c.im)); break;
	}
	if (a.wrapped)
		return wrapped(s);
	return c10::IValue(s);
}

const c10::TypePtr unwrap_optional(const c10::TypePtr &t)
{
	auto o = t->cast<c10::OptionalType>();
	return o ? o->getElementType() : t;
}

struct Binder {
	br_site &site;
	br_object *const *objects;
	bool training;
	const c10::Argument *argument = nullptr;
	uint32_t at = 0;

	clv_status mismatch(const br_arg &a)
	{
		return fail(CLV_E_INVALID, "argument %u (%s) of %s takes %s, the plan has something else (kind %d)", at,
		            argument->name().c_str(), toString(site.op.operator_name()).c_str(),
		            argument->type()->str().c_str(), a.kind);
	}

	// What an operator writes, the plan says: lifetimes, copies and the state of a runtime follow from it.
	clv_status check_written(const br_arg &a)
	{
		if (a.kind != BR_TENSOR || a.written || !writes_argument(site.op.schema(), at, training))
			return CLV_OK;
		return fail(CLV_E_INVALID, "%s writes its argument %u (%s), and the plan does not say so",
		            toString(site.op.operator_name()).c_str(), at, argument->name().c_str());
	}

	// Integers that stand for a dtype, a layout or a memory format: torch looks them up in tables.
	clv_status check_enum(const br_arg &a, int64_t code)
	{
		int64_t end = INT64_MAX, first = INT64_MIN;
		bool known = true;
		switch (unwrap_optional(argument->real_type())->kind()) {
		case c10::TypeKind::ScalarTypeType:
			known = code >= 0 && code < static_cast<int64_t>(at::ScalarType::NumOptions) &&
			        dtype_of(static_cast<at::ScalarType>(code)) < DT_COUNT;
			break;
		case c10::TypeKind::LayoutType: first = 0, end = static_cast<int64_t>(at::Layout::NumOptions); break;
		case c10::TypeKind::MemoryFormatType:
			first = 0, end = static_cast<int64_t>(at::MemoryFormat::NumOptions);
			break;
		default: return CLV_OK;
		}
		if (a.kind != BR_INTVAR && known && code >= first && code < end)
			return CLV_OK;
		return fail(CLV_E_INVALID, "argument %u (%s) of %s takes a %s, and the plan has another number", at,
		            argument->name().c_str(), toString(site.op.operator_name()).c_str(),
		            unwrap_optional(argument->real_type())->str().c_str());
	}

	static bool varies(const br_arg &a) { return a.kind == BR_INTVAR || a.kind == BR_REALVAR; }
	static bool is_integer(const br_arg &a) { return a.kind == BR_INT || a.kind == BR_INTVAR || a.kind == BR_DTYPE; }

	clv_status list(const br_arg &a, const c10::TypePtr &type, c10::IValue &out)
	{
		auto lt = type->cast<c10::ListType>();
		if (!lt)
			return mismatch(a);
		c10::TypePtr elem = lt->getElementType();
		const br_arg *e = a.u.list.at, *end = e + a.u.list.n;
		bool tensors = elem->kind() == c10::TypeKind::TensorType;
		bool optional =
			elem->kind() == c10::TypeKind::OptionalType && unwrap_optional(elem)->kind() == c10::TypeKind::TensorType;
		bool live = std::any_of(e, end, varies);
		if (tensors || optional) {
			for (const br_arg *i = e; i != end; i++) {
				if (i->kind != BR_TENSOR && i->kind != BR_NONE)
					return mismatch(*i);
				TRY(check_written(*i));
			}
			Fill f{at, tensors ? Fill::TENSORS : Fill::OPTIONAL_TENSORS};
			f.items.assign(e, end);
			site.fills.push_back(std::move(f));
			return CLV_OK;
		}
		switch (elem->kind()) {
		case c10::TypeKind::IntType:
		case c10::TypeKind::SymIntType: {
			for (const br_arg *i = e; i != end; i++)
				if (!is_integer(*i) || (live && i->kind == BR_DTYPE))
					return mismatch(*i);
			if (live) {
				Fill f{at, Fill::INTS};
				f.items.assign(e, end);
				site.fills.push_back(std::move(f));
				return CLV_OK;
			}
			c10::List<int64_t> l;
			for (; e != end; e++) {
				l.push_back(e->kind == BR_INT ? e->u.i
				                              : static_cast<int64_t>(scalar_type_of(static_cast<uint8_t>(e->u.code))));
			}
			out = l;
			return CLV_OK;
		}
		case c10::TypeKind::FloatType: {
			c10::List<double> l;
			if (live) {
				Fill f{at, Fill::REALS};
				for (; e != end; e++) {
					if (e->kind != BR_FLOAT && e->kind != BR_REALVAR)
						return mismatch(*e);
					f.items.push_back(*e);
				}
				site.fills.push_back(std::move(f));
				return CLV_OK;
			}
			for (; e != end; e++) {
				if (e->kind != BR_FLOAT)
					return mismatch(*e);
				l.push_back(e->u.f);
			}
			out = l;
			return CLV_OK;
		}
		case c10::TypeKind::BoolType: {
			c10::List<bool> l;
			for (; e != end; e++) {
				if (e->kind != BR_BOOL)
					return mismatch(*e);
				l.push_back(e->u.b);
			}
			out = l;
			return CLV_OK;
		}
		case c10::TypeKind::StringType: {
			c10::List<std::string> l;
			for (; e != end; e++) {
				if (e->kind != BR_STR)
					return mismatch(*e);
				l.push_back(std::string(e->u.s));
			}
			out = l;
			return CLV_OK;
		}
		case c10::TypeKind::OptionalType: {
			c10::List<std::optional<at::Scalar>> l;
			if (unwrap_optional(elem)->kind() != c10::TypeKind::NumberType)
				return mismatch(a);
			for (; e != end; e++) {
				if (e->kind != BR_NONE && (e->kind < BR_INT || e->kind > BR_COMPLEX))
					return mismatch(*e);
				l.push_back(e->kind == BR_NONE ? std::nullopt : std::optional(scalar_value(*e).toScalar()));
			}
			out = l;
			return CLV_OK;
		}
		case c10::TypeKind::NumberType: {
			c10::impl::GenericList l(c10::NumberType::get());
			for (; e != end; e++) {
				if (e->kind < BR_INT || e->kind > BR_COMPLEX)
					return mismatch(*e);
				l.push_back(scalar_value(*e));
			}
			out = l;
			return CLV_OK;
		}
		default: return mismatch(a);
		}
	}

	clv_status bind(const br_arg &a, c10::IValue &out)
	{
		const c10::TypePtr type = unwrap_optional(argument->type());
		switch (a.kind) {
		case BR_NONE:
			// An absent tensor is None for `Tensor?` and an undefined tensor for `Tensor`.
			if (argument->type()->kind() == c10::TypeKind::TensorType)
				out = at::Tensor();
			return CLV_OK;
		case BR_TENSOR: {
			TRY(check_written(a));
			Fill f{at, Fill::TENSOR};
			f.id = a.u.id;
			f.take = a.take;
			site.fills.push_back(std::move(f));
			return CLV_OK;
		}
		case BR_INTVAR:
		case BR_REALVAR:
		case BR_BOOLVAR: {
			TRY(check_enum(a, 0));
			Fill f{at, a.wrapped ? Fill::WRAPPED_NUMBER : Fill::NUMBER};
			f.id = a.u.id;
			site.fills.push_back(std::move(f));
			return CLV_OK;
		}
		case BR_INT: TRY(check_enum(a, a.u.i)); [[fallthrough]];
		case BR_FLOAT:
		case BR_BOOL:
		case BR_COMPLEX: out = scalar_value(a); return CLV_OK;
		case BR_STR: out = std::string(a.u.s); return CLV_OK;
		case BR_DTYPE:
			out = static_cast<int64_t>(scalar_type_of(static_cast<uint8_t>(a.u.code)));
			return check_enum(a, out.toInt());
		case BR_LAYOUT:
		case BR_MEMFMT: out = static_cast<int64_t>(a.u.code); return check_enum(a, a.u.code);
		case BR_DEVICE: out = c10::Device(std::string(a.u.s)); return CLV_OK;
		case BR_OBJECT:
			if (!objects || !objects[a.u.id])
				return fail(CLV_E_UNSUPPORTED,
				            "%s needs an object (%s) that is not there; only the process that captured the plan has it",
				            toString(site.op.operator_name()).c_str(), argument->name().c_str());
			out = unwrap(objects[a.u.id])->value;
			return CLV_OK;
		case BR_LIST: return list(a, type, out);
		default: return mismatch(a);
		}
	}
};

// Where the arguments do not say that it is not, it is.
bool is_training(const c10::FunctionSchema &schema, const br_arg *args, uint32_t nargs)
{
	std::optional<size_t> at = training_argument(schema);
	return !at || *at >= nargs || args[*at].kind != BR_BOOL || args[*at].u.b;
}

clv_status bind_args(br_site &s, const br_arg *args, uint32_t nargs, br_object *const *objects)
{
	const auto &schema = s.op.schema();
	const auto &formal = schema.arguments();
	if (nargs > formal.size())
		return fail(CLV_E_INVALID, "%s takes %zu arguments here, the plan has %u",
		            toString(schema.operator_name()).c_str(), formal.size(), nargs);
	Binder b{s, objects, is_training(schema, args, nargs)};
	for (uint32_t i = 0; i < formal.size(); i++) {
		c10::IValue v;
		b.argument = &formal[i];
		b.at = i;
		if (i < nargs)
			TRY(b.bind(args[i], v));
		else if (formal[i].default_value())
			v = *formal[i].default_value();
		else
			return fail(CLV_E_INVALID, "%s needs argument %u (%s), the plan has %u arguments",
			            toString(schema.operator_name()).c_str(), i, formal[i].name().c_str(), nargs);
		s.stack.push_back(std::move(v));
	}
	return CLV_OK;
}

clv_status bind_results(br_site &s, const br_arg *results, uint32_t nresults)
{
	if (nresults != s.op.schema().returns().size())
		return fail(CLV_E_INVALID, "%s returns %zu results here, the plan has %u",
		            toString(s.op.operator_name()).c_str(), s.op.schema().returns().size(), nresults);
	for (uint32_t i = 0; i < nresults; i++) {
		Result r;
		const br_arg &a = results[i];
		if (a.kind == BR_TENSOR) {
			r.how = Result::TENSOR;
			r.slot = a.u.id;
		} else if (a.kind == BR_LIST) {
			r.how = Result::TENSORS;
			r.items.assign(a.u.list.at, a.u.list.at + a.u.list.n);
		} else if (a.kind != BR_NONE) {
			r.how = Result::HOST;
		}
		s.results.push_back(std::move(r));
	}
	return CLV_OK;
}

inline at::Tensor load(br_tensor **slots, const br_arg &a)
{
	if (a.kind != BR_TENSOR)
		return at::Tensor();
	if (!a.take)
		return borrow(slots[a.u.id]);
	br_tensor *t = slots[a.u.id];
	slots[a.u.id] = nullptr;
	return take(t);
}

const br_arg &there(const br_arg &number)
{
	if (number.kind == BR_NONE)
		throw std::runtime_error("a number that follows the data has no value here");
	return number;
}

void fill(const Fill &f, c10::IValue &out, br_tensor **slots, const br_arg *numbers)
{
	switch (f.how) {
	case Fill::TENSOR:
		if (f.take) {
			br_tensor *t = slots[f.id];
			slots[f.id] = nullptr;
			out = take(t);
		} else {
			out = borrow(slots[f.id]);
		}
		return;
	case Fill::TENSORS: {
		c10::List<at::Tensor> l;
		l.reserve(f.items.size());
		for (const auto &i : f.items)
			l.push_back(load(slots, i));
		out = std::move(l);
		return;
	}
	case Fill::OPTIONAL_TENSORS: {
		c10::List<std::optional<at::Tensor>> l;
		l.reserve(f.items.size());
		for (const auto &i : f.items) {
			at::Tensor t = load(slots, i);
			l.push_back(t.defined() ? std::optional<at::Tensor>(std::move(t)) : std::nullopt);
		}
		out = std::move(l);
		return;
	}
	case Fill::NUMBER: out = scalar_value(there(numbers[f.id])); return;
	case Fill::WRAPPED_NUMBER: out = wrapped(scalar_value(there(numbers[f.id])).toScalar()); return;
	case Fill::INTS: {
		c10::List<int64_t> l;
		l.reserve(f.items.size());
		for (const auto &i : f.items)
			l.push_back(i.kind == BR_INTVAR ? there(numbers[i.u.id]).u.i : i.u.i);
		out = std::move(l);
		return;
	}
	case Fill::REALS: {
		c10::List<double> l;
		l.reserve(f.items.size());
		for (const auto &i : f.items)
			l.push_back(i.kind == BR_REALVAR ? there(numbers[i.u.id]).u.f : i.u.f);
		out = std::move(l);
		return;
	}
	}
}

clv_status store_list(const br_site *s, const Result &r, const c10::IValue &v, br_tensor **slots)
{
	if (!v.isList())
		return fail(CLV_E_TORCH, "%s did not return a list", toString(s->op.operator_name()).c_str());
	auto l = v.toListRef();
	if (l.size() != r.items.size())
		return fail(CLV_E_GUARD, "%s returned %zu tensors, the plan has %zu", toString(s->op.operator_name()).c_str(),
		            l.size(), r.items.size());
	for (size_t i = 0; i < l.size(); i++)
		if (r.items[i].kind == BR_TENSOR)
			slots[r.items[i].u.id] = l[i].isTensor() ? release(at::Tensor(l[i].toTensor())) : nullptr;
	return CLV_OK;
}

} // namespace

/* "aten::add.Tensor" -> its handle */
static std::optional<c10::OperatorHandle> find_operator(const char *op)
{
	std::string name(op);
	std::string overload;
	size_t dot = name.find('.', name.find("::") == std::string::npos ? 0 : name.find("::"));
	if (dot != std::string::npos) {
		overload = name.substr(dot + 1);
		name.resize(dot);
	}
	return c10::Dispatcher::singleton().findSchema({name, overload});
}

bool br_has_operator(const char *op)
{
	try {
		if (!std::strncmp(op, "mkldnn::", 8) && !at::globalContext().hasMKLDNN())
			return false;
		if (!std::strncmp(op, "mkl::", 5) && !at::globalContext().hasMKL())
			return false;
		return find_operator(op).has_value();
	} catch (...) {
		return false;
	}
}

bool br_formal(const char *op, uint32_t i, const char **name, bool *named, bool *none)
{
	try {
		auto handle = find_operator(op);
		if (!handle || i >= handle->schema().arguments().size())
			return false;
		const c10::Argument &a = handle->schema().arguments()[i];
		*name = a.name().c_str();
		*named = a.kwarg_only();
		*none = a.default_value() && a.default_value()->isNone();
		return true;
	} catch (...) {
		return false;
	}
}

clv_status br_site_new(const char *op, const br_arg *args, uint32_t nargs, const br_arg *results, uint32_t nresults,
                       br_object *const *objects, bool untrusted, br_site **out)
{
	BRIDGE_CATCH({
		auto handle = find_operator(op);
		if (!handle)
			return fail(CLV_E_UNSUPPORTED, "PyTorch has no operator %s (a library that registers it may not be loaded)",
			            op);
		auto s = std::make_unique<br_site>(br_site{*handle, {}, {}, {}});
		TRY(bind_args(*s, args, nargs, objects));
		TRY(bind_results(*s, results, nresults));
		if (untrusted)
			TRY(guard_make(*handle, is_training(handle->schema(), args, nargs), s->stack, &s->guard));
		*out = s.release();
		return CLV_OK;
	})
}

bool br_site_resizes(const br_site *s)
{
	return s->guard && (s->guard->resizes || s->guard->graphs);
}

void br_site_free(br_site *s)
{
	delete s;
}

clv_status br_call(const br_site *s, br_tensor **slots, const br_arg *numbers, br_arg *hosts)
{
	BRIDGE_CATCH({
		torch::jit::Stack stack;
		stack.reserve(std::max(s->stack.size(), s->results.size()));
		stack.assign(s->stack.begin(), s->stack.end());
		for (const auto &f : s->fills)
			fill(f, stack[f.at], slots, numbers);
		if (s->guard)
			guard_call(*s->guard, s->op, &stack);
		else
			s->op.callBoxed(&stack);
		for (size_t i = 0; i < s->results.size(); i++) {
			const Result &r = s->results[i];
			if (r.how == Result::TENSOR)
				slots[r.slot] = release(std::move(stack[i]).toTensor());
			else if (r.how == Result::TENSORS)
				TRY(store_list(s, r, stack[i], slots));
			else if (r.how == Result::HOST)
				*hosts++ = host_value(stack[i]);
		}
		return CLV_OK;
	})
}
