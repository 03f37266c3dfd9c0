"""Files that pipe_model writes: in a fresh process that has torch alone they do what the model does, bit for bit."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from odd_blocks import Odd, Packed
from test_stages_source import Block, UNet, formatted, load
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import cleave
from cleave import _block_calls, _tree

# Runs in a process of its own: the file, its blocks, what goes in, what must come out.
CHECK = """
import importlib.util, sys
import torch

sys.path.insert(0, sys.argv[3])
case = torch.load(sys.argv[2], weights_only=False)
spec = importlib.util.spec_from_file_location("generated", sys.argv[1])
file = importlib.util.module_from_spec(spec)
spec.loader.exec_module(file)
assert "cleave" not in sys.modules
torch.backends.cudnn.deterministic = True


def same(a, b, what):
    a, b = a.detach(), b.detach()
    assert a.shape == b.shape and a.dtype == b.dtype and a.device == b.device, what
    assert torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)), what


def flat(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [t for part in parts for t in flat(part)]


config = file.create_pipeline_configuration()
pipeline = file.Pipeline(blocks=case["blocks"]) if case["blocks"] else file.Pipeline()
stages = pipeline.stages
file.load_model_state(stages, case["state"])
names = {name for stage in stages for name in stage.state_dict()}
assert names == set(case["names"]), names ^ set(case["names"])
for stage in stages:
    stage.load_state_dict({name: case["state"][name] for name in stage.state_dict()})
for inputs, wanted, grads in case["runs"]:
    torch.manual_seed(7)
    pipeline.zero_grad()
    got = flat(pipeline(*[t.clone() for t in inputs]))
    assert len(got) == len(wanted)
    for i, (a, b) in enumerate(zip(got, wanted)):
        same(a, b, f"output {i}")
    roots = [t for t in got if t.requires_grad]
    sum((t * torch.linspace(0.5, 1.5, t.numel(), device=t.device).view(t.shape)).sum() for t in roots).backward()
    params = [dict(stage.named_parameters(remove_duplicate=False)) for stage in stages]
    for name, g in grads.items():
        shared = config["shared"].get(name, {})
        mine = [p[shared.get(i, name)] for i, p in enumerate(params) if shared.get(i, name) in p]
        mine = list({id(p): p for p in mine}.values())  # one parameter where stages share a device
        got = [p.grad for p in mine if p.grad is not None]
        if len(got) > 1 or not case["exact"]:
            torch.testing.assert_close(sum(got[1:], got[0]), g)
        else:
            same(got[0], g, f"gradient of {name}")
own = {name: t for stage in stages for name, t in stage.state_dict(keep_vars=True).items()}
for name, data in case["after"].items():
    if name in own:
        same(own[name], data, f"{name} after the runs")
print("equal", len(case["runs"]))
"""


def leaves(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    return [t.detach().clone() for t in _tree.flatten((tuple(args), kwargs))[1]]


def answers(
    model: nn.Module, calls: Sequence[tuple[Sequence[Any], dict[str, Any]]]
) -> list[tuple[list[Tensor], list[Tensor], dict[str, Tensor]]]:
    """What goes in and out of the model, call by call, and the gradients."""
    runs = []
    for args, kwargs in calls:
        given = leaves(args, kwargs)
        torch.manual_seed(7)
        model.zero_grad()
        out = _tree.flatten(model(*args, **kwargs))[1]
        weights = (torch.linspace(0.5, 1.5, t.numel(), device=t.device).view(t.shape) for t in out)
        terms = [(t * w).sum() for t, w in zip(out, weights, strict=True) if t.requires_grad]
        torch.stack(terms).sum().backward() if len(terms) == 1 else sum(terms[1:], terms[0]).backward()
        grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        runs.append((given, [t.detach().clone() for t in out], grads))
    return runs


def check(
    tmp_path: Path,
    model: nn.Module,
    *args: Any,
    kwargs: dict[str, Any] | None = None,
    other: Sequence[Sequence[Any]] = (),
    given: Sequence[str] = (),
    unread: Sequence[str] = (),
    exact: bool = True,
    **options: Any,
) -> tuple[str, cleave.PartitionedPlan]:
    """The file that pipe_model writes against the model, on these inputs and on others; gives its text. given: paths of
    modules that are run as a whole; unread: names that no stage has; exact: gradients too are compared bit for bit."""
    file = tmp_path / "generated.py"
    options = {"nparts": 3, "partitioning_method": "acyclic", "profile": "estimate", **options}
    partitioned = cleave.compat.pipe_model(model, model_args=args, model_kwargs=kwargs, output_file=file, **options)
    formatted(file)
    captured = partitioned._first.main.captured
    state = {name: t.detach().clone() for name, t in model.state_dict().items()}
    for place, name, data in captured.plan.places(0, 0)[0] if given else places(captured):
        if name is not None and name not in state:
            holder, key = captured.state[name]
            state[name] = holder[key].detach().clone()
        elif data is not None:
            state[place] = data.detach().clone()
    blocks = {path: copy.deepcopy(model.get_submodule(path)) for path in given}
    mine = copy.deepcopy(model)
    runs = answers(mine, [(args, kwargs or {}), *((a, {}) for a in other)])
    case = {
        "state": state,
        "names": [name for name in model.state_dict() if name not in unread],
        "blocks": blocks,
        "runs": runs,
        "exact": exact,
        "after": {name: t.detach().clone() for name, t in mine.state_dict().items()},
    }
    torch.save(case, tmp_path / "case.pt")
    run_alone(tmp_path, file, len(runs))
    return file.read_text(), partitioned


def places(captured: Any) -> list[tuple[str, str | None, Tensor | None]]:
    found: list[tuple[str, str | None, Tensor | None]] = captured.plan.places(0, captured.plan.node_count())[0]
    return found


def run_alone(tmp_path: Path, file: Path, count: int) -> None:
    script = tmp_path / "check.py"
    script.write_text(CHECK)
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-I", script, file, tmp_path / "case.pt", here],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, file.read_text() + done.stdout + done.stderr
    assert f"equal {count}" in done.stdout


# ---- models that are captured operator by operator ----


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layers = nn.Conv2d(3, 4, 3, bias=False), nn.Sequential(Block(4, 8), Block(8, 8))
        self.drop, self.fc = nn.Dropout(0.3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.layers(F.relu(self.stem(x))).mean((2, 3))))


@pytest.mark.integration
@pytest.mark.parametrize("method", ["acyclic", "mpipe", "auto"])
def test_a_convolutional_network_that_trains(tmp_path: Path, method: str) -> None:
    others = [[torch.randn(n, 3, 16, 16)] for n in (2, 7)]
    text, partitioned = check(
        tmp_path, Cnn(), torch.randn(4, 3, 16, 16), other=others, partitioning_method=method, nparts=2
    )
    assert "self.layers[0].bn2 = nn.BatchNorm2d(8, eps=0.001, momentum=0.2)" in text
    assert f"pipeline of {partitioned.nstages} stage" in text
    assert text == partitioned.source()


class Encoder(nn.Module):
    """As transformers go: embeddings that are the output's too, a mask, buffers that are not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.pos = nn.Embedding(13, 8), nn.Embedding(16, 8)
        self.register_buffer("ids", torch.arange(16)[None], persistent=False)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=n > 0) for n in range(2)
        )
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 13, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, tokens: Tensor, *, mask: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        x = self.emb(tokens) + self.pos(self.ids[:, : tokens.shape[1]])
        bias = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, float("-inf"))
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=bias)
        logits = self.head(self.norm(x))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits, "extra": (x, [mask])}


