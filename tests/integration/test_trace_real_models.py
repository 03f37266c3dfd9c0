"""Real models traced for any number of rows: equal to eager in Python, from a file, and in a process without Python.

Small models on OpenVINO, which compiles in seconds, are in every run; the large ones, and inductor, are slow. Numbers
are compared by the largest of a tensor, because models without training can have outputs of any size."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crafted import SAME_USER
from helpers import draw
from models import BUILDERS, build, build_piped
from real_models import Args, Entry
from safetensors.torch import load_file
from test_dynamic_models import _rows
from torch import Tensor, nn

import cleave
from cleave import _openvino, _tree

pytestmark = pytest.mark.integration

BATCHES = (1, 3, 7)
CLOSE = 1e-3  # of the largest number of a tensor
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def _compilers(request: pytest.FixtureRequest) -> None:
    if "inductor" not in request.node.name and _openvino.find() is None:
        pytest.skip("OpenVINO is not installed")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests here: parts that models have in common are compiled once."""
    return tmp_path_factory.mktemp("cache")


def tensors(value: Any) -> list[Tensor]:
    return _tree.flatten(dict(value) if isinstance(value, cleave.artifact.Record) else value)[1]


def eager(model: nn.Module, inputs: Args) -> list[Tensor]:
    with torch.no_grad():
        return tensors(model(*inputs.args, **inputs.kwargs))


def close(got: Any, want: list[Tensor], what: str) -> None:
    found = tensors(got)
    assert len(found) == len(want), what
    for i, (a, b) in enumerate(zip(found, want, strict=True)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{what}: tensor {i}"
        if b.is_floating_point():
            assert float((a - b).abs().max()) <= CLOSE * float(b.abs().max()), f"{what}: tensor {i}"
        else:
            assert torch.equal(a, b), f"{what}: tensor {i}"


def trace(model: nn.Module, example: Args, backend: str, cache: Path, **options: Any) -> cleave.TracedModule:
    return cleave.trace(
        model,
        example.args,
        example_kwargs=example.kwargs,
        backend=backend,
        dynamic_batch=(1, 1024),
        cache=cache,
        keep_slower=True,
        **options,
    )


# ---- without Python


def command() -> str | None:
    beside = Path(cleave.__file__).resolve().parents[2] / "cleave"
    for path in (beside, Path(sysconfig.get_path("scripts")) / "cleave"):
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def run_alone(file: Path, inputs: Args, allow: str | None = None) -> list[Tensor] | None:
    """What the command gives, in a process that has no Python; None: it is not built."""
    program = command()
    if program is None:
        return None
    folder = file.parent
    words: list[str] = [program, "run", str(file), "--allow-compiled", "-o", str(folder / "out.safetensors")]
    words += [] if allow is None else ["--allow-operator", allow]
    for i, t in enumerate((*inputs.args, *inputs.kwargs.values())):
        np.save(folder / f"{i}.npy", t.numpy())
        words += ["--input", str(folder / f"{i}.npy")]
    env = {"PATH": "/nonexistent", "OMP_NUM_THREADS": "1", "CLEAVE_OPENVINO": f"{_openvino.find()}/libs", **SAME_USER}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "does not run compiled" not in done.stderr, done.stderr
    return list(load_file(folder / "out.safetensors").values())


def close_in_any_order(found: list[Tensor], want: list[Tensor], what: str) -> None:
    """Files have their tensors by name: each that is wanted is one of them."""
    assert len(found) == len(want), what
    for i, b in enumerate(want):
        same = [a for a in found if (a.dtype, a.shape) == (b.dtype, b.shape)]
        near = [float((a.double() - b.double()).abs().max()) <= CLOSE * float(b.abs().max()) for a in same]
        assert any(near), f"{what}: tensor {i}"


# ---- models


def small_bert() -> Entry:
    tf = pytest.importorskip("transformers")
    config = tf.BertConfig(
        vocab_size=500, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96
    )
    return tf.BertModel(config).eval(), lambda: Args(torch.randint(0, 500, (2, 16)))


def small_t5() -> Entry:
    tf = pytest.importorskip("transformers")
    config = tf.T5Config(
        vocab_size=500,
        d_model=48,
        d_kv=12,
        d_ff=96,
        num_layers=2,
        num_heads=4,
        use_cache=False,
        decoder_start_token_id=0,
    )
    make = lambda: Args(  # noqa: E731
        input_ids=torch.randint(0, 500, (2, 16)), decoder_input_ids=torch.randint(0, 500, (2, 6))
    )
    return tf.T5ForConditionalGeneration(config).eval(), make


SMALL: dict[str, Callable[[], Entry]] = {
    "small-bert": small_bert,
    "small-t5": small_t5,
    "unet": lambda: build_piped("unet"),
    "lstm": lambda: build_piped("lstm"),
}
LARGE_ON_BOTH = ["torchvision-resnet50", "torchvision-mobilenet_v3_large", "ultralytics-yolov8n"]
CASES = [
    *(("openvino", name) for name in ("small-bert", "unet")),
    *(pytest.param("openvino", name, marks=SLOW) for name in ("small-t5", "lstm", *BUILDERS)),
    *(pytest.param("inductor", name, marks=SLOW) for name in (*SMALL, *LARGE_ON_BOTH)),
]


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_a_real_model_is_compiled_for_any_batch_and_survives_its_file(
    backend: str, name: str, tmp_path: Path, cache: Path
) -> None:
    torch.manual_seed(0)
    model, make_inputs = SMALL[name]() if name in SMALL else build(name)
    example = draw(make_inputs, 0, False)
    traced = trace(model, example, backend, cache)
    assert traced.coverage.percent > 90, traced.report()
    assert len(traced.segments) < 32, traced.report()
    assert all(s.compiled for s in traced.segments), traced.report()
    file = tmp_path / "model.clv"
    traced.save(file, prove="none")
    loaded = cleave.load(file, allow_compiled=True)
    for batch in BATCHES:
        torch.manual_seed(batch)
        inputs = _rows(example, batch)
        want = eager(model, inputs)
        close(traced(*inputs.args, **inputs.kwargs), want, f"{name} at batch {batch}")
        close(loaded(*inputs.args, **inputs.kwargs), want, f"{name} at batch {batch}, from the file")
    alone = run_alone(file, inputs)
    if alone is not None:
        close_in_any_order(alone, want, f"{name} at batch {batch}, without Python")


# ---- operators that no back end has


@torch.library.custom_op("cleave_test_trace::twist", mutates_args=())
def twist(x: Tensor) -> Tensor:
    return x.flip(-1) * 2


@twist.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(min=0) * 1.5

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def uses_unique(x: Tensor) -> Tensor:
    found, at = torch.unique(x.round(), return_inverse=True)
    return x + found[at]


def uses_nonzero(x: Tensor) -> Tensor:
    return x.index_put(tuple(torch.nonzero(x > 0).t()), x.new_zeros(()))


MIDDLES: dict[str, Callable[[Tensor], Tensor]] = {
    "sort": lambda x: x.sort(-1).values,
    "unique": uses_unique,
    "nonzero": uses_nonzero,
    "custom-op": lambda x: torch.ops.cleave_test_trace.twist(x),
    "autograd-function": lambda x: Clipped.apply(x),  # type: ignore[no-untyped-call]
    "guard": lambda x: x * 2 if x.abs().sum() > 1e-9 else x - 1,
    "read-on-the-host": lambda x: x * float(x.detach().abs().max()),
}


class Between(nn.Module):
    """Convolutions, something in the middle, convolutions and linear layers."""

    def __init__(self, middle: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2))
        self.middle = middle
        self.after = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(200, 16), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.middle(self.before(x)))  # type: ignore[no-any-return]


