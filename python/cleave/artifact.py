"""Models as files: one .clv file holds the plans of a model and its weights, and runs without the model's code.

>>> import torch, cleave
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
>>> x = torch.randn(3, 4)
>>> cleave.capture(net, x).save("net.clv")
>>> model = cleave.load("net.clv")
>>> torch.equal(model(x), net(x))
True

Opening a file runs nothing that is in it (docs/artifact.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from . import _log, _native, _report, _show, tracing
from ._dims import Point
from ._save import Path
from ._structure import Record as Record
from ._structure import Structure
from ._threads import read_threads
from .errors import ArgumentError, GuardError, InputError
from .optimize import read_level
from .payload import BoundaryPayload, Compress, TensorSchema, boundary_facts, dims, read_device
from .plan import Node
from .remote import RemoteSplit, connect
from .signing import read_keys
from .spec import SplitCandidate
from .visualization import Drawable, Subject

log = _log.logger("file")


class Port(NamedTuple):
    """A tensor that goes in or comes out; dimensions are numbers or formulas ("B", "4*B+1")."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    device: str


class SegmentState(NamedTuple):
    """A compiled part of a model, and whether it runs here.

    compiled: it runs as compiled code, for the sizes it was compiled for; otherwise reason says why it runs operator by
    operator. barred: it would run with allow_compiled=True. runs and tape_runs count both."""

    plan: int
    first: int
    end: int
    backend: str
    barred: bool
    compiled: bool
    reason: str | None
    runs: int
    tape_runs: int


class _Lent(NamedTuple):
    """Tensors that a caller holds, and marks of their contents at that time."""

    entries: list[tuple[None, str, torch.Tensor]]
    marks: bytes


class _PlanHere(NamedTuple):
    """A plan of an open file."""

    native: Any
    signature: str
    cut: int
    stores: int
    points: list[Point]
    fixed: dict[str, int]
    output: Structure


