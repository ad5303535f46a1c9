"""An S3 server on 127.0.0.1 that misbehaves exactly as it is told to, request by request."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

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
    #: What another web server says in the place of S3's error.
    page: bytes = b""


OK = Answer(200, applied=True)
LOST = Answer(0, applied=True, silent=True)
NEVER_ARRIVED = Answer(0, silent=True)


@dataclass
class FaultyServer:
    """The script, and what came of it: `script` is consumed answer by answer, then `always` is given."""

    endpoint: str
    script: list[Answer] = field(default_factory=list)
    always: Answer = OK
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    #: Of DeleteObjects: whether ETags are compared, and which keys get an error of this code instead.
    compares_etags: bool = True
    refuses: dict[str, str] = field(default_factory=dict)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, *answers: Answer, always: Answer = OK) -> None:
        self.script[:], self.always = list(answers), always


@contextlib.contextmanager
def faulty_server() -> Iterator[FaultyServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(lambda: told))
    told = FaultyServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(told: Callable[[], FaultyServer]) -> type[BaseHTTPRequestHandler]:
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

        def carry_out(self, server: FaultyServer, key: str, body: bytes) -> tuple[int, bytes]:
            """Just as much of S3 as a lost answer needs: conditional PUT and DELETE, and GET."""
            found = server.objects.get(key)
            etag = f'"{hashlib.md5(found or b"", usedforsecurity=False).hexdigest()}"'
            wanted = self.headers.get("If-Match")
            if self.command == "POST":
                return 200, self.delete_many(server, key, body)
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

        def delete_many(self, server: FaultyServer, bucket: str, body: bytes) -> bytes:
            said = ""
            for entry in ElementTree.fromstring(body):
                key, etag = (str(part.text) for part in entry)
                found = server.objects.get(f"{bucket}/{quote(key)}")
                code = server.refuses.get(key)
                if not code and server.compares_etags:
                    is_there = f'"{hashlib.md5(found or b"", usedforsecurity=False).hexdigest()}"' == etag
                    code = "NoSuchKey" if found is None else "" if is_there else "PreconditionFailed"
                if code:
                    said += f"<Error><Key>{escape(key)}</Key><Code>{code}</Code><Message>as told</Message></Error>"
                else:
                    server.objects.pop(f"{bucket}/{quote(key)}", None)
                    said += f"<Deleted><Key>{escape(key)}</Key></Deleted>"
            return f"<DeleteResult>{said}</DeleteResult>".encode()

        def error(self, answer: Answer) -> bytes:
            return (
                answer.page
                or (
                    f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{answer.code or answer.status}</Code>"
                    "<Message>as told</Message></Error>"
                ).encode()
            )

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = serve  # noqa: N815 (http.server's names)

    return Handler
