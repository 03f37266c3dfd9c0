"""`cleave serve` among people who mean harm: whatever they send, the others are served meanwhile."""

import contextlib
import http.client
import json
import random
import socket
import struct
import subprocess
import threading
import time

import numpy as np
import pytest
from serving import (
    NEEDS_SERVER,
    PROGRAM,
    infer_body,
    memory_within,
    read_boundary,
    save_net,
    serving,
    write_boundary,
    zstd_zeros,
)

pytestmark = NEEDS_SERVER


X = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def server(folder):
    save_net(folder)
    options = ["--header-timeout", "1", "--idle-timeout", "2", "--max-body", "1Mi", "--max-json", "64Ki"]
    options += ["--max-held", "8Mi", "--max-connections", "200", "--log", "off"]
    with serving(folder / "net.clv", folder / "suffix.clv", *options, log=folder / "log") as s:
        yield s


@pytest.fixture(scope="module")
def right(server):
    status, got, answer = server.ask("POST", "/v2/models/net/infer", *infer_body({"x": X}))
    assert status == 200
    return answer[int(got["inference-header-content-length"]) :]


@pytest.fixture(autouse=True)
def serves_others(server, right):
    """During each attack another client gets its answers; after it the process is the same one."""
    wrong, asked, stop = [], [], threading.Event()

    def other():
        link, kept = None, False
        while not stop.is_set():
            try:
                kept = link is not None
                link = link or http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
                link.request("POST", "/v2/models/net/infer", *infer_body({"x": X}))
                answer = link.getresponse()
                body = answer.read()
                asked.append(answer.status)
                if answer.status != 200 or body[-len(right) :] != right:
                    wrong.append((answer.status, body))
            except (OSError, http.client.HTTPException) as e:
                link = None
                if not kept:  # one that was idle for too long may be closed
                    wrong.append(repr(e))
            time.sleep(0.01)

    client = threading.Thread(target=other)
    client.start()
    while not asked and not wrong:
        time.sleep(0.001)
    yield
    stop.set()
    client.join()
    assert not wrong
    assert server.process.poll() is None
    status, got, answer = server.ask("POST", "/v2/models/net/infer", *infer_body({"x": X}))
    assert status == 200
    assert len(answer) - int(got["inference-header-content-length"]) == 2 * 3 * 4


def send(server, data, wait=5.0):
    """All that comes back until the server ends the connection, or it has been quiet for `wait` seconds."""
    got = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as link, contextlib.suppress(OSError):
        link.sendall(data)
        while more := link.recv(65536):
            got += more
    return got


def request(fields, body=b"", line="POST /v2/models/net/infer HTTP/1.1"):
    return "\r\n".join([line, "Host: x", *fields, "", ""]).encode() + body


@pytest.mark.parametrize(
    "fields",
    [
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5", "Content-Length: 5"],
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding: xchunked"],
        ["Content-Length: +5"],
        ["Content-Length: 5 5"],
        ["Content-Length: -1"],
        ["Content-Length: 0x5"],
        ["Content-Length: 99999999999999999999999"],
        ["Content-Length : 5"],
        ["Content-Length: 5\n"],
        ["X: 1", " folded: 2"],
        ["Content-Length: 5\x00"],
        ["Host: second"],
        ["No colon"],
    ],
)
def test_requests_that_two_readers_understand_differently_are_refused(server, fields):
    smuggled = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    got = send(server, request(fields, b"hello" + smuggled))
    assert got.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501", b"HTTP/1.1 413"))
    assert got.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "chunks",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"-5\r\nhello\r\n",
        b"ffffffffffffffffffff\r\n",
        b"\r\n\r\n",
        b"5;" + b"x" * 20000 + b"\r\nhello\r\n0\r\n\r\n",
        b"g\r\n",
        b"0\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
    ],
)
def test_chunks_that_lie_are_refused(server, chunks):
    got = send(server, request(["Transfer-Encoding: chunked"], chunks))
    assert got.startswith(b"HTTP/1.1 400")


def test_chunks_in_any_pieces_make_the_same_request(server):
    body, fields = infer_body({"x": X})
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
    head = [f"{k}: {v}" for k, v in fields.items()]
    got = send(server, request([*head, "Transfer-Encoding: chunked", "Connection: close"], pieces + b"0\r\n\r\n"))
    assert got.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 90,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\x7f HTTP/1.1\r\nHost: x\r\n\r\n",
        b"G\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 3000 + b"\r\n",
        b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        b"\r\n" * 5000,
    ],
)
def test_what_is_no_request_ends_the_connection(server, data):
    got = send(server, data)
    assert not got.startswith(b"HTTP/1.1 200")


