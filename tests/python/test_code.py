"""Compiled segments in programs and files; the "code" of the back end here is the name of a function."""

from __future__ import annotations

import subprocess
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from test_cli_run import COMMAND

import cleave
from cleave import _native

Fn = Callable[..., Sequence[torch.Tensor]]
functions: dict[bytes, Fn] = {}
seen: list[list[torch.Tensor]] = []


def run(code: bytes, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    seen.append(inputs)
    return functions[code](*inputs)


def fail_to_load(data: bytes) -> Any:
    if data == b"damaged":
        raise ValueError("these bytes are damaged")
    return data


cleave.register_backend("fake", supports=lambda n: True, compile=lambda s: b"", load=fail_to_load, run=run)


@pytest.fixture(autouse=True)
def fresh() -> None:
    functions.clear()
    seen.clear()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0, 3.0, 4.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(x)  # node 0
        b = a * self.weight  # 1: the segment is 1 and 2
        c = b + a  # 2
        return torch.sigmoid(c)  # 3


def times_weight(a: torch.Tensor) -> list[torch.Tensor]:
    return [a * torch.tensor([2.0, 3.0, 4.0]) + a]


Codes = list[Any]


def segment(first: int, end: int, name: str, orders: tuple[list[int], list[int]], **more: Any) -> tuple[Any, ...]:
    sizes = more.get("sizes", [])
    member = more.get("data", name.encode())
    return (first, end, more.get("backend", "fake"), sizes, *orders, {"code": member})


def program(plan: cleave.Plan, codes: Codes, inference: bool = True, debug: bool = False) -> Any:
    c = plan._main
    return _native.Program(c.plan, 0, c.plan.node_count(), debug, inference, c.state, c.modules, codes)


def dynamic(model: Callable[..., Any], *example: torch.Tensor) -> cleave.Plan:
    with torch.no_grad():
        return cleave.capture(model, example, dynamic_batch=(1, 64))


ROWS = ([0, 1], [0, 1])


def test_a_segment_runs_as_code_for_the_sizes_it_was_compiled_for_and_on_the_tape_for_others() -> None:
    net = Net()
    plan = dynamic(net, torch.randn(4, 3))
    functions[b"f"] = times_weight
    g = program(plan, [segment(1, 3, "f", ROWS, sizes=[(2, 8)])])
    for size in (2, 5, 8, 9, 1):
        x = torch.randn(size, 3)
        assert torch.equal(g.run([x])[0], net(x))
    assert [len(s) for s in seen] == [1, 1, 1]
    assert g.segments() == [(1, 3, "fake", None, 3, 2)]


def test_code_that_fails_is_not_used_again_and_the_run_goes_on() -> None:
    def broken(a: torch.Tensor) -> list[torch.Tensor]:
        raise RuntimeError("no luck")

    net = Net()
    plan = dynamic(net, torch.randn(4, 3))
    functions[b"f"] = broken
    g = program(plan, [segment(1, 3, "f", ROWS, sizes=[(1, 64)])])
    x = torch.randn(4, 3)
    assert torch.equal(g.run([x])[0], net(x))
    functions[b"f"] = times_weight
    assert torch.equal(g.run([x])[0], net(x))
    assert len(seen) == 1
    assert g.segments() == [(1, 3, "fake", "run raised RuntimeError: no luck", 0, 2)]


def test_who_interrupts_code_ends_the_run_and_the_code_is_used_again() -> None:
    def interrupted(a: torch.Tensor) -> list[torch.Tensor]:
        raise KeyboardInterrupt

    net = Net()
    plan = dynamic(net, torch.randn(4, 3))
    functions[b"f"] = interrupted
    g = program(plan, [segment(1, 3, "f", ROWS, sizes=[(1, 64)])])
    x = torch.randn(4, 3)
    with pytest.raises(KeyboardInterrupt):
        g.run([x])
    functions[b"f"] = times_weight
    assert torch.equal(g.run([x])[0], net(x))
    assert g.segments() == [(1, 3, "fake", None, 1, 0)]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda a: [a.double()],
        lambda a: [a[:1]],
        lambda a: [a, a],
        lambda a: [],
        lambda a: [None],
        lambda a: [a[None]],
        lambda a: 3,
    ],
)
def test_results_of_another_type_or_shape_are_refused(wrong: Fn) -> None:
    net = Net()
    plan = dynamic(net, torch.randn(4, 3))
    functions[b"f"] = wrong
    g = program(plan, [segment(1, 3, "f", ROWS, sizes=[(1, 64)])])
    x = torch.randn(4, 3)
    assert torch.equal(g.run([x])[0], net(x))
    assert g.segments()[0][3] is not None


