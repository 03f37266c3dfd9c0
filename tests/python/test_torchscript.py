"""to_torchscript: compiled segments as an operator, the rest as TorchScript; saved, and run elsewhere."""

from __future__ import annotations

import gc
import io
import os
import shutil
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave

HERE = Path(__file__).resolve().parent
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def _register(name: str) -> None:
    """A back end that compiles at once: its code is the plan, run by the tape, with the words that something ran."""

    def run(code: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        RAN.append(name)
        out = code(*inputs)
        return [out] if isinstance(out, torch.Tensor) else list(out)

    def load(data: bytes) -> Any:
        code = cleave.load(_kept(data), unproven=True)
        LOADED.append(weakref.ref(code))
        return code

    cleave.register_backend(
        name,
        supports=lambda node: node.op.split(".")[0] not in NOT_COMPILED or "not this one",
        compile=lambda segment: Path(segment.folder, "segment.clv").read_bytes(),
        load=load,
        run=run,
    )


NOT_COMPILED = ("aten::sort", "aten::cumsum", "aten::dropout", "aten::item", "aten::batch_norm")
RAN: list[str] = []
LOADED: list[weakref.ref[Any]] = []  # code of the back ends
_FILES: list[str] = []


def _kept(data: bytes) -> str:
    import tempfile

    handle, path = tempfile.mkstemp(suffix=".clv")
    with os.fdopen(handle, "wb") as f:
        f.write(data)
    _FILES.append(path)
    return path


@pytest.fixture(scope="module", autouse=True)
def back_ends() -> Iterator[None]:
    _register("script")
    yield
    while _FILES:  # a worker may come back to this module, and end it twice
        os.unlink(_FILES.pop())


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


class Net(nn.Module):
    """Compiled, then something that is not, then compiled again; sizes follow the batch on both sides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 8)])
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.layers[0](x)) * 2 + 1
        h = h.view(x.shape[0] * 2, 4).cumsum(1) * (1 / x.shape[0]) + min(x.shape[0], 5)
        h = torch.sort(h, 1)[0]
        return torch.tanh(self.head(h).view(x.shape[0], 6)) + 1


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.relu(self.a(x)))


def trace(model: Any, inputs: Any, **more: Any) -> cleave.TracedModule:
    return cleave.trace(model, inputs, **{"backend": "script", "keep_slower": True, **more})


def operators(script: torch.jit.ScriptModule) -> int:
    return str(script.inlined_graph).count("cleave::segment")


def reloaded(script: torch.jit.ScriptModule, tmp_path: Path) -> torch.jit.ScriptModule:
    path = tmp_path / "script.pt"
    torch.jit.save(script, path)
    return torch.jit.load(path)


# ---- what it computes


def test_a_fully_compiled_model_is_one_call_of_the_operator(tmp_path: Path) -> None:
    net = Whole().eval()
    script = trace(net, torch.randn(3, 4)).to_torchscript()
    assert isinstance(script, torch.jit.ScriptModule)
    assert operators(script) == 1
    assert not list(script.parameters())
    x = torch.randn(3, 4)
    RAN.clear()
    for s in (script, reloaded(script, tmp_path)):
        torch.testing.assert_close(s(x), net(x).detach(), **CLOSE)
    assert RAN == ["script"] * 2


def test_what_is_not_compiled_becomes_torchscript_with_its_parameters(tmp_path: Path) -> None:
    net = Net().eval()
    traced = trace(net, torch.randn(3, 4), exclude=["head"])
    script = traced.to_torchscript()
    assert operators(script) >= 2
    assert "aten::cumsum" in str(script.inlined_graph)
    assert any(torch.equal(p, net.head.weight) for p in script.parameters())
    assert not any(p.requires_grad for p in script.parameters())
    x = torch.randn(3, 4)
    for s in (script, reloaded(script, tmp_path), torch.jit.freeze(script)):
        for _ in range(3):
            torch.testing.assert_close(s(x), net(x).detach(), **CLOSE)


def test_sizes_that_follow_the_batch_stay_dynamic(tmp_path: Path) -> None:
    net = Net().eval()
    script = trace(net, torch.randn(1, 4), dynamic_batch=(1, 64)).to_torchscript()
    again = reloaded(script, tmp_path)
    for rows in (1, 2, 4, 5, 6, 7, 33, 64):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(script(x), net(x).detach(), **CLOSE)
        torch.testing.assert_close(again(x), net(x).detach(), **CLOSE)
    with pytest.raises(torch.jit.Error, match="from 1 to 64"):
        script(torch.randn(65, 4))


def test_a_size_that_a_later_part_cannot_see_is_passed_to_it() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        total = (x * 2 + 1).sum(0).cumsum(0)
        return total / x.shape[0] + torch.sort(total)[0]

    script = trace(model, torch.randn(3, 4), dynamic_batch=(1, 1024)).to_torchscript()
    for rows in (1, 2, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(script(x), model(x), **CLOSE)


def test_the_model_that_is_a_function(tmp_path: Path) -> None:
    def foo(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2 * x + y

    script = trace(foo, (torch.rand(3), torch.rand(3))).to_torchscript()
    x, y = torch.rand(3), torch.rand(3)
    assert torch.equal(reloaded(script, tmp_path)(x, y), foo(x, y))
    assert torch.equal(script(y=y, x=x), foo(x, y))


class Pair(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


@pytest.mark.parametrize("kind", ["tuple", "list", "dict", "named", "nested", "same twice", "an input", "none"])
def test_outputs_keep_their_structure(kind: str) -> None:
    def model(x: torch.Tensor) -> Any:
        a, b = x * 2 + 1, torch.sort(x * 3 + 1)[0]
        return {
            "tuple": (a, b),
            "list": [a, b],
            "dict": {"a": a, "b": b},
            "named": Pair(a, b),
            "nested": (a, [b, a], {"b": b}),
            "same twice": (a, a),
            "an input": (x, a),
            "none": (a, None, 3),
        }[kind]

    script = trace(model, torch.randn(3, 4)).to_torchscript()
    x = torch.randn(3, 4)
    got, want = script(x), model(x)
    if kind == "none":
        assert got[1:] == want[1:]
        got, want = got[0], want[0]
    torch.testing.assert_close(got, tuple(want) if kind == "named" else want)


def test_inputs_are_nested_as_the_model_takes_them() -> None:
    def model(x: torch.Tensor, pair: Any, many: Any, flag: bool, *, named: Any) -> torch.Tensor:
        return torch.sort(x + pair[0] * pair[1] + many[0])[0] + many[1] * named["k"] * (2 if flag else 3)

    one = [torch.randn(3, 4) for _ in range(6)]
    call = (one[0], (one[1], one[2]), [one[3], one[4]], True)
    script = trace(model, call, example_kwargs={"named": {"k": one[5]}}).to_torchscript()
    want = model(*call, named={"k": one[5]})
    torch.testing.assert_close(script(one[0], (one[1], one[2]), [one[3], one[4]], {"k": one[5]}), want)


def test_random_numbers_are_drawn_by_torch() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * 2 + 1, 0.5, training=True) * 2 + 1

    script = trace(model, torch.ones(30, 40)).to_torchscript()
    torch.manual_seed(3)
    want = model(torch.ones(30, 40))
    torch.manual_seed(3)
    assert torch.equal(script(torch.ones(30, 40)), want)


def test_operators_without_torchscript_are_run_by_the_operator() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch.sort(x)[0] @ x.t()
        return y.float() * 2 + 1

    x = torch.randn(4, 4)
    script = trace(model, torch.randn(4, 4)).to_torchscript()
    assert torch.equal(script(x), model(x))


def test_memory_that_parts_share_is_shared() -> None:
    """A part writes into a view of what another part made."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2 + 1
        row = y[0]
        row.copy_(torch.sort(row)[0])
        return y * 2 + 1, y

    script = trace(model, torch.randn(3, 4)).to_torchscript()
    x = torch.randn(3, 4)
    for _ in range(3):
        torch.testing.assert_close(script(x), model(x))


# ---- what it refuses


def test_other_shapes_and_dtypes_are_refused() -> None:
    script = trace(Net().eval(), torch.randn(3, 4)).to_torchscript()
    for other in (torch.randn(5, 4), torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, 1)):
        with pytest.raises(torch.jit.Error, match=r"x is f32\[3, 4\] where this was traced"):
            script(other)


