"""The processes that test_pipeline.py starts: python pipeline_worker.py 2:gpipe,1f1b 4:free … runs sets of ranks.

Each case compares with the same stages run one after the other in one process, micro-batch by micro-batch. Every rank
says with a line of JSON how a case went."""

import copy
import json
import os
import signal
import socket
import sys
import time
import traceback
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from cleave import _distributed as distributed
from cleave.errors import CleaveError


def spec(name, batched=True, grad=True):
    return SimpleNamespace(name=name, is_batched=batched, requires_grad=grad)


class Part(nn.Module):
    """A stage by hand: `body` holds the layers under their names in the model."""

    def __init__(self, index, nstages, body, inputs, outputs):
        super().__init__()
        self.index, self.nstages, self.inputs, self.outputs = index, nstages, inputs, outputs
        self.numbers = []
        self.body = body

    def named_parameters(self, *args, **kwargs):
        return self.body.named_parameters(*args, **kwargs)

    def forward(self, *tensors):
        return self.body(*tensors)


class HandReturned:
    """What the last stage of a partition by hand gives."""

    def __init__(self, outputs):
        self.outputs = outputs

    def pack(self, tensors, numbers=()):
        return {"y": tensors[0], "more": (tensors[1], "text", None), "shapes": [t.dtype for t in tensors]}

    def difference(self, other):
        return None


class Hand:
    """A partition by hand."""

    batch_dim = 0

    def __init__(self, bodies, crossing, device_of, tied=(), signature="hand"):
        self.bodies, self.crossing, self.device_of = bodies, crossing, device_of
        self.tied, self.signature = tied, signature
        self.predicted = [(1.0, 2.0)] * len(bodies)

    def stage(self, i, *, device):
        return Part(i, len(self.bodies), self.bodies[i].to(device), self.crossing[i], self.crossing[i + 1])

    def unpack_inputs(self, args, kwargs):
        x, nested = args
        return [x, nested["ids"], kwargs["scale"]]

    def profile_text(self):
        return ""

    def sizes_of(self, leaves):
        return {}

    def choose(self, module, leaves):
        return 0, False

    def prepare(self, module, sizes, variant):
        pass

    def actions(self, microbatches):
        return distributed.free_order(self.device_of, max(self.device_of) + 1, microbatches)

    def like(self, profile):
        return self

    def returned(self, module):
        return HandReturned(self.crossing[-1])

    def pack_output(self, tensors):
        return self.returned(None).pack(tensors)


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 6)

    def forward(self, x, ids, scale):
        h = self.first(x) * scale
        scaled = torch.complex(h, h.flip(0)) if x.shape[0] else h
        return h, ids, ids > 3, h, h.new_ones(len(x), 3)[:, ::2], scaled, h.new_empty(len(x), 0), scale


class Middle(nn.Module):
    """Writes an input in place, relays others, gives views, expanded and transposed tensors."""

    def __init__(self, k):
        super().__init__()
        self.add_module(f"linear{k}", nn.Linear(6, 6))
        self.add_module(f"table{k}", nn.Embedding(10, 6))
        self.k = k

    def forward(self, h, ids, mask, again, const, scaled, none, scale):
        linear, table = getattr(self, f"linear{self.k}"), getattr(self, f"table{self.k}")
        y = torch.tanh(linear(h)) + table(ids).mean(1) * scale
        y = y + again * mask[:, :1]
        y = y.t().contiguous().t() + scaled.real * const[:, :1]
        scaled.mul_(0.5)
        return y, ids, mask, y, const, scaled, none, scale


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, h, ids, mask, again, const, scaled, none, scale):
        y = self.last(h + again) + scaled.abs()[:, :3] * const[:, 1:]
        return y, ids.masked_fill(mask, -1)


CROSS = [spec("h"), spec("ids"), spec("mask"), spec("h"), spec("const"), spec("z"), spec("none"), spec("scale", False)]


def rich(n, device_of):
    torch.manual_seed(0)
    bodies = [First(), *[Middle(k) for k in range(1, n - 1)], Last()]
    ends = [spec("x"), spec("ids"), spec("scale", False)], [spec("y"), spec("ids")]
    return Hand(bodies, [ends[0], *[CROSS] * (n - 1), ends[1]], device_of)


def inputs(batch, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, 8, generator=g)
    ids = torch.randint(0, 10, (batch, 5), generator=g)
    return (x, {"ids": ids}), {"scale": torch.tensor(1.25)}, torch.randn(batch, 3, generator=g)


def loss_fn(output, target):
    return nn.functional.mse_loss(output["y"], target)


