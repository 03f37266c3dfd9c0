"""Repositories: versions, loads and unloads over gRPC, who is told of them; figures of cuts."""

import hashlib
import json
import queue
import shutil
import subprocess
import threading
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load
from serving import NEEDS_SERVER, PROGRAM, infer_body, memory_within, save_net, serving

import cleave

pytestmark = NEEDS_SERVER

try:
    import grpc
    import tritonclient.grpc as grpcclient
    import tritonclient.http as httpclient
except ImportError:
    grpc = httpclient = None

NEEDS_GRPC = pytest.mark.skipif(grpc is None, reason="no grpcio")

SERVICE = "/inference.GRPCInferenceService/"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nets")
    save_net(folder)
    return folder


@pytest.fixture
def repository(folder, tmp_path):
    for version in ("1", "3"):
        (tmp_path / "models" / "net" / version).mkdir(parents=True)
        shutil.copy(folder / "net.clv", tmp_path / "models" / "net" / version / "model.clv")
    return tmp_path / "models"


def text(field, value):
    return bytes([field << 3 | 2, len(value)]) + value.encode()


def call(channel, method, message=b"", token=None):
    about = [("authorization", f"Bearer {token}")] if token else []
    return channel.unary_unary(SERVICE + method)(message, metadata=about, timeout=30)


def refused(channel, method, message, token=None):
    with pytest.raises(grpc.RpcError) as error:
        call(channel, method, message, token)
    return error.value


@NEEDS_GRPC
def test_models_are_loaded_and_unloaded_over_grpc(repository, tmp_path):
    with serving("--repository", repository, log=tmp_path / "log") as s, grpc.insecure_channel(s.url) as c:
        assert call(c, "ModelReady", text(1, "net")) == b"\x08\x01"
        assert call(c, "RepositoryModelUnload", text(2, "net")) == b""
        assert call(c, "ModelReady", text(1, "net")) == b""
        assert call(c, "RepositoryModelLoad", text(2, "net")) == b""
        assert call(c, "ModelReady", text(1, "net")) == b"\x08\x01"
        for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
            assert refused(c, method, text(2, "nope")).code() == grpc.StatusCode.NOT_FOUND
        for key in ("config", "file:1/model.clv"):
            entry = text(1, key) + b"\x12\x04" + text(3, "{}")
            error = refused(c, "RepositoryModelLoad", text(2, "net") + bytes([0x1A, len(entry)]) + entry)
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "put the model into the repository" in error.details()


@NEEDS_GRPC
def test_only_an_admin_loads_and_unloads_over_grpc(repository, tmp_path):
    def line(token, rest):
        return f"{hashlib.sha256(token.encode()).hexdigest()} {rest}\n"

    (tmp_path / "tokens").write_text(line("user", "name=user") + line("boss", "admin"))
    options = ["--repository", repository, "--tokens", tmp_path / "tokens"]
    with serving(*options, log=tmp_path / "log") as s, grpc.insecure_channel(s.url) as c:
        for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
            assert refused(c, method, text(2, "net")).code() == grpc.StatusCode.UNAUTHENTICATED
            assert refused(c, method, text(2, "net"), "user").code() == grpc.StatusCode.PERMISSION_DENIED
        assert call(c, "ModelReady", text(1, "net"), "user") == b"\x08\x01"
        assert call(c, "RepositoryModelUnload", text(2, "net"), "boss") == b""
        assert call(c, "ModelReady", text(1, "net"), "user") == b""
        watch = c.unary_stream("/grpc.health.v1.Health/Watch")
        with pytest.raises(grpc.RpcError) as error:
            next(iter(watch(b"", timeout=30)))
        assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED


@NEEDS_GRPC
def test_whoever_watches_is_told_of_each_change(repository, tmp_path):
    with serving("--repository", repository, log=tmp_path / "log") as s, grpc.insecure_channel(s.url) as c:
        told = {"": queue.Queue(), "net": queue.Queue(), "nope": queue.Queue()}

        def watch(service):
            for message in c.unary_stream("/grpc.health.v1.Health/Watch")(text(1, service) if service else b""):
                told[service].put(message[1])
            told[service].put("end")

        threads = [threading.Thread(target=watch, args=(service,)) for service in told]
        for t in threads:
            t.start()
        assert [told[k].get(timeout=30) for k in ("", "net", "nope")] == [1, 1, 3]
        assert call(c, "RepositoryModelUnload", text(2, "net")) == b""
        assert told["net"].get(timeout=30) == 3
        assert call(c, "RepositoryModelLoad", text(2, "net")) == b""
        assert told["net"].get(timeout=30) == 1
        assert s.stop() == 0
        assert [told[""].get(timeout=30), told[""].get(timeout=30)] == [2, "end"]
        for t in threads:
            t.join(30)
        assert told["nope"].get(timeout=30) == "end"


