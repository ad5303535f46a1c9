"""ExpiredLeases: finds leases that have run out, and does what their owners would have done.  [P6]

A lease is read when it seems to be overdue, and not again before it can be overdue: a thousand leases that a heartbeat
keeps, or that wait for their retry, cost no GET per sweep.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from s3queue.documents.lease import GRAIN, StoredLease
from s3queue.errors import Conflict, CorruptState, NewerFormat, QueueError
from s3queue.protocol.expire import expire, unreadable_lease
from s3queue.protocol.liveness import LiveOwners
from s3queue.queue import Queue
from s3queue.store import ObjectInfo

from .report import Report

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ExpiredLeases:
    """What one sweeper knows about the leases that it read. Keep the instance between sweeps."""

    queue: Queue
    #: (key, ETag) of a lease that was read → when to read it again. A lease that is written again has another ETag.
    _waits_until: dict[tuple[str, str], datetime] = field(default_factory=dict)
    #: (key, ETag) of a lease that ran out but that its owner's heartbeat keeps → the owner, whose heartbeat is read.
    _kept_by: dict[tuple[str, str], str] = field(default_factory=dict)
    _cursor: str = ""

    def check(self, leases: dict[str, ObjectInfo], now: datetime, report: Report, due: list[str]) -> None:
        """Check the leases that seem to be overdue, starting where the budget of the last sweep ended.

        `due` collects the paths whose retry is due, even if the budget ends the check.
        """
        present = {(entry.key, entry.etag) for entry in leases.values()}
        self._waits_until = {which: at for which, at in self._waits_until.items() if which in present}
        self._kept_by = {which: owner for which, owner in self._kept_by.items() if which in present}
        owners = LiveOwners(self.queue)
        for path in sorted(leases, key=lambda path: (path < self._cursor, path)):
            entry = leases[path]
            which = (entry.key, entry.etag)
            due_at = self._waits_until.get(which, entry.modified_at + self.queue.settings.visibility_timeout + GRAIN)
            if now <= due_at:
                continue
            self._cursor = path
            owner = self._kept_by.get(which)
            if not owner or not owners.keep(owner, path, over_at=due_at, now=now):
                self._read(path, which, owners, report, due)
        self._cursor = ""

    def need_check_soon(self, leases: Iterable[ObjectInfo], soon: datetime) -> bool:
        """Whether any of them may be overdue soon."""
        return any(self._waits_until.get((entry.key, entry.etag), soon) <= soon for entry in leases)

    def _read(self, path: str, which: tuple[str, str], owners: LiveOwners, report: Report, due: list[str]) -> None:
        """Read a lease that seems to be overdue. Deal with it, or remember when to read it again."""
        report.budget.spend()
        found = self.queue.store.open(self.queue.keys.lease(path))
        if found is None:
            return
        try:
            held = StoredLease.read(found)
        except NewerFormat as error:
            report.corrupt[found.key] = str(error)
            return
        except CorruptState as error:
            report.corrupt[found.key] = str(error)
            unreadable = unreadable_lease(error, self.queue.settings.visibility_timeout)
            self._expire(path, StoredLease.of(found, unreadable), report)
            return
        if held.lease.state == "waiting":
            if held.is_due():
                due.append(path)
            elif held.lease.retry_at:
                self._waits_until[which] = held.lease.retry_at
        elif not held.is_over():
            self._waits_until[which] = held.over_at
        elif owners.keep(held.lease.owner, path, over_at=held.over_at, now=held.read_at):
            self._kept_by[which] = held.lease.owner
        else:
            self._expire(path, held, report)

    def _expire(self, path: str, held: StoredLease, report: Report) -> None:
        report.budget.spend(5)
        try:
            ending = expire(self.queue.leases, path, held)
        except Conflict:
            report.races += 1
        except CorruptState as error:
            report.corrupt[held.key] = str(error)
        except QueueError as error:
            # Unknown, or not allowed: this one is left to the next sweep, and the check continues with the others.
            _log.warning("expired lease kept for the next sweep: %s/%s: %s", self.queue.name, path, error)
            report.complete = False
        else:
            report.endings[ending] = report.endings.get(ending, 0) + 1
