// Compares results of compiled code with torch's: largest difference, and how large the numbers are.
#include "bridge/impl.hpp"

#include <cmath>
#include <limits>

using bridge::borrow;

namespace {

constexpr double FAR = std::numeric_limits<double>::infinity();

// What is no number, or infinite, has to be so in both.
double float_difference(const at::Tensor &got, const at::Tensor &want)
{
	at::Tensor same = got.eq(want).logical_or_(got.isnan().logical_and_(want.isnan()));
	at::Tensor off = (got - want).abs_().masked_fill_(same, 0);
	double most = off.max().item<double>();
	return std::isnan(most) ? FAR : most;
}

double largest(const at::Tensor &t)
{
	at::Tensor size = t.abs();
	return size.masked_fill_(size.isfinite().logical_not_(), 0).max().item<double>();
}

} // namespace

clv_status br_difference(const br_tensor *cgot, const br_tensor *cwant, double *error, double *scale)
{
	BRIDGE_CATCH({
		c10::InferenceMode guard;
		at::Tensor got = borrow(cgot), want = borrow(cwant);
		*error = *scale = 0;
		if (!got.defined() || !want.defined() || got.scalar_type() != want.scalar_type() ||
		    got.sizes() != want.sizes() || got.device() != want.device()) {
			*error = FAR;
			return CLV_OK;
		}
		if (want.numel() == 0)
			return CLV_OK;
		if (!want.is_floating_point()) {
			*error = got.equal(want) ? 0 : FAR;
			return CLV_OK;
		}
		got = got.to(at::kDouble);
		want = want.to(at::kDouble);
		*error = float_difference(got, want);
		*scale = largest(want);
		return CLV_OK;
	})
}
