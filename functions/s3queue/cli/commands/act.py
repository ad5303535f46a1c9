"""cancel: what an operator does with single messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from s3queue.cli.arguments import DryRun, QueueName, Yes, paths_like
from s3queue.cli.command import BAD, command, program
from s3queue.cli.session import Session
from s3queue.cli.words import counted
from s3queue.errors import InvalidRequest, QueueError
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
