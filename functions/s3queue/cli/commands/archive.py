"""archive show | compact | vacuum | convert: the history of every queue, as a Delta Lake table."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from s3queue.cli.command import command, group, program
from s3queue.cli.output import table
from s3queue.cli.session import Session
from s3queue.cli.words import age, counted, when
from s3queue.dashboard.overview import queue_names
from s3queue.encoding import format_instant
from s3queue.errors import InvalidRequest

if TYPE_CHECKING:
    from s3queue.archive.overview import QueueArchive
    from s3queue.archive.table import ArchiveTable

archive = group("The archive: finished messages as a Delta Lake table under archive/. Needs the extra `archive`.")
program.add_typer(archive, name="archive", rich_help_panel="Operate")
#: Not QueueName: without one, the command is about all of them, also if the URL names one.
Queue = Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="Only this queue; without it, all of them.")]
#: Versions that `show` lists.
LISTED = 10


def _opened(session: Session) -> ArchiveTable:
    """Raises InvalidRequest if there cannot be one, or if the extra is not installed."""
    from s3queue.archive.table import ArchiveTable, need_deltalake

    if not session.is_s3:
        raise InvalidRequest("a bucket in memory has no archive; give --url s3://bucket")
    need_deltalake()
    return ArchiveTable(session.bucket, session.endpoint, session.region)


@command(archive, "archive show", "archive show orders --no-waiting --json")
def show(
    ctx: typer.Context,
    queue: Queue = None,
    waiting: Annotated[
        bool, typer.Option("--waiting/--no-waiting", help="Count what is not archived yet: reads the latest files.")
    ] = True,
) -> None:
    """Show how many files and rows each queue has in the archive, and how many records wait for the next run.

    JSON: url, version (null: there is no table), queues (queue, commits, files, rows, bytes, first_day, last_day,
    days_in_pieces, unconverted, waiting (objects, bytes, oldest_at, expires_in_seconds)), versions (number, at,
    operation, queue).
    """
    from s3queue.archive.expiry import is_late, left_until_expiry
    from s3queue.archive.overview import archived_queues, describe, last_versions

    session = Session.of(ctx)
    opened, store = _opened(session), session.store()
    seen = opened.snapshot()
    names = [queue] if queue else sorted({*queue_names(store), *archived_queues(seen)})
    found = [describe(store, seen, name, waiting=waiting) for name in names]
    versions = last_versions(seen, LISTED) if seen else []
    now = store.list("archive/", limit=1).at
    # Of a queue that is gone, the archive may be left.
    retention = {name: session.queue(name, may_be_new=True).settings.record_retention for name in names}
    expiring = {
        one.queue: left_until_expiry(one.waiting.oldest_at, retention[one.queue], now)
        for one in found
        if one.waiting and one.waiting.oldest_at
    }
    rows = [
        [
            one.queue,
            f"{one.files:,}",
            f"{one.rows:,}",
            f"{one.bytes / 1e6:,.1f}",
            f"{one.first_day} to {one.last_day}" if one.files else "",
            str(one.days_in_pieces or ""),
            f"{one.waiting.objects:,}" if one.waiting else "",
            when(one.waiting.oldest_at, now) if one.waiting and one.waiting.oldest_at else "",
            f"in {age(expiring[one.queue])}" if one.queue in expiring else "",
        ]
        for one in found
    ]
    columns = ["queue", ">files", ">rows", ">MB", "days", ">days in pieces", ">waiting", "oldest", "expires"]
    document = {
        "url": opened.url,
        "version": seen.version if seen else None,
        "queues": [_document(one, expiring.get(one.queue)) for one in found],
        "versions": [
            {"number": one.number, "at": format_instant(one.at), "operation": one.operation, "queue": one.queue}
            for one in versions
        ],
    }
    session.answer(document, table(columns, rows) if rows else "no queues")
    if seen is None:
        session.note(f"there is no table at {opened.url} yet: the archive job makes it")
    else:
        latest = f", {versions[0].operation.lower()} {when(versions[0].at, now)}" if versions else ""
        session.note(f"{opened.url} has version {seen.version}{latest}")
    for one in found:
        if one.waiting and is_late(one.waiting.oldest_at, retention[one.queue], now):
            session.note(
                f"{one.queue}: {one.waiting.objects:,} records are not archived, and the first expires in "
                f"{age(expiring[one.queue])} (records are kept for {age(retention[one.queue])}, unless the queue is "
                "defined otherwise): run the archive job"
            )
        if one.unconverted:
            session.note(
                f"{one.queue}: {one.unconverted} commits are in the old layout: s3queue archive convert {one.queue}"
            )


def _document(one: QueueArchive, expires_in: timedelta | None) -> dict[str, Any]:
    waits = one.waiting
    oldest = format_instant(waits.oldest_at) if waits and waits.oldest_at else None
    return {
        "queue": one.queue,
        "commits": one.commits,
        "files": one.files,
        "rows": one.rows,
        "bytes": one.bytes,
        "first_day": one.first_day,
        "last_day": one.last_day,
        "days_in_pieces": one.days_in_pieces,
        "unconverted": one.unconverted,
        "waiting": {
            "objects": waits.objects,
            "bytes": waits.bytes,
            "oldest_at": oldest,
            "expires_in_seconds": expires_in.total_seconds() if expires_in is not None else None,
        }
        if waits
        else None,
    }


@command(archive, "archive compact", "archive compact orders")
def compact(ctx: typer.Context, queue: Queue = None) -> None:
    """Merge the small files of each day. Runs and readers are not disturbed; `vacuum` deletes the old files later.

    JSON: removed, added.
    """
    from s3queue.archive import upkeep

    session = Session.of(ctx)
    done = upkeep.compact(_opened(session), queue)
    said = f"{done.removed} files became {done.added}" if done.removed else "nothing to merge"
    session.done({"removed": done.removed, "added": done.added}, said)


@command(archive, "archive vacuum --dry-run", "archive vacuum --days 30")
def vacuum(
    ctx: typer.Context,
    days: Annotated[int, typer.Option("--days", min=7, help="Keep what was in use in the last days.")] = 7,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say which.")] = False,
) -> None:
    """Delete the files that no version of the last days names: replaced by a compaction, or left by a run that died.

    JSON: deleted (keys), dry_run.
    """
    from s3queue.archive import upkeep

    session = Session.of(ctx)
    keys = upkeep.vacuum(session.store(), _opened(session), days=days, dry_run=dry_run)
    said = f"{len(keys)} files {'would be' if dry_run else 'were'} deleted"
    if dry_run and not session.json:
        session.answer({}, *keys)
    session.done({"deleted": keys, "dry_run": dry_run}, said)


@command(archive, "archive convert", "archive convert orders")
def convert(ctx: typer.Context, queue: Queue = None) -> None:
    """Register the files of the layout before the table, commit by commit. Nothing is copied; repeating it is safe.

    Archive and statistics jobs do it themselves. Stop archive jobs of older versions first.

    JSON: a list of queue, commits (those that were added).
    """
    from s3queue.archive.old_log import convert as convert_queue
    from s3queue.archive.old_log import logged_queues

    session = Session.of(ctx)
    opened, store = _opened(session), session.store()
    names = [queue] if queue else logged_queues(store)
    done = [{"queue": name, "commits": convert_queue(store, opened, name)} for name in names]
    added = sum(int(str(one["commits"])) for one in done)
    session.done(
        done,
        f"{counted(added, 'commit')} of {counted(len(done), 'queue')} in the table now"
        if added
        else "nothing to convert",
    )
