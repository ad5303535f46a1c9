"""Objects that are read in ranges: RangedFile from its end, for a Parquet footer; RangedLines from any byte on."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from s3queue.errors import Conflict, Unavailable
from s3queue.stores.s3_errors import refusal
from s3queue.stores.wire import quoted, unquoted

if TYPE_CHECKING:
    from spark.storage.bucket import Bucket

#: Read with the first request: most footers are smaller.
TAIL_BYTES = 64 * 1024
PIECE_BYTES = 1024 * 1024


class RangedFile(io.RawIOBase):
    """Reads only what is asked for, and the last 64 KiB at once. For one thread.

    Raises, from reading:
        QueueError: see `get_range`. Without an `etag`, it is the first range's that counts.
    """

    def __init__(self, bucket: Bucket, key: str, size: int, etag: str = "") -> None:
        self._bucket = bucket
        self._key = key
        self._size = size
        self._at = 0
        self._etag = etag
        self._tail_from = max(0, size - TAIL_BYTES)
        self._tail: bytes | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._size - self._at)
        if wanted <= 0:
            return 0
        if self._tail is None:
            self._tail = self._get(self._tail_from, self._size)
        if self._at >= self._tail_from:
            start = self._at - self._tail_from
            found = self._tail[start : start + wanted]
        else:
            found = self._get(self._at, self._at + wanted)
        view[: len(found)] = found
        self._at += len(found)
        return len(found)

    def _get(self, start: int, end: int) -> bytes:
        answer = get_range(self._bucket, self._key, f"{start}-{end - 1}", self._size, self._etag)
        self._etag = unquoted(answer["ETag"])
        return b"".join(_pieces(self._key, answer["Body"]))


def get_range(bucket: Bucket, key: str, wanted: str, size: int, etag: str) -> dict[str, Any]:
    """The answer to a GET of a range of an object that was listed with this size, and this ETag if it is known.

    Raises:
        Conflict: it was replaced or deleted since. Unavailable, AccessDenied, …: as a store does.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from s3queue.stores.sdk_answers import failure_of

    condition = {"IfMatch": quoted(etag)} if etag else {}
    try:
        answer: dict[str, Any] = bucket.client().get_object(
            Bucket=bucket.name, Key=key, Range=f"bytes={wanted}", **condition
        )
    except ClientError as error:
        status, said = error.response["ResponseMetadata"]["HTTPStatusCode"], error.response.get("Error", {})
        code, text = said.get("Code", ""), said.get("Message", "")
        # It was listed: what is gone or another one by now is that also without an ETag.
        problem = refusal(status, code, text, "get", bucket.name, key, retried=False, condition="match")
        raise _replaced(key) if isinstance(problem, Conflict) else problem from error
    except BotoCoreError as error:
        raise failure_of(error, "get", bucket.name, key) from error
    if int(answer["ContentRange"].rpartition("/")[2]) != size:
        raise _replaced(key)
    return answer


def _replaced(key: str) -> Conflict:
    return Conflict(f"{key} was replaced or deleted since it was listed; start again when nobody writes to it")


def _pieces(key: str, body: Any) -> Iterator[bytes]:
    from botocore.exceptions import BotoCoreError

    try:
        with body:
            while piece := body.read(PIECE_BYTES):
                yield piece
    except BotoCoreError as error:
        raise Unavailable(f"{key}: the connection broke: {error}") from error


class Openable(Protocol):
    """What can be read from any byte on, in pieces."""

    def pieces(self, start: int) -> Iterator[bytes]: ...


class RangedLines:
    """An object, from any byte on, in pieces of a megabyte."""

    def __init__(self, bucket: Bucket, key: str, size: int, etag: str = "") -> None:
        self._bucket = bucket
        self._key = key
        self._size = size
        self._etag = etag

    def pieces(self, start: int) -> Iterator[bytes]:
        """Raises QueueError: see `get_range`."""
        answer = get_range(self._bucket, self._key, f"{start}-", self._size, self._etag)
        yield from _pieces(self._key, answer["Body"])


def lines_from(source: Openable, start: int, end: int) -> Iterator[bytes]:
    """The lines that begin from `start` up to before `end`, so that every line is in exactly one part, in pieces.

    The last one may end behind that. A line begins behind a line break, so the byte before the part is read, too.
    """
    at = max(0, start - 1)
    is_in_line = start == 0
    for piece in source.pieces(at):
        begin = 0
        if not is_in_line:
            begin = piece.find(b"\n") + 1
            if not begin:
                at += len(piece)
                if at >= end:
                    return
                continue
            is_in_line = True
            if at + begin >= end:
                return
        # A line that begins before `end` goes on to its own end: the first line break from the byte before it on.
        last = piece.find(b"\n", max(begin, end - 1 - at)) + 1 if at + len(piece) >= end else 0
        if last:
            yield piece[begin:last]
            return
        yield piece[begin:]
        at += len(piece)
