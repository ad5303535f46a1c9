"""How documents become bytes: compact JSON with a format version; instants are ISO 8601 in UTC.

Anyone who may write into the bucket may write nonsense: what is read is bounded in size, depth and range, and each
field must have its type. The readers of documents turn `NONSENSE` into CorruptState, which names the key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from .errors import CorruptState, InvalidRequest, NewerFormat

Json: TypeAlias = "bool | int | float | str | list[Json] | Mapping[str, Json] | None"

#: The version of every stored document. A reader accepts a newer one if it has the fields that the reader needs.
FORMAT = 1
#: No version of s3queue will ever write a higher one: it was forged, and must not pass for a newer version's.
LAST_FORMAT = 9999
#: A larger result of a handler is not kept.
RESULT_BYTES = 256 * 1024
#: Lists and objects within each other, in a result and in anything that is read. Deeper ones end programs that recurse.
DEPTH = 100
#: A document may be deeper by what it wraps a result in: of a batch, itself, `lines`, `results`, and a line's pair.
DOCUMENT_DEPTH = DEPTH + 4
#: Lists, objects and commas of one document: a byte of JSON may become thirty bytes of memory.
PARTS = 4_500_000
#: The largest whole number of a document: what 64 bits can hold.
LARGEST = 2**63 - 1
#: The most lines that a batch may have: its lease names every line that failed, and has to stay readable.
MOST_LINES = 1_000_000
#: Added to a date of S3's, it is still a date.
LONGEST = timedelta(days=100 * 366)
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 12, 31, tzinfo=UTC)
#: What reading a field raises if someone else wrote the document.
NONSENSE = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_CONTAINERS = (list, tuple, Mapping)
_NAME_BYTES = 1000
#: Longer content types are dropped; RFC 6838 allows 255 characters without parameters.
_TYPE_CHARACTERS = 1000
#: S3 takes 2 KB of user metadata in all.
METADATA_BYTES = 2000
#: Metadata that tells a PUT of the library from any other PUT of the same name. Dates cannot: S3's are whole seconds.
PUT_ID = "s3queue-put-id"
#: RFC 5987's mark for a value that is percent-encoded because ASCII headers cannot carry it.
_ENCODED = "utf-8''"
#: Made once: with options, json.dumps makes a new encoder for every call.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_encode_result = json.JSONEncoder(allow_nan=False).encode


def dump(document: Mapping[str, Any]) -> bytes:
    """A document as bytes, without its empty fields."""
    # An error text may hold half a surrogate pair (from a file name, say). UTF-8 cannot encode it; JSON can escape it.
    text = _encode({"v": FORMAT} | filled(document))
    return text.encode("utf-8", "backslashreplace")


def filled(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not empty. A result may be: a handler that returned an empty list did not return nothing."""
    return {
        name: value
        for name, value in document.items()
        if value is not None and (name == "result" or value not in ("", (), [], {}))
    }


def load(body: bytes, key: str) -> dict[str, Any]:
    """A document from bytes.

    Raises:
        CorruptState: the bytes are not a document; the text names the key.
    """
    try:
        document = parse_json(body, deepest=DOCUMENT_DEPTH)
    except (ValueError, RecursionError) as error:
        raise CorruptState(f"{key} is not JSON ({cut(error)}); s3queue did not write it") from None
    if not isinstance(document, dict) or not _is_version(document.get("v")):
        raise CorruptState(f"{key} is not an s3queue document; s3queue did not write it")
    return document


def load_current(body: bytes, key: str) -> dict[str, Any]:
    """A document of this version's format.

    Raises:
        CorruptState: the bytes are not a document; NewerFormat: a newer version wrote it. The text names the key.
    """
    document = load(body, key)
    if document["v"] > FORMAT:
        raise NewerFormat(f"{key} has format {document['v']}, this version reads up to {FORMAT}: upgrade this side")
    return document


def _is_version(found: Any) -> bool:
    return type(found) is int and 1 <= found <= LAST_FORMAT


