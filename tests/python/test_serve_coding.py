"""Compressed bodies and messages: what clients ask for, and what others would like them to be."""

import gzip
import json
import queue
import re
import shutil
import struct
import subprocess
import zlib

import numpy as np
import pytest
import torch
from serving import NEEDS_SERVER, infer_body, save_net, serving

import cleave

pytestmark = NEEDS_SERVER

try:
    import tritonclient.grpc as grpcclient
    import tritonclient.http as httpclient
except ImportError:
    grpcclient = httpclient = None

NEEDS_TRITONCLIENT = pytest.mark.skipif(grpcclient is None, reason="no tritonclient")
NEEDS_CURL = pytest.mark.skipif(not shutil.which("curl"), reason="no curl")
PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress}
CODINGS = pytest.mark.parametrize("coding", ["gzip", "deflate"])


class Twice(torch.nn.Module):
    def forward(self, x):
        return x + x


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coding")
    save_net(folder)
    cleave.capture(Twice(), (torch.ones(1, 1 << 18),)).save(folder / "twice.clv")
    return folder


@pytest.fixture(scope="module")
def server(folder):
    files = [folder / "net.clv", folder / "suffix.clv", folder / "twice.clv"]
    with serving(*files, "--max-body", "32Mi", log=folder / "log") as s:
        yield s
        assert held(s) == 0


def held(server):
    text = server.ask("GET", "/metrics")[2].decode()
    return int(re.search(r"^cleave_bytes_held (\d+)", text, re.MULTILINE)[1])


WIDE = np.tile(np.arange(1 << 10, dtype=np.float32), 1 << 8).reshape(1, -1)  # becomes much smaller
NOISE = np.random.default_rng(0).random((1, 1 << 18), dtype=np.float32)  # does not


def ask(server, coding, body, fields, model="net", more=None):
    packed = {"Content-Encoding": coding, **fields, **(more or {})}
    return server.ask("POST", f"/v2/models/{model}/infer", body, packed)


@CODINGS
@pytest.mark.parametrize("x", [WIDE, NOISE], ids=["small", "noise"])
def test_bodies_may_be_compressed_both_ways(server, coding, x):
    body, fields = infer_body({"x": x})
    status, got, answer = ask(server, coding, PACK[coding](body), fields, "twice", {"Accept-Encoding": coding})
    assert status == 200, answer
    if x is WIDE:
        assert got["content-encoding"] == coding
        assert len(answer) < x.nbytes / 2
        answer = UNPACK[coding](answer)
    else:
        assert "content-encoding" not in got  # nothing would be saved
    assert answer[int(got["inference-header-content-length"]) :] == (2 * x).tobytes()


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        ("gzip, deflate, br", "gzip"),
        ("br;q=1, deflate;q=0.5", "deflate"),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip;q=0.000", None),
        ("br", None),
        ("xgzip, gzipx", None),
        ("identity", None),
    ],
)
def test_the_answer_is_in_a_coding_that_the_client_takes(server, accept, coding):
    body, fields = infer_body({"x": WIDE})
    status, got, _ = server.ask("POST", "/v2/models/twice/infer", body, {**fields, "Accept-Encoding": accept})
    assert status == 200
    assert got.get("content-encoding") == coding


def test_json_and_boundaries_may_be_compressed(server, folder):
    text = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()
    status, _, answer = ask(server, "gzip", gzip.compress(text), {})
    assert status == 200, answer
    boundary = folder / "boundary"
    prefix = cleave.load(folder / "prefix.clv")
    prefix.run_prefix(torch.ones(2, 4)).save(boundary)
    fields = {"Content-Type": "application/x-safetensors"}
    plain = server.ask("POST", "/v2/models/suffix/infer", boundary.read_bytes(), fields)
    packed = ask(server, "deflate", zlib.compress(boundary.read_bytes()), fields, "suffix")
    assert (plain[0], plain[2]) == (packed[0], packed[2])
    assert plain[0] == 200
    status, _, index = server.ask(
        "POST", "/v2/repository/index", gzip.compress(b'{"ready":true}'), {"Content-Encoding": "gzip"}
    )
    assert (status, len(json.loads(index))) == (200, 3)


@NEEDS_TRITONCLIENT
@CODINGS
def test_tritonclient_compresses_requests_and_answers(server, coding):
    one = httpclient.InferInput("x", [1, 1 << 18], "FP32")
    one.set_data_from_numpy(WIDE)
    with httpclient.InferenceServerClient(server.url) as c:
        result = c.infer("twice", [one], request_compression_algorithm=coding, response_compression_algorithm=coding)
        np.testing.assert_array_equal(result.as_numpy("output"), 2 * WIDE)
    one = grpcclient.InferInput("x", [1, 1 << 18], "FP32")
    one.set_data_from_numpy(WIDE)
    with grpcclient.InferenceServerClient(server.url) as c:
        result = c.infer("twice", [one], compression_algorithm=coding)
        np.testing.assert_array_equal(result.as_numpy("output"), 2 * WIDE)


