"""Words: parses what people type, and formats what people read. Control characters in stored text become visible."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from s3queue.encoding import parse_instant
from s3queue.errors import InvalidRequest
from s3queue.printable import clean as clean  # for all that the CLI prints
from s3queue.settings import parse_size

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")


def one_line(text: Any) -> str:
    """As one clean line, for an error or a cell."""
    return clean(" ".join(str(text).split()))


# What people type


def duration(text: str | timedelta) -> timedelta:
    """`90s`, `15m`, `1h30m`, `3d`; a bare number is seconds. (typer parses a default too.)"""
    if isinstance(text, timedelta):
        return text
    try:
        if _DURATION.fullmatch(text):
            return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)))
        if re.fullmatch(r"\d+(?:\.\d+)?", text):
            return timedelta(seconds=float(text))
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long") from None
    raise typer.BadParameter(f"{text!r} is not a duration; write 90s, 15m, 2h, 3d or 1h30m")


def instant(text: str) -> datetime:
    """ISO 8601 with a zone."""
    try:
        return parse_instant(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not an instant; write 2026-11-16T10:15:00Z (ISO 8601, with Z or an offset)"
        ) from None


def size(text: str) -> int:
    """`300`, `4 KiB`, `64 MiB`."""
    try:
        return parse_size(text)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from None


def whole_number(text: str) -> int | None:
    """`17`, `-1`; None if it is no such number. `isdigit` takes more than `int` does: ², and any number of digits."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def pair(text: str) -> tuple[str, str]:
    """`key=value`."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise typer.BadParameter(f"{text!r} is not a pair; write KEY=VALUE")
    return name.strip(), value


# What people read


def age(span: timedelta | float | None) -> str:
    """`69 ms`, `12 s`, `3 min`, `2 h 5 min`, `3 d 4 h`; a dash if there is none."""
    if span is None:
        return "-"
    seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    if seconds < 0:
        return f"-{age(-seconds)}"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    seconds = int(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min" + (f" {seconds % 60} s" if seconds < 600 and seconds % 60 else "")
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    if hours < 24:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    return f"{hours // 24} d" + (f" {hours % 24} h" if hours % 24 else "")


def moment(at: datetime | None) -> str:
    """The instant: `2026-11-16 10:15:03Z`."""
    return "-" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def when(at: datetime | None, now: datetime) -> str:
    """The instant, and its distance from now: `2026-11-16 10:15:03Z (3 min ago)`."""
    if at is None:
        return "-"
    ahead = at - now
    return f"{moment(at)} ({f'in {age(ahead)}' if ahead > timedelta() else f'{age(-ahead)} ago'})"


def bytes_(count: int | None) -> str:
    if count is None:
        return "-"
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{number:.1f}".removesuffix(".0") + f" {unit}"


def at_least(number: int, *, is_exact: bool) -> str:
    """`1,200`, or `≥ 1,200` if not everything was counted, as on the dashboard."""
    return f"{'' if is_exact else '≥ '}{number:,}"


def counted(number: int, thing: str, things: str = "") -> str:
    """`1 message`, `1,200 messages`."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
