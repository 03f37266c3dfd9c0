"""Keywords that a forward collects in **kwargs keep their order; one tensor given twice is another call than two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cleave


class Collecting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, *, last: Any = None, **kw: Any) -> Tensor:
        h = self.linear(x)
        for name, v in kw.items():
            h = h + v if name == "p" else h * v
        return h if last is None else h - last


class Same(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.last(self.linear(q) * (100.0 if q is k else 1.0) + k)


x, p, q = torch.randn(2, 4), torch.randn(2, 4), torch.randn(2, 4)


def makers(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    split = cleave.prepare_split(model, example_inputs=args, example_kwargs=kwargs, split="50%")
    return {
        "capture": cleave.capture(model, args, kwargs),
        "split": lambda *a, **k: split.run_suffix(split.run_prefix(*a, **k)),
        "pipe": cleave.pipe_model(model, args, example_kwargs=kwargs, nparts=2, training=False),
    }


@pytest.mark.parametrize("kind", ["capture", "split", "pipe"])
def test_keywords_of_a_collection_are_held_to_their_order(kind: str) -> None:
    model = Collecting().eval()
    with torch.no_grad():
        call = makers(model, (x,), {"p": p, "q": q, "last": p})[kind]
        assert torch.equal(call(x, last=p, p=p, q=q), model(x, p=p, q=q, last=p))
        with pytest.raises(cleave.InputError, match=r"\*\*kwargs.*order"):
            call(x, q=q, p=p, last=p)


def test_a_file_holds_no_collection_of_keywords(tmp_path: Path) -> None:
    model = Collecting().eval()
    with torch.no_grad():
        with pytest.raises(cleave.ArgumentError, match="order, which a file cannot check"):
            cleave.capture(model, (x,), {"p": p, "q": q}).save(tmp_path / "m.clv")
        cleave.capture(model, (x,), {"p": p, "last": q}).save(tmp_path / "m.clv")
        assert torch.equal(cleave.load(tmp_path / "m.clv")(x, last=q, p=p), model(x, p=p, last=q))


@pytest.mark.parametrize("kind", ["capture", "split", "pipe"])
@pytest.mark.parametrize("example", [(x, p), (x, x)])
def test_one_tensor_given_twice_gets_its_own_plan(kind: str, example: tuple[Tensor, Tensor]) -> None:
    model = Same().eval()
    with torch.no_grad():
        call = makers(model, example, {})[kind]
        for _ in range(2):
            assert torch.equal(call(x, p), model(x, p))
            assert torch.equal(call(x, x), model(x, x))


def test_a_traced_module_knows_one_tensor_given_twice() -> None:
    pytest.importorskip("openvino")
    model = Same().eval()
    with torch.no_grad():
        traced = cleave.trace(model, (x, p), backend="openvino", minimum_segment_size=1)
        for args in ((x, p), (x, x), (x, p)):
            assert torch.allclose(traced(*args), model(*args), atol=1e-4)


def test_training_takes_one_tensor_twice_and_two_in_any_order() -> None:
    model = Same()
    split = cleave.prepare_split(model, example_inputs=(x, p), split=cleave.SplitSpec(boundary="50%", trainable=True))
    for args in ((x, x), (x, p), (x, x)):
        boundary = split.run_training_prefix(*args)
        assert torch.equal(split.run_suffix(boundary), model(*args))


def test_the_reason_is_shown_where_a_call_has_more_inputs_than_the_example() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            h = self.a(x)
            if mask is not None:
                h = h * mask.numpy().tolist()[0][0]
            return self.b(h)

    split = cleave.prepare_split(Optional().eval(), example_inputs=(x,), split="50%")
    with torch.no_grad(), pytest.raises(cleave.CleaveError, match=r"mask|numpy|tolist|data"):
        split.run_prefix(x, p)


class AsksGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.linear(x) * (100.0 if x.requires_grad else 1.0))


def files(model: nn.Module, args: tuple[Tensor, ...], others: list[Any], folder: Path) -> dict[str, Any]:
    """The same model from a file, whole and in two halves, and as a file that C cuts."""
    with torch.no_grad():
        cleave.capture(model, args, variants=others).save(folder / "whole.clv")
        split = cleave.prepare_split(model, example_inputs=args, split="50%", variants=others)
        prefix, suffix = (cleave.load(p) for p in split.save(folder / "halves"))
        cleave.pipe_model(model, args, nparts=2, training=False, variants=others).save(folder / "pipe.clv")
    whole = cleave.load(folder / "whole.clv")
    whole.split("50%", folder / "p.clv", folder / "s.clv")
    first, second = cleave.load(folder / "p.clv"), cleave.load(folder / "s.clv")
    boxed = cleave.load(folder / "whole.clv", sandbox=True)
    return {
        "whole": whole,
        "sandbox": boxed,
        "halves": lambda *a: suffix.run_suffix(prefix.run_prefix(*a)),
        "cut": lambda *a: second.run_suffix(first.run_prefix(*a)),
        "pipe": cleave.load(folder / "pipe.clv"),
    }


def test_a_file_refuses_one_tensor_for_two_inputs_where_the_forward_asks(tmp_path: Path) -> None:
    model = Same().eval()
    with torch.no_grad():
        for kind, call in files(model, (x, p), [], tmp_path).items():
            assert torch.equal(call(x, p), model(x, p)), kind
            with pytest.raises(cleave.InputError, match=r"q and k are one and the same tensor"):
                call(x, x)
        for kind, call in files(model, (x, x), [], tmp_path).items():
            assert torch.equal(call(x, x), model(x, x)), kind
            with pytest.raises(cleave.InputError, match=r"q and k are two tensors"):
                call(x, x.clone())


def test_a_file_has_the_variant_for_one_tensor_given_twice(tmp_path: Path) -> None:
    model = Same().eval()
    with torch.no_grad():
        for kind, call in files(model, (x, p), [(x, x)], tmp_path).items():
            for args in ((x, p), (x, x), (x, p), (p, p)):
                assert torch.equal(call(*args), model(*args)), kind


def test_a_file_does_not_care_where_the_forward_does_not_ask(tmp_path: Path) -> None:
    class Plain(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return torch.relu(q * 2) + k

    model = Plain()
    cleave.capture(model, (x, p)).save(tmp_path / "m.clv")
    call = cleave.load(tmp_path / "m.clv")
    assert torch.equal(call(x, x), model(x, x))


def test_a_file_is_held_to_the_grad_flag_that_the_forward_asks_for(tmp_path: Path) -> None:
    model, wanted = AsksGrad().eval(), x.clone().requires_grad_()
    with torch.no_grad():
        for kind, call in files(model, (x,), [], tmp_path).items():
            assert torch.equal(call(x), model(x)), kind
            with pytest.raises(cleave.InputError, match=r"input x requires grad, for which the forward asks"):
                call(wanted)


def test_a_file_with_sizes_has_its_variants_at_all_of_them(tmp_path: Path) -> None:
    model = Same().eval()
    with torch.no_grad():
        plan = cleave.capture(model, (x, p), dynamic_batch=(1, 8), variants=[(x, x)])
        plan.save(tmp_path / "m.clv", prove="all")
        call = cleave.load(tmp_path / "m.clv")
        for n in (1, 5, 8):
            a, b = torch.randn(n, 4), torch.randn(n, 4)
            assert torch.equal(call(a, b), model(a, b))
            assert torch.equal(call(a, a), model(a, a))
