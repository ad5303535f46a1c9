"""Calls of the API as Lambda makes them: a function-URL event in, an answer out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from s3queue.dashboard.resolver import Resolver


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
