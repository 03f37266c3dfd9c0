"""`cleave serve`: the REST form of the Open Inference Protocol, boundaries, files that change, ending."""

import json
import re
import shutil
import socket
import subprocess
import threading
import time

import numpy as np
import pytest
import safetensors.torch
import torch
from serving import NEEDS_SERVER, PROGRAM, Net, Server, cut, infer_body, save_net, serving

import cleave

pytestmark = NEEDS_SERVER


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="module")
def model(folder):
    return save_net(folder)


@pytest.fixture(scope="module")
def server(folder, model):
    files = [folder / f"{name}.clv" for name in ("net", "prefix", "suffix")]
    with serving(*files, log=folder / "log") as s:
        yield s


@pytest.fixture(scope="module")
def x():
    return torch.randint(-9, 10, (2, 4), generator=torch.Generator().manual_seed(1)).float()


def expected(model, x):
    with torch.no_grad():
        return model(x)


def boundary_of(folder, x) -> bytes:
    np.save(folder / "x.npy", x.numpy())
    subprocess.run(
        [PROGRAM, "run", folder / "prefix.clv", "--input", f"x={folder / 'x.npy'}", "-o", folder / "boundary"],
        check=True,
        capture_output=True,
    )
    return (folder / "boundary").read_bytes()


SAFETENSORS = {"Content-Type": "application/x-safetensors", "Accept": "application/x-safetensors"}


def test_a_whole_model_answers_in_json(server, model, x):
    body = {"id": "7", "inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": x.tolist()}]}
    status, answer = server.json("POST", "/v2/models/net/infer", body)
    assert status == 200, answer
    out = answer["outputs"][0]
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("7", "net", "1")
    assert (out["datatype"], out["shape"]) == ("FP32", [2, 3])
    assert torch.equal(torch.tensor(out["data"], dtype=torch.float32).reshape(2, 3), expected(model, x))


def test_binary_tensors_come_back_bit_for_bit(server, model, x):
    body, fields = infer_body({"x": x.numpy()})
    status, got, answer = server.ask("POST", "/v2/models/net/versions/1/infer", body, fields)
    assert status == 200, answer
    head = int(got["inference-header-content-length"])
    assert json.loads(answer[:head])["outputs"][0]["parameters"] == {"binary_data_size": 24}
    assert answer[head:] == expected(model, x).numpy().tobytes()


def test_a_raw_body_is_the_only_input(server, model, x):
    fields = {"Inference-Header-Content-Length": "0", "Content-Type": "application/octet-stream"}
    status, got, answer = server.ask("POST", "/v2/models/net/infer", x.numpy().tobytes(), fields)
    assert status == 200, answer
    assert answer[int(got["inference-header-content-length"]) :] == expected(model, x).numpy().tobytes()


def test_a_suffix_takes_the_boundary_of_its_prefix(server, folder, model, x):
    status, fields, answer = server.ask("POST", "/v2/models/suffix/infer", boundary_of(folder, x), SAFETENSORS)
    assert status == 200, answer
    assert fields["content-type"] == "application/x-safetensors"
    (out,) = safetensors.torch.load(answer).values()
    assert torch.equal(out, expected(model, x))


def test_a_prefix_over_the_network_gives_the_boundary(server, model, x):
    body, fields = infer_body({"x": x.numpy()})
    fields["Accept"] = "application/x-safetensors"
    status, _, boundary = server.ask("POST", "/v2/models/prefix/infer", body, fields)
    assert status == 200, boundary
    status, _, answer = server.ask("POST", "/v2/models/suffix/infer", boundary, SAFETENSORS)
    (out,) = safetensors.torch.load(answer).values()
    assert status == 200
    assert torch.equal(out, expected(model, x))


def test_each_tensor_of_a_boundary_is_an_input_by_its_label(server, folder, model, x):
    status, about = server.json("GET", "/v2/models/suffix")
    assert status == 200
    assert about["parameters"]["part"] == "suffix"
    payload = cleave.BoundaryPayload.from_bytes(boundary_of(folder, x))
    tensors = {i["name"]: payload.tensors[i["name"]].numpy() for i in about["inputs"]}
    body, fields = infer_body(tensors)
    status, got, answer = server.ask("POST", "/v2/models/suffix/infer", body, fields)
    assert status == 200, answer
    assert answer[int(got["inference-header-content-length"]) :] == expected(model, x).numpy().tobytes()


