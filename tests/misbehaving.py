"""An S3 server on 127.0.0.1 that misbehaves exactly as it is told to, request by request."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DATE = "Mon, 16 Nov 2026 10:15:00 GMT"


@dataclass(frozen=True)
class Answer:
    """What to answer to one request."""

    status: int
    code: str = ""
    #: Carry the request out before answering.
    applied: bool = False
    #: Close the connection instead of answering.
    silent: bool = False
    #: Promise this many bytes of body and break off after half of them.
    broken_body: int = 0
    headers: dict[str, str] = field(default_factory=dict)


OK = Answer(200, applied=True)
LOST = Answer(0, applied=True, silent=True)
NEVER_ARRIVED = Answer(0, silent=True)


@dataclass
class Misbehaving:
    """The script, and what came of it: `script` is consumed answer by answer, then `always` is given."""

    endpoint: str
    script: list[Answer] = field(default_factory=list)
    always: Answer = OK
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, *answers: Answer, always: Answer = OK) -> None:
        self.script[:], self.always = list(answers), always


@contextlib.contextmanager
def misbehaving_server() -> Iterator[Misbehaving]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(lambda: told))
    told = Misbehaving(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Raw:
    """What came in at a `raw_server`: the request line, the body and the number of the connection, per request."""

    endpoint: str
    requests: list[tuple[str, bytes, int]] = field(default_factory=list)
    #: What followed the request lines, in lower case.
    heads: list[bytes] = field(default_factory=list)


@contextlib.contextmanager
def raw_server(*script: Sequence[bytes | tuple[bytes, ...]], tls: ssl.SSLContext | None = None) -> Iterator[Raw]:
    """Sends these very bytes: the nth connection gets the nth list, one answer per request, and is closed then.

    The parts of a tuple go out one after the other. `Expect: 100-continue` is answered before the body is read: with
    nothing, with a 100, or with a refusal, which is the last word.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    raw = Raw(f"http{'s' if tls else ''}://127.0.0.1:{listener.getsockname()[1]}")
    threads: list[threading.Thread] = []

    def listen() -> None:
        for number in range(len(script)):
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=talk, args=(number, connection), daemon=True))
            threads[-1].start()

    def talk(number: int, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError), connection:
            spoken = tls.wrap_socket(connection, server_side=True) if tls else connection
            with spoken, spoken.makefile("rb") as heard:
                answers = list(script[number])
                while answers and (line := heard.readline()):
                    head = b"".join(iter(heard.readline, b"\r\n")).lower()
                    if b"expect: 100-continue" in head:
                        first = answers.pop(0)
                        say(spoken, first)
                        if first and b" 100 " not in (first if isinstance(first, bytes) else b"".join(first)):
                            return
                    raw.heads.append(head)
                    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                    body = heard.read(length)
                    if len(body) < length:
                        return
                    raw.requests.append((line.decode().strip(), body, number))
                    say(spoken, answers.pop(0))

    def say(connection: socket.socket, answer: bytes | tuple[bytes, ...]) -> None:
        for part in (answer,) if isinstance(answer, bytes) else answer:
            connection.sendall(part)
            time.sleep(0.05 if isinstance(answer, tuple) else 0)

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    try:
        yield raw
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (listening, *threads):
            thread.join(5)


def _handler(told: Callable[[], Misbehaving]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def serve(self) -> None:
            server = told()
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            key = self.path.partition("?")[0]
            with server.mutex:
                server.requests.append((self.command, key))
                answer = server.script.pop(0) if server.script else server.always
                status, content = answer.status, b""
                if answer.applied:
                    status, content = self.carry_out(server, key, body)
                if answer.status >= 300 or answer.code:
                    status = answer.status
                    content = b"" if self.command == "HEAD" else self.error(answer)
            if answer.silent:
                self.close_connection = True
                return
            self.send_response_only(status)
            self.send_header("Date", DATE)
            etag = hashlib.md5(server.objects.get(key, b""), usedforsecurity=False).hexdigest()
            if status < 300:
                self.send_header("ETag", f'"{etag}"')
                self.send_header("Last-Modified", DATE)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(answer.broken_body or len(content)))
            self.end_headers()
            if answer.broken_body:
                self.wfile.write(b"x" * (answer.broken_body // 2))
                self.close_connection = True
            elif self.command != "HEAD":
                self.wfile.write(content)

        def carry_out(self, server: Misbehaving, key: str, body: bytes) -> tuple[int, bytes]:
            """Just as much of S3 as a lost answer needs: conditional PUT and DELETE, and GET."""
            found = server.objects.get(key)
            etag = f'"{hashlib.md5(found or b"", usedforsecurity=False).hexdigest()}"'
            wanted = self.headers.get("If-Match")
            if self.command in ("GET", "HEAD"):
                return (200, found) if found is not None else (404, self.error(Answer(404, "NoSuchKey")))
            if wanted and found is None:
                return 404, self.error(Answer(404, "NoSuchKey"))
            if (wanted and wanted != etag) or (self.headers.get("If-None-Match") and found is not None):
                return 412, self.error(Answer(412, "PreconditionFailed"))
            if self.command == "PUT":
                server.objects[key] = body
                return 200, b""
            server.objects.pop(key, None)
            return 204, b""

        def error(self, answer: Answer) -> bytes:
            return (
                f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{answer.code or answer.status}</Code>"
                "<Message>as told</Message></Error>"
            ).encode()

        do_GET = do_PUT = do_HEAD = do_DELETE = serve  # noqa: N815 (http.server's names)

    return Handler
