"""BackgroundDelete: deletes completed messages in threads of its own, so that no handler waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from s3queue.errors import QueueError
from s3queue.protocol.claim import Claim
from s3queue.protocol.liveness import HeartbeatWriter
from s3queue.queue import Queue

from .unknown import until_known

_log = logging.getLogger(__name__)
#: At most this many threads; when all are busy, the worker's own thread deletes.
CLEARERS = 8


class BackgroundDelete:
    """Deletes completed messages and their leases; the worker's heartbeat keeps the leases until then.

    If the worker is killed meanwhile, the outcome is recorded already, and the sweeper deletes the rest.
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
        self._threads = ThreadPoolExecutor(CLEARERS, f"{queue.worker_id}-clearing")
        self._under_way = 0
        self._mutex = threading.Lock()

    def resize(self, concurrency: int) -> None:
        """As many threads as there are threads that run handlers, and no more than `CLEARERS`."""
        self._most = min(concurrency, CLEARERS)

    def hand_over(self, claim: Claim) -> bool:
        """Delete in another thread; False if all threads were busy, and this call has deleted it itself."""
        with self._mutex:
            is_free = self._under_way < self._most
            self._under_way += is_free
        if is_free:
            self._threads.submit(self._clear_behind, claim)
        else:
            self._clear(claim)
        return is_free

    def end(self) -> None:
        """Wait for the deletions that are running."""
        self._threads.shutdown()

    def _clear_behind(self, claim: Claim) -> None:
        try:
            self._clear(claim)
        finally:
            with self._mutex:
                self._under_way -= 1
            self._ended(claim)

    def _clear(self, claim: Claim) -> None:
        try:
            until_known(self._queue, lambda: self._queue.clear(claim))
        except QueueError as error:
            _log.warning("delete failed, left to the sweeper: %s/%s: %s", self._queue.name, claim.path, error)
        finally:
            self._heartbeat.drop(claim)
