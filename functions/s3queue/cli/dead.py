"""dead list | show | errors | replay | delete | purge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.text import Text

from s3queue.dead_letters import DeadLetter, DeadLetters
from s3queue.errors import InvalidRequest, MessageNotFound, QueueError
from s3queue.keys import line_of
from s3queue.queue import Queue
from s3queue.store import delete_surely

from .arguments import DryRun, ErrorType, NewerThan, OlderThan, QueueName, Yes, paths_like
from .bodies import Body
from .command import BAD, command, group, program
from .output import facts, table
from .session import Session, shifted
from .words import age, bytes_, clean, counted, moment, when

dead = group("Dead letters: what could not be done, why, and how to try it again.")
program.add_typer(dead, name="dead", rich_help_panel="Dead letters")
Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="messages/…, as dead list shows it.", autocompletion=paths_like(("dead",))),
]
Limit = Annotated[int | None, typer.Option("--limit", "-l", min=1, help="At most so many.")]


def _arguments(session: Session, queue: str | None, paths: list[str] | None) -> tuple[Queue, list[str]]:
    """QUEUE may be left out when the URL names it: a path is told by its beginning."""
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
) -> list[DeadLetter]:
    """What the paths or the filters mean.

    Raises:
        InvalidRequest: neither was given, or both. MessageNotFound: no dead letter has this path.
    """
    is_filtered = error_type is not None or older_than is not None or newer_than is not None
    if sum((bool(paths), is_filtered or everything)) != 1:
        raise InvalidRequest("give PATHs, or a filter (--error-type, --older-than, --newer-than), or --all")
    letters = DeadLetters(queue)
    if paths:
        return [letters.describe(path) for path in paths]
    with session.progress("look", None) as bar:
        found = []
        for letter in letters.list(error_type=error_type, older_than=older_than, newer_than=newer_than):
            found.append(letter)
            bar.advance(bar.task_ids[0])
    return found


def _rows(letters: Sequence[DeadLetter], queue: Queue) -> Any:
    now = queue.clock.now()
    return table(
        ["~path", "died", ">attempts", "error", "~message"],
        [[one.path, when(one.died_at, now), one.attempts, one.error_type, one.error] for one in letters],
    )


@command(dead, "dead list orders", "dead list orders --error-type TimeoutError --newer-than 1h", name="list")
def list_(
    ctx: typer.Context,
    queue: QueueName = None,
    error_type: ErrorType = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    limit: Limit = 100,
) -> None:
    """Dead letters, and what each died of. Exit code 1 if a filter selects none.

    JSON: a list of path, size, died_at, error_type, error, attempts, worker, line, enqueued_at.
    """
    session = Session.of(ctx)
    looked = session.queue(queue)
    found: list[DeadLetter] = []
    is_cut = False
    for letter in DeadLetters(looked).list(error_type=error_type, older_than=older_than, newer_than=newer_than):
        if limit and len(found) == limit:
            is_cut = True
            break
        found.append(letter)
    session.answer([one.to_json() for one in found], _rows(found, looked))
    if is_cut:
        session.note(f"the first {limit}; --limit N shows more")
    if not found:
        session.note(f"{looked.name} has no such dead letter")
        if error_type or older_than or newer_than:
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
    """One dead letter: its error, its attempts, and with --body its payload. (s3queue show tells its whole life.)

    JSON: queue, path, size, died_at, error_type, error, attempts, worker, line, enqueued_at, details; with --body: body
    or body_base64.
    """
    session = Session.of(ctx)
    name, wanted = shifted(queue, path, "the dead letter's PATH")
    looked = session.queue(name)
    letter = DeadLetters(looked).describe(wanted)
    origin = line_of(wanted)
    record = looked.outcomes.read(wanted) or (looked.outcomes.read(origin[0]) if origin else None)
    details = record.failure.details if record and record.failure else ""
    now = looked.clock.now()
    pairs: list[tuple[str, Any]] = [
        ("path", letter.path),
        ("error", f"{letter.error_type}: {letter.error}"),
        ("attempts", letter.attempts),
        ("worker", letter.worker or "-"),
        ("enqueued", when(letter.enqueued_at, now)),
        ("died", when(letter.died_at, now)),
        ("size", bytes_(letter.size)),
    ]
    pairs += [("line", letter.line)] if letter.line else []
    pairs += [("trace", Text(clean(details.rstrip(), keep="\n")))] if details else []
    document = {"queue": looked.name} | letter.to_json() | {"details": details or None}
    shown: list[Any] = [facts(pairs)]
    stored = looked.store.open(looked.keys.dead(wanted)) if body else None
    if stored:
        start = Body.read(stored)
        document |= start.to_json()
        shown += ["", start.text()]
    session.answer(document, *shown)


@command(dead, "dead errors orders", "dead errors orders --newer-than 1h")
def errors(
    ctx: typer.Context, queue: QueueName = None, older_than: OlderThan = None, newer_than: NewerThan = None
) -> None:
    """How many died of what, most first, with an example of each.

    JSON: a list of error_type, count, newest_at, example (a path), error.
    """
    session = Session.of(ctx)
    looked = session.queue(queue)
    letters = list(DeadLetters(looked).list(older_than=older_than, newer_than=newer_than))
    counts = Counter(letter.error_type for letter in letters)
    newest = {letter.error_type: letter for letter in sorted(letters, key=lambda one: one.died_at)}
    found = [
        {
            "error_type": kind,
            "count": count,
            "newest_at": newest[kind].to_json()["died_at"],
            "example": newest[kind].path,
            "error": newest[kind].error,
        }
        for kind, count in counts.most_common()
    ]
    now = looked.clock.now()
    rows = [
        [kind, count, age(now - newest[kind].died_at) + " ago", newest[kind].error, newest[kind].path]
        for kind, count in counts.most_common()
    ]
    session.answer(found, table(["error", ">count", "newest", "~message", "~example"], rows))
    if not found:
        session.note(f"{looked.name} has no dead letter" + (" of that age" if older_than or newer_than else ""))


@command(
    dead,
    "dead replay orders messages/0199b3c4-…",
    "dead replay orders --error-type TimeoutError --newer-than 1h --dry-run",
    "dead replay orders --all",
)
def replay(
    ctx: typer.Context,
    queue: QueueName = None,
    paths: Paths = None,
    error_type: ErrorType = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: Annotated[bool, typer.Option("--all", help="Every dead letter.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Put dead letters back as messages, with all their attempts before them.

    JSON: queue, replayed (old path: new path), failed (path: why), dry_run.
    """
    session = Session.of(ctx)
    looked, given = _arguments(session, queue, paths)
    letters = _selected(session, looked, given, error_type, older_than, newer_than, everything)
    if _is_only_shown(session, looked, letters, "replayed", "would replay", dry_run):
        return
    store = DeadLetters(looked)

    def deal(letter: DeadLetter) -> str | QueueError:
        try:
            return store.replay(letter.path)
        except QueueError as error:
            return error

    outcomes = {letter.path: outcome for letter, outcome in session.each("replay", letters, deal)}
    replayed = {path: outcome for path, outcome in outcomes.items() if isinstance(outcome, str)}
    failed = {path: str(outcome) for path, outcome in outcomes.items() if isinstance(outcome, QueueError)}
    session.done(
        {"queue": looked.name, "replayed": replayed, "failed": failed, "dry_run": False},
        f"{looked.name}: {counted(len(replayed), 'dead letter')} replayed",
    )
    for path, why in failed.items():
        session.note(f"{path} stays: {why}")
    if failed:
        raise typer.Exit(BAD)


