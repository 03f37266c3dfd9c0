"""`python -m cleave`: capture from the command line, also of exported programs; other commands are the C command."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cleave
from cleave import _command, _example
from cleave._command import DONE, FAILED, USAGE, main
from cleave._example import Problem, parse

ROOT = Path(__file__).parent.parent.parent

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, depth=1, name="net"):
        super().__init__()
        assert isinstance(name, str)
        self.layers = nn.Sequential(*(nn.Linear(6, 6) for _ in range(depth)))
        self.drop = nn.Dropout(0.5)

    def forward(self, x, scale=1.0):
        return self.drop(torch.relu(self.layers(x))) * scale

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 8)
        self.head = nn.Linear(8, 100, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("one", torch.ones(1), persistent=False)

    def forward(self, ids, mask=None):
        x = self.table(ids)
        return {"logits": self.head(x * self.one if mask is None else x * mask.unsqueeze(-1))}

class Box:
    net = Net(2)

def make(depth=1, name="net"):
    return Net(depth, name)

def twice(x):
    return 2 * x

def number():
    return 3

def broken():
    raise ValueError("no such depth")

class Branches(nn.Module):
    def forward(self, x):
        return x * 2 if x.tolist()[0][0] > 0 else x

class Draws(nn.Module):
    def forward(self, x):
        import random
        return x * random.random()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of models; the command runs there."""
    (tmp_path / "nets_of_a_user.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("nets_of_a_user", None)
    return tmp_path


def load(folder: Path, name: str = "m.clv") -> Any:
    return cleave.load(folder / name)


def net_of(name: str, *args: Any) -> Any:
    return getattr(sys.modules["nets_of_a_user"], name)(*args)


# ---- targets


@pytest.mark.parametrize("target", ["nets_of_a_user:Net", "nets_of_a_user.py:Net", "nets_of_a_user:make"])
def test_a_factory_is_found_in_a_module_and_in_a_file(folder: Path, target: str) -> None:
    assert main(["capture", target, "-i", "f32[2,6]", "--arg", "depth=3", "--arg", "name=x", "-o", "m.clv"]) == DONE
    assert sorted(load(folder).state_dict())[:2] == ["layers.0.bias", "layers.0.weight"]
    assert len(load(folder).state_dict()) == 6


def test_the_file_gives_the_numbers_of_the_model(folder: Path) -> None:
    assert main(["capture", "nets_of_a_user:Net", "-i", "f32[2,6]", "--seed", "5", "-o", "m.clv"]) == DONE
    torch.manual_seed(5)
    model, x = net_of("Net").eval(), torch.randn(2, 6)
    with torch.no_grad():
        assert torch.equal(load(folder)(x), model(x))


def test_a_module_behind_attributes_is_captured_as_it_is(folder: Path) -> None:
    assert main(["capture", "nets_of_a_user:Box.net", "-i", "f32[2,6]", "-o", "m.clv"]) == DONE
    assert len(load(folder).state_dict()) == 4


def test_a_function_that_needs_inputs_is_captured_itself(folder: Path) -> None:
    assert main(["capture", "nets_of_a_user:twice", "-i", "f32[3]", "-o", "m.clv"]) == DONE
    assert torch.equal(load(folder)(torch.ones(3)), torch.full((3,), 2.0))


def test_factory_arguments_are_json(folder: Path) -> None:
    arguments = ["capture", "nets_of_a_user:Net", "-i", "f32[2,6]", "-o", "m.clv", "--factory-args"]
    assert main([*arguments, '{"depth": 2}']) == DONE
    assert len(load(folder).state_dict()) == 4
    assert main([*arguments, "[3]"]) == DONE
    assert len(load(folder).state_dict()) == 6


@pytest.mark.parametrize(
    ("target", "reason", "status"),
    [
        ("nets_of_a_user", "names no factory", USAGE),
        ("nets_of_a_user:Nett", "there is no Nett", FAILED),
        ("no_such_module_at_all:Net", "no module no_such_module_at_all", FAILED),
        ("nowhere.py:Net", "no such file", FAILED),
        ("nowhere.pt2", "no such file", FAILED),
        ("nets_of_a_user:number", "returns int", FAILED),
        ("nets_of_a_user:broken", "raised ValueError: no such depth", FAILED),
        ("nets_of_a_user:Branches", "tolist", FAILED),
        ("nets_of_a_user:Draws", "draws numbers from", FAILED),
    ],
)
def test_what_cannot_be_captured_is_said_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], target: str, reason: str, status: int
) -> None:
    assert main(["capture", target, "-i", "f32[2,6]", "-o", "m.clv"]) == status
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("cleave: ")
    assert reason in err
    assert "Traceback" not in err
    assert not Path("m.clv").exists()


