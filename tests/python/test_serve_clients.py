"""`cleave serve` and the clients that others wrote: tritonclient over HTTP and gRPC, curl over HTTP/2, h2load."""

import json
import os
import queue
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from serving import NEEDS_SERVER, certificate, cut, infer_body, save_net, serving

import cleave

pytestmark = NEEDS_SERVER


try:
    import tritonclient.grpc as grpcclient
    import tritonclient.http as httpclient
except ImportError:
    grpcclient = httpclient = None

NEEDS_TRITONCLIENT = pytest.mark.skipif(grpcclient is None, reason="no tritonclient")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def model(folder):
    return save_net(folder)


@pytest.fixture(scope="module")
def server(folder, model):
    with serving(folder / "net.clv", folder / "suffix.clv", log=folder / "log") as s:
        yield s


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    module = {"http": httpclient, "grpc": grpcclient}[request.param]
    with module.InferenceServerClient(server.url) as c:
        yield module, c


X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


def expected(model, x=X):
    with torch.no_grad():
        return model(torch.from_numpy(x)).numpy()


def inputs(module, x=X):
    one = module.InferInput("x", list(x.shape), "FP32")
    one.set_data_from_numpy(x)
    return [one]


@NEEDS_TRITONCLIENT
def test_tritonclient_infers(client, model):
    module, c = client
    result = c.infer("net", inputs(module), request_id="a7")
    np.testing.assert_array_equal(result.as_numpy("output"), expected(model))
    answer = result.get_response()
    assert (answer["id"] if module is httpclient else answer.id) == "a7"


@NEEDS_TRITONCLIENT
def test_tritonclient_names_outputs_and_versions(client, model):
    module, c = client
    result = c.infer("net", inputs(module), "1", outputs=[module.InferRequestedOutput("output")])
    np.testing.assert_array_equal(result.as_numpy("output"), expected(model))
    with pytest.raises(Exception, match="unexpected inference output 'what'"):
        c.infer("net", inputs(module), outputs=[module.InferRequestedOutput("what")])


@NEEDS_TRITONCLIENT
def test_tritonclient_asks_about_the_server(client):
    module, c = client
    assert c.is_server_live()
    assert c.is_server_ready()
    assert c.is_model_ready("net")
    assert not c.is_model_ready("nope")
    about = c.get_server_metadata()
    assert (about["name"] if module is httpclient else about.name) == "cleave"


@NEEDS_TRITONCLIENT
def test_tritonclient_reads_metadata_config_and_statistics(client):
    module, c = client
    extra = {} if module is httpclient else {"as_json": True}
    about = c.get_model_metadata("net", **extra)
    assert about["inputs"][0]["name"] == "x"
    assert [int(d) for d in about["inputs"][0]["shape"]] == [-1, 4]
    config = c.get_model_config("net", **extra)
    config = config.get("config", config)
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    stats = c.get_inference_statistics("net", **extra)["model_stats"]
    assert stats[0]["name"] == "net"
    index = c.get_model_repository_index(**extra)
    index = index if isinstance(index, list) else index["models"]
    assert {m["name"] for m in index} == {"net", "suffix"}


@NEEDS_TRITONCLIENT
def test_configuration_and_statistics_of_batches_are_as_triton_has_them(client, folder, model, tmp_path):
    module, _ = client
    extra = {} if module is httpclient else {"as_json": True}
    batching = ["--batching", "fast"]  # by any engine
    with serving(folder / "net.clv", *batching, log=tmp_path / "log") as s, module.InferenceServerClient(s.url) as c:
        config = c.get_model_config("net", **extra)
        config = config.get("config", config)
        sizes = s.json("GET", "/v2/models/net")[1]["parameters"]["batching_sizes"]
        assert config["dynamic_batching"]["preferred_batch_size"] == sizes
        assert config["max_batch_size"] == sizes[-1] >= 3
        assert [int(d) for d in config["input"][0]["dims"]] == [4]
        assert [int(d) for d in config["output"][0]["dims"]] == [3]
        for rows in (1, 3, 3):
            c.infer("net", inputs(module, np.ones((rows, 4), np.float32)))
        (stats,) = c.get_inference_statistics("net", **extra)["model_stats"]
        assert (int(stats["inference_count"]), int(stats["execution_count"])) == (7, 3)
        runs = {int(b["batch_size"]): int(b["compute_infer"]["count"]) for b in stats["batch_stats"]}
        assert runs == {1: 1, 3: 2}
        assert int(stats["inference_stats"]["success"]["count"]) == 3
        assert "cache_hit" in stats["inference_stats"]


