"""ExpiredLeases: finds leases that have run out, and does what their owners would have done.  [P6]

A lease is read when it seems to be overdue, and not again before it can be overdue: a thousand leases that a heartbeat
keeps, or that wait for their retry, cost no GET per sweep. Every LIST of leases shows when each was written, so the
sweeper knows when the next one can be over, and looks at just that one, then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from s3queue.documents.lease import GRAIN, Lease, StoredLease
from s3queue.documents.message import Generation
from s3queue.encoding import LATEST
from s3queue.errors import Conflict, CorruptState, NewerFormat, QueueError
from s3queue.paths import is_partition
from s3queue.protocol.expire import LeaseEnding, expire, restart, unreadable_lease
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.protocol.liveness import LiveOwners
from s3queue.protocol.store_time import StoreTime
from s3queue.queue import Queue
from s3queue.store import Object, ObjectInfo, Page, listing, open_state

from .budget import OutOfBudget
from .progress import Progress
from .report import Report

_log = logging.getLogger(__name__)
#: The requests of a usual expiry.
EXPIRY_REQUESTS = 5
#: A lease that was handed over is looked at this much later than it may be handed over again.
_LATER = timedelta(seconds=1)


@dataclass(slots=True)
class ExpiredLeases:
    """What one sweeper knows about the leases of its queue. Keep the instance between sweeps."""

    queue: Queue
    time: StoreTime
    #: Path → the lease as it was last listed.
    known: dict[str, ObjectInfo] = field(default_factory=dict)
    #: Whether LISTs have shown all leases; from then on it is known which messages have one.
    are_all_known: bool = False
    #: Partitions whose lease nobody holds: messages of theirs may have lost their event.
    open_partitions: set[str] = field(default_factory=set)
    #: What a round of LISTs over all leases has shown so far; None: the round did not begin in this process.
    _round: set[str] | None = None
    #: Where the next LIST between two sweeps goes on.
    _cursor: str = ""
    #: (key, ETag) of a lease that was read → when to read it again. A lease that is written again has another ETag.
    _waits_until: dict[tuple[str, str], datetime] = field(default_factory=dict)
    #: (key, ETag) of a lease that ran out but that its owner's heartbeat keeps → the owner, whose heartbeat is read.
    _kept_by: dict[tuple[str, str], str] = field(default_factory=dict)
    #: (key, ETag) of a lease that waits → what it waits for; and path → what the last LIST showed in that place.
    _waiting: dict[tuple[str, str], Lease] = field(default_factory=dict)
    _present: dict[str, Generation] = field(default_factory=dict)
    #: Path → when it was handed over. A lease that nobody has written since waits, and has lost its reminder.
    _handed_over: dict[str, datetime] = field(default_factory=dict)

    def list_all(self, progress: Progress, report: Report) -> None:
        """List all leases, or as many as the budget allows; the next sweep goes on from there."""
        if not progress.leases:
            self._round = set()
        for page in report.budget.pages(self.queue.keys.prefix("leases"), progress.leases):
            seen = self._see(page, report)
            if self._round is not None:
                self._round |= seen
            progress.leases = page.next_after or ""
        if self._round is not None:
            self._keep_only(self._round)
        self._round = None

    def list_some(self, report: Report) -> None:
        """One page of leases: the whole of a small queue, the next part of a large one."""
        page = report.budget.store.list(self.queue.keys.prefix("leases"), after=self._cursor)
        seen = self._see(page, report)
        if page.next_after is None and not self._cursor:
            self._keep_only(seen)
        self._cursor = page.next_after or ""

    def list_between(self, first: str, last: str, report: Report) -> None:
        """List the leases of the paths from `first` to `last`, however little of the budget is left: without them, the
        page of messages that was listed cannot be judged.
        """
        keys = self.queue.keys
        key = keys.lease(first)
        # Just before the first path, so that its own lease is listed too.
        before = key[:-1] + (chr(ord(key[-1]) - 1) + "\U0010ffff" if " " < key[-1] <= "~" else "")
        for page in listing(report.budget.store, keys.prefix("leases"), after=before):
            self._see(page, report)
            if page.next_after is None or page.next_after > keys.lease(last):
                break

    def list_partitions(self, report: Report) -> None:
        """List the leases of partitions, which lie before those of messages; as `list_between`."""
        for page in listing(report.budget.store, self.queue.keys.partition_leases):
            self._see(page, report)

    def see_messages(self, messages: Iterable[ObjectInfo]) -> None:
        """Note what lies under the leases. One that waits for what lay there before is read again."""
        for message in messages:
            path = self.queue.keys.path(message.key) or ""
            if lease := self.known.get(path):
                present = self._present[path] = Generation(etag=message.etag, put_at=message.modified_at)
                waiting = self._waiting.get((lease.key, lease.etag))
                if waiting and not waiting.waits_for(present):
                    self._waits_until.pop((lease.key, lease.etag), None)

    def handed_over(self, paths: Iterable[str]) -> None:
        """These were handed over, and their reminders are gone: whoever got them may be unable to try them."""
        now = self.time.now()
        self._handed_over |= dict.fromkeys(paths, now)

    def none_exist(self) -> None:
        """A LIST has shown that there are no leases."""
        self._keep_only(set())

    def _see(self, page: Page, report: Report) -> set[str]:
        """Note what a LIST showed; returns the paths."""
        self.time.note(page.at)
        seen: set[str] = set()
        for entry in page.objects:
            path = self.queue.keys.path_under("leases", entry.key)
            if path is None:
                report.corrupt[entry.key] = "the key is not that of a lease"
            else:
                seen.add(path)
                self.known[path] = entry
                if entry.modified_at > self._handed_over.get(path, entry.modified_at):
                    del self._handed_over[path]
        return seen

    def _keep_only(self, paths: set[str]) -> None:
        """Forget leases that are gone: all that exist have these paths."""
        self.are_all_known = True
        self.known = {path: entry for path, entry in self.known.items() if path in paths}
        present = {(entry.key, entry.etag) for entry in self.known.values()}
        self._waits_until = {which: at for which, at in self._waits_until.items() if which in present}
        self._kept_by = {which: owner for which, owner in self._kept_by.items() if which in present}
        self._waiting = {which: lease for which, lease in self._waiting.items() if which in present}
        self._present = {path: generation for path, generation in self._present.items() if path in self.known}
        kept_after = self.time.now() - self.queue.settings.rescue_after
        self._handed_over = {
            path: at for path, at in self._handed_over.items() if path in self.known or at > kept_after
        }
        self.open_partitions &= self.known.keys()

    def next_at(self) -> datetime | None:
        """After this instant the next lease may be over; None if no lease is known."""
        return min((self._due_at(path, entry) for path, entry in self.known.items()), default=None)

    def need_check_soon(self, soon: datetime) -> bool:
        """Whether any lease may be overdue soon."""
        return any(
            self._waits_until.get((entry.key, entry.etag), soon) <= soon or self._due_at(path, entry) <= soon
            for path, entry in self.known.items()
        )

    def _due_at(self, path: str, entry: ObjectInfo) -> datetime:
        over_at = entry.modified_at + self.queue.settings.visibility_timeout + GRAIN
        due_at = self._waits_until.get((entry.key, entry.etag), over_at)
        handed_over = self._handed_over.get(path)
        return min(due_at, handed_over + self.queue.settings.rescue_after + _LATER) if handed_over else due_at

    def _is_unserved(self, path: str, now: datetime) -> bool:
        """Whether it was handed over so long ago that it may be handed over again."""
        handed_over = self._handed_over.get(path)
        return handed_over is not None and handed_over + self.queue.settings.rescue_after + _LATER < now

    def check(self, leases: LeaseProtocol, report: Report, due: list[str], cursor: str = "") -> str:
        """Check the leases that seem to be overdue, starting at the path `cursor`; returns where the budget ended it.

        `due` collects the paths whose retry is due. S3's answers decide; this process's clock only says when to ask.
        """
        now = self.time.now()
        overdue = [path for path, entry in self.known.items() if self._due_at(path, entry) < now]
        owners = LiveOwners(leases.queue)
        for path in sorted(overdue, key=lambda path: (path < cursor, path)):
            entry = self.known[path]
            which = (entry.key, entry.etag)
            try:
                report.budget.check()
                if self._is_unserved(path, now):
                    del self._handed_over[path]
                owner = self._kept_by.get(which)
                if owner and owners.keep(owner, path, over_at=self._due_at(path, entry), now=self.time.seen_at):
                    self._wait(which, owners.fresh_until.get(owner))
                else:
                    self._read(path, which, leases, owners, report, due)
            except OutOfBudget:
                report.complete = False
                return path
            except QueueError as error:
                # Unknown, or not allowed: this one is left to a later sweep, and the check continues with the others.
                _log.warning("lease not checked, trying again: %s/%s: %s", self.queue.name, path, error)
                report.complete = False
                self._wait(which, None)
            except Exception as error:
                # Whatever someone wrote there, or a bug: one lease must not keep the others from being checked.
                _log.exception("unexpected error, continuing with the next lease: %s/%s", self.queue.name, path)
                report.error, report.complete = error, False
                self._wait(which, None)
        return ""

    def _wait(self, which: tuple[str, str], until: datetime | None) -> None:
        self._waits_until[which] = until or self.time.now() + self.queue.settings.visibility_timeout

    def _read(
        self,
        path: str,
        which: tuple[str, str],
        leases: LeaseProtocol,
        owners: LiveOwners,
        report: Report,
        due: list[str],
    ) -> None:
        """Read a lease that seems to be overdue. Deal with it, or remember when to read it again."""
        found = open_state(report.budget.store, self.queue.keys.lease(path))
        if found is None:
            self.known.pop(path, None)
            return
        self.time.note(found.at)
        if is_partition(path):
            self._read_partition(path, which, found, owners, report, due)
            return
        try:
            held = StoredLease.read(found)
        except NewerFormat as error:
            report.corrupt[found.key] = str(error)
            self._wait(which, None)
            return
        except CorruptState as error:
            report.corrupt[found.key] = str(error)
            unreadable = unreadable_lease(error, self.queue.settings.visibility_timeout)
            self._end(expire, path, which, StoredLease.of(found, unreadable), leases, report)
            return
        if held.lease.state == "waiting":
            settings = self.queue.settings
            # Its reminder brings it up when it is due; this is for one whose reminder was lost.
            again = min(settings.visibility_timeout, settings.rescue_after)
            if held.is_due():
                due.append(path)
                self._wait(which, self.time.now() + again)
            elif path in self._present and not held.lease.waits_for(self._present.pop(path)):
                self._end(restart, path, which, held, leases, report)
            elif held.lease.retry_at:
                self._waiting[which] = replace(held.lease, failure=None, attempts=(), lines=None)
                self._wait(which, min(held.lease.retry_at, LATEST - again) + again)
        elif not held.is_over():
            self._waits_until[which] = held.over_at
        elif owners.keep(held.lease.owner, path, over_at=held.over_at, now=held.read_at):
            self._kept_by[which] = held.lease.owner
            self._wait(which, owners.fresh_until.get(held.lease.owner))
        else:
            self._end(expire, path, which, held, leases, report)

    def _read_partition(
        self,
        path: str,
        which: tuple[str, str],
        found: Object,
        owners: LiveOwners,
        report: Report,
        due: list[str],
    ) -> None:
        """Whoever takes a partition over goes on with it, so it is only handed over.  [P9]"""
        from s3queue.documents.partition import PartitionLease, StoredPartition

        self.open_partitions.discard(path)
        try:
            held = StoredPartition.of(found, PartitionLease.read(found))
        except CorruptState as error:
            # A worker replaces one that it cannot read once it is old; a newer version's is left to that.
            report.corrupt[found.key] = str(error)
            if not isinstance(error, NewerFormat):
                due.append(path)
            self._wait(which, None)
            return
        if held.lease.state == "open":
            self.open_partitions.add(path)
            next_at = held.lease.next_at
            if next_at and next_at <= held.read_at:
                due.append(path)
                self._wait(which, None)
            else:
                # Its reminder brings it up; this is for one whose reminder was lost.
                timeout = self.queue.settings.visibility_timeout
                self._wait(which, min(next_at or LATEST, LATEST - timeout) + timeout)
            return
        owner, is_over = held.lease.owner, held.is_over()
        if is_over and owners.keep(owner, path, over_at=held.over_at, now=held.read_at):
            self._kept_by[which] = owner
            self._wait(which, owners.fresh_until.get(owner))
        elif is_over:
            due.append(path)
            self._wait(which, None)
        else:
            self._waits_until[which] = held.over_at

    def _end(
        self,
        end: Callable[[LeaseProtocol, str, StoredLease], LeaseEnding | None],
        path: str,
        which: tuple[str, str],
        held: StoredLease,
        leases: LeaseProtocol,
        report: Report,
    ) -> None:
        # The first one of a sweep is begun however little is left: otherwise a small budget would never get anywhere.
        if report.endings or report.races:
            report.budget.check(EXPIRY_REQUESTS)
        # The next LIST shows what became of it; until then there is nothing to do.
        self._wait(which, None)
        try:
            ending = end(leases, path, held)
        except Conflict:
            report.races += 1
        except CorruptState as error:
            report.corrupt[held.key] = str(error)
        else:
            if ending:
                report.endings[ending] = report.endings.get(ending, 0) + 1
            if ending in ("gone", "finished", "dead"):
                self.known.pop(path, None)