def test_a_folder_that_is_not_there_is_told_before_the_model_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capture", "nets_of_a_user:broken", "-i", "f32[2,6]", "-o", "nowhere/m.clv"]) == FAILED
    assert capsys.readouterr().err == "cleave: nowhere: there is no such folder\n"


def test_a_device_that_is_not_there_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for device in ("cuda:99", "toaster"):
        assert main(["capture", "nets_of_a_user:Net", "-i", "f32[2,6]", "-o", "m.clv", "--device", device]) == FAILED
        assert capsys.readouterr().err.startswith(f"cleave: --device {device}: ")


def test_the_place_of_an_error_is_shown_on_request(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "nets_of_a_user:broken", "-i", "f32[2,6]", "-o", "m.clv", "-v"]) == FAILED
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "nets_of_a_user.py" in err


def test_a_file_whose_import_fails_says_which_module_it_misses(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("needy.py").write_text("import no_such_module_at_all\n")
    assert main(["capture", "needy:Net", "-i", "f32[2]", "-o", "m.clv"]) == FAILED
    assert (
        "importing needy raised ModuleNotFoundError: No module named 'no_such_module_at_all'" in capsys.readouterr().err
    )


# ---- words


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "nothing to write"),
        (["-o", "m.pt"], "a .clv file"),
        (["-o", "m.clv", "--parts", "prefix"], "not cut"),
        (["-o", "m.clv", "--dynamic-batch", "8"], "LOW:HIGH"),
        (["-o", "m.clv", "--dim", "S=1:8"], "no input has a dimension S"),
        (["-o", "m.clv", "--size", "S"], "NAME=VALUE"),
        (["-o", "m.clv", "--sizes", "4"], "sizes that may change"),
        (["-o", "m.clv", "--sizes", "four"], "whole number"),
        (["-o", "m.clv", "--arg", "depth=1", "--arg", "depth=2"], "given twice"),
        (["-o", "m.clv", "--factory-args", "3"], "object or an array"),
        (["-o", "m.clv", "--frobnicate"], "--frobnicate"),
        (["-o", "m.clv", "--train", "--eval"], "not allowed with"),
        (["-o", "m.clv", "-i", "f32[S]"], "a size for S"),
        (["-o", "m.clv", "-i", "x=f32[2,6]"], "x is given twice"),
    ],
)
def test_wrong_usage_is_told_with_status_two(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    assert main(["capture", "nets_of_a_user:Net", "-i", "f32[2,6]", *words]) == USAGE
    err = capsys.readouterr().err
    assert err.startswith("cleave: ")
    assert reason in err


def test_the_options_are_those_that_the_c_command_documents() -> None:
    text = (ROOT / "src/cli/capture.c").read_text()
    common = (ROOT / "src/cli/main.c").read_text()
    found = re.findall(r'OPT_\w+\("([a-z-]+)",\s*(?:0|\'(\w)\')', text + common)
    documented = {f"--{name}" for name, _ in found} | {f"-{letter}" for _, letter in found if letter}
    assert {s for a in _command.parser()._actions for s in a.option_strings} == documented


def test_the_defaults_are_those_that_the_c_command_documents() -> None:
    text = (ROOT / "src/cli/capture.c").read_text().replace("OPT_", "\f")
    found = dict(re.findall(r'\f\w+\("([a-z-]+)"[^\f]*?\.preset = "([^"]+)"\)', text))
    options = {name: _command.parser().get_default(name) for name in found}
    assert options == {**found, "seed": int(found["seed"])}


# ---- inputs


@pytest.mark.parametrize(
    ("text", "name", "dims", "dtype"),
    [
        ("f32[4,3,224,224]", None, (4, 3, 224, 224), torch.float32),
        ("ids=i64[B, S]<50257", "ids", ("B", "S"), torch.int64),
        ("f16[]", None, (), torch.float16),
        ("m=bool[2]:ones", "m", (2,), torch.bool),
        ("u8[2] zeros", None, (2,), torch.uint8),
        ("bf16[0,3]", None, (0, 3), torch.bfloat16),
    ],
)
def test_an_input_is_a_dtype_and_sizes(text: str, name: str | None, dims: Any, dtype: torch.dtype) -> None:
    spec = parse(text)
    assert (spec.name, spec.dims, spec.dtype) == (name, dims, dtype)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f32",
        "f33[2]",
        "f32[2",
        "f32[-1]",
        "f32[2.5]",
        "f32[2,]",
        "f32[2]<5",
        "i64[2]<0",
        "u8[2]<300",
        "i8[2]:-200..3",
        "i64[2]:9..5",
        "i64[2]:some",
        "x=[1,2]",
        'x={"a": 1}',
        "x.npy:key",
        "f32[²]",
    ],
)
def test_what_is_no_input_is_refused(text: str) -> None:
    with pytest.raises(Problem):
        parse(text)


