"""Clients of `cleave serve`: `connect`, `runtime.remote`, `cleave run --remote`; and `calibrate`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from serving import PROGRAM, Net, Server, certificate, save_net, serving
from test_cli_run import COMMAND

import cleave
from cleave.errors import ArgumentError, InputError, RemoteError


def can_serve() -> bool:
    if COMMAND is None:
        return False
    return subprocess.run([COMMAND, "serve", "--help"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_serve(), reason="no cleave command with a server")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    save_net(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(folder / "net.clv", folder / "suffix.clv", log=tmp_path_factory.mktemp("log") / "log") as s:
        yield s


@pytest.fixture(scope="module")
def split() -> cleave.SplitRuntime:
    spec = cleave.SplitSpec(boundary="after:first", dynamic_batch=(1, 16))
    return cleave.prepare_split(Net().eval(), example_inputs=torch.randn(2, 4), split=spec)


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return off(a, b) < 1e-5


def off(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_a_whole_model_is_called_as_if_it_were_here(server: Server) -> None:
    net = cleave.connect(f"http://{server.url}/net")
    x = torch.randn(3, 4)
    assert near(net(x), Net().eval()(x))
    assert near(net(x=x), Net().eval()(x))
    assert [(p.name, p.dtype, p.shape) for p in net.inputs] == [("x", "f32", (-1, 4))]
    assert net.metadata["parameters"]["part"] == "all"
    assert net.ping() > 0
    for wrong in ((), (x, x)):
        with pytest.raises(InputError, match="takes x"):
            net(*wrong)
    with pytest.raises(InputError, match="expected f32"):
        net(x.double())


@pytest.mark.parametrize("model", ["net@after:first", "suffix", "net@50%", "net@50%25"])
def test_the_suffix_runs_there_and_the_prefix_here(server: Server, folder: Path, model: str) -> None:
    prefix = cleave.load(folder / "prefix.clv", sandbox=False)
    there = cleave.connect(f"http://{server.url}/{model}")
    x = torch.randn(5, 4)
    want = Net().eval()(x)
    assert near(there.run_suffix(prefix.run_prefix(x)), want)
    times = there.times
    assert times is not None
    assert times.tries == 1
    assert times.total >= times.send + times.wait + times.receive
    assert times.compute >= 0
    assert times.queue >= 0
    rough = there.run_suffix(prefix.run_prefix(x), compress="q6")
    assert 0 < off(rough, want) < 0.1


@pytest.mark.parametrize("part", ["all", "suffix"])
def test_a_split_in_python_has_its_suffix_there(split: cleave.SplitRuntime, tmp_path: Path, part: str) -> None:
    split.save(tmp_path / "half.clv", parts=None if part == "all" else part)
    with serving(tmp_path / "half.clv", log=tmp_path / "log") as s:
        url = f"http://{s.url}/half{'@after:first' if part == 'all' else ''}"
        both = split.remote(url, fallback=False)
        x = torch.randn(2, 4)
        assert near(both(x), Net().eval()(x))
        assert both.served == "server"
        assert both.times is not None
        smaller = split.remote(url, fallback=False, compress="q4")
        assert 0 < off(smaller(x), Net().eval()(x)) < 0.5


def test_many_threads_share_a_few_connections(server: Server) -> None:
    net = cleave.connect(f"http://{server.url}/net", connections=3)
    model = Net().eval()
    inputs = [torch.randn(1 + i % 4, 4) for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        for x, y in zip(inputs, pool.map(net, inputs), strict=True):
            assert near(y, model(x))


def test_boundaries_of_other_weights_are_refused_by_the_server(server: Server, folder: Path, tmp_path: Path) -> None:
    other = Net().eval()
    with torch.no_grad():
        other.first.weight += 1
    cleave.capture(other, (torch.randn(2, 4),), dynamic_batch=(1, 16)).save(tmp_path / "other.clv")
    files = [tmp_path / "prefix.clv", tmp_path / "suffix.clv"]
    subprocess.run([PROGRAM, "split", tmp_path / "other.clv", "-b", "after:first", "-o", *files], check=True)
    boundary = cleave.load(files[0], sandbox=False).run_prefix(torch.randn(2, 4))
    there = cleave.connect(f"http://{server.url}/net@after:first")
    with pytest.raises(InputError, match="it answers 409"):
        there.run_suffix(boundary)


def test_a_server_that_goes_away_is_replaced_by_the_suffix_here(
    folder: Path, split: cleave.SplitRuntime, tmp_path: Path
) -> None:
    with serving(folder / "net.clv", log=tmp_path / "log") as s:
        url = f"http://{s.url}/net@after:first"
        there = cleave.connect(url, retries=0)
        x = torch.randn(2, 4)
        boundary = cleave.load(folder / "prefix.clv", sandbox=False).run_prefix(x)
        there.run_suffix(boundary)
        s.process.kill()
        s.process.wait()
        with pytest.raises(RemoteError):
            there.run_suffix(boundary)
    both = split.remote(url, retries=0)
    assert torch.equal(both(x), split.run_suffix(split.run_prefix(x)))
    assert both.served == "here"
    with pytest.raises(RemoteError, match="cannot reach"):
        split.remote(url, retries=0, fallback=False)(x)


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl")
def test_tls_and_tokens(folder: Path, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    (tmp_path / "tokens").write_text(hashlib.sha256(b"secret").hexdigest() + "\n")
    options = ["--tls-cert", cert, "--tls-key", key, "--tokens", tmp_path / "tokens"]
    with serving(folder / "net.clv", *options, log=tmp_path / "log") as s:
        url = f"https://{s.url}/net"
        x = torch.randn(2, 4)
        assert near(cleave.connect(url, ca=cert, token="secret")(x), Net().eval()(x))
        with pytest.raises(ArgumentError, match="wants a token"):
            cleave.connect(url, ca=cert)
        with pytest.raises(ArgumentError, match="does not accept the token"):
            cleave.connect(url, ca=cert, token="guess")
        with pytest.raises(ArgumentError, match=r"certificate of 127\.0\.0\.1 is not accepted"):
            cleave.connect(url, token="secret")  # nobody trusts it
        (tmp_path / "other").mkdir()
        stranger, _ = certificate(tmp_path / "other")
        with pytest.raises(ArgumentError, match="is not accepted"):
            cleave.connect(url, ca=stranger, token="secret")
        done = subprocess.run(
            [PROGRAM, "run", folder / "net.clv", "--part", "all", "--fill", "zeros", "--remote", url],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "--remote runs what comes after a prefix" in done.stderr


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl")
def test_a_certificate_for_another_host_is_refused(folder: Path, tmp_path: Path) -> None:
    files = ["-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=elsewhere"]
    alternative = ["-addext", "subjectAltName=DNS:elsewhere"]
    subprocess.run([*new, *files, *alternative], check=True, capture_output=True)
    options = ["--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem"]
    with serving(folder / "net.clv", *options, log=tmp_path / "log") as s:
        with pytest.raises(ArgumentError, match=r"is not accepted: IP address mismatch"):
            cleave.connect(f"https://{s.url}/net", ca=tmp_path / "cert.pem")
        with pytest.raises(ArgumentError, match=r"[Hh]ostname mismatch"):
            cleave.connect(f"https://localhost:{s.port}/net", ca=tmp_path / "cert.pem")


def test_cleave_run_sends_the_boundary_to_a_server(server: Server, folder: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    base = [PROGRAM, "run", folder / "prefix.clv", "-i", tmp_path / "x.npy", "--no-sandbox"]
    url = f"http://{server.url}/suffix"
    out = tmp_path / "out.safetensors"
    done = subprocess.run([*base, "--remote", url, "-o", out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compute" in done.stderr
    from safetensors.torch import load_file

    assert near(load_file(out)["output"], Net().eval()(torch.from_numpy(x)))
    for wrong, why in (
        (["--remote", "nowhere"], "is no URL of a server"),
        (["--remote", f"http://{server.url}/none"], "none"),
        (["--token-file", "x"], "are for --remote"),
    ):
        done = subprocess.run([*base, *wrong], capture_output=True, text=True, check=False)
        assert done.returncode in (1, 2)
        assert why in done.stderr


def test_calibrate_picks_the_smallest_way_within_the_bound(split: cleave.SplitRuntime) -> None:
    batches = [torch.randn(16, 4) for _ in range(3)]
    loose = cleave.calibrate(split, batches, max_error=0.3)
    tight = cleave.calibrate(split, batches, max_error=1e-3)
    exact = cleave.calibrate(split, batches, max_error=0)
    assert loose.result.output_error is not None
    assert loose.result.output_error <= 0.3
    assert loose.result.nbytes < tight.result.nbytes <= exact.result.nbytes
    for r in loose.report:
        if r.reason is None and r.output_error is not None and r.output_error <= 0.3:
            assert r.nbytes >= loose.result.nbytes
    assert exact.compress in (None, "zstd")
    agree = cleave.calibrate(split, batches, max_error=float("inf"), min_top1=1.0)
    assert agree.result.top1 == 1.0
    with pytest.raises(ArgumentError, match="max_error is 0 or more"):
        cleave.calibrate(split, batches, max_error=-1)


def test_cleave_calibrate_shows_the_choice(folder: Path, tmp_path: Path) -> None:
    subprocess.run(
        [PROGRAM, "split", folder / "net.clv", "-b", "after:first", "-o", tmp_path / "p.clv", tmp_path / "s.clv"],
        check=True,
    )
    command = [
        PROGRAM,
        "calibrate",
        tmp_path / "p.clv",
        "--suffix",
        tmp_path / "s.clv",
        "--fill",
        "random",
        "--no-sandbox",
    ]
    done = subprocess.run(
        [*command, "--max-error", "0.1", "--batch", "16"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    starred = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("*")]
    assert len(starred) == 1
    assert f"--compress {starred[0]}" in done.stderr
