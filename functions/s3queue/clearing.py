"""Clearing: what a worker completed is deleted beside its handlers, two requests that none of them waits for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .claim import Claim
from .errors import QueueError
from .heartbeat import Pulse
from .processing import settled
from .queue import Queue

_log = logging.getLogger(__name__)
#: Threads for it at most; with more handlers than these, some clear away themselves.
CLEARERS = 8


class Clearing:
    """Deletes completed messages and their leases, which the worker's heartbeat keeps until then.

    A worker that is killed meanwhile has recorded the outcome, and the sweeper clears the rest away.
    """

    def __init__(self, queue: Queue, pulse: Pulse, concurrency: int, ended: Callable[[Claim], None]) -> None:
        self._queue = queue
        self._pulse = pulse
        self._most = min(concurrency, CLEARERS)
        #: Told, in another thread, of each that was handed over.
        self._ended = ended
        self._threads = ThreadPoolExecutor(self._most, f"{queue.worker_id}-clearing")
        self._under_way = 0
        self._mutex = threading.Lock()

    def hand_over(self, claim: Claim) -> bool:
        """Have it cleared while the caller goes on; False: everybody was busy, so it has been done here and now."""
        with self._mutex:
            is_free = self._under_way < self._most
            self._under_way += is_free
        if is_free:
            self._threads.submit(self._clear_behind, claim)
        else:
            self._clear(claim)
        return is_free

    def end(self) -> None:
        """Wait for what is under way."""
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
            settled(self._queue, lambda: self._queue.clear(claim))
        except QueueError as error:
            name = self._queue.name
            _log.warning("%s/%s is completed; the sweeper will clear it away: %s", name, claim.path, error)
        finally:
            self._pulse.drop(claim)
