"""Verdicts: what an operator should look at first, and why; from one count, and on suspicion from the last minutes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from s3queue.flow.listing import is_of_partition
from s3queue.protocol.counting import CountedLetters, lines_at
from s3queue.protocol.stats import Stats
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from s3queue.store import ObjectInfo

from .journals import arrivals
from .recent import Recent, made_at

Health = Literal["healthy", "idle", "paused", "stuck", "behind", "failing", "unswept"]
#: `unknown`: the queue could not be read.
Verdict = Health | Literal["unknown"]
#: Worst first: a message that nobody runs comes before one that nobody could run.
SEVERITY: tuple[Verdict, ...] = ("stuck", "unknown", "behind", "unswept", "failing", "paused", "healthy", "idle")
#: A message that may run and waits longer than this is a reason to look how the queue has fared lately.
TOO_OLD = timedelta(minutes=5)
#: Work that no sweeper has seen for this long; while there is work, one publishes every minute.
UNSWEPT = timedelta(minutes=5)
#: How far back the trend goes; a backlog has to grow in both halves of it.
TREND = timedelta(minutes=20)
#: Outcomes that stand against the messages that wait for a retry.
LATELY = timedelta(minutes=5)
#: A smaller backlog may grow as it likes, as long as its messages are young.
MANY = 100
OLD_ENOUGH = timedelta(minutes=1)
#: How much more has to come than goes.
GROWS = 1.2
#: Messages waiting for a retry that are read.
SAMPLED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The last twenty minutes of a queue, in two halves."""

    entered: tuple[int, int] = (0, 0)
    finished: tuple[int, int] = (0, 0)
    #: In the last five minutes.
    entered_lately: int = 0
    finished_lately: int = 0
    completed_lately: int = 0
    #: Whether every message that waits for a retry, as far as they were read, has failed at least twice.
    fails_again: bool = False

    @property
    def is_growing(self) -> bool:
        pairs = zip(self.entered, self.finished, strict=True)
        return all(came and came >= GROWS * went for came, went in pairs)

    @property
    def is_draining(self) -> bool:
        """By the last five minutes: before them came the burst that there is to drain."""
        return self.finished_lately > self.entered_lately


def is_suspicious(stats: Stats) -> bool:
    """Whether one count is not enough for a verdict."""
    oldest = timedelta(seconds=stats.oldest_seconds or 0)
    is_old = stats.pending and (oldest > TOO_OLD or (stats.pending >= MANY and oldest > OLD_ENOUGH))
    return bool(is_old or stats.failed)


def read_trend(queue: Queue, stats: Stats) -> Trend | None:
    """A few LISTs of what was written lately, and some GETs if it has partitions; None if they do not show all of it,
    or outcomes leave no record.
    """
    since, middle, late = stats.at - TREND, stats.at - TREND / 2, stats.at - LATELY
    recent = Recent(queue, since, timedelta(seconds=stats.oldest_seconds or 0))
    entered, finished = [0, 0, 0], [0, 0, 0]

    def add(counts: list[int], at: datetime, many: int) -> None:
        counts[at >= middle] += many
        counts[2] += many if at >= late else 0

    journals: list[ObjectInfo] = []
    for entry in recent.objects("records"):
        many = queue.keys.records_at(entry.key)
        add(finished, entry.modified_at, many)
        if is_of_partition(queue, entry.key):
            journals.append(entry)
            continue
        # A name that the producer chose does not say when: as a rule not long before.
        came_at = made_at(entry.key) or entry.modified_at
        if came_at >= since:
            add(entered, came_at, many)
    for at, many, _ in arrivals(queue, journals):
        if at >= since:
            add(entered, at, many)
    for entry in recent.objects(""):
        add(entered, entry.modified_at, lines_at(entry.key))
    letters = CountedLetters(queue.store, queue.keys)
    died = sum(letters.lines(entry) for entry in recent.objects("dead") if entry.modified_at >= late)
    if not recent.exact or not queue.settings.history:
        return None
    fails_again = False
    if stats.failed:
        waiting = queue.list("waiting", limit=SAMPLED).messages[:SAMPLED]
        fails_again = bool(waiting) and all((one.attempt or 0) >= 2 for one in waiting)
    return Trend(
        entered=(entered[0], entered[1]),
        finished=(finished[0], finished[1]),
        entered_lately=entered[2],
        finished_lately=finished[2],
        completed_lately=max(0, finished[2] - died),
        fails_again=fails_again,
    )


