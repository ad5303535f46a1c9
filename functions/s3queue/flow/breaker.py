"""QueueBreaker: failures in a row stop a queue for everyone, then one message probes.

A healthy queue pays nothing per message: the document is read with `queue.json`, every ten seconds, and written only
by whoever counts a failure, or the first success after one.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from s3queue.documents.breaker_document import BreakerDocument, StoredBreaker
from s3queue.documents.lease import GRAIN
from s3queue.errors import Conflict, QueueError
from s3queue.events import Event
from s3queue.limits import Breaker
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.store_time import StoreTime

from .breaker_access import read_breaker, write_breaker

_log = logging.getLogger(__name__)
#: What this process knows is read again when it is this old, if the queue's settings were not read before.
REFRESH_SECONDS = 10.0
#: How often others look while one message probes.
PROBED_SECONDS = 2.0
#: How often a count is tried while others write, too. A failure that is not counted does no harm.
TRIES = 4
#: Probes of this process of which it does not know yet how they end.
MOST_USED = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True, eq=False)
class Probe:
    """The right to run the one message that decides. It is this process's until its time is over."""

    stored: StoredBreaker
    until: datetime
    path: str
    #: Of its claim, once it has one. The same message may be claimed again, as another probe, before this one ends.
    fence: str = ""