def chunks(t, m):
    sizes = [len(t) // m + (k < len(t) % m) for k in range(m)]
    return t.split(sizes)


def alone(hand, bodies, args, kwargs, target, m, train=True):
    """The same micro-batches in one process."""
    (x, nested), scale = args, kwargs["scale"]
    losses, outputs = [], []
    for xs, ids, ts in zip(chunks(x, m), chunks(nested["ids"], m), chunks(target, m), strict=True):
        flat = (xs, ids, scale)
        for b in bodies:
            flat = b(*flat)
        outputs.append(flat)
        if train:
            loss = loss_fn(hand.pack_output(flat), ts)
            loss.backward()
            losses.append(loss.detach())
    return losses, outputs


def train(n, device_of, name, m=4, batch=8, make=rich, steps=2, same=torch.equal, **options):
    """Steps of training, equal in every bit: losses, gradients, parameters."""
    hand = make(n, device_of)
    bodies = copy.deepcopy(hand.bodies)
    run = distributed.schedule(hand, name, microbatches=m, loss_fn=loss_fn, timeout=20, **options)
    mine = {id(p): p for s in run.stages for p in s.submod.parameters()}
    optimizer = torch.optim.SGD(mine.values(), lr=0.1, weight_decay=0.1)
    other = torch.optim.SGD({id(p): p for b in bodies for p in b.parameters()}.values(), lr=0.1, weight_decay=0.1)
    for step in range(steps):
        args, kwargs, target = inputs(batch, step)
        other.zero_grad()
        losses, _ = alone(hand, bodies, args, kwargs, target, m)
        for p in {id(p): p for b in bodies for p in b.parameters()}.values():
            if p.grad is not None:
                p.grad /= m
        optimizer.zero_grad()
        got = run.step(*args, target=target, **kwargs) if step % 2 == 0 else partial(run, args, kwargs, target)
        if got is not None:
            assert all(same(a, b) for a, b in zip(got, losses, strict=True)), (got, losses)
        for s in run.stages:
            theirs = dict(bodies[s.stage_index].named_parameters())
            for k, p in s.submod.named_parameters():
                q = theirs[k]
                assert (p.grad is None) == (q.grad is None), (s.stage_index, k)
                assert q.grad is None or same(p.grad, q.grad), (s.stage_index, k)
        optimizer.step()
        other.step()
        for s in run.stages:
            theirs = dict(bodies[s.stage_index].named_parameters())
            assert all(same(p, theirs[k]) for k, p in s.submod.named_parameters())
    args, kwargs, target = inputs(batch, 7)
    before = {id(p): None if p.grad is None else p.grad.clone() for p in mine.values()}
    if same is torch.equal:
        infer(run, hand, bodies, args, kwargs, target, m)
    for p in mine.values():
        assert p.grad is None or torch.equal(p.grad, before[id(p)])
    table = run.report()
    assert (table is None) == (dist.get_rank() != 0)
    assert table is None or len(table.splitlines()) == len(device_of) + 1
    run.close()
    return run


def partial(run, args, kwargs, target):
    """Inputs only where they are needed."""
    first = args if any(s.is_first for s in run.stages) else ()
    named = kwargs if first else {}
    last = any(s.is_last for s in run.stages)
    return run.step(*first, target=target if last else None, **named)


def infer(run, hand, bodies, args, kwargs, target, m):
    with torch.no_grad():
        _, outputs = alone(hand, bodies, args, kwargs, target, m, train=False)
    got = run.eval(*args, **kwargs)
    if any(s.is_last for s in run.stages):
        assert torch.equal(got["y"], torch.cat([o[0] for o in outputs]))
        assert torch.equal(got["more"][0], torch.cat([o[1] for o in outputs]))
        assert got["more"][1:] == ("text", None)
        assert len(run.eval(*args, merge=False, **kwargs)) == m
    else:
        assert got is None
        assert run.eval(*args, merge=False, **kwargs) is None


# ---- cases ---------------------------------------------------------------------------------------------------------


def world():
    return dist.get_world_size()


def loop(n):
    return [i % world() for i in range(n)]


def vee():
    return [*range(world()), *reversed(range(world()))]


def case_gpipe():
    train(world(), loop(world()), "GPipe")


def case_1f1b():
    train(world(), loop(world()), "Schedule1F1B")


def case_permuted():
    train(world(), list(reversed(loop(world()))), "1f1b")


def case_interleaved():
    train(2 * world(), loop(2 * world()), "Interleaved1F1B")


def case_looped_bfs():
    train(2 * world(), loop(2 * world()), "LoopedBFS")


def case_zero_bubble():
    train(2 * world(), loop(2 * world()), "InterleavedZeroBubble")


def case_zbv():
    train(2 * world(), vee(), "ZBVZeroBubble", m=2 * world(), batch=4 * world())


def case_free():
    train(
        7,
        [0, 1, 1, 0, world() - 1, *[i % world() for i in range(2)]] if world() == 2 else [0, 2, 1, 1, 3, 0, 2],
        "Free",
    )


def case_chosen():
    assert train(2 * world(), vee(), None, steps=1).name == "Free"


def case_uneven():
    train(world(), loop(world()), "GPipe", batch=4 * 3 + 1)


def case_one_microbatch():
    train(world(), loop(world()), "GPipe", m=1)


def close(a, b):
    return torch.allclose(a, b, atol=1e-6)


def case_sum_order():
    """Without `exact` the gradients are close, not always equal."""
    train(2 * world(), loop(2 * world()), "LoopedBFS", exact=False, same=close)
    # one step: after it the parameters differ by the rounding, and so do all gradients, by more
    tied_train(2 * world(), loop(2 * world()), "LoopedBFS", exact=False, same=close, steps=1)


def case_placement_refused():
    hand = rich(4, [0, 0, 1, 1])
    if world() != 2:
        hand = rich(6, [0, 1, 2, 3, 0, 0])
    for name in ("GPipe", "Interleaved1F1B", "ZBVZeroBubble"):
        refused("schedules that can run this: Free", lambda: distributed.schedule(hand, name, microbatches=4))


def case_disagree():
    hand = rich(world(), loop(world()))
    hand.signature = f"rank {dist.get_rank()}"
    refused("do not agree on the partition", lambda: distributed.pipeline_stages(hand, timeout=20))


def case_own_schedule():
    """Schedules of torch, made by the user around our stages."""
    from torch.distributed import pipelining

    kinds = [("ScheduleGPipe", world(), loop(world())), ("Schedule1F1B", world(), loop(world()))]
    kinds += [
        ("ScheduleInterleaved1F1B", 2 * world(), loop(2 * world())),
        ("ScheduleZBVZeroBubble", 2 * world(), vee()),
    ]
    for name, n, device_of in kinds:
        hand = rich(n, device_of)
        hand.unpack_inputs = lambda args, kwargs: [args[0], args[1], torch.tensor(1.25)]
        bodies = copy.deepcopy(hand.bodies)
        stages = distributed.pipeline_stages(hand, timeout=20)
        m = 2 * world()
        made = getattr(pipelining, name)(stages if n > world() else stages[0], m, loss_fn=loss_fn)
        args, kwargs, target = inputs(2 * m)
        alone(hand, bodies, args, kwargs, target, m)
        made.step(args[0], args[1]["ids"], target=target, return_outputs=False)
        for s in stages:
            for (_, p), q in zip(s.submod.named_parameters(), bodies[s.stage_index].parameters(), strict=True):
                assert q.grad is None or torch.equal(p.grad, q.grad / m)
        distributed.sync_tied_gradients(stages)
        dist.barrier()
        stages[0].link.peers.close()


def case_frozen():
    """Stages without parameters that train, at either end and in the middle; freezing later asks for a new schedule."""
    for frozen in ([0], [world() - 1], list(range(world() - 1))):

        def make(n, device_of, frozen=tuple(frozen)):
            hand = rich(n, device_of)
            for k in frozen:
                hand.bodies[k].requires_grad_(False)
            return hand

        train(world(), loop(world()), "1F1B", make=make)


def case_refused():
    hand = rich(world(), loop(world()))
    run = distributed.schedule(hand, "GPipe", microbatches=4, timeout=20)
    args, kwargs, target = inputs(8)
    refused("no loss_fn", lambda: run.step(*args, target=target, **kwargs))
    run.eval(*args, **kwargs)
    refused("cannot be split into 4", lambda: run.eval(args[0][:3], {"ids": args[1]["ids"][:3]}, **kwargs))
    refused("disagree on the batch", lambda: run.eval(args[0][:4], args[1], **kwargs))
    run.eval(*args, **kwargs)
    run.close()
    run = distributed.schedule(hand, "GPipe", microbatches=4, loss_fn=loss_fn, timeout=20)
    leaf = args[0].clone().requires_grad_()
    refused("x requires grad", lambda: run.step(leaf, args[1], target=target, **kwargs))
    refused("", lambda: run.step(None, args[1], target=target, **kwargs), kind=Exception)  # whatever reading it raises
    run.step(*args, target=target, **kwargs)
    run.close()
    run = distributed.schedule(hand, "GPipe", microbatches=4, loss_fn=lambda out, _: out["y"].sum().item(), timeout=20)
    refused("loss of micro-batch 0 is a float", lambda: run.step(*args, target=target, **kwargs))
    dist.barrier()
    run.close()
    run = distributed.schedule(hand, "GPipe", microbatches=4, loss_fn=loss_fn, timeout=20)
    refused("no tensor of the target does", lambda: run.step(*args, target=target[:6], **kwargs))
    refused("has failed and cannot run again", lambda: run.step(*args, target=target, **kwargs))
    dist.barrier()
    run.close()
    for placement, why in (
        ([0] * world(), "has no stage"),
        ([world()] * world(), f"such as {loop(world())}"),
        ([0], "one rank for"),
    ):
        refused(why, lambda: distributed.schedule(hand, "GPipe", microbatches=4, placement=placement))
    refused("there is no schedule", lambda: distributed.schedule(hand, "2F2B", microbatches=4))
    refused("GPipe does", lambda: distributed.schedule(hand, "1F1B", microbatches=1))


def case_stage_refused():
    """A rank that cannot make its stage says so to the others."""
    hand = rich(world(), loop(world()))
    if dist.get_rank() == 1:
        hand.stage = lambda i, device: no_more()
    why = "no more" if dist.get_rank() == 1 else "rank 1: making its stages raised ValueError: no more"
    refused(why, lambda: distributed.pipeline_stages(hand, timeout=20), kind=Exception)


def refused(why, call, kind=CleaveError):
    try:
        call()
    except kind as e:
        if why in str(e):
            return e
        raise
    raise AssertionError(why)


class Table(nn.Module):
    def __init__(self, table, name):
        super().__init__()
        self.add_module(name, nn.Module())
        getattr(self, name).weight = table
        self.name = name


class Embed(Table):
    def forward(self, x, ids, scale):
        return (nn.functional.embedding(ids, getattr(self, self.name).weight).mean(1) * scale,)


class Mix(Table):
    def forward(self, h):
        return (torch.tanh(h @ getattr(self, self.name).weight[:3].t() @ getattr(self, self.name).weight[3:6]),)


class Head(Table):
    def forward(self, h):
        return h @ getattr(self, self.name).weight.t(), h


def tied(n, device_of):
    """One table: in the first stage, one in the middle, and the last, under two names."""
    torch.manual_seed(1)
    table = nn.Parameter(torch.randn(10, 6))
    bodies = [Embed(table, "table"), *[Mix(table, "table") for _ in range(n - 2)], Head(table, "head")]
    # every rank has its own copy of the table for each stage, as separate processes would
    bodies = [copy.deepcopy(b) for b in bodies]
    ends = [spec("x"), spec("ids"), spec("scale", False)], [spec("y"), spec("h")]
    copies = [(0, "table.weight"), (n - 1, "head.weight")]
    hand = Hand(bodies, [ends[0], *[[spec("h")]] * (n - 1), ends[1]], device_of, tied=[copies])
    return hand


def tied_train(n, device_of, name, m=4, hand=None, same=torch.equal, steps=2, **options):
    hand = hand or tied(n, device_of)
    one = copy.deepcopy(hand.bodies)
    table = next(one[0].parameters())
    for b in one[1:]:
        if isinstance(b, Uses):
            b.table = table
        else:
            getattr(b, b.name).weight = table
    run = distributed.schedule(hand, name, microbatches=m, loss_fn=tied_loss, timeout=20, **options)
    for step in range(steps):
        args, kwargs, _ = inputs(2 * m, step)
        table.grad = None
        flat_in = [(x, i, kwargs["scale"]) for x, i in zip(chunks(args[0], m), chunks(args[1]["ids"], m), strict=True)]
        for flat in flat_in:
            for b in one:
                flat = b(*flat)
            tied_loss(hand.pack_output(flat), None).backward()
        for s in run.stages:
            s.submod.zero_grad()
        run.step(*args, **kwargs)
        for s in run.stages:
            for _, p in s.submod.named_parameters():
                assert same(p.grad, table.grad / m), (p.grad - table.grad / m).abs().max()
                with torch.no_grad():
                    p -= p.grad
        with torch.no_grad():
            table -= table.grad / m
    run.close()


class Thrice(nn.Module):
    """One table in three places; which of them are in which stage is up to the cut."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, ids):
        x = self.a(self.words(ids)).tanh()
        x = self.b(x @ self.words.weight.t() @ self.words.weight).tanh()
        return {"y": nn.functional.linear(x, self.words.weight).mean(1)}


class Uses(nn.Module):
    """Uses a table `times` times."""

    def __init__(self, times, first, last):
        super().__init__()
        self.times, self.first, self.last = times, first, last
        self.table = nn.Parameter(torch.randn(6, 6))

    def forward(self, x, *rest):
        h = x[:, :6] if self.first else x
        for _ in range(self.times):
            h = torch.tanh(h @ self.table)
        return (h, h) if self.last else (h,)


def uses(times, device_of):
    torch.manual_seed(4)
    n = len(times)
    bodies = [Uses(t, k == 0, k == n - 1) for k, t in enumerate(times)]
    with torch.no_grad():
        for b in bodies:
            b.table.copy_(bodies[0].table)
    ends = [spec("x"), spec("ids"), spec("scale", False)], [spec("y"), spec("h")]
    return Hand(bodies, [ends[0], *[[spec("h")]] * (n - 1), ends[1]], device_of)


def case_tied_often():
    """A stage uses a shared parameter several times, others too: sums are those of one backward."""
    n = world()
    for times, name, device_of in (
        ([2, *[1] * (n - 1)], "1F1B", loop(n)),
        ([1, *[2] * (n - 1)], "GPipe", loop(n)),
        ([3, *[0] * (n - 2), 3], "1F1B", loop(n)),
        ([2, 0, *[3] * (2 * n - 3), 1], "LoopedBFS", loop(2 * n)),
        ([2, 3] * n, "ZBVZeroBubble", vee()),
        ([2, 3, 1] * n, "Free", [*loop(n), *vee()]),
    ):
        tied_train(0, device_of, name, m=2 * n, hand=uses(times, device_of))
    for method in ("acyclic", "metis"):
        plan(Thrice, partitioning_method=method)


def tied_loss(output, _):
    return output["y"].square().mean()


def case_tied():
    tied_train(world(), loop(world()), "1F1B")


def case_tied_interleaved():
    tied_train(2 * world(), loop(2 * world()), "LoopedBFS")


def case_tied_forgotten():
    """A schedule of torch's own around our stages; what it must not forget."""
    hand = tied(world(), loop(world()))
    stages = distributed.pipeline_stages(hand, timeout=20)
    from torch.distributed.pipelining import ScheduleGPipe

    s = ScheduleGPipe(stages[0], 2, loss_fn=tied_loss)
    args, kwargs, _ = inputs(4)
    flat = (args[0], args[1]["ids"], kwargs["scale"])
    hand.unpack_inputs = lambda args, kwargs: [args[0], args[1], torch.tensor(1.25)]
    s.step(*flat[:2], target=torch.zeros(4), return_outputs=False)
    distributed.sync_tied_gradients(stages)
    assert all(p.grad is not None for p in stages[0].submod.parameters())
    s.step(*flat[:2], target=torch.zeros(4), return_outputs=False)
    dist.barrier()
    refused("sync_tied_gradients", lambda: s.step(*flat[:2], target=torch.zeros(4), return_outputs=False))
    stages[0].link.peers.close()


def case_copies_differ():
    hand = tied(world(), loop(world()))
    with torch.no_grad():
        hand.bodies[-1].head.weight[0, 0] += 1
    refused("copies differ", lambda: distributed.pipeline_stages(hand, timeout=20))


class Half(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.layers = nn.ModuleDict({str(k): nn.Linear(8, 8, dtype=torch.bfloat16)})

    def forward(self, x, *rest):
        return (next(iter(self.layers.values()))(x.bfloat16()),)


class HalfHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Linear(8, 3, dtype=torch.bfloat16)

    def forward(self, x):
        return self.b(x).float(), x


def half(n, device_of):
    torch.manual_seed(2)
    ends = [spec("x"), spec("ids"), spec("scale", False)], [spec("y"), spec("h")]
    return Hand([*[Half(k) for k in range(n - 1)], HalfHead()], [ends[0], *[[spec("h")]] * (n - 1), ends[1]], device_of)


def case_bf16():
    hand_infer = globals()["infer"]
    globals()["infer"] = lambda *a: None  # outputs have another meaning here
    try:
        train(world(), loop(world()), "1F1B", make=half)
    finally:
        globals()["infer"] = hand_infer


# ---- plans ----------------------------------------------------------------------------------------------------------


class Words(nn.Module):
    """Tied words, a skip over everything, a table that is no input, an output that is a number."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.register_buffer("places", torch.randn(1, 5, 16))
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(5)])
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids, mask=None, scale=1.0):
        start = x = self.words(ids) + self.places
        for layer in self.layers:
            x = x + layer(x)
        x = self.norm((x + start * scale).transpose(1, 2)).transpose(1, 2)
        if mask is not None:
            x = x.masked_fill(mask[..., None], 0.0)
        return {"y": self.head(x).mean(1), "hidden": (x, None, "words")}


class Picture(nn.Module):
    """Long skips, as in a UNet; batch statistics; writes in place."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(1 if k == 0 else 4, 4, 3, padding=1) for k in range(3)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(4) for _ in range(3)])
        self.up = nn.ModuleList([nn.Conv2d(8, 4, 3, padding=1) for _ in range(3)])
        self.end = nn.Linear(4, 20)

    def forward(self, ids):
        x, kept = ids[:, None, :, None].float().expand(-1, 1, -1, 6), []
        for conv, norm in zip(self.down, self.norms, strict=True):
            x = norm(conv(x)).relu_()
            kept.append(x)
        for conv in self.up:
            x = conv(torch.cat([x, kept.pop()], 1))
        return {"y": self.end(x.mean((2, 3)))}


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.a, self.b = nn.LSTM(8, 8, batch_first=True), nn.LSTM(8, 8, batch_first=True)
        self.end = nn.Linear(8, 20)

    def forward(self, ids):
        x, _ = self.a(self.words(ids))
        x, (h, _) = self.b(x)
        return {"y": self.end(x[:, -1] + h[-1])}


def plan_loss(output, target):
    return nn.functional.cross_entropy(output["y"], target)


def plan(make, name=None, placement=None, nparts=None, batch=8, kwargs=None, **options):
    import cleave

    m, kwargs = 4, kwargs or {}
    torch.manual_seed(3)
    model = make().train()
    one = copy.deepcopy(model)
    ids, target = torch.randint(0, 20, (batch, 5)), torch.randint(0, 20, (batch,))
    batched = {k: v for k, v in kwargs.items() if isinstance(v, torch.Tensor)}
    part = cleave.pipe_model(
        model,
        example_inputs=(ids[:2],),
        example_kwargs={**kwargs, **{k: v[:2] for k, v in batched.items()}},
        nparts=nparts or world(),
        **{"profile": "estimate", **options},
    )
    run = part.schedule(name, microbatches=m, loss_fn=plan_loss, placement=placement, timeout=30)
    names = dict(one.named_parameters(remove_duplicate=False))
    buffers = dict(one.named_buffers())
    rows = [chunks(ids, m), chunks(target, m), *[chunks(v, m) for v in batched.values()]]
    for _ in range(2):
        one.zero_grad()
        losses = []
        for i, t, *more in zip(*rows, strict=True):
            loss = plan_loss(one(i, **{**kwargs, **dict(zip(batched, more, strict=True))}), t)
            loss.backward()
            losses.append(loss.detach())
        for s in run.stages:
            s.submod.zero_grad()
        got = run.step(ids, target=target, **kwargs)
        assert got is None or all(torch.equal(a, b) for a, b in zip(got, losses, strict=True)), (got, losses)
        with torch.no_grad():
            for q in one.parameters():
                q -= 0.1 * (q.grad / m)
        for s in run.stages:
            for k, p in s.submod.named_parameters():
                assert torch.equal(p.grad, names[k].grad / m), (s.stage_index, k)
        with torch.no_grad():
            for p in {id(p): p for s in run.stages for p in s.submod.parameters()}.values():
                p -= 0.1 * p.grad
        for s in run.stages:
            assert all(torch.equal(b, buffers[k]) for k, b in s.submod.named_buffers() if k in buffers), s.stage_index
    run.train(False)
    out = run.eval(ids, **kwargs)
    if out is not None:
        one.eval()
        with torch.no_grad():
            parts = [
                one(i, **{**kwargs, **dict(zip(batched, more, strict=True))}) for i, _, *more in zip(*rows, strict=True)
            ]
        assert torch.equal(out["y"], torch.cat([p["y"] for p in parts]))
    run.close()
    return run


def case_plan():
    plan(Words, kwargs={"mask": torch.rand(8, 5) > 0.7, "scale": 0.5}, partitioning_method="metis")
    plan(Words, "1F1B", partitioning_method="acyclic", recomputation=True)
    plan(Picture, "GPipe", partitioning_method="acyclic", batch=9)
    if world() == 2:
        plan(Steps, partitioning_method="pipedream")


def case_plan_places():
    n = world()
    for make, name, ranks in (
        (Words, "Interleaved1F1B", loop(2 * n)),
        (Words, "ZBVZeroBubble", vee()),
        (Picture, "Free", list(reversed(vee()))),
    ):
        plan(make, name, partitioning_method="acyclic", nparts=2 * n, placement=ranks)


def case_plan_measured():
    """Every rank measures for itself; the partition of rank 0 counts."""
    plan(Words, profile=None, n_iter=1, partitioning_method="acyclic")


def pipe_words(n, batch=8):
    """A model with tied words, in n stages; its twin in one process; a batch."""
    import cleave

    torch.manual_seed(3)
    model = Words().train()
    ids, target = torch.randint(0, 20, (batch, 5)), torch.randint(0, 20, (batch,))
    options = {"profile": "estimate", "partitioning_method": "acyclic"}
    part = cleave.pipe_model(model, example_inputs=(ids[:2],), nparts=n, **options)
    return model, copy.deepcopy(model), part, ids, target


def eager_step(one, ids, target, m):
    """The micro-batches one after the other: gradients as the pipeline has them."""
    for i, t in zip(chunks(ids, m), chunks(target, m), strict=True):
        plan_loss(one(i), t).backward()
    for p in one.parameters():
        p.grad /= m


def same_model(run, one):
    names = {**dict(one.named_parameters(remove_duplicate=False)), **dict(one.named_buffers())}
    for s in run.stages:
        for name, t in s.submod.state_dict().items():
            assert torch.equal(t, names[name]), (s.stage_index, name)


ASKED = {  # what is given to an optimizer
    "naive": lambda run: (p for stage in run.stages for p in stage.submod.parameters()),
    "parameters": lambda run: run.parameters(),
    "groups": lambda run: [{"params": stage.submod.parameters()} for stage in run.stages],
    "named": lambda run: list(run.named_parameters()),
}
OPTIMIZERS = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.05),
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1),
}


