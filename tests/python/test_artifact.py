"""Models as .clv files, from Python: saved, loaded and run without their code."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import cleave
from cleave import _native


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


class Both(NamedTuple):
    one: torch.Tensor
    two: torch.Tensor


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).eval()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _native.bits_equal(a, b)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.clv"


def roundtrip(model: Any, example: Any, file: Path, **options: Any) -> cleave.LoadedModel:
    with torch.no_grad():
        cleave.capture(model, example).save(file)
    return cleave.load(file, **options)


# ---- what comes back


def test_a_loaded_plan_gives_the_bits_of_the_model(file: Path) -> None:
    model, x = net(), torch.randn(3, 4)
    loaded = roundtrip(model, x, file)
    other = torch.randn(3, 4)
    assert same(loaded(other), model(other))
    assert loaded.about["model"] == "Sequential"
    assert loaded.inputs == [cleave.artifact.Port("input", "f32", (3, 4), "cpu")]


def test_the_file_is_a_safetensors_file_with_the_state_dict(file: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file

    model = net()
    roundtrip(model, torch.randn(3, 4), file)
    tensors = load_file(str(file))
    assert set(tensors) >= set(model.state_dict())
    for name, t in model.state_dict().items():
        assert torch.equal(tensors[name], t)
    with safe_open(str(file), "pt") as f:
        metadata = f.metadata()
    assert metadata["cleave.plan.0"].startswith("cleave-plan 1\n")
    assert json.loads(metadata["cleave.artifact"])["version"] == [1, 2]


@pytest.mark.integration
def test_the_same_model_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    code = (
        "import sys, torch, cleave\n"
        "from torch import nn\n"
        "torch.manual_seed(0)\n"
        "net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()\n"
        "plan = cleave.capture(net, torch.ones(2, 4), dynamic_batch=(1, 8))\n"
        "plan.save(sys.argv[1])\n"
    )
    files = [tmp_path / "a.clv", tmp_path / "b.clv"]
    for seed, f in enumerate(files):
        env = {**os.environ, "PYTHONHASHSEED": str(seed)}
        subprocess.run([sys.executable, "-c", code, str(f)], check=True, env=env)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_tied_weights_are_written_once(file: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(64, 32)
            self.head = nn.Linear(32, 64, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids))

    model, ids = Tied().eval(), torch.randint(0, 64, (2, 3))
    loaded = roundtrip(model, ids, file)
    assert same(loaded(ids), model(ids))
    assert list(loaded.state_dict()) == ["embed.weight", "head.weight"]
    assert file.stat().st_size < 64 * 32 * 4 + 6000


@pytest.mark.parametrize("kind", ["channels_last", "transposed", "slice", "misaligned", "expanded"])
def test_weights_keep_strides_and_alignment(kind: str, file: Path) -> None:
    torch.manual_seed(1)
    weight = {
        "channels_last": lambda: torch.randn(8, 3, 3, 3).to(memory_format=torch.channels_last),
        "transposed": lambda: torch.randn(3, 8, 3, 3).transpose(0, 1),
        "slice": lambda: torch.randn(8, 6, 3, 3)[:, ::2],
        "misaligned": lambda: torch.randn(8 * 27 + 3)[3:].view(8, 3, 3, 3),
        "expanded": lambda: torch.randn(1, 3, 3, 3).expand(8, 3, 3, 3),
    }[kind]()

    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.conv2d(x, self.w).sum((2, 3))

    model, x = Conv(), torch.randn(2, 3, 9, 9)
    loaded = roundtrip(model, x, file)
    back = loaded.state_dict()["w"]
    assert back.stride() == weight.stride()
    assert back.data_ptr() % 64 == weight.data_ptr() % 64
    assert same(loaded(x), model(x))


def test_weights_on_one_memory_share_it_again(file: Path) -> None:
    flat = torch.randn(64)

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", flat[:32])
            self.register_buffer("b", flat[16:])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.a).sum() + (x * self.b[:32]).sum()

    model, x = Views(), torch.randn(32)
    loaded = roundtrip(model, x, file)
    state = loaded.state_dict()
    assert state["b"].data_ptr() - state["a"].data_ptr() == 64
    assert same(loaded(x), model(x))


def test_what_requires_grad_takes_the_way_it_takes_in_eager(file: Path) -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 32)
    with torch.no_grad():
        cleave.capture(model, (x, x, x)).save(file)
        loaded = cleave.load(file)
        assert same(loaded(x, x, x)[0], model(x, x, x)[0])
    assert loaded.state_dict()["in_proj_weight"].requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64])
def test_weights_of_any_dtype_come_back(dtype: torch.dtype, file: Path) -> None:
    values = torch.arange(12).reshape(3, 4) % 2 == 0 if dtype is torch.bool else torch.arange(12).reshape(3, 4)

    class Add(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", values.to(dtype))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.w

    model, x = Add(), torch.ones(3, 4)
    assert same(roundtrip(model, x, file)(x), model(x))


# ---- structures


def test_plain_outputs_come_back_as_themselves(file: Path) -> None:
    def f(x: torch.Tensor) -> Any:
        return {"a": x + 1, "b": [x * 2, (x, None, 3, "text")], 7: OrderedDict(c=x - 1)}

    x = torch.randn(3)
    got, want = roundtrip(f, x, file)(x), f(x)
    assert list(got) == ["a", "b", 7]
    assert got["b"][1][1:] == (None, 3, "text")
    assert type(got[7]) is OrderedDict
    assert same(got[7]["c"], want[7]["c"])


def test_results_of_torch_operators_come_back_as_themselves(file: Path) -> None:
    x = torch.randn(3, 4)
    got = roundtrip(lambda x: torch.max(x, dim=1), x, file)(x)
    assert type(got) is torch.return_types.max
    assert same(got.values, torch.max(x, dim=1).values)


def test_other_objects_are_records_unless_their_class_is_allowed(file: Path) -> None:
    x = torch.randn(3)
    got = roundtrip(lambda x: Pair(x + 1, x - 1), x, file)(x)
    assert type(got) is cleave.artifact.Record
    assert same(got.left, x + 1)
    assert same(got["right"], x - 1)
    assert same(got[0], x + 1)
    assert type(cleave.load(file, types=[Pair])(x)) is Pair
    got = roundtrip(lambda x: Both(x + 1, x - 1), x, file, types=[Both])(x)
    assert type(got) is Both
    assert same(got.two, x - 1)


@dataclasses.dataclass
class Known:
    """A class that PyTorch knows as its fields."""

    left: torch.Tensor
    right: torch.Tensor | None = None


def test_a_dataclass_that_torch_knows_has_the_names_of_its_fields(file: Path) -> None:
    if Known not in torch.utils._pytree.SUPPORTED_NODES:
        torch.utils._pytree.register_dataclass(Known)
    x = torch.randn(3)
    for make in (lambda x: Known(x + 1, x - 1), lambda x: Known(x * 2)):
        assert type(cleave.capture(make, x)(x)) is Known
        got, want = roundtrip(make, x, file, types=[Known])(x), make(x)
        assert type(got) is Known
        assert same(got.left, want.left)
        assert (got.right is None) == (want.right is None)


def test_a_class_of_the_same_name_with_other_fields_is_refused(file: Path) -> None:
    x = torch.randn(3)
    roundtrip(lambda x: Both(x + 1, x - 1), x, file)

    class Impostor(NamedTuple):
        two: torch.Tensor
        one: torch.Tensor

    Impostor.__module__, Impostor.__qualname__ = Both.__module__, Both.__qualname__
    with pytest.raises(cleave.InputError, match="has fields two, one, the file has one, two"):
        cleave.load(file, types=[Impostor])(x)


@pytest.mark.integration
def test_nothing_named_in_a_file_is_imported(file: Path, tmp_path: Path) -> None:
    x = torch.randn(3)
    with torch.no_grad():
        cleave.capture(lambda x: Pair(x + 1, x - 1), x).save(file)
    module = Pair.__module__
    assert f"{module}:{Pair.__qualname__}" in cleave.load(file).text
    (tmp_path / f"{module}.py").write_text("raise SystemExit('imported')\n")
    code = (
        f"import sys, torch, cleave; sys.path.insert(0, {str(tmp_path)!r}); "
        f"cleave.load({str(file)!r})(torch.ones(3)); assert {module!r} not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_inputs_by_keyword_and_nested_are_checked(file: Path) -> None:
    def f(x: torch.Tensor, *, extra: dict[str, torch.Tensor], scale: float) -> torch.Tensor:
        return x * scale + extra["a"]

    x, a = torch.randn(3), torch.randn(3)
    with torch.no_grad():
        cleave.capture(f, (x,), {"extra": {"a": a}, "scale": 2.0}).save(file)
    loaded = cleave.load(file)
    assert same(loaded(x, scale=2.0, extra={"a": a}), x * 2.0 + a)
    assert same(loaded(x=x, scale=2.0, extra={"a": a}), x * 2.0 + a)
    with pytest.raises(cleave.InputError, match=r"2\.0 there, 3\.0 here"):
        loaded(x, extra={"a": a}, scale=3.0)
    with pytest.raises(cleave.InputError):
        loaded(x, extra={"b": a}, scale=2.0)
    with pytest.raises(cleave.InputError, match="a tensor there"):
        loaded(None, extra={"a": a}, scale=2.0)
    with pytest.raises(cleave.InputError, match="dtype is f64"):
        loaded(x.double(), extra={"a": a}, scale=2.0)


def test_numbers_in_the_output_follow_the_sizes(file: Path) -> None:
    def f(x: torch.Tensor) -> Any:
        return x.sum(), x.shape[0], 1.0 / x.shape[0]

    with torch.no_grad():
        cleave.capture(f, torch.randn(4, 2), dynamic_batch=(1, 8)).save(file)
    total, rows, share = cleave.load(file)(torch.ones(5, 2))
    assert (total.item(), rows, share) == (10.0, 5, 0.2)


# ---- sizes


def test_sizes_that_were_recorded_are_served_and_others_refused(file: Path) -> None:
    model = net()
    plan = cleave.capture(model, torch.randn(3, 4), dynamic_batch=(1, 1000))
    plan.save(file, prove="none")
    loaded = cleave.load(file)
    x = torch.randn(3, 4)
    assert same(loaded(x), model(x))
    with pytest.raises(cleave.InputError, match="never recorded at B=777"):
        loaded(torch.randn(777, 4))
    x = torch.randn(777, 4)
    assert same(cleave.load(file, unproven=True)(x), model(x))
    with pytest.raises(cleave.InputError, match="1 to 1000"):
        cleave.load(file, unproven=True)(torch.randn(1001, 4))


def test_proving_records_powers_of_two_first(file: Path) -> None:
    model = net()
    cleave.capture(model, torch.randn(3, 4), dynamic_batch=(1, 64)).save(file)
    loaded = cleave.load(file)
    for n in (1, 2, 4, 8, 16, 32, 64):
        x = torch.randn(n, 4)
        assert same(loaded(x), model(x))


def test_sizes_at_which_the_model_fails_are_left_out(file: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 16:
            raise ValueError("not 16")
        return x + 1

    plan = cleave.capture(f, torch.randn(3, 4), dynamic_batch=(1, 32))
    plan.save(file, prove="all")
    loaded = cleave.load(file)
    for n in (1, 15, 17, 32):
        assert same(loaded(torch.ones(n, 4)), torch.full((n, 4), 2.0))
    with pytest.raises(cleave.InputError, match="never recorded at B=16"):
        loaded(torch.ones(16, 4))
    with pytest.raises(cleave.ArgumentError, match="prove is one of auto, all, none"):
        plan.save(file, prove="some")


@pytest.mark.integration
def test_combinations_of_sizes_are_proven(file: Path) -> None:
    dims = {"x": {1: ("H", 5, 20), 2: ("W", 5, 20)}}
    plan = cleave.capture(lambda x: x.relu() + 1, torch.randn(2, 8, 8), dynamic_batch=(1, 4), dynamic_dims=dims)
    plan.save(file)
    loaded = cleave.load(file)
    for shape in ((1, 16, 16), (4, 8, 16), (2, 5, 20)):
        x = torch.randn(shape)
        assert same(loaded(x), x.relu() + 1)


def test_a_branch_on_the_size_is_another_plan_in_the_file(file: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] < 6 else x.cos() + 1

    with torch.no_grad():
        cleave.capture(f, torch.randn(3, 4), dynamic_batch=(1, 16)).save(file)
    loaded = cleave.load(file)
    assert "plans" in repr(loaded)
    for n in range(1, 17):
        x = torch.randn(n, 4)
        assert same(loaded(x), f(x)), n


# ---- halves


def test_halves_hold_their_own_weights_and_give_the_whole(tmp_path: Path) -> None:
    model, x = net(), torch.randn(3, 4)
    spec = cleave.SplitSpec(boundary="after:1", dynamic_batch=(1, 16))
    rt = cleave.prepare_split(model, example_inputs=x, split=spec)
    files = rt.save(tmp_path / "halves")
    assert [Path(f).name for f in files] == ["prefix.clv", "suffix.clv"]
    prefix, suffix = (cleave.load(f) for f in files)
    assert set(prefix.state_dict()) == {"0.weight", "0.bias"}
    assert set(suffix.state_dict()) == {"2.weight", "2.bias", "4.weight", "4.bias"}
    for n in (1, 2, 5, 16):
        x = torch.randn(n, 4)
        boundary = prefix.run_prefix(x)
        assert boundary.batch_size == n
        assert same(suffix.run_suffix(boundary), model(x))
        assert same(rt.run_suffix(boundary), model(x))
        assert same(suffix.run_suffix(rt.run_prefix(x)), model(x))
        rt.validate_boundary(boundary)


def test_a_plan_is_cut_when_it_is_saved(tmp_path: Path) -> None:
    model, x = net(), torch.randn(3, 4)
    plan = cleave.capture(model, x)
    plan.save(tmp_path / "p.clv", parts="prefix", boundary="after:3")
    plan.save(tmp_path / "s.clv", parts="suffix", boundary="after:3")
    prefix, suffix = cleave.load(tmp_path / "p.clv"), cleave.load(tmp_path / "s.clv")
    assert same(suffix.run_suffix(prefix.run_prefix(x)), model(x))
    assert set(suffix.state_dict()) == {"4.weight", "4.bias"}
    with pytest.raises(cleave.ArgumentError, match="not cut"):
        plan.save(tmp_path / "x.clv", parts="prefix")
    with pytest.raises(cleave.ArgumentError, match="stages"):
        plan.save(tmp_path / "x.clv", parts="stage:0")
    with pytest.raises(cleave.ArgumentError, match="parts is one of"):
        plan.save(tmp_path / "x.clv", parts="middle")
    with pytest.raises(cleave.SplitError):
        plan.save(tmp_path / "x.clv", parts="prefix", boundary="after:nowhere")
    assert not (tmp_path / "x.clv").exists()


def test_parts_say_what_they_are_not(tmp_path: Path) -> None:
    model, x = net(), torch.randn(3, 4)
    rt = cleave.prepare_split(model, example_inputs=x, split=cleave.SplitSpec(boundary="after:1"))
    rt.save(tmp_path / "all.clv")
    prefix, suffix = (cleave.load(f) for f in rt.save(tmp_path / "halves"))
    with pytest.raises(cleave.InputError, match="this is the prefix, not the whole model"):
        prefix(x)
    with pytest.raises(cleave.InputError, match="this is the prefix, not a suffix"):
        prefix.run_suffix(rt.run_prefix(x))
    with pytest.raises(cleave.ArgumentError, match="holds the suffix"):
        cleave.load(tmp_path / "halves" / "suffix.clv", part="prefix")
    whole = cleave.load(tmp_path / "all.clv")
    assert same(whole(x), model(x))
    with pytest.raises(cleave.InputError, match=r'part="prefix"'):
        whole.run_prefix(x)
    with pytest.raises(TypeError, match="BoundaryPayload"):
        suffix.run_suffix(x)  # type: ignore[arg-type]
    other = cleave.prepare_split(model, example_inputs=x, split=cleave.SplitSpec(boundary="after:3"))
    with pytest.raises(cleave.InputError, match="belongs to split"):
        suffix.run_suffix(other.run_prefix(x))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"graph_signature": "x"}, "made by plan x, not by"),
        ({"sizes": {}}, "lacks the size B"),
        ({"sizes": {"B": "3"}}, "lacks the size B"),
        ({"sizes": {"B": 1 << 80}}, "expected 1 to 8"),
        ({"sizes": {"B": 9}, "batch_size": 9}, "B=9, expected 1 to 8"),
        ({"batch_size": 7}, "batch 7, but B=3"),
        ({"batch_size": None}, "no batch size, but B=3"),
        ({"tensors": {}}, r"lacks %\d"),
        ({"tensors": {"%99": torch.ones(1)}}, r"lacks %\d"),
        ({"weight_version": 1}, "weights"),
    ],
)
def test_a_suffix_refuses_a_boundary_that_was_edited(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    spec = cleave.SplitSpec(boundary="after:1", dynamic_batch=(1, 8))
    rt = cleave.prepare_split(net(), example_inputs=torch.randn(3, 4), split=spec)
    _, suffix = (cleave.load(f) for f in rt.save(tmp_path))
    good = rt.run_prefix(torch.randn(3, 4))
    assert same(suffix.run_suffix(good), rt.run_suffix(good))
    with pytest.raises(cleave.InputError, match=why):
        suffix.run_suffix(dataclasses.replace(good, **change))
    more = dataclasses.replace(good, tensors={**good.tensors, "%99": torch.ones(1)})
    with pytest.raises(cleave.InputError, match="has %99, which the split does not know"):
        suffix.run_suffix(more)


def test_a_plan_for_one_size_says_which_in_its_boundaries(tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 if x.shape[0] == 1 else x + 1
        return (y.cos() + x.shape[0]).relu()

    spec = cleave.SplitSpec(boundary="after:cos", dynamic_batch=(1, 8))
    rt = cleave.prepare_split(f, example_inputs=torch.randn(3, 4), split=spec)
    prefix, suffix = (cleave.load(p) for p in rt.save(tmp_path / "halves"))
    for n in (1, 2, 8):
        x = torch.randn(n, 4)
        boundary = prefix.run_prefix(x)
        assert (boundary.batch_size, boundary.sizes) == (n, {"B": n})
        assert same(rt.run_suffix(boundary), f(x))
        assert same(suffix.run_suffix(boundary), f(x))


def test_halves_of_other_weights_do_not_meet(tmp_path: Path) -> None:
    model, x = net(), torch.randn(3, 4)
    rt = cleave.prepare_split(model, example_inputs=x, split=cleave.SplitSpec(boundary="after:1"))
    before = rt.save(tmp_path / "before")
    with torch.no_grad():
        model[4].weight += 1
    after = rt.save(tmp_path / "after")
    boundary = cleave.load(before[0]).run_prefix(x)
    with pytest.raises(cleave.InputError, match="made with weights"):
        cleave.load(after[1]).run_suffix(boundary)
    assert same(cleave.load(after[1]).run_suffix(cleave.load(after[0]).run_prefix(x)), model(x))


def test_a_half_that_was_kept_alone_is_saved_alone(tmp_path: Path) -> None:
    model, x = net(), torch.randn(3, 4)
    want = model(x)
    rt = cleave.prepare_split(model, example_inputs=x, split=cleave.SplitSpec(boundary="after:1"))
    boundary = rt.run_prefix(x)
    rt.keep_only("suffix")
    assert [Path(f).name for f in rt.save(tmp_path)] == ["suffix.clv"]
    assert same(cleave.load(tmp_path / "suffix.clv").run_suffix(boundary), want)
    with pytest.raises(cleave.ArgumentError, match="holds only the suffix"):
        rt.save(tmp_path / "p.clv", parts="prefix")


# ---- files without weights, other weights


def test_a_file_without_weights_takes_them_later(file: Path) -> None:
    model, x = net(), torch.randn(3, 4)
    with torch.no_grad():
        cleave.capture(model, x).save(file, weights=False)
    assert file.stat().st_size < 8000
    loaded = cleave.load(file)
    with pytest.raises(cleave.InputError, match="is not bound"):
        loaded(x)
    with pytest.raises(cleave.InputError, match=r"missing: 0\.bias, 0\.weight"):
        loaded.load_state_dict({})
    loaded.load_state_dict(model.state_dict())
    assert same(loaded(x), model(x))


def test_other_weights_are_copied_in_whole_or_refused(file: Path) -> None:
    model, x = net(), torch.randn(3, 4)
    loaded = roundtrip(model, x, file)
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    loaded.load_state_dict(other.state_dict())
    want = other(x)
    assert same(loaded(x), want)
    with torch.no_grad():
        other[0].weight.zero_()
    assert same(loaded(x), want)
    with pytest.raises(cleave.InputError, match=r"0\.weight is torch\.float32 \(9, 4\), the model has"):
        loaded.load_state_dict({"0.weight": torch.randn(9, 4)}, strict=False)
    with pytest.raises(cleave.InputError, match=r"not read: 0\.wieght"):
        loaded.load_state_dict({**other.state_dict(), "0.wieght": torch.randn(8, 4)})
    with pytest.raises(cleave.InputError, match="missing"):
        loaded.load_state_dict({})
    assert same(cleave.load(file, check=True)(x), model(x))


def test_buffers_on_one_memory_stay_on_it_with_other_values(file: Path) -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.zeros(8)
            self.register_buffer("a", flat[:4])
            self.register_buffer("b", flat[2:6])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.a.add_(1)
            return x * 0 + self.b

    model, x = Views(), torch.ones(4)
    state = {k: v.clone() + 1 for k, v in model.state_dict().items()}
    with torch.no_grad():
        cleave.capture(model, x).save(file)
    loaded = cleave.load(file)
    loaded.load_state_dict(state)
    model.load_state_dict(state)
    assert all(same(loaded(x), model(x)) for _ in range(3))


def test_tied_names_are_names_too(file: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(4, 4, bias=False)
            self.two = nn.Linear(4, 4, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(x).relu())

    model, x = Tied().eval(), torch.randn(2, 4)
    loaded = roundtrip(model, x, file)
    assert set(loaded.state_dict()) == {"one.weight", "two.weight"}
    again = Tied().eval()
    again.load_state_dict(loaded.state_dict())
    assert same(again(x), model(x))
    loaded.load_state_dict({"two.weight": torch.eye(4)})
    assert same(loaded(x), x.relu())


# ---- state


def test_buffers_that_the_model_changes_belong_to_each_load(file: Path) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(3))
            self.register_buffer("last", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n += 1
            self.last = x * 2
            return x + self.n + self.last

    model, x = Counter(), torch.randn(3)
    with torch.no_grad():
        cleave.capture(model, x).save(file)
    one, two = cleave.load(file), cleave.load(file)
    want = [model(x) for _ in range(3)]
    assert all(same(one(x), w) for w in want)
    assert same(two(x), want[0])
    assert same(one.state_dict()["n"], model.n)
    assert same(two.state_dict()["n"], torch.ones(3))
    assert cleave.load(file, check=True)


def test_random_numbers_are_those_of_eager(file: Path) -> None:
    model = nn.Dropout(0.5)
    x = torch.ones(100)
    with torch.no_grad():
        cleave.capture(model, x).save(file)
    loaded = cleave.load(file)
    torch.manual_seed(5)
    want = model(x)
    torch.manual_seed(5)
    assert same(loaded(x), want)


def test_another_default_dtype_is_refused(file: Path) -> None:
    x = torch.randn(3)
    loaded = roundtrip(lambda x: x + torch.ones(3), x, file)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(cleave.InputError, match="default dtype is f64"):
            loaded(x)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_guard_in_a_file_still_guards(file: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if bool(torch.all(x.abs() < 100)) else x - 1

    x = torch.randn(3)
    loaded = roundtrip(f, x, file)
    assert same(loaded(x), x + 1)
    with pytest.raises(cleave.GuardError):
        loaded(x + 1000)


# ---- refusals


def test_what_only_python_has_is_refused_by_name(file: Path) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 2

    plan = cleave.capture(lambda x: Twice.apply(x), torch.randn(3, requires_grad=True))
    with pytest.raises(cleave.CaptureError, match="only Python has"):
        plan.save(file)
    assert not file.exists()


def test_operators_that_read_files_are_refused_when_a_file_is_opened(file: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(bytes(16))

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_file(str(data), size=4, dtype=torch.float32)

    x = torch.randn(4)
    with torch.no_grad():
        cleave.capture(f, x).save(file)
    with pytest.raises(cleave.CaptureError, match="aten::from_file reads or writes files"):
        cleave.load(file)
    assert same(cleave.load(file, allow_operators=["aten::from_file"])(x), f(x))
    with pytest.raises(TypeError, match="allow_operators"):
        cleave.load(file, allow_operators=[3])  # type: ignore[list-item]


def test_damaged_and_foreign_files_are_refused_with_the_reason(file: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    roundtrip(net(), torch.randn(3, 4), file)
    good = file.read_bytes()
    bad = tmp_path / "bad.clv"
    bad.write_bytes(good[: len(good) // 2])
    with pytest.raises(cleave.PlanError, match=r"bad\.clv"):
        cleave.load(bad)
    at = good.index(b"aten::relu")
    bad.write_bytes(good[:at] + b"aten::silu" + good[at + 10 :])
    with pytest.raises(cleave.PlanError, match="changed or damaged"):
        cleave.load(bad)
    bad.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    cleave.load(bad)
    with pytest.raises(cleave.PlanError, match="the data of tensor"):
        cleave.load(bad, check=True)
    save_file({"a": torch.ones(2)}, str(bad))
    with pytest.raises(cleave.PlanError, match="no plan"):
        cleave.load(bad)
    with pytest.raises(FileNotFoundError, match=r"missing\.clv"):
        cleave.load(tmp_path / "missing.clv")


def test_a_loaded_model_is_run_by_many_threads(file: Path) -> None:
    model, xs = net(), [torch.randn(3, 4) for _ in range(8)]
    loaded = roundtrip(model, xs[0], file)
    wrong: list[int] = []

    def work(i: int) -> None:
        want = model(xs[i])
        wrong.extend(i for _ in range(50) if not same(loaded(xs[i]), want))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_loaded_model_is_drawn_and_reported(file: Path, tmp_path: Path) -> None:
    loaded = roundtrip(net(), torch.randn(3, 4), file)
    assert "digraph" in loaded.visualize(return_dot=True)
    page = loaded.report(tmp_path / "report.html")
    assert "Sequential" in Path(page).read_text()


def test_metadata_goes_with_the_file(file: Path) -> None:
    with torch.no_grad():
        plan = cleave.capture(net(), torch.randn(3, 4))
    plan.save(file, metadata={"license": "none", "name": "tiny ☃"})
    assert cleave.load(file).about["name"] == "tiny ☃"
    with pytest.raises(cleave.ArgumentError, match="torch"):
        plan.save(file, metadata={"torch": "2"})
    with pytest.raises(TypeError, match="texts"):
        plan.save(file, metadata={"n": 3})  # type: ignore[dict-item]


def test_weights_stay_on_the_files_memory(tmp_path: Path) -> None:
    file = tmp_path / "big.clv"
    model = nn.Linear(2048, 2048).eval()
    with torch.no_grad():
        cleave.capture(model, torch.randn(1, 2048)).save(file)
    loaded = cleave.load(file)
    weight = loaded._runtime.state()["weight"]
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(file) in line]
    spans = [[int(end, 16) for end in m[0].split("-")] for m in maps]
    assert any(a <= weight.data_ptr() < b for a, b in spans)
    assert all(m[1] == "r--p" for m in maps)
    del loaded
    assert torch.equal(weight, model.weight)  # the mapping lives as long as a tensor on it


def test_a_loaded_model_shows_where_it_comes_from_and_what_it_serves(file: Path) -> None:
    cleave.capture(nn.Linear(4, 2).eval(), torch.ones(3, 4), dynamic_batch=(1, 4)).save(file)
    loaded = cleave.load(file)
    head, *facts = repr(loaded).splitlines()
    assert head == "<cleave.LoadedModel Linear: 1 node>"
    assert facts[0].split() == ["file", str(file)]
    assert facts[-1].split() == ["proven", "at", "1..4"]
    assert str(file) in loaded._repr_html_()


def test_values_that_are_no_tensors_come_back_as_they_were(file: Path) -> None:
    class Values(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            kinds = [x.dtype, x.device, torch.channels_last, torch.strided, torch.device("cuda", 1)]
            return {
                "y": x * 2,
                "kinds": kinds,
                "slice": slice(1, None, 2),
                "sets": [{1, 2}, frozenset({3}), set()],
                "big": 1 << 80,
            }

    with torch.no_grad():
        cleave.capture(Values(), torch.randn(3)).save(file)
        x = torch.randn(3)
        got, want = cleave.load(file)(x), Values()(x)
    assert torch.equal(got.pop("y"), want.pop("y"))
    assert got == want
    assert [type(v) for v in got["sets"]] == [set, frozenset, set]


def test_a_tensor_that_no_file_can_hold_is_named(tmp_path: Path) -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", torch.eye(4).to_sparse())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(self.adjacency, x)

    plan = cleave.capture(Graph(), (torch.randn(4, 3),))
    with pytest.raises(cleave.PayloadError, match=r"adjacency of the model cannot be in a file: .*sparse"):
        plan.save(tmp_path / "graph.clv")
    assert not list(tmp_path.iterdir())
