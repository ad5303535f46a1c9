"""Queue: enqueue, claim, complete, fail, extend, release, status, stats: what producers, workers and operators call."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from .backlog import Backlog
from .claim import Claim
from .consumer import Consumer
from .errors import Conflict, CorruptState, QueueError
from .lease import Lease
from .producer import Producer
from .settings import QueueSettings
from .stats import Stats, measure
from .status import Status, read_status
from .store import ObjectInfo, delete_surely, listing

_log = logging.getLogger(__name__)
#: `queue.json` is read at most this often per process, never per message.
REFRESH_SECONDS = 10.0
_DEFAULTS = QueueSettings()


@dataclass(slots=True, kw_only=True)
class Queue(Producer, Consumer):
    """One queue of a bucket. Safe for threads; make one per process and queue."""

    #: What the queue was defined with; `settings` is this with `queue.json` on top.
    defined: QueueSettings = field(init=False)
    _refreshed: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        # Named, because super() does not work inside a dataclass with slots.
        Producer.__post_init__(self)
        self.defined = self.settings

    # Workers

    def claim_next(self, limit: int = 1, *, timeout: float | timedelta | None = None) -> list[Claim]:
        """Up to `limit` messages that may run now, highest priority first, then oldest; none while paused."""
        self.refresh()
        if self.settings.paused:
            return []
        backlog = Backlog(self)
        claims: list[Claim] = []
        for candidate in backlog.drain():
            try:
                claim = self.claim(candidate.path, timeout=timeout, look=candidate.look)
            except CorruptState as error:
                _log.warning("%s", error)  # one message that only an operator can help must not stop the others
                claim = None
            except QueueError:
                if not claims:
                    raise
                break  # what is claimed must reach the caller, or it would be nobody's until it runs out
            backlog.report(won=claim is not None)
            if claim:
                claims.append(claim)
            if len(claims) >= limit:
                break
        return claims

    # Operators

    def status(self, path: str) -> Status:
        """Where a message stands, and everything known of its life.

        Raises:
            MessageNotFound: no message, lease, record or dead letter has this path.
        """
        return read_status(self.store, self.keys, path)

    def stats(self, *, pages: int | None = None) -> Stats:
        """Count now. `pages` bounds the LISTs per kind of object (1,000 each)."""
        return measure(self.store, self.keys, pages=pages)

    def overrides(self) -> dict[str, Any]:
        """What `queue.json` says.

        Raises:
            CorruptState: it makes no sense; workers go on with what they had.
        """
        return self._read_overrides()[0]

    def _read_overrides(self) -> tuple[dict[str, Any], str | None]:
        found = self.store.open(self.keys.overrides)
        if found is None:
            return {}, None
        try:
            overrides = json.loads(found.read())
            self.defined.with_overrides(overrides)
        except (ValueError, AttributeError, TypeError) as error:
            raise CorruptState(f"{found.key} makes no sense: {error}; correct or delete it") from None
        return overrides, found.etag

    def refresh(self) -> bool:
        """Read `queue.json` if the last look is old enough; True if it was read. Garbage changes nothing."""
        now = self.clock.monotonic()
        if now - self._refreshed < REFRESH_SECONDS:
            return False
        self._refreshed = now
        try:
            self.settings = self.defined.with_overrides(self.overrides())
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
            overrides, etag = self._read_overrides()
            merged = {name: value for name, value in (_named(overrides) | _named(changes)).items() if value is not None}
            settings = self.defined.with_overrides(merged)
            body = json.dumps(_plain(merged), indent=2, sort_keys=True).encode()
            try:
                self.store.put(
                    self.keys.overrides, body, if_match=etag, if_absent=etag is None, content_type="application/json"
                )
            except Conflict:
                continue  # another operator changed it meanwhile: merge with theirs
            self.settings = settings
            return settings

    def pause(self) -> None:
        """Claim nothing any more; what runs now is finished, what comes waits."""
        self.configure(paused=True)

    def resume(self) -> None:
        self.configure(paused=None)

    def cleanup(self) -> int:
        """Delete records and dead letters past their retention; how many. For buckets without lifecycle rules."""
        deleted = 0
        retentions = {"records": self.settings.record_retention, "dead": self.settings.dead_retention}
        for kind, retention in retentions.items():
            for page in listing(self.store, self.keys.prefix(kind)):
                for entry in page.objects:
                    if page.at - entry.modified_at > retention:
                        # If it was replaced since the LIST, it is a younger one's: leave it.
                        deleted += delete_surely(self.store, entry.key, if_match=entry.etag)
        return deleted

    def purge(self) -> int:
        """Delete every message that nobody is working on, without a record; how many. What runs now is finished."""
        deleted = 0
        for kind in ("messages", "delayed"):
            for page in listing(self.store, self.keys.prefix(kind)):
                deleted += sum(self.purge_message(entry) for entry in page.objects)
        return deleted

    def purge_message(self, entry: ObjectInfo) -> bool:
        """Delete one listed message without a record, unless someone works on it or PUT it anew; whether it is gone."""
        path = self.keys.path(entry.key)
        found = self.store.open(self.keys.lease(path)) if path else None
        if found and path:
            try:
                waits = Lease.from_bytes(found.read(), found.key).state == "waiting"
            except CorruptState:
                waits = False
            if not waits or not delete_surely(self.store, found.key, if_match=found.etag):
                return False
        return delete_surely(self.store, entry.key, if_match=entry.etag)


def _named(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Each setting under its one name: `timeout` and `timeout_seconds` side by side would contradict each other."""
    known = QueueSettings.__dataclass_fields__
    return {name if name in known else name.removesuffix("_seconds"): value for name, value in overrides.items()}


def _plain(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides as JSON: durations in seconds, under names that say so, whatever they were given as."""
    durations = {name for name in overrides if isinstance(getattr(_DEFAULTS, name), timedelta)}
    return {
        f"{name}_seconds" if name in durations else name: (
            value.total_seconds() if isinstance(value, timedelta) else value
        )
        for name, value in overrides.items()
    }
