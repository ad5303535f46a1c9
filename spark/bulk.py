"""Bulk: how a run enqueues many batches and a rerun none of them twice. Shared by bulk_enqueue and the data source.

A run is cut into *buckets* of about a hundred batches, and `{queue}/bulk/{run}/` remembers, create-if-absent:

    plan.json       what the run is: a rerun does what the first run planned
    00042.started   someone began to PUT the batches of this bucket
    00042.done      all of them were PUT
    done.json       so were those of all buckets

What is in a bucket, and so the names of its batches, depends on the data alone. A bucket that is done is skipped: that
its messages were worked on and are gone does not matter. One that was started and is not done is looked at batch by
batch, **message first, then record**: a message disappears only after its record is written [P1], so what has neither
was never PUT. The price is two PUTs in a hundred, and two HEADs for each batch of a bucket whose task died.

Not promised: two tasks with the same bucket at the same time (speculative execution, which is switched off, or the last
breath of a run while its rerun starts) may PUT a batch twice if it is worked on between their two PUTs. In a queue
without history (`history=False`) what was completed leaves no record: of a bucket whose task died, batches that were
completed meanwhile are enqueued again. Records must still be there (5 days) when a half-finished run is completed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from s3queue.clock import RandomChance
from s3queue.encoding import dump, load
from s3queue.errors import Conflict, CorruptState, InvalidRequest, Unavailable
from s3queue.keys import Keys, priority_prefix
from s3queue.store import UNKNOWN_TRIES, ObjectStore, listing, put_surely

from .scan import in_threads

#: A run's id is part of names and keys.
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: A batch is cut before it grows beyond this, however few lines it has.
BYTES_PER_OBJECT = 4 * 1024 * 1024
BATCHES_PER_BUCKET = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is: the same plan and the same data make the same batches."""

    queue: str
    run: str
    per_object: int
    buckets: int
    rows: int
    #: Of the data; another one under the same run id is a mistake.
    fingerprint: str
    priority: int = 0
    shards: int = 0

    def __post_init__(self) -> None:
        if not _RUN.fullmatch(self.run):
            raise InvalidRequest(f"run {self.run!r}: 1 to 100 letters, digits, '.', '_' and '-'")
        if self.per_object < 1 or not 0 <= self.shards <= 256:
            raise InvalidRequest("per_object is at least 1, shards are from 0 to 256")
        priority_prefix(self.priority)

    @property
    def keys(self) -> Keys:
        return Keys(self.queue)

    def marker(self, bucket: int, state: str) -> str:
        return self.keys.bulk(self.run, f"{bucket:05d}.{state}")

    def path(self, bucket: int, sequence: int, batch: bytes) -> str:
        """Which run, where in it, and what: the same batch always has the same path."""
        digest = hashlib.sha256(batch).hexdigest()
        shard = f"{int(digest[:2], 16) * self.shards // 256:02x}/" if self.shards else ""
        name = f"bulk-{self.run}-{bucket:05d}-{sequence:05d}-{digest[:16]}.ndjson"
        return f"messages/{priority_prefix(self.priority)}{shard}{name}"


def settle_plan(store: ObjectStore, plan: Plan) -> Plan:
    """The plan that counts: the one that a former run of this id wrote, or this one.

    Raises:
        InvalidRequest: the former run had other data; a new run id is needed.
        CorruptState: the former plan cannot be read.
    """
    key = plan.keys.bulk(plan.run, "plan.json")
    try:
        put_surely(store, key, dump(asdict(plan) | {"nonce": RandomChance().token()}), if_absent=True)
        return plan
    except Conflict:
        former = read_plan(store, plan.queue, plan.run)
    if former is None:
        raise Unavailable(f"{key} was deleted this very moment; try again")
    if former.fingerprint != plan.fingerprint:
        raise InvalidRequest(
            f"run {plan.run!r} of {plan.queue} had other data ({former.rows} rows, now {plan.rows}): choose another run"
        )
    return former


def read_plan(store: ObjectStore, queue: str, run: str) -> Plan | None:
    found = store.open(Keys(queue).bulk(run, "plan.json"))
    if found is None:
        return None
    stored = load(found.read(), found.key)
    try:
        return Plan(**{name: value for name, value in stored.items() if name in Plan.__dataclass_fields__})
    except (TypeError, ValueError) as error:
        raise CorruptState(f"{found.key} is not a plan: {error}") from None


def done_buckets(store: ObjectStore, plan: Plan) -> set[int]:
    """One LIST per 1,000 markers."""
    prefix = plan.keys.bulk(plan.run, "")
    names = (entry.key.removeprefix(prefix) for page in listing(store, prefix) for entry in page.objects)
    return {int(name.removesuffix(".done")) for name in names if re.fullmatch(r"[0-9]+\.done", name)}


def enqueue_bucket(store: ObjectStore, plan: Plan, bucket: int, lines: Iterable[bytes]) -> dict[str, int]:
    """PUT every batch of a bucket that was never PUT before; how many `batches` and `messages` it has, and how many
    were `added` now. Safe to repeat after any crash.

    Raises:
        Unavailable: unknown whether something was written; calling again is safe.
    """
    is_first = _create(store, plan.marker(bucket, "started"))
    if not is_first and store.head(plan.marker(bucket, "done")):
        return {"batches": 0, "messages": 0, "added": 0}

    def put(numbered: tuple[int, tuple[bytes, int]]) -> tuple[bool, int]:
        sequence, (batch, count) = numbered
        path = plan.path(bucket, sequence, batch)
        return _put_once(store, plan.keys, path, batch, read_first=not is_first), count

    told = {"batches": 0, "messages": 0, "added": 0}
    for was_added, count in in_threads(put, enumerate(cut(lines, plan.per_object))):
        told["batches"] += 1
        told["messages"] += count
        told["added"] += was_added
    _create(store, plan.marker(bucket, "done"))
    return told


def _create(store: ObjectStore, key: str) -> bool:
    """False if it was there already."""
    try:
        put_surely(store, key, dump({"nonce": RandomChance().token()}), if_absent=True)
        return True
    except Conflict:
        return False


def _put_once(store: ObjectStore, keys: Keys, path: str, batch: bytes, *, read_first: bool) -> bool:
    """True if this call added the batch."""
    # The message before the record: in between, it may be completed, but then its record is there already.  [P1]
    if read_first and (store.head(keys.message(path)) or store.head(keys.record(path))):
        return False
    for _ in range(UNKNOWN_TRIES):
        try:
            store.put(keys.message(path), batch, if_absent=True, content_type="application/x-ndjson")
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
