"""Send: a message that a handler asked for. The record of its completion keeps it until it is stored.  [P7]

Names of sent messages follow from the message that sent them, so that a PUT may be repeated by whoever finishes the
work, and begin with a mark, by which a claim knows that such a repetition may come after the message was finished.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from s3queue.encoding import (
    METADATA_BYTES,
    NONSENSE,
    Json,
    as_list,
    as_name,
    as_object,
    as_text,
    as_whole,
    cut,
    dump,
    encode_metadata,
    load_current,
    metadata_size,
    put_id_of,
    storable_type,
)
from s3queue.errors import CorruptState, InvalidRequest
from s3queue.keys import Keys, check_queue
from s3queue.paths import format_due, group_partition, name_of, partition_path, priority_prefix
from s3queue.store import Object

from .message import ONCE, due_instant, encode_body

#: Begins the name of every sent message.
MARK = "sent-"
#: A record keeps so many bytes of sends; more of them are staged under `outbox/` first.
INLINE_SENDS = 64 * 1024
#: The sends of one message, or the staged part of a batch's: all of them are in memory at once.
MOST_BYTES = 16 * 1024 * 1024
#: Objects that the sends of one message, or one staged part, may become: whoever finishes it PUTs them one by one.
MOST_OBJECTS = 1000
#: Staged parts of one record: with their names it stays far below its cap.
MOST_PARTS = 10_000
#: So many equal sends (same queue, time and metadata) of a single message become batches, and so many one batch.
MERGED_FROM = 100
#: How much longer than records staged parts are kept: the lease of a batch that waits may be all that names them.
OUTBOX_KEPT = timedelta(days=366)
#: Base64 and escapes make bytes longer.
OUTBOX_BYTES = 4 * MOST_BYTES
#: What a PUT id, its name included, takes of the metadata.
_ID_BYTES = 64
_HEADER = re.compile(r"[a-z0-9_-]+")
#: The place of a send that starts a flow: its body is the flow's document, its queue the flow's home.
STARTS = "flows/"
_PLACE = re.compile(
    r"flows/|(messages|delayed/[0-9]{8}T[0-9]{6}Z)/(p[0-9]{3}/)?|messages/@(=[0-9]{1,5}|[A-Za-z0-9_.~%-]{1,512})/"
)
#: How the put id begins of a message that was sent into a partition; behind it, when its sender was PUT.
SENT_ONCE = f"{ONCE}sent-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One message to another queue, or to the same."""

    queue: str
    #: Where it goes: `messages/`, `messages/p200/`, `delayed/{due}/p200/` or `messages/@customer-42/`; its name comes
    #: behind.
    place: str
    body: bytes = field(repr=False)
    content_type: str = ""
    #: As S3 stores it.
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_queue(self.queue)
        if not _PLACE.fullmatch(self.place) or Keys(self.queue).problem(self.place):
            raise InvalidRequest(f"{self.place!r} is not a place for messages")

    @classmethod
    def of(
        cls,
        queue: str,
        body: bytes | str | Json,
        *,
        now: datetime,
        priority: int = 0,
        delay: float | timedelta | None = None,
        due_at: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
        group: str | None = None,
    ) -> Send:
        """What `enqueue` with the same arguments would store. The sends of one message to one `group` run in the order
        in which they were sent.

        Raises:
            InvalidName, InvalidPriority, InvalidRequest: an argument is wrong; the text says which.
        """
        encoded, found_type = encode_body(body)
        due_at = due_instant(now, delay, due_at)
        place = f"delayed/{format_due(due_at)}/" if due_at and due_at > now else "messages/"
        if group is not None:
            if priority or place != "messages/":
                raise InvalidRequest(
                    f"a send to {queue!r} with a group has no priority and no delay: a group runs in the order of names"
                )
            place = partition_path(group_partition(group))
        kept = encode_metadata(metadata or {})
        for name in kept:
            # Once recorded, a send must be storable: nobody could take it back.
            if not _HEADER.fullmatch(name):
                raise InvalidRequest(
                    f"the metadata of a send to {queue!r} has the name {name!r}: use a-z, 0-9, - and _"
                )
        if metadata_size(kept) + _ID_BYTES > METADATA_BYTES:
            raise InvalidRequest(
                f"the metadata of a send to {queue!r} has more than {METADATA_BYTES - _ID_BYTES} bytes"
            )
        return cls(
            queue=queue,
            place=place + priority_prefix(priority),
            body=encoded,
            content_type=storable_type(content_type or found_type),
            metadata=kept,
        )

    def to_json(self, *, as_base64: bool = False) -> dict[str, Any]:
        described: dict[str, Any] = {"queue": self.queue, "place": self.place}
        text = "" if as_base64 else _text(self.body)
        if text or not self.body:
            described["body"] = text
        else:
            described["base64"] = base64.b64encode(self.body).decode()
        if self.content_type:
            described["content_type"] = self.content_type
        if self.metadata:
            described["metadata"] = dict(self.metadata)
        return described

    @classmethod
    def from_json(cls, found: Any) -> Send:
        as_object(found)
        body = (
            base64.b64decode(found["base64"], validate=True) if "base64" in found else as_text(found["body"]).encode()
        )
        metadata = as_object(found.get("metadata", {}))
        return cls(
            queue=as_text(found["queue"]),
            place=as_text(found["place"]),
            body=body,
            content_type=storable_type(as_text(found.get("content_type", ""))),
            metadata={as_text(name): as_text(value) for name, value in metadata.items()},
        )


