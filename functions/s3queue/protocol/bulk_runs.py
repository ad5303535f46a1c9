"""Bulk runs of a queue, for whoever looks at them: which there are, what they did, and the rows that they rejected."""

from __future__ import annotations

from collections.abc import Iterator

from s3queue.documents.bulk_run import BULK_BYTES, REJECTED_BYTES, BulkReport, RejectedRow
from s3queue.errors import CorruptState
from s3queue.keys import Keys
from s3queue.store import ObjectStore, listing, open_state


def list_runs(store: ObjectStore, keys: Keys) -> Iterator[tuple[str, BulkReport | CorruptState | None]]:
    """Every run, by name, with its report, or why that cannot be read; None: it is not done. One LIST per 1,000 runs,
    one GET each.
    """
    cursor: str | None = ""
    while cursor is not None:
        page = store.list(keys.prefix("bulk"), after=cursor, delimiter="/")
        for folder in page.prefixes:
            run = folder.removeprefix(keys.prefix("bulk")).removesuffix("/")
            try:
                yield run, read_report(store, keys, run)
            except CorruptState as error:
                # One bad report must not hide the other runs.
                yield run, error
        cursor = page.next_after


def read_report(store: ObjectStore, keys: Keys, run: str) -> BulkReport | None:
    """Raises CorruptState if it cannot be read."""
    found = open_state(store, keys.bulk(run, "done.json"))
    return BulkReport.from_bytes(found.read(BULK_BYTES), found.key) if found else None


def rejected_rows(store: ObjectStore, keys: Keys, run: str) -> Iterator[RejectedRow]:
    """The rows that a run has rejected so far: one LIST per 1,000 objects, one GET each.

    Raises:
        CorruptState: an object holds something else.
    """
    for page in listing(store, keys.bulk(run, "rejected/")):
        for entry in page.objects:
            found = open_state(store, entry.key)
            for line in found.read(REJECTED_BYTES).splitlines() if found else ():
                yield RejectedRow.from_bytes(line, entry.key)
