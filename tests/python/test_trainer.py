"""A suffix that trains from a file gives what train_suffix gives, bit for bit."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from crafted import rewrite
from torch import Tensor, nn

import cleave

Optimizer = Callable[[Any], torch.optim.Optimizer]


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": sgd,
    "sgd with everything": lambda p: torch.optim.SGD(
        p, lr=0.07, momentum=0.9, dampening=0.3, weight_decay=1e-2, maximize=True
    ),
    "sgd with nesterov": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": torch.optim.Adam,
    "adam with everything": lambda p: torch.optim.Adam(
        p, lr=3e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=1e-2, amsgrad=True, maximize=True
    ),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "adamw with amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
}


class Pair:
    """A model that trains across a cut in this process, and another whose suffix trains from a file."""

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        targets: Any,
        tmp_path: Path,
        *,
        at: str = "50%",
        optimizer: Optimizer = sgd,
        loss_fn: Any = None,
        **options: Any,
    ) -> None:
        self.loss_fn = loss_fn
        self.models = [model, copy.deepcopy(model)]
        spec = cleave.SplitSpec(boundary=at, trainable=True, **options)
        self.here, self.split = (cleave.prepare_split(m, example_inputs=x, split=spec) for m in self.models)
        self.heads = [self.optimizer(rt, "prefix", optimizer) for rt in (self.here, self.split)]
        self.tail = optimizer(self.here.parameters("suffix"))
        self.path = self.split.save_trainer(
            tmp_path / "suffix.clv",
            targets,
            optimizer=optimizer(self.split.parameters("suffix")),
            loss_fn=loss_fn,
            seed=7,
        )
        self.trainer = cleave.load_trainer(self.path)
        torch.manual_seed(7)
        self.random = torch.get_rng_state()

    @staticmethod
    def optimizer(runtime: cleave.SplitRuntime, half: str, make: Optimizer) -> list[torch.optim.Optimizer]:
        params = runtime.parameters(half)
        return [make(params)] if params else []

    def step(self, x: Tensor, targets: Any) -> None:
        """One step of both, and everything is compared."""
        boundary = self.here.run_training_prefix(x)
        torch.set_rng_state(self.random)  # the suffix in this process draws from a generator of its own, too
        loss, gradients = self.here.train_suffix(boundary, targets, loss_fn=self.loss_fn, optimizer=self.tail)
        self.random = torch.get_rng_state()
        self.here.backward_prefix(boundary, optimizer=self.heads[0])

        other = self.split.run_training_prefix(x)
        loss2, gradients2 = self.trainer.train_suffix(other, targets)
        self.split.backward_prefix(other, gradients2, optimizer=self.heads[1])
        assert torch.equal(loss, loss2)
        assert not loss2.requires_grad
        assert gradients.keys() == gradients2.keys()
        for label, grad in gradients.items():
            assert (grad is None) == (gradients2[label] is None)
            assert grad is None or (
                torch.equal(grad, gradients2[label]) and grad.stride() == gradients2[label].stride()
            )
        self.compare()

    def compare(self) -> None:
        """Parameters and buffers of the suffix, and of the prefix."""
        found = cleave.BoundaryPayload.from_bytes(self.trainer.state()).tensors
        for name, t in self.here.state("suffix").items():
            if f"model.{name}" in found:
                assert torch.equal(t.detach(), found[f"model.{name}"]), name
        for name, t in self.here.state("prefix").items():
            assert torch.equal(t, self.split.state("prefix")[name]), name


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_twenty_steps_of_every_optimizer_are_those_of_torch_optim(tmp_path: Path, optimizer: Optimizer) -> None:
    torch.manual_seed(0)
    pair = Pair(mlp(), torch.randn(4, 6), torch.tensor([0, 1, 2, 1]), tmp_path, at="after:1", optimizer=optimizer)
    for _ in range(20):
        pair.step(torch.randn(4, 6), torch.randint(3, (4,)))
    assert pair.trainer.steps == 20


def test_groups_keep_their_own_numbers(tmp_path: Path) -> None:
    def groups(params: Any) -> torch.optim.Optimizer:
        params = list(params)
        return torch.optim.SGD([{"params": params[:1], "lr": 0.01}, {"params": params[1:], "momentum": 0.5}], lr=0.2)

    torch.manual_seed(1)
    pair = Pair(mlp(), torch.randn(4, 6), torch.tensor([0, 1, 2, 1]), tmp_path, at="after:1", optimizer=groups)
    for _ in range(5):
        pair.step(torch.randn(4, 6), torch.randint(3, (4,)))


class Images(nn.Module):
    """Convolutions with statistics on both sides of the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.two, self.norm2 = nn.Conv2d(8, 12, 3, stride=2), nn.BatchNorm2d(12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.one(x)))
        x = F.relu(self.norm2(self.two(x)))
        return self.head(x.mean((2, 3)))


