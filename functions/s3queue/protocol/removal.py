"""Removal: what an operator deletes: messages that are not processed, dead letters, outcomes past their retention."""

from __future__ import annotations

from dataclasses import dataclass, replace

from s3queue.documents.sends import OUTBOX_KEPT
from s3queue.errors import Conflict, CorruptState, Unavailable
from s3queue.paths import partition_of, partition_path
from s3queue.store import UNKNOWN_TRIES, ObjectInfo, delete_seen, delete_unique, listing, put_surely

from .access import QueueAccess

#: The answer to a HEAD counts for this long.
HEAD_VALID_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Removal:
    """Deletes objects of one queue, each only if it is still the one that was listed."""

    queue: QueueAccess

    def cleanup(self) -> int:
        """One LIST per 1,000 objects, and a conditional DELETE for each that is too old."""
        deleted = 0
        settings = self.queue.settings
        kept = dict.fromkeys(("records", "done", "dedup"), settings.record_retention) | {
            "dead": settings.dead_retention,
            # What neither a record nor the lease of a batch names: a batch may wait for its next attempt for long.
            "outbox": settings.record_retention + OUTBOX_KEPT,
        }
        for kind, retention in kept.items():
            for page in listing(self.queue.store, self.queue.keys.prefix(kind)):
                for entry in page.objects:
                    if page.at - entry.modified_at > retention:
                        # If it was replaced since the LIST, it is a younger one's: leave it.
                        deleted += delete_seen(
                            self.queue.store, entry.key, etag=entry.etag, modified_at=entry.modified_at
                        )
        return deleted

    def purge(self) -> int:
        """Everything that `purge_message` deletes."""
        deleted = 0
        for kind in ("messages", "delayed"):
            for page in listing(self.queue.store, self.queue.keys.prefix(kind)):
                deleted += sum(self.purge_message(entry) for entry in page.objects)
        return deleted

    def purge_message(self, entry: ObjectInfo) -> bool:
        """The lease first, if the message waits for a retry: a worker that claims it meanwhile keeps the message."""
        path = self.queue.keys.path(entry.key)
        if path and partition_of(path):
            return self._is_free_in_partition(path, entry) and self._delete(entry)
        if path:
            try:
                held = self.queue.read_lease(path)
            except CorruptState:
                return False
            if held and held.lease.state != "waiting":
                return False
            if held and not delete_unique(self.queue.store, held.key, if_match=held.etag):
                return False
        return self._delete(entry)

    def _is_free_in_partition(self, path: str, entry: ObjectInfo) -> bool:
        """Whether nobody runs it: while its partition is held, it may be taken at any moment.  [P9]"""
        from .partition_status import read_partition

        try:
            held = read_partition(self.queue, partition_of(path))
            if held is None:
                return True
            if held.lease.state == "processing":
                return False
            if path in held.lease.waiting:
                # Not by its message's deletion, which whoever holds the partition next would record as a death.
                waiting = {one: kept for one, kept in held.lease.waiting.items() if one != path}
                lease = replace(held.lease, waiting=waiting, nonce=self.queue.chance.token())
                key = self.queue.keys.lease(partition_path(partition_of(path)))
                put_surely(self.queue.store, key, lease.to_bytes(), if_match=held.etag)
        except (CorruptState, Conflict):
            return False
        return True

    def _delete(self, entry: ObjectInfo) -> bool:
        # If it was replaced since the LIST, it is a younger one's: leave it.
        return delete_seen(self.queue.store, entry.key, etag=entry.etag, modified_at=entry.modified_at)


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
