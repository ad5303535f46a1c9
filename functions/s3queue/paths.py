"""Paths: what the path of a message says of it: its priority, when it is due, its group, whether it is a batch."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote

from .encoding import MOST_LINES
from .errors import InvalidName, InvalidPriority, InvalidRequest

#: What follows the name of a batch in the name of its dead lines.
LINES = ".lines"
#: What the name of a batch ends with that says how many lines it has: `0199….100-lines.ndjson`.
_NAMED_LINES = re.compile(r"\.([1-9][0-9]{0,6})-lines\.ndjson\Z")
HIGHEST_PRIORITY = 255
_PRIORITY = re.compile(r"p([01][0-9]{2}|2[0-4][0-9]|25[0-5])/")
_DUE = "%Y%m%dT%H%M%SZ"
_DUE_FORM = re.compile(r"[0-9]{8}T[0-9]{6}Z")
#: Longer keys of a rate are cut, and told apart by a digest.
RATE_KEY_BYTES = 256
_SHARD = re.compile(r"[0-9a-f]{2}/")
_UUID = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_MARKED = re.compile(r"~[0-9a-f]{12}\Z")
#: What the folder of a partition begins with, and what follows it in the name of one that holds no group, but a share
#: of all messages: no group's name begins like that, because `=` is quoted there.
PARTITION = "@"
_PARTITIONED = f"messages/{PARTITION}"
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
    return parse_due(path.split("/", 2)[1]) if path.startswith("delayed/") else None


def runs_once(path: str) -> bool:
    """Whether a path stands for one instant of a schedule: if it has a record, that instant has had its message.  [P10]

    Whoever puts the instant may do so again, late: after the message has run and is gone.
    """
    if not path.startswith("delayed/"):
        return False
    name = name_of(path)
    return name[5 if _PRIORITY.match(name) else 0 :].startswith(SCHEDULED)


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
    if not path.startswith(_PARTITIONED):
        return ""  # most messages: this is asked for every one of a LIST
    folder, slash, _ = path.removeprefix("messages/").partition("/")
    return folder if slash and len(folder) > 1 else ""


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


def batch_suffix(lines: int) -> str:
    """What the library's own names of batches end with, so that a LIST shows how many messages there are."""
    return f".{lines}-lines.ndjson"


def lines_of(path: str) -> int | None:
    """How many messages the object at this path holds, as far as its name tells: one, or a batch's lines.

    None: a batch whose name does not say so. Of dead lines that were replayed, only the object itself can tell.
    """
    if not is_batch(path):
        return 1
    named = _NAMED_LINES.search(path)
    return int(named[1]) if named and int(named[1]) <= MOST_LINES else None


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


def name_before(at: datetime) -> str:
    """Sorts before every name that the library makes at this time or later."""
    digits = f"{max(0, int(at.timestamp() * 1000)):012x}"
    return f"{digits[:8]}-{digits[8:]}"


def named_at(path: str) -> datetime | None:
    """When the library made this name, by the producer's clock; None if it is another's."""
    stem = _NAMED_LINES.sub("", path.rpartition("/")[2]).removesuffix(".ndjson")
    name = _UUID.fullmatch(stem)
    try:
        return datetime.fromtimestamp(int(name[1] + name[2], 16) / 1000, UTC) if name else None
    except (ValueError, OverflowError, OSError):
        return None  # its digits go to the year 10889: a forger's


def check_path(path: str) -> str:
    """The path itself, if it can be that of a message: what else lies in a queue is nobody's to claim or to cancel.

    Raises:
        InvalidRequest: it is that of a lease, a record, a dead letter, settings or anything else.
    """
    if not isinstance(path, str) or not path.startswith(("messages/", "delayed/")):
        raise InvalidRequest(f"{path!r} is not the path of a message: it starts with messages/ or delayed/")
    return path


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
