"""Checks that users make themselves: a report for sizes, and assertions."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from helpers import Fn, mentions, same_state, state_of
from torch import Tensor, nn

import cleave


def _runtime(model: nn.Module, example: Any = None, **options: Any) -> cleave.SplitRuntime:
    torch.manual_seed(0)
    example = torch.randn(3, 4) if example is None else example
    spec = cleave.SplitSpec(boundary="50%", **options)
    return cleave.prepare_split(model, example_inputs=example, split=spec)


def _mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).eval()


def _branch(lin: nn.Linear, x: Tensor) -> Tensor:
    return lin(x).relu() if x.shape[0] % 2 else lin(x).tanh()


def test_the_report_of_a_plain_model_is_all_equal() -> None:
    report = cleave.validate_dynamic_batches(_runtime(_mlp()), torch.randn(3, 4), [1, 2, 3, 17, 64])
    assert report.ok
    assert [r.sizes for r in report] == [{"B": n} for n in (1, 2, 3, 17, 64)]
    assert all(r.bitwise and r.max_abs_diff == 0.0 and r.reason is None for r in report)
    assert all(r.variant == "the first plan" for r in report)
    report.raise_if_failed()
    assert "B=17" in str(report)
    assert "equal" in str(report)


def test_the_report_names_the_plan_that_served_a_size() -> None:
    report = cleave.validate_dynamic_batches(_runtime(Fn(_branch, 4).eval()), torch.randn(3, 4), range(1, 17))
    assert report.ok
    assert len({r.variant for r in report}) > 1


def test_a_size_that_fails_is_told_and_not_raised() -> None:
    report = cleave.validate_dynamic_batches(_runtime(_mlp(), dynamic_batch=(1, 8)), torch.randn(3, 4), [2, 9, "x", 0])
    assert not report.ok
    assert [r.ok for r in report] == [True, False, False, False]
    assert "1 to 8" in (report.results[1].reason or "")
    with pytest.raises(cleave.ValidationError) as caught:
        report.raise_if_failed()
    mentions(caught.value, "B=9", "FAILED", "1 to 8")
    assert isinstance(caught.value, AssertionError)


def test_a_model_that_was_changed_by_hand_is_found() -> None:
    model = _mlp()
    rt = _runtime(model)
    model.forward = lambda x: nn.Sequential.forward(model, x) + 1  # type: ignore[method-assign]
    report = cleave.validate_dynamic_batches(rt, torch.randn(3, 4), [2])
    assert not report.ok


def test_other_symbols_are_given_by_name() -> None:
    torch.manual_seed(0)
    model = Fn(lambda lin, x: lin(x).relu().sum(1), 4).eval()
    rt = _runtime(model, torch.randn(2, 5, 4), dynamic_dims={"args[0]": {1: "S"}})
    sizes = [{"B": 3, "S": 9}, {"S": 2}, 4, {"T": 3}]
    report = cleave.validate_dynamic_batches(rt, torch.randn(2, 5, 4), sizes)
    assert [r.ok for r in report] == [True, True, True, False]
    assert [r.sizes for r in report][:3] == [{"B": 3, "S": 9}, {"B": 2, "S": 2}, {"B": 4, "S": 5}]
    assert "B, S" in (report.results[3].reason or "")


def test_a_split_for_one_size_says_so() -> None:
    report = cleave.validate_dynamic_batches(_runtime(_mlp(), dynamic_batch=None), torch.randn(3, 4), [3])
    assert not report.ok
    assert "dynamic_batch" in (report.results[0].reason or "")


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.rows += x.shape[0]
        return nn.functional.dropout(self.lin(x) * self.rows, 0.5, True)


def test_state_and_random_numbers_are_compared_and_left_as_they_were() -> None:
    model = Counting().eval()
    rt = _runtime(model)
    twin, state = copy.deepcopy(model), torch.get_rng_state()
    report = cleave.validate_dynamic_batches(rt, torch.ones(3, 4), [1, 2, 9])
    assert report.ok, str(report)
    same_state(state_of(twin), state_of(model), "validation")
    assert torch.equal(state, torch.get_rng_state())


def test_forward_equivalence() -> None:
    model = _mlp()
    rt = _runtime(model)
    cleave.validation.assert_forward_equivalent(model, rt, torch.randn(5, 4))
    other = _mlp()
    with torch.no_grad():
        other[0].weight.mul_(1 + 1e-6)
    x = torch.randn(5, 4)
    with pytest.raises(cleave.ValidationError, match="differs by up to"):
        cleave.validation.assert_forward_equivalent(other, rt, (x,))
    cleave.validation.assert_forward_equivalent(other, rt, (x,), rtol=1e-3, atol=1e-3)


def test_a_tolerance_accepts_close_numbers_and_says_how_close() -> None:
    from cleave.validation import difference

    spec = cleave._tree.LEAF  # type: ignore[attr-defined]
    a, b = torch.tensor([1.0, float("nan")]), torch.tensor([1.0 + 1e-6, float("nan")])
    assert difference((spec, [a]), (spec, [a.clone()]), 0, 0) == (True, 0.0, None)
    bitwise, off, reason = difference((spec, [a[:1]]), (spec, [b[:1]]), 0, 0)
    assert not bitwise
    assert off == pytest.approx(1e-6, rel=0.1)
    assert reason is not None
    assert difference((spec, [a[:1]]), (spec, [b[:1]]), 1e-3, 0)[2] is None
    assert difference((spec, [a]), (spec, [a.double()]), 1, 1)[2] is not None


def test_reuse_of_one_plan() -> None:
    rt = _runtime(_mlp())
    cleave.validation.assert_dynamic_batch_reuse(rt, {n: torch.randn(n, 4) for n in (1, 2, 9, 33)})
    cleave.validation.assert_dynamic_batch_reuse(rt, [(torch.randn(n, 4),) for n in (4, 11)])
    rt = _runtime(Fn(_branch, 4).eval())
    with pytest.raises(cleave.ValidationError, match="2 plans"):
        cleave.validation.assert_dynamic_batch_reuse(rt, {n: torch.randn(n, 4) for n in (1, 2, 9)})


class Halves:
    """A split in two modules that trains the way a runtime does."""

    def __init__(self, model: nn.Sequential, wrong: float = 0.0) -> None:
        self._target = cleave.plan.Target(model)
        self.model, self.wrong = model, wrong

    def run_training_prefix(self, x: Tensor) -> Tensor:
        out: Tensor = self.model[:2](x)
        return out

    def train_suffix(self, boundary: Tensor, targets: Tensor, loss_fn: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        leaf = boundary.detach().requires_grad_()
        output = self.model[2](leaf)
        loss = (loss_fn or (nn.functional.mse_loss if targets.is_floating_point() else nn.functional.cross_entropy))(
            output, targets
        )
        loss.backward()
        assert leaf.grad is not None
        return loss.detach(), {"h": leaf.grad}

    def backward_prefix(self, boundary: Tensor, gradients: dict[str, Tensor]) -> None:
        boundary.backward(gradients["h"] + self.wrong)


@pytest.mark.parametrize("targets", [torch.zeros(5, 4), torch.tensor([0, 1, 2, 3, 0])])
def test_gradient_equivalence(targets: Tensor) -> None:
    model = _mlp()
    model[0].weight.grad = torch.ones(8, 4)
    x = torch.randn(5, 4)
    cleave.validation.assert_gradient_equivalent(model, Halves(model), x, targets)
    assert torch.equal(model[0].weight.grad, torch.ones(8, 4)), "gradients are put back"
    assert model[2].weight.grad is None
    with pytest.raises(cleave.ValidationError, match=r"gradient of 0\.weight differs"):
        cleave.validation.assert_gradient_equivalent(model, Halves(model, 0.01), x, targets)
    cleave.validation.assert_gradient_equivalent(model, Halves(model, 1e-9), x, targets, atol=1e-3)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[2].weight.mul_(1.5)
    with pytest.raises(cleave.ValidationError, match="the loss differs"):
        cleave.validation.assert_gradient_equivalent(other, Halves(model), x, targets)


def test_a_model_that_draws_and_counts_is_equal_to_its_split_and_left_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)).train()
    runtime, before = _runtime(model), state_of(copy.deepcopy(model))
    torch.manual_seed(1)
    drawn = torch.get_rng_state()
    cleave.validation.assert_forward_equivalent(
        model, runtime, torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    )
    assert torch.equal(torch.get_rng_state(), drawn)
    same_state(before, state_of(model), "the model")


def test_gradients_are_compared_with_the_loss_that_training_takes_by_default() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))
    runtime = _runtime(model, trainable=True)
    cleave.validation.assert_gradient_equivalent(model, runtime, torch.randn(3, 4), torch.tensor([0, 1, 2]))


# ---- ways to compress the boundary


def _classifier() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 10)).eval()


class Outlier(nn.Module):
    """One feature is a thousand times the others, and hardly matters."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 256), nn.Linear(256, 10)
        with torch.no_grad():
            self.one.bias[17] = 3000.0
            self.two.weight[:, 17] = 0.0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(self.one(x))
        return out


