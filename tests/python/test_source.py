"""Generated source: a plain module that runs by itself, bit for bit like the model, through the very same operators."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import Fn
from torch import Tensor, nn

import cleave
from cleave import _native, _tree
from cleave._capture import Captured, grad_mode
from cleave.plan import Program


def load_source(captured: Captured, first: int, end: int, *, delete: bool = False) -> tuple[nn.Module, str]:
    """The generated module of some nodes, run in a namespace of its own, holding copies of the model's tensors."""
    text = captured.plan.source(first, end, "Segment", delete=delete)
    ast.parse(text)
    namespace: dict[str, Any] = {}
    exec(compile(text, "generated.py", "exec"), namespace)
    module: nn.Module = namespace["Segment"]()
    places, _ = captured.plan.places(first, end)
    given = {}
    for place, name, data in places:
        if name is not None:
            holder, key = captured.state[name]
            data = holder[key]
        given[place] = data
    with torch.no_grad():
        for place, data in given.items():
            own = at(module, place)
            assert own.shape == data.shape or "B" in captured.plan.text(), place
            assert own.dtype == data.dtype
            if isinstance(own, nn.Parameter):
                assert own.requires_grad == data.requires_grad, place
            put(module, place, data.detach().clone().requires_grad_(data.requires_grad))
    return module, text


def at(module: nn.Module, place: str) -> Tensor:
    path, _, last = place.rpartition(".")
    found = getattr(module.get_submodule(path), last)
    assert isinstance(found, Tensor)
    return found


def put(module: nn.Module, place: str, data: Tensor) -> None:
    path, _, last = place.rpartition(".")
    holder = module.get_submodule(path)
    if last in holder._parameters:
        holder._parameters[last] = nn.Parameter(data.detach(), data.requires_grad)
    else:
        holder._buffers[last] = data


def same(want: Sequence[Tensor], got: Sequence[Tensor], what: str) -> None:
    assert len(want) == len(got), what
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{what}: output {i}"
        assert a.stride() == b.stride(), f"{what}: strides of output {i}"
        assert a.requires_grad == b.requires_grad, f"{what}: requires_grad of output {i}"
        assert _native.bits_equal(a.detach(), b.detach()), f"{what}: output {i}"


def keywords(captured: Captured, first: int, end: int, symbols: list[int] | None) -> dict[str, int]:
    _, names = captured.plan.places(first, end)
    if not names:
        return {}
    assert symbols is not None
    return {name: symbols[number] for name, number in names}


def check_whole(model: Any, *inputs: Any, grad: bool = False, other: Sequence[Any] | None = None) -> str:
    """The whole plan as source against the model's replay, on other data too; gives the text."""
    with grad_mode(grad):
        plan = cleave.capture(model, tuple(inputs), both_grad_modes=False)
    captured = plan._main
    n = captured.plan.node_count()
    module, text = load_source(captured, 0, n)
    for given in (inputs, other or inputs):
        mine, theirs = (_tree.flatten((given, {}))[1] for _ in range(2))
        mine, theirs = [t.detach().clone() for t in mine], [t.detach().clone() for t in theirs]
        with grad_mode(grad):
            torch.manual_seed(3)
            got = module(*theirs)
            torch.manual_seed(3)
            args, kwargs = _tree.unflatten(captured.arguments, mine)
            want = _tree.flatten(model(*args, **kwargs))[1]
        same(want, got[: len(want)], text)
        same(mine, theirs, "inputs")
        check_state(captured, module, 0, n)
        if grad:
            check_gradients(captured, module, want, got, n)
    return text


def check_state(captured: Captured, module: nn.Module, first: int, end: int) -> None:
    for place, name, _ in captured.plan.places(first, end)[0]:
        if name is not None:
            holder, key = captured.state[name]
            assert _native.bits_equal(at(module, place).detach(), holder[key].detach()), f"{name} after the run"