def test_a_version_that_is_not_served_is_refused_with_the_one_that_is(repository, tmp_path):
    body, fields = infer_body({"x": np.ones((1, 4), np.float32)})
    with serving("--repository", repository, log=tmp_path / "log") as s:
        assert s.ask("POST", "/v2/models/net/versions/3/infer", body, fields)[0] == 200
        status, _, answer = s.ask("POST", "/v2/models/net/versions/1/infer", body, fields)
        assert status == 404
        assert "version 1 is not found; served are: 3" in json.loads(answer)["error"]


def figures(server, name):
    lines = server.ask("GET", "/metrics")[2].decode().splitlines()
    return [line for line in lines if line.startswith(f'cleave_executions_total{{model="{name}"')]


def test_cuts_have_statistics_and_metrics_as_long_as_they_are_kept(folder, tmp_path):
    shutil.copy(folder / "net.clv", tmp_path / "net.clv")
    prefix = cleave.load(folder / "prefix.clv")
    prefix.run_prefix(torch.ones(2, 4)).save(tmp_path / "boundary")
    name = "net@after:first"
    path = f"/v2/models/{name}"
    with serving(tmp_path / "net.clv", log=tmp_path / "log") as s:
        assert s.ask("GET", path + "/stats")[0] == 404
        assert figures(s, name) == []
        fields = {"Content-Type": "application/x-safetensors"}
        for _ in range(3):
            status, _, answer = s.ask("POST", path + "/infer", (tmp_path / "boundary").read_bytes(), fields)
            assert status == 200, answer
        status, about = s.json("GET", path + "/stats")
        assert status == 200
        assert about["model_stats"][0]["name"] == name
        assert about["model_stats"][0]["execution_count"] == 3
        names = [m["name"] for m in s.json("GET", "/v2/models/stats")[1]["model_stats"]]
        assert names == ["net", name]
        assert figures(s, name) == [f'cleave_executions_total{{model="{name}",version="1"}} 3']
        assert s.json("POST", "/v2/repository/models/net/load")[0] == 200
        assert s.ask("GET", path + "/stats")[0] == 404
        assert figures(s, name) == []


CONFIG = """
name: "net"   # as the folder
platform: 'pytorch_libtorch'
max_batch_size: 2
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
version_policy: { specific { versions: [1, 2] } }
dynamic_batching { preferred_batch_size: [ 2 ] }
"""


def test_a_configuration_counts_where_it_means_something_and_the_rest_is_named(repository, tmp_path):
    (repository / "net" / "config.pbtxt").write_text(CONFIG)
    body, fields = infer_body({"x": np.ones((1, 4), np.float32)})
    with serving("--repository", repository, "--batching", "fast", log=tmp_path / "log") as s:
        assert s.ask("POST", "/v2/models/net/versions/1/infer", body, fields)[0] == 200
        assert s.ask("POST", "/v2/models/net/versions/3/infer", body, fields)[0] == 404
        assert s.json("GET", "/v2/models/net/config")[1]["max_batch_size"] == 2
        about = s.json("GET", "/v2/models/net")[1]["parameters"]
        ignored = "platform, input, dynamic_batching"
        assert about["config_ignored"] == ignored
        assert f"these fields of config.pbtxt change nothing here: {ignored}" in s.log.read_text()
        (repository / "net" / "config.pbtxt").write_text("max_batch_size: 0")
        assert s.json("POST", "/v2/repository/models/net/load")[0] == 200
        assert s.json("GET", "/v2/models/net")[1]["versions"] == ["3"]
        about = s.json("GET", "/v2/models/net")[1]["parameters"]
        assert (about["batching"], "config_ignored" in about) == (False, False)
        assert "max_batch_size 0" in about["batching_reason"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('name: "other"', 'is of the model "other", its folder is called "net"'),
        ("max_batch_size: many", "line 1: max_batch_size is no number"),
        ("\ninput [ { name: 'x' ", "line 2: there is no name of a field"),
        ('name: "x', "line 1: a text has no end"),
        ("version_policy: { latest { num_versions: 0 } }", "num_versions is no number from 1 on"),
        ("a { " * 40, "nested too deeply"),
        ("}", "no name of a field"),
        ("version_policy: { specific { versions: [ 9 ] } }", "has no folder with a version"),
        ("name: \x01", "does not belong there"),
    ],
)
def test_a_configuration_that_cannot_be_meant_keeps_the_model_out(repository, tmp_path, text, why):
    with serving("--repository", repository, log=tmp_path / "log") as s:
        (repository / "net" / "config.pbtxt").write_text(text)
        status, answer = s.json("POST", "/v2/repository/models/net/load")
        assert status in (400, 404), answer
        assert str(repository) not in str(answer)
        assert why in s.log.read_text()
        assert s.ask("GET", "/v2/models/net/ready")[0] == 200  # the one that runs goes on


