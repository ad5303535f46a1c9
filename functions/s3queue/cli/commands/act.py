"""list, cancel, retry, release: what an operator sees of single messages, and does with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from s3queue.cli.arguments import DryRun, QueueName, Yes, paths_like
from s3queue.cli.command import BAD, command, program
from s3queue.cli.output import table
from s3queue.cli.session import Session
from s3queue.cli.words import bytes_, counted, moment, one_line, when
from s3queue.errors import InvalidRequest, QueueError
from s3queue.flow.listing import MOST_ROWS, STATES
from s3queue.flow.releasing import ReleasedClaim
from s3queue.flow.retrying import RetryInfo
from s3queue.printable import clean
from s3queue.queue import Queue

PANEL = "Messages"
Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="messages/… or delayed/…", autocompletion=paths_like(("",))),
]


def _arguments(session: Session, queue: str | None, paths: list[str] | None) -> tuple[Queue, list[str]]:
    """QUEUE can be left out if the URL names it: a path starts with messages/ or delayed/."""
    if queue and queue.startswith(("messages/", "delayed/")):
        return session.queue(), [queue, *(paths or ())]
    opened, given = session.queue(queue), list(paths or ())
    if not given:
        raise InvalidRequest("no PATH was given; s3queue peek and s3queue stats show what the queue has")
    return opened, given


def _each(session: Session, what: str, paths: list[str], act: Callable[[str], str]) -> tuple[dict[str, str], bool]:
    """Path → what became of it; and whether that went well for all of them."""

    def deal(path: str) -> str | QueueError:
        try:
            return act(path)
        except QueueError as error:
            return error

    results = dict(session.each(what, paths, deal))
    for path, result in results.items():
        if isinstance(result, QueueError):
            session.note(f"not {what}: {path}: {result}")
    failed = any(isinstance(result, QueueError) for result in results.values())
    return {path: result for path, result in results.items() if isinstance(result, str)}, not failed


@command(
    program,
    "cancel orders messages/0199b3c4-… --yes",
    "cancel orders messages/0199b3c4-… delayed/20261224T180000Z/greeting --dry-run",
    panel=PANEL,
)
def cancel(
    ctx: typer.Context, queue: QueueName = None, paths: Paths = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Cancel messages: what waits never runs; a running handler is told at its next check, and its result is dropped.

    A message that was finished before keeps its outcome, and the exit code is 1.

    JSON: queue, outcomes (path: cancelled, completed or dead; its state, if nothing was changed), dry_run.
    """
    session = Session.of(ctx)
    opened, given = _arguments(session, queue, paths)
    if dry_run:
        states, is_well = _each(session, "found", given, lambda path: opened.status(path).state)
        session.answer(
            {"queue": opened.name, "outcomes": states, "dry_run": True},
            *(f"{path}: {state}" for path, state in states.items()),
        )
    else:
        session.confirm(f"Cancel {counted(len(given), 'message')} of {opened.name}? Payloads are deleted.", yes=yes)
        outcomes, is_well = _each(session, "cancelled", given, lambda path: opened.cancel(path).outcome)
        cancelled = [path for path, outcome in outcomes.items() if outcome == "cancelled"]
        session.done(
            {"queue": opened.name, "outcomes": outcomes, "dry_run": False},
            f"{opened.name}: {counted(len(cancelled), 'message')} cancelled",
        )
        for path, outcome in outcomes.items():
            if outcome != "cancelled":
                session.note(f"not cancelled: {path} was {outcome} before")
        is_well = is_well and len(cancelled) == len(given)
    if not is_well:
        raise typer.Exit(BAD)


