"""What a user reads when something is wrong: the place, the reason, and what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from crafted import SAME_USER
from test_cli_run import COMMAND
from torch import Tensor, nn

import cleave
from cleave import _example, errors

ROOT = Path(__file__).resolve().parents[2]


class Net(nn.Module):
    """Two inputs by name, one of them optional."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, image: Tensor, mask: Tensor | None = None) -> Any:
        h = self.a(image).relu()
        return self.b(h if mask is None else h * mask)


@pytest.fixture
def image() -> Tensor:
    return torch.randn(2, 4)


@pytest.fixture
def file(tmp_path: Path, image: Tensor) -> Path:
    split = cleave.SplitSpec(boundary="after:relu")
    with torch.no_grad():
        runtime = cleave.prepare_split(Net().eval(), example_inputs=(image,), split=split)
        runtime.save(tmp_path / "net.clv")
    return tmp_path / "net.clv"


# ---- inputs by name --------------------------------------------------------------------------------------------------


def callers(file: Path, image: Tensor) -> dict[str, Any]:
    net, split = Net().eval(), cleave.SplitSpec(boundary="after:relu")
    with torch.no_grad():
        return {
            "split": cleave.prepare_split(net, example_inputs=(image,), split=split).run_prefix,
            "plan": cleave.capture(net, image),
            "file": cleave.load(file),
            "half": cleave.load(file, part="prefix").run_prefix,
        }


@pytest.mark.parametrize("who", ["split", "plan", "file", "half"])
def test_an_unknown_input_is_named_and_so_are_those_that_there_are(file: Path, image: Tensor, who: str) -> None:
    call = callers(file, image)[who]
    with torch.no_grad():
        call(image=image)
        for args, kwargs in (((), {"img": image}), ((image,), {"img": image}), ((), {"img": image, "image": image})):
            with pytest.raises(cleave.InputError, match=r"without an input img; its inputs are image$"):
                call(*args, **kwargs)
        with pytest.raises(cleave.InputError, match="input image is missing"):
            call()


@pytest.mark.parametrize("who", ["split", "plan", "file", "half"])
def test_an_input_that_is_given_twice_is_refused(file: Path, image: Tensor, who: str) -> None:
    with torch.no_grad(), pytest.raises((cleave.InputError, TypeError)):
        callers(file, image)[who](image, image=image)


def test_all_unknown_inputs_are_named(image: Tensor) -> None:
    plan = cleave.capture(Net(), (image,), example_kwargs={"mask": torch.ones(8)})
    with pytest.raises(cleave.InputError, match=r"without an input img, msk; its inputs are image, mask"):
        plan(image, img=image, msk=image)


# ---- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
@pytest.mark.parametrize("device", ["cuda", "cuda:99", torch.device("cuda", 1)])
def test_a_device_that_is_not_here_is_an_argument_error_that_says_why(file: Path, image: Tensor, device: Any) -> None:
    runtime = cleave.load(file, part="prefix")
    data = runtime.run_prefix(image).to_bytes()
    for call in (
        lambda: cleave.BoundaryPayload.from_bytes(data, device=device),
        lambda: cleave.unpack(cleave.pack([image]), device=device),
        lambda: cleave.load(file, device=device),
    ):
        with pytest.raises(
            cleave.ArgumentError, match=r"device 'cuda.*CUDA is not available here: .*device='cpu' works"
        ):
            call()


@pytest.mark.parametrize("device", ["qpu", "meta"])
def test_what_is_no_device_is_an_argument_error_everywhere(file: Path, device: str) -> None:
    with pytest.raises(cleave.ArgumentError, match=device):
        cleave.load(file, device=device)
    with pytest.raises(cleave.ArgumentError, match=device):
        cleave.unpack(cleave.pack([1]), device=device)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_damaged_files_are_artifact_errors(file: Path) -> None:
    assert issubclass(cleave.ArtifactError, cleave.PlanError)
    bad = file.with_name("bad.clv")
    bad.write_bytes(file.read_bytes()[:100])
    with pytest.raises(cleave.ArtifactError, match=r"bad\.clv"):
        cleave.load(bad)


