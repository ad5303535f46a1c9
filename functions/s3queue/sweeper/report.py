"""Report: what one sweep did, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from s3queue.protocol.expire import LeaseEnding
from s3queue.protocol.stats import Stats
from s3queue.store import ObjectInfo

from .budget import Budget


@dataclass(slots=True, kw_only=True)
class Report:
    """What one sweep did, and what it found."""

    queue: str
    budget: Budget
    #: How expired leases ended: gone, finished, retried, dead, restarted.
    endings: dict[LeaseEnding, int] = field(default_factory=dict)
    #: Due retries and due delayed messages that were handed to a worker.
    due: int = 0
    #: Messages without a lease that were older than `rescue_after`: their events were lost, late or throttled.
    orphans: int = 0
    #: Expired leases that someone else dealt with first.
    races: int = 0
    removed: int = 0
    #: How many messages wait for their next attempt, as the reminders tell that were listed.
    reminders: int = 0
    #: Key → why this version cannot read the object.
    corrupt: dict[str, str] = field(default_factory=dict)
    #: False: the budget ended the sweep; the next one continues from there.
    complete: bool = True
    #: Whether anything is processed, waits or is due; if not, the next tick need not come soon.
    in_flight: bool = False
    stats: Stats | None = None
    #: Seconds until the next tick; None: nothing is in flight, so the next regular sweep is soon enough.
    next_tick: float | None = None
    #: The error that ended a tick early, or an unexpected one about a lease; the next tick tries again.
    error: Exception | None = None
    #: Messages that schedules put into `delayed/`.
    scheduled: int = 0
    #: Messages that died since the last look, whoever ran them; 0 if this sweeper counts no deaths.
    deaths: int = 0
    #: The dead letters of the last hours, if this sweep has listed all letters.
    letters: list[ObjectInfo] | None = None

    @property
    def requests(self) -> int:
        return self.budget.spent

    def to_json(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "endings": dict(self.endings),
            "due": self.due,
            "orphans": self.orphans,
            "races": self.races,
            "removed": self.removed,
            "scheduled": self.scheduled,
            "corrupt": dict(self.corrupt),
            "requests": self.requests,
            "complete": self.complete,
        }
