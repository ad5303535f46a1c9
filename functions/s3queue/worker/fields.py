"""Dataclasses from JSON: what `plain.py` wrote for one is read back as it was, and an error names the field.

Dates, UUIDs, Decimals, bytes, enumerations, nested dataclasses, and lists, sets, tuples and dicts of them; a Sequence
is read as a list, a Mapping as a dict. Of any other kind, the handler gets what JSON has.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import types
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import cache, partial
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from s3queue.plain import encode_payload

from .parsing import as_kind, is_dataclass

Reader = Callable[[Any], Any]


def as_dataclass(wanted: type, found: Any) -> Any:
    """Nested dataclasses, plain JSON types and what `plain.py` writes are checked; for other types, use pydantic."""
    if not isinstance(found, dict):
        raise TypeError(f"{wanted.__name__} must be a JSON object, not {type(found).__name__}")
    readers = _fields(wanted)
    values = {}
    for name, value in found.items():
        if name not in readers:
            raise TypeError(f"{wanted.__name__} has no field {name!r}")
        try:
            values[name] = readers[name](value)
        except (ValueError, TypeError, KeyError, InvalidOperation) as error:
            raise TypeError(f"{wanted.__name__}.{name}: {error or type(error).__name__}") from error
    missing = [
        field.name
        for field in dataclasses.fields(wanted)
        if field.init
        and field.name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise TypeError(f"{wanted.__name__}.{missing[0]}: the field is missing")
    return wanted(**values)


@cache
def _fields(wanted: type) -> Mapping[str, Reader]:
    """Made once, when the first message is parsed: a dataclass may name itself, or one that follows it."""
    hints = get_type_hints(wanted)
    for name, hint in hints.items():
        if isinstance(hint, dataclasses.InitVar) and not hasattr(wanted, name):
            raise TypeError(f"{wanted.__name__}.{name}: an InitVar is not kept in JSON; give it a default")
    return {field.name: _reader(hints[field.name]) for field in dataclasses.fields(wanted) if field.init}


def _reader(kind: Any) -> Reader:
    """What makes a value of this kind of parsed JSON; of an unknown kind, what was parsed."""
    if is_dataclass(kind):
        return partial(as_dataclass, kind)
    if hasattr(kind, "__supertype__"):  # a NewType is what it stands for
        return _reader(kind.__supertype__)
    if kind in (str, int, bool, dict, list):
        return partial(as_kind, kind)
    if kind in _READERS:
        return _READERS[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return partial(_as_enumeration, kind)
    if hasattr(kind, "model_validate"):
        validate: Reader = kind.model_validate
        return validate
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        others = [argument for argument in arguments if argument is not type(None)]
        # Of several kinds, nothing says which one was meant.
        return partial(_as_optional, _reader(others[0])) if len(others) == 1 < len(arguments) else _as_found
    if origin in (Sequence, MutableSequence) and arguments:
        items = partial(_as_items, list, _reader(arguments[0]))
        # A text is a sequence of texts.
        return partial(_as_text_or, items) if origin is Sequence and arguments[0] is str else items
    if origin in (list, set, frozenset) and arguments:
        return partial(_as_items, origin, _reader(arguments[0]))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return partial(_as_items, tuple, _reader(arguments[0]))
    if origin is tuple and arguments:
        return partial(_as_row, [_reader(argument) for argument in arguments])
    if origin in (dict, Mapping, MutableMapping) and len(arguments) == 2:
        return partial(_as_values, _key(arguments[0]), _reader(arguments[1]))
    return _as_found


def _key(kind: Any) -> Reader:
    """What makes a key of this kind of the text that it is in JSON."""
    if hasattr(kind, "__supertype__"):
        return _key(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, Enum):
        # Of text or numbers: others cannot be keys in JSON.
        return lambda name: kind(_KEYS[int](name) if issubclass(kind, int) else name)
    return _KEYS.get(kind, _as_found)


def _as_found(found: Any) -> Any:
    return found


def _as_float(found: Any) -> float:
    return float(as_kind(int, found)) if isinstance(found, int) else float(as_kind(float, found))


def _as_text(make: Callable[[str], Any], found: Any) -> Any:
    return make(as_kind(str, found))


def _as_decimal(found: Any) -> Decimal:
    if isinstance(found, (int, float)) and not isinstance(found, bool):
        return Decimal(str(found))
    try:
        return Decimal(as_kind(str, found))
    except InvalidOperation:
        raise ValueError(f"{found!r} is not a number") from None


def _as_bytes(found: Any) -> bytes:
    return base64.b64decode(as_kind(str, found), validate=True)


def _as_enumeration(kind: type[Enum], found: Any) -> Enum:
    try:
        return kind(tuple(found) if isinstance(found, list) else found)
    except ValueError:
        # Its value may be what JSON does not know: a timedelta, a Decimal.
        for member in kind:
            if json.loads(encode_payload(member.value)) == found:
                return member
        raise


def _as_text_or(inner: Reader, found: Any) -> Any:
    return found if isinstance(found, str) else inner(found)


def _as_optional(inner: Reader, found: Any) -> Any:
    return None if found is None else inner(found)


def _as_items(kind: Callable[[Any], Any], inner: Reader, found: Any) -> Any:
    return kind([inner(item) for item in as_kind(list, found)])


def _as_row(inner: list[Reader], found: Any) -> Any:
    return tuple(read(item) for read, item in zip(inner, as_kind(list, found), strict=True))


def _as_values(key: Reader, inner: Reader, found: Any) -> Any:
    return {key(name): inner(value) for name, value in as_kind(dict, found).items()}


def _as_boolean(name: str) -> bool:
    if name not in ("true", "false"):
        raise ValueError(f"the key {name!r} is not true or false")
    return name == "true"


#: Keys of JSON are text: what `json` makes of a number or a boolean is read back.
_KEYS: Mapping[Any, Reader] = {int: int, float: float, bool: _as_boolean}


_READERS: Mapping[Any, Reader] = {
    float: _as_float,
    datetime: partial(_as_text, datetime.fromisoformat),
    date: partial(_as_text, date.fromisoformat),
    time: partial(_as_text, time.fromisoformat),
    timedelta: lambda found: timedelta(seconds=_as_float(found)),
    UUID: partial(_as_text, UUID),
    Decimal: _as_decimal,
    bytes: _as_bytes,
    set: partial(_as_items, set, _as_found),
    frozenset: partial(_as_items, frozenset, _as_found),
    tuple: partial(_as_items, tuple, _as_found),
}
