"""Models on the native engine: captured, saved, run without libtorch's operators, and compared with eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cleave


def saved(model: nn.Module, path: Path, *inputs: torch.Tensor, **options: Any) -> Path:
    cleave.capture(model, inputs, **options).save(path)
    return path


def agree(model: nn.Module, path: Path, *calls: tuple[torch.Tensor, ...], **options: Any) -> None:
    """Every call gives what eager gives, and leaves its inputs as eager does."""
    native = cleave.load(path, engine="native", **options)
    for call in calls:
        mine = [x.clone(memory_format=torch.preserve_format) for x in call]
        with torch.no_grad():
            want, got = model(*call), native(*mine)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine, list(call), rtol=1e-4, atol=1e-5)


class Block(nn.Module):
    """Convolutions, norms and activations in place, with a shortcut that is made after what it is added to."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.two = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.short = nn.Conv2d(3, 8, 1, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.two(self.relu(self.norm(self.one(x))))
        y += self.short(x)
        return self.relu(y).flatten(1)


def block() -> nn.Module:
    torch.manual_seed(0)
    model = Block().eval()
    with torch.no_grad():
        model.norm.running_mean.normal_()
        model.norm.running_var.uniform_(0.5, 2)
    return model


def test_a_block_with_a_shortcut_runs_at_every_batch(tmp_path: Path) -> None:
    model = block()
    path = saved(model, tmp_path / "m.clv", torch.randn(2, 3, 9, 9), dynamic_batch=(1, 8))
    agree(model, path, *[(torch.randn(b, 3, 9, 9),) for b in (2, 1, 3, 2)], unproven=True)


def test_a_row_has_the_same_bits_in_every_batch_and_with_any_threads(tmp_path: Path) -> None:
    model = block()
    path = saved(model, tmp_path / "m.clv", torch.randn(2, 3, 9, 9), dynamic_batch=(1, 8))
    one = cleave.load(path, engine="native", unproven=True, threads=1)
    two = cleave.load(path, engine="native", unproven=True, threads=2)
    x = torch.randn(5, 3, 9, 9)
    whole = one(x)
    assert torch.equal(two(x), whole)
    for i in range(5):
        assert torch.equal(one(x[i : i + 1]), whole[i : i + 1])


class Aliases(nn.Module):
    """Views that see writes to what they are of, and copies that do not."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        flat, part, copy = y.view(-1), y[:, 1:], y.t().contiguous()
        y.add_(1)
        part.mul_(3)
        kept = flat + 0
        flat[:2] = 7
        part.copy_(part.flip(1))
        return y, kept, copy, part.sum(1), y.reshape(-1, 2)


def test_views_see_what_is_written(tmp_path: Path) -> None:
    x = torch.randn(4, 6)
    agree(Aliases().eval(), saved(Aliases().eval(), tmp_path / "m.clv", x), (x,), (torch.randn(4, 6),))


class Writes(nn.Module):
    """Writes an input, and counts in a buffer."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x[:, 0] = y
        self.count.add_(1)
        return x * self.count, x, y.view(1, -1)


def test_inputs_and_buffers_are_written_as_in_eager(tmp_path: Path) -> None:
    x, y = torch.randn(3, 2), torch.randn(3)
    path = saved(Writes().eval(), tmp_path / "m.clv", x.clone(), y.clone())
    agree(Writes().eval(), path, (x.clone(), y), (torch.randn(3, 2), y), (torch.randn(3, 2), y))
    native = cleave.load(path, engine="native")
    a = torch.randn(3, 2)
    _, same, view = native(a, y)
    assert same.data_ptr() == a.data_ptr()
    assert view.data_ptr() == y.data_ptr()


class Cat(nn.Module):
    """A concatenation of results, one of which is used again and one written before it goes in."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 5, 1), nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = self.a(x).relu_(), self.b(x)
        c = torch.cat([a, b, x, a], 1)
        return c.sigmoid(), b + 1, torch.cat([c, c], 0)


def test_concatenations_are_written_in_place(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Cat().eval()
    x = torch.randn(2, 3, 4, 4)
    agree(model, saved(model, tmp_path / "m.clv", x), (x,), (torch.randn(2, 3, 4, 4),))


class Branch(nn.Module):
    """Goes one of two ways, by its data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - 1


def test_guards_end_runs_as_on_the_tape(tmp_path: Path) -> None:
    path = saved(Branch().eval(), tmp_path / "m.clv", torch.ones(3))
    agree(Branch().eval(), path, (torch.ones(3),))
    with pytest.raises(cleave.GuardError, match="captured"):
        cleave.load(path, engine="native")(-torch.ones(3))


def test_weights_that_are_assigned_count_from_the_next_run_on(tmp_path: Path) -> None:
    model, other = block(), block()
    with torch.no_grad():
        for p in other.parameters():
            p.normal_()
    x = torch.randn(2, 3, 9, 9)
    native = cleave.load(saved(model, tmp_path / "m.clv", x), engine="native")
    with torch.no_grad():
        torch.testing.assert_close(native(x), model(x), rtol=1e-4, atol=1e-5)
        native.load_state_dict(other.state_dict())
        torch.testing.assert_close(native(x), other(x), rtol=1e-4, atol=1e-4)


def test_what_it_does_not_take_is_named(tmp_path: Path) -> None:
    class Draws(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    path = saved(Draws().eval(), tmp_path / "m.clv", torch.ones(3))
    with pytest.raises(cleave.CleaveError, match="rand_like"):
        cleave.load(path, engine="native")


class Joined(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(torch.cat([torch.exp(x), torch.sin(x)], 1), 1)


class Padded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(torch.relu(x), (1, 1), value=5.0).sum(1)


@pytest.mark.parametrize("model", [Joined(), Padded()])
@pytest.mark.parametrize("shape", [(4, 1), (1, 1, 3, 1), (2, 1, 5), (1, 3, 1, 4)])
def test_a_dimension_of_one_element_grows(tmp_path: Path, model: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    agree(model, saved(model, tmp_path / "m.clv", x), (x,))


class Adds(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


def test_a_file_is_compared_on_inputs_of_its_own_for_each_engine(tmp_path: Path) -> None:
    path = saved(Adds(), tmp_path / "m.clv", torch.randn(2, 3))
    x = torch.ones(2, 3)
    assert torch.equal(cleave.load(path, engine="native", check=True)(x.clone()), (x + 1) * 2)


def test_a_file_is_compared_on_inputs_that_lie_as_at_capture(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    model = nn.Conv2d(3, 4, 3).eval()
    path = saved(model, tmp_path / "m.clv", x)
    native = cleave.load(path, engine="native", check=True)
    torch.testing.assert_close(native(x), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_result_can_be_resized(tmp_path: Path) -> None:
    path = saved(nn.Linear(3, 4).eval(), tmp_path / "m.clv", torch.randn(2, 3))
    native = cleave.load(path, engine="native")
    y = native(torch.randn(2, 3))
    torch.cat([y.clone(), y.clone()], out=y)
    assert y.shape == (4, 4)
    assert native(torch.randn(2, 3)).shape == (2, 4)
