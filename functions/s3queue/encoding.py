"""How documents become bytes: compact JSON, instants as ISO 8601 in UTC, a format version, plain errors for garbage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from .errors import CorruptState

Json: TypeAlias = "bool | int | float | str | list[Json] | Mapping[str, Json] | None"

#: The version of every stored document. A reader accepts newer ones as far as the fields that it needs are there.
FORMAT = 1
#: A handler's result larger than this is not kept.
RESULT_BYTES = 256 * 1024
#: RFC 5987's mark for a value that ASCII headers cannot carry as it is.
_ENCODED = "utf-8''"
#: Made once: json.dumps with options makes an encoder for every call.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def dump(document: Mapping[str, Any]) -> bytes:
    """A document as bytes, without the fields that say nothing."""
    kept = {
        name: value
        for name, value in document.items()
        if value is not None and (name == "result" or value not in ("", (), [], {}))
    }
    # An error text may hold half a surrogate pair (a file name, say): UTF-8 cannot, but JSON's own escape can.
    text = _encode({"v": FORMAT} | kept)
    return text.encode("utf-8", "backslashreplace")


def load(body: bytes, key: str) -> dict[str, Any]:
    """A document from bytes.

    Raises:
        CorruptState: not a document; names the key.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptState(f"{key} holds no JSON ({error}); someone else wrote it") from None
    if not isinstance(document, dict) or not isinstance(document.get("v"), int):
        raise CorruptState(f"{key} is not a document of s3queue; someone else wrote it")
    return document


def storable(result: Any) -> tuple[Any, str]:
    """A handler's result as far as a record can keep it, and why not otherwise."""
    try:
        text = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return None, f"the handler returned {type(result).__name__}, which JSON cannot hold: {error}"
    if len(text) > RESULT_BYTES:
        return None, f"the handler returned {len(text)} bytes of JSON; a record keeps {RESULT_BYTES}"
    return result, ""


def format_instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_instant(text: str) -> datetime:
    """Raises ValueError unless the text names an instant, zone included."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return at.astimezone(UTC)


def encode_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """User metadata as S3 takes it: lower-case names, ASCII values."""
    encoded = {}
    for name, value in metadata.items():
        plain = value.isascii() and value.isprintable() and value == value.strip()
        encoded[name.lower()] = (
            value if plain and not value.startswith(_ENCODED) else _ENCODED + quote(value, errors="replace")
        )
    return encoded


def decode_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """What `encode_metadata` was given; what others wrote stays as it is."""
    return {
        name.lower(): unquote(value.removeprefix(_ENCODED)) if value.startswith(_ENCODED) else value
        for name, value in metadata.items()
    }
