"""Repositories: versions, loads and unloads over gRPC, who is told of them; figures of cuts."""

import hashlib
import json
import queue
import shutil
import threading

import numpy as np
import pytest
import torch
from serving import NEEDS_SERVER, infer_body, save_net, serving

import cleave

pytestmark = NEEDS_SERVER

try:
    import grpc
except ImportError:
    grpc = None

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
        assert "version 1 is not found; only the newest is served, 3" in json.loads(answer)["error"]


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
        ignored = "platform, input, dynamic_batching, version_policy"
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
