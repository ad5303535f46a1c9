"""Buffer: single messages become `.ndjson` batches: one PUT for hundreds of them, and a future for each.

Nothing is acknowledged before it is stored: a future has its path once its object is in the bucket, or the error. What
is buffered is stored when the buffer is closed, also at the end of the interpreter. A signal that ends the process
without that, as SIGTERM does unless the program handles it, loses what was not acknowledged yet: no handler for signals
is installed behind the program's back.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from types import TracebackType

from s3queue.clock import as_positive_duration
from s3queue.encoding import METADATA_BYTES, Json, encode_metadata, metadata_size
from s3queue.errors import InvalidRequest, QueueFull
from s3queue.paths import priority_prefix
from s3queue.pools import submitted
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.batch_lines import line_of, most_of
from s3queue.protocol.producer import BULK_PUTS, Producer

from .buffered_batch import Batch, Stored

_log = logging.getLogger(__name__)
#: Lines of one object, and how long the first of them waits for others.
PER_OBJECT = 500
LINGER_SECONDS = 0.1
#: Bodies that may wait to be stored, and their bytes; `enqueue` waits for room, so long at most.
MOST_PENDING = 10_000
MOST_BYTES = 64 * 1024 * 1024
ROOM_WITHIN_SECONDS = 30.0
#: How often a call that waits for room looks for it.
_LOOK_SECONDS = 0.005


class Buffer:
    """Collects bodies for one queue, and stores them as batches. Safe for threads; made by `Queue.buffer`."""

    def __init__(
        self,
        queue: QueueAccess,
        producer: Producer,
        *,
        linger: float | timedelta = LINGER_SECONDS,
        per_object: int = PER_OBJECT,
        priority: int = 0,
        metadata: Mapping[str, str] | None = None,
        concurrency: int = BULK_PUTS,
        max_pending: int = MOST_PENDING,
        room_within: float | timedelta = ROOM_WITHIN_SECONDS,
    ) -> None:
        for name, number in {"per_object": per_object, "concurrency": concurrency, "max_pending": max_pending}.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise InvalidRequest(f"{name} must be a whole number from 1 on, not {number!r}")
        priority_prefix(priority)
        encoded = encode_metadata(metadata or {})
        size = metadata_size(encoded)
        if size > METADATA_BYTES:
            raise InvalidRequest(f"the metadata has {size} bytes; S3 takes {METADATA_BYTES}")
        self._queue = queue
        self._producer = producer
        self._linger = as_positive_duration(linger, "linger").total_seconds()
        self._room_within = as_positive_duration(room_within, "room_within").total_seconds()
        self._per_object = per_object
        self._priority = priority
        self._metadata = encoded
        self._max_pending = max_pending
        self._concurrency = concurrency
        self._is_closed = False
        self._begin()
        _buffers.add(self)
        atexit.register(self._close_at_exit)

    def _begin(self) -> None:
        """Empty, also in a child process: what is buffered at a fork is the parent's, which has the threads for it, and
        a thread that held the mutex does not exist there.
        """
        self._mutex = threading.Lock()
        #: A batch was stored, told, or left by a thread that was interrupted. Enter the mutex, not this: Ctrl-C in its
        #: `__enter__` would leave the mutex locked.
        self._changed = threading.Condition(self._mutex)
        self._batch: Batch | None = None
        #: Set while a batch is open, and at the end: the thread that lingers has something to do.
        self._opened = threading.Event()
        self._pending = 0
        self._bytes = 0
        self._error: Exception | None = None
        #: Complete, and not stored yet; and those whose futures are not all told.
        self._under_way: set[Batch] = set()
        self._untold: set[Batch] = set()
        #: Of each thread: whether it tells futures now, and runs what their callbacks do.
        self._thread = threading.local()
        self._threads = ThreadPoolExecutor(self._concurrency, f"{self._queue.name}-buffer")
        self._lingering: threading.Thread | None = None

    def enqueue(self, body: bytes | str | Json) -> Future[Stored]:
        """Add a body. Its future has its path and line once it is stored, or the error of its batch.

        Raises:
            InvalidRequest: it cannot be a line of a batch, or the buffer is closed. MessageTooLarge: it is too large.
            QueueFull: no room within `room_within`: S3 is slower than the callers. Nothing was added.
        """
        line = line_of(self._queue, body, "a body")
        until = self._queue.clock.monotonic() + self._room_within
        while (added := self._add(line)) is None:
            if not self._under_way:
                # What only waits for company makes room sooner if it goes now.
                self._send(self._taken())
            if self._queue.clock.monotonic() >= until:
                raise QueueFull(
                    f"buffer full: {self._queue.name}: {self._pending} bodies are not stored yet, and none was within "
                    f"{self._room_within:g} s; wait, or raise max_pending or concurrency"
                )
            if not self._makes_room():
                self._queue.clock.sleep(_LOOK_SECONDS)
        future, full = added
        self._send(full)
        return future

    def _add(self, line: bytes) -> tuple[Future[Stored], Batch | None] | None:
        """The body's future, and a batch that is complete now; None if there is no room."""
        most, room = most_of(self._queue, self._per_object)
        with self._mutex:
            if self._is_closed:
                raise InvalidRequest(f"the buffer of {self._queue.name} is closed; make another one")
            is_full = self._pending >= self._max_pending or self._bytes + len(line) > MOST_BYTES
            # One more than are stored at a time: a body waits for the end of one PUT at most, and then for its own.
            if self._pending and (is_full or len(self._under_way) > self._concurrency):
                return None
            full = None
            if self._batch and self._batch.size + len(line) > room:
                full = self._take()
            batch = self._batch or self._open()
            future = batch.add(line)
            self._pending += 1
            self._bytes += len(line)
            if full is None and len(batch.lines) >= most:
                full = self._take()
            return future, full

    def _open(self) -> Batch:
        if self._lingering is None or not self._lingering.is_alive():
            # Also if it could not be started before. A daemon, because it sleeps: `close` sends what it would send.
            self._lingering = threading.Thread(target=self._run, name=f"{self._queue.name}-linger", daemon=True)
            self._lingering.start()
        self._batch = Batch(self._queue.clock.monotonic())
        self._opened.set()
        return self._batch

    def _take(self) -> Batch | None:
        """The open batch is complete; the caller holds the mutex, and stores it."""
        if batch := self._batch:
            # First: if Ctrl-C comes after this step, the batch is open still, and the next flush takes it again.
            self._untold.add(batch)
            self._batch = None
            self._under_way.add(batch)
        return batch

    def _taken(self, only: Batch | None = None) -> Batch | None:
        """The open batch, which is not open any more; with `only`, None if it is another one by now."""
        with self._mutex:
            return None if only is not None and self._batch is not only else self._take()

    def _run(self) -> None:
        """Send every batch whose first line has waited for long enough."""
        while True:
            self._opened.wait()
            with self._mutex:
                batch = self._batch
                if batch is None:
                    if self._is_closed:
                        # If that close is interrupted, the next body starts another thread.
                        self._lingering = None
                        return
                    self._opened.clear()
                    continue
            left = batch.opened_at + self._linger - self._queue.clock.monotonic()
            if left > 0:
                self._queue.clock.sleep(left)
            else:
                self._send(self._taken(batch))

    def _send(self, batch: Batch | None) -> None:
        if batch and not submitted(self._threads, partial(self._store, batch)):
            self._store(batch)

    def _makes_room(self) -> bool:
        """Whether this is a callback, and has stored another batch itself: all threads for that may be in callbacks."""
        if not self._is_telling:
            return False
        with self._mutex:
            waiting = [batch for batch in self._under_way if not batch.is_begun]
        if not waiting:
            return False
        batch = min(waiting, key=lambda batch: batch.opened_at)
        # Its own callbacks come later: they could wait for room as well, within this call, and theirs within them.
        self._store(batch, tells=False)
        self._send(batch)
        return True

    def _store(self, batch: Batch, *, tells: bool = True) -> None:
        """Store it, and tell its futures, unless another thread does. What was interrupted goes on where it was."""
        is_ours = False
        try:
            with self._mutex:
                is_ours, batch.is_begun = not batch.is_begun, True
            if is_ours:
                self._put(batch)
                if tells:
                    self._tell(batch)
        finally:
            if is_ours:
                with self._mutex:
                    batch.is_begun = False
                    self._changed.notify_all()

    def _put(self, batch: Batch) -> None:
        """PUT it, unless that is done. Only an answer, or an error, decides what becomes of it: an exit, or Ctrl-C, is
        not the batch's, and whoever flushes next stores it.
        """
        if batch not in self._under_way:
            return
        batch.problem, was_named = None, bool(batch.path)
        try:
            batch.path = batch.path or self._producer.name_batch(len(batch.lines), priority=self._priority)
            lines = b"".join(batch.lines)
            self._producer.put_batch(batch.path, lines, self._metadata, self._priority, again=was_named)
        except Exception as error:
            batch.problem = error
        with self._mutex:
            self._pending -= len(batch.lines)
            self._bytes -= batch.size
            self._error = self._error or batch.problem
            self._under_way.discard(batch)
            self._changed.notify_all()

    def _tell(self, batch: Batch) -> None:
        was_telling, self._thread.is_telling = self._is_telling, True
        try:
            batch.tell()
        finally:
            self._thread.is_telling = was_telling
            if batch.is_told:
                with self._mutex:
                    self._untold.discard(batch)

    @property
    def _is_telling(self) -> bool:
        return getattr(self._thread, "is_telling", False)

    def flush(self) -> None:
        """Store what is buffered, and wait until all that was added before is stored, and its futures are told.

        The callback of a future may flush, too: it waits for what is stored, not for other callbacks, nor for itself.
        A callback that exits ends this call, or another thread's work, when all futures of its batch are told.

        Raises:
            QueueError: a batch could not be stored since the last flush; its futures have the error, too.
        """
        error = self._flushed()
        if error is not None:
            raise error

    def _flushed(self) -> Exception | None:
        """`flush`, which has stored and told all that it can; what it raises then."""
        with self._mutex:
            self._take()
            left = set(self._untold)
        while left:
            for batch in left:
                # Also what a call that was interrupted left to nobody.
                self._store(batch)
            with self._mutex:
                # Others have what is left, unless they are interrupted.
                while (left := left & self._unfinished) and all(batch.is_begun for batch in left):
                    self._changed.wait()
        with self._mutex:
            error, self._error = self._error, None
        return error

    @property
    def _unfinished(self) -> set[Batch]:
        """A callback does not wait for others, nor for itself."""
        return self._under_way if self._is_telling else self._untold

    def close(self) -> None:
        """`flush`, and take nothing more. Closing again does nothing, unless the first time was interrupted.

        Raises:
            QueueError: as `flush`.
        """
        try:
            with self._mutex:
                if self._is_closed:
                    return
                self._is_closed = True
            self._opened.set()
            error = self._flushed()
        except BaseException:
            # Interrupted, maybe by what ends the process: closing it again, at the latest at exit, stores what is left.
            self._is_closed = False
            raise
        atexit.unregister(self._close_at_exit)
        self._threads.shutdown(wait=not self._is_telling)
        if error is not None:
            raise error

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except Exception as error:
            _log.error("messages not stored at exit: %s: %s", self._queue.name, error)

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as problem:
            if error is None:
                raise
            # The caller's own error is raised; this one is in the futures.
            _log.error("messages not stored: %s: %s", self._queue.name, problem)


#: Those of this process.
_buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()


def _begin_all() -> None:
    for buffer in list(_buffers):
        buffer._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)
