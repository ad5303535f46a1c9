"""InvocationRunner: processes the messages that one invocation of a function was notified of, within its time.

First the messages that it was notified of; for heavy ones, a Spark run is launched. Then, if a notification was late or
a retry has to be waited for, whatever else may run. In a burst, most events come late and find that another invocation
has taken their message: these end.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Literal

from s3queue.errors import QueueError, Unavailable
from s3queue.paths import partition_of
from s3queue.protocol.backlog import Backlog
from s3queue.queue import Queue

from .definition import Definition
from .notifications import Notification
from .own_retries import OwnRetries
from .processor import AttemptEnding, Processor
from .unserved import AGAIN, Unserved

_log = logging.getLogger(__name__)
#: Time between the end of a handler and the end of the invocation: write the outcome, flush metrics and traces.
WRAP_UP_SECONDS = 3.0
#: The function waits for a retry that is due this soon. The sweeper may not run before the next minute, and a few idle
#: seconds of a function cost less than a message that comes a minute late.
PATIENCE_SECONDS = 10.0
#: Reminders are written until this many seconds before the invocation is ended by force.
REMIND_UNTIL_SECONDS = 1.0
#: How long a process remembers what it asked the sweeper for.
REMINDED_KEPT = timedelta(minutes=10)
#: What became of a message: claimed, set aside for Spark, in other hands or gone, or left where it is for now.
Served = Literal["claimed", "heavy", "taken", "kept"]


class InvocationRunner:
    """One per process and queue; runs one invocation at a time, as Lambda calls it."""

    def __init__(
        self,
        queue: Queue,
        definition: Definition,
        *,
        launch: Callable[[Queue, Sequence[str], Callable[[], float]], None] | None = None,
        around_message: Callable[[str], AbstractContextManager[None]] = lambda path: nullcontext(),
    ) -> None:
        """`launch` starts a Spark run for heavy messages; it is told how to learn how many seconds are left.
        `around_message(path)` is entered for every message.
        """
        self._queue = queue
        # Else an override that leaves no time for a handler would stop the queue, without a word.
        queue.serve_function()
        self._launch_run = launch
        self._around_message = around_message
        self._processor = Processor(queue=queue, definition=definition, should_stop=self._is_over)
        self._retries = OwnRetries(queue, within=PATIENCE_SECONDS)
        self._unserved = Unserved(queue)
        #: When the sweeper is asked to look again at what the queue's limits held back.
        self._reminded: set[datetime] = set()
        self._begin(lambda: 0.0)

    def run(self, notifications: Iterable[Notification], time_left: Callable[[], float]) -> dict[str, int]:
        """Process these messages, then others if a notification was late; returns how many attempts ended in which way.

        `time_left()`: seconds until the invocation is ended by force. A message that fails never stops the others.

        Raises:
            Exception: an error that neither a message nor an outage explains (a missing permission, a bug), after all
                messages were tried.
        """
        self._begin(time_left)
        waiting = list(notifications)
        if not self._is_open():
            self._leave(waiting)
            self._remind_unserved()
            return {}
        must_drain = False
        now, late_after = self._queue.clock.now(), self._queue.settings.late_after
        for place, notification in enumerate(waiting):
            read_first = notification.is_late(now, late_after)
            self.late_events += read_first and notification.notified_at is not None
            if not self._may_claim():
                self._leave(waiting[place:])
                must_drain = must_drain or read_first
                break
            served = self._serve(
                notification.path,
                read_first=read_first,
                size=notification.size,
                etag=notification.etag,
                is_dispatched=notification.is_dispatched,
            )
            # Who took the message drains the queue, if that one's event was late as well. The sweeper is no such event:
            # it names a few messages of many.
            is_overtaken = served == "taken" and not notification.is_dispatched
            must_drain = must_drain or (read_first and not is_overtaken)
        # Before the queue is drained: that may take all of the time.
        self._launch()
        if must_drain:
            self._drain()
        self._wait_for_retries(drained=must_drain)
        self._launch()
        self._remind_unserved()
        if self._ran_out:
            _log.info("out of time, remaining messages left to the sweeper: %s", self._queue.name)
        if self._errors:
            raise self._errors[0]
        return dict(self._counts)

    def _begin(self, time_left: Callable[[], float]) -> None:
        self._time_left = time_left
        #: How many events of the last run came late; a dispatch of the sweeper is none.
        self.late_events = 0
        self._ran_out = False
        #: Since when it has waited for the queue's limits without getting a message; None: it does not.
        self._waits_since: float | None = None
        self._counts: Counter[str] = Counter()
        self._errors: list[Exception] = []
        #: What an error kept: a LIST shows it again, and it would fail again.
        self._failed: set[str] = set()
        self._retries.forget()
        self._unserved.forget()
        #: Path → whether the sweeper dispatched it.
        self._heavy: dict[str, bool] = {}
        #: How many of them, from the first on, were handed over to Spark.
        self._handed_over = 0

    def _is_open(self) -> bool:
        try:
            self._queue.refresh()
        except QueueError as error:
            _log.warning("queue.json not read, settings kept: %s: %s", self._queue.name, error)
        if self._queue.settings.paused:
            _log.info("queue paused, nothing claimed: %s", self._queue.name)
        return not self._queue.settings.paused

    def _may_claim(self) -> bool:
        """Asked before every message: the one before it may have taken long, and the queue been paused meanwhile."""
        return not self._is_over() and self._is_open()

    def _is_over(self, after: float = 0.0) -> bool:
        """Whether a handler that starts `after` seconds from now might not finish in time."""
        needed = self._queue.settings.handler_timeout.total_seconds() + WRAP_UP_SECONDS
        is_over = self._time_left() - after < needed
        self._ran_out = self._ran_out or is_over
        return is_over

    def _leave(self, notifications: Iterable[Notification]) -> None:
        """Give up these for now. The event of a message that S3 told of is lost; a LIST shows that it has no lease."""
        for notification in notifications:
            if notification.is_dispatched:
                self._unserved.add(notification.path)

    def _remind_unserved(self) -> None:
        """What waits, was dispatched and not tried has no reminder any more: it gets one."""
        settings = self._queue.settings
        is_busy = self._counts.keys() - {"held back", "not claimed", "heavy"}
        # An invocation that gets nothing done must not be called again and again at once.
        after = AGAIN if is_busy else min(settings.rescue_after, settings.visibility_timeout)
        self._unserved.remind(after=after, is_over=lambda: self._time_left() < REMIND_UNTIL_SECONDS)

    def _serve(
        self,
        path: str,
        *,
        read_first: bool,
        size: int | None = None,
        etag: str = "",
        reminder: str = "",
        is_dispatched: bool = False,
    ) -> Served:
        """Claim and process one message."""
        with self._around_message(path):
            try:
                # A run holds the partitions of a queue on Spark.
                if partition_of(path) and self._queue.settings.engine != "spark":
                    return self._serve_partition(partition_of(path), reminder)
                if self._is_heavy(path, size):
                    self._heavy.setdefault(path, is_dispatched)
                    return "heavy"
                held_back = self._queue.held_back
                ending = self._processor.run(path, read_first=read_first, etag=etag)
                is_held_back = ending is None and self._queue.held_back != held_back
                if is_held_back:
                    self._counts["held back"] += 1
                    at = self._remind(path, always=bool(reminder))
                    if is_dispatched:
                        self._unserved.add(path, at)
                    # The new reminder first: should this process die in between, there are two.
                    if reminder != self._queue.keys.reminder(at, path):
                        self._queue.leases.forget(reminder)
                    return "kept"
                self._queue.leases.forget(reminder)
                if ending == "lost":
                    _log.warning("lease lost or outcome unknown, left to the sweeper: %s/%s", self._queue.name, path)
                self._counts[ending or "not claimed"] += 1
                return "claimed" if ending else "taken"
            except Unavailable as error:
                _log.warning("claim unknown, left to the sweeper: %s/%s: %s", self._queue.name, path, error)
            except QueueError as error:
                _log.error("claim failed, message kept: %s/%s: %s", self._queue.name, path, error)
                self._errors.append(error)
            except Exception as error:
                _log.exception("unexpected error, continuing with the next message: %s/%s", self._queue.name, path)
                self._errors.append(error)
        self._failed.add(path)
        if is_dispatched:
            self._unserved.add(path)
        self._counts["not claimed"] += 1
        return "kept"

    def _serve_partition(self, partition: str, reminder: str) -> Served:
        from .partition_run import run_partition

        endings: list[AttemptEnding] = []
        should_stop = lambda: not self._may_claim()  # noqa: E731
        try:
            was_held = run_partition(self._processor, partition, should_stop=should_stop, count=endings.append)
        finally:
            self._counts.update(endings)
        self._queue.leases.forget(reminder)
        if not was_held:
            self._counts["not claimed"] += 1
        # Who holds it drains the queue no sooner than it is empty: there are others.
        return "claimed" if was_held else "kept"

    def _is_heavy(self, path: str, size: int | None) -> bool:
        settings = self._queue.settings
        if size is None and settings.engine != "spark" and settings.heavy_above is not None:
            found, _ = self._queue.find_message(path)
            size = found.size if found else 0
        return settings.is_heavy(size or 0)

    def _drain(self) -> None:
        """Highest priority first, until nothing may run or the time is up."""
        if self._queue.settings.engine == "spark":
            return  # a Spark run drains the queue itself
        backlog, has_drained = Backlog(self._queue, partitions=True), False
        try:
            for candidate in backlog.drain():
                if candidate.path in self._failed:
                    continue
                self._retry_due()
                if not self._may_claim() or not self._wait_for_limit():
                    # The events of what was drained are still to come, and look no further: see `run`.
                    if self._queue.gate or (self._ran_out and has_drained):
                        self._remind(candidate.path)
                    return
                if self._queue.clock.now() - candidate.since <= self._queue.settings.late_after:
                    continue  # its own event is on its way: the second of the two claims would fail, and cost a PUT
                served = self._serve(
                    candidate.path,
                    read_first=candidate.read_first,
                    etag=candidate.etag,
                    reminder=candidate.reminder,
                )
                # A message set aside for Spark is not a lost claim: it says nothing about the others.
                if served == "claimed":
                    self._waits_since, has_drained = None, True
                if served != "heavy":
                    backlog.report(won=served == "claimed", is_hint=candidate.is_hint)
        except QueueError as error:
            _log.warning("queue not listed, left to the sweeper: %s: %s", self._queue.name, error)

    # Limits

    def _wait_for_limit(self) -> bool:
        """Whether something may be claimed, after a short wait if need be. What an operator has stopped, and what stays
        closed for longer, is not waited for: a function costs by the second, and a reminder brings another one.
        """
        while wait := self._queue.held_for():
            now = self._queue.clock.monotonic()
            self._waits_since = now if self._waits_since is None else self._waits_since
            is_soon = now + wait <= self._waits_since + PATIENCE_SECONDS
            if not is_soon or self._queue.is_stopped() or self._is_over(after=wait):
                return False
            self._queue.clock.sleep(wait)
        return True

    def _remind(self, path: str, *, always: bool = False) -> datetime:
        """Ask the sweeper to look again when the limits permit it; returns when. One message for each second is enough:
        whoever is sent for it drains the queue.
        """
        at = self._queue.free_at(path)
        self._reminded = {known for known in self._reminded if known >= at - REMINDED_KEPT}
        if always or at not in self._reminded:
            self._reminded.add(at)
            self._queue.leases.remind(path, at)
        return at

    # Retries that are due soon

    def _wait_for_retries(self, *, drained: bool) -> None:
        if self._retries and not drained:
            # Other messages may be waiting for a free function: process them instead of sleeping.
            self._drain()
        while (wait := self._retries.wait()) is not None:
            # What an operator has stopped is left to the reminders: sleeping costs, and nothing may run.
            if self._is_over(after=wait) or self._queue.is_stopped():
                return
            self._queue.clock.sleep(wait)
            if not self._is_open():
                return
            self._retry_due()

    def _retry_due(self) -> None:
        while self._retries.wait() == 0.0 and self._may_claim() and (retry := self._retries.take_due()):
            self._serve(retry.path, read_first=True, reminder=self._queue.keys.reminder(retry.retry_at, retry.path))

    # Heavy messages

    def _launch(self) -> None:
        """Hand the heavy messages over that were found since the last call."""
        paths = list(self._heavy)[self._handed_over :]
        if not paths:
            return
        self._handed_over = len(self._heavy)
        self._counts["heavy"] += len(paths)
        if self._launch_run is None:
            _log.warning("no Spark application deployed, heavy messages kept: %s: %d", self._queue.name, len(paths))
            return
        try:
            self._launch_run(self._queue, paths, self._time_left)
        except QueueError as error:
            _log.warning("Spark run not started, heavy messages kept: %s: %d: %s", self._queue.name, len(paths), error)
        except Exception as error:
            _log.exception("unexpected error, heavy messages kept: %s: %d", self._queue.name, len(paths))
            self._errors.append(error)
        else:
            return
        for path in paths:
            if self._heavy[path]:
                self._unserved.add(path)
