"""`python -m simulation.hunt SECONDS`: look for a broken promise in the `s3queue` on the path; prints JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

from .crash_matrix import explore
from .operations import OPERATIONS
from .schedules import Verdict, run


def verdicts() -> Iterator[tuple[str, Verdict]]:
    """What catches most comes first: schedules and the operations of the crash matrix take turns, without its pairs."""
    operations = list(OPERATIONS)
    seed = 0
    for seeds, count in ((150, 7), (350, len(operations))):
        for _ in range(seeds):
            yield "schedule", run(seed)
            seed += 1
        for operation in operations[:count]:
            for outcome in explore(operation, with_pairs=False):
                yield "crash matrix", outcome.verdict
        del operations[:count]
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
            what = f"{verdict.violations[0].kind} {verdict.violations[0].promise}"
            break
        if time.process_time() - start > limit:
            break
    spent = round(time.process_time() - start, 2)
    print(json.dumps({"by": by, "what": what, "schedules": seeds, "seconds": spent}))
    return 0 if what else 1


if __name__ == "__main__":
    sys.exit(main())
