"""show: the history of a message as a timeline."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from s3queue.cli.arguments import QueueName, paths_like
from s3queue.cli.bodies import Body
from s3queue.cli.command import command, program
from s3queue.cli.output import STYLES, facts, table
from s3queue.cli.session import Session, shifted
from s3queue.cli.words import age, bytes_, clean, counted, one_line, when
from s3queue.documents.record import Attempt, Failure
from s3queue.documents.sends import STARTS
from s3queue.errors import InvalidRequest, MessageNotFound
from s3queue.paths import due_of
from s3queue.protocol.status import Status
from s3queue.queue import Queue
from s3queue.store import Object

PANEL = "Messages"


@command(
    program,
    "show orders messages/0199b3c4-…",
    "show orders messages/0199b3c4-… --body",
    "show orders messages/0199b3c4-… --save payload.bin",
    panel=PANEL,
)
def show(
    ctx: typer.Context,
    queue: QueueName = None,
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH",
            help="messages/… or delayed/…, as send prints it.",
            autocompletion=paths_like(("", "records", "dead")),
        ),
    ] = None,
    body: Annotated[bool, typer.Option("--body", help="Print the payload, control characters made visible.")] = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the payload to a file, unchanged.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Show the traceback of each error.")] = False,
) -> None:
    """Show a message: when it was enqueued, every attempt with its worker, times and error, and its outcome.

    JSON: queue, path, state, enqueued_at, size, attempts (number, worker, started_at, ended_at, failure), and if known
    attempt, worker, retry_at, failure, progress, finished_at, result, lines, kept_payload; with --body: body or
    body_base64.
    """
    session = Session.of(ctx)
    name, wanted = shifted(session, queue, path, "the message's PATH")
    opened = session.queue(name)
    wanted = wanted.removeprefix(opened.keys.root)
    status = opened.status(wanted)
    document = {"queue": opened.name} | status.to_json()
    shown: list[Any] = [facts(_facts(opened, status)), "", _timeline(opened, status)]
    if trace:
        shown += _traces(status)
    if body:
        payload = Body.read(_stored(opened, wanted, status))
        document |= payload.to_json()
        shown += ["", payload.text()]
    session.answer(document, *shown)
    if save:
        _save(_stored(opened, wanted, status), save)
        session.note(f"payload written to {save}")


def _stored(queue: Queue, path: str, status: Status) -> Object:
    """The payload of the message, of its dead letter, or that was kept when it was completed."""
    found = queue.store.open(queue.keys.message(path)) or queue.store.open(queue.keys.dead(path))
    if found is None and status.kept:
        found = queue.store.open(status.kept.key)
    if found is None:
        raise MessageNotFound(
            f"the payload of {queue.name}/{path} was deleted when the message was completed; define the queue with "
            "keep_payload=True to keep payloads"
        )
    return found


def _save(stored: Object, file: Path) -> None:
    try:
        with stored.stream as stream, file.open("wb") as target:
            while chunk := stream.read(1024 * 1024):
                target.write(chunk)
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be written: {error.strerror}") from None


def _now(queue: Queue, status: Status) -> datetime:
    seen = status.message or status.dead
    return seen.at if seen else queue.clock.now()


def _facts(queue: Queue, status: Status) -> Iterator[tuple[str, Any]]:
    record, lease = status.record, status.lease
    yield "message", f"{queue.name}/{status.path}"
    yield "state", status.state
    if status.problem:
        yield "problem", status.problem
    stored = status.message or status.dead
    yield "size", bytes_(stored.size if stored else record.size if record else None)
    if stored and stored.content_type:
        yield "type", stored.content_type
    if status.kept:
        yield "payload", f"kept: {status.kept.key}"
    if lease and lease.progress:
        yield "progress", f"{lease.progress[0]:.0%} {lease.progress[1]}"
    if record and record.lines:
        lines = record.lines
        yield (
            "lines",
            f"{lines.get('total') or '?'} in all, {lines.get('completed', 0)} completed, {lines.get('dead', 0)} dead",
        )
    if record and record.has_sends:
        parts = f" and {counted(len(record.outbox), 'staged part')}" if record.outbox else ""
        messages = [send for send in record.sends if send.place != STARTS]
        targets = ", ".join(sorted({send.queue for send in messages}))
        yield "sent", f"{counted(len(messages), 'message')}{f' to {targets}' if targets else ''}{parts}"
        if len(messages) < len(record.sends):
            started = counted(len(record.sends) - len(messages), "flow")
            yield "started", f"{started}: see `s3queue flows list`"
    if record and not status.message and record.result is not None:
        yield "result", str(record.result)[:500]
    if record and record.result_error:
        yield "result", record.result_error


def _traces(status: Status) -> Iterator[Text]:
    for attempt in status.attempts:
        if attempt.failure and attempt.failure.details:
            yield Text(f"attempt {attempt.number}", style="bold")
            yield Text(clean(attempt.failure.details, keep="\n").rstrip() + "\n")


def _timeline(queue: Queue, status: Status) -> Any:
    now = _now(queue, status)
    rows = []
    last: datetime | None = None
    for at, event, style, text in sorted(_events(queue, status), key=lambda one: one[0] or now):
        step = f"+{age(at - last)}" if at and last and at >= last else ""
        last = at or last
        rows.append([when(at, now), step, Text(event, style=STYLES.get(style, "")), text])
    return table(["when", ">step", "what", "~how"], rows)


def _events(queue: Queue, status: Status) -> Iterator[tuple[datetime | None, str, str, Any]]:
    """(when, what, style, how), in no order."""
    record, lease = status.record, status.lease
    is_recorded = record is not None and (
        status.message is None or record.generation.put_at == status.message.modified_at
    )
    if record and not is_recorded:
        yield record.finished_at, f"{record.outcome}: an earlier PUT of this name", record.outcome, record.worker
    yield status.enqueued_at, "enqueued", "", ""
    due_at = due_of(status.path)
    if due_at:
        yield due_at, "due", "", "delayed until then"
    for attempt in status.attempts if lease or is_recorded else ():
        yield attempt.started_at, f"attempt {attempt.number}", "processing", attempt.worker
        yield attempt.ended_at, *_ended(attempt)
    if lease and status.state in ("processing", "burying", "waiting"):
        yield from _present(queue, status)
    if record and is_recorded:
        # The last attempt can end an instant after its outcome, but the outcome is shown last.
        ended_at = max([record.finished_at, *(attempt.ended_at for attempt in record.attempts)])
        yield ended_at, record.outcome, record.outcome, _reason(record.failure)
    elif status.dead and not record:
        yield status.dead.modified_at, "dead", "dead", "the record is past its retention"


def _ended(attempt: Attempt) -> tuple[str, str, Any]:
    took = age(attempt.ended_at - attempt.started_at)
    if attempt.failure is None:
        return f"attempt {attempt.number} succeeded", "completed", f"after {took}"
    text = Text(f"after {took}: ")
    return f"attempt {attempt.number} failed", "dead", text + _reason(attempt.failure)


def _present(queue: Queue, status: Status) -> Iterator[tuple[datetime | None, str, str, Any]]:
    lease = status.lease
    assert lease
    if lease.state == "waiting":
        yield lease.retry_at, "next attempt", "waiting", f"attempt {lease.attempt + 1}, not before then"
        return
    # The first write of a lease does not contain its own time; S3 knows it.
    found = queue.store.head(queue.keys.lease(status.path))
    since = lease.claimed_at or (found.modified_at if found else None)
    word = "is being buried" if lease.state == "burying" else "is running"
    yield since, f"attempt {lease.attempt} {word}", "processing", f"{lease.owner}, lease of {age(lease.timeout)}"


def _reason(failure: Failure | None) -> Text:
    return Text(one_line(f"{failure.type}: {failure.message}")) if failure else Text("")