def test_each_way_to_compress_is_measured_where_it_counts() -> None:
    model = _classifier()
    rt = _runtime(model, torch.randn(8, 16))
    batches = [torch.randn(n, 16) for n in (8, 3)]
    before = state_of(model)
    report = cleave.validate_split(rt, batches)
    if report.results[-1].reason is not None:
        pytest.skip("a build without zstd")
    same_state(state_of(model), before, "the model")
    plain, fp16, bf16, int8, zstd = report
    assert [r.method for r in report] == ["plain", "fp16", "bf16", "int8", "zstd"]
    boundaries = [rt.run_prefix(x) for x in batches]
    assert plain.nbytes == sum(len(b.to_bytes()) for b in boundaries)
    assert int8.nbytes == sum(len(b.to_bytes(compress="int8")) for b in boundaries)
    assert plain.output_error == plain.max_abs_diff == plain.lost == 0.0 == zstd.output_error == zstd.max_abs_diff
    assert plain.top1 == zstd.top1 == 1.0
    assert 0 < fp16.output_error < bf16.output_error < 0.01
    assert 0 < int8.output_error < 0.05
    assert all(0 < r.top1 <= 1 and r.reason is None and r.pack_ms > 0 and r.unpack_ms > 0 for r in report)
    want = torch.cat([model(x).double() for x in batches])
    got = []
    for b in boundaries:
        got.append(rt.run_suffix(cleave.BoundaryPayload.from_bytes(b.to_bytes(compress="int8"))).double())
    off = torch.cat(got) - want
    assert int8.output_error == pytest.approx((off.norm() / want.norm()).item(), rel=1e-6)
    assert int8.max_abs_diff == pytest.approx(off.abs().max().item(), rel=1e-6)
    assert int8.top1 == (torch.cat(got).argmax(1) == want.argmax(1)).double().mean().item()
    assert int8.lost == max(e.relative for b in boundaries for e in _errors_of(b, "int8"))


