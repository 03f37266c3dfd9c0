"""Writes the model files of this folder again: needs torch and Cleave.

    python tests/plan/models/make.py

They have the seal of a user with the key that tests/plan/run.py gives: bytes 0 to 31. old.clv is as it was before files
had seals, and is not written again.

Weights are small multiples of powers of two, so that every machine computes the same bits. What the files say about
themselves (torch's version) changes with the machine: run tests/plan/run.py --update afterwards.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import cleave

HERE = Path(__file__).resolve().parent


def plain(model: nn.Module) -> nn.Module:
    """Weights 0, 1/4, -1/2, 3/4, …"""
    with torch.no_grad():
        for p in model.parameters():
            steps = torch.arange(p.numel()) % 7 / 4
            p.copy_((steps * (1 - 2 * (torch.arange(p.numel()) % 2))).reshape(p.shape))
    return model.eval()


class Words(nn.Module):
    """Several inputs of several types, and outputs in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids: Tensor, mask: Tensor, scale: Tensor) -> dict[str, Tensor | list[Tensor]]:
        words = self.table(ids) * mask.unsqueeze(-1)
        scores = self.head(words) * scale
        return {"scores": scores, "more": [scores.argmax(-1), words.sum(1)]}


def write_traced(path: Path) -> None:
    """A file with compiled parts, of a back end that no program has: their code is the segment as a model file."""

    def load(data: bytes) -> cleave.LoadedModel:
        with tempfile.NamedTemporaryFile(suffix=".clv") as file:
            file.write(data)
            file.flush()
            return cleave.load(file.name, unproven=True, sandbox=False)

    cleave.register_backend(
        "example",
        supports=lambda node: node.op != "aten::hardtanh" or "example has no aten::hardtanh",
        compile=lambda segment: Path(segment.folder, "segment.clv").read_bytes(),
        load=load,
        run=lambda model, inputs: model(*inputs),
    )
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Hardtanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)]
    x = torch.arange(12.0).reshape(3, 4) / 2 - 3
    net = plain(nn.Sequential(*layers))
    cleave.trace(net, x, backend="example", dynamic_batch=(1, 8), cache=False).save(path)


def be_its_user(folder: str) -> None:
    """Files that this process writes have the seal of the tests' user."""
    key = Path(folder, "cleave", "seal.key")
    key.parent.mkdir(mode=0o700)
    key.touch(mode=0o600)
    key.write_bytes(bytes(range(32)))
    os.environ["XDG_STATE_HOME"] = folder


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        be_its_user(folder)
        write_models()


def write_models() -> None:
    net = plain(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    x = torch.arange(12.0).reshape(3, 4) / 2 - 3
    plan = cleave.capture(net, x, dynamic_batch=(1, 8))
    plan.save(HERE / "net.clv")
    plan.save(HERE / "bare.clv", weights=False)
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    words = plain(Words())
    mask = torch.ones(2, 3, dtype=torch.bool)
    cleave.capture(words, (ids, mask, torch.tensor(2.0))).save(HERE / "words.clv")
    damaged = bytearray((HERE / "net.clv").read_bytes())
    damaged[-1] ^= 1
    (HERE / "damaged.clv").write_bytes(damaged)
    (HERE / "cut_off.clv").write_bytes((HERE / "net.clv").read_bytes()[:-8])
    write_traced(HERE / "traced.clv")
    np.save(HERE / "x.npy", x.numpy())
    np.save(HERE / "columns.npy", np.asfortranarray(x.numpy()))
    np.save(HERE / "double.npy", x.double().numpy())
    np.save(HERE / "wide.npy", np.zeros((3, 5), np.float32))
    np.save(HERE / "big.npy", x.numpy().astype(">f4"))
    print(json.dumps(sorted(p.name for p in HERE.iterdir())))


if __name__ == "__main__":
    main()