@pytest.mark.parametrize("major", [0, 9])
def test_a_file_of_another_version_says_both_versions_and_what_to_do(file: Path, major: int) -> None:
    data = file.read_bytes()
    match = re.search(rb'\\"version\\":\[(\d)', data)
    assert match is not None
    other = file.with_name("other.clv")
    other.write_bytes(data[: match.start(1)] + b"%d" % major + data[match.end(1) :])
    says = rf"other\.clv: the file has version {major}\.\d, this library reads versions 1\.x to 4\.x: .*save the model"
    with pytest.raises(cleave.ArtifactError, match=says):
        cleave.load(other)


# ---- dtypes ----------------------------------------------------------------------------------------------------------


def test_dtypes_have_the_names_of_plan_text_and_of_torch_and_errors_list_them() -> None:
    for name in ("f32", "float32"):
        assert _example.parse(f"x={name}[2,3]").dtype is torch.float32
    with pytest.raises(cleave.ArgumentError, match=r"no dtype float31; there are .*f32"):
        _example.parse("float31[2]")


# ---- halves ----------------------------------------------------------------------------------------------------------


def test_a_half_shows_its_own_numbers(file: Path) -> None:
    whole = cleave.load(file)
    whole.split(None, file.with_name("a.clv"), file.with_name("b.clv"))
    assert "3 nodes" in repr(whole)
    prefixes = [cleave.load(file, part="prefix"), cleave.load(file.with_name("a.clv"))]
    suffixes = [cleave.load(file, part="suffix"), cleave.load(file.with_name("b.clv"))]
    for half, first, count, size, inputs, outputs in (
        *((p, "prefix of Net: 2 nodes", "40", "160 bytes", "image f32[B,4]", "f32[B,8]") for p in prefixes),
        *((s, "suffix of Net: 1 node>", "18", "72 bytes", "f32[B,8]", "f32[B,2]") for s in suffixes),
    ):
        facts = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in repr(half).splitlines()[1:])
        assert first in repr(half)
        assert facts["parameters"] == f"{count}, {size}"
        assert facts["inputs"].endswith(inputs)
        assert facts["outputs"].endswith(outputs)


# ---- state that is replaced by its equal -----------------------------------------------------------------------------


class Anchors(nn.Module):
    """Keeps a list of tensors, and puts an equal one in its place in every forward, as torchvision's detectors do."""

    def __init__(self, copy: bool) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.cell_anchors = [torch.arange(4.0) * k for k in (1, 2)]
        self.sizes: Any = ((1, 2), [3, 4.5], {"a": None})
        self.copy = copy

    def forward(self, x: Tensor) -> Tensor:
        self.cell_anchors = [c.to(x.dtype, copy=self.copy) for c in self.cell_anchors]
        self.sizes = ((1, 2), [3, 4.5], {"a": None})
        return self.head(x) + self.cell_anchors[0] * self.cell_anchors[1] + self.sizes[0][0]


@pytest.mark.parametrize("copy", [False, True])
def test_a_list_of_tensors_may_be_replaced_by_an_equal_one(copy: bool) -> None:
    net = Anchors(copy).eval()
    x = torch.randn(3, 4)
    runtime = cleave.prepare_split(net, example_inputs=(x,), split=cleave.SplitSpec(boundary="50%"))
    plan = cleave.capture(net, x)
    for data in (torch.randn(3, 4), x):
        want = net(data)  # which replaces the lists
        assert torch.equal(plan(data), want)
        assert torch.equal(runtime.run_suffix(runtime.run_prefix(data)), want)