def parse_json(body: bytes, *, deepest: int = DEPTH) -> Any:
    """JSON of limited depth and size, without NaN and infinities, which nothing that JSON is passed on to can read.

    Raises:
        ValueError, RecursionError: it is not such JSON.
    """
    containers = body.count(b"[") + body.count(b"{")
    if has_too_many_parts(body):
        raise ValueError(f"it has more than {PARTS} parts")
    found = json.loads(body, parse_constant=_refuse, parse_float=_finite)
    if containers > deepest:
        check_depth(found, deepest)
    return found


def has_too_many_parts(body: bytes) -> bool:
    """Whether no document is read that has these bytes: what lies in its texts is counted, too."""
    return body.count(b"[") + body.count(b"{") + body.count(b",") > PARTS


def check_depth(found: Any, deepest: int = DEPTH) -> None:
    """Raises ValueError if lists and objects are nested too deeply."""
    level = [found] if isinstance(found, _CONTAINERS) else []
    for _ in range(deepest):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
            if isinstance(inner, _CONTAINERS)
        ]
        if not level:
            return
    raise ValueError(f"lists and objects are nested more than {deepest} deep")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is too large")
    return number


def cut(problem: object) -> str:
    """The text of an error, for another error: nonsense can be long."""
    said = str(problem) if isinstance(problem, RecursionError) else repr(problem)
    return said if len(said) <= 300 else f"{said[:300]}…"


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not text")
    return value


def as_name(value: Any) -> str:
    """Text that may be a part of a key: S3 accepts 1,024 bytes of UTF-8 in all."""
    if len(as_text(value)) > _NAME_BYTES or len(value.encode()) > _NAME_BYTES:
        raise ValueError(f"a name has more than {_NAME_BYTES} bytes")
    return str(value)


def as_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{type(value).__name__} is not true or false")
    return value


def as_whole(value: Any, *, least: int = 0, most: int = LARGEST) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{type(value).__name__} is not a whole number")
    if not least <= value <= most:
        raise ValueError(f"a number is not within {least} and {most}")
    return value


def as_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{type(value).__name__} is not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number


def as_duration(seconds: Any) -> timedelta:
    """From seconds: not negative, and so short that dates can be reckoned with it."""
    if not 0 <= as_number(seconds) <= LONGEST.total_seconds():
        raise ValueError(f"a duration is not within 0 and {LONGEST.days} days")
    return timedelta(seconds=float(seconds))


def as_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} is not a list")
    return value


def as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} is not an object")
    return value


def _text_of_result(result: Any) -> str:
    """A handler's result as JSON that can be read back.

    Raises:
        TypeError, ValueError, RecursionError: no document can keep it.
    """
    text = _encode_result(result)
    if text.count("[") + text.count("{") > DEPTH:
        check_depth(result)
    return text


def as_stored(result: Any) -> tuple[Any, int]:
    """A handler's result as a document keeps it, and its bytes. JSON stays what it is; `plain.py` says what becomes of
    models, dates and the like.

    The handler may use a list or an object for its next message before this one's outcome is written, so it is copied;
    not one that is larger than any record keeps.

    Raises:
        TypeError, ValueError, RecursionError: no document can keep it.
    """
    try:
        text = _text_of_result(result)
    except TypeError:
        # Not before: most results are JSON, and every module that is loaded costs a cold start.
        from .plain import encode_result

        result = json.loads(encode_result(result))
        return result, len(_text_of_result(result))
    is_copied = isinstance(result, (dict, list, tuple)) and len(text) <= RESULT_BYTES
    return json.loads(text) if is_copied else result, len(text)