def case_plan_stepped_once():
    """Stages of one rank that share a parameter, and stages of several: every optimizer steps it once."""
    n, m = world(), 2 * world()
    model, first, part, ids, target = pipe_words(2 * n, 2 * m)
    assert len(part.stages) == 2 * n  # that stages were looked at changes nothing
    for placement, name in ((vee(), "ZBVZeroBubble"), (loop(2 * n), "Interleaved1F1B")):
        for k, asked in enumerate(ASKED.values()):
            optimizer = list(OPTIMIZERS.values())[k % 2]
            one = copy.deepcopy(first)
            model.load_state_dict(first.state_dict())
            run = part.schedule(name, microbatches=m, loss_fn=plan_loss, placement=placement, timeout=30)
            mine, other = optimizer(asked(run)), optimizer(one.parameters())
            for _ in range(3):
                mine.zero_grad()
                other.zero_grad()
                run.step(ids, target=target)
                eager_step(one, ids, target, m)
                mine.step()
                other.step()
                same_model(run, one)
            run.close()


def case_plan_changed():
    """The model is changed after the schedule was made: the stages follow, or say what they do not follow."""
    m = 4
    model, one, part, ids, target = pipe_words(world())
    run = part.schedule("GPipe", microbatches=m, loss_fn=plan_loss, timeout=30)
    for change in (
        lambda net: net.eval(),
        lambda net: net.train(),
        lambda net: setattr(net.layers[0][0], "weight", nn.Parameter(torch.linspace(-1, 1, 512).reshape(32, 16))),
        lambda net: net.norm.eval(),
        lambda net: setattr(net, "places", torch.ones(1, 5, 16)),
        lambda net: net.load_state_dict(
            {k: v.clone() + 1 for k, v in net.state_dict().items() if k[0] == "l"}, strict=False, assign=True
        ),
    ):
        change(model)
        change(one)
        model.zero_grad()
        one.zero_grad()
        run.step(ids, target=target)
        eager_step(one, ids, target, m)
        same_model(run, one)
        names = dict(one.named_parameters())
        for name, p in run.named_parameters():
            assert torch.equal(p.grad, names[name].grad), name
        out = run.eval(ids)
        with torch.no_grad():
            want = torch.cat([one(i)["y"] for i in chunks(ids, m)])
        assert out is None or torch.equal(out["y"], want)
        dist.barrier()
    model.layers[0][1].register_forward_hook(lambda *a: None)
    refused("forward hooks of module layers.0.1 changed", lambda: run.step(ids, target=target))
    dist.barrier()
    run.close()