class Remembers(Anchors):
    """The list follows the inputs: leaving it as it is would be wrong."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(x) + self.cell_anchors[0]
        self.cell_anchors = [x.detach().mean(0), self.cell_anchors[1]]
        return out


def test_a_list_of_tensors_that_follows_the_inputs_is_still_refused() -> None:
    with pytest.raises(cleave.CaptureError, match="cell_anchors"):
        cleave.capture(Remembers(False).eval(), torch.randn(3, 4))


class Grows(Anchors):
    """Other numbers in every forward."""

    def forward(self, x: Tensor) -> Tensor:
        self.cell_anchors = [c + 1 for c in self.cell_anchors]
        return self.head(x) + self.cell_anchors[0]


def test_a_list_of_tensors_that_changes_is_still_refused() -> None:
    with pytest.raises(cleave.CaptureError, match="cell_anchors"):
        cleave.capture(Grows(False).eval(), torch.randn(3, 4))


# ---- images in a list ------------------------------------------------------------------------------------------------


class Images(nn.Module):
    """As detectors take them: a list of images without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images: list[Tensor]) -> Tensor:
        return self.conv(torch.stack(images)).mean((2, 3))


def test_a_list_of_images_is_warned_about_and_the_warning_names_the_way_out() -> None:
    images = [torch.randn(3, 16, 16) for _ in range(2)]
    for spec, warned in (
        (cleave.SplitSpec(boundary="50%"), True),
        (cleave.SplitSpec("50%", dynamic_batch=None), False),
    ):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            cleave._log._warned.clear()
            cleave.prepare_split(Images().eval(), example_inputs=(images,), split=spec)
        texts = [str(w.message) for w in seen if issubclass(w.category, cleave.CleaveWarning)]
        assert any("images[0]" in t and "dynamic_batch=None" in t for t in texts) == warned, texts


def test_batches_in_a_list_are_not_warned_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", cleave.CleaveWarning)
        cleave._log._warned.clear()
        cleave.capture(lambda xs: xs[0] + xs[1], ([torch.randn(3, 4), torch.randn(3, 4)],), dynamic_batch=(1, 8))


# ---- docs ------------------------------------------------------------------------------------------------------------


def test_every_error_that_is_exported_stands_in_the_docs() -> None:
    table = (ROOT / "docs" / "split.md").read_text().partition("\n## Errors\n")[2].partition("\n## ")[0]
    public = {n for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, Exception | Warning)}
    assert public <= set(cleave.__all__)
    assert {n for n in public if f"`{n}`" not in table} == set()
    for name, also in re.findall(r"^\| `(\w+)` \| `(\w+)` \|", table, re.MULTILINE):
        assert also in {c.__name__ for c in getattr(cleave, name).__mro__}, name


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder like a clone after make: the program in build/, and a Python in .venv that says how it was called."""
    if COMMAND is None:
        pytest.skip("the cleave command is not built")
    for folder in ("build", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(COMMAND, tmp_path / "build" / "cleave")
    python = tmp_path / ".venv" / "bin" / "python3"
    python.write_text('#!/bin/sh\necho "$0" "$@"\n')
    python.chmod(0o755)
    return tmp_path


def command(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [str(clone / "build" / "cleave"), *words]
    env = {"PATH": "/nonexistent", **SAME_USER}
    return subprocess.run(line, cwd="/", env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_program_in_build_finds_the_python_of_the_clone(clone: Path) -> None:
    done = command(clone, "capture", "net.py:Net", "-o", "net.clv")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1:] == ["-m", "cleave", "capture", "net.py:Net", "-o", "net.clv"]
    assert Path(done.stdout.split()[0]).samefile(clone / ".venv/bin/python3")


def test_a_program_without_python_says_what_to_set(clone: Path) -> None:
    shutil.rmtree(clone / ".venv")
    done = command(clone, "capture", "net.py:Net", "--input", "ids=i64[B,S]<100", "--arg", "name=it's")
    assert done.returncode == 1
    assert "needs Python with PyTorch and Cleave; none was found next to this program" in done.stderr
    assert "set CLEAVE_PYTHON to the Python that has Cleave" in done.stderr
    assert r"`python3 -m cleave capture net.py:Net --input 'ids=i64[B,S]<100' --arg 'name=it'\''s'`" in done.stderr
    assert "hint" not in command(clone, "-q", "capture", "net:Net").stderr