# ---- several versions


class Scaled(torch.nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = torch.nn.Parameter(torch.tensor([float(by)]))

    def forward(self, x):
        return x * self.by


def put_version(repository, number):
    """A version that multiplies by its number."""
    folder = repository / "scaled" / str(number)
    folder.mkdir(parents=True)
    with torch.no_grad():
        cleave.capture(Scaled(number).eval(), (torch.ones(2, 4),), dynamic_batch=(1, 4)).save(folder / "model.clv")


@pytest.fixture
def versions(tmp_path):
    for number in (1, 2, 10):
        put_version(tmp_path / "models", number)
    return tmp_path / "models"


def policy(repository, text):
    (repository / "scaled" / "config.pbtxt").write_text(f"version_policy: {{ {text} }}")


def scaled(client, version=""):
    module = grpcclient if isinstance(client, grpcclient.InferenceServerClient) else httpclient
    given = module.InferInput("x", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32))
    answer = client.infer("scaled", [given], model_version=version)
    got = answer.get_response()
    told = got["model_version"] if isinstance(got, dict) else got.model_version
    name = (got["outputs"][0]["name"]) if isinstance(got, dict) else got.outputs[0].name
    return told, float(answer.as_numpy(name)[0, 0])


@NEEDS_GRPC
@pytest.mark.parametrize(
    ("text", "served"),
    [
        ("latest { num_versions: 2 }", ["10", "2"]),
        ("all { }", ["10", "2", "1"]),
        ("specific { versions: [ 1, 10, 77 ] }", ["10", "1"]),
        ("latest { }", ["10"]),
    ],
)
@pytest.mark.parametrize("how", ["rest", "grpc"])
def test_all_versions_that_the_configuration_names_are_served(versions, tmp_path, text, served, how):
    policy(versions, text)
    with serving("--repository", versions, log=tmp_path / "log") as s:
        client = (httpclient if how == "rest" else grpcclient).InferenceServerClient(s.url)
        assert scaled(client) == (served[0], float(served[0]))
        for version in served:
            assert scaled(client, version) == (version, float(version))
            assert client.is_model_ready("scaled", version)
        for version in {"1", "2", "77"} - set(served):
            assert not client.is_model_ready("scaled", version)
            with pytest.raises(Exception, match=f"version {version} is not found; served are: {', '.join(served)}"):
                scaled(client, version)
        if how == "rest":
            assert client.get_model_metadata("scaled")["versions"] == served
            listed = client.get_model_repository_index()
            stats = client.get_inference_statistics("scaled")["model_stats"]
        else:
            assert list(client.get_model_metadata("scaled").versions) == served
            listed = client.get_model_repository_index(as_json=True)["models"]
            stats = client.get_inference_statistics("scaled", as_json=True)["model_stats"]
        assert [(m["name"], m["version"], m["state"]) for m in listed] == [("scaled", v, "READY") for v in served]
        counts = {m["version"]: int(m["inference_stats"]["success"]["count"]) for m in stats}
        assert counts == {v: 2 if v == served[0] else 1 for v in served}
        client.close()


def index_of(server):
    return {m.get("version", ""): m["state"] for m in server.json("POST", "/v2/repository/index")[1]}


def test_versions_come_and_go_and_one_that_is_damaged_takes_no_place(versions, tmp_path):
    policy(versions, "latest { num_versions: 2 }")
    body, fields = infer_body({"x": np.ones((1, 4), np.float32)})
    path = "/v2/models/scaled"
    with serving("--repository", versions, log=tmp_path / "log") as s:
        assert s.ask("POST", f"{path}/versions/2/infer", body, fields)[0] == 200
        (versions / "scaled" / "11").mkdir()
        (versions / "scaled" / "11" / "model.clv").write_bytes(b"none")
        assert s.json("POST", "/v2/repository/models/scaled/load")[0] == 400
        # two are wanted, 11 and 10: 2 stays until both are there
        assert index_of(s) == {"11": "UNAVAILABLE", "10": "READY", "2": "READY"}
        assert s.ask("GET", "/v2/health/ready")[0] == 200
        shutil.rmtree(versions / "scaled" / "11")
        put_version(versions, 12)
        assert s.json("POST", "/v2/repository/models/scaled/load")[0] == 200
        assert index_of(s) == {"12": "READY", "10": "READY"}
        assert s.ask("GET", f"{path}/versions/2/ready")[0] == 400
        assert s.json("POST", "/v2/repository/models/scaled/unload")[0] == 200
        assert index_of(s) == {"": "UNAVAILABLE"}
        assert s.ask("GET", f"{path}/ready")[0] == 400


