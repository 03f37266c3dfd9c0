"""Pipelines in real processes. One run of pipeline_worker.py starts all of them; a test looks at one case."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

pytestmark = pytest.mark.integration

if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

SAME = {
    "gpipe": "GPipe trains and infers as one process",
    "1f1b": "1F1B trains and infers as one process",
    "permuted": "one stage on each rank, in another order",
    "interleaved": "Interleaved1F1B: two stages on each rank",
    "looped_bfs": "LoopedBFS: backwards in the other order, sums in the same",
    "zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble: neighbours on one rank",
    "free": "any placement",
    "chosen": "a schedule that fits is found",
    "uneven": "micro-batches of two sizes",
    "one_microbatch": "a single micro-batch",
    "bf16": "bfloat16 activations",
    "own_schedule": "schedules of torch's own around the stages",
    "tied": "a shared parameter",
    "tied_interleaved": "a shared parameter, several copies on a rank",
    "tied_often": "a shared parameter that a stage uses several times",
    "tied_forgotten": "sums of shared parameters cannot be forgotten",
    "sum_order": "without exact sums",
    "frozen": "parameters without gradients, stages without any",
    "placement_refused": "a schedule that does not fit names one that does",
    "copies_differ": "copies of a shared parameter must be equal",
    "plan": "models cut by pipe_model: tied words, long skips, recurrent layers, keyword inputs, uneven batches",
    "plan_places": "stages of a plan placed by hand",
    "plan_measured": "ranks that measured other times agree",
    "plan_stepped_once": "an optimizer steps a parameter that stages share once",
    "plan_changed": "a model that is changed later",
    "stage_refused": "a stage that cannot be made ends the set-up of all ranks",
    "variants": "each micro-batch goes the way of its data",
    "variants_refused": "data that no plan holds for ends no pipeline",
    "guard_in_a_later_stage": "a guard that only a later stage meets ends the step, not the pipeline",
    "refused": "steps that cannot run say why",
}
WORLDS = (2, 4)
SLOW = {"worked_long": "a rank that computes is waited for", "rested": "between steps all ranks may rest"}
ENDS = {  # which rank goes wrong, and what the others say of it
    "killed": (1, "no answer for|did not answer"),
    "killed_first": (0, "or torchrun|no answer for|did not answer"),
    "stopped": (1, "did not answer for 6 s"),
    "slept": (1, "did nothing for 4 s"),
    "slept_before": (0, "did nothing for 3 s"),
    "raised": (1, "stage 1, forward of micro-batch 1 raised ValueError: no more"),
    "loss_raised": (1, "loss of micro-batch 1 raised ValueError: no more"),
    "own_killed": (1, "no answer for|did not answer"),
    "own_raised": (1, "stage 1, forward of micro-batch 1 raised ValueError: no more"),
}
LOST = [("killed", 2), ("killed", 4), ("killed_first", 2), ("stopped", 2), ("raised", 4), ("loss_raised", 2)]
LOST += [("own_killed", 2), ("own_raised", 4), ("slept", 4), ("slept_before", 2)]
CAUGHT = [("caught_first", 2), ("caught_last", 2), ("caught_last", 4)]


@pytest.fixture(scope="module")
def said():
    """What the ranks said, by (ranks, case)."""
    sets = [f"{n}:{','.join(SAME)}" for n in WORLDS] + ["2:disagree", f"2:{','.join(SLOW)}"]
    sets += [f"{n}:{end}" for end, n in [*LOST, *CAUGHT]]
    worker = Path(__file__).with_name("pipeline_worker.py")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, worker, *sets], env=env, capture_output=True, text=True, timeout=400)
    out = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            told = json.loads(line)
            out.setdefault((told["world"], told["case"]), []).append(told)
    out["rest"] = done.stderr
    return out


def passed(said, ranks, case):
    told = said.get((ranks, case), [])
    assert not any(t["why"] for t in told), "\n".join(t["why"] for t in told)
    assert len(told) == ranks, said["rest"]


@pytest.mark.timeout(420)
@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("case", SAME)
def test_equal_to_one_process(said, case, ranks):
    passed(said, ranks, case)


@pytest.mark.timeout(420)
@pytest.mark.parametrize("case", SLOW)
def test_a_rank_that_is_slow_is_no_loss(said, case):
    passed(said, 2, case)


@pytest.mark.timeout(420)
def test_ranks_with_different_partitions_are_refused(said):
    passed(said, 2, "disagree")


@pytest.mark.timeout(420)
@pytest.mark.parametrize(("case", "ranks"), LOST)
def test_a_rank_that_ends_is_named_in_time(said, case, ranks):
    rank, why = ENDS[case]
    told = [t for t in said.get((ranks, case), []) if t["rank"] != rank]
    assert len(told) == ranks - 1, said["rest"]
    for t in told:
        assert re.search(f"rank {rank}.*({why}).* while rank {t['rank']} ", t["died"]), t["died"]
        assert t["seconds"] < 30


@pytest.mark.timeout(420)
@pytest.mark.parametrize(("case", "ranks"), CAUGHT)
def test_a_program_that_catches_the_error_ends_as_any_other(said, case, ranks):
    ended = {t["rank"]: t["status"] for t in said.get((ranks, "ended"), []) if t["names"] == [case]}
    assert ended == dict.fromkeys(range(ranks), 7), said["rest"]
