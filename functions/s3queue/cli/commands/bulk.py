"""bulk list | rejected: what bulk runs on Spark have enqueued, and the rows that could not be messages."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

import typer

from s3queue.cli.arguments import QueueName
from s3queue.cli.command import command, group, program
from s3queue.cli.output import table
from s3queue.cli.session import Session, shifted
from s3queue.documents.bulk_run import BulkReport, RejectedRow
from s3queue.errors import CorruptState
from s3queue.protocol.bulk_runs import list_runs, rejected_rows

bulk = group("Bulk runs of a queue: what they have enqueued, and the rows that they rejected.")
program.add_typer(bulk, name="bulk", rich_help_panel="Operate")
#: Characters of a rejected row that a table shows.
SHOWN = 60


@command(bulk, "bulk list orders", name="list")
def list_(ctx: typer.Context, queue: QueueName = None) -> None:
    """List the bulk runs of a queue. One that is not done can be resumed: start it again with the same source.

    JSON: a list of run, state (done, unfinished, unreadable), rows, batches, messages, rejected (a count for each
    reason).
    """
    session = Session.of(ctx)
    opened = session.queue(queue)
    found = list(list_runs(opened.store, opened.keys))
    rows = [
        [run, "done", str(one.batches), str(one.messages), str(sum(one.rejected.values()))]
        if isinstance(one, BulkReport)
        else [run, _state(one), "", "", ""]
        for run, one in found
    ]
    session.answer(
        [_document(run, one) for run, one in found],
        table(["~run", "state", ">batches", ">messages", ">rejected"], rows),
    )
    for _, one in found:
        if isinstance(one, CorruptState):
            session.note(f"unreadable: {one}")
    if not found:
        session.note(f"{opened.name} has no bulk run")


@command(bulk, "bulk rejected orders november", "bulk rejected orders november --limit 1000 --json")
def rejected(
    ctx: typer.Context,
    queue: QueueName = None,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="The run's name, as bulk list shows it.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most so many.")] = 100,
) -> None:
    """Show the rows that a bulk run could not make messages of, where they come from, and why.

    JSON: a list of source, row, reason, body; a body that is not UTF-8 has the replacement character in it.
    """
    session = Session.of(ctx)
    where, wanted = shifted(session, queue, run, "the RUN")
    opened = session.queue(where)
    found = list(islice(rejected_rows(opened.store, opened.keys, wanted), limit + 1))
    shown = found[:limit]
    rows = [[one.source or "-", str(one.row or ""), one.reason, _text(one)[:SHOWN]] for one in shown]
    session.answer(
        [{"source": one.source, "row": one.row, "reason": one.reason, "body": _text(one)} for one in shown],
        table(["~source", ">row", "reason", "~body"], rows),
    )
    if not found:
        session.note(f"{opened.name}: the run {wanted!r} has rejected nothing")
    elif len(found) > limit:
        session.note(f"there are more: --limit {10 * limit}, or read {opened.keys.bulk(wanted, 'rejected/')}")


def _state(one: BulkReport | CorruptState | None) -> str:
    if isinstance(one, CorruptState):
        return "unreadable"
    return "done" if one else "unfinished"


def _document(run: str, one: BulkReport | CorruptState | None) -> dict[str, Any]:
    report = one if isinstance(one, BulkReport) else None
    return {
        "run": run,
        "state": _state(one),
        "rows": report.rows if report else None,
        "batches": report.batches if report else None,
        "messages": report.messages if report else None,
        "rejected": dict(report.rejected) if report else None,
    }


def _text(row: RejectedRow) -> str:
    return row.body.decode("utf-8", "replace")
