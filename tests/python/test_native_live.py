"""The native engine on live models: `engine="native"`, and as one of the ways of `optimize="fast"`."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native import COMMAND
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import cleave
from cleave import _native
from cleave.optimize import Optimize


class Small(nn.Module):
    """A convolution with its norm, a residual, a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)
        assert self.norm.running_mean is not None
        self.norm.running_mean.normal_()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu_(self.norm(self.first(x)))
        return self.head((self.second(y) + y).mean((2, 3)))


class Between(nn.Module):
    """An operator that the native engine has no kernel for, between many that it has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.after = layers(8), layers(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(torch.special.i0e(self.before(x)))


def layers(n: int) -> nn.Sequential:
    return nn.Sequential(*[m for _ in range(n) for m in (nn.Linear(16, 16), nn.Tanh())])


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def told(plan: Any) -> str:
    (line,) = [line for line in plan.optimizations().splitlines() if line.startswith("native:")]
    return str(line)


# ---- engine="native"


@torch.no_grad()
def test_a_captured_model_runs_natively_and_its_rows_have_the_same_bits_in_any_batch() -> None:
    net = Small().eval()
    plan = cleave.capture(net, torch.rand(4, 3, 8, 8), dynamic_batch=(1, 16), engine="native")
    x = torch.rand(6, 3, 8, 8)
    whole = plan(x)
    close(whole, net(x))
    for row in range(6):
        assert torch.equal(plan(x[row : row + 1]), whole[row : row + 1])
    assert plan.optimizations() == "by the native engine\n"


def test_with_grad_the_tape_runs() -> None:
    net = Small().eval()
    plan = cleave.capture(net, torch.rand(4, 3, 8, 8), engine="native")
    x = torch.rand(4, 3, 8, 8)
    assert torch.equal(plan(x), net(x))
    plan(x).sum().backward()
    with torch.no_grad():
        close(plan(x), net(x))


@pytest.mark.parametrize("boundary", ["after:first", "50%"])
def test_halves_of_a_split_run_natively(boundary: str) -> None:
    net = Small().eval()
    spec = cleave.SplitSpec(boundary=boundary, dynamic_batch=(1, 16))
    rt = cleave.prepare_split(net, example_inputs=torch.rand(4, 3, 8, 8), split=spec, engine="native")
    assert rt.active_backend == "native"
    for rows in (1, 4, 7):
        x = torch.rand(rows, 3, 8, 8)
        got = rt.run_suffix(rt.run_prefix(x))
        with torch.no_grad():
            close(got, net(x))
        alone = rt.run_suffix(rt.run_prefix(x[:1]))
        assert torch.equal(alone, got[:1])


def scale(net: Small) -> None:
    net.first.weight.mul_(2)


def scale_data(net: Small) -> None:
    net.first.weight.data.mul_(2)


def statistics(net: Small) -> None:
    assert net.norm.running_mean is not None
    net.norm.running_mean.add_(1)


def parameter(net: Small) -> None:
    net.head.weight = nn.Parameter(torch.randn(5, 8))


def state(net: Small) -> None:
    net.load_state_dict({k: v + 1 if v.is_floating_point() else v for k, v in net.state_dict().items()})


def assigned(net: Small) -> None:
    other = {k: v + 1 if v.is_floating_point() else v for k, v in net.state_dict().items()}
    net.load_state_dict(other, assign=True)


def step(net: Small) -> None:
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.SGD(net.parameters(), lr=0.1).step()


CHANGES = [scale, scale_data, statistics, parameter, state, assigned, step]


@pytest.mark.parametrize("how", ["native", "fast"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@torch.no_grad()
def test_the_next_run_sees_other_weights(change: Callable[[Small], None], how: str) -> None:
    net = Small().eval()
    x = torch.rand(4, 3, 8, 8)
    plan = cleave.capture(net, x, **({"engine": "native"} if how == "native" else {"optimize": "fast"}))
    before = plan(x)
    close(before, net(x))
    change(net)
    close(plan(x), net(x))
    assert not torch.equal(plan(x), before)


@torch.no_grad()
def test_threads_of_torch_are_the_engines_and_change_no_bit() -> None:
    net = Small().eval()
    x = torch.rand(8, 3, 32, 32)
    plan = cleave.capture(net, x, engine="native")
    before, got = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            got.append(plan(x))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(g, got[0]) for g in got)
    assert torch.equal(cleave.capture(net, x, engine="native", threads=1)(x), got[0])


@torch.no_grad()
def test_many_threads_run_it_at_once_while_weights_change() -> None:
    net = layers(4).eval()
    x = torch.rand(3, 16)
    plan = cleave.capture(net, x, engine="native")
    wrong: list[str] = []

    def work() -> None:
        for _ in range(50):
            if not torch.isfinite(plan(x)).all():
                wrong.append("not finite")

    workers = [threading.Thread(target=work) for _ in range(3)]
    for w in workers:
        w.start()
    for _ in range(20):
        net[0].weight.mul_(1.01)
    for w in workers:
        w.join()
    assert not wrong
    close(plan(x), net(x))


def test_what_the_engine_does_not_take_is_refused_with_the_node_and_the_reason() -> None:
    net = Between().eval()
    with pytest.raises(cleave.CleaveError, match=r"aten::special_i0e .*no kernel for this operator.*engine tape"):
        cleave.capture(net, torch.rand(2, 16), engine="native")
    with pytest.raises(cleave.CleaveError, match="special_i0e"):
        cleave.prepare_split(net, example_inputs=torch.rand(2, 16), split="50%", engine="native")


def test_a_write_into_an_input_is_refused() -> None:
    with torch.no_grad(), pytest.raises(cleave.CleaveError, match="writes an input, or a tensor of the model"):
        cleave.capture(lambda x: x.add_(1) * 2, torch.rand(2, 16), engine="native")


def test_other_engines_and_modes_are_named() -> None:
    net, x = layers(1), torch.rand(2, 16)
    with pytest.raises(ValueError, match="engine is one of auto, tape, native, not 'fast'"):
        cleave.capture(net, x, engine="fast")
    with pytest.raises(TypeError, match="engine is one of"):
        cleave.capture(net, x, engine=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mode='compiled' runs on libtorch"):
        cleave.prepare_split(net, example_inputs=x, split="50%", engine="native", mode="compiled")
    with torch.no_grad():
        for engine in ("auto", "tape"):
            assert torch.equal(cleave.capture(net, x, engine=engine)(x), net(x))


# ---- optimize="fast"


@torch.no_grad()
def test_fast_compares_the_native_engine_with_the_tape() -> None:
    net = layers(8).eval()
    x = torch.rand(2, 16)
    plan = cleave.capture(net, x, optimize="fast", dynamic_batch=(1, 8))
    assert told(plan).startswith("native: all nodes; ")
    assert " off by " in told(plan) or " ms" in told(plan)
    for rows in (1, 2, 5):
        x = torch.rand(rows, 16)
        close(plan(x), net(x))


@torch.no_grad()
def test_fast_has_native_segments_around_what_the_engine_does_not_take() -> None:
    net = Between().eval()
    x = torch.rand(2, 16)
    plan = cleave.capture(net, x, optimize="fast", dynamic_batch=(1, 8))
    assert " segments" in told(plan)
    for rows in (1, 2, 5):
        x = torch.rand(rows, 16)
        close(plan(x), net(x))
    net.before[0].weight.mul_(2)
    net.after[0].weight.mul_(2)
    close(plan(x), net(x))


@torch.no_grad()
def test_a_plan_that_was_captured_with_grad_enabled_chooses_for_calls_without() -> None:
    net = layers(8).eval()
    x = torch.rand(2, 16)
    with torch.enable_grad():
        plan = cleave.capture(net, x, optimize="fast")
    assert "runs" in plan.optimizations()
    assert "the first run chooses" not in plan.optimizations()
    close(plan(x), net(x))


@torch.no_grad()
def test_fast_leaves_the_engine_out_where_it_is_told_to_and_where_floats_are_not_f32() -> None:
    net, x = layers(4).eval(), torch.rand(2, 16)
    plan = cleave.capture(net, x, optimize=Optimize("fast", off=("native",)))
    assert "native" not in plan.optimizations()
    double = layers(4).double().eval()
    plan = cleave.capture(double, x.double(), optimize="fast")
    assert told(plan) == "native: not used: not all floats are f32"
    assert "native" in _native.passes()


@torch.no_grad()
def test_fast_keeps_the_layout_of_outputs_that_the_tape_gives() -> None:
    x = torch.rand(2, 3, 4)
    plan = cleave.capture(lambda x: (torch.tanh(x).exp().neg().abs().permute(2, 0, 1), x + 1), x, optimize="fast")
    first, second = plan(x)
    assert first.stride() == (1, 12, 4)
    assert second.stride() == (12, 4, 1)


class LaysOut(nn.Module):
    """A copy at capture, as the parameter lies; the parameter itself once it lies otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3).t())

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.contiguous()
        first = x * self.weight
        rows.mul_(2.0)
        return first + x * self.weight * 3 + rows


