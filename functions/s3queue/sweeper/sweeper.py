"""Sweeper: makes sure that no message is ever forgotten.  [P6]

It deals with expired leases, due retries and delayed messages, messages whose event was lost, heartbeats of dead
workers, unused locks and old dead letters. It costs one LIST per 1,000 objects, and GETs only for leases that seem to
be overdue. Two sweepers may run at once. A sweep is bounded, and each of its steps gets a share of what is left: the
next sweep continues where each step ended, also in another process.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from s3queue.errors import QueueError
from s3queue.protocol.counting import Counter, lines_at
from s3queue.protocol.kinds import find_kinds
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.protocol.stats import Stats
from s3queue.protocol.store_time import AGAIN_SECONDS, StoreTime
from s3queue.queue import Queue
from s3queue.store import Page

from .budget import Budget, OutOfBudget
from .cleanup import Cleanup
from .due_messages import DueMessages
from .expired_leases import ExpiredLeases
from .flow_step import FlowStep
from .hand_over import Dispatch, HandOver
from .progress import Progress
from .publication import Publication
from .report import Report
from .schedule_step import ScheduleStep
from .unleased_messages import UnleasedMessages

if TYPE_CHECKING:
    from s3queue.documents.schedule import Schedule

_log = logging.getLogger(__name__)
#: How often due retries and delayed messages are listed while something is in flight.
DUE_SECONDS = 2.0
#: The default budget of one sweep.
SWEEP_REQUESTS = 5000
SWEEP_SECONDS = 20.0
DUE_REQUESTS = 500
LONGEST_PAUSE_SECONDS = 30.0
#: The sweeper stays awake for what is due within this time.
SOON = timedelta(seconds=60)
#: Kinds that need a sweep; a queue without them is idle.
BUSY_KINDS = frozenset({"messages", "delayed", "leases", "retries", "workers", "locks"})
SWEPT_KINDS = BUSY_KINDS | {"dead", "dedup", "runs", "limits", "schedules", "flows"}


@dataclass(slots=True, kw_only=True)
class Sweeper:
    """Sweeps one queue. Keep the instance between sweeps: it remembers which leases need no GET, and where it ended."""

    queue: Queue
    #: Hands paths to the queue's worker; an error means that they were not handed over.
    #: None: only pull workers run this queue's messages, and they look for what is due by themselves.
    dispatch: Dispatch | None
    #: Checks the queue's Spark runs; returns how many there are.
    check_runs: Callable[[Queue], int] | None = None
    #: Published with the stats: "worker" if a pull worker sweeps, whose heartbeat tells whether it still does.
    publishes_as: str = ""
    #: The schedules of the queue's definition; None: this process does not know the definition.
    schedules: Sequence[Schedule] | None = None
    #: Whether to count what has finished in the last hour; published with the stats.
    counts_hour: bool = False
    #: Whether to count deaths, for a queue whose messages also run where nobody publishes them.
    counts_deaths: bool = False
    #: Where the next sweep goes on; None: what the last process left has not been read.
    _progress: Progress | None = None
    _in_flight: bool = True
    _next_sweep: float = float("-inf")
    _swept_at: datetime | None = None
    #: When retries and delayed messages, or the leases, are listed again between two sweeps.
    _next_list: float = float("-inf")
    #: The kinds that the last LIST of the root showed, and whether it is the leases' turn to be listed.
    _kinds: set[str] = field(default_factory=set)
    _is_turn_of_leases: bool = False
    #: Whether someone saw leases while the sweeper had nothing in flight.
    _are_leases_expected: bool = False
    _time: StoreTime = field(init=False)
    _expired_leases: ExpiredLeases = field(init=False)
    _cleanup: Cleanup = field(init=False)
    _hand_over: HandOver = field(init=False)
    _due: DueMessages = field(init=False)
    _unleased: UnleasedMessages = field(init=False)
    _publication: Publication = field(init=False)
    _report: Report = field(init=False)
    _schedule_step: ScheduleStep = field(init=False)
    _flow_step: FlowStep = field(init=False)

    def __post_init__(self) -> None:
        self._time = StoreTime(self.queue.clock)
        self._expired_leases = ExpiredLeases(self.queue, self._time)
        self._cleanup = Cleanup(self.queue)
        self._hand_over = HandOver(
            self.queue, lambda paths: self.dispatch(paths) if self.dispatch else 0, self._expired_leases.handed_over
        )
        self._due = DueMessages(self.queue, self._hand_over)
        self._unleased = UnleasedMessages(self.queue, self._hand_over, self._expired_leases)
        self._publication = Publication(self.queue, self.publishes_as, self.counts_hour, self.counts_deaths)
        self._schedule_step = ScheduleStep(self.queue)
        self._flow_step = FlowStep(self.queue)

    def tick(self, *, seconds: float = SWEEP_SECONDS, requests: int = SWEEP_REQUESTS) -> Report | None:
        """Do what is needed now: a sweep at its interval, in between what is due or expired; None if that is nothing.

        The report says when the next tick should come. An error is not raised but put into the report, so that what was
        done before it is reported too. `seconds` and `requests` limit a sweep.
        """
        now = self.queue.clock.monotonic()
        is_full = self._is_sweep_due(now)
        is_list = (self._in_flight or self._are_leases_expected) and now >= self._next_list - AGAIN_SECONDS / 2
        if not (is_full or is_list or self._in_flight or self._expired_leases.known):
            return None
        try:
            if is_full:
                report = self.sweep(seconds=seconds, requests=requests)
            else:
                report = self.sweep_due() if is_list else self.check_leases()
        except Exception as error:
            self._report.error = error
            return self._report
        if is_full:
            self._next_sweep = now + self._interval()
            self._swept_at = self.queue.clock.now()
        if is_full or is_list:
            self._next_list = now + DUE_SECONDS
            if self._in_flight and self._due.next_at:
                # When S3 shows it to be due, and not up to two seconds later.
                self._next_list = min(self._next_list, self.queue.clock.monotonic() + self._until_due())
        report.next_tick = self._pause()
        return report

    def _interval(self) -> float:
        rescue = self.queue.settings.rescue_after.total_seconds()
        return min(max(rescue / 2, DUE_SECONDS), LONGEST_PAUSE_SECONDS)

    def _is_sweep_due(self, now: float) -> bool:
        """By either clock: the monotonic clock of a function that was frozen, or a machine that slept, stood still."""
        passed = abs((self.queue.clock.now() - self._swept_at).total_seconds()) if self._swept_at else 0.0
        return now >= self._next_sweep or passed >= self._interval()

    def _pause(self) -> float | None:
        """Seconds until the next tick; None: the next regular sweep is soon enough."""
        pauses: list[float] = []
        if self._in_flight or self._are_leases_expected:
            pauses.append(self._next_list - self.queue.clock.monotonic())
        if next_at := self._expired_leases.next_at():
            pauses.append(self._time.seconds_until(next_at))
        return max(AGAIN_SECONDS, min(pauses)) if pauses else None

    def worker_crashed(self) -> None:
        """A worker is known to have crashed: list the leases now, so that its own is noticed before it is over."""
        self._are_leases_expected = True
        self._next_list = float("-inf")

    def tick_leases(self, *, are_expected: bool) -> Report | None:
        """End the leases that are over, and nothing else: whoever sweeps is asleep. None if there is none to look at.

        `are_expected`: someone sees leases. The report says when to look again, and what went wrong, as in `tick`.
        """
        self._in_flight = False  # what is due is found by others
        if are_expected:
            self.expect_leases()
        if not (self._are_leases_expected or self._expired_leases.known):
            return None
        is_list = self._are_leases_expected and self.queue.clock.monotonic() >= self._next_list - AGAIN_SECONDS / 2
        try:
            report = self.sweep_due() if is_list else self.check_leases()
        except Exception as error:
            self._report.error = error
            return self._report
        report.next_tick = self._pause()
        return report

    def tick_delayed(self) -> Report:
        """Hand over the delayed messages that are due, and nothing else: someone has just PUT one. One LIST.

        The report says when to look again; None: none is due within a minute, and the next regular sweep is soon
        enough. An error is put into the report, as in `tick`.
        """
        report = self._begin(5.0, DUE_REQUESTS)
        try:
            self._refresh()
            self._due.hand_over({"delayed"}, report)
        except OutOfBudget:
            report.complete = False
        except Exception as error:
            report.error = error
            return report
        self._time.note(self._due.seen_at)
        if self._due.next_at and self._due.next_at <= self._due.seen_at + SOON:
            report.next_tick = min(DUE_SECONDS, self._until_due())
        return report

    def _until_due(self) -> float:
        """Seconds until S3 shows that the next message is due."""
        assert self._due.next_at is not None
        return self._time.seconds_until(self._due.next_at - timedelta(seconds=1))

    def expect_leases(self) -> None:
        """Someone saw leases: list them before one can be over, even if nothing was in flight at the last sweep."""
        if not self._in_flight and not self._are_leases_expected:
            self._are_leases_expected = True
            # The later, the more of them are gone by then; but early enough for one that was written seconds ago.
            wait = self.queue.settings.visibility_timeout.total_seconds() / 2 - 2.5
            self._next_list = self.queue.clock.monotonic() + max(0.0, wait)

    def sweep(self, *, seconds: float = SWEEP_SECONDS, requests: int = SWEEP_REQUESTS) -> Report:
        """Check everything once, within a budget of time and requests.

        Raises:
            Unavailable, AccessDenied: the store cannot be reached at all.
        """
        report = self._begin(seconds, requests)
        queue, store = self.queue, report.budget.store
        root = self._find_kinds()
        self._check_runs()
        progress = self._progress = self._progress or Progress.read(queue, store, root)
        was_resumed = progress.is_resumed()
        self._schedule_step.take(self.schedules, self._kinds, report, root.at, progress)
        self._flow_step.take(self._kinds, report, progress)
        if progress.schedules or progress.flows:
            # Now: should the rest of a sweep kill its process, again and again, the last names would never be reached.
            progress.write(queue, store)
        if not self._kinds & BUSY_KINDS:
            self._in_flight = False
            progress.leases = progress.overdue = progress.messages = ""
            try:
                self._clean_up(progress)
            except OutOfBudget:
                report.complete = False
            progress.keep(queue, store, was_resumed=was_resumed)
            self._publication.publish_idle(report, self._kinds, root)
            return report
        # Not before: an idle queue costs one LIST, and its settings are not needed.
        self._refresh()
        counter = Counter(queue.keys, root.at)
        self._take_steps(progress, counter)
        pending, delayed = progress.counts()
        progress.keep(queue, store, was_resumed=was_resumed)
        leased = sum(map(lines_at, self._expired_leases.known))
        failed = min(report.reminders, leased)
        report.stats = Stats(
            pending=pending,
            delayed=delayed,
            processing=leased - failed,
            failed=failed,
            oldest_seconds=counter.age(counter.oldest),
            newest_seconds=counter.age(counter.newest),
            rescued=self._publication.rescued(report),
            exact=report.complete and not was_resumed,
            at_least=tuple(sorted(counter.at_least)),
            busy_seconds=counter.age(counter.busy_since),
            at=root.at,
        )
        soon = root.at + SOON
        # Pull workers find what is due by themselves.
        is_pulled = self.dispatch is None
        is_due_soon = not is_pulled and self._due.next_at is not None and self._due.next_at <= soon
        # Messages of a paused queue, or of one that no function serves, are no reason to stay awake.
        is_wanted = pending and not queue.settings.paused and queue.settings.engine != "spark" and not is_pulled
        report.in_flight = self._in_flight = bool(
            is_due_soon or self._expired_leases.need_check_soon(soon) or is_wanted
        )
        self._publication.publish(report, self._kinds, root, counter.first_at)
        return report

    def _take_steps(self, progress: Progress, counter: Counter) -> None:
        """Each step has its share of the budget: a step that is not finished ends, and the next ones have theirs."""
        kinds, report = self._kinds, self._report
        steps: list[Callable[[], None]] = []
        if "leases" in kinds:
            steps.append(lambda: self._expired_leases.list_all(progress, report))
        if kinds & {"retries", "delayed"}:
            steps.append(lambda: self._due.hand_over(kinds, report, set(self._expired_leases.known)))
        steps.append(lambda: self._unleased.hand_over(kinds, report, progress, counter))
        if "leases" in kinds:
            # After the steps that need only LISTs: a thousand leases to read must not delay due messages.
            steps.append(lambda: self._check_expired(progress))
        if self._cleanup.is_needed(kinds):
            steps.append(lambda: self._clean_up(progress))
        for number, step in enumerate(steps):
            with report.budget.step(len(steps) - number):
                try:
                    step()
                except OutOfBudget:
                    report.complete = False

    def sweep_due(self, *, seconds: float = 5.0, requests: int = DUE_REQUESTS) -> Report:
        """Between two sweeps: hand over what has become due, and check leases that ran out. One LIST if nothing waits.

        The LISTs of the root and of the leases take turns, so that each lease is seen before it can be over.
        """
        report = self._begin(seconds, requests)
        if self._are_leases_expected or (self._is_turn_of_leases and "leases" in self._kinds):
            self._are_leases_expected = self._is_turn_of_leases = False
            self._expired_leases.list_some(report)
        else:
            self._is_turn_of_leases = True
            self._find_kinds()
        try:
            self._due.hand_over(self._kinds, report)
            self._check_expired(Progress())
        except OutOfBudget:
            report.complete = False
        return report

    def check_leases(self, *, seconds: float = 5.0, requests: int = DUE_REQUESTS) -> Report:
        """Between two LISTs: check leases that ran out. No request if none did."""
        report = self._begin(seconds, requests)
        try:
            self._check_expired(Progress())
        except OutOfBudget:
            report.complete = False
        return report

    def _refresh(self) -> None:
        """Of all that a sweep does, nothing has to wait until `queue.json` can be read again."""
        try:
            self.queue.refresh()
        except QueueError as error:
            _log.warning("queue.json not read, settings kept: %s: %s", self.queue.name, error)

    def _begin(self, seconds: float, requests: int) -> Report:
        budget = Budget(self.queue.store, self.queue.clock, seconds=seconds, requests=requests)
        self._report = Report(queue=self.queue.name, budget=budget)
        self._hand_over.begin()
        return self._report

    def _find_kinds(self) -> Page:
        """The LIST of the root; it is sent however small the budget is: otherwise there would never be any progress."""
        budget = self._report.budget
        root, self._kinds = find_kinds(budget.store, self.queue.keys, SWEPT_KINDS)
        # Whoever fills the root with objects must not use up what the steps need.
        budget.allow(budget.spent - 1)
        self._time.note(root.at)
        if "leases" not in self._kinds:
            self._expired_leases.none_exist()
        return root

    def _check_runs(self) -> None:
        """Runs come first, so that the messages of a failed run fail for that reason, and not as expired leases."""
        if "runs" in self._kinds and self.check_runs is not None:
            try:
                self.check_runs(self.queue)
            except QueueError as error:
                _log.warning("Spark runs not checked, trying again at the next sweep: %s: %s", self.queue.name, error)

    def _check_expired(self, progress: Progress) -> None:
        report, due = self._report, list[str]()
        ended = report.endings.copy()
        try:
            progress.overdue = self._expired_leases.check(self._counted(), report, due, progress.overdue)
        finally:
            report.due += self._hand_over.once(due)
        if report.endings != ended and report.endings.keys() & {"retried", "restarted"}:
            # Their reminders are due already.
            self._due.hand_over_retries(report)

    def _counted(self) -> LeaseProtocol:
        """The queue's protocol, with every request counted: a burial may need many."""
        access, leases = copy.copy(self.queue), copy.copy(self.queue.leases)
        access.store, access.pace = self._report.budget.store, self._report.budget.check
        object.__setattr__(leases, "queue", access)
        object.__setattr__(leases, "outcomes", replace(leases.outcomes, store=access.store, perform=access.perform))
        return leases

    def _clean_up(self, progress: Progress) -> None:
        self._cleanup.cursor = progress.cleanup
        try:
            self._cleanup.remove_left_behind(self._kinds, self._report)
        finally:
            progress.cleanup = self._cleanup.cursor
