"""replay: run messages again, dead ones and completed ones whose payload was kept."""

from __future__ import annotations

from typing import Annotated

import typer

from s3queue.cli.arguments import QueueName, paths_like
from s3queue.cli.command import BAD, command, program
from s3queue.cli.session import Session
from s3queue.cli.words import counted
from s3queue.errors import InvalidRequest, QueueError
from s3queue.protocol.partition_replay import in_turn

PANEL = "Messages"


@command(
    program,
    "replay orders messages/0199b3c4-…",
    "replay orders messages/0199b3c4-… messages/0199b3c5-…",
    panel=PANEL,
)
def replay(
    ctx: typer.Context,
    queue: QueueName = None,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH",
            help="messages/… or delayed/…, as send prints it.",
            autocompletion=paths_like(("done", "dead")),
        ),
    ] = None,
) -> None:
    """Run messages again by path: dead ones, and completed ones of a queue with keep_payload=True.

    A completed message runs once per call; a second call while it waits or runs adds nothing. dead replay has filters.
    JSON: queue, replayed (old path: new path), failed (path: why).
    """
    session = Session.of(ctx)
    # QUEUE can be left out if the URL names it: a path starts with messages/ or delayed/.
    if queue and queue.startswith(("messages/", "delayed/")):
        paths, queue = [queue, *(paths or ())], None
    opened = session.queue(queue)
    if not paths:
        raise InvalidRequest("no PATH was given; s3queue dead replay accepts filters")
    paths = [path.removeprefix(opened.keys.root) for path in paths]

    def deal(path: str) -> str | QueueError:
        try:
            return opened.replay(path)
        except QueueError as error:
            return error

    results = dict(session.each_in_turn("replay", in_turn(paths), deal))
    replayed = {path: result for path, result in results.items() if isinstance(result, str)}
    failed = {path: str(result) for path, result in results.items() if isinstance(result, QueueError)}
    session.done(
        {"queue": opened.name, "replayed": replayed, "failed": failed},
        f"{opened.name}: {counted(len(replayed), 'message')} replayed",
    )
    for path, why in failed.items():
        session.note(f"not replayed: {path}: {why}")
    if failed:
        raise typer.Exit(BAD)
