"""SweepTurns: which of several pull workers sweeps the queue, and who takes over when that one is gone.

One of them holds the lock. The others watch the holder's heartbeat, which it writes anyway, and look at it exactly when
it would be too old: one GET per visibility timeout. Every age is by S3's clock; wall clocks decide nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from s3queue.documents.heartbeat import Heartbeat
from s3queue.documents.lease import GRAIN
from s3queue.encoding import load
from s3queue.errors import CorruptState, InvalidRequest
from s3queue.protocol.locks import Lock
from s3queue.protocol.stats import STATS_BYTES
from s3queue.protocol.store_time import StoreTime
from s3queue.queue import Queue
from s3queue.store import open_state

#: The lock that decides which of several workers sweeps.
SWEEP_LOCK = "sweeper"
#: The lock is held for `rescue_after`, but not shorter than this.
SWEEP_TTL = timedelta(seconds=6)
#: What a pull worker's sweeper publishes with the stats.
BY_WORKER = "worker"


class SweepTurns:
    """Whether this worker has to sweep. Ask `is_ours` again after `pause` seconds."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._time = StoreTime(queue.clock)
        self.lock = Lock(
            queue.store,
            queue.keys.lock(SWEEP_LOCK),
            max(SWEEP_TTL, queue.settings.rescue_after),
            owner=queue.worker_id,
            clock=queue.clock,
            chance=queue.chance,
        )
        #: The worker that sweeps, and until when its lock counts without being renewed.
        self._holder = ""
        self._lock_until: datetime | None = None
        #: Nothing can change before S3's clock shows a later time than this; None: look now.
        self._look_after: datetime | None = None
        self._is_new = False
        #: Whether a sweeper function sweeps. It is asleep for most of each minute.
        self.is_functions = False

    def is_new(self) -> bool:
        """Whether this worker's turn has just begun: what its sweeper knew before is old."""
        was_new, self._is_new = self._is_new, False
        return was_new

    def pause(self, next_tick: float | None = None) -> float:
        """Seconds until `is_ours` has to be asked again: for the next tick, the next look at the holder, or to renew
        the own lock.
        """
        pause = min(self.lock.ttl, self._queue.settings.visibility_timeout).total_seconds() / 3
        if self.lock.is_held or self._look_after is None or self.is_functions:
            return pause if next_tick is None else min(pause, next_tick)
        return min(self._time.seconds_until(self._look_after), self.lock.ttl.total_seconds())

    def is_ours(self) -> bool:
        """Whether no sweeper function is at work, and no other worker that is alive holds the lock.

        Raises:
            QueueError: unknown; ask again.
        """
        if self.lock.is_held:
            if self.lock.remaining() < self.lock.ttl / 2:
                self.lock.renew()
            return True
        if self._look_after and self._time.now() <= self._look_after:
            return False
        # Set again by what is found; without an answer, the next look comes after the usual pause.
        self._look_after = None
        return self._look()

    def _look(self) -> bool:
        if self._holder and self._lock_until and self._time.now() <= self._lock_until and self._is_alive():
            return False
        self._holder, self.is_functions = "", False
        # Two sweepers at once do no harm; none at all, because a newer version was here and was rolled back, would.
        found = self.lock.read(is_newer_garbage=True)
        if found:
            self._time.note(found.at)
        if found and found.state in ("held", "unreadable") and found.owner != self._queue.worker_id:
            self._lock_until = found.at - found.age + found.ttl + GRAIN
            # A lock that was written within the visibility timeout needs no heartbeat: the first one may still be due.
            grace = self._queue.settings.visibility_timeout
            if found.state == "unreadable":
                # Who has it is unknown: whoever it is renews it more often than this.
                grace = max(grace, self.lock.ttl)
            grace_until = found.at - found.age + grace + GRAIN
            self._holder = found.owner
            if found.at <= grace_until:
                self._look_after = grace_until
                return False
            if self._holder and self._is_alive():
                return False
            self._holder = ""
        elif self._is_function_at_work():
            return False
        self._is_new = self.lock.take_over(found)
        return self._is_new

    def _is_alive(self) -> bool:
        """Whether the holder's heartbeat is fresh; then the next look comes when it would not be any more."""
        try:
            found = open_state(self._queue.store, self._queue.keys.worker(self._holder))
        except InvalidRequest:
            return False  # a name that can have no key: nobody has written its heartbeat
        if found is None:
            return False
        self._time.note(found.at)
        try:
            ttl = Heartbeat.read(found).ttl
        except CorruptState:
            ttl = self._queue.settings.visibility_timeout
        fresh_until = found.modified_at + ttl + GRAIN
        self._look_after = min(fresh_until, self._lock_until or fresh_until)
        return found.at <= fresh_until

    def _is_function_at_work(self) -> bool:
        """Whether a sweeper function has published its stats lately. What a worker published counts for nothing: its
        lock and its heartbeat tell whether it is alive.
        """
        found = open_state(self._queue.store, self._queue.keys.stats)
        if found is None:
            return False
        self._time.note(found.at)
        recent_until = found.modified_at + max(SWEEP_TTL, self._queue.settings.rescue_after * 2)
        try:
            is_function = load(found.read(STATS_BYTES), found.key).get("by") != BY_WORKER
        except CorruptState:
            return False
        if not is_function or found.at > recent_until:
            return False
        self._look_after = recent_until
        self.is_functions = True
        return True
