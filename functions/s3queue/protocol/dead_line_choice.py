"""Some dead lines of a batch: replayed or deleted, while its letter keeps the others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress

from s3queue.documents.dead_facts import kept_metadata
from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.dead_lines import DeadLine, dead_lines
from s3queue.documents.failure_group import Selection, group_key
from s3queue.documents.message import MOVED
from s3queue.encoding import with_put_id
from s3queue.errors import Conflict, MessageNotFound, QueueError, Unavailable
from s3queue.paths import LINES, name_of
from s3queue.store import UNKNOWN_TRIES, Object, ObjectInfo

from .access import QueueAccess
from .outcomes import NDJSON
from .removal import delete_letter


def replay_lines(queue: QueueAccess, letter: DeadLetter, found: Object, selection: Selection) -> str:
    """Those lines of a batch that are selected, as a batch of their own; the letter keeps the others."""
    lines = dead_lines(found.stream)
    chosen = [line for line in lines if _is_in(selection, line)]
    if not chosen:
        raise MessageNotFound(f"no line of {queue.name}/{letter.path} died of {selection.describe()}")
    mark = _mark(letter, selection)
    target = _target(letter, mark)
    if queue.outcome_of(target) is None:
        key, body = queue.keys.message(target), b"".join(line.body + b"\n" for line in chosen)
        with suppress(Conflict):
            marked = with_put_id({}, MOVED + mark)
            queue.store.put(key, body, if_absent=True, metadata=marked, content_type=NDJSON, once=True)
    _take_out(queue, letter, found, lines, selection)
    return target


def is_begun(queue: QueueAccess, letter: DeadLetter, selection: Selection) -> bool:
    """Whether the lines of this choice were PUT before; since others left the letter, they may be all that it holds."""
    target = _target(letter, _mark(letter, selection))
    return queue.store.head(queue.keys.message(target)) is not None or queue.outcome_of(target) is not None


def _target(letter: DeadLetter, mark: str) -> str:
    stem = letter.origin.removesuffix(LINES).removesuffix(".ndjson")
    return f"messages/{name_of(stem)}-{mark}.ndjson"


def _mark(letter: DeadLetter, selection: Selection) -> str:
    """The same death and choice give the same name: whoever repeats it after a crash makes no second batch.

    Also if other lines were replayed or deleted since: the letter of a death only loses lines, so those that a choice
    finds later were in its first batch.
    """
    death = letter.replay_id.removeprefix(MOVED)
    if letter.generation:
        death = f"{letter.path} {letter.generation.etag} {letter.generation.put_at} {letter.died_at}"
    named = f"{death} {selection.error_type or ''}"
    named += "" if selection.message is None else f"\0{selection.message}"
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _take_out(
    queue: QueueAccess, letter: DeadLetter, found: ObjectInfo, lines: Sequence[DeadLine], selection: Selection
) -> None:
    """Write the letter without the lines that were replayed. Whoever replays or deletes others of it at the same time
    may be first: then it is read again, because lines that stayed in it would be replayed twice.

    Raises:
        Conflict, Unavailable: others were first, or no answer came, again and again; the lines are replayed, and may
            still be in the letter.
    """
    for _ in range(UNKNOWN_TRIES):
        try:
            _keep(queue, found, [line for line in lines if not _is_in(selection, line)])
            return
        except (Conflict, Unavailable) as error:
            problem: QueueError = error
        again = queue.store.open(found.key)
        if again is None:
            return
        found, lines = again, dead_lines(again.stream)
        if not _is_same_death(letter, found) or not any(_is_in(selection, line) for line in lines):
            return
    raise problem


def _is_same_death(letter: DeadLetter, found: ObjectInfo) -> bool:
    """Not a later one, whose letter lies there when the first is gone: its lines were not replayed.  [P1]"""
    now = DeadLetter.of(letter.path, found)
    return (now.generation, now.died_at) == (letter.generation, letter.died_at)


def discard_lines(queue: QueueAccess, letter: DeadLetter, selection: Selection) -> bool:
    """Delete the selected lines of a letter; False if the letter was changed since it was listed."""
    found = queue.store.open(queue.keys.dead(letter.path))
    if found is None or found.etag != letter.etag:
        return False
    with suppress(Conflict):
        _keep(queue, found, [line for line in dead_lines(found.stream) if not _is_in(selection, line)])
        return True
    return False


def _is_in(selection: Selection, line: DeadLine) -> bool:
    return selection.has(group_key(line.failure.type, line.failure.message))


def _keep(queue: QueueAccess, letter: ObjectInfo, lines: Sequence[DeadLine]) -> None:
    """Write the letter anew with fewer lines.

    Raises:
        Conflict: it was changed since it was read, or is gone.
    """
    if not lines:
        if not delete_letter(queue, letter):
            raise Conflict(f"{letter.key} was changed since it was read, or is gone")
        return
    queue.store.put(
        letter.key,
        b"".join(line.to_bytes() for line in lines),
        if_match=letter.etag,
        metadata=kept_metadata(letter, lines),
        content_type=letter.content_type,
        once=True,
    )
