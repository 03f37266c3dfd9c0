"""The back end openvino: its compiler, what the compiler makes run through C, and which nodes it takes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import operators
import pytest
import torch
from torch import nn

import cleave
from cleave import _native

pytestmark = pytest.mark.integration

SPEC = importlib.util.find_spec("openvino")
needs_openvino = pytest.mark.skipif(SPEC is None, reason="OpenVINO is not installed")
MEMBERS = ("model.xml", "model.bin", "run.json")


@pytest.fixture(autouse=True)
def _package() -> None:
    if SPEC is not None and SPEC.origin is not None:
        _native.openvino_set_folder(os.path.dirname(SPEC.origin))


class Small(nn.Module):
    """A convolution, writes in place, sizes that follow the batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.head = nn.Linear(8 * 36, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.body(x)
        flat = y.reshape(x.shape[0], -1)
        return self.head(flat), flat.amax(1)


def write_job(folder: Path, model: Any, example: torch.Tensor, args: list[str] | None = None) -> None:
    """A job as the core writes it, of a whole plan."""
    plan = cleave.capture(model, example, dynamic_batch=(1, 16))
    plan.save(folder / "segment.clv")
    order = sorted(range(example.dim()), key=lambda d: -example.stride(d))
    ports = cleave.load(folder / "segment.clv").inputs
    job = {
        "backend": "openvino",
        "args": args or [],
        "sizes": {s: {"low": 1, "high": 16, "example": len(example)} for s in plan._main.plan.symbols()},
        "inputs": [
            {"dtype": p.dtype, "device": "cpu", "shape": [str(d) for d in p.shape], "order": order} for p in ports
        ],
        "threads": 1,
    }
    (folder / "job.json").write_text(json.dumps(job))


def compile_job(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "cleave.compilers.openvino", str(folder)], capture_output=True, text=True, timeout=300
    )
    name = "result.json" if done.returncode == 0 else "error.json"
    out: dict[str, Any] = json.loads((folder / name).read_text())
    return out


def members_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in MEMBERS}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    write_job(folder, Small().eval(), torch.randn(3, 3, 8, 8))
    made = compile_job(folder)
    assert made["members"] == list(MEMBERS)
    assert made["needs"]["openvino"].startswith("20")
    return folder


def load(folder: Path, **changed: bytes) -> Any:
    members = {**members_of(folder), **{k.replace("_", "."): v for k, v in changed.items()}}
    return _native.Code("openvino", members, {"openvino": "2025.0"}, "cpu", 1, 2)


@needs_openvino
def test_a_segment_runs_at_every_batch(small: Path) -> None:
    code, model = load(small), cleave.load(small / "segment.clv")
    for batch in (1, 2, 3, 7, 16):
        x = torch.randn(batch, 3, 8, 8)
        want = model(x)
        for got, w in zip(code.run([x], want), want, strict=True):
            torch.testing.assert_close(got, w, rtol=1e-4, atol=1e-5)


@needs_openvino
def test_no_rows_give_no_rows(small: Path) -> None:
    out = load(small).run([torch.empty(0, 3, 8, 8)], [torch.empty(0, 5), torch.empty(0)])
    assert [t.shape for t in out] == [(0, 5), (0,)]