def test_slow_heads_and_bodies_are_given_up(server):
    links = []
    for k in range(60):
        link = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        link.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\nX-A: " if k % 2 else request(["Content-Length: 100000"]))
        links.append(link)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for link in links:
            with contextlib.suppress(OSError):
                link.send(b"a")
        assert server.ask("GET", "/v2/health/live")[0] == 200
        time.sleep(0.2)
    for link in links:
        link.settimeout(10)
        with contextlib.suppress(ConnectionError):
            while link.recv(4096):
                pass
        link.close()


def test_more_connections_than_allowed_are_closed_and_the_rest_is_served(server):
    links = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(300)]
    links[0].sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert links[0].recv(100).startswith(b"HTTP/1.1 200")
    for link in links:
        link.close()
    time.sleep(0.3)


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server):
    got = send(server, request(["Content-Length: 1000000000000"]))
    assert got.startswith(b"HTTP/1.1 413")
    got = send(server, request(["Transfer-Encoding: chunked"], b"100000\r\n" + b"a" * 0x100000 + b"\r\n5\r\nabcde\r\n"))
    assert got.startswith(b"HTTP/1.1 413")


def test_lengths_that_lie_hold_no_memory(server):
    links = []
    for _ in range(100):
        link = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        link.sendall(request(["Content-Length: 1000000"], b"abc"))
        links.append(link)
    with open(f"/proc/{server.process.pid}/status") as f:
        resident = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
    assert server.ask("POST", "/v2/models/net/infer", *infer_body({"x": X}))[0] == 200
    assert resident < 600_000  # kB; 100 MB were promised
    for link in links:
        link.close()


def claim(shape, size, datatype="FP32"):
    return {"inputs": [{"name": "x", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}]}


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (claim([2, 4], 1 << 62), b""),
        (claim([2, 4], -1), b""),
        (claim([1 << 60], 4), b"abcd"),
        (claim([0, 4], 0), b""),
        (claim([2, 4], 32), b"a" * 33),
        ({"inputs": [{"name": "x", "shape": [1] * 40, "datatype": "FP32", "data": [1]}]}, b""),
        ({"inputs": {}}, b""),
        ({"inputs": [1, 2]}, b""),
        ({"inputs": [{"name": "x\u0000y", "shape": [2, 4], "datatype": "FP32", "data": []}]}, b""),
        ({}, b""),
    ],
)
def test_binary_tensors_that_lie_are_refused(server, head, body):
    text = json.dumps(head).encode()
    fields = {"Inference-Header-Content-Length": str(len(text))}
    status, _, answer = server.ask("POST", "/v2/models/net/infer", text + body, fields)
    assert status == 400, answer
    status, _, answer = server.ask("POST", "/v2/models/net/infer", text, {"Inference-Header-Content-Length": "99999"})
    assert status == 400


@pytest.mark.parametrize(
    "text", [b"[" * 60000, b'{"a":' * 10000, b"{", b'{"inputs":[], "inputs":[]}', b"\xff\xfe", b'"x"']
)
def test_json_that_is_none_is_refused(server, text):
    status, _, answer = server.ask("POST", "/v2/models/net/infer", text)
    assert status == 400, answer


def test_json_that_is_too_large_is_refused(server):
    status, _, _ = server.ask("POST", "/v2/models/net/infer", b"[" + b"1," * 50000 + b"1]")
    assert status == 413


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "%2e%2e",
        "..%2fnet",
        "net%2f..%2fnet",
        "net%00",
        "%",
        "%zz",
        "net%0d%0aX:%20y",
        "a" * 20000,
        "net@" + "x" * 5000,
        "net@..",
        "net@after:../../x",
        "net@at:nan",
        "@",
        "net@",
        "%ff%fe",
    ],
)
def test_names_of_models_lead_nowhere_else(server, folder, name):
    status, _, answer = server.ask("GET", f"/v2/models/{name}")
    assert status in (400, 404, 431), answer
    assert str(folder).encode() not in answer


# ---- boundaries -----------------------------------------------------------------------------------------------------

BOUNDARY = {"Content-Type": "application/x-safetensors"}


