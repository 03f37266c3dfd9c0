// Makes libtorch and the libraries below it do their first-use set-up: look-ups in /proc and /sys, files they load.
// A process that soon may open nothing does it before. Which kernels run depends on what is found, and so do the bits.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include "bridge/impl.hpp"

using bridge::borrow;
using bridge::release;

namespace {

// Not every build has every kernel: what is missing here is missing in runs too, and said there.
template <class F> void attempt(F f)
{
	try {
		f();
	} catch (...) { // a build without it
	}
}

void warm_products(at::ScalarType t)
{
	at::Tensor a = at::ones({16, 16}, t);
	attempt([&] { at::mm(a, a); });
	attempt([&] { at::linear(a, a, a.select(0, 0)); });
	attempt([&] { at::bmm(a.unsqueeze(0), a.unsqueeze(0)); });
	attempt([&] { at::conv2d(a.view({1, 1, 16, 16}), at::ones({1, 1, 3, 3}, t)); });
}

} // namespace

void br_warm(void)
{
	at::NoGradGuard off;
	for (at::ScalarType t : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kComplexFloat})
		warm_products(t);
	at::Tensor a = at::eye(8), h = at::ones({1, 1, 8, 8});
	attempt([&] { at::linalg_svd(a); });
	attempt([&] { at::linalg_solve(a, a); });
	attempt([&] { at::fft_rfft(a); });
	attempt([&] { at::exp(at::ones({1 << 16})).sum(); }); // with its threads
	attempt([&] { at::scaled_dot_product_attention(h, h, h); });
	attempt([&] { at::quantize_per_tensor(a, 0.1, 0, at::kQUInt8); });
	attempt([&] { at::globalContext().qEngine(); });
	attempt([&] { at::rand({1}); }); // the default generator seeds itself
}

static const at::Float32Op ops[] = {at::Float32Op::CONV, at::Float32Op::RNN, at::Float32Op::MATMUL};

clv_status br_settings_get(br_settings *out)
{
	BRIDGE_CATCH({
		const at::Context &c = at::globalContext();
		for (int i = 0; i < 3; i++)
			out->precision[i] = static_cast<uint8_t>(c.float32Precision(at::Float32Backend::MKLDNN, ops[i]));
		out->engine = static_cast<uint8_t>(c.qEngine());
		out->nnpack = c.userEnabledNNPACK();
		out->half_sums = c.allowFP16ReductionCPU();
		return CLV_OK;
	})
}

clv_status br_settings_set(const br_settings *s)
{
	br_settings now;
	TRY(br_settings_get(&now));
	BRIDGE_CATCH({
		at::Context &c = at::globalContext();
		for (int i = 0; i < 3; i++)
			if (now.precision[i] != s->precision[i])
				c.setFloat32Precision(at::Float32Backend::MKLDNN, ops[i],
				                      static_cast<at::Float32Precision>(s->precision[i]));
		if (now.engine != s->engine)
			c.setQEngine(static_cast<at::QEngine>(s->engine));
		if (now.nnpack != s->nnpack)
			c.setUserEnabledNNPACK(s->nnpack);
		if (now.half_sums != s->half_sums)
			c.setAllowFP16ReductionCPU(s->half_sums);
		return CLV_OK;
	})
}

clv_status br_random_get(const char *device, br_tensor **out)
{
	BRIDGE_CATCH({
		at::Generator g = at::globalContext().defaultGenerator(at::Device(device));
		std::lock_guard<std::mutex> lock(g.mutex());
		*out = release(g.get_state());
		return CLV_OK;
	})
}

clv_status br_random_set(const char *device, const br_tensor *state)
{
	BRIDGE_CATCH({
		at::Generator g = at::globalContext().defaultGenerator(at::Device(device));
		std::lock_guard<std::mutex> lock(g.mutex());
		g.set_state(borrow(state));
		return CLV_OK;
	})
}

clv_status br_random_seeded(uint64_t seed, br_tensor **out)
{
	BRIDGE_CATCH({
		*out = release(at::detail::createCPUGenerator(seed).get_state());
		return CLV_OK;
	})
}

clv_status br_random_check(const br_tensor *state)
{
	BRIDGE_CATCH({
		at::Tensor t = borrow(state);
		at::Generator probe = at::detail::createCPUGenerator();
		at::Tensor own = probe.get_state();
		if (!t.defined() || t.scalar_type() != at::kByte || !t.is_cpu() || t.layout() != at::kStrided ||
		    !t.is_contiguous() || t.sizes() != own.sizes())
			return fail(CLV_E_INVALID, "the state of the random generator is no tensor of %lld bytes",
			            static_cast<long long>(own.numel()));
		probe.set_state(t); // throws for numbers out of range
		at::mt19937_data_pod e = at::check_generator<at::CPUGeneratorImpl>(probe)->engine().data();
		// `left_ - 1` numbers are read from `next_` on before new ones are made.
		if (static_cast<int64_t>(e.left_) + e.next_ > at::MERSENNE_STATE_N + 1)
			return fail(CLV_E_INVALID, "the state of the random generator reads beyond its numbers");
		return CLV_OK;
	})
}
