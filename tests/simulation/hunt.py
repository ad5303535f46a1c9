"""`python -m simulation.hunt SECONDS`: look for a broken promise in the `s3queue` on the path; prints JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

from .crash_matrix import explore
from .operations import OPERATIONS
from .schedules import Verdict, run

#: Schedules before the crash matrix gets its turn.
FIRST = 150


def verdicts() -> Iterator[tuple[str, Verdict]]:
    """The quickest first: some schedules, the crash matrix without its pairs, then schedules without end."""
    seed = 0
    while seed < FIRST:
        yield "schedule", run(seed)
        seed += 1
    for operation in OPERATIONS:
        for outcome in explore(operation, with_pairs=False):
            yield "crash matrix", outcome.verdict
    while True:
        yield "schedule", run(seed)
        seed += 1


def main() -> int:
    limit = float(sys.argv[1])
    start = time.process_time()
    by, what, seeds = "", "", 0
    for source, verdict in verdicts():
        seeds += source == "schedule"
        if verdict.violations:
            by = f"schedule {verdict.seed}" if source == "schedule" else source
            what = f"{verdict.profile}: {verdict.violations[0]}"
            break
        if time.process_time() - start > limit:
            break
    spent = round(time.process_time() - start, 2)
    print(json.dumps({"by": by, "what": what, "schedules": seeds, "seconds": spent}))
    return 0 if what else 1


if __name__ == "__main__":
    sys.exit(main())
