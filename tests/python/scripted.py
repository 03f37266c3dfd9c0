"""Scripted functions drawn at random: two to six operators, nested so that values wait on the interpreter's stack."""

from __future__ import annotations

import random
from typing import Any

import torch

SIZES = (3, 4)

UNARY = (
    "torch.abs({})",
    "torch.relu({})",
    "torch.sigmoid({})",
    "torch.tanh({})",
    "torch.sin({})",
    "torch.neg({})",
    "torch.floor({})",
    "torch.round({})",
    "torch.sign({})",
    "torch.sqrt(torch.abs({}))",
    "torch.threshold({}, 8.0, 0.0)",
    "torch.threshold({}, -50.0, 1.0)",
    "torch.nn.functional.hardtanh({}, -9.0, 9.0)",
    "torch.clamp({}, -20.0, 30.0)",
    "torch.clamp({}, min=6.0)",
    "torch.nn.functional.gelu({})",
    "torch.nn.functional.leaky_relu({}, 0.1)",
    "torch.softmax({}, 1)",
    "torch.cumsum({}, 0)",
    "torch.log1p(torch.abs({}))",
    "torch.nn.functional.layer_norm({}, [4])",
    "torch.masked_fill({0}, {0} > 7.0, -1.0)",
    "({}).to(torch.float64).mul(1.0 / 3.0).to(torch.float32)",
    "({}).to(torch.int64).to(torch.float32)",
    "torch.nan_to_num({})",
    "torch.flip({}, [1])",
    "torch.roll({}, 1, 0)",
    "torch.mean({}, 1, keepdim=True).expand(3, 4)",
    "torch.sum({}, 0).unsqueeze(0).expand(3, 4)",
    "(({0}) / float(({0}).size(1)))",
    "({}).t().contiguous().t()",
    "({}).reshape(-1).view(3, 4)",
    "torch.cat([({0})[:1], ({0})[1:]], 0)",
    "torch.max({}, 1, keepdim=True)[0].expand(3, 4)",
    "torch.sort({}, 1)[0]",
    "torch.topk({}, 4, 1)[0]",
    "torch.var_mean({}, [1], unbiased=True, keepdim=True)[1].expand(3, 4)",
    "torch.stack([{0}, {0}]).sum(0)",
    "helper({}, 0.5)",
)

BINARY = (
    "({} + {})",
    "({} - {})",
    "({} * {})",
    "({} / ({}).abs().add(1.0))",
    "torch.maximum({}, {})",
    "torch.minimum({}, {})",
    "torch.add({}, {}, alpha=0.5)",
    "torch.where({0} > {1}, {0}, {1} * 2.0)",
    "torch.where({0} > 12.0, {1}, {0})",
    "torch.stack([{}, {}]).sum(0)",
    "torch.stack([{}, {}], 0)[1]",
    "torch.cat([{}, {}], 0)[1:4]",
    "torch.matmul(({}).reshape(3, 4), ({}).t()).mm(torch.ones([3, 4]))",
    "torch.lerp({}, {}, 0.25)",
    "torch.addcmul({0}, {1}, {0}, value=0.5)",
    "torch.mm({}, torch.eye(4)).add({})",
    "both({}, {})[0]",
    "both({}, {})[1]",
    "(({0}) > ({1})).to(torch.float32)",
    "torch.max(torch.stack([{}, {}]), 0)[0]",
)

NUMBERS = (
    "2.0",
    "0.5",
    "-1.5",
    "3",
    "float(x.size(0))",
    "x.size(1)",
    "(x.size(0) * 2 + 1)",
    "k",
    "(k * 2.0 - 1.0)",
    "n",
)
LEAVES = (
    "x",
    "y",
    "x",
    "y",
    "torch.ones_like(x)",
    "torch.full([3, 4], 0.25)",
    "torch.arange(4).to(torch.float32).expand(3, 4)",
)
LITERALS = (
    "torch.tensor(1.5)",
    "torch.tensor([1.0, 2.0, 3.0, 4.0])",
    "torch.tensor(x.size(0))",
    "torch.as_tensor(2.5)",
)

