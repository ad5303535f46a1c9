"""Objects that are read in ranges: RangedFile from its end, for a Parquet footer; RangedLines from any byte on."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from spark.storage.bucket import Bucket

#: Read with the first request: most footers are smaller.
TAIL_BYTES = 64 * 1024
PIECE_BYTES = 1024 * 1024


class RangedFile(io.RawIOBase):
    """Reads only what is asked for, and the last 64 KiB at once. For one thread.

    Raises, from reading:
        OSError: the object is gone, was replaced since the first range of it was read, or cannot be read.
    """

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        self._bucket = bucket
        self._key = key
        self._size = size
        self._at = 0
        self._etag: str | None = None
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
        from botocore.exceptions import BotoCoreError, ClientError

        condition: dict[str, Any] = {"IfMatch": self._etag} if self._etag else {}
        try:
            answer = self._bucket.client().get_object(
                Bucket=self._bucket.name, Key=self._key, Range=f"bytes={start}-{end - 1}", **condition
            )
            self._etag = answer["ETag"]
            body: bytes = answer["Body"].read()
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"{self._key} cannot be read: {error}") from error
        if len(body) != end - start:
            raise OSError(f"{self._key} has another size than it was listed with: it was replaced")
        return body


class Openable(Protocol):
    """What can be read from any byte on, in pieces."""

    def pieces(self, start: int) -> Iterator[bytes]: ...


class RangedLines:
    """An object, from any byte on, in pieces of a megabyte."""

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        self._bucket = bucket
        self._key = key
        self._size = size

    def pieces(self, start: int) -> Iterator[bytes]:
        """Raises OSError: the object is gone, was replaced since it was listed, or cannot be read."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._bucket.client().get_object(Bucket=self._bucket.name, Key=self._key, Range=f"bytes={start}-")
            if int(answer["ContentRange"].rpartition("/")[2]) != self._size:
                raise OSError(f"{self._key} has another size than it was listed with: it was replaced")
            with answer["Body"] as body:
                while piece := body.read(PIECE_BYTES):
                    yield piece
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"{self._key} cannot be read: {error}") from error


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
