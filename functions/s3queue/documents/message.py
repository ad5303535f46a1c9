"""Message: the object that a producer PUT, as a worker sees it. s3queue never changes the payload."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import IO, Any

from s3queue import paths
from s3queue.clock import as_duration
from s3queue.encoding import EARLIEST, LATEST, encode_metadata, put_id_of, storable_type
from s3queue.errors import InvalidRequest, MessageNotFound
from s3queue.store import ObjectInfo

#: The GET of a claim keeps bodies up to this size in memory, but for those that executors of a Spark run read; larger
#: ones are streamed when they are opened.
INLINE_BYTES = 8 * 1024 * 1024
#: How the put id of a message begins of which there is only one: whoever claims it looks for its record first.
ONCE = "once-"
#: The same, of a replay: its name is not its own, so only its id counts.
MOVED = "moved-"
#: The same, of a message of a flow; behind it, which one it is.
MEMBER = f"{ONCE}flow/"
#: Made once: with options, json.dumps makes a new encoder for every call.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Identifies one PUT of a name. Equal bytes within one second count as the same PUT: S3 cannot tell them apart."""

    etag: str
    put_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as it was claimed; a large body is fetched only when it is opened."""

    queue: str
    path: str
    generation: Generation
    size: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    content_type: str = ""
    #: The body, if it was read with the claim.
    inline: bytes | None = field(default=None, repr=False)
    #: Opens the stored object again; None if it is not this generation any more.
    reopen: Callable[[], IO[bytes] | None] = field(default=lambda: None, repr=False, compare=False)

    @property
    def enqueued_at(self) -> datetime:
        return self.generation.put_at

    @property
    def put_id(self) -> str:
        """Which enqueue or replay wrote it, if that had to be told from others of its name; else empty."""
        return put_id_of(self.metadata)

    @property
    def priority(self) -> int:
        return paths.priority_of(self.path)

    @property
    def is_batch(self) -> bool:
        return paths.is_batch(self.path)

    @property
    def body(self) -> bytes:
        """The whole payload in memory."""
        if self.inline is not None:
            return self.inline
        with self.open() as stream:
            return stream.read()

    def stored(self, key: str, at: datetime) -> ObjectInfo:
        """The stored object that this message was read from, to be written again: its metadata is as it was read, and a
        content type that no request can carry is left out.
        """
        return ObjectInfo(
            key=key,
            etag=self.generation.etag,
            size=self.size,
            modified_at=self.enqueued_at,
            at=at,
            metadata=encode_metadata(self.metadata),
            content_type=storable_type(self.content_type),
        )

    def json(self) -> Any:
        """The payload as JSON. Raises ValueError if it is not."""
        return json.loads(self.body)

    def open(self) -> IO[bytes]:
        """The payload as a stream, of any size.

        Raises:
            MessageNotFound: it was deleted or PUT again since it was claimed.
        """
        if self.inline is not None:
            return io.BytesIO(self.inline)
        stream = self.reopen()
        if stream is None:
            raise MessageNotFound(f"{self.queue}/{self.path} was deleted or PUT again since it was claimed")
        return stream


def payload_json(body: Any) -> str:
    """A payload as JSON in one line; models, dataclasses, dates and the like as `plain.py` says.

    Raises:
        TypeError, ValueError, RecursionError: it cannot be written as JSON.
    """
    try:
        return _encode(body)
    except TypeError:
        from s3queue.plain import encode_payload

        return encode_payload(body)


def encode_body(body: Any) -> tuple[bytes, str]:
    """A payload as bytes, and its content type: bytes unchanged, text as UTF-8, anything else as JSON.

    Raises:
        InvalidRequest: it cannot be written as JSON.
    """
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body), "application/octet-stream"
    try:
        if isinstance(body, str):
            return body.encode(), "text/plain; charset=utf-8"
        return payload_json(body).encode(), "application/json"
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body must be bytes, str, JSON, a model or a dataclass: {error}") from None


def due_instant(now: datetime, delay: float | timedelta | None, due_at: datetime | None) -> datetime | None:
    """When a message may run, in UTC; None if neither a delay nor a time was given.

    Raises:
        InvalidRequest: both were given, the time has no zone, or no key can name it.
    """
    if delay is not None and due_at is not None:
        raise InvalidRequest("give a delay or a due_at, not both")
    if delay is not None:
        return now + as_duration(delay, "the delay")
    if due_at is None:
        return None
    if not isinstance(due_at, datetime):
        raise InvalidRequest(f"due_at must be a datetime with a time zone, not {due_at!r}")
    if due_at.tzinfo is None:
        raise InvalidRequest(f"due_at {due_at} has no time zone; give an aware datetime")
    try:
        found = due_at.astimezone(UTC)
    except OverflowError:
        found = LATEST + timedelta(seconds=1)
    if not EARLIEST <= found <= LATEST:
        raise InvalidRequest(f"due_at {due_at} is not between {EARLIEST:%Y} and {LATEST:%Y}")
    return found


def is_placeholder(stored: ObjectInfo | None) -> bool:
    """Whether this is an S3 console's folder, an empty object whose key ends with a slash, and not a message."""
    return stored is not None and stored.size == 0 and stored.key.endswith("/")
