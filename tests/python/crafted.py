"""Files as a stranger would craft them: another plan in a file that was saved, with all digests right."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import xxhash

NO_CHECK = "0" * 32
NO_SEAL = "0" * 80

# For the environment of a process that vouches for files of this one.
SAME_USER = {name: os.environ[name] for name in ("HOME", "XDG_STATE_HOME") if name in os.environ}


def rewrite(path: Path, edit: Callable[[dict[str, str]], None]) -> None:
    """Lets `edit` change the metadata of a file."""
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n])
    edit(header["__metadata__"])
    path.write_bytes(signed(header) + data[8 + n :])


def rewrite_plan(path: Path, edit: Callable[[str], str]) -> None:
    """Puts edit(text) in the place of the first plan's text, and says how many nodes it has now."""

    def change(meta: dict[str, str]) -> None:
        meta["cleave.plan.0"] = text = edit(meta["cleave.plan.0"])
        about = json.loads(meta["cleave.artifact"])
        nodes = sum("::" in line and not line.startswith("model") for line in text.splitlines())
        about["plans"][0]["nodes"] = [0, nodes]
        meta["cleave.artifact"] = json.dumps(about, separators=(",", ":"))

    rewrite(path, change)


def seal(path: Path, key: bytes) -> None:
    """Gives a file the seal of the user who has this key (docs/artifact.md)."""
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n])
    meta = header["__metadata__"]
    header["__metadata__"] = {"cleave.check": NO_CHECK, "cleave.seal": NO_SEAL, **meta}
    header["__metadata__"].update({"cleave.check": NO_CHECK, "cleave.seal": NO_SEAL})
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    bare = text.replace(NO_CHECK.encode(), b"", 1).replace(NO_SEAL.encode(), b"", 1)
    mac = hmac.new(key, b"cleave file seal 1\0" + struct.pack("<Q", len(text)) + bare, hashlib.sha256).hexdigest()
    owner = hmac.new(key, b"cleave owner 1\0" + mac.encode(), hashlib.sha256).hexdigest()[:16]
    head = struct.pack("<Q", len(text)) + text.replace(NO_SEAL.encode(), (mac + owner).encode(), 1)
    digest = xxhash.xxh3_128_hexdigest(head)
    path.write_bytes(head.replace(NO_CHECK.encode(), digest.encode(), 1) + data[8 + n :])


def signed(header: dict[str, dict[str, str]]) -> bytes:
    """The header as bytes, with its own digest in it; data starts at a multiple of 64."""
    header["__metadata__"]["cleave.check"] = NO_CHECK
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    head = struct.pack("<Q", len(text)) + text
    digest = xxhash.xxh3_128_hexdigest(head)
    return head.replace(NO_CHECK.encode(), digest.encode(), 1)