@needs_openvino
def test_inputs_are_read_as_they_lie_in_memory(tmp_path: Path) -> None:
    x = torch.randn(3, 3, 8, 8).to(memory_format=torch.channels_last)
    write_job(tmp_path, Small().eval(), x)
    compile_job(tmp_path)
    code, model = load(tmp_path), cleave.load(tmp_path / "segment.clv")
    want = model(x)
    torch.testing.assert_close(code.run([x], want)[0], want[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="laid out otherwise"):
        code.run([x.contiguous()], want)


@needs_openvino
def test_threads_share_a_model(small: Path) -> None:
    code, model = load(small), cleave.load(small / "segment.clv")
    wrong: list[int] = []

    def work(seed: int) -> None:
        for k in range(20):
            x = torch.randn((seed + k) % 16 + 1, 3, 8, 8, generator=torch.Generator().manual_seed(seed * 100 + k))
            want = model(x)
            if not torch.allclose(code.run([x], want)[0], want[0], atol=1e-4):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@needs_openvino
def test_outputs_of_other_sizes_or_types_are_errors(small: Path) -> None:
    code, x = load(small), torch.randn(4, 3, 8, 8)
    for like in (torch.empty(3, 5), torch.empty(9, 5), torch.empty(4, 5, dtype=torch.float64)):
        with pytest.raises(cleave.CleaveError, match=r"OpenVINO"):
            code.run([x], [like, torch.empty(4)])


@needs_openvino
@pytest.mark.parametrize(
    ("member", "data", "says"),
    [
        ("model_xml", b"", "does not begin with <net"),
        ("model_xml", b"<net", "does not begin with <net"),
        ("model_bin", b"", "could not read model.xml"),
        ("run_json", b"{", "no valid JSON"),
        ("run_json", b'{"properties": {"CACHE_DIR": "x"}, "orders": [null]}', "CACHE_DIR"),
        ("run_json", b'{"properties": {}, "orders": [[0, 0, 1, 2]]}', "every dimension once"),
        ("run_json", b'{"properties": {}, "orders": []}', "orders of 0 inputs"),
        ("run_json", b'{"properties": {"PERFORMANCE_HINT": "fast"}, "orders": [null]}', "PERFORMANCE_HINT"),
    ],
)
def test_damaged_members_are_errors(small: Path, member: str, data: bytes, says: str) -> None:
    with pytest.raises(cleave.CleaveError, match=says):
        load(small, **{member: data})


@needs_openvino
def test_an_older_openvino_and_other_devices_are_refused(small: Path) -> None:
    with pytest.raises(cleave.CleaveError, match="compiled by OpenVINO 2099"):
        _native.Code("openvino", members_of(small), {"openvino": "2099.1"}, "cpu", 1, 2)
    with pytest.raises(cleave.CleaveError, match="for the CPU"):
        _native.Code("openvino", members_of(small), {}, "cuda:0", 1, 2)


def test_where_openvino_is_missing_the_command_that_installs_it_is_said(tmp_path: Path) -> None:
    code = "from cleave import _native; import torch; _native.backend_version('openvino')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CLEAVE_OPENVINO": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "pip install openvino" in done.stderr


@needs_openvino
def test_what_has_no_conversion_is_named_with_its_node(tmp_path: Path) -> None:
    write_job(tmp_path, lambda x: (torch.frac(x.relu()) + 1,), torch.randn(3, 4))
    error = compile_job(tmp_path)
    assert error["nodes"] == ["frac"]
    assert "trunc" in error["message"]


@needs_openvino
def test_unknown_arguments_are_named_by_the_compiler(tmp_path: Path) -> None:
    write_job(tmp_path, lambda x: (x + 1,), torch.randn(3, 4), ["--fast"])
    assert compile_job(tmp_path)["argument"] == "--fast"


@pytest.mark.parametrize("good", ["--hint=throughput", "--precision=f32", "--threads=4", "--property=NUM_STREAMS=2"])
def test_arguments_that_are_known(good: str) -> None:
    _native.backend_check_args("openvino", [good])


@pytest.mark.parametrize(
    "bad", ["--fast", "--hint=x", "--threads=0", "--property=CACHE_DIR=x", "--property=NUM_STREAMS"]
)
def test_arguments_that_are_not_known(bad: str) -> None:
    with pytest.raises(ValueError, match="--"):
        _native.backend_check_args("openvino", [bad])


# ---- which nodes


def reasons(f: Any, *inputs: torch.Tensor) -> dict[str, str | None]:
    plan = cleave.capture(f, inputs)._main.plan
    return {
        row[0]: why for row, why in zip(plan.nodes(), _native.backend_support(plan, "openvino", False), strict=True)
    }


def masked_attention(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@pytest.mark.parametrize(
    ("f", "inputs", "node", "says"),
    [
        (lambda x: x.sort(-1)[1] + 1, [torch.rand(4, 4)], "sort", "another order"),
        (lambda x: x.double().exp(), [torch.rand(4)], "exp", "f64"),
        (lambda x: x + 1, [torch.arange(4)], "add", "i64"),
        (lambda x: x + x, [torch.zeros(4, dtype=torch.uint8)], "add", "small integers"),
        (lambda x: x // 0.1, [torch.rand(4)], "floor_divide", "quotients"),
        (lambda x: torch.div(x, 0.1, rounding_mode="floor"), [torch.rand(4)], "div", "quotients"),
        (lambda x: x.cumsum(0), [torch.zeros(4, dtype=torch.int32)], "cumsum", "integers"),
        (lambda x: nn.functional.logsigmoid(x), [torch.rand(4)], "log_sigmoid", "overflows"),
        (
            lambda x, i: nn.functional.embedding(i, x),
            [torch.rand(4, 2), torch.tensor([3])],
            "embedding",
            "out of range",
        ),
        (masked_attention, [torch.rand(1, 2, 3, 4), torch.ones(3, 3).bool()], "scaled_dot_product_attention", "mask"),
        (lambda x: x.to(torch.complex64), [torch.rand(4)], "to", "type that OpenVINO"),
        (lambda x: torch.special.i0(x), [torch.rand(4)], "special_i0", "no conversion"),
        (lambda x: torch.as_strided(x.clone(), (2, 2), (1, 2)), [torch.rand(4)], "as_strided", "memory"),
        (lambda x: x.add_(1), [torch.rand(4)], "add_", "writes into"),
    ],
)
def test_nodes_that_openvino_does_not_take(f: Any, inputs: list[torch.Tensor], node: str, says: str) -> None:
    assert says in (reasons(f, *inputs)[node] or "")


def test_nodes_that_openvino_takes() -> None:
    assert set(reasons(Small().eval(), torch.randn(2, 3, 8, 8)).values()) == {None}
    assert set(reasons(nn.Sequential(nn.LayerNorm(4), nn.GELU()), torch.rand(2, 4)).values()) == {None}
    table = torch.rand(4, 2)
    order = torch.tensor([2, 0])  # in range at the trace, and the same ever after
    assert set(reasons(lambda x: x + table[order], torch.rand(2, 2)).values()) == {None}
    attention = nn.functional.scaled_dot_product_attention
    assert set(reasons(lambda x: attention(x, x, x), torch.rand(1, 2, 3, 4)).values()) == {None}


@needs_openvino
def test_the_list_knows_what_the_front_end_names() -> None:
    import openvino_operators as tool

    assert not set(operators.reasons("OPENVINO_TAKE")) & set(operators.reasons("OPENVINO_REFUSE"))
    if tool.REVIEWED in str(_native.backend_version("openvino")):
        assert tool.unknown() == []
