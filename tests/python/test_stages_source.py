"""Generated files of pipelines: in a fresh process that has torch alone they do what the model does, bit for bit."""

from __future__ import annotations

import copy
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cleave
from cleave import _tree

# Runs in a process of its own: the file, what goes in, what must come out.
CHECK = """
import importlib.util, sys
import torch

case = torch.load(sys.argv[2], weights_only=True)
spec = importlib.util.spec_from_file_location("generated", sys.argv[1])
file = importlib.util.module_from_spec(spec)
spec.loader.exec_module(file)
assert "cleave" not in sys.modules


def bits(t):
    t = t.detach()
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.contiguous().reshape(-1).view(torch.uint8)


def same(a, b, what):
    assert a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b)), what


def flat(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [t for v in tree.values() for t in flat(v)]
    return [t for v in tree for t in flat(v)] if isinstance(tree, (list, tuple)) else []


config = file.create_pipeline_configuration()
stages = [s["stage_cls"](device=s["devices"][0]) for s in config["stages"].values()]
file.load_model_state(stages, case["state"])
pipeline = file.Pipeline(stages)
for stage in stages:
    unknown = set(stage.state_dict()) - set(case["names"])
    assert not unknown, f"names that the model does not have: {unknown}"
    stage.load_state_dict({k: case["state"][k] for k in stage.state_dict()})

values = {}
for name, given in zip(config["model_inputs"], case["inputs"][0]):
    assert config["model_inputs"][name]["dtype"] == given.dtype

for inputs, wanted in zip(case["inputs"], case["outputs"]):
    torch.manual_seed(7)
    with torch.set_grad_enabled(case["grad"]):
        got = flat(pipeline(*[t.clone() for t in inputs]))
    assert len(got) == len(wanted)
    for i, (a, b) in enumerate(zip(got, wanted)):
        same(a, b, f"output {i}")
    if case["grad"]:
        roots = [t for t in got if t.requires_grad and t.is_floating_point()]
        sum((t * torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape)).sum() for t in roots).backward()
for name, data in case["after"].items():
    found = [s.get_parameter(name) if name in dict(s.named_parameters(remove_duplicate=False)) else s.get_buffer(name)
             for s in stages if name in s.state_dict()]
    for t in found:
        same(t, data, f"{name} after the run")
if case["grad"]:
    sums = {}
    first = {(i, own): name for name, by in config["shared"].items() for i, own in by.items()}
    seen = set()
    for i, stage in enumerate(stages):
        for name, p in stage.named_parameters():
            name = first.get((i, name), name)
            if p.grad is not None and id(p) not in seen:
                seen.add(id(p))  # stages on one device share a parameter
                sums[name] = sums[name] + p.grad if name in sums else p.grad
    for name, g in case["grads"].items():
        assert name in sums, f"no gradient of {name}"
        torch.testing.assert_close(sums[name], g) if case["shared"] else same(sums[name], g, f"gradient of {name}")
print("equal", len(case["outputs"]))
"""


