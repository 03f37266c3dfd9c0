"""Pictures of plans and of splits. What is drawn is the plan as it is: nothing is traced or run.

The DOT text is made in C and needs nothing else. SVG, PDF and PNG are made by the program `dot` of Graphviz.

>>> import torch, cleave
>>> from cleave.visualization import export_trace_dot
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
>>> dot = export_trace_dot(cleave.capture(net, torch.randn(3, 4)))
>>> "params: weight(8x4), bias(x8)" in dot
True
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from .errors import ArgumentError, CleaveError
from .spec import SplitCandidate

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.11 has it in typing

__all__ = [
    "GraphvizError",
    "Picture",
    "export_split_candidates_table",
    "export_split_dot",
    "export_trace_dot",
    "render_split_graph",
    "render_trace_graph",
]

FORMATS = ("svg", "pdf", "png", "dot")
Candidate = SplitCandidate | str | int


class DotOptions(TypedDict, total=False):
    """How a plan is drawn; the defaults are in DEFAULTS.

    view_detail: "module" draws a call of a module as one node, with what joins modules between them; "operation" draws
    every operation. max_module_depth: modules this deep are one node ("layer1.0" is 2 deep); None: none is folded.
    show_operation_targets: the operators (aten::conv2d). show_debug_markers: what is in place, a view, random …, and
    dtypes, bytes, buffers. show_node_indices: numbers and names of nodes. direction: "TB", "BT", "LR" or "RL"."""

    view_detail: Literal["module", "operation"]
    max_module_depth: int | None
    direction: str
    show_operation_targets: bool
    show_debug_markers: bool
    show_node_indices: bool


DEFAULTS: DotOptions = {
    "view_detail": "module",
    "max_module_depth": 4,
    "direction": "TB",
    "show_operation_targets": False,
    "show_debug_markers": False,
    "show_node_indices": False,
}


class ShowOptions(DotOptions, total=False):
    """How a plan is drawn, and what is done with it.

    save_only: a notebook does not show it. return_dot: nothing is written, the DOT text is returned."""

    save_only: bool
    return_dot: bool


class FileOptions(ShowOptions, total=False):
    """All options of a picture.

    outpath: the file, with or without its ending; by default the model's name in the current folder. fileformat: "svg",
    "pdf" and "png" need the program `dot` of Graphviz, "dot" needs nothing."""

    outpath: str | os.PathLike[str] | None
    fileformat: str


class GraphvizError(CleaveError, RuntimeError):
    """The program `dot` is not there, or did not take a picture."""


class Subject(NamedTuple):
    """What is drawn."""

    plan: Any  # _native.Plan
    name: str
    signature: str
    sizes: dict[str, int] | None  # at which megabytes are counted; None: the smallest
    position: int | None  # where it is cut; None: it is not


class Drawable:
    """What can be drawn: a Plan, a split runtime, a model from a file."""

    def _subject(self) -> Subject:
        raise NotImplementedError

    def visualize(
        self,
        outpath: str | os.PathLike[str] | None = None,
        fileformat: str = "svg",
        view: Literal["trace", "split"] | None = None,
        *,
        candidate: Candidate | None = None,
        **options: Unpack[ShowOptions],
    ) -> Picture | str:
        """Draws the plan with its cut (view="split") or as it is ("trace"); by default with the cut where there is one.

        Nothing is traced or run. The options are those of render_trace_graph and render_split_graph (docs/pictures.md).

        >>> import torch, cleave
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> spec = cleave.SplitSpec(boundary="after:0")
        >>> runtime = cleave.prepare_split(net, example_inputs=torch.randn(3, 4), split=spec)
        >>> "boundary_bytes: 32*B" in runtime.visualize(return_dot=True)
        True
        """
        where: FileOptions = {**options, "outpath": outpath, "fileformat": fileformat}
        if view is None:
            view = "split" if candidate is not None or self._subject().position is not None else "trace"
        if view not in ("trace", "split"):
            raise ArgumentError(f'view is "trace" or "split", not {view!r}')
        return render_trace_graph(self, **where) if view == "trace" else render_split_graph(self, candidate, **where)


class CandidateRow(TypedDict):
    """One row of export_split_candidates_table."""

    split_id: str
    boundary_after: str
    boundary_nodes: tuple[str, ...]
    boundary_bytes: int
    prefix_node_count: int
    suffix_node_count: int
    trainable_suffix: bool
    passthrough_inputs: tuple[str, ...]
    rejection_reason: str | None


class Picture:
    """A picture in a file. Notebooks show it; elsewhere it is a path (`os.fspath`)."""

    def __init__(self, path: Path, data: bytes, dot: str, shown: bool) -> None:
        self.path = path
        self.dot = dot
        self._data = data
        self._shown = shown

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """What a notebook shows. With save_only: its line of text."""
        kind = self.path.suffix
        if self._shown and kind == ".svg":
            return {"image/svg+xml": self._data.decode(), "text/plain": repr(self)}
        if self._shown and kind == ".png":
            return {"image/png": self._data, "text/plain": repr(self)}
        return {"text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"<cleave picture in {self.path}>"


# ---- DOT text


def export_trace_dot(plan: Drawable, **options: Unpack[DotOptions]) -> str:
    """A plan (or the plan of a runtime) as DOT text, drawn as DotOptions says."""
    return _dot(_subject(plan), None, options)


def export_split_dot(plan: Drawable, candidate: Candidate | None = None, **options: Unpack[DotOptions]) -> str:
    """A plan with a cut, as DOT text, drawn as DotOptions says.

    candidate: where it is cut: a SplitCandidate, its position, or a boundary ("50%", "after:layer3"); None: where the
    runtime cuts it.

    >>> import torch, cleave
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> plan = cleave.capture(net, torch.randn(3, 4))
    >>> "cut after <b>linear</b> in <b>0</b>" in export_split_dot(plan, "after:0")
    True
    """
    subject = _subject(plan)
    return _dot(subject, _position(subject, candidate), options)


def export_split_candidates_table(plan: Drawable) -> list[CandidateRow]:
    """Every place where a plan can be cut, and those where it cannot, with the reason.

    >>> import torch, cleave
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> rows = export_split_candidates_table(cleave.capture(net, torch.randn(3, 4)))
    >>> [(row["boundary_after"], row["boundary_bytes"]) for row in rows]
    [('linear', 96)]
    """
    subject = _subject(plan)
    return [_row(subject, SplitCandidate(*c)) for c in subject.plan.frontiers(subject.sizes)]


def _row(subject: Subject, c: SplitCandidate) -> CandidateRow:
    by_number = sorted(c.boundary_labels, key=lambda label: int(label[1:]))  # inputs have the first numbers
    return {
        "split_id": f"{subject.signature}-{c.position}",
        "boundary_after": c.name,
        "boundary_nodes": c.boundary_labels,
        "boundary_bytes": c.boundary_bytes,
        "prefix_node_count": c.prefix_node_count,
        "suffix_node_count": c.suffix_node_count,
        "trainable_suffix": c.trainable_suffix,
        "passthrough_inputs": tuple(by_number[: c.passthrough_inputs]),
        "rejection_reason": c.reason,
    }


def _subject(plan: Drawable) -> Subject:
    if not isinstance(plan, Drawable):
        raise TypeError(f"a cleave.Plan or a split runtime can be drawn, not {type(plan).__name__}")
    return plan._subject()


def _position(subject: Subject, candidate: Candidate | None) -> int:
    """Which frontier is meant."""
    if candidate is None:
        if subject.position is None:
            raise ArgumentError('a plan is not cut: say where with candidate="50%", or draw a runtime')
        return subject.position
    if isinstance(candidate, str):
        chosen: int = subject.plan.choose(candidate, {}, subject.sizes)
        return chosen
    if isinstance(candidate, SplitCandidate):
        names = [n[0] for n in subject.plan.nodes()]
        if candidate.position >= len(names) or candidate.name not in names[: candidate.position + 1]:
            raise ArgumentError(f"the candidate after {candidate.name} belongs to another plan")
        return candidate.position
    if type(candidate) is not int:
        raise TypeError(f"candidate is a SplitCandidate, a position or a boundary, not {type(candidate).__name__}")
    if candidate < 0:
        raise ArgumentError(f"no frontier {candidate}")
    return candidate


def _dot(subject: Subject, position: int | None, given: DotOptions) -> str:
    unknown = [name for name in given if name not in DEFAULTS]
    if unknown:
        raise TypeError(f"there is no option {unknown[0]}; the options are {', '.join(DEFAULTS)}")
    options = {**DEFAULTS, **given}
    depth = options["max_module_depth"]
    if depth is not None and (type(depth) is not int or depth < 0):
        raise ArgumentError(f"max_module_depth is 0 or more, or None, not {depth!r}")
    text: str = subject.plan.dot(position, *(options[name] for name in DEFAULTS), subject.sizes)
    return text


# ---- files


def render_trace_graph(plan: Drawable, **options: Unpack[FileOptions]) -> Picture | str:
    """Draws a plan into a file, as FileOptions says."""
    return _drawn(plan, "trace", lambda drawing: export_trace_dot(plan, **drawing), options)


def render_split_graph(
    plan: Drawable, candidate: Candidate | None = None, **options: Unpack[FileOptions]
) -> Picture | str:
    """Draws a plan with a cut into a file, as FileOptions says; candidate as in export_split_dot."""
    return _drawn(plan, "split", lambda drawing: export_split_dot(plan, candidate, **drawing), options)


def _drawn(plan: Drawable, view: str, export: Callable[[Any], str], options: Mapping[str, Any]) -> Picture | str:
    drawing = dict(options)
    outpath, fileformat = drawing.pop("outpath", None), drawing.pop("fileformat", "svg")
    save_only, return_dot = drawing.pop("save_only", False), drawing.pop("return_dot", False)
    dot = export(drawing)
    return dot if return_dot else _save(_subject(plan), view, dot, outpath, fileformat, not save_only)


def _save(
    subject: Subject, view: str, dot: str, outpath: str | os.PathLike[str] | None, fileformat: str, shown: bool
) -> Picture:
    if fileformat not in FORMATS:
        raise ArgumentError(f"fileformat is one of {', '.join(FORMATS)}, not {fileformat!r}")
    path = _path(subject, view, outpath, fileformat)
    data = dot.encode() if fileformat == "dot" else _render(dot, fileformat)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return Picture(path, data, dot, shown)


def _path(subject: Subject, view: str, outpath: str | os.PathLike[str] | None, fileformat: str) -> Path:
    if outpath is None:
        name = re.sub(r"\W+", "_", subject.name).strip("_").lower() or "plan"
        return Path(f"{name}_{view}.{fileformat}")
    path = Path(outpath)
    ending = path.suffix[1:]
    if ending == fileformat:
        return path
    if ending in FORMATS:
        raise ArgumentError(f"outpath ends in .{ending}, but fileformat is {fileformat!r}")
    return path.with_name(f"{path.name}.{fileformat}")


def _render(dot: str, fileformat: str) -> bytes:
    program = shutil.which("dot")
    if program is None:
        raise GraphvizError(
            f"{fileformat} pictures are made by the program dot of Graphviz, which is not on PATH; on Debian and "
            'Ubuntu: apt-get install graphviz. The text for it needs nothing: return_dot=True, or fileformat="dot"'
        )
    done = subprocess.run([program, f"-T{fileformat}"], input=dot.encode(), capture_output=True, check=False)
    if done.returncode != 0 or not done.stdout:
        reason = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
        raise GraphvizError(f"{program} did not draw the picture: {reason}")
    return done.stdout
