"""queues, create, delete, purge, cleanup: the queues of a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from s3queue.cli.arguments import DryRun, QueueName, Yes
from s3queue.cli.command import command, program
from s3queue.cli.output import is_wide, table
from s3queue.cli.session import Session
from s3queue.cli.words import age, at_least, clean, counted, when
from s3queue.dashboard.overview import QueueOverview, overview, queue_names
from s3queue.dashboard.verdicts import SEVERITY
from s3queue.errors import Conflict
from s3queue.protocol.removal import Removal
from s3queue.queue import Queue
from s3queue.store import ObjectInfo, listing

from .configure import changes_of, split_arguments

#: Queues counted at one time.
COUNTED = 8
PANEL = "Queues"


@command(program, "queues", "queues --json | jq -r '.[] | select(.health == \"stuck\") | .name'", panel=PANEL)
def queues(
    ctx: typer.Context,
    exact: Annotated[bool, typer.Option("--exact", help="Count everything, however many LISTs it takes.")] = False,
) -> None:
    """List all queues of the bucket: depth, oldest message, dead letters, and a verdict with its reason.

    JSON: a list of name, stats, paused, swept_at, health, reason.
    """
    session = Session.of(ctx)
    store = session.store()
    names = queue_names(store)
    with ThreadPoolExecutor(COUNTED) as pool:
        found = list(pool.map(lambda name: overview(store, name, pages=None if exact else 2), names))
    columns = ["~queue", "health", ">pending", ">delayed", ">processing", ">waiting", ">dead", ">oldest"]
    ranked = sorted(found, key=lambda one: SEVERITY.index(one.health))
    shown: list[RenderableType]
    if is_wide():
        shown = [table([*columns, "~why"], [[*_row(one), one.reason] for one in ranked])]
    else:
        # A column of a few letters would hide what an operator came for.
        reasons = [Text(clean(f"{one.name}: {one.reason}")) for one in ranked if one.health != "idle"]
        shown = [table(columns, map(_row, ranked)), *reasons]
    session.answer([one.to_json() for one in found], *shown)
    if not found:
        session.note(f"{session.bucket_url} has no queue yet; s3queue create NAME makes one")


def _row(one: QueueOverview) -> Sequence[Any]:
    stats = one.stats
    names = ("pending", "delayed", "processing", "failed", "dead")
    counts = [at_least(getattr(stats, name), is_exact=stats.is_exact(name)) for name in names]
    return [one.name, one.health, *counts, age(stats.oldest_seconds)]


@command(program, "create orders", "create orders max_attempts=5 visibility_timeout=2m", panel=PANEL)
def create(
    ctx: typer.Context,
    queue: QueueName = None,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings, as for configure.")
    ] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="No error if the queue exists already.")] = False,
) -> None:
    """Create a queue: write its queue.json. (A PutObject under QUEUE/messages/ creates one too.)

    JSON: queue, settings.
    """
    session = Session.of(ctx)
    queue, pairs = split_arguments(queue, settings)
    made = session.queue(queue, may_be_new=True)
    changes = changes_of(pairs)
    is_there = made.store.list(made.keys.root, limit=1).objects
    if is_there and not exist_ok:
        raise Conflict(f"{session.bucket_url}/{made.name} exists already; change it with s3queue configure {made.name}")
    kept = made.configure(**changes)
    session.done(
        {"queue": made.name, "settings": kept.to_json()},
        f"{made.name} is ready at {session.bucket_url}/{made.name}; start a worker (s3queue work MODULE), or deploy it",
    )


@command(program, "delete orders --dry-run", "delete orders --yes", panel=PANEL)
def delete(
    ctx: typer.Context,
    queue: QueueName = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    force: Annotated[bool, typer.Option("--force", help="Even if messages are being processed.")] = False,
) -> None:
    """Delete a queue for good, with all its objects: messages, records, dead letters, settings.

    JSON: queue, deleted, dry_run.
    """
    session = Session.of(ctx)
    doomed = session.queue(queue, may_be_new=True)
    with session.progress("count", None) as bar:
        found = [entry for page in listing(doomed.store, doomed.keys.root) for entry in page.objects]
        bar.update(bar.task_ids[0], completed=len(found))
    if not found:
        session.note(f"{session.bucket_url}/{doomed.name} has no objects")
        raise typer.Exit(1)
    leases = [entry for entry in found if entry.key.startswith(doomed.keys.prefix("leases"))]
    if dry_run:
        described = (
            f"{doomed.name}: would delete {counted(len(found), 'object')}, {counted(len(leases), 'lease')} of them"
        )
        session.done({"queue": doomed.name, "deleted": len(found), "dry_run": True}, described)
        return
    if leases and not force:
        raise Conflict(
            f"{doomed.name} has {counted(len(leases), 'lease')}: messages may be running; s3queue pause {doomed.name} "
            "and wait, or add --force"
        )
    session.confirm(f"Delete {doomed.name} with its {counted(len(found), 'object')} for good?", yes=yes)
    deleted = _delete_all(session, doomed, found)
    session.done(
        {"queue": doomed.name, "deleted": deleted, "dry_run": False},
        f"{doomed.name} deleted: {counted(deleted, 'object')}",
    )


def _delete_all(session: Session, queue: Queue, found: Sequence[ObjectInfo]) -> int:
    """Pause first and delete queue.json last, so that no worker claims what is about to be deleted."""
    queue.pause()
    last = {queue.keys.overrides}
    keys = [entry.key for entry in found if entry.key not in last]
    done = sum(1 for _ in session.each("delete", keys, queue.store.delete))
    queue.store.delete(queue.keys.overrides)
    return done + any(entry.key in last for entry in found)


@command(program, "purge orders --dry-run", "purge orders --yes", panel=PANEL)
def purge(ctx: typer.Context, queue: QueueName = None, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete every message that is not being processed, without a record. Running messages finish.

    JSON: queue, purged, kept, dry_run.
    """
    session = Session.of(ctx)
    emptied = session.queue(queue)
    found = [
        entry
        for kind in ("messages", "delayed")
        for page in listing(emptied.store, emptied.keys.prefix(kind))
        for entry in page.objects
    ]
    if not found or dry_run:
        described = f"{emptied.name}: would delete {counted(len(found), 'message')}, except those being processed"
        session.done({"queue": emptied.name, "purged": len(found), "kept": 0, "dry_run": dry_run}, described)
        return
    session.confirm(f"Delete {counted(len(found), 'message')} of {emptied.name} for good?", yes=yes)
    purged = sum(gone for _, gone in session.each("purge", found, emptied.purge_message))
    kept = len(found) - purged
    session.done(
        {"queue": emptied.name, "purged": purged, "kept": kept, "dry_run": False},
        f"{emptied.name}: {counted(purged, 'message')} deleted"
        + (f"; {kept} kept: being processed, or already gone" if kept else ""),
    )