# ---- several plans --------------------------------------------------------------------------------------------------


class Paths(nn.Module):
    """Goes another way where the mask is not all ones, which it asks late, and where two inputs are one; `expert`
    is used on one way alone."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.expert, self.end = nn.Linear(8, 8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.0)

    def forward(self, x, y, mask):
        h = x if x is y else x + y
        for layer in self.layers:
            h = torch.tanh(layer(h))
        h = self.drop(h)
        if not bool((mask > 0).all()):
            h = self.expert(h * mask[:, None])
        out = self.end(h)
        return {"y": out} if self.training else {"mask": mask * 2, "y": out}


def paths(rows=8):
    g = torch.Generator().manual_seed(4)
    x, y = torch.randn(rows, 8, generator=g), torch.randn(rows, 8, generator=g)
    full, padded = torch.ones(rows), torch.ones(rows)
    padded[1::2] = 0
    return x, y, full, padded


def paths_pipeline(variants, name="GPipe", training=True, **options):
    """A pipeline of such a model, its twin in one process, batches by name."""
    import cleave

    torch.manual_seed(3)
    model = Paths().train(training)
    x, y, full, padded = paths()
    known = {"full": (x, y, full), "padded": (x, y, padded), "one": (x, x, full), "one padded": (x, x, padded)}
    known["mixed"] = (x, y, torch.cat([full[:4], padded[:4]]))
    shown = [tuple(each_part(known[v], slice(0, 2))) for v in variants]
    example = tuple(each_part(known["full"], slice(0, 2)))
    given = {
        "profile": "estimate",
        "partitioning_method": "acyclic",
        "nparts": world(),
        "training": training,
        **options,
    }
    part = cleave.pipe_model(model, example_inputs=example, variants=shown, **given)
    loss = {"loss_fn": paths_loss} if training else {}
    return model, copy.deepcopy(model), part.schedule(name, microbatches=4, timeout=20, **loss), known


def paths_loss(output, target):
    return (output["y"] - target).square().mean()


def each_part(batch, rows):
    """Some rows of all inputs; what is one tensor stays one."""
    made = {id(t): t[rows] for t in batch}
    return [made[id(t)] for t in batch]


def paths_step(run, one, batch, m=4):
    """A step, as one process makes it."""
    target = torch.linspace(0, 1, 24).reshape(8, 3)
    one.zero_grad()
    for s in run.stages:
        s.submod.zero_grad()
    losses = []
    for k in range(m):
        rows = slice(2 * k, 2 * k + 2)
        losses.append(paths_loss(one(*each_part(batch, rows)), target[rows]))
        losses[-1].backward()
    got = run.step(*batch, target=target)
    assert got is None or all(torch.equal(a, b) for a, b in zip(got, losses, strict=True)), (got, losses)
    names = dict(one.named_parameters())
    for name, p in run.named_parameters():
        want = names[name].grad
        assert (p.grad is None) == (want is None), name
        assert want is None or torch.equal(p.grad, want / m), name


def paths_eval(run, one, batch, m=4):
    with torch.no_grad():
        want = [one(*each_part(batch, slice(2 * k, 2 * k + 2))) for k in range(m)]
    got = run.eval(*batch)
    if got is not None:
        assert list(got) == list(want[0])
        assert all(torch.equal(got[k], torch.cat([w[k] for w in want])) for k in got)


def case_variants():
    """Each micro-batch goes the way of its data, in training and in eval mode, whatever the batch before did."""
    shown = ["padded", "one", "one padded"]
    for name, options in (("GPipe", {}), ("1F1B", {"recomputation": True}), ("1F1B", {"training": False})):
        model, one, run, known = paths_pipeline(shown, name, **options)
        for batch in known.values():
            if model.training:
                paths_step(run, one, batch)
        run.train(False)
        one.eval()
        for batch in known.values():
            paths_eval(run, one, batch)
        dist.barrier()
        run.close()


def case_variants_refused():
    """Data that no plan holds for ends no pipeline, and leaves no gradient."""
    why = "give pipe_model such data as one of its variants"
    _, one, run, known = paths_pipeline(["one"], "1F1B")
    for _ in range(2):
        paths_step(run, one, known["full"])
        before = {name: p.grad.clone() for name, p in run.named_parameters() if p.grad is not None}
        for wrong in ("padded", "mixed", "one padded"):
            target = torch.zeros(8, 3)
            refused(why, lambda w=wrong, t=target: run.step(*known[w], target=t))
            refused(why, lambda w=wrong: run.eval(*known[w]))
        for name, p in run.named_parameters():
            assert name not in before or torch.equal(p.grad, before[name])
        paths_step(run, one, known["one"])
    dist.barrier()
    run.close()
    _, one, run, known = paths_pipeline(["padded"])
    refused("is the same tensor as input 0, which the forward may ask", lambda: run.eval(*known["one"]))
    paths_step(run, one, known["mixed"])
    dist.barrier()
    run.close()


class Grows(nn.Module):
    """Asks of what it computed, in its last stage, and counts what it has seen in the first."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.norm, self.end = nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.norm(self.layers[0](x))
        for layer in self.layers[1:]:
            x = torch.tanh(layer(x))
        x = self.end(x)
        return {"y": x * 2 if bool((x < 50).all()) else x}