@pytest.mark.integration
def test_a_transformer_with_masks_and_tied_weights(tmp_path: Path) -> None:
    tokens, mask = torch.randint(0, 13, (2, 6)), torch.rand(2, 6) > 0.3
    mask[:, 0] = True
    text, _ = check(
        tmp_path, Encoder(), tokens, kwargs={"mask": mask, "labels": torch.randint(0, 13, (2, 6))}, nparts=4
    )
    assert "def forward(self, tokens, mask, labels):" in text
    assert '"emb.weight": {' in text


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.fc = nn.Embedding(9, 4), nn.Linear(10, 3)
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)

    def forward(self, ids: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y, (h, c) = self.lstm(self.emb(ids))
        return self.fc(y), {"h": h, "c": c}


@pytest.mark.integration
def test_a_recurrent_network(tmp_path: Path) -> None:
    text, _ = check(tmp_path, Tagger(), torch.randint(0, 9, (3, 6)), other=[[torch.randint(0, 9, (5, 6))]], nparts=2)
    assert "self.lstm = nn.LSTM(" in text


@pytest.mark.integration
def test_a_network_with_skips_and_explicit_del(tmp_path: Path) -> None:
    text, partitioned = check(
        tmp_path, UNet(), torch.randn(2, 2, 8, 8), other=[[torch.randn(5, 2, 8, 8)]], generate_explicit_del=True
    )
    assert "        del " in text
    assert "        del " not in partitioned.source()
    assert '"relayed": ["' in text


@pytest.mark.integration
def test_a_batch_in_the_second_dimension_and_none_at_all(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.GRU(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x)[0])

    text, _ = check(tmp_path, Net(), torch.randn(3, 2, 4), other=[[torch.randn(3, 5, 4)]], batch_dim=1, nparts=2)
    assert '"batch_dim": 1' in text
    assert '"shape": (3, batch_size, 4)' in text
    text, _ = check(tmp_path, Net(), torch.randn(3, 2, 4), batch_dim=None, nparts=2)
    assert "def create_pipeline_configuration(batch_size=None):" in text


# ---- what the file says about its stages ----

VALUE = {"shape", "dtype", "is_batched"}


def test_the_configuration_has_what_is_documented(tmp_path: Path) -> None:
    file = tmp_path / "unet"
    x = torch.randn(2, 2, 8, 8)
    partitioned = cleave.compat.pipe_model(
        UNet(),
        model_args=x,
        nparts=3,
        partitioning_method="acyclic",
        profile="estimate",
        devices=["cuda:0", "cpu", cleave.pipe.Device("the big one")],
        basic_blocks=["GroupNorm"],
        depth=3,
        output_file=file,
    )
    config = load(tmp_path, file.with_suffix(".py").read_text()).create_pipeline_configuration(batch_size=5)
    assert set(config) == {
        "batch_dim", "depth", "basic_blocks", "model_inputs", "model_outputs", "shared", "stages"
    }  # fmt: skip
    assert (config["batch_dim"], config["depth"], config["basic_blocks"]) == (0, 3, ["GroupNorm"])
    assert set(config["model_inputs"]["x"]) == VALUE | {"used_by"}
    (out,) = config["model_outputs"].values()
    assert set(out) == VALUE | {"created_by"}
    assert out["shape"] == (5, 1, 8, 8)
    stages = config["stages"]
    assert [s["devices"] for s in stages.values()] == [["cuda:0"], ["cpu"], ["cpu"]]
    made = {name: (-1, v) for name, v in config["model_inputs"].items()}
    for i, stage in stages.items():
        assert set(stage) == {"stage_cls", "inputs", "outputs", "relayed", "devices", "stage_depth"}
        specs = partitioned._first.main.inputs_of(i)
        for (name, value), want in zip(stage["inputs"].items(), specs, strict=True):
            assert set(value) == VALUE | {"req_grad", "created_by"}
            assert value["created_by"] == made[name][0]
            assert value["dtype"] == want.dtype
            assert value["req_grad"] == want.requires_grad
            assert value["is_batched"] == want.is_batched
            assert value["shape"] == tuple(5 if n == "B" else n for n in want.shape)
        for name, value in stage["outputs"].items():
            assert set(value) == VALUE | {"req_grad", "used_by"}
            made.setdefault(name, (i, value))
            after = [k for k in range(i + 1, 3) if name in stages[k]["inputs"] and name not in stages[k]["relayed"]]
            assert value["used_by"] == (after or [-1])
        assert stage["stage_depth"] == 2 - i


def test_the_text_is_the_same_every_time() -> None:
    torch.manual_seed(0)
    model, x = Cnn(), torch.randn(4, 3, 16, 16)
    texts = {
        cleave.pipe_model(model, example_inputs=x, nparts=2, partitioning_method="mpipe", profile="estimate").source()
        for _ in range(2)
    }
    assert len(texts) == 1


# ---- modules that are run as they are ----


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.rnn, self.fc = nn.Embedding(9, 4), nn.ModuleList([Packed()]), nn.Linear(5, 3)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        keep = (ids > 2)[..., None]
        options = {"name": 'a "b" {0}', "parts": (None, [1, -2.5], True)}
        y, (h, _), n = self.rnn[0](
            self.emb(ids), lengths, factor=2.0, options=options, mask={"keep": [keep], "none": None}
        )
        return self.fc(y) + h.sum() * n


@pytest.mark.integration
@pytest.mark.parametrize("train", [True, False])
def test_a_module_with_packed_sequences(tmp_path: Path, train: bool) -> None:
    others = [[torch.randint(0, 9, (4, 6)), torch.tensor([1, 5, 6, 2])]]
    text, _ = check(
        tmp_path,
        Reader().train(train),
        torch.randint(0, 9, (3, 6)),
        torch.tensor([2, 6, 3]),
        other=others,
        basic_blocks=[Packed],
        given=["rnn.0"],
        nparts=2,
        generate_explicit_del=True,
    )
    assert 'self.rnn.add_module("0", given_block(blocks, "rnn.0"))' in text
    assert "rnn_0_out0, (rnn_0_out1, _), _ = self.rnn[0](" in text
    assert "blocks=blocks" in text


class Odds(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.emb = nn.Embedding(7, 4)
        self.odd = Odd(how, self.emb.weight)
        self.fc = nn.Linear(4, 7, bias=False)
        self.fc.weight = self.emb.weight

    def forward(self, ids: Tensor) -> Tensor:
        tensors = _tree.flatten(self.odd(self.emb(ids)))[1]
        return self.fc(sum(tensors, torch.zeros_like(tensors[0])) * self.odd.parts[0].weight[0])


@pytest.mark.integration
@pytest.mark.parametrize("how", ["one", "named", "nested", "dataclass", "dict"])
@pytest.mark.parametrize("nparts", [1, 3])
def test_results_of_any_structure_and_tensors_that_others_use(tmp_path: Path, how: str, nparts: int) -> None:
    text, _ = check(
        tmp_path, Odds(how), torch.randint(0, 7, (3, 2)), basic_blocks=["Odd"], given=["odd"], nparts=nparts
    )
    assert ("tensors_of(" in text) == (how in ("dataclass", "dict"))
    if nparts == 1:
        assert 'self.emb.weight = self.odd.get_parameter("table")' in text
        assert 'self.odd.get_parameter("parts.0.weight")' in text


def test_a_block_must_be_given(tmp_path: Path) -> None:
    model = Reader()
    partitioned = cleave.pipe_model(
        model,
        example_inputs=(torch.randint(0, 9, (3, 6)), torch.tensor([2, 6, 3])),
        basic_blocks=[Packed],
        nparts=1,
        profile="estimate",
    )
    file = load(tmp_path, partitioned.source())
    for blocks in (None, {"rnn": model.rnn[0]}):
        with pytest.raises(ValueError, match=r"the stage needs the model's rnn\.0: blocks={'rnn\.0': module}"):
            file.Pipeline(blocks=blocks)


def test_texts_of_arguments() -> None:
    packed = PackedSequence(torch.ones(1), torch.ones(1), None, None)
    args = (
        torch.ones(1), -1, 2.5e-9, float("inf"), 1j, True, None, b"a'b", "it's \"so\"", (), (1,), torch.Size([2]),
        packed, {"k{": [torch.ones(1)], 3: {}}, slice(1, None), ..., torch.float16,
    )  # fmt: skip
    spec, tensors, _ = _tree.flatten((args, {"key": (torch.ones(1), "a")}))
    result = _tree.flatten(torch.ones(1))[0]
    call = cleave._watch.PythonCall(print, "m.C", spec, len(tensors), result)
    (found,) = _block_calls.call_texts([call])
    assert isinstance(found, tuple)
    count, text, targets = found
    assert (count, targets) == (5, "{0}")
    got = eval(f"(lambda *args, **kwargs: (args, kwargs))({text.format(*(f't[{i}]' for i in range(5)))})", {
        "torch": torch, "t": tensors
    })  # fmt: skip
    assert _tree.difference(_tree.flatten(got)[0], spec) is None


# ---- what cannot be written ----


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(Double.apply(self.a(x)))


def test_what_cannot_be_written_names_node_and_reason(tmp_path: Path) -> None:
    partitioned = cleave.pipe_model(Custom(), example_inputs=torch.randn(2, 4), nparts=2, profile="estimate")
    file = tmp_path / "custom.py"
    with pytest.raises(cleave.CleaveError, match=r"node python .*cleave::python.* at .*test_pipe_source.*Python code"):
        partitioned.write_source(file)
    assert not list(tmp_path.iterdir())


class Strange:
    def __init__(self, x: Tensor) -> None:
        self.x = x


def test_an_argument_without_text_is_refused_with_its_class() -> None:
    class Takes(nn.Module):
        def forward(self, s: Strange) -> Tensor:
            return s.x * (2 if s.x.sum().item() > 1e9 else 3)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.takes = nn.Linear(4, 4), Takes()

        def forward(self, x: Tensor) -> Tensor:
            return self.takes(Strange(self.a(x)))

    partitioned = cleave.pipe_model(
        Net(), example_inputs=torch.randn(2, 4), nparts=1, profile="estimate", basic_blocks=[Takes]
    )
    with pytest.raises(cleave.CleaveError, match=r"Takes is called with a Strange, which has no source text"):
        partitioned.source()


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    partitioned = cleave.pipe_model(nn.Linear(2, 2), torch.randn(1, 2), nparts=1, profile="estimate")
    with pytest.raises(OSError, match="missing"):
        partitioned.write_source(tmp_path / "missing" / "x.py")
    assert not list(tmp_path.iterdir())


# ---- GPU ----


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_file_for_a_model_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention and recurrent kernels add gradients up in any order there."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    tokens, mask = torch.randint(0, 13, (2, 6), device="cuda"), torch.ones(2, 6, dtype=torch.bool, device="cuda")
    text, _ = check(
        tmp_path, Encoder().cuda(), tokens, kwargs={"mask": mask, "labels": tokens.clone()}, nparts=2, exact=False
    )
    assert 'device="cuda:0"' in text
    check(tmp_path, Cnn().cuda(), torch.randn(4, 3, 16, 16, device="cuda"), nparts=2)
    check(
        tmp_path,
        Reader().cuda(),
        torch.randint(0, 9, (3, 6), device="cuda"),
        torch.tensor([2, 6, 3]),
        basic_blocks=[Packed],
        given=["rnn.0"],
        nparts=2,
        exact=False,
    )