@NEEDS_TRITONCLIENT
def test_tritonclient_feeds_a_suffix_by_labels(client, model):
    module, c = client
    extra = {} if module is httpclient else {"as_json": True}
    (label,) = [i["name"] for i in c.get_model_metadata("suffix", **extra)["inputs"]]
    hidden = np.maximum(model.first(torch.from_numpy(X)).detach().numpy(), -1000)
    one = module.InferInput(label, list(hidden.shape), "FP32")
    one.set_data_from_numpy(hidden)
    np.testing.assert_array_equal(c.infer("suffix", [one]).as_numpy("output"), expected(model))


@NEEDS_TRITONCLIENT
@pytest.mark.parametrize(("name", "text"), [("nope", "unknown model: 'nope'"), ("a/../net", "unknown|no such")])
def test_tritonclient_is_told_of_unknown_models(client, name, text):
    module, c = client
    with pytest.raises(Exception, match=text):
        c.infer(name, inputs(module))


@NEEDS_TRITONCLIENT
def test_tritonclient_sends_json_too(server, model):
    with httpclient.InferenceServerClient(server.url) as c:
        one = httpclient.InferInput("x", [3, 4], "FP32")
        one.set_data_from_numpy(X, binary_data=False)
        wanted = httpclient.InferRequestedOutput("output", binary_data=False)
        np.testing.assert_array_equal(c.infer("net", [one], outputs=[wanted]).as_numpy("output"), expected(model))


@NEEDS_TRITONCLIENT
def test_tritonclient_finds_the_three_ports_of_triton(folder, model, tmp_path):
    ports = [word for what in ("http", "grpc", "metrics") for word in (f"--{what}-port", "0")]
    with serving(folder / "net.clv", *ports, log=tmp_path / "log") as s:
        grpc_url = f"127.0.0.1:{s.other_port('gRPC')}"
        with httpclient.InferenceServerClient(s.url) as c:
            np.testing.assert_array_equal(c.infer("net", inputs(httpclient)).as_numpy("output"), expected(model))
        with grpcclient.InferenceServerClient(grpc_url) as c:
            np.testing.assert_array_equal(c.infer("net", inputs(grpcclient)).as_numpy("output"), expected(model))
        status, _, text = s.ask("GET", "/metrics", port=s.other_port("metrics"))
        assert status == 200
        assert b'cleave_inferences_total{model="net",version="1"}' in text


@NEEDS_TRITONCLIENT
def test_a_port_answers_only_what_it_is_for(folder, model, tmp_path):
    ports = [word for what in ("http", "grpc", "metrics") for word in (f"--{what}-port", "0")]
    with serving(folder / "net.clv", *ports, log=tmp_path / "log") as s:
        grpc, metrics = s.other_port("gRPC"), s.other_port("metrics")
        assert len({s.port, grpc, metrics}) == 3
        assert s.ask("GET", "/metrics")[0] == 404
        for path in ("/v2", "/v2/health/live", "/v2/models/net", "/metrics"):
            assert s.ask("GET", path, port=grpc)[0] == 404
        for path in ("/v2", "/v2/health/live", "/v2/models/net"):
            assert s.ask("GET", path, port=metrics)[0] == 404
        for port in (s.port, metrics):
            with grpcclient.InferenceServerClient(f"127.0.0.1:{port}") as c:
                with pytest.raises(Exception, match="answers no gRPC"):
                    c.infer("net", inputs(grpcclient))
    with serving(folder / "net.clv", "--http-port", "0", log=tmp_path / "log2") as s:
        assert s.ask("GET", "/v2")[0] == 200
        assert s.ask("GET", "/metrics")[0] == 404


