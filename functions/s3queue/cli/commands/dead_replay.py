"""dead replay | edit | delete | purge | acknowledge: what to do with dead letters, by path or by filter."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer

from s3queue.cli.arguments import (
    DryRun,
    ErrorType,
    Message,
    NewerThan,
    OlderThan,
    QueueName,
    Yes,
    paths_like,
    queues_like,
)
from s3queue.cli.command import BAD, command
from s3queue.cli.session import Session
from s3queue.cli.words import bytes_, counted, moment
from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.failure_group import Selection
from s3queue.errors import InvalidRequest, MessageNotFound, QueueError
from s3queue.protocol.dead_groups import parts_of
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.protocol.partition_replay import in_turn
from s3queue.queue import Queue

from .dead import dead, rows
from .send import is_json, payload_of

#: A larger payload is not looked into: whether it is JSON is left to whoever edits it.
EDITED_BYTES = 1024 * 1024

Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="messages/…, as dead list shows it.", autocompletion=paths_like(("dead",))),
]


def _arguments(session: Session, queue: str | None, paths: list[str] | None) -> tuple[Queue, list[str]]:
    """QUEUE can be left out if the URL names it: a path starts with messages/ or delayed/."""
    if queue and queue.startswith(("messages/", "delayed/")):
        return session.queue(), [queue, *(paths or ())]
    return session.queue(queue), list(paths or ())


def _selected(
    session: Session,
    queue: Queue,
    paths: Sequence[str],
    error_type: str | None,
    older_than: timedelta | None,
    newer_than: timedelta | None,
    everything: bool,
    message: str | None = None,
) -> list[DeadLetter]:
    """The dead letters that the paths or the filters select.

    Raises:
        InvalidRequest: neither was given, or both. MessageNotFound: no dead letter has this path.
    """
    is_filtered = any(one is not None for one in (error_type, older_than, newer_than, message))
    if sum((bool(paths), is_filtered or everything)) != 1:
        raise InvalidRequest(
            "give either PATHs, or a filter (--error-type, --message, --older-than, --newer-than), or --all"
        )
    letters = DeadLetters(queue)
    if paths:
        return [letters.describe(path) for path in paths]
    with session.progress("read", None) as bar:
        found = []
        selected = letters.list(error_type=error_type, older_than=older_than, newer_than=newer_than, message=message)
        for letter in selected:
            found.append(letter)
            bar.advance(bar.task_ids[0])
    return found


@command(
    dead,
    "dead replay orders messages/0199b3c4-…",
    "dead replay orders --error-type TimeoutError --newer-than 1h --dry-run",
    "dead replay orders --error-type Reject --message 'no address * for customer *'",
    "dead replay orders --all",
    "dead replay orders messages/0199b3c4-… --to orders-by-hand",
)
def replay(
    ctx: typer.Context,
    queue: QueueName = None,
    paths: Paths = None,
    error_type: ErrorType = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: Annotated[bool, typer.Option("--all", help="Every dead letter.")] = False,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="QUEUE", help="Into this queue instead.", autocompletion=queues_like),
    ] = None,
    dry_run: DryRun = False,
    message: Message = None,
) -> None:
    """Put dead letters back as messages, with all their attempts; of a batch, the lines with that error.

    With --to, into another queue; of a batch, then, all its dead lines.

    JSON: queue, replayed (old path: new path), failed (path: why), dry_run.
    """
    session = Session.of(ctx)
    opened, given = _arguments(session, queue, paths)
    letters = _selected(session, opened, given, error_type, older_than, newer_than, everything, message)
    if _is_only_shown(session, opened, letters, "replayed", "would replay", dry_run):
        return
    store = DeadLetters(opened)
    target = session.queue(to) if to is not None else None
    selection = Selection.of(error_type, message)
    if target and any(letter.lines and not _is_whole(opened, letter, selection) for letter in letters):
        raise InvalidRequest(
            "--to takes a batch's dead lines together; leave --error-type and --message out, or replay them here first"
        )

    def deal(path: str) -> str | QueueError:
        try:
            if target:
                return opened.replay(path, to=target)
            return store.replay(path, error_type=error_type, message=message)
        except QueueError as error:
            return error

    results = dict(session.each_in_turn("replay", in_turn(letter.path for letter in letters), deal))
    replayed = {path: result for path, result in results.items() if isinstance(result, str)}
    failed = {path: str(result) for path, result in results.items() if isinstance(result, QueueError)}
    session.done(
        {"queue": opened.name, "replayed": replayed, "failed": failed, "dry_run": False},
        f"{opened.name}: {counted(len(replayed), 'dead letter')} replayed",
    )
    for path, why in failed.items():
        session.note(f"not replayed: {path}: {why}")
    if failed:
        raise typer.Exit(BAD)


@command(
    dead,
    "dead edit orders messages/0199b3c4-… '{\"id\": 17}'",
    "dead edit orders messages/0199b3c4-… @repaired.json",
    "dead show orders messages/0199b3c4-… --body --json | jq -r .body | jq -c '.id = 17' | s3queue dead edit orders …",
)
def edit(
    ctx: typer.Context,
    queue: QueueName = None,
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="As dead list shows it.", autocompletion=paths_like(("dead",)))
    ] = None,
    body: Annotated[
        str | None, typer.Argument(metavar="BODY", help="The new payload; @FILE reads it from a file, - from stdin.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Replay one dead letter with another payload, once, with all its attempts and its old metadata; the letter goes.

    A payload that was JSON must be JSON again. Refused if the letter was replayed before, or is still being buried.
    Not for batches: send a line that you have repaired as a message.

    JSON: queue, path, message, size, dry_run.
    """
    session = Session.of(ctx)
    if queue and queue.startswith(("messages/", "delayed/")):
        queue, path, body = None, queue, path
    if path is None:
        raise InvalidRequest("no PATH was given: which dead letter is to be edited?")
    opened = session.queue(queue)
    letter = DeadLetters(opened).describe(path)
    payload = payload_of(body, 1).body
    stored = opened.store.open(opened.keys.dead(path))
    if stored and stored.size <= EDITED_BYTES and is_json(stored.read()) and not is_json(payload):
        raise InvalidRequest(f"the payload of {path} is JSON, and the new one is not: its handler expects JSON")
    said = {"queue": opened.name, "path": letter.path, "size": len(payload), "dry_run": dry_run}
    if dry_run:
        session.done(said | {"message": None}, f"would replay {path} with {bytes_(len(payload))}; nothing was changed")
        return
    target = opened.replay_edited(path, payload)
    session.done(said | {"message": target}, f"{opened.name}: {path} replayed as {target} with {bytes_(len(payload))}")


