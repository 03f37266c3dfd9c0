// Calls of plans that a stranger may have written: a plan from a file.
//
// FILE_ALLOW in src/plan/ops.def says what such a plan may call. Here is what a call is held to: it writes no memory that is
// fixed, keeps the size of a caller's tensors, gives no memory that nobody wrote, and has the arguments that its kernel takes
// for granted (FILE_CHECK). What kernels do not look at was found by tools/fuzz_operators.py.
#include "bridge/guard.hpp"

#include "plan/ops.h"

#include <ATen/ScalarOps.h>

#include <cmath>
#include <cstdlib>
#include <list>
#include <unordered_map>
#include <unordered_set>

using namespace bridge;

// The arguments of a call, by name.
class bridge::Args {
public:
	Args(const c10::FunctionSchema &schema, const torch::jit::Stack &stack) : schema_(schema), stack_(stack) {}

	const c10::IValue &operator[](const char *name) const
	{
		static const c10::IValue none;
		for (size_t i = 0; i < schema_.arguments().size(); i++)
			if (schema_.arguments()[i].name() == name)
				return stack_[i];
		return none;
	}
	// Undefined where there is none.
	at::Tensor tensor(const char *name) const
	{
		const c10::IValue &v = (*this)[name];
		return v.isTensor() ? v.toTensor() : at::Tensor();
	}
	at::Tensor strided(const char *name) const
	{
		at::Tensor t = tensor(name);
		require(t.defined() && t.layout() == at::kStrided && !t.is_nested(), name, "is no plain tensor");
		return t;
	}
	int64_t integer(const char *name, int64_t otherwise) const
	{
		const c10::IValue &v = (*this)[name];
		return v.isInt() ? v.toInt() : otherwise;
	}
	// A list of integers, or a tensor of them.
	std::vector<int64_t> integers(const char *name) const
	{
		const c10::IValue &v = (*this)[name];
		if (v.isInt())
			return {v.toInt()};
		if (v.isIntList())
			return v.toIntVector();
		if (!v.isTensor() || !v.toTensor().defined())
			return {};
		at::Tensor t = strided(name);
		require(at::isIntegralType(t.scalar_type(), false), name, "has no integers");
		t = t.to(at::kCPU, at::kLong).contiguous();
		return {t.data_ptr<int64_t>(), t.data_ptr<int64_t>() + t.numel()};
	}
	void require(bool holds, const char *name, const char *what) const
	{
		if (!holds)
			throw std::runtime_error(toString(schema_.operator_name()) + ": " + name + " " + what);
	}
	const c10::FunctionSchema &schema() const { return schema_; }

private:
	const c10::FunctionSchema &schema_;
	const torch::jit::Stack &stack_;
};

