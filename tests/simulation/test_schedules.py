"""The real code under a deterministic scheduler: 5,000 schedules of crashes, zombies, lost answers and re-PUTs.

Every schedule is held against [P1] [P2] [P3] [P4] [P5] [P6] at every single step (judge.py) and at its end (checks.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .schedules import run

#: `make proof` runs 200,000.
SCHEDULES = 5_000
#: Prime to the number of kinds of schedules, so that each chunk has its share of the slow ones.
CHUNKS = 17
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_schedule_breaks_a_promise(chunk: int) -> None:
    """[P1] nothing lost, [P2] one live lease, [P3] one outcome, [P4] [P5] no start too many, [P6] all repaired."""
    for seed in range(chunk, SCHEDULES, CHUNKS):
        verdict = run(seed)
        broken = "\n".join(str(violation) for violation in verdict.violations)
        assert not broken, f"python -m simulation.replay {seed} ({verdict.profile}):\n{broken}"


def test_a_seed_gives_the_same_trace_twice() -> None:
    assert [run(seed).digest for seed in range(100)] == [run(seed).digest for seed in range(100)]


def test_a_seed_gives_the_same_trace_in_another_process() -> None:
    """Nothing depends on the order of a set, an address or a clock."""
    code = "from simulation.schedules import run; print(*(run(seed).digest for seed in range(30)))"
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "1",
        "PYTHONPATH": f"{ROOT / 'functions'}{os.pathsep}{ROOT / 'tests'}",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [run(seed).digest for seed in range(30)]


def test_the_faults_really_happen() -> None:
    """A schedule in which nothing goes wrong proves nothing."""
    happened = {what.split(" for ")[0] for seed in range(400) for *_, what in run(seed).trace}
    expected = {"crash before", "crash after", "lost", "answer lost", "lands late", "contended", "retried", "refused"}
    assert expected | {"stands still"} <= happened
