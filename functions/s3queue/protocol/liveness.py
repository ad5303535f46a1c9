"""HeartbeatWriter and LiveOwners: one small object keeps every lease of a long-lived worker alive.  [P2]

A lease is alive while it is fresh itself, or while a fresh heartbeat of its owner names it. So one PUT keeps a thousand
leases, and a lease that its worker forgot still runs out.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta

from s3queue.documents.heartbeat import Heartbeat
from s3queue.documents.lease import GRAIN
from s3queue.encoding import load
from s3queue.errors import Conflict, CorruptState, QueueError
from s3queue.store import put_surely

from .access import QueueAccess
from .claim import Claim


class HeartbeatWriter:
    """Writes the heartbeat of one worker, and moves the deadlines of the claims that the worker holds.

    With a `run`, the heartbeat names the run's manifest instead of the paths: hold only what the manifest names.
    """

    def __init__(self, queue: QueueAccess, ttl: timedelta, *, run: str = "") -> None:
        self._queue = queue
        self._ttl = ttl
        self._run = run
        self._started_at = queue.clock.now()
        self._claims: dict[str, Claim] = {}
        self._etag: str | None = None
        self._mutex = threading.Lock()

    def hold(self, claim: Claim) -> None:
        with self._mutex:
            self._claims[claim.path] = claim

    def drop(self, claim: Claim) -> None:
        with self._mutex:
            # The name may have been PUT again, and another thread may hold it by now.
            if self._claims.get(claim.path) is claim:
                del self._claims[claim.path]

    def held(self) -> list[Claim]:
        """The claims that are held now."""
        with self._mutex:
            return list(self._claims.values())

    def __len__(self) -> int:
        return len(self._claims)

    def beat(self, stats: Mapping[str, int]) -> bool:
        """Write the heartbeat; False if it could not be written, so that the deadlines do not move.

        A claim's deadline moves only if the answer came before the old deadline: after that, the sweeper may already
        have judged the lease.
        """
        held = self.held()
        said = {claim.path: claim.lease.progress for claim in held if claim.lease.progress}
        document = Heartbeat(
            worker=self._queue.worker_id,
            started_at=self._started_at,
            ttl=self._ttl,
            nonce=self._queue.chance.token(),
            holds=() if self._run else tuple(claim.path for claim in held),
            run=self._run,
            stats=stats,
            progress={path: progress for path, progress in said.items() if progress},
        )
        before = self._queue.clock.monotonic()
        if not self._write(document):
            return False
        for claim in held:
            if claim.is_alive():
                claim.deadline = max(claim.deadline, before + self._ttl.total_seconds())
        return True

    def _write(self, document: Heartbeat) -> bool:
        """Replace the last heartbeat, conditionally: an old one that arrives late must not replace a newer one."""
        store, key = self._queue.store, self._queue.keys.worker(self._queue.worker_id)
        try:
            written = put_surely(store, key, document.to_bytes(), if_match=self._etag, if_absent=self._etag is None)
            self._etag = written.etag
            return True
        except Conflict:
            # The sweeper deleted it while this worker was silent, or someone overwrote it: continue from what is there
            # at the next beat.
            found = store.head(key)
            self._etag = found.etag if found else None
            return False
        except QueueError:
            return False

    def end(self) -> None:
        """The worker ends. If the heartbeat cannot be deleted, the sweeper does it later."""
        self._etag = None
        try:
            self._queue.store.delete(self._queue.keys.worker(self._queue.worker_id))
        except QueueError:
            return


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
        found = self._queue.store.open(self._queue.keys.worker(owner))
        if found is None:
            return frozenset(), None
        try:
            heartbeat = Heartbeat.from_bytes(found.read(), found.key)
        except CorruptState:
            return frozenset(), found.at
        if not heartbeat.is_fresh(found.at - found.modified_at):
            return frozenset(), found.at
        self.fresh_until[owner] = found.modified_at + heartbeat.ttl + GRAIN
        run = self._manifest(heartbeat.run) if heartbeat.run else frozenset()
        return frozenset(heartbeat.holds) | run, found.at

    def _manifest(self, run: str) -> frozenset[str]:
        found = self._queue.store.open(self._queue.keys.manifest(run))
        try:
            return frozenset(load(found.read(), found.key).get("paths", ())) if found else frozenset()
        except (CorruptState, TypeError):
            return frozenset()
