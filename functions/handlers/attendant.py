"""Attendant: answers the doorbells of one queue within the time that an invocation has.

The messages that it was called for first; then, if it came late or has to wait anyway, whatever else may run.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from s3queue.backlog import Backlog
from s3queue.definition import Definition
from s3queue.errors import QueueError, Unavailable
from s3queue.processing import Processor
from s3queue.queue import Queue

from .doorbells import Doorbell
from .lane import Lane
from .telemetry import Telemetry

_log = logging.getLogger(__name__)
#: Between the last moment of a handler and the end of the invocation: write the outcome, flush metrics and traces.
WRAP_UP_SECONDS = 3.0
#: A retry that is due this soon is waited for: the sweeper may be asleep until its next minute, and a few seconds of an
#: idle function cost less than a message that comes a minute late.
PATIENCE_SECONDS = 10.0
#: S3's clock, which decides what is due, is known to a request's duration.
GRACE_SECONDS = 0.5


class Attendant:
    """One per process and queue; answers one invocation at a time, as Lambda calls it."""

    def __init__(self, queue: Queue, definition: Definition, telemetry: Telemetry, lane: Lane | None) -> None:
        self._queue = queue
        self._telemetry = telemetry
        self._lane = lane
        self._processor = Processor(queue=queue, definition=definition, should_stop=self._is_over)
        queue.events.on("message.retry", self._note_retry)
        self._begin(lambda: 0.0)

    def answer(self, doorbells: Iterable[Doorbell], time_left: Callable[[], float]) -> dict[str, int]:
        """Work on these messages, then on what else is there if there is reason to look; how many ended how.

        `time_left`: seconds until the invocation is ended by force. One message's failure never stops the others.

        Raises:
            Exception: what neither a message nor an outage explains (a missing permission, a bug), after everything
                else was done.
        """
        self._begin(time_left)
        if not self._is_open():
            return {}
        is_late = False
        now, late_after = self._queue.clock.now(), self._queue.settings.late_after
        for doorbell in doorbells:
            look = doorbell.is_late(now, late_after)
            is_late = is_late or look
            if self._is_over():
                break
            self._serve(doorbell.path, look=look, size=doorbell.size)
        if is_late:
            self._drain()
        self._wait_for_retries(drained=is_late)
        self._launch()
        if self._ran_out:
            _log.info("out of time: what is left is the sweeper's to hand on")
        if self._errors:
            raise self._errors[0]
        return dict(self._outcomes)

    def _begin(self, time_left: Callable[[], float]) -> None:
        self._time_left = time_left
        self._ran_out = False
        self._outcomes: Counter[str] = Counter()
        self._errors: list[Exception] = []
        #: (due by the monotonic clock, path, retry_at) of what failed here and is tried again soon.
        self._retries: list[tuple[float, str, datetime]] = []
        self._heavy: dict[str, None] = {}

    def _is_open(self) -> bool:
        try:
            self._queue.refresh()
        except QueueError as error:
            _log.warning("queue.json could not be read; going on with what was known: %s", error)
        if self._queue.settings.paused:
            _log.info("paused: nothing is claimed")
        return not self._queue.settings.paused

    def _is_over(self, after: float = 0.0) -> bool:
        """Whether a handler that starts now, or `after` so many seconds, might not finish in time."""
        needed = self._queue.settings.handler_timeout.total_seconds() + WRAP_UP_SECONDS
        is_over = self._time_left() - after < needed
        self._ran_out = self._ran_out or is_over
        return is_over

    def _serve(self, path: str, *, look: bool, size: int | None = None) -> bool | None:
        """Claim and run one message, or set it aside for Spark; whether it was won, None if it was set aside."""
        with self._telemetry.message(path):
            try:
                if self._is_heavy(path, size):
                    self._heavy[path] = None
                    return None
                outcome = self._processor.run(path, look=look)
                if outcome == "lost":
                    _log.warning("lost: someone else has it by now, or it is unknown what became of it")
                self._outcomes[outcome or "not claimed"] += 1
                return outcome is not None
            except Unavailable as error:
                _log.warning("it could not be claimed; the sweeper will look after it: %s", error)
            except QueueError as error:
                _log.error("it stays where it is: %s", error)
                self._errors.append(error)
            except Exception as error:
                _log.exception("this should not happen; the other messages go on")
                self._errors.append(error)
        self._outcomes["not claimed"] += 1
        return False

    def _is_heavy(self, path: str, size: int | None) -> bool:
        settings = self._queue.settings
        if size is None and settings.engine != "spark" and settings.heavy_above is not None:
            found = self._queue.store.head(self._queue.keys.message(path))
            size = found.size if found else 0
        return settings.is_heavy(size or 0)

    def _drain(self) -> None:
        """Highest priority first, until nothing may run or the time is up."""
        if self._queue.settings.engine == "spark":
            return  # a run drains the queue by itself
        backlog = Backlog(self._queue)
        try:
            for candidate in backlog.drain():
                self._retry_due()
                if self._is_over() or not self._is_open():
                    return
                if self._queue.clock.now() - candidate.since <= self._queue.settings.late_after:
                    continue  # its own event is on the way: whoever comes second would ask in vain, and pay for it
                won = self._serve(candidate.path, look=candidate.look)
                # What is set aside for Spark was not lost to someone else: it says nothing about the rest.
                if won is not None:
                    backlog.report(won=won)
        except QueueError as error:
            _log.warning("the queue cannot be listed; the sweeper will ring again: %s", error)

    # Retries that are due soon

    def _note_retry(self, fields: Mapping[str, Any]) -> None:
        if fields.get("worker") != self._queue.worker_id:
            return
        wait = (fields["retry_at"] - fields["at"]).total_seconds() + GRACE_SECONDS
        if wait <= PATIENCE_SECONDS:
            heapq.heappush(self._retries, (self._queue.clock.monotonic() + wait, fields["path"], fields["retry_at"]))

    def _wait_for_retries(self, *, drained: bool) -> None:
        if self._retries and not drained:
            # Others may be waiting for this very function to be free: work, rather than sleep.
            self._drain()
        while self._retries:
            wait = max(0.0, self._retries[0][0] - self._queue.clock.monotonic())
            if self._is_over(after=wait):
                return
            self._queue.clock.sleep(wait)
            if not self._is_open():
                return
            self._retry_due()

    def _retry_due(self) -> None:
        while self._retries and self._retries[0][0] <= self._queue.clock.monotonic() and not self._is_over():
            _, path, retry_at = heapq.heappop(self._retries)
            if self._serve(path, look=True):
                # The sweeper need not be reminded; if it is, it only looks in vain.
                with suppress(QueueError):
                    self._queue.store.delete(self._queue.keys.reminder(retry_at, path))

    # Heavy messages

    def _launch(self) -> None:
        if not self._heavy:
            return
        paths = list(self._heavy)
        self._outcomes["heavy"] += len(paths)
        if self._lane is None:
            _log.warning("%d heavy messages stay, unclaimed: this deployment has no Spark lane", len(paths))
            return
        try:
            self._lane.launch(self._queue, paths)
        except QueueError as error:
            _log.warning("%d heavy messages stay, unclaimed: no run could be started: %s", len(paths), error)
