"""Removal: what an operator deletes: messages that are not processed, dead letters, outcomes past their retention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from s3queue.documents.lease import GRAIN, NEVER, Lease, StoredLease
from s3queue.documents.message import Generation
from s3queue.documents.partition import PartitionLease, Waiting
from s3queue.documents.sends import OUTBOX_KEPT
from s3queue.errors import Conflict, CorruptState, Unavailable
from s3queue.paths import partition_of, partition_path
from s3queue.store import UNKNOWN_TRIES, ObjectInfo, delete_seen, delete_unique, listing, look_at, put_surely

from .access import QueueAccess
from .partition_status import read_partition

#: The answer to a HEAD counts for this long.
HEAD_VALID_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Removal:
    """Deletes objects of one queue, each only if it is still the one that was listed."""

    queue: QueueAccess

    def cleanup(self) -> int:
        """One LIST per 1,000 objects, and a HEAD and a DELETE for each that is too old."""
        return sum(map(self.delete_expired, self.expired()))

    def retentions(self) -> dict[str, timedelta]:
        """How long each kind of object is kept that somebody else may have to delete; in the order of `expired`."""
        settings = self.queue.settings
        return dict.fromkeys(("records", "done", "dedup"), settings.record_retention) | {
            "dead": settings.dead_retention,
            # What neither a record nor the lease of a batch names: a batch may wait for its next attempt for long.
            "outbox": settings.record_retention + OUTBOX_KEPT,
        }

    def expired(self) -> Iterator[ObjectInfo]:
        """What is past its retention. One LIST per 1,000 objects."""
        for kind, retention in self.retentions().items():
            for page in listing(self.queue.store, self.queue.keys.prefix(kind)):
                yield from (entry for entry in page.objects if page.at - entry.modified_at > retention)

    def delete_expired(self, entry: ObjectInfo) -> bool:
        """Delete what `expired` has shown; False if it was replaced or deleted since.

        A record that was renewed, and the letter of a message that was replayed and has died again, have the ETag that
        was listed: their date tells them apart. An operator may have thought about the question for long.
        """
        found = look_at(self.queue.store, entry.key)
        return found is not None and found.modified_at == entry.modified_at and self._delete(entry)

    def purge(self) -> int:
        """Everything that `purge_message` deletes."""
        deleted = 0
        for kind in ("messages", "delayed"):
            for page in listing(self.queue.store, self.queue.keys.prefix(kind)):
                deleted += sum(self.purge_message(entry) for entry in page.objects)
        return deleted

    def purge_message(self, entry: ObjectInfo) -> bool:
        """Under a lease of the own if the message waits for a retry: nobody runs it, and a crash changes nothing."""
        path = self.queue.keys.path(entry.key)
        if not path:
            return self._delete(entry)
        before = self.queue.clock.monotonic()
        try:
            if partition_of(path):
                return self._purge_in_partition(path, entry, before)
            held = self.queue.read_lease(path)
            if held is None:
                return self._delete(entry)
            if held.lease.state != "waiting":
                return False
            return self._purge_waiting(held, entry, before)
        except (CorruptState, Conflict):
            return False

    def _purge_waiting(self, held: StoredLease, entry: ObjectInfo, before: float) -> bool:
        """As *Cancel*, without a record: the lease goes last. It keeps the attempts, and the next claim looks for an
        outcome; should this end in between, the sweeper gives the message back as it was.  [P4] [P5] [P6]
        """
        taken = replace(
            _marked(held.lease, entry),
            state="processing",
            attempt=held.lease.attempt + 1,
            owner=self.queue.worker_id,
            timeout=self.queue.settings.visibility_timeout,
            claimed_at=None,
            retry_at=None,
            fence="",
        )
        etag = self._put_lease(held.key, taken, held.etag)
        if self._delete_until(entry, before):
            delete_unique(self.queue.store, held.key, if_match=etag)
            return True
        self._put_lease(held.key, held.lease, etag)
        return False

    def _purge_in_partition(self, path: str, entry: ObjectInfo, before: float) -> bool:
        """Not while its partition is held: then it may be taken at any moment.  [P9]

        What waits is not due before this is over, and what is known of it goes last: a crash changes no more than
        that. One that is dead, and lies there because nobody can read it, is nobody's anyway.
        """
        held = read_partition(self.queue, partition_of(path))
        if held and held.lease.state == "processing":
            return False
        known = held.lease.waiting.get(path) if held else None
        if held is None or known is None:
            return self._delete(entry)
        if known.retry_at == NEVER:
            marked = known
        else:
            over_at = held.read_at + self.queue.settings.visibility_timeout + GRAIN
            marked = replace(known, lease=replace(_marked(known.lease, entry), retry_at=max(known.retry_at, over_at)))
            lease = replace(held.lease, waiting={**held.lease.waiting, path: marked})
            self._put_lease(self._partition_key(path), lease, held.etag)
        is_deleted = self._delete_until(entry, before)
        self._settle(path, marked, None if is_deleted else known)
        return is_deleted

    def _settle(self, path: str, marked: Waiting, known: Waiting | None) -> None:
        """Take back what was marked in the lease of a partition, which others may have written since. Whoever holds it
        by now finds out for himself.
        """
        for _ in range(UNKNOWN_TRIES):
            held = read_partition(self.queue, partition_of(path))
            found = held.lease.waiting.get(path) if held and held.lease.state == "open" else None
            if held is None or found is None or _purged(found) != _purged(marked):
                return
            waiting = {one: kept for one, kept in held.lease.waiting.items() if one != path}
            waiting |= {path: known} if known else {}
            key = self._partition_key(path)
            with suppress(Conflict):
                if waiting or held.lease.ended:
                    self._put_lease(key, replace(held.lease, waiting=waiting), held.etag)
                elif not delete_unique(self.queue.store, key, if_match=held.etag):
                    continue
                return

    def _partition_key(self, path: str) -> str:
        return self.queue.keys.lease(partition_path(partition_of(path)))

    def _put_lease(self, key: str, lease: Lease | PartitionLease, if_match: str) -> str:
        """The ETag of what was written. Raises Conflict if someone else was first."""
        body = replace(lease, nonce=self.queue.chance.token()).to_bytes()
        return put_surely(self.queue.store, key, body, if_match=if_match).etag

    def _delete_until(self, entry: ObjectInfo, before: float) -> bool:
        """Delete it while the lease that was read after `before` keeps others off. Later, it may be somebody's."""
        until = before + self.queue.settings.visibility_timeout.total_seconds()

        def is_alive() -> bool:
            return self.queue.clock.monotonic() < until

        return is_alive() and delete_seen(
            self.queue.store, entry.key, etag=entry.etag, modified_at=entry.modified_at, is_alive=is_alive
        )

    def _delete(self, entry: ObjectInfo) -> bool:
        # If it was replaced since the LIST, it is a younger one's: leave it.
        return delete_seen(self.queue.store, entry.key, etag=entry.etag, modified_at=entry.modified_at)