def test_gradients_are_refused() -> None:
    script = trace(Whole().eval(), torch.randn(3, 4)).to_torchscript()
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="for inference"):
        script(x)
    with torch.no_grad():
        script(x)


def test_what_reads_data_is_refused_by_name() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x * int(torch.sort(x)[0].sum() > -1e9) + 1

    with pytest.raises(cleave.CaptureError, match="ScriptModule"):
        trace(model, torch.randn(3, 4)).to_torchscript()


def test_what_keeps_state_is_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    with pytest.raises(cleave.CaptureError, match="changes a tensor"):
        trace(net, torch.randn(3, 4)).to_torchscript()


def test_outputs_that_torchscript_has_no_type_for_are_refused() -> None:
    traced = trace(lambda x: {1: x * 2 + 1}, torch.randn(3))
    with pytest.raises(cleave.CaptureError, match="TorchScript"):
        traced.to_torchscript()


@pytest.mark.parametrize("kind", ["path", "text", "buffer"])
def test_torch_jit_save_of_a_traced_module_is_read_by_torch_jit_load(tmp_path: Path, kind: str) -> None:
    net, x, path = Net().eval(), torch.randn(2, 4), tmp_path / "traced.pt"
    traced = trace(net, x)
    target: Any = {"path": path, "text": str(path), "buffer": io.BytesIO()}[kind]
    torch.jit.save(traced, target, _extra_files={"labels.txt": "cat dog"})
    if kind == "buffer":
        target.seek(0)
    extra = {"labels.txt": ""}
    script = torch.jit.load(target, _extra_files=extra)
    assert extra == {"labels.txt": b"cat dog"}
    assert operators(script) == len(traced.segments) > 0
    torch.testing.assert_close(script(x), net(x).detach(), **CLOSE)


