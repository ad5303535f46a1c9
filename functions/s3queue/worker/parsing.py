"""Payloads as handlers take them: a parser for every annotation that a handler's first parameter may have."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from typing import Any, get_origin

from s3queue.errors import InvalidRequest

#: An error names at most this many fields.
FIELDS_NAMED = 5
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def _decode(body: bytes) -> Any:
    """As json.loads, which takes three times as long to see what most bodies are: one object, in UTF-8."""
    if body[:1] == b"{" and body[1:2] != b"\0":
        text = body.decode("utf-8", "surrogatepass")
        try:
            found, end = _scan(text, 0)
        except StopIteration:
            return json.loads(body)
        if end == len(text):
            return found
    return json.loads(body)


def fast_decoder() -> Callable[[bytes], Any] | None:
    """As json.loads, by msgspec; None if that is not installed (the extra `fast`).

    It gives the same for all that it takes, integers of any length included. What it refuses (NaN, a byte order mark,
    half of a surrogate pair, an exponent out of range) or cannot decode, json.loads is asked for.
    """
    try:
        from msgspec.json import Decoder
    except ImportError:
        return None
    decode = Decoder().decode

    def fast(body: bytes) -> Any:
        try:
            return decode(body)
        except Exception:
            return json.loads(body)

    return fast


#: A payload as JSON: what json.loads returns, or raises.
decode: Callable[[bytes], Any] = fast_decoder() or _decode


def parser(annotation: Any) -> Callable[[bytes], Any]:
    """A function that parses bytes as the annotation says. It raises ValueError, TypeError or KeyError.

    Raises:
        InvalidRequest: a handler cannot take this.
    """
    if annotation is bytes:
        return lambda body: body
    if annotation is str:
        return lambda body: body.decode()
    if hasattr(annotation, "model_validate_json"):
        validate: Callable[[bytes], Any] = annotation.model_validate_json
        return validate
    if is_dataclass(annotation):
        # Only for who has one: a cold start pays for every module.
        from .fields import as_dataclass

        return lambda body: as_dataclass(annotation, decode(body))
    if annotation in (Any, inspect.Parameter.empty, object):
        return decode
    wanted = get_origin(annotation) or annotation
    if wanted is dict:
        return _as_dict
    if wanted in (list, int, float, bool):
        return lambda body: as_kind(wanted, decode(body))
    raise InvalidRequest(
        f"a handler cannot take {annotation!r}: use a pydantic model, a dataclass, dict, list, str, bytes or BinaryIO"
    )


def _as_dict(body: bytes) -> Any:
    found = decode(body)
    return found if type(found) is dict else as_kind(dict, found)


def is_dataclass(annotation: Any) -> bool:
    return dataclasses.is_dataclass(annotation) and isinstance(annotation, type)


def as_kind(wanted: type, found: Any) -> Any:
    if not isinstance(found, wanted) or (isinstance(found, bool) and wanted is not bool):
        raise TypeError(f"must be a JSON {wanted.__name__}, not {type(found).__name__}")
    return found


def described(error: Exception) -> str:
    """What does not fit, field by field; pydantic's own text repeats the payload."""
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return str(error) or type(error).__name__
    found = [f"{'.'.join(map(str, one['loc'])) or 'payload'}: {one['msg']}" for one in listed()]
    return "; ".join(found[:FIELDS_NAMED]) + ("; …" if len(found) > FIELDS_NAMED else "")
