"""DeathCount: counts the messages that died, whoever ran them, from a LIST of the dead letters.

A function tells of each death itself. What dies in a pull worker or in a Spark run, nobody on AWS hears of: the
deployed sweeper counts such a queue's letters, each once, by the time at which S3 stored it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.message import is_placeholder
from s3queue.encoding import NONSENSE, format_instant, load, parse_instant
from s3queue.errors import CorruptState, QueueError
from s3queue.paths import is_lines
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.counting import LETTERS_READ
from s3queue.protocol.stats import STATS_BYTES
from s3queue.store import ObjectInfo, Page, look_at, open_state

from .budget import OutOfBudget
from .last_hour import BUSY_SECONDS, SETTLED
from .report import Report

_log = logging.getLogger(__name__)
#: LISTs of one look. Of a queue with more letters, only what the clean-up lists once an hour is counted.
LISTS = 10
#: Sweeps of an idle queue that look, after it had work, or no letter: one, and another for what died just before it.
LOOKS_AFTER_WORK = 2
#: What a process that begins counts: what died before, another has counted, or nobody was there.
FIRST_LOOK = timedelta(hours=1)
#: Letters of batches that a process remembers.
MOST_BATCHES = 1000
#: Its name in `stats.json`: all that died before is counted.
UNTIL = "deaths_until"


@dataclass(slots=True)
class DeathCount:
    """What one sweeper knows of its queue's deaths. Keep the instance between sweeps."""

    queue: QueueAccess
    #: All that died before is counted; by S3's clock.
    _until: datetime | None = None
    _looked_at: datetime | None = None
    _looks_left: int = 0
    _are_too_many: bool = False
    #: Key of a batch's letter that was counted → when it died. The last ones that this process has seen.
    _batches: dict[str, datetime] = field(default_factory=dict)

    def take(self, kinds: set[str], report: Report, root: Page, *, is_busy: bool, has_news: bool) -> bool:
        """Put into the report how many died since the last look, if it is time to look; whether any did.

        An idle queue is looked at right after its work, when its first letter appears, if there is news of it (an
        outcome was found), and whenever the clean-up lists its letters anyway: while nothing happens, that costs no
        request. Never fails a sweep: what was not counted now is counted by the next look.
        """
        if is_busy:
            self._looks_left = LOOKS_AFTER_WORK
        until = root.at.replace(microsecond=0) - SETTLED
        if "dead" not in kinds:
            self._until, self._looks_left = until, LOOKS_AFTER_WORK
            return False
        if report.letters is None and not self._is_due(root.at, is_busy, has_news):
            return False
        if not is_busy:
            self._looks_left = max(0, self._looks_left - 1)
        try:
            report.deaths = self._count(report, until)
        except OutOfBudget:
            return False
        except QueueError as error:
            _log.warning("deaths not counted, trying again at the next look: %s: %s", self.queue.name, error)
            return False
        self._looked_at = root.at
        return report.deaths > 0

    def to_json(self) -> Mapping[str, str]:
        """For `stats.json`, so that another process counts nothing again."""
        return {UNTIL: format_instant(self._until)} if self._until else {}

    def _is_due(self, now: datetime, is_busy: bool, has_news: bool) -> bool:
        if self._are_too_many:
            return False
        if not is_busy:
            return has_news or self._looks_left > 0
        return self._looked_at is None or abs((now - self._looked_at).total_seconds()) >= BUSY_SECONDS

    def _count(self, report: Report, until: datetime) -> int:
        letters = report.letters
        if letters is None:
            letters = self._listed(report)
            self._are_too_many = letters is None
            if letters is None:
                return 0
        else:
            self._are_too_many = False
        since = self._until or until - FIRST_LOOK
        found = [one for one in letters if since <= one.modified_at < until and not is_placeholder(one)]
        if found:
            # Another process may have counted them: one that has just ended, or sweeps at the same time.
            since = max(since, self._published(report, until) or since)
            found = [one for one in found if since <= one.modified_at]
        died = len(found) - self._rewritten(found, report)
        self._until = until
        return died

    def _listed(self, report: Report) -> list[ObjectInfo] | None:
        """All letters; None if there are too many."""
        letters: list[ObjectInfo] = []
        for number, page in enumerate(report.budget.pages(self.queue.keys.prefix("dead")), 1):
            letters += page.objects
            if number == LISTS and page.next_after is not None:
                return None
        return letters

    def _rewritten(self, letters: Iterable[ObjectInfo], report: Report) -> int:
        """How many of these were counted before: an operator took some lines out of a batch's letter. A HEAD each."""
        died: dict[str, datetime] = {}
        for entry in [one for one in letters if is_lines(one.key)][:LETTERS_READ]:
            report.budget.check()
            path, info = self.queue.keys.path_under("dead", entry.key), look_at(report.budget.store, entry.key)
            if path and info:
                died[entry.key] = DeadLetter.of(path, info).died_at
        # Not before: if one cannot be looked at now, the next look counts all of them.
        rewritten = 0
        for key, at in died.items():
            rewritten += self._batches.pop(key, None) == at
            self._batches[key] = at
        for key in list(self._batches)[:-MOST_BATCHES]:
            del self._batches[key]
        return rewritten

    def _published(self, report: Report, until: datetime) -> datetime | None:
        report.budget.check()
        key = self.queue.keys.stats
        found = open_state(report.budget.store, key)
        try:
            known: Any = load(found.read(STATS_BYTES), key) if found else {}
            at = parse_instant(known[UNTIL])
        except (CorruptState, *NONSENSE):
            return None
        return at if at <= until else None
