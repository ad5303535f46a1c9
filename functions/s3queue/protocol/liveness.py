"""HeartbeatWriter and LiveOwners: one small object keeps every lease of a long-lived worker alive.  [P2]

A lease is alive while it is fresh itself, or while a fresh heartbeat of its owner names it. So one PUT keeps a thousand
leases, and a lease that its worker forgot still runs out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from s3queue.documents.heartbeat import Heartbeat
from s3queue.documents.lease import GRAIN
from s3queue.errors import Conflict, CorruptState, InvalidRequest, QueueError
from s3queue.paths import is_partition
from s3queue.store import Object, look_at, open_state, put_surely

from .access import QueueAccess
from .claim import Claim

if TYPE_CHECKING:
    from s3queue.documents.run_documents import Manifest

_log = logging.getLogger(__name__)
#: What the id of a Spark run begins with, which is also its worker's id.
RUN = "run-"
#: Heartbeats within a ttl, or within a lease: two may be lost.
BEATS = 3
#: After a heartbeat that could not be written, the next try comes after this part of the shortest time to keep.
AGAIN = 10


class HeartbeatWriter:
    """Writes the heartbeat of one worker, and moves the deadlines of the claims that the worker holds.

    With a `run`, the heartbeat names the run's manifest instead of the paths of messages: hold only what the manifest
    names, and partitions, which the heartbeat names itself.
    """

    def __init__(self, queue: QueueAccess, ttl: timedelta | None = None, *, run: str = "") -> None:
        """`ttl`: how long a heartbeat counts; by default the queue's visibility timeout, as it is at each beat."""
        self._queue = queue
        self._fixed_ttl = ttl
        self._run = run
        self._started_at = queue.clock.now()
        self._claims: dict[str, Claim] = {}
        self._etag: str | None = None
        #: The nonces of the last beat that was surely stored, and of those since, which may have been.
        self._ours: set[str] = set()
        self._beat_at = float("-inf")
        self._last_ttl = self.ttl
        self._mutex = threading.Lock()
        #: Set when a heartbeat is needed sooner than was said before; whoever waits for the next one waits for this.
        self.changed = threading.Event()
        self._told = float("-inf")

    @property
    def ttl(self) -> timedelta:
        return self._fixed_ttl or self._queue.settings.visibility_timeout

    def hold(self, claim: Claim) -> None:
        with self._mutex:
            self._claims[claim.path] = claim
            is_sooner = self._due(claim) < self._told
        if is_sooner:
            self.changed.set()

    def drop(self, claim: Claim) -> None:
        with self._mutex:
            # The name may have been PUT again, and another thread may hold it by now.
            if self._is_held(claim):
                del self._claims[claim.path]

    def take_over(self, claim: Claim) -> Claim:
        """The claim for another thread, held in the place of this one, which is over: its thread can do nothing more
        with it.
        """
        with self._mutex:
            other = replace(claim)
            if self._is_held(claim):
                self._claims[claim.path] = other
            claim.end()
        return other

    def held(self) -> list[Claim]:
        """The claims that are held now."""
        with self._mutex:
            return list(self._claims.values())

    def __len__(self) -> int:
        return len(self._claims)

    def seconds_to_beat(self) -> float:
        """How long the next heartbeat can wait: a part of the ttl, and less if a lease runs out before.

        A lease may be shorter than the ttl, because someone changed the visibility timeout; it has to be named in time.
        """
        with self._mutex:
            leases = [claim for claim in self._claims.values() if claim.is_alive()]
            ttl = min(self.ttl, self._last_ttl)
            shortest = min([ttl, *(claim.lease.timeout for claim in leases)])
            due = min([self._beat_at + ttl.total_seconds() / BEATS, *map(self._due, leases)])
            self._told = max(due, self._beat_at + shortest.total_seconds() / AGAIN)
            return max(0.0, self._told - self._queue.clock.monotonic())

    def _due(self, claim: Claim) -> float:
        """When this claim must be named, so that two heartbeats more may be lost."""
        kept = min(claim.lease.timeout, self.ttl, self._last_ttl)
        return claim.deadline - kept.total_seconds() * (BEATS - 1) / BEATS

    def _is_held(self, claim: Claim) -> bool:
        return self._claims.get(claim.path) is claim

    def beat(self, stats: Mapping[str, int]) -> bool:
        """Write the heartbeat; False if it could not be written, so that the deadlines do not move.

        A claim's deadline moves only if the answer came before the old deadline: after that, the sweeper may already
        have judged the lease. A heartbeat that counts for less long than the last one, because the visibility timeout
        was lowered, may be stored without our hearing of it: then deadlines are shortened before it is sent.
        """
        ttl = self.ttl
        with self._mutex:
            self._beat_at, self._last_ttl = self._queue.clock.monotonic(), ttl
            until = self._beat_at + ttl.total_seconds()
            claims = list(self._claims.values())
            for claim in claims:
                claim.named_until = min(claim.named_until, until)
        document = Heartbeat(
            worker=self._queue.worker_id,
            started_at=self._started_at,
            ttl=ttl,
            nonce=self._queue.chance.token(),
            holds=tuple(claim.path for claim in claims if not self._run or is_partition(claim.path)),
            run=self._run,
            stats=stats,
            progress={claim.path: claim.lease.progress for claim in claims if claim.lease.progress},
        )
        if not self._write(document):
            return False
        with self._mutex:
            for claim in claims:
                if self._is_held(claim) and claim.is_alive():
                    claim.named_until = until
        return True

    def _write(self, document: Heartbeat) -> bool:
        """Replace the last heartbeat, conditionally: an old one that arrives late must not replace a newer one."""
        store, key = self._queue.store, self._queue.keys.worker(self._queue.worker_id)
        self._ours.add(document.nonce)
        try:
            written = put_surely(store, key, document.to_bytes(), if_match=self._etag, if_absent=self._etag is None)
            self._etag = written.etag
            self._ours = {document.nonce}
            return True
        except Conflict:
            self._read_again(key)
            return False
        except QueueError:
            return False

    def _read_again(self, key: str) -> None:
        """The sweeper deleted it while this worker was silent, or one without an answer was stored: continue from what
        is there at the next beat.

        Not if another writer is alive, in a process that was given the same id: each would leave out what the other
        one holds. The first one goes on, and what this one holds is kept by the leases alone.  [P2]
        """
        store = self._queue.store
        try:
            # The writers of a run take turns by design: whose it is need not be read.
            found = look_at(store, key) if self._run else open_state(store, key)
            if not (isinstance(found, Object) and self._is_anothers(found)):
                self._etag = found.etag if found else None
                return
        except QueueError:
            return
        _log.error("heartbeat not written, another worker has this id; give each one of its own: %s", key)
        with self._mutex:
            for claim in self._claims.values():
                claim.named_until = float("-inf")

    def _is_anothers(self, found: Object) -> bool:
        """Whether it is fresh, and was written by someone else."""
        try:
            heartbeat = Heartbeat.read(found)
        except (CorruptState, InvalidRequest):
            return False  # it keeps nothing
        return heartbeat.is_fresh(found.at - found.modified_at) and heartbeat.nonce not in self._ours

    def end(self) -> None:
        """The worker ends. If the heartbeat cannot be deleted, the sweeper does it later; another one's is kept."""
        etag, self._etag = self._etag, None
        if etag is None and not self._run:
            return
        try:
            key = self._queue.keys.worker(self._queue.worker_id)
            self._queue.store.delete(key, if_match=None if self._run else etag)
        except QueueError:
            return


