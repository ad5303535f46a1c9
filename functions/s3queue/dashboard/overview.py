"""Overview: the numbers of each queue and a verdict, for CLI, API and dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from s3queue.documents.breaker_document import BreakerDocument
from s3queue.documents.heartbeat import Heartbeat
from s3queue.encoding import format_instant
from s3queue.errors import CorruptState, InvalidName
from s3queue.keys import check_queue
from s3queue.protocol.stats import Stats
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from s3queue.store import ObjectStore, listing, open_state

from .verdicts import Health, is_suspicious, judge, read_trend


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorker:
    """A pull worker, as its heartbeat shows it."""

    id: str
    heartbeat: Heartbeat
    seen_at: datetime
    is_fresh: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "started_at": format_instant(self.heartbeat.started_at),
            "seen_at": format_instant(self.seen_at),
            "is_fresh": self.is_fresh,
            "holds": list(self.heartbeat.holds),
            "stats": dict(self.heartbeat.stats),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOverview:
    """One queue: its numbers, and a verdict with its reason."""

    name: str
    stats: Stats
    settings: QueueSettings
    #: The sweeper's last count.
    published: Stats | None
    health: Health
    reason: str
    #: closed, open, probing, forced open or forced closed.
    breaker: str = "closed"

    @property
    def swept_at(self) -> datetime | None:
        return self.published.at if self.published else None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "stats": self.stats.to_json(),
            "paused": self.settings.paused,
            "swept_at": format_instant(self.swept_at) if self.swept_at else None,
            "health": self.health,
            "reason": self.reason,
            "breaker": self.breaker,
        }


def breaker_word(document: BreakerDocument) -> str:
    """The state of a breaker in a word or two."""
    return f"forced {document.state}" if document.is_forced else document.state


def queue_names(store: ObjectStore) -> list[str]:
    """The queues that have objects in this bucket. One LIST."""
    names = []
    for prefix in store.list("", delimiter="/").prefixes:
        try:
            names.append(check_queue(prefix.rstrip("/")))
        except InvalidName:
            continue
    return names


def overview(
    store: ObjectStore, name: str, *, settings: QueueSettings | None = None, pages: int | None = 2
) -> QueueOverview:
    """Count one queue and judge it. `pages` limits the LISTs per kind of object, so that a huge queue stays cheap.

    Without `settings`, those are read that its deployment or a worker published: a verdict depends on them.
    """
    queue = Queue(store=store, name=name, settings=settings or QueueSettings())
    if settings is None:
        queue.define_as_published()
    problem = ""
    try:
        # As its workers do: what does not suit is left out, and shown by `configure` and the doctor.
        queue.settings, _ = queue.defined.with_suitable(queue.overrides())
    except CorruptState as error:
        problem = str(error)
    stats = queue.stats(pages=pages)
    published = queue.published_stats()
    if published:
        stats = replace(stats, rescued=published.rescued)
    trend = read_trend(queue, stats) if is_suspicious(stats) and not queue.settings.paused else None
    health, reason = judge(stats, queue.settings, published, trend)
    try:
        document = queue.breaker().document
    except CorruptState as error:
        document, problem = BreakerDocument(), problem or str(error)
    if document.state != "closed" and not queue.settings.paused:
        health, reason = _stopped(document)
    if problem:
        health, reason = "stuck", problem
    return QueueOverview(
        name=name,
        stats=stats,
        settings=queue.settings,
        published=published,
        health=health,
        reason=reason,
        breaker=breaker_word(document),
    )


def _stopped(document: BreakerDocument) -> tuple[Health, str]:
    """The verdict on a queue whose breaker is not closed."""
    if document.is_forced:
        return "paused", "an operator opened the breaker: nothing is claimed"
    done = "one message probes" if document.state == "probing" else "nothing is claimed until one message probes"
    return "failing", f"the breaker is {document.state}, {done}: {document.error or 'too many failures in a row'}"


def live_workers(queue: Queue) -> list[LiveWorker]:
    """The pull workers of a queue, with a fresh heartbeat or without; one GET each."""
    found = []
    for page in listing(queue.store, queue.keys.prefix("workers")):
        for entry in page.objects:
            stored = open_state(queue.store, entry.key)
            try:
                heartbeat = Heartbeat.read(stored) if stored else None
            except CorruptState:
                continue
            if stored and heartbeat:
                fresh = heartbeat.is_fresh(stored.at - stored.modified_at)
                found.append(
                    LiveWorker(id=heartbeat.worker, heartbeat=heartbeat, seen_at=stored.modified_at, is_fresh=fresh)
                )
    return found


def totals(overviews: Mapping[str, QueueOverview]) -> dict[str, int]:
    """The counts of all queues together."""
    counts = ("pending", "delayed", "processing", "failed", "completed", "dead")
    return {name: sum(getattr(one.stats, name) for one in overviews.values()) for name in counts}
