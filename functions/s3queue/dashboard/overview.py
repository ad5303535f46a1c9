"""Overview: the numbers of each queue and a verdict, for CLI, API and dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from s3queue.documents.breaker_document import BreakerDocument
from s3queue.documents.heartbeat import Heartbeat
from s3queue.encoding import format_instant
from s3queue.errors import CorruptState, InvalidName
from s3queue.keys import check_queue
from s3queue.protocol.stats import Stats
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from s3queue.store import ObjectStore, listing

Health = Literal["healthy", "idle", "paused", "stuck", "failing", "unswept"]
#: `unknown`: the queue could not be read.
Verdict = Health | Literal["unknown"]
#: A queue is stuck if its oldest message waits longer than this.
TOO_OLD = timedelta(minutes=5)
#: A queue is unswept if no sweeper has published for this long; while there is work, one publishes every minute.
UNSWEPT = timedelta(minutes=5)


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
    """Count one queue and judge it. `pages` limits the LISTs per kind of object, so that a huge queue stays cheap."""
    queue = Queue(store=store, name=name, settings=settings or QueueSettings())
    problem = ""
    try:
        queue.settings = queue.defined.with_overrides(queue.overrides())
    except CorruptState as error:
        problem = str(error)
    stats = queue.stats(pages=pages)
    published = queue.published_stats()
    if published:
        stats = replace(stats, rescued=published.rescued)
    health, reason = judge(stats, queue.settings, published.at if published else None)
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


def judge(stats: Stats, settings: QueueSettings, swept_at: datetime | None) -> tuple[Health, str]:
    """A verdict and its reason: the worst one that applies."""
    oldest = timedelta(seconds=stats.oldest_seconds or 0)
    if settings.paused:
        waiting = "1 message waits" if stats.pending == 1 else f"{stats.pending} messages wait"
        return "paused", f"{waiting} until the queue is resumed"
    if stats.pending and oldest > TOO_OLD:
        work = f"{stats.processing} being processed" if stats.processing else "none being processed"
        return "stuck", f"the oldest message has waited for {_words(oldest)}, {work}"
    busy = stats.pending or stats.processing or stats.failed
    if busy and (swept_at is None or stats.at - swept_at > UNSWEPT):
        since = f"not swept for {_words(stats.at - swept_at)}" if swept_at else "never swept"
        return "unswept", f"{since}: lost events and crashes are not repaired"
    if stats.dead:
        letters = "1 dead letter waits" if stats.dead == 1 else f"{stats.dead} dead letters wait"
        return "failing", f"{letters} for a decision"
    if busy:
        return "healthy", f"{stats.pending} pending, {stats.processing} processing, {stats.failed} waiting for a retry"
    return "idle", "nothing to do"


def live_workers(queue: Queue) -> list[LiveWorker]:
    """The pull workers of a queue, with a fresh heartbeat or without; one GET each."""
    found = []
    for page in listing(queue.store, queue.keys.prefix("workers")):
        for entry in page.objects:
            stored = queue.store.open(entry.key)
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


#: Worst first.
SEVERITY: tuple[Verdict, ...] = ("stuck", "unknown", "unswept", "failing", "paused", "healthy", "idle")


def verdict(judged: Sequence[tuple[str, Verdict, str]]) -> tuple[Verdict, str]:
    """One verdict for all queues, from the (name, health, reason) of each: that of the worst queue."""
    if not judged:
        return "idle", "there is no queue in this bucket yet"
    ranked = sorted(judged, key=lambda one: SEVERITY.index(one[1]))
    name, health, reason = ranked[0]
    if health in ("healthy", "idle"):
        busy = sum(one[1] == "healthy" for one in judged)
        queues = "1 queue" if len(judged) == 1 else f"{len(judged)} queues"
        return health, f"{queues}, {busy} busy" if busy else f"{queues}, nothing to do"
    others = sum(one[1] not in ("healthy", "idle") for one in judged) - 1
    more = f"; {others} more {'queue needs' if others == 1 else 'queues need'} attention" if others else ""
    said = "cannot be read" if health == "unknown" else f"is {health}"
    return health, f"{name} {said}: {reason}{more}"


def _words(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
