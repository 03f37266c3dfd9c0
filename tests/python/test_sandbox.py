"""Models in a sandbox: the bits of a plain run, or an error that names the node; the host lives on."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from crafted import rewrite_plan
from test_cli_run import COMMAND
from test_random_programs import GRAMMAR
from test_random_programs import run as run_program
from torch import Tensor, nn

import cleave

Call = tuple[Any, ...]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.layer(x)
        return {"last": y[:, -1], "mean": y.mean(1)}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(8, 16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.cell(x)


class Signal(nn.Module):
    """Libraries below torch: Fourier transforms, linear algebra, complex and half numbers, sorting."""

    def forward(self, x: Tensor) -> Any:
        f = torch.fft.rfft(x)
        gram = x @ x.T + torch.eye(x.shape[0])
        half = (x.to(torch.bfloat16) @ x.T.to(torch.bfloat16)).float()
        return f, torch.linalg.cholesky(gram), torch.linalg.svd(gram)[1], half, x.sort(-1).indices, x > 0


class Dtypes(nn.Module):
    def forward(self, x: Tensor) -> Any:
        kinds = (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int64)
        return [x.to(k) for k in kinds] + [x > 0, torch.complex(x, x), x.T, x[:, :0], x.sum()]


class Shared(nn.Module):
    """Outputs on one memory, and one that is the input."""

    def forward(self, x: Tensor) -> Any:
        y = x * 2
        return y, y[0], y.T, x


class Numbers(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x + 1, x.shape[0], x.shape[0] * 0.5


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(50, 16)

    def forward(self, i: Tensor) -> Tensor:
        return self.table(i)


def quantised(x: Tensor) -> Any:
    return torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)


class Quantised(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return quantised(x)


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.GELU(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 7 * 7, 10),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Call]]] = {
    "images": (images, lambda: (torch.randn(2, 3, 16, 16),)),
    "attention": (Attention, lambda: (torch.randn(2, 7, 32),)),
    "recurrent": (Recurrent, lambda: (torch.randn(3, 5, 8),)),
    "signal": (Signal, lambda: (torch.randn(12, 12),)),
    "dtypes": (Dtypes, lambda: (torch.randn(4, 6),)),
    "shared": (Shared, lambda: (torch.randn(4, 4),)),
    "numbers": (Numbers, lambda: (torch.randn(3, 2),)),
    "lookup": (Lookup, lambda: (torch.randint(0, 50, (4, 3)),)),
    "quantised": (Quantised, lambda: (torch.randn(4, 3),)),
}


def save(net: nn.Module, args: Call, path: Path, **how: Any) -> Path:
    with torch.no_grad():
        cleave.capture(net.eval(), args, **how).save(path)
    return path


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for x in value:
            yield from leaves(x)
    else:
        yield value


def bits(t: Tensor) -> bytes:
    dense = torch.empty(t.shape, dtype=t.dtype).copy_(t)
    return bytes(dense.view(-1).view(torch.uint8).tolist())


def assert_same(got: Any, want: Any) -> None:
    a, b = list(leaves(got)), list(leaves(want))
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        if not isinstance(x, Tensor):
            assert x == y
            assert type(x) is type(y)
            continue
        assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
        if x.is_quantized:
            assert (x.q_scale(), x.q_zero_point()) == (y.q_scale(), y.q_zero_point())
            x, y = x.int_repr(), y.int_repr()
        assert bits(x) == bits(y)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimize", ["none", "safe"])
def test_a_sandbox_gives_the_bits_of_a_plain_run(name: str, optimize: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    make, example = MODELS[name]
    args = example()
    path = save(make(), args, tmp_path / "m.clv")
    plain, boxed = cleave.load(path, optimize=optimize), cleave.load(path, optimize=optimize, sandbox=True)
    for _ in range(3):
        assert_same(boxed(*args), plain(*args))
        args = example()


class Drawn(nn.Module):
    """A program drawn at random: views, writes to inputs, joins, random numbers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        made = random.Random(seed)
        names = sorted(GRAMMAR)
        self.program = [(made.choice(names), *(made.randint(0, n) for n in (12, 12, 4))) for _ in range(12)]

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return run_program(self.program, x, y)


