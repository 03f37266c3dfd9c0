"""The command line of the package. `capture` runs here, because a model is Python code; `demo` is a module of its own;
for everything else this process becomes the C command.

The help texts of the options are in src/cli/capture.c."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import itertools
import json
import logging
import os
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn

from . import _example, _exported, _log, _native, _save, _show, progress
from ._capture import parameter_names
from ._state import Target
from .errors import CaptureError, CleaveError, GuardError, SplitError
from .plan import Plan, capture
from .progress import set_progress
from .spec import SplitSpec
from .split import SplitRuntime, prepare_split

DONE, FAILED, USAGE = 0, 1, 2
BATCH = "B"
_EXAMPLE_BATCH = 2  # rows of a batch for which no size is given


class Complaint(Exception):
    """Ends a command with what is wrong, what to do about it, and the exit status."""

    def __init__(self, text: str, hint: str = "", status: int = FAILED) -> None:
        super().__init__(text)
        self.hint = hint
        self.status = status


def main(argv: Sequence[str]) -> int:
    """Runs a command; its exit status."""
    common, rest = _leading_options(argv)
    command = rest[0] if rest else ""
    if command == "capture":
        return _run(_capture, [*rest[1:], *common])
    if command == "demo":
        from . import demo

        return demo.main(list(rest[1:]))
    if common == ["--version"] or common == ["-V"]:
        print(f"cleave {_native.version}")
        return DONE
    return _run(_list_all if command in ("", "help") and len(rest) < 2 else _become, list(argv))


def _leading_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options before the command, which every command takes, and the rest."""
    n = 0
    while n < len(argv) and argv[n].startswith("-"):
        n += 2 if argv[n] == "--color" else 1
    return list(argv[:n]), list(argv[n:])


# ---- the C command


def find_command() -> str | None:
    """The C command of this environment; for a package in a build folder, the one of that build."""
    package = Path(__file__).parent
    schemes = [None, f"{os.name}_user"]
    folders = [package.parent.parent, Path(sys.executable).parent]
    folders += [Path(sysconfig.get_path("scripts", s) if s else sysconfig.get_path("scripts")) for s in schemes]
    paths = (folder / "cleave" for folder in folders)
    return next((str(p) for p in paths if p.is_file() and os.access(p, os.X_OK)), None)


def _command() -> str:
    path = find_command()
    if path is None:
        raise Complaint("the cleave command is not installed with this package", "`pip install` of Cleave has it")
    return path


def _become(argv: Sequence[str]) -> int:
    path = _command()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, [path, *argv])


def _list_all(argv: Sequence[str]) -> int:
    """The commands of the C command, and the one that only this package has."""
    done = subprocess.run([_command(), *argv], check=False)
    out = sys.stderr if done.returncode else sys.stdout
    print("\n`python -m cleave` takes all of these, and `demo`: a ResNet-18, captured, cut and compared.", file=out)
    return done.returncode


# ---- errors


class Style(NamedTuple):
    """Colours and verbosity."""

    color: str = "auto"
    quiet: bool = False
    verbose: bool = False

    def paint(self, code: str, text: str) -> str:
        """Colours on a terminal, as the C command has them."""
        auto = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return f"\033[{code}m{text}\033[0m" if self.color == "always" or (self.color == "auto" and auto) else text

    def complain(self, text: str, hint: str) -> None:
        """On standard error: the reason, and what to do."""
        with progress.aside():
            print(self.paint("31", "cleave: ") + _show.plain(text), file=sys.stderr)
            if hint and not self.quiet:
                print(self.paint("33", "hint: ") + _show.plain(hint), file=sys.stderr)


_HINTS: tuple[tuple[type[Exception], str], ...] = (
    (_example.Problem, _example.Problem.hint),
    (SplitError, '--boundary takes "50%", "auto", "after:<module path>" or "after:<node name>"'),
    (GuardError, "the model goes another way on other data; inputs in a narrower range may keep it on one"),
    (CaptureError, "-v shows where; a part of the model can be captured through a factory that returns it"),
)


