"""What a wheel must do in an environment that holds it, torch and NumPy alone. Started by tools/wheel.sh."""

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import cleave

site = Path(cleave.__file__).parent.parent
assert site.is_relative_to(sys.prefix), f"cleave comes from {site}"

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).eval()
x = torch.rand(2, 3, 8, 8)
split = cleave.prepare_split(model, example_inputs=(x,), split=cleave.SplitSpec(boundary="50%"))
assert torch.equal(split.run_suffix(split.run_prefix(x)), model(x))

with torch.no_grad():
    plan = cleave.capture(model, (x,))
plan.save("model.clv")
assert torch.equal(cleave.load("model.clv")(x), model(x))
assert torch.equal(cleave.load("model.clv", sandbox=True)(x), model(x))
for command in (
    ["inspect", "model.clv"],
    ["bench", "model.clv", "--iterations", "3"],
    ["run", "model.clv", "--fill", "random", "--sandbox"],
):
    done = subprocess.run(["cleave", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
print(f"cleave {cleave.__version__} works beside torch {torch.__version__}")
