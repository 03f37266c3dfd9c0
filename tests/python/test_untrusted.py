"""What a file may do to the process that opens it: nothing but give a result or an error."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from crafted import rewrite_plan
from torch import Tensor, nn

import cleave


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))
        self.register_buffer("count", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.weight + self.count)


def saved(path: Path, model: nn.Module | None = None, size: int = 64) -> nn.Module:
    model = (model or Net()).eval()
    with torch.no_grad():
        cleave.capture(model, torch.randn(2, size)).save(path)
    return model


def test_two_models_of_one_file_do_not_share_what_is_written(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    saved(file)
    a, b, x = cleave.load(file, sandbox=False), cleave.load(file, sandbox=False), torch.randn(2, 64)
    before = b(x)
    a.state_dict()["weight"].detach().zero_()
    assert torch.equal(b(x), before)
    assert a(x).abs().max() == 0


def test_what_a_caller_writes_into_its_state_is_what_runs_read(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    model = saved(file)
    loaded, x = cleave.load(file, sandbox=False), torch.randn(2, 64)
    with torch.no_grad():
        loaded.state_dict()["count"].add_(3)
        model.count.add_(3)  # type: ignore[operator]
    assert torch.equal(loaded(x), model(x))


def test_a_file_that_is_truncated_does_not_reach_a_copy(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    model = saved(file, nn.Linear(1024, 1024), 1024)
    x = torch.randn(2, 1024)
    want = model(x)
    for how in ({"copy": True}, {"check": True}):
        loaded = cleave.load(file, **how)
        data = file.read_bytes()
        os.truncate(file, 4096)
        assert torch.equal(loaded(x), want)
        file.write_bytes(data)


def test_the_command_line_reads_a_copy(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    saved(file)
    done = subprocess.run(
        [sys.executable, "-m", "cleave", "run", str(file), "--fill", "random", "--copy"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_one_set_of_weights_per_run(tmp_path: Path) -> None:
    """Threads run while the weights change: every result is that of one set."""
    file = tmp_path / "m.clv"
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(12)])
    saved(file, model)
    loaded, x = cleave.load(file, sandbox=False, threads=1), torch.randn(2, 64)
    sets, wants = [], []
    with torch.no_grad():
        for i in range(2):
            for p in model.parameters():
                p.copy_(torch.randn(p.shape) * 0.1 + i)
            sets.append({k: t.clone() for k, t in model.state_dict().items()})
            wants.append(model(x))
    loaded.load_state_dict(sets[0])
    stop, wrong, runs = threading.Event(), [], [0] * 4

    def run(at: int) -> None:
        while not stop.is_set():
            got = loaded(x)
            runs[at] += 1
            if not any(torch.equal(got, want) for want in wants):
                wrong.append(got)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for i in range(60):
        loaded.load_state_dict(sets[i % 2])
    stop.set()
    for t in threads:
        t.join()
    assert min(runs) > 0
    assert not wrong, f"{len(wrong)} of {sum(runs)} results are of no set of weights"


def refused_or_right(path: Path, x: Tensor) -> str:
    """What a process says that loads the file and runs it: an error of ours, or "fine"; never a signal."""
    script = (
        "import sys, torch, cleave\n"
        "try:\n"
        "    m = cleave.load(sys.argv[1], sandbox=False)\n"
        "    m(torch.load(sys.argv[2]))\n"
        "    print('fine')\n"
        "except cleave.CleaveError as e:\n"
        "    print(str(e)[:2000])\n"
    )
    data = path.with_suffix(".pt")
    torch.save(x, data)
    done = subprocess.run([sys.executable, "-c", script, path, data], capture_output=True, text=True, timeout=120)
    assert done.returncode >= 0, signal.Signals(-done.returncode)
    assert done.returncode == 0, done.stderr
    return done.stdout


def before_relu(text: str, *lines: str) -> str:
    """The plan with more lines; {x} is the name of its input."""
    plan = text.split("\n")
    at = next(i for i, line in enumerate(plan) if "aten::relu(" in line)
    name = next(line for line in plan if line.startswith("input ")).split()[1]
    plan[at:at] = [line.replace("{x}", name) for line in lines]
    return "\n".join(plan)


def giving_v(text: str, *lines: str) -> str:
    """Likewise; its output is %v."""
    return re.sub(r"^output .*$", "output %v", before_relu(text, *lines), flags=re.M)


EMPTY = [
    'aten::empty.memory_format([2, 4096], dtype:f32, layout:strided, device:"cpu", false, none)',
    "aten::empty_like(%big, none, none, none, none, none)",
    "aten::new_empty({x}, [2, 4096], none, none, none, none)",
    'aten::empty_strided([2, 4096], [4096, 1], dtype:f32, layout:strided, device:"cpu", false)',
    "aten::resize({x}, [2, 4096], none)",
]


@pytest.mark.parametrize("call", EMPTY)
def test_memory_that_nobody_wrote_is_zero(tmp_path: Path, call: str) -> None:
    file = tmp_path / "m.clv"
    saved(file)

    big = 'aten::ones([2, 4096], dtype:f32, layout:strided, device:"cpu", false) -> f32[2,4096]'
    rewrite_plan(file, lambda text: giving_v(text, f"%big = {big}", f"%v = {call} -> f32[2,4096]"))
    loaded, x = cleave.load(file, sandbox=False), torch.zeros(2, 64)
    for i in range(20):
        torch.full((2, 4096), float(i + 1)).clone()  # leaves its numbers in memory that is given out again
        assert not loaded(x).any()


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_what_no_group_writes_is_zero(tmp_path: Path, columns: bool) -> None:
    """A product of groups need not have a group for each of its rows."""
    file = tmp_path / "m.clv"
    saved(file)
    one = 'dtype:bf16, layout:strided, device:"cpu", false'
    lines = [
        f"%a = aten::ones([64, 64], {one}) -> bf16[64,64]",
        f"%b = aten::ones([2, 64, 64], {one}) -> bf16[2,64,64]",
        "%n = aten::full([2], 16, " + one.replace("bf16", "i32") + ") -> i32[2]",
        f"%v = aten::_grouped_mm({'%b, %a' if columns else '%a, %b'}, %n, none, none) -> bf16[64,64]",
    ]
    rewrite_plan(file, lambda text: giving_v(text, *lines))
    loaded, x = cleave.load(file, sandbox=False), torch.zeros(2, 64)
    for _ in range(10):
        torch.full((64, 64), 3.0, dtype=torch.bfloat16).clone()  # as above
        out = loaded(x).t() if columns else loaded(x)
        assert (out[:16] == 64).all()
        assert not out[16:].any()


HIDDEN = {
    "in place": (["%v = aten::relu_(@weight) -> f32[64,64] view-of @weight"], "does not say so"),
    "a view": (
        [
            "%v = aten::alias(@weight) -> f32[64,64]",
            "%w = aten::relu_(%v) -> f32[64,64] view-of %v writes %v",
        ],
        "into the file",
    ),
    "statistics": (
        ["%v = aten::batch_norm({x}, none, none, @count, @count, true, 0.1, 1e-05, false) -> f32[2,64]"],
        "does not say so",
    ),
    "an output": (
        ["%v = aten::t(@weight) -> f32[64,64]", "%w = aten::neg.out(%v, %v) -> f32[64,64] view-of %v writes %v"],
        "into the file",
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_writes_that_are_not_declared_are_refused(tmp_path: Path, name: str) -> None:
    lines, why = HIDDEN[name]
    file = tmp_path / "m.clv"
    saved(file)
    rewrite_plan(file, lambda text: before_relu(text, *lines))
    before = file.read_bytes()
    assert why in refused_or_right(file, torch.randn(2, 64))
    assert file.read_bytes() == before


def made(name: str, values: str, shape: str, dtype: str = "i64") -> str:
    """A line for a tensor of one value."""
    how = f'dtype:{dtype}, layout:strided, device:"cpu", false'
    return f"%{name} = aten::full([{shape}], {values}, {how}) -> {dtype}[{shape}]"


LEAST = -(1 << 63)

# Calls that ended the process, or showed memory of others, when nobody looked at their arguments; what is said of them.
CRASHERS = {
    "keys and values of attention": (
        [
            "%q = aten::view({x}, [1, 1, 8, 16]) -> f32[1,1,8,16] view-of {x}",
            "%k = aten::slice.Tensor(%q, 2, 0, 1, 1) -> f32[1,1,1,16] view-of {x}",
            "%v = aten::scaled_dot_product_attention(%q, %k, %q, none, 0.0, false, none, false) -> f32[1,1,8,16]",
        ],
        "has not a row for each of key",
    ),
    "repeats whose sum wraps": (
        [
            made("n", str(2**62), "4"),
            "%v = aten::repeat_interleave.Tensor(%n, none) -> i64[4]",
        ],
        "repeats is out of range",
    ),
    "paddings that cancel": (
        [
            "%g = aten::view({x}, [1, 2, 4, 4, 4]) -> f32[1,2,4,4,4] view-of {x}",
            "%v = aten::reflection_pad3d_backward(%g, %g, [-100, 100, 0, 0, 0, 0]) -> f32[1,2,4,4,4]",
        ],
        "padding is out of range",
    ),
    "a padding without numbers, which torch 2.11 reads": (
        [
            "%g = aten::view({x}, [1, 2, 4, 4, 4]) -> f32[1,2,4,4,4] view-of {x}",
            "%v = aten::reflection_pad3d(%g, []) -> f32[1,2,4,4,4]",
        ],
        "padding has another number of sizes",
    ),
    "the scale of an upsampling": (
        [
            "%g = aten::view({x}, [1, 2, 64]) -> f32[1,2,64] view-of {x}",
            "%v = aten::upsample_nearest1d(%g, [5], 1e-30) -> f32[1,2,5]",
        ],
        "does not match the scale factors",
    ),
    "the scale of an upsampling whose reciprocal is infinite": (
        [
            "%g = aten::view({x}, [1, 1, 2, 64]) -> f32[1,1,2,64] view-of {x}",
            "%v = aten::upsample_bicubic2d(%g, [1, 64], false, 1e-300, none) -> f32[1,1,1,64]",
        ],
        "does not match the scale factors",
    ),
    "a padding of what is cut off": (
        [
            "%g = aten::view({x}, [1, 1, 128]) -> f32[1,1,128] view-of {x}",
            '%v = aten::pad(%g, [128, -128], "circular", none) -> f32[1,1,128]',
        ],
        "pads one end of a dimension and crops the other",
    ),
    "a sum that does not end": (
        [
            made("n", "2.0", "1", "f64"),
            made("q", "-3000000000000000.5", "1", "f64"),
            "%v = aten::special_zeta(%n, %q) -> f64[1]",
        ],
        "is too far below 0",
    ),
    "derivatives that are such a sum": (
        [made("q", "-3000000000000000.5", "1", "f64"), "%v = aten::polygamma(3, %q) -> f64[1]"],
        "is too far below 0",
    ),
    "negative batch size": (
        [made("n", "-1", "3"), "%v, %w = aten::_pad_packed_sequence({x}, %n, false, 0.0, 3) -> f32[2], i64[3]"],
        "batch_sizes does not descend",
    ),
    "batch sizes beyond the data": (
        [made("n", "2", "3"), "%v, %w = aten::_pad_packed_sequence({x}, %n, false, 0.0, 3) -> f32[2], i64[3]"],
        "does not add up",
    ),
    "dimensions of a transform": (["%v = aten::_fft_r2c({x}, [5], 0, true) -> c64[2,33]"], "does not name dimensions"),
    "a transform of one dimension twice": (["%v = aten::_fft_r2c({x}, [1, 1], 0, true) -> c64[2,33]"], "dimensions"),
    "the size of an inverse transform": (
        [
            "%c = aten::fft_rfft({x}, none, 1, none) -> c64[2,33]",
            "%v = aten::_fft_c2r(%c, [1], 0, 1000) -> f32[2,1000]",
        ],
        "last_dim_size does not fit",
    ),
    "indices of a bag": (
        [
            made("i", "1000000", "4"),
            made("o", "0", "1"),
            "%v, %b, %c, %d = aten::_embedding_bag(@weight, %i, %o, false, 0, false, none, false, -1)"
            " -> f32[1,64], i64[4], i64[1], i64[1]",
        ],
        "has rows that weight does not have",
    ),
    "offsets of a bag": (
        [
            made("i", "1", "4"),
            made("o", "1000000", "1"),
            "%v, %b, %c, %d = aten::embedding_bag(@weight, %i, %o, false, 0, false, none, false)"
            " -> f32[1,64], i64[4], i64[1], i64[1]",
        ],
        "offsets",
    ),
    "rows of bytes": (
        [
            made("q", "7", "4,16", "u8"),
            made("i", "1000000", "4"),
            made("o", "0", "1"),
            "%v = quantized::embedding_bag_byte_rowwise_offsets(%q, %i, %o, false, 0, false, none, none, false)"
            " -> f32[1,8]",
        ],
        "is not on the list",
    ),
    "classes of CTC": (
        [
            "%p = aten::unsqueeze({x}, 1) -> f32[2,1,64] view-of {x}",
            made("t", "1000000", "1,2"),
            "%v, %w = aten::_ctc_loss(%p, %t, [2], [2], 0, false) -> f32[1], f32[1,2,5]",
        ],
        "classes that log_probs does not have",
    ),
    "attention backward": (
        [
            made("q", "1.0", "1,1,4,8", "f32"),
            made("l", "1.0", "1,1,1", "f32"),
            "%v, %b, %c = aten::_scaled_dot_product_flash_attention_for_cpu_backward(%q, %q, %q, %q, %q, %l, 0.0,"
            " false, none, none) -> f32[1,1,4,8], f32[1,1,4,8], f32[1,1,4,8]",
        ],
        "logsumexp does not fit",
    ),
    "eigenvalues of nan": (
        [made("m", "nan", "8,8", "f32"), "%v, %w = aten::linalg_eig(%m) -> c64[8], c64[8,8]"],
        "nan",
    ),
    "the smallest integer by -1": (
        [made("a", str(LEAST), "4"), '%v = aten::div.Scalar_mode(%a, -1, "trunc") -> i64[4]'],
        "no quotient",
    ),
    "the smallest integers by tensors": (
        [made("a", str(LEAST), "4"), made("b", "-1", "4"), "%v = aten::remainder.Tensor(%a, %b) -> i64[4]"],
        "no quotient",
    ),
    "the smallest integer and a divisor": (
        [made("a", str(LEAST), "4"), made("b", "5", "4"), "%v = aten::lcm(%a, %b) -> i64[4]"],
        "the smallest integer",
    ),
    "an empty weight norm": (
        [
            made("a", "1.0", "0,4", "f32"),
            made("g", "1.0", "1,4", "f32"),
            "%v = aten::_weight_norm(%a, %g, 1) -> f32[0,4]",
        ],
        "v is empty",
    ),
    "no heads": (
        [
            "%q = aten::unsqueeze({x}, 0) -> f32[1,2,64] view-of {x}",
            made("w", "1.0", "192,64", "f32"),
            made("b", "1.0", "192", "f32"),
            "%v, %c = aten::_native_multi_head_attention(%q, %q, %q, 64, 0, %w, %b, @weight, @count, none, false, true,"
            " none) -> f32[1,2,64], f32[0]",
        ],
        "number of heads",
    ),
    "an endless power": (
        [f"%v = aten::matrix_power(@weight, {LEAST}) -> f32[64,64]"],
        "too large an exponent",
    ),
    "an endless recurrence": (
        [f"%v = aten::special_laguerre_polynomial_l.n_scalar({{x}}, {1 << 40}) -> f32[2,64]"],
        "n is above 4096",
    ),
    "an endless search": (
        ["%v, %w = aten::choose_qparams_optimized({x}, 128, 1000000000, 1.0, 8) -> f32[1], f32[1]"],
        "helper of quantisation",
    ),
    "a conversion by number": (["%v = aten::to.prim_dtype({x}, 6, false, false) -> f32[2,64]"], "aten::to.prim_dtype"),
    "a size that is a pointer": (
        [f"%v = aten::as_strided_({{x}}, [64, {LEAST}], [0, 2], 1) -> f32[2,64] view-of {{x}} writes {{x}}"],
        "out of range",
    ),
    "the median of what was expanded": (
        [
            "%e = aten::expand(@count, [9, 64], false) -> f32[9,64] strides(0,1) view-of @count",
            "%v, %w = aten::median.dim(%e, 0, false) -> f32[64], i64[64]",
        ],
        "is expanded along dim",
    ),
    "layers without weights": (
        [
            "%q = aten::unsqueeze({x}, 0) -> f32[1,2,64] view-of {x}",
            f"%v, %b, %c = aten::lstm.input(%q, [%q, %q], [], true, {1 << 40}, 0.0, false, false, true)"
            " -> f32[1,2,64], f32[1,2,64], f32[1,2,64]",
        ],
        "does not have the weights of num_layers layers",
    ),
    "pivots": (
        [
            made("p", "1000000", "64", "i32"),
            "%v = aten::linalg_lu_solve(@weight, %p, @weight, true, false) -> f32[64,64]",
        ],
        "has no rows of the matrix",
    ),
    "indices that nobody wrote": (
        [
            '%e = aten::empty.memory_format([64, 64], dtype:f32, layout:sparse_csr, device:"cpu", false, none)'
            " -> f32[64,64] odd",
            "%v = aten::to_dense(%e, none, none) -> f32[64,64]",
        ],
        "a layout that only conversions give",
    ),
    "gradients of a grid of nan": (
        [
            made("i", "1.0", "2,3,5,5", "f32"),
            made("g", "nan", "2,5,5,2", "f32"),
            "%v, %w = aten::grid_sampler_2d_backward(%i, %i, %g, 0, 2, false, [true, true])"
            " -> f32[2,3,5,5], f32[2,5,5,2]",
        ],
        "grid has infinite elements or nan",
    ),
    "sparse gradients of any indices": (
        [
            made("i", "1000000000", "64"),
            "%s = aten::gather_backward(@count, @count, 0, %i, true) -> f32[64] odd",
            "%v = aten::to_dense(%s, none, none) -> f32[64]",
        ],
        "sparse_grad is not for files",
    ),
    "one gradient for many rows": (
        [
            made("t", "0", "64"),
            made("g", "1.0", "1", "f32"),
            "%v = aten::multi_margin_loss_backward(%g, @weight, %t, 1, 1.0, none, 0) -> f32[64,64]",
        ],
        "has not one element for each row",
    ),
    "columns that are read 16 at once": (
        [
            made("a", "1.0", "4,8", "bf16"),
            made("b", "1", "4,8", "i8"),
            made("s", "1.0", "4", "bf16"),
            "%v = aten::_weight_int8pack_mm(%a, %b, %s) -> bf16[4,4]",
        ],
        "no multiple of 16",
    ),
    "a fourth way": (
        ["%v = aten::soft_margin_loss({x}, {x}, 4) -> f32[]"],
        "reduction is a number out of range",
    ),
    "bags without an offset": (
        [
            made("i", "2", "9"),
            made("o", "0", "0"),
            "%v, %b, %c, %d = aten::_embedding_bag(@weight, %i, %o, false, 2, false, none, false, -1) "
            "-> f32[0,64], i64[9], i64[0], i64[0]",
        ],
        "offsets is empty",
    ),
    "expanded indices of a bag": (
        [
            made("e", "0", "1"),
            "%i = aten::expand(%e, [4194304], false) -> i64[4194304] strides(0) view-of %e",
            made("o", "0", "1"),
            "%v, %b, %c, %d = aten::embedding_bag.padding_idx(@weight, %i, %o, false, 2, false, none, false, 1) "
            "-> f32[1,64], i64[0], i64[1], i64[1]",
        ],
        "is not contiguous",
    ),
    "a gradient without elements": (
        [
            made("t", "0", "64,64"),
            made("g", "1.0", "0", "f32"),
            made("s", "1.0", "64,64", "f32"),
            "%v = aten::multilabel_margin_loss_backward(%g, @weight, %t, 1, %s) -> f32[64,64]",
        ],
        "empty tensors among others",
    ),
    "a result whose elements share memory": (
        [
            made("e", "0.0", "1", "f32"),
            "%o = aten::expand(%e, [64,64], false) -> f32[64,64] strides(0,0) view-of %e",
            "%v = aten::_log_softmax.out(@weight, 1, false, %o) -> f32[64,64] view-of %e writes %o",
        ],
        "elements that share memory",
    ),
    "a column of nested vectors": (
        [
            made("a", "1.0", "2", "f32"),
            "%n = aten::_nested_tensor_from_tensor_list([%a, %a], none, none, none, none) -> f32[2] odd",
            "%v = aten::select.int(%n, -1, 1) -> f32[2]",
        ],
        "does not check sparse or nested tensors",
    ),
    "indices without data": (
        [
            made("i", "0", "4096"),
            '%m = aten::_to_copy(%i, none, none, device:"meta", none, false, none) -> i64[4096] device=meta',
            "%v = aten::take(@weight, %m) -> f32[4096]",
        ],
        "without data",
    ),
    "a result whose rows share memory": (
        [
            made("e", "0.0", "127", "f32"),
            "%o = aten::as_strided(%e, [64,64], [1,1], 0) -> f32[64,64] strides(1,1) view-of %e",
            "%v = aten::_softmax.out(@weight, 1, false, %o) -> f32[64,64] strides(1,1) view-of %e writes %o",
        ],
        "elements that share memory",
    ),
    "a window of 2^40": (
        [
            "%g = aten::view({x}, [1, 1, 128]) -> f32[1,1,128] view-of {x}",
            "%v = aten::max_pool1d(%g, [1099511627776], [1], [0], [1], false) -> f32[1,1,128]",
        ],
        "kernel_size is a number out of range",
    ),
    "attention without queries": (
        [
            made("q", "1.0", "2,2,0,8", "bf16"),
            made("k", "1.0", "2,2,5,8", "bf16"),
            "%v, %w = aten::_scaled_dot_product_flash_attention_for_cpu(%q, %k, %k, 0.0, false, none, none) "
            "-> bf16[2,2,0,8], f32[2,2,0]",
        ],
        "is empty",
    ),
    "a kernel size of its own": (
        [
            made("i", "1.0", "1,2,40,40,40", "f32"),
            made("w", "1.0", "300,2,1,1,1", "f32"),
            "%v = aten::slow_conv3d(%i, %w, [20,20,20], none, [1,1,1], [0,0,0]) -> f32[1,300,21,21,21]",
        ],
        "takes the size of its kernel on trust",
    ),
    "a lazy copy of an input": (["%v = aten::_lazy_clone({x}) -> f32[2,64]"], "is an inner operator"),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one process says of all crashers: it goes on after each, or its death is the answer to the last one."""
    folder = tmp_path_factory.mktemp("crashers")
    saved(folder / "m.clv")
    files = [folder / f"{i}.clv" for i in range(len(CRASHERS))]
    for file, (lines, _) in zip(files, CRASHERS.values(), strict=True):
        file.write_bytes((folder / "m.clv").read_bytes())
        rewrite_plan(file, lambda text, lines=lines: giving_v(text, *lines))  # type: ignore[misc]
    script = (
        "import sys, torch, cleave\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        cleave.load(path, sandbox=False)(torch.randn(2, 64))\n"
        "        said = 'fine'\n"
        "    except cleave.CleaveError as e:\n"
        "        said = str(e)\n"
        "    print(said.replace('\\n', ' '), flush=True)\n"
    )
    answers: list[str] = []
    while len(answers) < len(files):
        left = [str(file) for file in files[len(answers) :]]
        done = subprocess.run([sys.executable, "-c", script, *left], capture_output=True, text=True, timeout=120)
        answers += done.stdout.splitlines()
        if done.returncode < 0:
            answers.append(signal.Signals(-done.returncode).name)
        else:
            assert done.returncode == 0, done.stderr
    return dict(zip(CRASHERS, answers, strict=True))


