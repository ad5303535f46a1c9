"""`python -m simulation.replay SEED`: one schedule again, step by step."""

from __future__ import annotations

import sys

from .schedules import Verdict, run


def show(verdict: Verdict) -> None:
    for at, process, operation, key, what in verdict.trace:
        print(f"{at:9.3f}  {process:<12} {operation:<7} {key:<48} {what}")
    print(f"\nseed {verdict.seed}, {verdict.profile}: {dict(verdict.counts)}, trace {verdict.digest[:16]}")
    for violation in verdict.violations:
        print(f"BROKEN {violation}")


def main() -> int:
    verdict = run(int(sys.argv[1]))
    show(verdict)
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