namespace {

// ---- what kernels take for granted

bool all_in(const std::vector<int64_t> &v, int64_t first, int64_t end)
{
	return std::all_of(v.begin(), v.end(), [&](int64_t i) { return i >= first && i < end; });
}

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

void packed_sequence(const Args &a)
{
	at::Tensor data = a.strided("data");
	std::vector<int64_t> sizes = a.integers("batch_sizes");
	int64_t sum = 0;
	a.require(data.dim() > 0, "data", "has no dimension");
	a.require(!sizes.empty() && all_in(sizes, 1, data.size(0) + 1) && std::is_sorted(sizes.rbegin(), sizes.rend()),
	          "batch_sizes", "does not descend from the first batch");
	for (int64_t n : sizes)
		sum += n;
	a.require(sum == data.size(0), "batch_sizes", "does not add up to the rows of data");
}

void embedding_bag(const Args &a)
{
	at::Tensor weight = a.strided("weight"), indices = a.strided("indices"), offsets = a.strided("offsets");
	at::Tensor scale = a.tensor("per_sample_weights");
	a.require(weight.dim() == 2, "weight", "is no matrix");
	a.require(indices.dim() == 1 && offsets.dim() == 1, "indices", "is no vector, or offsets is none");
	a.require(all_in(a.integers("indices"), 0, weight.size(0)), "indices", "has rows that weight does not have");
	std::vector<int64_t> starts = a.integers("offsets");
	a.require(all_in(starts, 0, indices.size(0) + 1) && std::is_sorted(starts.begin(), starts.end()), "offsets",
	          "does not ascend within indices");
	a.require(!a["include_last_offset"].isBool() || !a["include_last_offset"].toBool() || !starts.empty(), "offsets",
	          "is empty");
	a.require(all_in({a.integer("mode", 0)}, 0, 3), "mode", "is none of 0, 1, 2");
	a.require(!scale.defined() || (scale.sizes() == indices.sizes() && scale.layout() == at::kStrided),
	          "per_sample_weights", "does not have the shape of indices");
	a.require(a.integer("padding_idx", -1) < weight.size(0) && a.integer("padding_idx", -1) >= -weight.size(0) - 1,
	          "padding_idx", "is no row of weight");
}

void ctc_loss(const Args &a)
{
	at::Tensor p = a.strided("log_probs"), targets = a.strided("targets");
	a.require(p.dim() == 3 || p.dim() == 2, "log_probs", "has not 2 or 3 dimensions");
	int64_t batch = p.dim() == 3 ? p.size(1) : 1, classes = p.size(-1), longest = 0, sum = 0;
	std::vector<int64_t> in = a.integers("input_lengths"), out = a.integers("target_lengths");
	a.require(p.numel() > 0 && targets.dim() < 3, "log_probs", "is empty");
	a.require(static_cast<int64_t>(in.size()) == batch && all_in(in, 0, p.size(0) + 1), "input_lengths",
	          "does not fit log_probs");
	a.require(static_cast<int64_t>(out.size()) == batch && all_in(out, 0, targets.numel() + 1), "target_lengths",
	          "does not fit targets");
	for (int64_t n : out)
		longest = std::max(longest, n), sum += n;
	bool rows = targets.dim() == 2;
	a.require(rows ? targets.size(0) == batch && longest <= targets.size(1) : sum <= targets.numel(), "target_lengths",
	          "does not fit targets");
	a.require(all_in(a.integers("targets"), 0, classes) && all_in({a.integer("blank", 0)}, 0, classes), "targets",
	          "has classes that log_probs does not have");
}

// LAPACK does not come back from some of them.
void finite_matrix(const Args &a)
{
	at::Tensor x = a["self"].isTensor() ? a.tensor("self") : a.tensor("A");
	a.require(!x.defined() || x.layout() != at::kStrided || at::isfinite(x).all().item<bool>(), "the matrix",
	          "has infinite elements or nan");
}

void weight_norm(const Args &a)
{
	at::Tensor v = a.strided("v"), g = a.strided("g");
	int64_t dim = a.integer("dim", 0);
	a.require(v.dim() > 0 && v.numel() > 0, "v", "is empty");
	bool inner = a.schema().name() != "aten::_weight_norm", ends = dim == 0 || dim == v.dim() - 1;
	a.require(ends || !inner, "dim", "is neither the first nor the last");
	a.require(!ends || g.numel() == v.size(dim), "g", "has not one element for each slice of v");
	a.require(v.scalar_type() == g.scalar_type() && at::isFloatingType(v.scalar_type()), "g",
	          "has another dtype than v");
	a.require(!inner || (v.is_contiguous() && g.is_contiguous()), "v", "is not contiguous");
}

void heads(const Args &a)
{
	int64_t n = a.integer("num_heads", a.integer("num_head", 1)), size = a.integer("embed_dim", 0);
	a.require(n > 0 && size > 0 && size % n == 0, "embed_dim", "is no multiple of the number of heads");
}

// Heads of query for each head of key and value.
void shared_heads(const Args &a)
{
	if (!a["enable_gqa"].isBool() || !a["enable_gqa"].toBool())
		return;
	for (const char *name : {"key", "value"})
		a.require(a.strided(name).dim() > 2 && a.strided(name).size(-3) > 0, name, "has no heads");
}

// Kernels take the number of keys from one of the two.
void attention(const Args &a)
{
	at::Tensor q = a.tensor("query"), k = a.tensor("key"), v = a.tensor("value");
	for (const at::Tensor &t : {q, k, v})
		if (!t.defined() || t.layout() != at::kStrided || t.is_nested())
			return;
	a.require(q.dim() > 1 && k.dim() > 1 && v.dim() > 1 && k.size(-2) == v.size(-2), "value",
	          "has not a row for each of key");
	shared_heads(a);
}

// And the inner ones batch and heads from query, which those over them have looked at.
void fused_attention(const Args &a)
{
	attention(a);
	at::Tensor q = a.strided("query"), k = a.strided("key"), v = a.strided("value");
	a.require(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && k.size(0) == q.size(0) && v.size(0) == q.size(0) &&
	              ((k.size(1) == q.size(1) && v.size(1) == q.size(1)) || !a["enable_gqa"].isNone()),
	          "key", "has another batch or other heads than query");
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

void grid_backward(const Args &a)
{
	at::Tensor grad = a.strided("grad_output"), x = a.strided("input"), grid = a.strided("grid");
	bool fits = grad.dim() == x.dim() && grid.dim() == x.dim() && x.dim() > 3 && grad.size(0) == x.size(0) &&
	            grad.size(1) == x.size(1) && grid.size(0) == x.size(0) && grid.size(-1) == x.dim() - 2;
	for (int64_t d = 2; fits && d < x.dim(); d++)
		fits = grad.size(d) == grid.size(d - 1);
	a.require(fits, "grad_output", "does not fit input and grid");
	a.require(at::isfinite(grid).all().item<bool>(), "grid", "has infinite elements or nan");
}

void pool_backward(const Args &a)
{
	at::Tensor grad = a.strided("grad_output"), self = a.strided("self");
	bool fits = grad.dim() == self.dim() && self.dim() > 3 && grad.numel() > 0 && self.numel() > 0;
	for (int64_t d = 0; fits && d < self.dim() - 3; d++)
		fits = grad.size(d) == self.size(d);
	a.require(fits, "grad_output", "does not fit self");
}

bool has_numel(const at::Tensor &t, int64_t n)
{
	return !t.defined() || (t.numel() == n && t.layout() == at::kStrided);
}

void group_norm(const Args &a)
{
	at::Tensor x = a.strided("input");
	int64_t n = a.integer("N", 0), c = a.integer("C", 0), pixels = a.integer("HxW", 0), groups = a.integer("group", 0);
	a.require(n >= 0 && c > 0 && pixels >= 0 && groups > 0 && c % groups == 0, "group", "does not divide the channels");
	a.require(x.dim() > 1 && x.size(0) == n && x.size(1) == c && pixels <= INT32_MAX * INT64_C(64) &&
	              (n == 0 ? x.numel() == 0 : x.numel() % (n * c) == 0 && x.numel() / (n * c) == pixels),
	          "input", "is not N x C x HxW");
	a.require(has_numel(a.tensor("weight"), c) && has_numel(a.tensor("bias"), c), "weight", "has not C elements");
	at::Tensor grad = a.tensor("grad_out");
	a.require(!grad.defined() || grad.sizes() == x.sizes(), "grad_out", "has another shape than input");
	a.require(has_numel(a.tensor("mean"), n * groups) && has_numel(a.tensor("rstd"), n * groups), "mean",
	          "has not one element for each group");
}

void batch_norm(const Args &a)
{
	at::Tensor x = a.strided("input");
	a.require(x.dim() > 1, "input", "has no channels");
	for (const char *name : {"weight", "bias", "running_mean", "running_var"})
		a.require(has_numel(a.tensor(name), x.size(1)), name, "has not one element for each channel");
}

void layer_norm_backward(const Args &a)
{
	at::Tensor grad = a.strided("grad_out"), x = a.strided("input");
	std::vector<int64_t> shape = a.integers("normalized_shape");
	int64_t inner = 1, outer = 1, start = x.dim() - static_cast<int64_t>(shape.size());
	a.require(start >= 0 && !shape.empty() && x.sizes().slice(static_cast<size_t>(start)) == c10::IntArrayRef(shape),
	          "normalized_shape", "is not the end of input's");
	for (int64_t d = 0; d < x.dim(); d++)
		(d < start ? outer : inner) *= x.size(d);
	a.require(grad.sizes() == x.sizes(), "grad_out", "has another shape than input");
	a.require(has_numel(a.tensor("mean"), outer) && has_numel(a.strided("rstd"), outer), "mean", "does not fit input");
	a.require(has_numel(a.tensor("weight"), inner) && has_numel(a.tensor("bias"), inner), "weight",
	          "does not fit input");
}

// grad_output and output of a backward operator: the kernel takes the shape of one for all.
void same_shapes(const Args &a)
{
	at::Tensor first;
	for (const char *name : {"grad_output", "output", "grad", "result", "mask"})
		if (at::Tensor t = a.tensor(name); t.defined()) {
			t = a.strided(name);
			a.require(!first.defined() || t.sizes() == first.sizes(), name, "has another shape than the gradient");
			first = t;
		}
}

void attention_backward(const Args &a)
{
	at::Tensor q = a.strided("query"), k = a.strided("key"), v = a.strided("value"), grad = a.strided("grad_out");
	at::Tensor out = a.strided("out"), lse = a.strided("logsumexp");
	for (const at::Tensor &t : {q, k, v, grad, out})
		a.require(t.dim() == 4 && t.scalar_type() == q.scalar_type() && t.size(0) == q.size(0) && t.stride(-1) == 1 &&
		              t.numel() > 0,
		          "query", "and the tensors beside it are not of one kind");
	a.require(k.size(1) == v.size(1) && k.size(2) == v.size(2) && k.size(3) == q.size(3) && k.size(1) == q.size(1),
	          "key", "does not fit query and value");
	a.require(grad.sizes() == out.sizes() && out.size(1) == q.size(1) && out.size(2) == q.size(2) &&
	              out.size(3) == v.size(3),
	          "out", "does not fit query and value");
	a.require(lse.dim() == 3 && lse.size(0) == q.size(0) && lse.size(1) == q.size(1) && lse.size(2) >= q.size(2) &&
	              at::isFloatingType(lse.scalar_type()),
	          "logsumexp", "does not fit query");
}

void has_shape(const Args &a, const char *name, const c10::IValue &v, at::IntArrayRef sizes)
{
	a.require(v.isTensor() && v.toTensor().defined() && v.toTensor().layout() == at::kStrided &&
	              !v.toTensor().is_nested() && v.toTensor().sizes() == sizes,
	          name, "has shapes that do not fit each other");
}

// oneDNN reads weights by the sizes of the states, whatever sizes they have themselves.
void recurrent_shapes(const Args &a, int64_t layers, int64_t ways, bool projected)
{
	bool lstm = a.schema().name() == "aten::lstm", packed = !a["batch_sizes"].isNone();
	int64_t gates = lstm ? 4 : a.schema().name() == "aten::gru" ? 3 : 1;
	at::Tensor x = a.strided(packed ? "data" : "input");
	a.require(x.dim() == (packed ? 2 : 3), packed ? "data" : "input", "has another number of dimensions");
	int64_t batch = packed ? a.integers("batch_sizes").at(0)
	                       : x.size(a["batch_first"].isBool() && a["batch_first"].toBool() ? 0 : 1);
	c10::IValue first = lstm ? a["hx"].toListRef()[0] : a["hx"], last = lstm ? a["hx"].toListRef()[1] : a["hx"];
	a.require(first.isTensor() && last.isTensor() && first.toTensor().dim() == 3 && last.toTensor().dim() == 3, "hx",
	          "is no state of three dimensions");
	int64_t out = first.toTensor().size(2), hidden = last.toTensor().size(2);
	has_shape(a, "hx", first, {layers * ways, batch, out});
	has_shape(a, "hx", last, {layers * ways, batch, hidden});
	a.require(projected || out == hidden, "hx", "has shapes that do not fit each other");
	size_t k = 0;
	auto params = a["params"].toListRef();
	for (int64_t i = 0; i < layers * ways; i++) {
		size_t end = k + params.size() / static_cast<size_t>(layers * ways);
		has_shape(a, "params", params[k++], {gates * hidden, i < ways ? x.size(-1) : out * ways});
		has_shape(a, "params", params[k++], {gates * hidden, out});
		if (projected)
			has_shape(a, "params", params[--end], {out, hidden});
		while (k < end)
			has_shape(a, "params", params[k++], {gates * hidden});
		k += projected;
	}
}

void recurrent(const Args &a)
{
	bool bias = !a["has_biases"].isBool() || a["has_biases"].toBool();
	int64_t layers = a.integer("num_layers", 0),
			ways = a["bidirectional"].isBool() && a["bidirectional"].toBool() ? 2 : 1;
	int64_t given = a["params"].isList() ? static_cast<int64_t>(a["params"].toListRef().size()) : 0;
	bool lstm = a.schema().name() == "aten::lstm";
	int64_t each = layers > 0 && layers <= given ? given / (layers * ways) : 0;
	a.require(each * layers * ways == given && (each == (bias ? 4 : 2) || (lstm && each == (bias ? 5 : 3))), "params",
	          "does not have the weights of num_layers layers");
	a.require(!lstm || a["hx"].toListRef().size() == 2, "hx", "is not the two states of an LSTM");
	if (!a["batch_sizes"].isNone())
		packed_sequence(a);
	recurrent_shapes(a, layers, ways, each - (bias ? 4 : 2) == 1);
}

// Sizes of what a padding made: those of self and what was added.
void pad_backward(const Args &a)
{
	at::Tensor grad = a.strided("grad_output"), self = a.strided("self");
	std::vector<int64_t> padding = a.integers("padding");
	int64_t n = static_cast<int64_t>(padding.size()) / 2, dims = self.dim();
	a.require(grad.dim() == dims && n <= dims, "grad_output", "has not the dimensions of self");
	bool reflects = a.schema().name().find("reflection") != std::string::npos;
	for (int64_t d = 0; d < dims; d++) {
		int64_t k = dims - 1 - d, most = reflects ? self.size(d) : INT32_MAX;
		a.require(k >= n || all_in({padding[2 * k], padding[2 * k + 1]}, 0, most), "padding", "is out of range");
		int64_t added = k < n ? padding[2 * k] + padding[2 * k + 1] : 0;
		a.require(grad.size(d) == self.size(d) + added, "grad_output", "is not self with its padding");
	}
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

// With a scale of its own, the kernel looks for pixels where there are none.
void upsample_scales(const Args &a)
{
	std::vector<int64_t> in = a["self"].isNone() ? a.integers("input_size") : a.strided("self").sizes().vec();
	std::vector<int64_t> out = a.integers("output_size");
	static const char *const names[] = {"scales_d", "scales_h", "scales_w"};
	static const char *const one[] = {"scales"};
	const char *const *scales = out.size() == 1 ? one : names + (out.size() == 2);
	for (size_t i = 0; i < out.size() && out.size() <= 3 && in.size() == out.size() + 2; i++) {
		double scale = a[scales[i]].isDouble() ? a[scales[i]].toDouble() : 0;
		a.require(scale == 0 ||
		              (scale > 0 && static_cast<double>(out[i]) <= static_cast<double>(in[i + 2]) * scale + 1),
		          "output_size", "is not what the scales say");
	}
}

void deform_conv2d(const Args &a)
{
	for (const char *name : {"stride_h", "stride_w", "dilation_h", "dilation_w", "groups", "offset_groups"})
		a.require(all_in({a.integer(name, 1)}, 1, INT32_MAX), name, "is not positive");
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

void positive_sizes(const Args &a)
{
	a.require(all_in(a.integers("size"), 1, INT64_MAX), "size", "is not positive");
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

// A list is as long as the schema says.
void output_size(const Args &a)
{
	for (const c10::Argument &formal : a.schema().arguments())
		a.require(formal.name() != "output_size" || !formal.N() ||
		              a.integers("output_size").size() == static_cast<size_t>(*formal.N()),
		          "output_size", "has another number of sizes than the operator has");
}

void nll_backward(const Args &a)
{
	at::Tensor self = a.strided("self"), target = a.strided("target"), weight = a.tensor("weight");
	at::Tensor grad = a.strided("grad_output");
	a.require(self.dim() > 0 && at::isFloatingType(self.scalar_type()), "self", "has no classes");
	int64_t at = self.dim() == 1 ? 0 : 1, classes = self.size(at), ignore = a.integer("ignore_index", -100);
	std::vector<int64_t> shape = self.sizes().vec();
	shape.erase(shape.begin() + at);
	a.require(target.sizes() == c10::IntArrayRef(shape) || (shape.empty() && target.numel() == 1), "target",
	          "has not the shape of self");
	for (int64_t i : a.integers("target"))
		a.require(i == ignore || (i >= 0 && i < classes), "target", "has classes that self does not have");
	a.require(!weight.defined() || weight.numel() == classes, "weight", "has not one element for each class");
	a.require(a.strided("total_weight").numel() == 1, "total_weight", "is no number");
	a.require(grad.numel() == 1 || grad.sizes() == target.sizes(), "grad_output", "does not fit target");
}

void cross_entropy(const Args &a)
{
	at::Tensor self = a.strided("self"), target = a.strided("target"), grad = a.tensor("grad_output");
	a.require(self.sizes() == target.sizes(), "target", "has another shape than self");
	a.require(!grad.defined() || grad.numel() == 1 || grad.sizes() == self.sizes(), "grad_output",
	          "has another shape than self");
}

void regions(const Args &a)
{
	at::Tensor x = a.strided("input"), rois = a.strided("rois");
	double scale = a["spatial_scale"].isDouble() ? a["spatial_scale"].toDouble() : 1;
	a.require(x.dim() == 4 && rois.dim() == 2 && rois.size(1) == 5, "rois", "are not rows of five numbers");
	for (const char *name : {"pooled_height", "pooled_width"})
		a.require(all_in({a.integer(name, 1)}, 1, 4096), name, "is out of range");
	a.require(a.integer("sampling_ratio", 0) <= 64, "sampling_ratio", "is out of range");
	if (!rois.numel())
		return;
	at::Tensor r = rois.to(at::kDouble), batch = r.select(1, 0), corners = r.narrow(1, 1, 4) * scale;
	a.require((batch.ge(0) & batch.lt(x.size(0))).all().item<bool>(), "rois", "name images that input does not have");
	a.require(corners.abs().le(16384).all().item<bool>(), "rois", "are too far outside of input");
}

void refused(const Args &a)
{
	a.require(false, "the operator", "is not for files");
}

// By operator, or by overload.
const auto checks = [] {
	std::unordered_map<std::string, void (*)(const Args &)> found;
#define FILE_CHECK(check, ...)                                                                                         \
	for (const char *name : {__VA_ARGS__})                                                                             \
		found.emplace(name, check);
#include "plan/ops.def"
	return found;
}();

void (*check_of(const c10::FunctionSchema &schema))(const Args &)
{
	auto found = checks.find(schema.name() + "." + schema.overload_name());
	if (found == checks.end())
		found = checks.find(schema.name());
	return found == checks.end() ? nullptr : found->second;
}

// ---- integers that are none

// Numbers for one of three ways: kernels do nothing for a fourth.
bool is_way(const c10::Argument &formal)
{
	const std::string &name = formal.name();
	return formal.type()->kind() == c10::TypeKind::IntType &&
	       (name == "reduction" || name == "interpolation_mode" || name == "padding_mode");
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
	bool wrong = false;
	if (v.isInt())
		wrong = is_way(schema.arguments()[i]) ? v.toInt() < 0 || v.toInt() > 2 : is_pointer(v.toInt());
	else if (v.isIntList())
		for (int64_t item : v.toIntVector())
			wrong |= is_pointer(item);
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
	if (t.layout() == at::kStrided) {
		if (t.has_storage() && t.storage().nbytes() > t.nbytes())
			clear_behind(t, 0); // between the elements, too
		t.zero_();
	} else if (t.layout() != at::kSparse || t._nnz())
		throw std::runtime_error(toString(op.operator_name()) + " gives memory that nobody wrote");
}

// Memory of the caller's tensors keeps its size while a call lasts.
class Kept {
public:
	explicit Kept(const at::Tensor &t) : storage_(t.storage()), was_(t.storage().resizable())
	{
		storage_.unsafeGetStorageImpl()->set_resizable(false);
	}
	~Kept() { storage_.unsafeGetStorageImpl()->set_resizable(was_); }
	Kept(const Kept &) = delete;
	Kept &operator=(const Kept &) = delete;

private:
	c10::Storage storage_;
	bool was_;
};

thread_local clv_tensor *const *given = nullptr;
thread_local uint32_t ngiven = 0;

bool is_given(const at::Tensor &t)
{
	for (uint32_t i = 0; i < ngiven; i++)
		if (at::Tensor x = borrow(given[i]); x.defined() && x.has_storage() && x.is_alias_of(t))
			return true;
	return false;
}

} // namespace

clv_status bridge::guard_make(const c10::FunctionSchema &schema, bool training, const torch::jit::Stack &stack,
                              std::unique_ptr<const Guard> *out)
{
	auto g = std::make_unique<Guard>();
	g->check = check_of(schema);
	for (uint32_t i = 0; i < stack.size(); i++)
		if (!is_made_layout(schema, i, stack[i]))
			return fail(CLV_E_UNSUPPORTED,
			            "%s makes a tensor of a layout that only conversions give, so a file may not hold it",
			            toString(schema.operator_name()).c_str());
	for (uint32_t i = 0; i < stack.size(); i++)
		if (takes_symbols(schema.arguments()[i].real_type()) || is_way(schema.arguments()[i])) {
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
		return fail(CLV_E_UNSUPPORTED, "%s does not look at what it writes into, so a file may not hold it",
		            toString(schema.operator_name()).c_str());
	g->grows = resize;
	g->resizes = g->outs || (resize && !g->written.empty());
	if (g->check || g->clears || g->grows || !g->written.empty() || !g->integers.empty())
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
	if (g.check) {
		at::NoGradGuard quiet;
		g.check(Args(op.schema(), *stack));
	}
	for (uint32_t i : g.written)
		each_tensor((*stack)[i], [&](const at::Tensor &t) {
			check_memory(op, t);
			if (!g.resizes || !t.defined() || !t.has_storage())
				return;
			if (is_given(t))
				kept.emplace_back(t);
			grown.emplace_back(t, t.storage().nbytes());
		});
	if (g.grows && g.written.empty() && (*stack)[0].isTensor())
		had = static_cast<size_t>((*stack)[0].toTensor().numel()) * (*stack)[0].toTensor().itemsize();
	op.callBoxed(stack);
	for (size_t i = 0; g.grows && i < grown.size(); i++)
		clear_behind(grown[i].first, grown[i].second);
	for (size_t i = 0; i < stack->size(); i++)
		each_tensor((*stack)[i], [&](const at::Tensor &t) {
			if (g.clears)
				clear(op, t);
			else if (g.grows && g.written.empty() && t.defined())
				clear_behind(t, had);
		});
}

void br_keep_sizes(clv_tensor *const *tensors, uint32_t n, br_kept *before)
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
