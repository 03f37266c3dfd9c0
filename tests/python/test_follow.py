"""`cleave.follow` and `cleave run --follow`: calls take the fastest way over a real socket whose speed changes."""

from __future__ import annotations

import http.client
import http.server
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serving import NEEDS_SERVER, PROGRAM, Net, Server, save_net, serving

import cleave
from cleave.errors import ArgumentError, InputError

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "bench"))
from kit.throttle import Proxy

pytestmark = NEEDS_SERVER
ROWS = 256


class Narrow(torch.nn.Module):
    """Few numbers cross after `narrow`, with a fifth of the work before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide = torch.nn.Linear(256, 2048)
        self.narrow = torch.nn.Linear(2048, 8)
        self.rest = torch.nn.Sequential(
            torch.nn.Linear(8, 2048),
            torch.nn.ReLU(),
            torch.nn.Linear(2048, 2048),
            torch.nn.ReLU(),
            torch.nn.Linear(2048, 2048),
            torch.nn.ReLU(),
            torch.nn.Linear(2048, 8),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.rest(self.narrow(torch.relu(self.wide(x))))
        return y


class Quick(http.server.ThreadingHTTPServer):
    """A server that is much faster than this machine: it knows by heart what the real one answered."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.to = port
        self.known: dict[tuple[str, bytes], tuple[int, list[tuple[str, str]], bytes]] = {}
        super().__init__(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def ask(self, method: str, path: str, body: bytes, fields: dict[str, str]) -> Any:
        if (path, body) not in self.known or method == "GET":
            link = http.client.HTTPConnection("127.0.0.1", self.to, timeout=60)
            with closing(link):
                link.request(method, path, body, fields)
                got = link.getresponse()
                kept = ("content-type", "inference-header-content-length")
                heads = [(k, v) for k, v in got.getheaders() if k.lower() in kept]
                self.known[path, body] = got.status, heads, got.read()
        return self.known[path, body]


class Answer(http.server.BaseHTTPRequestHandler):
    """Passes on what Quick knows."""

    protocol_version = "HTTP/1.1"
    server: Quick

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fields = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")}
        try:
            status, heads, answer = self.server.ask(self.command, self.path, body, fields)
        except OSError:
            self.close_connection = True
            return
        self.send_response(status)
        for k, v in heads:
            self.send_header(k, v)
        self.send_header("Server-Timing", "queue;dur=0, compute;dur=0.1")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor, torch.Tensor]:
    """The model as a file, an input, and its output."""
    model, x = Narrow().eval(), torch.randn(ROWS, 256)
    file = tmp_path_factory.mktemp("narrow") / "model.clv"
    cleave.capture(model, x).save(file)
    return file, x, model(x).detach()


@pytest.fixture
def server(narrow: tuple[Path, torch.Tensor, torch.Tensor], tmp_path: Path) -> Iterator[Server]:
    with serving(narrow[0], log=tmp_path / "log") as s:
        yield s


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return float((a - b).norm() / b.norm()) < 1e-4


