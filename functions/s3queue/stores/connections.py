"""Connections: sends signed requests over kept connections, in the caller's thread. Large bodies are streamed.

`http.client` opens the connections, with its handling of names, TLS and proxies.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import ssl
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from threading import Lock
from typing import IO, Any
from urllib.parse import SplitResult, unquote, urlsplit

from s3queue.clock import Clock, SystemClock
from s3queue.errors import InvalidRequest, QueueError, Unavailable

from .connection import CHUNK_BYTES, READ_SECONDS, Connection
from .signature import UNSIGNED, Credentials, Headers, sign

CONNECT_SECONDS = 5.0
#: A connection is not used again after this long: a function that was frozen does not notice that the server closed it.
IDLE = timedelta(seconds=20)
#: Before a body of at least this size, the server is asked (`Expect: 100-continue`), so that a refused one is not sent.
ASK_FIRST_BYTES = 1024 * 1024
#: Bodies up to this size are read whole.
WHOLE_BYTES = 1024 * 1024
_NOTHING = hashlib.sha256(b"").hexdigest()


class Broken(Unavailable):
    """There was no answer, or only half of one. Not `was_sent`: there was no connection to send it on."""

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent


@dataclass(slots=True)
class Answer:
    """An answer. A body larger than `WHOLE_BYTES` is in `stream`, still arriving; the caller closes it."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    stream: IO[bytes] | None = None


class Connections:
    """Keeps connections to one address and sends signed requests over them; safe for threads."""

    def __init__(
        self,
        address: str,
        *,
        region: str,
        credentials: Callable[[], Credentials],
        keep: int = 64,
        clock: Clock | None = None,
    ) -> None:
        self._address = urlsplit(address)
        if self._address.scheme not in ("http", "https") or not self._address.hostname:
            raise InvalidRequest(f"{address!r} is not an endpoint; write http://host:port or https://host")
        self._port = self._address.port or (443 if self._address.scheme == "https" else 80)
        host = self._address.hostname
        self._host = f"[{host}]" if ":" in host else host
        if self._port != (443 if self._address.scheme == "https" else 80):
            self._host += f":{self._port}"
        self._region = region
        self._credentials = credentials
        self._keep = keep
        self._clock = clock or SystemClock()
        self._idle: list[Connection] = []
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
        """Send one request once; `what` names it in errors. With `streams`, a large body is returned as a stream.

        Raises:
            Broken: unknown whether it was carried out.
        """
        length = len(body) if isinstance(body, bytes) else _length(body)
        described = [("host", self._host), ("user-agent", "s3queue"), *headers]
        asks = method == "PUT" and length >= ASK_FIRST_BYTES
        if method in ("PUT", "POST"):
            described.append(("content-length", str(length)))
        if asks:
            described.append(("expect", "100-continue"))
        digest = _NOTHING
        if length:
            digest = hashlib.sha256(body).hexdigest() if isinstance(body, bytes) else UNSIGNED
        signed = sign(method, path, query, described, digest, self._credentials(), self._region)
        target = f"{path}?{query}" if query else path
        head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in signed) + "\r\n"
        try:
            connection = self._take()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Broken(f"{what}: no connection to {self._host}: {error}", was_sent=False) from error
        try:
            connection.send(head.encode(), body, length, asks=asks)
            return self._received(connection, method, streams, what)
        except BaseException as error:
            # Never used again: bytes that still arrive would be taken for the answer to the next request.
            connection.close()
            if connection.used is not None:
                self._hang_up()
            if isinstance(error, (OSError, ValueError)) and not isinstance(error, QueueError):
                raise Broken(f"{what}: {error}") from error
            raise

    def _received(self, connection: Connection, method: str, streams: bool, what: str) -> Answer:
        status, headers = connection.receive_head()
        answer = Answer(status, headers)
        length = headers.get("content-length")
        if streams and length and int(length) > WHOLE_BYTES and status == 200:
            body = _Body(connection, int(length), self._give_back, what)
            answer.stream = io.BufferedReader(body, CHUNK_BYTES)
            return answer
        if streams and status == 200 and length is None and "transfer-encoding" not in headers:
            raise ValueError("the answer has no Content-Length, so a broken connection would look like its end")
        if method != "HEAD" and status not in (204, 304):
            answer.body = connection.receive_body(headers)
        self._give_back(connection)
        return answer

    def _take(self) -> Connection:
        if os.getpid() != self._process:
            # After a fork, the connections belong to the parent process.
            self._idle, self._process, self._mutex = [], os.getpid(), Lock()
        since = self._clock.monotonic() - IDLE.total_seconds()
        with self._mutex:
            while self._idle:
                # The latest first: the others become too old, and the server closes them.
                connection = self._idle.pop()
                if connection.used is not None and connection.used > since and connection.is_open():
                    return connection
                connection.close()
        return Connection(self._connected())

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        # Not before the first connection: reading the certificates would be most of the cost of making a store.
        return ssl.create_default_context(
            cafile=os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE") or None
        )

    def _connected(self) -> Any:
        host = self._address.hostname or ""
        made: http.client.HTTPConnection
        via = (self._proxy.hostname or "", self._proxy.port or 80) if self._proxy else (host, self._port)
        if self._address.scheme == "https":
            made = http.client.HTTPSConnection(*via, timeout=CONNECT_SECONDS, context=self._tls)
            if self._proxy:
                made.set_tunnel(host, self._port, _identification(self._proxy))
        else:
            made = http.client.HTTPConnection(*via, timeout=CONNECT_SECONDS)
        made.connect()
        made.sock.settimeout(READ_SECONDS)
        return made.sock

    def _give_back(self, connection: Connection) -> None:
        connection.used = self._clock.monotonic()
        with self._mutex:
            if connection.is_kept and len(self._idle) < self._keep:
                self._idle.append(connection)
                return
        connection.close()

    def _hang_up(self) -> None:
        """Close all kept connections: what broke one may have broken all, and there are more of them than tries."""
        with self._mutex:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class _Body(io.RawIOBase):
    """A large body, read while it arrives. A broken connection raises Broken, and never looks like the end."""

    def __init__(self, connection: Connection, size: int, give_back: Callable[[Connection], None], what: str) -> None:
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
            raise Broken(f"{self._what}: the connection broke {self._left} bytes before the end")
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
    """The number of bytes from the current position to the end."""
    start = body.tell()
    end = body.seek(0, os.SEEK_END)
    body.seek(start)
    return end - start


def _proxy(address: SplitResult) -> SplitResult | None:
    # A plain-HTTP endpoint is a server on this machine or near it, and needs no proxy.
    if address.scheme != "https":
        return None
    from urllib.request import getproxies, proxy_bypass

    found = getproxies().get(address.scheme)
    if not found or proxy_bypass(address.hostname or ""):
        return None
    return urlsplit(found if "://" in found else f"http://{found}")


def _identification(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    told = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(told.encode()).decode()}"}
