"""RuntimeOverrides: the settings that an operator changed at run time, stored in `queue.json`.

One that does not suit the queue's definition is left out with a warning; the others count, `paused` before all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from s3queue.encoding import NONSENSE, as_object, parse_json
from s3queue.errors import AccessDenied, Conflict, CorruptState, InvalidRequest
from s3queue.limits import Breaker
from s3queue.settings import QueueSettings, with_current_names
from s3queue.store import open_state

from .access import QueueAccess

if TYPE_CHECKING:
    from s3queue.documents.published_settings import PublishedSettings

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
    #: Whether a deployed function goes by these settings: what it cannot keep does not suit.
    in_function: bool = field(init=False, default=False)
    _refreshed: float = field(init=False, default=float("-inf"))
    #: What `queue.json` said when it was last read.
    _known: dict[str, Any] = field(init=False, default_factory=dict)
    #: Its ETag.
    _version: str | None = field(init=False, default=None)
    #: The version that was last warned of, and the settings in it that do not suit: each is warned of once.
    _warned: tuple[str | None, tuple[str, ...]] = field(init=False, default=(None, ()))

    def read(self) -> dict[str, Any]:
        """See `Queue.overrides`. One GET."""
        return self._read()[0]

    def _read(self) -> tuple[dict[str, Any], str | None]:
        found = open_state(self.queue.store, self.queue.keys.overrides)
        if found is None:
            return {}, None
        try:
            overrides = as_object(parse_json(found.read(OVERRIDES_BYTES)))
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
            self._apply(*self._read())
        except CorruptState as error:
            _log.warning("queue.json not applied, settings kept: %s", error)
        return True

    def configure(self, **changes: Any) -> QueueSettings:
        """See `Queue.configure`. GET, merge, conditional PUT; again if another operator wrote in between.

        Who has no definition goes by the one that was published: one GET more.
        """
        definition, is_known = self._definition()
        check = definition.check_override if is_known else _any
        while True:
            overrides, etag = self._read()
            merged, settings = _merged(definition, check, _named(overrides), _named(changes))
            body = json.dumps(_plain(merged), indent=2, sort_keys=True).encode()
            try:
                version = self.queue.store.put(
                    self.queue.keys.overrides,
                    body,
                    if_match=etag,
                    if_absent=etag is None,
                    content_type="application/json",
                )
            except Conflict:
                continue  # another operator changed it meanwhile: merge with that change
            self._apply(merged, version.etag)
            return settings

    def serve_function(self) -> None:
        """See `Queue.serve_function`."""
        self.in_function = True

    def define(self, settings: QueueSettings) -> None:
        """See `Queue.define`."""
        if self.queue.defined == _DEFAULTS:
            self.queue.defined = settings
            self._apply(self._known, self._version)

    def _definition(self) -> tuple[QueueSettings, bool]:
        """And whether it is known: else nothing tells whether there is a function, and how it was deployed."""
        if self.queue.defined != _DEFAULTS:
            return self.queue.defined, True
        try:
            published = read_published(self.queue)
        except AccessDenied:
            published = None  # whoever may change settings need not be allowed to read these
        return (published.settings, True) if published else (self.queue.defined, False)

    def _apply(self, overrides: dict[str, Any], version: str | None) -> None:
        defined = self.queue.defined
        check = defined.check_override if self.in_function else _any
        self.queue.settings, refused = defined.with_suitable(_named(overrides), check)
        self._known, self._version = overrides, version
        if refused and (version, tuple(refused)) != self._warned:
            self._warned = version, tuple(refused)
            _log.warning(
                "%s: not applied, the other settings are: %s; change what the definition of the queue says, or take "
                "these back: queue.configure(%s=None)",
                self.queue.keys.overrides,
                "; ".join(f"{name} ({why})" for name, why in refused.items())[:1000],
                next(iter(refused)),
            )


def read_published(queue: QueueAccess) -> PublishedSettings | None:
    """What a deployment or a worker published; None if nobody has, or if it cannot be read. One GET."""
    # Only for who asks: a cold start pays for every module.
    from s3queue.documents.published_settings import PublishedSettings

    found = open_state(queue.store, queue.keys.settings)
    try:
        return PublishedSettings.read(found) if found else None
    except CorruptState as error:
        _log.warning("published settings not read, defaults shown: %s", error)
        return None


def _merged(
    definition: QueueSettings,
    check: Callable[[QueueSettings], None],
    stored: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> tuple[dict[str, Any], QueueSettings]:
    """What is to be stored, and the settings that it makes.

    What is stored and does not suit stays as it is, for whoever knows it, and hinders no change of another setting.
    """
    merged = {name: value for name, value in {**stored, **changes}.items() if value is not None}
    _, refused = definition.with_suitable(stored, check)
    suitable = {name: one for name, one in merged.items() if name in changes or name not in refused}
    settings = definition.with_overrides(suitable)
    try:
        check(settings)
    except InvalidRequest as error:
        raise InvalidRequest(f"{error}; if only pull workers run this queue, define it with engine='pull'") from None
    return merged, definition.with_suitable(merged, check)[0]


def _any(settings: QueueSettings) -> None:
    """Whoever is no function can keep any settings."""


def _named(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Each setting under one name: `timeout` and `timeout_seconds` side by side could contradict each other."""
    current = with_current_names(overrides)
    return {_setting(name): value for name, value in current.items()}


def _setting(name: str) -> str:
    """What this version does not know keeps its name: it may be a setting of a newer one."""
    short = name.removesuffix("_seconds")
    return short if isinstance(getattr(_DEFAULTS, short, None), timedelta) else name


def _plain(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides as JSON: durations are seconds, and their names end in `_seconds`."""
    durations = {name for name in overrides if isinstance(getattr(_DEFAULTS, name, None), timedelta)}
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
