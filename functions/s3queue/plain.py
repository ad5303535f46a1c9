"""Python values as JSON: what a handler returns, and what a producer enqueues, beyond what JSON itself knows.

| Python | JSON |
|---|---|
| a pydantic model | what its own `model_dump(mode="json", by_alias=True)` says |
| a dataclass | an object of its fields |
| datetime, date, time | ISO 8601; UTC is written `Z`, any other offset as it is |
| timedelta | seconds |
| UUID, Decimal | text, so that no digit is lost |
| bytes | base64 |
| an enumeration | its value |
| set, frozenset | a list, sorted if its items can be |
| tuple, any mapping | a list, an object |

Pydantic is never imported: a model is known by its methods. Keys of objects are text, numbers or booleans, as in JSON
of Python.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID


def _result(value: Any) -> Any:
    """For people and programs that read a record: everything that the value knows of itself."""
    if _is_model(value):
        return value.model_dump(mode="json", by_alias=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return _plain(value)


def _payload(value: Any) -> Any:
    """For a handler that makes the same value of it: without what the class computes itself."""
    if _is_model(value):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    return _plain(value)


def _is_model(value: Any) -> bool:
    return hasattr(type(value), "model_dump") and not isinstance(value, type)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, (set, frozenset)):
        try:
            return sorted(value)
        except TypeError:
            return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _encoder(default: Callable[[Any], Any]) -> Callable[[Any], str]:
    """Made once: with options, json.dumps makes a new encoder for every call."""
    return json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=default).encode


#: A handler's result, and a payload, as JSON text. Raise TypeError, ValueError (NaN, a cycle) or RecursionError.
encode_result = _encoder(_result)
encode_payload = _encoder(_payload)
