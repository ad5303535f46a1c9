"""Messages that nobody could read, and that an operator replays where they lie, as the judge sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from s3queue.documents.dead_facts import dead_facts
from s3queue.encoding import format_instant

from .ledger import Ledger, Life


class Unread:
    """What was PUT over which death."""

    def __init__(self, ledger: Ledger, broken: Callable[[str, str], None]) -> None:
        self._ledger = ledger
        self._broken = broken
        #: Each replay, and when the last death of its bytes was recorded.
        self._replays: list[tuple[Life, float]] = []

    def replayed(self, life: Life) -> None:
        """A replay was PUT in the place of what died there."""
        deaths = [one.recorded_at for one in self._ledger.alike(life) if one.record and one.record.outcome == "dead"]
        self._replays.append((life, max(deaths, default=0.0)))

    def deleted(self, origin: str, letter: Any) -> None:
        """[P1] A replay deletes the letter only when its message is another one by now: nothing else stands for it."""
        life = self._ledger.present.get(origin)
        facts = dead_facts(letter.metadata)
        named = facts.get("etag"), facts.get("enqueued-at")
        if life and (life.etag, format_instant(life.put_at)) == named:
            self._broken("P1", f"{origin} lies there as it died, and its letter is gone")

    def check_quiet(self) -> None:
        """[P1] [P7] What was replayed has run since its death, or died again: the death before is not its outcome."""
        for life, died_at in self._replays:
            runs = [run for one in self._ledger.alike(life) for runs in one.runs.values() for run in runs]
            has_run = any(run.began_at > died_at for run in runs)
            if not (has_run or life.record or life.end in ("overwritten", "removed")):
                self._broken("P1", f"{life.path} was replayed where it lies, and deleted without having run")