def judge(
    stats: Stats, settings: QueueSettings, published: Stats | None, trend: Trend | None = None
) -> tuple[Health, str]:
    """A verdict and its reason: the worst one that applies. Without a trend, it is not known to be any better."""
    oldest = timedelta(seconds=stats.oldest_seconds or 0)
    if settings.paused:
        pending = _many(stats, "pending")
        waiting = "1 message waits" if pending == "1" else f"{pending} messages wait"
        return "paused", f"{waiting} until the queue is resumed"
    is_draining = trend is not None and trend.is_draining
    work = f"{_many(stats, 'processing')} being processed" if stats.processing else "none being processed"
    if stats.pending and oldest > TOO_OLD and not is_draining:
        waited = f"the oldest message has waited for {in_words(oldest)}, {work}"
        if not stats.processing and (trend is None or not trend.finished_lately):
            return "stuck", waited
        return "behind", waited + (_pace(trend) if trend else "")
    if stats.pending >= MANY and oldest > OLD_ENOUGH and trend and trend.is_growing:
        return "behind", f"the backlog grows: {_many(stats, 'pending')} pending, {work}{_pace(trend)}"
    busy = stats.pending or stats.processing or stats.failed
    silence = unswept_for(stats, published)
    if busy and silence is not None:
        since = f"not swept for {in_words(silence)}" if published else "never swept"
        return "unswept", f"{since}: lost events and crashes are not repaired"
    reasons = [*_dead(stats), *_retrying(stats, trend)]
    if reasons:
        return "failing", "; ".join(reasons)
    pending, processing, failed = (_many(stats, name) for name in ("pending", "processing", "failed"))
    counts = f"{pending} pending, {processing} processing, {failed} waiting for a retry"
    if busy:
        return "healthy", counts + (", and it drains" if stats.pending and oldest > TOO_OLD else "")
    return "idle", "nothing to do" + (f"; {stats.acknowledged} dead, acknowledged" if stats.acknowledged else "")


def unswept_for(stats: Stats, published: Stats | None) -> timedelta | None:
    """For how long no sweeper has seen work that there is; None: it has, or may not have had the time.

    The sweeper of an idle queue publishes that once, and is silent until it finds work.
    """
    worked = timedelta(seconds=stats.busy_seconds or 0)
    if published is None:
        silent = worked
    elif published.pending or published.processing or published.failed or published.delayed:
        silent = stats.at - published.at
    else:
        silent = min(stats.at - published.at, worked)
    return silent if silent > UNSWEPT else None


def _dead(stats: Stats) -> Iterable[str]:
    dead = stats.dead - stats.acknowledged
    if dead > 0:
        many = f"{'' if stats.is_exact('dead') else '≥ '}{dead}"
        yield f"{'1 dead letter waits' if many == '1' else f'{many} dead letters wait'} for a decision"


def _retrying(stats: Stats, trend: Trend | None) -> Iterable[str]:
    """What fails again and again has not died yet, and may not for hours."""
    if trend and trend.fails_again and stats.failed > trend.completed_lately:
        waits = "1 message that failed twice waits" if stats.failed == 1 else f"{stats.failed} messages wait"
        done = "nothing was" if not trend.completed_lately else f"only {_were(trend.completed_lately)}"
        yield f"{waits} for another attempt, and {done} completed in the last {in_words(LATELY)}"


def _many(stats: Stats, name: str) -> str:
    return f"{'' if stats.is_exact(name) else '≥ '}{getattr(stats, name)}"


def _pace(trend: Trend) -> str:
    return f"; {sum(trend.entered)} came and {_were(sum(trend.finished))} finished in the last {in_words(TREND)}"


def _were(many: int) -> str:
    return f"{many} {'was' if many == 1 else 'were'}"


def verdict(judged: Iterable[tuple[str, Verdict, str]]) -> tuple[Verdict, str]:
    """One verdict for all queues, from the (name, health, reason) of each: that of the worst queue."""
    ranked = sorted(judged, key=lambda one: SEVERITY.index(one[1]))
    if not ranked:
        return "idle", "there is no queue in this bucket yet"
    name, health, reason = ranked[0]
    if health in ("healthy", "idle"):
        busy = sum(one[1] == "healthy" for one in ranked)
        queues = "1 queue" if len(ranked) == 1 else f"{len(ranked)} queues"
        return health, f"{queues}, {busy} busy" if busy else f"{queues}, nothing to do"
    others = sum(one[1] not in ("healthy", "idle") for one in ranked) - 1
    more = f"; {others} more {'queue needs' if others == 1 else 'queues need'} attention" if others else ""
    said = "cannot be read" if health == "unknown" else f"is {health}"
    return health, f"{name} {said}: {reason}{more}"


def in_words(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
