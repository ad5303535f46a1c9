"""Keys: every object key is built and parsed here, nowhere else.

A message's *path* (`messages/p200/0199…`, `delayed/20261116T101500Z/…`) is its identity. Its lease, record and dead
letter have the same path after another prefix, so that a LIST of messages and a LIST of leases have the same order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote

from .errors import InvalidName, InvalidPriority

#: S3's limit for a key, in bytes of UTF-8.
MAX_KEY_BYTES = 1024
#: The longest prefix that a path can get after the queue's name.
_LONGEST_PREFIX = len("retries/20261116T101500Z/")
#: What follows the name of a batch in the name of its dead lines.
LINES = ".lines"
HIGHEST_PRIORITY = 255
#: Top-level prefixes that are not queues.
RESERVED = frozenset({"archive", "analytics", "datasets", "flows"})
#: The pipeline's figures that the dashboard shows.
LATEST_STATISTICS = "analytics/latest.json"

_QUEUE = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_PRIORITY = re.compile(r"p([01][0-9]{2}|2[0-4][0-9]|25[0-5])/")
_DUE = "%Y%m%dT%H%M%SZ"
_DUE_FORM = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_PART = re.compile(r"[^/]+/part-([0-9]{10,})-[0-9a-f]+\.parquet")
#: Longer keys of a rate are cut, and told apart by a digest.
_RATE_KEY_BYTES = 256
_JOURNAL = re.compile(r"@[^/]+/.*-([0-9]{1,6})\.json")
_SHARD = re.compile(r"[0-9a-f]{2}/")
_MARKED = re.compile(r"~[0-9a-f]{12}\Z")
#: What the folder of a partition begins with, and what follows it in the name of one that holds no group, but a share
#: of all messages: no group's name begins like that, because `=` is quoted there.
PARTITION = "@"
_SHARE = "@="
#: Of a group's name, quoted: more would leave too little room for the names of its messages.
_GROUP_BYTES = 512
#: What the names of scheduled messages begin with.
SCHEDULED = "scheduled-"


def format_due(at: datetime) -> str:
    """The instant as part of a key, rounded up to a whole second, so that nothing is due early."""
    at = at.astimezone(UTC)
    if at.microsecond:
        at = at.replace(microsecond=0) + timedelta(seconds=1)
    return at.strftime(_DUE)


def parse_due(text: str) -> datetime | None:
    """The instant that `format_due` wrote; None if the text is not one (`20261116T101500Z`)."""
    if not _DUE_FORM.fullmatch(text):
        return None
    try:
        # Not strptime: a sweep reads thousands of these.
        date, time = (
            (int(text[:4]), int(text[4:6]), int(text[6:8])),
            (int(text[9:11]), int(text[11:13]), int(text[13:15])),
        )
        return datetime(*date, *time, tzinfo=UTC)
    except ValueError:
        return None


def priority_prefix(priority: int) -> str:
    """`p200/`, for example; empty for priority 0.

    Raises:
        InvalidPriority: not a whole number from 0 to 255.
    """
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= HIGHEST_PRIORITY:
        raise InvalidPriority(f"priority must be a whole number from 0 to {HIGHEST_PRIORITY}, not {priority!r}")
    return f"p{priority:03d}/" if priority else ""


def name_of(path: str) -> str:
    """The name that the producer chose, without `messages/` or `delayed/{due}/`."""
    kind, _, rest = path.partition("/")
    return rest.partition("/")[2] if kind == "delayed" else rest


def priority_of(path: str) -> int:
    """The priority in the path: 255 runs first; a name that does not start with `p000/`…`p255/` has priority 0."""
    match = _PRIORITY.match(name_of(path))
    return int(match[1]) if match else 0


def rate_key_of(path: str, shards: int = 0) -> str:
    """The first folder of the name that the producer chose, behind share, priority and shard; empty if it has none.

    Of a message of a group, the group's: `@customer-42`.
    """
    name = name_of(path)
    if name.startswith(_SHARE):
        name, shards = name.partition("/")[2], 0
    name = _PRIORITY.sub("", name, count=1)
    if shards:
        name = _SHARD.sub("", name, count=1)
    folder, slash, _ = name.partition("/")
    return folder if slash else ""


def due_of(path: str) -> datetime | None:
    """When a delayed message may run; None if it may run at once, or if its due time cannot be read."""
    kind, _, rest = path.partition("/")
    return parse_due(rest.partition("/")[0]) if kind == "delayed" else None


def runs_once(path: str) -> bool:
    """Whether a path stands for one instant of a schedule: if it has a record, that instant has had its message.  [P10]

    Whoever puts the instant may do so again, late: after the message has run and is gone.
    """
    if not path.startswith("delayed/"):
        return False
    name = name_of(path)
    return name[5 if _PRIORITY.match(name) else 0 :].startswith(SCHEDULED)


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


def group_partition(group: str) -> str:
    """The partition of a group, `@customer-42`. Its messages run one at a time, in the order of their names.  [P9]

    Raises:
        InvalidName: the group's name is empty, too long, or not text.
    """
    if not isinstance(group, str) or not group:
        raise InvalidName(f"group {group!r} is not valid: give a text that is not empty")
    try:
        quoted = quote(group, safe="~")
    except UnicodeEncodeError:
        raise InvalidName(f"group {group!r} is not valid Unicode") from None
    if len(quoted) > _GROUP_BYTES:
        raise InvalidName(
            f"group {group[:40]!r}… is too long: {len(quoted)} bytes when quoted for a key, at most {_GROUP_BYTES}"
        )
    # Two names that some HTTP clients rewrite.
    return PARTITION + (quoted.replace(".", "%2E") if quoted in (".", "..") else quoted)


def shared_partition(name: str, partitions: int) -> str:
    """One of so many partitions, `@=3`: it follows from the message's name, and says nothing about the order."""
    return f"{_SHARE}{int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % partitions}"