def test_values_are_in_their_range_and_always_the_same() -> None:
    def drawn(text: str) -> torch.Tensor:
        values = _example.Values({"S": 500}, 0, torch.device("cpu"))
        return next(iter(values.of(parse(text)).values()))  # type: ignore[no-any-return]

    assert set(drawn("i32[S]:-2..2").tolist()) == {-2, -1, 0, 1, 2}
    assert set(drawn("i64[S]<3").tolist()) == {0, 1, 2}
    assert set(drawn("i64[S]").tolist()) == {0, 1}
    assert set(drawn("bool[S]").tolist()) == {False, True}
    assert not drawn("f32[S]:zeros").any()
    assert drawn("bool[S]:ones").all()
    assert drawn("c64[S]").dtype is torch.complex64
    assert torch.equal(drawn("bf16[S]"), drawn("bf16[S]"))


def test_inputs_by_name_with_symbols_become_ranges(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "-i",
        "ids=i64[B,S]<100",
        "-i",
        "mask=f32[B,S]:ones",
        "--size",
        "S=5",
        "--dim",
        "S=2:12",
        "--prove",
        "none",
    ]
    assert main(["capture", "nets_of_a_user:Words", *words, "--sizes", "B=3,S=7", "-o", "m.clv"]) == DONE
    out = capsys.readouterr().out
    assert "ids i64[B,S], mask f32[B,S]" in out
    assert "S 2..12" in out
    torch.manual_seed(0)
    model, ids, mask = net_of("Words").eval(), torch.randint(0, 100, (3, 7)), torch.rand(3, 7)
    with torch.no_grad():
        assert torch.equal(load(folder)(ids=ids, mask=mask)["logits"], model(ids, mask)["logits"])


def test_plain_values_are_given_by_name(folder: Path) -> None:
    assert main(["capture", "nets_of_a_user:Net", "-i", "f32[2,6]", "-i", "scale=0.5", "-o", "m.clv"]) == DONE
    torch.manual_seed(0)
    model, x = net_of("Net").eval(), torch.randn(2, 6)
    with torch.no_grad():
        assert torch.equal(load(folder)(x, scale=0.5), model(x, 0.5))


