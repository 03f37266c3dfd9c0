"""Real models trained as pipelines on processes: losses, gradients, parameters and buffers of every step are those of
one process that runs the same micro-batches."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

NEEDS = {"resnet50": "torchvision", "bert": "transformers", "gpt2": "transformers", "t5": "transformers"}
SETS = ["t5,unet", pytest.param("resnet50,bert,gpt2,lstm", marks=pytest.mark.slow)]  # one start of processes each


def start(*command: str | Path, seconds: float) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=seconds)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("names", SETS)
def test_a_real_model_trains_in_processes_as_it_trains_alone(names: str, ranks: int) -> None:
    here = [n for n in names.split(",") if n not in NEEDS or importlib.util.find_spec(NEEDS[n])]
    worker = Path(__file__).with_name("pipe_train_worker.py")
    done = start(worker, f"{ranks}:{','.join(here)}", seconds=550)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    why = "\n".join(f"{t['case']}: {t['why']}" for t in told if t.get("why"))
    assert not why, why
    assert sorted(t["case"] for t in told if t["case"] != "ended") == sorted(here * ranks), done.stderr
    assert [t["status"] for t in told if t["case"] == "ended"] == [0] * ranks, done.stderr


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_example_of_training_runs_under_torchrun(ranks: int) -> None:
    script = Path(__file__).parents[2] / "examples" / "pipeline_train.py"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    done = start(*torchrun, script, "--steps", "2", "--microbatches", "4", seconds=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("losses and gradients as in one process") == 2, done.stdout
