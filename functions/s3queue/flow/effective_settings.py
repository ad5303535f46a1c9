"""Effective settings: what a queue's workers go by, where each setting comes from, in units that people read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal

from s3queue.documents.published_settings import PublishedSettings, Publisher
from s3queue.errors import Conflict, QueueError
from s3queue.limits import Breaker
from s3queue.protocol.access import QueueAccess
from s3queue.settings import QueueSettings, with_current_names
from s3queue.store import holds, open_state, put_surely

_log = logging.getLogger(__name__)
Origin = Literal["default", "definition", "queue.json"]
_SIZES = frozenset({"max_message_size", "max_batch_size", "heavy_above"})
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """One setting as it applies now."""

    name: str
    #: As JSON: seconds for a duration, bytes for a size.
    value: Any
    #: For people: `5 min`, `64 MiB`.
    shown: str
    origin: Origin

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "value": self.value, "shown": self.shown, "origin": self.origin}


def publish_settings(queue: QueueAccess, by: Publisher) -> bool:
    """Publish the settings of the queue's definition; True if that changed anything. One GET, and a PUT if it does.

    An operator can do without them, and so can every message: an error is logged, not raised.
    """
    body = PublishedSettings.to_bytes(queue.defined, by)
    try:
        found = open_state(queue.store, queue.keys.settings)
        if found and holds(found, body):
            return False
        etag = found.etag if found else None
        put_surely(queue.store, queue.keys.settings, body, if_match=etag, if_absent=etag is None)
        return True
    except Conflict:
        return False  # another process published at the same moment: one of the two has to stand
    except QueueError as error:
        _log.warning("settings not published, operators see defaults: %s: %s", queue.name, error)
        return False


def effective(defined: QueueSettings, overrides: Mapping[str, Any]) -> list[EffectiveSetting]:
    """All settings of a queue, in the order of `QueueSettings`."""
    applied, refused = defined.with_suitable(overrides)
    defaults = QueueSettings()
    counting = with_current_names({name: value for name, value in overrides.items() if name not in refused})
    changed = {name.removesuffix("_seconds") for name in counting} | {*counting}
    found = []
    for field in fields(applied):
        value = getattr(applied, field.name)
        origin: Origin = "default"
        if field.name in changed:
            origin = "queue.json"
        elif getattr(defined, field.name) != getattr(defaults, field.name):
            origin = "definition"
        plain = value.total_seconds() if isinstance(value, timedelta) else value
        plain = plain.to_json() if isinstance(plain, Breaker) else plain
        found.append(EffectiveSetting(name=field.name, value=plain, shown=shown(field.name, value), origin=origin))
    return found


def shown(name: str, value: Any) -> str:
    """A setting as people read it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, timedelta):
        return _duration(value)
    if name in _SIZES:
        return _size(value)
    if name.endswith("_mib"):
        return f"{value:,} MiB"
    if isinstance(value, Breaker):
        failures = "1 failure" if value.failures == 1 else f"{value.failures:,} failures in a row"
        kinds = " or ".join(map(str, value.on))
        return f"{failures}{f' of {kinds}' if kinds else ''}, then a pause of {_duration(value.pause_time)}"
    return f"{value:,}" if isinstance(value, int) else str(value) or "none"


def _duration(value: timedelta) -> str:
    seconds = value.total_seconds()
    if seconds < 60:
        return f"{seconds:g} s"
    parts, rest = [], round(seconds)
    for unit, word in _UNITS:
        if rest >= unit:
            parts.append(f"{rest // unit} {word}")
            rest %= unit
    return " ".join(parts[:2])


def _size(value: int) -> str:
    for unit, word in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if value >= unit:
            # In whole numbers: anyone may write a size that no float can hold.
            tenths = (10 * value + unit // 2) // unit
            return f"{tenths // 10}.{tenths % 10}".removesuffix(".0") + f" {word}"
    return f"{value} B"