def _errors_of(boundary: cleave.BoundaryPayload, method: str) -> list[cleave.payload.CompressionError]:
    boundary.to_bytes(compress=method)
    return list(boundary.compression_error.values())


def test_int8_survives_an_outlier_feature() -> None:
    torch.manual_seed(0)
    rt = cleave.prepare_split(
        Outlier().eval(), example_inputs=torch.randn(4, 16), split=cleave.SplitSpec(boundary="after:one")
    )
    _, int8 = cleave.validate_split(rt, [torch.randn(4, 16)], compress=["int8"])
    assert int8.output_error is not None
    assert int8.output_error < 0.6  # it was 0.96: all other features were rounded to zero
    _, int8 = cleave.validate_split(rt, [torch.randn(64, 16)], compress=["int8"])
    assert int8.output_error is not None
    assert int8.output_error < 0.02  # enough rows for scales of the features


def test_the_report_is_a_table_and_json() -> None:
    report = cleave.validate_split(_runtime(_mlp()), [torch.randn(3, 4)])
    assert [r.method for r in report] == ["plain", "fp16", "bf16", "int8", "zstd"]
    lines = str(report).splitlines()
    assert len(lines) == 6
    assert "output error" in lines[0]
    assert lines[1].split()[0] == "plain"
    assert "<table" in report._repr_html_()
    rows = json.loads(report.json())
    assert [row["method"] for row in rows] == ["plain", "fp16", "bf16", "int8", "zstd"]
    assert rows[3]["nbytes"] == report.results[3].nbytes
    assert rows[3]["output_error"] == report.results[3].output_error


