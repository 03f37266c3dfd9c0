"""The table of operators (src/plan/ops.def) against PyTorch itself: schemas, tags, and what operators do to random
inputs. Columns that one pass alone reads have their tests there: IMAGE in test_optimize_layout.py, GAPS in
test_optimize_gaps.py, WRITER, FORMATS, NORM and NEW in test_optimize_in_place.py, CALL in test_source.py; the lists are
in test_operators.py, test_openvino.py and test_inductor.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import operators
import pytest
import torch
from torch import Tensor

ROWS = {row.name: row.columns for row in operators.rows()}
OURS = {"cleave::guard_equal", "cleave::python"}
# Composite ones that may give back their argument, and do not say so.
SILENT = {"aten::sum_to_size", "aten::type_as"}


SWITCHES = {"p", "train", "training", "dropout", "dropout_p"}


def with_columns(*names: str) -> list[str]:
    return [op for op, columns in ROWS.items() if op not in OURS and columns.keys() & set(names)]


def operator(name: str) -> Any:
    space, rest = name.split("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), base), overload or "default")


def views(schema: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def writes(schema: Any) -> bool:
    return any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)


def makes_new(columns: dict[str, list[str]]) -> bool:
    new = columns.keys() & {"NEW", "ELEMENTWISE", "FORMATS", "NORM"} or columns.get("STRIDES") == ["FRESH"]
    return bool(new) and "WRITES" not in columns


# ---- schemas ---------------------------------------------------------------------------------------------------------


def test_rows_are_operators_of_torch() -> None:
    known = set(torch._C._dispatch_get_all_op_names())
    assert len(ROWS) > 350
    assert set(ROWS) - known == OURS
    for row in operators.rows():
        space, name = row.name.replace(".", "_").split("::")
        assert row.id == (name if space == "aten" else f"{space}_{name}")


def test_columns_say_what_schemas_say_of_memory() -> None:
    for op in set(ROWS) - OURS:
        schema, columns = operator(op)._schema, ROWS[op]
        assert ("WRITES" in columns) == writes(schema), op
        assert ("VIEW" in columns) == (views(schema) or op in SILENT), op
        assert not (makes_new(columns) and views(schema)), op


def test_columns_say_what_tags_say() -> None:
    for op in set(ROWS) - OURS:
        of, columns = operator(op), ROWS[op]
        assert ("SWITCH" in columns) == (torch.Tag.nondeterministic_seeded in of.tags), op
        takes = any("Tensor" in str(a.type) for a in of._schema.arguments)
        number = [str(r.type) for r in of._schema.returns] in (["bool"], ["number"])
        assert ("HOST" in columns) == (takes and number), op
        if torch.Tag.data_dependent_output in of.tags:
            assert "HOST" in columns, op


def test_switches_are_flags_and_rates() -> None:
    for op in with_columns("SWITCH"):
        arguments = operator(op)._schema.arguments
        for at in ROWS[op]["SWITCH"]:
            assert str(arguments[int(at)].type) in ("bool", "Optional[bool]", "float"), op
            assert arguments[int(at)].name in (
                "p",
                "train",
                "training",
                "dropout",
                "dropout_p",
                "compute_log_sumexp",
            ), op


def test_what_torch_calls_a_view_in_place_has_a_column() -> None:
    # They change sizes, strides or memory of a tensor that others may hold.
    names = {op.partition(".")[0] for op in with_columns("MEMORY")}
    assert {"aten::as_strided", "aten::set_", "aten::resize_", "aten::data"} <= names
    found = {op for op in ROWS if op not in OURS and torch.Tag.inplace_view in operator(op).tags}
    assert found - names == {"aten::detach_"}


def test_all_that_gives_memory_without_content_is_there() -> None:
    names = torch._C._dispatch_get_all_op_names()
    empty = {op for op in with_columns("MEMORY") if ROWS[op]["MEMORY"] == ["EMPTY"]}
    made = {n for n in names if n.startswith(("aten::empty", "aten::new_empty", "aten::_empty"))}
    made = {n for n in made if not writes(operator(n)._schema)}
    assert made <= empty
    assert all(n not in names for n in empty - made)  # of another torch


def test_statistics_are_of_all_that_take_them() -> None:
    def takes(op: str) -> bool:
        arguments = operator(op)._schema.arguments
        return any(a.name == "running_mean" and a.alias_info is None for a in arguments)

    named = (n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::") and "backward" not in n)
    taken = {n for n in named if "." not in n and takes(n)}
    # These only read what they are given.
    reading = {"_batch_norm_no_update", "_batch_norm_with_update_functional", "_native_batch_norm_legit_functional"}
    reading |= {"_native_batch_norm_legit_no_training"}
    assert {n.removeprefix("aten::") for n in taken - set(with_columns("STATISTICS"))} == reading


def test_operators_that_take_a_shape_alone_are_listed() -> None:
    listed = set(operators.reasons("TAKES_SHAPE"))
    named = (n.partition("::") for n in torch._C._dispatch_get_all_op_names())
    bases = {(space, rest.partition(".")[0]) for space, _, rest in named}
    assert {base for space, base in bases if base.endswith("_like") or base.startswith("new_")} == listed
    x, more = torch.rand(2, 3), {"full_like": [2.0], "new_full": [[4], 2.0], "new_ones": [[4]], "new_zeros": [[4]]}
    for base in ("full_like", "ones_like", "zeros_like", "new_full", "new_ones", "new_zeros"):
        call = getattr(torch.ops.aten, base)
        assert torch.equal(call(x, *more.get(base, [])), call(x * torch.nan, *more.get(base, []))), base


# ---- calls -----------------------------------------------------------------------------------------------------------

SHAPES = {1: (3, 4), 2: (3, 4), 3: (3, 4, 6), 4: (3, 4, 6, 6), 5: (3, 4, 6, 6, 6)}
INTEGERS = {"aten::bitwise_and.Tensor", "aten::bitwise_not", "aten::__and__.Tensor", "aten::__or__.Tensor"}


def numbers(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape))) + 0.25


def convolution(x: Tensor, *rest: Any) -> list[Any]:
    return [x, numbers(5, 4, *[3] * (x.dim() - 2)), numbers(5), *rest]


def transposed(x: Tensor) -> list[Any]:
    return [x, numbers(4, 5, *[3] * (x.dim() - 2)), numbers(5)]


def full(x: Tensor, *rest: Any) -> list[Any]:
    ones, noughts = [1] * (x.dim() - 2), [0] * (x.dim() - 2)
    return convolution(x, ones, noughts, ones, False, noughts, 1, *rest)


Call = Callable[[Tensor], list[Any]]
CALLS: dict[str, Call] = {
    "_convolution": lambda x: full(x, False, False, True, True),
    "_softmax": lambda x: [x, 1, False],
    "_upsample_nearest_exact2d": lambda x: [x, [9, 9]],
    "_upsample_nearest_exact2d.vec": lambda x: [x, [9, 9], None],
    "addmm": lambda x: [numbers(5), x, numbers(4, 5)],
    "_addmm_activation": lambda x: [numbers(5), x, numbers(4, 5)],
    "amax": lambda x: [x, [1]],
    "amin": lambda x: [x, [1]],
    "baddbmm": lambda x: [numbers(3, 4, 5), x, numbers(3, 6, 5)],
    "batch_norm": lambda x: [x, *(numbers(4) for _ in range(4)), False, 0.1, 1e-5, True],
    "bmm": lambda x: [x, numbers(3, 6, 5)],
    "cat": lambda x: [[x, x * 2], 1],
    "channel_shuffle": lambda x: [x, 2],
    "chunk": lambda x: [x, 2, 1],
    "conv1d.padding": lambda x: convolution(x, [1] * (x.dim() - 2), "same"),
    "conv2d.padding": lambda x: convolution(x, [1] * (x.dim() - 2), "same"),
    "conv3d.padding": lambda x: convolution(x, [1] * (x.dim() - 2), "same"),
    "convolution": full,
    "diff": lambda x: [x, 1, 1],
    "dropout": lambda x: [x, 0.5, False],
    "embedding": lambda x: [numbers(9, 5), (x * 7).long() % 9],
    "flatten.using_ints": lambda x: [x, 1, -1],
    "flip": lambda x: [x, [1]],
    "gather": lambda x: [x, 1, (x * 7).long() % 4],
    "glu": lambda x: [x, 1],
    "group_norm": lambda x: [x, 2],
    "index_select": lambda x: [x, 1, torch.tensor([1, 0, 3])],
    "layer_norm": lambda x: [x, [x.shape[-1]]],
    "linear": lambda x: [x, numbers(5, x.shape[-1]), numbers(5)],
    "masked_fill.Scalar": lambda x: [x, x > 0.7, 2.0],
    "masked_fill.Tensor": lambda x: [x, x > 0.7, torch.tensor(2.0)],
    "matmul": lambda x: [x, numbers(x.shape[-1], 5)],
    "mean.dim": lambda x: [x, [1]],
    "mm": lambda x: [x, numbers(4, 5)],
    "narrow": lambda x: [x, 1, 1, 2],
    "permute": lambda x: [x, [0, *range(x.dim() - 1, 0, -1)]],
    "pixel_shuffle": lambda x: [x, 2],
    "pixel_unshuffle": lambda x: [x, 2],
    "prelu": lambda x: [x - 0.7, numbers(4)],
    "repeat_interleave.self_int": lambda x: [x, 2, 1],
    "rms_norm": lambda x: [x, [x.shape[-1]]],
    "roll": lambda x: [x, [1], [1]],
    "scaled_dot_product_attention": lambda x: [x, x * 0.5, x + 1],
    "select.int": lambda x: [x, 1, 1],
    "slice.Tensor": lambda x: [x, 1, 1, 3],
    "softmax.int": lambda x: [x, 1],
    "log_softmax.int": lambda x: [x, 1],
    "cumsum": lambda x: [x, 1],
    "split.Tensor": lambda x: [x, 2, 1],
    "split_with_sizes": lambda x: [x, [1, 3], 1],
    "squeeze.dim": lambda x: [x, 1],
    "stack": lambda x: [[x, x * 2], 1],
    "sum.dim_IntList": lambda x: [x, [1]],
    "to.device": lambda x: [x, torch.device("cpu"), torch.float64],
    "to.dtype": lambda x: [x, torch.float64],
    "to.dtype_layout": lambda x: [x],
    "topk": lambda x: [x, 2, 1],
    "transpose.int": lambda x: [x, 1, -1],
    "unbind.int": lambda x: [x, 1],
    "unflatten.int": lambda x: [x, 1, [2, 2]],
    "unsqueeze": lambda x: [x, 1],
    "squeeze.dims": lambda x: [x, [0]],
    "upsample_bicubic2d": lambda x: [x, [9, 9], False],
    "upsample_bicubic2d.vec": lambda x: [x, [9, 9], False, None],
    "upsample_bilinear2d": lambda x: [x, [9, 9], False],
    "upsample_bilinear2d.vec": lambda x: [x, [9, 9], False, None],
    "upsample_nearest1d.vec": lambda x: [x, [9], None],
    "upsample_nearest2d": lambda x: [x, [9, 9]],
    "upsample_nearest2d.vec": lambda x: [x, [9, 9], None],
    "upsample_nearest3d.vec": lambda x: [x, [9, 9, 9], None],
    "var.correction": lambda x: [x, [1]],
    "var.dim": lambda x: [x, [1]],
    "view": lambda x: [x, [x.shape[0], 2, -1]],
    "_unsafe_view": lambda x: [x, [x.shape[0], 2, -1]],
    "reshape": lambda x: [x, [x.shape[0], 2, -1]],
    "arange": lambda x: [5],
    "arange.start": lambda x: [1, 5],
    "arange.start_step": lambda x: [1, 9, 2],
    "full": lambda x: [[3, 4], 2.0],
    "ones": lambda x: [[3, 4]],
    "zeros": lambda x: [[3, 4]],
    "_fused_rms_norm": lambda x: [x, [x.shape[-1]], numbers(x.shape[-1]), None],
    "expand": lambda x: [x[:, None], [x.shape[0], 2, *x.shape[1:]]],
}


def elementwise(op: str, *tensors: Tensor) -> list[Any]:
    """A call with these tensors in turn, and with numbers."""
    at, args = iter(tensors), []
    for a in operator(op)._schema.arguments:
        kind = str(a.type)
        if kind == "Tensor":
            t = next(at)
            args.append(t > 0.7 if a.name == "condition" else (t * 9).int() if op in INTEGERS else t)
        elif a.kwarg_only or (a.has_default_value() and a.name not in ("min", "max")):
            break
        else:
            args.append(1.5 if a.name == "max" else 0.75)
    return args


def arguments(op: str, x: Tensor) -> list[Any]:
    of = op.removeprefix("aten::")
    if "ELEMENTWISE" in ROWS[op]:
        return elementwise(op, x, x.flip(0) + 0.5, x.flip(1) + 0.75)
    if of.startswith("conv_transpose"):
        return transposed(x)
    if of in CALLS:
        return CALLS[of](x)
    if of.startswith("conv"):
        return convolution(x)
    if "pool" in of:
        return [x, [2] * int(of[-2])]
    return [x]


def results(op: str, args: list[Any]) -> list[Tensor]:
    out = operator(op)(*args)
    return [t for t in out if isinstance(t, Tensor)] if isinstance(out, (list, tuple)) else [out]


def is_row_major(t: Tensor) -> bool:
    return t.stride() == torch.empty(t.shape).stride()


def tensors(args: list[Any], change: Callable[[Tensor], Tensor]) -> list[Any]:
    return [change(a) if isinstance(a, Tensor) else [change(t) for t in a] if of_tensors(a) else a for a in args]


def of_tensors(a: Any) -> bool:
    return isinstance(a, list) and all(isinstance(t, Tensor) for t in a)


# ---- behaviour -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", with_columns("ELEMENTWISE"))
def test_elements_depend_on_those_at_their_place(op: str) -> None:
    x = numbers(6, 35)
    args = arguments(op, x)
    order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(1))

    def mixed(t: Tensor) -> Tensor:
        return t.flatten()[order].view(x.shape) if t.dim() else t

    [got] = results(op, tensors(args, mixed))
    [want] = results(op, tensors(args, Tensor.clone))
    torch.testing.assert_close(got, mixed(want), equal_nan=True)
    # A tensor that is spread over the result does what its copies do.
    others = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.dim() and i > 0]
    for i in others:
        row = args[i][:1]
        found = []
        for other in (row, row.expand(x.shape).contiguous()):
            found += results(op, tensors([other if k == i else a for k, a in enumerate(args)], Tensor.clone))
        torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("op", [op for op in with_columns("ELEMENTWISE") if "WRITES" not in ROWS[op]])
@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (3, 1), (2, 3, 1, 4), (7,)])
def test_results_of_elements_are_new_and_laid_out_as_the_arguments(op: str, shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    args = elementwise(op, x, x + 0.5, x + 0.75)
    [made] = results(op, args)
    assert is_row_major(made)
    assert all(made.data_ptr() != a.data_ptr() for a in args if isinstance(a, Tensor))
    turned = tensors(args, lambda t: t.mT.contiguous().mT if t.dim() > 1 else t)
    [made] = results(op, turned)
    assert made.stride() == torch.empty_like(turned[0], memory_format=torch.preserve_format).stride()


def test_writers_write_where_they_are_told() -> None:
    for op in with_columns("WRITES"):
        if "ELEMENTWISE" in ROWS[op]:
            args = arguments(op, numbers(3, 4))
            assert operator(op)(*args).data_ptr() == args[0].data_ptr(), op


@pytest.mark.parametrize("op", with_columns("BATCH", "ELEMENTWISE"))
def test_rows_depend_on_rows(op: str) -> None:
    x = numbers(*SHAPES[int(ROWS[op].get("BATCH", ["1"])[0])])
    want = results(op, tensors(arguments(op, x), Tensor.clone))
    y = x.clone()
    y[1] = y[1].flip(0) + 1.25
    args = arguments(op, y)
    if "ELEMENTWISE" in ROWS[op]:
        args = elementwise(op, y, x.flip(0) + 0.5, x.flip(1) + 0.75)
    got = results(op, tensors(args, Tensor.clone))
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert a.shape[0] == x.shape[0]
        torch.testing.assert_close(a[[0, 2]], b[[0, 2]], equal_nan=True)


def strided() -> list[str]:
    return [op for op in with_columns("STRIDES") if op.startswith("aten::")]


@pytest.mark.parametrize("op", strided())
def test_results_lie_as_their_column_says(op: str) -> None:
    [kind] = ROWS[op]["STRIDES"]
    x = numbers(*SHAPES[int(ROWS[op].get("BATCH", ["2"])[0])])
    args = arguments(op, x)
    if kind == "OUTERMOST":
        args[1] = 0
    for made in results(op, args):
        assert is_row_major(made), "of row-major arguments"
    turned = tensors(args, lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2) if t.dim() > 1 else t)
    if kind in ("FRESH", "DENSE", "PRODUCT"):
        for made in results(op, turned):
            assert is_row_major(made), "whatever the arguments are"


@pytest.mark.parametrize("op", [op for op in with_columns("VIEW") if op not in SILENT and op != "aten::_reshape_alias"])
def test_views_are_on_the_memory_of_their_argument(op: str) -> None:
    [how] = ROWS[op]["VIEW"]
    x = numbers(3, 4)
    more = {
        "aten::as_strided": [[2, 2], [1, 1]],
        "aten::broadcast_to": [[2, 3, 4]],
        "aten::expand": [[2, 3, 4]],
        "aten::expand_as": [numbers(2, 3, 4)],
        "aten::moveaxis.int": [0, 1],
        "aten::moveaxis.intlist": [[0], [1]],
        "aten::movedim.int": [0, 1],
        "aten::movedim.intlist": [[0], [1]],
        "aten::reshape_as": [numbers(12)],
        "aten::split.sizes": [[1, 2]],
        "aten::swapaxes": [0, 1],
        "aten::swapdims": [0, 1],
        "aten::tensor_split.indices": [[1]],
        "aten::tensor_split.sections": [2],
        "aten::to.device": [torch.device("cpu"), torch.float32],
        "aten::to.dtype": [torch.float32],
        "aten::to.other": [numbers(1)],
        "aten::unfold": [1, 2, 1],
        "aten::view.dtype": [torch.int32],
        "aten::view_as": [numbers(12)],
    }
    args = [x, *more[op]] if op in more else arguments(op, x)
    for made in results(op, args):
        assert made.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    turned = [x.t().contiguous().t(), *args[1:]]
    if how == "ANY":
        for made in results(op, turned):
            assert made.untyped_storage().data_ptr() == turned[0].untyped_storage().data_ptr()
