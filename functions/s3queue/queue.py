"""Queue: enqueue, claim, complete, fail, extend, release, status, stats: what producers, workers and operators call."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from . import keys as names
from .backlog import Backlog
from .batch import join_lines
from .claim import Claim
from .encoding import Json, encode_metadata
from .errors import Conflict, CorruptState, InvalidName, InvalidRequest, MessageTooLarge, QueueError, QueueFull
from .lease import Lease
from .message import encode_body
from .protocol import LeaseProtocol, as_duration
from .settings import QueueSettings
from .stats import Stats, measure
from .status import Status, read_status
from .store import ObjectInfo, delete_surely, listing

_log = logging.getLogger(__name__)
#: `queue.json` and the published stats are read at most this often per process, never per message.
REFRESH_SECONDS = 10.0
_DEFAULTS = QueueSettings()
#: Lines of one batch object.
BULK_SIZE = 100


@dataclass(slots=True, kw_only=True)
class Queue(LeaseProtocol):
    """One queue of a bucket. Safe for threads; make one per process and queue."""

    #: What the queue was defined with; `settings` is this with `queue.json` on top.
    defined: QueueSettings = field(init=False)
    _refreshed: float = field(init=False, default=float("-inf"))
    _depth: int = field(init=False, default=0)
    _depth_read: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        # Named, because super() does not work inside a dataclass with slots.
        LeaseProtocol.__post_init__(self)
        self.defined = self.settings

    # Producers

    def enqueue(
        self,
        body: bytes | str | Json,
        *,
        priority: int = 0,
        delay: float | timedelta | None = None,
        due_at: datetime | None = None,
        dedup_id: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> str:
        """Add a message and return its path. One PUT.

        With a `dedup_id` the message is written only if none with that id is there (pending, at work or waiting). A
        `delay` counts from this machine's clock.

        Raises:
            MessageTooLarge, InvalidPriority, InvalidName, QueueFull: nothing was written; change the call.
            Unavailable: unknown whether it was written; with a `dedup_id` or `name`, calling again is safe.
        """
        if dedup_id is not None and name is not None:
            raise InvalidRequest("give a name or a dedup_id, not both: a dedup_id becomes the name")
        encoded, found_type = encode_body(body)
        if dedup_id is not None:
            if not dedup_id:
                raise InvalidRequest("a dedup_id must not be empty")
            name = f"dedup-{hashlib.sha256(dedup_id.encode()).hexdigest()[:40]}"
        path = self._path(name, priority, delay, due_at)
        self._check_size(len(encoded), path)
        self._check_depth()
        try:
            self.store.put(
                self.keys.message(path),
                encoded,
                if_absent=dedup_id is not None,
                metadata=encode_metadata(metadata or {}),
                content_type=content_type or found_type,
            )
        except Conflict:
            return path
        self.events.emit("message.enqueued", queue=self.name, path=path, size=len(encoded), priority=priority)
        return path

    def enqueue_many(
        self,
        bodies: Iterable[bytes | str | Json],
        *,
        per_object: int = BULK_SIZE,
        priority: int = 0,
        delay: float | timedelta | None = None,
        due_at: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Add messages as `.ndjson` batches of up to `per_object` lines each; one PUT and one path per batch.

        Raises:
            InvalidRequest: a body is no single line, or not JSON; batches before it are enqueued.
        """
        if per_object < 1:
            raise InvalidRequest(f"per_object {per_object}: at least 1")
        paths = []
        for batch in self._batches(bodies, per_object):
            path = self._path(None, priority, delay, due_at, suffix=".ndjson")
            self._check_depth()
            self.store.put(
                self.keys.message(path),
                batch,
                metadata=encode_metadata(metadata or {}),
                content_type="application/x-ndjson",
            )
            self.events.emit("message.enqueued", queue=self.name, path=path, size=len(batch), priority=priority)
            paths.append(path)
        return paths

    def _batches(self, bodies: Iterable[Any], per_object: int) -> Iterator[bytes]:
        lines: list[bytes] = []
        size = 0
        for index, body in enumerate(bodies):
            try:
                line = join_lines([body])
            except (TypeError, ValueError) as error:
                raise InvalidRequest(f"body number {index} cannot be a line of a batch: {error}") from None
            self._check_size(len(line), f"body number {index}")
            if lines and (len(lines) == per_object or size + len(line) > self.settings.max_message_size):
                yield b"".join(lines)
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        if lines:
            yield b"".join(lines)

    def presign(
        self, *, name: str | None = None, priority: int = 0, expires: float | timedelta = 3600, once: bool = True
    ) -> tuple[str, str]:
        """A URL with which someone without credentials may PUT one message, and its path.

        `once`: the PUT must carry the header `If-None-Match: *`, so that the URL enqueues one message, once.
        """
        path = self._path(name, priority, None, None)
        seconds = int(as_duration(expires).total_seconds())
        return self.store.presign_put(self.keys.message(path), seconds=seconds, if_absent=once), path

    def _path(
        self,
        name: str | None,
        priority: int,
        delay: float | timedelta | None,
        due_at: datetime | None,
        suffix: str = "",
    ) -> str:
        if delay is not None and due_at is not None:
            raise InvalidRequest("give a delay or a due_at, not both")
        if due_at is not None and due_at.tzinfo is None:
            raise InvalidRequest(f"due_at {due_at} has no time zone: which instant is meant?")
        now = self.clock.now()
        name = names.check_name(name) if name is not None else self.chance.name(now) + suffix
        if self.settings.shards:
            shard = hashlib.sha256(name.encode()).digest()[0] * self.settings.shards // 256
            name = f"{shard:02x}/{name}"
        name = names.priority_prefix(priority) + name
        due_at = now + as_duration(delay) if delay is not None else due_at
        path = f"delayed/{names.format_due(due_at)}/{name}" if due_at and due_at > now else f"messages/{name}"
        problem = self.keys.problem(path)
        if problem:
            raise InvalidName(f"{self.name}/{path}: {problem}")
        return path

    def _check_size(self, size: int, what: str) -> None:
        if size > self.settings.max_message_size:
            limit = self.settings.max_message_size
            raise MessageTooLarge(f"{self.name}/{what} has {size} bytes; max_message_size is {limit}")

    def _check_depth(self) -> None:
        if self.settings.max_depth is None:
            return
        now = self.clock.monotonic()
        if now - self._depth_read >= REFRESH_SECONDS:
            self._depth_read = now
            published = self.published_stats()
            self._depth = published.pending + published.delayed if published else 0
        if self._depth >= self.settings.max_depth:
            raise QueueFull(
                f"{self.name} had {self._depth} messages at the sweeper's last count; max_depth is "
                f"{self.settings.max_depth}: wait, or raise it with configure(max_depth=…)"
            )

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

    def published_stats(self) -> Stats | None:
        """The sweeper's last count; None if there is none, or garbage in its place. One GET."""
        found = self.store.open(self.keys.stats)
        try:
            return Stats.from_bytes(found.read(), found.key) if found else None
        except CorruptState:
            return None

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