class Returned:
    """What a handler returned, for whoever writes the outcome later: its JSON was made when the handler returned."""

    __slots__ = ("kept", "problem", "size", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.kept, self.problem, self.size = sized_result(value)


def returned(result: Any) -> Any:
    """The result itself, if nobody can change it; else `Returned`."""
    return result if result is None or isinstance(result, (str, int, float)) else Returned(result)


class Unstorable:
    """In place of a result that no record can keep, where another process has found that out."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def storable(result: Any) -> tuple[Any, str]:
    """A handler's result as a record can keep it; if it cannot, None and the reason."""
    kept, problem, _ = sized_result(result)
    return kept, problem


def sized_result(result: Any) -> tuple[Any, str, int]:
    """As `storable`, and how many bytes are kept."""
    if isinstance(result, Returned):
        return result.kept, result.problem, result.size
    if isinstance(result, Unstorable):
        return None, result.reason, 0
    try:
        kept, size = as_stored(result)
    except (TypeError, ValueError, RecursionError) as error:
        return None, f"the handler returned {type(result).__name__}, which is not JSON: {error}", 0
    except Exception as error:
        # A model's own code makes JSON of it: whatever that raises, the message is completed all the same.
        return None, f"the handler returned {type(result).__name__}, which is not JSON: {cut(error)}", 0
    if size > RESULT_BYTES:
        return None, f"the handler returned {size} bytes of JSON; a record keeps at most {RESULT_BYTES}", 0
    return kept, "", 0 if kept is None else size


def format_instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_instant(text: Any) -> datetime:
    """The instant that the text names. Raises ValueError if it is not ISO 8601 with a time zone, or out of reach."""
    at = datetime.fromisoformat(as_text(text))
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    try:
        at = at.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is out of reach") from None
    if not EARLIEST <= at <= LATEST:
        raise ValueError(f"{text!r} is out of reach")
    return at


class StoredMetadata(dict[str, str]):
    """Metadata as it was read, decoded; it is written back as it was, because encoding it anew could make it longer
    than S3 accepts.
    """

    def __init__(self, decoded: Mapping[str, str], raw: Mapping[str, str]) -> None:
        super().__init__(decoded)
        self.raw = dict(raw)


def encode_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """User metadata as S3 accepts it: lower-case names, ASCII values. What was read is written back byte for byte."""
    if isinstance(metadata, StoredMetadata):
        raw = metadata.raw.items()
        return {name: text if _is_plain(text) else _ENCODED + quote(text, errors="replace") for name, text in raw}
    encoded = {}
    for name, value in metadata.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidRequest(f"metadata must be text: {name!r} is {value!r}")
        is_safe = _is_plain(value) and not value.startswith(_ENCODED)
        encoded[name.lower()] = value if is_safe else _ENCODED + quote(value, errors="replace")
    return encoded


def _is_plain(value: str) -> bool:
    """Whether a header can carry it as it is."""
    return value.isascii() and value.isprintable() and value == value.strip()


def decode_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata that `encode_metadata` was given; others' values are not changed; a put id is not shown."""
    decoded = {
        name.lower(): unquote(value.removeprefix(_ENCODED)) if value.startswith(_ENCODED) else value
        for name, value in metadata.items()
        if name != PUT_ID
    }
    return StoredMetadata(decoded, metadata)


def with_put_id(metadata: Mapping[str, str], put_id: str) -> dict[str, str]:
    """Encoded metadata with the id of the PUT that writes it; without, if S3's limit leaves no room beside it."""
    marked = dict(metadata) | {PUT_ID: put_id}
    return marked if metadata_size(marked) <= METADATA_BYTES else dict(metadata)


def put_id_of(metadata: Mapping[str, str]) -> str:
    """Which PUT of the library wrote this, from metadata as it was read; empty if another client wrote it."""
    return (metadata.raw if isinstance(metadata, StoredMetadata) else metadata).get(PUT_ID, "")


def metadata_size(metadata: Mapping[str, str]) -> int:
    """Encoded metadata as S3 counts it."""
    return sum(len(name) + len(value) for name, value in metadata.items())


def storable_type(content_type: str) -> str:
    """A content type as it can be written; empty if a header cannot carry it, or if it is of no use to anyone."""
    return content_type if _is_plain(content_type) and len(content_type) <= _TYPE_CHARACTERS else ""
