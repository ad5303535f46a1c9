"""AWS's own models of its APIs, with their patterns, lengths and enums: botocore checks types only, AWS the rest.

What a test sends to an emulator, which takes anything, is held against them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import botocore.validate
from botocore.exceptions import ParamValidationError

_validate = botocore.validate.ParamValidator.validate


def check_every_call() -> None:
    """From now on, every boto3 client of this process refuses what AWS would refuse."""
    botocore.validate.ParamValidator.validate = _checked  # type: ignore[method-assign]


def _checked(self: Any, params: Any, shape: Any) -> Any:
    report = _validate(self, params, shape)
    if not report.has_errors() and (found := list(violations(params, shape))):
        raise ParamValidationError(report=f"{shape.name} of AWS's model: {'; '.join(found)}")
    return report


def violations(value: Any, shape: Any, name: str = "") -> Iterator[str]:
    """What AWS's model of a request says against these parameters."""
    kind, limits = shape.type_name, shape.metadata
    if kind == "structure" and isinstance(value, Mapping):
        for member, one in value.items():
            yield from violations(one, shape.members[member], f"{name}.{member}".lstrip("."))
    elif kind == "list" and isinstance(value, list | tuple):
        yield from _outside(len(value), limits, f"{name} has", "entries")
        for one in value:
            yield from violations(one, shape.member, f"{name}[]")
    elif kind == "map" and isinstance(value, Mapping):
        yield from _outside(len(value), limits, f"{name} has", "entries")
        for key, one in value.items():
            yield from violations(key, shape.key, f"the name {key!r} in {name}")
            yield from violations(one, shape.value, f"{name}[{key}]")
    elif kind == "string" and isinstance(value, str):
        yield from _outside(len(value), limits, f"{name} has", "characters")
        if shape.enum and value not in shape.enum:
            yield f"{name} is {value!r}, not one of {', '.join(shape.enum)}"
        if (pattern := _compiled(limits.get("pattern", ""))) and not pattern.search(value):
            yield f"{name} is {value!r}, which is not {limits['pattern']}"
    elif kind in ("integer", "long", "float", "double") and isinstance(value, int | float):
        yield from _outside(value, limits, f"{name} is", "")


def _outside(found: float, limits: Mapping[str, Any], name: str, unit: str) -> Iterator[str]:
    least, most = limits.get("min"), limits.get("max")
    if least is not None and found < least:
        yield f"{name} {found} {unit}, at least {least}".replace("  ", " ")
    if most is not None and found > most:
        yield f"{name} {found} {unit}, at most {most}".replace("  ", " ")


#: Java's classes of characters, as near as `re` comes to them; never narrower.
_CLASSES = {r"\p{L}": r"\w", r"\p{N}": r"\d", r"\p{Nd}": r"\d", r"\p{Z}": r"\s", r"\p{P}": r"\W", r"\p{M}": r"\W"}


@cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """A pattern as AWS means it: of the whole value; None if it says what `re` cannot."""
    for java, python in _CLASSES.items():
        pattern = pattern.replace(java, python)
    with warnings.catch_warnings(action="ignore"):
        try:
            return re.compile(rf"\A(?:{pattern})\Z", re.DOTALL) if pattern else None
        except re.error:
            return None