def test_convolutions_train_with_statistics_of_batch_norm(tmp_path: Path) -> None:
    torch.manual_seed(2)
    momentum: Optimizer = lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)  # noqa: E731
    pair = Pair(
        Images(), torch.randn(4, 3, 12, 12), torch.tensor([0, 1, 2, 4]), tmp_path, at="after:norm1", optimizer=momentum
    )
    for _ in range(4):
        pair.step(torch.randn(4, 3, 12, 12), torch.randint(5, (4,)))
    found = cleave.BoundaryPayload.from_bytes(pair.trainer.state()).tensors
    assert "model.norm2.running_mean" in found
    assert found["model.norm2.num_batches_tracked"] == 4


class Block(nn.Module):
    """A transformer block with dropout, after an embedding that is the prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.block = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.2, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.embed(tokens)))


def tokens_loss(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), targets.flatten())


def test_a_transformer_block_drops_out_from_the_trainers_own_generator(tmp_path: Path) -> None:
    torch.manual_seed(3)
    tokens = torch.randint(20, (2, 7))
    pair = Pair(Block(), tokens, tokens, tmp_path, at="after:embed", optimizer=torch.optim.AdamW, loss_fn=tokens_loss)
    before = torch.get_rng_state()
    for _ in range(4):
        pair.step(torch.randint(20, (2, 7)), torch.randint(20, (2, 7)))
    torch.set_rng_state(before)
    boundary = pair.split.run_training_prefix(tokens)
    pair.trainer.train_suffix(boundary, tokens)
    assert torch.equal(torch.get_rng_state(), before), "the process's own generator was drawn from"


def test_batches_of_other_sizes_train(tmp_path: Path) -> None:
    torch.manual_seed(4)
    pair = Pair(
        mlp(), torch.randn(4, 6), torch.tensor([0, 1, 2, 1]), tmp_path, at="after:1", optimizer=torch.optim.Adam,
        dynamic_batch=(1, 8),
    )  # fmt: skip
    for n in (1, 8, 3, 4, 1, 2):
        pair.step(torch.randn(n, 6), torch.randint(3, (n,)))


def test_gradients_of_two_boundaries_add_up_in_order(tmp_path: Path) -> None:
    torch.manual_seed(5)
    pair = Pair(
        mlp(), torch.randn(4, 6), torch.tensor([0, 1, 2, 1]), tmp_path, at="after:1", optimizer=OPTIMIZERS["adam"]
    )
    for _ in range(3):
        batches = [(torch.randn(4, 6), torch.randint(3, (4,))) for _ in range(2)]
        for x, targets in batches:
            pair.here.train_suffix(pair.here.run_training_prefix(x), targets)
            pair.trainer.accumulate(pair.split.run_training_prefix(x), targets)
        pair.tail.step()
        pair.tail.zero_grad()
        pair.trainer.apply()
        pair.compare()


class Tied(nn.Module):
    """The embedding is the head's weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(tokens))))


