"""Which weights a boundary was made with: live splits, loaded halves, and halves that were given other weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cleave
from cleave import BoundaryPayload, InputError, LoadedModel


class Net(nn.Module):
    """A tied weight on both sides, one that no forward reads, and a table that is in no state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.two = nn.Linear(6, 6, bias=False)
        self.two.weight = self.one.weight
        self.head = nn.Linear(6, 3)
        self.unused = nn.Parameter(torch.randn(2))
        self.register_buffer("table", torch.randn(6), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.one(x)))
        return self.head(torch.tanh(self.two(x) + self.table))


def net(seed: int) -> Net:
    torch.manual_seed(seed)
    model = Net().eval()
    model.table.fill_(0.5)  # is in no state_dict: the same in all of them
    return model


def state_of(model: Net) -> dict[str, torch.Tensor]:
    """With the table, which files without weights need too."""
    return {**model.state_dict(), "table": model.table}


X = torch.randn(2, 6, generator=torch.Generator().manual_seed(1))


class Halves:
    """One model, live and as two files."""

    def __init__(self, folder: Path, seed: int = 0, **how: Any) -> None:
        self.model = net(seed)
        self.live = cleave.prepare_split(self.model, example_inputs=X, split=cleave.SplitSpec(boundary="after:relu"))
        self.paths = self.live.save(folder, **how)

    def prefix(self, **how: Any) -> LoadedModel:
        return cleave.load(self.paths[0], **how)

    def suffix(self, **how: Any) -> LoadedModel:
        return cleave.load(self.paths[1], **how)