def check_gradients(
    captured: Captured, module: nn.Module, want: Sequence[Tensor], got: Sequence[Tensor], end: int
) -> None:
    roots = [i for i, t in enumerate(want) if t.requires_grad and t.is_floating_point()]
    pairs = []
    for place, name, _ in captured.plan.places(0, end)[0]:
        if name is not None and at(module, place).requires_grad:
            holder, key = captured.state[name]
            pairs.append((holder[key], at(module, place)))
    assert min(len(roots), len(pairs)) > 0, "nothing to differentiate"
    seeds = [torch.linspace(0.5, 1.5, want[i].numel()).reshape(want[i].shape) for i in roots]
    a = torch.autograd.grad([want[i] for i in roots], [p for p, _ in pairs], seeds, allow_unused=True)
    b = torch.autograd.grad([got[i] for i in roots], [p for _, p in pairs], seeds, allow_unused=True)
    for x, y in zip(a, b, strict=True):
        assert (x is None) == (y is None)
        assert x is None or y is None or _native.bits_equal(x, y)


def check_cuts(model: nn.Module, *inputs: Tensor, every: int = 1) -> None:
    """Prefix and suffix as sources, composed, against the model, at every safe frontier."""
    with torch.no_grad():
        plan = cleave.capture(model, inputs, both_grad_modes=False)
        captured = plan._main
        n = captured.plan.node_count()
        torch.manual_seed(4)
        want = _tree.flatten(copy.deepcopy(model)(*[t.clone() for t in inputs]))[1]
        cuts = [c[0] + 1 for c in captured.plan.frontiers() if c[8] is None]
        assert cuts
        for cut in cuts[::every]:
            prefix, _ = load_source(captured, 0, cut)
            suffix, _ = load_source(captured, cut, n, delete=True)
            torch.manual_seed(4)
            boundary = prefix(*[t.clone() for t in inputs])
            kept = [t.clone() for t in boundary]
            same(want, suffix(*boundary), f"cut at {cut}")
            assert all(torch.equal(a, b) for a, b in zip(kept, boundary, strict=True)), (
                f"the boundary at {cut} was written"
            )


def operators(native: Any, first: int, end: int) -> list[str]:
    """The nodes without what a second capture may say otherwise: places, modules, names of constants."""
    out = []
    for node in native.nodes()[first:end]:
        line = re.sub(r' at "[^"]*"$', "", node[6])
        line = re.sub(r' in (""|[\w.<>"-]+)$', "", line)
        line = re.sub(r"@([\w.]+)", r"@\1", line)
        out.append(re.sub(r"#(\d+)", r"@const_\1", line))
    return out


def check_operators(model: Any, *inputs: Tensor, grad: bool = False) -> str:
    """The source, captured in turn, is the same operators with the same arguments."""
    with grad_mode(grad):
        captured = cleave.capture(model, inputs, both_grad_modes=False)._main
        module, text = load_source(captured, 0, captured.plan.node_count())
        again = cleave.capture(module.train(bool(getattr(model, "training", False))), inputs, both_grad_modes=False)
    n = captured.plan.node_count()
    assert operators(again._main.plan, 0, n) == operators(captured.plan, 0, n), text
    return text


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.blocks = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1, groups=g) for g in (1, 4)])
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.bn(self.conv(x)))
        for block in self.blocks:
            x = x + nn.functional.silu(block(x))
        x = nn.functional.max_pool2d(x, 2)
        return self.head(x.mean((2, 3))).softmax(-1)  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 20)
        self.out.weight = self.embed.weight
        self.register_buffer("mask", torch.full((6, 6), float("-inf")).triu(1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.embed(ids))
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, 4, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:s, :s])
        return self.out(y.transpose(1, 2).reshape(b, s, 16) * 0.5 + x)  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(12, 5)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y, (h, c) = self.lstm(x)
        z, _ = self.gru(y)
        return {"z": z, "state": [h, c], "n": 3}


