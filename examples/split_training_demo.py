"""Split training: both halves learn, the gradients are those of the whole model.

python examples/split_training_demo.py [--steps 20] [--processes]

With --processes the suffix lives in a second process: boundaries and gradients cross as bytes.
"""

import argparse
import copy
import multiprocessing as mp
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import cleave

SPEC = cleave.SplitSpec(boundary="after:3", dynamic_batch=(2, 64), trainable=True, trace_batch_mode="batch_gt1")


def network() -> nn.Module:
    """A small classifier with what makes training delicate: batch statistics and dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 5),
    ).train()


def prepare() -> tuple[nn.Module, cleave.SplitRuntime]:
    """The same model, cut in the same place, in every process."""
    model = network()
    return model, cleave.prepare_split(model, example_inputs=(torch.randn(4, 20),), split=SPEC)


def batches(steps: int) -> Any:
    """Points with five classes, another batch size each time."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(5, 20, generator=generator) * 2
    for step in range(steps):
        y = torch.randint(0, 5, (16 + step % 7,), generator=generator)
        yield centres[y] + torch.randn(len(y), 20, generator=generator), y


def suffix_process(connection: Any) -> None:
    """Holds the second half only: boundary and targets in, loss and gradients out."""
    _, runtime = prepare()
    runtime.keep_only("suffix")
    optimizer = torch.optim.SGD(runtime.parameters("suffix"), lr=0.1, momentum=0.9)
    while (message := connection.recv_bytes()) != b"":
        boundary = cleave.BoundaryPayload.from_bytes(message)
        targets = cleave.unpack(connection.recv_bytes())
        loss, grads = runtime.train_suffix(boundary, targets, optimizer=optimizer)
        connection.send_bytes(cleave.pack({"loss": loss, "grads": grads}))


def train_in_two_processes(steps: int) -> list[float]:
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=suffix_process, args=(there,))
    process.start()
    _, runtime = prepare()
    runtime.keep_only("prefix")
    optimizer = torch.optim.SGD(runtime.parameters("prefix"), lr=0.1, momentum=0.9)
    losses = []
    for x, y in batches(steps):
        boundary = runtime.run_training_prefix(x)
        here.send_bytes(boundary.to_bytes())
        here.send_bytes(cleave.pack(y))
        answer = cleave.unpack(here.recv_bytes())
        runtime.backward_prefix(boundary, answer["grads"], optimizer=optimizer)
        losses.append(float(answer["loss"]))
    here.send_bytes(b"")
    process.join()
    return losses


def train_here(steps: int) -> None:
    model, runtime = prepare()
    whole = copy.deepcopy(model)
    prefix = torch.optim.SGD(runtime.parameters("prefix"), lr=0.1, momentum=0.9)
    suffix = torch.optim.SGD(runtime.parameters("suffix"), lr=0.1, momentum=0.9)
    reference = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    for step, (x, y) in enumerate(batches(steps)):
        torch.manual_seed(step)
        boundary = runtime.run_training_prefix(x)
        loss, grads = runtime.train_suffix(boundary, y, optimizer=suffix)
        runtime.backward_prefix(boundary, boundary_grads=grads, optimizer=prefix)

        torch.manual_seed(step)
        reference.zero_grad()
        F.cross_entropy(whole(x), y).backward()
        reference.step()
        pairs = zip(model.state_dict().values(), whole.state_dict().values(), strict=True)
        equal = all(torch.equal(a, b) for a, b in pairs)
        print(f"step {step:2}: batch {len(y)}, loss {loss:.4f}, weights equal to those of the whole model: {equal}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--processes", action="store_true", help="the suffix in a second process")
    options = parser.parse_args()
    if not options.processes:
        train_here(options.steps)
        return
    losses = train_in_two_processes(options.steps)
    print("losses:", ", ".join(f"{loss:.4f}" for loss in losses))


if __name__ == "__main__":
    main()
