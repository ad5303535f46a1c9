"""size, stats, peek: the numbers of a queue, and its next messages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Group as Together
from rich.live import Live

from s3queue.cli.arguments import For, QueueName
from s3queue.cli.bodies import Body
from s3queue.cli.command import command, program
from s3queue.cli.output import facts, table
from s3queue.cli.prices import per_hour
from s3queue.cli.session import Session
from s3queue.cli.words import age, at_least, bytes_, duration, when
from s3queue.clock import SystemClock
from s3queue.dashboard.overview import QueueOverview, overview
from s3queue.documents.message import is_placeholder
from s3queue.encoding import format_instant
from s3queue.paths import due_of, is_batch, priority_of
from s3queue.protocol.last_hour import LastHour
from s3queue.protocol.partition_status import busy_paths
from s3queue.protocol.stats import PAGES
from s3queue.queue import Queue
from s3queue.store import ObjectInfo, listing

PANEL = "Messages"
Exact = Annotated[bool, typer.Option("--exact", help="Count everything, however many LISTs it takes.")]
#: LISTs of one count while every kind of object fits on a page.
LISTS_PER_COUNT = 7


@command(program, "size orders", "size orders --json", panel=PANEL)
def size(ctx: typer.Context, queue: QueueName = None, exact: Exact = False) -> None:
    """Count the messages that are not finished: pending, delayed, processing or waiting for a retry.

    A batch counts as its lines; one that the library has not named counts as one, and the size is a lower bound.

    JSON: queue, size, exact, at.
    """
    session = Session.of(ctx)
    counted = session.queue(queue)
    stats = counted.stats(pages=None if exact else PAGES)
    number = stats.pending + stats.delayed + stats.processing + stats.failed
    is_known = stats.is_exact("pending", "delayed", "processing", "failed")
    document = {"queue": counted.name, "size": number, "exact": is_known, "at": stats.to_json()["at"]}
    session.answer(document, str(number))
    if not stats.exact:
        session.note("a lower bound: the count stopped at its page limit; --exact counts everything")
    elif not is_known:
        session.note("a lower bound: the names of some batches do not say how many lines they have; each counts as one")


@command(
    program,
    "stats orders",
    "stats orders --watch",
    "stats orders --last-hour",
    "stats orders --json | jq .pending",
    panel=PANEL,
)
def stats(
    ctx: typer.Context,
    queue: QueueName = None,
    exact: Exact = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Count repeatedly; Ctrl-C ends it.")] = False,
    interval: Annotated[
        timedelta,
        typer.Option(
            "--interval", parser=duration, metavar="DURATION", show_default="2s", help="Time between two counts."
        ),
    ] = timedelta(seconds=2),
    stop_after: For = None,
    last_hour: Annotated[
        bool, typer.Option("--last-hour", help="What finished in the last hour, as the sweeper counted it; one GET.")
    ] = False,
) -> None:
    """Show the counts, ages and rate of one queue, and a verdict.

    JSON: queue, health, reason, paused, swept_at, and pending, delayed, processing, failed, completed, dead, total,
    oldest_seconds, newest_seconds, finished_per_minute, rescued, exact, at. With --watch one document per line.
    With --last-hour: queue, available, reason, since, counted_at, finished, messages, completed, dead, cancelled,
    retried, success_rate, wait_p50_seconds to run_p99_seconds, errors, minutes, read, sampled, rank_error, value_error,
    complete.
    """
    session = Session.of(ctx)
    watched = session.queue(queue)
    if last_hour:
        if watch or exact:
            raise typer.BadParameter("--last-hour goes with neither --watch nor --exact: the sweeper has counted")
        hour = watched.last_hour()
        session.answer(hour.to_json(), hour_panel(hour))
        return
    pages = None if exact else PAGES

    def measure() -> QueueOverview:
        return overview(watched.store, watched.name, pages=pages)

    if not watch:
        found = measure()
        session.answer(_document(found), _panel(found))
        return
    session.note(
        f"counting every {age(interval)}: about {LISTS_PER_COUNT} LISTs each, "
        f"{per_hour(LISTS_PER_COUNT, interval)}; Ctrl-C ends it"
    )
    counts = _every(interval, stop_after)
    if session.json or not session.console().is_terminal:
        for _ in counts:
            found = measure()
            session.line(_document(found), _panel(found))
        return
    with Live(console=session.console(), auto_refresh=False) as live:
        for _ in counts:
            live.update(_panel(measure()), refresh=True)


def hour_panel(hour: LastHour) -> Together:
    """The last hour for people."""
    if not hour.available or not hour.counted_at:
        return Together(facts([("queue", hour.queue), ("last hour", f"no figures: {hour.reason}")]))
    about = "about " if hour.sampled else ""
    rank = f"ranks within {hour.rank_error:.1%}, " if hour.sampled else ""
    numbers = facts(
        [
            ("queue", hour.queue),
            ("since", format_instant(hour.since) if hour.since else ""),
            ("counted", format_instant(hour.counted_at)),
            ("finished", at_least(hour.finished, is_exact=hour.complete)),
            ("messages", f"{about}{hour.messages:,.0f}"),
            ("completed", f"{about}{hour.completed:,.0f}"),
            ("dead", f"{about}{hour.dead:,.0f}"),
            ("took more than one attempt", f"{about}{hour.retried:,.0f}"),
            ("waited, p50 / p95 / p99", " / ".join(age(hour.wait[name]) for name in ("p50", "p95", "p99"))),
            ("ran, p50 / p95 / p99", " / ".join(age(hour.run[name]) for name in ("p50", "p95", "p99"))),
            ("right within", f"{rank}durations within {hour.value_error:.0%}; {hour.read:,} records read"),
        ]
    )
    rows = [[name, f"{about}{count:,.0f}"] for name, count in hour.errors]
    return Together(numbers, "", table(["error", ">failed attempts"], rows)) if rows else Together(numbers)


def _every(interval: timedelta, stop_after: timedelta | None) -> Iterator[int]:
    """Now, and again after each interval, until the time is up."""
    clock = SystemClock()
    start = clock.monotonic()
    for number in itertools.count():
        yield number
        passed = clock.monotonic() - start
        if stop_after is not None and passed + interval.total_seconds() > stop_after.total_seconds():
            return
        clock.sleep(max(0.05, interval.total_seconds()))


def _document(found: QueueOverview) -> dict[str, Any]:
    described = found.to_json()
    counts: dict[str, Any] = described.pop("stats")
    return {"queue": described.pop("name")} | described | counts


def _panel(found: QueueOverview) -> Together:
    counted = found.stats

    def number(name: str) -> str:
        return at_least(getattr(counted, name), is_exact=counted.is_exact(name))

    recent = counted.finished_per_minute
    verdict = facts([("queue", found.name), ("health", found.health), ("why", found.reason)])
    numbers = facts(
        [
            ("pending", number("pending")),
            ("delayed", number("delayed")),
            ("processing", number("processing")),
            ("waiting for a retry", number("failed")),
            ("completed", f"{number('completed')} (records kept)"),
            ("dead", number("dead")),
            ("oldest has waited", age(counted.oldest_seconds)),
            ("newest has waited", age(counted.newest_seconds)),
            ("finished", "unknown: too many records to read" if recent is None else f"{recent:,} in the last minute"),
            ("rescued", _rescued(counted.rescued)),
            ("last swept", when(found.swept_at, counted.at)),
            ("counted", when(counted.at, counted.at)),
        ]
    )
    return Together(verdict, "", numbers)


def _rescued(many: int | None) -> str:
    return "unknown: no sweeper has counted yet" if many is None else f"{many:,} in the hour before the last sweep"


@command(program, "peek orders", "peek orders --limit 3 --body", panel=PANEL)
def peek(
    ctx: typer.Context,
    queue: QueueName = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="At most this many.")] = 10,
    body: Annotated[bool, typer.Option("--body", help="Also print the payloads; one GET each.")] = False,
) -> None:
    """Show the next messages, in the order in which they would be claimed. Nothing is claimed.

    JSON: a list of path, size, priority, enqueued_at, due_at, leased, and with --body: body or body_base64.
    """
    session = Session.of(ctx)
    peeked = session.queue(queue)
    found = _next(peeked, limit)
    documents, rows = [], []
    for entry, path, is_leased in found:
        due_at = due_of(path)
        document: dict[str, Any] = {
            "path": path,
            "size": entry.size,
            "priority": priority_of(path),
            "enqueued_at": format_instant(entry.modified_at),
            "due_at": format_instant(due_at) if due_at else None,
            "leased": is_leased,
        }
        stored = peeked.store.open(entry.key) if body else None
        payload = Body.read(stored) if stored else None
        documents.append(document | (payload.to_json() if payload else {}))
        state = "leased" if is_leased else "delayed" if due_at and due_at > entry.at else "pending"
        length = bytes_(entry.size) + (" batch" if is_batch(path) else "")
        cells: list[Any] = [path, state, priority_of(path), length, when(entry.modified_at, entry.at)]
        rows.append([*cells, payload.text() if payload else ""] if body else cells)
    columns = ["=path", "state", ">priority", ">size", "~enqueued", *(["~body"] if body else [])]
    session.answer(documents, table(columns, rows))
    if not found:
        session.note(f"{peeked.name} has no message")


def _next(queue: Queue, limit: int) -> list[tuple[ObjectInfo, str, bool]]:
    """The first messages, those with a lease last. The LISTs are limited, however long the queue is."""
    found: list[tuple[ObjectInfo, str]] = []
    for kind in ("messages", "delayed"):
        for page in listing(queue.store, queue.keys.prefix(kind), pages=PAGES):
            for entry in page.objects:
                path = queue.keys.path(entry.key)
                if path and not is_placeholder(entry):
                    found.append((entry, path))
    leased: set[str | None] = {*busy_paths(queue, (path for _, path in found))}
    for page in listing(queue.store, queue.keys.prefix("leases"), pages=PAGES):
        leased |= {queue.keys.path_under("leases", entry.key) for entry in page.objects}

    def turn(one: tuple[ObjectInfo, str]) -> tuple[bool, int, datetime, str]:
        entry, path = one
        since = due_of(path) or entry.modified_at
        return path in leased, -priority_of(path) if since <= entry.at else 1, since, path

    return [(entry, path, path in leased) for entry, path in sorted(found, key=turn)[:limit]]
