"""The processes that test_pipe_train_models.py starts: python pipe_train_worker.py 2:gpt2,t5 4:unet runs sets of ranks.

Every rank trains its stages, and the whole model by itself on the same micro-batches, and compares. It says with a line
of JSON how a model went."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

import pipeline_worker
import real_models
import torch
import torch.distributed as dist
from real_models import Args
from torch import Tensor, nn

import cleave

ROWS = 2  # of a micro-batch
METHODS = {2: ("acyclic", 3), 4: ("mpipe", 4)}  # by ranks: method, micro-batches


def resnet50(rows: int) -> tuple[nn.Module, Args]:
    return real_models.build("torchvision-resnet50")[0], Args(torch.rand(rows, 3, 32, 32))


def bert(rows: int) -> tuple[nn.Module, Args]:
    tf = real_models._transformers()
    config = tf.BertConfig(
        vocab_size=500,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
        use_cache=False,
    )
    return tf.BertModel(config), Args(torch.randint(0, 500, (rows, 8)), attention_mask=torch.ones(rows, 8).long())


def gpt2(rows: int) -> tuple[nn.Module, Args]:
    tf = real_models._transformers()
    config = tf.GPT2Config(
        vocab_size=500,
        n_embd=64,
        n_layer=4,
        n_head=4,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return tf.GPT2LMHeadModel(config), Args(torch.randint(0, 500, (rows, 8)))


def t5(rows: int) -> tuple[nn.Module, Args]:
    """The table of words is used three times: by both halves and at the end."""
    tf = real_models._transformers()
    config = tf.T5Config(
        vocab_size=500,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        dropout_rate=0,
        use_cache=False,
        decoder_start_token_id=0,
    )
    words, begun = torch.randint(0, 500, (rows, 8)), torch.randint(0, 500, (rows, 6))
    return tf.T5ForConditionalGeneration(config), Args(input_ids=words, decoder_input_ids=begun)


class UNet(nn.Module):
    """Skips from each level on the way down to the same level on the way up."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 32)) -> None:
        super().__init__()
        ins = (3, *widths[:-1])
        self.down = nn.ModuleList([self._block(a, b) for a, b in zip(ins, widths, strict=True)])
        self.middle = self._block(widths[-1], widths[-1])
        self.up = nn.ModuleList([self._block(2 * b, max(a, 4)) for a, b in zip(ins, widths, strict=True)])
        self.end = nn.Conv2d(4, 2, 1)

    @staticmethod
    def _block(a: int, b: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for block in reversed(self.up):
            x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1))
        return self.end(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.layers = nn.ModuleList([nn.LSTM(16, 16, batch_first=True) for _ in range(4)])
        self.end = nn.Linear(16, 50)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = x + layer(x)[0]
        return self.end(x)


def unet(rows: int) -> tuple[nn.Module, Args]:
    return UNet(), Args(torch.rand(rows, 3, 32, 32))


def lstm(rows: int) -> tuple[nn.Module, Args]:
    return Recurrent(), Args(torch.randint(0, 50, (rows, 7)))


MODELS = {f.__name__: f for f in (resnet50, bert, gpt2, t5, unet, lstm)}


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif hasattr(output, "values"):
        for item in output.values():
            yield from _tensors(item)
    elif isinstance(output, (list, tuple)):
        for item in output:
            yield from _tensors(item)


def _loss(output: Any, target: Tensor) -> Tensor:
    """Every element of every output counts, each with another weight."""
    parts = [
        (t * torch.linspace(-1, 1, t.numel()).reshape(t.shape)).mean() + (t.mean() - target.mean()).square()
        for t in _tensors(output)
    ]
    return torch.stack(parts).sum()


def _chunks(given: Args, target: Tensor, count: int) -> Iterator[tuple[Args, Tensor]]:
    for m in range(count):
        args = [t.chunk(count)[m] for t in given.args]
        yield Args(*args, **{k: t.chunk(count)[m] for k, t in given.kwargs.items()}), target.chunk(count)[m]


def _alone(model: nn.Module, given: Args, target: Tensor, count: int) -> list[Tensor]:
    """The micro-batches one after the other: losses; gradients in the model."""
    losses = []
    for chunk, t in _chunks(given, target, count):
        loss = _loss(model(*chunk.args, **chunk.kwargs), t)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= count
    return losses


def _compare(stages: Any, whole: nn.Module) -> None:
    params, buffers = dict(whole.named_parameters(remove_duplicate=False)), dict(whole.named_buffers())
    for s in stages:
        for name, p in s.submod.named_parameters():
            q = params[name]
            assert (p.grad is None) == (q.grad is None), f"stage {s.stage_index}: gradient of {name}"
            if p.grad is not None and q.grad is not None:
                assert torch.equal(p.grad, q.grad), (
                    f"stage {s.stage_index}: gradient of {name} differs by {(p.grad - q.grad).abs().max():g}"
                )
            assert torch.equal(p, q), f"stage {s.stage_index}: {name}"
        for name, b in s.submod.named_buffers():
            assert name not in buffers or torch.equal(b, buffers[name]), f"stage {s.stage_index}: {name}"


def train(name: str) -> None:
    """Two steps, equal in every bit."""
    ranks = dist.get_world_size()
    method, count = METHODS[ranks]
    torch.manual_seed(0)
    model, given = MODELS[name](ROWS * count)
    model.train()
    whole = copy.deepcopy(model)
    example = next(_chunks(given, torch.zeros(count), count))[0]
    partitioned = cleave.pipe_model(
        model,
        example_inputs=example.args,
        example_kwargs=example.kwargs,
        nparts=ranks,
        partitioning_method=method,
        profile="estimate",
    )
    run = partitioned.schedule(microbatches=count, loss_fn=_loss)
    mine = torch.optim.SGD({p: None for s in run.stages for p in s.submod.parameters()}, lr=0.01)
    other = torch.optim.SGD(whole.parameters(), lr=0.01)
    for step in range(2):
        target = torch.rand(ROWS * count, generator=torch.Generator().manual_seed(step))
        mine.zero_grad()
        got = run.step(*given.args, target=target, **given.kwargs)
        other.zero_grad()
        want = _alone(whole, given, target, count)
        assert got is None or all(torch.equal(a, b) for a, b in zip(got, want, strict=True)), f"losses: {got}, {want}"
        mine.step()
        other.step()
        _compare(run.stages, whole)
    run.close()


def main(sets: list[str]) -> None:
    for text in sets:
        size, names = text.split(":")
        for name in names.split(","):
            MODELS[name](1)  # libraries are imported once for all ranks
        pipeline_worker.run_set(int(size), names.split(","), 500, train)


if __name__ == "__main__":
    main(sys.argv[1:])