def case_guard_in_a_later_stage():
    """A guard that only a later stage meets ends the step on every rank, not the pipeline; the step leaves nothing."""
    import cleave

    why = f"stage {world() - 1}, forward of micro-batch 2 raised GuardError"
    for name, times in (("GPipe", 1), ("1F1B", 2)):
        torch.manual_seed(3)
        model = Grows().train()
        one = copy.deepcopy(model)
        x = torch.randn(8, 8)
        options = {"profile": "estimate", "partitioning_method": "acyclic", "nparts": world()}
        part = cleave.pipe_model(model, example_inputs=(x[:2],), **options)
        run = part.schedule(name, microbatches=4, loss_fn=paths_loss, timeout=20)
        bad = x.clone()
        bad[5] = float("nan")  # in the third micro-batch
        for _ in range(times):
            paths_step(run, one, (x,))
            for step in (lambda: run.step(bad, target=torch.zeros(8, 3)), lambda: run.eval(bad)):
                error = refused(why, step, cleave.GuardError)
                assert error.undone
                assert "Nothing of the step is left, and the pipeline can go on" in str(error)
            buffers = dict(one.named_buffers())
            for s in run.stages:
                assert all(torch.equal(b, buffers[k]) for k, b in s.submod.named_buffers()), s.stage_index
            with torch.no_grad():
                want = [one(x[2 * k : 2 * k + 2])["y"] for k in range(4)]
            got = run.eval(x)
            assert got is None or torch.equal(got["y"], torch.cat(want))
        dist.barrier()
        run.close()


