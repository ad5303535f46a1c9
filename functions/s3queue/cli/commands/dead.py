"""dead list | show | errors: dead letters and their errors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.text import Text

from s3queue.cli.arguments import ErrorType, Message, NewerThan, OlderThan, QueueName, paths_like
from s3queue.cli.bodies import Body
from s3queue.cli.command import BAD, command, group, program
from s3queue.cli.output import facts, table
from s3queue.cli.session import Session, shifted
from s3queue.cli.words import age, bytes_, clean, counted, one_line, when
from s3queue.documents.dead_letter import DeadLetter
from s3queue.errors import InvalidRequest
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.queue import Queue

from .dead_search import Search

dead = group("Dead letters: messages that could not be processed, why, and how to replay them.")
program.add_typer(dead, name="dead", rich_help_panel="Dead letters")
Limit = Annotated[int | None, typer.Option("--limit", "-l", min=1, help="At most this many.")]


def rows(letters: Sequence[DeadLetter], queue: Queue) -> Any:
    now = queue.clock.now()
    return table(
        ["=path", "~died", ">tries", "~error"],
        [[one.path, when(one.died_at, now), one.attempts, _error(one)] for one in letters],
    )


def _error(letter: DeadLetter) -> str:
    """The error, or the first one of a batch's lines, and how many of these died."""
    lines = f"{counted(letter.lines, 'line')}, the first: " if letter.lines else ""
    return lines + one_line(f"{letter.error_type}: {letter.error}")


@command(
    dead,
    "dead list orders",
    "dead list orders --error-type TimeoutError --newer-than 1h",
    "dead list orders --message 'no answer from * after * s'",
    "dead list orders --error 'no answer' --field customer.id --value 17",
    name="list",
)
def list_(
    ctx: typer.Context,
    queue: QueueName = None,
    error_type: ErrorType = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    limit: Limit = 100,
    message: Message = None,
    error: Annotated[
        str | None, typer.Option("--error", metavar="TEXT", help="Only letters whose error contains this.")
    ] = None,
    field: Annotated[
        str | None, typer.Option("--field", metavar="NAME", help="Only payloads with this field: customer.id.")
    ] = None,
    value: Annotated[str, typer.Option("--value", metavar="TEXT", help="The value of --field, or a part of it.")] = "",
    after: Annotated[str, typer.Option("--after", metavar="PATH", help="Go on behind this path.")] = "",
) -> None:
    """List dead letters and their errors. Exit code 1 if a filter selects none.

    --field reads payloads, up to 400 of them, and says so if it stops there. Of a batch, one line that has it is
    enough. Text matches if it contains the value, anything else if it is the value; case does not matter.

    JSON: a list of path, size, died_at, error_type, error, attempts, worker, lines, enqueued_at.
    """
    session = Session.of(ctx)
    opened = session.queue(queue)
    if value and field is None:
        raise InvalidRequest("--value is that of a field: name it with --field")
    letters = DeadLetters(opened).list(
        error_type=error_type, older_than=older_than, newer_than=newer_than, message=message, after=after
    )
    search = Search(session, opened, error=error or "", field=field or "", value=value)
    found = search.take(letters, limit)
    session.answer([one.to_json() for one in found], rows(found, opened))
    if search.stopped_at:
        why = f"payloads of {search.reads} letters were read" if search.is_spent else f"the first {limit} are shown"
        session.note(f"{why}; --after {search.stopped_at} goes on")
    if search.unread:
        session.note(f"{counted(search.unread, 'payload')} could not be searched: gone, over 64 KiB, or not JSON")
    if not found:
        filters = (error_type, older_than, newer_than, message, error, field)
        is_filtered = any(one is not None for one in filters)
        hint = f"; s3queue dead errors {opened.name} shows what there is" if is_filtered else ""
        session.note(f"{opened.name} has no {'such ' if is_filtered else ''}dead letter{hint}")
        if is_filtered:
            raise typer.Exit(BAD)


@command(dead, "dead show orders messages/0199b3c4-…", "dead show orders messages/0199b3c4-… --body")
def show(
    ctx: typer.Context,
    queue: QueueName = None,
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="As dead list shows it.", autocompletion=paths_like(("dead",)))
    ] = None,
    body: Annotated[bool, typer.Option("--body", help="Print the payload, control characters made visible.")] = False,
) -> None:
    """Show one dead letter: its error, its attempts, and with --body its payload. (s3queue show has its history.)

    JSON: queue, path, size, died_at, error_type, error, attempts, worker, lines, enqueued_at, details; with --body:
    body or body_base64.
    """
    session = Session.of(ctx)
    name, wanted = shifted(session, queue, path, "the dead letter's PATH")
    opened = session.queue(name)
    letter = DeadLetters(opened).describe(wanted)
    record = DeadLetters(opened).record(letter)
    details = record.failure.details if record and record.failure else ""
    now = opened.clock.now()
    pairs: list[tuple[str, Any]] = [
        ("path", letter.path),
        ("error", one_line(f"{letter.error_type}: {letter.error}")),
        ("attempts", letter.attempts),
        ("worker", letter.worker or "-"),
        ("enqueued", when(letter.enqueued_at, now)),
        ("died", when(letter.died_at, now)),
        ("size", bytes_(letter.size)),
    ]
    pairs += [("lines", letter.lines)] if letter.lines else []
    pairs += [("trace", Text(clean(details.rstrip(), keep="\n")))] if details else []
    document = {"queue": opened.name} | letter.to_json() | {"details": details or None}
    shown: list[Any] = [facts(pairs)]
    stored = opened.store.open(opened.keys.dead(wanted)) if body else None
    if stored:
        start = Body.read(stored)
        document |= start.to_json()
        shown += ["", start.text()]
    session.answer(document, *shown)


@command(
    dead,
    "dead errors orders",
    "dead errors orders --newer-than 1h",
    "dead errors orders --json | jq -r '.[] | [.count, .error_type, .message] | @tsv'",
)
def errors(
    ctx: typer.Context, queue: QueueName = None, older_than: OlderThan = None, newer_than: NewerThan = None
) -> None:
    """Group dead letters by error and message, largest group first; in a message, `*` stands for what differs.

    JSON: a list of error_type, message, count, acknowledged, newest_at, oldest_at, example and samples (paths), error.
    """
    session = Session.of(ctx)
    opened = session.queue(queue)
    letters = DeadLetters(opened)
    groups = letters.groups(letters.list(older_than=older_than, newer_than=newer_than))
    now = opened.clock.now()
    rows = [
        [
            group.key.error_type,
            group.count,
            group.acknowledged or "",
            age(max(timedelta(), now - group.newest_at)) + " ago",
            one_line(group.key.message),
            group.samples[0],
        ]
        for group in groups
    ]
    # `example` was a path before there were groups by message.
    found = [group.to_json() | {"example": group.samples[0], "error": group.example} for group in groups]
    session.answer(found, table(["error", ">count", ">acknowledged", "newest", "~message", "=example"], rows))
    if not found:
        session.note(f"{opened.name} has no dead letter" + (" of that age" if older_than or newer_than else ""))
