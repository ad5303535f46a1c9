"""What follows from a commit of a partition: sends, dead letters, the journal, the deletions.  [P9]

Every step may be repeated, by anyone: whoever takes the lease over begins with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from s3queue.documents.lease import NEVER, Lease
from s3queue.documents.message import MOVED, ONCE, Generation
from s3queue.documents.once import was_finished
from s3queue.documents.partition import Waiting, journal_bytes
from s3queue.documents.record import Record
from s3queue.errors import AccessDenied, Conflict
from s3queue.paths import partition_path
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.claim import Claim
from s3queue.protocol.outcomes import Outcomes
from s3queue.store import ObjectInfo, delete_all_seen, delete_seen, listing, put_surely


@dataclass(slots=True)
class Clearing:
    """Finishes the messages of one partition whose outcomes are committed."""

    queue: QueueAccess
    outcomes: Outcomes
    partition: str
    #: The claim of the whole partition: nothing is deleted once it is over.
    claim: Claim
    #: Called before each step that may take long: it renews the lease, or raises LeaseLost.
    keep: Callable[[], None]
    #: Path → the message as this holder read it, with its metadata: a dead letter has that, too.
    read: dict[str, ObjectInfo] = field(default_factory=dict)

    def journal_name(self, ended: tuple[Record, ...], at: datetime | None = None) -> str:
        """Greater than all before it of this process: S3's clock, which every hold begins with, has whole seconds.

        In the order of time, which is `at` before the lease is written; and a LIST of journals shows how many outcomes
        there are.
        """
        if not ended:
            return ""
        named_at = self.queue.journaled_at.next(at or self.claim.now())
        return f"{self.queue.chance.name(named_at)}-{len(ended)}"

    def clear(self, ended: tuple[Record, ...], journal: str, repeated: Iterable[ObjectInfo] = ()) -> list[Waiting]:
        """Do what the outcomes ask for, then delete their messages; `repeated` are deleted without one.

        Returns the dead messages that nobody can read: they stay where they are, and are never taken again.

        Raises:
            LeaseLost: the partition is another worker's by now, which goes on.
            Unavailable, NotSent, AccessDenied: something is left to do; whoever holds the partition next tries again.
        """
        for record in ended:
            if record.has_sends:
                self.queue.perform(record, self.keep)
        gone, parked = list(repeated), list[Waiting]()
        present = self._present(ended)
        for record in ended:
            info = self.read.get(record.path) or present.get(record.path)
            if info and (record.outcome != "completed" or record.keeps_payload):
                self.keep()
                info = self._describe(record, info)
                if info and not self._move(record, info):
                    parked.append(self._parked(record))
                    info = None
            if info:
                gone.append(info)
        if any(self._is_recorded(record) for record in ended):
            with suppress(Conflict):
                # The same bytes, whoever writes it: one that is there already is this one.
                key = self.queue.keys.journal(self.partition, journal)
                put_surely(self.queue.store, key, journal_bytes(ended), if_absent=True)
        deleted = {info.key for info in gone}
        if gone:
            self.claim.check_alive()
            deleted -= delete_all_seen(self.queue.store, gone, is_alive=self.claim.is_alive)
        self._delete_repetitions(ended, deleted)
        for record in ended:
            self.read.pop(record.path, None)
        return parked

    def _is_recorded(self, record: Record) -> bool:
        is_once = record.put_id.startswith((ONCE, MOVED))
        return self.queue.settings.history or is_once or record.outcome != "completed"

    def _present(self, ended: tuple[Record, ...]) -> dict[str, ObjectInfo]:
        """Path → the message of a committed outcome, if it still lies there: for what another holder committed.

        Looked at under the own lease, which keeps that holder from deleting: equal bytes that were PUT after it had
        deleted the message are another message.  [P1]
        """
        unknown = {self.queue.keys.message(one.path): one for one in ended if one.path not in self.read}
        listed = ((unknown[info.key], info) for info in self._listed(unknown))
        return {record.path: info for record, info in listed if _generation(info) == record.generation}

    def _listed(self, keys: Collection[str]) -> Iterator[ObjectInfo]:
        """What lies there of these. Usually one LIST; none for no keys."""
        if not keys:
            return
        prefix = self.queue.keys.message(partition_path(self.partition))
        # One character less than the first key, so that it is listed, too.
        for page in listing(self.queue.store, prefix, after=min(keys)[:-1]):
            yield from (info for info in page.objects if info.key in keys)
            if page.next_after is None or page.next_after > max(keys):
                return

    def _delete_repetitions(self, ended: tuple[Record, ...], deleted: Collection[str]) -> None:
        """Delete what was PUT in the place of a message of which there is only one before its outcome was in a journal.

        It takes someone who deletes that message by hand while it is at work. What is PUT from now on is found by the
        date of the journal, and this would not be: see `HeldJournals`.  [P4]
        """
        once = {self.queue.keys.message(one.path): one for one in ended if one.put_id.startswith(ONCE)}
        left = {key: record for key, record in once.items() if key not in deleted}
        for info in self._listed(left):
            record = left[info.key]
            self.keep()
            found = self._describe(record, info) if _generation(info) != record.generation else None
            if found and was_finished(record.path, found.metadata, record):
                key, etag, modified_at = found.key, found.etag, found.modified_at
                delete_seen(self.queue.store, key, etag=etag, modified_at=modified_at, is_alive=self.claim.is_alive)

    def _describe(self, record: Record, info: ObjectInfo) -> ObjectInfo | None:
        """The message with its metadata, if it can be read: a LIST does not show that; None if it is gone."""
        if self.read.get(record.path) is info:
            return info
        with suppress(AccessDenied):
            described = self.queue.store.head(info.key)
            return described if described and described.etag == info.etag else None
        return info

    def _move(self, record: Record, info: ObjectInfo) -> bool:
        """Write the dead letter, or keep the payload; False if the message cannot be read, and must stay."""
        if record.outcome == "dead" and self.queue.settings.dead_letters:
            return self.outcomes.move_to_dead(record, info, None)
        if record.outcome == "completed":
            from s3queue.protocol.keeping import keep_payload

            keep_payload(self.queue.store, self.queue.keys, record, info)
        return True

    def _parked(self, record: Record) -> Waiting:
        lease = Lease(
            state="waiting",
            attempt=record.attempt,
            owner=record.worker,
            nonce="",
            timeout=timedelta(),
            generation=record.generation,
            retry_at=NEVER,
            failure=record.failure,
        )
        return Waiting(record.path, lease)


def _generation(info: ObjectInfo) -> Generation:
    return Generation(etag=info.etag, put_at=info.modified_at)