QUICK = ("sort", "unique", "custom-op", "guard")
BETWEEN = [
    *(("openvino", name) for name in QUICK),
    *(pytest.param("openvino", name, marks=SLOW) for name in MIDDLES if name not in QUICK),
    *(pytest.param("inductor", name, marks=SLOW) for name in MIDDLES),
]


@pytest.mark.parametrize(("backend", "name"), BETWEEN)
def test_what_cannot_be_compiled_runs_between_compiled_parts(
    backend: str, name: str, tmp_path: Path, cache: Path
) -> None:
    torch.manual_seed(0)
    model = Between(MIDDLES[name]).eval()
    traced = trace(model, Args(torch.randn(2, 3, 16, 16)), backend, cache)
    assert traced.coverage.percent > 90, traced.report()
    assert 1 <= len(traced.segments) <= 2, traced.report()
    assert all(s.compiled for s in traced.segments), traced.report()
    file = tmp_path / "model.clv"
    traced.save(file, prove="none")
    loaded = cleave.load(file, allow_compiled=True, allow_operators=["cleave_test_trace::twist"])
    for batch in BATCHES:
        inputs = Args(torch.randn(batch, 3, 16, 16))
        want = eager(model, inputs)
        close(traced(*inputs.args), want, f"{name} at batch {batch}")
        try:
            got = loaded(*inputs.args)
        except cleave.GuardError:
            assert name in (
                "unique",
                "nonzero",
            )  # sizes read from data are proven for a range: a file has no model to ask
        else:
            close(got, want, f"{name} at batch {batch}, from the file")


def test_data_that_leads_elsewhere_is_run_by_the_model_itself(cache: Path) -> None:
    torch.manual_seed(0)
    model = Between(MIDDLES["guard"]).eval()
    traced = trace(model, Args(torch.randn(2, 3, 16, 16)), "openvino", cache)
    nn.init.zeros_(model.before[3].weight)  # type: ignore[arg-type]
    nn.init.zeros_(model.before[3].bias)  # type: ignore[arg-type]
    again = trace(model, Args(torch.randn(2, 3, 16, 16)), "openvino", cache)
    x = torch.randn(3, 3, 16, 16)
    want = eager(model, Args(x))
    close(again(x), want, "the other side of the branch")
    with pytest.warns(cleave.CleaveWarning, match="changed after the trace"):
        close(traced(x), want, "weights that changed")
