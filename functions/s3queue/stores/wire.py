"""How S3 writes keys (in UTF-8), ETags (in quotes) and instants (in whole seconds)."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

from s3queue.errors import InvalidName, Unavailable


def check_key(key: str) -> str:
    """The key itself, or the prefix of some.

    Raises:
        InvalidName: it has half a surrogate pair, as an argument of a command with odd bytes has: S3 has no such key.
    """
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidName(f"{key!r} is not valid Unicode, so it is not the key of any object") from None
    return key


def quoted(etag: str) -> str:
    return f'"{etag}"'


def unquoted(etag: str) -> str:
    return etag.strip('"')


def whole_etag(text: str | None) -> str:
    """The ETag of an answer, without its quotes.

    Raises:
        Unavailable: there is none, or half of one: that would be another object's.
    """
    if not text or text.count('"') == 1:
        raise Unavailable("the server's answer has no ETag, or half of one; check for a proxy that removes it")
    return unquoted(text)


# All answers of one second have the same text.
@lru_cache(maxsize=256)
def http_date(text: str) -> datetime:
    """The instant of a Date or Last-Modified header.

    Raises:
        Unavailable: there is none, or it cannot be read; ages cannot be judged without it.
    """
    if not text:
        raise Unavailable("the server's answer has no Date header; check for a proxy that removes it")
    if not text.endswith("GMT"):
        # An answer that was cut off: what is left of its date can be read, as another one.
        raise Unavailable(f"the server's answer has half a date: {text!r}")
    try:
        return parsedate_to_datetime(text).astimezone(UTC)
    except ValueError as error:
        raise Unavailable(f"the server's answer has an unreadable date: {text!r}") from error


@lru_cache(maxsize=1024)
def listed_date(text: str) -> datetime:
    """The instant of an object in a LIST; many were PUT within one second."""
    return whole_seconds(datetime.fromisoformat(text))


def whole_seconds(at: datetime) -> datetime:
    """The instant as S3 tells it. Some servers give finer ones in a LIST, so that one object would look like two
    generations.
    """
    return at.astimezone(UTC).replace(microsecond=0)
