"""The list of operators that a file may hold, against the installed torch and against captured models."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import operators
import pytest
import torch
from torch import Tensor, nn

import cleave

LISTED = operators.read()

# All that arguments and results of allowed operators are made of: no Storage, Stream, Dict, Any, process group.
PLAIN = {"Tensor", "int", "float", "bool", "complex", "number", "str", "Device", "Generator", "QScheme"}
# Packed weights; operators of this namespace make them and take no other object.
PACKED = re.compile(r"__torch__\.torch\.classes\.quantized\.(Linear|Conv2d|Conv3d|Embedding)PackedParamsBase")
# Text arguments, all of them read: modes, formulas and messages, none a path or the name of something to call.
TEXTS = set(
    "UPLO activation algorithm api_name approximate assert_msg driver equation indexing interpolation mode norm ord p"
    " pad_mode padding padding_side reduce rounding_mode side".split()
)

reviewed = pytest.mark.skipif(
    not torch.__version__.startswith(operators.REVIEWED), reason=f"the list was reviewed for torch {operators.REVIEWED}"
)


def schemas() -> list[Any]:
    """Of everything allowed that this torch has."""
    found = operators.installed()
    names = [(name, overload) for name in sorted(LISTED.allowed) for overload in found.get(name, [])]
    return [torch._C._get_schema(name, overload) for name, overload in names]


def inner(kind: str) -> str:
    """A type without Optional and List."""
    while match := re.fullmatch(r"(?:Optional|List)\[(.*)\]", kind):
        kind = match[1]
    return kind


def refused(plan: cleave.Plan) -> dict[str, str]:
    """Operators of a plan that a file may not hold, with the reasons."""
    names = {node.op.partition(".")[0] for node in plan.nodes}
    assert names
    return {name: LISTED.refused.get(name, "unknown") for name in names - LISTED.allowed}


@reviewed
def test_the_list_is_what_the_rule_makes_of_torch() -> None:
    # In a process of its own: what other tests load (Inductor) registers operators.
    done = subprocess.run([sys.executable, operators.__file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_operators_with_inner_names_are_allowed_by_exceptions_alone() -> None:
    inner_ones = {name for name in LISTED.allowed if not operators.is_public(name)}
    assert inner_ones == set(LISTED.excepted)
    assert not [name for name in LISTED.excepted if operators.is_public(name)]
    for name in ("_index_put_impl_", "embedding_dense_backward", "mkldnn_convolution", "_fused_adam_"):
        assert not operators.is_public(f"aten::{name}")
    assert not operators.is_public("quantized::embedding_bag_byte_rowwise_offsets")
    assert operators.is_public("aten::__and__")


@reviewed
def test_the_list_names_operators_that_exist() -> None:
    named = {
        name for name in LISTED.allowed | set(LISTED.refused) if name.split("::")[0] in (*operators.PUBLIC, "quantized")
    }
    assert named - set(operators.installed()) <= {"aten::save", "aten::*"}  # TorchScript's own
    assert len(named) > 1400


def test_nothing_is_both_allowed_and_refused() -> None:
    assert not LISTED.allowed & set(LISTED.refused)
    assert not [name for name in LISTED.allowed if name.split("::")[0] + "::*" in LISTED.refused]


def test_what_takes_sparse_tensors_is_allowed() -> None:
    assert {f"aten::{name}" for name in operators.reasons("FILE_SPARSE")} <= LISTED.allowed


def test_arguments_are_checked_of_operators_that_are_allowed() -> None:
    checked = operators.reasons("FILE_CHECK")
    assert len(checked) > 150
    assert {name.partition(".")[0] for name in checked} <= LISTED.allowed


def test_the_list_is_written_as_the_tool_writes_it() -> None:
    text = operators.LIST.read_text()
    assert operators.written(text, LISTED.allowed) == text


def test_allowed_operators_take_and_return_plain_values() -> None:
    odd = {
        f"{schema.name}: {value.name} is {value.type}"
        for schema in schemas()
        for value in [*schema.arguments, *schema.returns]
        if inner(str(value.type)) not in PLAIN
        and not (schema.name.startswith("quantized::") and PACKED.fullmatch(inner(str(value.type))))
    }
    assert not odd


@reviewed
def test_text_that_allowed_operators_take_is_no_path() -> None:
    texts = {
        argument.name for schema in schemas() for argument in schema.arguments if inner(str(argument.type)) == "str"
    }
    assert texts <= TEXTS
    assert "filename" not in TEXTS
    assert "rounding_mode" in texts


def test_nothing_that_is_called_unsafe_is_allowed_unknowingly() -> None:
    unsafe = {name for name in LISTED.allowed if "unsafe" in name}
    assert unsafe == {
        "aten::_unsafe_view",
        "aten::unsafe_chunk",
        "aten::unsafe_split",
        "aten::unsafe_split_with_sizes",
    }  # these leave out what autograd tracks, not the checks
    flags = {s.name for s in schemas() for a in s.arguments if "unsafe" in a.name}
    assert not flags


def test_operators_of_core_aten_are_allowed() -> None:
    def is_core(name: str, overload: str) -> bool:
        packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
        return torch.Tag.core in getattr(packet, overload or "default").tags

    core = {
        name
        for name, overloads in operators.installed().items()
        if name.startswith("aten::") and any(is_core(name, overload) for overload in overloads)
    }
    assert len(core) > 100
    # Backward ones, and two that do not check: exported programs of today hold the operators above them.
    assert {name for name in core - LISTED.allowed if "backward" not in name} <= {
        "aten::_native_batch_norm_legit",
        "aten::_pdist_forward",
    }


def test_the_tool_says_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "ops.def"
    other.write_text(operators.LIST.read_text().replace('"relu_", ', '"_relu_", '))
    monkeypatch.setattr(operators, "LIST", other)
    monkeypatch.setattr(sys, "argv", ["operators.py"])
    assert operators.main() == 1
    assert "+ aten::relu_(Tensor(a!) self) -> Tensor(a!)" in capsys.readouterr().out.splitlines()
    monkeypatch.setattr(sys, "argv", ["operators.py", "--write"])
    assert operators.main() == 0
    assert '"relu_", ' in other.read_text()
    assert '"_relu_", ' not in other.read_text()


class Fused(nn.Module):
    """Recurrent, fused and packed paths, whose operators have inner names."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.norm = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.encoder(x), torch.tensor([3, 2]), batch_first=True)
        padded, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return torch.fft.rfft(self.norm(padded)).abs() + torch.linalg.svdvals(padded).sum()


class Forces(nn.Module):
    """Differentiates inside of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 8), nn.Tanh(), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            (force,) = torch.autograd.grad(torch.softmax(self.net(at), -1).pow(2).sum(), at)
        return force


@pytest.mark.parametrize(("model", "shape"), [(Fused(), (2, 3, 8)), (Forces(), (4, 3))], ids=["fused", "forces"])
@pytest.mark.parametrize("grad", [False, True])
def test_operators_with_inner_names_are_allowed_where_models_have_them(
    model: nn.Module, shape: tuple[int, ...], grad: bool
) -> None:
    with torch.set_grad_enabled(grad):
        plan = cleave.capture(model.eval(), (torch.randn(shape),))
    assert refused(plan) == {}


def test_a_model_that_reads_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bias.bin"
    path.write_bytes(bytes(16))

    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.from_file(str(path), size=4)

    plan = cleave.capture(Reads().eval(), (torch.randn(2, 4),))
    assert refused(plan) == {"aten::from_file": "reads or writes files"}
