"""Buckets: how a run enqueues many batches and a rerun none of them twice. Used by bulk_enqueue and the data source.

A run is cut into *buckets* of about a hundred batches, and `{queue}/bulk/{run}/` remembers, create-if-absent:

    plan.json       what the run is: a rerun does what the first run planned
    00042.started   someone began to PUT the batches of this bucket; of a DataFrame: a digest of its rows
    00042.done      all of them were PUT: how many batches and messages, how many rows were rejected, and their hashes
    done.json       so were those of all buckets: the report
    rejected/       rows that cannot be messages (rejected.py)

What is in a bucket, and so the names of its batches, depends on the data alone. A bucket that is done is skipped: that
its messages were worked on and are gone does not matter. One that was started and is not done is looked at batch by
batch, **message first, then record**: a message disappears only after its record is written [P1], so what has neither
was never PUT. The price is two PUTs in a hundred, and two HEADs for each batch of a bucket whose task died.

Of a DataFrame (source/writing.py) a bucket is a partition, and Spark may cut the same rows another way when a job is
started again. So its bucket is repeated with the same rows only: others are refused, never taken for done.

Not promised: two tasks with the same bucket at the same time (speculative execution, which is switched off, or the last
breath of a run while its rerun starts) may PUT a batch twice if it is worked on between their two PUTs. In a queue
without history (`history=False`) what was completed leaves no record: of a bucket whose task died, batches that were
completed meanwhile are enqueued again. Records must still be there (5 days) when a half-finished run is completed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from s3queue.clock import RandomChance
from s3queue.encoding import NONSENSE, as_text, as_whole, dump, load
from s3queue.errors import Conflict, CorruptState, InvalidRequest, Unavailable
from s3queue.keys import Keys
from s3queue.store import UNKNOWN_TRIES, ObjectStore, put_surely
from spark.storage.scan import in_threads

from .digest import HashSums, LinesDigest
from .plan import PLAN_BYTES, Plan
from .rejected import RejectedRows

#: A batch is cut before it grows beyond this, however few lines it has.
BYTES_PER_OBJECT = 4 * 1024 * 1024
BATCHES_PER_BUCKET = 100


def enqueue_bucket(
    store: ObjectStore,
    plan: Plan,
    bucket: int,
    lines: Iterable[bytes],
    rejected: RejectedRows | None = None,
    digest: LinesDigest | None = None,
    hash_sums: HashSums | None = None,
) -> dict[str, Any]:
    """PUT every batch of a bucket that was never PUT before; how many `batches` and `messages` it has, how many were
    `added` now, and what was `rejected`, which is kept before the bucket is done. Safe to repeat after any crash.
    `digest`: of all lines, if their bucket does not follow from the plan. `hash_sums`: of all rows, also those that are
    rejected, once the lines were read.

    Raises:
        InvalidRequest: by their digest, these are not the lines that the bucket was begun with; nothing was written.
        Unavailable: unknown whether something was written; calling again is safe.
    """
    is_first = _create(store, plan.marker(bucket, "started"), _described(plan, digest) if digest else None)
    if digest and not is_first:
        _check_same(store, plan, bucket, digest)
    if not is_first and store.head(plan.marker(bucket, "done")):
        counted = counts_of(store, plan, bucket) or {"batches": 0, "messages": 0, "rejected": {}, "hash_sums": ""}
        return counted | {"added": 0}

    def put(numbered: tuple[int, tuple[bytes, int]]) -> tuple[bool, int]:
        sequence, (batch, count) = numbered
        path = plan.path(bucket, sequence, batch)
        return put_batch(store, plan.keys, path, batch, read_first=not is_first), count

    told: dict[str, Any] = {"batches": 0, "messages": 0}
    added = 0
    for was_added, count in in_threads(put, enumerate(cut(lines, plan.per_object))):
        told["batches"] += 1
        told["messages"] += count
        added += was_added
    # Before the marker: a bucket that is done has lost none of its rows.
    counted = told | {"rejected": rejected.close() if rejected else {}}
    counted["hash_sums"] = str(hash_sums) if hash_sums else ""
    _create(store, plan.marker(bucket, "done"), counted)
    return counted | {"added": added}


def _described(plan: Plan, digest: LinesDigest) -> dict[str, Any]:
    return {"lines": digest.lines, "digest": digest.of(plan)}


def _check_same(store: ObjectStore, plan: Plan, bucket: int, digest: LinesDigest) -> None:
    key = plan.marker(bucket, "started")
    found = store.open(key)
    if found is None:
        raise Unavailable(f"{key} was deleted during the read; try again")
    first = load(found.read(PLAN_BYTES), key)
    # An older version began it, and did not say with which lines.
    if "digest" not in first or first["digest"] == digest.of(plan):
        return
    raise InvalidRequest(
        f"run {plan.run!r} of {plan.queue}: bucket {bucket} has other rows than in the first try "
        f"({first.get('lines')} then, {digest.lines} now), or another per_object, priority or shards: use the same "
        "partitioning and options, or another run, which also enqueues again what the first try has enqueued"
    )


def counts_of(store: ObjectStore, plan: Plan, bucket: int) -> dict[str, Any] | None:
    """What a bucket that is done has: `batches`, `messages`, `rejected`, `hash_sums` (empty: an older version
    finished it, or it is a DataFrame's). None if one finished it that did not count, or if it is not done.

    Raises:
        CorruptState: the marker cannot be read.
    """
    found = store.open(plan.marker(bucket, "done"))
    if found is None:
        return None
    stored = load(found.read(PLAN_BYTES), found.key)
    if "messages" not in stored:
        return None
    try:
        rejected = {as_text(reason): as_whole(count) for reason, count in stored.get("rejected", {}).items()}
        if sums := as_text(stored.get("hash_sums", "")):
            HashSums().add_text(sums)
        counts = {name: as_whole(stored[name]) for name in ("batches", "messages")}
        return counts | {"rejected": rejected, "hash_sums": sums}
    except NONSENSE as error:
        raise CorruptState(f"{found.key} is not the marker of a bulk run: {error}; delete it") from None


def _create(store: ObjectStore, key: str, counted: dict[str, Any] | None = None) -> bool:
    """False if it was there already."""
    try:
        put_surely(store, key, dump((counted or {}) | {"nonce": RandomChance().token()}), if_absent=True)
        return True
    except Conflict:
        return False


def put_batch(store: ObjectStore, keys: Keys, path: str, batch: bytes, *, read_first: bool) -> bool:
    """True if this call added the batch."""
    # The message before the record: in between, it may be completed, but then its record is there already.  [P1]
    if read_first and (store.head(keys.message(path)) or store.head(keys.record(path))):
        return False
    for _ in range(UNKNOWN_TRIES):
        try:
            store.put(keys.message(path), batch, if_absent=True, content_type="application/x-ndjson", once=True)
            return True
        except Conflict:
            return False
        except Unavailable:
            # It may be there, or may even have been worked on already.
            if store.head(keys.message(path)) or store.head(keys.record(path)):
                return True
    raise Unavailable(f"unknown whether {path} was enqueued; run again")


def cut(lines: Iterable[bytes], per_object: int) -> Iterator[tuple[bytes, int]]:
    """Batches, and how many messages are in each."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        if held and (len(held) == per_object or size + len(line) + 1 > BYTES_PER_OBJECT):
            yield b"\n".join(held) + b"\n", len(held)
            held, size = [], 0
        held.append(line)
        size += len(line) + 1
    if held:
        yield b"\n".join(held) + b"\n", len(held)


def problem_of(line: bytes | None, max_bytes: int) -> str | None:
    """Why a row cannot be a message; None if it can."""
    if line is None or not line.strip():
        return "empty"
    if b"\n" in line or b"\r" in line:
        return "more than one line"
    if len(line) > max_bytes:
        return "too large"
    try:
        json.loads(line.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return "not JSON"
    return None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
