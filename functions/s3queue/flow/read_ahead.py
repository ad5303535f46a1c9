"""The next messages of a held partition are read while handlers run: nobody waits for their GETs.  [P9]

Its lease names them as taken before they are read: nobody else begins them, and should this worker die, they count as
begun in any case. Only what is used soon is read so early: what is PUT or deleted by hand since then is not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from s3queue.documents.message import INLINE_BYTES, Message
from s3queue.errors import QueueError
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.claim import Claim
from s3queue.protocol.opening import message_of
from s3queue.store import ObjectInfo

#: Messages under way at most, with those that run: more would only share the CPU, and be in vain if the worker stops.
READERS = 16
#: Messages are read early while GETs take longer than this, and handlers less: to hand a message from one thread to
#: another takes a tenth of a millisecond.
SLOW_GET_SECONDS = 0.003
QUICK_SECONDS = 0.25
#: What was read longer ago than this is read again.
FRESH_SECONDS = 1.0


class Readers:
    """Threads that read messages of the partitions that a worker holds; started when they are needed, until `end`."""

    def __init__(self, name: str) -> None:
        self._name = f"{name}-reading"
        self._pool: futures.ThreadPoolExecutor | None = None
        self._mutex = threading.Lock()

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def submit(self, read: Callable[[str, ObjectInfo], Read | None], path: str, info: ObjectInfo) -> UnderWay:
        with self._mutex:
            if self._pool is None:
                self._pool = futures.ThreadPoolExecutor(READERS, self._name)
            return self._pool.submit(read, path, info)

    def end(self) -> None:
        """What is being read is not waited for: nobody needs it, and a function's time may be over."""
        with self._mutex:
            pool, self._pool = self._pool, None
        if pool:
            pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Read:
    """A message as it was read; when, by S3's clock; and when the request was sent, by the monotonic one."""

    message: Message
    at: datetime
    since: float

    def at_time(self, now: float) -> datetime:
        """S3's time now, carried forward."""
        return self.at + timedelta(seconds=now - self.since)


UnderWay = futures.Future[Read | None]


@dataclass(slots=True)
class ReadAhead:
    """Of one held partition. The hold's mutex guards `begin`."""

    queue: QueueAccess
    readers: Readers | None
    #: Key, ETag and date → what is being read: equal bytes that were PUT anew are another message.
    _reads: dict[tuple[str, str, datetime], UnderWay] = field(default_factory=dict)
    #: How many seconds the last handler took, unknown at first, and the last GET.
    _handled_in: float = float("inf")
    _got_in: float = 0.0

    def handled(self, claim: Claim) -> None:
        """A message has ended: how long that took says whether others are read early."""
        self._handled_in = self.queue.clock.monotonic() - claim.since

    def begin(self, coming: Iterable[tuple[str, ObjectInfo]], running: int, wanted: int = 0) -> None:
        """Read these, the next ones, while so many run, if they will soon be asked for: `wanted` of them, for the same
        call of a handler, at once. A gate decides about each when its turn comes.
        """
        if self.readers is None or self.queue.gate or self._got_in < SLOW_GET_SECONDS:
            return
        if wanted:
            coming, running = islice(coming, wanted), 0
        elif self._handled_in > QUICK_SECONDS:
            return
        for path, info in coming:
            if running + len(self._reads) >= READERS:
                return
            if _id(info) not in self._reads and info.size <= INLINE_BYTES:
                # A thread that cannot be started is no reason to stop: then it is read when it is asked for.
                with suppress(RuntimeError):
                    self._reads[_id(info)] = self.readers.submit(self._read_early, path, info)

    def read(self, path: str, info: ObjectInfo, now: float) -> Read | None:
        """The message, as it was read early, or read now; None: there is none."""
        under_way = self._reads.pop(_id(info), None)
        early = None if under_way is None or under_way.cancel() else under_way.result()
        if early and self.queue.clock.monotonic() - early.since <= FRESH_SECONDS:
            return early
        # Whoever waited in vain reads it now.
        return self._get(path, info, self.queue.clock.monotonic() if under_way else now)

    def forget(self) -> None:
        """Other messages come next than those that are being read."""
        self._reads.clear()

    def _read_early(self, path: str, info: ObjectInfo) -> Read | None:
        with suppress(QueueError):  # whoever asks for it reads it again, and decides
            return self._get(path, info, self.queue.clock.monotonic())
        return None

    def _get(self, path: str, info: ObjectInfo, since: float) -> Read | None:
        found = self.queue.store.open(info.key)
        read = Read(message_of(self.queue, path, found), found.at, since) if found else None
        self._got_in = self.queue.clock.monotonic() - since
        return read


def _id(info: ObjectInfo) -> tuple[str, str, datetime]:
    return info.key, info.etag, info.modified_at
