"""Scripts written for other libraries, from their documentation, with another import and nothing else changed."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from trace_backends import Exact, compiled_ops, tape_ops

import cleave
from cleave import compat as ariadne
from cleave import compat as torch_neuron


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Linear(5, 16)
        self.layer2 = nn.Sequential(nn.LayerNorm(16), nn.ReLU())
        self.layer3 = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(torch.relu(self.layer3(self.layer2(self.layer1(x)))))


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def spec(**more: Any) -> ariadne.SplitSpec:
    given: dict[str, Any] = {"boundary": "after:layer3", "dynamic_batch": (2, 64), "trace_batch_mode": "batch_gt1"}
    return ariadne.SplitSpec(**{**given, **more})


# ---- Ariadne: its README


def test_basic_split_inference() -> None:
    from cleave.compat import SplitSpec, prepare_split

    model = net()
    spec = SplitSpec(
        boundary="after:layer3",
        batch_symbol="B",
        dynamic_batch=(2, 64),
        trainable=True,
        trace_batch_mode="batch_gt1",
    )
    runtime = prepare_split(model, example_inputs=(torch.randn(4, 5),), split=spec, mode="generated_eager")
    x = torch.randn(8, 5)
    boundary = runtime.run_prefix(x)
    output = runtime.run_suffix(boundary)
    assert torch.equal(output, model(x))
    assert isinstance(runtime, ariadne.SplitRuntime)
    assert isinstance(boundary, ariadne.BoundaryPayload)
    assert (boundary.split_id, boundary.graph_signature) == (runtime.split_id, runtime.graph_signature)
    assert boundary.batch_size == 8
    assert runtime.split_spec is spec


@pytest.mark.parametrize("split", ["auto", "percent:50", "50%", "at:50%", "after:layer2"])
def test_a_boundary_can_be_given_as_text(split: str) -> None:
    model, x = net(), torch.randn(1, 5)
    runtime = ariadne.prepare_split(model, example_inputs=[x], split=split)
    assert torch.equal(runtime.run_suffix(runtime.run_prefix(x)), model(x))


def test_basic_split_training() -> None:
    model = net().train()
    whole = copy.deepcopy(model)
    runtime = ariadne.prepare_split(model, example_inputs=(torch.randn(4, 5),), split=spec(trainable=True))
    suffix_optimizer = torch.optim.SGD(runtime.suffix_segment.parameters(), lr=0.1)
    prefix_optimizer = torch.optim.SGD(runtime.prefix_segment.parameters(), lr=0.1)
    x_batch, targets = torch.randn(6, 5), torch.randn(6, 3)
    boundary = runtime.run_training_prefix(x_batch)
    assert boundary.supports_prefix_backward
    assert boundary.prefix_backward_owner_id == runtime.prefix_backward_owner_id
    loss, boundary_grads = runtime.train_suffix(boundary, targets, loss_fn=F.mse_loss, optimizer=suffix_optimizer)
    runtime.backward_prefix(boundary, boundary_grads=boundary_grads, optimizer=prefix_optimizer)
    want = F.mse_loss(whole(x_batch), targets)
    want.backward()
    torch.optim.SGD(whole.parameters(), lr=0.1).step()
    assert torch.equal(loss, want.detach())
    for p, q in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(p, q)
    with pytest.raises(TypeError):
        runtime.backward_prefix(x_batch, boundary_grads=boundary_grads)


def test_visualization(tmp_path: Path) -> None:
    from cleave.compat import export_split_candidates_table, export_split_dot, export_trace_dot

    runtime = ariadne.prepare_split(net(), example_inputs=(torch.randn(4, 5),), split=spec())
    trace_dot = runtime.visualize(view="trace", return_dot=True)
    split_dot = runtime.visualize(view="split", return_dot=True, max_module_depth=2)
    assert str(trace_dot).startswith("digraph")
    assert "boundary_bytes" in str(split_dot)
    assert "rankdir=BT" in export_trace_dot(runtime.trace_plan)
    assert "boundary_bytes" in export_split_dot(runtime.trace_plan, runtime.candidate)
    table = export_split_candidates_table(runtime.trace_plan)
    assert runtime.candidate.split_id in [row["split_id"] for row in table]
    ariadne.render_trace_graph(runtime.trace_plan, outpath=tmp_path / "trace", fileformat="dot", save_only=True)
    ariadne.render_split_graph(runtime.trace_plan, runtime.candidate, outpath=tmp_path / "split", fileformat="dot")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["split.dot", "trace.dot"]
    detail = {"show_operation_targets": True, "show_debug_markers": True, "show_node_indices": True}
    assert "aten::linear" in str(runtime.visualize(view="trace", view_detail="operation", return_dot=True, **detail))


def test_validate_dynamic_batches_gives_the_outputs() -> None:
    from cleave.compat import validate_dynamic_batches

    model, x = net(), torch.randn(2, 5)
    runtime = ariadne.prepare_split(model, example_inputs=(x,), split="auto")
    outputs = validate_dynamic_batches(runtime, example_inputs=(x,), batch_sizes=(1, 4, 20))
    assert [tuple(o.shape) for o in outputs] == [(1, 3), (4, 3), (20, 3)]
    with pytest.raises(AssertionError, match="65"):
        validate_dynamic_batches(runtime, (x,), (65,))


@pytest.mark.parametrize("mode", ["debug_interpreter", "generated_eager"])
def test_replay(mode: str) -> None:
    from cleave.compat import prepare_split_replay

    model, x = net(), torch.randn(4, 5)
    options = {"backend": "inductor", "mode": "reduce-overhead", "dynamic": True}  # of another mode: not used
    replay_runtime = prepare_split_replay(
        model, example_inputs=(x,), split=spec(), mode=mode, compile_options=options, objective=None
    )
    assert replay_runtime.warmup(x) is None
    boundary = replay_runtime.run_prefix(x)
    assert isinstance(boundary, ariadne.ReplayBoundary)
    assert len(boundary.values) == len(replay_runtime.boundary_order) == len(boundary.tensors) == 1
    assert boundary.values[0] is boundary.tensors[replay_runtime.boundary_order[0]]
    assert boundary.passthrough_values == replay_runtime.passthrough_order == ()
    assert (boundary.batch_size, boundary.split_id) == (4, replay_runtime.split_id)
    assert boundary.graph_signature == replay_runtime.graph_signature
    assert torch.equal(replay_runtime.run_suffix(boundary), model(x))
    assert torch.equal(replay_runtime.replay(x), model(x))
    strict = replay_runtime.with_validation("strict")
    assert (strict.validation, replay_runtime.validation) == ("strict", "fast")
    strict.validate_boundary(boundary)
    other = prepare_split_replay(model, example_inputs=(x,), split=spec(), mode=mode)
    with pytest.raises(ValueError, match="another SplitReplayRuntime"):
        other.run_suffix(boundary)
    assert not hasattr(replay_runtime, "train_suffix")


def test_inputs_that_only_the_suffix_reads_are_apart_from_the_others() -> None:
    class Late(nn.Module):
        def forward(self, x: torch.Tensor, late: torch.Tensor) -> torch.Tensor:
            return torch.relu(x * 2) + late

    x, late = torch.randn(4, 5), torch.randn(4, 5)
    runtime = ariadne.prepare_split_replay(
        Late(), example_inputs=(x, late), split=ariadne.SplitSpec("after:relu"), mode="generated_eager"
    )
    boundary = runtime.run_prefix(x, late)
    assert (len(runtime.boundary_order), len(runtime.passthrough_order)) == (1, 1)
    assert torch.equal(boundary.values[0], torch.relu(x * 2))
    assert boundary.passthrough_values[0] is boundary.tensors[runtime.passthrough_order[0]]
    assert torch.equal(boundary.passthrough_values[0], late)


# ---- Ariadne: the rest of its surface


def test_a_runtime_has_its_plan_candidate_and_segments() -> None:
    model, x = net(), torch.randn(4, 5)
    runtime = ariadne.prepare_split(model, example_inputs=(x,), split=spec())
    plan, candidate = runtime.trace_plan, runtime.candidate
    assert plan.root_module is model
    assert plan.graph_signature == runtime.graph_signature
    assert plan.get_node(candidate.boundary_after).module_path == "layer3"
    assert plan.nodes[plan.index_of("relu")].parents == ("layer_norm",)
    assert plan.node_names == (*candidate.prefix_nodes, *candidate.suffix_nodes)
    assert candidate.prefix_nodes[-1] == candidate.boundary_after == "linear_1"
    assert candidate.split_id == runtime.split_id
    assert candidate.boundary_nodes == tuple(candidate.boundary_schema)
    assert candidate.boundary_schema[candidate.boundary_nodes[0]].shape == ("B", 16)
    assert (candidate.cost.boundary_bytes, candidate.cost.prefix_node_count) == (4 * 16 * 4, 4)
    assert (candidate.trainable_suffix, candidate.rejection_reason) == (True, None)
    with pytest.raises(KeyError, match="nothing"):
        plan.get_node("nothing")
    boundary = runtime.prefix_segment(x)
    assert torch.equal(runtime.suffix_segment(*boundary, batch_size=4), model(x))
    assert torch.equal(runtime.segments.suffix(*runtime.segments.prefix(x), batch_size=4), model(x))
    assert runtime.training_prefix_segment(x)[0].requires_grad
    assert set(runtime.suffix_segment.state_dict()) == {"head.weight", "head.bias"}
    assert runtime.variants == ()


def test_an_example_of_one_row_has_a_variant_for_more() -> None:
    model = net()
    for prepare in (ariadne.prepare_split, ariadne.prepare_split_replay):
        how: dict[str, Any] = {"mode": "generated_eager", "split": ariadne.SplitSpec(boundary="after:layer2")}
        runtime = prepare(model, example_inputs=(torch.randn(1, 5),), **how)
        (variant,) = runtime.variants
        assert (runtime.batch_range, variant.batch_range, variant.variants) == (None, (2, 64), ())
        x = torch.randn(7, 5)
        assert torch.equal(variant.run_suffix(variant.run_prefix(x)), model(x))
        assert torch.equal(runtime.run_suffix(variant.run_prefix(x)), model(x))


def test_plans_can_be_traced_and_searched_without_a_runtime() -> None:
    model, x = net(), torch.randn(4, 5)
    plan = ariadne.trace_model(model, example_inputs=(x,), dynamic_batch=(2, 64), trace_batch_mode="batch_gt1")
    every = ariadne.enumerate_frontier_splits(plan)
    assert [c.boundary_after for c in every] == list(plan.node_names)[: len(every)]
    assert len({c.split_id for c in every}) == len(every)
    wanted = ariadne.select_split(plan, split=spec())
    runtime = ariadne.prepare_split(model, example_inputs=(x,), split=spec())
    assert wanted.boundary_after == runtime.candidate.boundary_after
    goal = {"minimize": "boundary_bytes", "constraints": {"trainable_suffix": True}}
    auto = ariadne.select_split(plan, split="auto", objective=goal)
    same = ariadne.prepare_split(model, example_inputs=(x,), split=spec(boundary="auto"), objective=goal)
    assert auto.boundary_after == same.candidate.boundary_after


def test_checks_take_their_arguments_in_the_order_that_is_known() -> None:
    model = net().train()
    runtime = ariadne.prepare_split(model, example_inputs=(torch.randn(4, 5),), split=spec(trainable=True))
    x, y, twin = torch.randn(6, 5), torch.randn(6, 3), copy.deepcopy(model)
    ariadne.assert_forward_equivalent(model, runtime, (x,), rtol=1e-5, atol=1e-6)
    ariadne.assert_dynamic_batch_reuse(model, runtime, input_shape=(4, 5), batches=(2, 3, 9))
    ariadne.assert_gradient_equivalent(twin, runtime, (x,), (x.clone(),), y, loss_fn=F.mse_loss)
    with pytest.raises(AssertionError):
        ariadne.assert_gradient_equivalent(twin, runtime, (x,), (x + 1,), y, loss_fn=F.mse_loss)
    with torch.no_grad():
        twin.head.weight.add_(1)
    with pytest.raises(AssertionError):
        ariadne.assert_forward_equivalent(twin, runtime, (x,))


def test_benchmarks() -> None:
    model, x = net(), torch.randn(4, 5)
    few: dict[str, Any] = {"iterations": 2, "warmup": 1}
    runtime = ariadne.prepare_split(model, example_inputs=(x,), split=spec())
    results = ariadne.benchmark_runtime(model, runtime, (x,), targets=torch.randn(4, 3), loss_fn=F.mse_loss, **few)
    assert [r.name for r in results][:2] == ["direct_pytorch_forward", "generated_eager_prefix_suffix"]
    assert all(r.split_id == runtime.split_id and r.batch_size == 4 for r in results)
    modes = ariadne.benchmark_split_modes(
        model, example_inputs=(x,), inputs=(x,), split=spec(), modes=("debug_interpreter", "generated_eager"), **few
    )
    assert {r.execution_mode for r in modes} == {"debug_interpreter", "generated_eager"}
    assert isinstance(modes[0], ariadne.BenchmarkResult)


class Tag:
    def __init__(self, text: str) -> None:
        self.text = text


def test_a_registered_class_crosses_in_a_payload() -> None:
    with pytest.raises(cleave.PayloadError, match="Tag"):
        cleave.pack({"tag": Tag("a")})
    ariadne.register_boundary_serializer(Tag, lambda tag: {"text": tag.text}, lambda d: Tag(d["text"]), schema=None)
    got = cleave.unpack(cleave.pack({"tags": [Tag("a"), (Tag("b"), 3)], 1: torch.ones(2)}))
    assert got["tags"][0].text == "a"
    assert got["tags"][1][0].text == "b"
    assert torch.equal(got[1], torch.ones(2))
    data = cleave.pack(Tag("c"))
    cleave.payload._serializers.pop(Tag)
    with pytest.raises(cleave.PayloadError, match="Tag: register_serializer"):
        cleave.unpack(data)


ARIADNE: dict[str, dict[str, Any]] = {  # keyword arguments of ariadne-split 0.1.2 and their defaults
    "prepare_split": {"mode": "generated_eager", "objective": None, "compile_options": None},
    "prepare_split_replay": {
        "mode": "compiled",
        "objective": None,
        "compile_options": None,
        "validation": "fast",
        "materialize_boundary": True,
    },
    "benchmark_runtime": {"targets": None, "loss_fn": None, "iterations": 20, "warmup": 5},
    "benchmark_split_modes": {"targets": None, "loss_fn": None, "iterations": 20, "warmup": 5, "compile_options": None},
    "benchmark_replay_optimization": {"objective": None, "materialize_boundary": True, "iterations": 20, "warmup": 5},
    "benchmark_split_retain_optimization": {"targets": None, "loss_fn": None, "objective": None, "iterations": 20},
    "assert_forward_equivalent": {"rtol": 1e-5, "atol": 1e-6},
    "assert_gradient_equivalent": {"rtol": 1e-5, "atol": 1e-6},
    "trace_model": {"batch_symbol": "B", "dynamic_batch": None, "trace_batch_mode": "batch_1"},
    "SplitSpec": {"batch_symbol": "B", "dynamic_batch": (1, 64), "trainable": False},
}


@pytest.mark.parametrize("name", ARIADNE)
def test_arguments_have_the_names_and_defaults_that_are_known(name: str) -> None:
    has = inspect.signature(getattr(ariadne, name)).parameters
    assert {key: has[key].default for key in ARIADNE[name]} == ARIADNE[name]


# ---- torch_neuron: its reference


def traced(model: Any, inputs: Any, **more: Any) -> cleave.TracedModule:
    back_end = Exact(supports=lambda node: node.op != "aten::sort" or "no sort in this chip")
    return torch_neuron.trace(model, inputs, backend=back_end.name, cache=False, keep_slower=True, **more)


def test_functions_methods_and_modules_are_traced() -> None:
    def foo(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2 * x + y

    x, y = torch.rand(3), torch.rand(3)
    assert torch.equal(traced(foo, (x, y))(x, y), foo(x, y))
    n, inputs = nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU()).eval(), torch.rand(1, 1, 3, 3)
    for what in (n.forward, n):
        assert torch.equal(traced(what, inputs)(inputs), n(inputs))


def test_dynamic_batching() -> None:
    model, image = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), torch.rand(1, 3, 8, 8)
    model_neuron = traced(model, image, dynamic_batch_size=True)
    batch = torch.rand(7, 3, 8, 8)
    assert torch.equal(model_neuron(batch), model(batch))


class ExampleConvolutionLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.conv(x) + 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = ExampleConvolutionLayer()

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) * 100


def test_manual_partitioning() -> None:
    def subgraph_builder_function(node: Any) -> bool:
        return "ExampleConvolutionLayer" in node.name

    model, inputs = Model().eval(), torch.rand(1, 1, 3, 3)
    neuron_model = traced(model, inputs, subgraph_builder_function=subgraph_builder_function)
    assert compiled_ops(neuron_model) == [["conv2d", "add"]]
    assert list(tape_ops(neuron_model)) == ["mul"]


def test_the_other_arguments(tmp_path: Path) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2 + 1)

    x = torch.randn(3, 4)
    traced(model, x, compiler_args=None, compiler_workdir=tmp_path, minimum_segment_size=1, fallback=False)
    assert list(tmp_path.iterdir())
    with pytest.raises(AttributeError, match="aten::sort"):
        traced(lambda x: x.sort().values, x, fallback=False)
    with pytest.raises(TypeError, match="torch_executed_ops is a list of texts"):
        traced(model, x, torch_executed_ops="aten::relu")
    with pytest.raises(TypeError, match="an item of torch_executed_modules"):
        traced(model, x, torch_executed_modules=[5])


# ---- FTPipe


def test_autopipe_is_called_with_its_own_arguments(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    x = torch.randn(4, 8)
    out = tmp_path / "stages"
    with pytest.warns(cleave.CleaveWarning, match="trace_on_gpu of autopipe"):
        graph = ariadne.pipe_model(
            model,
            0,
            model_args=(x,),
            model_kwargs={},
            n_iter=2,
            nparts=2,
            depth=1000,
            basic_blocks=(),
            use_layers_only_graph=True,
            output_file=out,
            generate_explicit_del=True,
            generate_activation_propagation=True,
            recomputation=False,
            partitioning_method="ACYCLIC",
            METIS_opt={},
            trace_on_gpu=True,
            use_graph_profiler=True,
            profile_ops=True,
            async_pipe=False,
        )
    assert torch.equal(graph(x), model(x))
    assert graph.nstages == 2
    assert "create_pipeline_configuration" in (tmp_path / "stages.py").read_text()
    assert (tmp_path / "stages.profile.json").exists()


@pytest.mark.parametrize("method", ["METIS", "mpipe", "pipedream"])
def test_methods_have_the_names_that_are_known(method: str) -> None:
    model, x = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))), torch.randn(4, 8)
    graph = ariadne.pipe_model(model, 0, (x,), None, 1, 2, partitioning_method=method, profile="estimate")
    assert torch.equal(graph(x), model(x))


@pytest.mark.parametrize("old", ["model_args", "model_kwargs", "output_file", "generate_explicit_del"])
def test_the_names_of_autopipe_elsewhere_say_what_to_use(old: str) -> None:
    with pytest.raises(TypeError, match=f"has no argument {old}: use (example_|write_source)"):
        cleave.pipe_model(nn.Linear(2, 2), **{old: None})