def write_safetensors(path: str, tensors: dict[str, torch.Tensor]) -> None:
    """As the format says, without a library."""
    names = {torch.float32: "F32", torch.int64: "I64"}
    header, data = {}, b""
    for name, t in tensors.items():
        raw = bytes(t.contiguous().reshape(-1).view(torch.uint8).tolist())
        place = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": place}
        data += raw
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_inputs_come_from_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.save("x.npy", numpy.ones((3, 6), dtype="float32"))
    write_safetensors("in.safetensors", {"ids": torch.ones(2, 5, dtype=torch.int64), "mask": torch.ones(2, 5)})
    assert main(["capture", "nets_of_a_user:Net", "-i", "x.npy[B,6]", "--prove", "none", "-o", "m.clv"]) == DONE
    assert "x f32[B,6]" in capsys.readouterr().out
    assert main(["capture", "nets_of_a_user:Words", "-i", "in.safetensors", "-o", "m.clv"]) == DONE
    assert "ids i64[2,5], mask f32[2,5]" in capsys.readouterr().out
    assert (
        main(["capture", "nets_of_a_user:Words", "-i", "in.safetensors:ids[B,5]", "--prove", "none", "-o", "m.clv"])
        == 0
    )
    assert "ids i64[B,5]" in capsys.readouterr().out
    for spec in ("in.safetensors:nope", "x=in.safetensors", "x.npy[2,6]", "x.npy[B,S,2]", "none.npy"):
        assert main(["capture", "nets_of_a_user:Net", "-i", spec, "-o", "m.clv"]) == FAILED, spec


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"short",
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"{]",
        *(
            struct.pack("<Q", len(h)) + h + bytes(8)
            for h in (
                b'{"a": 3}',
                b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
                b'{"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}',
                b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [8, 0]}}',
                b'{"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}',
                b'{"a": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}}',
                b'{"a": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}}',
            )
        ),
    ],
)
def test_a_damaged_file_of_tensors_is_refused(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(damage)
    with pytest.raises(cleave.PayloadError, match=r"x\.safetensors"):
        _example.read_file(str(path))


# ---- what is written


def test_weights_are_loaded_by_name_and_all_of_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["capture", "nets_of_a_user:Words", "-i", "i64[2,3]<100", "-o"]
    assert main([*words, "a.clv", "--seed", "1"]) == DONE
    assert main([*words, "b.clv", "--seed", "2", "--weights", "a.clv"]) == DONE
    a, b = load(folder, "a.clv"), load(folder, "b.clv")
    ids = torch.arange(6).reshape(2, 3)
    assert torch.equal(a(ids)["logits"], b(ids)["logits"])
    for tensors, reason in (
        ({}, "lacks table.weight"),
        ({"table.weight": torch.ones(100, 8), "more": torch.ones(1)}, "the model does not, more"),
        ({"table.weight": torch.ones(9, 8)}, "float32[9,8]"),
    ):
        write_safetensors("w.safetensors", tensors)
        assert main([*words, "c.clv", "--weights", "w.safetensors"]) == FAILED
        assert reason in capsys.readouterr().err
    assert not Path("c.clv").exists()


def test_a_cut_model_is_written_as_halves_or_as_one_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["capture", "nets_of_a_user:Net", "--arg", "depth=3", "-i", "f32[2,6]", "-b", "after:layers.1", "-o"]
    assert main([*words, "halves"]) == DONE
    out = capsys.readouterr().out
    assert "cut after linear_1 in layers.1" in out
    assert "halves/prefix.clv" in out
    x = torch.randn(2, 6)
    boundary = load(folder, "halves/prefix.clv").run_prefix(x)
    torch.manual_seed(0)
    with torch.no_grad():
        want = net_of("Net", 3).eval()(x)
    assert torch.equal(load(folder, "halves/suffix.clv").run_suffix(boundary), want)
    assert main([*words, "whole.clv"]) == DONE
    assert torch.equal(load(folder, "whole.clv")(x), want)
    assert main([*words, "suffix.clv", "--parts", "suffix"]) == DONE
    assert load(folder, "suffix.clv").part == "suffix"
    assert main([*words[:-2], "nowhere", "-o", "halves"]) == FAILED
    assert "hint: --boundary takes" in capsys.readouterr().err


def test_notes_text_and_missing_weights_are_as_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["capture", "nets_of_a_user:Net", "-i", "f32[2,6]", "--no-weights", "--metadata", "by=me", "-o", "m.clv"]
    assert main([*words, "--text", "m.plan", "-q"]) == DONE
    assert capsys.readouterr() == ("", "")
    assert load(folder).about["by"] == "me"
    assert not load(folder).has_weights
    assert Path("m.plan").read_text() == load(folder).text
    assert main([*words, "--text", "-"]) == DONE
    assert capsys.readouterr().out == Path("m.plan").read_text()


def test_training_is_captured_on_request(folder: Path) -> None:
    words = ["capture", "nets_of_a_user:Net", "-i", "f32[2,6]", "-o", "m.clv"]
    assert main(words) == DONE
    assert "training=no grad=no" in load(folder).text
    assert main([*words, "--train"]) == DONE
    assert "training=yes" in load(folder).text
    assert torch.is_grad_enabled()


def test_batch_sizes_that_are_named_are_recorded(folder: Path) -> None:
    words = ["-i", "f32[4,6]", "--dynamic-batch", "1:1000", "--sizes", "50,1000", "--prove", "none", "-o", "m.clv"]
    assert main(["capture", "nets_of_a_user:Net", *words]) == DONE
    model = load(folder)
    assert model(torch.ones(1000, 6)).shape == (1000, 6)
    with pytest.raises(cleave.InputError):
        model(torch.ones(999, 6))


# ---- exported programs


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.head(features)  # type: ignore[no-any-return]


PROGRAMS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (4, 6)),
    "cnn": (Cnn, (4, 3, 8, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (4, 5, 16)),
}