def test_weights_that_both_halves_train_are_stepped_with_their_whole_gradient(tmp_path: Path) -> None:
    torch.manual_seed(6)
    model, tokens = Tied(), torch.randint(11, (2, 5))
    whole = copy.deepcopy(model)
    make: Optimizer = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)  # noqa: E731
    spec = cleave.SplitSpec(boundary="after:embed", trainable=True)
    split = cleave.prepare_split(model, example_inputs=tokens, split=spec)
    path = split.save_trainer(
        tmp_path / "suffix.clv", tokens, optimizer=make(split.parameters("suffix")), loss_fn=tokens_loss
    )
    trainer, head, every = cleave.load_trainer(path), make(split.parameters("prefix")), make(whole.parameters())
    for _ in range(4):
        x, targets = torch.randint(11, (2, 5)), torch.randint(11, (2, 5))
        every.zero_grad()
        loss = tokens_loss(whole(x), targets)
        loss.backward()
        every.step()
        boundary = split.run_training_prefix(x)
        mine, gradients = trainer.train_suffix(boundary, targets)
        assert "@embed.weight" in gradients
        assert torch.equal(mine, loss.detach())
        with pytest.raises(cleave.InputError, match=r"step of embed\.weight is due"):
            trainer.train_suffix(boundary, targets)
        trainer.apply_tied(split.backward_prefix(boundary, gradients, optimizer=head))
        found = cleave.BoundaryPayload.from_bytes(trainer.state()).tensors
        assert torch.equal(found["model.embed.weight"], whole.embed.weight.detach())
        assert torch.equal(found["model.mix.weight"], whole.mix.weight.detach())
        assert torch.equal(model.embed.weight, whole.embed.weight)
    with pytest.raises(cleave.CleaveError, match="not among the parameters that both halves train"):
        trainer.apply_tied({"@mix.weight": torch.zeros(8, 8)})


def test_a_state_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(8)
    tokens = torch.randint(20, (2, 7))
    pair = Pair(Block(), tokens, tokens, tmp_path, at="after:embed", optimizer=torch.optim.AdamW, loss_fn=tokens_loss)
    data = [(torch.randint(20, (2, 7)), torch.randint(20, (2, 7))) for _ in range(4)]
    for x, targets in data[:2]:
        pair.trainer.train_suffix(pair.split.run_training_prefix(x), targets)
    pair.trainer.accumulate(pair.split.run_training_prefix(data[0][0]), data[0][1])
    state = pair.trainer.state()
    other = cleave.load_trainer(pair.path)
    other.restore(state)
    assert other.state() == state
    assert other.steps == 2
    for x, targets in data[2:]:
        boundary = pair.split.run_training_prefix(x)
        (one, first), (two, second) = (
            pair.trainer.train_suffix(boundary, targets),
            other.train_suffix(boundary, targets),
        )
        assert torch.equal(one, two)
        assert all(torch.equal(first[k], second[k]) for k in first)
    assert other.state() == pair.trainer.state()