def _run(command: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    style = Style(_color(argv), *(any(w in argv for w in words) for words in (("-q", "--quiet"), ("-v", "--verbose"))))
    try:
        return command(argv)
    except Complaint as error:
        shown: BaseException = error
        text, hint, status = str(error), error.hint, error.status
    except CleaveError as error:
        shown = error
        text, status = str(error), USAGE if isinstance(error, _example.Problem) else FAILED
        hint = next((h for kind, h in _HINTS if isinstance(error, kind)), "")
    except OSError as error:
        shown = error
        text = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
        hint, status = "", FAILED
    except KeyboardInterrupt:
        return 130
    if style.verbose and not (isinstance(shown, Complaint) and shown.__cause__ is None):
        traceback.print_exception(shown)
    style.complain(text, hint)
    return status


def _color(argv: Sequence[str]) -> str:
    given = [b for a, b in itertools.pairwise(argv) if a == "--color"]
    return (given + [w.partition("=")[2] for w in argv if w.startswith("--color=")] + ["auto"])[0]


@contextlib.contextmanager
def _doing(what: str) -> Iterator[None]:
    """Around the user's code: turns what it raises into one line."""
    try:
        yield
    except (CleaveError, Complaint, OSError):
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        text = f"{what} raised {type(error).__name__}{f': {first}' if first else ''}"
        raise Complaint(text, "-v shows where") from error


# ---- capture: what it takes


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Complaint(message, "`python -m cleave capture --help` lists the options", USAGE)


def parser() -> argparse.ArgumentParser:
    """The options of capture; their help is in src/cli/capture.c."""
    p = _Parser(prog="python -m cleave capture", add_help=False, allow_abbrev=False)
    p.add_argument("target", metavar="TARGET")
    p.add_argument("-o", "--output", metavar="FILE")
    p.add_argument("--text", metavar="FILE")
    p.add_argument("--arg", metavar="NAME=VALUE", action="append", default=[])
    p.add_argument("--factory-args", metavar="JSON")
    p.add_argument("--weights", metavar="FILE")
    mode = p.add_mutually_exclusive_group()
    mode.add_argument("--eval", action="store_true")
    mode.add_argument("--train", action="store_true")
    p.add_argument("--device", default="cpu")
    p.add_argument("--seed", type=_number, default=0, metavar="N")
    p.add_argument("-i", "--input", metavar="SPEC", action="append", default=[])
    p.add_argument("--dynamic-batch", metavar="LOW:HIGH", type=_range)
    p.add_argument("--dim", metavar="NAME=LOW:HIGH", action="append", default=[])
    p.add_argument("--size", metavar="NAME=N", action="append", default=[])
    p.add_argument("--sizes", metavar="LIST", action="append", default=[])
    p.add_argument("--prove", choices=_save.PROVE, default="auto")
    p.add_argument("-b", "--boundary", metavar="WHERE")
    p.add_argument("--parts", choices=_save.PARTS)
    p.add_argument("--no-weights", action="store_true")
    p.add_argument("--metadata", metavar="KEY=TEXT", action="append", default=[])
    p.add_argument("-v", "--verbose", action="store_true")
    p.add_argument("-q", "--quiet", action="store_true")
    p.add_argument("--color", choices=("auto", "always", "never"))
    p.add_argument("-h", "--help", action="store_true")
    p.add_argument("-V", "--version", action="store_true")
    return p


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"a whole number, not {text!r}")
    return int(text)


def _range(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"a range LOW:HIGH such as 1:64, not {text!r}")
    return _number(low), _number(high)


def _pairs(option: str, texts: Sequence[str], read: Callable[[str], Any]) -> dict[str, Any]:
    """What NAME=VALUE options say."""
    out: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Complaint(f"{option} takes NAME=VALUE, not {text!r}", status=USAGE)
        if name in out:
            raise Complaint(f"{option} {name} is given twice", status=USAGE)
        try:
            out[name] = read(value)
        except argparse.ArgumentTypeError as error:
            raise Complaint(f"{option} {name}: {error}", status=USAGE) from None
    return out


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _factory_arguments(o: argparse.Namespace) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    if o.factory_args is not None:
        try:
            given = json.loads(o.factory_args)
        except ValueError as error:
            raise Complaint(f"--factory-args is no JSON: {error}", status=USAGE) from None
        if isinstance(given, list):
            args = given
        elif isinstance(given, dict):
            kwargs = given
        else:
            raise Complaint(f"--factory-args is an object or an array, not {o.factory_args}", status=USAGE)
    return args, {**kwargs, **_pairs("--arg", o.arg, _json_or_text)}


# ---- capture: the model


def resolve(target: str) -> Any:
    """The object that package.module:a.b or file.py:a.b names."""
    where, colon, path = target.rpartition(":")
    if not colon or not where or not path:
        hint = "a target is package.module:factory, file.py:factory or file.pt2"
        raise Complaint(f"{target}: this names no factory", hint, USAGE)
    found: Any = _from_file(where) if where.endswith(".py") else _from_package(where)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            near = ", ".join(n for n, v in vars(found).items() if callable(v) and n[0] != "_")[:200]
            raise Complaint(f"{target}: there is no {name} in it", f"there is {near}" if near else "") from None
    return found


