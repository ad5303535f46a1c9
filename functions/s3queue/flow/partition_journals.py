"""Whether a message of a held partition was finished before: what a holder asks its partition's journals.  [P4] [P9]

A message that another one sent, or that has a dedup id, may be PUT again after it was finished. Its PUT succeeds only
once the first one's message is deleted, and that is after its journal was written: so a journal that is younger than
the message tells nothing, and one LIST answers for all messages that are older than it. If someone deletes the first
one by hand before that, whoever writes the journal deletes the second one: see `Clearing`.

A message that waits, and is gone, may have its outcome, too: the lease that lets it wait may have come late.  [P3]
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from s3queue.documents.lease import GRAIN
from s3queue.documents.message import ONCE, Message
from s3queue.documents.once import ended_since
from s3queue.documents.record import Record
from s3queue.encoding import EARLIEST
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.journal import find_outcome, list_journals, outcome_in, records_in
from s3queue.protocol.lease_protocol import is_outcome_of
from s3queue.store import ObjectInfo

#: Journals whose names are kept in memory: about 20 KB each.
MOST_KEPT = 1000
#: Journals that are read for the messages that are gone, the newest ones: half a minute even if S3 is slow, which is
#: half of the shortest life of a function. Nothing of it is kept if the process ends.
MOST_READ = 500
#: Nor are any that are older than the lease by more than this. S3 refuses a PUT that comes 15 minutes late.
LATE_WITHIN = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _Listed:
    """Journals, S3's time at their LIST, and what that began with."""

    journals: list[ObjectInfo]
    at: datetime
    since: datetime | None

    def begins_before(self, since: datetime | None) -> bool:
        return self.since is None or (since is not None and self.since <= since)


@dataclass(slots=True)
class HeldJournals:
    """The journals of one partition, for its holder, whose lease lets nobody else write any.

    Safe for threads: each goes by one `_Listed`, whatever the others list meanwhile.
    """

    queue: QueueAccess
    partition: str
    #: Called before a journal is read: there may be so many that reading them outlasts the lease, again and again.
    keep: Callable[[], None]
    _listed: _Listed = _Listed([], EARLIEST, None)
    _kept: dict[str, frozenset[str]] = field(default_factory=dict)

    def find(self, message: Message) -> Record | None:
        """The outcome of an earlier PUT of this message; None if there is none. Often no request: see above."""
        put_id = message.put_id
        if not put_id.startswith(ONCE):
            # A replay has a name of its own each time: its first PUT may be finished after the second one came.
            return find_outcome(self.queue, message.path, put_id, keep=self.keep)
        since, until = ended_since(put_id), message.enqueued_at + GRAIN
        listed = self._listed
        if until > listed.at or not listed.begins_before(since):
            at, journals = list_journals(self.queue, self.partition, since)
            listed = self._listed = _Listed(journals, at, since)
        for info in reversed(listed.journals):
            if info.modified_at > until or (since is not None and info.modified_at < since):
                continue
            if not self._names(info.key).isdisjoint((message.path, put_id)):
                return outcome_in(records_in(self.queue, info.key), message.path, put_id)
        return None

    def with_outcome(self, gone: Collection[Record], written_at: datetime, held_at: datetime) -> set[str]:
        """The paths of those that have an outcome in a journal. They wait in a lease that was written then, and taken
        at `held_at`: its holder knows what has ended since. Usually one LIST in a hold, and each journal is read once.
        """
        generations = {record.path: record.generation for record in gone}
        since = {record.path: max(outcome_since(record), written_at - LATE_WITHIN) for record in gone}
        first, listed = min(since.values()), self._listed
        if listed.at < held_at or not listed.begins_before(first):
            at, journals = list_journals(self.queue, self.partition, first)
            listed = self._listed = _Listed(journals, at, first)
        former = [info for info in listed.journals if info.modified_at <= held_at + GRAIN]
        ended = set[str]()
        for info in reversed(former[-MOST_READ:]):
            asked = {path for path, after in since.items() if path not in ended and info.modified_at >= after}
            if asked and not asked.isdisjoint(self._names(info.key)):
                found = (one for one in records_in(self.queue, info.key) if one.path in asked)
                ended |= {one.path for one in found if is_outcome_of(one, generations[one.path])}
        return ended

    def _names(self, key: str) -> frozenset[str]:
        """The paths and put ids of a journal, which never changes: it is read once."""
        names = self._kept.get(key)
        if names is None:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self.keep()
            records = records_in(self.queue, key)
            names = frozenset(name for one in records for name in (one.path, one.put_id) if name)
            self._kept[key] = names
        return names


def outcome_since(gone: Record) -> datetime:
    """No journal from before this has the outcome of a message that is gone, and of which its lease knows no more than
    these attempts: its last one began, by S3's clock, when it was still there.

    That does not hold of one that was charged when a lease had run out: it has the date of that lease, which may itself
    have come late, when the message had its outcome.  [P3] Nor of when an attempt ended: by then another holder may
    have finished it, if its GET had no answer.
    """
    began = [one.started_at for one in gone.attempts if one.failure and one.failure.type != "LeaseExpired"]
    return max([gone.generation.put_at, *(at - GRAIN for at in began)])
