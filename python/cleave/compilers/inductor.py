"""The back end `inductor`: a segment through torch.export and AOTInductor to one shared object, weights inside.

    python -m cleave.compilers.inductor FOLDER

Arguments of the compiler (compiler_args):

    --freezing=on|off     fold constants and pack weights for this CPU; left out: on, and off where that fails
    --max-autotune        measure several kernels for products of matrices and convolutions; slow to compile
    --option=KEY=VALUE    any setting of torch._inductor.config ("cpp.simdlen=256")

Symbols of the job stay symbols. The object is for this version of torch and for CPUs with the features of this one."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ._job import Input, Job, Made, Refused, Segment, evaluate, refuse_narrowed, run, short

MEMBER = "model.so"
PROXY = "aoti_torch_proxy_executor_call_function"

# What compilers use without being asked to: to run elsewhere these must be there. By the names of /proc/cpuinfo.
_X86 = re.compile(r"sse|ssse|avx|fma|f16c|bmi|popcnt|movbe|abm|adx|gfni|vaes|vpclmul")
_OTHER_NAMES = {"pni": "sse3", "bmi1": "bmi", "abm": "lzcnt"}


# ---- arguments


def settings(args: Sequence[str]) -> tuple[dict[str, Any], list[bool]]:
    """Settings of inductor, and whether to freeze: what to try, one after another."""
    out: dict[str, Any] = {}
    freezing = [True, False]
    for text in args:
        name, _, given = text.partition("=")
        if name == "--freezing" and given in ("on", "off"):
            freezing = [given == "on"]
        elif text == "--max-autotune":
            out["max_autotune"] = True
        elif name == "--option":
            key, _, value = given.partition("=")
            out[key] = _setting(text, key, value)
        else:
            raise Refused(f"inductor has no argument {text!r}", argument=text)
    return out, freezing


def _setting(text: str, key: str, value: str) -> Any:
    """The value of a setting, of the type that it has now."""
    from torch._inductor import config

    known = config.get_config_copy()
    if key not in known:
        raise Refused(f"{text}: torch {torch.__version__} has no setting {key!r} of inductor", argument=text)
    now = known[key]
    try:
        if isinstance(now, bool):
            return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
        if isinstance(now, (int, float)):
            return type(now)(value)
        if isinstance(now, str):
            return value
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError):
            return value
    except (ValueError, KeyError):
        raise Refused(f"{text}: {key} is of type {type(now).__name__} ({now!r})", argument=text) from None


def _defaults(job: Job, folder: Path) -> dict[str, Any]:
    from torch._inductor import config

    wanted = {
        "compile_threads": max(1, job.threads),
        "force_disable_caches": True,
        # Otherwise arrays in the code have as many elements as there are threads here: with more it writes beyond them.
        "cpp.dynamic_threads": True,
        "aot_inductor.output_path": str(folder / MEMBER),
        "aot_inductor.precompile_headers": False,  # most of the time goes into what is not in them
        "aot_inductor.enable_line_tables": False,
        "aot_inductor.enable_frame_pointer": False,
        # Kernels of a GPU go into the object too, else it looks for them in the folder of the job.
        "aot_inductor.embed_kernel_binary": any(i.device != "cpu" for i in job.inputs) or None,
    }
    known = config.get_config_copy()
    return {key: value for key, value in wanted.items() if key in known}


# ---- export


def _dim(job: Job, text: str, symbols: Mapping[str, Any]) -> Any:
    """How a size changes: a formula of torch's own, where it can say it; else that it does."""
    from torch.export import Dim

    if not job.is_free(text):
        return None
    try:
        out = evaluate(text, symbols)
    except Exception:  # torch knows a*B+b alone
        return Dim.DYNAMIC
    return out


def _dynamic_shapes(job: Job, formulas: bool) -> tuple[dict[int, Any], ...]:
    from torch.export import Dim

    symbols: dict[str, Any] = {name: s.low for name, s in job.sizes.items()}
    for name in job.free:
        symbols[name] = Dim(name, min=job.sizes[name].low, max=job.sizes[name].high)

    def of(port: Input) -> dict[int, Any]:
        changing = ((d, text) for d, text in enumerate(port.shape) if job.is_free(text))
        return {d: _dim(job, text, symbols) if formulas else Dim.DYNAMIC for d, text in changing}

    return tuple(of(i) for i in job.inputs)


