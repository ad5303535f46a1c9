"""Bugs in how Spark runs are launched and ended. Slow functions, and settings that change, are beyond the simulation:
tests catch them."""

from __future__ import annotations

from simulation.mutations import Mutation

_CLAIMS = "tests/unit/spark_runs/test_claims.py::"
_LAUNCHER = "tests/unit/spark_runs/test_launcher.py::"

BUGS = (
    Mutation(
        "a LIST that fails loses what was claimed before it",
        "spark_runs/claims.py",
        "    if errors and not claims:\n",
        "    if errors:\n",
        test=f"{_CLAIMS}test_one_list_that_fails_does_not_cost_an_attempt",
    ),
    Mutation(
        "a launch keeps every payload in the memory of its function",
        "spark_runs/launcher.py",
        "            mine.keeps_body = lambda path: False\n",
        "",
        test=f"{_LAUNCHER}test_a_launch_keeps_no_payload_in_its_memory",
    ),
)