def test_inputs_and_outputs_are_laid_out_as_the_code_and_the_tape_have_them() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x.transpose(0, 1)
        z = y.contiguous(memory_format=torch.contiguous_format) * 2
        return z.view(-1) + 1

    x = torch.randn(3, 5)
    with torch.no_grad():
        plan = cleave.capture(model, (x,))
    names = [n.op for n in plan.nodes]
    at = names.index("aten::clone") if "aten::clone" in names else names.index("aten::contiguous")
    end = names.index("aten::mul.Tensor") + 1
    functions[b"f"] = lambda y: [(y.t().contiguous() * 2).t()]  # in other strides than the tape's
    for order in ([0, 1], [1, 0]):
        seen.clear()
        g = program(plan, [segment(at, end, "f", (order, [0, 1]))])
        assert torch.equal(g.run([x])[0], model(x))
        assert g.segments()[0][3:5] == (None, 1)
        (got,) = seen[0]
        assert (got if order == [0, 1] else got.t()).is_contiguous()
        assert torch.equal(got, x.t())


def test_channels_last_inputs_are_given_as_they_are_where_the_code_wants_them() -> None:
    conv = torch.nn.Conv2d(3, 4, 1).to(memory_format=torch.channels_last)

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(conv(x)) + 1

    x = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)
    with torch.no_grad():
        plan = cleave.capture(model, (x,))
        functions[b"f"] = lambda y: [torch.relu(y).contiguous()]
        last = [0, 2, 3, 1]
        g = program(plan, [segment(1, 2, "f", (last, last))])
        (out,) = g.run([x])
        assert torch.equal(out, model(x))
        assert out.stride() == model(x).stride()
    assert seen[0][0].is_contiguous(memory_format=torch.channels_last)
    assert g.segments()[0][3:5] == (None, 1)


def test_results_that_lie_on_an_input_are_copied_where_the_plan_has_memory_of_its_own() -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = x * 1
        b = a + 0
        b.add_(1)
        return a, b

    x = torch.randn(4)
    with torch.no_grad():
        plan = cleave.capture(model, (x,))
    functions[b"f"] = lambda a: [a]
    g = program(plan, [segment(1, 2, "f", ([0], [0]))])
    a, b = g.run([x])
    assert torch.equal(a, x)
    assert torch.equal(b, x + 1)
    assert g.segments()[0][3:5] == (None, 1)


def test_several_segments_and_several_outputs() -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = x + 1
        b = a * 2
        c = torch.sin(b)
        d = c - a
        return d * b, d

    x = torch.randn(4, 2)
    plan = dynamic(model, x)
    functions[b"f"] = lambda x: [x + 1, (x + 1) * 2]
    functions[b"g"] = lambda a, b, c: [c - a, (c - a) * b]
    every = [(1, 64)]
    two, three = [0, 1] * 2, [0, 1] * 3
    codes = [segment(0, 2, "f", ([0, 1], two), sizes=every), segment(3, 5, "g", (three, two), sizes=every)]
    g = program(plan, codes)
    for size in (4, 7):
        x = torch.randn(size, 2)
        assert all(torch.equal(got, want) for got, want in zip(g.run([x]), model(x), strict=True))
    assert [s[3:] for s in g.segments()] == [(None, 2, 0)] * 2


def test_gradients_come_from_the_tape() -> None:
    net = Net()
    x = torch.randn(4, 3, requires_grad=True)
    plan = cleave.capture(net, x)
    functions[b"f"] = times_weight
    g = program(plan, [segment(1, 3, "f", ROWS)], inference=False)
    (out,) = g.run([x])
    assert out.requires_grad
    assert not seen
    with torch.no_grad():
        g.run([x])
    assert len(seen) == 1


