"""Signatures of .clv files (docs/artifact.md).

Keys are Ed25519, as `new_key` and `openssl genpkey -algorithm ed25519` make them. Each is given as the path of a PEM
file, or as its text, which starts with "-----BEGIN"."""

from __future__ import annotations

import os
from collections.abc import Iterable

from . import _native
from ._save import Path


def new_key(path: Path) -> str:
    """Makes a key to sign with, and returns its fingerprint.

    The private key is this file, readable by its owner only; the public key is next to it, with ".pub" at the end.
    Files that are there are left alone (OSError).

    >>> import cleave
    >>> len(cleave.new_key("new.key"))
    64
    """
    return _native.new_key(os.fsencode(path))


def sign(path: Path, key: Path, output: Path | None = None, *, allow_operators: Iterable[str] = ()) -> str:
    """Signs every byte of a .clv file with a private key, and returns the fingerprint of the key.

    The file is checked first, with all its data. output: where the signed file goes; None: in the place of the file,
    whole or not at all. A signature that is there is replaced. allow_operators: as for `load`.

    >>> import torch, cleave
    >>> fingerprint = cleave.new_key("mine.key")
    >>> cleave.capture(torch.nn.ReLU(), torch.ones(2)).save("mine.clv")
    >>> cleave.sign("mine.clv", "mine.key") == fingerprint
    True
    >>> cleave.load("mine.clv", trusted_keys=["mine.key.pub"]).signer == fingerprint
    True
    """
    os.stat(path)  # raises Python's own FileNotFoundError
    where = path if output is None else output
    return _native.sign(os.fsencode(path), os.fsencode(key), list(allow_operators), os.fsencode(where))


def verify(path: Path, trusted_keys: Iterable[Path], *, allow_operators: Iterable[str] = ()) -> str:
    """Checks a .clv file, with all its data, and that one of these public keys signed it: gives that key's fingerprint.

    SignatureError: it is not signed, not by one of them, or was changed since. A file is to be loaded with the keys too
    (`load(..., trusted_keys=...)`): it may be another one by then."""
    os.stat(path)
    keys = read_keys(trusted_keys)
    signer = _native.Artifact(os.fsencode(path), list(allow_operators), True, True, keys).signer()
    assert signer is not None
    return signer


def read_keys(keys: Iterable[Path] | None) -> list[bytes]:
    """Paths and texts of keys for the library; None: no signature is required."""
    if keys is None:
        return []
    if isinstance(keys, str | bytes | os.PathLike):
        raise TypeError(f"trusted_keys is a list of files or PEM texts, not {type(keys).__name__}")
    given = [os.fsencode(key) for key in keys]
    if not given:
        raise ValueError("trusted_keys is empty, so no file could be opened; None opens unsigned files too")
    return given