def drawn_is_same(seed: int, path: Path) -> bool:
    torch.manual_seed(seed)
    args = (torch.randn(3, 4), torch.randn(3, 4))
    try:
        save(Drawn(seed), (args[0].clone(), args[1].clone()), path)
        plain = cleave.load(path)
    except cleave.CleaveError:
        return False  # what no file holds
    boxed, got = cleave.load(path, sandbox=True), []
    for model in (plain, boxed):
        torch.manual_seed(seed)
        mine = [t.clone() for t in args]
        got.append([model(*mine), mine, torch.rand(2)])
    assert_same(got[1], got[0])
    return True


def test_random_programs_give_the_bits_of_plain_runs(tmp_path: Path) -> None:
    assert sum(drawn_is_same(seed, tmp_path / "m.clv") for seed in range(8)) > 4


@pytest.mark.slow
def test_many_random_programs_give_the_bits_of_plain_runs(tmp_path: Path) -> None:
    assert sum(drawn_is_same(seed, tmp_path / "m.clv") for seed in range(100, 400)) > 150


def test_sizes_are_served_as_in_a_plain_run(tmp_path: Path) -> None:
    torch.manual_seed(2)
    path = save(images(), (torch.randn(2, 3, 16, 16),), tmp_path / "m.clv", dynamic_batch=(1, 64))
    plain, boxed = cleave.load(path, unproven=True), cleave.load(path, unproven=True, sandbox=True)
    for n in torch.randint(1, 64, (8,)).tolist():
        x = torch.randn(n, 3, 16, 16)
        assert_same(boxed(x), plain(x))
    with pytest.raises(cleave.InputError) as wrong:
        boxed(torch.randn(2, 3, 16, 15))
    with pytest.raises(cleave.InputError) as want:
        plain(torch.randn(2, 3, 16, 15))
    assert str(wrong.value) == str(want.value)
    assert_same(boxed(x), plain(x))