@NEEDS_TRITONCLIENT
@CODINGS
def test_messages_of_a_stream_may_be_compressed(server, coding):
    one = grpcclient.InferInput("x", [1, 1 << 18], "FP32")
    one.set_data_from_numpy(WIDE)
    got = queue.Queue()
    with grpcclient.InferenceServerClient(server.url) as c:
        c.start_stream(lambda result, error: got.put((result, error)), compression_algorithm=coding)
        for i in range(4):
            c.async_stream_infer("twice" if i != 2 else "nope", [one], request_id=str(i))
        for i in range(4):
            result, error = got.get(timeout=60)
            if i == 2:
                assert "unknown model" in str(error)
            else:
                assert error is None
                np.testing.assert_array_equal(result.as_numpy("output"), 2 * WIDE)
        c.stop_stream()


def call(server, folder, message, flag=1, fields=(), length=None):
    """One call of gRPC by curl: fields of the answer, its body."""
    frame = struct.pack(">BI", flag, len(message) if length is None else length) + message
    (folder / "frame").write_bytes(frame)
    heads = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    for f in fields:
        heads += ["-H", f]
    url = f"http://{server.url}/inference.GRPCInferenceService/ModelInfer"
    command = ["curl", "-sS", "-m", "60", "--http2-prior-knowledge", *heads, "--data-binary", f"@{folder / 'frame'}"]
    done = subprocess.run([*command, "-D", folder / "heads", "-o", folder / "got", url], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (folder / "heads").read_text(), (folder / "got").read_bytes() if (folder / "got").exists() else b""


def grpc_request(x):
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name="twice")
    request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    request.raw_input_contents.append(x.tobytes())
    return request.SerializeToString()


@NEEDS_TRITONCLIENT
@NEEDS_CURL
@CODINGS
def test_a_call_is_answered_in_the_coding_that_it_came_in(server, tmp_path, coding):
    from tritonclient.grpc import service_pb2

    heads, body = call(server, tmp_path, PACK[coding](grpc_request(WIDE)), fields=[f"grpc-encoding: {coding}"])
    assert f"grpc-encoding: {coding}" in heads
    flag, n = struct.unpack(">BI", body[:5])
    assert (flag, n) == (1, len(body) - 5)
    answer = service_pb2.ModelInferResponse.FromString(UNPACK[coding](body[5:]))
    assert answer.raw_output_contents[0] == (2 * WIDE).tobytes()
    heads, body = call(server, tmp_path, grpc_request(WIDE), flag=0)
    assert "grpc-encoding: g" not in heads
    assert body[0] == 0


# ---- from others


@CODINGS
def test_bombs_are_refused_before_they_are_large(server, coding):
    body, fields = infer_body({"x": np.zeros((1, 20 << 20), np.float32)})
    packed = PACK[coding](body)
    assert len(packed) < 100_000
    status, _, answer = ask(server, coding, packed, fields)
    assert status == 413, answer
    assert b"times larger" in answer
    body, fields = infer_body({"x": np.tile(NOISE, (1, 36))})  # 36 MiB of what hardly becomes smaller
    status, _, answer = ask(server, coding, PACK[coding](body)[: 31 << 20], fields)
    assert status in (400, 413), answer
    layers = PACK[coding](PACK[coding](body[:1000]))
    assert ask(server, coding, layers, fields)[0] == 400  # one layer is taken off
    assert held(server) == 0