def test_torch_jit_save_says_what_to_do_where_there_is_no_torchscript(tmp_path: Path) -> None:
    traced = trace(lambda x: {1: x * 2 + 1}, torch.randn(3))
    with pytest.raises(cleave.CaptureError, match=r"torch\.jit\.save: .*TorchScript.*cleave\.load"):
        torch.jit.save(traced, tmp_path / "traced.pt")
    assert not list(tmp_path.iterdir())


def test_a_torchscript_file_is_no_file_for_load_and_the_error_says_so(tmp_path: Path) -> None:
    path = tmp_path / "traced.pt"
    torch.jit.save(trace(Whole().eval(), torch.randn(3, 4)), path)
    with pytest.raises(cleave.CleaveError, match=r"zip archive.*torch\.jit\.load"):
        cleave.load(path)


def test_a_model_that_changed_is_traced_again_first() -> None:
    net = Whole().eval()
    traced = trace(net, torch.randn(3, 4))
    with torch.no_grad():
        net.a.weight.add_(1)
    with pytest.raises(cleave.ArgumentError, match="trace the model again"):
        traced.to_torchscript()


def test_sizes_with_a_plan_of_their_own_are_refused() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1 if x.shape[0] > 1 else x * 3 - 1

    traced = trace(model, torch.randn(4, 3), dynamic_batch=(1, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = traced.to_torchscript()
    x = torch.randn(4, 3)
    torch.testing.assert_close(script(x), model(x))
    with pytest.raises(torch.jit.Error):
        script(torch.randn(1, 3))


# ---- the operator


def test_bytes_that_are_no_segment_are_refused() -> None:
    run = torch.ops.cleave.segment
    x = torch.randn(3, 4)
    script = trace(Whole().eval(), x).to_torchscript()
    code = next(b for b in script.buffers() if b.dtype == torch.uint8)
    with pytest.raises(RuntimeError, match="cleave::segment"):
        run(torch.zeros(100, dtype=torch.uint8), [x])
    with pytest.raises(RuntimeError, match="tensor of bytes"):
        run(torch.zeros(100), [x])
    with pytest.raises(RuntimeError, match="cleave::segment"):
        run(code[:-1].clone(), [x])
    for at in range(0, code.numel(), max(1, code.numel() // 50)):
        broken = code.clone()
        broken[at] ^= 1
        with pytest.raises(RuntimeError, match="cleave::segment"):
            run(broken, [x])
    for inputs in ([], [x, x], [x.double()], [torch.randn(5, 4)], [torch.randn(3, 5)]):
        with pytest.raises(RuntimeError, match="cleave::segment"):
            run(code, inputs)


def test_bytes_may_begin_anywhere() -> None:
    x = torch.randn(3, 4)
    script = trace(Whole().eval(), x).to_torchscript()
    code = next(b for b in script.buffers() if b.dtype == torch.uint8)
    room = torch.zeros(2 * code.numel() + 77, dtype=torch.uint8)
    for at in (1, code.numel() + 77):
        room[at : at + code.numel()] = code
        torch.testing.assert_close(
            torch.ops.cleave.segment(room[at : at + code.numel()], [x])[0], torch.ops.cleave.segment(code, [x])[0]
        )


def test_outputs_outlive_the_module() -> None:
    """A weight that comes out is not a view of memory that goes with the module."""
    weight = torch.randn(3, 4)

    class Gives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(weight.clone())

        def forward(self, x: torch.Tensor) -> Any:
            return x * 2 + self.w, self.w.t()

    script = trace(Gives().eval(), torch.randn(3, 4)).to_torchscript()
    code = [b for b in script.buffers() if b.dtype == torch.uint8]
    out = script(torch.randn(3, 4))
    del script, code
    gc.collect()
    assert torch.equal(out[1], weight.t())


def test_segments_that_are_gone_leave_nothing_behind() -> None:
    x = torch.randn(3, 4)
    LOADED.clear()
    for _ in range(20):
        script = trace(Whole().eval(), x).to_torchscript()
        script(x)
        del script
    gc.collect()
    before = len(LOADED)
    last = trace(Whole().eval(), x).to_torchscript()
    last(x)  # who comes in lets those out that are gone
    gc.collect()
    left = [code for code in LOADED[:before] if code() is not None]
    assert before >= 20
    assert left == []


def test_threads_share_a_segment(tmp_path: Path) -> None:
    net = Whole().eval()
    path = tmp_path / "script.pt"
    torch.jit.save(trace(net, torch.randn(3, 4)).to_torchscript(), path)
    script = torch.jit.load(path)
    x = torch.randn(3, 4)
    want, wrong = net(x).detach(), []

    def work() -> None:
        for _ in range(20):
            if not torch.allclose(script(x), want, **CLOSE):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_machine_code_from_elsewhere_runs_where_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEAVE_ALLOW_COMPILED", raising=False)
    net = Whole().eval()
    x = torch.randn(3, 4)
    traced = trace(net, x, backend="script")
    script = traced.to_torchscript()
    RAN.clear()
    script(x)
    assert RAN == ["script"]  # this process made it
    path = tmp_path / "script.pt"
    torch.jit.save(script, path)
    again = torch.jit.load(path)
    again(x)
    assert len(RAN) == 2  # the same bytes
    del traced, script, again
    gc.collect()
    other = torch.jit.load(path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.testing.assert_close(other(x), net(x).detach(), **CLOSE)
    assert len(RAN) == 2
    assert len([w for w in told if "allow_compiled" in str(w.message)]) <= 1
    monkeypatch.setenv("CLEAVE_ALLOW_COMPILED", "0")
    cleave.allow_compiled(True)
    other(x)
    assert len(RAN) == 3
    cleave.allow_compiled(False)
    other(x)
    assert len(RAN) == 4  # what runs, runs
    torch.jit.load(path)(x)
    assert len(RAN) == 4


# ---- elsewhere

_FRESH = """
import sys, torch
import cleave
script = torch.jit.load(sys.argv[1])
x = torch.jit.load(sys.argv[2]).x
torch.save(script(x), sys.argv[3])
"""


class Holder(nn.Module):
    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("x", x)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return y


def _environment(**more: str) -> dict[str, str]:
    package = str(Path(cleave.__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": package, **more}


def _in_python(script: Path, given: Path, out: Path, *load: str, **env: str) -> tuple[torch.Tensor, str]:
    """What comes out in a new process, and what it says."""
    text = "".join(f"import torch; torch.ops.load_library({path!r})\n" for path in load) + _FRESH
    done = subprocess.run(
        [sys.executable, "-c", text, script, given, out], env=_environment(**env), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return torch.load(out), done.stderr


def _library() -> Path:
    """libcleave of this build or installation."""
    package = Path(cleave.__file__).resolve().parent
    places = [package, package / "lib", package.parent.parent, *map(Path, os.environ.get("CLEAVE_LIBS", "").split(":"))]
    found = [p / "libcleave.so" for p in places if (p / "libcleave.so").exists()]
    if not found:
        pytest.skip("libcleave.so is not beside the package: CLEAVE_LIBS names its folder")
    return found[0]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ program, compiled with the flags of the torch that is here."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    from torch.utils import cpp_extension

    where = Path(torch.__file__).parent / "lib"
    out = tmp_path_factory.mktemp("script") / "script_run"
    command = [
        compiler,
        "-std=c++20",
        "-O0",
        "-DNDEBUG",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    command += [f"-isystem{path}" for path in cpp_extension.include_paths()]
    command += [str(HERE / "script_run.cpp"), "-o", str(out), f"-L{where}", f"-Wl,-rpath,{where}"]
    command += ["-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-Wl,--allow-shlib-undefined", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def _in_cpp(program: Path, script: Path, given: Path, out: Path, **env: str) -> tuple[torch.Tensor, str]:
    command = [program, _library(), script, given, out]
    done = subprocess.run(command, env=_environment(**env), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.jit.load(out).x, done.stderr


def _saved(script: torch.jit.ScriptModule, x: torch.Tensor, tmp_path: Path) -> tuple[Path, Path, Path]:
    paths = tmp_path / "script.pt", tmp_path / "x.pt", tmp_path / "out.pt"
    torch.jit.save(script, paths[0])
    torch.jit.save(torch.jit.script(Holder(x)), paths[1])
    return paths


@pytest.mark.integration
def test_openvino_in_a_fresh_process_and_without_python(tmp_path: Path, program: Path) -> None:
    pytest.importorskip("openvino")
    net = Net().eval()
    traced = cleave.trace(
        net,
        torch.randn(2, 4),
        backend="openvino",
        exclude=["aten::sort", "aten::cumsum"],
        dynamic_batch=(1, 16),
        keep_slower=True,
    )
    assert traced.segments
    script = traced.to_torchscript()
    for rows in (2, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(script(x), net(x).detach(), **CLOSE)
        files = _saved(script, x, tmp_path)
        got, told = _in_python(*files, CLEAVE_ALLOW_COMPILED="1")
        assert "operator by operator" not in told
        torch.testing.assert_close(got, net(x).detach(), **CLOSE)
        got, _ = _in_cpp(program, *files, CLEAVE_ALLOW_COMPILED="1")
        torch.testing.assert_close(got, net(x).detach(), **CLOSE)


@pytest.mark.integration
def test_both_libraries_in_one_process(tmp_path: Path) -> None:
    """Whichever comes first has the operator."""
    x = torch.randn(2, 4)
    script = trace(Whole().eval(), x).to_torchscript()
    files = _saved(script, x, tmp_path)
    want = Whole()(x).detach()
    torch.testing.assert_close(_in_python(*files, str(_library()))[0], want, **CLOSE)
    torch.ops.load_library(str(_library()))
    torch.testing.assert_close(script(x), want, **CLOSE)


@pytest.mark.integration
def test_inductor_in_a_fresh_process_and_without_python(tmp_path: Path, program: Path) -> None:
    net = Whole().eval()
    traced = cleave.trace(net, torch.randn(2, 4), backend="inductor", keep_slower=True)
    assert all(s.compiled for s in traced.segments)
    x = torch.randn(2, 4)
    files = _saved(traced.to_torchscript(), x, tmp_path)
    for allow, warned in (("0", 1), ("1", 0)):
        for got, told in (
            _in_python(*files, CLEAVE_ALLOW_COMPILED=allow),
            _in_cpp(program, *files, CLEAVE_ALLOW_COMPILED=allow),
        ):
            assert told.count("a compiled segment runs operator by operator") == warned, told
            torch.testing.assert_close(got, net(x).detach(), **CLOSE)


class Asks(nn.Module):
    """Asks what its inputs are: whether two are the same tensor, whether one requires grad."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.l = what, nn.Linear(4, 4)

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        yes = q is k if self.what == "same" else q.requires_grad
        return self.l(q) * 2 if yes else self.l(q) + k


@pytest.mark.parametrize("what", ["same", "grad"])
def test_a_script_asks_what_the_forward_asked_of_its_inputs(what: str) -> None:
    model, q, k = Asks(what).eval(), torch.randn(3, 4), torch.randn(3, 4)
    other = (q, q) if what == "same" else (q.clone().requires_grad_(), k)
    said = "q are the same tensor, for which the model asks" if what == "same" else "q did not require grad where this"
    with torch.no_grad():
        script = cleave.trace(model, (q, k), dryrun=True).to_torchscript()
        assert torch.equal(script(q, k), model(q, k))
        with pytest.raises(Exception, match=said):
            script(*other)
        assert torch.equal(script(q, q.clone()), model(q, q.clone()))
    if what == "same":
        with pytest.raises(cleave.CaptureError, match="TorchScript cannot ask that; trace it with two tensors"):
            cleave.trace(model, (q, q), dryrun=True).to_torchscript()