def test_hostile_states_are_refused_and_change_nothing(tmp_path: Path) -> None:
    torch.manual_seed(9)
    pair = Pair(
        mlp(), torch.randn(4, 6), torch.tensor([0, 1, 2, 1]), tmp_path, at="after:1", optimizer=torch.optim.Adam
    )
    pair.step(torch.randn(4, 6), torch.randint(3, (4,)))
    state = pair.trainer.state()
    good = cleave.BoundaryPayload.from_bytes(state)

    def packed(tensors: dict[str, Tensor]) -> bytes:
        return dataclasses.replace(good, tensors=tensors, requires_grad=dict.fromkeys(tensors, False)).to_bytes()

    def changed(**tensors: Any) -> bytes:
        return packed({**good.tensors, **{k.replace("__", "."): v for k, v in tensors.items()}})

    def without(label: str) -> bytes:
        return packed({k: v for k, v in good.tensors.items() if k != label})

    other = cleave.load_trainer(tmp_path / "suffix.clv")
    start = other.state()
    hostile = [
        b"",
        state[: len(state) // 2],
        state[:-1] + bytes([state[-1] ^ 1]),
        changed(model__2__weight=torch.zeros(8, 15)),
        changed(model__2__weight=torch.zeros(8, 16, dtype=torch.float64)),
        changed(model__nothing=torch.zeros(1)),
        without("model.2.weight"),
        without("optimizer.2.weight.exp_avg_sq"),
        without("optimizer.2.weight.step"),
        changed(optimizer__2__weight__step=torch.tensor(-1.0)),
        changed(optimizer__2__weight__step=torch.tensor(float("nan"))),
        changed(optimizer__2__weight__step=torch.tensor(1.5)),
        changed(generator__random=torch.zeros(5056, dtype=torch.uint8)),
    ]
    for bad in hostile:
        with pytest.raises((cleave.CleaveError, ValueError)):
            other.restore(bad)
        assert other.state() == start
    other.restore(state)
    assert other.state() == state
    different = Pair(mlp(), torch.randn(4, 6), torch.tensor([0, 1, 2, 1]), tmp_path, at="after:1")
    with pytest.raises(cleave.InputError, match="no state of a trainer of this file"):
        different.trainer.restore(state)


def test_a_step_that_fails_changes_nothing(tmp_path: Path) -> None:
    torch.manual_seed(10)
    pair = Pair(Images(), torch.randn(4, 3, 12, 12), torch.tensor([0, 1, 2, 4]), tmp_path, at="after:norm1")
    pair.step(torch.randn(4, 3, 12, 12), torch.randint(5, (4,)))
    before = pair.trainer.state()
    x = torch.randn(4, 3, 12, 12)
    _, boundary = (rt.run_training_prefix(x) for rt in (pair.here, pair.split))
    with pytest.raises(cleave.CleaveError):  # the forward has run by then, and moved the statistics
        pair.trainer.train_suffix(boundary, torch.tensor([0, 1, 2, 99]))
    with pytest.raises(cleave.InputError, match="targets"):
        pair.trainer.train_suffix(boundary, torch.tensor([0, 1]))
    inference = dataclasses.replace(boundary, supports_prefix_backward=False, record=None)
    with pytest.raises(cleave.InputError, match="made for inference"):
        pair.trainer.train_suffix(inference, torch.tensor([0, 1, 2, 3]))
    assert pair.trainer.state() == before
    pair.step(torch.randn(4, 3, 12, 12), torch.randint(5, (4,)))


def test_trained_weights_become_a_file_for_inference(tmp_path: Path) -> None:
    torch.manual_seed(11)
    pair = Pair(Images(), torch.randn(4, 3, 12, 12), torch.tensor([0, 1, 2, 4]), tmp_path, at="after:norm1")
    for model in pair.models:
        model.eval()
    _, suffix = pair.split.save(tmp_path / "halves")
    for model in pair.models:
        model.train()
    for _ in range(3):
        pair.step(torch.randn(4, 3, 12, 12), torch.randint(5, (4,)))
    pair.trainer.save_weights(suffix, tmp_path / "trained.clv")
    found = cleave.load(tmp_path / "trained.clv").state_dict()
    for name, t in pair.here.state("suffix").items():
        if name in found:
            assert torch.equal(found[name], t.detach()), name
    assert "norm2.running_mean" in found
    cleave.capture(nn.ReLU(), torch.ones(2)).save(tmp_path / "relu.clv")
    with pytest.raises(cleave.InputError, match="of another model"):
        pair.trainer.save_weights(tmp_path / "relu.clv", tmp_path / "no.clv")
    with pytest.raises((cleave.CleaveError, ValueError), match="for training"):
        cleave.load(pair.path)
    with pytest.raises((cleave.CleaveError, ValueError), match="does not train"):
        cleave.load_trainer(suffix)


class Several(nn.Module):
    """A dict of outputs, a mask that passes by, a frozen layer, and a tensor at the cut that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.two.requires_grad_(False)

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = torch.tanh(self.one(x))
        order = hidden.argsort(-1)
        mixed = self.two(hidden).gather(-1, order)
        return {"scores": self.three(mixed), "pair": (mixed * (x.sum(-1, keepdim=True) > 0), None)}


CLASSES = torch.tensor([0.1, 0.2, 0.3, 0.4])


def several_loss(output: dict[str, Any], targets: tuple[Tensor, Tensor]) -> Tensor:
    labels, values = targets
    return F.cross_entropy(output["scores"], labels, weight=CLASSES) + (output["pair"][0] - values).abs().mean()


def several_targets() -> tuple[Tensor, Tensor]:
    return torch.randint(4, (3,)), torch.randn(3, 8)


@pytest.mark.parametrize("at", ["after:one", "after:tanh", "after:argsort", "after:two"])
def test_outputs_targets_and_boundaries_of_several_tensors(tmp_path: Path, at: str) -> None:
    torch.manual_seed(12)
    pair = Pair(Several(), torch.randn(3, 6), several_targets(), tmp_path, at=at, loss_fn=several_loss)
    for _ in range(3):
        pair.step(torch.randn(3, 6), several_targets())


def test_channels_last_and_double_precision_train(tmp_path: Path) -> None:
    torch.manual_seed(13)
    model = Images().to(memory_format=torch.channels_last).double()  # type: ignore[call-overload]
    x = torch.randn(4, 3, 12, 12, dtype=torch.float64).to(memory_format=torch.channels_last)
    pair = Pair(model, x, torch.tensor([0, 1, 2, 4]), tmp_path, at="after:norm1", optimizer=OPTIMIZERS["adamw"])
    for _ in range(3):
        pair.step(torch.randn_like(x), torch.randint(5, (4,)))


def test_another_process_trains_without_the_model(tmp_path: Path) -> None:
    torch.manual_seed(14)
    pair = Pair(Images(), torch.randn(4, 3, 12, 12), torch.tensor([0, 1, 2, 4]), tmp_path, at="after:norm1")
    boundary, labels = pair.split.run_training_prefix(torch.randn(4, 3, 12, 12)), torch.randint(5, (4,))
    boundary.save(tmp_path / "boundary")
    (tmp_path / "labels").write_bytes(cleave.pack(labels))
    loss, gradients = pair.trainer.train_suffix(boundary, labels)
    source = """
import sys, cleave
from pathlib import Path
folder = Path(sys.argv[1])
trainer = cleave.load_trainer(folder / "suffix.clv")
labels = cleave.unpack((folder / "labels").read_bytes())
answer = trainer.train_suffix(cleave.BoundaryPayload.load(folder / "boundary"), labels)
(folder / "answer").write_bytes(cleave.pack(answer))
(folder / "state").write_bytes(trainer.state())
"""
    subprocess.run([sys.executable, "-c", source, str(tmp_path)], check=True, timeout=120)
    loss2, gradients2 = cleave.unpack((tmp_path / "answer").read_bytes())
    assert torch.equal(loss, loss2)
    assert all(torch.equal(grad, gradients2[label]) for label, grad in gradients.items())
    assert (tmp_path / "state").read_bytes() == pair.trainer.state()


def test_a_signed_file_trains_for_who_trusts_the_key(tmp_path: Path) -> None:
    pair = Pair(mlp(), torch.randn(4, 6), torch.tensor([0, 1, 2, 1]), tmp_path, at="after:1")
    cleave.new_key(tmp_path / "key")
    cleave.sign(pair.path, tmp_path / "key", tmp_path / "signed.clv")
    trainer = cleave.load_trainer(tmp_path / "signed.clv", trusted_keys=[tmp_path / "key.pub"], check=True)
    trainer.restore(pair.trainer.state())


class Odd(torch.optim.SGD):
    pass


def test_what_a_file_cannot_express_is_refused_with_the_reason(tmp_path: Path) -> None:
    model, x, labels = mlp(), torch.randn(4, 6), torch.tensor([0, 1, 2, 1])
    split = cleave.prepare_split(model, example_inputs=x, split=cleave.SplitSpec(boundary="after:1", trainable=True))
    params = split.parameters("suffix")

    def save(optimizer: Any, targets: Any = labels, **options: Any) -> None:
        split.save_trainer(tmp_path / "no.clv", targets, optimizer=optimizer, **options)

    hooked, used = sgd(params), torch.optim.Adam(params)
    hooked.register_step_post_hook(lambda *_: None)
    for p in params:
        p.grad = torch.zeros_like(p)
    used.step()
    for p in params:
        p.grad = None
    scheduled = sgd(params)
    torch.optim.lr_scheduler.StepLR(scheduled, 1)
    refused: list[tuple[Any, str]] = [
        (torch.optim.RMSprop(params), "other classes cannot"),
        (Odd(params, lr=0.1), "other classes cannot"),
        (hooked, "hooks"),
        (used, "stepped already"),
        (scheduled, "scheduler"),
        (torch.optim.SGD(params, lr=0.1, foreach=True), "foreach"),
        (torch.optim.Adam(params, fused=True), "fused"),
        (torch.optim.Adam(params, lr=torch.tensor(0.1)), "lr is"),
        (torch.optim.SGD(params[:1], lr=0.1), "no optimizer holds it"),
        (torch.optim.SGD(model.parameters(), lr=0.1), "no plan of the suffix trains"),
        (None, "optimizer is missing"),
    ]
    for optimizer, reason in refused:
        with pytest.raises(cleave.CleaveError, match=reason):
            save(optimizer)
    with pytest.raises(TypeError, match="lists and tuples"):
        save(sgd(params), {"labels": labels})
    weighted = nn.Linear(3, 1)
    with pytest.raises(cleave.CleaveError, match="parameters of its own"):
        save(sgd(params), loss_fn=lambda output, targets: weighted(output).mean())
    assert not (tmp_path / "no.clv").exists()


def test_a_strangers_file_does_not_train(tmp_path: Path) -> None:
    pair = Pair(mlp(), torch.randn(4, 6), torch.tensor([0, 1, 2, 1]), tmp_path, at="after:1")
    stranger = tmp_path / "stranger.clv"
    stranger.write_bytes(Path(pair.path).read_bytes())
    rewrite(stranger, lambda meta: meta.pop("cleave.seal") and None)
    with pytest.raises(cleave.CleaveError, match="nothing trains there"):
        cleave.load_trainer(stranger)
    with pytest.raises(cleave.CleaveError, match="sandbox"):
        cleave.load_trainer(stranger, sandbox=True)
    cleave.load_trainer(stranger, sandbox=False)


class Shifted(nn.Module):
    """The gradient of what crosses the cut is one number, expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.shift = nn.Linear(6, 5), nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.shift


def total(output: Tensor, targets: Tensor) -> Tensor:
    return output.sum() + targets.sum()


def test_expanded_gradients_cross_as_they_are(tmp_path: Path) -> None:
    torch.manual_seed(15)
    pair = Pair(Shifted(), torch.randn(4, 6), torch.ones(1), tmp_path, at="after:one", loss_fn=total)
    for _ in range(2):
        pair.step(torch.randn(4, 6), torch.ones(1))
        pair.trainer.accumulate(pair.split.run_training_prefix(torch.randn(4, 6)), torch.ones(1))
        pair.trainer.restore(pair.trainer.state())  # with an expanded gradient in it
        pair.trainer.apply()
        pair.here.train_suffix(pair.here.run_training_prefix(torch.randn(4, 6)), torch.ones(1), loss_fn=total)
        pair.tail.step()
        pair.tail.zero_grad()
        pair.compare()
