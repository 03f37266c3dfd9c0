"""Modules that no plan can hold operator by operator. Processes without Cleave load them, so they need torch alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Packed(nn.Module):
    """Sorts by lengths, which are data."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.drop = nn.LSTM(4, 5, batch_first=True), nn.Dropout(0.2)
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(
        self, x: Tensor, lengths: Tensor, *, factor: float = 1.0, options: Any = None, mask: Any = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor], int]:
        assert options is None or options == {"name": 'a "b" {0}', "parts": (None, [1, -2.5], True)}
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        y, (h, c) = self.lstm(packed)
        y, _ = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        if mask is not None:
            y = y * mask["keep"][0]
        return self.drop(y) * factor * self.scale, (h, c), 3


class Answer(NamedTuple):
    a: Tensor
    b: Tensor


@dataclass
class Result:
    first: Tensor
    rest: dict[str, Any]


class Odd(nn.Module):
    """Gives its results in another structure each time; its table is the model's."""

    def __init__(self, how: str, table: nn.Parameter | None) -> None:
        super().__init__()
        self.how, self.parts = how, nn.ModuleList([nn.Linear(4, 4)])
        self.table = table

    def forward(self, x: Tensor) -> Any:
        y = self.parts[0](x)
        if y.sum().item() > 1e9:  # what no plan can hold for other data
            y = y * 2
        a, b = y + 1, y * (2 if self.table is None else self.table[0, :4])
        if self.how == "one":
            return (a * b,)
        if self.how == "named":
            return Answer(a, b)
        if self.how == "nested":
            return [None, (a, [b, "text"])]
        return Result(a, {"b": b, "c": None}) if self.how == "dataclass" else {"b": b, "a": [a]}
