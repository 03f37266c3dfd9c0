"""`cleave serve` runs requests of several clients as one batch, where that is proven, and each gets its own rows."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
import torch
from serving import NEEDS_SERVER, SLOWNESS, infer_body, save_net, serving

import cleave

pytestmark = NEEDS_SERVER


def about(server, name):
    status, answer = server.json("GET", f"/v2/models/{name}")
    assert status == 200
    return answer["parameters"]


class Wide(torch.nn.Module):
    """Long enough that requests wait for each other; whole numbers, so that every way to compute it is the same."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.weight = torch.nn.Parameter(torch.randint(-1, 2, (256, 256)).float())

    def forward(self, x):
        for _ in range(30):
            x = torch.clamp(torch.nn.functional.linear(x, self.weight), -8, 8)
        return x


def ask_all(server, name, model, rows, clients=8, requests=12):
    """Clients at once, each with data of its own; what is wrong of their answers."""
    wrong = []

    def client(k):
        chance = np.random.default_rng(k)
        for _ in range(requests):
            x = chance.integers(-8, 9, (chance.choice(rows), 256)).astype(np.float32)
            status, got, answer = server.ask("POST", f"/v2/models/{name}/infer", *infer_body({"x": x}))
            with torch.no_grad():
                expected = model(torch.from_numpy(x)).numpy().tobytes()
            if status != 200 or answer[int(got["inference-header-content-length"]) :] != expected:
                wrong.append((k, status, answer[:200]))

    threads = [threading.Thread(target=client, args=(k,)) for k in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return wrong


@pytest.mark.parametrize("how", ["exact", "fast", "off"])
def test_clients_at_once_get_their_own_rows(tmp_path, how):
    model = Wide().eval()
    cleave.capture(model, (torch.ones(2, 256),), dynamic_batch=(1, 16)).save(tmp_path / "wide.clv")
    with serving(tmp_path / "wide.clv", "--batching", how, "--max-batch", "16", log=tmp_path / "log") as s:
        facts = about(s, "wide")
        if how == "exact" and not facts["batching"]:  # this engine computes single rows in another way
            assert facts["batching_reason"] == "in a batch rows have other bits than alone"
            how = "alone"
        assert facts["batching"] is (how in ("exact", "fast")), facts
        assert not ask_all(s, "wide", model, [1, 1, 1, 2, 4])
        stats = s.json("GET", "/v2/models/wide/stats")[1]["model_stats"][0]
        assert stats["inference_stats"]["success"]["count"] == 96
        if how == "off":
            assert facts["batching_reason"] == "batching is off"
        if facts["batching"]:
            assert 1 in facts["batching_sizes"]
            assert stats["execution_count"] < 96
        else:
            assert stats["execution_count"] == 96


def test_a_suffix_is_batched_too(tmp_path):
    model = save_net(tmp_path)
    with serving(tmp_path / "suffix.clv", log=tmp_path / "log") as s:
        facts = about(s, "suffix")
        assert facts["batching"], facts
        (label,) = [i["name"] for i in s.json("GET", "/v2/models/suffix")[1]["inputs"]]
        wrong = []

        def client(k):
            for i in range(20):
                hidden = np.full((1, 8), k * 20 + i, np.float32)
                status, got, answer = s.ask("POST", "/v2/models/suffix/infer", *infer_body({label: hidden}))
                with torch.no_grad():
                    expected = model.second(torch.relu(torch.from_numpy(hidden))).numpy().tobytes()
                if status != 200 or answer[int(got["inference-header-content-length"]) :] != expected:
                    wrong.append((k, i, status))

        threads = [threading.Thread(target=client, args=(k,)) for k in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong


def test_a_request_that_fails_fails_alone(tmp_path):
    model = Wide().eval()
    cleave.capture(model, (torch.ones(2, 256),), dynamic_batch=(1, 16)).save(tmp_path / "wide.clv")
    with serving(tmp_path / "wide.clv", log=tmp_path / "log") as s:
        states = []

        def bad():
            for _ in range(20):
                x = np.zeros((1, 255), np.float32)
                states.append(s.ask("POST", "/v2/models/wide/infer", *infer_body({"x": x}))[0])

        thread = threading.Thread(target=bad)
        thread.start()
        assert not ask_all(s, "wide", model, [1], clients=4)
        thread.join()
        assert states == [400] * 20


class Mixed(torch.nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return self.how(self, x)


MIXING = {
    "softmax over the batch": (lambda m, x: torch.softmax(x, 0), "aten::softmax.int"),
    "the sum of the batch": (lambda m, x: x - x.sum(0), "aten::sum.dim_IntList"),
    "the mean of all": (lambda m, x: x / x.mean(), "aten::mean"),
    "the largest of all": (lambda m, x: x / x.max(), "aten::max"),
    "rows by rows": (lambda m, x: x @ x.t(), "aten::t"),
    "rows by rows of matmul": (lambda m, x: torch.matmul(x.unsqueeze(1), x.t()), "aten::t"),
    "turned around": (lambda m, x: x.flip(0), "aten::flip"),
    "rolled": (lambda m, x: torch.roll(x, 1, 0), "aten::roll"),
    "summed up": (lambda m, x: x.cumsum(0), "aten::cumsum"),
    "sorted": (lambda m, x: x.sort(0)[0], "aten::sort"),
    "reshaped into one": (lambda m, x: x.reshape(-1), "aten::reshape"),
    "divided by its size": (lambda m, x: x / x.shape[0], "aten::div.Tensor"),
    "numbered": (lambda m, x: x + torch.arange(x.shape[0]).unsqueeze(1), "aten::arange"),
    "joined with itself": (lambda m, x: torch.cat([x, x]), "aten::cat"),
    "transposed": (lambda m, x: x.transpose(0, 1) * 1, "aten::transpose.int"),
    "the first row for all": (lambda m, x: x + x[:1], "aten::slice.Tensor"),
    "spread along columns": (lambda m, x: x.sum(1, keepdim=True) + x.sum(1), "aten::add.Tensor"),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_model_that_mixes_rows_names_the_operator(tmp_path, name):
    how, op = MIXING[name]
    model = cleave.capture(Mixed(how).eval(), (torch.rand(3, 4) + 1,), dynamic_dims={"x": {0: ("B", 1, 8)}})
    model.save(tmp_path / "mixed.clv")
    with serving(tmp_path / "mixed.clv", "--batching", "fast", log=tmp_path / "log") as s:
        facts = about(s, "mixed")
        assert facts["batching"] is False
        assert facts["batching_reason"].startswith(op), facts


KEEPING = {
    "softmax in a row": lambda m, x: torch.softmax(x, 1),
    "batch norm of a model that does not train": lambda m, x: m.norm(x),
    "norms of rows": lambda m, x: torch.nn.functional.layer_norm(x, (4,)),
    "reshaped within rows": lambda m, x: x.reshape(-1, 2, 2).transpose(1, 2).flatten(1),
    "products of rows": lambda m, x: torch.bmm(x.unsqueeze(2), x.unsqueeze(1)),
    "joined within rows": lambda m, x: torch.cat([x, x * 2], dim=1),
    "written in place": lambda m, x: (x * 2).add_(1).relu_(),
    "a number of each row": lambda m, x: x * x[:, 0].double().float().clone().detach().unsqueeze(-1),
    "numbers for all": lambda m, x: x * 2.5 + torch.ones(4),
    "rolled within rows": lambda m, x: torch.roll(x, 1, 1),
    "dropout that is off": lambda m, x: torch.nn.functional.dropout(x, 0.5, training=False),
}


@pytest.mark.parametrize("name", KEEPING)
def test_a_model_that_keeps_rows_apart_is_batched(tmp_path, name):
    cleave.capture(Mixed(KEEPING[name]).eval(), (torch.rand(3, 4),), dynamic_batch=(1, 8)).save(tmp_path / "m.clv")
    with serving(tmp_path / "m.clv", "--batching", "fast", log=tmp_path / "log") as s:
        facts = about(s, "m")
        assert facts["batching"] is True, facts


class Tokens(torch.nn.Module):
    """Rows of any length; whole numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.weight = torch.nn.Parameter(torch.randint(-1, 2, (64, 64)).float())

    def forward(self, x):
        for _ in range(20):
            x = torch.clamp(torch.nn.functional.linear(x, self.weight), -8, 8)
        return x


def test_each_length_is_a_batch_of_its_own(tmp_path):
    model = Tokens().eval()
    dims = {"x": {0: ("B", 1, 8), 1: ("S", 1, 64)}}
    captured = cleave.capture(model, (torch.ones(2, 5, 64),), dynamic_dims=dims)
    captured.prepare_sizes(*({"B": b, "S": s} for b in (1, 2, 4, 8) for s in (5, 16, 33)))
    captured.save(tmp_path / "tokens.clv")
    with serving(tmp_path / "tokens.clv", "--batching", "fast", "--log", "off", log=tmp_path / "log") as s:
        facts = about(s, "tokens")
        assert facts["batching"] is True, facts
        assert facts["batching_shapes"] >= 3
        wrong = []

        def client(k):
            chance = np.random.default_rng(k)
            for _ in range(12):
                x = chance.integers(-8, 9, (chance.choice([1, 1, 2]), chance.choice([5, 16, 33]), 64))
                x = x.astype(np.float32)
                status, got, answer = s.ask("POST", "/v2/models/tokens/infer", *infer_body({"x": x}))
                with torch.no_grad():
                    expected = model(torch.from_numpy(x)).numpy().tobytes()
                if status != 200 or answer[int(got["inference-header-content-length"]) :] != expected:
                    wrong.append((k, status, answer[:200]))

        threads = [threading.Thread(target=client, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong
        stats = s.json("GET", "/v2/models/tokens/stats")[1]["model_stats"][0]
        assert stats["inference_stats"]["success"]["count"] == 96
        assert stats["execution_count"] < 96


class Long(torch.nn.Module):
    """Takes a second or more."""

    def forward(self, x):
        for _ in range(int(250 * SLOWNESS)):
            x = torch.tanh(x @ x)
        return x


LONG = np.zeros((512, 512), np.float32)


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """Files of a model that takes long, and of a small one."""
    folder = tmp_path_factory.mktemp("busy")
    save_net(folder)
    cleave.capture(Long(), (torch.ones(512, 512),)).save(folder / "long.clv")
    return folder


@contextlib.contextmanager
def long_run(server):
    """Inside, a worker runs the long model."""
    answers = []
    body = infer_body({"x": LONG})
    thread = threading.Thread(target=lambda: answers.append(server.ask("POST", "/v2/models/long/infer", *body)))
    thread.start()
    while b"cleave_requests_open 2" not in server.ask("GET", "/metrics")[2]:
        time.sleep(0.01)
    time.sleep(0.05)
    yield thread
    thread.join()
    assert answers[0][0] == 200


ROW = np.ones((1, 4), np.float32)


def test_a_second_worker_serves_others_while_one_is_busy(busy, tmp_path):
    options = ["--workers", "2", "--log", "off"]
    with serving(busy / "long.clv", busy / "net.clv", *options, log=tmp_path / "log") as s, long_run(s) as run:
        for _ in range(30):
            assert s.ask("POST", "/v2/models/net/infer", *infer_body({"x": ROW}))[0] == 200
        assert run.is_alive()


def test_two_workers_lose_no_request_of_two_models(busy, tmp_path):
    with serving(busy / "suffix.clv", busy / "net.clv", "--workers", "2", "--log", "off", log=tmp_path / "log") as s:
        (label,) = [i["name"] for i in s.json("GET", "/v2/models/suffix")[1]["inputs"]]
        states = []

        def client(k):
            for _ in range(60):
                name, x = ("net", {"x": ROW}) if k % 2 else ("suffix", {label: np.ones((1, 8), np.float32)})
                states.append(s.ask("POST", f"/v2/models/{name}/infer", *infer_body(x))[0])

        threads = [threading.Thread(target=client, args=(k,)) for k in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert states == [200] * 360


@pytest.mark.parametrize("name", ["net", "long"])
def test_a_request_whose_time_is_over_is_told_while_the_worker_is_busy(busy, tmp_path, name):
    with serving(busy / "long.clv", busy / "net.clv", "--log", "off", log=tmp_path / "log") as s, long_run(s) as run:
        x = ROW if name == "net" else LONG
        status, _, answer = s.ask("POST", f"/v2/models/{name}/infer", *infer_body({"x": x}, timeout=50_000))
        assert (status, b"time" in answer) == (504, True)
        assert run.is_alive()


def test_requests_of_clients_that_left_are_out_of_the_queue_at_once(busy, tmp_path):
    with serving(busy / "long.clv", busy / "net.clv", "--log", "off", log=tmp_path / "log") as s, long_run(s) as run:
        for name, x in (("net", ROW), ("long", LONG)):
            body, fields = infer_body({"x": x})
            head = "".join(f"{k}: {v}\r\n" for k, v in fields.items())
            head = f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(body)}\r\n\r\n"
            links = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(5)]
            for link in links:
                link.sendall(head.encode() + body)
            while b"cleave_requests_open 7" not in s.ask("GET", "/metrics")[2]:
                time.sleep(0.01)
            for link in links:
                link.close()
            while b"cleave_requests_open 2" not in s.ask("GET", "/metrics")[2]:
                time.sleep(0.01)
            assert run.is_alive()
