"""`cleave serve` in production: tokens, changes of files without a failed request, metrics, logs, deadlines, ending."""

import hashlib
import http.client
import json
import queue
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.request

import numpy as np
import pytest
import torch
from serving import NEEDS_SERVER, PROGRAM, SLOWNESS, infer_body, save_net, serving

import cleave

pytestmark = NEEDS_SERVER


X = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("production")


@pytest.fixture(scope="module")
def model(folder):
    return save_net(folder)


def hashed(token):
    return hashlib.sha256(token.encode()).hexdigest()


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


class Slow(torch.nn.Module):
    """Takes long enough that others have to wait."""

    def __init__(self, products=60):
        super().__init__()
        self.products = int(products * SLOWNESS)

    def forward(self, x):
        for _ in range(self.products):
            x = torch.tanh(x @ x)
        return x


@pytest.fixture(scope="module")
def slow(folder):
    cleave.capture(Slow(), (torch.ones(512, 512),)).save(folder / "slow.clv")
    return folder / "slow.clv"


SLOW = np.ones((512, 512), np.float32)


def test_tokens_say_who_may_call_what(folder, model, tmp_path):
    lines = [
        f"{hashed('all').upper()} name=all",
        f"{hashed('net')} models=net",
        f"{hashed('ops')} admin # not a comment",
    ]
    tokens = tmp_path / "tokens"
    tokens.write_text("# who may call\n" + "\n".join(lines[:2]) + "\n")
    files = [folder / "net.clv", folder / "suffix.clv"]
    with serving(*files, "--tokens", tokens, log=tmp_path / "log") as s:
        assert s.ask("GET", "/v2/health/ready")[0] == 200
        status, fields, _ = s.ask("GET", "/v2/models/net")
        assert (status, fields["www-authenticate"]) == (401, "Bearer")
        for wrong in ("", "al", "alll", hashed("all")):
            assert s.ask("GET", "/v2/models/net", headers=bearer(wrong))[0] == 401
        assert s.ask("GET", "/v2/models/net", headers={"Authorization": "Basic all"})[0] == 401
        assert s.ask("GET", "/v2/models/net", headers=bearer("all"))[0] == 200
        assert s.ask("GET", "/v2/models/net@after:first", headers=bearer("net"))[0] == 200
        assert s.ask("GET", "/v2/models/suffix", headers=bearer("net"))[0] == 403
        assert s.ask("GET", "/v2/models/nope", headers=bearer("net"))[0] == 403
        assert s.ask("POST", "/v2/repository/index", headers=bearer("net"))[0] == 403
        assert s.ask("POST", "/v2/repository/models/net/load", headers=bearer("all"))[0] == 403
        assert s.ask("GET", "/metrics")[0] == 401


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    done = subprocess.run([PROGRAM, "serve", tmp_path / "nope.clv"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "nope.clv: No such file or directory" in done.stderr


@pytest.mark.parametrize("how", ["hangup", "call"])
def test_a_file_that_went_away_leaves_what_runs(folder, model, tmp_path, how):
    shutil.copy(folder / "net.clv", tmp_path / "net.clv")
    with serving(tmp_path / "net.clv", log=tmp_path / "log") as s:
        (tmp_path / "net.clv").unlink()
        if how == "hangup":
            s.process.send_signal(signal.SIGHUP)
            time.sleep(0.5)
        else:
            assert s.ask("POST", "/v2/repository/models/net/load")[0] != 200
            wait_until(lambda: "cannot be loaded" in s.log.read_text())
        assert s.ask("POST", "/v2/models/net/infer", *infer_body({"x": X}))[0] == 200
        assert s.process.poll() is None


def test_tokens_are_read_again_on_sighup(folder, model, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(hashed("old"))
    with serving(folder / "net.clv", "--tokens", tokens, log=tmp_path / "log") as s:
        assert s.ask("GET", "/v2", headers=bearer("old"))[0] == 200
        tokens.write_text("no token")
        s.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "stay as they were" in s.log.read_text())
        assert s.ask("GET", "/v2", headers=bearer("old"))[0] == 200
        tokens.write_text(hashed("new"))
        s.process.send_signal(signal.SIGHUP)
        wait_until(lambda: s.ask("GET", "/v2", headers=bearer("new"))[0] == 200)
        assert s.ask("GET", "/v2", headers=bearer("old"))[0] == 401


@pytest.mark.parametrize("known", [True, False], ids=["kept", "gone"])
def test_a_call_that_streams_goes_on_after_sighup_as_long_as_its_token_is_known(folder, model, tmp_path, known):
    grpcclient = pytest.importorskip("tritonclient.grpc")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{hashed('mine')}\n")
    answers = queue.Queue()
    with (
        serving(folder / "net.clv", "--tokens", tokens, log=tmp_path / "log") as s,
        grpcclient.InferenceServerClient(s.url) as c,
    ):
        x = grpcclient.InferInput("x", X.shape, "FP32")
        x.set_data_from_numpy(X)
        c.start_stream(lambda result, error: answers.put((result, error)), headers={"authorization": "Bearer mine"})
        c.async_stream_infer("net", [x])
        assert answers.get(timeout=30)[1] is None
        tokens.write_text(f"{hashed('other')}\n" + (f"{hashed('mine')}\n" if known else ""))
        s.process.send_signal(signal.SIGHUP)
        wait_until(lambda: s.ask("GET", "/v2", headers=bearer("other"))[0] == 200)
        c.async_stream_infer("net", [x])
        error = answers.get(timeout=30)[1]
        assert error is None if known else "no longer known" in str(error)
        c.stop_stream()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_the_address_that_it_prints_can_be_asked(folder, model, tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with serving(folder / "net.clv", "--host", "::1", log=tmp_path / "log") as s:
        url = s.log.read_text().split("serving at ")[1].split()[0]
        assert url == f"http://[::1]:{s.port}"
        with urllib.request.urlopen(url + "/v2/models/net", timeout=30) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    "option", ["max-connections", "max-per-address", "max-streams", "max-queue", "max-batch", "max-sessions", "workers"]
)
def test_a_count_that_no_field_holds_is_a_wrong_option(folder, model, option):
    wrong = [PROGRAM, "serve", "--check", folder / "net.clv", f"--{option}", str((1 << 32) + 1)]
    done = subprocess.run(wrong, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert option in done.stderr


def test_a_token_with_a_rate_is_told_to_wait(folder, model, tmp_path):
    (tmp_path / "tokens").write_text(f"{hashed('few')} rate=3\n{hashed('many')}\n")
    with serving(folder / "net.clv", "--tokens", tmp_path / "tokens", log=tmp_path / "log") as s:
        answers = [s.ask("GET", "/v2/models/net", headers=bearer("few")) for _ in range(20)]
        assert answers[0][0] == 200
        refused = [a for a in answers if a[0] == 429]
        assert refused
        assert refused[0][1]["retry-after"] == "1"
        assert s.ask("GET", "/v2/models/net", headers=bearer("many"))[0] == 200


def test_grpc_calls_need_the_token_too(folder, model, tmp_path):
    grpcclient = pytest.importorskip("tritonclient.grpc")
    (tmp_path / "tokens").write_text(f"{hashed('net')} models=net\n")
    with (
        serving(folder / "net.clv", folder / "suffix.clv", "--tokens", tmp_path / "tokens", log=tmp_path / "log") as s,
        grpcclient.InferenceServerClient(s.url) as c,
    ):
        assert c.is_server_ready()
        with pytest.raises(Exception, match="UNAUTHENTICATED"):
            c.get_model_metadata("net")
        fields = {"authorization": "Bearer net"}
        assert c.get_model_metadata("net", headers=fields).name == "net"
        with pytest.raises(Exception, match="PERMISSION_DENIED"):
            c.get_model_metadata("suffix", headers=fields)
        with pytest.raises(Exception, match="PERMISSION_DENIED"):
            c.unload_model("net", headers=fields)


@pytest.mark.parametrize("how", ["poll", "hangup", "call"])
def test_new_files_are_taken_up_without_a_failed_request(folder, model, tmp_path, how):
    other = save_net(tmp_path)
    other.second.bias.data += 1
    cleave.capture(other, (torch.ones(2, 4),), dynamic_batch=(1, 16)).save(tmp_path / "other.clv")
    (tmp_path / "models").mkdir()
    shutil.copy(folder / "net.clv", tmp_path / "models/net.clv")
    allowed = {m(torch.from_numpy(X)).detach().numpy().tobytes() for m in (model, other)}
    wrong, seen, stop = [], [], threading.Event()
    options = ["--poll", "0.2"] if how == "poll" else []
    with serving("--repository", tmp_path / "models", *options, "--log", "off", log=tmp_path / "log") as s:

        def client():
            while not stop.is_set():
                status, got, answer = s.ask("POST", "/v2/models/net/infer", *infer_body({"x": X}))
                out = answer[int(got.get("inference-header-content-length", 0)) :]
                seen.append(out)
                if status != 200 or out not in allowed:
                    wrong.append((status, answer))

        threads = [threading.Thread(target=client) for _ in range(4)]
        for t in threads:
            t.start()
        for k in range(6):
            shutil.copy((tmp_path / "other.clv") if k % 2 == 0 else (folder / "net.clv"), tmp_path / "models/new")
            (tmp_path / "models/new").rename(tmp_path / "models/net.clv")
            if how == "hangup":
                s.process.send_signal(signal.SIGHUP)
            if how == "call":
                assert s.ask("POST", "/v2/repository/models/net/load")[0] == 200
            time.sleep(0.6)
        stop.set()
        for t in threads:
            t.join()
        assert s.json("GET", "/v2/models/net/stats")[1]["model_stats"][0]["inference_stats"]["success"]["count"] == len(
            seen
        )  # counts stay where a new file takes over
    assert not wrong
    assert set(seen) == allowed


def test_metrics_are_histograms(folder, model, tmp_path):
    with serving(folder / "net.clv", log=tmp_path / "log") as s:
        for _ in range(3):
            assert s.ask("POST", "/v2/models/net/infer", *infer_body({"x": X}))[0] == 200
        status, fields, text = s.ask("GET", "/metrics")
        assert status == 200
        assert fields["content-type"].startswith("text/plain; version=0.0.4")
        lines = text.decode().splitlines()
        assert 'cleave_requests_success_total{model="net",version="1"} 3' in lines
        assert 'cleave_request_seconds_count{model="net",version="1"} 3' in lines
        buckets = [int(x.split()[-1]) for x in lines if x.startswith("cleave_compute_seconds_bucket")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == 3


def test_the_log_has_a_line_of_json_for_each_request(folder, model, tmp_path):
    with serving(folder / "net.clv", "--log", "json", log=tmp_path / "log") as s:
        _, fields, _ = s.ask("GET", "/v2/models/net%0aforged")
        s.stop()
        lines = [json.loads(x) for x in s.log.read_text().splitlines() if x.startswith("{")]
        mine = [x for x in lines if x.get("request") == fields["x-request-id"]]
        assert [(x["path"], x["status"]) for x in mine] == [("/v2/models/net%0aforged", 404)]


def test_a_service_manager_is_told_that_it_is_ready(folder, model, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with serving(folder / "net.clv", log=tmp_path / "log", environment=environment):
            assert manager.recv(100) == b"READY=1"


def test_open_requests_are_answered_before_it_ends(slow, tmp_path):
    with serving(slow, log=tmp_path / "log") as s:
        answers = []
        asking = threading.Thread(
            target=lambda: answers.append(s.ask("POST", "/v2/models/slow/infer", *infer_body({"x": SLOW})))
        )
        asking.start()
        wait_until(lambda: b"cleave_requests_open 2" in s.ask("GET", "/metrics")[2])
        assert s.stop() == 0
        asking.join()
        assert answers[0][0] == 200


def test_readiness_goes_first_and_no_request_fails_while_others_learn_it(folder, model, tmp_path):
    expected = model(torch.from_numpy(X)).detach().numpy().tobytes()
    states, away = [], threading.Event()
    with serving(folder / "net.clv", "--drain-delay", "3", "--log", "off", log=tmp_path / "log") as s:

        def client():
            """Asks over kept connections, as long as it is told to by whoever watches readiness."""
            link = None
            while not away.is_set():
                link = link or http.client.HTTPConnection("127.0.0.1", s.port, timeout=30)
                try:
                    link.request("POST", "/v2/models/net/infer", *infer_body({"x": X}))
                    answer = link.getresponse()
                    head = int(answer.getheader("Inference-Header-Content-Length") or 0)
                    states.append((answer.status, answer.read()[head:] == expected))
                except (OSError, http.client.HTTPException) as e:
                    states.append((0, repr(e)))
                if answer.getheader("Connection") == "close":
                    link.close()
                    link = None

        threads = [threading.Thread(target=client) for _ in range(4)]
        for t in threads:
            t.start()
        wait_until(lambda: len(states) > 20)
        s.process.send_signal(signal.SIGTERM)
        wait_until(lambda: s.ask("GET", "/v2/health/ready")[0] == 400)
        before = len(states)
        wait_until(lambda: len(states) > before + 20)  # it serves on, also over new connections
        assert s.ask("GET", "/v2/health/live")[0] == 200
        away.set()
        for t in threads:
            t.join()
        assert s.process.wait(30) == 0
    assert set(states) == {(200, True)}


def test_a_second_signal_ends_the_delay(folder, model, tmp_path):
    with serving(folder / "net.clv", "--drain-delay", "600", "--log", "off", log=tmp_path / "log") as s:
        s.process.send_signal(signal.SIGTERM)
        wait_until(lambda: s.ask("GET", "/v2/health/ready")[0] == 400)
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(30) == 0


def frames_of(data):
    while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
        n = int.from_bytes(data[:3], "big")
        yield data[3], int.from_bytes(data[5:9], "big"), data[9 : 9 + n]
        data = data[9 + n :]


def test_clients_of_http2_are_told_twice_and_served_in_between(folder, model, tmp_path):
    get = bytes([0x82, 0x86]) + b"\x04\x0f/v2/health/live" + b"\x01\x01x"

    def head(stream):
        return struct.pack(">I", len(get))[1:] + b"\1\5" + struct.pack(">I", stream) + get

    with (
        serving(folder / "net.clv", "--drain-delay", "1", "--log", "off", log=tmp_path / "log") as s,
        socket.create_connection(("127.0.0.1", s.port), timeout=20) as link,
    ):
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" + head(1))
        got = b""
        while not any(kind == 1 and stream == 1 for kind, stream, _ in frames_of(got)):
            got += link.recv(4096)
        s.process.send_signal(signal.SIGTERM)
        while not any(kind == 7 for kind, _, _ in frames_of(got)):
            got += link.recv(4096)
        link.sendall(head(3))
        while more := link.recv(4096):
            got += more
        last = [int.from_bytes(body[:4], "big") for kind, _, body in frames_of(got) if kind == 7]
        assert last == [0x7FFFFFFF, 3]
        assert any(kind == 1 and stream == 3 for kind, stream, _ in frames_of(got))
        assert s.process.wait(30) == 0


def test_a_run_that_outlasts_the_drain_is_cut_short(tmp_path):
    file = tmp_path / "slow.clv"  # it runs when the server is told to stop, on a fast processor too
    cleave.capture(Slow(300), (torch.ones(512, 512),)).save(file)
    with serving(file, "--drain-timeout", "0", log=tmp_path / "log") as s:
        body, fields = infer_body({"x": SLOW})
        head = "".join(f"{k}: {v}\r\n" for k, v in fields.items())
        head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", s.port)) as link:
            link.sendall(head.encode() + body)
            wait_until(lambda: b"cleave_requests_open 2" in s.ask("GET", "/metrics")[2])
            time.sleep(0.1)
            assert s.stop() == 0
        assert "cut short" in s.log.read_text()


def refused(server, reason, headers=None):
    text = server.ask("GET", "/metrics", headers=headers)[2].decode()
    return int(
        next(x for x in text.splitlines() if x.startswith(f'cleave_refused_total{{reason="{reason}"')).split()[-1]
    )


def test_refusals_are_counted_and_counts_outlive_a_reload(slow, folder, model, tmp_path):
    (tmp_path / "tokens").write_text(f"{hashed('all')}\n{hashed('net')} models=net\n{hashed('once')} rate=0.001\n")
    options = ["--tokens", tmp_path / "tokens", "--max-body", "2Mi", "--log", "off"]
    good = bearer("all")
    with serving(slow, folder / "net.clv", *options, log=tmp_path / "log") as s:
        body, fields = infer_body({"x": X})
        for _ in range(3):
            assert s.ask("POST", "/v2/models/net/infer", body, {**fields, **good})[0] == 200
        assert s.ask("POST", "/v2/models/net/infer", body, fields)[0] == 401
        assert s.ask("GET", "/v2/models/slow", headers=bearer("net"))[0] == 403
        assert s.ask("POST", "/v2/models/net/infer", b"", {**good, "Content-Length": "3000000"})[0] == 413
        while s.ask("GET", "/v2/models/net", headers=bearer("once"))[0] != 429:
            pass
        long, fields = infer_body({"x": SLOW})
        fields = {**fields, **good}
        running = threading.Thread(target=lambda: s.ask("POST", "/v2/models/slow/infer", long, fields))
        running.start()
        wait_until(lambda: b"cleave_requests_open 2" in s.ask("GET", "/metrics", headers=good)[2])
        late, fields_late = infer_body({"x": X}, timeout=1000)
        assert s.ask("POST", "/v2/models/net/infer", late, {**fields_late, **good})[0] == 504
        head = "".join(f"{k}: {v}\r\n" for k, v in fields.items())
        with socket.create_connection(("127.0.0.1", s.port)) as link:
            head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(long)}\r\n\r\n"
            link.sendall(head.encode() + long)
            wait_until(lambda: b"cleave_requests_open 3" in s.ask("GET", "/metrics", headers=good)[2])
        wait_until(lambda: refused(s, "cancelled", good) == 1)
        running.join()
        reasons = ["unauthorized", "forbidden", "too_large", "busy", "deadline", "cancelled"]
        counts = [refused(s, r, good) for r in reasons]
        assert counts == [1] * 6
        s.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert [refused(s, r, good) for r in reasons] == counts


def test_a_client_address_and_a_head_have_limits(folder, model, tmp_path):
    options = ["--max-per-address", "3", "--max-head", "2048", "--log", "off"]
    with serving(folder / "net.clv", *options, log=tmp_path / "log") as s:
        links = [socket.create_connection(("127.0.0.1", s.port), timeout=20) for _ in range(5)]
        ends = []
        for link in links:
            link.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            try:
                ends.append(link.recv(12))
            except ConnectionError:
                ends.append(b"")
        assert sorted(ends) == [b"", b"", b"HTTP/1.1 200", b"HTTP/1.1 200", b"HTTP/1.1 200"]
        for link in links:
            link.close()
        time.sleep(0.3)
        assert s.ask("GET", "/v2", headers={"X": "a" * 1000})[0] == 200
        assert s.ask("GET", "/v2", headers={"X": "a" * 3000})[0] == 431


def test_a_deadline_takes_work_out_of_the_queue(slow, tmp_path):
    with serving(slow, log=tmp_path / "log") as s:
        answers = []

        def ask(timeout):
            body, fields = infer_body({"x": SLOW}, timeout=timeout)
            answers.append((timeout, s.ask("POST", "/v2/models/slow/infer", body, fields)))

        threads = [threading.Thread(target=ask, args=(t,)) for t in (0, 0, 1)]
        for t in threads:
            t.start()
            time.sleep(0.02)
        for t in threads:
            t.join()
        assert sorted((t, a[0]) for t, a in answers) == [(0, 200), (0, 200), (1, 504)]
        runs = s.json("GET", "/v2/models/slow/stats")[1]["model_stats"][0]["execution_count"]
        assert runs == 2


def test_a_client_that_leaves_takes_its_work_with_it(slow, tmp_path):
    with serving(slow, log=tmp_path / "log") as s:
        body, fields = infer_body({"x": SLOW})
        head = "".join(f"{k}: {v}\r\n" for k, v in fields.items())
        request = (
            f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode()
        )
        links = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(10)]
        for link in links:
            link.sendall(request + body)
        wait_until(lambda: b"cleave_requests_open 11" in s.ask("GET", "/metrics")[2])
        for link in links[1:]:
            link.close()
        assert links[0].recv(100).startswith(b"HTTP/1.1 200")
        links[0].close()
        wait_until(lambda: b"cleave_requests_open 1\n" in s.ask("GET", "/metrics")[2])
        assert s.json("GET", "/v2/models/slow/stats")[1]["model_stats"][0]["execution_count"] < 5


def test_a_full_queue_says_try_again(slow, tmp_path):
    with serving(slow, "--max-queue", "2", log=tmp_path / "log") as s:
        answers = []
        threads = [
            threading.Thread(
                target=lambda: answers.append(s.ask("POST", "/v2/models/slow/infer", *infer_body({"x": SLOW})))
            )
            for _ in range(12)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        states = {a[0] for a in answers}
        assert states == {200, 429}
        assert all(a[1]["retry-after"] for a in answers if a[0] == 429)
