"""Removal: what an operator deletes by hand: messages that are not processed, and outcomes past their retention."""

from __future__ import annotations

from dataclasses import dataclass

from s3queue.errors import CorruptState
from s3queue.store import ObjectInfo, delete_seen, delete_unique, listing

from .access import QueueAccess


@dataclass(frozen=True, slots=True)
class Removal:
    """Deletes objects of one queue, each only if it is still the one that was listed."""

    queue: QueueAccess

    def cleanup(self) -> int:
        """One LIST per 1,000 objects, and a conditional DELETE for each that is too old."""
        deleted = 0
        settings = self.queue.settings
        for kind, retention in {"records": settings.record_retention, "dead": settings.dead_retention}.items():
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

    def _delete(self, entry: ObjectInfo) -> bool:
        # If it was replaced since the LIST, it is a younger one's: leave it.
        return delete_seen(self.queue.store, entry.key, etag=entry.etag, modified_at=entry.modified_at)
