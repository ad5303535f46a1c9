"""SentObject: what the sends of a message become in the bucket, under which names.  [P7]"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from s3queue.encoding import with_put_id
from s3queue.errors import InvalidRequest
from s3queue.keys import format_due, is_batch

from .message import Generation
from .sends import MARK, MERGED_FROM, MOST_BYTES, MOST_OBJECTS, Send, size_of

_NDJSON = "application/x-ndjson"
_BOM = b"\xef\xbb\xbf"


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
            "if each is a single line and their delay, priority and metadata are equal"
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
        objects.append(
            SentObject(
                queue=first.queue,
                path=f"{first.place}{name}" if is_single else f"{first.place}{name}.ndjson",
                body=first.body if is_single else b"".join(send.body + b"\n" for send in group),
                content_type=first.content_type if is_single else _NDJSON,
                metadata=with_put_id(first.metadata, put_id),
            )
        )
    return objects


def _merged(sends: Sequence[Send], *, of_batch: bool) -> list[list[Send]]:
    """Sends that become one object each. Of a batch, all that can share one do; else only very many."""
    groups: dict[Any, list[Send]] = {}
    for index, send in enumerate(sends):
        is_line = b"\n" not in send.body and b"\r" not in send.body and bool(send.body.strip())
        # The first line of a batch loses its byte order mark.
        is_line = is_line and not send.body.startswith(_BOM)
        alike = (send.queue, send.place, send.content_type, tuple(sorted(send.metadata.items())))
        groups.setdefault(alike if is_line else index, []).append(send)
    merged: list[list[Send]] = []
    for group in groups.values():
        if of_batch or len(group) >= MERGED_FROM:
            merged.extend(group[at : at + MERGED_FROM] for at in range(0, len(group), MERGED_FROM))
        else:
            merged.extend([send] for send in group)
    return merged
