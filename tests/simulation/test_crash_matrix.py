"""Every operation killed, put to sleep or left without an answer at each of its requests; the repairer killed too.

[P6] a crash between any two requests is repaired by the sweeper (and workers) alone; [P1] [P2] [P3] [P4] [P5] hold on
the way, as in the schedules.
"""

from __future__ import annotations

import pytest

from .crash_matrix import Case, explore, run_case
from .operations import OPERATIONS
from .undisturbed import UNDISTURBED

#: `make proof` runs the pairs of every single crash.
PAIRS_OF = 3


@pytest.mark.parametrize("operation", OPERATIONS)
def test_whatever_dies_is_repaired(operation: str) -> None:
    """[P6] singly and in pairs."""
    cases = 0
    for outcome in explore(operation, pairs_of=PAIRS_OF):
        cases += 1
        broken = "\n".join(str(violation) for violation in outcome.verdict.violations)
        assert not broken, f"{outcome.case}:\n{broken}"
    assert cases > 10


@pytest.mark.parametrize("operation", UNDISTURBED)
def test_nothing_goes_wrong_where_nothing_dies(operation: str) -> None:
    assert not run_case(Case(operation)).verdict.violations
