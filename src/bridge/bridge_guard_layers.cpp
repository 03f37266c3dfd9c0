// Arguments that kernels of layers take for granted: normalisation, attention, recurrence, embedding, resampling, losses.
#include "bridge/guard.hpp"

#include <ATen/PadNd.h>

#include <cmath>

using namespace bridge;

namespace bridge::checks {

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
	a.require(!starts.empty() ||
	              (!indices.numel() && !(a["include_last_offset"].isBool() && a["include_last_offset"].toBool())),
	          "offsets", "is empty");
	a.require(all_in({a.integer("mode", 0)}, 0, 3), "mode", "is none of 0, 1, 2");
	a.require(!scale.defined() || (scale.sizes() == indices.sizes() && scale.layout() == at::kStrided),
	          "per_sample_weights", "does not have the shape of indices");
	a.require(indices.is_contiguous() && offsets.is_contiguous() && (!scale.defined() || scale.is_contiguous()),
	          "indices", "is not contiguous, or offsets or per_sample_weights is not");
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
	for (const at::Tensor &t : {q, k, v})
		a.require(t.numel() > 0 && (t.stride(-1) != 0 || t.size(-1) == 1), "query",
		          "or key or value is empty, or is expanded along its last dimension");
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
		          "query", "and the other tensors differ in dtype, batch or layout");
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

// What goes round is a dimension as it was: where one end of it is cut off, the kernel does not write all of the other.
void circular_pad(const Args &a)
{
	const c10::IValue &mode = a["mode"];
	if (mode.isString() ? mode.toStringRef() != "circular"
	                    : mode.isInt() && mode.toInt() != static_cast<int64_t>(at::padding_mode::circular))
		return;
	std::vector<int64_t> pad = a.integers("pad");
	for (size_t i = 0; i + 1 < pad.size(); i += 2)
		a.require(std::min(pad[i], pad[i + 1]) >= 0 || std::max(pad[i], pad[i + 1]) <= 0, "pad",
		          "pads one end of a dimension and crops the other, which circular padding does not allow");
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
		double size = static_cast<double>(in[i + 2]) * scale; // a scale near 0 has a reciprocal beyond all pixels
		a.require(scale == 0 || (size >= 0.5 && static_cast<double>(out[i]) <= size + 1), "output_size",
		          "does not match the scale factors");
	}
}

void deform_conv2d(const Args &a)
{
	for (const char *name : {"stride_h", "stride_w", "dilation_h", "dilation_w", "groups", "offset_groups"})
		a.require(all_in({a.integer(name, 1)}, 1, INT32_MAX), name, "is not positive");
	a.require(!at::isnan(a.strided("offset")).any().item<bool>(), "offset", "has nan, which is no place");
}

// A list is as long as the schema says: kernels read so many numbers before they look.
void lengths(const Args &a)
{
	for (const c10::Argument &formal : a.schema().arguments())
		if ((formal.name() == "output_size" || formal.name() == "padding") && formal.N())
			a.require(a.integers(formal.name().c_str()).size() == static_cast<size_t>(*formal.N()),
			          formal.name().c_str(), "has another number of sizes than the operator has");
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

// One gradient for each row, or one for all.
void margin_backward(const Args &a)
{
	at::Tensor self = a.strided("self"), grad = a.strided("grad_output");
	a.require(grad.dim() == 0 || grad.numel() == (self.dim() > 1 ? self.size(0) : 1), "grad_output",
	          "has not one element for each row of self");
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
	a.require(x.numel() > 0, "input", "is empty");
	for (const char *name : {"pooled_height", "pooled_width"})
		a.require(all_in({a.integer(name, 1)}, 1, 4096), name, "is out of range");
	a.require(a.integer("sampling_ratio", 0) <= 64, "sampling_ratio", "is out of range");
	if (!rois.numel())
		return;
	at::Tensor r = rois.to(at::kDouble), batch = r.select(1, 0), corners = r.narrow(1, 1, 4) * scale;
	a.require((batch.ge(0) & batch.lt(x.size(0))).all().item<bool>(), "rois", "name images that input does not have");
	a.require(corners.abs().le(16384).all().item<bool>(), "rois", "are too far outside of input");
}

} // namespace bridge::checks
