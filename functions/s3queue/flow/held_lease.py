"""HeldLease: the lease of a partition, as the worker that holds it writes it.  [P9]"""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

from s3queue.documents.partition import PartitionLease, StoredPartition, Waiting
from s3queue.documents.record import Record
from s3queue.encoding import EARLIEST
from s3queue.errors import Conflict, LeaseLost
from s3queue.paths import partition_path
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.claim import Claim
from s3queue.store import delete_unique, put_surely


class HeldLease:
    """Every write of it is conditional on the last one, moves the deadline of `claim`, and raises LeaseLost if another
    worker has the partition. Safe for threads.
    """

    def __init__(self, queue: QueueAccess, partition: str, claim: Claim, stored: StoredPartition | None) -> None:
        self._queue = queue
        self._name = f"{queue.name}/{partition}"
        self._key = queue.keys.lease(partition_path(partition))
        self._claim = claim
        #: Of the document that the next write replaces; None: there is none.
        self._etag = stored.etag if stored else None
        #: As it was last written, or as the first write finds what waits, and the journal of what was committed.
        self.document = PartitionLease(
            state="processing",
            owner=queue.worker_id,
            timeout=self._timeout,
            waiting=stored.lease.waiting if stored else {},
            journal=stored.lease.journal if stored else "",
        )
        self._mutex = threading.Lock()

    @property
    def _timeout(self) -> timedelta:
        return self._queue.settings.visibility_timeout

    def commit(
        self, *, taken: dict[str, str], ended: tuple[Record, ...], journal: str, waiting: dict[str, Waiting]
    ) -> None:
        """From now on these outcomes count, and these messages (path → ETag) are this worker's."""
        self._write(taken=taken, ended=ended, journal=journal, waiting=waiting)

    def wait(self, within: timedelta) -> None:
        """The partition is this worker's, which takes no message yet, for so much longer. All that waits stays: what is
        gone of it has no outcome yet.  [P1]
        """
        self._write(self._timeout + within, taken={}, ended=(), journal="")

    def open(self, waiting: dict[str, Waiting]) -> Waiting | None:
        """Let others have the partition, in which these messages wait; returns the one that is tried next."""
        self._write(state="open", taken={}, ended=(), journal="", waiting=waiting)
        return self.document.next_waiting

    def renew(self, timeout: timedelta | None = None) -> None:
        """Keep the partition for another `timeout` from now, and leave the rest of the lease as it was."""
        self._write(timeout)

    def keep(self) -> None:
        """Renew it if much of its time is over: many sends or letters may outlast it."""
        self._claim.check_alive()
        if self._claim.remaining() < self.document.timeout / 2:
            self.renew()

    def delete(self) -> None:
        if self._etag:
            delete_unique(self._queue.store, self._key, if_match=self._etag)

    def _write(self, timeout: timedelta | None = None, **changes: Any) -> None:
        with self._mutex:
            if self.document.nonce:
                self._claim.check_alive()
            nonce = self._queue.chance.token()
            lease = replace(self.document, nonce=nonce, timeout=timeout or self._timeout, **changes)
            before = self._queue.clock.monotonic()
            until = before + lease.timeout.total_seconds()
            etag = self._etag
            # It may be stored long before its answer comes: what it gives less than the last one is gone by then.
            self._claim.leased_until = min(self._claim.leased_until, until)
            try:
                written = put_surely(
                    self._queue.store, self._key, lease.to_bytes(), if_match=etag, if_absent=etag is None
                )
            except Conflict as conflict:
                self._claim.end()
                raise LeaseLost(f"{self._name}: {conflict}") from conflict
            self.document, self._etag = lease, written.etag
            if self._claim.claimed_at == EARLIEST:
                self._claim.claimed_at, self._claim.since = written.at, before
            self._claim.lease = replace(self._claim.lease, timeout=lease.timeout)
            # Its age counts from before the PUT.
            self._claim.leased_until = until
