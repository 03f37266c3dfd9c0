"""Who vouches for a file: what this user saved runs here, what others made or changed runs in a sandbox."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from crafted import rewrite, rewrite_plan, seal
from test_cli_run import COMMAND
from torch import nn

import cleave

X = torch.randn(2, 4)
WHAT_TO_DO = r"sandbox=False, --no-sandbox, CLV_SANDBOX_OFF\), or have it signed \(cleave sign\)"


@pytest.fixture
def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, net: nn.Module) -> Path:
    """A file of this user's, whose state is of this test alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    cleave.capture(net, X).save("mine.clv")
    return tmp_path / "mine.clv"


def be_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who has saved a file before."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    cleave.capture(nn.Identity(), X).save("any.clv")


def here(path: Path | str, **how: Any) -> bool:
    """Whether a file runs in this process; it does run."""
    model = cleave.load(path, **how)
    assert model(X).shape == (2, 2)
    return not model.sandboxed


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(COMMAND), *map(str, words)], capture_output=True, text=True, check=False)


def test_what_this_user_saved_runs_here(file: Path, net: nn.Module) -> None:
    model = cleave.load(file)
    assert not model.sandboxed
    assert torch.equal(model(X), net(X))
    assert set(model.state_dict()) == set(net.state_dict())
    assert here(file, copy=True)
    assert not here(file, sandbox=True)


