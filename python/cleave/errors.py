"""Errors. Each is a CleaveError and also the built-in that a caller would catch."""

from . import _native


class CleaveError(Exception):
    """Base of all errors that Cleave raises.

    What an error is about stands in its attributes too, as far as it is known: the node of the plan, its operator,
    module and line of the model; the input and its dimension; the value that was expected and the one that was seen."""

    node: str | None = None
    op: str | None = None
    module: str | None = None
    source: str | None = None
    input: str | None = None
    dimension: int | None = None
    expected: str | None = None
    seen: str | None = None


class CleaveWarning(UserWarning):
    """A warning: something works differently from what was asked for, or costs more than it should."""


class CaptureError(CleaveError, RuntimeError):
    """The forward does something that a plan cannot hold; the message names the operator, the place and the reason."""

    doubt: list[int] | None = None  # sizes at which a record would tell which of two formulas it is


class GuardError(CleaveError, RuntimeError):
    """A value that the forward read from its data differs from the one the plan was captured with.

    It is raised where the value is read. What the run had changed by then (in-place writes, statistics, random draws)
    is put back, but for what Python code did that it called: `undone` is False then."""

    undone: bool = False


class InputError(CleaveError, ValueError):
    """An input, or the model itself, does not fit the plan."""


class LayoutError(InputError):
    """An input has other strides, or other tensors require grad, than at capture: a forward may depend on it."""


class ArgumentError(CleaveError, ValueError):
    """An argument of a call is wrong."""


class SplitError(ArgumentError):
    """A boundary is wrong: no such name, out of range, or the model cannot be cut there."""


class PlanError(CleaveError, ValueError):
    """Plan text is malformed, or a plan breaks a rule."""


class ArtifactError(PlanError):
    """A .clv file cannot be opened: it is damaged, of another version, or something else; the message names it."""


class SignatureError(ArtifactError):
    """A .clv file is not signed by a trusted key, or was changed since; the message has the keys' fingerprints."""


class ValidationError(CleaveError, AssertionError):
    """A split does not give what the model gives, or needs more plans than one."""


class ReplayError(CleaveError, RuntimeError):
    """An operator raised while a plan ran; the message has PyTorch's own text, the node and its inputs.

    Or a stage cannot run again in the backward, because a tensor of the model was changed since its forward."""


class LimitError(CleaveError, RuntimeError):
    """A run was stopped: it takes longer, or needs more memory, than it may (`timeout` and `max_memory` of `load`), or
    `cancel` was called."""


class CrashError(CleaveError, RuntimeError):
    """The process of a sandbox ended (`load(..., sandbox=True)`); the message says at which node, and how.

    The next run starts another process, unless the model had changed its own tensors."""


class PayloadError(CleaveError, ValueError):
    """A payload is malformed, holds what it cannot hold, or belongs to something else; the message has the reason."""


class RemoteError(CleaveError, ConnectionError):
    """A server cannot be reached, is too busy, took too long, or answers what is no answer."""


class PipelineError(CleaveError, RuntimeError):
    """A pipeline cannot run: a rank is gone, the ranks do not agree, or something cannot cross between stages."""


class TraceError(CleaveError, AttributeError):
    """fallback=False, and not all of the model was compiled; the message lists every such operator and why."""


_native.set_error_classes(
    {
        _native.E_NOMEM: MemoryError,
        _native.E_INVALID: ArgumentError,
        _native.E_PARSE: PlanError,
        _native.E_VERIFY: PlanError,
        _native.E_INPUT: InputError,
        _native.E_LAYOUT: LayoutError,
        _native.E_GUARD: GuardError,
        _native.E_UNSUPPORTED: CaptureError,
        _native.E_NOT_FOUND: SplitError,
        _native.E_OVERFLOW: InputError,
        _native.E_TORCH: ReplayError,
        _native.E_IO: OSError,
        _native.E_TIMEOUT: TimeoutError,
        _native.E_CANCELLED: KeyboardInterrupt,
        _native.E_LIMIT: LimitError,
        _native.E_SIGNATURE: SignatureError,
        _native.E_CRASHED: CrashError,
        _native.E_MACHINE: ReplayError,
        _native.E_PAYLOAD: PayloadError,
        _native.E_ARTIFACT: ArtifactError,
        _native.E_REMOTE: RemoteError,
    }
)


def brief(e: BaseException) -> str:
    """The first line of its message; its class, where it has none."""
    return (str(e).strip() or type(e).__name__).splitlines()[0]


def first_line(e: BaseException) -> str:
    """Of the error at the root of a chain."""
    while e.__cause__ is not None:
        e = e.__cause__
    return brief(e)
