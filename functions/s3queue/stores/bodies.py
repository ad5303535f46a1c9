"""Bodies as boto3 gives and takes them: one that says when its connection broke, one that begins where it stands."""

from __future__ import annotations

import io
from typing import IO, Any

from botocore.exceptions import BotoCoreError

from s3queue.errors import Unavailable


class ReceivedBody(io.RawIOBase):
    """A body that raises Unavailable when its connection breaks."""

    def __init__(self, body: Any, key: str) -> None:
        self._stream = body
        self._key = key

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def readall(self) -> bytes:
        return self._read(None)

    def _read(self, size: int | None) -> bytes:
        try:
            chunk: bytes = self._stream.read(size)
        except (BotoCoreError, OSError) as error:
            raise Unavailable(f"GET {self._key}: the connection broke: {error}") from error
        return chunk

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


class RestOfStream(io.RawIOBase):
    """A stream from its current position on: with awscrt installed, botocore would send it from the beginning."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._start = stream.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._stream.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset + (self._start if whence == io.SEEK_SET else 0), whence) - self._start

    def tell(self) -> int:
        return self._stream.tell() - self._start
