"""The server of `s3queue dashboard`: the API and its page on 127.0.0.1, with the operator's own credentials.

Whoever reaches this port acts with those credentials, so a request must fulfil three conditions. It names this host,
which excludes pages whose own host name resolves to 127.0.0.1. It carries the key that was printed at the start, which
excludes other users of this machine. And it does not come from another site.
"""

from __future__ import annotations

import hmac
import json
import logging
from base64 import b64decode, b64encode
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from s3queue.clock import RandomChance
from s3queue.connect import open_store
from s3queue.store import ObjectStore

from .api import build
from .resolver import JSON, MOST_BYTES, SECURITY_HEADERS, Resolver

HOST = "127.0.0.1"
PORT = 8765
#: For programs, which have no cookie.
KEY_HEADER = "x-s3queue-key"
#: Seconds that a client may take for one request.
PATIENCE = 30
_log = logging.getLogger(__name__)


class Server(ThreadingHTTPServer):
    """Serves one bucket. `url` is the address to open in a browser; it contains the key."""

    daemon_threads = True

    def __init__(self, store: ObjectStore, *, port: int = 0, app: Resolver | None = None) -> None:
        super().__init__((HOST, port), _Handler)
        self.app = app or build(store)
        chance = RandomChance()
        self.key = chance.token() + chance.token()
        self.address = f"http://{HOST}:{self.server_port}"
        self.url = f"{self.address}/?key={self.key}"
        #: Cookies are shared by all ports: two dashboards on one machine must not use each other's key.
        self.cookie = f"s3queue-{self.server_port}"
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}


def serve(url: str, port: int = PORT, endpoint_url: str | None = None, *, region: str | None = None) -> Server:
    """A server for the bucket that the URL names (`s3://bucket`); call `serve_forever`, and `server_close` at the end.

    Raises:
        InvalidRequest: the URL names no bucket.
        OSError: the port is taken.
    """
    store, _ = open_store(url, endpoint_url=endpoint_url, region=region)
    return Server(store, port=port)


class _Handler(BaseHTTPRequestHandler):
    """Turns a request into a function-URL event, as Lambda does, and the resolver's answer into a response."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "s3queue"
    sys_version = ""
    timeout = PATIENCE

    def _handle(self) -> None:
        try:
            self._reply(self._answer())
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def __getattr__(self, name: str) -> Any:
        """Every method goes to the resolver, which knows the allowed ones."""
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _answer(self) -> dict[str, Any]:
        if self.headers.get("host") not in self.server.hosts:
            return _refused(421, "WrongHost", "This server serves only 127.0.0.1.", "Open the address that it printed.")
        parts = urlsplit(self.path)
        given = parse_qs(parts.query).get("key", [""])[-1] if parts.path == "/" else ""
        if given and self._is_key(given):
            cookie = f"{self.server.cookie}={self.server.key}; Path=/; HttpOnly; SameSite=Strict"
            # So that the key is neither in the address bar nor in the history.
            return {"statusCode": 303, "headers": {"location": "/"}, "cookies": [cookie], "body": ""}
        if not self._is_key(self.headers.get(KEY_HEADER, "")) and not self._is_key(self._cookie()):
            way_out = "Open the address that `s3queue dashboard` printed: it contains the key."
            return _refused(401, "KeyMissing", "The key is missing or wrong.", way_out)
        length = self.headers.get("content-length") or "0"
        if self.headers.get("transfer-encoding") or not length.isdigit():
            self.close_connection = True
            return _refused(411, "LengthRequired", "The length of the body is missing.", "Send Content-Length.")
        if int(length) > MOST_BYTES:
            self.close_connection = True
            return _refused(
                413,
                "MessageTooLarge",
                f"A request can have at most {MOST_BYTES} bytes.",
                "PUT the message to the bucket yourself, with a presigned URL or `s3queue send`.",
            )
        return self.server.app.answer(self._event(parts.path, parts.query, self.rfile.read(int(length))))

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
        for cookie in answer.get("cookies") or ():
            self.send_header("set-cookie", cookie)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def _is_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.server.key.encode())

    def _cookie(self) -> str:
        try:
            found = SimpleCookie(self.headers.get("cookie", "")).get(self.server.cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: the resolver logs each request, without the query, which may contain the key or a message's name."""


def _refused(status: int, error: str, message: str, way_out: str) -> dict[str, Any]:
    body = {"error": error, "message": message, "way_out": way_out, "fields": []}
    return {"statusCode": status, "headers": {"content-type": JSON}, "body": json.dumps(body)}
