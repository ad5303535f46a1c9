"""How documents become bytes: compact JSON with a format version; instants are ISO 8601 in UTC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from .errors import CorruptState

Json: TypeAlias = "bool | int | float | str | list[Json] | Mapping[str, Json] | None"

#: The version of every stored document. A reader accepts a newer one if it has the fields that the reader needs.
FORMAT = 1
#: A larger result of a handler is not kept.
RESULT_BYTES = 256 * 1024
#: RFC 5987's mark for a value that is percent-encoded because ASCII headers cannot carry it.
_ENCODED = "utf-8''"
#: Made once: with options, json.dumps makes a new encoder for every call.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def dump(document: Mapping[str, Any]) -> bytes:
    """A document as bytes, without its empty fields."""
    kept = {
        name: value
        for name, value in document.items()
        if value is not None and (name == "result" or value not in ("", (), [], {}))
    }
    # An error text may hold half a surrogate pair (from a file name, say). UTF-8 cannot encode it; JSON can escape it.
    text = _encode({"v": FORMAT} | kept)
    return text.encode("utf-8", "backslashreplace")


def load(body: bytes, key: str) -> dict[str, Any]:
    """A document from bytes.

    Raises:
        CorruptState: the bytes are not a document; the text names the key.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptState(f"{key} is not JSON ({error}); s3queue did not write it") from None
    if not isinstance(document, dict) or not isinstance(document.get("v"), int):
        raise CorruptState(f"{key} is not an s3queue document; s3queue did not write it")
    return document


def storable(result: Any) -> tuple[Any, str]:
    """A handler's result as a record can keep it; if it cannot, None and the reason."""
    try:
        text = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return None, f"the handler returned {type(result).__name__}, which is not JSON: {error}"
    if len(text) > RESULT_BYTES:
        return None, f"the handler returned {len(text)} bytes of JSON; a record keeps at most {RESULT_BYTES}"
    return result, ""


def format_instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_instant(text: str) -> datetime:
    """The instant that the text names. Raises ValueError if it is not ISO 8601 with a time zone."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return at.astimezone(UTC)


def encode_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """User metadata as S3 accepts it: lower-case names, ASCII values."""
    encoded = {}
    for name, value in metadata.items():
        plain = value.isascii() and value.isprintable() and value == value.strip()
        encoded[name.lower()] = (
            value if plain and not value.startswith(_ENCODED) else _ENCODED + quote(value, errors="replace")
        )
    return encoded


def decode_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata that `encode_metadata` was given; values that others wrote are not changed."""
    return {
        name.lower(): unquote(value.removeprefix(_ENCODED)) if value.startswith(_ENCODED) else value
        for name, value in metadata.items()
    }