def load(
    path: Path,
    *,
    device: str | torch.device | int | None = None,
    part: str | None = None,
    types: Iterable[type] = (),
    allow_operators: Iterable[str] = (),
    check: bool = False,
    copy: bool | None = None,
    unproven: bool = False,
    debug: bool = False,
    allow_compiled: bool | Literal["signed"] = False,
    tape_only: bool = False,
    optimize: str = "safe",
    threads: int | None = None,
    any_weights: bool = False,
    timeout: float | None = None,
    max_memory: int | None = None,
    trusted_keys: Iterable[Path] | None = None,
    sandbox: bool | None = None,
    engine: str | None = None,
) -> LoadedModel:
    """Opens a .clv file. Weights stay on the file's mapped memory until they are used, or go to `device`.

    part: "prefix" or "suffix" of a file with a whole, cut model. types: classes that outputs may be rebuilt as;
    others are dict-like stand-ins with the same fields. allow_operators: beyond the list of those known to be safe.
    check: compare all weights with their digests, which reads the whole file; with engine="native" also its results
    with the tape's, on inputs that are made up. copy: read the file into memory instead of mapping it, so that nothing
    that happens to the file later reaches the model; with check it is.
    unproven: also serve sizes at which the model was never recorded. debug: check every result against the plan.
    allow_compiled: compiled parts may run, which are code of whoever made the file; without it those that you did
    not compile yourself run operator by operator. "signed": only where a trusted key signed the file. tape_only: no
    compiled part is used. optimize: "none", "safe" (the same bits) or "fast" (numbers within a tolerance; the first
    run chooses): what may be rewritten to run faster (docs/optimize.md). threads: how many an operator, or a compiled
    part, may use; None: as many as the process. any_weights: a suffix also takes boundaries that were made with other
    weights. timeout: seconds that a run may take. max_memory: bytes of tensors on the CPU that a run may hold at once,
    besides weights and inputs, and the most that one tensor may have, views too. A run that exceeds a limit ends with
    LimitError, between two operators; `cancel` ends runs from another thread. trusted_keys:
    public keys (Ed25519), each a PEM file or its text; only a file that one of them signed (`cleave.sign`) is
    opened, anything else is a SignatureError before a byte of it is parsed. The file is read into memory then, so
    that what was verified is what runs. sandbox: run in another process that can compute and nothing else, on the
    CPU, from a copy of the file, for 600 s a run where timeout is None; a crash there is CrashError here. None: for
    a file that nobody vouches for, which neither you saved nor a trusted key signed (docs/security.md); False: you
    trust the file, and so does allow_compiled=True. engine: what runs it, "tape" (libtorch) or "native" (Cleave's own
    kernels on the CPU, docs/native.md); None or "auto": the first that takes the file."""
    names = list(allow_operators)
    for name in names:
        if not isinstance(name, str) or isinstance(allow_operators, str):
            raise TypeError(f"allow_operators is a list of texts like 'aten::from_file', not {allow_operators!r}")
    types = tuple(types)
    for cls in types:
        if not isinstance(cls, type):
            raise TypeError(f"types are classes, not {cls!r}")
    os.stat(path)  # raises Python's own FileNotFoundError
    where = None if device is None else str(read_device(device))
    keys = read_keys(trusted_keys)
    signed = allow_compiled == "signed"
    if signed and not keys:
        raise ValueError('allow_compiled="signed" needs trusted_keys: without them no file counts as signed')
    if not signed and not isinstance(allow_compiled, bool):
        raise TypeError(f'allow_compiled is True, False or "signed", not {allow_compiled!r}')
    apart = _sandbox(sandbox)
    if sandbox and copy is False:
        raise ArgumentError("a sandbox runs a copy of the file: copy=False and sandbox=True do not go together")
    copied = check or sandbox is True if copy is None else copy
    artifact = _native.Artifact(os.fsencode(path), names, check, copied, keys)
    how = (allow_compiled is True, tape_only, read_level(optimize), read_threads(threads), any_weights)
    most = (timeout or 0.0, max_memory or 0, signed, apart, engine)
    model = LoadedModel.of(str(path), types, artifact, where, part, unproven, debug, *how, *most)
    if not model.sandboxed:
        _warn_barred(model)
    elif sandbox is None:
        log.info("%s: nobody vouches for this file (%s): it runs in a sandbox", path, artifact.unvouched())
    if check and engine == "native":
        _compare(str(path), artifact, part, apart)
    return model


def in_memory(name: str, artifact: Any, engine: str | None, sandbox: bool | None) -> LoadedModel:
    """What `load` gives of the file that an artifact in memory would be."""
    how = (read_level("safe"), read_threads(None), False, 0.0, 0, False, _sandbox(sandbox), engine)
    model = LoadedModel.of(name, (), artifact.copy(), None, None, False, False, False, False, *how)
    if not model.sandboxed:
        _warn_barred(model)
    return model


def _compare(path: str, artifact: Any, part: str | None, sandbox: int) -> None:
    """Raises where the native engine gives other numbers than the tape; says so where made-up inputs lead nowhere."""
    try:
        off = _native.compare_engines(artifact, part, sandbox)
    except GuardError as error:
        log.warning("%s: the native engine was not compared with the tape, on made-up inputs: %s", path, error)
    else:
        log.info("%s: the native engine gives the tape's numbers, off by %.2g at most", path, off)


def _sandbox(wanted: bool | None) -> int:
    if wanted is not None and not isinstance(wanted, bool):
        raise TypeError(f"sandbox is None, True or False, not {wanted!r}")
    return {None: _native.SANDBOX_AUTO, True: _native.SANDBOX_ON, False: _native.SANDBOX_OFF}[wanted]


