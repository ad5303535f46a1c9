"""The server of `s3queue dashboard`: an API and its page on 127.0.0.1, with the operator's own credentials.

Whoever reaches this port acts with those credentials, so three things are asked of a request: it names this host (a
page elsewhere whose name resolves to 127.0.0.1 does not), it carries the key that was printed at the start (another
user of this machine does not have it), and it does not come from another site.

The key is in the fragment of the printed address, which no browser sends; the page keeps it for its tab and sends it as
a header. A cookie would go to every other port of this machine as well. The page's own files need no key: they are the
same for everyone.
"""

from __future__ import annotations

import hmac
import html
import json
import logging
import socket
import tempfile
import webbrowser
from base64 import b64decode, b64encode
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from s3queue.clock import RandomChance
from s3queue.connect import open_store

from .api import build
from .pages import is_page
from .resolver import JSON, MOST_BYTES, SECURITY_HEADERS, Resolver, problem_page, wants_page

HOST = "127.0.0.1"
PORT = 8765
KEY_HEADER = "x-s3queue-key"
#: Seconds that a client may take for one request.
PATIENCE = 30
#: What is still read of a request that was refused before its body: so many times, each waited for so long.
DRAINED_READS = 8
DRAINED_SECONDS = 0.2
#: A page that leads to the dashboard, with its key.
DOOR = '<!doctype html><title>s3queue</title><meta http-equiv="refresh" content="0;url={url}"><a href="{url}">Open</a>'
_log = logging.getLogger(__name__)


class Server(ThreadingHTTPServer):
    """Serves one API: of a bucket, or a deployed one. `url` is what to open in a browser; it holds the key."""

    daemon_threads = True
    _door: Path | None = None

    def __init__(self, app: Resolver, *, port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.app = app
        chance = RandomChance()
        self.key = chance.token() + chance.token()
        self.address = f"http://{HOST}:{self.server_port}"
        self.url = f"{self.address}/#key={self.key}"
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    def open_browser(self) -> None:
        """Show the page in a browser. By way of a file that only this user can read: a browser's command line, which
        would hold the key, can be read by every user of this machine.
        """
        with tempfile.NamedTemporaryFile("w", prefix="s3queue-", suffix=".html", delete=False) as door:
            door.write(DOOR.format(url=html.escape(self.url)))
        self._door = Path(door.name)
        webbrowser.open(self._door.as_uri())

    def server_close(self) -> None:
        super().server_close()
        if self._door:
            self._door.unlink(missing_ok=True)


def serve(url: str, port: int = PORT, endpoint_url: str | None = None, *, region: str | None = None) -> Server:
    """A server for the bucket that the URL names (`s3://bucket`); call `serve_forever`, and `server_close` at the end.

    Raises:
        InvalidRequest: the URL names no bucket.
        OSError: the port is taken.
    """
    store, _ = open_store(url, endpoint_url=endpoint_url, region=region)
    return Server(build(store), port=port)


class _Handler(BaseHTTPRequestHandler):
    """Turns a request into a function-URL event, as Lambda does, and the resolver's answer into a response."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "s3queue"
    sys_version = ""
    timeout = PATIENCE
    _was_refused = False

    def _handle(self) -> None:
        try:
            self._reply(self._answer())
            if self._was_refused:
                self._drain()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def __getattr__(self, name: str) -> Any:
        """Every method goes to the resolver, which knows the allowed ones."""
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _answer(self) -> dict[str, Any]:
        if self.headers.get("host") not in self.server.hosts:
            return self._refuse(
                421, "WrongHost", "This server answers for 127.0.0.1 only.", "Open the address it printed."
            )
        parts = urlsplit(self.path)
        is_free = self.command in ("GET", "HEAD") and is_page(parts.path)
        if not is_free and not self._is_key(self.headers.get(KEY_HEADER, "")):
            way_out = "Open the address that `s3queue dashboard` printed: it holds the key."
            return self._refuse(401, "KeyMissing", "This dashboard belongs to whoever started it.", way_out)
        length = self._length()
        if length is None:
            return self._refuse(411, "LengthRequired", "A body needs its length.", "Send Content-Length.")
        if length > MOST_BYTES:
            return self._refuse(
                413, "MessageTooLarge", f"A request has at most {MOST_BYTES} bytes.", "PUT it to the bucket yourself."
            )
        return self.server.app.answer(self._event(parts.path, parts.query, self.rfile.read(length)))

    def _length(self) -> int | None:
        """Of the body; None if the request does not say, or not as one number."""
        given = self.headers.get_all("content-length") or ["0"]
        is_one = len(given) == 1 and given[0].isascii() and given[0].isdigit() and len(given[0]) < 20
        return int(given[0]) if is_one and not self.headers.get("transfer-encoding") else None

    def _refuse(self, status: int, error: str, message: str, way_out: str) -> dict[str, Any]:
        """Before the body is read, so the connection ends with it: what is unread would be taken for a request."""
        self.close_connection = self._was_refused = True
        body = {"error": error, "message": message, "way_out": way_out, "fields": []}
        answer = {"statusCode": status, "headers": {"content-type": JSON}, "body": json.dumps(body)}
        asked = {"rawPath": urlsplit(self.path).path, "headers": {"accept": self.headers.get("accept", "")}}
        return problem_page(answer) if wants_page(asked) else answer

    def _drain(self) -> None:
        """Take a little of what is still coming: a connection closed over unread bytes loses the answer, too."""
        with suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(DRAINED_SECONDS)
            for _ in range(DRAINED_READS):
                if not self.connection.recv(65536):
                    return

    def _event(self, path: str, query: str, body: bytes) -> dict[str, Any]:
        asked = parse_qs(query, keep_blank_values=True)
        method = "GET" if self.command == "HEAD" else self.command
        return {
            "version": "2.0",
            "routeKey": "$default",
            "rawPath": path,
            "rawQueryString": query,
            "headers": {name.lower(): text for name, text in self.headers.items()},
            "queryStringParameters": {name: ",".join(values) for name, values in asked.items()},
            "requestContext": {"stage": "$default", "http": {"method": method, "path": path, "sourceIp": HOST}},
            "body": b64encode(body).decode() if body else None,
            "isBase64Encoded": bool(body),
        }

    def _reply(self, answer: dict[str, Any]) -> None:
        body = answer.get("body") or ""
        raw = b64decode(body) if answer.get("isBase64Encoded") else body.encode()
        self.send_response(answer["statusCode"])
        for name, text in (SECURITY_HEADERS | answer["headers"]).items():
            self.send_header(name, text)
        if self.close_connection:
            self.send_header("connection", "close")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def _is_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.server.key.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent: the resolver logs each request, without its query, which may hold a message's name."""
