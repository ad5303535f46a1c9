"""ScheduleStep: the part of a sweep that puts what schedules ask for.  [P10]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from s3queue.protocol.access import QueueAccess
from s3queue.store import ObjectInfo

from .budget import OutOfBudget
from .progress import Progress
from .report import Report

if TYPE_CHECKING:
    from s3queue.documents.schedule import Schedule
    from s3queue.flow.schedule_firing import ScheduleFiring

#: Schedules may use this part of a sweep's budget: one in so many.
SHARE = 4
#: Pages of objects under `schedules/` that one sweep lists: strangers may have put others there.
MOST_PAGES = 10


@dataclass(slots=True)
class ScheduleStep:
    """The schedules of one queue. Keep the instance between sweeps."""

    queue: QueueAccess
    #: Made when there is a schedule.
    _firing: ScheduleFiring | None = None

    def take(
        self, code: Sequence[Schedule] | None, kinds: set[str], report: Report, now: datetime, progress: Progress
    ) -> None:
        """Put what is wanted, and add `delayed` to the kinds if anything was. Also if the queue is paused: its messages
        wait.
        """
        if not code and "schedules" not in kinds:
            progress.schedules = ""
            return
        if self._firing is None:
            # Not before: a queue without a schedule imports nothing for it.
            from s3queue.flow.schedule_firing import ScheduleFiring

            self._firing = ScheduleFiring(self.queue, code)
        self._firing.cursor = progress.schedules or self._firing.cursor
        with report.budget.step(SHARE):
            try:
                listed: list[ObjectInfo] = []
                cursor: str | None = "" if "schedules" in kinds else None
                for _ in range(MOST_PAGES):
                    if cursor is not None:
                        page = report.budget.list(self.queue.keys.prefix("schedules"), after=cursor)
                        listed += page.objects
                        cursor = page.next_after
                check, is_whole = report.budget.check, cursor is None
                report.scheduled = self._firing.fire(
                    report.budget.store, listed, now, report.corrupt, check, is_whole=is_whole
                )
            except OutOfBudget:
                report.complete = False
        progress.schedules = self._firing.cursor or ""
        if report.scheduled:
            kinds.add("delayed")
