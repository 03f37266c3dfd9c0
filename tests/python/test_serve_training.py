"""Training over the network: sessions of `cleave serve --state`, and their clients."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from crafted import rewrite
from serving import NEEDS_SERVER, Server, serving

import cleave
from cleave.errors import ArgumentError, InputError, RemoteError

pytestmark = NEEDS_SERVER

STEPS = 10
THREADS = ("--threads", torch.get_num_threads())  # sums of BatchNorm depend on how many there are


class Net(torch.nn.Module):
    """A prefix, and a suffix with statistics that its forward changes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(6, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.last = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(torch.tanh(self.first(x)))))


Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


def split_net() -> cleave.SplitRuntime:
    torch.manual_seed(1)
    spec = cleave.SplitSpec(boundary="after:first", trainable=True)
    return cleave.prepare_split(Net().train(), example_inputs=torch.randn(8, 6), split=spec)


def batch(i: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(i)
    return torch.randn(8, 6, generator=made), torch.randint(0, 4, (8,), generator=made)


def save(folder: Path, optimizer: str) -> Path:
    """The file that trains: train.clv."""
    runtime = split_net()
    made = OPTIMIZERS[optimizer](runtime.parameters("suffix"))
    return Path(runtime.save_trainer(str(folder / "train.clv"), batch(0)[1], optimizer=made))


class Here:
    """Prefix and suffix in this process: what training over the network must equal, bit for bit."""

    def __init__(self, optimizer: str) -> None:
        self.runtime = split_net()
        self.mine = OPTIMIZERS[optimizer](self.runtime.parameters("prefix"))
        self.theirs = OPTIMIZERS[optimizer](self.runtime.parameters("suffix"))

    def step(self, i: int) -> torch.Tensor:
        x, y = batch(i)
        boundary = self.runtime.run_training_prefix(x)
        loss, gradients = self.runtime.train_suffix(boundary, y, optimizer=self.theirs)
        self.runtime.backward_prefix(boundary, gradients, optimizer=self.mine)
        return loss


def patiently(ask: Callable[[], Any]) -> Any:
    """Asks until the server, which is started again and again, has answered."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return ask()
        except RemoteError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


class Prefix:
    """The prefix in this process; the suffix is wherever `train` goes."""

    def __init__(self, optimizer: str) -> None:
        self.runtime = split_net()
        self.mine = OPTIMIZERS[optimizer](self.runtime.parameters("prefix"))

    def step(self, i: int, train: Callable[[Any, Any], tuple[torch.Tensor, Any]]) -> torch.Tensor:
        x, y = batch(i)
        boundary = self.runtime.run_training_prefix(x)
        loss, gradients = patiently(lambda: train(boundary, y))
        self.runtime.backward_prefix(boundary, gradients, optimizer=self.mine)
        return loss


def same(there: dict[str, torch.Tensor], runtime: cleave.SplitRuntime) -> None:
    """The weights of a session are those of a suffix here."""
    here = runtime.state("suffix")
    assert there
    for name, t in there.items():
        assert torch.equal(t, here[name].detach()), name


def alike(a: cleave.SplitRuntime, b: cleave.SplitRuntime) -> None:
    for name, t in a.state("prefix").items():
        assert torch.equal(t, b.state("prefix")[name]), name


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save(tmp_path_factory.mktemp(name), name) for name in OPTIMIZERS}


@contextlib.contextmanager
def trains(file: Path, folder: Path, *options: object) -> Iterator[Server]:
    with serving(file, "--state", folder / "state", *THREADS, *options, log=folder / "log") as s:
        yield s


def url_of(s: Server) -> str:
    return f"http://{s.url}/train"


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_training_over_the_network_has_the_bits_of_training_in_one_process(
    files: dict[str, Path], tmp_path: Path, optimizer: str
) -> None:
    here, prefix = Here(optimizer), Prefix(optimizer)
    with trains(files[optimizer], tmp_path) as s:
        there = cleave.connect(url_of(s))
        for i in range(STEPS):
            assert torch.equal(prefix.step(i, there.train_suffix), here.step(i))
        assert there.session.steps == STEPS
        same(there.session.weights(), here.runtime)
    alike(prefix.runtime, here.runtime)


def test_a_split_trains_with_its_suffix_on_a_server(files: dict[str, Path], tmp_path: Path) -> None:
    here, prefix = Here("sgd"), Prefix("sgd")
    with trains(files["sgd"], tmp_path) as s:
        both = prefix.runtime.remote(url_of(s))
        for i in range(3):
            assert torch.equal(prefix.step(i, both.train_suffix), here.step(i))
        assert both.times is not None
        assert both.times.tries == 1
    alike(prefix.runtime, here.runtime)


def test_gradients_of_several_steps_add_up_before_the_optimizer_steps(files: dict[str, Path], tmp_path: Path) -> None:
    runtime, trainer = split_net(), cleave.load_trainer(files["adam"])
    with trains(files["adam"], tmp_path) as s:
        session = cleave.connect(url_of(s)).open_session(accumulate=3)
        for i in range(7):
            x, y = batch(i)
            boundary = runtime.run_training_prefix(x)
            loss, gradients = session.train_suffix(boundary, y)
            want, other = trainer.accumulate(boundary, y)
            if i % 3 == 2:
                trainer.apply()
            assert torch.equal(loss, want)
            for label, gradient in other.items():
                assert gradient is None or torch.equal(gradients[label], gradient)
        assert session.state() == trainer.state()


# ---- lost answers


class Proxy:
    """Passes bytes on, and loses answers: `lose` says which requests to /train never hear anything."""

    def __init__(self, port: int, lose: Callable[[int], bool]) -> None:
        self.target, self.lose, self.trained = port, lose, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError), link, socket.create_connection(("127.0.0.1", self.target)) as there:
            while True:
                request = read_message(link)
                if not request:
                    return
                there.sendall(request)
                answer = read_message(there)
                if not answer:
                    return
                if request.startswith(b"POST") and b"/train HTTP" in request.split(b"\r\n", 1)[0]:
                    self.trained += 1
                    if self.lose(self.trained):
                        half = len(answer) // 2 if self.trained % 2 else 0
                        link.sendall(answer[:half])  # the server has stepped: nothing, or a part, comes back
                        return
                link.sendall(answer)

    def close(self) -> None:
        self.listener.close()


def read_message(link: socket.socket) -> bytes:
    """One request or answer that has a length."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = link.recv(65536)
        if not more:
            return b""
        data += more
    head, body = data.split(b"\r\n\r\n", 1)
    length = next((int(f[15:]) for f in head.lower().split(b"\r\n") if f.startswith(b"content-length:")), 0)
    while len(body) < length:
        more = link.recv(65536)
        if not more:
            return b""
        body += more
    return head + b"\r\n\r\n" + body


@pytest.mark.parametrize("retries", [0, 3])
def test_a_lost_answer_is_asked_for_again_and_steps_nothing_twice(
    files: dict[str, Path], tmp_path: Path, retries: int
) -> None:
    here, prefix = Here("adam"), Prefix("adam")
    with trains(files["adam"], tmp_path) as s:
        proxy = Proxy(s.port, lambda n: n % 3 != 0)
        there = cleave.connect(f"http://127.0.0.1:{proxy.port}/train", retries=retries)
        for i in range(STEPS):
            assert torch.equal(prefix.step(i, there.train_suffix), here.step(i))
        assert proxy.trained > STEPS
        same(there.session.weights(), here.runtime)
        _, _, text = s.ask("GET", "/metrics")
        assert f'cleave_training_steps_total{{model="train",version="1"}} {STEPS}\n'.encode() in text
        assert b"cleave_sessions 1\n" in text
        proxy.close()


# ---- a server that dies


def train_through_kills(files: dict[str, Path], folder: Path, wanted: int) -> tuple[int, int]:
    """Trains while the server is killed again and again, as is done here: steps, and how many were not the same."""
    here, prefix = Here("adamw"), Prefix("adamw")
    chance, killed, over = random.Random(7), [0], threading.Event()
    proxy = Proxy(0, lambda _: False)  # one address for all servers
    there = cleave.connect(f"http://127.0.0.1:{proxy.port}/train", lazy=True, retries=0, timeout=20)

    def keep_killing() -> None:
        while not over.is_set():
            with trains(files["adamw"], folder) as s:
                proxy.target = s.port
                if over.wait(chance.uniform(0.05, 0.6) if killed[0] < wanted else 600):
                    return
                s.process.send_signal(signal.SIGKILL)
                s.process.wait()
                killed[0] += 1

    thread = threading.Thread(target=keep_killing)
    thread.start()
    try:
        i = lost = 0
        while killed[0] < wanted or i < STEPS:
            lost += not torch.equal(prefix.step(i, there.train_suffix), here.step(i))
            i += 1
        same(patiently(lambda: there.session.weights()), here.runtime)
        alike(prefix.runtime, here.runtime)
        return i, lost
    finally:
        over.set()
        thread.join()
        proxy.close()


def test_after_kill_9_a_session_goes_on_where_it_was(files: dict[str, Path], tmp_path: Path) -> None:
    assert train_through_kills(files, tmp_path, 4)[1] == 0


@pytest.mark.slow
def test_a_hundred_kills_lose_no_step(files: dict[str, Path], tmp_path: Path) -> None:
    assert train_through_kills(files, tmp_path, 100)[1] == 0


# ---- several clients


def shared_run(files: dict[str, Path], folder: Path, turns: list[list[int]]) -> tuple[dict[str, torch.Tensor], Any]:
    """Three members train one suffix; in each round they come in the order that `turns` says."""
    folder.mkdir()
    runtime = split_net()
    answers = []
    with trains(files["sgd"], folder) as s:
        there = cleave.connect(url_of(s))
        names = ["a", "b", "c"]
        sessions = [there.open_session("all", member=name, accumulate=3) for name in names]
        for number, turn in enumerate(turns):
            found = {}
            for who in turn:
                x, y = batch(10 * number + who)
                loss, gradients = sessions[who].train_suffix(runtime.run_training_prefix(x), y)
                found[who] = (loss, gradients)
            answers.append(found)
        assert sessions[0].steps == len(turns)
        return sessions[0].weights(), answers


def test_clients_that_share_a_suffix_get_the_same_bits_in_any_order(files: dict[str, Path], tmp_path: Path) -> None:
    weights, answers = shared_run(files, tmp_path / "one", [[0, 1, 2]] * 3)
    others, again = shared_run(files, tmp_path / "two", [[2, 0, 1], [1, 2, 0], [2, 1, 0]])
    for name, t in weights.items():
        assert torch.equal(t, others[name]), name
    for one, two in zip(answers, again, strict=True):
        for who in range(3):
            assert torch.equal(one[who][0], two[who][0])
            for label, gradient in one[who][1].items():
                assert gradient is None or torch.equal(gradient, two[who][1][label])
    runtime, trainer = split_net(), cleave.load_trainer(files["sgd"])
    for number in range(3):
        for who in range(3):
            x, y = batch(10 * number + who)
            trainer.accumulate(runtime.run_training_prefix(x), y)
        trainer.apply()
    for name, t in cleave.BoundaryPayload.from_bytes(trainer.state()).tensors.items():
        if name.startswith("model."):
            assert torch.equal(weights[name.removeprefix("model.")], t), name


def test_a_member_waits_for_the_others_only_with_its_next_step(files: dict[str, Path], tmp_path: Path) -> None:
    runtime = split_net()
    with trains(files["sgd"], tmp_path) as s:
        there = cleave.connect(url_of(s), timeout=30)
        a, b = (there.open_session("pair", member=m, accumulate=2) for m in ("a", "b"))
        with pytest.raises(InputError, match="has its 2 members"):
            there.open_session("pair", member="c", accumulate=2)
        boundary, y = runtime.run_training_prefix(batch(0)[0]), batch(0)[1]
        a.train_suffix(boundary, y)
        late: list[Any] = []
        thread = threading.Thread(target=lambda: late.append(a.train_suffix(boundary, y)))
        thread.start()
        time.sleep(0.3)
        assert not late
        b.train_suffix(boundary, y)
        thread.join(30)
        assert late


def test_members_may_open_their_session_at_the_same_time(files: dict[str, Path], tmp_path: Path) -> None:
    members = 4
    with trains(files["sgd"], tmp_path, "--workers", members) as s:
        for i in range(20):
            together, opened = threading.Barrier(members), []

            def join(who: int, i: int = i, together: threading.Barrier = together, opened: list[str] = opened) -> None:
                there = cleave.connect(url_of(s))
                together.wait()
                opened.append(there.open_session(f"all-{i}", member=str(who), accumulate=members).id)

            threads = [threading.Thread(target=join, args=(who,)) for who in range(members)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert opened == [f"all-{i}"] * members
            cleave.connect(url_of(s)).open_session(f"all-{i}", member="0", accumulate=members).end()


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_clients_share_a_suffix_that_draws_no_random_numbers(tmp_path: Path, rate: float) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(rate), torch.nn.Linear(8, 4))
    spec = cleave.SplitSpec(boundary="after:0", trainable=True)
    runtime = cleave.prepare_split(model.train(), example_inputs=batch(0)[0], split=spec)
    sgd = torch.optim.SGD(runtime.parameters("suffix"), lr=0.1)
    file = runtime.save_trainer(str(tmp_path / "train.clv"), batch(0)[1], optimizer=sgd)
    with trains(Path(file), tmp_path) as s:
        there = cleave.connect(url_of(s))
        if rate:
            with pytest.raises(InputError, match="several clients cannot share"):
                there.open_session("pair", member="a", accumulate=2)
            return
        for name in ("a", "b"):
            session = there.open_session("pair", member=name, accumulate=2)
            session.train_suffix(runtime.run_training_prefix(batch(0)[0]), batch(0)[1])
        assert session.steps == 1


# ---- what does not fit


def two_parts(boundary: bytes, targets: bytes, session: str, step: int) -> tuple[bytes, dict[str, str]]:
    return boundary + targets, {
        "Content-Type": "application/x-safetensors",
        "Cleave-Session": session,
        "Cleave-Step": str(step),
        "Cleave-Boundary-Length": str(len(boundary)),
    }


def good_parts(i: int, runtime: cleave.SplitRuntime) -> tuple[bytes, bytes]:
    from safetensors.torch import save as pack

    x, y = batch(i)
    return runtime.run_training_prefix(x).to_bytes(), pack({"targets.0": y})


def new_session(s: Server, **wish: object) -> str:
    status, said = s.json("POST", "/v2/models/train/sessions", wish)
    assert status == 200, said
    assert isinstance(said, dict)
    return str(said["id"])


def test_only_the_next_step_and_the_last_one_are_taken(files: dict[str, Path], tmp_path: Path) -> None:
    runtime = split_net()
    with trains(files["sgd"], tmp_path) as s:
        session = new_session(s)

        def send(i: int, step: int) -> tuple[int, bytes]:
            status, _, answer = s.ask(
                "POST", "/v2/models/train/train", *two_parts(*good_parts(i, runtime), session, step)
            )
            return status, answer

        assert len(session) == 32
        assert send(0, 1)[0] == 200
        status, second = send(1, 2)
        assert status == 200
        assert send(1, 2) == (200, second)
        for step in (1, 4, 9):
            status, text = send(1, step)
            assert (status, json.loads(text)["expected"]) == (409, 3)
        status, text = send(2, 2)
        assert (status, json.loads(text)["expected"]) == (409, 3)
        assert b"another body" in text
        assert send(2, 3)[0] == 200
        status, said = s.json("GET", f"/v2/models/train/sessions/{session}")
        assert isinstance(said, dict)
        assert (status, said["steps"], said["mode"]) == (200, 3, "own")
        assert s.ask("DELETE", f"/v2/models/train/sessions/{session}")[0] == 200
        assert send(3, 4)[0] == 404
        assert not list((tmp_path / "state").glob("*.session"))


def test_a_session_belongs_to_the_token_that_made_it(files: dict[str, Path], tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(hashlib.sha256(t).hexdigest() + "\n" for t in (b"mine", b"theirs")))
    runtime = split_net()
    with trains(files["sgd"], tmp_path, "--tokens", tokens) as s:
        mine, theirs = (cleave.connect(url_of(s), token=t) for t in ("mine", "theirs"))
        boundary, y = runtime.run_training_prefix(batch(0)[0]), batch(0)[1]
        mine.train_suffix(boundary, y)
        session = mine.session.id
        with pytest.raises(ArgumentError, match="403"):
            theirs.open_session(session)
        other = {"Authorization": "Bearer theirs"}
        path = f"/v2/models/train/sessions/{session}"
        body, fields = two_parts(*good_parts(1, runtime), session, 2)
        assert s.ask("POST", "/v2/models/train/train", body, {**fields, **other})[0] == 403
        for method, where in (("GET", path), ("DELETE", path), ("GET", path + "/state"), ("POST", path + "/tied")):
            assert s.ask(method, where, headers=other)[0] == 403, where
        assert s.ask("GET", path)[0] == 401
        mine.train_suffix(boundary, y)
        shared = mine.open_session("ours", member="a", accumulate=2)
        theirs.open_session("ours", member="b", accumulate=2).train_suffix(boundary, y)
        shared.train_suffix(boundary, y)
        with pytest.raises(ArgumentError, match="403"):
            theirs.open_session("ours", member="a", accumulate=2)


def test_hostile_bodies_leave_the_session_as_it_was(files: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import save as pack

    runtime = split_net()
    chance = random.Random(3)
    boundary, targets = good_parts(0, runtime)
    too_large = pack({"targets.0": torch.full((8,), 99)})
    wrong: list[tuple[bytes, bytes]] = [
        (boundary, too_large),
        (boundary, b""),
        (boundary, pack({"other": batch(0)[1]})),
        (boundary, pack({"targets.0": batch(0)[1], "targets.1": batch(0)[1]})),
        (boundary, pack({"targets.0": torch.zeros(3, dtype=torch.int64)})),
        (boundary, struct.pack("<Q", 1 << 62) + b"{}"),
        (boundary, targets[:-4]),
        (boundary[: len(boundary) // 2], targets),
        (struct.pack("<Q", (1 << 64) - 1) + boundary[8:], targets),
        (b"", targets),
        (runtime.run_prefix(batch(0)[0]).to_bytes(), targets),
    ]
    for _ in range(40):
        damaged = bytearray(boundary)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        wrong.append((bytes(damaged), targets))
    prefix, here = Prefix("sgd"), Here("sgd")
    with trains(files["sgd"], tmp_path) as s:
        there = cleave.connect(url_of(s))
        assert torch.equal(prefix.step(0, there.train_suffix), here.step(0))
        for one, two in wrong:
            body, fields = two_parts(one, two, there.session.id, 2)
            status, _, text = s.ask("POST", "/v2/models/train/train", body, fields)
            assert 400 <= status < 500, text
            if two == too_large:
                assert b"Target 99 is out of bounds" in text, text
        body, fields = two_parts(boundary, targets, there.session.id, 2)
        for name, value in (
            ("Cleave-Boundary-Length", str(1 << 60)),
            ("Cleave-Boundary-Length", "-1"),
            ("Cleave-Step", "x"),
            ("Cleave-Step", "0"),
            ("Cleave-Member", "7"),
            ("Cleave-Session", "../../etc/passwd"),
            ("Cleave-Session", "a" * 65),
        ):
            assert 400 <= s.ask("POST", "/v2/models/train/train", body, {**fields, name: value})[0] < 500, (name, value)
        for wish in (
            {"id": "../x"},
            {"id": ""},
            {"mode": "both"},
            {"accumulate": 0},
            {"mode": "shared"},
            {"seed": "x"},
        ):
            assert s.json("POST", "/v2/models/train/sessions", wish)[0] == 400, wish
        assert s.ask("POST", "/v2/models/train/sessions", b"[" * 100000)[0] == 400
        for i in range(1, 4):
            assert torch.equal(prefix.step(i, there.train_suffix), here.step(i))
        same(there.session.weights(), here.runtime)


def test_a_step_that_cannot_be_written_is_not_made_and_can_be_sent_again(
    files: dict[str, Path], tmp_path: Path
) -> None:
    prefix, here = Prefix("adam"), Here("adam")
    with trains(files["adam"], tmp_path) as s:
        there = cleave.connect(url_of(s))
        assert torch.equal(prefix.step(0, there.train_suffix), here.step(0))
        state = tmp_path / "state"
        state.rename(tmp_path / "away")
        body, fields = two_parts(*good_parts(5, prefix.runtime), there.session.id, 2)
        for _ in range(2):
            status, _, text = s.ask("POST", "/v2/models/train/train", body, fields)
            assert status in (500, 503), text
            assert str(tmp_path).encode() not in text
        (tmp_path / "away").rename(state)
        for i in range(1, 4):
            assert torch.equal(prefix.step(i, there.train_suffix), here.step(i))
        same(there.session.weights(), here.runtime)


def test_quotas_bound_what_sessions_take(files: dict[str, Path], tmp_path: Path) -> None:
    options = ["--max-sessions", "2", "--session-idle", "2"]
    with trains(files["sgd"], tmp_path, *options) as s:
        first, _ = new_session(s), new_session(s)
        assert s.json("POST", "/v2/models/train/sessions", {})[0] == 429
        deadline = time.monotonic() + 30
        while list((tmp_path / "state").glob("*.session")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert s.ask("GET", f"/v2/models/train/sessions/{first}")[0] == 404
        new_session(s, id=first)
    (tmp_path / "small").mkdir()
    with trains(files["sgd"], tmp_path / "small", "--max-session", "1000") as s:
        status, said = s.json("POST", "/v2/models/train/sessions", {})
        assert status == 413, said


def test_a_session_that_was_away_for_long_has_time_to_come_back(files: dict[str, Path], tmp_path: Path) -> None:
    with trains(files["sgd"], tmp_path) as s:
        new_session(s, id="mine")
    file = tmp_path / "state" / "mine.session"
    for year in (1971, 2200):  # the server was off, or its clock was wrong then
        os.utime(file, ((year - 1970) * 365 * 86400,) * 2)
        with trains(files["sgd"], tmp_path, "--session-idle", "20") as s:
            time.sleep(1)
            assert s.ask("GET", "/v2/models/train/sessions/mine/state")[0] == 200
    os.utime(file, (0, 0))
    with trains(files["sgd"], tmp_path, "--session-idle", "2"):
        deadline = time.monotonic() + 30
        while file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_sessions_that_do_not_fit_into_memory_wait_on_disk_and_go_on_bit_for_bit(
    files: dict[str, Path], tmp_path: Path
) -> None:
    with trains(files["adam"], tmp_path, "--session-memory", "1") as s:
        here, prefixes = [Here("adam") for _ in range(3)], [Prefix("adam") for _ in range(3)]
        there = [cleave.connect(url_of(s)) for _ in range(3)]
        for i in range(4):
            for h, p, t in zip(here, prefixes, there, strict=True):
                assert torch.equal(p.step(i, t.train_suffix), h.step(i))
                text = s.ask("GET", "/metrics")[2].decode().splitlines()
                assert "cleave_sessions_in_memory 1" in text
        assert "cleave_sessions 3" in text
        for h, t in zip(here, there, strict=True):
            same(t.session.weights(), h.runtime)


def resident(s: Server) -> int:
    with open(f"/proc/{s.process.pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) * 1024


def test_a_file_that_trains_is_in_memory_once_until_a_session_changes_it(tmp_path: Path) -> None:
    memory = []
    for width in (64, 4096):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(6, 2048), torch.nn.Linear(2048, width))
        spec = cleave.SplitSpec(boundary="after:0", trainable=True)
        runtime = cleave.prepare_split(net.train(), example_inputs=batch(0)[0], split=spec)
        sgd = torch.optim.SGD(runtime.parameters("suffix"), lr=0.1)
        file = runtime.save_trainer(str(tmp_path / f"{width}.clv"), batch(0)[1], optimizer=sgd)
        (tmp_path / str(width)).mkdir()
        with trains(Path(file), tmp_path / str(width)) as s:
            memory.append(resident(s))
    assert memory[1] - memory[0] < 1.5 * Path(file).stat().st_size


class Deep(torch.nn.Module):
    """A suffix whose step takes a second or more where the batch is large."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(256, 256)
        self.rest = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(60)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x))


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_a_step_that_runs_when_the_server_stops_is_cut_short_and_not_made(tmp_path: Path, when: str) -> None:
    spec = cleave.SplitSpec(boundary="after:first", trainable=True, dynamic_batch=(2, 4096))
    x, y = torch.randn(4096, 256), torch.randint(0, 256, (4096,))
    runtime = cleave.prepare_split(Deep().train(), example_inputs=torch.randn(4, 256), split=spec)
    made = torch.optim.SGD(runtime.parameters("suffix"), lr=0.1)
    file = Path(runtime.save_trainer(str(tmp_path / "train.clv"), y[:4], optimizer=made))
    boundary = runtime.run_training_prefix(x[:4])
    trainer = cleave.load_trainer(file, unproven=True)
    whole = runtime.run_training_prefix(x)
    begin = time.monotonic()
    trainer.train_suffix(whole, y)
    takes = time.monotonic() - begin
    with trains(file, tmp_path, "--unproven", "--drain-timeout", "0") as s:
        there = cleave.connect(url_of(s), retries=0)
        there.train_suffix(boundary, y[:4])
        name = there.session.id
        failed: list[BaseException] = []

        def step() -> None:
            try:
                there.train_suffix(whole, y)
            except RemoteError as e:
                failed.append(e)

        thread = threading.Thread(target=step)
        thread.start()
        time.sleep(takes * (0.15 if when == "forward" else 0.6))
        assert s.stop() == 0
        thread.join()
        assert failed
        assert f"a step of session {name} is cut short: it was not made" in s.log.read_text()
    with trains(file, tmp_path, "--unproven") as s:
        assert s.json("GET", f"/v2/models/train/sessions/{name}")[1]["members"][0]["last"] == 1  # type: ignore[index]


def test_a_damaged_session_is_left_alone_and_the_others_go_on(files: dict[str, Path], tmp_path: Path) -> None:
    with trains(files["sgd"], tmp_path) as s:
        for name in ("good", "bad"):
            new_session(s, id=name)
        state = tmp_path / "state"
        with pytest.raises(AssertionError, match="state of another server"), trains(files["sgd"], tmp_path):
            pass
    data = bytearray((state / "bad.session").read_bytes())
    data[12] ^= 1
    (state / "bad.session").write_bytes(data)
    (state / "half.session.0.tmp").write_bytes(b"left by a server that was killed")
    with trains(files["sgd"], tmp_path) as s:
        assert s.ask("GET", "/v2/models/train/sessions/good")[0] == 200
        assert s.ask("GET", "/v2/models/train/sessions/bad")[0] == 404
        assert "session bad cannot be taken up" in (tmp_path / "log").read_text()
    assert (state / "bad.session").read_bytes() == data
    assert not list(state.glob("*.tmp"))


def test_models_that_train_are_no_models_to_run_and_the_other_way_round(files: dict[str, Path], tmp_path: Path) -> None:
    from serving import save_net

    save_net(tmp_path)
    with trains(files["sgd"], tmp_path, tmp_path / "net.clv") as s:
        assert s.json("GET", "/v2/models/train")[1]["parameters"]["part"] == "training"  # type: ignore[index]
        status, said = s.json("POST", "/v2/models/train/infer", {"inputs": []})
        assert (status, "trains" in str(said)) == (400, True)
        status, said = s.json("POST", "/v2/models/net/sessions", {})
        assert (status, "does not train" in str(said)) == (400, True)
    with serving(tmp_path / "net.clv", log=tmp_path / "log2") as s:
        assert s.json("POST", "/v2/models/net/sessions", {})[0] == 501
    with pytest.raises(AssertionError, match="--state"), serving(files["sgd"], log=tmp_path / "log3"):
        pass
    native = ["--engine", "native"]
    with pytest.raises(AssertionError, match="training needs libtorch"), trains(files["sgd"], tmp_path, *native):
        pass


def test_a_file_that_nobody_vouches_for_does_not_train(files: dict[str, Path], tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.clv"
    stranger.write_bytes(files["sgd"].read_bytes())
    rewrite(stranger, lambda meta: meta.pop("cleave.seal") and None)
    with pytest.raises(AssertionError, match="nothing trains there"), trains(stranger, tmp_path):
        pass
    with trains(stranger, tmp_path, "--no-sandbox"):
        pass


class Tied(torch.nn.Module):
    """The embedding is the head's weight too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(11, 8)
        self.mix = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.embed(tokens))))


def test_weights_of_both_halves_are_stepped_there_with_their_whole_gradient_and_once(tmp_path: Path) -> None:
    def split() -> cleave.SplitRuntime:
        spec = cleave.SplitSpec(boundary="after:embed", trainable=True)
        return cleave.prepare_split(Tied().train(), example_inputs=torch.zeros(6, dtype=torch.int64), split=spec)

    saved = split()
    sgd = torch.optim.SGD(saved.parameters("suffix"), lr=0.1)
    file = saved.save_trainer(str(tmp_path / "train.clv"), torch.zeros(6, dtype=torch.int64), optimizer=sgd)
    trainer, here, there = cleave.load_trainer(file), split(), split()
    with trains(Path(file), tmp_path) as s:
        session = cleave.connect(url_of(s)).session
        for i in range(4):
            tokens = torch.arange(6) + i
            ends = []
            for runtime, suffix in ((here, trainer), (there, session)):
                head = torch.optim.SGD(runtime.parameters("prefix"), lr=0.1)
                boundary = runtime.run_training_prefix(tokens)
                loss, gradients = suffix.train_suffix(boundary, tokens)
                whole = runtime.backward_prefix(boundary, gradients, optimizer=head)
                assert whole
                if suffix is session and i == 2:
                    with pytest.raises(InputError, match="400"):
                        session.train_suffix(boundary, tokens)  # a step of shared parameters is due
                suffix.apply_tied(whole)
                if suffix is session:
                    session.apply_tied(whole)  # again: the answer was lost
                ends.append(loss)
            assert torch.equal(*ends)
        assert session.state() == trainer.state()


def test_a_program_without_libtorch_trains_a_suffix_too(files: dict[str, Path], tmp_path: Path) -> None:
    library = ctypes.CDLL(str(Path(cleave.__file__).parent / "libcleave-core.so"))
    library.clv_last_error.restype = ctypes.c_char_p
    library.clv_remote_session_steps.restype = ctypes.c_uint64
    remote, session, loss, target, boundary, gradients, data = (ctypes.c_void_p() for _ in range(7))
    size = ctypes.c_size_t()

    def call(name: str, *arguments: object) -> None:
        assert getattr(library, name)(*arguments) == 0, library.clv_last_error()

    here, runtime = cleave.load_trainer(files["adam"]), split_net()
    with trains(files["adam"], tmp_path) as s:
        call("clv_remote_connect", url_of(s).encode(), None, ctypes.byref(remote))
        call("clv_remote_session_open", remote, None, ctypes.byref(session))
        for i in range(3):
            x, y = batch(i)
            made = runtime.run_training_prefix(x)
            want, expected = here.train_suffix(made, y)
            message = made.to_bytes()
            call("clv_boundary_unpack", message, ctypes.c_size_t(len(message)), ctypes.byref(boundary))
            shape = (ctypes.c_int64 * 1)(8)
            call("clv_tensor_from_data", ctypes.c_void_p(y.data_ptr()), b"i64", 1, shape, ctypes.byref(target))
            targets = (ctypes.c_void_p * 1)(target.value)
            out = (ctypes.byref(loss), ctypes.byref(gradients), None)
            call("clv_remote_train_suffix", session, boundary, None, targets, 1, *out)
            number = torch.empty(())
            call("clv_tensor_copy_to", loss, ctypes.c_void_p(number.data_ptr()), ctypes.c_size_t(4))
            call("clv_boundary_pack", gradients, None, ctypes.byref(data), ctypes.byref(size))
            found = cleave.BoundaryPayload.from_bytes(ctypes.string_at(data, size.value)).tensors
            assert torch.equal(number, want)
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[label], expected[label]) for label in found)
            library.clv_free(data)
            for free, what in (("tensor", loss), ("tensor", target), ("boundary", boundary), ("boundary", gradients)):
                getattr(library, f"clv_{free}_free")(what)
        assert library.clv_remote_session_steps(session) == 3
        call("clv_remote_session_state", session, ctypes.byref(data), ctypes.byref(size))
        assert ctypes.string_at(data, size.value) == here.state()
        library.clv_free(data)
        call("clv_remote_session_end", session)
        call("clv_remote_session_end", session)
        library.clv_remote_session_free(session)
        library.clv_remote_free(remote)
        assert not list((tmp_path / "state").glob("*.session"))