@dataclass(frozen=True, slots=True)
class StoredSends:
    """How far the sends of a record are stored: all of the parts before `part`, and these objects of that one.

    Part 0 is what the record itself keeps. Whoever cannot store all of them notes this in the record: what is stored
    is not stored again, when perhaps the record of its own message is gone.  [P7]
    """

    part: int = 0
    objects: frozenset[int] = frozenset()

    def joined(self, other: StoredSends) -> StoredSends:
        """What both know together."""
        if self.part == other.part:
            return StoredSends(self.part, self.objects | other.objects)
        return max(self, other, key=lambda stored: stored.part)

    def to_json(self) -> dict[str, Any] | None:
        # More objects than a reader accepts are a forger's.
        numbers = sorted(number for number in self.objects if number < MOST_OBJECTS)
        return {"part": self.part, "objects": numbers} if self.part or numbers else None

    @classmethod
    def from_json(cls, found: Any) -> StoredSends:
        numbers = as_list(as_object(found)["objects"])
        if len(numbers) > MOST_OBJECTS:
            raise ValueError(f"more than {MOST_OBJECTS} objects are stored")
        return cls(
            part=as_whole(found["part"], most=MOST_PARTS + 1),
            objects=frozenset(as_whole(number, most=MOST_OBJECTS) for number in numbers),
        )


def part_names(found: Any) -> list[str]:
    """The names of staged parts, as a record or a lease has them. Whoever may write there may write anything: each
    counts once, is one name and no path, and there are not more than a completion can have.
    """
    if len(as_list(found)) > MOST_PARTS:
        raise ValueError(f"more than {MOST_PARTS} parts")
    for name in found:
        if not as_name(name) or "/" in name:
            raise ValueError("a part has no name, or a path")
    return list(dict.fromkeys(found))


def are_large(sends: Iterable[Send]) -> bool:
    """Whether no record or lease should keep them."""
    return size_of(sends) > INLINE_SENDS


def size_of(sends: Iterable[Send]) -> int:
    return sum(len(send.body) + metadata_size(send.metadata) + len(send.content_type) + 200 for send in sends)


def _text(body: bytes) -> str:
    """The body as text, if it is; else empty."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return ""


def is_repeatable(path: str, metadata: Mapping[str, str]) -> bool:
    """Whether this message was sent, and not replayed since: its PUT may be repeated after it was finished.  [P7]

    A replay has an id of its own; a dead letter, which may be moved back by hand, has none.
    """
    name = name_of(path).rpartition("/")[2].removesuffix(".ndjson")
    put_id = put_id_of(metadata)
    return bool(put_id) and name.startswith(MARK) and name.endswith(f"-{put_id}")


def staged(sends: Sequence[Send], nonce: str) -> bytes:
    """One object under `outbox/`."""
    # In base64, whatever it is: escapes may be six times as long, and a reader bounds the commas of a document.
    return dump({"sends": [send.to_json(as_base64=True) for send in sends], "nonce": nonce})


def read_staged(found: Object) -> tuple[Send, ...]:
    """What `staged` wrote.

    Raises:
        CorruptState: it is not that; NewerFormat: a newer version wrote it.
    """
    document = load_current(found.read(OUTBOX_BYTES), found.key)
    try:
        return tuple(Send.from_json(send) for send in as_list(document["sends"]))
    except NONSENSE as error:
        raise CorruptState(f"{found.key} is not a list of sends: {cut(error)}") from None