def test_new_versions_are_taken_up_and_the_others_are_left_as_they_run(versions, tmp_path):
    policy(versions, "all { }")
    with serving("--repository", versions, "--poll", "0.1", log=tmp_path / "log") as s:
        put_version(tmp_path / "away", 11)
        (tmp_path / "away" / "scaled" / "11").rename(versions / "scaled" / "11")
        for _ in range(300):
            if "11" in index_of(s):
                break
            time.sleep(0.05)
        assert index_of(s) == dict.fromkeys(("11", "10", "2", "1"), "READY")
        shutil.rmtree(versions / "scaled" / "2")
        for _ in range(300):
            if "2" not in index_of(s):
                break
            time.sleep(0.05)
        assert index_of(s) == dict.fromkeys(("11", "10", "1"), "READY")
        assert s.log.read_text().count("model scaled version 10 is ready") == 1


def test_a_cut_is_one_of_its_version(folder, tmp_path):
    for version in ("1", "2"):
        (tmp_path / "models" / "net" / version).mkdir(parents=True)
        shutil.copy(folder / "net.clv", tmp_path / "models" / "net" / version / "model.clv")
    (tmp_path / "models" / "net" / "config.pbtxt").write_text("version_policy: { all { } }")
    prefix = cleave.load(folder / "prefix.clv")
    prefix.run_prefix(torch.ones(2, 4)).save(tmp_path / "boundary")
    data, fields = (tmp_path / "boundary").read_bytes(), {"Content-Type": "application/x-safetensors"}
    with serving("--repository", tmp_path / "models", log=tmp_path / "log") as s:
        for version in ("1", "2", "1"):
            status, _, answer = s.ask("POST", f"/v2/models/net@after:first/versions/{version}/infer", data, fields)
            assert status == 200, answer
            assert f'"model_version":"{version}"'.encode() in answer.replace(b" ", b"")
        stats = s.json("GET", "/v2/models/net@after:first/stats")[1]["model_stats"]
        assert {m["version"]: m["execution_count"] for m in stats} == {"1": 2, "2": 1}


# ---- memory of cuts


class Layers(torch.nn.Module):
    """Eight layers of 4 MB each; with norms that are folded into them, which makes their weights anew."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        if kind == "linear":
            self.layers = torch.nn.ModuleList(torch.nn.Linear(1024, 1024) for _ in range(8))
        else:
            self.layers = torch.nn.ModuleList(torch.nn.Conv2d(340, 340, 3, padding=1) for _ in range(8))
            self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(340) for _ in range(8))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = torch.relu(layer(x) if self.kind == "linear" else self.norms[i](layer(x)))
        return x


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_cuts_of_a_model_share_its_packed_weights(tmp_path, kind):
    x = torch.rand(2, 1024) if kind == "linear" else torch.rand(2, 340, 5, 5)
    with torch.no_grad():
        plan = cleave.capture(Layers(kind).eval(), (x,), dynamic_batch=(1, 2))
        plan.save(tmp_path / "net.clv")
        want = plan(x)
    with serving(tmp_path / "net.clv", "--engine", "native", "--threads", "1", log=tmp_path / "log") as s:
        s.ask("POST", "/v2/models/net/infer", *infer_body({"x": x.numpy()}))
        with memory_within(s.process.pid, 14 << 20):  # the weights behind six cuts are 108 MB
            for k in range(6):
                cut = [tmp_path / f"{part}{k}.clv" for part in ("prefix", "suffix")]
                split = [PROGRAM, "split", tmp_path / "net.clv", "--boundary", f"after:layers.{k}", "-o", *cut]
                subprocess.run(split, check=True, capture_output=True)
                cleave.load(cut[0], engine="native").run_prefix(x).save(tmp_path / "boundary")
                fields = {"Content-Type": "application/x-safetensors", "Accept": "application/x-safetensors"}
                data = (tmp_path / "boundary").read_bytes()
                status, _, answer = s.ask("POST", f"/v2/models/net@after:layers.{k}/infer", data, fields)
                assert status == 200, answer
                (out,) = load(answer).values()
                assert torch.allclose(out, want, rtol=1e-4, atol=1e-5)
