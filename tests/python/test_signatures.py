"""Signatures of .clv files: keys of the openssl tool, files that openssl itself verifies, and what is refused."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_cli_run import COMMAND
from torch import nn
from trace_backends import Exact

import cleave

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl tool")

# docs/artifact.md: where the digits of a signed file are
CHECK, BLOCK, KEY, SIGNATURE, END = 41, 74, 136, 201, 330


def openssl(*args: object) -> str:
    return subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, text=True).stdout


class Keys:
    """A pair of keys as a user makes it."""

    def __init__(self, folder: Path, name: str, *algorithm: str) -> None:
        self.private, self.public = folder / f"{name}.key", folder / f"{name}.pub"
        openssl("genpkey", "-algorithm", *(algorithm or ("ed25519",)), "-out", self.private)
        openssl("pkey", "-in", self.private, "-pubout", "-out", self.public)

    @property
    def raw(self) -> bytes:
        der = subprocess.run(
            ["openssl", "pkey", "-pubin", "-in", self.public, "-pubout", "-outform", "DER"],
            check=True,
            capture_output=True,
        )
        return der.stdout[-32:]

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return Keys(folder, "mine"), Keys(folder, "other")


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval()


@pytest.fixture
def path(tmp_path, net):
    cleave.capture(net, torch.ones(2, 3)).save(tmp_path / "net.clv")
    return tmp_path / "net.clv"


def test_what_is_signed_loads_with_its_key_and_gives_the_same(path, net, keys):
    mine, _ = keys
    assert cleave.sign(path, mine.private) == mine.fingerprint
    model = cleave.load(path, trusted_keys=[mine.public])
    assert model.signer == mine.fingerprint
    x = torch.randn(2, 3)
    assert torch.equal(model(x), net(x))
    assert cleave.verify(path, [mine.public]) == mine.fingerprint
    assert cleave.load(path).signer is None  # nobody looked


def test_openssl_itself_verifies_the_documented_message(path, keys, tmp_path):
    mine, other = keys
    cleave.sign(path, mine.private)
    data = bytearray(path.read_bytes())
    assert data[KEY - 8 : KEY] == b"ed25519 "
    assert bytes.fromhex(data[KEY : KEY + 64].decode()) == mine.raw
    (tmp_path / "signature").write_bytes(bytes.fromhex(data[SIGNATURE : SIGNATURE + 128].decode()))
    data[CHECK : CHECK + 32] = b"0" * 32
    data[SIGNATURE : SIGNATURE + 128] = b"0" * 128
    (tmp_path / "message").write_bytes(b"cleave-signature-1\0" + hashlib.sha512(data).digest())
    files = ("-rawin", "-in", tmp_path / "message", "-sigfile", tmp_path / "signature")
    assert "Verified" in openssl("pkeyutl", "-verify", "-pubin", "-inkey", mine.public, *files)
    with pytest.raises(subprocess.CalledProcessError):
        openssl("pkeyutl", "-verify", "-pubin", "-inkey", other.public, *files)


def test_what_openssl_signed_loads(path, keys, tmp_path):
    """A writer that is not ours: the documented construction is enough."""
    mine, other = keys
    cleave.sign(path, other.private)
    data = bytearray(path.read_bytes())
    data[KEY : KEY + 64] = mine.raw.hex().encode()
    data[CHECK : CHECK + 32] = b"0" * 32
    data[SIGNATURE : SIGNATURE + 128] = b"0" * 128
    (tmp_path / "message").write_bytes(b"cleave-signature-1\0" + hashlib.sha512(data).digest())
    openssl("pkeyutl", "-sign", "-inkey", mine.private, "-rawin", "-in", tmp_path / "message", "-out", tmp_path / "s")
    cleave.sign(path, mine.private)
    assert path.read_bytes()[SIGNATURE : SIGNATURE + 128].decode() == (tmp_path / "s").read_bytes().hex()


def test_every_byte_that_changes_is_refused(path, keys):
    mine, _ = keys
    cleave.sign(path, mine.private)
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x20]) + good[at + 1 :])
        with pytest.raises(cleave.ArtifactError):
            cleave.verify(path, [mine.public])
    path.write_bytes(good)
    cleave.verify(path, [mine.public])


def test_errors_say_which_and_name_the_keys(path, keys):
    mine, other = keys
    with pytest.raises(cleave.SignatureError, match=f"net.clv: the file is not signed.* key {mine.fingerprint}"):
        cleave.load(path, trusted_keys=[mine.public])
    cleave.sign(path, other.private)
    with pytest.raises(cleave.SignatureError, match=f"by key {other.fingerprint}, .*not trusted.*{mine.fingerprint}"):
        cleave.load(path, trusted_keys=[mine.public])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(cleave.SignatureError, match=f"changed after key {other.fingerprint} signed it"):
        cleave.load(path, trusted_keys=[mine.public, other.public])


def test_keys_are_files_or_texts_and_nothing_else(path, keys, tmp_path):
    mine, other = keys
    cleave.sign(str(path), mine.private.read_text())
    assert cleave.load(path, trusted_keys=(mine.public.read_text(), str(other.public))).signer == mine.fingerprint
    with pytest.raises(TypeError, match="a list of files"):
        cleave.load(path, trusted_keys=str(mine.public))
    with pytest.raises(TypeError, match="a list of files"):
        cleave.load(path, trusted_keys=mine.public)
    with pytest.raises(ValueError, match="trusted_keys is empty"):
        cleave.load(path, trusted_keys=[])
    with pytest.raises(OSError, match="nowhere"):
        cleave.load(path, trusted_keys=[mine.public, tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="it is a private key"):
        cleave.load(path, trusted_keys=[mine.private])
    with pytest.raises(ValueError, match="it is a public key"):
        cleave.sign(path, mine.public)
    with pytest.raises(FileNotFoundError):
        cleave.sign(tmp_path / "nowhere.clv", mine.private)


@pytest.mark.parametrize(
    "algorithm", [("RSA",), ("EC", "-pkeyopt", "ec_paramgen_curve:P-256"), ("ed448",), ("x25519",)], ids=lambda a: a[0]
)
def test_keys_of_other_algorithms_are_refused(path, tmp_path, algorithm):
    wrong = Keys(tmp_path, "wrong", *algorithm)
    with pytest.raises(ValueError, match=r"another algorithm.*Ed25519"):
        cleave.sign(path, wrong.private)
    with pytest.raises(ValueError, match=r"another algorithm.*Ed25519"):
        cleave.load(path, trusted_keys=[wrong.public])


def test_an_encrypted_key_is_refused_and_nobody_is_asked(path, keys, tmp_path):
    mine, _ = keys
    openssl("pkey", "-in", mine.private, "-aes256", "-passout", "pass:secret", "-out", tmp_path / "locked.key")
    with pytest.raises(ValueError, match="encrypted; `openssl pkey"):
        cleave.sign(path, tmp_path / "locked.key")


def test_other_readers_of_safetensors_read_a_signed_file(path, keys, net):
    safetensors = pytest.importorskip("safetensors.torch")
    cleave.sign(path, keys[0].private)
    tensors = safetensors.load_file(path)
    assert torch.equal(tensors["0.weight"], net[0].weight)


def test_signing_changes_nothing_else_and_can_be_taken_back(path, keys, tmp_path):
    before = path.read_bytes()
    cleave.sign(path, keys[0].private, tmp_path / "signed.clv")
    assert path.read_bytes() == before
    after = (tmp_path / "signed.clv").read_bytes()
    (length,) = struct.unpack("<Q", after[:8])
    bare = struct.pack("<Q", length - (END - BLOCK)) + after[8:BLOCK] + after[END:]
    assert bare[:CHECK] == before[:CHECK]
    assert bare[CHECK + 32 :] == before[CHECK + 32 :]


def test_a_model_that_was_verified_does_not_see_its_file_change(path, net, keys):
    mine, _ = keys
    cleave.sign(path, mine.private)
    model = cleave.load(path, trusted_keys=[mine.public])
    with open(path, "r+b") as f:  # in place: a mapping would show it
        f.seek(-16, os.SEEK_END)
        f.write(b"\x7f" * 16)
    x = torch.randn(2, 3)
    assert torch.equal(model(x), net(x))
    os.truncate(path, 0)
    assert torch.equal(model(x), net(x))
    model.check_data()


def test_what_is_made_of_a_signed_file_is_not_signed(path, keys, tmp_path):
    mine, _ = keys
    cleave.sign(path, mine.private)
    model = cleave.load(path, trusted_keys=[mine.public])
    model.split("after:0", tmp_path / "p.clv", tmp_path / "s.clv")
    for half in ("p.clv", "s.clv"):
        with pytest.raises(cleave.SignatureError, match="is not signed"):
            cleave.load(tmp_path / half, trusted_keys=[mine.public])


# ---- compiled code


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A file with compiled code that is not this user's own: without a cache there are no seals."""
    path = tmp_path_factory.mktemp("traced") / "traced.clv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEAVE_CACHE", "off")
        Exact().trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), torch.ones(2, 3)).save(path)
    return path