# ---- what ends a pipeline -------------------------------------------------------------------------------------------


class Bad(nn.Module):
    """Behaves until its third forward."""

    def __init__(self, body, act):
        super().__init__()
        self.body, self.act, self.calls = body, act, 0

    def forward(self, *tensors):
        self.calls += 1
        if self.calls == 6:
            self.act()
        return self.body(*tensors)


def broken(case, act, where=1, stay=False, loss=loss_fn, timeout=6):
    """Rank `where` goes wrong in a step; the others must say so, in time."""
    hand = rich(world(), loop(world()))
    if dist.get_rank() == where:
        hand.bodies[where] = Bad(hand.bodies[where], act)
    run = distributed.schedule(hand, "1F1B", microbatches=4, loss_fn=loss, timeout=timeout)
    args, kwargs, target = inputs(8)
    ends(case, lambda: run.step(*args, target=target, **kwargs), stay)


def ends(case, step, stay):
    step()
    begin = time.monotonic()
    try:
        step()
        step()
    except CleaveError as e:
        say(case=case, rank=dist.get_rank(), why="", died=str(e), seconds=round(time.monotonic() - begin, 2))
        if stay:
            time.sleep(2)
        os._exit(3)
    os._exit(4)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def no_more():
    raise ValueError("no more")


