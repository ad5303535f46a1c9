"""As much of HTTP/1.1 as S3 speaks: kept connections, whole answers, large bodies read while they arrive.

In the caller's own thread and without copies or parsers for what S3 never sends, which is where the CPU of a general
client goes. `http.client` makes the connections: names, TLS and proxies are its own.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import select
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import IO, Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from s3queue.errors import Unavailable

from .signature import UNSIGNED, Credentials, Headers, sign

CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
#: How long a server may take to say that it wants a large body; some never say it.
ASK_SECONDS = 1.0
#: Bodies from this size on ask before they are sent, so that a refused one is not sent in vain.
ASK_FIRST_BYTES = 1024 * 1024
#: Bodies up to this size are read whole.
WHOLE_BYTES = 1024 * 1024
CHUNK_BYTES = 256 * 1024
_LINE_BYTES = 64 * 1024
_NOTHING = hashlib.sha256(b"").hexdigest()


class Broken(Unavailable):
    """There was no answer, or only half of one."""


@dataclass(slots=True)
class Answer:
    """What came back. A body beyond `WHOLE_BYTES` is in `stream`, still on its way; whoever takes it closes it."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    stream: IO[bytes] | None = None


class Connections:
    """Keeps connections to one address and sends signed requests over them; safe for threads."""

    def __init__(self, address: str, *, region: str, credentials: Callable[[], Credentials], keep: int = 64) -> None:
        self._address = urlsplit(address)
        self._region = region
        self._credentials = credentials
        self._keep = keep
        self._idle: list[_Connection] = []
        self._mutex = Lock()
        self._process = os.getpid()
        self._proxy = _proxy(self._address)

    def send(
        self,
        method: str,
        path: str,
        headers: Headers = (),
        body: bytes | IO[bytes] = b"",
        *,
        query: str = "",
        streams: bool = False,
        what: str = "",
    ) -> Answer:
        """One request, once; `what` names it in errors. With `streams`, a large body is not waited for.

        Raises:
            Broken: unknown what became of it.
        """
        length = len(body) if isinstance(body, bytes) else _length(body)
        described = [("host", self._address.netloc), ("user-agent", "s3queue"), *headers]
        if method == "PUT":
            described.append(("content-length", str(length)))
            if length >= ASK_FIRST_BYTES:
                described.append(("expect", "100-continue"))
        digest = _NOTHING
        if length:
            digest = hashlib.sha256(body).hexdigest() if isinstance(body, bytes) else UNSIGNED
        signed = sign(method, path, query, described, digest, self._credentials(), self._region)
        target = f"{path}?{query}" if query else path
        head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in signed) + "\r\n"
        try:
            connection = self._take()
        except (OSError, http.client.HTTPException) as error:
            raise Broken(f"{what}: no connection to {self._address.netloc}: {error}") from error
        try:
            connection.send(head.encode(), body, asks=length >= ASK_FIRST_BYTES)
            return self._received(connection, method, streams, what)
        except (OSError, ValueError) as error:
            connection.close()
            raise Broken(f"{what}: {error}") from error
        except BaseException:
            # Never used again: what is still to come would be taken for the next one's answer.
            connection.close()
            raise

    def _received(self, connection: _Connection, method: str, streams: bool, what: str) -> Answer:
        status, headers = connection.receive_head()
        answer = Answer(status, headers)
        length = headers.get("content-length")
        if streams and length and int(length) > WHOLE_BYTES and status == 200:
            body = _Body(connection, int(length), self._give_back, what)
            answer.stream = io.BufferedReader(body, CHUNK_BYTES)
            return answer
        if method != "HEAD" and status not in (204, 304):
            answer.body = connection.receive_body(headers)
        self._give_back(connection)
        return answer

    def _take(self) -> _Connection:
        if os.getpid() != self._process:
            # After a fork the parent's connections are still the parent's.
            self._idle, self._process, self._mutex = [], os.getpid(), Lock()
        with self._mutex:
            while self._idle:
                # The latest first: what is not needed goes cold, and is closed by the server.
                connection = self._idle.pop()
                if connection.is_open():
                    return connection
                connection.close()
        return _Connection(self._connected())

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        # Not before the first connection: reading the certificates is most of what making a store would cost.
        return ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)

    def _connected(self) -> Any:
        host, port = self._address.hostname or "", self._address.port
        made: http.client.HTTPConnection
        via = (self._proxy.hostname or "", self._proxy.port or 80) if self._proxy else (host, port)
        if self._address.scheme == "https":
            made = http.client.HTTPSConnection(*via, timeout=CONNECT_SECONDS, context=self._tls)
            if self._proxy:
                made.set_tunnel(host, port or 443)
        else:
            made = http.client.HTTPConnection(*via, timeout=CONNECT_SECONDS)
        made.connect()
        made.sock.settimeout(READ_SECONDS)
        return made.sock

    def _give_back(self, connection: _Connection) -> None:
        with self._mutex:
            if connection.is_kept and len(self._idle) < self._keep:
                self._idle.append(connection)
                return
        connection.close()