@pytest.mark.parametrize("how", [{"engine": "native"}, {"optimize": "fast"}])
@torch.no_grad()
def test_a_copy_that_becomes_a_view_where_the_model_lies_otherwise(how: dict[str, Any]) -> None:
    model, x = LaysOut(), torch.randn(3, 4)
    plan = cleave.capture(model, x, **how)
    close(plan(x), model(x))
    model.weight = nn.Parameter(torch.arange(12.0).view(3, 4))
    want = model(x)
    model.weight = nn.Parameter(torch.arange(12.0).view(3, 4))
    if "engine" in how:
        with pytest.raises(cleave.CleaveError, match="writes an input, or a tensor of the model"):
            plan(x)
    else:
        close(plan(x), want)


@torch.no_grad()
def test_halves_choose_natively_by_themselves() -> None:
    net = layers(16).eval()
    rt = cleave.prepare_split(net, example_inputs=torch.rand(2, 16), split="50%", optimize="fast")
    x = torch.rand(2, 16)
    close(rt.run_suffix(rt.run_prefix(x)), net(x))


# ---- files, compared


def test_a_file_is_compared_with_the_tape_on_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = Small().eval()
    with torch.no_grad():
        cleave.capture(net, torch.rand(2, 3, 8, 8), dynamic_batch=(1, 8)).save(tmp_path / "small.clv")
    with caplog.at_level("INFO", logger="cleave"):
        cleave.load(tmp_path / "small.clv", engine="native", check=True)
        cleave.pack_weights(tmp_path / "small.clv", compare=True)
    told_so = [r.getMessage() for r in caplog.records if "gives the tape's numbers, off by" in r.getMessage()]
    assert len(told_so) == 2