def partition_of(path: str) -> str:
    """The partition that a message belongs to: `@customer-42` of `messages/@customer-42/0199…`; empty if to none."""
    kind, _, name = path.partition("/")
    folder, slash, _ = name.partition("/")
    return folder if kind == "messages" and slash and folder.startswith(PARTITION) and len(folder) > 1 else ""


def partition_path(partition: str) -> str:
    """What stands for a whole partition where other messages have their path: `messages/@customer-42/`."""
    return f"messages/{partition}/"


def is_partition(path: str) -> bool:
    """Whether it stands for a whole partition."""
    return path.endswith("/") and path == partition_path(partition_of(path))


def is_ordered(partition: str) -> bool:
    """Whether the messages of a partition run one at a time, in the order of their names: a group's do."""
    return not partition.startswith(_SHARE)


def group_of(path: str) -> str:
    """The group that a message was enqueued with; empty if it has none."""
    partition = partition_of(path)
    return unquote(partition[1:]) if partition and is_ordered(partition) else ""


def is_batch(path: str) -> bool:
    """Whether the path names a batch, in which every line is a message."""
    return path.endswith((".ndjson", f".ndjson{LINES}"))


def is_lines(path: str) -> bool:
    """Whether it is a batch of lines that died before, each with its number and its error."""
    return path.endswith(f".ndjson{LINES}")


def lines_path(path: str) -> str:
    """Where the dead lines of a batch lie under `dead/`."""
    return path if is_lines(path) else path + LINES


def without_mark(path: str) -> str:
    """The path of a message, from that of a dead letter whose name tells its generation apart from another's.

    As far as a LIST can tell: a producer's own name may look like that. `DeadLetter.origin` is certain.
    """
    return _MARKED.sub("", path)


def lock_name(key: str) -> str | None:
    """The name of the lock at this key; None if it is not the key of a lock."""
    queue, _, rest = key.partition("/")
    kind, _, name = rest.partition("/")
    return name if queue and kind == "locks" and name else None


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
        """How many outcomes the object at a key under `records/` holds: one, or as many as a journal's name says."""
        name = _JOURNAL.fullmatch(key.removeprefix(self.prefix("records")))
        return int(name[1]) if name else 1

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
        if len(quoted) > _RATE_KEY_BYTES:
            quoted = f"{quoted[:64]}~{hashlib.sha256(rate_key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
        return f"{self.queue}/limits/key/{quoted}.json"

    def idempotency(self, idempotency_key: str) -> str:
        """Hashed: Powertools' keys may hold any characters, and hashes spread over S3's partitions."""
        return f"{self.queue}/idempotency/{hashlib.sha256(idempotency_key.encode()).hexdigest()}"

    def dedup(self, dedup_id: str) -> str:
        """The marker of a dedup id that counts for a while; hashed, as an id may hold any characters."""
        return f"{self.queue}/dedup/{hashlib.sha256(dedup_id.encode()).hexdigest()[:40]}"

    def worker(self, worker_id: str) -> str:
        return f"{self.queue}/workers/{worker_id}"

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
        """The commits of the archive. Readers of Hive layouts (Spark, Athena) skip names that begin with `_`."""
        return f"archive/queue={self.queue}/_log/"

    def archive_commit(self, version: int) -> str:
        return f"{self.archive_log}{version:010d}.json"

    @property
    def archive_days(self) -> str:
        return f"archive/queue={self.queue}/day="

    def archive_part(self, day: str, version: int, digest: str) -> str:
        """A file that belongs to exactly one commit."""
        return f"{self.archive_days}{day}/part-{version:010d}-{digest}.parquet"

    def archive_part_version(self, key: str) -> int | None:
        """The number of the commit that a file was written for; None if it is not the key of such a file."""
        found = _PART.fullmatch(key.removeprefix(self.archive_days)) if key.startswith(self.archive_days) else None
        return int(found[1]) if found else None

    def hours(self, day: str) -> str:
        return f"analytics/hours/queue={self.queue}/day={day}/hours.ndjson"

    def path(self, key: str) -> str | None:
        """The path of the message at this key; None if it is not the key of a message of this queue."""
        path = key.removeprefix(self.root)
        if path == key or path.partition("/")[0] not in ("messages", "delayed") or "/" not in path:
            return None
        return path

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
        name = name.removeprefix(f"{partition_of(path)}/")  # what cannot be claimed belongs to no partition
        # Always with a digest: `delayed/x` must not be buried where `messages/x` has its own record.
        digest = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        kept = name.encode("utf-8", "surrogatepass")[:512].decode("utf-8", "ignore")
        return f"messages/{kept}~{digest}{'.ndjson' if is_batch(path) else ''}"


def check_name(name: str) -> str:
    """The name itself, if the library may write it; with a plain PutObject, any key that S3 accepts works.

    Raises:
        InvalidName: it is empty, looks like a folder, or has parts that some HTTP clients rewrite.
    """
    if not isinstance(name, str):
        raise InvalidName(f"message name {name!r} is not text")
    if not name or name.endswith("/"):
        raise InvalidName(f"message name {name!r} is empty or ends with '/', which S3 consoles show as a folder")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise InvalidName(f"message name {name!r} has an empty, '.' or '..' part, which HTTP clients may rewrite")
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise InvalidName(f"message name {name!r} has control characters, which a LIST cannot show")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidName(f"message name {name!r} is not valid Unicode") from None
    return name