@dataclass(slots=True)
class QueueBreaker:
    """What one process knows about its queue's breaker; safe for threads. No lock is held during a request."""

    queue: QueueAccess
    _time: StoreTime = field(init=False)
    _known: StoredBreaker | None = None
    _looked_at: float = float("-inf")
    #: A probe that was to be ended, but that write failed: this process's next claim may use it, if nobody else does.
    _kept: Probe | None = None
    #: Fence of a claim → the probe that it is, until it has ended; also probes that others have taken over since.
    _used: dict[str, Probe] = field(default_factory=dict)
    _is_asking: bool = False
    _mutex: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self._time = StoreTime(self.queue.clock)

    # Before a claim

    def look(self) -> bool:
        """Read it, and whether that was possible. If not, what is known stays."""
        self._looked_at = self.queue.clock.monotonic()
        try:
            self._read()
        except QueueError as error:
            _log.warning("queue-breaker.json not read, state kept: %s: %s", self.queue.name, error)
            return False
        return True

    def wait(self) -> float:
        """Seconds until asking makes sense; 0.0 while it is closed, or this process may probe. Sends no request."""
        known = self._known
        kept = self._kept
        if known is None or known.document.state == "closed":
            return 0.0
        if kept and self._time.now() < kept.until:
            return 0.0
        since = self.queue.clock.monotonic() - self._looked_at
        if known.until is None:
            return max(0.0, REFRESH_SECONDS - since)
        if self._time.now() >= known.until:
            return 0.0
        left = max(0.0, self._time.seconds_until(known.until - timedelta(seconds=1)))
        return min(left, max(0.0, PROBED_SECONDS - since)) if known.document.state == "probing" else left

    def free_at(self) -> datetime:
        """When S3's clock will show that asking makes sense."""
        until = self._known.until if self._known and self._known.document.state != "closed" else None
        if until is None:
            # A forced one has no end: look once a minute.
            return self._time.now().replace(second=0, microsecond=0) + timedelta(minutes=1)
        return max(until, self._time.now() + timedelta(seconds=1)).replace(microsecond=0)

    def enter(self, path: str) -> Probe | bool:
        """Whether this message may be claimed; a Probe if it is the one that decides."""
        since = self.queue.clock.monotonic() - self._looked_at
        is_old = self._known is None or since >= REFRESH_SECONDS or (self._is_shut() and self.wait() == 0.0)
        if is_old and not self.look() and self._kept and self._is_shut():
            return False  # it may have been given back, and be another worker's
        if not self._is_shut():
            return True
        if (probe := self._kept_probe(path)) is not None:
            return probe
        known = self._known
        if known is None or known.until is None or self._time.seen_at < known.until or self._is_asking:
            return False
        self._is_asking = True
        try:
            return self._take_probe(known, path) or False
        except QueueError as error:
            _log.warning("probe not begun, trying again: %s: %s", self.queue.name, error)
            return False
        finally:
            self._is_asking = False

    def permits_call(self, path: str) -> bool:
        """Whether the handler of a claimed batch may be called for its next line."""
        if self.queue.clock.monotonic() - self._looked_at >= REFRESH_SECONDS:
            self.look()
        if not self._is_shut():
            return True
        with self._mutex:
            return any(probe.path == path for probe in self._used.values())

    def is_forced_open(self) -> bool:
        """Whether an operator holds it open, as far as this process knows: nobody knows until when."""
        known = self._known
        return known is not None and known.document.is_forced and known.document.state == "open"

    def _is_shut(self) -> bool:
        return self._known is not None and self._known.document.state != "closed"

    def _kept_probe(self, path: str) -> Probe | None:
        """The right to probe that this process could not give back, if what was read shows that it still has it."""
        with self._mutex:
            probe, self._kept = self._kept, None
        known = self._known
        if probe is None or known is None or known.etag != probe.stored.etag or self._time.now() >= probe.until:
            return None
        probe.path, probe.fence = path, ""
        return probe

    def _take_probe(self, known: StoredBreaker, path: str) -> Probe | None:
        settings = self.queue.settings
        lasts = max(settings.visibility_timeout, settings.handler_timeout) + GRAIN
        document = replace(
            known.document,
            state="probing",
            owner=self.queue.worker_id,
            lasts=lasts,
            round=known.document.round or self.queue.chance.token(),
        )
        try:
            written = self._write(document, known)
        except Conflict:
            self.look()  # another worker probes
            return None
        if written.until is None:
            return None  # nobody knows when it was written: its time runs out
        return Probe(written, written.until - GRAIN, path)

    def use(self, probe: Probe, at: datetime, fence: str) -> bool:
        """Whether the claim of the probe's message came in time: later, another worker may probe."""
        if at >= probe.until:
            return False
        with self._mutex:
            self._used.pop(probe.fence, None)
            probe.fence = fence
            self._used[fence] = probe
            if len(self._used) > MOST_USED:
                del self._used[next(iter(self._used))]
        return True

    def cancel(self, probe: Probe) -> None:
        """Its message could not be claimed: another one may be the probe, at once and of any worker.

        This process may never claim again: a function has only the messages that it was told of.
        """
        self._end(probe.fence)
        self._give_back(probe)

    def _end(self, fence: str) -> Probe | None:
        """The probe that this claim was, if it was one; it is used up."""
        with self._mutex:
            return self._used.pop(fence, None)

    # After a call

    def ended(self, fence: str, error: BaseException | str | None) -> None:
        """Count how a call of the handler ended. Nothing is raised: a lost count does no harm."""
        settings = self.queue.settings.breaker
        probe = self._end(fence)
        if settings is None:
            return  # someone has switched it off meanwhile
        is_failure = error is not None and settings.counts(error)
        try:
            if probe and self._decide(probe, settings, error if is_failure else None):
                return
            known = self._known
            if is_failure:
                self._count(_said(error), settings)
            elif known and known.document.state == "closed" and known.document.failures:
                self._write(replace(known.document, failures=0), known)
        except Conflict:
            self.look()
        except QueueError as failed:
            _log.warning("queue-breaker.json not written, call not counted: %s: %s", self.queue.name, failed)
            self._kept = probe or self._kept

    def gave_back(self, fence: str) -> None:
        """The handler of a claimed message was not called, or did not decide: another one may do so at once."""
        probe = self._end(fence)
        if probe:
            self._give_back(probe)

    def _give_back(self, probe: Probe) -> None:
        undecided = replace(probe.stored.document, state="open", owner="", lasts=timedelta())
        try:
            self._write(undecided, probe.stored)
        except Conflict:
            self.look()  # another one probes already
        except QueueError as error:
            _log.warning("probe not given back, kept for the next claim: %s: %s", self.queue.name, error)
            self._kept = probe

    def _decide(self, probe: Probe, settings: Breaker, error: BaseException | str | None) -> bool:
        """Open or close it as the probe ended; False if that was not for this probe to say.

        A handler may run for longer than its probe lasts, and another worker probe meanwhile. As long as none has
        failed, a success still shows that what the handler calls is back.
        """
        known = probe.stored
        for _ in range(TRIES):
            document = BreakerDocument()
            if error is not None:
                document = replace(known.document, state="open", owner="", round="", lasts=settings.pause_time)
                document = replace(document, error=_said(error))
            try:
                self._write(document, known)
            except Conflict:
                known = self._read()
                if error is not None or not _continues(known.document, probe.stored.document):
                    return False
                continue
            if error is not None:
                self._emit("breaker.opened", document, again=True)
            else:
                self._emit("breaker.closed", known.document)
            return True
        return False

    def _count(self, said: str, settings: Breaker) -> None:
        for _ in range(TRIES):
            known = self._known or self._read()
            document = known.document
            if document.state != "closed" or document.is_forced:
                return
            failures, error = document.failures + 1, said
            counted = replace(document, failures=failures, error=error)
            if failures >= settings.failures:
                now = max(self._time.now(), known.written_at or _EPOCH)
                counted = replace(counted, state="open", lasts=settings.pause_time, opened_at=now)
            try:
                self._write(counted, known)
            except Conflict:
                self._known = None
                continue
            if counted.state == "open":
                self._emit("breaker.opened", counted, again=False)
            return

    def _emit(self, name: Event, document: BreakerDocument, **fields: bool) -> None:
        self.queue.events.emit(
            name,
            queue=self.queue.name,
            worker=self.queue.worker_id,
            failures=document.failures,
            error=document.error,
            opened_at=document.opened_at,
            **fields,
        )

    def _read(self) -> StoredBreaker:
        self._known = known = read_breaker(self.queue.store, self.queue.keys, self._time.note)
        return known

    def _write(self, document: BreakerDocument, known: StoredBreaker) -> StoredBreaker:
        self._known = written = write_breaker(self.queue, document, known.etag)
        self._looked_at = self.queue.clock.monotonic()
        if written.written_at:
            self._time.note(written.written_at)
        return written


def _continues(document: BreakerDocument, probe: BreakerDocument) -> bool:
    """Whether this is the probe, or one that took over from it, and no failure has been counted in between."""
    return document.state == "probing" and not document.is_forced and document.round == probe.round


def _said(error: BaseException | str | None) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error or "")