def _marked(lease: Lease, entry: ObjectInfo) -> Lease:
    """As a canceller's: that its message is gone is no death. It names what is deleted, so that nothing that is PUT
    there later takes over its attempts, its lines and what they have sent.  [P5] [P7]
    """
    if lease.leased_etag not in ("", entry.etag):
        return replace(lease, is_cancelling=True)  # attempts of another message, which began anew
    return replace(lease, generation=Generation(etag=entry.etag, put_at=entry.modified_at), is_cancelling=True)


def _purged(waiting: Waiting) -> tuple[Generation | None, bool]:
    return waiting.lease.generation, waiting.lease.is_cancelling


def delete_letter(queue: QueueAccess, letter: ObjectInfo) -> bool:
    """Delete the letter that was read; False if it is gone, or the message has died again: same ETag.  [P1]

    HEAD and DELETE are two requests. If the HEAD took too long, it is repeated; after several tries the letter is kept.
    """
    unknown: Unavailable | None = None
    for _ in range(UNKNOWN_TRIES):
        before = queue.clock.monotonic()
        found = queue.store.head(letter.key)
        if found is None or (found.modified_at, found.metadata) != (letter.modified_at, letter.metadata):
            return found is None and unknown is not None
        if queue.clock.monotonic() - before >= HEAD_VALID_SECONDS:
            continue
        try:
            queue.store.delete(letter.key, if_match=letter.etag)
            return True
        except Conflict:
            return False
        except Unavailable as error:
            unknown = error
    if unknown:
        raise unknown
    return False