@command(dead, "dead delete orders messages/0199b3c4-… --yes")
def delete(
    ctx: typer.Context, queue: QueueName = None, paths: Paths = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Delete dead letters by path, for good. Their records stay.

    JSON: queue, deleted (paths), dry_run.
    """
    session = Session.of(ctx)
    opened, given = _arguments(session, queue, paths)
    if not given:
        raise InvalidRequest("no PATH was given; s3queue dead purge accepts filters")
    letters = _selected(session, opened, given, None, None, None, False)
    _delete(session, opened, letters, yes, dry_run)


@command(
    dead,
    "dead purge orders --older-than 7d --dry-run",
    "dead purge orders --error-type Reject --yes",
    "dead purge orders --message 'no address * for customer *' --yes",
    "dead purge orders --all",
)
def purge(
    ctx: typer.Context,
    queue: QueueName = None,
    error_type: ErrorType = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: Annotated[bool, typer.Option("--all", help="Every dead letter.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    message: Message = None,
) -> None:
    """Delete the dead letters that a filter selects, for good; of a batch, the lines with that error. Records stay.

    JSON: queue, deleted (paths), dry_run.
    """
    session = Session.of(ctx)
    opened = session.queue(queue)
    letters = _selected(session, opened, (), error_type, older_than, newer_than, everything, message)
    _delete(session, opened, letters, yes, dry_run, error_type, message)


@command(
    dead,
    "dead acknowledge orders --error-type Reject --message 'no address * for customer *'",
    "dead acknowledge orders --all",
    "dead acknowledge orders --error-type Reject --undo",
)
def acknowledge(
    ctx: typer.Context,
    queue: QueueName = None,
    error_type: ErrorType = None,
    message: Message = None,
    everything: Annotated[bool, typer.Option("--all", help="Every dead letter that there is now.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let them count again.")] = False,
) -> None:
    """Let dead letters stay without counting for the verdict. They can still be replayed; what dies later counts again.

    JSON: queue, selected, acknowledged (how many of the queue's dead letters are now).
    """
    session = Session.of(ctx)
    opened = session.queue(queue)
    if everything == (error_type is not None or message is not None):
        raise InvalidRequest("give either a group (--error-type, --message or both), or --all")
    selected = DeadLetters(opened).acknowledge(error_type=error_type, message=message, everything=everything, undo=undo)
    if not selected:
        raise MessageNotFound(
            f"{opened.name} has no such dead letter; s3queue dead errors {opened.name} shows all errors"
        )
    stats = opened.stats()
    session.done(
        {"queue": opened.name, "selected": selected, "acknowledged": stats.acknowledged},
        f"{opened.name}: {counted(selected, 'dead letter')} {'counted again' if undo else 'acknowledged'}; "
        f"{stats.acknowledged} of {stats.dead} acknowledged",
    )


def _is_whole(queue: Queue, letter: DeadLetter, selection: Selection) -> bool:
    """Whether every line of a batch is selected."""
    return selection.is_all or all(map(selection.has, parts_of(queue, letter)))


def _delete(
    session: Session,
    queue: Queue,
    letters: Sequence[DeadLetter],
    yes: bool,
    dry_run: bool,
    error_type: str | None = None,
    message: str | None = None,
) -> None:
    if _is_only_shown(session, queue, letters, "deleted", "would delete", dry_run):
        return
    session.confirm(f"Delete {counted(len(letters), 'dead letter')} of {queue.name} for good?", yes=yes)

    def deal(letter: DeadLetter) -> bool:
        try:
            return DeadLetters(queue).discard(letter, error_type=error_type, message=message)
        except MessageNotFound:
            return False  # it died of something else meanwhile

    gone = [letter.path for letter, is_gone in session.each("delete", letters, deal) if is_gone]
    session.done(
        {"queue": queue.name, "deleted": gone, "dry_run": False},
        f"{queue.name}: {counted(len(gone), 'dead letter')} deleted",
    )


def _is_only_shown(
    session: Session, queue: Queue, letters: Sequence[DeadLetter], field: str, would: str, dry_run: bool
) -> bool:
    """True for a dry run, which changes nothing. Raises MessageNotFound if nothing was selected."""
    if not letters:
        raise MessageNotFound(
            f"{queue.name} has no such dead letter; s3queue dead errors {queue.name} shows all errors"
        )
    if dry_run:
        paths = [letter.path for letter in letters]
        chosen: Any = dict.fromkeys(paths) if field == "replayed" else paths
        failed: dict[str, Any] = {"failed": {}} if field == "replayed" else {}
        session.answer({"queue": queue.name, field: chosen, **failed, "dry_run": True}, rows(letters, queue))
        oldest = min(letter.died_at for letter in letters)
        session.note(
            f"{would} {counted(len(letters), 'dead letter')}, the oldest from {moment(oldest)}; nothing was changed"
        )
    return dry_run