def _from_package(name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with _doing(f"importing {name}"):
            return importlib.import_module(name)
    except Complaint as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and f"{name}.".startswith(f"{missing.name}."):
            hint = "the current folder and the packages of this Python are looked into"
            raise Complaint(f"there is no module {missing.name}", hint) from None
        raise


def _from_file(path: str) -> Any:
    file = Path(path)
    if not file.is_file():
        raise Complaint(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)
    folder = str(file.parent.resolve())
    if folder not in sys.path:  # as for a script
        sys.path.insert(0, folder)
    with _doing(f"running {path}"):
        spec.loader.exec_module(module)
    return module


def build(target: str, found: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """The model: what a factory returns, or the named object itself."""
    given = bool(args or kwargs)
    if not callable(found):
        raise Complaint(f"{target} is of the type {type(found).__name__}: it cannot be called")
    if isinstance(found, nn.Module) or not _takes(found, args, kwargs):
        if not given:
            model: Callable[..., Any] = found
            return model
        what = "a module already" if isinstance(found, nn.Module) else "called in another way"
        raise Complaint(f"{target} does not take these arguments: it is {what}{_signature(found)}")
    with _doing(f"{target}{_signature(found)}"):
        made: Callable[..., Any] = found(*args, **kwargs)
    if not callable(made):
        raise Complaint(f"{target} returns {type(made).__name__}, which is no module and cannot be called")
    return made


def _takes(found: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(found).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # it has no signature to look at
        return True
    return True


def _signature(found: Any) -> str:
    try:
        return "" if isinstance(found, nn.Module) else str(inspect.signature(found))
    except (TypeError, ValueError):
        return ""


def load_weights(model: Any, path: str) -> None:
    """Loads parameters and buffers by name: all of them, and nothing else. A tied one needs only one of its names."""
    if not isinstance(model, nn.Module):
        raise Complaint(f"--weights needs a module, and this is a {type(model).__name__}")
    state = {name: t for name, t in model.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)}
    stored = _example.read_file(path)
    if path.endswith(".clv"):  # it also has constants and tensors in attributes, which no state_dict has
        stored = {name: t for name, t in stored.items() if name in state}
    there = {(t.data_ptr(), t.shape, t.stride()) for name, t in state.items() if name in stored}
    tied = {name for name, t in state.items() if (t.data_ptr(), t.shape, t.stride()) in there}
    lacks = [name for name in state if name not in stored and name not in tied]
    unknown = [name for name in stored if name not in state]
    for names, text in ((lacks, "lacks"), (unknown, "has, and the model does not,")):
        if names:
            raise Complaint(f"{path}: it {text} {', '.join(names[:5])}{' …' if len(names) > 5 else ''}")
    for name, tensor in stored.items():
        if tensor.shape != state[name].shape or tensor.dtype != state[name].dtype:
            text = f"{_show.tensor_text(tensor)}, in the model {_show.tensor_text(state[name])}"
            raise Complaint(f"{path}: {name} is {text}")
    with torch.no_grad():
        for name, tensor in stored.items():
            state[name].copy_(tensor)


# ---- capture: the inputs


class Call(NamedTuple):
    """The inputs that the model is captured with, and the sizes that may change."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch: tuple[int, int] | None
    dims: dict[str, dict[int, str]]
    ranges: dict[str, tuple[int, int]]


def make_call(o: argparse.Namespace, model: Callable[..., Any], device: torch.device) -> Call:
    """Inputs from their specs."""
    specs = [_example.parse(text) for text in o.input]
    ranges = _pairs("--dim", o.dim, _range)
    if o.dynamic_batch is not None and ranges.setdefault(BATCH, o.dynamic_batch) != o.dynamic_batch:
        raise Complaint(f"--dynamic-batch and --dim {BATCH} give different ranges", status=USAGE)
    sizes = _example_sizes(specs, _pairs("--size", o.size, _number), ranges)
    values = _example.Values(sizes, o.seed, device)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    dims: dict[str, dict[int, str]] = {}
    names = parameter_names(Target(model), sum(s.name is None for s in specs))
    for spec in specs:
        for name, value in values.of(spec).items():
            key = name if name is not None else names[len(args)]
            if key in kwargs or (name is not None and key in names[: len(args)]):
                raise Complaint(f"input {key} is given twice", status=USAGE)
            named = {d: s for d, s in enumerate(spec.dims or ()) if isinstance(s, str)}
            dims.update({key: named} if named else {})
            if name is None:
                args.append(value)
            else:
                kwargs[name] = value
    batch = ranges.pop(BATCH, None)
    return Call(tuple(args), kwargs, batch, dims, ranges)


def _example_sizes(
    specs: Sequence[_example.Spec], given: Mapping[str, int], ranges: Mapping[str, tuple[int, int]]
) -> dict[str, int]:
    """A size for every symbol: as given, as in a file, or two rows for the batch."""
    sizes = {name: n for spec in specs for name, n in _example.stored_sizes(spec).items()} | dict(given)
    symbols = list(dict.fromkeys(s for spec in specs for s in spec.symbols))
    for name in [*given, *ranges]:
        if name not in symbols and not (name == BATCH and name in ranges):
            has = f"they have {', '.join(symbols)}" if symbols else "write one as in 'f32[4,S]'"
            raise Complaint(f"no input has a dimension {name}", has, USAGE)
    for name in symbols:
        low, high = ranges.get(name, (1, 1 << 62))
        if name not in sizes and (name == BATCH or low == high):
            sizes[name] = min(max(_EXAMPLE_BATCH, low), high)
        if name not in sizes:
            raise Complaint(f"the example needs a size for {name}", f"--size {name}=16", USAGE)
    return sizes


def exported_call(o: argparse.Namespace, found: _exported.Exported, device: torch.device) -> Call:
    """Inputs of an exported program: the file's own, unless the command line has some."""
    if o.input:
        call = make_call(o, found.model, device)
        if call.dims or call.batch or call.ranges:
            named = {name for symbols in call.dims.values() for name in symbols.values()}
            known = {name: r for name, r in found.ranges.items() if name in named}
            return call._replace(batch=call.batch or known.get(BATCH), ranges=_without_batch(known) | call.ranges)
        return call._replace(dims=found.dims, batch=found.ranges.get(BATCH), ranges=_without_batch(found.ranges))
    if found.args is None:
        raise Complaint(f"{o.target} has no example inputs", "--input gives them", USAGE)
    asked = _pairs("--dim", o.dim, _range) | ({} if o.dynamic_batch is None else {BATCH: o.dynamic_batch})
    unknown = [name for name in asked if name not in found.ranges]
    if unknown:
        has = ", ".join(f"{name} {low}:{high}" for name, (low, high) in found.ranges.items())
        hint = f"it was exported with {has}" if has else "torch.export takes dynamic_shapes"
        raise Complaint(f"{o.target}: the program was exported for one size of {unknown[0]}", hint)
    for name, (low, high) in asked.items():
        least, most = found.ranges[name]
        if low < least or (high > most and name in found.bounded):
            raise Complaint(
                f"{o.target}: the program was exported for {name} from {least} to {most}, not {low} to {high}"
            )
    ranges = found.ranges | asked
    return Call(found.args, found.kwargs, ranges.get(BATCH), found.dims, _without_batch(ranges))


def _without_batch(ranges: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    return {name: r for name, r in ranges.items() if name != BATCH}


# ---- capture: doing it


def _capture(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv) and find_command() is not None:
        return _become(["capture", "--help"])
    o = parser().parse_args(argv)
    if o.help:
        parser().print_help()
        return DONE
    if o.version:
        return main(["--version"])
    _check(o)
    with _telling(o), progress.task(f"capturing {o.target}"):
        captured, files = _captured(o)
    if not o.quiet and o.text != "-":
        print(_summary(captured, files))
    return DONE


@contextlib.contextmanager
def _telling(o: argparse.Namespace) -> Iterator[None]:
    """Sets up messages on standard error as the options ask."""
    top = logging.getLogger("cleave")
    before = top.handlers[:], top.level, progress._mode
    if o.verbose and not os.environ.get("CLEAVE_LOG"):
        _log.set_up("info")
    if o.quiet:
        set_progress(False)
    try:
        yield
    finally:
        top.handlers[:], progress._mode = before[0], before[2]
        top.setLevel(before[1])


def _check(o: argparse.Namespace) -> None:
    """Checks what can be checked before anything runs."""
    if o.output is None and o.text is None:
        raise Complaint("there is nothing to write", "-o model.clv names a file", USAGE)
    if o.parts not in (None, "all") and o.boundary is None:
        raise Complaint(f"the model is not cut: there is no {o.parts}", "--boundary 50% cuts it", USAGE)
    if o.output is not None and not o.output.endswith(".clv") and o.boundary is None:
        raise Complaint(f"{o.output}: a model is written to a .clv file", f"-o {o.output}.clv", USAGE)
    for path in (o.output, o.text):
        if path is not None and not Path(path).parent.is_dir():
            raise Complaint(f"{Path(path).parent}: there is no such folder")
    _factory_arguments(o)
    _sizes(o)
    _pairs("--metadata", o.metadata, str)


def _sizes(o: argparse.Namespace) -> list[dict[str, int]]:
    """The points that --sizes names: batch sizes, or one point by symbols."""
    out: list[dict[str, int]] = []
    for text in o.sizes:
        parts = [p.strip() for p in text.split(",")]
        if any("=" in p for p in parts):
            out.append(_pairs("--sizes", parts, _number))
        else:
            out.extend(_pairs("--sizes", [f"{BATCH}={p}"], _number) for p in parts)
    return out


def _captured(o: argparse.Namespace) -> tuple[Plan | SplitRuntime, list[str]]:
    try:
        device = torch.device(o.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise Complaint(f"--device {o.device}: {str(error).splitlines()[0]}") from error
    exported = o.target.endswith(".pt2")
    model, call = _exported_model(o, device) if exported else _python_model(o, device)
    explained = _exported.explained(o.target) if exported else contextlib.nullcontext()
    with torch.set_grad_enabled(o.train), _doing("the model"), explained:
        made = _record(o, model, call)
        return made, _write(o, made)


def _python_model(o: argparse.Namespace, device: torch.device) -> tuple[Callable[..., Any], Call]:
    found = resolve(o.target)
    torch.manual_seed(o.seed)
    model = build(o.target, found, *_factory_arguments(o))
    if isinstance(model, nn.Module):
        with _doing(f"moving {o.target} to {device}"):
            model = model.to(device).train(o.train)
    if o.weights is not None:
        load_weights(model, o.weights)
    return model, make_call(o, model, device)


def _exported_model(o: argparse.Namespace, device: torch.device) -> tuple[Callable[..., Any], Call]:
    if o.train or any(_factory_arguments(o)):
        what = "--train" if o.train else "arguments"
        raise Complaint(f"{what}: an exported program cannot be changed any more", status=USAGE)
    if not Path(o.target).is_file():
        raise Complaint(f"{o.target}: there is no such file")
    with _doing(f"reading {o.target}"):
        found = _exported.load(o.target, device)
    if o.weights is not None:
        load_weights(found.model, o.weights)
    return found.model, exported_call(o, found, device)


def _record(o: argparse.Namespace, model: Callable[..., Any], call: Call) -> Plan | SplitRuntime:
    """The plan, or the split where there is a boundary, recorded at the sizes that were asked for."""
    points = _sizes(o)
    if points and call.batch is None and not call.dims:
        raise Complaint("--sizes needs sizes that may change", "--dynamic-batch 1:64 makes the batch one", USAGE)
    if o.boundary is None:
        plan = capture(
            model,
            call.args,
            call.kwargs,
            dynamic_batch=call.batch,
            dynamic_dims=call.dims,
            dynamic_ranges=call.ranges,
        )
        plan.prepare_sizes(*points)
        return plan
    spec = SplitSpec(o.boundary, dynamic_batch=call.batch, dynamic_dims=call.dims, dynamic_ranges=call.ranges)
    runtime = prepare_split(model, example_inputs=call.args, example_kwargs=call.kwargs, split=spec)
    if points:
        runtime.prepare_sizes(*points)
    return runtime


def _write(o: argparse.Namespace, made: Plan | SplitRuntime) -> list[str]:
    """Writes what was asked for. Returns the paths of the model files."""
    plan = made if isinstance(made, Plan) else made.trace_plan
    if o.text == "-":
        sys.stdout.write(plan.text)
    elif o.text is not None:
        Path(o.text).write_text(plan.text, encoding="utf-8", errors="surrogateescape")
    if o.output is None:
        return []
    notes = _pairs("--metadata", o.metadata, str)
    progress.step(f"writing {o.output}")
    if isinstance(made, SplitRuntime):
        return made.save(o.output, parts=o.parts, weights=not o.no_weights, prove=o.prove, metadata=notes)
    made.save(o.output, weights=not o.no_weights, prove=o.prove, metadata=notes)
    return [o.output]


def _summary(made: Plan | SplitRuntime, files: Sequence[str]) -> str:
    head, facts = made._shown()
    rows = [("", title, _show.clip(text)) for title, text in facts]
    sized = made._sized if isinstance(made, Plan) else made.sized
    left = 0 if sized is None or not files else _save.unproven(sized, sized.proven)
    rows += [("", "refused", f"{_show.plural(left, 'other size')}; --prove all records them too")] if left > 0 else []
    rows += [("", "file", f"{path}, {_native.text_bytes(os.path.getsize(path))}") for path in files]
    return f"{head.partition(' of ')[2]}\n{_show.columns(rows, (False, False, False))}"