def export(job: Job, examples: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
    module = job.segment.module
    first: Exception | None = None
    for formulas in (True, False):  # what torch finds out by itself is sometimes more than it takes from us
        try:
            shapes = _dynamic_shapes(job, formulas)
            program = torch.export.export(module, tuple(examples), dynamic_shapes=shapes, strict=False)
            refuse_narrowed(job, program)
            return program
        except Exception as error:
            if not job.free:
                raise
            first = first or error
    assert first is not None
    raise first


# ---- compile


def _compile(program: torch.export.ExportedProgram, examples: Sequence[torch.Tensor], options: dict[str, Any]) -> Path:
    out = torch._inductor.aot_compile(program.module(), tuple(examples), options=options)
    if not isinstance(out, str):
        raise RuntimeError(f"inductor gave {out!r} instead of one file")
    return Path(out)


@contextlib.contextmanager
def _no_proxies(segment: Segment) -> Iterator[None]:
    """Ends the compiler at the first operator for which it has neither code nor a C function: its code would ask a
    runtime that only Python has. That is known long before the C++ compiler has run."""
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    name = "generate_fallback_kernel_with_runtime_lookup_aot"
    before = getattr(CppWrapperCpu, name, None)
    if before is None:
        yield
        return

    def refuse(self: Any, op: Any, *args: Any, **kwargs: Any) -> None:
        nodes = list(dict.fromkeys(n for text in _stacks((args, kwargs), op) for n in segment.quoted(text)))
        raise Refused(f"inductor has no C function for {_name(op)}", nodes or segment.with_operator(_name(op)))

    setattr(CppWrapperCpu, name, refuse)
    try:
        yield
    finally:
        setattr(CppWrapperCpu, name, before)


def _name(op: Any) -> str:
    text = str(op)  # "aten.sort.stable"
    space, _, rest = text.partition(".")
    return f"{space}::{rest.removesuffix('.default')}" if rest else text


def _stacks(found: Any, op: Any) -> Iterator[str]:
    """Where in segment.py the calls of `op` are that the buffers among the arguments come from."""
    if isinstance(found, (list, tuple)):
        for x in found:
            yield from _stacks(x, op)
    elif isinstance(found, dict):
        yield from _stacks(list(found.values()), op)
    else:
        for origin in getattr(found, "origins", None) or ():
            if origin.target is op and (trace := origin.meta.get("stack_trace")):
                yield trace


def _has_proxies(folder: Path) -> bool:
    return any(f"{PROXY}(" in p.read_text(encoding="utf-8", errors="replace") for p in folder.rglob("*.cpp"))


def _refused(error: BaseException | None) -> Refused | None:
    """Ours, among what the compiler wrapped around it."""
    while error is not None and not isinstance(error, Refused):
        error = error.__cause__ or error.__context__
    return error


def _nodes_of(segment: Segment, error: BaseException) -> list[str]:
    """Nodes to blame: by line, else by an operator that the message names."""
    found = segment.blamed(error)
    if found:
        return found
    named = re.findall(r"\b(\w+)(?:\.|::)(\w+)(?:\.(\w+))?", str(error))
    return list(dict.fromkeys(n for space, op, _ in named for n in segment.with_operator(f"{space}::{op}")))


def compile_segment(job: Job) -> Made:
    given, freezing = settings(job.args)
    work = job.folder / "inductor"
    shutil.rmtree(work, ignore_errors=True)
    _private_folders(work)
    compiler = _linking(work)
    segment = job.segment
    with torch.no_grad():
        examples = job.examples()
        program = export(job, examples)
        reasons: dict[str, str] = {}
        for freeze in freezing:
            folder = work / ("frozen" if freeze else "plain")
            options = {**_defaults(job, folder), "freezing": freeze, **compiler, **given}
            try:
                with _no_proxies(segment):
                    made = _compile(program, examples, options)
                if _has_proxies(folder):
                    raise Refused("inductor has no C function for an operator of it")
                break
            except Exception as error:
                refused = _refused(error)
                reasons["frozen" if freeze else "plain"] = short(refused or error)
                if refused is not None and refused.nodes:
                    raise refused from error
                if freeze is freezing[-1]:
                    raise
    os.replace(made, job.folder / MEMBER)
    _try_out(job, examples)
    shutil.rmtree(work / "cache", ignore_errors=True)
    notes = {"freezing": "on" if freeze else "off", **({"not frozen": reasons["frozen"]} if reasons else {})}
    return Made([MEMBER], needs(job), notes)


def _private_folders(work: Path) -> None:
    """All that is written goes below the job's folder: a compiler that is killed leaves nothing that others find."""
    for variable, name in (
        ("TORCHINDUCTOR_CACHE_DIR", "cache"),
        ("TRITON_CACHE_DIR", "cache/triton"),
        ("TMPDIR", "tmp"),
    ):
        path = work / name
        path.mkdir(parents=True, exist_ok=True)
        os.environ[variable] = str(path)
    tempfile.tempdir = None


def _linking(work: Path) -> dict[str, Any]:
    """A compiler that links objects with the C++ library of this process, before all others. Some wheels of torch
    export parts of one, with which a linker that drops what seems not to be needed (Ubuntu's) would leave them, and
    some compilers have a static one alone: with two in one process, code with std::regex crashes."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    library = _loaded("libstdc++.so")
    if compiler is None or library is None or "clang" in compiler:
        return {}
    script = work / "bin" / "g++"
    script.parent.mkdir(parents=True, exist_ok=True)
    link = " ".join(f"-Xlinker {shlex.quote(a)}" for a in ("--no-as-needed", library, "--as-needed"))
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(compiler)} {link} "$@"\n')
    script.chmod(0o700)
    return {"cpp.cxx": (None, str(script))}


def _loaded(name: str) -> str | None:
    """Where a shared library of this process is, by the start of its name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            path = line.split(maxsplit=5)[5] if line.count("/") else ""
            if os.path.basename(path).startswith(name) and os.path.isfile(path):
                return path
    return None


def _try_out(job: Job, examples: Sequence[torch.Tensor]) -> None:
    """A run, here, where a crash costs a job and not the process that asked for it. Numbers are compared elsewhere."""
    device = next((i.device for i in job.inputs if i.device != "cpu"), "cpu")
    kind = "AOTIModelContainerRunnerCpu" if device == "cpu" else "AOTIModelContainerRunnerCuda"
    runner = getattr(torch._C._aoti, kind, None)
    if runner is None:
        return
    path = str(job.folder / MEMBER)
    runner(path, 1).run(list(examples)) if device == "cpu" else runner(path, 1, device).run(list(examples))


# ---- what the code needs


def needs(job: Job) -> dict[str, str]:
    devices = {i.device for i in job.inputs if i.device != "cpu"}
    out = {"torch": torch.__version__.partition("+")[0]}
    cuda = next((d for d in devices if d.startswith("cuda")), None)
    if cuda is not None:
        major, minor = torch.cuda.get_device_capability(cuda)
        return {**out, "device": f"cuda sm_{major}{minor}", "cpu": cpu_features()}
    return {**out, "device": "cpu", "cpu": cpu_features()}


@functools.cache
def cpu_features() -> str:
    """The features that the C++ compiler takes for granted here, by the names of /proc/cpuinfo, sorted."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    command = [get_cpp_compiler(), "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    macros = {_plain(m).removeprefix("armfeature") for m in re.findall(r"^#define __(\w+?)_* 1$", text, re.MULTILINE)}
    return " ".join(sorted(f for f in _here() if _plain(_OTHER_NAMES.get(f, f)) in macros))


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _here() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        if name.strip() in ("flags", "Features"):
            x86 = platform.machine() in ("x86_64", "i686")
            return {f for f in rest.split() if not x86 or _X86.match(f)}
    return set()


def main(job: Job) -> Made:
    """compile_segment, with the nodes to blame in what it raises."""
    try:
        return compile_segment(job)
    except Refused:
        raise
    except Exception as error:
        raise Refused(short(error), _nodes_of(job.segment, error)) from error


def warm_up(folder: Path | None) -> None:
    """Loads torch.export and inductor, and finds out what this CPU and its compiler can do, which takes the compiler
    several runs. torch keeps the answers in its own cache."""
    if folder is not None:
        return
    os.environ["TORCH_WARM_POOL"] = "0"  # no processes of its own
    for name in ("torch._inductor.compile_fx", "torch.export._trace"):
        importlib.import_module(name)
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._inductor.fx_passes.joint_graph import lazy_init

    pick_vec_isa()
    cpu_features()
    lazy_init()


if __name__ == "__main__":
    sys.exit(run(main, warm_up))
