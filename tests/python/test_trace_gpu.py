"""cleave.trace on a GPU: AOTInductor's code, the file, and what runs where there is none."""

import pytest
import torch
from torch import nn

import cleave

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class Net(nn.Module):
    """Convolutions, a sort that is compared on the tape, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten())
        self.head = nn.Linear(8 * 36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        if y.sum() > 1e9:  # a guard
            y = -y
        return self.head(y).softmax(-1)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, cleave.TracedModule]:
    torch.manual_seed(0)
    net = Net().cuda().eval()
    folder = tmp_path_factory.mktemp("cache")
    return net, cleave.trace(
        net, torch.rand(2, 3, 8, 8, device="cuda"), dynamic_batch=(1, 64), cache=folder, keep_slower=True
    )


@pytest.mark.parametrize("batch", [1, 2, 7, 33])
def test_compiled_code_on_a_gpu_gives_what_the_model_gives(
    traced: tuple[nn.Module, cleave.TracedModule], batch: int
) -> None:
    net, module = traced
    x = torch.rand(batch, 3, 8, 8, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(module(x), net(x), rtol=1e-3, atol=1e-3)
    assert module.segments
    assert all(s.compiled for s in module.segments), module.segments


def test_a_traced_file_runs_on_the_gpu_and_on_the_tape_of_the_cpu(
    traced: tuple[nn.Module, cleave.TracedModule], tmp_path
) -> None:
    net, module = traced
    module.save(tmp_path / "net.clv", prove="none")
    x = torch.rand(5, 3, 8, 8, device="cuda")
    with torch.no_grad():
        want = net(x)
    here = cleave.load(tmp_path / "net.clv", allow_compiled=True)
    torch.testing.assert_close(here(x), want, rtol=1e-3, atol=1e-3)
    assert all(s.runs for s in here.segments)
    there = cleave.load(tmp_path / "net.clv", device="cpu", allow_compiled=True)
    torch.testing.assert_close(there(x.cpu()), want.cpu(), rtol=1e-3, atol=1e-3)
    assert not any(s.compiled for s in there.segments)


def test_openvino_leaves_a_gpu_model_on_the_tape() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda().eval()
    x = torch.rand(3, 4, device="cuda")
    pytest.importorskip("openvino")
    module = cleave.trace(net, x, backend="openvino", keep_slower=True)
    assert not any(s.compiled for s in module.segments)
    with torch.no_grad():
        assert torch.equal(module(x), net(x))