class Stateful(nn.Module):
    """Buffers written, re-bound and read; a tensor attribute; a constant of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("hidden", torch.zeros(4))
        self.scale = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        y = self.lin(x) * self.scale + self.hidden + torch.tensor([0.1, float("inf"), -0.0, 1e-30]).clamp(max=2.0)
        self.hidden = y.mean(0).detach()
        return y  # type: ignore[no-any-return]


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).train()


SMALL: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "conv": lambda: (Conv().eval(), (torch.randn(2, 3, 8, 8),)),
    "attention": lambda: (Attention().eval(), (torch.randint(0, 20, (2, 6)),)),
    "recurrent": lambda: (Recurrent().eval(), (torch.randn(2, 3, 4),)),
    "sequential": lambda: (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval(), (torch.randn(3, 4),)),
    "transformer": lambda: (transformer(), (torch.randn(2, 5, 16),)),
    "groupnorm": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8), nn.LeakyReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        (torch.randn(2, 3, 6, 6),),
    ),
    "transposed": lambda: (
        nn.Sequential(nn.ConvTranspose2d(3, 4, 2, stride=2), nn.Hardswish(), nn.AvgPool2d(2), nn.Conv1d(4, 2, 1))[:3],
        (torch.randn(2, 3, 4, 4),),
    ),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_the_source_of_a_model_runs_alone_and_gives_its_bits(name: str, grad: bool) -> None:
    torch.manual_seed(0)
    model, inputs = SMALL[name]()
    other = tuple(t.flip(0) * 2 if t.is_floating_point() else t.flip(1) for t in inputs)
    check_whole(model, *inputs, grad=grad, other=other)


@pytest.mark.parametrize("name", SMALL)
def test_the_source_reaches_the_same_operators_with_the_same_arguments(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = SMALL[name]()
    check_operators(model, *inputs)


@pytest.mark.parametrize("name", SMALL)
def test_prefix_and_suffix_as_sources_are_the_whole(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = SMALL[name]()
    check_cuts(model, *inputs)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x, y: (2 * x - y / 3 + x**2 - (1 - x)) @ y.t() + 1e-5 - 3,
    "comparisons": lambda x, y: ((x > y) & (x != 0) | (y <= 0.5)).float().sum() + (x == y).sum(0).to(torch.float32),
    "in place": lambda x, y: (x * 1).add_(y, alpha=2).mul_(0.5).sub_(1).div_(y.abs() + 1).masked_fill_(y > 1, -7.0),
    "slices": lambda x, y: x[1:, 0:2] + y[:-1, -2:] + x[:1, 2:3] + y[..., 1:2][1:],
    "joined": lambda x, y: torch.cat([x, torch.stack([y[0], x[1]])], dim=0).unsqueeze(0).expand(2, -1, -1).clone(),
    "pieces": lambda x, y: [*x.split(2, dim=1), *y.unbind(0), *torch.chunk(x, 2), *x.split([1, 3], dim=1)],
    "shapes": lambda x, y: x.view(-1).reshape(2, 6).permute(1, 0).contiguous().squeeze(0).narrow(0, 1, 2).repeat(1, 2),
    "indices": lambda x, y: x[torch.tensor([0, 2])] + y.index_select(0, torch.tensor([1, 1]))[:, [3, 2, 1, 0]],
    "made": lambda x, y: torch.zeros_like(x) + torch.arange(4, device=x.device) + torch.full((1, 4), 2.5).to(x.dtype),
    "made alike": lambda x, y: (
        torch.arange(1, 9, 2, dtype=torch.float32) * torch.ones_like(x)
        + x.new_zeros(4)
        + torch.full_like(y, 0.5)
        + x.new_ones(3, 4, dtype=torch.int32)
        + torch.empty_like(x).fill_(2)
        + torch.ones(3, 4).tril(1)
        + torch.arange(2, 6)
        + torch.ones(3, 4).triu(1)
    ),
    "moved": lambda x, y: x.to("cpu") + y.to(x.device, torch.float64) + x.double().type_as(y) + x[0].expand_as(y),
    "masks": lambda x, y: torch.logical_and(~(x > 0), torch.logical_not(y > 0)) | torch.logical_or(x > 1, y > 1),
    "extremes": lambda x, y: x.max() - y.min() + torch.minimum(x, y) * torch.maximum(x, y).square() + x.erf(),
    "differences": lambda x, y: torch.diff(x, prepend=y[:, :1]).reciprocal().masked_fill(y > 0, torch.tensor(0.5)),
    "where": lambda x, y: torch.where(x > 0, x, y).clamp(min=-1, max=0.5) + x.masked_fill(y > 0, float("-inf")).exp(),
    "norms": lambda x, y: x.norm(dim=1, keepdim=True) + torch.std(y, dim=0, correction=0) + torch.var(x, 1).mean(),
    "results": lambda x, y: (x.max(dim=1), y.topk(2), torch.sort(x, dim=1, descending=True)),
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y).argmax(dim=1, keepdim=True),
    "complex": lambda x, y: torch.view_as_real(torch.view_as_complex(x.reshape(3, 2, 2)) * complex(1.5, -0.0)),
    "reductions": lambda x, y: (
        x.mean() + y.sum() + x.mean(dim=0, keepdim=True) + y.sum((0, 1)) + x.prod() + y.amax(1)[0]
    ),
    "activations": lambda x, y: [
        f(x)
        for f in (F.mish, F.hardsigmoid, F.hardswish, F.silu, F.gelu, F.relu, F.relu_, F.leaky_relu, F.elu, F.softplus)
    ],
    "activations with arguments": lambda x, y: [
        F.gelu(x, approximate="tanh"),
        F.leaky_relu(y, 0.2),
        F.silu(x * 1, True),
    ],
    "elementwise": lambda x, y: [
        getattr(torch, f)(x.abs() + 0.5)
        for f in ("tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "neg")
    ],
    "softmaxes": lambda x, y: F.log_softmax(x, dim=1) + F.softmax(y, dim=0, dtype=torch.float64) + x.softmax(-1),
    "products": lambda x, y: (
        x.mm(y.t()) + torch.bmm(x[None], y.t()[None])[0] + torch.addmm(x[:, :3], x, y.t(), beta=0.5, alpha=2)
    ),
    "convolutions": lambda x, y: [
        F.conv1d(x[None], y[None, :, :2].permute(1, 0, 2).repeat(1, 3, 1), stride=2, padding=1),
        F.conv2d(x[None, None], y[None, None, :2, :2], padding="same"),
        F.conv2d(x[None, None], y[None, None, :2, :2], padding=(1, 2), dilation=(2, 1)),
        F.conv3d(x.view(1, 1, 3, 2, 2), y[None, None, None, :2, :2]),
        F.conv_transpose2d(x[None, None], y[None, None, :2, :2], stride=2, output_padding=1),
    ],
    "pools": lambda x, y: [
        F.max_pool2d(x[None], 2),
        F.max_pool2d(x[None], 2, stride=1, padding=1, ceil_mode=True),
        F.avg_pool2d(x[None], (2, 1), stride=(1, 1), count_include_pad=False),
        F.adaptive_avg_pool1d(x, 2),
        F.adaptive_avg_pool2d(x[None], (2, 2)),
        F.pad(x, (1, 0), value=2.0),
        F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    ],
    "normalisations": lambda x, y: [
        F.rms_norm(x, (4,)),
        F.layer_norm(x, (4,), weight=y[0], eps=1e-3),
        F.group_norm(x, 2, bias=y[0]),
        F.batch_norm(x, y[0].abs(), y[1].abs(), training=False),
        F.batch_norm(x, None, None, training=True),
        F.instance_norm(x[None]),
    ],
    "lookups": lambda x, y: [
        F.embedding(torch.tensor([0, 2, 1]), x),
        F.embedding(torch.tensor([0, 2, 1]), x, padding_idx=1),
        F.embedding(torch.tensor([0, 2]), x, scale_grad_by_freq=True),
        F.one_hot(torch.tensor([0, 3]), 5),
    ],
    "losses": lambda x, y: F.cross_entropy(x, torch.tensor([0, 1, 3])) + F.mse_loss(x, y) + F.l1_loss(x, y),
    "attention": lambda x, y: F.scaled_dot_product_attention(
        x[None], y[None], x[None], attn_mask=(y @ x.t() > 0)[None], scale=0.3
    ),
    "copies": lambda x, y: torch.zeros(3, 4).copy_(x).add_(x.clone().zero_()).flatten(1).t().contiguous(),
    "same value out twice": lambda x, y: (x, x + y, x),
    "types": lambda x, y: x.to(torch.float64) + y.double() + x.long().bool().to(torch.uint8) + x.half().float(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_source_of_a_function_gives_its_bits_by_the_same_operators(name: str) -> None:
    torch.manual_seed(1)
    fn, inputs = FUNCTIONS[name], (torch.randn(3, 4), torch.randn(3, 4))
    model = Fn(lambda lin, x, y: fn(x, y))
    check_whole(model, *inputs, other=(torch.randn(3, 4), torch.randn(3, 4)))
    check_operators(model, *inputs)


def test_batch_norm_in_train_mode_updates_the_buffers_of_the_source() -> None:
    model = Conv().train()
    text = check_whole(model, torch.randn(4, 3, 8, 8), grad=True, other=(torch.randn(4, 3, 8, 8) * 3,))
    assert "self.bn.num_batches_tracked.add_(1)" in text
    assert "F.batch_norm(" in text
    assert "training=True" in text


def test_dropout_draws_what_the_model_draws() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.4), nn.Linear(6, 6), nn.Dropout(0.1)).train()
    text = check_whole(model, torch.randn(5, 6), grad=True)
    assert "F.dropout(linear, p=0.4, training=True)" in text


def test_module_tensors_that_a_forward_rebinds_are_rebound_in_the_source() -> None:
    model = Stateful().eval()
    text = check_whole(model, torch.randn(3, 4), other=(torch.randn(3, 4),))
    assert "self.hidden = " in text
    assert '"scale", torch.empty(4, dtype=torch.float32), persistent=False' in text
    assert 'float("inf"), -0.0, 1e-30' in text.replace("1.0000000031710769e-30", "1e-30")


def test_regions_without_grad_are_blocks() -> None:
    def forward(lin: nn.Linear, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = lin(x).abs().mean()
            scale = scale + 1
        return lin(x) / scale  # type: ignore[no-any-return]

    text = check_whole(Fn(forward), torch.randn(3, 4), grad=True)
    assert text.count("with torch.no_grad():") == 1


def test_autocast_regions_are_blocks() -> None:
    def forward(lin: nn.Linear, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            y = lin(x) + 1
        return lin(y.float())  # type: ignore[no-any-return]

    model = Fn(forward)
    text = check_whole(model, torch.randn(3, 4))
    assert 'with torch.autocast("cpu", dtype=torch.float16):' in text


def test_global_flags_are_blocks() -> None:
    def forward(lin: nn.Linear, x: Tensor) -> Tensor:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q = lin(x).view(1, 1, 3, 4)
        with sdpa_kernel(SDPBackend.MATH):
            y = nn.functional.scaled_dot_product_attention(q, q, q)
        return y + 1

    text = check_whole(Fn(forward), torch.randn(3, 4))
    one_line = re.sub(r"\s+", " ", text)
    assert "flag( torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, False" in one_line


def test_a_guard_raises_when_the_value_differs() -> None:
    model = Fn(lambda lin, x: lin(x) if x.sum() > 0 else lin(-x))
    text = check_whole(model, torch.ones(3, 4))
    captured = cleave.capture(model, torch.ones(3, 4))._main
    module, text = load_source(captured, 0, captured.plan.node_count())
    assert "if not is_nonzero:" in text
    with pytest.raises(RuntimeError, match=r"node is_nonzero at .*test_source.py"):
        module(-torch.ones(3, 4))


def test_a_shape_that_follows_the_data_is_guarded() -> None:
    model = Fn(lambda lin, x: lin(x)[x[:, 0] > 0])
    x = torch.tensor([[1.0, 0, 0, 0], [-1, 0, 0, 0], [2, 0, 0, 0]])
    captured = cleave.capture(model, x)._main
    module, text = load_source(captured, 0, captured.plan.node_count())
    same([model(x).detach()], [t.detach() for t in module(x)], text)
    with pytest.raises(RuntimeError, match="shape depends on the data"):
        module(x.abs() + 1)


@pytest.mark.parametrize("value", [0.0, -0.0, float("nan"), 2.5])
def test_numbers_read_from_the_data_are_compared_by_their_bits(value: float) -> None:
    plan = _native.parse(
        'cleave-plan 1\nmodel "m"\ninput %0 f32[] name="x"\n'
        f"%1 = aten::item(%0) -> float = {value} {{host}}\noutput %0\n"
    )
    text = plan.source(0, 1, "Segment")
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    module = namespace["Segment"]()
    module(torch.tensor(value))
    for wrong in (0.0, -0.0, float("nan"), 2.5):
        if repr(wrong) != repr(value):
            with pytest.raises(RuntimeError, match="node item"):
                module(torch.tensor(wrong))


def test_constants_are_exact() -> None:
    data = {
        torch.float32: [0.1, -0.0, float("inf"), -1e-45],
        torch.float64: [0.1, -0.0, float("-inf"), 5e-324],
        torch.float16: [0.1, -0.0, float("inf"), 6e-8],
        torch.bfloat16: [0.1, -0.0, float("-inf"), 1e-40],
        torch.int64: [2**62, -(2**63), 0, 1],
        torch.uint8: [255, 0, 1, 2],
        torch.bool: [True, False, True, True],
    }
    for dtype, values in data.items():
        constant = torch.tensor([values], dtype=dtype)
        plan = cleave.capture(lambda x, c=constant: (c.clone(), x + 1), torch.ones(2))
        text = plan._main.plan.source(0, plan._main.plan.node_count(), "Segment")
        namespace: dict[str, Any] = {}
        exec(text, namespace)
        module = namespace["Segment"]()
        assert _native.bits_equal(module(torch.ones(2))[0], constant), text
        assert module.state_dict() == {}


def test_a_large_constant_is_a_buffer_to_load() -> None:
    constant = torch.randn(50)
    captured = cleave.capture(lambda x: x + constant, torch.ones(50))._main
    text = captured.plan.source(0, captured.plan.node_count(), "Segment")
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    module = namespace["Segment"]()
    module.load_state_dict({"const_0": constant})
    assert torch.equal(module(torch.ones(50))[0], 1 + constant)


def test_the_models_own_state_loads_into_the_source() -> None:
    model = Attention().eval()
    captured = cleave.capture(model, torch.randint(0, 20, (2, 6)))._main
    namespace: dict[str, Any] = {}
    exec(captured.plan.source(0, captured.plan.node_count(), "Prefix"), namespace)
    module = namespace["Prefix"]()
    wrong = module.load_state_dict(model.state_dict(), strict=False)
    assert not wrong.missing_keys
    assert wrong.unexpected_keys == ["out.weight"], "the tied weight is there once"
    ids = torch.randint(0, 20, (2, 6))
    assert torch.equal(module(ids)[0], model(ids))


def sized(model: nn.Module, *inputs: Tensor) -> Captured:
    runtime = cleave.prepare_split(
        model,
        example_inputs=inputs,
        split=cleave.SplitSpec(boundary="50%", dynamic_batch=(1, 16), trace_batch_mode="batch_gt1"),
    )
    assert runtime.sized is not None
    assert runtime.sized.reason is None
    return runtime.main_cut.captured


@pytest.mark.parametrize("name", ["conv", "attention", "sequential"])
def test_symbols_are_read_from_the_inputs_at_any_batch(name: str) -> None:
    model, inputs = SMALL[name]()
    captured = sized(model, *inputs)
    n = captured.plan.node_count()
    for cut in [c[0] + 1 for c in captured.plan.frontiers() if c[8] is None]:
        prefix, _ = load_source(captured, 0, cut)
        suffix, text = load_source(captured, cut, n)
        for batch in (1, 3, 7):
            again = tuple(t[torch.arange(batch) % len(t)] for t in inputs)
            with torch.no_grad():
                boundary = prefix(*again, **keywords(captured, 0, cut, [batch]))
                got = suffix(*boundary, **keywords(captured, cut, n, [batch]))
                same([model(*again)], got, text)


def test_a_symbol_that_no_input_shows_is_a_keyword() -> None:
    class Folded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            b = x.shape[0]
            flat = (x * 2).reshape(-1)
            return flat.reshape(b, 4) + b

    captured = sized(Folded(), torch.randn(3, 4))
    nodes = captured.plan.nodes()
    cut = next(i for i, node in enumerate(nodes) if node[1] == "aten::reshape") + 1
    suffix, text = load_source(captured, cut, len(nodes))
    assert re.search(r"def forward\(self, \w+, \*, B\):", text)
    assert torch.equal(suffix(torch.arange(20.0), B=5)[0], torch.arange(20.0).reshape(5, 4) + 5)


def test_names_that_python_does_not_take_are_made_safe() -> None:
    text = (
        'cleave-plan 1\nmodel "odd\\nname"\nsymbol lambda 1..4\nsymbol x 1..4\nscope "" "A\\nimport os"\n'
        'input %0 f32[lambda,x] name="x"\ninput %1 f32[lambda,x] name="class"\n'
        "input %2 f32[lambda,x] name=\"2 b['c']\"\n"
        'param @"a-b.0.in.__w" f32[3]\nbuffer @F f32[1]\n'
        '%3 = aten::add.Tensor(%0, %1, 1) -> f32[lambda,x] in ""\n'
        "%4 = aten::mul.Tensor(%3, num(lambda*x)) -> f32[lambda,x]\n"
        "%5 = aten::mul.Tensor(%4, @F) -> f32[lambda,x]\n"
        '%6 = aten::add.Tensor(%5, @"a-b.0.in.__w", 1) -> f32[lambda,x]\n'
        "%7 = aten::add.Tensor(%6, %2, 1) -> f32[lambda,x]\noutput %7\n"
    )
    source = _native.parse(text).source(0, 5, "Segment")
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    module = namespace["Segment"]()
    module.load_state_dict({"a-b.0.in.__w": torch.ones(3), "F": torch.full((1,), 2.0)})
    x = torch.ones(2, 3)
    assert torch.equal(module(x, x, x)[0], (x + x) * 6 * 2 + 1 + 1), source


@pytest.mark.parametrize("op", ["aten::__class__", "aten::add.__call__", "aten::__init__.x", "aten::a.b.c", "aten::0a"])
def test_an_operator_name_that_reaches_into_python_is_refused(op: str) -> None:
    plan = _native.parse(f'cleave-plan 1\nmodel "m"\ninput %0 f32[1]\n%1 = {op}(%0) -> f32[1]\noutput %1\n')
    with pytest.raises(cleave.CleaveError, match=r"torch\.ops"):
        plan.source(0, 1, "Segment")


def test_the_source_of_any_plan_is_python() -> None:
    root = Path(__file__).resolve().parent.parent.parent
    written = 0
    for file in [*root.glob("tests/plan/*.plan"), *root.glob("fuzz/corpus/plan_parse/*")]:
        try:
            plan = _native.parse(file.read_bytes().decode("utf-8", "surrogateescape"))
            text = plan.source(0, plan.node_count(), "Segment", delete=True)
        except (cleave.CleaveError, UnicodeError):
            continue
        compile(text, file.name, "exec")
        written += 1
    assert written > 5


def test_what_has_no_source_text_is_refused_by_name() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
            return g * 2

    captured = cleave.capture(Fn(lambda lin, x: Twice.apply(lin(x))), torch.ones(3, 4))._main
    with pytest.raises(cleave.CaptureError, match=r"node python \(cleave::python\).*Python code"):
        captured.plan.source(0, captured.plan.node_count(), "Segment")
    generator = torch.Generator()
    captured = cleave.capture(lambda x: x + torch.rand(3, generator=generator), torch.ones(3))._main
    with pytest.raises(cleave.CaptureError, match=r"node rand .*object"):
        captured.plan.source(0, captured.plan.node_count(), "Segment")


@pytest.mark.parametrize("name", ["", "class", "a b", "Part", "x\n"])
def test_a_class_name_must_be_free(name: str) -> None:
    plan = _native.parse('cleave-plan 1\nmodel "m"\ninput %0 f32[1]\noutput %0\n')
    with pytest.raises(cleave.CleaveError, match="name of the class"):
        plan.source(0, 0, name)


def test_a_boundary_that_the_suffix_writes_is_copied() -> None:
    model = Fn(lambda lin, x: lin(x).add_(1).relu_().mul_(2))
    check_cuts(model, torch.randn(3, 4))


def test_the_copy_of_a_boundary_that_is_written_keeps_its_strides() -> None:
    model = Fn(lambda lin, x: lin(x)[:, :2].mul_(2) @ x[:, :2].t())
    check_cuts(model, torch.randn(3, 4))
    captured = cleave.capture(model, torch.randn(3, 4))._main
    _, text = load_source(captured, 2, captured.plan.node_count())
    assert "slice = own_copy(slice)" in text


def test_the_source_deletes_values_after_their_last_use_when_asked() -> None:
    captured = cleave.capture(Conv().eval(), torch.randn(2, 3, 8, 8))._main
    module, text = load_source(captured, 0, captured.plan.node_count(), delete=True)
    assert "\n        del " in text
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        same(Program(captured, 0, captured.plan.node_count()).run([x]), module(x), text)