def until(step: Callable[[], bool], seconds: float = 15) -> bool:
    """Whether it became true before the time was over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if step():
            return True
    return False


def test_the_cut_follows_the_link_and_every_answer_is_right(
    narrow: tuple[Path, torch.Tensor, torch.Tensor], server: Server
) -> None:
    file, x, want = narrow
    with closing(Proxy(Quick(server.port).server_port)) as link:
        model = cleave.follow(file, f"http://127.0.0.1:{link.port}/model", look=0.2, away=0.1, sandbox=False)

        def goes(wanted: Callable[[cleave._follow.Way], bool]) -> bool:
            def step() -> bool:
                assert near(model(x), want)
                assert model.way is not None
                return wanted(model.way)

            return until(step)

        assert near(model(x), want)
        assert model.served == "here"
        names = [w.name for w in model.ways]
        assert names[:2] == ["here", "there"]
        assert any(w.cut is not None and w.sent_bytes < x.nbytes / 8 for w in model.ways)
        assert goes(lambda w: w.name == "there" or (w.remote and w.sent_bytes > 4096)), (model.reason, model.table())
        link.rate = 3e5
        assert goes(lambda w: w.cut is not None and w.sent_bytes < x.nbytes / 8), (model.reason, model.table())
        assert model.times is not None
        assert model.times.tries == 1
        link.rate = 1e3
        assert goes(lambda w: not w.remote), (model.reason, model.table())
        link.rate = math.inf
        assert goes(lambda w: w.remote), (model.reason, model.table())
        assert "way" in model.table()
        assert model.link.rate > 0


def test_a_server_that_is_killed_costs_no_answer_and_is_used_again_when_it_is_back(
    narrow: tuple[Path, torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    file, x, want = narrow
    with serving(file, log=tmp_path / "first") as first:
        quick = Quick(first.port)
        link = Proxy(quick.server_port)
        model = cleave.follow(file, f"http://127.0.0.1:{link.port}/model", look=0.2, away=0.1, sandbox=False)

        def step(where: str) -> bool:
            assert near(model(x), want)
            return model.served == where

        assert until(lambda: step("server")), (model.reason, model.table())
        first.process.kill()
        first.process.wait()
        quick.known.clear()
        assert until(lambda: step("here") and model.reason is not None)
    with serving(file, log=tmp_path / "second") as second:
        quick.to = second.port
        assert until(lambda: step("server")), (model.reason, model.table())
        assert model.reason is None
    link.close()


def test_a_server_that_was_never_there_leaves_the_model_here(tmp_path: Path) -> None:
    save_net(tmp_path)
    x = torch.randn(2, 4)
    model = cleave.follow(tmp_path / "net.clv", "http://127.0.0.1:9/net", away=1000, sandbox=False)
    for _ in range(3):
        assert near(model(x), Net().eval()(x))
    assert model.served == "here"
    assert "cannot reach" in (model.reason or "")
    assert all(math.isinf(w.seconds) for w in model.ways if w.remote)


def test_all_there_is_never_used_before_the_server_has_shown_the_same_weights(tmp_path: Path) -> None:
    save_net(tmp_path)
    other = Net().eval()
    with torch.no_grad():
        other.second.bias += 1
    (tmp_path / "there").mkdir()
    cleave.capture(other, (torch.randn(2, 4),), dynamic_batch=(1, 16)).save(tmp_path / "there" / "net.clv")
    with serving(tmp_path / "there" / "net.clv", log=tmp_path / "log") as s:
        model = cleave.follow(tmp_path / "net.clv", f"http://{s.url}/net", sandbox=False)
        with pytest.raises(InputError, match="409"):
            model(torch.randn(2, 4))
        with pytest.raises(ArgumentError, match="none"):
            cleave.follow(tmp_path / "net.clv", f"http://{s.url}/none", sandbox=False)(torch.randn(2, 4))


def test_all_there_is_used_only_while_the_server_is_known_to_have_the_same_weights(tmp_path: Path) -> None:
    save_net(tmp_path)
    x = torch.randn(2, 4)
    with serving(tmp_path / "net.clv", log=tmp_path / "log") as s:

        def calls(check: float, stop: Callable[[dict[str, int]], bool]) -> dict[str, int]:
            url = f"http://{s.url}/net"
            model = cleave.follow(tmp_path / "net.clv", url, look=1e-6, check=check, sandbox=False)
            ways: dict[str, int] = {}

            def step() -> bool:
                assert near(model(x), Net().eval()(x))
                ways.update({w.name: w.calls for w in model.ways})
                return stop(ways)

            assert until(step), model.table()
            return ways

        calls(60, lambda ways: ways["there"] > 0)
        ways = calls(1e-9, lambda ways: sum(ways.values()) > 30 and sum(ways.values()) > ways["here"])
        assert ways["there"] == 0


def test_ways_that_lose_something_are_taken_only_where_they_are_allowed_and_within_the_bound(tmp_path: Path) -> None:
    save_net(tmp_path)
    x = torch.randn(16, 4)
    with serving(tmp_path / "net.clv", log=tmp_path / "log") as s:

        def ways(**options: Any) -> set[str | None]:
            model = cleave.follow(tmp_path / "net.clv", f"http://{s.url}/net", sandbox=False, **options)
            assert near(model(x), Net().eval()(x))
            assert all(w.error <= options.get("max_error", 1) for w in model.ways)
            return {w.compress for w in model.ways}

        assert ways() <= {None, "zstd"}
        assert ways(compress=["q4", "int8"]) - {None} <= {"q4", "int8"}
        assert "q8" in ways(max_error=0.05)
        assert "q1" not in ways(max_error=0.001)
    with pytest.raises(ArgumentError, match="compression is one of"):
        cleave.follow(tmp_path / "net.clv", "http://127.0.0.1:9/net", compress=["jpeg"], sandbox=False)


def test_a_split_and_a_plan_can_be_followed_and_parts_cannot(tmp_path: Path) -> None:
    save_net(tmp_path)
    x = torch.randn(2, 4)
    spec = cleave.SplitSpec(boundary="after:first", dynamic_batch=(1, 16))
    split = cleave.prepare_split(Net().eval(), example_inputs=x, split=spec)
    split.save(tmp_path / "whole.clv")
    with serving(tmp_path / "whole.clv", log=tmp_path / "log") as s:
        for model in (split, cleave.load(tmp_path / "whole.clv", sandbox=False)):
            followed = cleave.follow(model, f"http://{s.url}/whole")
            for _ in range(3):
                assert near(followed(x), Net().eval()(x))
            assert followed.reason is None
            assert isinstance(repr(followed), str)
    for wrong, why in ((tmp_path / "prefix.clv", "only a whole one"), (tmp_path / "suffix.clv", "only a whole one")):
        with pytest.raises(ArgumentError, match=why):
            cleave.follow(wrong, "http://127.0.0.1:9/net", sandbox=False)
    changed = cleave.load(tmp_path / "net.clv", sandbox=False)
    changed.load_state_dict({k: v + 1 for k, v in changed.state_dict().items()})
    with pytest.raises(ArgumentError, match="other weights"):
        cleave.follow(changed, "http://127.0.0.1:9/net")
    with pytest.raises(TypeError, match="a SplitRuntime, not Net"):
        cleave.follow(Net(), "http://127.0.0.1:9/net")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["plan", "split"])
@pytest.mark.parametrize("sandbox", [None, True])
def test_what_is_followed_is_a_copy_in_memory(
    kind: str, sandbox: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is written, and steps of an optimizer do not reach it: the server has the weights of before."""
    net, x = Net().eval(), torch.randn(3, 4)
    if kind == "plan":
        model: Any = cleave.capture(net, x, dynamic_batch=(1, 16))
    else:
        spec = cleave.SplitSpec(boundary="after:first", dynamic_batch=(1, 16))
        model = cleave.prepare_split(net, example_inputs=x, split=spec)
    monkeypatch.setattr(tempfile, "mkdtemp", None)
    monkeypatch.setattr(type(model), "save", None)
    followed = cleave.follow(model, "http://127.0.0.1:9/net", away=1000, sandbox=sandbox)
    assert followed.model.sandboxed is (sandbox is True)
    want = net(x).detach()
    with torch.no_grad():
        net.second.bias += 1
    assert near(followed(x), want)
    assert near(followed.model(x), want)


