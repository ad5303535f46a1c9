"""`python -m simulation.hunt NAME SECONDS [FIRST]`: plant a bug, and look for a broken promise; prints JSON.

`python -m simulation.hunt --all` hunts every planted bug from the beginning, prints the scoreboard, and remembers what
caught each.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from .mutations import CAUGHT, TESTS, Planter, hunt, planted

if TYPE_CHECKING:
    from .schedules import Verdict

MATRIX = "crash matrix: "
#: A bug that names what does not exist, because the code has changed since it was planted, breaks no promise.
_BLUNDER = re.compile(
    r"(NameError|UnboundLocalError|ImportError|ModuleNotFoundError|AttributeError: '(?!NoneType)"
    r"|TypeError: .*(positional argument|keyword argument))"
)


def verdicts(first: str) -> Iterator[tuple[str, Verdict]]:
    """What catches most comes first: schedules and the operations of the crash matrix take turns, without its pairs."""
    # Not before the bug is planted.
    from .crash_matrix import run_case, single_cases
    from .operations import OPERATIONS
    from .schedules import run
    from .undisturbed import UNDISTURBED

    if first.startswith(MATRIX):
        operation, _, place = first.removeprefix(MATRIX).rpartition(" ")
        cases = single_cases(operation)
        if int(place) < len(cases):
            yield first, run_case(cases[int(place)]).verdict
    elif first:
        yield first, run(int(first.removeprefix("schedule ")))
    operations = [*UNDISTURBED, *OPERATIONS]
    seed = 0
    for seeds, count in ((150, 12), (650, len(operations))):
        for _ in range(seeds):
            yield f"schedule {seed}", run(seed)
            seed += 1
        for operation in operations[:count]:
            for number, case in enumerate(single_cases(operation)):
                yield f"{MATRIX}{operation} {number}", run_case(case).verdict
        del operations[:count]
    while True:
        yield f"schedule {seed}", run(seed)
        seed += 1


def search(limit: float, first: str) -> dict[str, str | int | float]:
    start = time.process_time()
    by, what, seeds = "", "", 0
    for source, verdict in verdicts(first):
        seeds += source.startswith("schedule")
        if violation := next((one for one in verdict.violations if not _BLUNDER.search(one.what)), None):
            by, what = source, f"{violation.kind} {violation.promise}".strip() + f": {violation.what}"
            break
        if time.process_time() - start > limit:
            break
    return {"by": by, "what": what, "schedules": seeds, "seconds": round(time.process_time() - start, 2)}


class _Raised:
    """What the code under test has raised in the end, for a pytest that runs in this process."""

    what = ""

    def pytest_exception_interact(self, call: Any) -> None:
        if not call.excinfo.traceback[-1].path.is_relative_to(TESTS):
            self.what = f"{call.excinfo.typename}: {call.excinfo.value}"


def search_by_test(test: str) -> dict[str, str | int | float]:
    """Run one test, with real threads, over the planted bug."""
    import pytest

    from support import threads

    # What is in vain need not be waited for as long as on a busy machine.
    threads.PATIENCE = 5.0
    start = time.process_time()
    raised = _Raised()
    with redirect_stdout(sys.stderr):
        ended = pytest.main(["-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", test], plugins=[raised])
    is_caught = ended == pytest.ExitCode.TESTS_FAILED and not _BLUNDER.search(raised.what)
    by, what = (test, "the test fails") if is_caught else ("", "")
    return {"by": by, "what": what, "schedules": 0, "seconds": round(time.process_time() - start, 2)}


def score_all(limit: float = 60.0) -> int:
    """The scoreboard: by what each bug was caught, as which broken promise, after how many schedules."""
    caught: dict[str, str] = {}
    with ThreadPoolExecutor(2) as hunters:
        for catch in hunters.map(lambda bug: hunt(bug, limit), planted()):
            print(f"{catch.seconds:6.1f} s {catch.schedules:5} schedules  {catch.mutation}\n", end="", flush=True)
            print(f"         {catch.by or 'NOBODY'}: {catch.what[:150]}", flush=True)
            caught |= {catch.mutation: catch.by} if catch.by else {}
    CAUGHT.write_text(json.dumps(caught, indent=1, sort_keys=True) + "\n")
    return len(planted()) - len(caught)


def main() -> int:
    if sys.argv[1] == "--all":
        return 1 if score_all() else 0
    name, limit, first = (*sys.argv[1:], "")[:3]
    mutation = next(one for one in planted() if one.name == name)
    sys.meta_path.insert(0, Planter(mutation))
    found = search_by_test(mutation.test) if mutation.test else search(float(limit), first)
    print(json.dumps(found), flush=True)
    # Not sys.exit: it would wait for the threads that a planted bug leaves behind.
    os._exit(0 if found["by"] else 1)


if __name__ == "__main__":
    sys.exit(main())