def test_a_way_that_fails_is_told_and_not_raised() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(x).relu() + 1

    rt = cleave.prepare_split(Odd(), example_inputs=torch.ones(2, 3), split=cleave.SplitSpec(boundary="after:log"))
    report = cleave.validate_split(rt, [torch.ones(2, 3), torch.zeros(2, 3)], compress=["int8", "fp16"])
    plain, int8, fp16 = report
    assert "infinite" in (int8.reason or "")
    assert int8.output_error is None
    assert fp16.reason is None
    assert plain.output_error == fp16.output_error == 0.0
    assert "infinite" in str(report)


def test_numbers_that_overflow_are_an_infinite_error_in_json_too() -> None:
    class Large(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            h = x * 1e6
            return h.tanh() + h * 1e-6

    rt = cleave.prepare_split(Large(), example_inputs=torch.ones(2, 3), split=cleave.SplitSpec(boundary="after:mul"))
    _, fp16 = cleave.validate_split(rt, [torch.ones(2, 3)], compress=["fp16"])
    assert fp16.output_error == fp16.lost == float("inf")
    report = cleave.validate_split(rt, [torch.ones(2, 3)], compress=["fp16"])
    assert json.loads(report.json())[1]["output_error"] == "inf"


def test_ways_by_label_and_outputs_of_any_structure() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 64), nn.Linear(64, 5)

        def forward(self, x: Tensor) -> dict[str, Any]:
            h = self.one(x).relu()
            y = self.two(h)
            return {"label": y.argmax(-1), "logits": y, "mean": y.mean()}

    torch.manual_seed(0)
    rt = cleave.prepare_split(
        Two().eval(), example_inputs=torch.randn(6, 4), split=cleave.SplitSpec(boundary="after:relu")
    )
    (label,) = rt.run_prefix(torch.randn(6, 4)).tensors
    report = cleave.validate_split(
        rt, [{"x": torch.randn(6, 4)}, (torch.randn(6, 4),)], compress=[{label: "int8"}, "int8"]
    )
    assert report.results[1].method == f"{label}: int8"
    assert report.results[1].output_error == report.results[2].output_error
    assert report.results[1].top1 is not None


def test_only_classes_come_out() -> None:
    rt = cleave.prepare_split(
        nn.Sequential(_classifier(), Fn(lambda _, x: x.argmax(-1), 1)).eval(),
        example_inputs=torch.randn(8, 16),
        split=cleave.SplitSpec(boundary="50%"),
    )
    report = cleave.validate_split(rt, [torch.randn(8, 16)], compress=["fp16"])
    assert report.results[0].top1 == 1.0
    assert report.results[1].top1 is not None


def test_a_model_in_train_mode_is_measured_from_the_same_state_each_time() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 3)).train()
    rt = cleave.prepare_split(model, example_inputs=torch.randn(8, 4), split=cleave.SplitSpec(boundary="after:1"))
    before, random = state_of(model), torch.get_rng_state()
    plain, fp16 = cleave.validate_split(rt, [torch.randn(8, 4, generator=torch.Generator())], compress=["fp16"])
    assert plain.output_error == 0.0 < fp16.output_error < 0.01
    same_state(state_of(model), before, "the model")
    assert torch.equal(torch.get_rng_state(), random)


def test_arguments_of_validate_split_are_checked() -> None:
    rt = _runtime(_mlp())
    with pytest.raises(TypeError, match="batches are several"):
        cleave.validate_split(rt, torch.randn(3, 4))
    with pytest.raises(TypeError, match="SplitRuntime"):
        cleave.validate_split(_mlp(), [torch.randn(3, 4)])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="list of ways"):
        cleave.validate_split(rt, [torch.randn(3, 4)], compress="int8")
    with pytest.raises(cleave.ArgumentError, match="no batch"):
        cleave.validate_split(rt, [])
    with pytest.raises(cleave.PayloadError, match="fp16, bf16, int8, zstd"):
        cleave.validate_split(rt, [torch.randn(3, 4)], compress=["zip"])
