"""Arguments and options that several commands share, and their shell completion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from typing import Annotated, Any

import typer

from s3queue.dashboard.overview import queue_names
from s3queue.errors import QueueError
from s3queue.settings import QueueSettings

from .session import Session
from .words import duration

#: How many paths the shell offers at once.
OFFERED = 50


def queues_like(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completion must never print or fail: without a bucket it offers nothing."""
    try:
        return [name for name in queue_names(Session.of(ctx).store()) if name.startswith(incomplete)]
    except (QueueError, OSError):
        return []


def settings_like(incomplete: str) -> list[str]:
    return [f"{field.name}=" for field in fields(QueueSettings) if field.name.startswith(incomplete)]


def paths_like(kinds: tuple[str, ...]) -> Any:
    """Offers the first paths of these kinds of objects that begin with what was typed."""

    def offer(ctx: typer.Context, incomplete: str) -> Iterator[str]:
        try:
            queue = Session.of(ctx).queue(ctx.params.get("queue"))
            for kind in kinds:
                prefix = queue.keys.root if kind == "" else queue.keys.prefix(kind)
                typed = incomplete if incomplete.startswith(("messages/", "delayed/")) else "messages/"
                found = queue.store.list(prefix + typed, limit=OFFERED).objects
                yield from (entry.key.removeprefix(prefix) for entry in found)
        except (QueueError, OSError):
            return

    return offer


QueueName = Annotated[
    str | None,
    typer.Argument(
        metavar="QUEUE",
        help="The queue's name, or s3://bucket/queue; not needed if --url names it.",
        autocompletion=queues_like,
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed in scripts.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be done, and change nothing.")]
ErrorType = Annotated[
    str | None,
    typer.Option("--error-type", help="Only letters with this error, e.g. TimeoutError.", show_default=False),
]
Message = Annotated[
    str | None,
    typer.Option(
        "--message",
        help="Only letters of this group: its message as `dead errors` prints it, or any error text of it.",
        show_default=False,
    ),
]
OlderThan = Annotated[
    timedelta | None,
    typer.Option(
        "--older-than", parser=duration, metavar="DURATION", help="Only letters older than this: 90s, 15m, 2h, 3d."
    ),
]
NewerThan = Annotated[
    timedelta | None,
    typer.Option(
        "--newer-than", parser=duration, metavar="DURATION", help="Only letters newer than this: 90s, 15m, 2h, 3d."
    ),
]
For = Annotated[
    timedelta | None,
    typer.Option("--for", parser=duration, metavar="DURATION", help="Stop after this time; without it, Ctrl-C stops."),
]