def test_threads_share_a_follower(tmp_path: Path) -> None:
    save_net(tmp_path)
    inputs = [torch.randn(1 + i % 4, 4) for i in range(40)]
    with serving(tmp_path / "net.clv", log=tmp_path / "log") as s:
        model = cleave.follow(tmp_path / "net.clv", f"http://{s.url}/net", look=0.001, sandbox=False)
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(4) as pool:
            for x, y in zip(inputs, pool.map(model, inputs), strict=True):
                assert near(y, Net().eval()(x))
        assert sum(w.calls for w in model.ways) == len(inputs)


def test_cleave_run_follow_shows_the_ways_and_the_outputs(tmp_path: Path) -> None:
    save_net(tmp_path)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    base = [PROGRAM, "run", tmp_path / "net.clv", "-i", tmp_path / "x.npy", "--no-sandbox"]
    with serving(tmp_path / "net.clv", log=tmp_path / "log") as s:
        url = f"http://{s.url}/net"
        out = tmp_path / "out.safetensors"
        done = subprocess.run(
            [*base, "--remote", url, "--follow", "5", "-o", out], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "here" in done.stderr
        assert "after:" in done.stderr
        from safetensors.torch import load_file

        assert near(load_file(out)["output"], Net().eval()(torch.from_numpy(x)))
        done = subprocess.run([*base, "--follow", "5"], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "--follow is for --remote" in done.stderr


def test_the_prefix_of_a_file_has_its_suffix_on_a_server(tmp_path: Path) -> None:
    save_net(tmp_path)
    prefix = cleave.load(tmp_path / "prefix.clv", sandbox=False)
    x = torch.randn(3, 4)
    with serving(tmp_path / "suffix.clv", log=tmp_path / "log") as s:
        both = prefix.remote(f"http://{s.url}/suffix")
        assert near(both(x), Net().eval()(x))
        assert both.served == "server"
        assert both.times is not None
        with pytest.raises(InputError, match="this is the suffix"):
            cleave.load(tmp_path / "suffix.clv", sandbox=False).remote(f"http://{s.url}/suffix")
    suffix = cleave.load(tmp_path / "suffix.clv", sandbox=False)
    alone = prefix.remote("http://127.0.0.1:9/suffix", fallback=suffix.run_suffix)
    assert near(alone(x), Net().eval()(x))
    assert alone.served == "here"
    with pytest.raises(cleave.RemoteError):
        prefix.remote("http://127.0.0.1:9/suffix")(x)
