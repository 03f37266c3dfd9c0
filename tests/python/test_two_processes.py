"""The two halves in two processes: boundaries and gradients cross as bytes, and each half holds its own parameters."""

from __future__ import annotations

import copy
import multiprocessing as mp
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cleave

pytestmark = pytest.mark.integration


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.c = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.a(x)))
        return self.c(torch.relu(self.b(h)) + h)


class TiedNet(nn.Module):
    """One weight that both halves train."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.c = nn.Linear(6, 6, bias=False)
        self.c.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


class Stateful(nn.Module):
    """Each half has a buffer of its own that it changes: one is written, one re-assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 4)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + x.detach().mean(0)
        y = self.b(torch.relu(self.a(x - self.mean))) * self.scale.clone()
        self.scale.mul_(0.5)
        return y


MODELS = {"net": (Net, "after:relu"), "tied": (TiedNet, "after:b"), "state": (Stateful, "after:relu")}


def prepare(name: str) -> tuple[nn.Module, cleave.SplitRuntime]:
    kind, at = MODELS[name]
    torch.manual_seed(0)
    model = kind().train()
    spec = cleave.SplitSpec(boundary=at, trainable=True, dynamic_batch=(2, 64))
    return model, cleave.prepare_split(model, example_inputs=(torch.randn(4, 6),), split=spec)


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def suffix_main(connection: Any, name: str) -> None:
    """The second process: answers each request until it gets an empty one."""
    torch.set_num_threads(1)
    model, runtime = prepare(name)
    runtime.prepare_sizes(*range(4, 8))
    runtime.keep_only("suffix")
    optimizer = sgd(runtime.parameters("suffix"))
    while (message := connection.recv_bytes()) != b"":
        try:
            boundary = cleave.BoundaryPayload.from_bytes(message)
            targets = cleave.unpack(connection.recv_bytes())
            loss, grads = runtime.train_suffix(boundary, targets, optimizer=optimizer)
            connection.send_bytes(cleave.pack({"loss": loss, "grads": grads}))
            tied = cleave.unpack(connection.recv_bytes())
            if tied:
                runtime.apply_tied(tied, optimizer=optimizer)
        except cleave.CleaveError as error:
            connection.send_bytes(cleave.pack({"error": str(error)}))
            return
    mine = {key: t.detach() for key, t in runtime.state("suffix").items()}
    elsewhere = [key for key, t in model.state_dict().items() if t.is_meta]
    connection.send_bytes(cleave.pack({"state": mine, "elsewhere": elsewhere}))


@pytest.fixture
def other_process(request: pytest.FixtureRequest) -> Any:
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=suffix_main, args=(there, request.param), daemon=True)
    process.start()
    yield here
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.parametrize(
    ("name", "other_process"), [("net", "net"), ("tied", "tied"), ("state", "state")], indirect=["other_process"]
)
def test_two_processes_train_as_one(name: str, other_process: Any) -> None:
    model, runtime = prepare(name)
    whole = copy.deepcopy(model)
    runtime.prepare_sizes(*range(4, 8))
    runtime.keep_only("prefix")
    optimizer, all_ = sgd(runtime.parameters("prefix")), sgd(whole.parameters())
    for step in range(4):
        x, y = torch.randn(4 + step, 6), torch.randint(0, 4, (4 + step,))
        boundary = runtime.run_training_prefix(x)
        other_process.send_bytes(boundary.to_bytes())
        other_process.send_bytes(cleave.pack(y))
        answer = cleave.unpack(other_process.recv_bytes())
        tied = runtime.backward_prefix(boundary, answer["grads"], optimizer=optimizer)
        other_process.send_bytes(cleave.pack(tied))
        all_.zero_grad()
        loss = F.cross_entropy(whole(x), y)
        loss.backward()
        all_.step()
        assert torch.equal(answer["loss"], loss.detach())
    other_process.send_bytes(b"")
    end = cleave.unpack(other_process.recv_bytes())
    state = {**end["state"], **runtime.state("prefix")}
    for key, want in whole.state_dict().items():
        alias = "a.weight" if key == "c.weight" and name == "tied" else key
        assert torch.equal(state[alias], want), key
    if name == "net":
        assert sorted(end["elsewhere"]) == sorted(k for k in model.state_dict() if k.split(".")[0] in ("a", "norm"))
        assert model.b.weight.is_meta  # type: ignore[union-attr]
    if name == "tied":
        assert torch.equal(end["state"]["a.weight"], runtime.state("prefix")["a.weight"])


def test_a_tied_weight_that_waits_for_its_step_is_not_read() -> None:
    _, here = prepare("tied")
    _, there = prepare("tied")
    optimizer = sgd(there.parameters("suffix"))
    x, y = torch.randn(4, 6), torch.randint(0, 4, (4,))
    boundary = here.run_training_prefix(x)
    wire = cleave.BoundaryPayload.from_bytes(boundary.to_bytes())
    _, grads = there.train_suffix(wire, y, optimizer=optimizer)
    with pytest.raises(cleave.InputError, match="apply_tied"):
        there.train_suffix(wire, y, optimizer=optimizer)
    without = {label: g for label, g in grads.items() if not label.startswith("@")}
    with pytest.raises(cleave.InputError, match="share of the gradient"):
        here.backward_prefix(boundary, without)
    there.apply_tied(here.backward_prefix(boundary, grads), optimizer=optimizer)
    with pytest.raises(cleave.InputError, match="not among"):
        there.apply_tied({"@b.weight": torch.zeros(6, 6)})
    with pytest.raises(cleave.InputError, match="train_suffix comes first"):
        here.apply_tied({})


def test_a_boundary_that_crossed_cannot_go_backward_there() -> None:
    _, here = prepare("net")
    _, there = prepare("net")
    wire = cleave.BoundaryPayload.from_bytes(here.run_training_prefix(torch.randn(4, 6)).to_bytes())
    _, grads = there.train_suffix(wire, torch.randint(0, 4, (4,)))
    with pytest.raises(cleave.InputError, match="autograd graph is not available"):
        there.backward_prefix(wire, grads)


def test_inference_boundaries_cross_as_bytes_at_any_size() -> None:
    model, here = prepare("net")
    twin, there = prepare("net")
    model.eval(), twin.eval()
    for batch in (2, 5, 11, 33):
        x = torch.randn(batch, 6)
        wire = cleave.BoundaryPayload.from_bytes(here.run_prefix(x).to_bytes())
        there.validate_boundary(wire)
        assert torch.equal(there.run_suffix(wire), model(x).detach())
