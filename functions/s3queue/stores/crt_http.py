"""Signed HTTP/1.1 through the AWS Common Runtime: connections that are kept, requests that end, bodies that stream.

awscrt does the work in C, on threads of its own; a caller waits for it without holding the interpreter.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock
from typing import IO, Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from awscrt import auth, http
from awscrt import io as runtime
from awscrt.exceptions import AwsCrtError

from s3queue.errors import Unavailable

CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
#: A body may take longer to send than an answer to come: this much more for every byte.
SECONDS_PER_BYTE = 1e-6
#: Bodies up to this size are read whole; of larger ones, only so much is ahead of its reader.
WINDOW = 1024 * 1024
_UNSIGNED = "UNSIGNED-PAYLOAD"
_NOTHING = hashlib.sha256(b"").hexdigest()

Headers = Sequence[tuple[str, str]]
Credentials = tuple[str, str, str | None]


class Broken(Unavailable):
    """There was no answer, or only half of one."""


@dataclass(slots=True)
class Answer:
    """What came back. A body beyond `WINDOW` is in `stream`, still on its way; whoever takes it closes it."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    stream: IO[bytes] | None = None


class Connections:
    """Keeps connections to one address and sends signed requests over them; safe for threads."""

    def __init__(self, address: str, *, region: str, credentials: Callable[[], Credentials], keep: int = 64) -> None:
        parts = urlsplit(address)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        #: As the signature needs it: with the port, unless it is the usual one.
        self._authority = parts.netloc
        self._region = region
        self._credentials = credentials
        self._keep = keep
        self._idle: list[Any] = []
        self._mutex = Lock()
        self._process = os.getpid()
        self._bootstrap = runtime.ClientBootstrap.get_or_create_static_default()
        self._socket = runtime.SocketOptions()
        self._socket.connect_timeout_ms = int(CONNECT_SECONDS * 1000)
        self._socket.keep_alive = True
        self._tls = _trust(self._host) if parts.scheme == "https" else None
        self._proxy = _proxy(parts)
        self._signer: tuple[Credentials, Any] | None = None

    def send(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes | IO[bytes] = b"",
        *,
        streams: bool = False,
        what: str = "",
    ) -> Answer:
        """One request, once; `what` names it in errors. With `streams`, a large body is not waited for.

        Raises:
            Broken: unknown what became of it.
        """
        if os.getpid() != self._process:
            raise RuntimeError("awscrt does not survive a fork: open the store in the process that uses it")
        length = len(body) if isinstance(body, bytes) else _length(body)
        request = self._signed(method, path, headers, body, length)
        exchange = _Exchange(self._take(what), self._give_back, what, streams=streams)
        return exchange.run(request, READ_SECONDS + SECONDS_PER_BYTE * length)

    def _signed(
        self, method: str, path: str, headers: Headers, body: bytes | IO[bytes], length: int
    ) -> http.HttpRequest:
        described = [("host", self._authority), *headers]
        if method == "PUT":
            described.append(("content-length", str(length)))
        stream: IO[bytes] | None = None
        digest = _NOTHING
        if isinstance(body, bytes):
            if body:
                digest, stream = hashlib.sha256(body).hexdigest(), io.BytesIO(body)
        else:
            # To hash a file is to read it twice.
            digest, stream = _UNSIGNED, body
        request = http.HttpRequest(method, path, http.HttpHeaders(described), stream)
        config = auth.AwsSigningConfig(
            credentials_provider=self._provider(),
            region=self._region,
            service="s3",
            # S3 alone takes a key as it is: encoded once, dots and double slashes kept.
            use_double_uri_encode=False,
            should_normalize_uri_path=False,
            signed_body_value=digest,
            signed_body_header_type=auth.AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256,
        )
        auth.aws_sign_request(request, config).result()
        return request

    def _provider(self) -> Any:
        """The credentials in awscrt's own form, made again when they have been renewed."""
        found = self._credentials()
        known = self._signer
        if known is None or known[0] != found:
            self._signer = known = found, auth.AwsCredentialsProvider.new_static(*found)
        return known[1]

    def _take(self, what: str) -> Any:
        with self._mutex:
            while self._idle:
                # The latest first: what is not needed goes cold, and is closed by the server.
                connection = self._idle.pop()
                if connection.is_open():
                    return connection
        try:
            return http.HttpClientConnection.new(
                self._host,
                self._port,
                self._bootstrap,
                socket_options=self._socket,
                tls_connection_options=self._tls,
                proxy_options=self._proxy,
                manual_window_management=True,
                initial_window_size=WINDOW,
            ).result(2 * CONNECT_SECONDS)
        except (AwsCrtError, TimeoutError) as error:
            raise Broken(f"{what}: no connection to {self._authority}: {error}") from error

    def _give_back(self, connection: Any) -> None:
        with self._mutex:
            if len(self._idle) < self._keep and connection.is_open():
                self._idle.append(connection)
                return
        connection.close()


