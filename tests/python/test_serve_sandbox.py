"""`cleave serve` runs a file that nobody vouches for in sandboxes, as many at a time as there are workers."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from serving import NEEDS_SERVER, infer_body, serving

import cleave

pytestmark = NEEDS_SERVER

X = np.zeros((256, 256), np.float32)


class Steps(torch.nn.Module):
    def forward(self, x):
        for _ in range(200):
            x = torch.tanh(x @ x)
        return x + 1


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("stranger") / "steps.clv"
    cleave.capture(Steps(), (torch.ones(256, 256),)).save(path)
    return path


def sandboxes(pid):
    """Processes below the server that are sandboxes."""
    parents, found = {}, []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as f:
                parents[int(name)] = int(f.read().rsplit(")", 1)[1].split()[1])
            with open(f"/proc/{name}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
        except (OSError, ValueError):
            continue
        if len(words) > 1 and words[1] == b"sandbox":
            found.append(int(name))

    def below(p):
        while p in parents and p != pid:
            p = parents[p]
        return p == pid

    return [p for p in found if below(p)]


def strangers(file, tmp_path, *options):
    """A server whose user never saved the file."""
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    return serving(file, "--log", "off", *options, log=tmp_path / "log", environment=state)


def ask_at_once(server, clients, requests):
    states = []

    def client():
        for _ in range(requests):
            status, fields, answer = server.ask("POST", "/v2/models/steps/infer", *infer_body({"x": X}))
            out = answer[int(fields.get("inference-header-content-length", 0)) :]
            states.append((status, out == (X + 1).tobytes()))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for t in threads:
        t.start()
    return threads, states


def test_a_file_that_nobody_vouches_for_says_that_it_runs_in_a_sandbox(file, tmp_path):
    with strangers(file, tmp_path) as s:
        assert s.json("GET", "/v2/models/steps")[1]["parameters"]["sandbox"] is True
        threads, states = ask_at_once(s, 2, 3)
        for t in threads:
            t.join()
        assert states == [(200, True)] * 6
        assert len(sandboxes(s.process.pid)) == 1
    with serving(file, "--log", "off", log=tmp_path / "log2") as s:
        assert s.json("GET", "/v2/models/steps")[1]["parameters"]["sandbox"] is False


def test_workers_run_in_sandboxes_of_their_own(file, tmp_path):
    with strangers(file, tmp_path, "--workers", "2") as s:
        threads, states = ask_at_once(s, 4, 8)
        for t in threads:
            t.join()
        assert states == [(200, True)] * 32
        assert len(sandboxes(s.process.pid)) == 2


def test_a_sandbox_that_ends_takes_at_most_its_own_request_with_it(file, tmp_path):
    with strangers(file, tmp_path, "--workers", "2") as s:
        threads, states = ask_at_once(s, 4, 10)
        kills = 0
        while kills < 3 and any(t.is_alive() for t in threads):
            running = sandboxes(s.process.pid)
            if len(running) == 2:
                os.kill(running[kills % 2], signal.SIGKILL)
                kills += 1
            time.sleep(0.5)
        for t in threads:
            t.join()
        assert kills
        assert len(states) == 40
        bad = [x for x in states if x != (200, True)]
        assert len(bad) <= kills
        assert {status for status, _ in bad} <= {500}
        assert s.ask("POST", "/v2/models/steps/infer", *infer_body({"x": X}))[0] == 200
