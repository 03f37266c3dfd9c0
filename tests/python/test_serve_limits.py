"""`cleave serve` keeps to its limits: memory of requests and answers, descriptors, readers that are slow."""

import contextlib
import hashlib
import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import threading
import time

import numpy as np
import pytest
import torch
from serving import NEEDS_SERVER, Server, certificate, infer_body, memory_within, save_net, serving

import cleave

pytestmark = NEEDS_SERVER

X = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)


class Wide(torch.nn.Module):
    """A few bytes become megabytes."""

    def forward(self, x):
        return x.unsqueeze(1) * torch.ones(1 << 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    save_net(folder)
    cleave.capture(Wide(), (torch.ones(1),)).save(folder / "wide.clv")
    return folder


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def metric(server: Server, name: str) -> float:
    text = server.ask("GET", "/metrics")[2].decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.split("{")[0].split()[0] == name)


def spent(pid):
    """Seconds of CPU time."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- descriptors ----------------------------------------------------------------------------------------------------


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_as_many_connections_as_asked_for_have_descriptors(folder, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip("this machine gives a process too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1800), hard))
    try:
        with (
            serving(folder / "net.clv", "--max-connections", "1500", "--log", "off", log=tmp_path / "log") as s,
            contextlib.ExitStack() as links,
        ):
            assert resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE)[0] >= 1500
            for _ in range(1400):
                links.enter_context(socket.create_connection(("127.0.0.1", s.port), timeout=20))
            wait_until(lambda: metric(s, "cleave_connections") > 1400)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_few_descriptors_mean_fewer_connections_and_leave_some_for_files(folder, tmp_path):
    with (
        serving(folder / "net.clv", "--log", "off", log=tmp_path / "log", descriptors=128) as s,
        contextlib.ExitStack() as links,
    ):
        assert "only 128 descriptors" in s.log.read_text()
        first = links.enter_context(socket.create_connection(("127.0.0.1", s.port), timeout=20))
        for _ in range(200):
            links.enter_context(socket.create_connection(("127.0.0.1", s.port), timeout=20))
        first.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert first.recv(100).startswith(b"HTTP/1.1 200")
        assert open_files(s.process.pid) < 110


def test_a_server_without_descriptors_waits_instead_of_turning_round(folder, tmp_path):
    with serving(folder / "net.clv", "--log", "off", log=tmp_path / "log") as s, contextlib.ExitStack() as links:
        before = resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE)
        link = links.enter_context(socket.create_connection(("127.0.0.1", s.port), timeout=20))
        request = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        link.sendall(request)
        assert link.recv(100).startswith(b"HTTP/1.1 200")
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (open_files(s.process.pid), before[1]))
        waiting = [links.enter_context(socket.create_connection(("127.0.0.1", s.port), timeout=20)) for _ in range(5)]
        waiting[0].sendall(request)
        start = spent(s.process.pid)
        time.sleep(2)
        assert spent(s.process.pid) - start < 1  # of two seconds
        link.sendall(request)
        assert link.recv(100).startswith(b"HTTP/1.1 200")
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, before)
        assert waiting[0].recv(100).startswith(b"HTTP/1.1 200")


def test_an_early_answer_over_http2_reaches_its_client(folder, tmp_path):
    post = bytes([0x83, 0x86]) + b"\x04\x14/v2/models/net/infer" + b"\x01\x01x" + b"\x00\x0econtent-length\x078000000"
    with serving(folder / "net.clv", "--max-body", "1Mi", "--log", "off", log=tmp_path / "log") as s:
        with socket.create_connection(("127.0.0.1", s.port), timeout=5) as link:
            link.sendall(START + frame(4, 0, 0) + frame(1, 4, 1, post) + frame(0, 0, 1, b"a" * 1000))
            got = b""
            while b"larger than the server takes" not in got:
                more = link.recv(4096)
                assert more, got
                got += more


def test_a_stream_that_stands_still_ends_alone(folder, tmp_path):
    post = bytes([0x83, 0x86]) + b"\x04\x14/v2/models/net/infer" + b"\x01\x01x"
    get = bytes([0x82, 0x86]) + b"\x04\x0f/v2/health/live" + b"\x01\x01x"
    with (
        serving(folder / "net.clv", "--header-timeout", "1", "--log", "off", log=tmp_path / "log") as s,
        socket.create_connection(("127.0.0.1", s.port), timeout=20) as link,
    ):
        link.sendall(START + frame(4, 0, 0) + frame(1, 4, 1, post))
        ended, answered, stream, deadline, got = False, 0, 3, time.monotonic() + 20, b""
        while not ended or answered < (stream - 3) // 2:
            assert time.monotonic() < deadline
            if not ended:
                link.sendall(frame(1, 5, stream, get))
                stream += 2
                time.sleep(0.1)
            more = link.recv(65536)
            assert more, "the connection ended"
            got += more
            while len(got) >= 9 and len(got) >= 9 + int.from_bytes(got[:3], "big"):
                n = int.from_bytes(got[:3], "big")
                ended |= got[3] == 3 and int.from_bytes(got[5:9], "big") == 1
                answered += got[3] == 1
                got = got[9 + n :]
        assert answered > 5


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_numbers_of_json_count_as_memory(folder, tmp_path):
    options = ["--max-held", "64Ki", "--max-json", "1Mi"]
    with serving(folder / "net.clv", *options, "--log", "off", log=tmp_path / "log") as s:
        lies = {"name": "x", "datatype": "FP32", "shape": [1 << 20, 4], "data": [1]}
        status, answer = s.json("POST", "/v2/models/net/infer", {"inputs": [lies]})
        assert (status, "fewer elements" in answer["error"]) == (400, True), answer
        one = {**lies, "shape": [5000, 4], "data": [0] * 20000}
        status, answer = s.json("POST", "/v2/models/net/infer", {"inputs": [one]})
        assert status == 413, answer
        assert "memory" in answer["error"]
        body = json.dumps({"inputs": [{**lies, "shape": [9000, 4], "data": [0] * 36000}]}).replace(" ", "")
        assert len(body) < 80_000
        assert metric(s, "cleave_bytes_held") < 1000
        status, fields, answer = s.ask("POST", "/v2/models/net/infer", body)
        assert (status, fields.get("retry-after")) == (503, "1"), answer
        assert s.ask("POST", "/v2/models/net/infer", *infer_body({"x": X}))[0] == 200
        wait_until(lambda: metric(s, "cleave_bytes_held") < 1000)


def test_bodies_beyond_what_is_held_are_told_to_try_again(folder, tmp_path):
    with (
        serving(folder / "net.clv", "--max-held", "1Mi", "--log", "off", log=tmp_path / "log") as s,
        contextlib.ExitStack() as links,
    ):
        head = b"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 700000\r\n\r\n"
        first = links.enter_context(socket.create_connection(("127.0.0.1", s.port), timeout=20))
        first.sendall(head + b"a" * 600_000)
        wait_until(lambda: metric(s, "cleave_bytes_held") >= 600_000)
        second = links.enter_context(socket.create_connection(("127.0.0.1", s.port), timeout=20))
        with contextlib.suppress(OSError):
            second.sendall(head + b"a" * 600_000)
        answer = second.recv(4096)
        assert answer.startswith(b"HTTP/1.1 503"), answer
        assert b"Retry-After: 1" in answer
        first.close()
        wait_until(lambda: metric(s, "cleave_bytes_held") < 1000)


def test_grpc_calls_beyond_what_is_held_are_resource_exhausted(folder, tmp_path):
    grpcclient = pytest.importorskip("tritonclient.grpc")
    with (
        serving(folder / "net.clv", "--max-held", "256Ki", "--log", "off", log=tmp_path / "log") as s,
        grpcclient.InferenceServerClient(s.url) as c,
        contextlib.ExitStack() as links,
    ):
        holder = links.enter_context(socket.create_connection(("127.0.0.1", s.port), timeout=20))
        holder.sendall(
            b"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 250000\r\n\r\n" + b"a" * 240_000
        )
        wait_until(lambda: metric(s, "cleave_bytes_held") >= 240_000)
        big = grpcclient.InferInput("x", [2000, 4], "FP32")
        big.set_data_from_numpy(np.ones((2000, 4), np.float32))
        with pytest.raises(Exception, match="RESOURCE_EXHAUSTED"):
            c.infer("net", [big])
        holder.close()
        wait_until(lambda: metric(s, "cleave_bytes_held") < 1000)
        small = grpcclient.InferInput("x", [2, 4], "FP32")
        small.set_data_from_numpy(X)
        assert c.infer("net", [small]).as_numpy(c.get_model_metadata("net").outputs[0].name).shape == (2, 3)


def test_a_run_that_needs_more_than_max_memory_says_so(folder, tmp_path):
    with serving(folder / "wide.clv", "--max-memory", "1Mi", "--log", "off", log=tmp_path / "log") as s:
        status, fields, answer = s.ask("POST", "/v2/models/wide/infer", *infer_body({"x": np.ones(1, np.float32)}))
        assert (status, fields.get("retry-after")) == (503, "1"), answer
        assert b"memory" in answer


def test_answers_that_nobody_reads_count_and_are_given_up(folder, tmp_path):
    options = ["--max-held", "16Mi", "--header-timeout", "3"]
    body, fields = infer_body({"x": np.ones(1, np.float32)})
    head = "".join(f"{k}: {v}\r\n" for k, v in fields.items())
    request = (
        f"POST /v2/models/wide/infer HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    )
    with (
        serving(folder / "wide.clv", *options, "--log", "off", log=tmp_path / "log") as s,
        contextlib.ExitStack() as links,
    ):
        states = []
        with memory_within(s.process.pid, 64 << 20):
            for _ in range(20):
                link = links.enter_context(socket.socket())
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                link.settimeout(20)
                link.connect(("127.0.0.1", s.port))
                link.sendall(request)
                states.append(link.recv(12))
        assert states.count(b"HTTP/1.1 200") in range(3, 9), states
        assert states.count(b"HTTP/1.1 503") == 20 - states.count(b"HTTP/1.1 200")
        assert s.ask("GET", "/v2/health/live")[0] == 200
        wait_until(lambda: metric(s, "cleave_bytes_held") < 1 << 20)
        assert s.ask("POST", "/v2/models/wide/infer", body, fields)[0] == 200


START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def stream_head(path):
    """Fields of a call of gRPC."""
    return (
        bytes([0x83, 0x86, 0x04, len(path)])
        + path.encode()
        + b"\x01\x01x"
        + b"\x00\x0ccontent-type\x10application/grpc"
        + b"\x00\x02te\x08trailers"
    )


def message(*fields):
    """A protocol buffer of these (number, bytes)."""
    out = b""
    for number, data in fields:
        out += bytes([number << 3 | 2, len(data)]) + data
    return out


def stream_of_wide(count):
    """A call with so many requests, each of which has 4 MiB as its answer."""
    x = message((1, b"x"), (2, b"FP32"), (3, b"\x01"))
    call = message((1, b"wide"), (5, x), (7, np.ones(1, np.float32).tobytes()))
    framed = b"\0" + struct.pack(">I", len(call)) + call
    head = stream_head("/inference.GRPCInferenceService/ModelStreamInfer")
    window = frame(4, 0, 0, struct.pack(">HI", 4, 0x7FFFFFFF)) + frame(8, 0, 0, struct.pack(">I", 0x7FFF0000))
    return START + window + frame(1, 4, 1, head) + b"".join(frame(0, 0, 1, framed) for _ in range(count))


def test_a_stream_whose_answers_nobody_reads_stops_running(folder, tmp_path):
    options = ["--idle-timeout", "4"]
    with (
        serving(folder / "wide.clv", *options, "--log", "off", log=tmp_path / "log") as s,
        contextlib.ExitStack() as links,
    ):
        link = links.enter_context(socket.socket())
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect(("127.0.0.1", s.port))
        with memory_within(s.process.pid, 64 << 20):
            link.sendall(stream_of_wide(200))
            time.sleep(1.5)
        assert 0 < metric(s, "cleave_executions_total") < 20
        wait_until(lambda: metric(s, "cleave_connections") == 1)  # it was given up
        wait_until(lambda: metric(s, "cleave_bytes_held") < 1000)


def test_all_messages_of_a_stream_are_answered_to_a_client_that_reads(folder, tmp_path):
    with serving(folder / "wide.clv", "--log", "off", log=tmp_path / "log") as s, contextlib.ExitStack() as links:
        link = links.enter_context(socket.create_connection(("127.0.0.1", s.port), timeout=20))
        sending = threading.Thread(target=link.sendall, args=(stream_of_wide(10),))
        sending.start()
        got = 0
        while got < 10 * (4 << 20):
            more = link.recv(1 << 20)
            assert more
            got += len(more)
        sending.join()
        assert metric(s, "cleave_executions_total") == 10


def test_a_stream_of_many_bad_messages_is_answered_one_by_one(folder, tmp_path):
    with serving(folder / "net.clv", "--log", "off", log=tmp_path / "log") as s, contextlib.ExitStack() as links:
        link = links.enter_context(socket.create_connection(("127.0.0.1", s.port), timeout=20))
        head = stream_head("/inference.GRPCInferenceService/ModelStreamInfer")
        bad = b"\0\0\0\0\2\xff\xff" * 2000
        link.sendall(START + frame(4, 0, 0) + frame(1, 4, 1, head))
        with contextlib.suppress(OSError):
            for _ in range(100):
                link.sendall(frame(0, 0, 1, bad))
        assert s.ask("POST", "/v2/models/net/infer", *infer_body({"x": X}))[0] == 200


# ---- what a request may ask for, and who may send one ---------------------------------------------------------------


def test_an_output_cannot_be_asked_for_twice(folder, tmp_path):
    with (
        serving(folder / "wide.clv", "--log", "off", log=tmp_path / "log") as s,
        memory_within(s.process.pid, 40 << 20),
    ):
        one = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
        name = s.json("GET", "/v2/models/wide")[1]["outputs"][0]["name"]
        for binary in (True, False):
            many = [{"name": name, "parameters": {"binary_data": binary}}] * 2000
            status, answer = s.json("POST", "/v2/models/wide/infer", {"inputs": [one], "outputs": many})
            assert (status, answer) == (400, {"error": f"output '{name}' already exists in request"})
        status, answer = s.json("POST", "/v2/models/wide/infer", {"inputs": [one], "outputs": [{"name": name}] * 5000})
        assert (status, "more than 4096 outputs" in answer["error"]) == (400, True)


def test_more_inputs_than_the_model_has_are_refused_before_they_are_read(folder, tmp_path):
    with serving(folder / "net.clv", "--log", "off", log=tmp_path / "log") as s:
        many = [{"name": "x", "datatype": "FP32", "shape": [0], "data": []}] * 5000
        status, answer = s.json("POST", "/v2/models/net/infer", {"inputs": many})
        assert (status, answer["error"]) == (400, "expected 1 inputs but got 5000 inputs for model 'net'")


def test_strangers_send_no_long_bodies(folder, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(hashlib.sha256(b"known").hexdigest() + "\n")
    head = "POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n"
    with serving(folder / "net.clv", "--tokens", tokens, "--log", "off", log=tmp_path / "log") as s:
        with socket.create_connection(("127.0.0.1", s.port), timeout=20) as link:
            link.sendall(head.encode() + b"\r\n" + b"a" * 5000)  # the rest never comes
            assert link.recv(4096).startswith(b"HTTP/1.1 401")
        with socket.create_connection(("127.0.0.1", s.port), timeout=2) as link:
            link.sendall(head.encode() + b"Authorization: Bearer known\r\n\r\n" + b"a" * 5000)
            with pytest.raises(TimeoutError):
                link.recv(4096)


def grpc_head(method):
    path = f"/inference.GRPCInferenceService/{method}".encode()
    return bytes([0x83, 0x86, 0x04, len(path)]) + path + b"\x01\x01x\x00\x0ccontent-type\x10application/grpc"


def test_a_refused_call_holds_no_memory_until_its_client_has_said_all(folder, tmp_path):
    with (
        serving(folder / "net.clv", "--max-body", "1Mi", "--log", "off", log=tmp_path / "log") as s,
        socket.create_connection(("127.0.0.1", s.port), timeout=20) as link,
    ):
        link.sendall(START + frame(4, 0, 0) + frame(1, 4, 1, grpc_head("ModelInfer")))
        for _ in range(100):
            link.sendall(frame(0, 0, 1, b"a" * 16000))
        time.sleep(1)
        assert metric(s, "cleave_bytes_held") < 10000


def test_messages_of_a_stream_give_their_memory_back(folder, tmp_path):
    size = 16 << 20
    with (
        serving(folder / "net.clv", "--log", "off", log=tmp_path / "log") as s,
        memory_within(s.process.pid, 80 << 20),
        socket.create_connection(("127.0.0.1", s.port), timeout=20) as link,
    ):
        link.sendall(START + frame(4, 0, 0))
        for k in range(8):
            stream = 2 * k + 1
            message = b"\0" + struct.pack(">I", size) + b"\x7a" + b"\xfb\xff\xff\x07" + bytes(size - 5)
            link.sendall(frame(1, 4, stream, grpc_head("ModelStreamInfer")))
            for at in range(0, len(message), 16000):
                link.sendall(frame(0, 0, stream, message[at : at + 16000]))
                if at % 1_600_000 == 0:
                    link.sendall(frame(8, 0, 0, struct.pack(">I", 1 << 20)))
            wait_until(lambda: metric(s, "cleave_bytes_held") < 1 << 20)


def test_texts_of_a_message_are_there_once(folder, tmp_path):
    grpc = pytest.importorskip("grpc")
    with serving(folder / "net.clv", "--log", "off", log=tmp_path / "log") as s, grpc.insecure_channel(s.url) as c:
        call = c.unary_unary("/inference.GRPCInferenceService/ModelReady")
        name = b"\x0a\x03net"
        assert call(name, timeout=20) == b"\x08\x01"
        for message, told in ((name * 2, "there twice"), (name + b"\x52\x00" * 70000, "more than 65536 fields")):
            with pytest.raises(grpc.RpcError, match=told):
                call(message, timeout=20)


def test_empty_lines_before_a_request_are_few(folder, tmp_path):
    request = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    with serving(folder / "net.clv", "--log", "off", log=tmp_path / "log") as s:
        for lines, status in ((2, b"200"), (9, b"400"), (20000, b"400")):
            with socket.create_connection(("127.0.0.1", s.port), timeout=20) as link:
                link.sendall(b"\r\n" * lines + request)
                assert link.recv(100).startswith(b"HTTP/1.1 " + status)
        with socket.create_connection(("127.0.0.1", s.port), timeout=20) as link:
            for _ in range(20):  # one by one, too
                with contextlib.suppress(OSError):
                    link.sendall(b"\r\n")
                time.sleep(0.02)
            assert link.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs the command openssl")
def test_keys_of_tls_may_change_within_a_connection(folder, tmp_path):
    cert, key = certificate(tmp_path)
    with serving(folder / "net.clv", "--tls-cert", cert, "--tls-key", key, log=tmp_path / "log") as s:
        command = ["openssl", "s_client", "-connect", s.url, "-CAfile", str(cert), "-tls1_3", "-alpn", "http/1.1"]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert client.stdin
        assert client.stdout
        for line in ["K"] * 20 + ["GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r"]:
            time.sleep(0.05)  # each line is a command of its own
            client.stdin.write(line.encode() + b"\n")
            client.stdin.flush()
        answer = client.stdout.read()
        client.wait(20)
        assert answer.count(b"KEYUPDATE") >= 20
        assert b"HTTP/1.1 200 OK" in answer
