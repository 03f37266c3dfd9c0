// Arguments that other kernels take for granted: arithmetic, linear algebra, random numbers, conversions.
#include "bridge/guard.hpp"

#include <ATen/ScalarOps.h>

#include <cmath>
#include <unordered_set>

using namespace bridge;

namespace bridge::checks {

// The smallest integer by -1 is no integer: the processor raises SIGFPE.
void division(const Args &a)
{
	const c10::IValue &self = a["self"].isNone() ? a["a"] : a["self"],
					  &other = a["other"].isNone() ? a["b"] : a["other"];
	auto is_risky = [](at::ScalarType t) {
		return t == at::kInt || t == at::kLong;
	};
	auto as_tensor = [](const c10::IValue &v) {
		if (!v.isScalar())
			return v.isTensor() ? v.toTensor() : at::Tensor();
		at::Tensor t = c10::scalar_to_tensor(v.toScalar());
		t.unsafeGetTensorImpl()->set_wrapped_number(true);
		return t;
	};
	if (other.isScalar() && (!other.isInt() || other.toInt() != -1))
		return;
	at::Tensor x = as_tensor(self), y = as_tensor(other);
	if (!x.defined() || !y.defined() || !x.is_cpu() || !y.is_cpu())
		return;
	at::ScalarType common = at::result_type(x, y);
	if (!is_risky(common) || x.scalar_type() != common) // a narrower one does not have it
		return;
	a.require(x.layout() == at::kStrided && y.layout() == at::kStrided, "self", "has integers and is no plain tensor");
	if (!y.eq(-1).any().item<bool>())
		return;
	int64_t least = common == at::kInt ? INT32_MIN : INT64_MIN;
	a.require(!(x.eq(least) & y.eq(-1)).any().item<bool>(), "self",
	          "has the smallest integer, which has no quotient by -1");
}

// The smallest integer has no absolute value.
void no_least(const Args &a)
{
	for (const char *name : {"self", "other", "a", "b"})
		if (at::Tensor t = a.tensor(name); t.defined() && (t.scalar_type() == at::kInt || t.scalar_type() == at::kLong))
			a.require(!t.eq(t.scalar_type() == at::kInt ? INT32_MIN : INT64_MIN).any().item<bool>(), name,
			          "has the smallest integer");
}

void fft(const Args &a)
{
	at::Tensor x = a.strided("self");
	std::vector<int64_t> dims = a.integers("dim");
	std::unordered_set<int64_t> once(dims.begin(), dims.end());
	a.require(!dims.empty() && all_in(dims, 0, x.dim()) && once.size() == dims.size(), "dim",
	          "does not name dimensions of self");
	a.require(x.numel() > 0, "self", "is empty");
	int64_t last = a.integer("last_dim_size", 1);
	a.require(last > 0 && (a["last_dim_size"].isNone() || x.size(dims.back()) == last / 2 + 1), "last_dim_size",
	          "does not fit self");
}

// LAPACK does not come back from some of them.
void finite_matrix(const Args &a)
{
	at::Tensor x = a["self"].isTensor() ? a.tensor("self") : a.tensor("A");
	a.require(!x.defined() || x.layout() != at::kStrided || at::isfinite(x).all().item<bool>(), "the matrix",
	          "has infinite elements or nan");
}

// The sum of them is what the result has.
void repeats(const Args &a)
{
	int64_t sum = 0;
	for (int64_t n : a.integers("repeats"))
		a.require(n >= 0 && !__builtin_add_overflow(sum, n, &sum), "repeats", "is out of range");
	a.require(sum < INT64_C(1) << 40, "repeats", "is out of range");
}

// The other type has no quantiser, or has one and no numbers for it.
void plain_types(const Args &a)
{
	const c10::IValue &to = a["dtype"];
	bool quantised = to.isInt() && c10::isQIntType(static_cast<at::ScalarType>(to.toInt()));
	at::Tensor t = a.tensor(a["self"].isNone() ? "a" : "self");
	a.require(!quantised && !(t.defined() && t.is_quantized()), "dtype", "takes bits of quantised tensors for others");
}

// Views of less than a byte an element begin at the wrong one.
void whole_bytes(const Args &a)
{
	int64_t to = a.integer("dtype", 0);
	a.require(to != static_cast<int64_t>(at::kQUInt4x2) && to != static_cast<int64_t>(at::kQUInt2x4), "dtype",
	          "has less than a byte an element");
}

void matrix_power(const Args &a)
{
	a.require(all_in({a.integer("n", 0)}, -INT32_MAX, INT32_MAX), "n", "is too large an exponent");
}

// LAPACK takes pivots for rows, counted from 1. Two negative ones are a block of LDL.
void pivots(const Args &a)
{
	const char *name = a["LU_pivots"].isNone() ? "pivots" : "LU_pivots";
	bool ldl = !a["LD"].isNone();
	at::Tensor p = a.strided(name), m = a.strided(ldl ? "LD" : a["LU"].isNone() ? "LU_data" : "LU");
	std::vector<int64_t> rows = a.integers(name), shape = m.sizes().vec();
	a.require(m.dim() > 1, "the matrix", "is none");
	shape.pop_back();
	shape.back() = std::min(m.size(-2), m.size(-1));
	a.require(p.sizes() == c10::IntArrayRef(shape), name, "has not one element for each row of the matrix");
	size_t width = static_cast<size_t>(shape.back());
	for (size_t i = 0; i < rows.size(); i++) {
		bool pair = ldl && rows[i] < 0 && i % width + 1 < width && rows[i + 1] == rows[i];
		a.require(all_in({pair ? -rows[i] : rows[i]}, 1, m.size(-2) + 1), name, "has no rows of the matrix");
		i += pair;
	}
}

// Recurrences of n steps.
void polynomial(const Args &a)
{
	const c10::IValue &n = a["n"];
	auto few = [](double v) {
		return !(v > 4096);
	};
	bool fits = n.isScalar() ? few(n.toScalar().toComplexDouble().real())
	                         : !n.toTensor().numel() || few(a.strided("n").to(at::kDouble).max().item<double>());
	a.require(fits, "n", "is above 4096");
	const c10::IValue &x = a["x"]; // of which the recurrence does not begin, and gives what was on the stack
	bool number = x.isScalar() ? !std::isnan(x.toScalar().toComplexDouble().real())
	                           : !at::isnan(a.strided("x")).any().item<bool>();
	a.require(number, "x", "has nan");
}

// A sum over all integers from a number up to 9, unless it is at a pole at once.
void zeta(const Args &a)
{
	const c10::IValue &from = a["other"].isNone() ? a["self"] : a["other"];
	if (from.isTensor())
		a.strided(a["other"].isNone() ? "self" : "other");
	at::Tensor x = from.isTensor() ? from.toTensor() : c10::scalar_to_tensor(from.toScalar());
	if (at::isComplexType(x.scalar_type()))
		return; // which the kernel refuses
	x = x.to(at::kDouble);
	a.require(!(x.lt(-65536) & x.ne(x.floor())).any().item<bool>(), "self", "is too far below 0");
}

// The kernel reads an expanded dimension as if it were not.
void median(const Args &a)
{
	at::Tensor x = a.tensor("self");
	int64_t dim = a.integer("dim", 0);
	bool known = x.defined() && x.layout() == at::kStrided && !x.is_nested() && dim >= -x.dim() && dim < x.dim();
	a.require(!known || x.stride(dim) != 0 || x.size(dim) < 2, "self", "is expanded along dim");
}

void observer(const Args &a)
{
	at::Tensor x = a.strided("self");
	bool rows = a["per_row_fake_quant"].isBool() && a["per_row_fake_quant"].toBool();
	int64_t axis = a.integer("ch_axis", 0);
	a.require(!rows || all_in({axis}, 0, x.dim()), "ch_axis", "is no dimension of self");
	int64_t n = rows ? x.size(axis) : 1;
	bool fresh = rows && a.strided("running_min").numel() == 0;
	for (const char *name : {"running_min", "running_max", "scale", "zero_point"}) {
		at::Tensor t = a.strided(name);
		a.require((fresh || t.numel() == n) && t.is_contiguous(), name, "does not fit self");
	}
}

void floating(const Args &a)
{
	a.require(at::isFloatingType(a.strided("self").scalar_type()), "self", "has no floating point numbers");
}

// Rounding these towards the range of floats does not come to an end.
void random_range(const Args &a)
{
	a.require(a.integer("from", 0) < INT64_MAX && a.integer("to", 0) > INT64_MIN + 1, "from",
	          "is at the end of all integers");
}

// It draws until something fits, and nothing fits nan.
void binomial(const Args &a)
{
	for (const char *name : {"count", "prob"})
		a.require(at::isfinite(a.strided(name)).all().item<bool>(), name, "has infinite elements or nan");
}

// Scales and recipes come in lists, of which the kernel reads the first.
void scaled_mm(const Args &a)
{
	for (const char *name : {"scale_a", "recipe_a", "scale_b", "recipe_b"})
		a.require(a[name].isList() && !a[name].toListRef().empty(), name, "is empty");
}

// Two weights in a byte; a scale and a zero for each group of a row.
void int4_mm(const Args &a)
{
	at::Tensor x = a.strided("self"), w = a.strided("mat2"), scales = a.strided("qScaleAndZeros");
	int64_t group = a.integer("qGroupSize", 0);
	a.require(x.dim() == 2 && w.dim() == 2 && w.size(1) * 2 == x.size(1) && w.is_contiguous() && x.is_contiguous(),
	          "mat2", "does not fit self");
	a.require(group > 0 && scales.dim() == 3 && x.size(1) % group == 0 && scales.size(0) == x.size(1) / group &&
	              scales.size(1) == w.size(0) && scales.size(2) == 2 && scales.is_contiguous(),
	          "qScaleAndZeros", "has not one scale for each group");
}

// The kernel for bfloat16 reads 16 at once.
void int8_mm(const Args &a)
{
	at::Tensor x = a.strided("self"), w = a.strided("mat2");
	a.require(w.dim() == 2 && w.numel() > 0, "mat2", "is no matrix");
	a.require(x.scalar_type() != at::kBFloat16 || !x.is_cpu() || (x.dim() == 2 && x.size(1) % 16 == 0), "self",
	          "has columns that are no multiple of 16");
}

// Marks a tensor as negated; copies of what cannot be negated go wrong.
void negated(const Args &a)
{
	at::ScalarType t = a.strided("self").scalar_type();
	a.require(at::isFloatingType(t) || at::isComplexType(t) || at::isIntegralType(t, false), "self",
	          "cannot be negated");
}

void noise(const Args &a)
{
	at::Tensor self = a.strided("self"), out = a.tensor("out");
	a.require(a.strided("noise").sizes() == self.sizes(), "noise", "has another shape than self");
	a.require(!out.defined() || out.sizes() == self.sizes(), "out", "has another shape than self");
}

// How many steps fit is a quotient of integers, where the result has some.
void range(const Args &a)
{
	for (const char *name : {"start", "end"})
		a.require(std::llabs(a.integer(name, 0) / 2) < INT64_C(1) << 61, name, "is too far from 0");
	const c10::IValue &step = a["step"], &dtype = a["dtype"];
	at::ScalarType type = dtype.isInt() ? static_cast<at::ScalarType>(dtype.toInt()) : at::kFloat;
	if (at::Tensor out = a.tensor("out"); out.defined())
		type = out.scalar_type();
	bool small = step.isDouble() && !(std::fabs(step.toDouble()) >= 1);
	a.require(!small || !at::isIntegralType(type, true), "step", "is below 1, which is no step for integers");
}

// With weights and one observation, the kernel centres its argument in place.
void covariance(const Args &a)
{
	at::Tensor x = a.strided("self");
	bool weights = a.tensor("fweights").defined() || a.tensor("aweights").defined();
	a.require(!weights || (x.dim() < 2 ? x.numel() : x.size(1)) != 1, "self", "has one observation");
}

void trapezoid(const Args &a)
{
	a.strided("y");
}

void plain_copy(const Args &a)
{
	a.strided("self"), a.strided("src");
}

// Indices become those of a sparse tensor as they are.
void gather_backward(const Args &a)
{
	a.require(!a["sparse_grad"].isBool() || !a["sparse_grad"].toBool(), "sparse_grad", "is not for files");
}

void refused(const Args &a)
{
	a.require(false, "the operator", "is not for files");
}

} // namespace bridge::checks
