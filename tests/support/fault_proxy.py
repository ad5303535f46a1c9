"""A proxy on 127.0.0.1 before an S3 server that breaks requests, answers and connections, as networks and S3 itself do.

Requests pass unchanged, `Host` included, because the client signed it. Which request meets which fault is drawn from a
seeded generator; the kinds come from a shuffled deck, so that a short run meets every one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

HOST = "127.0.0.1"
#: Larger than any head that S3 or its clients send.
HEAD_BYTES = 256 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_ETAG = re.compile(rb'\r\netag: *"?([^"\r\n]+)|<ETag>(?:&#34;|&quot;|")?([^<&"]+)', re.IGNORECASE)
_ERROR = "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>a fault</Message></Error>"
#: State documents: written conditionally, with a nonce, so that a write that arrives late can do no harm.
_STATE = re.compile(r"/(?:leases|records|workers|locks|runs)/|/queue\.json$")


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the client sent it."""

    method: str
    #: The decoded key behind the bucket's name; empty for a LIST and for the bucket itself.
    key: str
    head: bytes
    body: bytes

    @property
    def is_conditional(self) -> bool:
        lower = self.head.lower()
        return b"\r\nif-match:" in lower or b"\r\nif-none-match:" in lower

    @property
    def is_state_write(self) -> bool:
        return self.method in ("PUT", "DELETE") and self.is_conditional and bool(_STATE.search(f"/{self.key}"))


def _any(request: Request) -> bool:
    return True


def _write(request: Request) -> bool:
    return request.method in ("PUT", "DELETE")


def _conditional_put(request: Request) -> bool:
    return request.method == "PUT" and request.is_conditional


def _answers_with_body(request: Request) -> bool:
    return request.method == "GET"


#: Kind → how often it is in the deck, and which requests it can meet. The names are the rows of the proof's table.
FAULTS: dict[str, tuple[int, Callable[[Request], bool]]] = {
    "closed before the request": (2, _any),
    "reset before the request": (2, _any),
    "500 before the request": (2, _any),
    "503 before the request": (2, _any),
    "503 SlowDown": (2, _any),
    "409 before the write": (2, _conditional_put),
    "answer lost after the write": (6, _write),
    "answer cut in its head": (4, _any),
    "answer cut in its body": (3, _answers_with_body),
    "reset after the request": (3, _any),
    "500 after the write": (3, _write),
    "503 after the write": (3, _write),
    "409 after the write": (1, _conditional_put),
    "write that arrives late": (3, lambda request: request.is_state_write),
    "slow request": (3, _any),
    "slow answer": (3, _any),
    "idle connection closed": (4, _any),
    "idle connection reset": (4, _any),
}
_BEFORE = {
    "500 before the request": (500, "InternalError"),
    "503 before the request": (503, "ServiceUnavailable"),
    "503 SlowDown": (503, "SlowDown"),
    "409 before the write": (409, "ConditionalRequestConflict"),
}
_AFTER = {
    "500 after the write": (500, "InternalError"),
    "503 after the write": (503, "ServiceUnavailable"),
    "409 after the write": (409, "ConditionalRequestConflict"),
}


