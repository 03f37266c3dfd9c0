"""A process that is forked while another thread runs a plan."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import cleave

inside, go_on = threading.Event(), threading.Event()


class Waits(torch.autograd.Function):
    """Called by Python in the middle of a run."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        inside.set()
        go_on.wait()
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def model(x: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):  # a global flag, for which runs take turns
        return Waits.apply(x.sin()).cos()


def test_a_child_does_not_wait_for_a_run_that_it_does_not_have() -> None:
    x = torch.randn(4, requires_grad=True)
    go_on.set()
    plan = cleave.capture(model, x)
    assert "cleave::python" in plan.text
    assert "sdp_" in plan.text
    go_on.clear()
    inside.clear()
    other = threading.Thread(target=plan, args=(x,))
    other.start()
    assert inside.wait(20)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        go_on.set()
        flags = torch.backends.cuda.flash_sdp_enabled()  # as before the run of the other thread
        os._exit(0 if flags and plan(x).shape == x.shape else 1)
    _, status = os.waitpid(child, 0)
    go_on.set()
    other.join()
    assert status == 0