@pytest.fixture(scope="module", params=[True, False], ids=["weights", "no_weights"])
def halves(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Halves:
    """Shared: a test that changes the model puts it back."""
    return Halves(tmp_path_factory.mktemp("halves"), weights=request.param)


@pytest.fixture(scope="module")
def h(tmp_path_factory: pytest.TempPathFactory) -> Halves:
    """With weights in the files; shared too."""
    return Halves(tmp_path_factory.mktemp("h"))


def own(half: LoadedModel, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What this half reads of a state_dict."""
    names = {*half.state_dict(), *half._runtime.unbound()}
    return {name: t for name, t in state.items() if name in names}


def accepts(suffix: Any, boundary: BoundaryPayload, want: nn.Module) -> None:
    again = BoundaryPayload.from_bytes(boundary.to_bytes())
    for b in (boundary, again):
        assert torch.equal(suffix.run_suffix(b), want(X))


def refuses(suffix: Any, boundary: BoundaryPayload) -> None:
    with pytest.raises(InputError, match="was made with weights"):
        suffix.run_suffix(boundary)


def test_a_half_and_the_live_split_take_each_others_boundaries(h: Halves) -> None:
    accepts(h.suffix(), h.prefix().run_prefix(X), h.model)
    accepts(h.suffix(), h.live.run_prefix(X), h.model)
    accepts(h.live, h.prefix().run_prefix(X), h.model)


def test_halves_with_different_weights_refuse_each_other(halves: Halves) -> None:
    prefix, suffix = halves.prefix(), halves.suffix()
    prefix.load_state_dict(state_of(net(1)))
    suffix.load_state_dict(state_of(net(2)))
    assert 0 not in (prefix.weight_version, suffix.weight_version)
    refuses(suffix, prefix.run_prefix(X))
    refuses(halves.live, prefix.run_prefix(X))
    refuses(suffix, halves.live.run_prefix(X))


def test_halves_with_the_same_other_weights_take_each_other(halves: Halves) -> None:
    other = net(1)
    prefix, suffix = halves.prefix(), halves.suffix()
    prefix.load_state_dict(state_of(other))
    suffix.load_state_dict(state_of(other))
    accepts(suffix, prefix.run_prefix(X), other)


def test_the_live_split_and_a_half_with_its_weights_take_each_other(halves: Halves) -> None:
    other = net(1)
    prefix, suffix = halves.prefix(), halves.suffix()
    prefix.load_state_dict(state_of(other))
    suffix.load_state_dict(state_of(other))
    halves.model.load_state_dict(other.state_dict())
    assert prefix.weight_version == suffix.weight_version == halves.live.refresh_weights()
    accepts(suffix, halves.live.run_prefix(X), other)
    accepts(halves.live, prefix.run_prefix(X), other)
    halves.model.load_state_dict(net(0).state_dict())
    halves.live.refresh_weights()


def test_one_half_with_other_weights_is_refused_and_refuses(h: Halves) -> None:
    changed = h.suffix()
    changed.load_state_dict(state_of(net(1)))
    refuses(changed, h.prefix().run_prefix(X))
    changed = h.prefix()
    changed.load_state_dict(state_of(net(1)))
    refuses(h.suffix(), changed.run_prefix(X))


def test_the_weights_of_the_file_given_back_are_the_files(halves: Halves) -> None:
    prefix, suffix = halves.prefix(), halves.suffix()
    prefix.load_state_dict(state_of(net(1)))
    suffix.load_state_dict(state_of(net(2)))
    state = state_of(halves.model)
    prefix.load_state_dict(own(prefix, state), strict=False)
    refuses(suffix, prefix.run_prefix(X))
    prefix.load_state_dict(state)
    suffix.load_state_dict(state)
    accepts(suffix, prefix.run_prefix(X), halves.model)
    accepts(suffix, halves.live.run_prefix(X), halves.model)


def test_weights_of_the_file_may_come_half_by_half_and_others_may_not(tmp_path: Path) -> None:
    """Nobody can tell from the tensors of one half whether those of the other belong to them."""
    h = Halves(tmp_path / "halves", weights=False)
    for model, taken in ((h.model, True), (net(1), False)):
        prefix, suffix = h.prefix(), h.suffix()
        prefix.load_state_dict(own(prefix, state_of(model)))
        suffix.load_state_dict(own(suffix, state_of(model)))
        (accepts if taken else lambda s, b, _: refuses(s, b))(suffix, prefix.run_prefix(X), model)


def test_the_error_says_what_to_do(h: Halves) -> None:
    suffix = h.suffix()
    suffix.load_state_dict(state_of(net(1)))
    with pytest.raises(InputError, match="whole state_dict on both sides"):
        suffix.run_suffix(h.prefix().run_prefix(X))


def test_some_tensors_alone_may_be_replaced_on_both_sides(halves: Halves) -> None:
    prefix, suffix = halves.prefix(), halves.suffix()
    if not prefix.has_weights:
        prefix.load_state_dict(state_of(halves.model))
        suffix.load_state_dict(state_of(halves.model))
    head = {"head.weight": torch.randn(3, 6), "head.bias": torch.randn(3)}
    suffix.load_state_dict(head, strict=False)
    refuses(suffix, prefix.run_prefix(X))
    prefix.load_state_dict(head, strict=False)
    want = net(0)
    want.load_state_dict(head, strict=False)
    accepts(suffix, prefix.run_prefix(X), want)


def test_either_name_of_a_tied_tensor_will_do(h: Halves) -> None:
    state = net(1).state_dict()
    prefix, suffix = h.prefix(), h.suffix()
    prefix.load_state_dict({k: t for k, t in state.items() if k != "two.weight"}, strict=False)
    suffix.load_state_dict({k: t for k, t in state.items() if k != "one.weight"}, strict=False)
    accepts(suffix, prefix.run_prefix(X), net(1))


def test_weights_written_in_place_are_other_weights(h: Halves) -> None:
    suffix, boundary = h.suffix(), h.prefix().run_prefix(X)
    state = suffix.state_dict()
    before = state["head.weight"].clone()
    accepts(suffix, boundary, h.model)
    with torch.no_grad():
        state["head.weight"].mul_(2)
    refuses(suffix, boundary)
    with torch.no_grad():
        state["head.weight"].copy_(before)
    accepts(suffix, boundary, h.model)


def test_a_name_that_the_model_does_not_have_is_refused(halves: Halves) -> None:
    prefix = halves.prefix()
    with pytest.raises(InputError, match=r"not read: head\.wieght"):
        prefix.load_state_dict({**state_of(net(1)), "head.wieght": torch.randn(3, 6)})
    version = prefix.weight_version
    prefix.load_state_dict({"head.wieght": torch.randn(3, 6)}, strict=False)
    assert prefix.weight_version == version


def test_a_file_cut_by_hand_keeps_the_rule(tmp_path: Path) -> None:
    model = net(0)
    cleave.capture(model, X).save(tmp_path / "whole.clv")
    paths = tmp_path / "a.clv", tmp_path / "b.clv"
    cleave.load(tmp_path / "whole.clv").split("after:relu", *paths)
    prefix, suffix = cleave.load(paths[0]), cleave.load(paths[1])
    accepts(suffix, prefix.run_prefix(X), model)
    prefix.load_state_dict(state_of(net(1)))
    refuses(suffix, prefix.run_prefix(X))
    suffix.load_state_dict(state_of(net(1)))
    accepts(suffix, prefix.run_prefix(X), net(1))


def test_boundaries_of_other_weights_are_taken_on_request(h: Halves) -> None:
    boundary = h.prefix().run_prefix(X)
    suffix = h.suffix(any_weights=True)
    suffix.load_state_dict(state_of(net(1)))
    mixed = net(0)
    mixed.head = net(1).head
    with torch.no_grad():  # tied: the suffix has a copy of its own
        mixed.two.weight = nn.Parameter(net(1).two.weight.clone())
    accepts(suffix, boundary, mixed)


def test_a_model_without_tensors_has_nothing_to_tell_apart(tmp_path: Path) -> None:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(torch.relu(x) + 1)

    live = cleave.prepare_split(Plain(), example_inputs=X, split=cleave.SplitSpec(boundary="after:relu"))
    prefix, suffix = (cleave.load(path) for path in live.save(tmp_path / "halves"))
    accepts(suffix, prefix.run_prefix(X), Plain())
    accepts(live, prefix.run_prefix(X), Plain())


def test_steps_of_training_do_not_move_the_version_and_saving_takes_the_weights_as_they_are(tmp_path: Path) -> None:
    h = Halves(tmp_path / "before")
    version = h.live.weight_version
    h.model.train()
    optimizer = torch.optim.SGD(h.model.parameters(), 0.1)
    h.live.train_suffix(h.live.run_training_prefix(X), torch.randn(2, 3))
    optimizer.step()
    h.model.eval()
    assert h.live.weight_version == version
    accepts(h.live, h.live.run_prefix(X), h.model)
    prefix, suffix = (cleave.load(path) for path in h.live.save(tmp_path / "after"))
    assert prefix.weight_version == suffix.weight_version != version
    accepts(suffix, prefix.run_prefix(X), h.model)
    refuses(suffix, h.live.run_prefix(X))
    h.live.refresh_weights()
    accepts(suffix, h.live.run_prefix(X), h.model)
