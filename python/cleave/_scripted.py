"""Scripted and traced code: what is recorded operator by operator, and what a plan calls as a whole.

TorchScript's interpreter runs operators like eager does, and a recording sees them. From its second run on a function
is optimized, and not all of that leaves operators to see: with gradients, groups of operators get a backward of
TorchScript's own and run on detached tensors; where fusers are on, groups run as one kernel. So a function counts from
its second run on, and one that does such things, works on data behind the operators, or forks, is one node of the plan,
which calls it: what it forks runs in other threads, in an order that differs from run to run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from . import _tree

if TYPE_CHECKING:
    from ._watch import Recording

# Functions and methods of modules, scripted or traced: their calls are what Python sees of them.
CLASSES: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)

READS = {"prim::tolist", "aten::_tensor_to_list"}  # data is given to the interpreter, which may branch on it
LITERALS = {"aten::tensor", "aten::as_tensor"}  # of a list: the interpreter fills the memory itself
# Instructions of the interpreter that pass tensors on, or run code whose operators are seen. Others compute something.
PLAIN = {
    "prim::CallFunction",
    "prim::CallMethod",
    "prim::Constant",
    "prim::ConstantChunk",
    "prim::CreateObject",
    "prim::DictConstruct",
    "prim::DictIndex",
    "prim::Enter",
    "prim::GetAttr",
    "prim::If",
    "prim::ListConstruct",
    "prim::ListUnpack",
    "prim::Loop",
    "prim::ModuleContainerIndex",
    "prim::NumToTensor",
    "prim::PythonOp",
    "prim::TupleConstruct",
    "prim::TupleIndex",
    "prim::TupleSlice",
    "prim::TupleUnpack",
    "prim::Uninitialized",
    "prim::data",
    "prim::unchecked_cast",
    "prim::unchecked_unwrap_optional",
}
GROUPS = {  # operators that run as one kernel
    "prim::CudaFusionGroup",
    "prim::FusionGroup",
    "prim::TensorExprDynamicGroup",
    "prim::TensorExprGroup",
    "prim::oneDNNFusionGroup",
}


class Callee:
    """A scripted function, or a method of a scripted module. Python may make a new object of one each time it is asked
    for it; the graph is the same, and has one object as long as somebody holds it."""

    def __init__(self, called: Any) -> None:
        self.called = called
        self.graph = called.graph
        self.owner = called.owner if isinstance(called, torch._C.ScriptMethod) else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.called(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Callee) and self.graph is other.graph and bool(self.owner == other.owner)

    def __hash__(self) -> int:
        return id(self.graph)

    def tensors(self) -> list[torch.Tensor]:
        """Those of the module whose method it is."""
        if self.owner is None:
            return []
        module: torch.nn.Module = torch.jit._recursive.wrap_cpp_module(self.owner)  # type: ignore[no-untyped-call]
        return [*module.parameters(), *module.buffers()]


class Scripts:
    """What is known of the scripted callees of a target."""

    def __init__(self) -> None:
        self.learned = False  # something that the record in progress did not know yet: it has to be made again
        self._ran: set[tuple[Callee, bool]] = set()  # and whether grad was enabled
        self._whole: set[tuple[Callee, bool]] = set()

    def call(
        self, recording: Recording, called: Any, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        callee = Callee(called)
        key = callee, torch.is_grad_enabled()
        if key not in self._ran and _works_unseen(called):
            self._whole.add(key)
        if key in self._whole:
            return recording.opaque(callee, f"scripted {called.name}", args, kwargs, callee.tensors())
        given = _tree.flatten((args, kwargs))[1]
        before, was_fine = {t.grad_fn for t in given}, not recording.stream.failed()
        out = original(called, *args, **kwargs)
        backward = _has_own_backward(_tree.flatten((out, given))[1], before)
        if backward or _is_grouped() or (was_fine and recording.stream.failed()):
            self._whole.add(key)
        self.learned |= key not in self._ran or key in self._whole
        self._ran.add(key)
        return out


def _works_unseen(callee: Any) -> bool:
    graph = callee.inlined_graph.copy()
    torch._C._jit_pass_constant_propagation(graph)
    return any(map(_is_unseen, _nodes(graph)))


def _is_unseen(node: Any) -> bool:
    kind = node.kind()
    if kind in LITERALS:
        return isinstance(next(node.inputs()).type(), torch.ListType)
    makes = any("Tensor" in str(out.type()) for out in node.outputs())
    return kind in READS or (kind.startswith("prim::") and kind not in PLAIN and makes)


def _nodes(holder: Any) -> Iterator[Any]:
    """Of a graph or a block, with those of the blocks inside."""
    for node in holder.nodes():
        yield node
        for block in node.blocks():
            yield from _nodes(block)


def _is_grouped() -> bool:
    """The code that ran last has fused groups. It is looked at where a fuser may have been at work."""
    c = torch._C
    gpu = torch.cuda.is_available() and c._jit_can_fuse_on_gpu()
    if not (gpu or c._jit_can_fuse_on_cpu() or c._jit_llga_enabled()):
        return False
    return any(node.kind() in GROUPS for node in _nodes(c._last_executed_optimized_graph()))


def _has_own_backward(tensors: Iterable[torch.Tensor], before: set[Any]) -> bool:
    """Gradients of these tensors go through a backward of TorchScript's own, made since they had those of `before`."""
    seen = set(before)
    todo = [t.grad_fn for t in tensors]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if "DifferentiableGraphBackward" in node.name():
            return True
        seen.add(node)
        todo.extend(n for n, _ in node.next_functions)
    return False
