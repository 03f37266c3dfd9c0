"""Trains a small language model as a pipeline, and checks every step against one process.

    torchrun --nproc-per-node 2 examples/pipeline_train.py
    torchrun --nproc-per-node 4 examples/pipeline_train.py --schedule GPipe --method acyclic

Every rank builds the same model; `pipe_model` cuts it into stages, `schedule` puts them on the ranks. With a GPU for
each rank it runs over nccl, else on CPUs over gloo.
"""

import argparse
import copy
import os

import torch
import torch.distributed as dist
from torch import nn

import cleave


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(x)


class Model(nn.Module):
    """The table of words is the head too: with "replicate" (the default) first and last stage hold a copy of it."""

    def __init__(self, words: int = 100, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def alone(model: nn.Module, ids: torch.Tensor, target: torch.Tensor, microbatches: int) -> list[torch.Tensor]:
    """The same micro-batches in one process: losses; gradients in the model."""
    losses = []
    for i, t in zip(ids.chunk(microbatches), target.chunk(microbatches), strict=True):
        loss = loss_fn(model(i), t)
        loss.backward()
        losses.append(loss.detach())
    for p in model.parameters():
        p.grad /= microbatches
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", help="GPipe, 1F1B, Interleaved1F1B, …; default: one that fits")
    parser.add_argument("--method", default="auto", help="how the model is partitioned")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()

    local = int(os.environ.get("LOCAL_RANK", 0))
    on_gpus = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if on_gpus:
        torch.cuda.set_device(local)
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpus else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # the same model on every rank
    model = Model().to(device)
    one = copy.deepcopy(model)
    ids, target = torch.randint(0, 100, (2, 2 * options.microbatches, 16), device=device)

    # The example has the size of a micro-batch.
    partitioned = cleave.pipe_model(
        model, batch_dim=0, example_inputs=(ids[:2],), nparts=ranks, partitioning_method=options.method
    )
    run = partitioned.schedule(options.schedule, microbatches=options.microbatches, loss_fn=loss_fn)
    if rank == 0:
        print(partitioned.table())
        print(f"\n{run.name} on {ranks} processes, {options.microbatches} micro-batches")

    optimizer = torch.optim.SGD(run.parameters(), lr=0.1)
    reference = torch.optim.SGD(one.parameters(), lr=0.1)
    names = dict(one.named_parameters(remove_duplicate=False))
    for step in range(options.steps):
        optimizer.zero_grad()
        losses = run.step(ids, target=target)

        reference.zero_grad()
        expected = alone(one, ids, target, options.microbatches)
        for stage in run.stages:
            for name, p in stage.submod.named_parameters():
                assert torch.equal(p.grad, names[name].grad), f"gradient of {name} differs"
        if losses is not None:  # the rank of the last stage
            assert all(torch.equal(a, b) for a, b in zip(losses, expected, strict=True)), "losses differ"
            print(
                f"step {step}: loss {torch.stack(losses).mean():.4f}, losses and gradients as in one process",
                flush=True,
            )
        optimizer.step()
        reference.step()

    table = run.report()
    if table is not None:
        print(f"\n{table}")
    run.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
