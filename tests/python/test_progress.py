"""Bars: when there is one, what it says, and that nothing is left of it."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import cleave
from cleave import progress

pty = pytest.importorskip("pty")

PROGRAM = """
import sys, threading, time
import torch, cleave
from torch import nn

class Slow(nn.Module):
    def __init__(self, seconds, fails=False):
        super().__init__()
        self.lin, self.seconds, self.fails = nn.Linear(4, 4), seconds, fails
    def forward(self, x):
        time.sleep(self.seconds)
        COUNTS.append(threading.active_count())
        if self.fails:
            raise ValueError("on purpose")
        return self.lin(x).relu()

COUNTS = []
cleave.progress.DELAY = 0.3
spec = cleave.SplitSpec(boundary="50%")
"""


def run(code: str, terminal: bool, **environment: str) -> tuple[int, str]:
    """Runs a program with stderr on a terminal or on a pipe: exit status and what it wrote there."""
    env = {k: v for k, v in os.environ.items() if k not in ("CLEAVE_PROGRESS", "CLEAVE_LOG")} | environment
    env |= {"PYTHONIOENCODING": "utf-8", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM + textwrap.dedent(code)]
    if not terminal:
        done = subprocess.run(command, env=env, stderr=subprocess.PIPE, timeout=120, check=False)
        return done.returncode, done.stderr.decode()
    master, slave = pty.openpty()
    process = subprocess.Popen(command, env=env, stderr=slave)
    os.close(slave)
    written = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        written += piece
    os.close(master)
    return process.wait(120), written.decode()


def screen(text: str) -> list[str]:
    """What a person sees at the end."""
    lines = []
    for part in text.replace("\r\n", "\n").split("\n"):
        cells: list[str] = []
        at = 0
        for c in part:
            if c == "\r":
                at = 0
                continue
            cells[at : at + 1] = [c]
            at += 1
        lines.append("".join(cells).rstrip())
    return [line for line in lines if line]


SPLIT = "cleave.prepare_split(Slow({}), example_inputs=torch.randn(2, 4), split=spec)\n"


@pytest.mark.integration
def test_a_long_preparation_shows_a_bar_on_a_terminal_and_wipes_it_out() -> None:
    code, text = run(SPLIT.format(0.1) + "assert set(COUNTS) == {1}, COUNTS", terminal=True)
    assert code == 0, text
    assert "preparing Slow: " in text
    assert "recording B=" in text
    assert "checking replay" in text
    assert " steps [00:0" in text
    assert "capturing Slow" not in text, "nested preparations have one bar"
    assert screen(text) == []


@pytest.mark.integration
def test_one_long_step_has_a_bar_that_moves() -> None:
    """The clock goes on while the model runs."""
    code, text = run("cleave.progress.DELAY = 0.5\ncleave.capture(Slow(1.3), torch.randn(2, 4))", terminal=True)
    assert code == 0, text
    assert "[00:01, recording]" in text
    assert "[00:00, recording]" in text
    assert screen(text) == []


@pytest.mark.integration
def test_a_quick_preparation_shows_nothing() -> None:
    assert run("cleave.progress.DELAY = 1.0\n" + SPLIT.format(0), terminal=True) == (0, "")


@pytest.mark.integration
def test_an_error_leaves_no_bar_behind() -> None:
    code, text = run("cleave.capture(Slow(0.9, fails=True), torch.randn(2, 4))", terminal=True)
    assert code == 1
    assert "recording" in text
    shown = screen(text)
    assert shown[0].startswith("Traceback")
    assert shown[-1] == "ValueError: on purpose"


@pytest.mark.integration
def test_without_a_terminal_nothing_is_written() -> None:
    assert run(SPLIT.format(0.1), terminal=False) == (0, "")


@pytest.mark.integration
def test_the_environment_turns_bars_off_and_on() -> None:
    assert run(SPLIT.format(0.1), terminal=True, CLEAVE_PROGRESS="0") == (0, "")
    code, text = run(SPLIT.format(0.1), terminal=False, CLEAVE_PROGRESS="1")
    assert code == 0
    assert "recording B=" in text


@pytest.mark.integration
def test_a_call_turns_bars_off_and_on() -> None:
    assert run("cleave.set_progress(False)\n" + SPLIT.format(0.1), terminal=True, CLEAVE_PROGRESS="1") == (0, "")
    assert "recording" in run("cleave.set_progress(True)\n" + SPLIT.format(0.1), terminal=False)[1]
    for wrong in ("yes", None, 1):
        with pytest.raises(cleave.ArgumentError, match="True, False"):
            cleave.set_progress(wrong)  # type: ignore[arg-type]


@pytest.mark.integration
def test_without_stderr_work_goes_on() -> None:
    code, _ = run("sys.stderr = None\n" + SPLIT.format(0.05), terminal=True)
    assert code == 0
    code, _ = run("cleave.set_progress(True)\nsys.stderr.close()\n" + SPLIT.format(0.1), terminal=False)
    assert code == 0


@pytest.mark.integration
def test_a_log_line_is_not_written_into_a_bar() -> None:
    code, text = run(SPLIT.format(0.1), terminal=True, CLEAVE_LOG="debug")
    assert code == 0
    assert "recording B=" in text
    assert all(line[2] == ":" and " cleave." in line for line in screen(text)), screen(text)


@pytest.mark.integration
def test_a_fork_in_the_middle_does_not_hang() -> None:
    code, text = run(
        """
        import os
        class Forks(Slow):
            def forward(self, x):
                child = os.fork()
                if child == 0:
                    with cleave.progress.task("child"):
                        cleave.progress.step("one")
                    os._exit(7)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                return super().forward(x)
        import warnings; warnings.simplefilter("ignore")
        cleave.capture(Forks(0.2), torch.randn(2, 4))
        """,
        terminal=True,
    )
    assert code == 0, text


# ---- in this process


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.b(self.a(x).relu())
        return out


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = progress._mode
    cleave.set_progress(False)
    yield
    cleave.set_progress(before)
    assert progress._tasks == []
    assert progress._bar is None


def events(work: Any) -> list[progress.Event]:
    seen: list[progress.Event] = []
    with progress.listen(seen.append):
        work()
    return seen


def prepare() -> cleave.SplitRuntime:
    return cleave.prepare_split(Net(), example_inputs=torch.randn(2, 4), split=cleave.SplitSpec(boundary="50%"))


def test_a_listener_hears_every_step_and_the_end() -> None:
    seen = events(prepare)
    assert {e.title for e in seen} == {"preparing Net"}
    assert [e.ended for e in seen] == [False] * (len(seen) - 1) + [True]
    assert [e.done for e in seen] == list(range(len(seen)))
    assert any(e.step == "recording B=3" for e in seen)
    assert any(e.step.startswith("checking replay") for e in seen)
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(seen))


def test_a_listener_that_left_hears_nothing() -> None:
    seen = events(lambda: None)
    prepare()
    assert seen == []


def test_a_listener_that_raises_does_not_stop_the_work(caplog: pytest.LogCaptureFixture) -> None:
    def wrong(event: progress.Event) -> None:
        raise RuntimeError("broken window")

    with progress.listen(wrong):
        assert prepare().candidates
    assert "broken window" in caplog.text


def test_steps_that_are_known_are_counted() -> None:
    runtime = prepare()
    seen = events(lambda: runtime.prepare_sizes(20, 21, 22))
    assert {e.total for e in seen} == {3}
    assert [e.done for e in seen][-1] == 3
    assert {e.step for e in seen if not e.ended} >= {"B=20", "recording B=20", "B=22"}
    seen = events(lambda: cleave.validate_dynamic_batches(runtime, torch.randn(2, 4), [2, 30]))
    assert {(e.title, e.total) for e in seen} == {("comparing Net", 2)}


@pytest.mark.integration
def test_compiling_is_a_step() -> None:
    spec = cleave.SplitSpec(boundary="50%")
    x = torch.randn(2, 4)
    options = {"backend": "eager"}
    replay = cleave.compat.prepare_split_replay(Net(), example_inputs=x, split=spec, compile_options=options)
    seen = events(lambda: replay.warmup(x))
    assert {e.title for e in seen} == {"warming up Net"}
    steps = [e.step for e in seen]
    assert "compiling prefix (eager fullgraph)" in steps
    assert "compiling suffix (eager fullgraph)" in steps
    assert events(lambda: replay.replay(x)) == [], "what is compiled is not a preparation any more"


def test_two_threads_have_a_preparation_each() -> None:
    seen: list[progress.Event] = []
    models = [type(f"Net{i}", (Net,), {}) for i in range(3)]

    def work(kind: type[Net]) -> None:
        cleave.capture(kind(), torch.randn(2, 4))

    with progress.listen(seen.append):
        threads = [threading.Thread(target=work, args=(m,)) for m in models]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    for m in models:
        mine = [e for e in seen if e.title == f"capturing {m.__name__}"]
        assert [e.done for e in mine] == list(range(len(mine)))
        assert mine[-1].ended


def test_bars_of_several_threads_are_one_line_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    cleave.set_progress(True)

    def work(name: str) -> None:
        for i in range(20):
            with progress.task(f"{name} {i}"):
                for s in "abc":
                    progress.step(s)

    threads = [threading.Thread(target=work, args=(n,)) for n in ("one", "two")]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert screen(stream.getvalue()) == []
    drawn = [p.strip() for p in stream.getvalue().split("\r") if p.strip()]
    assert all(p.count(" [00:00, ") == 1 for p in drawn)


def test_the_clock_stops_when_there_is_nothing_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    cleave.set_progress(True)
    with progress.task("short"):
        assert progress._ticking
    end = time.monotonic() + 10
    while progress._ticking and time.monotonic() < end:
        time.sleep(0.02)
    assert not progress._ticking


def test_a_line_fits_its_terminal_and_says_how_far_it_is() -> None:
    event = progress.Event("preparing Net", "recording B=3", 5, 10, 75.0, False)
    assert progress.line(event, 80) == "preparing Net:  50%|█████     | 5/10 [01:15, recording B=3]"
    assert progress.line(event, 80, blocks=False) == "preparing Net:  50%|#####     | 5/10 [01:15, recording B=3]"
    assert len(progress.line(event, 20)) == 19
    assert progress.line(event._replace(total=None), 80) == "preparing Net: 5 steps [01:15, recording B=3]"
    assert "\x1b" not in progress.line(event._replace(title="\x1b[31m"), 80)
    assert progress.line(event._replace(done=12), 80).startswith("preparing Net: 100%|██████████|")


def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=None)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    cleave.set_progress("auto")


def test_a_notebook_gets_the_bar_of_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    tqdm = pytest.importorskip("tqdm.auto")
    notebook(monkeypatch)
    made: list[Any] = []
    new = tqdm.tqdm.__init__
    monkeypatch.setattr(tqdm.tqdm, "__init__", lambda self, *a, **k: (made.append(self), new(self, *a, **k))[1])
    before = threading.active_count()
    with progress.task("preparing Net", 2):
        progress.step("one")
        progress.step("two")
        assert (made[0].n, made[0].total, made[0].desc) == (1, 2, "preparing Net: ") or made[0].desc == "preparing Net"
        assert threading.active_count() == before, "captures count threads"
    assert len(made) == 1
    assert made[0].disable or made[0].pos >= 0


def test_a_notebook_without_tqdm_gets_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook(monkeypatch)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with progress.task("preparing Net"):
        progress.step("one")
    assert "preparing Net: 0 steps [00:00, one]" in sys.stderr.getvalue()  # type: ignore[attr-defined]
