"""Plan: what a bulk run is, as `plan.json` keeps it, and which of its buckets are done; buckets.py has the whole."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass

from s3queue.clock import RandomChance
from s3queue.encoding import MOST_LINES, NONSENSE, as_text, as_whole, cut, dump, load
from s3queue.errors import Conflict, CorruptState, InvalidRequest, QueueError, Unavailable
from s3queue.keys import Keys
from s3queue.paths import batch_suffix, priority_prefix
from s3queue.store import ObjectStore, listing, put_surely

#: A run's id is part of names and keys.
#: Larger objects are not read: eight short fields, or a report with an example of each problem.
PLAN_BYTES = 1024 * 1024
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


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
    #: Whether names say how many lines a batch has. Not in a run that began before they did: what is enqueued twice
    #: must have the same name twice.
    names_lines: bool = True

    def __post_init__(self) -> None:
        if not _RUN.fullmatch(self.run):
            raise InvalidRequest(f"run {self.run!r}: 1 to 100 letters, digits, '.', '_' and '-'")
        if not 1 <= self.per_object <= MOST_LINES or not 0 <= self.shards <= 256:
            raise InvalidRequest(f"per_object is from 1 to {MOST_LINES}, shards are from 0 to 256")
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
        suffix = batch_suffix(batch.count(b"\n")) if self.names_lines else ".ndjson"
        name = f"bulk-{self.run}-{bucket:05d}-{sequence:05d}-{digest[:16]}{suffix}"
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
        raise Unavailable(f"{key} was deleted during the read; try again")
    if former.fingerprint != plan.fingerprint:
        raise InvalidRequest(
            f"run {plan.run!r} of {plan.queue} had other data ({former.rows} rows, now {plan.rows}): choose another run"
        )
    return former


def read_plan(store: ObjectStore, queue: str, run: str) -> Plan | None:
    found = store.open(Keys(queue).bulk(run, "plan.json"))
    if found is None:
        return None
    stored = load(found.read(PLAN_BYTES), found.key)
    try:
        plan = Plan(
            queue=as_text(stored["queue"]),
            run=as_text(stored["run"]),
            per_object=as_whole(stored["per_object"], most=MOST_LINES),
            buckets=as_whole(stored["buckets"], least=1, most=10_000_000),
            rows=as_whole(stored.get("rows", 0)),
            fingerprint=as_text(stored.get("fingerprint", "")),
            priority=as_whole(stored.get("priority", 0), most=255),
            shards=as_whole(stored.get("shards", 0), most=256),
            names_lines=stored.get("names_lines") is True,
        )
        if (plan.queue, plan.run) != (queue, run):
            raise ValueError(f"it is that of {plan.queue}, {plan.run}")
        return plan
    except (QueueError, *NONSENSE) as error:
        raise CorruptState(f"{found.key} is not a plan: {cut(error)}") from None


def check_buckets(store: ObjectStore, plan: Plan, buckets: int) -> None:
    """One LIST. Raises InvalidRequest if a former try of the run has begun a bucket that is not one of so many."""
    prefix = plan.keys.bulk(plan.run, "")
    for page in listing(store, prefix, after=f"{prefix}{buckets:05d}"):
        for entry in page.objects:
            found = re.fullmatch(r"([0-9]+)\.started", entry.key.removeprefix(prefix))
            if found and int(found[1]) >= buckets:
                raise InvalidRequest(
                    f"run {plan.run!r} of {plan.queue} was begun with more than {buckets} partitions (it has "
                    f"{found[0]}), so it is not done: use the same partitioning, or another run, which also enqueues "
                    "again what this one has enqueued"
                )


def done_buckets(store: ObjectStore, plan: Plan) -> set[int]:
    """One LIST per 1,000 markers."""
    prefix = plan.keys.bulk(plan.run, "")
    names = (entry.key.removeprefix(prefix) for page in listing(store, prefix) for entry in page.objects)
    return {int(name.removesuffix(".done")) for name in names if re.fullmatch(r"[0-9]+\.done", name)}