def compiled(model: cleave.LoadedModel) -> list[bool]:
    return [s.compiled for s in model.segments]


def test_compiled_code_runs_of_signed_files_alone(traced, keys, tmp_path):
    mine, _ = keys
    signed = tmp_path / "signed.clv"
    cleave.sign(traced, mine.private, signed)
    assert compiled(cleave.load(signed, trusted_keys=[mine.public], allow_compiled="signed")) == [True]
    with pytest.warns(cleave.CleaveWarning, match="a compiled part is not used"):
        assert compiled(cleave.load(signed, trusted_keys=[mine.public])) == [False]
    with pytest.raises(cleave.SignatureError):
        cleave.load(traced, trusted_keys=[mine.public], allow_compiled="signed")
    with pytest.raises(ValueError, match='allow_compiled="signed" needs trusted_keys'):
        cleave.load(signed, allow_compiled="signed")
    with pytest.raises(TypeError, match='True, False or "signed"'):
        cleave.load(signed, allow_compiled="yes")
    native = cleave._native
    artifact = native.Artifact(os.fsencode(signed), [], False, False)  # signed, and opened without a key: not trusted
    runtime = native.Runtime(artifact, None, None, False, False, False, False, None, 0, False, 0.0, 0, True)
    assert [cleave.artifact.SegmentState(*s).compiled for s in runtime.segments()] == [False]


