"""SentObject: what the sends of a message become in the bucket, under which names.  [P7]"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from s3queue.encoding import with_put_id
from s3queue.errors import InvalidRequest
from s3queue.paths import format_due, group_of, is_batch, is_ordered, name_before, partition_of, partition_path

from .message import Generation
from .sends import MARK, MERGED_FROM, MOST_BYTES, MOST_OBJECTS, SENT_ONCE, STARTS, Send, size_of

_NDJSON = "application/x-ndjson"
_BOM = b"\xef\xbb\xbf"
#: Of the sender's name, in the names of what it sends into a group.
_ORDER_BYTES = 240
#: Of the sender's digest, in these names: what two messages sent has an order, which their own sends keep.
_DIGITS = 8
#: What would sort before the separator, or be one.
_LOW = re.compile(r"[\x00-!]")
#: What a replay that goes to the end of its group adds to the name of the last one there.
_MARKS = r"(?:~[0-9a-f-]{36})*"
#: Such a name: that of the first sender, how many came after it, and which sends, and replays, led here.
_SENT = re.compile(rf"(.+)!([0-9a-f]{{4}})((?:[0-9a-f]{{15}}{_MARKS})+)-sent-[0-9a-f]{{20}}({_MARKS})", re.DOTALL)
_MOST_SENDERS = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class SentObject:
    """What one PUT stores: a send, or a batch of them."""

    queue: str
    path: str
    body: bytes = field(repr=False)
    content_type: str
    metadata: Mapping[str, str]


def check_sends(sends: Sequence[Send], *, of_batch: bool) -> None:
    """Raises InvalidRequest if no completion can keep them: nothing was written, and the attempt has failed."""
    size = size_of(sends)
    if size > MOST_BYTES:
        raise InvalidRequest(
            f"sends of {size} bytes; at most {MOST_BYTES} in one completion: store large payloads, and send their keys"
        )
    objects = len(_merged(sends, of_batch=of_batch))
    if objects > MOST_OBJECTS:
        raise InvalidRequest(
            f"sends of {objects} objects; at most {MOST_OBJECTS} in one completion. Sends to one queue share an object "
            "if each is a single line without a group, and their delay, priority and metadata are equal"
        )


def addressed(sends: Sequence[Send], queue: str, path: str, generation: Generation, *, part: int) -> list[SentObject]:
    """The objects that these sends become. Their names follow from the message that sends them, and nothing else."""
    source = "\0".join((queue, path, generation.etag, format_due(generation.put_at)))
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:20]
    objects = []
    for index, group in enumerate(_merged(sends, of_batch=is_batch(path))):
        first = group[0]
        put_id = f"{digest}-{part}-{index}"
        name = f"{MARK}{format_due(generation.put_at)}-{put_id}"
        is_single = len(group) == 1
        place = first.place if is_single else _place_of_batch(first)
        if partition_of(place):
            # In the order of their numbers, and with a mark that the name cannot have: names are for the order here.
            name = f"{_order_of(path, generation)}{part:04x}{index:03x}{digest[:_DIGITS]}-sent-{digest}"
            put_id = f"{SENT_ONCE}{max(0, int(generation.put_at.timestamp())):x}-{put_id}"
        objects.append(
            SentObject(
                queue=first.queue,
                path=f"{place}{name}" if is_single else f"{place}{name}.ndjson",
                body=first.body if is_single else b"".join(send.body + b"\n" for send in group),
                content_type=first.content_type if is_single else _NDJSON,
                metadata=with_put_id(first.metadata, put_id),
            )
        )
    return objects


def _order_of(path: str, generation: Generation) -> str:
    """What the names of sends into a group begin with: their sender's name, if it has a group itself, so that they come
    in the order of their senders; else the time at which it was PUT, written as in other names of the library.

    Of a sender that was sent itself, the number of senders is one more, in front of the sends that led to it. So what a
    message sends comes before what any message sends whose name begins with its own, whoever sent that one: perhaps
    another of its name, in another group, or before the name was PUT anew.  [P9]
    """
    partition = partition_of(path)
    first, senders, sends = name_before(generation.put_at), 0, ""
    if partition and is_ordered(partition):
        name = path.removeprefix(partition_path(partition))
        # Without the whole digests of the senders: in a long chain, they would push what orders them out of the name.
        if sent := _SENT.fullmatch(name):
            first, senders, sends = sent[1], min(int(sent[2], 16) + 1, _MOST_SENDERS), sent[3] + sent[4]
        else:
            # As it is, if possible: quoted, names would have another order.
            first = _LOW.sub(lambda found: f"!x{ord(found[0]):02x}", name)
    encoded = first.encode("utf-8", "surrogatepass")[:_ORDER_BYTES]
    # The separator sorts before what may follow in a longer name.
    return f"{encoded.decode('utf-8', 'ignore')}!{senders:04x}{sends[: _ORDER_BYTES - len(encoded)]}"


def _place_of_batch(send: Send) -> str:
    """Where a batch goes that this is a line of: no partition has batches, also if its messages have no order."""
    return "messages/" if partition_of(send.place) else send.place


def _merged(sends: Sequence[Send], *, of_batch: bool) -> list[list[Send]]:
    """Sends that become one object each. Of a batch, all that can share one do; else only very many."""
    groups: dict[Any, list[Send]] = {}
    for index, send in enumerate(sends):
        is_line = b"\n" not in send.body and b"\r" not in send.body and bool(send.body.strip())
        # The first line of a batch loses its byte order mark.
        is_line = is_line and not send.body.startswith(_BOM)
        # What is in a group has its place there, which a line of a batch has not.
        is_line = is_line and not group_of(send.place) and send.place != STARTS
        alike = (send.queue, _place_of_batch(send), send.content_type, tuple(sorted(send.metadata.items())))
        groups.setdefault(alike if is_line else index, []).append(send)
    merged: list[list[Send]] = []
    for group in groups.values():
        if of_batch or len(group) >= MERGED_FROM:
            merged.extend(group[at : at + MERGED_FROM] for at in range(0, len(group), MERGED_FROM))
        else:
            merged.extend([send] for send in group)
    return merged