STATEMENTS = (
    "{v} = {e}",
    "{v} = {e}",
    "{v} = {e} * {s}",
    "{v} = {s} - {e}",
    "{v} = {e} * {l}",
    "{v} = {e}.clone()\n    {v}.add_({f})",
    "{v} = {e} * 1.0\n    {v}[0] = {f}[1]",
    "{v} = {e} * 1.0\n    {v}[:, 1:] += {f}[:, 1:]",
    "{v} = {e} * 1.0\n    {v}.mul_({s}).relu_()",
    "{v}, _ = torch.max(torch.stack([{e}, {f}]), 0)",
    "{v}, {w} = both({e}, {f})\n    {v} = {v} + {w}",
    "{v}s = torch.chunk({e}, 3, 0)\n    {v} = torch.cat([{v}s[2], {v}s[0], {v}s[1]], 0)",
    "{v}s = [{e}]\n    for i in range(3):\n        {v}s.append({v}s[i] * 0.5 + {f})\n    {v} = {v}s[3]",
    "{v} = {e}\n    for i in range(x.size(0)):\n        {v} = {v} + {f} * i",
    "if x.dim() == 2 and k > 0.0:\n        {v} = {e}\n    else:\n        {v} = {f} * 2.0",
    "if n > 100:\n        {v} = {e}\n    else:\n        {v} = {f} - {e}",
    "{v} = {e}\n    i = 0\n    while i < 2:\n        {v} = torch.tanh({v}) + {f}\n        i += 1",
    "{v}d = {{'a': {e}, 'b': {f}}}\n    {v} = {v}d['b'] - {v}d['a']",
    "{v}o: Optional[Tensor] = None\n    if n < 100:\n        {v}o = {e}\n    {v} = {f} if {v}o is None else {v}o * {f}",
)

BEFORE = """
def helper(x: Tensor, k: float) -> Tensor:
    return torch.abs(x) * torch.threshold(x, 8.0, k) - x * k

def both(x: Tensor, y: Tensor) -> Tuple[Tensor, Tensor]:
    z = x * torch.clamp(y, max=5.0)
    return z + torch.relu(y), torch.sigmoid(x) - z
"""


class Drawer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = ["x", "y"]
        self.left = self.random.randint(2, 6)

    def expression(self, depth: int = 0) -> str:
        pick = self.random
        if self.left <= 0 or depth > 3 or (depth and pick.random() < 0.25):
            return pick.choice(self.names) if pick.random() < 0.8 else pick.choice(LEAVES)
        self.left -= 1
        if pick.random() < 0.5:
            return pick.choice(UNARY).format(self.expression(depth + 1))
        return pick.choice(BINARY).format(self.expression(depth + 1), self.expression(depth + 1))

    def statement(self) -> str:
        pick = self.random
        form = pick.choice(STATEMENTS)
        names = {
            "v": f"v{len(self.names)}",
            "w": f"w{len(self.names)}",
            "s": pick.choice(NUMBERS),
            "l": pick.choice(LITERALS),
        }
        text = form.format(e=self.expression(), f=self.expression(1), **names)
        self.names.append(names["v"])
        return text

    def source(self) -> str:
        lines = ["def scripted(x: Tensor, y: Tensor, k: float, n: int):"]
        while self.left > 0 or len(lines) < 2:
            lines.append("    " + self.statement())
        results = self.names[-1:] if self.random.random() < 0.6 else self.names[-2:]
        lines.append(f"    return {', '.join(results)}")
        return BEFORE + "\n".join(lines) + "\n"


def drawn(seed: int) -> tuple[Any, str]:
    """The scripted function of a seed, and its source."""
    source = Drawer(seed).source()
    return torch.jit.CompilationUnit(source).scripted, source