@NEEDS_TRITONCLIENT
def test_grpc_streams_answer_in_order(server, model):
    with grpcclient.InferenceServerClient(server.url) as c:
        got = queue.Queue()
        c.start_stream(lambda result, error: got.put((result, error)))
        for i in range(30):
            c.async_stream_infer("net" if i != 7 else "nope", inputs(grpcclient, X + i), request_id=str(i))
        for i in range(30):
            result, error = got.get(timeout=60)
            if i == 7:
                assert "unknown model" in str(error)
                continue
            assert error is None
            assert result.get_response().id == str(i)
            np.testing.assert_array_equal(result.as_numpy("output"), expected(model, X + i))
        c.stop_stream()


@NEEDS_TRITONCLIENT
def test_grpc_takes_numbers_in_the_message(server, model):
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    with grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="net")
        one = request.inputs.add(name="x", datatype="FP32", shape=[3, 4])
        one.contents.fp32_contents.extend(X.ravel())
        answer = stub.ModelInfer(request)
        np.testing.assert_array_equal(
            np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(3, 3), expected(model)
        )
        one.shape[0] = 1 << 40
        with pytest.raises(grpc.RpcError) as error:
            stub.ModelInfer(request)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@NEEDS_TRITONCLIENT
def test_grpc_codes_are_those_of_the_protocol(server):
    import grpc

    with grpc.insecure_channel(server.url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/Nothing")
        with pytest.raises(grpc.RpcError) as error:
            call(b"")
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")
        with pytest.raises(grpc.RpcError) as error:
            call(b"\x0a\x04nope")
        assert error.value.code() == grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError) as error:
            call(b"\xff\xff\xff")
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"") == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as error:
            check(b"\x0a\x04nope")
        assert error.value.code() == grpc.StatusCode.NOT_FOUND


@NEEDS_TRITONCLIENT
def test_many_clients_over_grpc_get_their_own_answers(server, model):
    with grpcclient.InferenceServerClient(server.url) as c:
        got = queue.Queue()
        wanted = {}
        for i in range(100):
            x = np.full((1 + i % 4, 4), i, np.float32)
            wanted[str(i)] = expected(model, x)
            c.async_infer(
                "net",
                inputs(grpcclient, x),
                lambda result, error, i=i: got.put((str(i), result, error)),
                request_id=str(i),
            )
        for _ in range(100):
            i, result, error = got.get(timeout=60)
            assert error is None
            assert result.get_response().id == i
            np.testing.assert_array_equal(result.as_numpy("output"), wanted[i])


@NEEDS_TRITONCLIENT
def test_large_tensors_come_back_whole_over_both(tmp_path):
    class Twice(torch.nn.Module):
        def forward(self, x):
            return x + x

    cleave.capture(Twice(), (torch.ones(1, 1 << 20),)).save(tmp_path / "twice.clv")
    x = np.arange(1 << 20, dtype=np.float32).reshape(1, -1)
    with serving(tmp_path / "twice.clv", log=tmp_path / "log") as s:
        for module in (httpclient, grpcclient):
            with module.InferenceServerClient(s.url) as c:
                for _ in range(3):
                    np.testing.assert_array_equal(c.infer("twice", inputs(module, x)).as_numpy("output"), 2 * x)


class Corner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.ReLU()

    def forward(self, x):
        return self.first(x)[:, :3] + 1


@pytest.fixture(scope="module")
def tight(tmp_path_factory):
    """A server that has room for one request of 3 MB, but not for a copy of it."""
    folder = tmp_path_factory.mktemp("tight")
    cleave.capture(Corner().eval(), (torch.ones(1, 750_000),)).save(folder / "corner.clv")
    cut(folder / "corner.clv", "after:first")
    files = [folder / f"{name}.clv" for name in ("corner", "prefix", "suffix")]
    with serving(*files, "--max-held", "5M", log=folder / "log") as s:
        yield s, folder


LARGE = np.arange(750_000, dtype=np.float32).reshape(1, -1)


@pytest.mark.parametrize("extra", range(4))
def test_large_tensors_are_used_where_they_came(tight, extra):
    s, _ = tight
    body, fields = infer_body({"x": LARGE})
    n = int(fields["Inference-Header-Content-Length"])
    fields["Inference-Header-Content-Length"] = str(n + extra)
    status, _, answer = s.ask("POST", "/v2/models/corner/infer", body[:n] + b" " * extra + body[n:], fields)
    assert status == 200, answer