def test_any_suffix_of_a_whole_model_is_served_on_its_weights(server, folder, model, x):
    status, about = server.json("GET", "/v2/models/net@after:first")
    assert status == 200, about
    assert about["parameters"]["part"] == "suffix"
    status, _, answer = server.ask("POST", "/v2/models/net@after:first/infer", boundary_of(folder, x), SAFETENSORS)
    assert status == 200, answer
    (out,) = safetensors.torch.load(answer).values()
    assert torch.equal(out, expected(model, x))
    status, answer = server.json("GET", "/v2/models/net@after:nowhere")
    assert status == 404
    assert "nowhere" in answer["error"]


def test_a_boundary_of_other_weights_is_a_conflict(server, tmp_path, x):
    model = Net().eval()
    model.second.bias.data += 1
    cleave.capture(model, (x,), dynamic_batch=(1, 16)).save(tmp_path / "other.clv")
    cut(tmp_path / "other.clv", "after:first")
    status, _, answer = server.ask("POST", "/v2/models/suffix/infer", boundary_of(tmp_path, x), SAFETENSORS)
    assert status == 409, answer
    assert "weights" in json.loads(answer)["error"]


def test_a_boundary_for_a_whole_model_is_refused(server, folder, x):
    status, _, answer = server.ask("POST", "/v2/models/net/infer", boundary_of(folder, x), SAFETENSORS)
    assert status == 400
    assert "no suffix" in json.loads(answer)["error"]


def test_the_server_says_what_it_is(server):
    status, about = server.json("GET", "/v2")
    assert status == 200
    assert about["name"] == "cleave"
    assert "binary_tensor_data" in about["extensions"]
    assert server.ask("GET", "/v2/health/live")[0] == 200
    assert server.ask("GET", "/v2/health/ready")[::2] == (200, b"")
    assert server.ask("GET", "/v2/models/net/ready")[0] == 200
    assert server.ask("GET", "/v2/models/nope/ready")[0] == 400


def test_metadata_config_and_statistics(server, x):
    status, about = server.json("GET", "/v2/models/net/versions/1")
    assert status == 200
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert about["outputs"][0]["shape"] == [-1, 3]
    status, config = server.json("GET", "/v2/models/net/config")
    assert status == 200
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    before = server.json("GET", "/v2/models/net/stats")[1]["model_stats"][0]["inference_count"]
    server.ask("POST", "/v2/models/net/infer", *infer_body({"x": x.numpy()}))
    after = server.json("GET", "/v2/models/stats")[1]["model_stats"][0]
    assert after["name"] == "net"
    rows = len(x) if about["parameters"]["batching"] else 1  # as Triton counts
    assert after["inference_count"] == before + rows
    assert after["inference_stats"]["compute_infer"]["ns"] > 0


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"name": "y"}, 400, "unexpected inference input 'y' for model 'net'"),
        ({"datatype": "FP64"}, 400, "data-type is 'FP64', but model 'net' expects 'FP32'"),
        ({"datatype": "FP31"}, 400, "there is no datatype 'FP31'"),
        ({"shape": [2, 5]}, 400, "fewer elements"),
        ({"shape": [2, 3]}, 400, "more elements"),
        ({"shape": [-2, 4]}, 400, "negative"),
        ({"shape": [1 << 62, 1 << 62]}, 400, "bytes"),
        ({"data": [[1, 2, 3, 4], ["a", 2, 3, 4]]}, 400, "no number"),
        ({"data": None}, 400, "no data"),
        ({"parameters": {"binary_data_size": 32}}, 400, "binary_data_size"),
        ({"parameters": {"shared_memory_region": "r"}}, 400, "shared memory"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_with_the_reason(server, x, change, status, text):
    one = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": x.tolist(), **change}
    got, answer = server.json("POST", "/v2/models/net/infer", {"inputs": [one]})
    assert (got, text in answer["error"]) == (status, True), answer


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/v2/models/nope", 404, "Request for unknown model: 'nope' is not found"),
        ("GET", "/v2/models/net/versions/9", 404, "version 9"),
        ("GET", "/v2/models/net/versions/x", 400, "version"),
        ("GET", "/v2/models/net/infer", 405, ""),
        ("GET", "/v2/repository/index", 405, ""),
        ("GET", "/v2/models/net/what", 404, ""),
        ("GET", "/nothing", 404, ""),
        ("GET", "/v2/models/%2e%2e%2fnet", 404, "unknown model"),
        ("GET", "/v2/models/..%2f..%2fetc%2fpasswd", 404, "unknown model"),
        ("GET", "/v2/models/net%00", 400, "malformed"),
    ],
)
def test_paths_that_lead_nowhere(server, method, path, status, text):
    got, answer = server.json(method, path)
    assert got == status
    assert text in answer["error"]


