"""How a Spark run claims messages and gives them back: many at a time, because a run serves many."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TypeVar

from s3queue.errors import CorruptState, QueueError
from s3queue.paths import is_partition, partition_of, priority_of
from s3queue.protocol.backlog import Backlog, Candidate
from s3queue.protocol.claim import Claim
from s3queue.queue import Queue
from s3queue.store import ObjectInfo, listing

_log = logging.getLogger(__name__)
T = TypeVar("T")
#: Requests at one time, in a small function and in a driver.
THREADS = 8


class Waiting:
    """Messages that wait for their next attempt, found by their leases.

    A sweeper that dispatches a retry deletes its reminder, and a worker that finds an active run leaves the message to
    that run. So a run reads the leases themselves, each one once per write; in a mixed queue only those of heavy
    messages: functions run the others, and a run that waited for them might never end.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._retry_at: dict[tuple[str, str], datetime | None] = {}
        #: In a mixed queue, path → whether its message is heavy; for as long as it has a lease.
        self._heavy: dict[str, bool] = {}
        #: When the next message is due, and the time of the last LIST, both by S3's clock.
        self.next_at: datetime | None = None
        self.at: datetime | None = None
        #: Whether the last LIST showed leases of partitions.
        self.saw_partitions = False

    def due(self) -> list[str]:
        """The paths that may be tried now, most urgent first. One LIST per 1,000 leases."""
        keys = self._queue.keys
        known: dict[tuple[str, str], datetime | None] = {}
        heavy: dict[str, bool] = {}
        due: list[str] = []
        self.next_at, self.saw_partitions = None, False
        for page in listing(self._queue.store, keys.prefix("leases")):
            self.at = page.at
            for entry in page.objects:
                path = keys.path_under("leases", entry.key)
                if path is None or is_partition(path):
                    self.saw_partitions = self.saw_partitions or path is not None
                    continue
                if self._queue.settings.engine != "spark":
                    heavy[path] = self._heavy[path] if path in self._heavy else self._is_heavy(path)
                    if not heavy[path]:
                        continue
                marker = (entry.key, entry.etag)
                known[marker] = retry_at = self._retry_at[marker] if marker in self._retry_at else self._read(entry)
                if retry_at and retry_at <= page.at:
                    due.append(path)
                elif retry_at:
                    self.next_at = min(self.next_at or retry_at, retry_at)
        self._retry_at, self._heavy = known, heavy
        return sorted(due, key=lambda path: (-priority_of(path), path))

    def _is_heavy(self, path: str) -> bool:
        found, _ = self._queue.find_message(path)
        return found is not None and self._queue.settings.is_heavy(found.size)

    def _read(self, entry: ObjectInfo) -> datetime | None:
        path = self._queue.keys.path_under("leases", entry.key)
        try:
            held = self._queue.read_lease(path) if path else None
        except CorruptState:
            return None
        lease = held.lease if held else None
        return (lease.retry_at or entry.modified_at) if lease and lease.state == "waiting" else None


def claim_heavy(
    queue: Queue,
    paths: Iterable[str],
    limit: int,
    *,
    seconds: float,
    threads: int = THREADS,
    backlog: Backlog | None = None,
) -> list[Claim]:
    """Claim up to `limit` heavy messages, these `paths` first, then from the backlog, for at most `seconds`.

    An error ends it early: what was claimed by then is returned. If nothing was, the error is raised.
    """
    backlog = heavy_backlog(queue) if backlog is None else backlog
    named = [Candidate(path, 0, queue.clock.now(), read_first=True) for path in paths]
    pending = _chain(named, backlog)
    until = queue.clock.monotonic() + seconds
    claims: list[Claim] = []
    errors: list[Exception] = []
    mutex = threading.Lock()
    claiming = 0

    def work(_: int) -> None:
        try:
            claim_some()
        except Exception as error:
            errors.append(error)

    def claim_some() -> None:
        nonlocal claiming
        while queue.clock.monotonic() < until:
            with mutex:
                candidate = next(pending, None) if len(claims) + claiming < limit else None
                if candidate is None:
                    return
                claiming += 1
            claim = None
            try:
                claim = _claim(queue, candidate)
            except QueueError as error:
                # The sweeper takes care of it; the other messages need not wait for that.
                _log.warning("claim failed, message kept: %s/%s: %s", queue.name, candidate.path, error)
            finally:
                with mutex:
                    claiming -= 1
                    # What no LIST of messages has shown may be light, or not due: that says nothing about the others.
                    backlog.report(won=claim is not None, is_hint=candidate.size is None)
                    claims.extend([claim] if claim else [])

    in_parallel(work, range(min(threads, limit)), threads)
    if errors and not claims:
        raise errors[0]
    if errors:
        # Lost here, the claims would run out, and each would have used an attempt.  [P5]
        _log.warning("claiming ended early: %s: %d claimed: %s", queue.name, len(claims), errors[0])
    return sorted(claims, key=lambda claim: (-claim.message.priority, claim.message.enqueued_at, claim.path))


def heavy_backlog(queue: Queue) -> Backlog:
    """What a run can claim. Its partitions are only seen, not listed: see `RunPartitions`."""
    return Backlog(queue, wants=queue.settings.is_heavy)


def _chain(named: Sequence[Candidate], backlog: Backlog) -> Iterator[Candidate]:
    yield from named
    yield from backlog.drain()


def _claim(queue: Queue, candidate: Candidate) -> Claim | None:
    if partition_of(candidate.path):
        # It comes with its partition: a run finds that by itself (`RunPartitions`); with `heavy_above`, a worker does.
        if queue.settings.engine == "spark":
            queue.leases.forget(candidate.reminder)
        return None
    if candidate.size is None and queue.settings.engine != "spark":
        found, _ = queue.find_message(candidate.path)
        if found is None or not queue.settings.is_heavy(found.size):
            return None
    claim = queue.claim(candidate.path, read_first=candidate.read_first, etag=candidate.etag)
    queue.leases.forget(candidate.reminder)
    return claim


def in_parallel(work: Callable[[T], None], items: Sequence[T], threads: int = THREADS) -> None:
    """Call `work` for every item, a few at a time; an error is raised when all are done."""
    if len(items) <= 1 or threads <= 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        for _ in pool.map(work, items):
            pass


def release_all(queue: Queue, claims: Sequence[Claim], *, threads: int = THREADS) -> None:
    """Give claims back. A claim that is lost, or whose release is unknown, is left to the sweeper."""

    def release(claim: Claim) -> None:
        with contextlib.suppress(QueueError):
            queue.release(claim)

    in_parallel(release, claims, threads)
