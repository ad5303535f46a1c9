"""Payload fields: whether a stored message has a field with a value. JSON only; of a batch, one line is enough."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from s3queue.paths import is_batch, is_lines
from s3queue.store import Object

#: More of a payload is not read.
SEARCHED_BYTES = 64 * 1024


def has_field(path: str, stored: Object, field: str, value: str) -> bool | None:
    """Whether a payload has the field, `customer.id` for example, with this value; None if it cannot be told: too
    large, or not JSON. Case does not matter.

    Without a value, it is enough that the field is there. Text matches if it contains the value, anything else if it
    is the value.
    """
    with stored.stream as stream:
        raw = stream.read(SEARCHED_BYTES)
    bodies = list(_bodies(path, raw, is_whole=stored.size <= SEARCHED_BYTES))
    if not bodies:
        return None
    try:
        return any(_matches(one, value) for body in bodies for one in _values(body, field.split(".")))
    except RecursionError:
        return None  # lists in lists in lists: nobody looks for anything there


def _bodies(path: str, raw: bytes, *, is_whole: bool) -> Iterator[Any]:
    """The JSON documents in it; none if there is none."""
    if not is_batch(path) and not is_lines(path):
        lines = [raw] if is_whole else []
    else:
        lines = raw.split(b"\n")
        lines = lines if is_whole else lines[:-1]
    for line in lines:
        try:
            body = json.loads(line) if line.strip() else None
            if is_lines(path) and isinstance(body, dict) and isinstance(body.get("body"), str):
                body = json.loads(body["body"])
        except (ValueError, RecursionError):
            continue
        if body is not None:
            yield body


def _values(body: Any, names: list[str]) -> Iterator[Any]:
    """What lies at the path; a list is looked through."""
    if isinstance(body, list):
        for one in body:
            yield from _values(one, names)
    elif not names:
        yield body
    elif isinstance(body, dict) and names[0] in body:
        yield from _values(body[names[0]], names[1:])


def _matches(found: Any, value: str) -> bool:
    if not value:
        return True
    if isinstance(found, str):
        return value.lower() in found.lower()
    return json.dumps(found).lower() == value.lower()