def case_killed():
    broken("killed", kill)


def case_killed_first():
    """The store goes with the first rank."""
    broken("killed_first", kill, where=0)


def case_stopped():
    broken("stopped", lambda: os.kill(os.getpid(), signal.SIGSTOP))


def case_slept():
    """The rank is alive and does nothing, inside a step."""
    broken("slept", lambda: time.sleep(9), timeout=4)


def case_slept_before():
    """The same between two steps."""
    hand = rich(world(), loop(world()))
    run = distributed.schedule(hand, "1F1B", microbatches=4, loss_fn=loss_fn, timeout=3)
    args, kwargs, target = inputs(8)
    calls = []

    def step():
        calls.append(0)
        if len(calls) == 2 and dist.get_rank() == 0:
            time.sleep(7)
        run.step(*args, target=target, **kwargs)

    ends("slept_before", step, False)


def case_worked_long():
    """A rank that computes for longer than the timeout is waited for, and so is one that waits for it."""
    hand = rich(world(), loop(world()))
    if dist.get_rank() == world() - 1:
        hand.bodies[-1] = Bad(hand.bodies[-1], compute)
    run = distributed.schedule(hand, "1F1B", microbatches=4, loss_fn=loss_fn, timeout=2)
    args, kwargs, target = inputs(8)
    for _ in range(2):
        run.step(*args, target=target, **kwargs)
    run.close()


