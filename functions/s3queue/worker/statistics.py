"""Statistics: how the attempts of one worker ended, for its heartbeat and its operator."""

from __future__ import annotations

import threading
from collections import Counter

from .processor import AttemptEnding


class Statistics:
    """Counts since the start; safe for threads."""

    def __init__(self) -> None:
        self._counts: Counter[AttemptEnding] = Counter()
        self._mutex = threading.Lock()

    def count(self, ending: AttemptEnding) -> None:
        with self._mutex:
            self._counts[ending] += 1

    def to_dict(self, *, running: int) -> dict[str, int]:
        counts = self._counts
        return {
            "processed": counts["completed"] + counts["retried"] + counts["dead"],
            "succeeded": counts["completed"],
            "failed": counts["retried"] + counts["dead"],
            "retried": counts["retried"],
            "dead": counts["dead"],
            "cancelled": counts["cancelled"],
            "released": counts["released"] + counts["postponed"],
            "lost": counts["lost"],
            "running": running,
        }
