"""Recurrent layers on the native engine: every kind, both ways, several layers, padded and packed sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from native import COMMAND, rerun, run
from torch import Tensor, nn

import cleave

pytestmark = pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")
ISAS = ["base", "avx2", "avx512"]
KINDS: list[tuple[type[nn.RNNBase], dict[str, Any]]] = [
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    (nn.LSTM, {"proj_size": 5}),
    (nn.LSTM, {"proj_size": 3, "num_layers": 2, "bidirectional": True, "bias": False}),
    (nn.GRU, {}),
    (nn.GRU, {"num_layers": 3, "bidirectional": True, "bias": False}),
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu", "num_layers": 2, "bidirectional": True}),
]
NAMES = [f"{kind.__name__}-{'-'.join(options) or 'plain'}" for kind, options in KINDS]


class Cell(nn.Module):
    """A cell, with a state and without one."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Any:
        lstm = isinstance(self.cell, nn.LSTMCell)
        made = self.cell(x, (h, c) if lstm else h), self.cell(x.mT.contiguous().mT)
        return [t for m in made for t in (m if lstm else (m,))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_a_cell_is_one_time_step(bias: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, h, c = (torch.randn(5, n, dtype=dtype) for n in (11, 7, 7))
    cells = [nn.LSTMCell, nn.GRUCell, nn.RNNCell, lambda *a, **k: nn.RNNCell(*a, nonlinearity="relu", **k)]
    for make in cells:
        model = Cell(make(11, 7, bias=bias, dtype=dtype)).eval()
        with torch.no_grad():
            want = model(x, h, c)
        for isa in ISAS:
            for a, b in zip(want, run(model, [x, h, c], tmp_path, isa), strict=True):
                torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)


class Padded(nn.Module):
    """The layer with a state to begin with, or with none."""

    def __init__(self, layer: nn.RNNBase, own_state: bool = False) -> None:
        super().__init__()
        self.layer, self.own_state = layer, own_state

    def forward(self, x: Tensor, *state: Tensor) -> Any:
        lstm = isinstance(self.layer, nn.LSTM)
        out, ends = self.layer(x, (state if lstm else state[0]) if self.own_state else None)
        return out, *(ends if lstm else (ends,))


class Packed(nn.Module):
    """Sequences of different lengths, the longest first or in any order."""

    def __init__(self, layer: nn.RNNBase, lengths: list[int], ordered: bool) -> None:
        super().__init__()
        self.layer, self.lengths, self.ordered = layer, lengths, ordered

    def forward(self, x: Tensor) -> Any:
        first = self.layer.batch_first
        lengths = torch.tensor(self.lengths)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=self.ordered)
        out, ends = self.layer(packed)
        y, there = nn.utils.rnn.pad_packed_sequence(out, batch_first=first, padding_value=-2.5, total_length=9)
        return y, there, *(ends if isinstance(ends, tuple) else (ends,))


def build(kind: type[nn.RNNBase], options: dict[str, Any], hidden: int = 7, width: int = 11, **more: Any) -> nn.RNNBase:
    torch.manual_seed(0)
    return kind(width, hidden, **options, **more).eval()


def states(layer: nn.RNNBase, batch: int) -> list[Tensor]:
    ways = layer.num_layers * (2 if layer.bidirectional else 1)
    cell = torch.randn(ways, batch, layer.hidden_size)
    return [torch.randn(ways, batch, layer.proj_size or layer.hidden_size), cell][
        : 2 if isinstance(layer, nn.LSTM) else 1
    ]


def near(want: Any, got: list[Tensor]) -> None:
    assert len(want) == len(got)
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(b, a.contiguous(), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_a_recurrent_layer_is_near_eager(kind: tuple[type[nn.RNNBase], dict[str, Any]], tmp_path: Path) -> None:
    for first, hidden, isa in ((False, 7, "base"), (True, 33, "avx2"), (True, 16, "avx512")):
        model = Padded(build(*kind, hidden=hidden, batch_first=first))
        x = torch.randn(3, 5, 11)
        with torch.no_grad():
            near(model(x), run(model, [x], tmp_path, isa))
    own = Padded(model.layer, own_state=True)
    inputs = [x, *states(model.layer, 3)]
    with torch.no_grad():
        near(own(*inputs), run(own, inputs, tmp_path))


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_packed_sequences_are_near_eager(kind: tuple[type[nn.RNNBase], dict[str, Any]], tmp_path: Path) -> None:
    for first, ordered, lengths in ((True, True, [6, 6, 3, 1]), (False, False, [2, 6, 1, 4])):
        model = Packed(build(*kind, batch_first=first), lengths, ordered)
        x = torch.randn(4, 6, 11) if first else torch.randn(6, 4, 11)
        with torch.no_grad():
            near(model(x), run(model, [x], tmp_path))


def test_nan_in_one_sequence_stays_there(tmp_path: Path) -> None:
    for kind, options in KINDS:
        model = Padded(build(kind, options))
        x = torch.randn(5, 3, 11)
        x[2, 1, 4], x[3, 2, 0] = float("nan"), float("inf")
        with torch.no_grad():
            near(model(x), run(model, [x], tmp_path))


def test_a_batch_without_sequences_gives_empty_results(tmp_path: Path) -> None:
    model = Padded(build(nn.LSTM, {"bidirectional": True}))
    x = torch.randn(5, 0, 11)
    with torch.no_grad():
        near(model(x), run(model, [x], tmp_path))


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_a_sequence_has_the_same_bits_in_every_batch(
    kind: tuple[type[nn.RNNBase], dict[str, Any]], tmp_path: Path
) -> None:
    model = Padded(build(*kind, hidden=40, batch_first=True))
    x = torch.randn(7, 6, 11)
    with torch.no_grad():
        cleave.capture(model, (x,), dynamic_batch=(1, 8)).save(tmp_path / "model.clv")
    one, two = (cleave.load(tmp_path / "model.clv", engine="native", unproven=True, threads=k) for k in (1, 2))
    whole = one(x)
    for a, b in zip(whole, two(x), strict=True):
        assert torch.equal(a, b)
    for i in range(7):
        alone = one(x[i : i + 1])
        assert torch.equal(alone[0], whole[0][i : i + 1])
        assert torch.equal(alone[1], whole[1][:, i : i + 1])


class Sizes(nn.Module):
    """A packed sequence as its data and how many rows each time step has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = build(nn.GRU, {})

    def forward(self, data: Tensor, sizes: Tensor, state: Tensor) -> Any:
        layer = self.layer
        return torch.gru(data, sizes, state, layer._flat_weights, True, 1, 0.0, False, False)


def test_sizes_of_a_packed_sequence_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model, sizes = Sizes().eval(), torch.tensor([3, 2, 1])
    inputs = [torch.randn(6, 11), sizes, torch.randn(1, 3, 7)]
    with torch.no_grad():
        near(model(*inputs), run(model, inputs, tmp_path))
    for bad in ([4, 1, 1], [3, 3, 1], [3, 1, 1], [2, 3, 1], [3, 4, -1], [2**62, 2**62, 2**62]):
        with pytest.raises(RuntimeError, match="batch_sizes"):
            rerun([inputs[0], torch.tensor(bad), inputs[2]], tmp_path)
