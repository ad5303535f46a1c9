"""RuntimeOverrides: what an operator changed while the queue is at work, stored in `queue.json`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from s3queue.errors import Conflict, CorruptState
from s3queue.settings import QueueSettings, with_current_names

from .access import QueueAccess

_log = logging.getLogger(__name__)
#: `queue.json` is read at most this often per process, never per message.
REFRESH_SECONDS = 10.0
_DEFAULTS = QueueSettings()


@dataclass(slots=True)
class RuntimeOverrides:
    """Reads and writes `queue.json`, and keeps the queue's `settings` up to date with it."""

    queue: QueueAccess
    _refreshed: float = field(init=False, default=float("-inf"))

    def read(self) -> dict[str, Any]:
        """What `queue.json` says.

        Raises:
            CorruptState: it makes no sense; workers go on with what they had.
        """
        return self._read()[0]

    def _read(self) -> tuple[dict[str, Any], str | None]:
        found = self.queue.store.open(self.queue.keys.overrides)
        if found is None:
            return {}, None
        try:
            overrides = json.loads(found.read())
            self.queue.defined.with_overrides(overrides)
        except (ValueError, AttributeError, TypeError) as error:
            raise CorruptState(f"{found.key} makes no sense: {error}; correct or delete it") from None
        return overrides, found.etag

    def refresh(self) -> bool:
        """Read `queue.json` if the last look is old enough; True if it was read. Garbage changes nothing."""
        now = self.queue.clock.monotonic()
        if now - self._refreshed < REFRESH_SECONDS:
            return False
        self._refreshed = now
        try:
            self.queue.settings = self.queue.defined.with_overrides(self.read())
        except CorruptState as error:
            _log.warning("%s", error)
        return True

    def configure(self, **changes: Any) -> QueueSettings:
        """Change settings at run time, for every process, within ten seconds; None takes an override back.

        Raises:
            InvalidRequest: an unknown setting or a value out of range; nothing was changed.
            CorruptState: `queue.json` makes no sense; correct or delete it first.
        """
        while True:
            overrides, etag = self._read()
            merged = {name: value for name, value in (_named(overrides) | _named(changes)).items() if value is not None}
            settings = self.queue.defined.with_overrides(merged)
            body = json.dumps(_plain(merged), indent=2, sort_keys=True).encode()
            try:
                self.queue.store.put(
                    self.queue.keys.overrides,
                    body,
                    if_match=etag,
                    if_absent=etag is None,
                    content_type="application/json",
                )
            except Conflict:
                continue  # another operator changed it meanwhile: merge with theirs
            self.queue.settings = settings
            return settings

    def pause(self) -> None:
        """Claim nothing any more; what runs now is finished, what comes waits."""
        self.configure(paused=True)

    def resume(self) -> None:
        self.configure(paused=None)


def _named(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Each setting under its one name: `timeout` and `timeout_seconds` side by side would contradict each other."""
    known = QueueSettings.__dataclass_fields__
    current = with_current_names(overrides)
    return {name if name in known else name.removesuffix("_seconds"): value for name, value in current.items()}


def _plain(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides as JSON: durations in seconds, under names that say so, whatever they were given as."""
    durations = {name for name in overrides if isinstance(getattr(_DEFAULTS, name), timedelta)}
    return {
        f"{name}_seconds" if name in durations else name: (
            value.total_seconds() if isinstance(value, timedelta) else value
        )
        for name, value in overrides.items()
    }