class _Connection:
    """One connection: requests and answers as bytes."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._input = socket.makefile("rb", CHUNK_BYTES)
        self._poll = select.poll()
        self._poll.register(socket, select.POLLIN)
        self.is_kept = True

    def is_open(self) -> bool:
        """Nothing is to come between two requests, except the end."""
        return not self._poll.poll(0)

    def send(self, head: bytes, body: bytes | IO[bytes], *, asks: bool) -> None:
        if isinstance(body, bytes) and not asks:
            self._socket.sendall(head + body)
            return
        self._socket.sendall(head)
        if asks and self._poll.poll(ASK_SECONDS * 1000) and self._input.peek(12)[9:12] != b"100":
            # Refused: the body stays here, and what the server makes of a connection without it is not tried out.
            self.is_kept = False
            return
        try:
            if isinstance(body, bytes):
                self._socket.sendall(body)
            else:
                while chunk := body.read(CHUNK_BYTES):
                    self._socket.sendall(chunk)
        except ConnectionError:
            # Refused while it was being sent: the answer may be there nevertheless.
            self.is_kept = False

    def receive_head(self) -> tuple[int, dict[str, str]]:
        while True:
            version, _, rest = self._line().partition(" ")
            if not version.startswith("HTTP/1."):
                raise ValueError("the connection ended without an answer" if not version else f"not HTTP: {version!r}")
            status = int(rest[:3])
            headers = {}
            while line := self._line():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            if status >= 200:
                break
        if version == "HTTP/1.0" or headers.get("connection", "").lower() == "close":
            self.is_kept = False
        return status, headers

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
        body: bytes = self._input.read()
        return body

    def read_exactly(self, size: int) -> bytes:
        found: bytes = self._input.read(size)
        if len(found) < size:
            raise ValueError(f"the connection broke after {len(found)} of {size} bytes")
        return found

    def read_some(self, size: int) -> bytes:
        found: bytes = self._input.read1(size)
        return found

    def _line(self) -> str:
        line: bytes = self._input.readline(_LINE_BYTES)
        return line.decode("latin-1").rstrip("\r\n")

    def close(self) -> None:
        self._input.close()
        self._socket.close()


class _Body(io.RawIOBase):
    """A large body, read while it arrives. A connection that breaks raises Broken, and never looks like the end."""

    def __init__(self, connection: _Connection, size: int, give_back: Callable[[_Connection], None], what: str) -> None:
        self._connection = connection
        self._left = size
        self._give_back = give_back
        self._what = what

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            return 0
        try:
            chunk = self._connection.read_some(min(len(buffer), self._left))
        except OSError as error:
            raise Broken(f"{self._what}: the connection broke: {error}") from error
        if not chunk:
            raise Broken(f"{self._what}: the connection broke, {self._left} bytes before its end")
        buffer[: len(chunk)] = chunk
        self._left -= len(chunk)
        if not self._left:
            self._give_back(self._connection)
        return len(chunk)

    def close(self) -> None:
        if not self.closed and self._left:
            self._connection.close()
        super().close()


def _length(body: IO[bytes]) -> int:
    """What is left of it, from where it stands."""
    start = body.tell()
    end = body.seek(0, os.SEEK_END)
    body.seek(start)
    return end - start


def _proxy(address: SplitResult) -> SplitResult | None:
    found = getproxies().get(address.scheme)
    # A plain-HTTP endpoint is a server on this machine or beside it, and no proxy's business.
    if not found or address.scheme != "https" or proxy_bypass(address.hostname or ""):
        return None
    return urlsplit(found if "://" in found else f"http://{found}")
