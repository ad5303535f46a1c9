"""Calls of the API: as Lambda makes them, a function-URL event in and an answer out; and over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from s3queue.dashboard.resolver import Resolver
from s3queue.dashboard.server import Server


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]


Ask = Callable[..., Answer]


def event(
    method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None, **headers: str
) -> dict[str, Any]:
    """A function-URL event of an operator's own program."""
    given = {"host": "api.example", "x-s3queue": "1", "content-type": "application/json"}
    given |= {name.replace("_", "-"): text for name, text in headers.items()}
    asked = {name: str(value) for name, value in (query or {}).items()}
    return {
        "version": "2.0",
        "rawPath": path,
        "rawQueryString": urlencode(asked),
        "queryStringParameters": asked,
        "headers": {name: text for name, text in given.items() if text},
        "requestContext": {"stage": "$default", "http": {"method": method, "path": path}},
        "body": body if isinstance(body, str) or body is None else json.dumps(body),
        "isBase64Encoded": False,
    }


def asking(app: Resolver) -> Ask:
    def ask(method: str, path: str, **options: Any) -> Answer:
        found = app.answer(event(method, path, **options))
        is_json = found["headers"]["content-type"].startswith("application/json")
        return Answer(found["statusCode"], json.loads(found["body"]) if is_json else found["body"], found["headers"])

    return ask


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """The local server, in a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