def compute(seconds=4):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        torch.randn(64, 64).sum()


def case_rested():
    """Between steps nobody waits, and all may rest for longer than the timeout."""
    hand = rich(world(), loop(world()))
    run = distributed.schedule(hand, "1F1B", microbatches=4, loss_fn=loss_fn, timeout=2)
    args, kwargs, target = inputs(8)
    run.step(*args, target=target, **kwargs)
    time.sleep(4)
    run.step(*args, target=target, **kwargs)
    run.close()


def caught(where):
    """The error of a step is caught on every rank, and the program ends: without close, or destroy_process_group."""
    hand = rich(world(), loop(world()))
    if dist.get_rank() == where:
        hand.bodies[where] = Bad(hand.bodies[where], no_more)
    run = distributed.schedule(hand, "1F1B", microbatches=4, loss_fn=loss_fn, timeout=6)
    args, kwargs, target = inputs(8)
    for _ in range(3):
        try:
            run.step(*args, target=target, **kwargs)
        except CleaveError:
            sys.exit(7)


def case_caught_first():
    caught(0)


def case_caught_last():
    caught(world() - 1)


def case_raised():
    broken("raised", no_more, stay=True)


def case_loss_raised():
    calls = []

    def loss(output, target):
        calls.append(0)
        return no_more() if len(calls) == 6 else loss_fn(output, target)

    broken("loss_raised", None, where=-1, stay=True, loss=loss)


def own_broken(case, act, stay=False):
    """The same with a schedule of torch's own."""
    from torch.distributed.pipelining import ScheduleGPipe

    hand = rich(world(), loop(world()))
    hand.unpack_inputs = lambda args, kwargs: [args[0], args[1], torch.tensor(1.25)]
    if dist.get_rank() == 1:
        hand.bodies[1] = Bad(hand.bodies[1], act)
    (stage,) = distributed.pipeline_stages(hand, timeout=6)
    made = ScheduleGPipe(stage, 4, loss_fn=loss_fn)
    (x, nested), _, target = inputs(8)
    own = (x, nested["ids"]) if stage.is_first else ()
    ends(case, lambda: made.step(*own, target=target, return_outputs=False), stay)


def case_own_killed():
    own_broken("own_killed", kill)


def case_own_raised():
    own_broken("own_raised", no_more, stay=True)


# ---- processes -------------------------------------------------------------------------------------------------------


def rank_main(names, case):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in names:
        begin, why = time.monotonic(), ""
        try:
            case(name)
        except SystemExit:
            raise
        except BaseException:
            why = traceback.format_exc()
        say(case=name, rank=dist.get_rank(), why=why, seconds=round(time.monotonic() - begin, 2))
        if why:
            os._exit(1)
    dist.barrier()
    dist.destroy_process_group()


def say(**what):
    os.write(1, (json.dumps({"world": int(os.environ.get("WORLD_SIZE", 0)), **what}) + "\n").encode())


def start(rank, size, port, names, case):
    """A rank as a fork of this process: torch is imported once for all of them."""
    pid = os.fork()
    if pid:
        return pid
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    code = 1
    try:
        rank_main(names, case)
        code = 0
    except SystemExit:
        code = None  # Python ends as it does in a program
        raise
    except BaseException:
        traceback.print_exc()
    finally:
        if code is not None:
            os._exit(code)


def run_set(size, names, seconds, case=lambda name: globals()[f"case_{name}"]()):
    """Ranks 0 … size-1 run the cases; whoever is left when one has been gone for a while is killed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    left = {start(r, size, port, names, case): r for r in range(size)}
    until = time.monotonic() + seconds
    while left and time.monotonic() < until:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            say(world=size, case="ended", rank=left.pop(pid), names=names, status=os.waitstatus_to_exitcode(status))
        stopped = sum(open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[0] == "T" for p in left)
        if left and stopped == len(left):
            break
        time.sleep(0.02)
    for p in left:
        os.kill(p, signal.SIGKILL)
        os.waitpid(p, 0)


def main(sets):
    for text in sets:  # 2:gpipe,1f1b
        size, names = text.split(":")
        run_set(int(size), names.split(","), 120)


if __name__ == "__main__":
    main(sys.argv[1:])