class _Exchange:
    """One request and its answer. The `on_` methods are called from awscrt's thread, the rest from the caller's."""

    def __init__(self, connection: Any, give_back: Callable[[Any], None], what: str, *, streams: bool) -> None:
        self._what = what
        self._connection = connection
        self._give_back = give_back
        self._streams = streams
        #: Parts of the body, then None at its end, or what broke it.
        self._parts: SimpleQueue[bytes | Exception | None] = SimpleQueue()
        #: Filled once: when there is something to return.
        self._ready: SimpleQueue[None] = SimpleQueue()
        self._answer: Answer | None = None
        self._is_large = False

    def run(self, request: http.HttpRequest, seconds: float) -> Answer:
        try:
            self._stream = self._connection.request(request, self.on_response, self.on_body)
            self._stream.completion_future.add_done_callback(self.on_end)
            self._stream.activate()
            self._ready.get(timeout=seconds)
            if self._answer is None or not (self._is_large and self._streams):
                return self._whole()
        except BaseException as error:
            # Never used again: a late answer must not be taken for the next one's.
            self._connection.close()
            if isinstance(error, Empty):
                raise Broken(f"{self._what}: no answer within {seconds:.0f} s") from None
            if isinstance(error, AwsCrtError):
                raise Broken(f"{self._what}: {error}") from error
            raise
        self._answer.stream = io.BufferedReader(_Body(self))
        return self._answer

    def _whole(self) -> Answer:
        parts = []
        while (part := self._parts.get_nowait()) is not None:
            if isinstance(part, Exception):
                raise part
            parts.append(part)
        if self._answer is None:
            raise Broken(f"{self._what}: the connection ended without an answer")
        self._answer.body = b"".join(parts)
        self._give_back(self._connection)
        return self._answer

    def next_part(self) -> bytes:
        """The next part of a large body, as soon as it is here; nothing at its end."""
        try:
            part = self._parts.get(timeout=READ_SECONDS)
        except Empty:
            part = TimeoutError(f"no more of the body within {READ_SECONDS:.0f} s")
        if part is None:
            self._give_back(self._connection)
            return b""
        if isinstance(part, Exception):
            self._connection.close()
            raise Broken(f"{self._what}: the connection broke: {part}") from part
        self._stream.update_window(len(part))
        return part

    def abandon(self) -> None:
        """What is still on its way would come before the next answer."""
        self._connection.close()

    def on_response(self, http_stream: Any, status_code: int, headers: list[tuple[str, str]], **_: Any) -> None:
        self._answer = Answer(status_code, {name.lower(): value for name, value in headers})
        length = self._answer.headers.get("content-length")
        self._is_large = length is None or int(length) > WINDOW
        if self._is_large and self._streams:
            self._ready.put(None)

    def on_body(self, http_stream: Any, chunk: bytes, **_: Any) -> None:
        self._parts.put(bytes(chunk))
        if self._is_large and not self._streams:
            http_stream.update_window(len(chunk))

    def on_end(self, completed: Any) -> None:
        self._parts.put(completed.exception())
        self._ready.put(None)


class _Body(io.RawIOBase):
    """The rest of a large answer, read while it arrives. A connection that breaks raises Broken."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange
        self._left = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left and not self._ended:
            self._left = memoryview(self._exchange.next_part())
            self._ended = not self._left
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    def close(self) -> None:
        if not self.closed and not self._ended:
            self._ended = True
            self._exchange.abandon()
        super().close()


def _length(body: IO[bytes]) -> int:
    """What is left of it, from where it stands."""
    start = body.tell()
    end = body.seek(0, os.SEEK_END)
    body.seek(start)
    return end - start


def _trust(host: str) -> Any:
    options = runtime.TlsContextOptions()
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        options.override_default_trust_store_from_path(ca_filepath=bundle)
    connection = runtime.ClientTlsContext(options).new_connection_options()
    connection.set_server_name(host)
    return connection


def _proxy(address: SplitResult) -> Any:
    found = getproxies().get(address.scheme)
    if not found or proxy_bypass(address.hostname or ""):
        return None
    parts = urlsplit(found)
    return http.HttpProxyOptions(parts.hostname or "", parts.port or 80)