def export(model: nn.Module, *inputs: Any, path: str = "p.pt2", shapes: Any = None, **kwargs: Any) -> Any:
    program = torch.export.export(model, inputs, kwargs, dynamic_shapes=shapes)
    torch.export.save(program, path)
    return program


@pytest.mark.integration
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_exported_program_is_captured_bit_for_bit(folder: Path, name: str, dynamic: bool) -> None:
    make, shape = PROGRAMS[name]
    torch.manual_seed(3)
    model = make().eval()
    batch = torch.export.Dim("batch", min=1, max=8)
    program = export(model, torch.randn(shape), shapes=({0: batch},) if dynamic else None)
    assert main(["capture", "p.pt2", "-o", "m.clv", "--prove", "auto"]) == DONE
    loaded = load(folder)
    assert set(loaded.state_dict()) <= set(model.state_dict())
    assert {n for n, _ in model.named_parameters()} <= set(loaded.state_dict())
    assert loaded.about["model"] == type(model).__name__
    assert "training=no" in loaded.text
    for rows in (1, 4, 7) if dynamic else (4,):
        x = torch.randn(rows, *shape[1:])
        want = model(x).detach()  # with gradients on: export does not see the encoder's fused path
        assert torch.equal(loaded(x), want)
        assert torch.equal(program.module()(x).detach(), want)


def test_operators_of_a_program_are_in_the_modules_of_the_original(folder: Path) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Sequential(nn.Tanh()), nn.Linear(6, 2)).eval()
    x = torch.randn(4, 6)
    export(model, x)
    assert main(["capture", "p.pt2", "--text", "p.plan", "--boundary", "after:1", "-o", "halves"]) == DONE
    text = Path("p.plan").read_text()
    assert re.findall(r"^%.* in (\S+)", text, re.MULTILINE) == ["0.0", "0.1", "1.0", "2"]
    assert 'scope 0.1 "ReLU"' in text
    boundary = load(folder, "halves/prefix.clv").run_prefix(x)
    assert torch.equal(load(folder, "halves/suffix.clv").run_suffix(boundary), model(x).detach())


