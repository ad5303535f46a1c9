"""send: enqueue a text, a file, or stdin, once or many times."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from s3queue.cli.arguments import QueueName
from s3queue.cli.command import command, program
from s3queue.cli.definitions import load
from s3queue.cli.session import Session
from s3queue.cli.words import counted, duration, instant, pair
from s3queue.documents.batch import read_lines
from s3queue.errors import AccessDenied, InvalidRequest
from s3queue.queue import Queue

PANEL = "Messages"
#: More paths than this are not printed on a terminal.
ON_SCREEN = 20
#: What `--count` sends without a BODY.
TEST_BODY = '{"test": true, "n": {n}}'


@dataclass(frozen=True, slots=True)
class Payload:
    """What to send, and its type."""

    body: bytes
    content_type: str
    is_batch: bool = False


@command(
    program,
    "send orders '{\"id\": 17}'",
    "send orders @invoice.pdf --priority 200 --metadata customer=4711",
    "send orders @orders.ndjson          (every line is a message; one PUT)",
    "send orders --at 2026-11-16T10:15:00Z 'good morning'",
    "send orders --dedup-id order-17 --dedup-for 5m '{\"id\": 17}'",
    "send orders --group customer-42 '{\"id\": 17}'   (a group runs one at a time, in order)",
    "send orders --count 1000 '{\"n\": {n}}' --per-object 100",
    "send orders '{\"id\": 17}' --module queues.orders   (refuses what the handler cannot take)",
    "echo hello | s3queue send orders",
    panel=PANEL,
)
def send(
    ctx: typer.Context,
    queue: QueueName = None,
    body: Annotated[
        str | None,
        typer.Argument(
            metavar="BODY",
            help="Text or JSON; @file sends a file, @@ stands for a leading @; - or no BODY reads stdin; with --count, "
            "an empty stdin is a test message with its number.",
            show_default=False,
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("--count", min=1, help="Send it this many times; {n} in it becomes the number.")
    ] = 1,
    per_object: Annotated[
        int | None, typer.Option("--per-object", min=1, help="Put this many messages into each .ndjson batch.")
    ] = None,
    priority: Annotated[int, typer.Option("--priority", min=0, max=255, help="255 runs first.")] = 0,
    delay: Annotated[
        timedelta | None, typer.Option("--delay", parser=duration, metavar="DURATION", help="Run it after this time.")
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option("--at", parser=instant, metavar="INSTANT", help="Run it not before this instant (ISO 8601)."),
    ] = None,
    dedup_id: Annotated[
        str | None,
        typer.Option("--dedup-id", help="Do nothing if the queue has a message with this id. Not for a batch."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="The message's name, instead of a new UUID. A message that waits under it is replaced."
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="KEY=VALUE", help="Stored with the message; can be repeated."),
    ] = None,
    content_type: Annotated[str | None, typer.Option("--content-type", help="Default: guessed from the body.")] = None,
    dedup_for: Annotated[
        timedelta | None,
        typer.Option(
            "--dedup-for",
            parser=duration,
            metavar="DURATION",
            help="Do nothing if a message with this --dedup-id was sent within this time, finished or not.",
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("--module", help="Where the queue is defined: its handler's annotation checks what is sent."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", metavar="GROUP", help="Messages of one group run one at a time, in the order they were sent."
        ),
    ] = None,
) -> None:
    """Enqueue a message, a file, or many messages; print the path of each object.

    JSON: queue, messages (how many), paths (one per object).
    """
    session = Session.of(ctx)
    if body is None and session.named and queue is not None and "://" not in queue:
        queue, body = None, queue
    if count > 1 and (dedup_id or name):
        raise InvalidRequest("--count with --dedup-id or --name would send only one message; leave one of them out")
    if dedup_for is not None and dedup_id is None:
        raise InvalidRequest("--dedup-for needs a --dedup-id: that is what counts for so long")
    target = session.queue(queue, may_be_new=True)
    if module:
        definition = load(module)
        if definition.name != target.name:
            raise InvalidRequest(f"{module} defines the queue {definition.name}, not {target.name}")
        target.define(definition.settings)
        target.check_body = definition.check
    payload = payload_of(body, count)
    # For max_message_size, max_depth and shards of queue.json: without this, and for a producer that may only PUT, the
    # defaults apply.
    with suppress(AccessDenied):
        target.refresh()
    options: dict[str, Any] = {
        "priority": priority,
        "delay": delay,
        "due_at": at,
        "metadata": dict(pair(text) for text in metadata or ()),
    }
    if payload.is_batch or per_object:
        if group is not None:
            raise InvalidRequest("a batch cannot have a --group: send its lines one by one, without --per-object")
        if dedup_id is not None:
            raise InvalidRequest(
                "--dedup-id and --dedup-for are for a single message, and these lines become a batch: send them one by "
                "one, each with an id of its own, without --per-object"
            )
        messages, paths = _send_lines(session, target, payload, count, per_object, name, options)
    else:
        single = options | {"dedup_id": dedup_id, "name": name, "content_type": content_type or payload.content_type}
        single |= {"dedup_for": dedup_for, "group": group}
        messages, paths = count, _send_each(session, target, payload, count, single)
    answer = {"queue": target.name, "messages": messages, "paths": paths}
    # Many paths are useful in a pipe; on a terminal the note is enough.
    if len(paths) <= ON_SCREEN or session.json or not sys.stdout.isatty():
        session.answer(answer, *paths)
    _warn_if_unserved(session, target)
    if len(paths) > 1 or messages > 1:
        session.note(f"{counted(messages, 'message')} sent to {target.name} in {counted(len(paths), 'object')}")


def _warn_if_unserved(session: Session, queue: Queue) -> None:
    """A typo looks like a queue: its messages wait for ever. One GET and one LIST; a producer may lack the permission.

    A deployment has published the queue's settings, a pull worker has a heartbeat, and whoever sweeps a count.
    """
    with suppress(AccessDenied):
        published = queue.published_settings()
        if published and published.by == "deployment":
            return
        root = queue.store.list(queue.keys.root, delimiter="/")
        is_swept = any(entry.key == queue.keys.stats for entry in root.objects)
        if "workers" in queue.keys.kinds(root.prefixes) or (is_swept and not published):
            return
        alike = session.names_like(queue.name)
        meant = f" Did you mean {' or '.join(alike)}?" if alike else ""
        session.note(
            f"warning: nothing serves {queue.name} now: it waits until a worker is started or deployed.{meant}"
        )


def _send_each(session: Session, queue: Queue, payload: Payload, count: int, options: dict[str, Any]) -> list[str]:
    def enqueue(number: int) -> str:
        return queue.enqueue(_numbered(payload.body, number) if count > 1 else payload.body, **options)

    if options["group"] is not None:  # several at once would not arrive in the order of their numbers
        with session.progress("send", count) as bar:
            paths = []
            for number in range(1, count + 1):
                paths.append(enqueue(number))
                bar.advance(bar.task_ids[0])
            return paths
    return [path for _, path in session.each("send", range(1, count + 1), enqueue)]


def _send_lines(
    session: Session,
    queue: Queue,
    payload: Payload,
    count: int,
    per_object: int | None,
    name: str | None,
    options: dict[str, Any],
) -> tuple[int, list[str]]:
    """Send lines as batches: all in one object, if max_message_size allows it and --per-object is not given."""
    lines = list(_lines(payload, count))
    if not lines:
        raise InvalidRequest("there is no line to send: every line of an .ndjson file that is not blank is a message")
    whole = b"\n".join(lines) + b"\n"
    if name:
        if per_object is not None or len(whole) > queue.settings.max_message_size:
            raise InvalidRequest("--name names one object, but these lines need several; leave it out")
        named = name if name.endswith(".ndjson") else f"{name}.ndjson"
        return len(lines), [queue.enqueue(whole, name=named, content_type="application/x-ndjson", **options)]
    with session.progress("send", len(lines)) as bar:

        def counting() -> Iterator[bytes]:
            for line in lines:
                bar.advance(bar.task_ids[0])
                yield line

        return len(lines), queue.enqueue_many(counting(), per_object=per_object or len(lines), **options)


def _lines(payload: Payload, count: int) -> Iterator[bytes]:
    import io

    for number in range(1, count + 1):
        if payload.is_batch:
            yield from (line for _, line in read_lines(io.BytesIO(payload.body)))
        else:
            yield _numbered(payload.body, number)


def _numbered(body: bytes, number: int) -> bytes:
    return body.replace(b"{n}", str(number).encode())


def payload_of(body: str | None, count: int) -> Payload:
    """The payload that the BODY argument names.

    Raises:
        InvalidRequest: there is nothing to send, or the file cannot be read.
    """
    if body is None and count > 1 and sys.stdin.isatty():
        body = TEST_BODY
    if body is None or body == "-":
        if sys.stdin.isatty():
            raise InvalidRequest("there is nothing to send; give a BODY or @file, or pipe it in")
        read = sys.stdin.buffer.read()
        if not read and body is None and count > 1:
            return payload_of(TEST_BODY, count)
        if not read and body is None:
            raise InvalidRequest("stdin is empty, and no BODY was given; '' sends an empty message")
        return Payload(read, _type_of(read))
    if body.startswith("@@"):
        body = body[1:]
    elif body.startswith("@"):
        file = Path(body[1:])
        try:
            read = file.read_bytes()
        except OSError as error:
            raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from None
        return Payload(read, _type_of(read), is_batch=file.suffix == ".ndjson")
    try:
        # An argument that is not UTF-8 is sent as the bytes that it came in.
        encoded = body.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidRequest("BODY is not valid Unicode; put it into a file, and send @file") from None
    return Payload(encoded, _type_of(encoded))


def is_json(body: bytes) -> bool:
    try:
        json.loads(body)
        return True
    except (ValueError, RecursionError):
        return False


def _type_of(body: bytes) -> str:
    if is_json(body):
        return "application/json"
    try:
        body.decode()
        return "text/plain; charset=utf-8"
    except UnicodeDecodeError:
        return "application/octet-stream"
