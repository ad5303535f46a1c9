"""Rejected: rows of a bulk run that cannot be messages, kept with where they come from and why.

    {queue}/bulk/{run}/rejected/00042-00000.ndjson     {"source": …, "row": 7, "reason": "not JSON", "body": …}

`source` and `row` are the object or file and the row in it, counted from 1, as far as the reader knows them. A body
that is not UTF-8 is `body_base64`. A bucket's rows are cut by their bodies alone, so a task that is repeated writes the
same objects once more, and none is left over. Nothing here is ever enqueued; the bucket's lifecycle deletes it.
`s3queue bulk rejected` shows it.
"""

from __future__ import annotations

from collections import Counter

from s3queue.documents.bulk_run import RejectedRow
from s3queue.keys import Keys
from s3queue.store import ObjectStore

from .plan import Plan

#: Bodies of one object, unless a single one is larger.
REJECTED_BYTES = 4 * 1024 * 1024
EXAMPLE_CHARACTERS = 200


class RejectedRows:
    """Collects the rejected rows of one bucket; `close` returns how many there were for which reason."""

    def __init__(self, store: ObjectStore, plan: Plan, bucket: int) -> None:
        self._store = store
        self._plan = plan
        self._bucket = bucket
        self._sequence = 0
        self._held: list[bytes] = []
        self._size = 0
        self._counts: Counter[str] = Counter()
        #: The first of them, for the report.
        self.example: str | None = None

    def add(self, reason: str, line: bytes, source: str | None, row: int | None) -> None:
        body = line or b""
        if self._held and self._size + len(body) > REJECTED_BYTES:
            self._put()
        self._held.append(RejectedRow(reason=reason, body=body, source=source, row=row).to_bytes())
        self._size += len(body)
        self._counts[reason] += 1
        if self.example is None:
            self.example = f"{_place(source, row)}{reason}: {body[:EXAMPLE_CHARACTERS].decode('utf-8', 'replace')}"

    def close(self) -> dict[str, int]:
        if self._held:
            self._put()
        return dict(sorted(self._counts.items()))

    def _put(self) -> None:
        key = self._plan.keys.bulk(self._plan.run, f"rejected/{self._bucket:05d}-{self._sequence:05d}.ndjson")
        # Plain: whoever repeats it has the same rows.
        self._store.put(key, b"".join(self._held), content_type="application/x-ndjson")
        self._sequence += 1
        self._held, self._size = [], 0


def rejected_prefix(queue: str, run: str) -> str:
    return Keys(queue).bulk(run, "rejected/")


def _place(source: str | None, row: int | None) -> str:
    if source is None:
        return ""
    return f"{source}, row {row}: " if row is not None else f"{source}: "