@pytest.mark.parametrize("extra", range(3))
def test_boundaries_are_used_where_they_came(tight, extra):
    s, folder = tight
    file = folder / "boundary"
    cleave.load(folder / "prefix.clv").run_prefix(torch.from_numpy(LARGE)).save(file)
    data = file.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    data = struct.pack("<Q", n + 8 * extra) + data[8 : 8 + n] + b" " * (8 * extra) + data[8 + n :]
    fields = {"Content-Type": "application/x-safetensors"}
    status, _, answer = s.ask("POST", "/v2/models/suffix/infer", data, fields)
    assert status == 200, answer
    assert json.loads(answer)["outputs"][0]["data"] == [1, 2, 3]


@NEEDS_TRITONCLIENT
def test_large_tensors_of_messages_are_used_where_they_came(tight):
    s, _ = tight
    one = grpcclient.InferInput("x", list(LARGE.shape), "FP32")
    one.set_data_from_numpy(LARGE)
    with grpcclient.InferenceServerClient(s.url) as c:
        for k in range(4):  # the tensor starts elsewhere each time
            answer = c.infer("corner", [one], request_id="a" * k)
            np.testing.assert_array_equal(answer.as_numpy("output"), [[1, 2, 3]])


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl")
@pytest.mark.parametrize("version", ["--http1.1", "--http2", "--http2-prior-knowledge"])
def test_curl_in_every_version(server, version):
    done = subprocess.run(
        [
            "curl",
            "-sS",
            version,
            "-m",
            "20",
            f"http://{server.url}/v2/models/net",
            "-w",
            "%{http_code} %{http_version}",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" 200 2" if "prior" in version else "200 1.1") or "200 2" in done.stdout


@NEEDS_TRITONCLIENT
@pytest.mark.skipif(not shutil.which("curl") or not shutil.which("openssl"), reason="no curl or openssl")
def test_tls_offers_both_versions_and_grpc(folder, model, tmp_path):
    cert, key = certificate(tmp_path)
    with serving(folder / "net.clv", "--tls-cert", cert, "--tls-key", key, log=tmp_path / "log") as s:
        for version in ("--http1.1", "--http2"):
            done = subprocess.run(
                ["curl", "-sS", version, "-m", "20", "--cacert", cert, f"https://{s.url}/v2", "-w", "%{http_version}"],
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout.endswith("1.1" if version == "--http1.1" else "2")
        done = subprocess.run(["curl", "-sS", "--tls-max", "1.2", "-k", f"https://{s.url}/v2"], capture_output=True)
        assert done.returncode != 0
        with grpcclient.InferenceServerClient(s.url, ssl=True, root_certificates=str(cert)) as c:
            np.testing.assert_array_equal(c.infer("net", inputs(grpcclient)).as_numpy("output"), expected(model))


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl")
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_client_that_sends_too_much_is_told_so(folder, model, tmp_path, tls):
    body, where = bytes(8 << 20), "/v2/models/net/infer"
    options = ["--max-body", "1Mi"]
    if tls:
        cert, key = certificate(tmp_path)
        options += ["--tls-cert", cert, "--tls-key", key]
        trusted = ssl.create_default_context(cafile=cert)
    with serving(folder / "net.clv", *options, log=tmp_path / "log") as s:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", s.port), timeout=30) as plain:
                link = trusted.wrap_socket(plain, server_hostname="127.0.0.1") if tls else plain
                link.sendall(f"POST {where} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode())
                time.sleep(0.05)  # the answer is sent, and nobody reads what comes
                link.sendall(body)
                assert link.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.skipif(not shutil.which("curl") or not shutil.which("openssl"), reason="no curl or openssl")
def test_clients_without_a_certificate_stay_outside(folder, model, tmp_path):
    cert, key = certificate(tmp_path)
    options = ["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert]
    with serving(folder / "net.clv", *options, log=tmp_path / "log") as s:
        base = ["curl", "-sS", "-m", "20", "--cacert", cert, f"https://{s.url}/v2"]
        assert subprocess.run(base, capture_output=True).returncode != 0
        assert subprocess.run([*base, "--cert", cert, "--key", key], capture_output=True).returncode == 0


def perf_analyzer():
    """Triton's generator of load, and the environment that it starts in; or why it does not."""
    folder = Path(sys.prefix) / "perf_analyzer" / "bin"
    program = shutil.which("perf_analyzer", path=f"{folder}{os.pathsep}{os.environ['PATH']}")
    if not program:
        return None, "no perf_analyzer"
    libraries = Path(program).parents[1] / "nvidia" / "cuda_runtime" / "lib"
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    done = subprocess.run([program, "--version"], capture_output=True, text=True, env=environment)
    return ((program, environment), "") if done.returncode == 0 else (None, f"perf_analyzer: {done.stderr}")


@pytest.fixture(scope="module")
def batched(folder, model, tmp_path_factory):
    """The native engine, which keeps a row's bits in every batch: torch does so on some processors only."""
    with serving(folder / "net.clv", "--engine", "native", log=tmp_path_factory.mktemp("batched") / "log") as s:
        yield s


@pytest.mark.parametrize("more", [[], ["-b", "4", "--concurrency-range", "4"]], ids=["single", "batches"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_measures_it_unchanged(batched, protocol, more):
    known, why = perf_analyzer()
    if not known:
        pytest.skip(why)
    program, environment = known
    window = ["--request-count", "200"]  # however long that takes
    done = subprocess.run(
        [program, "-m", "net", "-i", protocol, "-u", batched.url, *window, "--verbose", *more],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert re.search(r"Inference count: [1-9]", said), said
    assert re.search(r"Throughput: [1-9]", said), said
    assert "Failed requests" not in said, said


@pytest.fixture(scope="module")
def secure(folder, model, tmp_path_factory):
    """The same over TLS, and the certificate."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl")
    here = tmp_path_factory.mktemp("secure")
    cert, key = certificate(here)
    with serving(folder / "net.clv", "--tls-cert", cert, "--tls-key", key, log=here / "log") as s:
        yield s, cert


@pytest.fixture(params=["plain", "tls"])
def link(request, server):
    """Where to ask, and what curl has to believe."""
    if request.param == "plain":
        return server, f"http://{server.url}", []
    s, cert = request.getfixturevalue("secure")
    return s, f"https://{s.url}", ["--cacert", str(cert)]


def request_file(folder, x=X):
    """A request with a binary body, and its fields as words of a command."""
    body, fields = infer_body({"x": x})
    (folder / "body").write_bytes(body)
    return folder / "body", [word for k, v in fields.items() for word in ("-H", f"{k}: {v}")]


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl")
@pytest.mark.parametrize("version", ["--http1.1", "--http2", "--http2-prior-knowledge"])
def test_curl_infers_in_every_version(link, model, tmp_path, version):
    _, url, more = link
    body, fields = request_file(tmp_path)
    command = ["curl", "-sS", version, "-m", "20", *more, *fields, "--data-binary", f"@{body}"]
    files = ["-D", tmp_path / "heads", "-o", tmp_path / "got"]
    done = subprocess.run([*command, *files, f"{url}/v2/models/net/infer"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    n = int(re.search(r"(?i)inference-header-content-length: (\d+)", (tmp_path / "heads").read_text())[1])
    assert (tmp_path / "got").read_bytes()[n:] == expected(model).tobytes()


NEEDS_H2LOAD = pytest.mark.skipif(not shutil.which("h2load"), reason="no h2load")


@NEEDS_H2LOAD
def test_h2load_loses_no_request(server):
    done = subprocess.run(
        ["h2load", "-n", "2000", "-c", "8", "-m", "16", f"http://{server.url}/v2/health/ready"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "2000 succeeded, 0 failed" in done.stdout, done.stdout


@NEEDS_H2LOAD
@pytest.mark.parametrize("version", [[], ["--h1"]], ids=["http2", "http1"])
def test_h2load_infers_and_loses_no_request(link, tmp_path, version):
    s, url, _ = link

    def answered():
        (stats,) = s.json("GET", "/v2/models/net/stats")[1]["model_stats"] if url.startswith("http:") else (None,)
        return stats and stats["inference_stats"]["success"]["count"]

    body, fields = request_file(tmp_path)
    before = answered()
    streams = ["-m", "8"] if not version else []
    done = subprocess.run(
        ["h2load", "-n", "1000", "-c", "8", *streams, *version, "-d", body, *fields, f"{url}/v2/models/net/infer"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "1000 succeeded, 0 failed" in done.stdout, done.stdout
    assert "status codes: 1000 2xx" in done.stdout, done.stdout
    if before is not None:
        assert answered() == before + 1000