def test_many_threads_run_code_at_once() -> None:
    net = Net()
    plan = dynamic(net, torch.randn(4, 3))
    functions[b"f"] = times_weight
    g = program(plan, [segment(1, 3, "f", ROWS, sizes=[(1, 4)])])
    wrong: list[int] = []

    def work(size: int) -> None:
        for _ in range(30):
            x = torch.randn(size, 3)
            with torch.no_grad():
                if not torch.equal(g.run([x])[0], net(x)):
                    wrong.append(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 2, 4, 6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert g.segments()[0][4:] == (90, 30)


def test_a_back_end_that_is_not_here_leaves_the_tape_and_a_reason() -> None:
    net = Net()
    plan = dynamic(net, torch.randn(4, 3))
    x = torch.randn(4, 3)
    for more, reason in (({"backend": "nowhere"}, "no back end"), ({"data": b"damaged"}, "these bytes are damaged")):
        g = program(plan, [segment(1, 3, "f", ROWS, sizes=[(1, 64)], **more)])
        assert torch.equal(g.run([x])[0], net(x))
        assert reason in g.segments()[0][3]


def test_debug_does_without_code() -> None:
    net = Net()
    plan = dynamic(net, torch.randn(4, 3))
    g = program(plan, [segment(1, 3, "f", ROWS, sizes=[(1, 64)])], debug=True)
    x = torch.randn(4, 3)
    assert torch.equal(g.run([x])[0], net(x))
    assert not seen


def test_segments_that_do_not_fit_the_plan_are_refused() -> None:
    plan = dynamic(Net(), torch.randn(4, 3))
    every = [(1, 64)]
    for item, text in (
        (segment(1, 3, "f", ([0], [0, 1]), sizes=every), "too few"),
        (segment(1, 3, "f", ([0, 1, 2], [0, 1]), sizes=every), "too many"),
        (segment(1, 3, "f", ([0, 0], [0, 1]), sizes=every), "no order"),
        (segment(1, 3, "f", ROWS), "symbols"),
        (segment(1, 9, "f", ROWS, sizes=every), "no nodes"),
    ):
        with pytest.raises(cleave.CleaveError, match=text):
            program(plan, [item])
    good = segment(1, 3, "f", ROWS, sizes=every)
    with pytest.raises(cleave.CleaveError, match="not in order"):
        program(plan, [good, good])


def refused(model: Callable[..., Any], first: int, end: int, *example: torch.Tensor, outputs: int = 1) -> str:
    with torch.no_grad():
        plan = cleave.capture(model, example)
    inputs = [0] * sum(1 for t in example if t.dim())
    functions[b"f"] = lambda *t: [t[0]]
    with pytest.raises(cleave.CleaveError) as error:
        program(plan, [segment(first, end, "f", (inputs, [0] * outputs))])
    return str(error.value)


def test_nodes_that_code_cannot_replace_are_refused() -> None:
    x = torch.rand(4)
    assert "random" in refused(lambda x: torch.dropout(x, 0.5, True) + 1, 0, 1, x)
    assert "outside the segment" in refused(lambda x: x.add_(1) * 2, 0, 2, x)

    def later(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        z = y.view(-1)
        y.add_(1)
        return z + y

    assert "in place later" in refused(later, 1, 2, x)


# ---- files


def save(net: torch.nn.Module, path: Any, codes: Codes, batches: Sequence[int] = (1, 2, 4, 8)) -> None:
    c = dynamic(net, torch.randn(4, 3))._main
    state = {name: holder[key] for name, (holder, key) in c.state.items()}
    entry = (c.plan, "plan", -1, 0, list(batches), {}, codes)
    head = ("", "", "B", {}, True)
    _native.artifact_save(str(path).encode(), "all", None, head, {"model": "Net"}, [entry], state, lambda t: t)


def test_files_run_their_compiled_segments(tmp_path: Any) -> None:
    net = Net().eval()
    functions[b"f"] = times_weight
    path = tmp_path / "net.clv"
    save(net, path, [segment(1, 3, "f", ROWS, sizes=[(1, 4)])])
    model = cleave.load(path, allow_compiled=True)
    for size in (1, 4, 8):
        x = torch.randn(size, 3)
        assert torch.equal(model(x), net(x))
    assert model.segments == [cleave.artifact.SegmentState(0, 1, 3, "fake", False, True, None, 2, 1)]
    tape = cleave.load(path, tape_only=True)
    tape(x)
    (state,) = tape.segments
    assert not state.compiled
    assert state.reason
    assert (state.runs, state.tape_runs) == (0, 1)


def test_compiled_code_runs_only_where_it_is_allowed(tmp_path: Any) -> None:
    net = Net().eval()
    functions[b"f"] = times_weight
    path = tmp_path / "net.clv"
    save(net, path, [segment(1, 3, "f", ROWS, sizes=[(1, 8)], backend="fake")])
    x = torch.randn(4, 3)
    with pytest.warns(cleave.CleaveWarning, match="allow_compiled"):
        model = cleave.load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = cleave.load(path)  # once is enough
        allowed = cleave.load(path, allow_compiled=True)
    assert torch.equal(model(x), net(x))
    assert not seen
    assert not model.segments[0].compiled
    assert "allowed" in (model.segments[0].reason or "")
    assert torch.equal(allowed(x), net(x))
    assert len(seen) == 1
    assert allowed.segments[0].compiled


def test_other_weights_are_not_those_that_were_compiled(tmp_path: Any) -> None:
    net = Net().eval()
    functions[b"f"] = times_weight
    path = tmp_path / "net.clv"
    save(net, path, [segment(1, 3, "f", ROWS, sizes=[(1, 8)])])
    model = cleave.load(path, allow_compiled=True)
    x = torch.randn(4, 3)
    with torch.no_grad():
        net.weight.mul_(2)
    model.load_state_dict(net.state_dict())
    assert torch.equal(model(x), net(x))
    assert not seen
    assert "other weights" in (model.segments[0].reason or "")


def test_weights_that_are_written_through_state_dict_are_seen(tmp_path: Any) -> None:
    net = Net().eval()
    functions[b"f"] = times_weight
    path = tmp_path / "net.clv"
    save(net, path, [segment(1, 3, "f", ROWS, sizes=[(1, 8)])])
    model = cleave.load(path, allow_compiled=True)
    x = torch.randn(4, 3)
    lent = model.state_dict()["weight"]
    assert torch.equal(model(x), net(x))
    assert len(seen) == 1
    with torch.no_grad():
        lent.mul_(2)
        net.weight.mul_(2)
    assert torch.equal(model(x), net(x))
    assert len(seen) == 1
    assert "other weights" in (model.segments[0].reason or "")


class Counting(torch.nn.Module):
    """Large batches change what small ones read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 4:
            self.scale.add_(1)
            return torch.relu(x * 2) + 1
        return torch.relu(x * self.scale) + 1


def test_code_with_a_tensor_that_another_plan_changes_is_not_used(tmp_path: Any) -> None:
    net, small, large = Counting().eval(), torch.randn(3, 3), torch.randn(8, 3)
    plan = dynamic(net, small)
    with torch.no_grad():  # the mode of the capture
        plan(large)
    net.scale.fill_(1)
    functions[b"f"] = lambda a: [torch.relu(a * torch.ones(3))]
    served = plan._sized.proven
    entries = [
        (served[(3,)].plan, "plan", -1, 0, [3], {}, [segment(0, 2, "f", ROWS, sizes=[(1, 4)])]),
        (served[(8,)].plan, "plan", -1, 0, [], {}, []),
    ]
    path = tmp_path / "net.clv"
    state = {"scale": net.scale}
    _native.artifact_save(str(path).encode(), "all", None, ("", "", "B", {}, True), {}, entries, state, lambda t: t)
    model = cleave.load(path, allow_compiled=True)
    for x in (small, large, small):
        assert torch.equal(model(x), net(x))
    assert not seen
    assert "another plan" in (model.segments[0].reason or "")


def test_back_ends_have_good_names_and_built_in_ones_stay() -> None:
    for name in ("", "a b", "inductor", "openvino"):
        with pytest.raises(cleave.CleaveError):
            cleave.register_backend(name, supports=lambda n: True, compile=lambda s: b"", run=lambda c, i: i)
    with pytest.raises(TypeError):
        cleave.register_backend("x", supports=3, compile=lambda s: b"", run=lambda c, i: i)  # type: ignore[arg-type]


def test_what_no_back_end_can_take_is_left_on_the_tape_whatever_it_says() -> None:
    traced = cleave.trace(lambda x: torch.rand_like(x) + x + 1, torch.ones(3), backend="fake", dryrun=True)
    assert traced.graph.reasons[0] == "draws random numbers"


@pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")
def test_the_command_says_which_compiled_parts_it_does_not_use(tmp_path: Any) -> None:
    path = tmp_path / "net.clv"
    save(Net().eval(), path, [segment(1, 3, "f", ROWS, sizes=[(1, 8)])])
    ask = [str(COMMAND), "run", str(path), "--fill", "ones", "--batch", "2"]
    told = subprocess.run(ask, capture_output=True, text=True, check=True)
    assert 'there is no back end "fake" here' in told.stderr
    assert not subprocess.run([*ask, "--tape-only"], capture_output=True, text=True, check=True).stderr
