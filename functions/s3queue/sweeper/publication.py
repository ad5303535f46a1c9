"""Publication: writes what a sweep counted to `stats.json`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from s3queue.errors import QueueError
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.stats import STATS_BYTES, Stats, published_stats
from s3queue.store import Page

from .last_hour import LastHourStep
from .report import Report

if TYPE_CHECKING:
    from .deaths import DeathCount

_log = logging.getLogger(__name__)
#: How long a sweeper remembers its rescues.
RESCUES_KEPT_SECONDS = 3600.0


@dataclass(slots=True)
class Publication:
    """What one sweeper publishes of its queue. Keep the instance between sweeps."""

    queue: QueueAccess
    #: Published with the stats, see `Sweeper.publishes_as`.
    by: str
    #: Whether what has finished is counted, too.
    counts_hour: bool = False
    #: Whether deaths are counted, too.
    counts_deaths: bool = False
    last_hour: LastHourStep | None = field(init=False, default=None)
    _deaths: DeathCount | None = field(init=False, default=None)
    #: The ETag of the stats of an idle queue that this sweeper has published, or read; empty: it has work, or the PUT
    #: may not have arrived.
    _idle_etag: str = ""
    #: (when, how many) for each sweep that rescued messages.
    _rescues: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last_hour = LastHourStep(self.queue) if self.counts_hour else None
        if self.counts_deaths:
            # Not above: most queues' functions tell of their deaths themselves.
            from .deaths import DeathCount

            self._deaths = DeathCount(self.queue)

    def rescued(self, report: Report) -> int:
        """How many messages were rescued in the last hour, including this sweep. From memory: reading the published
        number would cost a request per sweep.
        """
        now = self.queue.clock.monotonic()
        self._rescues = [(at, many) for at, many in self._rescues if now - at < RESCUES_KEPT_SECONDS]
        if report.orphans:
            self._rescues.append((now, report.orphans))
        return sum(many for _, many in self._rescues)

    def publish(self, report: Report, kinds: set[str], root: Page, oldest_at: datetime | None) -> None:
        """Publish the report's stats. `oldest_at`: of all messages that the sweep has seen; None: it saw none."""
        self._idle_etag = ""
        has_news = self.last_hour is not None and self.last_hour.take(
            kinds, report, root, oldest_at=oldest_at, is_busy=True
        )
        self._count_deaths(kinds, report, root, is_busy=True, has_news=has_news)
        self._put(report)

    def publish_idle(self, report: Report, kinds: set[str], root: Page) -> None:
        """Publish the stats of an idle queue once, and again only after there was work: idle, it costs one LIST, and
        every ten minutes a look for what has come and gone between two sweeps.
        """
        report.stats = Stats(rescued=self.rescued(report), at=root.at)
        has_news = self.last_hour is not None and self.last_hour.take(
            kinds, report, root, oldest_at=None, is_busy=not self._idle_etag
        )
        has_news |= self._count_deaths(kinds, report, root, is_busy=False, has_news=has_news)
        if has_news or not self._is_known_idle(root, report):
            self._idle_etag = self._put(report)

    def _count_deaths(self, kinds: set[str], report: Report, root: Page, *, is_busy: bool, has_news: bool) -> bool:
        if self._deaths is None:
            return False
        if self.queue.settings.dead_letters:
            return self._deaths.take(kinds, report, root, is_busy=is_busy, has_news=has_news)
        # Only the records tell of those: what the look at the last hour has read, and what that stands for.
        report.deaths = self.last_hour.died if self.last_hour and has_news else 0
        return report.deaths > 0

    def _is_known_idle(self, root: Page, report: Report) -> bool:
        """Whether the stats that stand tell of an idle queue. Another sweeper's may not, and nobody else corrects them:
        producers that find the queue full there send nothing, so there is never any work.
        """
        if not self._idle_etag:
            return False
        shown = next((entry.etag for entry in root.objects if entry.key == self.queue.keys.stats), "")
        if shown == self._idle_etag:
            return True
        if not shown:
            return root.next_after is not None
        try:
            stats = published_stats(report.budget.store, self.queue.keys)
        except QueueError:
            return False
        is_idle = stats is not None and not (stats.pending or stats.delayed or stats.processing or stats.failed)
        self._idle_etag = shown if is_idle else ""
        return is_idle

    def _put(self, report: Report) -> str:
        """The ETag; empty if it is not known whether they were stored."""
        assert report.stats is not None
        hour = self.last_hour.hour if self.last_hour else None
        by = {"by": self.by} if self.by else {}
        by |= self._deaths.to_json() if self._deaths else {}
        try:
            body = report.stats.to_bytes(by | ({"hour": hour.to_json()} if hour else {}))
            if len(body) > STATS_BYTES:
                # Nobody would read it. It takes durations from milliseconds to days, in every five minutes.
                body = report.stats.to_bytes(by)
            return report.budget.store.put(self.queue.keys.stats, body, content_type="application/json").etag
        except QueueError as error:
            _log.warning("stats not published, trying again at the next sweep: %s: %s", self.queue.name, error)
            return ""
