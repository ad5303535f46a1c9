"""Upkeep of the archive: small files become large ones, and files that nobody needs are deleted. Neither is urgent."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from s3queue.errors import Conflict
from s3queue.store import ObjectStore, listing

from .old_log import check_converted
from .table import FOLDER, KEPT_DAYS, TRIES, ArchiveTable, Snapshot, after_commit, committing, understood

#: A file's size after compaction, packed. Readers of one file hold it in memory.
TARGET_BYTES = 128 * 1024 * 1024
#: Files that are merged at a time; each is in memory.
TASKS = 2
THREADS = 16
#: Files of the table and of runs that died; anything else in the folder belongs to somebody else.
_OURS = re.compile(r"queue=([a-z0-9][a-z0-9_-]{0,62})/day=[^/]+/[^/]+\.parquet")


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    removed: int
    added: int


def compact(archive: ArchiveTable, queue: str | None = None, *, target_bytes: int = TARGET_BYTES) -> Compacted:
    """Merge the small files of each day. The rows and what runs commit meanwhile stay as they are; the old files are
    deleted by `vacuum`, days later.

    Raises:
        Conflict: another compaction was always faster.
    """
    for attempt in range(TRIES):
        found = archive.snapshot()
        if found is None:
            return Compacted(0, 0)
        try:
            with understood():
                done = found.table.optimize.compact(
                    partition_filters=[("queue", "=", queue)] if queue else None,
                    target_size=target_bytes,
                    max_concurrent_tasks=TASKS,
                    commit_properties=committing({"s3queue.compaction": queue or "*"}),
                    post_commithook_properties=after_commit(),
                )
            return Compacted(done["numFilesRemoved"], done["numFilesAdded"])
        except Conflict:
            if attempt == TRIES - 1:
                raise
    raise AssertionError("unreachable")


def vacuum(store: ObjectStore, archive: ArchiveTable, *, days: float = KEPT_DAYS, dry_run: bool = False) -> list[str]:
    """Delete files of the folder that no version of the last days names; the keys of what was deleted.

    They were replaced by a compaction, or a run died before its commit. Other people's objects are left alone. A run
    must not take longer than `days`: its files are not named by anything yet.

    Raises:
        InvalidRequest: the archive of a queue is still in the old layout, and its files would look unused.
    """
    found = archive.snapshot()
    if found is None:
        return []
    with understood():
        # Only asked: deltalake would delete strangers' objects, too.
        unused = found.table.vacuum(
            retention_hours=int(days * 24), dry_run=True, enforce_retention_duration=False, full=True
        )
    _check_all_converted(store, found, unused)
    # What an earlier one deleted is named again, as long as the table remembers it.
    # Also a run that died may have come again since, and have written the same file under the same name: it is young.
    kept = timedelta(days=days)
    pages = listing(store, f"{FOLDER}queue=")
    present = {entry.key for page in pages for entry in page.objects if page.at - entry.modified_at >= kept}
    keys = sorted(present.intersection(FOLDER + path for path in unused if _OURS.fullmatch(path)))
    if not dry_run:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(store.delete, keys))
    return keys


def _check_all_converted(store: ObjectStore, found: Snapshot, paths: Iterable[str]) -> None:
    queues = {matched[1] for path in paths if (matched := _OURS.fullmatch(path))}
    for queue in sorted(queues):
        check_converted(store, found, queue)
