"""How S3 writes what every answer carries: ETags in quotes, instants in whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

from s3queue.errors import Unavailable


def quoted(etag: str) -> str:
    return f'"{etag}"'


def unquoted(etag: str) -> str:
    return etag.strip('"')


# The answers of one second carry the same text.
@lru_cache(maxsize=256)
def http_date(text: str) -> datetime:
    """The instant of a Date or Last-Modified header.

    Raises:
        Unavailable: there is none; ages cannot be judged without it.
    """
    if not text:
        raise Unavailable("an answer of the server has no Date header; is a proxy removing it?")
    try:
        return parsedate_to_datetime(text).astimezone(UTC)
    except ValueError as error:
        raise Unavailable(f"an answer of the server has a date that is none: {text!r}") from error


def whole_seconds(at: datetime) -> datetime:
    """As S3 tells it; a server with finer ones in its LIST would tell two generations from one object."""
    return at.astimezone(UTC).replace(microsecond=0)
