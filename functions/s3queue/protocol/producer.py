"""Producer: how messages get into a queue: one PUT per message, or one per batch.

A process that keeps enqueuing also reads `queue.json` every ten seconds, so that a `max_depth` set there reaches it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from s3queue import paths as names
from s3queue.clock import Ascending, as_signing_time
from s3queue.documents.message import due_instant, encode_body
from s3queue.encoding import encode_metadata, put_id_of, with_put_id
from s3queue.errors import (
    AccessDenied,
    Conflict,
    InvalidName,
    InvalidRequest,
    MessageTooLarge,
    NewerFormat,
    QueueFull,
    Unavailable,
)
from s3queue.tracing import current, traced

from .access import QueueAccess
from .batch_lines import batches_of
from .overrides import REFRESH_SECONDS, RuntimeOverrides
from .payload_check import check_payload

if TYPE_CHECKING:
    from concurrent.futures import Future

#: Each process reads the published stats at most this often, and only if the queue has a `max_depth`.
DEPTH_SECONDS = 10.0
#: Lines of one batch.
BULK_SIZE = 100
#: PUTs that `enqueue_many` runs at the same time.
BULK_PUTS = 4
#: Seconds between two tries of a PUT whose answer does not say what became of it.
PAUSES = (0.2, 0.8, 2.0)


class Reserved(NamedTuple):
    """Where a message goes of which there must be one only, and the put id that all of its PUTs carry."""

    path: str
    put_id: str
    #: False: another call reserved it, and has stored the message, or not yet, or never will.
    is_new: bool


@dataclass(slots=True)
class Producer:
    """Enqueues into one queue."""

    queue: QueueAccess
    overrides: RuntimeOverrides
    _depth: int = field(init=False, default=0)
    _depth_read: float = field(init=False, default=float("-inf"))
    _enqueues_since: float = field(init=False, default=float("inf"))
    _named_at: Ascending = field(init=False, default_factory=Ascending)

    def enqueue(
        self,
        body: Any,
        *,
        priority: int = 0,
        delay: float | timedelta | None = None,
        due_at: datetime | None = None,
        dedup_id: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
        reserve: Callable[[str], Reserved] | None = None,
        group: str | None = None,
    ) -> str:
        """See `Queue.enqueue`. A `dedup_id` becomes the name, and the PUT has `If-None-Match: *`.

        `reserve` is called with the message's path once nothing but the store can refuse it; what it returns counts.
        """
        if dedup_id is not None and name is not None:
            raise InvalidRequest("give a name or a dedup_id, not both: a dedup_id becomes the name")
        encoded, found_type = encode_body(body)
        if dedup_id is not None:
            name = _name_of_dedup_id(dedup_id)
        self._keep_up()
        path = self._path(name, priority, delay, due_at, group=group)
        self._check_size(len(encoded), f"{self.queue.name}/{path}")
        if self.queue.check_body:
            check_payload(path, encoded, self.queue.check_body)
        self._check_depth()
        kept = traced(encode_metadata(metadata or {}), current())
        # Others may PUT the same name: only an id of its own shows whether what lies there is this call's message.
        put_id = self.queue.chance.token() if name is not None else ""
        if reserve is not None:
            path, put_id, is_new = reserve(path)
            if not is_new and self._is_stored(path, put_id):
                return path
        try:
            self._put(
                path,
                encoded,
                with_put_id(kept, put_id) if put_id else kept,
                content_type or found_type,
                put_id=put_id,
                if_absent=dedup_id is not None or reserve is not None,
            )
        except Conflict:
            return path
        self.queue.events.emit(
            "message.enqueued", queue=self.queue.name, path=path, size=len(encoded), priority=priority
        )
        return path

    def enqueue_many(
        self,
        bodies: Iterable[Any],
        *,
        per_object: int = BULK_SIZE,
        priority: int = 0,
        delay: float | timedelta | None = None,
        due_at: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
        concurrency: int = BULK_PUTS,
    ) -> list[str]:
        """See `Queue.enqueue_many`. Several PUTs run at once, so that no batch waits for the answer to another."""
        if per_object < 1:
            raise InvalidRequest(f"per_object must be at least 1, not {per_object}")
        if concurrency < 1:
            raise InvalidRequest(f"concurrency must be at least 1, not {concurrency}")
        from concurrent.futures import ThreadPoolExecutor

        kept = traced(encode_metadata(metadata or {}), current())
        paths: list[str] = []
        under_way: deque[Future[None]] = deque()
        with ThreadPoolExecutor(concurrency) as producers:
            try:
                for batch, lines in batches_of(self.queue, bodies, per_object):
                    # Named here, one after the other: names begin with their time, and are claimed in that order.
                    paths.append(self.name_batch(lines, priority=priority, delay=delay, due_at=due_at))
                    if len(under_way) == concurrency:
                        under_way[0].result()
                        under_way.popleft()
                    under_way.append(producers.submit(self.put_batch, paths[-1], batch, kept, priority))
            except Exception:
                # If a batch before it was not stored, the caller has to know that; this error is the context then.
                for earlier in under_way:
                    earlier.result()
                raise
            for last in under_way:
                last.result()
        return paths

    def name_batch(
        self,
        lines: int,
        *,
        priority: int,
        delay: float | timedelta | None = None,
        due_at: datetime | None = None,
    ) -> str:
        """The path of a batch that may be PUT now."""
        self._keep_up()
        path = self._path(None, priority, delay, due_at, suffix=names.batch_suffix(lines))
        self._check_depth()
        return path

    def put_batch(
        self, path: str, batch: bytes, metadata: Mapping[str, str], priority: int, *, again: bool = False
    ) -> None:
        """PUT a batch whose lines the caller has checked. `again`: a call that was interrupted may have stored it, and
        it may have run since.  [P1]
        """
        if not (again and self._is_stored(path, "")):
            self._put(path, batch, metadata, "application/x-ndjson")
        self.queue.events.emit("message.enqueued", queue=self.queue.name, path=path, size=len(batch), priority=priority)

    def presign(
        self, *, name: str | None = None, priority: int = 0, expires: float | timedelta = 3600, once: bool = True
    ) -> tuple[str, str]:
        """See `Queue.presign`. No request is sent."""
        path = self._path(name, priority, None, None)
        seconds = as_signing_time(expires)
        return self.queue.store.presign_put(self.queue.keys.message(path), seconds=seconds, if_absent=once), path

    def _put(
        self,
        path: str,
        body: bytes,
        metadata: Mapping[str, str],
        content_type: str,
        *,
        put_id: str = "",
        if_absent: bool = False,
    ) -> None:
        """PUT a message. After an unknown answer, look for it before asking again: it may have run meanwhile.  [P1]

        Without a `put_id`, the name is the library's own, and whatever is there at a second try is what the first one
        wrote. With `if_absent`, another call's message counts as well: its id is in the queue.

        Raises:
            Conflict: `if_absent`, and a message of that name was there before.
            Unavailable: still unknown.
        """
        store, key = self.queue.store, self.queue.keys.message(path)
        unknown: Unavailable | None = None
        arrived: bool | None = False
        for pause in (*PAUSES, None):
            # Without an answer to the question whether it arrived, a second PUT would be a blind one.
            if arrived is not None:
                # Nobody else uses a name that is ours, so what is there is what this call, or one before it, wrote. And
                # a producer that may create, but not overwrite, has to say so.
                absent = if_absent or not put_id
                try:
                    store.put(key, body, if_absent=absent, metadata=metadata, content_type=content_type, once=True)
                    return
                except Conflict:
                    if if_absent and unknown is None:
                        raise
                    return
                except Unavailable as error:
                    unknown = error
            if pause is not None:
                self.queue.clock.sleep(pause)
                arrived = self._has_arrived(path, put_id)
                if arrived:
                    return
        assert unknown is not None
        raise unknown

    def _has_arrived(self, path: str, put_id: str, since: datetime | None = None) -> bool | None:
        """Whether this call's message is there, or its outcome; None if that is unknown. A producer that may only PUT
        cannot tell: False.
        """
        is_known = True
        try:
            found = self.queue.store.head(self.queue.keys.message(path))
            if found and (not put_id or put_id_of(found.metadata) == put_id):
                return True
        except AccessDenied:
            pass
        except Unavailable:
            is_known = False
        try:
            record = self.queue.outcome_of(path, since)
            if record is not None and (not put_id or record.put_id == put_id):
                return True
        except (AccessDenied, NewerFormat):
            pass
        except Unavailable:
            is_known = False
        return False if is_known else None

    def _is_stored(self, path: str, put_id: str) -> bool:
        """Whether a message that another call reserved is there, or an outcome: its name is its own, also if a replay
        has another id. The id tells when it was reserved.

        Raises:
            Unavailable: that is unknown.
        """
        from s3queue.documents.once import ended_since

        arrived = self._has_arrived(path, "", ended_since(put_id))
        if arrived is None:
            raise Unavailable(f"unknown whether {self.queue.name}/{path} is stored; try again")
        return arrived

    def _path(
        self,
        name: str | None,
        priority: int,
        delay: float | timedelta | None,
        due_at: datetime | None,
        suffix: str = "",
        group: str | None = None,
    ) -> str:
        now = self.queue.clock.now()
        due_at = due_instant(now, delay, due_at)
        is_delayed = due_at is not None and due_at > now
        if group is not None:
            folder = self._group(group, priority, is_delayed=is_delayed)
            if name is None:
                # One after the other, also within a millisecond, or if the clock is set back: order is what it is for.
                now = self._named_at.next(now)
        name = names.check_name(name) if name is not None else self.queue.chance.name(now) + suffix
        if group is not None and names.is_batch(name):
            raise InvalidRequest(f"{name} is a batch, which no group can have: enqueue its lines one by one")
        if group is None:
            folder = self._folder(name, priority, is_delayed=is_delayed)
        path = f"delayed/{names.format_due(due_at)}/" if due_at and is_delayed else "messages/"
        path += folder + name
        problem = self.queue.keys.problem(path)
        if problem:
            raise InvalidName(f"{self.queue.name}/{path}: {problem}")
        return path

    def _group(self, group: str, priority: int, *, is_delayed: bool) -> str:
        """Raises InvalidRequest for what would break the order of a group, or find nobody who runs it."""
        if priority or is_delayed:
            raise InvalidRequest(
                "a message with a group has no priority and no delay: a group runs in the order of names"
            )
        if self.queue.settings.is_mixed:
            raise InvalidRequest(
                f"queue {self.queue.name!r} sends messages above heavy_above to Spark, and cannot have groups: one "
                "holder runs all messages of a group; use a queue without heavy_above, or with engine='spark'"
            )
        return f"{names.group_partition(group)}/"

    def _folder(self, name: str, priority: int, *, is_delayed: bool) -> str:
        settings = self.queue.settings
        # What is urgent or delayed, and batches, which are cheap, have leases of their own.
        if settings.partitions and not (priority or is_delayed or names.is_batch(name)):
            return f"{names.shared_partition(name, settings.partitions)}/"
        shard = ""
        if settings.shards:
            shard = f"{hashlib.sha256(name.encode()).digest()[0] * settings.shards // 256:02x}/"
        return names.priority_prefix(priority) + shard

    def _keep_up(self) -> None:
        """Read `queue.json` every ten seconds. Not for the first message: sending one message costs one PUT.

        A producer that may only PUT, or that gets no answer, keeps the settings that it has.
        """
        now = self.queue.clock.monotonic()
        self._enqueues_since = min(self._enqueues_since, now)
        if now - self._enqueues_since >= REFRESH_SECONDS:
            with suppress(AccessDenied, Unavailable):
                self.overrides.refresh()

    def _check_size(self, size: int, what: str) -> None:
        if size > self.queue.settings.max_message_size:
            limit = self.queue.settings.max_message_size
            raise MessageTooLarge(f"{what} is too large: {size} bytes; max_message_size is {limit}")

    def _check_depth(self) -> None:
        if self.queue.settings.max_depth is None:
            return
        now = self.queue.clock.monotonic()
        if now - self._depth_read >= DEPTH_SECONDS:
            self._depth_read = now
            from .stats import published_stats

            published = published_stats(self.queue.store, self.queue.keys)
            self._depth = published.pending + published.delayed if published else 0
        if self._depth >= self.queue.settings.max_depth:
            depth = "1 message" if self._depth == 1 else f"{self._depth} messages"
            raise QueueFull(
                f"queue full: {self.queue.name}: {depth} at the sweeper's last count, max_depth is "
                f"{self.queue.settings.max_depth}; wait, or raise it with configure(max_depth=…)"
            )


def _name_of_dedup_id(dedup_id: str) -> str:
    try:
        if dedup_id:
            return f"dedup-{hashlib.sha256(dedup_id.encode()).hexdigest()[:40]}"
    except (AttributeError, UnicodeEncodeError):
        pass
    raise InvalidRequest(f"a dedup_id must be text that is not empty, not {dedup_id!r}")
