"""Connection: sends requests and reads answers, and leaves nothing of one answer for the next request.

It knows only as much of HTTP/1.1 as S3 uses, without copies and without parsers for what S3 never sends: these are what
costs a general client its CPU.
"""

from __future__ import annotations

import io
import select
from collections.abc import Callable
from typing import IO, Any

READ_SECONDS = 10.0
#: How long to wait for "100 Continue" before a large body; some servers never send it.
ASK_SECONDS = 1.0
CHUNK_BYTES = 256 * 1024
_LINE_BYTES = 64 * 1024


class _Input(io.RawIOBase):
    """The bytes that arrive. While it is `shut`, a read sees only buffered bytes and does not wait for more."""

    def __init__(self, socket: Any) -> None:
        self._receive: Callable[[Any], int] = socket.recv_into
        self.shut = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        return None if self.shut else self._receive(buffer)


class Connection:
    """Raises OSError or ValueError if it breaks, or if what arrives is not an HTTP answer."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._raw = _Input(socket)
        self._input = io.BufferedReader(self._raw, CHUNK_BYTES)
        self._decrypted: Callable[[], int] = getattr(socket, "pending", int)
        #: A final answer that came instead of "100 Continue".
        self._early: tuple[int, dict[str, str]] | None = None
        self._is_sent = True
        #: When its last answer was complete, by the monotonic clock; None if it has had none.
        self.used: float | None = None
        self._poll = select.poll()
        self._poll.register(socket, select.POLLIN)
        self.is_kept = True

    def is_open(self) -> bool:
        """Whether it can be used again. Between two requests nothing may arrive: neither the end of the connection nor
        bytes that would be taken for the next answer.
        """
        self._raw.shut = True
        left = self._input.peek(1)
        self._raw.shut = False
        return not (left or self._decrypted() or self._poll.poll(0))

    def send(self, head: bytes, body: bytes | IO[bytes], length: int, *, asks: bool) -> None:
        if isinstance(body, bytes) and not asks:
            self._socket.sendall(head + body)
            return
        self._socket.sendall(head)
        if asks and not self._is_wanted():
            # Refused: the body is not sent, and the connection is not used again, because the server may wait for it.
            self._is_sent = self.is_kept = False
            return
        # In pieces: the time-out applies to everything that one call sends.
        source = io.BytesIO(body) if isinstance(body, bytes) else body
        while chunk := source.read(CHUNK_BYTES):
            length -= len(chunk)
            if length < 0:
                break
            if asks and not self.is_open():
                # Answered before all was sent: the server may take the rest for the next request.
                self.is_kept = False
            try:
                self._socket.sendall(chunk)
            except ConnectionError:
                # Refused during sending: the answer may have arrived nevertheless.
                self._is_sent = self.is_kept = False
                return
        if length:
            raise ValueError("the body changed its length while it was sent")

    def _is_wanted(self) -> bool:
        self._socket.settimeout(ASK_SECONDS)
        try:
            self._input.peek(1)
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(READ_SECONDS)
        self._early = self._head()
        return self._early[0] < 200

    def receive_head(self) -> tuple[int, dict[str, str]]:
        status, headers = self._early or self._head()
        self._early = None
        while status < 200:
            status, headers = self._head()
        if status < 300 and not self._is_sent:
            raise ValueError(f"the server answered {status} before the body was sent")
        return status, headers

    def _head(self) -> tuple[int, dict[str, str]]:
        version, _, rest = self._line().partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(f"the answer is not HTTP: {version!r}")
        headers = {}
        while line := self._line():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if version == "HTTP/1.0" or "close" in headers.get("connection", "").lower():
            self.is_kept = False
        return int(rest[:3]), headers

    def receive_body(self, headers: dict[str, str]) -> bytes:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            parts = []
            while size := int(self._line().partition(";")[0], 16):
                parts.append(self.read_exactly(size))
                self._line()
            while self._line():
                pass
            return b"".join(parts)
        if "content-length" in headers:
            return self.read_exactly(int(headers["content-length"]))
        self.is_kept = False
        return self._input.read()

    def read_exactly(self, size: int) -> bytes:
        found = self._input.read(size)
        if len(found) < size:
            raise ValueError(f"the connection broke after {len(found)} of {size} bytes")
        return found

    def read_some(self, size: int) -> bytes:
        return self._input.read1(size)

    def _line(self) -> str:
        line = self._input.readline(_LINE_BYTES)
        if not line.endswith(b"\n"):
            # Half a header is not used: half an ETag would be that of another object.
            raise ValueError(f"the connection ended {'within' if line else 'without'} an answer")
        return line.decode("latin-1").rstrip("\r\n")

    def close(self) -> None:
        self._input.close()
        self._socket.close()
