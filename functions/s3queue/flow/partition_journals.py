"""Whether a message of a held partition was finished before: what a holder asks its partition's journals.  [P4] [P9]

A message that another one sent, or that has a dedup id, may be PUT again after it was finished. Its PUT succeeds only
once the first one's message is deleted, and that is after its journal was written: so a journal that is younger than
the message tells nothing, and one LIST answers for all messages that are older than it. If someone deletes the first
one by hand before that, whoever writes the journal deletes the second one: see `Clearing`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from s3queue.documents.lease import GRAIN
from s3queue.documents.message import ONCE, Message
from s3queue.documents.once import ended_since
from s3queue.documents.record import Record
from s3queue.encoding import EARLIEST
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.journal import find_outcome, list_journals, outcome_in, records_in
from s3queue.store import ObjectInfo

#: Journals whose names are kept in memory: about 20 KB each.
MOST_KEPT = 1000


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