def pack_weights(
    path: Path,
    output: Path | None = None,
    *,
    isas: Iterable[str] = (),
    allow_operators: Iterable[str] = (),
    sandbox: bool | None = None,
    compare: bool = False,
) -> None:
    """Adds to a .clv file its weights as the native engine wants them, so that a start need not pack them.

    The file is checked first, with all its data. output: where the packed file goes; None: in the place of the file,
    whole or not at all. isas: the instruction sets of the machines that will run it, "avx2", "avx512", "neon", "base",
    from any machine; none: that of this one. A file runs everywhere all the same. allow_operators: as for `load`.
    sandbox=False: also pack a file that nobody vouches for; nothing is packed in a sandbox. compare: then run the
    packed file by the native engine and on the tape, on inputs that are made up, and raise where they differ.

    >>> import torch, cleave
    >>> cleave.capture(torch.nn.Linear(4, 4), torch.ones(2, 4)).save("small.clv")
    >>> cleave.pack_weights("small.clv", "packed.clv", isas=["neon", "avx2"])
    >>> cleave.load("packed.clv", engine="native")(torch.ones(2, 4)).shape
    torch.Size([2, 4])
    """
    os.stat(path)
    artifact = _native.Artifact(os.fsencode(path), list(allow_operators), False)
    to = path if output is None else output
    _native.pack_weights(artifact, list(isas), os.fsencode(to), _sandbox(sandbox))
    if compare:
        packed = _native.Artifact(os.fsencode(to), list(allow_operators), False)
        _compare(str(to), packed, None, _sandbox(sandbox))


def _warn_barred(model: LoadedModel) -> None:
    left = [s for s in model.segments if s.barred]
    if left:
        parts = "a compiled part is" if len(left) == 1 else f"{len(left)} compiled parts are"
        _log.warn(
            f"{model.path}: {parts} not used, the model runs operator by operator there: it is code of whoever made "
            "the file; load(..., allow_compiled=True) uses it, where you trust them"
        )


def _names(what: str, names: Sequence[str]) -> str:
    return f"{what}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"


def _ports_text(ports: Sequence[Port], most: int = 3) -> str:
    shown = [f"{p.name} {p.dtype}[{','.join(map(str, p.shape))}]" for p in ports[:most]]
    more = f" and {len(ports) - most} more" if len(ports) > most else ""
    return (", ".join(shown) or "none") + more


