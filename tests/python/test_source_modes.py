"""Generated files of pipelines in train and in eval mode: what follows the mode in the model follows it there, what is
fixed stays fixed, and a mode that the file does not have is refused."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import kept_rng, mentions
from test_stages_source import formatted, load
from torch import Tensor, nn

import cleave

Step = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """Does `steps` one after the other, on images; layers are in `layers`."""

    def __init__(self, steps: list[Step], layers: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.steps = steps
        self.first, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)
        self.layers = nn.ModuleList(layers or [])
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for step in self.steps:
            x = step(self, x * 1).tanh()
        return self.last(x)


def pipe(model: nn.Module, x: Tensor, **options: Any) -> cleave.PartitionedPlan:
    options = {"nparts": 2, "profile": "estimate", "partitioning_method": "acyclic", **options}
    return cleave.pipe_model(model, example_inputs=(x,), **options)


def check(tmp_path: Path, model: nn.Module, x: Tensor, *, delete: bool = False, **options: Any) -> list[str]:
    """Runs the file of a model in both modes, and in the first one again: the same numbers, gradients and statistics.
    Gives what it says of modes that it refuses."""
    found = pipe(model, x, **options)
    text = found.source(explicit_del=delete)
    file = load(tmp_path, text)
    pipeline, trains, refused = file.Pipeline(), model.training, []
    assert all(stage.training == trains for stage in pipeline.stages)
    flags = {name: m.training for name, m in model.named_modules()}
    for mode in (trains, not trains, trains):
        twin = copy.deepcopy(model)
        if mode != trains:
            twin.train(mode)
        assert all(m.training == flags[name] for name, m in model.named_modules())
        file.load_model_state(pipeline.stages, found.state_dict())
        try:
            pipeline.train(mode)
        except RuntimeError as error:
            refused.append(str(error))
            pipeline.train(trains)
            continue
        same(twin, pipeline, x, f"train {mode}\n{text}")
    return refused


def same(twin: nn.Module, pipeline: Any, x: Tensor, where: str) -> None:
    outputs = []
    for model in (twin, pipeline):
        torch.manual_seed(7)
        model.zero_grad()
        y = model(x.clone())
        y.square().sum().backward()
        outputs.append((y.detach(), torch.randn(1)))
    (a, after), (b, also) = outputs
    assert torch.equal(a, b), where
    assert torch.equal(after, also), f"another number of random draws: {where}"
    state = {k: v for stage in pipeline.stages for k, v in stage.state_dict().items()}
    grads = {k: p.grad for stage in pipeline.stages for k, p in stage.named_parameters()}
    for name, t in twin.state_dict().items():
        assert name not in state or torch.equal(t, state[name]), f"{name}: {where}"
    for name, p in twin.named_parameters():
        assert name not in grads or p.grad is None or torch.equal(p.grad, grads[name]), f"{name}: {where}"


# ---- one at a time ------------------------------------------------------------------------------------------


def attention(net: Net, x: Tensor, rate: float) -> Tensor:
    q = x.flatten(2)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=rate).view_as(x)


def late(noise: Tensor | None, x: Tensor) -> Tensor:
    y = x.relu().exp().view(x.shape[0], -1).view(x.shape)
    return y if noise is None else y + noise


STEPS: dict[str, Step] = {
    "dropout that follows": lambda net, x: F.dropout(x, 0.3, net.training),
    "dropout always": lambda net, x: F.dropout(x, 0.3, training=True),
    "dropout by default": lambda net, x: F.dropout(x, 0.3),
    "dropout never": lambda net, x: F.dropout(x, 0.3, training=False),
    "dropout in eval": lambda net, x: F.dropout(x, 0.3, not net.training),
    "dropout in place": lambda net, x: F.dropout(x.clone(), 0.3, net.training, inplace=True),
    "dropout with two rates": lambda net, x: F.dropout(x, 0.5 if net.training else 0.1),
    "a rate that is none": lambda net, x: F.dropout(x, 0.3 if net.training else 0.0),
    "feature dropout": lambda net, x: F.dropout2d(x, 0.3, net.training),
    "feature dropout by default": lambda net, x: F.dropout2d(x, 0.3),
    "alpha dropout": lambda net, x: F.alpha_dropout(x, 0.3, net.training),
    "alpha dropout always": lambda net, x: F.alpha_dropout(x, 0.3, training=True),
    "feature alpha dropout": lambda net, x: F.feature_alpha_dropout(x, 0.3, net.training),
    "rrelu": lambda net, x: F.rrelu(x, training=net.training),
    "rrelu always": lambda net, x: F.rrelu(x, 0.1, 0.4, training=True),
    "rrelu by default": lambda net, x: F.rrelu(x),
    "batch norm": lambda net, x: F.batch_norm(x, net.mean, net.var, training=net.training),
    "batch norm always": lambda net, x: F.batch_norm(x, net.mean, net.var, training=True, momentum=0.3),
    "batch norm never": lambda net, x: F.batch_norm(x, net.mean, net.var),
    "batch norm of its own": lambda net, x: F.batch_norm(x, None, None, training=True),
    "instance norm": lambda net, x: F.instance_norm(x, net.mean, net.var, use_input_stats=net.training),
    "instance norm always": lambda net, x: F.instance_norm(x, net.mean, net.var),
    "attention": lambda net, x: attention(net, x, 0.2 if net.training else 0.0),
    "attention always": lambda net, x: attention(net, x, 0.2),
    "a factor": lambda net, x: x * (0.5 if net.training else 2.0) + (1 if net.training else 0),
    "an exponent": lambda net, x: x ** (2 if net.training else 3),
    "a size": lambda net, x: F.pad(x, [1, 1] if net.training else [2, 0]).narrow(3, 0, x.shape[3]),
    "a list of sizes": lambda net, x: x.reshape(-1).view([4, -1] if net.training else [-1, 4]).reshape(x.shape),
    "a slice": lambda net, x: torch.cat([x[:, 1 if net.training else 2 :], x], 1)[:, :4],
    "noise in training": lambda net, x: x + torch.randn_like(x) if net.training else x,
    "noise that is made early": lambda net, x: late(torch.randn_like(x) if net.training else None, x),
    "something in eval": lambda net, x: x if net.training else x.softmax(1),
    "written in training": lambda net, x: x.add_(1) if net.training else x,
    "statistics in training": lambda net, x: (
        (net.mean.mul_(0.9).add_(x.detach().mean((0, 2, 3))) if net.training else 0) is not None
        and x + net.mean[:, None, None]
    ),
    "paths that are dropped": lambda net, x: (
        x * x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(0.5).div_(0.5) if net.training else x
    ),
    "a skip in training": lambda net, x: torch.cat([x, torch.relu(x)], 1)[:, ::2] if net.training else x,
    "a weight with noise": lambda net, x: F.conv2d(
        x, net.last.weight + torch.randn(2, 4, 1, 1) if net.training else net.last.weight
    ).repeat(1, 2, 1, 1),
    "the same in both": lambda net, x: x.relu() if net.training else F.relu(x),
}
OTHERWISE: dict[str, Step] = {  # in both modes it does what it does not do in the other
    "another function": lambda net, x: x.relu() if net.training else x.sigmoid(),
    "another order": lambda net, x: x.relu().sigmoid() if net.training else x.sigmoid().relu(),
}
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Dropout": lambda: nn.Dropout(0.3),
    "Dropout in place": lambda: nn.Dropout(0.3, inplace=True),
    "Dropout2d": lambda: nn.Dropout2d(0.3),
    "AlphaDropout": lambda: nn.AlphaDropout(0.3),
    "FeatureAlphaDropout": lambda: nn.FeatureAlphaDropout(0.3),
    "RReLU": lambda: nn.RReLU(),
    "RReLU in place": lambda: nn.RReLU(0.1, 0.2, inplace=True),
    "BatchNorm2d": lambda: nn.BatchNorm2d(4),
    "BatchNorm2d without statistics": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "InstanceNorm2d without statistics": lambda: nn.InstanceNorm2d(4),
}
IMAGES = torch.randn(3, 3, 5, 5)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_steps_in_both_modes(tmp_path: Path, step: str, train: bool) -> None:
    assert not check(tmp_path, Net([STEPS[step]]).train(train), IMAGES, delete=train)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("step", OTHERWISE)
def test_a_mode_that_does_something_else_is_refused(tmp_path: Path, step: str, train: bool) -> None:
    (why,) = check(tmp_path, Net([OTHERWISE[step]]).train(train), IMAGES)
    here, there = ("training", "evaluation") if train else ("evaluation", "training")
    assert f"captured in {here} mode, and in {there} mode it does something else: aten::" in why
    assert "test_source_modes.py:" in why


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_in_both_modes(tmp_path: Path, layer: str, train: bool) -> None:
    model = Net([lambda net, x: net.layers[0](x)], [LAYERS[layer]()]).train(train)
    assert not check(tmp_path, model, IMAGES)


class Sequences(nn.Module):
    def __init__(self, layer: nn.Module, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.layer, self.last, self.call = nn.Linear(8, 8), layer, nn.Linear(8, 8), call

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.call(self.layer, self.first(x)))


RECURRENT: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Tensor], Tensor]]] = {
    "LSTM": (lambda: nn.LSTM(8, 8, 2, dropout=0.3, batch_first=True), lambda m, x: m(x)[0]),
    "GRU": (lambda: nn.GRU(8, 8, 2, dropout=0.3), lambda m, x: m(x)[0]),
    "RNN": (lambda: nn.RNN(8, 8, 3, dropout=0.3, nonlinearity="relu"), lambda m, x: m(x)[0]),
    "attention": (lambda: nn.MultiheadAttention(8, 2, dropout=0.3), lambda m, x: m(x, x, x)[0]),
    "attention without weights": (
        lambda: nn.MultiheadAttention(8, 2, dropout=0.3),
        lambda m, x: m(x, x, x, need_weights=False)[0],
    ),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16), lambda m, x: m(x)),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(8, 2, 16), lambda m, x: m(x, x)),
}


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", RECURRENT)
def test_sequences_in_both_modes(tmp_path: Path, name: str, train: bool) -> None:
    make, call = RECURRENT[name]
    assert not check(tmp_path, Sequences(make(), call).train(train), torch.randn(3, 5, 8))


@pytest.mark.parametrize("train", [True, False])
def test_parts_in_another_mode_than_the_model(tmp_path: Path, train: bool) -> None:
    """Frozen statistics in train mode, dropout that is on in eval mode."""
    layers = [nn.BatchNorm2d(4), nn.Dropout(0.3)]
    model = Net([lambda net, x: net.layers[0](x), lambda net, x: net.layers[1](x)], layers).train(train)
    layers[0 if train else 1].train(not train)
    assert not check(tmp_path, model, IMAGES)


def test_a_class_that_is_called_like_a_layer_keeps_its_own_mode(tmp_path: Path) -> None:
    class Dropout(nn.Module):  # always on
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5, training=True)

    class BatchNorm2d(nn.BatchNorm2d):  # counts in both modes
        def forward(self, x: Tensor) -> Tensor:
            self.num_batches_tracked.add_(1)
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training)

    steps: list[Step] = [lambda net, x: net.layers[0](x), lambda net, x: net.layers[1](x)]
    for train in (True, False):
        assert not check(tmp_path, Net(steps, [Dropout(), BatchNorm2d(4)]).train(train), IMAGES)


def test_what_is_shared_and_written_in_train_mode_leaves_the_eval_file(tmp_path: Path) -> None:
    """Two stages have copies of the statistics: right in eval mode, and refused in train mode."""
    norm: Step = lambda net, x: net.layers[0](x)  # noqa: E731
    between: Step = lambda net, x: F.conv2d(x, net.layers[1].weight)  # noqa: E731
    layers = [nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)]
    options = {"nparts": 4, "node_weight_function": lambda block: 1.0}
    (why,) = check(tmp_path, Net([norm, between, between, norm], layers).eval(), IMAGES, **options)
    assert "in training mode it" in why


def test_a_mode_that_cannot_be_captured_is_refused(tmp_path: Path) -> None:
    def step(net: Net, x: Tensor) -> Tensor:
        if net.training:
            raise ValueError("only for inference")
        return x

    (why,) = check(tmp_path, Net([step]).eval(), IMAGES)
    assert "in training mode it cannot be captured: only for inference" in why


def test_the_texts_of_modes(tmp_path: Path) -> None:
    steps = [
        STEPS[name] for name in ("dropout that follows", "dropout always", "attention", "rrelu", "noise in training")
    ]
    text = pipe(Net(steps).train(), IMAGES, nparts=1).source()
    for part in (
        "F.dropout(mul, p=0.3, training=self.training)",
        "p=0.3, training=True)",
        "dropout_p=0.2 if self.training else 0.0",
        "0.125, 0.3333333333333333, self.training",
        "        if self.training:\n            randn_like = ",
        "        else:\n            add = mul_4\n",
        "train() and eval() switch the stages as they\nswitch the model.",
    ):
        assert part in text, text
    path = tmp_path / "modes.py"
    path.write_text(text)
    formatted(path)
    path.write_text(pipe(Net([OTHERWISE["another function"]]), IMAGES).source(explicit_del=True))
    assert "a stage refuses to be switched to it" in path.read_text()
    formatted(path)


def test_a_changed_model_is_not_written(tmp_path: Path) -> None:
    model = Net([lambda net, x: net.layers[0](x)], [nn.Dropout(0.3)])
    found = pipe(model, IMAGES)
    text = found.source()
    model.eval()
    assert found.source() == text  # the mode of the capture is written, whichever the model is in
    model.layers[0].p = 0.5
    with pytest.raises(cleave.InputError, match=r"p of module layers\.0 changed"):
        found.write_source(tmp_path / "net.py")
    assert not (tmp_path / "net.py").exists()


# ---- at random ----------------------------------------------------------------------------------------------


def run_random(tmp_path: Path, seed: int) -> None:
    with kept_rng():
        torch.manual_seed(seed)
        pick = random.Random(seed)
        names = [pick.choice([*STEPS, *LAYERS]) for _ in range(pick.randint(2, 5))]
        writers = [name for name in names if "norm" in name or "statistics" in name]  # of the same buffers
        names = [name for name in names if name not in writers[1:]]
        otherwise = pick.random() < 0.1
        layers = [LAYERS[name]() for name in names if name in LAYERS]
        numbers = iter(range(len(layers)))
        steps = [STEPS[name] if name in STEPS else _layer(next(numbers)) for name in names]
        if otherwise:
            steps.append(pick.choice(list(OTHERWISE.values())))
        model = Net(steps, layers).train(pick.random() < 0.5)
        if layers and pick.random() < 0.3:
            chosen = pick.choice(layers)
            chosen.train(not chosen.training)
        try:
            refused = check(tmp_path, model, IMAGES, delete=pick.random() < 0.5, nparts=pick.randint(1, 3))
        except cleave.CleaveError as error:
            mentions(error, "is written by stage")  # statistics that two steps use, in two stages
            return
        one_mode = ("in training", "in eval", "noise", "dropped", "norm", "Norm", "statistics")
        may_refuse = otherwise or any(word in name for name in names for word in one_mode)
        assert may_refuse or not refused, (names, refused)


def _layer(number: int) -> Step:
    return lambda net, x: net.layers[number](x)


@pytest.mark.parametrize("seed", range(10))
def test_random_steps_in_both_modes(tmp_path: Path, seed: int) -> None:
    run_random(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 500))
def test_many_random_steps_in_both_modes(tmp_path: Path, seed: int) -> None:
    run_random(tmp_path, seed)