# ---- the command line


def command(*args: object) -> tuple[int, str, str]:
    done = subprocess.run([str(COMMAND), *map(str, args)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_command_signs_verifies_and_refuses(path, keys):
    mine, other = keys
    code, out, err = command("sign", path, "--key", mine.private)
    assert (code, err) == (0, "")
    assert out == f"{path} is signed by key {mine.fingerprint}\n"
    code, out, _ = command("verify", path, "--key", mine.public)
    assert code == 0
    assert out.endswith(f"; signed by key {mine.fingerprint}\n")
    assert f"key {mine.fingerprint}, not verified" in command("inspect", path)[1]
    assert f"signed by   key {mine.fingerprint}\n" in command("inspect", path, "--trusted-key", mine.public)[1]
    for name in ("inspect", "print", "candidates", "html", "source"):
        code, out, err = command(name, path, "--trusted-key", other.public)
        assert (code, out) == (1, "")
        assert f"signed by key {mine.fingerprint}, which is not trusted" in err


def test_the_command_runs_with_trusted_keys(path, keys):
    mine, other = keys
    code, _, err = command("run", path, "--fill", "ones", "--trusted-key", mine.public)
    assert code == 1
    assert "is not signed" in err
    command("sign", path, "--key", mine.private)
    assert command("run", path, "--fill", "ones", "--trusted-key", mine.public)[0] == 0
    assert command("run", path, "--fill", "ones", "--trusted-key", other.public)[0] == 1
    assert command("run", path, "--fill", "ones", "--trusted-key", other.public, "--trusted-key", mine.public)[0] == 0


def test_the_text_of_a_plan_is_never_trusted(path, keys, tmp_path):
    mine, _ = keys
    (tmp_path / "net.plan").write_text(cleave.load(path).text)
    code, _, err = command("verify", tmp_path / "net.plan", "--key", mine.public)
    assert code == 1
    assert "only those are signed" in err


def test_a_new_key_signs_and_openssl_reads_it(path, tmp_path):
    fingerprint = cleave.new_key(tmp_path / "new.key")
    assert "ED25519 Private-Key" in openssl("pkey", "-in", tmp_path / "new.key", "-noout", "-text")
    openssl("pkey", "-in", tmp_path / "new.key", "-pubout", "-out", tmp_path / "again.pub")
    assert (tmp_path / "again.pub").read_bytes() == (tmp_path / "new.key.pub").read_bytes()
    assert cleave.sign(path, tmp_path / "new.key") == fingerprint
    assert cleave.load(path, trusted_keys=[tmp_path / "new.key.pub"]).signer == fingerprint
    with pytest.raises(OSError, match="exists already"):
        cleave.new_key(tmp_path / "new.key")
    code, out, _ = command("sign", path, "--new-key", tmp_path / "other.key")
    assert code == 0
    made, signed = (line.split()[-1] for line in out.splitlines())
    assert made == signed != fingerprint
    assert command("verify", path, "--key", tmp_path / "other.key.pub")[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="FIFOs")
def test_keys_that_are_no_files_end_at_once(path, keys, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="no regular file"):
        cleave.load(path, trusted_keys=[tmp_path / "fifo"])
    with pytest.raises(OSError, match="no regular file"):
        cleave.sign(path, tmp_path)
