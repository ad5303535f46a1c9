"""A function URL as Lambda serves it: it computes the signature from what came over the wire, then calls the API.

Written without botocore, so that the two sides cannot agree on the same mistake.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

REGION = "eu-west-1"
Answer = tuple[int, dict[str, str], bytes]
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>[^,]+), "
    r"SignedHeaders=(?P<signed>[^,]+), Signature=(?P<is>\w+)"
)


@dataclass
class FunctionUrl:
    """Lets in who signs with one of `secrets` (access key → secret)."""

    app: Any
    secrets: dict[str, str]
    url: str = ""
    #: Every request that came, as (method, target, headers).
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    #: Answers instead of the API, if it returns one.
    instead: Callable[[], Answer | None] = lambda: None

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        self.seen.append((method, target, headers))
        if said := self.instead():
            return said
        path, _, query = target.partition("?")
        if not self._is_signed(method, path, query, headers, body):
            return 403, {"content-type": "application/json"}, b'{"Message":"Forbidden"}'
        event = {
            "version": "2.0",
            "rawPath": unquote(path),
            "rawQueryString": query,
            "queryStringParameters": dict(parse_qsl(query, keep_blank_values=True)),
            "headers": headers,
            "requestContext": {"stage": "$default", "http": {"method": method, "path": unquote(path)}},
            "body": body.decode() or None,
            "isBase64Encoded": False,
        }
        answered = self.app.answer(event)
        text = answered.get("body") or ""
        raw = b64decode(text) if answered.get("isBase64Encoded") else text.encode()
        return answered["statusCode"], answered["headers"], raw

    def _is_signed(self, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> bool:
        found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        if not found or found["key"] not in self.secrets:
            return False
        day, region, service, end = found["scope"].split("/")
        signed = found["signed"].split(";")
        asked = sorted((_spelt(name), _spelt(value)) for name, value in parse_qsl(query, keep_blank_values=True))
        canonical = "\n".join(
            [
                method,
                quote(quote(unquote(path), safe="/-_.~"), safe="/-_.~"),
                "&".join(f"{name}={value}" for name, value in asked),
                *(f"{name}:{headers.get(name, '').strip()}" for name in signed),
                "",
                ";".join(signed),
                hashlib.sha256(body).hexdigest(),
            ]
        )
        hashed = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{headers.get('x-amz-date')}\n{found['scope']}\n{hashed}"
        key = f"AWS4{self.secrets[found['key']]}".encode()
        for part in (day, region, service, end, text):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        is_here = (region, service, end) == (REGION, "lambda", "aws4_request") and "host" in signed
        return is_here and hmac.compare_digest(key.hex(), found["is"])


def _spelt(text: str) -> str:
    return quote(text, safe="-_.~")


@contextmanager
def function_url(app: Any, secrets: dict[str, str]) -> Iterator[FunctionUrl]:
    served = FunctionUrl(app, secrets)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): text for name, text in self.headers.items()}
            status, given, raw = served.answer(self.command, self.path, headers, body)
            self.send_response(status)
            for name, text in ({"content-length": str(len(raw))} | given).items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(raw)
            if int(given.get("content-length", len(raw))) != len(raw):
                self.close_connection = True

        do_GET = do_POST = do_DELETE = _handle  # noqa: N815

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield served
        server.shutdown()
        thread.join()