def test_halves_in_files_are_compared_too(tmp_path: Path) -> None:
    rt = cleave.prepare_split(Small().eval(), example_inputs=torch.rand(2, 3, 8, 8), split="50%")
    rt.save(tmp_path / "cut.clv")
    for part in ("prefix", "suffix"):
        cleave.load(tmp_path / "cut.clv", engine="native", check=True, part=part)


def test_inputs_that_the_model_refuses_are_said_to_prove_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def choosy(x: Tensor) -> Tensor:
        return x + 1 if bool((x < 0).all()) else x * 2

    with torch.no_grad():
        cleave.capture(choosy, -torch.ones(3)).save(tmp_path / "choosy.clv")
    with caplog.at_level("WARNING", logger="cleave"):
        cleave.load(tmp_path / "choosy.clv", engine="native", check=True)
    assert any("was not compared with the tape" in r.getMessage() for r in caplog.records)


def test_packed_weights_that_are_of_no_use_are_noted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.rand(2, 16)
    with torch.no_grad():
        cleave.capture(layers(2).eval(), x).save(tmp_path / "model.clv")
    cleave.pack_weights(tmp_path / "model.clv", isas=["neon"])
    with caplog.at_level("WARNING", logger="cleave"):
        model = cleave.load(tmp_path / "model.clv", engine="native")
        model(x)
        model(x)
    notes = [r.getMessage() for r in caplog.records if "were packed in memory" in r.getMessage()]
    assert len(notes) <= 1
    cleave.pack_weights(tmp_path / "model.clv")
    caplog.clear()
    cleave.load(tmp_path / "model.clv", engine="native")(x)
    assert not caplog.records


@pytest.mark.skipif(COMMAND is None, reason="the command is not built")
def test_the_command_compares_engines(tmp_path: Path) -> None:
    with torch.no_grad():
        cleave.capture(Small().eval(), torch.rand(2, 3, 8, 8)).save(tmp_path / "small.clv")
    for words in (["verify", "small.clv", "--engine", "native"], ["pack", "small.clv", "--compare"]):
        done = subprocess.run(
            [str(COMMAND), *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "the native engine gives the tape's numbers, off by " in done.stdout


@pytest.mark.parametrize("how", [{"engine": "native"}, {"optimize": "fast"}])
@torch.no_grad()
def test_an_input_without_elements_in_memory_is_no_crash(how: dict[str, Any]) -> None:
    net = layers(4).eval()
    plan = cleave.capture(net, torch.rand(2, 16), **how)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(torch.rand(2, 16))
    with contextlib.suppress(Exception):
        assert plan(fake).shape == (2, 16)
    x = torch.rand(2, 16)
    close(plan(x), net(x))


@torch.no_grad()
def test_fast_runs_natively_in_a_sandbox_too(tmp_path: Path) -> None:
    net = layers(8).eval()
    x = torch.rand(2, 16)
    cleave.capture(net, x).save(tmp_path / "model.clv")
    model = cleave.load(tmp_path / "model.clv", optimize="fast", engine="tape", sandbox=True)
    for _ in range(3):
        close(model(x), net(x))