def keep_beating(
    heartbeat: HeartbeatWriter,
    beat: Callable[[], object],
    is_over: Callable[[], bool],
    wait: Callable[[float], None] | None = None,
) -> None:
    """Beat in time until it is over; for a thread of its own, which does nothing else.

    `wait` pauses for so many seconds, or until `heartbeat.changed` is set.
    """
    while not is_over():
        seconds = heartbeat.ttl.total_seconds() / AGAIN
        try:
            if heartbeat.seconds_to_beat() <= 0.0:
                beat()
            seconds = heartbeat.seconds_to_beat()
        except Exception:
            # A thread that ends would let every held message run out, and nobody would notice.
            _log.exception("unexpected error in the heartbeat thread, continuing")
        if wait:
            wait(seconds)
        else:
            heartbeat.changed.wait(seconds)
        heartbeat.changed.clear()


class LiveOwners:
    """Which owners have a fresh heartbeat, and what it names. Read once per owner and sweep, if that is late enough."""

    def __init__(self, queue: QueueAccess) -> None:
        self._queue = queue
        #: Owner → the paths that its heartbeat named, and an instant of S3's clock before it was read.
        self._held: dict[str, tuple[frozenset[str], datetime | None]] = {}
        #: Owner → until when its heartbeat counts, if it is not written again.
        self.fresh_until: dict[str, datetime] = {}

    def keep(self, owner: str, path: str, *, over_at: datetime | None = None, now: datetime | None = None) -> bool:
        """Whether the owner is alive and holds this path.  [P2]

        `over_at` is when the lease itself ran out. A heartbeat that was read before then says nothing about the lease:
        the owner may have claimed the message later, and named it since. `now` is S3's time at the call, or before it.
        """
        names, read_at = self._held.get(owner, (frozenset(), None))
        if owner not in self._held or (over_at and (read_at is None or read_at < over_at)):
            names, answered_at = self._read(owner)
            self._held[owner] = (names, max(now, answered_at) if now and answered_at else now)
        return path in names

    def _read(self, owner: str) -> tuple[frozenset[str], datetime | None]:
        """What the owner's fresh heartbeat names, and S3's time at the answer."""
        self.fresh_until.pop(owner, None)
        try:
            found = open_state(self._queue.store, self._queue.keys.worker(owner))
        except InvalidRequest:
            return frozenset(), None  # the lease names an owner that can have no key: nobody has written its heartbeat
        if found is None:
            return frozenset(), None
        try:
            heartbeat = Heartbeat.read(found)
        except (CorruptState, InvalidRequest):
            return frozenset(), found.at
        if not heartbeat.is_fresh(found.at - found.modified_at):
            return frozenset(), found.at
        self.fresh_until[owner] = found.modified_at + heartbeat.ttl + GRAIN
        manifest = _manifest(self._queue, heartbeat.run) if heartbeat.run else None
        return frozenset(heartbeat.holds).union(manifest.paths if manifest else ()), found.at


def has_not_started(queue: QueueAccess, owner: str, path: str) -> bool:
    """Whether the owner of a message's lease that has run out is a Spark run, whose manifest shows that it had not
    started the message. One GET, if the owner has the name of a run.  [P5]
    """
    manifest = _manifest(queue, owner) if owner.startswith(RUN) else None
    return manifest is not None and manifest.has_not_started(path)


def _manifest(queue: QueueAccess, run: str) -> Manifest | None:
    # Not above: most functions never meet a Spark run, and start faster without its documents.
    from s3queue.documents.run_documents import Manifest

    try:
        found = open_state(queue.store, queue.keys.manifest(run))
        return Manifest.read(found) if found else None
    except (CorruptState, InvalidRequest):
        return None