def test_a_strangers_file_runs_in_a_sandbox(
    file: Path, net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_another(monkeypatch, tmp_path)
    model = cleave.load(file)
    assert model.sandboxed
    assert torch.equal(model(X), net(X))
    with pytest.raises(cleave.CleaveError, match=f"another user saved it.*no state_dict of it here.*{WHAT_TO_DO}"):
        model.state_dict()
    assert here(file, sandbox=False)
    assert here(file, allow_compiled=True)


def test_a_changed_file_runs_in_a_sandbox(file: Path) -> None:
    rewrite_plan(file, lambda text: text.replace("aten::relu(", "aten::tanh("))
    model = cleave.load(file)
    assert model.sandboxed
    with pytest.raises(cleave.CleaveError, match="it was changed after it was saved"):
        model.state_dict()


CHANGES = {
    "a note": lambda about: about["about"].update(model="Other"),
    "a digest": lambda about: about["digests"].update(dict.fromkeys(about["digests"], "0" * 32)),
    "sizes": lambda about: about.update(any_size=True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_part_of_the_header_is_sealed(file: Path, name: str) -> None:
    def edit(meta: dict[str, str]) -> None:
        about = json.loads(meta["cleave.artifact"])
        CHANGES[name](about)
        meta["cleave.artifact"] = json.dumps(about, separators=(",", ":"))

    rewrite(file, edit)
    assert not here(file)


def test_a_file_without_a_seal_runs_in_a_sandbox(file: Path) -> None:
    rewrite(file, lambda meta: meta.pop("cleave.seal") and None)  # as files were before
    assert not here(file)


def test_the_seal_is_what_the_documentation_says(file: Path, tmp_path: Path) -> None:
    rewrite_plan(file, lambda text: text.replace("aten::relu(", "aten::tanh("))
    seal(file, (tmp_path / "state" / "cleave" / "seal.key").read_bytes())
    assert here(file)
    seal(file, bytes(32))
    assert not here(file)


def test_without_a_key_nothing_is_vouched_for(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", "/dev/null")
        assert not here(file)
        cleave.capture(nn.Linear(4, 2), X).save("none.clv")
    assert not here("none.clv")
    monkeypatch.setenv("CLEAVE_CACHE", "off")  # is about compiled code, not about files
    assert here(file)
    key = tmp_path / "state" / "cleave" / "seal.key"
    key.chmod(0o644)
    assert not here(file)
    key.chmod(0o600)
    assert here(file)
    key.unlink()
    assert not here(file)


def test_a_signature_of_a_trusted_key_vouches(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cleave.new_key("my.key")
    cleave.sign(file, "my.key", output="signed.clv")
    assert here("signed.clv")  # signing keeps the seal
    be_another(monkeypatch, tmp_path)
    assert not here("signed.clv")  # nobody said that this key is trusted
    assert here("signed.clv", trusted_keys=["my.key.pub"])
    cleave.load("signed.clv", trusted_keys=["my.key.pub"]).split("after:0", "a.clv", "b.clv")
    assert not cleave.load("a.clv").sandboxed


def test_a_strangers_file_stays_one(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that this user does to it makes it their own."""
    be_another(monkeypatch, tmp_path)
    for how in ({}, {"sandbox": False}):
        cleave.load(file, **how).split("after:0", "a.clv", "b.clv")
        assert cleave.load("a.clv").sandboxed
        assert cleave.load("b.clv").sandboxed
    cleave.new_key("their.key")
    cleave.sign(file, "their.key", output="signed.clv")
    assert not here("signed.clv")
    assert command("split", file, "--boundary", "after:0", "-o", "p.clv", "s.clv").returncode == 0
    assert cleave.load("p.clv").sandboxed


def test_what_this_user_makes_of_their_file_is_theirs(file: Path) -> None:
    cleave.load(file).split("after:0", "a.clv", "b.clv")
    assert not cleave.load("a.clv").sandboxed
    assert not cleave.load("b.clv").sandboxed


def test_where_there_is_no_sandbox_a_strangers_file_is_refused(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_another(monkeypatch, tmp_path)
    monkeypatch.setenv("CLEAVE_TORCH_PROGRAM", "/nonexistent")
    with pytest.raises(cleave.CleaveError, match=f"nobody vouches for this file.*can be none: .*{WHAT_TO_DO}"):
        cleave.load(file)
    assert here(file, sandbox=False)


def test_a_strangers_file_for_a_gpu_is_refused(file: Path) -> None:
    rewrite_plan(file, lambda text: text.replace("input %0 f32[2,4]", "input %0 f32[2,4] cuda:0"))
    with pytest.raises(cleave.CleaveError):
        cleave.load(file)


def test_the_command_line_does_the_same(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = command("run", file, "--fill", "random")
    assert (mine.returncode, mine.stderr) == (0, "")
    be_another(monkeypatch, tmp_path)
    for words in (["run", file, "--fill", "random"], ["bench", file, "--iterations", "1"]):
        theirs = command(*words)
        assert theirs.returncode == 0
        assert "nobody vouches for this file (another user saved it, or this one on another machine)" in theirs.stderr
        trusted = command(*words, "--no-sandbox")
        assert (trusted.returncode, trusted.stderr) == (0, "")
    assert command("run", file, "--fill", "random", "--sandbox").stderr == ""
    assert command("run", file, "--fill", "random", "--sandbox", "--no-sandbox").returncode == 2
    refused = command("trace", file, "--dry-run", "--backend", "openvino")
    assert refused.returncode == 1
    assert "nothing is traced in a sandbox" in refused.stderr
    assert command("trace", file, "--dry-run", "--backend", "openvino", "--no-sandbox").returncode == 0
    assert command("inspect", file).returncode == command("verify", file).returncode == 0


def test_a_model_that_is_traced_here_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval()
    traced = cleave.trace(model, X, backend="openvino", dryrun=True)
    torch.testing.assert_close(traced(X), model(X))


def test_what_sandbox_may_be(file: Path) -> None:
    with pytest.raises(TypeError, match="sandbox is None, True or False, not 'no'"):
        cleave.load(file, sandbox="no")  # type: ignore[arg-type]
    with pytest.raises(cleave.ArgumentError, match="copy=False and sandbox=True"):
        cleave.load(file, sandbox=True, copy=False)


def test_a_strangers_file_that_is_mapped_may_be_truncated(
    file: Path, net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_another(monkeypatch, tmp_path)
    model = cleave.load(file)
    os.truncate(file, 0)
    assert torch.equal(model(X), net(X))