class LoadedModel(_show.Shown, Drawable):
    """A model, or a part of one, from a .clv file. Call it as the model was called.

    Of a file that holds a cut model, run_prefix and run_suffix run the halves; boundaries are those of SplitRuntime."""

    def __init__(self, path: str, artifact: Any, runtime: Any, part: str | None, types: tuple[type, ...]) -> None:
        self.path = path
        self._artifact = artifact
        self._runtime = runtime
        self._types = types
        held, self.split_id, self.boundary, self._batch, _, self.has_weights, count = artifact.head()
        self.part: str = part or held
        self._plans = [self._plan(i) for i in range(count)]
        first = self._plans[0].native
        self._input = Structure(first.tree(False), types, names=first.input_names())
        self._ties: dict[str, str] = first.ties()
        self._lent: _Lent | None = None  # by state_dict(), as they were
        self._packed = artifact.packed(0) is not None  # and it was not reported yet whether that was of use
        self._arguments: tuple[Any, ...] | None = None  # of the runtime: for others of the same file
        self._saved_version: int = runtime.weight_version()

    @classmethod
    def of(cls, path: str, types: tuple[type, ...], artifact: Any, *how: Any) -> LoadedModel:
        """A runtime for an open artifact. how: the other arguments of _native.Runtime."""
        model = cls(path, artifact, _native.Runtime(artifact, *how), how[1], types)
        model._arguments = (artifact, *how)
        return model

    def _plan(self, i: int) -> _PlanHere:
        native, signature, _first, _end, cut, stores, points, fixed = self._artifact.plan(i)
        return _PlanHere(
            native, signature, cut, stores, points, fixed, Structure(native.tree(True), self._types, stores)
        )

    # ---- running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._need("all")
        self._look_at_lent()
        which, _, out, _ = self._runtime.run(self._input.take_apart(args, kwargs))
        self._note_packing()
        return self._plans[which].output.rebuild(out)

    def run_prefix(self, *args: Any, **kwargs: Any) -> BoundaryPayload:
        """Runs the model up to the boundary."""
        self._need("prefix")
        self._look_at_lent()
        leaves = self._input.take_apart(args, kwargs)
        which, sizes, tensors, version = self._runtime.run(leaves)
        self._note_packing()
        sizes = {**sizes, **self._plans[which].fixed}
        inputs, labels, schemas = self._runtime.plan(which)
        return BoundaryPayload(
            split_id=self.split_id,
            graph_signature=self._plans[which].signature,
            batch_size=sizes.get(self._batch),
            tensors=dict(zip(labels, tensors, strict=True)),
            schema={
                label: TensorSchema(dtype, dims(shape), where, grad)
                for label, (dtype, shape, where, grad) in zip(labels, schemas, strict=True)
            },
            requires_grad=dict.fromkeys(labels, False),
            weight_version=version,
            passthrough_inputs=tuple(label for label in labels if label in inputs),
            sizes=sizes,
        )

    def run_suffix(self, boundary: BoundaryPayload) -> Any:
        """Runs the rest of the model."""
        self._need("suffix")
        self._look_at_lent()
        if not isinstance(boundary, BoundaryPayload):
            raise TypeError(f"run_suffix takes the BoundaryPayload of run_prefix, not {type(boundary).__name__}")
        tensors = list(boundary.tensors.values())
        which, out = self._runtime.run_suffix(boundary_facts(boundary), tensors, boundary.weight_version)
        self._note_packing()
        return self._plans[which].output.rebuild(out)

    def _note_packing(self) -> None:
        """Says so once where packed weights of the file were of no use: the next start takes as long."""
        if not self._packed:
            return
        self._packed = False
        found, repacked, damaged = self._runtime.packing()
        if repacked:
            why = "damaged" if damaged else "for another machine or another version"
            log.warning(
                "%s: %d of %d weights were packed in memory, because the packed ones of the file are %s; "
                "cleave.pack_weights makes them anew",
                *(self.path, repacked, repacked + found, why),
            )

    def remote(
        self,
        url: str,
        *,
        compress: Compress = None,
        fallback: Callable[[BoundaryPayload], Any] | None = None,
        **options: Any,
    ) -> RemoteSplit:
        """This prefix with its suffix on a server: the prefix runs here, the rest at url, as cleave.connect takes it.

        compress: how boundaries are sent. fallback: a function of a boundary that runs the rest while the server is
        away, as run_suffix of the other half; None: RemoteError is raised. options: those of connect. The server is
        asked at the first call."""
        self._need("prefix")
        return RemoteSplit(self, connect(url, **{"lazy": True, **options}), compress, fallback)

    def _outputs_from(self, boundary: BoundaryPayload, tensors: Sequence[torch.Tensor]) -> Any:
        plan = next(p for p in self._plans if p.signature == boundary.graph_signature)
        if plan.stores or plan.output.computes_numbers:
            raise InputError("some of what the suffix gives are no tensors, and a server gives tensors alone")
        return plan.output.rebuild(tensors)

    def _need(self, part: str) -> None:
        if self.part != part:
            held = "the whole model" if self.part == "all" else f"the {self.part}"
            hint = f'; load(..., part="{part}") gives that of a cut model' if self.part == "all" else ""
            raise InputError(f"this is {held}, not {'the whole model' if part == 'all' else f'a {part}'}{hint}")

    # ---- what it is

    @property
    def weight_version(self) -> int:
        """A hash of all bits of the model's tensors, as in SplitRuntime; boundaries carry it."""
        self._look_at_lent()
        version: int = self._runtime.weight_version()
        return version

    @property
    def changed(self) -> bool:
        """Whether it has other weights than its file."""
        return self.weight_version != self._saved_version

    @property
    def about(self) -> dict[str, str]:
        """Where the file comes from: the model's class, the version of torch, what the writer added."""
        notes: dict[str, str] = self._artifact.about()
        return notes

    @property
    def signer(self) -> str | None:
        """Fingerprint of the trusted key that signed the file; None: it was loaded without trusted_keys."""
        signer: str | None = self._artifact.signer()
        return signer

    @property
    def sandboxed(self) -> bool:
        """Whether it runs in a sandbox: asked for, or because nobody vouches for the file."""
        return bool(self._runtime.sandboxed())

    @property
    def inputs(self) -> list[Port]:
        """What goes in."""
        return [Port(n, d, dims(s), where) for n, d, s, where in self._runtime.inputs()]

    @property
    def outputs(self) -> list[Port]:
        """The tensors that come out, by their place in the output."""
        return [Port(n, d, dims(s), where) for n, d, s, where in self._runtime.outputs()]

    def optimizations(self) -> str:
        """What was done to run it faster, one line each: passes, measured times, what runs."""
        text: str = self._runtime.optimizations()
        return text

    @property
    def segments(self) -> list[SegmentState]:
        """The compiled parts of the file: which of them run, how often, and why others do not."""
        return [SegmentState(*s) for s in self._runtime.segments()]

    @property
    def text(self) -> str:
        """The first plan's text form (docs/plan-format.md)."""
        text: str = self._plans[0].native.text()
        return text

    @property
    def nodes(self) -> list[Node]:
        """The operators of the first plan."""
        return [Node(*n) for n in self._plans[0].native.nodes()]

    def inspect(self) -> str:
        """A page about the first plan."""
        page: str = self._plans[0].native.inspect()
        return page

    def _subject(self) -> Subject:
        first = self._plans[0]
        position = first.cut - 1 if first.cut > 0 else None
        return Subject(first.native, self.about.get("model", "model"), first.signature, None, position)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The tensors by their state_dict names, on the memory that runs read; constants of the plans are left out.

        They are this model's own: tensors that lie on the file become copies. Writing to them while other threads run
        the model changes those runs midway; load_state_dict does not."""
        self._look_at_lent()
        self._runtime.own_state()
        state = self._state()
        self._lend(state)
        return {**state, **{other: state[name] for other, name in self._ties.items() if name in state}}

    def _state(self) -> dict[str, torch.Tensor]:
        return {k: t for k, t in self._runtime.state().items() if not k.startswith("cleave.const.")}

    def _lend(self, state: dict[str, torch.Tensor]) -> None:
        own = set(self._runtime.changing())  # runs write these: they are state, and no compiled segment reads them
        entries = [(None, name, t) for name, t in state.items() if name not in own]
        self._lent = _Lent(entries, _native.marks(entries, True))

    def _look_at_lent(self) -> None:
        """A caller may have written tensors of state_dict(): these are other weights, and compiled segments have
        the old ones."""
        lent = self._lent
        if lent is None or _native.marks_changed(lent.entries, True, lent.marks) is None:
            return
        self._runtime.weights_changed()
        for _, name, t in lent.entries:
            self._runtime.note(name, t)
        self._lent = _Lent(lent.entries, _native.marks(lent.entries, True))

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """Copies tensors in, by name, between two runs: runs of other threads have all of the old ones or all of the
        new ones. strict=False passes over names that are missing, or unknown to the model.

        Give a half the whole state_dict of the model: boundaries say which weights made them, and a suffix takes those
        of a prefix that was given the same."""
        self._look_at_lent()
        here, unbound = self._state(), set(self._runtime.unbound())
        given = {self._ties.get(name, name): t for name, t in state.items()}
        missing = [n for n in (*here, *sorted(unbound)) if self._ties.get(n, n) not in given]
        unknown = [n for n in given if not self._runtime.knows(n)]
        if strict and (missing or unknown):
            raise InputError(
                "; ".join(_names(text, n) for text, n in (("missing", missing), ("not read", unknown)) if n)
            )
        for name, t in given.items():
            if name in here and (here[name].shape != t.shape or here[name].dtype != t.dtype):
                want = f"{here[name].dtype} {tuple(here[name].shape)}"
                raise InputError(f"{name} is {t.dtype} {tuple(t.shape)}, the model has {want}")
        self._runtime.assign({name: t.detach() for name, t in given.items()})
        if self._lent is not None:
            self._lend(self._state())

    def cancel(self) -> None:
        """Ends the runs of this model that other threads have begun, at their next operator, with LimitError."""
        self._runtime.cancel()

    def check_data(self) -> None:
        """Compares all weights with the digests that were written with them."""
        self._artifact.check_data()

    def report(self, path: Path = "report.html", *, title: str | None = None) -> os.PathLike[str]:
        """Writes the first plan as one HTML file to look at (docs/report.md), and says where it is. Of a traced file it
        shows what is compiled, and why the rest is not."""
        cut = self._plans[0].cut
        at = cut - 1 if cut > 0 else None
        return _report.write_file(self._artifact, path, title, at, tracing.on_tape(self._runtime))

    def trace_report(self) -> tracing.Report:
        """What is compiled of a traced file, what is not and why, and what was measured. InputError: it was not traced.

        >>> import torch, cleave
        >>> traced = cleave.trace(torch.nn.Linear(4, 2).eval(), torch.randn(3, 4), dryrun=True)
        >>> traced.save("traced.clv")
        >>> "aten::linear" in str(cleave.load("traced.clv").trace_report())
        True
        """
        if not any(_native.trace_segments(self._artifact, 0)):
            raise InputError(f"{self.path} was not traced: it has no compiled parts")
        return tracing.report_of(self._artifact, self._runtime, {})

    @property
    def coverage(self) -> tracing.Coverage:
        """How much of the first plan is compiled in the file: nothing, if it was not traced."""
        if any(_native.trace_segments(self._artifact, 0)):
            return self.trace_report().coverage
        return tracing.Coverage(self._plans[0].native.node_count(), 0, 0.0, 0.0)

    def split(self, boundary: str | None, prefix: Path, suffix: Path) -> None:
        """Writes the two halves as files of their own; boundary None: where the model is cut already."""
        self._artifact.split(boundary, os.fsencode(prefix), os.fsencode(suffix))

    def __reduce__(self) -> Any:
        raise TypeError(f"a LoadedModel uses the memory of its file and cannot be copied: load {self.path} again")

    def _shown(self) -> tuple[str, _show.Facts]:
        first = self._plans[0]
        plans = f", {len(self._plans)} plans" if len(self._plans) > 1 else ""
        what = "" if self.part == "all" else f"{self.part} of "
        start, end = self._range(first)
        nodes = _show.plural(end - start, "node")
        head = f"cleave.LoadedModel {what}{self.about.get('model', 'a model')}: {nodes}{plans}"
        proven = [("proven at", _show.points_text(first.points))] if first.points else []
        facts = _show.plan_facts(first.native)
        return head, [("file", self.path), *(facts if self.part == "all" else self._part_facts(facts)), *proven]

    def _range(self, first: _PlanHere) -> tuple[int, int]:
        """The nodes of the first plan that run here."""
        n = first.native.node_count()
        return {"all": (0, n), "prefix": (0, first.cut), "suffix": (first.cut, n)}[self.part]

    def _part_facts(self, facts: _show.Facts) -> _show.Facts:
        """Those of the plan, with the parameters, inputs and outputs of the part."""
        first = self._plans[0]
        cut = SplitCandidate(*first.native.frontiers()[first.cut - 1])
        here = (cut.prefix_params, cut.prefix_param_bytes), (cut.suffix_params, cut.suffix_param_bytes)
        count, size = here[self.part == "suffix"]
        own = {
            "parameters": f"{_native.text_count(count)}, {_native.text_bytes(size)}",
            "inputs": _ports_text(self.inputs),
            "outputs": _ports_text(self.outputs),
        }
        return [(title, own.get(title, text)) for title, text in facts]