def test_many_bombs_at_once_stay_within_what_the_server_holds(folder, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    body, fields = infer_body({"x": np.zeros((1, 2 << 20), np.float32)})
    packed = gzip.compress(body)
    limits = ["--max-held", "16Mi", "--max-body", "8Mi", "--workers", "4"]
    with serving(folder / "net.clv", *limits, log=tmp_path / "log") as s:
        with ThreadPoolExecutor(16) as pool:
            got = list(pool.map(lambda _: ask(s, "gzip", packed, fields)[0], range(48)))
        assert set(got) <= {400, 413, 503}
        assert held(s) == 0
        status, _, answer = s.ask("POST", "/v2/models/net/infer", *infer_body({"x": np.ones((1, 4), np.float32)}))
        assert status == 200, answer


def lying_size(data):
    return data[:-4] + struct.pack("<I", 1 << 30)


@pytest.mark.parametrize(
    ("coding", "change", "text"),
    [
        ("gzip", lying_size, "damaged"),
        ("gzip", lambda d: d[:-9], "too early"),
        ("gzip", lambda d: d[:5], "too early"),
        ("gzip", lambda d: d + b"x", "more behind"),
        ("gzip", lambda d: d + d, "more behind"),
        ("gzip", lambda d: d[:20] + bytes([d[20] ^ 255]) + d[21:], "damaged|too early|Inference-Header|behind"),
        ("gzip", zlib.compress, "damaged"),
        ("deflate", lambda d: d, "damaged"),
    ],
)
def test_compressed_bodies_that_lie_are_refused(server, coding, change, text):
    body, fields = infer_body({"x": np.ones((2, 4), np.float32)})
    data = gzip.compress(body)
    status, _, answer = ask(server, coding, change(data), fields)
    assert status == 400
    assert re.search(text, answer.decode()), answer


def test_lengths_inside_a_compressed_body_are_checked_too(server):
    body, fields = infer_body({"x": np.ones((2, 4), np.float32)})
    for n in (len(body) + 1, 1 << 40):
        status, _, answer = ask(
            server, "gzip", gzip.compress(body), {**fields, "Inference-Header-Content-Length": str(n)}
        )
        assert (status, b"Inference-Header" in answer) == (400, True)
    head = body.replace(b'"binary_data_size": 32', b'"binary_data_size": 99')
    assert head != body
    assert ask(server, "gzip", gzip.compress(head), fields)[0] == 400
    status, got, answer = ask(server, "br", body, fields)
    assert (status, got["accept-encoding"]) == (415, "gzip, deflate")
    assert ask(server, "gzip, gzip", gzip.compress(gzip.compress(body)), fields)[0] == 415


@NEEDS_TRITONCLIENT
@NEEDS_CURL
@pytest.mark.parametrize(
    ("flag", "encoding", "pack", "length", "status"),
    [
        (1, "gzip", lambda m: gzip.compress(m + b"\x3a\x80\x80\x80\x20" + bytes(64 << 20)), None, "8"),
        (1, None, gzip.compress, None, "3"),
        (2, "gzip", gzip.compress, None, "3"),
        (1, "gzip", zlib.compress, None, "3"),
        (1, "gzip", lambda m: gzip.compress(m)[:-3], None, "3"),
        (1, "gzip", gzip.compress, 1 << 30, "3"),
        (1, "gzip", gzip.compress, 7, "3"),
        (1, "br", gzip.compress, None, "12"),
    ],
    ids=["bomb", "unsaid", "flag", "other", "short", "long", "part", "unknown"],
)
def test_compressed_messages_that_lie_are_refused(server, tmp_path, flag, encoding, pack, length, status):
    fields = [f"grpc-encoding: {encoding}"] if encoding else []
    heads, _ = call(server, tmp_path, pack(grpc_request(NOISE[:, :4])), flag, fields, length)
    assert f"grpc-status: {status}\n" in heads.replace("\r", ""), heads


def test_nobody_without_a_token_has_anything_inflated(folder, tmp_path):
    (tmp_path / "tokens").write_text("0" * 64 + "\n")
    _, fields = infer_body({"x": np.ones((2, 4), np.float32)})
    with serving(folder / "net.clv", "--tokens", tmp_path / "tokens", log=tmp_path / "log") as s:
        assert ask(s, "gzip", b"no gzip at all", fields)[0] == 401


# ---- times


@NEEDS_CURL
def test_http2_says_how_long_it_waited_and_ran(server, tmp_path):
    body, fields = infer_body({"x": np.ones((1, 4), np.float32)})
    (tmp_path / "body").write_bytes(body)
    heads = [word for k, v in fields.items() for word in ("-H", f"{k}: {v}")]
    command = ["curl", "-sS", "-m", "20", "--http2-prior-knowledge", *heads, "--data-binary", f"@{tmp_path / 'body'}"]
    url = f"http://{server.url}/v2/models/net/infer"
    done = subprocess.run([*command, "-D", "-", "-o", tmp_path / "got", url], capture_output=True, text=True)
    assert re.search(r"server-timing: queue;dur=\d+\.\d+, compute;dur=\d+\.\d+", done.stdout), done.stdout


@NEEDS_TRITONCLIENT
def test_grpc_says_so_in_its_trailers(server):
    import grpc

    with grpc.insecure_channel(server.url) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        _, about = infer.with_call(grpc_request(NOISE))
        timing = dict(about.trailing_metadata())["server-timing"]
        assert re.fullmatch(r"queue;dur=\d+\.\d+, compute;dur=\d+\.\d+", timing)
