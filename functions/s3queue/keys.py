"""Keys: every object key is built and parsed here, nowhere else; `paths` says what the path of a message means.

A message's *path* (`messages/p200/0199…`, `delayed/20261116T101500Z/…`) is its identity. Its lease, record and dead
letter have the same path after another prefix, so that a LIST of messages and a LIST of leases have the same order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from .errors import InvalidName
from .paths import (
    PARTITION,
    RATE_KEY_BYTES,
    SCHEDULED,
    due_of,
    format_due,
    is_batch,
    is_partition,
    lines_of,
    name_of,
    parse_due,
    partition_of,
    partition_path,
    priority_prefix,
)

#: S3's limit for a key, in bytes of UTF-8.
MAX_KEY_BYTES = 1024
#: The longest prefix that a path can get after the queue's name.
_LONGEST_PREFIX = len("retries/20261116T101500Z/")
#: Top-level prefixes that are not queues.
RESERVED = frozenset({"archive", "analytics", "datasets", "flows"})
#: What lies right below a queue's name.
KINDS = frozenset(
    {
        *(
            "messages",
            "delayed",
            "leases",
            "records",
            "retries",
            "dead",
            "done",
            "outbox",
            "results",
            "workers",
            "runs",
        ),
        *("locks", "dedup", "schedules", "flows", "limits", "idempotency", "bulk"),
        *("queue.json", "stats.json", "sweep.json", "queue-breaker.json"),
        *("queue-acknowledged.json", "queue-settings.json"),
    }
)
#: The pipeline's figures that the dashboard shows.
LATEST_STATISTICS = "analytics/latest.json"
#: What the last computation of them has seen.
STATISTICS_STATE = "analytics/state.json"

_QUEUE = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_JOURNAL = re.compile(r"@[^/]+/.*-([0-9]{1,6})\.json")


def check_schedule(name: str) -> str:
    """The name itself.

    Raises:
        InvalidName: it cannot be the name of a schedule.
    """
    if not isinstance(name, str) or not _QUEUE.fullmatch(name):
        raise InvalidName(
            f"schedule name {str(name)[:80]!r} is not valid: use 1 to 63 lower-case letters, digits, '-' and '_', and "
            "start with a letter or a digit"
        )
    return name


def lock_name(key: str) -> str | None:
    """The name of the lock at this key; None if it is not the key of a lock."""
    queue, _, rest = key.partition("/")
    kind, _, name = rest.partition("/")
    return name if queue and kind == "locks" and name else None


def owner_of(key: str) -> str:
    """Whose an object is: the name of a queue, or of a reserved prefix; empty if it is neither's."""
    first, slash, rest = key.partition("/")
    if first in RESERVED:
        return first
    return first if slash and _QUEUE.fullmatch(first) and rest.partition("/")[0] in KINDS else ""


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the known names that this one may have been meant to be, the likeliest first."""
    from difflib import get_close_matches

    return get_close_matches(name, sorted(known), n=3, cutoff=0.6)


def check_queue(name: str) -> str:
    """The name itself.

    Raises:
        InvalidName: it cannot be the first part of a key.
    """
    if not isinstance(name, str) or not _QUEUE.fullmatch(name):
        raise InvalidName(
            f"queue name {name!r} is not valid: use 1 to 63 lower-case letters, digits, '-' and '_', and start with a "
            "letter or a digit"
        )
    if name in RESERVED:
        raise InvalidName(f"queue name {name!r} is reserved for s3queue's own data; choose another name")
    return name


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one queue."""

    queue: str

    def __post_init__(self) -> None:
        check_queue(self.queue)

    @property
    def root(self) -> str:
        return f"{self.queue}/"

    @property
    def overrides(self) -> str:
        return f"{self.queue}/queue.json"

    @property
    def stats(self) -> str:
        return f"{self.queue}/stats.json"

    @property
    def progress(self) -> str:
        """How far a sweep came that could not finish."""
        return f"{self.queue}/sweep.json"

    @property
    def breaker(self) -> str:
        return f"{self.queue}/queue-breaker.json"

    @property
    def acknowledged(self) -> str:
        """Which dead letters an operator has acknowledged."""
        return f"{self.queue}/queue-acknowledged.json"

    @property
    def settings(self) -> str:
        """The settings of the queue's definition, as a deployment or a worker published them."""
        return f"{self.queue}/queue-settings.json"

    def prefix(self, kind: str) -> str:
        """`{queue}/{kind}/`, for a LIST."""
        return f"{self.queue}/{kind}/"

    def kinds(self, prefixes: Iterable[str]) -> set[str]:
        """The kinds of objects that a LIST of the root with a delimiter shows."""
        return {prefix.removeprefix(self.root).rstrip("/") for prefix in prefixes}

    def message(self, path: str) -> str:
        return f"{self.queue}/{path}"

    def lease(self, path: str) -> str:
        """Also of a whole partition, which has one lease for all of its messages: `leases/@customer-42`."""
        return f"{self.queue}/leases/{partition_of(path) if is_partition(path) else path}"

    def journal(self, partition: str, name: str) -> str:
        """The outcomes of some messages of a partition."""
        return f"{self.journals(partition)}{name}.json"

    def records_at(self, key: str) -> int:
        """How many outcomes the object at a key under `records/` holds, as its name says: those of a journal, the lines
        of a batch, else one; also of a batch whose name does not say.
        """
        name = _JOURNAL.fullmatch(key.removeprefix(self.prefix("records")))
        return int(name[1]) if name else lines_of(key) or 1

    def journals(self, partition: str) -> str:
        return f"{self.queue}/records/{partition}/"

    @property
    def partition_leases(self) -> str:
        """For a LIST."""
        return f"{self.queue}/leases/{PARTITION}"

    @property
    def partitions(self) -> str:
        """For a LIST with a delimiter."""
        return f"{self.queue}/messages/{PARTITION}"

    def record(self, path: str) -> str:
        return f"{self.queue}/records/{path}"

    def dead(self, path: str) -> str:
        return f"{self.queue}/dead/{path}"

    def outbox(self, name: str) -> str:
        """Sends that are too large for a record."""
        return f"{self.queue}/outbox/{name}"

    def done(self, path: str) -> str:
        """The payload of a completed message, if the queue keeps it."""
        return f"{self.queue}/done/{path}"

    def reminder(self, due_at: datetime, path: str) -> str:
        """Of a whole partition, it names one of its messages, whether there is such a one or not: some servers take a
        key that ends with a slash for a folder.
        """
        path += "next" if is_partition(path) else ""
        return f"{self.queue}/retries/{format_due(due_at)}/{path}"

    def lock(self, name: str) -> str:
        return f"{self.queue}/locks/{name}"

    def limit(self, rate_key: str) -> str:
        """How many calls were granted lately: of the whole queue, or of one key, which may hold any characters."""
        if not rate_key:
            return f"{self.queue}/limits/queue.json"
        quoted = quote(rate_key, safe="~")
        if len(quoted) > RATE_KEY_BYTES:
            quoted = f"{quoted[:64]}~{hashlib.sha256(rate_key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
        return f"{self.queue}/limits/key/{quoted}.json"

    def idempotency(self, idempotency_key: str) -> str:
        """Hashed: Powertools' keys may hold any characters, and hashes spread over S3's partitions."""
        return f"{self.queue}/idempotency/{hashlib.sha256(idempotency_key.encode()).hexdigest()}"

    def dedup(self, dedup_id: str) -> str:
        """The marker of a dedup id that counts for a while; hashed, as an id may hold any characters."""
        return f"{self.queue}/dedup/{hashlib.sha256(dedup_id.encode()).hexdigest()[:40]}"

    def replay_place(self, put_id: str) -> str:
        """The marker that says where in its group the replay of this id goes. No digest of a dedup id is named so."""
        return f"{self.queue}/dedup/{put_id}"

    def worker(self, worker_id: str) -> str:
        return f"{self.queue}/workers/{worker_id}"

    def check_worker(self, worker_id: str) -> str:
        """The id itself.

        Raises:
            InvalidName: no lease can name this worker, or its heartbeat can have no key.
        """
        try:
            if isinstance(worker_id, str) and len(self.worker(worker_id).encode()) <= MAX_KEY_BYTES:
                return worker_id
        except UnicodeEncodeError:
            pass
        most = MAX_KEY_BYTES - len(self.worker(""))
        raise InvalidName(f"worker id {str(worker_id)[:80]!r} is not valid: use text of at most {most} bytes")

    def schedule(self, name: str) -> str:
        return f"{self.queue}/schedules/{name}.json"

    def schedule_name(self, key: str) -> str | None:
        """The name of the schedule at this key; None if it is not the key of a schedule."""
        found = key.removeprefix(self.prefix("schedules"))
        name = found.removesuffix(".json")
        return name if found != key and name != found and _QUEUE.fullmatch(name) else None

    def scheduled(self, name: str, due_at: datetime, priority: int) -> str:
        """The path of the one message of a schedule for one instant."""
        return f"delayed/{format_due(due_at)}/{priority_prefix(priority)}{SCHEDULED}{name}"

    def slot(self, number: int) -> str:
        return f"{self.queue}/runs/slot-{number}"

    def slot_number(self, key: str) -> int | None:
        """The number of the slot at this key; None if it is not the key of a slot."""
        number = key.removeprefix(f"{self.queue}/runs/slot-")
        return int(number) if number != key and number.isascii() and number.isdigit() else None

    def manifest(self, run: str) -> str:
        return f"{self.queue}/runs/{run}.json"

    def bulk(self, run: str, name: str) -> str:
        """Progress of a bulk enqueue. Not under `runs/`: thousands of such objects would hide the runs from a LIST."""
        return f"{self.queue}/bulk/{run}/{name}"

    @property
    def archive_log(self) -> str:
        """The commits of the archive before it was a Delta table. Readers skip names that begin with `_`."""
        return f"archive/queue={self.queue}/_log/"

    def archive_commit(self, version: int) -> str:
        return f"{self.archive_log}{version:010d}.json"

    @property
    def archive_days(self) -> str:
        return f"archive/queue={self.queue}/day="

    def archive_part(self, day: str, version: int, digest: str) -> str:
        """A file that belongs to exactly one commit."""
        return f"{self.archive_days}{day}/part-{version:010d}-{digest}.parquet"

    def hours(self, day: str) -> str:
        return f"analytics/hours/queue={self.queue}/day={day}/hours.ndjson"

    def path(self, key: str) -> str | None:
        """The path of the message at this key; None if it is not the key of a message of this queue."""
        # Asked for every message of every LIST.
        if not key.startswith((f"{self.queue}/messages/", f"{self.queue}/delayed/")):
            return None
        return key[len(self.queue) + 1 :]

    def path_under(self, kind: str, key: str) -> str | None:
        """The path that a lease, record or dead letter belongs to; None if it cannot belong to a message."""
        prefix = self.prefix(kind)
        if not key.startswith(prefix):
            return None
        path = key.removeprefix(prefix)
        if kind == "leases" and path.startswith(PARTITION) and is_partition(partition_path(path)):
            return partition_path(path)
        return self.path(self.root + path)

    def reminded(self, key: str) -> tuple[datetime, str] | None:
        """When a reminder is due, and for which path; None if the key is not that of a reminder."""
        due, _, path = key.removeprefix(self.prefix("retries")).partition("/")
        due_at = parse_due(due)
        return (due_at, path) if due_at and self.path(self.root + path) else None

    def problem(self, path: str) -> str | None:
        """Why a message with this path can never be claimed; None if it can.

        Anyone may PUT anything under `messages/`. A message that cannot be claimed becomes a dead letter with this
        reason.
        """
        room = MAX_KEY_BYTES - _LONGEST_PREFIX - len(self.root)
        length = len(path.encode("utf-8", "surrogatepass"))
        if length > room:
            return (
                f"the name is too long: {length} bytes after {self.root!r}, at most {room} leave room for the keys of "
                "its lease and record; a replay uses the shorter name that it has here"
            )
        if path.startswith("delayed/") and due_of(path) is None:
            return "the key has no due time: write delayed/20261116T101500Z/{name}, in UTC"
        return None

    def buried_path(self, path: str) -> str:
        """The path under which a message with a `problem` is buried: short enough, and claimable after a replay."""
        name = name_of(path) if path.startswith("messages/") else path.removeprefix("delayed/")
        # What cannot be claimed belongs to no partition, nor does it after a replay: `@p/@q/x` is not one of `@q`.
        while partition := partition_of(f"messages/{name}"):
            name = name.removeprefix(f"{partition}/")
        # Always with a digest: `delayed/x` must not be buried where `messages/x` has its own record.
        digest = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        kept = name.encode("utf-8", "surrogatepass")[:512].decode("utf-8", "ignore")
        return f"messages/{kept}~{digest}{'.ndjson' if is_batch(path) else ''}"
