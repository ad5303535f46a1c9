"""The journals of partitions, as the judge sees them: what the lease has said, for longer.  [P1] [P3] [P9]"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from s3queue.documents.partition import read_journal
from s3queue.documents.record import Record
from s3queue.paths import partition_of
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.journal import find_outcome
from s3queue.store import Object

from .ledger import Life

if TYPE_CHECKING:
    from .judge import Judge


class Journals:
    """Which outcomes are in a journal, and which have to be."""

    def __init__(self, judge: Judge, outcomes: Mapping[Life, int]) -> None:
        self._judge = judge
        self._ledger = judge.ledger
        #: Life → how many outcomes of it were committed with a lease.
        self._outcomes = outcomes
        self._journaled: set[tuple[str, str, Any]] = set()

    def write(self, key: str, before: Any, after: Any) -> None:
        """[P3] A journal is written once, and says what a lease has said."""
        if after is None or (before and before.body != after.body):
            self._judge.broken("P3", f"the journal {key} was {'overwritten' if after else 'deleted'}")
            return
        for record in read_journal(object_of(after, key)):
            life = self._ledger.find(record.path, record.generation.etag, record.generation.put_at)
            if life is None or life.record is None or not self._outcomes.get(life):
                self._judge.broken("P3", f"{key} says that {record.path} is {record.outcome}, and no lease said so")
            self._journaled.add((record.path, record.generation.etag, record.generation.put_at))

    def lacks(self, record: Record) -> bool:
        """Whether an outcome has to be in a journal, and is in none."""
        return self._judge.history.keeps(record) and not self._has(record)

    def _has(self, record: Record) -> bool:
        return (record.path, record.generation.etag, record.generation.put_at) in self._journaled

    def deleted(self, life: Life) -> None:
        """[P1] A message goes only after its outcome is in a journal: the lease forgets it next."""
        if life.record and self.lacks(life.record):
            self._judge.broken("P1", f"{life.path} was deleted, and its outcome is in no journal")

    def check_quiet(self) -> None:
        """[P1] Whoever asks for the outcome of a message is told the last one."""
        judge = self._judge
        queue = QueueAccess(store=judge.world.store, name=judge.root.rstrip("/"))
        for path, lives in self._ledger.lives.items():
            ended = [life for life in lives if life in self._outcomes]
            if not partition_of(path) or not ended:
                continue
            last = max(ended, key=lambda life: life.recorded_at)
            if not judge.history.keeps_records and last.record and not self._has(last.record):
                continue
            found = find_outcome(queue, path)
            if found is None:
                judge.broken("P1", f"{path} was ended, and its outcome cannot be found")
            elif last.record and found.generation != last.record.generation:
                judge.broken("P3", f"{path}: the outcome of an earlier generation is told as its last one")


def object_of(stored: Any, key: str) -> Object:
    """What lies in the bucket, as a GET shows it."""
    return Object(
        key=key,
        etag=stored.etag,
        size=len(stored.body),
        modified_at=stored.modified_at,
        at=stored.modified_at,
        stream=BytesIO(stored.body),
    )