class Lookups(torch.nn.Module):
    """Operators that refuse some numbers, in ways of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(6, 3)

    def forward(self, k: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = self.table(k)
        return rows, rows.gather(1, (k % 100)[:, None]), torch.nn.functional.one_hot(k, 6), 60 // d


@pytest.mark.parametrize("engine", ["tape", "native"])
@pytest.mark.parametrize("options", [(), ("--sandbox",), ("--batching", "fast")], ids=["here", "sandbox", "batches"])
def test_numbers_that_an_operator_refuses_are_the_clients_fault(tmp_path, engine, options):
    k, d = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])
    cleave.capture(Lookups().eval(), (k, d), dynamic_batch=(1, 8)).save(tmp_path / "net.clv")
    with serving(tmp_path / "net.clv", "--engine", engine, *options, log=tmp_path / "log") as s:
        for wrong, why in (((k + 9, d), "range"), ((-k, d), ""), ((k, d - 1), "zero|Zero"), ((k + 3, d), "bounds")):
            body, fields = infer_body({n: t.numpy() for n, t in zip("kd", wrong, strict=True)})
            status, _, text = s.ask("POST", "/v2/models/net/infer", body, fields)
            assert status == 400, text
            assert re.search(why, text.decode()), text
            body, fields = infer_body({"k": k.numpy(), "d": d.numpy()})
            assert s.ask("POST", "/v2/models/net/infer", body, fields)[0] == 200


@pytest.mark.parametrize("name", ["net@50%", "net@50%25", "net%4050%", "%6eet@50%"])
def test_a_percent_sign_that_escapes_nothing_is_itself(server, name):
    status, answer = server.json("GET", f"/v2/models/{name}")
    assert (status, answer["parameters"]["part"]) == (200, "suffix"), answer


def test_a_name_is_unescaped_once(server):
    status, answer = server.json("GET", "/v2/models/%256eet")
    assert (status, "'%6eet' is not found" in answer["error"]) == (404, True), answer


def test_sizes_that_were_not_recorded_are_refused(server):
    body, fields = infer_body({"x": np.zeros((17, 4), np.float32)})
    status, _, answer = server.ask("POST", "/v2/models/net/infer", body, fields)
    assert status == 400
    assert b"17" in answer


def test_one_connection_serves_request_after_request(server, model, x):
    body, fields = infer_body({"x": x.numpy()})
    head = "".join(f"{k}: {v}\r\n" for k, v in fields.items())
    request = f"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as link:
        link.sendall((request + body) * 20)  # all at once
        got = b""
        while got.count(expected(model, x).numpy().tobytes()) < 20:
            more = link.recv(65536)
            assert more, got
            got += more


def test_clients_at_the_same_time_get_their_own_answers(server, model):
    wrong = []

    def client(k):
        for i in range(20):
            x = torch.full((1 + k % 4, 4), float(k * 100 + i))
            status, got, answer = server.ask("POST", "/v2/models/net/infer", *infer_body({"x": x.numpy()}))
            if status != 200 or answer[int(got["inference-header-content-length"]) :] != (
                expected(model, x).numpy().tobytes()
            ):
                wrong.append((k, i, status))

    threads = [threading.Thread(target=client, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_repository_is_listed_loaded_and_unloaded(folder, model, tmp_path, x):
    (tmp_path / "models/net/1").mkdir(parents=True)
    shutil.copy(folder / "net.clv", tmp_path / "models/net/1/model.clv")
    with serving("--repository", tmp_path / "models", log=tmp_path / "log") as s:
        status, index = s.json("POST", "/v2/repository/index")
        assert (status, index) == (200, [{"name": "net", "version": "1", "state": "READY", "reason": ""}])
        (tmp_path / "models/net/3").mkdir()
        shutil.copy(folder / "net.clv", tmp_path / "models/net/3/model.clv")
        shutil.copy(folder / "suffix.clv", tmp_path / "models/new.clv")
        assert s.ask("POST", "/v2/repository/models/net/load")[0] == 200
        assert s.json("GET", "/v2/models/net")[1]["versions"] == ["3"]
        assert s.ask("POST", "/v2/repository/models/new/load")[0] == 200
        assert s.json("GET", "/v2/models/new")[1]["parameters"]["part"] == "suffix"
        assert s.ask("POST", "/v2/repository/models/new/unload")[0] == 200
        assert s.ask("GET", "/v2/models/new")[0] == 404
        status, answer = s.json("POST", "/v2/repository/models/..%2fnet/load")
        assert status == 404
        assert str(tmp_path) not in answer["error"]


def test_a_damaged_file_does_not_take_the_place_of_a_model_that_runs(folder, tmp_path, x):
    (tmp_path / "models").mkdir()
    shutil.copy(folder / "net.clv", tmp_path / "models/net.clv")
    with serving("--repository", tmp_path / "models", log=tmp_path / "log") as s:
        (tmp_path / "models/net.clv").write_bytes(b"damaged")
        status, answer = s.json("POST", "/v2/repository/models/net/load")
        assert status == 400
        assert str(tmp_path) not in answer["error"]
        assert s.ask("POST", "/v2/models/net/infer", *infer_body({"x": x.numpy()}))[0] == 200


def test_it_ends_when_it_is_told_to(folder, model, tmp_path):
    with serving(folder / "net.clv", log=tmp_path / "log") as s:
        idle = socket.create_connection(("127.0.0.1", s.port))
        time.sleep(0.2)
        assert s.stop() == 0
        assert idle.recv(1) == b""


def test_it_listens_beyond_this_machine_only_when_that_is_safe_or_meant(folder, model):
    done = subprocess.run(
        [PROGRAM, "serve", folder / "net.clv", "--host", "0.0.0.0", "--port", "0"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "other machines" in done.stderr


def test_check_loads_everything_and_ends(folder, model, tmp_path):
    assert subprocess.run([PROGRAM, "serve", "--check", folder / "net.clv"], capture_output=True).returncode == 0
    (tmp_path / "bad.clv").write_bytes(b"no model")
    assert subprocess.run([PROGRAM, "serve", "--check", tmp_path / "bad.clv"], capture_output=True).returncode == 1


def test_a_check_leaves_the_server_that_runs_alone(folder, model, tmp_path):
    with serving(folder / "net.clv", "--state", tmp_path / "state", log=tmp_path / "log") as s:
        same = ["--port", str(s.port), "--state", tmp_path / "state"]
        done = subprocess.run([PROGRAM, "serve", folder / "net.clv", *same, "--check"], capture_output=True, text=True)
        assert (done.returncode, "all models can be served" in done.stderr) == (0, True), done.stderr
        done = subprocess.run([PROGRAM, "serve", folder / "net.clv", *same], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.splitlines() == [f"cleave: cannot listen at 127.0.0.1 port {s.port}: Address already in use"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--host", "999.1.1.1"], "address 999.1.1.1: "),
        (["--idle-timeout", "0"], "idle_timeout is out of range"),
        (["--tls-cert", "nope.pem", "--tls-key", "nope.pem"], "nope.pem: No such file or directory"),
        (["=net.clv"], '"=net.clv" names no model'),
    ],
)
def test_options_that_cannot_be_meant_are_named(folder, model, options, text):
    done = subprocess.run([PROGRAM, "serve", folder / "net.clv", *options], capture_output=True, text=True)
    assert done.returncode == 1
    assert text in done.stderr


def test_a_request_that_is_no_http_is_answered_and_ended(server: Server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as link:
        link.sendall(b"hello\r\n\r\n")
        assert link.recv(4096).startswith(b"HTTP/1.1 400")


class Renames(torch.nn.Module):
    """Returns other names on negative data."""

    def forward(self, x):
        return {"b": x + 1, "c": x} if x.sum() < 0 else {"a": x, "b": x + 1}


def test_outputs_have_the_names_of_the_way_through_the_model(tmp_path):
    cleave.capture(Renames().eval(), (torch.ones(2),), variants=[(-torch.ones(2),)]).save(tmp_path / "m.clv")
    ways = {1: [("a", [1, 1]), ("b", [2, 2])], -1: [("b", [0, 0]), ("c", [-1, -1])]}
    with serving(tmp_path / "m.clv", log=tmp_path / "log") as s:
        for sign in (1, -1, 1):
            body = {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [sign, sign]}]}
            status, answer = s.json("POST", "/v2/models/m/infer", body)
            assert status == 200, answer
            assert [(o["name"], o["data"]) for o in answer["outputs"]] == ways[sign]
        body["outputs"] = [{"name": "c"}]
        status, answer = s.json("POST", "/v2/models/m/infer", body)
        assert status == 400
        assert "unexpected inference output 'c'" in answer["error"]