@dataclass
class FaultProxy:
    """What to do with the requests that pass, and what was done so far. `rate` may be changed at any time."""

    upstream: str
    seed: float
    #: The part of the requests that meets a fault; 0: none does.
    rate: float = 0.0
    #: Called with key, size and ETag of every object that was stored, whatever the client was told; must not wait.
    on_created: Callable[[str, int, str], None] = lambda key, size, etag: None
    endpoint: str = ""
    requests: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    #: How long "slow" is, and how late "late" is, in seconds.
    delays: tuple[float, float] = (0.2, 1.5)
    lateness: tuple[float, float] = (0.5, 6.0)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._deck: list[str] = []
        self._expected = ""
        self._late: set[asyncio.Task[None]] = set()
        address = urlsplit(self.upstream)
        self._address = (address.hostname or HOST, address.port or 80)

    def expect(self, name: str) -> None:
        """The next request that can meet this fault does."""
        self._expected = name

    def draw(self, request: Request) -> str:
        """The fault that this request meets; empty: none."""
        self.requests += 1
        if self._expected and FAULTS[self._expected][1](request):
            name, self._expected = self._expected, ""
            self.injected[name] += 1
            return name
        if self._chance.random() >= self.rate:
            return ""
        if len(self._deck) < len(FAULTS):
            fresh = [name for name, (count, _) in FAULTS.items() for _ in range(count)]
            self._chance.shuffle(fresh)
            self._deck += fresh
        for place, name in enumerate(self._deck):
            if FAULTS[name][1](request):
                del self._deck[place]
                self.injected[name] += 1
                return name
        return ""

    def missing(self) -> list[str]:
        """The kinds of faults that no request has met yet."""
        return [name for name in FAULTS if not self.injected[name]]

    # One connection of a client

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = _Line(self._address)
        try:
            while request := await _read_request(reader, writer):
                if not await self._answer(request, writer, line):
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            return  # the client or the server hung up
        finally:
            line.close()
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter, line: _Line) -> bool:
        """Carry one request out, or do not; whether the connection is used again."""
        fault = self.draw(request)
        if fault in _BEFORE:
            await _send(writer, _error(request, *_BEFORE[fault]))
            return True
        if fault == "closed before the request":
            return False
        if fault == "reset before the request":
            return _reset(writer)
        if fault == "write that arrives late":
            task = asyncio.ensure_future(self._carry_out_later(request))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            return False
        if fault == "slow request":
            await asyncio.sleep(self._chance.uniform(*self.delays))
        head, body = await line.ask(request)
        self._tell(request, head, body)
        if fault == "slow answer":
            await asyncio.sleep(self._chance.uniform(*self.delays))
        if fault == "answer lost after the write":
            return False
        if fault == "reset after the request":
            return _reset(writer)
        if fault in _AFTER and head.startswith(b"HTTP/1.1 2"):
            await _send(writer, _error(request, *_AFTER[fault]))
            return True
        if fault == "answer cut in its head":
            # Anywhere: in the middle of a name, of a value, or just before the empty line.
            await _send(writer, head[: self._chance.randrange(1, len(head))])
            return False
        if fault == "answer cut in its body":
            await _send(writer, head + body[: len(body) // 2])
            return False
        await _send(writer, head + body)
        if fault.startswith("idle connection"):
            await asyncio.sleep(self._chance.uniform(0.0, 0.1))
            return _reset(writer) if fault.endswith("reset") else False
        return b"\r\nconnection: close" not in head.lower()

    async def _carry_out_later(self, request: Request) -> None:
        await asyncio.sleep(self._chance.uniform(*self.lateness))
        line = _Line(self._address)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self._tell(request, *await line.ask(request))
        line.close()

    def _tell(self, request: Request, head: bytes, body: bytes) -> None:
        if request.method == "PUT" and request.key and head.startswith(b"HTTP/1.1 200"):
            found = _ETAG.search(head) or _ETAG.search(body)
            etag = (found[1] or found[2]).decode() if found else ""
            self.on_created(request.key, len(request.body), etag)


class _Line:
    """A kept connection to the server."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Request) -> tuple[bytes, bytes]:
        """Head and body of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address, limit=HEAD_BYTES)
        reader, writer = self._streams
        await _send(writer, request.head + request.body)
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 1"):
                break
        bare = request.method == "HEAD" or head[9:12] in (b"204", b"304")
        body = b"" if bare else await _read_body(reader, head)
        if b"\r\nconnection: close" in head.lower():
            self.close()
        return head, body

    def close(self) -> None:
        if self._streams:
            self._streams[1].close()
        self._streams = None


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
    if b"\r\nexpect: 100-continue" in head.lower():
        await _send(writer, b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await _read_body(reader, head)
    _, _, key = unquote(urlsplit(target).path).removeprefix("/").partition("/")
    return Request(method, key, head, body)


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """The bytes as they came, chunked ones with their sizes."""
    if b"\r\ntransfer-encoding: chunked" not in head.lower():
        length = _LENGTH.search(head)
        return await reader.readexactly(int(length[1])) if length else b""
    parts = []
    while True:
        size = await reader.readuntil(b"\r\n")
        parts.append(size)
        parts.append(await reader.readexactly(int(size.split(b";")[0], 16) + 2))
        if not int(size.split(b";")[0], 16):
            return b"".join(parts)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> bool:
    """Close with RST instead of FIN; the connection is not used again."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
    return False


def _error(request: Request, status: int, code: str) -> bytes:
    body = _ERROR.format(code=code).encode()
    head = f"HTTP/1.1 {status} Fault\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + (b"" if request.method == "HEAD" else body)


@contextlib.contextmanager
def fault_proxy(
    upstream: str, *, seed: float, on_created: Callable[[str, int, str], None] | None = None
) -> Iterator[FaultProxy]:
    """Serve the proxy from a thread of this process. It passes everything on until its `rate` is set."""
    proxy = FaultProxy(upstream, seed)
    if on_created:
        proxy.on_created = on_created
    loop = asyncio.new_event_loop()
    # A connection that is closed while the client still writes is a fault as ordered, not one to report.
    loop.set_exception_handler(lambda loop, context: None)
    serving: Awaitable[asyncio.Server] = asyncio.start_server(proxy.serve, HOST, 0, limit=HEAD_BYTES, backlog=256)
    server = loop.run_until_complete(serving)
    proxy.endpoint = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, name="fault-proxy", daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
