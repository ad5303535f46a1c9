"""Real servers on 127.0.0.1 for what handlers talk to: receivers of webhooks, a mail server, two AWS APIs."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote

HOST = "127.0.0.1"


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Nothing: a client that was killed in the middle of a request is a test's intention."""


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class HttpEndpoint:
    """Keeps every request, and answers with `status` and `headers`; the test may change both at any time."""

    url: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    #: Seconds before the answer, and between its bytes.
    silence: float = 0.0
    drip: float = 0.0
    requests: list[Request] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def serve(cls) -> Iterator[Self]:
        endpoint = cls()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                endpoint.requests.append(Request(self.command, self.path, headers, body))
                time.sleep(endpoint.silence)
                with contextlib.suppress(OSError):
                    endpoint.answer(self, endpoint.requests[-1])

            def log_message(self, *_: Any) -> None:
                """Nothing: pytest's output is for tests."""

        server = _Server((HOST, 0), Handler)
        server.daemon_threads = True
        server.block_on_close = False
        endpoint.url = f"http://{HOST}:{server.server_address[1]}"
        with _serving(server):
            yield endpoint

    def answer(self, to: BaseHTTPRequestHandler, request: Request) -> None:
        if self.drip:
            while True:
                to.wfile.write(b"H")
                time.sleep(self.drip)
        to.send_response(self.status)
        for name, value in ({"Content-Length": "0"} | self.headers).items():
            to.send_header(name, value)
        to.end_headers()


@dataclass
class AwsEndpoint(HttpEndpoint):
    """Lambda's Invoke and EventBridge's PutEvents; `refuses` is an error code to answer with instead."""

    refuses: str = ""
    #: (function, payload) of every asynchronous invocation that was accepted.
    invocations: list[tuple[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, to: BaseHTTPRequestHandler, request: Request) -> None:
        status, body = 202, b""
        if self.refuses:
            status, body = 429, json.dumps({"message": "Rate Exceeded."}).encode()
        elif request.path.endswith("/invocations"):
            assert request.headers["x-amz-invocation-type"] == "Event"
            function = unquote(request.path.split("/")[-2])
            self.invocations.append((function, json.loads(request.body)))
        else:
            entries = json.loads(request.body)["Entries"]
            self.events += entries
            status, body = (
                200,
                json.dumps({"FailedEntryCount": 0, "Entries": [{"EventId": "1"}] * len(entries)}).encode(),
            )
        to.send_response(status)
        if self.refuses:
            to.send_header("x-amzn-ErrorType", self.refuses)
        to.send_header("Content-Length", str(len(body)))
        to.end_headers()
        to.wfile.write(body)


@dataclass
class MailServer:
    """An SMTP server that keeps what it accepts; `rcpt` and `data` are its answers to a recipient and to a mail."""

    port: int = 0
    rcpt: str = "250 OK"
    data: str = "250 accepted"
    mails: list[bytes] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def serve(cls) -> Iterator[MailServer]:
        mail_server = cls()

        class Handler(socketserver.StreamRequestHandler):
            def say(self, line: str) -> None:
                self.wfile.write(line.encode() + b"\r\n")

            def handle(self) -> None:
                self.say("220 sink")
                while line := self.rfile.readline():
                    verb = line.split(b":")[0].strip().upper()
                    if verb == b"DATA":
                        self.say("354 go on")
                        lines = []
                        while (text := self.rfile.readline()) not in (b".\r\n", b""):
                            lines.append(text.removeprefix(b".") if text.startswith(b"..") else text)
                        if mail_server.data.startswith("2"):
                            mail_server.mails.append(b"".join(lines))
                        self.say(mail_server.data)
                    elif verb == b"RCPT TO":
                        mail_server.recipients.append(line.decode().strip())
                        self.say(mail_server.rcpt)
                    elif verb == b"QUIT":
                        self.say("221 bye")
                        return
                    else:
                        self.say("250 OK")

        server = socketserver.ThreadingTCPServer((HOST, 0), Handler)
        server.daemon_threads = True
        server.block_on_close = False
        mail_server.port = server.server_address[1]
        with _serving(server):
            yield mail_server


@contextlib.contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