@command(dead, "dead delete orders messages/0199b3c4-… --yes")
def delete(
    ctx: typer.Context, queue: QueueName = None, paths: Paths = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Delete dead letters by path, for good; their records stay.

    JSON: queue, deleted (paths), dry_run.
    """
    session = Session.of(ctx)
    looked, given = _arguments(session, queue, paths)
    if not given:
        raise InvalidRequest("which? give PATHs; s3queue dead purge takes filters")
    letters = _selected(session, looked, given, None, None, None, False)
    _delete(session, looked, letters, yes, dry_run)


@command(
    dead,
    "dead purge orders --older-than 7d --dry-run",
    "dead purge orders --error-type Reject --yes",
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
) -> None:
    """Delete the dead letters that a filter selects, for good; their records stay.

    JSON: queue, deleted (paths), dry_run.
    """
    session = Session.of(ctx)
    looked = session.queue(queue)
    letters = _selected(session, looked, (), error_type, older_than, newer_than, everything)
    _delete(session, looked, letters, yes, dry_run)


def _delete(session: Session, queue: Queue, letters: Sequence[DeadLetter], yes: bool, dry_run: bool) -> None:
    if _is_only_shown(session, queue, letters, "deleted", "would delete", dry_run):
        return
    session.confirm(f"Delete {counted(len(letters), 'dead letter')} of {queue.name} for good?", yes=yes)

    def deal(letter: DeadLetter) -> bool:
        # If it died again since it was listed, it is another letter.
        return delete_surely(queue.store, queue.keys.dead(letter.path), if_match=letter.etag)

    gone = [letter.path for letter, is_gone in session.each("delete", letters, deal) if is_gone]
    session.done(
        {"queue": queue.name, "deleted": gone, "dry_run": False},
        f"{queue.name}: {counted(len(gone), 'dead letter')} deleted",
    )


def _is_only_shown(
    session: Session, queue: Queue, letters: Sequence[DeadLetter], field: str, would: str, dry_run: bool
) -> bool:
    """True if there is nothing to change: a dry run; exits with 1 if nothing was selected."""
    if not letters:
        raise MessageNotFound(
            f"{queue.name} has no such dead letter; s3queue dead errors {queue.name} shows what there is"
        )
    if dry_run:
        paths = [letter.path for letter in letters]
        chosen: Any = dict.fromkeys(paths) if field == "replayed" else paths
        failed: dict[str, Any] = {"failed": {}} if field == "replayed" else {}
        session.answer({"queue": queue.name, field: chosen, **failed, "dry_run": True}, _rows(letters, queue))
        oldest = min(letter.died_at for letter in letters)
        session.note(
            f"{would} {counted(len(letters), 'dead letter')}, the oldest of {moment(oldest)}; nothing was changed"
        )
    return dry_run