@pytest.mark.parametrize("name", CRASHERS)
def test_a_call_that_its_kernel_does_not_check_is_refused(said: dict[str, str], name: str) -> None:
    assert CRASHERS[name][1] in said[name]


def test_offsets_of_nan_are_no_place(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    file = tmp_path / "m.clv"
    saved(file)
    lines = [
        made("i", "1.0", "1,1,4,1", "f32"),
        made("w", "1.0", "1,1,1,1", "f32"),
        made("o", "nan", "1,2,4,1", "f32"),
        made("b", "0.0", "1", "f32"),
        "%v = torchvision::deform_conv2d(%i, %w, %o, %i, %b, 1, 1, 0, 0, 1, 1, 1, 1, false) -> f32[1,1,4,1]",
    ]
    rewrite_plan(file, lambda text: giving_v(text, *lines))
    with pytest.raises(cleave.CleaveError, match="offset has nan"):
        cleave.load(file, sandbox=False)(torch.zeros(2, 64))


def test_a_callers_input_keeps_its_size(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    saved(file)

    resize = "%w = aten::resize_(%v, [4096]) -> f32[4096] view-of %v writes %v"
    rewrite_plan(file, lambda text: before_relu(text, "%v = aten::alias({x}) -> f32[2,64]", resize))
    x = torch.randn(2, 64)
    bytes_before = x.untyped_storage().nbytes()
    with pytest.raises(cleave.ReplayError, match="not resizable"):
        cleave.load(file, sandbox=False)(x)
    assert x.shape == (2, 64)
    assert x.untyped_storage().nbytes() == bytes_before


AROUND = {
    "read": ["%v = aten::as_strided_copy({x}, [6,64], [64,1], 0) -> f32[6,64]"],
    "written": [
        "%v = aten::as_strided({x}, [6,64], [64,1], 0) -> f32[6,64] view-of {x}",
        "%w = aten::fill_.Scalar(%v, 5.0) -> f32[6,64] view-of {x} writes %v",
    ],
    "resized": [
        "%u = aten::alias({x}) -> f32[2,64] view-of {x}",
        "%v = aten::resize_(%u, [4,64], none) -> f32[4,64] view-of %u writes %u",
    ],
}


@pytest.mark.parametrize("name", AROUND)
def test_what_lies_around_an_input_is_not_reached(tmp_path: Path, name: str) -> None:
    file = tmp_path / "m.clv"
    saved(file)
    rewrite_plan(file, lambda text: giving_v(text, *AROUND[name]))
    rows = torch.arange(6.0).repeat_interleave(64).reshape(6, 64)
    before = rows.clone()
    with pytest.raises(cleave.CleaveError):
        cleave.load(file, sandbox=False)(rows[2:4])
    assert torch.equal(rows, before)


def test_a_part_of_a_tensor_is_an_input_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    model = saved(file)
    rows = torch.randn(6, 64)
    assert torch.equal(cleave.load(file, sandbox=False)(rows[2:4]), model(rows[2:4]))


def test_an_expanded_bias_of_an_inner_operator_is_read_by_its_strides(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    saved(file)
    lines = [
        made("x", "0.0", "1,4096,1", "f32"),
        made("e", "3.0", "1", "f32"),
        "%b = aten::expand(%e, [4096], false) -> f32[4096] strides(0) view-of %e",
        "%v, %p, %q = aten::native_group_norm(%x, none, %b, 1, 4096, 1, 1, 0.5) -> f32[1,4096,1], f32[1,1], f32[1,1]",
    ]
    rewrite_plan(file, lambda text: giving_v(text, *lines))
    assert torch.equal(cleave.load(file, sandbox=False)(torch.zeros(2, 64)), torch.full((1, 4096, 1), 3.0))


def test_an_observer_does_not_resize_an_input(tmp_path: Path) -> None:
    class One(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu()

    file = tmp_path / "m.clv"
    with torch.no_grad():
        cleave.capture(One(), torch.zeros(0)).save(file)
    how = 'layout:strided, device:"cpu", false, none)'
    lines = [
        made("one", "1", "1"),
        made("d", "2.0", "8,4", "f32"),
        f"%mx = aten::empty.memory_format([0], dtype:f32, {how} -> f32[0]",
        f"%sc = aten::empty.memory_format([0], dtype:f32, {how} -> f32[0]",
        f"%zp = aten::empty.memory_format([0], dtype:i32, {how} -> i32[0]",
        "%v, %w = aten::_fused_moving_avg_obs_fq_helper(%d, %one, %one, {x}, %mx, %sc, %zp, 0.01, 0, 255, 0, true, "
        "false) -> f32[8,4], bool[8,4] writes {x}, %mx, %sc, %zp",
    ]
    rewrite_plan(file, lambda text: before_relu(text, *lines))
    x = torch.zeros(0)
    with pytest.raises(cleave.CleaveError):
        cleave.load(file, sandbox=False)(x)
    assert x.shape == (0,)


def test_runs_that_set_global_flags_put_them_back(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    saved(file)
    flags = "{flags=mkldnn:off+deterministic:on}"
    lines = [made("a", "1.0", "300,300", "f32")]
    lines += [f"%b{i} = aten::mm(%a, %a) -> f32[300,300] {flags}" for i in range(6)]
    rewrite_plan(file, lambda text: giving_v(text, *lines, f"%v = aten::relu(%b5) -> f32[300,300] {flags}"))
    model = cleave.load(file, sandbox=False)

    def run() -> None:
        for _ in range(20):
            model(torch.zeros(2, 64))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.mkldnn.enabled


SHAPES = {
    "squeeze_": "%v = aten::squeeze_({x}) -> f32[2] view-of {x} writes {x}",
    "unsqueeze_": "%v = aten::unsqueeze_({x}, 0) -> f32[1,2,1] view-of {x} writes {x}",
    "t_": "%v = aten::t_({x}) -> f32[1,2] view-of {x} writes {x}",
    "transpose_": "%v = aten::transpose_({x}, 0, 1) -> f32[1,2] view-of {x} writes {x}",
    "as_strided_": "%v = aten::as_strided_({x}, [1], [1], 1) -> f32[1] view-of {x} writes {x}",
    "resize_": "%v = aten::resize_({x}, [1]) -> f32[1] view-of {x} writes {x}",
    "an output": "%v = aten::sum.IntList_out({x}, [0], false, none, {x}) -> f32[1] view-of {x} writes {x}",
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_callers_input_keeps_its_shape(tmp_path: Path, name: str, grad: bool) -> None:
    class One(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu()

    file = tmp_path / "m.clv"
    with torch.set_grad_enabled(grad):
        cleave.capture(One(), torch.randn(2, 1)).save(file)
    rewrite_plan(file, lambda text: before_relu(text, SHAPES[name]))
    x = torch.randn(2, 1, requires_grad=grad) * 1
    before = x.grad_fn
    with torch.set_grad_enabled(grad), pytest.raises(cleave.CleaveError, match=r"shape of an input|out=|require grad"):
        cleave.load(file, sandbox=False)(x)
    assert x.shape == (2, 1)
    assert x.stride() == (1, 1)
    assert x.storage_offset() == 0
    assert x.grad_fn is before


def test_a_change_of_shape_that_changes_nothing_is_as_in_eager(tmp_path: Path) -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.squeeze_().mul(2), x.view(2, 1, 3).squeeze_()

    file, x = tmp_path / "m.clv", torch.randn(2, 3)
    with torch.no_grad():
        cleave.capture(Same(), x).save(file)
    assert all(torch.equal(a, b) for a, b in zip(cleave.load(file, sandbox=False)(x), Same()(x), strict=True))


def test_what_a_model_resizes_itself_is_as_in_eager(tmp_path: Path) -> None:
    class Outs(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            a, b, c = torch.empty(0), torch.empty(0), torch.ones(2)
            torch.add(x, x, out=a)
            torch.matmul(x, x.t(), out=b)
            c.resize_(1)
            x.add_(1)
            return [a, b, c]

    file, x = tmp_path / "m.clv", torch.randn(2, 64)
    with torch.no_grad():
        cleave.capture(Outs(), x.clone()).save(file)
    mine, theirs = x.clone(), x.clone()
    got, want = cleave.load(file, sandbox=False)(mine), Outs()(theirs)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert torch.equal(mine, theirs)


def test_tensors_of_the_model_that_it_returns_can_be_written(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64))
            self.register_buffer("table", torch.randn(64))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x @ self.weight, self.table, self.weight.t(), torch.tensor([1.0, 2.0])

    file, x = tmp_path / "m.clv", torch.randn(2, 64)
    saved(file, Own())
    loaded = cleave.load(file, sandbox=False)
    want = [t.clone() for t in loaded(x)]
    for t in loaded(x):
        t.detach().add_(1)
    assert all(torch.equal(a, b) for a, b in zip(loaded(x), want, strict=True))


def test_state_is_read_while_runs_change_it(tmp_path: Path) -> None:
    class Moving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(64))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1
            return x - self.mean

    file, x = tmp_path / "m.clv", torch.randn(2, 64)
    saved(file, Moving())
    loaded, stop = cleave.load(file, sandbox=False, threads=1), threading.Event()

    def run() -> None:
        while not stop.is_set():
            loaded(x)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for t in threads:
        t.start()
    for _ in range(300):
        assert loaded.state_dict()["mean"].shape == (64,)
    stop.set()
    for t in threads:
        t.join()


GRAPHS = {
    "requires grad": "%v = aten::requires_grad_({x}, true) -> f32[2,64] view-of {x} writes {x}",
    "requires none": "%v = aten::requires_grad_({x}, false) -> f32[2,64] view-of {x} writes {x}",
    "detached": "%v = aten::detach_({x}) -> f32[2,64] view-of {x} writes {x}",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_autograd_knows_of_an_input_is_the_callers(tmp_path: Path, name: str) -> None:
    file = tmp_path / "m.clv"
    saved(file)
    rewrite_plan(file, lambda text: giving_v(text, GRAPHS[name]))
    model = cleave.load(file, sandbox=False)
    for flag in (False, True):
        x = torch.randn(2, 64, requires_grad=flag)
        inner = x * 2
        for t in (x, inner):
            before = t.requires_grad, t.grad_fn, t.is_leaf
            assert torch.equal(model(t), t)
            assert (t.requires_grad, t.grad_fn, t.is_leaf) == before
