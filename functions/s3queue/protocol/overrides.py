"""RuntimeOverrides: the settings that an operator changed at run time, stored in `queue.json`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from s3queue.encoding import NONSENSE, parse_json
from s3queue.errors import Conflict, CorruptState
from s3queue.limits import Breaker
from s3queue.settings import QueueSettings, with_current_names
from s3queue.store import open_state

from .access import QueueAccess

_log = logging.getLogger(__name__)
#: Each process reads `queue.json` at most this often, never per message.
REFRESH_SECONDS = 10.0
#: Larger objects are not read: a setting takes a line.
OVERRIDES_BYTES = 64 * 1024
_DEFAULTS = QueueSettings()


@dataclass(slots=True)
class RuntimeOverrides:
    """Reads and writes `queue.json`, and keeps the queue's `settings` up to date with it."""

    queue: QueueAccess
    _refreshed: float = field(init=False, default=float("-inf"))
    #: What `queue.json` said when it was last read.
    _known: dict[str, Any] = field(init=False, default_factory=dict)

    def read(self) -> dict[str, Any]:
        """See `Queue.overrides`. One GET."""
        return self._read()[0]

    def _read(self) -> tuple[dict[str, Any], str | None]:
        found = open_state(self.queue.store, self.queue.keys.overrides)
        if found is None:
            return {}, None
        try:
            overrides = parse_json(found.read(OVERRIDES_BYTES))
            self.queue.defined.with_overrides(overrides)
        except NONSENSE as error:
            raise CorruptState(f"{found.key} cannot be read: {str(error)[:500]}; correct or delete it") from None
        return overrides, found.etag

    def refresh(self) -> bool:
        """See `Queue.refresh`. One GET every ten seconds at most."""
        now = self.queue.clock.monotonic()
        if now - self._refreshed < REFRESH_SECONDS:
            return False
        self._refreshed = now
        try:
            self._apply(self.read())
        except CorruptState as error:
            _log.warning("queue.json not applied, settings kept: %s", error)
        return True

    def configure(self, **changes: Any) -> QueueSettings:
        """See `Queue.configure`. GET, merge, conditional PUT; again if another operator wrote in between."""
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
                continue  # another operator changed it meanwhile: merge with that change
            self._apply(merged)
            return settings

    def define(self, settings: QueueSettings) -> None:
        """See `Queue.define`."""
        if self.queue.defined == _DEFAULTS:
            self.queue.defined = settings
            self._apply(self._known)

    def _apply(self, overrides: dict[str, Any]) -> None:
        self.queue.settings = self.queue.defined.with_overrides(overrides)
        self._known = overrides


def _named(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Each setting under one name: `timeout` and `timeout_seconds` side by side could contradict each other."""
    known = QueueSettings.__dataclass_fields__
    current = with_current_names(overrides)
    return {name if name in known else name.removesuffix("_seconds"): value for name, value in current.items()}


def _plain(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides as JSON: durations are seconds, and their names end in `_seconds`."""
    durations = {name for name in overrides if isinstance(getattr(_DEFAULTS, name), timedelta)}
    return {
        f"{name}_seconds" if name in durations else name: (
            value.total_seconds()
            if isinstance(value, timedelta)
            else value.to_json()
            if isinstance(value, Breaker)
            else value
        )
        for name, value in overrides.items()
    }