@command(program, "cleanup orders --dry-run", "cleanup orders --yes", panel=PANEL)
def cleanup(ctx: typer.Context, queue: QueueName = None, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete what is past its retention: records, kept payloads (done), dedup markers, dead letters, and parts of sends
    that nobody finished (outbox). For buckets without lifecycle rules.

    JSON: queue, deleted, dry_run.
    """
    session = Session.of(ctx)
    cleaned = session.queue(queue)
    cleaned.refresh()
    removal = Removal(cleaned)
    old = list(removal.expired())
    kept = ", ".join(f"{kind} for {age(retention)}" for kind, retention in removal.retentions().items())
    if not old or dry_run:
        described = f"{cleaned.name}: {counted(len(old), 'object')} past retention ({kept})"
        session.done({"queue": cleaned.name, "deleted": len(old), "dry_run": dry_run}, described)
        return
    oldest = min(old, key=lambda entry: entry.modified_at)
    session.confirm(
        f"Delete {counted(len(old), 'object')} of {cleaned.name} for good, the oldest from "
        f"{when(oldest.modified_at, oldest.at)}? The retention is {kept}.",
        yes=yes,
    )
    deleted = sum(gone for _, gone in session.each("clean up", old, removal.delete_expired))
    session.done(
        {"queue": cleaned.name, "deleted": deleted, "dry_run": False},
        f"{cleaned.name}: {counted(deleted, 'object')} deleted",
    )