def test_symbols_of_a_program_keep_their_ranges(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Join(nn.Module):
        def forward(self, a: torch.Tensor, *, other: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"joined": torch.cat([a, other["b"]], 1).sum(-1)}

    rows, columns = torch.export.Dim("rows", min=2, max=9), torch.export.Dim.DYNAMIC
    shapes = {"a": {0: rows, 1: columns}, "other": {"b": {0: rows, 1: columns}}}
    export(Join(), torch.randn(3, 4, 2), other={"b": torch.randn(3, 5, 2)}, shapes=shapes)
    assert main(["capture", "p.pt2", "-o", "m.clv", "--prove", "none"]) == DONE
    out = capsys.readouterr().out
    assert "a f32[B,S,2], other['b'] f32[B,S1,2]" in out
    assert "B 2..9, S 2..64" in out
    assert (
        main(["capture", "p.pt2", "-o", "m.clv", "--prove", "none", "--dynamic-batch", "2:4", "--dim", "S=2:8"]) == DONE
    )
    assert "B 2..4, S 2..8" in capsys.readouterr().out
    for words in (["--dynamic-batch", "1:4"], ["--dim", "S9=1:4"], ["--train"], ["--arg", "a=1"]):
        assert main(["capture", "p.pt2", "-o", "m.clv", *words]) != DONE
        assert capsys.readouterr().err.startswith("cleave: ")


def test_sizes_that_are_formulas_of_others_stay_as_they_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Shifted(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b[1:]

    rows = torch.export.Dim("rows", min=2, max=9)
    export(Shifted(), torch.randn(4, 3), torch.randn(5, 3), shapes=({0: rows}, {0: rows + 1}))
    assert main(["capture", "p.pt2", "-o", "m.clv"]) == DONE
    assert "a f32[4,3], b f32[5,3]" in capsys.readouterr().out


def test_other_sizes_than_a_program_takes_are_refused_in_its_words(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(nn.Linear(6, 2).eval(), torch.randn(4, 6))
    assert main(["capture", "p.pt2", "-i", "f32[3,6]", "-o", "m.clv"]) == FAILED
    assert "does not take these inputs" in capsys.readouterr().err
    assert main(["capture", "p.pt2", "--dynamic-batch", "1:8", "-o", "m.clv"]) == FAILED
    assert "exported for one size of B" in capsys.readouterr().err


def test_a_program_that_was_exported_while_training_says_so(folder: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).train()
    x = torch.randn(4, 6)
    export(model, x)
    assert main(["capture", "p.pt2", "-o", "m.clv"]) == DONE
    loaded = load(folder)
    assert "training=yes" in loaded.text
    state = model.state_dict()
    assert all(torch.equal(t, state[name]) for name, t in loaded.state_dict().items())  # statistics as they were
    assert torch.equal(loaded(x), model(x).detach())


def test_checks_and_modes_inside_of_a_program_are_captured(folder: Path) -> None:
    class Checked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.table = nn.Linear(4, 4), torch.arange(4.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = self.linear(x)
            return y.to(torch.float64) + self.linear(x) + self.table + torch.tensor([1.0, 2.0, 3.0, 4.0])

    model, x = Checked().eval(), torch.randn(3, 4)
    export(model, x, shapes=({0: torch.export.Dim("batch", min=1, max=8)},))
    assert main(["capture", "p.pt2", "-o", "m.clv", "--prove", "none"]) == DONE
    assert torch.equal(load(folder)(x), model(x).detach())


def test_what_is_no_program_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.pt2").write_bytes(b"PK\x03\x04 no archive")
    assert main(["capture", "p.pt2", "-o", "m.clv"]) == FAILED
    err = capsys.readouterr().err
    assert "torch.export cannot load it" in err
    assert len(err.splitlines()) <= 2


# ---- other commands


def test_other_commands_become_the_c_command(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(_command, "find_command", lambda: "/there/cleave")

    def execv(path: str, argv: list[str]) -> None:
        called.append((path, argv))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "execv", execv)
    for words in (["inspect", "m.clv"], ["--color", "never", "print", "x"], ["help", "print"], ["capture", "--help"]):
        assert main(words) == 130
        assert called.pop() == ("/there/cleave", ["/there/cleave", *words])


def test_without_the_c_command_there_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_command, "find_command", lambda: None)
    assert main(["inspect", "m.clv"]) == FAILED
    assert "the cleave command is not installed" in capsys.readouterr().err
    assert main(["capture", "--help", "x:y"]) == DONE
    assert "--dynamic-batch" in capsys.readouterr().out
    assert main(["--version"]) == DONE
    assert capsys.readouterr().out == f"cleave {cleave.__version__}\n"


@pytest.mark.integration
def test_both_commands_capture_in_processes_of_their_own(folder: Path) -> None:
    command = _command.find_command()
    if command is None:
        pytest.skip("the C command is not beside this package")
    package = str(Path(cleave.__file__).parent.parent)
    paths = os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH")) if p)
    env = {**os.environ, "PYTHONPATH": paths, "CLEAVE_PYTHON": sys.executable}
    words = ["capture", "nets_of_a_user:Net", "-i", "f32[2,6]", "-o", "m.clv"]
    done = subprocess.run([command, *words], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "file        m.clv" in done.stdout
    listed = subprocess.run([sys.executable, "-m", "cleave"], env=env, capture_output=True, text=True, check=False)
    assert listed.returncode == USAGE
    assert "capture " in listed.stderr
    assert "demo" in listed.stderr
