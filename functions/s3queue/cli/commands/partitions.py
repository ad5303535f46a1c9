"""partitions: which groups and shares have messages, who holds them, and what holds them up."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from s3queue.cli.arguments import QueueName
from s3queue.cli.command import command, program
from s3queue.cli.output import table
from s3queue.cli.session import Session
from s3queue.cli.words import age, clean, one_line, when
from s3queue.flow.partition_states import MOST_ROWS, PartitionState, list_partitions

PANEL = "Messages"


@command(
    program,
    "partitions orders",
    "partitions orders --group customer-42",
    "partitions orders --leased --json",
    "partitions orders --limit 500 --after @customer-42",
    panel=PANEL,
)
def partitions(
    ctx: typer.Context,
    queue: QueueName = None,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only this group.")] = None,
    leased: Annotated[
        bool, typer.Option("--leased", help="Only those that a worker holds, or in which messages have failed.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, max=MOST_ROWS, help="At most this many.")] = 50,
    after: Annotated[str, typer.Option("--after", metavar="PARTITION", help="Go on behind this partition.")] = "",
) -> None:
    """List groups and shares that have messages or a lease: who holds them, how many messages wait, the next try.

    Each row costs a LIST, and a GET if somebody holds it or a message has failed.

    JSON: queue, partitions (partition, group, state (free, open, held, overdue, corrupt), messages, exact, first_at,
    worker, written_at, taken, waiting, next_at, next_path, failure, problem, until), at, next_after, exact.
    """
    session = Session.of(ctx)
    opened = session.queue(queue)
    page = list_partitions(opened, limit=limit, after=after, group=group, leased=leased)
    rows = [
        [
            one.group if one.is_group else one.partition,
            "group" if one.is_group else "share",
            f"{one.messages:,}" + ("" if one.is_exact else "+"),
            clean(_told(one, page.at)),
            one.waiting or "",
            when(one.next_at, page.at) if one.next_at else "",
            one_line(f"{one.failure.type}: {one.failure.message}") if one.failure else "",
        ]
        for one in page.partitions
    ]
    columns = ["~partition", "kind", ">messages", "~state", ">waiting", "~next try", "~error"]
    session.answer({"queue": opened.name, **page.to_json()}, table(columns, rows))
    if not rows:
        session.note(f"{opened.name}: no partition has " + ("a lease" if leased else "messages or a lease"))
    if not page.is_exact:
        session.note("there are very many leases: some partitions that have a lease, but no message, are not shown")
    if page.next_after:
        session.note(f"more: --after {page.next_after}")


def _told(one: PartitionState, now: datetime) -> str:
    since = age(now - one.written_at) if one.written_at else ""
    if one.state == "held":
        return f"held by {one.worker}, renewed {since} ago, {one.taken} taken"
    if one.state == "overdue":
        return f"overdue: {one.worker} has not renewed it for {since}; the sweeper hands it to another worker"
    if one.state == "corrupt":
        return f"corrupt: {one.problem}"
    return one.state