@command(
    program,
    "retry orders messages/0199b3c4-…",
    "retry orders messages/0199b3c4-… --dry-run --json",
    panel=PANEL,
)
def retry(ctx: typer.Context, queue: QueueName = None, paths: Paths = None, dry_run: DryRun = False) -> None:
    """Let messages that wait for their next attempt be tried now; it uses no attempt. --dry-run shows how they stand.

    JSON: queue, messages (path: state, attempt, max_attempts, attempts_left, retry_at, failure), dry_run.
    """
    session = Session.of(ctx)
    opened, given = _arguments(session, queue, paths)
    opened.refresh()
    found: dict[str, RetryInfo] = {}

    def act(path: str) -> str:
        found[path] = opened.retry_info(path) if dry_run else opened.retry(path)
        return found[path].state

    told, is_well = _each(session, "retried", given, act)
    document = {path: found[path].to_json() for path in told}
    shown = []
    for path in told:
        info = found[path]
        reason = one_line(f": {info.failure.type}: {info.failure.message}") if info.failure else ""
        due = f", not before {moment(info.retry_at)}" if info.retry_at else ""
        shown.append(f"{path}: {info.state}, attempt {info.attempt} of {info.max_attempts}{due}{reason}")
    session.answer({"queue": opened.name, "messages": document, "dry_run": dry_run}, *shown)
    if not is_well:
        raise typer.Exit(BAD)


@command(
    program,
    "release orders messages/0199b3c4-… --dry-run",
    "release orders messages/0199b3c4-… --yes",
    panel=PANEL,
)
def release(
    ctx: typer.Context, queue: QueueName = None, paths: Paths = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Give messages back whose worker is known to be dead; it uses no attempt. --dry-run shows who holds them.

    Without it, they wait until their leases run out, and have used an attempt. Should the worker be alive, its handler
    runs beside the next one, and the first to complete counts. What nobody holds is refused, and the exit code is 1.

    JSON: queue, messages (path: path, worker, attempt, claimed_at), dry_run.
    """
    session = Session.of(ctx)
    opened, given = _arguments(session, queue, paths)
    found: dict[str, ReleasedClaim] = {}

    def act(path: str) -> str:
        found[path] = opened.holder(path) if dry_run else opened.release_held(path)
        return found[path].worker

    if not dry_run:
        what = f"Release {counted(len(given), 'message')} of {opened.name}?"
        session.confirm(f"{what} If their workers are alive, their handlers run twice.", yes=yes)
    told, is_well = _each(session, "released", given, act)
    verb = "held" if dry_run else "released, was held"
    now = opened.clock.now()
    shown = [
        f"{path}: {verb} by {clean(found[path].worker)}, attempt {found[path].attempt}, claimed "
        f"{when(found[path].claimed_at, now)}"
        for path in told
    ]
    document = {path: found[path].to_json() for path in told}
    session.answer({"queue": opened.name, "messages": document, "dry_run": dry_run}, *shown)
    if not is_well:
        raise typer.Exit(BAD)


@command(
    program,
    "list orders --state waiting",
    "list orders --state completed --limit 200 --json",
    "list orders --state pending --after messages/0199b3c4-…",
    name="list",
    panel=PANEL,
)
def list_(
    ctx: typer.Context,
    queue: QueueName = None,
    state: Annotated[
        str, typer.Option("--state", "-s", metavar="STATE", help=f"One of {', '.join(STATES)}.")
    ] = "pending",
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, max=MOST_ROWS, help="At most this many.")] = 50,
    after: Annotated[str, typer.Option("--after", metavar="PATH", help="Go on behind this path.")] = "",
    prefix: Annotated[str, typer.Option("--prefix", help="Only paths that begin like this: messages/p200/.")] = "",
) -> None:
    """List messages by state, in the order of their paths, with the time since when they are in it.

    JSON: queue, messages (path, state, since, due_at, size, attempt, worker, failure), next_after.
    """
    session = Session.of(ctx)
    listed = session.queue(queue)
    page = listed.list(state, limit=limit, after=after, prefix=prefix)  # type: ignore[arg-type]  # it is checked there
    now = listed.clock.now()
    rows = [
        [
            one.path,
            one.state,
            when(one.since, now),
            when(one.due_at, now) if one.due_at else "",
            bytes_(one.size) if one.size is not None else "",
            "" if one.attempt is None else one.attempt,
            one.worker,
            one_line(f"{one.failure.type}: {one.failure.message}") if one.failure else "",
        ]
        for one in page.messages
    ]
    columns = ["=path", "state", "~since", "~due", ">size", ">attempt", "~worker", "~error"]
    session.answer({"queue": listed.name, **page.to_json()}, table(columns, rows))
    if not rows:
        session.note(f"{listed.name}: no {state} message" + (" on this page" if page.next_after else ""))
    if page.next_after:
        session.note(f"more: --after {page.next_after}")