def formatted(path: Path) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():  # it comes with the project's own set-up
        return
    for command in (["format", "--isolated", "--diff"], ["check", "--isolated"]):
        done = subprocess.run([ruff, *command, path], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def even(n: int, stages: int) -> list[int]:
    return [n * (i + 1) // stages for i in range(stages)]


def generate(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    ends: Callable[[int], list[int]] | None = None,
    stages: int = 3,
    batch: tuple[int, int] | None = None,
    grad: bool = False,
    **options: Any,
) -> tuple[str, Any]:
    with torch.set_grad_enabled(grad):
        plan = cleave.capture(model, tuple(args), kwargs, both_grad_modes=False, dynamic_batch=batch)
    captured = plan._main
    n = captured.plan.node_count()
    saved = set(model.state_dict())
    loose = [name for name, _ in model.named_buffers(remove_duplicate=False) if name not in saved]
    symbols = captured.plan.symbols()
    cuts = ends(n) if ends else even(n, stages)
    text = captured.plan.stages_source(
        cuts, batch_symbol=symbols[0] if batch and symbols else None, not_saved=loose, **options
    )
    return text, captured


def leaves(args: Sequence[Any], kwargs: dict[str, Any] | None) -> list[Tensor]:
    return [t.detach().clone() for t in _tree.flatten((tuple(args), kwargs or {}))[1]]


def check(
    tmp_path: Path,
    model: nn.Module,
    *args: Any,
    kwargs: dict[str, Any] | None = None,
    other: Sequence[Sequence[Any]] = (),
    grad: bool = False,
    shared: bool = False,
    **options: Any,
) -> str:
    """The file of the model's pipeline against the model itself, on these inputs and on others; gives its text."""
    text, captured = generate(model, args, kwargs, grad=grad, **options)
    file = tmp_path / "generated.py"
    file.write_text(text)
    formatted(file)
    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    for place, name, data in captured.plan.places(0, captured.plan.node_count())[0]:
        if name is not None and name not in state:
            holder, key = captured.state[name]
            state[name] = holder[key].detach().clone()
        elif data is not None:
            state[place] = data.detach().clone()
    mine = copy.deepcopy(model)
    runs = [(args, kwargs or {}), *((a, {}) for a in other)]
    outputs = []
    for given, named in runs:
        torch.manual_seed(7)
        fresh = copy.deepcopy((given, named))
        with torch.set_grad_enabled(grad):
            out = _tree.flatten(mine(*fresh[0], **fresh[1]))[1]
        outputs.append([t.detach().clone() for t in out])
        if grad:
            roots = [t for t in out if t.requires_grad and t.is_floating_point()]
            total = sum((t * torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape)).sum() for t in roots)
            assert isinstance(total, Tensor)
            total.backward()
    case = {
        "state": state,
        "names": list(model.state_dict()),
        "inputs": [leaves(*run) for run in runs],
        "outputs": outputs,
        "grad": grad,
        "shared": shared,
        "grads": {n: p.grad for n, p in mine.named_parameters() if p.grad is not None},
        "after": {k: v.detach().clone() for k, v in mine.state_dict().items()},
    }
    torch.save(case, tmp_path / "case.pt")
    script = tmp_path / "check.py"
    script.write_text(CHECK)
    done = subprocess.run(
        [sys.executable, "-I", script, file, tmp_path / "case.pt"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, text + done.stdout + done.stderr
    assert f"equal {len(runs)}" in done.stdout
    return text


# ---- models ----


class Block(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(b)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(b, b, 3, padding=1, groups=2)
        self.bn2 = nn.BatchNorm2d(b, eps=1e-3, momentum=0.2)
        self.down = nn.Sequential(nn.Conv2d(a, b, 1, stride=2), nn.BatchNorm2d(b))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.down(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, (3, 5), padding=(1, 2), bias=False)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layers = nn.Sequential(Block(4, 8), Block(8, 8))
        self.avg = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.pool(F.relu(self.stem(x))))
        return self.fc(torch.flatten(self.avg(x), 1))


@pytest.mark.integration
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("stages", [1, 4])
def test_a_residual_network_in_both_modes(tmp_path: Path, train: bool, stages: int) -> None:
    x = torch.randn(4, 3, 16, 16)
    text = check(tmp_path, ResNet().train(train), x, other=[[torch.randn(4, 3, 16, 16)]], grad=True, stages=stages)
    for part in (
        "self.stem = nn.Conv2d(3, 4, kernel_size=(3, 5), padding=(1, 2), bias=False)",
        "self.layers[0].bn2 = nn.BatchNorm2d(8, eps=0.001, momentum=0.2)",
        "self.layers[0].conv2 = nn.Conv2d(8, 8, kernel_size=3, padding=1, groups=2)",
        "self.pool = nn.MaxPool2d(3, stride=2, padding=1)",
        "self.fc = nn.Linear(8, 5)",
        'self.layers[1].down.add_module("1", nn.BatchNorm2d(8))',
        "self.layers[0].relu = nn.ReLU(inplace=True)",
    ):
        assert part in text
    assert ("self.eval()" in text) == (not train)
    assert "F.conv2d" not in text
    assert "batch_norm(" not in text


def test_train_and_eval_switch_as_in_the_model(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.bn, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.drop(self.bn(self.fc(x))), 0.4, training=self.training)

    model, x = Net().eval(), torch.randn(6, 4)
    text = cleave.pipe_model(model, example_inputs=x, nparts=2, profile="estimate").source()
    assert "F.dropout(dropout, p=0.4, training=self.training)" in text
    file = load(tmp_path, text)
    pipeline = file.Pipeline()
    file.load_model_state(pipeline.stages, model.state_dict())
    for train in (False, True):
        torch.manual_seed(1)
        want = model.train(train)(x)
        torch.manual_seed(1)
        assert torch.equal(pipeline.train(train)(x), want)


@pytest.mark.integration
def test_a_module_that_evaluates_while_the_model_trains_stays_so(tmp_path: Path) -> None:
    model = ResNet().train()
    model.layers[0].bn1.eval()
    text = check(tmp_path, model, torch.randn(4, 3, 16, 16))
    assert "F.batch_norm(" in text


class Attention(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.register_buffer("mask", torch.ones(8, 8).tril().bool(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).split(d, dim=2)
        q, k, v = (y.view(b, t, 2, d // 2).transpose(1, 2) for y in (q, k, v))
        a = (q @ k.transpose(-2, -1)) * (d // 2) ** -0.5
        a = a.masked_fill(~self.mask[:t, :t], float("-inf")).softmax(-1)
        return self.out((a @ v).transpose(1, 2).contiguous().view(b, t, d))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(11, 8), nn.Embedding(8, 8), nn.Dropout(0.1)
        self.h = nn.ModuleList(
            nn.ModuleDict(
                {
                    "ln_1": nn.LayerNorm(8),
                    "attn": Attention(8),
                    "ln_2": nn.LayerNorm(8, bias=False),
                    "mlp": nn.Linear(8, 8),
                }
            )
            for _ in range(2)
        )
        self.ln_f = nn.LayerNorm(8, eps=1e-6)
        self.lm_head = nn.Linear(8, 11, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> dict[str, Any]:
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device)))
        hidden = []
        for h in self.h:
            x = x + h["attn"](h["ln_1"](x))
            x = x + F.gelu(h["mlp"](h["ln_2"](x)), approximate="tanh")
            hidden.append(x)
        return {"logits": self.lm_head(self.ln_f(x)), "hidden": tuple(hidden), "loss": None, "length": ids.shape[1]}


@pytest.mark.integration
@pytest.mark.parametrize("stages", [1, 3])
def test_a_language_model_with_tied_weights(tmp_path: Path, stages: int) -> None:
    ids = torch.randint(0, 11, (2, 6))
    text = check(
        tmp_path, Gpt(), ids, other=[[torch.randint(0, 11, (2, 6))]], grad=True, stages=stages, shared=stages > 1
    )
    assert "self.lm_head = nn.Linear(8, 11, bias=False)" in text
    assert ("self.lm_head.weight = self.wte.weight" in text) == (stages == 1)
    assert "self.h[0].ln_2 = nn.LayerNorm(8, bias=False)" in text
    assert "GIVEN = (" in text


@pytest.mark.integration
def test_a_batch_of_any_size(tmp_path: Path) -> None:
    ids = torch.randint(0, 11, (2, 6))
    others = [[torch.randint(0, 11, (n, 6))] for n in (3, 5)]
    text = check(tmp_path, Gpt().eval(), ids, other=others, batch=(2, 8), stages=5)
    assert "def create_pipeline_configuration(batch_size=2):" in text
    assert '"shape": (batch_size, 6)' in text
    assert '"is_batched": True' in text


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 3, padding="same"), nn.Conv2d(4, 8, 2, stride=2)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)
        self.norm, self.act = nn.GroupNorm(2, 8), nn.SiLU()
        self.grow, self.inst = nn.Upsample(scale_factor=2), nn.InstanceNorm2d(4, affine=True)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.tanh(self.a(x))
        b = self.act(self.norm(self.b(a)))
        c = self.inst(self.up(b))
        return self.out(torch.cat([a, c], dim=1)) + self.grow(b).mean(1, keepdim=True)


@pytest.mark.integration
def test_a_network_with_long_skips(tmp_path: Path) -> None:
    text = check(tmp_path, UNet(), torch.randn(2, 2, 8, 8), grad=True, stages=6, delete=True)
    assert "nn.ConvTranspose2d(" in text
    assert "del " in text
    assert '"relayed": ["tanh"]' in text


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(9, 4, padding_idx=2)
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
        self.gru, self.rnn = nn.GRU(10, 3, bias=False), nn.RNN(3, 3, nonlinearity="relu")

    def forward(self, ids: Tensor, h: Tensor) -> tuple[Any, ...]:
        y, (hn, _) = self.lstm(self.emb(ids))
        z, _ = self.gru(y)
        return self.rnn(z, h), [hn, hn]


@pytest.mark.integration
@pytest.mark.parametrize("train", [False, True])
def test_recurrent_layers(tmp_path: Path, train: bool) -> None:
    model = Recurrent().train(train)
    inputs = torch.randint(0, 9, (3, 6)), torch.randn(1, 6, 3)
    check(tmp_path, model, *inputs, grad=True, stages=4, delete=True)
    text = check(tmp_path, model, *inputs, grad=True, stages=1, delete=True)
    assert "nn.LSTM(" in text
    assert "(embedding)\n" in text, "the zeros of the first state are the layer's own"
    assert "torch.zeros" not in text
    assert "aten.zeros" not in text
    assert "self.rnn(gru_out0, h)" in text


class Many(nn.Module):
    """Operators with arguments of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3))

    def forward(self, x: Tensor, *, mask: Tensor, index: Tensor, target: Tensor | None = None) -> dict[str, Any]:
        a = torch.where(mask, x, self.scale.expand_as(x))
        b = torch.einsum("bi,bj->bij", a, x)
        c = torch.zeros_like(x).scatter_add(1, index, x)
        d = x[:, ::2], x[1:], x[..., -1], x[index[:, 0]]
        e = F.log_softmax(self.frozen(x), dim=1)
        assert target is not None
        loss = F.nll_loss(e, target, reduction="sum")
        f = torch.full_like(x, float("inf")).masked_fill_(mask, 0.5).clamp(max=2.0)
        g = x.double().pow(2).to(torch.float16), (x > 0) & mask, x.t().reshape(-1)
        h = torch.arange(3, device=x.device) + torch.tensor([1, 2, 3])
        big = torch.cumsum(torch.linspace(0, 1, 40), 0)
        return {
            "a": (a, [b, c]),
            "d": d,
            "loss": loss,
            "rest": (f, g, h, big[:3], self.table * 2, self.scale),
            "n": -1.5,
        }


@pytest.mark.integration
def test_operators_with_arguments_of_all_kinds(tmp_path: Path) -> None:
    x, mask, index = torch.randn(4, 3), torch.rand(4, 3) > 0.5, torch.randint(0, 3, (4, 3))
    kwargs = {"mask": mask, "index": index, "target": torch.tensor([0, 2, 1, 1])}
    for stages in (1, 5):
        text = check(tmp_path, Many(), x, kwargs=kwargs, grad=True, stages=stages)
    assert "requires_grad_(False)" in text
    assert "def forward(self, x, mask, index, target):" in text


def test_every_cut_of_a_small_model(tmp_path: Path) -> None:
    model, x = (
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.LayerNorm((3, 4)), nn.GELU()),
        torch.randn(2, 3, 4),
    )
    want = model(x)
    for at in range(5):
        file = load(tmp_path, generate(model, [x], ends=lambda n, at=at: [at, n])[0])
        pipeline = file.Pipeline()
        file.load_model_state(pipeline.stages, model.state_dict())
        assert torch.equal(pipeline(x), want), at


class Pair(NamedTuple):
    a: Tensor
    b: list[Any]


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, d: dict[str, Any], t: tuple[Tensor], *, l: Tensor) -> Pair:
        ones = torch.ones(3, device=l.device)
        return Pair(self.fc(d["x"][0]) + t[0], [d["y"], None, "text", 2, True, 1e30, {"k": l.expand_as(d["y"]) * ones}])


def test_nested_inputs_and_outputs(tmp_path: Path) -> None:
    model, x, y, t, named = Nested(), torch.randn(2, 3), torch.randn(2, 3), torch.randn(3), torch.randn(3)
    text, _ = generate(model, [{"x": [x], "y": y}, (t,)], {"l": named}, stages=2)
    assert "device=self.device" in text
    file = load(tmp_path, text)
    pipeline = file.Pipeline()
    file.load_model_state(pipeline.stages, model.state_dict())
    got, want = pipeline(x, y, t, named), model({"x": [x], "y": y}, (t,), l=named)
    assert torch.equal(got.a, want.a)
    assert torch.equal(got["b"][0], y)
    assert got.b[1:6] == want.b[1:6]
    assert torch.equal(got.b[6]["k"], want.b[6]["k"])
    with pytest.raises(KeyError, match=r"no fc\.bias"):
        file.load_model_state(pipeline.stages, {"fc.weight": model.fc.weight})
    with pytest.raises(ValueError, match=r"fc\.weight has another shape"):
        file.load_model_state(pipeline.stages, {"fc.weight": torch.ones(1), "fc.bias": model.fc.bias})


# ---- what a file says and refuses ----


def load(tmp_path: Path, text: str) -> Any:
    path = tmp_path / f"generated_{abs(hash(text))}.py"
    path.write_text(text)
    formatted(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_configuration_says_what_goes_in_and_out(tmp_path: Path) -> None:
    model, x = UNet(), torch.randn(2, 2, 8, 8)
    text, _ = generate(model, [x], stages=3, batch=(2, 6), devices=["cpu", "cpu", None], depth=7, basic_blocks=["LSTM"])
    config = load(tmp_path, text).create_pipeline_configuration(batch_size=5)
    assert (config["batch_dim"], config["depth"], config["basic_blocks"]) == (0, 7, ["LSTM"])
    assert config["model_inputs"]["x"] == {
        "shape": (5, 2, 8, 8),
        "dtype": torch.float32,
        "is_batched": True,
        "used_by": [0],
    }
    (out,) = config["model_outputs"].values()
    assert (out["shape"], out["created_by"]) == ((5, 1, 8, 8), 2)
    stages = config["stages"]
    assert [s["stage_cls"].__name__ for s in stages.values()] == ["Stage0", "Stage1", "Stage2"]
    for i in (0, 1):
        assert list(stages[i]["outputs"]) == list(stages[i + 1]["inputs"])
        for name, value in stages[i]["outputs"].items():
            assert value["shape"] == stages[i + 1]["inputs"][name]["shape"]
            assert value["used_by"]
    assert stages[0]["devices"] == ["cpu"]
    assert stages[0]["stage_depth"] == 2


def test_files_are_the_same_every_time() -> None:
    model, x = ResNet(), torch.randn(2, 3, 16, 16)
    assert generate(model, [x])[0] == generate(model, [x])[0]


@pytest.mark.integration
def test_a_class_of_the_same_name_is_called_as_the_layer_only_where_it_computes_the_same(tmp_path: Path) -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight * 2)

    text = check(tmp_path, nn.Sequential(Linear(), nn.Linear(4, 4)), torch.randn(2, 4), stages=2)
    assert "self[0]" in text
    assert text.count("nn.Linear(") == 1


@pytest.mark.integration
def test_weights_of_another_layout_or_type_stay_exact(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).to(memory_format=torch.channels_last)
    assert "empty_strided" in check(tmp_path, model, torch.randn(1, 3, 6, 6), stages=2)
    half = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).bfloat16()
    text = check(tmp_path, half, torch.randn(2, 4).bfloat16(), stages=2)
    assert "nn.Linear(4, 4, dtype=torch.bfloat16)" in text


def test_shared_state_that_is_written_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn, self.fc = nn.BatchNorm1d(4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(self.fc(self.bn(x)))

    x = torch.randn(4, 4)
    with pytest.raises(cleave.CleaveError, match=r"bn\.\w+ is written by stage 0 and used by stage 1"):
        generate(Twice(), [x], stages=2)
    assert "class Stage1" in generate(Twice().eval(), [x], stages=2)[0]


def test_stages_that_the_plan_does_not_have_are_refused() -> None:
    model, x = nn.Linear(2, 2), torch.randn(1, 2)
    for ends, why in (([], "at least one"), ([2], "cannot end at node 2"), ([0], "the last stage ends at node 0")):
        with pytest.raises(cleave.CleaveError, match=why):
            generate(model, [x], ends=lambda n, ends=ends: ends)
    with pytest.raises(ValueError, match="2 devices for 1 stages"):
        generate(model, [x], stages=1, devices=["cpu", "cpu"])


def test_python_code_of_the_model_is_refused_with_its_place() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Double.apply(x) + 1

    with pytest.raises(cleave.CleaveError, match=r"stage 0: node python .*Python code"):
        generate(Net(), [torch.randn(2, requires_grad=True)], stages=1, grad=True)
