"""Background: ends attempts in threads of its own, so that no handler waits until an outcome is written."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from s3queue.errors import QueueError
from s3queue.pools import submitted
from s3queue.protocol.claim import Claim
from s3queue.protocol.liveness import HeartbeatWriter
from s3queue.queue import Queue

from .unknown import until_known

_log = logging.getLogger(__name__)
#: To end an attempt takes three requests, one after the other (PUT record, DELETE message, DELETE lease); to begin one
#: takes two. With so many threads for each that runs handlers, none of those waits; more would only share the CPU.
PER_HANDLER = 2
#: At most this many threads; when all are busy, the worker's own thread ends its attempt.
MOST = 16


class Background:
    """Runs the last steps of attempts; the worker's heartbeat keeps their leases until then.

    A worker that is killed meanwhile may leave a message whose handler has run and whose outcome is not written, as one
    that is killed at the end of a handler does: it runs again. If it is written, the sweeper deletes the rest.
    """

    def __init__(
        self, queue: Queue, heartbeat: HeartbeatWriter, concurrency: int, ended: Callable[[Claim], None]
    ) -> None:
        self._queue = queue
        self._heartbeat = heartbeat
        self.resize(concurrency)
        #: Called in another thread, after each claim that was handed over.
        self._ended = ended
        # Threads are started when they are needed, so `_most` bounds them.
        self._threads = ThreadPoolExecutor(MOST, f"{queue.worker_id}-ending")
        self._under_way = 0
        self._mutex = threading.Lock()
        #: The threads that have been started.
        self._started: set[threading.Thread] = set()

    def resize(self, concurrency: int) -> None:
        """As many threads as those that run handlers keep busy."""
        self._most = min(PER_HANDLER * concurrency, MOST)

    def hand_over(self, claim: Claim, step: Callable[[], None] | None = None) -> bool:
        """Take the step in another thread, then delete the message if its outcome is recorded.

        False if all threads were busy, and this call has done it itself.
        """
        with self._mutex:
            is_free = self._under_way < self._most
            self._under_way += is_free
        if is_free:
            if submitted(self._threads, partial(self._end_behind, claim, step)):
                return True
            _log.warning("no thread for the end of an attempt, ended here: %s/%s", self._queue.name, claim.path)
            with self._mutex:
                self._under_way -= 1
        self._end(claim, step)
        return False

    def has(self, thread: threading.Thread) -> bool:
        """Whether the thread is one of these: they tell the hooks of outcomes."""
        return thread in self._started

    def end(self) -> None:
        """Wait for the steps that are running."""
        self._threads.shutdown()

    def _end_behind(self, claim: Claim, step: Callable[[], None] | None) -> None:
        self._started.add(threading.current_thread())
        try:
            self._end(claim, step)
        except Exception:
            _log.exception("unexpected error at the end of an attempt: %s/%s", self._queue.name, claim.path)
        finally:
            with self._mutex:
                self._under_way -= 1
            self._ended(claim)

    def _end(self, claim: Claim, step: Callable[[], None] | None) -> None:
        try:
            if step:
                step()
            if claim.is_recorded:
                until_known(self._queue, partial(self._queue.clear, claim))
        except QueueError as error:
            _log.warning("delete failed, left to the sweeper: %s/%s: %s", self._queue.name, claim.path, error)
        finally:
            self._heartbeat.drop(claim)