@pytest.fixture(scope="module")
def boundary(folder, server):
    np.save(folder / "x.npy", X)
    command = [PROGRAM, "run", folder / "prefix.clv", "--input", f"x={folder / 'x.npy'}", "-o", folder / "boundary"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "boundary"


def ask_boundary(server, body):
    status, _, answer = server.ask("POST", "/v2/models/suffix/infer", body, BOUNDARY)
    return status, answer


def test_boundaries_that_are_damaged_are_refused(server, boundary):
    good = boundary.read_bytes()
    status, right = ask_boundary(server, good)
    assert status == 200
    chance = random.Random(1)
    for k in range(300):
        data = bytearray(good[: chance.randrange(1, len(good))] if k % 2 else good)
        for _ in range(k % 4 + 1):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        status, answer = ask_boundary(server, bytes(data))
        assert status in (400, 409) or answer == right, (k, answer)


def test_boundaries_whose_header_was_damaged_are_answered(server, boundary):
    said, entries = read_boundary(boundary)
    text = json.dumps(said)
    chance = random.Random(2)
    for _ in range(300):
        at = chance.randrange(len(text))
        other = text[:at] + chance.choice('0159-"{}[],:eB%. ') + text[at + 1 :]
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            status, answer = ask_boundary(server, write_boundary(json.loads(other), entries))
            assert status in (200, 400, 409, 413), answer


BOMB = 48 << 20  # bytes of a tensor that is posted as a few


def bomb(said, encoding, shape, strides=None):
    """The boundary with one tensor of this shape, compressed."""
    n = 4 * int(np.prod(shape)) if strides is None else 4 * (sum((a - 1) * b for a, b in zip(shape, strides)) + 1)
    dense = 4 * int(np.prod(shape))
    strides = strides or [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    said["tensors"][0].update(shape=list(shape), strides=strides)
    said["memory"][0].update(encoding=encoding)
    if encoding == "zstd":
        data = zstd_zeros(dense)
    else:
        said["memory"][0].update(error="0.0", relative_error="0.0")
        data = zstd_zeros(8 + dense // 32)
    return n, write_boundary(said, {"%1": ({"dtype": "U8", "shape": [len(data)]}, data)})


@pytest.mark.parametrize("encoding", ["zstd", "q1"])
@pytest.mark.parametrize("how", ["shape", "size", "strides", "elsewhere", "weights", "aside"])
def test_a_boundary_that_grows_has_no_memory_before_it_is_known_to_fit(server, boundary, encoding, how):
    said, entries = read_boundary(boundary)
    rows = BOMB // 32
    expected = 400
    if how == "shape":
        _, body = bomb(said, encoding, [2, BOMB // 8])
    elif how == "size":  # true to its own header
        said["sizes"]["B"] = said["batch_size"] = rows
        _, body = bomb(said, encoding, [rows, 8])
    elif how == "strides":  # few elements, far from each other
        _, body = bomb(said, encoding, [2, 8], [BOMB // 8, 1])
        expected = 413
    elif how in ("elsewhere", "weights"):
        said.update({"split_id": "f" * 16} if how == "elsewhere" else {"weight_version": 1})
        _, body = bomb(said, encoding, [rows, 8])
        expected = 409
    else:  # a value that no suffix asked for
        plain = json.loads(json.dumps(said))
        _, body = bomb(said, encoding, [rows, 8])
        other, more = said["memory"][0], said["tensors"][0]
        (data,) = (body[-len(zstd_zeros(BOMB if encoding == "zstd" else 8 + BOMB // 32)) :],)
        plain["memory"].append({**other, "entry": "more"})
        plain["tensors"].append({**more, "label": "more", "memory": 1, "boundary": False})
        body = write_boundary(plain, {**entries, "more": ({"dtype": "U8", "shape": [len(data)]}, data)})
        expected = 200
    assert len(body) < 4 << 20
    with memory_within(server.process.pid, 16 << 20):
        for _ in range(3):
            status, answer = ask_boundary(server, body)
            assert status == expected, answer


# ---- HTTP/2 ---------------------------------------------------------------------------------------------------------

START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


SETTINGS = frame(4, 0, 0)
# :method GET, :scheme http, :path /v2/health/live, :authority x; indexed where the static table has it
HEAD = bytes([0x82, 0x86]) + b"\x04\x0f/v2/health/live" + b"\x01\x01x"
POST = bytes([0x83, 0x86]) + b"\x04\x15/v2/models/net/infer?" + b"\x01\x01x"


def test_a_stream_may_send_a_large_tensor_without_waiting_for_round_trips(server):
    got = send(server, START + SETTINGS, wait=1)
    (n,) = struct.unpack(">I", b"\0" + got[:3])
    settings = dict(struct.iter_unpack(">HI", got[9 : 9 + n]))
    assert got[3] == 4
    assert settings[4] >= 4 << 20


def kinds(data):
    """Of the frames that came."""
    out = []
    while len(data) >= 9:
        out.append(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return out


def attack(server, frames):
    """Sends until the server ends the connection; what came back. Fails where it goes on."""
    got = []
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:

        def read():
            with contextlib.suppress(OSError):
                while more := link.recv(65536):
                    got.append(more)

        reading = threading.Thread(target=read)
        reading.start()
        with contextlib.suppress(OSError):
            for data in frames:
                link.sendall(data)
                if not reading.is_alive():
                    break
        reading.join(15)
        assert not reading.is_alive(), "the connection is still open"
    return b"".join(got)


def test_rapid_resets_end_the_connection(server):
    def frames():
        yield START + SETTINGS
        for k in range(200_000):
            yield frame(1, 5, 2 * k + 1, HEAD) + frame(3, 0, 2 * k + 1, struct.pack(">I", 8))

    with memory_within(server.process.pid, 16 << 20):
        got = attack(server, frames())
    assert 7 in kinds(got)  # GOAWAY


def test_continued_heads_without_end_are_given_up(server):
    def frames():
        yield START + SETTINGS + frame(1, 1, 1, HEAD)
        for _ in range(100_000):
            yield frame(9, 0, 1, b"\x00\x01a\x01b" * 1000)

    with memory_within(server.process.pid, 16 << 20):
        got = attack(server, frames())
    assert 7 in kinds(got)


def test_floods_of_pings_and_settings_are_bounded(server):
    send(server, START + SETTINGS + frame(6, 0, 0, b"12345678") * 20000, wait=2)
    send(server, START + SETTINGS * 20000, wait=2)
    send(server, START + frame(4, 0, 0, struct.pack(">HI", 4, 1) * 1000) * 50, wait=2)


@pytest.mark.parametrize(
    "frames",
    [
        frame(0, 0, 0, b"data on no stream"),
        frame(8, 0, 0, struct.pack(">I", 0)),
        frame(8, 0, 0, struct.pack(">I", 0x7FFFFFFF)) * 3,
        frame(1, 5, 2, HEAD),
        frame(1, 5, 1, b"\xff\xff\xff\xff\xff\xff"),
        frame(1, 5, 1, HEAD + b"\x00\x04Host\x01y"),
        frame(1, 4, 1, POST + b"\x00\x0econtent-length\x0215") + frame(0, 1, 1, b"abc"),
        frame(5, 4, 1, b"\0\0\0\2" + HEAD),
        frame(1, 5, 1, b"\x02\x07CONNECT" + b"\x01\x01x"),
        frame(99, 0, 1, b"unknown"),
        b"\xff" * 100,
    ],
)
def test_frames_that_make_no_sense_do_no_harm(server, frames):
    send(server, START + SETTINGS + frames, wait=2.5)


def test_streams_that_never_end_are_given_up(server):
    data = START + SETTINGS + b"".join(frame(1, 4, 2 * k + 1, POST) for k in range(100))
    start = time.monotonic()
    send(server, data, wait=20)
    assert time.monotonic() - start < 15


def test_a_client_that_closes_its_window_is_given_up(server):
    small = frame(4, 0, 0, struct.pack(">HI", 4, 1))  # a window of one byte per stream
    head = bytes([0x82, 0x86]) + b"\x04\x03/v2" + b"\x01\x01x"
    start = time.monotonic()
    send(server, START + small + b"".join(frame(1, 5, 2 * k + 1, head) for k in range(100)), wait=20)
    assert time.monotonic() - start < 15


def test_grpc_frames_that_lie_are_refused(server):
    head = bytes([0x83, 0x86]) + b"\x04\x2f/inference.GRPCInferenceService/ModelStreamInfer" + b"\x01\x01x"
    head = head[:3] + bytes([len("/inference.GRPCInferenceService/ModelStreamInfer")]) + head[4:]
    head += b"\x00\x0ccontent-type\x10application/grpc"
    for message in (b"\0\xff\xff\xff\xff", b"\1\0\0\0\1a", b"\0\0\0\0\5ab", b"\0\0\0\0\2\xff\xff" * 50):
        send(server, START + SETTINGS + frame(1, 4, 1, head) + frame(0, 1, 1, message), wait=2.5)


def test_random_bytes_after_the_start_do_no_harm(server):
    chance = random.Random(7)
    for _ in range(30):
        kinds = []
        for _ in range(40):
            payload = chance.randbytes(chance.randrange(60))
            kinds.append(frame(chance.randrange(11), chance.randrange(64), chance.randrange(8), payload))
        send(server, START + SETTINGS + b"".join(kinds), wait=0.3)
