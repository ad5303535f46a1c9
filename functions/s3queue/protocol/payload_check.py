"""Checks a payload before it is enqueued: what the handler could not take is refused, and nothing is written."""

from __future__ import annotations

import io
from collections.abc import Callable

from s3queue.documents.batch import read_lines
from s3queue.errors import InvalidRequest
from s3queue.paths import is_batch, is_lines


def check_payload(path: str, body: bytes, check: Callable[[bytes], None]) -> None:
    """Check a message, of a batch every line. Raises InvalidRequest, which names the line."""
    if not is_batch(path):
        check(body)
    elif not is_lines(path):
        for number, line in read_lines(io.BytesIO(body)):
            check_line(f"line {number}", line, check)


def check_line(which: str, body: bytes, check: Callable[[bytes], None]) -> None:
    try:
        check(body)
    except InvalidRequest as error:
        raise InvalidRequest(f"{which}: {error}") from error