@pytest.mark.parametrize("change", [lambda x: x.T.contiguous().T, lambda x: x[:, ::2], lambda x: x[:1].expand(6, 8)])
def test_inputs_keep_their_strides(change: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    x = change(torch.randn(6, 8))
    path = save(nn.Sequential(nn.Softmax(-1), nn.Tanh()), (x,), tmp_path / "m.clv")
    assert_same(cleave.load(path, sandbox=True)(x), cleave.load(path)(x))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_operators_use_as_many_threads(threads: int, tmp_path: Path) -> None:
    x = torch.randn(64, 1000)
    path = save(nn.Sequential(nn.Linear(1000, 300), nn.LayerNorm(300)), (x,), tmp_path / "m.clv")
    plain, boxed = cleave.load(path, threads=threads), cleave.load(path, threads=threads, sandbox=True)
    assert_same(boxed(x), plain(x))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_same(cleave.load(path, sandbox=True)(x), cleave.load(path)(x))
    finally:
        torch.set_num_threads(before)


class Tiny(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


def test_what_the_host_chose_for_operators_holds(tmp_path: Path) -> None:
    torch.manual_seed(5)
    x = torch.randn(64, 256)
    path = save(nn.Sequential(nn.Linear(256, 64), nn.ReLU()), (x,), tmp_path / "m.clv")
    tiny, small = save(Tiny(), (torch.ones(4),), tmp_path / "tiny.clv"), torch.full((4,), 1e-38)
    plain, boxed = cleave.load(path), cleave.load(path, sandbox=True)
    plain_tiny, boxed_tiny = cleave.load(tiny), cleave.load(tiny, sandbox=True)
    for precision in ("medium", "highest"):
        torch.set_float32_matmul_precision(precision)
        assert_same(boxed(x), plain(x))
    if torch.set_flush_denormal(True):
        try:
            assert torch.equal(plain_tiny(small), torch.zeros(4))
            assert_same(boxed_tiny(small), plain_tiny(small))
        finally:
            torch.set_flush_denormal(False)
    assert_same(boxed_tiny(small), plain_tiny(small))


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def test_random_numbers_are_those_of_the_host(tmp_path: Path) -> None:
    x = torch.randn(5)
    path = save(Noise(), (x,), tmp_path / "m.clv")
    plain, boxed = cleave.load(path), cleave.load(path, sandbox=True)
    torch.manual_seed(3)
    want = [plain(x), plain(x), torch.randn(3)]
    torch.manual_seed(3)
    assert_same([boxed(x), boxed(x), torch.randn(3)], want)


class Writes(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y


def test_an_input_that_the_model_writes_is_written(tmp_path: Path) -> None:
    path = save(Writes(), (torch.ones(3), torch.ones(3)), tmp_path / "m.clv")
    x, y = torch.ones(3), torch.ones(3)
    assert torch.equal(cleave.load(path, sandbox=True)(x, y), torch.full((3,), 3.0))
    assert torch.equal(x, torch.full((3,), 2.0))
    assert torch.equal(y, torch.ones(3))


class Counter(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x + self.count


def test_state_lives_in_the_sandbox_and_its_loss_is_said(tmp_path: Path) -> None:
    path = save(Counter(), (torch.zeros(2),), tmp_path / "m.clv")
    model, x = cleave.load(path, sandbox=True), torch.zeros(2)
    first = model(x)
    assert torch.equal(model(x), first + 1)
    assert torch.equal(model(x), first + 2)
    os.kill(process_of(model), signal.SIGKILL)
    with pytest.raises(cleave.CrashError, match="SIGKILL"):
        model(x)
    with pytest.raises(cleave.CrashError, match=r"changes its own tensors.*load it again"):
        model(x)
    assert torch.equal(cleave.load(path, sandbox=True)(x), first)


def test_the_caller_gives_the_weights_of_a_file_that_has_none(tmp_path: Path) -> None:
    net, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), torch.randn(2, 4)
    with torch.no_grad():
        cleave.capture(net, x).save(tmp_path / "m.clv", weights=False)
    model = cleave.load(tmp_path / "m.clv", sandbox=True)
    with pytest.raises(cleave.InputError, match="not bound"):
        model(x)
    for _ in range(2):
        model.load_state_dict(net.state_dict())
        with torch.no_grad():
            assert torch.equal(model(x), net(x))
            os.kill(process_of(model), signal.SIGKILL)
            with pytest.raises(cleave.CrashError):
                model(x)
            assert torch.equal(model(x), net(x))  # the new process has them too
            net[0].weight.mul_(2)


def test_halves_run_in_sandboxes(tmp_path: Path) -> None:
    net, x = images().eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        cleave.prepare_split(net, example_inputs=x, split=cleave.SplitSpec(boundary="after:2")).save(tmp_path / "m.clv")
        want = net(x)
    first = cleave.load(tmp_path / "m.clv", part="prefix", sandbox=True)
    rest = cleave.load(tmp_path / "m.clv", part="suffix", sandbox=True)
    boundary = first.run_prefix(x)
    plain = cleave.load(tmp_path / "m.clv", part="prefix").run_prefix(x)
    assert_same(boundary.tensors, plain.tensors)
    assert torch.equal(rest.run_suffix(boundary), want)


# ---- what is refused


def test_what_a_sandbox_cannot_do_is_said(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    path = save(nn.Linear(4, 3), (x,), tmp_path / "m.clv")
    with pytest.raises(cleave.ArgumentError, match="allow_compiled or sandbox"):
        cleave.load(path, sandbox=True, allow_compiled=True)
    with pytest.raises(cleave.ArgumentError, match="copy=False and sandbox=True"):
        cleave.load(path, sandbox=True, copy=False)
    model = cleave.load(path, sandbox=True)
    with pytest.raises(cleave.CaptureError, match="another process: there is no state_dict"):
        model.state_dict()
    with pytest.raises(cleave.CaptureError, match="another process: there is no report"):
        model.optimizations()
    with pytest.raises(cleave.InputError):
        model(x.to_sparse())


def test_the_environment_names_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.clv"
    with torch.no_grad():
        cleave.capture(nn.ReLU(), torch.randn(3)).save(file)
    monkeypatch.setenv("CLEAVE_TORCH_PROGRAM", str(tmp_path / "none"))
    with pytest.raises(cleave.CleaveError, match=r"CLEAVE_TORCH_PROGRAM names .*none, which is no program"):
        cleave.load(file, sandbox=True)
    monkeypatch.setenv("CLEAVE_TORCH_PROGRAM", "/bin/false")  # before the one that is installed
    with pytest.raises(cleave.CleaveError, match="ended with status 1"):
        cleave.load(file, sandbox=True)


def test_where_the_kernel_has_no_filter_there_is_an_error_and_no_plain_run(tmp_path: Path) -> None:
    """The host is under a filter that answers as such a kernel would."""
    path = save(nn.Linear(4, 3), (torch.randn(2, 4),), tmp_path / "m.clv")
    run = subprocess.run(
        [sys.executable, "-c", FORBID.format(path=str(path))], capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "this system cannot run a sandbox: a filter of system calls (seccomp)" in run.stdout


# A filter that answers seccomp() with EINVAL, as a kernel does that has none; children inherit it.
FORBID = """
import ctypes, struct
import cleave
libc = ctypes.CDLL(None, use_errno=True)
number = {{"x86_64": 317, "aarch64": 277}}[__import__("platform").machine()]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 22), (0x06, 0, 0, 0x7FFF0000)]
code = b"".join(struct.pack("HBBI", *s) for s in steps)
text = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(text)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
try:
    cleave.load({path!r}, sandbox=True)
except cleave.CaptureError as e:
    print(e)
"""


# ---- crashes and limits


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return -1


def descendants(of: int) -> list[int]:
    every = {int(p.name): parent_of(int(p.name)) for p in Path("/proc").iterdir() if p.name.isdigit()}
    found, level = [], [of]
    while level:
        level = [pid for pid, up in every.items() if up in level]
        found += level
    return found


known: set[int] = set()


@pytest.fixture(autouse=True)
def new_processes() -> None:
    """A test that failed may hold on to its own."""
    known.clear()
    known.update(descendants(os.getpid()))


def started() -> list[int]:
    """By this test, and still there."""
    return [pid for pid in descendants(os.getpid()) if pid not in known]


def processes() -> list[int]:
    """Of sandboxes of this test."""

    def is_one(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"sandbox"]
        except OSError:
            return False

    return [pid for pid in started() if is_one(pid)]


def process_of(model: object) -> int:
    found = processes()
    assert len(found) == 1, model
    return found[0]


class Expanded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def __init__(self) -> None:
        super().__init__()
        self.inner = Summed()


class Summed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.expand(64, 4).sum() + 1


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """One operator that takes hours: memory is not its limit, and it does not look at clocks."""
    path = save(Expanded(), (torch.ones(1, 4),), tmp_path / "endless.clv")
    huge = str(1 << 45)
    rewrite_plan(path, lambda text: text.replace("[64, 4]", f"[{huge}, 4]").replace("f32[64,4]", f"f32[{huge},4]"))
    return path


def run_and(model: cleave.LoadedModel, act: Callable[[], None], x: Tensor) -> tuple[Exception, float]:
    """Acts while the model is at its long node; what the run raises, and when."""
    raised: list[tuple[Exception, float]] = []

    def run() -> None:
        try:
            model(x)
        except Exception as e:
            raised.append((e, time.monotonic()))

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.5)
    begin = time.monotonic()
    act()
    thread.join(20)
    assert raised
    return raised[0][0], raised[0][1] - begin


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGFPE", "SIGABRT"])
def test_a_crash_is_an_error_with_the_name_of_the_node(name: str, endless: Path) -> None:
    model = cleave.load(endless, optimize="none")  # it was changed: a sandbox without being asked
    e, _ = run_and(model, lambda: os.kill(process_of(model), getattr(signal, name)), torch.ones(1, 4))
    assert isinstance(e, cleave.CrashError)
    assert "node sum (aten::sum) in inner ended the process of the sandbox with " + name in str(e)


def test_a_call_that_the_filter_forbids_has_words_of_its_own(endless: Path) -> None:
    model = cleave.load(endless, sandbox=True)
    e, _ = run_and(model, lambda: os.kill(process_of(model), signal.SIGSYS), torch.ones(1, 4))
    assert isinstance(e, cleave.CrashError)
    assert "node sum (aten::sum) in inner asked the system" in str(e)


def test_a_node_that_takes_too_long_is_ended(endless: Path) -> None:
    model = cleave.load(endless, sandbox=True, timeout=1.0)
    begin = time.monotonic()
    with pytest.raises(cleave.LimitError, match=r"node sum \(aten::sum\) in inner: it takes longer than the 1 s"):
        model(torch.ones(1, 4))
    assert time.monotonic() - begin < 10
    assert not processes()


def test_another_thread_ends_a_run(endless: Path) -> None:
    model = cleave.load(endless, sandbox=True)
    e, took = run_and(model, model.cancel, torch.ones(1, 4))
    assert isinstance(e, cleave.LimitError)
    assert "stopped by another thread at node sum" in str(e)
    assert took < 5
    assert not processes()


class Wide(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x] * 64).sum()


def test_memory_is_limited_with_and_without_the_allocator_of_torch(tmp_path: Path) -> None:
    x = torch.ones(1 << 20)
    path = save(Wide(), (x,), tmp_path / "m.clv")
    with pytest.raises(cleave.LimitError, match="of the 16000000 that it may have"):
        cleave.load(path, sandbox=True, max_memory=16_000_000)(x)
    model = cleave.load(path, sandbox=True, max_memory=16_000_000)
    limits = Path(f"/proc/{process_of(model)}/limits").read_text()
    size = next(int(line.split()[3]) for line in limits.splitlines() if line.startswith("Max address space"))
    used = int(Path(f"/proc/{process_of(model)}/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    assert size - used < 2 << 30


def test_the_process_of_a_sandbox_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    with open(__file__) as held, open(tmp_path / "log", "w") as log:
        model = cleave.load(save(nn.Linear(4, 3), (torch.randn(2, 4),), tmp_path / "m.clv"), sandbox=True)
        pid = process_of(model)
        status = dict(
            line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
        assert (status["Seccomp"].strip(), status["NoNewPrivs"].strip()) == ("2", "1")
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        zero = [
            line.split("  ")[0]
            for line in limits
            if line.split()[-3:-1] == ["0", "0"] or line.split()[-2:] == ["0", "0"]
        ]
        assert {"Max open files", "Max file size", "Max core file size"} <= set(zero)
        if os.geteuid() == 0:  # it is not dumpable: nobody else sees these
            files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            assert sorted(f.split(":")[0] for f in files) == ["/dev/null", "/dev/null", "/memfd", "/memfd", "socket"]
            assert b"SECRET_OF_THE_HOST" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert held
        assert log


def test_a_host_with_many_threads_keeps_nothing_of_sandboxes(tmp_path: Path) -> None:
    """Descriptors, zombies, threads and SIGCHLD: as before."""
    x = torch.randn(2, 4)
    path = save(nn.Linear(4, 3), (x,), tmp_path / "m.clv")
    want, ended, wrong = cleave.load(path)(x), [], []
    before = signal.signal(signal.SIGCHLD, lambda *_: ended.append(1))

    def use() -> None:
        for _ in range(2):
            model = cleave.load(path, sandbox=True)
            wrong.extend(1 for _ in range(5) if not torch.equal(model(x), want))

    try:
        use()
        gc.collect()  # models of other tests
        held = len(os.listdir("/proc/self/fd"))
        threads = [threading.Thread(target=use) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong
        assert not ended
        assert len(os.listdir("/proc/self/fd")) == held
        assert not started()
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_threads_share_one_sandbox(tmp_path: Path) -> None:
    path = save(images(), (torch.randn(2, 3, 16, 16),), tmp_path / "m.clv")
    plain, boxed, wrong = cleave.load(path), cleave.load(path, sandbox=True), []

    def use(seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        for _ in range(10):
            x = torch.randn(2, 3, 16, 16, generator=made)
            if not torch.equal(boxed(x), plain(x)):
                wrong.append(seed)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_run_sees_one_set_of_weights(tmp_path: Path) -> None:
    net, x = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(4)]), torch.ones(1, 8)
    model = cleave.load(save(net, (x,), tmp_path / "m.clv"), sandbox=True)
    sets = [{k: torch.full_like(v, a) for k, v in net.state_dict().items()} for a in (0.5, 2.0)]
    allowed, got, done = [], [], threading.Event()
    for s in sets:
        model.load_state_dict(s)
        allowed.append(model(x)[0, 0].item())

    def run() -> None:
        while not done.is_set():
            got.append(model(x)[0, 0].item())

    threads = [threading.Thread(target=run) for _ in range(3)]
    for t in threads:
        t.start()
    for i in range(40):
        model.load_state_dict(sets[i % 2])
    done.set()
    for t in threads:
        t.join()
    assert set(got) <= set(allowed)
    assert len(allowed) == len(set(allowed))


def test_a_copy_of_the_host_has_a_process_of_its_own(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    path = save(nn.Linear(4, 3), (x,), tmp_path / "m.clv")
    plain, model = cleave.load(path), cleave.load(path, sandbox=True)

    def wrong(seed: int) -> int:
        made = torch.Generator().manual_seed(seed)
        inputs = [torch.randn(2, 4, generator=made) for _ in range(100)]
        return sum(not torch.equal(model(x), plain(x)) for x in inputs)

    pid = os.fork()
    if pid == 0:
        os._exit(wrong(1))
    assert wrong(2) == 0  # both at the same time
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_host_that_dies_leaves_no_process(endless: Path) -> None:
    code = f"""
import os, threading, time, torch, cleave
model = cleave.load({str(endless)!r}, sandbox=True)
threading.Thread(target=lambda: model(torch.ones(1, 4)), daemon=True).start()
time.sleep(0.5)
print("here", flush=True)
time.sleep(60)
"""
    host = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert host.stdout
    assert host.stdout.readline() == b"here\n"
    left = descendants(host.pid)
    assert len(left) == 2
    host.kill()
    host.wait()
    host.stdout.close()
    for _ in range(100):
        if not any(Path(f"/proc/{pid}").exists() for pid in left):
            return
        time.sleep(0.1)
    raise AssertionError("processes are left")


# Programs in the place of the real one, as a file would have it behave that has taken it over.
LIARS = {
    "os.write(0, b'\\xff' * 32)": "the sandbox answers nonsense: status -1 with a message of",
    "os.write(0, bytes(12) + b'\\xff' * 20)": "the sandbox answers nonsense: 4294967295 numbers and",
    "os.write(0, bytes(32))": "the process of the sandbox ended with status 0",
    "os.write(0, bytes(31) + b'\\xff')": "the sandbox answers nonsense",
    "os.write(0, b'x')": "the process of the sandbox ended with status 0",
    "os._exit(3)": "the process of the sandbox ended with status 3",
    "os.kill(os.getpid(), 11)": "ended the process of the sandbox with SIGSEGV",
}


def test_answers_that_are_lies_are_errors(tmp_path: Path) -> None:
    path = save(nn.Linear(4, 3), (torch.randn(2, 4),), tmp_path / "m.clv")
    here = Path(cleave.__file__).parent
    shutil.copytree(
        here, tmp_path / "cleave", symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "libcleave*")
    )
    program = tmp_path / "cleave" / "cleave-torch"
    code = f"""
import cleave
for act, want in {LIARS!r}.items():
    with open({str(program)!r}, "w") as f:
        f.write("#!{sys.executable} -IS\\nimport os, socket\\n")
        f.write("socket.socket(fileno=os.dup(0)).recv(4096)\\n" + act + "\\n")
    try:
        cleave.load({str(path)!r}, sandbox=True)
        print("nothing was raised by", act)
    except cleave.CrashError as e:
        if want not in str(e):
            print(act, "->", e)
"""
    program.touch(mode=0o755)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


# ---- the command line


@pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")
def test_the_command_line_runs_a_file_in_a_sandbox(tmp_path: Path, endless: Path) -> None:
    assert COMMAND is not None
    x = torch.randn(2, 3, 16, 16)
    path = save(images(), (x,), tmp_path / "m.clv")
    plain, boxed = tmp_path / "plain.safetensors", tmp_path / "boxed.safetensors"
    base = [COMMAND, "run", str(path), "--fill", "random", "--seed", "4"]
    subprocess.run([*base, "-o", str(plain)], check=True, capture_output=True)
    done = subprocess.run(
        [*base, "--sandbox", "--compare", str(plain), "-o", str(boxed)], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "bit for bit" in done.stderr
    slow = [COMMAND, "run", str(endless), "--fill", "ones", "--sandbox", "--timeout", "1"]
    done = subprocess.run(slow, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "node sum (aten::sum) in inner: it takes longer than the 1 s" in done.stderr
