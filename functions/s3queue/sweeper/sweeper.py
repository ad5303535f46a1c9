"""Sweeper: makes sure that no message is ever forgotten.  [P6]

It deals with expired leases, due retries and delayed messages, messages whose event was lost, heartbeats of dead
workers, unused locks and old dead letters. It costs one LIST per 1,000 objects, and GETs only for leases that seem to
be overdue. Two sweepers may run at once. A sweep is bounded: the next one continues where it ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from s3queue.documents.message import is_placeholder
from s3queue.errors import QueueError
from s3queue.keys import due_of, priority_of
from s3queue.protocol.stats import Counter, Stats
from s3queue.queue import Queue
from s3queue.store import ObjectInfo, Page

from .budget import Budget, OutOfBudget
from .cleanup import Cleanup, remove
from .expired_leases import ExpiredLeases
from .report import Report

_log = logging.getLogger(__name__)
#: Paths in one dispatch.
DISPATCH_SIZE = 100
#: How often due retries and delayed messages are listed while something is in flight.
DUE_SECONDS = 2.0
#: The default budget of one sweep.
SWEEP_REQUESTS = 5000
SWEEP_SECONDS = 20.0
LONGEST_PAUSE_SECONDS = 30.0
#: How long a sweeper remembers its rescues.
RESCUES_KEPT_SECONDS = 3600.0
#: The sweeper stays awake for what is due within this time.
SOON = timedelta(seconds=60)

Dispatch = Callable[[Sequence[str]], None]


@dataclass(slots=True, kw_only=True)
class Sweeper:
    """Sweeps one queue. Keep the instance between sweeps: it remembers which leases need no GET, and where it ended."""

    queue: Queue
    #: Hands paths to the queue's worker; an error means that they were not handed over.
    dispatch: Dispatch
    #: Checks the queue's Spark runs; returns how many there are.
    check_runs: Callable[[Queue], int] | None = None
    _dispatched: dict[str, float] = field(default_factory=dict)
    #: (when, how many) for each sweep that rescued messages.
    _rescues: list[tuple[float, int]] = field(default_factory=list)
    _cursor: str = ""
    _in_flight: bool = True
    _idle_published: bool = False
    _next_sweep: float = float("-inf")
    _next_due_at: datetime | None = None
    _expired_leases: ExpiredLeases = field(init=False)
    _cleanup: Cleanup = field(init=False)
    _report: Report = field(init=False)

    def __post_init__(self) -> None:
        self._expired_leases = ExpiredLeases(self.queue)
        self._cleanup = Cleanup(self.queue)

    def tick(self) -> Report | None:
        """Do what is needed now: a sweep at its interval, due messages in between; None if nothing is needed.

        The report says when the next tick should come. An error is not raised but put into the report, so that what was
        done before it is reported too.
        """
        now = self.queue.clock.monotonic()
        is_full = now >= self._next_sweep
        if not is_full and not self._in_flight:
            return None
        try:
            report = self.sweep() if is_full else self.sweep_due()
        except Exception as error:
            self._report.error = error
            return self._report
        if is_full:
            rescue = self.queue.settings.rescue_after.total_seconds()
            self._next_sweep = now + min(max(rescue / 2, DUE_SECONDS), LONGEST_PAUSE_SECONDS)
        report.next_tick = DUE_SECONDS if self._in_flight else None
        return report

    def sweep(self, *, seconds: float = SWEEP_SECONDS, requests: int = SWEEP_REQUESTS) -> Report:
        """Check everything once, within a budget of time and requests.

        Raises:
            Unavailable, AccessDenied: the store cannot be reached at all.
        """
        report = self._begin(seconds, requests)
        queue = self.queue
        root, kinds = self._kinds()
        self._check_runs(kinds)
        if not kinds & {"messages", "delayed", "leases", "retries", "workers", "locks"}:
            self._in_flight = False
            with suppress(OutOfBudget):
                self._cleanup.remove_left_behind(kinds, report)
            self._publish_idle(root.at)
            return report
        # Not before: an idle queue costs one LIST, and its settings are not needed.
        queue.refresh()
        self._idle_published = False
        counter = Counter(queue.keys, root.at)
        leases: dict[str, ObjectInfo] = {}
        reminders = 0
        is_resumed = bool(self._cursor)
        try:
            if "leases" in kinds:
                self._list_leases(leases)
            reminders = self._hand_over_due(kinds, set(leases))
            self._hand_over_orphans(kinds, set(leases), counter)
            # After the steps that need only LISTs: a thousand leases to read must not delay due messages.
            self._check_expired(leases, root.at)
            self._cleanup.remove_left_behind(kinds, report)
        except OutOfBudget:
            report.complete = False
        failed = min(reminders, len(leases))
        report.stats = Stats(
            pending=counter.unleased,
            delayed=counter.delayed,
            processing=len(leases) - failed,
            failed=failed,
            oldest_seconds=counter.age(counter.oldest),
            newest_seconds=counter.age(counter.newest),
            rescued=self._rescued(),
            exact=report.complete and not is_resumed,
            at=root.at,
        )
        soon = root.at + SOON
        is_due_soon = self._next_due_at is not None and self._next_due_at <= soon
        is_lease_due_soon = self._expired_leases.need_check_soon(leases.values(), soon)
        # Messages of a paused queue, or of one that only Spark runs serve, are no reason to stay awake.
        is_wanted = counter.unleased and not queue.settings.paused and queue.settings.engine != "spark"
        report.in_flight = self._in_flight = bool(is_due_soon or is_lease_due_soon or is_wanted)
        self._publish(report.stats)
        return report

    def sweep_due(self, *, seconds: float = 5.0, requests: int = 100) -> Report:
        """Between two sweeps: only hand over what has become due. One LIST if nothing waits."""
        report = self._begin(seconds, requests)
        try:
            self._hand_over_due(self._kinds()[1], set())
        except OutOfBudget:
            report.complete = False
        return report

    def _begin(self, seconds: float, requests: int) -> Report:
        budget = Budget(self.queue.store, self.queue.clock, seconds=seconds, requests=requests)
        self._report = Report(queue=self.queue.name, budget=budget)
        # Here, not at every page: after a hundred pages of orphans there are tens of thousands of paths.
        again = self._again()
        self._dispatched = {path: at for path, at in self._dispatched.items() if at > again}
        return self._report

    def _again(self) -> float:
        """A path that was dispatched at this time of the monotonic clock, or before, may be dispatched again."""
        return self.queue.clock.monotonic() - self.queue.settings.rescue_after.total_seconds()

    def _kinds(self) -> tuple[Page, set[str]]:
        """The kinds of objects that the queue has."""
        root = self._report.budget.first_list(self.queue.keys.root, delimiter="/")
        return root, self.queue.keys.kinds(root.prefixes)

    def _check_runs(self, kinds: set[str]) -> None:
        """Runs come first, so that the messages of a failed run fail for that reason, and not as expired leases."""
        if "runs" in kinds and self.check_runs is not None:
            try:
                self.check_runs(self.queue)
            except QueueError as error:
                _log.warning("Spark runs not checked, trying again at the next sweep: %s: %s", self.queue.name, error)

    # What is due

    def _hand_over_due(self, kinds: set[str], leased: set[str]) -> int:
        """Hand over retries and delayed messages that are due; returns how many reminders there are.

        Their keys begin with their due time, so the first one that is not due ends the LIST.
        """
        self._next_due_at = None
        reminders = 0
        if "retries" in kinds:
            for page in self._report.budget.pages(self.queue.keys.prefix("retries")):
                reminders += len(page.objects)
                if not self._hand_over_reminded(page):
                    break
        if "delayed" in kinds:
            for page in self._report.budget.pages(self.queue.keys.prefix("delayed")):
                found = (entry for entry in page.objects if not is_placeholder(entry))
                paths = [path for entry in found if (path := self.queue.keys.path(entry.key))]
                due = [path for path in paths if (due_of(path) or page.at) <= page.at]
                self._report.due += self._hand_over(path for path in due if path not in leased)
                if len(due) < len(paths):
                    later = min(due_at for path in paths if (due_at := due_of(path)) and due_at > page.at)
                    self._next_due_at = min(self._next_due_at or later, later)
                    break
        return reminders

    def _hand_over_reminded(self, page: Page) -> bool:
        """Dispatch and delete the due reminders of a page; False if the next page need not be read.

        A reminder is only a hint: if the dispatch is lost, a later sweep finds the waiting lease.
        """
        due: list[tuple[ObjectInfo, str]] = []
        for entry in page.objects:
            reminded = self.queue.keys.reminded(entry.key)
            if reminded is None:
                remove(self.queue.store, [entry], self._report)
            elif reminded[0] > page.at:
                self._next_due_at = reminded[0]
                break
            else:
                due.append((entry, reminded[1]))
        if due and not self.queue.settings.paused:
            # Dispatched even if the path was dispatched lately: another reminder means another attempt.
            sent = self._send([path for _, path in due])
            self._dispatched |= dict.fromkeys(sent, self.queue.clock.monotonic())
            self._report.due += len(sent)
            remove(self.queue.store, [entry for entry, path in due if path in sent], self._report)
            if len(sent) < len({path for _, path in due}):
                return False  # enough for now: paths that were not dispatched keep their reminders
        return self._next_due_at is None

    def _hand_over(self, paths: Iterable[str]) -> int:
        """Dispatch the paths that were not dispatched lately; returns how many."""
        if self.queue.settings.paused:
            return 0
        now, again = self.queue.clock.monotonic(), self._again()
        sent = self._send([path for path in paths if self._dispatched.get(path, again) <= again])
        self._dispatched |= dict.fromkeys(sent, now)
        return len(sent)

    def _send(self, paths: list[str]) -> set[str]:
        """Dispatch the most urgent paths; returns these. A worker drains the queue afterwards, so a few dispatches are
        enough.
        """
        ordered = sorted(dict.fromkeys(paths), key=lambda path: (-priority_of(path), path))
        ordered = ordered[: DISPATCH_SIZE * self.queue.settings.concurrency]
        for start in range(0, len(ordered), DISPATCH_SIZE):
            self.dispatch(ordered[start : start + DISPATCH_SIZE])
        return set(ordered)

    # What is overdue

    def _list_leases(self, leases: dict[str, ObjectInfo]) -> None:
        """Collect all leases by path."""
        for page in self._report.budget.pages(self.queue.keys.prefix("leases")):
            for entry in page.objects:
                path = self.queue.keys.path_under("leases", entry.key)
                if path is None:
                    self._report.corrupt[entry.key] = "the key is not that of a lease"
                else:
                    leases[path] = entry

    def _check_expired(self, leases: dict[str, ObjectInfo], now: datetime) -> None:
        due: list[str] = []
        try:
            self._expired_leases.check(leases, now, self._report, due)
        finally:
            self._report.due += self._hand_over(due)

    # Messages without a lease

    def _hand_over_orphans(self, kinds: set[str], leased: set[str], counter: Counter) -> None:
        """Hand over messages without a lease whose event should have come by now; count all messages without one."""
        prefixes = [self.queue.keys.prefix(kind) for kind in ("messages", "delayed") if kind in kinds]
        resumed = next((prefix for prefix in prefixes if self._cursor.startswith(prefix)), None)
        for prefix in prefixes[prefixes.index(resumed) :] if resumed else prefixes:
            self._cursor = self._cursor if prefix == resumed else prefix
            for page in self._report.budget.pages(prefix, self._cursor):
                counter.add(page.objects, leased)
                orphans = [path for entry in page.objects if (path := self._orphaned(entry, page.at, leased))]
                self._report.orphans += self._hand_over(orphans)
                self._cursor = page.next_after or self._cursor
        self._cursor = ""

    def _orphaned(self, entry: ObjectInfo, now: datetime, leased: set[str]) -> str | None:
        path = self.queue.keys.path(entry.key)
        if path is None or path in leased or is_placeholder(entry):
            return None
        due_at = due_of(path)
        since = max(entry.modified_at, due_at) if due_at else entry.modified_at
        return path if now - since >= self.queue.settings.rescue_after else None

    # What is published

    def _rescued(self) -> int:
        """How many messages were rescued in the last hour, including this sweep. From memory: reading the published
        number would cost a request per sweep.
        """
        now = self.queue.clock.monotonic()
        self._rescues = [(at, many) for at, many in self._rescues if now - at < RESCUES_KEPT_SECONDS]
        if self._report.orphans:
            self._rescues.append((now, self._report.orphans))
        return sum(many for _, many in self._rescues)

    def _publish(self, stats: Stats) -> None:
        try:
            self.queue.store.put(self.queue.keys.stats, stats.to_bytes(), content_type="application/json")
        except QueueError as error:
            _log.warning("stats not published, trying again at the next sweep: %s: %s", self.queue.name, error)

    def _publish_idle(self, at: datetime) -> None:
        """Publish the stats of an idle queue once, and again only after there was work: idle, it costs one LIST."""
        self._report.stats = Stats(rescued=self._rescued(), at=at)
        if not self._idle_published:
            self._publish(self._report.stats)
            self._idle_published = True
