"""presign: a URL with which someone without credentials sends one message, or reads what a handler made."""

from __future__ import annotations

import shlex
from contextlib import suppress
from datetime import timedelta
from typing import Annotated

import typer

from s3queue.cli.arguments import QueueName
from s3queue.cli.command import command, program
from s3queue.cli.session import Session
from s3queue.cli.words import duration
from s3queue.errors import AccessDenied, InvalidRequest

PANEL = "Messages"
#: What the URL was signed with: S3 refuses a PUT without it, and so the URL works once.
HEADERS = {"If-None-Match": "*"}


@command(
    program,
    "presign orders",
    "presign orders --priority 200 --expires 10m",
    "presign orders --name order-17.json --json",
    "presign orders --get results/17.pdf   (to read what a handler made)",
    panel=PANEL,
)
def presign(
    ctx: typer.Context,
    queue: QueueName = None,
    name: Annotated[str | None, typer.Option("--name", help="The message's name, instead of a new UUID.")] = None,
    priority: Annotated[int, typer.Option("--priority", min=0, max=255, help="255 runs first.")] = 0,
    expires: Annotated[
        timedelta,
        typer.Option("--expires", parser=duration, metavar="DURATION", help="How long the URL works; at most 7d."),
    ] = "1h",  # type: ignore[assignment]  # as typed; the parser reads it
    get: Annotated[
        str | None,
        typer.Option("--get", metavar="PATH", help="A URL to read results/… or the payload of a finished message."),
    ] = None,
) -> None:
    """Print a URL for someone without credentials: with it, one message can be sent, once.

    The PUT must carry the header `If-None-Match: *`. Whoever has the URL can use it; S3 does not limit the size of what
    they send, but the queue's max_message_size does: a larger message becomes a dead letter.

    JSON: queue, path, method, url, headers.
    """
    session = Session.of(ctx)
    target = session.queue(queue, may_be_new=True)
    if get is not None:
        if name is not None or priority:
            raise InvalidRequest("--get reads; --name and --priority are for a URL that sends")
        url = target.presign_get(get, expires=expires)
        session.answer({"queue": target.name, "path": get, "method": "GET", "url": url, "headers": {}}, url)
        return
    # As in send: the partitions of queue.json decide where a message lies.
    with suppress(AccessDenied):
        target.refresh()
    url, path = target.presign(name=name, priority=priority, expires=expires)
    answer = {"queue": target.name, "path": path, "method": "PUT", "url": url, "headers": HEADERS}
    session.answer(answer, url)
    headers = " ".join(f"-H {shlex.quote(f'{key}: {value}')}" for key, value in HEADERS.items())
    session.note(f"sends {path}: curl -fT FILE {headers} URL")
