// Calls of plans that a stranger may have written: a plan from a file.
//
// The list of operators (src/file/operators.def) says what such a plan may call. Here is what a call is held to: it writes
// no memory that is fixed, keeps the size of a caller's tensors, and gives no memory that nobody wrote.
#include "bridge/guard.hpp"

#include <list>
#include <unordered_set>

using namespace bridge;

namespace {

const std::unordered_set<std::string> uninitialised{
	"aten::empty",           "aten::empty_like",
	"aten::empty_strided",   "aten::empty_permuted",
	"aten::new_empty",       "aten::new_empty_strided",
	"aten::empty_quantized", "aten::_empty_affine_quantized",
	"prims::empty_strided",  "aten::_empty_per_channel_affine_quantized",
	"prims::empty",          "prims::empty_permuted"};

void check_memory(const c10::OperatorHandle &op, const at::Tensor &t)
{
	if (t.defined() && t.has_storage() && is_fixed(t.storage()))
		throw std::runtime_error(toString(op.operator_name()) + " would write into the file that the model came from");
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

// Elements that nobody wrote: they have what was in that memory before.
void clear(const at::Tensor &t)
{
	if (t.defined() && t.layout() == at::kStrided)
		t.zero_();
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

clv_status bridge::guard_make(const c10::FunctionSchema &schema, bool training, std::unique_ptr<const Guard> *out)
{
	auto g = std::make_unique<Guard>();
	bool outs = false, resize = schema.name().find("::resize") != std::string::npos;
	g->clears = uninitialised.count(schema.name()) != 0;
	for (size_t i = 0; i < schema.arguments().size(); i++)
		if (writes_argument(schema, i, training)) {
			g->written.push_back(static_cast<uint32_t>(i));
			outs |= schema.arguments()[i].is_out();
		}
	if (resize && outs)
		return fail(CLV_E_UNSUPPORTED, "%s gives memory that nobody wrote, so a file may not hold it",
		            toString(schema.operator_name()).c_str());
	g->grows = resize;
	g->resizes = outs || (resize && !g->written.empty());
	if (g->clears || g->grows || !g->written.empty())
		*out = std::move(g);
	return CLV_OK;
}

void bridge::guard_call(const Guard &g, const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
	std::vector<std::pair<at::Tensor, size_t>> grown;
	std::list<Kept> kept;
	size_t had = 0;
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
				clear(t);
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
