"""Packed weights of files: the same bits as without them, shared between processes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import cleave

ISAS = ("base", "avx2", "avx512", "neon")


class Net(nn.Module):
    """Convolutions with norms to fold, depthwise ones, products, an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 10, 3, 2, bias=False), nn.BatchNorm2d(10), nn.Hardswish(), nn.Conv2d(10, 10, 3, groups=10)
        )
        self.words = nn.Embedding(11, 10)
        self.head = nn.Linear(10, 7)
        self.bn = nn.BatchNorm1d(7)

    def forward(self, x: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
        y = self.features(x).mean((2, 3)) + self.words(word)
        return self.bn(self.head(y))


def example(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(batch)
    return torch.randn(batch, 3, 16, 16), torch.arange(batch)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file, and the same one packed."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("packed")
    model = Net().eval()
    for norm in (model.features[1], model.bn):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    with torch.no_grad():
        cleave.capture(model, example(2), dynamic_batch=(1, 8)).save(folder / "plain.clv")
    cleave.pack_weights(folder / "plain.clv", folder / "packed.clv")
    return folder / "plain.clv", folder / "packed.clv"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_a_packed_file_gives_the_same_bits(files: tuple[Path, Path], batch: int, threads: int) -> None:
    plain, packed = (cleave.load(f, engine="native", threads=threads, unproven=True) for f in files)
    assert torch.equal(plain(*example(batch)), packed(*example(batch)))


def test_the_tape_runs_a_packed_file(files: tuple[Path, Path]) -> None:
    plain, packed = (cleave.load(f, engine="tape", sandbox=False) for f in files)
    assert torch.equal(plain(*example(2)), packed(*example(2)))


def test_other_weights_are_packed_again(files: tuple[Path, Path]) -> None:
    models = [cleave.load(f, engine="native") for f in files]
    before = models[0](*example(2))
    for model in models:
        model.load_state_dict({k: 2 * v for k, v in model.state_dict().items()})
    got = [model(*example(2)) for model in models]
    assert torch.equal(*got)
    assert not torch.equal(got[0], before)


def test_a_file_may_be_packed_for_every_machine_and_in_place(files: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "all.clv"
    file.write_bytes(files[0].read_bytes())
    cleave.pack_weights(file, isas=ISAS)
    want = cleave.load(files[0], engine="native")(*example(2))
    assert torch.equal(cleave.load(file, engine="native", check=True)(*example(2)), want)
    with pytest.raises(ValueError, match="no instruction set"):
        cleave.pack_weights(file, isas=["sse9"])


def test_halves_of_a_cut_file_are_packed(files: tuple[Path, Path], tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)
    ).eval()
    x = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        split = cleave.prepare_split(model, example_inputs=x, split=cleave.SplitSpec(boundary="after:2"))
    prefix, suffix = split.save(tmp_path)
    want = cleave.load(prefix, engine="native").run_prefix(x)
    cleave.pack_weights(prefix)
    cleave.pack_weights(suffix)
    got = cleave.load(prefix, engine="native").run_prefix(x)
    for name, t in want.tensors.items():
        assert torch.equal(t, got.tensors[name])
    out = cleave.load(suffix, engine="native").run_suffix(got)
    assert torch.allclose(out, model(x), atol=1e-5)


SHARING = """
import sys, cleave, torch
model = cleave.load(sys.argv[1], engine="native")
model(torch.ones(1, 1024))
print("ready", flush=True)
sys.stdin.read()
"""


def mapped(pid: int, file: Path) -> tuple[int, int]:
    """Kilobytes of the file that a process has in memory, and its share of them."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE)
    of_file = [part for part in parts if part and str(file) in part.splitlines()[0]]
    rss, pss = (
        sum(int(re.search(rf"^{k}:\s+(\d+)", part, re.MULTILINE)[1]) for part in of_file) for k in ("Rss", "Pss")
    )
    return rss, pss


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no smaps")
def test_processes_share_packed_weights_and_do_not_read_the_plain_ones(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    with torch.no_grad():
        cleave.capture(nn.Linear(1024, 4096, bias=False).eval(), torch.ones(1, 1024)).save(file)
    cleave.pack_weights(file)
    command = [sys.executable, "-c", SHARING, str(file)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for child in children:
            assert child.stdout
            assert child.stdout.readline() == b"ready\n"
        rss, pss = mapped(children[0].pid, file)
    finally:
        for child in children:
            child.communicate(b"")
    weights = 1024 * 4096 * 4 // 1024
    assert weights * 0.9 < rss < weights * 1.5  # one copy of them, not two
    assert pss < rss * 0.6


class Reads(nn.Module):
    """A constant that is made once; one node packs it and reads it, too."""

    def __init__(self, reads: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.reads = reads
        self.w = nn.Parameter(torch.rand(shape) - 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.reads(x, self.w.sigmoid())


READS: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "cdist": (lambda x, c: torch.cdist(x, c), (300, 64)),
    "cdist_itself": (lambda x, c: torch.cdist(c, c) + x.sum(), (300, 64)),
    "addmm": (lambda x, c: torch.addmm(c, x, c), (64, 64)),
    "mm": (lambda x, c: torch.mm(c, c) + x.sum(), (64, 64)),
    "linear": (lambda x, c: nn.functional.linear(c, c) + x.sum(), (64, 64)),
    "einsum": (lambda x, c: torch.einsum("ij,jk->ik", c, c) + x.sum(), (64, 64)),
    "conv": (lambda x, c: nn.functional.conv2d(c, c) + x.sum(), (8, 8, 3, 3)),
    "half": (lambda x, c: torch.mm(c.half(), c.half()) + x.sum(), (64, 64)),
}


@pytest.mark.parametrize("name", READS)
def test_a_constant_that_is_packed_and_read_is_there(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    reads, shape = READS[name]
    model, x = Reads(reads, shape).eval(), torch.rand(64 if len(shape) == 2 and shape[0] == 64 else 4, 64)
    with torch.no_grad():
        cleave.capture(model, x).save(tmp_path / "plain.clv")
        want = model(x)
    cleave.pack_weights(tmp_path / "plain.clv", tmp_path / "packed.clv")
    for file in ("plain.clv", "packed.clv"):
        run = cleave.load(tmp_path / file, engine="native", threads=1)
        torch.testing.assert_close(run(x), want, rtol=1e-2, atol=1e-2)
